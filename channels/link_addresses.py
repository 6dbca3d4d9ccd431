"""Writes out the address behind the words of a link, so that the model reads what a click opens."""

from __future__ import annotations

from urllib.parse import quote

from sayso.channels.types import storable

#: The most characters of an address that is written out.
MAX_ADDRESS_CHARS = 2000
#: The most addresses of one message that are written out. Callers count them: the functions
#: here see one link at a time.
MAX_ADDRESSES = 20
#: Characters that could end the brackets around an address, and make its rest look like other text.
_ENDS = frozenset('()[]{}<>"`|\\^')


def with_address(words: str, address: str) -> str:
    """Return words of a message with the address that they link to, as "words (address)".

    The words stand alone if they show the address themselves, if there is no address, and if it has
    more than MAX_ADDRESS_CHARS. Brackets, spaces and invisible characters in the address are
    percent-encoded.
    """
    return words + address_note(words, address)


def address_note(words: str, address: str) -> str:
    """Return what `with_address` writes behind the words: " (address)", or "" for nothing.

    For callers that do not put it right behind the words, such as those that collect notes first
    and insert them afterwards. Empty words show no address, so it is written out behind them.
    """
    bare = address.removeprefix("mailto:").removeprefix("tel:")
    compared_address = bare.rstrip("/").casefold()
    compared_words = words.strip().rstrip("/").casefold()
    if compared_words in (compared_address, _without_scheme(compared_address)):
        return ""
    if not bare or len(bare) > MAX_ADDRESS_CHARS:
        return ""
    encoded = "".join(map(_encoded, storable(bare)))
    return f" ({encoded})"


def _without_scheme(address: str) -> str:
    """Return an address without `https://` or the like, unchanged if it begins with none."""
    _, separator, rest = address.partition("://")
    return rest if separator else address


def _encoded(char: str) -> str:
    """Return a character of an address, percent-encoded if it could end or hide the address."""
    if char in _ENDS or char.isspace() or not char.isprintable():
        return quote(char, safe="")
    return char
