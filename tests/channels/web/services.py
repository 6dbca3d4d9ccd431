"""Fakes of a few lines for the collaborators of the web process."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from flask.testing import FlaskClient

from sayso.channels.base import AdapterDeps, Channel
from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.types import Conversation, Received, Turn, WebhookRequest
from sayso.config.settings.schema import Settings
from sayso.config.wiring.bootstrap import open_channel
from sayso.config.wiring.wsgi import build_app
from sayso.infra.redis.client import PREFIX
from sayso.testing.platforms import fake_platforms as fakes
from sayso.workers.access import AccessControl
from sayso.workers.mailbox import Accepted, InboxLimits
from tests.contracts.rigs import voice
from tests.memory_stores import (
    MemoryAlerts,
    MemoryFeed,
    MemoryLogins,
    MemorySharedCache,
)
from tests.scratch_redis import new_identities

PUBLIC_URL = "https://bots.example.com/base"
TURN = Turn("event-1", Conversation("shop", "+4915100000042"), "+4915100000042", text="hello")


class NoForms:
    """Opens no form: each tap is a turn."""

    def answer_form(self, channel: Any, received: Received) -> Received:
        """Return all of it."""
        return received


class FakeChannel:
    """A channel that records its hooks and returns or raises the given answer."""

    name = "shop"

    def __init__(self, answer: Received | Exception | None = None) -> None:
        self.answer = answer or Received()
        self.hooks: list[WebhookRequest] = []

    def receive(self, hook: WebhookRequest) -> Received:
        """Record the hook."""
        self.hooks.append(hook)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class FakeMailbox:
    """A mailbox that records turns and reads from them what the real one reads."""

    def __init__(self, outcome: Callable[[], str] = lambda: "new") -> None:
        self.outcome = outcome
        self.turns: list[tuple[Turn, str]] = []

    def ignores(self, turn: Turn) -> str:
        """Return "": no turn is ignored."""
        return ""

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Record the turn."""
        assert Turn.from_json(turn.to_json()) == turn
        assert turn.conversation.id
        assert turn.scope.id
        self.turns.append((turn, tapped))
        return Accepted(self.outcome(), len(self.turns))  # type: ignore[arg-type]


class FakeDeliveries:
    """Records the reports of platforms and the closed addresses."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, ...]] = []
        self.closed: list[tuple[str, str]] = []

    def report(self, *said: str) -> str:
        """Record the report."""
        self.reports.append(said)
        return said[2]

    def close(
        self,
        conversation: str,
        reason: str,
        *,
        late: bool = False,
        opted_out: bool = False,
        number: int = 0,
    ) -> None:
        """Record the closed address."""
        reply = f"#{number}" if number else ""
        self.closed.append(
            (f"{conversation}{reply}", f"{'late: ' * late}{'opted out: ' * opted_out}{reason}")
        )


def real_channels(media: Any = None, **secrets: str) -> dict[str, Channel]:
    """Return a channel of each platform as a configuration makes it, some with other secrets. None of them may send."""
    nothing: Any = None
    told = {
        "auth_token": fakes.TWILIO_AUTH_TOKEN, "secret_token": fakes.TELEGRAM_SECRET,
        "signing_secret": fakes.SLACK_SIGNING_SECRET, **secrets,
    }  # fmt: skip
    sender = {
        "account_sid": fakes.TWILIO_ACCOUNT_SID,
        "auth_token": told["auth_token"],
        "from": "whatsapp:+4930123456",
    }
    given = {
        "wa": {"platform": "whatsapp", **sender},
        "tg": {
            "platform": "telegram",
            "token": fakes.TELEGRAM_TOKEN,
            "secret_token": told["secret_token"],
        },
        "sl": {
            "platform": "slack",
            "bot_token": fakes.SLACK_BOT_TOKEN,
            "signing_secret": told["signing_secret"],
        },
        "web": {"platform": "console"},
    }
    settings = Settings.model_validate({"channels": given})
    deps = AdapterDeps(
        cache=MemorySharedCache(),
        identities=new_identities(),
        media=media,
        keys=["key"],
        public_url=PUBLIC_URL,
        redis=nothing,
        connect=lambda _: nothing,
        key_prefix=PREFIX,
    )
    channels = {name: open_channel(name, settings, deps) for name in given}
    channels["web"].feed, channels["web"].sessions.logins = MemoryFeed(), MemoryLogins()
    return channels


def browser(channel: Any = None, mailbox: Any = None, **parts: Any) -> FlaskClient:
    """Return a client of an app with these parts."""
    parts = {
        "media": SimpleNamespace(why_full=lambda: ""),
        "redis_url": "redis://127.0.0.1:1",
        "public_url": PUBLIC_URL,
        "settings": SimpleNamespace(limits=InboxLimits(), key_prefix=PREFIX),
        "channels": {},
        "forms": NoForms(),
        "spool": None,
        "bot_id": "b0",
        "data_loss_guard": SimpleNamespace(
            check_server=lambda: None, check_replicas=lambda: None, watch=lambda: None, trouble=""
        ),
        "alerts": MemoryAlerts(),
        "deliveries": FakeDeliveries(),
        **parts,
    }
    mailbox = mailbox or FakeMailbox()
    parts = {"access_control": AccessControl(mailbox, voice), **parts}
    endpoint = parts.pop("endpoint", None)
    channels = {channel.name: channel} if channel else parts.pop("channels")
    parts.pop("channels", None)
    parts["settings"].channels = {
        name: SimpleNamespace(
            platform="console" if isinstance(each, ConsoleChannel) else "whatsapp"
        )
        for name, each in channels.items()
    }
    return build_app(
        SimpleNamespace(mailbox=mailbox, channels=channels, **parts), endpoint
    ).test_client()
