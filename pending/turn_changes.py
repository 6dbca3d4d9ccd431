"""TurnChange: all that the answer to a turn changes. One script stores the whole of it, or nothing.

Its parts are here too: the transition of a pending action, new actions, timers, replies, and the
entries of the outbox. `turns.py` has what a worker takes from a conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from sayso.channels.types import Conversation, Reply, Turn, digest
from sayso.infra.records import check_version, versioned
from sayso.infra.tracing import current_trace
from sayso.pending.action import ActionState
from sayso.pending.approvals.votes import Vote
from sayso.pending.decision_record import DecisionRecord
from sayso.pending.standing_yes import StandingRevocation

#: Why a turn has no answer of the agent.
TurnEnd = Literal[
    "answered_before",
    "channel_gone",
    "failed",
    "forwarded",
    "killed_workers",
    "repeated",
    "stale",
    "stopped",
    "timeout",
    "unreadable",
]
#: What a person said to an action that has ended: a yes, a no, or a tap on the button that undoes
#: an effect.
SettledIntent = Literal["confirm", "cancel", "undo"]
#: What a reply says about a pending action. The scripts have these names, too.
#:
#: * question: it asks for the yes. It is the only message of the question, or the last one, so the
#:   time to answer begins when it is delivered.
#: * question_part: an earlier message of a question that needs several. If it cannot be delivered,
#:   the action ends.
#: * about_question: it repeats the question, or follows it, as a file does. A message that quotes
#:   it quotes the question.
#: * "": it belongs to no action.
ReplyRole = Literal["question", "question_part", "about_question", ""]
#: The beginning of an outbox entry that goes to another conversation. The scripts have it, too.
FORWARD = '{"forward"'
#: The beginning of the id of the timer that ends a question's time to be answered. The scripts have
#: it, too.
END_OF_QUESTION = "end:"


@dataclass(frozen=True, slots=True)
class Transition:
    """A pending action's change of state. Nothing changes if it is in none of `from_states`."""

    action_id: str
    from_states: tuple[str, ...]
    to: ActionState
    #: What the user is told. A second answer to the same question gets the same text.
    outcome_text: str = ""
    #: The event id of the turn that decides, "" if no turn decides.
    decided_by_event: str = ""
    #: A short name of the message for which the question was repeated, "" for none.
    unclear: str = ""
    #: How the person decided, None if no yes or no ends the action.
    decision: DecisionRecord | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the transition as the scripts read it."""
        data = {
            "action_id": self.action_id,
            "from": self.from_states,
            "to": self.to,
            "outcome_text": self.outcome_text,
        }
        optional = {"decided_by_event": self.decided_by_event, "unclear_answer": self.unclear}
        if self.decision:
            optional["decision"] = self.decision.to_json()
        return data | {name: value for name, value in optional.items() if value}


@dataclass(frozen=True, slots=True)
class RequestChange:
    """What is added to an action that other people decide."""

    action_id: str
    #: The vote of one person, None for none. It is stored while the action waits, and is an entry
    #: of the audit log.
    vote: Vote | None = None
    #: All requests in which people are asked about the action, as JSON; "": as they were.
    requests: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the change as the scripts read it."""
        data = {"action_id": self.action_id}
        if self.requests:
            data["requests"] = self.requests
        if self.vote:
            data["vote"] = self.vote.to_json()
            data["voted_by_event"] = self.vote.event_id
        return data


@dataclass(frozen=True, slots=True)
class SettledAnswer:
    """A person's yes or no that settled a question, and whose outcome the bot has said.

    If the person says the same again right after it, that is a repetition and no new decision.
    """

    #: What the person said. "undo" is the yes to an undo: only its button says it, so a written yes
    #: does not repeat it.
    intent: SettledIntent
    #: The id of the action that was asked about.
    action_id: str
    #: The language of the question.
    language: str
    #: Whether a model went on below the outcome. A yes in words may then answer the model, and only
    #: a tap on the question is a repetition.
    words_follow: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as the scripts store it."""
        answer: dict[str, Any] = {
            "intent": self.intent,
            "action_id": self.action_id,
            "language": self.language,
        }
        if self.words_follow:
            answer["words_follow"] = True
        return answer

    @classmethod
    def from_json(cls, text: str) -> SettledAnswer | None:
        """Read what a script returned, None for ""."""
        if not text:
            return None
        data = json.loads(text)
        return cls(
            intent=data["intent"],
            action_id=data["action_id"],
            language=data["language"],
            words_follow=data.get("words_follow", False),
        )


@dataclass(frozen=True, slots=True)
class TimerTurn:
    """A turn that comes in by itself after a question was shown, if the question is still open."""

    #: Unique among the timer turns of an action.
    name: str
    #: How long after the question was shown, in milliseconds.
    after_ms: int
    turn: Turn

    def to_dict(self) -> dict[str, Any]:
        """Return the timer turn as the scripts read it."""
        return {"name": self.name, "after_ms": self.after_ms, "turn": self.turn.to_json()}


@dataclass(frozen=True, slots=True)
class NewAction:
    """A pending action as it is stored: the signed record, and what the scripts need beside it.

    The scripts do not parse the record. So some of its fields are repeated here, unsigned.
    """

    action_id: str
    #: The id of the scope that the action waits in (`Scope.id`).
    user: str
    #: The action as JSON, exactly as it was signed.
    record: str
    mac: str
    #: How long the question may be answered once it is shown, in milliseconds.
    ttl_ms: int
    kind: str
    #: The digest of the arguments.
    digest: str
    idempotent: bool = False
    #: Whether a plain yes of the user answers the action. If not, the action is reached by its
    #: button, or as one of the `steps` of a plan.
    occupies_scope: bool = True
    #: What must be typed with the yes, "" for nothing.
    code: str = ""
    #: The id of the plan that the action is a step of, "" for none.
    plan: str = ""
    #: The ids of the steps, if the action is a plan.
    steps: tuple[str, ...] = ()
    #: The outbox entry to send when the window closes without an answer, "" for none.
    notice: str = ""
    #: The outbox entry that replaces the message with the question when the window closes, "" for
    #: none. The id of that message is known once it is delivered.
    ending: str = ""
    #: The outbox entry to send when no answer came within `alarm_after_ms`, at the latest when the
    #: window closes; "" for none.
    alarm: str = ""
    alarm_after_ms: int = 0
    #: The address of the question as JSON: channel, chat and thread.
    to: str = ""
    #: The traceparent of the turn that proposed the action, "" while tracing is off.
    trace: str = ""
    #: The requests in which other people are asked about the action, as JSON; "" if its user
    #: decides.
    requests: str = ""
    #: The turns that come in while the question is open, each after some time.
    timer_turns: tuple[TimerTurn, ...] = ()
    #: The outbox entry that is sent once if the question cannot be delivered, "" for none.
    undelivered: str = ""

    @property
    def optional_fields(self) -> dict[str, str]:
        """Return the fields that only some actions have, as the scripts store them."""
        optional = {
            "code": self.code,
            "plan": self.plan,
            "steps": " ".join(self.steps),
            "idempotent": "1" if self.idempotent else "",
            "alarm_after_ms": str(self.alarm_after_ms) if self.alarm else "",
            "address": self.to,
            "trace": self.trace,
            "notice": self.notice,
            "ending": self.ending,
            "alarm": self.alarm,
            "requests": self.requests,
            "timer_turns": self._timer_turns_as_json(),
            "undelivered": self.undelivered,
        }
        return {name: value for name, value in optional.items() if value}

    def _timer_turns_as_json(self) -> str:
        """Return the timer turns as the scripts store them, "" for none."""
        if not self.timer_turns:
            return ""
        return json.dumps([each.to_dict() for each in self.timer_turns])

    def to_dict(self) -> dict[str, Any]:
        """Return the action as the scripts read it."""
        return {
            "action_id": self.action_id,
            "user": self.user,
            "record": self.record,
            "mac": self.mac,
            "ttl_ms": self.ttl_ms,
            "kind": self.kind,
            "digest": self.digest,
            "occupies_scope": self.occupies_scope,
            "optional_fields": self.optional_fields,
        }


@dataclass(frozen=True, slots=True)
class Timer:
    """A text to send once, at a later time."""

    #: Unique in a conversation.
    id: str
    #: In Unix seconds by the server's clock.
    at: float
    text: str
    #: The id of the scope that the timer belongs to (`Scope.id`).
    user: str = ""
    #: What the timer is about, for lists of timers.
    note: str = ""
    #: The language of the text.
    language: str = ""

    @property
    def reply(self) -> Reply:
        """Return the reply to send when the timer rings."""
        return Reply(self.text, language=self.language)

    def to_dict(self, to: Conversation) -> dict[str, Any]:
        """Return the timer as the scripts read it: `what` is stored until it rings."""
        at = round(self.at * 1000)
        reply = outbox_entry(to, self.reply, later=True)
        stored = {"id": self.id, "at": at, "user": self.user, "note": self.note, "reply": reply}
        return {"id": self.id, "at": at, "what": versioned(json.dumps(stored))}

    @classmethod
    def from_json(cls, text: str) -> Timer:
        """Read a stored timer. Raises OtherVersion."""
        data = json.loads(check_version(text))
        reply = Reply()
        if "reply" in data:
            reply = Reply.from_json(json.loads(data["reply"])["reply"])
        return cls(
            id=data["id"],
            at=data["at"] / 1000,
            text=reply.text,
            user=data.get("user", ""),
            note=data.get("note", ""),
            language=reply.language,
        )


def sort_timers(timers: Iterable[Timer]) -> tuple[Timer, ...]:
    """Return the timers, the next one first."""
    return tuple(sorted(timers, key=lambda timer: (timer.at, timer.id)))


@dataclass(frozen=True, slots=True)
class TurnReply:
    """A reply of a turn, and what it says about a pending action.

    `TurnReply(reply)` belongs to no action. The class methods build a reply that belongs to one.
    """

    reply: Reply
    #: The id of the action that the reply belongs to, "" for none. An undo button and offered
    #: choices are actions, too.
    action_id: str = ""
    #: What the reply says about that action, "" for a reply without one.
    role: ReplyRole = ""

    def __post_init__(self) -> None:
        """Raise ValueError for an action without a role, and for a role without an action."""
        if bool(self.action_id) != bool(self.role):
            raise ValueError(
                f"a reply has an action and a role, or neither: {self.action_id!r}, {self.role!r}"
            )

    @classmethod
    def question(cls, reply: Reply, action_id: str) -> TurnReply:
        """Return a reply that asks for a yes to the action."""
        return cls(reply, action_id, "question")

    @classmethod
    def question_part(cls, reply: Reply, action_id: str) -> TurnReply:
        """Return an earlier message of a question that needs several."""
        return cls(reply, action_id, "question_part")

    @classmethod
    def about_question(cls, reply: Reply, action_id: str) -> TurnReply:
        """Return a reply that repeats or follows the question of the action."""
        return cls(reply, action_id, "about_question")

    def to_dict(self, to: Conversation) -> dict[str, Any]:
        """Return the reply as the scripts read it. `to` is the conversation that gets it."""
        data: dict[str, Any] = {"reply": outbox_entry(to, self.reply)}
        if self.action_id:
            data["action_id"] = self.action_id
            data["role"] = self.role
        return data


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """The turn that is committed."""

    #: The id of the person in the conversation (`Scope.id`).
    user: str
    #: The event id of the turn.
    event: str
    #: The id of the action that the turn's button names, "" for none.
    tapped_action_id: str


class Forward(Protocol):
    """What one conversation sends to another. The classes are in `sayso.pending.forwarding`."""

    def entry(self) -> str:
        """Return the outbox entry, as JSON that begins with FORWARD."""


@dataclass(frozen=True, slots=True)
class TurnChange:
    """All that a turn changes: replies, history, pending actions and timers."""

    #: The replies, in the order in which they are sent.
    replies: tuple[TurnReply, ...] = ()
    #: The new history of the conversation, None if it stays.
    history: str | None = None
    #: The change of the action that the turn decided on, None for no change.
    transition: Transition | None = None
    new_actions: tuple[NewAction, ...] = ()
    timers: tuple[Timer, ...] = ()
    #: The ids of timers that are cancelled.
    cancelled_timers: tuple[str, ...] = ()
    #: Whether the replies say, to a yes or no without a question, that data was lost.
    tells_loss: bool = False
    #: The yes or no whose outcome the replies tell, apart from optional edits. None if they ask
    #: something.
    settles: SettledAnswer | None = None
    #: The turn that lets the agent go on after this turn's decision, or that runs an action which a
    #: standing yes covers. It is appended to the mailbox in the same step, once for each action and
    #: kind.
    continuation: Turn | None = None
    #: What is added to an action that other people decide; None for nothing.
    request_change: RequestChange | None = None
    #: What goes to other conversations, behind the replies (`sayso.pending.forwarding`).
    forwards: tuple[Forward, ...] = ()
    #: Which standing yeses of the person end; None for none.
    revokes: StandingRevocation | None = None
    #: Whether the person has ended the conversation. A further message begins a new one.
    ends_conversation: bool = field(default=False, compare=False)
    #: The language that the person writes, for a notice of a later loss; "" if unknown.
    language: str = field(default="", compare=False)

    # The rest is for `sayso trace`.
    #: The names of the tools that the turn called.
    tools: tuple[str, ...] = field(default=(), compare=False)
    #: The id of the action that the turn answered, "" for none.
    about: str = field(default="", compare=False)
    #: Why the turn has no answer of the agent, "" if it has one.
    ended: TurnEnd | Literal[""] = field(default="", compare=False)

    @property
    def last_question(self) -> str:
        """Return the id of the action that the last reply asks about, "" if it asks nothing."""
        if not self.replies:
            return ""
        return self.linked_replies()[-1].action_id

    def linked_replies(self) -> list[TurnReply]:
        """Return the replies as they are stored: those that follow a question are linked to it.

        A reply after a question of the same turn, such as a file, belongs to the question. A notice
        that replaces an earlier one belongs to no action.
        """
        linked: list[TurnReply] = []
        last_question = ""
        for turn_reply in self.replies:
            is_notice = bool(turn_reply.reply.collapse)
            if last_question and not turn_reply.action_id and not is_notice:
                linked.append(TurnReply.about_question(turn_reply.reply, last_question))
                continue
            linked.append(turn_reply)

            # A further reply belongs to a question only once the last message of it was said.
            if turn_reply.action_id and turn_reply.role != "question_part":
                last_question = turn_reply.action_id
        return linked

    def to_dict(self, to: Conversation | None = None) -> dict[str, Any]:
        """Return the change as the scripts read it.

        `to` is the conversation that gets the replies and timers; None for a change without any.
        Absent parts are left out: Lua's cjson would read null as a value.
        """
        replies: list[dict[str, Any]] = []
        timers: list[dict[str, Any]] = []
        if to is not None:
            replies = [self._reply_to_dict(each, to) for each in self.linked_replies()]
            timers = [timer.to_dict(to) for timer in self.timers]
        data: dict[str, Any] = {
            "replies": replies,
            "new_actions": [action.to_dict() for action in self.new_actions],
            "timers": timers,
            "cancelled_timers": self.cancelled_timers,
        }
        if self.language:
            data["language"] = self.language
        if self.tells_loss:
            data["tells_loss"] = True
        if self.settles:
            data["settles"] = self.settles.to_dict()
        if self.continuation:
            data["continuation"] = _continuation_to_dict(self.continuation)
        if self.history is not None:
            data["history"] = self.history
        if self.transition:
            data["transition"] = self.transition.to_dict()
        if self.request_change:
            data["request_change"] = self.request_change.to_dict()
        if self.revokes:
            data["revokes"] = self.revokes.to_dict()
        if self.forwards:
            data["forwards"] = [each.entry() for each in self.forwards]
        return data

    def _reply_to_dict(self, turn_reply: TurnReply, to: Conversation) -> dict[str, Any]:
        """Return a reply as the scripts read it, with whether it tells the outcome."""
        data = turn_reply.to_dict(to)
        if self.tells_outcome(turn_reply.reply):
            data["tells_outcome"] = True
        return data

    def tells_outcome(self, reply: Reply) -> bool:
        """Return whether a reply of this change tells the outcome that its person must know."""
        return self.settles is not None and not (reply.edits and reply.optional)


def _continuation_to_dict(turn: Turn) -> dict[str, str]:
    """Return a continuation as the scripts read it. After a /stop they store `stopped_turn`.

    `noted_in`: the field of the action in which the script notes that the turn was appended.
    """
    stopped = replace(turn, asks_model=False)
    noted_in = "continued_by_seq"
    if turn.kind == "standing":
        noted_in = "run_by_seq"
    return {
        "action_id": turn.continues,
        "turn": turn.to_json(),
        "stopped_turn": stopped.to_json(),
        "noted_in": noted_in,
    }


def outbox_entry(
    to: Conversation, reply: Reply, *, forward: bool = False, later: bool = False
) -> str:
    """Return a reply and its address as the outbox stores them.

    `forward`: the entry waits in the outbox of another conversation until it is moved to the outbox
    of its address. `later`: the reply is sent after the current work. While tracing is on, sending
    it then begins a new trace with a link to the current one; otherwise sending is part of the
    current trace.
    """
    # The scripts look for `forward` and `collapse` at the beginning of the text.
    entry: dict[str, Any] = {}
    if forward:
        entry["forward"] = True
    elif reply.collapse:
        entry["collapse"] = reply.collapse

    entry["to"] = [to.channel, to.chat, to.thread]
    entry["reply"] = reply.to_json()

    trace = current_trace()
    if trace and later:
        entry["link"] = trace
    elif trace:
        entry["trace"] = trace

    # Of a reply that one person of a group sees, the scripts need to know which person.
    if reply.only_for:
        entry["reader"] = digest(reply.only_for)
    return versioned(json.dumps(entry))


def as_edit_of(entry: str, message: str) -> str:
    """Return the outbox entry changed so that it replaces the message with this platform id."""
    data = json.loads(entry)
    edit = replace(Reply.from_json(data["reply"]), edits=message)
    return json.dumps({**data, "reply": edit.to_json()})
