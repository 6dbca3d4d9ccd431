"""`redis_wait_replicas` while replicas are cut off: no action starts, no answer is sent, and nothing runs twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from sayso.infra.redis import connections as module
from sayso.infra.redis.client import PREFIX, connect, open_loop_client
from sayso.infra.redis.connections import AutoPipeline, Connections, NotReplicated
from sayso.infra.redis.retries import MAX_LOSSES
from sayso.pending import RedisPendingStore
from sayso.pending.repository import ActionDecision, Claim
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.pending.store import scope_of
from sayso.workers.erasure import Erasure
from sayso.workers.mailbox import RedisMailbox
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from tests.config.processes import until
from tests.contracts.rigs import CHAT, turn, voice
from tests.workers.sentinels import Node, SentinelNode


class Pair:
    """A primary, and a replica that can be cut off from it."""

    def __init__(self, primary: Node, replica: Node) -> None:
        self.folders = [primary.folder, replica.folder]
        self.ports = primary.port, replica.port
        self.url = f"redis://127.0.0.1:{primary.port}/0"
        self._primary, self._replica = primary.client(), replica.client()

    def cut(self) -> None:
        """Have the replica lose its primary, which goes on alone."""
        self._replica.config_set("masterauth", "wrong")
        self._replica.config_set("masteruser", "nobody")
        self._primary.execute_command("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: self._primary.info("replication")["connected_slaves"] == 0)

    def mend(self) -> None:
        """Let the replica follow again, and wait until it does."""
        self._replica.config_set("masteruser", "")
        self._replica.config_set("masterauth", "")
        until(lambda: self._primary.set("mended", "1") and self._primary.wait(1, 1000) == 1)

    def client(self) -> Redis:
        """Return a client whose writes wait for the replica."""
        client = connect(self.url)
        client.flushall()
        Connections.of(client).replicas = 1
        return client


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Return two servers for all tests."""
    folder = tmp_path_factory.mktemp("pair")
    primary, replica = Node(folder, "primary"), Node(folder, "replica")
    primary.start()
    replica.start("--replicaof", f"127.0.0.1 {primary.port}")
    yield Pair(primary, replica)
    replica.stop()
    primary.stop()


@pytest.fixture
def pair(nodes: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Return the servers with a replica that follows. WAIT gives up soon."""
    nodes.mend()
    monkeypatch.setattr(module, "REPLICA_MS", 100)
    module._wait_command.cache_clear()
    yield nodes
    module._wait_command.cache_clear()


def asked(client: Redis, ran: list[str]) -> RedisPendingStore:
    """Return a store with an open action of ana."""
    store = RedisPendingStore(client=client, secret_keys=["key"])
    store.register_executor_factory("pay", lambda action: lambda: ran.append("paid"))
    store.stash("ana", kind="pay", preview="Pay 10")
    return store


def test_action_waits_for_a_replica_before_its_effect_and_then_runs_once(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits without a limit: a worker that gave up could not know whether the start survives a failover."""
    caplog.set_level(logging.WARNING)
    ran: list[str] = []
    client = pair.client()
    store = asked(client, ran)
    Connections.of(client).pipeline = pipeline = open_loop_client(pair.url)
    decision = ActionDecision(scope_of("ana", None, None), "confirm", "a yes")

    async def confirm() -> str:
        deciding = asyncio.create_task(store.settlement.decide(decision))

        def waits() -> bool:
            losses = sum("not_replicated" in each.message for each in caplog.records)
            return losses > MAX_LOSSES

        await asyncio.to_thread(until, waits)
        assert not ran
        await asyncio.to_thread(pair.mend)
        outcome = await deciding
        await pipeline.close()
        return outcome.status if outcome else ""

    pair.cut()
    assert asyncio.run(confirm()) == "executed"
    assert ran == ["paid"]


def test_action_whose_start_no_replica_confirmed_never_runs_and_ends_as_unknown(pair: Pair) -> None:
    """A thread gets an error. The start is stored, so the next process must assume that the action may have run."""
    ran: list[str] = []
    store = asked(pair.client(), ran)
    scope = scope_of("ana", None, None)
    pair.cut()
    with pytest.raises(NotReplicated):
        store.pop_if_confirmed("ana", "yes")
    pair.mend()
    (open_action,) = [asyncio.run(store.repository.load_open(scope.conversation.id, scope.id))]
    assert open_action
    assert open_action.state == "started"
    claim = Claim(scope, open_action.action_id, "a yes")
    assert asyncio.run(store.settlement.recover(claim, open_action)).status == "unknown"
    assert store.pop_if_confirmed("ana", "yes") is None
    assert not ran


def test_lease_is_given_when_a_replica_has_all_that_was_written_before(pair: Pair) -> None:
    """The worker with the lease sends the waiting replies, and only those that a replica has."""
    mailbox = RedisMailbox(ShardedScripts(pair.client(), CONVERSATION_SCRIPTS), voice)
    mailbox.accept(turn())
    pair.cut()
    with pytest.raises(NotReplicated):
        asyncio.run(mailbox.lease(CHAT.id, "worker:1"))
    pair.mend()
    assert asyncio.run(mailbox.lease(CHAT.id, "worker:1"))


def test_erasure_leaves_nothing_in_the_files_of_replicas(pair: Pair) -> None:
    """Each server has an append-only file of its own."""
    client = pair.client()
    client.set("word", "erased-value")
    assert client.wait(1, 2000) == 1
    client.delete("word")
    assert Erasure(client, PREFIX).rewrite_file()
    files = [path for folder in pair.folders for path in folder.rglob("*.aof")]
    assert len({path.parents[1] for path in files}) == 2
    assert not [path for path in files if b"erased-value" in path.read_bytes()]


@pytest.mark.parametrize("in_loop", [False, True])
def test_sentinel_that_names_a_replica_is_asked_last_from_then_on(
    pair: Pair, tmp_path: Path, in_loop: bool
) -> None:
    """It was cut off before a failover, so it still names the old primary, which is a replica by now."""
    honest, cut_off = SentinelNode(tmp_path, "honest"), SentinelNode(tmp_path, "cut-off")
    try:
        for sentinel, port in zip((honest, cut_off), pair.ports, strict=True):
            sentinel.watch(port, quorum=1)
            sentinel.start()
        url = f"redis+sentinel://127.0.0.1:{cut_off.port},127.0.0.1:{honest.port}/shop"
        if in_loop:
            asyncio.run(_write_in_a_loop(url))
        else:
            with connect(url) as client:
                assert client.set("word", "1")
    finally:
        cut_off.stop()
        honest.stop()


async def _write_in_a_loop(url: str) -> None:
    pipeline = AutoPipeline(url)
    assert await pipeline.execute(("SET", "word", "1")) == "OK"
    await pipeline.close()
