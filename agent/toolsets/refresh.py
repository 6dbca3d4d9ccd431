"""ToolsetRefresher: opens remote sources of tools, and lists their tools again when they change.

A remote source is an MCP server or an OpenAPI document with a URL. It may be out of reach, and its
tools may change while the bot runs.
"""

from __future__ import annotations

import asyncio
import contextlib
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
#: Pause after the first listing in a row, in seconds. It doubles with each further listing, see
#: `ListingPauses`.
FIRST_PAUSE_SECONDS = 1.0
#: Longest pause between two listings, in seconds.
LONGEST_PAUSE_SECONDS = 60.0
#: How long a source must have worked without a change, in seconds, for its next listing to count as
#: the first one in a row.
STABLE_SECONDS = 60.0
#: The receiver of tools. It gets the id of a source and all its present tools, on the thread of the
#: refresher, and offers them in place of the earlier tools of this source.
#:
#: Two sources may not offer tools of the same name. The receiver decides which source keeps its
#: tools; the other source loses all of them. If the new source loses, the receiver changes nothing
#: and raises ToolError. If other sources lose, it returns why, by their ids; None or {} if no
#: source lost. The ids are those of sources of this refresher. `ToolRegistry.replace_source` is
#: such a receiver.
OnTools = Callable[[str, list[Tool]], Mapping[str, str] | None]


@dataclass(frozen=True, slots=True)
class LiveSource:
    """One remote source of tools."""

    #: Names the source for the receiver of its tools.
    id: str
    #: Names the source in logs.
    name: str
    #: It may have what this module reads with `getattr`: the methods `watch` and `close`, and the
    #: attributes `left_out`, `missing` and `listed_names`.
    provider: ToolProviderProtocol
    #: It is put before the names of the tools; "" for none.
    namespace: str = ""
    #: Which of the tools need a confirmation.
    confirm: Confirm = "hints"


class ListingPauses:
    """Counts the listings of one source in a row, and returns the pause after each.

    The pause doubles after each listing, so a source that fails, or that changes all the time, is
    listed rarely. A source that worked for STABLE_SECONDS begins a new row.
    """

    def __init__(self) -> None:
        #: The listings of this row.
        self._listings = 0

    def after_failure(self) -> float:
        """Return the seconds to wait after a listing that failed."""
        self._listings += 1
        return self._pause()

    def after_change(self, seconds: float) -> float:
        """Return the seconds to wait when a source has changed, `seconds` after it was listed.

        These seconds count as part of the pause, so a rare change is listed at once.
        """
        if seconds >= STABLE_SECONDS:
            self._listings = 0
            return 0.0
        self._listings += 1
        return max(0.0, self._pause() - seconds)

    def _pause(self) -> float:
        return backoff_seconds(
            self._listings, first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS
        )


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
        #: Why sources lost their tools to other sources, by id, until they have tools again. `open`
        #: returns it. A later loss is logged, because the next listing of the loser is refused.
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
        """Return why tools of the last listing are not offered, by source id and tool name."""
        left_out: dict[str, Mapping[str, str]] = {}
        for source in self._sources:
            left_out[source.id] = dict(getattr(source.provider, "left_out", {}))
        return left_out

    def missing(self) -> dict[str, Mapping[str, str]]:
        """Return why tools are offered without some parameters, by source id and tool name."""
        missing: dict[str, Mapping[str, str]] = {}
        for source in self._sources:
            missing[source.id] = dict(getattr(source.provider, "missing", {}))
        return missing

    def listed_names(self) -> dict[str, tuple[str, ...]]:
        """Return the names that sources give to the tools of their last listing, by source id."""
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
        # First the watchers: they would list a source again, and so open its connection again.
        thread.close()

        # In one thread a source, so that a server that ends slowly delays none of the others. Each
        # source limits the time that its `close` takes.
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

        def note_change() -> None:
            # The source calls this in any thread. It may still do so when this loop is closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(changed.set)

        pauses = ListingPauses()
        was_listed = False
        self._list_again[source.id] = changed.set
        while True:
            started_at = time.monotonic()
            # Cleared before the listing, since a change during it must not be missed.
            changed.clear()
            error = await self._list(source, note_change)

            # One warning for a row of failures. A failure of the first listing is not logged here:
            # `first_result` reports it.
            if error and was_listed:
                log.warning("source.unreachable", extra={"source": source.name, "why": error})
            was_listed = not error
            if not first_result.done():
                first_result.set_result(error)

            if error:
                pause = pauses.after_failure()
            else:
                await changed.wait()
                pause = pauses.after_change(time.monotonic() - started_at)
            await asyncio.sleep(pause)

    async def _list(self, source: LiveSource, changed: Callable[[], object]) -> str:
        """List a source's tools and pass them on. Return why that failed, or "".

        It fails if the source does not answer, or if the receiver refuses the tools. The source
        calls `changed` later, when it has other tools.
        """
        watch: Callable[[Callable[[], object]], object] = getattr(
            source.provider, "watch", lambda _: None
        )
        try:
            # In each attempt, because it may fail too. The source keeps only the last function.
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
            # The code of a source may have bugs, and must not stop the other sources. It may even
            # raise a CancelledError itself; only one that is meant for this task passes.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            log.exception("source.failed", extra={"source": source.name})
            return type(exc).__name__

        self._losses.pop(source.id, None)
        for loser, why in losses.items():
            self._losses[loser] = why
            # Then the loser is told why it has no tools: the receiver refuses this listing. As
            # after any failure it is tried again, so the loser has tools when the names are free.
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
