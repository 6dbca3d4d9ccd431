"""Phones: what a person does on each platform, as the signed webhook that the platform would send."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from channels.fakes import platforms as fakes
from channels.fakes import signing
from channels.fakes.platforms import FakePlatforms


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

    def _sid(self, number: int) -> str:
        return f"SM{number:032x}"

    def _who(self) -> dict[str, str]:
        return {"account_sid": fakes.TWILIO_ACCOUNT_SID, "user": self.chat}

    def _signed(self, form: dict[str, str]) -> signing.Signed:
        return signing.whatsapp_hook(self._url, fakes.TWILIO_AUTH_TOKEN, form)


class TelegramPhone:
    """On Telegram, in a private chat."""

    def __init__(self, platforms: FakePlatforms, name: int, _: str) -> None:
        self._photo = platforms.host("telegram", signing.JPEG)
        self._user = 5_000_000_000 + name
        self.chat = str(self._user)

    def text(self, number: int, text: str) -> signing.Signed:
        """A typed message."""
        return self._signed(signing.telegram_text(number, text, user=self._user))

    def tap(self, number: int, data: str) -> signing.Signed:
        """A tapped button."""
        return self._signed(signing.telegram_tap(number, data, user=self._user))

    def photo(self, number: int, caption: str) -> signing.Signed:
        """A photo with words."""
        return self._signed(signing.telegram_photo(number, self._photo, caption, user=self._user))

    def _signed(self, update: dict[str, Any]) -> signing.Signed:
        return signing.telegram_hook(fakes.TELEGRAM_SECRET, update)


class SlackPhone:
    """On Slack, in a direct message. Signed at the moment of delivery, as Slack does with repeats too."""

    def __init__(self, platforms: FakePlatforms, name: int, _: str) -> None:
        self._photo = platforms.host("slack", signing.JPEG)
        self._user = f"U{name}"
        self.chat = f"D{name:08}"

    def text(self, number: int, text: str) -> signing.Signed:
        """A typed message."""
        return self._signed(signing.slack_text(self._ts(number), text, user=self._user, channel=self.chat))

    def tap(self, number: int, data: str) -> signing.Signed:
        """A tapped button."""
        return self._signed(signing.slack_tap(f"t.{number}", data, user=self._user, channel=self.chat))

    def photo(self, number: int, caption: str) -> signing.Signed:
        """A photo with words."""
        body = signing.slack_photo(self._ts(number), self._photo, caption, user=self._user, channel=self.chat)
        return self._signed(body)

    def _ts(self, number: int) -> str:
        return f"1795204800.{number:06}"

    def _signed(self, body: bytes) -> signing.Signed:
        return signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, time.time())


#: The phone of each platform of the YAML.
PHONES: dict[str, type[WhatsAppPhone] | type[TelegramPhone] | type[SlackPhone]] = {
    "whatsapp": WhatsAppPhone,
    "telegram": TelegramPhone,
    "slack": SlackPhone,
}


def phones(platforms: FakePlatforms, hooks: Sequence[tuple[str, str]], count: int) -> list[tuple[Phone, str]]:
    """So many people, spread over the channels: each one's phone, and the URL its webhooks go to.

    `hooks` are a platform and a webhook URL for each channel.
    """
    made: list[tuple[Phone, str]] = []
    for name in range(1, count + 1):
        platform, url = hooks[name % len(hooks)]
        made.append((PHONES[platform](platforms, name, url), url))
    return made
