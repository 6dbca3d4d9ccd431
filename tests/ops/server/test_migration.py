"""Data of the version before: it is read, confirmed, sent and verified, and migrated when no older worker runs.

`layout_1/` holds what the version before layout 2 wrote: its keys, its ledger and its spool, as text.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from sayso.channels.types import Reply, SenderIds, Turn
from sayso.infra.records import VERSION, OtherVersion, check_version, version_of, versioned
from sayso.infra.redis.client import RedisUnfit
from sayso.ops.server.migration import OtherProcesses, describe, inspect, migrate
from sayso.ops.server.snapshot import StoredKey, write_keys
from sayso.pending.audit.collector import AuditCollector, UncollectedEntries
from sayso.pending.audit.entries import EntrySigner
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.pending.audit.ledger import AuditLedger, LedgerUnusable
from sayso.pending.audit.verify import verify
from sayso.pending.sharded_scripts import LAYOUT
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.watermarks import FILE as WATERMARKS
from sayso.workers.data_loss.watermarks import WatermarkFile
from sayso.workers.deployment_name import Deployment
from sayso.workers.identities import RedisIdentities
from sayso.workers.people import RedisPeople
from sayso.workers.recovery import Heartbeat
from sayso.workers.spool import SpoolFile
from tests.contracts.rigs import CHAT, Rig, turn
from tests.workers.fakes import Bot
from tests.workers.killed_client import Fate, FatedRedis, Killed, killed
from tests.workers.servers import saved

RECORDED = Path(__file__).parent / "layout_1"
PREFIX, KEYS = "sayso:bot:", ["key"]
BOT = Deployment("bot", KEYS, {"chat": "console"})


@pytest.fixture
def state(redis_client: Redis, tmp_path: Path) -> Path:
    """Return the state folder of the version before, and put its keys into Redis; its open question is still open."""
    keys = json.loads((RECORDED / "redis.json").read_text())
    write_keys(
        redis_client,
        (StoredKey(name, kind, value) for name, (kind, value) in keys.items()),
        prefix="",
    )
    for key in redis_client.scan_iter(f"{PREFIX}*:pending:*"):
        redis_client.hset(key, "expires_at", round(time.time() * 1000) + 60_000)
    for file, place in (("audit.sql", LEDGER), ("turns.sql", "spool/turns.sqlite3")):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        with closing(sqlite3.connect(tmp_path / place)) as database:
            database.executescript((RECORDED / file).read_text())
    (tmp_path / "spool" / "waiting").touch()
    return tmp_path


def test_action_of_the_version_before_is_confirmed(redis_client: Redis, state: Path):
    """Its waiting turn is answered, its reply and its reminder are sent, its action runs once, and its log verifies."""
    guard = DataLossGuard(redis_client, WatermarkFile(state / WATERMARKS), prefix=PREFIX)
    guard.check_server()
    rig = Rig(redis_client, prefix=PREFIX)
    bot = Bot(rig, lines=["Hello to you."])
    bot.work()
    assert "Do you mean this? Delete B" in bot.say(
        "yes"
    )  # the reminder was sent after the question
    assert bot.say("yes") == "deleted B"
    assert bot.deleted == ["B"]
    bot.work()
    for text in ("**old** answer", "Hello to you.", "tea is ready"):
        assert sum(sent.endswith(text) for sent in bot.channel.texts) == 1
    ledger = AuditLedger(state / LEDGER, EntrySigner(KEYS))
    AuditCollector(redis_client, ledger, prefix=PREFIX).collect()
    tail = UncollectedEntries(redis_client, prefix=PREFIX)
    assert verify([state / LEDGER], KEYS, uncollected=tail, whole=True).faults == ()
    decisions = [body.decision for body in ledger.bodies().values()]
    assert [bool(decision) for decision in decisions] == [False, True]
    assert guard.trouble == ""


def test_people_and_spool_of_the_version_before_are_read(redis_client: Redis, state: Path):
    """An approved person stays approved, and a turn in the spool reaches the mailbox."""
    assert RedisPeople(redis_client, prefix=PREFIX).decision("chat", ["ana"]) == "approved"
    assert [spooled.turn.text for spooled in SpoolFile(state / "spool").next(0, 10)] == ["spooled"]


def test_dry_run_changes_nothing(redis_client: Redis, state: Path):
    """It prints what a migration would do, and the number of records by version."""
    del state
    before = saved(redis_client)
    steps = inspect(redis_client, "bot", prefix=PREFIX).steps
    assert [step.split(",")[0] for step in steps[:2]] == [
        "delete the key 'tide'",
        "delete the key 'founded'",
    ]
    assert steps[2] == f"note layout {LAYOUT} in place of 1: older versions then refuse to start"
    lines = list(describe(inspect(redis_client, "bot", prefix=PREFIX)))
    assert saved(redis_client) == before
    assert {"records: waiting messages of version 1: 1", "records: actions of version 1: 2"} <= set(
        lines
    )


def test_migration_is_done_once(redis_client: Redis, state: Path):
    """The old keys are deleted and the layout is stored. A second run changes nothing, and the bot works on."""
    del state
    assert len(migrate(redis_client, "bot", prefix=PREFIX).steps) == 3
    assert not redis_client.exists(f"{PREFIX}tide", f"{PREFIX}founded")
    assert json.loads(redis_client.get(f"{PREFIX}deployment"))["v"] == LAYOUT
    assert migrate(redis_client, "bot", prefix=PREFIX).steps == []
    BOT.claim(redis_client, prefix=PREFIX)
    assert json.loads(redis_client.get(f"{PREFIX}deployment"))["v"] == LAYOUT


@pytest.mark.parametrize("at", [9, 10, 11, 12])
def test_migration_that_is_killed_can_be_repeated(redis_client: Redis, state: Path, at: int):
    """Wherever it is killed, the next run does the rest."""
    del state
    dying = FatedRedis(connection_pool=redis_client.connection_pool)
    dying.fate = Fate(at, killed)
    try:
        migrate(dying, "bot", prefix=PREFIX)
    except Killed:
        migrate(redis_client, "bot", prefix=PREFIX)
    assert inspect(redis_client, "bot", prefix=PREFIX).steps == []


def test_migration_is_refused_while_older_processes_run(redis_client: Redis, state: Path):
    """A worker without a version is old. Without the old keys it would conclude that the server lost data."""
    del state
    Heartbeat(redis_client, "new1", prefix=PREFIX).beat()
    seconds, _ = redis_client.time()
    redis_client.zadd(f"{PREFIX}workers", {"old1": seconds})
    web = Heartbeat(redis_client, kind="ingress", prefix=PREFIX, version="0.0.1")
    web.beat()
    with pytest.raises(
        OtherProcesses,
        match=r"of another version .*: 1 of 2 workers, 1 of 1 web and poll processes. They",
    ):
        migrate(redis_client, "bot", prefix=PREFIX)
    assert redis_client.exists(f"{PREFIX}tide")
    assert "web and poll processes: 1 of version 0.0.1" in describe(
        inspect(redis_client, "bot", prefix=PREFIX)
    )
    Heartbeat(redis_client, prefix=PREFIX).leave("old1")
    web.leave()
    assert migrate(redis_client, "bot", prefix=PREFIX).steps


def test_new_process_does_not_change_the_layout(redis_client: Redis, state: Path):
    """Processes of the version before can still start beside it."""
    del state
    BOT.claim(redis_client, prefix=PREFIX)
    assert json.loads(redis_client.get(f"{PREFIX}deployment"))["v"] == 1


def test_newer_layout_is_refused(redis_client: Redis):
    """The keys of this version are not there. The error names the version that is needed."""
    BOT.claim(redis_client, prefix=PREFIX)
    record = json.loads(redis_client.get(f"{PREFIX}deployment"))
    assert record["v"] == LAYOUT
    redis_client.set(f"{PREFIX}deployment", json.dumps({**record, "v": LAYOUT + 1}))
    for refused in (BOT.claim, lambda client, prefix: migrate(client, "bot", prefix=prefix)):
        with pytest.raises(
            RedisUnfit, match=f"have layout {LAYOUT + 1}, and this version knows up to {LAYOUT}"
        ):
            refused(redis_client, prefix=PREFIX)


def test_each_record_has_a_version():
    """It is the last field of each kind of JSON object. One without it has version 1."""
    written = turn("hello").to_json()
    assert written.endswith(f',"v":{VERSION}}}')
    assert (version_of(written), version_of('{"text": "\\"v\\":7}"}'), version_of("")) == (
        VERSION,
        1,
        1,
    )
    assert version_of('{"to": [], "v":3, "at": 1795204800000}') == 3
    assert (versioned("{}"), json.loads(versioned('{"a": 1}'))) == ('{"v":1}', {"a": 1, "v": 1})


@pytest.mark.parametrize("version", [VERSION + 1, VERSION - 1, 99])
def test_record_of_an_unknown_version_is_refused(version: int):
    """Newer and older ones are refused as a whole, with the cure."""
    text = turn("hello").to_json().replace(f'"v":{VERSION}}}', f'"v":{version}}}')
    cure = (
        "upgrade this process"
        if version > VERSION
        else "run `sayso migrate --apply` of the release before"
    )
    for read in (Turn.from_json, check_version):
        with pytest.raises(
            OtherVersion, match=f"has version {version}, and this process reads .*: {cure}"
        ):
            read(text)


def newer(rig: Rig, kind: str) -> None:
    """Change a stored record of the conversation as a newer release may have written it."""
    v, next_v = f'"v":{VERSION}', f'"v":{VERSION + 1}'
    if kind in ("inbox", "outbox"):
        key = f"{rig.shard}:{kind}:{CHAT.id}"
        rig.client.lset(key, 0, rig.client.lindex(key, 0).replace(v, next_v))
    elif kind == "history":
        (key,) = rig.client.scan_iter(f"{rig.shard}:history:*")
        rig.client.set(key, rig.client.get(key).replace(v, next_v))
    else:
        (key,) = rig.client.scan_iter(f"{rig.shard}:pending:*")
        record = json.loads(rig.client.hget(key, "record"))
        rig.client.hset(key, "record", json.dumps({**record, "v": VERSION + 1}))


def test_newer_records_of_each_kind_are_named(redis_client: Redis):
    """This tells an operator not to run older processes alone."""
    rig = Rig(redis_client)
    bot = Bot(rig, "A", lines=["Hello."])
    bot.say("delete A")
    bot.hear("hello")
    for kind in ("inbox", "history", "pending"):
        newer(rig, kind)
    RedisIdentities(rig.scripts).recognize("wa", SenderIds("whatsapp:DE.1", ""), store=True)
    (person,) = redis_client.scan_iter("*:person:*")
    redis_client.set(
        person, redis_client.get(person).replace(f'"v":{VERSION}', f'"v":{VERSION + 1}')
    )
    lines = list(describe(inspect(redis_client, "bot")))
    for words in ("waiting messages", "histories", "actions", "ids of people"):
        assert (
            f"records: {words} of version {VERSION + 1}: 1 (this version leaves them to others)"
            in lines
        )
    assert (
        lines[-1] == "records that this version cannot read: 4. Run workers of a version that can"
    )


@pytest.mark.parametrize("kind", ["inbox", "outbox", "history", "pending"])
def test_conversation_with_a_newer_record_is_left_to_a_newer_worker(redis_client: Redis, kind: str):
    """An older worker that takes it loses nothing, sends nothing, counts no attempt, and wakes it again."""
    rig = Rig(redis_client)
    bot = Bot(rig, "A", lines=["Hello."])
    bot.say("delete A")
    bot.hear("hello")
    if kind == "outbox":
        lease, work = rig.mailbox.lease(CHAT.id, "t")
        rig.mailbox.commit(lease, work, TurnChange(replies=(TurnReply(Reply("hello")),)))
        rig.end_lease()
    newer(rig, kind)
    sent = len(bot.channel.sent)
    waiting = [
        redis_client.lrange(f"{rig.shard}:{each}:{CHAT.id}", 0, -1) for each in ("inbox", "outbox")
    ]
    for _ in range(12):
        bot.work()
        rig.pass_time(2)
        assert redis_client.zscore(f"{rig.shard}:due", CHAT.id) < (rig.now + 1) * 1000
    assert len(bot.channel.sent) == sent
    assert [
        len(redis_client.lrange(f"{rig.shard}:{each}:{CHAT.id}", 0, -1))
        for each in ("inbox", "outbox")
    ] == [len(each) for each in waiting]
    assert redis_client.hget(f"{rig.shard}:conversation:{CHAT.id}", "turn_attempts") in ("", None)


def test_newer_files_are_refused_and_kept(tmp_path: Path):
    """A ledger of a newer schema is neither read nor written; entries for it wait in Redis."""
    path = tmp_path / LEDGER
    ledger = AuditLedger(path, EntrySigner(KEYS))
    ledger.store([])
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
        database.execute("PRAGMA user_version = 3")
    for use in (ledger.entries, lambda: ledger.store([])):
        with pytest.raises(
            LedgerUnusable,
            match="its schema has version 3, and this process knows up to 2: upgrade",
        ):
            use()
