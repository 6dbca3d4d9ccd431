"""AlbumWait: how long the holder of a lease waits for the further parts of an album."""

from __future__ import annotations

from sayso.pending.turns import ALBUM_SECONDS, QueuedTurn

#: How often it is looked whether another turn came behind an album, in seconds: that turn, such as
#: a yes, is delayed by no more than this.
LOOK_SECONDS = 0.2


class AlbumWait:
    """The wait for the parts of the album that is the first turn of a conversation.

    Lives as long as a lease.

    Each part begins the wait anew. The server's clock is read once for each part,
    because it may step back.
    """

    def __init__(self) -> None:
        self._newest = 0
        self._left = 0.0

    def next_pause(self, queued: QueuedTurn) -> float:
        """Return the seconds after which to look for further parts,
        0.0 if none is awaited any more.
        """
        if not queued.may_grow:
            return 0.0
        newest = queued.newest_part
        if newest.seq != self._newest:
            self._newest = newest.seq
            since_newest = queued.age - (newest.received_at - queued.received_at)
            self._left = ALBUM_SECONDS - max(0.0, since_newest)  # that clock may have been ahead
        pause = min(self._left, LOOK_SECONDS)
        if pause < 0.001:
            return 0.0
        self._left -= pause
        return pause
