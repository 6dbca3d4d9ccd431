"""Which workspace a request of Slack comes from, for an app that many workspaces have installed.

A workspace is one company or team at Slack. An organization owns several workspaces, and may
install an app for all of them. In a channel that several workspaces share, a request names more
than one workspace, in several places. This module decides which one the app answers with: the
workspace whose installation, and token, the request belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sayso.channels.slack.address import join_place, split_place
from sayso.channels.slack.submissions import FormPlace
from sayso.channels.types import Conversation, Turn, WorkspaceNote

#: The id of a workspace ("T...") or of an organization ("E...").
_TEAM_ID = re.compile(r"[TE][A-Z0-9]{1,40}")


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """Where a request comes from. An id that the request does not name is ""."""

    #: The id of the workspace whose installation the request belongs to.
    workspace: str
    #: The id of the organization that the request names.
    organization: str
    #: Whether this organization has installed the app for the workspace.
    is_of_organization: bool


def origin_of(request: Mapping[str, Any]) -> RequestOrigin:
    """Return where a request comes from.

    The workspace is, in this order:

    1. for a tap on our own message, the one in the block id of the button; for our own form, the
       one in its metadata. Sayso wrote these, while Slack names the workspace of the person;
    2. for an event, the one in its authorizations, else in its context: both name the workspace
       that has installed the app. Its `team_id` may be the author's;
    3. `team_id`.
    """
    from slack_bolt.request import internals as bolt

    body = dict(request)
    context = _team_id(request.get("context_team_id"))
    if context and not request.get("authorizations"):
        # Bolt would take the author's workspace.
        body |= {"team_id": context, "enterprise_id": request.get("context_enterprise_id")}
    named = _team_id(bolt.extract_team_id(body)) or context or _team_id(request.get("team_id"))
    own_mark = _marked_workspace(request)

    enterprise = bolt.extract_enterprise_id(body) or request.get("context_enterprise_id")
    organization = _team_id(enterprise)
    # A person of another workspace tapped: the organization may be the person's, so that it says
    # nothing about the marked workspace.
    is_guest = own_mark != "" and named.startswith("T") and named != own_mark
    is_of_organization = (
        organization != "" and not is_guest and bool(bolt.extract_is_enterprise_install(body))
    )
    return RequestOrigin(own_mark or named, organization, is_of_organization)


def _team_id(value: object) -> str:
    """Return an id of a workspace or an organization unchanged, "" for anything else."""
    if isinstance(value, str) and _TEAM_ID.fullmatch(value):
        return value
    return ""


def _marked_workspace(request: Mapping[str, Any]) -> str:
    """Return the workspace that Sayso wrote into a tapped button or a submitted form.

    "" for buttons and forms of other apps, and for all other requests.
    """
    if request.get("type") == "view_submission":
        place = FormPlace.of_view(request["view"])
        return place.team if place else ""

    if request.get("type") == "block_actions":
        for action in request.get("actions") or ():
            team = split_place(str(action.get("block_id") or "")).team
            if team:
                return team
    return ""


def removal_in(request: Mapping[str, Any], origin: RequestOrigin) -> WorkspaceNote | None:
    """Return a note that the app was removed or its bot's token was revoked, None for neither.

    Raises ValueError for such an event that names no workspace.
    """
    event = request.get("event")
    if not isinstance(event, dict):
        return None
    kind = event.get("type")
    revoked_tokens = event.get("tokens") or {}
    is_bot_revoked = kind == "tokens_revoked" and bool(revoked_tokens.get("bot"))
    if kind != "app_uninstalled" and not is_bot_revoked:
        return None

    name = origin.workspace
    if origin.is_of_organization or not name:
        name = origin.organization
    if not name:
        raise ValueError("the event names no workspace")
    event_time = request.get("event_time")
    removed_at = float(event_time) if isinstance(event_time, int) else 0.0
    return WorkspaceNote(name, removed=str(kind), at=removed_at)


def turn_in(team: str, turn: Turn) -> Turn:
    """Return a turn of a workspace with ids that are unique in all workspaces.

    Its chat, its person, its files and its event get the workspace in front of their ids.
    """
    return replace(
        turn,
        event_id=f"{team}:{turn.event_id}",
        conversation=conversation_in(team, turn.conversation),
        user_id=join_place(team, turn.user_id),
        media=tuple(replace(media, ref=join_place(team, media.ref)) for media in turn.media),
    )


def conversation_in(team: str, conversation: Conversation) -> Conversation:
    """Return a conversation of a workspace, with the workspace in front of its chat's id."""
    return replace(conversation, chat=join_place(team, conversation.chat))
