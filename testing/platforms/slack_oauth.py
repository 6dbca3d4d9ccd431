"""A fake of Slack's OAuth, by which many workspaces install one app.

A person allows the app in a workspace and brings back a code. The bot exchanges the code for a
token, which is a grant of this workspace. If the app rotates its tokens, a token expires, and a
refresh token that came with it gets the next one.
"""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

#: Seconds for which a token is valid if the app rotates its tokens.
ROTATION_SECONDS = 43_200


@dataclass(slots=True)
class FakeGrant:
    """What one workspace or organization has granted: one token of the app."""

    #: The id of the workspace (T...) or organization (E...).
    id: str
    name: str
    token: str
    scopes: Collection[str]
    #: The id of the organization that the workspace belongs to; "" for none.
    organization: str = ""
    #: Gets the next token; "" if tokens do not expire.
    refresh_token: str = ""
    #: When the token expires, in Unix seconds; 0 for never.
    expires_at: float = 0.0
    #: The code with which the token is refused; "" for a valid one.
    error: str = ""

    @property
    def is_organization(self) -> bool:
        """Whether the token is valid in all workspaces of an organization."""
        return self.id.startswith("E")


@dataclass(slots=True)
class FakeInstallations:
    """All grants of one app. Safe to use from threads. Tests may change the public fields."""

    client_id: str
    client_secret: str
    scopes: Collection[str]
    app_id: str = "A0FAKE"
    #: Returns Unix seconds.
    clock: Callable[[], float] = time.time
    #: Whether new tokens expire.
    rotates: bool = False
    #: The refresh tokens that were sent, in order. Those that `refresh_error` refused are left out.
    refreshed: list[str] = field(default_factory=list)
    #: The code with which every renewal is refused; "" for none.
    refresh_error: str = ""
    #: Called right before each renewal.
    before_refresh: Callable[[], None] = lambda: None
    #: The number of next renewals whose answer is lost: the new token is valid, and the bot gets an
    #: error instead.
    lost_answers: int = 0
    #: For how many seconds a refresh token works again after its first use. Slack documents "a
    #: short grace period". Without one a test notices each second use after the clock has moved on.
    grace_seconds: float = 0.0
    #: By token: all grants that a bot ever got.
    _grants: dict[str, FakeGrant] = field(default_factory=dict)
    #: By code: the grants that wait for a bot.
    _codes: dict[str, FakeGrant] = field(default_factory=dict)
    #: By refresh token: the token that it renews.
    _refresh_tokens: dict[str, str] = field(default_factory=dict)
    #: When each refresh token was used first, in Unix seconds.
    _used_at: dict[str, float] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allow(self, team_id: str, name: str = "", *, organization: str = "") -> str:
        """Allow the app in a workspace or organization. Return the code for the bot.

        `name` is "" for the id itself, `organization` the id of the workspace's organization.
        """
        with self._lock:
            grant = self._new_grant(team_id, name or team_id, organization)
            code = f"code-{next(self._numbers)}"
            self._codes[code] = grant
            return code

    def _new_grant(self, team_id: str, name: str, organization: str = "") -> FakeGrant:
        number = next(self._numbers)
        prefix = "xoxe.xoxb" if self.rotates else "xoxb"
        token = f"{prefix}-{team_id}-{number}-secret"
        grant = FakeGrant(team_id, name, token, self.scopes, organization)
        if self.rotates:
            grant.refresh_token = f"xoxe-1-{team_id}-{number}-refresh"
            grant.expires_at = self.clock() + ROTATION_SECONDS
        return grant

    def grant_of(self, token: str) -> FakeGrant | None:
        """Return the grant of a token, None for an unknown token."""
        with self._lock:
            return self._grants.get(token)

    def tokens_of(self, team_id: str) -> list[str]:
        """Return all tokens that a workspace or organization has ever got, oldest first."""
        with self._lock:
            return [token for token, grant in self._grants.items() if grant.id == team_id]

    def revoke(self, team_id: str, error: str = "token_revoked") -> None:
        """Refuse all tokens of a workspace or organization from now on, with this code."""
        with self._lock:
            for grant in self._grants.values():
                if grant.id == team_id:
                    grant.error = error

    def refusal(self, token: str) -> str:
        """Return the code with which a token is refused, "" for a valid one."""
        grant = self.grant_of(token)
        if grant is None:
            return "invalid_auth"
        if grant.expires_at and grant.expires_at <= self.clock():
            return "token_expired"
        return grant.error

    def access(self, authorization: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to oauth.v2.access: a token for a code or for a refresh token.

        A code works once, a refresh token once and again during `grace_seconds`. The token that is
        renewed stays valid until it expires. `authorization` is the header with the credentials of
        the app.
        """
        expected = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if authorization != f"Basic {expected}":
            return {"ok": False, "error": "bad_client_secret"}
        if params.get("grant_type") == "refresh_token":
            # Called without the lock, because a test may use this object in it.
            self.before_refresh()
            if self.refresh_error:
                return {"ok": False, "error": self.refresh_error}
            with self._lock:
                return self._refresh(str(params.get("refresh_token")))

        if not str(params.get("redirect_uri", "")).endswith("/oauth_redirect"):
            return {"ok": False, "error": "bad_redirect_uri"}
        with self._lock:
            grant = self._codes.pop(str(params.get("code")), None)
            if grant is None:
                return {"ok": False, "error": "invalid_code"}
            self._activate(grant)
            return self._answer(grant)

    def _activate(self, grant: FakeGrant) -> None:
        """Make the token of a grant valid."""
        self._grants[grant.token] = grant
        if grant.refresh_token:
            self._refresh_tokens[grant.refresh_token] = grant.token

    def _refresh(self, refresh_token: str) -> dict[str, Any]:
        """Return the answer to oauth.v2.access for a refresh token."""
        self.refreshed.append(refresh_token)
        now = self.clock()
        first_used_at = self._used_at.setdefault(refresh_token, now)
        is_used_up = now > first_used_at + self.grace_seconds
        renewed = self._grants.get(self._refresh_tokens.get(refresh_token, ""))
        if renewed is None or renewed.error or is_used_up:
            return {"ok": False, "error": "invalid_refresh_token"}

        grant = self._new_grant(renewed.id, renewed.name, renewed.organization)
        self._activate(grant)
        if self.lost_answers:
            self.lost_answers -= 1
            return {"ok": False, "error": "internal_error"}
        return self._answer(grant)

    def _answer(self, grant: FakeGrant) -> dict[str, Any]:
        """Return the answer to oauth.v2.access that gives a bot its token."""
        team = None
        organization = grant.id
        if not grant.is_organization:
            team = {"id": grant.id, "name": grant.name}
            organization = grant.organization
        enterprise = None
        if organization:
            # The fake gives the organization of a workspace no name, so it has the workspace's.
            enterprise = {"id": organization, "name": grant.name}
        answer: dict[str, Any] = {
            "ok": True,
            "access_token": grant.token,
            "token_type": "bot",
            "scope": ",".join(sorted(grant.scopes)),
            "bot_user_id": "U0BOT",
            "app_id": self.app_id,
            "team": team,
            "enterprise": enterprise,
            "is_enterprise_install": grant.is_organization,
            "authed_user": {"id": "U0ADMIN"},
        }
        if grant.refresh_token:
            answer["refresh_token"] = grant.refresh_token
            answer["expires_in"] = ROTATION_SECONDS
        return answer
