"""Models for the memories' tests: they answer what they were told to, whoever asks."""

from __future__ import annotations

import json

from sayso.agent import Message, ProviderError, Role, UsageStats


class Reader:
    """A model that finds what it was given, or fails, and remembers what it was asked."""

    def __init__(self, *found, says=None):
        self.found, self.says, self.requests = list(found), says, []

    async def acomplete(self, **request):
        """A JSON array with a few words around it, as models have it."""
        self.requests.append(request)
        if isinstance(self.says, Exception):
            raise self.says
        text = f"Here you are:\n```json\n{json.dumps(self.found)}\n```" if self.says is None else self.says
        return Message(Role.ASSISTANT, text), UsageStats(10, 2, 12, model="reader")


def user(text):
    """Somebody's words."""
    return Message(Role.USER, text)


DOWN = ProviderError("no answer")
