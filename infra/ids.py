"""Ids and secrets that cannot be guessed."""

from __future__ import annotations

import secrets


def random_id(size: int = 16) -> str:
    """Return `size` random bytes as hexadecimal digits: a unique id that cannot be guessed."""
    return secrets.token_hex(size)
