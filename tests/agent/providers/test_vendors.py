"""Vendors: what holds for a single vendor about keys, libraries, caching, dialects and voice."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sayso.agent import Agent, AgentConfig, extras
from sayso.agent.channel.run_replies import reply_text
from sayso.agent.messages import Message, Role
from sayso.agent.observability.otel import OpenTelemetryObserver
from sayso.agent.providers.base import (
    ProviderConfigurationError,
    ProviderError,
    RateLimitedError,
    stream_items,
)
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.model_request import http_client
from sayso.agent.providers.vendors import (
    AnthropicProvider,
    GeminiProvider,
    OllamaProvider,
    OpenAIProvider,
    VendorProvider,
)
from sayso.channels.i18n.catalogue import catalogue
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Media
from tests.agent.providers.api import KEY
from tests.agent.providers.conftest import MAKERS, ROOT, Make, Server, responses
from tests.agent.providers.test_contract import STOCK_SCHEMA, ask, asked, pieces, stock
from tests.clocks import StoppedClock

KEYS = {
    OpenAIProvider: "OPENAI_API_KEY",
    AnthropicProvider: "ANTHROPIC_API_KEY",
    GeminiProvider: "GEMINI_API_KEY",
}


@pytest.mark.parametrize("kind", KEYS)
def test_malformed_address_of_a_server_is_refused_at_once(kind: Any) -> None:
    """The vendor's library would raise an error of its own with the first message."""
    with pytest.raises(
        ProviderConfigurationError, match="is not a URL: write it as https://"
    ) as caught:
        kind(api_key="k", base_url="http://[::1/v1?key=s3cr3t")
    assert "base_url 'http://[::1/v1'" in str(caught.value)


def test_line_break_behind_a_key_is_not_sent(server: Server, make: Make) -> None:
    """Mounted secrets end in one. The library would refuse the header, and show it in an error."""
    server.script({"text": "Hi"})
    assert ask(make(key=f"{KEY}\n"))[0].content == "Hi"


@pytest.mark.parametrize("kind", KEYS)
def test_key_that_no_header_can_hold_is_refused_without_showing_it(kind: Any) -> None:
    """The traceback of the library's error has the key."""
    with pytest.raises(ProviderConfigurationError, match="copy it again") as caught:
        kind("s3cr\n3t")
    assert "3t" not in str(caught.value)


@pytest.mark.parametrize(("kind", "variable"), KEYS.items())
def test_missing_key_is_named_at_construction(
    kind: Any, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error does not wait for the first request."""
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ProviderConfigurationError, match=f"set {variable}, or pass api_key"):
        kind()


@pytest.mark.parametrize(
    ("kind", "extra"),
    [(OpenAIProvider, "llm"), (AnthropicProvider, "anthropic"), (GeminiProvider, "google")],
)
def test_missing_library_is_named_with_the_install_command(
    kind: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check does not import the library."""
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == kind.sdk else object())
    says = f"the module '{kind.sdk}' is missing, which the extra '{extra}' brings: {extras.install_command(extra)}"
    with pytest.raises(ProviderConfigurationError, match=f"^{re.escape(says)}$"):
        kind(KEY)


def test_key_of_openai_is_sent_to_no_other_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local server is called without a key."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.script({"text": "Hi"})
    ask(OpenAIProvider(default_model="m", base_url=f"{server.url}/local/v1"))
    assert KEY not in json.dumps(server.calls)


def test_environment_does_not_redirect_the_key(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendors' libraries would follow these variables."""
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    for provider in (OpenAIProvider(KEY), AnthropicProvider(KEY)):
        assert server.url not in str(provider._connect(http_client()).base_url)


def test_wrong_configuration_is_logged_with_its_cure(caplog: pytest.LogCaptureFixture) -> None:
    """No model can answer until the operator changes something, so the log says what."""
    Agent((), OpenAIProvider(KEY, default_model=""), AgentConfig(model="")).run("Hello")
    (failure,) = [record for record in caplog.records if "model.failed" in record.message]
    assert failure.__dict__["advice"] == "openai was asked for no model: give it a default_model"


def test_importing_the_providers_imports_no_vendor_library() -> None:
    """Importing the libraries takes a second."""
    lines = "import sys, agent.providers; print([n for n in ('pydantic_ai', 'openai', 'google.genai') if n in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_anthropic_caches_the_system_prompt_and_the_tools(server: Server) -> None:
    """Parts that change with every turn are not cached, and a setting disables caching."""
    server.script({"text": "Hi"}, {"text": "Hi"})
    words = (Message(Role.SYSTEM, "Earlier: much."), Message(Role.USER, "Hello"))
    ask(MAKERS["anthropic"](server.url), *words, tools=[stock.schema()])
    ask(MAKERS["anthropic"](server.url, cache_prompt=False), *words, tools=[stock.schema()])
    cached, plain = server.bodies
    assert [("cache_control" in block) for block in cached["system"]] == [True, False]
    assert "cache_control" in cached["tools"][-1]
    assert "cache_control" not in json.dumps(plain)


def test_reasoning_model_is_sent_no_temperature(server: Server) -> None:
    """OpenAI would answer 400, and its library would warn at each request."""
    server.script({"text": "Hi"}, {"text": "Hi"})
    provider = MAKERS["openai"](server.url)
    ask(provider, model="gpt-5-mini", temperature=0.5)
    ask(provider, model="gpt-4.1-mini", temperature=0.5)
    assert [body.get("temperature") for body in server.bodies] == [None, 0.5]


def test_tool_that_the_vendor_would_refuse_is_left_out(server: Server) -> None:
    """The other tools are sent."""
    bad = {"name": "bad name!", "description": "x", "parameters": STOCK_SCHEMA}
    for name in ("openai", "anthropic", "gemini"):
        server.script({"text": "Hi"})
        ask(MAKERS[name](server.url), tools=[bad, stock.schema()])
        sent = json.dumps(server.bodies[0])
        assert "bad name!" not in sent
        assert '"stock"' in sent


def test_optional_parameters_stay_optional(server: Server) -> None:
    """A strict schema would require all of them."""
    properties = {"item": {"type": "string"}, "shop": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["item"]}
    server.script({"text": "Hi"})
    ask(
        MAKERS["openai"](server.url),
        tools=[{"name": "stock", "description": "x", "parameters": schema}],
    )
    assert server.bodies[0]["tools"][0]["function"]["parameters"]["required"] == ["item"]


def test_schema_is_native_where_the_vendor_supports_it(server: Server) -> None:
    """OpenAI and Anthropic accept it beside tools."""
    schema = {"title": "Sum", **STOCK_SCHEMA, "additionalProperties": False}
    server.script({"text": "{}"}, {"text": "{}"})
    for name in ("openai", "anthropic"):
        ask(MAKERS[name](server.url), response_format=schema, tools=[stock.schema()])
    openai, anthropic = server.bodies
    assert openai["response_format"]["json_schema"]["name"] == "Sum"
    assert "json_schema" in json.dumps(
        anthropic.get("output_config") or anthropic.get("output_format")
    )


#: How a server that is made with FastAPI refuses a field; `input` may be a text of the user.
FIELDS = json.dumps(
    {
        "detail": [
            {
                "type": "extra_forbidden",
                "loc": ["body", "top_k"],
                "msg": "Extra inputs are not permitted",
                "input": "secret",
            }
        ]
    }
)


@pytest.mark.parametrize(
    ("name", "step", "words"),
    [
        (
            "openai",
            {"status": 400, "code": "context_length_exceeded", "message": "too many"},
            "too long for 'gpt-5-mini'",
        ),
        (
            "anthropic",
            {"status": 400, "message": "prompt is too long: 9 tokens > 8"},
            "too long for 'claude",
        ),
        (
            "openai",
            {"status": 400, "code": "content_filter", "message": "no"},
            "content filter refused",
        ),
        ("openai", {"status": 400, "raw": "<html>secret</html>"}, "it answered 400$"),
        ("anthropic", {"status": 529, "message": "Overloaded"}, "it answered 529: Overloaded"),
        (
            "compatible",
            {"status": 422, "raw": FIELDS},
            "it answered 422: body.top_k: Extra inputs are not permitted$",
        ),
        (
            "compatible",
            {"status": 400, "raw": '{"detail": "model is loading"}'},
            "it answered 400: model is loading$",
        ),
    ],
)
def test_refusal_has_its_reason(
    server: Server, name: str, step: dict[str, Any], words: str
) -> None:
    """The error says what to change."""
    server.script(step)
    with pytest.raises(ProviderError, match=words):
        ask(MAKERS[name](server.url))


def test_text_of_a_refusal_is_readable(server: Server) -> None:
    """Only the key and the address are hidden."""
    with pytest.raises(
        ProviderError, match=r"Incorrect API key provided: \[hidden\]\.? See \[hidden\]$"
    ):
        ask(MAKERS["openai"](server.url, key="sk-wrong-1234567890"))


def test_exhausted_quota_is_not_retryable(server: Server) -> None:
    """It has the status 429 of a rate limit."""
    server.script({"status": 429, "code": "insufficient_quota", "message": "pay"})
    with pytest.raises(RateLimitedError, match="quota is used up") as raised:
        ask(MAKERS["openai"](server.url))
    assert not raised.value.retryable


def test_openai_stream_without_an_end_mark_was_cut(server: Server) -> None:
    """A proxy that gives up ends the stream without an error."""
    server.script({"text": "one two", "finish": "none"})
    with pytest.raises(ProviderError) as raised:
        pieces(MAKERS["openai"](server.url))
    assert raised.value.retryable


def test_unreachable_server_is_retryable(server: Server) -> None:
    """The server may be starting."""
    del server
    with pytest.raises(ProviderError, match="connection was lost") as raised:
        ask(OllamaProvider("m", "http://127.0.0.1:9/v1"))
    assert raised.value.retryable


def test_missing_model_is_a_configuration_error() -> None:
    """Ollama has no default model."""
    with pytest.raises(ProviderConfigurationError, match="give it a default_model"):
        ask(OllamaProvider())


def test_voice_is_converted_for_audio_models(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ffmpeg converts it to a format of OpenAI's audio models."""
    ffmpeg = tmp_path / "ffmpeg"
    ffmpeg.write_text("#!/bin/sh\n/bin/cat > /dev/null\nprintf 'ID3 made'\n")
    ffmpeg.chmod(ffmpeg.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    server.script({"text": "I hear."})
    voice = Message(Role.USER, "", media=(Media("1", "audio/ogg", "v.ogg"),))
    ask(MAKERS["openai"](server.url, load_media=lambda media: b"OggS"), voice, model="gpt-audio")
    part = server.bodies[0]["messages"][-1]["content"][0]
    assert part["input_audio"] == {"data": "SUQzIG1hZGU=", "format": "mp3"}


def test_forked_process_has_its_own_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not write to its parent's sockets."""

    async def two() -> bool:
        provider = OllamaProvider("m")
        provider.preload()
        before = provider._clients_of_loop()
        monkeypatch.setattr(os, "getpid", lambda: -1)
        return provider._clients_of_loop() is before

    assert not asyncio.run(two())


@pytest.mark.parametrize(
    ("first", "second"), [("openai", "anthropic"), ("anthropic", "gemini"), ("gemini", "openai")]
)
def test_stream_cut_in_the_middle_falls_back(server: Server, first: str, second: str) -> None:
    """Only the second vendor's answer counts, over real connections."""
    server.script({"cut": "mid", "text": "one two three four five six"}, {"text": "whole answer"})
    provider = FallbackProvider([MAKERS[first](server.url), MAKERS[second](server.url)])
    heard: list[str] = []
    result = Agent((), provider, AgentConfig(model="", max_retries=0)).run(
        "Hello", stream_handler=heard.append
    )
    assert (result.content, result.provider_used) == ("whole answer", second)
    assert "".join(heard).startswith("one")
    assert "".join(heard).endswith("\nwhole answer")


@pytest.mark.parametrize(
    ("first", "second"), [("openai", "anthropic"), ("anthropic", "gemini"), ("gemini", "openai")]
)
def test_silent_stream_falls_back(server: Server, first: str, second: str) -> None:
    """The first connection stays open after its first words: the next vendor has the whole time limit for itself."""
    server.script({"text": "one two three", "pause": 4.0}, {"text": "whole answer"})
    provider = FallbackProvider([MAKERS[first](server.url), MAKERS[second](server.url)])
    agent = Agent((), provider, AgentConfig(model="", max_retries=0, request_timeout=0.2))
    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        loop: Any = runner.get_loop()
        # From the first words on the time passes for longer than the limit, and then stands still again.
        result = runner.run(agent.arun("Hello", stream_handler=lambda _: loop.start(0.3)))
    assert (result.content, result.provider_used) == ("whole answer", second)


@pytest.mark.parametrize("name", ["openai", "anthropic", "gemini"])
def test_slow_stream_is_read_to_its_end(server: Server, name: str) -> None:
    """The time limit is for each pause, not for the whole answer."""
    server.script({"text": "one two three four five six seven eight nine ten"})
    heard: list[str] = []

    async def read() -> None:
        loop: Any = asyncio.get_running_loop()
        async for piece in stream_items(MAKERS[name](server.url), asked(timeout=0.6)):
            heard.append(str(piece))
            loop.pass_time(0.5)

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        runner.run(read())
    assert "ten" in "".join(heard)


@pytest.mark.parametrize("name", ["openai", "anthropic", "responses"])
@pytest.mark.parametrize("streamed", [False, True])
def test_refusal_of_the_model_is_shown_in_its_own_words(
    server: Server, name: str, *, streamed: bool
) -> None:
    """The refusal reaches the user and the history, with a note if tools have had effects."""
    server.script({"refusal": "I cannot help with weapons."})
    provider = {**MAKERS, "responses": responses}[name](server.url)
    bot = Agent((), provider=provider, config=AgentConfig(model="", max_retries=0))
    result = bot.run("hello", stream_handler=(lambda _: None) if streamed else None)
    assert (result.stop_reason, result.failure) == ("provider_error", "refused")
    assert reply_text(result, texts_for("en"), has_acted=False) == "I cannot help with weapons."
    assert result.messages[-1].content == "I cannot help with weapons."
    told = reply_text(result, texts_for("en"), has_acted=True)
    assert told == "I cannot help with weapons.\n\n" + catalogue("en")["lost_refused"]


@pytest.mark.parametrize("streamed", [False, True])
def test_answer_cut_off_by_the_length_limit_is_marked_and_logged(
    server: Server, provider: VendorProvider, caplog: pytest.LogCaptureFixture, *, streamed: bool
) -> None:
    """The user reads a note in their language; the log has it too."""
    server.script({"text": "One, two,", "finish": "length"}, {"text": "Done."})
    bot = Agent((), provider=provider, config=AgentConfig(model=""))
    cut = bot.run("count", stream_handler=(lambda _: None) if streamed else None)
    whole = bot.run("again")
    assert (cut.finish_reason, whole.finish_reason) == ("length", "stop")
    assert (
        reply_text(cut, texts_for("de"), has_acted=False)
        == "One, two,\n\n" + catalogue("de")["answer_cut"]
    )
    assert reply_text(whole, texts_for("de"), has_acted=False) == "Done."
    assert caplog.text.count("model.cut_off") == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_empty_answer_is_logged_with_its_cause(
    server: Server, provider: VendorProvider, caplog: pytest.LogCaptureFixture, *, streamed: bool
) -> None:
    """The user reads that the model does not answer; the log says that its answer was empty."""
    server.script({"text": ""}, {"text": ""})
    bot = Agent((), provider, AgentConfig(model=""))
    result = bot.run("hello", stream_handler=(lambda _: None) if streamed else None)
    assert reply_text(result, texts_for("en"), has_acted=False) == catalogue("en")["model_away"]
    assert result.failure_cause == f"kind=empty model={provider.default_model}"
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert result.failure_cause in line


@pytest.mark.parametrize(
    "finish", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "OTHER", "MALFORMED_RESPONSE"]
)
@pytest.mark.parametrize("streamed", [False, True])
def test_answer_that_gemini_calls_broken_is_retried(
    server: Server,
    finish: str,
    *,
    streamed: bool,
) -> None:
    """It happens often, and rarely twice; text before it is dropped."""
    broken = {"text": "One moment." if streamed else "", "finish": finish}
    server.script(broken, {"text": "Here it is."})
    bot = Agent((), MAKERS["gemini"](server.url), AgentConfig(model="", retry_backoff_seconds=0))
    result = bot.run("hello", stream_handler=(lambda _: None) if streamed else None)
    assert (result.content, len(server.calls)) == ("Here it is.", 2)


@pytest.mark.parametrize(
    ("name", "named"), [("openai", "openai"), ("anthropic", "anthropic"), ("gemini", "gcp.gemini")]
)
def test_spans_and_metrics_of_a_request_follow_the_conventions(
    server: Server, name: str, named: str
) -> None:
    """They have the vendor's response data, the server, the settings and the tool calls."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    watch = OpenTelemetryObserver(
        tracing, include_content=True, meter_provider=MeterProvider([reader])
    )
    provider = MAKERS[name](server.url, model_settings={"top_p": 0.5})
    calls = [{"name": "stock", "id": "c1", "arguments": {"item": "nuts"}}]
    server.script(
        {"text": "Well.", "calls": calls},
        {"text": "Four", "finish": "length"},
        {"status": 429, "message": "slow"},
    )
    config = AgentConfig(model="", max_tokens=50, max_retries=0, observers=[watch])
    bot = Agent([stock], FallbackProvider([provider]), config)
    bot.run("How many?")
    bot.run("And now?")
    questions = [span for span in exporter.get_finished_spans() if span.name.startswith("chat")]
    first, second, failed = (dict(span.attributes or {}) for span in questions)
    port = int(server.url.rpartition(":")[2])
    for told in (first, second):
        assert (told["gen_ai.provider.name"], told["server.address"], told["server.port"]) == (
            named,
            "127.0.0.1",
            port,
        )
        assert (told["gen_ai.request.max_tokens"], told["gen_ai.request.top_p"]) == (50, 0.5)
        assert told["gen_ai.response.id"]
        assert told["gen_ai.output.type"] == "text"
    assert second["gen_ai.response.finish_reasons"] == ("length",)
    (answer,) = json.loads(str(first["gen_ai.output.messages"]))
    assert [part["type"] for part in answer["parts"]] == ["text", "tool_call"]
    assert (answer["parts"][1]["name"], answer["parts"][1]["arguments"]) == (
        "stock",
        {"item": "nuts"},
    )
    assert (answer["role"], bool(answer["finish_reason"])) == ("assistant", True)
    assert failed["error.type"] == "sayso.agent.providers.base.RateLimitedError"
    assert (failed["http.response.status_code"], failed["server.port"]) == (429, port)
    run = [span for span in exporter.get_finished_spans() if span.name.startswith("invoke_agent")][
        -1
    ]
    assert dict(run.attributes or {})["error.type"] == "sayso.agent.providers.base.RateLimitedError"
    points = metric_points(reader)
    assert {
        point.attributes["gen_ai.token.type"] for point in points["gen_ai.client.token.usage"]
    } == {
        "input",
        "output",
    }
    durations = points["gen_ai.client.operation.duration"]
    assert sum(point.count for point in durations) == 3
    assert [
        point.attributes["error.type"] for point in durations if "error.type" in point.attributes
    ] == ["sayso.agent.providers.base.RateLimitedError"]
    assert points["sayso.answers.cut_off"][0].value == 1


def metric_points(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Return the data points by metric name."""
    data: Any = reader.get_metrics_data()
    metrics = [
        metric
        for each in data.resource_metrics
        for scope in each.scope_metrics
        for metric in scope.metrics
    ]
    return {metric.name: list(metric.data.data_points) for metric in metrics}
