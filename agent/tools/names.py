"""Names of tools: namespaces, and words for what has no description."""

from __future__ import annotations

import re

from sayso.agent.tools.errors import ToolValidationError

_SEPARATORS = re.compile(r"[.-]")
#: What vendors let a name be, and a namespace before it.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
#: Stands for what a model made up.
NO_NAME = "(no name)"


def normalise_namespace(namespace: str) -> str:
    """A namespace as it stands in names: `MathOps` and `math ops` are `math_ops`. Raises ToolValidationError."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", namespace)
    made = re.sub(r"[^A-Za-z0-9_]+", "_", snake).strip("_").lower()
    if not made:
        raise ToolValidationError(
            f"namespace {namespace!r} has nothing that a name may have: use letters a-z and digits"
        )
    return made


def base_name(name: str, namespace: str | None, method_name: str | None) -> tuple[str, str]:
    """A name's namespace, "" without one, and the rest of it. What stands before a `-` or `.` is a namespace."""
    if namespace:
        return namespace, method_name or _SEPARATORS.split(name, maxsplit=1)[-1]
    parts = _SEPARATORS.split(name, maxsplit=1)
    existing, base = (parts[0], parts[1]) if len(parts) == 2 else ("", name)
    return existing, method_name or base


def namespaced(namespace: str, base: str, sep: str) -> str:
    """The name of `base` in a namespace."""
    return f"{namespace}{sep}{base}"


def shown_name(name: str) -> str:
    """The name, where it can be one: a model may call its user's words, and they belong in no log."""
    return name if _NAME.fullmatch(name) else NO_NAME


def in_words(name: str) -> str:
    """A name as words: `find_invoice` is `Find invoice`."""
    return re.sub(r"[^A-Za-z0-9]+", " ", name).strip().capitalize()
