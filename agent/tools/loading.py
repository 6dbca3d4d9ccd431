"""Tools loaded from modules, files and folders, and loaded again when their files change."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import importlib
import importlib.util
import inspect
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from sayso.agent.tools.arguments import quoted
from sayso.agent.tools.errors import ToolError, ToolLoadError
from sayso.agent.tools.registry import ToolRegistry
from sayso.agent.tools.tool import Tool
from sayso.pending.error_texts import error_text
from sayso.pending.executors import ExecutorFactory

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedTools:
    """The contents of modules: their tools, and their executor factories by kind of action.

    `problems` has a line for each file of a folder that could not be loaded; `files` are those that
    were read. `left_out` has the tools of a document that cannot be used, with the reasons.
    `missing` has the offered tools that lack a part of their definition, and which part.
    `own_names` is what the source itself calls all its tools, those that were not chosen too.
    """

    tools: tuple[Tool, ...] = ()
    executor_factories: Mapping[str, ExecutorFactory] = field(default_factory=dict)
    #: `problems` has a line for each file of a folder that could not be loaded; `files` are those
    #: that were read.
    problems: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    #: `left_out` has the tools of a document that cannot be used, with the reasons.
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: `missing` has the offered tools that lack a part of their definition, and which part.
    missing: Mapping[str, str] = field(default_factory=dict)
    #: What the source itself calls all its tools, those that were not chosen too.
    own_names: tuple[str, ...] = ()


class ToolLoader:
    """Loads tools from modules, files and folders at run time."""

    @staticmethod
    def from_module(module_path: str) -> list[Tool]:
        """Return the tools of a module by its dotted name.

        Raises ToolLoadError, which names file and line.
        """
        return list(load_tools(module_path).tools)

    @staticmethod
    def from_file(file_path: str | Path) -> list[Tool]:
        """Return the tools of one .py file, read anew each time. Raises ToolLoadError."""
        return list(_file(str(file_path), Path(file_path)).tools)

    @staticmethod
    def from_directory(
        directory: str | Path, *, recursive: bool = False, exclude: Sequence[str] = ()
    ) -> list[Tool]:
        """Return the tools of all .py files in a folder.

        Names with a leading `_` and patterns of `exclude` are left out.

        A broken file is logged, and the others are loaded.
        Raises ToolLoadError if there is no such folder.
        """
        loaded = _folder(str(directory), Path(directory), recursive=recursive, exclude=exclude)
        for problem in loaded.problems:
            log.error("tools.broken", extra={"problem": problem})
        return list(loaded.tools)

    @staticmethod
    def reload_module(module_path: str) -> list[Tool]:
        """Load a module anew and return its tools.

        Raises ToolLoadError, and then keeps the old module.
        """
        return list(load_tools(module_path, again=True).tools)

    @staticmethod
    def reload_file(file_path: str | Path) -> list[Tool]:
        """Return `from_file`, which always reads anew."""
        return ToolLoader.from_file(file_path)


def load_tools(source: str, base: Path | None = None, *, again: bool = False) -> LoadedTools:
    """Load one source: a module's dotted name, a file ending in .py, or a folder of them.

    Paths start at `base`.

    With `again` a module is read anew, as files always are. Raises ToolLoadError, which names the
    file and the line that failed; in a folder, the other files are loaded all the same.
    """
    start = base or Path()
    try:
        path = (start / Path(source).expanduser()).resolve()
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError) as exc:
        raise ToolLoadError(
            f"cannot load tools from {quoted(source)}: it is no path ({exc})"
        ) from exc
    # All Python files in it would run.
    if not source.strip() or (is_folder and path in start.resolve().parents):
        raise ToolLoadError(
            f"cannot load tools from {source!r}: give the tools a file or a folder of their own"
        )
    if source.endswith(".py"):
        return _file(source, path)
    if all(part.isidentifier() for part in source.split(".")):
        return _contents(source, _import_name(source, again=again))
    if not is_folder:
        raise ToolLoadError(
            f"cannot load tools from {source!r}: no module is called so, and there is no folder {str(path)!r}; "
            "give a dotted name, a file ending in .py or a folder"
        )
    return _folder(source, path)


def _folder(
    source: str, folder: Path, *, recursive: bool = False, exclude: Sequence[str] = ()
) -> LoadedTools:
    if not folder.is_dir():
        raise ToolLoadError(
            f"cannot load tools from {source!r}: there is no folder {str(folder)!r}"
        )
    tools: dict[str, Tool] = {}
    factories: dict[str, ExecutorFactory] = {}
    files = list[Path]()
    problems = list[str]()
    for path in sorted(folder.rglob("*.py") if recursive else folder.glob("*.py")):
        if path.name.startswith("_") or any(
            fnmatch.fnmatch(path.name, pattern) for pattern in exclude
        ):
            continue
        try:
            loaded = _file(str(path), path)
            tools_so_far = dict(tools)
            factories_so_far = dict(factories)
            for tool in loaded.tools:  # one that other files import counts once
                claim(tools_so_far, tool.name, tool, source)
            for kind, factory in loaded.executor_factories.items():
                claim(factories_so_far, kind, factory, source)
        except ToolLoadError as exc:
            problems.append(str(exc))
        else:
            tools = tools_so_far
            factories = factories_so_far
            files += loaded.files
    return LoadedTools(
        tuple(tools.values()), factories, tuple(problems), tuple(dict.fromkeys(files))
    )


def _file(source: str, path: Path) -> LoadedTools:
    path = path.resolve()
    if not path.is_file():
        raise ToolLoadError(f"cannot load tools from {source!r}: there is no file {str(path)!r}")
    # The digest keeps two files called tools.py apart.
    name = f"sayso_tools_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    return _contents(source, _executed(source, name, path))


def _executed(source: str, name: str, path: Path) -> ModuleType:
    """Return a module made anew from its file; if that fails, the old module stays in sys.modules."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise ToolLoadError(
            f"cannot load tools from {source!r}: Python has no loader for {str(path)!r}"
        )
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and type hints look their module up by name
    try:
        # Python's loader reads bytecode, which is matched by the second,
        # and a file may change within one.
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102  # the operator's own file, as an import would run it
    except BaseException as exc:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        if not isinstance(exc, _FAILURES):
            raise
        raise ToolLoadError(_broken(source, str(path), exc)) from exc
    return module


def _import_name(source: str, *, again: bool = False) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        # An installed command, unlike `python -m`, does not look beside the user's files.
        sys.path.append(here)
    known = sys.modules.get(source)
    if again and known is not None and getattr(known, "__file__", None):
        return _executed(source, source, Path(str(known.__file__)))
    try:
        return importlib.import_module(source)
    except _FAILURES as exc:
        missing = exc.name if isinstance(exc, ModuleNotFoundError) else None
        if missing and f"{source}.".startswith(f"{missing}."):
            raise ToolLoadError(
                f"cannot load tools from {source!r}: no module {missing!r} in {here!r} or sys.path"
            ) from exc
        raise ToolLoadError(_broken(source, source.replace(".", "/") + ".py", exc)) from exc


#: The exceptions of a failed import. SystemExit is one: a module must not end the process.
#: Ctrl-C is not.
_FAILURES = (Exception, SystemExit)


def _broken(source: str, path: str, exc: BaseException) -> str:
    """Return the error.

    It names the last place in the module itself, else the deepest outside Python's importer.
    """
    if isinstance(exc, SyntaxError):
        file = exc.filename or path
        line = exc.lineno
    else:
        frames = [
            frame
            for frame in traceback.extract_tb(exc.__traceback__)
            if "importlib" not in frame.filename
        ]
        frame = ([frame for frame in frames if frame.filename.endswith(path)] or frames)[-1]
        file = frame.filename
        line = frame.lineno
    place = f"{file}, line {line}" if line else file
    what = f"{type(exc).__name__}: {error_text(exc)}"
    if isinstance(exc, SystemExit):
        what = "ends the program when imported"
    return f"cannot load tools from {source!r}: {place}: {what}"


def _contents(source: str, module: ModuleType) -> LoadedTools:
    tools: dict[str, Tool] = {}
    factories: dict[str, ExecutorFactory] = {}
    for value in vars(module).values():
        # No attribute of a value is read: proxies, such as Flask's `request`,
        # raise outside of a request.
        if issubclass(type(value), ToolRegistry):
            members = value.all()
        else:
            members = [value]
        for tool in members:
            if issubclass(type(tool), Tool):
                claim(tools, tool.name, tool, source)
        if callable(value):
            kind = inspect.getattr_static(value, "__sayso_kind__", None)
        else:
            kind = None
        if isinstance(kind, str):
            claim(factories, kind, value, source)
    file = getattr(module, "__file__", None)
    return LoadedTools(tuple(tools.values()), factories, files=(Path(file),) if file else ())


def claim(claims: dict[str, T], name: str, claimant: T, source: str) -> None:
    """Claim a name for an object. Raises ToolLoadError if another object has it."""
    if claims.setdefault(name, claimant) is not claimant:
        raise ToolLoadError(
            f"cannot load tools from {source!r}: {name!r} is defined twice, rename one"
        )


#: Interval between two checks of the files, in seconds.
CHECK_SECONDS = 1.0
#: Receives the id of a source and its present contents. May raise ToolError,
#: and then must not have changed anything.
Replace = Callable[[str, LoadedTools], None]
#: The state of a file: its modification time in nanoseconds, and its size in bytes.
FileState = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WatchedSource:
    """A module, file or folder to watch.

    It has its name, the files that it was read from, and `load`, which reads it anew.

    `load` raises ToolError.
    """

    name: str
    files: tuple[Path, ...]
    load: Callable[[], LoadedTools]


class ToolReloader:
    """Loads sources again when their files change.

    A changed helper module that they import needs a restart.

    An edit that does not load is logged, and the tools loaded before stay until one does.
    """

    def __init__(self, watched: Mapping[str, WatchedSource], base: Path, replace: Replace) -> None:
        """`watched` is keyed by the ids that `replace` receives; its paths start at `base`."""
        self._watched = watched
        self._base = base
        self._replace = replace
        self._files = {source: self._state(source, each.files) for source, each in watched.items()}

    def start(self) -> None:
        """Check the files every CHECK_SECONDS, in a daemon thread."""

        def check_forever() -> None:
            while True:
                time.sleep(CHECK_SECONDS)
                self.check()

        threading.Thread(target=check_forever, name="reload", daemon=True).start()

    def check(self) -> list[str]:
        """Load the sources that changed since the last check.

        Returns the names of those that were replaced.
        """
        changed = [
            source
            for source, files in self._files.items()
            if self._state(source, tuple(files)) != files
        ]
        replaced = []
        for source in changed:
            name = self._watched[source].name
            before = tuple(self._files[source])
            try:
                loaded = self._watched[source].load()
                for problem in loaded.problems:
                    log.error("tools.broken", extra={"problem": problem})
                self._replace(source, loaded)
            except (ToolError, SystemExit) as exc:
                cure = "edit it again; the tools loaded before stay"
                log.error("tools.broken", extra={"problem": str(exc), "cure": cure})
                self._files[source] = self._state(source, before)
                continue
            self._files[source] = self._state(source, loaded.files)
            log.warning("tools.reloaded", extra={"source": name, "tools": len(loaded.tools)})
            replaced.append(name)
        return replaced

    def _state(self, source: str, files: Sequence[Path]) -> dict[Path, FileState | None]:
        # `load` reports an invalid path.
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            path = (self._base / Path(self._watched[source].name).expanduser()).resolve()
            if path.is_dir():
                files = [*files, *path.glob("*.py")]
            elif path.suffix == ".py":
                files = [*files, path]
        states: dict[Path, FileState | None] = dict.fromkeys(sorted(set(files)))
        for file in states:
            with contextlib.suppress(OSError):
                stat = file.stat()
                states[file] = stat.st_mtime_ns, stat.st_size
        return states
