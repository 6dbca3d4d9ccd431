"""Swift: frozen dataclasses that are made in a third of the time.

A frozen dataclass sets each of its fields by a call of `object.__setattr__`: of all that a run does, making some thirty
of them took an eighth. Here an object is a plain one of the same layout while its fields are set, and frozen before
anybody has seen it.
"""

from __future__ import annotations

import functools
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

T = TypeVar("T")

_become = object.__dict__["__class__"].__set__


def swift(cls: type[T]) -> type[T]:
    """`@swift` above `@dataclass(frozen=True, slots=True)`. A subclass is made as slowly as ever.

    Raises TypeError for what it does not know: bases, `__post_init__`, an `__init__` of one's own, fields that are
    keywords only, no parameters, no slots or private.
    """
    parts = fields(cls)  # type: ignore[arg-type]  # TypeError where it is no dataclass
    if not _is_plain(cls, parts):
        raise TypeError(f"{cls.__name__!r} cannot be swift: it has more than plain fields; leave it as it is")
    slow = cls.__init__
    known: dict[str, Any] = {
        "_become": _become,
        "_frozen": cls,
        "_open": type(cls.__name__, cls.__bases__, {"__slots__": cls.__slots__}),  # type: ignore[attr-defined]
        "_slow": slow,
        "_unset": MISSING,
    }
    for part in parts:
        known[f"_default_{part.name}"] = part.default_factory if part.default is MISSING else part.default
    exec(_source(parts), known)  # noqa: S102  # of names that Python has taken for fields, as dataclasses do it
    cls.__init__ = functools.wraps(slow)(known["__init__"])  # type: ignore[method-assign]
    return cls


def _is_plain(cls: type, parts: tuple[Field[Any], ...]) -> bool:
    """Whether objects are their fields, and those are what they are made of."""
    names = tuple(part.name for part in parts)
    known: Any = cls
    return (
        cls.__bases__ == (object,)
        and not hasattr(cls, "__post_init__")
        and known.__dataclass_params__.init
        and tuple(cls.__dict__.get("__slots__", ())) == names == tuple(known.__dataclass_fields__)
        and all(part.init and not part.kw_only for part in parts)
        and not any(name == "self" or name.startswith("_") for name in names)
    )


def _source(parts: tuple[Field[Any], ...]) -> str:
    values = [_value(part) for part in parts]
    lines = [
        f"def __init__(self, {', '.join(map(_parameter, parts))}):",
        "    if self.__class__ is not _frozen:",
        f"        return _slow(self, {', '.join(values)})",
        "    _become(self, _open)",
        *(f"    self.{part.name} = {value}" for part, value in zip(parts, values, strict=True)),
        "    self.__class__ = _frozen",
    ]
    return "\n".join(lines)


def _parameter(part: Field[Any]) -> str:
    if part.default is not MISSING:
        return f"{part.name}=_default_{part.name}"
    return f"{part.name}=_unset" if part.default_factory is not MISSING else part.name


def _value(part: Field[Any]) -> str:
    made = part.default is MISSING and part.default_factory is not MISSING
    return f"_default_{part.name}() if {part.name} is _unset else {part.name}" if made else part.name
