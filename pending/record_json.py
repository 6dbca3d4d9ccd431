"""Flat records as one line of JSON: votes, and records of decisions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def record_to_json(record: DataclassInstance) -> str:
    """Return a dataclass as one line of JSON, without the fields that have their default."""
    defaults = {each.name: each.default for each in fields(record)}
    data = {name: value for name, value in asdict(record).items() if value != defaults[name]}
    return json.dumps(data)


def fields_from_json(
    text: str,
    record_type: type[DataclassInstance],
    *,
    name: str,
    other_types: Mapping[str, type | tuple[type, ...]],
) -> dict[str, Any]:
    """Return the fields that `record_to_json` wrote, with values of the right JSON types.

    * `record_type`: the class of the record.
    * `name`: what the record is, for errors, such as "a vote".
    * `other_types`: the JSON types of the fields that are no texts.

    Raises ValueError for a text that is no JSON, and TypeError for a value of another type. Unknown
    names are returned as well: the constructor of the class refuses them.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    if not isinstance(data, dict):
        raise TypeError(f"{name} is an object, not {text!r}")
    for each in fields(record_type):
        expected = other_types.get(each.name, str)
        if each.name in data and not isinstance(data[each.name], expected):
            raise TypeError(f"{each.name!r} of {name} is {data[each.name]!r}")
    return data
