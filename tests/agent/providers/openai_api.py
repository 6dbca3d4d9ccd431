"""A strict twin of OpenAI's chat completions, and of servers with the same API."""

from __future__ import annotations

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
    words,
)

_TAKEN = {
    "model",
    "messages",
    "tools",
    "tool_choice",
    "stream",
    "stream_options",
    "max_tokens",
    "temperature",
    "top_p",
}
_TAKEN |= {
    "max_completion_tokens",
    "reasoning_effort",
    "response_format",
    "seed",
    "stop",
    "service_tier",
}
_TAKEN |= {"prompt_cache_key"}
_FIELDS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal"},
    "local assistant": {"role", "content", "name", "tool_calls", "refusal", "reasoning_content"},
    "tool": {"role", "content", "tool_call_id"},
}


class OpenAIApi:
    """Checks requests as OpenAI does; `key=False` stands for a local server without a key, which knows fewer fields."""

    def __init__(self, *, key: bool = True) -> None:
        self._key = key

    def check(self, called: Called) -> None:
        given = called.headers.get("authorization", "")
        if self._key and given != f"Bearer {KEY}":
            raise Refused(
                401, f"Incorrect API key provided: {given[7:]}. See https://x.test/?key={given[7:]}"
            )
        body = called.body
        need(body.get("model"), "you must provide a model parameter")
        need(body.get("messages"), "[] is too short - 'messages'")
        for tool in body.get("tools", []):
            need(
                tool["function"]["parameters"].get("type") == "object",
                "schema must be of type object",
            )
        for name in set(body) - _TAKEN if self._key else ():
            raise Refused(400, f"Unrecognized request argument supplied: {name}")
        need(
            self._key or "prompt_cache_key" not in body,
            "property 'prompt_cache_key' is unsupported",
        )
        need(len(body.get("prompt_cache_key", "")) <= 64, "prompt_cache_key: maximum length 64")
        if "reasoning_effort" in body:
            need(
                body["reasoning_effort"] in ("minimal", "low", "medium", "high"),
                "Unsupported value: reasoning_effort",
            )
        if body["model"].startswith("gpt-5"):
            need("temperature" not in body, "Unsupported value: 'temperature'")
            need("max_tokens" not in body, "Unsupported parameter: 'max_tokens'")
        self._check_messages(body["messages"], body["model"])

    def _check_messages(self, messages: list[dict[str, Any]], model: str) -> None:
        waiting: list[str] = []
        for message in messages:
            role = message.get("role")
            need(
                role in _FIELDS, f"Invalid value: {role!r}. Supported values are: {sorted(_FIELDS)}"
            )
            known = _FIELDS[role if self._key or role != "assistant" else "local assistant"]
            need(set(message) <= known, f"unknown fields {sorted(set(message) - known)}")
            if role == "tool":
                need(
                    message.get("tool_call_id") in waiting,
                    "'tool' must be a response to a preceding 'tool_calls'",
                )
                waiting.remove(message["tool_call_id"])
                need(message.get("content"), "empty content")
                continue
            need(not waiting, f"tool_call_ids did not have response messages: {waiting}")
            for part in message["content"] if isinstance(message.get("content"), list) else []:
                self._check_part(part, model)
            calls = message.get("tool_calls", [])
            need(message.get("content") or calls, "empty content")
            waiting = [call["id"] for call in calls]
            need_names(call["function"]["name"] for call in calls)
            need(
                all(waiting) and len(set(waiting)) == len(waiting),
                "missing or repeated tool call ids",
            )
            need(all(len(each) <= 40 for each in waiting), "string too long: maximum length 40")
        need(not waiting, f"tool_call_ids did not have response messages: {waiting}")

    def _check_part(self, part: dict[str, Any], model: str) -> None:
        need(
            part["type"] in ("text", "image_url", "input_audio", "file"),
            f"unknown part {part['type']!r}",
        )
        is_known = "prompt_cache_breakpoint" not in part or model.startswith("gpt-5.6")
        need(is_known, "Unknown parameter: 'prompt_cache_breakpoint'")
        if part["type"] == "image_url":
            kind, encoded = part["image_url"]["url"].removeprefix("data:").split(";base64,")
            need_bytes(encoded, kind)
        if part["type"] == "input_audio":
            need("audio" in model, "this model does not support input_audio")
            need(part["input_audio"]["format"] in ("wav", "mp3"), "format must be wav or mp3")

    def streams(self, called: Called) -> bool:
        return bool(called.body.get("stream"))

    def whole(self, called: Called, step: dict[str, Any]) -> dict[str, Any]:
        refusal = step.get("refusal")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": step.get("text"),
            "refusal": refusal,
        }
        if not self._key and "thinks" in step:
            message["reasoning_content"] = "".join(step["thinks"])
        if "calls" in step:
            message["tool_calls"] = [self._call(call) for call in step["calls"]]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": self._finish(step),
            "logprobs": None,
        }
        return {
            **self._frame(called, "chat.completion"),
            "choices": [choice],
            "usage": self._usage(step),
        }

    def pieces(self, called: Called, step: dict[str, Any]) -> Iterator[str]:
        frame = self._frame(called, "chat.completion.chunk")
        for word in words(step["text"]) if step.get("text") else ():
            yield event({**frame, "choices": [self._delta({"content": word})]})
        for word in words(step["refusal"]) if step.get("refusal") else ():
            yield event({**frame, "choices": [self._delta({"refusal": word})]})
        for at, call in enumerate(step.get("calls", [])):
            for delta in self._call_deltas(
                0 if step.get("deltas") == "ollama" else at, call, step.get("deltas", "")
            ):
                yield event({**frame, "choices": [self._delta({"tool_calls": [delta]})]})
        if step.get("finish") == "none":
            return
        yield event(
            {**frame, "choices": [{**self._delta({}), "finish_reason": self._finish(step)}]}
        )
        yield event({**frame, "choices": [], "usage": self._usage(step)})
        yield event("[DONE]")

    def _call_deltas(
        self, index: int, call: dict[str, Any], style: str
    ) -> Iterator[dict[str, Any]]:
        """Yield a call in one piece like Ollama, or with its arguments in several pieces like OpenAI.

        In the style `repeated` each piece has the call's name, as with some servers.
        """
        text = arguments(call)
        if style == "ollama":
            yield {"index": index, **self._call(call)}
            return
        yield {"index": index, **self._call({**call, "arguments": ""})}
        for start in range(0, len(text), 5):
            piece = {"arguments": text[start : start + 5]}
            if style == "repeated":
                piece["name"] = call["name"]
            yield {"index": index, "function": piece}

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = {"name": call["name"], "arguments": arguments(call)}
        return {"id": call.get("id", ""), "type": "function", "function": function}

    def _finish(self, step: dict[str, Any]) -> str:
        return str(step.get("finish") or ("tool_calls" if step.get("calls") else "stop"))

    def _frame(self, called: Called, kind: str) -> dict[str, Any]:
        return {
            "id": "chatcmpl-1",
            "object": kind,
            "created": 1_790_000_000,
            "model": called.body["model"],
        }

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}

    def _usage(self, step: dict[str, Any]) -> dict[str, Any]:
        prompt, completion, cached = step.get("usage", [100, 20, 0])
        details = {"cached_tokens": cached}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": details,
        }

    def failure(self, refused: Refused) -> str:
        return event(self.error(refused))

    def too_long(self, size: int, most: int) -> Refused:
        """Return the refusal; local servers send the same text without the code."""
        words = f"This model's maximum context length is {most} tokens. However, your messages resulted in {size} tokens."
        return Refused(400, words, "context_length_exceeded" if self._key else "")

    def error(self, refused: Refused) -> dict[str, Any]:
        kind = "invalid_request_error" if refused.status < 500 else "server_error"
        return {
            "error": {
                "message": refused.message,
                "type": kind,
                "code": refused.code or None,
                "param": None,
            }
        }
