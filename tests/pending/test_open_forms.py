"""Forms of open questions, as the web finds them: for their person alone, and only while they can be changed."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from sayso.channels.edit_form import FormField
from sayso.channels.types import Conversation, Tap, Turn
from sayso.infra.concurrency import run_sync
from sayso.pending import InMemoryPendingStore
from sayso.pending.action import ActionSigner, ButtonIntent, PendingAction
from sayso.pending.open_forms import OpenForms
from sayso.pending.repository import sign_action
from sayso.pending.turn_changes import TurnChange

HERE = Conversation("chat", "room")
FIELD = FormField("quantity", "Quantity", "integer", 5)
OLD, NEW = ActionSigner(["old"]), ActionSigner(["new", "old"])


class Question:
    """One open question of ana's with a form, in a store of its own, with an old key."""

    def __init__(self, **fields: object) -> None:
        self.now = time.time()
        self.store = InMemoryPendingStore(clock=lambda: self.now)
        given = {"user_id": "ana", "kind": "order", "preview": "Order 5 kg", "ttl_seconds": 60.0}
        place = {
            "channel_id": HERE.channel,
            "conversation_id": HERE.address,
            "form": [FIELD.to_dict()],
        }
        self.action = PendingAction(**{**given, **place, **fields})

        new = sign_action(self.action, OLD, user=self.turn().scope.id)
        run_sync(self.store.repository.change(HERE.id, TurnChange(new_actions=(new,))))

    def turn(
        self, user: str = "ana", place: Conversation = HERE, intent: ButtonIntent = "change"
    ) -> Turn:
        """Return a tap on a button that was sent to this person in this place."""
        token = OLD.button_token(
            self.action.pending_action_id, intent, Turn("e", place, user).scope
        )
        return Turn("e1", place, user, tap=Tap(token))

    @property
    def forms(self) -> OpenForms:
        """The forms, as a process with a newer key reads them."""
        return OpenForms(self.store.repository, NEW)


def test_open_question_has_its_form():
    """A key that is only read, after a rotation, is good enough."""
    question = Question()
    found = run_sync(question.forms.find(question.turn()))
    assert found
    assert (found.preview, found.fields, round(found.seconds_left)) == ("Order 5 kg", (FIELD,), 60)
    assert question.forms.asks_for_form(question.turn())


def test_form_gives_more_time_each_time_it_is_opened():
    """Ten minutes from then on, and a look does not."""
    question = Question()
    for _ in range(2):
        question.now += 50
        opened = run_sync(question.forms.open(question.turn()))
        assert opened
        assert round(opened.seconds_left) == 600
    question.now += 601
    assert run_sync(question.forms.open(question.turn())) is None


def test_form_of_another_person_or_place_is_not_found():
    """The token in a button, or in a modal, is for one person in one conversation."""
    question = Question()
    genuine = question.turn()
    for stolen in (
        replace(genuine, user_id="eve"),
        replace(genuine, conversation=Conversation("chat", "hall")),
    ):
        assert not question.forms.asks_for_form(stolen)
        assert run_sync(question.forms.open(stolen)) is None
        assert run_sync(question.forms.find(stolen)) is None


def test_button_of_a_yes_opens_no_form():
    """And a token whose key was removed opens none."""
    question = Question()
    assert not question.forms.asks_for_form(question.turn(intent="confirm"))
    removed = OpenForms(question.store.repository, ActionSigner(["new"]))
    assert run_sync(removed.find(question.turn())) is None


@pytest.mark.parametrize(
    "state", ["armed", "claimed", "started", "done", "cancelled", "expired", "superseded"]
)
def test_closed_question_has_no_form(state):
    """Nor has one that is not shown yet."""
    question = Question()
    question.store.repository._entries[question.action.pending_action_id].update(state=state)
    assert run_sync(question.forms.open(question.turn())) is None


def test_question_whose_record_was_changed_has_no_form():
    """A person would fill in a form for other arguments than those that were signed."""
    question = Question()
    entry = question.store.repository._entries[question.action.pending_action_id]
    entry.update(record=entry.stored.record.replace("Order 5", "Order 9"))
    assert run_sync(question.forms.open(question.turn())) is None


def test_question_without_fields_has_no_form():
    """Its person may change nothing."""
    question = Question(form=[])
    assert run_sync(question.forms.open(question.turn())) is None
