"""WebForms: what the web process cannot do in time is a turn like any other, so that no tap and no form is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from sayso.channels.base import FindForm
from sayso.channels.edit_form import EditForm, FormField
from sayso.channels.types import Conversation, Received, Tap, Turn, WebhookResponse
from sayso.pending.web_forms import WebForms
from tests.channels.web.services import FakeChannel

HERE = Conversation("shop", "room")
TAP = Turn("e1", HERE, "ana", tap=Tap("change"))
FORM = Turn("e2", HERE, "ana", tap=Tap("change"), kind="form", form={"quantity": "x"})
QUESTION = EditForm("a1", "Order 5 kg?", "en", (FormField("quantity", "Quantity", "integer", 5),))


class Questions:
    """One open question. While `hangs`, no record can be read."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.hangs = hangs

    def asks_for_form(self, turn: Turn) -> bool:
        """Return whether it is a tap on Change."""
        return turn.tap is not None and turn.tap.data == "change"

    async def find(self, turn: Turn) -> EditForm | None:
        """Return the form."""
        while self.hangs:
            await asyncio.Event().wait()
        return QUESTION

    open = find


class FormChannel(FakeChannel):
    """A channel that shows each form that it finds."""

    async def open_form(self, turn: Turn, find: FindForm) -> WebhookResponse | None:
        """Show the form."""
        return WebhookResponse(200, "shown") if await find(turn) else None

    def form_errors(self, errors: Mapping[str, str]) -> WebhookResponse:
        """Return the errors."""
        return WebhookResponse(422, ", ".join(errors))


def answered(*turns: Turn, channel: FakeChannel | None = None, hangs: bool = False) -> Received:
    """Return what is left to store. A process that hangs gives up at once."""
    seconds = 0 if hangs else 60
    forms = WebForms(Questions(hangs=hangs), open_seconds=seconds, check_seconds=seconds)
    return forms.answer_form(channel or FormChannel(), Received(turns=turns))


def test_shown_form_is_no_turn():
    """The platform gets the answer of the channel."""
    received = answered(TAP)
    assert (received.turns, received.answer.body) == ((), "shown")


def test_form_with_an_error_is_no_turn():
    """Its person corrects it."""
    received = answered(FORM)
    assert (received.turns, received.answer.status, received.answer.body) == ((), 422, "quantity")


@pytest.mark.parametrize("turn", [TAP, FORM])
def test_what_takes_too_long_is_a_turn(turn: Turn):
    """A worker asks for each value, or judges the form."""
    assert answered(turn, hangs=True).turns == (turn,)


@pytest.mark.parametrize("turn", [TAP, FORM])
def test_channel_without_forms_gets_turns(turn: Turn):
    """There the bot asks for each value."""
    assert answered(turn, channel=FakeChannel()).turns == (turn,)


def test_other_taps_and_messages_are_turns():
    """Also where several turns come in one request, and one of them asks for a form."""
    other = Turn("e3", HERE, "ana", tap=Tap("yes"))
    text = Turn("e4", HERE, "ana", text="yes")
    assert answered(other).turns == (other,)
    assert answered(text).turns == (text,)
    assert answered(TAP, other).turns == (TAP, other)
    assert answered().turns == ()
