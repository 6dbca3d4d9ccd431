"""One call: from the policy's word to what the model is told."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from sayso.agent.approval import RefusedError, confirmed
from sayso.agent.chronicle import place_of
from sayso.agent.config import AgentConfig
from sayso.agent.journal import UNCLEAR, CallOutcome, digest
from sayso.agent.messages import ToolCall
from sayso.agent.policy import PolicyDecision
from sayso.agent.result_cache import cache_key, recalled
from sayso.agent.swift import swift
from sayso.agent.tools.checked import Checked
from sayso.agent.tools.errors import EffectUnknownError, ToolError, ToolParameterError
from sayso.agent.tools.results import shown
from sayso.agent.tools.tool import Tool
from sayso.agent.tools.values import ChunkCallback, serialise
from sayso.pending.proposals import asked_preview, in_channel_run
from sayso.pending.results import PendingConfirmation
from sayso.pending.unseen import readable
from sayso.workers.offload import in_thread, within

log = logging.getLogger(__name__)


@swift
@dataclass(frozen=True, slots=True)
class Asked:
    """A call that can be made: its tool, its arguments, and the policy's word on it."""

    call: ToolCall
    tool: Tool
    checked: Checked
    decision: PolicyDecision


@swift
@dataclass(frozen=True, slots=True)
class Ran:
    """What a call came to; the tool's own words where they may be summarised, and the key they may be cached under;
    or what went wrong.
    """

    outcome: CallOutcome
    raw: str | None = None
    key: str = ""
    error: Exception | None = None


async def run_call(asked: Asked, config: AgentConfig, chunk_callback: ChunkCallback | None = None) -> Ran:
    """Run one call. What goes wrong is told to the model, which can correct itself; nothing is raised."""
    try:
        return await _gated(asked, config, chunk_callback)
    except RefusedError as exc:
        return Ran(CallOutcome(asked.call, f"Error: {exc}"), error=exc)
    except EffectUnknownError as exc:
        return Ran(await _unclear(asked, f"Error: {exc}"), error=exc)
    except ToolError as exc:
        words = str(exc) if str(exc).startswith("Error ") else f"Error: {exc}"
        return Ran(said(asked.call, await shown(asked.tool, words), words), error=exc)


async def _unclear(asked: Asked, words: str) -> CallOutcome:
    """What was asked of somebody else and never answered: the person hears of it, and it is not asked twice."""
    if asked.tool.repeatable:
        return said(asked.call, await shown(asked.tool, words), words)
    outcome = said(asked.call, f"{await shown(asked.tool, words)}\n{UNCLEAR}", words)
    return replace(outcome, unclear=True)


async def _gated(asked: Asked, config: AgentConfig, chunk_callback: ChunkCallback | None) -> Ran:
    """What the tool, or its proposal, came to, once the policy has spoken."""
    tool, decision = asked.tool, asked.decision
    if decision.decision == "deny":
        raise RefusedError(f"{tool.name!r} is denied: {decision.reason}")
    if decision.decision == "allow":
        return await _ran_or_cached(asked, config, chunk_callback)
    if in_channel_run():
        return Ran(await _proposed(asked, await _asked_for(asked, config)))
    approved, params = _shown_to_person(asked)
    await confirmed(tool, approved, decision.reason, config)
    return await _ran(asked, config, chunk_callback, params=params)


async def _asked_for(asked: Asked, config: AgentConfig) -> Any:
    """The proposal of a call. A preview has the time that its tool has; one that comes later asks for nothing."""
    tool, limits = asked.tool, (config.tool_timeout_seconds, asked.tool.metadata.timeout)
    limit = within(min((seconds for seconds in limits if seconds is not None), default=None))
    try:
        async with limit:
            draft = await in_thread(lambda: tool.draft(asked.call.parameters))
    except TimeoutError as exc:
        raise RefusedError(f"the preview of {tool.name!r} took too long: nothing was asked for") from exc
    return draft.propose(asked.decision.reason)


def _shown_to_person(asked: Asked) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The arguments that a person approves, and those to run with: the same, also of defaults that are made up anew at
    each call. What JSON does not keep, such as a secret, runs as it was given.
    """
    try:
        exact = asked.tool.validate_record(asked.call.parameters)
        return deepcopy(exact), exact
    except ToolParameterError:
        return asked.checked.json, asked.call.parameters


async def _ran_or_cached(asked: Asked, config: AgentConfig, chunk_callback: ChunkCallback | None) -> Ran:
    """What an earlier run came to, if it is kept. Whether it ends the run, its own words decide."""
    cache = config.tool.cache
    key = cache_key(asked.tool, asked.checked.json) if cache is not None else ""
    if cache is None or not key:
        return await _ran(asked, config, chunk_callback)
    hit = await recalled(cache, key)
    if hit is None:
        return await _ran(asked, config, chunk_callback, key)
    outcome = await _result(asked, hit.raw, config)
    if not hit.compressed or outcome.ends or not config.tool.compress_results:
        return Ran(outcome)
    content = await shown(asked.tool, hit.raw, summary=hit.compressed, mark=hit.mark)
    return Ran(said(asked.call, content, hit.raw))


async def _ran(
    asked: Asked,
    config: AgentConfig,
    chunk_callback: ChunkCallback | None,
    key: str = "",
    *,
    params: Mapping[str, Any] | None = None,
) -> Ran:
    """Run the tool. Only a tool that really ran can end the run with its result."""
    if params is None:
        value = await timed(asked.call, asked.tool, config, chunk_callback, checked=asked.checked)
    else:
        value = await timed(replace(asked.call, parameters=dict(params)), asked.tool, config, chunk_callback)
    if isinstance(value, PendingConfirmation):
        return Ran(await _proposed(asked, value))
    raw = serialise(value)
    return Ran(await _result(asked, raw, config), raw, key)


async def timed(
    call: ToolCall,
    tool: Tool,
    config: AgentConfig,
    chunk_callback: ChunkCallback | None = None,
    *,
    checked: Checked | None = None,
) -> Any:
    """The tool's own value. Of its own time limit and the agent's, the shorter one holds."""
    seconds = config.tool_timeout_seconds
    if seconds is None:
        return await tool.ainvoke(call.parameters, chunk_callback, checked=checked)
    try:
        async with within(seconds):
            return await tool.ainvoke(call.parameters, chunk_callback, checked=checked)
    except TimeoutError as exc:
        raise RefusedError(
            f"Tool {tool.name!r} timed out: it gave no result within {seconds} seconds; it may still be running"
        ) from exc


async def _result(asked: Asked, raw: str, config: AgentConfig) -> CallOutcome:
    """What the tool gave, and whether the run ends with it. The stop condition sees it before screening."""
    ends = _stops(config, asked.tool.name, raw) or asked.tool.terminal
    outcome = said(asked.call, await shown(asked.tool, raw, whole=ends), raw)
    return replace(outcome, ends="terminal", closing=outcome.content) if ends else outcome


def _stops(config: AgentConfig, name: str, raw: str) -> bool:
    """One that fails stops nothing: the tool has acted, and its result must not be lost."""
    try:
        return config.stop_condition is not None and bool(config.stop_condition(name, raw))
    except Exception as exc:  # noqa: BLE001  # its words may quote the result: only its kind and its place are told
        log.warning(
            "agent.stop_condition_failed", extra={"tool": name, "reason": type(exc).__name__, "at": place_of(exc)}
        )
        return False


async def _proposed(asked: Asked, value: Any) -> CallOutcome:
    """What a proposal came to: a question for the user, or why there is none."""
    raw = serialise(value)
    outcome = said(asked.call, await shown(asked.tool, raw, whole=True), raw)
    if isinstance(value, PendingConfirmation):
        preview = asked_preview() or value.preview  # what is asked counts, whatever the tool says beside it
        closing = "\n\n".join(filter(None, [preview, readable(value.own_prompt)]))
        return replace(outcome, ends="pending", closing=closing)
    return outcome


def said(call: ToolCall, content: str, raw: str) -> CallOutcome:
    """The outcome of a call, with the text for the model that stands for the tool's own words."""
    return CallOutcome(call, content, raw_digest="" if content == raw else digest(raw))
