"""Slack requests: what each kind of request that Slack signs means: a turn, news of an address, or nothing."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from sayso.channels.base import BadHook
from sayso.channels.slack.text import files_of, form_answers, media_of, names, notes_of, readable
from sayso.channels.types import AddressChange, Conversation, Received, Signed, Tap, Turn, WebhookResponse, storable

#: Opens the block id that carries a message's thread back with a tap, or the person a direct message was opened with.
THREAD_MARK, USER_MARK = "thread:", "user:"


#: Ends it where a message has several rows of buttons: no two block ids may be the same.
ROW_MARK = "#"


#: What a slash command may ask for in one word, as if it were a command of its own.
COMMANDS = frozenset({"help", "whoami", "reset", "status", "stop", "tools"})


_SUBTYPES = ("", "file_share", "thread_broadcast", "me_message")


#: Slack's own voice, whose words come without a bot's id.
_SLACKBOT = "USLACKBOT"


#: What events say of a Slack channel: why nothing can be posted there any more, "" where something can again.
_ADDRESS_EVENTS = {
    "channel_archive": "is_archived", "group_archive": "is_archived",
    "channel_deleted": "channel_not_found", "group_deleted": "channel_not_found",
    "channel_left": "not_in_channel", "group_left": "not_in_channel", "member_left_channel": "not_in_channel",
    "channel_unarchive": "", "group_unarchive": "", "member_joined_channel": "",
}  # fmt: skip


#: Elements whose options are ours.
_MENUS = ("static_select", "overflow", "radio_buttons")


_UNINSTALLED = "the Slack app was uninstalled from its workspace: install it again and copy its new bot_token"


_REVOKED = "Slack revoked the bot's token: install the app again and copy its new bot_token"


_RATE_LIMITED = "Slack holds events of the app back: there are more than 30,000 an hour in this workspace"


_CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]{1,40}")


_THREAD_TS = re.compile(r"(\d{1,16}\.\d{1,9})?")


SlackJson = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SlackRequests:
    """Reads what was signed for the channel of this name. No I/O."""

    channel: str

    def read(self, raw: bytes) -> Received:
        """What one request brings, and what Slack wants to hear. Raises BadHook."""
        try:
            return self._read(_body(raw))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError, RecursionError) as exc:
            raise BadHook("the request is signed but makes no sense") from exc

    def _read(self, body: dict[str, Any]) -> Received:
        from slack_bolt.request import payload_utils as bolt

        if bolt.is_event(body):
            return self._event(body)
        if body.get("ssl_check"):
            return Received(ignored="ssl_check")
        if bolt.is_slash_command(body):
            return Received(turns=(self._command(body),))
        return self._other(body)

    def _other(self, body: SlackJson) -> Received:
        """Requests that name their type. Those of people are not sent again: a person sees an error instead."""
        match body.get("type"):
            case "url_verification":
                return _json_answer({"challenge": str(body["challenge"])}, "url_verification")
            case "block_actions":
                return self._taps(body)
            case "view_submission":
                return Received(turns=(self._form(body),))
            case "shortcut":
                return Received(turns=(self._shortcut(body),))
            case "message_action":
                return Received(turns=(self._message_shortcut(body),))
            case "block_suggestion":
                return _json_answer({"options": []}, "block_suggestion")
            case "app_rate_limited":
                return Received(alerts=(_RATE_LIMITED,))
            case kind:
                return Received(ignored=f"request of type {kind!r}")

    def _event(self, body: SlackJson) -> Received:
        event, (team, bot) = body["event"], _installation(body)
        kind = event["type"]
        if kind in ("message", "app_mention"):
            return self._message(event, team, bot)
        if kind in _ADDRESS_EVENTS:
            return self._address(event, bot)
        if kind == "channel_id_changed":
            return self._moved(event)
        if kind == "app_uninstalled":
            return Received(alerts=(_UNINSTALLED,))
        if kind == "tokens_revoked" and (event.get("tokens") or {}).get("bot"):
            return Received(alerts=(_REVOKED,))
        # Among them assistant_thread_started: what is said in such a thread is a direct message with a thread_ts.
        return Received(ignored=f"event of type {kind!r}")

    def _message(self, event: SlackJson, team: str, bot: str) -> Received:
        edited = event.get("subtype") == "message_changed"
        message = event["message"] if edited else event
        reason = _why_ignored(message, bot) or (_why_no_edit(message, event.get("previous_message")) if edited else "")
        if reason:
            return Received(ignored=reason)
        # An app_mention and its message.channels twin have different event ids, but one ts; or, where an edit brought
        # the mention, one edited.ts.
        renewed = edited or (event["type"] == "app_mention" and message.get("edited"))
        act = f"edit:{_edited_at(event, message)}" if renewed else message["ts"]
        turn = self._said(event, message, f"{team}:{event['channel']}:{act}", bot)
        if not (turn.text or turn.media or turn.notes):
            return Received(ignored="message without text or a file")
        return Received(turns=(turn,))

    def _said(self, event: SlackJson, message: SlackJson, event_id: str, bot: str) -> Turn:
        channel, ts, text = event["channel"], message["ts"], message.get("text") or ""
        direct = event.get("channel_type") == "im" or channel.startswith("D")
        edit = bool(message.get("edited"))
        files = () if edit else tuple(media for media in map(media_of, files_of(message)) if media)
        return Turn(
            event_id=event_id,
            conversation=Conversation(self.channel, channel, _thread(message, direct, later=edit)),
            user_id=message["user"],
            text=readable(text, bot),
            media=files,
            message_id=ts,
            addressed=direct or event["type"] == "app_mention" or names(text, bot),
            kind="edit" if edit else "message",
            notes=() if edit else tuple(notes_of(message)),
            in_group=not direct,
            written_at=float(ts),
        )

    def _address(self, event: SlackJson, bot: str) -> Received:
        """News of a Slack channel as a whole. Its threads are conversations that Slack does not name here: each of
        them closes with the first reply that is refused there, and opens with the next message of a person.
        """
        kind = event["type"]
        if event.get("user") != bot and kind.startswith("member_"):
            return Received(ignored=f"event of type {kind!r} about somebody else")
        return Received(addresses=(self._news(event["channel"], _ADDRESS_EVENTS[kind]),))

    def _moved(self, event: SlackJson) -> Received:
        old = self._news(event["old_channel_id"], "channel_id_changed")
        return Received(addresses=(old, self._news(event["new_channel_id"], "")))

    def _news(self, channel: str, closed: str) -> AddressChange:
        if not _CHANNEL_ID.fullmatch(channel):
            raise ValueError("no id of a Slack channel")
        return AddressChange(Conversation(self.channel, channel), closed)

    def _taps(self, body: SlackJson) -> Received:
        container, message = body.get("container") or {}, body.get("message") or {}
        channel = (body.get("channel") or {}).get("id") or container.get("channel_id")
        actions = body["actions"]
        chosen = [(action, value) for action in actions if isinstance(value := _chosen(action), str)]
        if not channel or not chosen:
            return Received(ignored=f"action of type {actions[0].get('type')!r}")
        # What only one person sees can neither be edited nor open a thread.
        ts = "" if container.get("is_ephemeral") else message.get("ts") or container.get("message_ts") or ""
        thread = message.get("thread_ts") or container.get("thread_ts") or ""
        trigger = body.get("trigger_id") or ""
        turns = [
            Turn(
                event_id=_act(trigger, ts, action, number),
                conversation=self._tapped(action, body["user"]["id"], channel, thread, ts),
                user_id=body["user"]["id"],
                user_name=body["user"].get("username") or "",
                tap=Tap(data=storable(value), callback_id=trigger),
                message_id=ts,
                in_group=not channel.startswith("D"),
            )
            for number, (action, value) in enumerate(chosen)
        ]
        return Received(turns=tuple(turns))

    def _tapped(self, action: SlackJson, user: str, channel: str, thread: str, ts: str) -> Conversation:
        """The conversation a button was sent to.

        Our block ids say it. A message of others is read as its event would be: a root message opens a thread.
        """
        mark = str(action.get("block_id") or "").partition(ROW_MARK)[0]
        if mark == f"{USER_MARK}{user}":
            return Conversation(self.channel, user)
        if mark.startswith(THREAD_MARK):
            return Conversation(self.channel, channel, mark.removeprefix(THREAD_MARK))
        return Conversation(self.channel, channel, thread or ("" if channel.startswith("D") else ts))

    def _form(self, body: SlackJson) -> Turn:
        """A submitted modal. The empty answer closes it."""
        view, user = body["view"], body["user"]
        title = (view.get("title") or {}).get("text") or view.get("callback_id") or ""
        chat, thread = _named_place(view.get("private_metadata")) or (user["id"], "")
        return Turn(
            event_id=body.get("trigger_id") or f"{view['id']}:{view.get('hash')}",
            conversation=Conversation(self.channel, chat, thread),
            user_id=user["id"],
            user_name=user.get("username") or "",
            notes=(f"submitted form {title!r}", *form_answers(view)),
            in_group=chat.startswith(("C", "G")),
        )

    def _shortcut(self, body: SlackJson) -> Turn:
        """A global shortcut names no channel: it is answered in a direct message."""
        user = body["user"]
        return Turn(
            event_id=body.get("trigger_id") or f"{user['id']}:{body['callback_id']}:{body['action_ts']}",
            conversation=Conversation(self.channel, user["id"]),
            user_id=user["id"],
            user_name=user.get("username") or "",
            text=f"/{body['callback_id']}",
        )

    def _message_shortcut(self, body: SlackJson) -> Turn:
        """A shortcut at a message: whose it is says nothing of who chose it."""
        user, message, channel = body["user"], body["message"], body["channel"]["id"]
        direct = channel.startswith("D")
        return Turn(
            event_id=body.get("trigger_id") or f"{message['ts']}:{body['callback_id']}:{body['action_ts']}",
            conversation=Conversation(self.channel, channel, _thread(message, direct, later=True)),
            user_id=user["id"],
            user_name=user.get("username") or user.get("name") or "",
            text=f"/{body['callback_id']}",
            media=tuple(media for media in map(media_of, files_of(message)) if media),
            message_id=message["ts"],
            quoted=readable(message.get("text") or "", ""),
            notes=tuple(notes_of(message)),
            in_group=not direct,
        )

    def _command(self, body: SlackJson) -> Turn:
        """A slash command is what was typed after it; alone it asks for help. It has no thread and no message id."""
        text = readable(body.get("text", ""), "")
        return Turn(
            event_id=body["trigger_id"],
            conversation=Conversation(self.channel, body["channel_id"]),
            user_id=body["user_id"],
            user_name=body.get("user_name", ""),
            text=f"/{text.lower()}" if text.lower() in COMMANDS else text or "/help",
            in_group=not body["channel_id"].startswith("D"),
        )


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


def _json_answer(value: SlackJson, ignored: str) -> Received:
    return Received(answer=WebhookResponse(200, json.dumps(value), "application/json"), ignored=ignored)


def _installation(body: SlackJson) -> tuple[str, str]:
    """Team and bot user. In shared channels only the authorization names our own team; its user may be a person."""
    authorization = (body.get("authorizations") or [{}])[0]
    bot = authorization.get("user_id") if authorization.get("is_bot") is not False else ""
    return str(authorization.get("team_id") or body.get("team_id") or ""), str(bot or "")


def _why_ignored(message: SlackJson, bot: str) -> str:
    """Why nobody is to answer a message: no bot's words, our own least of all."""
    if (message.get("subtype") or "") not in _SUBTYPES:
        return f"message of subtype {message['subtype']!r}"
    if message.get("bot_id") or not message.get("user") or message["user"] in (bot, _SLACKBOT):
        return "sent by a bot"
    return ""


def _why_no_edit(message: SlackJson, before: SlackJson | None) -> str:
    """Slack says "changed" also of a message whose links it looked up, or that somebody replied to."""
    if (message.get("edited") or {}).get("user") != message["user"]:
        return "change that its author did not make"
    return "change of no words" if (message.get("text") or "") == ((before or {}).get("text") or "") else ""


def _edited_at(event: SlackJson, message: SlackJson) -> str:
    return str(message["edited"].get("ts") or event.get("event_ts") or event["ts"])


def _thread(message: SlackJson, direct: bool, *, later: bool) -> str:
    """A channel message opens a thread; direct messages have threads only where people made them.

    Of one that was sent before, a thread that it names by itself came after it.
    """
    thread, ts = message.get("thread_ts") or "", message["ts"]
    if direct:
        return "" if later and thread == ts else thread
    return thread or ts


def _chosen(action: SlackJson) -> Any:
    """What a button or a menu sends; None for what people type or pick from elsewhere."""
    if action.get("type") == "button":
        return action.get("value")
    return (action.get("selected_option") or {}).get("value") if action.get("type") in _MENUS else None


def _act(trigger: str, ts: str, action: SlackJson, number: int) -> str:
    """What tells one tap from another, and is the same when it is told again."""
    own = trigger or f"{ts}:{action.get('action_id')}:{action.get('action_ts')}"
    return f"{own}:{number}" if number else own


def _named_place(metadata: object) -> tuple[str, str] | None:
    """The conversation that whoever opened a modal noted in it: {"chat": "C1", "thread": "1.2"}."""
    try:
        place = json.loads(metadata) if isinstance(metadata, str) and metadata else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(place, dict):
        return None
    chat, thread = str(place.get("chat") or ""), str(place.get("thread") or "")
    return (chat, thread) if _CHANNEL_ID.fullmatch(chat) and _THREAD_TS.fullmatch(thread) else None


#: Seconds by which Slack's timestamp may differ from our clock: an older request may be somebody's recording.
SLACK_SECONDS = 300


def slack_signed(secret: str, timestamp: str, body: bytes, signature: str, *, now: float) -> bool:
    """Whether Slack signed this body lately; `now` is Unix seconds. Raises ValueError for a timestamp that is none."""
    if abs(int(now) - int(timestamp)) > SLACK_SECONDS:  # whole numbers: a float has no room for what strangers write
        return False
    digest = hmac.digest(secret.encode(), b"v0:%b:%b" % (timestamp.encode(), body), "sha256")
    return hmac.compare_digest(b"v0=" + digest.hex().encode(), signature.encode())


def slack_hook(secret: str, body: bytes, now: float) -> Signed:
    """Headers and body of a Slack request sent at `now`."""
    digest = hmac.new(secret.encode(), b"v0:%d:" % int(now) + body, hashlib.sha256).hexdigest()
    form = not body.startswith(b"{")
    headers = {
        "content-type": "application/x-www-form-urlencoded" if form else "application/json",
        "x-slack-request-timestamp": str(int(now)),
        "x-slack-signature": f"v0={digest}",
    }
    return headers, body
