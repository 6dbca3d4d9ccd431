"""GeminiModel: pydantic-ai's model of Gemini, with `extra_body` and explicit caches.

Needs the extra `google`. What an explicit cache is: `gemini_cache.py`.
"""

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
    """Gemini's model for one request.

    pydantic-ai ignores the setting `extra_body`. Here it is given to Google's client, which merges
    it into the request. With `caches`, system prompt and tools are left out of a request where an
    explicit cache holds them.
    """

    unsupported_settings = GoogleModel.unsupported_settings - {"extra_body"}

    def __init__(self, *args: Any, caches: ExplicitCaches | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._caches = caches
        #: The key of the prompt, and the fields that a cache of it would hold; None before the
        #: request is built, and where it may not use a cache.
        self._cacheable: tuple[str, Mapping[str, Any]] | None = None

    async def _build_content_and_config(
        self, *args: Any, **kwargs: Any
    ) -> tuple[Any, GenerateContentConfigDict]:
        """Return the messages and the rest of a request. pydantic-ai calls this."""
        contents, config = await super()._build_content_and_config(*args, **kwargs)
        # The settings may be passed by position. They are the only dict among the arguments.
        settings = kwargs.get("model_settings")
        if not settings:
            settings = next((each for each in args if isinstance(each, dict)), {})

        body = settings.get("extra_body")
        if body:
            config["http_options"] = {**(config.get("http_options") or {}), "extra_body": body}
        if self._caches is not None and settings.get(MAY_CACHE):
            self._use_cache(config, self._caches)
        return contents, config

    def _use_cache(self, config: GenerateContentConfigDict, caches: ExplicitCaches) -> None:
        """Let the request refer to the explicit cache of its prompt, if there is one.

        The fields that the cache holds are removed from the request.
        """
        values: dict[str, Any] = config  # type: ignore[assignment]  # its keys are fields of Google's type
        fields = {name: values[name] for name in CACHED_FIELDS if values.get(name)}
        key = prompt_key(self.model_name, fields)
        self._cacheable = key, fields
        name = caches.name_of(key)
        if name:
            values.update(dict.fromkeys(CACHED_FIELDS), cached_content=name)

    def note_cached_tokens(self, tokens: int) -> None:
        """Note how many tokens of the prompt an answer read from a cache. 0 is a miss."""
        if self._caches is None or self._cacheable is None or tokens:
            return
        key, fields = self._cacheable
        self._caches.note_miss(key, fields, self._create_cache)

    async def _create_cache(self, fields: Mapping[str, Any]) -> str:
        """Create an explicit cache of these fields, and return its name."""
        values = {**fields, "ttl": f"{TTL_SECONDS}s", "display_name": "sayso"}
        config = CreateCachedContentConfig.model_validate(values)
        cached = await self.client.aio.caches.create(model=self.model_name, config=config)
        return cached.name or ""
