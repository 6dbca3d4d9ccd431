"""The `sayso audit` commands: what operators see, and exit code 1 when the log is not whole."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from click.testing import CliRunner

from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.memory.graph import SQLiteTripleStore, Triple
from sayso.channels.types import Conversation, Scope, Turn, digest
from sayso.config.wiring.agents import RELATIONSHIPS, knowledge_memory
from sayso.infra.storage.objects import LocalObjects
from sayso.ops.cli.main import main
from sayso.pending.audit.bodies import AuditBody
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.workers.data_loss.notices import FOLDER, AcknowledgedWork, NoteFiles
from tests.config.processes import free_port
from tests.pending.state_log import AT, KEY, SIGNER, StateLog, busy_log, sealed


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Return a data folder with a ledger of three shards, without Redis."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", KEY)
    monkeypatch.delenv("SAYSO_CONFIG", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    folder = tmp_path / "data"
    folder.mkdir()
    ledger = AuditLedger(folder / FILE, SIGNER)
    for shard in (3, 17, 40):
        log = busy_log(shard=shard)
        bodies = [
            AuditBody.of(f"action-{number}", *sealed(f"action-{number}"), "", at=AT)
            for number in range(12)
        ]
        ledger.store(log.waiting, bodies)
    return folder


def run(*args: object) -> tuple[int, str]:
    """Return exit code and output of a `sayso audit` command. Any other exception is a bug."""
    result = CliRunner().invoke(main, ["audit", *map(str, args)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def spoil(data, statement: str) -> None:
    """Edit the ledger as an attacker with the file could."""
    with closing(sqlite3.connect(data / FILE)) as connection:
        for name in ("entries_update", "entries_delete"):
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        (
            "UPDATE entries SET text = replace(text, 'done', 'failed') WHERE shard = 17",
            "shard 17, entry 49: edited",
        ),
        ("DELETE FROM entries WHERE shard = 17 AND n = 42", "shard 17, entry 42: removed"),
        ("UPDATE entries SET n = -n WHERE shard = 17 AND n = 42", "shard 17, entry -42: reordered"),
    ],
)
def test_first_fault_is_named_and_the_exit_code_is_one(data, statement, fault):
    """An operator or a cron job sees a manual edit of the file."""
    spoil(data, statement)
    code, output = run("verify", "--data", data)
    assert code == 1
    assert (
        next(line for line in output.splitlines() if line.startswith("fault: "))
        == f"fault: {fault}"
    )
    assert "the chain is broken" in output


def test_whole_log_passes(data):
    """The answer is one line; without Redis it names what was not checked."""
    assert run("verify", "--data", data, "--offline") == (
        0,
        "180 entries, 3 shards, 0 faults: the chain holds\n",
    )
    code, output = run("verify", "--data", data)
    assert code == 0
    assert output.startswith("note: Redis cannot be reached: entries missing at the end of the log")


def test_many_faults_are_counted(data):
    """At most twenty are printed."""
    spoil(data, "UPDATE entries SET sig = ''")
    code, output = run("verify", "--data", data)
    assert code == 1
    assert output.count("fault: ") == 20
    assert "... and 160 more\n180 entries, 3 shards, 180 faults: the chain is broken" in output


def test_truncated_ledger_is_found_with_redis(tmp_path, monkeypatch, redis_client, redis_url):
    """Redis has the number of the last entry."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", KEY)
    monkeypatch.setenv("REDIS_URL", redis_url)
    (tmp_path / "shop.yaml").write_text("channels: {web: {platform: console}}\n")
    monkeypatch.setenv("SAYSO_CONFIG", str(tmp_path / "shop.yaml"))
    StateLog(5, redis_client, prefix="sayso:shop:").live("a")
    AuditCollector(
        redis_client, AuditLedger(tmp_path / FILE, SIGNER), prefix="sayso:shop:"
    ).collect()
    assert run("verify", "--data", tmp_path) == (
        0,
        "5 entries, 1 shard, 0 faults: the chain holds\n",
    )
    spoil(tmp_path, "DELETE FROM entries WHERE n > 3")
    code, output = run("verify", "--data", tmp_path)
    assert (code, output.splitlines()[0]) == (1, "fault: shard 5, entry 4: removed (Redis is at 5)")
    assert run("verify", "--data", tmp_path, "--offline")[0] == 0


def test_unreachable_redis_is_a_note(data, monkeypatch):
    """The files are checked all the same."""
    for url in (f"redis://127.0.0.1:{free_port()}", "nonsense"):
        monkeypatch.setenv("REDIS_URL", url)
        code, output = run("verify", "--data", data)
        assert (code, output.count("Redis cannot be reached")) == (0, 1)


def test_missing_old_entries_are_a_note_or_a_fault(data):
    """The operator chooses by `--whole`."""
    spoil(data, "DELETE FROM entries WHERE shard = 17 AND n < 11")
    code, output = run("verify", "--data", data, "--offline")
    assert (code, output.splitlines()[0]) == (
        0,
        "note: shard 17 begins with entry 11: older ones are not here",
    )
    code, output = run("verify", "--data", data, "--offline", "--whole")
    assert (code, output.splitlines()[0]) == (1, "fault: shard 17, entry 1: removed (up to 10)")


def test_export_is_signed_and_verifies(data, tmp_path):
    """It goes to standard output or to a file. One changed word in it is found."""
    out = tmp_path / "log.jsonl"
    assert run("export", "--data", data, "--out", out) == (0, f"180 entries in {out}\n")
    assert run("export", "--data", data)[1] == out.read_text()
    assert set(json.loads(out.read_text().splitlines()[0])) == {"shard", "text", "sig"}
    assert run("verify", out, data / FILE, "--data", data, "--offline")[0] == 0
    out.write_text(out.read_text().replace("shown", "armed", 1))
    code, output = run("verify", out, "--data", data, "--offline")
    assert (code, output.splitlines()[0]) == (1, "fault: shard 3, entry 13: edited")


def test_show_lists_what_happened(data):
    """It has time, action, event, user and preview, newest last."""
    code, output = run("show", "--data", data, "--action", "action-3", "--last", 2)
    assert code == 0
    lines = [line.split() for line in output.splitlines()]
    assert [line[2:] for line in lines] == [["action-3", "done", "ana", "Delete", "action-3?"]] * 2
    assert lines[0][0] == "2025-11-20"
    assert len(run("show", "--data", data)[1].splitlines()) == 50
    assert run("show", "--data", data, "--user", "nobody") == (0, "")
    assert len(run("show", "--data", data, "--user", "ana", "--last", 500)[1].splitlines()) == 180


def test_show_names_the_person_beside_their_id(tmp_path, monkeypatch):
    """The name is what the person called themselves, in one line; the id says who it was."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", KEY)
    log = StateLog()
    log.live("a")
    record = sealed("a", user_name="Ada\x1b[2J")
    AuditLedger(tmp_path / FILE, SIGNER).store(log.waiting, [AuditBody.of("a", *record, "", at=AT)])
    assert "ana (Ada [2J)" in run("show", "--data", tmp_path)[1]
    rows = json.loads(run("--json", "show", "--data", tmp_path)[1])
    assert {(row["user"], row["name"]) for row in rows} == {("ana", "Ada\x1b[2J")}


def test_show_has_the_outcome_without_control_characters(tmp_path, monkeypatch):
    """People's texts are on one line and cannot control the terminal."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", KEY)
    log = StateLog()
    log.live("a")
    told = "Deleted.\n\x1b[2Jgone \u202e" + "x" * 100
    AuditLedger(tmp_path / FILE, SIGNER).store(
        log.waiting, [AuditBody.of("a", *sealed("a"), told, at=AT)]
    )
    last = run("show", "--data", tmp_path)[1].splitlines()[-1]
    assert last.endswith("Delete a?" + " " * 41 + "Deleted. [2Jgone " + "x" * 30 + "…")


def test_show_says_what_a_person_changed(tmp_path, monkeypatch):
    """The new action names the earlier one, and each value of its form that differs. Both stay in the log."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", KEY)
    log = StateLog()
    log.live("a", "armed", "shown", "superseded")
    log.live("b", "armed")
    form = {"name": "kg", "label": "Kg", "type": "integer"}
    before = sealed("a", args={"key": "secret", "kg": 5}, form=[{**form, "value": 5}])
    after = sealed("b", args={"key": "other", "kg": 2}, form=[{**form, "value": 2}], changes_of="a")
    bodies = [AuditBody.of("a", *before, "", at=AT), AuditBody.of("b", *after, "", at=AT)]
    AuditLedger(tmp_path / FILE, SIGNER).store(log.waiting, bodies)
    assert run("show", "--data", tmp_path)[1].splitlines()[-1].endswith("changes a kg: 5 -> 2")
    row = json.loads(run("--json", "show", "--data", tmp_path)[1])[-1]
    assert (row["user"], row["changes_of"], row["changed"]) == ("ana", "a", {"kg": [5, 2]})


def test_erase_removes_long_texts_of_a_person_and_no_others(data):
    """It covers all conversations, and the answer names what stays in Redis."""
    texts = TextFiles(LocalObjects(data / "texts"))
    ana, bea = (Scope(user, Conversation("chat", "room")).id for user in ("ana", "bea"))
    gone, stays = texts.put(ana, "long"), texts.put(bea, "long")
    output = run("erase", "--data", data, "--user", "ana")[1]
    assert f"1 long text erased from {data}." in output
    assert "for 30 days" in output
    assert texts.get(bea, stays) == "long"
    with pytest.raises(KeyError):
        texts.get(ana, gone)


def test_erase_removes_the_notes_of_a_persons_turns(data):
    """The notes of acknowledged turns are read after a loss of data. Those of other people stay."""
    notes = NoteFiles(data / FOLDER)
    for user in ("ana", "bea"):
        AcknowledgedWork(notes).note_turn(
            Turn(f"e-{user}", Conversation("chat", "room"), user, "hello")
        )
    assert run("erase", "--data", data, "--user", "ana")[0] == 0
    assert [note["event"] for note in notes.read()] == [digest("e-bea")]


def test_erase_removes_facts_about_a_person_and_about_no_other(data):
    """It covers facts and relationships of all conversations."""
    knowledge, store = knowledge_memory(data), SQLiteTripleStore(data / RELATIONSHIPS)
    for user in ("ana", "bea"):
        for chat in ("1", "2"):
            conversation = Conversation("chat", chat)
            scope = f"{conversation.id}:{Scope(user, conversation).id}"
            knowledge.bound_to(scope).remember("x", persistent=True)
            store.add_many(scope, [Triple(user, "likes", "tea")], most=9)
    assert (
        "4 files and relationships of the agents' memories"
        in run("erase", "--data", data, "--user", "ana")[1]
    )
    assert len(list((data / "knowledge").rglob("MEMORY.md"))) == 2
    assert b"ana" not in (data / RELATIONSHIPS).read_bytes()


def test_erase_removes_a_person_and_the_chain_stays_valid(data):
    """The answer names what it cannot remove."""
    code, output = run("erase", "--data", data, "--user", "ana")
    assert code == 0
    assert "12 bodies of 'ana' erased; the chain still verifies." in output
    assert "Redis holds records for up to 48 hours" in output
    assert "0 bodies" in run("erase", "--data", data, "--user", "ana")[1]
    assert run("verify", "--data", data)[0] == 0
    assert "(erased)" in run("show", "--data", data)[1]
    assert b"ana" not in (data / FILE).read_bytes()


@pytest.mark.parametrize("command", [["verify"], ["show"], ["export"], ["erase", "--user", "ana"]])
def test_missing_ledger_is_named(tmp_path, monkeypatch, command):
    """The error is one line, and no file is created."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", KEY)
    code, output = run(*command, "--data", tmp_path / "none")
    assert code == 3
    assert (
        output
        == f"Error: no ledger in {tmp_path}/none: a worker writes it; name its folder with --data\n"
    )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", [["verify"], ["show"], ["export"], ["erase", "--user", "ana"]])
def test_missing_key_is_named_and_none_is_created(data, monkeypatch, command):
    """With a new key every entry would look forged."""
    monkeypatch.delenv("SAYSO_SECRET_KEYS")
    code, output = run(*command, "--data", data)
    assert (code, output.startswith("Error: no secret key: set SAYSO_SECRET_KEYS")) == (3, True)
    assert not (data / "secret_keys").exists()


def test_unusable_files_are_named(data, tmp_path):
    """They are a missing file, a file of another kind, and an output that cannot be written."""
    (tmp_path / "notes.txt").write_text("hello\n")
    for file, words in (
        (tmp_path / "none", "No such file"),
        (tmp_path / "notes.txt", "notes.txt:1: not a line"),
    ):
        code, output = run("verify", file, "--data", data, "--offline")
        assert (code, output.count("\n")) == (3, 1)
        assert words in output
    code, output = run("export", "--data", data, "--out", tmp_path / "none" / "log.jsonl")
    assert (code, output) == (
        3,
        f"Error: {tmp_path}/none/log.jsonl cannot be written: No such file or directory\n",
    )
