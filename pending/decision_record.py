"""DecisionRecord: how the person to whom an action was proposed, or a program, decided about it.

The record is stored with the action, in the step that decides, and goes into the audit log with it.
Decision receipts are made from it (`audit/receipts.py`). The answers of other people are votes
(`approvals/votes.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from sayso.channels.types import Turn
from sayso.pending.action import ActionSigner
from sayso.pending.record_json import fields_from_json, record_to_json

#: What was decided.
DecisionAnswer = Literal["yes", "no"]
#: How it was decided: by a tap on a button, by a message, by a program that has no turn, or under a
#: standing yes of the person, who was not asked again.
DecisionForm = Literal["tap", "words", "program", "standing"]
#: The types of the fields that are numbers. All others are texts.
_NUMBERS: Mapping[str, tuple[type, ...]] = {
    "at": (float, int),
    "use": (int,),
    "uses": (int,),
    "stands_until": (float, int),
}


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One yes or no, sealed over exactly the action that was shown. Immutable.

    The seal is a MAC over all other fields. It proves that the bot wrote the record, for this
    action: a record that was written or moved by hand in Redis has no valid seal.

    The record of a program names no action. The audit log links it to an action by its event id,
    which decides one action only.
    """

    #: The id of the action that was answered, "" in the record of a program. A plan is answered as
    #: a whole: its steps have no record.
    action_id: str
    #: The MAC of the action's record, which covers the arguments and the preview. "" in the record
    #: of a program.
    record_mac: str
    answer: DecisionAnswer
    form: DecisionForm
    #: The account that decided, or for which a program decided.
    channel: str
    user_id: str
    #: The id of the conversation in which it was decided (`Conversation.id`).
    conversation: str
    #: The event id of the turn that decided, or the random id of a program's decision. Under a
    #: standing yes: that of the bot's own turn that ran the action.
    event_id: str
    #: When the turn came in, or when the program decided, in Unix seconds.
    at: float
    #: What the platform called the person, "" if unknown.
    user_name: str = ""
    #: What the person wrote, "" for a tap. For a program: the message that it passed on, "" for
    #: none.
    words: str = ""
    #: The platform's id of the person's message, "" for a tap and where it is unknown.
    message_id: str = ""
    #: The platform's id of the message that was tapped or quoted, "" for none.
    question_message_id: str = ""
    #: The id of the standing yes under which the action ran. In the record of a tap: the id of the
    #: action, if that tap gave a standing yes. Else "".
    standing_yes: str = ""
    #: The number of this use of the standing yes, how many it covers, and until when it stands, in
    #: Unix seconds; 0 without one. Of a tap: 0, and the other two.
    use: int = 0
    uses: int = 0
    stands_until: float = 0.0
    #: The seal over all other fields, "" before `sealed`.
    seal: str = ""

    @classmethod
    def of_turn(
        cls, turn: Turn, action_id: str, record_mac: str, answer: DecisionAnswer, *, at: float
    ) -> DecisionRecord:
        """Return the record of a decision by a turn, without a seal.

        `at` is when the turn came in, in Unix seconds.
        """
        form: DecisionForm = "words"
        words = turn.text
        message_id = turn.message_id
        question_message_id = turn.replied_to
        if turn.tap:
            form = "tap"
            words = ""
            message_id = ""
            question_message_id = turn.message_id
        return cls(
            action_id=action_id,
            record_mac=record_mac,
            answer=answer,
            form=form,
            channel=turn.conversation.channel,
            user_id=turn.user_id,
            conversation=turn.conversation.id,
            event_id=turn.event_id,
            at=at,
            user_name=turn.user_name,
            words=words,
            message_id=message_id,
            question_message_id=question_message_id,
        )

    def sealed(self, signer: ActionSigner) -> DecisionRecord:
        """Return the record with a seal."""
        return replace(self, seal=signer.sign(self._sealed_text))

    def is_genuine(self, signer: ActionSigner) -> bool:
        """Return whether the seal is valid: no field was changed since."""
        return signer.verify(self._sealed_text, self.seal)

    def is_about(self, action_id: str, record_mac: str) -> bool:
        """Return whether the record is about an action with this id and this MAC.

        The record of a program names no action, so it may be about any.
        """
        if self.form == "program":
            return (self.action_id, self.record_mac) == ("", "")
        return (self.action_id, self.record_mac) == (action_id, record_mac)

    @property
    def _sealed_text(self) -> str:
        """Return what the seal is over. It differs from the text of every action and vote."""
        data = asdict(self)
        del data["seal"]
        return f"decision {json.dumps(data, sort_keys=True)}"

    def to_json(self) -> str:
        """Return the record as one line of JSON. Fields with their default are left out."""
        return record_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> DecisionRecord:
        """Read the result of `to_json`. Raises ValueError or TypeError on anything else."""
        data = fields_from_json(text, cls, name="a record of a decision", other_types=_NUMBERS)
        return cls(**data)
