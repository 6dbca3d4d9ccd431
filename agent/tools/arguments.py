"""The arguments of one call, checked against the type hints of a tool's parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from sayso.agent.tools.errors import ToolError, ToolParameterError, nearest
from sayso.agent.tools.json_schema import thawed
from sayso.agent.tools.parameter import ParameterModel, ToolParameter

#: Longest value that an error quotes to the model, in characters.
MAX_QUOTED_CHARS = 80
#: Most problems that one error lists: a list of a thousand wrong numbers has one problem.
MAX_ISSUES = 10
#: The problem of text with a lone surrogate.
LONE_SURROGATE = "it holds half a character (a lone surrogate), which no UTF-8 can hold"
#: The problem of a required parameter that is left out (seed: Parameter Validation).
MISSING = "Missing required parameter"


class ValidatedArguments:
    """The arguments of one call. The function is called with `values` once, and may change them."""

    __slots__ = ("_json", "_to_json", "values")

    def __init__(self, values: dict[str, Any], to_json: Callable[[], dict[str, Any]]) -> None:
        self.values = values
        self._to_json = to_json
        self._json: dict[str, Any] | None = None

    @property
    def json(self) -> dict[str, Any]:
        """The arguments as exact JSON values. Read it before the call begins. Raises ToolParameterError."""
        if self._json is None:
            self._json = self._to_json()
        return self._json


class TypedArguments:
    """Checks the arguments of one tool by type hints. Compiled once; a call costs one pass of the validator."""

    def __init__(self, tool_name: str, parameters: Sequence[ToolParameter]) -> None:
        """Raises ToolValidationError for a type hint that no JSON can fill."""
        compiled = ParameterModel(tool_name, parameters)
        self._tool_name = tool_name
        self._parameters = compiled.parameters
        self._renamed = compiled.renamed
        self._internal_defaults = compiled.internal_defaults
        self.model = compiled.model
        self.schema = compiled.schema
        self._validate: Callable[[Any], BaseModel] = self.model.__pydantic_validator__.validate_python

    def read(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as Python values, with defaults filled in. Raises ToolParameterError."""
        return self._values(self._validated(params))

    def check(self, params: Mapping[str, Any]) -> ValidatedArguments:
        """Return the arguments for one call, as Python values and as JSON. Raises ToolParameterError."""
        validated = self._validated(params)
        return ValidatedArguments(self._values(validated), partial(self._as_json, validated))

    def read_json(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as exact JSON values. Raises ToolParameterError."""
        return self._as_json(self._validated(params))

    def read_record(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as JSON values that read as the same Python values later.

        Raises ToolParameterError for values that JSON does not preserve, and for a validator that changes a value each
        time it reads it.
        """
        validated = self._validated(params)
        recorded = self._as_json(validated)
        before, after = self._values(validated), self._values(self._validated(recorded))
        changed = [name for name in recorded if not _is_same(before[name], after[name])]
        if changed:
            raise ToolParameterError(
                tool_name=self._tool_name,
                param_name=", ".join(changed),
                issue=f"{changed!r} cannot be recorded: what is written down of it reads as something else",
                suggestion="give it a type that JSON can hold, or do without a review",
            )
        return recorded

    def _values(self, validated: BaseModel) -> dict[str, Any]:
        if not self._renamed:
            return validated.__dict__
        return {self._renamed.get(name, name): value for name, value in validated.__dict__.items()}

    def _as_json(self, validated: BaseModel) -> dict[str, Any]:
        omitted = self._internal_defaults - validated.model_fields_set
        try:
            return validated.model_dump(mode="json", by_alias=True, exclude=set(omitted), warnings=False)
        except Exception as exc:  # a value that JSON lacks, or a serializer written by the tool's author
            raise self._unusable(f"cannot be written down: {exc}") from exc

    def _validated(self, params: Mapping[str, Any]) -> BaseModel:
        try:
            try:
                return self._validate(params)
            except ValidationError as exc:
                return self._repaired(params, exc)
        except ToolError:
            raise
        except Exception as exc:  # a validator written by the tool's author, or nesting deeper than Python's limit
            raise self._unusable(f"cannot be checked: {type(exc).__name__}: {exc}") from exc

    def _repaired(self, params: Mapping[str, Any], error: ValidationError) -> BaseModel:
        """Validate again without the nulls that were refused: a strict schema makes models fill in everything.

        A null in a required argument stays an error. A whole number written as 1e20 becomes an integer.
        """
        if not isinstance(params, Mapping):
            raise self._refusal(error)
        repaired = thawed(dict(params))
        for issue in error.errors(include_url=False, include_context=False):
            parameter = self._parameters.get(str(issue["loc"][0]))
            is_optional = len(issue["loc"]) > 1 or (parameter is not None and not parameter.required)
            if issue["input"] is None and is_optional:
                _repair(repaired, issue["loc"])
            elif issue["type"] == "int_parsing_size" and isinstance(issue["input"], float):
                _repair(repaired, issue["loc"], int(issue["input"]))
        try:
            return self._validate(repaired)
        except ValidationError as exc:
            raise self._refusal(exc) from exc

    def _refusal(self, error: ValidationError) -> ToolParameterError:
        expected = {name: bool(each.required) for name, each in self._parameters.items()}
        return refusal(self._tool_name, [_mistake(issue) for issue in error.errors(include_url=False)], expected)

    def _unusable(self, why: str) -> ToolParameterError:
        return ToolParameterError(tool_name=self._tool_name, issue=f"its arguments {why}")


def _repair(value: Any, path: Sequence[Any], replacement: Any = None) -> None:
    """Replace the refused value at a path, or delete it. Parts that name a member of a union are skipped."""
    parent: Any = None
    key: Any = None
    for part in path:
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and part in range(len(value))):
            parent, key, value = value, part, value[part]
    if replacement is not None and value == replacement and parent is not None:
        parent[key] = replacement
    elif value is None and isinstance(parent, dict):
        del parent[key]


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal. Values of a type that compares by identity count as equal."""
    compares = any("__eq__" in vars(each) for each in type(one).__mro__ if each is not object)
    return bool(one == other) or (type(one) is type(other) and not compares)


class Mistake(NamedTuple):
    """One problem of a call: the parameter's path, the problem, and what to try instead."""

    path: str
    #: "" for a parameter that does not exist.
    problem: str
    cure: str = ""


def refusal(tool_name: str, mistakes: Sequence[Mistake], expected: Mapping[str, bool]) -> ToolParameterError:
    """Return the error of a call: its problems, how to correct them, and the parameters the tool expects.

    `expected` says for each parameter whether it is required.
    """
    described = [_described(each, expected) for each in mistakes]
    issue = "; ".join(problem for problem, _ in described[:MAX_ISSUES])
    issue += f"; and {len(described) - MAX_ISSUES} more" if len(described) > MAX_ISSUES else ""
    cures = "; ".join(cure for _, cure in described[:MAX_ISSUES] if cure)
    is_missing = any(each.problem == MISSING and each.path in expected for each in mistakes)
    required = _listed("Required", (name for name, is_required in expected.items() if is_required))
    suggestion = [cures, required if is_missing else "", _listed("Expected", expected)]
    return ToolParameterError(
        tool_name=tool_name,
        param_name=", ".join(each.path for each in mistakes[:MAX_ISSUES]),
        issue=issue,
        suggestion="\n".join(filter(None, suggestion)),
    )


def _described(mistake: Mistake, known: Collection[str]) -> tuple[str, str]:
    """Return a mistake in words, and its cure."""
    name = quoted(mistake.path)
    if mistake.problem == MISSING:
        return f"{MISSING}: {name}", mistake.cure
    if mistake.problem:
        return f"{name} {mistake.problem}", mistake.cure
    close = nearest(mistake.path, known)
    cure = f"{name} -> Did you mean {close!r}?" if close else f"{name} is not a valid parameter"
    return f"Unexpected parameter(s): {name}", cure


def _listed(kind: str, names: Iterable[str]) -> str:
    return f"{kind} parameters: {', '.join(map(repr, names)) or 'none'}"


def cure_of_type(path: str, value: Any, wanted: type) -> str:
    """Return what to try for a value of the wrong type, as the seed writes it.

    A number or boolean that should be text can be sent as text. The other way round needs no cure: text that reads as a
    number is accepted.
    """
    if wanted is str and isinstance(value, int | float):
        return f"Try: {path}=str({quoted(value)})"
    return f"Expected type: {wanted.__name__}"


def quoted(value: Any) -> str:
    """Return a value as an error shows it, cut after MAX_QUOTED_CHARS."""
    try:
        text = repr(value[: MAX_QUOTED_CHARS + 1] if isinstance(value, str) else value)
    except Exception:  # nested too deep, or a number of too many digits
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "..."


#: The type that belongs there, by the type of pydantic's issue.
_WANTED: Mapping[str, type] = {
    **{f"{name}_type": kind for name, kind in [("string", str), ("list", list), ("dict", dict)]},
    **{f"{kind.__name__}_{how}": kind for kind in (int, float, bool) for how in ("type", "parsing", "from_float")},
}


def _mistake(issue: Mapping[str, Any]) -> Mistake:
    """Return pydantic's issue as a mistake."""
    path, value, is_top_level = issue["loc"], issue["input"], len(issue["loc"]) == 1
    if issue["type"] == "extra_forbidden" and is_top_level:
        problem = ""
    elif issue["type"] == "missing":
        problem = MISSING
    elif issue["type"] == "string_unicode":
        problem = f"is {quoted(value)}: {LONE_SURROGATE}"
    else:
        problem = f"is {quoted(value)}: {issue['msg']}"
    name = ".".join(map(str, path)) or "parameters"
    # Below the top level, a path may name a part of a union, which a call cannot give.
    wanted = _WANTED.get(issue["type"]) if is_top_level else None
    return Mistake(name, problem, cure_of_type(name, value, wanted) if wanted else "")
