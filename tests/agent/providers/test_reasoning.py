"""What a model has thought is sent back with the results of its calls, with each vendor's real library."""

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
    """Look an item up."""
    return f"{item}: 3"


def thinking(name: str, server: Server) -> VendorProvider:
    """A provider whose model thinks before it calls."""
    if name == "responses":
        return responses(server.url)
    if name == "anthropic":
        return MAKERS[name](server.url, model_settings={"thinking_budget": 1024})
    return MAKERS[name](server.url, default_model="gemini-3-pro")


def signatures(body: dict[str, Any]) -> int:
    """How many pieces of a request are signed."""
    told = json.dumps(body).replace(UNSIGNED, "")
    return sum(
        len(re.findall(rf'"{name}": "[^"]', told)) for name in ("signature", "thoughtSignature", "encrypted_content")
    )


@pytest.mark.parametrize("name", ["anthropic", "gemini", "responses"])
@pytest.mark.parametrize("streamed", [False, True])
def test_signed_thoughts_go_through_a_loop_of_tools(server: Server, name: str, *, streamed: bool) -> None:
    """The strict server refuses calls without them; the next turn needs none, and the history has none."""
    agent = Agent([lookup], thinking(name, server), AgentConfig(model="", max_tokens=4000, max_retries=0))
    server.script(*ROUNDS)
    result = agent.run("Are there nuts and milk?", stream_handler=(lambda _: None) if streamed else None)
    assert result.content == "Both are there."
    assert [signatures(body) for body in server.bodies] == [0, 1, 2]
    assert all(message.details is None for message in result.messages)
    if name == "anthropic":
        blocks = [block["type"] for block in server.bodies[2]["messages"][3]["content"]]
        assert blocks == ["thinking", "redacted_thinking", "tool_use"]


class Journalled:
    """A journal as the successor of a dead worker reads it: JSON that an earlier attempt has written."""

    def __init__(self, written: str) -> None:
        self.written, self._is_read = written, False

    async def next_answer(self) -> JournaledAnswer | None:
        if self._is_read:
            return None
        self._is_read = True
        return JournaledAnswer(ModelAnswer(Message.from_dict(json.loads(self.written)), UsageStats()))

    def record_answer(self, answered: ModelAnswer) -> bool:
        return True

    async def save(self, *begun: int) -> None:
        """Written already."""

    async def record_outcome(self, at: int, outcome: Any) -> Any:
        return outcome

    def idempotency_key(self, at: int) -> str:
        return str(at)


@pytest.mark.parametrize("name", ["anthropic", "gemini", "responses"])
def test_signed_thoughts_survive_the_death_of_a_worker(server: Server, name: str) -> None:
    """They stand in the journal of the turn; whoever goes on sends them back."""
    server.script(ROUNDS[0], ROUNDS[2])
    provider = thinking(name, server)
    tools = [lookup.schema()]
    answer, _ = asyncio.run(acall(provider, asked(Message(Role.USER, "nuts?"), tools=tools, max_tokens=4000)))
    journal = Journalled(json.dumps(answer.to_dict()))
    agent = Agent([lookup], thinking(name, server), AgentConfig(model="", max_tokens=4000, max_retries=0))
    result = asyncio.run(agent.arun("nuts?", journal=journal))
    assert result.content == "Both are there."
    assert signatures(server.bodies[1]) == 1


def test_thoughts_of_one_vendor_are_not_sent_to_another(server: Server) -> None:
    """The next provider reads the calls and their results alone."""
    first, second = thinking("anthropic", server), MAKERS["openai"](server.url)
    agent = Agent([lookup], FallbackProvider([first, second]), AgentConfig(model="", max_tokens=4000, max_retries=0))
    server.script(ROUNDS[0], {"status": 529, "message": "Overloaded"}, {"text": "There are."})
    assert agent.run("nuts?").content == "There are."
    assert signatures(server.bodies[2]) == 0
    assert THOUGHT not in json.dumps(server.bodies[2])


@pytest.mark.parametrize("name", ["anthropic", "gemini", "responses"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_model_that_thinks_takes_over_in_the_middle_of_a_loop(server: Server, name: str, *, streamed: bool) -> None:
    """It was away when another model made the calls; it answers without thoughts that nobody has."""
    first, second = thinking(name, server), MAKERS["openai"](server.url)
    agent = Agent([lookup], FallbackProvider([first, second]), AgentConfig(model="", max_tokens=4000, max_retries=0))
    away = {"status": 503, "message": "Overloaded"}
    server.script(away, {"calls": [called("lookup", "c1", item="nuts")]}, {"text": "There are."})
    result = agent.run("nuts?", stream_handler=(lambda _: None) if streamed else None)
    assert (result.content, result.provider_used) == ("There are.", first.name)
    assert len(server.calls) == 3


def test_thoughts_are_left_out_where_calls_of_another_model_follow(server: Server) -> None:
    """Anthropic takes either all of a turn's thinking or none."""
    first, second = thinking("anthropic", server), MAKERS["openai"](server.url)
    agent = Agent([lookup], FallbackProvider([first, second]), AgentConfig(model="", max_tokens=4000, max_retries=0))
    other = {"calls": [called("lookup", "c2", item="milk")]}
    server.script(ROUNDS[0], {"status": 529, "message": "Overloaded"}, other, {"text": "There are."})
    result = agent.run("nuts?")
    assert (result.content, result.provider_used) == ("There are.", "anthropic")
    assert (signatures(server.bodies[3]), server.bodies[3]["thinking"]["type"]) == (0, "disabled")


@pytest.mark.parametrize("name", ["anthropic", "gemini", "responses"])
def test_calls_of_earlier_turns_need_no_thoughts(server: Server, name: str) -> None:
    """The history keeps none, and the next turn works."""
    agent = Agent([lookup], thinking(name, server), AgentConfig(model="", max_tokens=4000), ConversationMemory())
    server.script(ROUNDS[0], {"text": "There are."}, {"text": "You are welcome."})
    agent.run("nuts?")
    assert agent.run("Thanks").content == "You are welcome."
    assert signatures(server.bodies[2]) == 0


def test_reasoning_of_a_local_server_goes_back_in_its_field(server: Server) -> None:
    """Such as vLLM or DeepSeek: reasoning_content."""
    server.script({"thinks": [THOUGHT], "calls": [called("lookup", "c1", item="nuts")]}, {"text": "There are."})
    agent = Agent([lookup], MAKERS["compatible"](server.url), AgentConfig(model="", max_retries=0))
    assert agent.run("nuts?").content == "There are."
    assert [message.get("reasoning_content") for message in server.bodies[1]["messages"]][2] == THOUGHT


def test_what_is_no_reasoning_of_ours_breaks_nothing(server: Server) -> None:
    """A damaged journal, or one of a later version: the calls are sent without it."""
    damaged = {"source": "anthropic/claude-haiku-4-5", "parts": [{"part_kind": "new"}]}
    data = {
        "role": "assistant",
        "tool_calls": [{"tool_name": "lookup", "parameters": {}, "id": "c1"}],
        "reasoning": damaged,
    }
    said = [Message(Role.USER, "nuts?"), Message.from_dict(data), Message(Role.TOOL, "3", tool_call_id="c1")]
    server.script({"text": "Three."})
    assert asyncio.run(acall(MAKERS["anthropic"](server.url), asked(*said)))[0].content == "Three."


@pytest.mark.parametrize("streamed", [False, True])
def test_the_responses_api_is_as_good_as_the_other(server: Server, *, streamed: bool) -> None:
    """Words, length limit, effort; a stream that is cut is an error; nothing is stored at OpenAI."""
    provider = OpenAIResponsesProvider(
        KEY, base_url=f"{server.url}/v1", name="openai", model_settings={"reasoning_effort": "low"}
    )
    agent = Agent((), provider, AgentConfig(model="", max_retries=0))
    heard = (lambda _: None) if streamed else None
    server.script({"text": "One, two,", "finish": "length"}, {"cut": "mid", "text": "one two three four five"})
    cut = agent.run("count", stream_handler=heard)
    assert (cut.content, cut.finish_reason) == ("One, two,", "length")
    assert agent.run("again", stream_handler=heard).stop_reason == "provider_error"
    assert (server.bodies[0]["reasoning"], server.bodies[0]["store"]) == ({"effort": "low"}, False)


def test_the_yaml_names_the_responses_api(tmp_path: Path) -> None:
    """As a vendor of its own, with OpenAI's key; another address is asked with the key beside it."""
    file = tmp_path / "bot.yaml"
    file.write_text(
        "agent: {model: 'openai-responses:gpt-5-mini', api_key: '${KEY}'}\nchannels: {web: {platform: console}}\n"
    )
    provider = Models(load_settings(file, {"KEY": KEY})).of("web")
    assert isinstance(provider, OpenAIResponsesProvider)
    assert (provider.name, provider.default_model, provider.base_url) == ("openai", "gpt-5-mini", OPENAI_URL)
