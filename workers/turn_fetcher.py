"""TurnFetcher: fetches what a turn refers to before it is answered: files and a quoted message."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

from sayso.channels.base import Channel, FetchError, QuoteSource
from sayso.channels.media_store import MediaFiles
from sayso.channels.types import Media, owner_of, with_filename
from sayso.infra.concurrency import call_in_thread
from sayso.infra.storage.objects import StoreUnavailable
from sayso.pending.turns import QueuedTurn
from sayso.workers.platform_places import PlatformPlaces

log = logging.getLogger(__name__)

#: After how many seconds a turn is answered without the text that it quotes.
QUOTE_SECONDS = 5.0
#: After how many seconds of download a turn is answered without an inbound file.
FETCH_SECONDS = 30.0
#: The same, counted from when the file was first wanted: downloads wait for each other.
QUEUED_SECONDS = 60.0
#: How many inbound files of one turn are downloaded at a time.
MAX_FILES_OF_TURN = 4
#: How many inbound files a process downloads from one platform at a time. Their bytes go to disk as
#: they come: with 4 of them a worker stays within 64 MB over idle, however large they are.
MAX_FILES_OF_PLATFORM = 4


class TurnFetcher:
    """Fetches what turns refer to, for all conversations of a worker. One per worker process.

    What cannot be fetched is left out, and the turn is answered without it.
    """

    def __init__(self, media: MediaFiles | None = None) -> None:
        """`media`: where files are stored. Without it the agent gets the platform's handles of
        files in place of their content.
        """
        self._media = media
        #: Each download holds a place of its platform.
        self._places = PlatformPlaces(MAX_FILES_OF_PLATFORM)

    async def with_quote(self, queued: QueuedTurn, channel: Channel | None) -> QueuedTurn:
        """Return the turn with the text that it quotes, or unchanged if there is none to fetch.

        Some platforms only name the quoted message, and return its text when they are asked.
        """
        turn = queued.turn
        if turn.quoted or not turn.replied_to or not isinstance(channel, QuoteSource):
            return queued
        try:
            async with asyncio.timeout(QUOTE_SECONDS):
                quoted = await channel.quoted(turn)
        except (FetchError, TimeoutError) as exc:
            log.info("quote.unknown", extra={"reason": str(exc) or type(exc).__name__})
            return queued
        return replace(queued, turn=replace(turn, quoted=quoted))

    async def with_files(self, queued: QueuedTurn, channel: Channel | None) -> QueuedTurn:
        """Return the turn with its files in the media store, as far as they could be fetched."""
        turn = queued.turn
        if not turn.media or channel is None or self._media is None:
            return queued

        slots = asyncio.Semaphore(MAX_FILES_OF_TURN)
        owner = owner_of(turn.conversation.channel, turn.user_id)
        fetching = (self._fetch(each, channel, self._media, slots, owner) for each in turn.media)
        files = await asyncio.gather(*fetching)
        return replace(queued, turn=replace(turn, media=tuple(files)))

    async def _fetch(
        self,
        media: Media,
        channel: Channel,
        store: MediaFiles,
        slots: asyncio.Semaphore,
        owner: str,
    ) -> Media:
        """Store a file of a turn, and return the file with its place in the store.

        `slots`: how many files of the turn may be fetched at a time. `owner`: whose file it is in
        the store. A file that cannot be fetched is returned unchanged, but without the size that
        the platform has claimed.
        """
        if media.stored:
            return media
        try:
            async with (
                asyncio.timeout(QUEUED_SECONDS),
                slots,
                self._places.of(channel),
                asyncio.timeout(FETCH_SECONDS),
            ):
                return await _download(media, channel, store, owner)
        except Exception as exc:  # noqa: BLE001  # the person is answered all the same
            # No traceback and no foreign message: they may hold a link or a file name.
            reason = type(exc).__name__
            if isinstance(exc, FetchError | StoreUnavailable):
                reason = str(exc)
            log.warning("media.not_fetched", extra={"reason": reason})
            return replace(media, size=0)


async def _download(media: Media, channel: Channel, store: MediaFiles, owner: str) -> Media:
    """Download a file into the store, and return it with its place there."""
    with contextlib.ExitStack() as stack:
        file = await call_in_thread(stack.enter_context, store.receive(owner, media.size))
        await channel.fetch(media, file)
        stored = await call_in_thread(
            store.save_received,
            file,
            owner=owner,
            mime_type=media.mime_type,
            filename=media.filename,
        )
    return with_filename(stored)
