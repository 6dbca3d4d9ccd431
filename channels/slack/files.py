"""Slack files: those of people are fetched from Slack's own file server, ours are uploaded and shared."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, BinaryIO

from sayso.channels.base import FetchError, Refused, Unreachable
from sayso.channels.http import SafeDownload
from sayso.channels.media import MAX_BYTES
from sayso.channels.slack.errors import code_of, harmless, told
from sayso.channels.slack.text import FILE_ID, media_of
from sayso.channels.types import Media

if TYPE_CHECKING:
    from slack_sdk.web.async_client import AsyncWebClient

#: Slack's origin; and where the files of each of its worlds are.
SLACK = "https://slack.com"
FILES_OF = {SLACK: "https://files.slack.com", "https://slack-gov.com": "https://files.slack-gov.com"}


async def fetch(web: AsyncWebClient, media: Media, file: BinaryIO, *, token: str, files_url: str) -> None:
    """Write a person's file to an open file. Only Slack's file server sees the token. Raises FetchError."""
    if FILE_ID.fullmatch(media.ref):
        media = await _looked_up(web, media.ref)
    # A server that is not Slack's stands in for Slack's.
    origin = files_url if files_url in FILES_OF.values() else FILES_OF[SLACK]
    found = re.fullmatch(rf"{re.escape(origin)}(/[^\s\\]+)", media.ref)
    if found is None:
        raise FetchError(f"the file's address is not on {origin.removeprefix('https://')}")
    saved = await SafeDownload(MAX_BYTES).save(files_url + found.group(1), {"Authorization": f"Bearer {token}"}, file)
    # A wrong token is answered with a page to log in. A page that somebody sent has the size Slack told us.
    if saved.content_type == "text/html" and (media.kind != "text" or saved.size != media.size):
        raise FetchError("Slack sent a log-in page: check bot_token and its scope files:read")


async def _looked_up(web: AsyncWebClient, file_id: str) -> Media:
    """A file of a shared channel, of which the event told the id only."""
    from aiohttp import ClientError
    from slack_sdk.errors import SlackApiError, SlackClientError

    try:
        answer = await web.files_info(file=file_id)
    except SlackApiError as exc:
        raise FetchError(f"Slack error {code_of(exc.response)}") from None
    except (SlackClientError, ClientError, OSError) as exc:
        raise FetchError(f"Slack did not say where the file is: {type(exc).__name__}") from None
    file = answer.get("file")
    media = media_of(file) if isinstance(file, dict) else None
    if media is None:
        raise FetchError("Slack has no address for the file: it was deleted, or is hidden")
    return media


async def share(web: AsyncWebClient, media: Media, data: bytes, *, chat: str, thread: str, words: str) -> None:
    """Upload a file and show it. Slack posts the message later, so there is no id of it. Raises SendError."""
    name = media.filename or "file"
    with harmless():  # nobody sees a file before it is shared
        offer = await web.files_getUploadURLExternal(filename=name, length=len(data))
        await _put(web, str(offer["upload_url"]), data)
    with told():
        await web.files_completeUploadExternal(
            files=[{"id": str(offer["file_id"]), "title": name}],
            channel_id=chat,
            thread_ts=thread or None,
            initial_comment=words or None,
        )


async def _put(web: AsyncWebClient, url: str, data: bytes) -> None:
    """The address is a secret of its own: it gets no token."""
    session: Any = web.session
    async with session.post(url, data=data, allow_redirects=False) as response:
        status = response.status
    if status in (400, 403, 404, 413, 415):  # it would each time
        raise Refused(f"Slack's file server answered {status}")
    if status != 200:
        raise Unreachable(f"Slack's file server answered {status}")


def in_words(media: Media, size: int, url: str) -> str:
    """A file that Slack does not take, in Markdown: its name, its size and where it is."""
    name = (media.filename or "file").replace("`", "'")
    return f"`{name}` ({_size(size)}): {url}"


def _size(size: int) -> str:
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000 or unit == "MB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
