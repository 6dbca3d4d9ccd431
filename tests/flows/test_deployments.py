"""Two bots on one Redis, as real processes: each has its own name and answers only its own people."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import ENVIRON, FakePlatforms
from tests.config.processes import Up, free_port, sayso, short_folder, until

YAML = """
agent: {{model: offline}}
tools: [{tools}]
channels:
  {channel}: {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", secret_token: "${{TELEGRAM_SECRET}}",
    api_url: {url}, messages_per_second: 0}}
"""


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    """Run the one Redis of both bots."""
    with short_folder() as folder:
        running = EmbeddedRedis(folder)
        running.start()
        yield running
        running.stop()


def written(
    folder: Path, name: str, channel: str, url: str, *, tools: str = "sayso.examples.invoices"
) -> Path:
    """Write a bot's configuration file and return its path."""
    file = folder / f"{name}.yaml"
    file.write_text(YAML.format(channel=channel, url=url, tools=tools))
    return file


def post(up: Up, channel: str, number: int, text: str) -> None:
    """Send one message by webhook, each from another person."""
    update = signing.telegram_text(number, text, user=7000 + number)
    headers, body = signing.telegram_hook(ENVIRON["TELEGRAM_SECRET"], update)
    request = urllib.request.Request(f"{up.url}/hooks/{channel}", data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def test_two_bots_on_one_redis_answer_their_own_people(server: EmbeddedRedis):
    """Each bot answers its own six messages; every key and queue carries a bot's name, and one bot uses each name."""
    with (
        short_folder() as first,
        short_folder() as second,
        FakePlatforms() as ours,
        FakePlatforms() as theirs,
    ):
        shop = written(first, "shop", "shop-tg", ours.telegram_url)
        desk = written(
            second, "desk", "desk-tg", theirs.telegram_url, tools="sayso.examples.reminders"
        )
        environ = {**ENVIRON, "REDIS_URL": server.url}
        options = ("--workers", "1")
        with (
            Up(first / "data", "--config", str(shop), *options, **environ) as one,
            Up(second / "data", "--config", str(desk), *options, **environ) as two,
        ):
            one.ready()
            two.ready()
            for number in range(6):
                post(one, "shop-tg", number + 1, "find invoice INV-42")
                post(two, "desk-tg", number + 1, "hello")
            people = {str(7000 + number) for number in range(1, 7)}
            for sent in (ours, theirs):
                until(lambda sent=sent: {entry["chat"] for entry in sent.sent} == people)
            assert all("INV-42" in json.dumps(entry) for entry in ours.sent)
            assert not any("INV-42" in json.dumps(entry) for entry in theirs.sent)
            with Redis.from_url(server.url, decode_responses=True) as client:
                keys = list(client.scan_iter("*", count=1000))
                names = ("sayso:shop:", "sayso:desk:")
                assert [key for key in keys if not key.startswith((*names, "rq:"))] == []
                assert client.smembers("rq:queues") == {
                    "rq:queue:sayso-shop",
                    "rq:queue:sayso-desk",
                }
            with short_folder() as third:
                other = written(third, "shop", "other-tg", theirs.telegram_url)
                command = ("--config", other, "--data", third / "data")
                for process in (("web", "--port", free_port()), ("worker",)):
                    code, _, errors = sayso(*process, *command, **environ)
                    assert (code, "Traceback" in errors) == (3, False)
                    assert (
                        "another bot uses the name 'shop' on this Redis, with the channels shop-tg"
                        in errors
                    )
                    assert "give this configuration a `name:` of its own" in errors
