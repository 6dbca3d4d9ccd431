"""AnthropicProvider: Anthropic's models."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sayso.agent.providers.clients import http_client
from sayso.agent.providers.files import LoadMedia
from sayso.agent.providers.vendor import IMAGES, VendorProvider, key_of

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
