"""Signed webhooks per platform, delivery with repeats."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol
from urllib.parse import urlsplit

from sayso.channels.types import Signed
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.simulation.plan import LATE_SECONDS

#: Webhooks on their way at once.
HANDS = 24


#: Seconds for one delivery.
TIMEOUT = 15.0


#: Seconds at most until a webhook that was not taken is delivered again, after so many tries ever twice as many, and
#: never more. Real platforms take longer.
AGAIN_SECONDS, PATIENT_TRIES, MOST_SECONDS = 1.0, 5, 10.0


#: Times a webhook is delivered at most.
MOST_DELIVERIES = 5


#: Makes the webhook, signed at the moment it is sent.
SignHook = Callable[[], Signed]


@dataclass(frozen=True, slots=True)
class DeliveryAnswer:
    """What one delivery heard. Status 0 is no answer; `again` is what Retry-After says, "" where nothing does.

    Moments are of the monotonic clock.
    """

    status: int
    again: str
    began: float
    at: float

    @property
    def is_curt(self) -> bool:
        """Whether it refuses for now, and does not say for how many seconds."""
        return self.status == 503 and not self.again.isdigit()


class WebhookDelivery:
    """Lives as long as the people's event loop. `answers` counts what the web said, by status; 0 is no answer.

    `curt` counts refusals that did not say when to come again. `late` is by how many seconds a repeat is late at most.

    Each delivery goes to one of the `doors`, host and port of a web; without any, to the host of its URL. While
    `during` is a counter, what is answered to deliveries that begin and end meanwhile is counted there as well.
    `seconds` are how long those took that were taken.
    """

    def __init__(
        self,
        *,
        redeliver: float,
        shuffle: float,
        chance: Random,
        late: float = LATE_SECONDS,
        doors: Sequence[str] = (),
    ) -> None:
        self.answers: Counter[int] = Counter()
        self.repeated = self.curt = 0
        self.during: Counter[int] | None = None
        self.seconds: list[float] = []
        self._redeliver, self._shuffle, self._late = redeliver, shuffle, late
        self._chance, self._doors = chance, doors
        self._hands = ThreadPoolExecutor(HANDS, thread_name_prefix="courier")
        self._local = threading.local()
        self._later: set[asyncio.Task[None]] = set()

    async def deliver(self, url: str, hook: SignHook) -> float:
        """Deliver until it is taken; perhaps several times at once, or again later, beside everything else.

        Returns the moment at which it was taken, of the monotonic clock.
        """
        if self._chance.random() < self._redeliver:
            for _ in range(self._chance.randint(1, MOST_DELIVERIES - 1)):
                self._plan(url, hook)
        tries = 0
        while True:
            answer = await self._post(url, hook)
            if answer.status == 200:
                return answer.at
            tries += 1
            again = AGAIN_SECONDS * min(2 ** max(0, tries - PATIENT_TRIES), MOST_SECONDS)
            await asyncio.sleep(again * (0.5 + self._chance.random() / 2))

    async def drained(self) -> None:
        """Wait until everything that is delivered again was."""
        while self._later:
            await asyncio.gather(*self._later)

    def close(self) -> None:
        """No more deliveries."""
        self._hands.shutdown(cancel_futures=True)

    def _plan(self, url: str, hook: SignHook) -> None:
        late = self._chance.random() * self._late if self._chance.random() < self._shuffle else 0.0
        task = asyncio.create_task(self._repeat(url, hook, late))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _repeat(self, url: str, hook: SignHook, late: float) -> None:
        await asyncio.sleep(late)
        self.repeated += 1
        await self._post(url, hook)

    async def _post(self, url: str, hook: SignHook) -> DeliveryAnswer:
        place, during = urlsplit(url), self.during
        door = self._chance.choice(self._doors) if self._doors else place.netloc
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._hands, self._posted, door, place.path, hook)
        self.answers[answer.status] += 1
        self.curt += answer.is_curt
        if during is not None and during is self.during:
            during[answer.status] += 1
        if answer.status == 200:
            self.seconds.append(answer.at - answer.began)
        return answer

    def _posted(self, door: str, path: str, hook: SignHook) -> DeliveryAnswer:
        connection, began = self._connection(door), time.monotonic()
        kept = connection.sock is not None
        status, again = _posted(connection, path, hook)
        if kept and not status:  # the web may have closed what nobody used for a while: that is no failed delivery
            status, again = _posted(connection, path, hook)
        return DeliveryAnswer(status, again, began, time.monotonic())

    def _connection(self, address: str) -> http.client.HTTPConnection:
        """This thread's connection, kept between deliveries."""
        kept = vars(self._local)
        if address not in kept:
            kept[address] = http.client.HTTPConnection(address, timeout=TIMEOUT)
        connection: http.client.HTTPConnection = kept[address]
        return connection


def _posted(connection: http.client.HTTPConnection, path: str, hook: SignHook) -> tuple[int, str]:
    """The status and Retry-After; 0 when there was no answer: the web was killed, or has not come back yet."""
    headers, body = hook()
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0, ""
    return answer.status, answer.headers.get("Retry-After", "")


#: What lies between the names of two people in one group: more than there are groups.
OTHERS = 1_000_000


class WebhookClient(Protocol):
    """One person's app. Acts have numbers: the same number is the same event, signed anew."""

    @property
    def chat(self) -> str:
        """How the fake platform calls the chat that answers arrive in."""

    def text(self, number: int, text: str) -> signing.Signed:
        """A typed message."""

    def tap(self, number: int, data: str) -> signing.Signed:
        """A tapped button."""

    def photo(self, number: int, caption: str) -> signing.Signed:
        """A photo with words."""

    def others(self, count: int) -> Sequence[WebhookClient]:
        """The phones of so many others in this chat, which is a group then. Nobody where there are no groups."""


class WhatsAppPhone:
    """On WhatsApp, through Twilio. `url` is the webhook's, which Twilio signs."""

    def __init__(self, platforms: FakePlatforms, name: int, url: str) -> None:
        self._photo = platforms.host("twilio", signing.JPEG)
        self._url = url
        self.chat = f"whatsapp:+49151{name:08}"

    def text(self, number: int, text: str) -> signing.Signed:
        """A typed message."""
        return self._signed(signing.whatsapp_text(self._sid(number), text, **self._who()))

    def tap(self, number: int, data: str) -> signing.Signed:
        """A tapped button."""
        return self._signed(signing.whatsapp_tap(self._sid(number), data, **self._who()))

    def photo(self, number: int, caption: str) -> signing.Signed:
        """A photo with words."""
        return self._signed(signing.whatsapp_photo(self._sid(number), self._photo, caption, **self._who()))

    def others(self, _: int) -> Sequence[WebhookClient]:
        """Nobody: Twilio's WhatsApp has no groups."""
        return ()

    def _sid(self, number: int) -> str:
        return f"SM{number:032x}"

    def _who(self) -> dict[str, str]:
        return {"account_sid": fakes.TWILIO_ACCOUNT_SID, "user": self.chat}

    def _signed(self, form: dict[str, str]) -> signing.Signed:
        return signing.whatsapp_hook(self._url, fakes.TWILIO_AUTH_TOKEN, form)


class TelegramPhone:
    """On Telegram, in a private chat. In a group requests reply to the bot, which addresses it; one word does not."""

    def __init__(self, platforms: FakePlatforms, name: int, _: str, chat: int = 0) -> None:
        self._photo = platforms.host("telegram", signing.JPEG)
        self._platforms, self._name = platforms, name
        self._user = 5_000_000_000 + name
        self._chat = chat or self._user

    @property
    def chat(self) -> str:
        """How the fake platform calls the chat that answers arrive in."""
        return str(self._chat)

    def text(self, number: int, text: str) -> signing.Signed:
        """A typed message."""
        return self._signed(signing.telegram_text(number, text, **self._where(addressed=" " in text)))

    def tap(self, number: int, data: str) -> signing.Signed:
        """A tapped button."""
        return self._signed(signing.telegram_tap(number, data, user=self._user, chat=self._chat))

    def photo(self, number: int, caption: str) -> signing.Signed:
        """A photo with words."""
        return self._signed(signing.telegram_photo(number, self._photo, caption, **self._where()))

    def others(self, count: int) -> Sequence[WebhookClient]:
        """The phones of so many others in this chat, which is a group from now on."""
        self._chat = -1_000_000_000_000 - self._user
        names = (self._name + OTHERS * number for number in range(1, count + 1))
        return [TelegramPhone(self._platforms, name, "", self._chat) for name in names]

    def _where(self, *, addressed: bool = True) -> dict[str, Any]:
        bot = {"message_id": 1, "from": {"id": int(fakes.TELEGRAM_TOKEN.partition(":")[0]), "is_bot": True}}
        reply = {"reply_to_message": bot} if addressed and self._chat < 0 else {}
        return {"user": self._user, "chat": self._chat, **reply}

    def _signed(self, update: dict[str, Any]) -> signing.Signed:
        return signing.telegram_hook(fakes.TELEGRAM_SECRET, update)


class SlackPhone:
    """On Slack, in a direct message, or in a thread of a channel, where every message names the bot.

    Signed at the moment of delivery, as Slack does with repeats too, by `clock`: a web whose own is more than five
    minutes away from it refuses everything.
    """

    def __init__(
        self, platforms: FakePlatforms, name: int, _: str, chat: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self._photo = platforms.host("slack", signing.JPEG)
        self._platforms, self._name, self._clock = platforms, name, clock
        self._user = f"U{name}"
        self.chat = chat or f"D{name:08}"

    def text(self, number: int, text: str) -> signing.Signed:
        """A typed message."""
        return self._signed(signing.slack_text(self._ts(number), self._called(text), **self._where()))

    def tap(self, number: int, data: str) -> signing.Signed:
        """A tapped button."""
        return self._signed(signing.slack_tap(f"t.{number}", data, **self._where()))

    def photo(self, number: int, caption: str) -> signing.Signed:
        """A photo with words."""
        return self._signed(signing.slack_photo(self._ts(number), self._photo, self._called(caption), **self._where()))

    def others(self, count: int) -> Sequence[WebhookClient]:
        """The phones of so many others in this chat, which is a thread of a channel from now on."""
        self.chat = self.chat.replace("D", "C")
        names = (self._name + OTHERS * number for number in range(1, count + 1))
        return [SlackPhone(self._platforms, name, "", self.chat, self._clock) for name in names]

    @property
    def _is_direct(self) -> bool:
        return self.chat.startswith("D")

    def _where(self) -> dict[str, Any]:
        thread = {} if self._is_direct else {"thread_ts": self._ts(0)}
        return {"user": self._user, "channel": self.chat, **thread}

    def _called(self, text: str) -> str:
        return text if self._is_direct else f"<@U0BOT> {text}"

    def _ts(self, number: int) -> str:
        return f"1795204800.{number:06}"

    def _signed(self, body: bytes) -> signing.Signed:
        return signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, self._clock())


#: The phone of each platform of the YAML.
PHONES: dict[str, type[WhatsAppPhone] | type[TelegramPhone] | type[SlackPhone]] = {
    "whatsapp": WhatsAppPhone,
    "telegram": TelegramPhone,
    "slack": SlackPhone,
}


def phones(
    platforms: FakePlatforms, hooks: Sequence[tuple[str, str]], count: int, skew: float = 0.0
) -> list[tuple[WebhookClient, str]]:
    """So many people, spread over the channels: each one's phone, and the URL its webhooks go to.

    `hooks` are a platform and a webhook URL for each channel. `skew` is how many seconds Slack's clock is ahead.
    """
    kinds = {**PHONES, "slack": partial(SlackPhone, clock=lambda: time.time() + skew)}
    made: list[tuple[WebhookClient, str]] = []
    for name in range(1, count + 1):
        platform, url = hooks[name % len(hooks)]
        made.append((kinds[platform](platforms, name, url), url))
    return made
