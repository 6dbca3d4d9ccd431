"""Seal: the MAC that makes what runs what was shown, and the buttons that only we can mint."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sayso.channels.types import Intent, Scope

#: Bytes of MAC in a button: 96 bits, so that the whole payload stays under Telegram's 64 bytes.
BUTTON_MAC_BYTES = 12
_LETTERS: dict[Intent, str] = {"confirm": "y", "cancel": "n", "ignore": "i"}
_INTENTS = {letter: intent for intent, letter in _LETTERS.items()}
#: What is pressed: an answer, or by its place one of at most ten choices.
_BUTTON = re.compile(r"1([A-Za-z0-9_-]{22})([yni0-9])([A-Za-z0-9_-]{16})")


@dataclass(frozen=True, slots=True)
class ButtonPress:
    """What a genuine button says: which action, and what its user wants done with it; or which of its choices it is."""

    pending_action_id: str
    intent: Intent | None = None
    choice: int | None = None


class ActionSigner:
    """Signs with the first key and accepts any, so that keys rotate without disarming what waits."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys or not all(keys):
            raise ValueError("no secret key: set SAYSO_SECRET_KEYS, or start once with a writable data folder")
        self._keys = [hashlib.sha256(f"sayso.pending\0{key}".encode()).digest() for key in keys]

    def sign(self, text: str) -> str:
        """The MAC over `text`, in hex."""
        return _mac(self._keys[0], text).hex()

    def verify(self, text: str, mac: str) -> bool:
        """Whether `mac` is one of ours over exactly `text`."""
        given = mac.encode()
        for key in self._keys:  # noqa: SIM110  # a generator costs as much as the MAC
            if hmac.compare_digest(_mac(key, text).hex().encode(), given):
                return True
        return False

    def mint(self, pending_action_id: str, intent: Intent, scope: Scope) -> str:
        """A button's payload, at most 64 bytes: it works for one action, one intent and one person in one place."""
        return self._minted(pending_action_id, _LETTERS[intent], scope)

    def mint_choice(self, pending_action_id: str, choice: int, scope: Scope) -> str:
        """As `mint`, for the choice at this place, 0 to 9. Raises ValueError for any other."""
        if choice not in range(10):
            raise ValueError(f"choice {choice!r} has no button: there are ten places, 0 to 9")
        return self._minted(pending_action_id, str(choice), scope)

    def read(self, data: str, scope: Scope) -> ButtonPress | None:
        """What a tapped payload says, or None when we did not mint it for this scope."""
        parts = split_button(data)
        if parts is None:
            return None
        pending_action_id, letter, mac = parts
        genuine = any(
            hmac.compare_digest(_button_mac(key, pending_action_id, letter, scope).encode(), mac.encode())
            for key in self._keys
        )
        if not genuine:
            return None
        if letter in _INTENTS:
            return ButtonPress(pending_action_id, _INTENTS[letter])
        return ButtonPress(pending_action_id, choice=int(letter))

    def _minted(self, pending_action_id: str, letter: str, scope: Scope) -> str:
        return f"1{pending_action_id}{letter}{_button_mac(self._keys[0], pending_action_id, letter, scope)}"


def split_button(data: str) -> tuple[str, str, str] | None:
    """Action id, letter or place, and MAC of something that looks like our payload. Proves nothing by itself."""
    match = _BUTTON.fullmatch(data)
    return (match[1], match[2], match[3]) if match else None


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, f"pend1\0{text}".encode(), "sha256")


def _button_mac(key: bytes, pending_action_id: str, letter: str, scope: Scope) -> str:
    text = "\0".join(("button", pending_action_id, letter, scope.user_id, scope.conversation.id))
    return base64.urlsafe_b64encode(hmac.digest(key, text.encode(), "sha256")[:BUTTON_MAC_BYTES]).decode()
