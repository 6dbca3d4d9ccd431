"""Story: the values of the story of one message, and answers in words: why something was said twice, why a message was
not answered, and who confirmed an action.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class TracedReply:
    """One reply. `state` is that of a delivery, or `waits`; `at` is in Unix seconds, 0 while it waits."""

    id: str
    state: str
    at: float = 0.0
    tries: int = 0
    receipt: str = ""
    reason: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class TracedTurn:
    """One turn. `status` is `waits`, `done`, or `forgotten` where only its number is known. Times are in Unix seconds.

    `webhooks` is how often it came in; `steps` are those of its journal while it is worked on; `asked` and `decided`
    are ids of actions; `ended` says why it has no answer of the agent.
    """

    id: str
    status: str
    event: str = ""
    at: float = 0.0
    done: float = 0.0
    webhooks: int = 1
    attempt: int = 0
    worker: str = ""
    upto: int = 0
    tools: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    decided: str = ""
    ended: str = ""
    ahead: int = 0
    steps: tuple[str, ...] = ()
    text: str = ""
    replies: tuple[TracedReply, ...] = ()


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """One state that an action entered. `by` is the hash of the event that decided it; `turn` is its turn."""

    event: str
    at: float
    by: str = ""
    turn: str = ""


@dataclass(frozen=True, slots=True)
class TracedAction:
    """One action. `events` are those of the ledger; `state` is that of Redis, "" where it has none."""

    pid: str
    state: str = ""
    kind: str = ""
    preview: str = ""
    told: str = ""
    user: str = ""
    events: tuple[TracedEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageStory:
    """The story of one message, oldest first. `busy` says who has the conversation, or why no worker works on it."""

    conversation: str
    turns: tuple[TracedTurn, ...] = ()
    replies: tuple[TracedReply, ...] = ()
    actions: tuple[TracedAction, ...] = ()
    busy: str = ""

    @property
    def all_replies(self) -> tuple[TracedReply, ...]:
        """Return the replies of its turns, and those that belong to no turn."""
        return tuple(reply for turn in self.turns for reply in turn.replies) + self.replies


#: Why a turn has no answer of the agent, in words.
_ENDS = {
    "channel_gone": "its channel is no longer in the YAML; the person was told so",
    "failed": "an unexpected error ended it and the person got an apology: `turn.failed` in the log has the traceback",
    "forwarded": "it came in under another address of the conversation and was handed on to the main one",
    "killed_workers": "its worker died each time that it was begun, so it was given up",
    "stale": "the conversation changed while it was answered, and the person was told that something went wrong",
    "stopped": "its person said /stop",
    "timeout": "it took longer than `workers.turn_timeout`, and the person was told so",
    "unreadable": "the journal of an earlier attempt could not be read, so it was not tried again",
}
_UNSENT = {
    "dead": "was given up", "failed": "was taken by the platform and not delivered", "waits": "waits to be sent",
    "held": "waits until the person writes", "retried": "was put back after it was dead",
    "forgotten": "is no longer known",
}  # fmt: skip


def answers(story: MessageStory) -> dict[str, list[str]]:
    """Return the answers to three questions about a story, as sentences."""
    answered = "it answered: every reply was taken by its platform"
    if not story.all_replies:
        answered = "its turn and replies are not known: Redis has forgotten them, or was not searched"
    return {
        "said_twice": [*_twice(story)] or ["nothing here was said twice; trace the other message as well"],
        "not_answered": [*_unanswered(story)] or [answered],
        "confirmed_by": [*_confirmed(story)] or ["no confirmation was needed: no action is known here"],
    }


def _twice(story: MessageStory) -> Iterator[str]:
    for turn in story.turns:
        if turn.webhooks > 1:
            yield f"{turn.id} came in {turn.webhooks} times; each repetition was recognized and changed nothing"
        if turn.attempt > 1:
            replies = "only the last attempt's replies were sent"
            yield f"{turn.id} was begun {turn.attempt} times, because a worker died or lost its lease; {replies}"
        others = {reply.receipt for other in story.turns if other != turn for reply in other.replies}
        messages = {reply.receipt or reply.id for reply in turn.replies} - others  # others are changes of a message
        if len(messages) > 1:
            yield f"the answer to {turn.id} has {len(messages)} messages"
        if turn.upto:
            yield f"{turn.id} was answered together with the messages up to {turn.upto}"
    for reply in story.all_replies:
        if reply.state == "ambiguous":
            yield f"{reply.id} was sent again and marked as repeated: the answer to an earlier attempt was lost"
        if reply.state == "retried":
            yield f"{reply.id} was sent again as #{reply.receipt}, by `sayso deliveries retry`"


def _unanswered(story: MessageStory) -> Iterator[str]:
    for turn in story.turns:
        if turn.status == "waits":
            place = f"behind {turn.ahead} others" if turn.ahead else "next in its conversation"
            begun = f", begun {turn.attempt} times" if turn.attempt else ""
            yield f"{turn.id} waits, {place}{begun}; {story.busy or 'a worker will come for it'}"
        elif turn.status == "forgotten":
            yield f"how {turn.id} was answered is no longer stored; the replies are in the log"
        elif turn.ended:
            yield f"{turn.id}: {_ENDS.get(turn.ended, turn.ended)}"
        elif not turn.replies:
            yield f"{turn.id} was worked on and has no reply"
    for reply in story.all_replies:
        if says := _UNSENT.get(reply.state):
            reason = f": {reply.reason}" if reply.reason else ""
            busy = f"; {story.busy}" if reply.state == "waits" and story.busy else ""
            yield f"reply {reply.id} {says}{reason}{busy}"
        elif reply.reason:
            yield f"reply {reply.id} is an apology: {reply.reason}"


def _confirmed(story: MessageStory) -> Iterator[str]:
    for action in story.actions:
        claimed = [event for event in action.events if event.event == "claimed"]
        who = action.user or "its person"
        for event in claimed:
            message = f"message {event.by}{f' ({event.turn})' if event.turn else ''}"
            at = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
            yield f"{action.pid}: {who}, at {at} with {message}; it is {action.events[-1].event} now"
        if not claimed:
            state = action.events[-1].event if action.events else action.state
            yield f"{action.pid}: nobody; it is {state or 'unknown here'}"
