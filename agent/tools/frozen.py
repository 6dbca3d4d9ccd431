"""Frozen JSON: schemas that everybody shares because nobody can change them."""

from __future__ import annotations

from typing import Any, NoReturn


def _refuse(_: Any, *__: Any, **___: Any) -> NoReturn:
    raise TypeError("a tool's schema cannot be changed: change a copy (copy.deepcopy)")


class FrozenDict(dict[str, Any]):
    """A dict that refuses changes. Equal to, and written to JSON as, a plain one; a copy is plain."""

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __deepcopy__(self, _: Any) -> dict[str, Any]:
        return {key: thawed(value) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A list that refuses changes."""

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __iadd__ = __imul__ = _refuse

    def __deepcopy__(self, _: Any) -> list[Any]:
        return [thawed(value) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def frozen(value: Any) -> Any:
    """JSON-like data that cannot be changed, at any depth."""
    if isinstance(value, dict):
        return FrozenDict({key: frozen(each) for key, each in value.items()})
    return FrozenList(map(frozen, value)) if isinstance(value, list) else value


def thawed(value: Any) -> Any:
    """The same as plain dicts and lists."""
    if isinstance(value, dict):
        return {key: thawed(each) for key, each in value.items()}
    return [thawed(each) for each in value] if isinstance(value, list) else value
