"""Reasoning: a model's reasoning is sent back with the results of its calls, with each vendor's real library."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sayso.agent import Agent, AgentConfig, ConversationMemory
from sayso.agent.messages import Message, Role, UsageStats
from sayso.agent.providers.base import acall
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.vendors import OPENAI_URL, OpenAIResponsesProvider, VendorProvider
from sayso.agent.run.state import JournaledAnswer, ModelAnswer
from sayso.agent.tools.tool import tool
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.models import Models
from tests.agent.providers.api import KEY
from tests.agent.providers.conftest import MAKERS, Server, responses
from tests.agent.providers.gemini_api import UNSIGNED
from tests.agent.providers.test_contract import asked, called

THOUGHT = "Look it up."
ROUNDS = (
    {"thinks": [THOUGHT], "text": "One moment.", "calls": [called("lookup", "c1", item="nuts")]},
    {"thinks": [THOUGHT], "redacted": ["c2VjcmV0"], "calls": [called("lookup", "c1", item="milk")]},
    {"text": "Both are there."},
)


@tool(read_only=True)
def lookup(item: str) -> str:
    """Look up an item."""
    return f"{item}: 3"


def thinking(name: str, server: Server) -> VendorProvider:
    """Return a provider whose model reasons before it calls tools."""
    if name == "responses":
        return responses(server.url)
    if name == "anthropic":
        return MAKERS[name](server.url, model_settings={"thinking_budget": 1024})
    return MAKERS[name](server.url, default_model="gemini-3-pro")


def signatures(body: dict[str, Any]) -> int:
    """Return the number of signed parts of a request."""
    told = json.dumps(body).replace(UNSIGNED, "")
    return sum(
        len(re.findall(rf'"{name}": "[^"]', told))
        for name in ("signature", "thoughtSignature", "encrypted_content")
    )


@pytest.mark.parametrize("name", ["anthropic", "gemini", "responses"])
@pytest.mark.parametrize("streamed", [False, True])
def test_signed_reasoning_is_sent_back_in_a_tool_loop(
    server: Server, name: str, *, streamed: bool
) -> None:
    """The strict server refuses calls without it; the next turn needs none, and the history keeps none."""
    agent = Agent(
        [lookup], thinking(name, server), AgentConfig(model="", max_tokens=4000, max_retries=0)
    )
    server.script(*ROUNDS)
    result = agent.run(
        "Are there nuts and milk?", stream_handler=(lambda _: None) if streamed else None
    )
    assert result.content == "Both are there."
    assert [signatures(body) for body in server.bodies] == [0, 1, 2]
    assert all(message.details is None for message in result.messages)
    if name == "anthropic":
        blocks = [block["type"] for block in server.bodies[2]["messages"][3]["content"]]
        assert blocks == ["thinking", "redacted_thinking", "tool_use"]


class RecordedJournal:
    """A journal as a successor reads it: JSON that an earlier attempt wrote."""

    def __init__(self, written: str) -> None:
        self.written, self._is_read = written, False

    async def next_answer(self) -> JournaledAnswer | None:
        if self._is_read:
            return None
        self._is_read = True
        return JournaledAnswer(
            ModelAnswer(Message.from_dict(json.loads(self.written)), UsageStats())
        )

    def record_answer(self, answered: ModelAnswer) -> bool:
        return True

    async def save(self, *begun: int) -> None:
        """Do nothing, because the entries are already stored."""

    async def record_outcome(self, at: int, outcome: Any) -> Any:
        return outcome

    def begin_call(self, at: int) -> str:
        return str(at)


@pytest.mark.parametrize("name", ["anthropic", "gemini", "responses"])
def test_signed_reasoning_survives_a_killed_worker(server: Server, name: str) -> None:
    """The turn's journal contains it, and the successor sends it back."""
    server.script(ROUNDS[0], ROUNDS[2])
    provider = thinking(name, server)
    tools = [lookup.schema()]
    answer, _ = asyncio.run(
        acall(provider, asked(Message(Role.USER, "nuts?"), tools=tools, max_tokens=4000))
    )
    journal = RecordedJournal(json.dumps(answer.to_dict()))
    agent = Agent(
        [lookup], thinking(name, server), AgentConfig(model="", max_tokens=4000, max_retries=0)
    )
    result = asyncio.run(agent.arun("nuts?", journal=journal))
    assert result.content == "Both are there."
    assert signatures(server.bodies[1]) == 1


def test_reasoning_of_one_vendor_is_not_sent_to_another(server: Server) -> None:
    """The next provider receives only the calls and their results."""
    first, second = thinking("anthropic", server), MAKERS["openai"](server.url)
    agent = Agent(
        [lookup],
        FallbackProvider([first, second]),
        AgentConfig(model="", max_tokens=4000, max_retries=0),
    )
    server.script(ROUNDS[0], {"status": 529, "message": "Overloaded"}, {"text": "There are."})
    assert agent.run("nuts?").content == "There are."
    assert signatures(server.bodies[2]) == 0
    assert THOUGHT not in json.dumps(server.bodies[2])


@pytest.mark.parametrize("name", ["anthropic", "gemini", "responses"])
@pytest.mark.parametrize("streamed", [False, True])
def test_reasoning_model_can_take_over_in_a_tool_loop(
    server: Server, name: str, *, streamed: bool
) -> None:
    """Another model made the calls; the reasoning model answers although their reasoning is missing."""
    first, second = thinking(name, server), MAKERS["openai"](server.url)
    agent = Agent(
        [lookup],
        FallbackProvider([first, second]),
        AgentConfig(model="", max_tokens=4000, max_retries=0),
    )
    away = {"status": 503, "message": "Overloaded"}
    server.script(away, {"calls": [called("lookup", "c1", item="nuts")]}, {"text": "There are."})
    result = agent.run("nuts?", stream_handler=(lambda _: None) if streamed else None)
    assert (result.content, result.provider_used) == ("There are.", first.name)
    assert len(server.calls) == 3


def test_reasoning_is_omitted_if_calls_of_another_model_follow(server: Server) -> None:
    """Anthropic requires either all or none of a turn's reasoning."""
    first, second = thinking("anthropic", server), MAKERS["openai"](server.url)
    agent = Agent(
        [lookup],
        FallbackProvider([first, second]),
        AgentConfig(model="", max_tokens=4000, max_retries=0),
    )
    other = {"calls": [called("lookup", "c2", item="milk")]}
    server.script(
        ROUNDS[0], {"status": 529, "message": "Overloaded"}, other, {"text": "There are."}
    )
    result = agent.run("nuts?")
    assert (result.content, result.provider_used) == ("There are.", "anthropic")
    assert (signatures(server.bodies[3]), server.bodies[3]["thinking"]["type"]) == (0, "disabled")


@pytest.mark.parametrize("name", ["anthropic", "gemini", "responses"])
def test_calls_of_earlier_turns_need_no_reasoning(server: Server, name: str) -> None:
    """The history keeps none, and the next turn works."""
    agent = Agent(
        [lookup],
        thinking(name, server),
        AgentConfig(model="", max_tokens=4000),
        ConversationMemory(),
    )
    server.script(ROUNDS[0], {"text": "There are."}, {"text": "You are welcome."})
    agent.run("nuts?")
    assert agent.run("Thanks").content == "You are welcome."
    assert signatures(server.bodies[2]) == 0


def test_reasoning_of_a_local_server_is_sent_back_in_its_field(server: Server) -> None:
    """vLLM and DeepSeek use reasoning_content."""
    server.script(
        {"thinks": [THOUGHT], "calls": [called("lookup", "c1", item="nuts")]},
        {"text": "There are."},
    )
    agent = Agent([lookup], MAKERS["compatible"](server.url), AgentConfig(model="", max_retries=0))
    assert agent.run("nuts?").content == "There are."
    assert [message.get("reasoning_content") for message in server.bodies[1]["messages"]][
        2
    ] == THOUGHT


def test_unreadable_reasoning_is_ignored(server: Server) -> None:
    """The journal may be damaged or of a later version: the calls are sent without reasoning."""
    damaged = {"source": "anthropic/claude-haiku-4-5", "parts": [{"part_kind": "new"}]}
    data = {
        "role": "assistant",
        "tool_calls": [{"tool_name": "lookup", "parameters": {}, "id": "c1"}],
        "reasoning": damaged,
    }
    said = [
        Message(Role.USER, "nuts?"),
        Message.from_dict(data),
        Message(Role.TOOL, "3", tool_call_id="c1"),
    ]
    server.script({"text": "Three."})
    assert asyncio.run(acall(MAKERS["anthropic"](server.url), asked(*said)))[0].content == "Three."


@pytest.mark.parametrize("streamed", [False, True])
def test_responses_api_behaves_like_chat_completions(server: Server, *, streamed: bool) -> None:
    """It supports text, length limit and effort; a cut stream is an error; OpenAI stores nothing."""
    provider = OpenAIResponsesProvider(
        KEY, base_url=f"{server.url}/v1", name="openai", model_settings={"reasoning_effort": "low"}
    )
    agent = Agent((), provider, AgentConfig(model="", max_retries=0))
    heard = (lambda _: None) if streamed else None
    server.script(
        {"text": "One, two,", "finish": "length"}, {"cut": "mid", "text": "one two three four five"}
    )
    cut = agent.run("count", stream_handler=heard)
    assert (cut.content, cut.finish_reason) == ("One, two,", "length")
    assert agent.run("again", stream_handler=heard).stop_reason == "provider_error"
    assert (server.bodies[0]["reasoning"], server.bodies[0]["store"]) == ({"effort": "low"}, False)


def test_responses_api_can_be_configured_in_yaml(tmp_path: Path) -> None:
    """It is a vendor of its own with OpenAI's key and address."""
    file = tmp_path / "bot.yaml"
    file.write_text(
        "agent: {model: 'openai-responses:gpt-5-mini', api_key: '${KEY}'}\nchannels: {web: {platform: console}}\n"
    )
    provider = Models(load_settings(file, {"KEY": KEY})).of("web")
    assert isinstance(provider, OpenAIResponsesProvider)
    assert (provider.name, provider.default_model, provider.base_url) == (
        "openai",
        "gpt-5-mini",
        OPENAI_URL,
    )
