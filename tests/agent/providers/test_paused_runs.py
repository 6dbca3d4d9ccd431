"""Paused runs: each vendor's real library and strict server accept the history of a run that waits and goes on."""

from __future__ import annotations

import json

import pytest

from sayso.agent import Agent, AgentConfig, Approve, ConversationMemory, Deny, RunSnapshot, tool
from sayso.agent.providers.vendors import VendorProvider
from tests.agent.providers.conftest import Server
from tests.agent.providers.test_contract import called
from tests.agent.providers.test_reasoning import THOUGHT, signatures, thinking

BOTH = {"calls": [called("refund", "c1", order=17), called("refund", "c2", order=18)]}


@tool(requires_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} refunded"


def stored(snapshot: RunSnapshot | None) -> RunSnapshot:
    """Return a paused run as another process reads it from a database."""
    assert snapshot is not None
    return RunSnapshot.from_dict(json.loads(json.dumps(snapshot.to_dict())))


def agent_of(provider: VendorProvider, memory: ConversationMemory | None = None) -> Agent:
    """Return an agent that pauses."""
    config = AgentConfig(model="", max_tokens=4000, max_retries=0, pause_for_approval=True)
    return Agent([refund], provider, config, memory)


@pytest.mark.parametrize("make", ["openai", "anthropic", "gemini"], indirect=True)
def test_decided_calls_are_a_valid_history(server: Server, provider: VendorProvider) -> None:
    """One call is done and one denied; each has its own result, in their order, without a user message."""
    agent = agent_of(provider)
    server.script(BOTH, {"text": "One of two."})
    result = agent.run("refund 17 and 18")
    first, second = result.open_calls
    decisions = {second.id: Deny("not that one"), first.id: Approve(first.args_digest)}
    assert agent.run(paused=stored(result.paused), decisions=decisions).content == "One of two."
    sent = json.dumps(server.bodies[1])
    assert sent.index("order 17 refunded") < sent.index("not that one")
    assert len(server.bodies) == 2


@pytest.mark.parametrize("make", ["openai", "anthropic", "gemini"], indirect=True)
def test_message_on_top_of_an_open_call_is_a_valid_history(
    server: Server, provider: VendorProvider
) -> None:
    """The call reads as waiting, also when one of two is decided; then the decisions stand where the calls are."""
    agent = agent_of(provider, ConversationMemory())
    server.script(BOTH, {"text": "Four."}, {"text": "Five."}, {"text": "Both."})
    paused = agent.run("refund 17 and 18").paused
    assert agent.run("2 + 2?").content == "Four."
    first, second = stored(paused).open_calls
    result = agent.run("2 + 3?", paused=stored(paused), decisions={first.id: Approve()})
    assert (result.content, [call.id for call in result.open_calls]) == ("Five.", [second.id])
    assert (
        agent.run(paused=stored(result.paused), decisions={second.id: Approve()}).content == "Both."
    )
    waiting = [json.dumps(body).count("waiting") for body in server.bodies]
    assert waiting == [0, 2, 1, 0]


@pytest.mark.parametrize("name", ["anthropic", "gemini", "responses"])
@pytest.mark.parametrize("remembers", [False, True])
def test_signed_reasoning_is_sent_back_after_the_pause(
    server: Server, name: str, *, remembers: bool
) -> None:
    """The strict server refuses a call without it. It is in the paused run, and in the memory until the run is over."""
    memory = ConversationMemory() if remembers else None
    agent = agent_of(thinking(name, server), memory)
    server.script({"thinks": [THOUGHT], **BOTH}, {"text": "Both."}, {"text": "Hi."})
    paused = agent.run("refund 17 and 18").paused
    if memory is not None:
        agent.memory = ConversationMemory.from_dict(json.loads(json.dumps(memory.to_dict())))
    decisions = {call.id: Approve() for call in stored(paused).open_calls}
    assert agent.run(paused=stored(paused), decisions=decisions).content == "Both."
    agent.run("hi")
    assert [min(signatures(body), 1) for body in server.bodies] == [0, 1, 0]
