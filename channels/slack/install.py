"""Installs a Slack app into a workspace by OAuth.

The bot sends the browser of a person to Slack with a `state`, a secret that is redeemed once. Slack
sends the browser back with the state and a code, and the bot exchanges the code for a token.

An operator may require an invitation for each installation, which `sayso channel invite` issues. An
operator may also list the workspaces and organizations that are admitted; a workspace of a listed
organization is admitted too.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sayso.channels.setup import Problem, SetupError, connection_problem, platform_calls
from sayso.channels.slack.client import FILE_ORIGINS, SLACK, error_code, new_client, setup_problem
from sayso.channels.slack.installations import (
    INVITATION,
    STATE,
    Installation,
    SlackInstallations,
    hash_of,
)
from sayso.channels.slack.setup import scopes
from sayso.channels.types import without_invisible
from sayso.infra.http import PooledSessions
from sayso.infra.ids import random_id
from sayso.infra.metrics import WORKSPACES, of_labels

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from sayso.channels.slack.settings import InstallSettings, SlackSettings

log = logging.getLogger(__name__)

#: How long a person may take on Slack's page, in seconds: 10 minutes, as long as Slack's code is
#: valid.
STATE_SECONDS = 600
#: How long an invitation of `sayso channel invite` is valid, in seconds: a week.
INVITATION_SECONDS = 7 * 86_400
#: The most characters of a workspace's name that are stored. The owner of the workspace chooses it,
#: and operators read it in their terminal.
MAX_NAME_CHARS = 80
#: A cookie as `random_id(24)` makes it.
_COOKIE = re.compile(r"[0-9a-f]{48}")
#: A code of an error of Slack, such as "access_denied". Any other text may be an attacker's.
_ERROR_CODE = re.compile(r"\w{1,60}")


class InstallRefused(Exception):
    """Raised if nothing was installed.

    * `says`: what the person reads, as plain text, which the page escapes; the message of this
      error.
    * `reason`: what the log names.
    * `status`: the HTTP status of the page.
    * `may_begin_again`: whether the person can begin again with the same link.
    """

    def __init__(
        self,
        says: str,
        reason: str,
        *,
        status: int = 403,
        may_begin_again: bool = True,
    ) -> None:
        super().__init__(says)
        self.says = says
        self.reason = reason
        self.status = status
        self.may_begin_again = may_begin_again


@dataclass(frozen=True, slots=True)
class InstallStart:
    """How an installation begins in a browser."""

    #: Slack's page, to which the browser is sent.
    url: str
    #: The cookie by which the browser is recognized when it comes back.
    cookie: str


class InstallFlow:
    """Installs the app of one channel: `begin` sends a browser to Slack, `finish` takes it back.

    Lives as long as the web process, used from any thread. `redirect_uri` is where Slack sends the
    browser back to. All methods raise redis.RedisError.
    """

    def __init__(
        self,
        channel: str,
        settings: SlackSettings,
        installations: SlackInstallations,
        redirect_uri: str,
    ) -> None:
        if not (settings.client_id and settings.client_secret and settings.install_rules):
            raise ValueError("an app that is installed by OAuth needs client_id and client_secret")
        self._channel = channel
        self._client_id = settings.client_id.get_secret_value().strip()
        self._client_secret = settings.client_secret.get_secret_value().strip()
        self._rules: InstallSettings = settings.install_rules
        self._scopes = list(scopes(settings.view, reads_groups=bool(settings.role_groups)))
        self._api_url = settings.api_url or SLACK
        self._installations = installations
        self._redirect_uri = redirect_uri
        # A web process has no event loop, so each call runs in a new one and has a new session.
        # PooledSessions closes it when the loop ends. It hands out the session itself, because each
        # call needs a client with another token.
        self._sessions: PooledSessions[ClientSession] = PooledSessions(lambda session: session)

    @property
    def site(self) -> str:
        """The site on which people open the app.

        GovSlack has its own site. Any other `api_url` is a server for tests, and people still open
        the app at slack.com.
        """
        # FILE_ORIGINS has exactly the sites of Slack itself.
        return self._api_url if self._api_url in FILE_ORIGINS else SLACK

    @property
    def needs_invitation(self) -> bool:
        """Whether only people with an invitation can install the app."""
        return self._rules.invited

    def is_invited(self, invitation: str) -> bool:
        """Return whether an invitation is valid now."""
        return bool(invitation) and self._installations.is_valid(INVITATION, hash_of(invitation))

    def is_valid_state(self, state: str) -> bool:
        """Return whether an installation with this state has begun and is not finished."""
        return bool(state) and self._installations.is_valid(STATE, hash_of(state))

    def begin(self, invitation: str, cookie: str) -> InstallStart:
        """Begin an installation. Raises InstallRefused.

        `invitation` and `cookie` are what the browser sent, "" for none.
        """
        from slack_sdk.oauth import AuthorizeUrlGenerator

        if self._rules.invited and not self.is_invited(invitation):
            says = "This app is installed by invitation, and this link does not work."
            cure = "Ask its operator for one."
            raise InstallRefused(f"{says} {cure}", "no valid invitation", may_begin_again=False)
        # The cookie of an earlier tab of the same browser stays, so that the tab keeps working.
        # Each installation has a state.
        if not _COOKIE.fullmatch(cookie):
            cookie = random_id(24)
        start = {"browser": hash_of(cookie), "invitation": ""}
        if self._rules.invited:
            start["invitation"] = hash_of(invitation)
        state = self._installations.issue(STATE, json.dumps(start), STATE_SECONDS)
        generator = AuthorizeUrlGenerator(
            client_id=self._client_id,
            scopes=self._scopes,
            redirect_uri=self._redirect_uri,
            authorization_url=f"{self._api_url}/oauth/v2/authorize",
        )
        return InstallStart(generator.generate(state), cookie)

    def finish(self, query: Mapping[str, str], cookie: str) -> Installation:
        """Install the app as Slack's answer says, and return the installation.

        `query` is what Slack added to the address of the page, `cookie` what the browser sent, ""
        for none. Raises InstallRefused.
        """
        start = self._redeem_state(query.get("state", ""), cookie)
        error = query.get("error")
        if error:
            raise _denied(error)
        invitation = ""
        if self._rules.invited:
            # Checked before the exchange too: Slack's code works once.
            invitation = start["invitation"]
            if not self._installations.is_valid(INVITATION, invitation):
                raise _invitation_used()

        installation = asyncio.run(self._exchange(query.get("code", "")))
        if not self._rules.admits(installation.id, installation.organization):
            self._give_back(installation)
            says = f"{installation.name or installation.id} may not install this app."
            cure = "Ask its operator to add it."
            raise InstallRefused(f"{says} {cure}", "not in install.organizations")

        # This uses up the invitation, unless another browser did so during the exchange.
        outcome = self._installations.save(installation, invitation=invitation)
        if outcome == "uninvited":
            self._give_back(installation)
            raise _invitation_used()
        is_again = outcome == "replaced"
        of_labels(WORKSPACES, self._channel, "installed_again" if is_again else "installed").inc()
        extra = {"channel": self._channel, "workspace": installation.id, "again": is_again}
        log.info("workspace.installed", extra=extra)
        return installation

    def _redeem_state(self, state: str, cookie: str) -> dict[str, str]:
        """Return what `begin` stored for this browser. Raises InstallRefused.

        A state works once, even if another browser sends it.
        """
        value = None
        if state:
            value = self._installations.redeem(STATE, hash_of(state))
        if value is None:
            minutes = STATE_SECONDS // 60
            causes = (
                f"was not begun here, was finished already, or took longer than {minutes} minutes"
            )
            raise InstallRefused(f"This installation {causes}.", "unknown state")

        start: dict[str, str] = json.loads(value)
        if not hmac.compare_digest(start["browser"], hash_of(cookie)):
            says = "This installation was begun in another browser."
            raise InstallRefused(says, "another browser")
        return start

    async def _exchange(self, code: str) -> Installation:
        """Return what Slack grants for a code. Raises InstallRefused."""
        client = new_client(None, self._api_url, self._sessions.here())
        try:
            async with platform_calls("Slack", _exchange_problem):
                answer = await client.oauth_v2_access(
                    client_id=self._client_id,
                    client_secret=self._client_secret,
                    code=code,
                    redirect_uri=self._redirect_uri,
                )
            return _installation_of(answer.data, self._installations.clock())
        except SetupError as exc:
            says = "Slack did not confirm the installation. Try again from the beginning."
            raise InstallRefused(says, exc.says, status=502) from None
        except (KeyError, TypeError, ValueError, AttributeError):
            says = "Slack's answer makes no sense. Try again from the beginning."
            raise InstallRefused(says, "unreadable answer", status=502) from None

    def _give_back(self, installation: Installation) -> None:
        """Revoke the token of an installation that is not stored."""
        # A workspace that had installed the app before may have got the same token again. Revoking
        # it would stop the app there. Where tokens expire, it is another token, which is not stored
        # anywhere and ends by itself after 12 hours.
        if installation.id in self._installations.ids():
            return
        try:
            asyncio.run(self._revoke(installation.token))
        except SetupError as exc:
            # Not raised: the token is stored nowhere, so that nothing can use it.
            extra = {"channel": self._channel, "workspace": installation.id, "reason": exc.says}
            log.warning("workspace.not_revoked", extra=extra)

    async def _revoke(self, token: str) -> None:
        client = new_client(token, self._api_url, self._sessions.here())
        async with platform_calls("Slack", setup_problem):
            await client.auth_revoke()


def _exchange_problem(exc: Exception) -> Problem:
    """Return what is wrong, which names Slack's error code, and what to do about it.

    Nothing else of Slack's answer is logged: it may hold a token.
    """
    code = error_code(getattr(exc, "response", None))
    if not code:
        return connection_problem("Slack", exc)
    return f"Slack error {code}", "see the app's credentials"


def _invitation_used() -> InstallRefused:
    says = "The invitation was used meanwhile: ask for another one."
    return InstallRefused(says, "invitation used", may_begin_again=False)


def _denied(error: str) -> InstallRefused:
    """Return what an error means that Slack added to the address of the page."""
    if error == "access_denied":
        says = "You did not allow the installation, so nothing was installed."
        return InstallRefused(says, "denied", status=200)
    shown = error if _ERROR_CODE.fullmatch(error) else "unknown error"
    return InstallRefused(f"Slack did not install the app ({shown}).", f"Slack error {shown}")


def _installation_of(answer: Any, now: float) -> Installation:
    """Return the installation in an answer to oauth.v2.access. `now` is in Unix seconds.

    Raises KeyError, TypeError, ValueError or AttributeError for an answer without a token of a bot.
    """
    place = answer.get("team") or {}
    organization = answer.get("enterprise") or {}
    organization_id = str(organization.get("id") or "")
    # The organization has installed the app itself.
    if answer.get("is_enterprise_install") is True:
        place = organization
        organization_id = ""

    token = answer["access_token"]
    is_bot = answer.get("token_type") == "bot" and isinstance(token, str)
    if not is_bot or not re.fullmatch(r"[TE][A-Z0-9]+", place["id"]):
        raise ValueError("no token of a bot")
    expires_in = float(answer.get("expires_in") or 0)
    return Installation(
        place["id"],
        token,
        name=without_invisible(str(place.get("name") or ""))[:MAX_NAME_CHARS],
        organization=organization_id,
        user=str((answer.get("authed_user") or {}).get("id") or ""),
        scopes=tuple(scope for scope in str(answer.get("scope") or "").split(",") if scope),
        app_id=str(answer.get("app_id") or ""),
        bot_user=str(answer.get("bot_user_id") or ""),
        installed_at=now,
        refresh_token=str(answer.get("refresh_token") or ""),
        expires_at=now + expires_in if expires_in else 0.0,
    )
