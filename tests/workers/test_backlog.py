"""Backlog: conversations in the queue cost the reaper next to nothing, and lost wake-ups are found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from redis import Redis
from redis.exceptions import RedisError
from rq.serializers import JSONSerializer

from sayso.channels.types import Conversation
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.infra.redis.client import PREFIX, connect
from sayso.pending.sharded_scripts import SHARDS, ShardedScripts, shard_of
from sayso.pending.stored_limits import URGENT_JOB
from sayso.workers.mailbox import InboxLimits, RedisMailbox
from sayso.workers.recovery import Reaper, WorkerLock
from sayso.workers.rq.jobs import QUEUE, QueueServer, SaysoJob, WakeUps
from sayso.workers.scripts import CONVERSATION_SCRIPTS, QUEUE_SCRIPTS, WakingScripts
from sayso.workers.wake_ups import no_wake_up
from tests.contracts.rigs import turn, voice

QUEUE_KEY = f"rq:queue:{QUEUE}"
ON_THEIR_WAY = f"{QUEUE_KEY}:intermediate"


class Town:
    """People who write to a bot without workers, and the reaper. The queue may have a server of its own."""

    def __init__(self, client, queue, folder) -> None:
        self.client, self.queue = client, queue
        jobs = WakeUps(queue)
        self.server = QueueServer(queue, jobs) if queue is not client else None
        self.scripts = (
            WakingScripts(client, self.server.wake)
            if self.server
            else ShardedScripts(client, CONVERSATION_SCRIPTS)
        )
        wake_up = no_wake_up if self.server else jobs
        known = {"queued": self.server.queued} if self.server else {"queue": jobs.queue}
        self.mailbox = RedisMailbox(self.scripts, voice, wake_up)
        # By this clock a round takes no time, so it looks at all shards.
        self.reaper = Reaper(
            client, self.scripts, wake_up, WorkerLock(folder), clock=lambda: 0.0, **known
        )

    def write(self, name: str, **options):
        """Accept a turn in the conversation of this name; return the result."""
        return self.mailbox.accept(
            replace(turn(**options), conversation=Conversation("chat", name))
        ).outcome

    def round(self) -> int:
        """Run a round of the reaper while all are overdue."""
        self.client.delete(f"{PREFIX}reaper")
        for shard in range(SHARDS):
            key = f"{PREFIX}{{{shard}}}:due"
            overdue = dict.fromkeys(self.client.zrange(key, 0, -1), 0)
            if overdue:
                self.client.zadd(key, overdue)
        return self.reaper.round()

    def jobs(self, name: str) -> int:
        """Return the number of queued jobs of this conversation."""
        whose = [
            self.queue.hget(f"rq:job:{job}", "description")
            for job in self.queue.lrange(QUEUE_KEY, 0, -1)
        ]
        return whose.count(f"process {Conversation('chat', name).id}")

    def lose(self) -> str:
        """Let a worker take the first job and die before it reports that; return the job's id."""
        return str(self.queue.lmove(QUEUE_KEY, ON_THEIR_WAY, "LEFT", "RIGHT"))


@pytest.fixture(params=["one server", "a queue server of its own"])
def town(request, redis_client, redis_url, tmp_path) -> Iterator[Town]:
    """Yield a bot without workers. Another database stands for another server."""
    with connect(f"{redis_url}?db=1") as other:
        yield Town(redis_client, redis_client if request.param == "one server" else other, tmp_path)


def test_thousands_of_waiting_conversations_are_neither_searched_nor_woken_nor_reported(
    town, caplog
):
    """The queue is not searched for any of them, and a round takes two calls per shard."""
    caplog.set_level("INFO", logger="sayso.workers.recovery")
    for number in range(2000):
        town.write(f"person {number}")
    town.queue.config_resetstat()
    assert town.round() == 0
    calls = {name: each["calls"] for name, each in town.queue.info("commandstats").items()}
    assert "cmdstat_lpos" not in calls
    scripts = 3 if town.server else 2
    assert calls["cmdstat_evalsha"] <= scripts * SHARDS + 3  # once more where they were not loaded
    assert town.queue.llen(QUEUE_KEY) == 2000
    assert caplog.records == []


@pytest.mark.parametrize("tap", ["", "1x"])
@pytest.mark.parametrize("others", [0, 3])
def test_job_lost_on_its_way_to_a_worker_is_written_again(town, tap, others):
    """RQ calls it queued, but no queue has it: the jobs behind it, or their absence, show that."""
    town.write("lost", tap=tap)
    for number in range(others):
        town.write(f"person {number}")
    town.lose()
    assert (town.round(), town.jobs("lost")) == (1, 1)
    assert (town.round(), town.jobs("lost")) == (0, 1)


def test_lost_job_is_found_as_soon_as_no_urgent_one_is_before_it(town):
    """The reaper does not look behind the urgent jobs, which run first in any case."""
    town.write("lost")
    town.lose()
    town.write("urgent", tap="1x")
    town.write("later")
    assert (town.round(), town.jobs("lost")) == (0, 0)
    town.queue.lpop(QUEUE_KEY)
    town.round()
    assert town.jobs("lost") == 1


def test_urgent_job_lost_among_urgent_ones_is_found_when_the_older_ones_come(town):
    """The newest urgent job is taken first, so an older one at the head shows that it is gone."""
    town.write("older", tap="1x")
    town.write("lost", tap="1x")
    town.lose()
    assert (town.round(), town.jobs("lost"), town.jobs("older")) == (1, 1, 1)


@pytest.mark.parametrize("change", ["begun", "over"])
def test_started_or_ended_job_is_no_wake_up(town, change):
    """Its worker may be dead, or found the conversation leased, so another job is written."""
    town.write("left")
    job = town.lose()
    town.write("urgent", tap="1x")
    if change == "begun":
        town.queue.hset(f"rq:job:{job}", "status", "started")
    else:
        town.queue.delete(f"rq:job:{job}")
    assert (town.round(), town.jobs("left")) == (1, 1)


def test_foreign_job_at_the_head_is_ignored(town):
    """A planted job does not make a conversation wake again and again."""
    town.write("waits")
    town.write("decides", tap="1x")
    town.queue.lpush(QUEUE_KEY, "somebody-elses")
    assert [town.round() for _ in range(2)] == [0, 0]
    assert (town.jobs("waits"), town.jobs("decides")) == (1, 1)


def test_urgent_turn_is_not_delayed_by_a_lost_urgent_job(town):
    """Its webhook searches no queue; a lost job is written again at once."""
    for number in range(3):
        town.write(f"person {number}")
    for _ in range(2):
        town.write("decides", tap="1x")
    assert town.jobs("decides") == 1
    town.lose()
    town.queue.config_resetstat()
    town.write("decides", tap="1x")
    assert town.queue.lindex(QUEUE_KEY, 0).startswith(URGENT_JOB)
    assert town.jobs("decides") == 1
    assert "cmdstat_lpos" not in town.queue.info("commandstats")


def test_deferred_conversation_still_counts_as_waiting(town):
    """`limits.conversations` bounds those with work, even while the reaper defers them."""
    room = InboxLimits(conversations=0).per_shard
    town.mailbox._limits = InboxLimits(conversations=0)
    names = (f"person {number}" for number in range(10_000))
    same = [name for name in names if shard_of(Conversation("chat", name).id) == 7]
    assert {town.write(name) for name in same[:room]} == {"new"}
    town.round()
    assert town.write(same[room]) == "overloaded"


def test_repeated_deferral_returns_the_same(town):
    """The answer may be lost. Queued ones are deferred once more, and the others are returned again."""
    town.write("lost")
    town.lose()
    town.write("waits")
    lost, waits = (Conversation("chat", name).id for name in ("lost", "waits"))
    for name in (lost, waits):
        queued = (
            {"queued": town.server.queued(shard_of(name), [name])}
            if town.server
            else town.reaper._queue
        )
        args = {**queued, "conversations": [name]}
        without_job = [
            town.scripts.on_shard("look_again_later", shard_of(name), args) for _ in range(2)
        ]
        assert without_job == ([[lost]] * 2 if name == lost else [[], []])


def test_queue_server_that_was_emptied_loses_no_work(redis_client, redis_url, tmp_path):
    """The mailboxes still have the work. The reaper queues each conversation again, once."""
    with connect(f"{redis_url}?db=1") as queue:
        town = Town(redis_client, queue, tmp_path)
        names = [f"person {number}" for number in range(5)]
        for name in names:
            town.write(name)
        queue.flushdb()
        assert (town.round(), [town.jobs(name) for name in names]) == (5, [1] * 5)
        assert (town.round(), queue.llen(QUEUE_KEY)) == (0, 5)


def test_turns_are_accepted_while_the_queue_server_is_away(
    redis_client, redis_url, tmp_path, caplog
):
    """The log says it once, and the reaper queues the job when the server is back."""
    caplog.set_level("INFO", logger="sayso.workers.rq.jobs")
    with connect("redis://127.0.0.1:1") as away, connect(f"{redis_url}?db=1") as queue:
        town = Town(redis_client, away, tmp_path)
        assert [town.write(name) for name in ("ana", "bob", "ana")] == ["new"] * 3
        with pytest.raises(RedisError):
            town.round()
        town.server._scripts, town.queue = ShardedScripts(queue, QUEUE_SCRIPTS), queue
        assert (town.round(), town.jobs("ana"), town.jobs("bob")) == (2, 1, 1)
    assert [record.message for record in caplog.records] == ["queue.away", "queue.back"]


def test_job_on_a_queue_server_equals_the_job_on_a_single_server(redis_client, redis_url, tmp_path):
    """The server of the conversations has no key of RQ."""
    with connect(f"{redis_url}?db=1") as queue:
        town = Town(redis_client, queue, tmp_path)
        town.write("ana", tap="1x")
        (job,) = queue.lrange(QUEUE_KEY, 0, -1)
        assert SaysoJob.fetch(
            job, connection=Redis.from_url(f"{redis_url}?db=1"), serializer=JSONSerializer
        ).func_name
        assert queue.smembers("rq:queues") == {QUEUE_KEY}
    assert redis_client.keys("rq:*") == []


def test_workers_reaper_knows_the_queue(redis_client, redis_url, tmp_path):
    """The wiring passes the queue; otherwise the reaper would ask for each conversation."""
    file = tmp_path / "sayso.yaml"
    file.write_text("agent: {model: offline}\nchannels: {web: {platform: console}}\n")
    services = bootstrap(load_settings(file), data=tmp_path, redis_url=redis_url)
    queue = f"{QUEUE_KEY}-sayso"
    assert services.reaper._queue == {"job_keys": "rq:job:", "queue": queue}
    assert services.reaper._queue == WakeUps(redis_client, "sayso-sayso").queue
