"""Markup: the model's Markdown in the words each platform formats, cut into pieces that lose no character."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from html import unescape

from markdown_it.token import Token

from sayso.channels.markdown.dialects import ANSI, HTML, MRKDWN, PLAIN, TERMINAL, WHATSAPP, Dialect
from sayso.channels.markdown.html import page_html
from sayso.channels.markdown.parse import parser
from sayso.channels.markdown.render import Blocks
from sayso.channels.markdown.split import fits, head, split

__all__ = [
    "fits",
    "head",
    "page_html",
    "plain",
    "slack_mrkdwn",
    "split",
    "telegram_html",
    "telegram_length",
    "terminal_text",
    "utf16_len",
    "whatsapp_text",
]


def telegram_html(md: str) -> str:
    """Markdown as Telegram's HTML subset."""
    return _render(md, HTML)


def slack_mrkdwn(md: str) -> str:
    """Markdown as Slack mrkdwn, with `& < >` escaped everywhere, so no text can ping a channel."""
    return _render(md, MRKDWN)


def whatsapp_text(md: str) -> str:
    """Markdown as WhatsApp formats it: `*bold* _italic_ ~strike~` and bare links."""
    return _render(md, WHATSAPP)


def plain(md: str) -> str:
    """Markdown as words only."""
    return _render(md, PLAIN)


def terminal_text(md: str, *, styled: bool = False) -> str:
    """Markdown as words for a terminal, with its formatting as ANSI styles if `styled`.

    Control characters, which could move the cursor or hide what was said, are shown as their pictures.
    """
    return _render(md, ANSI if styled else TERMINAL)


def utf16_len(text: str) -> int:
    """Length as Telegram counts it: UTF-16 code units."""
    return len(text) + sum(char > "\uffff" for char in text)


def telegram_length(md: str) -> int:
    """What Telegram counts against its limits, and its plain-text fallback, whichever is longer."""
    made, words = _renderings(md, HTML, PLAIN)
    seen = words if made is words else unescape(re.sub(r"<[^>]*>", "", made))
    return max(utf16_len(seen), utf16_len(words))


#: Words that no Markdown and no platform reads as anything else: one line, no marks, no addresses.
_WORDS_ALONE = re.compile(r"[^\W\d_](?:[^\W_]|[ ,.;:?'\"()!%])*(?<! )")


def _render(md: str, dialect: Dialect) -> str:
    return next(_renderings(md, dialect))


def _renderings(md: str, *dialects: Dialect) -> Iterator[str]:
    """The Markdown in each of the dialects, read once."""
    if _WORDS_ALONE.fullmatch(md):  # parsing would take as long as sending
        return itertools.repeat(md, len(dialects))
    tokens = parser().parse(md)
    return (_written(md, tokens, dialect) for dialect in dialects)


def _written(md: str, tokens: Sequence[Token], dialect: Dialect) -> str:
    blocks = Blocks(dialect, md.split("\n"))
    for token in tokens:
        blocks.take(token)
    text = blocks.text()
    # Markdown that renders to nothing, such as an empty link, is shown as it was written.
    return text if text.strip() else dialect.escape(md)
