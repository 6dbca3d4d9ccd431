"""docs/how-to/size-a-bot.md: RQ's own worker, started as the page says, works on our conversations and on nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from rq import Queue
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.types import Conversation, Turn
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import Services, bootstrap
from sayso.workers.rq.jobs import QUEUE
from tests.docs.pages import part

ROOT = Path(__file__).parents[2]
PAGE = part("size-a-bot.md")
YAML = "agent: {model: offline}\nchannels: {web: {platform: console}}\n"
ROOM = Conversation("web", "u1")


@pytest.fixture
def bare(redis_client: Redis, redis_url: str) -> Iterator[Redis]:
    """A client as RQ wants it, of an empty Redis."""
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def web(tmp_path: Path, bare: Redis, redis_url: str) -> Services:
    """The web process of a bot whose YAML and data are where the page says."""
    (tmp_path / "sayso.yaml").write_text(YAML)
    return bootstrap(
        load_settings(tmp_path / "sayso.yaml"), data=tmp_path / ".sayso", redis_url=redis_url
    )


@pytest.fixture
def work(tmp_path: Path, redis_url: str) -> Callable[[], str]:
    """Runs the page's command line, to the letter, until the queue is empty. Returns its log."""
    (command,) = re.findall(r"^    (SAYSO_CONFIG=.*\\\n.*rq worker .*)$", PAGE, re.MULTILINE)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": tools, "PYTHONPATH": str(ROOT), "REDIS_URL": redis_url}

    def run() -> str:
        whole = ["sh", "-c", f"{command} --burst"]
        return subprocess.run(
            whole, cwd=tmp_path, env=environ, check=True, text=True, capture_output=True
        ).stderr

    return run


def failed(bare: Redis) -> list[str]:
    """The jobs that RQ keeps as failed."""
    return FailedJobRegistry(
        f"{QUEUE}-sayso", connection=bare, serializer=JSONSerializer
    ).get_job_ids()


def said(web: Services) -> list[str]:
    """What the page shows of the conversation, by kind."""
    channel = web.channels["web"]
    assert isinstance(channel, ConsoleChannel)
    return [entry["type"] for _, entry in channel.feed.read(ROOM.id, "", 0)]


def test_plain_rq_worker_answers(web: Services, work: Callable[[], str], bare: Redis) -> None:
    """What the web accepted is answered, and nothing of the job is left. On a machine that stood still for longer than
    a lease, the worker leaves the conversation, and another process wakes it."""
    web.access_control.accept(Turn("e1", ROOM, "u1", "hello"))
    log, until = work(), time.monotonic() + 60
    while "bubble" not in said(web) and time.monotonic() < until:
        web.reaper.round()
        log += work()
    assert said(web)[-1] == "bubble", log
    assert (failed(bare), bare.keys("rq:job:*")) == ([], [])


def test_plain_rq_worker_runs_nothing_else(
    work: Callable[[], str], bare: Redis, tmp_path: Path
) -> None:
    """A job in Redis may name any function: the worker files it as failed."""
    struck = tmp_path / "struck"
    job = Queue(f"{QUEUE}-sayso", connection=bare, serializer=JSONSerializer).enqueue(
        "os.mkdir", str(struck)
    )
    work()
    assert (failed(bare), struck.exists()) == ([job.id], False)
