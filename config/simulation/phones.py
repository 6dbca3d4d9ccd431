"""Phones: what a person does on each platform, as the signed webhook that the platform would send."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from sayso.channels.fakes import platforms as fakes
from sayso.channels.fakes import signing
from sayso.channels.fakes.platforms import FakePlatforms

#: What lies between the names of two people in one group: more than there are groups.
OTHERS = 1_000_000


class Phone(Protocol):
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

    def others(self, count: int) -> Sequence[Phone]:
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

    def others(self, _: int) -> Sequence[Phone]:
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

    def others(self, count: int) -> Sequence[Phone]:
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

    def others(self, count: int) -> Sequence[Phone]:
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
) -> list[tuple[Phone, str]]:
    """So many people, spread over the channels: each one's phone, and the URL its webhooks go to.

    `hooks` are a platform and a webhook URL for each channel. `skew` is how many seconds Slack's clock is ahead.
    """
    kinds = {**PHONES, "slack": partial(SlackPhone, clock=lambda: time.time() + skew)}
    made: list[tuple[Phone, str]] = []
    for name in range(1, count + 1):
        platform, url = hooks[name % len(hooks)]
        made.append((kinds[platform](platforms, name, url), url))
    return made
