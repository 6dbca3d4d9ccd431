"""What a message or a tap means for the action that waits for its person's yes.

A tool that needs approval stores an *action* and sends a *question*. From then on each turn of the
same person may be an answer. This module decides what the turn means, and nothing else: its
functions read no clock and no store, and change nothing. `confirmation.py` reads the values before,
and acts on the decision afterwards.

A message about something else ends the action: the question is *dropped*. Some channels and tools
let the question stay open instead: then it is *kept*.

The tables in the docstrings are complete: a test reads them and compares each cell with what the
function returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sayso.pending.action import ButtonIntent
from sayso.pending.stored_action import WAITING_STATES, StoredAction
from sayso.pending.turn_changes import SettledIntent

#: How often an open question is repeated, because a person asked about it or gave an unclear
#: answer. The same words never repeat it twice.
MAX_UNCLEAR_ANSWERS = 5

#: Where an action is in its life when a message comes in.
#:
#: * "open": its question was delivered, and there is time left to answer.
#: * "not_shown": the platform has not confirmed yet that the question was delivered.
#: * "time_over": the time to answer was over when the message came in, but the store has not ended
#:   the action yet.
#: * "confirmed_here": this message has confirmed it before, and the worker of that attempt died.
#: * "tampered": the stored record is not the one that was signed.
#: * "tampered_here": "confirmed_here" and "tampered" at once.
#: * "expired", "unknown": it has ended in this state, which the reply to a late answer says.
#: * "ended": anything else. Another turn carries it out, or it has ended and a late answer is not
#:   about it.
Phase = Literal[
    "open",
    "not_shown",
    "time_over",
    "confirmed_here",
    "tampered",
    "tampered_here",
    "expired",
    "unknown",
    "ended",
]

#: What the text of a message says about the question.
#:
#: * "yes", "no": that, and nothing else. An "ok" is a yes only if the channel is configured so.
#: * "ambiguous_no": words that may be a no or may ask for the effect, such as "cancel it" as an
#:   answer to "Cancel appointment 9?".
#: * "field_value": the value of the field that was asked for, or the wish to change a field.
#: * "asks": asks what the question is about. "maybe_asks": the same, misspelled.
#: * "waits": asks for time, such as "wait" or "one moment".
#: * "no_with_more": a no with more words, such as "no, wrong order".
#: * "unclear": may be meant as an answer, such as "hmm" or a yes in another language.
#: * "other": anything else. Also "yes, but blue", and a message that cannot decide, such as a
#:   caption or an edit.
Meaning = Literal[
    "yes",
    "no",
    "ambiguous_no",
    "field_value",
    "asks",
    "maybe_asks",
    "waits",
    "no_with_more",
    "unclear",
    "other",
]

#: Why a yes to an open question confirms nothing.
#:
#: * "not_delivered": the platform has not confirmed that the person was shown the question.
#: * "quotes_another": it quotes a message that does not show the question.
#: * "written_before": it was written before the question was shown.
#: * "code_needed": the question asks for a code, which is missing or wrong.
#: * "asked_before": the bot has said something else since, to which the yes may belong.
Obstacle = Literal[
    "not_delivered", "quotes_another", "written_before", "code_needed", "asked_before"
]


@dataclass(frozen=True, slots=True)
class ActionFacts:
    """What a decision needs to know of an action."""

    phase: Phase
    #: The code that must be typed behind the yes; "" for none.
    code: str = ""
    #: Whether its question is kept, and not dropped, when its person writes about something else.
    is_kept: bool = False
    #: How often the question was repeated, at most MAX_UNCLEAR_ANSWERS.
    unclear_answers: int = 0


@dataclass(frozen=True, slots=True)
class MessageReading:
    """What one message says about one question."""

    meaning: Meaning
    #: The code that the message has behind a yes; "" for none.
    code: str = ""
    #: What the message quotes: a message that shows the question, another message, or nothing ("").
    quotes: Literal["", "question", "another"] = ""

    # What its person can have known when they wrote it:

    #: Whether the message is older than the question, by the platform's clock.
    is_written_before: bool = False
    #: Whether the message came in before the question was delivered.
    is_received_before: bool = False
    #: Whether the bot had said something after the question when the message came in.
    follows_something_else: bool = False

    #: Whether it has the words of the request that led to the question.
    repeats_request: bool = False
    #: Whether the question was already repeated for the same words.
    is_repeated: bool = False
    #: Whether its sender must get a text in any case, as a caller of `ask_channel` must.
    needs_text: bool = False

    @property
    def follows_question(self) -> bool:
        """Whether it was written after the question, and quotes it or comes right behind it."""
        if self.is_received_before or self.is_written_before:
            return False
        return not self.follows_something_else or self.quotes == "question"


@dataclass(frozen=True, slots=True)
class CarryOut:
    """Claim the action, and carry it out if the claim allows it. The claim has the last word."""


@dataclass(frozen=True, slots=True)
class CarryOutAndStand:
    """Carry out the action, and let the yes stand for later calls, by the same claim."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the action because its person said no."""


@dataclass(frozen=True, slots=True)
class RefuseYes:
    """Leave the question open, and say why this yes does not confirm it."""

    obstacle: Obstacle


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Repeat the question, because a yes or a no was not understood."""


@dataclass(frozen=True, slots=True)
class Explain:
    """Say what a yes would do. `is_brief`: without the details of a long preview."""

    is_brief: bool = False


@dataclass(frozen=True, slots=True)
class TakeField:
    """Take the message as the value of a field of the question, or as the wish to change one."""


@dataclass(frozen=True, slots=True)
class SayExpired:
    """Say that the time to answer is over."""


@dataclass(frozen=True, slots=True)
class CancelAndRun:
    """End the action because its person said no, and let the model answer the further words."""


@dataclass(frozen=True, slots=True)
class KeepAndRun:
    """Let the model answer a message about something else. The question stays open."""


@dataclass(frozen=True, slots=True)
class DropAndRun:
    """End the action because its person writes about something else, and let the model answer."""


@dataclass(frozen=True, slots=True)
class StaySilent:
    """Answer nothing: the person knows what an answer would say."""


@dataclass(frozen=True, slots=True)
class TellOutcome:
    """Tell how the action ended, to a yes or no (`intent`) that came too late."""

    intent: SettledIntent


@dataclass(frozen=True, slots=True)
class AnswerAlone:
    """Answer the message as if there were no action: it is not about this one."""


#: What a message means for an action.
MessageDecision = (
    CarryOut
    | Cancel
    | RefuseYes
    | AskAgain
    | Explain
    | TakeField
    | SayExpired
    | CancelAndRun
    | KeepAndRun
    | DropAndRun
    | StaySilent
    | TellOutcome
    | AnswerAlone
)


def phase_of(action: StoredAction, event_id: str, now: float) -> Phase:
    """Return the phase in which a message finds an action.

    `event_id`: the event of the message. `now`: when it came in, in Unix seconds. What counts is
    when a person answered, not when a worker has time for the answer.
    """
    if action.state in WAITING_STATES:
        if action.is_changed:
            return "tampered"
        if action.action.is_expired(now):
            return "time_over"
        return "open" if action.state == "shown" else "not_shown"

    if action.decided_by_event == event_id:
        return "tampered_here" if action.is_changed else "confirmed_here"
    match action.state:
        case "expired" | "unknown":
            return action.state
    return "ended"


def decide(action: ActionFacts, message: MessageReading) -> MessageDecision:
    """Return what a message means for an action. The first row that fits a message counts.

    While the action waits for an answer, "other" in the table stands for KeepAndRun if the question
    is kept and its time is not over, and else for DropAndRun:

    | the message                                      | open         | not_shown | time_over  |
    |--------------------------------------------------|--------------|-----------|------------|
    | no                                               | Cancel       | Cancel    | Cancel     |
    | ambiguous no, repeated                           | Cancel       | Cancel    | Cancel     |
    | ambiguous no, after MAX_UNCLEAR_ANSWERS          | Cancel       | Cancel    | Cancel     |
    | ambiguous no                                     | AskAgain     | Cancel    | Cancel     |
    | yes that quotes another message                  | RefuseYes    | RefuseYes | CarryOut   |
    | yes, written before the question                 | RefuseYes    | RefuseYes | CarryOut   |
    | yes, but the code is missing or wrong            | RefuseYes    | RefuseYes | other      |
    | yes with a code that was not asked for           | other        | other     | other      |
    | yes, after the bot said something else           | RefuseYes    | RefuseYes | CarryOut   |
    | the same, quoting the question                   | CarryOut     | RefuseYes | CarryOut   |
    | the same, with its code                          | CarryOut     | RefuseYes | CarryOut   |
    | yes                                              | CarryOut     | RefuseYes | CarryOut   |
    | value of a field                                 | TakeField    | other     | SayExpired |
    | anything else that quotes another message        | other        | other     | other      |
    | the request again, from before the question      | StaySilent   | other     | other      |
    | asks for time, once more                         | StaySilent   | other     | other      |
    | the same, but its sender needs a text            | Explain      | other     | other      |
    | kept question, which the message does not follow | other        | other     | other      |
    | no with more words, after the question           | CancelAndRun | other     | other      |
    | no with more words, elsewhere                    | other        | other     | other      |
    | asks or unclear, after MAX_UNCLEAR_ANSWERS       | other        | other     | other      |
    | asks what the question is                        | Explain      | other     | other      |
    | asks for time                                    | Explain      | other     | other      |
    | the request again                                | Explain      | other     | other      |
    | may be an answer, in new words                   | AskAgain     | other     | other      |
    | may be an answer, repeated                       | other        | other     | other      |
    | may ask, in new words                            | Explain      | other     | other      |
    | may ask, repeated                                | other        | other     | other      |
    | anything else                                    | other        | other     | other      |

    Once it waits no more, or if its record is not the one that was signed:

    | the action     | yes         | yes, other code | field value | no          | anything else |
    |----------------|-------------|-----------------|-------------|-------------|---------------|
    | confirmed_here | CarryOut    | DropAndRun      | DropAndRun  | DropAndRun  | DropAndRun    |
    | tampered       | CarryOut    | CarryOut        | DropAndRun  | Cancel      | DropAndRun    |
    | tampered_here  | CarryOut    | CarryOut        | CarryOut    | CarryOut    | CarryOut      |
    | expired        | TellOutcome | TellOutcome     | TellOutcome | TellOutcome | AnswerAlone   |
    | unknown        | TellOutcome | TellOutcome     | TellOutcome | AnswerAlone | AnswerAlone   |
    | ended          | AnswerAlone | AnswerAlone     | AnswerAlone | AnswerAlone | AnswerAlone   |

    `CarryOut` carries out nothing if the record was tampered with, if the time is over, or if a yes
    in words came in before the question was delivered: the claim finds out, and the answer says so.

    A message that has confirmed is read once more only because its worker died. It is a yes again,
    unless the bot reads a yes differently since. If the record was tampered with meanwhile, it is
    passed to the claim however it reads: only the claim can end an action that was claimed.
    """
    match action.phase:
        case "open":
            return _decide_open(action, message)
        case "not_shown":
            return _decide_not_shown(action, message)
        case "time_over":
            return _decide_time_over(action, message)
        case "confirmed_here":
            has_confirmed = message.meaning == "yes" and message.code == action.code
            return CarryOut() if has_confirmed else DropAndRun()
        case "tampered":
            return _decide_tampered(message)
        case "tampered_here":
            return CarryOut()
        case "expired" | "unknown":
            return _decide_late(action.phase, message)
        case "ended":
            return AnswerAlone()


def _decide_open(action: ActionFacts, message: MessageReading) -> MessageDecision:
    """Decide about a message to an open question."""
    match message.meaning:
        case "no":
            return Cancel()
        case "ambiguous_no":
            if message.is_repeated or action.unclear_answers >= MAX_UNCLEAR_ANSWERS:
                return Cancel()
            return AskAgain()
        case "yes":
            obstacle = _obstacle(action, message)
            if obstacle:
                return RefuseYes(obstacle)
            if message.code == action.code:
                return CarryOut()
            return _other(action)
        case "field_value":
            return TakeField()
    if message.quotes == "another":
        return _other(action)
    return _decide_no_plain_answer(action, message)


def _decide_no_plain_answer(action: ActionFacts, message: MessageReading) -> MessageDecision:
    """Decide about a message that is no plain yes, plain no or field value for an open question."""
    if message.repeats_request and message.is_received_before:
        return StaySilent()  # the question is the answer, and was on its way
    if asks_for_time_again(action, message) and not message.needs_text:
        return StaySilent()
    if action.is_kept and not message.follows_question:
        return KeepAndRun()  # it may be about what the bot has said since
    if refuses_with_more(message) and not message.repeats_request:
        return CancelAndRun()

    if action.unclear_answers >= MAX_UNCLEAR_ANSWERS:
        return _other(action)
    if message.meaning in ("asks", "waits") or message.repeats_request:
        return Explain(is_brief=message.meaning == "waits")
    if message.meaning == "unclear" and not message.is_repeated:
        return AskAgain()
    if message.meaning == "maybe_asks" and not message.is_repeated:
        return Explain()
    return _other(action)


def _decide_not_shown(action: ActionFacts, message: MessageReading) -> MessageDecision:
    """Decide about a message that came in before the question was delivered."""
    match message.meaning:
        case "no" | "ambiguous_no":
            return Cancel()
        case "yes":
            obstacle = _obstacle(action, message)
            if obstacle:
                return RefuseYes(obstacle)
            if message.code == action.code:
                return RefuseYes("not_delivered")
    return _other(action)


def _decide_time_over(action: ActionFacts, message: MessageReading) -> MessageDecision:
    """Decide about a message after the time to answer.

    A yes is passed to the claim, which ends the action as expired.
    """
    match message.meaning:
        case "no" | "ambiguous_no":
            return Cancel()
        case "yes" if message.code == action.code:
            return CarryOut()
        case "field_value":
            return SayExpired()
    return DropAndRun()


def _decide_tampered(message: MessageReading) -> MessageDecision:
    """Decide about a record that was changed in the store.

    It is not asked again: the person would be shown other words than those that were signed.
    """
    match message.meaning:
        case "yes":
            return CarryOut()
        case "no" | "ambiguous_no":
            return Cancel()
    return DropAndRun()


def _decide_late(state: Literal["expired", "unknown"], message: MessageReading) -> MessageDecision:
    """Decide about a message to a question that has ended in this state.

    "unknown": the person has said yes, and the tool may have run. A no can no longer cancel it, so
    it is taken as an ordinary message.
    """
    match message.meaning:
        case "yes" | "field_value":
            return TellOutcome("confirm")
        case "no" | "ambiguous_no" if state == "expired":
            return TellOutcome("cancel")
    return AnswerAlone()


def _obstacle(action: ActionFacts, message: MessageReading) -> Obstacle | None:
    """Return why a yes does not confirm the question; None if it may.

    In doubt it does not: to ask once more costs the person one answer, and an effect that they did
    not want could not be taken back.
    """
    if message.quotes == "another":
        return "quotes_another"
    if message.is_written_before:
        return "written_before"
    if message.code != action.code:
        return "code_needed" if action.code else None
    is_named = bool(message.code) or message.quotes == "question"
    if message.follows_something_else and not is_named:
        return "asked_before"
    return None


def _other(action: ActionFacts) -> MessageDecision:
    """Return what a message about something else means for an action that waits."""
    return KeepAndRun() if action.is_kept else DropAndRun()


def asks_for_time_again(action: ActionFacts, message: MessageReading) -> bool:
    """Return whether a message asks for time, and its person knows already that the question stays.

    They know it once the question was repeated. If the question is kept and the bot has said
    something else since, the message may be about that.
    """
    if message.meaning != "waits" or not action.unclear_answers or message.quotes == "another":
        return False
    return not (action.is_kept and message.follows_something_else)


def refuses_with_more(message: MessageReading) -> bool:
    """Return whether a message says no with more words, right after the question or quoting it."""
    return message.meaning == "no_with_more" and message.follows_question


def decide_after_failure(
    action: ActionFacts, message: MessageReading, *, is_stop: bool
) -> KeepAndRun | CancelAndRun | DropAndRun:
    """Return what becomes of an action that waits when the answer to a message has failed.

    No model runs here: of the decision, only the part about the action is carried out. A yes or no
    was an answer to the question. After it failed, no question stays open that the person believes
    to have answered. `is_stop`: the message was /stop, which makes the running answer fail.

    | the message                            | kept question | any other question |
    |----------------------------------------|---------------|--------------------|
    | /stop                                  | DropAndRun    | DropAndRun         |
    | no with more words, after the question | CancelAndRun  | CancelAndRun       |
    | yes or no                              | DropAndRun    | DropAndRun         |
    | anything else                          | KeepAndRun    | DropAndRun         |
    """
    if is_stop:
        return DropAndRun()
    if refuses_with_more(message):
        return CancelAndRun()
    is_answer = message.meaning in ("yes", "no", "ambiguous_no")
    if action.is_kept and not is_answer:
        return KeepAndRun()
    return DropAndRun()


#: What happens in a continuation, the turn that follows a decision.
#:
#: * "answered_before": nothing, because a model has answered since the decision.
#: * "stopped": nothing, because the person said /stop.
#: * "record_lost": the person is told that the rest is missing.
#: * "go_on": the agent goes on with the request.
ContinuationStep = Literal["answered_before", "stopped", "record_lost", "go_on"]


def decide_continuation(
    *, is_answered: bool, is_stopped: bool, has_record: bool
) -> ContinuationStep:
    """Return what happens in the turn that follows a decision. The first row that fits counts.

    `is_answered`: a model has answered another message since, and has read the outcome.
    `is_stopped`: the person has said /stop since. `has_record`: the record of the action still
    exists, which it does for days.

    | the case                                | step            |
    |-----------------------------------------|-----------------|
    | a model has answered since              | answered_before |
    | the person has said /stop               | stopped         |
    | the record of the action is gone        | record_lost     |
    | the request waits to go on              | go_on           |
    """
    if is_answered:
        return "answered_before"
    if is_stopped:
        return "stopped"
    return "go_on" if has_record else "record_lost"


#: Where an action is in its life when a tap on one of its buttons comes in.
#:
#: * "open", "not_shown", "time_over": it waits for an answer, as in `Phase`.
#: * "running": it was confirmed, and has not ended.
#: * "ended": it has ended in any way.
TapPhase = Literal["open", "not_shown", "time_over", "running", "ended"]


@dataclass(frozen=True, slots=True)
class ButtonTap:
    """A tap on a button of an action."""

    #: What the button does, "choice" for one of several offered answers.
    intent: ButtonIntent | Literal["choice"]
    #: Whether the question has fields that the person may change.
    has_form: bool = False
    #: Whether the tap brings a filled-in form.
    sends_form: bool = False
    #: Whether the question offers a yes that also counts for later calls.
    may_stand: bool = False


@dataclass(frozen=True, slots=True)
class Choose:
    """Take an offered answer as the message of the person."""


@dataclass(frozen=True, slots=True)
class TellAgain:
    """Tell the person once more how the action ended."""


@dataclass(frozen=True, slots=True)
class SayRunning:
    """Say that the action is being carried out."""


@dataclass(frozen=True, slots=True)
class TakeForm:
    """Change the question as the filled-in form says, and ask anew."""


@dataclass(frozen=True, slots=True)
class BeginChange:
    """Ask for the first field that the person may change."""


@dataclass(frozen=True, slots=True)
class LeaveOpen:
    """Leave the question open for a short time after "ignore". Then it ends without an answer."""


@dataclass(frozen=True, slots=True)
class RejectButton:
    """Say that the button does nothing for this person."""


#: What a tap means for an action.
TapDecision = (
    CarryOut
    | CarryOutAndStand
    | Cancel
    | RefuseYes
    | SayExpired
    | Choose
    | TellAgain
    | SayRunning
    | TakeForm
    | BeginChange
    | LeaveOpen
    | RejectButton
)


def tap_phase_of(action: StoredAction, now: float) -> TapPhase:
    """Return the phase in which a tap that came in at `now` (Unix seconds) finds an action.

    A record that was tampered with counts as "open", even if its question was not delivered: a yes
    then reaches the claim, which finds out.
    """
    match action.state:
        case "claimed" | "started":
            return "running"
        case "armed" | "shown":
            if action.action.is_expired(now):
                return "time_over"
            is_open = action.state == "shown" or action.is_changed
            return "open" if is_open else "not_shown"
    return "ended"


def decide_tap(phase: TapPhase, code: str, tap: ButtonTap) -> TapDecision:
    """Return what a tap means for the action that its button names.

    `code`: what a yes to this action must be typed with, "" for none. A question with a code has no
    button for a yes, so a tap that says yes to it was forged, and does as little as "ignore".

    A yes to a running action goes to the claim, too. If this tap has confirmed it before, and the
    worker of that attempt died, the claim goes on with it. Another yes gets nothing.

    A yes that also counts for later calls does what a yes does, and stands. Where the question
    offers none, its button was made up, and does nothing.

    | the button             | open             | not_shown    | time_over    | running          | ended     |
    |------------------------|------------------|--------------|--------------|------------------|-----------|
    | an offered answer      | Choose           | Choose       | Choose       | Choose           | Choose    |
    | yes                    | CarryOut         | RefuseYes    | CarryOut     | CarryOut         | TellAgain |
    | yes, and it stands     | CarryOutAndStand | RefuseYes    | CarryOut     | CarryOutAndStand | TellAgain |
    | the same, not offered  | RejectButton     | RejectButton | RejectButton | RejectButton     | TellAgain |
    | yes, code is asked for | LeaveOpen        | LeaveOpen    | SayExpired   | SayRunning       | TellAgain |
    | no                     | Cancel           | Cancel       | Cancel       | SayRunning       | TellAgain |
    | change, with a form    | TakeForm         | TakeForm     | SayExpired   | SayRunning       | TellAgain |
    | change                 | BeginChange      | BeginChange  | SayExpired   | SayRunning       | TellAgain |
    | change, no fields      | RejectButton     | RejectButton | SayExpired   | SayRunning       | TellAgain |
    | ignore                 | LeaveOpen        | LeaveOpen    | SayExpired   | SayRunning       | TellAgain |
    """
    if tap.intent == "choice":
        return Choose()
    if phase == "ended":
        return TellAgain()
    if tap.intent == "standing" and (code or not tap.may_stand):
        return RejectButton()
    if tap.intent in ("confirm", "standing") and not code:
        if phase == "not_shown":
            return RefuseYes("not_delivered")
        stands = tap.intent == "standing" and phase != "time_over"
        return CarryOutAndStand() if stands else CarryOut()
    if phase == "running":
        return SayRunning()
    if tap.intent == "cancel":
        return Cancel()
    if phase == "time_over":
        return SayExpired()
    if tap.intent != "change":
        return LeaveOpen()
    if not tap.has_form:
        return RejectButton()
    return TakeForm() if tap.sends_form else BeginChange()
