"""MCP servers whose tools change.

An old yes never runs a new meaning, and announcements cost little.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sayso.agent import Agent, ChannelAgent, ScriptedProvider, Tool, ToolCall, ToolExecutionError
from sayso.agent.toolsets import mcp, mcp_connection
from sayso.agent.toolsets.base import AnswerLost, SourceUnreachable, runnable_tools
from sayso.agent.toolsets.mcp import McpToolProvider
from sayso.agent.toolsets.mcp_connection import ConnectionState, McpConnection, McpServer
from sayso.agent.toolsets.refresh import LiveSource, ToolsetRefresher
from tests.agent.toolsets.conftest import TINY, Notes, TinyHttp
from tests.agent.toolsets.test_mcp_errors import Answered, McpApi

OLD_SERVER = Path(__file__).parent / "old_mcp.py"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let changes that follow each other be listed without a pause between them."""
    monkeypatch.setattr(mcp_connection, "LISTING_PAUSE_SECONDS", 0.01)


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    """Return the notes of all tests of this module: each of them uses a tool of its own."""
    return Notes(tmp_path_factory.mktemp("mcp") / "notes")


@pytest.fixture(scope="module")
def http_server(notes: Notes) -> Iterator[TinyHttp]:
    """Return a running server, the small one of the SDK, over HTTP."""
    server = TinyHttp(notes)
    yield server
    server.kill()


@pytest.fixture(scope="module", params=["stdio", "http"])
def server(request: pytest.FixtureRequest, notes: Notes) -> Iterator[McpToolProvider]:
    """Return a provider of the small server of the SDK, over each transport."""
    if request.param == "stdio":
        provider = McpToolProvider(
            sys.executable, [str(TINY)], env={"NOTES": str(notes.path)}, name="tiny"
        )
    else:
        provider = McpToolProvider(url=request.getfixturevalue("http_server").url, name="tiny")
    yield provider
    provider.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of a tool that no other test uses."""
    return "t" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


def call(provider: McpToolProvider, tool: str, **arguments: Any) -> str:
    """Call a tool by the server's name, as another client would; return its result or error."""
    outcome = asyncio.run(provider.execute_tool(tool, arguments))
    return str(outcome.result or outcome.error)


def offered(provider: McpToolProvider) -> list[Tool]:
    """Return the tools that an agent can run as they are listed now."""
    return runnable_tools(provider, asyncio.run(provider.list_tools()), namespace="box")


def learn(provider: McpToolProvider, name: str) -> None:
    """Let the server have a tool of this name, and wait until the provider has listed it."""
    wait_for_listing(
        provider,
        lambda: call(provider, "learn", name=name),
        lambda versions: name in versions,
    )


def wait_for_listing(
    provider: McpToolProvider,
    change: Callable[[], object],
    is_listed: Callable[[dict[str, str]], bool],
) -> None:
    """Change something, and wait until the provider's tools, with their versions by name, show it."""
    changed = threading.Event()
    provider.watch(changed.set)
    change()
    while not is_listed(versions_of(provider)):
        assert changed.wait(30)
        changed.clear()


def versions_of(provider: McpToolProvider) -> dict[str, str]:
    """Return the versions of the listed tools, by name."""
    return {tool.name: tool.version for tool in asyncio.run(provider.list_tools())}


def confirm_after(provider: McpToolProvider, name: str, change: Callable[[], object]) -> str:
    """Return the answer to a yes to a tool.

    The server changes between question and yes, the offered tools do not.
    """
    wanted = ToolCall(f"box-{name}", {}, "1")
    bot = ChannelAgent(Agent(offered(provider), ScriptedProvider([wanted, "ok", "ok"])))
    assert name in bot.ask_channel("ana", "do it").content
    change()
    return bot.ask_channel("ana", "yes").content


@pytest.mark.parametrize(
    ("change", "arguments"),
    [("replace", {"announced": True}), ("replace", {"announced": False}), ("forget", {})],
)
def test_yes_does_not_run_a_tool_that_changed_meanwhile(
    server: McpToolProvider, notes: Notes, name: str, monkeypatch, change: str, arguments: Any
):
    """Replaced or removed, with or without an announcement: the answer says so, and nothing is called."""
    monkeypatch.setattr(mcp, "MAX_AGE_SECONDS", -1.0)
    learn(server, name)
    reply = confirm_after(server, name, lambda: call(server, change, name=name, **arguments))
    assert f"has changed or removed '{name}' since it was offered" in reply
    assert not ran(notes, name)


def test_announced_change_is_known_to_the_next_call(
    server: McpToolProvider,
    notes: Notes,
    name: str,
    monkeypatch,
):
    """However young the list is."""
    monkeypatch.setattr(mcp, "MAX_AGE_SECONDS", 3600.0)
    learn(server, name)
    before = versions_of(server)[name]

    def change() -> None:
        wait_for_listing(
            server,
            lambda: call(server, "replace", name=name, announced=True),
            lambda versions: versions[name] != before,
        )

    assert f"has changed or removed '{name}'" in confirm_after(server, name, change)
    assert not ran(notes, name)


def test_worker_that_did_not_change_the_tool_refuses_it_too(
    http_server: TinyHttp, notes: Notes, name: str, monkeypatch
):
    """Two workers have a session each."""
    monkeypatch.setattr(mcp, "MAX_AGE_SECONDS", -1.0)
    with (
        closing(McpToolProvider(url=http_server.url)) as one,
        closing(McpToolProvider(url=http_server.url)) as other,
    ):
        call(other, "learn", name=name)
        reply = confirm_after(one, name, lambda: call(other, "replace", name=name, announced=True))
    assert f"has changed or removed '{name}'" in reply
    assert not ran(notes, name)


def test_unchanged_tool_runs_after_another_one_changed(
    server: McpToolProvider,
    notes: Notes,
    name: str,
):
    """Only what the person was asked about counts."""
    learn(server, name)
    reply = confirm_after(server, name, lambda: learn(server, f"{name}_other"))
    assert "learned" in reply
    assert ran(notes, name)


def ran(notes: Notes, name: str) -> bool:
    """Return whether the tool of this name ran, in its old form or a new one."""
    return any(line.startswith("runs") and line.endswith(name) for line in notes)


def test_tools_are_listed_again_during_a_call(server: McpToolProvider, notes: Notes, name: str):
    """A call that takes long holds up no announcement, and is not ended by one."""

    async def work() -> bool:
        hanging = asyncio.create_task(server.execute_tool("hang", {}))
        await asyncio.to_thread(notes.until, "hangs")
        await asyncio.to_thread(learn, server, name)
        was_running = not hanging.done()
        hanging.cancel()
        return was_running

    assert asyncio.run(work())


def test_any_number_of_announcements_causes_few_listings(monkeypatch):
    """They are listed once, and then after a pause."""
    monkeypatch.setattr(mcp_connection, "LISTING_PAUSE_SECONDS", 3600.0)
    with closing(McpToolProvider(sys.executable, [str(OLD_SERVER)], name="old")) as provider:
        asyncio.run(provider.list_tools())
        changed = threading.Event()
        provider.watch(changed.set)
        call(
            provider, "grow", name="restless", announcements=2000
        )  # from now on each listing is announced, too
        assert changed.wait(30)
        assert max(int(call(provider, "grow", count_listings=True)) for _ in range(50)) <= 4
        assert "restless" in [tool.name for tool in asyncio.run(provider.list_tools())]


class SilentLister(McpApi):
    """An MCP server that answers only the first request for its tools, until it `may_list`."""

    def __init__(self) -> None:
        super().__init__()
        self.may_list = threading.Event()
        self.may_list.set()

    def default(self, headers: dict[str, str]) -> Answered:
        """Return an answer; a list of tools as soon as it may."""
        if b"tools/list" in self.asked[-1][3]:
            self.may_list.wait(30)
        return super().default(headers)


@pytest.fixture
def lister() -> Iterator[SilentLister]:
    """Return a running server."""
    server = SilentLister()
    yield server
    server.may_list.set()
    server.server.shutdown()
    server.server.server_close()


def test_call_is_not_sent_if_the_tools_cannot_be_listed_again(lister: SilentLister, monkeypatch):
    """Whether the tool is the same is then unknown.

    Another connection is made for the next call.
    """
    monkeypatch.setattr(mcp, "MAX_AGE_SECONDS", -1.0)
    monkeypatch.setattr(mcp_connection, "LISTING_SECONDS", 0.2)
    with closing(McpToolProvider(url=f"{lister.url}/mcp", name="far")) as provider:
        tool = offered(provider)[0]
        lister.may_list.clear()
        with pytest.raises(
            ToolExecutionError, match="did not list its tools: TimeoutError; 'pay' was not called"
        ):
            asyncio.run(tool.ainvoke({}))
        lister.may_list.set()
        assert asyncio.run(tool.ainvoke({})) == "paid"
    assert lister.begun == 2


def test_refused_stream_is_not_given_as_the_reason(lister: SilentLister):
    """Many servers answer 405 to it, as the protocol allows; what is missing here is the list."""
    lister.session = "s1"
    lister.may_list.clear()
    no_answer = pytest.raises(
        SourceUnreachable, match=r"gave no answer within 0\.5 s; check that it runs"
    )
    with (
        closing(McpToolProvider(url=f"{lister.url}/mcp", connect_seconds=0.5)) as provider,
        no_answer,
    ):
        asyncio.run(provider.list_tools())


def test_listing_that_fails_does_not_end_the_calls_under_way(monkeypatch: pytest.MonkeyPatch):
    """A server that does one thing at a time lists its tools only after the call that changed them.

    The next call has another connection.
    """
    monkeypatch.setattr(mcp_connection, "LISTING_SECONDS", 0.2)
    with closing(McpToolProvider(sys.executable, [str(OLD_SERVER)], name="old")) as provider:
        assert call(provider, "grow", name="slow", seconds=1.0) == "2 tools"
        assert call(provider, "grow", name="next") == "2 tools"


def test_call_on_a_connection_that_ended_is_not_sent():
    """Its outcome is not unknown: the server never saw it."""

    async def call_too_late() -> None:
        connection = McpConnection(McpServer("none", ("no-such-command",)), lambda: None)
        with pytest.raises(SourceUnreachable):
            await connection.open(5)
        setattr(connection, "_client", BreakingClient())  # noqa: B010  # what a session leaves
        with pytest.raises(SourceUnreachable, match="is not connected"):
            await connection.call("wipe", {}, 5)

    asyncio.run(call_too_late())


class BreakingClient:
    """A client whose calls fail while they are cancelled."""

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Wait, and fail."""
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError(name)


def test_call_that_fails_while_it_is_given_up_leaves_no_traceback(caplog: pytest.LogCaptureFixture):
    """Its error is the connection's, which is reported already."""

    async def give_up() -> None:
        connection = McpConnection(McpServer("none", ("no-such-command",)), lambda: None)
        setattr(connection, "_client", BreakingClient())  # noqa: B010  # what a session enters
        connection._state = ConnectionState.OPEN
        with pytest.raises(AnswerLost):
            await connection.call("wipe", {}, 0.01)
        gc.collect()

    with caplog.at_level(logging.ERROR, "asyncio"):
        asyncio.run(give_up())
        gc.collect()
    assert caplog.text == ""


def test_sources_are_closed_at_the_same_time():
    """One that does not end delays no other."""
    both = threading.Barrier(2, timeout=10)

    class Closing:
        async def list_tools(self) -> list[Tool]:
            """Return nothing."""
            return []

        def close(self) -> None:
            """Wait for the other one."""
            both.wait()

    sources: Any = [LiveSource(name, name, Closing()) for name in ("a", "b")]  # type: ignore[arg-type]
    refresher = ToolsetRefresher(sources, lambda *_: None)
    refresher.open(10)
    refresher.close()
    assert not both.broken
