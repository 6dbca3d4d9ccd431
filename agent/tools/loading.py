"""Tools loaded from modules, files and folders, and loaded again when their files change.

A *source* is what is loaded as a whole: a Python module by its dotted name, a .py file, or a folder
of such files. OpenAPI documents are sources too: `sayso.agent.toolsets.openapi_files` loads them,
and ToolReloader watches them as well.
"""

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
    """The contents of one source."""

    tools: tuple[Tool, ...] = ()
    #: What rebuilds the confirmed actions of a kind, by the kind: see `sayso.pending.executors`.
    executor_factories: Mapping[str, ExecutorFactory] = field(default_factory=dict)
    #: A line for each file of a folder that could not be loaded.
    problems: tuple[str, ...] = ()
    #: The files that were read.
    files: tuple[Path, ...] = ()
    #: Why tools of a document cannot be used, by name.
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: Which part of its definition an offered tool lacks, by name.
    missing: Mapping[str, str] = field(default_factory=dict)
    #: What the source itself calls all its tools, also those that were not chosen.
    own_names: tuple[str, ...] = ()


class ToolLoader:
    """Loads tools from modules, files and folders at run time, for programs."""

    @staticmethod
    def from_module(module_path: str) -> list[Tool]:
        """Return the tools of a module by its dotted name.

        Raises ToolLoadError, which names file and line.
        """
        return list(load_tools(module_path).tools)

    @staticmethod
    def from_file(file_path: str | Path) -> list[Tool]:
        """Return the tools of one .py file, read anew each time. Raises ToolLoadError."""
        return list(_load_file(str(file_path), Path(file_path)).tools)

    @staticmethod
    def from_directory(
        directory: str | Path, *, recursive: bool = False, exclude: Sequence[str] = ()
    ) -> list[Tool]:
        """Return the tools of all .py files in a folder.

        Files whose name begins with `_` or matches a pattern in `exclude`, such as "test_*", are
        left out. With `recursive` the folders inside are searched too. A broken file is logged, and
        the others are loaded. Raises ToolLoadError if there is no such folder.
        """
        loaded = _load_folder(str(directory), Path(directory), recursive=recursive, exclude=exclude)
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

    Paths start at `base`; None for the working directory. With `again` a module is read anew, as
    files always are. Raises ToolLoadError, which names the file and the line that failed; in a
    folder, the other files are loaded all the same.
    """
    start = base or Path()
    try:
        path = (start / Path(source).expanduser()).resolve()
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError) as exc:
        raise ToolLoadError(
            f"cannot load tools from {quoted(source)}: it is no path ({exc})"
        ) from exc

    # A folder around the bot, such as "..": all Python files in it would run.
    is_around_base = is_folder and path in start.resolve().parents
    if not source.strip() or is_around_base:
        raise ToolLoadError(
            f"cannot load tools from {source!r}: give the tools a file or a folder of their own"
        )
    if source.endswith(".py"):
        return _load_file(source, path)
    if all(part.isidentifier() for part in source.split(".")):
        return _contents(source, _import_module(source, again=again))
    if not is_folder:
        raise ToolLoadError(
            f"cannot load tools from {source!r}: no module is called so, and there is no folder "
            f"{str(path)!r}; give a dotted name, a file ending in .py or a folder"
        )
    return _load_folder(source, path)


def _load_folder(
    source: str, folder: Path, *, recursive: bool = False, exclude: Sequence[str] = ()
) -> LoadedTools:
    """Load the .py files of a folder. A file that cannot be loaded is one of the `problems`."""
    if not folder.is_dir():
        raise ToolLoadError(
            f"cannot load tools from {source!r}: there is no folder {str(folder)!r}"
        )
    tools: dict[str, Tool] = {}
    factories: dict[str, ExecutorFactory] = {}
    files = list[Path]()
    problems = list[str]()

    pattern = "**/*.py" if recursive else "*.py"
    for path in sorted(folder.glob(pattern)):
        is_excluded = any(fnmatch.fnmatch(path.name, each) for each in exclude)
        if path.name.startswith("_") or is_excluded:
            continue

        try:
            loaded = _load_file(str(path), path)
            # Of a file with a name that is taken, nothing is added.
            tools_so_far = dict(tools)
            factories_so_far = dict(factories)
            for tool in loaded.tools:  # the same tool may be imported by several files
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
        tools=tuple(tools.values()),
        executor_factories=factories,
        problems=tuple(problems),
        files=tuple(dict.fromkeys(files)),
    )


def _load_file(source: str, path: Path) -> LoadedTools:
    """Load the tools of a .py file. `source` names it in errors. Raises ToolLoadError."""
    path = path.resolve()
    if not path.is_file():
        raise ToolLoadError(f"cannot load tools from {source!r}: there is no file {str(path)!r}")
    # The digest keeps two files called tools.py apart.
    digest = hashlib.sha256(str(path).encode()).hexdigest()
    module_name = f"sayso_tools_{path.stem}_{digest[:8]}"
    return _contents(source, _execute_file(source, module_name, path))


def _execute_file(source: str, name: str, path: Path) -> ModuleType:
    """Execute a file as a new module of this name, and return the module.

    Raises ToolLoadError; then an old module of this name stays in `sys.modules`.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise ToolLoadError(
            f"cannot load tools from {source!r}: Python has no loader for {str(path)!r}"
        )
    module = importlib.util.module_from_spec(spec)
    old_module = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and type hints look their module up by name
    try:
        # Python's loader would read bytecode if it is as old as the file, by the second, and a file
        # may change twice within a second.
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102  # the operator's own file, as an import would run it
    except BaseException as exc:
        del sys.modules[name]
        if old_module is not None:
            sys.modules[name] = old_module
        if not isinstance(exc, _IMPORT_FAILURES):
            raise
        raise ToolLoadError(_failure_text(source, str(path), exc)) from exc
    return module


def _import_module(source: str, *, again: bool = False) -> ModuleType:
    """Import a module by its dotted name, `again` to execute it anew. Raises ToolLoadError."""
    here = str(Path.cwd())
    if here not in sys.path:
        # An installed command, unlike `python -m`, does not look for modules in the user's folder.
        sys.path.append(here)
    known = sys.modules.get(source)
    if again and known is not None and getattr(known, "__file__", None):
        return _execute_file(source, source, Path(str(known.__file__)))
    try:
        return importlib.import_module(source)
    except _IMPORT_FAILURES as exc:
        missing = exc.name if isinstance(exc, ModuleNotFoundError) else None
        # The module itself or a package around it is missing, and not one that it imports.
        if missing and f"{source}.".startswith(f"{missing}."):
            raise ToolLoadError(
                f"cannot load tools from {source!r}: no module {missing!r} in {here!r} or sys.path"
            ) from exc
        path = source.replace(".", "/") + ".py"
        raise ToolLoadError(_failure_text(source, path, exc)) from exc


#: The exceptions of a failed import. SystemExit is one: a module must not end the process.
#: Ctrl-C is not.
_IMPORT_FAILURES = (Exception, SystemExit)


def _failure_text(source: str, path: str, exc: BaseException) -> str:
    """Return the text of the error for a module that raised `exc` while it was imported.

    It names the last line of the module itself that ran; if none of the module ran, the deepest
    line outside Python's importer.
    """
    if isinstance(exc, SyntaxError):
        file = exc.filename or path
        line = exc.lineno
    else:
        all_frames = traceback.extract_tb(exc.__traceback__)
        frames = [frame for frame in all_frames if "importlib" not in frame.filename]
        frames_of_module = [frame for frame in frames if frame.filename.endswith(path)]
        last_frame = (frames_of_module or frames)[-1]
        file = last_frame.filename
        line = last_frame.lineno
    place = f"{file}, line {line}" if line else file
    what = f"{type(exc).__name__}: {error_text(exc)}"
    if isinstance(exc, SystemExit):
        what = "ends the program when imported"
    return f"cannot load tools from {source!r}: {place}: {what}"


def _contents(source: str, module: ModuleType) -> LoadedTools:
    """Return the tools and executor factories among the attributes of a module.

    Raises ToolLoadError if two have the same name.
    """
    tools: dict[str, Tool] = {}
    factories: dict[str, ExecutorFactory] = {}
    for value in vars(module).values():
        # `type(value)`, since reading an attribute of a proxy, such as Flask's `request`, raises
        # outside of a request.
        members = [value]
        if issubclass(type(value), ToolRegistry):
            members = value.all()
        for member in members:
            if issubclass(type(member), Tool):
                claim(tools, member.name, member, source)

        # The decorator for executor factories marks them with this attribute.
        if callable(value):
            kind = inspect.getattr_static(value, "__sayso_kind__", None)
            if isinstance(kind, str):
                claim(factories, kind, value, source)
    file = getattr(module, "__file__", None)
    files = (Path(file),) if file else ()
    return LoadedTools(tools=tuple(tools.values()), executor_factories=factories, files=files)


def claim(claims: dict[str, T], name: str, claimant: T, source: str) -> None:
    """Claim a name for an object in `claims`. Raises ToolLoadError if another object has it."""
    if claims.setdefault(name, claimant) is not claimant:
        raise ToolLoadError(
            f"cannot load tools from {source!r}: {name!r} is defined twice, rename one"
        )


#: Interval between two checks of the files, in seconds.
CHECK_SECONDS = 1.0
#: Replaces the tools of a source: receives its id and its present contents. It may raise ToolError,
#: and then must not have changed anything.
Replace = Callable[[str, LoadedTools], None]
#: The state of a file: its modification time in nanoseconds, and its size in bytes.
FileState = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WatchedSource:
    """A module, file or folder whose files are watched."""

    #: The dotted name or the path, as the bot's settings name it.
    name: str
    #: The files that it was read from.
    files: tuple[Path, ...]
    #: Reads it anew. Raises ToolError.
    load: Callable[[], LoadedTools]


class ToolReloader:
    """Loads sources again when their files change.

    An edit that cannot be loaded is logged, and the tools that were loaded before stay until an
    edit can be. A change to another module that the tools import needs a restart.
    """

    def __init__(self, watched: Mapping[str, WatchedSource], base: Path, replace: Replace) -> None:
        """Remember the present state of the files.

        `watched` has the sources by the ids that `replace` receives. Their paths start at `base`.
        """
        self._watched = watched
        self._base = base
        self._replace = replace
        self._states = {source: self._state(source, each.files) for source, each in watched.items()}

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
            for source, state in self._states.items()
            if self._state(source, tuple(state)) != state
        ]

        replaced = []
        for source in changed:
            name = self._watched[source].name
            known_files = tuple(self._states[source])
            try:
                loaded = self._watched[source].load()
                for problem in loaded.problems:
                    log.error("tools.broken", extra={"problem": problem})
                self._replace(source, loaded)
            except (ToolError, SystemExit) as exc:
                cure = "edit it again; the tools loaded before stay"
                log.error("tools.broken", extra={"problem": str(exc), "cure": cure})
                # The next check waits for the next edit.
                self._states[source] = self._state(source, known_files)
                continue
            self._states[source] = self._state(source, loaded.files)
            log.warning("tools.reloaded", extra={"source": name, "tools": len(loaded.tools)})
            replaced.append(name)
        return replaced

    def _state(self, source: str, files: Sequence[Path]) -> dict[Path, FileState | None]:
        """Return the states of these files of a source, and of new files in its folder.

        None for a file that is missing.
        """
        # An invalid path is passed over here: `load` reports it.
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
