"""Sayso on Redis Cluster with a queue server: a server is killed, and nothing is lost or done twice."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from redis.exceptions import RedisError

from sayso.channels.types import Conversation
from sayso.infra.redis.client import connect
from sayso.infra.redis.connections import Connections
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.pending.sharded_scripts import SHARDS, shard_of
from tests.config.processes import sayso, short_folder
from tests.flows.system import (
    ENVIRON,
    SlackPerson,
    System,
    TelegramPerson,
    WhatsAppPerson,
    until,
)
from tests.workers.clusters import Cluster
from tests.workers.sentinels import Node

#: People who decide together about what is asked in Slack: five on Telegram, one on WhatsApp.
MANAGERS = """
people:
  m0: {accounts: {ops-tg: "5000000700"}, roles: [manager]}
  m1: {accounts: {ops-tg: "5000000701"}, roles: [manager]}
  m2: {accounts: {ops-tg: "5000000702"}, roles: [manager]}
  m3: {accounts: {ops-tg: "5000000703"}, roles: [manager]}
  m4: {accounts: {ops-tg: "5000000704"}, roles: [manager]}
  m5: {accounts: {shop-wa: "+4915100000705"}, roles: [manager]}
"""


class ClusterSystem(System):
    """Web and two workers on three masters with one replica each, and a queue server without persistence."""

    redis: Cluster  # type: ignore[assignment]

    def __init__(self, folder: Path) -> None:
        self.queue = Node(folder, "queue", "--appendonly", "no")
        super().__init__(folder, environ={"QUEUE_URL": f"redis://127.0.0.1:{self.queue.port}/0"})
        text = self.config.read_text()
        rule = "{delete_invoice: {by: role manager, need: 2}}"
        text = text.replace("platform: slack,", f"platform: slack, policy: {{approval: {rule}}},")
        self.config.write_text(f"{text}redis_wait_replicas: 1\n{MANAGERS}")
        self.redis = Cluster(folder, replicas=1)

    def __enter__(self) -> ClusterSystem:
        self.queue.start()
        super().__enter__()
        self.client = connect(self.redis.url, patient=True)
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.queue.stop()

    def is_settled(self) -> bool:
        """Return whether Redis has recorded the delivery of every reply."""
        try:
            return next(self.client.scan_iter("sayso:*:outbox:*", count=1000), None) is None
        except RedisError:
            return False


@pytest.fixture(scope="module")
def system() -> Iterator[ClusterSystem]:
    """One set-up for all tests: each leaves a cluster that serves all slots."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-clu-") as folder,
        ClusterSystem(Path(folder)) as system,
    ):
        yield system


def answer(system: ClusterSystem, person: TelegramPerson | WhatsAppPerson, text: str) -> None:
    """Wait for a message with this text."""
    until(lambda: any(text in entry["text"] for entry in system.ledger(person.chat)))


def test_people_of_all_shards_are_answered_and_confirm_once(system: ClusterSystem) -> None:
    """Each webhook is delivered twice. The cluster has no key of RQ, and the queue server none of a conversation."""
    invoices = ("INV-7", "INV-31")
    people = [TelegramPerson(system, 200 + number) for number in range(8)]
    for number, person in enumerate(people):
        person.say(f"delete invoice {invoices[number]}" if number < 2 else "hello")
    for person in people:
        assert len(person.hears()) == 1
    for person in people[:2]:
        person.say("yes")
    for person, invoice in zip(people, invoices, strict=False):
        assert person.hears()[0]["text"].startswith(f"Invoice {invoice} is deleted.")
        assert system.effects("delete", invoice) == 1
    assert all(node.client().dbsize() for node in system.redis.masters)
    assert not list(system.client.scan_iter("rq:*"))
    queue = system.queue.client()
    assert {key.partition(":")[0] for key in queue.scan_iter()} == {"rq", "sayso"}
    assert not list(queue.scan_iter("sayso:*:conversation:*"))


def test_people_on_all_nodes_decide_about_one_action(system: ClusterSystem) -> None:
    """Requests, votes and endings travel between the nodes. The second yes deletes the invoice."""
    on_whatsapp = WhatsAppPerson(system, 705)
    on_whatsapp.say("hello")
    on_whatsapp.hears()
    managers = [TelegramPerson(system, 700 + number) for number in range(5)]
    asker = SlackPerson(system, 710)
    asker.say("delete invoice INV-60")
    assert "2 of them must agree" in asker.hears()[0]["text"]
    for person in managers:
        assert "INV-60" in person.hears()[0]["text"]
    (to_whatsapp,) = on_whatsapp.hears()
    assert len({node_of(system, Conversation("ops-tg", each.chat)) for each in managers}) > 1

    on_whatsapp.tap(to_whatsapp["buttons"][0]["data"])
    assert "1 of 2" in on_whatsapp.hears()[0]["text"]
    assert system.effects("delete", "INV-60") == 0
    managers[0].tap(system.ledger(managers[0].chat)[0]["buttons"][0]["data"])
    assert asker.hears()[0]["text"].startswith("Agreed by m5, m0")
    assert system.effects("delete", "INV-60") == 1
    until(
        lambda: all("Agreed by m5, m0" in system.ledger(each.chat)[0]["text"] for each in managers)
    )
    assert "Agreed by m5, m0" in on_whatsapp.hears()[0]["text"]


def node_of(system: ClusterSystem, conversation: Conversation) -> int:
    """Return the port of the node that stores a conversation."""
    key = f"{{{shard_of(conversation.id)}}}"
    return int(system.client.get_node_from_key(key).port)  # type: ignore[attr-defined]


@contextmanager
def load(
    system: ClusterSystem, people: list[WhatsAppPerson]
) -> Iterator[list[tuple[WhatsAppPerson, str]]]:
    """Yield what was acknowledged, while people write one message after the other."""
    acknowledged: list[tuple[WhatsAppPerson, str]] = []
    ended = threading.Event()

    def write(person: WhatsAppPerson) -> None:
        number = 0
        while not ended.is_set():
            number += 1
            text = f"message {number}"
            try:
                if system.post(*person.text(person._next(), text)).status_code == 200:
                    acknowledged.append((person, text))
            except httpx.HTTPError:
                pass
            ended.wait(0.2)

    threads = [threading.Thread(target=write, args=(person,)) for person in people]
    for thread in threads:
        thread.start()
    try:
        yield acknowledged
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_cluster_is_backed_up_under_load_and_restored_on_one_server(system: ClusterSystem) -> None:
    """The audit log verifies, and the question that was open in the backup is closed."""
    asked = TelegramPerson(system, 240)
    asked.say("delete invoice INV-45")
    answer(system, asked, "INV-45")
    people = [WhatsAppPerson(system, number) for number in range(241, 245)]
    with short_folder() as folder:
        file, server = folder / "backup.tar.gz", EmbeddedRedis(folder)
        with load(system, people) as acknowledged:
            until(lambda: len(acknowledged) > 8)
            system.printed("backup", str(file), "--with-keys")
        server.start()
        try:
            common = ("--config", system.config, "--data", folder / "data")
            code, report, errors = sayso("restore", file, *common, **ENVIRON, REDIS_URL=server.url)
            assert (code, "0 faults: the chain holds" in report) == (0, True), errors
            with connect(server.url) as client:
                assert len(list(client.scan_iter("sayso:*:conversation:*"))) >= 5
                states = [
                    client.hget(key, "state") for key in client.scan_iter("sayso:*:pending:*")
                ]
            assert "unknown" in states
            assert "shown" not in states
        finally:
            server.stop()
    asked.say("no")
    # The next test looks for the one question that is open.
    until(lambda: not list(system.client.scan_iter("sayso:*:open_action:ops-tg:*")))


def test_confirmed_action_runs_once_when_its_master_is_killed_under_load(
    system: ClusterSystem,
) -> None:
    """Its replica takes over. Web and workers follow, and whatever was acknowledged is answered.

    The new master acknowledges nothing before the old one is back as its replica.
    """
    asked = TelegramPerson(system, 301)
    asked.say("delete invoice INV-12")
    answer(system, asked, "INV-12")
    (open_action,) = list(system.client.scan_iter("sayso:*:open_action:ops-tg:*"))
    node = system.client.get_node_from_key(open_action)  # type: ignore[attr-defined]  # a cluster's client
    (old,) = [each for each in system.redis.nodes if each.port == node.port]
    others = [WhatsAppPerson(system, 400 + number) for number in range(6)]
    with load(system, others) as acknowledged:
        until(lambda: len(acknowledged) > 20)
        old.send(signal.SIGKILL)
        until(
            lambda: (
                [node.role() for node in system.redis.nodes if node is not old].count("master") == 3
            )
        )
        old.start()
        hook = asked.text(asked._next(), "yes")
        until(lambda: system.post(*hook).status_code == 200)
        before = len(acknowledged)
        until(
            lambda: (
                {person.name for person, _ in acknowledged[before:]}
                == {person.name for person in others}
            )
        )
    answer(system, asked, "Invoice INV-12 is deleted.")
    assert system.effects("delete", "INV-12") == 1
    until(lambda: not lost(system, acknowledged))
    assert system.command("redis", "status")[:2] == (0, "redis: whole\n")
    until(system.redis.is_whole)


def fail_over_all(system: ClusterSystem) -> None:
    """Swap each master and its replica, as an operator does before maintenance. All of them live on."""
    for replica in [node for node in system.redis.nodes if node.role() == "slave"]:
        replica.cluster("FAILOVER")
        until(lambda node=replica: node.role() == "master" and system.redis.is_whole())


def test_write_after_a_planned_failover_reaches_the_new_master_at_once(
    system: ClusterSystem,
) -> None:
    """The old master is a replica now. It says where the slot is, and that it cannot WAIT: the first counts."""
    with connect(system.redis.url) as client:
        connections = Connections.of(client)
        connections.replicas = 1
        key = f"sayso:test:{{{shard_of('a')}}}:writable"
        for _ in range(2):
            assert connections.ask("SET", key, "", "PX", 1000, durable=True) == "OK"
            fail_over_all(system)
        assert connections.ask("SET", key, "", "PX", 1000, durable=True) == "OK"


def test_quiet_web_accepts_the_first_message_after_a_planned_failover(
    system: ClusterSystem,
) -> None:
    """It last wrote before the failover, so its table of slots is old."""
    person = TelegramPerson(system, 551)
    person.say("hello")
    person.hears()
    fail_over_all(system)
    assert system.post(*person.text(person._next(), "hello again")).status_code == 200
    until(lambda: any("hello again" in entry["text"] for entry in system.ledger(person.chat)))


def lost(
    system: ClusterSystem, acknowledged: list[tuple[WhatsAppPerson, str]]
) -> list[tuple[str, str]]:
    """Return the acknowledged messages that no reply repeats. Several may be answered by one."""
    heard = {
        (entry["chat"], line)
        for entry in system.platforms.sent
        for line in entry["text"].splitlines()
    }
    said = [(person.chat, text) for person, text in acknowledged]
    return [
        (chat, text)
        for chat, text in said
        if not {(chat, text), (chat, f"You said: {text}")} & heard
    ]


def test_queue_server_that_restarts_empty_loses_no_message(system: ClusterSystem) -> None:
    """Messages are accepted while it is down, and answered when it is back."""
    person = TelegramPerson(system, 501)
    system.queue.send(signal.SIGKILL)
    person.say("hello")
    system.queue.start()
    assert "You said: hello" in person.hears()[0]["text"]
    assert "queue.away" in system.log.read_text()


def test_master_that_lost_writes_is_halted_and_resumed(system: ClusterSystem) -> None:
    """An outdated replica was promoted. The guard halts the shards of that node until an operator resumes them."""
    person = TelegramPerson(system, 601)
    person.say("hello")
    person.hears()
    key = next(iter(system.client.scan_iter("sayso:sayso:{*}:write_counter")))
    system.client.set(key, 0)
    until(lambda: system.http.get(f"{system.url}/readyz", timeout=5).status_code == 503)
    code, output, _ = system.command("redis", "status")
    assert (code, f"of {SHARDS} shards" in output or "halted" in output) == (1, True)
    code, _, errors = system.command("backup", str(system.data / "backup.tar.gz"))
    assert (code, "this Redis lost data" in errors, errors.count("\n")) == (3, True, 1), errors
    assert system.command("redis", "resume")[0] == 0
    until(lambda: system.http.get(f"{system.url}/readyz", timeout=5).status_code == 200)
    person.say("hello again")
    assert "hello again" in person.hears()[0]["text"]
