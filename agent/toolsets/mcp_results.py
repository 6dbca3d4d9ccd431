"""Results of MCP tools: text for the model, files for the user, base64 in texts replaced by notes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sayso.agent.tools.context import MAX_ARTIFACT_BYTES, emit_artifact
from sayso.agent.toolsets.base import scrub, scrub_value
from sayso.channels.storage.media import UNKNOWN_TYPE, settle_type
from sayso.channels.types import extension_of

if TYPE_CHECKING:
    from mcp.types import CallToolResult

#: Most files of one result that reach the user.
MAX_FILES = 10
#: Most files in the texts of one result that reach the user.
MAX_TEXT_FILES = 10
#: Longest error that reaches the model, in characters.
MAX_ERROR_CHARS = 1000
#: Shortest base64 that counts as binary content, in characters. Shorter ones may be ids, keys and signatures.
MIN_BASE64_CHARS = 256
_BASE64, _BREAK = r"[A-Za-z0-9+/_-]", r"(?:\\n|\r?\n)"
#: One long line of base64, or lines as in mail; perhaps as a data URL.
_BINARY = re.compile(
    rf"(?:data:(?P<type>[\w.+-]+/[\w.+-]+)[^,\s]{{0,100}};base64,)?"
    rf"(?P<data>(?:{_BASE64}{{{MIN_BASE64_CHARS},}}"
    rf"|{_BASE64}{{60,100}}(?:{_BREAK}{_BASE64}{{60,100}}){{2,}}(?:{_BREAK}{_BASE64}{{1,100}})?)={{0,2}})"
)

_BREAKS = re.compile(r"\\n|\s")


def value_of(result: CallToolResult) -> Any:
    """Return a result's structured content, else its text; its files become artifacts, and the model sees the images.

    Servers repeat structured content as text for clients that read nothing else: the text is then left out. A file in
    base64 in either of them becomes an artifact, too, and a note takes its place.
    """
    sender = FileSender()
    files = [_send_block(block, sender) for block in [each for each in result.content if _is_file(each)][:MAX_FILES]]
    value = sender.without_binaries(_unwrapped(result.structured_content, _text(result)))
    notes = "\n".join(f"(handed to the user: {file})" for file in files)
    if not notes:
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{text}\n{notes}" if text else notes


def error_text(result: CallToolResult, secrets: Sequence[str]) -> str:
    """Return the text of a result that is an error, scrubbed before it is cut: half a secret would not be found."""
    sender = FileSender(is_error=True)
    text = sender.without_binaries(scrub(_text(result), secrets))
    if not text:
        structured = sender.without_binaries(scrub_value(result.structured_content, secrets))
        text = json.dumps(structured, ensure_ascii=False) if structured else "no reason given"
    return str(text)[:MAX_ERROR_CHARS]


def _unwrapped(structured: Any, text: str) -> Any:
    """Return the content. Servers wrap a plain value as `{"result": value}`: structured content was an object once."""
    if structured is None:
        return text
    is_wrapped = isinstance(structured, dict) and list(structured) == ["result"]
    return structured["result"] if is_wrapped else structured


def _text(result: CallToolResult) -> str:
    return "\n".join(text for block in result.content if (text := _block_text(block)))


def _block_text(block: Any) -> str:
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


def _send_block(block: Any, sender: FileSender) -> str:
    """Send one file to the user, and return its description for the model."""
    is_resource = block.type == "resource"
    content = block.resource if is_resource else block
    mime_type = content.mime_type or "application/octet-stream"
    try:
        data = base64.b64decode(content.blob if is_resource else content.data, validate=True)
    except (binascii.Error, ValueError):
        return f"nothing: what was called {mime_type} is no base64"
    own_name = PurePosixPath(unquote(urlsplit(str(content.uri)).path)).name if is_resource else ""
    filename = _with_extension(own_name, mime_type)
    sender.send(data, mime_type, filename)
    return f"{filename}, {mime_type}, {len(data)} bytes"


class FileSender:
    """Sends the files of one result to the user: each once, however often the result repeats it; none of an error."""

    def __init__(self, *, is_error: bool = False) -> None:
        self._is_error = is_error
        self._sent_digests: set[str] = set()
        self._text_files = 0

    def send(self, data: bytes, mime_type: str, filename: str) -> None:
        """Send a file to the user; the model sees an image, too."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._sent_digests:
            self._sent_digests.add(digest)
            emit_artifact(data=data, mime_type=mime_type, filename=filename, shown=mime_type.startswith("image/"))

    def without_binaries(self, value: Any) -> Any:
        """Return a JSON value with a note in the place of each piece of base64."""
        if isinstance(value, str):
            return _BINARY.sub(self._note, value) if len(value) >= MIN_BASE64_CHARS else value
        if isinstance(value, Mapping):
            return {name: self.without_binaries(each) for name, each in value.items()}
        return [self.without_binaries(each) for each in value] if isinstance(value, list) else value

    def _note(self, match: re.Match[str]) -> str:
        data = _decoded(match["data"]) if len(match[0]) >= MIN_BASE64_CHARS else None
        if data is None:
            return match[0]
        kind = settle_type(data, match["type"] or "")
        is_full = self._text_files >= MAX_TEXT_FILES
        if self._is_error or kind == UNKNOWN_TYPE or is_full or len(data) > MAX_ARTIFACT_BYTES:
            return f"(binary data, {len(data)} bytes, is left out)"
        self._text_files += 1
        filename = _with_extension("", kind)
        self.send(data, kind, filename)
        return f"(handed to the user: {filename}, {kind}, {len(data)} bytes)"


def _with_extension(filename: str, mime_type: str) -> str:
    """Return a file's name with an extension, by which platforms and tools recognize the type."""
    return filename if PurePosixPath(filename).suffix else f"{filename or 'file'}{extension_of(mime_type)}"


def _decoded(text: str) -> bytes | None:
    """Return the bytes of base64; None for text that only looks like it, such as a hexadecimal number."""
    base64_text = _BREAKS.sub("", text).replace("-", "+").replace("_", "/").rstrip("=")
    has_all_kinds = all(re.search(kind, base64_text) for kind in ("[A-Z]", "[a-z]", "[0-9]"))
    if not has_all_kinds or len(base64_text) % 4 == 1:
        return None
    try:
        return base64.b64decode(base64_text + "=" * (-len(base64_text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
