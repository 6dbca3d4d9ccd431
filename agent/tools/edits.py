"""The fields of the form by which a person changes a proposed call."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sayso.agent.tools.definition import name_in_words
from sayso.channels.forms import MAX_VALUE_CHARS, FieldType, FormField, fits_in_record

log = logging.getLogger(__name__)

#: Most choices of a field. Platforms show no more in one list.
MAX_CHOICES = 100
#: Characters of a label, of a description and of a choice in a form.
MAX_LABEL_CHARS = 80
MAX_DESCRIPTION_CHARS = 300
MAX_CHOICE_CHARS = 75
#: The types of texts with a form of their own, by the format in the schema.
_FORMATS: Mapping[str, FieldType] = {
    "date": "date",
    "time": "time",
    "date-time": "datetime",
    "decimal": "number",
}
_SCALARS = (str, int, float, bool)


def edit_fields(
    parameters: Mapping[str, Any], names: Sequence[str], args: Mapping[str, Any]
) -> tuple[dict[str, Any], ...]:
    """Return the fields of the form for these arguments of a call, ready for a record.

    `parameters` is the JSON Schema of the tool's parameters, as `tool.schema()["parameters"]`, and
    `names` are the arguments that the person may change. The fields have the present values. What
    fits in no form is left out: objects, lists of anything but text, present values that are too
    long, and fields beyond the limits of a record.
    """
    entries: list[dict[str, Any]] = []
    for name in names:
        schema = parameters["properties"].get(name)
        if schema is None:
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
    """Return the field for one argument, None for what fits in no form."""
    part, is_nullable = _without_null(schema)
    choices = [each for each in part.get("enum", ()) if each is not None]
    kind = _field_type(part, choices)
    if kind is None:
        return None
    label = name_in_words(name)[:MAX_LABEL_CHARS] or name[:MAX_LABEL_CHARS]
    bounds = dict[str, Any]()
    if kind in ("integer", "number"):
        bounds = {"minimum": _bound(part, "inimum", 1), "maximum": _bound(part, "aximum", -1)}
    inner = part.get("items", part)
    longest = inner.get("maxLength")
    if not isinstance(longest, int) or longest > MAX_VALUE_CHARS:
        longest = MAX_VALUE_CHARS
    return FormField(
        name=name,
        label=label,
        type=kind,
        value=value,
        description=str(schema.get("description", ""))[:MAX_DESCRIPTION_CHARS],
        choices=tuple(choices) if kind == "choice" else (),
        required=is_required and not is_nullable,
        max_chars=longest,
        as_text=kind == "number" and part.get("type") == "string",
        **bounds,
    )


def _without_null(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the schema of a value that is not null, and whether null is allowed."""
    parts = [part for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    if len(parts) == 1:
        around = {key: value for key, value in schema.items() if key != "anyOf"}
        return {**parts[0], **around}, True
    kinds = schema.get("type")
    if isinstance(kinds, list | tuple):
        others = [kind for kind in kinds if kind != "null"]
        if len(others) == 1:
            return {**schema, "type": others[0]}, "null" in kinds
    return schema, False


def _field_type(part: Mapping[str, Any], choices: Sequence[Any]) -> FieldType | None:
    """Return how a value is filled in, None if it fits in no form."""
    if choices:
        fits = all(
            isinstance(each, _SCALARS) and len(str(each)) <= MAX_CHOICE_CHARS for each in choices
        )
        return "choice" if fits and len(choices) <= MAX_CHOICES else None
    items = part.get("items")
    match part.get("type"):
        case "boolean":
            return "boolean"
        case "integer":
            return "integer"
        case "number":
            return "number"
        case "string":
            return _FORMATS.get(str(part.get("format", "")), "text")
        case "array" if (
            isinstance(items, Mapping) and items.get("type") == "string" and "enum" not in items
        ):
            return "lines"
    return None


def _bound(part: Mapping[str, Any], ending: str, step: int) -> float | None:
    """Return a bound of a number as an inclusive one, None if there is none.

    `ending`: of "minimum" or "maximum", without the first letter. `step`: from an exclusive bound
    of an integer to the nearest value inside. An exclusive bound of any other number is returned as
    if it was inclusive: the tool checks the value again.
    """
    inclusive = part.get(f"m{ending}")
    exclusive = part.get(f"exclusiveM{ending}")
    if isinstance(inclusive, int | float):
        return inclusive
    if not isinstance(exclusive, int | float):
        return None
    if part.get("type") == "integer":
        return exclusive + step
    return exclusive
