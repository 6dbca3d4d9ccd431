"""VendorProvider: base of the providers that ask a vendor's models through pydantic-ai."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sayso.agent.extras import install_command
from sayso.agent.providers.base import Completion, ProviderConfigurationError, ProviderRequest, StreamItem
from sayso.agent.providers.clients import Clients
from sayso.agent.providers.files import MAX_BYTES_AT_ONCE, FileReading, LoadMedia
from sayso.agent.providers.model_settings import checked_settings, library_settings
from sayso.agent.run.model_call import context_tokens
from sayso.agent.tools.schema.vendors import ApiFormat
from sayso.pending.concurrency import offload

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from sayso.agent.providers.pydantic_ai.request import ModelRequest

#: Image types that the models of every vendor read.
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class VendorProvider(ABC):
    """A provider for one vendor. Lives as long as its process; event loops and threads may share it.

    `load_media` returns the bytes of an inbound file, such as `lambda media: store.read(media.ref)`; without it models
    see only the names of files. `accepts` are the MIME types that are sent as files; by default, what the vendor is
    known to accept. `model_settings` are fields of the vendor's request, such as `top_p`, and `extra_headers` and
    `extra_body`.
    """

    #: The vendor's name in usage and errors.
    name: str
    supports_response_format = True
    #: Whether its streams always end with a finish reason, so that a stream without one was cut off.
    ends_streams = True
    #: Whether the price list has limits and prices for the models under these names.
    knows_models = True
    #: Its streams apply the timeout to each silence themselves: they see thinking and partial calls, callers do not.
    times_silence = True

    _base_url: str

    #: The format of its tool schemas, its SDK, and the extra of ours that installs the SDK.
    api_format: ApiFormat
    sdk: str
    extra: str
    #: The modules that `preload` imports.
    modules: tuple[str, ...]
    #: The most bytes of one file, and of all files of one request. Vendors take a little more.
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
        self.model_settings = checked_settings(model_settings)
        self._library_settings = library_settings(self.model_settings, self.api_format)
        _require(self.sdk, self.extra)
        self._api_key = api_key
        self.default_model = default_model
        self._accepts = accepts
        self._load_media = load_media
        self._clients: Clients[Any] = Clients(self._connect, self._disconnect)
        self._omitted_tools: set[str] = set()
        self._preloaded = False

    async def acomplete(self, **request: Any) -> Completion:
        """Return the model's answer; see ProviderRequest. Raise ProviderError."""
        async with self._model_request(request) as model_request:
            return await model_request.completion()

    async def astream(self, **request: Any) -> AsyncIterator[StreamItem]:
        """Yield the model's answer: text, then whole tool calls, then the usage. Raise ProviderError."""
        async with self._model_request(request) as model_request:
            items = model_request.stream()
            try:
                async for item in items:
                    yield item
            finally:  # also when the caller stops reading
                await items.aclose()

    @property
    def base_url(self) -> str:
        """The URL that requests go to."""
        return self._base_url

    def preload(self) -> None:
        """Import the vendor's library, which takes a second or two. Call it before a process forks its workers."""
        if not self._preloaded:
            self._import()
            self._preloaded = True

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._clients.aclose()

    def accepted(self, model: str) -> Collection[str]:
        """Return the MIME types that are sent to this model as files."""
        return self._takes(model) if self._accepts is None else self._accepts

    def context_tokens(self, model: str = "") -> int | None:
        """Return the size of a model's context window in tokens, or None if it is unknown."""
        return context_tokens(model or self.default_model, self.name) if self.knows_models else None

    @abstractmethod
    def _takes(self, model: str) -> Collection[str]:
        """Return the MIME types that the vendor is known to accept."""

    @abstractmethod
    def _connect(self) -> Any:
        """Return a new client for the running loop."""

    @abstractmethod
    async def _disconnect(self, client: Any) -> None:
        """Close a client."""

    @abstractmethod
    def _model(self, client: Any, name: str) -> Model[Any]:
        """Return pydantic-ai's model of this name."""

    def _vendor_settings(self) -> Mapping[str, Any]:
        """Return the pydantic-ai settings that this vendor's requests need."""
        return {}

    def _import(self) -> None:
        try:
            for name in ("sayso.agent.providers.pydantic_ai.request", *self.modules):
                import_module(name)
        except ImportError as exc:
            raise _missing(self.sdk, self.extra) from exc

    @asynccontextmanager
    async def _model_request(self, kwargs: Mapping[str, Any]) -> AsyncIterator[ModelRequest]:
        """Yield one request, with the bytes of its files held in memory meanwhile."""
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
                settings={**self._library_settings, **self._vendor_settings()},
                model_settings=self.model_settings,
                is_known=self.context_tokens(name) is not None,
                ends_streams=self.ends_streams,
                secrets=(self._api_key,),
                omitted_tools=self._omitted_tools,
            )


def key_of(api_key: str | None, variable: str, provider: str) -> str:
    """Return the key, or the environment variable's value. Raise ProviderConfigurationError if both are empty."""
    key = api_key or os.environ.get(variable, "")
    if not key:
        raise ProviderConfigurationError(f"{provider} needs a key: set {variable}, or pass api_key=...")
    return key


def _require(library: str, extra: str) -> None:
    """Raise ProviderConfigurationError if a library is not installed. Does not import it."""
    for name in ("pydantic_ai", library):
        if not _is_installed(name):
            raise _missing(name, extra)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is not installed
        return False


def _missing(library: str, extra: str) -> ProviderConfigurationError:
    return ProviderConfigurationError(f"the library {library!r} is missing: {install_command(extra)}")
