"""Ids with their workspace in front, such as `T01/C02`: of a chat, a person or a file."""

from __future__ import annotations

import re
from typing import NamedTuple

_IN_WORKSPACE = re.compile(r"([TE][A-Z0-9]{1,40})/(.+)", re.DOTALL)


class SlackPlace(NamedTuple):
    """What Slack knows as two values.

    `team` is "" for a channel of one workspace, which has one token.
    """

    team: str
    id: str


def split_place(text: str) -> SlackPlace:
    """Return the workspace and the id that Slack's methods take: `T01/C02` is C02 in T01."""
    match = _IN_WORKSPACE.fullmatch(text)
    if match is None:
        return SlackPlace("", text)
    return SlackPlace(match[1], match[2])


def join_place(team: str, text: str) -> str:
    """Return what `split_place` splits."""
    return f"{team}/{text}" if team else text


def is_user(chat: str) -> bool:
    """Return whether a chat is named by a person's id: Slack then opens a direct message."""
    return split_place(chat).id.startswith(("U", "W"))
