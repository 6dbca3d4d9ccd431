"""The webhooks of simulated users: signed as each platform does,
and delivered with repeats and retries.
"""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Protocol
from urllib.parse import urlsplit

from sayso.channels.types import SignedWebhook
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.slack_views import new_trigger

#: Webhooks that are delivered at the same time.
MAX_CONCURRENT = 24
#: Timeout of one delivery, in seconds.
TIMEOUT = 15.0
#: The pause before a retry in seconds, the number of tries after which it doubles, and its maximum
#: as a multiple. Real platforms wait longer.
RETRY_SECONDS = 1.0
CONSTANT_RETRIES = 5
MAX_FACTOR = 10.0
#: Seconds within which a repeat that is sent at the same moment has arrived, too.
AT_ONCE_SECONDS = 1.0
#: The most deliveries of one webhook.
MAX_DELIVERIES = 5
#: Returns the webhook, signed when it is called.
SignWebhook = Callable[[], SignedWebhook]
#: Distance between the names of two people in one group; larger than the number of groups.
STRANGER_OFFSET = 1_000_000


@dataclass(frozen=True, slots=True)
class DeliveryResponse:
    """The response to one delivery.

    Status 0 is no response; `retry_after` is the header, "" if there is none.

    Times are of the monotonic clock.
    """

    status: int
    retry_after: str
    began: float
    at: float

    @property
    def lacks_retry_after(self) -> bool:
        """Whether it is a 503 without a number of seconds."""
        return self.status == 503 and not self.retry_after.isdigit()


class WebhookDelivery:
    """Delivers webhooks until they are accepted, and some of them several times.

    Lives as long as its event loop.

    `answers` counts the responses by status; 0 is no response. `without_retry_after` counts 503s
    that did not say when to retry. `repeated` is the share of webhooks that are delivered again,
    `late` the share of these repeats that come late, by at most `late_seconds`.

    Each delivery goes to one of the `addresses` (host:port of a web process); without any, to the
    host of its URL. While `during` is a counter, deliveries that begin and end meanwhile are
    counted there too. `seconds` are the durations of accepted deliveries.
    """

    def __init__(
        self,
        *,
        chance: Random,
        repeated: float = 0.0,
        late: float = 0.0,
        late_seconds: float = 0.0,
        addresses: Sequence[str] = (),
    ) -> None:
        self.answers: Counter[int] = Counter()
        self.repeated = self.without_retry_after = 0
        self.during: Counter[int] | None = None
        self.seconds: list[float] = []
        self._repeated = repeated
        self._late = late
        self._late_seconds = late_seconds
        self._chance = chance
        self._addresses = addresses
        self._executor = ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="courier")
        self._local = threading.local()
        self._later: set[asyncio.Task[None]] = set()

    async def deliver(self, url: str, hook: SignWebhook) -> float:
        """Deliver until it is accepted. Perhaps also schedule repeats, now or later.

        Return when it was accepted, on the monotonic clock.
        """
        if self._chance.random() < self._repeated:
            for _ in range(self._chance.randint(1, MAX_DELIVERIES - 1)):
                if self._chance.random() < self._late:
                    delay = self._chance.random() * self._late_seconds
                else:
                    delay = 0.0
                task = asyncio.create_task(self._repeat(url, hook, delay))
                self._later.add(task)
                task.add_done_callback(self._later.discard)
        tries = 0
        while True:
            answer = await self._post(url, hook)
            if answer.status == 200:
                return answer.at
            tries += 1
            pause = RETRY_SECONDS * min(2 ** max(0, tries - CONSTANT_RETRIES), MAX_FACTOR)
            await asyncio.sleep(pause * (0.5 + self._chance.random() / 2))

    @property
    def longest_delay(self) -> float:
        """The seconds after its acceptance within which a webhook may be delivered again."""
        if not self._repeated:
            return 0.0
        return (self._late_seconds if self._late else 0.0) + AT_ONCE_SECONDS

    async def wait_for_repeats(self) -> None:
        """Wait for all scheduled repeats."""
        while self._later:
            await asyncio.gather(*self._later)

    def close(self) -> None:
        """Stop delivering."""
        self._executor.shutdown(cancel_futures=True)

    async def _repeat(self, url: str, hook: SignWebhook, delay: float) -> None:
        await asyncio.sleep(delay)
        self.repeated += 1
        await self._post(url, hook)

    async def _post(self, url: str, hook: SignWebhook) -> DeliveryResponse:
        place = urlsplit(url)
        during = self.during
        if self._addresses:
            address = self._chance.choice(self._addresses)
        else:
            address = place.netloc
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(
            self._executor, self._post_in_thread, address, place.path, hook
        )
        self.answers[answer.status] += 1
        self.without_retry_after += answer.lacks_retry_after
        if during is not None and during is self.during:
            during[answer.status] += 1
        if answer.status == 200:
            self.seconds.append(answer.at - answer.began)
        return answer

    def _post_in_thread(self, address: str, path: str, hook: SignWebhook) -> DeliveryResponse:
        # each thread keeps its own open
        connections = vars(self._local)
        began = time.monotonic()
        if address not in connections:
            connections[address] = http.client.HTTPConnection(address, timeout=TIMEOUT)
        connection: http.client.HTTPConnection = connections[address]
        reused = connection.sock is not None
        status, retry_after = _send(connection, path, hook)
        # The web may have closed an idle connection: not a failed delivery.
        if reused and not status:
            status, retry_after = _send(connection, path, hook)
        return DeliveryResponse(status, retry_after, began, time.monotonic())


def _send(connection: http.client.HTTPConnection, path: str, hook: SignWebhook) -> tuple[int, str]:
    """Return the status and Retry-After; status 0 if there was no
    response because the web was killed.
    """
    headers, body = hook()
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0, ""
    return answer.status, answer.headers.get("Retry-After", "")


class WebhookClient(Protocol):
    """Signs the webhooks of one person on one platform.

    The same number is the same event, signed again.
    """

    @property
    def chat(self) -> str:
        """The fake platform's name of the chat that receives the answers."""

    def text(self, number: int, text: str) -> signing.SignedWebhook:
        """Return the webhook of a typed message."""

    def tap(self, number: int, data: str) -> signing.SignedWebhook:
        """Return the webhook of a tapped button."""

    def photo(self, number: int, caption: str) -> signing.SignedWebhook:
        """Return the webhook of a photo with a caption."""

    def add_strangers(self, count: int) -> Sequence[WebhookClient]:
        """Make this chat a group and return the clients of this many others;
        none if the platform has no groups.
        """


class WhatsAppClient:
    """A person on WhatsApp through Twilio.

    `url` is the webhook URL, which is part of the signature.
    """

    def __init__(self, platforms: FakePlatforms, name: int, url: str) -> None:
        self._photo = platforms.host("twilio", signing.JPEG)
        self._url = url
        self.chat = f"whatsapp:+49151{name:08}"

    def text(self, number: int, text: str) -> signing.SignedWebhook:
        """Return the webhook of a typed message."""
        return self._signed(signing.whatsapp_text(self._sid(number), text, **self._sender()))

    def tap(self, number: int, data: str) -> signing.SignedWebhook:
        """Return the webhook of a tapped button."""
        return self._signed(signing.whatsapp_tap(self._sid(number), data, **self._sender()))

    def photo(self, number: int, caption: str) -> signing.SignedWebhook:
        """Return the webhook of a photo with a caption."""
        return self._signed(
            signing.whatsapp_photo(self._sid(number), self._photo, caption, **self._sender())
        )

    def add_strangers(self, _: int) -> Sequence[WebhookClient]:
        """Return no clients: WhatsApp at Twilio has no groups."""
        return ()

    def _sid(self, number: int) -> str:
        return f"SM{number:032x}"

    def _sender(self) -> dict[str, str]:
        return {"account_sid": fakes.TWILIO_ACCOUNT_SID, "user": self.chat}

    def _signed(self, form: dict[str, str]) -> signing.SignedWebhook:
        return signing.whatsapp_hook(self._url, fakes.TWILIO_AUTH_TOKEN, form)


class TelegramClient:
    """A person on Telegram, in a private chat.

    In a group, requests reply to the bot; single words do not.
    """

    def __init__(self, platforms: FakePlatforms, name: int, _: str, chat: int = 0) -> None:
        self._photo = platforms.host("telegram", signing.JPEG)
        self._platforms = platforms
        self._name = name
        self._user = 5_000_000_000 + name
        self._chat = chat or self._user

    @property
    def chat(self) -> str:
        """The fake platform's name of the chat that receives the answers."""
        return str(self._chat)

    def text(self, number: int, text: str) -> signing.SignedWebhook:
        """Return the webhook of a typed message."""
        return self._signed(
            signing.telegram_text(number, text, **self._chat_fields(addressed=" " in text))
        )

    def tap(self, number: int, data: str) -> signing.SignedWebhook:
        """Return the webhook of a tapped button."""
        return self._signed(signing.telegram_tap(number, data, user=self._user, chat=self._chat))

    def photo(self, number: int, caption: str) -> signing.SignedWebhook:
        """Return the webhook of a photo with a caption."""
        return self._signed(
            signing.telegram_photo(number, self._photo, caption, **self._chat_fields())
        )

    def add_strangers(self, count: int) -> Sequence[WebhookClient]:
        """Make this chat a group and return the clients of this many others in it."""
        self._chat = -1_000_000_000_000 - self._user
        names = (self._name + STRANGER_OFFSET * number for number in range(1, count + 1))
        return [TelegramClient(self._platforms, name, "", self._chat) for name in names]

    def _chat_fields(self, *, addressed: bool = True) -> dict[str, Any]:
        bot = {
            "message_id": 1,
            "from": {"id": int(fakes.TELEGRAM_TOKEN.partition(":")[0]), "is_bot": True},
        }
        if addressed and self._chat < 0:
            reply = {"reply_to_message": bot}
        else:
            reply = {}
        return {"user": self._user, "chat": self._chat, **reply}

    def _signed(self, update: dict[str, Any]) -> signing.SignedWebhook:
        return signing.telegram_hook(fakes.TELEGRAM_SECRET, update)


class SlackClient:
    """A person on Slack in one thread. In a channel every message mentions the bot.

    Webhooks are signed at delivery, as Slack does for repeats too, with the time of `clock`. A web
    whose clock is more than five minutes off refuses them all.
    """

    def __init__(
        self,
        platforms: FakePlatforms,
        name: int,
        _: str,
        chat: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._photo = platforms.host("slack", signing.JPEG)
        self._platforms = platforms
        self._name = name
        self._clock = clock
        self._user = f"U{name}"
        self.chat = chat or f"D{name:08}"
        #: The trigger of each tap: a repeated webhook has the same.
        self._triggers: dict[int, str] = {}

    def text(self, number: int, text: str) -> signing.SignedWebhook:
        """Return the webhook of a typed message."""
        return self._signed(
            signing.slack_text(self._ts(number), self._with_mention(text), **self._chat_fields())
        )

    def tap(self, number: int, data: str) -> signing.SignedWebhook:
        """Return the webhook of a tapped button."""
        trigger = self._triggers.setdefault(number, new_trigger(self._clock()))
        return self._signed(signing.slack_tap(trigger, data, **self._chat_fields()))

    def photo(self, number: int, caption: str) -> signing.SignedWebhook:
        """Return the webhook of a photo with a caption."""
        return self._signed(
            signing.slack_photo(
                self._ts(number), self._photo, self._with_mention(caption), **self._chat_fields()
            )
        )

    def add_strangers(self, count: int) -> Sequence[WebhookClient]:
        """Make this chat a thread of a channel and return the clients of this many others in it."""
        self.chat = self.chat.replace("D", "C")
        names = (self._name + STRANGER_OFFSET * number for number in range(1, count + 1))
        return [SlackClient(self._platforms, name, "", self.chat, self._clock) for name in names]

    @property
    def _is_direct(self) -> bool:
        return self.chat.startswith("D")

    def _chat_fields(self) -> dict[str, Any]:
        return {"user": self._user, "channel": self.chat, "thread_ts": self._ts(0)}

    def _with_mention(self, text: str) -> str:
        if self._is_direct:
            return text
        return f"<@U0BOT> {text}"

    def _ts(self, number: int) -> str:
        return f"1795204800.{number:06}"

    def _signed(self, body: bytes) -> signing.SignedWebhook:
        return signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, self._clock())


@dataclass(frozen=True, slots=True)
class SimulatedPlatform:
    """A platform with a fake, by its name there.

    `settings` are keys of its channels; `secrets` those of ${NAME}.
    """

    client: Callable[..., WebhookClient]
    fake: str
    secrets: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)


#: The platforms that can be simulated.
SIMULATED: Mapping[str, SimulatedPlatform] = {
    "whatsapp": SimulatedPlatform(
        WhatsAppClient,
        "twilio",
        {"auth_token": fakes.TWILIO_AUTH_TOKEN},
        {"account_sid": fakes.TWILIO_ACCOUNT_SID, "from": "whatsapp:+14155238886"},
    ),
    "telegram": SimulatedPlatform(
        TelegramClient,
        "telegram",
        {"token": fakes.TELEGRAM_TOKEN, "secret_token": fakes.TELEGRAM_SECRET},
    ),
    "slack": SimulatedPlatform(
        SlackClient,
        "slack",
        {"bot_token": fakes.SLACK_BOT_TOKEN, "signing_secret": fakes.SLACK_SIGNING_SECRET},
    ),
}


def webhook_clients(
    platforms: FakePlatforms, hooks: Sequence[tuple[str, str]], count: int, skew: float = 0.0
) -> list[tuple[WebhookClient, str]]:
    """Return this many people, spread over the channels: each one's client and webhook URL.

    `hooks` are a platform and a webhook URL for each channel.
    `skew` is how many seconds Slack's clock is ahead.
    """
    clients_of = {platform: row.client for platform, row in SIMULATED.items()}
    clients_of["slack"] = partial(SlackClient, clock=lambda: time.time() + skew)
    clients: list[tuple[WebhookClient, str]] = []
    for name in range(1, count + 1):
        platform, url = hooks[name % len(hooks)]
        clients.append((clients_of[platform](platforms, name, url), url))
    return clients
