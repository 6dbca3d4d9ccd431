"""TurnChange: all that one turn may change, with the lease that a worker holds while it makes the change."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sayso.channels.types import Conversation, Reply

#: Timers that one conversation may have. Also in the scripts.
MAX_TIMERS = 100


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a conversation, with the fencing token that proves it is still held."""

    conversation: str
    epoch: int
    token: str


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """The turn being committed: its user, its event id, and the id of the action that its button names or ""."""

    user: str
    event: str
    tapped: str


@dataclass(frozen=True, slots=True)
class Transition:
    """A pending action's change of state, possible only from the states given.

    `outcome_text` is what the user is told; a second answer to the same question repeats it.
    """

    pending_action_id: str
    from_states: tuple[str, ...]
    to: str
    outcome_text: str = ""
    by: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the transition as the scripts read it."""
        data = {"pid": self.pending_action_id, "from": self.from_states, "to": self.to, "told": self.outcome_text}
        return {**data, "by": self.by} if self.by else data


@dataclass(frozen=True, slots=True)
class NewAction:
    """A pending action to store: its record exactly as it was signed, and how long it may be answered once shown.

    `live`: whether it occupies its scope. Any other is reached by its button, or as one of the `steps` of a plan.
    `notice`: the outbox entry to send when its window closes without an answer.
    `ending`: the entry that then replaces the message with the question. Its id is known once that is delivered.
    `alarm`: the entry to send when nobody answered within `alarm_after_ms`, at the latest when the window closes.
    "" is none.
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
    def optional_fields(self) -> tuple[str, ...]:
        """Return the fields that only some actions have, as names and values in turn."""
        fields = {"code": self.code, "plan": self.plan, "steps": " ".join(self.steps)}
        fields["idempotent"] = "1" if self.idempotent else ""
        entries = {"notice": self.notice, "ending": self.ending, "alarm": self.alarm}
        fields |= {name: f"{self.user} {entry}" for name, entry in entries.items() if entry}  # whom it is about
        fields["alarm_after"] = str(self.alarm_after_ms) if self.alarm else ""
        return tuple(text for name, value in fields.items() if value for text in (name, value))

    def to_dict(self) -> dict[str, Any]:
        """Return the action as the scripts read it."""
        return {
            "pid": self.pending_action_id,
            "user": self.user,
            "rec": self.record,
            "mac": self.mac,
            "ttl": self.ttl_ms,
            "kind": self.kind,
            "digest": self.digest,
            "live": self.live,
            "more": self.optional_fields,
        }


@dataclass(frozen=True, slots=True)
class Timer:
    """A text to send once, at a later time.

    `id` is unique in a conversation. `at` is in Unix seconds by the server's clock. `user` is the scope it belongs to,
    `note` what it is about, for lists of timers. `language` is the language of the text.
    """

    id: str
    at: float
    text: str
    user: str = ""
    note: str = ""
    language: str = ""

    @property
    def reply(self) -> Reply:
        """Return the reply to send when the timer rings."""
        return Reply(self.text, language=self.language)

    def to_dict(self, to: Conversation) -> dict[str, Any]:
        """Return the timer as the scripts read it: `what` is stored until it rings."""
        at, reply = round(self.at * 1000), outbox_entry(to, self.reply)
        stored = {"id": self.id, "at": at, "user": self.user, "note": self.note, "reply": reply}
        return {"id": self.id, "at": at, "what": json.dumps(stored)}

    @classmethod
    def from_json(cls, text: str) -> Timer:
        """Read a stored timer."""
        data = json.loads(text)
        reply = Reply.from_json(json.loads(data["reply"])["reply"]) if "reply" in data else Reply()
        return cls(
            data["id"], data["at"] / 1000, reply.text, data.get("user", ""), data.get("note", ""), reply.language
        )


def sort_timers(timers: Iterable[Timer]) -> tuple[Timer, ...]:
    """Return the timers, the next one first."""
    return tuple(sorted(timers, key=lambda timer: (timer.at, timer.id)))


@dataclass(frozen=True, slots=True)
class TurnChange:
    """All that a turn changes: replies, history, pending actions and timers.

    `replies`: each with the id of the action it asks about, or "". When a question has several pieces, only the last
    opens the window; the earlier ones have PART before the id, and if one of them cannot be delivered, the action ends.
    A reply that only repeats an open question has ABOUT before the id.
    `silenced`: the ids of timers that are cancelled.
    """

    replies: tuple[tuple[Reply, str], ...] = ()
    history: str | None = None
    transition: Transition | None = None
    new_actions: tuple[NewAction, ...] = ()
    timers: tuple[Timer, ...] = ()
    silenced: tuple[str, ...] = ()

    def to_json(self, to: Conversation | None = None) -> str:
        """Return the change as the scripts read it. Absent parts are left out: cjson reads null as a value."""
        entries = [{"pid": pid or "-", "reply": outbox_entry(to, reply)} for reply, pid in self.replies if to]
        data: dict[str, Any] = {"replies": entries, "arms": [action.to_dict() for action in self.new_actions]}
        data["timers"] = [timer.to_dict(to) for timer in self.timers if to]
        data["silenced"] = self.silenced
        if self.history is not None:
            data["history"] = self.history
        if self.transition:
            data["move"] = self.transition.to_dict()
        return json.dumps(data)


def outbox_entry(to: Conversation, reply: Reply, *, forward: bool = False) -> str:
    """Return a reply and its address as the outbox stores them.

    `forward`: the entry waits in the outbox of one conversation until it is moved to that of its address. The scripts
    look for `collapse` and `forward` at the beginning.
    """
    first: dict[str, Any] = {"collapse": reply.collapse} if reply.collapse else {}
    if forward:
        first = {"forward": True}
    return json.dumps({**first, "to": [to.channel, to.chat, to.thread], "reply": reply.to_json()})


def as_edit_of(entry: str, message: str) -> str:
    """Return the outbox entry changed so that it replaces the message with this platform id."""
    data = json.loads(entry)
    return json.dumps({**data, "reply": replace(Reply.from_json(data["reply"]), edits=message).to_json()})
