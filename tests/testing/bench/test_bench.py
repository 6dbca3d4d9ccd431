"""`sayso bench` with real processes: a short run on a given Redis, whose other keys stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redis import Redis

from sayso.testing.bench.report import as_json, lines_of
from sayso.testing.bench.run import PEOPLE, Bench, BenchPlan
from tests.config.processes import sayso


@pytest.mark.slow
def test_short_run_measures_everything_and_leaves_no_key(
    redis_client: Redis, redis_url: str, tmp_path: Path
) -> None:
    """Keys of other programs stay."""
    redis_client.set("sayso:shop:something", "of a bot")
    redis_client.hset("rq:job:process-of-a-bot", "origin", "sayso-shop")
    said: list[str] = []
    result = Bench(BenchPlan(seconds=2.4, redis_url=redis_url), tmp_path, said.append).run()
    left = {key.decode() if isinstance(key, bytes) else key for key in redis_client.scan_iter("*")}
    assert {key for key in left if not key.startswith("rq:clean")} == {
        "sayso:shop:something",
        "rq:job:process-of-a-bot",
    }
    assert len(said) == 2 * len(PEOPLE) + 1
    report = json.loads(json.dumps(as_json(result)))
    for part in ("turns", "webhooks"):
        assert report[part]["per_second"] > 1
        assert report[part]["limit"]
        assert [step["at_once"] for step in report[part]["steps"]] == list(PEOPLE)
    answered = report["half"]["reply_ms"]
    assert (
        0
        < report["half"]["accept_ms"]["p50"]
        < answered["p50"]
        <= answered["p95"]
        <= answered["p99"]
    )
    text = "\n".join(lines_of(result))
    assert "turns a second. The limit: " in text
    assert "none was answered 503" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--redis", "redis://:top-secret@127.0.0.1:1/0"], "--redis: nothing listens there"),
        (["--redis", "http://127.0.0.1"], "--redis: begins with 'http': no URL of a Redis"),
        (["-c", "nowhere.yaml"], "nowhere.yaml: no such file"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    arguments: list[str], told: str, tmp_path: Path
) -> None:
    """The folder stays empty, and no password is printed."""
    code, output, errors = sayso("bench", *arguments, "--data", tmp_path / "data")
    assert code == 3
    assert told in errors
    assert "top-secret" not in output + errors
    assert not list((tmp_path / "data").glob("*"))
