"""What all sources of tools share: their interface, errors, legal names and safe schemas.

A source of tools is an MCP server, an OpenAPI document, or Python functions in this process. A tool
provider (`ToolProviderProtocol`) lists the tools of one source and runs them. `runnable_tools`
makes tools of what a provider lists, so that an agent can run them like any other tool.

A schema that comes from a foreign server is untrusted. `safe_schema` makes one by which arguments
can be checked without any harm.

SourceError
├── SourceUnreachable  the source does not answer; no call was sent
├── CallRefused        the source refused the call
└── AnswerLost         the call was sent, and no answer came
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
from itertools import product
from typing import Any, Literal, Protocol, runtime_checkable

from sayso.agent.tools.definition import ToolTag
from sayso.agent.tools.errors import EffectUnknownError, ToolError, ToolExecutionError
from sayso.agent.tools.json_schema import DEFINITIONS, as_object, each_part
from sayso.agent.tools.json_validation import draft_of, linear_search
from sayso.agent.tools.previews import Preview
from sayso.agent.tools.registry import ToolRegistry
from sayso.agent.tools.result_texts import ToolOutcome
from sayso.agent.tools.tool import Tool

log = logging.getLogger(__name__)
#: Most tools of one source. More of them would fill the context of a model.
MAX_TOOLS = 256
#: Longest description that reaches the model, in characters.
MAX_DESCRIPTION_CHARS = 2000
#: Longest tool name that every vendor accepts, in characters.
MAX_NAME_CHARS = 64
#: Length of the digest in a tool's name that tells it from a similar one, in characters.
DIGEST_CHARS = 8
#: Shortest value that is treated as a secret, in characters: anything shorter occurs in every text.
MIN_SECRET_CHARS = 4
#: HTTP statuses of a server that broke off, or of a gateway without an answer: the request may have
#: taken effect.
UNCLEAR_STATUSES = (500, 502, 504)
#: Largest JSON Schema of a tool, in characters: a larger one would fill the model's context at
#: every call.
MAX_SCHEMA_CHARS = 30_000
#: Most regular expressions of a schema that Sayso checks arguments with; the server checks the
#: others. To find out whether one is safe may take a tenth of a second.
MAX_PATTERNS = 20
#: Deepest nesting of a schema that is read, in levels.
MAX_DEPTH = 40


class SourceError(ToolError):
    """Raised when a source of tools cannot be used; the message names the cure."""


class SourceUnreachable(SourceError):
    """Raised when a source does not answer at all; no call was sent."""


class CallRefused(SourceError):
    """Raised when a source refused a call."""


class AnswerLost(SourceError):
    """Raised when a call was sent and no answer came."""


@dataclass(frozen=True, slots=True)
class UnclearOutcome(ToolOutcome):
    """The outcome of a call that was sent and never answered: it may have taken effect."""


def failed_outcome(error: str) -> ToolOutcome:
    """Return the outcome of a call that failed. `error` says why, in words for the model."""
    return ToolOutcome(success=False, error=error)


@runtime_checkable
class ToolProviderProtocol(Protocol):
    """Lists and runs the tools of one source. Its methods may be called from any event loop.

    Three methods are optional, see `runnable_tools`: `own_name`, `own_preview` and
    `execute_listed`.
    """

    async def list_tools(self) -> list[Tool]:
        """Return the definitions of all tools.

        Raises ToolError when the provider does not answer.
        """
        ...

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Run one tool by its listed name.

        A failure that the provider knows of is an outcome, never an exception.
        """
        ...


class PythonToolProvider:
    """Lists and runs tools of this process.

    `tools` are Tools and plain typed functions, or a ToolRegistry, whose present contents count.
    """

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
            return failed_outcome(f"Tool '{tool_name}' not found. Available tools: {list(tools)}")
        try:
            result = await tools[tool_name].ainvoke(parameters)
        except ToolError as exc:
            return failed_outcome(str(exc))
        return ToolOutcome(success=True, result=result)


class MockToolProvider:
    """Answers each call with a prepared result, and records the calls. For tests.

    `results` has the results by the names of the tools. An exception among them becomes a failure
    with its text. `call_history` has the name and the arguments of each call, oldest first.
    """

    def __init__(self, tools: Sequence[Tool], results: Mapping[str, Any]) -> None:
        self.tools = list(tools)
        self.results = results
        self.call_history: list[tuple[str, dict[str, Any]]] = []

    async def list_tools(self) -> list[Tool]:
        """Return the tools that the constructor got."""
        return self.tools

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Record the call, and return the result prepared for this tool."""
        self.call_history.append((tool_name, parameters))
        if tool_name not in self.results:
            return failed_outcome(f"Tool {tool_name} not mocked")
        result = self.results[tool_name]
        if isinstance(result, Exception):
            return failed_outcome(str(result))
        return ToolOutcome(success=True, result=result)


#: Which tools of a source need a confirmation.
#:
#: * "hints": those that the source calls destructive, where no rule of a policy names them
#: * "always": all
#: * "never": none; the hints of the source are ignored
#: * patterns of names: those that match, and those that "hints" would choose
Confirm = Literal["hints", "always", "never"] | Sequence[str]


def runnable_tools(
    provider: ToolProviderProtocol,
    tools: Iterable[Tool],
    namespace: str = "",
    confirm: Confirm = "hints",
) -> list[Tool]:
    """Return tools that an agent can run, for the `tools` that a provider listed.

    Each runs through its provider, by its listed name. `namespace` is put before every name, as in
    `files-read`; "" for none. `confirm` says which tools need a confirmation.

    A tool may have three names: the source's own name, the *listed* one under which its provider
    lists it, and the *shown* one that models see, which is legal at every vendor. Three methods of
    a provider are optional:

    * `own_name(listed_name)` returns the source's name, if the listed name is another one.
    * `own_preview(listed_name, shown_name)` returns a preview for the question, or None.
    * `execute_listed(tool, parameters)` runs a tool in place of `execute_tool`. It gets the Tool
      that was listed, so it can refuse a tool that has changed since.
    """
    listed = list(tools)
    names = legal_names([tool.name for tool in listed], namespace)
    own_name: Callable[[str], str] = getattr(provider, "own_name", lambda name: name)
    own_names = {tool.name: own_name(tool.name) for tool in listed}
    own_preview: Callable[[str, str], Preview | None]
    own_preview = getattr(provider, "own_preview", lambda *_: None)

    # A misspelled pattern would leave a dangerous tool without its confirmation.
    patterns = () if isinstance(confirm, str) else confirm
    all_names = (*own_names.values(), *names.values())
    unused = [each for each in patterns if not _matches([each], *all_names)]
    if unused:
        source = str(getattr(provider, "name", "")) or type(provider).__name__
        log.warning("source.confirm_matches_nothing", extra={"source": source, "patterns": unused})

    runnable = []
    for tool in listed:
        shown_name = names[tool.name]
        preview = own_preview(tool.name, shown_name) or tool.preview
        with_function = replace(tool, function=_caller(provider, tool), preview=preview)
        shown = renamed(with_function, shown_name, namespace)
        runnable.append(with_confirmation(shown, own_names[tool.name], confirm))
    return runnable


#: Runs a tool as it was listed, or fails if it has changed since.
ExecuteListed = Callable[[Tool, dict[str, Any]], Coroutine[Any, Any, ToolOutcome]]


def _caller(provider: ToolProviderProtocol, tool: Tool) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a function that runs the tool through its provider, and raises if it fails.

    It raises ToolExecutionError, or EffectUnknownError if the call may have taken effect.
    """
    # An optional parameter without a default arrives as None if the model left it out, so it is not
    # passed on. A JSON Schema says by itself what null means.
    omitted_if_none: set[str] = set()
    if tool.input_schema is None:
        omitted_if_none = {
            each.name for each in tool.parameters if not each.required and each.default is None
        }

    execute_listed: ExecuteListed | None = getattr(provider, "execute_listed", None)

    async def call(**parameters: Any) -> Any:
        arguments = {
            name: value
            for name, value in parameters.items()
            if value is not None or name not in omitted_if_none
        }
        if execute_listed is not None:
            outcome = await execute_listed(tool, arguments)
        else:
            outcome = await provider.execute_tool(tool.name, arguments)

        if outcome.success:
            return outcome.result
        error_type = ToolExecutionError
        if isinstance(outcome, UnclearOutcome):
            error_type = EffectUnknownError
        reason = outcome.error or f"{tool.name!r} failed without saying why"
        raise error_type(reason, tool_name=tool.name)

    return call


def renamed(tool: Tool, name: str, namespace: str) -> Tool:
    """Return the tool under this name, which begins with the namespace unless that is ""."""
    if not namespace:
        return replace(tool, name=name)
    method_name = name.removeprefix(f"{namespace}-")
    return replace(tool, name=name, namespace=namespace, method_name=method_name)


def with_confirmation(tool: Tool, own_name: str, confirm: Confirm) -> Tool:
    """Return the tool with the confirmation that `confirm` demands.

    Patterns in `confirm` match the source's name of the tool, `own_name`, or the name of the tool.
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
    """Selects tools of a source by shell patterns over the source's own names."""

    #: The tools to select; None for all.
    include: Sequence[str] | None = None
    #: The tools never to select, also if `include` matches them.
    exclude: Sequence[str] = ()

    def accepts(self, name: str) -> bool:
        """Return whether the tool of this name is selected."""
        if _matches(self.exclude, name):
            return False
        return self.include is None or _matches(self.include, name)


def _matches(patterns: Sequence[str], *names: str) -> bool:
    """Return whether any of the patterns matches any of the names."""
    return any(fnmatchcase(name, pattern) for name, pattern in product(names, patterns))


def legal_names(names: Sequence[str], namespace: str = "") -> dict[str, str]:
    """Return for each name a unique one that every vendor accepts, with the namespace before it.

    A legal name does not change. In any other name each illegal character becomes an underscore; if
    another name then has the same form, a digest is appended. A name that is too long is cut, and a
    digest appended. The result does not depend on the order of the names.
    """
    prefix = f"{namespace}-" if namespace else ""
    full_names = {name: f"{prefix}{name}" for name in names}

    # Gemini takes no name that begins with a digit or a hyphen: an underscore goes before it.
    illegal = r"[^A-Za-z0-9_-]|^(?![A-Za-z_])"
    legal = {name: re.sub(illegal, "_", text) for name, text in full_names.items()}

    counts = Counter(text[:MAX_NAME_CHARS] for text in legal.values())
    unique = {}
    for name, text in legal.items():
        is_unique = text == full_names[name] or counts[text] == 1
        if len(text) > MAX_NAME_CHARS or not is_unique:
            beginning = text[: MAX_NAME_CHARS - DIGEST_CHARS - 1]
            unique[name] = f"{beginning}-{digest(full_names[name])}"
        else:
            unique[name] = text
    return unique


def digest(value: Any) -> str:
    """Return a short hash of any JSON-able value, to tell two versions of a definition apart."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]


def bounded_description(text: str | None, name: str) -> str:
    """Return the description of a tool, cut to MAX_DESCRIPTION_CHARS.

    A tool without a description is described by its name.
    """
    description = (text or "").strip()
    if not description:
        description = f"The tool {name!r}; its source does not describe it."
    if len(description) <= MAX_DESCRIPTION_CHARS:
        return description
    return description[: MAX_DESCRIPTION_CHARS - 3] + "..."


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Return the text without these secrets: a server's answer may repeat what it was sent."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= MIN_SECRET_CHARS:
            text = text.replace(secret, "[hidden]")
    return text


def scrub_value(value: Any, secrets: Sequence[str]) -> Any:
    """Return a JSON value without these secrets in its texts.

    Scrub the value rather than its JSON, which may spell a secret with escapes.
    """
    return map_texts(value, lambda text: scrub(text, secrets))


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with `change` applied to all its texts and names."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(str(name)): map_texts(each, change) for name, each in value.items()}
    if isinstance(value, list):
        return [map_texts(each, change) for each in value]
    return value


class UnusableSchema(ValueError):
    """Raised when arguments cannot be checked by a schema; the message says why."""


#: Keywords that only locate a schema. They could turn a local reference into one to the network.
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
#: Keywords that only the server checks: matching names by pattern could take forever, and the other
#: two depend on it.
_PATTERN_KEYWORDS = ("patternProperties", "additionalProperties", "unevaluatedProperties")
#: Keywords that hold schemas by name. Such a name may look like a keyword, such as `id`.
_NAMED_KEYWORDS = ("properties", "$defs", "definitions", "dependentSchemas")
#: Keywords that hold data, not schemas.
_DATA_KEYWORDS = ("default", "enum", "const", "examples")
#: The earlier drafts of JSON Schema, as schemas name them.
_EARLIER_DRAFTS = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-04/schema",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-07/schema",
)


def safe_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments in a form by which they can be checked safely.

    It is a valid schema of an object that refers to nothing outside itself. Regular expressions
    that could take forever are left out; the server checks them. Raises UnusableSchema, with the
    reason.
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

    # Only after the check of the size, because reading patterns takes long.
    cleaned = _cleaned(cleaned, 0, is_linear)
    # In an earlier draft some keywords mean something else, so it stays named.
    if schema.get("$schema") in _EARLIER_DRAFTS:
        cleaned["$schema"] = schema["$schema"]

    # Formats are not checked: Python's `re` refuses some patterns that are searched in linear time,
    # such as `\p{L}` for a letter.
    no_formats = jsonschema.FormatChecker(())
    try:
        draft_of(cleaned).check_schema(cleaned, format_checker=no_formats)
    except jsonschema.SchemaError as exc:
        where = "/".join(map(str, exc.absolute_path)) or "its top"
        raise UnusableSchema(f"its schema is none: at {where}, {exc.validator} is broken") from exc

    # The schema `true` allows any value. Vendors' APIs expect an object there; {} means the same.
    properties = {
        name: each if isinstance(each, dict) else {}
        for name, each in cleaned.get("properties", {}).items()
    }
    return {**cleaned, "type": "object", "properties": properties}


def _cleaned(
    value: Any, depth: int, accepts_pattern: Callable[[Any], bool], *, is_named: bool = False
) -> Any:
    """Return a part of a schema without keywords that are unsafe to evaluate.

    `depth` is the level of the part, from 0. With `is_named` the part holds schemas by name, so its
    keys are not keywords. `accepts_pattern` returns whether a regular expression may stay. Raises
    UnusableSchema.
    """
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
    """Return a safe schema whose lists have a fixed order, if their order means nothing.

    Many servers make `required` and `enum` from a set, in another order at each start, and the
    prompt cache of a vendor needs identical bytes. The properties keep their order, because a model
    writes its arguments in it.
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
