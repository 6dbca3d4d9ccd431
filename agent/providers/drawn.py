"""Drawn: an async stream for sync code, piece by piece."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_END = object()


def drawn(stream: AsyncGenerator[T, None]) -> Iterator[T]:
    """The pieces of the stream, each fetched when it is asked for; also inside a running loop, which then waits too."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as pool:
        runner = asyncio.Runner()

        def wait(step: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
            return pool.submit(lambda: runner.run(step(), context=context)).result()

        try:
            while (piece := wait(lambda: _next(stream))) is not _END:
                yield piece
        finally:
            wait(stream.aclose)
            pool.submit(runner.close).result()


async def _next(stream: AsyncGenerator[T, None]) -> Any:
    return await anext(stream, _END)
