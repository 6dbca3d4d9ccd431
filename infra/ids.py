"""Ids and secrets that cannot be guessed."""

from __future__ import annotations

import secrets


def random_id(size: int = 16) -> str:
    """Return an id that is unique everywhere and cannot be guessed:
    `size` random bytes as hexadecimal digits.
    """
    return secrets.token_hex(size)
