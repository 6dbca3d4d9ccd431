"""Optional libraries: whether one is installed, and the command that installs an extra wherever Sayso comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

#: A requirement of an extra, as a package's metadata lists it.
_OF_AN_EXTRA = re.compile(r"(?P<requirement>[^;]+);.*\bextra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")
#: A requirement that is another extra of Sayso itself.
_OWN_EXTRA = re.compile(r"sayso\[(?P<extra>[\w-]+)\]")


def is_installed(module: str) -> bool:
    """Return whether a module can be imported. Imports none but its parent package."""
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # the parent package is missing; sys.modules holds None for the module
        return False


def install_command(extra: str) -> str:
    """Return the command that installs the libraries of an extra, such as `pip install 'mcp>=2.3'`.

    It names the libraries themselves, because `sayso[mcp]` cannot be installed from a package index where Sayso came
    from a file or a checkout.
    """
    try:
        listed = requires("sayso") or []
    except PackageNotFoundError:  # run from a checkout that is not installed
        return f"pip install '.[{extra}]'"
    return " ".join(["pip install", *(f"'{each}'" for each in sorted(set(_libraries(extra, listed))))])


def _libraries(extra: str, listed: list[str]) -> Iterator[str]:
    for match in filter(None, map(_OF_AN_EXTRA.fullmatch, listed)):
        if match["extra"] != extra:
            continue
        own = _OWN_EXTRA.fullmatch(match["requirement"].strip())
        if own:
            yield from _libraries(own["extra"], listed)
        else:
            yield match["requirement"].strip()
