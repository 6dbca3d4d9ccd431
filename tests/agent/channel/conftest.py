"""Fixtures of the channel agent tests: a whole bot."""

from __future__ import annotations

from tests.workers.conftest import make_bot

__all__ = ["make_bot"]
