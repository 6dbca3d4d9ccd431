"""Narrowing: asks a selector, and holds it to its promises, whatever it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from sayso.agent.messages import Message
from sayso.agent.selectors.protocol import ToolSelector
from sayso.agent.tools.tool import Tool

log = logging.getLogger(__name__)

#: Seconds that a selector may take. One that asks others has `select_seconds` of its own: None, for as long as they do.
SELECT_SECONDS = 30.0


async def narrow(selector: ToolSelector, messages: Iterable[Message], tools: Iterable[Tool]) -> list[Tool]:
    """The given tools that the selector chose, in the order given; a tool it was not given stays out. Never raises.

    A selector that fails, or takes more than SELECT_SECONDS, shows nothing: who may see what is not for an error to
    widen. One that only keeps noise away catches its errors itself, or is wrapped in `FailOpen`.
    """
    given = list(tools)
    try:
        return await chosen(selector, messages, given)
    except (Exception, SystemExit):  # a selector may be anybody's code, and the turn must be answered
        advice = "no tool is shown while it fails: mend it, or wrap it in FailOpen if it restricts nobody"
        log.warning("selector.failed", exc_info=True, extra={"selector": type(selector).__name__, "advice": advice})
        return []


async def chosen(selector: ToolSelector, messages: Iterable[Message], given: list[Tool]) -> list[Tool]:
    """As `narrow`, but raises what the selector raises, TimeoutError, and any error over what is no list of tools."""
    async with asyncio.timeout(getattr(selector, "select_seconds", SELECT_SECONDS)):
        names = {tool.name for tool in await selector.select(list(messages), list(given))}
    return [tool for tool in given if tool.name in names]
