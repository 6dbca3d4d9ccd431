"""Spool: in a Redis outage no turn is lost, doubled or overtaken, and each yes keeps its time."""

from __future__ import annotations

import json
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from sayso.channels.types import Conversation
from sayso.infra.records import OtherVersion
from sayso.infra.redis.connections import Halted
from sayso.pending.turn_changes import TurnChange
from sayso.workers import spool as spool_module
from sayso.workers.mailbox import InboxLimits as Door
from sayso.workers.spool import PAUSE_SECONDS, Spool, SpoolFile, SpoolFull, SpoolUnusable
from tests.contracts.rigs import CHAT, Rig, turn
from tests.contracts.test_conversations import claim_of, lease, look, shown

AWAY = RedisConnectionError("Error 111 connecting to redis:6379")
ELSEWHERE = Conversation("chat", "elsewhere")


class Link:
    """The way to a mailbox: cut while `error` is set, or after this many `answers`; `dies` after an answer."""

    def __init__(self, mailbox) -> None:
        self.mailbox, self.error, self.answers, self.dies, self.asked = mailbox, None, -1, None, 0

    def ignores(self, given) -> str:
        """Return "": no turn is ignored."""
        return ""

    def accept(self, given, **options):
        """Accept the turn, or fail as planned."""
        self.asked += 1
        if self.error and self.answers <= 0:
            raise self.error
        self.answers -= 1
        accepted = self.mailbox.accept(given, **options)
        if self.dies:
            raise self.dies
        return accepted


class Desk:
    """One machine: a mailbox that can be cut off, the spool's folder, and web processes that share both."""

    def __init__(self, folder: Path, *, waiting: int = 50) -> None:
        self.rig = Rig(limits=Door(waiting=waiting))
        self.link = Link(self.rig.mailbox)
        self.file = SpoolFile(folder / "spool")
        self.steady = 0.0
        self.web, self.sibling = self.process(), self.process()

    def process(self) -> Spool:
        """Return one more web process, which empties the spool on request."""
        spool = Spool(
            self.file, self.link, clock=lambda: self.rig.now, monotonic=lambda: self.steady
        )
        spool.watch = lambda: None  # type: ignore[method-assign]
        return spool

    def cut(self) -> None:
        """Make Redis unreachable."""
        self.link.error = AWAY

    def mend(self) -> None:
        """Make Redis reachable again, and let the processes notice it."""
        self.link.error = None
        self.steady += PAUSE_SECONDS + 1

    def says(self, *texts: str, to: Spool | None = None, chat: Conversation = CHAT) -> list[str]:
        """Accept these turns; return the results. The texts are their event ids too."""
        door = to or self.web
        return [
            door.accept(replace(turn(text, event=text), conversation=chat)).outcome
            for text in texts
        ]

    def answered(self, chat: Conversation = CHAT) -> list[str]:
        """Return what a worker finds in a mailbox, in order."""
        held, work = self.rig.mailbox.lease(chat.id, f"w{self.rig.now}") or (None, None)
        found = []
        while work:
            found.append(work.turn.text)
            work = self.rig.mailbox.commit(held, work, TurnChange())
        if held:
            self.rig.mailbox.release(held)
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a machine with a reachable Redis."""
    return Desk(tmp_path)


def test_turns_of_an_outage_are_handed_over_in_order(desk: Desk):
    """Each one comes once, behind earlier turns, although every webhook came twice."""
    desk.says("a")
    desk.cut()
    assert desk.says("b", "b", "c", "c", to=desk.sibling) == ["spooled"] * 4
    desk.mend()
    assert desk.web.forward() == 2
    assert desk.says("b", "c") == ["duplicate"] * 2
    assert desk.answered() == ["a", "b", "c"]


def test_no_turn_overtakes_a_waiting_one(desk: Desk):
    """Redis is back, and another process gets the next turn first. It must wait, but only in that conversation."""
    desk.cut()
    desk.says("a")
    desk.mend()
    assert desk.says("b", to=desk.sibling) == ["spooled"]
    assert desk.says("x", to=desk.sibling, chat=ELSEWHERE) == ["new"]
    desk.web.forward()
    assert desk.says("c", to=desk.sibling) == ["new"]
    assert desk.answered() == ["a", "b", "c"]


def test_turn_stored_while_the_spool_is_emptied_is_handed_over_last(desk: Desk):
    """It came between the read of the file and the deletion of the read turns."""
    desk.cut()
    desk.says("a")
    desk.mend()
    delete = desk.file.delete

    def delete_as_another_comes(numbers) -> None:
        desk.file.delete = delete
        assert desk.says("b", to=desk.sibling) == ["spooled"]
        delete(numbers)

    desk.file.delete = delete_as_another_comes
    desk.web.forward()
    assert (desk.answered(), desk.file.has_some()) == (["a", "b"], False)


def test_process_that_dies_between_handing_over_and_deleting_doubles_nothing(desk: Desk):
    """The next process hands the turn over again, which is a duplicate."""
    desk.cut()
    desk.says("a", "b")
    desk.mend()
    desk.link.dies = SystemExit()
    desk.file.delete = lambda numbers: None  # it never came to that
    with pytest.raises(SystemExit):
        desk.web.forward()
    desk.link.dies = None
    del desk.file.delete
    assert desk.sibling.forward() == 2
    assert (desk.answered(), desk.file.count()) == (["a", "b"], 0)


def test_turn_whose_answer_was_lost_is_a_duplicate(desk: Desk):
    """Redis had stored it, and the web could not know. It waits too and is a duplicate then."""
    desk.link.dies = AWAY
    assert desk.says("a") == ["spooled"]
    desk.link.dies = None
    desk.mend()
    desk.web.forward()
    assert desk.answered() == ["a"]


def test_next_outage_keeps_the_remaining_turns(desk: Desk):
    """They wait on, in order."""
    desk.cut()
    desk.says("a", "b", "c")
    desk.link.answers = 1
    with pytest.raises(RedisConnectionError):
        desk.web.forward()
    assert desk.file.count() == 2
    desk.mend()
    desk.sibling.forward()
    assert desk.answered() == ["a", "b", "c"]


def test_full_mailbox_is_waited_for(tmp_path: Path):
    """A refused turn waits, with all later ones of its conversation; other conversations go on."""
    desk = Desk(tmp_path, waiting=2)
    desk.cut()
    desk.says("a", "b", "c", "d")
    desk.says("x", chat=ELSEWHERE)
    desk.mend()
    assert (desk.web.forward(), desk.file.count()) == (3, 2)
    assert (desk.answered(), desk.answered(ELSEWHERE)) == (["a", "b"], ["x"])
    desk.web.forward()
    assert desk.answered() == ["c", "d"]


@pytest.mark.parametrize("error", [OutOfMemoryError("command not allowed"), OtherVersion(2)])
def test_error_of_one_conversation_does_not_delay_others(desk: Desk, error: Exception):
    """Redis answers, so it is reachable. A person may have a record of a newer release."""
    desk.cut()
    desk.says("a")
    desk.says("x", chat=ELSEWHERE)
    desk.link.error = error
    assert (desk.web.forward(), desk.link.asked, desk.file.count()) == (0, 3, 2)
    desk.mend()
    assert desk.web.forward() == 2


def test_turn_of_another_version_is_overtaken_only_elsewhere(desk: Desk, tmp_path: Path):
    """During an update a newer process spools a turn, and an older one empties the spool."""
    desk.cut()
    desk.says("a", "b")
    desk.says("x", chat=ELSEWHERE)
    database = tmp_path / "spool" / "turns.sqlite3"
    with sqlite3.connect(database) as db:
        (readable,) = db.execute("SELECT turn FROM turns WHERE n = 1").fetchone()
        newer = json.dumps({**json.loads(readable), "v": 999})
        db.execute("UPDATE turns SET turn = ? WHERE n = 1", (newer,))
    desk.mend()
    assert (desk.web.forward(), desk.answered(), desk.answered(ELSEWHERE)) == (1, [], ["x"])

    with sqlite3.connect(database) as db:
        db.execute("UPDATE turns SET turn = ? WHERE n = 1", (readable,))
    assert (desk.web.forward(), desk.answered()) == (2, ["a", "b"])


@pytest.mark.parametrize(("before", "outage", "verdict"), [(30, 300, "mine"), (90, 300, "expired")])
def test_yes_counts_when_it_was_sent_in_time(desk: Desk, before: int, outage: int, verdict: str):
    """The length of the outage does not matter."""
    held, action = shown(desk.rig)
    desk.rig.mailbox.release(held)
    desk.cut()
    desk.rig.pass_time(before)
    yes = turn("yes")
    desk.web.accept(yes)
    desk.rig.pass_time(outage)
    desk.mend()
    desk.web.forward()
    held, work = lease(desk.rig, "w2")
    assert (
        desk.rig.repository.claim(claim_of(yes, action, held, work.seq), look(desk.rig))[0]
        == verdict
    )


def test_yes_from_before_the_preview_is_early(desk: Desk):
    """It was typed in the outage. The preview went out after it, before the spool was emptied."""
    desk.cut()
    yes = turn("yes")
    desk.web.accept(yes)
    desk.rig.pass_time(300)
    desk.mend()
    held, action = shown(desk.rig)
    desk.rig.mailbox.release(held)
    desk.rig.pass_time(1)
    desk.web.forward()
    held, work = lease(desk.rig, "w2")
    assert (
        desk.rig.repository.claim(claim_of(yes, action, held, work.seq), look(desk.rig))[0]
        == "early"
    )


def test_spooled_tap_keeps_its_action(desk: Desk):
    """The tap names the same pending action."""
    desk.cut()
    desk.web.accept(turn(tap="data"), tapped="pid-1")
    desk.mend()
    desk.web.forward()
    assert " pid-1 " in desk.rig.inbox()[0]


def test_silent_redis_is_not_called_by_every_webhook(desk: Desk):
    """A hanging Redis would block all threads, so only the first one asks within a moment."""
    desk.cut()
    for number in range(20):
        desk.says(f"x{number}", chat=Conversation("chat", str(number)))
    assert desk.link.asked == 1
    desk.mend()
    assert desk.says("y", chat=ELSEWHERE) == ["new"]


def test_halted_redis_is_waited_for(desk: Desk):
    """Turns wait on this disk, in order, and no conversation is tried by itself."""
    desk.link.error = Halted()
    assert desk.says("one", "two") == ["spooled", "spooled"]
    asked = desk.link.asked
    with pytest.raises(Halted):
        desk.web.forward()
    assert desk.link.asked == asked + 1
    desk.mend()
    desk.web.forward()
    assert desk.answered() == ["one", "two"]


def test_turn_over_the_limits_of_the_spool_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Too many wait. The caller gets an error and answers 503."""
    monkeypatch.setattr(spool_module, "MAX_TURNS", 1)
    desk = Desk(tmp_path)
    desk.cut()
    desk.says("a")
    with pytest.raises(SpoolFull):
        desk.says("b")
    desk.mend()
    desk.web.forward()
    assert (desk.says("b"), desk.answered()) == (["new"], ["a", "b"])


def test_failing_disk_refuses_only_turns_that_may_overtake(desk: Desk, tmp_path: Path):
    """Redis is reachable, but without the file it is unknown whose turns wait."""
    desk.cut()
    desk.says("a")
    desk.mend()
    (tmp_path / "spool" / "turns.sqlite3").write_bytes(b"no database" * 1000)
    with pytest.raises(SpoolUnusable):
        desk.says("b")
    (tmp_path / "spool" / "waiting").unlink()
    assert desk.says("b") == ["new"]


def test_spool_that_another_process_empties_is_left_to_it(desk: Desk):
    """Two at once would be correct, but twice the work."""
    desk.cut()
    desk.says("a")
    desk.mend()
    with desk.file.alone():
        assert (desk.web.forward(), desk.link.asked) == (0, 1)


def test_healthy_path_opens_no_file(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    """It only checks whether one file exists."""
    monkeypatch.setattr("sqlite3.connect", None)
    assert (desk.says("a"), desk.web.count()) == (["new"], 0)


def test_logs_hold_no_text(desk: Desk, caplog: pytest.LogCaptureFixture):
    """They hold only ids."""
    caplog.set_level("INFO")
    desk.cut()
    desk.says("secret")
    desk.mend()
    desk.web.forward()
    assert [record.message for record in caplog.records] == ["redis.away", "spool.handed_over"]
    assert "secret" not in " ".join(str(vars(record)) for record in caplog.records)


def test_spool_is_emptied_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """This includes turns of an earlier process whose marker file was lost. No error ends the thread."""
    monkeypatch.setattr(spool_module, "ROUND_SECONDS", 0.001)
    desk = Desk(tmp_path)
    desk.cut()
    desk.says("a")
    (tmp_path / "spool" / "waiting").unlink()
    errors = iter([AWAY, ValueError("a mistake of ours"), SpoolUnusable("gone")])
    done = threading.Event()

    class Mailbox:
        def accept(self, given, **_):
            for error in errors:
                raise error
            done.set()
            return desk.rig.mailbox.accept(given)

    spool = Spool(desk.file, Mailbox())
    spool.watch()
    spool.watch()
    assert done.wait(60)
    assert [thread.name for thread in threading.enumerate()].count("spool") == 1
