"""Slack's escaped texts, files and forms, as people see them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from sayso.channels.link_addresses import with_address
from sayso.channels.mentions import without_mentions
from sayso.channels.types import Media

SlackObject = Mapping[str, Any]

#: A file's id, which takes the place of its URL if Slack does not name one.
FILE_ID = re.compile(r"F[A-Z0-9]{2,40}")

_TOKEN = re.compile(r"<([^<>]*)>")
#: A mention of any person. The id is compared afterwards:
#: a pattern made from a long id would take seconds.
_MENTION = re.compile(r"<@([^<>|]+)(?:\|[^<>]*)?>")
#: Words that are bold, italic, struck or code.
_MARKED = re.compile(r"(?<!\w)([*_~]|`{1,3})(?=[^\s*_~`])([^\n]{0,300}?[^\s*_~`])\1(?!\w)")
#: How many marks around the same words are looked through.
_DEEPEST_MARK = 3
_UNKNOWN_TYPE = "application/octet-stream"
#: Fields of a form's element that hold its input, beside those that begin with `selected_`.
_INPUT_FIELDS = ("value", "rich_text_value", "files")

#: How people see elements of a rich text that have no text of their own.
_MARKS = {
    "link": "{url}",
    "user": "@{user_id}",
    "usergroup": "@{usergroup_id}",
    "channel": "#{channel_id}",
    "broadcast": "@{range}",
    "emoji": ":{name}:",
}


def mentions(text: str, bot: str) -> bool:
    """Return whether a text mentions this bot."""
    return any(mention[1] == bot for mention in _MENTION.finditer(text))


def readable(text: str, bot: str) -> str:
    """Return Slack's escaped text as people see it, without mentions of the bot."""
    own_mentions = [mention.span() for mention in _MENTION.finditer(text) if mention[1] == bot]
    text = without_mentions(text, own_mentions)
    text = _TOKEN.sub(_readable_token, text)
    # `&amp;` last, so that `&amp;lt;` becomes `&lt;` and not `<`.
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return text.strip()


def unformatted(text: str) -> str:
    """Return what Slack's escaped text says, with mentions and without marks around words.

    It tells an edit of the words from a link that Slack recognized,
    and from words that were made bold.
    """
    words = readable(text, "")
    for _ in range(_DEEPEST_MARK):
        words = _MARKED.sub(r"\2", words)
    return words


def _readable_token(token: re.Match[str]) -> str:
    """Return a token in angle brackets as people see it: a person, a channel, a group or a link."""
    target, _, label = token.group(1).partition("|")
    if target[:1] in ("@", "#"):
        return target[0] + (label or target[1:]).lstrip("@#")
    if target[:1] == "!":
        return label or f"@{target[1:].partition('^')[0]}"
    address = target.removeprefix("mailto:").removeprefix("tel:")
    if label in ("", address) or target.endswith(f"//{label}"):
        return address
    return with_address(label, address)


def files_of(message: SlackObject) -> Iterator[SlackObject]:
    """Yield the files of a message, then those of the messages that it shares."""
    yield from message.get("files") or ()
    for shared in _shared(message):
        yield from shared.get("files") or ()


def media_of(file: SlackObject) -> Media | None:
    """Return a file; None for one that is deleted, hidden, or stored outside of Slack.

    In shared channels an event may name only the id of the file. Then `ref` is the id, and the URL
    must be looked up.
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
    """Yield descriptions of files that cannot be downloaded, and of shared messages."""
    for file in files_of(message):
        if media_of(file) is None:
            yield _missing_file(file)
    for shared in _shared(message):
        text = readable(shared.get("text") or shared.get("fallback") or "", "")
        if text:
            yield f"shared message of {shared.get('author_name') or 'somebody'}: {text}"


def _missing_file(file: SlackObject) -> str:
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
    return file.get("mode") == "external" or file.get("is_external") is True


def _shared(message: SlackObject) -> Iterator[SlackObject]:
    """Return the messages that this one forwards.

    A pasted link looks the same but forwards nothing.
    """
    return (shared for shared in message.get("attachments") or () if shared.get("is_share"))


def form_answers(view: SlackObject) -> Iterator[str]:
    """Yield the lines of a submitted form, "label: input", in the order of the form."""
    labels = {
        block.get("block_id"): (block.get("label") or {}).get("text")
        for block in view.get("blocks") or ()
    }
    values = (view.get("state") or {}).get("values") or {}
    for block_id in dict.fromkeys([*labels, *values]):
        entered: list[str] = []
        for element in (values.get(block_id) or {}).values():
            for field, value in element.items():
                if field in _INPUT_FIELDS or field.startswith("selected_"):
                    entered.extend(_parts(value))
        if entered:
            yield f"{labels.get(block_id) or block_id}: {', '.join(entered)}"


def _parts(value: Any) -> Iterator[str]:
    """Yield the text of a value, of each value of a list, of an option, a file or a rich text."""
    if isinstance(value, list):
        for part in value:
            yield from _parts(part)
    elif isinstance(value, Mapping):
        yield from _parts(_label(value))
    elif value is not None and value != "":
        yield str(value)


def _label(value: SlackObject) -> Any:
    # A rich text: a part with elements of its own, a block or a list item, is a line.
    if "elements" in value:
        elements = value["elements"]
        in_lines = any(
            isinstance(element, Mapping) and "elements" in element for element in elements
        )
        return ("\n" if in_lines else "").join("".join(_parts(element)) for element in elements)
    text = value.get("text")
    mark = _MARKS.get(str(value.get("type")))
    if value.get("type") == "link" and isinstance(text, str) and text:
        return with_address(text, str(value.get("url") or ""))
    if mark and not text:
        return mark.format_map(defaultdict(str, value))
    if isinstance(text, Mapping):
        text = text.get("text")
    return text or value.get("value") or value.get("name")
