"""OfflineProvider: matching words to tools."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import takewhile
from typing import Any

from sayso.agent.messages import Message, Role, ToolCall, UsageStats, without_notes
from sayso.agent.providers.base import Completion, ProviderRequest
from sayso.agent.providers.offline_matching import convert, match_tools, name_words, pick_calls
from sayso.channels.types import Media
from sayso.pending.executors import Ambiguous, NotFound, plain

#: Tools that are named to a user whose words match none.
MAX_NAMED = 12


_SAMPLES = {"integer": "3", "number": "19.90", "boolean": "yes", "array": "a,b", "object": "'{}'"}


def tell_result(content: str) -> str:
    """A tool's result for a person: JSON in words, text as it is."""
    try:
        value = json.loads(content)
    except ValueError:
        return content
    if isinstance(value, dict):
        return _tell_kind(value)
    return "\n".join(f"- {plain(item)}" for item in value) if isinstance(value, list) and value else plain(value)


def tell_unmatched(message: Message | None, schemas: Sequence[Mapping[str, Any]]) -> str:
    """Return the user's own words and files, proof that they arrived, then what this provider is and can do."""
    text = message.content.strip() if message else ""
    media = message.media if message else ()
    told = [f"You said: {text}".rstrip(), *map(_tell_media, media)]
    return "\n".join([*told, _abilities(schemas)] if schemas else told)


def _abilities(schemas: Sequence[Mapping[str, Any]]) -> str:
    names = [" ".join(name_words(schema["name"])) for schema in schemas[:MAX_NAMED]]
    more = [f"{len(schemas) - MAX_NAMED} more"] if len(schemas) > MAX_NAMED else []
    *first, last = [*names, *more]
    listed = f"{', '.join(first)} and {last}" if first else last
    return (
        "That matches none of my tools, and I am not a language model: I match words to tools, always in the same "
        f"way. I can {listed}. For example: {example(schemas[0])}"
    )


def tell_help(schemas: Sequence[Mapping[str, Any]]) -> str:
    """What this provider is, and every tool with a command to copy."""
    honest = (
        "I am not a language model: I match your words to the tools below, always in the same way. "
        "Say it in your own words or use the command."
    )
    if not schemas:
        return f"{honest}\nThere are no tools."
    return "\n".join([honest, *(f"{example(schema)} - {_summary(schema)}" for schema in schemas)])


def ask_missing(schema: Mapping[str, Any], missing: Sequence[str], given: Mapping[str, Any]) -> str:
    """The question for arguments that the text did not hold."""
    return f"{schema['name']} needs {' and '.join(missing)}. For example: {example(schema, given)}"


def ask_which(schemas: Sequence[Mapping[str, Any]]) -> str:
    """The question which of several tools was meant."""
    names = [f"/{schema['name']}" for schema in schemas]
    return f"Did you mean {', '.join(names[:-1])} or {names[-1]}?"


def example(schema: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> str:
    """A command that calls the tool, with the values already known and samples for the other required ones."""
    known = given or {}
    parameters = schema["parameters"]
    names = [name for name in parameters["properties"] if name in known or name in parameters.get("required", ())]
    values = {name: known.get(name) or _sample(name, parameters["properties"][name]) for name in names}
    return " ".join([f"/{schema['name']}", *(f"{name}={_quoted(value)}" for name, value in values.items())])


def _tell_kind(result: dict[str, Any]) -> str:
    kind, entity, query = (result.get(key) for key in ("kind", "entity", "query"))
    if kind == "ambiguous":
        return Ambiguous(str(entity or ""), str(query), list(result.get("matches") or [])).in_words
    if kind == "not_found":
        return NotFound(str(entity or ""), str(query)).in_words
    for key in ("preview", "message"):
        if kind and isinstance(result.get(key), str):
            return str(result[key])
    return "\n".join(f"{key}: {plain(value)}" for key, value in result.items() if key != "kind") or "nothing"


def _tell_media(media: Media) -> str:
    size = f"{media.size} bytes" if media.size else ""
    parts = (media.kind, media.mime_type, size, media.filename)
    return f"[{' '.join(part for part in parts if part)}]"


def _summary(schema: Mapping[str, Any]) -> str:
    return str(schema.get("description", "")).partition("\n")[0]


def _sample(name: str, prop: Mapping[str, Any]) -> str:
    if prop.get("enum"):
        return str(prop["enum"][0])
    if prop.get("format") == "date":
        return "2026-01-31"
    if name.endswith("_id"):
        return f"{name[:3].upper()}-42"
    return _SAMPLES.get(str(prop.get("type")), "...")


def _quoted(value: Any) -> str:
    text = str(value)
    return f"'{text}'" if re.search(r"\s", text) else text


#: Commands that explain; Telegram sends /start when a person opens the bot.
HELP_COMMANDS = frozenset({"help", "start"})


OfflineSchema = Mapping[str, Any]


#: What a text comes to: words for the user, or a tool with the arguments of each of its calls.
OfflineStep = str | tuple[OfflineSchema, list[dict[str, Any]]]


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

    def _answer(self, messages: Sequence[Message], schemas: Sequence[OfflineSchema]) -> Message:
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

    def _move(self, user: Message | None, schemas: Sequence[OfflineSchema]) -> OfflineStep:
        text = without_notes(user.content).strip() if user else ""
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


def _command(text: str, schemas: Sequence[OfflineSchema]) -> OfflineStep:
    head, _, rest = text.partition(" ")
    name = head.partition("@")[0]  # Telegram groups write /name@the_bot
    schema = next((schema for schema in schemas if schema["name"] == name), None)
    if schema is not None:
        return schema, [_command_arguments(rest, schema)]
    if name.lower() in HELP_COMMANDS:
        return tell_help(schemas)
    return f"There is no command /{name}. /help lists them all."


def _command_arguments(rest: str, schema: OfflineSchema) -> dict[str, Any]:
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
