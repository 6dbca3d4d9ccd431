"""Type hints of parameters: limited to chosen values, and made lenient for what models send."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import GenericAlias, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaError

#: JSON's names of types, and Python's types.
JSON_TYPES: Mapping[str, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict, "null": None,
}  # fmt: skip
#: Text that small models send for a boolean.
TRUE_WORDS, FALSE_WORDS = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
#: The types of collections whose items an enum may limit, and the types that the function is given.
_ENUM_COLLECTIONS: Mapping[Any, Any] = {
    list: list, set: set, frozenset: frozenset, tuple: tuple, Sequence: list, Iterable: list,
}  # fmt: skip
#: The types of collections whose items are read leniently, and the types that the function is given. An Iterable
#: becomes a list: pydantic would check its items one by one, in the middle of the function that reads them.
_LENIENT_COLLECTIONS: Mapping[Any, Any] = {
    list: list, set: set, frozenset: frozenset, tuple: tuple, dict: dict, Iterable: list,
}  # fmt: skip
#: How a Decimal is written. One that was read is written the same way again.
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?$"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class ToolSchemaGenerator(GenerateJsonSchema):
    """Generates the JSON schema of parameters; pydantic makes one for each schema.

    A Decimal is text. Pydantic's own schema says number or text, which a model reads as two types with bounds on only
    one of them, and a number would come through a float. A number that a model sends is still accepted.
    """

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """Return text with a pattern, and with the bounds, which JSON Schema does not apply to text but models read."""
        number: dict[str, Any] = super().decimal_schema(schema)["anyOf"][0]
        bounds = {key: number[key] for key in _BOUNDS if key in number}
        return {"type": "string", "format": "decimal", "pattern": _DECIMAL, **bounds}


def union(*hints: Any) -> Any:
    """Return the union of type hints, which `|` makes of classes only."""
    return Union[hints]  # noqa: UP007


def is_union(hint: Any) -> bool:
    """Return whether the hint is a union, written `A | B` or `Union[A, B]`."""
    return get_origin(hint) in (Union, UnionType)


def may_be_none(hint: Any) -> bool:
    """Return whether the hint is a union with None, also inside `Annotated`."""
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return is_union(bare) and type(None) in get_args(bare)


def json_type_of(hint: Any) -> str:
    """Return JSON's name of the type; "" for a hint that has none."""
    return _JSON_TYPE_NAMES.get(get_origin(hint) or hint, "")


_JSON_TYPE_NAMES = {hint: name for name, hint in JSON_TYPES.items()}


def element_type_of(hint: Any) -> Any:
    """Return the basic type that `list[str]` or `dict[str, int]` holds, also inside Optional; None for any other."""
    if get_origin(hint) is Annotated:
        return element_type_of(get_args(hint)[0])
    if is_union(hint):
        members = [each for each in get_args(hint) if each is not type(None)]
        return element_type_of(members[0]) if len(members) == 1 else None
    inside = get_args(hint) if get_origin(hint) in (list, dict) else ()
    return inside[-1] if inside and inside[-1] in (str, int, float, bool) else None


def hint_name(hint: Any) -> str:
    """Return a type hint as an error names it."""
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def limited_to(hint: Any, choices: tuple[Any, ...]) -> Any:
    """Return the hint limited to these choices: of a list, its items; of a union with None, None stays allowed."""
    inside = get_args(hint)
    if get_origin(hint) is Annotated:  # the choices replace its bounds; its description stays
        fields = [Field(description=each.description) for each in inside[1:] if isinstance(each, FieldInfo)]
        return Annotated[(limited_to(inside[0], choices), *fields)] if fields else limited_to(inside[0], choices)
    if is_union(hint):
        return union(*(each if each is type(None) else limited_to(each, choices) for each in inside))
    if _is_enum(hint):
        return _limited_enum(hint, [hint(choice) for choice in choices])
    collection = _collection(hint)
    if collection is tuple:
        items = (each if each is ... else limited_to(each, choices) for each in inside or (Any, ...))
        return GenericAlias(tuple, tuple(items))
    return collection[limited_to(inside[0] if inside else Any, choices)] if collection else Literal[choices]


def _limited_enum(enum: Any, members: Sequence[Any]) -> Any:
    """Return the hint of some members of an Enum; the function is still given members."""
    values = [each.value for each in members]

    def check(member: Any) -> Any:
        if member not in members:
            raise ValueError(f"choose one of {values!r}")
        return member

    return Annotated[enum, AfterValidator(check), Field(json_schema_extra={"enum": values})]


def choices_of_other_types(hint: Any, choices: Iterable[Any]) -> list[Any]:
    """Return the choices that do not fit the hint: with them the function would get a value of another type."""
    adapters = list(_adapters(hint))
    return [choice for choice in choices if not any(_fits(*adapter, choice) for adapter in adapters)]


def _adapters(hint: Any) -> Iterator[tuple[TypeAdapter[Any], bool]]:
    """Yield the validators of single choices, and whether they are strict: an Enum's member may be given by value."""
    for each in _choice_hints(hint):
        with contextlib.suppress(PydanticUserError, SchemaError, NameError):  # no choice fits such a hint
            yield TypeAdapter(each), not _is_enum(each)


def _choice_hints(hint: Any) -> Iterator[Any]:
    """Yield the hints that a single choice may have."""
    inside = get_args(hint)
    bare = inside[0] if get_origin(hint) is Annotated else hint
    if is_union(bare) or _collection(bare):
        for each in get_args(bare) or (Any,):
            yield from _choice_hints(each) if each is not ... else ()
    else:
        yield hint


def _fits(adapter: TypeAdapter[Any], strict: bool, choice: Any) -> bool:
    try:
        adapter.validate_python(choice, strict=strict)
    except Exception:  # a validator written by the tool's author may raise anything
        return False
    return True


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _collection(hint: Any) -> Any:
    return _ENUM_COLLECTIONS.get(get_origin(hint) or hint)


def lenient(hint: Any) -> Any:
    """Return the hint with numbers and booleans of a choice also read from text, at any depth.

    Small models quote everything, and Gemini's enums hold only text.
    """
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal and not all(isinstance(choice, str) for choice in inside):
        return Annotated[hint, _choice_reader(inside)]
    if isinstance(hint, type) and issubclass(hint, Enum):
        values = [each.value for each in hint]
        return hint if all(isinstance(value, str) for value in values) else Annotated[hint, _choice_reader(values)]
    if origin is Annotated:
        return Annotated[(lenient(inside[0]), *inside[1:])]
    if is_union(hint):
        return union(*map(lenient, inside))
    if origin in _LENIENT_COLLECTIONS:
        return _LENIENT_COLLECTIONS[origin][tuple(map(lenient, inside))]
    return hint


def _choice_reader(choices: Sequence[Any]) -> BeforeValidator:
    by_text = {text: choice for choice in reversed(choices) for text in _spellings(choice)}

    def read(value: Any) -> Any:
        if isinstance(value, str) and value not in choices:
            return by_text.get(value.lower(), value)
        # JSON has one kind of number: 1.0 is a member of an enum that has 1.
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return BeforeValidator(read)


def _spellings(choice: Any) -> Iterator[str]:
    if isinstance(choice, bool):
        yield from TRUE_WORDS if choice else FALSE_WORDS
    elif not isinstance(choice, str):
        yield str(choice).lower()
