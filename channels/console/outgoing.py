"""A reply as bubbles of the console page, and Markdown as the page's HTML.

A bubble is one message of the bot on the page. The parser turns Markdown into tokens, such as the
opening of a list or a text, and its renderer turns tokens into HTML. In between, the tokens are
changed here, so that the HTML hides nothing and runs no script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

from markdown_it.token import Token

from sayso.channels.console.store import FeedEntry
from sayso.channels.edit_form import EditForm, FormField
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.convert import ALLOWED_ADDRESS, LANGUAGE, button_text, plain
from sayso.channels.markdown.dialects import escape_html, hides_host
from sayso.channels.markdown.emphasis import is_inside_word
from sayso.channels.markdown.list_numbers import list_numbers
from sayso.channels.markdown.parser import parser, source_lines
from sayso.channels.markdown.split import split
from sayso.channels.markdown.tables import is_overfull
from sayso.channels.types import Delivery, Media, Reply

#: The longest text in one bubble, in characters of Markdown.
MAX_PIECE_CHARS = 16_000
#: A button shows what a tap on it does (`Button.effect`) in place of its label, unless that is
#: longer than this. In UTF-16 code units.
EFFECT_LIMIT = 80


def pieces_of(reply: Reply) -> Sequence[Reply]:
    """Return the bubbles of a reply: one, or several for a long text.

    The first one has the file, and takes the place of the message that the reply edits or removes.
    The last one has the buttons. A reply without text, buttons and file has no bubble; a reply that
    removes a message has a text, for platforms that cannot.
    """
    if reply.preview:
        reply = reply.with_preview(format_preview)
    texts = split(reply.text, MAX_PIECE_CHARS)
    if not texts and (reply.buttons or reply.media):
        texts = [""]
    # Other fields of a reply, such as `only_for`, mean nothing on the page and are left out.
    pieces = [Reply(text, language=reply.language, optional=reply.optional) for text in texts]
    if not pieces:
        return ()

    pieces[0] = replace(
        pieces[0],
        media=reply.media,
        edits=reply.edits,
        removes=reply.removes,
    )
    pieces[-1] = replace(pieces[-1], buttons=reply.buttons, answer_seconds=reply.answer_seconds)
    return tuple(pieces)


def format_preview(md: str) -> str:
    """Return how the page shows the preview of a question: like the text around it.

    Marks that set it apart, such as those of bold text, would be added here.
    """
    return md


def bubble(delivery: Delivery) -> FeedEntry:
    """Return the entry of one bubble."""
    reply = delivery.reply
    html = ""
    copied_text = ""
    if reply.text:
        html = page_html(reply.text)
        copied_text = plain(reply.text)

    buttons = []
    for button in reply.buttons:
        label = button_text(button, EFFECT_LIMIT)
        buttons.append({"label": label, "data": button.data, "style": button.style})
    return {
        "type": "bubble",
        "delivery": delivery.id,
        "html": html,
        # What the page's Copy button copies.
        "text": copied_text,
        "buttons": buttons,
        "seconds": reply.answer_seconds,
        "media": file_entry(reply.media) if reply.media else None,
    }


def form_json(form: EditForm) -> dict[str, Any]:
    """Return the form of a question as the page shows it.

    Its texts are in the question's language.
    """
    texts = texts_for(form.language)
    return {
        "title": texts.change_label,
        "submit": texts.form_submit(),
        "cancel": texts.form_cancel(),
        "note": texts.form_note(),
        "language": texts.language,
        "fields": [_field_json(field) for field in form.fields],
    }


def _field_json(field: FormField) -> dict[str, Any]:
    return {
        "name": field.name,
        "label": field.label,
        "type": field.type,
        "value": field.text,
        "description": field.description,
        "choices": list(field.choice_texts),
        "required": field.required,
        "isLong": field.is_long,
        "maxChars": field.max_chars,
    }


def file_entry(media: Media) -> dict[str, str]:
    """Return a file as entries name it.

    Its link is added each time that the page reads the feed, since links expire.
    """
    return {"ref": media.ref, "mime": media.mime_type, "filename": media.filename}


def page_html(md: str) -> str:
    """Return Markdown as HTML that runs no scripts and hides nothing.

    It has no raw HTML and no images, and links only to the web, mail and phones.
    """
    markdown = parser(images=False)
    tokens = list(_without_overfull_tables(markdown.parse(md), source_lines(md)))
    _number_items(tokens)
    for token in tokens:
        # Table cells have a style attribute, which the page's Content-Security-Policy forbids. The
        # style sheet has a class for each: "right" for "text-align:right".
        style = str(token.attrs.pop("style", ""))
        if style:
            token.attrs["class"] = style.rpartition(":")[2]
        if token.type == "fence":
            _show_title(token)
        if token.children:
            _unmark_arithmetic(token.children)
            token.children = list(_guard_links(token.children))

    html = str(markdown.renderer.render(tokens, markdown.options, {}))
    # The style sheet shows each space and line end of a paragraph, so that columns of a tool's text
    # stay aligned. It would show this line end too.
    html = html.replace("<br />\n", "<br />")
    # Markdown that renders to nothing, such as an empty link, is shown as its source.
    if not re.sub(r"<[^>]*>|\s", "", html):
        return f"<p>{escape_html(md)}</p>\n"
    return html


def _show_title(fence: Token) -> None:
    """Move the title of a code block, which follows its language, into the code.

    The renderer would hide it.
    """
    language = LANGUAGE.match(fence.info)
    if language:
        title = fence.info[language.end() :].strip()
        fence.info = language[1]
    else:
        title = fence.info.strip()
        fence.info = ""
    fence.content = f"{title}\n{fence.content}".removeprefix("\n")


def _without_overfull_tables(tokens: Sequence[Token], source: Sequence[str]) -> Iterator[Token]:
    """Yield the tokens, with the source of each table that has cells beyond its last column.

    The parser drops such cells, and nothing may be lost. `source` is the lines of the Markdown.
    """
    is_in_replaced_table = False
    for token in tokens:
        lines: Sequence[str] = []
        if token.type == "table_open" and token.map:
            lines = source[slice(*token.map)]
        if lines and is_overfull(lines):
            is_in_replaced_table = True
            yield Token("code_block", "code", 0, content="\n".join(lines))

        if not is_in_replaced_table:
            yield token
        elif token.type == "table_close":
            is_in_replaced_table = False


def _number_items(tokens: Sequence[Token]) -> None:
    """Give each item of an ordered list the number that was written.

    The attribute `value` is the number, for browsers and screen readers. The style sheet shows
    `data-marker`, which is set where the browser would write the number otherwise, such as "5)" or
    "007.". Long numbers need a wider margin.
    """
    # The lists that are open, each with its items so far.
    lists: list[tuple[Token, list[Token]]] = []
    for token in tokens:
        if token.type in ("ordered_list_open", "bullet_list_open"):
            lists.append((token, []))
        elif token.type == "list_item_open":
            lists[-1][1].append(token)
        elif token.type in ("ordered_list_close", "bullet_list_close"):
            opening, items = lists.pop()
            if token.type == "ordered_list_close":
                _number(opening, items)


def _number(opening: Token, items: Sequence[Token]) -> None:
    """Give the items of one list their numbers. `opening` is the token that opens the list."""
    numbers = list_numbers(items)
    for item, number in zip(items, numbers, strict=True):
        digits = number[: -len(". ")]
        value = str(int(digits))
        item.attrs["value"] = value
        if number != f"{value}. ":
            item.attrs["data-marker"] = number

    longest = max(map(len, numbers))
    if longest > len("99. "):
        opening.attrs["class"] = "wide" if longest <= len("9999. ") else "wider"


def _unmark_arithmetic(tokens: Sequence[Token]) -> None:
    """Turn the marks around a part of a word back into text, as in 2*3*4 and foo*bar*baz.

    Between Chinese characters and the like, where words have no spaces around them, only a single
    asterisk is turned back (`is_inside_word`).
    """
    visible = [token for token in tokens if token.type != "text" or token.content]
    # The places of the marks that are open.
    opened: list[int] = []
    for index, token in enumerate(visible):
        if token.type.rpartition("_")[0] not in ("em", "strong", "s"):
            continue
        if token.nesting == 1:
            opened.append(index)
            continue

        start = opened.pop()
        name = token.type.removesuffix("_close")
        # The marks of ***bold and italic*** text are an `em` around a `strong`: this `em` is no
        # single asterisk.
        inside = (visible[start + 1].type, visible[index - 1].type)
        if inside == ("strong_open", "strong_close"):
            name = "strong"
        touches_word_before = is_inside_word(name, _character_before(visible, start))
        touches_word_after = is_inside_word(name, _character_after(visible, index))
        if touches_word_before and touches_word_after:
            for mark in (visible[start], token):
                mark.type = "text"
                mark.tag = ""
                mark.nesting = 0
                mark.content = mark.markup


def _character_before(tokens: Sequence[Token], index: int) -> str:
    """Return the character before a mark, and before what else opens there; "" for none.

    `index` is the place of the mark's token. A link may open there, too.
    """
    while index and tokens[index - 1].nesting == 1:
        index -= 1
    if index:
        return tokens[index - 1].content[-1:]
    return ""


def _character_after(tokens: Sequence[Token], index: int) -> str:
    """Return the character after a mark, and after what else closes there; "" for none."""
    rest = (token for token in tokens[index + 1 :] if token.nesting != -1)
    following = next(rest, None)
    if following:
        return following.content[:1]
    return ""


def _guard_links(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens of a text with links that hide nothing and cannot reach the page.

    Each token that opens a link is changed, and what the link hides is shown as text.
    """
    # What the open link hides. No link is inside another one.
    hidden = _HiddenText()
    for index, token in enumerate(tokens):
        if token.type == "link_open":
            label_tokens = takewhile(lambda each: each.type != "link_close", tokens[index + 1 :])
            label = "".join(each.content for each in label_tokens)
            hidden = _guard_link(token, label)

        if token.type != "link_close":
            yield token
            continue
        if hidden.in_link:
            yield Token("text", "", 0, content=hidden.in_link)
        yield token
        if hidden.behind_link:
            yield Token("text", "", 0, content=hidden.behind_link)


class _HiddenText(NamedTuple):
    """What a link hides, as the page shows it; "" for nothing."""

    #: Shown at the end of the link's label.
    in_link: str = ""
    #: Shown behind the link.
    behind_link: str = ""


def _guard_link(opening: Token, label: str) -> _HiddenText:
    """Change the token that opens a link, and return what the link hides.

    `label` is the text of the link. A title is hidden, because it is seen only by hovering. An
    address is hidden if the label does not show its host, or if the link is no link any more: one
    to anything else than the web, mail and phones becomes text.
    """
    href = str(opening.attrGet("href") or "")
    title = opening.attrGet("title")
    shown_title = f' "{title}"' if title else ""
    if not ALLOWED_ADDRESS.match(href):
        opening.attrs = {}
        shown_address = f" ({href})" if href else ""
        return _HiddenText(in_link=shown_title + shown_address)

    opening.attrs = {"href": href, "rel": "noopener", "target": "_blank"}
    # The label is escaped, because `hides_host` takes one with entities such as `&amp;`.
    if hides_host(escape_html(label), href):
        return _HiddenText(in_link=shown_title, behind_link=f" ({href})")
    return _HiddenText(in_link=shown_title)
