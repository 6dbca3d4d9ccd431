"""Redaction: the secret values that this process was given, taken out of every text that it logs or shows."""

from __future__ import annotations

import json
import re
import threading
from base64 import b64encode
from collections.abc import Iterable, Mapping
from urllib.parse import quote, urlsplit

#: What stands in place of a secret.
REDACTED = "[redacted]"
#: Shorter values are no secrets worth the name, and would turn up in ordinary words.
MIN_CHARS = 6
#: Names of environment variables that hold secrets, whoever reads them: tools read some by themselves.
_SECRET_NAME = re.compile(
    r"(?:^(?:PG)?|_)(?:API_?KEY|KEYS?|TOKENS?|SECRETS?|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?|DSN)(?:_|$)(?!FILE|PATH|URL|ID$)"
    r"|_(?:PASS|PWD|PAT)$"
)


class Redactor:
    """The secrets of one process. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spellings: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None

    def remember(self, values: Iterable[str]) -> None:
        """Take these values out of texts from now on, however a URL, JSON or `repr` spells them."""
        worth_it = (value.strip() for value in values if len(value.strip()) >= MIN_CHARS)
        new = {spelling for value in worth_it for spelling in _spellings(value)}
        with self._lock:
            if new <= self._spellings:
                return
            self._spellings |= new
            longest_first = sorted(self._spellings, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def redact(self, text: str) -> str:
        """Return the text with each secret replaced."""
        if self._pattern is None or not any(spelling in text for spelling in self._spellings):  # as fast as it gets
            return text
        return self._pattern.sub(REDACTED, text)


def _spellings(value: str) -> set[str]:
    plain = {value, quote(value, safe=""), quote(value), json.dumps(value)[1:-1], repr(value)[1:-1]}
    return plain | {_in_base64(value, before) for before in range(3)}


def _in_base64(value: str, before: int) -> str:
    """Return the letters that base64 has for the whole bytes of a value, such as in the header of a Basic login.

    They depend on how many bytes stand `before` it, modulo 3. Letters that also tell of what is around it are left out.
    """
    data = value.encode()
    begin, end = -(-before * 8 // 6), (before + len(data)) * 8 // 6
    return b64encode(b"0" * before + data).decode()[begin:end]


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """Return the secret values of an environment: those of variables with such names, and passwords inside of URLs."""
    values = list[str]()
    for name, value in environ.items():
        if _SECRET_NAME.search(name.upper()):
            values += [value, *value.split(",")]
        values += passwords_in(value)
    return values


def passwords_in(text: str) -> list[str]:
    """Return the password of a URL, none for any other text."""
    try:
        return [password] if "://" in text and (password := urlsplit(text).password) else []
    except ValueError:
        return []


#: The secrets of this process. Whoever reads one remembers it here.
_process = Redactor()
remember, redact = _process.remember, _process.redact
