"""The fields of the form in which a person changes a proposed call before they confirm it.

A tool names its `editable` arguments. Each becomes a FormField that has the type of the argument,
as far as the platforms have such a field.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sayso.agent.tools.names import name_in_words
from sayso.channels.edit_form import MAX_VALUE_CHARS, FieldType, FormField, fits_in_record

log = logging.getLogger(__name__)

#: Most choices of a field. Platforms show no more in one list.
MAX_CHOICES = 100
#: Longest label of a field, in characters. A longer one is cut.
MAX_LABEL_CHARS = 80
#: Longest description of a field, in characters. A longer one is cut.
MAX_DESCRIPTION_CHARS = 300
#: Longest choice, in characters. A longer one is not cut, since two could look alike: the argument
#: has no field.
MAX_CHOICE_CHARS = 75
#: The fields for texts that have a format in the schema; other texts are "text".
_FIELD_TYPES_OF_FORMATS: Mapping[str, FieldType] = {
    "date": "date",
    "time": "time",
    "date-time": "datetime",
    "decimal": "number",
}
#: The types of values that can be a choice.
_SCALARS = (str, int, float, bool)


def edit_fields(
    parameters: Mapping[str, Any], names: Sequence[str], args: Mapping[str, Any]
) -> tuple[dict[str, Any], ...]:
    """Return the fields of the form for these arguments of a call, ready for a record.

    `parameters` is the JSON Schema of the tool's parameters, as `tool.schema()["parameters"]`.
    `names` are the arguments that the person may change. `args` are the arguments of the call,
    which the form shows.

    An argument that fits in no form is left out: an object, a list of anything but text, a value
    that is too long, and a field beyond the limits of a record.
    """
    entries: list[dict[str, Any]] = []
    for name in names:
        schema = parameters["properties"].get(name)
        if schema is None:  # a pattern of the policy names arguments of several tools
            continue
        field = _field(name, schema, args.get(name), is_required=name in parameters["required"])
        if field is None or len(field.text) > MAX_VALUE_CHARS:
            continue
        entry = field.to_dict()
        if fits_in_record([*entries, entry]):
            entries.append(entry)
    return tuple(entries)


def _field(
    name: str, schema: Mapping[str, Any], value: Any, *, is_required: bool
) -> FormField | None:
    """Return the field for one argument with its value; None for one that fits in no form."""
    part, is_nullable = without_null(schema)
    choices = [each for each in part.get("enum", ()) if each is not None]
    field_type = _field_type(part, choices)
    if field_type is None:
        return None

    minimum = None
    maximum = None
    if field_type in ("integer", "number"):
        # From an exclusive bound, the nearest integer inside is one step away.
        minimum = _inclusive_bound(part, "minimum", "exclusiveMinimum", step=1)
        maximum = _inclusive_bound(part, "maximum", "exclusiveMaximum", step=-1)

    text_schema = part.get("items", part)  # of a list, the limit is that of its items
    max_chars = text_schema.get("maxLength")
    if not isinstance(max_chars, int) or max_chars > MAX_VALUE_CHARS:
        max_chars = MAX_VALUE_CHARS

    label = name_in_words(name) or name
    return FormField(
        name=name,
        label=label[:MAX_LABEL_CHARS],
        type=field_type,
        value=value,
        description=str(schema.get("description", ""))[:MAX_DESCRIPTION_CHARS],
        choices=tuple(choices) if field_type == "choice" else (),
        required=is_required and not is_nullable,
        max_chars=max_chars,
        # A Decimal is sent as text, so that it is not rounded.
        as_text=field_type == "number" and part.get("type") == "string",
        minimum=minimum,
        maximum=maximum,
    )


def without_null(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the schema of a value that is not null, and whether null is allowed."""
    alternatives = schema.get("anyOf", ())
    parts = [part for part in alternatives if part.get("type") != "null"]
    if len(parts) == 1:
        around_union = {key: value for key, value in schema.items() if key != "anyOf"}
        return {**parts[0], **around_union}, len(alternatives) > 1
    types = schema.get("type")
    if isinstance(types, list | tuple):
        other_types = [name for name in types if name != "null"]
        if len(other_types) == 1:
            return {**schema, "type": other_types[0]}, "null" in types
    return schema, False


def _field_type(part: Mapping[str, Any], choices: Sequence[Any]) -> FieldType | None:
    """Return how a value is filled in; None if it fits in no form.

    `part` is its schema without null, and `choices` are the values that it may have; empty if it
    may have any.
    """
    if choices:
        are_short = all(
            isinstance(each, _SCALARS) and len(str(each)) <= MAX_CHOICE_CHARS for each in choices
        )
        if are_short and len(choices) <= MAX_CHOICES:
            return "choice"
        return None

    items = part.get("items")
    match part.get("type"):
        case "boolean":
            return "boolean"
        case "integer":
            return "integer"
        case "number":
            return "number"
        case "string":
            return _FIELD_TYPES_OF_FORMATS.get(str(part.get("format", "")), "text")
        case "array" if (
            isinstance(items, Mapping) and items.get("type") == "string" and "enum" not in items
        ):
            return "lines"
    return None


def _inclusive_bound(
    part: Mapping[str, Any], inclusive_key: str, exclusive_key: str, *, step: int
) -> float | None:
    """Return a bound of a number as an inclusive one; None if there is none.

    `step` leads from an exclusive bound to the nearest integer inside. For other numbers there is
    no nearest one: an exclusive bound is returned unchanged, and the tool checks the value again.
    """
    inclusive = part.get(inclusive_key)
    if isinstance(inclusive, int | float):
        return inclusive
    exclusive = part.get(exclusive_key)
    if not isinstance(exclusive, int | float):
        return None
    if part.get("type") == "integer":
        return exclusive + step
    return exclusive
