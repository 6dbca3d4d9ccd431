"""OpenAIProvider: OpenAI's models, and those of any server that speaks its chat completions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sayso.agent.providers.clients import http_client
from sayso.agent.providers.files import LoadMedia
from sayso.agent.providers.vendor import IMAGES, VendorProvider, key_of

if TYPE_CHECKING:
    from pydantic_ai.models import Model

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
        "sayso.agent.providers.wire.deltas",
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
        from sayso.agent.providers.wire.deltas import ChatModel

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
