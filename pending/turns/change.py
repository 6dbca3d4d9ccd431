"""Lane: what a conversation holds for the worker that has its lease, and all that one turn may change.

LaneError
├── LaneLost       another worker holds the lane by now
├── LaneParked     nothing can be sent now: the lane was let go until a later try
├── TurnOvertaken  the world changed since this worker looked
└── JournalUnreadable  what an earlier attempt at a turn left behind makes no sense
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sayso.channels.types import Conversation, Reply

#: Timers that one conversation may have. The scripts know it too.
MAX_TIMERS = 100


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a conversation, with the fencing token that proves it is still held."""

    conversation: str
    epoch: int
    token: str


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """Whose turn is committed, by which event, and the action that its button names, "" for none."""

    user: str
    event: str
    tapped: str


@dataclass(frozen=True, slots=True)
class Transition:
    """A pending action's change of state, possible only from the states given. `told` is what its twins will hear."""

    pending_action_id: str
    from_states: tuple[str, ...]
    to: str
    told: str = ""
    by: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The move as the scripts read it."""
        move = {"pid": self.pending_action_id, "from": self.from_states, "to": self.to, "told": self.told}
        return {**move, "by": self.by} if self.by else move


@dataclass(frozen=True, slots=True)
class NewAction:
    """A pending action to store: its record exactly as sealed, and for how long it may be answered once shown.

    A `live` one is what its scope waits for; others are reached by a button, or as the `steps` of a plan. `notice` is
    the outbox entry that is said when its window closes unanswered, `alarm` the one that is said when nobody answered
    `alarm_after_ms` after it was shown, at the end of its window at the latest; "" for none. `ending` is the entry that
    then takes the place of the message that asked: which one that is, is known once it is delivered.
    """

    pending_action_id: str
    user: str
    record: str
    mac: str
    ttl_ms: int
    kind: str
    digest: str
    idempotent: bool = False
    live: bool = True
    code: str = ""
    plan: str = ""
    steps: tuple[str, ...] = ()
    notice: str = ""
    ending: str = ""
    alarm: str = ""
    alarm_after_ms: int = 0

    @property
    def more(self) -> tuple[str, ...]:
        """Fields that only some actions have, by name and value."""
        fields = {"code": self.code, "plan": self.plan, "steps": " ".join(self.steps)}
        fields |= {"idempotent": "1" if self.idempotent else "", **self._later}
        return tuple(word for name, value in fields.items() if value for word in (name, value))

    @property
    def _later(self) -> dict[str, str]:
        """What is said when nobody answers, behind the scope that it is about."""
        found = {"notice": self.notice, "ending": self.ending, "alarm": self.alarm}
        later = {name: f"{self.user} {entry}" for name, entry in found.items() if entry}
        return {**later, "alarm_after": str(self.alarm_after_ms)} if self.alarm else later

    def to_dict(self) -> dict[str, Any]:
        """The action as the scripts read it."""
        return {
            "pid": self.pending_action_id,
            "user": self.user,
            "rec": self.record,
            "mac": self.mac,
            "ttl": self.ttl_ms,
            "kind": self.kind,
            "digest": self.digest,
            "live": self.live,
            "more": self.more,
        }


@dataclass(frozen=True, slots=True)
class Timer:
    """Something to be said later, once, at `at`: Unix seconds by the server's clock.

    `user` is the scope that it belongs to and `note` what it is about, for whoever lists them. `language` is what it is
    written in. Ids are unique in a conversation.
    """

    id: str
    at: float
    text: str
    user: str = ""
    note: str = ""
    language: str = ""

    @property
    def reply(self) -> Reply:
        """What is said when it rings."""
        return Reply(self.text, language=self.language)

    def to_dict(self, to: Conversation) -> dict[str, Any]:
        """The timer as the scripts read it: `what` is kept until it rings."""
        at, reply = round(self.at * 1000), outbox_entry(to, self.reply)
        what = {"id": self.id, "at": at, "user": self.user, "note": self.note, "reply": reply}
        return {"id": self.id, "at": at, "what": json.dumps(what)}

    @classmethod
    def from_json(cls, what: str) -> Timer:
        """The timer that is kept."""
        kept = json.loads(what)
        reply = Reply.from_json(json.loads(kept["reply"])["reply"]) if "reply" in kept else Reply()
        return cls(
            kept["id"], kept["at"] / 1000, reply.text, kept.get("user", ""), kept.get("note", ""), reply.language
        )


@dataclass(frozen=True, slots=True)
class TurnChange:
    """All that a turn changes: replies with the action each previews (or ""), history, pending actions, timers.

    Of a question in several pieces only the last one opens the window; those before it have PART before its id, and if
    one of them never arrives, the action ends. A reply that only repeats an open question has ABOUT before its id.
    `silenced` are the ids of timers that will not ring.
    """

    replies: tuple[tuple[Reply, str], ...] = ()
    history: str | None = None
    move: Transition | None = None
    arms: tuple[NewAction, ...] = ()
    timers: tuple[Timer, ...] = ()
    silenced: tuple[str, ...] = ()

    def to_json(self, to: Conversation | None = None) -> str:
        """The change as the scripts read it. Absent parts are left out: cjson reads null as a value."""
        entries = [{"pid": pid or "-", "reply": outbox_entry(to, reply)} for reply, pid in self.replies if to]
        data: dict[str, Any] = {"replies": entries, "arms": [arm.to_dict() for arm in self.arms]}
        data["timers"] = [timer.to_dict(to) for timer in self.timers if to]
        data["silenced"] = self.silenced
        if self.history is not None:
            data["history"] = self.history
        if self.move:
            data["move"] = self.move.to_dict()
        return json.dumps(data)


def outbox_entry(to: Conversation, reply: Reply, *, forward: bool = False) -> str:
    """A reply and its address, as the outbox keeps them. What it collapses with comes first: scripts look for it.

    `forward`: it waits in the outbox of one conversation until it is put into that of the one it is addressed to.
    """
    first: dict[str, Any] = {"collapse": reply.collapse} if reply.collapse else {}
    if forward:
        first = {"forward": True}
    return json.dumps({**first, "to": [to.channel, to.chat, to.thread], "reply": reply.to_json()})


def in_place_of(entry: str, message: str) -> str:
    """The entry, as one that takes the place of this message."""
    kept = json.loads(entry)
    return json.dumps({**kept, "reply": replace(Reply.from_json(kept["reply"]), edits=message).to_json()})


def in_order(timers: Iterable[Timer]) -> tuple[Timer, ...]:
    """Timers, the next one first."""
    return tuple(sorted(timers, key=lambda timer: (timer.at, timer.id)))
