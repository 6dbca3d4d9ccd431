"""Glyphs: which characters the font can draw; what it cannot is told instead of being drawn as a box."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable
from pathlib import Path

#: Characters that a message names.
NAMED = 10

#: What colours emoji; what joins them is a control character. No loss where it is left out.
_SELECTORS = frozenset("\ufe0e\ufe0f")


def font_file(style: str = "") -> Path:
    """DejaVu Sans (`style` is "", "Bold", "Oblique" or "BoldOblique"), or "Mono", as it comes with matplotlib."""
    import matplotlib

    name = "DejaVuSansMono" if style == "Mono" else f"DejaVuSans-{style}" if style else "DejaVuSans"
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"


@functools.lru_cache(maxsize=4)
def drawable(style: str = "") -> frozenset[int]:
    """The code points that the font has."""
    from matplotlib.font_manager import get_font

    return frozenset(get_font(str(font_file(style))).get_charmap())


def visible(text: str) -> str:
    """The text without control characters and halves of characters, which no font has; lines stay lines."""
    return "".join(char for char in text if char in "\n\t" or not _is_unseen(char))


def _is_unseen(char: str) -> bool:
    return char in _SELECTORS or unicodedata.category(char)[0] == "C"


def undrawable(text: str, style: str = "") -> list[str]:
    """The characters that the font does not have, each once, in their order."""
    known = drawable(style)
    return [char for char in dict.fromkeys(visible(text)) if ord(char) not in known and not char.isspace()]


def refuse_undrawable(what: str, texts: Iterable[str]) -> None:
    """Raise ValueError when any of the texts cannot be drawn."""
    missing = undrawable("".join(texts))
    if missing:
        raise ValueError(
            f"the {what} was not made: its font cannot draw {named(missing)}. It has Latin, Greek, Cyrillic, Arabic "
            "and Hebrew letters; leave out emoji, and write other scripts in Latin letters"
        )


def named(characters: Iterable[str]) -> str:
    """The characters in a message: the first of them, each with its name where it has one."""
    every = list(characters)
    shown = ", ".join(f"{char!r} ({unicodedata.name(char, 'no name').lower()})" for char in every[:NAMED])
    return f"{shown} and {len(every) - NAMED} more" if len(every) > NAMED else shown
