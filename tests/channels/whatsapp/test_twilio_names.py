"""Names: who writes from an address is noted once, under a name that holds no phone number."""

from __future__ import annotations

import asyncio

from sayso.channels.types import Conversation, Turn
from sayso.channels.whatsapp.client import SenderNames
from sayso.workers.alerts import MemorySharedCache

ANA = Conversation("wa", "whatsapp:+4915100000042")


class Counted(MemorySharedCache):
    """A notebook that keeps what was put."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[tuple[str, str]] = []

    def put(self, key: str, value: str, *, seconds: int = 0) -> None:
        """Keep it."""
        self.puts.append((key, value))
        super().put(key, value)


def test_person_is_noted_once_and_again_when_the_id_changes():
    """platforms.md 1.1: the business-scoped id changes with the phone; no number is in the note."""
    book = Counted()
    names = SenderNames(book)
    for user in ("whatsapp:DE.1", "whatsapp:DE.1", "whatsapp:DE.2"):
        asyncio.run(names.note(Turn("e", ANA, user, "hi")))
    assert book.puts == [(f"person:{ANA.id}", "whatsapp:DE.1"), (f"person:{ANA.id}", "whatsapp:DE.2")]
    assert SenderNames(book).of(ANA) == "whatsapp:DE.2"


def test_who_is_known_by_the_address_needs_no_note():
    """Nothing is kept of them."""
    book = Counted()
    asyncio.run(SenderNames(book).note(Turn("e", ANA, ANA.chat, "hi")))
    assert (book.puts, SenderNames(book).of(ANA)) == ([], "")
