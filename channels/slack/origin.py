"""Which workspace a request of Slack comes from, for an app that many workspaces have installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sayso.channels.slack.address import join_place, split_place
from sayso.channels.slack.submissions import FormPlace
from sayso.channels.types import Conversation, Turn, WorkspaceNote

_TEAM_ID = re.compile(r"[TE][A-Z0-9]{1,40}")


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """Where a request comes from. An id that the request does not name is ""."""

    workspace: str
    organization: str
    #: Whether the organization has installed the app for the workspace.
    is_of_organization: bool


def origin_of(request: Mapping[str, Any]) -> RequestOrigin:
    """Return where a request comes from.

    In a channel that several workspaces share, an event's `team_id` may be the author's: its
    authorization, else its context names the one that has installed the app. A tap names the
    workspace of the person who tapped, or none for an organization: our own message's block id
    names the one that it was sent in, and the metadata of our own form the one of its question. If
    these differ, the organization may be the person's, too, so that nothing is learned of the
    workspace.
    """
    from slack_bolt.request import internals as bolt

    body = dict(request)
    context = _team_id(request.get("context_team_id"))
    if context and not request.get("authorizations"):
        body |= {"team_id": context, "enterprise_id": request.get("context_enterprise_id")}
    named = _team_id(bolt.extract_team_id(body)) or context or _team_id(request.get("team_id"))
    marked = _marked_workspace(request)
    enterprise = bolt.extract_enterprise_id(body) or request.get("context_enterprise_id")
    organization = _team_id(enterprise)
    is_guest = bool(marked) and named.startswith("T") and named != marked
    is_installed_by_it = bool(bolt.extract_is_enterprise_install(body))
    is_of_organization = bool(organization) and not is_guest and is_installed_by_it
    return RequestOrigin(marked or named, organization, is_of_organization)


def _team_id(value: object) -> str:
    """Return the id of a workspace or an organization, "" for anything else."""
    is_id = isinstance(value, str) and _TEAM_ID.fullmatch(value)
    return str(value) if is_id else ""


def _marked_workspace(request: Mapping[str, Any]) -> str:
    """Return the workspace in the block id of a tapped button of ours, or in a form of ours."""
    if request.get("type") == "view_submission":
        place = FormPlace.of_view(request["view"])
        return place.team if place else ""
    if request.get("type") != "block_actions":
        return ""
    marks = (str(action.get("block_id") or "") for action in request.get("actions") or ())
    return next((team for mark in marks if (team := split_place(mark).team)), "")


def removal_in(request: Mapping[str, Any], origin: RequestOrigin) -> WorkspaceNote | None:
    """Return a note that the app was removed or its bot's token was revoked, None for neither."""
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
    at = request.get("event_time")
    seconds = float(at) if isinstance(at, int) else 0.0
    return WorkspaceNote(name, removed=str(kind), at=seconds)


def turn_in(team: str, turn: Turn) -> Turn:
    """Return a turn whose ids are unique in all workspaces."""
    return replace(
        turn,
        event_id=f"{team}:{turn.event_id}",
        conversation=conversation_in(team, turn.conversation),
        user_id=join_place(team, turn.user_id),
        media=tuple(replace(media, ref=join_place(team, media.ref)) for media in turn.media),
    )


def conversation_in(team: str, conversation: Conversation) -> Conversation:
    """Return a conversation whose chat is unique in all workspaces."""
    return replace(conversation, chat=join_place(team, conversation.chat))
