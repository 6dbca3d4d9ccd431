r"""Mends escapes of half a character in the JSON that MCP servers send.

JSON writes an emoji as two escapes, such as `\ud83d\ude00`. If a text was cut between them,
JavaScript sends one half alone, and the SDK refuses the whole message because of it: the list of
all tools for one description, or the result of a call. Here such a half becomes U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

#: Both halves of a character, one half alone (the group), and every other escape. Every escape must
#: match, so that the second backslash of an escaped backslash does not begin an escape.
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\."
)
#: The beginning of any half, to find texts without one at once.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
#: An escape at the end of a chunk that the next chunk may continue.
_UNFINISHED = re.compile(
    rb"\\(?:u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?))?\Z"
)
#: The length of the longest unfinished escape, in bytes.
_MOST_UNFINISHED = 11
#: The escape of the character that stands for an unreadable one.
_REPLACEMENT = rb"\ufffd"


def without_half_characters(json_text: bytes) -> bytes:
    """Return the JSON with U+FFFD in the place of each half of a character."""
    # Most texts have none, and are not copied.
    if not _HALF.search(json_text):
        return json_text
    return _ESCAPE.sub(lambda escape: _REPLACEMENT if escape[1] else escape[0], json_text)


async def chunks_without_half_characters(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield chunks of JSON, or of events with JSON, as they arrive, each mended.

    An escape that a chunk leaves unfinished waits for the next chunk.
    """
    unfinished = b""
    async for chunk in chunks:
        arrived = unfinished + chunk
        end = _end_of_whole_escapes(arrived)
        unfinished = arrived[end:]
        if end:
            yield without_half_characters(arrived[:end])
    if unfinished:
        yield without_half_characters(unfinished)


def _end_of_whole_escapes(chunk: bytes) -> int:
    """Return where an unfinished escape at the end of a chunk begins, else the chunk's length."""
    unfinished = _UNFINISHED.search(chunk, max(0, len(chunk) - _MOST_UNFINISHED))
    if unfinished is None:
        return len(chunk)
    # After an odd number of backslashes, this one belongs to the one before it: no escape begins.
    before = chunk[: unfinished.start()]
    backslashes = len(before) - len(before.rstrip(b"\\"))
    if backslashes % 2 == 1:
        return len(chunk)
    return unfinished.start()
