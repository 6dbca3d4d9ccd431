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

#: Seconds after which a turn is answered without the text that it quotes.
QUOTE_SECONDS = 5.0
#: Seconds after which a turn is answered without an inbound file, counted from when its download
#: began.
FETCH_SECONDS = 30.0
#: The same, counted from when the file was first wanted: downloads wait for each other.
QUEUED_SECONDS = 60.0
#: Inbound files of one turn that are downloaded at a time.
MAX_FETCHES = 4
#: Inbound files that a process downloads from one platform at a time. Their bytes go to disk as
#: they come: with 4 of them a worker stays within 64 MB over idle, however large they are.
MAX_ARRIVING = 4


class TurnFetcher:
    """Fetches from the platforms for all conversations of a worker. One per worker.

    What cannot be fetched is left out, and the turn is answered without it.

    `media`: where files are stored. Without it the agent gets them as the platform's handles.
    """

    def __init__(self, media: MediaFiles | None = None) -> None:
        self._media = media
        #: Held by each inbound file while it is downloaded.
        self._places = PlatformPlaces(MAX_ARRIVING)

    async def with_quote(self, queued: QueuedTurn, channel: Channel | None) -> QueuedTurn:
        """Return the turn with the text that it quotes.

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
        slots = asyncio.Semaphore(MAX_FETCHES)
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
        """Store a file of a turn, and return its place in the store.

        A file that cannot be fetched is returned as it was, without its claimed size.
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
