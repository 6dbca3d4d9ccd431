"""ThinkingStatus: shows "is thinking…" below a message or in a thread, and learns where Slack refuses it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sayso.channels.http import retry_after
from sayso.channels.slack.address import split_place
from sayso.channels.slack.client import error_code, reaction_to

if TYPE_CHECKING:
    from slack_sdk.errors import SlackApiError
    from slack_sdk.web.async_client import AsyncWebClient

log = logging.getLogger(__name__)

STATUS = "is thinking…"
#: Seconds after which the status is shown again: Slack removes it after 2 minutes.
STATUS_SECONDS = 100.0
#: Seconds for which no status is shown where Slack refused one. A refusal costs one call in this time, not one a turn,
#: and a scope that an operator adds is noticed without a restart.
REFUSED_SECONDS = 900.0
#: The most chats whose refusal is remembered.
MAX_CHATS = 10_000
#: Error codes that concern the app wherever it is. Besides them, those of a token and of its scopes.
_APP_ERRORS = frozenset(
    {
        *("unknown_method", "method_deprecated", "deprecated_endpoint", "feature_not_enabled"),
        *("not_allowed", "access_denied", "accesslimited", "team_access_not_granted"),
        *("ekm_access_denied", "enterprise_is_restricted"),
    }
)


class ThinkingStatus:
    """The status of one app. Lives as long as its channel.

    Slack's method of this name takes the timestamp of any message of a chat, so it works in the assistant view, in the
    agent view, in plain direct messages and in threads of Slack channels. It needs the scope chat:write alone.
    """

    def __init__(
        self,
        channel: str,
        client_of: Callable[[str], Awaitable[AsyncWebClient]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._client_of = client_of
        self._clock = clock
        #: Until when a chat shows no status. The id of a workspace stands for all of its chats, "" without one.
        self._refused_until: dict[str, float] = {}
        #: Keeps the calls for one message in their order: a status that is shown after its removal would stay.
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def show(self, chat: str, ts: str) -> float:
        """Show the status at the message `ts`, a thread's first one or any other. Best effort; never raises.

        Returns the seconds after which it must be shown again, 0 for never.
        """
        return STATUS_SECONDS if await self._set(chat, ts, STATUS) else 0.0

    async def remove(self, chat: str, ts: str) -> None:
        """Remove the status from the message `ts`. Best effort; never raises."""
        await self._set(chat, ts, "")

    async def _set(self, chat: str, ts: str, status: str) -> bool:
        """Set the status unless it was refused here lately. Return whether Slack has taken it."""
        from slack_sdk.errors import SlackApiError

        lock = self._locks.setdefault((chat, ts), asyncio.Lock())
        async with lock:
            if self._is_refused(chat):
                return False
            try:
                client = await self._client_of(chat)
                await client.assistant_threads_setStatus(
                    channel_id=split_place(chat).id,
                    thread_ts=ts,
                    status=status,
                )
            except SlackApiError as exc:
                self._learn(chat, exc)
                return False
            except Exception:  # noqa: BLE001  # best effort: the network, or an unreadable answer
                return False
            return True

    def _is_refused(self, chat: str) -> bool:
        team = split_place(chat).team
        until = max(self._refused_until.get(team, 0.0), self._refused_until.get(chat, 0.0))
        return self._clock() < until

    def _learn(self, chat: str, error: SlackApiError) -> None:
        """Remember a refusal: of the app in a workspace, or of one chat.

        A fault of Slack's own says nothing of the next call.
        """
        response = error.response
        code = error_code(response)
        reaction = reaction_to(code)
        # The SDK passes on aiohttp's response, with another name for its status, if it could not read the body.
        http_status = int(getattr(response, "status_code", 0) or getattr(response, "status", 0))
        if reaction == "wait" or http_status == 429:
            seconds = retry_after(response.headers)
        elif reaction == "unclear" or http_status >= 500 or not code:
            return
        else:
            seconds = REFUSED_SECONDS
        if len(self._refused_until) >= MAX_CHATS:
            self._refused_until.clear()
        is_of_app = code in _APP_ERRORS or reaction in ("down", "scope")
        self._refused_until[split_place(chat).team if is_of_app else chat] = self._clock() + seconds
        extra = {
            "channel": self._channel,
            "reason": code or http_status,
            "seconds": seconds,
            "everywhere": is_of_app,
        }
        log.info("status.refused", extra=extra)
