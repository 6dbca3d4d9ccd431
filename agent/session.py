"""Session: an agent's own conversation, read before a run and saved after it (seed: Persistent Sessions)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from sayso.agent.chronicle import Chronicle
from sayso.agent.memory import ConversationMemory
from sayso.agent.sessions.store import SessionStore
from sayso.workers.offload import offload

log = logging.getLogger(__name__)


class Session:
    """Lives as long as its agent. Runs at the same time share one conversation, so none of them is lost; what another
    process saves meanwhile is written over. Any thread may use it.
    """

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self._store, self._id = store, session_id
        self._runs = 0
        #: What the runs that are under way share, and what this agent knows from the store.
        self._shared: ConversationMemory | None = None
        self._known: ConversationMemory | None = None
        self._counting, self._using = Lock(), Lock()  # nobody waits for the first one while the store is asked

    @contextmanager
    def run(self) -> Iterator[None]:
        """For as long as a run lasts. The first one of several reads the session anew."""
        with self._counting:
            if not self._runs:
                self._shared = None
            self._runs += 1
        try:
            yield
        finally:
            with self._counting:
                self._runs -= 1

    async def load(self, memory: ConversationMemory | None, chronicle: Chronicle) -> ConversationMemory:
        """What the store has, within the limits of `memory`; `memory` itself, or a new one, where it has nothing. What
        came from the store, and has been deleted there or has expired, is not known any more. Raises SessionError.
        """
        shared, is_read = await offload(self._read, memory)
        if is_read:
            count = len(shared.get_history())
            chronicle.note("session_load", summary=f"{count} messages")
            await chronicle.tell("session_load", self._id, count)
        return shared

    async def save(self, memory: ConversationMemory, chronicle: Chronicle) -> None:
        """Save what the conversation is now. The answer is there, and its tools have run: what fails is logged and in
        the trace, and raised to nobody who might ask for the same again.
        """
        try:
            await offload(self._write, memory)
        except Exception as exc:  # noqa: BLE001  # whatever the store raises
            log.error("session.not_saved", extra={"reason": type(exc).__name__})  # its text names people
            chronicle.note("error", error=f"session not saved: {type(exc).__name__}")
            return
        count = len(memory.get_history())
        chronicle.note("session_save", summary=f"{count} messages")
        await chronicle.tell("session_save", self._id, count)

    def forget(self) -> None:
        """Delete it. Blocks, and raises SessionError."""
        with self._using:
            self._store.delete(self._id)
            self._shared = None

    def _read(self, memory: ConversationMemory | None) -> tuple[ConversationMemory, bool]:
        """The conversation, and whether it is from the store."""
        with self._using:
            if self._shared is not None:
                return self._shared, False
            kept = self._store.load(self._id)
            if kept is None:
                self._shared = self._without_store(memory)
            else:
                self._shared = self._known = kept.limited(memory.max_messages, memory.max_tokens) if memory else kept
            return self._shared, kept is not None

    def _without_store(self, memory: ConversationMemory | None) -> ConversationMemory:
        if memory is None:
            return ConversationMemory()
        return ConversationMemory(memory.max_messages, memory.max_tokens) if memory is self._known else memory

    def _write(self, memory: ConversationMemory) -> None:
        """One after the other: the last one to write has seen all there is."""
        with self._using:
            self._store.save(self._id, memory)
            self._known = memory
