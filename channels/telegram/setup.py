"""TelegramSetup: sets, checks and deletes a bot's webhook at the Bot API."""

from __future__ import annotations

import re
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
    from telegram import Bot, BotCommand, WebhookInfo

#: The ports to which Telegram's own servers send webhooks.
PORTS = (443, 80, 88, 8443)
#: The commands in the menu beside people's keyboards. Every channel understands them.
COMMANDS = ("help", "whoami", "reset", "revoke", "status", "stop", "tools")
#: The commands whose answer concerns one person. In a group Telegram shows them, and the answer, to
#: that person only.
EPHEMERAL_COMMANDS = frozenset({"help", "whoami", "revoke", "status", "tools"})
#: How long Telegram's last error counts as current, in seconds.
RECENT_SECONDS = 3600.0
#: From this many waiting updates on the check warns: fewer may be a burst.
MANY_PENDING = 20
#: The cures for the last error that Telegram had with the webhook: a pattern in the error, and the
#: cure. The first match counts, and the last pattern matches any error.
_CURES = (
    (
        "403",
        "the secret_token differs: "
        "run `sayso channel connect {channel}` with the settings of the web process",
    ),
    (
        "404",
        "the web process has no channel {channel!r}, or the proxy cuts the path: "
        "restart it with these settings",
    ),
    (
        "ssl|certificate",
        "Telegram does not trust the proxy's certificate: "
        "serve the whole chain of a public authority",
    ),
    (
        "500|502|503",
        "the web process could not store the update: its log, and `sayso doctor` on Redis, say why",
    ),
    ("", "check that public_url answers from outside, on the ports that Telegram uses"),
)


class TelegramSetup(PlatformSetup):
    """Sets, checks and deletes the webhook of one bot at the Bot API, Telegram's API for bots.

    A bot either gets webhooks or *polls*: it asks for updates itself. Telegram gives updates to a
    poller only while no webhook is set. Lives as long as one command. `now` returns Unix seconds.
    """

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
        #: Whether the Bot API server is Telegram's own, which calls public addresses alone. Another
        #: one may be in a private network.
        self._is_telegram = urlsplit(api_url).hostname == urlsplit(TELEGRAM).hostname
        token = settings.token.get_secret_value().strip()
        self._bots = PooledSessions(partial(new_bot, token, api_url), tls_context=tls)

    async def set_webhook(self) -> list[str]:
        """Set the webhook with its secret, and the menu of commands. Raises SetupError."""
        secret = self._settings.webhook_secret
        if secret is None:
            raise SetupError(
                f"{self._name} polls, and would get no more updates once a webhook is set",
                "run `sayso poll`, or take `polling: true` out of the configuration first",
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
                drop_pending_updates=self._drop_pending or None,  # None leaves it out
            )
            await self._set_menus(bot)

        kinds = ", ".join(ALLOWED_UPDATES)
        steps = [
            f"bot @{me.username} ({me.id})",
            f"webhook set to {bare_url(self._url)}, with the secret_token of the configuration",
            f"updates asked for: {kinds}; at most {self._max_connections} at once",
        ]
        if self._drop_pending:
            steps.append("updates that waited were dropped")
        commands = " ".join(f"/{command}" for command in self._commands)
        return [*steps, f"commands listed: {commands}"]

    async def _set_menus(self, bot: Bot) -> None:
        """Set the menus of commands: in each language, for private chats and for groups."""
        from telegram import BotCommand, BotCommandScopeAllGroupChats

        groups = BotCommandScopeAllGroupChats()
        # Languages that this channel does not speak get a menu too, else that of an earlier
        # configuration would stay. None stands for all languages that Sayso does not know.
        for language in (*LANGUAGES, None):
            spoken = language
            if language not in self._settings.languages:
                spoken = self._settings.default_language
            texts = texts_for(spoken)
            menu = [BotCommand(command, texts.command(command)) for command in self._commands]
            group_menu = [_command_in_groups(each) for each in menu]
            await bot.set_my_commands(menu, language_code=language)
            await bot.set_my_commands(group_menu, groups, language_code=language)

    async def check(self) -> list[CheckResult]:
        """Check the bot, what it gets in groups, and its webhook with the last error."""
        try:
            async with self._calls():
                bot = self._bots.here()
                me = await bot.get_me()
                info = await bot.get_webhook_info()
        except SetupError as exc:
            return [self._fail("token", exc.says, exc.cure)]

        messages = "commands, replies to it and mentions only"
        if me.can_read_all_group_messages:
            messages = "all messages"
        privacy = f"in groups the bot gets {messages} (/setprivacy at @BotFather)"
        results = [
            self._ok("token", f"bot @{me.username} ({me.id})"),
            self._ok("privacy mode", privacy),
            *[await self._check_group(group) for group in self._settings.role_groups],
        ]
        if self._settings.polling:
            # No check of the username: the poller asks Telegram for it.
            return [*results, self._check_no_webhook(info), self._check_pending(info)]
        return [
            *results,
            self._check_username(me.username or ""),
            self._check_webhook(info),
            self._check_kinds(info),
            self._check_pending(info),
            self._check_last_error(info),
        ]

    async def _check_group(self, group: str) -> CheckResult:
        """Check whether Telegram names the administrators of a group from which a role comes."""
        try:
            async with self._calls():
                members = await self._bots.here().get_chat_administrators(group)
        except SetupError as exc:
            says = f"nobody can decide by the group {group}: {exc.says}"
            cure = "check the id, and add the bot to the group"
            return self._fail("group", says, cure)
        return self._ok("group", f"{group} has {len(members)} administrators")

    async def delete_webhook(self) -> list[str]:
        """Delete the webhook. Raises SetupError."""
        async with self._calls():
            bot = self._bots.here()
            before = await bot.get_webhook_info()
            await bot.delete_webhook(drop_pending_updates=self._drop_pending or None)
        # Called even without a webhook: it may have updates to drop.
        steps = ["no webhook was set: nothing to delete"]
        if before.url:
            steps = [f"webhook deleted: it was {bare_url(before.url)}"]

        waiting = f"{before.pending_update_count} waiting updates"
        if self._drop_pending:
            steps.append(f"{waiting} dropped")
        elif before.url:
            steps.append(f"{waiting} kept for a day, for the next webhook or for `sayso poll`")
        return steps

    def probe(self, now: float, *, forged: bool = False) -> SignedWebhook | None:
        """Return an update of an unknown kind, which the bot ignores; None for a bot that polls.

        A bot that polls has no webhook, and so no secret for one.
        """
        secret = self._settings.webhook_secret
        if secret is None:
            return None
        if forged:
            secret = FORGED
        return telegram_hook(secret, {"update_id": 0, "sayso_doctor": {}})

    def message_log(self) -> MessageLog:
        """Raise SetupError, always: Telegram gives bots no list of past messages to read."""
        raise SetupError(
            "Telegram gives bots no list of messages: "
            "it repeats what the bot did not accept for 24 hours by itself",
            f"`sayso channel status {self._name}` shows how many updates wait; "
            "a bot cannot delete files there",
        )

    @property
    def _commands(self) -> tuple[str, ...]:
        """The commands that the bot answers without the model."""
        if self._settings.commands:
            return COMMANDS
        # A worker answers /stop whatever the settings say: people must be able to stop the bot.
        return ("stop",)

    def _check_username(self, own: str) -> CheckResult:
        """Check the configured @name, by which the bot recognizes its name in a group."""
        configured = self._settings.username.lstrip("@")
        cure = (
            f"write `username: '@{own}'` into the channel, so that `@{own} yes` counts in a group"
        )
        if not configured:
            says = f"none is configured: a yes beside the bot's name does not count; {cure}"
            return self._ok("username", says)
        if configured.lower() != own.lower():
            return self._fail("username", f"the bot is @{own}, not @{configured}", cure)
        return self._ok("username", f"@{own}")

    def _check_webhook(self, info: WebhookInfo) -> CheckResult:
        """Check that Telegram sends updates to this bot."""
        if info.url == self._url:
            return self._ok("webhook", f"{bare_url(info.url)}, which is ours")
        says = "no webhook is set"
        if info.url:
            says = f"Telegram sends to {bare_url(info.url)}, not to {bare_url(self._url)}"
        # The cure is that of `_fail`: connect the channel again, which sets our webhook.
        return self._fail("webhook", says)

    def _check_no_webhook(self, info: WebhookInfo) -> CheckResult:
        """Check that no webhook gets the updates of a bot that polls."""
        if not info.url:
            return self._ok("polling", "no webhook is set: polling gets the updates")
        says = f"Telegram sends to {bare_url(info.url)}, so a poller gets nothing"
        return self._fail("polling", says, f"run `sayso channel disconnect {self._name}`")

    def _check_kinds(self, info: WebhookInfo) -> CheckResult:
        """Check that Telegram sends all kinds of updates that are parsed."""
        kinds = set(info.allowed_updates or ())
        missing_kinds = [kind for kind in ALLOWED_UPDATES if kind not in kinds]
        # To connect again, the cure of `_fail`, asks for all of them. A bot that polls has no
        # webhook, and asks with each poll.
        if info.url and missing_kinds:
            return self._fail("updates", f"Telegram was not asked for {', '.join(missing_kinds)}")
        return self._ok("updates", ", ".join(sorted(kinds)) or "none asked for")

    def _check_pending(self, info: WebhookInfo) -> CheckResult:
        """Check how many updates wait at Telegram."""
        count = info.pending_update_count
        says = f"{count} update{'' if count == 1 else 's'} waiting at Telegram"
        if count < MANY_PENDING:
            return self._ok("pending", says)

        advice = "check that public_url answers"
        command = "connect"
        if self._settings.polling:
            advice = "check that `sayso poll` runs"
            command = "disconnect"
        drop = f"sayso channel {command} {self._name} --drop-pending"
        cure = f"{advice}; `{drop}` drops updates that are too old to answer"
        return self._warn("pending", says, cure)

    def _check_last_error(self, info: WebhookInfo) -> CheckResult:
        """Check the last error that Telegram had with the webhook."""
        if not info.last_error_message or info.last_error_date is None:
            return self._ok("last error", "none")
        at = info.last_error_date
        says = f"{info.last_error_message} ({at:%Y-%m-%d %H:%M:%S} UTC)"
        if self._now() - at.timestamp() > RECENT_SECONDS:
            return self._ok("last error", f"{says}, over an hour ago")

        error = info.last_error_message.lower()
        cure = next(cure for pattern, cure in _CURES if re.search(pattern, error))
        return self._fail("last error", says, cure.format(channel=self._name))

    def _calls(self) -> AbstractAsyncContextManager[None]:
        """Raise SetupError for any error of a call to Telegram in this block."""
        return platform_calls("Telegram", partial(setup_problem, self._name))


def _command_in_groups(command: BotCommand) -> BotCommand:
    """Return a command for the menu of groups.

    `is_ephemeral` has Telegram show the command and its answer to the sender only.
    """
    from telegram import BotCommand

    # python-telegram-bot has no parameter for this yet, so it is passed on as raw JSON.
    api_kwargs = None
    if command.command in EPHEMERAL_COMMANDS:
        api_kwargs = {"is_ephemeral": True}
    return BotCommand(command.command, command.description, api_kwargs=api_kwargs)


def _check_address(url: str) -> None:
    """Raise SetupError for a URL that Telegram's servers would not call."""
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
