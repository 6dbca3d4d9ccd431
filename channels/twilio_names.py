"""Names: by which id a person is known who writes from an address, for readers that are told the address alone."""

from __future__ import annotations

import asyncio

from sayso.channels.base import Notebook
from sayso.channels.types import Conversation, Turn

#: Addresses of which a process knows by heart that they are noted.
MAX_NAMES = 10_000


class Names:
    """What webhooks told of people; Twilio's list of messages has no such id. Lives as long as the process."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._noted: dict[str, str] = {}

    def of(self, conversation: Conversation) -> str:
        """The id of who writes there, "" where nobody noted another one than the address. Raises redis.RedisError."""
        return self._notebook.get(_key(conversation)) or ""

    async def note(self, turn: Turn) -> None:
        """Note who wrote, once for a process."""
        key, user = _key(turn.conversation), turn.user_id
        if self._noted.get(key, turn.conversation.chat) == user:
            return
        await asyncio.to_thread(self._notebook.put, key, user)
        if len(self._noted) >= MAX_NAMES:
            self._noted = {}
        self._noted[key] = user


def _key(conversation: Conversation) -> str:
    return f"person:{conversation.id}"
