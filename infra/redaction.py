"""Redaction: replaces the secrets of this process in texts that are logged or shown.

Code that reads a secret calls `remember`, and code that shows a text calls `redact`. Logs and
tracebacks pass through it in `config/wiring/observability.py`.
"""

from __future__ import annotations

import json
import math
import re
import threading
from base64 import b64encode
from collections.abc import Iterable, Mapping
from urllib.parse import quote

#: The text in place of a secret.
REDACTED = "[redacted]"
#: The least length of a secret. Shorter values would occur in ordinary words.
MIN_CHARS = 6
#: Names of environment variables with secrets, also of those that only tools read.
_SECRET_NAME = re.compile(
    r"(?:^(?:PG)?|_)(?:API_?KEY|KEYS?|TOKENS?|SECRETS?|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?|DSN)(?:_|$)(?!FILE|PATH|URL|ID$)"
    r"|_(?:PASS|PWD|PAT)$"
)
#: Texts that look like a token of Slack. Those of workspaces come and go while the process runs,
#: and are too many to remember each.
_TOKEN = re.compile(r"xox[a-z](?:\.xox[a-z])?-[\w-]{6,}")


class Redactor:
    """The secrets of one process. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: All spellings of all secrets, and the pattern that finds them; None: there are none.
        self._spellings: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None

    def remember(self, values: Iterable[str]) -> None:
        """Replace these values in texts from now on.

        They are also found as a URL, JSON, `repr` or base64 spells them. Values of fewer than
        MIN_CHARS characters are not replaced.
        """
        new: set[str] = set()
        for value in values:
            secret = value.strip()
            if len(secret) >= MIN_CHARS:
                new |= _spellings(secret)
        with self._lock:
            if new <= self._spellings:
                return
            self._spellings |= new
            longest_first = sorted(self._spellings, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def redact(self, text: str) -> str:
        """Return the text with each secret replaced, and all that looks like a token of Slack."""
        if "xox" in text:
            text = _TOKEN.sub(REDACTED, text)
        if self._pattern is None:
            return text
        # Most texts have no secret. This finds that out faster than the pattern does.
        if not any(spelling in text for spelling in self._spellings):
            return text
        return self._pattern.sub(REDACTED, text)


def _spellings(value: str) -> set[str]:
    """Return the forms in which a secret may stand in a text."""
    spellings = {
        value,
        quote(value, safe=""),
        quote(value),
        json.dumps(value)[1:-1],
        repr(value)[1:-1],
    }
    # A base64 text, such as in the header of a Basic log-in, has a part that depends only on the
    # value, and on the number of bytes before the value, modulo 3. A character of base64 stands for
    # 6 bits, so the first and the last one may depend on bytes around the value.
    data = value.encode()
    for bytes_before in range(3):
        first_own = math.ceil(bytes_before * 8 / 6)
        end_of_own = (bytes_before + len(data)) * 8 // 6
        encoded = b64encode(b"0" * bytes_before + data).decode()
        spellings.add(encoded[first_own:end_of_own])
    return spellings


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """Return the secrets of an environment.

    They are the values of variables that are named like a secret, each part of such a value between
    commas, and passwords in URLs.
    """
    values: list[str] = []
    for name, value in environ.items():
        if _SECRET_NAME.search(name.upper()):
            values += [value, *value.split(",")]
        values += passwords_in(value)
    return values


def passwords_in(text: str) -> list[str]:
    """Return the password of a URL, nothing for any other text.

    Python's `urlsplit` refuses a malformed URL, and by its version one with several hosts.
    Its password is hidden too.
    """
    _, _, rest = text.partition("://")
    netloc = re.split("[/?#]", rest, maxsplit=1)[0]
    login, _, _ = netloc.rpartition("@")
    _, _, password = login.partition(":")
    if password:
        return [password]
    return []


#: The secrets of this process.
_process_redactor = Redactor()
remember = _process_redactor.remember
redact = _process_redactor.redact
