"""Audit collector: every entry reaches the ledger once, through kills, outages and two collectors at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError

from sayso.channels.types import Conversation
from sayso.infra.redis.client import connect
from sayso.pending import RedisPendingStore
from sayso.pending.audit.collector import (
    BATCH,
    AuditCollector,
    UncollectedEntries,
    parse_entries,
)
from sayso.pending.audit.entries import ChainHead
from sayso.pending.audit.ledger import FILE, AuditLedger, LedgerUnusable
from sayso.pending.audit.verify import verify
from sayso.pending.sharded_scripts import shard_of
from sayso.pending.stored_limits import NO_HEAD
from tests.config.processes import free_port
from tests.pending.state_log import KEY, SIGNER, StateLog


@pytest.fixture
def ledger(tmp_path):
    """Return a ledger that does not exist yet."""
    return AuditLedger(tmp_path / FILE, SIGNER)


@pytest.fixture
def auditor(redis_client, ledger):
    """Return a collector on the real Redis."""
    return AuditCollector(redis_client, ledger, clock=lambda: 1000.0)


@pytest.fixture
def log(redis_client):
    """Return a log in the real Redis."""
    return StateLog(17, redis_client)


def faults(redis_client, *ledgers: AuditLedger, **options) -> list[str]:
    """Return all faults of these ledgers, compared with Redis."""
    report = verify(
        [ledger.path for ledger in ledgers],
        [KEY],
        uncollected=UncollectedEntries(redis_client),
        **options,
    )
    return [str(fault) for fault in report.faults]


class Forgetful(AuditLedger):
    """A ledger whose process is killed right after a store."""

    def store(self, entries, bodies=()):
        """Store, and die."""
        super().store(entries, bodies)
        raise KeyboardInterrupt


def test_kill_between_ledger_and_redis_doubles_and_loses_nothing(
    redis_client, ledger, auditor, log
):
    """The next round reads the entries again, stores none twice, and Redis drops them then."""
    log.live("a")
    with pytest.raises(KeyboardInterrupt):
        AuditCollector(redis_client, Forgetful(ledger.path, SIGNER)).collect()
    assert redis_client.llen("sayso:{17}:audit") == 5
    log.live("b")
    assert auditor.collect() == 10
    assert [kept.text for kept in ledger.entries()] == log.texts
    assert redis_client.exists("sayso:{17}:audit") == 0
    assert faults(redis_client, ledger, whole=True) == []


def test_failing_ledger_keeps_all_entries_in_redis(redis_client, tmp_path, log):
    """A full or broken disk loses no entry."""
    (tmp_path / FILE).mkdir()
    log.live("a")
    with pytest.raises(LedgerUnusable):
        AuditCollector(redis_client, AuditLedger(tmp_path / FILE, SIGNER)).round()
    assert redis_client.lrange("sayso:{17}:audit", 0, -1) == log.texts


def test_entry_behind_a_round_of_garbage_is_not_dropped_unread(redis_client, ledger, auditor, log):
    """A round that reads only garbage drops only that and moves no entry."""
    redis_client.rpush("sayso:{17}:audit", *["garbage"] * BATCH)
    log.live("a")
    assert [auditor.collect() for _ in range(3)] == [0, 5, 0]
    assert [kept.text for kept in ledger.entries()[:5]] == log.texts


def test_unreachable_redis_is_retried_and_the_worker_lives_on(ledger, caplog):
    """Each round logs one warning, and the task does not end."""
    with connect(f"redis://127.0.0.1:{free_port()}") as nobody, pytest.raises(RedisConnectionError):
        AuditCollector(nobody, ledger).round()
    with caplog.at_level(logging.WARNING), connect(f"redis://127.0.0.1:{free_port()}") as nobody:
        still_running(AuditCollector(nobody, ledger), lambda: "audit.redis_away" in caplog.text)
    assert not ledger.path.exists()


def test_broken_disk_is_logged_and_the_worker_lives_on(redis_client, tmp_path, log, caplog):
    """The operator gets an error with the file."""
    (tmp_path / FILE).mkdir()
    log.live("a")
    with caplog.at_level(logging.ERROR):
        still_running(
            AuditCollector(redis_client, AuditLedger(tmp_path / FILE, SIGNER)),
            lambda: "audit.ledger_unusable" in caplog.text,
        )


def still_running(auditor: AuditCollector, seen) -> None:
    """Run a collector until a condition holds; check that it has not ended by then."""

    async def watch() -> None:
        task = asyncio.create_task(auditor.forever())
        while not seen():  # noqa: ASYNC110  # what is waited for is a line of the log
            await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(watch(), 10))


@pytest.mark.slow
def test_two_at_once_store_everything_once(redis_url, redis_client, tmp_path, log):
    """They share a file, or have one each; together they have the whole log."""
    ledgers = [
        AuditLedger(tmp_path / name, SIGNER)
        for name in ("a.sqlite3", "a.sqlite3", "b.sqlite3", "b.sqlite3")
    ]
    done = threading.Event()

    def drain(ledger: AuditLedger) -> None:
        with connect(redis_url) as client:
            while not done.is_set():
                AuditCollector(client, ledger).collect()
            AuditCollector(client, ledger).collect()

    drains = [threading.Thread(target=drain, args=(ledger,)) for ledger in ledgers]
    for thread in drains:
        thread.start()
    for number in range(60):
        log.live(f"action-{number}")
    done.set()
    for thread in drains:
        thread.join()
    assert faults(redis_client, ledgers[0], ledgers[2], whole=True) == []
    assert {kept.text for ledger in ledgers[::2] for kept in ledger.entries()} == set(log.texts)


def test_one_round_at_a_time(redis_client, ledger, log):
    """One of many workers collects; the others return until the lock is free."""
    log.live("a")
    assert AuditCollector(redis_client, ledger).round() == 5
    log.live("b")
    assert AuditCollector(redis_client, ledger).round() == 0
    redis_client.delete("sayso:auditor")
    assert AuditCollector(redis_client, ledger).round() == 5


def test_dropping_again_drops_nothing_more(redis_client, auditor, log):
    """redis-py sends a script again when its answer was lost."""
    log.live("a")
    waiting = UncollectedEntries(redis_client).entries()[:3]
    texts = [kept.text.encode() for kept in waiting]
    for _ in range(2):
        auditor._delete(waiting, texts)
        assert redis_client.lrange("sayso:{17}:audit", 0, -1) == log.texts[3:]
    assert redis_client.get("sayso:{17}:audit:drained") == "3"


@pytest.mark.slow
def test_long_list_is_collected_in_several_rounds(redis_client, ledger, auditor, log):
    """Each round reads a bounded number."""
    for number in range(130):
        log.live(f"action-{number}")
    assert [auditor.collect() for _ in range(3)] == [500, 150, 0]
    assert faults(redis_client, ledger, whole=True) == []


def test_outcome_text_reaches_the_body(redis_client, ledger, auditor, log):
    """The body was stored with the proposal; the text for the user comes with the outcome."""
    log.live("a", "armed", "shown")
    auditor.collect()
    assert ledger.bodies()["a"].outcome_text == ""
    log.live("a", "claimed", "started", "unknown", told="I do not know.")
    auditor.collect()
    assert ledger.bodies()["a"].outcome_text == "I do not know."
    log.live("a", "done", told="It was done after all.")
    auditor.collect()
    body = ledger.bodies()["a"]
    assert (body.outcome_text, body.user, body.preview, body.at) == (
        "It was done after all.",
        "ana",
        "Delete a?",
        1_000_000,
    )
    assert faults(redis_client, ledger) == []


def test_dropped_entries_are_an_error_and_named(redis_client, ledger, auditor, log, caplog):
    """The list is bounded, so a log that was not collected for long has a gap."""
    log.live("a")
    auditor.collect()
    log.live("b")
    redis_client.lpop("sayso:{17}:audit", 2)
    with caplog.at_level(logging.ERROR):
        auditor.collect()
    assert [
        (record.msg, record.shard, record.after, record.entry) for record in caplog.records
    ] == [("audit.gap", 17, 5, 8)]
    assert faults(redis_client, ledger) == ["shard 17, entry 6: removed (up to 7)"]


class Raced(UncollectedEntries):
    """Entries that something else happens to, right before or after they are read."""

    def __init__(self, client: Redis, moment: str, happen: Callable[[], object]) -> None:
        super().__init__(client)
        self._moment, self._happen = moment, happen

    def read(self, limit: int = BATCH) -> list[list[bytes]]:
        if self._moment == "before":
            self._happen()
        found = super().read(limit)
        if self._moment == "after":
            self._happen()
        return found


@pytest.mark.parametrize("moment", ["before", "after"])
def test_entries_that_another_worker_collects_meanwhile_are_no_gap(
    redis_client, ledger, auditor, log, caplog, moment
):
    """Its ledger has them, and Redis dropped them between two reads of this one."""
    other = AuditCollector(redis_client, ledger)
    log.live("a")
    auditor._uncollected = Raced(redis_client, moment, lambda: (other.collect(), log.live("b")))
    auditor.collect()
    assert [record.msg for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert faults(redis_client, ledger, whole=True) == []


def test_redis_restored_from_an_old_file_is_an_error_and_both_histories_stay(
    redis_client, ledger, auditor, log, caplog
):
    """The numbers start again, and the ledger's entries are not overwritten."""
    log.live("a")
    auditor.collect()
    log.forget()
    assert faults(redis_client, ledger) == [
        "shard 17, entry 1: rolled back (Redis is at 0, the log at 5)"
    ]
    StateLog(17, redis_client).live("b", "armed", "shown", "expired")
    with caplog.at_level(logging.ERROR):
        auditor.collect()
    assert [record.msg for record in caplog.records] == ["audit.conflict"] * 3
    assert [kept.text for kept in ledger.entries()][:5] == log.texts
    assert len(ledger.entries()) == 8
    assert faults(redis_client, ledger)[0] == "shard 17, entry 1: forked (2 different entries)"
    assert redis_client.exists("sayso:{17}:audit") == 0


@pytest.mark.parametrize(
    "garbage", [b"garbage", b"\xff\xfe", b"", b'{"n":1}', b'{"n":999,"n":1}', "\u2028é".encode()]
)
def test_garbage_in_the_list_stops_no_entry(redis_client, ledger, auditor, log, garbage):
    """Garbage is stored as a fault, and the entries behind it are collected."""
    log.live("a", "armed", "shown")
    redis_client.rpush("sayso:{17}:audit", garbage)
    log.live("a", "claimed", "started", "done")
    auditor.collect()
    assert redis_client.exists("sayso:{17}:audit") == 0
    assert faults(redis_client, ledger) == ["shard 17, entry 3: edited"]
    assert log.texts[4] in [kept.text for kept in ledger.entries()]


def test_cut_off_tail_of_the_ledger_is_named(redis_client, ledger, auditor, log):
    """Redis remembers how far the log went."""
    log.live("a")
    auditor.collect()
    other = AuditLedger(ledger.path.with_name("cut.sqlite3"), SIGNER)
    other.store(ledger.entries()[:3], list(ledger.bodies().values()))
    assert faults(redis_client, other) == ["shard 17, entry 4: removed (Redis is at 5)"]


def test_uncollected_entries_are_part_of_the_log(redis_client, ledger, auditor, log):
    """An uncollected entry is not missing, but an edited one is a fault."""
    log.live("a")
    auditor.collect()
    log.live("b")
    assert faults(redis_client, ledger) == []
    redis_client.lset("sayso:{17}:audit", 2, log.texts[7].replace("claimed", "expired"))
    assert faults(redis_client, ledger) == ["shard 17, entry 8: edited"]
    auditor.collect()
    assert faults(redis_client, ledger) == ["shard 17, entry 8: edited"]


class BusyTail(UncollectedEntries):
    """A list that grows and is collected during a read."""

    def __init__(self, client, log, auditor) -> None:
        super().__init__(client)
        self._log, self._auditor = log, auditor

    def entries(self):
        """Return the entries; right afterwards they are collected, and new ones are written."""
        kept = super().entries()
        self._log.live("late")
        self._auditor.collect()
        return kept


def test_verify_of_a_running_system_raises_no_false_alarm(redis_client, ledger, auditor, log):
    """Entries move from Redis to the ledger and new ones come during the check."""
    log.live("a")
    auditor.collect()
    log.live("b")
    report = verify(
        [ledger.path], [KEY], uncollected=BusyTail(redis_client, log, auditor), whole=True
    )
    assert (report.entries, report.faults) == (15, ())


def test_real_store_writes_a_log_that_holds(redis_client, ledger, auditor):
    """A confirmed, an ignored and a cancelled action go from the scripts to the ledger."""
    store = RedisPendingStore(client=redis_client, secret_keys=[KEY])
    store.stash("ana", kind="delete", preview="Delete A?", executor=lambda: "gone", args={"id": 1})
    assert store.pop_if_confirmed("ana", "yes").status == "executed"
    store.stash("ana", kind="delete", preview="Delete B?", executor=lambda: "gone")
    store.pop_if_intent("ana", "ignore")
    store.pop_if_intent("ana", "cancel")
    auditor.collect()
    assert faults(redis_client, ledger, whole=True) == []
    assert [kept.shard for kept in ledger.entries()] == [
        shard_of(Conversation("direct", "ana").id)
    ] * 8
    assert {body.preview for body in ledger.bodies().values()} == {"Delete A?", "Delete B?"}
    assert [body.outcome_text for body in ledger.bodies().values() if "A" in body.preview] != [""]


def test_lock_of_a_killed_collector_expires_before_the_next_round(redis_client, ledger):
    """The lock has a TTL."""
    AuditCollector(redis_client, ledger).round()
    assert 0 < redis_client.pttl("sayso:auditor") <= 900


def test_redis_without_a_valid_head_counts_as_empty(redis_client):
    """Another client may have overwritten the head."""
    redis_client.set("sayso:{5}:audit:head", "7 garbage")
    redis_client.set("sayso:{5}:audit:drained", "garbage")
    uncollected = UncollectedEntries(redis_client)
    assert set(uncollected.heads().values()) == {ChainHead(0, NO_HEAD)}
    assert set(uncollected.last_collected()) == {0}


@pytest.mark.parametrize("garbage", ["²", "9" * 5000, b"\xff", ""])
def test_garbage_in_one_shard_stops_no_other(redis_client, ledger, auditor, log, garbage):
    """Another client overwrote the numbers of the scripts."""
    log.live("a")
    redis_client.set("sayso:{5}:audit:drained", garbage)
    redis_client.set("sayso:{5}:audit:head", garbage)
    assert auditor.collect() == 5
    assert faults(redis_client, ledger) == []


def test_key_of_another_type_stops_no_other(redis_client, ledger, auditor, log):
    """A list and a record have another type. The other shards are collected, and the missing entries are named."""
    log.live("a")
    other = StateLog(5, redis_client)
    other.live("b")
    for key in ("sayso:{5}:audit", "sayso:{17}:pending:a"):
        redis_client.delete(key)
        redis_client.set(key, "x")
    assert auditor.collect() == 5
    assert faults(redis_client, ledger) == ["shard 5, entry 1: removed (Redis is at 5)"]


def test_redis_that_refuses_access_is_no_empty_log(redis_url, redis_client):
    """Only a key of another type is skipped. A refused login does not mean that the log is empty."""
    redis_client.acl_setuser(
        "blind", enabled=True, nopass=True, categories=["+@connection"], keys=["*"]
    )
    try:
        with (
            Redis.from_url(redis_url, username="blind", password="any") as blind,
            pytest.raises(NoPermissionError),
        ):
            UncollectedEntries(blind).read()
    finally:
        redis_client.acl_deluser("blind")


def test_garbage_gets_the_number_of_the_next_entry():
    """This holds at the start of a list too."""
    log = StateLog(3)
    for pid in "ab":
        log.add(pid, "armed")
    raw = [b"x", b"y", log.texts[1].encode(), b"\xff"]
    found = [(kept.shard, kept.number, kept.text) for kept in parse_entries(3, raw)]
    assert found == [(3, 1, "x"), (3, 2, "y"), (3, 2, log.texts[1]), (3, 3, "\\xff")]


def test_collector_of_another_bot_collects_only_its_own_log(redis_client, ledger):
    """Two bots may share a Redis."""
    for prefix in ("sayso:", "bot:"):
        RedisPendingStore(prefix=prefix, client=redis_client, secret_keys=[KEY]).stash(
            "ana", kind="k", preview=prefix
        )
    assert AuditCollector(redis_client, ledger, prefix="bot:").round() == 2
    assert [body.preview for body in ledger.bodies().values()] == ["bot:"]
    shard = shard_of(Conversation("direct", "ana").id)
    assert redis_client.exists(f"sayso:{{{shard}}}:audit") == 1
    assert redis_client.exists(f"bot:{{{shard}}}:audit") == 0
