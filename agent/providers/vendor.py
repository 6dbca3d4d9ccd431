"""VendorProvider: a real model over HTTP. Its vendors differ in their client, their keys and the files they take."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sayso.agent.extras import install_command
from sayso.agent.pricing import context_tokens
from sayso.agent.providers.base import Completion, ProviderConfigurationError, ProviderRequest, StreamItem
from sayso.agent.providers.clients import Clients
from sayso.agent.providers.files import MAX_BYTES_AT_ONCE, Files, LoadMedia
from sayso.agent.providers.model_settings import checked, library_settings
from sayso.agent.tools.vendors import ApiFormat
from sayso.workers.offload import offload

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from sayso.agent.providers.wire.exchange import Exchange

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
            for name in ("sayso.agent.providers.wire.exchange", *self.modules):
                import_module(name)
        except ImportError as exc:
            raise _missing(self.sdk, self.extra) from exc

    @asynccontextmanager
    async def _exchange(self, kwargs: Mapping[str, Any]) -> AsyncIterator[Exchange]:
        """One request, and the bytes of its files for as long as it takes."""
        if not self._preloaded:
            await offload(self.preload)
        from sayso.agent.providers.wire.exchange import Exchange

        request = ProviderRequest(**kwargs)
        name = request.model or self.default_model
        if not name:
            raise ProviderConfigurationError(f"{self.name} was asked for no model: give it a default_model")
        files = Files(self._load_media, self.accepted(name), self.max_file_bytes, self.max_request_bytes)
        async with files.holding(request.messages) as messages:
            yield Exchange(
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
