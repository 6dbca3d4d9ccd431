"""Artifact: a file that a tool made, delivered beside the reply and never through the model."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from channels.types import Media

#: The MIME type of bytes that nobody named.
UNKNOWN_MIME_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file made by a tool: at a URL, or as the bytes in `data`, which the run's caller puts in the media store.

    `sha256` and `size` tell which file it was after the URL is gone. `data` stays out of repr and `to_dict`; so does
    `kept`, the file in the media store once it is there.
    """

    url: str = ""
    mime_type: str = UNKNOWN_MIME_TYPE
    filename: str = ""
    sha256: str = ""
    size: int = 0
    role: str = "primary"
    retention: str = ""
    data: bytes | None = field(default=None, repr=False, compare=False)
    kept: Media | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the bytes, JSON-ready."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("data", "kept")}


_collector: ContextVar[list[Artifact] | None] = ContextVar("sayso_artifacts", default=None)


@contextmanager
def collect_artifacts() -> Iterator[list[Artifact]]:
    """Collect what `emit_artifact` makes in this context, in the tasks and in the threads started from it."""
    collected: list[Artifact] = []
    token = _collector.set(collected)
    try:
        yield collected
    finally:
        _collector.reset(token)


def emit_artifact(
    url: str | None = None,
    *,
    path: str | Path | None = None,
    data: bytes | None = None,
    mime_type: str | None = None,
    filename: str = "",
    sha256: str = "",
    size: int = 0,
    role: str = "primary",
    retention: str = "",
) -> Artifact:
    """Hand a file to the user from inside a tool: exactly one of its URL, its path or its bytes.

    Outside a run nothing collects it; the Artifact comes back all the same.
    """
    if sum(source is not None for source in (url, path, data)) != 1:
        raise ValueError("emit_artifact needs exactly one of url, path= or data=")
    if path is not None:
        data, filename = Path(path).read_bytes(), filename or Path(path).name
    if data is not None:  # what we can count ourselves we do not take on trust
        sha256, size = hashlib.sha256(data).hexdigest(), len(data)
    mime_type = mime_type or mimetypes.guess_type(filename or url or "")[0] or UNKNOWN_MIME_TYPE
    artifact = Artifact(url or "", mime_type, filename, sha256, size, role, retention, data)
    collected = _collector.get()
    if collected is not None:
        collected.append(artifact)
    return artifact
