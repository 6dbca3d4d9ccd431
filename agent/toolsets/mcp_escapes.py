"""Escapes of half a character in the JSON of MCP servers.

JavaScript writes one where a text was cut in the middle of an emoji, and the SDK refuses the whole
message for it: all tools for one description, or the result of a call.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

#: Both halves of a character, one half alone, and every other escape. They are found from left to
#: right, so that an escaped backslash is no beginning of another escape.
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
#: An escape at the end of a chunk that the next chunk may continue, and its most bytes.
_UNFINISHED = re.compile(
    rb"\\(?:u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?))?\Z"
)
_MOST_UNFINISHED = 11
#: The escape of the character that stands for an unreadable one.
_REPLACEMENT = rb"\ufffd"


def without_half_characters(json_text: bytes) -> bytes:
    """Return JSON in which each escape of half a character is one of U+FFFD."""
    if not _HALF.search(json_text):
        return json_text
    return _ESCAPE.sub(lambda escape: _REPLACEMENT if escape[1] else escape[0], json_text)


async def chunks_without_half_characters(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield chunks of JSON, or of events with JSON, as they arrive.

    Only an escape that is not finished waits.
    """
    held = b""
    async for chunk in chunks:
        arrived = held + chunk
        end = _end_of_whole_escapes(arrived)
        held = arrived[end:]
        if end:
            yield without_half_characters(arrived[:end])
    if held:
        yield without_half_characters(held)


def _end_of_whole_escapes(chunk: bytes) -> int:
    unfinished = _UNFINISHED.search(chunk, max(0, len(chunk) - _MOST_UNFINISHED))
    if unfinished is None:
        return len(chunk)
    before = chunk[: unfinished.start()]
    backslashes = len(before) - len(before.rstrip(b"\\"))
    is_escaped = backslashes % 2 == 1  # the backslash belongs to the one before it
    if is_escaped:
        return len(chunk)
    return unfinished.start()
