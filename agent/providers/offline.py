"""OfflineProvider: answers without a language model, by matching the user's words to tools.

It serves demos and tests. `/help` lists the tools, `/add first=1` calls one, and so does a sentence
that names one: `offline_matching.py` finds the tool, `offline_sentences.py` its arguments. The text
of each result becomes the answer.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import date
from itertools import takewhile
from typing import Any

from sayso.agent.messages import Message, Role, ToolCall, UsageStats, without_notes
from sayso.agent.providers.base import Completion, ProviderRequest, ToolSchema
from sayso.agent.providers.offline_commands import read_arguments
from sayso.agent.providers.offline_matching import match_tools
from sayso.agent.providers.offline_sentences import call_arguments
from sayso.agent.providers.offline_words import words_of
from sayso.agent.tools.errors import issue_in_box
from sayso.agent.tools.result_texts import result_text
from sayso.channels.markdown.literal import as_markdown
from sayso.channels.types import Media

#: How many tools are named to a user whose text matches none.
MAX_NAMED_TOOLS = 12
#: Commands that list the tools. Telegram sends /start when a user opens the bot.
HELP_COMMANDS = frozenset({"help", "start"})
#: Returns the schemas of the tools that the current user may not use.
HiddenTools = Callable[[], Awaitable[Sequence[ToolSchema]]]
#: The answer to a request for a hidden tool. It does not name the tool: its name is not for this
#: user to know.
NOT_ALLOWED = "That is not allowed here. /help says what is."
#: Example values by JSON type.
_SAMPLES = {"integer": "3", "number": "19.90", "boolean": "yes", "array": "a,b", "object": "'{}'"}


@dataclass(frozen=True, slots=True)
class _WantedCalls:
    """What the user asks for: one or more calls of one tool."""

    tool: ToolSchema
    #: The arguments of each call. Required ones may be missing.
    arguments: list[dict[str, Any]]


class OfflineProvider:
    """A deterministic replacement for a model, at no cost.

    The same transcript and tools give the same answer. `today` returns the date that "today" and
    "tomorrow" are counted from.
    """

    #: Its answer is the result of a tool itself, so it is given more of each result than a model,
    #: which is paid by the token.
    shows_results = True

    def __init__(self, *, today: Callable[[], date] = date.today) -> None:
        self._today = today
        self._hidden_tools: HiddenTools | None = None

    def with_hidden_tools(self, hidden_tools: HiddenTools) -> OfflineProvider:
        """Return a provider that also knows the tools that its user may not use.

        It answers a request for one of them with a refusal, and never with a call of another tool
        that has some of the same words.
        """
        provider = copy(self)
        vars(provider)["_hidden_tools"] = hidden_tools
        return provider

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Answer a request. `kwargs` are the fields of a ProviderRequest.

        A command or a matching text is answered with tool calls, tool results with their text, and
        other text with help.
        """
        request = ProviderRequest(**kwargs)
        tools = request.tools or ()
        hidden: list[ToolSchema] = []
        if self._hidden_tools:
            hidden = [each for each in await self._hidden_tools() if each not in tools]
        answer = self._answer(request.messages, tools, hidden)

        prompt_words = sum(len(message.content.split()) for message in request.messages)
        answer_words = len(answer.content.split())
        usage = UsageStats(
            prompt_tokens=prompt_words,
            completion_tokens=answer_words,
            total_tokens=prompt_words + answer_words,
            model="offline",
            provider="offline",
        )
        return answer, usage

    def _answer(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        hidden: Sequence[ToolSchema],
    ) -> Message:
        """Return the answer to a conversation. `hidden` are the tools that the user may not use."""
        if messages and messages[-1].role is Role.TOOL:
            return Message(Role.ASSISTANT, _latest_results(messages, tools))

        wanted = self._wanted_calls(_latest_user_message(messages), tools, hidden)
        if isinstance(wanted, str):
            return Message(Role.ASSISTANT, wanted)
        complaint = _missing_arguments_text(wanted)
        if complaint:
            return Message(Role.ASSISTANT, complaint)

        name = wanted.tool["name"]
        calls = []
        for number, arguments in enumerate(wanted.arguments, 1):
            # The number of messages makes the ids of one conversation differ.
            call_id = f"call_{len(messages)}"
            if number > 1:
                call_id += f"_{number}"
            calls.append(ToolCall(name, arguments, call_id))
        return Message(Role.ASSISTANT, tool_calls=tuple(calls))

    def _wanted_calls(
        self,
        user_message: Message | None,
        tools: Sequence[ToolSchema],
        hidden: Sequence[ToolSchema],
    ) -> _WantedCalls | str:
        """Return the calls that the user asks for, or a text that answers the user."""
        text = ""
        if user_message:
            text = without_notes(user_message.content).strip()
        if text.startswith("/") and text[1:2].isalpha():
            return _command(text[1:], tools, hidden)

        all_matches = match_tools(text, [*tools, *hidden])
        if not all_matches:
            return _no_match_text(user_message, tools)
        matches = [each for each in all_matches if each not in hidden]
        if not matches:
            return NOT_ALLOWED
        if len(matches) == 1 and len(all_matches) > 1:
            # The text may mean the tool that its user may not use,
            # so the other one does not run for it.
            return f"Did you mean /{matches[0]['name']}?"
        if len(matches) > 1:
            *first, last = [f"/{tool['name']}" for tool in matches]
            return f"Did you mean {', '.join(first)} or {last}?"
        return _WantedCalls(matches[0], call_arguments(text, matches[0], self._today()))


def _latest_user_message(messages: Sequence[Message]) -> Message | None:
    """Return the latest message of the user, None without any."""
    for message in reversed(messages):
        if message.role is Role.USER:
            return message
    return None


def _latest_results(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> str:
    """Return the results since the latest message of the user, as Markdown."""
    since_user = list(takewhile(lambda message: message.role is not Role.USER, reversed(messages)))
    results = [each for each in reversed(since_user) if each.role is Role.TOOL]
    # A channel reads an answer as Markdown, and a result is plain text.
    return "\n".join(as_markdown(_in_words(each, tools)) for each in results)


def _in_words(result: Message, tools: Sequence[ToolSchema]) -> str:
    """Return a tool's result for people. Wrong arguments become one line and an example."""
    issue = issue_in_box(result.content)
    if not issue:
        return result_text(result.content)
    tool = _tool_named(result.tool_name, tools)
    example = ""
    if tool:
        example = f" For example: {example_command(tool)}"
    return f"{result.tool_name} cannot run like this: {issue}.{example}"


def _tool_named(name: str, tools: Sequence[ToolSchema]) -> ToolSchema | None:
    """Return the tool of this name, None if there is none."""
    for tool in tools:
        if tool["name"] == name:
            return tool
    return None


def _missing_arguments_text(wanted: _WantedCalls) -> str:
    """Return what the user has to add to the first of the calls, "" if nothing is missing."""
    tool = wanted.tool
    arguments = wanted.arguments[0]
    missing = [name for name in tool["parameters"].get("required", ()) if name not in arguments]
    if not missing:
        return ""

    properties = tool["parameters"]["properties"]
    unknown = [repr(name) for name in arguments if name not in properties]
    surplus = ""
    if unknown:
        surplus = f", and has no {' or '.join(unknown)}"
    complaint = f"{tool['name']} needs {' and '.join(missing)}{surplus}."
    return f"{complaint} For example: {example_command(tool, arguments)}"


def _command(
    text: str, tools: Sequence[ToolSchema], hidden: Sequence[ToolSchema]
) -> _WantedCalls | str:
    """Return the call that a command asks for, or a text that answers the user.

    `text` is the command without its slash.
    """
    command, *rest = text.split(maxsplit=1)
    name = command.partition("@")[0]  # in Telegram groups commands are written /name@the_bot
    tool = _tool_named(name, tools)
    if tool is not None:
        arguments = read_arguments("".join(rest), tool["parameters"])
        if arguments.issue:
            return _refused_text(tool, arguments.issue)
        return _WantedCalls(tool, [arguments.values])
    if _tool_named(name, hidden):
        return NOT_ALLOWED
    if name.lower() in HELP_COMMANDS:
        return _help_text(tools)
    return f"There is no command /{name}. /help lists them all."


def _refused_text(tool: ToolSchema, issue: str) -> str:
    """Return the answer to a command whose arguments cannot be read. Nothing runs."""
    spellings = [f"{name}=..." for name in tool["parameters"]["properties"]]
    cure = "it takes no arguments"
    if spellings:
        cure = f"write {' or '.join(spellings)}"
    problem = f"{tool['name']} cannot run like this: {issue}"
    return f"{problem}; {cure}. For example: {example_command(tool)}"


def _no_match_text(user_message: Message | None, tools: Sequence[ToolSchema]) -> str:
    """Return the user's text and files, to show that they arrived, and what the tools can do."""
    lines = ["You said:"]
    if user_message:
        lines = [f"You said: {user_message.content.strip()}".rstrip()]
        lines += [_file_text(media) for media in user_message.media]
    if not tools:
        return "\n".join(lines)

    abilities = [" ".join(words_of(tool["name"])) for tool in tools[:MAX_NAMED_TOOLS]]
    if len(tools) > MAX_NAMED_TOOLS:
        abilities.append(f"{len(tools) - MAX_NAMED_TOOLS} more")
    *first, last = abilities
    named_abilities = last
    if first:
        named_abilities = f"{', '.join(first)} and {last}"
    lines.append(
        "That matches none of my tools, and I am not a language model: I match words to tools, "
        f"always in the same way. I can {named_abilities}. "
        f"For example: {example_command(tools[0])}"
    )
    return "\n".join(lines)


def _file_text(media: Media) -> str:
    """Return what is known of a user's file, in brackets."""
    size = ""
    if media.size:
        size = f"{media.size} bytes"
    facts = [media.kind, media.mime_type, size, media.filename]
    return f"[{' '.join(filter(None, facts))}]"


def _help_text(tools: Sequence[ToolSchema]) -> str:
    """Return what this provider is, and for each tool a command to copy."""
    intro = (
        "I am not a language model: I match your words to the tools below, always in the same way. "
        "Say it in your own words or use the command."
    )
    if not tools:
        return f"{intro}\nThere are no tools."
    lines = [intro]
    for tool in tools:
        summary = str(tool.get("description", "")).partition("\n")[0]
        lines.append(f"{example_command(tool)} - {summary}")
    return "\n".join(lines)


def example_command(tool: ToolSchema, arguments: Mapping[str, Any] | None = None) -> str:
    """Return a command that calls the tool with the given arguments.

    A required argument that is missing gets a sample.
    """
    arguments = arguments or {}
    properties = tool["parameters"]["properties"]
    required = tool["parameters"].get("required", ())
    parts = [f"/{tool['name']}"]
    for name, parameter in properties.items():
        if name not in arguments and name not in required:
            continue
        value = str(arguments.get(name) or _sample(name, parameter))
        if re.search(r"\s", value):
            value = f"'{value}'"
        parts.append(f"{name}={value}")
    return " ".join(parts)


def _sample(name: str, parameter: Mapping[str, Any]) -> str:
    """Return a value that a parameter could have."""
    if parameter.get("enum"):
        return str(parameter["enum"][0])
    if parameter.get("format") == "date":
        return "2026-01-31"
    if name.endswith("_id"):
        return f"{name[:3].upper()}-42"
    return _SAMPLES.get(str(parameter.get("type")), "...")
