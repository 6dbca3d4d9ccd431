"""Thinking: a tool that takes as long as a model would, so that a turn waits and costs nothing."""

from __future__ import annotations

import asyncio

from agent import tool


@tool(description="Wait, then say so")
async def think(seconds: float) -> str:
    """Wait for so many seconds."""
    await asyncio.sleep(seconds)
    return "thought"
