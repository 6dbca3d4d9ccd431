"""ReservedPort: a free TCP port for a server that is started on it later,
and that may be restarted there.
"""

from __future__ import annotations

import socket
import sys


class ReservedPort:
    """A port of 127.0.0.1 that no other process takes.

    Lives until `release`, at the latest until its process ends.

    The kernel chooses ports for servers that ask for any, and for each outgoing connection. A port
    that was only found to be free may be chosen before its server listens, or while that server
    restarts. So a socket stays bound to it. A server that sets SO_REUSEADDR, as ours do, can listen
    beside it. This needs Linux: elsewhere the port was free at first, and is not held.
    """

    def __init__(self) -> None:
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self.number: int = self._holder.getsockname()[1]
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Leave the port to other processes."""
        self._holder.close()
