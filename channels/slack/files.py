"""Slack files: download what people send from Slack's file server, and upload what the bot sends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, BinaryIO

from sayso.channels.base import FetchError, Refused, Unreachable
from sayso.channels.http import SafeDownload
from sayso.channels.slack.client import FILE_ORIGINS, SLACK, error_code, translated, translated_repeatable
from sayso.channels.slack.text import FILE_ID, media_of
from sayso.channels.storage.media import MAX_BYTES
from sayso.channels.types import Media

if TYPE_CHECKING:
    from slack_sdk.web.async_client import AsyncWebClient


async def fetch(web: AsyncWebClient, media: Media, file: BinaryIO, *, token: str, files_url: str) -> None:
    """Download a person's file into an open file. The token is sent only to Slack's file server. Raises FetchError."""
    if FILE_ID.fullmatch(media.ref):
        media = await _look_up(web, media.ref)
    # For a server that replaces Slack, URLs are checked as if they were Slack's.
    origin = files_url if files_url in FILE_ORIGINS.values() else FILE_ORIGINS[SLACK]
    match = re.fullmatch(rf"{re.escape(origin)}(/[^\s\\]+)", media.ref)
    if match is None:
        raise FetchError(f"the file's address is not on {origin.removeprefix('https://')}")
    saved = await SafeDownload(MAX_BYTES).save(files_url + match[1], {"Authorization": f"Bearer {token}"}, file)
    # Slack answers a wrong token with a log-in page. An HTML file that a person sent has the size that Slack named.
    if saved.content_type == "text/html" and (media.kind != "text" or saved.size != media.size):
        raise FetchError("Slack sent a log-in page: check bot_token and its scope files:read")


async def _look_up(web: AsyncWebClient, file_id: str) -> Media:
    """Return the file of a shared channel, whose event names only the id."""
    from aiohttp import ClientError
    from slack_sdk.errors import SlackApiError, SlackClientError

    try:
        answer = await web.files_info(file=file_id)
    except SlackApiError as exc:
        raise FetchError(f"Slack error {error_code(exc.response) or 'unknown_error'}") from None
    except (SlackClientError, ClientError, OSError) as exc:
        raise FetchError(f"Slack did not say where the file is: {type(exc).__name__}") from None
    file = answer.get("file")
    media = media_of(file) if isinstance(file, dict) else None
    if media is None:
        raise FetchError("Slack has no address for the file: it was deleted, or is hidden")
    return media


async def share(web: AsyncWebClient, media: Media, data: bytes, *, chat: str, thread: str, comment: str) -> None:
    """Upload a file and show it. Slack posts the message later, so its id is unknown. Raises SendError."""
    name = media.filename or "file"
    with translated_repeatable():  # an uploaded file is invisible until it is shared
        offer = await web.files_getUploadURLExternal(filename=name, length=len(data))
        session: Any = web.session
        # The upload URL is a secret of its own, so the token is not sent there.
        async with session.post(str(offer["upload_url"]), data=data, allow_redirects=False) as response:
            status = response.status
        if status != 200:  # the listed statuses would be the same each time
            error = Refused if status in (400, 403, 404, 413, 415) else Unreachable
            raise error(f"Slack's file server answered {status}")
    with translated():
        await web.files_completeUploadExternal(
            files=[{"id": str(offer["file_id"]), "title": name}],
            channel_id=chat,
            thread_ts=thread or None,
            initial_comment=comment or None,
        )
