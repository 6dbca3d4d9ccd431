"""AccessRules: who may talk to the bot on a channel, decided before anything of a turn is stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sayso.channels.types import Turn

#: What an operator decided about a person; "" for nothing.
OperatorDecision = Literal["approved", "blocked", ""]
#: Which group messages are for the bot: those that address it or belong to a conversation with it, all, or none.
Groups = Literal["mention", "always", "never"]
_WHATSAPP = "whatsapp:"
_COMMAND = re.compile(r"\s*/(?:whoami|start)(?:@\w+)?(?:\s|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The turn is for the bot; `turn` is the one to accept."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class Ignored:
    """Nothing is stored or sent; `reason` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class UnknownSender:
    """Nothing is stored; the sender may be told that they are on no list."""


AccessDecision = Admitted | Ignored | UnknownSender


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Who may talk on one channel, in which chats, and how often.

    `allow`: only these people, None for everybody, unless `pairing` asks unknown senders for a code. `block`: never
    these. `chats`: only there, None for everywhere. `per_minute`: turns of one person, None for no limit. Ids must be
    in the form that `spelled` returns: create rules with `rules`.
    """

    allow: frozenset[str] | None = None
    block: frozenset[str] = frozenset()
    pairing: bool = False
    groups: Groups = "mention"
    chats: frozenset[str] | None = None
    per_minute: int | None = None
    phones: bool = False

    def spelled(self, name: str) -> str:
        """Return an id in the form that is compared: a phone's in lower case and without `whatsapp:`, any other as it
        is.
        """
        return name.strip().casefold().removeprefix(_WHATSAPP) if self.phones else name

    def ids(self, turn: Turn) -> tuple[str, ...]:
        """Return the ids of the turn's sender, the user id first; on WhatsApp the sending address is one of them."""
        address = (turn.conversation.chat,) if self.phones else ()
        ids = map(self.spelled, (turn.user_id, *turn.aliases, *address))
        return tuple(dict.fromkeys(name for name in ids if name))

    def ignores(self, turn: Turn) -> str:
        """Return why the turn is not for the bot whatever an operator decided, "" when it may be."""
        if not self.block.isdisjoint(self.ids(turn)):
            return "blocked"
        if self.chats is not None and self.spelled(turn.conversation.chat) not in self.chats:
            return "chat"
        if self.groups == "never" and (turn.in_group or not turn.addressed):
            return "group"
        return ""

    def judge(
        self, turn: Turn, find_decision: Callable[[Sequence[str]], OperatorDecision] = lambda _: ""
    ) -> AccessDecision:
        """Return what becomes of a turn. `find_decision` returns what an operator decided about the sender's ids; it is
        only asked where the configuration alone does not ignore the turn.
        """
        if reason := self.ignores(turn):
            return Ignored(reason)
        operator_decision = find_decision(self.ids(turn))
        if operator_decision == "blocked":
            return Ignored("blocked")
        is_listed = not (self.allow or frozenset()).isdisjoint(self.ids(turn))
        lets_all_in = self.allow is None and not self.pairing
        if not (lets_all_in or is_listed or operator_decision == "approved"):
            # Messages between others, and edits, are never answered.
            speaks_to_bot = turn.addressed and turn.kind == "message" and self.ids(turn)
            return UnknownSender() if speaks_to_bot else Ignored("unknown_sender")
        return Admitted(replace(turn, addressed=True) if self.groups == "always" else turn)


def rules(
    *,
    allow: Iterable[str] | None = None,
    block: Iterable[str] = (),
    pairing: bool = False,
    groups: Groups = "mention",
    chats: Iterable[str] | None = None,
    per_minute: int | None = None,
    phones: bool = False,
) -> AccessRules:
    """Return the rules for people and chats as they are configured; with `phones` they are phone numbers, as on
    WhatsApp.
    """
    spelled = AccessRules(phones=phones).spelled

    def names(given: Iterable[str] | None) -> frozenset[str] | None:
        return None if given is None else frozenset(map(spelled, given))

    blocked = names(block) or frozenset()
    return AccessRules(names(allow), blocked, pairing, groups, names(chats), per_minute, phones)


def asks_for_id(turn: Turn) -> bool:
    """Return whether the user asks for their id, or starts a chat with the bot on Telegram."""
    return _COMMAND.match(turn.text) is not None


def digest(name: str) -> str:
    """Return a digest of an id for keys and logs: 20 hex digits."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:20]


def role_names(users: Iterable[tuple[str, str]], *, phones: bool) -> dict[str, str]:
    """Return roles by user id; for phone numbers both with and without `whatsapp:`."""
    roles = dict(users)
    if phones:
        bare = {name.removeprefix(_WHATSAPP): role for name, role in roles.items()}
        roles = {**{f"{_WHATSAPP}{name}": role for name, role in bare.items()}, **bare, **roles}
    return roles
