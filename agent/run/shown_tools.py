"""ShownTools: which tools the model is shown in each step, and the tool that finds others.

A small catalog of tools is shown as a whole. Of a large one, a conversation is shown the tools that
it has needed so far, and one more, the *finder*, with which the model finds others.

The tools are the first part of a request, and a vendor's prompt cache knows only what precedes the
first change. So tools are added at the end of the list, and old ones are removed only many at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from sayso.agent.guards.policy import ToolPolicy
from sayso.agent.memory.conversation import CHARS_PER_TOKEN, LOW_WATER_SHARE, ConversationMemory
from sayso.agent.messages import Message, Role
from sayso.agent.run.state import RunState
from sayso.agent.tools.definition import SEARCH, ToolMetadata
from sayso.agent.tools.registry import Toolset, schemas_for_model
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.embedding import SHOW_ALL_TOKENS, EmbeddingSelector
from sayso.agent.toolsets.selectors import (
    ToolSelector,
    embedding_in,
    narrow,
    restriction_of,
    shortening_of,
)

#: The key of the names of tools in the notes of a conversation.
NOTE = "tools"
#: The most names that are stored with a conversation.
MAX_NAMES = 200
#: The most tokens of the schemas that a conversation is shown of a large catalog. If there are
#: more, they are reduced to LOW_WATER_SHARE of this, so that it happens seldom.
MAX_SHOWN_TOKENS = SHOW_ALL_TOKENS
#: How many tokens of schemas a conversation begins with. Vendors cache no prompt that begins with
#: fewer than 1,024 tokens of an earlier one, so fewer tools would cost more once others are added.
FIRST_TOKENS = 1_200
#: Names for the finder. It has the first one that no other tool has.
FINDER_NAMES = ("find_tools", "search_tools")
#: How many tools the finder names at once.
FOUND_TOOLS = 5
#: How many parameters of each found tool the finder names. The next request has the schemas among
#: its tools, so a result is only a few lines, which can stay in the history.
MAX_PARAMETERS = 8
#: The result of the finder if no tool fits.
NOT_FOUND = (
    "No tool matches. Try once more in other words, or tell the user that you have no tool for it."
)
_FINDER_DESCRIPTION = (
    "Find tools that are not listed here, before you say that you cannot do something."
)
_FINDER_SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "what to do, in a few words"}},
    "required": ["query"],
}
#: How the result of the finder begins if it found tools.
_FOUND = "These tools can be called from now on:"
#: A line of a result: it begins with the name of a tool.
_FOUND_LINE = re.compile(r"^- ([A-Za-z0-9_.-]{1,64})\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools that the model is shown in one call."""

    schemas: list[dict[str, Any]]
    #: The names of the tools that it may call; None for all.
    names: tuple[str, ...] | None


class ShownTools:
    """Chooses the tools of each model call of one agent.

    One per agent loop; what a conversation has needed is in its memory.

    Without a `selector`, all tools are shown that the policy does not deny. With one, each tool is
    checked anew at each step: a name that is stored with a conversation never shows a tool that a
    role, a policy or a state now forbids. `can_find`: whether there may be a finder. It would make
    no sense for an agent whose tools do not run.
    """

    def __init__(
        self,
        toolset: Toolset,
        selector: ToolSelector | None,
        policy: ToolPolicy | None,
        *,
        can_find: bool,
    ) -> None:
        self._toolset = toolset
        self._selector = selector
        self._policy = policy
        self._can_find = can_find
        #: The part of the selector that chooses the tools that the user may use; None: all.
        self._restriction: ToolSelector | None = None
        #: The part of the selector that chooses the tools that fit the request; None: all.
        self._shortening: ToolSelector | None = None
        embedding = None
        if selector:
            self._restriction = restriction_of(selector)
            self._shortening = shortening_of(selector)
            embedding = embedding_in(selector)
        #: Compares a request with the descriptions of tools.
        self._embedding = embedding or EmbeddingSelector()
        #: Compares their words only, if the vendor of embeddings fails.
        self._offline = EmbeddingSelector()
        #: The names of tools whose schema failed. Each is logged once until it works again.
        self._without_schema: set[str] = set()

    async def offer(self, run: RunState) -> Offer:
        """Return the tools for the next model call of a run."""
        tools = self._tools()
        if self._selector is None:
            return Offer(await schemas_for_model(tools, self._without_schema), None)
        if self._shortening is None:
            shown = await narrow(self._selector, run.transcript, tools)
            names = tuple(tool.name for tool in shown)
            return Offer(await schemas_for_model(shown, self._without_schema), names)

        allowed = await self._allowed(run, tools)
        schemas = await schemas_for_model(allowed, self._without_schema)
        sizes = {schema["name"]: schema_tokens(schema) for schema in schemas}
        if sum(sizes.values()) <= self._embedding.show_all_tokens:
            return _offer_of(schemas)
        return await self._part_of(run, self._shortening, allowed, schemas, sizes)

    def callable_tools(self, run: RunState, names: Collection[str] | None) -> dict[str, Tool]:
        """Return the tools that an answer may call, by name.

        `names` are the tools that the model was shown, None for all. Tools that are always denied
        stay: the policy refuses their calls.
        """
        policy = self._policy
        tools: dict[str, Tool] = {}
        for tool in self._toolset.all():
            is_shown = names is None or tool.name in names
            if is_shown or (policy and policy.unconditional_denial(tool.name)):
                tools[tool.name] = tool
        finder = self._finder(run)
        if finder is not None and names is not None and finder.name in names:
            tools[finder.name] = finder
        return tools

    def _tools(self) -> list[Tool]:
        """Return the tools that the policy does not always deny."""
        tools = self._toolset.all()
        if self._policy is None:
            return tools
        return self._policy.without_denied(tools)

    async def _allowed(self, run: RunState, tools: list[Tool]) -> list[Tool]:
        """Return the tools that the current user may use."""
        if self._restriction is None:
            return tools
        return await narrow(self._restriction, run.transcript, tools)

    async def _part_of(
        self,
        run: RunState,
        shortening: ToolSelector,
        allowed: list[Tool],
        schemas: list[dict[str, Any]],
        sizes: Mapping[str, int],
    ) -> Offer:
        """Return the part of a large catalog that the conversation needs.

        These are the tools that it has needed so far, and those that it needs now. `allowed` are
        the tools that the user may use, `schemas` their schemas, and `sizes` the tokens of each
        schema, by name.
        """
        finder = self._finder(run)
        needed = await self._needed_now(run, shortening, allowed)
        if finder is not None:
            needed += found_names(run.messages, finder.name)
        # Until a tool is needed, the finder alone is shown. Then several come at once, so that the
        # tools are long enough for the vendor's cache.
        if needed and not run.shown_tools:
            needed += await self._first_names(run, allowed, sizes)

        called: list[str] = []
        for message in run.transcript:
            called += [call.tool_name for call in message.tool_calls]
        names = list(dict.fromkeys([*run.shown_tools, *needed]))
        run.shown_tools = within_limit(names, sizes, needed, called)

        by_name = {schema["name"]: schema for schema in schemas}
        shown = [by_name[name] for name in run.shown_tools if name in by_name]
        if finder is not None:
            return _offer_of([finder.schema(), *shown])
        # Without a tool that finds others, the model must not be left with none.
        return _offer_of(shown or schemas)

    async def _needed_now(
        self, run: RunState, shortening: ToolSelector, allowed: list[Tool]
    ) -> list[str]:
        """Return the names of the tools that fit the latest messages."""
        # Without `rejected`: the user did not write the requests to correct an answer.
        messages = [*run.history, *run.messages]
        names = [tool.name for tool in await narrow(shortening, messages, allowed)]

        nearest = await self._embedding.nearest(run.user_text.strip(), allowed, 1)
        is_nearest_shown = bool(nearest) and nearest[0].name in run.shown_tools
        if not is_nearest_shown:
            return names
        # The model probably has the tool that it needs, and can find others itself. No tool is
        # added, since each new one costs the vendor's cache of all that follows.
        return [name for name in names if name in run.shown_tools]

    async def _first_names(
        self, run: RunState, allowed: list[Tool], sizes: Mapping[str, int]
    ) -> list[str]:
        """Return the names of the tools nearest to the first message, up to FIRST_TOKENS tokens."""
        names: list[str] = []
        tokens = 0
        for tool in await self._embedding.nearest(run.user_text.strip(), allowed, MAX_NAMES // 2):
            if tokens >= FIRST_TOKENS:
                break
            names.append(tool.name)
            tokens += sizes.get(tool.name, 0)
        return names

    def _finder(self, run: RunState) -> Tool | None:
        """Return the tool with which the model of this run finds tools that it is not shown.

        Return None if all tools are shown, if tools do not run, or if the policy denies it.
        """
        if self._shortening is None or not self._can_find:
            return None

        async def find(query: str) -> str:
            tools = await self._allowed(run, self._tools())
            nearest = await self._embedding.nearest(query, tools, FOUND_TOOLS)
            if not nearest:  # the embeddings have failed, so only words are compared
                nearest = await self._offline.nearest(query, tools, FOUND_TOOLS)
            if not nearest:
                return NOT_FOUND
            return "\n".join([_FOUND, *map(_line, nearest)])

        taken_names = {tool.name for tool in self._toolset.all()}
        names = chain(FINDER_NAMES, (f"{FINDER_NAMES[0]}_{number}" for number in count(2)))
        name = next(each for each in names if each not in taken_names)
        metadata = ToolMetadata(source=SEARCH)
        finder = Tool(
            name,
            _FINDER_DESCRIPTION,
            _FINDER_SCHEMA,
            find,
            screen_output=True,
            read_only=True,
            metadata=metadata,
        )
        is_denied = self._policy is not None and not self._policy.without_denied([finder])
        return None if is_denied else finder


def _offer_of(schemas: list[dict[str, Any]]) -> Offer:
    """Return the offer of just these tools."""
    return Offer(schemas, tuple(schema["name"] for schema in schemas))


def schema_tokens(schema: Mapping[str, Any]) -> int:
    """Return an estimate of the tokens of a tool's schema."""
    return len(json.dumps(schema, ensure_ascii=False)) // CHARS_PER_TOKEN + 1


def within_limit(
    names: Sequence[str],
    sizes: Mapping[str, int],
    needed: Iterable[str],
    called: Iterable[str],
    *,
    max_tokens: int = MAX_SHOWN_TOKENS,
) -> list[str]:
    """Return the names that stay, in their order: their schemas fit into `max_tokens`.

    If they do not all fit, they are reduced to about half of the limit. The names that are `needed`
    now always stay. Then come those that were `called` last, then those that were added last.

    `sizes` are the tokens of the schemas. A name without a size counts nothing: its tool does not
    exist or is not allowed now, and may come back.
    """
    tokens = sum(sizes.get(name, 0) for name in names)
    if tokens <= max_tokens and len(names) <= MAX_NAMES:
        return list(names)

    staying = set(needed)
    tokens_left = int(max_tokens * LOW_WATER_SHARE) - sum(sizes.get(name, 0) for name in staying)
    places_left = MAX_NAMES // 2 - len(staying)
    all_names = set(names)
    latest_first = dict.fromkeys([*reversed([*called]), *reversed(names)])
    for name in latest_first:
        if name not in all_names or name in staying:
            continue
        tokens_left -= sizes.get(name, 0)
        places_left -= 1
        if tokens_left < 0 or places_left < 0:
            break
        staying.add(name)
    return [name for name in names if name in staying]


def found_names(messages: Iterable[Message], finder: str) -> list[str]:
    """Return the names of the tools that the finder has named in these messages.

    `finder` is the name of the finder.
    """
    names: list[str] = []
    for message in messages:
        if message.role is Role.TOOL and message.tool_name == finder:
            names += _FOUND_LINE.findall(message.content)
    return names


def noted_names(memory: ConversationMemory | None) -> list[str]:
    """Return the names of the tools that a conversation has needed; [] if it has stored none."""
    if memory is None:
        return []
    names = memory.notes.get(NOTE)
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str)]


def note_names(memory: ConversationMemory, names: Sequence[str]) -> None:
    """Store the names of the tools that a conversation has needed."""
    if names and list(names) != memory.notes.get(NOTE):
        memory.notes[NOTE] = list(names)


def _line(tool: Tool) -> str:
    """Return the line of a tool in the finder's result: its name and its parameters."""
    parameters = [" ".join(parameter.name.split()) for parameter in tool.parameters]
    if len(parameters) > MAX_PARAMETERS:
        parameters = [*parameters[:MAX_PARAMETERS], "..."]
    return f"- {tool.name}({', '.join(parameters)})"
