"""Made: the files that tools made, put where they are delivered from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from agent.tools.artifacts import Artifact
from channels.types import Media
from workers.offload import offload

log = logging.getLogger(__name__)


class MediaSink(Protocol):
    """Where files made by tools are kept for delivery."""

    def put(self, data: bytes, *, mime_type: str, filename: str) -> Media:
        """Store the bytes."""


class Made:
    """Puts files into the media store, if there is one."""

    def __init__(self, sink: MediaSink | None) -> None:
        self._sink = sink

    async def kept(self, artifacts: Sequence[Artifact]) -> list[Media]:
        """The files that can be delivered."""
        stored = [await self.stored(artifact) for artifact in artifacts]
        return [artifact.kept for artifact in stored if artifact.kept]

    async def of_effect(self, artifacts: list[Artifact]) -> list[Media]:
        """What was done is done: a file that cannot be kept must not turn its outcome into an error."""
        try:
            return await self.kept(artifacts)
        except Exception:
            log.exception("pending.files_lost")
            return []

    async def stored(self, artifact: Artifact) -> Artifact:
        """The file in the media store, once; what has no bytes, or no store to go to, stays as it is."""
        if artifact.kept or artifact.data is None or self._sink is None:
            return artifact
        name = artifact.filename or "file"
        kept = await offload(self._sink.put, artifact.data, mime_type=artifact.mime_type, filename=name)
        return replace(artifact, data=None, kept=kept)
