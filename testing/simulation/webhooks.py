"""The webhooks of simulated users: how they are signed, delivered, repeated and retried.

A client is one person on one platform, who signs webhooks as that platform does. A delivery posts
them to the webs of the bot, again and again until one answers 200, as platforms do.
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
#: How long a web may take to answer, in seconds.
TIMEOUT = 15.0
#: The pause before each of the first retries, in seconds. Real platforms wait longer.
RETRY_SECONDS = 1.0
#: How many retries have this pause. After them it doubles each time.
CONSTANT_RETRIES = 5
#: How many times as long the pause becomes at most.
MAX_FACTOR = 10.0
#: Seconds within which a repeat that is sent at the same moment has arrived, too.
AT_ONCE_SECONDS = 1.0
#: The most deliveries of one webhook.
MAX_DELIVERIES = 5
#: Returns the webhook, signed when it is called.
SignWebhook = Callable[[], SignedWebhook]
#: Each person has a number. In a group, the number of a stranger is that of the person plus a
#: multiple of this offset, which is larger than the number of groups.
STRANGER_OFFSET = 1_000_000


@dataclass(frozen=True, slots=True)
class DeliveryResponse:
    """The response of a web to one delivery. Times are of the monotonic clock."""

    #: The HTTP status; 0 for no response, because the web was killed.
    status: int
    #: The header Retry-After; "" if there is none.
    retry_after: str
    #: When the delivery began.
    began: float
    #: When the response came, or its absence was noticed.
    at: float

    @property
    def lacks_retry_after(self) -> bool:
        """Whether it is a 503 that does not say after how many seconds to try again."""
        return self.status == 503 and not self.retry_after.isdigit()


class WebhookDelivery:
    """Delivers webhooks until they are accepted, and some of them several times.

    Lives as long as its event loop.

    `repeated` is the share (0 to 1) of webhooks that are delivered again, `late` the share of these
    repeats that come late, and `late_seconds` how late they come at most. `addresses` are the host
    and port of each web; a delivery goes to one of them by chance, or without any to the host of
    its URL.
    """

    def __init__(
        self,
        *,
        rng: Random,
        repeated: float = 0.0,
        late: float = 0.0,
        late_seconds: float = 0.0,
        addresses: Sequence[str] = (),
    ) -> None:
        #: The number of responses, by status; 0 is no response.
        self.answers: Counter[int] = Counter()
        #: The number of deliveries that repeated an earlier one.
        self.repeated = 0
        #: The number of 503 that did not say when to try again.
        self.without_retry_after = 0
        #: During an outage: counts the responses to deliveries that begin and end in it, by status.
        #: The simulation sets it; None without an outage.
        self.outage_statuses: Counter[int] | None = None
        #: How long each accepted delivery took, in seconds.
        self.seconds: list[float] = []
        self._repeated_share = repeated
        self._late_share = late
        self._late_seconds = late_seconds
        self._rng = rng
        self._addresses = addresses
        self._executor = ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="webhooks")
        #: The connections of each thread, by address.
        self._local = threading.local()
        #: The repeats that have not been delivered yet.
        self._repeats: set[asyncio.Task[None]] = set()

    async def deliver(self, url: str, hook: SignWebhook) -> float:
        """Deliver until it is accepted. Perhaps also schedule repeats, now or later.

        Return when it was accepted, on the monotonic clock.
        """
        if self._rng.random() < self._repeated_share:
            for _ in range(self._rng.randint(1, MAX_DELIVERIES - 1)):
                delay = 0.0
                if self._rng.random() < self._late_share:
                    delay = self._rng.random() * self._late_seconds
                task = asyncio.create_task(self._repeat(url, hook, delay))
                self._repeats.add(task)
                task.add_done_callback(self._repeats.discard)

        attempts = 0
        while True:
            answer = await self._post(url, hook)
            if answer.status == 200:
                return answer.at
            attempts += 1
            factor = min(2 ** max(0, attempts - CONSTANT_RETRIES), MAX_FACTOR)
            await asyncio.sleep(RETRY_SECONDS * factor * (0.5 + self._rng.random() / 2))

    @property
    def longest_delay(self) -> float:
        """The seconds after its acceptance within which a webhook may be delivered again."""
        if not self._repeated_share:
            return 0.0
        if not self._late_share:
            return AT_ONCE_SECONDS
        return self._late_seconds + AT_ONCE_SECONDS

    async def wait_for_repeats(self) -> None:
        """Wait until all scheduled repeats are delivered."""
        while self._repeats:
            await asyncio.gather(*self._repeats)

    def close(self) -> None:
        """Stop delivering."""
        self._executor.shutdown(cancel_futures=True)

    async def _repeat(self, url: str, hook: SignWebhook, delay: float) -> None:
        await asyncio.sleep(delay)
        self.repeated += 1
        await self._post(url, hook)

    async def _post(self, url: str, hook: SignWebhook) -> DeliveryResponse:
        """Deliver once, and count the response."""
        parts = urlsplit(url)
        address = parts.netloc
        if self._addresses:
            address = self._rng.choice(self._addresses)
        outage_statuses = self.outage_statuses
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(
            self._executor, self._post_in_thread, address, parts.path, hook
        )

        self.answers[answer.status] += 1
        self.without_retry_after += answer.lacks_retry_after
        # The outage may have ended, or another one begun, while the web answered.
        if outage_statuses is not None and outage_statuses is self.outage_statuses:
            outage_statuses[answer.status] += 1
        if answer.status == 200:
            self.seconds.append(answer.at - answer.began)
        return answer

    def _post_in_thread(self, address: str, path: str, hook: SignWebhook) -> DeliveryResponse:
        """Deliver once, and block until the response."""
        began = time.monotonic()
        # Each thread has one open connection to each web: a new one for each webhook would be slow.
        connections = vars(self._local)
        if address not in connections:
            connections[address] = http.client.HTTPConnection(address, timeout=TIMEOUT)
        connection: http.client.HTTPConnection = connections[address]
        is_reused = connection.sock is not None
        status, retry_after = _send(connection, path, hook)
        # The web may have closed an idle connection. That is not a failed delivery.
        if is_reused and not status:
            status, retry_after = _send(connection, path, hook)
        return DeliveryResponse(
            status=status, retry_after=retry_after, began=began, at=time.monotonic()
        )


def _send(connection: http.client.HTTPConnection, path: str, hook: SignWebhook) -> tuple[int, str]:
    """Post a webhook. Return the status and the header Retry-After, 0 and "" without a response."""
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

    `number` is that of the person's act. The same number is the same event, signed again.
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
        """Make this chat a group, and return the clients of this many other members.

        Return none if the platform has no groups.
        """


class WhatsAppClient:
    """A person on WhatsApp through Twilio.

    `person` is a number below a hundred million. `url` is the webhook URL, which is part of the
    signature.
    """

    def __init__(self, platforms: FakePlatforms, person: int, url: str) -> None:
        self._photo = platforms.host("twilio", signing.JPEG)
        self._url = url
        self.chat = f"whatsapp:+49151{person:08}"

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
    """A person on Telegram, in a private chat, or in a group after `add_strangers`.

    In a group, texts of several words and photos are replies to the bot, because it reads only what
    is addressed to it. A single word, such as a yes, is not a reply: the bot must know it as the
    answer to its question. `chat` is the id of a group; 0 for the private chat.
    """

    def __init__(self, platforms: FakePlatforms, person: int, _url: str, chat: int = 0) -> None:
        self._photo = platforms.host("telegram", signing.JPEG)
        self._platforms = platforms
        self._person = person
        self._user = int(telegram_id(person))
        self._chat = chat or self._user

    @property
    def chat(self) -> str:
        """The fake platform's name of the chat that receives the answers."""
        return str(self._chat)

    def text(self, number: int, text: str) -> signing.SignedWebhook:
        """Return the webhook of a typed message."""
        is_sentence = " " in text
        fields = self._chat_fields(addressed=is_sentence)
        return self._signed(signing.telegram_text(number, text, **fields))

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
        people = (self._person + STRANGER_OFFSET * number for number in range(1, count + 1))
        return [TelegramClient(self._platforms, person, "", self._chat) for person in people]

    def _chat_fields(self, *, addressed: bool = True) -> dict[str, Any]:
        fields: dict[str, Any] = {"user": self._user, "chat": self._chat}
        if addressed and self._chat < 0:
            bot_id = int(fakes.TELEGRAM_TOKEN.partition(":")[0])
            bot_message = {"message_id": 1, "from": {"id": bot_id, "is_bot": True}}
            fields["reply_to_message"] = bot_message
        return fields

    def _signed(self, update: dict[str, Any]) -> signing.SignedWebhook:
        return signing.telegram_hook(fakes.TELEGRAM_SECRET, update)


def telegram_id(person: int) -> str:
    """Return the id of a person on Telegram, by the person's number."""
    return str(5_000_000_000 + person)


class SlackClient:
    """A person on Slack, in one thread of a direct message, or of a channel after `add_strangers`.

    In a channel every message mentions the bot. Webhooks are signed when they are delivered, as
    Slack does for repeats too, with the time of `clock` in Unix seconds. A web whose clock is more
    than five minutes off refuses them all. `chat` is the id of a channel; "" for a direct message.
    """

    def __init__(
        self,
        platforms: FakePlatforms,
        person: int,
        _url: str,
        chat: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._photo = platforms.host("slack", signing.JPEG)
        self._platforms = platforms
        self._person = person
        self._clock = clock
        self._user = f"U{person}"
        self.chat = chat or f"D{person:08}"
        #: The trigger of each tap, by the number of the act: a repeated webhook has the same.
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
        people = (self._person + STRANGER_OFFSET * number for number in range(1, count + 1))
        return [
            SlackClient(self._platforms, person, "", self.chat, self._clock) for person in people
        ]

    @property
    def _is_direct(self) -> bool:
        return self.chat.startswith("D")

    def _chat_fields(self) -> dict[str, Any]:
        # All messages are in the thread below message 0, which no act has.
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
    """A platform that can be simulated, because it has a fake."""

    #: Makes the client of a person, from the fakes, the person's number and the webhook URL. Only
    #: Twilio signs the URL; the other clients ignore it.
    client: Callable[..., WebhookClient]
    #: The name of its fake in `FakePlatforms`.
    fake: str
    #: The keys of a channel that hold secrets, and the secrets that the fake accepts.
    secrets: Mapping[str, str]
    #: Further keys of a channel, and their values.
    settings: Mapping[str, str | bool] = field(default_factory=dict)


#: The platforms that can be simulated, by their name in the configuration.
SIMULATED: Mapping[str, SimulatedPlatform] = {
    "whatsapp": SimulatedPlatform(
        client=WhatsAppClient,
        fake="twilio",
        secrets={"auth_token": fakes.TWILIO_AUTH_TOKEN},
        settings={"account_sid": fakes.TWILIO_ACCOUNT_SID, "from": "whatsapp:+14155238886"},
    ),
    "telegram": SimulatedPlatform(
        client=TelegramClient,
        fake="telegram",
        secrets={"token": fakes.TELEGRAM_TOKEN, "secret_token": fakes.TELEGRAM_SECRET},
        # People send webhooks, which a bot that polls refuses.
        settings={"polling": False},
    ),
    "slack": SimulatedPlatform(
        client=SlackClient,
        fake="slack",
        secrets={"bot_token": fakes.SLACK_BOT_TOKEN, "signing_secret": fakes.SLACK_SIGNING_SECRET},
    ),
}


def webhook_clients(
    platforms: FakePlatforms, hooks: Sequence[tuple[str, str]], count: int, skew: float = 0.0
) -> list[tuple[WebhookClient, str]]:
    """Return the clients of this many people, spread over the channels, each with its webhook URL.

    `hooks` are a platform and a webhook URL for each channel. `skew` is how many seconds Slack's
    clock is ahead.
    """
    make_client = {platform: simulated.client for platform, simulated in SIMULATED.items()}
    make_client["slack"] = partial(SlackClient, clock=lambda: time.time() + skew)
    clients: list[tuple[WebhookClient, str]] = []
    for person in range(1, count + 1):
        platform, url = hooks[person % len(hooks)]
        client = make_client[platform](platforms, person, url)
        clients.append((client, url))
    return clients
