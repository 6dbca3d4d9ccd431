"""Arguments by type hints."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import PydanticJsonSchemaWarning
from pydantic_core import SchemaError, to_jsonable_python

from sayso.agent.tools.errors import ToolError, ToolParameterError, ToolValidationError, nearest
from sayso.agent.tools.parameter import ToolParameter, default_description
from sayso.agent.tools.schema.json_schema import frozen, plain, thawed
from sayso.agent.tools.signature import HintsSchema


class Checked:
    """Lives as long as its call. `values` are what the function is called with, once: it may change them."""

    __slots__ = ("_json", "_write", "values")

    def __init__(self, values: dict[str, Any], write: Callable[[], dict[str, Any]]) -> None:
        self.values = values
        self._write = write
        self._json: dict[str, Any] | None = None

    @property
    def json(self) -> dict[str, Any]:
        """The same as exact JSON values; ask before the call begins. Raises ToolParameterError."""
        if self._json is None:
            self._json = self._write()
        return self._json


#: Longest value an error quotes back to the model.
MAX_QUOTED_CHARS = 80


#: Things that are wrong with one call that are told: a list of a thousand wrong numbers is wrong in one way.
MAX_ISSUES = 10


#: How pydantic's schemas mark what must not be shown again: SecretStr and its kin.
_MASKED = '"writeOnly": true'


#: What is wrong with text that ends in the middle of a pair of surrogates, or begins there.
HALF_A_CHARACTER = "it holds half a character (a lone surrogate), which no UTF-8 can hold"


#: Names of fields that stand for parameters whose names pydantic keeps for itself.
_STAND_IN = re.compile(r"p\d+_")


class TypedArguments:
    """The arguments of one tool. Compiled once; a call costs one pass of the validator."""

    def __init__(self, tool_name: str, parameters: Sequence[ToolParameter]) -> None:
        """Raises ToolValidationError when a hint is one that no JSON can fill."""
        self._tool_name = tool_name
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self.model = _model(tool_name, parameters)
        self._renamed = {name: str(field.alias) for name, field in self.model.model_fields.items() if field.alias}
        self._validator = self.model.__pydantic_validator__
        self._validate = self._validator.validate_python
        self._unsaid = frozenset(self._defaults_that_json_lacks())
        self.schema: dict[str, Any] = frozen(self._plain_schema())

    def read(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as Python values, with defaults filled in. Raises ToolParameterError."""
        validated = self._checked(params)
        return self._named(validated) if self._renamed else validated.__dict__

    def check(self, params: Mapping[str, Any]) -> Checked:
        """The same, and what is to be known of them before the call. Raises ToolParameterError."""
        validated = self._checked(params)
        values = self._named(validated) if self._renamed else validated.__dict__
        return Checked(values, partial(self._as_json, validated))

    def read_json(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The same as exact JSON values. Raises ToolParameterError."""
        return self._as_json(self._checked(params))

    def read_record(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """As `read_json`, for arguments that are to be read once more later: they must be the same then.

        Raises ToolParameterError for what JSON does not keep, and for a validator that changes what it has read.
        """
        validated = self._checked(params)
        written = self._as_json(validated)
        before, after = self._named(validated), self._named(self._checked(written))
        changed = [name for name in written if not _is_same(before[name], after[name])]
        if changed:
            issue = f"{changed!r} cannot be recorded: what is written down of it reads as something else"
            cure = "give it a type that JSON can hold, or do without a review"
            raise ToolParameterError(
                tool_name=self._tool_name, param_name=", ".join(changed), issue=issue, suggestion=cure,
            )  # fmt: skip
        return written

    def _as_json(self, validated: BaseModel) -> dict[str, Any]:
        unsaid = self._unsaid - validated.model_fields_set
        try:
            return validated.model_dump(mode="json", by_alias=True, exclude=set(unsaid), warnings=False)
        except Exception as exc:  # a value, or a serialiser of its author's
            raise self._unfit(f"cannot be written down: {exc}") from exc

    def _checked(self, params: Mapping[str, Any]) -> BaseModel:
        try:
            try:
                return self._validate(params)  # type: ignore[no-any-return]
            except ValidationError as exc:
                return self._mended(params, exc)
        except ToolError:
            raise
        except Exception as exc:  # a validator of the author's own, or what is nested deeper than Python goes
            raise self._unfit(f"cannot be checked: {type(exc).__name__}: {exc}") from exc

    def _unfit(self, why: str) -> ToolParameterError:
        return ToolParameterError(tool_name=self._tool_name, issue=f"its arguments {why}")

    def _mended(self, params: Mapping[str, Any], error: ValidationError) -> BaseModel:
        """The arguments once more, without the nulls that were refused: a strict schema makes models fill in
        everything. A null that is an argument of its own stays. A whole number may be spelled 1e20.
        """
        if not isinstance(params, Mapping):
            raise self._refusal(error)
        given = thawed(dict(params))
        for issue in error.errors(include_url=False, include_context=False):
            if issue["input"] is None and (len(issue["loc"]) > 1 or self._may_lack(issue["loc"][0])):
                _put(given, issue["loc"])
            elif issue["type"] == "int_parsing_size" and isinstance(issue["input"], float):
                _put(given, issue["loc"], int(issue["input"]))
        try:
            return self._validate(given)  # type: ignore[no-any-return]
        except ValidationError as exc:
            raise self._refusal(exc) from exc

    def _defaults_that_json_lacks(self) -> Iterator[str]:
        """The fields whose defaults are the program's own: no JSON says them, or their hint refuses them."""
        blank = self.model.model_construct()
        for field, parameter in zip(self.model.model_fields, self._parameters.values(), strict=True):
            if parameter.required or parameter.default is None:
                continue
            try:
                said = to_jsonable_python(parameter.default)
                json.dumps(said, allow_nan=False)
                self._validator.validate_assignment(blank, field, said)
            except Exception:  # noqa: BLE001  # whatever it is, it is there again at the next call
                yield field

    def _plain_schema(self) -> dict[str, Any]:
        """The JSON schema. Raises ToolValidationError when it is not the one of these parameters."""
        raw = _json_schema(self._tool_name, self.model)
        for field in self._unsaid:
            raw["properties"][self._renamed.get(field, field)].pop("default", None)
        unset = frozenset(name for name, each in self._parameters.items() if not each.required and each.default is None)
        whole = plain(raw, unset)
        if list(whole["properties"]) != list(self._parameters):
            raise _unfillable(self._tool_name, f"of {list(self._parameters)!r}, {list(whole['properties'])!r} are left")
        if _MASKED in _json(self._tool_name, whole):  # it would be written down, and so confirmed and run, as asterisks
            raise _unfillable(self._tool_name, "a secret that a model sends is none: inject it, or take a str")
        return whole

    def _may_lack(self, name: Any) -> bool:
        return name in self._parameters and not self._parameters[name].required

    def _named(self, validated: BaseModel) -> dict[str, Any]:
        return {self._renamed.get(name, name): value for name, value in validated.__dict__.items()}

    def _refusal(self, error: ValidationError) -> ToolParameterError:
        """A validation error in words that the model can correct itself from."""
        issues = [dict(issue) for issue in error.errors(include_url=False)]
        named = {name: bool(each.required) for name, each in self._parameters.items()}
        return refusal(self._tool_name, [_mistake(issue) for issue in issues], named)


def _put(given: Any, place: Sequence[int | str], instead: Any = None) -> None:
    """Replace what a validator refused, or leave it out. Its place names more than keys, such as parts of a union."""
    holder, key = None, None
    for part in place:
        if (isinstance(given, dict) and part in given) or (isinstance(given, list) and part in range(len(given))):
            holder, key, given = given, part, given[part]  # type: ignore[index]  # as was just seen
    if instead is not None and given == instead and holder is not None:
        holder[key] = instead  # type: ignore[index]  # it was found there
    elif given is None and isinstance(holder, dict):
        del holder[key]


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal; of a type that compares by identity nobody can tell."""
    return bool(one == other) or (type(one) is type(other) and "__eq__" not in _own_names(type(one)))


def _own_names(kind: type) -> set[str]:
    return {name for each in kind.__mro__ if each is not object for name in vars(each)}


#: What is said of a required parameter that a call leaves out (seed: Parameter Validation).
MISSING = "Missing required parameter"


class Mistake(NamedTuple):
    """One thing that is wrong with a call: where, in which words, and what to try instead."""

    path: str
    #: Empty where there is no such parameter.
    words: str
    cure: str = ""


def refusal(tool_name: str, mistakes: Sequence[Mistake], expected: Mapping[str, bool]) -> ToolParameterError:
    """The error of a call: what is wrong with which argument, what was meant, and what the tool expects.

    `expected` says of each parameter whether it is required.
    """
    told = [_told(each, expected) for each in mistakes]
    wrong = "; ".join(words for words, _ in told[:MAX_ISSUES])
    wrong += f"; and {len(told) - MAX_ISSUES} more" if len(told) > MAX_ISSUES else ""
    cures = "; ".join(cure for _, cure in told[:MAX_ISSUES] if cure)
    is_missing = any(each.words == MISSING and each.path in expected for each in mistakes)
    required = _listed("Required", (name for name, is_required in expected.items() if is_required))
    suggestion = [cures, required if is_missing else "", _listed("Expected", expected)]
    return ToolParameterError(
        tool_name=tool_name,
        param_name=", ".join(each.path for each in mistakes[:MAX_ISSUES]),
        issue=wrong,
        suggestion="\n".join(filter(None, suggestion)),
    )


def _listed(kind: str, names: Iterable[str]) -> str:
    return f"{kind} parameters: {', '.join(map(repr, names)) or 'none'}"


def cure_of_type(path: str, value: Any, wanted: type) -> str:
    """What to try for a value of the wrong type, as the seed writes it: a number or a boolean as text, where text
    belongs. Text that reads as a number was taken as one before.
    """
    if wanted is str and isinstance(value, int | float):
        return f"Try: {path}=str({quoted(value)})"
    return f"Expected type: {wanted.__name__}"


def quoted(value: Any) -> str:
    """A value as an error shows it, cut when it is long."""
    try:
        text = repr(value[: MAX_QUOTED_CHARS + 1] if isinstance(value, str) else value)
    except Exception:  # noqa: BLE001  # nested too deep, or a number of too many digits
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "..."


def _told(mistake: Mistake, known: Collection[str]) -> tuple[str, str]:
    """A mistake in words, and its cure."""
    name = quoted(mistake.path)
    if mistake.words:
        is_missing = mistake.words == MISSING
        return f"{MISSING}: {name}" if is_missing else f"{name} {mistake.words}", mistake.cure
    close = nearest(mistake.path, known)
    if not close:
        return f"Unexpected parameter(s): {name}", f"{name} is not a valid parameter"
    return f"Unexpected parameter(s): {name}", f"{name} -> Did you mean {close!r}?"


def _mistake(issue: Mapping[str, Any]) -> Mistake:
    path = ".".join(str(part) for part in issue["loc"]) or "parameters"
    # Further in, a place may name a part of a union, which no call can give.
    wanted = _WANTED.get(issue["type"]) if len(issue["loc"]) == 1 else None
    return Mistake(path, _words(issue), cure_of_type(path, issue["input"], wanted) if wanted else "")


#: The type that belongs where pydantic has one of these issues.
_WANTED: Mapping[str, type] = {
    **{f"{name}_type": kind for name, kind in [("string", str), ("list", list), ("dict", dict)]},
    **{f"{kind.__name__}_{how}": kind for kind in (int, float, bool) for how in ("type", "parsing", "from_float")},
}


def _words(issue: Mapping[str, Any]) -> str:
    if issue["type"] == "extra_forbidden" and len(issue["loc"]) == 1:
        return ""
    if issue["type"] == "missing":
        return MISSING
    if issue["type"] == "string_unicode":
        return f"is {quoted(issue['input'])}: {HALF_A_CHARACTER}"
    return f"is {quoted(issue['input'])}: {issue['msg']}"


def _model(tool_name: str, parameters: Sequence[ToolParameter]) -> type[BaseModel]:
    """Fields have the parameters' own names, but for those that pydantic keeps for itself, such as `json`."""
    # A bound on their length, any, has pydantic look into texts: half a character, which no UTF-8 holds, is refused.
    config = ConfigDict(extra="forbid", allow_inf_nan=False, str_min_length=0)
    try:
        fields: dict[str, Any] = {_free(each.name, index): _field(each, index) for index, each in enumerate(parameters)}
        model: type[BaseModel] = create_model(tool_name, __config__=config, **fields)
        model.model_rebuild()  # says what a hint names that is nowhere defined
    except (PydanticUserError, SchemaError, NameError, TypeError, ValueError) as exc:
        raise _unfillable(tool_name, _first_line(exc)) from exc
    if list(model.model_fields) != list(fields):
        raise _unfillable(tool_name, f"of {list(fields)!r}, {list(model.model_fields)!r} are left")
    if _hides(model.__pydantic_core_schema__):
        raise _unfillable(
            tool_name, "a field inside it has exclude=: no policy and no person would see it; leave that out"
        )
    return model


def _hides(core_schema: Any) -> bool:
    """Whether a field at any depth is left out of what is written down of it."""
    waiting = [core_schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if part.get("serialization_exclude") or part.get("serialization_exclude_if"):
                return True
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
    return False


def _json(tool_name: str, schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise _unfillable(tool_name, f"its schema is no JSON ({exc})") from exc


def _unfillable(tool_name: str, reason: str) -> ToolValidationError:
    return ToolValidationError(f"tool {tool_name!r} has a parameter no model can fill: {reason}", tool_name=tool_name)


def _first_line(error: Exception) -> str:
    """What is wrong, of a message that goes on with where and with links. A SchemaError ends with it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1] if isinstance(error, SchemaError) else lines[0]


def _free(name: str, index: int) -> str:
    kept = hasattr(BaseModel, name) or name.startswith(("model_", "_")) or _STAND_IN.fullmatch(name)
    return f"p{index}_" if kept else name


def _field(parameter: ToolParameter, index: int) -> tuple[Any, Any]:
    # An empty description is left out, so that one from Annotated[..., Field(description=...)] survives. So is the
    # default one: models would read the name twice.
    is_said = parameter.description not in ("", default_description(parameter.name))
    extra: dict[str, Any] = {"description": parameter.description} if is_said else {}
    extra["exclude"] = False  # whatever the hint says: what is not written down could not be agreed to
    if _free(parameter.name, index) != parameter.name:
        extra["alias"] = parameter.name
    return parameter.annotation, Field(... if parameter.required else parameter.default, **extra)


def _json_schema(tool_name: str, model: type[BaseModel]) -> dict[str, Any]:
    with warnings.catch_warnings():
        # A default that JSON cannot hold is the program's own business, and left out.
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
        try:
            return model.model_json_schema(schema_generator=HintsSchema)
        except PydanticUserError as exc:
            raise _unfillable(tool_name, _first_line(exc)) from exc
