"""MissingFeatures: what the Bot API server of a bot does not know.

A bot may use a Bot API server on its own machine, which may be older than Telegram's. Which
features it lacks is learned from its refusals: `TelegramChannel._note_missing_feature` in
`adapter.py` reads them. Each process learns it anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

log = logging.getLogger(__name__)

#: A feature that a Bot API server may lack: rich messages, as Sayso sends them, need 10.2, and
#: disabled buttons 10.3.
Feature = Literal["disabled buttons", "rich messages"]
#: Seconds for which a feature is not used after a refusal. Then a send tries it again, so that an
#: updated server is noticed without a restart. A server that is still old refuses that call.
MISSING_SECONDS = 900.0


class MissingFeatures:
    """The features that the server of one channel refused lately. Lives as long as its channel."""

    def __init__(self, channel: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._channel = channel
        self._clock = clock
        #: When each feature may be tried again, by `clock`.
        self._retry_at: dict[Feature, float] = {}

    def includes(self, feature: Feature) -> bool:
        """Return whether the server has refused the feature in the last MISSING_SECONDS."""
        retry_at = self._retry_at.get(feature)
        return retry_at is not None and self._clock() < retry_at

    def note_refusal(self, feature: Feature) -> None:
        """Note that the server has just refused a feature.

        Several sends may try it at once and all be refused. Only the first one logs a warning.
        """
        if not self.includes(feature):
            extra = {"channel": self._channel, "feature": feature, "seconds": MISSING_SECONDS}
            log.warning("feature.refused", extra=extra)
        self._retry_at[feature] = self._clock() + MISSING_SECONDS
