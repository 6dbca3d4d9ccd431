"""pydantic-ai's model of Gemini, adapted. Needs the extra `google`."""

from __future__ import annotations

from typing import Any

from google.genai.types import GenerateContentConfigDict
from pydantic_ai.models.google import GoogleModel


class GeminiModel(GoogleModel):
    """pydantic-ai's model, which ignores `extra_body`; Google's client itself merges it into the request."""

    unsupported_settings = GoogleModel.unsupported_settings - {"extra_body"}

    async def _build_content_and_config(self, *args: Any, **kwargs: Any) -> tuple[Any, GenerateContentConfigDict]:
        contents, config = await super()._build_content_and_config(*args, **kwargs)
        settings = kwargs.get("model_settings") or next((each for each in args if isinstance(each, dict)), {})
        if body := settings.get("extra_body"):
            config["http_options"] = {**(config.get("http_options") or {}), "extra_body": body}
        return contents, config
