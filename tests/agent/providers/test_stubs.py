"""Stubs: the local provider says one thing through all its doors."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import Agent, AgentConfig, Message, Role, ToolCall, tool
from sayso.agent.providers.base import ProviderRequest, astream_call, join_items
from sayso.agent.providers.testing import LocalProvider, ScriptedProvider


def request(*messages, model="local"):
    """The keyword arguments of a call."""
    return ProviderRequest(model, "", messages).as_kwargs()


def test_a_tool_is_never_called():
    """What the user says about one changes nothing (seed: Testing)."""

    @tool
    def launch() -> str:
        """Launch."""
        return "gone"

    result = Agent([launch], LocalProvider(), AgentConfig(max_iterations=2, model="local")).run("launch")
    assert (result.content, result.tool_calls) == ("[local provider: local] launch", ())


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "[local provider: local]"),
        ([Message(Role.USER, "a"), Message(Role.USER, "b"), Message(Role.ASSISTANT, "c")], "[local provider: local] b"),
    ],
)
def test_the_latest_words_of_the_user_are_said_back(messages, said):
    """Whoever spoke after the user."""
    assert LocalProvider().complete(**request(*messages))[0].content == said


@given(st.text())
def test_all_doors_say_the_same(words):
    """No space and no line gets lost on the way."""
    asked, provider = request(Message(Role.USER, words)), LocalProvider()
    answer = provider.complete(**asked)
    assert answer == join_items(provider.stream(**asked)) == asyncio.run(provider.acomplete(**asked))
    heard = []

    async def hear(piece):
        heard.append(piece)

    assert asyncio.run(astream_call(provider, ProviderRequest(**asked), hear)) == answer
    assert "".join(heard) == answer[0].content


def test_the_scripted_provider_is_a_stub_too():
    """Both are where the seed has its stubs."""
    assert Agent([], ScriptedProvider([ToolCall("nothing"), "done"])).run("go").content == "done"
