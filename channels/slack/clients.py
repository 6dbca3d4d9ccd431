"""Clients of Slack's Web API with the token of the only workspace, or of a chat's workspace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from redis.exceptions import RedisError

from sayso.channels.base import Refused, Unreachable
from sayso.channels.slack.address import split_place
from sayso.channels.slack.client import TOKEN_ERRORS, error_code, new_client, reaction_to
from sayso.channels.slack.installations import Installation, SlackInstallations, TokenUnreadable
from sayso.infra.http import PooledSessions
from sayso.infra.metrics import WORKSPACES, of_labels
from sayso.infra.records import OtherVersion

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from slack_sdk.web.async_client import AsyncWebClient

    from sayso.channels.slack.settings import SlackSettings

log = logging.getLogger(__name__)

#: How long before its end a token is renewed, in seconds: 2 hours of its 12.
RENEW_BEFORE = 2 * 3600.0
#: How long one process may take to renew a token, in seconds. After a failure no process tries
#: again for so long.
RENEWAL_SECONDS = 60
#: How often Slack is asked for a new token while its answers are unclear, ASK_PAUSE_SECONDS apart.
#: It may have used up the refresh token, and takes it again for "a short grace period" alone.
ASK_TRIES = 3
ASK_PAUSE_SECONDS = 1.0
#: How long one answer is awaited, in seconds. All tries, and storing the token, end within
#: RENEWAL_SECONDS: later another process would use up the same refresh token.
ASK_SECONDS = 12.0
#: How long a call waits while another process renews a token that has expired, in seconds.
WAIT_SECONDS = 15.0
#: How long it waits between two looks, in seconds.
LOOK_SECONDS = 0.25
#: How often a new token is stored while Redis does not answer, a second apart: Slack gives it once.
STORE_TRIES = 15
#: Slack's errors that say of a refresh token that it will never work. All others may be over later.
FINAL_REFUSALS = frozenset({"invalid_refresh_token", *TOKEN_ERRORS})
#: What an operator can do about other errors of a renewal.
_CURES = {
    "bad_client_secret": "compare client_secret with the app's Basic Information",
    "invalid_client_id": "compare client_id with the app's Basic Information",
}
#: Minutes that make the SDK renew a token whatever its end is: we have decided already.
_AT_ONCE = 10**6


class _NoClearAnswer(Exception):
    """Raised where it is not known whether Slack has renewed a token. The message says why."""


class SlackClients(Protocol):
    """Gives clients with a token. One per channel."""

    async def client_of(self, chat: str) -> AsyncWebClient:
        """Return a client with the token of a chat's workspace. Raises SendError."""


class OneWorkspace:
    """The client of an app with one bot_token. Lives as long as its channel."""

    def __init__(self, token: str, api_url: str | None) -> None:
        self._web = PooledSessions(partial(new_client, token, api_url))

    async def client_of(self, chat: str) -> AsyncWebClient:
        """Return the client."""
        return self._web.here()


class ManyWorkspaces:
    """Clients with the tokens of an app that many workspaces have installed.

    Lives as long as its channel.

    Each call reads the token from Redis: a workspace that removes the app or installs it anew is
    served so at once.
    """

    def __init__(
        self,
        channel: str,
        settings: SlackSettings,
        installations: SlackInstallations,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`settings` have a client_id."""
        if not (settings.client_id and settings.client_secret):
            raise ValueError("many workspaces need client_id and client_secret")
        self._channel = channel
        self._client_id = settings.client_id.get_secret_value().strip()
        self._client_secret = settings.client_secret.get_secret_value().strip()
        self._rules = settings.install_rules
        self._api_url = settings.api_url
        self._installations = installations
        self._sessions: PooledSessions[ClientSession] = PooledSessions(lambda session: session)
        self._sleep = sleep
        #: The renewals that this process makes now.
        self._renewals: set[asyncio.Task[Installation]] = set()

    async def client_of(self, chat: str) -> AsyncWebClient:
        """Return a client with the token of a chat's workspace, or of its organization.

        A token that ends soon is renewed before. Raises Refused for a workspace without one, and
        redis.RedisError.
        """
        workspace = split_place(chat).team
        installation = await self._read(self._installations.find, workspace)
        ids = (installation.id, installation.organization, workspace)
        if self._rules and not self._rules.admits(*ids):
            problem = f"{workspace} is not in install.organizations of {self._channel}"
            raise Refused(f"{problem}: add it there")
        installation = await self.current(installation)
        return new_client(installation.token, self._api_url, self._sessions.here())

    async def _read(self, look_up: Callable[[str], Installation | None], name: str) -> Installation:
        """Return the installation that `look_up` finds. Raises SendError and redis.RedisError."""
        try:
            installation = await asyncio.to_thread(look_up, name)
        except TokenUnreadable as exc:
            raise Refused(f"{exc}: give this process the secret keys of before") from exc
        except OtherVersion as exc:
            raise Unreachable(f"the token of {name} was stored by another release") from exc
        if installation is None:
            raise Refused(not_installed(name))
        return installation

    async def current(self, installation: Installation) -> Installation:
        """Return an installation whose token is valid. One that ends soon is renewed before.

        Raises SendError.
        """
        ends_in = installation.expires_at - self._installations.clock()
        if not installation.expires_at or ends_in > RENEW_BEFORE:
            return installation
        if installation.renewal_refused:
            return self._while_valid(installation)
        start = self._installations.start_renewal
        if await asyncio.to_thread(start, installation.id, RENEWAL_SECONDS):
            return await self._renew_to_the_end(installation.id)
        if ends_in > 0:  # another process renews it, and this one works until then
            return installation
        return await self._wait_for_renewal(installation)

    async def _renew_to_the_end(self, name: str) -> Installation:
        """Renew a token, also if the caller is cancelled meanwhile.

        A typing sign is cancelled when the answer is there. Slack has used up the refresh token by
        then, and gives the new one in this answer alone.
        """
        renewal = asyncio.create_task(self._renew(name))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._end_renewal)
        return await asyncio.shield(renewal)

    def _end_renewal(self, renewal: asyncio.Task[Installation]) -> None:
        self._renewals.discard(renewal)
        if not renewal.cancelled():
            # A caller that was cancelled does not ask for it, and asyncio would log that.
            renewal.exception()

    async def _renew(self, name: str) -> Installation:
        """Renew a token and return the installation with it. No other process does so now.

        A refresh token works once, so the record is read again: another process may have just
        renewed it.
        """
        installation = await self._read(self._installations.get, name)
        if installation.expires_at - self._installations.clock() > RENEW_BEFORE:
            await asyncio.to_thread(self._installations.end_renewal, name)
            return installation
        renewed = await self._ask_for_token(installation)
        if renewed is None:
            return self._while_valid(installation)
        is_stored = await self._store(installation, renewed)
        await asyncio.to_thread(self._installations.end_renewal, name)
        if not is_stored:  # it was removed or installed again meanwhile, and that counts
            return await self._read(self._installations.get, name)
        return self._while_valid(renewed)

    async def _store(self, installation: Installation, renewed: Installation) -> bool:
        """Store a renewed installation. Return False if the one that was read has changed since.

        A Redis that does not answer is asked again, for STORE_TRIES seconds. Raises
        redis.RedisError after them.
        """
        for _ in range(STORE_TRIES - 1):
            try:
                return await asyncio.to_thread(self._installations.replace, installation, renewed)
            except RedisError as exc:
                reason = type(exc).__name__
                extra = {"channel": self._channel, "workspace": installation.id, "reason": reason}
                log.warning("workspace.not_stored", extra=extra)
                await self._sleep(1.0)
        return await asyncio.to_thread(self._installations.replace, installation, renewed)

    async def _ask_for_token(self, installation: Installation) -> Installation | None:
        """Return the installation with a new token, or with the reason why Slack refused it.

        Return None to try again later. After an unclear answer Slack is asked again
        at once: a minute later it may take the refresh token no more, and the app would have to be
        installed again. After None no process tries for RENEWAL_SECONDS.
        """
        for tries_left in reversed(range(ASK_TRIES)):
            try:
                return await self._ask_once(installation)
            except _NoClearAnswer as exc:
                extra = {"channel": self._channel, "workspace": installation.id, "reason": str(exc)}
                log.warning("workspace.renewal_failed", extra={**extra, "cure": "-"})
            if tries_left:
                await self._sleep(ASK_PAUSE_SECONDS)
        return None

    async def _ask_once(self, installation: Installation) -> Installation | None:
        """Return what Slack says, None for a refusal that says nothing of the refresh token.

        Raises _NoClearAnswer.
        """
        from aiohttp import ClientError
        from slack_sdk.errors import SlackApiError, SlackClientError, SlackTokenRotationError
        from slack_sdk.oauth.installation_store import Bot
        from slack_sdk.oauth.token_rotation.async_rotator import AsyncTokenRotator

        client = new_client(None, self._api_url, self._sessions.here())
        rotator = AsyncTokenRotator(
            client_id=self._client_id,
            client_secret=self._client_secret,
            client=client,
        )
        bot = Bot(
            bot_token=installation.token,
            bot_id="",
            bot_user_id=installation.bot_user,
            bot_refresh_token=installation.refresh_token,
            bot_token_expires_at=int(installation.expires_at),
            installed_at=installation.installed_at,
        )
        extra = {"channel": self._channel, "workspace": installation.id}
        try:
            async with asyncio.timeout(ASK_SECONDS):
                renewed = await rotator.perform_bot_token_rotation(
                    bot=bot,
                    minutes_before_expiration=_AT_ONCE,
                )
        except SlackTokenRotationError as exc:
            error = exc.api_error
            code = ""
            if isinstance(error, SlackApiError):
                code = error_code(error.response)
            if code in FINAL_REFUSALS:
                return self._refused(installation, code)
            if not code or reaction_to(code) == "unclear":
                raise _NoClearAnswer(code or "no clear answer") from exc
            # What Slack says of the app, such as a wrong client secret, ends no installation.
            cure = _CURES.get(code, "-")
            log.warning("workspace.renewal_failed", extra={**extra, "reason": code, "cure": cure})
            return None
        except (SlackClientError, ClientError, OSError) as exc:
            raise _NoClearAnswer(type(exc).__name__) from exc
        except (AttributeError, TypeError, ValueError) as exc:  # an answer in text, or half of one
            raise _NoClearAnswer("unreadable answer") from exc
        if renewed is None or not renewed.bot_refresh_token or not renewed.bot_token_expires_at:
            return self._refused(installation, "no token of a bot")
        of_labels(WORKSPACES, self._channel, "renewed").inc()
        log.info("workspace.renewed", extra=extra)
        return replace(
            installation,
            token=renewed.bot_token,
            refresh_token=renewed.bot_refresh_token,
            expires_at=float(renewed.bot_token_expires_at),
        )

    def _refused(self, installation: Installation, code: str) -> Installation:
        cure = "have the app installed there again"
        extra = {
            "channel": self._channel,
            "workspace": installation.id,
            "reason": code,
            "cure": cure,
        }
        log.error("workspace.renewal_refused", extra=extra)
        of_labels(WORKSPACES, self._channel, "renewal_refused").inc()
        return replace(installation, renewal_refused=code)

    async def _wait_for_renewal(self, installation: Installation) -> Installation:
        """Return what another process stores for a token that has expired.

        Raises Unreachable if that takes long.
        """
        for _ in range(round(WAIT_SECONDS / LOOK_SECONDS)):
            await self._sleep(LOOK_SECONDS)
            newest = await self._read(self._installations.get, installation.id)
            if newest.record != installation.record:
                return self._while_valid(newest)
        raise Unreachable(f"the token of {installation.id} has expired and is not renewed yet")

    def _while_valid(self, installation: Installation) -> Installation:
        """Return an installation whose token has not expired. Raises SendError for another one."""
        if installation.expires_at > self._installations.clock() or not installation.expires_at:
            return installation
        if installation.renewal_refused:
            reason = installation.renewal_refused
            problem = f"Slack does not renew the token of {installation.id} ({reason})"
            raise Refused(f"{problem}: have the app installed there again")
        raise Unreachable(f"the token of {installation.id} has expired and is not renewed yet")


def open_clients(
    channel: str,
    settings: SlackSettings,
    installations: SlackInstallations | None,
) -> SlackClients:
    """Return the clients of a channel. `installations` belong to settings with a client_id."""
    if installations:
        return ManyWorkspaces(channel, settings, installations)
    token = ""
    if settings.bot_token:
        token = settings.bot_token.get_secret_value().strip()
    return OneWorkspace(token, settings.api_url)


def not_installed(workspace: str) -> str:
    """Return that a workspace has no token, and the cure."""
    if not workspace:
        return "the address names no workspace: write it as T0123ABCD/C0456EFGH"
    return f"the app is not installed in {workspace}: have it installed there"
