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

#: A file's id, which takes the place of its URL if Slack does not name one.
FILE_ID = re.compile(r"F[A-Z0-9]{2,40}")

#: A token in angle brackets.
_TOKEN = re.compile(r"<([^<>]*)>")
#: A mention of any person. The id is compared afterwards: a pattern that is made from a long id
#: would take seconds.
_MENTION = re.compile(r"<@([^<>|]+)(?:\|[^<>]*)?>")
#: Words between marks that make them bold, italic, struck or code. At most 300 characters are
#: searched, because without a limit a text of many marks would take long.
_MARKED_WORDS = re.compile(r"(?<!\w)([*_~]|`{1,3})(?=[^\s*_~`])([^\n]{0,300}?[^\s*_~`])\1(?!\w)")
#: How many marks around the same words are removed.
_MAX_MARKS = 3
_UNKNOWN_TYPE = "application/octet-stream"
#: Fields of a form's element that hold its input, besides those that begin with `selected_`.
_INPUT_FIELDS = ("value", "rich_text_value", "files")

#: How people see an element of a rich text that has no text, by the element's type.
_ELEMENT_TEXTS = {
    "link": "{url}",
    "user": "@{user_id}",
    "usergroup": "@{usergroup_id}",
    "channel": "#{channel_id}",
    "broadcast": "@{range}",
    "emoji": ":{name}:",
}


def mentions(text: str, bot: str) -> bool:
    """Return whether a text mentions the user `bot`."""
    return any(mention[1] == bot for mention in _MENTION.finditer(text))


def readable(text: str, bot: str) -> str:
    """Return Slack's escaped text as people see it, without mentions of the user `bot`."""
    own_mentions = [mention.span() for mention in _MENTION.finditer(text) if mention[1] == bot]
    text = without_mentions(text, own_mentions)
    text = _TOKEN.sub(_readable_token, text)
    # `&amp;` last, so that `&amp;lt;` becomes `&lt;` and not `<`.
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return text.strip()


def unformatted(text: str) -> str:
    """Return what Slack's escaped text says, with mentions and without marks around words.

    If it stays the same, an edit changed no words: Slack recognized a link, or words became bold.
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
    # <!here> and <!subteam^S03|@team>
    if target[:1] == "!":
        return label or f"@{target[1:].partition('^')[0]}"
    address = target.removeprefix("mailto:").removeprefix("tel:")
    if label in ("", address) or target.endswith(f"//{label}"):
        return address
    return with_address(label, address)


def files_of(message: SlackObject) -> Iterator[SlackObject]:
    """Yield the files of a message, then those of the messages that it forwards."""
    yield from message.get("files") or ()
    for forwarded in _forwarded_messages(message):
        yield from forwarded.get("files") or ()


def media_of(file: SlackObject) -> Media | None:
    """Return a file; None for one that is deleted, hidden, or stored outside of Slack.

    Its `ref` is the URL. In a channel that several workspaces share, an event may name only the id
    of the file. Then `ref` is the id, and the URL must be looked up.
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
        text = readable(forwarded.get("text") or forwarded.get("fallback") or "", "")
        if text:
            yield f"shared message of {forwarded.get('author_name') or 'somebody'}: {text}"


def _missing_file(file: SlackObject) -> str:
    """Describe a file that cannot be downloaded."""
    if _is_foreign(file):
        name = file.get("name") or ""
        url = file.get("url_private") or ""
        return f"a file that is stored outside of Slack: {name} {url}".rstrip()
    if file.get("mode") == "hidden_by_limit":
        return "a file that Slack hides: its workspace is over a limit"
    if file.get("file_access") == "access_denied":
        return f"a file that the bot may not see: {file.get('name') or ''}".rstrip(": ")
    return "a file that was deleted"


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
    """Yield the lines of a submitted form, "label: input", in the order of the form."""
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
    """Yield the texts of an input: a text, an option, a file, a rich text or a list of these."""
    if isinstance(value, list):
        for part in value:
            yield from _texts_of(part)
    elif isinstance(value, Mapping):
        yield from _texts_of(_content_of(value))
    elif value is not None and value != "":
        yield str(value)


def _content_of(value: SlackObject) -> Any:
    """Return what people see of an option, a file, a rich text or an element of one."""
    if "elements" in value:
        elements = value["elements"]
        texts = ["".join(_texts_of(element)) for element in elements]
        # An element that has elements itself is a line: a block, or an item of a list.
        has_lines = any(
            isinstance(element, Mapping) and "elements" in element for element in elements
        )
        return ("\n" if has_lines else "").join(texts)

    text = value.get("text")
    if value.get("type") == "link" and isinstance(text, str) and text:
        return with_address(text, str(value.get("url") or ""))
    template = _ELEMENT_TEXTS.get(str(value.get("type")))
    if template and not text:
        return template.format_map(defaultdict(str, value))
    if isinstance(text, Mapping):
        text = text.get("text")
    return text or value.get("value") or value.get("name")
