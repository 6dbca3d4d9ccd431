"""The report of a benchmark: its tables for people, and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sayso.testing.bench.run import BenchResult, best
from sayso.testing.bench.steps import Step
from sayso.testing.percentiles import percentile

#: The percentiles that are reported, by their names.
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def lines_of(result: BenchResult) -> Iterator[str]:
    """Yield the lines of the report for people."""
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
    limit = result.limit(result.turns)
    yield (
        f"{turns.per_second:,.0f} turns a second. The limit: {limit.name}. "
        f"{_sentence(limit.advice)}"
    )
    webhooks = best(result.webhooks)
    limit = result.limit(result.webhooks)
    refusals = "and none was answered 503"
    if result.webhooks[-1].refused:
        refusals = "up to the first 503"
    yield (
        f"{webhooks.per_second:,.0f} webhooks a second, {refusals}. The limit: {limit.name}. "
        f"{_sentence(limit.advice)}"
    )
    if result.half_load:
        accepted, answered = _time_texts(result.half_load, has_replies=True)
        yield (
            f"At half of the turns, {result.half_load.count:,} a second: "
            f"accepted in {accepted}, answered in {answered}."
        )


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
        "half": _step(result.half_load) if result.half_load else None,
        "webhooks": _summary(result, result.webhooks),
    }


def _summary(result: BenchResult, steps: Sequence[Step]) -> dict[str, Any]:
    """Return the best of some steps, what limited it, and all of them, for programs."""
    limit = result.limit(steps)
    return {
        "per_second": round(best(steps).per_second, 1),
        "limit": limit.name,
        "advice": limit.advice,
        "steps": [_step(step) for step in steps],
    }


def _step(step: Step) -> dict[str, Any]:
    """Return one step for programs; None stands for what is unknown."""
    usage = step.usage
    waiting = None
    if usage.waiting is not None:
        waiting = {part: round(share, 3) for part, share in usage.waiting.items()}
    return {
        "at_once": step.count,
        "per_second": round(step.per_second, 1),
        "refused": step.refused,
        "accept_ms": _percentiles(step.accept_seconds),
        "reply_ms": _percentiles(step.reply_seconds),
        "cpu": {part: round(share, 3) for part, share in usage.cpu.items()},
        "waiting": waiting,
        "machine": _rounded(usage.machine),
        "redis_disk_wait": _rounded(usage.disk_wait),
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the percentiles in milliseconds; empty without values."""
    if not seconds:
        return {}
    return {
        name: round(percentile(seconds, share) * 1000, 2) for name, share in _PERCENTILES.items()
    }


def _table(name: str, steps: Sequence[Step], *, has_replies: bool) -> Iterator[str]:
    """Yield the lines of a table with one row for each step. `name` heads the column of counts."""
    heads = [name, "a second", "accepted"]
    if has_replies:
        heads.append("answered")
    heads.append("CPU of one processor")
    rows = [heads]
    for step in steps:
        # Parts that would be shown with 0 % are left out.
        shares = [f"{part} {share:.0%}" for part, share in step.usage.cpu.items() if share >= 0.005]
        rows.append(
            [
                str(step.count),
                f"{step.per_second:,.0f}",
                *_time_texts(step, has_replies=has_replies),
                ", ".join(shares),
            ]
        )

    # Figures are aligned to the right. The last column is text, and is not padded.
    widths = [max(len(row[at]) for row in rows) for at in range(len(heads) - 1)]
    for *figures, text in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths, strict=True)]
        yield "  ".join([*cells, text])


def _time_texts(step: Step, *, has_replies: bool) -> list[str]:
    """Return the times until the webhooks were answered and, with replies, until they came."""
    texts = [_percentile_text(step.accept_seconds)]
    if has_replies:
        texts.append(_percentile_text(step.reply_seconds))
    return texts


def _percentile_text(seconds: Sequence[float]) -> str:
    """Return the percentiles of some times, such as "3.1 / 4.2 / 9.8 ms"."""
    figures = [_figure(percentile(seconds, share)) for share in _PERCENTILES.values()]
    return f"{' / '.join(figures)} ms"


def _ms(seconds: float) -> str:
    return f"{_figure(seconds)} ms"


def _figure(seconds: float) -> str:
    """Return a time in milliseconds, with three digits below a second."""
    if seconds < 1:
        return f"{seconds * 1000:.3g}"
    return f"{seconds * 1000:,.0f}"


def _sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."
