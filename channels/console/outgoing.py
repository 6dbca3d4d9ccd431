"""A reply as bubbles of the console page, and Markdown as the page's HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from markdown_it.token import Token

from sayso.channels.console.store import FeedEntry
from sayso.channels.forms import EditForm, FormField
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown import (
    ALLOWED,
    LANGUAGE,
    button_text,
    is_overfull,
    list_numbers,
    parser,
    plain,
)
from sayso.channels.markdown.dialects import escape_html, hides_host
from sayso.channels.markdown.emphasis import is_inside_word
from sayso.channels.markdown.split import split
from sayso.channels.types import Delivery, Media, Reply

#: The longest text in one bubble, in characters.
MAX_PIECE_CHARS = 16_000
#: How many characters of an effect a button shows.
EFFECT_LIMIT = 80


def pieces_of(reply: Reply) -> Sequence[Reply]:
    """Return one bubble, or several for a long text.

    The file is on the first one, buttons are on the last one.
    """
    if reply.preview:
        reply = reply.with_preview(format_preview)
    texts = split(reply.text, MAX_PIECE_CHARS)
    if not texts and (reply.buttons or reply.media):
        texts = [""]
    bubbles = [Reply(text, language=reply.language, optional=reply.optional) for text in texts]
    if bubbles:
        bubbles[0] = replace(
            bubbles[0],
            media=reply.media,
            edits=reply.edits,
            removes=reply.removes,
        )
        bubbles[-1] = replace(
            bubbles[-1], buttons=reply.buttons, answer_seconds=reply.answer_seconds
        )
    return tuple(bubbles)


def format_preview(md: str) -> str:
    """Return the preview of a question in Markdown: like the text around it.

    It may have several lines.
    """
    return md


def bubble(delivery: Delivery) -> FeedEntry:
    """Return the entry of one bubble."""
    reply = delivery.reply
    media = reply.media
    return {
        "type": "bubble",
        "delivery": delivery.id,
        "html": page_html(reply.text),
        "text": plain(reply.text) if reply.text else "",  # for Copy
        "buttons": [
            {"label": button_text(button, EFFECT_LIMIT), "data": button.data, "style": button.style}
            for button in reply.buttons
        ],
        "seconds": reply.answer_seconds,
        "media": media and file_entry(media),
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
    """Return a file as entries name it. Its link is added when the page reads the feed."""
    return {"ref": media.ref, "mime": media.mime_type, "filename": media.filename}


def page_html(md: str) -> str:
    """Return Markdown as HTML that runs no scripts and hides nothing.

    It has no raw HTML and no images, and links only to the web, mail and phones.
    """
    markdown = parser(images=False)
    tokens = list(_without_overfull_tables(markdown.parse(md), md.split("\n")))
    _number_items(tokens)
    for token in tokens:
        # Table cells have a style attribute, which the page's Content-Security-Policy forbids.
        style = str(token.attrs.pop("style", ""))
        if style:
            token.attrs["class"] = style.rpartition(":")[2]
        if token.type == "fence":
            language = LANGUAGE.match(token.info)
            if language:
                title = token.info[language.end() :].strip()
            else:
                title = token.info.strip()
            token.info = language[1] if language else ""
            token.content = f"{title}\n{token.content}".removeprefix("\n")
        if token.children:
            _unmark_arithmetic(token.children)
            token.children = list(_guard_links(token.children))
    # The style sheet shows each space and line end of a paragraph,
    # so that columns of a tool's text stay aligned.
    html = markdown.renderer.render(tokens, markdown.options, {}).replace("<br />\n", "<br />")
    if re.sub(r"<[^>]*>|\s", "", html):
        return str(html)
    return f"<p>{escape_html(md)}</p>\n"


def _without_overfull_tables(tokens: Sequence[Token], source: Sequence[str]) -> Iterator[Token]:
    """Yield the tokens. Cells beyond the last column of a table must not be lost.

    A table that has some is yielded with its source.
    """
    hidden = False
    for token in tokens:
        if token.type == "table_open" and token.map:
            lines = source[slice(*token.map)]
        else:
            lines = []
        if lines and is_overfull(lines):
            hidden = True
            yield Token("code_block", "code", 0, content="\n".join(lines))
        if not hidden:
            yield token
        hidden = hidden and token.type != "table_close"


def _number_items(tokens: Sequence[Token]) -> None:
    """Give each item of an ordered list the number that was written.

    `value` is the number, for browsers and screen readers. The style sheet shows `data-marker`,
    which is set where the browser would write the number otherwise, such as "5)" or "007.". Long
    numbers need a wider margin.
    """
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
    numbers = list_numbers([(item.info, item.markup) for item in items])
    for item, number in zip(items, numbers, strict=True):
        value = str(int(number[:-2]))
        item.attrs["value"] = value
        if number != f"{value}. ":
            item.attrs["data-marker"] = number

    longest = max(map(len, numbers))
    if longest > len("99. "):
        opening.attrs["class"] = "wide" if longest <= len("9999. ") else "wider"


def _unmark_arithmetic(tokens: Sequence[Token]) -> None:
    """Turn marks in the middle of a word back into text: 2*3*4 is arithmetic."""
    visible = [token for token in tokens if token.type != "text" or token.content]
    opened: list[int] = []
    for index, token in enumerate(visible):
        if token.type not in (
            "em_open",
            "strong_open",
            "s_open",
            "em_close",
            "strong_close",
            "s_close",
        ):
            continue
        if token.nesting == 1:
            opened.append(index)
            continue
        start = opened.pop()
        name = token.type.removesuffix("_close")
        if (visible[start + 1].type, visible[index - 1].type) == ("strong_open", "strong_close"):
            name = "strong"  # ***bold and italic*** is no arithmetic
        if is_inside_word(name, _text_before(visible, start)) and is_inside_word(
            name, _text_after(visible, index)
        ):
            for mark in (visible[start], token):
                mark.type = "text"
                mark.tag = ""
                mark.nesting = 0
                mark.content = mark.markup


def _text_before(tokens: Sequence[Token], index: int) -> str:
    """Return the character before a mark and the marks that open right before it."""
    while index and tokens[index - 1].nesting == 1:
        index -= 1
    if index:
        return tokens[index - 1].content[-1:]
    return ""


def _text_after(tokens: Sequence[Token], index: int) -> str:
    """Return the character after a mark and the marks that close right after it."""
    rest = (token for token in tokens[index + 1 :] if token.nesting != -1)
    following = next(rest, None)
    if following:
        return following.content[:1]
    return ""


def _guard_links(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens with links that cannot access the page.

    Titles and forbidden addresses become text.
    """
    suffixes: list[str] = []
    hidden_address = ""
    for index, token in enumerate(tokens):
        if token.type == "link_open":
            href = str(token.attrGet("href") or "")
            title = token.attrGet("title")
            allowed = ALLOWED.match(href)
            if allowed:
                token.attrs = {"href": href, "rel": "noopener", "target": "_blank"}
            else:
                token.attrs = {}
            address = "" if allowed or not href else f" ({href})"
            rest = takewhile(lambda each: each.type != "link_close", tokens[index + 1 :])
            label = "".join(each.content for each in rest)
            suffixes.append((f' "{title}"' if title else "") + address)
            hidden_address = ""
            if allowed and hides_host(escape_html(label), href):
                hidden_address = href
        if token.type == "link_close" and suffixes[-1]:
            yield Token("text", "", 0, content=suffixes[-1])
        if token.type == "link_close":
            suffixes.pop()
        yield token
        if token.type == "link_close" and hidden_address:
            yield Token("text", "", 0, content=f" ({hidden_address})")
