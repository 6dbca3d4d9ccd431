"""Digests of values and of definitions of tools in which the order of lists does not count."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_jsonable_python

from sayso.pending.action import compute_args_digest


def unordered_digest(value: Any) -> str:
    """Return a digest of a JSON value that does not depend on the order of its lists.

    A list may have been a set, which JSON writes as a list, in any order.
    """
    if isinstance(value, dict):
        return compute_args_digest({key: unordered_digest(each) for key, each in value.items()})
    if isinstance(value, list):
        return compute_args_digest({"list": sorted(map(unordered_digest, value))})
    return compute_args_digest({"value": value})


def definition_digest(definition: Any) -> str:
    """Return a digest of the definition of a tool.

    `definition` is any value that JSON can express; other values count by their text. The order of
    lists and the white space in texts do not count: they mean nothing to a reader, and many sources
    write them in another way at each start, since a set has no order and a docstring is indented.
    """
    return unordered_digest(_without_layout(to_jsonable_python(definition, fallback=str)))


def _without_layout(value: Any) -> Any:
    """Return a JSON value with single spaces as the only white space in its texts."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {name: _without_layout(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_layout(each) for each in value]
    return value
