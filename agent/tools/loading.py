"""Tools loaded from modules, files and folders, and loaded again when their files change.

A *source* is what is loaded as a whole: a Python module by its dotted name, a .py file, or a folder
of such files.
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
    """The contents of one source.

    This module leaves the last three fields empty. `config.wiring.tools` fills them for the sources
    that the YAML describes in a section, such as OpenAPI documents.
    """

    tools: tuple[Tool, ...] = ()
    #: What rebuilds the confirmed actions of a kind, by the kind: see `sayso.pending.executors`.
    executor_factories: Mapping[str, ExecutorFactory] = field(default_factory=dict)
    #: A line for each file of a folder that could not be loaded.
    problems: tuple[str, ...] = ()
    #: The files that were read.
    files: tuple[Path, ...] = ()
    #: Tools of an OpenAPI document that cannot be used: the reason by the name of the tool.
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: Tools of an OpenAPI document that are offered, but not as a whole: by the name of the tool,
    #: what is missing.
    missing: Mapping[str, str] = field(default_factory=dict)
    #: The names of all tools of the source, before the section selects and renames them.
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
    """Load one source: a file ending in .py, a module's dotted name, or a folder of files.

    A plain word such as "tools" is a module. The folder of this name is "./tools".

    Paths start at `base`; None for the working directory. With `again` a module is read anew, as
    files always are. Raises ToolLoadError, which names the file and the line that failed. A broken
    file of a folder does not raise: it is one of the `problems`, and the other files are loaded.
    """
    start = base or Path()
    try:
        path = (start / Path(source).expanduser()).resolve()
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError) as exc:
        raise ToolLoadError(
            f"cannot load tools from {quoted(source)}: it is no path ({exc})"
        ) from exc

    # In a folder around the bot, such as "..", the Python files of other projects would run. The
    # bot's own folder, ".", is allowed: a small bot may have its tools beside its YAML.
    is_around_base = is_folder and path in start.resolve().parents
    if not source.strip() or is_around_base:
        raise ToolLoadError(
            f"cannot load tools from {source!r}: give the tools a file or a folder of their own"
        )
    if source.endswith(".py"):
        return _load_file(source, path)
    if all(part.isidentifier() for part in source.split(".")):
        module = _import_module(source, again=again)
        # Python imports any folder as a "namespace package", which runs no file.
        is_bare_folder = hasattr(module, "__path__") and getattr(module, "__file__", None) is None
        if is_bare_folder:
            raise ToolLoadError(
                f"cannot load tools from {source!r}: the package has no __init__.py; to load the "
                f"files of a folder, give its path, as in './{source.replace('.', '/')}'"
            )
        return _contents(source, module)
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
            # If one name of a file is taken, nothing of the file is added. Files that import the
            # same tool from a module share it, which is no conflict.
            tools_so_far = dict(tools)
            factories_so_far = dict(factories)
            for tool in loaded.tools:
                claim(tools_so_far, tool.name, tool, str(path))
            for kind, factory in loaded.executor_factories.items():
                claim(factories_so_far, kind, factory, str(path))
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
        raise ToolLoadError(_failure_text(source, [str(path)], exc)) from exc
    return module


def _import_module(source: str, *, again: bool = False) -> ModuleType:
    """Import a module by its dotted name, `again` to execute it anew. Raises ToolLoadError."""
    here = str(Path.cwd())
    if here not in sys.path:
        # An installed command, unlike `python -m`, does not look for modules in the user's folder.
        sys.path.append(here)
    known = sys.modules.get(source)
    if again and known is not None and getattr(known, "__file__", None):
        module = _execute_file(source, source, Path(str(known.__file__)))
        # As an import does: `from package import module` reads this attribute of the package.
        package, _, name_in_package = source.rpartition(".")
        if package in sys.modules:
            setattr(sys.modules[package], name_in_package, module)
        return module
    try:
        return importlib.import_module(source)
    except _IMPORT_FAILURES as exc:
        missing = exc.name if isinstance(exc, ModuleNotFoundError) else None
        # The module itself or a package around it is missing, and not one that it imports.
        if missing and f"{source}.".startswith(f"{missing}."):
            raise ToolLoadError(
                f"cannot load tools from {source!r}: no module {missing!r} in {here!r} or sys.path"
            ) from exc
        path = "/" + source.replace(".", "/")
        ends = [f"{path}.py", f"{path}/__init__.py"]
        raise ToolLoadError(_failure_text(source, ends, exc)) from exc


#: The exceptions of a failed import. SystemExit is one: a module must not end the process.
#: Ctrl-C is not.
_IMPORT_FAILURES = (Exception, SystemExit)


def _failure_text(source: str, path_ends: Sequence[str], exc: BaseException) -> str:
    """Return the text of the error for a module that raised `exc` while it was imported.

    `path_ends` has the possible ends of the path of the module's file. The text names the last line
    of the module itself that ran; if none of the module ran, the deepest line outside Python's
    importer.
    """
    if isinstance(exc, SyntaxError):
        file = exc.filename or path_ends[0]
        line = exc.lineno
    else:
        all_frames = traceback.extract_tb(exc.__traceback__)
        frames = [frame for frame in all_frames if "importlib" not in frame.filename]
        ends = tuple(path_ends)
        frames_of_module = [frame for frame in frames if frame.filename.endswith(ends)]
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
#: Replaces the tools of a source: receives the id of the source and its new contents. It may raise
#: ToolError, and then must not have changed anything.
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
    """Loads sources again when their files change, for the development of a bot.

    A source is replaced as a whole. If an edit cannot be loaded, the error is logged, and the tools
    loaded before stay until a later edit can. In a folder, one broken file therefore keeps the
    tools of all its files as they were. These changes need a restart: an edit of another module
    that the tools import, and of a module by its dotted name that was broken from the start.
    """

    def __init__(self, watched: Mapping[str, WatchedSource], base: Path, replace: Replace) -> None:
        """Remember the present state of the files.

        `watched` has the sources by the ids that `replace` receives. Their paths start at `base`.
        An edit between the first load and this call is loaded together with the next edit.
        """
        self._watched = watched
        self._base = base
        self._replace = replace
        #: By the id of a source, the states of its files before they were loaded last.
        self._states = {id_: self._state(id_, each.files) for id_, each in watched.items()}

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
        replaced = []
        for id_, source in self._watched.items():
            known_state = self._states[id_]
            state = self._state(id_, tuple(known_state))
            if state == known_state:
                continue
            # The state is that before the load: an edit during the load counts as the next one.
            self._states[id_] = state

            problems: Sequence[str]
            try:
                loaded = source.load()
                problems = loaded.problems
                if not problems:
                    self._replace(id_, loaded)
            except ToolError as exc:
                problems = [str(exc)]
            if problems:
                cure = "edit it again; the tools loaded before stay"
                for problem in problems:
                    log.error("tools.broken", extra={"problem": problem, "cure": cure})
                continue
            log.warning("tools.reloaded", extra={"source": source.name, "tools": len(loaded.tools)})
            replaced.append(source.name)
        return replaced

    def _state(self, id_: str, files: Sequence[Path]) -> dict[Path, FileState | None]:
        """Return the states of these files of a source, and of new files in its folder.

        None for a file that is missing.
        """
        # An invalid path is passed over here: `load` reports it.
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            path = (self._base / Path(self._watched[id_].name).expanduser()).resolve()
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
