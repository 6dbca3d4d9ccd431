"""Signs of life: how soon a person sees that the bot works, and the first words of its answer.

    python -m benchmarks.signs

Each figure is the time from the webhook to the call that arrives at a fake platform, through web,
Redis and worker. `benchmarks.price` has it in its table.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.stack import PATIENCE, Stack
from benchmarks.table import HEAD, Row, show
from benchmarks.thinker import COMMAND, WORDS
from sayso.channels.types import SignedWebhook
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import (
    SLACK_SIGNING_SECRET,
    TELEGRAM_SECRET,
    FakePlatforms,
)

#: Messages that are measured on each platform, after one that is not.
MESSAGES = 10
#: Seconds that the model thinks.
MODEL_SECONDS = 0.5
#: The most seconds until Slack shows that the bot thinks.
SLACK_GOAL = 0.3
#: The most seconds until Telegram shows the first words.
TELEGRAM_GOAL = 0.6
#: Seconds between two looks at what a platform got.
LOOK_SECONDS = 0.001
TEXT = f"{COMMAND}{MODEL_SECONDS}"


def main() -> None:
    """Print the table."""
    print(HEAD)
    with signs_stack() as (stack, platforms):
        slack = slack_status_seconds(stack, platforms)
        telegram = telegram_words_seconds(stack, platforms)
    show(
        [
            _row("Slack, direct message: first sign of life", slack, SLACK_GOAL),
            _row(f"Telegram: first words, model of {MODEL_SECONDS:g} s", telegram, TELEGRAM_GOAL),
        ]
    )


@contextmanager
def signs_stack() -> Iterator[tuple[Stack, FakePlatforms]]:
    """Run web, worker and Redis beside fake platforms. Telegram streams the answers."""
    with (
        FakePlatforms() as platforms,
        tempfile.TemporaryDirectory(prefix="sayso-bench-") as folder,
        Stack(Path(folder), platforms.url) as stack,
    ):
        text = stack.config.read_text()
        for name, streaming in (("slack", "false"), ("telegram", "true"), ("twilio", "false")):
            ours = f'api_url: "{platforms.url}/{name}", streaming: {streaming}'
            text = text.replace(f'api_url: "{platforms.url}"', ours, 1)
        stack.config.write_text(text)
        stack.web()
        stack.worker()
        yield stack, platforms


def slack_status_seconds(stack: Stack, platforms: FakePlatforms) -> float:
    """Return the median seconds until Slack shows "Working…" below a direct message."""

    def hook(number: int) -> tuple[str, SignedWebhook]:
        ts = f"{1795204800 + number}.000100"
        body = signing.slack_text(ts, TEXT, channel=f"D{number:08}", channel_type="im")
        return "desk", signing.slack_hook(SLACK_SIGNING_SECRET, body, time.time())

    def shows_sign() -> bool:
        return any(call["method"] == "agents.sessions.setStatus" for call in list(platforms.calls))

    return _median(stack, platforms, hook, shows_sign, lambda: bool(platforms.sent))


def telegram_words_seconds(stack: Stack, platforms: FakePlatforms) -> float:
    """Return the median seconds until Telegram shows the first words in a private chat."""

    def hook(number: int) -> tuple[str, SignedWebhook]:
        update = signing.telegram_text(number, TEXT, user=5_000_000_000 + number)
        return "ops-tg", signing.telegram_hook(TELEGRAM_SECRET, update)

    def shows_words() -> bool:
        is_native = any(call["method"] == "sendMessageDraft" for call in list(platforms.calls))
        return is_native or bool(platforms.sent)

    def is_over() -> bool:
        return bool(platforms.sent) and platforms.sent[-1]["text"].count(WORDS[0]) == len(WORDS)

    return _median(stack, platforms, hook, shows_words, is_over)


def _median(
    stack: Stack,
    platforms: FakePlatforms,
    hook: Callable[[int], tuple[str, SignedWebhook]],
    shows_sign: Callable[[], bool],
    is_over: Callable[[], bool],
) -> float:
    """Send messages of different people, one after the other, and await the sign of each.

    Return the median seconds.
    """
    seconds = []
    with httpx.Client(base_url=stack.public_url) as web:
        for number in range(1, MESSAGES + 2):
            channel, (headers, body) = hook(number)
            platforms.log.reset()
            began = time.perf_counter()
            web.post(f"/hooks/{channel}", content=body, headers=headers).raise_for_status()
            while not shows_sign():
                if time.perf_counter() - began > PATIENCE:
                    raise TimeoutError(f"{channel} showed nothing in {PATIENCE:g} s")
                time.sleep(LOOK_SECONDS)
            seconds.append(time.perf_counter() - began)
            while not is_over():  # so that turns do not overlap
                time.sleep(LOOK_SECONDS)
    return statistics.median(seconds[1:])


def _row(what: str, seconds: float, goal: float) -> Row:
    return Row(what, f"{seconds:.3f} s", f"{goal:g} s", seconds / goal, 1.0)


if __name__ == "__main__":
    main()
