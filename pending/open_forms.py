"""OpenForms: finds the form of an open question by the token of its button, without a worker."""

from __future__ import annotations

from sayso.channels.forms import EditForm
from sayso.channels.types import Turn
from sayso.pending.action import ActionSigner, ButtonPress
from sayso.pending.repository import ActionRepository


class OpenForms:
    """The forms of all open questions, for a web process. Holds nothing between two calls."""

    def __init__(self, repository: ActionRepository, signer: ActionSigner) -> None:
        self._repository = repository
        self._signer = signer

    def asks_for_form(self, turn: Turn) -> bool:
        """Return whether a turn is a tap on the button of a question that opens its form. No I/O.

        A token that was issued for another person or another conversation opens none.
        """
        return self._press_of(turn) is not None

    async def find(self, turn: Turn) -> EditForm | None:
        """Return the form of the question that the turn's button names, None if it is closed.

        It is closed if it has ended, its time is over, or its record is not what was signed. Raises
        redis.RedisError.
        """
        press = self._press_of(turn)
        if press is None:
            return None
        scope = turn.scope
        (stored,) = await self._repository.read(scope.conversation.id, (press.pending_action_id,))
        if stored is None or stored.state != "shown" or stored.is_over:
            return None
        if not stored.is_genuine(self._signer, scope):
            return None
        form = stored.action.edit_form
        return form if form.fields else None

    def _press_of(self, turn: Turn) -> ButtonPress | None:
        press = self._signer.read_button(turn.tap.data, turn.scope) if turn.tap else None
        return press if press and press.intent == "change" else None
