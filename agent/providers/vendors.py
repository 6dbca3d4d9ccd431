"""The providers of Anthropic, Gemini, OpenAI and Ollama. They call the vendors through pydantic-ai.

A server with OpenAI's API, such as Azure OpenAI, vLLM or OpenRouter, needs no class: it is an
OpenAIProvider with a `base_url`. To add another vendor, write a subclass of VendorProvider here,
read its key in `config/settings/agent.py`, and translate its errors in `model_errors.py`.

What all requests have in common is in `model_request.py`; the operator's `model_settings` are
checked in `operator_settings.py`. Faults of one vendor's library are mended
in `model_openai.py` and `model_gemini.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack

from sayso.agent.extras import LibraryError, import_libraries, is_installed, missing_library
from sayso.agent.messages import Role
from sayso.agent.providers.base import (
    Completion,
    ProviderConfigurationError,
    ProviderError,
    ProviderRequest,
    StreamItem,
)
from sayso.agent.providers.file_reading import MAX_BYTES_AT_ONCE, FileReading, LoadMedia
from sayso.agent.providers.gemini_cache import ExplicitCaches
from sayso.agent.providers.operator_settings import (
    checked_settings,
    is_header_value,
    library_settings,
)
from sayso.agent.providers.pricing import context_tokens
from sayso.agent.tools.vendor_schemas import ApiFormat
from sayso.infra.concurrency import call_in_thread
from sayso.infra.urls import is_http_url, redacted_url

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model

    from sayso.agent.providers.model_messages import StableMark
    from sayso.agent.providers.model_request import ModelRequest

log = logging.getLogger(__name__)

#: The vendors' own addresses. Always given: the libraries would take ANTHROPIC_BASE_URL or
#: OPENAI_BASE_URL instead, and send the key there.
ANTHROPIC_URL = "https://api.anthropic.com"
GEMINI_URL = "https://generativelanguage.googleapis.com"
OPENAI_URL = "https://api.openai.com/v1"
#: The default address of a local Ollama.
OLLAMA_URL = "http://localhost:11434/v1"
#: Sent as the key to a server that needs none, as the library requires one.
NO_KEY = "none"
#: Providers whose streams always end with a finish reason: a stream without one was cut off.
#: Other servers may omit it.
_SEND_FINISH_REASON = frozenset({"openai", "ollama"})
_REQUIRES_FINISH_REASON: Any = {"openai_chat_streaming_requires_finish_reason": True}
#: Tags that no text has, so that pydantic-ai looks for none. It would treat every <think> as
#: reasoning, also in a text about the tag, and in a stream it would miss a tag that does not arrive
#: as one piece. `sayso.agent.providers.reasoning` does it instead.
_NO_THINKING_TAGS: Any = {"thinking_tags": ("\ufdd0", "\ufdd1")}
#: Image types that the models of every vendor read.
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
#: The reason of a refusal in the text of an error, as in "openai: it answered 400: <reason>".
_REASON = re.compile(r"it answered \d+: (.*)")
#: How servers say that they do not know a field of the request.
_UNKNOWN_FIELD = re.compile(
    r"cache|extra|unknown|unrecogni[sz]ed|unexpected|unsupported|not (?:permitted|allowed)",
    re.IGNORECASE,
)
#: The fields that ask a vendor to cache the prompt, as an error names them.
_CACHE_FIELDS = re.compile(r"cache_control|prompt_cache_key")


class VendorOptions(TypedDict, total=False):
    """The options of every vendor's provider. Each may be omitted."""

    #: Returns the bytes of an inbound file, such as `lambda media: store.read(media.ref)`. Without
    #: it models see only the names of files.
    load_media: LoadMedia | None
    #: The MIME types that are sent as files. By default those that the vendor is known to accept.
    accepts: Collection[str] | None
    #: Fields of the vendor's request, such as `top_p`, and `extra_headers` and `extra_body`.
    model_settings: Mapping[str, Any] | None
    #: Whether requests ask the vendor to cache the prompt (default True). With "explicit",
    #: GeminiProvider also rents caches while they pay.
    cache_prompt: bool | Literal["explicit"]


class _Clients(NamedTuple):
    """The connections to a vendor from one event loop."""

    http: httpx2.AsyncClient
    #: The client of the vendor's library, which sends its requests through `http`.
    sdk_client: Any


class VendorProvider(ABC):
    """A provider for one vendor. It lives as long as its process.

    Event loops and threads may share it.

    A subclass names its vendor in the attributes below, and makes the library's client (`_connect`)
    and model (`_model`). It overrides `cache_settings` and `stable_mark` where the vendor must be
    asked to cache a prompt.

    Each `__init__` of a subclass takes:

    * `api_key`: None for the key in the vendor's environment variable;
    * `default_model`: the model for requests that name none;
    * `base_url`: the address of the server, None for the vendor's own;
    * VendorOptions.
    """

    #: The vendor's name in usage and errors.
    name: str
    supports_response_format = True
    supports_conversation_key = True
    #: Whether its streams always end with a finish reason. Then a stream without one was cut off.
    ends_streams = True
    #: Whether the vendor reports reasoning apart from the text of an answer.
    separates_reasoning = True
    #: Whether the price list has limits and prices for the models under these names.
    knows_models = True

    #: The format of its tool schemas.
    api_format: ApiFormat
    #: The name under which Python imports the vendor's library.
    sdk: str
    #: The extra of Sayso that installs this library.
    extra: str
    #: The vendor's own address.
    own_url: str
    #: The modules that its requests need besides those of `model_request.py`.
    modules: tuple[str, ...]
    #: The MIME types that the vendor's models are known to accept as files.
    file_types: Collection[str] = ()
    #: The most bytes of one file. Vendors take a little more.
    max_file_bytes = MAX_BYTES_AT_ONCE
    #: The most bytes of all files of one request. Vendors take a little more.
    max_request_bytes = MAX_BYTES_AT_ONCE

    def __init__(
        self, api_key: str, default_model: str, base_url: str, **options: Unpack[VendorOptions]
    ) -> None:
        """Check the options. No library is imported yet, and no connection is opened.

        Raise ProviderConfigurationError for a missing library, an invalid key or an invalid URL,
        and ValueError for a model setting that cannot be sent.
        """
        self.model_settings = checked_settings(options.get("model_settings"))
        #: The same in the form that pydantic-ai takes.
        self._library_settings = library_settings(self.model_settings, self.api_format)
        for library in ("pydantic_ai", self.sdk):
            if not is_installed(library):
                raise ProviderConfigurationError(missing_library(library, self.extra))
        if not is_http_url(base_url):
            raise ProviderConfigurationError(
                f"base_url {redacted_url(base_url)!r} is not a URL: "
                "write it as https://api.example.com/v1"
            )

        # A secret that was mounted as a file often ends in a line break.
        self._api_key = api_key.strip()
        # The library would fail at each request with an error whose traceback has the key.
        if not is_header_value(self._api_key):
            raise ProviderConfigurationError(
                f"the API key for {self.name} has a character that keys do not have: copy it again"
            )
        #: The model for requests that name none, "" without one.
        self.default_model = default_model
        #: The URL that requests go to.
        self.base_url = base_url
        self._accepts = options.get("accepts")
        self._load_media = options.get("load_media")

        #: Whether requests ask the vendor to cache the prompt. False once a server has refused it.
        self.asks_to_cache = bool(options.get("cache_prompt", True))
        #: Whether a request that asked the vendor to cache was answered. Then the server knows the
        #: fields for it.
        self._has_cached = False
        #: (process id, event loop) -> the connections that were opened there. They work only there.
        self._clients: dict[tuple[int, asyncio.AbstractEventLoop], _Clients] = {}
        #: The names of tools that the vendor does not accept and that were logged already.
        self.omitted_tools: set[str] = set()
        #: Whether the vendor's library is imported.
        self._is_preloaded = False

    async def acomplete(self, **request: Any) -> Completion:
        """Return the model's answer; see ProviderRequest. Raise ProviderError."""
        # Another request may change the attribute while this one is under way.
        asks_to_cache = self.asks_to_cache
        try:
            async with self._model_request(request, asks_to_cache=asks_to_cache) as model_request:
                return await model_request.completion()
        except ProviderError as exc:
            if not (asks_to_cache and self._may_refuse_caching(request, exc)):
                raise

        # The server may know no prompt cache, so it is asked once more without one.
        async with self._uncached_request(request) as model_request:
            return await model_request.completion()

    async def astream(self, **request: Any) -> AsyncIterator[StreamItem]:
        """Yield the model's answer: text, then whole tool calls, then the usage.

        Raise ProviderError.
        """
        asks_to_cache = self.asks_to_cache
        try:
            async with (
                self._model_request(request, asks_to_cache=asks_to_cache) as model_request,
                aclosing(model_request.stream()) as items,
            ):
                async for item in items:
                    yield item
            return
        except ProviderError as exc:
            if not (asks_to_cache and self._may_refuse_caching(request, exc)):
                raise

        # As in `acomplete`. Nothing was yielded yet: a server refuses a request before it answers.
        async with (
            self._uncached_request(request) as model_request,
            aclosing(model_request.stream()) as items,
        ):
            async for item in items:
                yield item

    @classmethod
    def import_library(cls) -> None:
        """Import the vendor's library, which takes a second or two. Raise LibraryError."""
        import_libraries(
            cls.extra, "pydantic_ai", cls.sdk, "sayso.agent.providers.model_request", *cls.modules
        )

    def preload(self) -> None:
        """Import the vendor's library once. Call this before a process forks its workers.

        Then the workers share the memory of the library. Raise ProviderConfigurationError, which
        names the missing module and the cure, or says why the library cannot be imported.
        """
        if self._is_preloaded:
            return
        try:
            self.import_library()
        except LibraryError as exc:
            raise ProviderConfigurationError(str(exc)) from exc
        self._is_preloaded = True

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        clients = self._clients.pop((os.getpid(), asyncio.get_running_loop()), None)
        if clients is not None:
            await clients.http.aclose()

    def accepted(self, model: str) -> Collection[str]:
        """Return the MIME types that are sent to this model as files."""
        if self._accepts is None:
            return self.file_types
        return self._accepts

    def context_tokens(self, model: str = "") -> int | None:
        """Return the size of a model's context window in tokens, or None if it is unknown."""
        if self.knows_models:
            return context_tokens(model or self.default_model, self.name)
        return None

    def cache_settings(self, request: ProviderRequest) -> dict[str, Any]:
        """Return the settings, as pydantic-ai takes them, that let a request use a prompt cache."""
        return {}

    def stable_mark(
        self, request: ProviderRequest, profile: Mapping[str, Any]
    ) -> StableMark | None:
        """Return where to mark the end of the stable messages; None for no mark.

        Stable messages are those that the request of the next turn repeats. `profile` is what
        pydantic-ai knows of the model.
        """
        return None

    def _may_refuse_caching(self, request: Mapping[str, Any], error: ProviderError) -> bool:
        """Return whether a server may have refused the fields for the vendor's prompt cache.

        `error` is the answer to a request that was allowed to have such fields. It names such a
        field, or says that some field is unknown, or gives no reason that Sayso can read. Some
        servers fail at the field and answer 500.
        """
        # A vendor knows its own fields, and so does a server that has answered a request with them.
        if self.base_url == self.own_url or self._has_cached:
            return False

        text = str(error)
        names_a_field = _CACHE_FIELDS.search(text) is not None
        is_unclear = error.status in (400, 422) and _may_be_about_a_field(text)
        if not (names_a_field or is_unclear):
            return False

        # Only a request that had such fields can be refused for them.
        return bool(self.cache_settings(ProviderRequest(**request)))

    @asynccontextmanager
    async def _uncached_request(self, request: Mapping[str, Any]) -> AsyncIterator[ModelRequest]:
        """Yield a refused request again, without the fields for the prompt cache.

        If it is answered, the server is never sent these fields again. If it fails too, it was
        refused for another reason.
        """
        async with self._model_request(request, asks_to_cache=False) as model_request:
            yield model_request
        if self.asks_to_cache:
            self.asks_to_cache = False
            log.warning("provider.cache_refused", extra={"provider": self.name})

    @abstractmethod
    def _connect(self, http: httpx2.AsyncClient) -> Any:
        """Return a new client of the vendor's library, which sends its requests through `http`."""

    def _clients_of_loop(self) -> _Clients:
        """Return the clients of the running loop in this process. The first call makes them."""
        key = (os.getpid(), asyncio.get_running_loop())
        if key not in self._clients:
            from sayso.agent.providers.model_request import http_client

            # The clients of ended loops would stay for the life of the process.
            for other in list(self._clients):
                _, loop = other
                if loop.is_closed():
                    self._clients.pop(other, None)

            http = http_client()
            self._clients[key] = _Clients(http, self._connect(http))
        return self._clients[key]

    @abstractmethod
    def _model(self, client: Any, name: str) -> Model[Any]:
        """Return pydantic-ai's model of this name."""

    @asynccontextmanager
    async def _model_request(
        self, kwargs: Mapping[str, Any], *, asks_to_cache: bool
    ) -> AsyncIterator[ModelRequest]:
        """Yield one request. The bytes of its files stay in memory until the block ends.

        `kwargs` are the fields of a ProviderRequest. With `asks_to_cache` the request has the
        fields for the vendor's prompt cache.
        """
        if not self._is_preloaded:
            await call_in_thread(self.preload)
        from sayso.agent.providers.model_request import ModelRequest, VendorTraits

        request = ProviderRequest(**kwargs)
        name = request.model or self.default_model
        if not name:
            raise ProviderConfigurationError(
                f"{self.name} was asked for no model: give it a default_model"
            )
        files = FileReading(
            self._load_media, self.accepted(name), self.max_file_bytes, self.max_request_bytes
        )
        async with files.holding(request.messages) as messages:
            model = self._model(self._clients_of_loop().sdk_client, name)

            caching: dict[str, Any] = {}
            mark: StableMark | None = None
            if asks_to_cache:
                caching = self.cache_settings(request)
                mark = self.stable_mark(request, model.profile)

            settings = {**self._library_settings, **caching}
            vendor = VendorTraits(
                name=self.name,
                api_format=self.api_format,
                ends_streams=self.ends_streams,
                model_settings=self.model_settings,
                knows_model=self.context_tokens(model.model_name) is not None,
                omitted_tools=self.omitted_tools,
            )
            yield ModelRequest(vendor, model, request, messages, settings, self._api_key, mark)
            # Reached only if the block raised nothing: the server has answered.
            self._has_cached = self._has_cached or bool(caching)


def _may_be_about_a_field(text: str) -> bool:
    """Return whether the text of a refusal leaves open that the server does not know a field."""
    if re.search("too long|content filter", text, re.IGNORECASE):
        return False
    reason = _REASON.search(text)
    if reason is None:
        return True
    return _UNKNOWN_FIELD.search(reason[1]) is not None


def key_of(api_key: str | None, variable: str, provider: str) -> str:
    """Return the API key or, if it is empty, the value of the environment variable.

    Raise ProviderConfigurationError if both are empty. `provider` is the class that needs the key.
    """
    key = api_key or os.environ.get(variable, "")
    if not key.strip():
        raise ProviderConfigurationError(
            f"{provider} needs a key: set {variable}, or pass api_key=..."
        )
    return key


class AnthropicProvider(VendorProvider):
    """Models of Anthropic. The API key is by default that in ANTHROPIC_API_KEY.

    Anthropic caches a prompt up to each mark in it, for five minutes. To write a token to the cache
    costs a quarter more than the token itself, to read it a tenth. With `cache_prompt`, four marks
    are set, the most that a request may have: after the tools, the system prompt, the messages that
    the next turn repeats, and the last message, which the next call of the same turn repeats.
    """

    name = "anthropic"
    own_url = ANTHROPIC_URL
    api_format = "anthropic"
    sdk = "anthropic"
    extra = "anthropic"
    modules = ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic")
    max_file_bytes = 3_750_000  # 5 MB once they are base64
    file_types = (*IMAGES, "application/pdf")

    def __init__(
        self,
        api_key: str | None = None,
        default_model: str = "claude-haiku-4-5",
        base_url: str | None = None,
        **options: Unpack[VendorOptions],
    ) -> None:
        key = key_of(api_key, "ANTHROPIC_API_KEY", type(self).__name__)
        super().__init__(key, default_model, base_url or ANTHROPIC_URL, **options)

    def cache_settings(self, request: ProviderRequest) -> dict[str, Any]:
        """Mark the tools and the system prompt, and the last message if a request may repeat it."""
        # After tools have run, the next call of the same turn repeats all messages.
        next_call_repeats_end = bool(request.tools)
        next_turn_repeats_end = request.conversation_key is not None and not _has_notes(request)
        return {
            "anthropic_cache_tool_definitions": True,
            "anthropic_cache_instructions": True,
            "anthropic_cache_messages": next_call_repeats_end or next_turn_repeats_end,
        }

    def stable_mark(
        self, request: ProviderRequest, profile: Mapping[str, Any]
    ) -> StableMark | None:
        """Mark the end of the last stable message, if another request may repeat it."""
        if not _is_repeated(request):
            return None
        return "last message"

    def _connect(self, http: httpx2.AsyncClient) -> Any:
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(
            api_key=self._api_key, base_url=self.base_url, max_retries=0, http_client=http
        )

    def _model(self, client: Any, name: str) -> Model[Any]:
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider as Anthropic

        return AnthropicModel(name, provider=Anthropic(anthropic_client=client))


def _is_repeated(request: ProviderRequest) -> bool:
    """Return whether another request may begin with the same messages.

    That is the request of the next turn, or the next one of this turn after tools have run. A
    single request, such as one for a summary, would write its messages to the cache for nothing.
    """
    return request.conversation_key is not None or bool(request.tools)


def _has_notes(request: ProviderRequest) -> bool:
    """Return whether a system message follows other messages.

    It has notes for this turn, such as facts that a memory found. The next turn repeats neither
    the notes nor what follows them.
    """
    roles = [message.role for message in request.messages]
    after_leading = dropwhile(lambda role: role is Role.SYSTEM, roles)
    return Role.SYSTEM in after_leading


class GeminiProvider(VendorProvider):
    """Models of Google Gemini, which also read audio and video.

    The API key is by default that in GEMINI_API_KEY.

    Gemini caches prompts by itself, but does not promise it. With `cache_prompt="explicit"`, the
    system prompt and the tools are stored in an explicit cache for an hour, once six requests
    within an hour found nothing in Gemini's own cache.
    """

    name = "gemini"
    own_url = GEMINI_URL
    api_format = "gemini"
    sdk = "google.genai"
    extra = "google"
    modules = ("sayso.agent.providers.model_gemini", "pydantic_ai.providers.google")
    file_types = (
        *(f"image/{kind}" for kind in ("png", "jpeg", "webp", "heic", "heif")),
        *(f"audio/{kind}" for kind in ("ogg", "mpeg", "wav", "aiff", "aac", "flac")),
        *(f"video/{kind}" for kind in ("mp4", "mpeg", "webm", "quicktime", "3gpp")),
        "application/pdf",
    )

    def __init__(
        self,
        api_key: str | None = None,
        default_model: str = "gemini-2.5-flash",
        base_url: str | None = None,
        **options: Unpack[VendorOptions],
    ) -> None:
        key = key_of(api_key, "GEMINI_API_KEY", type(self).__name__)
        super().__init__(key, default_model, base_url or GEMINI_URL, **options)
        self._explicit_caches: ExplicitCaches | None = None
        if options.get("cache_prompt") == "explicit":
            self._explicit_caches = ExplicitCaches()

    def cache_settings(self, request: ProviderRequest) -> dict[str, Any]:
        """Let a request use an explicit cache, unless its system prompt has a summary.

        A summary is personal, and an explicit cache, which serves all users, must hold nothing
        personal.
        """
        # The summary of a conversation is a system message before all others. Gemini takes it as
        # a part of the system prompt.
        has_summary = bool(request.messages) and request.messages[0].role is Role.SYSTEM
        if self._explicit_caches is None or has_summary:
            return {}
        return {"sayso_may_cache": True}  # MAY_CACHE of `model_gemini.py`

    async def aclose(self) -> None:
        """Close the connections of the running event loop, and stop creating its caches."""
        if self._explicit_caches is not None:
            await self._explicit_caches.aclose()
        await super().aclose()

    def _may_refuse_caching(self, request: Mapping[str, Any], error: ProviderError) -> bool:
        """Return whether Gemini refused a request because its explicit cache is gone."""
        is_gone = error.status in (400, 403, 404) and "cache" in str(error).lower()
        return self._explicit_caches is not None and is_gone

    @asynccontextmanager
    async def _uncached_request(self, request: Mapping[str, Any]) -> AsyncIterator[ModelRequest]:
        """Forget the explicit caches, and yield the request again without one.

        Later requests may create new caches.
        """
        if self._explicit_caches is not None:
            self._explicit_caches.forget_all()
        async with self._model_request(request, asks_to_cache=False) as model_request:
            yield model_request

    def _connect(self, http: httpx2.AsyncClient) -> Any:
        from google.genai.types import HttpRetryOptions
        from pydantic_ai.providers.google import GoogleProvider

        retry = HttpRetryOptions(attempts=1)
        return GoogleProvider(
            api_key=self._api_key, base_url=self.base_url, http_client=http, retry_options=retry
        )

    def _model(self, client: Any, name: str) -> Model[Any]:
        from sayso.agent.providers.model_gemini import GeminiModel

        return GeminiModel(name, provider=client, caches=self._explicit_caches)


class OpenAIProvider(VendorProvider):
    """Models of OpenAI or, with a `base_url`, of a server with the same API.

    Such servers are Azure OpenAI, vLLM and LM Studio. They get only the `api_key` that is passed:
    the key in OPENAI_API_KEY, the default, is sent to OpenAI alone. For a proxy in front of OpenAI
    itself, give a `base_url` and `name="openai"`.

    With `cache_prompt`, OpenAI gets a `prompt_cache_key` for each conversation, so that its
    requests reach the machine that has the prompt in its cache. Other servers may refuse unknown
    fields, so they get the key only with `prompt_cache_key=True`.
    """

    name = "openai"
    own_url = OPENAI_URL
    api_format = "openai-chat"
    sdk = "openai"
    extra = "llm"
    ends_streams = False  # the library checks it instead, see _model
    modules: tuple[str, ...] = (
        "sayso.agent.providers.model_openai",
        "pydantic_ai.providers.openai",
        "pydantic_ai.providers.openai_compatible",
        "openai.resources.chat.chat",  # which the library imports lazily
    )

    def __init__(
        self,
        api_key: str | None = None,
        default_model: str = "gpt-5-mini",
        base_url: str | None = None,
        *,
        name: str = "",
        prompt_cache_key: bool | None = None,
        **options: Unpack[VendorOptions],
    ) -> None:
        default_name = "openai-compatible" if base_url else "openai"
        self.name = name or default_name
        self._is_openai = self.name == "openai"
        # Another server may run any model, and may leave reasoning in its text.
        self.knows_models = self._is_openai
        self.separates_reasoning = self._is_openai

        if self._is_openai:
            key = key_of(api_key, "OPENAI_API_KEY", type(self).__name__)
        else:
            key = api_key or NO_KEY
        super().__init__(key, default_model, base_url or OPENAI_URL, **options)

        #: Whether requests have a `prompt_cache_key`.
        self.sends_cache_key = self._is_openai
        if prompt_cache_key is not None:
            self.sends_cache_key = prompt_cache_key
        self.asks_to_cache = self.asks_to_cache and self.sends_cache_key

    def cache_settings(self, request: ProviderRequest) -> dict[str, Any]:
        """Send the key of the conversation as `prompt_cache_key`.

        A `prompt_cache_key` in `model_settings` is sent instead, for all conversations.
        """
        if request.conversation_key is None or "prompt_cache_key" in self.model_settings:
            return {}
        return {"openai_prompt_cache_key": request.conversation_key}

    def stable_mark(
        self, request: ProviderRequest, profile: Mapping[str, Any]
    ) -> StableMark | None:
        """Mark the last user message that the next turn repeats, for models that know marks.

        Such models (GPT-5.6) read a cache only up to a mark. OpenAI itself marks the last message,
        whose end the next turn does not repeat. It ignores marks on answers.
        """
        knows_marks = profile.get("openai_supports_prompt_cache_breakpoints", False)
        if not knows_marks or request.conversation_key is None:
            return None
        return "user message"

    def accepted(self, model: str) -> Collection[str]:
        """Return the MIME types that are sent to this model as files.

        Only audio models accept audio; others answer 400. Only OpenAI itself accepts PDF.
        """
        if self._accepts is not None:
            return self._accepts
        types = [*IMAGES]
        if "audio" in model:
            types += ["audio/wav", "audio/mpeg"]
        if self._is_openai:
            types.append("application/pdf")
        return types

    def _connect(self, http: httpx2.AsyncClient) -> Any:
        from openai import AsyncOpenAI

        return AsyncOpenAI(
            api_key=self._api_key, base_url=self.base_url, max_retries=0, http_client=http
        )

    def _model(self, client: Any, name: str) -> Model[Any]:
        from sayso.agent.providers.model_openai import ChatModel

        profile = _NO_THINKING_TAGS
        if self.name in _SEND_FINISH_REASON:
            profile = {**profile, **_REQUIRES_FINISH_REASON}
        return ChatModel(name, provider=self._library_provider(client), profile=profile)

    def _library_provider(self, client: Any) -> Any:
        """Return pydantic-ai's provider, which knows what the server's models can do."""
        from pydantic_ai.providers.openai import OpenAIProvider as OpenAI
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        if self._is_openai:
            return OpenAI(openai_client=client)
        return OpenAICompatibleProvider(self.name, openai_client=client)


class OllamaProvider(OpenAIProvider):
    """Models of a local Ollama, which needs no API key.

    Ollama does not say which models read images, so all are sent them. A model that cannot read one
    refuses the request.
    """

    modules = (
        "sayso.agent.providers.model_openai",
        "pydantic_ai.providers.ollama",
        "openai.resources.chat.chat",
    )

    def __init__(
        self,
        default_model: str = "",
        base_url: str = OLLAMA_URL,
        *,
        api_key: str | None = None,
        **options: Unpack[VendorOptions],
    ) -> None:
        super().__init__(api_key, default_model, base_url, name="ollama", **options)

    def _library_provider(self, client: Any) -> Any:
        from pydantic_ai.providers.ollama import OllamaProvider as Ollama

        return Ollama(openai_client=client)


class OpenAIResponsesProvider(OpenAIProvider):
    """Models of OpenAI through its Responses API.

    A reasoning model keeps its reasoning between tool calls there. OpenAI is asked not to store the
    conversation.
    """

    modules = (
        "pydantic_ai.models.openai",
        "pydantic_ai.providers.openai",
        "pydantic_ai.providers.openai_compatible",
        "openai.resources.responses.responses",  # which the library imports lazily
    )
    ends_streams = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        body = self._library_settings.get("extra_body", {})
        # This API has another name for the field, which the library writes.
        effort = body.pop("reasoning_effort", None)
        if effort is not None:
            self._library_settings["openai_reasoning_effort"] = effort
        self._library_settings["extra_body"] = body or None
        self._library_settings["openai_store"] = False

    def _model(self, client: Any, name: str) -> Model[Any]:
        from pydantic_ai.models.openai import OpenAIResponsesModel

        return OpenAIResponsesModel(name, provider=self._library_provider(client))
