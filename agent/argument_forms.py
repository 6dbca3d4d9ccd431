"""Argument forms: what a `deny_when` rule compares of an argument, so that no way of writing hides it."""

from __future__ import annotations

import contextlib
import ipaddress
import operator
import posixpath
import re
import socket
import unicodedata
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

from sayso.pending.unseen import UNSEEN

#: What an argument holds, as far as its rule says so.
Form: TypeAlias = Literal["text", "email", "domain", "path", "number"]
FORMS: tuple[Form, ...] = get_args(Form)

#: Characters that show nothing but a gap, although Unicode does not count them as white space.
_BLANK = "\u115f\u1160\u2800\u3164\uffa0\x1c-\x1f"
_GAPS = re.compile(rf"[\s{_BLANK}]+")
_BREAKS = re.compile(rf"[\t\n\r\x0b\x0c\x85\u2028\u2029{_BLANK}]")
_UNSEEN = re.compile(f"[{UNSEEN}]")
#: Dots that stand for the dot of a domain name (IDNA).
_DOTS = str.maketrans("\u3002\uff0e\uff61", "...")
_COMMENT = re.compile(r"\([^()]*\)")
_ADDRESS = re.compile(r"(\"[^\"]*\"|[^\s<>()\[\],;:\"'@]+)\s*@\s*([^\s<>(),;:\"'@?&]+)")
_BETWEEN_HOSTS = re.compile(r"[\s,;<>\"'(){}|]+")
#: What stands before a host: one scheme, or several, as in `jdbc:postgresql://`. A host with a port has none.
_SCHEMES = re.compile(r"^(?:[a-z][a-z0-9+.-]*:/*(?!\d+(?:/|$)))+")
_COMPARED = re.compile(r"\s*(>=|<=|>|<)\s*(.*)", re.DOTALL)
_COMPARISONS: dict[str, Callable[[Decimal, Decimal], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_NUMBER = re.compile(r"[+-]?\d[\d.,'\u2019 _]*(?:e[+-]?\d{1,3})?", re.ASCII)
#: Longer texts hold no number that a rule is about; the cap also bounds the work.
_MAX_NUMBER_CHARS = 100


def plain_texts(text: str) -> set[str]:
    """Return the text as it looks: compatibility forms and case folded, white space as one space, nothing invisible.

    A tab or line end may stand for a gap or be overlooked, so there is a second form without them.
    """
    return {_folded(_GAPS.sub(" ", text)), _folded(_BREAKS.sub("", text))}


def matches_text(text: str, pattern: str) -> bool:
    """Return whether the text matches the shell pattern, as written or in one of their plain forms."""
    if fnmatchcase(text, pattern):
        return True
    patterns = plain_texts(pattern)
    return any(fnmatchcase(plain, each) for plain in plain_texts(text) for each in patterns)


def matches_form(form: Form, text: str, pattern: str) -> bool:
    """Return whether something of this form in the text matches the pattern."""
    match form:
        case "email":
            wanted = _address_pattern(pattern)
            return any(fnmatchcase(address, wanted) for address in _addresses(text))
        case "domain":
            wanted = _host(_plain(pattern))
            return any(fnmatchcase(host, wanted) or fnmatchcase(host, f"*.{wanted}") for host in _hosts(text))
        case "path":
            wanted = _path(_plain(pattern))
            return any(fnmatchcase(path, wanted) for path in _paths(text))
        case "number":
            return _matches_number(text, pattern)
    return False


def problem_of(form: Form, pattern: str) -> str:
    """Return why a pattern can match nothing of its form, "" when it can."""
    if form == "number" and not _numbers(_compared(pattern)[1]):
        return f"{pattern!r} is no number: write 500, or >500, >=500, <0, <=0"
    if form == "email" and "@" not in pattern and "*" not in pattern:
        return f"{pattern!r} is no address: write eve@example.com or *@example.com"
    return ""


def _folded(text: str) -> str:
    compatible = unicodedata.normalize("NFKC", _UNSEEN.sub("", unicodedata.normalize("NFKC", text)).casefold())
    return _GAPS.sub(" ", _UNSEEN.sub("", compatible)).strip()


def _plain(text: str) -> str:
    """Return the form with nothing in the place of tabs and line ends: addresses and paths have no gaps."""
    return _folded(_BREAKS.sub("", text))


def _readings(text: str) -> set[str]:
    """Return the plain forms, as written and with percent codes decoded."""
    return {read for plain in plain_texts(text) for read in (plain, _folded(unquote(plain)))}


def _addresses(text: str) -> Iterator[str]:
    """Yield the mail addresses in a text, each also without the tag behind a plus sign."""
    for reading in _readings(text):
        for local, domain in _ADDRESS.findall(_COMMENT.sub("", reading)):
            name, host = local.strip('"').strip(), _host(domain)
            yield f"{name}@{host}"
            yield f"{name.partition('+')[0]}@{host}"


def _address_pattern(pattern: str) -> str:
    local, at, domain = _plain(pattern).strip("<>").rpartition("@")
    return f"{local}@{_host(domain)}" if at else domain


def _hosts(text: str) -> Iterator[str]:
    """Yield the hosts that a text may name: of its addresses, its URLs, and each of its words as a host."""
    for reading in _readings(text):
        for word in _BETWEEN_HOSTS.split(reading.replace("\\", "/")):
            rest = _SCHEMES.sub("", word).lstrip("/")
            if "@" in word:
                yield _host(re.split("[/?#&]", word.rpartition("@")[2])[0])
            with contextlib.suppress(ValueError):
                yield _host(urlsplit(f"//{rest}").hostname or "")


def _host(name: str) -> str:
    """Return a host in one spelling: Unicode rather than Punycode, no final dot, IP addresses in the usual notation."""
    host = name.translate(_DOTS).strip(".[]")
    with contextlib.suppress(UnicodeError):
        host = host.encode("ascii").decode("idna") if "xn--" in host else host
    if re.fullmatch(r"[0-9a-fx.]+", host) and host[:1].isdigit():
        with contextlib.suppress(OSError):
            return socket.inet_ntoa(socket.inet_aton(host))
    if ":" in host:
        with contextlib.suppress(ValueError):
            address = ipaddress.IPv6Address(host)
            return str(address.ipv4_mapped or address)
    return host


def _paths(text: str) -> Iterator[str]:
    """Yield a path without detours, and with a final slash, so that `/etc/*` holds for /etc itself."""
    for reading in _readings(text):
        path = _path(reading)
        yield from (path, f"{path}/")


def _path(written: str) -> str:
    local = re.sub(r"^file:(?://(?:localhost)?(?=/))?", "", written.replace("\\", "/").strip("\"'"))
    return posixpath.normpath(re.sub("/+", "/", local)) if local else ""


def _matches_number(text: str, pattern: str) -> bool:
    compare, wanted = _compared(pattern)
    return any(compare(number, limit) for number in _numbers(text) for limit in _numbers(wanted))


def _compared(pattern: str) -> tuple[Callable[[Decimal, Decimal], bool], str]:
    found = _COMPARED.fullmatch(unicodedata.normalize("NFKC", pattern))
    return (_COMPARISONS[found[1]], found[2]) if found else (operator.eq, pattern)


def _numbers(text: str) -> set[Decimal]:
    """Return what a number may mean as people write it: 1.000 is one and a thousand. No number: an empty set."""
    written = _plain(text)[:_MAX_NUMBER_CHARS].replace("\u2212", "-")
    digits = "".join(str(unicodedata.decimal(char, char)) for char in written)
    bare = re.sub(r"^[^\d+\-.,]+|[^\d]+$", "", digits)
    bare = re.sub(r"^([+-])[^\d.,]+", r"\1", bare)
    if not _NUMBER.fullmatch(bare.lstrip(".,") if bare[:1] in ".," else bare):
        return set()
    solid = re.sub("['\u2019 _]", "", bare)
    readings = {solid, solid.replace(",", ""), solid.replace(".", "").replace(",", ".")}
    numbers = set()
    for reading in readings:
        with contextlib.suppress(InvalidOperation):
            numbers.add(Decimal(reading))
    return numbers
