"""ReservedPort: a free TCP port for a server that a test starts later, or restarts."""

from __future__ import annotations

import socket
import sys


class ReservedPort:
    """A port of 127.0.0.1 that no other process gets, until `release` or the end of this process.

    The kernel chooses a free port for each server that asks for any, and for each outgoing
    connection. So a port that was only looked up may be gone before its server listens, or while
    that server restarts. Here a socket stays bound to the port, but does not listen. A server that
    sets SO_REUSEADDR, as ours do, can listen on it all the same.

    This works only on Linux. Elsewhere the port was free when it was chosen, and is not held.
    """

    def __init__(self) -> None:
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        #: The number of the port.
        self.number: int = self._holder.getsockname()[1]
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Leave the port to other processes."""
        self._holder.close()
