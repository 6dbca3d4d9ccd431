"""What it costs to accept one webhook, beside the cheapest script and RQ's own enqueue, in one run.

    make bench

Rounds are interleaved and only ratios count: two runs on a busy machine differ by more than the candidates do.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Turn
from sayso.infra.redis.client import connect
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.mailbox import RedisMailbox
from sayso.workers.rq.jobs import PROCESS_CONVERSATION, WakeUps
from sayso.workers.scripts import CONVERSATION_SCRIPTS

ROUNDS = 7
CALLS = 300

Case = Callable[[int], object]


def cases(url: str) -> dict[str, Case]:
    """Return the candidates. Each takes the number of a message and stores the message durably, once."""
    client = connect(url)
    mailbox = RedisMailbox(
        ShardedScripts(client, CONVERSATION_SCRIPTS),
        lambda turn: texts_for(turn.language),
        WakeUps(client),
    )
    bytes_client = Redis.from_url(url)
    queue = Queue("bench", connection=bytes_client, serializer=JSONSerializer)
    push = client.register_script(
        "if redis.call('SET', KEYS[1], 1, 'NX', 'PX', 60000) then redis.call('RPUSH', KEYS[2], ARGV[1]) end return 1"
    )

    def turn(number: int) -> Turn:
        return Turn(
            f"event-{number}",
            Conversation("bench", f"chat-{number}"),
            "user",
            "delete invoice INV-42",
        )

    def floor(number: int) -> object:
        return push(keys=[f"bench:seen:{number}", "bench:list"], args=[turn(number).to_json()])

    def accept(number: int) -> object:
        return mailbox.accept(turn(number))

    def enqueue(number: int) -> object:
        if bytes_client.set(f"bench:once:{number}", 1, nx=True, px=60000):
            return queue.enqueue(PROCESS_CONVERSATION, turn(number).to_json(), result_ttl=0)
        return None

    return {
        "one script: SET NX + RPUSH (floor)": floor,
        "accept": accept,
        "SET NX + RQ enqueue": enqueue,
    }


def main() -> None:
    """Print the median microseconds per message and the ratio to the floor."""
    with tempfile.TemporaryDirectory(prefix="sayso-bench-") as folder:
        redis = EmbeddedRedis(Path(folder))
        redis.start()
        try:
            report(measure(cases(redis.url)))
        finally:
            redis.stop()


def measure(candidates: dict[str, Case]) -> dict[str, float]:
    """Return the median over the rounds of each candidate's mean microseconds per call."""
    numbers = itertools.count()
    rounds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, call in candidates.items():
            started = time.perf_counter()
            for _ in range(CALLS):
                call(next(numbers))
            rounds[name].append((time.perf_counter() - started) / CALLS * 1e6)
    return {name: statistics.median(times) for name, times in rounds.items()}


def report(medians: dict[str, float]) -> None:
    """Print a line for each candidate."""
    floor = next(iter(medians.values()))
    print(f"{'keeping one message, Redis appendfsync always':<46} {'us':>8} {'x floor':>8}")
    for name, microseconds in medians.items():
        print(f"{name:<46} {microseconds:>8.0f} {microseconds / floor:>8.2f}")


if __name__ == "__main__":
    main()
