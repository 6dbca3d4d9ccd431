"""AlbumWait: how long the holder of a lease waits for the further parts of an album.

An album is several photos or files that a person sends at once. Platforms send each part as a
separate message, and the bot answers all parts together.
"""

from __future__ import annotations

from sayso.pending.turns import ALBUM_SECONDS, QueuedTurn

#: Seconds between two looks at the mailbox while parts are awaited. A turn behind the album, such
#: as a yes, is delayed by no more than this.
LOOK_SECONDS = 0.2


class AlbumWait:
    """The wait for the parts of the album that is the first turn of a conversation.

    Each part begins the wait anew. The server's clock is read once for each part, because it may
    step back. Lives as long as a lease.
    """

    def __init__(self) -> None:
        #: The number of the turn with the newest part, 0 before the first.
        self._newest_seq = 0
        #: For how many seconds the next part is still awaited.
        self._left = 0.0

    def next_pause(self, queued: QueuedTurn) -> float:
        """Return the seconds after which to look for further parts, 0.0 if none is awaited.

        `queued`: the first turn, as it is now.
        """
        if not queued.may_grow:
            return 0.0
        newest = queued.newest_part
        if newest.seq != self._newest_seq:
            self._newest_seq = newest.seq
            since_newest = queued.age - (newest.received_at - queued.received_at)
            # The clock that the newest part was received by may have been ahead.
            self._left = ALBUM_SECONDS - max(0.0, since_newest)

        pause = min(self._left, LOOK_SECONDS)
        if pause < 0.001:
            return 0.0
        self._left -= pause
        return pause
