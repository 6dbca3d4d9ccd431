"""SentinelService: asks Sentinels for the address of the primary, and explains why they name none.

redis-py's `Sentinel` finds the primary too. Its error lists what each Sentinel answered, without
what an operator can do about it, which differs for a wrong service, a login and a lost quorum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from sayso.infra.redis.failures import failure_of

#: Seconds that one Sentinel may take to be connected to, and to answer: the next one is asked then.
SENTINEL_SECONDS = 0.5
#: The port of a Sentinel where the URL names none.
SENTINEL_PORT = 26379

Address = tuple[str, int]


class NoPrimary(RedisConnectionError):
    """Raised when no Sentinel names a primary that can be reached.

    The message says why, and the cure.
    """


class PrimarySilent(RedisTimeoutError):
    """Raised when the primary that Sentinels name takes no connection in time.

    The message has the cure.
    """


@dataclass(frozen=True, slots=True, eq=False)
class SentinelService:
    """A service: a primary and its replicas, which Sentinels watch.

    Lives as long as the connections to it. Any thread may use it.
    """

    #: The name of the service, as the Sentinels know it.
    name: str
    #: The Sentinels that the URL names.
    addresses: Sequence[Address]
    #: The options of a connection to a Sentinel, with its login.
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: The Sentinels in the order in which they are asked: first the one that answered last.
    _order: list[Address] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self._order.extend(self.addresses)

    def __str__(self) -> str:
        return f"{self.name}@{','.join(f'{host}:{port}' for host, port in sorted(self.addresses))}"

    def primary(self) -> Address:
        """Return the address of the primary from the first Sentinel that knows it.

        Raises NoPrimary.
        """
        problems = []
        for address in list(self._order):
            try:
                with self.client(address) as sentinel:
                    services = _by_name(sentinel.sentinel_masters())
                primary = self._primary_in(services, address)
            except RedisError as exc:
                problems.append(_Problem.of(exc, address))
            else:
                self._prefer(address)
                return primary
        raise NoPrimary(max(problems).text)

    async def primary_async(self) -> Address:
        """Return the address of the primary as `primary` does, without blocking the event loop."""
        problems = []
        for address in list(self._order):
            host, port = address
            try:
                async with AsyncRedis(host=host, port=port, **self._client_options) as sentinel:
                    services = _by_name(await sentinel.sentinel_masters())
                primary = self._primary_in(services, address)
            except RedisError as exc:
                problems.append(_Problem.of(exc, address))
            else:
                self._prefer(address)
                return primary
        raise NoPrimary(max(problems).text)

    def unreachable(self, address: Address, exc: OSError) -> RedisError:
        """Return the error for a primary that does not answer at its address."""
        cure = "start it or, if it is alive, set replica-announce-ip and replica-announce-port to what is reached here"
        says = f"the Sentinels name {_text(address)} as the primary of {self.name!r}, which does not answer from here"
        text = f"{says} ({type(exc).__name__}): {cure}"
        if isinstance(exc, TimeoutError):
            return PrimarySilent(text)
        return NoPrimary(text)

    def risks(self) -> list[str]:
        """Return the reasons why a failover may not happen, as sentences for an operator.

        Raises NoPrimary, and redis.RedisError.
        """
        # Afterwards the first one in the order is a Sentinel that answers.
        self.primary()
        with self.client(self._order[0]) as sentinel:
            state = _by_name(sentinel.sentinel_masters())[self.name]
            no_quorum = ""
            try:
                sentinel.execute_command("SENTINEL", "CKQUORUM", self.name)
            except ResponseError as exc:
                no_quorum = str(exc)

        count = int(state["num-other-sentinels"]) + 1
        risks = []
        if no_quorum:
            needed = f"{count} Sentinels know {self.name!r}, its quorum is {state['quorum']}"
            risks.append(
                f"no failover can happen now ({needed}; {no_quorum}): start the Sentinels that are missing"
            )
        elif count < 3:
            risks.append(
                f"only {count} Sentinels watch {self.name!r}: run three, on three machines"
            )
        if not int(state["num-slaves"]):
            risks.append(
                f"{self.name!r} has no replica that could take over: start one on another machine"
            )
        if len(self.addresses) < min(count, 2):
            risks.append(
                f"the URL names one of {count} Sentinels, and nothing works without that one: name them all"
            )
        return risks

    def client(self, address: Address) -> Redis:
        """Return a client of one Sentinel."""
        return Redis(host=address[0], port=address[1], **self._client_options)

    @property
    def _client_options(self) -> dict[str, Any]:
        """Return the options of a client that tries once."""
        return {
            "socket_timeout": SENTINEL_SECONDS,
            "socket_connect_timeout": SENTINEL_SECONDS,
            "retry": None,
            "retry_on_error": [],
            "decode_responses": True,
            **self.options,
        }

    def _primary_in(self, services: Mapping[str, Mapping[str, Any]], sentinel: Address) -> Address:
        """Return the address of our primary among a Sentinel's services. Raises _NotUsable."""
        state = services.get(self.name)
        if state is None:
            known = ", ".join(map(repr, sorted(services))) or "it has none yet"
            says = f"the Sentinel at {_text(sentinel)} knows no service {self.name!r}"
            raise _NotUsable(3, f"{says}: name one of its services in REDIS_URL ({known})")
        address = str(state["ip"]), int(state["port"])
        if state["is_sdown"] or state["is_odown"]:
            says = f"the primary of {self.name!r}, {_text(address)}, is down, and no replica is promoted yet"
            raise _NotUsable(
                4, f"{says}: see the log of the Sentinel at {_text(sentinel)} if this lasts"
            )
        return address

    def ask_others(self) -> None:
        """Ask the other Sentinels first from now on.

        The one that answered last named a server that is no primary any more. It may be cut off
        from the others, and would name that server for ever.
        """
        first, *others = self._order
        # In one step, since other threads read the list.
        self._order[:] = [*others, first]

    def _prefer(self, address: Address) -> None:
        """Ask this Sentinel first from now on. Threads may race: each order is valid."""
        if self._order[0] != address:
            others = [each for each in self._order if each != address]
            self._order[:] = [address, *others]


class _NotUsable(RedisError):
    """Raised when a Sentinel answered and its answer names no primary.

    `rank` is that of the _Problem.
    """

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank


@dataclass(frozen=True, slots=True, order=True)
class _Problem:
    """Why one Sentinel named no primary. Of several, the one with the highest rank is reported."""

    #: 0: no answer. 1: no answer, for a reason that an operator can mend. 2: the server is no
    #: Sentinel. 3: it does not know the service. 4: the primary is down.
    rank: int
    text: str

    @classmethod
    def of(cls, exc: RedisError, sentinel: Address) -> _Problem:
        """Return the problem that an error of a call to a Sentinel shows."""
        place = _text(sentinel)
        if isinstance(exc, _NotUsable):
            return cls(exc.rank, str(exc))
        is_login = isinstance(exc, AuthenticationError | NoPermissionError)
        if isinstance(exc, ResponseError) and not is_login:
            cure = "write the address of a Sentinel, usually port 26379, or a URL that begins with redis://"
            return cls(2, f"the server at {place} is no Sentinel ({exc}): {cure}")
        if isinstance(exc, NoPermissionError):
            exc = AuthenticationError(str(exc))
        failure = failure_of(exc, f"the Sentinel at {place}", of_sentinel=True)
        if failure.lasts or "closes" in failure.says or "handshake" in failure.says:
            return cls(1, str(failure))
        return cls(
            0,
            f"no Sentinel answers, last asked {place} ({type(exc).__name__}): start them, or see REDIS_URL",
        )


def _by_name(services: Any) -> dict[str, Mapping[str, Any]]:
    """Return the services of a Sentinel by their names. redis-py returns them so, or as a list."""
    if isinstance(services, Mapping):
        return dict(services)
    return {each["name"]: each for each in services}


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
