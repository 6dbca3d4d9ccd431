"""The pages of the documentation, and the program that generates some of them."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from tests.config.processes import forked

ROOT = Path(__file__).parents[2]


@cache
def generate() -> ModuleType:
    """Return docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec
    assert spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def part(page: str, *, begin: str = "", end: str = "") -> str:
    """Return a how-to page from the heading `begin` (the page's start) up to the heading `end` (its end)."""
    text = (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")
    start = text.index(f"\n## {begin}\n") if begin else 0
    stop = text.index(f"\n## {end}\n") if end else len(text)
    return text[start:stop]


def run(code: str, folder: Path) -> list[str]:
    """Run the lines of a page as a script in a folder, and return what it prints. Fails unless it succeeds."""
    exit_code, output, errors = forked(_run_as_script, code, cwd=folder)
    assert exit_code == 0, errors
    return output.splitlines()


def _run_as_script(code: str) -> None:
    exec(compile(code, "<page>", "exec"), sys.modules["__main__"].__dict__)
