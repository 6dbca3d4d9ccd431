"""OfflineProvider: answers without a language model, by matching the user's words to tools (seed)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import takewhile
from typing import Any

from sayso.agent.channel.user_message import spoken
from sayso.agent.messages import Message, Role, ToolCall, UsageStats
from sayso.agent.providers.base import Completion, ProviderRequest
from sayso.agent.providers.offline_matching import ToolSchema, call_arguments, convert, match_tools, name_words
from sayso.agent.tools.results import result_text
from sayso.channels.types import Media

#: How many tools are named to a user whose text matches none.
MAX_NAMED_TOOLS = 12
#: Commands that list the tools. Telegram sends /start when a user opens the bot.
HELP_COMMANDS = frozenset({"help", "start"})
#: Example values by JSON type.
_SAMPLES = {"integer": "3", "number": "19.90", "boolean": "yes", "array": "a,b", "object": "'{}'"}


@dataclass(frozen=True, slots=True)
class OfflineStep:
    """Calls of one tool, with the arguments of each."""

    tool: ToolSchema
    calls: list[dict[str, Any]]


def _today() -> date:
    return datetime.now(UTC).astimezone().date()


class OfflineProvider:
    """A deterministic replacement for a model: the same transcript and tools give the same answer, at no cost."""

    def __init__(self, *, today: Callable[[], date] = _today) -> None:
        self._today = today

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Answer a command or matching text with tool calls, tool results with their text, other text with help."""
        request = ProviderRequest(**kwargs)
        answer = self._answer(request.messages, request.tools or ())
        prompt_words = sum(len(message.content.split()) for message in request.messages)
        answer_words = len(answer.content.split())
        usage = UsageStats(prompt_words, answer_words, prompt_words + answer_words, 0.0, "offline", "offline")
        return answer, usage

    def _answer(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Message:
        if messages and messages[-1].role is Role.TOOL:
            return Message(Role.ASSISTANT, _results(messages))
        user_message = next((message for message in reversed(messages) if message.role is Role.USER), None)
        step = self._next_step(user_message, tools)
        if isinstance(step, str):
            return Message(Role.ASSISTANT, step)
        missing = [name for name in step.tool["parameters"].get("required", ()) if name not in step.calls[0]]
        if missing:
            example = example_command(step.tool, step.calls[0])
            return Message(Role.ASSISTANT, f"{step.tool['name']} needs {' and '.join(missing)}. For example: {example}")
        first_id = f"call_{len(messages)}"
        ids = [first_id, *(f"{first_id}_{number}" for number in range(2, len(step.calls) + 1))]
        calls = (ToolCall(step.tool["name"], args, id_) for args, id_ in zip(step.calls, ids, strict=True))
        return Message(Role.ASSISTANT, tool_calls=tuple(calls))

    def _next_step(self, user_message: Message | None, tools: Sequence[ToolSchema]) -> OfflineStep | str:
        """Return the tool calls that the user asks for, or a text for the user."""
        text = spoken(user_message.content).strip() if user_message else ""
        if text.startswith("/") and text[1:2].isalpha():
            return _command(text[1:], tools)
        matches = match_tools(text, tools)
        if not matches:
            return _no_match_text(user_message, tools)
        if len(matches) > 1:
            *first, last = [f"/{tool['name']}" for tool in matches]
            return f"Did you mean {', '.join(first)} or {last}?"
        return OfflineStep(matches[0], call_arguments(text, matches[0], self._today()))


def _results(messages: Sequence[Message]) -> str:
    """Return the text of every tool result since the last user message, in order."""
    recent = list(takewhile(lambda message: message.role is not Role.USER, reversed(messages)))
    return "\n".join(result_text(message.content) for message in reversed(recent) if message.role is Role.TOOL)


def _command(text: str, tools: Sequence[ToolSchema]) -> OfflineStep | str:
    head, _, rest = text.partition(" ")
    name = head.partition("@")[0]  # in Telegram groups commands are written /name@the_bot
    tool = next((tool for tool in tools if tool["name"] == name), None)
    if tool is not None:
        return OfflineStep(tool, [_command_arguments(rest, tool)])
    if name.lower() in HELP_COMMANDS:
        return _help_text(tools)
    return f"There is no command /{name}. /help lists them all."


def _command_arguments(text: str, tool: ToolSchema) -> dict[str, Any]:
    """Return the `key=value` pairs, converted. Words without a key are the first required parameter without a value."""
    properties = tool["parameters"]["properties"]
    args: dict[str, Any] = {}
    words: list[str] = []
    for part in _split(text):
        key, equals, value = part.partition("=")
        if equals and key.isidentifier():
            args[key] = convert(value, properties.get(key, {}))
        else:
            words.append(part)
    open_names = [name for name in tool["parameters"].get("required", ()) if name not in args]
    if words and open_names:
        args[open_names[0]] = convert(" ".join(words), properties[open_names[0]])
    return args


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an apostrophe, which a shell would read as an open quote
        return text.split()


def _no_match_text(user_message: Message | None, tools: Sequence[ToolSchema]) -> str:
    """Return the user's own text and files, to show that they arrived, and then what the tools can do."""
    text = user_message.content.strip() if user_message else ""
    files = user_message.media if user_message else ()
    lines = [f"You said: {text}".rstrip(), *map(_file_text, files)]
    if tools:
        names = [" ".join(name_words(tool["name"])) for tool in tools[:MAX_NAMED_TOOLS]]
        if len(tools) > MAX_NAMED_TOOLS:
            names.append(f"{len(tools) - MAX_NAMED_TOOLS} more")
        *first, last = names
        abilities = f"{', '.join(first)} and {last}" if first else last
        lines.append(
            "That matches none of my tools, and I am not a language model: I match words to tools, always in the same "
            f"way. I can {abilities}. For example: {example_command(tools[0])}"
        )
    return "\n".join(lines)


def _file_text(media: Media) -> str:
    size = f"{media.size} bytes" if media.size else ""
    parts = (media.kind, media.mime_type, size, media.filename)
    return f"[{' '.join(part for part in parts if part)}]"


def _help_text(tools: Sequence[ToolSchema]) -> str:
    """Return what this provider is, and for each tool a command to copy."""
    intro = (
        "I am not a language model: I match your words to the tools below, always in the same way. "
        "Say it in your own words or use the command."
    )
    if not tools:
        return f"{intro}\nThere are no tools."
    summaries = ((tool, str(tool.get("description", "")).partition("\n")[0]) for tool in tools)
    return "\n".join([intro, *(f"{example_command(tool)} - {summary}" for tool, summary in summaries)])


def example_command(tool: ToolSchema, args: Mapping[str, Any] | None = None) -> str:
    """Return a command that calls the tool, with the given arguments and samples for missing required ones."""
    args = args or {}
    parameters = tool["parameters"]
    names = [name for name in parameters["properties"] if name in args or name in parameters.get("required", ())]
    values = {name: str(args.get(name) or _sample(name, parameters["properties"][name])) for name in names}
    quoted = {name: f"'{value}'" if re.search(r"\s", value) else value for name, value in values.items()}
    return " ".join([f"/{tool['name']}", *(f"{name}={value}" for name, value in quoted.items())])


def _sample(name: str, parameter: Mapping[str, Any]) -> str:
    if parameter.get("enum"):
        return str(parameter["enum"][0])
    if parameter.get("format") == "date":
        return "2026-01-31"
    if name.endswith("_id"):
        return f"{name[:3].upper()}-42"
    return _SAMPLES.get(str(parameter.get("type")), "...")
