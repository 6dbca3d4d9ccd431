"""ToolParameter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, overload

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaError

from sayso.agent.tools.errors import ToolValidationError

#: What holds the values that are chosen, and what they are then held in.
_HOLDERS: dict[Any, Any] = {
    list: list, set: set, frozenset: frozenset, tuple: tuple, Sequence: list, Iterable: list,
}  # fmt: skip


def is_union(hint: Any) -> bool:
    """Whether the hint is `A | B`, in either spelling."""
    return get_origin(hint) in (Union, UnionType)


def narrowed(hint: Any, choices: tuple[Any, ...]) -> Any:
    """The hint with these choices only: of a list's items where it is one, and beside None where that may be."""
    inside = get_args(hint)
    if get_origin(hint) is Annotated:  # the choices say more than its bounds; its words stay
        words = [Field(description=each.description) for each in inside[1:] if isinstance(each, FieldInfo)]
        return Annotated[(narrowed(inside[0], choices), *words)] if words else narrowed(inside[0], choices)
    if is_union(hint):
        return Union[tuple(each if each is type(None) else narrowed(each, choices) for each in inside)]  # noqa: UP007
    if _is_enum(hint):
        return _members(hint, [hint(choice) for choice in choices])
    holder = _holder(hint)
    if holder is tuple:
        return tuple[tuple(each if each is ... else narrowed(each, choices) for each in inside or (Any, ...))]  # type: ignore[misc]  # built at run time
    return holder[narrowed(inside[0] if inside else Any, choices)] if holder else Literal[choices]


def misfits(hint: Any, choices: Iterable[Any]) -> list[Any]:
    """The choices that are not what the hint says: the function would be handed something else than it asked for."""
    singles = list(_adapters(hint))
    return [choice for choice in choices if not any(_fits(*single, choice) for single in singles)]


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _members(kind: Any, chosen: Sequence[Any]) -> Any:
    """Some members of an Enum: what the function gets is a member still."""
    values = [each.value for each in chosen]

    def check(member: Any) -> Any:
        if member not in chosen:
            raise ValueError(f"choose one of {values!r}")
        return member

    return Annotated[kind, AfterValidator(check), Field(json_schema_extra={"enum": values})]


def _holder(hint: Any) -> Any:
    return _HOLDERS.get(get_origin(hint) or hint)


def _singles(hint: Any) -> Iterator[Any]:
    """The hints that one choice may have."""
    inside = get_args(hint)
    bare = inside[0] if get_origin(hint) is Annotated else hint
    if is_union(bare) or _holder(bare):
        for each in get_args(bare) or (Any,):
            yield from _singles(each) if each is not ... else ()
    else:
        yield hint


def _adapters(hint: Any) -> Iterator[tuple[TypeAdapter[Any], bool]]:
    """What checks a choice, and whether strictly: a member of an Enum may be told by its value."""
    for each in _singles(hint):
        with contextlib.suppress(PydanticUserError, SchemaError, NameError):  # which nothing fits
            yield TypeAdapter(each), not _is_enum(each)


def _fits(single: TypeAdapter[Any], strict: bool, choice: Any) -> bool:
    try:
        single.validate_python(choice, strict=strict)
    except Exception:  # noqa: BLE001  # a validator of its author's may raise what it likes
        return False
    return True


#: JSON's names of types, and ours.
JSON_TYPES: Mapping[str, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict, "null": None,
}  # fmt: skip


#: Text that small models send for a boolean.
TRUE_WORDS, FALSE_WORDS = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


_NAMES = {hint: name for name, hint in JSON_TYPES.items()}


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """One argument: `param_type` is any type hint, `element_type` what a list or dict holds, where that is a basic
    type.

    In its other spelling `type` names a JSON type instead, and an argument is optional unless it says `required=True`
    (seed: Tools Protocol Specification); `parameters={"city": ToolParameter(type="string")}` gives the name.
    `json_schema` is the schema itself, where the tool was described by one.
    """

    name: str = ""
    param_type: Any = str
    description: str = ""
    required: bool | None = None
    enum: Sequence[Any] | None = None
    default: Any = None
    element_type: Any = None
    type: str = ""
    json_schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._settle_type()
        if self.enum is not None:
            object.__setattr__(self, "enum", self.enum if isinstance(self.enum, str) else tuple(self.enum))
        if self.json_schema is None:
            self._check()

    def _settle_type(self) -> None:
        if self.required is None:
            object.__setattr__(self, "required", not self.type and self.default is None)
        if self.element_type is None:
            object.__setattr__(self, "element_type", _basic_element(self.param_type))
        if not self.type:
            object.__setattr__(self, "type", _NAMES.get(get_origin(self.param_type) or self.param_type, ""))
        elif self.type in JSON_TYPES:
            object.__setattr__(self, "param_type", self.param_type if self._is_narrower else JSON_TYPES[self.type])
        else:
            known = ", ".join(JSON_TYPES)
            raise ToolValidationError(f"parameter {self.name!r} has the type {self.type!r}; known: {known}")

    def _check(self) -> None:
        """Raise ToolValidationError for what would silently change the parameter's type."""
        is_bare = self.param_type in (list, dict)
        if self.element_type is not None and not is_bare and self.element_type != _basic_element(self.param_type):
            cure = "element_type says what a bare list or dict holds: make it one"
            raise ToolValidationError(f"parameter {self.name!r} is a {told(self.param_type)}: {cure}")
        if isinstance(self.enum, str):
            raise ToolValidationError(f"parameter {self.name!r} has the enum {self.enum!r}: give a list of values")
        wrong = misfits(self._collection(), self.enum) if self.enum else []
        if wrong:
            cure = "give values of its type, or make it their type"
            raise ToolValidationError(
                f"parameter {self.name!r} is a {told(self.param_type)}, and {wrong!r} of its enum are not: {cure}"
            )

    @property
    def annotation(self) -> Any:
        """The type hint that arguments are validated against."""
        own = self._collection()
        hint = lenient(narrowed(own, tuple(self.enum)) if self.enum else own)
        return hint if self.required or self.default is not None else Union[hint, None]  # noqa: UP007  # not a class

    def to_schema(self) -> dict[str, Any]:
        """The JSON schema of this one argument."""
        if self.json_schema is not None:
            return dict(self.json_schema)
        from sayso.agent.tools.arguments import TypedArguments  # which is built from parameters

        schema: dict[str, Any] = TypedArguments("parameter", [self]).schema["properties"][self.name]
        return schema

    @property
    def _is_narrower(self) -> bool:
        """Whether a hint says more than the JSON type beside it, as after `dataclasses.replace`."""
        return _NAMES.get(get_origin(self.param_type) or self.param_type) == self.type

    def _collection(self) -> Any:
        if self.element_type is None or self.param_type not in (list, dict):
            return self.param_type
        return dict[str, self.element_type] if self.param_type is dict else list[self.element_type]  # type: ignore[name-defined]


def default_description(name: str) -> str:
    """Return the description of an inferred parameter that nobody described (seed: Schema Inference)."""
    return f"Parameter '{name}'"


def _basic_element(hint: Any) -> Any:
    """Return the basic type that `list[str]` or `dict[str, int]` holds, also inside Optional; None for any other."""
    if get_origin(hint) is Annotated:
        return _basic_element(get_args(hint)[0])
    if is_union(hint):
        members = [each for each in get_args(hint) if each is not type(None)]
        return _basic_element(members[0]) if len(members) == 1 else None
    inside = get_args(hint) if get_origin(hint) in (list, dict) else ()
    return inside[-1] if inside and inside[-1] in (str, int, float, bool) else None


def told(hint: Any) -> str:
    """A type hint as an error names it."""
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def lenient(hint: Any) -> Any:
    """The hint, with chosen numbers and booleans also read from text, at any depth: small models quote everything, and
    Gemini has no other choices.

    An Iterable is a list: pydantic would check its items one by one, in the middle of the function that reads them.
    """
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal and not all(isinstance(choice, str) for choice in inside):
        return Annotated[hint, _reader(inside)]
    if isinstance(hint, type) and issubclass(hint, Enum):
        values = [each.value for each in hint]
        return hint if all(isinstance(value, str) for value in values) else Annotated[hint, _reader(values)]
    if origin is Annotated:
        return Annotated[(lenient(inside[0]), *inside[1:])]
    if is_union(hint):
        return Union[tuple(map(lenient, inside))]  # noqa: UP007  # built at run time
    if origin in _HOLDERS_of_parameter:
        return _HOLDERS_of_parameter[origin][tuple(map(lenient, inside))]
    return hint


#: What holds others, and what they are held in.
_HOLDERS_of_parameter: Mapping[Any, Any] = {
    list: list,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    dict: dict,
    Iterable: list,
}


def _spelled(choice: Any) -> Iterator[str]:
    if isinstance(choice, bool):
        yield from TRUE_WORDS if choice else FALSE_WORDS
    elif not isinstance(choice, str):
        yield str(choice).lower()


def _reader(choices: Sequence[Any]) -> BeforeValidator:
    by_text = {word: choice for choice in reversed(choices) for word in _spelled(choice)}

    def read(value: Any) -> Any:
        if isinstance(value, str) and value not in choices:
            return by_text.get(value.lower(), value)
        # JSON has one kind of number: 1.0 is a member of an enum that has 1.
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return BeforeValidator(read)


class Parameters(tuple[ToolParameter, ...]):
    """A tuple that can also be read as the mapping of names to parameters (seed: Tools Protocol Specification)."""

    __slots__ = ()

    @overload  # type: ignore[override]  # a name is one more way to ask
    def __getitem__(self, key: int | str) -> ToolParameter: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[ToolParameter, ...]: ...
    def __getitem__(self, key: int | str | slice) -> ToolParameter | tuple[ToolParameter, ...]:
        """By place or by name. Raises KeyError for a name that is not there."""
        return dict(self.items())[key] if isinstance(key, str) else super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self.keys() if isinstance(key, str) else super().__contains__(key)

    def keys(self) -> list[str]:
        """The names."""
        return [each.name for each in self]

    def values(self) -> list[ToolParameter]:
        """The parameters."""
        return list(self)

    def items(self) -> list[tuple[str, ToolParameter]]:
        """Each with its name."""
        return [(each.name, each) for each in self]

    def get(self, name: str, default: Any = None) -> Any:
        """The parameter of that name, else the default."""
        return dict(self.items()).get(name, default)


def as_parameters(tool_name: str, given: Any) -> Parameters:
    """Parameters as a tool is given them: in any order of their own, or by name. Raises ToolValidationError."""
    try:
        made = [replace(each, name=name) for name, each in given.items()] if isinstance(given, Mapping) else list(given)
    except TypeError:
        made = [given]
    if wrong := [each for each in made if not isinstance(each, ToolParameter)]:
        raise ToolValidationError(
            f"the parameters of {tool_name!r} hold {wrong[0]!r}: give ToolParameters, or one JSON Schema of an object",
            tool_name=tool_name,
        )
    return Parameters(made)
