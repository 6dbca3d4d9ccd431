"""SlackChannel: one Slack app in one workspace, its signed requests read and its replies sent through the Web API."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

from sayso.channels.base import AdapterDeps, AddressClosed, Forbidden, MediaSource, RateLimit, Refused, Unreachable
from sayso.channels.http import PooledSessions
from sayso.channels.markdown import slack_mrkdwn
from sayso.channels.markdown.split import fits, head, split
from sayso.channels.slack import files as slack_files
from sayso.channels.slack.blocks import BUTTON_LIMIT, SECTION_LIMIT, blocks_of, is_user, listed
from sayso.channels.slack.errors import SlackAnswer, code_of, harmless, reaction_to, told
from sayso.channels.slack.events import SlackRequests, slack_signed
from sayso.channels.slack.settings import SlackSettings
from sayso.channels.types import Conversation, Delivery, Media, Receipt, Received, Reply, Turn, WebhookRequest

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from slack_sdk.web.async_client import AsyncWebClient

#: Seconds after which "is thinking" is shown again: Slack clears it after 2 minutes.
STATUS_SECONDS = 100.0
#: About one message a second in a Slack channel, with short bursts, and an edit every three. Slack names no number for
#: the whole workspace.
PACE = RateLimit(chat_gap=1.0, burst=4, draft_gap=3.0)
#: What Slack may look up in a comment: our links, bare ones, bare names.
_LOOKED_UP = re.compile(r"[<@]|://")


class SlackChannel:
    """One app. Lives as long as the process. `api_url` replaces https://slack.com and https://files.slack.com.

    That of GovSlack, https://slack-gov.com, has its files at its own host.
    """

    def __init__(
        self,
        name: str,
        *,
        bot_token: str,
        signing_secret: str,
        media: MediaSource,
        api_url: str | None = None,
    ) -> None:
        if not bot_token.strip():
            raise ValueError("bot_token is empty: copy the Bot User OAuth Token (xoxb-...) from the app's settings")
        if not signing_secret.strip():
            raise ValueError("signing_secret is empty: copy it from the app's Basic Information")
        self._name = name
        self._bot_token, self._signing_secret = bot_token.strip(), signing_secret.strip()
        self._requests = SlackRequests(name)
        self._media = media
        self._api_url = (api_url or slack_files.SLACK).rstrip("/")
        self._files_url = slack_files.FILES_OF.get(self._api_url, self._api_url)
        self._headers = {
            "Authorization": f"Bearer {self._bot_token}", "Content-Type": "application/json; charset=utf-8"
        }  # fmt: skip
        self._web = PooledSessions(self._new_client)
        #: The direct messages opened with people, by their ids: Slack always gives the same.
        self._opened: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"SlackChannel({self._name!r})"

    @property
    def name(self) -> str:
        """The channel's name in the YAML."""
        return self._name

    def receive(self, hook: WebhookRequest) -> Received:
        """Read one signed request: an event, an interaction, a slash command, or one of Slack's own checks.

        A repeated one is read like the first, which may never have arrived.
        """
        self._verify(hook)
        return self._requests.read(hook.body)

    def _verify(self, hook: WebhookRequest) -> None:
        timestamp, signature = hook.header("x-slack-request-timestamp"), hook.header("x-slack-signature")
        if not (timestamp and signature):
            raise Forbidden("there is no X-Slack-Signature or no X-Slack-Request-Timestamp header")
        try:
            valid = slack_signed(self._signing_secret, timestamp, hook.body, signature, now=hook.now)
        except ValueError as exc:
            raise Forbidden("the signature cannot be checked") from exc
        if not valid:
            raise Forbidden("the signature is wrong or too old")

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Each thread by itself; where several of one Slack channel are busy, Slack asks to wait."""
        return PACE

    def split(self, reply: Reply) -> Sequence[Reply]:
        """A message for each section of words, the first of which edits; a file carries at most one of them, and none
        with links or names: only of a message may Slack be told not to look them up.

        Buttons and edits need a message of their own beside a file. Of more than 25 buttons the labels are listed.
        """
        if reply.media and not reply.buttons and not reply.edits and _goes_along(reply.text):
            return (reply,)
        if len(reply.buttons) > BUTTON_LIMIT:
            words = "\n\n".join(part for part in (reply.text, listed(reply.buttons)) if part)
            return self.split(replace(reply, text=words, buttons=()))
        texts = [Reply(text) for text in split(reply.text, SECTION_LIMIT, _length) if text.strip()]
        if reply.buttons and not texts:
            texts = [Reply(" / ".join(button.label for button in reply.buttons))]
        if reply.buttons:
            texts[-1] = replace(texts[-1], buttons=reply.buttons)
        if reply.edits and texts:
            texts[0] = replace(texts[0], edits=reply.edits, optional=reply.optional)
        if not reply.media:
            return tuple(texts)
        file = Reply(media=reply.media)
        return (*texts, file) if reply.edits else (file, *texts)

    async def show_typing(self, turn: Turn) -> float:
        """Show "is thinking" in an assistant's thread, for 2 minutes. Slack has no such sign anywhere else."""
        chat, thread = turn.conversation.chat, turn.conversation.thread
        if not (chat.startswith("D") and thread):
            return 0.0
        try:
            await self._web.here().assistant_threads_setStatus(channel_id=chat, thread_ts=thread, status="is thinking…")
        except Exception:  # noqa: BLE001  # a thread that is no assistant's, or a Slack that is busy
            return 0.0
        return STATUS_SECONDS

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """Post what the answer has come to, or edit what was posted; the answer itself edits it too.

        Slack's own streams need a thread and the person they are for, and may begin 20 times a minute in a whole
        workspace: edits work everywhere. Of a long answer its first section is shown.
        """
        first = head(text, SECTION_LIMIT, _length)
        if not first.strip():
            return shown
        return (await self.send(Delivery("", turn.conversation, Reply(first, edits=shown)))).message_id

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Download from Slack's own file server, the only one that sees the token."""
        web = self._web.here()
        await slack_files.fetch(web, media, file, token=self._bot_token, files_url=self._files_url)

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece; blocks that Slack refuses are left out, the words alone are sent once.

        A file that Slack refuses is sent as a link. What cannot be edited any more is sent, unless it is optional.
        """
        reply, to = delivery.reply, await self.place(delivery.conversation)
        if reply.media:
            return await self._share(reply, reply.media, to, delivery.conversation)
        message = _message([slack_mrkdwn(reply.text)], reply, to.chat, delivery.conversation)
        if reply.edits:
            edited = await self._edit(message, reply.edits)
            if edited or reply.optional:
                return edited or Receipt("")
        with told():
            return await self._post(message, to.thread, reply.only_for)

    async def place(self, conversation: Conversation) -> Conversation:
        """Where people write, and edits and files must go: of a person, the direct message with them.

        Raises SendError. Opening it shows nobody anything.
        """
        user = conversation.chat
        if not is_user(user):
            return conversation
        if user not in self._opened:
            with harmless():
                answer = await self._web.here().conversations_open(users=user)
            self._opened[user] = _direct_message(answer)
        return replace(conversation, chat=self._opened[user])

    async def _edit(self, message: dict[str, Any], ts: str) -> Receipt | None:
        """Put a message in the place of an earlier one; None where that cannot be. Done twice it is done once."""
        from slack_sdk.errors import SlackApiError

        with harmless():
            try:
                return await self._said("chat.update", {**message, "ts": ts})
            except SlackApiError as exc:
                if reaction_to(code_of(exc.response)) != "repost":
                    raise
                return None

    async def _post(self, message: dict[str, Any], thread: str, only_for: str = "") -> Receipt:
        if only_for:
            place = {"user": only_for, **({"thread_ts": thread} if thread else {})}
            await self._said("chat.postEphemeral", {**message, **place})
            return Receipt("")  # it has no id that could be edited
        quiet = {"unfurl_links": False, "unfurl_media": False, **({"thread_ts": thread} if thread else {})}
        return await self._said("chat.postMessage", {**message, **quiet})

    async def _said(self, method: str, message: dict[str, Any]) -> Receipt:
        from slack_sdk.errors import SlackApiError

        try:
            return await self._call(method, message)
        except SlackApiError as exc:
            if reaction_to(code_of(exc.response)) != "plain":
                raise
            # No blocks at all would keep those of a message that is edited.
            return await self._call(method, {**message, "blocks": []})

    async def _call(self, method: str, message: dict[str, Any]) -> Receipt:
        """The one call that each reply makes, without the SDK's layers: they take as long as the request itself."""
        from slack_sdk.errors import SlackApiError

        session, url = self._web.here().session, f"{self._api_url}/api/{method}"
        assert session is not None  # noqa: S101  # it was made with one
        async with session.post(
            url, data=json.dumps(message).encode(), headers=self._headers, allow_redirects=False
        ) as response:
            answer = SlackAnswer.of(url, response.status, response.headers, await response.read())
        if answer.status_code != 200 or not answer.data.get("ok"):
            raise SlackApiError(method, answer)  # type: ignore[no-untyped-call]  # the SDK's own
        return _receipt(answer.data)

    async def _share(self, reply: Reply, media: Media, to: Conversation, conversation: Conversation) -> Receipt:
        try:
            data = await asyncio.to_thread(self._media.read, media.ref)
        except KeyError:
            raise Refused("the file to send is gone from the media store") from None
        words = slack_mrkdwn(reply.text) if reply.text.strip() else ""
        try:
            await slack_files.share(self._web.here(), media, data, chat=to.chat, thread=to.thread, words=words)
        except AddressClosed:
            raise
        except Refused:
            return await self._link(words, media, len(data), to, conversation)
        return Receipt("")

    async def _link(self, words: str, media: Media, size: int, to: Conversation, conversation: Conversation) -> Receipt:
        """A file that Slack does not take, such as one that is too large for its workspace, is said instead."""
        url = self._media.url(media.ref, filename=media.filename, mime_type=media.mime_type)
        link = slack_mrkdwn(slack_files.in_words(media, size, url))
        message = _message([text for text in (words, link) if text], Reply(), to.chat, conversation)
        with told():
            return await self._post(message, to.thread)

    def _new_client(self, session: ClientSession) -> AsyncWebClient:
        from slack_sdk.web.async_client import AsyncWebClient

        logger = logging.getLogger("sayso.channels.slack.adapter.sdk")
        # The SDK logs whole messages at DEBUG.
        logger.setLevel(logging.CRITICAL)
        # Its own retries would send twice behind the outbox's back.
        return AsyncWebClient(
            self._bot_token, f"{self._api_url}/api/", session=session, logger=logger, retry_handlers=[]
        )


def _length(md: str) -> int:
    return len(slack_mrkdwn(md))


def _receipt(sent: Mapping[str, Any]) -> Receipt:
    """Return the id of the message that Slack sent or edited, and when it was last changed, as far as Slack says."""
    ts, message = str(sent.get("ts") or ""), sent.get("message")
    edited = message.get("edited") if isinstance(message, dict) else None
    changed = str(edited.get("ts") or "") if isinstance(edited, dict) else ""
    try:
        return Receipt(ts, float(changed or ts or 0))
    except ValueError:
        return Receipt(ts)


def _direct_message(answer: Any) -> str:
    """The channel that Slack opened. Raises Unreachable for an answer that names none."""
    channel = answer.get("channel")
    name = channel.get("id") if isinstance(channel, dict) else None
    if not isinstance(name, str) or not name:
        raise Unreachable("Slack named no direct message")
    return name


def _goes_along(md: str) -> bool:
    """Whether words may be the comment of a file."""
    return fits(md, SECTION_LIMIT, _length) and not _LOOKED_UP.search(slack_mrkdwn(md))


def _message(texts: Sequence[str], reply: Reply, chat: str, conversation: Conversation) -> dict[str, Any]:
    """Blocks, and their words for notifications. Without `parse` an edit would turn bare names into mentions."""
    blocks = blocks_of(texts, reply.buttons, conversation)
    return {"channel": chat, "text": "\n".join(texts), "blocks": blocks, "parse": "none", "link_names": False}


def open_channel(name: str, settings: SlackSettings, deps: AdapterDeps) -> SlackChannel:
    """Return the adapter of a configured channel. Raises ValueError for settings that cannot be."""
    return SlackChannel(
        name,
        bot_token=settings.bot_token.get_secret_value(),
        signing_secret=settings.signing_secret.get_secret_value(),
        media=deps.media,
        api_url=settings.api_url,
    )
