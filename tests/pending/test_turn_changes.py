"""The replies of a turn: what each one says about a pending action."""

from __future__ import annotations

import pytest

from sayso.channels.types import Conversation, Reply
from sayso.pending.turn_changes import TurnChange, TurnReply

QUESTION = TurnReply.question(Reply("Delete it?"), "a1")
FILE = Reply("report.pdf")


@pytest.mark.parametrize(("action_id", "role"), [("a1", ""), ("", "question")])
def test_reply_has_an_action_and_a_role_or_neither(action_id, role):
    """A script would take an action without a role for a reply that asks nothing."""
    with pytest.raises(ValueError, match=f"{action_id!r}, {role!r}"):
        TurnReply(Reply("Delete it?"), action_id, role)


def test_reply_that_follows_a_question_belongs_to_it():
    """Quoting the file quotes the question, and the question stays the last one."""
    change = TurnChange(replies=(TurnReply(Reply("Look:")), QUESTION, TurnReply(FILE)))
    assert change.linked_replies() == [
        TurnReply(Reply("Look:")),
        QUESTION,
        TurnReply.about_question(FILE, "a1"),
    ]
    assert change.last_question == "a1"


def test_notice_and_reply_between_parts_of_a_question_belong_to_no_action():
    """A notice replaces an earlier one, and a question is asked only with its last message."""
    part = TurnReply.question_part(Reply("Delete"), "a1")
    notice = TurnReply(Reply("20 %", collapse="progress"))
    replies = (part, TurnReply(FILE), QUESTION, notice)
    change = TurnChange(replies=replies)
    assert change.linked_replies() == list(replies)
    assert change.last_question == ""


def test_scripts_read_an_action_and_a_role_only_where_there_is_one():
    """Absent parts are left out, because Lua's cjson would read "" as a value."""
    change = TurnChange(replies=(TurnReply(Reply("Look:")), QUESTION))
    first, second = change.to_dict(Conversation("chat", "room"))["replies"]
    assert set(first) == {"reply"}
    assert (second["action_id"], second["role"]) == ("a1", "question")
