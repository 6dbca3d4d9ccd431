"""Combinations: the phrases that the building blocks of instructions make up in each language."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.resources import files
from itertools import product

from sayso.agent.tools.reading import plain, words

_BLOCK = re.compile(r"\{([a-z_|]+)\}")
_UNSPACED = {"ja"}
_GAP = re.compile(r"~(\d)")
#: Characters in a word of a script without spaces, where each character is read as a word.
_WORD_CHARS = 3


def combinations() -> Iterator[tuple[str, str]]:
    """Each combination in each language that has its blocks, with its kind, as `blocks.toml` explains them."""
    content = tomllib.loads(files("sayso.agent.tools").joinpath("blocks.toml").read_text(encoding="utf-8"))
    languages = [(name in _UNSPACED, _choices(blocks)) for name, blocks in content["blocks"].items()]
    for kind, several in content["combinations"].items():
        for combination, (unspaced, blocks) in product(several, languages):
            phrase = _BLOCK.sub(partial(_choice, blocks), _GAP.sub(_wider, combination) if unspaced else combination)
            if "{}" not in phrase:
                yield kind, phrase


def _wider(gap: re.Match[str]) -> str:
    return f"~{int(gap[1]) * _WORD_CHARS}"


def _choice(blocks: Mapping[str, str], names: re.Match[str]) -> str:
    """The words of these blocks; "{}" where the language has none of them."""
    return "|".join(blocks[name] for name in names[1].split("|") if name in blocks) or "{}"


def _choices(blocks: Mapping[str, str]) -> dict[str, str]:
    """The words of each block as they are read, "|" between two."""
    prefixes = ("", *blocks.get("prefixes", "").split())
    return {name: "|".join(_words_of(block, prefixes)) for name, block in blocks.items()}


def _words_of(block: str, prefixes: tuple[str, ...]) -> Iterator[str]:
    for entry in block.split():
        for parts in product(prefixes, product(*(side.split("|") for side in entry.split("+")))):
            whole = words(plain(parts[0] + " ".join(parts[1]).replace("_", " ")))
            yield whole.replace(" ", "_")
