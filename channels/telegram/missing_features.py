"""MissingFeatures: what the Bot API server of a bot does not know.

A bot may use a Bot API server on its own machine, which may be older than Telegram's. Which
features it lacks is learned from its refusals.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

log = logging.getLogger(__name__)

#: A feature that a Bot API server may lack: the blocks of rich messages came with 10.2, disabled
#: buttons with 10.3.
Feature = Literal["disabled buttons", "rich messages"]
#: Seconds for which a feature is not used after a refusal. A refusal costs one call in this time,
#: and a server that is updated is noticed without a restart.
MISSING_SECONDS = 900.0


class MissingFeatures:
    """The features that the server of one channel refused lately. Lives as long as its channel."""

    def __init__(self, channel: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._channel = channel
        self._clock = clock
        #: When each feature may be tried again, by `clock`.
        self._retry_at: dict[Feature, float] = {}

    def __contains__(self, feature: Feature) -> bool:
        """Return whether the server has refused the feature in the last MISSING_SECONDS."""
        return self._clock() < self._retry_at.get(feature, 0.0)

    def note(self, feature: Feature) -> None:
        """Note that the server refused a feature."""
        if feature not in self:
            extra = {"channel": self._channel, "feature": feature, "seconds": MISSING_SECONDS}
            log.warning("feature.refused", extra=extra)
        self._retry_at[feature] = self._clock() + MISSING_SECONDS
