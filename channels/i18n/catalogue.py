"""The catalogues: TOML files with the texts of the bot, one for each language that it speaks.

A language tag (BCP 47) names a language and may add a script or a region in further subtags:
"pt-BR", "zh-Hant". A catalogue is named by the first, primary subtag.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

#: The folder of the catalogues.
CATALOGUES = Path(__file__).parent / "catalogues"
#: The languages that have a catalogue, in alphabetical order.
LANGUAGES = tuple(sorted(path.stem for path in CATALOGUES.glob("*.toml")))
#: The language for people whose language has no catalogue.
FALLBACK = "en"
#: How many characters of a language tag are read.
MAX_TAG_CHARS = 40


def shipped(tag: str) -> str:
    """Return the language of a tag that has a catalogue, pt for "pt-BR"; "" if none has.

    A catalogue names the subtags of scripts in which it is not written: zh is not for zh-Hant.
    """
    primary, *others = re.split("[-_]", tag[:MAX_TAG_CHARS].lower())
    if primary not in LANGUAGES:
        return ""
    other_scripts = set(catalogue(primary)["not_for"])
    if not other_scripts.isdisjoint(others):
        return ""
    return primary


@cache
def catalogue(language: str) -> dict[str, Any]:
    """Return the catalogue of a language in `LANGUAGES`. Raises FileNotFoundError for any other."""
    return tomllib.loads((CATALOGUES / f"{language}.toml").read_text(encoding="utf-8"))
