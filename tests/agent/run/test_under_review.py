"""Review: every tool can be put under approval without its author's help, and the yes runs exactly what was shown."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

from sayso.agent import (
    Agent,
    AgentConfig,
    ChannelAgent,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolExecutionError,
    ToolParameter,
    ToolPolicy,
    ToolRegistry,
    tool,
)
from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.same_call import is_same_call
from sayso.pending.executors import PendingConfirmation
from sayso.pending.proposals import stash_pending

RAN: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def nothing_ran():
    """Clear the record of calls before each test."""
    RAN.clear()


@tool
def send(body: str, copies: int = 1) -> str:
    """Send a letter."""
    RAN.append((body, copies))
    return f"sent {copies}"


BODY = "".join(f"{number} " for number in range(1250)).strip()


def bot(given: Tool, args: dict, policy: ToolPolicy | None) -> ChannelAgent:
    """Return a channel agent whose model calls the tool."""
    provider = ScriptedProvider([ToolCall(given.name, args), "understood"])
    return ChannelAgent(Agent([given], provider, AgentConfig(tool_policy=policy)))


def test_long_call_is_shown_and_runs_completely():
    """With 5,000 characters and converted arguments, the preview, the signed record and the call are the same."""
    desk = bot(send, {"body": BODY, "copies": "3"}, ToolPolicy(review=["send"]))
    asked = desk.ask_channel("ana", "go").content
    assert len(BODY) > 4_800
    assert f"send: body = {BODY}, copies = 3" in asked
    assert RAN == []
    assert desk.ask_channel("ana", "yes").content == "sent 3"
    assert RAN == [(BODY, 3)]


def test_recorded_arguments_are_validated_again():
    """The tool's parameters have confirm_after_change: it refuses a record as it would refuse a model's call."""
    tools = ToolRegistry([send])
    provider = ScriptedProvider([ToolCall("send", {"body": "x", "copies": 3})])
    desk = ChannelAgent(
        Agent(tools, provider, AgentConfig(tool_policy=ToolPolicy(review=["send"])))
    )
    desk.ask_channel("ana", "go")

    @tool(name="send")
    def send_later(body: str) -> str:
        """Send one letter."""
        RAN.append((body, 1))
        return "sent"

    tools.remove("send")
    tools.register(send_later)
    told = desk.ask_channel("ana", "yes").content
    assert (RAN, "send: body = x, copies = 3" in told) == ([], True)


@pytest.mark.parametrize(
    ("policy", "asks"),
    [
        (None, True),
        (ToolPolicy(), True),
        (ToolPolicy(review=["*"]), True),
        (ToolPolicy(allow=["se*"]), False),
        (ToolPolicy(deny=["*"]), False),
        (
            ToolPolicy(allow=["*"], deny_when=[{"tool": "*", "arg": "copies", "pattern": "2"}]),
            False,
        ),
    ],
)
def test_destructive_hint_requires_approval_by_default(policy, asks):
    """The tool does not run before the yes unless a rule allows it."""
    hinted = replace(send, metadata=ToolMetadata(tags=frozenset({ToolTag.DESTRUCTIVE})))
    desk = bot(hinted, {"body": "x", "copies": 2}, policy)
    assert ("send: body = x, copies = 2" in desk.ask_channel("ana", "go").content) is asks
    assert (RAN == [("x", 2)]) is (policy is not None and policy.allow == ["se*"])


@pytest.mark.slow
def test_call_too_long_to_review_is_an_error_for_the_model():
    """It is neither cut nor proposed."""
    desk = bot(send, {"body": "x" * 20_000}, ToolPolicy(review=["send"]))
    result = desk.ask_channel("ana", "go")
    assert (result.content, RAN) == ("understood", [])
    assert "shorten it to at most 16,000" in result.messages[2].content
    desk.ask_channel("ana", "yes")
    assert RAN == []


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ToolExecutionError("the printer is off", tool_name="print_out"), False),
        (KeyError("x"), True),
    ],
)
def test_expected_failure_has_no_traceback_in_the_log(caplog, failure: Exception, told: bool):
    """One line names an expected failure; a bug in the tool is logged with its traceback."""

    @tool
    def print_out() -> str:
        """Print."""
        raise failure

    assert "failed" in confirm_call(print_out)
    (record,) = [record for record in caplog.records if record.message == "pending.failed"]
    assert bool(record.exc_info) is told
    assert told or str(failure) in record.why


@pytest.mark.parametrize("seconds", [0.25, None])
def test_timeout_of_a_tool_has_an_unknown_outcome(seconds: float | None):
    """After the tool's own limit or a TimeoutError, the effect may still happen, so the reply does not deny it."""

    @tool(metadata=ToolMetadata(timeout=seconds))
    async def print_out() -> str:
        """Print."""
        if seconds is None:
            raise TimeoutError
        await asyncio.Event().wait()
        return ""

    assert "I cannot tell whether it finished" in confirm_call(print_out)


def confirm_call(asked: Tool) -> str:
    """Propose a call of the tool, confirm it and return the reply."""
    config = AgentConfig(tool_policy=ToolPolicy(review=["*"]))
    bot = ChannelAgent(Agent([asked], ScriptedProvider([ToolCall(asked.name, {})]), config))
    bot.ask_channel("ana", "print")
    return bot.ask_channel("ana", "yes").content


def confirm_after_change(given: Tool, later: Tool, args: dict) -> tuple[str, list]:
    """Confirm a call of a tool that was replaced since the question; return the reply and the calls that ran."""
    tools = ToolRegistry([given])
    provider = ScriptedProvider([ToolCall(given.name, args)])
    desk = ChannelAgent(Agent(tools, provider, AgentConfig(tool_policy=ToolPolicy(review=["*"]))))
    desk.ask_channel("ana", "go")
    tools.remove(given.name)
    tools.register(later)
    return desk.ask_channel("ana", "yes").content, RAN


@pytest.mark.parametrize(
    ("hint", "later", "value"),
    [
        (list[str], Annotated[list[str], AfterValidator(sorted)], ["b", "a"]),
        (bool, int, True),
        (
            dict[str, list[str]],
            dict[str, Annotated[list[str], AfterValidator(sorted)]],
            {"x": ["b", "a"]},
        ),
    ],
)
def test_tool_that_reads_the_record_differently_does_not_run(hint, later, value):
    """Another order or type is not the call that was shown."""

    def move(path):
        RAN.append(("moved", path))
        return "moved"

    before, after = (
        Tool("move", "Move.", [ToolParameter("path", kind)], move) for kind in (hint, later)
    )
    told, ran = confirm_after_change(before, after, {"path": value})
    assert ran == []
    assert "move: path = " in told


class Labels(BaseModel):
    """A nested argument with a set."""

    names: set[str]


@pytest.mark.parametrize(
    ("hint", "recorded", "read"),
    [
        (set[str], ["b", "a"], ["a", "b"]),
        (list[frozenset[str]], [["b", "a"], ["c"]], [["a", "b"], ["c"]]),
        (dict[str, Labels], {"x": {"names": ["b", "a"]}}, {"x": {"names": ["a", "b"]}}),
    ],
)
def test_set_is_equal_in_any_order(hint, recorded, read):
    """A set may be stored in one order and read in another. A list may not."""
    sets = Tool("tag", "Tag.", [ToolParameter("names", hint)], str)
    lists = Tool("tag", "Tag.", [ToolParameter("names", Any)], str)
    assert all(is_same_call(sets, {"names": each}) for each in (recorded, read))
    assert is_same_call(lists, {"names": recorded})
    turned = Tool(
        "tag", "Tag.", [ToolParameter("names", Annotated[Any, AfterValidator(lambda _: read)])], str
    )
    assert not is_same_call(turned, {"names": recorded})


def test_deeply_nested_argument_is_compared_in_linear_time():
    """A hundred levels are compared at once; a comparison that doubles per level would never finish."""
    nested: Any = "x"
    for _ in range(100):
        nested = [nested]
    given = Tool("save", "Save.", [ToolParameter("data", list)], lambda data: "saved")
    desk = bot(given, {"data": nested}, ToolPolicy(review=["*"]))
    desk.ask_channel("ana", "go")
    assert desk.ask_channel("ana", "yes").content == "saved"


@pytest.mark.slow
def test_preview_after_its_timeout_proposes_no_action():
    """The model already has the timeout error, so a late question would be unexpected."""
    late = threading.Event()

    def preview(to: str) -> str:
        late.wait(5)
        return f"Pay {to}"

    pay = Tool("pay", "Pay.", [ToolParameter("to", str)], lambda to: "paid", preview=preview, requires_approval=True,
               metadata=ToolMetadata(timeout=0.01))  # fmt: skip
    desk = bot(pay, {"to": "bob"}, None)
    told = desk.ask_channel("ana", "go").content
    late.set()
    assert told == "understood"
    assert desk.ask_channel("ana", "yes").content != "paid"


@pytest.mark.parametrize("how", ["closure", "factory"])
@pytest.mark.parametrize("change", ["denied", "other version"])
def test_current_policy_and_version_hold_for_custom_executors(how, change):
    """A yes to an older question cannot bypass the current rules, however the executor was registered."""

    def ask(to: str) -> Any:
        RAN.append(("asked", 0))
        runs = (lambda: RAN.append(("paid", 1)) or "paid") if how == "closure" else None
        stash_pending(kind="pay", preview=f"Pay {to}", args={"to": to}, executor=runs, version="1")
        return PendingConfirmation(action="pay", preview=f"Pay {to}")

    given = Tool("pay", "Pay.", [ToolParameter("to", str)], ask, version="1")
    tools, provider = ToolRegistry([given]), ScriptedProvider([ToolCall("pay", {"to": "bob"})])
    agent = Agent(tools, provider, AgentConfig(tool_policy=ToolPolicy(allow=["*"])))
    desk = ChannelAgent(agent)
    if how == "factory":
        desk.store.executors.register(
            "pay", lambda action: lambda: RAN.append(("paid", 1)) or "paid"
        )
    assert "Pay bob" in desk.ask_channel("ana", "go").content
    if change == "denied":
        agent.config = replace(agent.config, tool_policy=ToolPolicy(deny=["pay"]))
    else:
        tools.remove("pay")
        tools.register(replace(given, version="2"))
    desk.ask_channel("ana", "yes")
    assert RAN == [("asked", 0)]


def test_terminal_result_beside_a_question_is_sent():
    """The text is for the user, and no model repeats it."""
    report = Tool("report", "Report.", [], lambda: "17 orders", terminal=True)
    provider = ScriptedProvider([[ToolCall("report", {}), ToolCall("send", {"body": "x"})]])
    policy = ToolPolicy(allow=["report"])
    told = (
        ChannelAgent(Agent([report, send], provider, AgentConfig(tool_policy=policy)))
        .ask_channel("ana", "go")
        .content
    )
    assert told.startswith("17 orders\n\nsend: body = x, copies = 1")
