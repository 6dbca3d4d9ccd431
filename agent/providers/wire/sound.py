"""Sound: text that can be sent. JSON can spell half a character, and so what people and tools wrote may hold one."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def sound(value: T) -> T:
    """The text, or all text of the JSON value, with a mark for each half of a character that has no other half."""
    made: Any = value
    if isinstance(made, str):
        made = _whole(made)
    elif isinstance(made, dict):
        made = {sound(key): sound(each) for key, each in made.items()}
    elif isinstance(made, list | tuple):
        made = [sound(each) for each in made]
    return made  # type: ignore[no-any-return]  # of the same kind


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
