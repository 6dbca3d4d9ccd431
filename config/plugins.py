"""Plugins: what an operator's own Python code brings, by its `module:Class`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from sayso.config.loader import ConfigError
from sayso.config.schema import Path_, Settings

T = TypeVar("T")


def made(settings: Settings, name: str, kind: type[T], at: Path_) -> T:
    """An instance of the class, made without arguments. Raises ConfigError, which says where it stands.

    Modules are found beside the configuration, too.
    """
    try:
        return _instance(name, kind, settings.origin.folder)
    except (Exception, SystemExit) as exc:
        where, dotted = settings.origin.at(*at), ".".join(map(str, at))
        raise ConfigError([f"{where}{dotted}: cannot make {name!r}: {type(exc).__name__}: {exc}"]) from exc


def _instance(name: str, kind: type[T], folder: Path) -> T:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError("write it as module:Class")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    made: Any = getattr(import_module(module), attribute)()
    if not isinstance(made, kind):
        raise TypeError(f"it is no {kind.__name__}")
    return made
