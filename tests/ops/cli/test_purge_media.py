"""`sayso channel purge-media`: inbound files are deleted at the platform once no turn needs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis import Redis

from sayso.channels.types import Conversation, Turn
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import open_inbox
from sayso.ops.cli.main import main
from sayso.pending.turn_changes import TurnChange
from sayso.pending.turns import QueuedTurn
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.server import FakeResponse
from tests.config.fake_bots import written
from tests.contracts.rigs import Blocking

ANA = "whatsapp:+4915100000042"
HOUR = 3600
ROOM = Conversation("wa", ANA)


class Bench:
    """The fake platforms, a configuration, its Redis, and the command."""

    def __init__(self, folder: Path, platforms: FakePlatforms) -> None:
        self.platforms = platforms
        self.twilio: Any = platforms.fakes["twilio"]
        self.config = written(folder, platforms)
        self.access_control, _ = open_inbox(load_settings(self.config), folder)
        self.mailbox: Any = Blocking(self.access_control._inbox)

    def send(self, hours: float, files: int = 1) -> str:
        """Send files this many hours ago."""
        names = tuple(
            (f"ME{len(self.twilio.inbound.messages):016x}{n:016x}", "image/jpeg")
            for n in range(files)
        )
        return self.twilio.inbound.arrive(ANA, "", ago=hours * HOUR, files=names)

    def take(self, sid: str, *, work: bool = True) -> None:
        """Accept the message's webhook, and process its turn."""
        self.access_control.accept(Turn(sid, ROOM, ANA, "x"))
        if not work:
            return
        held, queued = self.mailbox.lease(ROOM.id, "w1")
        assert isinstance(queued, QueuedTurn)
        self.mailbox.commit(held, queued, TurnChange(), let_go=True)

    def run(self, *args: object) -> tuple[int, str]:
        """Return exit code and output."""
        given = ["channel", "purge-media", "wa", *map(str, args), "--config", str(self.config)]
        result = CliRunner().invoke(main, given)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    @property
    def left(self) -> list[int]:
        """Return the number of files of each message at Twilio."""
        return [len(message["files"]) for message in self.twilio.inbound.messages]


@pytest.fixture
def bench(tmp_path: Path, platforms_and_redis: FakePlatforms) -> Bench:
    """Return an account with a list of messages."""
    return Bench(tmp_path, platforms_and_redis)


def test_files_of_finished_turns_are_deleted_once(bench: Bench):
    """platforms.md 1.2: Twilio keeps a file until it is deleted. A second run finds none."""
    bench.take(bench.send(30, files=2))
    bench.take(bench.send(20))
    code, words = bench.run()
    assert (code, bench.left, "2 files deleted at the platform" in words) == (0, [0, 1], True)
    assert bench.run() == (0, "0 files deleted at the platform\n")


def test_dry_run_deletes_nothing(bench: Bench):
    """It counts the files of each day."""
    bench.take(bench.send(30))
    words = bench.run("--dry-run")[1]
    assert ("UTC: 1 to delete" in words, "1 files would be deleted" in words, bench.left) == (
        True,
        True,
        [1],
    )


def test_file_of_a_waiting_turn_is_kept(bench: Bench):
    """platforms.md 1.2: the workers may be down for days, and a repeated turn must find the file too."""
    bench.take(bench.send(30), work=False)
    assert "1 kept for turns that wait" in bench.run()[1]
    assert bench.left == [1]
    bench.mailbox.lease(ROOM.id, "w1")
    assert "1 kept for turns that wait" in bench.run()[1]


def test_file_of_a_turn_that_waits_very_long_is_kept(bench: Bench, redis_client: Redis):
    """This holds even after the event id has expired."""
    bench.take(bench.send(100), work=False)
    (seen,) = redis_client.keys("sayso:*:event:*")
    redis_client.delete(seen)
    assert "1 kept for turns that wait" in bench.run()[1]


def test_file_of_a_missed_message_is_kept(bench: Bench):
    """It is kept for as long as the message can be recovered."""
    bench.send(30)
    bench.send(80)
    assert "1 kept that `sayso channel recover` may take" in bench.run()[1]
    assert bench.left == [1, 0]


def test_new_files_stay_for_any_option(bench: Bench):
    """Their turns may have just started."""
    bench.take(bench.send(0.5))
    code, words = bench.run("--older", "30m")
    assert (code, "write --older 1h or more" in words, bench.left) == (3, True, [1])


def test_older_files_are_reached_by_an_option(bench: Bench):
    """The default is a week."""
    bench.send(24 * 20)
    assert (bench.run()[1], bench.left) == ("0 files deleted at the platform\n", [1])
    assert "1 files deleted" in bench.run("--back", "30d")[1]
    assert bench.left == [0]


def test_file_deleted_meanwhile_is_no_error(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Two commands at once are no error: Twilio's 404 means that the file is gone."""
    bench.send(80)
    answer_media = bench.twilio.inbound._answer_media

    def raced(call: Any, sid: str, file_id: str | None) -> Any:
        answer = answer_media(call, sid, file_id)
        if not file_id:
            bench.twilio.inbound.messages.clear()
        return answer

    monkeypatch.setattr(bench.twilio.inbound, "_answer_media", raced)
    assert bench.run()[0] == 0


def test_wrong_token_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 1.4: the error comes before any deletion."""
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", "wrong-auth-token")
    code, words = bench.run()
    assert (code, "does not take account_sid and auth_token" in words) == (3, True)


def test_deleted_files_are_in_the_json_although_twilio_fails_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """They are gone for good. The exit code tells of the error."""
    bench.take(bench.send(24 * 5))
    failing = bench.send(30)
    bench.take(failing)
    answer_media = bench.twilio.inbound._answer_media

    def answer(call: Any, sid: str, file_id: str | None) -> Any:
        if sid == failing:
            return FakeResponse(500, b"{}")
        return answer_media(call, sid, file_id)

    monkeypatch.setattr(bench.twilio.inbound, "_answer_media", answer)
    code, words = bench.run("--json")
    assert (code, json.loads(words.partition("Error: ")[0])["deleted"]) == (3, 1)
    assert bench.left == [0, 1]


@pytest.mark.parametrize("span", [("--back", "999999d"), ("--older", "999999d")])
def test_impossible_span_is_refused(bench: Bench, span: tuple[str, str]):
    """No date is that long ago. The error names the cure, without a traceback."""
    code, words = bench.run(*span)
    assert (code, "write --back 400d for all" in words) == (3, True)
