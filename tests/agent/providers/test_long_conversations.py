"""Long conversations: a transcript longer than the model's context continues with every provider of a real model."""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode

import pytest

from sayso.agent import Agent, AgentConfig, ConversationMemory
from sayso.agent.messages import Message, Role
from sayso.agent.providers.base import ProviderError, ProviderRequest, acall
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.vendors import OpenAIProvider, VendorProvider
from sayso.agent.tools.tool import tool
from sayso.channels.types import Media
from tests.agent.providers.conftest import MAKERS, Make, Server
from tests.agent.providers.test_contract import PNG, called

ROWS = 40_000
#: A PNG with valid first bytes only.
DAMAGED = b"\x89PNG\r\n\x1a\n, and then nothing of an image"


@tool(read_only=True)
def table() -> str:
    """List every row of the table."""
    return "\n".join(f"row {number}: {number * 37} EUR" for number in range(ROWS))


def long_memory(exchanges: int, chars: int = 2000) -> ConversationMemory:
    """Return a memory with this number of exchanges."""
    memory = ConversationMemory(max_messages=1000)
    for number in range(exchanges):
        memory.add(Message(Role.USER, f"question {number} " + "x" * chars))
        memory.add(Message(Role.ASSISTANT, f"answer {number}"))
    return memory


def sent(server: Server) -> list[str]:
    """Return the requests so far as JSON."""
    return [json.dumps(body) for body in server.bodies]


def test_huge_result_and_long_history_never_end_a_conversation(
    server: Server, provider: VendorProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """The vendor refuses the request; the agent shortens it and asks again, and the next turn works too."""
    agent = Agent([table], provider, AgentConfig(model="", max_retries=0), long_memory(10))
    most = 30_000
    server.script(
        {"context": most, "calls": [called("table", "c1")]},
        {"context": most, "text": "It is long."},
    )
    with caplog.at_level(logging.WARNING):
        assert agent.run("Show me the table").content == "It is long."
    assert "model.context_exceeded" in caplog.text
    taken = [each for each in sent(server) if len(each) <= most]
    assert len(taken) == 2
    assert "row 0: 0 EUR" in taken[1]
    assert f"row {ROWS - 1}" in taken[1]
    assert "characters are shown" in taken[1]
    server.script({"context": most, "text": "You are welcome."})
    assert agent.run("Thanks").content == "You are welcome."


def test_after_one_overflow_the_conversation_stays_below_the_limit(
    server: Server,
    provider: VendorProvider,
) -> None:
    """A refused request costs seconds, and with some vendors tokens: it is paid once, not in every turn."""
    most = 40_000
    agent = Agent((), provider, AgentConfig(model="", max_retries=0), long_memory(30))
    refused = 0
    for number in range(5):
        server.script({"context": most, "text": f"Answer {number}."})
        assert agent.run(f"Question {number}" + "y" * 2000).content == f"Answer {number}."
        refused += len([each for each in sent(server) if len(each) > most])
    assert refused == 1
    (request,) = sent(server)
    assert "Question 4" in request
    assert "question 0 " not in request
    assert len(request) > most / 2


def test_file_that_is_too_large_shortens_no_other_conversation(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy counts the bytes of a request, and the photo in it has most of them."""
    memory = long_memory(3)
    memory.add(Message(Role.USER, "What is this?", media=(Media("1", "image/png", "cat.png"),)))
    memory.add(Message(Role.ASSISTANT, "A cat."))
    provider = MAKERS["openai"](server.url, load_media=lambda _: PNG)
    server.script({"status": 413, "raw": "<html>413</html>"}, {"text": "Hi."})
    bot = Agent((), provider, AgentConfig(model="", max_retries=0), memory)
    assert bot.run("Thanks").content == "Hi."
    assert "model.context_exceeded" in caplog.text
    assert "model.window_learned" not in caplog.text


@pytest.mark.parametrize("make", ["openai", "anthropic", "gemini"], indirect=True)
def test_result_above_the_known_context_window_is_cut_before_it_is_sent(
    server: Server, provider: VendorProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """A setting above it, and without a refused request: one result gets a quarter of the window."""
    window = provider.context_tokens() or 0
    assert window >= 100_000
    config = AgentConfig(model="", result_tokens=10 * window)

    @tool(read_only=True)
    def page() -> str:
        """Return a long page."""
        return "word " * window

    server.script({"calls": [called("page", "c1")]}, {"text": "Read."})
    assert Agent([page], provider, config).run("Read the page").content == "Read."
    assert window / 2 < len(sent(server)[1]) < window
    assert "model.context_exceeded" not in caplog.text


def test_old_exchanges_are_dropped_before_the_window_is_full(server: Server) -> None:
    """A configured window applies to unlisted models; the newest message is always sent."""
    provider = MAKERS["compatible"](server.url)
    assert provider.context_tokens() is None
    config = AgentConfig(model="", context_tokens=8000)
    server.script({"text": "Yes."})
    assert Agent((), provider, config, long_memory(30)).run("Are you there?").content == "Yes."
    request = sent(server)[0]
    assert len(request) < 8000 * 3
    assert "question 29" in request
    assert "question 0 " not in request
    assert "Are you there?" in request


def test_last_exchange_is_kept_however_long_its_results_were(server: Server) -> None:
    """Several tables exceed the window, and the model still sees the previous question."""
    agent = Agent(
        [table],
        MAKERS["compatible"](server.url),
        AgentConfig(model="", context_tokens=8000),
        long_memory(2),
    )
    server.script(
        {"calls": [called("table", f"c{number}") for number in range(6)]}, {"text": "Six tables."}
    )
    agent.run("Show me the table six times")
    server.script({"text": "Six."})
    agent.run("How often did you look?")
    request = sent(server)[0]
    assert len(request) < 8000 * 3
    assert "Show me the table six times" in request
    assert "Six tables." in request
    assert request.count("row 0: 0 EUR") == 6


def test_single_message_above_the_limit_is_cut(server: Server) -> None:
    """The model reads its beginning and its end."""
    server.script({"context": 20_000, "text": "Much."})
    agent = Agent((), MAKERS["openai"](server.url), AgentConfig(model="", max_retries=0))
    assert agent.run("First line." + "x" * 100_000 + "last line.").content == "Much."
    assert "First line." in sent(server)[-1]
    assert "last line." in sent(server)[-1]


def test_request_that_cannot_be_shortened_is_refused_once(server: Server) -> None:
    """The user reads that it is too long, and the request is not repeated."""
    server.script({"context": 10, "text": "never"})
    result = Agent((), MAKERS["openai"](server.url), AgentConfig(model="", max_retries=0)).run(
        "Hello"
    )
    assert (result.stop_reason, result.failure) == ("provider_error", "too_long")
    assert len(server.calls) == 1


def test_fallback_uses_the_smallest_context_window(server: Server) -> None:
    """One provider's refusal shortens the request although the other is unreachable."""
    small = MAKERS["anthropic"](server.url)
    provider = FallbackProvider([MAKERS["gemini"](server.url), small])
    assert provider.context_tokens() == small.context_tokens()
    nobody = OpenAIProvider(base_url="http://127.0.0.1:9/v1", default_model="m")
    agent = Agent(
        (), FallbackProvider([small, nobody]), AgentConfig(model="", max_retries=0), long_memory(20)
    )
    server.script({"context": 20_000, "text": "Hi"})
    assert agent.run("Hello").content == "Hi"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "The decoder prompt (length 9000) is longer than the maximum model length of 8192."),
        (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
        (400, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens"),
        (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081"),
        (413, "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000"),
        (429, "Request too large for m on tokens per min (TPM): Limit 30000, Requested 45000. The input or output "
              "tokens must be reduced in order to run successfully."),
        (400, "Range of input length should be [1, 30720]"),
        (400, "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 400000 tokens."),
        (500, "the request exceeds the available context size"),
    ],
)  # fmt: skip
def test_overflow_error_of_any_server_is_recognized(
    server: Server, status: int, words: str
) -> None:
    """One refusal is followed by one shorter request and its answer, without a pause or a repetition."""
    server.script({"status": status, "message": words}, {"text": "Hi"})
    agent = Agent((), MAKERS["compatible"](server.url), AgentConfig(model=""), long_memory(20))
    assert agent.run("Hello").content == "Hi"
    first, second = sent(server)
    assert len(second) < len(first) * 0.7


def test_rate_limit_is_not_mistaken_for_an_overflow(server: Server) -> None:
    """The message mentions tokens, and the same request is sent again."""
    words = "Rate limit reached on tokens per min (TPM): Limit 30000, Used 29000. Too many tokens, please wait."
    server.script({"status": 429, "message": words}, {"text": "Hi"})
    config = AgentConfig(model="", retry_backoff_seconds=0, rate_limit_cooldown_seconds=0)
    assert (
        Agent((), MAKERS["compatible"](server.url), config, long_memory(20)).run("Hello").content
        == "Hi"
    )
    first, second = sent(server)
    assert first == second


@pytest.mark.parametrize("make", ["openai", "anthropic", "gemini"], indirect=True)
def test_refused_file_ends_neither_its_turn_nor_later_ones(
    server: Server, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is damaged after its first bytes; the model gets its name instead."""
    photo = Message(Role.USER, "What is this?", media=(Media("1", "image/png", "cat.png"),))
    refused = {"status": 400, "message": "Could not process image"}
    provider = make(load_media=lambda _media: DAMAGED)
    agent = Agent((), provider, AgentConfig(model=""), ConversationMemory())
    server.script(refused, {"text": "I cannot see it."})
    assert agent.run([photo]).content == "I cannot see it."
    assert [b64encode(DAMAGED).decode() in body for body in sent(server)] == [True, False]
    assert "cat.png" in sent(server)[1]
    assert "model.files_left_out" in caplog.text
    server.script(refused, {"text": "You are welcome."})
    assert agent.run("Thanks").content == "You are welcome."


def test_file_longer_than_the_window_is_replaced_with_its_name(server: Server) -> None:
    """The tokens of its pages are unknown beforehand; the text around it is not cut."""
    book = Message(
        Role.USER,
        "Sum it up. " + "please " * 100,
        media=(Media("1", "application/pdf", "book.pdf"),),
    )
    provider = MAKERS["anthropic"](
        server.url, load_media=lambda _media: b"%PDF-1.4" + b"x" * 100_000
    )
    server.script({"context": 20_000, "text": "It is too long."})
    agent = Agent((), provider, AgentConfig(model=""), long_memory(3))
    assert agent.run([book]).content == "It is too long."
    assert "book.pdf" in sent(server)[-1]
    assert "please " * 100 in sent(server)[-1].replace("\\n", " ")


def test_message_refused_by_a_content_filter_does_not_end_the_conversation(server: Server) -> None:
    """The filter checks the whole request, so it would also refuse every later turn."""
    agent = Agent((), MAKERS["openai"](server.url), AgentConfig(model=""), ConversationMemory())
    refused = {
        "status": 400,
        "code": "content_filter",
        "message": "The prompt triggered the content policy",
    }
    server.script(refused)
    assert agent.run("something bad").failure == "refused"
    assert len(server.calls) == 1
    server.script(refused, {"text": "At nine."})
    assert agent.run("When do you open?").content == "At nine."
    assert "something bad" not in sent(server)[1]


def test_overflow_error_of_a_custom_adapter_is_recognized() -> None:
    """A custom adapter raises the errors of its library."""

    class Own:
        async def acomplete(self, **request: object) -> None:
            raise ValueError("Error code: 400 - maximum context length is 8192 tokens")

    with pytest.raises(ProviderError) as raised:
        asyncio.run(acall(Own(), ProviderRequest("m", "", ())))  # type: ignore[arg-type]  # its method never returns
    assert (raised.value.kind, raised.value.retryable) == ("too_long", False)
