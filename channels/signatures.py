"""Signatures: whether a webhook was signed with our secret, by the rules of each platform.

Their SDKs decide the same; the tests compare. On a webhook's path they cost several times the hash itself.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

#: Seconds by which Slack's timestamp may differ from our clock: an older request may be somebody's recording.
SLACK_SECONDS = 300
#: The header that Twilio adds for accounts with shared keys: `key=<id>,algorithm=<name>`.
TWILIO_SETTINGS = "x-twilio-webhooks-signature-settings"

_HASHES = {"HMAC_SHA1": "sha1", "HMAC_SHA256": "sha256"}


def slack_signed(secret: str, timestamp: str, body: bytes, signature: str, *, now: float) -> bool:
    """Whether Slack signed this body lately; `now` is Unix seconds. Raises ValueError for a timestamp that is none."""
    if abs(int(now) - int(timestamp)) > SLACK_SECONDS:  # whole numbers: a float has no room for what strangers write
        return False
    digest = hmac.digest(secret.encode(), b"v0:%b:%b" % (timestamp.encode(), body), "sha256")
    return hmac.compare_digest(b"v0=" + digest.hex().encode(), signature.encode())


def twilio_signed(token: str, url: str, form: Mapping[str, Sequence[str]], signature: str, settings: str = "") -> bool:
    """Whether Twilio signed this form for this URL. `settings` is the header of that name.

    It signs the URL with its port or without, so both are good. Raises ValueError for a URL that is none.
    """
    name = _HASHES.get(_algorithm(settings).upper())
    if name is None:
        return False
    fields = "".join([key + value for key in sorted(form) for value in sorted(set(form[key]))])
    given = signature.encode()
    return any(hmac.compare_digest(_signature(token, words + fields, name), given) for words in _spellings(url))


def _signature(token: str, words: str, name: str) -> bytes:
    return base64.b64encode(hmac.digest(token.encode(), words.encode(), name))


def _algorithm(settings: str) -> str:
    named = (part.partition("=") for part in settings.split(","))
    return next(
        (value.strip() for name, _, value in named if name.strip() == "algorithm" and value.strip()), "HMAC_SHA1"
    )


@lru_cache(maxsize=64)
def _spellings(url: str) -> Iterable[str]:
    """The URL without its port, then with it."""
    parts = urlsplit(url)
    host, port = parts.netloc.split(":")[0], parts.port
    if port:
        return parts._replace(netloc=host).geturl(), parts.geturl()
    default = 443 if parts.scheme == "https" else 80
    return parts.geturl(), parts._replace(netloc=f"{parts.netloc}:{default}").geturl()
