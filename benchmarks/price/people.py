"""People: one person on each chat platform, who sends what a real webhook would hold."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Protocol

from sayso.channels.types import Conversation, SignedWebhook
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks
from sayso.testing.platforms.fake_platforms import FakePlatforms

#: The name of the one channel of each bot.
CHANNEL = "shop"
#: The address of its web process.
WEB = "http://localhost"


class Person(Protocol):
    """One person in a private chat with the bot. `platform` is the name in the YAML."""

    platform: str
    conversation: Conversation

    def keys(self, platforms: FakePlatforms) -> dict[str, str]:
        """Return the keys of the channel in the YAML besides `platform`."""

    def text(self, text: str) -> SignedWebhook:
        """Return the signed webhook of a typed message."""


@dataclass(slots=True)
class TelegramPerson:
    """A person on Telegram."""

    platform: str = "telegram"
    user: int = 5123456789
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def conversation(self) -> Conversation:
        """The private chat, which has the id of the person."""
        return Conversation(CHANNEL, str(self.user))

    def keys(self, platforms: FakePlatforms) -> dict[str, str]:
        """Return the keys of the channel in the YAML besides `platform`."""
        return {
            "token": "${TELEGRAM_TOKEN}",
            "secret_token": "${TELEGRAM_SECRET}",
            "api_url": platforms.telegram_url,
        }

    def text(self, text: str) -> SignedWebhook:
        """Return the signed webhook of a typed message."""
        update = webhooks.telegram_text(next(self._numbers), text, user=self.user)
        return webhooks.telegram_hook(fakes.TELEGRAM_SECRET, update)


@dataclass(slots=True)
class WhatsAppPerson:
    """A person on WhatsApp, through Twilio."""

    platform: str = "whatsapp"
    user: str = "whatsapp:DE.5100000042"
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def conversation(self) -> Conversation:
        """The chat, which has the id of the person."""
        return Conversation(CHANNEL, self.user)

    def keys(self, platforms: FakePlatforms) -> dict[str, str]:
        """Return the keys of the channel in the YAML besides `platform`."""
        return {
            "account_sid": "${TWILIO_ACCOUNT_SID}",
            "auth_token": "${TWILIO_AUTH_TOKEN}",
            "from": "whatsapp:+14155238886",
            "api_url": platforms.twilio_url,
        }

    def text(self, text: str) -> SignedWebhook:
        """Return the signed webhook of a typed message."""
        sid = fakes.TWILIO_ACCOUNT_SID
        return self._signed(webhooks.whatsapp_text(self._sid(), text, account_sid=sid))

    def photo(self, url: str, caption: str = "") -> SignedWebhook:
        """Return the signed webhook of a photo that Twilio stores at `url`."""
        sid = fakes.TWILIO_ACCOUNT_SID
        return self._signed(webhooks.whatsapp_photo(self._sid(), url, caption, account_sid=sid))

    def _sid(self) -> str:
        return f"SM{next(self._numbers):032x}"

    def _signed(self, form: dict[str, str]) -> SignedWebhook:
        return webhooks.whatsapp_hook(f"{WEB}/hooks/{CHANNEL}", fakes.TWILIO_AUTH_TOKEN, form)
