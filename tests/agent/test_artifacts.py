"""Artifacts: files leave a run beside the text, and never leave another run."""

import asyncio
import hashlib

import pytest

from agent import Agent, Artifact, ScriptedProvider, ToolCall, emit_artifact, tool


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


@pytest.mark.parametrize("sources", [{}, {"url": "u", "data": b""}, {"path": "p", "data": b""}])
def test_exactly_one_source(sources):
    """Nothing, or two sources, is a mistake."""
    with pytest.raises(ValueError, match="exactly one"):
        emit_artifact(**sources)
