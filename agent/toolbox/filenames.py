"""Filenames: a name for a file that every platform and every disk takes."""

from __future__ import annotations

import re

#: Characters of the longest name, without its ending.
MAX_STEM_CHARS = 60


def filename(words: str, ending: str) -> str:
    """The words as a file's name: letters of any script, digits and dashes, with this ending and no other."""
    stem = re.sub(rf"\.{ending}$", "", words.strip(), flags=re.IGNORECASE)
    tidy = "-".join(re.findall(r"\w+", stem))[:MAX_STEM_CHARS].strip("-_")
    return f"{tidy or 'file'}.{ending}"
