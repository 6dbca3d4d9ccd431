"""MessageStory: what happened to one message, and sentences that say why it was answered twice or
not at all, and who confirmed an action.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class TracedReply:
    """One reply.

    `state` is that of a delivery, or `waits`; `at` is in Unix seconds, 0 while it waits.
    """

    id: str
    state: str
    at: float = 0.0
    tries: int = 0
    receipt: str = ""
    reason: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class TracedTurn:
    """One turn."""

    id: str
    #: `waits`, `done`, or `forgotten` where only its number is known. Times are in Unix seconds.
    status: str
    event: str = ""
    at: float = 0.0
    done: float = 0.0
    #: How often it came in; `steps` are those of its journal while it is worked on; `asked`,
    #: `decided` and `about` are ids of actions: it asked about them, it decided one, or it answered
    #: one that it could not decide, such as one that had expired.
    webhooks: int = 1
    attempt: int = 0
    worker: str = ""
    upto: int = 0
    tools: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    decided: str = ""
    about: str = ""
    #: `ended` says why it has no answer of the agent.
    ended: str = ""
    #: The action after whose decision the agent goes on in it.
    continues: str = ""
    ahead: int = 0
    steps: tuple[str, ...] = ()
    text: str = ""
    replies: tuple[TracedReply, ...] = ()


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """One change of an action's state.

    `by` is the hash of the event that caused it; `turn` is its turn.
    """

    event: str
    at: float
    by: str = ""
    turn: str = ""


@dataclass(frozen=True, slots=True)
class TracedAction:
    """One action."""

    pid: str
    #: `state` and `by`, the hash of the event that led to it, are those of Redis, "" where it has
    #: none. A ledger lacks the events that another machine collected, so `state` may be newer.
    state: str = ""
    by: str = ""
    kind: str = ""
    preview: str = ""
    told: str = ""
    user: str = ""
    #: Those of the ledger and of Redis's copy of it.
    events: tuple[TracedEvent, ...] = ()

    @property
    def newest(self) -> str:
        """Return the current state of the action, "" if it is unknown."""
        return self.state or (self.events[-1].event if self.events else "")


@dataclass(frozen=True, slots=True)
class MessageStory:
    """What happened to one message, oldest first.

    `busy` names the worker of the conversation, or why none has it.
    """

    conversation: str
    turns: tuple[TracedTurn, ...] = ()
    replies: tuple[TracedReply, ...] = ()
    actions: tuple[TracedAction, ...] = ()
    busy: str = ""

    @property
    def all_replies(self) -> tuple[TracedReply, ...]:
        """Return the replies of its turns, and those that belong to no turn."""
        return tuple(reply for turn in self.turns for reply in turn.replies) + self.replies


#: Why the agent did not answer a turn.
_ENDS = {
    "answered_before": "The model had answered a message after the decision, so nothing was left to go on with.",
    "channel_gone": "The YAML has no such channel any more. The user was told.",
    "failed": "An unexpected error ended it, and the user got an apology. `turn.failed` in the log has the traceback.",
    "forwarded": "It came from another address of the conversation, and was handed on to the main address.",
    "killed_workers": "Its worker died in each attempt, so Sayso gave it up.",
    "repeated": "It repeated what the bot had answered, or asked for time again. It needed no answer.",
    "stale": "The conversation changed while it was answered. The user was told that something went wrong.",
    "stopped": "The user sent /stop.",
    "timeout": "It took longer than `workers.turn_timeout`. The user was told.",
    "unreadable": "The journal of an earlier attempt could not be read, so Sayso did not try again.",
}
_UNSENT = {
    "dead": "was given up",
    "failed": "was taken by the platform, which did not deliver it",
    "waits": "waits to be sent",
    "held": "waits until the user writes again",
    "retried": "was given up, and then sent again by an operator",
    "forgotten": "is no longer stored",
}
#: Why an action is not confirmed, by its state.
_UNCONFIRMED = {
    "armed": "the question was not delivered yet",
    "shown": "the question waits for an answer",
    "expired": "no answer came in time",
    "cancelled": "it was cancelled",
    "superseded": "it was withdrawn before it ran",
}
_CHANGED = "its user changed it, and was asked anew"
_ENDED = ("done", "failed", "unknown", "cancelled", "expired", "superseded")


def answers(story: MessageStory) -> dict[str, list[str]]:
    """Return the answers to three questions about a story, as sentences."""
    answered = "It answered. The platform took every reply."
    if not story.all_replies:
        answered = "Its turn and its replies are not known: Redis has forgotten them, or could not be searched."
    twice = (
        "No repetition is stored here. If the user got two answers, trace the other message, too."
    )
    no_action = "No confirmation is stored here."
    if story.turns and all(turn.status == "done" for turn in story.turns):
        no_action = "The message asked for no confirmation, and was none."
    return {
        "said_twice": [*_twice(story)] or [twice],
        "not_answered": [*_unanswered(story)] or [answered],
        "confirmed_by": [*_confirmed(story)] or [no_action],
    }


def _twice(story: MessageStory) -> Iterator[str]:
    for turn in story.turns:
        if turn.webhooks > 1:
            why = "Sayso recognized the repetitions and ignored them."
            yield f"The platform sent {turn.id} {turn.webhooks} times. {why}"
        if turn.attempt > 1:
            why = "A worker died or lost its lease. Only the replies of the last attempt were sent."
            yield f"Workers began {turn.id} {turn.attempt} times. {why}"
        others = {
            reply.receipt for other in story.turns if other != turn for reply in other.replies
        }
        # Others are changes of a message.
        messages = {reply.receipt or reply.id for reply in turn.replies} - others
        if len(messages) > 1:
            yield f"The answer to {turn.id} has {len(messages)} messages."
        if turn.upto:
            yield f"{turn.id} was answered together with the messages up to {turn.upto}."
        if not turn.continues and (state := _ended_before(story, turn)):
            yield f"{turn.id} came after action {turn.about} had ended ({state}), so its outcome was told again."
    for reply in story.all_replies:
        if reply.state == "ambiguous":
            why = "The platform's answer to an earlier attempt was lost, so the user may have it twice."
            yield f"Reply {reply.id} was sent again, marked as repeated. {why}"
        if reply.state == "retried":
            yield f"Reply {reply.id} was sent again as #{reply.receipt}, by `sayso deliveries retry`."


def _ended_before(story: MessageStory, turn: TracedTurn) -> str:
    """Return how an action had ended before this turn answered it; "" if it had not ended."""
    events = [
        event for action in story.actions if action.pid == turn.about for event in action.events
    ]
    return next(
        (event.event for event in events if event.event in _ENDED and event.at <= turn.at), ""
    )


def _unanswered(story: MessageStory) -> Iterator[str]:
    for turn in story.turns:
        if turn.status == "waits":
            place = {0: "is next in its conversation", 1: "waits behind 1 message"}
            begun = {0: "", 1: " Its attempt 1 has begun."}
            yield (
                f"{turn.id} {place.get(turn.ahead, f'waits behind {turn.ahead} messages')}."
                f"{begun.get(turn.attempt, f' Workers began it {turn.attempt} times.')}"
                f" {story.busy or 'A worker will take it.'}"
            )
        elif turn.status == "forgotten":
            yield f"{turn.id}: it is no longer stored how it was answered. The log has its replies."
        elif turn.ended:
            yield f"{turn.id}: {_ENDS.get(turn.ended, turn.ended)}"
        elif not turn.replies:
            yield f"{turn.id} was finished without a reply."
    for reply in story.all_replies:
        if says := _UNSENT.get(reply.state):
            reason = f": {reply.reason}" if reply.reason else "."
            if reply.state == "waits" and story.busy:
                busy = f" {story.busy}"
            else:
                busy = ""
            yield f"Reply {reply.id} {says}{reason}{busy}"
        elif reply.reason:
            yield f"Reply {reply.id} is an apology: {reply.reason}"


def _confirmed(story: MessageStory) -> Iterator[str]:
    for action in story.actions:
        if action.kind:
            name = f"{action.pid} ({action.kind})"
        else:
            name = action.pid
        claims = [event for event in action.events if event.event == "claimed"]
        for event in claims:
            at = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
            who = action.user or "The user who was asked"
            yield f"{name}: {who} confirmed it at {at} with message {_message(event)}. It is {action.newest} now."
        if claims:
            continue
        why = _UNCONFIRMED.get(action.newest)
        # Without a claim, only its user ends it so.
        if action.newest == "superseded" and action.events:
            why = _CHANGED
        if why:
            by = [event for event in action.events if event.event == action.newest and event.by]
            yield f"{name}: not confirmed, {why}{f' by message {_message(by[-1])}' if by else ''}."
        elif action.newest:
            if action.by:
                by_message = f" with message {action.by}"
            else:
                by_message = ""
            yield f"{name}: confirmed{by_message}; the ledger of another machine knows when. It is {action.newest} now."
        else:
            yield f"{name}: not known here. Run the command on the other machines, which have ledgers of their own."
    for turn in story.turns:
        if turn.about and not turn.continues:
            if state := _ended_before(story, turn):
                why = f"it had ended ({state})"
            else:
                why = "the reply says why"
            yield f"{turn.id} answered {turn.about} and did not decide it: {why}."


def _message(event: TracedEvent) -> str:
    return f"{event.by}{f' ({event.turn})' if event.turn else ''}"
