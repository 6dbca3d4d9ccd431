"""RedisUrl: reads the URL of a Redis, and opens connections to it for threads and for event loops.

With Sentinels, each new connection asks them for the primary. A connection over TCP to a server
that has become a replica is closed: the next attempt opens a new one, which finds the new primary.

`cluster.py` reads the URL of a Redis Cluster, with the public functions of this module.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from ssl import SSLError, TLSVersion
from typing import Any, NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

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

#: The forms of a URL, for messages. Callers give a URL of a cluster to `cluster.py`.
_FORMS = (
    "redis://host:6379/0, rediss://host:6379/0, unix:///path?db=0, redis+sentinel://host:26379,host:26379/service/0, "
    "or redis+cluster://host:6379,host:6379"
)
#: The schemes of a URL of Sentinels, and those of a connection to the server that they name.
_SENTINEL = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
#: The errors of a server that takes no writes now: it has become a replica (READONLY), or has too
#: few replicas (NOREPLICAS). The others are those of WAIT, by a server that became a replica after
#: the write or during the wait. In the error of a script the code follows a hyphen, in that of a
#: pipeline a space.
_NO_WRITES = re.compile(
    r"(^|[ -])(READONLY|NOREPLICAS|UNBLOCKED) |WAIT cannot be used with replica"
)
#: The parameters of a URL that are for the pool. Its connections do not take them.
_POOL_PARAMETERS = {"max_connections"}
#: The parameters of a URL of any scheme, except those of _NOT_FOR_UNIX. Others are refused: redis-py
#: would pass their text on, and fail later.
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
#: The parameters that a URL of a Unix socket does not take: they are about TCP.
_NOT_FOR_UNIX = ("socket_keepalive",)
#: The further parameters of a URL with TLS. `ssl_min_version` is the number of the version: 771 is
#: TLS 1.2, and 772 is TLS 1.3.
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
#: The numbers that `ssl_min_version` may be; those below 771 are of old versions.
_TLS_VERSIONS = tuple(version.value for version in TLSVersion if version > 0)
#: The parameters that name a file. `ssl_ca_path` names a folder.
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
#: The parameters that are numbers above 0.
_POSITIVE = ("max_connections", "socket_connect_timeout", "socket_timeout")
#: The prefix of the parameters for connections to Sentinels.
_SENTINEL_PREFIX = "sentinel_"
#: The parameters of all URLs, without that prefix.
_ALL_PARAMETERS = {*_PARAMETERS, *_TLS_PARAMETERS, "tls"}
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
    #: The options of its connections, and of their pool.
    options: Mapping[str, Any] = field(repr=False)
    #: The Sentinels that name the server; None for a URL that names it.
    sentinel: SentinelService | None = None

    @classmethod
    def parse(cls, url: str) -> RedisUrl:
        """Read a URL. Raises ValueError.

        Callers put the name of the setting before its message, as in "REDIS_URL: names no socket".
        It holds no part of a login.
        """
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in _SYNC:
            begins = ""
            # Other characters may be those of a login.
            if separator and scheme.isalpha():
                begins = f"begins with {scheme!r}: "
            raise ValueError(f"{begins}no URL of a Redis: write it as {_FORMS}")
        check_special_characters(rest, has_host=scheme != "unix")
        if scheme in _SENTINEL:
            return _sentinel_url(scheme, rest)

        parts = _split(url)
        host = parts.netloc.rpartition("@")[2]
        if scheme == "unix":
            if host or not parts.path:
                raise ValueError("names no socket: write unix:///path, with three slashes")
            return cls(scheme, _connection_options(scheme, url))
        if "," in host:
            raise ValueError(
                "names several hosts: write redis+sentinel://host:26379,host:26379/service"
            )
        options = _connection_options(scheme, url)
        _check_db(parts.path.strip("/"))
        return cls(scheme, options)

    def pool(self, **defaults: Any) -> ConnectionPool:
        """Return a pool of connections for threads. Options in the URL win over `defaults`."""
        return ConnectionPool(**self._pool_options(_SYNC[self.scheme], defaults))

    def async_pool(self, **defaults: Any) -> AsyncConnectionPool:
        """Return a pool of connections for one event loop.

        Options in the URL win over `defaults`.
        """
        return AsyncConnectionPool(**self._pool_options(_ASYNC[self.scheme], defaults))

    def _pool_options(self, connection_class: type, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a pool: those of the URL, and `defaults` for all others."""
        all_options = {
            "driver_info": _driver_info(),
            **defaults,
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
    # `urlsplit` refuses several hosts if one of them is in [ ].
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
    for name, value in parse_qsl(parameters, keep_blank_values=True):
        if name.startswith(_SENTINEL_PREFIX):
            sentinel_parameters[name.removeprefix(_SENTINEL_PREFIX)] = value
        else:
            server_parameters.append((name, value))

    # The options of the server are read from a URL of its own. "host" stands for its address there,
    # which the Sentinels name later. There is no port, so redis-py sets none. `_check_db` has made
    # sure that the database cannot add a part to the URL.
    server_scheme = _SENTINEL[scheme]
    server_url = f"{server_scheme}://{login}@host/{db or 0}?{urlencode(server_parameters)}"
    options = _connection_options(server_scheme, server_url)
    del options["host"]

    addresses = addresses_of(hosts, "a Sentinel", SENTINEL_PORT)
    tls_parameters = {name: value for name, value in server_parameters if name in _TLS_PARAMETERS}
    sentinel_options = _sentinel_options(sentinel_parameters, tls_parameters)
    sentinel = SentinelService(unquote(service), addresses, sentinel_options)
    return RedisUrl(scheme, options, sentinel)


def _sentinel_options(given: dict[str, str], shared: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a connection to a Sentinel.

    `given` are its parameters in the URL, without their prefix. `shared` are the parameters of TLS
    of the server, which hold for Sentinels with TLS too. Raises ValueError.
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
    else:
        _refuse_tls_parameters(given)
    try:
        options = _connection_options(scheme, f"{scheme}://?{urlencode(given)}")
    except ValueError as exc:
        raise ValueError(f"{exc} (each begins with sentinel_ here)") from None
    if tls in _YES:
        # SentinelService passes the options to redis.Redis, which chooses its connections by this.
        options["ssl"] = True
    return options


def _refuse_tls_parameters(given: Mapping[str, str]) -> None:
    """Refuse parameters of TLS for Sentinels without TLS. Raises ValueError."""
    for name in given:
        if name in _TLS_PARAMETERS:
            raise ValueError(f"has sentinel_{name} without TLS: add sentinel_tls=yes")


def check_special_characters(rest: str, *, has_host: bool) -> None:
    """Refuse a URL with a character that ends a part of the URL, most likely inside a password.

    All that follows the password would be misread, and messages would repeat a part of it. `rest`
    is the URL without its scheme. `has_host`: False for a URL of a Unix socket, whose path may have
    an @. Raises ValueError.
    """
    if "#" in rest:
        raise ValueError("has a # in it: write it as %23, in a password too")
    if has_host and "@" in "".join(re.split("[/?]", rest, maxsplit=1)[1:]):
        raise ValueError(
            "has an @ after a / or ?: in a password and in a parameter, write / ? and @ as %2F, %3F and %40"
        )

    _check_ampersands(rest.partition("?")[2])


def _check_ampersands(query: str) -> None:
    """Refuse a password with & in it: its rest looks like another parameter. Raises ValueError.

    This is checked before the names of all parameters: that error would name the rest of the
    password. Only a parameter that is known, also behind the prefix of those for Sentinels, may
    follow a password.
    """
    follows_password = False
    for parameter in query.split("&"):
        name, separator, _ = parameter.partition("=")
        is_known = bool(separator) and name.removeprefix(_SENTINEL_PREFIX) in _ALL_PARAMETERS
        if follows_password and not is_known:
            raise ValueError(
                "has an unknown or empty parameter after a password: write & in it as %26, and no & at "
                "the end of the URL"
            )
        if name.endswith("password"):
            follows_password = True


def _split(url: str) -> SplitResult:
    """Split a URL. Raises ValueError: that of Python would repeat its login."""
    try:
        return urlsplit(url)
    except ValueError:
        raise ValueError(
            "has a login or an address that cannot be read: write an IPv6 address as [::1]:6379, and "
            "[ ] and special letters of a password in the % form, such as %5B for ["
        ) from None


def split_login(netloc: str) -> tuple[str, str]:
    """Return the login, such as "user:password", and the list of hosts.

    Raises ValueError if a host behind the first one has a login.
    """
    login, _, hosts = netloc.rpartition("@")
    if "@" in login and "," in login:
        raise ValueError(
            "has a login before more than one host: write it once, before the first, and @ in it as %40"
        )
    # In "host1,user:password@host2", all before the @ would be the login, and host1 would be lost.
    if "," in login:
        raise ValueError(
            "has a comma before the @: write the login once, before the first host, "
            "and a comma in it as %2C"
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
    """Refuse a database in the path of a URL that is no number. "" is valid. Raises ValueError."""
    if text and not text.isdecimal():
        raise ValueError(
            f"{text!r} is no number of a database: end the URL with /0, or with nothing"
        )


def _connection_options(scheme: str, url: str) -> dict[str, Any]:
    """Return the options of the connections to the server of a URL, and of their pool.

    Raises ValueError for a wrong port, and for a parameter that is unknown or has a wrong value.
    """
    parts = _split(url)
    _check_parameter_names(scheme, parts.query)
    if scheme != "unix":
        _check_port(parts)
    try:
        options: dict[str, Any] = parse_url(url)
    except ValueError as exc:
        # The message names a parameter, without its value.
        raise ValueError(f"no URL of a Redis: {exc}") from None
    options.pop("connection_class", None)
    _check_values(options)

    # redis-py checks some values when it creates a connection. This one is never opened.
    for_connection = {
        name: value for name, value in options.items() if name not in _POOL_PARAMETERS
    }
    try:
        _SYNC[scheme](driver_info=_driver_info(), **for_connection)
    except RedisError as exc:
        raise ValueError(f"has a parameter with a wrong value: {exc}") from None
    return options


def _check_parameter_names(scheme: str, query: str) -> None:
    """Refuse a parameter that a scheme does not take. Raises ValueError."""
    known: tuple[str, ...] = _PARAMETERS
    if scheme == "unix":
        known = tuple(name for name in _PARAMETERS if name not in _NOT_FOR_UNIX)
    if scheme == "rediss":
        known = (*_PARAMETERS, *_TLS_PARAMETERS)
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name in known:
            continue
        cure = f"it takes {', '.join(known)}"
        if scheme == "redis" and name in _TLS_PARAMETERS:
            cure = "begin the URL with rediss in place of redis for TLS"
        raise ValueError(f"has a parameter that {scheme}:// does not take: {name!r}; {cure}")


def _check_port(parts: SplitResult) -> None:
    """Refuse a URL with a port that is none. Raises ValueError."""
    try:
        port = parts.port
    except ValueError:
        # Python's message repeats what stands in the place of the port.
        port = 0
    if port == 0:
        raise ValueError("no URL of a Redis: its port is no number from 1 to 65535")


def _check_values(options: Mapping[str, Any]) -> None:
    """Refuse values that redis-py would take and fail with later. Raises ValueError."""
    for name in _POSITIVE:
        if name in options and not 0 < options[name] < math.inf:
            raise ValueError(
                f"has a parameter with a wrong value: {name}={options[name]:g}: write a number above 0"
            )
    if options.get("db", 0) < 0:
        raise ValueError(
            f"has a parameter with a wrong value: db={options['db']}: write 0 or a number above 0"
        )
    if options.get("health_check_interval", 0) < 0:
        raise ValueError(
            "has a parameter with a wrong value: "
            f"health_check_interval={options['health_check_interval']}: write seconds, or 0 for never"
        )
    if options.get("ssl_min_version", TLSVersion.TLSv1_2) not in _TLS_VERSIONS:
        raise ValueError(
            "has a parameter with a wrong value: "
            f"ssl_min_version={options['ssl_min_version']}: write 771 for TLS 1.2, or 772 for TLS 1.3"
        )
    for name in _FILES:
        if name in options and not os.access(options[name], os.R_OK):
            raise ValueError(f"names a file that cannot be read: {name}={options[name]}")
    client_name = str(options.get("client_name", ""))
    if not client_name.isprintable() or " " in client_name:
        raise ValueError(
            f"has a parameter with a wrong value: client_name={client_name!r}: write it without spaces"
        )


def _raise_not_writable(exc: ResponseError, connection: object) -> NoReturn:
    """Raise NotWritable for a server that takes no writes, and turn to the other Sentinels first.

    The next connection asks the other Sentinels first: the one that named this server may be cut
    off from them, and would name it again each time.
    """
    if isinstance(connection, _FollowsSentinel | _AsyncFollowsSentinel):
        connection.service.ask_others()
    raise NotWritable(str(exc)) from exc


def takes_no_writes(exc: ResponseError) -> bool:
    """Return whether a server refused a command because it takes no writes now."""
    # redis-py leaves the code READONLY out of the text of its own error class.
    return isinstance(exc, ReadOnlyError) or bool(_NO_WRITES.search(str(exc)))


class _LeavesReplica:
    """A mixin for connections: closes one whose server takes no writes.

    The next connection looks the server up again. redis-py does so for Sentinels alone, and only
    after READONLY. But a primary that has lost its replicas answers NOREPLICAS, and a host name may
    lead to another server by now. Connections to a Unix socket do without: the next one would reach
    the same server.
    """

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Return the answer. Raises NotWritable, after it closed the connection."""
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]  # of the connection class
        except ResponseError as exc:
            if not takes_no_writes(exc):
                raise
            self.disconnect()  # type: ignore[attr-defined]
            _raise_not_writable(exc, self)


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
            # It is a kind of OSError. Waiting does not mend it, and the error says what is wrong.
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
            _raise_not_writable(exc, self)


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
            # As in `_FollowsSentinel`.
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
