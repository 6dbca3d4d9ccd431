"""Open_toolbox()."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from sayso.agent.extras import install_command
from sayso.agent.tools.errors import ToolLoadError, did_you_mean
from sayso.agent.tools.tool import Tool

#: The families, each a module of this package with a function `tools(folder, hosts)`.
FAMILIES = ("calculator", "charts", "dates", "documents", "fetch", "files", "tables", "text", "units")


#: Those that are nothing without a folder.
NEED_FOLDER = frozenset({"files"})


def open_toolbox(names: Sequence[str], *, folder: Path | None = None, hosts: Sequence[str] = ()) -> list[Tool]:
    """The tools of these families, in their order, each once.

    `folder` is what `files` and `tables` may read; `hosts` the only ones that `fetch` may ask (`api.example.com`,
    `*.example.com`), none for every public one. Raises ToolLoadError for an unknown family, a setting that no family
    here reads, a folder that is missing, and a library that is not installed.
    """
    if isinstance(names, str):
        raise ToolLoadError(f"toolbox {names!r} is a text: write a list, [{names}]")
    families = list(dict.fromkeys(_known(name) for name in names))
    _check_settings(families, folder, hosts)
    return [tool for family in families for tool in _open(family, folder, tuple(hosts))]


def _known(name: str) -> str:
    if name in FAMILIES:
        return name
    raise ToolLoadError(f"unknown toolbox {name!r}; {did_you_mean(name, FAMILIES, '{} ')}known: {list(FAMILIES)!r}")


def _check_settings(families: Sequence[str], folder: Path | None, hosts: Sequence[str]) -> None:
    """A setting that nobody reads is a mistake about what is allowed."""
    if folder is None and (lacking := NEED_FOLDER & set(families)):
        raise ToolLoadError(f"toolbox {sorted(lacking)!r} needs folder: the one folder whose files it may read")
    if folder is not None and not {"files", "tables"} & set(families):
        raise ToolLoadError(
            f"toolbox folder {str(folder)!r} is read by 'files' and 'tables' only; open one or leave it"
        )
    if folder is not None and not folder.is_dir():
        raise ToolLoadError(f"toolbox folder {str(folder)!r} is no folder: create it or name another")
    if isinstance(hosts, str):
        raise ToolLoadError(f"toolbox hosts {hosts!r} is a text: write a list, [{hosts}]")
    if hosts and "fetch" not in families:
        raise ToolLoadError(f"toolbox hosts {list(hosts)!r} are read by 'fetch' only; open it or leave them")


def _open(family: str, folder: Path | None, hosts: tuple[str, ...]) -> list[Tool]:
    opened: list[Tool] = importlib.import_module(f"sayso.agent.toolbox.{family}").tools(folder, hosts)
    return opened


def need(family: str, *modules: str) -> None:
    """Raise ToolLoadError, with the cure, when a library is missing. Imports nothing."""
    missing = [name for name in modules if not _is_installed(name)]
    if missing:
        raise ToolLoadError(f"toolbox {family!r} needs {', '.join(missing)}: {install_command('toolbox')}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module that somebody blocked
        return False


#: Names that are shown, and characters of each.
SHOWN, SHOWN_CHARS = 20, 60


def listed(names: Sequence[str]) -> str:
    """The first of the names, and how many more there are."""
    some = [name[:SHOWN_CHARS] for name in names[:SHOWN]]
    return f"{some!r} and {len(names) - SHOWN} more" if len(names) > SHOWN else f"{some!r}"
