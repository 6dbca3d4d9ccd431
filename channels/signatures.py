"""Signatures: whether a webhook was signed with our secret, by the rules of each platform.

Their SDKs decide the same; the tests compare. On a webhook's path they cost several times the hash itself.
"""

from __future__ import annotations

import base64
import contextlib
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


def twilio_signed(
    token: str,
    url: str,
    form: Mapping[str, Sequence[str]],
    signature: str,
    settings: str = "",
    *,
    hosts: Iterable[str] = (),
) -> bool:
    """Whether Twilio signed this form for this URL. `settings` is the header of that name.

    It signs the URL with its port or without, and the host in the letters that were typed into its console, so each
    spelling of the same URL is good. `hosts` are the hosts that the request names: of these only those count that
    spell the URL's own host with other capitals. Raises ValueError for a URL that is none.
    """
    name = _HASHES.get(_algorithm(settings).upper())
    if name is None:
        return False
    fields = "".join([key + value for key in sorted(form) for value in sorted(set(form[key]))])
    given = signature.encode()
    host = urlsplit(url).netloc.partition(":")[0]
    spelled = {each for each in (asked.partition(":")[0] for asked in hosts) if each.lower() == host.lower()}
    urls = [
        *_spellings(url),
        *(each for name in spelled - {host} for each in _spellings(url.replace(f"//{host}", f"//{name}", 1))),
    ]
    return any(hmac.compare_digest(_signature(token, words + fields, name), given) for words in urls)


def _signature(token: str, words: str, name: str) -> bytes:
    return base64.b64encode(hmac.digest(token.encode(), words.encode(), name))


def _algorithm(settings: str) -> str:
    named = (part.partition("=") for part in settings.split(","))
    return next(
        (value.strip() for name, _, value in named if name.strip() == "algorithm" and value.strip()), "HMAC_SHA1"
    )


@lru_cache(maxsize=64)
def _spellings(url: str) -> Iterable[str]:
    """Return the spellings of a URL: without its port and with it, its host as given, in small letters, in punycode and
    decoded from it.
    """
    parts = urlsplit(url)
    netloc, port = parts.netloc, parts.port
    bare = netloc.split(":")[0]
    default = 443 if parts.scheme == "https" else 80
    netlocs = [bare, netloc] if port else [netloc, f"{netloc}:{default}"]
    names = _hosts(parts.hostname or "") if "@" not in netloc and "[" not in netloc else []
    ports = ["", f":{port or default}"]
    every = [*netlocs, *(f"{name}{ending}" for name in names for ending in ports)]
    return tuple(parts._replace(netloc=each).geturl() for each in dict.fromkeys(every))


def _hosts(host: str) -> list[str]:
    """Return the names of the same host. `host` is in small letters."""
    names = [host]
    with contextlib.suppress(UnicodeError):  # it cannot be written in punycode
        names.append(host.encode("idna").decode())
    with contextlib.suppress(UnicodeError):  # it is not in punycode
        names.append(host.encode("ascii").decode("idna"))
    return list(dict.fromkeys(name for name in names if name))
