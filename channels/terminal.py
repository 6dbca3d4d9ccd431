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
                self._say(f"[{self._save(artifact.filename, artifact.data)}]\n")

    def _save(self, filename: str | None, data: bytes) -> str:
        """Save below our folder, whatever path the name holds; what became of it, in words."""
        name = Path(filename or "").name.replace("\0", "")
        path = self._folder / (name if name not in ("", "..") else "file")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as exc:
            return f"cannot save {name!r}: {exc.strerror}"
        return f"saved {path}"
