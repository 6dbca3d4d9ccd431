"""Measure how dense the code is, beside its neighbors, and which way a message takes through it.

    make figures

Static figures are read from the sources of the packages. The ways are traced in the real processes,
`sayso web` and `sayso worker`: a message and its reply, and a yes and its effect, at a fake Telegram.
"""

from __future__ import annotations

import ast
import io
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tokenize
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.traced import PACKAGES, ROOT, Trace
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.testing.platforms import webhooks
from sayso.testing.platforms.fake_platforms import TELEGRAM_SECRET, TELEGRAM_TOKEN, FakePlatforms
from sayso.testing.ports import ReservedPort

#: Columns that a line may have.
WIDTH = 100
#: The person who writes, whose private chat has the same id.
USER = 5123456789
#: Seconds to wait for a process or a reply, and until what follows a reply has been done.
PATIENCE = 60.0
SETTLED_SECONDS = 1.0

BOT = """
agent: {{model: offline}}
tools: [sayso.examples.invoices]
channels:
  tg: {{platform: telegram, token: "${{TOKEN}}", secret_token: "${{SECRET}}", api_url: {url}, messages_per_second: 0}}
"""


@dataclass(frozen=True, slots=True)
class Density:
    """How much a reader has to take in at once."""

    #: Assignments of several values to several names (`a, b = x, y`), in 1,000 lines.
    tuple_assignments: float
    #: Conditional expressions (`x if c else y`), in 1,000 lines.
    conditional_expressions: float
    #: The share of lines of more than WIDTH columns, from 0 to 1.
    long_lines: float


#: What was measured in the sources of other projects. A tuple assignment was counted in the same
#: way; of those below 0.5 in 1,000 lines only that bound was noted.
NEIGHBORS = {
    "dramatiq": ("< 0.5", "1.3", "0-1 %", "43 %"),
    "httpx": ("< 0.5", "9.3", "0-1 %", "25 %"),
    "flask": ("< 0.5", "1.3", "0-1 %", "48 %"),
    "pydantic-ai": ("< 0.5", "6.4", "6.7 %", "26 %"),
}


@dataclass(frozen=True, slots=True)
class Source:
    """One module: its path below the project, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module


def main() -> None:
    """Print the tables."""
    modules = sources()
    print(
        "| density | tuple assignments | conditional expressions | over 100 columns | docstrings and comments |"
    )
    print("|---|---|---|---|---|")
    ours = density_of(modules)
    print(
        f"| **Sayso** | {ours.tuple_assignments:.1f} | {ours.conditional_expressions:.1f} "
        f"| {ours.long_lines:.1%} | {share_of_words(modules):.0%} |"
    )
    for name, figures in NEIGHBORS.items():
        print(f"| {name} | {' | '.join(figures)} |")

    print("\n| figure | now |\n|---|---|")
    for name, figure in structure_of(modules).items():
        print(f"| {name} | {figure} |")

    print(
        "\n| traced in web and worker | files touched | moves between files | calls |\n|---|---|---|---|"
    )
    for name, trace in traced_ways().items():
        print(f"| {name} | {len(trace.files)} | {trace.moves:,} | {trace.calls:,} |")


def sources() -> list[Source]:
    """Return all modules of the packages."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    texts = [
        (path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths
    ]
    return [Source(path, text, ast.parse(text)) for path, text in texts]


def density_of(modules: list[Source]) -> Density:
    """Return how dense the modules are together."""
    lines = [line for module in modules for line in module.text.splitlines()]
    nodes = [node for module in modules for node in ast.walk(module.tree)]
    thousands = len(lines) / 1000
    return Density(
        tuple_assignments=sum(map(_is_tuple_assignment, nodes)) / thousands,
        conditional_expressions=sum(isinstance(node, ast.IfExp) for node in nodes) / thousands,
        long_lines=sum(len(line) > WIDTH for line in lines) / len(lines),
    )


def share_of_words(modules: list[Source]) -> float:
    """Return the share of lines with a docstring or a comment, from 0 to 1."""
    lines = sum(len(module.text.splitlines()) for module in modules)
    return sum(len(_lines_of_words(module)) for module in modules) / lines


def _is_tuple_assignment(node: ast.AST) -> bool:
    """Return whether several values are assigned to several names at once."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


def _lines_of_words(module: Source) -> set[int]:
    """Return the numbers of the lines with a docstring or a comment."""
    numbers = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.walk(module.tree):
        docstring = _docstring_of(node)
        if docstring:
            numbers.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return numbers


def _docstring_of(node: ast.AST) -> ast.Expr | None:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    if ast.get_docstring(node, clean=False) is None:
        return None
    first = node.body[0]
    return first if isinstance(first, ast.Expr) else None


def structure_of(modules: list[Source]) -> dict[str, str]:
    """Return the figures of the structure, by name."""
    lengths = sorted(
        _length(function) for module in modules for function in _functions(module.tree)
    )
    ignores = re.compile(r"#\s*(?:type: ignore|noqa)")
    variables = re.compile(r"= ContextVar\(")
    return {
        "lines of a function: median": f"{statistics.median(lengths):g}",
        "lines of a function: 90th percentile": str(lengths[int(len(lengths) * 0.9)]),
        "lines of a function: longest": str(lengths[-1]),
        "public names with two meanings": str(len(ambiguous_names(modules))),
        "context variables": str(sum(len(variables.findall(each.text)) for each in modules)),
        "type: ignore and noqa": str(sum(len(ignores.findall(each.text)) for each in modules)),
    }


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its decorators and its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    docstring = _docstring_of(function)
    if docstring:
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


def ambiguous_names(modules: list[Source]) -> list[str]:
    """Return the public names of classes and types that two modules define."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in module.tree.body:
            name = _defined_type(node)
            if name and not name.startswith("_"):
                places[name].add(module.path)
    return sorted(name for name, paths in places.items() if len(paths) > 1)


def _defined_type(node: ast.stmt) -> str:
    """Return the name of the class or type that a statement defines, "" for none."""
    if isinstance(node, ast.ClassDef):
        return node.name
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return ""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    is_type = isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper()
    return target.id if is_type and isinstance(target, ast.Name) else ""


def traced_ways() -> dict[str, Trace]:
    """Return the traces of a message and of a yes.

    The processes do the same once before, so that no import counts.
    """
    with tempfile.TemporaryDirectory(prefix="sayso-figures-") as name, System(Path(name)) as system:
        system.say("hello")
        message = system.traced(lambda: system.say("hello again"))
        nothing = system.traced(lambda: None)
        system.say("delete invoice INV-42")
        system.say("yes")
        system.say("delete invoice INV-43")
        yes = system.traced(lambda: system.say("yes"))
    return {
        "a message and its reply": message,
        "a yes and its effect": yes,
        "nothing, for as long (a part of both)": nothing,
    }


class System:
    """A bot with its web and its worker as processes that can be traced. Runs inside `with`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = ReservedPort()
        self._platforms = FakePlatforms()
        self._redis = EmbeddedRedis(folder / "redis")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._updates = 0

    def __enter__(self) -> System:
        self._platforms.__enter__()
        self._redis.start()
        text = BOT.format(url=self._platforms.telegram_url)
        (self._folder / "sayso.yaml").write_text(text)
        self._start("web", "--port", str(self._port.number))
        self._start("worker")
        until(self._answers)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
            process.wait(PATIENCE)
        self._redis.stop()
        self._platforms.__exit__()
        self._port.release()

    def say(self, text: str) -> None:
        """Send a message, and wait for one reply."""
        self._updates += 1
        before = len(self._platforms.sent)
        update = webhooks.telegram_text(self._updates, text, user=USER)
        headers, body = webhooks.telegram_hook(TELEGRAM_SECRET, update)
        hook = urllib.request.Request(f"{self._url}/hooks/tg", body, dict(headers))
        with urllib.request.urlopen(hook, timeout=PATIENCE):
            until(lambda: len(self._platforms.sent) > before)

    def traced(self, act: Callable[[], None]) -> Trace:
        """Act, and return the calls of both processes meanwhile."""
        time.sleep(SETTLED_SECONDS)
        for process in self._processes.values():
            process.send_signal(signal.SIGUSR1)
        act()
        time.sleep(SETTLED_SECONDS)
        trace = Trace()
        for name, process in self._processes.items():
            path = self._folder / f"{name}.json"
            path.unlink(missing_ok=True)
            process.send_signal(signal.SIGUSR2)
            until(path.exists)
            trace += Trace.read(path)
        return trace

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._port.number}"

    def _start(self, command: str, *options: str) -> None:
        path = self._folder / f"{command}.json"
        common = ("--config", str(self._folder / "sayso.yaml"), "--data", str(self._folder))
        environ = {
            **os.environ,
            "TOKEN": TELEGRAM_TOKEN,
            "SECRET": TELEGRAM_SECRET,
            "REDIS_URL": self._redis.url,
        }
        with (self._folder / f"{command}.log").open("ab") as log:
            self._processes[command] = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.traced", str(path), command, *common, *options],
                cwd=ROOT,
                env=environ,
                stdout=log,
                stderr=log,
            )

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/healthz", timeout=PATIENCE):
                return True
        except OSError:
            return False


def until(is_done: Callable[[], object]) -> None:
    """Wait for something. Raises TimeoutError after PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it took longer than {PATIENCE:g} s")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
