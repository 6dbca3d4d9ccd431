"""Arguments by a foreign JSON Schema."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from sayso.agent.tools.arguments import HALF_A_CHARACTER, MISSING, Checked, Mistake, cure_of_type, quoted, refusal
from sayso.agent.tools.errors import ToolParameterError, ToolValidationError
from sayso.agent.tools.parameter import FALSE_WORDS, JSON_TYPES, TRUE_WORDS, ToolParameter
from sayso.agent.tools.schema.json_schema import DEFINITIONS, frozen, plain
from sayso.agent.tools.schema.vendors import together

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


#: Keywords of a schema that are looked at for the arguments of one call, about a second's worth. References that lead
#: to two others each, and those to two more, come to more than any call lasts.
MAX_STEPS = 100_000


#: Looks at one keyword, as jsonschema has it: validator, the keyword's value, what is checked, and the schema around.
_Keyword = Callable[[Any, Any, Any, Any], Any]


_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


class TooMuchWork(Exception):
    """Raised when arguments cannot be checked within the bound."""


@contextmanager
def bounded_work() -> Iterator[None]:
    """Whatever is validated inside, together, raises TooMuchWork after MAX_STEPS."""
    token = _left.set([MAX_STEPS])
    try:
        yield
    finally:
        _left.reset(token)


def bounded(schema: Mapping[str, Any]) -> Validator:
    """The validator of a schema, by its draft. Checks nothing elsewhere: no reference is ever fetched."""
    from jsonschema_specifications import REGISTRY

    # With a registry of its own it fetches no reference from anywhere: that would be the schema's author's choice.
    made: Validator = _bounded(draft_of(schema))(schema, registry=REGISTRY)
    return made


def draft_of(schema: Mapping[str, Any]) -> Any:
    """The validators' class for a schema: by the draft it names, else by the newest that takes how it is written."""
    import jsonschema

    newest = jsonschema.Draft202012Validator
    if "$schema" in schema or "$defs" in schema:  # which older drafts do not know
        return jsonschema.validators.validator_for(schema, default=newest)
    kinds = (newest, jsonschema.Draft7Validator, jsonschema.Draft4Validator)
    return next((kind for kind in kinds if _takes(kind, schema)), newest)


def _takes(kind: Any, schema: Mapping[str, Any]) -> bool:
    import jsonschema

    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError:
        return False
    return True


@functools.cache
def _bounded(kind: Any) -> Any:
    import jsonschema

    own: dict[str, _Keyword] = {"pattern": _pattern, "uniqueItems": _unique_items}
    keywords = {name: _counted(own.get(name, keyword)) for name, keyword in kind.VALIDATORS.items()}
    return jsonschema.validators.extend(kind, keywords)  # type: ignore[no-untyped-call]  # the stubs leave it out


def _counted(keyword: _Keyword) -> _Keyword:
    def look(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        left = _left.get()
        if left is not None:
            left[0] -= 1
            if left[0] < 0:
                raise TooMuchWork(f"it takes more than {MAX_STEPS} steps")
        return keyword(validator, value, instance, schema)

    return look


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not _searcher(pattern)(instance):
        yield ValidationError(f"does not match {pattern!r}")


def _unique_items(_: Any, is_asked: bool, instance: Any, __: Any) -> Iterator[Any]:
    """By their texts: comparing each with each takes the square of their number."""
    from jsonschema.exceptions import ValidationError

    if is_asked and isinstance(instance, list):
        texts = {json.dumps(_comparable(each), sort_keys=True) for each in instance}
        if len(texts) < len(instance):
            yield ValidationError("has items that are alike")


def _comparable(value: Any) -> Any:
    """JSON knows no difference between 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    return [_comparable(each) for each in value] if isinstance(value, list | tuple) else value


@functools.lru_cache(maxsize=1024)
def _searcher(pattern: str) -> Callable[[str], object]:
    """Who finds it in a text: in linear time, unless only Python's own engine knows such a pattern."""
    return linear_search(pattern) or re.compile(pattern).search


@functools.lru_cache(maxsize=1024)
def linear_search(pattern: str) -> Callable[[str], bool] | None:
    """Whether a text holds a match, found without going back; None for a pattern that needs that, or is none."""
    from pydantic_core import PydanticSerializationError, SchemaError, SchemaValidator, core_schema

    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        validator = SchemaValidator(schema)
    except (SchemaError, PydanticSerializationError, TypeError, ValueError):
        return None
    return validator.isinstance_python


#: Mistakes that are looked for in the arguments of one call.
MAX_FOUND = 100


_PRESENT_DRAFT = "https://json-schema.org/draft/2020-12/schema"


class SchemaArguments:
    """The arguments of one tool, by its schema. Values are JSON's, and stay what they are where they fit."""

    def __init__(self, tool_name: str, schema: Mapping[str, Any]) -> None:
        """Raises ToolValidationError when it is no schema of an object, or refers to what is not in it."""
        self._tool_name = tool_name
        self._raw = dict(schema)
        if self._raw.get("type", "object") != "object":
            raise ToolValidationError(f"the parameters of {tool_name!r} are {quoted(self._raw)}: give an object schema")
        self._raw = {"type": "object", "properties": {}, **self._raw}
        self._raw.setdefault(_closing(self._raw), False)
        try:
            self.schema: dict[str, Any] = frozen(together(plain(self._raw)))
            json.dumps(self.schema, allow_nan=False)
            self.parameters = tuple(self._parameter(name) for name in self.schema["properties"])
        except (AttributeError, TypeError, KeyError, ValueError, RecursionError) as exc:
            raise ToolValidationError(f"the parameters of {tool_name!r} are no JSON Schema: {exc}") from exc

    def read(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, with text read as the number or boolean it is meant to be. Raises ToolParameterError."""
        given = dict(params) if isinstance(params, Mapping) else params
        try:
            with bounded_work():
                if not self._fits(given):
                    given = self._mended(given, self.schema)
                    self._check(given)
        except RecursionError as exc:
            raise ToolParameterError(tool_name=self._tool_name, issue="its arguments are nested too deep") from exc
        return given

    def check(self, params: Mapping[str, Any]) -> Checked:
        """The same, and what is to be known of them before the call. Raises ToolParameterError."""
        values = self.read(params)
        return Checked(values, partial(self._copied, values))

    def read_json(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The same, as a copy. Raises ToolParameterError."""
        return self._copied(self.read(params))

    def _copied(self, values: Mapping[str, Any]) -> dict[str, Any]:
        try:
            copied: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
        except (TypeError, ValueError) as exc:
            raise ToolParameterError(tool_name=self._tool_name, issue=f"its arguments are not JSON: {exc}") from exc
        return copied

    def read_record(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The same: values that are JSON's read as themselves again. Raises ToolParameterError."""
        return self.read_json(params)

    @cached_property
    def _validator(self) -> Validator:
        return bounded(self._raw)

    @cached_property
    def _shown_validator(self) -> Validator:
        """Of what models read, whose parts refer to its own definitions."""
        return bounded({**self.schema, "$schema": _PRESENT_DRAFT})

    def _check(self, given: Any) -> None:
        with self._own_faults():
            found = list(itertools.islice(self._validator.iter_errors(given), MAX_FOUND))
        errors = sorted(found, key=lambda error: list(map(str, error.absolute_path)))
        if errors:
            raise self._refusal([mistake for error in errors for mistake in _mistakes(error)])
        if why := _unwritable(given):
            raise self._refusal([Mistake("parameters", f"is {quoted(given)}: {why}")])

    def _fits(self, given: Any) -> bool:
        with self._own_faults():
            return self._validator.is_valid(given) and not _unwritable(given)

    @contextlib.contextmanager
    def _own_faults(self) -> Iterator[None]:
        """A schema that cannot be used is told as one: a reference that leads nowhere, or to more than can be done."""
        try:
            yield
        except RecursionError:
            raise
        except Exception as exc:
            issue = f"its schema cannot be used ({type(exc).__name__}: {quoted(str(exc))})"
            raise ToolParameterError(tool_name=self._tool_name, issue=issue) from exc

    def _mended(self, value: Any, schema: Mapping[str, Any]) -> Any:
        """Text as what it stands for, and without null for "left out", at any depth. A null the schema has stays."""
        if "$ref" in schema:
            return self._mended(value, self.schema.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}))
        mended = self._mended_inside(value, schema)
        for part in schema.get("allOf", ()):
            mended = self._mended(mended, part)
        for key in ("anyOf", "oneOf"):
            mended = self._mended_as_one(mended, schema.get(key, ()))
        return mended

    def _mended_inside(self, value: Any, schema: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            places = schema.get("prefixItems", ())
            rest = itertools.repeat(schema.get("items", {}))
            return [self._mended(each, part) for each, part in zip(value, itertools.chain(places, rest))]  # noqa: B905  # without end
        if isinstance(value, dict):
            parts, required = schema.get("properties", {}), schema.get("required", ())
            others = schema.get("additionalProperties")
            return {
                name: self._mended(each, parts.get(name, others if isinstance(others, dict) else {}))
                for name, each in value.items()
                if each is not None or name in required or name not in parts or self._takes(parts[name], None)
            }
        return _read_as(schema, value) if isinstance(value, str) else value

    def _mended_as_one(self, value: Any, choices: Sequence[Mapping[str, Any]]) -> Any:
        """As the first alternative that it fits then; one that it fits already leaves it as it is."""
        if any(self._takes(choice, value) for choice in choices):
            return value
        mended = (self._mended(value, choice) for choice in choices)
        return next((each for each, choice in zip(mended, choices, strict=True) if self._takes(choice, each)), value)

    def _takes(self, schema: Mapping[str, Any], value: Any) -> bool:
        with self._own_faults():
            return bool(self._shown_validator.evolve(schema=schema).is_valid(value))

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


def _closing(schema: Mapping[str, Any]) -> str:
    """The keyword that closes an object: one that sees the properties which parts of the schema name, if they do."""
    lists = [schema[key] for key in ("allOf", "anyOf", "oneOf") if isinstance(schema.get(key), list)]
    parts = [part for each in lists for part in each if isinstance(part, dict)]
    named = any(part.keys() & {"properties", "$ref", "allOf", "anyOf", "oneOf"} for part in parts)
    return "unevaluatedProperties" if named and "additionalProperties" not in schema else "additionalProperties"


def is_json_schema(parameters: Any) -> bool:
    """Whether parameters are given as one JSON Schema, and not as ToolParameters by their names."""
    if not isinstance(parameters, Mapping) or any(isinstance(each, ToolParameter) for each in parameters.values()):
        return False
    return (
        not parameters
        or "type" in parameters
        or "properties" in parameters
        or any(key in parameters for key in DEFINITIONS)
    )


def _mistakes(error: Any) -> list[Mistake]:
    path = ".".join(map(str, error.absolute_path))
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return [Mistake(f"{path}.{name}" if path else name, MISSING) for name in missing]
    if error.validator == "additionalProperties" and not path:
        known = error.schema.get("properties", {})
        return [Mistake(name, "") for name in error.instance if name not in known]
    is_type = error.validator == "type" and len(error.absolute_path) == 1 and error.validator_value in _TYPES
    cure = cure_of_type(path, error.instance, JSON_TYPES[error.validator_value]) if is_type else ""
    return [Mistake(path or "parameters", f"is {quoted(error.instance)}: {_short(error)}", cure)]


#: JSON's types that a value may be expected to have; a list of several is none of them.
_TYPES = tuple(name for name, kind in JSON_TYPES.items() if kind is not None)


def _short(error: Any) -> str:
    """What jsonschema says, without the value, which may be long."""
    if error.validator in ("type", "enum", "const", "format", "pattern"):
        return f"must be of {error.validator} {quoted(error.validator_value)}"
    return f"breaks {error.validator}: {quoted(error.validator_value)}"


def _read_as(schema: Mapping[str, Any], text: str) -> Any:
    """Text as the choice, number or boolean it is meant to be; what is neither, and where text belongs, as it is."""
    meant = [choice for choice in schema.get("enum", ()) if not isinstance(choice, str) and _spelled(choice, text)]
    if "enum" in schema:
        return meant[0] if meant and text not in schema["enum"] else text
    kinds = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
    for kind in kinds if "string" not in kinds else ():
        if kind in _READERS:
            with contextlib.suppress(ValueError):
                return _READERS[kind](text)
    return text


def _spelled(choice: Any, text: str) -> bool:
    if isinstance(choice, bool):
        return text.lower() in (TRUE_WORDS if choice else FALSE_WORDS)
    return str(choice) == text


def _boolean(text: str) -> bool:
    if text.lower() not in (*TRUE_WORDS, *FALSE_WORDS):
        raise ValueError(text)
    return text.lower() in TRUE_WORDS


_READERS: Mapping[Any, Callable[[str], Any]] = {"integer": int, "number": float, "boolean": _boolean}


def _unwritable(value: Any) -> str:
    """Why there is no JSON of it, in UTF-8; "" where there is."""
    if isinstance(value, str):
        return "" if value.isascii() or _is_whole(value) else HALF_A_CHARACTER
    if isinstance(value, float):
        return "" if math.isfinite(value) else "JSON holds neither NaN nor infinities"
    inside = itertools.chain(value, value.values()) if isinstance(value, dict) else value
    return next(filter(None, map(_unwritable, inside)), "") if isinstance(value, dict | list) else ""


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
