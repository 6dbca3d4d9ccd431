"""A conversation with the bot in a terminal, for trying tools and policies."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TextIO

from sayso.channels.base import BadHook, FetchError, Forbidden, RateLimit, SendError
from sayso.channels.markdown import terminal_text
from sayso.channels.storage.media import file_to_send
from sayso.channels.types import (
    Button,
    Conversation,
    Delivery,
    Media,
    Receipt,
    Received,
    Reply,
    Tap,
    Turn,
    WebhookRequest,
    random_id,
)

#: Words that end the conversation.
GOODBYE = ("exit", "quit", "/exit", "/quit")
#: Headers of a typed line: the secret that proves that `talk` read it, and its number.
SECRET_HEADER, LINE_HEADER = "x-sayso-terminal", "x-sayso-line"


class TerminalChannel:
    """One person at one terminal. Lives as long as the conversation.

    `styled`: the terminal shows ANSI styles. Outgoing files are read by `read_file` and saved in `folder`. A number
    taps the button that the last message shows with it.
    """

    def __init__(
        self,
        name: str,
        *,
        folder: Path,
        read_file: Callable[[str], bytes],
        print_text: Callable[[str], None],
        styled: bool = False,
    ) -> None:
        self.name = name
        self._folder = folder
        self._read_file = read_file
        self._print = print_text
        #: Only lines with this secret count as typed.
        self.secret = random_id()
        self._styled = styled
        self._printed = 0
        self._buttons: tuple[Button, ...] = ()

    @property
    def conversation(self) -> Conversation:
        """The only conversation."""
        return Conversation(self.name, self.name)

    def talk(self, lines: TextIO, answer: Callable[[Turn], Awaitable[Sequence[Reply]]]) -> None:
        """Print the answer to each line until the input ends or the person types `exit`."""
        self._print("Type a message, or the number of a button; exit ends it. Try: /help")
        for number, line in enumerate(lines, 1):
            if line.strip().lower() in GOODBYE:
                return
            headers = {SECRET_HEADER: self.secret, LINE_HEADER: str(number)}
            received = self.receive(WebhookRequest("", headers, line.encode("utf-8", "replace")))
            for turn in received.turns:
                asyncio.run(self._print_replies(turn, answer))

    async def _print_replies(self, turn: Turn, answer: Callable[[Turn], Awaitable[Sequence[Reply]]]) -> None:
        pieces = [piece for reply in await answer(turn) for piece in self.split(reply)]
        for number, piece in enumerate(pieces, 1):
            try:
                await self.send(Delivery(f"{turn.event_id}#{number}", turn.conversation, piece))
            except SendError as exc:
                self._print(f"[{exc}]\n")

    def receive(self, hook: WebhookRequest) -> Received:
        """Parse one typed line, which is the body. Raises Forbidden or BadHook."""
        if not hmac.compare_digest(hook.header(SECRET_HEADER).encode("utf-8", "replace"), self.secret.encode()):
            raise Forbidden("the line was not typed here")
        line = hook.header(LINE_HEADER)
        if not line:
            raise BadHook(f"header {LINE_HEADER!r} is missing: number the lines")
        text = hook.body.decode("utf-8", "replace").strip()
        if not text:
            return Received(ignored="an empty line")
        turn = Turn(f"{self.name}:{line}", self.conversation, self.name, text, message_id=line)
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 3 else 0
        if 1 <= number <= len(self._buttons):
            tap = Tap(self._buttons[number - 1].data, callback_id=line)
            turn = replace(turn, text="", tap=tap, message_id=str(self._printed))
        return Received(turns=(turn,))

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return no limit."""
        return RateLimit()

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Return the whole reply. Printed text cannot be edited: an optional edit is left out, any other is printed."""
        is_empty = not (reply.text.strip() or reply.buttons or reply.media)
        return () if is_empty or (reply.edits and reply.optional) else (reply,)

    async def show_typing(self, turn: Turn) -> float:
        """Do nothing: the person sees that the command is running."""
        return 0.0

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """Do nothing: printed text cannot be replaced."""
        return ""

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Raise FetchError: people send no files here."""
        raise FetchError("the terminal has no inbound files")

    async def send(self, delivery: Delivery) -> Receipt:
        """Print one message, and save its file. Raises Refused if the file is gone."""
        reply = delivery.reply
        if reply.edits and reply.optional:
            return Receipt("")
        parts = [terminal_text(reply.text, styled=self._styled)] if reply.text.strip() else []
        if reply.media:
            parts.append(f"[{await asyncio.to_thread(self._save, reply.media)}]")
        if reply.buttons:
            labels = (terminal_text(button.label) for button in reply.buttons)
            parts.append("  ".join(f"[{number}] {label}" for number, label in enumerate(labels, 1)))
        self._print("\n".join(parts) + "\n")
        self._printed += 1
        self._buttons = reply.buttons
        return Receipt(str(self._printed))

    def _save(self, media: Media) -> str:
        """Save a file in `folder`, whatever path its name has, and return the result as text."""
        data = file_to_send(self._read_file, media.ref)
        name = terminal_text(Path(media.filename).name)
        path = self._folder / (name if name not in ("", "..") else "file")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as exc:
            return f"cannot save {name!r}: {exc.strerror}"
        return f"saved {path}"
