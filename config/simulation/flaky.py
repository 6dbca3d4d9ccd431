"""Flaky: platforms that hang up, refuse for a while and break, and remember who did not wait as told."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random

from sayso.channels.fakes.base import Call, Failure

#: How probable each failure is. The two hang-ups stand for timeouts, cut short: before the message was taken, after it.
CHANCES = {"drop": 0.15, "lost": 0.15, "429": 0.10, "503": 0.05}
#: Seconds that the fakes ask to wait for, where they say it: Telegram and Slack.
RETRY_AFTER = 7.0
#: Failures in a row in one chat at most. The pauses between tries double, and after ten a reply is given up.
MOST_IN_A_ROW = 4
#: Who names a chat how.
_CHAT_FIELDS = {"twilio": "To", "telegram": "chat_id", "slack": "channel"}


class Flaky:
    """Asked about every message of every platform, from their servers' threads. `impatient` counts early retries."""

    def __init__(self, chance: Random, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures: Counter[str] = Counter()
        self.impatient = 0
        self._chance, self._clock = chance, clock
        self._lock = threading.Lock()
        self._row: Counter[str] = Counter()
        self._closed_until: dict[str, float] = {}

    def __call__(self, platform: str, call: Call) -> Failure | None:
        """What goes wrong with this message, if anything."""
        fields = call.params
        chat = str(fields.get(_CHAT_FIELDS[platform]) or fields.get("channel_id"))
        with self._lock:
            self.impatient += self._clock() < self._closed_until.pop(chat, 0.0)
            error = self._error() if self._row[chat] < MOST_IN_A_ROW else ""
            self._row[chat] = self._row[chat] + 1 if error else 0
            if error == "429" and platform != "twilio":
                self._closed_until[chat] = self._clock() + RETRY_AFTER
            if not error:
                return None
            self.failures[error] += 1
            return Failure(error)

    def _error(self) -> str:
        drawn = self._chance.random()
        for error, chance in CHANCES.items():
            drawn -= chance
            if drawn < 0:
                return error
        return ""
