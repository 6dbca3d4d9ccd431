"""ToolProviderProtocol, errors, legal names, confirm hints."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, runtime_checkable

from sayso.agent.tools.definition import ToolTag
from sayso.agent.tools.errors import EffectUnknownError, ToolError, ToolExecutionError
from sayso.agent.tools.results import ToolOutcome
from sayso.agent.tools.schema_arguments import draft_of, linear_search
from sayso.agent.tools.tool import Tool


class SourceError(ToolError):
    """Raised when a source cannot be used as it is."""


class SourceUnreachable(SourceError):
    """Raised when a source does not answer at all; nothing was asked of it."""


class CallRefused(SourceError):
    """Raised when a source was asked and refused."""


class AnswerLost(SourceError):
    """Raised when a source was asked and no answer came."""


#: Answers of a server that broke off, or of a gateway that had none from it: what was asked may have been done.
UNCLEAR_STATUSES = (500, 502, 504)


#: Characters of what is taken for a secret: anything shorter is in every text.
MIN_SECRET_CHARS = 4


def scrub(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets: what a server answers may repeat what it was sent."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "[hidden]") if len(secret) >= MIN_SECRET_CHARS else text
    return text


def scrub_value(value: Any, secrets: Iterable[str]) -> Any:
    """The same of a JSON value, in all its texts: there a secret may have been written in other characters."""
    hidden = [*secrets]
    if isinstance(value, str):
        return scrub(value, hidden)
    if isinstance(value, dict):
        return {scrub(str(name), hidden): scrub_value(each, hidden) for name, each in value.items()}
    return [scrub_value(each, hidden) for each in value] if isinstance(value, list) else value


#: Characters of a name that every vendor accepts.
MAX_NAME_CHARS = 64


#: Characters of the digest that keeps two names apart.
DIGEST_CHARS = 8


#: Tools that are taken from one source; more would leave a model no room to choose.
MAX_TOOLS = 256


#: Characters of a description that reach the model.
MAX_DESCRIPTION_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of a source's tools are taken: shell patterns over the source's own names; no `include` means all."""

    include: Sequence[str] | None = None
    exclude: Sequence[str] = ()

    def takes(self, name: str) -> bool:
        """Whether the tool of this name is taken."""
        return (self.include is None or matches(self.include, name)) and not matches(self.exclude, name)


def matches(patterns: Sequence[str], *names: str) -> bool:
    """Whether one of the names matches one of the shell patterns."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def legal_names(names: Sequence[str], namespace: str = "") -> dict[str, str]:
    """For each name its legal one, with the namespace in front, no two alike, whatever the order they come in.

    A name that is legal keeps it. One that is not, and whose legal form is another's too, gets a digest.
    """
    whole = {name: f"{namespace}-{name}" if namespace else name for name in names}
    plain = {name: re.sub(r"[^A-Za-z0-9_-]", "_", text) or "_" for name, text in whole.items()}
    held = Counter(text[:MAX_NAME_CHARS] for text in plain.values())
    return {name: _distinct(text, whole[name], held[text[:MAX_NAME_CHARS]] > 1) for name, text in plain.items()}


def _distinct(plain: str, whole: str, is_shared: bool) -> str:
    fits = len(plain) <= MAX_NAME_CHARS
    if fits and (plain == whole or not is_shared):
        return plain
    return f"{plain[: MAX_NAME_CHARS - DIGEST_CHARS - 1]}-{digest(whole)}"


def digest(value: Any) -> str:
    """A short hash of anything JSON-able: another definition has another one."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]


def described(text: str | None, name: str) -> str:
    """A description within bounds; a tool without one is described by its name."""
    text = (text or "").strip() or f"The tool {name!r}; its source does not describe it."
    return text if len(text) <= MAX_DESCRIPTION_CHARS else text[: MAX_DESCRIPTION_CHARS - 3] + "..."


#: `hints`: those that the source itself calls destructive, where no rule of a policy names them. `always`: all.
#: `never`: none because of a hint. Patterns: those whose names match, besides the hints.
Confirm = Literal["hints", "always", "never"] | Sequence[str]


def requires_confirmation(tool: Tool, own_name: str, confirm: Confirm) -> Tool:
    """The tool, told whether it asks first. Patterns match its own name or the one it has here."""
    if confirm == "hints":
        return tool
    if confirm == "never":
        tags = tool.metadata.tags - {ToolTag.DESTRUCTIVE}
        return replace(tool, metadata=replace(tool.metadata, tags=tags))
    if confirm == "always" or matches(confirm, own_name, tool.name):
        return replace(tool, requires_approval=True)
    return tool


def idle(confirm: Confirm, names: Collection[str]) -> list[str]:
    """The patterns that match none of these names: whoever wrote them rests on what asks nobody."""
    patterns = () if isinstance(confirm, str) else confirm
    return [pattern for pattern in patterns if not any(matches([pattern], name) for name in names)]


#: Doublings after which any pause is at its longest; a number that grows for days could be held by nothing.
_MAX_DOUBLINGS = 32


def pause_seconds(failures: int, first: float, longest: float) -> float:
    """`first`, doubled with each failure before this one, and at most `longest`."""
    return min(first * 2.0 ** min(failures, _MAX_DOUBLINGS), longest)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnclearOutcome(ToolOutcome):
    """The outcome of a call that was made and never answered: it may have taken effect."""


@runtime_checkable
class ToolProviderProtocol(Protocol):
    """Provides and executes tools (seed). Its methods may be called from any event loop."""

    async def list_tools(self) -> list[Tool]:
        """The definitions of all tools. Raises ToolError when the provider cannot be asked."""
        ...

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Run one tool. What its provider knows to have failed is an outcome, never an exception."""
        ...


def provided(
    provider: ToolProviderProtocol, tools: Iterable[Tool], namespace: str = "", confirm: Confirm = "hints"
) -> list[Tool]:
    """The listed definitions as tools that can be run: each calls `provider.execute_tool` by its listed name.

    `namespace` goes before every name, as in `files-read`; `confirm` says which ask first. A provider whose source
    calls its tools otherwise than it lists them has a method `own_name`, from the listed name to the source's own.
    """
    listed = list(tools)
    names = legal_names([tool.name for tool in listed], namespace)
    own_name: Callable[[str], str] = getattr(provider, "own_name", lambda name: name)
    own = {tool.name: own_name(tool.name) for tool in listed}
    if unused := idle(confirm, [*own.values(), *names.values()]):
        log.warning("source.confirm_matches_nothing", extra={"source": _name(provider), "patterns": unused})
    return [
        requires_confirmation(
            called(replace(tool, function=_calls(provider, tool)), names[tool.name], namespace), own[tool.name], confirm
        )
        for tool in listed
    ]


def called(tool: Tool, name: str, namespace: str) -> Tool:
    """The tool by its name here, in front of which the namespace stands as its operator wrote it."""
    if not namespace:
        return replace(tool, name=name)
    return replace(tool, name=name, namespace=namespace, method_name=name.removeprefix(f"{namespace}-"))


def _name(provider: ToolProviderProtocol) -> str:
    return str(getattr(provider, "name", "")) or type(provider).__name__


def _calls(provider: ToolProviderProtocol, tool: Tool) -> Callable[..., Coroutine[Any, Any, Any]]:
    #: None is how these are not given; their schemas have no null.
    unset = {each.name for each in tool.parameters if not each.required and each.default is None}
    omissible = unset if tool.input_schema is None else set()

    async def call(**parameters: Any) -> Any:
        given = {name: value for name, value in parameters.items() if value is not None or name not in omissible}
        outcome = await provider.execute_tool(tool.name, given)
        if not outcome.success:
            kind = EffectUnknownError if isinstance(outcome, UnclearOutcome) else ToolExecutionError
            raise kind(outcome.error or f"{tool.name!r} failed without saying why", tool_name=tool.name)
        return outcome.result

    return call


#: Characters of a tool's schema: more would fill a model's window at every question.
MAX_SCHEMA_CHARS = 30_000


#: Patterns of a schema that are looked at; the server has the others to itself. One may take a tenth of a second.
MAX_PATTERNS = 20


#: Levels of a schema that are read.
MAX_DEPTH = 40


#: Keywords that only say where a schema lives; with them a local reference could become one to the network.
_ADDRESSES = ("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment")


#: Names by pattern are left to the server: matching them could take for ever, and the others hang on them.
_BY_PATTERN = ("patternProperties", "additionalProperties", "unevaluatedProperties")


#: Keywords whose values are data, not schemas.
_DATA = ("default", "enum", "const", "examples")


#: The drafts of JSON Schema before the present one, as schemas name them.
_DRAFTS = tuple(f"http://json-schema.org/draft-0{number}/schema{end}" for number in (4, 6, 7) for end in ("#", ""))


class UnusableSchema(ValueError):
    """Raised when arguments cannot be checked by a schema; the message says why."""


def safe_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments as an object schema without anything to fetch. Raises UnusableSchema."""
    cleaned = _cleaned(schema, 0, lambda _: True)
    if cleaned.get("type", "object") != "object":
        raise UnusableSchema(f"its arguments are of type {cleaned['type']!r}, not an object")
    if len(json.dumps(cleaned, default=str)) > MAX_SCHEMA_CHARS:
        raise UnusableSchema(f"its schema has more than {MAX_SCHEMA_CHARS} characters")
    cleaned = _cleaned(cleaned, 0, _Linear())  # not before its size is known: patterns take long
    if schema.get("$schema") in _DRAFTS:  # an older draft means some words otherwise
        cleaned["$schema"] = schema["$schema"]
    _check_form(cleaned)
    # `true` is a schema too: anything. Whoever shows parameters to a model expects an object.
    properties = {name: each if isinstance(each, dict) else {} for name, each in cleaned.get("properties", {}).items()}
    return {**cleaned, "type": "object", "properties": properties}


def _check_form(schema: dict[str, Any]) -> None:
    import jsonschema

    try:
        draft_of(schema).check_schema(schema)
    except jsonschema.SchemaError as exc:
        where = "/".join(map(str, exc.absolute_path)) or "its top"
        raise UnusableSchema(f"its schema is none: at {where}, {exc.validator} is broken") from exc


def _cleaned(value: Any, depth: int, takes: Callable[[Any], bool], *, is_map: bool = False) -> Any:
    if depth > MAX_DEPTH:
        raise UnusableSchema(f"its schema is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list | tuple):
        return [_cleaned(each, depth + 1, takes) for each in value]
    if not isinstance(value, Mapping):
        return value
    if is_map:  # names of parameters, which may well be `id`
        return {str(name): _cleaned(each, depth + 1, takes) for name, each in value.items()}
    _check(value)
    dropped = _ADDRESSES if "patternProperties" not in value else (*_ADDRESSES, *_BY_PATTERN)
    cleaned = {
        key: each
        if key in _DATA
        else _cleaned(each, depth + 1, takes, is_map=key in ("properties", "$defs", "definitions", "dependentSchemas"))
        for key, each in value.items()
        if key not in dropped and not (key == "pattern" and not takes(each))
    }
    return {**cleaned, "additionalProperties": True} if "patternProperties" in value else cleaned


def _check(schema: Mapping[str, Any]) -> None:
    for key in ("$ref", "$dynamicRef", "$recursiveRef"):
        target = schema.get(key, "#")
        if not (isinstance(target, str) and target.startswith("#")):
            raise UnusableSchema(f"its schema refers to {target!r}, and nothing is fetched")


class _Linear:
    """Which patterns are taken: the first ones that can be matched without going back and forth, which some make last
    for ever. Others are left to the server.
    """

    def __init__(self) -> None:
        self._left = MAX_PATTERNS

    def __call__(self, pattern: Any) -> bool:
        self._left -= 1
        return self._left >= 0 and isinstance(pattern, str) and linear_search(pattern) is not None
