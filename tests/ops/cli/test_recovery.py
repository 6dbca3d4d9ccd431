"""`sayso channel recover`: missed messages are accepted once, and rightly refused ones stay out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sayso.channels.types import Conversation, SenderIds, Turn
from sayso.channels.whatsapp import message_log as recovery
from sayso.channels.whatsapp import message_log as twilio_list
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import open_inbox
from sayso.infra.concurrency import run_without_loop
from sayso.infra.records import OtherVersion
from sayso.infra.redis import scripts
from sayso.ops.cli.main import main
from sayso.pending.turns import QueuedTurn
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.server import FakeResponse
from sayso.testing.platforms.twilio import SERVICE_SID
from sayso.workers.mailbox import RedisMailbox
from tests.config.fake_bots import ENVIRON, written

ANA, BEN = "whatsapp:+4915100000042", "whatsapp:+4915100000043"
HIDDEN = "whatsapp:DE.1234567890"


class Bench:
    """The fake platforms, a configuration, its Redis, and the command."""

    def __init__(self, folder: Path, platforms: FakePlatforms) -> None:
        self.folder, self.platforms = folder, platforms
        self.twilio: Any = platforms.fakes["twilio"]
        self.arrive = self.twilio.inbound.arrive
        self.configure()

    def configure(self, more: str = "") -> None:
        """Write the configuration again."""
        self.config = written(self.folder, self.platforms, whatsapp=more)
        self.access_control, self.identities = open_inbox(load_settings(self.config), self.folder)

    def run(self, *args: object) -> tuple[int, str]:
        """Return exit code and output of `recover`; check that it has no secret and no traceback."""
        given = ["channel", "recover", *map(str, args or ("wa",)), "--config", str(self.config)]
        result = CliRunner().invoke(main, given)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert not [secret for secret in ENVIRON.values() if secret in result.output]
        return result.exit_code, result.output

    def waiting(self, chat: str = ANA) -> list[Turn]:
        """Return the waiting turns of a conversation, in order."""
        mailbox: Any = self.access_control._inbox
        assert isinstance(mailbox, RedisMailbox)
        leased = run_without_loop(mailbox.lease(Conversation("wa", chat).id, "w1"))
        if leased is None or not isinstance(leased[1], QueuedTurn):
            return []
        return [leased[1].turn, *(each.turn for each in leased[1].following)]


@pytest.fixture
def bench(tmp_path: Path, platforms_and_redis: FakePlatforms) -> Bench:
    """Return an account with a list of messages."""
    return Bench(tmp_path, platforms_and_redis)


def test_message_without_a_webhook_is_accepted_once(bench: Bench):
    """platforms.md 1.1: webhooks can get lost, and the list of messages shows it. The second run accepts nothing."""
    sid = bench.arrive(ANA, "hello", ago=600)
    code, words = bench.run()
    assert (code, re.findall(rf"{sid}  (wa:\w+)  taken\n", words)) == (
        0,
        [Conversation("wa", ANA).id],
    )
    assert "1 messages: 1 taken now" in words
    assert bench.run()[1] == "1 messages: 1 taken before\n"
    (turn,) = bench.waiting()
    assert (turn.event_id, turn.text, turn.user_id, turn.decides) == (sid, "hello", ANA, False)


def test_message_with_a_webhook_does_not_run_again(bench: Bench):
    """This holds while it waits and after it was processed: its id is that of the webhook."""
    sid = bench.arrive(ANA, "hello", ago=600)
    bench.identities.recognize("wa", SenderIds(HIDDEN, ANA), store=True)
    bench.access_control.accept(Turn(sid, Conversation("wa", HIDDEN), HIDDEN, "hello"))
    assert bench.run()[1] == "1 messages: 1 taken before\n"
    assert len(bench.waiting(HIDDEN)) == 1


@pytest.mark.parametrize(
    "first", [SenderIds(HIDDEN, BEN), SenderIds("", BEN)], ids=["known by id", "by number"]
)
def test_older_number_of_a_person_does_not_become_the_newest(bench: Bench, first: SenderIds):
    """The list names the number of that time.

    Its owner may be another person by now, who must get no answer.
    """
    key = bench.identities.recognize("wa", first, store=True).key
    bench.identities.recognize("wa", SenderIds(HIDDEN, BEN), store=True)
    bench.identities.recognize("wa", SenderIds(HIDDEN, ANA), store=True)
    bench.arrive(BEN, "hello", ago=600)
    assert "1 taken now" in bench.run()[1]
    assert [turn.text for turn in bench.waiting(key)] == ["hello"]
    assert bench.identities.find_by_key("wa", key).number == ANA


def test_person_of_a_newer_release_keeps_no_other_from_being_recovered(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
):
    """As after a rollback. Their message waits for the release that can read their ids."""
    with monkeypatch.context() as newer:
        newer.setitem(scripts._RECORD_CONSTANTS, "RECORD_VERSION", 2)
        scripts._scripts_of.cache_clear()  # a process joins its scripts once
        _, identities = open_inbox(load_settings(bench.config), bench.folder)
        with pytest.raises(OtherVersion):  # this process cannot read what it stores as a newer one
            identities.recognize("wa", SenderIds(HIDDEN, BEN), store=True)
    scripts._scripts_of.cache_clear()
    for sender in (BEN, ANA):
        bench.arrive(sender, "hello", ago=600)
    code, words = bench.run()
    assert (code, "1 taken now, 1 refused" in words, "has version 2" in words) == (1, True, True)
    assert [turn.text for turn in bench.waiting()] == ["hello"]


def test_dry_run_accepts_nothing(bench: Bench):
    """It lists what would be accepted."""
    bench.arrive(ANA, "hello", ago=600)
    for _ in range(2):
        assert "1 messages: 1 missed" in bench.run("wa", "--dry-run")[1]
    assert bench.waiting() == []


def test_all_pages_are_read_and_the_oldest_goes_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """Twilio lists the newest first, page by page; within a second the list's order counts."""
    monkeypatch.setattr(twilio_list, "PAGE", 2)
    for n in range(5):
        bench.arrive(ANA, str(n), ago=700 if n < 2 else 700 - n)
    assert "5 messages: 5 taken now" in bench.run()[1]
    assert sum(call["method"] == "list" for call in bench.platforms.calls) == 3
    first, *_ = bench.waiting()
    assert first.text == "0"


def test_yes_that_came_late_decides_nothing(bench: Bench):
    """On the list a tap looks like its typed label. Neither answers a question, and no command runs."""
    bench.arrive(ANA, "/stop", ago=700)
    bench.arrive(ANA, "Yes", ago=600)
    words = bench.run()[1]
    assert ("left: a command" in words, "1 taken now, 1 left" in words) == (True, True)
    (turn,) = bench.waiting()
    assert (turn.text, turn.decides) == ("Yes", False)
    assert re.fullmatch(
        r"sent at \d{4}-\d\d-\d\d \d\d:\d\d UTC, and reached us only now", turn.notes[-1]
    )


def test_file_has_the_url_that_a_webhook_would_have(bench: Bench):
    """The list has the number of files; a second list has the files."""
    bench.arrive(ANA, "scan.pdf", ago=600, files=((f"ME{1:032x}", "application/pdf"),))
    bench.run()
    (turn,) = bench.waiting()
    assert (turn.media[0].mime_type, turn.media[0].filename, turn.text) == (
        "application/pdf",
        "scan.pdf",
        "",
    )
    assert re.fullmatch(
        r"https://api\.twilio\.com/\S+/Messages/MM\w{32}/Media/ME\w{32}", turn.media[0].ref
    )


def test_person_keeps_the_id_from_webhooks(bench: Bench):
    """platforms.md 1.1: the list has no ExternalUserId. With another id a question would belong to another person."""
    bench.identities.recognize("wa", SenderIds(HIDDEN, ANA), store=True)
    bench.arrive(ANA, "hello", ago=600)
    bench.run()
    (turn,) = bench.waiting(HIDDEN)
    assert (turn.user_id, turn.aliases) == (HIDDEN, (ANA,))


def test_refused_person_stays_refused_and_gets_no_message(bench: Bench):
    """They are blocked or on no list. Each run reports it to the operator only."""
    bench.configure(f', access: {{allow: ["{ANA}"], block: ["{HIDDEN}"]}}')
    bench.identities.recognize("wa", SenderIds(HIDDEN, ANA), store=True)
    for who in (ANA, BEN):
        bench.arrive(who, "hello", ago=600)
    for _ in range(2):
        code, words = bench.run()
        assert (code, "left: blocked" in words, "left: on no list" in words) == (0, True, True)
    assert (bench.waiting(ANA), bench.waiting(BEN)) == ([], [])


def test_person_over_the_rate_limit_is_not_answered_later(bench: Bench):
    """Their turns were refused rightly and not stored; the list shows how fast they came."""
    bench.configure(", access: {per_minute: 2}")
    sids = [bench.arrive(ANA, str(n), ago=600 - n) for n in range(4)]
    bench.arrive(ANA, "later", ago=500)
    for sid in sids[:2]:
        bench.access_control.accept(Turn(sid, Conversation("wa", ANA), ANA, "x"))
    words = bench.run()[1]
    assert words.count("left: over 2 turns a minute when it was sent") == 2
    assert "5 messages: 2 taken before, 1 taken now, 2 left" in words


def test_minute_before_counts_for_the_rate_limit(bench: Bench):
    """A message that is just too old to be accepted still counts."""
    bench.configure(", access: {per_minute: 1}")
    sid = bench.arrive(ANA, "0", ago=630)
    bench.access_control.accept(Turn(sid, Conversation("wa", ANA), ANA, "x"))
    bench.arrive(ANA, "1", ago=590)
    assert "1 messages: 1 left" in bench.run("wa", "--since", "10m")[1]


def test_other_messages_are_ignored(bench: Bench):
    """They are those of another sender, SMS, and new ones whose webhook may still come."""
    bench.arrive(ANA, "other", ago=600, to="whatsapp:+4930999999")
    bench.arrive("+4915100000042", "sms", ago=600)
    bench.arrive(ANA, "young", ago=5)
    bench.arrive(ANA, "old", ago=3 * 3600)
    bench.twilio.inbound.messages.append(
        {**bench.twilio.inbound.messages[0], "direction": "outbound-api", "from": ANA}
    )
    assert bench.run() == (0, "0 messages\n")


def test_sender_may_be_written_without_its_plus(bench: Bench):
    """The configuration allows it; Twilio's list has the plus."""
    bench.config.write_text(bench.config.read_text().replace('"whatsapp:+', '"whatsapp:'))
    bench.arrive(ANA, "hello", ago=600)
    assert "1 messages: 1 taken now" in bench.run()[1]


def test_messaging_service_without_a_number_has_a_list_too(bench: Bench):
    """platforms.md 1.1: its messages have a MessagingServiceSid."""
    bench.configure(f", messaging_service_sid: {SERVICE_SID}")
    bench.arrive(ANA, "ours", ago=600, to="whatsapp:+4930999999", service=SERVICE_SID)
    bench.arrive(ANA, "other", ago=600, to="whatsapp:+4930999999", service=f"MG{9:032x}")
    assert "1 messages: 1 taken now" in bench.run()[1]


def test_location_is_reported_and_left_out(bench: Bench):
    """Only a webhook has latitude and longitude."""
    bench.arrive(ANA, "", ago=600)
    assert "left: neither text nor a file" in bench.run()[1]


def test_reach_is_bounded_by_the_remembered_ids(bench: Bench):
    """Beyond that it is unknown which messages were accepted, and one might run twice."""
    code, words = bench.run("wa", "--since", "72h")
    assert (code, "remembered for 72 h" in words, "71 h at most" in words) == (3, True, True)
    assert bench.run("wa", "--since", "71h")[0] == 0
    code, words = bench.run("wa", "--since", "soon")
    assert (code, "'soon' is not a time span: write a number and s, m, h or d" in words) == (
        2,
        True,
    )


def test_accepted_messages_are_reported_although_twilio_fails_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """An operator must know which people get late answers."""
    bench.arrive(ANA, "hello", ago=700)
    bench.arrive(ANA, "scan.pdf", ago=600, files=((f"ME{1:032x}", "application/pdf"),))
    monkeypatch.setattr(bench.twilio.inbound, "_answer_media", lambda *_: FakeResponse(500, b"{}"))
    code, words = bench.run()
    assert (code, words.count("  taken\n"), "error 500" in words) == (3, 1, True)
    assert "1 messages: 1 taken now" in words


def test_accepted_messages_are_in_the_json_although_twilio_fails_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """A script must know them, too. The exit code tells it of the error."""
    sid = bench.arrive(ANA, "hello", ago=700)
    bench.arrive(ANA, "scan.pdf", ago=600, files=((f"ME{1:032x}", "application/pdf"),))
    monkeypatch.setattr(bench.twilio.inbound, "_answer_media", lambda *_: FakeResponse(500, b"{}"))
    code, words = bench.run("wa", "--json")
    printed = json.loads(words.partition("Error: ")[0])
    assert (code, printed["counts"]) == (3, {"taken": 1})
    assert [message["sid"] for message in printed["messages"]] == [sid]


def test_full_mailbox_is_reported_and_retried(bench: Bench):
    """The exit code is 1, and the message is not marked as accepted."""
    bench.config.write_text(bench.config.read_text() + "limits: {waiting: 1}\n")
    bench.access_control.accept(Turn("e0", Conversation("wa", ANA), ANA, "first"))
    bench.arrive(ANA, "hello", ago=600)
    code, words = bench.run()
    assert (code, "refused: full" in words, "1 messages: 1 refused" in words) == (1, True, True)
    assert "1 refused" in bench.run()[1]


def test_too_long_list_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """An endless list must not fill the memory."""
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
def test_platform_without_a_list_is_explained(bench: Bench, channel: str, why: str):
    """Telegram and Slack repeat webhooks by themselves."""
    code, words = bench.run(channel)
    assert (code, why in words) == (3, True)


def test_busy_twilio_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 1.4: 20429 has the pause; a limit that does not end is reported."""
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr(twilio_list.TwilioMessageLog.__init__, "__kwdefaults__", {"sleep": sleep})
    bench.arrive(ANA, "hello", ago=600)
    bench.twilio.inbound.busy_calls = 2
    assert ("1 taken now" in bench.run()[1], paused) == (True, [7.0, 7.0])
    bench.twilio.inbound.busy_calls = 9
    code, words = bench.run()
    assert (code, "asked too often" in words) == (3, True)


def test_wrong_token_and_unreachable_twilio_are_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """platforms.md 1.4: 20003 means wrong credentials; a refused list has its status only in the answer."""
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", "wrong-auth-token")
    code, words = bench.run()
    assert (code, "does not take account_sid and auth_token" in words) == (3, True)


def test_unreachable_redis_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Redis has the ids of accepted messages."""
    bench.arrive(ANA, "hello", ago=600)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    code, words = bench.run()
    assert (code, "nothing listens there" in words) == (3, True)


def test_lone_surrogate_stops_no_message(bench: Bench):
    """JSON can hold one. Its message and all later ones are accepted."""
    bench.arrive(ANA, "half \ud83d", ago=600)
    bench.arrive(BEN, "whole", ago=500)
    assert "2 taken now" in bench.run()[1]
    assert [turn.text for turn in bench.waiting()] == ["half ?"]
