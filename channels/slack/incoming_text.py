"""Slack's escaped texts, files and forms, as people see them.

In a text, Slack writes mentions and links as tokens in angle brackets, such as `<@U01>` for a
person and `<https://a.example|words>` for a link, and escapes the characters &, < and >.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from sayso.channels.link_addresses import with_address
from sayso.channels.mentions import without_mentions
from sayso.channels.types import Media

#: A part of a request, as Slack sends it.
SlackObject = Mapping[str, Any]

#: A file's id, which takes the place of its URL if Slack does not name one (`media_of`). The
#: adapter asks Slack for the URL before it downloads the file.
FILE_ID = re.compile(r"F[A-Z0-9]{2,40}")

#: A token in angle brackets.
_TOKEN = re.compile(r"<([^<>]*)>")
#: A mention of any person. Callers compare its id with that of the bot, which a request names: a
#: pattern that is made from a very long id would take seconds.
_MENTION = re.compile(r"<@([^<>|]+)(?:\|[^<>]*)?>")
#: Words between marks that make them bold, italic, struck or code, without further marks at their
#: ends. The length is limited, because otherwise a text of many marks would take long.
_MARKED_WORDS = re.compile(r"(?<!\w)([*_~]|`{1,3})(?=[^\s*_~`])([^\n]{0,300}?[^\s*_~`])\1(?!\w)")
#: How many marks around the same words are removed, the innermost first. Words that are bold,
#: italic and struck at once have three.
_MAX_MARKS = 3
_UNKNOWN_TYPE = "application/octet-stream"
#: Fields of a form's element that hold its input, besides those that begin with `selected_`.
_INPUT_FIELDS = ("value", "rich_text_value", "files")

#: What stands for an element of a rich text that has no text, by the element's type. The names in
#: braces are fields of the element.
_ELEMENT_TEXTS = {
    "link": "{url}",
    "user": "@{user_id}",
    "usergroup": "@{usergroup_id}",
    "team": "@{team_id}",
    "channel": "#{channel_id}",
    "broadcast": "@{range}",
    "emoji": ":{name}:",
    "date": "{fallback}",
}


def mentions(text: str, bot: str) -> bool:
    """Return whether a text mentions the user with the id `bot`."""
    return any(mention[1] == bot for mention in _MENTION.finditer(text))


def readable(text: str, bot: str) -> str:
    """Return Slack's escaped text as people see it, without mentions of the user `bot`.

    `bot` is the id of the bot's user. With "" all mentions stay.
    """
    own_mentions = [mention.span() for mention in _MENTION.finditer(text) if mention[1] == bot]
    text = without_mentions(text, own_mentions)
    text = _TOKEN.sub(_readable_token, text)
    # `&amp;` last, so that `&amp;lt;` becomes `&lt;` and not `<`.
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return text.strip()


def unformatted(text: str) -> str:
    """Return what Slack's escaped text says, with mentions and without marks around words.

    Slack also reports an edit when words only became bold, or when an address that was typed with
    its `https://` became a link. Such an edit leaves this text as it was, and is not answered.
    """
    words = readable(text, "")
    for _ in range(_MAX_MARKS):
        words = _MARKED_WORDS.sub(r"\2", words)
    return words


def _readable_token(token: re.Match[str]) -> str:
    """Return a token in angle brackets as people see it: a person, a channel, a group or a link."""
    target, _, label = token.group(1).partition("|")
    # <@U01|ana> and <#C02|general>
    if target[:1] in ("@", "#"):
        name = (label or target[1:]).lstrip("@#")
        return f"{target[0]}{name}"
    # <!here>, <!subteam^S03> and <!subteam^S03|@team>
    if target[:1] == "!":
        name = target[1:].removeprefix("subteam^").partition("^")[0]
        return label or f"@{name}"

    address = target.removeprefix("mailto:").removeprefix("tel:")
    # <https://a.example|a.example>: a person typed the label, and Slack made the link.
    if label in ("", address) or target.endswith(f"//{label}"):
        return address
    return with_address(label, address)


def files_of(message: SlackObject) -> Iterator[SlackObject]:
    """Yield the files of a message, then those of the messages that it forwards."""
    yield from message.get("files") or ()
    for forwarded in _forwarded_messages(message):
        yield from forwarded.get("files") or ()


def media_of(file: SlackObject) -> Media | None:
    """Return a file; None for one that cannot be downloaded.

    That is a file that is stored outside of Slack, or one without a URL: Slack names none for a
    file that is deleted, hidden, or closed to the bot.

    The `ref` of the file is its URL. In a channel that several workspaces share, an event may name
    only the id of the file. Then `ref` is the id, and the adapter looks up the URL.
    """
    if _is_foreign(file):
        return None
    ref = file.get("url_private_download") or file.get("url_private")
    if not ref and file.get("file_access") == "check_file_info":
        ref = file.get("id")
    if not isinstance(ref, str) or not ref:
        return None
    return Media(
        ref=ref,
        mime_type=file.get("mimetype") or _UNKNOWN_TYPE,
        filename=file.get("name") or "",
        size=int(file.get("size") or 0),
    )


def notes_of(message: SlackObject) -> Iterator[str]:
    """Yield descriptions of files that cannot be downloaded, and of forwarded messages."""
    for file in files_of(message):
        if media_of(file) is None:
            yield _missing_file(file)
    for forwarded in _forwarded_messages(message):
        # With all mentions: they are part of what another person wrote.
        text = readable(forwarded.get("text") or forwarded.get("fallback") or "", "")
        if text:
            yield f"shared message of {forwarded.get('author_name') or 'somebody'}: {text}"


def _missing_file(file: SlackObject) -> str:
    """Describe a file for which `media_of` returns None."""
    name = file.get("name") or ""
    if _is_foreign(file):
        url = file.get("url_private") or ""
        return _with_details("a file that is stored outside of Slack", f"{name} {url}".strip())
    if file.get("mode") == "hidden_by_limit":
        return "a file that Slack hides: its workspace is over a limit"
    if file.get("file_access") == "access_denied":
        return _with_details("a file that the bot may not see", name)
    # Slack names no other reason.
    return "a file that was deleted"


def _with_details(note: str, details: str) -> str:
    """Return a note with details behind it, without a colon if there are none."""
    return f"{note}: {details}" if details else note


def _is_foreign(file: SlackObject) -> bool:
    """Return whether a file is stored outside of Slack."""
    return file.get("mode") == "external" or file.get("is_external") is True


def _forwarded_messages(message: SlackObject) -> Iterator[SlackObject]:
    """Yield the messages that this one forwards.

    A pasted link to a message looks the same but forwards nothing.
    """
    for attachment in message.get("attachments") or ():
        if attachment.get("is_share"):
            yield attachment


def form_answers(view: SlackObject) -> Iterator[str]:
    """Yield the lines of a submitted form, "label: input", in the order of the form.

    `view` is a modal that other code of the app has opened, as Slack sends it. Its part
    `state.values` has the elements by the ids of their blocks, such as
    `{"block-1": {"action-1": {"type": "plain_text_input", "value": "7"}}}`.

    The inputs stay as they came: they have no tokens, because a rich text has elements instead. A
    date with a time stays a number of Unix seconds: the form does not say the person's timezone.
    """
    labels = {}
    for block in view.get("blocks") or ():
        labels[block.get("block_id")] = (block.get("label") or {}).get("text")

    values = (view.get("state") or {}).get("values") or {}
    for block_id in dict.fromkeys([*labels, *values]):
        inputs: list[str] = []
        for element in (values.get(block_id) or {}).values():
            for field, value in element.items():
                if field in _INPUT_FIELDS or field.startswith("selected_"):
                    inputs.extend(_texts_of(value))
        if inputs:
            yield f"{labels.get(block_id) or block_id}: {', '.join(inputs)}"


def _texts_of(value: Any) -> Iterator[str]:
    """Yield the texts of an input: a text, a number, an object as `_content_of` takes it, or a list.

    None and "" have no text.
    """
    if isinstance(value, list):
        for part in value:
            yield from _texts_of(part)
    elif isinstance(value, Mapping):
        yield from _texts_of(_content_of(value))
    elif value is not None and value != "":
        yield str(value)


def _content_of(value: SlackObject) -> Any:
    """Return what people see of an object in a form.

    * An option: `{"text": {"type": "plain_text", "text": "Blue"}, "value": "b"}`.
    * A file: `{"id": "F01", "name": "bill.pdf"}`.
    * A rich text, or a part of it: `{"type": "rich_text_section", "elements": [...]}`.
    * An element of a rich text: `{"type": "text", "text": "see "}` or
      `{"type": "user", "user_id": "U01"}`.
    """
    if "elements" in value:
        return _content_of_elements(value["elements"])

    text = value.get("text")
    if value.get("type") == "link" and isinstance(text, str) and text:
        return with_address(text, str(value.get("url") or ""))
    template = _ELEMENT_TEXTS.get(str(value.get("type")))
    if template and not text:
        return template.format_map(defaultdict(str, value))
    # The text of an option is an object.
    if isinstance(text, Mapping):
        text = text.get("text")
    return text or value.get("value") or value.get("name")


def _content_of_elements(elements: list[Any]) -> str:
    """Return what people see of the elements of a rich text, or of a part of it."""
    texts = ["".join(_texts_of(element)) for element in elements]
    # An element that has elements itself is a line: a block, or an item of a list.
    has_lines = any(isinstance(element, Mapping) and "elements" in element for element in elements)
    return ("\n" if has_lines else "").join(texts)
