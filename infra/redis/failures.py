"""Failures: say in words why a Redis or a Sentinel cannot be used, and what cures it.

Passwords are never shown.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from sayso.infra.manual import manual


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a server cannot be used, and the cure."""

    #: What is wrong, as a sentence that begins with the place of the server.
    says: str
    #: What an operator can do.
    cure: str
    #: Whether it stays until an operator acts. False: waiting may mend it.
    lasts: bool = True

    def __str__(self) -> str:
        return f"{self.says}: {self.cure}"


@dataclass(frozen=True, slots=True)
class _Words:
    """How to write a setting into the URL: for the server, or for the Sentinels."""

    #: The cure for a missing login.
    login: str
    #: What asks for TLS.
    tls: str
    #: What asks for a connection without TLS.
    no_tls: str
    #: The prefix of the names of parameters.
    prefix: str = ""


_SERVER = _Words(
    "write user and password into REDIS_URL: redis://user:password@host", "rediss://", "redis://"
)
_SENTINEL = _Words(
    "write ?sentinel_username=...&sentinel_password=... into REDIS_URL: a Sentinel has a login of its own",
    "?sentinel_tls=yes",
    "no sentinel_tls",
    "sentinel_",
)


def failure_of(exc: BaseException, place: str, *, of_sentinel: bool = False) -> Failure:
    """Return why the server at `place`, or the Sentinel there, cannot be used.

    `exc` is the error of a call to it.
    """
    words = _SENTINEL if of_sentinel else _SERVER
    causes = list(causes_of(exc))
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return _tls_failure(cause, place, words)
    if any(isinstance(each, socket.gaierror) for each in causes):
        # After a reboot, or before its container runs, a service may have no name yet.
        says = f"{place} has a host name that is unknown here"
        return Failure(says, "correct it in REDIS_URL, or in DNS", lasts=False)
    if isinstance(exc, AuthenticationError):
        return Failure(f"{place} refuses the login", words.login)
    if isinstance(exc, BusyLoadingError):
        return Failure(f"{place} reads its files after a start", "wait until it has", lasts=False)
    if isinstance(exc, InvalidResponse):
        return Failure(
            f"{place} does not speak the protocol of Redis", "see which program listens there"
        )
    if isinstance(exc, ResponseError):
        return _refusal(exc, place)
    return _silence(exc, causes, place, words)


def _tls_failure(exc: ssl.SSLError, place: str, words: _Words) -> Failure:
    if isinstance(exc, ssl.SSLCertVerificationError):
        cure = f"add ?{words.prefix}ssl_ca_certs=FILE with its authority to REDIS_URL, and use the name in it"
        return Failure(
            f"{place} has a certificate that fails the check: {exc.verify_message}", cure
        )
    if "CERTIFICATE_REQUIRED" in str(exc.reason):
        cure = f"add ?{words.prefix}ssl_certfile=FILE&{words.prefix}ssl_keyfile=FILE to REDIS_URL"
        return Failure(f"{place} asks for a client certificate", cure)
    cure = f"write {words.no_tls} for a port without TLS, or the port that has it"
    return Failure(f"{place} does not speak TLS as REDIS_URL asks for ({exc.reason})", cure)


def _refusal(exc: ResponseError, place: str) -> Failure:
    text = str(exc)
    if "DB index" in text:
        return Failure(
            f"{place} has no database of this number ({text})",
            "end REDIS_URL with one that it has, as /0",
        )
    if isinstance(exc, OutOfMemoryError):
        return Failure(
            f"{place} has no memory left",
            "raise its maxmemory, or move it to a larger machine",
            lasts=False,
        )
    if text.startswith("MISCONF"):
        return Failure(
            f"{place} cannot write its files", "give its disk room, and see its log", lasts=False
        )
    if isinstance(exc, NoPermissionError):
        return Failure(
            f"{place} forbids this user a command ({text})",
            f"allow it: {manual('reference/redis.md')} has the list",
        )
    return Failure(f"{place} refuses: {text}", "see its log and its settings")


def _silence(exc: BaseException, causes: list[BaseException], place: str, words: _Words) -> Failure:
    """Return the failure of a server that gave no answer."""
    if any(isinstance(each, FileNotFoundError) for each in causes):
        return Failure(
            f"{place}: no server has a socket there", "start it, or correct REDIS_URL", lasts=False
        )
    if any(isinstance(each, PermissionError) for each in causes):
        cure = "let this user open it, or correct REDIS_URL"
        return Failure(f"{place} may not be opened by this user", cure)
    if any(isinstance(each, ConnectionRefusedError) for each in causes):
        cure = "start it, correct REDIS_URL, or run `sayso up`, which brings its own"
        return Failure(f"{place}: nothing listens there", cure, lasts=False)
    if any("handshake" in str(each) for each in causes):
        cure = f"write {words.no_tls} for a port without TLS, or see that the server runs"
        return Failure(f"{place} does not answer the TLS handshake in time", cure, lasts=False)
    if isinstance(exc, RedisTimeoutError):
        cure = "see that it runs, and that no firewall is in between"
        return Failure(f"{place} does not answer in time", cure, lasts=False)
    if "closed" in str(exc) or any(isinstance(each, ConnectionResetError) for each in causes):
        cure = f"if it speaks TLS, write {words.tls} into REDIS_URL; else see its log"
        return Failure(f"{place} closes the connection", cure, lasts=False)
    cure = "start it, and check REDIS_URL and its password"
    return Failure(f"{place} does not answer ({type(exc).__name__})", cure, lasts=False)


def causes_of(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from."""
    following: BaseException | None = exc
    while following:
        yield following
        following = following.__cause__ or following.__context__
