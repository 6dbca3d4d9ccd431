"""The parameters of a tool, and the pydantic model that is compiled from them."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from types import GenericAlias, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, PydanticJsonSchemaWarning
from pydantic_core import SchemaError, to_jsonable_python

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.json_choices import validator_of
from sayso.agent.tools.json_schema import NUMBER_KEYWORDS, frozen, plain, with_sorted_sets
from sayso.pending.error_texts import error_text

#: JSON's names of types, and Python's types.
JSON_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": None,
}
#: How a Decimal is written. One that was read is written the same way again.
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?$"


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """One argument of a tool.

    `param_type` is any type hint, `element_type` the basic type that a list or dict holds.

    There is another way to write it: `parameters={"city": ToolParameter(type="string")}` gives the
    name, `type` names a JSON type, and the argument is optional unless `required=True`.
    `json_schema` is the schema itself, for a tool that is defined by a JSON Schema.
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
        if self.required is None:
            object.__setattr__(self, "required", not self.type and self.default is None)
        if self.element_type is None:
            object.__setattr__(self, "element_type", element_type_of(self.param_type))
        if not self.type:
            object.__setattr__(self, "type", json_type_of(self.param_type))
        elif self.type not in JSON_TYPES:
            known = ", ".join(JSON_TYPES)
            raise ToolValidationError(
                f"parameter {self.name!r} has the type {self.type!r}; known: {known}"
            )
        elif json_type_of(self.param_type) != self.type:
            object.__setattr__(self, "param_type", JSON_TYPES[self.type])
        if isinstance(self.enum, AbstractSet):
            object.__setattr__(self, "enum", tuple(sorted(self.enum, key=repr)))
        elif self.enum is not None and not isinstance(self.enum, str):
            object.__setattr__(self, "enum", tuple(self.enum))
        if self.json_schema is None:
            self._check()

    def _check(self) -> None:
        """Raise ToolValidationError for fields that contradict the parameter's type."""
        is_bare = self.param_type in (list, dict)
        if (
            self.element_type is not None
            and not is_bare
            and self.element_type != element_type_of(self.param_type)
        ):
            cure = "element_type says what a bare list or dict holds: make it one"
            raise ToolValidationError(
                f"parameter {self.name!r} is a {hint_name(self.param_type)}: {cure}"
            )
        if isinstance(self.enum, str):
            raise ToolValidationError(
                f"parameter {self.name!r} has the enum {self.enum!r}: give a list of values"
            )
        if self.enum:
            wrong = choices_of_other_types(self._hint, self.enum)
        else:
            wrong = []
        if wrong:
            cure = "give values of its type, or make it their type"
            raise ToolValidationError(
                f"parameter {self.name!r} is a {hint_name(self.param_type)}, and {wrong!r} of its enum are not: {cure}"
            )

    @property
    def annotation(self) -> Any:
        """The type hint that arguments are validated against."""
        hint = _read_whole(limited_to(self._hint, tuple(self.enum)) if self.enum else self._hint)
        if self.required or self.default is not None:
            return hint
        return union(hint, None)

    @property
    def _hint(self) -> Any:
        if self.element_type is None or self.param_type not in (list, dict):
            return self.param_type
        if self.param_type is dict:
            return GenericAlias(dict, (str, self.element_type))
        return GenericAlias(list, (self.element_type,))

    def to_schema(self) -> dict[str, Any]:
        """Return the JSON schema of this one argument."""
        if self.json_schema is not None:
            return dict(self.json_schema)
        schema: dict[str, Any] = ParameterModel("parameter", [self]).schema["properties"][self.name]
        return schema


def default_description(name: str) -> str:
    """Return the description of an inferred parameter that was given none."""
    return f"Parameter '{name}'"


class Parameters(tuple[ToolParameter, ...]):
    """The parameters of a tool: a tuple that can also be read by name, like a mapping.

    Two documented APIs need both: `tool.parameters[0]` and `tool.parameters["city"]`.
    """

    __slots__ = ()

    @overload  # type: ignore[override]  # an item can be read by its name, too
    def __getitem__(self, key: int | str) -> ToolParameter: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[ToolParameter, ...]: ...
    def __getitem__(self, key: int | str | slice) -> ToolParameter | tuple[ToolParameter, ...]:
        """Return a parameter by index or by name. Raises KeyError for an unknown name."""
        if isinstance(key, str):
            return dict(self.items())[key]
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return key in self.keys()
        return super().__contains__(key)

    def keys(self) -> list[str]:
        """Return the names."""
        return [each.name for each in self]

    def values(self) -> list[ToolParameter]:
        """Return the parameters."""
        return list(self)

    def items(self) -> list[tuple[str, ToolParameter]]:
        """Return each parameter with its name."""
        return [(each.name, each) for each in self]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the parameter of that name, else the default."""
        return dict(self.items()).get(name, default)


def as_parameters(tool_name: str, given: Any) -> Parameters:
    """Return what a tool was given as its parameters, a sequence or a dict by name.

    Raises ToolValidationError.
    """
    try:
        if isinstance(given, Mapping):
            named = [replace(each, name=name) for name, each in given.items()]
        else:
            named = given
        parameters = list(named)
    except TypeError:
        parameters = [given]
    if wrong := [each for each in parameters if not isinstance(each, ToolParameter)]:
        raise ToolValidationError(
            f"the parameters of {tool_name!r} hold {wrong[0]!r}: give ToolParameters, or one JSON Schema of an object",
            tool_name=tool_name,
        )
    return Parameters(parameters)


def union(*hints: Any) -> Any:
    """Return the union of type hints, which `|` makes of classes only."""
    return Union[hints]  # noqa: UP007


def is_union(hint: Any) -> bool:
    """Return whether the hint is a union, written `A | B` or `Union[A, B]`."""
    return get_origin(hint) in (Union, UnionType)


def may_be_none(hint: Any) -> bool:
    """Return whether the hint is a union with None, also inside `Annotated`."""
    if get_origin(hint) is Annotated:
        bare = get_args(hint)[0]
    else:
        bare = hint
    return is_union(bare) and type(None) in get_args(bare)


def json_type_of(hint: Any) -> str:
    """Return JSON's name of the type; "" for a hint that has none."""
    return _JSON_TYPE_NAMES.get(get_origin(hint) or hint, "")


_JSON_TYPE_NAMES = {hint: name for name, hint in JSON_TYPES.items()}


def element_type_of(hint: Any) -> Any:
    """Return the basic type that `list[str]` or `dict[str, int]` holds, also inside Optional.

    None for any other hint.
    """
    if get_origin(hint) is Annotated:
        return element_type_of(get_args(hint)[0])
    if is_union(hint):
        members = [each for each in get_args(hint) if each is not type(None)]
        if len(members) == 1:
            return element_type_of(members[0])
        return None
    inside = get_args(hint) if get_origin(hint) in (list, dict) else ()
    if inside and inside[-1] in (str, int, float, bool):
        return inside[-1]
    return None


def hint_name(hint: Any) -> str:
    """Return a type hint as an error names it."""
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    return str(hint)


def limited_to(hint: Any, choices: tuple[Any, ...]) -> Any:
    """Return the hint limited to these choices.

    Of a list its items are limited. In a union with None, None stays allowed.
    """
    origin = get_origin(hint)
    inside = get_args(hint)
    if origin is Annotated:  # the choices replace its bounds; its description stays
        fields = [
            Field(description=each.description)
            for each in inside[1:]
            if isinstance(each, FieldInfo)
        ]
        if fields:
            return Annotated[(limited_to(inside[0], choices), *fields)]
        return limited_to(inside[0], choices)
    if is_union(hint):
        return union(
            *(each if each is type(None) else limited_to(each, choices) for each in inside)
        )
    if list in (origin, hint):
        return list[limited_to(Any, choices)]  # type: ignore[misc]
    return Literal[choices]


def choices_of_other_types(hint: Any, choices: Iterable[Any]) -> list[Any]:
    """Return the choices that are neither values of the hint nor items of its list:
    they would change the type.
    """
    try:
        adapter = TypeAdapter(hint)
    except (PydanticUserError, SchemaError, NameError):
        return list(choices)

    def fits(value: Any) -> bool:
        try:
            adapter.validate_python(value, strict=True)
        except Exception:  # a validator written by the tool's author may raise anything
            return False
        return True

    # An Enum says itself what may be chosen.
    return [
        choice
        for choice in choices
        if isinstance(choice, Enum) or not (fits(choice) or fits([choice]))
    ]


def _read_whole(hint: Any) -> Any:
    """Return the hint with a list in place of an Iterable.

    Pydantic would check the items only while the function reads them.
    """
    if get_origin(hint) is Iterable:
        return GenericAlias(list, get_args(hint))
    if is_union(hint):
        return union(*map(_read_whole, get_args(hint)))
    return hint


#: Names of fields that stand for parameters whose own names pydantic reserves.
_STAND_IN = re.compile(r"p\d+_")
#: How pydantic's schemas mark values that must not be shown again: SecretStr and similar types.
_MASKED = '"writeOnly": true'


class ParameterModel:
    """The pydantic model of a tool's parameters and its JSON schema.

    Compiled once for each tool.
    """

    def __init__(self, tool_name: str, parameters: Sequence[ToolParameter]) -> None:
        """Raises ToolValidationError for a type hint that no JSON can fill."""
        self._tool_name = tool_name
        self.parameters = {parameter.name: parameter for parameter in parameters}
        self.model = self._create_model()
        self.validator = validator_of(self.model)
        #: The parameters' own names, by the fields that stand for them.
        self.renamed = {
            name: str(field.alias) for name, field in self.model.model_fields.items() if field.alias
        }
        #: The fields with defaults that only the program can make: JSON cannot hold them,
        #: or their hint refuses them.
        self.internal_defaults = frozenset(self._internal_defaults())
        self.schema: dict[str, Any] = frozen(self._plain_schema())

    def _create_model(self) -> type[BaseModel]:
        """Create the model.

        Its fields have the parameters' names, except those that pydantic reserves, like `json`.
        """
        fields: dict[str, Any] = {}
        # Any bound on the length makes pydantic look into texts: a lone surrogate,
        # which UTF-8 cannot hold, is refused.
        config = ConfigDict(extra="forbid", allow_inf_nan=False, str_min_length=0)
        try:
            for index, (name, each) in enumerate(self.parameters.items()):
                # Overrule `exclude` in the hint: what is not stored could not be confirmed.
                options: dict[str, Any] = {"exclude": False}
                # Else the description in Annotated[..., Field(description=...)] counts. The default
                # one is left out: models would read the name twice.
                if each.description not in ("", default_description(name)):
                    options["description"] = each.description
                is_reserved = (
                    hasattr(BaseModel, name)
                    or name.startswith(("model_", "_"))
                    or _STAND_IN.fullmatch(name)
                )
                if is_reserved:
                    options["alias"] = name
                field = Field(... if each.required else each.default, **options)
                fields[f"p{index}_" if is_reserved else name] = each.annotation, field
            model: type[BaseModel] = create_model(self._tool_name, __config__=config, **fields)
            model.model_rebuild()  # raises for names in hints that are not defined anywhere
        except (PydanticUserError, SchemaError, NameError, TypeError, ValueError) as exc:
            raise self._unfillable(_reason(exc)) from exc
        if list(model.model_fields) != list(fields):
            raise self._unfillable(f"of {list(fields)!r}, {list(model.model_fields)!r} are left")
        if _excludes_fields(model.__pydantic_core_schema__):
            raise self._unfillable(
                "a field inside it has exclude=: no policy and no person would see it; leave that out"
            )
        return model

    def _internal_defaults(self) -> Iterator[str]:
        blank = self.model.model_construct()
        for field, parameter in zip(self.model.model_fields, self.parameters.values(), strict=True):
            if parameter.required or parameter.default is None:
                continue
            try:
                as_json = to_jsonable_python(parameter.default)
                json.dumps(as_json, allow_nan=False)
                self.validator.validate_assignment(blank, field, as_json)
            except Exception:  # validators written by the tool's author may raise anything
                yield field

    def _plain_schema(self) -> dict[str, Any]:
        """Return the JSON schema.

        Raises ToolValidationError when it does not describe exactly these parameters.
        """
        with warnings.catch_warnings():
            # A default that JSON cannot hold is left out below.
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            try:
                raw = self.model.model_json_schema(schema_generator=ToolSchemaGenerator)
            except PydanticUserError as exc:
                raise self._unfillable(_reason(exc)) from exc
        for field in self.internal_defaults:
            raw["properties"][self.renamed.get(field, field)].pop("default", None)
        optional = (
            name
            for name, each in self.parameters.items()
            if not each.required and each.default is None
        )
        schema = with_sorted_sets(plain(raw, frozenset(optional)))
        if list(schema["properties"]) != list(self.parameters):
            raise self._unfillable(
                f"of {list(self.parameters)!r}, {list(schema['properties'])!r} are left"
            )
        try:
            text = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError) as exc:
            raise self._unfillable(f"its schema is no JSON ({exc})") from exc
        if _MASKED in text:  # it would be stored, confirmed and run as asterisks
            raise self._unfillable("a secret that a model sends is none: inject it, or take a str")
        return schema

    def _unfillable(self, reason: str) -> ToolValidationError:
        message = f"tool {self._tool_name!r} has a parameter no model can fill: {reason}"
        return ToolValidationError(message, tool_name=self._tool_name)


class ToolSchemaGenerator(GenerateJsonSchema):
    """Generates the JSON schema of parameters; pydantic makes one for each schema.

    A Decimal is text. Pydantic's own schema says number or text, which a model reads as two types
    with bounds on only one of them, and a number would come through a float. A number that a model
    sends is still accepted.
    """

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of a Decimal: text with a pattern and bounds.

        JSON Schema does not apply the bounds to text, but models read them.
        """
        number: dict[str, Any] = super().decimal_schema(schema)["anyOf"][0]
        bounds = {key: number[key] for key in NUMBER_KEYWORDS if key in number}
        return {"type": "string", "format": "decimal", "pattern": _DECIMAL, **bounds}


def _excludes_fields(core_schema: Any) -> bool:
    """Return whether a field at any depth is left out when the arguments are written as JSON."""
    remaining = [core_schema]
    while remaining:
        part = remaining.pop()
        if isinstance(part, dict):
            if part.get("serialization_exclude") or part.get("serialization_exclude_if"):
                return True
            remaining += part.values()
        elif isinstance(part, list | tuple):
            remaining += part
    return False


def _reason(error: Exception) -> str:
    """Return the line of pydantic's message that says what is wrong; the rest are places and links."""
    lines = error_text(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, SchemaError):
        return lines[-1]
    return lines[0]
