"""Choices of a parameter that JSON writes otherwise: enum members, dates, tuples, bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import SchemaValidator, to_jsonable_python

#: Parts of pydantic's core schemas that hold values, or nothing that validates.
_NO_SCHEMAS = ("default", "expected", "members", "metadata", "serialization", "cls")
#: Parts that may be a mapping with names of a tool's author as keys: a parameter may be called
#: "type" or "default".
_BY_OWN_NAME = ("fields", "choices")
_JSON_SCALARS = (str, int, float, bool, type(None))


def validator_of(model: type[BaseModel]) -> SchemaValidator:
    """Return a validator of the model that reads every choice as the model's JSON Schema offers it.

    pydantic compares choices with Python's values only: its JSON Schema offers "cat" for
    `Literal[Kind.CAT]`, and its validator refuses it.
    """
    original = model.__pydantic_core_schema__
    schema = _with_readers(original)
    if schema == original:
        return cast("SchemaValidator", model.__pydantic_validator__)
    # Without the validators that the models inside it have already:
    # those would be used in place of the schema.
    return SchemaValidator(schema, _use_prebuilt=False)


def _with_readers(part: Any) -> Any:
    """Return a part of a core schema whose choices can be read as JSON writes them."""
    if isinstance(part, list | tuple):
        return type(part)(map(_with_readers, part))
    if not isinstance(part, dict):
        return part
    choices = {"literal": part.get("expected"), "enum": part.get("members")}.get(
        part.get("type", "")
    )
    if not choices:
        return {key: _part_with_readers(key, each) for key, each in part.items()}
    read = _reader(choices, are_values_read=part["type"] == "enum")
    if read is None:
        return part
    inner = {key: each for key, each in part.items() if key != "ref"}
    outer = {
        "type": "function-before",
        "function": {"type": "no-info", "function": read},
        "schema": inner,
    }
    if "ref" in part:
        return {**outer, "ref": part["ref"]}
    return outer


def _part_with_readers(key: str, value: Any) -> Any:
    """Return the value of a key of a core schema, with readers in all schemas that it holds."""
    if key in _NO_SCHEMAS:
        return value
    if key in _BY_OWN_NAME and isinstance(value, dict):
        return {name: _with_readers(each) for name, each in value.items()}
    return _with_readers(value)


def _reader(choices: Sequence[Any], *, are_values_read: bool) -> Callable[[Any], Any] | None:
    """Return a function from a choice as JSON writes it to the choice.

    None: the validator reads all of them.

    `are_values_read`: the validator reads the values of an Enum's members, if they are strings,
    numbers or the like.
    """
    written: list[tuple[Any, Any]] = []
    plain: list[Any] = []
    for choice in choices:
        value = choice.value if are_values_read else choice
        if type(value) in _JSON_SCALARS:
            plain.append(value)
        else:
            written.append((to_jsonable_python(choice), choice))
    written = [
        (text, choice)
        for text, choice in written
        if not any(_is_same(text, each) for each in plain)
    ]
    if not written:
        return None

    def read(value: Any) -> Any:
        """Return the choice that this value stands for, else the value."""
        return next((choice for text, choice in written if _is_same(text, value)), value)

    return read


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are the same. To Python, True equals 1."""
    return type(one) is type(other) and bool(one == other)
