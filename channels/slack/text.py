"""Slack words: what Slack's escaped texts, files and forms say, as people see them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from sayso.channels.types import Media

SlackObject = Mapping[str, Any]

#: A file's id, which stands for its address where Slack tells no more.
FILE_ID = re.compile(r"F[A-Z0-9]{2,40}")

_TOKEN = re.compile(r"<([^<>]*)>")
#: A person's mention with the space behind it, and one that begins a text with what sets it apart. Whose it is, is
#: compared: an expression made of an id would take a long one seconds.
_MENTION = re.compile(r"<@([^<>|]+)(?:\|[^>]*)?> ?")
_CALLED = re.compile(r"\s*<@([^<>|]+)(?:\|[^>]*)?>[\s:,]*")
_UNKNOWN_TYPE = "application/octet-stream"
#: Fields of a form's elements that hold what was entered, beside those that begin with `selected_`.
_ENTERED = ("value", "rich_text_value", "files")

#: Elements of a rich text that have no words of their own, as people see them.
_MARKS = {
    "link": "{url}", "user": "@{user_id}", "usergroup": "@{usergroup_id}", "channel": "#{channel_id}",
    "broadcast": "@{range}", "emoji": ":{name}:",
}  # fmt: skip


def names(text: str, bot: str) -> bool:
    """Whether a text mentions this bot."""
    return any(mention[1] == bot for mention in _MENTION.finditer(text))


def readable(text: str, bot: str) -> str:
    """Slack's escaped text as people see it, without the mention that called the bot."""
    called = _CALLED.match(text)
    if called and called[1] == bot:
        text = text[called.end() :]
    text = _MENTION.sub(lambda mention: "" if mention[1] == bot else mention[0], text)
    seen = _TOKEN.sub(_seen, text)
    return seen.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _seen(token: re.Match[str]) -> str:
    """One token in angle brackets: a person, a channel, a group or a link."""
    target, _, label = token.group(1).partition("|")
    if target[:1] in ("@", "#"):
        return target[0] + (label or target[1:]).lstrip("@#")
    if target[:1] == "!":
        return label or f"@{target[1:].partition('^')[0]}"
    address = target.removeprefix("mailto:").removeprefix("tel:")
    return address if label in ("", address) or target.endswith(f"//{label}") else f"{label} ({address})"


def files_of(message: SlackObject) -> Iterator[SlackObject]:
    """The files of a message, then those of the messages that were shared with it."""
    yield from message.get("files") or ()
    for shared in _shared(message):
        yield from shared.get("files") or ()


def media_of(file: SlackObject) -> Media | None:
    """A file that can be fetched; None for one that is deleted, hidden, or kept outside of Slack.

    A stub, as shared channels have them, is known by its id: its address must be asked for.
    """
    if _is_foreign(file):
        return None
    url = file.get("url_private_download") or file.get("url_private")
    stub = file.get("id") if file.get("file_access") == "check_file_info" else None
    ref = url or stub
    if not isinstance(ref, str) or not ref:
        return None
    return Media(
        ref=ref,
        mime_type=file.get("mimetype") or _UNKNOWN_TYPE,
        filename=file.get("name") or "",
        size=int(file.get("size") or 0),
    )


def notes_of(message: SlackObject) -> Iterator[str]:
    """What a message brings that is neither words nor a file we can fetch: lost files, shared messages."""
    for file in files_of(message):
        if media_of(file) is None:
            yield _loss(file)
    for shared in _shared(message):
        words = readable(shared.get("text") or shared.get("fallback") or "", "")
        if words:
            yield f"shared message of {shared.get('author_name') or 'somebody'}: {words}"


def _loss(file: SlackObject) -> str:
    if _is_foreign(file):
        name, url = file.get("name") or "", file.get("url_private") or ""
        return f"a file that is kept outside of Slack: {name} {url}".rstrip()
    if file.get("mode") == "hidden_by_limit":
        return "a file that Slack hides: its workspace is over a limit"
    if file.get("file_access") == "access_denied":
        return f"a file that the bot may not see: {file.get('name') or ''}".rstrip(": ")
    return "a file that was deleted"


def _is_foreign(file: SlackObject) -> bool:
    return file.get("mode") == "external" or file.get("is_external") is True


def _shared(message: SlackObject) -> Iterator[SlackObject]:
    """Messages that somebody forwarded with this one. A pasted link is shown alike, but shares nothing."""
    return (shared for shared in message.get("attachments") or () if shared.get("is_share"))


def form_answers(view: SlackObject) -> Iterator[str]:
    """A submitted form, line by line: "label: what was entered", in the order that people saw."""
    labels = {block.get("block_id"): (block.get("label") or {}).get("text") for block in view.get("blocks") or ()}
    values = (view.get("state") or {}).get("values") or {}
    for block_id in dict.fromkeys([*labels, *values]):
        entered = ", ".join(part for element in (values.get(block_id) or {}).values() for part in _entered(element))
        if entered:
            yield f"{labels.get(block_id) or block_id}: {entered}"


def _entered(element: SlackObject) -> Iterator[str]:
    for field, value in element.items():
        if field in _ENTERED or field.startswith("selected_"):
            yield from _parts(value)


def _parts(value: Any) -> Iterator[str]:
    """A value, the values of a list, an option's label, a file's name, or the words of a rich text."""
    if isinstance(value, list):
        for part in value:
            yield from _parts(part)
    elif isinstance(value, Mapping):
        yield from _parts(_label(value))
    elif value is not None and value != "":
        yield str(value)


def _label(value: SlackObject) -> Any:
    if "elements" in value:
        return _rich(value)
    text, mark = value.get("text"), _MARKS.get(str(value.get("type")))
    if mark and not text:  # a person, a place, a link: what has no words of its own
        return mark.format_map(defaultdict(str, value))
    return (text.get("text") if isinstance(text, Mapping) else text) or value.get("value") or value.get("name")


def _rich(value: SlackObject) -> str:
    """The words of a rich text; what has elements of its own, a block or the item of a list, is a line."""
    elements = value["elements"]
    in_lines = any(isinstance(element, Mapping) and "elements" in element for element in elements)
    return ("\n" if in_lines else "").join("".join(_parts(element)) for element in elements)
