"""Retry: a permanent error is not retried, and a temporary one is retried after the promised pause."""

from __future__ import annotations

import asyncio

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    InMemoryCache,
    ProviderError,
    ScriptedProvider,
    ToolCall,
    emit_artifact,
    tool,
)
from sayso.agent.providers.base import ProviderConfigurationError, RateLimitedError
from sayso.agent.run.model_call import JITTER, MAX_RETRY_AFTER_SECONDS, with_retries


def retried(*outcomes, chance=0.0, **config):
    """Return the result of retries over these outcomes, or the error, and the pauses."""
    script, naps = iter(outcomes), []

    async def attempt():
        outcome = next(script)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def nap(seconds):
        naps.append(seconds)

    try:
        return asyncio.run(
            with_retries(attempt, AgentConfig(**config), nap, chance=lambda: chance)
        ), naps
    except ProviderError as exc:
        return exc, naps


@pytest.mark.parametrize(
    "error",
    [
        ProviderConfigurationError("no key"),
        ProviderError("bad key", retryable=False),
        RateLimitedError("come back tomorrow", retry_after=MAX_RETRY_AFTER_SECONDS + 1),
        RateLimitedError("never", retry_after=float("inf")),
    ],
)
def test_permanent_error_fails_at_once(error):
    """No retry burdens the vendor or delays the user."""
    assert retried(error, "back") == (error, [])


def test_last_error_is_raised_after_all_retries():
    """It is raised once max_retries are used up."""
    errors = [ProviderError(str(number)) for number in range(3)]
    assert retried(*errors) == (errors[2], [1.0, 2.0])


def test_zero_retries_make_one_attempt():
    """The setting is `max_retries=0`."""
    error = ProviderError("down")
    assert retried(error, "back", max_retries=0) == (error, [])


def test_error_of_our_own_code_is_not_retried():
    """Only a provider error is worth another attempt; any other error is a bug."""
    with pytest.raises(KeyError):
        retried(KeyError("bug"), "back")


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (ProviderError("down"), [2.0, 4.0]),
        (RateLimitedError("slow down"), [12.0, 24.0]),
        (ProviderError("Rate Limit reached"), [12.0, 24.0]),
        (ProviderError("HTTP 429"), [12.0, 24.0]),
        (RateLimitedError("slow down", retry_after=7), [7.0, 7.0]),
        (RateLimitedError("slow down", retry_after=0), [12.0, 24.0]),
    ],
)
def test_pauses_follow_the_seed_or_the_vendor(error, pauses):
    """Backoff and cooldown grow with each attempt, and `Retry-After` replaces them."""
    config = {"retry_backoff_seconds": 2.0, "rate_limit_cooldown_seconds": 10.0}
    assert retried(error, error, "back", **config) == ("back", pauses)


def test_jitter_only_lengthens_a_pause():
    """Clients never return before the vendor's time, nor all at once."""
    error = RateLimitedError("slow down", retry_after=8)
    assert retried(error, "back", chance=1.0) == ("back", [8 * (1 + JITTER)])


def test_retry_is_reported_before_its_pause():
    """An observer receives the attempt, the error and the seconds."""
    told, error = [], ProviderError("down")

    async def attempt():
        if not told:
            raise error

    async def hear(*news):
        told.append(news)

    async def nap(seconds):
        told.append(seconds)

    asyncio.run(with_retries(attempt, AgentConfig(), nap, on_retry=hear, chance=lambda: 0.0))
    assert told == [(1, error, 1.0), 1.0]


def run_agent(*answers, **config):
    """Return the result of a run over these answers, and how often the model was asked."""
    provider = ScriptedProvider(answers)
    return Agent([draw], provider, AgentConfig(**config)).run("go"), len(provider.requests)


@tool
def draw() -> str:
    """Draw."""
    emit_artifact(b"png", mime_type="image/png", filename="cat.png")
    return "drawn"


@pytest.mark.parametrize(
    "nothing",
    [
        "",
        " \n",
        "<think>secret</think>",
        "\u200b",
        "\ufeff\u2060 ",
        "\u3164",
        "<think>secret</think>\n\u200b",
    ],
)
def test_empty_answer_is_asked_for_again(nothing):
    """Once, where retries are allowed; the usage of both answers counts."""
    result, asked = run_agent(nothing, "second try", max_retries=1)
    assert (result.content, asked, result.usage.total_tokens) == ("second try", 2, 4)
    assert [message.content for message in result.messages] == ["go", "second try"]


def test_second_empty_answer_ends_the_run():
    """A third would rarely help, and each costs."""
    result, asked = run_agent("", "", "third", max_retries=5)
    assert (result.content, asked, result.failure_cause) == ("", 2, "kind=empty model=gpt-5-mini")


@pytest.mark.parametrize("config", [{"max_retries": 0}, {"max_iterations": 1}])
def test_empty_answer_is_not_asked_for_again_where_that_is_forbidden(config):
    """`max_retries=0` and the limit of steps hold."""
    assert run_agent("", "second try", **config)[1] == 1


def test_empty_answer_beside_a_file_is_an_answer():
    """The file says what there is to say."""
    result, asked = run_agent(ToolCall("draw"), "", "again", max_retries=1)
    assert (result.content, asked) == ("", 2)


def test_cached_empty_answer_is_not_replayed():
    """The second request goes to the model."""
    result, asked = run_agent("", "second try", cache=InMemoryCache())
    assert (result.content, asked) == ("second try", 2)
