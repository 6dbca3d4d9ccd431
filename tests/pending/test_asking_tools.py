"""Tools that ask by themselves: each is known before it runs, and a read-only tool cannot ask."""

from __future__ import annotations

import functools
import logging

import pytest

from sayso.agent import Tool, tool
from sayso.agent.tools.errors import ToolExecutionError, ToolValidationError
from sayso.pending import PendingConfirmation, stash_pending
from sayso.pending.call_context import ChannelRun, context_field
from sayso.pending.proposals import stash_pending as ask


def run() -> ChannelRun:
    """Return a run of ana's on a channel."""
    return ChannelRun("ana", "ops", "1", 60.0, "")


def close(account: str) -> PendingConfirmation:
    """Close an account."""
    stash_pending(kind="close", preview=f"Close {account}", args={"account": account})
    return PendingConfirmation(action="close", preview=f"Close {account}")


def renamed(account: str) -> str:
    """Close an account."""
    return str(ask(kind="close", preview=f"Close {account}"))


def inside(account: str) -> list[str]:
    """Close an account."""
    return [str(stash_pending(kind="close", preview=one)) for one in account]


def hidden(account: str) -> str:
    """Close an account."""
    return str(close(account))


def look(account: str) -> str:
    """Look at an account."""
    return account


@pytest.mark.parametrize(
    ("function", "proposes"),
    [
        (close, True),
        (renamed, True),
        (inside, True),
        (functools.partial(close), True),
        (look, False),
        (hidden, False),
    ],
)
def test_a_tool_whose_code_names_stash_pending_is_known_to_ask(function, proposes: bool):
    """Another name, an inner function and a partial are recognized; a call in another function must be declared."""
    assert Tool.from_function(function, name="close_account").proposes is proposes


def test_declaration_counts():
    """The author's declaration wins over the code."""
    assert Tool.from_function(hidden, proposes=True).proposes
    assert not Tool.from_function(close, proposes=False).proposes


@pytest.mark.parametrize("options", [{}, {"proposes": True}])
def test_a_read_only_tool_that_asks_is_refused_at_definition(options):
    """It promises to change nothing, and asks for a yes to a change."""
    with pytest.raises(
        ToolValidationError,
        match=r"'close' cannot be defined: it asks for a confirmation .* leave read_only out",
    ):
        tool(read_only=True, **options)(close)


def test_a_read_only_tool_that_asks_through_another_function_fails_without_asking():
    """No action waits afterwards."""
    with (
        context_field("run", run()) as here,
        pytest.raises(ToolExecutionError, match="'hidden' is marked read_only and asks"),
    ):
        Tool.from_function(hidden, read_only=True).execute({"account": "7"})
    assert here.proposals == []


def test_an_undeclared_proposal_is_asked_and_logged(caplog: pytest.LogCaptureFixture):
    """The log names the tool and the cure; a declared tool logs nothing."""
    with caplog.at_level(logging.WARNING), context_field("run", run()) as here:
        Tool.from_function(hidden, proposes=True).execute({"account": "6"})
        assert caplog.messages == []
        Tool.from_function(hidden).execute({"account": "7"})
    assert [action.preview for action in here.proposals] == ["Close 6", "Close 7"]
    assert [(record.message, record.tool) for record in caplog.records] == [
        ("proposal.undeclared", "hidden")
    ]


def test_a_read_only_tool_under_review_still_asks():
    """The policy of its channel asks, not its code."""
    with context_field("run", run()) as here:
        Tool.from_function(look, read_only=True).propose({"account": "7"})
    assert len(here.proposals) == 1
