"""Binaries: what is no text in the answer of an MCP tool, although it is written as text."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from sayso.agent.tools.artifacts import MAX_ARTIFACT_BYTES, emit_artifact
from sayso.channels.media import UNKNOWN_TYPE, settle_type
from sayso.channels.types import extension_of

#: Characters of base64 that are taken for binary content at least. Shorter ones may be ids, keys and signatures.
MIN_CHARS = 256
#: Files of one answer's texts that reach the user.
MAX_FILES = 10
_BASE64, _BREAK = r"[A-Za-z0-9+/_-]", r"(?:\\n|\r?\n)"
#: One long line of base64, or lines as mail has them; perhaps as a data URL.
_RUN = re.compile(
    rf"(?:data:(?P<type>[\w.+-]+/[\w.+-]+)[^,\s]{{0,100}};base64,)?"
    rf"(?P<data>(?:{_BASE64}{{{MIN_CHARS},}}"
    rf"|{_BASE64}{{60,100}}(?:{_BREAK}{_BASE64}{{60,100}}){{2,}}(?:{_BREAK}{_BASE64}{{1,100}})?)={{0,2}})"
)
_BREAKS = re.compile(r"\\n|\s")


class Binaries:
    """Lives for one answer. Hands each file over once, whatever parts of the answer repeat it; none of an error."""

    def __init__(self, *, is_error: bool = False) -> None:
        self._is_error = is_error
        self._seen: set[str] = set()
        self._found = 0

    def hand_over(self, data: bytes, mime_type: str, filename: str) -> None:
        """Give a file to the user; an image is shown to the model, too."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._seen:
            self._seen.add(digest)
            emit_artifact(data=data, mime_type=mime_type, filename=filename, shown=mime_type.startswith("image/"))

    def removed(self, value: Any) -> Any:
        """Return the value with a note in the place of each piece of base64."""
        if isinstance(value, str):
            return _RUN.sub(self._note, value) if len(value) >= MIN_CHARS else value
        if isinstance(value, Mapping):
            return {name: self.removed(each) for name, each in value.items()}
        return [self.removed(each) for each in value] if isinstance(value, list) else value

    def _note(self, found: re.Match[str]) -> str:
        data = _decoded(found["data"]) if len(found[0]) >= MIN_CHARS else None
        if data is None:
            return found[0]
        kind = settle_type(data, found["type"] or "")
        if self._is_error or kind == UNKNOWN_TYPE or self._found >= MAX_FILES or len(data) > MAX_ARTIFACT_BYTES:
            return f"(binary data, {len(data)} bytes, is left out)"
        self._found += 1
        filename = with_extension("", kind)
        self.hand_over(data, kind, filename)
        return f"(handed to the user: {filename}, {kind}, {len(data)} bytes)"


def with_extension(filename: str, mime_type: str) -> str:
    """Return a file's name with an extension: platforms and tools go by it."""
    return filename if PurePosixPath(filename).suffix else f"{filename or 'file'}{extension_of(mime_type)}"


def _decoded(text: str) -> bytes | None:
    """Return the bytes of base64; None for a text that only looks like it, such as a hexadecimal number."""
    plain = _BREAKS.sub("", text).replace("-", "+").replace("_", "/")
    has_all = all(re.search(kind, plain) for kind in ("[A-Z]", "[a-z]", "[0-9]"))
    if not has_all or len(plain.rstrip("=")) % 4 == 1:
        return None
    try:
        return base64.b64decode(plain.rstrip("=") + "=" * (-len(plain.rstrip("=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
