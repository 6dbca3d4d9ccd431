"""Long messages kept outside Redis."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from sayso.agent.messages import KeptText, Message
from sayso.channels.media import remove_older, sync_folder, write_atomically
from sayso.pending.concurrency import offload

log = logging.getLogger(__name__)


#: Characters of a text up to which it stays in Redis: the longest message of Telegram (WhatsApp's has 1,600), so that
#: what people type and read in one message never touches a disk. Longer texts are pasted, or come from tools.
MAX_INLINE_CHARS = 4096


#: Characters of a longer text that stay in Redis too: enough to tell its language, and what it was.
BEGINNING_CHARS = 1000


#: Characters of one text that are kept at all.
MAX_TEXT_CHARS = 100_000


#: Characters of a text that stay in Redis where no file can be had.
MAX_CUT_CHARS = 8000


#: Characters of long texts of earlier turns that one turn shows its model, about 25,000 tokens: the newest one whole,
#: older ones as far as there is room, and each of the others by its beginning.
MAX_RECALLED_CHARS = MAX_TEXT_CHARS


class TextStore(Protocol):
    """Where long texts are kept: files of the shared data folder. Called in threads."""

    def put(self, owner: str, text: str) -> str:
        """Keep a text; it is safe when this returns its reference. Raises OSError."""

    def get(self, owner: str, ref: str) -> str:
        """A text that was kept. Raises KeyError when it is gone, OSError when nobody can tell."""


class LongTexts:
    """The long texts of one person, for one turn. Without a store there are none: what is too long is cut.

    What cannot be kept or read makes no turn fail: it is cut, with a note for the model.
    """

    def __init__(self, store: TextStore | None, owner: str) -> None:
        self._store = store
        self._owner = owner

    async def keep(self, texts: Sequence[str]) -> list[KeptText | None]:
        """Put texts where they last, before anything names them. None for each that could not be kept."""
        if self._store is None or not texts:  # most turns: no thread, no disk
            return [None] * len(texts)
        try:
            return await offload(self._put, self._store, texts)
        except OSError as exc:
            log.warning("texts.not_kept", extra={"reason": type(exc).__name__})
            return [None] * len(texts)

    async def get(self, kept: KeptText) -> str | None:
        """A text that was kept. None: it is gone, or nobody can tell."""
        return await offload(self._get, kept)

    async def fold(self, messages: Sequence[dict[str, Any]]) -> None:
        """Make messages (`Message.to_dict`) what Redis is to hold: of what is long, its beginning and its reference."""
        for message in messages:
            for call in message.get("tool_calls", ()):
                call["parameters"] = _shortened(call["parameters"])
        long = [message for message in messages if _is_long(message)]
        if not long:
            return
        texts = [cut(message["content"], MAX_TEXT_CHARS) for message in long]
        for message, text, kept in zip(long, texts, await self.keep(texts), strict=True):
            message.update(_folded(text, kept))

    async def unfolded(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Messages of earlier turns as the model is to see them, as far as MAX_RECALLED_CHARS reach, newest first."""
        if not any(message.kept for message in messages):
            return messages
        return await offload(self._read_all, messages)

    def _put(self, store: TextStore, texts: Sequence[str]) -> list[KeptText | None]:
        return [KeptText(store.put(self._owner, text), len(text)) for text in texts]

    def _read_all(self, messages: Sequence[Message]) -> list[Message]:
        left, whole = MAX_RECALLED_CHARS, list(messages)
        for at in reversed(range(len(whole))):
            message = whole[at]
            if message.kept:
                content = self._shown(message.content, message.kept, left)
                left -= len(content)
                whole[at] = replace(message, content=content, kept=None)
        return whole

    def _shown(self, beginning: str, kept: KeptText, left: int) -> str:
        """As much of a text as there is room for, its beginning at least."""
        if left <= len(beginning):
            return f"{beginning} [cut, was {kept.chars} characters]"
        text = self._get(kept)
        return gone(beginning, kept) if text is None else cut(text, left)

    def _get(self, kept: KeptText) -> str | None:
        try:
            return self._store.get(self._owner, kept.ref) if self._store else None
        except (KeyError, OSError) as exc:
            log.warning("texts.not_read", extra={"reason": type(exc).__name__})
            return None


def gone(beginning: str, kept: KeptText) -> str:
    """What the model sees of a text whose file is not there any more."""
    return f"{beginning} [the rest is not there any more, was {kept.chars} characters]"


def cut(text: str, most: int) -> str:
    """A text of so many characters at most, ending in a note that tells how many it had."""
    if len(text) <= most:
        return text
    note = f" [cut, was {len(text)} characters]"
    return text[: max(0, most - len(note))] + note


def is_long(text: str) -> bool:
    """Whether a text is too long for Redis."""
    return len(text) > MAX_INLINE_CHARS


def _is_long(message: dict[str, Any]) -> bool:
    return is_long(message.get("content", "")) and "kept" not in message


def _folded(text: str, kept: KeptText | None) -> dict[str, Any]:
    if kept is None:
        return {"content": cut(text, MAX_CUT_CHARS)}
    return {"content": text[:BEGINNING_CHARS], "kept": kept.to_dict()}


def _shortened(value: Any) -> Any:
    """The arguments of a call with their long texts cut: the model wrote them itself, within its own limit."""
    if isinstance(value, str):
        return value if len(value) <= MAX_CUT_CHARS else cut(value, MAX_CUT_CHARS)
    if isinstance(value, dict):
        return {name: _shortened(each) for name, each in value.items()}
    return [_shortened(each) for each in value] if isinstance(value, (list, tuple)) else value


#: The folder's name in the data folder. Nothing in it has a link: media are served from a folder of their own.
FOLDER = "texts"


#: Seconds a text is kept after it was stored or read last: as long as the history of a conversation.
KEEP_SECONDS = 30 * 24 * 3600


_OWNER = re.compile(r"[0-9a-f]{20}")


_REF = re.compile(r"[0-9a-f]{64}")


class TextFiles:
    """Files in one folder, shared by all workers. One instance serves a whole process, from any thread.

    A name begins with its owner (`Scope.id`), so that one person's reference never reads another's text and all that
    is somebody's can be erased. It ends with the SHA-256 of the content, so a file that was cut short is none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, owner: str, text: str) -> str:
        """Keep a text; it is on disk when this returns its reference. Raises OSError."""
        data = _encoded(text)
        ref = hashlib.sha256(data).hexdigest()
        path = self._path(owner, ref)
        if _refreshed(path, len(data)):
            sync_folder(path.parent)  # whoever wrote it may not have come so far yet
        else:
            write_atomically(path, data)
        return ref

    def get(self, owner: str, ref: str) -> str:
        """A text that was kept, which is young again. Raises KeyError when it is gone or damaged, OSError."""
        path = self._path(owner, ref)
        try:
            data = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            raise KeyError(ref) from None
        if hashlib.sha256(data).hexdigest() != ref:
            raise KeyError(ref)
        return data.decode("utf-8", "surrogatepass")

    def sweep(self) -> int:
        """Remove what nobody stored or read for KEEP_SECONDS. Returns how many files went."""
        return remove_older(self._folder.glob("*/*"), time.time() - KEEP_SECONDS)

    def erase(self, owner: str) -> int:
        """Remove all texts of one person. Returns how many. Raises OSError."""
        _check(_OWNER, owner)
        found = list((self._folder / owner[:2]).glob(f"{owner}-*"))
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)

    def _path(self, owner: str, ref: str) -> Path:
        _check(_OWNER, owner)
        _check(_REF, ref)
        return self._folder / owner[:2] / f"{owner}-{ref}"


def _check(pattern: re.Pattern[str], name: str) -> None:
    """What is no name of ours is no part of a path."""
    if not pattern.fullmatch(name):
        raise KeyError(name)


def _encoded(text: str) -> bytes:
    """JSON can spell lone surrogates, so texts may hold them."""
    return text.encode("utf-8", "surrogatepass")


def _refreshed(path: Path, size: int) -> bool:
    """Whether the file is there, whole; then it is young again."""
    try:
        if path.stat().st_size != size:
            return False
        os.utime(path)
    except FileNotFoundError:
        return False
    return True
