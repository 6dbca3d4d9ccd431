"""Signatures: the MAC over a stored action, and the tokens in buttons that only this bot can issue."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sayso.channels.types import Intent, Scope

#: Bytes of MAC in a button token: 96 bits, so that the whole token stays under Telegram's 64 bytes.
BUTTON_MAC_BYTES = 12
_LETTERS: dict[Intent, str] = {"confirm": "y", "cancel": "n", "ignore": "i"}
_INTENTS = {letter: intent for intent, letter in _LETTERS.items()}
#: Version, action id, letter of an intent or number of a choice, and MAC.
_BUTTON_TOKEN = re.compile(r"1([A-Za-z0-9_-]{22})([yni0-9])([A-Za-z0-9_-]{16})")


@dataclass(frozen=True, slots=True)
class ButtonPress:
    """What a genuine button token says: an action, and what to do with it or which choice (0 to 9) was tapped."""

    pending_action_id: str
    intent: Intent | None = None
    choice: int | None = None


class ActionSigner:
    """Signs with the first key and accepts signatures of all keys, so that keys can be rotated while actions wait."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys or not all(keys):
            raise ValueError("no secret key: set SAYSO_SECRET_KEYS, or start once with a writable data folder")
        self._keys = [hashlib.sha256(f"sayso.pending\0{key}".encode()).digest() for key in keys]

    def sign(self, text: str) -> str:
        """Return the MAC over `text`, in hex."""
        return _mac(self._keys[0], text).hex()

    def verify(self, text: str, mac: str) -> bool:
        """Return whether `mac` was made over exactly `text` with one of the keys."""
        given = mac.encode()
        for key in self._keys:  # noqa: SIM110  # a generator costs as much as the MAC
            if hmac.compare_digest(_mac(key, text).hex().encode(), given):
                return True
        return False

    def button_token(self, pending_action_id: str, intent: Intent, scope: Scope) -> str:
        """Return a button's token, at most 64 bytes. It is valid for one action, one intent and one scope."""
        return self._token(pending_action_id, _LETTERS[intent], scope)

    def choice_token(self, pending_action_id: str, choice: int, scope: Scope) -> str:
        """Return the token of the button for a choice, 0 to 9. Raises ValueError for any other number."""
        if choice not in range(10):
            raise ValueError(f"choice {choice!r} has no button: there are ten places, 0 to 9")
        return self._token(pending_action_id, str(choice), scope)

    def _token(self, pending_action_id: str, letter: str, scope: Scope) -> str:
        return f"1{pending_action_id}{letter}{_button_mac(self._keys[0], pending_action_id, letter, scope)}"

    def read_button(self, token: str, scope: Scope) -> ButtonPress | None:
        """Return what a tapped button says, or None when its token was not issued for this scope."""
        parts = split_button_token(token)
        if parts is None:
            return None
        pending_action_id, letter, mac = parts
        is_genuine = any(
            hmac.compare_digest(_button_mac(key, pending_action_id, letter, scope).encode(), mac.encode())
            for key in self._keys
        )
        if not is_genuine:
            return None
        if letter in _INTENTS:
            return ButtonPress(pending_action_id, _INTENTS[letter])
        return ButtonPress(pending_action_id, choice=int(letter))


def split_button_token(token: str) -> tuple[str, str, str] | None:
    """Return action id, letter or number, and MAC of what looks like a button token. Verifies nothing."""
    match = _BUTTON_TOKEN.fullmatch(token)
    return (match[1], match[2], match[3]) if match else None


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, f"pend1\0{text}".encode(), "sha256")


def _button_mac(key: bytes, pending_action_id: str, letter: str, scope: Scope) -> str:
    text = "\0".join(("button", pending_action_id, letter, scope.user_id, scope.conversation.id))
    return base64.urlsafe_b64encode(hmac.digest(key, text.encode(), "sha256")[:BUTTON_MAC_BYTES]).decode()
