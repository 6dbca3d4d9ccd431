"""Made: where the files are that tools made, and those that people sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from sayso.agent.channel.context import TurnContext
from sayso.agent.messages import Role
from sayso.agent.tools.context import Artifact, ReceivedFile
from sayso.channels.types import Media, Turn, named, owner_of
from sayso.pending.concurrency import offload

log = logging.getLogger(__name__)


class ArtifactStore(Protocol):
    """Where files are kept."""

    def put(self, data: bytes, *, mime_type: str, filename: str, owner: str) -> Media:
        """Store the bytes of this person."""

    def read(self, ref: str) -> bytes:
        """The stored bytes. Raises KeyError when the file is gone."""


class TurnFiles:
    """Puts files into the media store, if there is one, and finds there what people sent."""

    def __init__(self, sink: ArtifactStore | None) -> None:
        self._sink = sink

    def received(self, case: TurnContext) -> list[ReceivedFile]:
        """What the person sent, as far as the conversation remembers it, and with this turn."""
        said = [message for message in case.memory.get_history() if message.role is Role.USER]
        files = [media for message in said for media in message.media] + list(case.turn.media)
        once = dict.fromkeys(reversed(files))  # what is sent again is there once, where it was sent last
        return [self._found(media) for media in reversed(once) if media.stored]

    def _found(self, media: Media) -> ReceivedFile:
        return ReceivedFile(named(media).filename, media.mime_type, media.size, media.ref, self._read)

    def _read(self, ref: str) -> bytes:
        if self._sink is None:
            raise KeyError(ref)
        return self._sink.read(ref)

    async def kept(self, artifacts: Sequence[Artifact], turn: Turn) -> list[Media]:
        """The files that can be delivered."""
        stored = [await self.stored(turn, artifact) for artifact in artifacts]
        return [artifact.kept for artifact in stored if artifact.kept]

    async def of_effect(self, artifacts: list[Artifact], turn: Turn) -> list[Media]:
        """What was done is done: a file that cannot be kept must not turn its outcome into an error."""
        try:
            return await self.kept(artifacts, turn)
        except Exception:
            log.exception("pending.files_lost")
            return []

    async def stored(self, turn: Turn, artifact: Artifact) -> Artifact:
        """The file in the media store, once, as one of its person; what has no bytes or no store stays as it is."""
        if artifact.kept or artifact.data is None or self._sink is None:
            return artifact
        name = artifact.filename or "file"
        owner = owner_of(turn.conversation.channel, turn.user_id)
        kept = await offload(self._sink.put, artifact.data, mime_type=artifact.mime_type, filename=name, owner=owner)
        return replace(artifact, data=None, kept=kept)
