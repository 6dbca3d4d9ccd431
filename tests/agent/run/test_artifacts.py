"""Artifacts: files leave their run beside the text, and never appear in another run."""

import asyncio
import hashlib
import tracemalloc
from pathlib import Path

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    Artifact,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolExecutionError,
    ToolMetadata,
    emit_artifact,
    tool,
)
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.tools.environment import ToolEnvironment, collect_artifacts
from sayso.channels.media_store import LocalMediaStore
from sayso.pending.call_context import own_context
from sayso.pending.turns import QueuedTurn
from tests.contracts.rigs import turn


@tool
def draw(title: str) -> str:
    """Draw a chart."""
    emit_artifact(title.encode(), filename=f"{title}.png")
    return "drawn"


@tool
async def adraw(title: str) -> str:
    """Draw a chart in the loop."""
    await asyncio.sleep(0)
    emit_artifact(title.encode(), filename=f"{title}.png")
    return "drawn"


def drawing(*titles, name="draw"):
    """Return an agent that draws each title in one run."""
    calls = [ToolCall(name, {"title": title}) for title in titles]
    return Agent([draw, adraw], ScriptedProvider([calls, "done"]))


def names(result):
    """Return the file names of a run's artifacts."""
    return sorted(artifact.filename for artifact in result.artifacts)


@pytest.mark.parametrize("name", ["draw", "adraw"])
def test_concurrent_runs_keep_their_own_artifacts(name):
    """Runs in one loop never see each other's files."""

    async def both():
        return await asyncio.gather(
            drawing("a", "b", name=name).arun("go"), drawing("c", name=name).arun("go")
        )

    one, two = asyncio.run(both())
    assert (names(one), names(two)) == (["a.png", "b.png"], ["c.png"])


def test_emitting_outside_a_run_is_harmless():
    """The function returns the artifact and stores it nowhere."""
    assert emit_artifact("https://x.test/a.png") == Artifact("https://x.test/a.png", "image/png")


def test_bytes_get_their_own_digest_and_size():
    """Both are computed, whatever the tool claims, and the artifact has the bytes."""
    made = emit_artifact(b"png", filename="a.png", sha256="wrong", size=99)
    assert (made.sha256, made.size, made.data) == (hashlib.sha256(b"png").hexdigest(), 3, b"png")


def test_bytes_are_not_in_logs_and_records():
    """Neither repr nor to_dict contains them."""
    made = emit_artifact(b"secret", mime_type="text/plain")
    assert "secret" not in repr(made)
    assert "data" not in made.to_dict()


def test_path_is_read_immediately(tmp_path):
    """The file may be deleted before the reply is sent."""
    path = tmp_path / "report.pdf"
    path.write_bytes(b"%PDF")
    made = emit_artifact(path)
    assert (made.data, made.filename, made.mime_type) == (b"%PDF", "report.pdf", "application/pdf")


@pytest.mark.parametrize("door", [lambda file: file, str, lambda file: file.read_bytes()])
def test_first_argument_may_be_any_source(tmp_path, door):
    """It may be a Path, a path string or bytes; a local path never becomes a URL."""
    file = tmp_path / "a.csv"
    file.write_bytes(b"a,b")
    made = emit_artifact(door(file), mime_type="text/csv")
    assert (made.data, made.url, made.size) == (b"a,b", "", 3)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "file:///etc/passwd",
            "ftp://x/y",
            "javascript:alert(1)",
            "https://",
            "https:///x.png",
            "https://[x/y.png",
        ),
        *("https://x.test/a\nb.png", "https://x.test/a b.png", "https://x.test/\x00.png"),
    ],
)
def test_url_that_no_platform_can_fetch_is_refused(url):
    """The error shows the value and the fix."""
    with pytest.raises(ValueError, match="give an https URL"):
        emit_artifact(url)


def test_missing_or_large_file_is_refused(tmp_path, monkeypatch):
    """The size is checked before the file is read."""
    with pytest.raises(ValueError, match="check the path"):
        emit_artifact(tmp_path / "gone.png")
    monkeypatch.setattr("sayso.agent.tools.environment.MAX_ARTIFACT_BYTES", 2)
    (tmp_path / "big.bin").write_bytes(b"123")
    for source in (tmp_path / "big.bin", b"123"):
        with pytest.raises(ValueError, match="3 bytes: at most 2"):
            emit_artifact(source)


def test_artifacts_are_collected_in_every_way_of_running():
    """Threads, time limits and parallel calls make no difference (seed: Concurrency)."""
    slow = Tool(
        "slow",
        "Slow",
        [],
        lambda: emit_artifact(b"s", filename="s.bin").role,
        metadata=ToolMetadata(timeout=9),
    )
    calls = [
        ToolCall("slow", {}, "1"),
        ToolCall("draw", {"title": "b"}, "2"),
        ToolCall("adraw", {"title": "c"}, "3"),
    ]
    for parallel in (True, False):
        agent = Agent(
            [draw, adraw, slow],
            ScriptedProvider([calls, "done"]),
            AgentConfig(parallel_tool_execution=parallel),
        )
        assert names(agent.run("go")) == ["b.png", "c.png", "s.bin"]


def test_failed_call_delivers_no_artifact():
    """A repeated call delivers its file once, sync and async."""
    failures: list[OSError] = []

    @tool
    def report() -> str:
        """Report."""
        emit_artifact(b"report", filename="report.txt")
        if failures:
            raise failures.pop()
        return "done"

    for door in (lambda: report.execute({}), lambda: asyncio.run(report.aexecute({}))):
        failures.append(OSError("busy"))
        with collect_artifacts() as files:
            with pytest.raises(ToolExecutionError):
                door()
            assert files == []
            door()
        assert [file.filename for file in files] == ["report.txt"]

    failures.append(OSError("busy"))
    again = [[ToolCall("report", {}, str(at))] for at in range(2)]
    result = Agent([report], ScriptedProvider([*again, "Here it is."])).run("report")
    assert [file.filename for file in result.artifacts] == ["report.txt"]


@pytest.mark.parametrize(
    ("url", "mime_type"),
    [
        ("https://x.test/chart.png?as=page.html", "image/png"),
        ("HTTPS://x.test/chart.png#top", "image/png"),
        ("https://x.test/?file=chart.png", "application/octet-stream"),
    ],
)
def test_mime_type_comes_from_the_path_of_a_url(url, mime_type):
    """The query of the URL is ignored."""
    assert emit_artifact(url).mime_type == mime_type


@pytest.mark.parametrize("make", [bytearray, memoryview])
def test_bytes_are_accepted_in_any_form(make):
    """They are copied, so the tool may change its own buffer."""
    made = emit_artifact(make(b"abc"))
    assert (type(made.data), made.data, made.size) == (bytes, b"abc", 3)


def test_many_large_files_of_a_call_are_not_in_memory(tmp_path):
    """Thirty files of a megabyte lie on the disk of the media store, and are gone once they are stored."""
    path, waiting = tmp_path / "export.bin", []

    @tool()
    def export() -> str:
        """Export."""
        for number in range(30):
            path.write_bytes(bytes([number]) * 1_000_000)
            emit_artifact(path, filename=f"{number}.bin")
        waiting.append(open_files(tmp_path / "media" / "arriving"))
        return "done"

    store = LocalMediaStore(tmp_path / "media", keys=["k"], public_url="https://bot.example")
    bot = ChannelAgent(
        Agent([export], ScriptedProvider([ToolCall("export", {}), "Here."])), media=store
    )
    tracemalloc.start()
    answer = asyncio.run(
        bot.answer(QueuedTurn(1, 0.0, "ana", turn("export"), None, None, ""), None)
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    replies = [turn_reply.reply for turn_reply in answer.replies]
    files = [reply.media for reply in replies if reply.media]
    assert [store.read(media.ref) for media in files] == [
        bytes([number]) * 1_000_000 for number in range(30)
    ]
    assert (waiting, open_files(tmp_path / "media" / "arriving")) == ([30], 0)
    assert peak < 10_000_000


def open_files(folder: Path) -> int:
    """Return how many files of a folder this process has open, those without a name included."""
    links = (str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    return sum(link.startswith(str(folder)) for link in links)


def test_file_that_cannot_be_kept_fails_its_call(tmp_path):
    """A full disk is no missing file: the model and the log hear the reason."""
    (tmp_path / "file").touch()
    with own_context(ToolEnvironment) as own:
        own.spool_folder = tmp_path / "file" / "below"
        with pytest.raises(ValueError, match=r"'a.bin' cannot be kept .*: Not a dir"):
            emit_artifact(b"x" * 100_000, filename="a.bin")


def test_file_that_grows_while_it_is_copied_is_refused(tmp_path):
    """A device has no size, and no end."""
    with pytest.raises(ValueError, match="at most 26214400 can be sent"):
        emit_artifact("/dev/zero")


def test_invalid_path_is_refused():
    """The error names the invalid character."""
    with pytest.raises(ValueError, match="no path holds a NUL character"):
        emit_artifact("chart\0.png")
