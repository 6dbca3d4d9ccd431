"""A strict twin of Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.agent.providers.api import (
    KEY,
    Called,
    Refused,
    arguments,
    event,
    need,
    need_bytes,
    need_names,
    signature,
    words,
)

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_BLOCKS = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
}


class AnthropicApi:
    """Checks requests as Anthropic does; `cache_control` may be on at most four blocks."""

    def check(self, called: Called) -> None:
        given = called.headers.get("x-api-key") or called.headers.get(
            "authorization", ""
        ).removeprefix("Bearer ")
        need(given == KEY, "invalid x-api-key", 401)
        need("anthropic-version" in called.headers, "anthropic-version: header is required")
        body = called.body
        need(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
        need(body.get("messages"), "messages: at least one message is required")
        need(
            body["messages"][0]["role"] == "user",
            'messages: first message must use the "user" role',
        )
        need(
            json.dumps(body).count('"cache_control"') <= 4,
            "A maximum of 4 blocks with cache_control may be provided",
        )
        if body.get("thinking", {}).get("type") == "enabled":
            budget = body["thinking"]["budget_tokens"]
            need(
                body["max_tokens"] > budget >= 1024,
                "`max_tokens` must be greater than `thinking.budget_tokens`",
            )
            need(
                body.get("temperature", 1) == 1,
                "`temperature` may only be set to 1 when thinking is enabled",
            )
        for tool in body.get("tools", []):
            need(
                tool["input_schema"].get("type") == "object",
                "tools.0.input_schema.type: Field required",
            )
        if body.get("thinking", {}).get("type") == "enabled":
            self._check_thinking(body["messages"])
        elif json.dumps(body["messages"]).count('"type": "thinking"'):
            raise Refused(
                400, "When thinking is disabled, an assistant message cannot contain `thinking`"
            )
        waiting: list[str] = []
        used: set[str] = set()
        for message in body["messages"]:
            waiting = self._check_message(message, waiting, used)
        need(not waiting, f"tool_use ids were found without tool_result blocks: {waiting}")

    def _check_thinking(self, messages: list[dict[str, Any]]) -> None:
        """Check that the calls of the last turn come with the signed reasoning that led to them."""
        last = max(
            at
            for at, each in enumerate(messages)
            if each["role"] == "user" and not _is_result(each)
        )
        for message in messages[last:]:
            blocks = message["content"] if isinstance(message["content"], list) else []
            if message["role"] == "assistant" and any(
                block["type"] == "tool_use" for block in blocks
            ):
                need(
                    blocks[0]["type"] in ("thinking", "redacted_thinking"),
                    "Expected `thinking`, but found `tool_use`",
                )
            for block in blocks:
                if block["type"] == "thinking":
                    need(
                        block["signature"] == signature(block["thinking"]),
                        "Invalid `signature` in `thinking` block",
                    )

    def _check_message(
        self, message: dict[str, Any], waiting: list[str], used: set[str]
    ) -> list[str]:
        need(message["role"] in _BLOCKS, "messages: Input should be 'user' or 'assistant'")
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        need(blocks, "messages: content must not be empty")
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        need(
            set(results) == set(waiting) and len(results) == len(waiting),
            f"unexpected tool_use_id in {results}",
        )
        for block in blocks:
            need(block["type"] in _BLOCKS[message["role"]], f"{block['type']} is not allowed here")
            need(
                block["type"] != "text" or block["text"].strip(),
                "messages: text content blocks must be non-empty",
            )
            may_be_marked = block["type"] not in ("thinking", "redacted_thinking")
            need(
                may_be_marked or "cache_control" not in block,
                "cache_control: Extra inputs are not permitted",
            )
            if block["type"] == "image":
                kind = block["source"]["media_type"]
                need(
                    kind in ("image/png", "image/jpeg", "image/gif", "image/webp"),
                    f"unknown media type {kind}",
                )
                need_bytes(block["source"]["data"], kind)
        need_names(block["name"] for block in blocks if block["type"] == "tool_use")
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        need(
            all(calls) and len(set(calls)) == len(calls) and not used & set(calls),
            "tool_use ids must be unique",
        )
        need(
            all(
                isinstance(block["input"], dict) for block in blocks if block["type"] == "tool_use"
            ),
            "input: not a dict",
        )
        used |= set(calls)
        return calls

    def streams(self, called: Called) -> bool:
        return bool(called.body.get("stream"))

    def _thinking(self, step: dict[str, Any]) -> list[dict[str, Any]]:
        thoughts = [
            {"type": "thinking", "thinking": each, "signature": signature(each)}
            for each in step.get("thinks", [])
        ]
        return [
            *thoughts,
            *({"type": "redacted_thinking", "data": each} for each in step.get("redacted", [])),
        ]

    def whole(self, called: Called, step: dict[str, Any]) -> dict[str, Any]:
        text = [{"type": "text", "text": step["text"]}] if step.get("text") else []
        calls = [
            {
                "type": "tool_use",
                "id": call.get("id") or f"toolu_{at}",
                "name": call["name"],
                "input": _input(call),
            }
            for at, call in enumerate(step.get("calls", []))
        ]
        return {
            **self._frame(called, step),
            "content": [*self._thinking(step), *text, *calls],
            **self._ending(step),
        }

    def pieces(self, called: Called, step: dict[str, Any]) -> Iterator[str]:
        start = {**self._frame(called, step), "content": [], "stop_reason": None}
        yield event({"type": "message_start", "message": start}, "message_start")
        at = 0
        for block in self._thinking(step):
            if block["type"] == "redacted_thinking":
                yield from self._block(at, block, [])
            else:
                deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
                deltas += [{"type": "signature_delta", "signature": block["signature"]}]
                yield from self._block(
                    at, {"type": "thinking", "thinking": "", "signature": ""}, deltas
                )
            at += 1
        if step.get("text"):
            block = {"type": "text", "text": ""}
            yield from self._block(
                at, block, [{"type": "text_delta", "text": word} for word in words(step["text"])]
            )
            at += 1
        for number, call in enumerate(step.get("calls", []), at):
            block = {
                "type": "tool_use",
                "id": call.get("id") or f"toolu_{number}",
                "name": call["name"],
                "input": {},
            }
            text = arguments(call)
            bits = [text[start : start + 5] for start in range(0, len(text), 5)]
            yield from self._block(
                number, block, [{"type": "input_json_delta", "partial_json": bit} for bit in bits]
            )
        delta = {**self._ending(step), "stop_sequence": None}
        usage = {"output_tokens": self._usage(step)["output_tokens"]}
        yield event({"type": "message_delta", "delta": delta, "usage": usage}, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")

    def _block(self, at: int, block: dict[str, Any], deltas: list[dict[str, Any]]) -> Iterator[str]:
        yield event(
            {"type": "content_block_start", "index": at, "content_block": block},
            "content_block_start",
        )
        for delta in deltas:
            yield event(
                {"type": "content_block_delta", "index": at, "delta": delta}, "content_block_delta"
            )
        yield event({"type": "content_block_stop", "index": at}, "content_block_stop")

    def _ending(self, step: dict[str, Any]) -> dict[str, Any]:
        if "refusal" not in step:
            return {"stop_reason": self._stop(step)}
        details = {"type": "refusal", "category": None, "explanation": step["refusal"]}
        return {"stop_reason": "refusal", "stop_details": details}

    def _stop(self, step: dict[str, Any]) -> str:
        known = {"length": "max_tokens", "content_filter": "refusal"}
        return known.get(step.get("finish", ""), "tool_use" if step.get("calls") else "end_turn")

    def _frame(self, called: Called, step: dict[str, Any]) -> dict[str, Any]:
        model = called.body["model"]
        frame = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": model,
            "stop_sequence": None,
        }
        return {**frame, "usage": self._usage(step)}

    def _usage(self, step: dict[str, Any]) -> dict[str, Any]:
        """Return the usage; its input tokens exclude those that were read from and written to the cache."""
        prompt, completion, cached, *rest = step.get("usage", [100, 20, 0])
        written = rest[0] if rest else 0
        counts = {"input_tokens": prompt - cached - written, "output_tokens": completion}
        return {**counts, "cache_read_input_tokens": cached, "cache_creation_input_tokens": written}

    def failure(self, refused: Refused) -> str:
        return event(self.error(refused), "error")

    def too_long(self, size: int, most: int) -> Refused:
        return Refused(400, f"prompt is too long: {size} tokens > {most} maximum")

    def error(self, refused: Refused) -> dict[str, Any]:
        kind = refused.code or _KINDS.get(refused.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": refused.message}}


def _is_result(message: dict[str, Any]) -> bool:
    content = message["content"]
    return isinstance(content, list) and any(block["type"] == "tool_result" for block in content)


def _input(call: dict[str, Any]) -> Any:
    given = call.get("arguments", {})
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given
