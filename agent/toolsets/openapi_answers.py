"""AnswerReader: what a model reads of an API's answers, without the keys that signed the calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from sayso.agent.tools.environment import emit_artifact
from sayso.agent.tools.result_texts import file_note
from sayso.agent.toolsets.base import scrub, scrub_value
from sayso.agent.toolsets.openapi_bodies import is_json_type
from sayso.agent.toolsets.openapi_files import download_name
from sayso.agent.toolsets.openapi_operations import Operation
from sayso.agent.toolsets.openapi_request import Auth, Request
from sayso.infra.http import content_type_of, decode_text

if TYPE_CHECKING:
    import httpx

#: Longest quote of an error's body, in characters.
MAX_ERROR_CHARS = 500


class AnswerReader:
    """Reads the answers of one API. Lives as long as its provider.

    `source_name` is what errors call the API. The secrets of `auth` are cut out of everything that
    is returned.
    """

    def __init__(self, source_name: str, auth: Sequence[Auth]) -> None:
        self._source_name = source_name
        self._auth = auth

    def value(self, operation: Operation, request: Request, answer: httpx.Response) -> Any:
        """Return what a successful answer contains, for the model. A file becomes an artifact."""
        content_type = content_type_of(answer)
        if not answer.content:
            # HEAD is called for its status: an answer to it never has a body.
            if operation.method == "head":
                return {"status": answer.status_code}
            return None

        if is_json_type(content_type):
            try:
                return scrub_value(json.loads(answer.content), self._secrets)
            except (ValueError, RecursionError):
                return self._text(answer)

        disposition = answer.headers.get("content-disposition") or ""
        is_download = disposition.strip().lower().startswith("attachment")
        if _is_text(content_type) and not is_download:
            return self._text(answer)

        filename = scrub(download_name(disposition, request.path, content_type), self._secrets)
        file = emit_artifact(answer.content, mime_type=content_type or None, filename=filename)
        note = file_note(f"{file.filename}, {file.mime_type}, {file.size} bytes")
        if not _is_text(content_type):
            return note
        # The user gets a download of text as a file, and the model reads it to answer questions.
        return f"{note}\n{self._text(answer)}"

    def error_text(self, operation: Operation, answer: httpx.Response) -> str:
        """Return what a model reads of an answer without success: its status and its body."""
        body = ""
        if _is_text(content_type_of(answer)):
            body = self._text(answer).strip()
        if len(body) > MAX_ERROR_CHARS:
            body = f"{body[:MAX_ERROR_CHARS]}..."
        status = f"{answer.status_code} ({answer.reason_phrase or 'an unknown status'})"
        line = f"{operation.method.upper()} {operation.path}"
        return f"{self._source_name} answered {status} to {line}: {body or 'no reason given'}"

    def _text(self, answer: httpx.Response) -> str:
        """Return the body of an answer as text, without secrets."""
        return scrub(decode_text(answer.content, answer.charset_encoding or ""), self._secrets)

    @property
    def _secrets(self) -> Sequence[str]:
        """What an answer must not repeat to the model."""
        return list(chain.from_iterable(auth.secrets for auth in self._auth))


def _is_text(content_type: str) -> bool:
    """Return whether an answer of this media type is text; "" counts as text."""
    if not content_type or content_type.startswith("text/"):
        return True
    return is_json_type(content_type) or content_type in ("application/xml", "application/yaml")
