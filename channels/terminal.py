"""Terminal: the bot as a conversation in the shell, for trying tools and policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

#: Ends the conversation.
GOODBYE = ("exit", "quit", "/exit", "/quit")


class Terminal:
    """Reads lines, asks, prints answers; files made by tools are saved below `folder`."""

    def __init__(self, ask: Callable[..., Any], folder: Path, lines: TextIO, say: Callable[[str], None]) -> None:
        self._ask = ask
        self._folder = folder
        self._lines = lines
        self._say = say

    def run(self) -> None:
        """Talk until the input ends or somebody says exit."""
        self._say("Type a message; exit ends it. Try: /help")
        for line in self._lines:
            text = line.strip()
            if text.lower() in GOODBYE:
                return
            if text:
                self._answer(text)

    def _answer(self, text: str) -> None:
        result = self._ask("terminal", text, channel_id="terminal")
        self._say(f"{result.content}\n" if result.content else "")
        for artifact in result.artifacts:
            if artifact.data is not None:
                self._say(f"[saved {self._save(artifact.filename or 'file', artifact.data)}]\n")

    def _save(self, filename: str, data: bytes) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / (Path(filename).name or "file")
        path.write_bytes(data)
        return path
