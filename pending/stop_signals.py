"""The signals that tell a process to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals on which a process finishes what is in progress and ends.

    SIGHUP comes when the terminal is closed. `nohup` has it ignored, and it stays so.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP


def on_stop_signals(handler: Callable[..., object]) -> None:
    """Call `handler` with each of these signals from now on."""
    for number in stop_signals():
        signal.signal(number, handler)
