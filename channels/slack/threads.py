"""OpenedThreads: the conversations of direct messages whose first message is the bot's own."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import replace

from redis.exceptions import RedisError

from sayso.channels.types import Conversation, digest
from sayso.infra.redis.shared_cache import SharedCache

log = logging.getLogger(__name__)

#: The thread of such a conversation: this, and 20 hex digits.
_NEW = "new-"
#: Seconds after which a thread that the cache does not know is known not to be ours. Its first
#: message is noted right after it was posted; Slack's clock and this machine's may differ.
_NOTED_SECONDS = 300.0
#: The most threads that are remembered not to be ours.
_MAX_OTHERS = 10_000
NEW_THREAD = re.compile(r"new-[0-9a-f]{20}")
_TS = re.compile(r"\d{1,16}\.\d{1,9}")


def new_thread(act: str) -> str:
    """Return the thread of a conversation that an act begins without one: a slash command."""
    return f"{_NEW}{digest(act)}"


class OpenedThreads:
    """Knows which thread at Slack a conversation has that the bot's first message opened.

    Lives as long as its channel.

    In the agent view each message outside of threads opens one, also the bot's. Slash commands,
    shortcuts and forms name no thread, so what they begin is stored under a name of ours until the
    first reply has a ts. From then on replies go into its thread, and what the person writes there
    belongs to the same conversation.

    The cache holds `slack:thread:<conversation>`, the ts, and
    `slack:began:<conversation at Slack>`, our name.
    """

    def __init__(self, cache: SharedCache, *, clock: Callable[[], float] = time.time) -> None:
        self._cache = cache
        self._clock = clock
        #: Threads of people's own messages, which most are: they cost no look into the cache a
        #: second time.
        self._others: set[str] = set()

    async def at_slack(self, conversation: Conversation) -> Conversation:
        """Return the conversation with the thread that Slack knows, "" before its first message.

        Raises redis.RedisError.
        """
        if not NEW_THREAD.fullmatch(conversation.thread):
            return conversation
        ts = await asyncio.to_thread(self._cache.get, f"slack:thread:{conversation.id}")
        return replace(conversation, thread=ts or "")

    async def note(self, conversation: Conversation, ts: str) -> None:
        """Remember that the conversation's first message has this ts.

        A failure is only logged: it is posted.
        """
        if not ts or not NEW_THREAD.fullmatch(conversation.thread):
            return
        began = f"slack:began:{replace(conversation, thread=ts).id}"
        try:
            await asyncio.to_thread(self._cache.put, began, conversation.thread)
            await asyncio.to_thread(self._cache.put, f"slack:thread:{conversation.id}", ts)
        except RedisError as exc:
            extra = {"conversation": conversation.id, "reason": type(exc).__name__}
            log.warning("thread.not_noted", extra=extra)

    def first_address(self, conversation: Conversation) -> Conversation:
        """Return the conversation that a thread at Slack belongs to. Raises redis.RedisError."""
        if conversation.id in self._others or not _TS.fullmatch(conversation.thread):
            return conversation
        thread = self._cache.get(f"slack:began:{conversation.id}")
        if thread:
            return replace(conversation, thread=thread)
        if self._clock() - float(conversation.thread) > _NOTED_SECONDS:
            if len(self._others) >= _MAX_OTHERS:
                self._others.clear()
            self._others.add(conversation.id)
        return conversation
