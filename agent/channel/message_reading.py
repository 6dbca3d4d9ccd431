"""MessageReader: reads a message and an action, and returns the values that `decide` needs."""

from __future__ import annotations

from typing import Literal

from sayso.agent.channel.context import TurnContext
from sayso.agent.channel.decide import ActionFacts, Meaning, MessageReading, Phase, phase_of
from sayso.agent.channel.outcome_history import action_ids
from sayso.agent.messages import Role, without_notes
from sayso.channels.types import Turn, digest
from sayso.pending.action import OtherMessage, keeps_question
from sayso.pending.consent.asking import is_misspelled_asking, is_plain_answer, read_asking
from sayso.pending.consent.parser import (
    ConfirmParser,
    ParsedAnswer,
    is_ok,
    is_unclear,
    names_effect,
    read_answer,
)
from sayso.pending.consent.quoting import quotes_another, written_before
from sayso.pending.consent.refusing import is_no_with_more, is_yes_with_change
from sayso.pending.stored_action import WAITING_STATES, StoredAction
from sayso.pending.turn_changes import SettledAnswer

#: The phases in which a message may be a no with more words.
_WAITING_PHASES: tuple[Phase, ...] = ("open", "not_shown", "time_over", "tampered")


class MessageReader:
    """Reads what the messages of one channel say about a question. Keeps no state.

    `confirm_ok`: a plain "ok" right after the question is a yes. `other_message`: what a message
    about something else does to a question whose tool says nothing.
    """

    def __init__(
        self,
        parser: ConfirmParser,
        *,
        confirm_ok: bool,
        other_message: OtherMessage,
    ) -> None:
        self.parser = parser
        self._confirm_ok = confirm_ok
        self._other_message = other_message

    def facts_of(self, stored: StoredAction, event_id: str, now: float) -> ActionFacts:
        """Return what a decision needs to know of an action.

        `event_id`: the event of the turn. `now`: when it came in, in Unix seconds.
        """
        is_waiting = stored.state in WAITING_STATES and not stored.is_changed
        # A standing yes covers the action, so its person was not asked: no message drops it.
        is_kept = stored.is_covered or keeps_question(stored.action, self._other_message)
        return ActionFacts(
            phase=phase_of(stored, event_id, now),
            code=stored.action.code,
            is_kept=is_waiting and is_kept,
            unclear_answers=len(stored.unclear_answers),
        )

    def read(
        self,
        turn: Turn,
        stored: StoredAction,
        phase: Phase,
        *,
        seq: int,
        language: str = "",
        takes_field: bool = False,
        repeats_request: bool = False,
        needs_text: bool = False,
    ) -> MessageReading:
        """Return what a message says about the question of an action in this phase.

        * `seq`: the number of the turn in its conversation; 0 for a turn without a worker.
        * `language`: that of the turn. It is only used if the record was tampered with, since the
          language of the question is then not known.
        * `takes_field`: the message is the value of a field, or the wish to change one.
        * `repeats_request`, `needs_text`: see `MessageReading`.
        """
        if not turn.decides:
            return MessageReading("other")
        if takes_field:
            return MessageReading("field_value", needs_text=needs_text)
        if phase in ("tampered", "tampered_here"):
            answer = read_answer(self.parser, turn.text, language)
        else:
            answer = self.read_answer(turn, stored, seq)
            language = stored.action.language

        quoted: Literal["", "question", "another"] = ""
        if turn.replied_to:
            quoted = "another" if quotes_another(turn, stored) else "question"
        return MessageReading(
            meaning=self._meaning(turn.text, stored, phase, answer, language),
            code=answer.code,
            quotes=quoted,
            is_written_before=written_before(turn, stored),
            is_received_before=0 < seq <= stored.last_seen_seq,
            follows_something_else=not stored.was_last_message(seq),
            repeats_request=repeats_request,
            is_repeated=words_id(turn.text) in stored.unclear_answers,
            needs_text=needs_text,
        )

    def _meaning(
        self, text: str, stored: StoredAction, phase: Phase, answer: ParsedAnswer, language: str
    ) -> Meaning:
        """Return what a text says. The first meaning that fits counts.

        In other phases than "open", most meanings make no difference. They are not looked for
        there, since each compares the words with the lists of all languages.
        """
        is_open = phase == "open"
        match answer.intent:
            case "confirm":
                return "yes"
            case "cancel" if is_open and names_effect(self.parser, text, stored.action):
                return "ambiguous_no"
            case "cancel":
                return "no"

        if is_open:
            match read_asking(self.parser, text, stored.action):
                case "asks":
                    return "asks"
                case "waits":
                    return "waits"
        if phase in _WAITING_PHASES and is_no_with_more(self.parser, text, language):
            return "no_with_more"
        if not is_open:
            return "other"
        has_change = is_yes_with_change(self.parser, text, language)
        if not has_change and is_unclear(self.parser, text, language):
            return "unclear"
        if is_misspelled_asking(self.parser, text, language):
            return "maybe_asks"
        return "other"

    def read_answer(self, turn: Turn, stored: StoredAction, seq: int) -> ParsedAnswer:
        """Return whether a message is a yes or a no to the question, and the code behind a yes.

        A plain "ok" counts only if the channel is configured so, and only as the very next message
        after the question. It also counts if this turn has confirmed the action before, and its
        worker died.

        `seq`: the number of the turn in its conversation. A turn without a worker has 0: it is
        answered at once, so it is the next one.
        """
        answer = read_answer(self.parser, turn.text, stored.action.language)
        if answer.intent or not self._confirm_ok or stored.action.code:
            return answer

        question_is_last = stored.state == "shown" and stored.was_last_message(seq)
        is_next_turn = seq in (0, stored.last_seen_seq + 1)
        follows_directly = question_is_last and is_next_turn and not stored.unclear_answers
        has_confirmed = stored.decided_by_event == turn.event_id
        may_be_ok = follows_directly or has_confirmed
        if may_be_ok and is_ok(self.parser, turn.text, stored.action.language):
            return ParsedAnswer("confirm")
        return answer

    def repeats_answer(self, turn: Turn, last: SettledAnswer | None) -> bool:
        """Return whether a message repeats the yes or no that was answered last.

        `last`: that answer; None if the bot has said something else since. A message that quotes
        another one does not repeat it, since it may answer the quoted one. Neither does a command
        such as "delete it", which may be a new request.
        """
        if last is None or last.words_follow or not turn.decides or turn.replied_to:
            return False
        if self._confirm_ok and is_ok(self.parser, turn.text, last.language):
            return last.intent == "confirm"
        intent = read_answer(self.parser, turn.text, last.language).intent
        return intent == last.intent and is_plain_answer(self.parser, turn.text)


def repeats_request(context: TurnContext, stored: StoredAction) -> bool:
    """Return whether a message has the words of the request that led to the question."""
    if context.turn.replied_to:
        return False
    ids = action_ids(stored)
    request = ""
    for message in context.memory.get_history():
        if any(link.id in ids for link in message.actions):
            return words_id(request) == words_id(context.turn.text)
        if message.role is Role.USER:
            request = without_notes(message.content)
    return False


def words_id(message: str) -> str:
    """Return a short id of the words of a message.

    It is the same with other capitals and punctuation. Of a message without any letter or digit,
    such as an emoji, the whole text counts.
    """
    letters_and_digits = "".join(filter(str.isalnum, message.casefold()))
    return digest(letters_and_digits or message)[:8]
