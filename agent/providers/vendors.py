"""The vendors' providers: Anthropic, Gemini, OpenAI and servers with its API, Ollama (seed)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sayso.agent.providers.clients import http_client
from sayso.agent.providers.files import LoadMedia
from sayso.agent.providers.vendor import IMAGES, VendorProvider, key_of

if TYPE_CHECKING:
    from pydantic_ai.models import Model


#: The vendors' own addresses. Always given: the libraries would take ANTHROPIC_BASE_URL or OPENAI_BASE_URL instead,
#: and send the key there.
ANTHROPIC_URL = "https://api.anthropic.com"
GEMINI_URL = "https://generativelanguage.googleapis.com"
OPENAI_URL = "https://api.openai.com/v1"
#: The default address of a local Ollama.
OLLAMA_URL = "http://localhost:11434/v1"
#: Sent as the key to a server that needs none, as the library requires one.
NO_KEY = "none"
#: The files that Gemini's models read.
_GEMINI_TYPES = (
    *(f"image/{kind}" for kind in ("png", "jpeg", "webp", "heic", "heif")),
    *(f"audio/{kind}" for kind in ("ogg", "mpeg", "wav", "aiff", "aac", "flac")),
    *(f"video/{kind}" for kind in ("mp4", "mpeg", "webm", "quicktime", "3gpp")),
    "application/pdf",
)
#: Providers whose streams always end with a finish reason: a stream without one was cut off. Other servers may omit it.
_SEND_FINISH_REASON = frozenset({"openai", "ollama"})
_REQUIRES_FINISH_REASON: Any = {"openai_chat_streaming_requires_finish_reason": True}


class AnthropicProvider(VendorProvider):
    """Models of Anthropic.

    With `cache_prompt`, Anthropic caches the system prompt and the tools for five minutes; cached tokens cost a tenth.
    """

    name = "anthropic"
    api_format = "anthropic"
    sdk = "anthropic"
    extra = "anthropic"
    modules = ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic")
    max_file_bytes = 3_750_000  # 5 MB once they are base64

    def __init__(
        self,
        api_key: str | None = None,
        default_model: str = "claude-haiku-4-5",
        base_url: str | None = None,
        *,
        cache_prompt: bool = True,
        load_media: LoadMedia | None = None,
        accepts: Collection[str] | None = None,
        model_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._base_url = base_url or ANTHROPIC_URL
        self._cache_prompt = cache_prompt
        key = key_of(api_key, "ANTHROPIC_API_KEY", type(self).__name__)
        super().__init__(key, default_model, load_media=load_media, accepts=accepts, model_settings=model_settings)

    def _takes(self, model: str) -> Collection[str]:
        return (*IMAGES, "application/pdf")

    def _connect(self) -> Any:
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(api_key=self._api_key, base_url=self._base_url, max_retries=0, http_client=http_client())

    async def _disconnect(self, client: Any) -> None:
        await client.close()

    def _model(self, client: Any, name: str) -> Model[Any]:
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider as Anthropic

        return AnthropicModel(name, provider=Anthropic(anthropic_client=client))

    def _vendor_settings(self) -> Mapping[str, Any]:
        caches = ("anthropic_cache_instructions", "anthropic_cache_tool_definitions")
        return dict.fromkeys(caches, True) if self._cache_prompt else {}


class GeminiProvider(VendorProvider):
    """Models of Google Gemini, which also read audio and video."""

    name = "gemini"
    api_format = "gemini"
    sdk = "google.genai"
    extra = "google"
    modules = ("sayso.agent.providers.pydantic_ai.request", "pydantic_ai.providers.google")

    def __init__(
        self,
        api_key: str | None = None,
        default_model: str = "gemini-2.5-flash",
        base_url: str | None = None,
        *,
        load_media: LoadMedia | None = None,
        accepts: Collection[str] | None = None,
        model_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._base_url = base_url or GEMINI_URL
        key = key_of(api_key, "GEMINI_API_KEY", type(self).__name__)
        super().__init__(key, default_model, load_media=load_media, accepts=accepts, model_settings=model_settings)

    def _takes(self, model: str) -> Collection[str]:
        return _GEMINI_TYPES

    def _connect(self) -> Any:
        from google.genai.types import HttpRetryOptions
        from pydantic_ai.providers.google import GoogleProvider

        http, no_retry = http_client(), HttpRetryOptions(attempts=1)
        provider = GoogleProvider(
            api_key=self._api_key, base_url=self._base_url, http_client=http, retry_options=no_retry
        )
        return http, provider

    async def _disconnect(self, client: Any) -> None:
        http, _ = client  # the library does not close a client that it was given
        await http.aclose()

    def _model(self, client: Any, name: str) -> Model[Any]:
        from sayso.agent.providers.pydantic_ai.request import GeminiModel

        _, provider = client
        return GeminiModel(name, provider=provider)


class OpenAIProvider(VendorProvider):
    """Models of OpenAI or, with a `base_url`, of a server with the same API, such as vLLM or LM Studio.

    Such a server needs no key: the key in OPENAI_API_KEY is sent to OpenAI only. For a proxy in front of OpenAI itself,
    give a `base_url` and `name="openai"`.
    """

    name = "openai"
    api_format = "openai-chat"
    sdk = "openai"
    extra = "llm"
    ends_streams = False  # the library checks it instead, see _model
    modules: tuple[str, ...] = (
        "sayso.agent.providers.pydantic_ai.request",
        "pydantic_ai.providers.openai",
        "pydantic_ai.providers.openai_compatible",
    )

    def __init__(
        self,
        api_key: str | None = None,
        default_model: str = "gpt-5-mini",
        base_url: str | None = None,
        *,
        name: str = "",
        load_media: LoadMedia | None = None,
        accepts: Collection[str] | None = None,
        model_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name or ("openai-compatible" if base_url else "openai")
        self._base_url = base_url or OPENAI_URL
        self.knows_models = self._is_openai
        key = key_of(api_key, "OPENAI_API_KEY", type(self).__name__) if self._is_openai else api_key or NO_KEY
        super().__init__(key, default_model, load_media=load_media, accepts=accepts, model_settings=model_settings)

    @property
    def _is_openai(self) -> bool:
        return self.name == "openai"

    def _takes(self, model: str) -> Collection[str]:
        """Return the types. Only audio models accept audio; others answer 400. Other servers are sent images only."""
        audio = ("audio/wav", "audio/mpeg") if "audio" in model else ()
        return (*IMAGES, *audio, "application/pdf") if self._is_openai else (*IMAGES, *audio)

    def _import(self) -> None:
        super()._import()
        from openai.resources.chat import AsyncChat, AsyncCompletions  # noqa: F401  # which the library imports lazily

    def _connect(self) -> Any:
        from openai import AsyncOpenAI

        return AsyncOpenAI(api_key=self._api_key, base_url=self._base_url, max_retries=0, http_client=http_client())

    async def _disconnect(self, client: Any) -> None:
        await client.close()

    def _model(self, client: Any, name: str) -> Model[Any]:
        from sayso.agent.providers.pydantic_ai.request import ChatModel

        profile = _REQUIRES_FINISH_REASON if self.name in _SEND_FINISH_REASON else None
        return ChatModel(name, provider=self._library_provider(client), profile=profile)

    def _library_provider(self, client: Any) -> Any:
        """Return pydantic-ai's provider, which knows what the server's models can do."""
        from pydantic_ai.providers.openai import OpenAIProvider as OpenAI
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        if self._is_openai:
            return OpenAI(openai_client=client)
        return OpenAICompatibleProvider(self.name, openai_client=client)


class OllamaProvider(OpenAIProvider):
    """Models of a local Ollama. It does not say which models read images; one that does not refuses the request."""

    modules = ("sayso.agent.providers.pydantic_ai.request", "pydantic_ai.providers.ollama")

    def __init__(
        self,
        default_model: str = "",
        base_url: str = OLLAMA_URL,
        *,
        api_key: str | None = None,
        load_media: LoadMedia | None = None,
        accepts: Collection[str] | None = None,
        model_settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            api_key, default_model, base_url, name="ollama", load_media=load_media, accepts=accepts,
            model_settings=model_settings,
        )  # fmt: skip

    def _library_provider(self, client: Any) -> Any:
        from pydantic_ai.providers.ollama import OllamaProvider as Ollama

        return Ollama(openai_client=client)


class OpenAIResponsesProvider(OpenAIProvider):
    """Models of OpenAI through its Responses API, where a reasoning model keeps its reasoning between tool calls.

    OpenAI is told not to store the conversation.
    """

    modules = ("pydantic_ai.models.openai", "pydantic_ai.providers.openai", "pydantic_ai.providers.openai_compatible")
    ends_streams = True

    def _import(self) -> None:
        super()._import()
        from openai.resources.responses import AsyncResponses  # noqa: F401  # which the library imports lazily

    def _model(self, client: Any, name: str) -> Model[Any]:
        from pydantic_ai.models.openai import OpenAIResponsesModel

        return OpenAIResponsesModel(name, provider=self._library_provider(client))

    def _vendor_settings(self) -> Mapping[str, Any]:
        body = dict(self._library_settings.get("extra_body") or {})
        effort = body.pop("reasoning_effort", None)  # a field of another name in this API
        settings = {} if effort is None else {"openai_reasoning_effort": effort}
        return {"openai_store": False, "extra_body": body or None, **settings}
