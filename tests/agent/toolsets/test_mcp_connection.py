"""ReconnectingConnection: how long a server that failed is left alone."""

from __future__ import annotations

import asyncio

from sayso.agent.toolsets.mcp import LONGEST_PAUSE_SECONDS, ReconnectingConnection
from sayso.agent.toolsets.mcp_connection import McpServer


def test_pause_ends_however_often_a_server_failed():
    """After a day of failures too."""
    connection = ReconnectingConnection(
        McpServer("gone", ["false"]), 5, lambda: None, clock=lambda: 100.0, failures=2_000
    )
    connection._count_failure()
    assert (connection.next_attempt_at, connection.failures) == (100 + LONGEST_PAUSE_SECONDS, 2_001)


def test_server_that_is_there_again_begins_anew(tiny):
    """Whoever only lists it never calls: its next failure counts as a first one."""
    connection = ReconnectingConnection(tiny()._server, 20, lambda: None, failures=9)
    asyncio.run(connection.definitions())
    connection.close()
    assert connection.failures == 0
