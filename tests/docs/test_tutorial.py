"""docs/tutorial: its commands are typed as they stand there, and print what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sayso.config.settings.loader import load_settings

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial" / "first-bot.md").read_text()
FIRST_BOT, ON_TELEGRAM = PAGE.split("\n## 7.")
#: A fenced block: its language, the file that its title names, and its text.
BLOCK = re.compile(r"```(\w+)(?: title=\"(.+?)\")?\n(.*?)```", re.DOTALL)
BIN = Path(sys.executable).parent


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """Return the fenced blocks of a page: language, title and text."""
    return ((found[1], found[2] or "", found[3]) for found in BLOCK.finditer(page))


def run(command: str, folder: Path, typed: str = "") -> str:
    """Run a command of the page in a folder; return what it prints."""
    others = ("SAYSO_", "REDIS_", "PYTEST_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    environ |= {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
    }  # pytest fills its lines
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environ,
        input=typed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_first_bot_is_built_as_the_page_says(tmp_path: Path) -> None:
    """Commands, conversations and the user's own tool, from top to bottom."""
    folder = tmp_path
    for language, title, text in blocks(FIRST_BOT):
        if language == "python":
            with (folder / title).open("a") as file:
                file.write(f"\n\n{text}")
        elif language == "chat":
            typed = re.findall(r"^> (.*)\n", text, re.MULTILINE)
            shown = re.sub(r"^> .*\n", "", text, flags=re.MULTILINE)
            printed = run("sayso chat", folder, "".join(f"{line}\n" for line in typed))
            assert printed.split("\n", 1)[1] == shown
        else:
            command, shown = re.fullmatch(r"\$ (.*?)\n(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
            assert shown.strip() in run(command, folder)
            folder = tmp_path / "mybot"


def test_the_bot_on_telegram_is_valid(tmp_path: Path) -> None:
    """The configuration of the page, beside the tools of the first page."""
    run("sayso init mybot", tmp_path)
    [(_, title, text)] = [block for block in blocks(ON_TELEGRAM) if block[0] == "yaml"]
    (tmp_path / "mybot" / title).write_text(text)
    settings = load_settings(tmp_path / "mybot" / title, {"TELEGRAM_TOKEN": "1:a"})
    assert [channel.platform for channel in settings.channels.values()] == ["console", "telegram"]
