"""Scripted models for the tests of memories."""

from __future__ import annotations

import json

from sayso.agent import Message, ProviderError, Role, UsageStats


class Reader:
    """A model that finds the given objects or fails, and records its requests."""

    def __init__(self, *found, says=None):
        self.found, self.says, self.requests = list(found), says, []

    async def acomplete(self, **request):
        """Return a JSON array with some text around it, as models do."""
        self.requests.append(request)
        if isinstance(self.says, Exception):
            raise self.says
        text = (
            f"Here you are:\n```json\n{json.dumps(self.found)}\n```"
            if self.says is None
            else self.says
        )
        return Message(Role.ASSISTANT, text), UsageStats(10, 2, 12, model="reader")


def instructions_of(request):
    """Return all that a request tells the model beside what was said: system prompt, summary and other memories."""
    fields = request if isinstance(request, dict) else vars(request)
    systems = [message.content for message in fields["messages"] if message.role is Role.SYSTEM]
    return "\n\n".join([fields["system_prompt"], *systems])


def user(text):
    """Return a user message."""
    return Message(Role.USER, text)


DOWN = ProviderError("no answer")
