"""Page: Markdown on a page of ours, which formats by itself.

The tokens are changed where it would hide something, or link to anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from markdown_it.token import Token

from sayso.channels.markdown.dialects import escape_html, hides_host
from sayso.channels.markdown.parse import ALLOWED, LANGUAGE, is_overfull, parser


def page_html(md: str) -> str:
    """Markdown as HTML for a page of ours, which cannot run anything and hides nothing.

    No raw HTML, no images, links to the web, mail and phones only.
    """
    tokens = [_for_page(token) for token in _without_overfull(parser(images=False).parse(md), md.split("\n"))]
    made = parser(images=False).renderer.render(tokens, parser(images=False).options, {})
    return str(made) if re.sub(r"<[^>]*>|\s", "", made) else f"<p>{escape_html(md)}</p>\n"


def _without_overfull(tokens: Sequence[Token], source: Sequence[str]) -> Iterator[Token]:
    """The tokens; a table whose rows have cells beyond its last column, which would be dropped, as it was written."""
    hidden = False
    for token in tokens:
        lines = source[slice(*token.map)] if token.type == "table_open" and token.map else []
        if lines and is_overfull(lines):
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
        language = LANGUAGE.match(token.info)
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
    foreign = ""
    for index, token in enumerate(tokens):
        if token.type == "link_open":
            href, title = str(token.attrGet("href") or ""), token.attrGet("title")
            allowed = ALLOWED.match(href)
            token.attrs = {"href": href, "rel": "noopener", "target": "_blank"} if allowed else {}
            address = "" if allowed or not href else f" ({href})"
            behind.append((f' "{title}"' if title else "") + address)
            foreign = href if allowed and hides_host(_label(tokens[index + 1 :]), href) else ""
        if token.type == "link_close" and behind[-1]:
            yield Token("text", "", 0, content=behind[-1])
        if token.type == "link_close":
            behind.pop()
        yield token
        if token.type == "link_close" and foreign:
            yield Token("text", "", 0, content=f" ({foreign})")


def _label(tokens: Sequence[Token]) -> str:
    """Return the words of the link that begins here."""
    return "".join(token.content for token in takewhile(lambda each: each.type != "link_close", tokens))
