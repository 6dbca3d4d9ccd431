"""ToolProviderProtocol, tools of this process behind it, and what all sources of tools share.

They share errors, legal names, confirmation and safe schemas.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, runtime_checkable

from sayso.agent.tools.call_texts import Preview, ToolOutcome
from sayso.agent.tools.definition import ToolTag
from sayso.agent.tools.errors import EffectUnknownError, ToolError, ToolExecutionError
from sayso.agent.tools.json_schema import DEFINITIONS, as_object, each_part
from sayso.agent.tools.json_validation import draft_of, linear_search
from sayso.agent.tools.registry import ToolRegistry
from sayso.agent.tools.tool import Tool

log = logging.getLogger(__name__)
#: Most tools of one source; more would leave a model no room to choose.
MAX_TOOLS = 256
#: Longest description that reaches the model, in characters.
MAX_DESCRIPTION_CHARS = 2000
#: Longest tool name that every vendor accepts, in characters.
MAX_NAME_CHARS = 64
#: Length of the digest that keeps two names apart, in characters.
DIGEST_CHARS = 8
#: Shortest value that is treated as a secret, in characters: anything shorter occurs in every text.
MIN_SECRET_CHARS = 4
#: HTTP statuses of a server that broke off, or of a gateway without an answer:
#: the request may have taken effect.
UNCLEAR_STATUSES = (500, 502, 504)
#: Largest JSON Schema of a tool, in characters: a larger one would fill
#: the model's context at every call.
MAX_SCHEMA_CHARS = 30_000
#: Most patterns of a schema that are checked here; the server checks the others.
#: One may take a tenth of a second.
MAX_PATTERNS = 20
#: Deepest nesting of a schema that is read, in levels.
MAX_DEPTH = 40


class SourceError(ToolError):
    """Raised when a source of tools cannot be used as it is."""


class SourceUnreachable(SourceError):
    """Raised when a source does not answer at all; no call was sent."""


class CallRefused(SourceError):
    """Raised when a source refused a call."""


class AnswerLost(SourceError):
    """Raised when a call was sent and no answer came."""


@dataclass(frozen=True, slots=True)
class UnclearOutcome(ToolOutcome):
    """The outcome of a call that was sent and never answered: it may have taken effect."""


def failed(error: str) -> ToolOutcome:
    """Return the outcome of a call that failed."""
    return ToolOutcome(success=False, error=error)


@runtime_checkable
class ToolProviderProtocol(Protocol):
    """Provides and executes tools. Its methods may be called from any event loop."""

    async def list_tools(self) -> list[Tool]:
        """Return the definitions of all tools.

        Raises ToolError when the provider does not answer.
        """
        ...

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Run one tool. A failure that the provider knows of is an outcome, never an exception."""
        ...


class PythonToolProvider:
    """Lists and runs Tools, plain typed functions, or the present contents of a ToolRegistry."""

    def __init__(self, tools: ToolRegistry | Iterable[Tool | Callable[..., Any]]) -> None:
        if isinstance(tools, ToolRegistry):
            self._registry = tools
        else:
            self._registry = ToolRegistry()
            for each in tools:
                self._registry.register(each)

    async def list_tools(self) -> list[Tool]:
        """Return every tool, in the order of registration."""
        return self._registry.all()

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Run a tool.

        Unknown names, wrong arguments and the tool's failures are outcomes with an error text.
        """
        tools = {each.name: each for each in self._registry.all()}
        if tool_name not in tools:
            return failed(f"Tool '{tool_name}' not found. Available tools: {list(tools)}")
        try:
            return ToolOutcome(success=True, result=await tools[tool_name].ainvoke(parameters))
        except ToolError as exc:
            return failed(str(exc))


class MockToolProvider:
    """Answers each call with a prepared result, and records the calls. For tests.

    A prepared exception becomes an error.
    """

    def __init__(self, tools: Sequence[Tool], results: Mapping[str, Any]) -> None:
        self.tools = list(tools)
        self.results = results
        self.call_history: list[tuple[str, dict[str, Any]]] = []

    async def list_tools(self) -> list[Tool]:
        """Return the tools it was given."""
        return self.tools

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Return the result prepared for this tool; an exception becomes the error text."""
        self.call_history.append((tool_name, parameters))
        if tool_name not in self.results:
            return failed(f"Tool {tool_name} not mocked")
        result = self.results[tool_name]
        if isinstance(result, Exception):
            return failed(str(result))
        return ToolOutcome(success=True, result=result)


#: Which tools of a source need a confirmation. `hints`: those that the source calls destructive,
#: where no rule of a policy names them. `always`: all. `never`: none because of a hint. Patterns:
#: those whose names match, besides hints.
Confirm = Literal["hints", "always", "never"] | Sequence[str]


def provided(
    provider: ToolProviderProtocol,
    tools: Iterable[Tool],
    namespace: str = "",
    confirm: Confirm = "hints",
) -> list[Tool]:
    """Return listed definitions as tools that can run:
    each calls `provider.execute_tool` by its listed name.

    `namespace` is put before every name, as in `files-read`; `confirm` says which tools need a
    confirmation. A provider that lists tools under other names than its source has a method
    `own_name`, from the listed to the source's name. One with previews of its own has
    `own_preview`, which takes a tool's listed name and its name here. One whose tools may change
    meanwhile has `execute_listed`, which is called in place of `execute_tool` and gets the listed
    Tool.
    """
    listed = list(tools)
    names = legal_names([tool.name for tool in listed], namespace)
    own_name: Callable[[str], str] = getattr(provider, "own_name", lambda name: name)
    own_names = {tool.name: own_name(tool.name) for tool in listed}
    own_preview: Callable[[str, str], Preview | None]
    own_preview = getattr(provider, "own_preview", lambda *_: None)
    patterns = () if isinstance(confirm, str) else confirm
    if unused := [
        each for each in patterns if not _matches([each], *own_names.values(), *names.values())
    ]:
        source = str(getattr(provider, "name", "")) or type(provider).__name__
        log.warning("source.confirm_matches_nothing", extra={"source": source, "patterns": unused})
    return [
        requires_confirmation(
            renamed(
                replace(
                    tool,
                    function=_caller(provider, tool),
                    preview=own_preview(tool.name, names[tool.name]) or tool.preview,
                ),
                names[tool.name],
                namespace,
            ),
            own_names[tool.name],
            confirm,
        )
        for tool in listed
    ]


#: Runs a tool as it was listed, or fails if it has changed since.
ExecuteListed = Callable[[Tool, dict[str, Any]], Coroutine[Any, Any, ToolOutcome]]


def _caller(provider: ToolProviderProtocol, tool: Tool) -> Callable[..., Coroutine[Any, Any, Any]]:
    # An optional parameter without a default is left out by giving None;
    # a JSON Schema says itself what null means.
    optional = {each.name for each in tool.parameters if not each.required and each.default is None}
    if tool.input_schema is None:
        omitted_if_none = optional
    else:
        omitted_if_none = set()

    execute_listed: ExecuteListed | None = getattr(provider, "execute_listed", None)

    async def call(**parameters: Any) -> Any:
        given = {
            name: value
            for name, value in parameters.items()
            if value is not None or name not in omitted_if_none
        }
        if execute_listed is not None:
            outcome = await execute_listed(tool, given)
        else:
            outcome = await provider.execute_tool(tool.name, given)
        if not outcome.success:
            error_type = ToolExecutionError
            if isinstance(outcome, UnclearOutcome):
                error_type = EffectUnknownError
            raise error_type(
                outcome.error or f"{tool.name!r} failed without saying why", tool_name=tool.name
            )
        return outcome.result

    return call


def renamed(tool: Tool, name: str, namespace: str) -> Tool:
    """Return the tool under this name.

    The namespace at its beginning stays as its operator wrote it.
    """
    if not namespace:
        return replace(tool, name=name)
    return replace(
        tool, name=name, namespace=namespace, method_name=name.removeprefix(f"{namespace}-")
    )


def requires_confirmation(tool: Tool, own_name: str, confirm: Confirm) -> Tool:
    """Return the tool with the confirmation that `confirm` demands.

    Patterns match its own name or its name here.
    """
    if confirm == "hints":
        return tool
    if confirm == "never":
        tags = tool.metadata.tags - {ToolTag.DESTRUCTIVE}
        return replace(tool, metadata=replace(tool.metadata, tags=tags))
    if confirm == "always" or _matches(confirm, own_name, tool.name):
        return replace(tool, requires_approval=True)
    return tool


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Selects tools of a source by shell patterns over the source's own names.

    Without `include` it selects all.
    """

    include: Sequence[str] | None = None
    exclude: Sequence[str] = ()

    def accepts(self, name: str) -> bool:
        """Return whether the tool of this name is selected."""
        return (self.include is None or _matches(self.include, name)) and not _matches(
            self.exclude, name
        )


def _matches(patterns: Sequence[str], *names: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def legal_names(names: Sequence[str], namespace: str = "") -> dict[str, str]:
    """Return for each name a unique one that every vendor accepts, with the namespace before it.

    A legal name stays as it is. One that is not legal, and whose legal form another name has too,
    gets a digest. The order of the names does not matter. Gemini takes no name that begins with a
    digit or a hyphen.
    """
    full = {name: f"{namespace}-{name}" if namespace else name for name in names}
    legal = {
        name: re.sub(r"[^A-Za-z0-9_-]|^(?![A-Za-z_])", "_", text) for name, text in full.items()
    }
    counts = Counter(text[:MAX_NAME_CHARS] for text in legal.values())
    unique = {}
    for name, text in legal.items():
        is_unique = text == full[name] or counts[text] == 1
        if len(text) > MAX_NAME_CHARS or not is_unique:
            beginning = text[: MAX_NAME_CHARS - DIGEST_CHARS - 1]
            unique[name] = f"{beginning}-{digest(full[name])}"
        else:
            unique[name] = text
    return unique


def digest(value: Any) -> str:
    """Return a short hash of any JSON-able value, to tell two versions of a definition apart."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]


def bounded_description(text: str | None, name: str) -> str:
    """Return a description of at most MAX_DESCRIPTION_CHARS.

    A tool without one is described by its name.
    """
    text = (text or "").strip() or f"The tool {name!r}; its source does not describe it."
    if len(text) <= MAX_DESCRIPTION_CHARS:
        return text
    return text[: MAX_DESCRIPTION_CHARS - 3] + "..."


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Return the text without these secrets: a server's answer may repeat what it was sent."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= MIN_SECRET_CHARS:
            text = text.replace(secret, "[hidden]")
    return text


def scrub_value(value: Any, secrets: Sequence[str]) -> Any:
    """Return a JSON value without these secrets in its texts.

    Its written form may spell a secret differently.
    """
    return map_texts(value, lambda text: scrub(text, secrets))


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with all its texts changed, names included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(str(name)): map_texts(each, change) for name, each in value.items()}
    if isinstance(value, list):
        return [map_texts(each, change) for each in value]
    return value


class UnusableSchema(ValueError):
    """Raised when arguments cannot be checked by a schema; the message says why."""


#: Keywords that only locate a schema; with them a local reference could become one to the network.
_ADDRESS_KEYWORDS = (
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$vocabulary",
    "$comment",
)
#: Keywords that the server checks alone: matching names by pattern could take forever,
#: and the other two depend on it.
_PATTERN_KEYWORDS = ("patternProperties", "additionalProperties", "unevaluatedProperties")
#: Keywords that hold schemas by name. A name may well be a keyword, such as `id`.
_NAMED_KEYWORDS = ("properties", "$defs", "definitions", "dependentSchemas")
#: Keywords that hold data, not schemas.
_DATA_KEYWORDS = ("default", "enum", "const", "examples")
#: The earlier drafts of JSON Schema, as schemas name them.
_EARLIER_DRAFTS = tuple(
    f"http://json-schema.org/draft-0{number}/schema{end}"
    for number in (4, 6, 7)
    for end in ("#", "")
)


def safe_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments as an object schema without anything to fetch.

    Raises UnusableSchema.

    The server checks the patterns that are left out.
    """
    import jsonschema

    cleaned = _cleaned(schema, 0, lambda _: True)
    if cleaned.get("type", "object") != "object":
        raise UnusableSchema(f"its arguments are of type {cleaned['type']!r}, not an object")
    if len(json.dumps(cleaned, default=str)) > MAX_SCHEMA_CHARS:
        raise UnusableSchema(f"its schema has more than {MAX_SCHEMA_CHARS} characters")
    patterns_left = iter(range(MAX_PATTERNS))

    def is_linear(pattern: Any) -> bool:
        """Return whether a pattern is one of the first ones and matches in linear time."""
        is_first = next(patterns_left, None) is not None
        return is_first and isinstance(pattern, str) and linear_search(pattern) is not None

    cleaned = _cleaned(cleaned, 0, is_linear)  # after the check of the size: patterns take long
    if schema.get("$schema") in _EARLIER_DRAFTS:  # in which some keywords mean something else
        cleaned["$schema"] = schema["$schema"]
    try:
        draft_of(cleaned).check_schema(cleaned)
    except jsonschema.SchemaError as exc:
        where = "/".join(map(str, exc.absolute_path)) or "its top"
        raise UnusableSchema(f"its schema is none: at {where}, {exc.validator} is broken") from exc
    # `true` is a schema too: any value. Vendors' APIs expect an object.
    properties = {
        name: each if isinstance(each, dict) else {}
        for name, each in cleaned.get("properties", {}).items()
    }
    return {**cleaned, "type": "object", "properties": properties}


def _cleaned(
    value: Any, depth: int, accepts_pattern: Callable[[Any], bool], *, is_named: bool = False
) -> Any:
    if depth > MAX_DEPTH:
        raise UnusableSchema(f"its schema is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list | tuple):
        return [_cleaned(each, depth + 1, accepts_pattern) for each in value]
    if not isinstance(value, Mapping):
        return value
    if is_named:
        return {
            str(name): _cleaned(each, depth + 1, accepts_pattern) for name, each in value.items()
        }
    for key in ("$ref", "$dynamicRef", "$recursiveRef"):
        target = value.get(key, "#")
        if not (isinstance(target, str) and target.startswith("#")):
            raise UnusableSchema(f"its schema refers to {target!r}, and nothing is fetched")

    dropped = set(_ADDRESS_KEYWORDS)
    if "patternProperties" in value:
        dropped.update(_PATTERN_KEYWORDS)
    cleaned: dict[str, Any] = {}
    for key, each in value.items():
        if key in dropped or (key == "pattern" and not accepts_pattern(each)):
            continue
        if key in _DATA_KEYWORDS:
            cleaned[key] = each
        else:
            is_named = key in _NAMED_KEYWORDS
            cleaned[key] = _cleaned(each, depth + 1, accepts_pattern, is_named=is_named)
    if "patternProperties" in value:
        return {**cleaned, "additionalProperties": True}
    return cleaned


def in_fixed_order(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a safe schema, the same for the same contents.

    Lists whose order means nothing are sorted by their values.

    Many servers make `required` and `enum` from a set, in another order at each start, and a
    vendor's cache needs identical bytes. The properties keep their order, because a model writes
    its arguments in it.
    """
    whole = each_part(schema, in_fixed_order)
    for key in DEFINITIONS:
        if isinstance(whole.get(key), dict):
            parts = whole[key].items()
            whole[key] = {name: in_fixed_order(as_object(each)) for name, each in parts}
    names = whole.get("required")
    properties = list(whole.get("properties") or ())
    if isinstance(names, list):
        known = [name for name in properties if name in names]
        whole["required"] = [*known, *sorted({*names} - {*properties})]
    choices = whole.get("enum")
    if isinstance(choices, list) and all(isinstance(choice, str) for choice in choices):
        whole["enum"] = sorted(choices)
    return whole
