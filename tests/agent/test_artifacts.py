"""Artifacts: files leave a run beside the text, and never leave another run."""

import asyncio
import hashlib

import pytest

from agent import Agent, AgentConfig, Artifact, ScriptedProvider, Tool, ToolCall, ToolMetadata, emit_artifact, tool


@tool
def draw(title: str) -> str:
    """Draw a chart."""
    emit_artifact(data=title.encode(), filename=f"{title}.png")
    return "drawn"


@tool
async def adraw(title: str) -> str:
    """Draw a chart in the loop."""
    await asyncio.sleep(0)
    emit_artifact(data=title.encode(), filename=f"{title}.png")
    return "drawn"


def drawing(*titles, name="draw"):
    """An agent that draws each title in one run."""
    calls = [ToolCall(name, {"title": title}) for title in titles]
    return Agent([draw, adraw], ScriptedProvider([calls, "done"]))


def names(result):
    """The file names a run made."""
    return sorted(artifact.filename for artifact in result.artifacts)


@pytest.mark.parametrize("name", ["draw", "adraw"])
def test_concurrent_runs_keep_their_own(name):
    """Runs side by side in one loop never see each other's files."""

    async def both():
        return await asyncio.gather(drawing("a", "b", name=name).arun("go"), drawing("c", name=name).arun("go"))

    one, two = asyncio.run(both())
    assert (names(one), names(two)) == (["a.png", "b.png"], ["c.png"])


def test_outside_a_run_it_is_harmless():
    """The artifact comes back and goes nowhere."""
    assert emit_artifact("https://x.test/a.png") == Artifact("https://x.test/a.png", "image/png")


def test_bytes_are_counted_and_kept():
    """Digest and size are ours, whatever the tool claims, and the caller gets the bytes."""
    made = emit_artifact(data=b"png", filename="a.png", sha256="wrong", size=99)
    assert (made.sha256, made.size, made.data) == (hashlib.sha256(b"png").hexdigest(), 3, b"png")


def test_bytes_stay_out_of_logs_and_records():
    """Neither repr nor to_dict holds the body."""
    made = emit_artifact(data=b"secret", mime_type="text/plain")
    assert "secret" not in repr(made)
    assert "data" not in made.to_dict()


def test_path_is_read_at_once(tmp_path):
    """The file may be gone by the time the reply is sent."""
    path = tmp_path / "report.pdf"
    path.write_bytes(b"%PDF")
    made = emit_artifact(path=path)
    assert (made.data, made.filename, made.mime_type) == (b"%PDF", "report.pdf", "application/pdf")


@pytest.mark.parametrize("door", [lambda file: file, str, lambda file: file.read_bytes()])
def test_the_first_argument_may_be_any_source(tmp_path, door):
    """A path, as Path or text, and bytes; a local path is never sent as text."""
    file = tmp_path / "a.csv"
    file.write_bytes(b"a,b")
    made = emit_artifact(door(file), mime_type="text/csv")
    assert (made.data, made.url, made.size) == (b"a,b", "", 3)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "javascript:alert(1)"])
def test_what_no_platform_can_fetch_is_refused(url):
    """With the value and the cure."""
    with pytest.raises(ValueError, match="give an https URL"):
        emit_artifact(url)


def test_a_file_that_is_not_there_or_too_big_is_refused(tmp_path, monkeypatch):
    """Before it is read into memory, and in words."""
    with pytest.raises(ValueError, match="check the path"):
        emit_artifact(tmp_path / "gone.png")
    monkeypatch.setattr("agent.tools.artifacts.MAX_ARTIFACT_BYTES", 2)
    (tmp_path / "big.bin").write_bytes(b"123")
    for source in (tmp_path / "big.bin", b"123"):
        with pytest.raises(ValueError, match="3 bytes: at most 2"):
            emit_artifact(source)


def test_every_way_of_running_keeps_the_run():
    """In threads, with a time limit, at once with others: what is emitted arrives (seed: Concurrency)."""
    slow = Tool(
        "slow", "Slow", [], lambda: emit_artifact(b"s", filename="s.bin").role, metadata=ToolMetadata(timeout=9)
    )
    calls = [ToolCall("slow", {}, "1"), ToolCall("draw", {"title": "b"}, "2"), ToolCall("adraw", {"title": "c"}, "3")]
    for parallel in (True, False):
        agent = Agent(
            [draw, adraw, slow], ScriptedProvider([calls, "done"]), AgentConfig(parallel_tool_execution=parallel)
        )
        assert names(agent.run("go")) == ["b.png", "c.png", "s.bin"]


@pytest.mark.parametrize(
    "sources", [{}, {"url": "u", "data": b""}, {"path": "p", "data": b""}, {"source": b"", "data": b""}]
)
def test_exactly_one_source(sources):
    """Nothing, or two sources, is a mistake."""
    with pytest.raises(ValueError, match="exactly one"):
        emit_artifact(**sources)
