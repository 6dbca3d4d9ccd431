"""The keys of decision receipts: Ed25519, derived from the secret keys of the bot.

A person who has the public keys can verify receipts, and cannot make one. The module needs the
library of the extra `receipts`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from sayso.pending.action import derived_keys

#: How many hex digits of the SHA-256 of a public key form its id.
KEY_ID_DIGITS = 32
#: The largest file of public keys that is read, in bytes.
MAX_KEYS_BYTES = 1_000_000
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----[A-Za-z0-9+/=\s]*-----END PUBLIC KEY-----")


class ReceiptSigner:
    """Signs receipts with the first secret key of the bot. One per command.

    The private keys are derived from the secret keys, so every process of the bot has them, and no
    further secret is stored.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        """`keys` are the secret keys, the newest first. Raises ValueError when there is none."""
        seeds = derived_keys(keys, "sayso.receipts")
        self._private_keys = [Ed25519PrivateKey.from_private_bytes(seed) for seed in seeds]

    @property
    def public_keys(self) -> list[PublicKey]:
        """Return the public keys of all secret keys. The key that signs comes first."""
        return [PublicKey(each.public_key()) for each in self._private_keys]

    @property
    def key_id(self) -> str:
        """Return the id of the key that signs."""
        return self.public_keys[0].id

    def sign(self, text: str) -> str:
        """Return the signature over a text, in base64."""
        return base64.b64encode(self._private_keys[0].sign(text.encode())).decode()


class PublicKey:
    """A public key that verifies receipts. Immutable."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key

    @property
    def id(self) -> str:
        """Return the id of the key in receipts: the first digits of its SHA-256, in hex."""
        raw = self._key.public_bytes(Encoding.Raw, PublicFormat.Raw)
        return hashlib.sha256(raw).hexdigest()[:KEY_ID_DIGITS]

    @property
    def pem(self) -> str:
        """Return the key as PEM, with a line end at the end."""
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def verify(self, signature: str, text: str) -> bool:
        """Return whether `signature`, in base64, was made over exactly this text with this key."""
        try:
            signed = base64.b64decode(signature, validate=True)
            self._key.verify(signed, text.encode())
        except (ValueError, InvalidSignature):
            return False
        # Several base64 texts stand for the same bytes. Only one of them is the signature.
        return base64.b64encode(signed).decode() == signature


class KeysUnreadable(Exception):
    """Raised for a file that has no public keys. The message says what is wrong with it."""


def read_public_keys(content: bytes) -> Mapping[str, PublicKey]:
    """Return the public keys in a file, by their ids. Text around the keys is ignored.

    Raises KeysUnreadable for a file without any key, and for a key of another kind.
    """
    if len(content) > MAX_KEYS_BYTES:
        raise KeysUnreadable(f"it has more than {MAX_KEYS_BYTES:,} bytes")
    keys: dict[str, PublicKey] = {}
    for block in _PEM.findall(content):
        try:
            key = load_pem_public_key(block)
        except (ValueError, UnsupportedAlgorithm):
            raise KeysUnreadable("it has a public key that cannot be read") from None
        if not isinstance(key, Ed25519PublicKey):
            raise KeysUnreadable("it has a public key that is no Ed25519 key")
        public_key = PublicKey(key)
        keys[public_key.id] = public_key
    if not keys:
        raise KeysUnreadable("it has no public key: write it with `sayso audit public-key`")
    return keys
