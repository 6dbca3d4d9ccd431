"""OpenForms: finds the form of an open question by the token of its button, without a worker.

A question may have a form in which its person changes the proposed call before the yes.
"""

from __future__ import annotations

from dataclasses import replace

from sayso.channels.edit_form import EditForm
from sayso.channels.types import Turn
from sayso.pending.action import ActionSigner, ButtonPress
from sayso.pending.repository import ActionRepository
from sayso.pending.stored_action import StoredAction


class OpenForms:
    """Finds the forms of open questions, for a web process. Keeps no state."""

    def __init__(self, repository: ActionRepository, signer: ActionSigner) -> None:
        self._repository = repository
        self._signer = signer

    def asks_for_form(self, turn: Turn) -> bool:
        """Return whether a turn is a tap on the button that opens the form of a question.

        A token that was issued for another person or conversation opens no form. There is no I/O.
        """
        return self._press_of(turn) is not None

    async def open(self, turn: Turn) -> EditForm | None:
        """Open the form of a question for a tap on its button, None if it cannot be changed now.

        From then on the question stays open for FORM_MS at least, as filling in a form takes longer
        than a yes. Raises redis.RedisError.
        """
        press = self._press_of(turn)
        if press is None:
            return None
        conversation = turn.conversation.id
        stored = await self._repository.open_form(conversation, press.action_id)
        return self._form_of(stored, turn)

    async def find(self, turn: Turn) -> EditForm | None:
        """Return the form of a question for a filled-in form, None if it cannot be changed now.

        Raises redis.RedisError.
        """
        press = self._press_of(turn)
        if press is None:
            return None
        action_ids = (press.action_id,)
        (stored,) = await self._repository.load(turn.conversation.id, action_ids)
        return self._form_of(stored, turn)

    def _form_of(self, stored: StoredAction | None, turn: Turn) -> EditForm | None:
        """Return the form of an open question, None if its record is not the signed one."""
        if stored is None or stored.state != "shown" or stored.is_window_closed:
            return None
        if not stored.is_genuine(self._signer, turn.scope):
            return None
        form = stored.action.edit_form
        if not form.fields:
            return None
        return replace(form, seconds_left=max(0.0, stored.expires_at - stored.loaded_at))

    def _press_of(self, turn: Turn) -> ButtonPress | None:
        """Return what the tapped button says, None if it does not open a form."""
        if turn.tap is None:
            return None
        press = self._signer.read_button(turn.tap.data, turn.scope)
        if press is None or press.intent != "change":
            return None
        return press
