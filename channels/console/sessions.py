"""BrowserSessions: which person uses a browser, and whether the browser may use the page.

A browser is known by a signed cookie with a random user id, its identity. With a password, a second
cookie proves a log-in; its session ends after 12 hours or by logging out. A third cookie has the
name that the person chose.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from itsdangerous import BadData, URLSafeSerializer, URLSafeTimedSerializer

from sayso.channels.base import Forbidden
from sayso.channels.console.incoming import cookie_of, is_encrypted, is_same_origin
from sayso.channels.console.settings import ConsoleSettings
from sayso.channels.console.store import MAX_NAME_CHARS, SESSION_SECONDS, Logins, title_of
from sayso.channels.setup import is_loopback
from sayso.channels.types import WebhookRequest
from sayso.infra.ids import random_id

#: The header that the page's script sets. A form of another site cannot set it.
PAGE_HEADER = "x-sayso-console"
#: The most characters of an address that a proxy names.
MAX_ADDRESS_CHARS = 60
#: The prefix of cookies that, over https, only this very host can set (RFC 6265bis, 4.1.3.2).
_HOST = "__Host-"


class BrowserSessions:
    """The browsers of one console channel. Lives as long as its channel; any thread may use it.

    Everything that it knows of a browser is in the browser's signed cookies. Only the sessions that
    were ended, and the wrong passwords, are stored: in `logins`.

    `name` is the channel's. `keys` are the secrets to sign cookies with: the first one signs, and
    the others are accepted too. Raises ValueError without one.
    """

    def __init__(
        self,
        name: str,
        settings: ConsoleSettings,
        *,
        keys: Sequence[str],
        logins: Logins,
    ) -> None:
        if not keys:
            raise ValueError(
                "keys is empty: give at least one secret to sign console sessions with"
            )
        self.logins = logins
        self._name = name
        self._proxies = [ipaddress.ip_network(each) for each in settings.trusted_proxies]
        self._password = ""
        if settings.password:
            self._password = settings.password.get_secret_value()

        # With the password in the salt, a new password ends every session.
        password_hash = hashlib.sha256(self._password.encode()).hexdigest()
        self._salt = f"sayso.console.{name}.{password_hash}"
        # Itsdangerous signs with the last key.
        self._keys = list(reversed(keys))
        self._identity_cookies = URLSafeSerializer(self._keys, salt=self._salt)
        self._login_cookies = URLSafeTimedSerializer(self._keys, salt=f"{self._salt}.login")
        self._name_cookies = self.signer("name")

    @property
    def is_open(self) -> bool:
        """Whether there is no password, so that only this machine may open the page."""
        return not self._password

    def is_password(self, password: str) -> bool:
        """Return whether this is the password."""
        return hmac.compare_digest(password.encode(), self._password.encode())

    def sender(self, hook: WebhookRequest) -> str:
        """Return the id of the user whose page posted the request.

        Raises Forbidden if it comes from another site or from a browser without a session, and
        StoreDown.
        """
        if not hook.header(PAGE_HEADER):
            raise Forbidden(
                f"header {PAGE_HEADER!r} is missing: only the console page may post here"
            )
        if not is_same_origin(hook):
            raise Forbidden(
                f"origin {hook.header('origin')!r} is not this server: open the console page itself"
            )
        user_id = self.visitor(hook)
        if not user_id:
            raise Forbidden("no valid console session: reload the page")
        return user_id

    def visitor(self, hook: WebhookRequest) -> str:
        """Return the user id of a browser that may use the page, "" for any other.

        If there is a password, the browser must be logged in. Raises StoreDown.
        """
        user_id = self.user_of(cookie_of(hook, self.cookie_for(hook)))
        if not user_id or self.is_open:
            return user_id
        session = self._session(hook)
        # A session of another identity must not open this one's conversations.
        if session and session.user_id == user_id:
            return user_id
        return ""

    def new_identity(self) -> str:
        """Return the identity cookie of a new browser, with a new user id."""
        return str(self._identity_cookies.dumps(random_id()))

    def user_of(self, cookie: str) -> str:
        """Return the user id in a cookie of `new_identity`, "" for any other cookie."""
        try:
            return str(self._identity_cookies.loads(cookie))
        except BadData:
            return ""

    def log_in(self, user_id: str) -> str:
        """Return the cookie of a new session of this user."""
        return str(self._login_cookies.dumps([random_id(), user_id]))

    def log_out(self, hook: WebhookRequest) -> None:
        """End the session of a browser, also for copies of its cookie. Raises StoreDown."""
        session = self._session(hook)
        if session:
            self.logins.end(session.id)

    def _session(self, hook: WebhookRequest) -> _Session | None:
        """Return the session of a browser, None for one that is not logged in. Raises StoreDown."""
        cookie = cookie_of(hook, self.login_cookie_for(hook))
        try:
            session_id, user_id = self._login_cookies.loads(cookie, max_age=SESSION_SECONDS)
        except (BadData, ValueError, TypeError):
            return None
        if self.logins.is_ended(session_id):
            return None
        return _Session(session_id, user_id)

    def client_address(self, peer: str, forwarded_for: str) -> str:
        """Return the address of a client, for which wrong passwords count.

        `peer` is the address that is connected to this server. If it is a trusted proxy, the client
        is the last address in `forwarded_for`, the header X-Forwarded-For.
        """
        reported = forwarded_for.rpartition(",")[2].strip()[:MAX_ADDRESS_CHARS]
        is_proxy = is_loopback(peer)
        # ValueError: a peer without an address, such as a Unix socket.
        with suppress(ValueError):
            address = ipaddress.ip_address(peer)
            is_proxy = is_proxy or any(address in network for network in self._proxies)
        if is_proxy and reported:
            return reported
        return peer

    def name_cookie(self, user_id: str, name: str) -> str:
        """Return the cookie of a person's name, which is cut to one short line."""
        return str(self._name_cookies.dumps([user_id, title_of(name, MAX_NAME_CHARS)]))

    def name_of(self, hook: WebhookRequest, user_id: str) -> str:
        """Return the name that a person chose, "" for none and for the cookie of another person."""
        try:
            owner, name = self._name_cookies.loads(cookie_of(hook, self.name_cookie_for(hook)))
        except (BadData, ValueError, TypeError):
            return ""
        if owner == user_id:
            return str(name)
        return ""

    @property
    def cookie(self) -> str:
        """The name of the cookie with a browser's identity, over plain http."""
        return f"sayso_console_{self._name}"

    def cookie_for(self, hook: WebhookRequest) -> str:
        """Return the name of the cookie with a browser's identity."""
        return f"{_cookie_prefix(hook)}{self.cookie}"

    def login_cookie_for(self, hook: WebhookRequest) -> str:
        """Return the name of the cookie that proves a log-in."""
        return f"{_cookie_prefix(hook)}sayso_login_{self._name}"

    def name_cookie_for(self, hook: WebhookRequest) -> str:
        """Return the name of the cookie with the name that the person chose."""
        return f"{_cookie_prefix(hook)}sayso_name_{self._name}"

    def signer(self, purpose: str) -> URLSafeSerializer:
        """Return what signs values for one purpose. A new password makes them all invalid."""
        return URLSafeSerializer(self._keys, salt=f"{self._salt}.{purpose}")


class _Session(NamedTuple):
    """A browser that is logged in."""

    id: str
    #: The identity that logged in.
    user_id: str


def _cookie_prefix(hook: WebhookRequest) -> str:
    """Return how the names of cookies begin: over https no other host can set them."""
    return _HOST if is_encrypted(hook) else ""
