"""`sayso shards` and what else several primaries change for whoever runs commands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sayso.config.server.embedded_redis import EmbeddedRedis
from sayso.pending.redis.client import connect
from sayso.workers.recovery import Heartbeat
from tests.config.processes import Up, sayso, short_folder


@pytest.fixture
def servers() -> Iterator[dict[str, str]]:
    """The environment that names two servers."""
    with short_folder() as first, short_folder() as second:
        running = [EmbeddedRedis(first), EmbeddedRedis(second)]
        for server in running:
            server.start()
        a, b = (server.url for server in running)
        yield {"REDIS_URL": a, "REDIS_A": a, "REDIS_B": b}
        for server in running:
            server.stop()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration with two primaries."""
    path = tmp_path / "bot.yaml"
    path.write_text("shards: {a: ${REDIS_A}, b: ${REDIS_B}}\nchannels: {web: {platform: console}}\n")
    return path


@contextmanager
def living(presence: Heartbeat) -> Iterator[None]:
    """A worker that says each second that it lives, for as long as the block takes on a busy machine."""
    over = threading.Event()
    presence.beat()

    def beat() -> None:
        while not over.wait(1):
            presence.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_worker_must_be_told_its_primary(file: Path, servers: dict[str, str]):
    """The names are said."""
    for given in ([], ["--shard", "c"]):
        code, _, errors = sayso("worker", "--config", file, "--data", file.parent / "data", *given, **servers)
        assert (code, "give --shard (or SAYSO_SHARD), one of a, b" in errors) == (3, True)


def test_primary_that_is_not_configured_is_refused(tmp_path: Path, servers: dict[str, str]):
    """Without `shards` there is one Redis, and nothing to choose."""
    code, _, errors = sayso("worker", "--data", tmp_path, "--shard", "a", **servers)
    assert (code, "the configuration has no `shards`" in errors) == (3, True)
    assert "names no `shards`: there is one Redis" in sayso("shards", "status", **servers)[2]


def test_shards_move_only_to_where_somebody_works(file: Path, servers: dict[str, str]):
    """What arrives must be answered; then all of it moves, is counted, and a second run finds nothing to do."""
    common = ("--config", file, "--data", file.parent / "data")
    assert sayso("shards", "status", *common, **servers)[:2] == (0, "a: 29 shards\nb: 35 shards\n")
    code, _, errors = sayso("shards", "rebalance", "--without", "a", *common, **servers)
    assert (code, "nobody works for b: start `sayso worker --shard b` first" in errors) == (3, True)
    with connect(servers["REDIS_B"]) as client, living(Heartbeat(client, prefix="sayso:bot:")):
        code, output, _ = sayso("shards", "rebalance", "--without", "a", *common, **servers)
        assert (code, output.count("a -> b, 0 keys")) == (0, 29)
        assert output.endswith("a: 0 shards\nb: 64 shards\n")


@pytest.mark.parametrize(("given", "words"), [(["a", "b"], "no primary would be left"), (["x"], "names a, b")])
def test_primaries_left_out_are_checked(file: Path, servers: dict[str, str], given: list[str], words: str):
    """Before anything moves."""
    options = [part for name in given for part in ("--without", name)]
    code, _, errors = sayso("shards", "rebalance", "--config", file, *options, **servers)
    assert (code, words in errors) == (3, True)


def test_one_of_several_is_refused_without_shards(file: Path, servers: dict[str, str]):
    """A process with an old file would write past every gate."""
    sayso("shards", "status", "--config", file, **servers)
    old = file.with_name("old.yaml")
    old.write_text("name: bot\nchannels: {web: {platform: console}}\n")
    code, _, errors = sayso("worker", "--config", old, "--data", file.parent / "data", **servers)
    assert (code, "is primary 'a' of several: name all of them in `shards`" in errors) == (3, True)


def test_up_works_for_each_primary(file: Path, servers: dict[str, str]):
    """`--workers` is for each, and it is ready when each has one."""
    with short_folder() as data, Up(data, "--config", str(file), "--workers", "1", **servers) as up:
        up.ready()
        assert [len(up.pids(f"--shard {name}")) for name in "ab"] == [2, 2], "a worker and its parent"
        assert up.get("/readyz") == 200
        assert up.stop() == 0
