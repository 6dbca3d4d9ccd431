"""`sayso channel recover`: what no webhook told is taken once, and what was turned away rightly stays away."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sayso.channels.types import Conversation, Turn
from sayso.channels.whatsapp import message_log as recovery
from sayso.channels.whatsapp import message_log as twilio_list
from sayso.channels.whatsapp.adapter import WhatsAppChannel
from sayso.channels.whatsapp.settings import WhatsAppSettings
from sayso.config.cli.main import main
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import open_inbox
from sayso.pending.concurrency import run_without_loop
from sayso.pending.turns import QueuedTurn
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.server import FakeResponse
from sayso.testing.platforms.twilio import SERVICE_SID
from sayso.workers.mailbox import RedisMailbox
from tests.channels.parts import adapter_deps
from tests.config.fake_bots import ENVIRON, written

ANA, BEN = "whatsapp:+4915100000042", "whatsapp:+4915100000043"
HIDDEN = "whatsapp:DE.1234567890"


class Bench:
    """The fakes, a configuration, its Redis, and the command."""

    def __init__(self, folder: Path, platforms: FakePlatforms) -> None:
        self.folder, self.platforms = folder, platforms
        self.twilio: Any = platforms.fakes["twilio"]
        self.arrive = self.twilio.inbound.arrive
        self.configure()

    def configure(self, more: str = "") -> None:
        """Write the configuration anew."""
        self.config = written(self.folder, self.platforms, whatsapp=more)
        self.access_control, self.notes = open_inbox(load_settings(self.config), self.folder)

    def run(self, *args: object) -> tuple[int, str]:
        """Exit code and all output of `recover`. No secret and no traceback is ever in it."""
        given = ["channel", "recover", *map(str, args or ("wa",)), "--config", str(self.config)]
        result = CliRunner().invoke(main, given)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert not [secret for secret in ENVIRON.values() if secret in result.output]
        return result.exit_code, result.output

    def waiting(self, chat: str = ANA) -> list[Turn]:
        """The turns that wait in a conversation, in order."""
        mailbox: Any = self.access_control._inbox
        assert isinstance(mailbox, RedisMailbox)
        leased = run_without_loop(mailbox.lease(Conversation("wa", chat).id, "w1"))
        if leased is None or not isinstance(leased[1], QueuedTurn):
            return []
        return [leased[1].turn, *(turn for _, turn in leased[1].following)]


@pytest.fixture
def bench(tmp_path: Path, platforms_and_redis: FakePlatforms) -> Bench:
    """An account with a list."""
    return Bench(tmp_path, platforms_and_redis)


def test_what_no_webhook_told_is_taken_once(bench: Bench):
    """platforms.md 1.1: loss is possible, and the list of messages tells of it. The second time it was taken."""
    sid = bench.arrive(ANA, "hello", ago=600)
    code, words = bench.run()
    assert (code, re.findall(rf"{sid}  (wa:\w+)  taken\n", words)) == (0, [Conversation("wa", ANA).id])
    assert "1 messages: 1 taken now" in words
    assert bench.run()[1] == "1 messages: 1 taken before\n"
    (turn,) = bench.waiting()
    assert (turn.event_id, turn.text, turn.user_id, turn.decides) == (sid, "hello", ANA, False)


def test_what_a_webhook_told_is_not_run_again(bench: Bench):
    """Neither while it waits nor after it was worked on: its id is that of the webhook."""
    sid = bench.arrive(ANA, "hello", ago=600)
    bench.access_control.accept(Turn(sid, Conversation("wa", ANA), HIDDEN, "hello"))
    assert bench.run()[1] == "1 messages: 1 taken before\n"
    assert len(bench.waiting()) == 1


def test_dry_run_takes_nothing(bench: Bench):
    """It says what would be taken."""
    bench.arrive(ANA, "hello", ago=600)
    for _ in range(2):
        assert "1 messages: 1 missed" in bench.run("wa", "--dry-run")[1]
    assert bench.waiting() == []


def test_oldest_goes_first_and_pages_are_turned(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Twilio tells the newest first, page by page; the order of the same second is the list's."""
    monkeypatch.setattr(twilio_list, "PAGE", 2)
    for n in range(5):
        bench.arrive(ANA, str(n), ago=700 if n < 2 else 700 - n)
    assert "5 messages: 5 taken now" in bench.run()[1]
    assert sum(call["method"] == "list" for call in bench.platforms.calls) == 3
    first, *_ = bench.waiting()
    assert first.text == "0"


def test_yes_that_came_late_decides_nothing(bench: Bench):
    """On the list a tap looks like its label, typed: neither answers a question. A command was for then."""
    bench.arrive(ANA, "/stop", ago=700)
    bench.arrive(ANA, "Yes", ago=600)
    words = bench.run()[1]
    assert ("left: a command" in words, "1 taken now, 1 left" in words) == (True, True)
    (turn,) = bench.waiting()
    assert (turn.text, turn.decides) == ("Yes", False)
    assert re.fullmatch(r"sent at \d{4}-\d\d-\d\d \d\d:\d\d UTC, and reached us only now", turn.notes[-1])


def test_file_comes_with_the_address_a_webhook_names(bench: Bench):
    """The list counts files; which they are, their own list tells."""
    bench.arrive(ANA, "scan.pdf", ago=600, files=((f"ME{1:032x}", "application/pdf"),))
    bench.run()
    (turn,) = bench.waiting()
    assert (turn.media[0].mime_type, turn.media[0].filename, turn.text) == ("application/pdf", "scan.pdf", "")
    assert re.fullmatch(r"https://api\.twilio\.com/\S+/Messages/MM\w{32}/Media/ME\w{32}", turn.media[0].ref)


def test_person_is_known_by_the_id_that_webhooks_told(bench: Bench):
    """platforms.md 1.1: the list has no ExternalUserId. Under another id a question would be somebody else's."""
    settings = {"account_sid": "AC", "auth_token": "t", "from": "whatsapp:+1", "api_url": "http://127.0.0.1:9"}
    told = WhatsAppSettings.model_validate({"platform": "whatsapp", **settings})
    channel = WhatsAppChannel("wa", told, adapter_deps(None, cache=bench.notes))
    asyncio.run(channel.show_typing(Turn("SM1", Conversation("wa", ANA), HIDDEN, "hi", message_id="SM1")))
    bench.arrive(ANA, "hello", ago=600)
    bench.run()
    (turn,) = bench.waiting()
    assert (turn.user_id, turn.aliases) == (HIDDEN, (ANA,))


def test_who_is_turned_away_stays_away_and_hears_nothing(bench: Bench):
    """Blocked, on no list: said to the operator, however often it runs, and to nobody else."""
    bench.configure(f', access: {{allow: ["{ANA}"], block: ["{HIDDEN}"]}}')
    bench.notes.put(f"person:{Conversation('wa', ANA).id}", HIDDEN)
    for who in (ANA, BEN):
        bench.arrive(who, "hello", ago=600)
    for _ in range(2):
        code, words = bench.run()
        assert (code, "left: blocked" in words, "left: on no list" in words) == (0, True, True)
    assert (bench.waiting(ANA), bench.waiting(BEN)) == ([], [])


def test_who_was_over_the_quota_is_not_answered_later(bench: Bench):
    """Their turns were refused rightly, and nothing remembers them: the list tells how fast they came."""
    bench.configure(", access: {per_minute: 2}")
    sids = [bench.arrive(ANA, str(n), ago=600 - n) for n in range(4)]
    bench.arrive(ANA, "later", ago=500)
    for sid in sids[:2]:
        bench.access_control.accept(Turn(sid, Conversation("wa", ANA), ANA, "x"))
    words = bench.run()[1]
    assert words.count("left: over 2 turns a minute when it was sent") == 2
    assert "5 messages: 2 taken before, 1 taken now, 2 left" in words


def test_minute_before_counts_for_the_quota(bench: Bench):
    """What is just too old to be taken was not too old to be counted."""
    bench.configure(", access: {per_minute: 1}")
    sid = bench.arrive(ANA, "0", ago=630)
    bench.access_control.accept(Turn(sid, Conversation("wa", ANA), ANA, "x"))
    bench.arrive(ANA, "1", ago=590)
    assert "1 messages: 1 left" in bench.run("wa", "--since", "10m")[1]


def test_what_is_no_message_to_us_is_not_ours(bench: Bench):
    """Another sender's, an SMS, one that is so young that its webhook may still come."""
    bench.arrive(ANA, "other", ago=600, to="whatsapp:+4930999999")
    bench.arrive("+4915100000042", "sms", ago=600)
    bench.arrive(ANA, "young", ago=5)
    bench.arrive(ANA, "old", ago=3 * 3600)
    bench.twilio.inbound.messages.append({**bench.twilio.inbound.messages[0], "direction": "outbound-api", "from": ANA})
    assert bench.run() == (0, "0 messages\n")


def test_sender_may_be_written_without_its_plus(bench: Bench):
    """The configuration takes it so; Twilio's list has it with one."""
    bench.config.write_text(bench.config.read_text().replace('"whatsapp:+', '"whatsapp:'))
    bench.arrive(ANA, "hello", ago=600)
    assert "1 messages: 1 taken now" in bench.run()[1]


def test_service_without_a_number_has_a_list_too(bench: Bench):
    """platforms.md 1.1: MessagingServiceSid is on what came in by one."""
    bench.configure(f", messaging_service_sid: {SERVICE_SID}")
    bench.arrive(ANA, "ours", ago=600, to="whatsapp:+4930999999", service=SERVICE_SID)
    bench.arrive(ANA, "other", ago=600, to="whatsapp:+4930999999", service=f"MG{9:032x}")
    assert "1 messages: 1 taken now" in bench.run()[1]


def test_place_is_told_and_left(bench: Bench):
    """Latitude and longitude are in a webhook only."""
    bench.arrive(ANA, "", ago=600)
    assert "left: neither text nor a file" in bench.run()[1]


def test_no_further_than_ids_are_remembered(bench: Bench):
    """Beyond that nobody knows what was taken: it might run twice."""
    code, words = bench.run("wa", "--since", "72h")
    assert (code, "remembered for 72 h" in words, "71 h at most" in words) == (3, True, True)
    assert bench.run("wa", "--since", "71h")[0] == 0
    code, words = bench.run("wa", "--since", "soon")
    assert (code, "'soon' is no time span: write a number and s, m, h or d" in words) == (2, True)


def test_what_was_taken_is_told_though_twilio_fails_later(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """An operator must know who is answered hours later."""
    bench.arrive(ANA, "hello", ago=700)
    bench.arrive(ANA, "scan.pdf", ago=600, files=((f"ME{1:032x}", "application/pdf"),))
    monkeypatch.setattr(bench.twilio.inbound, "_files", lambda *_: FakeResponse(500, b"{}"))
    code, words = bench.run()
    assert (code, words.count("  taken\n"), "error 500" in words) == (3, 1, True)


def test_full_mailbox_is_told_and_tried_again(bench: Bench):
    """It ends with 1, and the message is not remembered."""
    bench.config.write_text(bench.config.read_text() + "limits: {waiting: 1}\n")
    bench.access_control.accept(Turn("e0", Conversation("wa", ANA), ANA, "first"))
    bench.arrive(ANA, "hello", ago=600)
    code, words = bench.run()
    assert (code, "refused: full" in words, "1 messages: 1 refused" in words) == (1, True, True)
    assert "1 refused" in bench.run()[1]


def test_more_than_can_be_looked_at_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """A list without end must not fill the memory."""
    monkeypatch.setattr(recovery, "MOST_MESSAGES", 2)
    for n in range(3):
        bench.arrive(ANA, str(n), ago=600)
    code, words = bench.run()
    assert (code, "more than 2 messages" in words, "shorter --since" in words) == (3, True, True)


@pytest.mark.parametrize(
    ("channel", "why"),
    [
        ("tg", "repeats what the bot did not accept for 24 hours"),
        ("sl", "repeats what the bot did not accept three times"),
        ("web", "a page"),
    ],
)
def test_platform_without_a_list_says_what_it_does_itself(bench: Bench, channel: str, why: str):
    """Telegram and Slack try again by themselves."""
    code, words = bench.run(channel)
    assert (code, why in words) == (3, True)


def test_busy_twilio_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 1.4: 20429 says for how long; whoever is asked too often for good hears so."""
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr(twilio_list.TwilioMessageLog.__init__, "__kwdefaults__", {"sleep": sleep})
    bench.arrive(ANA, "hello", ago=600)
    bench.twilio.inbound.busy = 2
    assert ("1 taken now" in bench.run()[1], paused) == (True, [7.0, 7.0])
    bench.twilio.inbound.busy = 9
    code, words = bench.run()
    assert (code, "asked too often" in words) == (3, True)


def test_wrong_token_and_nobody_there_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 1.4: 20003 is credentials; a list that is refused tells its status in the answer only."""
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", "wrong-auth-token")
    code, words = bench.run()
    assert (code, "does not take account_sid and auth_token" in words) == (3, True)


def test_redis_that_is_away_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """What was taken is known there."""
    bench.arrive(ANA, "hello", ago=600)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    code, words = bench.run()
    assert (code, "Redis does not answer" in words) == (3, True)


def test_half_a_character_stops_nobody(bench: Bench):
    """JSON can spell one: whoever wrote it is heard, and so is everybody after."""
    bench.arrive(ANA, "half \ud83d", ago=600)
    bench.arrive(BEN, "whole", ago=500)
    assert "2 taken now" in bench.run()[1]
    assert [turn.text for turn in bench.waiting()] == ["half ?"]
