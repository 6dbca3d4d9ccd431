"""SlackChannel: parses the requests of one Slack app, and sends through the Web API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from redis.exceptions import RedisError

from sayso.channels.base import (
    AdapterDeps,
    AddressClosed,
    FetchError,
    FindForm,
    Forbidden,
    RateLimit,
    Refused,
    SendError,
    ShownState,
    Unreachable,
    fetch_errors,
)
from sayso.channels.inbound_limits import MAX_FILE_BYTES
from sayso.channels.markdown.convert import slack_mrkdwn
from sayso.channels.media_store import file_to_send, open_on_disk, size_of
from sayso.channels.slack.address import is_user, join_place, split_place
from sayso.channels.slack.client import (
    FILE_ORIGINS,
    SLACK,
    error_code,
    reaction_to,
    translated,
    translated_repeatable,
)
from sayso.channels.slack.clients import open_clients
from sayso.channels.slack.forms import SlackForms, errors_answer
from sayso.channels.slack.incoming import RequestParser, slack_signed
from sayso.channels.slack.incoming_text import FILE_ID, media_of
from sayso.channels.slack.installations import SlackInstallations
from sayso.channels.slack.outgoing import (
    first_section,
    link_text,
    message_of,
    pieces_of,
    shown_name,
)
from sayso.channels.slack.settings import SlackSettings
from sayso.channels.slack.status import ConversationStatus, title_of
from sayso.channels.slack.threads import NEW_THREAD, OpenedThreads
from sayso.channels.types import (
    Conversation,
    Delivery,
    Media,
    Receipt,
    Received,
    Reply,
    Turn,
    WebhookRequest,
    WebhookResponse,
    WorkspaceNote,
)
from sayso.infra.http import SafeDownload
from sayso.infra.metrics import WORKSPACES, of_labels

if TYPE_CHECKING:
    from slack_sdk.web.async_client import AsyncWebClient

log = logging.getLogger(__name__)

#: Slack documents about one message a second in a channel, with short bursts, and an edit each 3
#: seconds for a message that grows. It names no limit for the whole workspace.
RATE = RateLimit(chat_gap=1.0, burst=4, draft_gap=3.0)
#: How many bytes of a file are sent at a time.
PART_BYTES = 256 * 1024
#: The HTTP statuses of Slack's file server that would be the same at the next attempt.
_FINAL_STATUSES = (400, 403, 404, 413, 415)


class SlackChannel:
    """One app, installed in one workspace or in many. One per process, used from any thread.

    A stored conversation may name two things in another way than Slack's methods do, so that
    `_address_at_slack` translates each address before a call:

    * its chat has the workspace in front in an app of many workspaces, and may be a person in place
      of the direct message with that person: see `address.py`;
    * its thread may have a name of Sayso's own, because the bot's first message opens it: see
      `threads.py`. What people write there comes in under Slack's name of the thread, which
      `at_first_address` translates back.

    Every call that sends runs inside `translated`, or inside `translated_repeatable` if repeating
    it does no harm. They raise a SendError for errors of the SDK: see `client.py`.
    """

    def __init__(self, name: str, settings: SlackSettings, deps: AdapterDeps) -> None:
        self.name = name
        self.settings = settings
        self._signing_secret = settings.signing_secret.get_secret_value().strip()
        self._parser = RequestParser(name, settings.view, settings.install_rules)
        self._media = deps.media
        self._api_url = settings.api_url or SLACK
        #: Where files are downloaded. A server that replaces Slack, as in tests, has them itself.
        self._files_url = FILE_ORIGINS.get(self._api_url, self._api_url)
        self._threads = OpenedThreads(deps.cache)
        #: The tokens of an app that many workspaces have installed, None for one with a bot_token.
        self.installations: SlackInstallations | None = None
        if settings.client_id:
            self.installations = SlackInstallations(name, deps.redis, deps.keys, deps.key_prefix)
        self._clients = open_clients(name, settings, self.installations)
        # Only the agent view shows a session for each thread: "Working…", with a stop button.
        has_sessions = settings.view == "agent"
        self._status = ConversationStatus(name, self.client_of, has_sessions=has_sessions)
        self._forms = SlackForms(name, self.client_of, settings.default_language)
        #: The ids of direct messages by person. Slack always gives the same.
        self._direct_messages: dict[str, str] = {}

    async def client_of(self, chat: str) -> AsyncWebClient:
        """Return a client with the token of a chat's workspace. All calls to Slack go through it.

        Raises Refused for a workspace that has not installed the app, and redis.RedisError.
        """
        return await self._clients.client_of(chat)

    def note_workspace(self, workspace: WorkspaceNote) -> None:
        """Remember the organization of a workspace, or delete a token that was revoked.

        Raises redis.RedisError if a token cannot be deleted: Slack sends the event again.
        """
        if self.installations is None:
            return
        if not workspace.removed:
            try:
                self.installations.note_organization(workspace.id, workspace.organization)
            except RedisError as exc:
                # Not raised: this message must reach the spool, which stores messages on the disk
                # while Redis does not answer. The next message names the organization again.
                reason = type(exc).__name__
                extra = {"channel": self.name, "workspace": workspace.id, "reason": reason}
                log.warning("workspace.not_noted", extra=extra)
            return

        removed_at = workspace.at or self.installations.clock()
        if self.installations.remove(workspace.id, workspace.removed, removed_at):
            extra = {"channel": self.name, "workspace": workspace.id, "reason": workspace.removed}
            log.warning("workspace.removed", extra=extra)
            of_labels(WORKSPACES, self.name, "removed").inc()

    def receive(self, hook: WebhookRequest) -> Received:
        """Verify a request and parse it. Raises Forbidden or BadHook.

        A repeated request is parsed like the first one, which may never have arrived.
        """
        timestamp = hook.header("x-slack-request-timestamp")
        signature = hook.header("x-slack-signature")
        if not (timestamp and signature):
            raise Forbidden("there is no X-Slack-Signature or no X-Slack-Request-Timestamp header")
        secret = self._signing_secret
        try:
            is_signed = slack_signed(secret, timestamp, hook.body, signature, now=hook.now)
        except ValueError as exc:
            raise Forbidden("the signature cannot be checked") from exc
        if not is_signed:
            raise Forbidden("the signature is wrong or too old")
        return self._parser.parse(hook.body)

    async def open_form(self, turn: Turn, find: FindForm) -> WebhookResponse | None:
        """Open the modal, Slack's dialog, that a tap asks for. Never raises.

        Returns None if Slack shows no modal.
        """
        is_shown = await self._forms.open(turn, find)
        if not is_shown:
            return None
        return WebhookResponse()

    def form_errors(self, errors: Mapping[str, str]) -> WebhookResponse:
        """Return the answer to a submission that shows each error beside its field."""
        return WebhookResponse(200, errors_answer(errors), "application/json")

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return the same limit for each conversation: a thread, or a chat without threads.

        Slack counts all threads of a channel together. If several are busy, it asks to wait.
        """
        return RATE

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Split a reply into messages of at most 3,000 characters, Slack's limit of a section."""
        return pieces_of(reply)

    async def show_typing(self, turn: Turn) -> float:
        """Show that the bot works on the turn: "is thinking…". Never raises.

        It is shown in the turn's thread, and in a direct message without threads below the message.
        Returns the seconds after which this must be called again, 0 for never.
        """
        place = await self._status_place(turn)
        if place is None:
            return 0.0
        chat, ts = place
        if turn.is_stop:
            # Shown as work, /stop itself would get a stop button. It is only noted as the newest
            # turn, so that the states of earlier turns are not shown any more.
            self._status.begin(chat, ts, turn.event_id)
            return 0.0
        title = title_of(turn) if self.settings.titles else ""
        return await self._status.show(chat, ts, turn.event_id, title=title)

    async def remove_typing(self, turn: Turn, *, replied: bool) -> None:
        """Remove "is thinking…". Never raises."""
        # Slack removes it for a reply in the thread, and leaves it for a reply outside of threads.
        if replied and turn.conversation.thread:
            return
        place = await self._status_place(turn)
        if place:
            chat, ts = place
            await self._status.remove(chat, ts)

    async def show_state(
        self,
        conversation: Conversation,
        state: ShownState,
        *,
        after: str = "",
    ) -> None:
        """Show what a thread waits for, in an app with the agent view. Never raises.

        `after` is the event id of the turn that led to the state, "" for none.
        """
        with contextlib.suppress(SendError, RedisError):
            there = await self._address_at_slack(conversation)
            if there.thread:
                await self._status.show_state(there.chat, there.thread, state, after=after)

    async def _status_place(self, turn: Turn) -> tuple[str, str] | None:
        """Return where Slack shows a turn's status: a chat, and the ts of a message in it.

        It is the first message of the turn's thread. Outside of threads it is the turn's own
        message, and only in a direct message: in a channel Slack would show the status in a thread
        that the person has not opened. Returns None for no place, such as for a slash command,
        which has no message.
        """
        has_message = turn.message_id and not turn.in_group
        if not (turn.conversation.thread or has_message):
            return None
        try:
            there = await self._address_at_slack(turn.conversation)
        except (SendError, RedisError):
            return None

        ts = turn.message_id
        if turn.conversation.thread:
            ts = there.thread
        if not ts:
            return None
        return there.chat, ts

    async def _address_at_slack(self, conversation: Conversation) -> Conversation:
        """Return the address of a conversation as Slack's methods take it.

        A person becomes the direct message with that person. A thread with a name of ours
        (NEW_THREAD), such as one that a slash command began, becomes the `ts` of the bot's message
        that opened it, and "" until that message is posted. The chat keeps its workspace in front,
        by which `client_of` finds the token. Raises SendError and redis.RedisError.
        """
        return await self._threads.at_slack(await self.main_address(conversation))

    async def draft(self, turn: Turn, text: str, shown_id: str = "") -> str:
        """Post the first section of the unfinished answer, or edit the message that shows it.

        Slack's own streams are not used: they need a thread and a receiver, and a workspace may
        begin only 20 a minute. Edits always work. Raises what `send` raises.
        """
        first = first_section(text)
        if not first.strip():
            return shown_id
        receipt = await self.send(Delivery("", turn.conversation, Reply(first, edits=shown_id)))
        return receipt.message_id

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Download a file from Slack's file server, with the token of its workspace.

        `media.ref` is the file's URL, or its id. No other server gets the token. Raises FetchError.
        """
        team, ref = split_place(media.ref)
        try:
            client = await self.client_of(media.ref)
        except (SendError, RedisError) as exc:
            # The text of a Redis error may hold its address.
            reason = type(exc).__name__
            if isinstance(exc, SendError):
                reason = str(exc)
            raise FetchError(f"there is no token for the file: {reason}") from None
        media = replace(media, ref=ref)
        if FILE_ID.fullmatch(ref):
            media = await self._look_up(client, ref)

        # The file's URL must begin with this. A server that replaces Slack, as in tests, names URLs
        # of Slack's file server, and has the files at the same paths itself.
        origin = FILE_ORIGINS.get(self._api_url, FILE_ORIGINS[SLACK])
        match = re.fullmatch(rf"{re.escape(origin)}(/[^\s\\]+)", media.ref)
        if match is None:
            raise FetchError(f"the file's address is not on {origin.removeprefix('https://')}")

        url = self._files_url + match[1]
        headers = {"Authorization": f"Bearer {client.token}"}
        with fetch_errors():
            saved_file = await SafeDownload(MAX_FILE_BYTES).save(url, file, headers)
        # Slack answers a wrong token with a log-in page. An HTML file that a person sent has a type
        # such as text/html, and the size that Slack named.
        is_sent_file = media.kind == "text" and saved_file.size == media.size
        if saved_file.content_type == "text/html" and not is_sent_file:
            token = f"the token of {team}" if team else "bot_token"
            raise FetchError(f"Slack sent a log-in page: check {token} and its scope files:read")

    async def _look_up(self, client: AsyncWebClient, file_id: str) -> Media:
        """Return a file by its id. The event of a shared channel names nothing else of it.

        Raises FetchError.
        """
        from aiohttp import ClientError
        from slack_sdk.errors import SlackApiError, SlackClientError

        try:
            answer = await client.files_info(file=file_id)
        except SlackApiError as exc:
            raise FetchError(f"Slack error {error_code(exc.response) or 'unknown_error'}") from None
        except (SlackClientError, AttributeError, ClientError, OSError) as exc:
            # AttributeError: so the SDK fails on an answer in plain text.
            raise FetchError(f"Slack did not say where the file is: {type(exc).__name__}") from None
        file = answer.get("file")
        media = None
        if isinstance(file, dict):
            media = media_of(file)
        if media is None:
            raise FetchError("Slack has no address for the file: it was deleted, or is hidden")
        return media

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece. If Slack refuses its blocks, the text is sent without them.

        A file that Slack refuses is sent as a link. An impossible edit is sent as a new message,
        unless it is optional. Raises SendError, and redis.RedisError before anything is posted:
        what follows a post must not raise, since a repetition would post the message twice.
        """
        reply = delivery.reply
        # Slack's methods get `to`. Buttons name the stored conversation, where a tap is answered.
        to = await self._address_at_slack(delivery.conversation)
        # `split` puts buttons and edits into other pieces than the file. A file has no `only_for`
        # either: it could only answer a message that one person alone saw (`Turn.ephemeral`), and
        # Slack brings no such messages. Texts have it, such as "this button is not yours".
        if reply.media:
            to = await self._with_thread(reply.media, to, delivery.conversation)
            return await self._share(reply, reply.media, to, delivery.conversation)

        text = slack_mrkdwn(reply.text)
        message = message_of([text], reply.buttons, to.chat, delivery.conversation)
        # The message that opened a thread stays: what follows is posted there.
        may_remove = reply.removes and reply.edits != to.thread
        if may_remove and await self._remove(message["channel"], reply.edits, to):
            return Receipt("")
        if reply.edits:
            receipt_of_edit = await self._edit(message, reply.edits, to)
            if receipt_of_edit:
                return receipt_of_edit
            if reply.optional:
                return Receipt("")

        receipt = await self._post(message, to, reply.only_for)
        # A message that only one person sees has no id, and opens no thread. `note` never raises.
        if receipt.message_id and _opens_thread(delivery.conversation, to):
            await self._threads.note(
                await self.main_address(delivery.conversation), receipt.message_id
            )
        return receipt

    async def _with_thread(
        self,
        media: Media,
        to: Conversation,
        conversation: Conversation,
    ) -> Conversation:
        """Return where to share a file. Opens the thread of a conversation that has none yet.

        `to` is the address of `conversation` at Slack. A message with the file's name opens the
        thread. Slack does not say which message shows a file, so after a file alone the thread
        would be unknown, and the next reply would open another one.
        """
        if not _opens_thread(conversation, to):
            return to
        name = slack_mrkdwn(shown_name(media))
        receipt = await self._post(message_of([name], (), to.chat, conversation), to)
        await self._threads.note(await self.main_address(conversation), receipt.message_id)
        return replace(to, thread=receipt.message_id)

    def at_first_address(self, turn: Turn) -> Turn:
        """Return the turn under the address that its conversation began with.

        It is called for each turn that comes in, before the turn is stored, in the thread of the
        webhook: it asks Redis directly and is not async. The address differs
        only in a thread of a direct message that the bot opened: nowhere else does a thread get a
        name of ours. Raises redis.RedisError.
        """
        there = turn.conversation
        is_direct = split_place(there.chat).id.startswith("D")
        # "" means that the bot began the thread, or that the author is unknown. Both are looked up.
        # The turn is returned unchanged where no address is noted.
        is_persons_thread = turn.thread_author != ""
        if not is_direct or not there.thread or is_persons_thread:
            return turn
        return replace(turn, conversation=self._threads.first_address(there))

    async def main_address(self, conversation: Conversation) -> Conversation:
        """Return the conversation with the id of the direct message in place of a person's id.

        The direct message is opened if needed, which shows nothing to the person. Raises SendError
        and redis.RedisError.
        """
        person = conversation.chat
        if not is_user(person):
            return conversation
        if person not in self._direct_messages:
            team, user = split_place(person)
            client = await self.client_of(person)
            with translated_repeatable(person):
                answer = await client.conversations_open(users=user)
                channel = answer.get("channel")
            chat = channel.get("id") if isinstance(channel, dict) else None
            if not isinstance(chat, str) or not chat:
                raise Unreachable("Slack named no direct message")
            self._direct_messages[person] = join_place(team, chat)
        return replace(conversation, chat=self._direct_messages[person])

    async def group_members(self, group: str) -> Sequence[str]:
        """Return the ids of the people in a user group. Raises SendError and redis.RedisError.

        In an app of many workspaces the ids have the workspace of the group in front.
        """
        team, group_id = split_place(group)
        client = await self.client_of(group)
        with translated_repeatable(group):
            # Slack requires the workspace for the token of an organization.
            answer = await client.usergroups_users_list(usergroup=group_id, team_id=team or None)
            members = answer.get("users")
        if not isinstance(members, list):
            raise Unreachable("Slack named no members of the group")
        return [join_place(team, str(member)) for member in members]

    async def _edit(self, message: dict[str, Any], ts: str, to: Conversation) -> Receipt | None:
        """Replace an earlier message. Return None if Slack cannot.

        Raises SendError and redis.RedisError.
        """
        from slack_sdk.errors import SlackApiError

        with translated_repeatable(to.chat):
            try:
                return await self._call("chat.update", {**message, "ts": ts}, to)
            except SlackApiError as exc:
                if reaction_to(error_code(exc.response)) != "unchangeable":
                    raise
                return None

    async def _remove(self, channel: str, ts: str, to: Conversation) -> bool:
        """Delete a message of ours. Raises SendError and redis.RedisError.

        Returns False if Slack does not delete it: it is gone already, or the workspace forbids it.
        """
        from slack_sdk.errors import SlackApiError

        client = await self.client_of(to.chat)
        with translated_repeatable(to.chat):
            try:
                await client.api_call("chat.delete", json={"channel": channel, "ts": ts})
            except SlackApiError as exc:
                if reaction_to(error_code(exc.response)) != "unchangeable":
                    raise
                return False
        return True

    async def _post(self, message: dict[str, Any], to: Conversation, only_for: str = "") -> Receipt:
        """Post a message, for one person or for all of the chat.

        `only_for` is the person's id, "" for all. Raises SendError and redis.RedisError.
        """
        params = dict(message)
        if to.thread:
            params["thread_ts"] = to.thread
        with translated(to.chat):
            if only_for:
                params["user"] = split_place(only_for).id
                await self._call("chat.postEphemeral", params, to)
                # Slack cannot edit such a message, so its id is of no use.
                return Receipt("")
            params |= {"unfurl_links": False, "unfurl_media": False}
            return await self._call("chat.postMessage", params, to)

    async def _call(self, method: str, message: dict[str, Any], to: Conversation) -> Receipt:
        """Call a method that shows a message, and again without blocks if Slack refuses them.

        Raises SendError and redis.RedisError before the call, and what the SDK raises.
        """
        from slack_sdk.errors import SlackApiError

        client = await self.client_of(to.chat)
        try:
            answer = await client.api_call(method, json=message)
        except SlackApiError as exc:
            if not message["blocks"] or reaction_to(error_code(exc.response)) != "plain":
                raise
            # Without the key, an edited message would keep its blocks.
            answer = await client.api_call(method, json={**message, "blocks": []})
        return _receipt(answer)

    async def _share(
        self, reply: Reply, media: Media, to: Conversation, conversation: Conversation
    ) -> Receipt:
        """Send a file with the reply's text, as a link if Slack refuses it.

        The receipt of a file has no id, since Slack posts its message later. Raises SendError and
        redis.RedisError.
        """
        comment = ""
        if reply.text.strip():
            comment = slack_mrkdwn(reply.text)
        open_file = partial(open_on_disk, self._media)
        with await asyncio.to_thread(file_to_send, open_file, media.ref) as file:
            try:
                await self._upload(media, file, to, comment)
            except AddressClosed:
                # A kind of Refused, but the address takes no link either.
                raise
            except Refused:
                # The file is too large for the workspace, for example.
                url = self._media.url(media.ref, filename=media.filename, mime_type=media.mime_type)
                link = slack_mrkdwn(link_text(media, size_of(file), url))
                texts = [text for text in (comment, link) if text]
                return await self._post(message_of(texts, (), to.chat, conversation), to)
        return Receipt("")

    async def _upload(self, media: Media, file: BinaryIO, to: Conversation, comment: str) -> None:
        """Upload a file and show it. Raises SendError and redis.RedisError."""
        size = size_of(file)
        web = await self.client_of(to.chat)
        name = media.filename or "file"
        # The upload can be repeated (`translated_repeatable`): the file is invisible until it is
        # shared. Sharing it twice would show it twice, so that call is only `translated`.
        with translated_repeatable(to.chat):
            offer = await web.files_getUploadURLExternal(filename=name, length=size)
            session: Any = web.session
            # The upload URL is a secret itself, so the token is not sent there.
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
            async with session.post(
                str(offer["upload_url"]), data=_parts(file), headers=headers, allow_redirects=False
            ) as response:
                status = response.status
            if status in _FINAL_STATUSES:
                raise Refused(f"Slack's file server answered {status}")
            if status != 200:
                raise Unreachable(f"Slack's file server answered {status}")

        with translated(to.chat):
            await web.files_completeUploadExternal(
                files=[{"id": str(offer["file_id"]), "title": name}],
                channel_id=split_place(to.chat).id,
                thread_ts=to.thread or None,
                initial_comment=comment or None,
            )


def _opens_thread(conversation: Conversation, to: Conversation) -> bool:
    """Return whether the next message of a conversation opens its thread.

    `to` is the address of `conversation` at Slack. It has no thread yet, and the stored thread has
    a name of ours.
    """
    return to.thread == "" and NEW_THREAD.fullmatch(conversation.thread) is not None


async def _parts(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield a file in parts, so that it is never whole in memory."""
    while part := await asyncio.to_thread(file.read, PART_BYTES):
        yield part


def _receipt(answer: Any) -> Receipt:
    """Return the receipt of a message that Slack sent or edited, from Slack's answer.

    The `ts` of a message is its id and, in Unix seconds, when it was sent.
    """
    ts = str(answer.get("ts") or "")
    written_at = ts
    message = answer.get("message")
    edit = message.get("edited") if isinstance(message, dict) else None
    if isinstance(edit, dict):
        written_at = str(edit.get("ts") or ts)
    try:
        return Receipt(ts, float(written_at or 0))
    except ValueError:
        return Receipt(ts)
