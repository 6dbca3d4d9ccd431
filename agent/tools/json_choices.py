"""Reading the choices of a parameter from JSON: enum members, dates, tuples, bytes.

A model sends JSON, which has no such values: it writes the choice `Kind.CAT` as "cat". pydantic's
JSON Schema offers "cat" for `Literal[Kind.CAT]`, and its validator then refuses it, since it
compares choices with Python's values only. `validator_of` closes this gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import SchemaValidator, to_jsonable_python

#: Keys of pydantic's core schemas with values, or with parts that validate nothing.
_KEYS_WITHOUT_SCHEMAS = ("default", "expected", "members", "metadata", "serialization", "cls")
#: Keys whose value may be a mapping with names that a tool's author chose: a parameter may be
#: called "type" or "default".
_KEYS_WITH_CHOSEN_NAMES = ("fields", "choices")
_JSON_SCALARS = (str, int, float, bool, type(None))


def validator_of(model: type[BaseModel]) -> SchemaValidator:
    """Return a validator of the model that reads each choice as its JSON Schema offers it."""
    original = model.__pydantic_core_schema__
    schema = _with_readers(original)
    if schema == original:
        return cast("SchemaValidator", model.__pydantic_validator__)
    # The models inside the schema have validators already. Without `_use_prebuilt=False` these
    # would be used in place of the changed schema.
    return SchemaValidator(schema, _use_prebuilt=False)


def _with_readers(part: Any) -> Any:
    """Return a part of a core schema, with a function in front of each choice that reads it."""
    if isinstance(part, list | tuple):
        return type(part)(map(_with_readers, part))
    if not isinstance(part, dict):
        return part

    choices = None
    if part.get("type") == "literal":
        choices = part.get("expected")
    elif part.get("type") == "enum":
        choices = part.get("members")
    if not choices:
        return {key: _value_with_readers(key, each) for key, each in part.items()}

    read = _reader(choices, is_enum=part["type"] == "enum")
    if read is None:
        return part
    inner = {key: each for key, each in part.items() if key != "ref"}
    outer = {
        "type": "function-before",
        "function": {"type": "no-info", "function": read},
        "schema": inner,
    }
    # Others refer to this part by its `ref`, and must get the function too.
    if "ref" in part:
        return {**outer, "ref": part["ref"]}
    return outer


def _value_with_readers(key: str, value: Any) -> Any:
    """Return the value of a key of a core schema, with readers in all schemas that it holds."""
    if key in _KEYS_WITHOUT_SCHEMAS:
        return value
    if key in _KEYS_WITH_CHOSEN_NAMES and isinstance(value, dict):
        return {name: _with_readers(each) for name, each in value.items()}
    return _with_readers(value)


def _reader(choices: Sequence[Any], *, is_enum: bool) -> Callable[[Any], Any] | None:
    """Return a function that returns the choice for its JSON; None if pydantic reads all of them.

    Of an Enum, pydantic reads the members whose values are strings, numbers or the like.
    """
    read_by_pydantic: list[Any] = []
    choices_by_json: list[tuple[Any, Any]] = []
    for choice in choices:
        value = choice.value if is_enum else choice
        if type(value) in _JSON_SCALARS:
            read_by_pydantic.append(value)
        else:
            choices_by_json.append((to_jsonable_python(choice), choice))

    # Where two choices have the same JSON, pydantic's counts.
    choices_by_json = [
        (written, choice)
        for written, choice in choices_by_json
        if not any(_is_same_json(written, each) for each in read_by_pydantic)
    ]
    if not choices_by_json:
        return None

    def read(value: Any) -> Any:
        """Return the choice that this JSON value stands for, else the value."""
        for written, choice in choices_by_json:
            if _is_same_json(written, value):
                return choice
        return value

    return read


def _is_same_json(one: Any, other: Any) -> bool:
    """Return whether two JSON values are the same. To Python, True equals 1; in JSON not."""
    return type(one) is type(other) and bool(one == other)
