"""Ready-made tools for bots.

The tools are in families. Each family is a module of this package, such as `calculator`, and
`open_toolbox` returns the tools of some families. The docstring of a tool is its description for
the model. A tool raises ValueError with a text that tells the model what to change.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sayso.agent.extras import import_libraries, install_command, is_installed
from sayso.agent.tools.errors import ToolLoadError
from sayso.agent.tools.tool import Tool
from sayso.infra.spelling import did_you_mean

#: The families, each a module of this package. A family with a setting has a function
#: `tools(folder, hosts)`, which returns its tools; of others, all tools of the module are meant.
FAMILIES = ("calculator", "charts", "dates", "documents", "files", "tables", "text", "units", "web")
#: Family -> the modules that it needs of the libraries in the extra `toolbox`. A library with
#: compiled parts is named by such a part, since a damaged library fails there.
LIBRARIES: Mapping[str, Sequence[str]] = {
    "charts": ("matplotlib.ft2font",),
    "dates": ("dateutil.relativedelta", "tzdata"),
    "documents": ("reportlab.platypus", "matplotlib.ft2font"),
    "tables": ("jmespath",),
    "units": ("pint",),
    "web": ("lxml.etree",),
}
#: How many names an error message lists.
_LISTED_NAMES = 20
#: How many characters of each name an error message shows.
_LISTED_CHARS = 60


def open_toolbox(
    names: Sequence[str], *, folder: Path | None = None, hosts: Sequence[str] = ()
) -> list[Tool]:
    """Return the tools of these families, in order, each tool once.

    `folder` is the only folder that `files` and `tables` may read, None for none. `hosts` are the
    only hosts that `web` may call (`api.example.com`, `*.example.com`). If empty, every public host
    is allowed.

    Raise ToolLoadError for an unknown family, a setting that no opened family reads, a missing
    folder, or a library that is not installed.
    """
    if isinstance(names, str):
        raise ToolLoadError(f"toolbox {names!r} is a text: write a list, [{names}]")
    families = list(dict.fromkeys(names))
    for name in families:
        if name not in FAMILIES:
            hint = did_you_mean(name, FAMILIES, "{} ")
            raise ToolLoadError(f"unknown toolbox {name!r}; {hint}known: {list(FAMILIES)!r}")
    _check_settings(families, folder, hosts)

    tools: list[Tool] = []
    for family in families:
        module = importlib.import_module(f"sayso.agent.toolbox.{family}")
        if hasattr(module, "tools"):
            tools += module.tools(folder, tuple(hosts))
        else:
            tools += [each for each in vars(module).values() if isinstance(each, Tool)]
    return tools


def _check_settings(families: Sequence[str], folder: Path | None, hosts: Sequence[str]) -> None:
    """Raise ToolLoadError for a missing setting, and for one that no opened family reads.

    An operator who writes a setting that is not read is mistaken about what the tools may do.
    """
    if folder is None and "files" in families:
        raise ToolLoadError("toolbox 'files' needs folder: the one folder whose files it may read")
    if folder is not None and not {"files", "tables"} & set(families):
        raise ToolLoadError(
            f"toolbox folder {str(folder)!r} is read by 'files' and 'tables' only: open one of them, or remove folder"
        )
    if folder is not None and not folder.is_dir():
        raise ToolLoadError(
            f"toolbox folder {str(folder)!r} does not exist: create it or name another"
        )
    if isinstance(hosts, str):
        raise ToolLoadError(f"toolbox hosts {hosts!r} is a text: write a list, [{hosts}]")
    if hosts and "web" not in families:
        raise ToolLoadError(
            f"toolbox hosts {list(hosts)!r} are read by 'web' only: open it, or remove hosts"
        )


def need(family: str) -> None:
    """Raise ToolLoadError, with the install command, if a library of a family is missing.

    No library is imported.
    """
    libraries = [module.partition(".")[0] for module in LIBRARIES.get(family, ())]
    missing = [library for library in libraries if not is_installed(library)]
    if missing:
        names = ", ".join(missing)
        cure = install_command("toolbox")
        raise ToolLoadError(
            f"toolbox {family!r} needs {names}, which the extra 'toolbox' brings: {cure}"
        )


def try_libraries(families: Iterable[str]) -> None:
    """Import the libraries of these families. Raise LibraryError if one is missing or damaged."""
    for family in families:
        import_libraries("toolbox", *LIBRARIES.get(family, ()))


def plural(count: int, unit: str) -> str:
    """Return a number with its unit, such as `1 day` and `2 days`."""
    if count == 1:
        return f"1 {unit}"
    return f"{count} {unit}s"


def list_names(names: Sequence[str]) -> str:
    """Return the first names for a message, and how many follow."""
    first_names = [name[:_LISTED_CHARS] for name in names[:_LISTED_NAMES]]
    if len(names) <= _LISTED_NAMES:
        return repr(first_names)
    return f"{first_names!r} and {len(names) - _LISTED_NAMES} more"
