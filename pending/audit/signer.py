"""Signer: the MAC over what was drained, which nobody makes without the deployment's key."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence


class Signer:
    """Signs with the first key and accepts any. Its keys are of its own: nothing signed here passes for a record."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys or not all(keys):
            raise ValueError("no secret key: set SAYSO_SECRET_KEYS, or start once with a writable data folder")
        self._keys = [hashlib.sha256(f"sayso.audit\0{key}".encode()).digest() for key in keys]

    def sign(self, *parts: str | int | bool | None) -> str:
        """The MAC over these parts, in hex."""
        return _mac(self._keys[0], parts)

    def verify(self, sig: str, *parts: str | int | bool | None) -> bool:
        """Whether `sig` is one of ours over exactly these parts."""
        return any(hmac.compare_digest(_mac(key, parts).encode(), sig.encode()) for key in self._keys)


def _mac(key: bytes, parts: Sequence[str | int | bool | None]) -> str:
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()
