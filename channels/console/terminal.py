"""Terminal: the bot as a conversation in the shell, for trying tools and policies."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

from sayso.channels.base import BadHook, FetchError, Forbidden, RateLimit, Refused, SendError
from sayso.channels.markdown import terminal_text
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
)

#: Ends the conversation.
GOODBYE = ("exit", "quit", "/exit", "/quit")
#: Headers of a typed line: the proof that our own loop read it, and which line it was.
SECRET_HEADER, LINE_HEADER = "x-sayso-terminal", "x-sayso-line"


class FileReader(Protocol):
    """Where the files are that tools made."""

    def read(self, ref: str) -> bytes:
        """The stored bytes. Raises KeyError when the file is gone."""


class TerminalChannel:
    """One person at one terminal. Lives as long as the conversation.

    `say` prints, `styled` where it shows ANSI styles; files are saved below `folder`. Only lines that come with
    `secret` count as typed. A number taps the button that was shown with it, as long as nothing was said after it.
    """

    def __init__(
        self,
        name: str,
        *,
        folder: Path,
        files: FileReader,
        say: Callable[[str], None],
        secret: str,
        styled: bool = False,
    ) -> None:
        if not secret:
            raise ValueError("secret is empty: give a random one to tell typed lines by")
        self._name = name
        self._folder = folder
        self._files = files
        self._say = say
        self._secret = secret.encode()
        self._styled = styled
        self._said = 0
        self._buttons: tuple[Button, ...] = ()

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._name

    @property
    def conversation(self) -> Conversation:
        """The only one there is."""
        return Conversation(self._name, self._name)

    def receive(self, hook: WebhookRequest) -> Received:
        """Read one typed line: the body. Raises Forbidden or BadHook."""
        if not hmac.compare_digest(hook.header(SECRET_HEADER).encode("utf-8", "replace"), self._secret):
            raise Forbidden("the line was not typed here")
        line = hook.header(LINE_HEADER)
        if not line:
            raise BadHook(f"header {LINE_HEADER!r} is missing: number the lines")
        text = hook.body.decode("utf-8", "replace").strip()
        if not text:
            return Received(ignored="an empty line")
        turn = Turn(f"{self._name}:{line}", self.conversation, self._name, text, message_id=line)
        button = self._button(text)
        if button is None:
            return Received(turns=(turn,))
        shown = str(self._said)
        return Received(turns=(replace(turn, text="", tap=Tap(button.data, callback_id=line), message_id=shown),))

    def _button(self, text: str) -> Button | None:
        """The button of this number among those that were shown last."""
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 3 else 0
        return self._buttons[number - 1] if 1 <= number <= len(self._buttons) else None

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """As fast as it goes."""
        return RateLimit()

    def split(self, reply: Reply) -> Sequence[Reply]:
        """One, however long. What was printed stays as it is: an edit is left out, or printed as a new message."""
        is_empty = not (reply.text.strip() or reply.buttons or reply.media)
        return () if is_empty or (reply.edits and reply.optional) else (reply,)

    async def show_typing(self, turn: Turn) -> float:
        """Nothing: who types sees that it works."""
        return 0.0

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """Nothing: what is printed stays."""
        return ""

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Always raises FetchError: a terminal sends words and taps only."""
        raise FetchError("the terminal has no inbound files")

    async def send(self, delivery: Delivery) -> Receipt:
        """Print one message, and save its file. Raises Refused when the file is gone."""
        reply = delivery.reply
        if reply.edits and reply.optional:
            return Receipt("")
        parts = [terminal_text(reply.text, styled=self._styled)] if reply.text.strip() else []
        if reply.media:
            parts.append(f"[{await asyncio.to_thread(self._saved, reply.media)}]")
        if reply.buttons:
            labels = (terminal_text(button.label) for button in reply.buttons)
            parts.append("  ".join(f"[{number}] {label}" for number, label in enumerate(labels, 1)))
        self._say("\n".join(parts) + "\n")
        self._said += 1
        self._buttons = reply.buttons
        return Receipt(str(self._said))

    def _saved(self, media: Media) -> str:
        """Save below our folder, whatever path the name holds; what became of it, in words."""
        try:
            data = self._files.read(media.ref)
        except KeyError:
            raise Refused("the file to send is gone from the media store") from None
        name = terminal_text(Path(media.filename).name)
        path = self._folder / (name if name not in ("", "..") else "file")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as exc:
            return f"cannot save {name!r}: {exc.strerror}"
        return f"saved {path}"


class Terminal:
    """The conversation itself: each line that is typed becomes a turn, and what `take` says to it is printed."""

    def __init__(
        self,
        channel: TerminalChannel,
        secret: str,
        take: Callable[[Turn], Awaitable[Sequence[Reply]]],
        *,
        run_sync: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    ) -> None:
        self._channel = channel
        self._secret = secret
        self._take = take
        self._run_sync = run_sync

    def run(self, lines: TextIO, say: Callable[[str], None]) -> None:
        """Talk until the input ends or somebody says exit."""
        say("Type a message, or the number of a button; exit ends it. Try: /help")
        for number, line in enumerate(lines, 1):
            if line.strip().lower() in GOODBYE:
                return
            headers = {SECRET_HEADER: self._secret, LINE_HEADER: str(number)}
            received = self._channel.receive(WebhookRequest("", headers, line.encode("utf-8", "replace")))
            for turn in received.turns:
                self._run_sync(self._answer(turn, say))

    async def _answer(self, turn: Turn, say: Callable[[str], None]) -> None:
        replies = await self._take(turn)
        for number, piece in enumerate(self._pieces(replies), 1):
            try:
                await self._channel.send(Delivery(f"{turn.event_id}#{number}", turn.conversation, piece))
            except SendError as exc:
                say(f"[{exc}]\n")

    def _pieces(self, replies: Sequence[Reply]) -> Iterator[Reply]:
        return (piece for reply in replies for piece in self._channel.split(reply))


def new_secret() -> str:
    """A secret for one conversation."""
    return secrets.token_urlsafe(16)
