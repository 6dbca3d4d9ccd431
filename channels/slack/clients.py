"""Clients of Slack's Web API with the token of the only workspace, or of a chat's workspace.

An app of one workspace has one token, `bot_token` in the YAML. An app that many workspaces have
installed has a token for each, which Redis stores. Such a token may expire after 12 hours (Slack
calls this token rotation). Then it is renewed with its refresh token, a second secret that works
once: Slack's answer brings the next pair. A lost answer means that the app must be installed again.
So only one process renews a token at a time. It goes on if its caller is cancelled, and while Redis
is away it tries again and again to store the answer.
"""

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

#: How long before it expires a token is renewed, in seconds: 2 hours of its 12.
RENEW_BEFORE = 2 * 3600.0
#: How long one process may take to renew a token, in seconds. If Slack gave no new token, no
#: process tries again until this time is over.
RENEWAL_SECONDS = 60
#: How often Slack is asked for a new token while its answers are unclear. It may have used up the
#: refresh token, which it takes again only for "a short grace period".
ASK_ATTEMPTS = 3
#: The pause between two of these attempts, in seconds.
ASK_PAUSE_SECONDS = 1.0
#: How long one answer is awaited, in seconds. All attempts and pauses, those of storing the token
#: among them, take 3 * 12 + 2 * 1 + 14 * 1 = 52 seconds. That is less than RENEWAL_SECONDS, after
#: which another process would use the same refresh token.
ASK_SECONDS = 12.0
#: How often storing a new token is tried while Redis does not answer.
STORE_ATTEMPTS = 15
#: The pause between two of these attempts, in seconds.
STORE_PAUSE_SECONDS = 1.0
#: How long a call waits while another process renews a token that has expired, in seconds.
WAIT_SECONDS = 15.0
#: How long it waits between two looks at Redis, in seconds.
LOOK_SECONDS = 0.25
#: Slack's errors after which a refresh token will never work. All others may be over later.
FINAL_REFUSALS = frozenset({"invalid_refresh_token", *TOKEN_ERRORS})
#: What an operator can do about other errors of a renewal.
_CURES = {
    "bad_client_secret": "compare client_secret with the app's Basic Information",
    "invalid_client_id": "compare client_id with the app's Basic Information",
}
#: The SDK renews a token that expires within so many minutes: with this number, any token. Whether
#: it is time has been decided before.
_AT_ONCE = 10**6


class _NoClearAnswer(Exception):
    """Raised if it is not known whether Slack has renewed a token. The message says why."""


class SlackClients(Protocol):
    """Gives clients with a token: OneWorkspace or ManyWorkspaces. One per channel."""

    async def client_of(self, chat: str) -> AsyncWebClient:
        """Return a client with the token of a chat's workspace. Raises SendError."""


class OneWorkspace:
    """The client of an app with one bot_token. Lives as long as its channel.

    `api_url` is an origin in place of https://slack.com, None for Slack itself.
    """

    def __init__(self, token: str, api_url: str | None) -> None:
        self._web = PooledSessions(partial(new_client, token, api_url))

    async def client_of(self, chat: str) -> AsyncWebClient:
        """Return the client."""
        return self._web.here()


class ManyWorkspaces:
    """Clients with the tokens of an app that many workspaces have installed.

    Lives as long as its channel. Each call reads the token from Redis, so that a removal or a new
    installation counts at once.

    * `settings`: must have client_id and client_secret, else ValueError is raised.
    * `installations`: the stored tokens.
    * `sleep`: waits for some seconds.
    """

    def __init__(
        self,
        channel: str,
        settings: SlackSettings,
        installations: SlackInstallations,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not (settings.client_id and settings.client_secret):
            raise ValueError("many workspaces need client_id and client_secret")
        self._channel = channel
        self._client_id = settings.client_id.get_secret_value().strip()
        self._client_secret = settings.client_secret.get_secret_value().strip()
        self._rules = settings.install_rules
        self._api_url = settings.api_url
        self._installations = installations
        # A pool of sessions, one per event loop. Clients are made anew for each call, because each
        # workspace needs one with its token.
        self._sessions: PooledSessions[ClientSession] = PooledSessions(lambda session: session)
        self._sleep = sleep
        #: The tasks that renew a token now. The event loop itself keeps no reference to a task.
        self._renewals: set[asyncio.Task[Installation]] = set()

    async def client_of(self, chat: str) -> AsyncWebClient:
        """Return a client with the token of a chat's workspace, or of its organization.

        A token that expires soon is renewed before. Raises Refused for a workspace without a token,
        another SendError for a token that cannot be renewed now, and redis.RedisError.
        """
        workspace = split_place(chat).team
        installation = await self._read(self._installations.find, workspace)
        ids = (installation.id, installation.organization, workspace)
        if self._rules and not self._rules.admits(*ids):
            problem = f"{workspace} is not in install.organizations of {self._channel}"
            raise Refused(f"{problem}: add it there")
        installation = await self._with_valid_token(installation)
        return new_client(installation.token, self._api_url, self._sessions.here())

    async def _read(self, look_up: Callable[[str], Installation | None], name: str) -> Installation:
        """Return the installation that `look_up` finds for a workspace or organization.

        Raises Refused if there is none, Unreachable for one of a newer release, and
        redis.RedisError.
        """
        try:
            installation = await asyncio.to_thread(look_up, name)
        except TokenUnreadable as exc:
            raise Refused(f"{exc}: give this process the secret keys of before") from exc
        except OtherVersion as exc:
            raise Unreachable(f"the token of {name} was stored by another release") from exc
        if installation is None:
            raise Refused(not_installed(name))
        return installation

    async def _with_valid_token(self, installation: Installation) -> Installation:
        """Return the installation with a token that is valid now, renewed if it expires soon.

        Raises SendError and redis.RedisError.
        """
        if not self._must_be_renewed(installation):
            return self._while_valid(installation)

        start = self._installations.start_renewal
        if await asyncio.to_thread(start, installation.id, RENEWAL_SECONDS):
            return await self._renew_to_the_end(installation.id)
        # Another call renews it, in this process or another one, or has just failed to do so.
        if installation.expires_at > self._installations.clock():
            return installation
        return await self._wait_for_renewal(installation)

    def _must_be_renewed(self, installation: Installation) -> bool:
        """Return whether the token expires soon, or has expired, and Slack may renew it."""
        if not installation.expires_at or installation.renewal_refused:
            return False
        return installation.expires_at - self._installations.clock() <= RENEW_BEFORE

    async def _renew_to_the_end(self, name: str) -> Installation:
        """Renew a token, also if the caller is cancelled meanwhile.

        Showing a typing sign is such a caller: it is cancelled when the answer is there. Slack has
        used up the refresh token by then, and gives the new one in its answer to this call alone.
        """
        renewal = asyncio.create_task(self._renew(name))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._end_renewal)
        return await asyncio.shield(renewal)

    def _end_renewal(self, renewal: asyncio.Task[Installation]) -> None:
        """Forget the task of a renewal that has ended."""
        self._renewals.discard(renewal)
        if not renewal.cancelled():
            # Takes the error, which asyncio would log if the caller was cancelled.
            renewal.exception()

    async def _renew(self, name: str) -> Installation:
        """Renew a token and return the installation with it. No other process does so now.

        Raises SendError and redis.RedisError.
        """
        # Read again: since the caller read it, another process may have renewed the token or been
        # refused, or the app was installed again.
        installation = await self._read(self._installations.get, name)
        if not self._must_be_renewed(installation):
            await asyncio.to_thread(self._installations.end_renewal, name)
            return self._while_valid(installation)

        renewed = await self._ask_for_token(installation)
        if renewed is None:
            # The renewal is not ended here, so that no process asks Slack again at once.
            return self._while_valid(installation)
        is_stored = await self._store(installation, renewed)
        await asyncio.to_thread(self._installations.end_renewal, name)
        if not is_stored:
            # The app was removed or installed again meanwhile, and that counts.
            return await self._read(self._installations.get, name)
        return self._while_valid(renewed)

    async def _store(self, installation: Installation, renewed: Installation) -> bool:
        """Store a renewed installation. Return False if the stored one has changed since.

        A Redis that does not answer is asked again, up to STORE_ATTEMPTS times in all. Raises
        redis.RedisError for the last attempt.
        """
        for _ in range(STORE_ATTEMPTS - 1):
            try:
                return await asyncio.to_thread(self._installations.replace, installation, renewed)
            except RedisError as exc:
                reason = type(exc).__name__
                extra = {"channel": self._channel, "workspace": installation.id, "reason": reason}
                log.warning("workspace.not_stored", extra=extra)
                await self._sleep(STORE_PAUSE_SECONDS)
        return await asyncio.to_thread(self._installations.replace, installation, renewed)

    async def _ask_for_token(self, installation: Installation) -> Installation | None:
        """Return the installation as Slack's answer says: see `_ask_once`.

        Returns None also if no answer was clear. After an unclear answer Slack is asked again at
        once: a minute later it may not take the refresh token any more.
        """
        for attempt in range(1, ASK_ATTEMPTS + 1):
            try:
                return await self._ask_once(installation)
            except _NoClearAnswer as exc:
                extra = {"channel": self._channel, "workspace": installation.id, "reason": str(exc)}
                log.warning("workspace.renewal_failed", extra={**extra, "cure": "-"})
            if attempt < ASK_ATTEMPTS:
                await self._sleep(ASK_PAUSE_SECONDS)
        return None

    async def _ask_once(self, installation: Installation) -> Installation | None:
        """Ask Slack once for a new token, and return the installation as it must be stored.

        It has the new token. If Slack says that the refresh token will never work, it has the
        reason in `renewal_refused`. None if Slack refuses for a reason that may be over later.
        Raises _NoClearAnswer if Slack may or may not have renewed the token.
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
            # The refusal is about the app, such as a wrong client secret: the refresh token works
            # once that is mended.
            cure = _CURES.get(code, "-")
            log.warning("workspace.renewal_failed", extra={**extra, "reason": code, "cure": cure})
            return None
        except (SlackClientError, ClientError, OSError) as exc:
            raise _NoClearAnswer(type(exc).__name__) from exc
        except (AttributeError, TypeError, ValueError) as exc:
            # So the SDK fails on an answer in plain text, or on half an answer.
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
        """Return the installation with the reason why its token cannot be renewed any more."""
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
        """Return the installation once another process has renewed its expired token.

        Raises Unreachable if that takes longer than WAIT_SECONDS, Refused if Slack refuses it.
        """
        for _ in range(round(WAIT_SECONDS / LOOK_SECONDS)):
            await self._sleep(LOOK_SECONDS)
            newest = await self._read(self._installations.get, installation.id)
            if newest.record != installation.record:
                return self._while_valid(newest)
        raise Unreachable(f"the token of {installation.id} has expired and is not renewed yet")

    def _while_valid(self, installation: Installation) -> Installation:
        """Return the installation if its token has not expired.

        Otherwise raises Refused if Slack refuses to renew it, and else Unreachable.
        """
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
    """Return the clients of a channel.

    `installations` are the stored tokens of an app that many workspaces have installed, None for an
    app with a bot_token. Raises ValueError if the settings have the keys of the other kind of app.
    """
    if installations:
        return ManyWorkspaces(channel, settings, installations)
    if settings.bot_token is None:
        raise ValueError("one workspace needs bot_token")
    return OneWorkspace(settings.bot_token.get_secret_value().strip(), settings.api_url)


def not_installed(workspace: str) -> str:
    """Return the text of an error that a workspace has no token, and the cure."""
    if not workspace:
        return "the address names no workspace: write it as T0123ABCD/C0456EFGH"
    return f"the app is not installed in {workspace}: have it installed there"
