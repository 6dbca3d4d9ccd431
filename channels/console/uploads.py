"""ConsoleFiles: files that people upload on the console page, before they send the message with them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import BinaryIO

from itsdangerous import BadData, URLSafeSerializer

from sayso.channels.base import BadHook, FetchError, MediaStore
from sayso.channels.storage.media import UNKNOWN_TYPE, settle_type
from sayso.channels.types import Media, owner_of

#: How many files one message may have: as many as an album on other platforms.
MAX_FILES = 10
#: Types of text files by their ending, for browsers that do not name a type or name that of a spreadsheet.
_ENDINGS = {
    "csv": "text/csv",
    "ics": "text/calendar",
    "json": "application/json",
    "log": "text/plain",
    "md": "text/markdown",
    "txt": "text/plain",
    "vcf": "text/vcard",
}


class NotTaken(BadHook):
    """Raised for a file of a type that the bot does not accept."""


class ConsoleFiles:
    """The uploaded files of one console. A message refers to them by signed names that only their sender can use."""

    def __init__(self, channel: str, media: MediaStore, keys: Sequence[str], salt: str) -> None:
        self._channel, self._media = channel, media
        self._names = URLSafeSerializer(
            list(reversed(keys)), salt=f"{salt}.file"
        )  # itsdangerous signs with the last key

    def keep(self, user_id: str, data: bytes, mime_type: str, filename: str) -> tuple[str, Media]:
        """Store a file. Return its signed name for the message. Raises NotTaken, TooLarge, NoRoom, OSError."""
        if not data:
            raise NotTaken("the file is empty")
        kind = settle_type(data, mime_type)
        if kind == UNKNOWN_TYPE:  # text files have no magic bytes
            kind = settle_type(data, _ENDINGS.get(filename.rpartition(".")[2].lower(), ""))
        if kind == UNKNOWN_TYPE:
            raise NotTaken("the bot does not accept this file: send a picture, sound, video, PDF, Office or text file")
        owner = owner_of(self._channel, user_id)
        media = self._media.put(data, mime_type=kind, filename=filename, owner=owner)
        return str(self._names.dumps([user_id, media.ref, media.mime_type, media.filename, media.size])), media

    def named(self, user_id: str, names: object) -> tuple[Media, ...]:
        """Return the files that a user's message names, to be fetched by `copy`. Raises BadHook."""
        if not isinstance(names, list) or len(names) > MAX_FILES:
            raise BadHook(f"files must be a list of at most {MAX_FILES} names")
        return tuple(self._media_of(user_id, name) for name in names)

    def copy(self, media: Media, file: BinaryIO) -> None:
        """Copy a stored file into an open file. Raises FetchError and OSError."""
        try:
            stored = self._media.open(media.ref)
        except KeyError:
            raise FetchError("the file is gone from the media store") from None
        with stored:
            shutil.copyfileobj(stored, file)

    def _media_of(self, user_id: str, name: object) -> Media:
        try:
            owner, ref, mime_type, filename, size = self._names.loads(name if isinstance(name, str) else "")
        except (BadData, UnicodeError) as exc:
            raise BadHook("files has an unknown name: send the name that the upload returned") from exc
        if owner != user_id:
            raise BadHook("files has a name that belongs to another user")
        return Media(ref, mime_type, filename, size)
