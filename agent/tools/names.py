"""The names of tools and their arguments: which are allowed, and how they are written."""

from __future__ import annotations

import re

from sayso.agent.tools.errors import ToolValidationError

#: The name of a tool. Only Gemini accepts a dot; `get_schema` refuses it for the other vendors.
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: Logged in place of a name that no tool can have, which a model invented.
NO_NAME = "(no name)"
_LETTER = re.compile(r"[A-Za-z]")
_SEPARATOR = re.compile(r"[.-]")


def split_namespace(name: str) -> tuple[str, str]:
    """Return the namespace in a name, and the rest: `math-add` is `math` and `add`.

    The namespace ends at the first `-` or `.`. It is "" for a name without these.
    """
    parts = _SEPARATOR.split(name, maxsplit=1)
    if len(parts) == 1:
        return "", name
    return parts[0], parts[1]


def normalize_namespace(namespace: str) -> str:
    """Return a namespace in snake case: `MathOps` and `math ops` are `math_ops`.

    Raises ToolValidationError.
    """
    snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", namespace)
    normalized = re.sub(r"[^A-Za-z0-9_]+", "_", snake_case).strip("_").lower()
    if not normalized:
        raise ToolValidationError(
            f"namespace {namespace!r} has no character that a name may have: use a-z and 0-9"
        )
    return normalized


def loggable_name(name: str) -> str:
    """Return the name if a tool can have it, else NO_NAME.

    A model may make up a name of its user's words, which must not get into logs. So a name without
    a letter is not logged either: it may be a phone number.
    """
    if TOOL_NAME.fullmatch(name) and _LETTER.search(name):
        return name
    return NO_NAME


def name_in_words(name: str) -> str:
    """Return a name as words: `find_invoice` is `Find invoice`."""
    return re.sub(r"[^A-Za-z0-9]+", " ", name).strip().capitalize()
