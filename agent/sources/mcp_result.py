"""Result: what an MCP tool answered, as a value for the model, and files for the user."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sayso.agent.sources.errors import scrub, scrub_value
from sayso.agent.sources.mcp_binaries import Binaries, with_extension

if TYPE_CHECKING:
    from mcp.types import CallToolResult

#: Files of one answer that reach the user.
MAX_FILES = 10
#: Characters of an error that reach the model.
MAX_ERROR_CHARS = 1000


def value_of(result: CallToolResult) -> Any:
    """The answer's structured content, else its text; images, sounds and other files become artifacts, and the model
    sees the images.

    A server gives structured content as text too, for those who read nothing else: the text is not repeated. Base64 in
    either is no text: a file in it is handed over once, and a note takes its place.
    """
    binaries = Binaries()
    blocks = [block for block in result.content if _is_file(block)][:MAX_FILES]
    files = [_hand_over(block, binaries) for block in blocks]
    value = binaries.removed(_unwrapped(result.structured_content, _text(result)))
    notes = "\n".join(f"(handed to the user: {file})" for file in files)
    if not notes:
        return value
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{words}\n{notes}" if words else notes


def complaint(result: CallToolResult, secrets: Sequence[str]) -> str:
    """The words of an answer that is an error, scrubbed before they are cut: half a secret would not be found."""
    binaries = Binaries(is_error=True)
    held = binaries.removed(scrub_value(result.structured_content, secrets))
    text = binaries.removed(scrub(_text(result), secrets)) or (
        json.dumps(held, ensure_ascii=False) if held else "no reason given"
    )
    return text[:MAX_ERROR_CHARS]


def _unwrapped(structured: Any, text: str) -> Any:
    """Servers wrap a plain value as `{"result": value}`, because structured content was an object once."""
    if structured is None:
        return text
    is_wrapped = isinstance(structured, dict) and list(structured) == ["result"]
    return structured["result"] if is_wrapped else structured


def _text(result: CallToolResult) -> str:
    return "\n".join(text for block in result.content if (text := _words(block)))


def _words(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "resource_link":
            return f"{block.title or block.name}: {block.uri}"
        case "resource":
            return str(getattr(block.resource, "text", ""))
    return ""


def _is_file(block: Any) -> bool:
    return block.type in ("image", "audio") or (block.type == "resource" and hasattr(block.resource, "blob"))


def _hand_over(block: Any, binaries: Binaries) -> str:
    """Give one file to the user; what it is, for the model."""
    holder = block.resource if block.type == "resource" else block
    mime_type = holder.mime_type or "application/octet-stream"
    try:
        data = base64.b64decode(holder.blob if block.type == "resource" else holder.data, validate=True)
    except (binascii.Error, ValueError):
        return f"nothing: what was called {mime_type} is no base64"
    own_name = PurePosixPath(unquote(urlsplit(str(holder.uri)).path)).name if block.type == "resource" else ""
    filename = with_extension(own_name, mime_type)
    binaries.hand_over(data, mime_type, filename)
    return f"{filename}, {mime_type}, {len(data)} bytes"
