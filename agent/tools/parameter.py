"""The parameters of a tool: a ToolParameter is one parameter, Parameters are all of one tool.

A ParameterModel compiles them to a pydantic model with a field for each parameter. It checks the
arguments of a call, and gives the JSON Schema that language models read.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from types import GenericAlias, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, overload

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    TypeAdapter,
    WrapValidator,
    create_model,
)
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, PydanticJsonSchemaWarning
from pydantic_core import SchemaError, to_jsonable_python

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.json_choices import validator_of
from sayso.agent.tools.json_schema import (
    NUMBER_KEYWORDS,
    frozen,
    schema_for_models,
    with_sorted_sets,
)
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
#: Hints that a JSON array fills, and whose items an `enum` limits.
_LIST_TYPES = (list, Sequence, MutableSequence)
#: How a Decimal is written as text.
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?$"


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """One parameter of a tool.

    It can be written in two ways. `ToolParameter("city", str)` has a type hint, and is required
    unless it has a default. `{"city": ToolParameter(type="string")}` has the name of a JSON type,
    and is optional unless `required=True`; the mapping gives it its name.

    The constructor fills in `required`, `type` and `element_type` where they are not given, and
    `dataclasses.replace` passes on what it has filled in. With a new `param_type` give replace
    `type=""` and `element_type=None` too, and with a new `default` give it `required=None`: then
    they are filled in anew.
    """

    name: str = ""
    #: Any type hint; left out, it follows `type`, and is `str` without a `type`.
    param_type: Any = ...
    #: What models read about it; "" for none.
    description: str = ""
    #: None lets the constructor decide as said above. After that it is never None.
    required: bool | None = None
    #: The plain values that are allowed, for a list those of its items; None, or no values, for all
    #: of the type. Validators in `param_type` apply to these values as to others.
    enum: Sequence[Any] | None = None
    #: None for no default: an optional parameter that is left out is None then.
    default: Any = None
    #: The basic type that a bare `list` or `dict` holds, such as str; None for any.
    element_type: Any = None
    #: The name of the JSON type; left out, it follows `param_type`. "" for a hint that has none,
    #: such as a union.
    type: str = ""
    #: The property's schema, for a tool that is defined by one JSON Schema; None for a tool with
    #: type hints. SchemaArguments checks the arguments of such a tool by its whole schema. The
    #: other fields only describe the property, and may be simpler than its schema.
    json_schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        # The first step, since the next one fills in `type`.
        if self.required is None:
            self._set("required", not self.type and self.default is None)
        self._complete_types()

        # A set is sorted, since each process has another order of it.
        if isinstance(self.enum, AbstractSet):
            self._set("enum", tuple(sorted(self.enum, key=repr)))
        elif self.enum is not None and not isinstance(self.enum, str):
            self._set("enum", tuple(self.enum))
        if self.json_schema is None:
            self._check()

    def _complete_types(self) -> None:
        """Fill in what was not given of `type`, `param_type` and `element_type`.

        Raises ToolValidationError for an unknown `type`, and for one that contradicts `param_type`.
        """
        if self.type and self.type not in JSON_TYPES:
            known = ", ".join(JSON_TYPES)
            raise ToolValidationError(
                f"parameter {self.name!r} has the type {self.type!r}; known: {known}"
            )
        if self.param_type is ...:
            self._set("param_type", JSON_TYPES[self.type or "string"])

        json_type = json_type_of(self.param_type)
        # `dataclasses.replace` passes the old `type` on, which then contradicts a new hint.
        if self.type and self.type != json_type:
            raise ToolValidationError(
                f"parameter {self.name!r} has the type {self.type!r} and the param_type "
                f"{hint_name(self.param_type)}: give one of them; with replace, give type='' too"
            )
        self._set("type", json_type)
        if self.element_type is None:
            self._set("element_type", element_type_of(self.param_type))

    def _set(self, name: str, value: Any) -> None:
        """Set a field of this frozen dataclass, while it is constructed."""
        object.__setattr__(self, name, value)

    def _check(self) -> None:
        """Raise ToolValidationError for fields that contradict the parameter's type."""
        has_bare_type = self.param_type in (list, dict)
        is_of_type = self.element_type in (None, element_type_of(self.param_type))
        if not has_bare_type and not is_of_type:
            cure = (
                "element_type says what a bare list or dict holds: make it one; "
                "with replace, give element_type=None too"
            )
            raise ToolValidationError(
                f"parameter {self.name!r} is a {hint_name(self.param_type)}: {cure}"
            )
        self._check_enum()

    def _check_enum(self) -> None:
        """Raise ToolValidationError for an `enum` that holds anything but values of the type.

        A member of an Enum is refused, too: the schema's `enum` holds plain values.
        """
        if isinstance(self.enum, str):
            raise ToolValidationError(
                f"parameter {self.name!r} has the enum {self.enum!r}: give a list of values"
            )
        for choice in self.enum or ():
            if isinstance(choice, Enum):
                member = f"{type(choice).__name__}.{choice.name}"
                raise ToolValidationError(
                    f"parameter {self.name!r} has {member} in its enum, which holds plain values: "
                    f"leave the enum out, or give Literal[{member}] as the type"
                )
        if not self.enum:
            return

        wrong = choices_of_other_types(self._hint, self.enum)
        if wrong:
            cure = "give values of its type, or make it their type"
            raise ToolValidationError(
                f"parameter {self.name!r} is a {hint_name(self.param_type)}, "
                f"and {wrong!r} of its enum are not: {cure}"
            )
        # A validator that changes a value before it is compared may leave none that is allowed.
        changed = choices_of_other_types(limited_to(self._hint, tuple(self.enum)), self.enum)
        if changed:
            raise ToolValidationError(
                f"parameter {self.name!r} has a validator that changes {changed!r} of its enum "
                "to other values before they are compared: make it an AfterValidator"
            )

    @property
    def annotation(self) -> Any:
        """The type hint that arguments are validated against."""
        hint = self._hint
        if self.enum:
            hint = limited_to(hint, tuple(self.enum))
        if self.required or self.default is not None:
            return hint
        return union(hint, None)

    @property
    def _hint(self) -> Any:
        """The type hint with `element_type`, and with a list for each Iterable."""
        if self.element_type is not None and self.param_type is dict:
            return GenericAlias(dict, (str, self.element_type))
        if self.element_type is not None and self.param_type is list:
            return GenericAlias(list, (self.element_type,))
        return _with_lists_for_iterables(self.param_type)

    def to_schema(self) -> dict[str, Any]:
        """Return the JSON schema of this parameter.

        That of a type that contains itself refers to its `$defs`.
        """
        if self.json_schema is not None:
            return dict(self.json_schema)
        of_all = ParameterModel("parameter", [self]).schema
        schema: dict[str, Any] = of_all["properties"][self.name]
        if "$defs" in of_all:
            return {**schema, "$defs": of_all["$defs"]}
        return schema


def default_description(name: str) -> str:
    """Return the description of a parameter that neither docstring nor hint describes."""
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
    """Return the Parameters for what a tool's author gives: ToolParameters, in a list or by name.

    Raises ToolValidationError for anything else. Their names are checked by ToolDefinition.
    """
    try:
        if isinstance(given, Mapping):
            parameters = [replace(each, name=name) for name, each in given.items()]
        else:
            parameters = list(given)
    except TypeError:  # neither a list nor ToolParameters by name: refused below
        parameters = [given]
    for each in parameters:
        if not isinstance(each, ToolParameter):
            raise ToolValidationError(
                f"the parameters of {tool_name!r} hold {each!r}: "
                "give ToolParameters, or one JSON Schema of an object",
                tool_name=tool_name,
            )
    return Parameters(parameters)


def union(*hints: Any) -> Any:
    """Return the union of type hints. The operator `|` takes classes only."""
    return Union[hints]  # noqa: UP007


def is_union(hint: Any) -> bool:
    """Return whether the hint is a union, written `A | B` or `Union[A, B]`."""
    return get_origin(hint) in (Union, UnionType)


def may_be_none(hint: Any) -> bool:
    """Return whether the hint is a union with None, also inside `Annotated`."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return is_union(hint) and type(None) in get_args(hint)


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

    The items of a list are limited. In a union with None, None stays allowed. In any other union
    each member is replaced by all choices, so a list may be given in place of a single value.
    """
    inside = get_args(hint)
    if get_origin(hint) is Annotated:
        limited = limited_to(inside[0], choices)
        notes = list(inside[1:])
        # The bounds of a list limit its length, and stay.
        if not _may_be_list(hint):
            notes = _notes_beside_choices(notes)
        return Annotated[(limited, *notes)] if notes else limited
    if is_union(hint):
        members = [each if each is type(None) else limited_to(each, choices) for each in inside]
        return union(*members)
    if not _may_be_list(hint):
        return Literal[choices]

    item: Any = Literal[choices]
    # The items may have validators.
    if inside and get_origin(inside[0]) is Annotated and not _may_be_list(inside[0]):
        item = limited_to(inside[0], choices)
    return GenericAlias(list, (item,))


def _notes_beside_choices(notes: Sequence[Any]) -> list[Any]:
    """Return what a value that is limited to choices needs of the notes in its Annotated.

    These are its description, and what may change the value. Its bounds are not needed:
    `choices_of_other_types` has checked all choices against them.
    """
    kept: list[Any] = []
    for note in notes:
        match note:
            case FieldInfo():
                kept.append(Field(description=note.description))
            case StringConstraints():
                change = StringConstraints(
                    strip_whitespace=note.strip_whitespace,
                    to_lower=note.to_lower,
                    to_upper=note.to_upper,
                )
                kept.append(change)
            case PlainValidator():
                # It would replace the comparison with the choices.
                kept.append(AfterValidator(note.func))
            case AfterValidator() | BeforeValidator() | WrapValidator():
                kept.append(note)
    return kept


def choices_of_other_types(hint: Any, choices: Sequence[Any]) -> list[Any]:
    """Return the choices that do not fit the hint, or for a list the hint of its items.

    A hint that pydantic does not know fits none.
    """
    if not choices:
        return []
    try:
        adapter = TypeAdapter(_hint_of_choice(hint))
    except (PydanticUserError, SchemaError, NameError):
        return list(choices)

    def fits(value: Any) -> bool:
        try:
            adapter.validate_python(value, strict=True)
        except Exception:  # a validator written by the tool's author may raise anything
            return False
        return True

    return [choice for choice in choices if not fits(choice)]


def _hint_of_choice(hint: Any) -> Any:
    """Return the hint of the items of a list, also inside Annotated and unions; else the hint."""
    if not _may_be_list(hint):
        return hint
    inside = get_args(hint)
    if is_union(hint):
        return union(*map(_hint_of_choice, inside))
    if get_origin(hint) is Annotated:
        return _hint_of_choice(inside[0])
    return inside[0] if inside else Any


def _may_be_list(hint: Any) -> bool:
    """Return whether the hint is a list or a similar type, also inside Annotated and unions."""
    inside = get_args(hint)
    if is_union(hint):
        return any(map(_may_be_list, inside))
    if get_origin(hint) is Annotated:
        return _may_be_list(inside[0])
    return (get_origin(hint) or hint) in _LIST_TYPES


def _with_lists_for_iterables(hint: Any) -> Any:
    """Return the hint with a list in place of each Iterable, also inside other hints.

    Pydantic checks the items of an Iterable one by one, while the function reads them. A wrong item
    would stop the function halfway. A list is checked before the function starts. The fields of a
    model or dataclass, which the tool's author wrote, stay.
    """
    inside = get_args(hint)
    if get_origin(hint) is Annotated:
        return Annotated[(_with_lists_for_iterables(inside[0]), *inside[1:])]

    changed = tuple(map(_with_lists_for_iterables, inside))
    if Iterable in (get_origin(hint), hint):
        return GenericAlias(list, changed) if changed else list
    if changed == inside:
        return hint
    if is_union(hint):
        return union(*changed)
    return get_origin(hint)[changed]


#: Names of fields for parameters whose own names pydantic reserves.
_SUBSTITUTE_NAME = re.compile(r"p\d+_")
#: How pydantic's schemas mark values that must not be shown again: SecretStr and similar types.
_MASKED = '"writeOnly": true'


class ParameterModel:
    """The pydantic model of a tool's parameters, and its JSON schema.

    Compiled once for each tool, and used for each call.
    """

    def __init__(self, tool_name: str, parameters: Sequence[ToolParameter]) -> None:
        """Compile the model. Raises ToolValidationError for a type hint that no JSON can fill."""
        self._tool_name = tool_name
        self.parameters = {parameter.name: parameter for parameter in parameters}
        # Each step reads what those before it have set.
        self.model = self._create_model()
        #: Pydantic's validator, changed to read choices that JSON writes otherwise, such as dates.
        self.validator = validator_of(self.model)
        #: The names of parameters whose fields are called otherwise, by field name.
        self.renamed = {
            name: str(field.alias) for name, field in self.model.model_fields.items() if field.alias
        }
        #: The fields with defaults that no language model could send: JSON cannot hold them, or
        #: their hint refuses them. The schema leaves these defaults out, and a call that omits such
        #: a field is stored and shown without it.
        self.internal_defaults = frozenset(self._internal_defaults())
        #: The JSON schema that language models read. Immutable, since all calls share it.
        self.schema: dict[str, Any] = frozen(self._plain_schema())

    def _create_model(self) -> type[BaseModel]:
        """Create the model. Raises ToolValidationError.

        Its fields have the parameters' names, except those that pydantic reserves, like `json`.
        """
        fields: dict[str, Any] = {}
        try:
            for index, (name, each) in enumerate(self.parameters.items()):
                field_name = name
                if _is_reserved(name):
                    field_name = f"p{index}_"
                fields[field_name] = (each.annotation, _field(each, field_name))
            # Any bound on the length makes pydantic look into texts: a lone surrogate, which UTF-8
            # cannot hold, is refused.
            config = ConfigDict(extra="forbid", allow_inf_nan=False, str_min_length=0)
            model: type[BaseModel] = create_model(self._tool_name, __config__=config, **fields)
            model.model_rebuild()  # raises for names in hints that are not defined anywhere
        except (PydanticUserError, SchemaError, NameError, TypeError, ValueError) as exc:
            raise self._unfillable(_reason(exc)) from exc

        # Pydantic leaves out a field that is a ClassVar, for example.
        if list(model.model_fields) != list(fields):
            raise self._unfillable(f"of {list(fields)!r}, {list(model.model_fields)!r} are left")
        # `_field` overrules `exclude` for the parameters themselves, but not in models inside them.
        if _excludes_fields(model.__pydantic_core_schema__):
            raise self._unfillable(
                "a field inside it has exclude=: no policy and no person would see it; "
                "leave that out"
            )
        return model

    def _internal_defaults(self) -> Iterator[str]:
        """Yield the fields with defaults that no language model could send."""
        # To check one field alone, an object is needed, and its other fields may stay empty.
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
        # Pydantic leaves out a parameter with SkipJsonSchema, for example.
        names = list(raw.get("properties", {}))
        if names != list(self.parameters):
            raise self._unfillable(f"of {list(self.parameters)!r}, {names!r} are left")

        for field in self.internal_defaults:
            name = self.renamed.get(field, field)
            raw["properties"][name].pop("default", None)
        # To leave such a parameter out says None already, so its schema does not offer null too.
        optional = frozenset(
            name
            for name, each in self.parameters.items()
            if not each.required and each.default is None
        )
        schema = with_sorted_sets(schema_for_models(raw, optional))
        try:
            text = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError) as exc:
            raise self._unfillable(f"its schema is no JSON ({exc})") from exc
        # Such a value would be stored, confirmed and run as asterisks.
        if _MASKED in text:
            raise self._unfillable("a secret that a model sends is none: inject it, or take a str")
        return schema

    def _unfillable(self, reason: str) -> ToolValidationError:
        message = f"tool {self._tool_name!r} has a parameter no model can fill: {reason}"
        return ToolValidationError(message, tool_name=self._tool_name)


def _is_reserved(name: str) -> bool:
    """Return whether a field of a pydantic model cannot have this name, or should not."""
    return (
        hasattr(BaseModel, name)
        or name.startswith(("model_", "_"))
        or _SUBSTITUTE_NAME.fullmatch(name) is not None
    )


def _field(parameter: ToolParameter, field_name: str) -> Any:
    """Return pydantic's Field for a parameter."""
    # Overrule `exclude` in the hint: a value that is not stored could not be confirmed.
    options: dict[str, Any] = {"exclude": False}
    # A description here overrules the one in Annotated[..., Field(description=...)]. The default
    # one is left out, since models would read the name twice.
    if parameter.description not in ("", default_description(parameter.name)):
        options["description"] = parameter.description
    if field_name != parameter.name:
        options["alias"] = parameter.name
    default = ... if parameter.required else parameter.default
    return Field(default, **options)


class ToolSchemaGenerator(GenerateJsonSchema):
    """Generates the JSON schema of parameters; pydantic creates one for each schema.

    A Decimal is text. Pydantic's own schema says number or text. A model would read that as two
    types with bounds on only one of them, and a number would lose digits as a float. A number that
    a model sends is still accepted.
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
    """Return the line of pydantic's message that says what is wrong, without places and links."""
    lines = error_text(error).strip().splitlines() or [type(error).__name__]
    # A SchemaError first names the validators around the wrong part, from the outermost to it.
    # Other errors end with advice and links.
    if isinstance(error, SchemaError):
        return lines[-1]
    return lines[0]
