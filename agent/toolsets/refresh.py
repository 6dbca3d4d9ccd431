"""ToolsetRefresher: opens remote sources of tools, and lists their tools again when they change.

A remote source is an MCP server or an OpenAPI document with a URL. It may be out of reach, and its
tools may change while the bot runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.base import Confirm, ToolProviderProtocol, runnable_tools
from sayso.infra.backoff import backoff_seconds
from sayso.infra.threads import LoopThread

log = logging.getLogger(__name__)
#: Pause before a source that failed is tried again, in seconds; it doubles each time.
FIRST_PAUSE_SECONDS = 1.0
#: Longest pause between two attempts, in seconds.
LONGEST_PAUSE_SECONDS = 60.0
#: How long a source must have worked for its next failure to count as the first one, in seconds.
STABLE_SECONDS = 60.0
#: Receives the id of a source and its present tools, on the thread of the refresher.
#:
#: A source may take names that tools of other sources had. The function returns why other sources
#: lost their tools in this way, by their ids, and these sources are listed again; None for no
#: source. It may raise ToolError, if it has changed nothing.
OnTools = Callable[[str, list[Tool]], Mapping[str, str] | None]


@dataclass(frozen=True, slots=True)
class LiveSource:
    """One remote source of tools."""

    #: Names the source for the receiver of its tools.
    id: str
    #: Names the source in logs.
    name: str
    provider: ToolProviderProtocol
    #: It is put before the names of the tools; "" for none.
    namespace: str = ""
    #: Which of the tools need a confirmation.
    confirm: Confirm = "hints"


class ToolsetRefresher:
    """Keeps the tools of remote sources up to date. One per process, from `open` to `close`.

    A source that cannot be reached never stops the others: it is tried again and again. A source
    that cannot be reached any more keeps its tools; their calls fail with the reason.
    """

    def __init__(self, sources: Sequence[LiveSource], on_tools: OnTools) -> None:
        self._sources = sources
        self._on_tools = on_tools
        #: Runs a watcher for each source; None before `open` and after `close`.
        self._thread: LoopThread | None = None
        #: A function for each source, by id, that makes it list its tools again.
        self._list_again: dict[str, Callable[[], object]] = {}
        #: Why sources lost their tools to other sources, by id, until they are listed again.
        self._losses: dict[str, str] = {}

    def open(self, seconds: float) -> dict[str, str]:
        """Start, and wait at most `seconds` until the tools of each source are listed or it failed.

        Return why sources failed, by their ids. They are tried again in the background.
        """
        self._thread = LoopThread(asyncio.new_event_loop(), "sayso-sources")
        first_results = {source.id: Future[str]() for source in self._sources}
        for source in self._sources:
            self._thread.submit(self._watch(source, first_results[source.id]))
        wait(first_results.values(), timeout=seconds)

        errors: dict[str, str] = {}
        for source_id, first_result in first_results.items():
            error = f"gave no answer within {seconds:g} s"
            if first_result.done():
                error = first_result.result()
            if error:
                errors[source_id] = error
        return errors | self._losses

    def left_out(self) -> dict[str, Mapping[str, str]]:
        """Return why tools of the last listing cannot be used, by source id and the tool's name."""
        left_out: dict[str, Mapping[str, str]] = {}
        for source in self._sources:
            left_out[source.id] = dict(getattr(source.provider, "left_out", {}))
        return left_out

    def missing(self) -> dict[str, Mapping[str, str]]:
        """Return why offered tools lack parameters, by source id and the tool's name."""
        missing: dict[str, Mapping[str, str]] = {}
        for source in self._sources:
            missing[source.id] = dict(getattr(source.provider, "missing", {}))
        return missing

    def listed_names(self) -> dict[str, tuple[str, ...]]:
        """Return the source's names of all tools in its last listing, by source id."""
        names: dict[str, tuple[str, ...]] = {}
        for source in self._sources:
            names[source.id] = tuple(getattr(source.provider, "listed_names", ()))
        return names

    def close(self) -> None:
        """Stop, and close all sources. Idempotent."""
        thread = self._thread
        self._thread = None
        if thread is None:
            return
        thread.close()

        # In one thread a source, so that a server that does not end delays none of the others.
        closers = []
        for source in self._sources:
            closer = threading.Thread(target=_close, args=(source,), daemon=True)
            closers.append(closer)
            closer.start()
        for closer in closers:
            closer.join()

    async def _watch(self, source: LiveSource, first_result: Future[str]) -> None:
        """Pass a source's tools on whenever they change; after a failure, try again after a pause.

        Runs until the thread is closed. `first_result` is set after the first listing: to "" for a
        success, or to why it failed.
        """
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        # How many listings in a row came within STABLE_SECONDS of the one before, whether they
        # succeeded or failed.
        quick_listings = 0
        is_reachable = False
        self._list_again[source.id] = changed.set
        while True:
            started_at = time.monotonic()
            # Cleared before the listing, since a change during it must not be missed.
            changed.clear()
            error = await self._list(source, lambda: loop.call_soon_threadsafe(changed.set))

            # One warning when a source is lost. `first_result` reports one that was never reached.
            if error and is_reachable:
                log.warning("source.unreachable", extra={"source": source.name, "why": error})
            is_reachable = not error
            if not first_result.done():
                first_result.set_result(error)
            if not error:
                await changed.wait()

            seconds = time.monotonic() - started_at
            quick_listings += 1
            if seconds >= STABLE_SECONDS:
                quick_listings = 1
            pause = backoff_seconds(
                quick_listings,
                first=FIRST_PAUSE_SECONDS,
                longest=LONGEST_PAUSE_SECONDS,
            )
            # After a success, the pause counts from the last listing: a first change is listed at
            # once, and a source that changes all the time is listed rarely.
            if not error:
                pause = max(0.0, pause - seconds)
            await asyncio.sleep(pause)

    async def _list(self, source: LiveSource, changed: Callable[[], object]) -> str:
        """List a source's tools and pass them on. Return why that failed, or "".

        The source calls `changed` later, when it has other tools.
        """
        watch: Callable[[Callable[[], object]], object] = getattr(
            source.provider, "watch", lambda _: None
        )
        try:
            watch(changed)
            tools = runnable_tools(
                source.provider,
                await source.provider.list_tools(),
                source.namespace,
                source.confirm,
            )
            losses = self._on_tools(source.id, tools) or {}
        except ToolError as exc:
            return str(exc) or type(exc).__name__
        except (Exception, asyncio.CancelledError) as exc:
            # A source is third-party code, and must not stop the others. It may even raise a
            # CancelledError itself; only one that is meant for this task passes.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            log.exception("source.failed", extra={"source": source.name})
            return type(exc).__name__

        self._losses.pop(source.id, None)
        for loser, why in losses.items():
            self._losses[loser] = why
            # The receiver refuses that listing, and it is tried again until the names are free.
            self._list_again[loser]()
        log.info("source.listed", extra={"source": source.name, "tools": len(tools)})
        return ""


def _close(source: LiveSource) -> None:
    """Close a source, if it can be closed. Raises nothing."""
    close: Callable[[], object] = getattr(source.provider, "close", lambda: None)
    try:
        close()
    except Exception:  # a source is third-party code: it must not hold the others
        log.exception("source.failed", extra={"source": source.name})
