"""Poller: what is asked for goes through the door that webhooks go through, and is forgotten once it is kept there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from sayso.channels.base import ChannelDown, DeliveryUncertain, Forbidden, RateLimited, Unreachable, WebhookConflict
from sayso.channels.telegram.poller import (
    CONFLICT_SECONDS,
    MAX_BACKOFF_SECONDS,
    RETRY_SECONDS,
    WINDOW,
    Poller,
)
from sayso.channels.web.ingress import Ingress
from sayso.config.wiring.ingress import run_pollers
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import TELEGRAM_TOKEN, FakePlatforms
from sayso.testing.platforms.server import FakeResponse
from sayso.workers.access import AccessControl
from sayso.workers.alerts import MemoryAlerts
from sayso.workers.redis.leader_lock import LeaderLock
from tests.channels.harness import telegram, telegram_hook
from tests.channels.web.services import FakeDeliveries, FakeMailbox
from tests.contracts.rigs import voice

POISON = {"update_id": 2, "message": {"from": [], "chat": 7}}
HALF = "\ud83d"


class Bot:
    """Answers as told, and keeps what it was asked; then the test is over."""

    name = "tg"

    def __init__(self, *answers: list | Exception) -> None:
        self.read = telegram(None, None, secret_token=None).read
        self._answers, self.offsets = list(answers), []

    async def updates(self, offset: int | None) -> list[Any]:
        """The next answer."""
        self.offsets.append(offset)
        if not self._answers:
            raise asyncio.CancelledError
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Held:
    """A baton that is always ours."""

    def take(self) -> bool:
        """It is."""
        return True

    def leave(self) -> None:
        """Nobody waits for it."""


def said(number: int, user: int = 5123456789) -> dict:
    """Somebody's message."""
    return signing.telegram_text(number, f"words {number}", user=user)


def polled(bot: Bot, mailbox: FakeMailbox | None = None, alerts: MemoryAlerts | None = None) -> Poller:
    """A poller of the bot, in front of a mailbox."""
    gate = AccessControl(mailbox or FakeMailbox(), voice)
    ingress = Ingress(gate, deliveries=FakeDeliveries(), alerts=alerts or MemoryAlerts(), action_of=lambda data: "")
    return Poller(bot, ingress, Held())


def rounds(poller: Poller, count: int) -> list[float]:
    """Ask so often; how long it waits after each."""

    async def ask() -> list[float]:
        return [await poller._round() for _ in range(count)]

    return asyncio.run(ask())


def test_store_that_is_away_forgets_nothing():
    """platforms.md 2.5, pains.md 2: what was not kept is asked for again, after a while, with all behind it."""
    outcomes = iter(["new", RedisConnectionError(), "new", "new"])
    mailbox = FakeMailbox(lambda: raised(next(outcomes)))
    bot = Bot([said(1), said(2), said(3)], [said(2), said(3)], [])
    assert rounds(polled(bot, mailbox), 3) == [RETRY_SECONDS, 0.0, 0.0]
    assert [turn.event_id for turn, _ in mailbox.turns] == ["1", "2", "2", "3"]
    assert bot.offsets == [None, 2, 4]


def raised(outcome: str | Exception) -> str:
    """The outcome, or its error."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_numbers_may_begin_anew_anywhere():
    """platforms.md 2.1: after a week update_id is another: once nothing waits, nothing particular is asked for."""
    bot = Bot([said(9000)], [], [said(4)], [])
    rounds(polled(bot), 4)
    assert bot.offsets == [None, 9001, None, 5]


def test_update_that_nobody_can_read_stops_nobody():
    """platforms.md 2.1: it is dropped as a webhook's is, and those behind it are kept; even one without a number."""
    mailbox = FakeMailbox()
    bot = Bot([said(1), POISON, said(3), "rubbish", {"message": {}}], [])
    assert rounds(polled(bot, mailbox), 2) == [RETRY_SECONDS, 0.0]
    assert ([turn.event_id for turn, _ in mailbox.turns], bot.offsets) == (["1", "3"], [None, 4])


def test_conversation_that_has_no_name_stops_nobody():
    """Half a character in the id of a chat: nothing can be kept under it."""
    half = said(1)
    half["message"]["chat"]["id"] = HALF
    mailbox = FakeMailbox()
    assert rounds(polled(Bot([half, said(2)], []), mailbox), 1) == [0.0]
    assert [turn.event_id for turn, _ in mailbox.turns] == ["2"]


def test_door_that_breaks_over_one_update_lets_the_others_in():
    """A defect of ours must not silence a bot."""
    outcomes = iter([ZeroDivisionError(), "new"])
    mailbox = FakeMailbox(lambda: raised(next(outcomes)))
    assert rounds(polled(Bot([said(1), said(2)], []), mailbox), 1) == [0.0]


def test_who_writes_too_much_holds_up_nobody_else():
    """platforms.md 2.1: each chat has a queue of its own at Telegram; here what is refused waits, in order, alone."""
    outcomes = iter(["new", "full", "new", "new", "new"])
    mailbox = FakeMailbox(lambda: next(outcomes))
    batch = [said(1), said(2), said(3), said(4, user=77)]
    bot = Bot(batch, batch[1:], [])
    assert rounds(polled(bot, mailbox), 3) == [RETRY_SECONDS, 0.0, 0.0]
    assert [turn.event_id for turn, _ in mailbox.turns] == ["1", "2", "4", "2", "3"]
    assert bot.offsets == [None, 2, 5]


def test_tap_overtakes_words_that_wait():
    """platforms.md 2.1: no order between words and taps: a yes is not kept waiting behind a flood."""
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
def test_each_trouble_has_its_pause(error: Exception, pauses: list[float]):
    """platforms.md 2.4: retry_after is obeyed; who is not told asks slowly; a network is tried again, less and less."""
    assert rounds(polled(Bot(error, error, error)), 3) == pauses


def test_laptop_without_a_network_asks_for_ever():
    """It is shut for a weekend, and goes on."""
    bot = Bot(*[Unreachable("no connection")] * 2000, [said(1)], Unreachable("no connection"))
    pauses = rounds(polled(bot), 2002)
    assert (max(pauses), pauses[-2:]) == (MAX_BACKOFF_SECONDS, [0.0, 1.0])


def test_operator_hears_who_has_the_updates_and_that_a_token_is_wrong():
    """platforms.md 2.4: 409 is configuration, 401 and 404 stop the bot: both are alerts, with their cures."""
    alerts = MemoryAlerts()
    rounds(polled(Bot(WebhookConflict("run `sayso webhook delete tg`")), alerts=alerts), 1)
    assert [alert.text for alert in alerts.of(["tg"])] == ["run `sayso webhook delete tg`"]
    bot = Bot(ChannelDown("the token is wrong"))
    asyncio.run(asyncio.wait_for(polled(bot, alerts=alerts).run(), 60))
    assert (alerts.of(["tg"])[0].text.startswith("the token is wrong"), bot.offsets) == (True, [None])


def test_one_process_asks_at_a_time(redis_client: Redis):
    """On whatever machine: the next one begins when the first lets go, or gives no sign of life."""
    first, second = LeaderLock(redis_client, "poll:1"), LeaderLock(redis_client, "poll:1")
    assert (first.take(), second.take(), first.take(), second.is_held()) == (True, False, True, True)
    second.leave()
    assert not second.take()
    first.leave()
    assert (second.take(), first.take()) == (True, False)


def test_polling_channel_takes_no_webhook():
    """platforms.md 2.2: without a secret anybody could write one, a secret that is empty included."""
    channel = telegram(None, None, secret_token=None)
    for hook in (telegram_hook(said(1)), signing.telegram_hook("", said(1))):
        with pytest.raises(Forbidden, match="this channel polls"):
            channel.receive(hook)


@pytest.fixture
def platforms() -> Any:
    """A Telegram."""
    with FakePlatforms() as running:
        yield running


def asked(platforms: FakePlatforms, offset: int | None = None, **settings: Any) -> list[Any]:
    """What Telegram tells the channel."""
    return asyncio.run(telegram(None, platforms.telegram_url, **settings).updates(offset))


def test_updates_are_those_that_a_webhook_would_bring(platforms: FakePlatforms):
    """platforms.md 2.1, 2.5: as they are, also those that PTB cannot make an object of; of the kinds that are read."""
    for update in (said(1), POISON, {"update_id": 3, "message_reaction": {}}):
        platforms.update(update)
    assert asked(platforms) == [said(1), POISON, {"update_id": 3, "message_reaction": {}}][:2]
    platforms.update({"update_id": 4, "channel_post": {}})
    platforms.update(said(5))
    assert asked(platforms, 3) == [said(5)]


def test_who_has_the_updates_is_told_apart(platforms: FakePlatforms):
    """platforms.md 2.4: a webhook that is set, and another poller; each has its cure."""
    platforms.ledger.state["telegram webhook"] = {"url": "https://bots.example.com", "pending_update_count": 0}
    with pytest.raises(WebhookConflict, match="run `sayso channel disconnect tg`"):
        asked(platforms)
    with pytest.raises(ChannelDown):
        asked(platforms, token=f"{TELEGRAM_TOKEN}x")


def test_flood_that_fills_the_window_is_passed_over(caplog: pytest.LogCaptureFixture):
    """platforms.md 2.1: Telegram tells a hundred at once, from one offset on. Who was told that it is too much loses
    the oldest half of it: all others were not heard at all until a model had answered two hundred messages.
    """
    outcomes = iter(["new", *["full"] * 3, "new"])
    mailbox = FakeMailbox(lambda: next(outcomes))
    flood = [said(number) for number in range(1, WINDOW + 2)]
    half = WINDOW // 2 + 1
    bot = Bot(flood[:WINDOW], flood[1:], [*flood[half:], said(999, user=77)])
    assert rounds(polled(bot, mailbox), 3) == [RETRY_SECONDS] * 3
    assert [turn.event_id for turn, _ in mailbox.turns] == ["1", "2", "2", str(half + 1), "999"]
    assert (bot.offsets, "poll.skipped" in caplog.text) == ([None, 2, half + 1], True)


def test_one_who_is_refused_for_long_holds_up_nobody_behind_a_full_window():
    """Those of others are kept, and would fill the window for as long as one waits at its head."""
    outcomes = iter(["full", *["new"] * (WINDOW - 1), "full"])
    batch = [said(1, user=66), *(said(number) for number in range(2, WINDOW + 1))]
    bot = Bot(batch, batch, [])
    assert rounds(polled(bot, FakeMailbox(lambda: next(outcomes))), 3) == [RETRY_SECONDS, 0.0, 0.0]
    assert bot.offsets == [None, 1, WINDOW + 1]


def test_full_window_of_what_the_store_refuses_waits():
    """It is not their fault, and comes to an end: nothing of it is passed over."""
    batch = [said(number) for number in range(1, WINDOW + 1)]
    bot = Bot(batch, batch, batch)
    rounds(polled(bot, FakeMailbox(lambda: raised(ResponseError("READONLY")))), 3)
    assert bot.offsets == [None, 1, 1]


def test_stop_overtakes_words_that_wait():
    """What runs is stopped now, and not once a flood before it was answered."""
    outcomes = iter(["full", "new"])
    mailbox = FakeMailbox(lambda: next(outcomes))
    rounds(polled(Bot([said(1), said(2), signing.telegram_text(3, "/stop")]), mailbox), 1)
    assert [turn.event_id for turn, _ in mailbox.turns] == ["1", "3"]


def test_who_begins_to_ask_again_asks_from_nowhere():
    """platforms.md 2.1: meanwhile another process asked, and numbers may have begun anew below our last one."""
    bot = Bot([said(9000)], ChannelDown("gone"), [said(4)], ChannelDown("gone"))
    poller = polled(bot)
    for _ in range(2):
        asyncio.run(poller._poll())
    assert bot.offsets == [None, 9001, None, 5]


def test_poller_that_breaks_ends_its_process():
    """Whoever keeps processes alive starts another one; none is left that looks alive and asks nobody."""

    class Broken(Held):
        def take(self) -> bool:
            raise RuntimeError("can't start new thread")

    broken = Poller(Bot(), None, Broken())
    with pytest.raises(ExceptionGroup):
        asyncio.run(asyncio.wait_for(run_pollers([broken]), 5))


def test_answer_that_nobody_can_read_is_not_logged(platforms: FakePlatforms, caplog: pytest.LogCaptureFixture):
    """It may be half of what people wrote."""
    platforms.fakes["telegram"].answer = lambda _: FakeResponse(200, b'{"result": [{"message": {"text": "my diagnosis')
    with pytest.raises(DeliveryUncertain):
        asked(platforms)
    assert "diagnosis" not in caplog.text
