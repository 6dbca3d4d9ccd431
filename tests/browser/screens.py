"""Screens: render the messages of each platform by its own rules, as HTML for a picture."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

#: Code blocks, which no platform formats. They are cut out, and put back after the rest is formatted.
_FENCE = re.compile(r"```\n?(.*?)\n?```", re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_SLACK_LINK = re.compile(r"<((?:https?|mailto|tel):[^<>|]*)(?:\|([^<>]*))?>", re.IGNORECASE)
_BARE_LINK = re.compile(r"https?://[^\s<>]*[^\s<>.,;:!?)]")
#: `*bold*`: whole words only, on one line.
_MARKS = {"*": "b", "_": "i", "~": "s"}
_STYLES = {"1": "<b>", "22": "</b>", "3": "<i>", "23": "</i>", "9": "<s>", "29": "</s>"}


def telegram(text: str) -> str:
    """Return the text: Telegram's HTML is HTML, and the fake platform has refused invalid markup."""
    return text


def slack(text: str) -> str:
    """Return the HTML of Slack's mrkdwn, in which only `& < >` are escaped."""
    return _marked(text, _SLACK_LINK, lambda link: _anchor(link[1], link[2] or link[1]))


def whatsapp(text: str) -> str:
    """Return the HTML of a WhatsApp text; WhatsApp finds links by itself."""
    return _marked(
        html.escape(text, quote=False), _BARE_LINK, lambda link: _anchor(link[0], link[0])
    )


def terminal(text: str) -> str:
    """Return the HTML of a terminal's styles."""
    return re.sub(r"\x1b\[(\d+)m", lambda style: _STYLES[style[1]], html.escape(text, quote=False))


def _anchor(href: str, label: str) -> str:
    return f'<a href="{href}">{label}</a>'


def _marked(text: str, link: re.Pattern[str], anchor: Callable[[re.Match[str]], str]) -> str:
    kept: list[str] = []

    def keep(made: str) -> str:
        kept.append(made)
        return f"\x00{len(kept) - 1}\x00"

    text = _FENCE.sub(lambda code: keep(f"<pre>{code[1]}</pre>"), text)
    text = _CODE.sub(lambda code: keep(f"<code>{code[1]}</code>"), text)
    text = link.sub(lambda found: keep(anchor(found)), text)
    for mark, tag in _MARKS.items():
        sign = re.escape(mark)
        text = re.sub(
            rf"(?<!\w){sign}(?=\S)([^{sign}\n]*?\S){sign}(?!\w)", rf"<{tag}>\1</{tag}>", text
        )
    text = re.sub(
        r"(?:^(?:>|&gt;) .*(?:\n|$))+", lambda lines: _quote(lines[0]), text, flags=re.MULTILINE
    )
    while "\x00" in text:  # a link may hold code
        text = re.sub("\x00(\\d+)\x00", lambda place: kept[int(place[1])], text)
    return text


def _quote(lines: str) -> str:
    words = re.sub(r"^(?:>|&gt;) ", "", lines.rstrip("\n"), flags=re.MULTILINE)
    return f"<blockquote>{words}</blockquote>" + "\n" * lines.endswith("\n")
