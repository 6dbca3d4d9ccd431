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
#: After how many seconds a turn is answered without an inbound file, the wait for other downloads
#: and the download together.
WAIT_AND_FETCH_SECONDS = 60.0
#: How many inbound files of one turn wait for their platform, or are downloaded, at a time.
MAX_FILES_OF_TURN = 4
#: How many inbound files a process downloads from one platform at a time. Their bytes go to disk as
#: they come: with 4 of them a worker stays within 64 MB over idle, however large they are.
MAX_FILES_OF_PLATFORM = 4


class TurnFetcher:
    """Fetches what turns refer to, for all conversations of a worker. One per worker process.

    If something cannot be fetched, the turn is answered without it. The agent still learns that
    there is a file.
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
        except Exception as exc:  # noqa: BLE001  # the person is answered all the same
            log.info("quote.unknown", extra={"reason": _reason(exc)})
            return queued
        return replace(queued, turn=replace(turn, quoted=quoted))

    async def with_files(self, queued: QueuedTurn, channel: Channel | None) -> QueuedTurn:
        """Return the turn with its files in the media store.

        A file that could not be fetched stays as it came, but has no size.
        """
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

        `slots`: bounds how many files of the turn are fetched at a time. `owner`: whose file it is
        in the store. A file that cannot be fetched is returned without a size.
        """
        if media.stored:
            return media
        try:
            # The slot comes first: a turn with many files has only a few in the platform's queue,
            # so files of other turns need not wait for all of them.
            async with (
                asyncio.timeout(WAIT_AND_FETCH_SECONDS),
                slots,
                self._places.of(channel),
                asyncio.timeout(FETCH_SECONDS),
            ):
                return await _download(media, channel, store, owner)
        except Exception as exc:  # noqa: BLE001  # the person is answered all the same
            log.warning("media.not_fetched", extra={"reason": _reason(exc)})
            # The platform only claims this size. With it a model might be told that the file is too
            # large, though it could not be loaded.
            return replace(media, size=0)


def _reason(exc: Exception) -> str:
    """Return why something was not fetched, for a log.

    There is no traceback and no message of a foreign error: they may hold a link or a file name.
    """
    if isinstance(exc, FetchError | StoreUnavailable):
        return str(exc)
    return type(exc).__name__


async def _download(media: Media, channel: Channel, store: MediaFiles, owner: str) -> Media:
    """Download a file into the store, and return it with its place there."""
    with contextlib.ExitStack() as stack:
        # In a thread, since `receive` checks how much room there is, maybe over the network. If a
        # time limit ends meanwhile, the thread drops the open file, which removes it.
        file = await call_in_thread(stack.enter_context, store.receive(owner, media.size))
        await channel.fetch(media, file)
        stored = await call_in_thread(
            store.save_received,
            file,
            owner=owner,
            mime_type=media.mime_type,
            filename=media.filename,
        )
    # A file that came without a name gets one.
    return with_filename(stored)
