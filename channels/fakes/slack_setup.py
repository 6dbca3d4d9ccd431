"""Setup of FakeSlack: whose token it is, and what it may do."""

from __future__ import annotations

from collections.abc import Collection

from sayso.channels.fakes.base import Answer, json_answer

#: Scopes of an app with all that a bot of ours does.
SCOPES = frozenset(
    {
        *("app_mentions:read", "assistant:write", "channels:history", "channels:read", "chat:write", "commands"),
        *("files:read", "files:write", "groups:history", "groups:read", "im:history", "im:write", "mpim:history"),
    }
)


def auth_test(scopes: Collection[str]) -> Answer:
    """The answer to auth.test: in a header, the scopes."""
    who = {"user": "acme", "user_id": "U0BOT", "bot_id": "B0BOT", "team": "Acme", "team_id": "T0ACME"}
    return json_answer({"ok": True, **who}, X_OAuth_Scopes=",".join(sorted(scopes)))
