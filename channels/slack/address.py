"""Ids with their workspace in front, such as `T01/C02`: of a chat, a person or a file.

Slack's ids are unique in one workspace only. In an app that many workspaces have installed, Sayso
stores them with the workspace in front, and takes it off before it calls Slack.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_IN_WORKSPACE = re.compile(r"([TE][A-Z0-9]{1,40})/(.+)", re.DOTALL)


class SlackPlace(NamedTuple):
    """An id with its workspace in two parts."""

    #: The id of the workspace, "" in an app of one workspace.
    team: str
    #: The id as Slack's methods take it.
    id: str


def split_place(text: str) -> SlackPlace:
    """Return the parts of an id: `T01/C02` is C02 in the workspace T01."""
    match = _IN_WORKSPACE.fullmatch(text)
    if match is None:
        return SlackPlace("", text)
    return SlackPlace(match[1], match[2])


def join_place(team: str, text: str) -> str:
    """Return an id with its workspace in front. `team` is "" in an app of one workspace."""
    return f"{team}/{text}" if team else text


def is_user(chat: str) -> bool:
    """Return whether a chat is named by a person's id, and not by that of a direct message."""
    return split_place(chat).id.startswith(("U", "W"))
