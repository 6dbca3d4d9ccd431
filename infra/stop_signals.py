"""The signals that tell a process to stop.

SIGTERM and SIGHUP stop gracefully: what is in progress gets its time. SIGINT comes from a person
who pressed Ctrl-C and waits: a process tells them that it stops, and ends within two seconds. A
turn that is cut off continues at the next start.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

#: Seconds after Ctrl-C in which a process may finish its work.
INTERRUPTED_SECONDS = 0.3
#: Seconds after Ctrl-C when a process that has not ended is killed by the one that started it.
KILL_SECONDS = 1.2
#: What a person reads after Ctrl-C.
STOPPING = "Stopping. An answer in progress continues at the next start."
#: Set in the environment of processes whose parent says that it stops.
SUPERVISED = "SAYSO_SUPERVISED"


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals on which a process finishes what is in progress and ends.

    SIGHUP comes when the terminal is closed. It is left out if it is ignored, as under `nohup`.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP


def on_stop_signals(handler: Callable[..., object]) -> None:
    """Call `handler` with each of these signals from now on."""
    for number in stop_signals():
        signal.signal(number, handler)


def delay_interrupts() -> None:
    """Let SIGINT wait until this process calls `accept_interrupts`.

    Call it in a child process, before it executes Python. Until a new Python process has a handler
    of ours, SIGINT would print a traceback.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def accept_interrupts() -> None:
    """Let SIGINT come from now on, also one that has waited."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def say_stopping(number: int) -> None:
    """Tell the person who pressed Ctrl-C that the process stops. Safe in a signal handler."""
    if number == signal.SIGINT and SUPERVISED not in os.environ:
        with contextlib.suppress(OSError):
            os.write(2, f"\n{STOPPING}\n".encode())
