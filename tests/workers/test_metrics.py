"""Metrics of Prometheus: each turn and reply counts once; the queue and its waiting times are measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from redis import Redis
from rq.suspension import suspend

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.agent.observability.builtin import MetricsObserver
from sayso.channels.base import AddressClosed, RateLimited
from sayso.channels.types import Delivery, Receipt, Reply
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.wiring.gauges import StateCollector
from sayso.infra.metrics import MAX_VALUES, OTHER, REGISTRY, label_value
from sayso.infra.redis.client import connect
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import LeaseLost
from sayso.workers.mailbox import RedisMailbox
from sayso.workers.rq.jobs import WakeUps, waiting_jobs
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender, turn, voice
from tests.pending.state_log import SIGNER
from tests.workers.fakes import Bot, FakeAgent, FakeChannel


@pytest.fixture
def grown() -> Callable[..., float]:
    """Return a function that says by how much a sample has grown since the test began."""
    before = {
        (each.name, *sorted(each.labels.items())): each.value
        for f in REGISTRY.collect()
        for each in f.samples
    }

    def growth(name: str, **labels: str) -> float:
        now = REGISTRY.get_sample_value(name, labels) or 0.0
        return now - before.get((name, *sorted(labels.items())), 0.0)

    return growth


def run(agent: FakeAgent, channel: FakeChannel, *, turns: int = 1) -> Rig:
    """Answer turns of one conversation."""
    rig = Rig()
    for _ in range(turns):
        rig.accept(turn())
    sender = make_sender(rig.outbox, {"chat": channel})
    asyncio.run(
        make_processor(rig.mailbox, sender, {"chat": channel}, {"chat": agent}).run(CHAT.id)
    )
    return rig


def test_a_turn_that_breaks_counts_as_failed_and_its_apology_as_sent(grown):
    """The person got a reply, so it counts like any other."""
    run(FakeAgent(lambda _: 1 / 0), FakeChannel())
    assert grown("sayso_turns_total", channel="chat", outcome="failed") == 1
    assert grown("sayso_turns_total", channel="chat", outcome="answered") == 0
    assert grown("sayso_deliveries_total", channel="chat", result="sent", error="") == 1


def test_each_turn_counts_once_with_its_time_in_the_mailbox(grown):
    """Three turns in a row, three replies."""
    run(FakeAgent(), FakeChannel(), turns=3)
    assert grown("sayso_turns_total", channel="chat", outcome="answered") == 3
    assert grown("sayso_mailbox_seconds_count", channel="chat") == 3
    assert grown("sayso_turn_seconds_count", channel="chat") == 3
    assert grown("sayso_send_seconds_count", channel="chat") == 3


class EditingChannel(FakeChannel):
    """A platform that answers an edit with this message id."""

    def __init__(self, message_id: str) -> None:
        super().__init__()
        self.message_id = message_id

    async def send(self, delivery: Delivery) -> Receipt:
        """Take the edit."""
        return Receipt(self.message_id)


class EditingAgent(FakeAgent):
    """Answers with an edit of the message m1."""

    async def answer(self, queued, lease, stream=None, on_step=None) -> TurnChange:
        """Edit it; one that is impossible may be left out."""
        return TurnChange(replies=(TurnReply(Reply("done", edits="m1", optional=True)),))


@pytest.mark.parametrize(
    ("message_id", "result"), [("m1", "edited"), ("m2", "sent"), ("", "left_out")]
)
def test_edits_count_apart_from_new_messages(grown, message_id, result):
    """An edited question is no further message, and an edit that is left out is none at all."""
    run(EditingAgent(), EditingChannel(message_id))
    assert grown("sayso_deliveries_total", channel="chat", result=result, error="") == 1
    assert grown("sayso_deliveries_total", channel="chat", result="sent", error="") == (
        result == "sent"
    )


class PricedChannel(EditingChannel):
    """A platform that takes money for each message."""

    async def send(self, delivery: Delivery) -> Receipt:
        """Take the message."""
        return Receipt(
            self.message_id, price_class="service" if self.message_id != "m1" else "free"
        )


@pytest.mark.parametrize(("message_id", "counted"), [("m1", "free"), ("m2", "service"), ("", "")])
def test_messages_count_by_what_their_platform_charges(grown, message_id, counted):
    """An edit is free, and what is left out is no message."""
    run(EditingAgent(), PricedChannel(message_id))
    growths = {
        name: grown("sayso_messages_total", channel="chat", **{"class": name})
        for name in ("free", "service")
    }
    assert growths == {name: int(name == counted) for name in ("free", "service")}


@pytest.mark.parametrize(
    ("error", "result"),
    [(RateLimited(7), "postponed"), (AddressClosed("blocked"), "dead")],
    ids=["limited", "closed"],
)
def test_an_attempt_that_fails_counts_with_the_class_of_its_error(grown, error, result):
    """A delivery that is postponed is not yet a dead letter."""
    channel = FakeChannel()
    channel.errors = [error]
    run(FakeAgent(), channel)
    name = type(error).__name__
    assert grown("sayso_deliveries_total", channel="chat", result=result, error=name) == 1
    assert grown("sayso_deliveries_total", channel="chat", result="sent", error="") == 0


def test_a_lease_that_is_lost_counts(grown):
    """Another worker took over the conversation, so this worker counts no answer."""

    def lose(_: str) -> str:
        raise LeaseLost(CHAT.id)

    run(FakeAgent(lose), FakeChannel())
    assert grown("sayso_leases_lost_total") == 1
    assert grown("sayso_turn_seconds_count", channel="chat") == 0


class TakenOver:
    """An outbox whose lease another worker has by the time a result is recorded."""

    def __init__(self, outbox) -> None:
        self._outbox = outbox

    def __getattr__(self, name: str):
        return getattr(self._outbox, name)

    async def mark_delivered(self, lease, *_args, **_options):
        """Refuse the result."""
        raise LeaseLost(lease.conversation)


def test_reply_that_another_worker_gives_up_counts_as_dead_once(grown):
    """The worker that lost its lease counts no dead letter: it has recorded none."""
    rig, channel = Rig(), FakeChannel()
    channel.errors = [AddressClosed("blocked")]
    rig.accept(turn())
    sender = make_sender(TakenOver(rig.outbox), {"chat": channel})
    asyncio.run(
        make_processor(rig.mailbox, sender, {"chat": channel}, {"chat": FakeAgent()}).run(CHAT.id)
    )
    assert not channel.errors
    assert (
        grown("sayso_deliveries_total", channel="chat", result="dead", error="AddressClosed") == 0
    )


def test_number_of_label_values_is_bounded():
    """A model may invent names of tools. From the hundredth on they share one value."""
    names = [label_value("of this test", f"tool{number}") for number in range(MAX_VALUES + 50)]
    assert names[MAX_VALUES - 1] == f"tool{MAX_VALUES - 1}"
    assert set(names[MAX_VALUES:]) == {OTHER}
    assert label_value("of this test", "tool0") == "tool0"


@pytest.mark.parametrize("name", ["call +49 151 00042", "x\ud800", "a" * 101, "", "two\nlines"])
def test_a_text_that_is_no_name_is_no_label(name: str):
    """It may contain a phone number, or characters that a scrape cannot encode."""
    assert label_value("of this test, too", name) == OTHER


def test_a_tool_that_the_model_invents_counts_as_other(grown):
    """Whatever its name is. A known tool with wrong arguments counts under its name."""

    @tool(read_only=True)
    def look(place: str) -> str:
        """Look somewhere."""
        return place

    calls = [
        ToolCall("call_ana_at_4915100042", {}),
        ToolCall("x\ud800", {}),
        ToolCall("look", {"wrong": 1}),
    ]
    config = AgentConfig(observers=[MetricsObserver()])
    Agent([look], ScriptedProvider([*calls, "done"], strict=False), config).run("hi")
    assert grown("sayso_tool_calls_total", tool=OTHER, outcome="failed") == 2
    assert grown("sayso_tool_calls_total", tool="look", outcome="failed") == 1
    assert b"4915100042" not in generate_latest(REGISTRY)


def measured(client: Redis) -> dict[str, int]:
    """Return the numbers that wait, summed over all shards, and the highest of their ages."""
    found: dict[str, int] = {}
    for answer in ShardedScripts(client, CONVERSATION_SCRIPTS).on_every_shard(
        "measure", {"most": 2}
    ):
        for name, number in json.loads(answer).items():
            join = max if name.startswith("oldest") else int.__add__
            found[name] = join(found.get(name, 0), number)
    return found


def test_what_waits_is_counted_with_the_age_of_the_oldest(redis_client):
    """The age of a turn begins when it was received, also by another process; that of a reply in the outbox."""
    rig = Rig(redis_client)
    assert set(measured(redis_client).values()) == {0}
    rig.mailbox.accept(turn("late"), waited_seconds=90)
    rig.accept(turn("later"))
    assert rig.mailbox.notify(turn(), Reply("too many"))
    (key,) = redis_client.keys("sayso:*:outbox:*")
    entry = redis_client.lindex(key, 0)
    at = int(entry.rpartition(": ")[2].rstrip("}"))
    redis_client.lset(key, 0, entry.replace(str(at), str(at - 5000)))
    found = measured(redis_client)
    assert (found["conversations"], found["turns"], found["replies"]) == (1, 2, 1)
    assert 90_000 <= found["oldest_turn"] < 150_000
    assert 5_000 <= found["oldest_reply"] < 65_000


def test_a_reply_that_waits_for_its_person_has_no_age(redis_client):
    """It may wait for days, until the person writes again."""
    rig = Rig(redis_client)
    rig.mailbox.notify(turn(), Reply("too many"))
    (key,) = redis_client.keys("sayso:*:outbox:*")
    redis_client.lset(key, 0, redis_client.lindex(key, 0).rpartition(": ")[0] + ": 1000}")
    assert measured(redis_client)["oldest_reply"] > 10**11
    redis_client.zadd(f"{key.partition(':outbox:')[0]}:held_conversations", {CHAT.id: 1})
    assert (measured(redis_client)["oldest_reply"], measured(redis_client)["held"]) == (0, 1)


def test_a_question_counts_by_its_states_and_the_answer_by_its_time(redis_client, grown, tmp_path):
    """They are read from the audit log by the worker that collects it."""
    rig = Rig(redis_client)
    bot = Bot(rig, "INV-42")
    bot.say("delete INV-42")
    rig.pass_time(7)
    bot.say("yes")
    AuditCollector(redis_client, AuditLedger(tmp_path / FILE, SIGNER)).collect()
    for state in ("armed", "shown", "claimed", "started", "done"):
        assert grown("sayso_pending_actions_total", channel="chat", state=state) == 1, state
    assert grown("sayso_pending_answer_seconds_count", channel="chat") == 1


def test_the_queue_is_counted_with_the_time_of_its_first_job(redis_client):
    """A job of another program has no time."""
    assert waiting_jobs(redis_client, "sayso") == (0, None)
    RedisMailbox(
        ShardedScripts(redis_client, CONVERSATION_SCRIPTS), voice, WakeUps(redis_client)
    ).accept(turn())
    count, at = waiting_jobs(redis_client, "sayso")
    assert count == 1
    assert at is not None
    assert abs(at - redis_client.time()[0]) < 60
    redis_client.lpush("rq:queue:sayso", "another program's")
    assert waiting_jobs(redis_client, "sayso") == (2, None)


@pytest.fixture
def bot_file(tmp_path: Path) -> Path:
    """Return the configuration of a bot with one channel."""
    file = tmp_path / "sayso.yaml"
    file.write_text("agent: {model: offline}\nchannels: {web: {platform: console}}\n")
    return file


def gauges_of(bot_file: Path, redis_url: str) -> dict[str, float]:
    """Return the gauges of the state in Redis that have no labels."""
    services = bootstrap(load_settings(bot_file), data=bot_file.parent, redis_url=redis_url)
    families = StateCollector(services).collect()
    return {each.name: each.value for family in families for each in family.samples}


def test_gauges_of_a_separate_queue_are_read_from_its_server(
    redis_client: Redis, redis_url: str, bot_file: Path, monkeypatch: pytest.MonkeyPatch
):
    """The server of the conversations has no job and is never suspended."""
    queue_url = f"{redis_url}?db=1"
    monkeypatch.setenv("QUEUE_URL", queue_url)
    with connect(queue_url) as queue:
        queue.lpush("rq:queue:sayso-sayso", "job")
        suspend(queue)
    found = gauges_of(bot_file, redis_url)
    assert (found["sayso_queue_jobs"], found["sayso_queue_suspended"]) == (1, 1)


def test_queue_server_that_is_away_hides_no_other_gauge(
    redis_client: Redis, redis_url: str, bot_file: Path, monkeypatch: pytest.MonkeyPatch
):
    """Conversations and workers are on the server that answers."""
    monkeypatch.setenv("QUEUE_URL", "redis://127.0.0.1:1")
    found = gauges_of(bot_file, redis_url)
    assert (found["sayso_redis_up"], found["sayso_workers"]) == (1, 0)
    assert "sayso_queue_jobs" not in found
