"""VendorProvider, one client a loop."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from sayso.agent.extras import install_command
from sayso.agent.providers.base import Completion, ProviderConfigurationError, ProviderRequest, StreamItem
from sayso.agent.providers.files import MAX_BYTES_AT_ONCE, FileReading, LoadMedia
from sayso.agent.providers.pricing import context_tokens
from sayso.agent.tools.schema.vendors import ApiFormat
from sayso.pending.concurrency import offload

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model

    from sayso.agent.providers.pydantic_ai.request import ModelRequest


T = TypeVar("T")


#: Seconds to connect, and between two pieces of an answer where a request has no limit of its own.
CONNECT_SECONDS, READ_SECONDS = 5.0, 600.0


#: Connections of one event loop, and those of them that are kept while nobody needs them.
MAX_CONNECTIONS, MAX_IDLE_CONNECTIONS = 1000, 100


#: Whoever wants to close the responses that a vendor's library begins to read.
_seen: ContextVar[list[httpx2.Response] | None] = ContextVar("sayso_responses", default=None)


class Clients(Generic[T]):
    """Lives as long as its provider. A connection belongs to the loop it was opened in, and to no forked process."""

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        self._make, self._close = make, close
        self._begin()

    def __len__(self) -> int:
        return len(self._by_loop)

    def get(self) -> T:
        """The client of the running loop, made where there is none yet."""
        self._begin_after_fork()
        loop = asyncio.get_running_loop()
        with self._lock:
            self._forget_dead()
            if loop not in self._by_loop:
                self._by_loop[loop] = self._make()
            return self._by_loop[loop]

    async def aclose(self) -> None:
        """Close the client of the running loop; the next `get` makes another."""
        self._begin_after_fork()
        with self._lock:
            client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await self._close(client)

    def _begin_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def _begin(self) -> None:
        """Loops of several threads come here. A forked process may find the lock taken for ever, so it has its own."""
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def _forget_dead(self) -> None:
        """A client holds on to its loop, so weak keys alone would keep both for ever."""
        for loop in [each for each in self._by_loop if each.is_closed()]:
            del self._by_loop[loop]


def http_client() -> httpx2.AsyncClient:
    """An HTTP client for a vendor's library. It follows nobody elsewhere: some headers with a key would come along,
    and so would what people wrote. The libraries' own close themselves when they are collected, in whichever
    loop then runs, and fail aloud because theirs has ended.
    """
    import httpx2

    timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_IDLE_CONNECTIONS)
    hooks = {"response": [_see]}
    return httpx2.AsyncClient(timeout=timeout, limits=limits, verify=_certificates(), event_hooks=hooks)


@asynccontextmanager
async def released(opening: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """What a vendor's library opens. In the end no connection is left: a stream that nobody reads to its end is left to
    the garbage collector by some, which closes some of them.
    """
    responses = list["httpx2.Response"]()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close, responses)
        token = _seen.set(responses)
        try:
            opened = await stack.enter_async_context(opening)
        finally:
            _seen.reset(token)
        stack.push_async_callback(_close, responses)  # before the library comes to it
        yield opened


async def _see(response: httpx2.Response) -> None:
    seen = _seen.get()
    if seen is not None:
        seen.append(response)


async def _close(responses: list[httpx2.Response]) -> None:
    for response in responses:
        with suppress(Exception):  # the answer is whole, or its error is on its way
            await response.aclose()


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Reading them takes 20 ms, so a process does it once."""
    import httpx2

    return httpx2.create_ssl_context()


#: Fields of a request that are made for each turn, and what sets those that can be set.
RESERVED: Mapping[str, str] = {
    "model": "use model", "max_tokens": "use max_tokens", "max_completion_tokens": "use max_tokens",
    "max_output_tokens": "use max_tokens", "maxOutputTokens": "use max_tokens", "system": "use system_prompt",
    "messages": "the conversation is sent there", "contents": "the conversation is sent there",
    "input": "the conversation is sent there", "tools": "the tools are sent there", "stream": "it is chosen by itself",
}  # fmt: skip


#: What may be the name and the value of an HTTP header.
_HEADER_NAME, _HEADER_VALUE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"), re.compile(r"[\x20-\x7e]*")


#: Keys with a meaning of ours, which are no fields of a request.
_OWN = ("temperature", "extra_headers", "extra_body", "thinking_budget")


def checked(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the settings as they may be used. Raises ValueError for what a request has from elsewhere."""
    given = dict(settings or {})
    for name, cure in RESERVED.items():
        if name in given:
            raise ValueError(f"model_settings has {name!r}, which cannot be set there: {cure}")
    for name in ("extra_headers", "extra_body"):
        if not isinstance(given.get(name) or {}, Mapping):
            raise ValueError(f"model_settings.{name}={given[name]!r} is no mapping: write {name}: {{name: value}}")
    for name, value in (given.get("extra_headers") or {}).items():
        if value is not None and not (_HEADER_NAME.fullmatch(str(name)) and _HEADER_VALUE.fullmatch(str(value))):
            raise ValueError(
                f"model_settings.extra_headers has {name!r}, which cannot be sent: its name has letters, digits and -, "
                "its value is one line of ASCII"
            )
    budget = given.get("thinking_budget")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
        raise ValueError(f"model_settings.thinking_budget={budget!r} is no number of tokens: use 2000, or 0 for none")
    temperature = given.get("temperature")
    if temperature is not None and (isinstance(temperature, bool) or not isinstance(temperature, int | float)):
        raise ValueError(
            f"model_settings.temperature={temperature!r} is no number: use 0 to 2, or null to leave it out"
        )
    return given


def library_settings(given: Mapping[str, Any], api_format: ApiFormat) -> dict[str, Any]:
    """Return the settings as the vendors' library takes them, all but the temperature.

    Each is a field of the vendor's request, of Gemini's `generationConfig`. One that is null is not sent. Raises
    ValueError.
    """
    fields = {name: value for name, value in given.items() if name not in _OWN and value is not None}
    settings: dict[str, Any] = {}
    if headers := given.get("extra_headers"):
        settings["extra_headers"] = {str(name): str(value) for name, value in headers.items() if value is not None}
    if (budget := given.get("thinking_budget")) is not None:
        fields.update(_thinking(budget, api_format))
    if api_format == "anthropic" and "thinking" in fields:  # the library must know: thinking changes other fields
        settings["anthropic_thinking"] = fields.pop("thinking")
    if api_format == "gemini" and fields:
        fields = {"generationConfig": _camel(fields)}
    if body := {**fields, **(given.get("extra_body") or {})}:
        settings["extra_body"] = body
    return settings


def named(given: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the settings that are sent, without their values."""
    return sorted(name for name, value in given.items() if value is not None)


def _thinking(budget: Any, api_format: ApiFormat) -> dict[str, Any]:
    if api_format == "anthropic":
        return {"thinking": {"type": "enabled", "budget_tokens": budget} if budget else {"type": "disabled"}}
    if api_format == "gemini":
        return {"thinkingConfig": {"thinkingBudget": budget}}
    raise ValueError(
        f"model_settings.thinking_budget={budget!r} is for Anthropic and Gemini: use reasoning_effort: low"
    )


def _camel(value: Any) -> Any:
    """Return Gemini's fields in the spelling of its REST interface; people write both."""
    if not isinstance(value, Mapping):
        return value
    return {
        re.sub(r"_([a-z])", lambda found: found[1].upper(), str(name)): _camel(each) for name, each in value.items()
    }


#: Files that every vendor's model can look at.
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class VendorProvider(ABC):
    """Lives as long as its process, whose event loops and threads may share it.

    `load_media` gives the bytes of an inbound file, such as `lambda media: store.read(media.ref)`; without it files are
    only named. `accepts` are the MIME types sent as they are, in place of what the vendor is known to take.
    `model_settings` are fields of the vendor's request, such as `top_p`, and `extra_headers` and `extra_body`.
    """

    #: With which word the vendor is named in usage and errors.
    name: str
    supports_response_format = True
    #: Whether its streams always say that they have ended: one that just ends was cut.
    ends_streams = True
    #: Whether models have the limits and prices that the vendor publishes under these names.
    knows_models = True
    #: Its streams limit each silence by themselves: they see thinking and half calls, which their reader does not.
    times_silence = True

    _base_url: str

    #: The dialect of its tools' schemas, the library that speaks to it, and the extra of ours that brings it.
    api_format: ApiFormat
    sdk: str
    extra: str
    #: What `preload` imports.
    modules: tuple[str, ...]
    #: Bytes of one file that it takes at most, and of all files of one request. Vendors take a little more.
    max_file_bytes = max_request_bytes = MAX_BYTES_AT_ONCE

    def __init__(
        self,
        api_key: str,
        default_model: str,
        *,
        load_media: LoadMedia | None = None,
        accepts: Collection[str] | None = None,
        model_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.model_settings = checked(model_settings)
        self._extra = library_settings(self.model_settings, self.api_format)
        _require(self.sdk, self.extra)
        self._api_key = api_key
        self.default_model = default_model
        self._accepts = accepts
        self._load_media = load_media
        self._clients: Clients[Any] = Clients(self._connect, self._disconnect)
        self._left_out: set[str] = set()
        self._preloaded = False

    async def acomplete(self, **request: Any) -> Completion:
        """The model's answer; see ProviderRequest. Raises ProviderError."""
        async with self._exchange(request) as exchange:
            return await exchange.completion()

    async def astream(self, **request: Any) -> AsyncIterator[StreamItem]:
        """The model's answer in pieces: text, then whole tool calls, then the usage. Raises ProviderError."""
        async with self._exchange(request) as exchange:
            pieces = exchange.pieces()
            try:
                async for piece in pieces:
                    yield piece
            finally:  # also when the caller stops reading
                await pieces.aclose()

    @property
    def base_url(self) -> str:
        """Where its requests go."""
        return self._base_url

    def preload(self) -> None:
        """Import the vendor's library now, which takes a second or two: once in a process that forks its workers."""
        if not self._preloaded:
            self._import()
            self._preloaded = True

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._clients.aclose()

    def accepted(self, model: str) -> Collection[str]:
        """The MIME types that this model is sent as they are."""
        return self._takes(model) if self._accepts is None else self._accepts

    def context_tokens(self, model: str = "") -> int | None:
        """Return how many tokens a model can read at once; None where nobody knows."""
        return context_tokens(model or self.default_model, self.name) if self.knows_models else None

    @abstractmethod
    def _takes(self, model: str) -> Collection[str]:
        """What the vendor is known to take."""

    @abstractmethod
    def _connect(self) -> Any:
        """A new client for the running loop."""

    @abstractmethod
    async def _disconnect(self, client: Any) -> None:
        """Close it."""

    @abstractmethod
    def _model(self, client: Any, name: str) -> Model[Any]:
        """The model of this name."""

    def _settings(self) -> Mapping[str, Any]:
        """What this vendor's requests say beside the usual."""
        return {}

    def _import(self) -> None:
        try:
            for name in ("sayso.agent.providers.pydantic_ai.request", *self.modules):
                import_module(name)
        except ImportError as exc:
            raise _missing(self.sdk, self.extra) from exc

    @asynccontextmanager
    async def _exchange(self, kwargs: Mapping[str, Any]) -> AsyncIterator[ModelRequest]:
        """One request, and the bytes of its files for as long as it takes."""
        if not self._preloaded:
            await offload(self.preload)
        from sayso.agent.providers.pydantic_ai.request import ModelRequest

        request = ProviderRequest(**kwargs)
        name = request.model or self.default_model
        if not name:
            raise ProviderConfigurationError(f"{self.name} was asked for no model: give it a default_model")
        files = FileReading(self._load_media, self.accepted(name), self.max_file_bytes, self.max_request_bytes)
        async with files.holding(request.messages) as messages:
            yield ModelRequest(
                provider=self.name,
                model=self._model(self._clients.get(), name),
                request=request,
                messages=messages,
                api_format=self.api_format,
                settings={**self._extra, **self._settings()},
                given=self.model_settings,
                is_known=self.context_tokens(name) is not None,
                ends_streams=self.ends_streams,
                secrets=(self._api_key,),
                left_out=self._left_out,
            )


def key_of(given: str | None, variable: str, provider: str) -> str:
    """The key given, or the environment's. Raises ProviderConfigurationError where there is neither."""
    key = given or os.environ.get(variable, "")
    if not key:
        raise ProviderConfigurationError(f"{provider} needs a key: set {variable}, or pass api_key=...")
    return key


def _require(library: str, extra: str) -> None:
    """That a library is there is seen without importing it."""
    for name in ("pydantic_ai", library):
        if not _is_there(name):
            raise _missing(name, extra)


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False


def _missing(library: str, extra: str) -> ProviderConfigurationError:
    return ProviderConfigurationError(f"the library {library!r} is missing: {install_command(extra)}")
