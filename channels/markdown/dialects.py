"""How each platform writes formatting: one Dialect per platform.

A link must show its address where its words hide the host that it leads to (`hides_host`).
"""

from __future__ import annotations

import functools
import html
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

#: An invisible character that separates two characters which a platform
#: would otherwise read as formatting.
GAP = "\u200b"
Wrap = Callable[[str], str]


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """How one platform writes each kind of formatting. A constant; the functions return texts."""

    #: Writes a text that has no formatting.
    escape: Wrap
    #: What stands before and after a text, by the kind of mark: "strong", "em" or "s".
    marks: dict[str, tuple[str, str]]
    #: Writes code in a line.
    code: Wrap
    #: Writes a code block; the second argument is its language, "" for none.
    pre: Callable[[str, str], str]
    #: Writes a link with a label, "" for none, and an address.
    link: Callable[[str, str], str]
    #: Writes a quote; the second argument is its level, from 1.
    quote: Callable[[str, int], str]
    #: Whether marks do not work in the middle of a word.
    solid: bool = True
    #: The width of a line in characters. A wider table is not aligned, because its lines would
    #: wrap.
    columns: int = 100
    #: Whether a link shows only its label.
    hides: bool = False
    #: `address` writes the address behind a label if links hide theirs.
    address: Wrap = str
    #: Applied to a whole message.
    finish: Wrap = str


#: A symbol for each control character except tab and line end.
_SYMBOLS = {
    **{code: 0x2400 + code for code in (*range(0x09), *range(0x0B, 0x20))},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


def _visible(text: str) -> str:
    """Return the text with symbols for control characters.

    These could move the cursor or change colors.
    """
    return text.translate(_SYMBOLS)


#: Escapes text for HTML between two tags.
escape_html = functools.partial(html.escape, quote=False)


def _prefix(text: str, marker: str) -> str:
    return "\n".join(f"{marker}{line}" for line in text.split("\n"))


#: Stands behind each character of a text that a platform might read as formatting, until the whole
#: line is known. It is no character of any text: Unicode reserves it for such uses.
MAYBE_GAP = "\ufdd0"
_FORMATTING = re.compile(r"[*_~`]|^\s*[>-]")
#: A marker that may begin formatting, and one that may end it.
_MAY_OPEN = re.compile(r"(?<!\w)[*_~](?=[^\s*_~])")
_MAY_CLOSE = re.compile(r"(?<=\S)[*_~](?!\w)")


def _with_maybe_gaps(text: str) -> str:
    return _FORMATTING.sub(rf"\g<0>{MAYBE_GAP}", text)


def without_maybe_gaps(text: str) -> str:
    """Return a part of a message as people see it."""
    return text.replace(MAYBE_GAP, "")


def _with_gaps(text: str, *, line_start: re.Pattern[str]) -> str:
    """Insert gaps, so that no literal marker formats.

    Neither Slack nor WhatsApp has an escape character.

    `line_start` matches a line that the platform shows as a quote or as an item of a list. The gap
    stands behind its group 1, if the marker before that place is literal.
    """
    if MAYBE_GAP not in text:
        return text
    return "\n".join(_line_with_gaps(line, line_start) for line in text.split("\n"))


def _line_with_gaps(line: str, line_start: re.Pattern[str]) -> str:
    parts = line.split(MAYBE_GAP)
    ends = list(itertools.accumulate(len(part) for part in parts))[:-1]
    literal = {end - 1 for end in ends}
    shown = "".join(parts)

    gaps = set[int]()
    start = line_start.match(shown)
    if start and start.end() - 1 in literal:
        gaps.add(start.end(1))
    if shown.count("`") > 1:
        gaps.update(at + 1 for at in literal if shown[at] == "`")
    # In "*.py" the star begins nothing, unless another one ends it further on in the line.
    last_closing = {mark[0]: mark.start() for mark in _MAY_CLOSE.finditer(shown)}
    for mark in _MAY_OPEN.finditer(shown):
        at = mark.start()
        if at in literal and last_closing.get(mark[0], 0) > at + 1:
            gaps.add(at + 1)

    places = [0, *sorted(gaps), len(shown)]
    return GAP.join(shown[begin:end] for begin, end in itertools.pairwise(places))


def _no_fence(text: str) -> str:
    """Return the text with gaps between backticks in a row, which would end the code."""
    return text.replace("``", f"`{GAP}`").replace("``", f"`{GAP}`")


def _slack_link(label: str, href: str) -> str:
    target = escape_html(href.replace("|", "%7C").replace("<", "%3C").replace(">", "%3E"))
    text = label.replace("\n", " ")
    if without_maybe_gaps(text) in ("", target, target.removeprefix("mailto:")):
        return f"<{target}>"
    return f"<{target}|{text}>"


def bare_link(label: str, href: str) -> str:
    """Return the label with the address behind it, or only one if they are the same."""
    bare = href.removeprefix("mailto:").removeprefix("tel:")
    if without_maybe_gaps(label) in ("", href, bare):
        return label or bare
    return f"{label} ({href})"


#: What Slack shows as a sign of an outcome. Other short codes are shown as Slack shows them.
_SHORT_CODES = re.compile(
    r":(white_check_mark|heavy_check_mark|ballot_box_with_check|x|negative_squared_cross_mark"
    r"|heavy_multiplication_x|hourglass|hourglass_flowing_sand|warning):"
)
#: How many characters fit in a line on a phone, and beside Slack's list of channels on a desktop.
_PHONE = 36
_DESKTOP = 64
_MARKERS = {"strong": ("*", "*"), "em": ("_", "_"), "s": ("~", "~")}
HTML = Dialect(
    escape=escape_html,
    marks={"strong": ("<b>", "</b>"), "em": ("<i>", "</i>"), "s": ("<s>", "</s>")},
    code=lambda text: f"<code>{escape_html(text)}</code>",
    pre=lambda text, language: (
        f'<pre><code class="language-{html.escape(language)}">{escape_html(text)}</code></pre>'
        if language
        else f"<pre>{escape_html(text)}</pre>"
    ),
    link=lambda label, href: f'<a href="{html.escape(href)}">{label or escape_html(href)}</a>',
    hides=True,
    address=escape_html,
    # Telegram refuses a blockquote inside a blockquote.
    quote=lambda text, depth: (
        f"<blockquote>{text}</blockquote>" if depth == 1 else _prefix(text, "&gt; ")
    ),
    solid=False,
    columns=_PHONE,
)
MRKDWN = Dialect(
    escape=lambda text: escape_html(_with_maybe_gaps(_SHORT_CODES.sub(rf":{GAP}\1:", text))),
    marks=_MARKERS,
    code=lambda text: escape_html(text) if "`" in text else f"`{escape_html(text)}`",
    pre=lambda text, language: f"```\n{escape_html(_no_fence(text))}\n```",
    link=_slack_link,
    hides=True,
    address=lambda href: _slack_link("", href),
    quote=lambda text, depth: _prefix(text, "&gt; ") if depth > 1 else _prefix(text, "> "),
    columns=_DESKTOP,
    # Slack takes the escaped sign for a quote, too.
    finish=functools.partial(_with_gaps, line_start=re.compile(r"(\s*)&gt;")),
)
WHATSAPP = Dialect(
    escape=_with_maybe_gaps,
    marks=_MARKERS,
    code=lambda text: text if "`" in text else f"`{text}`",
    pre=lambda text, language: f"```\n{_no_fence(text)}\n```",
    link=bare_link,
    quote=lambda text, depth: _prefix(text, "> "),
    columns=_PHONE,
    finish=functools.partial(_with_gaps, line_start=re.compile(r"(\s*[>*-])(?=\s)")),
)
PLAIN = Dialect(
    escape=str,
    marks={"strong": ("", ""), "em": ("", ""), "s": ("", "")},
    code=str,
    pre=lambda text, language: text,
    link=bare_link,
    quote=lambda text, depth: _prefix(text, "> "),
    solid=False,
)
TERMINAL = replace(
    PLAIN,
    escape=_visible,
    code=_visible,
    pre=lambda text, language: _visible(text),
    link=lambda label, href: bare_link(label, _visible(href)),
)
ANSI = replace(
    TERMINAL,
    marks={
        "strong": ("\x1b[1m", "\x1b[22m"),
        "em": ("\x1b[3m", "\x1b[23m"),
        "s": ("\x1b[9m", "\x1b[29m"),
    },
)
#: Hosts, with their subdomains, whose links need not show their address. One set per process, since
#: it has one bot. Set by `sayso.channels.markdown.trust_hosts`.
own_hosts: set[str] = set()
_MARKS = re.compile(r"<[^>]*>|[*_~`]")


def hides_host(label: str, href: str) -> bool:
    """Return whether a label, plain or rendered, hides the host that its link leads to."""
    try:
        parts = urlsplit(href)
        host = plain_host(parts.hostname or "")
    except ValueError:
        return True
    if parts.scheme.lower() not in ("http", "https"):
        return False
    if any(host == own or host.endswith(f".{own}") for own in own_hosts):
        return False
    # Without a label the address itself is shown.
    if not label.strip():
        return False
    shown = _bare(html.unescape(without_maybe_gaps(label)))
    return shown not in (_bare(href), _bare(host))


def _bare(address: str) -> str:
    """Return an address as a label may write it.

    That is without scheme, "www.", last slash and formatting marks.
    """
    unmarked = _MARKS.sub("", address).strip().casefold()
    return re.sub(r"^https?://(www\.)?|^www\.", "", unmarked).rstrip("/")


def plain_host(host: str) -> str:
    """Return a host name without capitals, "www." and last dot."""
    return host.casefold().strip(".").removeprefix("www.")
