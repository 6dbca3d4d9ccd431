"""A strict twin of OpenAI's Responses API, which has reasoning items."""

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
    need_names,
    signature,
    words,
)


class ResponsesApi:
    """Checks requests as OpenAI does; a call with its item's id must follow its unchanged reasoning item."""

    def check(self, called: Called) -> None:
        body = called.body
        need(
            called.headers.get("authorization") == f"Bearer {KEY}",
            "Incorrect API key provided",
            401,
        )
        need(body.get("model") and body.get("input"), "Missing required parameter: 'input'.")
        need(body.get("store") is False, "nothing may be stored here")
        for name in set(body) - _TAKEN:
            raise Refused(400, f"Unknown parameter: '{name}'.")
        need(
            "temperature" not in body or not body["model"].startswith("gpt-5"),
            "Unsupported parameter: 'temperature'",
        )
        for tool in body.get("tools", []):
            need(
                tool["type"] == "function" and tool["parameters"].get("type") == "object",
                "invalid tool",
            )
        need_names(tool["name"] for tool in body.get("tools", []))
        waiting: list[str] = []
        before = ""
        for item in body["input"]:
            kind = item.get("type", "message")
            if kind == "reasoning":
                thought = "".join(each["text"] for each in item["summary"])
                need(
                    item["encrypted_content"] == signature(thought),
                    "The encrypted content could not be verified.",
                )
            if kind == "function_call":
                need("id" not in item or before in ("reasoning", "function_call"), _MISSING)
                waiting.append(item["call_id"])
            if kind == "function_call_output":
                need(item["call_id"] in waiting, "No tool call found for function call output")
                waiting.remove(item["call_id"])
            before = kind if kind != "message" or item["role"] != "assistant" else before
        need(not waiting, f"No tool output found for function calls {waiting}.")

    def streams(self, called: Called) -> bool:
        return bool(called.body.get("stream"))

    def whole(self, called: Called, step: dict[str, Any]) -> dict[str, Any]:
        prompt, completion, cached = step.get("usage", [100, 20, 0])
        cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(
            step.get("finish", "")
        )
        return {
            "id": "resp_1", "object": "response", "created_at": 1_790_000_000, "model": called.body["model"],
            "status": "incomplete" if cut else "completed", "output": self._output(step), "error": None,
            "incomplete_details": {"reason": cut} if cut else None, "instructions": None,
            "metadata": {}, "parallel_tool_calls": True, "tools": [], "tool_choice": "auto",
            "usage": {
                "input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion,
                "input_tokens_details": {"cached_tokens": cached}, "output_tokens_details": {"reasoning_tokens": 0},
            },
        }  # fmt: skip

    def _output(self, step: dict[str, Any]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = [
            {
                "id": f"rs_{at}", "type": "reasoning", "summary": [{"type": "summary_text", "text": thought}],
                "encrypted_content": signature(thought), "status": "completed",
            }
            for at, thought in enumerate(step.get("thinks", []))
        ]  # fmt: skip
        if step.get("text"):
            content = [{"type": "output_text", "text": step["text"], "annotations": []}]
            message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
            items.append({**message, "content": content})
        if step.get("refusal"):
            content = [{"type": "refusal", "refusal": step["refusal"]}]
            message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
            items.append({**message, "content": content})
        for at, call in enumerate(step.get("calls", [])):
            made = {
                "name": call["name"],
                "arguments": arguments(call),
                "call_id": call.get("id") or f"call_{at}",
            }
            items.append({"id": f"fc_{at}", "type": "function_call", "status": "completed", **made})
        return items

    def pieces(self, called: Called, step: dict[str, Any]) -> Iterator[str]:
        whole = self.whole(called, step)
        yield self._event(
            "response.created",
            response={**whole, "output": [], "status": "in_progress", "usage": None},
        )
        for at, item in enumerate(whole["output"]):
            empty = {
                "message": {"content": []},
                "function_call": {"arguments": ""},
                "reasoning": {"summary": []},
            }[item["type"]]
            yield self._event("response.output_item.added", output_index=at, item={**item, **empty})
            if item["type"] == "message":
                place = {"item_id": item["id"], "output_index": at, "content_index": 0}
                if "refusal" in step:
                    part = {"type": "refusal", "refusal": ""}
                    yield self._event("response.content_part.added", **place, part=part)
                    for word in words(step["refusal"]):
                        yield self._event("response.refusal.delta", **place, delta=word)
                    yield self._event("response.refusal.done", **place, refusal=step["refusal"])
                    yield self._event("response.output_item.done", output_index=at, item=item)
                    continue
                yield self._event(
                    "response.content_part.added",
                    **place,
                    part={"type": "output_text", "text": "", "annotations": []},
                )
                for word in words(step["text"]):
                    yield self._event(
                        "response.output_text.delta", **place, delta=word, logprobs=[]
                    )
                yield self._event(
                    "response.output_text.done", **place, text=step["text"], logprobs=[]
                )
            elif item["type"] == "reasoning":
                place = {"item_id": item["id"], "output_index": at, "summary_index": 0}
                (part,) = item["summary"]
                yield self._event(
                    "response.reasoning_summary_part.added", **place, part={**part, "text": ""}
                )
                yield self._event(
                    "response.reasoning_summary_text.delta", **place, delta=part["text"]
                )
                yield self._event(
                    "response.reasoning_summary_text.done", **place, text=part["text"]
                )
                yield self._event("response.reasoning_summary_part.done", **place, part=part)
            else:
                place = {"item_id": item["id"], "output_index": at}
                yield self._event(
                    "response.function_call_arguments.delta", **place, delta=item["arguments"]
                )
                yield self._event(
                    "response.function_call_arguments.done", **place, arguments=item["arguments"]
                )
            yield self._event("response.output_item.done", output_index=at, item=item)
        yield self._event(f"response.{whole['status']}", response=whole)

    def _event(self, name: str, **more: Any) -> str:
        return event({"type": name, "sequence_number": 0, **more}, name)

    def failure(self, refused: Refused) -> str:
        whole = self.whole(Called("", {}, {"model": "gpt-5-mini"}), {})
        error = {"code": refused.code or "server_error", "message": refused.message}
        return self._event(
            "response.failed", response={**whole, "status": "failed", "error": error}
        )

    def too_long(self, size: int, most: int) -> Refused:
        return Refused(
            400,
            f"Your input exceeds the context window ({size} > {most}).",
            "context_length_exceeded",
        )

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


_TAKEN = {
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "stream",
    "store",
    "include",
    "reasoning",
    "text",
}
_TAKEN |= {
    "max_output_tokens",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "truncation",
    "prompt_cache_key",
}
_MISSING = "Item of type 'function_call' was provided without its required 'reasoning' item."
