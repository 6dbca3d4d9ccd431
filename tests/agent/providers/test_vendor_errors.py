"""Errors of vendors and gateways.

What they mean for people, for the operator, and whether to ask again.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from sayso.agent import Agent, AgentConfig, ConversationMemory
from sayso.agent.channel.run_replies import reply_text
from sayso.agent.providers.base import RequestRefusedError
from sayso.agent.providers.fallback import FallbackProvider
from sayso.channels.i18n.catalogue import catalogue
from sayso.channels.i18n.texts import texts_for
from tests.agent.providers.conftest import MAKERS, Server
from tests.agent.providers.test_contract import ask


@pytest.mark.parametrize(
    ("name", "step", "kind", "cause"),
    [
        (
            "openai",
            {"status": 429, "code": "rate_limit_exceeded"},
            "busy",
            "status=429 code=rate_limit_exceeded",
        ),
        ("anthropic", {"status": 529, "message": "Overloaded"}, "busy", "status=529"),
        ("gemini", {"status": 503, "message": "overloaded"}, "busy", "status=503"),
        (
            "openai",
            {"status": 400, "code": "content_filter"},
            "refused",
            "status=400 code=content_filter",
        ),
        (
            "openai",
            {"status": 400, "code": "context_length_exceeded"},
            "too_long",
            "code=context_length_exceeded",
        ),
        ("openai", {"finish": "length"}, "cut_off", "kind=cut_off"),
        (
            "openai",
            {"text": "Half an", "finish": "content_filter"},
            "refused",
            "code=content_filter",
        ),
        ("anthropic", {"finish": "content_filter"}, "refused", "code=content_filter"),
        ("gemini", {"finish": "content_filter"}, "refused", "code=content_filter"),
        ("openai", {"status": 401, "message": "Incorrect API key"}, "no_access", "status=401"),
        ("anthropic", {"status": 404, "message": "model: claude-9"}, "no_access", "status=404"),
        ("gemini", {"status": 403, "message": "no"}, "no_access", "status=403"),
        (
            "openai",
            {"status": 429, "code": "insufficient_quota"},
            "no_access",
            "code=insufficient_quota",
        ),
        ("openai", {"status": 500}, "away", "status=500"),
    ],
)
def test_final_failure_is_logged_with_its_cause_and_explained_to_the_user(
    server: Server,
    caplog: pytest.LogCaptureFixture,
    name: str,
    step: dict[str, Any],
    kind: str,
    cause: str,
) -> None:
    """The error log has status, code and model, but no text of the conversation."""
    server.script(step)
    agent = Agent((), provider=MAKERS[name](server.url), config=AgentConfig(max_retries=0))
    result = agent.run("my private words")
    lines = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(lines) == 1
    assert all(part in lines[0] for part in ("model.failed", f"kind={kind}", cause, "model="))
    assert "private" not in lines[0]
    assert reply_text(result, texts_for("en"), has_acted=False) == catalogue("en")[f"model_{kind}"]


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (401, "invalid_api_key", "api_key"),
        (404, "model_not_found", "agent.model"),
        (429, "insufficient_quota", "quota"),
    ],
)
def test_log_names_what_the_operator_can_do(
    server: Server, caplog: pytest.LogCaptureFixture, status: int, code: str, advice: str
) -> None:
    """A wrong key, model or an empty account does not pass by itself."""
    server.script({"status": status, "code": code})
    Agent((), provider=MAKERS["openai"](server.url), config=AgentConfig(max_retries=0)).run("hello")
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert advice in vars(line)["advice"]


#: What vendors and gateways answer where only the operator can help, with each one's status.
NEED_THE_OPERATOR = [
    (
        "anthropic",
        400,
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing.",
    ),
    (
        "anthropic",
        400,
        "You have reached your specified API usage limits. You will regain access on 2026-12-01.",
    ),
    ("anthropic", 400, "This organization has been disabled."),
    ("compatible", 400, "Budget has been exceeded! Current cost: 26.075, Max budget: 0.25"),
    ("compatible", 400, "ExceededBudget: User=ada over budget. Spend=1.2, Budget=1.0"),
    (
        "compatible",
        400,
        "Access denied, please make sure your account is in good standing (Arrearage)",
    ),
    ("compatible", 402, "Insufficient Balance"),
    (
        "compatible",
        403,
        "Your team has either used all available credits or reached its monthly spending limit.",
    ),
    (
        "gemini",
        429,
        "Your prepayment credits are depleted. Please go to AI Studio to manage your project and billing.",
    ),
    (
        "compatible",
        429,
        "Your account is suspended due to insufficient balance, please recharge your account",
    ),
    (
        "openai",
        429,
        "Your account is not active, please check your billing details on our website.",
    ),
    (
        "gemini",
        400,
        "Gemini API free tier is not available in your country. Please enable billing on your project.",
    ),
    ("gemini", 400, "User location is not supported for the API use."),
    ("gemini", 429, "Your project has exceeded its monthly spending cap."),
    (
        "gemini",
        429,
        "Quota exceeded for metric: free_tier_requests, limit: 0, model: gemini-2.5-pro",
    ),
    (
        "compatible",
        429,
        "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 requests",
    ),
    ("compatible", 400, "foo/bar is not a valid model ID"),
    (
        "compatible",
        400,
        "The model `mixtral-8x7b` has been decommissioned and is no longer supported.",
    ),
    ("compatible", 400, "Model Not Exist"),
    ("compatible", 400, "Incorrect API key provided: xa***ef."),
    (
        "compatible",
        400,
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser',
    ),
    ("ollama", 400, "registry.ollama.ai/library/gemma:2b does not support tools"),
    ("compatible", 500, "tools param requires --jinja flag"),
    (
        "anthropic",
        400,
        "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens",
    ),
    ("anthropic", 400, "tools.0.custom.input_schema: JSON schema is invalid."),
    (
        "gemini",
        400,
        "GenerateContentRequest.tools[0].function_declarations[0].parameters: missing field.",
    ),
    ("gemini", 400, "Budget 0 is invalid. This model only works in thinking mode."),
]


@pytest.mark.parametrize(("name", "status", "words"), NEED_THE_OPERATOR)
def test_people_are_sent_to_the_operator_where_only_the_operator_can_help(
    server: Server, caplog: pytest.LogCaptureFixture, name: str, status: int, words: str
) -> None:
    """Neither a minute of patience nor other words pay a bill, so nothing is tried again."""
    server.script({"status": status, "message": words})
    result = Agent((), MAKERS[name](server.url), AgentConfig(model="", max_retries=2)).run("hello")
    assert result.failure == "no_access"
    assert (
        reply_text(result, texts_for("en"), has_acted=False) == catalogue("en")["model_no_access"]
    )
    assert len(server.calls) == 1
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert vars(line)["advice"]


@pytest.mark.parametrize(
    ("name", "step", "kind"),
    [
        (
            "openai",
            {"status": 429, "message": "Rate limit reached for gpt-5 on requests per min (RPM)"},
            "busy",
        ),
        (
            "gemini",
            {
                "status": 429,
                "message": "You exceeded your current quota, check your plan and billing",
            },
            "busy",
        ),
        (
            "compatible",
            {"status": 403, "message": "Your input was flagged for violence"},
            "refused",
        ),
        (
            "compatible",
            {"status": 400, "message": "invalid value for messages[3].content"},
            "refused",
        ),
        ("compatible", {"status": 400, "message": "qwen is not a multimodal model"}, "refused"),
        ("compatible", {"status": 403, "message": "Content violates usage guidelines."}, "refused"),
        (
            "openai",
            {"status": 429, "message": "requests per day (RPD)", "headers": {"retry-after": "432"}},
            "busy",
        ),
        ("openai", {"status": 429, "headers": {"retry-after": "70000"}}, "no_access"),
        (
            "compatible",
            {"status": 400, "message": "Your request exceeded model token limit: 8192"},
            "too_long",
        ),
        ("compatible", {"status": 498, "code": "capacity_exceeded"}, "busy"),
        (
            "compatible",
            {"status": 500, "message": "stream error: stream ID 5; INTERNAL_ERROR"},
            "away",
        ),
        ("compatible", {"status": 500, "message": "Reasoning engine crashed"}, "away"),
        ("compatible", {"status": 500, "message": "Invalid model output"}, "away"),
    ],
)
def test_other_refusals_keep_their_words(
    server: Server,
    name: str,
    step: dict[str, Any],
    kind: str,
) -> None:
    """Gemini writes of billing where a limit of one minute is reached."""
    server.script(step)
    result = Agent((), MAKERS[name](server.url), AgentConfig(model="", max_retries=0)).run("hello")
    assert result.failure == kind


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        ({"status": 400, "message": "Invalid model: mistral-9"}, "agent.model and agent.base_url"),
        ({"status": 400, "message": "Expired Key. Key expired at 2026-01-01"}, "agent.api_key"),
        ({"status": 400, "message": "gemma:2b does not support tools"}, "takes no tools"),
        ({"status": 400, "message": "temperature: range: 0..1"}, "agent.model_settings"),
        ({"status": 402, "message": "pay"}, "billing"),
        ({"status": 403, "message": "Country, region, or territory not supported"}, "country"),
    ],
)
def test_advice_names_what_is_to_be_mended(
    server: Server, caplog: pytest.LogCaptureFixture, step: dict[str, Any], advice: str
) -> None:
    """The status 400 stands for any of them."""
    server.script(step)
    Agent((), MAKERS["compatible"](server.url), AgentConfig(model="", max_retries=0)).run("hello")
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert advice in vars(line)["advice"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": {"code": 402, "message": "Insufficient credits"}}, "no_access"),
        (
            {
                "choices": [
                    {"index": 0, "delta": {}, "error": {"code": 429, "message": "slow down"}}
                ]
            },
            "busy",
        ),
        (
            {"object": "error", "message": "maximum context length is 4096 tokens", "code": 400},
            "too_long",
        ),
    ],
)
def test_error_with_status_200_is_an_error(
    server: Server,
    error: dict[str, Any],
    kind: str,
    *,
    streamed: bool,
) -> None:
    """Gateways answer so when a vendor behind them fails."""
    raw = json.dumps(error)
    kinds = {"content-type": "text/event-stream"} if streamed else {}
    server.script({"status": 200, "raw": f"data: {raw}\n\n" if streamed else raw, "headers": kinds})
    bot = Agent((), MAKERS["compatible"](server.url), AgentConfig(model="", max_retries=0))
    result = bot.run("hello", stream_handler=(lambda _: None) if streamed else None)
    assert (result.stop_reason, result.failure) == ("provider_error", kind)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("finish", "kind"),
    [
        ("insufficient_system_resource", "busy"),
        ("error", "away"),
        ("abort", "away"),
        ("sensitive", "refused"),
    ],
)
def test_half_an_answer_is_no_answer(
    server: Server,
    finish: str,
    kind: str,
    *,
    streamed: bool,
) -> None:
    """DeepSeek, OpenRouter, vLLM and Z.ai have finish reasons of their own.

    A call in it may be cut off, too.
    """
    server.script({"text": "Half an", "finish": finish})
    bot = Agent((), MAKERS["compatible"](server.url), AgentConfig(model="", max_retries=0))
    result = bot.run("hello", stream_handler=(lambda _: None) if streamed else None)
    assert (result.stop_reason, result.failure) == ("provider_error", kind)


@pytest.mark.parametrize(("finish", "read_as"), [("model_length", "length"), ("", "stop")])
def test_finish_reasons_of_other_vendors_are_read(
    server: Server,
    finish: str,
    read_as: str,
) -> None:
    """Mistral ends so at the limit of its model, and Snowflake gives no reason."""
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": "Half an"},
    }
    answer = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }
    server.script({"raw": json.dumps(answer)})
    result = Agent((), MAKERS["compatible"](server.url), AgentConfig(model="")).run("hello")
    assert (result.content, result.finish_reason) == ("Half an", read_as)


def test_words_of_the_vendor_behind_a_gateway_are_read(server: Server) -> None:
    """OpenRouter's own message is only that the vendor returned an error."""
    raw = json.dumps({"error": {"message": "This model's maximum context length is 8192 tokens."}})
    error = {
        "code": 400,
        "message": "Provider returned error",
        "metadata": {"raw": raw, "provider_name": "X"},
    }
    server.script({"status": 400, "raw": json.dumps({"error": error})})
    with pytest.raises(
        RequestRefusedError, match="too long for 'local-model': Provider returned error: This model"
    ):
        ask(MAKERS["compatible"](server.url))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("tool_use_failed", "Failed to call a function. Please adjust your prompt."),
        ("", "The model has crashed without additional information. (Exit code: null)"),
    ],
)
def test_answer_that_the_server_itself_cannot_read_is_asked_for_again(
    server: Server,
    code: str,
    message: str,
) -> None:
    """Groq refuses the model's malformed call with 400, as if the person had asked for something wrong."""
    server.script({"status": 400, "code": code, "message": message}, {"text": "Here it is."})
    bot = Agent(
        (),
        MAKERS["compatible"](server.url),
        AgentConfig(model="", max_retries=1, retry_backoff_seconds=0),
    )
    assert bot.run("hello").content == "Here it is."


@pytest.mark.parametrize(
    "message",
    [
        "Output blocked by content filtering policy",
        "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
        "Content Exists Risk",
        "System detected potentially unsafe or sensitive content in input or generation.",
    ],
)
def test_flagged_message_blocks_only_its_own_turn(server: Server, message: str) -> None:
    """The history is left out of the second attempt, since an older message may be the flagged one."""
    server.script({"text": "one"}, {"status": 400, "message": message}, {"text": "two"})
    bot = Agent(
        (), MAKERS["compatible"](server.url), AgentConfig(model=""), memory=ConversationMemory()
    )
    assert [bot.run(text).content for text in ("first", "second")] == ["one", "two"]
    assert "first" not in json.dumps(server.bodies[-1])


@pytest.mark.parametrize(
    ("parameter", "message", "kind"),
    [
        ("temperature", "Unsupported value", "no_access"),
        ("tools[0].function.parameters", "Invalid schema", "no_access"),
        ("tools[0].function.description", "string too long. Expected at most 1024", "no_access"),
        ("messages[1].content", "Unsupported value", "refused"),
        ("messages[1].content", "string too long. Expected at most 1048576", "too_long"),
    ],
)
def test_refused_setting_is_the_operators_and_refused_content_the_persons(
    server: Server, parameter: str, message: str, kind: str
) -> None:
    """OpenAI names the place in its error."""
    error = {"message": message, "type": "invalid_request_error", "code": "unsupported_value"}
    server.script({"status": 400, "raw": json.dumps({"error": {**error, "param": parameter}})})
    result = Agent((), MAKERS["openai"](server.url), AgentConfig(model="", max_retries=0)).run(
        "hello"
    )
    assert result.failure == kind


def test_wrong_key_of_gemini_is_no_refused_question(server: Server) -> None:
    """Google answers 400, with the reason below the details."""
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
    error = {
        "code": 400,
        "status": "INVALID_ARGUMENT",
        "message": "API key not valid.",
        "details": details,
    }
    server.script({"status": 400, "raw": json.dumps({"error": error})})
    result = Agent((), MAKERS["gemini"](server.url), AgentConfig(model="", max_retries=0)).run(
        "hello"
    )
    assert result.failure == "no_access"


def test_retries_and_fallbacks_are_logged_with_kind_status_and_code(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator sees from one line why the model was asked again, or another one."""
    server.script({"status": 529, "message": "Overloaded"}, {"status": 500}, {"text": "Hi"})
    provider = FallbackProvider([MAKERS["anthropic"](server.url), MAKERS["openai"](server.url)])
    config = AgentConfig(model="", max_retries=1, retry_backoff_seconds=0)
    assert Agent((), provider, config).run("hello").content == "Hi"
    lines = [each.getMessage() for each in caplog.records]
    (fallback,) = [line for line in lines if line.startswith("provider.fallback ")]
    assert all(
        part in fallback
        for part in ("failed=anthropic next=openai", "kind=busy", "status=529", "model=")
    )
    (retry,) = [line for line in lines if line.startswith("provider.retry ")]
    assert all(part in retry for part in ("attempt=1", "kind=", "status=", "model="))


def test_wrong_key_is_told_once_though_a_fallback_answers(
    server: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """People notice nothing, so the error log is the only sign.

    A line each turn would hide all others.
    """
    provider = FallbackProvider([MAKERS["openai"](server.url), MAKERS["anthropic"](server.url)])
    agent = Agent((), provider, AgentConfig(model="", max_retries=0))
    denied = {"status": 401, "message": "Incorrect API key", "code": "invalid_api_key"}
    server.script(
        denied,
        {"text": "one"},
        denied,
        {"text": "two"},
        {"text": "by the first"},
        denied,
        {"text": "three"},
    )
    answers = [agent.run("hello").content for _ in range(4)]
    assert answers == ["one", "two", "by the first", "three"]
    errors = [each for each in caplog.records if each.levelname == "ERROR"]
    assert [each.getMessage().split()[:2] for each in errors] == [
        ["provider.no_access", "provider=openai"]
    ] * 2
    assert "agent.api_key" in vars(errors[0])["advice"]


@pytest.mark.parametrize(
    ("name", "fails", "kind", "cause"),
    [
        (
            "openai",
            {"status": 429, "code": "rate_limit_exceeded", "message": "slow"},
            "busy",
            "status=429",
        ),
        ("anthropic", {"status": 529, "message": "Overloaded"}, "busy", "code=overloaded_error"),
        ("anthropic", {"status": 400, "message": "prompt is too long"}, "too_long", "status=400"),
        (
            "gemini",
            {"status": 503, "message": "The model is overloaded."},
            "busy",
            "code=UNAVAILABLE",
        ),
    ],
)
def test_error_inside_a_stream_is_classified_like_one_before_it(
    server: Server, name: str, fails: dict[str, Any], kind: str, cause: str
) -> None:
    """The HTTP status is 200, and the cause is in an event of the stream."""
    server.script({"text": "one two three four", "fails": fails})
    agent = Agent((), MAKERS[name](server.url), AgentConfig(model="", max_retries=0))
    result = agent.run("hello", stream_handler=lambda _: None)
    assert (result.stop_reason, result.failure) == ("provider_error", kind)
    assert cause in result.failure_cause
