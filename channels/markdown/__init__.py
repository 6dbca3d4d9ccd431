"""Markdown, converted to the formatting of each platform, and split within its limits without losing a character."""

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
    """Return Markdown as Telegram's subset of HTML."""
    return _render(md, HTML)


def slack_mrkdwn(md: str) -> str:
    """Return Markdown as Slack mrkdwn. `& < >` are escaped everywhere, so that no text can notify a channel."""
    return _render(md, MRKDWN)


def whatsapp_text(md: str) -> str:
    """Return Markdown as WhatsApp formats it: `*bold* _italic_ ~strike~` and bare links."""
    return _render(md, WHATSAPP)


def plain(md: str) -> str:
    """Return Markdown as plain text."""
    return _render(md, PLAIN)


def terminal_text(md: str, *, styled: bool = False) -> str:
    """Return Markdown as text for a terminal, with ANSI styles if `styled`.

    Control characters, which could move the cursor or hide text, are shown as visible symbols.
    """
    return _render(md, ANSI if styled else TERMINAL)


def utf16_len(text: str) -> int:
    """Return the length as Telegram counts it, in UTF-16 code units."""
    return len(text) + sum(char > "\uffff" for char in text)


def telegram_length(md: str) -> int:
    """Return the length that Telegram counts against its limits: of the HTML or the plain text, whichever is longer."""
    html, text = _renderings(md, HTML, PLAIN)
    visible = text if html is text else unescape(re.sub(r"<[^>]*>", "", html))
    return max(utf16_len(visible), utf16_len(text))


#: Text that is the same in Markdown and on every platform: one line without marks and addresses.
_PLAIN_TEXT = re.compile(r"[^\W\d_](?:[^\W_]|[ ,.;:?'\"()!%])*(?<! )")


def _render(md: str, dialect: Dialect) -> str:
    return next(_renderings(md, dialect))


def _renderings(md: str, *dialects: Dialect) -> Iterator[str]:
    """Yield the Markdown in each of the dialects. It is parsed once."""
    if _PLAIN_TEXT.fullmatch(md):  # parsing takes as long as sending
        return itertools.repeat(md, len(dialects))
    tokens = parser().parse(md)
    return (_rendered(md, tokens, dialect) for dialect in dialects)


def _rendered(md: str, tokens: Sequence[Token], dialect: Dialect) -> str:
    blocks = Blocks(dialect, md.split("\n"))
    for token in tokens:
        blocks.add(token)
    text = blocks.text()
    # Markdown that renders to nothing, such as an empty link, is shown as its source.
    return text if text.strip() else dialect.escape(md)
