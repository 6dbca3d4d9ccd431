"""Redis Cluster: mailbox, guard and all other stored parts work when each shard may be on another node."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
import uvloop
from redis import Redis
from redis.asyncio.cluster import PipelineCommand
from redis.crc import key_slot
from redis.exceptions import ClusterDownError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from sayso.agent.memory.session_backends import RedisSessionStore
from sayso.agent.memory.sessions import SessionKey
from sayso.channels.console.store import Feed
from sayso.channels.slack.installations import (
    INVITATION,
    Installation,
    SlackInstallations,
    hash_of,
)
from sayso.channels.types import Conversation
from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.wiring.bootstrap import bootstrap, check_redis
from sayso.config.wiring.redis_parts import risks_of
from sayso.infra.redis.client import (
    ACL_FILE,
    RedisUnfit,
    connect,
    connect_async,
    open_loop_client,
)
from sayso.infra.redis.cluster import AsyncCluster, ClusterConnections, ClusterUrl
from sayso.infra.redis.connections import CircuitOpen, Connections, Halted, NotReplicated
from sayso.infra.redis.leader_lock import LeaderLock
from sayso.infra.redis.retries import Retries
from sayso.pending.audit.collector import AuditCollector, UncollectedEntries
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.pending.audit.verify import verify
from sayso.pending.sharded_scripts import SHARDS, ShardedScripts, shard_of
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.resume import halts_of, resume
from sayso.workers.data_loss.watermarks import keys_of
from sayso.workers.deployment_name import Deployment
from sayso.workers.erasure import ErasedPerson, Erasure
from sayso.workers.mailbox import RedisMailbox
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from tests.contracts.rigs import CHAT, Rig, turn, voice
from tests.pending.state_log import KEY, SIGNER
from tests.workers.clusters import Cluster
from tests.workers.fakes import Bot
from tests.workers.sentinels import Node

SHARD = shard_of(CHAT.id)
WRITE_COUNTER, _, HALTED = keys_of(SHARD)


def test_confirmed_action_runs_once(cluster_client: Redis):
    """Each script touches the keys of one shard only."""
    bot = Bot(Rig(cluster_client), "A")
    bot.say("delete it")
    assert bot.say("yes") == "deleted A"
    assert bot.deleted == ["A"]


def test_commands_of_a_loop_go_to_the_node_of_their_shard(cluster: Cluster, cluster_client: Redis):
    """A worker waits for scripts of many conversations at the same time."""
    Connections.of(cluster_client).pipeline = open_loop_client(cluster.url)
    mailbox = RedisMailbox(ShardedScripts(cluster_client, CONVERSATION_SCRIPTS), voice)
    names = [Conversation("chat", str(number)).id for number in range(100)]

    async def work() -> list[float | None]:
        answers = await asyncio.gather(*(mailbox.leave_to_other_worker(name) for name in names))
        await Connections.of(cluster_client).pipeline.close()
        return answers

    assert asyncio.run(work()) == [None] * 100
    Connections.of(cluster_client).pipeline = None
    assert all(node.client().dbsize() for node in cluster.masters)


def test_connection_that_was_closed_under_a_command_is_replaced(
    cluster: Cluster, cluster_client: Redis
):
    """redis-py closes idle connections after an error, and another task may hold one. Workers run on uvloop."""

    async def work() -> str:
        client = AsyncCluster(ClusterUrl.parse(cluster.url))
        await client.execute(("SET", "sayso:word", "here"))
        for node in client._client.get_nodes():
            for connection in node._free:
                connection._writer.transport.abort()
        await asyncio.sleep(0.05)  # the transport closes in the next round of the loop
        answer = await client.execute(("GET", "sayso:word"))
        await client.close()
        return answer

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(work()) == "here"


@pytest.mark.parametrize("in_loop", [False, True])
def test_write_that_no_replica_has_is_not_acknowledged(cluster: Cluster, in_loop: bool):
    """These masters have no replicas. The guard learns no watermark that a failover could undo."""
    client = connect(cluster.url)
    loop_client = AsyncCluster(ClusterUrl.parse(cluster.url))
    guard = DataLossGuard(client, replicas=1)
    guard.check_server()
    Connections.of(client).pipeline = loop_client

    async def write() -> None:
        try:
            async with asyncio.timeout(1.5):  # it would wait until a replica has it
                await Connections.of(client).ask_async("SET", HALTED, "", "XX", durable=True)
        finally:
            await loop_client.close()

    with pytest.raises(TimeoutError if in_loop else NotReplicated):
        asyncio.run(write()) if in_loop else RedisMailbox(
            ShardedScripts(client, CONVERSATION_SCRIPTS), voice
        ).accept(turn())
    with pytest.raises(NotReplicated):
        guard.check_replicas()
    assert not guard.known
    client.close()


@pytest.fixture
def guard(cluster_client: Redis) -> DataLossGuard:
    """Return the guard of one process, after its first look."""
    guard = DataLossGuard(cluster_client)
    guard.check_server()
    return guard


def test_shards_of_a_server_that_lost_writes_are_halted_and_resumed(
    cluster_client: Redis, guard: DataLossGuard
):
    """Numbers of its other shards are raised, too: they may have lost writes as well."""
    rig = Rig(cluster_client)
    first = rig.accept(turn()).seq
    guard.check_server()
    cluster_client.set(WRITE_COUNTER, 0)
    guard.check_server()
    assert (len(halts_of(cluster_client)), bool(guard.trouble)) == (SHARDS, True)
    with pytest.raises(Halted):
        rig.accept(turn())
    assert resume(cluster_client)
    guard.check_server()
    assert (guard.trouble, rig.accept(turn()).seq > first + 1_000_000) == ("", True)


def test_script_on_a_master_that_lost_writes_changes_nothing(
    cluster: Cluster, guard: DataLossGuard
):
    """An outdated replica was promoted, and no process has checked yet."""
    client = connect(cluster.url)
    guard.protect(client)
    mailbox = RedisMailbox(ShardedScripts(client, CONVERSATION_SCRIPTS), voice)
    for _ in range(2):
        mailbox.accept(turn())
    guard.check_server()
    client.set(WRITE_COUNTER, 1)
    before = client.llen(f"sayso:{{{SHARD}}}:inbox:{CHAT.id}")
    with pytest.raises(Halted):
        mailbox.accept(turn())
    assert client.llen(f"sayso:{{{SHARD}}}:inbox:{CHAT.id}") == before
    client.close()


def test_script_does_not_run_while_its_slot_moves(cluster: Cluster, cluster_client: Redis):
    """Two nodes have some of its keys each. Afterwards the conversation goes on at the new node."""
    rig = Rig(cluster_client)
    rig.accept(turn("one", event="e1"))
    slot = key_slot(HALTED.encode())
    (source,) = [node for node in cluster.masters if node.owns(slot)]
    target = next(node for node in cluster.masters if node is not source)
    target.cluster("SETSLOT", slot, "IMPORTING", source.id)
    source.cluster("SETSLOT", slot, "MIGRATING", target.id)
    keys = source.cluster("GETKEYSINSLOT", slot, 1000)
    for moved in (keys[:2], keys[2:]):
        before = {node.port: node.client().dbsize() for node in cluster.masters}
        with pytest.raises(RedisConnectionError, match="cannot serve this key now"):
            rig.accept(turn("two"))
        assert {node.port: node.client().dbsize() for node in cluster.masters} == before
        for key in moved:
            source.client().execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 1000)
    for node in (target, source):
        node.cluster("SETSLOT", slot, "NODE", target.id)
    assert rig.accept(turn("one", event="e1")).outcome == "duplicate"
    assert rig.accept(turn("two")).seq == 2


def test_audit_log_of_all_shards_is_collected(cluster_client: Redis, tmp_path):
    """All shards are read at once, whichever node they are on."""
    for name in ("one", "two", "three", "four"):
        cluster_client.delete("sayso:auditor")
        Rig(cluster_client, prefix=f"sayso:{name}:")
    bot = Bot(Rig(cluster_client), "A")
    bot.say("delete it")
    bot.say("yes")
    ledger = AuditLedger(tmp_path / FILE, SIGNER)
    assert AuditCollector(cluster_client, ledger).round() > 3
    assert not verify(
        [tmp_path / FILE], [KEY], uncollected=UncollectedEntries(cluster_client)
    ).faults


def test_person_is_erased_from_all_nodes(cluster_client: Redis):
    """The keys are on several nodes, so they are deleted one by one."""
    rig = Rig(cluster_client)
    rig.accept(turn("my secret"))
    person = ErasedPerson("chat", frozenset({turn().scope.id}), frozenset({CHAT.id}))
    erasure = Erasure(cluster_client, "sayso:")
    assert erasure.erase(person) > 0
    assert erasure.rewrite_file()
    assert not list(cluster_client.scan_iter("sayso:*:inbox:*"))


def test_leader_deployment_feed_and_sessions_work(cluster: Cluster, cluster_client: Redis):
    """Each command or transaction uses one key only."""
    lock = LeaderLock(cluster_client, "poll:1")
    assert (lock.take(), lock.take(), lock.is_held(), LeaderLock(cluster_client, "poll:1").take()) == (
        True, True, True, False,
    )  # fmt: skip
    lock.leave()
    for _ in range(2):
        Deployment("shop", ["key"], {"web": "console"}).claim(cluster_client)
    feed = Feed(cluster_client)
    first = feed.append(CHAT.id, {"type": "text"})
    feed.append(CHAT.id, {"type": "text"}, replaces=first)
    assert len(feed.read(CHAT.id, "", 0)) == 1
    sessions = RedisSessionStore(cluster.url)
    for name in ("ana", "bob"):
        sessions._save_text(SessionKey(name, None), "{}", None)
    assert len(list(cluster_client.scan_iter("sayso:session:*"))) == 2


def test_installations_of_a_slack_app_change_in_one_step(cluster_client: Redis):
    """Record, invitation and removal are on one node: a script changes them together."""
    installations = SlackInstallations("desk", cluster_client, ["key"], "sayso:")
    invitation = hash_of(installations.issue(INVITATION, "1", 60))
    assert installations.save(Installation("T01", "token"), invitation=invitation) == "new"
    assert installations.save(Installation("T02", "token"), invitation=invitation) == "uninvited"
    assert installations.replace(installations.get("T01"), Installation("T01", "renewed"))
    assert installations.remove("T01", "app_uninstalled", 1.0)
    assert installations.ids() == []


def test_stop_signal_reaches_workers_from_every_node(cluster: Cluster, cluster_client: Redis):
    """A worker subscribes on one node; a script publishes on the node of its shard."""

    async def listen() -> list[str]:
        heard: list[str] = []
        async with connect_async(cluster.url) as client, client.pubsub() as pubsub:
            await pubsub.psubscribe("sayso:*:stop")
            for node in cluster.masters:
                await asyncio.to_thread(
                    node.client().publish, f"sayso:{{{node.port}}}:stop", str(node.port)
                )
            async with asyncio.timeout(10):
                async for message in pubsub.listen():
                    heard += [message["data"]] if message["type"] == "pmessage" else []
                    if len(heard) == 3:
                        return heard
        return heard

    assert sorted(asyncio.run(listen())) == sorted(str(node.port) for node in cluster.masters)


def test_users_of_the_acl_file_can_process_a_turn(cluster: Cluster, cluster_client: Redis):
    """The web stores it and a worker answers it. Each logs in to every node with its own user."""
    for line in ACL_FILE.read_text().replace("NAME", "shop").splitlines()[1:]:
        for node in cluster.masters:
            node.client().execute_command("ACL", "SETUSER", *line.split()[1:])
    hosts = cluster.url.partition("://")[2]
    web, worker = (
        connect(f"redis+cluster://sayso-{name}:{name.upper()}_PASSWORD@{hosts}")
        for name in ("web", "worker")
    )
    guard = DataLossGuard(web, prefix="sayso:shop:")
    guard.check_server()
    assert Rig(web, prefix="sayso:shop:").accept(turn("delete it")).outcome == "new"
    bot = Bot(Rig(worker, prefix="sayso:shop:"), "A")
    bot.work()
    assert bot.say("yes") == "deleted A"
    for client in (web, worker):
        client.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+cluster://host:1/0", "has only one"),
        ("redis+cluster://", "not an address of a node"),
        ("redis+cluster://a,:7", "not an address of a node"),
        ("rediss+cluster://a:b@c:x,d", "not an address of a node"),
        ("redis+cluster://a:1?shoe=1", "parameter"),
        ("rediss+cluster://a:1?ssl_password=secret", "ssl_password is no parameter"),
    ],
)
def test_malformed_url_says_how_to_write_it(url: str, says: str):
    """The message never repeats a password."""
    with pytest.raises(ValueError, match=says) as error:
        connect(url.replace("a:b@", "ana:secret@"))
    assert "secret" not in str(error.value)


def test_url_has_a_login_and_tls_for_all_nodes(tmp_path):
    """Its parameters are the same as in the other forms."""
    ca = tmp_path / "ca.pem"
    ca.touch()
    url = ClusterUrl.parse(f"rediss+cluster://ana:p%40ss@one,two:7000?ssl_ca_certs={ca}")
    assert url.addresses == (("one", 6379), ("two", 7000))
    assert url.client_options() == {
        "username": "ana", "password": "p@ss", "ssl_ca_certs": str(ca), "ssl": True, "decode_responses": True,
    }  # fmt: skip
    assert "p@ss" not in repr(url)


@pytest.mark.parametrize(
    "parameter",
    ["socket_timeout=5", "socket_connect_timeout=1", "max_connections=9", "retry_on_timeout=yes"],
)
def test_parameter_of_the_url_is_for_the_clients_of_threads_and_loops(parameter: str):
    """It is used in place of Sayso's own value, and both clients can be created with it."""
    url = f"redis+cluster://127.0.0.1:1?{parameter}"
    loop_client = AsyncCluster(
        ClusterUrl.parse(url), new_retries=lambda: Retries(clock=count(0, 10).__next__)
    )
    with connect(url) as client, pytest.raises(RedisConnectionError, match="cannot serve"):
        client.ping()
    with pytest.raises(RedisConnectionError, match="cannot serve"):
        asyncio.run(loop_client.execute(("GET", "word")))


class CutOff:
    """redis-py's client for a loop, whose table names a master that was cut off from the others.

    Any command that redis-py sends by itself makes it read the table anew.
    """

    def __init__(self) -> None:
        self.nodes_manager = self
        self.is_cut_off = True

    async def initialize(self) -> None:
        """Connect."""

    def get_node_from_slot(self, slot: int) -> CutOff:
        """Return the master by the table."""
        return self

    async def execute_pipeline(self, batch: list[PipelineCommand]) -> None:
        """Answer that the cluster is down, or to SET and WAIT."""
        for each, answer in zip(batch, ("OK", 1), strict=True):
            each.result = ClusterDownError("down") if self.is_cut_off else answer

    async def execute_command(self, *command: str) -> None:
        """Read the table anew."""
        self.is_cut_off = False


def test_write_for_replicas_leaves_a_master_that_was_cut_off():
    """The others have chosen a new master, and the old one answers CLUSTERDOWN until it is back."""
    cluster = AsyncCluster(
        ClusterUrl.parse("redis+cluster://a"), new_retries=lambda: Retries(pause=lambda _: 0)
    )
    cluster._client = CutOff()
    assert asyncio.run(cluster.execute(("SET", "word", "here"), replicas=1)) == "OK"


class Silent:
    """The client of a cluster that does not answer."""

    def node_name(self, key: str) -> str:
        """Return the name of the master of all keys."""
        return "a"

    def execute_command(self, *command: str) -> None:
        """Wait in vain."""
        raise RedisTimeoutError("silent")


def test_each_command_of_a_thread_fails_at_once_while_its_node_is_silent():
    """Not scripts alone: a webhook reads who may talk by HMGET."""
    connections = ClusterConnections(Silent())
    connections.break_circuit(slow_seconds=0, pause_seconds=60)
    with pytest.raises(RedisTimeoutError, match="silent"):
        connections.ask("EVALSHA", "sha", 1, "key")
    with pytest.raises(CircuitOpen):
        connections.ask("HMGET", "key", "field")


def test_cluster_without_a_reachable_node_is_away():
    """Callers retry or tell the operator, as for any other Redis. The client is created before that."""
    with (
        connect("redis+cluster://127.0.0.1:1") as client,
        pytest.raises(RedisConnectionError, match="cannot serve"),
    ):
        client.ping()


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.delete("a", "b"),
        lambda client: client.exists("a", "b"),
        lambda client: list(client.scan_iter("a*")),
        lambda client: client.pipeline(transaction=False).get("a").execute(),
        lambda client: client.register_script("return 1")(keys=["a"]),
        lambda client: client.transaction(lambda pipe: (pipe.multi(), pipe.set("a", 1)), "a"),
        lambda client: client.nodes(),
        lambda client: client.group_by_node({1: "a"}),
        lambda client: client.ask_durably(("SET", "a", "1"), 0),
        lambda client: client.close(),
    ],
)
def test_client_connects_with_its_first_use(cluster: Cluster, use):
    """Whatever that is: redis-py reads some of its attributes before it sends a command."""
    with connect(cluster.url) as client:
        use(client)


def settings_of(tmp_path, text: str = ""):
    """Return the settings of a small bot."""
    file = tmp_path / "sayso.yaml"
    file.write_text(f"agent: {{model: offline}}\nchannels: {{web: {{platform: console}}}}\n{text}")
    return load_settings(file)


def test_cluster_needs_a_queue_server(cluster: Cluster, tmp_path):
    """The error names the key and the variable."""
    with pytest.raises(ConfigError, match=r"queue_url \(or QUEUE_URL\)"):
        bootstrap(settings_of(tmp_path), data=tmp_path, redis_url=cluster.url)
    with pytest.raises(ConfigError, match="RQ does not run there"):
        bootstrap(
            settings_of(tmp_path, f"queue_url: {cluster.url}\n"),
            data=tmp_path,
            redis_url=cluster.url,
        )


def test_node_of_a_cluster_under_a_plain_url_is_refused(cluster: Cluster, tmp_path):
    """The error has the form that works."""
    url = f"redis://127.0.0.1:{cluster.masters[0].port}/0"
    services = bootstrap(settings_of(tmp_path), data=tmp_path, redis_url=url)
    with pytest.raises(
        RedisUnfit, match=r"write redis\+cluster://127.0.0.1:\d+ into REDIS_URL.*QUEUE_URL"
    ):
        check_redis(services)


@pytest.mark.parametrize(
    ("login", "database", "says"),
    [
        ("unknown:wrong@", 0, "refuses the login: write user and password into QUEUE_URL"),
        ("", 77, "has no database of this number .*: end QUEUE_URL with one that it has"),
    ],
)
def test_queue_server_with_a_lasting_failure_is_refused_at_start(
    cluster: Cluster,
    tmp_path,
    monkeypatch: pytest.MonkeyPatch,
    login: str,
    database: int,
    says: str,
):
    """A start waits for one that may answer later."""
    queue = Node(tmp_path, "queue")
    queue.start()
    try:
        monkeypatch.setenv("QUEUE_URL", f"redis://{login}127.0.0.1:{queue.port}/{database}")
        services = bootstrap(settings_of(tmp_path), data=tmp_path, redis_url=cluster.url)
        with pytest.raises(RedisUnfit, match=rf"127\.0\.0\.1:{queue.port} {says}"):
            check_redis(services)
    finally:
        queue.stop()


def test_start_on_a_cluster_warns_of_missing_replicas(cluster_client: Redis, tmp_path):
    """Each node is checked like a single server."""
    assert [
        risk for risk in risks_of(cluster_client, settings_of(tmp_path)) if "no replica" in risk
    ]
