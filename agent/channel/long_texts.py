"""LongTexts: stores the texts of a turn that are too long for Redis in files.

The history in Redis has a part of such a text, and a reference to its file (`TextReference`). A
model reads on in a long result with the tool `read_result`; long texts of people it gets in full
while there is room.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sayso.agent.memory.conversation import LOW_WATER_SHARE, surplus_in_steps
from sayso.agent.messages import Message, Role, TextReference
from sayso.agent.run.long_results import (
    MAX_WHOLE_CHARS,
    REMEMBERED_CHARS,
    digest_id,
    is_long,
    part_to_store,
    shorten_result,
)
from sayso.agent.tools.text_cuts import shorten
from sayso.infra.concurrency import call_in_thread
from sayso.infra.storage.objects import DATE_SECONDS, ObjectStore, sweep

log = logging.getLogger(__name__)

#: Characters at the beginning of a long text of a person that stay in Redis: enough to detect its
#: language and its subject. A result of a tool keeps its beginning and end
#: (`sayso.agent.run.long_results`).
BEGINNING_CHARS = 1000

#: Characters of one text that are stored at most. Results have another limit, MAX_FULL_CHARS.
MAX_TEXT_CHARS = 100_000

#: Characters of a text that stay in Redis where no file can be written.
MAX_CUT_CHARS = 8000

#: Characters of long texts of people in earlier turns that a model reads in one turn, about 25,000
#: tokens: the newest text in full, older ones while there is room, and only the beginning of the
#: others.
MAX_HISTORY_CHARS = MAX_TEXT_CHARS
#: Once there is no room, this many characters are left out at once. Until they are filled again,
#: the model reads the same older texts in each turn, so that the vendor's cache knows them.
HISTORY_STEP_CHARS = int(MAX_HISTORY_CHARS * LOW_WATER_SHARE)


class LongTexts:
    """The long texts of one person. Lives as long as one attempt at a turn.

    `store` has the files of all persons; None: texts that are too long are cut. `owner` is the
    person in the conversation (`Scope.id`). A text that cannot be stored or read never makes the
    turn fail: it is cut, with a note for the model.
    """

    def __init__(self, store: TextFiles | None, owner: str) -> None:
        self._store = store
        self._owner = owner

    async def store(self, texts: Sequence[str]) -> list[TextReference | None]:
        """Store texts durably.

        Return the reference of each; None for one that could not be stored.
        """
        if self._store is None or not texts:  # most turns need no thread and no disk
            return [None] * len(texts)
        try:
            store = self._store
            return await call_in_thread(
                lambda: [TextReference(store.put(self._owner, text), len(text)) for text in texts]
            )
        except OSError as exc:
            log.warning("texts.not_stored", extra={"reason": type(exc).__name__})
            return [None] * len(texts)

    async def load(self, reference: TextReference) -> str | None:
        """Return a stored text; None if it was deleted or cannot be read."""
        return await call_in_thread(self._load, reference)

    async def move_to_files(self, messages: Sequence[dict[str, Any]]) -> None:
        """Replace each long text of the messages by a part of it and a reference to a file.

        The messages are those of `Message.to_dict`, and are changed in place.
        """
        for message in messages:
            for call in message.get("tool_calls", ()):
                call["parameters"] = _shorten_arguments(call["parameters"])
        long_messages = [each for each in messages if "text_file" not in each and _full_text(each)]
        if not long_messages:
            return
        texts = [_full_text(message) for message in long_messages]
        references = await self.store(texts)
        for message, text, reference in zip(long_messages, texts, references, strict=True):
            message.update(_stored_part(message, text, reference))
            if reference is not None:
                message["text_file"] = reference.to_dict()
            message.pop("full_text", None)

    def read_history(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages of earlier turns with the long texts of people.

        The newest texts are complete, as many as fit into MAX_HISTORY_CHARS. Results stay as they
        are: the model reads on in them if it needs to. This reads files, so call it in a thread.
        """
        references = {}
        for at, message in enumerate(messages):
            if message.text_file is not None and message.role is not Role.TOOL:
                references[at] = message.text_file
        total = sum(reference.chars for reference in references.values())

        # From the oldest to the newest text: `room` is what remains after the characters that must
        # be left out. It is negative as long as all texts so far are left out.
        room = -surplus_in_steps(total, MAX_HISTORY_CHARS, HISTORY_STEP_CHARS)
        complete = list(messages)
        for at, reference in references.items():
            room += reference.chars
            content = self._in_room(messages[at].content, reference, room)
            complete[at] = replace(messages[at], content=content, text_file=None)
        return complete

    def _in_room(self, beginning: str, reference: TextReference, room: int) -> str:
        """Return a long text in at most `room` characters, which may be negative.

        If there is no room for even its beginning, return the beginning with a note.
        """
        if room < len(beginning):
            return f"{beginning} [cut, was {reference.chars} characters]"
        text = self._load(reference)
        if text is None:
            return with_lost_note(beginning, reference)
        return shorten(text, room)

    def _load(self, reference: TextReference) -> str | None:
        """Return a stored text; None if it was deleted or cannot be read. Blocks."""
        if self._store is None:
            return None
        try:
            return self._store.get(self._owner, reference.ref)
        except (KeyError, OSError) as exc:
            log.warning("texts.not_read", extra={"reason": type(exc).__name__})
            return None


def with_lost_note(beginning: str, reference: TextReference) -> str:
    """Return what the model sees of a text whose file was deleted."""
    return f"{beginning} [the rest is not there any more, was {reference.chars} characters]"


def _full_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, if it is too long for Redis; else ""."""
    if "full_text" in message:
        return str(message["full_text"])
    text = str(message.get("content", ""))
    if not is_long(text):
        return ""
    if message["role"] == Role.TOOL.value:
        return part_to_store(text)
    return shorten(text, MAX_TEXT_CHARS)


def _stored_part(
    message: Mapping[str, Any], text: str, reference: TextReference | None
) -> dict[str, str]:
    """Return the field `content` that stays in Redis of a message with this long text.

    `reference` is the file with the text; None: it could not be stored, so more of it stays. Return
    {} if the content is short already.
    """
    if message["role"] != Role.TOOL.value:
        content = text[:BEGINNING_CHARS]
        if reference is None:
            content = shorten(text, MAX_CUT_CHARS)
        return {"content": content}
    if "full_text" in message and reference is not None:
        return {}  # it was shortened at the end of its turn
    if reference is None:
        return {"content": shorten_result(text, MAX_WHOLE_CHARS)}
    return {"content": shorten_result(text, REMEMBERED_CHARS, digest_id(text))}


def _shorten_arguments(value: Any) -> Any:
    """Return the arguments of a call with long texts cut.

    No file is needed: the model wrote them itself, and no answer of a model is very long.
    """
    if isinstance(value, str):
        return shorten(value, MAX_CUT_CHARS)
    if isinstance(value, dict):
        return {name: _shorten_arguments(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shorten_arguments(each) for each in value]
    return value


#: Name of the folder in the data folder, or in the bucket. Its files are never served;
#: media are in another one.
FOLDER = "texts"

#: How long a text is kept after it was last stored or read, in seconds:
#: as long as the history of a conversation.
KEEP_SECONDS = 30 * 24 * 3600
_OWNER = re.compile(r"[0-9a-f]{20}")
_REF = re.compile(r"[0-9a-f]{64}")


class TextFiles:
    """Long texts in an object store, shared by all workers. One per process; thread-safe.

    A name begins with the owner (`Scope.id`), so that a person's reference never reads another
    person's text, and all texts of a person can be erased. It ends with the SHA-256 of the content,
    which reveals a truncated file.
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
        """Return a stored text, and extend its life.

        Raises KeyError if it is deleted or damaged, and OSError.
        """
        name = _name(owner, ref)
        with self._objects.open(name) as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != ref:
            raise KeyError(ref)
        stored_object = self._objects.stat(name)
        if stored_object and stored_object.modified_at < time.time() - DATE_SECONDS:
            self._objects.put(name, data)
        return data.decode("utf-8", "surrogatepass")

    def sweep(self) -> int:
        """Delete texts that were not stored or read for KEEP_SECONDS.

        Return how many. Raises OSError.
        """
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
