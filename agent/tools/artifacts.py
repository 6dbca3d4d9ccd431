"""Artifact: a file that a tool made, delivered beside the reply and never through the model."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sayso.channels.media import MAX_BYTES
from sayso.channels.types import Media
from sayso.workers.installed import installed

#: The MIME type of bytes that nobody named.
UNKNOWN_MIME_TYPE = "application/octet-stream"

#: Bytes of one artifact: what the media store takes.
MAX_ARTIFACT_BYTES = MAX_BYTES


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file made by a tool: at a URL, or as the bytes in `data`, which the run's caller puts in the media store.

    `sha256` and `size` tell which file it was after the URL is gone. `data` stays out of repr and `to_dict`; so does
    `kept`, the file in the media store once it is there. One that is `shown` is an image that the model looks at, too.
    """

    url: str = ""
    mime_type: str = UNKNOWN_MIME_TYPE
    filename: str = ""
    sha256: str = ""
    size: int = 0
    role: str = "primary"
    retention: str = ""
    shown: bool = False
    data: bytes | None = field(default=None, repr=False, compare=False)
    kept: Media | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the bytes, JSON-ready."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("data", "kept")}


#: A path may have a colon, too, and on Windows begins with one letter and it.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

#: What a URL cannot hold, and what Python's own reader of URLs passes over.
_UNPRINTED = re.compile(r"[\x00-\x20\x7f]")

_collector: ContextVar[list[Artifact] | None] = ContextVar("sayso_artifacts", default=None)


def collect_artifacts() -> AbstractContextManager[list[Artifact]]:
    """Collect what `emit_artifact` makes in this context, in the tasks and in the threads started from it."""
    return installed(_collector, [])


class ArtifactsOfACall:
    """What is made inside reaches the run only when nothing is raised: a call that failed leaves no file behind, and
    one that is made again leaves it once.

    No `contextmanager`, which would take as long as checking the arguments.
    """

    __slots__ = ("_outer", "_token")

    def __enter__(self) -> None:
        self._outer = _collector.get()
        if self._outer is not None:
            self._token = _collector.set([])

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._outer is None:
            return
        made = _collector.get() or []
        _collector.reset(self._token)
        if kind is None:
            self._outer += made


def emit_artifact(
    source: str | Path | bytes | bytearray | memoryview | None = None,
    *,
    url: str | None = None,
    path: str | Path | None = None,
    data: bytes | bytearray | memoryview | None = None,
    mime_type: str | None = None,
    filename: str = "",
    sha256: str = "",
    size: int = 0,
    role: str = "primary",
    retention: str = "",
    shown: bool = False,
) -> Artifact:
    """Hand a file to the user from inside a tool: exactly one of its URL, its path or its bytes.

    The `source` may be any of them: text with a scheme is a URL, other text a path. Files and bytes go through the
    media store; their `sha256` and `size` (bytes) are computed, and for a URL they are taken as given. A call that
    fails delivers none. Outside a run nothing collects it; the Artifact comes back all the same (seed: Artifacts).
    Raises ValueError for anything but one source, for a URL that no platform can fetch, and for a file that is not
    there or has more than MAX_ARTIFACT_BYTES. An image that is `shown` is seen by the model in this run, if it can see.
    """
    if sum(each is not None for each in (source, url, path, data)) != 1:
        raise ValueError("emit_artifact needs exactly one of url, path= or data=")
    if isinstance(source, bytes | bytearray | memoryview):
        data = source
    elif isinstance(source, Path) or (isinstance(source, str) and not _SCHEME.match(source)):
        path = source
    elif source is not None:
        url = source
    place = _place(url) if url is not None else ""
    if path is not None:
        data, filename = _read(Path(path)), filename or Path(path).name
    data = None if data is None else bytes(data)  # a copy: the tool may go on with its own
    if data is not None and len(data) > MAX_ARTIFACT_BYTES:
        raise ValueError(f"{filename or 'artifact'!r} has {len(data)} bytes: at most {MAX_ARTIFACT_BYTES} can be sent")
    if data is not None:  # what we can count ourselves we do not take on trust
        sha256, size = hashlib.sha256(data).hexdigest(), len(data)
    mime_type = mime_type or mimetypes.guess_type(filename or place)[0] or UNKNOWN_MIME_TYPE
    artifact = Artifact(url or "", mime_type, filename, sha256, size, role, retention, shown, data)
    collected = _collector.get()
    if collected is not None:
        collected.append(artifact)
    return artifact


def _place(url: str) -> str:
    """The path of a URL, which is what names its kind. Raises ValueError for one that no platform can fetch."""
    try:
        parts = urlsplit(url)
        can_be_fetched = parts.scheme in ("http", "https") and parts.hostname and not _UNPRINTED.search(url)
    except ValueError:  # brackets that hold no address
        can_be_fetched = False
    if not can_be_fetched:
        raise ValueError(f"no platform can fetch {url!r}: give an https URL, or the file itself with path= or data=")
    return parts.path


def _read(path: Path) -> bytes:
    if "\0" in str(path):
        raise ValueError(f"cannot read the artifact {str(path)!r}: no path holds a NUL character")
    try:
        if path.stat().st_size > MAX_ARTIFACT_BYTES:
            raise ValueError(f"{path.name!r} has {path.stat().st_size} bytes: at most {MAX_ARTIFACT_BYTES} can be sent")
        return path.read_bytes()
    except OSError as exc:
        raise ValueError(f"cannot read the artifact {str(path)!r} ({exc.strerror}): check the path") from exc
