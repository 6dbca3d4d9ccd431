"""Keys: what names a question to a model, so that equal ones are asked once and no two others are mixed up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sayso.agent.messages import Message
from sayso.agent.structured import ResponseFormat, schema_from_response_format
from sayso.agent.tools.tool import Tool

#: What every key begins with.
KEY_PREFIX = "sayso:"
#: Changed when keys come to be made in another way: what was kept under the old ones then expires.
_VERSION = 1


class CacheKeyBuilder:
    """Makes keys of all that an answer hangs on."""

    @staticmethod
    def build(
        *,
        model: str,
        system_prompt: str,
        messages: Sequence[Message],
        tools: Iterable[Tool | Mapping[str, Any]] | None = None,
        temperature: float | None = 0.0,
        max_tokens: int | None = None,
        response_format: ResponseFormat | None = None,
        provider: str = "",
    ) -> str:
        """`sayso:` and 64 hex digits: the same for the same request in every process, another for any other one.

        The order of messages and tools counts, and that of properties in a schema, in which models write them. Which
        ids calls have does not, only which result answers which call: vendors make up new ones each time. Of media the
        reference counts. A tool counts as its plain schema. Raises TypeError for what JSON cannot hold, and what
        `schema_from_response_format` raises.
        """
        schema = None if response_format is None else schema_from_response_format(response_format)
        request = {
            "version": _VERSION,
            "provider": provider,
            "model": model,
            "system_prompt": system_prompt,
            "messages": _numbered(messages),
            "tools": [_in_order(each.schema() if isinstance(each, Tool) else each) for each in tools or ()],
            "temperature": None if temperature is None else float(temperature),
            "max_tokens": max_tokens,
            "response_format": None if schema is None else _in_order(schema),
        }
        text = json.dumps(request, sort_keys=True, separators=(",", ":"))
        return KEY_PREFIX + hashlib.sha256(text.encode()).hexdigest()


def _in_order(schema: Mapping[str, Any]) -> str:
    """As a text, whose order stays."""
    return json.dumps(schema, separators=(",", ":"))


def _numbered(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages with the ids of calls in the order in which they are met, instead of as they are spelled."""
    numbers: dict[str, int] = {"": 0}
    told = [{**message.to_dict(), **_pictured(message)} for message in messages]
    for each in told:
        each.pop("reasoning", None)  # its signatures are new each time
        for call in each.get("tool_calls", ()):
            call["id"] = numbers.setdefault(call["id"], len(numbers))
        if "tool_call_id" in each:
            each["tool_call_id"] = numbers.setdefault(each["tool_call_id"], len(numbers))
    return told


def _pictured(message: Message) -> dict[str, Any]:
    """The images that a model sees beside a message, by their bytes or references."""
    seen = [each.media.ref if each.media else hashlib.sha256(each.data).hexdigest() for each in message.pictures]
    return {"pictures": seen} if seen else {}
