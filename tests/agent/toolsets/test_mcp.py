"""McpToolProvider against real servers: one that dies, hangs or babbles is one clear error, and the next call works."""

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

from sayso.agent.tools import Tool, ToolExecutionError, ToolTag, collect_artifacts
from sayso.agent.toolsets.base import SourceUnreachable, ToolProviderProtocol, provided
from sayso.agent.toolsets.mcp import LONGEST_PAUSE_SECONDS, McpToolProvider, ReconnectingConnection
from sayso.agent.toolsets.mcp_connection import McpServer, capped_client

Tiny = Callable[..., McpToolProvider]


def tools_of(provider: McpToolProvider, **options: Any) -> dict[str, Tool]:
    """What it provides, by name."""
    return {tool.name: tool for tool in provided(provider, asyncio.run(provider.list_tools()), **options)}


def call(provider: McpToolProvider, tool: str, /, **parameters: Any) -> Any:
    """What became of one call."""
    return asyncio.run(provider.execute_tool(tool, parameters))


def test_server_killed_in_the_middle_of_a_call_is_one_error_and_the_next_call_works(tiny: Tiny, notes):
    """The error names the server and says that the effect is unknown; the server is started again."""
    provider = tiny()
    tools = tools_of(provider)
    with pytest.raises(ToolExecutionError) as caught:
        asyncio.run(tools["die"].ainvoke({}))
    assert "'tiny' ended before it answered: whether 'die' took effect is not known" in str(caught.value)
    assert asyncio.run(tools["echo"].ainvoke({"text": "again"})) == "again"
    assert (notes.times("dies"), notes.times("begins")) == (1, 2)


def test_server_that_hangs_is_given_up_and_the_next_call_works(tiny: Tiny, notes):
    """After the time limit, not before; what hung may still take effect."""
    provider = tiny(call_seconds=0.3)
    outcome = call(provider, "hang")
    assert not outcome.success
    assert "'tiny' gave no answer within 0.3 s: whether 'hang' took effect is not known" in outcome.error
    assert call(tiny(), "echo", text="b").result == "b"


def test_one_call_that_hangs_does_not_end_the_others(tiny: Tiny, notes):
    """A connection that is given up closes after its last call."""
    provider = tiny(call_seconds=3.0)

    async def both() -> tuple[Any, Any]:
        hanging = asyncio.create_task(provider.execute_tool("hang", {}))
        await asyncio.to_thread(notes.until, "hangs")
        return await provider.execute_tool("echo", {"text": "meanwhile"}), await hanging

    echoed, hung = asyncio.run(both())
    assert (echoed.result, hung.success) == ("meanwhile", False)


def test_server_killed_while_idle_costs_nothing(tiny: Tiny, notes):
    """Nothing was under way, so nothing is unknown: the next call starts it again."""
    provider = tiny()
    lost = threading.Event()
    pid = int(call(provider, "whoami").result["pid"])
    provider.watch(lost.set)
    os.kill(pid, signal.SIGKILL)
    assert lost.wait(30)
    assert call(provider, "echo", text="c").result == "c"


def test_http_server_killed_in_the_middle_of_a_call(tiny_http, notes):
    """As over stdio: unknown, then unreachable with the cure, then well again."""
    provider = McpToolProvider(url=tiny_http.url, name="far", connect_seconds=5)
    try:
        assert call(provider, "echo", text="d").result == "d"
        with ThreadPoolExecutor() as pool:
            hanging = pool.submit(call, provider, "hang")
            notes.until("hangs")
            tiny_http.kill()
            assert "'far' ended before it answered: whether 'hang' took effect" in hanging.result(30).error
        assert "'far' cannot be reached: ConnectError; check that it runs, and its url; 'echo' was not called" in (
            call(provider, "echo", text="e").error
        )
        tiny_http.start()
        assert call(provider, "echo", text="f").result == "f"
    finally:
        provider.close()


@pytest.mark.parametrize(
    ("command", "seconds", "said"),
    [
        (["no-such-command"], 20, "'no-such-command': No such file or directory; run its command in a shell"),
        (["false"], 20, "it ended before it answered; run its command in a shell to see why"),
        (
            ["sh", "-c", "echo hello; exec sleep 60 >&-"],
            120,
            "1 lines of its output were no messages: logs belong on stderr",
        ),
    ],
)
def test_what_is_no_server_is_told_with_the_cure(command: list[str], seconds: float, said: str):
    """No such command, one that ends, and one that says something else."""
    provider = McpToolProvider(command[0], command[1:], name="odd", connect_seconds=seconds)
    with pytest.raises(SourceUnreachable) as caught:
        asyncio.run(provider.list_tools())
    assert "the MCP server 'odd' cannot be reached: " in str(caught.value)
    assert said in str(caught.value)
    provider.close()


def test_garbage_between_messages_does_no_harm(tiny: Tiny):
    """What is no message is skipped."""
    provider = tiny(env={"NOISY": "1"})
    assert call(provider, "echo", text="g").result == "g"


def test_twenty_threads_share_one_server(tiny: Tiny, notes):
    """One connection, and every caller gets its own answer."""
    provider = tiny()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: call(provider, "echo", text=str(n)).result, range(60)))
    assert answers == [str(n) for n in range(60)]
    assert notes.times("begins") == 1


def test_calls_may_come_from_any_event_loop(tiny: Tiny, notes):
    """The connection belongs to none of its callers' loops."""
    provider = tiny()
    assert [call(provider, "echo", text=text).result for text in "hi"] == ["h", "i"]
    assert notes.times("begins") == 1


def test_a_fork_has_a_connection_of_its_own(tiny: Tiny, notes):
    """Of its parent's it has neither the thread nor the server."""
    provider = tiny()
    first = call(provider, "whoami").result["pid"]
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, call(provider, "whoami").result["pid"].encode())
        provider.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100).decode() not in ("", first)
    assert call(provider, "whoami").result["pid"] == first


def test_changed_list_is_heard_of(tiny: Tiny):
    """The server says so; whoever watches lists again, and finds the new tool."""
    provider = tiny()
    changed = threading.Event()
    provider.watch(changed.set)
    assert "newer" not in tools_of(provider)
    assert call(provider, "learn", name="newer").success
    assert changed.wait(30)
    assert asyncio.run(tools_of(provider)["newer"].ainvoke({})) == "learned"


def test_annotations_become_tags_with_the_defaults_of_the_specification(tiny: Tiny):
    """Read-only, additive and idempotent, and one that says nothing: it is destructive and reaches the world."""
    tools = tools_of(tiny())
    assert (tools["echo"].read_only, tools["echo"].metadata.tags) == (True, {ToolTag.READ_ONLY})
    assert (tools["add_line"].idempotent, tools["add_line"].metadata.tags) == (True, {ToolTag.NETWORK})
    assert tools["wipe"].metadata.tags == {ToolTag.DESTRUCTIVE, ToolTag.NETWORK}
    assert not tools["wipe"].repeatable
    assert {tool.metadata.source for tool in tools.values()} == {"mcp"}
    assert all(tool.screen_output and len(tool.version) == 8 for tool in tools.values())


def test_operator_says_which_tools_ask(tiny: Tiny):
    """Always, never because of a hint, or by patterns besides the hints."""
    provider = tiny()
    assert all(tool.requires_approval for tool in tools_of(provider, confirm="always").values())
    never = tools_of(provider, confirm="never")
    assert not any(tool.requires_approval or ToolTag.DESTRUCTIVE in tool.metadata.tags for tool in never.values())
    some = tools_of(provider, confirm=["ec*"])
    assert [name for name, tool in some.items() if tool.requires_approval] == ["echo"]
    assert ToolTag.DESTRUCTIVE in some["wipe"].metadata.tags


def test_patterns_that_ask_match_the_servers_own_names(tiny: Tiny, caplog):
    """As those of `include` do: a dot need not be spelled as it is here. One that matches nothing is told."""
    tools = tools_of(tiny(include=["odd*"]), namespace="box", confirm=["odd name.*", "wipe*"])
    assert tools["box-odd_name_v2"].requires_approval
    assert [(record.source, record.patterns) for record in caplog.records] == [("tiny", ["wipe*"])]


def test_names_are_legal_and_the_call_uses_the_servers_own(tiny: Tiny):
    """A blank and a dot are no letters of a name; the namespace comes in front."""
    tools = tools_of(tiny(), namespace="box")
    assert asyncio.run(tools["box-odd_name_v2"].ainvoke({"text": "j"})) == "odd j"


def test_only_what_is_chosen_is_listed(tiny: Tiny):
    """By patterns over the server's own names."""
    assert set(tools_of(tiny(include=["e*", "w*"], exclude=["who*"]))) == {"echo", "wipe"}


def test_files_of_an_answer_reach_the_user_and_not_the_model(tiny: Tiny):
    """The model hears what was handed over."""
    with collect_artifacts() as files:
        outcome = call(tiny(), "picture")
    assert outcome.result == "Here it is.\n(handed to the user: file.png, image/png, 7 bytes)"
    assert [(file.mime_type, file.data) for file in files] == [("image/png", b"\x89PNG...")]


def test_error_of_a_tool_is_its_own_words_without_our_secrets(tiny: Tiny):
    """A server may repeat what its environment holds."""
    outcome = call(tiny(env={"TOKEN": "s3cr3t-value"}), "tell_secret")
    assert not outcome.success
    assert "'tell_secret' of the MCP server 'tiny' failed" in outcome.error
    assert "[hidden]" in outcome.error
    assert "s3cr3t" not in outcome.error


def test_standard_error_of_a_server_is_passed_on_without_our_secrets(capfd: pytest.CaptureFixture[str]):
    """It ends where the bot's own log does."""
    says = "import os, sys; print('started with', os.environ['TOKEN'], file=sys.stderr)"
    server = McpToolProvider(sys.executable, ["-c", says], env={"TOKEN": "s3cr3t-value"})
    with pytest.raises(SourceUnreachable):
        asyncio.run(server.list_tools())
    for thread in [each for each in threading.enumerate() if each.name == "mcp-stderr"]:
        thread.join()  # it ends with the program
    told = capfd.readouterr().err
    assert ("s3cr3t" in told, "started with [hidden]" in told) == (False, True)


def test_environment_of_the_bot_is_not_the_servers(tiny: Tiny, monkeypatch: pytest.MonkeyPatch):
    """It gets what its section says, and nothing of ours."""
    monkeypatch.setenv("SAYSO_DATA", "/secret/place")
    told = call(tiny(env={"TOKEN": "t"}), "whoami").result
    assert (told["token"], told["home"]) == ("t", "")


def test_unknown_tool_is_the_servers_error(tiny: Tiny):
    """It knows best which tools it has."""
    assert "Unknown tool: nothing" in call(tiny(), "nothing").error


def test_server_is_a_command_or_a_url():
    """Not both, and not neither."""
    for options in ({}, {"command": "a", "url": "http://b"}):
        with pytest.raises(ValueError, match="a command or a url"):
            McpToolProvider(**options)


def test_provider_keeps_the_protocol():
    """As the seed has it."""
    assert isinstance(McpToolProvider(sys.executable), ToolProviderProtocol)


@pytest.mark.parametrize(
    ("status", "said"), [(401, "it answered 401: check its headers"), (404, "Not Found; it answered 404"), (500, "500")]
)
def test_refusal_over_http_is_told_with_its_status_and_no_secret(api, status: int, said: str):
    """The header was sent, and is not in the error although the answer repeats it."""
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
    """As over stdio."""
    provider = McpToolProvider(url=tiny_http.url)
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(lambda n: call(provider, "echo", text=str(n)).result, range(60))) == list(
            map(str, range(60))
        )
    provider.close()


def test_call_that_its_caller_gives_up_harms_nobody(tiny: Tiny, notes):
    """A turn that ends does not end the connection."""
    provider = tiny()

    async def impatient() -> None:
        hanging = asyncio.create_task(provider.execute_tool("hang", {}))
        await asyncio.to_thread(notes.until, "hangs")
        hanging.cancel()
        await asyncio.wait([hanging])

    asyncio.run(impatient())
    assert call(provider, "echo", text="k").result == "k"
    assert notes.times("begins") == 1


def test_missing_sdk_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch):
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    provider = McpToolProvider(sys.executable, name="any")
    assert "the SDK is not installed: pip install 'mcp>=" in call(provider, "echo").error
    provider.close()


def test_older_protocol_is_spoken_too():
    """Without a description, page by page, and with its own way to say that the tools have changed."""
    provider = McpToolProvider(sys.executable, [str(Path(__file__).parent / "old_mcp.py")], name="old")
    changed = threading.Event()
    provider.watch(changed.set)
    assert tools_of(provider)["grow"].description == "The tool 'grow'; its source does not describe it."
    assert call(provider, "grow").result == "2 tools"
    assert changed.wait(30)
    assert list(tools_of(provider)) == ["grow", "tool1"]
    provider.close()


def test_answers_and_descriptions_hold_no_secret(tiny: Tiny):
    """A server that tells its environment tells it without what was put there."""
    told = call(tiny(env={"TOKEN": "s3cr3t-TOKEN"}), "whoami")
    assert told.result["token"] == "[hidden]"


def test_schema_of_results_is_not_checked(tiny: Tiny):
    """The SDK's check runs the server's own patterns: one that backtracks would hold the whole process."""
    assert call(tiny(), "bomb").result == {"text": "a" * 50 + "!"}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends the children of the dead on Linux only")
def test_server_dies_with_a_worker_that_is_killed(notes, tmp_path: Path):
    """Even one that ignores the end of its input, and the signal to end."""
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
    """Wait until nothing of the process is left but what its parent has to clear away."""
    deadline = time.monotonic() + 30
    stat = Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("size", "encoding"), [(2_000, ""), (10, "gzip")])
def test_http_server_cannot_fill_the_memory(api, size: int, encoding: str):
    """Neither with an answer without end, nor with one that swells when it is unpacked."""
    api.answer("/", b"x" * size, **({"Content_Encoding": encoding} if encoding else {}))

    async def ask() -> None:
        async def look(_: Any) -> None:
            """See nothing."""

        async with capped_client({}, look, max_bytes=1_000) as client:
            await client.get(api.url + "/")

    with pytest.raises(Exception, match=r"more than 1000 bytes|compressed"):
        asyncio.run(ask())


def test_pause_ends_however_often_a_server_failed():
    """After a day of failures too."""
    connection = ReconnectingConnection(
        McpServer("gone", ["false"]), 5, lambda: None, clock=lambda: 100.0, failures=2_000
    )
    connection._count_failure()
    assert (connection.next_attempt_at, connection.failures) == (100 + LONGEST_PAUSE_SECONDS, 2_001)


def test_server_that_is_there_again_begins_anew(tiny: Tiny):
    """Also where its tools are only listed: its next failure counts as a first one."""
    connection = ReconnectingConnection(tiny()._server, 20, lambda: None, failures=9)
    asyncio.run(connection.definitions())
    connection.close()
    assert connection.failures == 0
