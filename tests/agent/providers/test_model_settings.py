"""model_settings: the operator's additional settings reach the vendor, over HTTP against a strict server."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from sayso.agent import Agent, AgentConfig, InMemoryCache
from sayso.agent.providers.base import ProviderError
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.vendors import OllamaProvider, OpenAIProvider, VendorProvider
from sayso.config.settings.agent import name_of
from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.wiring.agents import AgentDeps
from sayso.config.wiring.models import Models
from tests.agent.providers.api import KEY
from tests.agent.providers.conftest import MAKERS, Server
from tests.agent.providers.test_contract import ask

THINKING = {"type": "enabled", "budget_tokens": 2000}


@pytest.mark.parametrize(
    ("name", "given", "sent"),
    [
        (
            "openai",
            {"reasoning_effort": "low", "service_tier": "flex"},
            {"reasoning_effort": "low"},
        ),
        ("openai", {"top_p": 0.5, "temperature": None}, {"top_p": 0.5}),
        (
            "compatible",
            {"min_p": 0.1, "extra_body": {"chat_template_kwargs": {"think": False}}},
            {"min_p": 0.1},
        ),
        ("ollama", {"temperature": 0.7, "num_ctx": 8192}, {"temperature": 0.7, "num_ctx": 8192}),
        ("anthropic", {"thinking": THINKING}, {"thinking": THINKING}),
        (
            "anthropic",
            {"thinking_budget": 2000, "top_p": 0.99},
            {"thinking": THINKING, "top_p": 0.99},
        ),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_settings_reach_the_vendor(
    server: Server, name: str, given: dict[str, Any], sent: dict[str, Any], *, streamed: bool
) -> None:
    """They are sent unchanged, streamed or not, beside Sayso's own fields."""
    server.script({"text": "Hi"})
    provider = MAKERS[name](server.url, model_settings=given)
    agent = Agent(
        (),
        provider,
        AgentConfig(
            model="gpt-4.1" if "top_p" in given and name == "openai" else "", max_tokens=4000
        ),
    )
    agent.run("Hello", stream_handler=(lambda _: None) if streamed else None)
    body = server.bodies[0]
    assert {key: body.get(key) for key in sent} == sent
    assert "temperature" in body or "temperature" not in sent
    assert ("temperature" in body) == ("temperature" in sent)
    assert body.get("chat_template_kwargs") == given.get("extra_body", {}).get(
        "chat_template_kwargs"
    )


def test_settings_of_gemini_are_in_its_generation_config(server: Server) -> None:
    """Both spellings work; fields elsewhere in the request need extra_body."""
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    given = {
        "top_p": 0.5,
        "topK": 3,
        "thinking_budget": 128,
        "extra_body": {"safetySettings": safety},
    }
    server.script({"text": "Hi"})
    ask(MAKERS["gemini"](server.url, model_settings=given))
    body = server.bodies[0]
    assert {"topP": 0.5, "topK": 3, "thinkingConfig": {"thinkingBudget": 128}}.items() <= body[
        "generationConfig"
    ].items()
    assert body["safetySettings"] == safety


def test_extra_headers_are_sent(server: Server, make: Any) -> None:
    """A gateway may need the name of a project."""
    server.script({"text": "Hi"})
    ask(make(model_settings={"extra_headers": {"X-Project": "support", "X-None": None}}))
    assert server.calls[0]["headers"]["x-project"] == "support"
    assert "x-none" not in server.calls[0]["headers"]


def test_unknown_model_is_sent_no_temperature_by_default(server: Server) -> None:
    """Many new models refuse it; known models get the default of 0."""
    server.script(*[{"text": "Hi"}] * 4)
    openai, local = MAKERS["openai"](server.url), MAKERS["compatible"](server.url)
    ask(openai, model="gpt-4.1-mini")
    ask(openai, model="made-up-model-9")
    ask(local)
    ask(local, temperature=0.0)
    assert [body.get("temperature") for body in server.bodies] == [0, None, None, 0]


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("openai", {"topp": 1}, "Unrecognized request argument supplied: topp"),
        ("openai", {"reasoning_effort": "much"}, "Unsupported value: reasoning_effort"),
        ("anthropic", {"thinking_budget": 5000}, "must be greater than `thinking.budget_tokens`"),
        ("gemini", {"warmth": 1}, 'Unknown name "warmth"'),
    ],
)
def test_refusal_names_the_settings_that_were_sent(
    server: Server, name: str, given: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error and the log have them, so the operator finds the line to change."""
    server.script({"text": "Hi"})
    provider = MAKERS[name](server.url, model_settings=given)
    with pytest.raises(ProviderError) as raised:
        ask(provider)
    assert words in str(raised.value)
    assert f"(model_settings sent: {next(iter(given))})" in str(raised.value)
    with caplog.at_level(logging.ERROR):
        Agent((), FallbackProvider([provider]), AgentConfig(model="")).run("Hello")
    assert f"settings={next(iter(given))}" in caplog.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_tokens": 5}, "'max_tokens', which cannot be set there: use max_tokens"),
        ({"messages": []}, "the conversation is sent there"),
        ({"extra_headers": "X"}, "is no mapping"),
        ({"extra_headers": {"X-Org": "a\r\nX-Evil: 1"}}, "has 'X-Org', which cannot be sent"),
        ({"extra_headers": {"X-Org": "Größe"}}, "has 'X-Org', which cannot be sent"),
        ({"extra_headers": {"X Org": "a"}}, "has 'X Org', which cannot be sent"),
        ({"thinking_budget": "lots"}, "thinking_budget='lots' is no number of tokens"),
        ({"temperature": "hot"}, "temperature='hot' is no number"),
        ({"thinking_budget": 5}, "use reasoning_effort: low"),
    ],
)
def test_unsendable_settings_are_refused_at_construction(given: dict[str, Any], words: str) -> None:
    """The error names the fix."""
    with pytest.raises(ValueError, match=words):
        OpenAIProvider(KEY, model_settings=given)


@pytest.mark.parametrize(
    "headers", ["X-Api-Key: s3cr3t", [{"X-Api-Key": "s3cr3t"}], {"X-Api-Key: s3cr3t": None}]
)
def test_refused_headers_are_not_shown(headers: Any) -> None:
    """They mostly hold a key."""
    with pytest.raises(ValueError, match="extra_headers") as caught:
        OpenAIProvider(KEY, model_settings={"extra_headers": headers})
    assert "s3cr3t" not in str(caught.value)


def yaml_models(tmp_path: Path, agent: str) -> tuple[Models, Any]:
    """Return the models and settings of a configuration."""
    file = tmp_path / "bot.yaml"
    file.write_text(f"agent:\n{agent}\nchannels: {{web: {{platform: console}}}}\n")
    settings = load_settings(file, {"KEY": KEY})
    return Models(settings), settings


def test_model_settings_are_read_from_yaml(server: Server, tmp_path: Path) -> None:
    """The model and each fallback have their own; `temperature: null` omits the temperature."""
    models, settings = yaml_models(
        tmp_path,
        f"  model: openai:gpt-4.1\n  api_key: ${{KEY}}\n  base_url: {server.url}/v1\n  temperature: null\n"
        "  model_settings: {top_p: 0.3, extra_headers: {X-Project: support}}\n"
        f"  fallback: [{{model: 'ollama:m', base_url: '{server.url}/local/v1', model_settings: {{num_ctx: 9}}}}]\n",
    )
    config = AgentDeps(settings, models, tmp_path).config_of("web")
    server.script({"status": 500}, {"text": "Hi"})
    assert Agent((), models.of("web"), config).run("Hello").content == "Hi"
    first, second = server.bodies
    assert (first["top_p"], second.get("top_p"), second["num_ctx"]) == (0.3, None, 9)
    assert server.calls[0]["headers"]["x-project"] == "support"
    assert "temperature" not in first
    assert name_of(settings.agent.model) == first["model"]


def test_invalid_setting_in_yaml_names_its_line(tmp_path: Path) -> None:
    """`sayso check` reports it before the first request."""
    models, _ = yaml_models(
        tmp_path, "  model: openai:gpt-4.1\n  api_key: ${KEY}\n  model_settings: {tools: []}\n"
    )
    with pytest.raises(ConfigError, match=r"bot.yaml:2:3: agent.model: model_settings has 'tools'"):
        models.of("web")


def test_cache_distinguishes_model_settings(server: Server) -> None:
    """A cache in Redis outlives a change of the configuration."""
    cache = InMemoryCache()
    server.script({"text": "one"}, {"text": "two"})

    def answer(provider: VendorProvider) -> str:
        return Agent((), provider, AgentConfig(model="", cache=cache)).run("Hello").content

    plain = OllamaProvider("m", f"{server.url}/local/v1")
    warm = OllamaProvider("m", f"{server.url}/local/v1", model_settings={"temperature": 0.9})
    assert [answer(plain), answer(warm), answer(plain)] == ["one", "two", "one"]
