"""RedisUrl: reads the URL of a Redis, and opens connections to it for threads and for event loops.

With Sentinels, each new connection asks them for the primary. A connection to a server that has
become a replica is closed: the next attempt opens a new one, which finds the new primary.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from ssl import SSLError
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis import (
    Connection,
    ConnectionPool,
    DriverInfo,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio import Connection as AsyncConnection
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio import SSLConnection as AsyncSSLConnection
from redis.asyncio import UnixDomainSocketConnection as AsyncUnixConnection
from redis.connection import parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from sayso.infra.redis.sentinel import SENTINEL_PORT, Address, SentinelService

#: The forms of a URL, for messages.
FORMS = (
    "redis://host:6379/0, rediss://host:6379/0, unix:///path?db=0, redis+sentinel://host:26379,host:26379/service/0, "
    "or redis+cluster://host:6379,host:6379"
)
#: The schemes of a URL of Sentinels, and those of a connection to the server that they name.
_SENTINEL = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
#: The errors of a server that takes no writes now: it has become a replica (READONLY), or has too
#: few replicas (NOREPLICAS). The others are those of WAIT, by a server that became a replica after
#: the write or during the wait.
_NO_WRITES = re.compile(
    r"(^|[ -])(READONLY|NOREPLICAS|UNBLOCKED) |WAIT cannot be used with replica"
)
#: The parameters of a URL that are for the pool. Its connections do not take them.
_POOL_PARAMETERS = {"max_connections"}
#: The parameters of a URL of any scheme. redis-py takes others as texts, and fails when it uses
#: them.
_PARAMETERS = (
    "client_name",
    "db",
    "health_check_interval",
    "max_connections",
    "password",
    "protocol",
    "retry_on_timeout",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_timeout",
    "username",
)
#: The further parameters of a URL with TLS.
_TLS_PARAMETERS = (
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_password",
)
#: The parameters that name a file.
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
#: The parameters that are numbers above 0.
_POSITIVE = ("max_connections", "socket_connect_timeout", "socket_timeout")
#: The prefix of the parameters for connections to Sentinels.
_SENTINEL_PREFIX = "sentinel_"
#: The values of `sentinel_tls`.
_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


class NotWritable(RedisConnectionError):
    """Raised when a server became a replica, or lost the replicas that it needs.

    Nothing was written, or only on that server: try again.
    """


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """The URL of one Redis server, parsed. Its repr shows no password."""

    scheme: str
    #: The options of its connections.
    options: Mapping[str, Any] = field(repr=False)
    #: The Sentinels that name the server; None for a URL that names it.
    sentinel: SentinelService | None = None

    @classmethod
    def parse(cls, url: str) -> RedisUrl:
        """Read a URL. Raises ValueError, without the URL in its message: it may hold a password."""
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in _SYNC:
            begins = ""
            if separator and scheme.isalpha():
                begins = f"begins with {scheme!r}: "
            raise ValueError(f"{begins}no URL of a Redis: write it as {FORMS}")
        check_password(rest, has_host=scheme != "unix")
        if scheme in _SENTINEL:
            return _sentinel_url(scheme, rest)

        try:
            parts = urlsplit(url)
        except ValueError:
            raise ValueError("has an address in [ without its ]: write [::1]:6379") from None
        if scheme == "unix":
            if not parts.path:
                raise ValueError("names no socket: write unix:///path, with three slashes")
        elif "," in parts.netloc.rpartition("@")[2]:
            raise ValueError(
                "names several hosts: write redis+sentinel://host:26379,host:26379/service"
            )
        options = _options(scheme, url)
        if scheme != "unix":
            _check_db(parts.path.strip("/"))
        return cls(scheme, options)

    def pool(self, **options: Any) -> ConnectionPool:
        """Return a pool of connections for threads."""
        return ConnectionPool(**self._options(_SYNC[self.scheme], options))

    def async_pool(self, **options: Any) -> AsyncConnectionPool:
        """Return a pool of connections for one event loop."""
        return AsyncConnectionPool(**self._options(_ASYNC[self.scheme], options))

    def _options(self, connection_class: type, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a pool. Those of the URL win, as in redis-py."""
        all_options = {
            "driver_info": _driver_info(),
            **options,
            **self.options,
            "connection_class": connection_class,
        }
        if self.sentinel:
            all_options["sentinel"] = self.sentinel
        return all_options


@cache
def _driver_info() -> DriverInfo:
    """Return what a server shows about its clients in CLIENT LIST.

    Without it, redis-py would read its own version from its metadata again for each connection,
    which costs more than the connection.
    """
    return DriverInfo()


def _sentinel_url(scheme: str, rest_of_url: str) -> RedisUrl:
    """Read a URL that names Sentinels. Raises ValueError."""
    # Not by `urlsplit`: since 2025 Python refuses a host in [ that is not the only one.
    before, _, parameters = rest_of_url.partition("?")
    netloc, _, path = before.partition("/")
    login, hosts = split_login(netloc)
    service, _, db = path.strip("/").partition("/")
    if not service:
        raise ValueError(
            f"names no service of the Sentinels: write {scheme}://host:26379,host:26379/service/0"
        )
    _check_db(db)

    sentinel_parameters: dict[str, str] = {}
    server_parameters: list[tuple[str, str]] = []
    for name, value in parse_qsl(parameters):
        if name.startswith(_SENTINEL_PREFIX):
            sentinel_parameters[name.removeprefix(_SENTINEL_PREFIX)] = value
        else:
            server_parameters.append((name, value))

    # The options of the server are read from a URL that names it. Sentinels name its host.
    server_scheme = _SENTINEL[scheme]
    server_url = f"{server_scheme}://{login}@service/{db or 0}?{urlencode(server_parameters)}"
    options = _options(server_scheme, server_url)
    del options["host"]

    addresses = addresses_of(hosts, "a Sentinel", SENTINEL_PORT)
    tls_parameters = {name: value for name, value in server_parameters if name in _TLS_PARAMETERS}
    sentinel_options = _sentinel_options(sentinel_parameters, tls_parameters)
    sentinel = SentinelService(unquote(service), addresses, sentinel_options)
    return RedisUrl(scheme, options, sentinel)


def _sentinel_options(given: dict[str, str], shared: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a connection to a Sentinel.

    `given` are its own parameters, without their prefix, and `shared` the parameters of TLS of the
    server, which hold for Sentinels with TLS too. Raises ValueError.
    """
    tls = given.pop("tls", "").lower()
    if tls not in (*_YES, *_NO):
        raise ValueError(f"has sentinel_tls={tls!r}: write sentinel_tls=yes, or leave it out")
    if "db" in given:
        raise ValueError("has a parameter that Sentinels do not take: 'sentinel_db'")

    scheme = "redis"
    if tls in _YES:
        scheme = "rediss"
        given = {**shared, **given}
    try:
        options = _options(scheme, f"{scheme}://?{urlencode(given)}")
    except ValueError as exc:
        raise ValueError(f"{exc} (each begins with sentinel_ here)") from None
    if tls in _YES:
        options["ssl"] = True
    return options


def check_password(rest: str, *, has_host: bool) -> None:
    """Refuse a URL whose password has a character that ends the part of the URL: / ? or #.

    `rest` is the URL without its scheme. Raises ValueError.
    """
    before, *after = re.split("[/?#]", rest, maxsplit=1)
    is_login_cut = has_host and "@" not in before and "@" in "".join(after)
    if is_login_cut or "#" in rest:
        raise ValueError("has a password with / ? or # in it: write these as %2F, %3F and %23")


def split_login(netloc: str) -> tuple[str, str]:
    """Return the login and the list of hosts. Raises ValueError if each host has a login."""
    login, _, hosts = netloc.rpartition("@")
    if "@" in login and "," in login:
        raise ValueError(
            "has a login before more than one host: write it once, before the first, and @ in it as %40"
        )
    return login, hosts


def addresses_of(hosts: str, what: str, default_port: int) -> tuple[Address, ...]:
    """Return the hosts and ports of a list with commas.

    Raises ValueError, which calls an item `what`, such as "a node".
    """
    addresses = []
    for text in hosts.split(","):
        address = _read_address(text, default_port)
        if address is None:
            raise ValueError(f"{text!r} is not an address of {what}: write host:{default_port}")
        addresses.append(address)
    return tuple(addresses)


def _read_address(text: str, default_port: int) -> Address | None:
    """Return the host and port in a text such as "a.example:6379", None for any other text."""
    try:
        parts = urlsplit(f"//{text}")
        host = parts.hostname
        port = parts.port
    except ValueError:
        return None
    if not host or port == 0 or " " in text:
        return None
    return host, port or default_port


def _check_db(text: str) -> None:
    if text and not text.isdigit():
        raise ValueError(
            f"{text!r} is no number of a database: end the URL with /0, or with nothing"
        )


def _options(scheme: str, url: str) -> dict[str, Any]:
    """Return the options of the connections to the server of a URL.

    Raises ValueError for a parameter that is unknown or has a wrong value.
    """
    known: tuple[str, ...] = _PARAMETERS
    if scheme == "rediss":
        known = (*_PARAMETERS, *_TLS_PARAMETERS)
    unknown = [name for name, _ in parse_qsl(urlsplit(url).query) if name not in known]
    if unknown:
        cure = f"it takes {', '.join(known)}"
        if scheme == "redis" and unknown[0] in _TLS_PARAMETERS:
            cure = "write rediss:// for TLS"
        raise ValueError(f"has a parameter that {scheme}:// does not take: {unknown[0]!r}; {cure}")

    try:
        if scheme != "unix" and urlsplit(url).port == 0:
            raise ValueError
        options: dict[str, Any] = parse_url(url)
    except ValueError as exc:
        # This message names a parameter; others may repeat a part of a password.
        if "connection URL" in str(exc):
            raise ValueError(f"no URL of a Redis: {exc}") from None
        raise ValueError("no URL of a Redis: its port is no number from 1 to 65535") from None
    options.pop("connection_class", None)
    _check_values(options)

    # redis-py checks some values when it creates a connection. The connection is not opened.
    of_connection = {name: value for name, value in options.items() if name not in _POOL_PARAMETERS}
    try:
        _SYNC[scheme](driver_info=_driver_info(), **of_connection)
    except RedisError as exc:
        raise ValueError(f"has a parameter with a wrong value: {exc}") from None
    return options


def _check_values(options: Mapping[str, Any]) -> None:
    """Refuse values that redis-py would take and fail with later. Raises ValueError."""
    for name in _POSITIVE:
        if name in options and not options[name] > 0:
            raise ValueError(
                f"has a parameter with a wrong value: {name}={options[name]:g}: write more than 0"
            )
    for name in _FILES:
        if name in options and not os.access(options[name], os.R_OK):
            raise ValueError(f"names a file that cannot be read: {name}={options[name]}")
    client_name = str(options.get("client_name", ""))
    if not client_name.isprintable() or " " in client_name:
        raise ValueError(
            f"has a parameter with a wrong value: client_name={client_name!r}: write it without spaces"
        )


def _refuse(exc: ResponseError, connection: object) -> NoReturn:
    """Raise NotWritable for a server that takes no writes."""
    # The Sentinel that named this server may be cut off from the others, and name it for ever.
    if isinstance(connection, _FollowsSentinel | _AsyncFollowsSentinel):
        connection.service.ask_others()
    raise NotWritable(str(exc)) from exc


def takes_no_writes(exc: ResponseError) -> bool:
    """Return whether a server refused a command because it takes no writes now."""
    return isinstance(exc, ReadOnlyError) or bool(_NO_WRITES.search(str(exc)))


class _LeavesReplica:
    """A mixin for connections: closes one whose server takes no writes.

    The next connection looks the server up again. redis-py does so for Sentinels alone, and only after READONLY. A primary that has lost its
    replicas answers NOREPLICAS, and a host name may lead to another server by now.
    """

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Return the answer. Raises NotWritable, after it closed the connection."""
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]  # of the connection class
        except ResponseError as exc:
            if not takes_no_writes(exc):
                raise
            self.disconnect()  # type: ignore[attr-defined]
            _refuse(exc, self)


class _FollowsSentinel(_LeavesReplica):
    """A mixin for connections: asks the Sentinels for the primary whenever it connects."""

    def __init__(self, *, sentinel: SentinelService, **options: Any) -> None:
        super().__init__(**options)
        self.service = sentinel

    def _connect(self) -> Any:
        address = self.service.primary()
        self.host, self.port = address
        try:
            return super()._connect()  # type: ignore[misc]
        except SSLError:
            # Waiting does not mend it, and the error says what is wrong.
            raise
        except OSError as exc:
            self.service.ask_others()
            raise self.service.unreachable(address, exc) from exc


class _AsyncLeavesReplica:
    """What `_LeavesReplica` does, for the connections of an event loop."""

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Return the answer. Raises NotWritable, after it closed the connection."""
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError as exc:
            if not takes_no_writes(exc):
                raise
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            _refuse(exc, self)


class _AsyncFollowsSentinel(_AsyncLeavesReplica):
    """What `_FollowsSentinel` does, for the connections of an event loop."""

    def __init__(self, *, sentinel: SentinelService, **options: Any) -> None:
        super().__init__(**options)
        self.service = sentinel

    async def _connect(self) -> None:
        address = await self.service.primary_async()
        self.host, self.port = address
        try:
            await super()._connect()  # type: ignore[misc]
        except SSLError:
            raise
        except OSError as exc:
            self.service.ask_others()
            raise self.service.unreachable(address, exc) from exc


class _Tcp(_LeavesReplica, Connection): ...


class _Tls(_LeavesReplica, SSLConnection): ...


class _SentinelTcp(_FollowsSentinel, Connection): ...


class _SentinelTls(_FollowsSentinel, SSLConnection): ...


class _AsyncTcp(_AsyncLeavesReplica, AsyncConnection): ...


class _AsyncTls(_AsyncLeavesReplica, AsyncSSLConnection): ...


class _AsyncSentinelTcp(_AsyncFollowsSentinel, AsyncConnection): ...


class _AsyncSentinelTls(_AsyncFollowsSentinel, AsyncSSLConnection): ...


#: By scheme, the class of the connections of threads.
_SYNC: Mapping[str, type] = {
    "redis": _Tcp,
    "rediss": _Tls,
    "unix": UnixDomainSocketConnection,
    "redis+sentinel": _SentinelTcp,
    "rediss+sentinel": _SentinelTls,
}
#: By scheme, the class of the connections of an event loop.
_ASYNC: Mapping[str, type] = {
    "redis": _AsyncTcp,
    "rediss": _AsyncTls,
    "unix": AsyncUnixConnection,
    "redis+sentinel": _AsyncSentinelTcp,
    "rediss+sentinel": _AsyncSentinelTls,
}
