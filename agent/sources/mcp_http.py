"""Capped: an HTTP client for MCP that reads no more of one answer than it should."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

#: Bytes of one answer, or of one stream of events before it is opened again.
MAX_ANSWER_BYTES = 50_000_000
#: Seconds to connect, and to send. How long an answer may take is not decided here: a stream may be silent for long.
SEND_SECONDS = 30.0


def capped_client(
    headers: Mapping[str, str], look: Callable[[Any], Awaitable[None]], max_bytes: int = MAX_ANSWER_BYTES
) -> httpx2.AsyncClient:
    """A client with these headers; `look` sees each response before its body is read."""
    import httpx2

    class Counted(httpx2.AsyncByteStream):
        """Another stream, which breaks when it grows too long."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                size += len(chunk)
                if size > max_bytes:
                    raise httpx2.ReadError(f"more than {max_bytes} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def cap(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("compressed, which was not asked for: it may be any size")
        response.stream = Counted(response.stream)

    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        timeout=httpx2.Timeout(SEND_SECONDS, read=None),
        event_hooks={"response": [look, cap]},
    )
