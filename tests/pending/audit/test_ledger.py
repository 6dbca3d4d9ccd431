"""Ledger: entries stay, personal data can be erased, and every manual edit of the file shows."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sayso.pending.action import PLAN_KIND, ActionSigner
from sayso.pending.approvals.votes import Vote
from sayso.pending.audit.bodies import AuditBody
from sayso.pending.audit.body_votes import ErasedVote, read_votes
from sayso.pending.audit.entries import RecordedEntry
from sayso.pending.audit.export import read_export, to_lines
from sayso.pending.audit.ledger import (
    FILE,
    AuditLedger,
    LedgerUnusable,
)
from sayso.pending.audit.verify import verify
from sayso.pending.decision_record import DecisionRecord
from tests.pending.audit.receipt_story import vote_of
from tests.pending.state_log import AT, KEY, LIFE, SEAL, SIGNER, StateLog, busy_log, sealed


@pytest.fixture
def ledger(tmp_path):
    """Return a ledger that does not exist yet."""
    return AuditLedger(tmp_path / FILE, SIGNER)


@pytest.fixture
def filled(ledger):
    """Return a ledger with 60 entries and the bodies of 12 actions."""
    ledger.store(
        busy_log().waiting, [body(f"action-{number}", told="Done.") for number in range(12)]
    )
    return ledger


def body(pid: str, *, user: str = "ana", told: str = "") -> AuditBody:
    """Return a body as the collector stores it."""
    return AuditBody.of(pid, *sealed(pid, user=user), told, at=AT)


def hack(path: Path, *statements: str) -> None:
    """Edit the file as an attacker with write access would: drop the triggers first."""
    with closing(sqlite3.connect(path)) as connection:
        names = [
            row[0]
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        ]
        for statement in [*(f"DROP TRIGGER {name}" for name in names), *statements]:
            assert connection.execute(statement).rowcount != 0, f"changed nothing: {statement}"
        connection.commit()


def faults(*paths: Path, **options) -> list[str]:
    """Return all faults of these files."""
    return [str(fault) for fault in verify(paths, [KEY], **options).faults]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET text = 'x' WHERE n = 3",
        "UPDATE entries SET n = 99 WHERE n = 3",
        "DELETE FROM entries WHERE n = 3",
        "DELETE FROM rivals",
        "DELETE FROM bodies",
        "UPDATE bodies SET record = '{}'",
        "UPDATE bodies SET mac = '', erased_at = 1, record = NULL, told = NULL, user = NULL",
        "UPDATE bodies SET erased_at = 1",
        "UPDATE bodies SET pid = 'x' || pid",
    ],
)
def test_ledger_refuses_to_delete_or_change(filled, statement):
    """No entry is removed or changed by mistake."""
    filled.store([RecordedEntry(0, 3, "no entry")])
    with closing(sqlite3.connect(filled.path)) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)


@pytest.mark.parametrize("how", ["INSERT OR REPLACE", "REPLACE", "INSERT OR IGNORE", "INSERT"])
def test_insert_over_an_entry_changes_nothing(filled, how):
    """SQLite's way around a DELETE trigger is closed."""
    before = filled.entries()
    with closing(sqlite3.connect(filled.path)) as connection:
        connection.execute(f"{how} INTO entries VALUES (0, 3, 'x', 'x', 'x')")
        connection.commit()
    assert filled.entries() == before


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        (
            "UPDATE entries SET text = replace(text, 'shown', 'armed') WHERE n = 17",
            "entry 17: edited",
        ),
        ("DELETE FROM entries WHERE n = 17", "entry 17: removed"),
        ("UPDATE entries SET sig = '' WHERE n = 17", "entry 17: bad signature"),
        ("UPDATE entries SET head = '' WHERE n = 17", "entry 17: edited"),
        ("UPDATE entries SET n = 61 WHERE n = 17", "entry 61: reordered"),
        (
            "UPDATE bodies SET record = '{}' WHERE pid = 'action-4'",
            "entry 5: body edited (bad signature)",
        ),
        (
            "UPDATE bodies SET told = 'Not done.' WHERE pid = 'action-4'",
            "entry 5: body edited (bad signature)",
        ),
        (
            "UPDATE bodies SET user = 'bob' WHERE pid = 'action-4'",
            "entry 5: body edited (bad signature)",
        ),
        ("UPDATE bodies SET at = 1 WHERE pid = 'action-4'", "entry 5: body edited (bad signature)"),
        (
            "UPDATE bodies SET repeatable = 1 WHERE pid = 'action-4'",
            "entry 5: body edited (bad signature)",
        ),
        (
            "UPDATE bodies SET record = NULL, erased_at = 1 WHERE pid = 'action-4'",
            "entry 5: body edited (bad signature)",
        ),
        ("DELETE FROM bodies WHERE pid = 'action-4'", "entry 5: body removed"),
        ("UPDATE entries SET text = x'ff' WHERE n = 17", "entry 17: edited"),
        ("UPDATE entries SET text = CAST(x'ff' AS TEXT) WHERE n = 17", "entry 17: edited"),
        ("UPDATE entries SET sig = x'00' WHERE n = 17", "entry 17: bad signature"),
        (
            "UPDATE bodies SET record = x'00' WHERE pid = 'action-4'",
            "entry 5: body edited (bad signature)",
        ),
        (
            "UPDATE bodies SET mac = x'00' WHERE pid = 'action-4'",
            "entry 5: body edited (bad signature)",
        ),
        (
            "UPDATE bodies SET sig = x'00' WHERE pid = 'action-4'",
            "entry 5: body edited (bad signature)",
        ),
        (
            "UPDATE bodies SET at = x'00' WHERE pid = 'action-4'",
            "entry 5: body edited (bad signature)",
        ),
    ],
)
def test_edit_without_the_key_is_named(filled, statement, fault):
    """The attacker has the file and not the key."""
    assert faults(filled.path) == []
    hack(filled.path, statement)
    assert faults(filled.path) == [f"shard 0, {fault}"]


@pytest.mark.parametrize("change", ["shard = 'y'", "n = x'11'"])
def test_entry_without_a_valid_number_is_reported(filled, change):
    """Such an entry has no place in the order, so the file is refused, and the error shows the value."""
    hack(filled.path, f"UPDATE entries SET {change} WHERE n = 17")
    with pytest.raises(
        LedgerUnusable, match=r"has an entry .* of shard .*: Sayso did not write it"
    ):
        filled.entries()


def test_body_of_another_action_is_a_fault(filled):
    """Two signed bodies cannot be swapped."""
    columns = "record, mac, told, user, at, repeatable, erased_at, sig, decision, votes"
    hack(
        filled.path,
        "UPDATE bodies SET pid = 'x' WHERE pid = 'action-4'",
        f"INSERT INTO bodies SELECT 'action-4', {columns} FROM bodies WHERE pid = 'action-5'",
    )
    assert faults(filled.path) == ["shard 0, entry 5: body edited (bad signature)"]


def test_record_changed_before_its_collection_is_a_fault(ledger):
    """The ledger signs what it gets, but the record's own MAC does not fit."""
    log = StateLog()
    log.live("a")
    record, mac = sealed("a")
    ledger.store(log.waiting, [AuditBody.of("a", record.replace("ana", "eve"), mac, "", at=AT)])
    assert faults(ledger.path) == ["shard 0, entry 1: body edited (not what was signed)"]


def test_body_that_its_entries_do_not_name_is_a_fault(ledger):
    """The record was signed, but it is not the one that was shown, or belongs to another action."""
    log = StateLog()
    log.live("a")
    for event in LIFE:
        log.add("b", event, body=sealed("c")[1])
    ledger.store(log.waiting, [body("a", user="bob"), AuditBody.of("b", *sealed("c"), "", at=AT)])
    assert faults(ledger.path) == [
        "shard 0, entry 1: body edited (another record's)",
        "shard 0, entry 6: body edited (another action's)",
    ]


def test_emptied_file_is_no_empty_log(filled):
    """An emptied ledger does not pass the check."""
    for file in filled.path.parent.iterdir():
        file.write_bytes(b"")
    with pytest.raises(LedgerUnusable, match="cannot be used as a ledger"):
        verify([filled.path], [KEY])


def test_storing_again_changes_nothing(filled):
    """After a kill before Redis dropped the entries, the next round brings them again."""
    before, bodies = filled.entries(), filled.bodies()
    conflicts = filled.store(busy_log().waiting, [body("action-1", told="Done.")])
    assert (filled.entries(), filled.bodies(), conflicts) == (before, bodies, [])


def test_another_entry_under_the_same_number_is_stored_and_reported(filled):
    """Neither history is lost, and neither replaces the other."""
    other = StateLog()
    other.live("other")
    conflicts = filled.store(other.waiting, [body("other")])
    assert [rival.number for rival in conflicts] == [1, 2, 3, 4, 5]
    assert filled.store(other.waiting) == conflicts
    assert len(filled.entries()) == 65
    assert faults(filled.path) == [
        f"shard 0, entry {n}: forked (2 different entries)" for n in range(1, 6)
    ]


def test_text_that_is_no_entry_is_stored_and_reported(ledger):
    """Another client wrote to the list in Redis. The true entry keeps its number."""
    log = StateLog()
    log.live("a")
    ledger.store([*log.waiting[:2], RecordedEntry(0, 3, "garbage"), *log.waiting[2:]], [body("a")])
    assert faults(ledger.path) == ["shard 0, entry 3: edited"]


def test_two_writers_at_once_store_everything_once(ledger):
    """The workers of a machine share the file."""
    log = busy_log()
    writers = [threading.Thread(target=ledger.store, args=(log.waiting,)) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [kept.text for kept in ledger.entries()] == log.texts


def test_writer_waits_while_another_one_creates_the_file(ledger, monkeypatch):
    """SQLite itself refuses at once, since both turn a new file to WAL."""
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:

        def let_go(seconds: float) -> None:
            assert 0 < seconds < 0.1
            other.execute("COMMIT")

        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("sayso.infra.storage.files.time.sleep", let_go)
        ledger.store(busy_log().waiting)
    assert [kept.text for kept in ledger.entries()] == busy_log().texts


def test_writer_does_not_wait_for_ever(ledger, monkeypatch):
    """The collector gets an error, logs it and tries again."""
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("sayso.infra.storage.files.LOCK_SECONDS", 0.0)
        with pytest.raises(LedgerUnusable, match="database is locked"):
            ledger.store(busy_log().waiting)


def test_nothing_of_a_failed_store_stays(ledger):
    """A store is all or nothing, so Redis drops only what is stored."""
    with pytest.raises(LedgerUnusable):
        ledger.store(busy_log().waiting, [replace(body("a"), mac=None)])
    assert ledger.entries() == []


def test_body_gets_the_outcome_later(ledger):
    """The last text replaces earlier ones; nothing replaces the record."""
    ledger.store([], [body("a")])
    ledger.store([], [replace(body("a", told="Deleted."), record=None)])
    assert ledger.bodies()["a"].outcome_text == "Deleted."
    ledger.store([], [body("a")])
    assert ledger.bodies()["a"].outcome_text == "Deleted."
    assert ledger.bodies()["a"].preview == "Delete a?"


def test_erased_person_is_gone_from_the_file_and_the_chain_holds(ledger):
    """No byte of the person is left in the file."""
    log = StateLog()
    for pid, user in {"a": "Zebedee", "b": "Zebedee", "c": "ana"}.items():
        for event in LIFE:
            log.add(pid, event, body=sealed(pid, user=user)[1])
    with closing(sqlite3.connect(ledger.path)) as reader:  # so that SQLite keeps its log of writes
        assert reader.execute("SELECT 1").fetchall()
        ledger.store(
            log.waiting,
            [body("a", user="Zebedee", told="Bye Zebedee"), body("b", user="Zebedee"), body("c")],
        )
        assert reader.execute("SELECT count(*) FROM bodies").fetchall() == [(3,)]
        assert ledger.erase("Zebedee", at=5) == 2
        assert ledger.erase("Zebedee", at=6) == 0
        assert not any(b"Zebedee" in file.read_bytes() for file in ledger.path.parent.iterdir())
    assert faults(ledger.path) == []
    assert {pid: body.preview for pid, body in ledger.bodies().items()} == {
        "a": "(erased)", "b": "(erased)", "c": "Delete c?",
    }  # fmt: skip


def test_erased_body_does_not_come_back(ledger):
    """A late entry of the action would bring its record again."""
    ledger.store([], [body("a")])
    ledger.erase("ana", at=5)
    ledger.store([], [body("a", told="Deleted.")])
    assert (ledger.bodies()["a"].record, ledger.bodies()["a"].outcome_text) == (None, None)


def test_record_that_had_expired_is_no_fault(ledger):
    """A collector that comes after two days finds only the entries."""
    log = StateLog()
    log.live("a")
    ledger.store(log.waiting, [AuditBody.of("a", None, "", "", at=AT)])
    assert faults(ledger.path) == []
    assert ledger.bodies()["a"].preview == "(not kept)"


def test_record_that_had_expired_has_no_user(ledger):
    """It gets no invented user, under whose name it would be listed and erased."""
    ledger.store([], [AuditBody.of("a", None, "", "", at=AT)])
    assert ledger.bodies()["a"].user is None


@pytest.mark.parametrize(
    "record", ["", "{", "[1]", "null", '{"user_id": "\\ud800", "pid": 1}', "[" * 100_000]
)
def test_unreadable_record_is_stored(ledger, record):
    """Whatever another client wrote into Redis, collecting goes on and verify reports it."""
    log = StateLog()
    log.live("a")
    ledger.store(log.waiting, [AuditBody.of("a", record, log.record("a"), "\0", at=AT)])
    assert faults(ledger.path) == ["shard 0, entry 1: body edited (not what was signed)"]


def test_second_start_of_a_once_only_action_is_found_by_its_body(ledger):
    """This holds after the body was erased too."""
    log = StateLog()
    log.live("a", "armed", "shown", "claimed", "started", "started")
    ledger.store(log.waiting, [body("a")])
    ledger.erase("ana", at=5)
    assert faults(ledger.path) == ["shard 0, entry 5: impossible (started twice)"]


def test_second_start_of_an_action_without_a_record_is_no_fault(ledger):
    """The record had expired before its collection, and it may have been repeatable."""
    log = StateLog()
    log.live("a", "armed", "shown", "claimed", "started", "started")
    ledger.store(log.waiting, [AuditBody.of("a", None, "", "", at=AT)])
    assert ledger.bodies()["a"].repeatable is None
    assert faults(ledger.path) == []


def test_repeatable_actions_and_plans_may_start_again(ledger):
    """A plan has no effect of its own."""
    log = StateLog()
    records = {"a": sealed("a", idempotent=True), "b": sealed("b", kind=PLAN_KIND)}
    for event in ("armed", "shown", "claimed", "started", "started", "done"):
        for pid, (_, mac) in records.items():
            log.add(pid, event, body=mac)
    ledger.store(
        log.waiting, [AuditBody.of(pid, *record, "", at=AT) for pid, record in records.items()]
    )
    assert faults(ledger.path) == []


def test_stretches_of_several_machines_make_one_log(tmp_path):
    """Each machine collected some entries. Repeated ones are no fault, a missing machine is."""
    log, paths = busy_log(), []
    bodies = [body(f"action-{number}") for number in range(12)]
    for name, stretches in {"a": [(0, 25), (40, 45)], "b": [(20, 40)], "c": [(45, 60)]}.items():
        machine = AuditLedger(tmp_path / f"{name}.sqlite3", SIGNER)
        for start, end in stretches:
            machine.store(log.waiting[start:end], bodies)
        paths.append(machine.path)
    assert faults(*paths, whole=True) == []
    assert faults(paths[0], paths[2], whole=True) == ["shard 0, entry 26: removed (up to 40)"]
    report = verify(paths, [KEY])
    assert (report.entries, report.shards) == (60, 1)


def test_ledger_that_starts_late_is_a_fault_only_with_whole(ledger):
    """A machine that joined later has no older entries; `--whole` reports that."""
    ledger.store(busy_log().waiting[10:], [body(f"action-{number}") for number in range(12)])
    report = verify([ledger.path], [KEY])
    assert (report.faults, report.notes) == (
        (),
        ("shard 0 begins with entry 11: older ones are not here",),
    )
    assert faults(ledger.path, whole=True) == ["shard 0, entry 1: removed (up to 10)"]


def test_export_verifies_without_the_ledger(filled, tmp_path):
    """The lines are signed and hold no personal data. Each edited, removed or moved line is named."""
    lines = list(to_lines(filled.entries()))
    assert "ana" not in "".join(lines)
    file = tmp_path / "log.jsonl"
    for edited, fault in (
        (lines, []),
        ([lines[0], lines[2], lines[1], *lines[3:]], ["shard 0, entry 2: reordered"]),
        (lines[:5] + lines[6:], ["shard 0, entry 6: removed"]),
        (
            [*lines[:5], lines[5].replace("armed", "shown"), *lines[6:]],
            ["shard 0, entry 6: edited"],
        ),
        ([*lines[:5], lines[4], *lines[5:]], ["shard 0, entry 5: repeated"]),
    ):
        file.write_text("\n".join(edited))
        assert faults(file) == fault
    assert [kept.text for kept in read_export(file)][:2] == busy_log().texts[:2]


@pytest.mark.parametrize(
    "content",
    ["nonsense", "[]", '{"shard": 1}', '{"shard": "x", "text": "", "sig": ""}', "[" * 9000],
)
def test_file_that_is_neither_ledger_nor_export_is_refused(tmp_path, content):
    """The error names file and line."""
    file = tmp_path / "log.jsonl"
    file.write_text(content)
    with pytest.raises(
        LedgerUnusable, match=r"log\.jsonl:1: not a line that `sayso audit export` wrote"
    ):
        verify([file], [KEY])


def test_files_that_cannot_be_read_are_named(tmp_path):
    """It is a missing file, a folder, or the database of another program."""
    with pytest.raises(LedgerUnusable, match="No such file"):
        verify([tmp_path / "none.sqlite3"], [KEY])
    with pytest.raises(LedgerUnusable, match="Is a directory"):
        verify([tmp_path], [KEY])
    (tmp_path / "other.sqlite3").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    with pytest.raises(LedgerUnusable, match=r"other\.sqlite3 cannot be used as a ledger"):
        verify([tmp_path / "other.sqlite3"], [KEY])


def test_only_the_own_user_can_read_the_ledger(filled):
    """It holds people's texts, which other users of the machine must not read."""
    assert filled.path.stat().st_mode & 0o077 == 0


def test_person_of_a_missing_ledger_cannot_be_erased(ledger):
    """The command does not report that nothing was found, and creates no file."""
    with pytest.raises(
        LedgerUnusable, match=f"no ledger at {re.escape(str(ledger.path))}: a worker writes it"
    ):
        ledger.erase("ana", at=AT)
    assert not ledger.path.exists()


def decision_on(pid: str, answer: str = "yes", *, signer: ActionSigner = SEAL) -> str:
    """Return the record of a decision of ana's, as Redis has it."""
    mac = sealed(pid)[1]
    record = DecisionRecord(pid, mac, answer, "words", "chat", "ana", "chat:1", f"e-{pid}", 1.5)
    return replace(record, words="Quetzal").sealed(signer).to_json()


def vote_on(pid: str, user: str, event: str = "v1", **fields) -> str:
    """Return the vote of another person, as Redis has it."""
    given = {"words": f"I, {user}, say yes", "aliases": (f"+{user}",), **fields}
    return vote_of(pid, sealed(pid)[1], user, event, **given).sealed(SEAL).to_json()


def test_decision_comes_later_and_never_changes(ledger):
    """The first collection of an action finds it undecided."""
    ledger.store([], [body("a")])
    assert ledger.bodies()["a"].decision is None
    first = decision_on("a")
    for later in (first, decision_on("a", "no")):
        ledger.store([], [replace(body("a"), decision=later)])
        assert ledger.bodies()["a"].decision == first
    ledger.store([], [body("a")])
    assert ledger.bodies()["a"].decision == first


def test_votes_are_only_added(ledger):
    """A Redis that has lost them does not take them back."""
    bob, eve = vote_on("a", "bob"), vote_on("a", "eve", "v2")
    for votes in (bob, f"{bob}\n{eve}", "", eve):
        ledger.store([], [replace(body("a"), votes=votes)])
    assert ledger.bodies()["a"].votes == f"{bob}\n{eve}"


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE bodies SET decision = NULL", "bad signature"),
        ("UPDATE bodies SET decision = replace(decision, 'yes', 'no')", "bad signature"),
        ("UPDATE bodies SET votes = NULL", "bad signature"),
        ("UPDATE bodies SET votes = replace(votes, 'bob', 'eve')", "bad signature"),
        ("UPDATE bodies SET decision = votes, votes = decision", "bad signature"),
    ],
)
def test_edited_decision_is_a_fault(ledger, statement, fault):
    """The signature of a body is over the decision and the votes, too."""
    log = StateLog()
    log.live("a")
    decided = replace(body("a"), decision=decision_on("a"), votes=vote_on("a", "bob"))
    ledger.store(log.waiting, [decided])
    assert faults(ledger.path) == []
    hack(ledger.path, statement)
    assert faults(ledger.path) == [f"shard 0, entry 1: body edited ({fault})"]


@pytest.mark.parametrize(
    "decision",
    ["{", "[]", decision_on("b"), decision_on("a", signer=ActionSigner(["another"])), "[" * 99_999],
)
def test_decision_that_was_forged_in_redis_is_a_fault(ledger, decision):
    """It is collected like everything, and verify reports it."""
    log = StateLog()
    log.live("a")
    ledger.store(log.waiting, [replace(body("a"), decision=decision)])
    assert faults(ledger.path) == [
        "shard 0, entry 1: body edited (a decision that was not recorded so)"
    ]


def test_words_of_an_erased_person_are_gone(ledger):
    """The decision is erased with the body, and a late entry does not bring it back."""
    log = StateLog()
    log.live("a")
    decided = replace(body("a"), decision=decision_on("a"), votes=vote_on("a", "bob"))
    ledger.store(log.waiting, [decided])
    ledger.erase("ana", at=5)
    ledger.store([], [decided])
    erased = ledger.bodies()["a"]
    assert (erased.decision, erased.votes) == (None, None)
    assert b"Quetzal" not in ledger.path.read_bytes()
    assert faults(ledger.path) == []


@pytest.mark.parametrize("user", ["bob", "+bob"])
def test_vote_of_an_erased_person_is_erased_with_any_of_their_ids(ledger, user):
    """What stays is that somebody voted. The vote does not come back, and other votes stay."""
    log = StateLog()
    log.live("a")
    eve = vote_on("a", "eve", "v2")
    voted = replace(body("a"), votes=f"{vote_on('a', 'bob')}\n{{unreadable\n{eve}")
    ledger.store(log.waiting, [voted])
    assert ledger.erase(user, at=5) == 1
    ledger.store([], [voted])
    votes = list(read_votes(ledger.bodies()["a"].votes))
    assert votes == [ErasedVote("v1", 5), None, Vote.from_json(eve)]
    assert b"bob" not in ledger.path.read_bytes()
    assert ledger.erase(user, at=6) == 0
    assert faults(ledger.path) == []


def version_1(path: Path) -> None:
    """Turn a ledger into one of version 1, which had no decisions."""
    hack(
        path,
        "ALTER TABLE bodies DROP COLUMN decision",
        "ALTER TABLE bodies DROP COLUMN votes",
        "PRAGMA user_version = 1",
    )


def test_ledger_of_version_1_is_read_and_upgraded(filled):
    """Its bodies have no decisions, and verify before and after the first write of this version."""
    version_1(filled.path)
    before = filled.bodies()
    assert faults(filled.path) == []
    assert {each.decision for each in before.values()} == {None}

    decided = replace(body("action-1"), decision=decision_on("action-1"))
    filled.store([], [decided])
    assert filled.bodies()["action-1"].decision == decided.decision
    assert filled.erase("ana", at=5) == 12
    assert faults(filled.path) == []


def test_two_processes_upgrade_a_ledger_once(filled):
    """Both start with the new version at the same time."""
    version_1(filled.path)
    errors = []

    def store() -> None:
        try:
            filled.store([], [body("action-1", told="Later.")])
        except LedgerUnusable as exc:
            errors.append(exc)

    threads = [threading.Thread(target=store) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert filled.bodies()["action-1"].outcome_text == "Later."
    assert faults(filled.path) == []
