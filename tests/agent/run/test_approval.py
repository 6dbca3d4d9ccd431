"""Approval: no reviewed call runs without a yes."""

import asyncio
import json
import threading

import pytest

from sayso.agent import Agent, AgentConfig, EmbeddingSelector, NotFound, ScriptedProvider, ToolCall, ToolPolicy, tool
from sayso.agent.messages import Role
from sayso.pending.executors import PendingConfirmation
from sayso.pending.proposals import ChannelRun, channel_run, stash_pending

DELETE = ToolCall("delete_invoice", {"invoice_id": "INV-42"}, "c1")


@pytest.fixture
def deleted():
    """What the destructive tool has deleted."""
    return []


@pytest.fixture
def delete_invoice(deleted):
    """A destructive tool that needs a yes."""

    @tool(requires_approval=True, preview="Delete invoice {invoice_id}")
    def delete_invoice(invoice_id: str) -> str:
        """Delete an invoice."""
        deleted.append(invoice_id)
        return f"deleted {invoice_id}"

    return delete_invoice


@pytest.fixture
def turn():
    """A channel run, as ChannelAgent installs it."""
    with channel_run(ChannelRun("user", "web", "chat", 60.0, "test")) as run:
        yield run


def run_agent(tools, lines, selector=None, **config):
    """Run a scripted agent; returns its result and the provider."""
    provider = ScriptedProvider(lines)
    return Agent(tools, provider, AgentConfig(**config), selector=selector).run("go"), provider


def test_approval_tool_is_denied_where_nobody_can_approve(delete_invoice, deleted):
    """Outside a channel and without confirm_action the model hears a refusal and nothing runs."""
    result, provider = run_agent([delete_invoice], [DELETE, "sorry"])
    assert deleted == []
    assert "needs an approval" in provider.requests[1].messages[-1].content
    assert result.content == "sorry"


def test_on_a_channel_the_run_ends_with_the_preview(delete_invoice, deleted, turn):
    """The preview is the reply, the proposal holds exact arguments, and the model is not asked again."""
    result, provider = run_agent([delete_invoice], [DELETE])
    assert (result.content, result.stop_reason) == ("Delete invoice INV-42", "pending")
    assert turn.proposals[0].kind == "delete_invoice"
    assert turn.proposals[0].args == {"invoice_id": "INV-42"}
    assert deleted == []
    assert len(provider.requests) == 1


def test_confirm_action_is_ignored_on_a_channel(delete_invoice, deleted, turn):
    """A blocking callback must not stand in for the user's own yes."""
    run_agent([delete_invoice], [DELETE], confirm_action=lambda *asked: True)
    assert deleted == []


def test_several_calls_of_one_answer_are_proposed_in_order(delete_invoice, deleted, turn):
    """They become one plan: the run ends, nothing has run."""
    other = ToolCall("delete_invoice", {"invoice_id": "INV-43"}, "c2")
    result, _ = run_agent([delete_invoice], [[DELETE, other]])
    assert (result.stop_reason, deleted) == ("pending", [])
    assert [proposal.args["invoice_id"] for proposal in turn.proposals] == ["INV-42", "INV-43"]


def test_same_call_twice_in_one_answer_is_refused_politely(delete_invoice, turn):
    """The first proposal stays; the second call hears that it already waits."""
    again = ToolCall("delete_invoice", {"invoice_id": "INV-42"}, "c2")
    result, _ = run_agent([delete_invoice], [[DELETE, again]])
    assert len(turn.proposals) == 1
    assert json.loads(result.messages[3].content)["kind"] == "already_pending"


def test_reviewed_calls_are_proposed_one_after_the_other(turn):
    """Of two proposals the first one wins, not the faster: nobody looks at the second before the first is there."""
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

    run_agent([delete_invoice], [[DELETE, ToolCall("delete_invoice", {"invoice_id": "INV-43"}, "c2")]])
    assert [proposal.preview for proposal in turn.proposals] == [
        "Delete the first; beside it: False",
        "Delete the second",
    ]


def test_proposal_says_why_it_was_asked(delete_invoice, turn):
    """The record keeps the rule that asked for the yes."""
    run_agent([delete_invoice], [DELETE])
    assert turn.proposals[0].reason == "'delete_invoice' requires approval"


def test_nothing_to_propose_goes_back_to_the_model(turn):
    """A preview that returns NotFound proposes nothing and lets the model speak, also for a terminal tool."""

    @tool(requires_approval=True, terminal=True, preview=lambda invoice_id: NotFound("invoice", invoice_id))
    def delete_invoice(invoice_id: str) -> str:
        """Delete an invoice."""
        raise AssertionError("must not run")

    result, _ = run_agent([delete_invoice], [DELETE, "no such invoice"])
    assert turn.proposals == []
    assert result.content == "no such invoice"


def test_failing_preview_proposes_nothing(turn):
    """A preview that raises is an error to the model, not a proposal with empty words."""

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


def test_tool_that_stashes_itself_ends_the_run_too(turn):
    """The documented way: the tool stashes and returns PendingConfirmation."""

    @tool
    def wipe() -> PendingConfirmation:
        """Wipe the disk."""
        stash_pending(kind="wipe", preview="Wipe the disk", executor=lambda: "wiped")
        return PendingConfirmation(action="wipe", preview="Wipe the disk")

    result, _ = run_agent([wipe], [ToolCall("wipe")])
    assert (result.content, result.stop_reason) == ("Wipe the disk", "pending")
    assert turn.proposals[0].preview == "Wipe the disk"


def test_confirm_action_decides_outside_a_channel(delete_invoice, deleted):
    """A yes lets the call run once, with name, arguments and reason shown."""
    asked = []

    def confirm(*question):
        asked.append(question)
        return True

    run_agent([delete_invoice], [DELETE, "done"], confirm_action=confirm)
    assert deleted == ["INV-42"]
    assert asked == [("delete_invoice", {"invoice_id": "INV-42"}, "'delete_invoice' requires approval")]


def test_person_is_given_a_minute():
    """The default of `approval_timeout` (seed: Human-in-the-Loop)."""
    assert AgentConfig().approval_timeout == 60


def test_what_a_policy_allows_runs_at_once_and_nobody_is_asked(turn):
    """On a channel as elsewhere."""
    asked = []

    @tool
    def read_mail(box: str) -> str:
        """Read."""
        return f"mail of {box}"

    policy = ToolPolicy(allow=["read_*"])
    result, provider = run_agent(
        [read_mail], [ToolCall("read_mail", {"box": "in"}), "read"], tool_policy=policy, confirm_action=asked.append
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


def test_silence_is_a_no(delete_invoice, deleted):
    """After approval_timeout the call is denied."""

    async def confirm(*asked):
        await asyncio.Event().wait()

    _, provider = run_agent([delete_invoice], [DELETE, "ok"], confirm_action=confirm, approval_timeout=0.01)
    assert deleted == []
    assert "not approved within" in provider.requests[1].messages[-1].content


def test_broken_confirm_action_is_a_no(delete_invoice, deleted):
    """An error while asking denies."""

    def confirm(*asked):
        raise OSError("terminal gone")

    run_agent([delete_invoice], [DELETE, "ok"], confirm_action=confirm)
    assert deleted == []


def test_denied_tool_never_runs(delete_invoice, deleted, turn):
    """Deny beats approval: it is not even proposed, and the model hears why."""
    _, provider = run_agent([delete_invoice], [DELETE, "ok"], tool_policy=ToolPolicy(deny=["delete_*"]))
    assert deleted == []
    assert turn.proposals == []
    assert "is denied" in provider.requests[1].messages[-1].content


@pytest.mark.parametrize("selector", [None, EmbeddingSelector(top_k=1)])
def test_denied_tool_is_not_shown_to_the_model(delete_invoice, deleted, selector):
    """Nor named to it, where it calls something else; it takes no place among what a selector chooses. What is denied
    under some arguments only stays.
    """

    @tool
    def send(to: str, text: str = "delete invoice") -> str:
        """Send a letter."""
        return f"sent to {to}"

    policy = ToolPolicy(allow=["*"], deny=["DELETE_*"], deny_when=[{"tool": "send", "arg": "text", "pattern": "*"}])
    steps = [ToolCall("delete", {}), DELETE, ToolCall("send", {"to": "Eve"}), "ok"]
    _, provider = run_agent([delete_invoice, send], steps, tool_policy=policy, selector=selector)
    assert [[shown["name"] for shown in request.tools] for request in provider.requests] == [["send"]] * 4
    unknown, denied, matching = [
        message.content for message in provider.requests[3].messages if message.role is Role.TOOL
    ]
    assert "delete_invoice" not in unknown
    assert "'delete_invoice' is denied" in denied
    assert "'send' is denied: 'text' matches" in matching
    assert deleted == []


def test_policy_reviews_what_it_does_not_know(turn):
    """A tool without requires_approval, unknown to the policy, is proposed."""

    @tool
    def send(to: str) -> str:
        """Send a letter."""
        raise AssertionError("must not run")

    result, _ = run_agent([send], [ToolCall("send", {"to": "Anna"})], tool_policy=ToolPolicy(allow=["read_*"]))
    assert result.content == "send: to = Anna"


def test_policy_allow_does_not_waive_approval(delete_invoice, deleted):
    """requires_approval holds even where the policy allows the tool."""
    run_agent([delete_invoice], [DELETE, "ok"], tool_policy=ToolPolicy(allow=["*"]))
    assert deleted == []
