"""Entry: one line of the audit log, chained to the one before it by its exact text."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from sayso.pending.action import State

#: What an entry records: the state an action moved to.
Event = State
#: The head before the first entry.
NO_HEAD = "0" * 40

#: The one spelling that the scripts write. Any other could mean one thing to them and another to us.
_SPELLING = re.compile(
    r'\{"n":(?P<n>[1-9][0-9]{0,14}),"at":(?P<at>[0-9]{1,15}),"pid":"(?P<pid>[A-Za-z0-9_-]+)",'
    r'"event":"(?P<event>[a-z]+)","by":(?P<by>"(?:[^"\\\x00-\x1f]|\\.)*"),'
    r'"body":"(?P<body>[^"\\\x00-\x1f]*)","prev":"(?P<prev>[0-9a-f]{40})"\}'
)


@dataclass(frozen=True, slots=True)
class Entry:
    """What one text says: the move, who decided it, the MAC of the record, and the head of the entry before."""

    n: int
    at: int
    pid: str
    event: str
    by: str
    body: str
    prev: str

    @classmethod
    def parse(cls, text: str) -> Entry | None:
        """The entry in a text, None when it is none that our scripts wrote."""
        found = _SPELLING.fullmatch(text)
        if not found:
            return None
        try:
            by = str(json.loads(found["by"]))
        except ValueError:
            return None
        return cls(int(found["n"]), int(found["at"]), found["pid"], found["event"], by, found["body"], found["prev"])


@dataclass(frozen=True, slots=True)
class Kept:
    """A text of the log as it was found, and the number it was found under.

    `sig` is None while it waits in Redis, where nobody signed it yet; `head` is what its keeper noted, if it does.
    """

    shard: int
    n: int
    text: str
    sig: str | None = None
    head: str | None = None


@dataclass(frozen=True, slots=True)
class Tip:
    """The last entry of a shard as Redis remembers it; number 0 when it knows none."""

    n: int
    head: str


def head_of(text: str) -> str:
    """What the next entry names: Redis's scripts have this hash and no other."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
