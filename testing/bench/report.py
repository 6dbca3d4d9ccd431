"""The report of a benchmark: its tables for people, and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sayso.testing.bench.meters import percentile
from sayso.testing.bench.run import BenchResult, best
from sayso.testing.bench.steps import Step

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def lines_of(result: BenchResult) -> Iterator[str]:
    """Yield the lines of the report."""
    redis = result.redis
    yield f"round trip to Redis {_ms(redis.round_trip)}, a write to it {_ms(redis.write)}"
    yield f"a write to the disk {_ms(result.fsync_seconds)}"
    yield ""
    yield "turns, from webhook to reply; times are p50 / p95 / p99"
    yield from _table("people", result.turns, has_replies=True)
    yield ""
    yield "webhooks, with no worker running"
    yield from _table("connections", result.webhooks, has_replies=False)
    yield ""
    turns = best(result.turns)
    webhooks = best(result.webhooks)
    limit = result.limit(result.turns)
    yield f"{turns.per_second:,.0f} turns a second. The limit: {limit.name}. {_sentence(limit.advice)}"
    limit = result.limit(result.webhooks)
    if result.webhooks[-1].refused:
        refused = "up to the first 503"
    else:
        refused = "and none was answered 503"
    yield f"{webhooks.per_second:,.0f} webhooks a second, {refused}. The limit: {limit.name}. {_sentence(limit.advice)}"
    if result.half:
        times = _times(result.half, has_replies=True)
        yield f"At half of the turns, {result.half.at_once:,} a second: accepted in {times[0]}, answered in {times[1]}."


def as_json(result: BenchResult) -> dict[str, Any]:
    """Return the report for programs. Times are in milliseconds, shares of CPU of one processor."""
    plan = result.plan
    return {
        "seconds": plan.seconds,
        "webs": plan.webs,
        "workers": plan.workers,
        "redis": "given" if plan.redis_url else "own",
        "redis_round_trip_ms": round(result.redis.round_trip * 1000, 3),
        "redis_write_ms": round(result.redis.write * 1000, 3),
        "fsync_ms": round(result.fsync_seconds * 1000, 3),
        "turns": _summary(result, result.turns),
        "half": _step(result.half) if result.half else None,
        "webhooks": _summary(result, result.webhooks),
    }


def _summary(result: BenchResult, steps: Sequence[Step]) -> dict[str, Any]:
    limit = result.limit(steps)
    return {
        "per_second": round(best(steps).per_second, 1),
        "limit": limit.name,
        "advice": limit.advice,
        "steps": [_step(step) for step in steps],
    }


def _step(step: Step) -> dict[str, Any]:
    usage = step.usage
    return {
        "at_once": step.at_once,
        "per_second": round(step.per_second, 1),
        "refused": step.refused,
        "accept_ms": _percentiles([each.accept_seconds for each in step.exchanges]),
        "reply_ms": _percentiles(
            [each.reply_seconds for each in step.exchanges if each.reply_seconds]
        ),
        "cpu": {name: round(share, 3) for name, share in usage.cpu.items()},
        "waiting": usage.waiting
        and {name: round(share, 3) for name, share in usage.waiting.items()},
        "machine": usage.machine and round(usage.machine, 3),
        "redis_disk_wait": usage.disk_wait and round(usage.disk_wait, 3),
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    if seconds:
        return {
            name: round(percentile(seconds, share) * 1000, 2) for name, share in _SHARES.items()
        }
    return {}


def _table(name: str, steps: Sequence[Step], *, has_replies: bool) -> Iterator[str]:
    heads = [
        name,
        "a second",
        "accepted",
        *(["answered"] if has_replies else []),
        "CPU of one processor",
    ]
    rows = [heads]
    for step in steps:
        cpu = ", ".join(
            f"{part} {share:.0%}" for part, share in step.usage.cpu.items() if share >= 0.005
        )
        figures = [
            str(step.at_once),
            f"{step.per_second:,.0f}",
            *_times(step, has_replies=has_replies),
            cpu,
        ]
        rows.append(figures)
    widths = [max(len(row[at]) for row in rows) for at in range(len(heads) - 1)]
    for row in rows:
        yield "  ".join(
            [*(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]
        )


def _times(step: Step, *, has_replies: bool) -> list[str]:
    accepted = [each.accept_seconds for each in step.exchanges]
    answered = [each.reply_seconds for each in step.exchanges if each.reply_seconds]
    return [_three(accepted), *([_three(answered)] if has_replies else [])]


def _three(seconds: Sequence[float]) -> str:
    return " / ".join(_figure(percentile(seconds, share)) for share in _SHARES.values()) + " ms"


def _ms(seconds: float) -> str:
    return f"{_figure(seconds)} ms"


def _figure(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g}"
    return f"{seconds * 1000:,.0f}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
