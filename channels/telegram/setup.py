"""TelegramSetup: sets, checks and deletes a bot's webhook at the Bot API."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sayso.channels.i18n.catalogue import LANGUAGES
from sayso.channels.i18n.texts import texts_for
from sayso.channels.setup import (
    FORGED,
    CheckResult,
    MessageLog,
    PlatformSetup,
    SetupError,
    SetupOptions,
    bare_url,
    check_https,
    check_outside,
    platform_calls,
)
from sayso.channels.telegram.client import TELEGRAM, new_bot, setup_problem
from sayso.channels.telegram.incoming import ALLOWED_UPDATES, telegram_hook
from sayso.channels.telegram.settings import TelegramSettings
from sayso.channels.types import SignedWebhook
from sayso.infra.http import PooledSessions, tls

if TYPE_CHECKING:
    from telegram import BotCommand, WebhookInfo

#: The ports to which Telegram's own servers send webhooks.
PORTS = (443, 80, 88, 8443)
#: The commands in the menu beside people's keyboards. Every channel understands them.
COMMANDS = ("help", "whoami", "reset", "status", "stop", "tools")
#: The commands whose answer concerns one person. In a group Telegram shows them, and the answer, to
#: that person only.
EPHEMERAL_COMMANDS = frozenset({"help", "whoami", "status", "tools"})
#: How long Telegram's last error counts as current, in seconds.
RECENT_SECONDS = 3600.0
#: From this many waiting updates on the check warns: fewer may be a burst.
MANY_PENDING = 20
#: What Telegram's last error contains, and its cure. The first match counts.
_CURES = (
    (
        ["403"],
        "the secret_token differs: run `sayso channel connect {channel}` with the settings of the web process",
    ),
    (
        ["404"],
        "the web process has no channel {channel!r}, or the proxy cuts the path: restart it with these settings",
    ),
    (
        ["ssl", "certificate"],
        "Telegram does not trust the proxy's certificate: serve the whole chain of a public authority",
    ),
    (
        ["500", "502", "503"],
        "the web process could not store the update: its log, and `sayso doctor` on Redis, say why",
    ),
    ([""], "check that public_url answers from outside, on the ports that Telegram uses"),
)


class TelegramSetup(PlatformSetup):
    """The setup of one bot at Telegram. `now` returns Unix seconds."""

    def __init__(
        self,
        name: str,
        settings: TelegramSettings,
        public_url: str,
        options: SetupOptions,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name, public_url)
        self._settings = settings
        self._max_connections = options.max_connections
        self._drop_pending = options.drop_pending
        self._now = now
        api_url = settings.api_url or TELEGRAM
        self._is_telegram = urlsplit(api_url).hostname == urlsplit(TELEGRAM).hostname
        self._bots = PooledSessions(
            partial(new_bot, settings.token.get_secret_value().strip(), api_url), tls=tls
        )

    async def set_webhook(self) -> list[str]:
        """Set the webhook with its secret, and the menu of commands. Raises SetupError."""
        from telegram import BotCommand, BotCommandScopeAllGroupChats

        secret = self._settings.webhook_secret
        if secret is None:
            cure = "run `sayso poll`, or take `polling: true` out of the configuration first"
            raise SetupError(
                f"{self._name} polls, and would get no more updates once a webhook is set", cure
            )
        if self._is_telegram:
            _check_address(self._url)
        async with self._calls():
            bot = self._bots.here()
            me = await bot.get_me()
            await bot.set_webhook(
                self._url,
                secret_token=secret,
                allowed_updates=ALLOWED_UPDATES,
                max_connections=self._max_connections,
                drop_pending_updates=self._drop_pending or None,
            )
            # Languages that this channel does not speak get a menu too, else that of an earlier
            # configuration would stay. None stands for all other languages.
            for language in (*LANGUAGES, None):
                spoken = language
                if language not in self._settings.languages:
                    spoken = self._settings.default_language
                texts = texts_for(spoken)
                menu = [BotCommand(command, texts.command(command)) for command in self._commands]
                await bot.set_my_commands(menu, language_code=language)
                in_groups = [_command_in_groups(each) for each in menu]
                everywhere = BotCommandScopeAllGroupChats()
                await bot.set_my_commands(in_groups, everywhere, language_code=language)
        return [
            f"bot @{me.username} ({me.id})",
            f"webhook set to {bare_url(self._url)}, with the secret_token of the configuration",
            f"updates asked for: {', '.join(ALLOWED_UPDATES)}; at most {self._max_connections} at once",
            *(["updates that waited were dropped"] if self._drop_pending else []),
            f"commands listed: {' '.join(f'/{command}' for command in self._commands)}",
        ]

    async def check(self) -> list[CheckResult]:
        """Check the bot, what it gets in groups, and its webhook with the last error."""
        try:
            async with self._calls():
                bot = self._bots.here()
                me = await bot.get_me()
                info = await bot.get_webhook_info()
        except SetupError as exc:
            return [self._fail("token", exc.says, exc.cure)]
        if me.can_read_all_group_messages:
            gets = "all messages"
        else:
            gets = "commands, replies to it and mentions only"
        results = [
            self._ok("token", f"bot @{me.username} ({me.id})"),
            self._ok("privacy mode", f"in groups the bot gets {gets} (/setprivacy at @BotFather)"),
        ]
        if self._settings.polling:
            # No check of the username: the poller asks Telegram for it.
            return [*results, self._no_address(info), self._pending(info)]
        return [
            *results,
            self._name_in_groups(me.username or ""),
            self._address(info),
            self._updates(info),
            self._pending(info),
            self._last_error(info),
        ]

    async def delete_webhook(self) -> list[str]:
        """Delete the webhook. Raises SetupError."""
        async with self._calls():
            bot = self._bots.here()
            before = await bot.get_webhook_info()
            await bot.delete_webhook(drop_pending_updates=self._drop_pending or None)
        if before.url:
            done = f"webhook deleted: it was {bare_url(before.url)}"
        else:
            done = "no webhook was set: nothing to delete"
        if not (before.url or self._drop_pending):
            return [done]
        if self._drop_pending:
            fate = "dropped"
        else:
            fate = "kept for a day, for the next webhook or for `sayso poll`"
        return [done, f"{before.pending_update_count} waiting updates {fate}"]

    def probe(self, now: float, *, forged: bool = False) -> SignedWebhook | None:
        """Return an update of an unknown kind; None for a bot that polls."""
        secret = FORGED if forged else self._settings.webhook_secret
        if self._settings.webhook_secret is None or secret is None:
            return None
        return telegram_hook(secret, {"update_id": 0, "sayso_doctor": {}})

    def message_log(self) -> MessageLog:
        """Raise SetupError: Telegram gives bots no log."""
        raise SetupError(
            "Telegram gives bots no list of messages: it repeats what the bot did not accept for 24 hours by itself",
            f"`sayso channel status {self._name}` shows how many updates wait; a bot cannot delete files there",
        )

    @property
    def _commands(self) -> tuple[str, ...]:
        """The commands that the bot answers without the model."""
        if self._settings.commands:
            return COMMANDS
        return ("stop",)

    def _name_in_groups(self, own: str) -> CheckResult:
        configured = self._settings.username.lstrip("@")
        cure = (
            f"write `username: '@{own}'` into the channel, so that `@{own} yes` counts in a group"
        )
        if not configured:
            return self._ok(
                "username",
                f"none is configured: a yes beside the bot's name does not count; {cure}",
            )
        if configured.lower() != own.lower():
            return self._fail("username", f"the bot is @{own}, not @{configured}", cure)
        return self._ok("username", f"@{own}")

    def _address(self, info: WebhookInfo) -> CheckResult:
        if info.url == self._url:
            return self._ok("webhook", f"{bare_url(info.url)}, which is ours")
        if info.url:
            says = f"Telegram sends to {bare_url(info.url)}, not to {bare_url(self._url)}"
        else:
            says = "no webhook is set"
        return self._fail("webhook", says)

    def _no_address(self, info: WebhookInfo) -> CheckResult:
        if not info.url:
            return self._ok("polling", "no webhook is set: polling gets the updates")
        says = f"Telegram sends to {bare_url(info.url)}, so a poller gets nothing"
        return self._fail("polling", says, f"run `sayso channel disconnect {self._name}`")

    def _updates(self, info: WebhookInfo) -> CheckResult:
        given = set(info.allowed_updates or ())
        missing = [kind for kind in ALLOWED_UPDATES if kind not in given]
        if info.url and missing:
            return self._fail("updates", f"Telegram was not asked for {', '.join(missing)}")
        return self._ok("updates", ", ".join(sorted(given)) or "none asked for")

    def _pending(self, info: WebhookInfo) -> CheckResult:
        count = info.pending_update_count
        says = f"{count} update{'' if count == 1 else 's'} waiting at Telegram"
        if count < MANY_PENDING:
            return self._ok("pending", says)
        if self._settings.polling:
            answers = "`sayso poll` runs"
        else:
            answers = "public_url answers"
        command = "disconnect" if self._settings.polling else "connect"
        drop = f"sayso channel {command} {self._name} --drop-pending"
        cure = f"check that {answers}; `{drop}` drops updates that are too old to answer"
        return self._warn("pending", says, cure)

    def _last_error(self, info: WebhookInfo) -> CheckResult:
        if not info.last_error_message or info.last_error_date is None:
            return self._ok("last error", "none")
        at = info.last_error_date
        says = f"{info.last_error_message} ({at:%Y-%m-%d %H:%M:%S} UTC)"
        if self._now() - at.timestamp() > RECENT_SECONDS:
            return self._ok("last error", f"{says}, over an hour ago")
        error = info.last_error_message.lower()
        cures = (cure for signs, cure in _CURES if any(sign in error for sign in signs))
        first_cure = next(cures)
        return self._fail("last error", says, first_cure.format(channel=self._name))

    def _calls(self) -> AbstractAsyncContextManager[None]:
        return platform_calls("Telegram", partial(setup_problem, self._name))


def _command_in_groups(command: BotCommand) -> BotCommand:
    """Return a command for the menu of groups. PTB has no name for `is_ephemeral` yet."""
    from telegram import BotCommand

    fields = None
    if command.command in EPHEMERAL_COMMANDS:
        fields = {"is_ephemeral": True}
    return BotCommand(command.command, command.description, api_kwargs=fields)


def _check_address(url: str) -> None:
    """Raise SetupError for a URL that is without https, on a wrong port, or not public."""
    parts = urlsplit(url)
    check_outside(url)
    check_https("Telegram", url)
    if ":" in (parts.hostname or ""):
        raise SetupError(
            f"public_url is an IPv6 address, {parts.hostname}, and Telegram sends to IPv4 only",
            "use a host name with an IPv4 address in public_url",
        )
    if (parts.port or 443) not in PORTS:
        ports = ", ".join(map(str, PORTS))
        raise SetupError(
            f"public_url is on port {parts.port}, and Telegram sends to {ports} only",
            "have your proxy listen on one of them, and write that into public_url",
        )
