"""pydantic-ai's model of Gemini, adapted. Needs the extra `google`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.genai.types import CreateCachedContentConfig, GenerateContentConfigDict
from pydantic_ai.models.google import GoogleModel

from sayso.agent.providers.gemini_cache import (
    CACHED_FIELDS,
    TTL_SECONDS,
    ExplicitCaches,
    prompt_key,
)

#: The setting of a request that may use an explicit cache.
MAY_CACHE = "sayso_may_cache"


class GeminiModel(GoogleModel):
    """pydantic-ai's model, which ignores `extra_body`.

    Google's client itself merges it into the request.

    One per request. With `caches`, system prompt and tools are left
    out where an explicit cache has them.
    """

    unsupported_settings = GoogleModel.unsupported_settings - {"extra_body"}

    def __init__(self, *args: Any, caches: ExplicitCaches | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._caches = caches
        #: The key of the prompt, and the fields that a cache of it would hold.
        self._cacheable: tuple[str, Mapping[str, Any]] | None = None

    async def _build_content_and_config(
        self, *args: Any, **kwargs: Any
    ) -> tuple[Any, GenerateContentConfigDict]:
        contents, config = await super()._build_content_and_config(*args, **kwargs)
        settings = kwargs.get("model_settings") or next(
            (each for each in args if isinstance(each, dict)), {}
        )
        if body := settings.get("extra_body"):
            config["http_options"] = {**(config.get("http_options") or {}), "extra_body": body}
        if self._caches is not None and settings.get(MAY_CACHE):
            self._use_cache(config, self._caches)
        return contents, config

    def _use_cache(self, config: GenerateContentConfigDict, caches: ExplicitCaches) -> None:
        """Refer to the explicit cache of the prompt in place of what it holds, if there is one."""
        values: dict[str, Any] = config  # type: ignore[assignment]  # its keys are fields of Google's type
        fields = {name: values[name] for name in CACHED_FIELDS if values.get(name)}
        key = prompt_key(self.model_name, fields)
        self._cacheable = key, fields
        if name := caches.name_of(key):
            values.update(dict.fromkeys(CACHED_FIELDS), cached_content=name)

    def note_cached_tokens(self, tokens: int) -> None:
        """Learn from an answer whether the implicit cache had the prompt."""
        if self._caches is not None and self._cacheable and not tokens:
            self._caches.note_miss(*self._cacheable, self._create_cache)

    async def _create_cache(self, fields: Mapping[str, Any]) -> str:
        values = {**fields, "ttl": f"{TTL_SECONDS}s", "display_name": "sayso"}
        config = CreateCachedContentConfig.model_validate(values)
        cached = await self.client.aio.caches.create(model=self.model_name, config=config)
        return cached.name or ""
