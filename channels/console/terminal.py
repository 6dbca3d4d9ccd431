"""A conversation with the bot in a terminal, for trying tools and policies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from sayso.channels.base import SendError
from sayso.channels.markdown import terminal_text
from sayso.channels.markdown.dialects import TERMINAL
from sayso.channels.media_store import file_to_send
from sayso.channels.types import Button, Conversation, Media, Reply, Tap, Turn

#: Words that end the conversation.
GOODBYE = ("exit", "quit", "/exit", "/quit")
#: The longest name of a file in bytes that all file systems take.
MAX_NAME_BYTES = 255
#: The longest ending, with its dot, that is kept when a name is cut.
MAX_ENDING_BYTES = 20
#: The only conversation, and the only user.
CONVERSATION = Conversation("terminal", "terminal")


class Terminal:
    """One person at one terminal. Lives as long as the conversation.

    `styled`: the terminal shows ANSI styles. Files of replies are read by `read_file` and saved in
    `folder`. A number taps the button that the last message shows with it.
    """

    def __init__(
        self,
        *,
        folder: Path,
        read_file: Callable[[str], bytes],
        print_text: Callable[[str], None],
        styled: bool = False,
    ) -> None:
        self._folder = folder
        self._read_file = read_file
        self._print = print_text
        self._styled = styled
        self._printed = 0
        self._buttons: tuple[Button, ...] = ()

    def talk(
        self, lines: TextIO, answer: Callable[[Turn], Coroutine[Any, Any, Sequence[Reply]]]
    ) -> None:
        """Print the answer to each line until the input ends.

        It also ends when the person types `exit` or presses Ctrl-C.

        Ctrl-C during an answer raises KeyboardInterrupt.
        """
        self._print("Type a message, or the number of a button; exit ends it. Try: /help")
        for number, line in enumerate(self._typed_lines(lines), 1):
            text = line.strip()
            if text.lower() in GOODBYE:
                return
            for reply in asyncio.run(answer(self.turn(text, number))) if text else ():
                try:
                    self.show(reply)
                except SendError as exc:
                    self._print(f"[{exc}]\n")

    def _typed_lines(self, lines: TextIO) -> Iterator[str]:
        """Yield the lines until the input ends, or Ctrl-C is pressed while the next one is awaited."""
        while True:
            try:
                line = lines.readline()
            except KeyboardInterrupt:
                self._print("")  # the shell's prompt begins a line of its own
                return
            if not line:
                return
            yield line

    def turn(self, text: str, line: int) -> Turn:
        """Return the turn of a typed line, by its text and number."""
        user_id = CONVERSATION.chat
        if text.isascii() and text.isdecimal() and len(text) < 3:
            number = int(text)
        else:
            number = 0
        if 1 <= number <= len(self._buttons):
            tap = Tap(self._buttons[number - 1].data, callback_id=str(line))
            return Turn(
                f"terminal:{line}", CONVERSATION, user_id, tap=tap, message_id=str(self._printed)
            )
        return Turn(f"terminal:{line}", CONVERSATION, user_id, text, message_id=str(line))

    def show(self, reply: Reply) -> None:
        """Print a reply, and save its file. Raises Refused if the file is gone.

        Printed text cannot be edited: an optional edit is left out, any other is printed.
        """
        if reply.edits and reply.optional:
            return
        if reply.text.strip():
            parts = [terminal_text(reply.text, styled=self._styled)]
        else:
            parts = []
        if reply.media:
            parts.append(f"[{self._save(reply.media)}]")
        if reply.buttons:
            labels = [
                terminal_text(button.effect) or TERMINAL.escape(button.label)
                for button in reply.buttons
            ]
            listed = [f"[{number}] {label}" for number, label in enumerate(labels, 1)]
            if reply.asks_value:  # a typed number is the value
                listed = [f"[{label}]" for label in labels]
            parts.append("  ".join(listed))
        if parts:
            self._print("\n".join(parts) + "\n")
            self._printed += 1
            self._buttons = () if reply.asks_value else reply.buttons

    def _save(self, media: Media) -> str:
        """Save a file in `folder`, whatever path its name has, and return the result as text."""
        data = file_to_send(self._read_file, media.ref)
        name = _fitting(TERMINAL.escape(Path(media.filename).name))
        path = self._folder / (name if name not in ("", "..") else "file")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = _unused(path, data)
            path.write_bytes(data)
        except OSError as exc:
            return f"cannot save {name!r}: {exc.strerror}"
        return f"saved {path}"


def _unused(path: Path, data: bytes) -> Path:
    """Return the path, with a number behind its name if a file with other bytes has it."""
    unused = path
    number = 1
    while unused.exists() and not (unused.is_file() and unused.read_bytes() == data):
        number += 1
        unused = path.with_name(_fitting(path.name, f" ({number})"))
    return unused


def _fitting(name: str, mark: str = "") -> str:
    """Return a file name that file systems take.

    It has at most MAX_NAME_BYTES bytes, with `mark` before its ending.
    """
    ending = Path(name).suffix
    if len(ending.encode()) > MAX_ENDING_BYTES:
        ending = ""
    room = MAX_NAME_BYTES - len(f"{mark}{ending}".encode())
    stem = name.removesuffix(ending).encode()[:room].decode(errors="ignore")
    return f"{stem}{mark}{ending}"
