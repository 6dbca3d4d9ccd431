"""TurnFiles: stores files that tools made, and reads files that people sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from sayso.agent.channel.context import TurnContext
from sayso.agent.messages import Role
from sayso.agent.tools.context import Artifact, ReceivedFile
from sayso.channels.types import Media, Turn, named, owner_of
from sayso.pending.concurrency import call_in_thread

log = logging.getLogger(__name__)


class ArtifactStore(Protocol):
    """Stores files by reference."""

    def put(self, data: bytes, *, mime_type: str, filename: str, owner: str) -> Media:
        """Store a file of this person."""

    def read(self, ref: str) -> bytes:
        """Return the bytes of a file. Raises KeyError if it was deleted."""


class TurnFiles:
    """The files of one channel. Without a store, files can be neither kept nor read."""

    def __init__(self, store: ArtifactStore | None) -> None:
        self._store = store

    def received(self, context: TurnContext) -> list[ReceivedFile]:
        """Return the files that the person sent with this turn and earlier in the conversation, oldest first."""
        messages = [message for message in context.memory.get_history() if message.role is Role.USER]
        files = [media for message in messages for media in message.media] + list(context.turn.media)
        latest = dict.fromkeys(reversed(files))  # a file that was sent twice counts where it was sent last
        return [
            ReceivedFile(named(media).filename, media.mime_type, media.size, media.ref, self._read)
            for media in reversed(latest)
            if media.stored
        ]

    def _read(self, ref: str) -> bytes:
        if self._store is None:
            raise KeyError(ref)
        return self._store.read(ref)

    async def store_all(self, artifacts: Sequence[Artifact], turn: Turn) -> list[Media]:
        """Store the files, and return those that can be delivered."""
        stored = [await self.store(turn, artifact) for artifact in artifacts]
        return [artifact.kept for artifact in stored if artifact.kept]

    async def store_after_effect(self, artifacts: list[Artifact], turn: Turn) -> list[Media]:
        """Store the files of a confirmed action. A failure is logged, and must not turn the outcome into an error."""
        try:
            return await self.store_all(artifacts, turn)
        except Exception:
            log.exception("pending.files_lost")
            return []

    async def store(self, turn: Turn, artifact: Artifact) -> Artifact:
        """Store a file as the user's, unless it is stored or has no bytes. Return the artifact with its place."""
        if artifact.kept or artifact.data is None or self._store is None:
            return artifact
        name = artifact.filename or "file"
        owner = owner_of(turn.conversation.channel, turn.user_id)
        kept = await call_in_thread(
            self._store.put, artifact.data, mime_type=artifact.mime_type, filename=name, owner=owner
        )
        return replace(artifact, data=None, kept=kept)
