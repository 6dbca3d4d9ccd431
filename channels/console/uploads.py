"""ConsoleFiles: what a person sends from the console's page, kept before the message that brings it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import BinaryIO
from urllib.parse import unquote

from itsdangerous import BadData, URLSafeSerializer

from sayso.channels.base import BadHook, FetchError, MediaStore
from sayso.channels.media import UNKNOWN_TYPE, settle_type
from sayso.channels.types import Media, owner_of

#: Files that one message may bring: as many as an album has elsewhere.
MAX_FILES = 10

#: What texts are, where the browser does not know or calls them what a spreadsheet would.
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
    """Raised for a file that is none of the kinds which a bot is given."""


class ConsoleFiles:
    """The inbound files of one console. A message names them by what `keep` gave, which only their sender can use."""

    def __init__(self, channel: str, media: MediaStore, keys: Sequence[str], salt: str) -> None:
        self._channel, self._media = channel, media
        self._names = URLSafeSerializer(list(reversed(keys)), salt=f"{salt}.file")  # itsdangerous signs with the last

    def keep(self, user_id: str, data: bytes, mime_type: str, filename: str) -> tuple[str, Media]:
        """Keep a file, and say what its message is to call it. Raises NotTaken, TooLarge, NoRoom, OSError."""
        if not data:
            raise NotTaken("the file is empty")
        kind = _settled(data, mime_type, filename)
        if kind == UNKNOWN_TYPE:
            raise NotTaken("not a file the bot takes: send a picture, sound, video, PDF, Office or text file")
        owner = owner_of(self._channel, user_id)
        media = self._media.put(data, mime_type=kind, filename=filename, owner=owner)
        return str(self._names.dumps([user_id, media.ref, media.mime_type, media.filename, media.size])), media

    def named(self, user_id: str, names: object) -> tuple[Media, ...]:
        """The files that somebody's message names, as ones that are still to be fetched. Raises BadHook."""
        if not isinstance(names, list) or len(names) > MAX_FILES:
            raise BadHook(f"files is no list of at most {MAX_FILES} names")
        return tuple(self._media_of(user_id, name) for name in names)

    def copy(self, media: Media, file: BinaryIO) -> None:
        """Write a file that was kept to an open file. Raises FetchError and OSError."""
        try:
            kept = self._media.open(media.ref)
        except KeyError:
            raise FetchError("the file is gone from the media store") from None
        with kept:
            shutil.copyfileobj(kept, file)

    def _media_of(self, user_id: str, name: object) -> Media:
        try:
            owner, ref, mime_type, filename, size = self._names.loads(name if isinstance(name, str) else "")
        except (BadData, UnicodeError) as exc:
            raise BadHook("files has a name that is not one of ours: send what the upload answered") from exc
        if owner != user_id:
            raise BadHook("files has a name that somebody else was given")
        return Media(ref, mime_type, filename, size)


def spelled(header: str) -> str:
    """A file name as the page spells it in a header, which takes no other letters: percent-encoded."""
    return unquote(header, errors="replace")


def _settled(data: bytes, declared: str, filename: str) -> str:
    """What the bytes prove, else what the browser says, else what the name says, of texts alone."""
    kind = settle_type(data, declared)
    return kind if kind != UNKNOWN_TYPE else settle_type(data, _ENDINGS.get(filename.rpartition(".")[2].lower(), ""))
