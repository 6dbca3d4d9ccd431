"""Reading: a text as a model may read it, whatever it is dressed up as."""

from __future__ import annotations

import base64
import binascii
import html
import re
import unicodedata

from sayso.agent.tools.fence import HIDDEN

#: Letters of other scripts that look like Latin ones, in lower case.
_TWINS = str.maketrans("абвгезіјкмнорстухѕԁһԛԝαεηικνορτυχ", "abbre3ijkmhopctyxsdhqwaenikvoptux")
#: Digits and signs that stand for letters inside a word.
_LEET = str.maketrans("013457", "oieast")
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrt])")
#: Scripts that put no space between words: each character is one.
_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff"
#: Vowels and other signs of Devanagari, which are parts of words though no letters.
_SIGNS = r"\u0900-\u0903\u093a-\u094f\u0955-\u0957\u0962\u0963"
#: Words; the signs of addresses; and what ends the name of the one who speaks or is spoken to.
_WORDS = re.compile(rf"[^\W_{_UNSPACED}]+(?:[{_SIGNS}]+[^\W_{_UNSPACED}]*)*|[{_UNSPACED}]|@|://|[:\]](?![a-z0-9/])")
#: A word of letters and digits, and four letters or more that stand by themselves.
_MIXED = re.compile(r"(?<!\S)(?:[^\W\d]+\d|\d+[^\W\d])\S*")
_SPELLED = re.compile(rf"(?<!\S)(?:[^\W\d{_UNSPACED}] ){{3,}}[^\W\d{_UNSPACED}](?!\S)")
#: One character each that stands for a whole sentence: a text of them would grow without measure.
_SENTENCES = str.maketrans({"\ufdfa": " ", "\ufdfb": " "})
#: Runs of base64 long enough for a sentence.
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{24,}")
_URL_SAFE = str.maketrans("-_", "+/")


def plain(text: str) -> str:
    """The text in lower case, without hidden characters, accents, entities and escapes; its signs and lines stay."""
    shown = HIDDEN.sub("", html.unescape(_ESCAPED.sub(_unescaped, text)))
    if not shown.isascii():
        split = unicodedata.normalize("NFKD", shown.translate(_SENTENCES)).casefold()
        shown = "".join(each for each in split if not unicodedata.combining(each)).translate(_TWINS)
    return shown.lower()


def words(text: str) -> str:
    """The words of a plain text, a space between two. What is spelled letter by letter becomes a word.

    A colon or a closing bracket is kept, as ":".
    """
    found = " ".join(_WORDS.findall(text)).replace("]", ":")
    return _SPELLED.sub(_closed_up, _MIXED.sub(_spelled_out, found))


def decoded(text: str) -> str:
    """What its runs of base64 say, as far as they are text."""
    return "\n".join(filter(None, map(_text_of, _BASE64.findall(text))))


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else "\n"


def _closed_up(letters: re.Match[str]) -> str:
    return letters[0].replace(" ", "")


def _spelled_out(word: re.Match[str]) -> str:
    return word[0].translate(_LEET)


def _text_of(run: str) -> str:
    """The text a run encodes; "" when it encodes none."""
    whole = run[: len(run) - (len(run) % 4 == 1)].translate(_URL_SAFE)
    try:
        text = base64.b64decode(whole + "=" * (-len(whole) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return text if text.replace("\n", "").isprintable() else ""
