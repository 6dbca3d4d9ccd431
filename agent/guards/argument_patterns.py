"""Patterns for the arguments of tool calls: find a forbidden value, however it is written.

A `deny_when` rule of a policy forbids a value, such as the address eve@example.com. A model that
was talked into using it may hide it: inside a list or a URL, in capital letters, with an invisible
character, as `eve+1@example.com`, or an IP address as 0x7f000001. So an argument is compared with a
pattern in several stages. Each stage gives more texts, and each of them is compared:

1. *Keys and scalars*: each key and each value inside the argument.
2. *Spellings* of a value: True is also `true`, `yes` and `1`.
3. *Plain forms* of a text: without differences that a reader does not see, such as case and
   invisible characters.
4. *Readings* of a plain form: unchanged, and with its percent codes decoded. This stage and the next
   one are only for rules that say what the argument holds: an address, a host or a path.
5. *Canonical* hosts, paths and addresses: everything in a reading that can be one, in the one form
   that stands for all ways to write it.

A rule for a number reads each plain text as an amount instead. Because `1.000` is one in some
countries and a thousand in others, all *notations* of it are compared.

A false alarm costs a refused call, but a missed value can do harm. So where a text can be read in
two ways, both are compared. The work is proportional to the length of the text, because a stranger
may have written it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import operator
import posixpath
import re
import socket
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

from sayso.channels.i18n.invisible import INVISIBLE

#: What a pattern looks for in an argument.
ArgumentForm: TypeAlias = Literal["text", "email", "domain", "path", "number"]
FORMS: tuple[ArgumentForm, ...] = get_args(ArgumentForm)

#: How many characters of an argument are compared at most, all its spellings together.
MAX_READ_CHARS = 1_000_000

#: Spellings of a boolean, so that a pattern finds it however a model, Python or JSON wrote it.
_BOOLEAN_SPELLINGS = {
    True: ("true", "yes", "on", "y", "t", "1"),
    False: ("false", "no", "off", "n", "f", "0"),
}

#: Characters that look like a space: the inside of a character class. Unicode does not count most
#: of them as white space. Only 1c to 1f, the separators, are in `\s`; `_BREAKS`, which has no `\s`,
#: needs them too.
_BLANK_CHARS = "\u115f\u1160\u2800\u3164\uffa0\x1c-\x1f"
#: White space of any length, as a reader sees it.
_GAPS = re.compile(rf"[\s{_BLANK_CHARS}]+")
#: A tab, a line end, or a blank character: no reader expects one inside an address or a path.
_BREAKS = re.compile(rf"[\t\n\r\x0b\x0c\x85\u2028\u2029{_BLANK_CHARS}]")
_INVISIBLE = re.compile(f"[{INVISIBLE}]")

#: Characters that stand for the dot of a domain name (IDNA).
_DOTS = str.maketrans("\u3002\uff0e\uff61", "...")
#: A comment in a mail address (RFC 5322), as in `eve(x)@example.com`.
_COMMENT = re.compile(r"\([^()]*\)")
#: Characters that cannot be in the local part of a mail address, which is the part before its @.
_NOT_IN_LOCAL_PART = frozenset("<>()[],;:\"'@")
#: The domain of a mail address, after its @.
_DOMAIN = re.compile(r"\s*([^\s<>(),;:\"'@?&]+)")
#: A longer host cannot exist, and decoding it would take quadratic time.
_MAX_HOST_CHARS = 253
#: What stands between the words that may be hosts.
_BETWEEN_HOSTS = re.compile(r"[\s,;<>\"'(){}|]+")
#: The schemes before a host: one, or several as in `jdbc:postgresql://`. A colon before digits alone
#: is followed by a port, which `(?!...)` excludes: the `localhost:` of `localhost:8080` is a host.
_SCHEMES = re.compile(r"^(?:[a-z][a-z0-9+.-]*:/*(?!\d+(?:/|$)))+")

#: A pattern that compares numbers, such as `>=500`.
_COMPARISON = re.compile(r"\s*(>=|<=|>|<)\s*(.*)", re.DOTALL)
_OPERATORS: dict[str, Callable[[Decimal, Decimal], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
#: A number with any separators of thousands and decimals, and perhaps with an exponent. It may begin
#: with the separator, as `-.5` does.
_NUMBER = re.compile(r"[+-]?[.,]*\d[\d.,'\u2019 _]*(?:e[+-]?\d{1,3})?", re.ASCII)


class ArgumentTooLong(Exception):
    """Raised when an argument is too long to be compared as a whole.

    All its spellings together have more than `MAX_READ_CHARS` characters, and nothing matched in
    those that were read first.
    """


def argument_matches(argument: Any, pattern: str, form: ArgumentForm) -> bool:
    """Return whether a pattern matches an argument, or any key or value inside it.

    `argument` is a JSON value; nothing matches None, which counts as not given. Whatever the form,
    the pattern is compared with each text, with its plain forms, and as a number of the same value.
    `form` names what else to look for in each text. Raises ArgumentTooLong.
    """
    read_chars = 0
    for scalar in _keys_and_scalars(argument):
        for text in _spellings(scalar):
            read_chars += len(text)
            if read_chars > MAX_READ_CHARS:
                raise ArgumentTooLong
            if matches_text(text, pattern) or matches_form(form, text, pattern):
                return True
        if _equals_number(scalar, pattern):
            return True
    return False


def pattern_problem(form: ArgumentForm, pattern: str) -> str:
    """Return why a pattern can never match its form, or "" if it can."""
    if form == "number":
        _, limit = _comparison(pattern)
        if not _numbers(limit):
            return f"{pattern!r} is no number: write 500, or >500, >=500, <0, <=0"
    if form == "email" and "@" not in pattern and "*" not in pattern:
        return f"{pattern!r} is no address: write eve@example.com or *@example.com"
    return ""


def matches_text(text: str, pattern: str) -> bool:
    """Return whether the text matches the shell pattern, as written or in plain forms."""
    if fnmatchcase(text, pattern):
        return True
    patterns = plain_forms(pattern)
    return any(fnmatchcase(plain, each) for plain, each in product(plain_forms(text), patterns))


def matches_form(form: ArgumentForm, text: str, pattern: str) -> bool:
    """Return whether something of this form in the text matches the pattern."""
    match form:
        case "email":
            return _contains_address(text, pattern)
        case "domain":
            return _contains_host(text, pattern)
        case "path":
            return _is_path(text, pattern)
        case "number":
            return _is_number(text, pattern)
        case "text":
            return False


def _contains_address(text: str, pattern: str) -> bool:
    """Return whether a mail address in the text matches the pattern.

    A pattern without an @ is matched with whole addresses, so it needs a `*`.
    """
    wanted = _plain_word(pattern).strip("<>")
    if "@" in wanted:
        local_part, _, domain = wanted.rpartition("@")
        wanted = f"{local_part}@{_canonical_host(domain)}"
    return any(fnmatchcase(address, wanted) for address in _addresses(text))


def _contains_host(text: str, pattern: str) -> bool:
    """Return whether a host in the text matches the pattern, or a parent domain of it does."""
    wanted = _canonical_host(_plain_word(pattern))
    for host in _hosts(text):
        if fnmatchcase(host, wanted) or fnmatchcase(host, f"*.{wanted}"):
            return True
    return False


def _is_path(text: str, pattern: str) -> bool:
    """Return whether the text, read as a path, matches the pattern."""
    wanted = _canonical_path(_plain_word(pattern))
    for reading in _readings(text):
        path = _canonical_path(reading)
        # Also with a final slash, so that `/etc/*` holds for /etc itself.
        if fnmatchcase(path, wanted) or fnmatchcase(f"{path}/", wanted):
            return True
    return False


def _is_number(text: str, pattern: str) -> bool:
    """Return whether the text, read as an amount, compares with the pattern as it says.

    `1.000,50 EUR` is such an amount, and `>=500` such a pattern. `_equals_number` is for the values
    of all other forms: it knows neither comparisons nor currencies.
    """
    compare, limit_text = _comparison(pattern)
    pairs = product(_numbers(text), _numbers(limit_text))
    return any(compare(number, limit) for number, limit in pairs)


def _keys_and_scalars(value: Any) -> Iterator[Any]:
    """Yield every key and scalar inside a value, but not None.

    A forbidden address must not hide in a list or in a key. An empty object is yielded as "{}", an
    empty list as "[]", so that a pattern can name them.
    """
    waiting = [value]  # no recursion: a model may nest deeper than Python can
    while waiting:
        match waiting.pop():
            case Mapping() as pairs:
                if not pairs:
                    yield "{}"
                yield from pairs
                waiting.extend(pairs.values())
            case list() | tuple() | set() | frozenset() as items:
                if not items:
                    yield "[]"
                waiting.extend(items)
            case None:
                pass
            case scalar:
                yield scalar


def _spellings(scalar: Any) -> list[str]:
    """Return the texts in which a pattern may name this scalar."""
    if isinstance(scalar, bool):
        return [str(scalar), *_BOOLEAN_SPELLINGS[scalar]]
    spellings = [str(scalar)]
    if isinstance(scalar, float):
        spellings.append(json.dumps(scalar))
        spellings.append(format(Decimal(str(scalar)), "f"))  # without an exponent
        if scalar.is_integer():
            spellings.append(str(int(scalar)))
    return spellings


def _equals_number(scalar: Any, pattern: str) -> bool:
    """Return whether a number, also one in text, has the value of the pattern.

    5, 5.0, 05 and 5e0 are the same. This holds for rules of every form.
    """
    # To Python a bool is a number: False would equal 0. `_spellings` names the words that match it.
    if isinstance(scalar, bool):
        return False
    try:
        return Decimal(str(scalar).strip()) == Decimal(pattern.strip())
    except InvalidOperation:
        return False


def plain_forms(text: str) -> set[str]:
    """Return the plain forms of a text: how it looks to a reader.

    In a plain form, compatibility forms and case are folded, white space is one space, and
    invisible characters are removed. There are two, because a reader may take a tab or a line end
    for a space or overlook it: the second form is without them.
    """
    # Before `_folded`, since most blank characters are invisible ones, which it removes.
    return {_folded(_GAPS.sub(" ", text)), _folded(_BREAKS.sub("", text))}


def _plain_word(text: str) -> str:
    """Return the plain form without tabs and line ends: addresses and paths contain no gaps."""
    return _folded(_BREAKS.sub("", text))


def _folded(text: str) -> str:
    """Return the text with compatibility forms and case folded, and without invisible characters.

    Each run of white space becomes one space.
    """
    compatible = unicodedata.normalize("NFKC", text)
    lower = _INVISIBLE.sub("", compatible).casefold()
    # Folding the case may give new compatibility forms and invisible characters.
    folded = _INVISIBLE.sub("", unicodedata.normalize("NFKC", lower))
    # Compatibility forms may bring a space, and a removed character may have stood between two.
    return _GAPS.sub(" ", folded).strip()


def _readings(text: str) -> set[str]:
    """Return the plain forms of a text, each as written and with its percent codes decoded."""
    plain = plain_forms(text)
    decoded = {_folded(unquote(form)) for form in plain}
    return plain | decoded


def _addresses(text: str) -> Iterator[str]:
    """Yield the mail addresses in a text, each also without the tag behind a plus sign."""
    for reading in _readings(text):
        for local_part, domain in _address_parts(_COMMENT.sub("", reading)):
            name = local_part.strip('"').strip()
            host = _canonical_host(domain)
            yield f"{name}@{host}"
            yield f"{name.partition('+')[0]}@{host}"


@dataclass(frozen=True, slots=True, order=True)
class _AddressSpan:
    """Where a mail address is in a text. Spans are ordered by their beginning."""

    start: int
    #: The end of the local part. White space and the @ follow.
    local_end: int
    domain_start: int
    end: int
    #: Whether the local part is in quotation marks.
    is_quoted: bool


def _address_parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the local part and the domain of each address in a text, from left to right.

    Addresses do not overlap: where two claim the same characters, the first one has them.

    The time is proportional to the length of the text: each @ is looked at once, with the text
    between its neighbors. A regular expression would try each character as the beginning of a local
    part, and read on to the next @ each time.
    """
    position = 0
    for span in sorted(_address_spans(text)):
        start = span.start
        if start < position:
            # The domain of the address before it took the beginning of this local part. What is
            # left is an address too, unless nothing or half of a quoted text is left.
            if span.is_quoted or position >= span.local_end:
                continue
            start = position
        yield text[start : span.local_end], text[span.domain_start : span.end]
        position = span.end


def _address_spans(text: str) -> Iterator[_AddressSpan]:
    """Yield where the address around each @ is.

    The local part is what is before the @: a quoted text, or a run of characters that a local part
    may have. The domain follows the @.
    """
    at = text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at + 1)

        local_end = at
        while local_end and text[local_end - 1].isspace():
            local_end -= 1

        start = local_end
        # A slice, not an index: `local_end` may be 0.
        is_quoted = text[local_end - 1 : local_end] == '"'
        if is_quoted:
            start = text.rfind('"', 0, local_end - 1)
        else:
            while start and _can_be_in_local_part(text[start - 1]):
                start -= 1

        # `start` is -1 for a closing quotation mark that was never opened, and `local_end` for an @
        # with nothing before it.
        if domain and 0 <= start < local_end:
            yield _AddressSpan(
                start=start,
                local_end=local_end,
                domain_start=domain.start(1),
                end=domain.end(),
                is_quoted=is_quoted,
            )
        at = text.find("@", at + 1)


def _can_be_in_local_part(char: str) -> bool:
    return char not in _NOT_IN_LOCAL_PART and not char.isspace()


def _hosts(text: str) -> Iterator[str]:
    """Yield the hosts that a text may name: those of mail addresses and of URLs.

    A plain word is read as a URL without a scheme.
    """
    for reading in _readings(text):
        for word in _BETWEEN_HOSTS.split(reading.replace("\\", "/")):
            # A word with an @ may hold two hosts: https://good.example/?to=eve@bad.example. So it is
            # read as an address and as a URL.
            if "@" in word:
                after_at = word.rpartition("@")[2]
                yield _canonical_host(re.split("[/?#&]", after_at)[0])
            without_scheme = _SCHEMES.sub("", word).lstrip("/")
            with contextlib.suppress(ValueError):
                yield _canonical_host(urlsplit(f"//{without_scheme}").hostname or "")


def _canonical_host(name: str) -> str:
    """Return a host in the one form that stands for all ways to write it.

    A name is in Unicode rather than Punycode, without a final dot. An IP address is in the usual
    notation.
    """
    host = name.translate(_DOTS).strip(".[]")
    if len(host) > _MAX_HOST_CHARS:
        return host

    if "xn--" in host:
        with contextlib.suppress(UnicodeError):
            host = host.encode("ascii").decode("idna")

    # `inet_aton` also reads 127.1, 0x7f000001 and 2130706433, as HTTP clients do.
    if re.fullmatch(r"[0-9a-fx.]+", host) and host[:1].isdigit():
        with contextlib.suppress(OSError):
            return socket.inet_ntoa(socket.inet_aton(host))

    # An IPv4 address may be written as an IPv6 address, such as ::ffff:127.0.0.1.
    if ":" in host:
        with contextlib.suppress(ValueError):
            address = ipaddress.IPv6Address(host)
            return str(address.ipv4_mapped or address)
    return host


def _canonical_path(written: str) -> str:
    """Return a path, also of a `file:` URL, with single slashes and without `.` and `..`.

    `/etc//x/../passwd`, `file:///etc/passwd` and `file://localhost/etc/passwd` become /etc/passwd.
    """
    slashed = written.replace("\\", "/").strip("\"'")
    local = re.sub(r"^file:(?://(?:localhost)?(?=/))?", "", slashed)
    if not local:
        return ""
    return posixpath.normpath(re.sub("/+", "/", local))


def _comparison(pattern: str) -> tuple[Callable[[Decimal, Decimal], bool], str]:
    """Return how a pattern compares a number, and the text of the number to compare with.

    `>=500` compares with 500. A pattern without a comparison sign asks for an equal number.
    """
    match = _COMPARISON.fullmatch(unicodedata.normalize("NFKC", pattern))
    if match:
        return _OPERATORS[match[1]], match[2]
    return operator.eq, pattern


def _numbers(text: str) -> set[Decimal]:
    """Return the numbers that a text may mean; an empty set if it is not a number.

    `1.000` may be one or a thousand, so both are returned.
    """
    written = _plain_word(text).replace("\u2212", "-")  # the minus sign
    # The digits of all scripts become those of ASCII.
    digits = "".join(str(unicodedata.decimal(char, char)) for char in written)

    # Without a currency or unit before and after the number, and between its sign and its digits.
    # A loop finds the end: a pattern such as `\D+$` would try each character as its beginning.
    end = len(digits)
    while end and not digits[end - 1].isdecimal():
        end -= 1
    bare = re.sub(r"^[^\d+\-.,]+", "", digits[:end])
    bare = re.sub(r"^([+-])[^\d.,]+", r"\1", bare)
    # The dot may belong to a currency, as in `Rs.-600`.
    if not _NUMBER.fullmatch(bare.lstrip(".,")):
        return set()

    without_gaps = re.sub("['\u2019 _]", "", bare)
    notations = {
        without_gaps,  # 1.5
        without_gaps.replace(",", ""),  # 1,000.5: the comma separates thousands
        without_gaps.replace(".", "").replace(",", "."),  # 1.000,5: the comma separates decimals
    }
    numbers = set()
    for notation in notations:
        with contextlib.suppress(InvalidOperation):
            numbers.add(Decimal(notation))
    return numbers
