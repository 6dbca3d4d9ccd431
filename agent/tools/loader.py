"""Loader: finds tools and executor factories in a module, given by dotted name or by file."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from agent.tools.errors import ToolLoadError
from agent.tools.registry import ToolRegistry
from agent.tools.tool import Tool
from pending.proposals import ExecutorFactory


@dataclass(frozen=True, slots=True)
class LoadedTools:
    """What modules of tools held: the tools, and the executor factories by the kind they rebuild."""

    tools: tuple[Tool, ...] = ()
    executor_factories: Mapping[str, ExecutorFactory] = field(default_factory=dict)


def load_tools(source: str, base: Path | None = None) -> LoadedTools:
    """Load one module: a dotted name, or a path ending in .py (relative paths start at `base`).

    Raises ToolLoadError, which names the file and the line that failed.
    """
    module = _import_file(source, base or Path()) if source.endswith(".py") else _import_name(source)
    return _merged(source, [_contents(source, module)])


def load_all(sources: Iterable[str], base: Path | None = None) -> LoadedTools:
    """Load several modules as one. Raises ToolLoadError also when two of them claim the same name."""
    names = list(sources)
    return _merged(", ".join(names), [load_tools(name, base) for name in names])


def _import_file(source: str, base: Path) -> ModuleType:
    path = (base / Path(source).expanduser()).resolve()
    if not path.is_file():
        raise ToolLoadError(f"cannot load tools from {source!r}: there is no file {str(path)!r}")
    # The digest keeps two files called tools.py apart.
    name = f"sayso_tools_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ToolLoadError(f"cannot load tools from {source!r}: Python has no loader for {str(path)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as exc:
        del sys.modules[name]
        raise ToolLoadError(_broken(source, str(path), exc)) from exc
    return module


def _import_name(source: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # an installed command, unlike `python -m`, does not look beside the user's files
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as exc:
        if exc.name and f"{source}.".startswith(f"{exc.name}."):
            raise ToolLoadError(
                f"cannot load tools from {source!r}: no module {exc.name!r} in {here!r} or sys.path"
            ) from exc
        raise ToolLoadError(_broken(source, _origin(source), exc)) from exc
    except Exception as exc:
        raise ToolLoadError(_broken(source, _origin(source), exc)) from exc


def _origin(source: str) -> str:
    return source.replace(".", "/") + ".py"


def _broken(source: str, path: str, exc: Exception) -> str:
    file, line = _place(path, exc)
    return f"cannot load tools from {source!r}: {file}, line {line}: {type(exc).__name__}: {exc}"


def _place(path: str, exc: Exception) -> tuple[str, int | None]:
    """The line to look at: the last one in the module itself, else the deepest that is not Python's importer."""
    if isinstance(exc, SyntaxError):
        return exc.filename or path, exc.lineno
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename.endswith(path)]
    frame = (own or frames)[-1]
    return frame.filename, frame.lineno


def _contents(source: str, module: ModuleType) -> LoadedTools:
    tools: list[Tool] = []
    factories: dict[str, ExecutorFactory] = {}
    for value in vars(module).values():
        tools.extend(_tools_of(value))
        kind = _kind_of(value)
        if kind is not None:
            factories[_unclaimed(source, kind, factories.get(kind, value), value)] = value
    return LoadedTools(tuple(tools), factories)


def _tools_of(value: Any) -> list[Tool]:
    if isinstance(value, Tool):
        return [value]
    return value.all() if isinstance(value, ToolRegistry) else []


def _kind_of(value: Any) -> str | None:
    kind = getattr(value, "__sayso_kind__", None) if callable(value) else None
    return kind if isinstance(kind, str) else None


def _merged(source: str, parts: list[LoadedTools]) -> LoadedTools:
    """All parts as one; the same object met twice (imported, or in a registry too) counts once."""
    tools: dict[str, Tool] = {}
    factories: dict[str, ExecutorFactory] = {}
    for part in parts:
        for tool in part.tools:
            tools[_unclaimed(source, tool.name, tools.get(tool.name, tool), tool)] = tool
        for kind, factory in part.executor_factories.items():
            factories[_unclaimed(source, kind, factories.get(kind, factory), factory)] = factory
    return LoadedTools(tuple(tools.values()), factories)


def _unclaimed(source: str, name: str, holder: object, claimant: object) -> str:
    if holder is not claimant:
        raise ToolLoadError(f"cannot load tools from {source!r}: {name!r} is defined twice, rename one")
    return name
