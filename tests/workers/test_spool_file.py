"""SpoolFile: stored turns are on disk, in order, once, even after kills."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sayso.channels.types import Conversation
from sayso.workers import spool
from sayso.workers.spool import SpoolFile, SpoolFull, SpoolUnusable
from tests.contracts.rigs import CHAT, turn

KEEP = """
import sys
from pathlib import Path
from tests.contracts.rigs import turn
from sayso.workers.spool import SpoolFile
file, name, count = SpoolFile(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
for number in range(count):
    file.save(turn(f"{name}-{number}", event=f"{name}-{number}"), tapped="", received_at=0.0)
    print(number, flush=True)
"""


@pytest.fixture
def file(tmp_path: Path) -> SpoolFile:
    """Return an empty spool."""
    return SpoolFile(tmp_path / "spool")


def keep(file: SpoolFile, *texts: str, chat: Conversation = CHAT) -> None:
    """Store turns with these texts, whose first letters are the event ids too."""
    for text in texts:
        file.save(
            replace(turn(text, event=text[:9]), conversation=chat), tapped="", received_at=0.0
        )


def texts(file: SpoolFile) -> list[str]:
    """Return the waiting texts in order, as another process reads them."""
    return [kept.turn.text for kept in file.next(0, 10_000)]


def keeping(folder: Path, name: str, count: int):
    """Start a process that stores turns and reports each one."""
    command = [sys.executable, "-c", KEEP, str(folder), name, str(count)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )


def test_turns_of_a_killed_process_are_stored(tmp_path: Path):
    """After kill -9 in the middle of writing, each acknowledged turn waits, whole, and at most one more."""
    process = keeping(tmp_path, "a", 10_000)
    said = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    process.wait()
    there = texts(SpoolFile(tmp_path))
    assert there[: len(said)] == [f"a-{number}" for number in range(len(said))]
    assert len(there) - len(said) in (0, 1)


def test_half_written_turn_does_not_count(file: SpoolFile, tmp_path: Path):
    """A process that dies before its transaction ends changes nothing, and the file stays usable."""
    keep(file, "a")
    child = os.fork()
    if child == 0:
        db = sqlite3.connect(tmp_path / "spool" / "turns.sqlite3", isolation_level=None)
        db.execute("PRAGMA cache_size = 1")  # so that it is written to the file itself
        db.execute("BEGIN IMMEDIATE")
        rows = [("c", str(n), "x" * 50_000) for n in range(20)]
        db.executemany(
            "INSERT INTO turns (conversation, event, tapped, received_at, turn) VALUES (?, ?, '', 0, ?)",
            rows,
        )
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert (tmp_path / "spool" / "turns.sqlite3-journal").exists()
    keep(file, "b")
    assert (texts(file), file.count()) == (["a", "b"], 2)


def test_two_processes_store_into_one_file(tmp_path: Path):
    """This holds from the first turn on, which creates the file: nothing is refused or lost, and the order holds."""
    processes = [keeping(tmp_path, name, 40) for name in "ab"]
    assert [process.wait(60) for process in processes] == [0, 0]
    there = texts(SpoolFile(tmp_path))
    for name in "ab":
        assert [text for text in there if text.startswith(name)] == [
            f"{name}-{number}" for number in range(40)
        ]


def test_turn_delivered_twice_waits_once(file: SpoolFile):
    """The platform repeats a delivery that it takes for lost."""
    keep(file, "a", "b", "a")
    assert texts(file) == ["a", "b"]


def test_turn_comes_back_unchanged(file: SpoolFile):
    """It keeps its button's action and its time of receipt."""
    given = turn("yes ✓ \N{GRINNING FACE}", tap="1data")
    file.save(given, tapped="pid-1", received_at=1234.5)
    (kept,) = file.next(0, 10)
    assert (kept.turn, kept.tapped, kept.received_at) == (given, "pid-1", 1234.5)


def test_marker_file_exists_while_turns_wait(file: SpoolFile):
    """The healthy path looks only at this file."""
    assert (file.has_some(), file.holds(CHAT.id), file.count()) == (False, False, 0)
    keep(file, "a", "b")
    assert (file.has_some(), file.holds(CHAT.id), file.holds("other:1"), file.count()) == (
        True,
        True,
        False,
        2,
    )
    for kept in file.next(0, 10):
        file.delete([kept.n])
        file.align()
        assert file.has_some() == bool(file.count())


@pytest.mark.parametrize("waits", [True, False])
def test_wrong_marker_file_after_a_crash_is_corrected(file: SpoolFile, tmp_path: Path, waits: bool):
    """The next start corrects it, since a turn without the marker would wait for ever."""
    keep(file, "a")
    if waits:
        (tmp_path / "spool" / "waiting").unlink()
    else:
        file.delete([1])
    file.align()
    assert file.has_some() == waits


@pytest.mark.parametrize("limit", ["MAX_TURNS", "MAX_TURNS_OF_ONE"])
def test_turn_over_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
):
    """A repeated turn does not count, and freed room can be used."""
    monkeypatch.setattr(spool, limit, 2)
    file = SpoolFile(tmp_path)
    keep(file, "a", "b", "a")
    with pytest.raises(SpoolFull):
        keep(file, "c")
    file.delete([1])
    keep(file, "c")
    assert texts(file) == ["b", "c"]


def test_one_conversation_cannot_use_the_room_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its own turns are refused first."""
    monkeypatch.setattr(spool, "MAX_TURNS_OF_ONE", 1)
    file = SpoolFile(tmp_path)
    keep(file, "a")
    keep(file, "b", chat=Conversation("chat", "elsewhere"))
    assert texts(file) == ["a", "b"]


def test_size_of_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As with a full disk, the turn is refused and waiting ones stay; handed over turns make room."""
    monkeypatch.setattr(spool, "MAX_SPOOL_BYTES", 100_000)
    file = SpoolFile(tmp_path)
    keep(file, "a" * 30_000, "b" * 30_000)
    with pytest.raises(SpoolUnusable, match="full"):
        keep(file, "c" * 60_000)
    assert len(texts(file)) == 2
    file.delete([1, 2])
    keep(file, "c" * 60_000)
    assert file.count() == 1


def test_failing_disk_is_an_error(tmp_path: Path):
    """No turn is acknowledged falsely, and the spool recovers by itself."""
    (tmp_path / "spool").write_text("no folder")
    file = SpoolFile(tmp_path / "spool")
    for call in (lambda: keep(file, "a"), file.align, lambda: file.alone().__enter__()):
        with pytest.raises(SpoolUnusable, match="spool"):
            call()
    (tmp_path / "spool").unlink()
    keep(file, "a")
    assert texts(file) == ["a"]


def test_damaged_file_is_an_error(file: SpoolFile, tmp_path: Path):
    """Its waiting turns are unknown, so no turn may overtake them."""
    keep(file, "a")
    (tmp_path / "spool" / "turns.sqlite3").write_bytes(b"no database" * 1000)
    for call in (
        lambda: file.holds(CHAT.id),
        file.count,
        lambda: file.next(0, 1),
        lambda: keep(file, "b"),
    ):
        with pytest.raises(SpoolUnusable, match=r"turns\.sqlite3"):
            call()


def test_unreadable_turn_is_set_aside(
    file: SpoolFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """It is kept for the operator, blocks no other turn, and is logged once."""
    keep(file, "secret words", "b")
    with sqlite3.connect(tmp_path / "spool" / "turns.sqlite3") as db:
        db.execute("UPDATE turns SET turn = replace(turn, 'event_id', 'former_name') WHERE n = 1")
    assert (texts(file), file.count()) == (["b"], 1)
    file.delete([2])
    file.align()
    assert not file.has_some()
    assert ("spool.unreadable" in caplog.messages, "secret words" in caplog.text) == (True, False)


def test_only_one_process_empties_the_file(file: SpoolFile):
    """It holds the lock until it is done or dead."""
    other = multiprocessing.get_context("fork").Process(target=_hold, args=(file,))
    with file.alone() as first, file.alone() as second:
        assert (first, second) == (True, False)
    other.start()
    other.join()
    with file.alone() as again:
        assert again


def _hold(file: SpoolFile) -> None:
    file.alone().__enter__()
    os.kill(os.getpid(), signal.SIGKILL)


def test_only_the_own_user_can_read_the_file(file: SpoolFile, tmp_path: Path):
    """It holds people's texts, and handed over turns leave no bytes in it."""
    keep(file, "secret words")
    assert (tmp_path / "spool").stat().st_mode & 0o77 == 0
    assert (tmp_path / "spool" / "turns.sqlite3").stat().st_mode & 0o77 == 0
    file.delete([1])
    assert b"secret words" not in (tmp_path / "spool" / "turns.sqlite3").read_bytes()
