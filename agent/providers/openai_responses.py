"""OpenAIResponsesProvider: OpenAI's models by the Responses API, which gives their reasoning back between calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sayso.agent.providers.openai import OpenAIProvider

if TYPE_CHECKING:
    from pydantic_ai.models import Model


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
