"""Choices: the values that an argument may have, put into its type hint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, Field, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaError

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
