"""Words: what workers say to people by themselves, in the language of whoever hears it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sayso.channels.types import Turn


class Words(Protocol):
    """One language's words: `sayso.pending.texts.Texts`, as far as workers speak."""

    def busy(self) -> str:
        """Too many turns of this conversation wait."""

    def too_fast(self) -> str:
        """This person writes more per minute than is read."""

    @property
    def language(self) -> str:
        """Which one it is: a BCP 47 primary subtag."""

    def stranger(self) -> str:
        """Only people on a list may talk, and this one is on none."""

    def pairing_code(self, code: str, seconds: float) -> str:
        """With this code an operator lets them in, for so long."""

    def your_id(self, name: str) -> str:
        """Whoever asks has this id."""

    def crowded(self) -> str:
        """Too many conversations wait for another one to begin."""

    def too_long(self) -> str:
        """The turn was ended for taking too long."""

    def still_working(self) -> str:
        """The turn takes longer."""

    def broken(self) -> str:
        """The turn broke."""

    def interrupted_before(self) -> str:
        """Each worker that tried the turn died at it."""

    def stopped(self) -> str:
        """What ran, and what waited, was let go at the person's word."""

    def nothing_to_stop(self) -> str:
        """There was nothing to let go."""

    def nothing_of_yours(self) -> str:
        """There was nothing of this person's to let go, in a group: what others asked for goes on."""

    def channel_gone(self) -> str:
        """The channel is not configured any more."""

    def repeated(self, text: str) -> str:
        """A text that may have arrived before."""

    def maybe_missing(self, name: str) -> str:
        """What is said in place of a file that may have arrived before."""


#: The words for whoever wrote a turn.
Voice = Callable[[Turn], Words]
#: The words of a language, by its BCP 47 tag; "" speaks the default.
Speak = Callable[[str], Words]
