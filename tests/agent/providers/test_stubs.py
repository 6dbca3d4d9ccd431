"""Stubs: the local provider gives the same answer through all its methods."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import Agent, AgentConfig, Message, Role, ToolCall, tool
from sayso.agent.decisions import UNKNOWN_NOTE
from sayso.agent.messages import ActionLink
from sayso.agent.providers.base import ProviderRequest, astream_call, join_items
from sayso.agent.providers.testing import (
    BelievingModel,
    InvalidHistory,
    LocalProvider,
    ScriptedProvider,
    check_history,
)
from sayso.agent.run.state import NOT_RUN
from sayso.agent.run.unknown_outcomes import UNKNOWN_OUTCOME


def request(*messages, model="local"):
    """Return the keyword arguments of a call."""
    return ProviderRequest(model, "", messages).as_kwargs()


def test_local_provider_never_calls_a_tool():
    """Text that names a tool makes no difference (seed: Testing)."""

    @tool
    def launch() -> str:
        """Launch."""
        return "gone"

    result = Agent([launch], LocalProvider(), AgentConfig(max_iterations=2, model="local")).run(
        "launch"
    )
    assert (result.content, result.tool_calls) == ("[local provider: local] launch", ())


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "[local provider: local]"),
        (
            [Message(Role.USER, "a"), Message(Role.USER, "b"), Message(Role.ASSISTANT, "c")],
            "[local provider: local] b",
        ),
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
    assert (
        answer == join_items(provider.stream(**asked)) == asyncio.run(provider.acomplete(**asked))
    )
    heard = []

    async def hear(piece):
        heard.append(piece)

    assert asyncio.run(astream_call(provider, ProviderRequest(**asked), hear)) == answer
    assert "".join(heard) == answer[0].content


def test_scripted_provider_is_a_stub():
    """It is imported from the same place as the seed's stubs."""
    assert Agent([], ScriptedProvider([ToolCall("nothing"), "done"])).run("go").content == "done"


ASK = Message(Role.USER, "go")
CALL = Message(Role.ASSISTANT, tool_calls=(ToolCall("a", {}, "1"), ToolCall("b", {}, "2")))
A, B = (
    Message(Role.TOOL, "ok", tool_call_id=id_, tool_name=name)
    for id_, name in (("1", "a"), ("2", "b"))
)
SAID = Message(Role.ASSISTANT, "done")


def test_history_that_every_vendor_takes_is_accepted():
    """Results may come in any order, and system messages anywhere."""
    check_history([ASK])
    check_history([Message(Role.SYSTEM, "be kind"), ASK, CALL, B, A])
    check_history([ASK, CALL, A, B, SAID, ASK, ASK])


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [SAID, ASK],
        [A],
        [ASK, SAID],
        [ASK, CALL, A],
        [ASK, CALL, A, SAID, B],
        [ASK, CALL, A, A, B],
        [ASK, CALL, A, ASK],
        [ASK, CALL, A, B, A],
        [ASK, CALL, A, B, CALL, A, B],
        [ASK, Message(Role.ASSISTANT, ""), ASK],
        [ASK, Message(Role.ASSISTANT, tool_calls=(ToolCall("", {}, "1"),)), A],
        [ASK, Message(Role.ASSISTANT, tool_calls=(ToolCall("a", {}, ""),)), A],
        [ASK, Message(Role.ASSISTANT, tool_calls=(ToolCall("pay me", {}, "1"),)), A],
        [ASK, CALL, B, Message(Role.TOOL, "ok", tool_call_id="1", tool_name="other")],
        [ASK, CALL, replace(A, content="", actions=(ActionLink("run:1"),)), B],
    ],
)
def test_history_that_a_vendor_refuses_is_refused(messages):
    """No beginning, no end, no result, two results, a result out of place, an empty answer, an id or name amiss, a
    call that waits and does not say so.
    """
    with pytest.raises(InvalidHistory):
        check_history(messages)


@pytest.mark.invalid_history
@pytest.mark.parametrize("model", [ScriptedProvider(["ok"]), BelievingModel({})])
def test_bot_on_a_model_for_tests_answers_as_for_a_refusal(model):
    """It is not asked again, since the history stays as it is."""
    result = Agent([], model).run([SAID, ASK])
    assert (result.stop_reason, result.failure, len(model.requests)) == (
        "provider_error",
        "refused",
        1,
    )


def test_scripted_provider_that_is_not_strict_takes_any_history():
    """For tests of what is odd."""
    assert Agent([], ScriptedProvider(["ok"], strict=False)).run([SAID, ASK]).content == "ok"


def results_of(*contents: str) -> list[Message]:
    """Return a history in which the call `pay` was made and had these results, one after the other."""
    history = [Message(Role.USER, "please pay 5")]
    for number, content in enumerate(contents):
        call = ToolCall("pay", {"euros": 5}, f"c{number}")
        history.append(Message(Role.ASSISTANT, tool_calls=(call,)))
        history.append(Message(Role.TOOL, content, tool_call_id=call.id, tool_name="pay"))
    return history


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (["paid"], "pay done: paid"),
        (['{"outcome": "denied", "note": "The user said no."}'], "pay denied: The user said no."),
        (['{"outcome": "done", "result": {"id": 7}}'], 'pay done: {"id": 7}'),
        (["Error: no money"], "pay failed: Error: no money"),
        ([UNKNOWN_OUTCOME], f"pay unknown: {UNKNOWN_NOTE}"),
        ([NOT_RUN], f"pay replaced: {NOT_RUN}"),
        (['{"outcome": "denied"}', '{"outcome": "done", "result": "paid"}'], "pay done: paid"),
    ],
)
def test_believing_model_believes_the_latest_result(contents, said):
    """Then it makes no call."""
    model = BelievingModel({"pay 5": ToolCall("pay", {"euros": 5})})
    answer, _ = asyncio.run(model.acomplete(**request(*results_of(*contents))))
    assert (answer.content, answer.tool_calls) == (said, ())


@pytest.mark.parametrize("contents", [[], ['{"kind": "pending_confirmation"}']])
def test_believing_model_asks_again_for_what_has_no_end(contents):
    """It believes that the call still waits, or was never made."""
    model = BelievingModel({"pay 5": ToolCall("pay", {"euros": 5})})
    answer, _ = asyncio.run(model.acomplete(**request(*results_of(*contents))))
    assert [(call.tool_name, call.parameters) for call in answer.tool_calls] == [
        ("pay", {"euros": 5})
    ]


def test_believing_model_takes_one_step_after_the_other():
    """Two calls of one step are one answer. It stops at the step that was not done."""
    tools = [tool(name=name)(lambda: "ok") for name in "abd"]

    @tool
    def c() -> str:
        """Fail."""
        raise ValueError("no")

    model = BelievingModel({"go": [[ToolCall("a"), ToolCall("b")], ToolCall("c"), ToolCall("d")]})
    result = Agent([*tools, c], model).run("go")
    assert [call.tool_name for call in result.tool_calls] == ["a", "b", "c"]
    assert result.content.splitlines()[:2] == ["a done: ok", "b done: ok"]
    assert len(model.requests) == 3
