"""Prompts: a recorded request in the order in which the vendor reads it: tools, system prompt,
messages.

What a vendor caches is a beginning of this order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

#: The body of a request.
Body = dict[str, Any]


def openai_parts(body: Body) -> Iterator[str]:
    """Yield a request of OpenAI's chat completions in the order of its prompt."""
    yield from (_json(tool) for tool in body.get("tools", []))
    for message in body["messages"]:
        content = message.get("content")
        yield f"{message['role']}\n{content if isinstance(content, str) else _json(content)}\n"
        yield from (_json(call["function"]) for call in message.get("tool_calls") or [])


def responses_parts(body: Body) -> Iterator[str]:
    """Yield a request of OpenAI's Responses API in the order of its prompt."""
    yield from (_json(tool) for tool in body.get("tools", []))
    yield body.get("instructions") or ""
    yield from (_json(item) for item in body["input"])


def gemini_parts(body: Body) -> Iterator[str]:
    """Yield a request of Gemini in the order of its prompt."""
    for each in body.get("tools", []):
        yield from map(_json, each["functionDeclarations"])
    yield from (_json(part) for part in (body.get("systemInstruction") or {}).get("parts", []))
    yield from (_json(content) for content in body["contents"])


def anthropic_parts(body: Body) -> Iterator[str]:
    """Yield a request of Anthropic in the order of its prompt."""
    yield from (text for text, _ in anthropic_blocks(body))


def anthropic_blocks(body: Body) -> Iterator[tuple[str, bool]]:
    """Yield the blocks of a request of Anthropic in the order of its prompt, each with whether it
    is marked.
    """
    system = body.get("system") or []
    if isinstance(system, str):
        system = [{"type": "text", "text": system}]
    blocks: list[tuple[str, Any]] = [("", block) for block in [*body.get("tools", []), *system]]
    for message in body["messages"]:
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        blocks += [(f"{message['role']}\n", block) for block in content]
    for at, (begin, block) in enumerate(blocks, 1):
        without_mark = {name: value for name, value in block.items() if name != "cache_control"}
        text = block["text"] if set(without_mark) == {"type", "text"} else _json(without_mark)
        # A mark of the whole request is one on its last block.
        is_marked = "cache_control" in block or (at == len(blocks) and "cache_control" in body)
        yield begin + text, is_marked


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


#: How a request of each vendor is read, by the vendor's name in the YAML.
PARTS: dict[str, Callable[[Body], Iterator[str]]] = {
    "openai": openai_parts,
    "openai-responses": responses_parts,
    "anthropic": anthropic_parts,
    "gemini": gemini_parts,
}
