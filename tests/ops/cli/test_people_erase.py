"""`sayso people erase` on WhatsApp.

A person is found by each of their ids, and no other person is.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from redis import Redis

from sayso.channels.types import Conversation, SenderIds, Turn
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import open_inbox
from sayso.ops.cli.main import main
from sayso.testing.platforms.fake_platforms import FakePlatforms
from tests.config.fake_bots import written

NUMBER = "whatsapp:+4915100000042"
ANA = "whatsapp:DE.1"
BEN = "whatsapp:DE.2"


class Bench:
    """A configuration, its Redis, and the command."""

    def __init__(self, folder: Path, platforms: FakePlatforms, client: Redis) -> None:
        self.folder = folder
        self.client = client
        self.config = written(folder, platforms)
        self.access_control, self.identities = open_inbox(load_settings(self.config), folder)

    def hear(self, event: str, text: str, user_id: str, number: str) -> None:
        """Receive a message."""
        key = self.identities.recognize("wa", SenderIds(user_id, number), store=True).key
        self.access_control.accept(
            Turn(event, Conversation("wa", key), key, text, aliases=(number,))
        )

    def erase(self, user: str) -> str:
        """Run the command. Return all that Redis holds then."""
        options = ["--config", str(self.config), "--data", str(self.folder)]
        given = ["people", "erase", "wa", user, *options]
        result = CliRunner().invoke(main, given)
        assert result.exit_code == 0, result.output
        read = {"string": self.client.get, "hash": self.client.hgetall}
        values = []
        for key in self.client.scan_iter():
            kind = self.client.type(key)
            if kind in read:
                value = read[kind](key)
            else:
                value = self.client.lrange(key, 0, -1) if kind == "list" else ""
            values.append(f"{key} {value}")
        return "\n".join(values)


@pytest.fixture
def bench(tmp_path: Path, platforms_and_redis: FakePlatforms, redis_client: Redis) -> Bench:
    """Return a bot on WhatsApp."""
    return Bench(tmp_path, platforms_and_redis, redis_client)


@pytest.mark.parametrize("user", [NUMBER, "+4915100000042", ANA, "DE.1"])
@pytest.mark.parametrize("first", ["", ANA], ids=["first without an id", "first with an id"])
def test_each_id_of_a_person_erases_all_of_the_person(bench: Bench, user: str, first: str):
    """The operator knows the number or the id.

    The conversation is stored under the one that came first.
    """
    bench.hear("e1", "plugh", first, NUMBER)
    bench.hear("e2", "plugh", ANA, NUMBER)
    left = bench.erase(user)
    assert [word for word in ("plugh", "4915100000042", "DE.1") if word in left] == []


def test_number_erases_the_person_who_has_it_now(bench: Bench):
    """Another person had it before, and their data stays. It goes by their own id."""
    bench.hear("e1", "first", "", NUMBER)
    bench.hear("e2", "first", ANA, NUMBER)
    bench.hear("e3", "second", BEN, NUMBER)
    left = bench.erase(NUMBER)
    assert ("second" in left, "first" in left) == (False, True)
    left = bench.erase(ANA)
    assert ("first" in left, "DE.1" in left, "4915100000042" in left) == (False, False, False)
