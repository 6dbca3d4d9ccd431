"""TelegramDesk: a bot's webhook, as the Bot API keeps it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sayso.channels.http import PooledSessions, tls
from sayso.channels.i18n.texts import texts_for
from sayso.channels.setup import (
    MAX_CONNECTIONS,
    NO_WAY,
    CheckResult,
    SetupError,
    asking,
    check_https,
    check_outside,
    hook_url,
    not_told,
    shown,
)
from sayso.channels.telegram.adapter import new_bot
from sayso.channels.telegram.updates import ALLOWED_UPDATES
from sayso.channels.types import Signed
from sayso.config.settings.channels import TelegramSettings
from sayso.pending.consent.phrases import SHIPPED_LANGUAGES

if TYPE_CHECKING:
    from telegram import WebhookInfo


#: Where Telegram's own servers send webhooks to, by port.
PORTS = (443, 80, 88, 8443)


#: The menu that people see beside their keyboard: what every channel understands.
COMMANDS = ("help", "whoami", "reset", "status", "stop", "tools")


#: Seconds for which an error that Telegram had is still news.
NEWS_SECONDS = 3600.0


#: Updates that may wait before it is worth a word: a burst is no backlog.
MANY_PENDING = 20


_API = "https://api.telegram.org"


class TelegramSetup:
    """One bot's desk. `drop_pending` has Telegram forget what waits; `now` is Unix seconds."""

    def __init__(
        self,
        name: str,
        settings: TelegramSettings,
        public_url: str,
        *,
        max_connections: int = MAX_CONNECTIONS,
        drop_pending: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._name, self._settings = name, settings
        self._url = hook_url(public_url, name)
        self._max_connections, self._drop_pending, self._now = max_connections, drop_pending, now
        api_url = settings.api_url or _API
        self._theirs = urlsplit(api_url).hostname == urlsplit(_API).hostname
        self._bots = PooledSessions(partial(new_bot, settings.token.get_secret_value().strip(), api_url), tls=tls)

    async def point(self) -> list[str]:
        """Set webhook and commands; the secret goes along. Raises SetupError."""
        secret = self._settings.webhook_secret
        if secret is None:
            cure = "run `sayso poll`, or take `polling: true` out of the configuration first"
            raise SetupError(f"{self._name} polls, and would hear nothing more where a webhook is set", cure)
        if self._theirs:
            _check_address(self._url)
        async with self._asking():
            bot = self._bots.here()
            me = await bot.get_me()
            await bot.set_webhook(
                self._url,
                secret_token=secret,
                allowed_updates=ALLOWED_UPDATES,
                max_connections=self._max_connections,
                drop_pending_updates=self._drop_pending or None,
            )
            for language, menu in self._menus():
                await bot.set_my_commands(menu, language_code=language)
        return [
            f"bot @{me.username} ({me.id})",
            f"webhook set to {shown(self._url)}, with the secret_token of the configuration",
            f"updates asked for: {', '.join(ALLOWED_UPDATES)}; {self._max_connections} at once at most",
            *(["updates that waited were dropped"] if self._drop_pending else []),
            f"commands listed: {' '.join(f'/{command}' for command in self._commands)}",
        ]

    async def look(self) -> list[CheckResult]:
        """The bot, what it hears in groups, and its webhook with what went wrong there lately."""
        try:
            async with self._asking():
                bot = self._bots.here()
                me, info = await bot.get_me(), await bot.get_webhook_info()
        except SetupError as exc:
            return [not_told("token", self._name, exc)]
        hears = "all messages" if me.can_read_all_group_messages else "commands, replies to it and mentions only"
        bot_itself = [
            self._found("token", f"bot @{me.username} ({me.id})"),
            self._found("privacy mode", f"in groups the bot hears {hears} (/setprivacy at @BotFather)"),
        ]
        if self._settings.polling:
            return [*bot_itself, self._no_address(info), self._pending(info)]
        return [*bot_itself, self._address(info), self._updates(info), self._pending(info), self._last_error(info)]

    async def leave(self) -> list[str]:
        """Delete the webhook. Raises SetupError."""
        async with self._asking():
            bot = self._bots.here()
            before = await bot.get_webhook_info()
            await bot.delete_webhook(drop_pending_updates=self._drop_pending or None)
        done = f"webhook deleted: it was {shown(before.url)}" if before.url else "no webhook was set: nothing to delete"
        if not (before.url or self._drop_pending):
            return [done]
        kept = "dropped" if self._drop_pending else "kept for a day, for the next webhook or for `sayso poll`"
        return [done, f"{before.pending_update_count} waiting updates {kept}"]

    @property
    def _commands(self) -> tuple[str, ...]:
        """Those that are not left to the model."""
        return COMMANDS if self._settings.commands else ("stop",)

    def _menus(self) -> Iterator[tuple[str | None, list[tuple[str, str]]]]:
        """A menu for people of each language that we know, in the words in which they are answered; last, for the rest.

        Also of those that this channel does not speak: what an earlier configuration said to them would stay.
        """
        for language in (*SHIPPED_LANGUAGES, None):
            words = texts_for(language if language in self._settings.languages else self._settings.speaks)
            yield language, [(command, words.command(command)) for command in self._commands]

    def _address(self, info: WebhookInfo) -> CheckResult:
        if info.url == self._url:
            return self._found("webhook", f"{shown(info.url)}, which is ours")
        says = f"Telegram sends to {shown(info.url)}, not to {shown(self._url)}" if info.url else "no webhook is set"
        return self._lacks("webhook", says)

    def _no_address(self, info: WebhookInfo) -> CheckResult:
        if not info.url:
            return self._found("polling", "no webhook is set: whoever asks is told")
        says = f"Telegram sends to {shown(info.url)}, and so tells nothing to who asks"
        return CheckResult("polling", "fail", says, f"run `sayso channel disconnect {self._name}`", self._name)

    def _updates(self, info: WebhookInfo) -> CheckResult:
        given = set(info.allowed_updates or ())
        missing = [kind for kind in ALLOWED_UPDATES if kind not in given]
        if info.url and missing:
            return self._lacks("updates", f"Telegram was not asked for {', '.join(missing)}")
        return self._found("updates", ", ".join(sorted(given)) or "none asked for")

    def _pending(self, info: WebhookInfo) -> CheckResult:
        count = info.pending_update_count
        says = f"{count} update{'' if count == 1 else 's'} waiting at Telegram"
        if count < MANY_PENDING:
            return self._found("pending", says)
        answers = "`sayso poll` runs" if self._settings.polling else "public_url answers"
        command = "disconnect" if self._settings.polling else "connect"
        drop = f"sayso channel {command} {self._name} --drop-pending"
        cure = f"see that {answers}; what is too old to answer goes with `{drop}`"
        return CheckResult("pending", "warn", says, cure, self._name)

    def _last_error(self, info: WebhookInfo) -> CheckResult:
        if not info.last_error_message or info.last_error_date is None:
            return self._found("last error", "none")
        at = info.last_error_date
        says = f"{info.last_error_message} ({at:%Y-%m-%d %H:%M:%S} UTC)"
        if self._now() - at.timestamp() > NEWS_SECONDS:
            return self._found("last error", f"{says}, over an hour ago")
        return CheckResult("last error", "fail", says, _cure_of(info.last_error_message, self._name), self._name)

    def _found(self, check: str, says: str) -> CheckResult:
        return CheckResult(check, "ok", says, channel=self._name)

    def _lacks(self, check: str, says: str) -> CheckResult:
        return CheckResult(check, "fail", says, f"run `sayso channel connect {self._name}`", self._name)

    def _asking(self) -> AbstractAsyncContextManager[None]:
        return asking("Telegram", partial(_why, self._name))


def _check_address(url: str) -> None:
    """Refuse what Telegram would: anything but https, other ports, addresses that are not public. Raises SetupError."""
    parts = urlsplit(url)
    check_outside(url)
    check_https("Telegram", url)
    if ":" in (parts.hostname or ""):
        raise SetupError(
            f"public_url is an IPv6 address, {parts.hostname}, and Telegram sends to IPv4 only",
            "write a name into public_url that has an IPv4 address, too",
        )
    if (parts.port or 443) not in PORTS:
        ports = ", ".join(map(str, PORTS))
        raise SetupError(
            f"public_url is on port {parts.port}, and Telegram sends to {ports} only",
            "have your proxy listen at one of them, and write that into public_url",
        )


def _why(channel: str, exc: Exception) -> tuple[str, str]:
    from telegram import error

    from sayso.channels.telegram.client import NeverSent

    if isinstance(exc, error.InvalidToken):
        token = f"copy the bot's token from @BotFather again, to where channels.{channel}.token comes from"
        return "Telegram does not know this token", token
    if isinstance(exc, error.RetryAfter):
        return "Telegram was asked too often", "wait a minute, then run it again"
    if isinstance(exc, (error.BadRequest, error.Forbidden, error.Conflict)):
        return f"Telegram refuses: {exc}", "see what it names; public_url must be reachable from outside"
    if isinstance(exc, NeverSent):
        return "no connection to Telegram", NO_WAY
    return f"Telegram's answer makes no sense ({type(exc).__name__})", "try again; with an api_url, see what it is"


def _cure_of(message: str, channel: str) -> str:
    """What Telegram's last error asks for."""
    said = message.lower()
    if "403" in said:
        return f"the secret_token differs: run `sayso channel connect {channel}` with the settings of the running web"
    if "404" in said:
        return f"the web knows no channel {channel!r}, or the proxy cuts the path: restart it with this configuration"
    if "ssl" in said or "certificate" in said:
        return "the proxy's certificate is not one that Telegram trusts: serve the whole chain of a public authority"
    if "503" in said or "500" in said or "502" in said:
        return "the web answered, and could not keep the update: its log, and `sayso doctor` on Redis, say why"
    return "see that public_url answers from outside, over the ports that Telegram uses"


def telegram_hook(secret: str, update: Mapping[str, Any]) -> Signed:
    """Headers and body of a Telegram webhook."""
    headers = {"content-type": "application/json", "x-telegram-bot-api-secret-token": secret}
    return headers, json.dumps(update).encode()
