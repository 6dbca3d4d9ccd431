"""Fixtures of the channel agent tests: a whole bot, in memory and on Redis."""

from __future__ import annotations

from tests.workers.conftest import make_bot

__all__ = ["make_bot"]
