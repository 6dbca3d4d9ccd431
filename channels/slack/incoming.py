"""Slack's signed requests, parsed into turns and address changes.

There are three kinds of requests: events, such as a message; interactions, such as a tapped button
or a submitted form; and slash commands. The `ts` of a message is its id, and the time when it was
sent. A message with a `thread_ts` stands in the thread that begins with the message of this ts.

An app may have one of Slack's two views for bots, which are chats with their own list of threads:
the agent view or the older assistant view. Which view it is decides in which thread a message is
answered (`_opens_threads`).
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from sayso.channels.base import PARSE_ERRORS, BadHook
from sayso.channels.slack.address import split_place
from sayso.channels.slack.incoming_text import (
    files_of,
    form_answers,
    media_of,
    mentions,
    notes_of,
    readable,
    unformatted,
)
from sayso.channels.slack.request_workspace import conversation_in, origin_of, removal_in, turn_in
from sayso.channels.slack.settings import View
from sayso.channels.slack.submissions import FormPlace, changed_values
from sayso.channels.slack.threads import NEW_THREAD, new_thread
from sayso.channels.types import (
    AddressChange,
    Conversation,
    Media,
    Received,
    SignedWebhook,
    Tap,
    Turn,
    WebhookResponse,
    WorkspaceNote,
    content_digest,
)
from sayso.infra.letter_codes import looks_like_a_code

if TYPE_CHECKING:
    from sayso.channels.slack.settings import InstallSettings

#: How the block id of our buttons begins. Slack sends the block id back with a tap, so it names the
#: thread of the button's message, or the person of a direct message.
THREAD_MARK = "thread:"
USER_MARK = "user:"
#: What stands before the number of a further row of buttons at the end of a block id: no two block
#: ids of a message may be the same.
ROW_MARK = "#"
#: Words after a slash command that count as commands themselves.
COMMANDS = frozenset(
    {
        "help",
        "whoami",
        "reset",
        "revoke",
        "status",
        "stop",
        "tools",
        "link",
        "unlink",
        "away",
        "back",
    }
)
#: By how many seconds Slack's timestamp may differ from our clock. An older request may be a
#: recording.
SLACK_SECONDS = 300

#: The subtypes of messages that a person wrote.
_SUBTYPES = ("", "file_share", "thread_broadcast", "me_message")
#: Slack's own user, whose messages have no bot id.
_SLACKBOT = "USLACKBOT"
#: Events after which nothing can be posted in a Slack channel, each with Slack's error code for
#: that; "" for events after which the app can post again.
_ADDRESS_EVENTS = {
    "channel_archive": "is_archived",
    "group_archive": "is_archived",
    "channel_deleted": "channel_not_found",
    "group_deleted": "channel_not_found",
    "channel_left": "not_in_channel",
    "group_left": "not_in_channel",
    "member_left_channel": "not_in_channel",
    "channel_unarchive": "",
    "group_unarchive": "",
    "member_joined_channel": "",
}
#: Elements that let people choose one of the app's own options.
_MENUS = ("static_select", "overflow", "radio_buttons")
_UNINSTALLED = (
    "the Slack app was uninstalled from its workspace: install it again and copy its new bot_token"
)
_REVOKED = "Slack revoked the bot's token: install the app again and copy its new bot_token"
#: Events that are not answered, each with the reason. Slack requires that an app with the agent
#: view subscribes to them.
_UNANSWERED_EVENTS = {
    # A message would begin a thread in the list of each person who only looks. The manifest's
    # suggested prompts stand there instead.
    "app_home_opened": "a person opened the bot: its suggested prompts greet them",
    "app_context_changed": "a person looks at something else: their next message says at what",
}
#: What a person may look at beside the bot, by Slack's type. Slack calls such things entities.
_ENTITIES = {
    "slack#/types/channel_id": "channel",
    "slack#/types/canvas_id": "canvas",
    "slack#/types/list_id": "list",
}
#: Slack's type of a message that a person looks at.
_MESSAGE_ENTITY = "slack#/types/message_context"
#: The most entities of one message that the model reads. Slack names the most relevant ones first.
MAX_ENTITIES = 3
_ENTITY_ID = re.compile(r"[A-Z0-9]{2,40}")
_RATE_LIMITED = "Slack holds back events of the app: this workspace has more than 30,000 an hour"
_CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]{1,40}")
#: The ts of a thread's first message, "" for no thread.
_THREAD_TS = re.compile(r"(\d{1,16}\.\d{1,9})?")

#: A request, or a part of one, as Slack sends it.
SlackJson = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequestParser:
    """Parses the verified requests of one channel. A value without I/O, used from any thread."""

    #: The channel's name in the YAML.
    channel: str
    #: The app's view at Slack, which Slack's requests do not name.
    view: View = "agent"
    #: Who may install the app, None for an app of one workspace. With rules, all that comes in
    #: names its workspace: chats, people, files and event ids.
    rules: InstallSettings | None = None

    def parse(self, body: bytes) -> Received:
        """Parse one request. Raises BadHook."""
        try:
            request = _decoded(body)
            if request.get("ssl_check"):
                return Received(ignored="ssl_check")
            if self.rules is None:
                return self._parsed(request)
            return self._in_workspace(request, self.rules)
        except PARSE_ERRORS as exc:
            raise BadHook("the request is signed but makes no sense") from exc

    def _parsed(self, request: SlackJson) -> Received:
        """Parse a request, with the ids that are unique in its workspace."""
        from slack_bolt.request import payload_utils as bolt

        if bolt.is_event(dict(request)):
            return self._event(request)
        if bolt.is_slash_command(dict(request)):
            return Received(turns=(self._command(request),))
        return self._interaction(request)

    def _in_workspace(self, request: SlackJson, rules: InstallSettings) -> Received:
        """Parse a request of one workspace among many.

        In the result, ids that are unique only in their workspace have the workspace in front.
        """
        origin = origin_of(request)
        removal = removal_in(request, origin)
        if removal:
            return Received(workspace=removal)

        received = self._parsed(request)
        if not (received.turns or received.addresses):
            return received
        if not origin.workspace:
            raise ValueError("the request names no workspace")
        if not rules.admits(origin.workspace, origin.organization):
            return Received(ignored="a workspace that install.organizations does not list")

        team = origin.workspace
        turns = tuple(turn_in(team, turn) for turn in received.turns)
        changes = []
        for change in received.addresses:
            there = conversation_in(team, change.conversation)
            changes.append(replace(change, conversation=there))
        note = None
        if origin.is_of_organization and team != origin.organization:
            note = WorkspaceNote(team, origin.organization)
        return replace(received, turns=turns, addresses=tuple(changes), workspace=note)

    def _interaction(self, body: SlackJson) -> Received:
        """Parse an interaction, or another request that names its type.

        Slack does not repeat a failed interaction: the person sees an error instead.
        """
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
        """Parse an event."""
        event = body["event"]
        # In a channel that several workspaces share, only the authorization names our workspace and
        # the bot's user. It may also name a person, who authorized the app.
        authorization = (body.get("authorizations") or [{}])[0]
        bot = ""
        if authorization.get("is_bot") is not False:
            bot = str(authorization.get("user_id") or "")
        team = str(authorization.get("team_id") or body.get("team_id") or "")

        kind = event["type"]
        if kind in ("message", "app_mention"):
            return self._message(event, team, bot)

        if kind in _ADDRESS_EVENTS:
            if event.get("user") != bot and kind.startswith("member_"):
                return Received(ignored=f"event of type {kind!r} about somebody else")
            # This changes the channel's own conversation. Its threads are conversations too, but
            # Slack does not name them: each closes with the first reply that is refused there, and
            # opens with the next message of a person. If a reply was refused because the app may
            # not write in the channel at all (`ChatBarred`), that is stored once for all threads,
            # and this change deletes it.
            change = self._address_change(event["channel"], _ADDRESS_EVENTS[kind])
            return Received(addresses=(change,))
        if kind == "channel_id_changed":
            old = self._address_change(event["old_channel_id"], kind)
            new = self._address_change(event["new_channel_id"], "")
            return Received(addresses=(old, new))

        if kind == "app_uninstalled":
            return Received(alerts=(_UNINSTALLED,))
        if kind == "tokens_revoked" and (event.get("tokens") or {}).get("bot"):
            return Received(alerts=(_REVOKED,))
        if kind == "agent_session_stopped":
            return self._stop(event, team)
        if kind in _UNANSWERED_EVENTS:
            return Received(ignored=_UNANSWERED_EVENTS[kind])
        # Such as assistant_thread_started: the messages in such a thread come as usual ones.
        return Received(ignored=f"event of type {kind!r}")

    def _message(self, event: SlackJson, team: str, bot: str) -> Received:
        """Return the turn of a message or of an edit, or why it has none.

        `team` is the id of the app's workspace, `bot` that of the bot's own user; "" if unknown.
        """
        is_change = event.get("subtype") == "message_changed"
        message = event["message"] if is_change else event
        if (message.get("subtype") or "") not in _SUBTYPES:
            return Received(ignored=f"message of subtype {message['subtype']!r}")
        if message.get("bot_id") or not message.get("user") or message["user"] in (bot, _SLACKBOT):
            return Received(ignored="sent by a bot")

        if is_change:
            # Slack also changes a message for a link preview or a reply.
            editor = (message.get("edited") or {}).get("user")
            if editor != message["user"]:
                return Received(ignored="change that its author did not make")
            earlier = event.get("previous_message") or {}
            words = unformatted(message.get("text") or "")
            if words == unformatted(earlier.get("text") or ""):
                return Received(ignored="change without new text")

        # A message that mentions the bot comes twice, as app_mention and as message.channels. Their
        # event ids differ, so the turn's id is made of what both have: the ts of the message or, if
        # an edit added the mention, the ts of the edit.
        act = message["ts"]
        adds_mention = event["type"] == "app_mention" and message.get("edited")
        if is_change or adds_mention:
            edit_ts = message["edited"].get("ts") or event.get("event_ts") or event["ts"]
            act = f"edit:{edit_ts}"
        turn = self._message_turn(event, message, f"{team}:{event['channel']}:{act}", bot)
        if not (turn.text or turn.media or turn.notes):
            return Received(ignored="message without text or a file")
        return Received(turns=(turn,))

    def _message_turn(self, event: SlackJson, message: SlackJson, event_id: str, bot: str) -> Turn:
        """Return the turn of a message that a person wrote or edited.

        `event` is Slack's event, and `message` the message in it. `event_id` is the id of the turn.
        `bot` is the id of the bot's own user, "" if it is unknown.
        """
        channel = event["channel"]
        ts = message["ts"]
        text = message.get("text") or ""
        is_direct = event.get("channel_type") == "im" or channel.startswith("D")
        is_edit = bool(message.get("edited"))
        thread = self._thread(message, is_direct, later=is_edit)

        return Turn(
            event_id=event_id,
            conversation=Conversation(self.channel, channel, thread),
            user_id=message["user"],
            text=readable(text, bot),
            media=() if is_edit else _all_media(message),
            message_id=ts,
            addressed=is_direct or event["type"] == "app_mention" or mentions(text, bot),
            kind="edit" if is_edit else "message",
            notes=() if is_edit else tuple(notes_of(message)),
            in_group=not is_direct,
            # Without the files, which the event of an edit may lack.
            content=content_digest(unformatted(text)),
            written_at=float(ts),
            background=tuple(_surroundings(message)),
            thread_author=_thread_author(message, bot),
        )

    def _stop(self, event: SlackJson, team: str) -> Received:
        """Return the turn of Slack's own stop button: as if the person had written /stop."""
        channel = event["channel"]
        thread = event.get("thread_ts") or ""
        if not thread or not _CHANNEL_ID.fullmatch(channel) or not _THREAD_TS.fullmatch(thread):
            return Received(ignored="an answer stopped outside of a thread")
        turn = Turn(
            event_id=f"{team}:{channel}:stop:{event['event_ts']}",
            conversation=Conversation(self.channel, channel, thread),
            user_id=event["user"],
            text="/stop",
            in_group=not channel.startswith("D"),
        )
        return Received(turns=(turn,))

    def _address_change(self, channel: str, closed: str) -> AddressChange:
        """Return a change of a Slack channel. `closed` is why nothing can be posted, "" if it can.

        Raises ValueError for a malformed id.
        """
        if not _CHANNEL_ID.fullmatch(channel):
            raise ValueError("no id of a Slack channel")
        return AddressChange(Conversation(self.channel, channel), closed)

    def _taps(self, body: SlackJson) -> Received:
        """Return the turns of tapped buttons and of choices in menus, or why there are none."""
        container = body.get("container") or {}
        message = body.get("message") or {}
        user = body["user"]
        channel = (body.get("channel") or {}).get("id") or container.get("channel_id")
        actions = body["actions"]
        values = [(action, _value_of(action)) for action in actions]
        # Other elements, such as a date picker, confirm and choose nothing.
        taps = [(action, value) for action, value in values if isinstance(value, str)]
        if not channel or not taps:
            return Received(ignored=f"action of type {actions[0].get('type')!r}")

        # A message that only one person sees can neither be edited nor open a thread.
        ts = ""
        if not container.get("is_ephemeral"):
            ts = message.get("ts") or container.get("message_ts") or ""
        thread = message.get("thread_ts") or container.get("thread_ts") or ""
        trigger = body.get("trigger_id") or ""

        turns = []
        for number, (action, value) in enumerate(taps):
            # A trigger belongs to one act, and a request may have several actions.
            event_id = trigger or f"{ts}:{action.get('action_id')}:{action.get('action_ts')}"
            if number:
                event_id = f"{event_id}:{number}"
            turn = Turn(
                event_id=event_id,
                conversation=self._place_of_tap(action, user["id"], channel, thread, ts),
                user_id=user["id"],
                user_name=user.get("username") or "",
                tap=Tap(data=value, callback_id=trigger),
                message_id=ts,
                in_group=not channel.startswith("D"),
            )
            turns.append(turn)
        return Received(turns=tuple(turns))

    def _place_of_tap(
        self, action: SlackJson, user: str, channel: str, thread: str, ts: str
    ) -> Conversation:
        """Return the conversation to which the message of a tapped button was sent.

        `channel`, `thread` and `ts` are those of the message, "" for what Slack does not name.
        """
        # The block id of our own button names the conversation.
        block_id = str(action.get("block_id") or "").partition(ROW_MARK)[0]
        mark = split_place(block_id).id
        if mark == f"{USER_MARK}{user}":
            return Conversation(self.channel, user)
        if mark.startswith(THREAD_MARK):
            return Conversation(self.channel, channel, mark.removeprefix(THREAD_MARK))

        # For a button of another app it is the conversation in which its message would be answered.
        if not thread and self._opens_threads(is_direct=channel.startswith("D")):
            thread = ts
        return Conversation(self.channel, channel, thread)

    def _form(self, body: SlackJson) -> Turn:
        """Return the turn of a submitted modal. The empty HTTP answer closes the modal."""
        view = body["view"]
        user = body["user"]
        place = FormPlace.of_view(view)
        if place is not None:
            return self._changed_values(view, user, place)

        # A form of other code of the app: the model reads what was filled in.
        title = (view.get("title") or {}).get("text") or view.get("callback_id") or ""
        event_id = body.get("trigger_id") or f"{view['id']}:{view.get('hash')}"
        # The other code may say where the form is answered; otherwise it is in a direct message.
        chat, thread = _place_in(view.get("private_metadata")) or (user["id"], "")
        if not chat.startswith(("C", "G")):
            thread = thread or self._new_thread(event_id)
        return Turn(
            event_id=event_id,
            conversation=Conversation(self.channel, chat, thread),
            user_id=user["id"],
            user_name=user.get("username") or "",
            notes=(f"submitted form {title!r}", *form_answers(view)),
            in_group=chat.startswith(("C", "G")),
        )

    def _changed_values(self, view: SlackJson, user: SlackJson, place: FormPlace) -> Turn:
        """Return the turn of a submitted form of ours, which changes the values of a question."""
        values = changed_values(view)
        # The turn's id is made of the values, not of the trigger: a form that a person submits
        # again after a lost answer has another trigger, and must count as the same act.
        digest = content_digest(json.dumps(values, sort_keys=True))
        return Turn(
            event_id=f"{view['id']}:{digest}",
            conversation=Conversation(self.channel, place.chat, place.thread),
            user_id=user["id"],
            user_name=user.get("username") or "",
            tap=Tap(data=place.token),
            message_id=place.message,
            kind="form",
            form=values,
            in_group=place.chat.startswith(("C", "G")),
        )

    def _shortcut(self, body: SlackJson) -> Turn:
        """Return the turn of a global shortcut.

        It names no channel, so it is answered in a direct message.
        """
        user = body["user"]
        act = f"{user['id']}:{body['callback_id']}:{body['action_ts']}"
        event_id = body.get("trigger_id") or act
        return Turn(
            event_id=event_id,
            conversation=Conversation(self.channel, user["id"], self._new_thread(event_id)),
            user_id=user["id"],
            user_name=user.get("username") or "",
            text=f"/{body['callback_id']}",
        )

    def _message_shortcut(self, body: SlackJson) -> Turn:
        """Return the turn of a shortcut at a message, which may be another person's."""
        user = body["user"]
        message = body["message"]
        channel = body["channel"]["id"]
        is_direct = channel.startswith("D")
        thread = self._thread(message, is_direct, later=True)
        event_id = body.get("trigger_id")
        if not event_id:
            event_id = f"{message['ts']}:{body['callback_id']}:{body['action_ts']}"
        return Turn(
            event_id=event_id,
            conversation=Conversation(self.channel, channel, thread),
            user_id=user["id"],
            user_name=user.get("username") or user.get("name") or "",
            text=f"/{body['callback_id']}",
            media=_all_media(message),
            message_id=message["ts"],
            quoted=readable(message.get("text") or "", ""),
            notes=tuple(notes_of(message)),
            in_group=not is_direct,
        )

    def _command(self, body: SlackJson) -> Turn:
        """Return the turn of a slash command, which has no message id.

        Its text is what stands after the command. A word such as `status` there is the command
        /status, and a slash command without text is /help.
        """
        text = readable(_with_ids(body.get("text", "")), "") or "/help"
        if text.lower() in COMMANDS:
            text = f"/{text.lower()}"
        elif _has_argument(text):
            text = f"/{text}"
        is_direct = body["channel_id"].startswith("D")
        thread = ""
        if is_direct:
            thread = self._new_thread(body["trigger_id"])
        return Turn(
            event_id=body["trigger_id"],
            conversation=Conversation(self.channel, body["channel_id"], thread),
            user_id=body["user_id"],
            user_name=body.get("user_name", ""),
            text=text,
            in_group=not is_direct,
        )

    def _thread(self, message: SlackJson, is_direct: bool, *, later: bool) -> str:
        """Return the thread in which a message is answered, "" for none.

        `later`: whether the request came later than the message, such as the event of an edit.
        Meanwhile a person may have opened a thread below the message. Slack names that thread,
        although the message itself stands outside of it.
        """
        thread: str = message.get("thread_ts") or ""
        ts: str = message["ts"]
        if self._opens_threads(is_direct=is_direct):
            return thread or ts
        if later and thread == ts:
            return ""
        return thread

    def _new_thread(self, act: str) -> str:
        """Return the thread that an act in a direct message begins, "" if it begins none.

        The act is one for which Slack names no thread, such as a slash command. `act` is its id.
        """
        if not self._opens_threads(is_direct=True):
            return ""
        return new_thread(act)

    def _opens_threads(self, *, is_direct: bool) -> bool:
        """Return whether a message outside of threads is answered in a thread that it begins.

        * In a channel it is, so that the answer does not disturb others.
        * In the agent view it is too. Slack lists the threads of a direct message above the text
          field, so an answer outside of the message's thread would be listed as another thread.
        * In the assistant view people write in threads that Slack has made, so it is not.
        * In a direct message of an app without a view it is not.
        """
        return not is_direct or self.view == "agent"


def _decoded(body: bytes) -> dict[str, Any]:
    """Return a request as an object. Raises TypeError and ValueError for anything else.

    Events are JSON, interactions are JSON in a form field, commands are a form. Bolt's own parser
    loses a command whose text contains the word "payload".
    """
    request: Any
    if body.lstrip()[:1] == b"{":
        request = json.loads(body)
    else:
        request = dict(parse_qsl(body.decode(), keep_blank_values=True))
        if "payload" in request and "command" not in request:
            request = json.loads(request["payload"])
    if not isinstance(request, dict):
        raise TypeError("not an object")
    return request


def _with_ids(text: str) -> str:
    """Return the text of a command in which mentions show ids in place of names.

    A command finds a person by the id: a name may be that of several people.
    """
    if text.lower().startswith("away "):
        return re.sub(r"<@(\w+)\|[^<>]*>", r"<@\1>", text)
    return text


def _has_argument(text: str) -> bool:
    """Return whether the words after a slash command are a command with an argument.

    These are a code behind `link`, and a time behind `away`.
    """
    command, _, argument = text.partition(" ")
    match command.lower():
        case "link":
            return looks_like_a_code(argument.strip())
        case "away":
            return bool(argument.strip())
    return False


def _json_answer(value: SlackJson, ignored: str) -> Received:
    """Return a webhook without turns that is answered with this JSON."""
    answer = WebhookResponse(200, json.dumps(value), "application/json")
    return Received(answer=answer, ignored=ignored)


def _all_media(message: SlackJson) -> tuple[Media, ...]:
    """Return the files of a message that can be downloaded."""
    return tuple(media for media in map(media_of, files_of(message)) if media)


def _thread_author(message: SlackJson, bot: str) -> str:
    """Return the person whose message the thread begins with, "" if it is the bot or unknown.

    A message outside of threads begins one. `bot` is the id of the bot's user, "" if unknown.
    """
    sender: str = message["user"]
    ts = message["ts"]
    if (message.get("thread_ts") or ts) == ts:
        return sender
    author = str(message.get("parent_user_id") or "")
    if author == sender:
        return sender
    # While the bot's id is unknown, any author but the sender may be the bot.
    if not bot or author == bot:
        return ""
    return author


def _surroundings(message: SlackJson) -> Iterator[str]:
    """Yield what the person looks at beside the bot, one sentence each.

    Only messages in the agent view say so.
    """
    context = message.get("app_context")
    if not isinstance(context, Mapping):
        return
    entities = context.get("entities")
    if not isinstance(entities, list):
        return
    for entity in entities[:MAX_ENTITIES]:
        if isinstance(entity, Mapping):
            yield from _entity_sentence(entity.get("type"), entity.get("value"))


def _entity_sentence(kind: object, value: object) -> Iterator[str]:
    """Yield a sentence about what the person looks at, nothing for an unknown kind or id."""
    if kind == _MESSAGE_ENTITY and isinstance(value, Mapping):
        channel = str(value.get("channel_id"))
        ts = str(value.get("message_ts"))
        if _CHANNEL_ID.fullmatch(channel) and ts and _THREAD_TS.fullmatch(ts):
            yield f"the person looks at the message {ts} in the Slack channel {channel}"
        return
    name = _ENTITIES.get(str(kind))
    if name and isinstance(value, str) and _ENTITY_ID.fullmatch(value):
        yield f"the person looks at the Slack {name} {value}"


def _value_of(action: SlackJson) -> Any:
    """Return the value of a tapped button or of a choice in a menu, None for other elements."""
    if action.get("type") == "button":
        return action.get("value")
    if action.get("type") in _MENUS:
        return (action.get("selected_option") or {}).get("value")
    return None


def _place_in(metadata: object) -> tuple[str, str] | None:
    """Return the chat and thread in a modal's metadata, such as {"chat": "C1", "thread": "1.2"}.

    Return None if the metadata names no chat in this form.
    """
    if not isinstance(metadata, str):
        return None
    try:
        place = json.loads(metadata)
    except (ValueError, RecursionError):
        return None
    if not isinstance(place, dict):
        return None
    chat = str(place.get("chat") or "")
    thread = str(place.get("thread") or "")
    is_thread = _THREAD_TS.fullmatch(thread) or NEW_THREAD.fullmatch(thread)
    if not is_thread or not _CHANNEL_ID.fullmatch(chat):
        return None
    return chat, thread


def slack_signed(secret: str, timestamp: str, body: bytes, signature: str, *, now: float) -> bool:
    """Return whether Slack signed this body in the last SLACK_SECONDS.

    `timestamp` and `signature` are the headers of the request, `now` is in Unix seconds. Raises
    ValueError for a malformed timestamp.
    """
    # As integers: a stranger may send a number that is too large for a float.
    if abs(int(now) - int(timestamp)) > SLACK_SECONDS:
        return False
    return hmac.compare_digest(_signature(secret, timestamp, body), signature.encode())


def slack_hook(secret: str, body: bytes, now: float) -> SignedWebhook:
    """Return the headers and body of a request as Slack would send it, to test a webhook.

    `secret` is the app's signing secret, `now` the time of sending in Unix seconds.
    """
    timestamp = str(int(now))
    content_type = "application/x-www-form-urlencoded"
    if body.startswith(b"{"):
        content_type = "application/json"
    headers = {
        "content-type": content_type,
        "x-slack-request-timestamp": timestamp,
        "x-slack-signature": _signature(secret, timestamp, body).decode(),
    }
    return headers, body


def _signature(secret: str, timestamp: str, body: bytes) -> bytes:
    """Return the signature of a body, version 0 of Slack's scheme."""
    signed = b"v0:%b:%b" % (timestamp.encode(), body)
    digest = hmac.digest(secret.encode(), signed, "sha256")
    return b"v0=" + digest.hex().encode()
