"""GeminiProvider: Google's models, by the Gemini API."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sayso.agent.providers.clients import http_client
from sayso.agent.providers.files import LoadMedia
from sayso.agent.providers.vendor import VendorProvider, key_of

if TYPE_CHECKING:
    from pydantic_ai.models import Model

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
    modules = ("sayso.agent.providers.wire.google", "pydantic_ai.providers.google")

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
        from sayso.agent.providers.wire.google import GeminiModel

        _, speaker = client
        return GeminiModel(name, provider=speaker)
