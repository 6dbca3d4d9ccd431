"""The command `sayso bench`: measure how much this machine takes, and what limits it."""

from __future__ import annotations

import shutil

import click

from sayso.ops.cli.command import Options, SaysoCommand, fail, pass_options


@click.command(
    cls=SaysoCommand,
    examples=[
        "sayso bench",
        "sayso bench --workers 4 --webs 2 --seconds 120",
        "sayso bench -c sayso.yaml --json",
    ],
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=6, max=3600),
    default=60.0,
    show_default=True,
    help="How long to measure.",
)
@click.option(
    "--webs", type=click.IntRange(1, 8), default=1, show_default=True, help="Web processes."
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes."
)
@click.option(
    "--redis",
    "redis_url",
    default="",
    help="The URL of a Redis to measure.  [default: a server that this command starts]",
)
@pass_options
def bench(options: Options, seconds: float, webs: int, workers: int, redis_url: str) -> None:
    """Measure how many webhooks and turns a second this machine takes, and name what limits it.

    It starts Redis, web and worker processes, and sends them messages from a fake Slack. The model
    is a script. It touches nothing of a bot: with --config it only takes `workers` and `spool` from
    the file. On a Redis that is named with --redis it writes keys that begin with `bench-`, and
    removes them. --data names the folder whose disk is measured; without it the folder is
    temporary.
    """
    from redis.exceptions import RedisError

    from sayso.infra.redis.checks import explain
    from sayso.ops.server.embedded_redis import EmbeddedRedisError
    from sayso.testing.bench.report import as_json, lines_of
    from sayso.testing.bench.run import Bench, BenchPlan
    from sayso.testing.simulation.processes import BotNotRunning

    # Without a configuration the defaults of `workers` and `spool` are measured.
    settings = None
    if options.config:
        settings = options.load(prefer_running=False, without_secrets=True)
    folder = options.new_folder("sayso-bench-")
    options.say(
        f"measuring for {seconds:g} s with {webs} web and {workers} worker processes; "
        f"data in {folder}"
    )
    plan = BenchPlan(
        seconds=seconds,
        webs=webs,
        workers=workers,
        settings=settings,
        redis_url=redis_url,
    )
    try:
        result = Bench(plan, folder, options.say).run()
    except (BotNotRunning, EmbeddedRedisError) as exc:
        # The folder stays, because it has the log.
        fail(str(exc))
    except ValueError as exc:
        # The URL of Redis is not valid.
        shutil.rmtree(folder, ignore_errors=True)
        fail(f"--redis: {exc}")
    except RedisError as exc:
        shutil.rmtree(folder, ignore_errors=True)
        server = "--redis" if redis_url else "the Redis of this run"
        fail(explain(exc, server).says)
    except BaseException:
        # Such as Ctrl-C.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    options.print(as_json(result), ["", *lines_of(result)])
    shutil.rmtree(folder, ignore_errors=True)
