"""`sayso redis`: an operator sees what a server lost, and resumes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from sayso.infra.redis.client import connect
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.pending.sharded_scripts import SHARDS
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.watermarks import FILE, HaltReason, WatermarkFile, keys_of
from tests.config.processes import sayso, short_folder

#: The key prefix of a bot whose file is bot.yaml.
PREFIX = "sayso:bot:"
WRITE_COUNTER, IDENTITIES, HALTED = keys_of(7, PREFIX)


@pytest.fixture
def clients() -> Iterator[dict[str, Redis]]:
    """Return clients of two servers."""
    with short_folder() as first, short_folder() as second:
        running = {"a": EmbeddedRedis(first), "b": EmbeddedRedis(second)}
        for server in running.values():
            server.start()
        yield {name: connect(server.url) for name, server in running.items()}
        for server in running.values():
            server.stop()


def environ(clients: dict[str, Redis]) -> dict[str, str]:
    """Return the environment that names them."""
    urls = {
        name: f"unix://{c.connection_pool.connection_kwargs['path']}" for name, c in clients.items()
    }
    return {"REDIS_URL": urls["a"], "REDIS_A": urls["a"], "REDIS_B": urls["b"]}


def used(client: Redis, data: Path) -> None:
    """Use the server as a process does, with a watermark in the data folder."""
    state = data / "bots" / "bot"
    state.mkdir(parents=True, exist_ok=True)
    guard = DataLossGuard(client, WatermarkFile(state / FILE), prefix=PREFIX)
    guard.check_server()
    client.incrby(WRITE_COUNTER, 7)
    DataLossGuard(client, WatermarkFile(state / FILE), prefix=PREFIX).check_server()


def test_redis_emptied_on_purpose_is_resumed_by_one_command(
    tmp_path: Path, clients: dict[str, Redis]
):
    """No process runs and none halted it, but the data folder has the watermark. A second run finds nothing to do."""
    common = ("--config", _config(tmp_path), "--data", tmp_path)
    used(clients["a"], tmp_path)
    clients["a"].flushall()
    code, output, _ = sayso("redis", "status", *common, **environ(clients))
    assert (code, "redis: halted: everything it knew is gone (7 writes)" in output) == (1, True)
    code, output, _ = sayso("redis", "resume", *common, **environ(clients))
    assert (code, output.startswith("redis: goes on; everything it knew is gone")) == (0, True)
    assert sayso("redis", "resume", *common, **environ(clients))[:2] == (0, "redis: not halted\n")
    assert sayso("redis", "status", *common, **environ(clients))[:2] == (0, "redis: whole\n")


def test_unfinished_restore_is_named(tmp_path: Path, clients: dict[str, Redis]):
    """Only a repeated restore brings what is missing, and no resume."""
    common = ("--config", _config(tmp_path), "--data", tmp_path)
    clients["a"].set(HALTED, HaltReason("", 0, 0, backup_taken_at=1795737600.5).to_json())
    code, output, _ = sayso("redis", "status", *common, **environ(clients))
    expected = "redis: halted: a restore of the backup of 2026-11-27 00:00:00 UTC has not ended, so a part of it is missing"
    assert (code, output.splitlines()[0]) == (1, expected)
    assert "run `sayso restore` again" in output
    code, _, errors = sayso("redis", "resume", *common, **environ(clients))
    assert (code, "run `sayso restore` again" in errors) == (3, True)


def test_deliveries_of_a_halted_redis_name_the_cure(tmp_path: Path, clients: dict[str, Redis]):
    """Every command that needs it names the cause, without a traceback."""
    for shard in range(SHARDS):
        clients["a"].set(keys_of(shard, PREFIX).halted, "{}")
    code, _, errors = sayso(
        "deliveries", "list", "--config", _config(tmp_path), "--data", tmp_path, **environ(clients)
    )
    assert (code, "sayso redis resume" in errors, "Traceback" in errors) == (3, True, False)


def _config(folder: Path) -> Path:
    path = folder / "bot.yaml"
    path.write_text("channels: {web: {platform: console}}\n")
    return path
