"""Libraries: what a family of the toolbox is made with, looked for when it is loaded and imported when it is used."""

from __future__ import annotations

import importlib.util

from sayso.agent.extras import install_command
from sayso.agent.tools.errors import ToolLoadError


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
