"""LongTexts: stores the texts of a turn that are too long for Redis in files."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sayso.agent.messages import KeptText, Message
from sayso.channels.storage.objects import DATE_SECONDS, ObjectStore, sweep
from sayso.pending.concurrency import call_in_thread

log = logging.getLogger(__name__)

#: Characters of a text that may stay in Redis: the longest message of Telegram (WhatsApp allows 1,600), so that what
#: people type and read in one message never needs a disk. Longer texts are pasted, or come from tools.
MAX_INLINE_CHARS = 4096

#: Characters at the beginning of a longer text that stay in Redis: enough to detect its language and its subject.
BEGINNING_CHARS = 1000

#: Characters of one text that are stored at all.
MAX_TEXT_CHARS = 100_000

#: Characters of a text that stay in Redis where no file can be written.
MAX_CUT_CHARS = 8000

#: Characters of long texts of earlier turns that one turn shows its model, about 25,000 tokens: the newest text in
#: full, older ones while there is room, and only the beginning of the others.
MAX_HISTORY_CHARS = MAX_TEXT_CHARS


class LongTexts:
    """The long texts of one person, for one turn. Without a store, texts that are too long are cut.

    A text that cannot be stored or read does not fail the turn: it is cut, with a note for the model.
    """

    def __init__(self, store: TextFiles | None, owner: str) -> None:
        self._store = store
        self._owner = owner

    async def store(self, texts: Sequence[str]) -> list[KeptText | None]:
        """Store texts durably. Return the reference of each; None for one that could not be stored."""
        if self._store is None or not texts:  # most turns need no thread and no disk
            return [None] * len(texts)
        try:
            store = self._store
            return await call_in_thread(lambda: [KeptText(store.put(self._owner, text), len(text)) for text in texts])
        except OSError as exc:
            log.warning("texts.not_stored", extra={"reason": type(exc).__name__})
            return [None] * len(texts)

    async def load(self, reference: KeptText) -> str | None:
        """Return a stored text; None if it was deleted or cannot be read."""
        return await call_in_thread(self._load, reference)

    async def move_to_files(self, messages: Sequence[dict[str, Any]]) -> None:
        """Replace each long text of the messages (`Message.to_dict`) by its beginning and a reference to a file."""
        for message in messages:
            for call in message.get("tool_calls", ()):
                call["parameters"] = _shorten_arguments(call["parameters"])
        long = [each for each in messages if is_long(each.get("content", "")) and "kept" not in each]
        if not long:
            return
        texts = [shorten(message["content"], MAX_TEXT_CHARS) for message in long]
        for message, text, reference in zip(long, texts, await self.store(texts), strict=True):
            if reference is None:
                message["content"] = shorten(text, MAX_CUT_CHARS)
            else:
                message |= {"content": text[:BEGINNING_CHARS], "kept": reference.to_dict()}

    def read_history(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages of earlier turns with their long texts: the newest first, up to MAX_HISTORY_CHARS.

        It reads files, so call it in a thread.
        """
        room, complete = MAX_HISTORY_CHARS, list(messages)
        for at in reversed(range(len(complete))):
            message, beginning, reference = complete[at], complete[at].content, complete[at].kept
            if reference is None:
                continue
            content = f"{beginning} [cut, was {reference.chars} characters]"
            if room > len(beginning):
                text = self._load(reference)
                content = with_lost_note(beginning, reference) if text is None else shorten(text, room)
            room -= len(content)
            complete[at] = replace(message, content=content, kept=None)
        return complete

    def _load(self, reference: KeptText) -> str | None:
        try:
            return self._store.get(self._owner, reference.ref) if self._store else None
        except (KeyError, OSError) as exc:
            log.warning("texts.not_read", extra={"reason": type(exc).__name__})
            return None


def with_lost_note(beginning: str, reference: KeptText) -> str:
    """Return what the model sees of a text whose file was deleted."""
    return f"{beginning} [the rest is not there any more, was {reference.chars} characters]"


def shorten(text: str, max_chars: int) -> str:
    """Return the text in at most `max_chars` characters. A note at the end tells how many it had."""
    if len(text) <= max_chars:
        return text
    note = f" [cut, was {len(text)} characters]"
    return text[: max(0, max_chars - len(note))] + note


def is_long(text: str) -> bool:
    """Return whether a text is too long for Redis."""
    return len(text) > MAX_INLINE_CHARS


def _shorten_arguments(value: Any) -> Any:
    """Return the arguments of a call with long texts cut. The model wrote them itself, within its own limit."""
    if isinstance(value, str):
        return shorten(value, MAX_CUT_CHARS)
    if isinstance(value, dict):
        return {name: _shorten_arguments(each) for name, each in value.items()}
    return [_shorten_arguments(each) for each in value] if isinstance(value, (list, tuple)) else value


#: Name of the folder in the data folder, or in the bucket. Its files are never served; media have one of their own.
FOLDER = "texts"

#: How long a text is kept after it was last stored or read, in seconds: as long as the history of a conversation.
KEEP_SECONDS = 30 * 24 * 3600
_OWNER = re.compile(r"[0-9a-f]{20}")
_REF = re.compile(r"[0-9a-f]{64}")


class TextFiles:
    """Long texts in an object store, shared by all workers. One per process; thread-safe.

    A name begins with the owner (`Scope.id`), so that a person's reference never reads another person's text, and
    all texts of a person can be erased. It ends with the SHA-256 of the content, which reveals a truncated file.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def put(self, owner: str, text: str) -> str:
        """Store a text durably, and return its reference. Raises OSError."""
        data = text.encode("utf-8", "surrogatepass")  # JSON can contain lone surrogates
        ref = hashlib.sha256(data).hexdigest()
        self._objects.put(_name(owner, ref), data)
        return ref

    def get(self, owner: str, ref: str) -> str:
        """Return a stored text, and extend its life. Raises KeyError if it is deleted or damaged, and OSError."""
        name = _name(owner, ref)
        with self._objects.open(name) as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != ref:
            raise KeyError(ref)
        stored = self._objects.stat(name)
        if stored and stored.modified_at < time.time() - DATE_SECONDS:
            self._objects.put(name, data)
        return data.decode("utf-8", "surrogatepass")

    def sweep(self) -> int:
        """Delete texts that were not stored or read for KEEP_SECONDS. Return how many. Raises OSError."""
        return sweep(self._objects, KEEP_SECONDS, time.time())

    def erase(self, owner: str) -> int:
        """Delete all texts of one person. Return how many. Raises OSError."""
        _check(_OWNER, owner)
        names = [each.name for each in self._objects.list(f"{owner[:2]}/{owner}-")]
        self._objects.delete(names)
        return len(names)


def _name(owner: str, ref: str) -> str:
    _check(_OWNER, owner)
    _check(_REF, ref)
    return f"{owner[:2]}/{owner}-{ref}"


def _check(pattern: re.Pattern[str], name: str) -> None:
    """Raise KeyError for a name that is not of our form: it must not become part of a path."""
    if not pattern.fullmatch(name):
        raise KeyError(name)
