"""A conversation with the bot in a terminal, for trying tools and policies (`sayso chat`).

It needs no platform, no Redis and no worker: each typed line is answered at once. The console, the
other way to talk to a bot on one machine, is a page in the browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from sayso.channels.base import SendError
from sayso.channels.markdown.convert import terminal_text
from sayso.channels.markdown.dialects import TERMINAL
from sayso.channels.media_store import file_to_send
from sayso.channels.types import Button, Conversation, Media, Reply, Tap, Turn

#: Words that end the conversation.
GOODBYE = ("exit", "quit", "/exit", "/quit")
#: The longest name of a file that all file systems take, in bytes.
MAX_NAME_BYTES = 255
#: The longest ending, with its dot, that is kept when a name is cut.
MAX_ENDING_BYTES = 20
#: The most digits of a number that taps a button. No message has a hundred buttons.
MAX_NUMBER_DIGITS = 2
#: The only conversation, and the only user.
CONVERSATION = Conversation("terminal", "terminal")


class Terminal:
    """One person at one terminal. Lives as long as the conversation.

    A typed number taps the button that the last message shows with this number.

    * `folder`: where files of replies are saved.
    * `read_file`: returns the bytes of a file of the media store.
    * `print_text`: prints a text and a line end.
    * `styled`: whether the terminal shows ANSI styles.
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
        #: How many messages the bot has printed. Their ids are 1, 2 and so on.
        self._printed = 0
        #: The buttons of the last message, which a typed number taps.
        self._buttons: tuple[Button, ...] = ()

    def talk(
        self, lines: TextIO, answer: Callable[[Turn], Coroutine[Any, Any, Sequence[Reply]]]
    ) -> None:
        """Print the answer to each line until the input ends.

        The conversation also ends when the person types a word of GOODBYE, or presses Ctrl-C while
        the bot waits for a line. Ctrl-C during an answer raises KeyboardInterrupt, and an error of
        `answer` is raised unchanged.

        Each answer gets a new event loop, since no loop runs while the bot waits for a line. So
        `answer` must not keep anything that belongs to a loop.
        """
        self._print("Type a message, or the number of a button; exit ends it. Try: /help")
        for number, line in enumerate(self._typed_lines(lines), 1):
            text = line.strip()
            if not text:
                continue
            if text.lower() in GOODBYE:
                return
            for reply in asyncio.run(answer(self.turn(text, number))):
                self.show(reply)

    def _typed_lines(self, lines: TextIO) -> Iterator[str]:
        """Yield the lines until the input ends, or until Ctrl-C is pressed."""
        while True:
            try:
                line = lines.readline()
            except KeyboardInterrupt:
                # So that the shell's prompt begins a new line.
                self._print("")
                return
            if not line:
                return
            yield line

    def turn(self, text: str, line: int) -> Turn:
        """Return the turn of a typed line: a tap or a message. `line` is its number, from 1.

        A message has the number of its line as its id. A tap names the bot's message with the
        button, as it does on a platform.
        """
        event_id = f"terminal:{line}"
        user_id = CONVERSATION.chat
        number = 0
        if text.isascii() and text.isdecimal() and len(text) <= MAX_NUMBER_DIGITS:
            number = int(text)
        if 1 <= number <= len(self._buttons):
            tap = Tap(self._buttons[number - 1].data, callback_id=str(line))
            message_id = str(self._printed)
            return Turn(event_id, CONVERSATION, user_id, tap=tap, message_id=message_id)
        return Turn(event_id, CONVERSATION, user_id, text, message_id=str(line))

    def show(self, reply: Reply) -> None:
        """Print a reply, and save its file. If that fails, the reason is printed in its place.

        Printed text cannot be edited: an optional edit is left out, any other is printed.
        """
        if reply.edits and reply.optional:
            return
        parts = []
        if reply.text.strip():
            parts.append(terminal_text(reply.text, styled=self._styled))
        if reply.media:
            parts.append(f"[{self._save(reply.media)}]")
        if reply.buttons:
            parts.append(_button_line(reply))
        if not parts:
            return

        self._print("\n".join(parts) + "\n")
        self._printed += 1
        # Where a value is asked for, a typed number is the value and taps nothing. A person chooses
        # a button by typing its label.
        self._buttons = () if reply.asks_value else reply.buttons

    def _save(self, media: Media) -> str:
        """Save a file in `folder`, and return where it is, or why it could not be saved.

        A path in the name of the file is dropped.
        """
        try:
            data = file_to_send(self._read_file, media.ref)
        except SendError as exc:
            return str(exc)
        # Control characters become symbols before the name is cut, as a symbol has more bytes.
        name = _fitting(TERMINAL.escape(Path(media.filename).name))
        if name in ("", ".."):
            name = "file"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = _unused(self._folder / name, data)
            path.write_bytes(data)
        except OSError as exc:
            return f"cannot save {name!r}: {exc.strerror}"
        return f"saved {path}"


def _button_line(reply: Reply) -> str:
    """Return the buttons on one line, with numbers unless the reply asks for a value."""
    labels = []
    for number, button in enumerate(reply.buttons, 1):
        # There is room for what the tap does. That is Markdown, and a label is plain text.
        label = terminal_text(button.effect) or TERMINAL.escape(button.label)
        labels.append(f"[{label}]" if reply.asks_value else f"[{number}] {label}")
    return "  ".join(labels)


def _unused(path: Path, data: bytes) -> Path:
    """Return the path, with a number behind its name if a file with other bytes has it."""
    unused = path
    number = 1
    while unused.exists() and not (unused.is_file() and unused.read_bytes() == data):
        number += 1
        unused = path.with_name(_fitting(path.name, f" ({number})"))
    return unused


def _fitting(name: str, suffix: str = "") -> str:
    """Return a file name of at most MAX_NAME_BYTES bytes, with `suffix` before its ending."""
    ending = Path(name).suffix
    if len(ending.encode()) > MAX_ENDING_BYTES:
        ending = ""
    room = MAX_NAME_BYTES - len(f"{suffix}{ending}".encode())
    stem = name.removesuffix(ending).encode()[:room].decode(errors="ignore")
    return f"{stem}{suffix}{ending}"
