"""Poller: updates go through the ingress of webhooks and are acknowledged once they are stored."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from sayso.channels.base import (
    ChannelDown,
    DeliveryUncertain,
    Forbidden,
    RateLimited,
    Unreachable,
    WebhookConflict,
)
from sayso.channels.telegram.poller import (
    CONFLICT_SECONDS,
    MAX_BACKOFF_SECONDS,
    RETRY_SECONDS,
    WINDOW,
    Poller,
)
from sayso.config.wiring.ingress import run_pollers
from sayso.infra.redis.leader_lock import LeaderLock
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import TELEGRAM_TOKEN, FakePlatforms
from sayso.testing.platforms.server import FakeResponse
from sayso.workers.access import AccessControl
from sayso.workers.ingress import Ingress
from tests.channels.harness import telegram, telegram_hook
from tests.channels.web.services import FakeDeliveries, FakeMailbox
from tests.contracts.rigs import voice
from tests.memory_stores import MemoryAlerts

POISON = {"update_id": 2, "message": {"from": [], "chat": 7}}
HALF = "\ud83d"


class Bot:
    """A bot API with given answers that notes each call; after the last answer the test ends."""

    name = "tg"

    def __init__(self, *answers: list | Exception) -> None:
        self.read = telegram(None, None, polling=True).read
        self._answers, self.offsets = list(answers), []

    async def updates(self, offset: int | None) -> list[Any]:
        """Return the next answer."""
        self.offsets.append(offset)
        if not self._answers:
            raise asyncio.CancelledError
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Held:
    """A leader lock that is always held."""

    def take(self) -> bool:
        """Return True."""
        return True

    def leave(self) -> None:
        """Do nothing."""


def said(number: int, user: int = 5123456789) -> dict:
    """Return an update with a message."""
    return signing.telegram_text(number, f"words {number}", user=user)


def polled(
    bot: Bot, mailbox: FakeMailbox | None = None, alerts: MemoryAlerts | None = None
) -> Poller:
    """Return a poller of the bot, in front of a mailbox."""
    gate = AccessControl(mailbox or FakeMailbox(), voice)
    ingress = Ingress(gate.accept, deliveries=FakeDeliveries(), alerts=alerts or MemoryAlerts())
    return Poller(bot, ingress.store, Held())


def rounds(poller: Poller, count: int) -> list[float]:
    """Poll this often; return the pause after each poll."""

    async def ask() -> list[float]:
        return [await poller._round() for _ in range(count)]

    return asyncio.run(ask())


def test_update_in_an_outage_is_fetched_again():
    """platforms.md 2.5, pains.md 2: an update that was not stored is fetched again later, with all behind it."""
    outcomes = iter(["new", RedisConnectionError(), "new", "new"])
    mailbox = FakeMailbox(lambda: raised(next(outcomes)))
    bot = Bot([said(1), said(2), said(3)], [said(2), said(3)], [])
    assert rounds(polled(bot, mailbox), 3) == [RETRY_SECONDS, 0.0, 0.0]
    assert [turn.event_id for turn, _ in mailbox.turns] == ["1", "2", "2", "3"]
    assert bot.offsets == [None, 2, 4]


def raised(outcome: str | Exception) -> str:
    """Return the outcome, or raise its error."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_update_ids_may_start_anew_anywhere():
    """platforms.md 2.1: after a week update_id may be any number, so without a waiting update no offset is sent."""
    bot = Bot([said(9000)], [], [said(4)], [])
    rounds(polled(bot), 4)
    assert bot.offsets == [None, 9001, None, 5]


def test_unreadable_update_stops_no_other():
    """platforms.md 2.1: it is dropped as in a webhook, and later ones are stored; it may even lack an id."""
    mailbox = FakeMailbox()
    bot = Bot([said(1), POISON, said(3), "rubbish", {"message": {}}], [])
    assert rounds(polled(bot, mailbox), 2) == [RETRY_SECONDS, 0.0]
    assert ([turn.event_id for turn, _ in mailbox.turns], bot.offsets) == (["1", "3"], [None, 4])


def test_update_with_an_invalid_chat_stops_no_other():
    """The chat id is half a surrogate pair and cannot be stored."""
    half = said(1)
    half["message"]["chat"]["id"] = HALF
    mailbox = FakeMailbox()
    assert rounds(polled(Bot([half, said(2)], []), mailbox), 1) == [0.0]
    assert [turn.event_id for turn, _ in mailbox.turns] == ["2"]


def test_internal_error_on_one_update_stops_no_other(caplog: pytest.LogCaptureFixture):
    """A defect must not silence a bot. The log names the conversation and the event that was lost."""
    outcomes = iter([ZeroDivisionError(), "new"])
    mailbox = FakeMailbox(lambda: raised(next(outcomes)))
    assert rounds(polled(Bot([said(1), said(2)], []), mailbox), 1) == [0.0]
    (dropped,) = (each for each in caplog.records if each.message == "poll.dropped")
    lost, _ = mailbox.turns
    assert (dropped.conversation, dropped.event) == (lost[0].conversation.id, lost[0].event_hash)


def test_person_over_the_limit_delays_no_other():
    """platforms.md 2.1: each chat has its own queue at Telegram; refused updates wait, in order, alone."""
    outcomes = iter(["new", "full", "new", "new", "new"])
    mailbox = FakeMailbox(lambda: next(outcomes))
    batch = [said(1), said(2), said(3), said(4, user=77)]
    bot = Bot(batch, batch[1:], [])
    assert rounds(polled(bot, mailbox), 3) == [RETRY_SECONDS, 0.0, 0.0]
    assert [turn.event_id for turn, _ in mailbox.turns] == ["1", "2", "4", "2", "3"]
    assert bot.offsets == [None, 2, 5]


def test_tap_overtakes_waiting_texts():
    """platforms.md 2.1: texts and taps have no common order, so a yes does not wait behind a flood."""
    outcomes = iter(["full", "new"])
    mailbox = FakeMailbox(lambda: next(outcomes))
    rounds(polled(Bot([said(1), signing.telegram_tap(2, "x")]), mailbox), 1)
    assert [turn.event_id for turn, _ in mailbox.turns] == ["1", "2"]


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (RateLimited(7.0), [7.0, 7.0, 7.0]),
        (WebhookConflict("a webhook is set"), [CONFLICT_SECONDS] * 3),
        (Unreachable("no connection"), [1.0, 2.0, 4.0]),
    ],
)
def test_each_error_has_its_pause(error: Exception, pauses: list[float]):
    """platforms.md 2.4: retry_after is obeyed, other refusals wait long, and a network error has a backoff."""
    assert rounds(polled(Bot(error, error, error)), 3) == pauses


def test_poller_without_a_network_retries_for_ever():
    """A laptop may be closed for a weekend."""
    bot = Bot(*[Unreachable("no connection")] * 2000, [said(1)], Unreachable("no connection"))
    pauses = rounds(polled(bot), 2002)
    assert (max(pauses), pauses[-2:]) == (MAX_BACKOFF_SECONDS, [0.0, 1.0])


def test_operator_is_told_of_a_second_poller_and_of_a_wrong_token():
    """platforms.md 2.4: 409 is configuration, 401 and 404 stop the bot. Both are alerts with their cures."""
    alerts = MemoryAlerts()
    rounds(polled(Bot(WebhookConflict("run `sayso channel disconnect tg`")), alerts=alerts), 1)
    assert [alert.text for alert in alerts.of(["tg"])] == ["run `sayso channel disconnect tg`"]
    bot = Bot(ChannelDown("the token is wrong"))
    asyncio.run(asyncio.wait_for(polled(bot, alerts=alerts).run(), 60))
    assert (alerts.of(["tg"])[0].text.startswith("the token is wrong"), bot.offsets) == (
        True,
        [None],
    )


def test_one_process_polls_at_a_time(redis_client: Redis):
    """This holds over all machines. The next one starts when the first releases the lock or its heartbeat ends."""
    first, second = LeaderLock(redis_client, "poll:1"), LeaderLock(redis_client, "poll:1")
    assert (first.take(), second.take(), first.take(), second.is_held()) == (
        True,
        False,
        True,
        True,
    )
    second.leave()
    assert not second.take()
    first.leave()
    assert (second.take(), first.take()) == (True, False)


def test_polling_channel_takes_no_webhook():
    """platforms.md 2.2: without a secret, or with an empty one, any client could forge a webhook."""
    channel = telegram(None, None, polling=True)
    for hook in (telegram_hook(said(1)), signing.telegram_hook("", said(1))):
        with pytest.raises(Forbidden, match="this channel polls"):
            channel.receive(hook)


@pytest.fixture
def platforms() -> Any:
    """Return a fake Telegram."""
    with FakePlatforms() as running:
        yield running


def asked(platforms: FakePlatforms, offset: int | None = None, **settings: Any) -> list[Any]:
    """Return the updates that the channel gets from Telegram."""
    return asyncio.run(telegram(None, platforms.telegram_url, **settings).updates(offset))


def test_polled_updates_equal_those_of_a_webhook(platforms: FakePlatforms):
    """platforms.md 2.1, 2.5: they come unchanged, even those that PTB cannot parse, and only of the kinds in use."""
    for update in (said(1), POISON, {"update_id": 3, "message_reaction": {}}):
        platforms.update(update)
    assert asked(platforms) == [said(1), POISON, {"update_id": 3, "message_reaction": {}}][:2]
    platforms.update({"update_id": 4, "channel_post": {}})
    platforms.update(said(5))
    assert asked(platforms, 3) == [said(5)]


def test_webhook_and_second_poller_are_distinguished(platforms: FakePlatforms):
    """platforms.md 2.4: each of the two has its own cure."""
    platforms.log.state["telegram webhook"] = {
        "url": "https://bots.example.com",
        "pending_update_count": 0,
    }
    with pytest.raises(WebhookConflict, match="run `sayso channel disconnect tg`"):
        asked(platforms)
    with pytest.raises(ChannelDown):
        asked(platforms, token=f"{TELEGRAM_TOKEN}x")


def test_flood_that_fills_the_window_is_skipped(caplog: pytest.LogCaptureFixture):
    """platforms.md 2.1: Telegram returns a hundred updates from one offset on. A person over the rate limit loses the
    older half of them; otherwise all other people would wait until a model had answered two hundred messages.
    """
    outcomes = iter(["new", *["full"] * 3, "new"])
    mailbox = FakeMailbox(lambda: next(outcomes))
    flood = [said(number) for number in range(1, WINDOW + 2)]
    half = WINDOW // 2 + 1
    bot = Bot(flood[:WINDOW], flood[1:], [*flood[half:], said(999, user=77)])
    assert rounds(polled(bot, mailbox), 3) == [RETRY_SECONDS] * 3
    assert [turn.event_id for turn, _ in mailbox.turns] == ["1", "2", "2", str(half + 1), "999"]
    assert (bot.offsets, "poll.skipped" in caplog.text) == ([None, 2, half + 1], True)


def test_person_refused_for_long_delays_no_other_behind_a_full_window():
    """Stored updates of others would fill the window for as long as one update waits at its head."""
    outcomes = iter(["full", *["new"] * (WINDOW - 1), "full"])
    batch = [said(1, user=66), *(said(number) for number in range(2, WINDOW + 1))]
    bot = Bot(batch, batch, [])
    assert rounds(polled(bot, FakeMailbox(lambda: next(outcomes))), 3) == [RETRY_SECONDS, 0.0, 0.0]
    assert bot.offsets == [None, 1, WINDOW + 1]


def test_full_window_of_refused_updates_waits():
    """The store refuses all of them for a while, so none is skipped."""
    batch = [said(number) for number in range(1, WINDOW + 1)]
    bot = Bot(batch, batch, batch)
    rounds(polled(bot, FakeMailbox(lambda: raised(ResponseError("READONLY")))), 3)
    assert bot.offsets == [None, 1, 1]


def test_stop_overtakes_waiting_texts():
    """The running turn is stopped now, not after the flood before the stop."""
    outcomes = iter(["full", "new"])
    mailbox = FakeMailbox(lambda: next(outcomes))
    rounds(polled(Bot([said(1), said(2), signing.telegram_text(3, "/stop")]), mailbox), 1)
    assert [turn.event_id for turn, _ in mailbox.turns] == ["1", "3"]


def test_new_leader_polls_without_an_offset():
    """platforms.md 2.1: another process polled meanwhile, and ids may have started anew below the last one."""
    bot = Bot([said(9000)], ChannelDown("gone"), [said(4)], ChannelDown("gone"))
    poller = polled(bot)
    for _ in range(2):
        asyncio.run(poller._poll())
    assert bot.offsets == [None, 9001, None, 5]


@pytest.fixture
def handlers_restored() -> Iterator[None]:
    """Restore the handlers of signals: pollers set those of their process."""
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers_restored")
def test_poller_that_breaks_ends_its_process():
    """The supervisor starts another one. No process stays that looks alive and does not poll."""

    class Broken(Held):
        def take(self) -> bool:
            raise RuntimeError("can't start new thread")

    broken = Poller(Bot(), None, Broken())
    with pytest.raises(ExceptionGroup):
        asyncio.run(asyncio.wait_for(run_pollers([broken.run()]), 5))


def test_unreadable_answer_is_not_logged(
    platforms: FakePlatforms, caplog: pytest.LogCaptureFixture
):
    """It may hold people's texts."""
    platforms.fakes["telegram"].answer = lambda _: FakeResponse(
        200, b'{"result": [{"message": {"text": "my diagnosis'
    )
    with pytest.raises(DeliveryUncertain):
        asked(platforms)
    assert "diagnosis" not in caplog.text


#: Polls until a signal, and gets a second one when polling has ended.
SIGNALED_TWICE = """
import asyncio, os, signal
from sayso.config.wiring.ingress import run_pollers

async def poll():
    os.kill(os.getpid(), signal.{name})
    await asyncio.Event().wait()

asyncio.run(run_pollers([poll()]))
os.kill(os.getpid(), signal.{name})
print("ended")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_second_signal_does_not_kill_a_poller_that_ends(name: str):
    """A supervisor would take it for a crash."""
    code = SIGNALED_TWICE.format(name=name)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
