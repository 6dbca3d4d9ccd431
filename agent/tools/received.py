"""Received: the files that a person sent, as tools read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field

from sayso.workers.installed import installed

#: Names that are told to whoever asks for one that was not sent.
MAX_NAMES = 20


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A file that the person of this turn sent in this conversation. `ref` is the SHA-256 of its `size` bytes.

    A picture or a voice message comes without a name: its `filename` is made of its type and its content.
    """

    filename: str
    mime_type: str
    size: int
    ref: str
    load: Callable[[str], bytes] = field(repr=False, compare=False)

    def read(self) -> bytes:
        """Its bytes. Raises ValueError for one that is not kept any more: each is, for a week."""
        try:
            return self.load(self.ref)
        except KeyError:
            raise ValueError(f"file {self.filename!r} is not kept any more: it must be sent again") from None


#: Lists the files of whoever speaks, oldest first.
Listing = Callable[[], Sequence[ReceivedFile]]

_listing: ContextVar[Listing | None] = ContextVar("sayso_received", default=None)


def handing(listing: Listing) -> AbstractContextManager[Listing]:
    """For as long as this lasts, these are what was sent: also in tasks and threads that are started from here."""
    return installed(_listing, listing)


def received_files() -> tuple[ReceivedFile, ...]:
    """The files that the person of this turn sent in this conversation, as far as it is remembered, oldest first.

    Nobody else's, in a group either. Outside of a channel's turn there are none.
    """
    listing = _listing.get()
    return () if listing is None else tuple(listing())


def received_file(name: str = "") -> ReceivedFile:
    """The file of this name that the person sent last, in upper or lower case; without a name, the last one of all.

    What runs after a yes finds what was there when it was proposed: a file that comes in between makes the question
    void, as any other message does. Raises ValueError, in words for the model, when there is none.
    """
    files = received_files()
    found = [each for each in files if not name or each.filename.casefold() == name.casefold()]
    if found:
        return found[-1]
    names = [each.filename for each in files[-MAX_NAMES:]]
    there = f"there are {names!r}" if names else "no file was sent in this conversation yet"
    raise ValueError(f"file {name!r} was not sent: {there}" if name else there)
