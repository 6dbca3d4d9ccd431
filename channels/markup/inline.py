"""Inline: one paragraph's tokens in a dialect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from markdown_it.token import Token

from sayso.channels.markup.dialects import Dialect, bare_link
from sayso.channels.markup.links import hides_host
from sayso.channels.markup.reading import ALLOWED


def inline_text(tokens: Sequence[Token], dialect: Dialect, bold: bool = False) -> str:
    """One paragraph; `bold` says that it stands in bold already."""
    walk = _Inline(dialect, ["strong"] if bold else [])
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        walk.take(token, following.content[:1] if following and following.type == "text" else "")
    return "".join(walk.frames[0])


@dataclass(slots=True)
class _Inline:
    """Builds one paragraph; `active` names the marks we are inside of, so that none is nested in itself."""

    dialect: Dialect
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
        inside = _without_links(self.dialect)
        alt = inline_text(token.children or [], inside) + self._title(token)
        self.frames[-1].append(_link(inside if self.hrefs else self.dialect, alt, str(token.attrGet("src") or "")))

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


def _without_links(dialect: Dialect) -> Dialect:
    """For what stands in a link already: of two addresses a platform would show one, or neither."""
    return (
        replace(dialect, link=lambda label, href: bare_link(label, dialect.escape(href)), hides=False)
        if dialect.hides
        else dialect
    )


def _link(dialect: Dialect, label: str, href: str) -> str:
    if not ALLOWED.match(href):
        address = dialect.escape(href)
        return label if address in ("", label) else f"{label} ({address})".strip()
    link = dialect.link(label, href)
    return f"{link} ({dialect.address(href)})" if dialect.hides and hides_host(label, href) else link
