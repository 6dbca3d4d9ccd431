"""Fixtures of the tests of the fake platforms."""

from __future__ import annotations

from tests.channels.conftest import platforms, running

__all__ = ["platforms", "running"]
