"""A fake of Slack's OAuth: codes, and tokens that are given, renewed and revoked."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

#: Seconds for which a token is valid that Slack rotates.
ROTATION_SECONDS = 43_200


@dataclass(slots=True)
class FakeGrant:
    """What one workspace or organization has granted.

    `error` is what refuses its token, "" for nothing.
    """

    id: str
    name: str
    token: str
    scopes: Collection[str]
    organization: str = ""
    refresh_token: str = ""
    expires_at: float = 0.0
    error: str = ""

    @property
    def is_organization(self) -> bool:
        """Whether it is valid in all workspaces of an organization."""
        return self.id.startswith("E")


@dataclass(slots=True)
class FakeInstallations:
    """All grants of one app. Safe to use from threads. `clock` returns Unix seconds."""

    client_id: str
    client_secret: str
    scopes: Collection[str]
    app_id: str = "A0FAKE"
    clock: Callable[[], float] = time.time
    #: Whether new tokens expire.
    rotates: bool = False
    #: The refresh tokens that were sent, in order.
    refreshed: list[str] = field(default_factory=list)
    #: What every renewal answers, "" for a new token; and what happens right before one.
    refresh_error: str = ""
    before_refresh: Callable[[], None] = lambda: None
    #: Of how many renewals the answer is lost: Slack has made a new token, and its answer has none.
    lost_answers: int = 0
    #: For how many seconds a refresh token works again after its first use. Slack documents "a
    #: short grace period"; without one, each second use is noticed.
    grace_seconds: float = 0.0
    _grants: dict[str, FakeGrant] = field(default_factory=dict)
    _codes: dict[str, FakeGrant] = field(default_factory=dict)
    _refresh_tokens: dict[str, str] = field(default_factory=dict)
    #: When each refresh token was used first.
    _used_at: dict[str, float] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allow(self, name: str, label: str = "", *, organization: str = "") -> str:
        """Return the code that a person brings back from Slack, who allowed the app there."""
        with self._lock:
            grant = self._new_grant(name, label or name, organization)
            code = f"code-{next(self._numbers)}"
            self._codes[code] = grant
            return code

    def _new_grant(self, name: str, label: str, organization: str = "") -> FakeGrant:
        number = next(self._numbers)
        kind = "xoxe.xoxb" if self.rotates else "xoxb"
        grant = FakeGrant(name, label, f"{kind}-{name}-{number}-secret", self.scopes, organization)
        if self.rotates:
            grant.refresh_token = f"xoxe-1-{name}-{number}-refresh"
            grant.expires_at = self.clock() + ROTATION_SECONDS
        return grant

    def grant_of(self, token: str) -> FakeGrant | None:
        """Return the grant of a token, None for a token of none."""
        with self._lock:
            return self._grants.get(token)

    def tokens_of(self, name: str) -> list[str]:
        """Return all tokens that a workspace or organization has ever got."""
        with self._lock:
            return [token for token, grant in self._grants.items() if grant.id == name]

    def revoke(self, name: str, error: str = "token_revoked") -> None:
        """Refuse all tokens of a workspace or organization from now on."""
        with self._lock:
            for grant in self._grants.values():
                if grant.id == name:
                    grant.error = error

    def refusal(self, token: str) -> str:
        """Return why a token is refused, "" for a valid one."""
        grant = self.grant_of(token)
        if grant is None:
            return "invalid_auth"
        if grant.expires_at and grant.expires_at <= self.clock():
            return "token_expired"
        return grant.error

    def access(self, authorization: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to oauth.v2.access. Codes and refresh tokens work once."""
        expected = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if authorization != f"Basic {expected}":
            return {"ok": False, "error": "bad_client_secret"}
        is_renewal = params.get("grant_type") == "refresh_token"
        if is_renewal:
            self.before_refresh()
        if is_renewal and self.refresh_error:
            return {"ok": False, "error": self.refresh_error}
        with self._lock:
            if is_renewal:
                return self._refresh(str(params.get("refresh_token")))
            if not str(params.get("redirect_uri", "")).endswith("/oauth_redirect"):
                return {"ok": False, "error": "bad_redirect_uri"}
            grant = self._codes.pop(str(params.get("code")), None)
            if grant is None:
                return {"ok": False, "error": "invalid_code"}
            self._activate(grant)
            return self._answer(grant)

    def _activate(self, grant: FakeGrant) -> None:
        self._grants[grant.token] = grant
        if grant.refresh_token:
            self._refresh_tokens[grant.refresh_token] = grant.token

    def _refresh(self, refresh_token: str) -> dict[str, Any]:
        self.refreshed.append(refresh_token)
        token = self._refresh_tokens.get(refresh_token, "")
        now = self.clock()
        is_used_up = now > self._used_at.setdefault(refresh_token, now) + self.grace_seconds
        if not token or is_used_up or self._grants[token].error:
            return {"ok": False, "error": "invalid_refresh_token"}
        old = self._grants[token]
        grant = self._new_grant(old.id, old.name, old.organization)
        self._activate(grant)
        if self.lost_answers:
            self.lost_answers -= 1
            return {"ok": False, "error": "internal_error"}
        return self._answer(grant)

    def _answer(self, grant: FakeGrant) -> dict[str, Any]:
        rotation = {}
        if grant.refresh_token:
            rotation = {"refresh_token": grant.refresh_token, "expires_in": ROTATION_SECONDS}
        team = {"id": grant.id, "name": grant.name}
        organization = grant.id if grant.is_organization else grant.organization
        enterprise = None
        if organization:
            enterprise = {"id": organization, "name": grant.name}
        return {
            "ok": True,
            "access_token": grant.token,
            "token_type": "bot",
            "scope": ",".join(sorted(grant.scopes)),
            "bot_user_id": "U0BOT",
            "app_id": self.app_id,
            "team": None if grant.is_organization else team,
            "enterprise": enterprise,
            "is_enterprise_install": grant.is_organization,
            "authed_user": {"id": "U0ADMIN"},
            **rotation,
        }
