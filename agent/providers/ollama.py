"""OllamaProvider: models that an Ollama server runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sayso.agent.providers.files import LoadMedia
from sayso.agent.providers.openai import OpenAIProvider

#: Where a local Ollama listens.
OLLAMA_URL = "http://localhost:11434/v1"


class OllamaProvider(OpenAIProvider):
    """As OpenAIProvider. Ollama does not say which of its models see: an image sent to one that does not is refused."""

    modules = ("sayso.agent.providers.wire.deltas", "pydantic_ai.providers.ollama")

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
