"""Threads: a bounded number of daemon threads for blocking functions, such as tools."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

#: Seconds after which a thread that nobody needs ends.
IDLE_SECONDS = 30.0


def _nothing() -> None:
    """Nobody wants to know when it begins."""


@dataclass(slots=True, eq=False)
class Work:
    """Something to run in a thread; it must not raise. `begins` is called there right before.

    `thread` is the one that it began in, `left` says that nobody waits for it any more.
    """

    run: Callable[[], None]
    begins: Callable[[], None] = _nothing
    thread: int | None = None
    over: bool = False
    left: bool = False


class Threads:
    """At most `most` threads, made when they are needed. What finds none waits its turn. Lives as long as its process.

    No ThreadPoolExecutor: Python waits for its threads at exit, so one hung tool would hold the process for ever. What
    nobody waits for any more is logged at `level`.
    """

    def __init__(self, name: str, most: int, *, level: int = logging.WARNING) -> None:
        self._name = name
        self._level = level
        self._most = most
        self._changed = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._threads = self._idle = self._hung = 0

    @property
    def hung(self) -> int:
        """How many functions run that nobody waits for any more."""
        return self._hung

    def start(self, work: Work, *, beyond: bool = False) -> None:
        """Run this as soon as a thread is free; `beyond` the bound at once. RuntimeError: no thread can be had."""
        if beyond:
            work.thread = 0
            threading.Thread(target=self._run, args=(work,), name=f"sayso-{self._name}", daemon=True).start()
            return
        with self._changed:
            self._waiting.append(work)
            if self._idle >= len(self._waiting) or self._threads >= self._most:
                self._changed.notify()
                return
            self._threads += 1
        self._one_more(work)

    def leave(self, work: Work) -> bool:
        """Nobody waits for it any more. What has not begun never will, and the answer is True; what goes on is counted,
        and logged with its stack.
        """
        with self._changed:
            if work.thread is None:
                if work in self._waiting:
                    self._waiting.remove(work)
                return True
            if work.over or work.left:
                return False
            work.left = True
            self._hung += 1
        log.log(
            self._level,
            "%s.left_running",
            self._name,
            extra={"hung": self._hung, "threads": self._most, "stack": stack_of(work.thread)},
        )
        return False

    def _one_more(self, work: Work) -> None:
        try:
            threading.Thread(target=self._serve, name=f"sayso-{self._name}", daemon=True).start()
        except RuntimeError:
            with self._changed:
                self._threads -= 1
                if self._threads:  # it waits its turn
                    return
                self._waiting.remove(work)
            raise

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            self._run(work)

    def _next(self) -> Work | None:
        with self._changed:
            while not self._waiting:
                self._idle += 1
                needed = self._changed.wait(IDLE_SECONDS)
                self._idle -= 1
                if not needed and not self._waiting:
                    self._threads -= 1
                    return None
            work = self._waiting.popleft()
            work.thread = threading.get_ident()
            return work

    def _run(self, work: Work) -> None:
        work.thread = threading.get_ident()
        work.begins()
        work.run()
        work.begins = work.run = _nothing  # whose work it is may hold it: not to be left to the garbage collector
        with self._changed:
            work.over = True
            if work.left:
                self._hung -= 1
        if work.left:
            log.log(self._level, "%s.ended_late", self._name, extra={"hung": self._hung})


def stack_of(thread: int | None) -> str:
    """The lines of code that a thread is at; no values."""
    frame = sys._current_frames().get(thread or 0)  # noqa: SLF001  # there is no other way to see another thread
    return "".join(traceback.format_stack(frame)) if frame else "none yet"
