"""The arguments of one call, checked against a JSON Schema that may come from a hostile server."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from sayso.agent.tools.arguments import (
    LONE_SURROGATE,
    MISSING,
    Mistake,
    ValidatedArguments,
    cure_of_type,
    quoted,
    refusal,
)
from sayso.agent.tools.errors import ToolParameterError, ToolValidationError
from sayso.agent.tools.json_schema import DEFINITIONS, frozen, plain
from sayso.agent.tools.parameter import FALSE_WORDS, JSON_TYPES, TRUE_WORDS, ToolParameter

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

#: Most keywords of a schema that are evaluated for one call: about a second of work. A schema whose references double
#: at each level would take longer than any call lasts.
MAX_STEPS = 100_000
#: Most mistakes that are collected for one call.
MAX_MISTAKES = 100
_CURRENT_DRAFT = "https://json-schema.org/draft/2020-12/schema"


class SchemaArguments:
    """Checks the arguments of one tool by its JSON Schema. Values stay as they are where they fit."""

    def __init__(self, tool_name: str, schema: Mapping[str, Any]) -> None:
        """Raises ToolValidationError for a schema that is not an object's, or refers to something outside itself."""
        self._tool_name = tool_name
        self._raw = dict(schema)
        if self._raw.get("type", "object") != "object":
            raise ToolValidationError(f"the parameters of {tool_name!r} are {quoted(self._raw)}: give an object schema")
        self._raw = {"type": "object", "properties": {}, **self._raw}
        # No other properties. Only `unevaluatedProperties` takes those into account that parts of the schema name.
        lists = [self._raw[key] for key in ("allOf", "anyOf", "oneOf") if isinstance(self._raw.get(key), list)]
        parts = [part for each in lists for part in each if isinstance(part, dict)]
        have_properties = any(part.keys() & {"properties", "$ref", "allOf", "anyOf", "oneOf"} for part in parts)
        sees_parts = have_properties and "additionalProperties" not in self._raw
        self._raw.setdefault("unevaluatedProperties" if sees_parts else "additionalProperties", False)
        try:
            self.schema: dict[str, Any] = frozen(plain(self._raw))
            json.dumps(self.schema, allow_nan=False)
            self.parameters = tuple(self._parameter(name) for name in self.schema["properties"])
        except (AttributeError, TypeError, KeyError, ValueError, RecursionError) as exc:
            raise ToolValidationError(f"the parameters of {tool_name!r} are no JSON Schema: {exc}") from exc

    def check(self, params: Mapping[str, Any]) -> ValidatedArguments:
        """Return the arguments; text becomes the number or boolean it stands for. Raises ToolParameterError."""
        values = self.values(params)
        return ValidatedArguments(values, partial(self._copied, values))

    def read_record(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the arguments: JSON values read as themselves again. Raises ToolParameterError."""
        return self.check(params).json

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of `check` alone."""
        arguments: Any = dict(params) if isinstance(params, Mapping) else params
        budget = StepBudget()
        validator = with_budget(self._validator, budget)
        try:
            if validator.is_valid(arguments) and not _not_writable(arguments):
                return dict(arguments)
            arguments = _Repairer(self.schema, with_budget(self._shown_validator, budget)).repaired(arguments)
            errors = list(itertools.islice(validator.iter_errors(arguments), MAX_MISTAKES))
        except RecursionError as exc:
            raise ToolParameterError(tool_name=self._tool_name, issue="its arguments are nested too deep") from exc
        except Exception as exc:  # a dangling reference, or too many steps
            issue = f"its schema cannot be used ({type(exc).__name__}: {quoted(str(exc))})"
            raise ToolParameterError(tool_name=self._tool_name, issue=issue) from exc
        if errors:
            errors.sort(key=lambda error: list(map(str, error.absolute_path)))
            raise self._refusal([mistake for error in errors for mistake in _mistakes(error)])
        if problem := _not_writable(arguments):
            raise self._refusal([Mistake("parameters", f"is {quoted(arguments)}: {problem}")])
        return dict(arguments)

    def _copied(self, values: Mapping[str, Any]) -> dict[str, Any]:
        try:
            copied: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
        except (TypeError, ValueError) as exc:
            raise ToolParameterError(tool_name=self._tool_name, issue=f"its arguments are not JSON: {exc}") from exc
        return copied

    @cached_property
    def _validator(self) -> Validator:
        return bounded_validator(self._raw)

    @cached_property
    def _shown_validator(self) -> Validator:
        """Validates by the schema that models read, whose parts refer to its own definitions."""
        return bounded_validator({**self.schema, "$schema": _CURRENT_DRAFT})

    def _refusal(self, mistakes: list[Mistake]) -> ToolParameterError:
        required = self.schema["required"]
        return refusal(self._tool_name, mistakes, {name: name in required for name in self.schema["properties"]})

    def _parameter(self, name: str) -> ToolParameter:
        schema = self.schema["properties"][name]
        kind = schema.get("type")
        return ToolParameter(
            name=name,
            param_type=JSON_TYPES.get(kind, Any) if isinstance(kind, str) else Any,
            description=str(schema.get("description", "")),
            required=name in self.schema["required"],
            enum=schema.get("enum"),
            default=schema.get("default"),
            json_schema=schema,
        )


def is_json_schema(parameters: Any) -> bool:
    """Return whether parameters are given as one JSON Schema, and not as ToolParameters by their names."""
    if not isinstance(parameters, Mapping) or any(isinstance(each, ToolParameter) for each in parameters.values()):
        return False
    return not parameters or any(key in parameters for key in ("type", "properties", *DEFINITIONS))


def _mistakes(error: Any) -> list[Mistake]:
    """Return jsonschema's error as mistakes."""
    path, keyword, expected = ".".join(map(str, error.absolute_path)), error.validator, error.validator_value
    if keyword == "required":
        missing = [name for name in expected if name not in error.instance]
        return [Mistake(f"{path}.{name}" if path else name, MISSING) for name in missing]
    if keyword == "additionalProperties" and not path:
        known = error.schema.get("properties", {})
        return [Mistake(name, "") for name in error.instance if name not in known]
    if keyword in ("type", "enum", "const", "format", "pattern"):
        problem = f"must be of {keyword} {quoted(expected)}"
    else:
        problem = f"breaks {keyword}: {quoted(expected)}"
    is_type = keyword == "type" and len(error.absolute_path) == 1 and isinstance(expected, str)
    wanted = JSON_TYPES.get(expected) if is_type else None
    cure = cure_of_type(path, error.instance, wanted) if wanted else ""
    return [Mistake(path or "parameters", f"is {quoted(error.instance)}: {problem}", cure)]


class _Repairer:
    """Repairs the arguments of one call: text becomes the value it stands for, and a null for "left out" is removed.

    A null that the schema accepts stays.
    """

    def __init__(self, schema: Mapping[str, Any], validator: Validator) -> None:
        self._schema = schema
        self._validator = validator

    def repaired(self, value: Any) -> Any:
        return self._by(self._schema, value)

    def _by(self, schema: Mapping[str, Any], value: Any) -> Any:
        if "$ref" in schema:
            return self._by(self._schema.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}), value)
        value = self._children(schema, value)
        for part in schema.get("allOf", ()):
            value = self._by(part, value)
        for key in ("anyOf", "oneOf"):
            alternatives = schema.get(key, ())
            if not any(self._accepts(part, value) for part in alternatives):
                repaired = ((part, self._by(part, value)) for part in alternatives)
                value = next((each for part, each in repaired if self._accepts(part, each)), value)
        return value

    def _children(self, schema: Mapping[str, Any], value: Any) -> Any:
        if isinstance(value, list):
            schemas = itertools.chain(schema.get("prefixItems", ()), itertools.repeat(schema.get("items", {})))
            return [self._by(part, each) for each, part in zip(value, schemas, strict=False)]
        if isinstance(value, dict):
            parts, required = schema.get("properties", {}), schema.get("required", ())
            others = schema.get("additionalProperties")
            return {
                name: self._by(parts.get(name, others if isinstance(others, dict) else {}), each)
                for name, each in value.items()
                if each is not None or name in required or name not in parts or self._accepts(parts[name], None)
            }
        return _read_as(schema, value) if isinstance(value, str) else value

    def _accepts(self, schema: Mapping[str, Any], value: Any) -> bool:
        return bool(self._validator.evolve(schema=schema).is_valid(value))


def _read_as(schema: Mapping[str, Any], text: str) -> Any:
    """Return text as the choice, number or boolean it stands for; other text, and text where it belongs, as it is."""
    if "enum" in schema:
        choices = (each for each in schema["enum"] if not isinstance(each, str) and _spells(text, each))
        return text if text in schema["enum"] else next(choices, text)
    kinds = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
    for kind in kinds if "string" not in kinds else ():
        if kind in _READERS:
            with contextlib.suppress(ValueError):
                return _READERS[kind](text)
    return text


def _spells(text: str, choice: Any) -> bool:
    if isinstance(choice, bool):
        return text.lower() in (TRUE_WORDS if choice else FALSE_WORDS)
    return str(choice) == text


def _boolean(text: str) -> bool:
    if text.lower() not in (*TRUE_WORDS, *FALSE_WORDS):
        raise ValueError(text)
    return text.lower() in TRUE_WORDS


_READERS: Mapping[Any, Callable[[str], Any]] = {"integer": int, "number": float, "boolean": _boolean}


def _not_writable(value: Any) -> str:
    """Return why the value cannot be written as JSON in UTF-8; "" if it can."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return LONE_SURROGATE
    except ValueError:
        return "JSON holds neither NaN nor infinities"
    except TypeError:  # refused where it has to be written as JSON
        return ""
    return ""


class TooMuchWork(Exception):
    """Raised when arguments cannot be checked within MAX_STEPS."""


class StepBudget:
    """Counts the evaluated keywords of one call, so that a hostile schema cannot hold the process.

    It takes the place of jsonschema's format checker, the only field that every validator hands to those of its
    subschemas. Formats are not checked.
    """

    def __init__(self) -> None:
        self._steps_left = MAX_STEPS

    def spend(self) -> None:
        """Count one keyword. Raises TooMuchWork."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TooMuchWork(f"it takes more than {MAX_STEPS} steps")

    def check(self, *_: Any) -> None:
        """Accept any format."""


def bounded_validator(schema: Mapping[str, Any]) -> Validator:
    """Return the validator of a schema, by its draft. Use it `with_budget` only.

    It has a registry of its own, so that no reference is ever fetched: the address would be chosen by the schema's
    author.
    """
    from jsonschema_specifications import REGISTRY

    validator: Validator = _bounded_class(draft_of(schema))(schema, registry=REGISTRY)
    return validator


def with_budget(validator: Validator, budget: StepBudget) -> Validator:
    """Return the validator for one call: it raises TooMuchWork when the budget is spent."""
    return validator.evolve(format_checker=budget)


def draft_of(schema: Mapping[str, Any]) -> Any:
    """Return the validator class of the draft that a schema names, else of the newest draft that accepts the schema."""
    import jsonschema

    newest = jsonschema.Draft202012Validator
    if "$schema" in schema or "$defs" in schema:  # older drafts do not know `$defs`
        return jsonschema.validators.validator_for(schema, default=newest)
    for draft in (newest, jsonschema.Draft7Validator, jsonschema.Draft4Validator):
        with contextlib.suppress(jsonschema.SchemaError):
            draft.check_schema(schema)
            return draft
    return newest


#: Evaluates one keyword: validator, the keyword's value, the checked value, and the schema around.
_Keyword = Callable[[Any, Any, Any, Any], Any]


@functools.cache
def _bounded_class(draft: Any) -> Any:
    """Return the validator of a draft whose keywords each spend a step."""
    import jsonschema

    def counted(keyword: _Keyword, validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        validator.format_checker.spend()
        return keyword(validator, value, instance, schema)

    own: dict[str, _Keyword] = {"pattern": _pattern, "uniqueItems": _unique_items}
    keywords = {name: partial(counted, own.get(name, keyword)) for name, keyword in draft.VALIDATORS.items()}
    return jsonschema.validators.extend(draft, keywords)  # type: ignore[no-untyped-call]  # missing in the stubs


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Any]:
    """Search in linear time, unless only Python's own engine accepts the pattern."""
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str):
        search = linear_search(pattern) or re.compile(pattern).search
        if not search(instance):
            yield ValidationError(f"does not match {pattern!r}")


@functools.lru_cache(maxsize=1024)
def linear_search(pattern: str) -> Callable[[str], bool] | None:
    """Return what searches a text without backtracking; None for a pattern that needs it, or that is invalid."""
    from pydantic_core import PydanticSerializationError, SchemaError, SchemaValidator, core_schema

    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        return SchemaValidator(schema).isinstance_python
    except (SchemaError, PydanticSerializationError, TypeError, ValueError):
        return None


def _unique_items(_: Any, is_set: bool, instance: Any, __: Any) -> Iterator[Any]:
    """Compare items by their text: comparing each with each would take quadratic time."""
    from jsonschema.exceptions import ValidationError

    if is_set and isinstance(instance, list):
        texts = {json.dumps(_comparable(each), sort_keys=True) for each in instance}
        if len(texts) < len(instance):
            yield ValidationError("has items that are alike")


def _comparable(value: Any) -> Any:
    """Return the value with whole floats as integers: 1 and 1.0 are equal in JSON."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    return [_comparable(each) for each in value] if isinstance(value, list | tuple) else value
