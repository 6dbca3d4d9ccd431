"""OfflineProvider: answers without a network by matching words to tools; it is not a language model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import takewhile
from typing import Any

from sayso.agent.heard import spoken
from sayso.agent.messages import Message, Role, ToolCall, UsageStats
from sayso.agent.providers.base import Completion, ProviderRequest
from sayso.agent.providers.matching import match_tools
from sayso.agent.providers.picking import convert, pick_calls
from sayso.agent.providers.wording import ask_missing, ask_which, tell_help, tell_result, tell_unmatched

#: Commands that explain; Telegram sends /start when a person opens the bot.
HELP_COMMANDS = frozenset({"help", "start"})

Schema = Mapping[str, Any]
#: What a text comes to: words for the user, or a tool with the arguments of each of its calls.
Move = str | tuple[Schema, list[dict[str, Any]]]


def _today() -> date:
    return datetime.now(UTC).astimezone().date()


class OfflineProvider:
    """Deterministic stand-in for a model: the same transcript and tools give the same answer, free of charge."""

    def __init__(self, *, today: Callable[[], date] = _today) -> None:
        self._today = today

    async def acomplete(self, **request: Any) -> Completion:
        """Answer tool results in words, commands and matching text with tool calls, other text with what it can do."""
        asked = ProviderRequest(**request)
        answer = self._answer(asked.messages, asked.tools or ())
        return answer, _usage(asked, answer)

    def _answer(self, messages: Sequence[Message], schemas: Sequence[Schema]) -> Message:
        if messages and messages[-1].role is Role.TOOL:
            return Message(Role.ASSISTANT, _results(messages))
        user = next((message for message in reversed(messages) if message.role is Role.USER), None)
        move = self._move(user, schemas)
        if isinstance(move, str):
            return Message(Role.ASSISTANT, move)
        schema, calls = move
        missing = [name for name in schema["parameters"].get("required", ()) if name not in calls[0]]
        if missing:
            return Message(Role.ASSISTANT, ask_missing(schema, missing, calls[0]))
        first = f"call_{len(messages)}"
        ids = [first, *(f"{first}_{number}" for number in range(2, len(calls) + 1))]
        return Message(
            Role.ASSISTANT, tool_calls=tuple(ToolCall(schema["name"], *each) for each in zip(calls, ids, strict=True))
        )

    def _move(self, user: Message | None, schemas: Sequence[Schema]) -> Move:
        text = spoken(user.content).strip() if user else ""
        if text.startswith("/") and text[1:2].isalpha():
            return _command(text[1:], schemas)
        matched = match_tools(text, schemas)
        if not matched:
            return tell_unmatched(user, schemas)
        if len(matched) > 1:
            return ask_which(matched)
        return matched[0], pick_calls(text, matched[0], self._today())


def _results(messages: Sequence[Message]) -> str:
    """Every tool result since the user last spoke, in order."""
    recent = list(takewhile(lambda message: message.role is not Role.USER, reversed(messages)))
    return "\n".join(tell_result(message.content) for message in reversed(recent) if message.role is Role.TOOL)


def _command(text: str, schemas: Sequence[Schema]) -> Move:
    head, _, rest = text.partition(" ")
    name = head.partition("@")[0]  # Telegram groups write /name@the_bot
    schema = next((schema for schema in schemas if schema["name"] == name), None)
    if schema is not None:
        return schema, [_command_arguments(rest, schema)]
    if name.lower() in HELP_COMMANDS:
        return tell_help(schemas)
    return f"There is no command /{name}. /help lists them all."


def _command_arguments(rest: str, schema: Schema) -> dict[str, Any]:
    """`key=value` pairs, converted; words without a key are the first required parameter still open."""
    properties = schema["parameters"]["properties"]
    args: dict[str, Any] = {}
    loose: list[str] = []
    for part in _split(rest):
        key, equals, value = part.partition("=")
        if equals and key.isidentifier():
            args[key] = convert(value, properties.get(key, {}))
        else:
            loose.append(part)
    open_names = [name for name in schema["parameters"].get("required", ()) if name not in args]
    if loose and open_names:
        args[open_names[0]] = convert(" ".join(loose), properties[open_names[0]])
    return args


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an apostrophe is no opening quote to a person
        return text.split()


def _usage(request: ProviderRequest, answer: Message) -> UsageStats:
    prompt = sum(len(message.content.split()) for message in request.messages)
    completion = len(answer.content.split())
    return UsageStats(prompt, completion, prompt + completion, 0.0, "offline", "offline")
