"""TurnFiles: the files that people send and tools make, stored and read for one channel."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sayso.agent.channel.context import TurnContext
from sayso.agent.messages import Role
from sayso.agent.tools.environment import Artifact, ReceivedFile
from sayso.channels.base import MediaStore
from sayso.channels.types import Media, Turn, owner_of, with_filename
from sayso.infra.concurrency import call_in_thread
from sayso.infra.storage.spooled import SpooledBytes

log = logging.getLogger(__name__)


class TurnFiles:
    """The files that people send and tools make on one channel. Lives as long as its agent.

    `store` is where they are stored; None: they can be neither stored nor read.
    """

    def __init__(self, store: MediaStore | None) -> None:
        self._store = store

    @property
    def spool_folder(self) -> Path | None:
        """The folder where files of tools wait until they are stored.

        None stands for the system's folder for temporary files.
        """
        return self._store.spool_folder if self._store else None

    def received(self, context: TurnContext) -> list[ReceivedFile]:
        """Return the files that the person sent with this turn and earlier in the conversation.

        The oldest comes first.
        """
        files: list[Media] = []
        for message in context.memory.get_history():
            if message.role is Role.USER:
                files += message.media
        files += context.turn.media
        # A file that was sent twice counts where it was sent last.
        newest_first = dict.fromkeys(reversed(files))
        received = []
        for media in reversed(newest_first):
            if not media.stored:
                continue
            name = with_filename(media).filename
            received.append(ReceivedFile(name, media.mime_type, media.size, media.ref, self._read))
        return received

    def _read(self, ref: str) -> bytes:
        """Return the bytes of a stored file. Raises KeyError if there is none."""
        if self._store is None:
            raise KeyError(ref)
        return self._store.read(ref)

    async def store_all(self, artifacts: Sequence[Artifact], turn: Turn) -> list[Media]:
        """Store the files, and return those that can be delivered."""
        stored_files = [await self.store(turn, artifact) for artifact in artifacts]
        return [artifact.media for artifact in stored_files if artifact.media]

    async def store_after_effect(
        self, artifacts: list[Artifact], turn: Turn, action_id: str
    ) -> list[Media]:
        """Store the files of a confirmed action.

        A failure is logged, and must not turn the outcome into an error.
        """
        try:
            return await self.store_all(artifacts, turn)
        except Exception:
            log.exception("pending.files_lost", extra={"action": action_id})
            return []

    async def store(self, turn: Turn, artifact: Artifact) -> Artifact:
        """Store a file as the user's, unless it is stored or has no bytes.

        Return the artifact with its place.
        """
        if artifact.media or artifact.content is None or self._store is None:
            return artifact
        owner = owner_of(turn.conversation.channel, turn.user_id)
        media = await call_in_thread(_put, self._store, artifact, artifact.content, owner)
        return replace(artifact, content=None, media=media)


def _put(store: MediaStore, artifact: Artifact, content: SpooledBytes, owner: str) -> Media:
    with content.opened() as file:
        name = artifact.filename or "file"
        return store.put(file, mime_type=artifact.mime_type, filename=name, owner=owner)
