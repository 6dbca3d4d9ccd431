"""McpLink: how long a server that failed is left alone."""

from __future__ import annotations

from sayso.agent.toolsets.mcp import LONGEST_PAUSE_SECONDS, McpServer, _Home


def test_pause_ends_however_often_a_server_failed():
    """After a day of failures too."""
    home = _Home(McpServer("gone", ["false"]), 5, lambda: None, clock=lambda: 100.0, failures=2_000)
    home._failed()
    assert (home.not_before, home.failures) == (100 + LONGEST_PAUSE_SECONDS, 2_001)


def test_server_that_is_there_again_begins_anew(tiny):
    """Whoever only lists it never calls: its next failure counts as a first one."""
    home = _Home(tiny()._server, 20, lambda: None, failures=9)
    home.loop.submit(home.definitions()).result(30)
    home.close()
    assert home.failures == 0
