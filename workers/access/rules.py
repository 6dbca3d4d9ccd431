"""Admission: who may talk to the bot on a channel, decided before anything of a turn is kept."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from sayso.channels.types import Turn

#: What an operator decided about somebody; "" for nothing.
Standing = Literal["approved", "blocked", ""]
#: When a message of a group is for the bot: where it is addressed or in a conversation already, always, or never.
Groups = Literal["mention", "always", "never"]

_WHATSAPP = "whatsapp:"
_COMMAND = re.compile(r"\s*/(?:whoami|start)(?:@\w+)?(?:\s|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The turn is for the bot, and to be taken as this one."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class Ignored:
    """Nothing is kept and nothing is said; `reason` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stranger:
    """Nothing is kept; who wrote it may hear that they are on no list."""


AccessDecision = Admitted | Ignored | Stranger


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Who may talk on one channel, where and how often.

    `allow`: only these people, None for everybody, unless `pairing` asks all for a code. `block`: never. `chats`: only
    there, None for everywhere. `per_minute`: turns of one person, None for no limit. Ids are `spelled` as `ids` spells
    them: make rules with `rules`.
    """

    allow: frozenset[str] | None = None
    block: frozenset[str] = frozenset()
    pairing: bool = False
    groups: Groups = "mention"
    chats: frozenset[str] | None = None
    per_minute: int | None = None
    phones: bool = False

    def spelled(self, name: str) -> str:
        """An id as it is compared: as it is, but a phone's in lower case and without `whatsapp:`."""
        return name.strip().casefold().removeprefix(_WHATSAPP) if self.phones else name

    def ids(self, turn: Turn) -> tuple[str, ...]:
        """The ids of whoever wrote it, their own first; on WhatsApp the address it came from is one."""
        address = (turn.conversation.chat,) if self.phones else ()
        found = map(self.spelled, (turn.user_id, *turn.aliases, *address))
        return tuple(dict.fromkeys(name for name in found if name))

    def ignores(self, turn: Turn) -> str:
        """Why a turn is nothing to the bot whoever else decides, "" when it may be."""
        if not self.block.isdisjoint(self.ids(turn)):
            return "blocked"
        if self.chats is not None and self.spelled(turn.conversation.chat) not in self.chats:
            return "chat"
        if self.groups == "never" and (turn.in_group or not turn.addressed):
            return "group"
        return ""

    def judge(self, turn: Turn, standing: Standing = "") -> AccessDecision:
        """What becomes of a turn, of somebody about whom an operator decided this. Blocked beats everything."""
        reason = "blocked" if standing == "blocked" else self.ignores(turn)
        if reason:
            return Ignored(reason)
        if not self._knows(turn, standing):
            return Stranger() if self._is_for_the_bot(turn) else Ignored("unknown_sender")
        return Admitted(replace(turn, addressed=True) if self.groups == "always" else turn)

    def _knows(self, turn: Turn, standing: Standing) -> bool:
        if self.allow is None and not self.pairing:
            return True
        return standing == "approved" or not (self.allow or frozenset()).isdisjoint(self.ids(turn))

    def _is_for_the_bot(self, turn: Turn) -> bool:
        """What others say to each other, and what they edit, is answered by nobody."""
        return turn.addressed and turn.kind == "message" and bool(self.ids(turn))


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
    """The rules of people and chats as somebody writes them; `phones` says that numbers name them, as on WhatsApp."""
    spelled = AccessRules(phones=phones).spelled

    def names(given: Iterable[str] | None) -> frozenset[str] | None:
        return None if given is None else frozenset(map(spelled, given))

    blocked = names(block) or frozenset()
    return AccessRules(names(allow), blocked, pairing, groups, names(chats), per_minute, phones)


def asks_who(turn: Turn) -> bool:
    """Whether somebody asks for their id, or begins to talk to the bot as Telegram has it."""
    return _COMMAND.match(turn.text) is not None


def digest(name: str) -> str:
    """An id for keys and logs: 20 hex digits."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:20]


def role_names(users: Iterable[tuple[str, str]], *, phones: bool) -> dict[str, str]:
    """Roles by user id; where people are named by phone numbers, with and without `whatsapp:`."""
    found = dict(users)
    if phones:
        bare = {name.removeprefix(_WHATSAPP): role for name, role in found.items()}
        found = {**{f"{_WHATSAPP}{name}": role for name, role in bare.items()}, **bare, **found}
    return found
