"""Extras: what installs the libraries of an optional part, in words that work wherever Sayso was installed from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

#: A requirement of an extra, as a package's metadata lists it.
_OF_AN_EXTRA = re.compile(r"(?P<requirement>[^;]+);.*\bextra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")
#: A requirement that is another extra of Sayso itself.
_OWN_EXTRA = re.compile(r"sayso\[(?P<extra>[\w-]+)\]")


def install_command(extra: str) -> str:
    """Return the command that installs the libraries of an extra, such as `pip install 'mcp>=2.3'`.

    It names the libraries themselves: whoever installed Sayso from a file or a checkout cannot install `sayso[mcp]`.
    """
    try:
        listed = requires("sayso") or []
    except PackageNotFoundError:  # run from a checkout that is not installed
        return f"pip install '.[{extra}]'"
    found = dict.fromkeys(_libraries(extra, listed))
    return " ".join(["pip install", *(f"'{each}'" for each in sorted(found))])


def _libraries(extra: str, listed: list[str]) -> Iterator[str]:
    for match in filter(None, map(_OF_AN_EXTRA.fullmatch, listed)):
        if match["extra"] != extra:
            continue
        own = _OWN_EXTRA.fullmatch(match["requirement"].strip())
        if own:
            yield from _libraries(own["extra"], listed)
        else:
            yield match["requirement"].strip()
