"""Working: a tool that takes as long as its argument says, so that a turn waits and costs nothing."""

from __future__ import annotations

import asyncio

from sayso.agent import tool


@tool(description="Wait, then say so")
async def work(seconds: float) -> str:
    """Wait for this many seconds."""
    await asyncio.sleep(seconds)
    return "worked"
