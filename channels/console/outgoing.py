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
from typing import Any

from markdown_it.token import Token

from sayso.channels.console.store import FeedEntry
from sayso.channels.edit_form import EditForm, FormField
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.convert import ALLOWED_ADDRESS, LANGUAGE, button_text, plain
from sayso.channels.markdown.dialects import escape_html, hides_host
from sayso.channels.markdown.emphasis import is_inside_word
from sayso.channels.markdown.list_numbers import list_numbers
from sayso.channels.markdown.parser import parser
from sayso.channels.markdown.split import split
from sayso.channels.markdown.tables import is_overfull
from sayso.channels.types import Delivery, Media, Reply

#: The longest text in one bubble, in characters of Markdown.
MAX_PIECE_CHARS = 16_000
#: The longest effect that a button shows in place of its label, in characters.
EFFECT_LIMIT = 80


def pieces_of(reply: Reply) -> Sequence[Reply]:
    """Return the bubbles of a reply: one, or several for a long text.

    The file is on the first one, buttons are on the last one.
    """
    if reply.preview:
        reply = reply.with_preview(format_preview)
    texts = split(reply.text, MAX_PIECE_CHARS)
    if not texts and (reply.buttons or reply.media):
        texts = [""]
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
    """Return the preview of a question as it stands in the text: unchanged, without a mark."""
    return md


def bubble(delivery: Delivery) -> FeedEntry:
    """Return the entry of one bubble."""
    reply = delivery.reply
    buttons = []
    for button in reply.buttons:
        label = button_text(button, EFFECT_LIMIT)
        buttons.append({"label": label, "data": button.data, "style": button.style})
    return {
        "type": "bubble",
        "delivery": delivery.id,
        "html": page_html(reply.text),
        # What the Copy button copies.
        "text": plain(reply.text) if reply.text else "",
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
    tokens = list(_without_overfull_tables(markdown.parse(md), md.split("\n")))
    _number_items(tokens)
    for token in tokens:
        # Table cells have a style attribute, which the page's Content-Security-Policy forbids.
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
        # ***bold and italic*** is no arithmetic.
        inside = (visible[start + 1].type, visible[index - 1].type)
        if inside == ("strong_open", "strong_close"):
            name = "strong"
        touches_word_before = is_inside_word(name, _text_before(visible, start))
        touches_word_after = is_inside_word(name, _text_after(visible, index))
        if touches_word_before and touches_word_after:
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
    """Yield the tokens of a text with links that hide nothing and cannot reach the page.

    A link to anything else than the web, mail and phones becomes text with its address. A title is
    shown, since it is seen only by hovering. An address follows a link whose label hides its host.
    """
    # What is shown at the end of the present link, and behind it. No link is inside another one.
    ending = ""
    hidden_address = ""
    for index, token in enumerate(tokens):
        if token.type == "link_open":
            href = str(token.attrGet("href") or "")
            title = token.attrGet("title")
            ending = f' "{title}"' if title else ""
            hidden_address = ""
            label_tokens = takewhile(lambda each: each.type != "link_close", tokens[index + 1 :])
            label = "".join(each.content for each in label_tokens)
            if ALLOWED_ADDRESS.match(href):
                token.attrs = {"href": href, "rel": "noopener", "target": "_blank"}
                if hides_host(escape_html(label), href):
                    hidden_address = href
            else:
                token.attrs = {}
                if href:
                    ending = f"{ending} ({href})"

        if token.type != "link_close":
            yield token
            continue
        if ending:
            yield Token("text", "", 0, content=ending)
        yield token
        if hidden_address:
            yield Token("text", "", 0, content=f" ({hidden_address})")
