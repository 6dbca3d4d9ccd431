"""Ingest: CPU time of one webhook in the WSGI app, Sayso's and a plain one, for signed messages of three platforms."""

from __future__ import annotations

import io
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from flask import Flask
from redis import Redis

from benchmarks.peers import peer_app, with_enqueue, with_script
from benchmarks.stack import Stack
from benchmarks.table import Row
from sayso.channels.slack.incoming import slack_hook
from sayso.channels.telegram.incoming import telegram_hook
from sayso.channels.types import SignedWebhook
from sayso.channels.whatsapp.incoming import whatsapp_hook
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.wiring.observability import set_up_logs
from sayso.config.wiring.wsgi import build_app
from sayso.testing.bench.load import event
from sayso.testing.platforms.fake_platforms import (
    ENVIRON,
    SLACK_SIGNING_SECRET,
    TELEGRAM_SECRET,
    TWILIO_ACCOUNT_SID,
    TWILIO_AUTH_TOKEN,
)
from sayso.testing.platforms.webhooks import telegram_text, whatsapp_text

ROUNDS = 9
CALLS = 100
TEXT = "please delete invoice INV-42"

Environ = dict[str, object]
OURS, FLOOR, ENQUEUE = "ours", "one EVALSHA", "SET NX + enqueue"


def ingest(stack: Stack) -> list[Row]:
    """Interleave the apps and the platforms. Each webhook is new, from one of a thousand chats."""
    apps, numbers = _apps(stack), count(1)
    hooks = {
        "slack": lambda number: ("desk", _slack(number)),
        "telegram": lambda number: ("ops-tg", _telegram(number)),
        "whatsapp": lambda number: ("shop-wa", _whatsapp(number, stack.public_url)),
    }
    costs: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for platform, make in hooks.items():
            for name, app in apps.items():
                environs = [_environ(*make(next(numbers))) for _ in range(CALLS)]
                costs.setdefault((platform, name), []).append(cpu_us(app, environs))
    medians = {key: statistics.median(rounds) for key, rounds in costs.items()}
    return [row for platform in hooks for row in _rows(platform, medians)] + _goals(medians)


def cpu_us(app: Flask, environs: list[Environ]) -> float:
    """Return microseconds of this thread's CPU time per request. Raises AssertionError unless all answers are 200."""
    statuses: list[str] = []
    started = time.thread_time()
    for environ in environs:
        _exhaust(app(environ, lambda status, *_: statuses.append(status)))  # type: ignore[arg-type]
    spent = time.thread_time() - started
    assert all(status.startswith("200") for status in statuses), statuses
    return spent / len(environs) * 1e6


def our_app(stack: Stack) -> Flask:
    """Return Sayso's app as `sayso web` builds it. Its log lines are formatted and discarded."""
    os.environ.update({**ENVIRON, "REDIS_URL": stack.redis.url})
    set_up_logs()
    for handler in logging.getLogger().handlers:
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(open(os.devnull, "w"))  # noqa: SIM115, PTH123  # for as long as the process lives
    services = bootstrap(
        load_settings(stack.config), data=stack.folder, public_url=stack.public_url
    )
    return build_app(services)


def _apps(stack: Stack) -> dict[str, Flask]:
    client = Redis.from_url(stack.redis.url)
    return {
        OURS: our_app(stack),
        FLOOR: peer_app(with_script(client), stack.public_url),
        ENQUEUE: peer_app(with_enqueue(client), stack.public_url),
    }


def _rows(platform: str, medians: dict[tuple[str, str], float]) -> Iterator[Row]:
    ours = medians[platform, OURS]
    for peer in (FLOOR, ENQUEUE):
        beside = medians[platform, peer]
        ratio = ours / beside if peer == FLOOR else beside / ours
        yield Row(f"ingest CPU, {platform}, to {peer}", f"{ours:.0f} us", f"{beside:.0f} us", ratio)


def _goals(medians: dict[tuple[str, str], float]) -> list[Row]:
    """Return the rows with goals: the mean of the three platforms."""
    mean: Callable[[str], float] = lambda name: statistics.mean(  # noqa: E731
        cost for (_, app), cost in medians.items() if app == name
    )
    ours, floor, enqueue = map(mean, (OURS, FLOOR, ENQUEUE))
    return [
        Row(
            "ingest CPU per webhook, to Flask + verify + one EVALSHA",
            f"{ours:.0f} us",
            f"{floor:.0f} us",
            ours / floor,
            1.3,
        ),
        Row(
            "ingest CPU per webhook, Flask + verify + SET NX + enqueue to it",
            f"{ours:.0f} us",
            f"{enqueue:.0f} us",
            enqueue / ours,
            1.8,
            at_least=True,
        ),
    ]


def _environ(path: str, signed: SignedWebhook) -> Environ:
    headers, body = signed
    environ: Environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": f"/hooks/{path}",
        "RAW_URI": f"/hooks/{path}",
        "QUERY_STRING": "",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8000",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "HTTP_HOST": "127.0.0.1:8000",
        "HTTP_USER_AGENT": "Bench/1.0",
        "HTTP_ACCEPT": "*/*",
        "HTTP_ACCEPT_ENCODING": "gzip,deflate",
    }
    named = {name.upper().replace("-", "_"): value for name, value in headers.items()}
    return environ | {
        name if name == "CONTENT_TYPE" else f"HTTP_{name}": value for name, value in named.items()
    }


def _exhaust(answer: Iterable[bytes]) -> None:
    for _ in answer:
        pass
    if hasattr(answer, "close"):
        answer.close()


def _slack(number: int) -> SignedWebhook:
    return slack_hook(
        SLACK_SIGNING_SECRET, event(f"D{number % 1000:06}", TEXT, number), time.time()
    )


def _telegram(number: int) -> SignedWebhook:
    return telegram_hook(
        TELEGRAM_SECRET, telegram_text(number, TEXT, user=5_000_000_000 + number % 1000)
    )


def _whatsapp(number: int, public_url: str) -> SignedWebhook:
    user = f"whatsapp:+49151{number % 1000:08}"
    form = whatsapp_text(f"SM{number:032x}", TEXT, account_sid=TWILIO_ACCOUNT_SID, user=user)
    return whatsapp_hook(f"{public_url}/hooks/shop-wa", TWILIO_AUTH_TOKEN, form)
