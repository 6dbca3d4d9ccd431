"""SlackChannel: one Slack app in one workspace, its signed requests read and its replies sent through the Web API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from channels.base import (
    AddressClosed,
    Ambiguous,
    BadHook,
    FetchError,
    Forbidden,
    MediaSource,
    Pace,
    RateLimited,
    Refused,
    SendError,
    Unreachable,
)
from channels.fetch import Download
from channels.http import PerLoop, never_sent
from channels.markup import slack_mrkdwn, split
from channels.media import MAX_BYTES
from channels.signatures import slack_signed
from channels.types import (
    Button,
    Conversation,
    Delivery,
    Hook,
    HookAnswer,
    Media,
    Receipt,
    Received,
    Reply,
    Tap,
    Turn,
    storable,
)

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from slack_sdk.web.async_client import AsyncWebClient

#: Characters in one section, after escaping; characters on a button.
SECTION_LIMIT, LABEL_LIMIT = 3000, 75
#: Seconds after which "is thinking" is shown again.
STATUS_SECONDS = 100.0
#: About one message a second in a Slack channel, with short bursts. Slack names no number for the whole workspace.
PACE = Pace(chat_gap=1.0, burst=4)
#: Opens the block id that carries a message's thread back with a tap.
THREAD_MARK = "thread:"

_SUBTYPES = ("", "file_share", "thread_broadcast", "me_message")
_RATE_ERRORS = ("ratelimited", "rate_limited", "message_limit_exceeded")
#: Slack says of these that some part may have succeeded.
_UNCLEAR_ERRORS = ("internal_error", "fatal_error", "service_unavailable", "request_timeout")
#: And of these that nothing can be posted there.
_CLOSED_ERRORS = (
    "channel_not_found", "is_archived", "messages_tab_disabled", "not_in_channel", "user_not_found",
    "user_not_in_channel",
)  # fmt: skip
_NO_JSON = "Slack's answer makes no sense"
_BLOCK_ERRORS = ("invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long")
_TOKEN = re.compile(r"<([^<>]*)>")
_FILE = re.compile(r"https://files\.slack\.com(/[^\s\\]+)")

Json = Mapping[str, Any]


class SlackChannel:
    """One app. Lives as long as the process. `api_url` replaces https://slack.com and https://files.slack.com."""

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
        self._media = media
        self._api_url, self._files_url = (
            (api_url or origin).rstrip("/") for origin in ("https://slack.com", "https://files.slack.com")
        )
        self._post_url = f"{self._api_url}/api/chat.postMessage"
        self._headers = {
            "Authorization": f"Bearer {self._bot_token}", "Content-Type": "application/json; charset=utf-8"
        }  # fmt: skip
        self._web = PerLoop(self._new_client)

    def __repr__(self) -> str:
        return f"SlackChannel({self._name!r})"

    @property
    def name(self) -> str:
        """The channel's name in the YAML."""
        return self._name

    def receive(self, hook: Hook) -> Received:
        """Read one signed request: an event, a tapped button, a slash command, or one of Slack's own checks."""
        self._verify(hook)
        try:
            return self._read(_body(hook.body))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError, RecursionError) as exc:
            raise BadHook("the request is signed but makes no sense") from exc

    def _verify(self, hook: Hook) -> None:
        timestamp, signature = hook.header("x-slack-request-timestamp"), hook.header("x-slack-signature")
        try:
            valid = slack_signed(self._signing_secret, timestamp, hook.body, signature, now=hook.now)
        except ValueError as exc:
            raise Forbidden("the signature cannot be checked") from exc
        if not valid:
            raise Forbidden("the signature is wrong or too old")

    def _read(self, body: dict[str, Any]) -> Received:
        from slack_bolt.request.payload_utils import is_block_actions, is_event, is_slash_command

        if body.get("type") == "url_verification":
            challenge = json.dumps({"challenge": str(body["challenge"])})
            return Received(answer=HookAnswer(200, challenge, "application/json"), ignored="url_verification")
        if body.get("ssl_check"):
            return Received(ignored="ssl_check")
        if is_event(body):
            return self._event(body)
        if is_block_actions(body):
            return self._action(body)
        if is_slash_command(body):
            return Received(turns=(self._command(body),))
        return Received(ignored=f"request of type {body.get('type')!r}")

    def _event(self, body: Json) -> Received:
        event, (team, bot) = body["event"], _installation(body)
        reason = _why_ignored(event, bot)
        if reason:
            return Received(ignored=reason)
        channel, ts = event["channel"], event["ts"]
        direct = event.get("channel_type") == "im" or channel.startswith("D")
        text = event.get("text") or ""
        turn = Turn(
            # An app_mention and its message.channels twin have different event ids, but one ts.
            event_id=f"{team}:{channel}:{ts}",
            conversation=Conversation(self._name, channel, event.get("thread_ts") or ("" if direct else ts)),
            user_id=event["user"],
            text=_readable(text, bot),
            media=tuple(_media(event)),
            message_id=ts,
            addressed=direct or event["type"] == "app_mention" or _names(text, bot),
        )
        if not turn.text and not turn.media:
            return Received(ignored="message without text or a file")
        return Received(turns=(turn,))

    def _action(self, body: Json) -> Received:
        action, container = body["actions"][0], body.get("container") or {}
        message = body.get("message") or {}
        channel = (body.get("channel") or {}).get("id") or container.get("channel_id")
        ts = message.get("ts") or container.get("message_ts") or ""
        if not channel or not isinstance(action.get("value"), str):
            return Received(ignored=f"action of type {action.get('type')!r}")
        thread = _thread_of(action, message.get("thread_ts") or container.get("thread_ts") or "", channel, ts)
        fallback_id = f"{ts}:{action.get('action_id')}:{action.get('action_ts')}"
        turn = Turn(
            event_id=body.get("trigger_id") or fallback_id,
            conversation=Conversation(self._name, channel, thread),
            user_id=body["user"]["id"],
            user_name=body["user"].get("username") or "",
            tap=Tap(data=storable(action["value"]), callback_id=body.get("trigger_id") or ""),
            message_id=ts,
        )
        return Received(turns=(turn,))

    def _command(self, body: Json) -> Turn:
        """A slash command is what was typed after it; alone it asks for help. It has no thread and no message id."""
        return Turn(
            event_id=body["trigger_id"],
            conversation=Conversation(self._name, body["channel_id"]),
            user_id=body["user_id"],
            user_name=body.get("user_name", ""),
            text=_readable(body.get("text", ""), "") or "/help",
        )

    def pace(self, conversation: Conversation) -> Pace:
        """Each thread by itself; where several of one Slack channel are busy, Slack asks to wait."""
        return PACE

    def pieces(self, reply: Reply) -> Sequence[Reply]:
        """A file may carry one section of words, but never buttons: those need a message of their own."""
        if reply.media and not reply.buttons and _length(reply.text) <= SECTION_LIMIT:
            return (reply,)
        texts = [Reply(text) for text in split(reply.text, SECTION_LIMIT, _length) if text.strip()]
        if reply.buttons and not texts:
            texts = [Reply(" / ".join(button.label for button in reply.buttons))]
        if reply.buttons:
            texts[-1] = replace(texts[-1], buttons=reply.buttons)
        return (Reply(media=reply.media), *texts) if reply.media else tuple(texts)

    async def attend(self, turn: Turn) -> float:
        """Show "is thinking" under an assistant thread, for 2 minutes; elsewhere Slack has no such sign."""
        if not turn.conversation.thread:
            return 0.0
        with contextlib.suppress(Exception):
            await self._web.here().assistant_threads_setStatus(
                channel_id=turn.conversation.chat, thread_ts=turn.conversation.thread, status="is thinking…"
            )
        return STATUS_SECONDS

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """Nothing yet."""
        return ""

    async def fetch(self, media: Media) -> bytes:
        """Download from Slack's own file server, the only one that sees the token."""
        found = _FILE.fullmatch(media.ref)
        if found is None:
            raise FetchError("the file's address is not on files.slack.com")
        token = {"Authorization": f"Bearer {self._bot_token}"}
        file = await Download(MAX_BYTES).get(self._files_url + found.group(1), token)
        # A wrong token is answered with a page to log in. A page that somebody sent has the size Slack told us.
        if file.content_type == "text/html" and (media.kind != "text" or len(file.data) != media.size):
            raise FetchError("Slack sent a log-in page: check bot_token and its scope files:read")
        return file.data

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece; blocks that Slack refuses are left out, the words alone are sent once."""
        from aiohttp import ClientError
        from slack_sdk.errors import SlackApiError, SlackClientError

        try:
            return await (self._upload(delivery) if delivery.reply.media else self._post(delivery))
        except SlackApiError as exc:
            raise _api_error(exc.response) from exc
        except SlackClientError as exc:
            raise Ambiguous("no clear answer from Slack") from exc
        except (ClientError, OSError) as exc:
            raise _network_error(exc) from None  # it may name the address that a file was to go to

    async def _post(self, delivery: Delivery) -> Receipt:
        from slack_sdk.errors import SlackApiError

        text, to = slack_mrkdwn(delivery.reply.text), delivery.conversation
        common = {"channel": to.chat, "text": text, "unfurl_links": False, "unfurl_media": False}
        if to.thread:
            common["thread_ts"] = to.thread
        try:
            return await self._said({**common, "blocks": _blocks(text, delivery.reply.buttons, to.thread)})
        except SlackApiError as exc:
            if _code(exc.response) not in _BLOCK_ERRORS:
                raise
            return await self._said(common)

    async def _said(self, message: Json) -> Receipt:
        """The one call that each reply makes, without the SDK's layers: they take as long as the request itself."""
        from slack_sdk.errors import SlackApiError

        session = self._web.here().session
        assert session is not None  # noqa: S101  # it was made with one
        async with session.post(
            self._post_url, data=json.dumps(message).encode(), headers=self._headers, allow_redirects=False
        ) as response:
            answer = _Answer(response.status, response.headers, _object(await response.read()))
        if answer.status_code != 200 or not answer.data.get("ok"):
            raise SlackApiError("chat.postMessage", answer)  # type: ignore[no-untyped-call]  # the SDK's own
        return Receipt(str(answer.data.get("ts") or ""))

    async def _upload(self, delivery: Delivery) -> Receipt:
        """Share a file. Slack posts the message later, so there is no message id to return."""
        media, to = delivery.reply.media, delivery.conversation
        assert media is not None  # noqa: S101  # our caller looked
        try:
            data = await asyncio.to_thread(self._media.read, media.ref)
        except KeyError:
            raise Refused("the file to send is gone from the media store") from None
        await self._web.here().files_upload_v2(
            filename=media.filename or "file",
            title=media.filename or "file",
            content=data,
            channel=to.chat,
            thread_ts=to.thread or None,
            initial_comment=slack_mrkdwn(delivery.reply.text) or None,
        )
        return Receipt("")

    def _new_client(self, session: ClientSession) -> AsyncWebClient:
        from slack_sdk.web.async_client import AsyncWebClient

        logger = logging.getLogger("channels.slack.sdk")
        # The SDK logs whole messages at DEBUG.
        logger.setLevel(logging.CRITICAL)
        # Its own retries would send twice behind the outbox's back.
        return AsyncWebClient(
            self._bot_token, f"{self._api_url}/api/", session=session, logger=logger, retry_handlers=[]
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """What Slack said, named as the SDK names it. An answer that is no JSON object has no `data`."""

    status_code: int
    headers: Mapping[str, str]
    data: dict[str, Any]


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _body(raw: bytes) -> dict[str, Any]:
    """Events are JSON, interactivity is JSON in a form field, commands are a form.

    Bolt's own parser loses a command whose text contains the word "payload".
    """
    if raw.lstrip()[:1] == b"{":
        body = json.loads(raw)
    else:
        form = dict(parse_qsl(raw.decode(), keep_blank_values=True))
        body = json.loads(form["payload"]) if "payload" in form and "command" not in form else form
    if not isinstance(body, dict):
        raise TypeError("not an object")
    return body


def _installation(body: Json) -> tuple[str, str]:
    """Team and bot user. In shared channels only the authorization names our own team."""
    authorization = (body.get("authorizations") or [{}])[0]
    return str(authorization.get("team_id") or body.get("team_id") or ""), str(authorization.get("user_id") or "")


def _why_ignored(event: Json, bot: str) -> str:
    if event["type"] not in ("message", "app_mention"):
        return f"event of type {event['type']!r}"
    if (event.get("subtype") or "") not in _SUBTYPES:
        return f"message of subtype {event['subtype']!r}"
    if event.get("bot_id") or not event.get("user") or event["user"] == bot:
        return "sent by a bot"
    return ""


def _names(text: str, bot: str) -> bool:
    return bool(bot) and re.search(rf"<@{re.escape(bot)}(\|[^>]*)?>", text) is not None


def _readable(text: str, bot: str) -> str:
    """Slack's escaped text as people see it, without the mention that called the bot."""
    if bot:
        text = re.sub(rf"^\s*<@{re.escape(bot)}(\|[^>]*)?>[\s:,]*", "", text)
        text = re.sub(rf"<@{re.escape(bot)}(\|[^>]*)?> ?", "", text)
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


def _media(event: Json) -> Iterator[Media]:
    """Files with an address. Deleted files, and those a shared channel hides, have none."""
    for file in event.get("files") or ():
        url = file.get("url_private_download") or file.get("url_private")
        if url:
            yield Media(
                ref=url,
                mime_type=file.get("mimetype") or "application/octet-stream",
                filename=file.get("name") or "",
                size=int(file.get("size") or 0),
            )


def _thread_of(action: Json, thread: str, channel: str, ts: str) -> str:
    """The thread of the conversation a button was sent to.

    Our block ids say it. A message of others is read as its event would be: a root message opens a thread.
    """
    block_id = str(action.get("block_id") or "")
    if block_id.startswith(THREAD_MARK):
        return block_id.removeprefix(THREAD_MARK)
    return thread or ("" if channel.startswith("D") else ts)


def _length(md: str) -> int:
    return len(slack_mrkdwn(md))


def _blocks(text: str, buttons: Sequence[Button], thread: str) -> list[dict[str, Any]]:
    section = {"type": "section", "text": {"type": "mrkdwn", "text": text}}
    if not buttons:
        return [section]
    keys = [_key(number, button) for number, button in enumerate(buttons)]
    return [section, {"type": "actions", "block_id": f"{THREAD_MARK}{thread}", "elements": keys}]


def _key(number: int, button: Button) -> dict[str, Any]:
    key = {
        "type": "button",
        "action_id": f"button-{number}",
        "text": {"type": "plain_text", "text": button.label[:LABEL_LIMIT]},
        "value": button.data,
    }
    return key if button.style == "default" else {**key, "style": button.style}


def _code(response: Any) -> str:
    """Slack's error code; anything that does not look like one may quote the message."""
    data = getattr(response, "data", None)
    code = str(data.get("error") or "") if isinstance(data, dict) else ""
    return code if re.fullmatch(r"\w{1,80}", code) else "unknown_error"


def _api_error(response: Any) -> SendError:
    if not hasattr(response, "status_code"):  # the bare answer, of which the SDK could not read a word
        limited = response.status == 429
        return RateLimited(_retry_after(response.headers)) if limited else Ambiguous(_NO_JSON)
    code, status = _code(response), int(response.status_code)
    if status == 429 or code in _RATE_ERRORS:
        return RateLimited(_retry_after(response.headers))
    if status >= 500 or code in _UNCLEAR_ERRORS:
        return Ambiguous(f"Slack answered {code if status < 500 else status}")
    if not response.data:
        return Ambiguous(_NO_JSON)
    return (AddressClosed if code in _CLOSED_ERRORS else Refused)(f"Slack error {code}")


def _retry_after(headers: Mapping[str, str]) -> float:
    seconds = next((value for name, value in headers.items() if name.lower() == "retry-after"), "1")
    return float(seconds) if seconds.isdecimal() else 1.0


def _network_error(exc: Exception) -> SendError:
    if never_sent(exc):
        return Unreachable("no connection to Slack")
    return Ambiguous("the connection to Slack broke before its answer")
