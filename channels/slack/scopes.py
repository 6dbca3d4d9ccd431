"""SlackNeeds: which scope each event and each method of Slack needs that the Slack channel uses, in one place."""

from __future__ import annotations

from typing import Literal

#: Scopes that a method needs. Calls of the Slack channel; a test reads them in its source.
METHODS: dict[str, tuple[str, ...]] = {
    "assistant.threads.setStatus": ("assistant:write",),
    "auth.test": (),
    "chat.postEphemeral": ("chat:write",),
    # The second where the chat is a person: Slack opens the direct message first.
    "chat.postMessage": ("chat:write", "im:write"),
    "chat.update": ("chat:write",),
    "conversations.open": ("im:write",),
    "files.completeUploadExternal": ("files:write",),
    "files.getUploadURLExternal": ("files:write",),
    "files.info": ("files:read",),
}
_OPEN, _CLOSED = "channels:read", "groups:read"
#: Scopes that an event needs to be sent at all, or to be sent of every kind of Slack channel.
EVENTS: dict[str, tuple[str, ...]] = {
    "app_mention": ("app_mentions:read",),
    "app_uninstalled": (),
    "assistant_thread_context_changed": ("assistant:write",),
    "assistant_thread_started": ("assistant:write",),
    "channel_archive": (_OPEN,),
    "channel_deleted": (_OPEN,),
    "channel_id_changed": (_OPEN,),
    "channel_left": (_OPEN,),
    "channel_unarchive": (_OPEN,),
    "group_archive": (_CLOSED,),
    "group_deleted": (_CLOSED,),
    "group_left": (_CLOSED,),
    "group_unarchive": (_CLOSED,),
    "member_joined_channel": (_OPEN, _CLOSED),
    "member_left_channel": (_OPEN, _CLOSED),
    "message.channels": ("channels:history",),
    "message.groups": ("groups:history",),
    "message.im": ("im:history",),
    "message.mpim": ("mpim:history",),
    "tokens_revoked": (),
}
#: What no method and no event stands for: slash commands, and the files that people send.
FEATURES: dict[str, tuple[str, ...]] = {
    "slash commands and shortcuts": ("commands",),
    "files from people": ("files:read",),
}

#: How Slack shows the bot beside other windows: the older one, and the one that is to replace it.
View = Literal["assistant", "agent"]
#: Events that only the older view has; Slack asks for them there.
_OF_ASSISTANTS = ("assistant_thread_context_changed", "assistant_thread_started")


def events(view: View) -> list[str]:
    """The events to subscribe to."""
    return [event for event in EVENTS if view == "assistant" or event not in _OF_ASSISTANTS]


def scopes() -> dict[str, list[str]]:
    """Every scope that the bot needs, and what for: methods, events and features."""
    found: dict[str, list[str]] = {}
    for what, needed in {**METHODS, **EVENTS, **FEATURES}.items():
        for scope in needed:
            found.setdefault(scope, []).append(what)
    return dict(sorted(found.items()))
