"""Backup and restore: a restored bot repeats no action, and a restore that was interrupted is detected."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from sayso.channels.slack.installations import (
    INVITATION,
    Installation,
    SlackInstallations,
    TokenUnreadable,
    hash_of,
)
from sayso.channels.types import Conversation
from sayso.config.settings.loader import load_settings
from sayso.config.settings.schema import Settings
from sayso.infra.redis.client import connect
from sayso.ops.server.backup import BackupError, Bot, macs_of, write_backup
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.ops.server.restore import Restored, restore_backup
from sayso.ops.server.snapshot import SnapshotError
from sayso.pending.audit.collector import AuditCollector, UncollectedEntries
from sayso.pending.audit.entries import EntrySigner
from sayso.pending.audit.ledger import AuditLedger
from sayso.pending.audit.verify import verify
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.resume import RESUME_STEP, halt, halts_of, is_restoring, resume
from sayso.workers.data_loss.watermarks import HaltReason
from sayso.workers.people import ListedPerson, RedisPeople
from sayso.workers.recovery import ALIVE, Heartbeat, WorkerLock
from tests.config.processes import short_folder
from tests.contracts.rigs import CHAT, Rig, turn
from tests.workers.clusters import Cluster
from tests.workers.documented_keys import documented_keys
from tests.workers.fakes import Bot as TalkingBot
from tests.workers.killed_client import Fate, FatedRedis, Killed, killed

PREFIX = "sayso:bot:"
KEYS = ["key"]


@pytest.fixture(scope="module")
def other_url() -> Iterator[str]:
    """Return the URL of a second server: the empty machine."""
    with short_folder() as folder:
        server = EmbeddedRedis(folder)
        server.start()
        yield server.url
        server.stop()


@pytest.fixture
def other(other_url: str) -> Iterator[Redis]:
    """Return a client of the empty machine's Redis."""
    with connect(other_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of a bot with the name `bot`."""
    file = tmp_path / "bot.yaml"
    file.write_text("agent: {model: offline}\nchannels: {web: {platform: console}}\n")
    return load_settings(file)


class Machine:
    """One bot on one machine: its Redis, its data folder, and a user who talks to it."""

    def __init__(self, client: Redis, settings: Settings, data: Path) -> None:
        self.client, self.data = client, data
        self.rig = Rig(client, prefix=PREFIX)
        self.bot = Bot(settings, data, client)
        self.collector = AuditCollector(
            client, AuditLedger(self.bot.ledger, EntrySigner(KEYS)), prefix=PREFIX
        )

    def backup(self, *, with_keys: bool = False) -> bytes:
        """Return a backup."""
        file = io.BytesIO()
        write_backup(file, self.bot, KEYS, with_keys=with_keys)
        return file.getvalue()

    def restore(self, content: bytes, *, keys: list[str] = KEYS, replace: bool = False) -> Restored:
        """Restore a backup."""
        return restore_backup(io.BytesIO(content), self.bot, keys, replace=replace)

    def files(self) -> dict[str, bytes]:
        """Return the files of the data folder."""
        return {
            path.relative_to(self.data).as_posix(): path.read_bytes()
            for path in self.data.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def source(redis_client: Redis, settings: Settings, tmp_path: Path) -> Machine:
    """Return the machine that is backed up."""
    return Machine(redis_client, settings, tmp_path / "source")


@pytest.fixture
def target(other: Redis, settings: Settings, tmp_path: Path) -> Machine:
    """Return the empty machine."""
    return Machine(other, settings, tmp_path / "target")


def used(source: Machine) -> TalkingBot:
    """Use the machine: one action is done, one waits for a yes, one is collected, a person is approved."""
    talking = TalkingBot(source.rig, "A", "B", "C", lines=["So it is."])
    talking.say("delete A")
    assert talking.say("yes") == "deleted A"
    source.collector.collect()
    talking.say("delete B")
    RedisPeople(source.client, prefix=PREFIX).save("web", ListedPerson(("ana",), "approved"))
    (source.data / "texts" / "ab").mkdir(parents=True)
    (source.data / "texts" / "ab" / "long").write_text("a long text")
    return talking


def test_restored_bot_runs_nothing_twice(source: Machine, target: Machine):
    """The open question was answered after the backup. Its yes in the restored bot runs nothing, and says so."""
    talking = used(source)
    content = source.backup()
    assert talking.say("yes") == "deleted B"
    restored = target.restore(content)
    assert (restored.resumed.actions, restored.manifest.counts["people"]) == (1, 1)
    again = TalkingBot(target.rig, lines=["So it is."])
    assert "cannot tell" in again.say("yes").lower()
    assert again.deleted == []


def test_turn_that_waited_in_the_backup_is_not_answered_again(source: Machine, target: Machine):
    """It may have been answered since. Its user is asked to check; the next message is answered as usual."""
    talking = used(source)
    talking.hear("delete C")
    content = source.backup()
    target.restore(content)
    again = TalkingBot(target.rig, "D", lines=["Hello."])
    assert "please check" in again.work()
    assert "Delete D" in again.say("delete D")
    assert all(int(delivery.id.rpartition("#")[2]) > RESUME_STEP for delivery in again.channel.sent)


def test_audit_chain_verifies_and_goes_on(source: Machine, target: Machine):
    """The chain has no gap, although the ledger was copied after Redis; new entries continue it."""
    used(source)
    content = source.backup()
    restored = target.restore(content)
    assert (restored.chain.faults, restored.chain.entries > 5) == ((), True)
    again = TalkingBot(target.rig, "D")
    again.say("delete D")
    again.say("yes")
    target.collector.collect()
    assert verify([target.bot.ledger], KEYS, uncollected=None, whole=True).faults == ()


def test_newer_entries_of_the_ledger_are_cut_off(source: Machine, target: Machine):
    """Entries that were collected while the backup ran are newer than its copy of Redis."""
    talking = used(source)
    before = unpacked(source.backup())
    talking.say("yes")
    source.collector.collect()
    after = unpacked(source.backup())
    mixed = packed(before, {"ledger.sqlite3": after["ledger.sqlite3"]})
    assert target.restore(mixed).chain.faults == ()


def test_people_files_and_history_are_restored(source: Machine, target: Machine):
    """An approved person is approved, the data folder has its files, and the history its messages."""
    used(source)
    DataLossGuard(
        target.client, prefix=PREFIX
    ).check_server()  # as `sayso redis status` does on the empty server
    target.restore(source.backup())
    assert RedisPeople(target.client, prefix=PREFIX).decision("web", ["ana"]) == "approved"
    assert target.files()["texts/ab/long"] == b"a long text"
    assert next(target.client.scan_iter(f"{PREFIX}*:history:{CHAT.id}:*"))
    assert (target.bot.ledger.stat().st_mode & 0o777) == 0o600


def test_tokens_of_workspaces_are_restored_encrypted(source: Machine, target: Machine):
    """The bot's own keys read them.

    The backup is counted with them, and an invitation ends when it would have.
    """
    stored = SlackInstallations("desk", source.client, KEYS, PREFIX)
    stored.save(Installation("T01", "xoxb-secret", name="Acme"))
    invitation = hash_of(stored.issue(INVITATION, "1", 600))
    content = source.backup()
    assert b"xoxb-secret" not in unpacked(content)["redis.jsonl"]
    assert target.restore(content).manifest.counts["installations"] == 1
    restored = SlackInstallations("desk", target.client, KEYS, PREFIX)
    assert restored.get("T01").token == "xoxb-secret"
    assert 0 < target.client.ttl(f"{PREFIX}{{slack:desk}}:invitation:{invitation}") <= 600
    with pytest.raises(TokenUnreadable):
        SlackInstallations("desk", target.client, ["another key"], PREFIX).get("T01")


@pytest.mark.parametrize("at", [4, 5, 7, 9, 11, 40, 77])
def test_restore_that_is_killed_can_be_repeated(
    source: Machine, target: Machine, settings: Settings, at: int
):
    """Wherever it is killed, Redis is empty, halted until the restore has run again, or complete."""
    used(source)
    content = source.backup()
    dying = FatedRedis(connection_pool=target.client.connection_pool)
    dying.fate = Fate(at, killed)
    with contextlib.suppress(Killed):
        restore_backup(io.BytesIO(content), Bot(settings, target.data, dying), KEYS)
    is_halted = bool(halts_of(target.client, prefix=PREFIX))
    assert is_restoring(target.client, prefix=PREFIX) == is_halted
    if is_halted or target.client.dbsize() == 0:
        restored = target.restore(content)
        assert (restored.chain.faults, restored.resumed.actions) == ((), 1)
    assert not halts_of(target.client, prefix=PREFIX)
    assert (
        verify(
            [target.bot.ledger], KEYS, uncollected=UncollectedEntries(target.client, prefix=PREFIX)
        ).faults
        == ()
    )
    again = TalkingBot(target.rig, lines=["So it is."])
    assert "cannot tell" in again.say("yes").lower()


def test_restore_that_is_killed_and_run_again_deletes_no_ledger(source: Machine, target: Machine):
    """Either run may be the one that renames the ledger of the machine."""
    used(source)
    content = source.backup()
    TalkingBot(target.rig, "Z").say("delete Z")
    target.collector.collect()
    before = AuditLedger(target.bot.ledger, EntrySigner(KEYS)).entries()
    dying = FatedRedis(connection_pool=target.client.connection_pool)
    dying.fate = Fate(70, killed)
    with pytest.raises(Killed):
        restore_backup(
            io.BytesIO(content), Bot(target.bot.settings, target.data, dying), KEYS, replace=True
        )
    assert target.restore(content).chain.faults == ()
    (aside,) = target.bot.ledger.parent.glob("audit.sqlite3.until-*")
    assert AuditLedger(aside, EntrySigner(KEYS)).entries() == before


def test_later_loss_is_not_taken_for_an_unfinished_restore(
    source: Machine, target: Machine, monkeypatch: pytest.MonkeyPatch
):
    """The restore was killed when all shards went on. A loss months later is resumed, not overwritten unasked."""
    used(source)
    content = source.backup()
    monkeypatch.setattr("sayso.ops.server.restore.resume", _resume_and_die)
    with pytest.raises(Killed):
        target.restore(content)
    halt(target.client, {3: HaltReason("a", 2, 1)}, prefix=PREFIX)
    assert not is_restoring(target.client, prefix=PREFIX)
    with pytest.raises(BackupError, match="already has keys of 'bot': add --replace"):
        target.restore(content)


def _resume_and_die(*args: Any, **options: Any) -> None:
    resume(*args, **options)
    raise Killed


def test_newer_entries_in_the_write_ahead_log_are_set_aside(source: Machine, target: Machine):
    """After a kill the file of a ledger may equal that of the backup, and have all newer entries beside it."""
    used(source)
    content = source.backup()
    target.restore(content)
    TalkingBot(target.rig, "Z").say("delete Z")
    with sqlite3.connect(target.bot.ledger) as living:  # keeps SQLite from merging the log
        living.execute("SELECT * FROM entries").fetchone()
        target.collector.collect()
        newer = AuditLedger(target.bot.ledger, EntrySigner(KEYS)).entries()
        killed_files = {
            path: path.read_bytes() for path in target.bot.ledger.parent.glob("audit.sqlite3*")
        }
    living.close()
    for path, data in killed_files.items():
        path.write_bytes(data)
    target.restore(content, replace=True)
    (aside,) = target.bot.ledger.parent.glob("audit.sqlite3.until-*")
    assert AuditLedger(aside, EntrySigner(KEYS)).entries() == newer


def test_ledger_is_set_aside_for_a_backup_without_one(source: Machine, target: Machine):
    """The restored Redis would number its entries again, which would look like a forged log."""
    content = source.backup()
    TalkingBot(target.rig, "Z").say("delete Z")
    target.collector.collect()
    assert target.restore(content, replace=True).chain.faults == ()
    assert not target.bot.ledger.exists()
    assert len(list(target.bot.ledger.parent.glob("audit.sqlite3.until-*"))) == 1


def test_killed_restore_of_files_alone_can_be_repeated(
    source: Machine, target: Machine, settings: Settings
):
    """The ledger that the first run has placed is no reason to refuse the second one."""
    used(source)
    file = io.BytesIO()
    write_backup(file, Bot(settings, source.data), KEYS)
    for _ in range(2):
        restore_backup(io.BytesIO(file.getvalue()), Bot(settings, target.data), KEYS)
    assert not list(target.bot.ledger.parent.glob("audit.sqlite3.until-*"))


def test_restore_of_files_alone_is_refused_while_a_worker_of_this_machine_runs(
    source: Machine, target: Machine, settings: Settings
):
    """No Redis is asked. The worker would write to files that are replaced."""
    used(source)
    file = io.BytesIO()
    write_backup(file, Bot(settings, source.data), KEYS)
    WorkerLock(settings.state_folder(target.data) / ALIVE).hold()
    with pytest.raises(BackupError, match=r"workers of this bot run on this machine \(1\)"):
        restore_backup(io.BytesIO(file.getvalue()), Bot(settings, target.data), KEYS)
    assert not target.bot.ledger.exists()


def test_repeated_restore_is_refused_while_workers_run(source: Machine, target: Machine):
    """A process manager may have started them after the first run was killed."""
    halt(target.client, {3: HaltReason("", 2, 1, backup_taken_at=1.0)}, prefix=PREFIX)
    Heartbeat(target.client, "ab12", prefix=PREFIX).beat()
    with pytest.raises(BackupError, match="stop all its processes"):
        target.restore(source.backup())


def unpacked(content: bytes) -> dict[str, bytes]:
    """Return the members of a backup."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def packed(
    members: dict[str, bytes], changed: dict[str, bytes], keys: Sequence[str] = KEYS
) -> bytes:
    """Return a backup of these members. Members that are given are replaced; checksums and MACs are made again."""
    manifest = json.loads(members["manifest.json"])
    for name, data in changed.items():
        manifest["sums"][name] = hashlib.sha256(data).hexdigest()
    text = json.dumps(manifest).encode()
    macs = "\n".join(macs_of(text, keys)).encode()
    return tarred({**members, **changed, "manifest.json": text, "manifest.macs": macs})


def tarred(members: dict[str, bytes]) -> bytes:
    """Return an archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def cut(content: bytes) -> bytes:
    """Return the first half."""
    return content[: len(content) // 2]


def without_manifest(content: bytes) -> bytes:
    """Return a whole archive that lacks its last members."""
    members = unpacked(content)
    return tarred({name: data for name, data in members.items() if not name.startswith("manifest")})


def without_macs(content: bytes) -> bytes:
    """Return a whole archive that lacks its last member."""
    members = unpacked(content)
    del members["manifest.macs"]
    return tarred(members)


def edited(content: bytes) -> bytes:
    """Return an archive with one digit of Redis changed."""
    members = unpacked(content)
    return tarred({**members, "redis.jsonl": members["redis.jsonl"].replace(b"1", b"2", 1)})


def climbing(content: bytes) -> bytes:
    """Return an archive with a member whose path leads out of the folder."""
    return tarred({"data/../../evil": b"!", **unpacked(content)})


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        without_manifest,
        without_macs,
        edited,
        climbing,
        lambda _: b"",
        lambda _: b"hello",
        gzip.compress,
    ],
)
def test_damaged_or_foreign_file_changes_nothing(source: Machine, target: Machine, damage):
    """One clear error, an untouched Redis and an untouched data folder."""
    used(source)
    with pytest.raises(
        BackupError, match=r"no backup of Sayso, or it is damaged .*: nothing was changed"
    ):
        target.restore(damage(source.backup()))
    assert target.client.dbsize() == 0
    assert [name for name in target.files() if not name.startswith(".restore")] == []


def test_backup_that_was_changed_without_the_secret_keys_is_refused(
    source: Machine, target: Machine
):
    """A changed file could approve people. A backup that holds the keys proves nothing."""
    used(source)
    members = unpacked(source.backup())
    changed = {"redis.jsonl": members["redis.jsonl"].replace(b'"approved', b'"blocked')}
    with pytest.raises(BackupError, match="the signature of this backup does not fit it"):
        target.restore(packed(members, changed, keys=["another"]))
    assert target.client.dbsize() == 0


def test_backup_of_another_bot_is_refused(source: Machine, target: Machine, tmp_path: Path):
    """The error names both bots."""
    content = source.backup()
    file = tmp_path / "desk.yaml"
    file.write_text("agent: {model: offline}\nchannels: {web: {platform: console}}\n")
    with pytest.raises(
        BackupError, match="of the bot 'bot', and the configuration is that of 'desk'"
    ):
        restore_backup(
            io.BytesIO(content), Bot(load_settings(file), target.data, target.client), KEYS
        )


def test_target_in_use_is_refused_without_over(source: Machine, target: Machine):
    """With `over` the old keys are deleted. The old ledger is renamed: an audit log is never deleted."""
    used(source)
    content = source.backup()
    TalkingBot(target.rig, "Z").say("delete Z")
    target.collector.collect()
    old = target.client.dbsize()
    with pytest.raises(BackupError, match="already has keys of 'bot': add --replace"):
        target.restore(content)
    assert target.client.dbsize() == old
    restored = target.restore(content, replace=True)
    assert restored.chain.faults == ()
    assert len(list(target.bot.ledger.parent.glob("audit.sqlite3.until-*"))) == 1
    with pytest.raises(BackupError, match="already has keys"):
        target.restore(content)


def test_restore_is_refused_while_processes_run(source: Machine, target: Machine):
    """Even with `over`: they would work on half of the data."""
    content = source.backup()
    Heartbeat(target.client, "ab12", prefix=PREFIX).beat()
    with pytest.raises(
        BackupError, match=r"this bot runs \(workers: 1, web and poll processes: 0\): stop all"
    ):
        target.restore(content, replace=True)
    Heartbeat(target.client, "ab12", prefix=PREFIX).leave()
    Heartbeat(target.client, kind="ingress", prefix=PREFIX).beat()
    with pytest.raises(
        BackupError, match=r"this bot runs \(workers: 0, web and poll processes: 1\): stop all"
    ):
        target.restore(content, replace=True)


def test_backup_has_the_secret_keys_only_on_request(source: Machine, target: Machine):
    """Without them the restore needs the same keys on the new machine; with them it writes them there."""
    used(source)
    assert "secret_keys" not in unpacked(source.backup())
    for keys in (["another"], []):
        with pytest.raises(BackupError, match="the secret keys of this backup are not here"):
            target.restore(source.backup(), keys=keys)
    assert target.client.dbsize() == 0
    with pytest.raises(
        BackupError,
        match=r"other secret keys than the backup, which brings its own: remove .*secret_keys",
    ):
        target.restore(source.backup(with_keys=True), keys=["another"])
    assert target.restore(source.backup(with_keys=True), keys=[]).chain.faults == ()
    assert (target.data / "secret_keys").read_text() == "key"


def test_files_of_sqlite_are_copied_whole(source: Machine, target: Machine):
    """This includes what is still in the write-ahead log. A restore removes the log of the file that it replaces."""
    used(source)
    with sqlite3.connect(source.data / "own.sqlite3") as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE things (name TEXT)")
        database.execute("INSERT INTO things VALUES ('kept')")
        database.commit()
        content = source.backup()
    target.data.mkdir()
    (target.data / "own.sqlite3-wal").write_bytes(b"of another file")
    target.restore(content)
    with sqlite3.connect(target.data / "own.sqlite3") as database:
        assert database.execute("SELECT name FROM things").fetchall() == [("kept",)]


def test_server_that_saves_for_seconds_is_backed_up(source: Machine, target: Machine):
    """While it saves its snapshot, it sends an empty line each second."""
    used(source)
    source.client.config_set(
        "rdb-key-save-delay", 1_500_000 // source.client.dbsize()
    )  # microseconds for each key
    try:
        content = source.backup()
    finally:
        source.client.config_set("rdb-key-save-delay", 0)
    assert target.restore(content).chain.faults == ()


def test_key_of_each_documented_type_is_restored(source: Machine, target: Machine):
    """docs/reference/redis.md has the types. A channel stores nothing."""
    write = {
        "string": lambda key: source.client.set(key, "x"),
        "hash": lambda key: source.client.hset(key, "x", "y"),
        "list": lambda key: source.client.rpush(key, "x", "y"),
        "sorted set": lambda key: source.client.zadd(key, {"x": 1, "y": 2}),
        "stream": lambda key: source.client.xadd(key, {"x": "y"}),
    }
    kinds = {kind for _, kind in documented_keys()} - {"channel"}
    keys = {kind: f"{PREFIX}one {kind}" for kind in sorted(kinds)}
    for kind, key in keys.items():
        write[kind](key)
    target.restore(source.backup())
    for key in keys.values():
        assert target.client.dump(key) == source.client.dump(key), key


def test_bytes_that_are_no_text_are_restored(source: Machine, target: Machine):
    """Values that are not UTF-8 do not stop a restore midway."""
    odd = b"\xff\xfe"
    source.client.set(PREFIX.encode() + odd, odd)
    source.client.hset(f"{PREFIX}hash", mapping={odd: odd})
    source.client.zadd(f"{PREFIX}zset", {odd: 1})
    source.data.mkdir()
    (source.data / os.fsdecode(odd)).write_bytes(odd)
    target.restore(source.backup())
    read = partial(target.client.execute_command, NEVER_DECODE=True)
    assert (read("GET", PREFIX.encode() + odd), read("HGETALL", f"{PREFIX}hash")) == (
        odd,
        {odd: odd},
    )
    assert read("ZRANGE", f"{PREFIX}zset", 0, -1) == [odd]
    assert (target.data / os.fsdecode(odd)).read_bytes() == odd


def test_folders_behind_links_are_in_the_backup(source: Machine, target: Machine, tmp_path: Path):
    """Files are often on another disk. A link back to the data folder is left out."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "photo").write_bytes(b"!")
    source.data.mkdir()
    (source.data / "media").symlink_to(disk)
    (disk / "again").symlink_to(source.data)
    target.restore(source.backup())
    assert target.files()["media/photo"] == b"!"
    assert "media/again" not in {name.rpartition("/")[0] for name in target.files()}


def test_other_files_of_the_data_folder_are_overwritten_only_on_request(
    source: Machine, target: Machine
):
    """They may be newer. Equal files are accepted."""
    for machine, text in ((source, "old"), (target, "new")):
        machine.data.mkdir()
        (machine.data / "orders.csv").write_text(text)
        (machine.data / "same").write_text("same")
    with pytest.raises(BackupError, match=r"there is another .*orders.csv: add --replace"):
        target.restore(source.backup())
    assert (target.files()["orders.csv"], target.client.dbsize()) == (b"new", 0)
    target.restore(source.backup(), replace=True)
    assert target.files()["orders.csv"] == b"old"


def test_full_disk_is_reported_as_such(source: Machine):
    """An earlier version reported a file that had become shorter."""
    source.data.mkdir()
    (source.data / "large").write_bytes(os.urandom(300_000))
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(OSError, match="No space left"),
    ):
        write_backup(full, source.bot, KEYS)


def test_damaged_database_is_named(source: Machine):
    """The message has the cure."""
    source.data.mkdir()
    (source.data / "own.sqlite3").write_bytes(b"SQLite format 3\0" + b"x" * 100)
    with pytest.raises(
        BackupError, match=r"own.sqlite3 cannot be copied \(.*\): repair it, or move it out of"
    ):
        source.backup()


def test_backup_of_another_format_is_refused_and_names_its_release(
    source: Machine, target: Machine
):
    """Its manifest may have other fields."""
    members = unpacked(source.backup())
    newer = tarred({**members, "manifest.json": b'{"format": 3, "sayso": "9.1", "things": []}'})
    with pytest.raises(
        BackupError,
        match=r"a newer release of Sayso \(9.1\): .* format 3.*`pip install sayso==9.1`",
    ):
        target.restore(newer)
    older = tarred({**members, "manifest.json": b'{"format": 0, "sayso": "0.0.9"}'})
    with pytest.raises(
        BackupError,
        match=r"an older release of Sayso \(0.0.9\): .*`pip install sayso==0.0.9`.* new backup",
    ):
        target.restore(older)


def test_backup_from_before_signatures_is_called_old_and_not_damaged(
    source: Machine, target: Machine
):
    """The number of the release was the same: the message names the sources of that day, which read it."""
    members = unpacked(source.backup())
    del members["manifest.macs"]
    manifest = {**json.loads(members["manifest.json"]), "format": 1, "taken_at": 1_795_000_000.0}
    content = tarred({**members, "manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(
        BackupError,
        match=r"an older release .*Nothing was changed.*--before=2026-11-18T11:06:40Z HEAD",
    ):
        target.restore(content)
    assert not target.client.keys()


@pytest.fixture
def on_cluster(cluster_client: Redis, settings: Settings, tmp_path: Path) -> Machine:
    """Return a machine with a Redis Cluster of three masters."""
    return Machine(cluster_client, settings, tmp_path / "cluster")


def many_conversations(client: Redis) -> set[str]:
    """Say hello in conversations of all masters. Return the keys of all conversations."""
    for number in range(30):
        Rig(client, prefix=PREFIX).accept(
            replace(turn(), conversation=Conversation("chat", str(number)))
        )
    return set(client.scan_iter(f"{PREFIX}*:conversation:*"))


def test_cluster_is_restored_on_one_server_and_back(
    source: Machine, on_cluster: Machine, target: Machine
):
    """One backup has the keys of all masters. No action runs twice after either restore."""
    talking = used(on_cluster)
    conversations = many_conversations(on_cluster.client)
    content = on_cluster.backup()
    assert talking.say("yes") == "deleted B"
    restored = target.restore(content)
    assert (restored.chain.faults, restored.resumed.actions) == ((), 1)
    assert set(target.client.scan_iter(f"{PREFIX}*:conversation:*")) == conversations
    again = TalkingBot(target.rig, lines=["So it is."])
    assert "cannot tell" in again.say("yes").lower()
    on_cluster.client.flushall()
    shutil.rmtree(on_cluster.data)
    restored = on_cluster.restore(target.backup())
    assert restored.chain.faults == ()
    assert set(on_cluster.client.scan_iter(f"{PREFIX}*:conversation:*")) == conversations
    again = TalkingBot(on_cluster.rig, "D", lines=["So it is."])
    again.say("delete D")
    assert again.say("yes") == "deleted D"


def test_cluster_whose_slots_move_is_not_backed_up(on_cluster: Machine, cluster: Cluster):
    """A key could be missed at both masters. The error says what to wait for, or what to repair."""
    used(on_cluster)
    slot = key_slot(on_cluster.rig.shard.encode())
    owner = next(node for node in cluster.masters if node.owns(slot))
    other = next(node for node in cluster.masters if node is not owner)
    other.cluster("SETSLOT", slot, "IMPORTING", owner.id)
    owner.cluster("SETSLOT", slot, "MIGRATING", other.id)
    try:
        with pytest.raises(SnapshotError, match="moving to other masters: wait until that is done"):
            on_cluster.backup()
    finally:
        for node in (owner, other):
            node.cluster("SETSLOT", slot, "STABLE")


@pytest.fixture
def without_sync(redis_client: Redis, redis_url: str) -> Iterator[Redis]:
    """Return a client whose login may not SYNC, as with most managed servers."""
    redis_client.acl_setuser(
        "plain", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-sync", "-psync"]
    )
    with Redis.from_url(redis_url, username="plain", password="x", decode_responses=True) as client:
        yield client
    redis_client.acl_deluser("plain")


def test_server_without_sync_is_read_key_by_key(
    source: Machine, target: Machine, without_sync: Redis
):
    """If no process writes meanwhile, the result is the same."""
    used(source)
    file = io.BytesIO()
    write_backup(file, Bot(source.bot.settings, source.data, without_sync), KEYS)
    assert target.restore(file.getvalue()).chain.faults == ()


def test_server_without_sync_that_is_written_to_is_refused(source: Machine, without_sync: Redis):
    """The keys would belong to two moments. The error says to stop web and workers."""
    talking = used(source)
    busy = FatedRedis(connection_pool=without_sync.connection_pool)

    def write() -> None:
        talking.hear("hello")
        busy.fate = Fate(3, write)

    busy.fate = Fate(3, write)
    with pytest.raises(
        SnapshotError, match=r"refuses SYNC .NOPERM.*stop web and workers during the backup"
    ):
        write_backup(io.BytesIO(), Bot(source.bot.settings, source.data, busy), KEYS)


def test_halted_redis_is_not_backed_up(source: Machine):
    """It has lost acknowledged writes."""
    used(source)
    halt(source.client, {3: HaltReason("", 2, 1)}, prefix=PREFIX)
    with pytest.raises(BackupError, match="not restored whole"):
        source.backup()


def test_backup_leaves_nothing_beside_its_file(source: Machine):
    """The temporary copy of Redis is gone, also after an error, and what a killed run left goes with the next one."""
    used(source)
    (source.data / ".backup" / "files" / "keys-1").mkdir(parents=True)
    source.backup()
    with pytest.raises(RedisError):
        write_backup(
            io.BytesIO(),
            Bot(source.bot.settings, source.data, connect("redis://127.0.0.1:1/0")),
            KEYS,
        )
    assert [
        path.name
        for path in source.data.rglob("*")
        if path.name.startswith(("keys-", ".backup-", "dump"))
    ] == []
