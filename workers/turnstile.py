"""Turnstile: lets one coroutine through in each round of its event loop, in the order they came.

What many begin in the same round is all under way at once, and its answers have to wait for each other. One a round,
and the answer to the first is dealt with before the last has begun; where answers are slower than that, nobody waits.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turnstile:
    """One instance serves one loop at a time."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def step(self) -> None:
        """Wait for one's turn. Where there is no loop (`sayso.workers.offload.run_here`), there is nobody else."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._loop is not loop:  # nobody is under way; or their loop has ended, and they with it
            self._loop, self._waiting = loop, deque()
            loop.call_soon(self._turn)
            return
        mine = loop.create_future()
        self._waiting.append(mine)
        await mine

    def _turn(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # who gave up takes nobody's turn
                first.set_result(None)
                first.get_loop().call_soon(self._turn)
                return
        self._loop = None
