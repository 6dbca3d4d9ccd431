"""McpToolProvider with real servers: a server that dies, hangs or sends garbage causes one clear error only."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mcp.types import CallToolResult
from mcp.types import Tool as Definition

from sayso.agent import Tool, ToolExecutionError, ToolTag
from sayso.agent.tools.environment import collect_artifacts
from sayso.agent.toolsets.base import (
    SourceUnreachable,
    ToolProviderProtocol,
    runnable_tools,
    scrub,
)
from sayso.agent.toolsets.mcp import LONGEST_PAUSE_SECONDS, McpToolProvider, ReconnectingConnection
from sayso.agent.toolsets.mcp_connection import McpServer, capped_client

Tiny = Callable[..., McpToolProvider]


def tools_of(provider: McpToolProvider, **options: Any) -> dict[str, Tool]:
    """Return the tools that an agent can run by name."""
    return {
        tool.name: tool
        for tool in runnable_tools(provider, asyncio.run(provider.list_tools()), **options)
    }


def call(provider: McpToolProvider, tool: str, /, **parameters: Any) -> Any:
    """Return the outcome of one call."""
    return asyncio.run(provider.execute_tool(tool, parameters))


@pytest.mark.parametrize(
    "url", ["http://[::1/mcp?key=s3cr3t", "http://host:99999/mcp", "localhost:8000/mcp"]
)
def test_malformed_url_is_refused_at_once(url: str):
    """The error shows the value without what may be secret, and says how to write it."""
    with pytest.raises(
        ValueError, match=r"is not a URL: write it as https://mcp\.example\.com/mcp"
    ) as caught:
        McpToolProvider(url=url)
    assert f"url {url.partition('?')[0]!r}" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_server_killed_during_a_call_is_one_error_and_is_restarted(tiny: Tiny, notes):
    """The error names the server and says that the effect is unknown; the next call starts the server again."""
    provider = tiny()
    tools = tools_of(provider)
    with pytest.raises(ToolExecutionError) as caught:
        asyncio.run(tools["die"].ainvoke({}))
    assert "'tiny' ended before it answered: whether 'die' took effect is not known" in str(
        caught.value
    )
    assert asyncio.run(tools["echo"].ainvoke({"text": "again"})) == "again"
    assert (notes.times("dies"), notes.times("begins")) == (1, 2)


def test_server_that_asks_during_a_call_is_refused(tiny: Tiny):
    """In 2026 the question is the answer of the call. A server that only wants another call gets no more of them."""
    provider = tiny()
    for how in ("2025", "2026"):
        outcome = call(provider, "ask", how=how)
        assert (
            "refused 'ask': it asked for something during the call, and no server may"
            in outcome.error
        )
    outcome = call(provider, "ask", how="again")
    assert (
        "wanted to be called again each time, and never answered: whether 'ask' took effect"
        in outcome.error
    )
    assert call(provider, "echo", text="b").result == "b"


def test_hanging_server_times_out_and_the_next_call_works(tiny: Tiny, notes):
    """The call ends at its time limit; its effect may still happen."""
    provider = tiny(call_seconds=0.3)
    outcome = call(provider, "hang")
    assert not outcome.success
    assert (
        "'tiny' gave no answer within 0.3 s: whether 'hang' took effect is not known"
        in outcome.error
    )
    assert call(tiny(), "echo", text="b").result == "b"


def test_hanging_call_does_not_end_the_others(tiny: Tiny, notes):
    """An abandoned connection closes after its last call."""
    provider = tiny(call_seconds=3.0)

    async def both() -> tuple[Any, Any]:
        hanging = asyncio.create_task(provider.execute_tool("hang", {}))
        await asyncio.to_thread(notes.until, "hangs")
        return await provider.execute_tool("echo", {"text": "meanwhile"}), await hanging

    echoed, hung = asyncio.run(both())
    assert (echoed.result, hung.success) == ("meanwhile", False)


def test_server_killed_while_idle_is_restarted_without_an_error(tiny: Tiny, notes):
    """No call was under way, so no outcome is unknown."""
    provider = tiny()
    lost = threading.Event()
    pid = int(call(provider, "whoami").result["pid"])
    provider.watch(lost.set)
    os.kill(pid, signal.SIGKILL)
    assert lost.wait(30)
    assert call(provider, "echo", text="c").result == "c"


def test_http_server_killed_during_a_call_is_reported_and_reconnected(tiny_http, notes):
    """First the effect is unknown, then the server is reported as unreachable; after its restart calls work again."""
    provider = McpToolProvider(url=tiny_http.url, name="far", connect_seconds=5)
    try:
        assert call(provider, "echo", text="d").result == "d"
        with ThreadPoolExecutor() as pool:
            hanging = pool.submit(call, provider, "hang")
            notes.until("hangs")
            tiny_http.kill()
            assert (
                "'far' ended before it answered: whether 'hang' took effect"
                in hanging.result(30).error
            )
        assert (
            "'far' cannot be reached: ConnectError; check that it runs, and its url; 'echo' was not called"
            in (call(provider, "echo", text="e").error)
        )
        tiny_http.start()
        assert call(provider, "echo", text="f").result == "f"
    finally:
        provider.close()


@pytest.mark.parametrize(
    ("command", "seconds", "said"),
    [
        (
            ["no-such-command"],
            20,
            "'no-such-command': No such file or directory; run its command in a shell",
        ),
        (["false"], 20, "it ended before it answered; run its command in a shell to see why"),
        (
            ["sh", "-c", "echo hello; exec sleep 60 >&-"],
            120,
            "1 lines of its output were no messages: logs belong on stderr",
        ),
    ],
)
def test_unusable_server_is_reported_with_the_fix(command: list[str], seconds: float, said: str):
    """The command does not exist, ends at once, or prints other text."""
    provider = McpToolProvider(command[0], command[1:], name="odd", connect_seconds=seconds)
    with pytest.raises(SourceUnreachable) as caught:
        asyncio.run(provider.list_tools())
    assert "the MCP server 'odd' cannot be reached: " in str(caught.value)
    assert said in str(caught.value)
    provider.close()


def test_garbage_between_messages_is_skipped(tiny: Tiny):
    """Output that is no message is ignored."""
    provider = tiny(env={"NOISY": "1"})
    assert call(provider, "echo", text="g").result == "g"


def test_twenty_threads_share_one_server(tiny: Tiny, notes):
    """There is one connection, and every caller gets its own answer."""
    provider = tiny()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: call(provider, "echo", text=str(n)).result, range(60)))
    assert answers == [str(n) for n in range(60)]
    assert notes.times("begins") == 1


def test_calls_from_any_event_loop_share_one_connection(shared_tiny: McpToolProvider):
    """The connection belongs to none of the callers' loops."""
    assert len({call(shared_tiny, "whoami").result["pid"] for _ in "hi"}) == 1


def test_forked_process_has_its_own_connection(shared_tiny: McpToolProvider, notes):
    """It inherits neither the thread nor the server of its parent."""
    first = call(shared_tiny, "whoami").result["pid"]
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, call(shared_tiny, "whoami").result["pid"].encode())
        shared_tiny.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100).decode() not in ("", first)
    assert call(shared_tiny, "whoami").result["pid"] == first


def test_changed_tool_list_is_reported(tiny: Tiny):
    """The server sends a notification, the watcher lists again, and the new tool is there."""
    provider = tiny()
    changed = threading.Event()
    provider.watch(changed.set)
    assert "newer" not in tools_of(provider)
    assert call(provider, "learn", name="newer").success
    assert changed.wait(30)
    assert asyncio.run(tools_of(provider)["newer"].ainvoke({})) == "learned"


def test_annotations_become_tags_with_the_defaults_of_the_specification(
    shared_tiny: McpToolProvider,
):
    """A tool without annotations counts as destructive and as reaching the network."""
    tools = tools_of(shared_tiny)
    assert (tools["echo"].read_only, tools["echo"].metadata.tags) == (True, {ToolTag.READ_ONLY})
    assert (tools["add_line"].idempotent, tools["add_line"].metadata.tags) == (
        True,
        {ToolTag.NETWORK},
    )
    assert tools["wipe"].metadata.tags == {ToolTag.DESTRUCTIVE, ToolTag.NETWORK}
    assert not tools["wipe"].repeatable
    assert all(tool.screen_output and tool.version for tool in tools.values())


def test_version_is_that_of_the_definition_and_of_its_server():
    """A yes is for this tool of this server, however the server writes it down today."""

    def version(url: str = "https://a.example/mcp", **changed: Any) -> str:
        schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"]}
        fields = {"name": "pay", "description": "Pay.", "inputSchema": schema, **changed}
        tool = McpToolProvider(url=url)._tool(Definition.model_validate(fields), "pay")
        assert tool is not None
        return tool.version

    other_order = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["b", "a"]}
    assert version() == version(inputSchema=other_order) == version(description="Pay.\n")
    assert (
        version()
        == version(_meta={"written": "today"})
        == version("https://me:secret@a.example/mcp?key=1")
    )
    different = [
        version("https://b.example/mcp"),
        version(description="Pay twice."),
        version(title="Pay"),
    ]
    different.append(version(annotations={"idempotentHint": True}))
    assert len({version(), *different}) == 5


def test_operator_decides_which_tools_need_approval(shared_tiny: McpToolProvider):
    """The settings are always, never despite hints, or patterns in addition to the hints."""
    assert all(tool.requires_approval for tool in tools_of(shared_tiny, confirm="always").values())
    never = tools_of(shared_tiny, confirm="never")
    assert not any(
        tool.requires_approval or ToolTag.DESTRUCTIVE in tool.metadata.tags
        for tool in never.values()
    )
    some = tools_of(shared_tiny, confirm=["ec*"])
    assert [name for name, tool in some.items() if tool.requires_approval] == ["echo"]
    assert ToolTag.DESTRUCTIVE in some["wipe"].metadata.tags


def test_approval_patterns_match_the_servers_own_names(tiny: Tiny, caplog):
    """They work like the patterns of `include`. A pattern without a match is logged."""
    tools = tools_of(tiny(include=["odd*"]), namespace="box", confirm=["odd name.*", "wipe*"])
    assert tools["box-odd_name_v2"].requires_approval
    assert [(record.source, record.patterns) for record in caplog.records] == [("tiny", ["wipe*"])]


def test_names_are_made_valid_and_calls_use_the_servers_own(shared_tiny: McpToolProvider):
    """Blanks and dots are replaced, and the namespace is a prefix."""
    tools = tools_of(shared_tiny, namespace="box")
    assert asyncio.run(tools["box-odd_name_v2"].ainvoke({"text": "j"})) == "odd j"


def test_only_included_tools_are_listed(tiny: Tiny):
    """The patterns match the server's own names."""
    assert set(tools_of(tiny(include=["e*", "w*"], exclude=["who*"]))) == {"echo", "wipe"}


def test_files_of_a_result_reach_the_user_and_not_the_model(shared_tiny: McpToolProvider):
    """The model reads a note about each file."""
    with collect_artifacts() as files:
        outcome = call(shared_tiny, "picture")
    assert outcome.result == "Here it is.\n(handed to the user: file.png, image/png, 7 bytes)"
    assert [(file.mime_type, file.data) for file in files] == [("image/png", b"\x89PNG...")]


def test_error_of_a_tool_contains_no_secret(shared_tiny: McpToolProvider):
    """A server may repeat values of its environment."""
    outcome = call(shared_tiny, "tell_secret")
    assert not outcome.success
    assert "'tell_secret' of the MCP server 'tiny' failed" in outcome.error
    assert "[hidden]" in outcome.error
    assert "s3cr3t" not in outcome.error


def test_standard_error_of_a_server_is_logged_without_secrets(capfd: pytest.CaptureFixture[str]):
    """It goes to the bot's own standard error."""
    says = "import os, sys; print('started with', os.environ['TOKEN'], file=sys.stderr)"
    others = threading.enumerate()
    server = McpToolProvider(sys.executable, ["-c", says], env={"TOKEN": "s3cr3t-value"})
    with pytest.raises(SourceUnreachable):
        asyncio.run(server.list_tools())
    for thread in [
        each for each in threading.enumerate() if each.name == "mcp-stderr" and each not in others
    ]:
        thread.join()  # the thread ends with the program
    told = capfd.readouterr().err
    assert ("s3cr3t" in told, "started with [hidden]" in told) == (False, True)


def test_secret_with_several_lines_is_hidden_in_each():
    """A private key, of which a log shows one line at a time. Brackets around it are no secret."""
    key = "{\n  0123456789abcdef\n  },\n}"
    server = McpServer("tiny", ("tiny",), env={"KEY": key})
    text = "  },\nread 0123456789abcdef"
    assert scrub(text, server.secrets) == "  },\nread [hidden]"


def test_secrets_of_the_url_are_hidden():
    """Its login and its keys, not the other parameters, whose words a result may need."""
    server = McpServer(
        "far", url="https://ana:s3cr3t-login@host/mcp?apiKey=s3cr3t%2Fkey&tools=files"
    )
    text = "/mcp?apiKey=s3cr3t%2Fkey&tools=files: s3cr3t/key or s3cr3t-login is wrong"
    hidden = "/mcp?apiKey=[hidden]&tools=files: [hidden] or [hidden] is wrong"
    assert scrub(text, server.secrets) == hidden


def test_server_does_not_inherit_the_bots_environment(tiny: Tiny, monkeypatch: pytest.MonkeyPatch):
    """It gets the variables of its section only."""
    monkeypatch.setenv("SAYSO_DATA", "/secret/place")
    told = call(tiny(env={"TOKEN": "t"}), "whoami").result
    assert (told["token"], told["home"]) == ("t", "")


def test_unknown_tool_is_reported_by_the_server(shared_tiny: McpToolProvider):
    """The server knows which tools it has."""
    assert "Unknown tool: nothing" in call(shared_tiny, "nothing").error


def test_server_needs_a_command_or_a_url():
    """Both or neither is an error."""
    for options in ({}, {"command": "a", "url": "http://b"}):
        with pytest.raises(ValueError, match="a command or a url"):
            McpToolProvider(**options)


def test_provider_implements_the_protocol():
    """The protocol is that of the seed."""
    assert isinstance(McpToolProvider(sys.executable), ToolProviderProtocol)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "it answered 401: check its headers"),
        (404, "Not Found; it answered 404"),
        (405, "it answered 405: it must speak streamable HTTP, not the older HTTP with SSE"),
        (500, "500"),
    ],
)
def test_http_refusal_is_reported_with_its_status_and_without_secrets(api, status: int, said: str):
    """The header was sent, and the error hides it although the answer repeats it."""
    api.answer("/mcp", "no: s3cr3t-value", status=status)
    headers = {"Authorization": "Bearer s3cr3t-value"}
    provider = McpToolProvider(url=f"{api.url}/mcp", headers=headers, name="far", connect_seconds=5)
    with pytest.raises(SourceUnreachable) as caught:
        asyncio.run(provider.list_tools())
    provider.close()
    assert said in str(caught.value)
    assert "s3cr3t" not in str(caught.value) + repr(provider._server)
    assert api.asked[0][2]["authorization"] == "Bearer s3cr3t-value"


def test_twenty_threads_share_one_connection_over_http(tiny_http):
    """HTTP behaves like stdio."""
    provider = McpToolProvider(url=tiny_http.url)
    with ThreadPoolExecutor(20) as pool:
        assert list(
            pool.map(lambda n: call(provider, "echo", text=str(n)).result, range(60))
        ) == list(map(str, range(60)))
    provider.close()


def test_cancelled_call_does_not_end_the_connection(tiny: Tiny, notes):
    """Other calls can still use it."""
    provider = tiny()

    async def impatient() -> None:
        hanging = asyncio.create_task(provider.execute_tool("hang", {}))
        await asyncio.to_thread(notes.until, "hangs")
        hanging.cancel()
        await asyncio.wait([hanging])

    asyncio.run(impatient())
    assert call(provider, "echo", text="k").result == "k"
    assert notes.times("begins") == 1


def test_missing_sdk_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch):
    """The SDK is part of an extra."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    provider = McpToolProvider(sys.executable, name="any")
    error = call(provider, "echo").error
    assert "the module 'mcp' is missing, which the extra 'mcp' brings: pip install 'mcp>=" in error
    assert "cannot be reached" not in error  # nothing is wrong with the server
    provider.close()


def test_older_protocol_is_supported():
    """Such a server has no descriptions, lists in pages, and reports changes in its own way."""
    provider = McpToolProvider(
        sys.executable, [str(Path(__file__).parent / "old_mcp.py")], name="old"
    )
    changed = threading.Event()
    provider.watch(changed.set)
    assert (
        tools_of(provider)["grow"].description
        == "The tool 'grow'; its source does not describe it."
    )
    assert call(provider, "grow").result == "2 tools"
    assert changed.wait(30)
    assert list(tools_of(provider)) == ["grow", "tool1"]
    provider.close()


def test_results_contain_no_secret(shared_tiny: McpToolProvider):
    """A secret value of the server's environment is hidden in its answers."""
    told = call(shared_tiny, "whoami")
    assert told.result["token"] == "[hidden]"


def test_result_schema_is_not_checked(shared_tiny: McpToolProvider):
    """The SDK's check runs the server's own patterns, and a backtracking one would block the process."""
    assert call(shared_tiny, "bomb").result == {"text": "a" * 50 + "!"}


@pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel ends the children of the dead on Linux only"
)
def test_server_ends_with_a_killed_worker(notes, tmp_path: Path):
    """It ends although it ignores the end of its input and the signal to terminate."""
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text(
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(os.environ['NOTES'], 'a').write(f'begins {os.getpid()}\\n')\ntime.sleep(600)\n"
    )
    worker = (
        "import asyncio, sys\nfrom agent import McpToolProvider\n"
        "server = McpToolProvider(sys.executable, [sys.argv[1]], env={'NOTES': sys.argv[2]})\n"
        "asyncio.run(server.list_tools())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", worker, str(stubborn), str(notes.path)])
    notes.until("begins")
    process.kill()
    process.wait()
    gone_by(int(next(iter(notes)).split()[1]))


def gone_by(pid: int) -> None:
    """Wait until the process is gone or a zombie."""
    deadline = time.monotonic() + 30
    stat = Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("size", "encoding"), [(2_000, ""), (10, "gzip")])
def test_http_answer_is_bounded_in_size(api, size: int, encoding: str):
    """The limit holds for an endless answer and for one that grows when unpacked."""
    api.answer("/", b"x" * size, **({"Content_Encoding": encoding} if encoding else {}))

    async def ask() -> None:
        async def look(_: Any) -> None:
            """Ignore the message."""

        async with capped_client({}, look, max_bytes=1_000) as client:
            await client.get(api.url + "/")

    with pytest.raises(Exception, match=r"more than 1000 bytes|compressed"):
        asyncio.run(ask())


def test_reconnect_pause_is_bounded():
    """The pause stays at its maximum after thousands of failures."""
    connection = ReconnectingConnection(
        McpServer("gone", ["false"]), 5, lambda: None, clock=lambda: 100.0
    )
    connection.failures = 2_000
    connection._count_failure()
    assert (connection.next_attempt_at, connection.failures) == (100 + LONGEST_PAUSE_SECONDS, 2_001)


def test_successful_connection_resets_the_failure_count(tiny: Tiny):
    """Listing the tools is enough, and the next failure counts as the first."""
    connection = ReconnectingConnection(tiny()._server, 20, lambda: None)
    connection.failures = 9
    asyncio.run(connection.definitions())
    connection.close()
    assert connection.failures == 0


def test_calls_that_fail_together_count_as_one_failure(tiny: Tiny, notes):
    """The next call waits for the first pause only, and the server is started again."""
    provider = tiny()

    async def kill_during_calls() -> list[Any]:
        pid = int((await provider.execute_tool("whoami", {})).result["pid"])
        calls = [asyncio.create_task(provider.execute_tool("hang", {})) for _ in range(8)]
        await asyncio.to_thread(notes.until, "hangs", len(calls))
        os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(*calls)

    outcomes = asyncio.run(kill_during_calls())
    assert not any(outcome.success for outcome in outcomes)
    assert provider._connection().failures == 1
    assert call(provider, "echo", text="again").result == "again"


def test_call_goes_to_the_tool_that_was_checked(monkeypatch: pytest.MonkeyPatch):
    """The tools may be listed again, under other names, while a call is checked."""
    provider = McpToolProvider("server")
    called: list[str] = []
    definition = Definition(name="pay.all", input_schema={"type": "object"})
    listed = provider._tool(definition, "pay_all")
    assert isinstance(listed, Tool)

    class Connection:
        async def definition(self, name: str, max_age_seconds: float) -> Definition:
            provider._own_names = {"pay_all": "pay all"}
            return definition

        async def call(self, name: str, *_: Any) -> CallToolResult:
            called.append(name)
            return CallToolResult(content=[])

    provider._own_names = {"pay_all": "pay.all"}
    monkeypatch.setattr(provider, "_connection", Connection)
    assert asyncio.run(provider.execute_listed(listed, {})).success
    assert called == ["pay.all"]
