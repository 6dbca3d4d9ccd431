"""Sayso on Redis with Sentinels: the primary is killed, or frozen and resumed; nothing is lost or done twice."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sayso.config.settings.loader import load_settings
from sayso.ops.checks.doctor import Doctor
from sayso.testing.platforms.fake_platforms import ENVIRON
from tests.config.processes import free_port
from tests.flows.failover import SentinelSystem
from tests.flows.system import Person, SlackPerson, TelegramPerson, until
from tests.workers.sentinels import Node, SentinelNode


@pytest.fixture(scope="module")
def system() -> Iterator[SentinelSystem]:
    """One set-up for all tests: each leaves a primary with two replicas."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-sen-") as folder,
        SentinelSystem(Path(folder), replicas=1) as system,
    ):
        yield system


def answer(system: SentinelSystem, person: Person, text: str) -> None:
    """Wait for a message with this text."""
    until(lambda: any(text in entry["text"] for entry in system.ledger(person.chat)))


def question(system: SentinelSystem, person: TelegramPerson, invoice: str) -> None:
    """Ask for a deletion, and wait for the question and until Redis knows that it arrived.

    No person answers faster. A primary that dies before it knows would test another thing.
    """
    person.say(f"delete invoice {invoice}")
    answer(system, person, invoice)
    until(system.is_settled)


def test_confirmed_action_runs_once_when_the_primary_is_killed(system: SentinelSystem) -> None:
    """The question is asked on one primary and answered on the next. Web, worker and RQ reconnect by themselves.

    So is a request to another person.
    """
    person, asker, decider = (
        TelegramPerson(system, 71),
        SlackPerson(system, 78),
        TelegramPerson(system, 79),
    )
    asker.say("delete invoice INV-34")
    answer(system, decider, "INV-34")
    question(system, person, "INV-31")
    yes = system.ledger(decider.chat)[0]["buttons"][0]["data"]
    old = system.redis.primary()
    old.send(signal.SIGKILL)
    system.said(person, 2, "yes")
    answer(system, person, "Invoice INV-31 is deleted.")
    assert system.effects("delete", "INV-31") == 1
    decider.tap(yes)
    answer(system, asker, "Invoice INV-34 is deleted.")
    answer(system, decider, "Agreed by ops")
    assert system.effects("delete", "INV-34") == 1
    system.redis.bring_back(old)


def test_frozen_primary_that_comes_back_does_nothing_twice(system: SentinelSystem) -> None:
    """It acts as the primary until a Sentinel makes it a replica."""
    person = TelegramPerson(system, 72)
    question(system, person, "INV-42")
    old = system.redis.primary()
    old.send(signal.SIGSTOP)
    system.said(person, 2, "yes")
    answer(system, person, "Invoice INV-42 is deleted.")
    old.send(signal.SIGCONT)
    system.redis.await_whole()
    system.said(person, 3, "hello")
    answer(system, person, "You said: hello")
    assert system.effects("delete", "INV-42") == 1
    assert old.role() == "slave"


def test_message_is_acknowledged_only_when_a_replica_has_it(system: SentinelSystem) -> None:
    """Until then the web answers 503. The primary dies, the webhooks are repeated, and each is answered once."""
    people = [TelegramPerson(system, number) for number in range(73, 76)]
    old = system.redis.primary()
    system.redis.cut_replication()
    for person in people:
        assert system.post(*person.text(1, "apples")).status_code == 503
    ready = system.http.get(f"{system.url}/readyz", timeout=10)
    assert (ready.status_code, ready.json()["redis"]) == (503, "NotReplicated")
    old.send(signal.SIGKILL)
    system.redis.mend_replication()
    for person in people:
        system.said(person, 1, "apples")
    for person in people:
        answer(system, person, "You said: apples")
    system.redis.bring_back(old)
    assert [len(system.ledger(person.chat)) for person in people] == [1, 1, 1]
    assert "redis.rolled_back" not in system.log.read_text()


def test_primary_that_is_cut_off_from_its_replicas_is_left(system: SentinelSystem) -> None:
    """Web and worker still reach it, but replicas and Sentinels do not."""
    person, old = TelegramPerson(system, 77), system.redis.primary()
    with old.client() as operator:
        operator.config_set("requirepass", "from now on")  # connections that are open stay so
        ours = int(operator.client_id())
        known = [
            each
            for each in operator.client_list()
            if each["name"].startswith("sentinel") or each["flags"] == "S"
        ]
        for each in known:
            operator.client_kill_filter(_id=each["id"])
        system.said(person, 1, "hello")
        answer(system, person, "You said: hello")
        assert operator.client_id() == ours
        operator.config_set("requirepass", "")
    system.redis.await_whole()
    assert len(system.ledger(person.chat)) == 1


def test_every_command_follows_the_primary(
    system: SentinelSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sayso redis`, `sayso deliveries` and `sayso doctor` find it as web and workers do."""
    for command in (("deliveries", "list"), ("redis", "resume")):
        code, output, errors = system.command(*command)
        assert (code, "Redis" in errors) == (0, False), (command, output, errors)
    until(
        lambda: "1 alive" in findings(system, system.redis.url, monkeypatch)
    )  # its heartbeat comes back, too


def findings(system: SentinelSystem, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the doctor's findings on this Redis."""
    monkeypatch.setenv("REDIS_URL", url)
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    doctor = Doctor(load_settings(system.config), system.data, web=None)  # type: ignore[arg-type]  # it is not asked
    return "\n".join(f"{each.says}: {each.cure}" for each in doctor._check_redis())


def test_incomplete_configuration_of_sentinels_is_named_with_its_cure(
    system: SentinelSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor and the error of any command print the same line."""
    first, node = system.redis.sentinels[0], system.redis.primary()
    wrong = {
        system.redis.url.replace(
            "/shop", "/shpo"
        ): "knows no service 'shpo': name one of its services in REDIS_URL ('shop')",
        f"redis+sentinel://127.0.0.1:{node.port}/shop": "is no Sentinel (unknown command",
        "redis+sentinel://127.0.0.1:1,127.0.0.1:2/shop": "no Sentinel answers, last asked 127.0.0.1:",
        f"redis://127.0.0.1:{first.port}": f"write redis+sentinel://HOST:{first.port}/SERVICE into REDIS_URL",
        f"redis+sentinel://127.0.0.1:{first.port}/shop": "the URL names one of 3 Sentinels",
    }
    for url, says in wrong.items():
        assert says in findings(system, url, monkeypatch), url
    for url, says in list(wrong.items())[:4]:
        command = ("deliveries", "list") if "+sentinel" in url else ("worker",)
        code, _, errors = system.command(*command, REDIS_URL=url)
        assert (code, says in errors, errors.count("\n")) == (3, True, 1), errors


def test_quorum_password_and_wrong_address_of_sentinels_are_named(
    system: SentinelSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setup has one Sentinel with its own login, and a server without a replica."""
    lone, server, nowhere = SentinelNode(tmp_path, "lone"), Node(tmp_path, "server"), free_port()
    lone.watch(server.port, "requirepass quiet", f"sentinel monitor away 127.0.0.1 {nowhere} 1")
    server.start()
    lone.start()
    try:
        url = f"redis+sentinel://127.0.0.1:{lone.port}/shop"
        assert "refuses the login: write ?sentinel_username=" in findings(system, url, monkeypatch)
        found = findings(system, f"{url}?sentinel_password=quiet", monkeypatch)
        assert "no failover can happen now (1 Sentinels know 'shop', its quorum is 2" in found
        assert "'shop' has no replica that could take over" in found
        says = findings(
            system, f"{url}?sentinel_password=quiet".replace("/shop", "/away"), monkeypatch
        )
        assert (
            f"name 127.0.0.1:{nowhere} as the primary of 'away', which does not answer from here"
            in says
        )
    finally:
        lone.stop()
        server.stop()
