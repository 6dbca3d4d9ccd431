"""OpenedThreads: conversations that begin before Slack has a thread for them.

In the agent view of an app, each message of a direct message begins a thread. A slash command, a
shortcut and a form are no messages, so what they begin has no thread until the bot's first reply is
posted. Until then, and in all that is stored, the conversation has a thread with a name of Sayso's
own, such as "new-0123456789abcdef0123". Afterwards the cache translates between this name and the
`ts` of the first reply, by which Slack knows the thread.
"""

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

#: Our name of such a thread begins with this. 20 hex digits follow.
_NEW = "new-"
#: Our name of such a thread. Conversations of Slack that began otherwise have no such name.
NEW_THREAD = re.compile(r"new-[0-9a-f]{20}")
#: Slack's name of a thread: the ts of its first message.
_TS = re.compile(r"\d{1,16}\.\d{1,9}")
#: The age in seconds after which a thread at Slack that the cache does not know is certainly one
#: that a person's message began. A thread of the bot is noted right after its first message was
#: posted; Slack's clock and this machine's may differ.
_NOTED_SECONDS = 300.0
#: The most threads of people that a process remembers.
_MAX_PEOPLES_THREADS = 10_000


def new_thread(act: str) -> str:
    """Return the thread of a conversation that a slash command, a shortcut or a form begins.

    `act` is the id of its event. The same event always begins the same thread.
    """
    return f"{_NEW}{digest(act)}"


class OpenedThreads:
    """Translates between our names of such threads and Slack's. Lives as long as its channel.

    The shared cache holds Slack's `ts` under `slack:thread:<conversation with our name>`, and our
    name under `slack:began:<conversation with Slack's ts>`.
    """

    def __init__(self, cache: SharedCache, *, clock: Callable[[], float] = time.time) -> None:
        self._cache = cache
        self._clock = clock
        #: The ids of conversations whose threads people's messages began, as most do. They are not
        #: looked up in the cache a second time.
        self._peoples_threads: set[str] = set()

    async def at_slack(self, conversation: Conversation) -> Conversation:
        """Return the conversation with Slack's name of its thread.

        The thread is "" before its first message is posted. Raises redis.RedisError.
        """
        if not NEW_THREAD.fullmatch(conversation.thread):
            return conversation
        ts = await asyncio.to_thread(self._cache.get, f"slack:thread:{conversation.id}")
        return replace(conversation, thread=ts or "")

    async def note(self, conversation: Conversation, ts: str) -> None:
        """Remember that the first message of a conversation's thread has this ts.

        The thread of `conversation` has a name of ours. Never raises: the message is posted, and
        sending it again would show it twice. Without the note the next reply opens another thread,
        and what people write in this one belongs to another conversation.
        """
        there = replace(conversation, thread=ts)
        try:
            await asyncio.to_thread(self._cache.put, f"slack:began:{there.id}", conversation.thread)
            await asyncio.to_thread(self._cache.put, f"slack:thread:{conversation.id}", ts)
        except RedisError as exc:
            extra = {"conversation": conversation.id, "reason": type(exc).__name__}
            log.warning("thread.not_noted", extra=extra)

    def first_address(self, conversation: Conversation) -> Conversation:
        """Return the conversation with its stored thread. Raises redis.RedisError.

        For a thread that a person's message began, it is the same conversation.
        """
        is_known = conversation.id in self._peoples_threads
        if is_known or not _TS.fullmatch(conversation.thread):
            return conversation
        thread = self._cache.get(f"slack:began:{conversation.id}")
        if thread:
            return replace(conversation, thread=thread)

        if self._clock() - float(conversation.thread) > _NOTED_SECONDS:
            if len(self._peoples_threads) >= _MAX_PEOPLES_THREADS:
                self._peoples_threads.clear()
            self._peoples_threads.add(conversation.id)
        return conversation
