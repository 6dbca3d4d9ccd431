"""Stubs: the local provider gives the same answer through all its methods."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import Agent, AgentConfig, Message, Role, ToolCall, tool
from sayso.agent.providers.base import ProviderRequest, astream_call, join_items
from sayso.agent.providers.testing import LocalProvider, ScriptedProvider


def request(*messages, model="local"):
    """Return the keyword arguments of a call."""
    return ProviderRequest(model, "", messages).as_kwargs()


def test_local_provider_never_calls_a_tool():
    """Text that names a tool makes no difference (seed: Testing)."""

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
def test_last_user_message_is_repeated(messages, said):
    """Later messages of other roles make no difference."""
    assert LocalProvider().complete(**request(*messages))[0].content == said


@given(st.text())
def test_all_methods_give_the_same_answer(words):
    """Spaces and line breaks are kept."""
    asked, provider = request(Message(Role.USER, words)), LocalProvider()
    answer = provider.complete(**asked)
    assert answer == join_items(provider.stream(**asked)) == asyncio.run(provider.acomplete(**asked))
    heard = []

    async def hear(piece):
        heard.append(piece)

    assert asyncio.run(astream_call(provider, ProviderRequest(**asked), hear)) == answer
    assert "".join(heard) == answer[0].content


def test_scripted_provider_is_a_stub():
    """It is imported from the same place as the seed's stubs."""
    assert Agent([], ScriptedProvider([ToolCall("nothing"), "done"])).run("go").content == "done"
