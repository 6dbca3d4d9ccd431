"""Markup: the model's Markdown in the words each platform formats, cut into pieces that lose no character."""

from __future__ import annotations

import bisect
import functools
import html
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, blockquote, list_block, table
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

#: URL schemes a link may carry. Everything else (javascript:, tg:, relative paths) is shown as words.
SCHEMES = ("http", "https", "mailto", "tel")
#: Unseen and not a space: keeps two characters apart that a platform would otherwise read as formatting.
GAP = "\u200b"

_ALLOWED = re.compile(rf"(?:{'|'.join(SCHEMES)}):", re.IGNORECASE)


def telegram_html(md: str) -> str:
    """Markdown as Telegram's HTML subset."""
    return _render(md, _HTML)


def slack_mrkdwn(md: str) -> str:
    """Markdown as Slack mrkdwn, with `& < >` escaped everywhere, so no text can ping a channel."""
    return _render(md, _MRKDWN)


def whatsapp_text(md: str) -> str:
    """Markdown as WhatsApp formats it: `*bold* _italic_ ~strike~` and bare links."""
    return _render(md, _WHATSAPP)


def plain(md: str) -> str:
    """Markdown as words only."""
    return _render(md, _PLAIN)


def terminal_text(md: str, *, styled: bool = False) -> str:
    """Markdown as words for a terminal, with its formatting as ANSI styles if `styled`.

    Control characters, which could move the cursor or hide what was said, are shown as their pictures.
    """
    return _render(md, _ANSI if styled else _TERMINAL)


def page_html(md: str) -> str:
    """Markdown as HTML for a page of ours, which cannot run anything and hides nothing.

    No raw HTML, no images, links to the web, mail and phones only.
    """
    tokens = [_for_page(token) for token in _without_overfull(_parser(images=False).parse(md), md.split("\n"))]
    made = _parser(images=False).renderer.render(tokens, _parser(images=False).options, {})
    return str(made) if re.sub(r"<[^>]*>|\s", "", made) else f"<p>{_escape_html(md)}</p>\n"


def utf16_len(text: str) -> int:
    """Length as Telegram counts it: UTF-16 code units."""
    return len(text) + sum(char > "\uffff" for char in text)


def telegram_length(md: str) -> int:
    """What Telegram counts against its limits, and its plain-text fallback, whichever is longer."""
    made, words = _renderings(md, _HTML, _PLAIN)
    seen = words if made is words else html.unescape(re.sub(r"<[^>]*>", "", made))
    return max(utf16_len(seen), utf16_len(words))


# Rendering walks the flat token stream with its own stack: nesting that would exhaust a recursive renderer is harmless.

Wrap = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How one platform writes each kind of formatting.

    `solid` markers do not work in the middle of a word. A table of more than `columns` is not aligned: where its lines
    wrap, nobody could read it.
    """

    escape: Wrap
    marks: dict[str, tuple[str, str]]
    code: Wrap
    pre: Callable[[str, str], str]
    link: Callable[[str, str], str]
    quote: Callable[[str, int], str]
    solid: bool = True
    columns: int = 100


#: Words that no Markdown and no platform reads as anything else: one line, no marks, no addresses.
_WORDS_ALONE = re.compile(r"[^\W\d_](?:[^\W_]|[ ,.;:?'\"()!%])*(?<! )")


def _render(md: str, dialect: _Dialect) -> str:
    return next(_renderings(md, dialect))


def _renderings(md: str, *dialects: _Dialect) -> Iterator[str]:
    """The Markdown in each of the dialects, read once."""
    if _WORDS_ALONE.fullmatch(md):  # parsing would take as long as sending
        return itertools.repeat(md, len(dialects))
    tokens = _parser().parse(md)
    return (_written(md, tokens, dialect) for dialect in dialects)


def _written(md: str, tokens: Sequence[Token], dialect: _Dialect) -> str:
    blocks = _Blocks(dialect, md.split("\n"))
    for token in tokens:
        blocks.take(token)
    text = blocks.text()
    # Markdown that renders to nothing, such as an empty link, is shown as it was written.
    return text if text.strip() else dialect.escape(md)


@functools.lru_cache(maxsize=2)
def _parser(*, images: bool = True) -> MarkdownIt:
    """CommonMark with tables and strikethrough.

    Raw HTML stays text. Link references are off: a line like `[x]: y` would vanish from a preview.
    """
    parser = (
        MarkdownIt("commonmark", {"html": False, "breaks": True})
        .enable(["table", "strikethrough"])
        .disable(["reference", "html_block", "html_inline"])
    )
    parser.inline.ruler.before("backticks", "bare_url", _bare_url)
    parser.inline.ruler.before("link", "bare_bracket", _bare_bracket)
    ends = ["paragraph", "reference"]
    parser.block.ruler.at("table", _table, {"alt": ends})
    parser.block.ruler.at("blockquote", _quote, {"alt": [*ends, "blockquote", "list"]})
    parser.block.ruler.at("list", _list, {"alt": [*ends, "blockquote"]})
    return parser if images else parser.disable("image")


#: How deep a quote and a list may stand in others, where a list counts twice: what is deeper is shown as written. The
#: parser itself would drop what is deeper than 20.
_DEEPEST_QUOTE, _DEEPEST_LIST = 6, 10


def _quote(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    return state.level < _DEEPEST_QUOTE and blockquote(state, line, end, silent)


def _list(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    return state.level < _DEEPEST_LIST and list_block(state, line, end, silent)


def _table(state: StateBlock, line: int, end: int, silent: bool) -> bool:
    """A table that is there for the most part: a short row of a wide one would be filled up with hundreds of cells."""
    begins = table(state, line, end, True)
    return begins and (silent or (not _is_hollow(state, line, end) and table(state, line, end, False)))


def _is_hollow(state: StateBlock, line: int, end: int) -> bool:
    """Whether the table that begins here lacks more cells than it has."""
    columns = _count_cells(state, line)
    there, missing = 2 * columns, 0
    for row in range(line + 2, end):
        if state.isEmpty(row):
            return False
        cells = _count_cells(state, row)
        there, missing = there + cells, missing + max(0, columns - cells)
        if missing > there + _FEW_CELLS:
            return True
    return False


#: Missing cells that are no matter.
_FEW_CELLS = 16


def _count_cells(state: StateBlock, line: int) -> int:
    text = state.src[state.bMarks[line] : state.eMarks[line]].strip()
    return text.count("|") + 1 - text.startswith("|") - text.endswith("|")


#: Where the parser's cache, whose other keys are places in the text, has the last place that a link may end at.
_LAST_ADDRESS = -1
_URL = re.compile(r"://[^\s<>\"`|\\\[\]]+")
_SCHEME_BEFORE = re.compile(r"(?<![A-Za-z0-9])https?$", re.IGNORECASE)


def _bare_url(state: StateInline, silent: bool) -> bool:
    """Read a URL in running text as one link, so that `_` and `*` inside it are not emphasis."""
    if state.src[state.pos] != ":":
        return False
    scheme = _SCHEME_BEFORE.search(state.src, max(0, state.pos - 6), state.pos)
    match = _URL.match(state.src, state.pos, state.posMax) if scheme else None
    rest = _trim(match.group()) if match else ""
    if scheme is None or len(rest) <= len("://"):
        return False
    if not silent:
        _push_link(state, scheme.group(), rest)
    state.pos += len(rest)
    return True


def _bare_bracket(state: StateInline, silent: bool) -> bool:
    """Read a bracket behind which no link's address comes as itself: the parser would look for its partner."""
    char = state.src[state.pos]
    if char not in "[!" or state.pos < state.cache.setdefault(_LAST_ADDRESS, state.src.rfind("](")):
        return False
    if not silent:
        state.pending += char
    state.pos += 1
    return True


def _trim(url: str) -> str:
    """Leave the punctuation that ends a sentence, or a bracket around the URL, out of it."""
    while url and (url[-1] in ".,;:!?*_~'" or (url[-1] == ")" and url.count(")") > url.count("("))):
        url = url[:-1]
    return url


def _push_link(state: StateInline, scheme: str, rest: str) -> None:
    if state.linkLevel or not state.pending.endswith(scheme):
        state.pending += rest
        return
    state.pending = state.pending[: -len(scheme)]
    state.push("link_open", "a", 1).attrs = {"href": scheme + rest}
    state.push("text", "", 0).content = scheme + rest
    state.push("link_close", "a", -1).markup = "autolink"


@dataclass(frozen=True, slots=True)
class _Block:
    text: str
    pre: bool = False


@dataclass(slots=True)
class _Blocks:
    """Builds the message block by block; containers are frames on a stack."""

    dialect: _Dialect
    source: Sequence[str]
    frames: list[list[_Block]] = field(default_factory=lambda: [[]])
    numbers: list[int | None] = field(default_factory=list)
    quotes: int = 0
    heading: bool = False
    rows: list[list[str]] | None = None
    rights: list[bool] = field(default_factory=list)
    overfull: Sequence[str] = ()

    def take(self, token: Token) -> None:
        step = getattr(self, f"_{token.type}", None)
        if step is not None:
            step(token)

    def text(self) -> str:
        return "\n\n".join(block.text for block in self.frames[0] if block.text)

    def _add(self, text: str, pre: bool = False) -> None:
        self.frames[-1].append(_Block(text, pre))

    def _inline(self, token: Token) -> None:
        if self.rows is not None:
            self.rows[-1].append(" ".join(_inline(token.children or [], _PLAIN).split()))
            return
        text = _inline(token.children or [], self.dialect, bold=self.heading)
        opening, closing = self.dialect.marks["strong"] if self.heading and text else ("", "")
        self._add(f"{opening}{text}{closing}")

    def _heading_open(self, token: Token) -> None:
        self.heading = True

    def _heading_close(self, token: Token) -> None:
        self.heading = False

    def _fence(self, token: Token) -> None:
        language = _LANGUAGE.match(token.info)
        # A title behind the language is part of what was said, so it is shown.
        title = token.info[language.end() :].strip() if language else token.info.strip()
        text = "\n".join(part for part in (title, token.content.rstrip("\n")) if part)
        self._add(self.dialect.pre(text, language.group(1) if language else ""), pre=True)

    def _code_block(self, token: Token) -> None:
        self._add(self.dialect.pre(token.content.rstrip("\n"), ""), pre=True)

    def _hr(self, token: Token) -> None:
        self._add("———")

    def _blockquote_open(self, token: Token) -> None:
        self.quotes += 1
        self.frames.append([])

    def _blockquote_close(self, token: Token) -> None:
        inner = "\n\n".join(block.text for block in self.frames.pop())
        self._add(self.dialect.quote(inner, self.quotes))
        self.quotes -= 1

    def _bullet_list_open(self, token: Token) -> None:
        self._open_list(None)

    def _ordered_list_open(self, token: Token) -> None:
        start = token.attrGet("start")
        self._open_list(int(start) if start is not None else 1)

    def _open_list(self, number: int | None) -> None:
        self.numbers.append(number)
        self.frames.append([])

    def _bullet_list_close(self, token: Token) -> None:
        self.numbers.pop()
        self._add("\n".join(block.text for block in self.frames.pop()))

    _ordered_list_close = _bullet_list_close

    def _list_item_open(self, token: Token) -> None:
        self.frames.append([])

    def _list_item_close(self, token: Token) -> None:
        number = self.numbers[-1]
        marker = f"{_bullet(self.numbers)} " if number is None else f"{number}. "
        if number is not None:
            self.numbers[-1] = number + 1
        self._add(_item(marker, self.frames.pop()))

    def _table_open(self, token: Token) -> None:
        self.rows, self.rights = [], []
        lines = self.source[slice(*token.map)] if token.map else []
        # The parser drops cells beyond the last column; such a table is shown as it was written.
        self.overfull = lines if _is_overfull(lines) else []

    def _th_open(self, token: Token) -> None:
        self.rights.append("right" in str(token.attrGet("style") or ""))

    def _tr_open(self, token: Token) -> None:
        if self.rows is not None:
            self.rows.append([])

    def _table_close(self, token: Token) -> None:
        rows, self.rows = self.rows or [], None
        columns = sum(_widths(rows)) + 3 * max(0, len(rows[0]) - 1) if rows else 0
        if self.overfull:
            self._add(self.dialect.pre("\n".join(self.overfull), ""), pre=True)
        elif columns <= self.dialect.columns:
            self._add(self.dialect.pre(_aligned(rows, self.rights), ""), pre=True)
        else:
            self._add(_records(rows, self.dialect))


def _bullet(numbers: Sequence[int | None]) -> str:
    """Another one on each level: where an indent is two narrow spaces, it alone would tell too little."""
    return "•◦▪"[(numbers.count(None) - 1) % 3]


def _item(marker: str, blocks: Sequence[_Block]) -> str:
    """One list item: code keeps its own margin, everything else is indented under the marker."""
    indent = " " * len(marker)
    lines = [block.text if block.pre else indent + block.text.replace("\n", f"\n{indent}") for block in blocks]
    return marker + "\n".join(lines).removeprefix(indent)


#: What may follow a fence and not be shown: one word that can be a language.
_LANGUAGE = re.compile(r"\s*([\w+#.-]{1,20})(?=\s|$)", re.ASCII)


def _is_overfull(lines: Sequence[str]) -> bool:
    return any(_cells(line) > _cells(lines[0]) for line in lines[2:])


def _cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line.strip().strip("|")))


def _aligned(rows: Sequence[Sequence[str]], rights: Sequence[bool]) -> str:
    """A table as columns of equal width, for a monospaced block."""
    if not rows:
        return ""
    widths = _widths(rows)
    lines = [" | ".join(_padded(*cell) for cell in zip(row, widths, rights, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


def _padded(cell: str, width: int, right: bool) -> str:
    gap = " " * (width - _width(cell))
    return gap + cell if right else cell + gap


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_width, column)) for column in zip(*rows, strict=True)]


def _records(rows: Sequence[Sequence[str]], dialect: _Dialect) -> str:
    """A table that is too wide to be one: a paragraph for each row, a line for each cell behind its column's name."""
    names, *body = rows
    size = sum(len(cell) for row in rows for cell in row)
    if not body or len(body) * sum(map(len, names)) > 4 * size + 4000:  # names that long would drown what they name
        return "\n".join(" | ".join(map(dialect.escape, row)) for row in rows)
    return "\n\n".join(_record(names, row, dialect) for row in body)


def _record(names: Sequence[str], cells: Sequence[str], dialect: _Dialect) -> str:
    opening, closing = dialect.marks["strong"]
    first, *others = (
        (dialect.escape(name) + ": " if name else "", dialect.escape(cell))
        for name, cell in zip(names, cells, strict=True)
    )
    title = f"{opening}{first[1]}{closing}" if first[1] else ""
    return "\n".join([(first[0] + title).rstrip(), *((name + cell).rstrip() for name, cell in others)])


def _width(text: str) -> int:
    """Columns on screen: CJK and emoji take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _inline(tokens: Sequence[Token], dialect: _Dialect, bold: bool = False) -> str:
    walk = _Inline(dialect, ["strong"] if bold else [])
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        walk.take(token, following.content[:1] if following and following.type == "text" else "")
    return "".join(walk.frames[0])


@dataclass(slots=True)
class _Inline:
    """Builds one paragraph; `active` names the marks we are inside of, so that none is nested in itself."""

    dialect: _Dialect
    active: list[str]
    frames: list[list[str]] = field(default_factory=lambda: [[]])
    hrefs: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    def take(self, token: Token, following: str) -> None:
        if token.type in ("softbreak", "hardbreak"):
            self.frames[-1].append("\n")
        elif token.type == "code_inline":
            self.frames[-1].append(self.dialect.code(token.content))
        elif token.type == "image":
            self._image(token)
        elif token.nesting == 1:
            self._open(token)
        elif token.nesting == -1:
            self._close(token, following)
        else:
            self.frames[-1].append(self.dialect.escape(token.content))

    def _image(self, token: Token) -> None:
        alt = _inline(token.children or [], self.dialect) + self._title(token)
        self.frames[-1].append(_link(self.dialect, alt, str(token.attrGet("src") or "")))

    def _title(self, token: Token) -> str:
        """What the Markdown would show on hovering: no chat can, so it stands behind the label."""
        title = token.attrGet("title")
        return self.dialect.escape(f' "{title}"') if title else ""

    def _open(self, token: Token) -> None:
        self.frames.append([])
        if token.type == "link_open":
            self.hrefs.append(str(token.attrGet("href") or ""))
            self.titles.append(self._title(token))
        else:
            self.active.append(_mark(token))

    def _close(self, token: Token, following: str) -> None:
        text = "".join(self.frames.pop())
        if token.type == "link_close":
            # The label of a bare URL is the URL: formatting rules must not touch it.
            label = "" if token.markup == "autolink" else text + self.titles[-1]
            self.titles.pop()
            self.frames[-1].append(_link(self.dialect, label, self.hrefs.pop()))
            return
        opening, closing = self._marks(self.active.pop(), token.markup, following)
        self.frames[-1].append(f"{opening}{text}{closing}")

    def _marks(self, name: str, markup: str, following: str) -> tuple[str, str]:
        before = next((part[-1] for part in reversed(self.frames[-1]) if part), "")
        touching = before.isalnum(), following.isalnum()
        if all(touching) or (any(touching) and self.dialect.solid and name == "em"):
            # 2*3*4 is arithmetic, not emphasis: no preview may turn it into 234.
            return markup, markup
        if name in self.active or (any(touching) and self.dialect.solid):
            return "", ""
        return self.dialect.marks[name]


def _mark(token: Token) -> str:
    return token.type.removesuffix("_open")


def _link(dialect: _Dialect, label: str, href: str) -> str:
    if not _ALLOWED.match(href):
        address = dialect.escape(href)
        return label if address in ("", label) else f"{label} ({address})".strip()
    return dialect.link(label, href)


def _words(text: str) -> str:
    return text


def _visible(text: str) -> str:
    """The text with a picture for each control character: no words may move the cursor or change its colours."""
    return _CONTROL.sub(lambda char: _picture(ord(char[0])), text)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _picture(code: int) -> str:
    return "\u2421" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else "\ufffd"


def _escape_html(text: str) -> str:
    return html.escape(text, quote=False)


def _html_pre(text: str, language: str) -> str:
    if language:
        return f'<pre><code class="language-{html.escape(language)}">{_escape_html(text)}</code></pre>'
    return f"<pre>{_escape_html(text)}</pre>"


def _html_link(label: str, href: str) -> str:
    return f'<a href="{html.escape(href)}">{label or _escape_html(href)}</a>'


def _html_quote(text: str, depth: int) -> str:
    # Telegram refuses a blockquote inside a blockquote.
    return f"<blockquote>{text}</blockquote>" if depth == 1 else _prefix(text, "&gt; ")


def _prefix(text: str, marker: str) -> str:
    return "\n".join(f"{marker}{line}" for line in text.split("\n"))


#: A literal marker that would start formatting on Slack and WhatsApp: it has a partner on the same line.
_LITERAL = re.compile(r"(?<!\w)([*_~])(?=[^\s*_~][^\n]{0,200}?\1(?!\w))")


def _defuse(text: str) -> str:
    """Neither platform has an escape character, so a gap stops literal markers from formatting."""
    return _LITERAL.sub(rf"\1{GAP}", text.replace("`", f"`{GAP}") if text.count("`") > 1 else text)


def _escape_slack(text: str) -> str:
    return _escape_html(_defuse(text))


def _slack_code(text: str) -> str:
    return _escape_html(text) if "`" in text else f"`{_escape_html(text)}`"


def _slack_pre(text: str, language: str) -> str:
    return f"```\n{_escape_html(_no_fence(text))}\n```"


def _no_fence(text: str) -> str:
    """Backticks in a row, kept apart: inside code they would end it."""
    return text.replace("``", f"`{GAP}`").replace("``", f"`{GAP}`")


def _slack_link(label: str, href: str) -> str:
    target = _escape_html(href.replace("|", "%7C").replace("<", "%3C").replace(">", "%3E"))
    words = label.replace("\n", " ")
    if words in ("", target, target.removeprefix("mailto:")):
        return f"<{target}>"
    return f"<{target}|{words}>"


def _whatsapp_code(text: str) -> str:
    return text if "`" in text else f"`{text}`"


def _whatsapp_pre(text: str, language: str) -> str:
    return f"```\n{_no_fence(text)}\n```"


def _bare_link(label: str, href: str) -> str:
    """The label with the address behind it, once if they say the same."""
    if label in ("", href, href.removeprefix("mailto:"), href.removeprefix("tel:")):
        return label or href.removeprefix("mailto:").removeprefix("tel:")
    return f"{label} ({href})"


def _pre_words(text: str, language: str) -> str:
    return text


def _visible_pre(text: str, language: str) -> str:
    return _visible(text)


def _visible_link(label: str, href: str) -> str:
    return _bare_link(label, _visible(href))


#: How many columns a phone shows, and what stands beside a workspace's list of channels.
_PHONE, _DESK = 36, 64
_MARKERS = {"strong": ("*", "*"), "em": ("_", "_"), "s": ("~", "~")}

_HTML = _Dialect(
    escape=_escape_html,
    marks={"strong": ("<b>", "</b>"), "em": ("<i>", "</i>"), "s": ("<s>", "</s>")},
    code=lambda text: f"<code>{_escape_html(text)}</code>",
    pre=_html_pre,
    link=_html_link,
    quote=_html_quote,
    solid=False,
    columns=_PHONE,
)
_MRKDWN = _Dialect(
    escape=_escape_slack,
    marks=_MARKERS,
    code=_slack_code,
    pre=_slack_pre,
    link=_slack_link,
    quote=lambda text, depth: _prefix(text, "&gt; ") if depth > 1 else _prefix(text, "> "),
    columns=_DESK,
)
_WHATSAPP = _Dialect(
    escape=_defuse,
    marks=_MARKERS,
    code=_whatsapp_code,
    pre=_whatsapp_pre,
    link=_bare_link,
    quote=lambda text, depth: _prefix(text, "> "),
    columns=_PHONE,
)
_PLAIN = _Dialect(
    escape=_words,
    marks={"strong": ("", ""), "em": ("", ""), "s": ("", "")},
    code=_words,
    pre=_pre_words,
    link=_bare_link,
    quote=lambda text, depth: _prefix(text, "> "),
    solid=False,
)
_TERMINAL = replace(_PLAIN, escape=_visible, code=_visible, pre=_visible_pre, link=_visible_link)
_ANSI = replace(
    _TERMINAL,
    marks={"strong": ("\x1b[1m", "\x1b[22m"), "em": ("\x1b[3m", "\x1b[23m"), "s": ("\x1b[9m", "\x1b[29m")},
)


# A page of ours formats by itself: the tokens are changed where it would hide something, or link to anything.


def _without_overfull(tokens: Sequence[Token], source: Sequence[str]) -> Iterator[Token]:
    """The tokens; a table whose rows have cells beyond its last column, which would be dropped, as it was written."""
    hidden = False
    for token in tokens:
        lines = source[slice(*token.map)] if token.type == "table_open" and token.map else []
        if lines and _is_overfull(lines):
            hidden = True
            yield Token("code_block", "code", 0, content="\n".join(lines))
        if not hidden:
            yield token
        hidden = hidden and token.type != "table_close"


def _for_page(token: Token) -> Token:
    # Table cells come with a style attribute, which our Content-Security-Policy forbids.
    style = str(token.attrs.pop("style", ""))
    if style:
        token.attrs["class"] = style.rpartition(":")[2]
    if token.type == "fence":
        language = _LANGUAGE.match(token.info)
        title = token.info[language.end() :].strip() if language else token.info.strip()
        token.info, token.content = language[1] if language else "", f"{title}\n{token.content}".removeprefix("\n")
    if token.children:
        _keep_arithmetic(token.children)
        token.children = list(_guarded(token.children))
    return token


def _keep_arithmetic(tokens: Sequence[Token]) -> None:
    """2*3*4 is arithmetic, on a page too."""
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.type not in ("em_open", "strong_open", "s_open", "em_close", "strong_close", "s_close"):
            continue
        if token.nesting == 1:
            opened.append(index)
            continue
        start = opened.pop()
        before = tokens[start - 1].content[-1:] if start else ""
        after = tokens[index + 1].content[:1] if index + 1 < len(tokens) else ""
        if before.isalnum() and after.isalnum():
            for mark in (tokens[start], token):
                mark.type, mark.tag, mark.nesting, mark.content = "text", "", 0, mark.markup


def _guarded(tokens: Sequence[Token]) -> Iterator[Token]:
    """The tokens, with links that know nothing of our page; what is no link any more, and titles, as words."""
    behind: list[str] = []
    for token in tokens:
        if token.type == "link_open":
            href, title = str(token.attrGet("href") or ""), token.attrGet("title")
            allowed = _ALLOWED.match(href)
            token.attrs = {"href": href, "rel": "noopener", "target": "_blank"} if allowed else {}
            address = "" if allowed or not href else f" ({href})"
            behind.append((f' "{title}"' if title else "") + address)
        if token.type == "link_close" and behind[-1]:
            yield Token("text", "", 0, content=behind[-1])
        if token.type == "link_close":
            behind.pop()
        yield token


# Splitting works on the Markdown, and measures what a platform would count.

Measure = Callable[[str], int]

#: How many source characters per unit of the limit are looked at: formatting is mostly shorter than its source.
_WINDOW = 4
#: How often an end is guessed, and how full a piece ought to be.
_GUESSES, _FULL = 8, 0.85
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
#: Spans that a cut would break: links, inline code, bold.
_SPAN = re.compile(r"\[[^\[\]\n]*\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*\)|`[^`\n]+`|\*\*[^*\n]+\*\*|https?://\S+")
#: What the rest of a cut line would be read as, if it began one: a heading, a quote, a list, a rule, code, a link's
#: address. What is escaped comes after the digits of a numbered list.
_BLOCK_START = re.compile(
    r"""([\ \t]*(?:\d{1,9}(?=[.)](?:\s|$))|))
    (?=(?<=\d)[.)] | \#{1,6}(?:\s|$) | > | [-+*](?:\s|$) | ([-*_=])[\ \t]*(?:\2[\ \t]*)*$
        | `{3} | ~{3} | \[[^\]\n]*\]:)""",
    re.MULTILINE | re.VERBOSE,
)
_BOUNDARIES = (re.compile(r"\n[ \t]*\n+"), re.compile(r"\n(?=\S)"), re.compile(r"\n"), re.compile(r"\s+"))
_TABLE_RULE = re.compile(r" {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")


def split(md: str, limit: int, measure: Measure = len) -> list[str]:
    """Cut Markdown into pieces whose `measure` is at most `limit`, in a time that grows with its length and no faster.

    Cuts fall between paragraphs, else lines, else words, else characters. A fenced code block that must be cut is
    closed and opened again, a table that is cut between two rows begins with its head again, and the rest of a cut line
    that would begin a heading, list or the like is escaped; nothing else is added and nothing is dropped. Raises
    ValueError on a limit below 1.
    """
    if limit < 1:
        raise ValueError(f"limit {limit!r} is too small: use at least 1")
    pieces: list[str] = []
    start, opening, tape = 0, "", _Tape(measure)
    while start < len(md):
        piece, start, opening = _Cut(md, start, opening, limit, tape).best()
        pieces.append(piece)
        tape.known.clear()
    return pieces


def head(md: str, limit: int, measure: Measure = len) -> str:
    """The first of the pieces that `split` cuts this Markdown into: "" of nothing."""
    return _Cut(md, 0, "", limit, _Tape(measure)).best()[0] if md else ""


def fits(md: str, limit: int, measure: Measure = len) -> bool:
    """Whether `split` leaves this Markdown in one piece."""
    return len(md) <= _WINDOW * limit and measure(md) <= limit


@dataclass(slots=True)
class _Tape:
    """Measures, and the same text only once: that takes nearly all the time there is.

    `density` is what a character of the source last came to, 0 as long as nobody knows.
    """

    measure: Measure
    density: float = 0.0
    known: dict[str, int] = field(default_factory=dict)

    def length(self, text: str) -> int:
        if text not in self.known:
            self.known[text] = self.measure(text)
        return self.known[text]


@dataclass(frozen=True, slots=True)
class _Cut:
    """One cut: `start` is where the piece begins, `opening` the fence line or the table's head it must repeat."""

    md: str
    start: int
    opening: str
    limit: int
    tape: _Tape
    escapes: bool = True

    def best(self) -> tuple[str, int, str]:
        if self.escapes and not self._fits(self.start + 1):  # no room even for that
            return replace(self, escapes=False).best()
        if self._may_be_last() and self._fits(len(self.md)):
            return self._piece(len(self.md)), len(self.md), ""
        end = self._guess() or self._whole_character(self._furthest())
        if self.opening and not self._fits(end):
            # Not even one character fits beside the repeated lines: give those up, never the text or the limit.
            return replace(self, opening="").best()
        return self._piece(end), end, self._open_fence(end) or self._table_head(end)

    def _may_be_last(self) -> bool:
        """Whether it is worth measuring all that is left."""
        left = len(self.md) - self.start
        return left <= _WINDOW * self.limit and left * self.tape.density <= 2 * self.limit

    def _guess(self) -> int:
        """A good place to cut that nearly fills the limit, by rule of three: mostly one measurement instead of a dozen.

        0 if none of those it tried fits.
        """
        low, high = self.start, min(len(self.md), self.start + _WINDOW * self.limit) + 1
        best, size = 0, self._size()
        for number in range(_GUESSES):
            far = self.start + size
            if not low < far < high or number > _GUESSES // 2:
                far = (low + high) // 2
            end = self._place(far) if far > low else self.start
            if end <= max(self.start, best):
                break
            measured = self._length(end)
            if measured > self.limit:
                high = far
            else:
                low, best = far, end
                if measured * (far - self.start) >= _FULL * self.limit * (end - self.start):
                    break
            size = self._size()
        return best

    def _size(self) -> int:
        """How many characters should fill the limit, a few less where each comes to something else."""
        density = self.tape.density
        return self.limit if density in (0, 1) else max(1, int(0.96 * self.limit / density))

    def _place(self, far: int) -> int:
        """Where to cut up to there."""
        if far >= len(self.md):
            return len(self.md)
        return next(self._boundaries(far), None) or self._whole_character(far)

    def _furthest(self) -> int:
        """The furthest end that fits, by bisection: longer text measures longer, give or take a marker."""
        low, high = self.start + 1, min(len(self.md), self.start + _WINDOW * self.limit)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._fits(middle) else (low, middle - 1)
        return low

    def _boundaries(self, end: int) -> Iterator[int]:
        """Good places to cut, best first: the last paragraph, line or word in the second half of the piece."""
        middle = self.start + (end - self.start) // 2
        spans = [match.span() for match in _SPAN.finditer(self.md, self.start, min(len(self.md), end + 2048))]
        for pattern in _BOUNDARIES:
            cuts = [match.end() for match in pattern.finditer(self.md, middle, end) if match.end() > self.start]
            for cut in reversed(cuts):
                span = bisect.bisect_left(spans, (cut, 0)) - 1  # the last one that begins before it
                if (span < 0 or spans[span][1] <= cut) and not _joined(self.md, cut, self.start):
                    yield cut

    def _whole_character(self, end: int) -> int:
        """The last cut between two characters up to there, or half of one that is longer than the piece."""
        cut = end
        while cut > self.start and _joined(self.md, cut, self.start):
            cut -= 1
        return cut if cut > self.start else end

    def _fits(self, end: int) -> bool:
        if end - self.start > _WINDOW * self.limit:
            return False
        return self._length(end) <= self.limit

    def _length(self, end: int) -> int:
        measured = self.tape.length(self._piece(end))
        if end - self.start > 1:
            self.tape.density = measured / (end - self.start)
        return measured

    def _piece(self, end: int) -> str:
        text = self.opening + self._text(end)
        fence = self._open_fence(end) if end < len(self.md) else ""
        if not fence:
            return text
        return text + ("" if text.endswith("\n") else "\n") + _marker(fence) + "\n"

    def _text(self, end: int) -> str:
        text = self.md[self.start : end]
        if not self.escapes or self.opening or not self.start or self.md[self.start - 1] == "\n":
            return text
        found = _BLOCK_START.match(text)
        return f"{found[0]}\\{text[found.end() :]}" if found and found.end() < len(text) else text

    def _open_fence(self, end: int) -> str:
        """The line that opened the code block a cut at `end` falls into, or ""."""
        opened = ""
        for match in _FENCE.finditer(self.opening + self._text(end)):
            marker = match.group(1)
            if not opened:
                opened = "" if "`" in match.group(2) and marker[0] == "`" else match.group().strip(" ") + "\n"
            elif marker.startswith(_marker(opened)) and not match.group(2).strip():
                opened = ""
        # A fence line too long to repeat in every piece is not worth keeping.
        return opened if len(opened) + len(_marker(opened)) < self.limit // 2 else ""

    def _table_head(self, end: int) -> str:
        """The head of a table that a cut at `end` falls into, between two of its rows, or ""."""
        below = self.md.find("\n", end)
        bar = self.md.find("|", end, below if below >= 0 else len(self.md))
        if bar < 0 or self.md[end - 1] != "\n" or self._open_fence(end):
            return ""
        lines = (self.opening + self._text(end)).split("\n")[:-1]
        head = ""
        for name, rule in itertools.pairwise(lines):
            if "|" not in rule:
                head = ""
            elif not head and "|" in name and _TABLE_RULE.fullmatch(rule) and _cells(name) == _cells(rule):
                head = f"{name}\n{rule}\n"
        # As with fences: one too long to repeat is not worth keeping.
        return head if len(head) < self.limit // 2 else ""


def _marker(fence: str) -> str:
    """The run of backticks or tildes that opens, and therefore closes, a fence."""
    return fence[: len(fence) - len(fence.lstrip(fence[0]))] if fence else ""


def _joined(text: str, cut: int, start: int) -> bool:
    """Whether a cut here would fall inside what a reader sees as one character of a piece that begins at `start`."""
    if not 0 < cut < len(text):
        return False
    before, after = text[cut - 1], text[cut]
    return (
        unicodedata.category(after).startswith("M")
        or "\u200d" in (before, after)
        or "\U0001f3fb" <= after <= "\U0001f3ff"
        or ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")
        or (before == "\r" and after == "\n")
        or (before == "\\" and not after.isalnum() and _backslashes_before(text, cut, start) % 2 == 1)
        or (_is_flag_half(after) and _flag_halves_before(text, cut, start) % 2 == 1)
    )


def _backslashes_before(text: str, cut: int, start: int) -> int:
    piece = text[start:cut]
    return len(piece) - len(piece.rstrip("\\"))


def _flag_halves_before(text: str, cut: int, start: int) -> int:
    count = 0
    while cut - start > count and _is_flag_half(text[cut - count - 1]):
        count += 1
    return count


def _is_flag_half(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"
