"""OpenAI, Anthropic, Gemini, Ollama."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sayso.agent.providers.files import LoadMedia
from sayso.agent.providers.vendor import IMAGES, VendorProvider, http_client, key_of

if TYPE_CHECKING:
    from pydantic_ai.models import Model


#: Where Anthropic itself is: said outright, as its library would let ANTHROPIC_BASE_URL send the key elsewhere.
ANTHROPIC_URL = "https://api.anthropic.com"


class AnthropicProvider(VendorProvider):
    """Anthropic. `cache_prompt`: the system prompt and the tools are kept by the vendor for five minutes, and cost a
    tenth when they are sent again.
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

    def _settings(self) -> Mapping[str, Any]:
        caches = ("anthropic_cache_instructions", "anthropic_cache_tool_definitions")
        return dict.fromkeys(caches, True) if self._cache_prompt else {}


#: Where the Gemini API is.
GEMINI_URL = "https://generativelanguage.googleapis.com"


_IMAGES = tuple(f"image/{kind}" for kind in ("png", "jpeg", "webp", "heic", "heif"))


_SOUNDS = tuple(f"audio/{kind}" for kind in ("ogg", "mpeg", "wav", "aiff", "aac", "flac"))


_FILMS = tuple(f"video/{kind}" for kind in ("mp4", "mpeg", "webm", "quicktime", "3gpp"))


class GeminiProvider(VendorProvider):
    """Gemini, which hears and sees films, too."""

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
        return (*_IMAGES, *_SOUNDS, *_FILMS, "application/pdf")

    def _connect(self) -> Any:
        from google.genai.types import HttpRetryOptions
        from pydantic_ai.providers.google import GoogleProvider

        http, once = http_client(), HttpRetryOptions(attempts=1)
        speaker = GoogleProvider(api_key=self._api_key, base_url=self._base_url, http_client=http, retry_options=once)
        return http, speaker

    async def _disconnect(self, client: Any) -> None:
        http, _ = client  # the library closes none that it was given
        await http.aclose()

    def _model(self, client: Any, name: str) -> Model[Any]:
        from sayso.agent.providers.pydantic_ai.request import GeminiModel

        _, speaker = client
        return GeminiModel(name, provider=speaker)


#: Where OpenAI itself is. Said outright: its library would let OPENAI_BASE_URL send the key elsewhere.
OPENAI_URL = "https://api.openai.com/v1"


#: What is sent as a key to a server that needs none: the library insists on one.
NO_KEY = "none"


#: They end each stream with a reason, so one that just ends was cut by somebody between us. Others may give none.
_GIVE_A_REASON = frozenset({"openai", "ollama"})


_WHOLE: Any = {"openai_chat_streaming_requires_finish_reason": True}


class OpenAIProvider(VendorProvider):
    """OpenAI, or with a `base_url` a server such as vLLM or LM Studio, which then needs no key: the key in
    OPENAI_API_KEY goes to OpenAI only. With a `base_url` and `name="openai"`: a proxy in front of OpenAI itself.
    """

    name = "openai"
    api_format = "openai-chat"
    sdk = "openai"
    extra = "llm"
    ends_streams = False  # the library asks for a reason where all servers give one
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
        """Only its audio models hear; the others answer 400 to sound. Of other servers only pictures are expected."""
        sounds = ("audio/wav", "audio/mpeg") if "audio" in model else ()
        return (*IMAGES, *sounds, "application/pdf") if self._is_openai else (*IMAGES, *sounds)

    def _import(self) -> None:
        super()._import()
        from openai.resources.chat import AsyncChat, AsyncCompletions  # noqa: F401  # which it else puts off

    def _connect(self) -> Any:
        from openai import AsyncOpenAI

        return AsyncOpenAI(api_key=self._api_key, base_url=self._base_url, max_retries=0, http_client=http_client())

    async def _disconnect(self, client: Any) -> None:
        await client.close()

    def _model(self, client: Any, name: str) -> Model[Any]:
        from sayso.agent.providers.pydantic_ai.request import ChatModel

        profile = _WHOLE if self.name in _GIVE_A_REASON else None
        return ChatModel(name, provider=self._speaker(client), profile=profile)

    def _speaker(self, client: Any) -> Any:
        """Who knows what the server's models can do."""
        from pydantic_ai.providers.openai import OpenAIProvider as OpenAI
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        return (
            OpenAI(openai_client=client)
            if self._is_openai
            else OpenAICompatibleProvider(self.name, openai_client=client)
        )


#: Where a local Ollama listens.
OLLAMA_URL = "http://localhost:11434/v1"


class OllamaProvider(OpenAIProvider):
    """As OpenAIProvider. Ollama does not say which of its models see: an image sent to one that does not is refused."""

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

    def _speaker(self, client: Any) -> Any:
        from pydantic_ai.providers.ollama import OllamaProvider as Ollama

        return Ollama(openai_client=client)


class OpenAIResponsesProvider(OpenAIProvider):
    """As OpenAIProvider. Models that think keep their reasoning through a loop of tools; OpenAI stores nothing."""

    modules = ("pydantic_ai.models.openai", "pydantic_ai.providers.openai", "pydantic_ai.providers.openai_compatible")
    ends_streams = True

    def _import(self) -> None:
        super()._import()
        from openai.resources.responses import AsyncResponses  # noqa: F401  # which it else puts off

    def _model(self, client: Any, name: str) -> Model[Any]:
        from pydantic_ai.models.openai import OpenAIResponsesModel

        return OpenAIResponsesModel(name, provider=self._speaker(client))

    def _settings(self) -> Mapping[str, Any]:
        """The effort stands elsewhere in these requests."""
        body = dict(self._extra.get("extra_body") or {})
        effort = body.pop("reasoning_effort", None)
        chosen = {} if effort is None else {"openai_reasoning_effort": effort}
        return {"openai_store": False, "extra_body": body or None, **chosen}
