"""How each platform writes formatting: one Dialect per platform.

Slack and WhatsApp have no escape character: a star in a text may format. There a gap, an invisible
character, is put between the star and what follows. Whether that is needed shows only the whole
line, so each character that may format is first followed by MAYBE_GAP, and `finish` decides which
of these become gaps.

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

#: An invisible character between two characters that a platform would otherwise read as formatting.
GAP = "\u200b"
#: Returns a text as a platform writes it.
Wrap = Callable[[str], str]


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """How one platform writes each kind of formatting. Each one is a constant of this module."""

    #: Writes a text that has no formatting, so that no character of it formats.
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
    #: Whether the platform shows marks only beside spaces and punctuation, not inside a word.
    solid: bool = True
    #: The width of a line in characters. A wider table is not aligned, because its lines would
    #: wrap.
    columns: int = 100
    #: Whether a link shows only its label, so that people do not see its address.
    hides: bool = False
    #: Writes an address in brackets after the label of a link.
    address: Wrap = str
    #: Writes a whole message whose parts were written by the others.
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
    """Return the text with a marker before each line."""
    return "\n".join(f"{marker}{line}" for line in text.split("\n"))


#: Follows each character of a text that a platform might read as formatting, until `finish`. It is
#: no character of any text: Unicode reserves it for such uses.
MAYBE_GAP = "\ufdd0"
#: A character that may format, and one that may begin a quote or a list at the start of a line.
_FORMATTING = re.compile(r"[*_~`]|^\s*[>-]")
#: A marker that may begin formatting, and one that may end it.
_MAY_OPEN = re.compile(r"(?<!\w)[*_~](?=[^\s*_~])")
_MAY_CLOSE = re.compile(r"(?<=\S)[*_~](?!\w)")


def _with_maybe_gaps(text: str) -> str:
    """Return a text with MAYBE_GAP behind each character that may format."""
    return _FORMATTING.sub(rf"\g<0>{MAYBE_GAP}", text)


def without_maybe_gaps(text: str) -> str:
    """Return a part of a message as people see it."""
    return text.replace(MAYBE_GAP, "")


def _with_gaps(text: str, *, line_start: re.Pattern[str]) -> str:
    """Return a message without MAYBE_GAP, with gaps where a literal character would format.

    `line_start` matches the beginning of a line that the platform shows as a quote or as an item of
    a list. The gap stands behind its group 1.
    """
    if MAYBE_GAP not in text:
        return text
    return "\n".join(_line_with_gaps(line, line_start) for line in text.split("\n"))


def _line_with_gaps(line: str, line_start: re.Pattern[str]) -> str:
    """Return one line of a message with gaps where they are needed."""
    parts = line.split(MAYBE_GAP)
    bare = "".join(parts)
    # The places in `bare` of the characters that must not format. All other marks are formatting.
    ends = list(itertools.accumulate(len(part) for part in parts))[:-1]
    literal = {end - 1 for end in ends}

    gaps = set[int]()
    start = line_start.match(bare)
    if start and start.end() - 1 in literal:
        gaps.add(start.end(1))
    # A single backtick begins no code.
    if bare.count("`") > 1:
        gaps.update(place + 1 for place in literal if bare[place] == "`")
    # In "*.py" the star begins nothing, unless another one ends it further on in the line.
    last_closing = {mark[0]: mark.start() for mark in _MAY_CLOSE.finditer(bare)}
    for mark in _MAY_OPEN.finditer(bare):
        place = mark.start()
        if place in literal and last_closing.get(mark[0], 0) > place + 1:
            gaps.add(place + 1)

    places = [0, *sorted(gaps), len(bare)]
    return GAP.join(bare[begin:end] for begin, end in itertools.pairwise(places))


def _no_fence(text: str) -> str:
    """Return the text with gaps between backticks in a row, which would end the code."""
    # Twice, since of three backticks the first pass takes two.
    return text.replace("``", f"`{GAP}`").replace("``", f"`{GAP}`")


def _code_in_backticks(text: str) -> str:
    """Return code in a line. Code with a backtick is text: the backtick would end the code."""
    return text if "`" in text else f"`{text}`"


def _slack_code(text: str) -> str:
    """Return code in a line of Slack."""
    return _code_in_backticks(escape_html(text))


def _slack_link(label: str, href: str) -> str:
    """Return a link in Slack's markup: <address|label>."""
    target = escape_html(href.replace("|", "%7C").replace("<", "%3C").replace(">", "%3E"))
    text = label.replace("\n", " ")
    if without_maybe_gaps(text) in ("", target, target.removeprefix("mailto:")):
        return f"<{target}>"
    return f"<{target}|{text}>"


def bare_link(label: str, href: str) -> str:
    """Return the label with the address in brackets behind it, or one of them if they are equal."""
    bare = href.removeprefix("mailto:").removeprefix("tel:")
    if without_maybe_gaps(label) in ("", href, bare):
        return label or bare
    return f"{label} ({href})"


#: The short codes that Slack would show as a sign of an outcome, which no text may have. All others
#: are shown as Slack shows them.
_SHORT_CODES = re.compile(
    r":(white_check_mark|heavy_check_mark|ballot_box_with_check|x|negative_squared_cross_mark"
    r"|heavy_multiplication_x|hourglass|hourglass_flowing_sand|warning):"
)
#: How many characters fit in a line on a phone, and beside Slack's list of channels on a desktop.
_PHONE = 36
_DESKTOP = 64
#: The marks of Slack and WhatsApp.
_MARKERS = {"strong": ("*", "*"), "em": ("_", "_"), "s": ("~", "~")}


def _html_code(text: str, language: str) -> str:
    """Return a code block in Telegram's HTML."""
    if not language:
        return f"<pre>{escape_html(text)}</pre>"
    kind = html.escape(language)
    return f'<pre><code class="language-{kind}">{escape_html(text)}</code></pre>'


def _html_quote(text: str, level: int) -> str:
    """Return a quote in Telegram's HTML. Telegram refuses a blockquote inside a blockquote."""
    if level == 1:
        return f"<blockquote>{text}</blockquote>"
    return _prefix(text, "&gt; ")


#: Telegram.
HTML = Dialect(
    escape=escape_html,
    marks={"strong": ("<b>", "</b>"), "em": ("<i>", "</i>"), "s": ("<s>", "</s>")},
    code=lambda text: f"<code>{escape_html(text)}</code>",
    pre=_html_code,
    link=lambda label, href: f'<a href="{html.escape(href)}">{label or escape_html(href)}</a>',
    hides=True,
    address=escape_html,
    quote=_html_quote,
    solid=False,
    columns=_PHONE,
)
#: Slack.
MRKDWN = Dialect(
    escape=lambda text: escape_html(_with_maybe_gaps(_SHORT_CODES.sub(rf":{GAP}\1:", text))),
    marks=_MARKERS,
    code=_slack_code,
    pre=lambda text, language: f"```\n{escape_html(_no_fence(text))}\n```",
    link=_slack_link,
    hides=True,
    address=lambda href: _slack_link("", href),
    # Slack shows no quote inside a quote, so the inner one has its sign as text.
    quote=lambda text, level: _prefix(text, "> " if level == 1 else "&gt; "),
    columns=_DESKTOP,
    # Slack reads the escaped sign as a quote, too.
    finish=functools.partial(_with_gaps, line_start=re.compile(r"(\s*)&gt;")),
)
#: WhatsApp.
WHATSAPP = Dialect(
    escape=_with_maybe_gaps,
    marks=_MARKERS,
    code=_code_in_backticks,
    pre=lambda text, language: f"```\n{_no_fence(text)}\n```",
    link=bare_link,
    quote=lambda text, depth: _prefix(text, "> "),
    columns=_PHONE,
    finish=functools.partial(_with_gaps, line_start=re.compile(r"(\s*[>*-])(?=\s)")),
)
#: Plain text: for notifications, buttons and platforms without formatting.
PLAIN = Dialect(
    escape=str,
    marks={"strong": ("", ""), "em": ("", ""), "s": ("", "")},
    code=str,
    pre=lambda text, language: text,
    link=bare_link,
    quote=lambda text, depth: _prefix(text, "> "),
    solid=False,
)
#: A terminal without styles.
TERMINAL = replace(
    PLAIN,
    escape=_visible,
    code=_visible,
    pre=lambda text, language: _visible(text),
    link=lambda label, href: bare_link(label, _visible(href)),
)
#: A terminal with ANSI styles.
ANSI = replace(
    TERMINAL,
    marks={
        "strong": ("\x1b[1m", "\x1b[22m"),
        "em": ("\x1b[3m", "\x1b[23m"),
        "s": ("\x1b[9m", "\x1b[29m"),
    },
)
#: Hosts, with their subdomains, whose links need not show their address. One set per process, since
#: it has one bot. Set by `sayso.channels.markdown.convert.trust_hosts`.
own_hosts: set[str] = set()
#: Formatting in a rendered label.
_MARKS = re.compile(r"<[^>]*>|[*_~`]")


def hides_host(label: str, href: str) -> bool:
    """Return whether a label, plain or rendered, hides the host that its link leads to.

    Links to the bot's own hosts, to mail and to phones hide none.
    """
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
    visible = _bare(html.unescape(without_maybe_gaps(label)))
    return visible not in (_bare(href), _bare(host))


def _bare(address: str) -> str:
    """Return an address without scheme, "www.", last slash and formatting, as labels write it."""
    unmarked = _MARKS.sub("", address).strip().casefold()
    return re.sub(r"^https?://(www\.)?|^www\.", "", unmarked).rstrip("/")


def plain_host(host: str) -> str:
    """Return a host name without capitals, "www." and last dot."""
    return host.casefold().strip(".").removeprefix("www.")
