"""Measure the structure of the code: sizes, jumps and names. The goals stand in CONTRIBUTING.md.

    make figures

Static figures are read from the sources of the five packages. The path of a turn is traced: a signed Telegram webhook
is taken by the web, and a worker answers it.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from sayso.channels.types import Conversation
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.wiring.wsgi import build_app
from sayso.infra.threads import LoopThread
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.testing.platforms import webhooks
from sayso.testing.platforms.fake_platforms import TELEGRAM_SECRET, TELEGRAM_TOKEN, FakePlatforms

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "channels", "config", "infra", "ops", "pending", "workers")
#: What each figure should be at most, as the redesign set it.
GOALS = {
    "modules": "230",
    "lines, Lua included": "44,000",
    "files touched by one turn": "45",
    "moves between files in it": "200",
    "private helpers with one caller": "40 %",
    "lines of a function: median": "5-8",
    "lines of a function: 90th percentile": "30",
    "lines of a function: longest": "60",
    "public names with two meanings": "0",
    "context variables": "6",
    "type: ignore and noqa": "90",
}


@dataclass(frozen=True, slots=True)
class Source:
    """One module: its path below the project, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module


#: A bot with one Telegram channel, for the traced turn.
BOT = """
agent: {{model: offline}}
tools: [sayso.examples.invoices]
channels:
  tg: {{platform: telegram, token: "${{TOKEN}}", secret_token: "${{SECRET}}", api_url: {url}, messages_per_second: 0}}
"""
#: The person who writes, whose private chat has the same id.
USER = 5123456789


@dataclass(slots=True)
class Trace:
    """Our files that calls passed through, and how often a call led from one of them to another."""

    files: set[str] = field(default_factory=set)
    moves: int = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note one call, as `sys.setprofile` reports it."""
        if event != "call" or not (here := _package_path(frame)):
            return
        self.files.add(here)
        there = _package_path(frame.f_back) if frame.f_back else ""
        self.moves += bool(there) and there != here


def main() -> None:
    """Print each figure beside its goal."""
    figures = {**static_figures(sources()), **turn_figures()}
    print("| figure | now | goal |\n|---|---|---|")
    for name, goal in GOALS.items():
        print(f"| {name} | {figures[name]} | {goal} |")


def sources() -> list[Source]:
    """Return all modules of the five packages."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    texts = [
        (path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths
    ]
    return [Source(path, text, ast.parse(text)) for path, text in texts]


def static_figures(modules: list[Source]) -> dict[str, str]:
    """Return the figures that need no run, by name."""
    lua = [path for package in PACKAGES for path in (ROOT / package).rglob("*.lua")]
    lines = sum(module.text.count("\n") for module in modules) + sum(
        path.read_text().count("\n") for path in lua
    )
    lengths = sorted(
        _length(function) for module in modules for function in _functions(module.tree)
    )
    ignores = re.compile(r"#\s*(?:type: ignore|noqa)")
    return {
        "modules": str(len(modules)),
        "lines, Lua included": f"{lines:,}",
        "private helpers with one caller": f"{_single_caller_share(modules):.0%}".replace(
            "%", " %"
        ),
        "lines of a function: median": f"{statistics.median(lengths):g}",
        "lines of a function: 90th percentile": str(lengths[int(len(lengths) * 0.9)]),
        "lines of a function: longest": str(lengths[-1]),
        "public names with two meanings": str(len(_ambiguous_names(modules))),
        "context variables": str(
            sum(len(re.findall(r"= ContextVar\(", module.text)) for module in modules)
        ),
        "type: ignore and noqa": str(sum(len(ignores.findall(module.text)) for module in modules)),
    }


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its decorators and its docstring."""
    whole = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        whole -= (first.end_lineno or first.lineno) - first.lineno + 1
    return whole


def _single_caller_share(modules: list[Source]) -> float:
    """Return the share of private functions and methods that one place of the packages names."""
    private = {
        function.name
        for module in modules
        for function in _functions(module.tree)
        if function.name.startswith("_") and not function.name.endswith("__")
    }
    uses: Counter[str] = Counter()
    for module in modules:
        for node in ast.walk(module.tree):
            name = (
                node.id
                if isinstance(node, ast.Name)
                else node.attr
                if isinstance(node, ast.Attribute)
                else ""
            )
            uses.update([name] if name in private else [])
    return sum(uses[name] == 1 for name in private) / len(private)


def _ambiguous_names(modules: list[Source]) -> list[str]:
    """Return the public names of classes and types that two modules define."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(module.path)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if (
                    isinstance(target, ast.Name)
                    and target.id[0].isupper()
                    and not target.id.isupper()
                ):
                    places[target.id].add(module.path)
    return sorted(name for name, paths in places.items() if len(paths) > 1)


def turn_figures() -> dict[str, str]:
    """Trace one plain turn, from its webhook to its reply; return its figures by name. A turn before it warms up."""
    with FakePlatforms() as platforms, tempfile.TemporaryDirectory(prefix="sayso-figures-") as name:
        folder = Path(name)
        redis = EmbeddedRedis(folder / "redis")
        redis.start()
        try:
            (folder / "sayso.yaml").write_text(BOT.format(url=platforms.telegram_url))
            settings = load_settings(
                folder / "sayso.yaml", {"TOKEN": TELEGRAM_TOKEN, "SECRET": TELEGRAM_SECRET}
            )
            web = bootstrap(settings, data=folder / "data", redis_url=redis.url)
            worker = bootstrap(settings, data=folder / "data", redis_url=redis.url, is_worker=True)
            client, loop = build_app(web).test_client(), LoopThread()

            def take_turn(update_id: int) -> None:
                update = webhooks.telegram_text(update_id, "hello", user=USER)
                headers, body = webhooks.telegram_hook(TELEGRAM_SECRET, update)
                assert client.post("/hooks/tg", data=body, headers=headers).status_code == 200
                loop.run(worker.processor.run(Conversation("tg", str(USER)).id))

            take_turn(1)
            trace = Trace()
            threading.setprofile(trace)
            sys.setprofile(trace)
            loop.run(_profile(trace))
            take_turn(2)
            sys.setprofile(None)
            assert len(platforms.sent) == 2, "the bot did not answer"
            loop.close()
        finally:
            redis.stop()
    return {
        "files touched by one turn": str(len(trace.files)),
        "moves between files in it": str(trace.moves),
    }


async def _profile(trace: Trace) -> None:
    """Trace the calls of the thread that runs this."""
    sys.setprofile(trace)


def _package_path(frame: FrameType) -> str:
    """Return the path of a frame's file below the project; "" for files that are not in the five packages."""
    path = frame.f_code.co_filename
    if "/.venv" in path or not path.startswith(str(ROOT)):
        return ""
    path = path.removeprefix(f"{ROOT}/").removeprefix("sayso/")
    return path if path.split("/")[0] in PACKAGES else ""


if __name__ == "__main__":
    main()
