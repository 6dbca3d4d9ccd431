"""ReservedPort: a server of ours can start on its port at any time, and no other process takes it before."""

from __future__ import annotations

import errno
import socket
import sys

import pytest

from sayso.testing.ports import ReservedPort


@pytest.mark.skipif(
    sys.platform != "linux", reason="SKIPPED: elsewhere no server can listen on a held port"
)
def test_reserved_port_is_refused_to_others_until_it_is_released() -> None:
    """Otherwise another process could take it before its server starts."""
    port = ReservedPort()
    with socket.socket() as other, pytest.raises(OSError, match="in use") as refused:
        other.bind(("127.0.0.1", port.number))
    assert refused.value.errno == errno.EADDRINUSE
    port.release()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port.number))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_server_starts_and_restarts_on_a_reserved_port(host: str) -> None:
    """Before, between and after its lives a client is refused."""
    port = ReservedPort()
    for _ in range(2):
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port.number)) == errno.ECONNREFUSED
        with socket.create_server((host, port.number)), socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port.number)) == 0
    port.release()
