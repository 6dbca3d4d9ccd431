"""World: what people, platforms and tools saw of the bot, and when."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Reply, Turn
from sayso.pending.action import PendingAction, split_button_token
from sayso.pending.sharded_scripts import shard_of
from sayso.pending.turn_changes import NewAction

#: Two conversations of one shard, so that they share an audit log and an index of work.
ROOM = Conversation("chat", "room")
HALL = next(
    hall
    for n in range(10_000)
    if shard_of((hall := Conversation("chat", f"hall{n}")).id) == shard_of(ROOM.id)
)
CONVERSATIONS = {place.id: place for place in (ROOM, HALL)}

#: The time at which each example begins, in Unix milliseconds.
EPOCH = 1_760_000_000_000

_YES = re.compile(r"yes(?: (\d{4}))?")


@dataclass(slots=True)
class Event:
    """An accepted turn: its number, when it was received, and what had been seen before it."""

    turn: Turn
    seq: int
    at: int
    tick: int
    committed: bool = False
    #: Whether its replies had a text, and whether a model was asked.
    is_answered: bool = False
    asked_model: bool = False

    @property
    def says(self) -> str:
        """Return what the text means to people: a yes, a no or something else."""
        if _YES.fullmatch(self.turn.text):
            return "confirm"
        return "cancel" if self.turn.text == "no" else "other"

    @property
    def code(self) -> str:
        """Return the code typed with a yes."""
        found = _YES.fullmatch(self.turn.text)
        return (found[1] or "") if found else ""


@dataclass(frozen=True, slots=True)
class Pressable:
    """A button that a person got, or that the test minted for that person."""

    pid: str
    intent: str
    user: str
    conversation: str


@dataclass
class Proposal:
    """What one stored record promised its user, and how it developed as seen from outside."""

    pid: str
    user: str
    conversation: str
    kind: str
    args: dict[str, Any]
    preview: str
    ttl_ms: int
    idempotent: bool
    code: str
    language: str
    plan: str
    steps: tuple[str, ...]
    live: bool
    #: The tick at which its preview first arrived, and the turns accepted when its window opened.
    arrived: int = 0
    seen: int = 0
    #: When its window closes, in Unix milliseconds; 0 before it opened.
    closes: int = 0
    fate: str = "open"
    by: str = ""
    tampered: bool = False
    #: Whether the turn ended with an apology instead of an outcome.
    vague: bool = False
    #: Whether the reconciler was queried and knew of no effect.
    absent: bool = False
    #: The recorded outcome of the executor.
    ended: str = ""
    #: The turn in which the agent goes on after the decision, and whether that turn tells the outcome.
    continuation: Event | None = None
    told_later: bool = False
    said: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, arm: NewAction, conversation: str) -> Proposal:
        """Return the proposal in a commit."""
        rec = json.loads(arm.record)
        return cls(
            arm.action_id, rec["user_id"], conversation, arm.kind, rec["args"], rec["preview"], arm.ttl_ms,
            arm.idempotent, arm.code, rec.get("language", ""), arm.plan, arm.steps, arm.occupies_scope,
        )  # fmt: skip

    @property
    def undoes(self) -> str:
        """Return the id of the action that this one undoes."""
        return str(self.args.get("of", ""))

    @cached_property
    def phrases(self) -> Sequence[tuple[str, str]]:
        """Return the texts that replies may contain about this action, each with its meaning."""
        words, preview = texts_for(self.language), self.preview
        step = [
            (words._step_report(state, preview, ""), state)
            for state in ("failed", "unknown", "cancelled")
        ]
        nothing = (
            words.cancelled(preview),
            words.expired(preview),
            words.dropped(preview),
            words.unsafe(preview),
        )
        return (
            *(((result_of(self.kind, self.args), "done"),) if not self.steps else ()),
            (words.done(preview, ""), "done"), (words.already_done(preview), "done"), (words.failed(preview), "failed"),
            (words.unknown(preview), "unknown"), (words.not_done(preview), "not done"),
            *self.undo_phrases,
            *((text, "nothing") for text in nothing),
            *((text, "nothing" if state == "cancelled" else state) for text, state in step),
        )  # fmt: skip

    @property
    def undo_phrases(self) -> Sequence[tuple[str, str]]:
        """Return the texts for an action that was undone or, without a certain end of its undo, may have been."""
        words = texts_for(self.language)
        undo = words.undo(self.preview)
        return (
            (words.undone(self.preview), "undone"),
            (words.unknown(undo), "perhaps undone"),
            (words._step_report("unknown", undo, ""), "perhaps undone"),
        )


@dataclass(slots=True)
class World:
    """The facts of one example. `ticks` orders them, `now` is the time of all clocks."""

    now: int = EPOCH
    ticks: int = 0
    events: dict[tuple[str, str], Event] = field(default_factory=dict)
    by_seq: dict[tuple[str, int], Event] = field(default_factory=dict)
    proposals: dict[str, Proposal] = field(default_factory=dict)
    live: dict[tuple[str, str], str] = field(default_factory=dict)
    buttons: dict[str, Pressable] = field(default_factory=dict)
    sent: dict[tuple[str, int], Reply] = field(default_factory=dict)
    last_sent: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    #: What the platform does with the next deliveries, and whether the reconciler cannot answer.
    weather: list[str] = field(default_factory=list)
    #: The replies that the bot began to send, by conversation, each with its tick.
    heard: dict[str, list[tuple[int, Reply]]] = field(default_factory=dict)
    silent: bool = False
    #: Whether the agent goes on after a decision.
    goes_on: bool = False
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def tick(self) -> int:
        """Count one observation and return its number."""
        self.ticks += 1
        return self.ticks

    def broke(self, promise: str, *facts: Any) -> None:
        """Record a broken promise. It does not raise, because the code under test catches what executors raise."""
        self.violations.append(f"{promise}: {facts!r}")

    def received(self, conversation: str) -> int:
        """Return how many turns of a conversation were accepted."""
        return sum(1 for place, _ in self.by_seq if place == conversation)

    def head(self, proposal: Proposal) -> Proposal:
        """Return the action that the user was asked about: for a step, its plan."""
        return self.proposals[proposal.plan] if proposal.plan else proposal

    def repeats_request(self, event: Event) -> bool:
        """Return whether a person wrote the same request before, which leaves its question open."""
        here = (event.turn.conversation, event.turn.user_id, event.turn.text)
        return any(
            (each.turn.conversation, each.turn.user_id, each.turn.text) == here
            and each.seq < event.seq
            for each in self.events.values()
        )

    def is_done(self, proposal: Proposal) -> bool:
        """Return whether an action took effect; of a plan, whether all its steps did."""
        return all(self.effects[pid] for pid in proposal.steps or (proposal.pid,))

    def undo_of(self, pid: str) -> Proposal | None:
        """Return the offered undo of an action."""
        return next((each for each in self.proposals.values() if each.undoes == pid), None)

    def waiting(self, conversation: str) -> list[Proposal]:
        """Return the actions of a conversation that may still be answered."""
        return [
            each for each in self.proposals.values()
            if each.conversation == conversation and each.fate == "open" and not each.plan
        ]  # fmt: skip

    def statements(self, conversation: str, text: str) -> Iterator[tuple[Proposal, str]]:
        """Yield what a reply says about which action."""
        for proposal in self.proposals.values():
            if proposal.conversation == conversation:
                for phrase, meaning in proposal.phrases:
                    if phrase in text:
                        yield proposal, meaning

    def show(self, conversation: str, reply: Reply) -> None:
        """Record a delivered reply: its buttons can be pressed from now on."""
        for button in reply.buttons:
            parts = split_button_token(button.data)
            proposal = self.proposals.get(parts[0]) if parts else None
            if parts and proposal:
                intent = "confirm" if parts[1] == "y" else "cancel"
                self.buttons[button.data] = Pressable(parts[0], intent, proposal.user, conversation)
                proposal.arrived = proposal.arrived or self.ticks

    def may_be_followed(self, proposal: Proposal) -> bool:
        """Return whether the bot said anything after the question that does not belong to it."""
        heard = self.heard.get(proposal.conversation, ())
        return any(
            tick > proposal.arrived and not _is_about(reply, proposal) for tick, reply in heard
        )

    def is_followed(self, proposal: Proposal, tick: int) -> bool:
        """Return whether the last message that its user had read at this tick does not belong to the question."""
        heard = self.heard.get(proposal.conversation, ())
        read = [
            reply for at, reply in heard
            if at < tick and not reply.edits and reply.only_for in ("", proposal.user)
        ]  # fmt: skip
        return bool(read) and not _is_about(read[-1], proposal)

    def prompts(self, conversation: str, user: str, intent: str = "confirm") -> list[str]:
        """Return the buttons that a person got, oldest first."""
        return [
            data for data, button in self.buttons.items()
            if (button.conversation, button.user, button.intent) == (conversation, user, intent)
        ]  # fmt: skip


def _is_about(reply: Reply, proposal: Proposal) -> bool:
    """Return whether a reply shows the action or has its buttons."""
    tokens = [split_button_token(button.data) for button in reply.buttons]
    return proposal.preview in reply.text or any(
        parts and parts[0] == proposal.pid for parts in tokens
    )


def result_of(kind: str, args: Mapping[str, Any]) -> str:
    """Return a tool's report; no two actions have the same text."""
    if "of" in args:
        return f"<{args['args'].get('n')}> is back as it was"
    return f"<{args.get('n')}> is through: {kind}"


def shown(action: PendingAction) -> tuple[str, dict[str, Any], str]:
    """Return what a person was shown and a tool gets."""
    return action.kind, action.args, action.preview
