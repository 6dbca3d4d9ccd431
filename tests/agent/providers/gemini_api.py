"""A strict twin of the Gemini API's generateContent."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from tests.agent.providers.api import (
    KEY,
    Called,
    Refused,
    event,
    need,
    need_bytes,
    signature,
    words,
)

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
}
_STATUS |= {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}

_CONFIG = {
    "temperature",
    "topP",
    "topK",
    "maxOutputTokens",
    "stopSequences",
    "seed",
    "thinkingConfig",
}
#: Google's libraries use both base64 alphabets.
_URL_SAFE = str.maketrans("-_", "+/")
_CONFIG |= {"responseModalities", "responseMimeType", "responseJsonSchema"}


#: The documented signature for calls of another model.
UNSIGNED = b64encode(b"skip_thought_signature_validator").decode()


#: The names of the explicit caches that there are.
caches: set[str] = set()
_HELD = {"systemInstruction", "tools", "toolConfig"}


class GeminiApi:
    """Checks requests as Gemini does; calls have no ids, so names and order must match."""

    def check(self, called: Called) -> None:
        need(
            called.headers.get("x-goog-api-key") == KEY,
            "API key not valid. Please pass a valid API key.",
        )
        if "cachedContent" in called.body:
            words = "CachedContent can not be used with GenerateContent request setting system_instruction or tools."
            need(not _HELD & set(called.body), words)
            need(
                called.body["cachedContent"] in caches,
                "CachedContent not found (or permission denied)",
                403,
            )
        for name in set(called.body.get("generationConfig", {})) - _CONFIG:
            raise Refused(
                400,
                f"Invalid JSON payload received. Unknown name \"{name}\" at 'generation_config'",
            )
        contents = called.body.get("contents")
        need(contents, "contents is not specified")
        waiting: list[str] = []
        if "gemini-3" in called.path:
            last = max(
                at
                for at, each in enumerate(contents)
                if each["role"] == "user" and "text" in each["parts"][0]
            )
            for content in contents[last:]:
                first = next((part for part in content["parts"] if "functionCall" in part), None)
                given = first.get("thoughtSignature", "").translate(_URL_SAFE) if first else ""
                signed = first is None or given in (signature("Look it up."), UNSIGNED)
                need(signed, "Function call is missing a thought_signature in functionCall parts")
        for content in contents:
            need(content["role"] in ("user", "model"), "Please use a valid role: user, model.")
            need(content["parts"], "contents.parts must not be empty")
            for data in [part["inlineData"] for part in content["parts"] if "inlineData" in part]:
                if data["mime_type"].startswith("image/"):
                    need_bytes(data["data"], data["mime_type"])
            results = [
                part["functionResponse"]["name"]
                for part in content["parts"]
                if "functionResponse" in part
            ]
            need(
                results == waiting,
                "the number of function response parts must equal that of function call parts",
            )
            waiting = [
                part["functionCall"]["name"] for part in content["parts"] if "functionCall" in part
            ]
        need(not waiting, "a function call turn must be followed by its responses")

    def streams(self, called: Called) -> bool:
        return "streamGenerateContent" in called.path

    def whole(self, called: Called, step: dict[str, Any]) -> dict[str, Any]:
        text = [{"text": step["text"]}] if step.get("text") else []
        return self._body(called, step, [*text, *self._calls(step)], self._finish(step))

    def pieces(self, called: Called, step: dict[str, Any]) -> Iterator[str]:
        for word in words(step["text"]) if step.get("text") else ():
            yield event(self._body(called, step, [{"text": word}], None))
        yield event(self._body(called, step, self._calls(step), self._finish(step)))

    def _calls(self, step: dict[str, Any]) -> list[dict[str, Any]]:
        calls = step.get("calls", [])
        parts = [
            {"functionCall": {"name": call["name"], "args": call.get("arguments", {})}}
            for call in calls
        ]
        for thought in step.get("thinks", [])[:1]:  # only the first call of an answer is signed
            parts[0]["thoughtSignature"] = signature(thought)
        return parts

    def _finish(self, step: dict[str, Any]) -> str:
        known = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
        finish = step.get("finish", "STOP")
        return known.get(finish, finish)

    def _body(
        self, called: Called, step: dict[str, Any], parts: list[Any], finish: str | None
    ) -> dict[str, Any]:
        prompt, completion, cached = step.get("usage", [100, 20, 0])
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish:
            candidate["finishReason"] = finish
        usage = {
            "promptTokenCount": prompt,
            "candidatesTokenCount": completion,
            "cachedContentTokenCount": cached,
        }
        model = called.path.partition("/models/")[2].partition(":")[0]
        return {
            "candidates": [candidate],
            "usageMetadata": {**usage, "totalTokenCount": prompt + completion},
            "modelVersion": model,
            "responseId": "r1",
        }

    def failure(self, refused: Refused) -> str:
        return event(self.error(refused))

    def too_long(self, size: int, most: int) -> Refused:
        words = (
            f"The input token count ({size}) exceeds the maximum number of tokens allowed ({most})."
        )
        return Refused(400, words)

    def error(self, refused: Refused) -> dict[str, Any]:
        status = refused.code or _STATUS.get(refused.status, "UNKNOWN")
        return {"error": {"code": refused.status, "message": refused.message, "status": status}}


class CachedContentsApi(GeminiApi):
    """Creates explicit caches; one whose step is `gone` is deleted at once."""

    def check(self, called: Called) -> None:
        need(
            called.headers.get("x-goog-api-key") == KEY,
            "API key not valid. Please pass a valid API key.",
        )
        need(called.body.get("model", "").startswith("models/"), "model: must be models/...")
        need(called.body.get("ttl", "").endswith("s"), "ttl: must be a duration")
        need(called.body.get("systemInstruction"), "Cached content is too small")

    def streams(self, called: Called) -> bool:
        return False

    def whole(self, called: Called, step: dict[str, Any]) -> dict[str, Any]:
        name = f"cachedContents/c{len(caches)}"
        if not step.get("gone"):
            caches.add(name)
        return {"name": name, "model": called.body["model"], "expireTime": "2030-01-01T00:00:00Z"}
