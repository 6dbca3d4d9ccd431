"""Sender names: the user id of an address is stored once, under a key without a phone number."""

from __future__ import annotations

import asyncio

from sayso.channels.types import Conversation, Turn
from sayso.channels.whatsapp.client import SenderNames
from sayso.testing.stores import MemorySharedCache

ANA = Conversation("wa", "whatsapp:+4915100000042")


class Counted(MemorySharedCache):
    """A cache that records each write."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[tuple[str, str]] = []

    def put(self, key: str, value: str, *, seconds: int = 0) -> None:
        """Record and store the value."""
        self.puts.append((key, value))
        super().put(key, value)


def test_user_id_is_stored_once_and_again_when_it_changes():
    """platforms.md 1.1: the business-scoped id changes with the phone; the entry has no phone number."""
    book = Counted()
    names = SenderNames(book)
    for user in ("whatsapp:DE.1", "whatsapp:DE.1", "whatsapp:DE.2"):
        asyncio.run(names.note(Turn("e", ANA, user, "hi")))
    assert book.puts == [(f"person:{ANA.id}", "whatsapp:DE.1"), (f"person:{ANA.id}", "whatsapp:DE.2")]
    assert SenderNames(book).of(ANA) == "whatsapp:DE.2"


def test_user_known_by_the_address_is_not_stored():
    """The address already is the user id."""
    book = Counted()
    asyncio.run(SenderNames(book).note(Turn("e", ANA, ANA.chat, "hi")))
    assert (book.puts, SenderNames(book).of(ANA)) == ([], "")
