"""The catalogues: which languages the bot speaks, which one a tag means, and their files."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

#: One TOML file per language, named by its BCP 47 primary subtag.
CATALOGUES = Path(__file__).parent / "catalogues"
#: The languages that have a catalogue, in alphabetical order.
LANGUAGES = tuple(sorted(path.stem for path in CATALOGUES.glob("*.toml")))
#: The language for people whose language has no catalogue.
FALLBACK = "en"
#: How many characters of a language tag are read.
MAX_TAG_CHARS = 40


def shipped(tag: str) -> str:
    """Return the language of a BCP 47 tag, pt for "pt-BR"; "" if it has no catalogue.

    A catalogue names the subtags of scripts in which it is not written: zh is not for zh-Hant.
    """
    primary, *others = re.split("[-_]", tag[:MAX_TAG_CHARS].lower())
    if primary not in LANGUAGES or not set(catalogue(primary)["not_for"]).isdisjoint(others):
        return ""
    return primary


@cache
def catalogue(language: str) -> dict[str, Any]:
    """Return the catalogue of a language in `LANGUAGES`. Raises FileNotFoundError for any other."""
    return tomllib.loads((CATALOGUES / f"{language}.toml").read_text(encoding="utf-8"))
