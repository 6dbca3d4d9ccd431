"""Approval: no reviewed call runs without a yes."""

import asyncio
import itertools
import json
import threading
from typing import Annotated

import pytest
from pydantic import AfterValidator, Field

from sayso.agent import (
    Agent,
    AgentConfig,
    EmbeddingSelector,
    NotFound,
    ScriptedProvider,
    ToolCall,
    ToolPolicy,
    tool,
)
from sayso.agent.messages import Role
from sayso.pending.call_context import ChannelRun, context_field
from sayso.pending.executors import PendingConfirmation
from sayso.pending.proposals import stash_pending

DELETE = ToolCall("delete_invoice", {"invoice_id": "INV-42"}, "c1")


@pytest.fixture
def deleted():
    """Return the list of deleted invoices."""
    return []


@pytest.fixture
def delete_invoice(deleted):
    """Return a destructive tool that requires approval."""

    @tool(requires_approval=True, preview="Delete invoice {invoice_id}")
    def delete_invoice(invoice_id: str) -> str:
        """Delete an invoice."""
        deleted.append(invoice_id)
        return f"deleted {invoice_id}"

    return delete_invoice


@pytest.fixture
def turn():
    """Return a channel run, as ChannelAgent installs it."""
    with context_field("run", ChannelRun("user", "web", "chat", 60.0, "test")) as run:
        yield run


def run_agent(tools, lines, selector=None, **config):
    """Run a scripted agent; return its result and the provider."""
    provider = ScriptedProvider(lines)
    return Agent(tools, provider, AgentConfig(**config), selector=selector).run("go"), provider


def test_approval_tool_is_denied_without_an_approver(delete_invoice, deleted):
    """Outside a channel and without confirm_action the call does not run, and the model reads the refusal."""
    result, provider = run_agent([delete_invoice], [DELETE, "sorry"])
    assert deleted == []
    assert "needs an approval" in provider.requests[1].messages[-1].content
    assert result.content == "sorry"


def test_run_on_a_channel_ends_with_the_preview(delete_invoice, deleted, turn):
    """The preview is the reply, the proposal has the exact arguments, and the model is not called again."""
    result, provider = run_agent([delete_invoice], [DELETE])
    assert (result.content, result.stop_reason) == ("Delete invoice INV-42", "pending")
    assert turn.proposals[0].kind == "delete_invoice"
    assert turn.proposals[0].args == {"invoice_id": "INV-42"}
    assert deleted == []
    assert len(provider.requests) == 1


def test_confirm_action_is_ignored_on_a_channel(delete_invoice, deleted, turn):
    """A blocking callback must not replace the user's own yes."""
    run_agent([delete_invoice], [DELETE], confirm_action=lambda *asked: True)
    assert deleted == []


def test_several_calls_of_one_answer_are_proposed_in_order(delete_invoice, deleted, turn):
    """They become one plan: the run ends, and no call has run."""
    other = ToolCall("delete_invoice", {"invoice_id": "INV-43"}, "c2")
    result, _ = run_agent([delete_invoice], [[DELETE, other]])
    assert (result.stop_reason, deleted) == ("pending", [])
    assert [proposal.args["invoice_id"] for proposal in turn.proposals] == ["INV-42", "INV-43"]


def test_duplicate_call_in_one_answer_is_refused(delete_invoice, turn):
    """The first proposal stays, and the second call is answered with `already_pending`."""
    again = ToolCall("delete_invoice", {"invoice_id": "INV-42"}, "c2")
    result, _ = run_agent([delete_invoice], [[DELETE, again]])
    assert len(turn.proposals) == 1
    assert json.loads(result.messages[3].content)["kind"] == "already_pending"


def test_reviewed_calls_are_proposed_sequentially(turn):
    """The second preview starts after the first is complete, so the order does not depend on speed."""
    second_began = threading.Event()

    def preview(invoice_id: str) -> str:
        if invoice_id == "INV-43":
            second_began.set()
            return "Delete the second"
        return f"Delete the first; beside it: {second_began.wait(0.1)}"

    @tool(requires_approval=True, preview=preview)
    def delete_invoice(invoice_id: str) -> str:
        """Delete an invoice."""
        raise AssertionError("must not run")

    run_agent(
        [delete_invoice], [[DELETE, ToolCall("delete_invoice", {"invoice_id": "INV-43"}, "c2")]]
    )
    assert [proposal.preview for proposal in turn.proposals] == [
        "Delete the first; beside it: False",
        "Delete the second",
    ]


def test_proposal_has_its_reason(delete_invoice, turn):
    """The record keeps the rule that required the approval."""
    run_agent([delete_invoice], [DELETE])
    assert turn.proposals[0].reason == "'delete_invoice' requires approval"


def test_preview_without_a_match_goes_back_to_the_model(turn):
    """A preview that returns NotFound proposes no action, and the model answers, also for a terminal tool."""

    @tool(
        requires_approval=True,
        terminal=True,
        preview=lambda invoice_id: NotFound("invoice", invoice_id),
    )
    def delete_invoice(invoice_id: str) -> str:
        """Delete an invoice."""
        raise AssertionError("must not run")

    result, _ = run_agent([delete_invoice], [DELETE, "no such invoice"])
    assert turn.proposals == []
    assert result.content == "no such invoice"


def test_failing_preview_proposes_no_action(turn):
    """The model reads that it failed, and the user sees no proposal."""

    @tool(requires_approval=True, preview=lambda invoice_id: 1 / 0)
    def delete_invoice(invoice_id: str) -> str:
        """Delete an invoice."""
        return "ran"

    _, provider = run_agent([delete_invoice], [DELETE, "hm"])
    assert turn.proposals == []
    assert "cannot preview" in provider.requests[1].messages[-1].content


def test_invalid_arguments_are_never_proposed(delete_invoice, turn):
    """Validation comes before the user is asked."""
    run_agent([delete_invoice], [ToolCall("delete_invoice", {"id": "x"}), "hm"])
    assert turn.proposals == []


def test_tool_that_stashes_its_action_ends_the_run(turn):
    """As documented, the tool stashes and returns PendingConfirmation."""

    @tool
    def wipe() -> PendingConfirmation:
        """Wipe the disk."""
        stash_pending(kind="wipe", preview="Wipe the disk", executor=lambda: "wiped")
        return PendingConfirmation(action="wipe", preview="Wipe the disk")

    result, _ = run_agent([wipe], [ToolCall("wipe")])
    assert (result.content, result.stop_reason) == ("Wipe the disk", "pending")
    assert turn.proposals[0].preview == "Wipe the disk"


def test_confirm_action_decides_outside_a_channel(delete_invoice, deleted):
    """A yes lets the call run once; the callback receives name, arguments and reason."""
    asked = []

    def confirm(*question):
        asked.append(question)
        return True

    run_agent([delete_invoice], [DELETE, "done"], confirm_action=confirm)
    assert deleted == ["INV-42"]
    assert asked == [
        ("delete_invoice", {"invoice_id": "INV-42"}, "'delete_invoice' requires approval")
    ]


def test_approval_timeout_is_one_minute_by_default():
    """The default comes from the seed (Human-in-the-Loop)."""
    assert AgentConfig().approval_timeout == 60


def test_allowed_call_runs_at_once_without_a_question(turn):
    """The rule holds on a channel too."""
    asked = []

    @tool
    def read_mail(box: str) -> str:
        """Return the mail."""
        return f"mail of {box}"

    policy = ToolPolicy(allow=["read_*"])
    result, provider = run_agent(
        [read_mail],
        [ToolCall("read_mail", {"box": "in"}), "read"],
        tool_policy=policy,
        confirm_action=asked.append,
    )
    assert (result.content, turn.proposals, asked) == ("read", [], [])
    assert provider.requests[1].messages[-1].content == "mail of in"


@pytest.mark.parametrize("answer", [False, None, "no", "yes", 1])
def test_only_true_is_a_yes(delete_invoice, deleted, answer):
    """A truthy string such as "no" must not count."""

    async def confirm(*asked):
        return answer

    run_agent([delete_invoice], [DELETE, "ok"], confirm_action=confirm)
    assert deleted == []


def test_approval_timeout_is_a_no(delete_invoice, deleted):
    """The call is denied after approval_timeout."""

    async def confirm(*asked):
        await asyncio.Event().wait()

    _, provider = run_agent(
        [delete_invoice], [DELETE, "ok"], confirm_action=confirm, approval_timeout=0.01
    )
    assert deleted == []
    assert "not approved within" in provider.requests[1].messages[-1].content


def test_timeout_inside_confirm_is_an_error_of_asking(delete_invoice, deleted):
    """Nobody waited for `approval_timeout`: the request that was to ask the person timed out."""

    async def confirm(*asked):
        raise TimeoutError("the HTTP call")

    _, provider = run_agent([delete_invoice], [DELETE, "ok"], confirm_action=confirm)
    assert deleted == []
    assert "asking failed with TimeoutError" in provider.requests[1].messages[-1].content


def test_failing_confirm_action_is_a_no(delete_invoice, deleted):
    """An error in the callback denies the call."""

    def confirm(*asked):
        raise OSError("terminal gone")

    run_agent([delete_invoice], [DELETE, "ok"], confirm_action=confirm)
    assert deleted == []


def test_denied_tool_never_runs(delete_invoice, deleted, turn):
    """Deny precedes approval: the call is not proposed, and the model reads the reason."""
    _, provider = run_agent(
        [delete_invoice], [DELETE, "ok"], tool_policy=ToolPolicy(deny=["delete_*"])
    )
    assert deleted == []
    assert turn.proposals == []
    assert "is denied" in provider.requests[1].messages[-1].content


@pytest.mark.parametrize("selector", [None, EmbeddingSelector(top_k=1)])
def test_denied_tool_is_not_shown_to_the_model(delete_invoice, deleted, selector):
    """It is not named in errors either, and it takes no place among the selected tools. A tool that is denied
    for some arguments only stays visible.
    """

    @tool
    def send(to: str, text: str = "delete invoice") -> str:
        """Send a letter."""
        return f"sent to {to}"

    policy = ToolPolicy(
        allow=["*"], deny=["DELETE_*"], deny_when=[{"tool": "send", "arg": "text", "pattern": "*"}]
    )
    steps = [ToolCall("delete", {}), DELETE, ToolCall("send", {"to": "Eve"}), "ok"]
    _, provider = run_agent([delete_invoice, send], steps, tool_policy=policy, selector=selector)
    assert [[shown["name"] for shown in request.tools] for request in provider.requests] == [
        ["send"]
    ] * 4
    unknown, denied, matching = [
        message.content for message in provider.requests[3].messages if message.role is Role.TOOL
    ]
    assert "delete_invoice" not in unknown
    assert "'delete_invoice' is denied" in denied
    assert "'send' is denied: 'text' matches" in matching
    assert deleted == []


def test_policy_reviews_unknown_tools(turn):
    """A tool without requires_approval that the policy does not know is proposed."""

    @tool
    def send(to: str) -> str:
        """Send a letter."""
        raise AssertionError("must not run")

    result, _ = run_agent(
        [send], [ToolCall("send", {"to": "Anna"})], tool_policy=ToolPolicy(allow=["read_*"])
    )
    assert result.content == "send: to = Anna"


def test_policy_allow_does_not_waive_approval(delete_invoice, deleted):
    """requires_approval holds although the policy allows the tool."""
    run_agent([delete_invoice], [DELETE, "ok"], tool_policy=ToolPolicy(allow=["*"]))
    assert deleted == []


def test_approved_arguments_run_also_if_no_record_can_hold_them():
    """A default that is made for each call is made once: what was shown is what runs."""
    shown = []
    numbers = itertools.count()

    @tool(requires_approval=True)
    def pay(
        to: Annotated[str, AfterValidator(lambda text: f"{text}!")],
        number: Annotated[int, Field(default_factory=lambda: next(numbers))],
    ) -> str:
        """Pay a person."""
        return f"{to} {number}"

    def approve(name, args, reason):
        shown.append(args)
        return True

    call = ToolCall("pay", {"to": "ana"})
    _, provider = run_agent([pay], [call, "done"], confirm_action=approve)
    result = provider.requests[1].messages[-1].content
    assert result == f"{shown[0]['to']} {shown[0]['number']}"
