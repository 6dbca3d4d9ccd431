"""Tools that ask by themselves: it is known of each before it runs, and what is marked read-only cannot."""

from __future__ import annotations

import functools
import logging

import pytest

from sayso.agent import Tool, tool
from sayso.agent.tools.errors import ToolExecutionError, ToolValidationError
from sayso.pending import PendingConfirmation, stash_pending
from sayso.pending.proposals import ChannelRun, channel_run
from sayso.pending.proposals import stash_pending as ask


def run() -> ChannelRun:
    """Ana's, on a channel."""
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
    [(close, True), (renamed, True), (inside, True), (functools.partial(close), True), (look, False), (hidden, False)],
)
def test_a_tool_whose_code_names_stash_pending_is_known_to_ask(function, proposes: bool):
    """Under another name, in a part of it and behind a partial too; what another function does must be declared."""
    assert Tool.from_function(function, name="close_account").proposes is proposes


def test_what_is_declared_counts():
    """An author knows better than what the code shows."""
    assert Tool.from_function(hidden, proposes=True).proposes
    assert not Tool.from_function(close, proposes=False).proposes


@pytest.mark.parametrize("options", [{}, {"proposes": True}])
def test_a_read_only_tool_that_asks_is_refused_at_definition(options):
    """It says that nothing changes, and asks for a yes to a change."""
    with pytest.raises(
        ToolValidationError, match=r"'close' cannot be defined: it asks for a confirmation .* leave read_only out"
    ):
        tool(read_only=True, **options)(close)


def test_a_read_only_tool_that_asks_through_another_function_fails_without_asking():
    """Nothing waits afterwards."""
    with channel_run(run()) as here, pytest.raises(ToolExecutionError, match="'hidden' is marked read_only and asks"):
        Tool.from_function(hidden, read_only=True).execute({"account": "7"})
    assert here.proposals == []


def test_an_undeclared_proposal_is_asked_and_logged(caplog: pytest.LogCaptureFixture):
    """The log names the tool and the cure; a declared one is silent."""
    with caplog.at_level(logging.WARNING), channel_run(run()) as here:
        Tool.from_function(hidden, proposes=True).execute({"account": "6"})
        assert caplog.messages == []
        Tool.from_function(hidden).execute({"account": "7"})
    assert [action.preview for action in here.proposals] == ["Close 6", "Close 7"]
    assert [(record.message, record.tool) for record in caplog.records] == [("proposal.undeclared", "hidden")]


def test_a_read_only_tool_under_review_is_still_asked_for():
    """Its channel's policy asks, not its code."""
    with channel_run(run()) as here:
        Tool.from_function(look, read_only=True).propose({"account": "7"})
    assert len(here.proposals) == 1
