"""Mentions of the bot in a group.

They say that a message is for the bot, and are no part of its words.
"""

from __future__ import annotations

from collections.abc import Iterable

#: What ends a sentence, also behind a name: "yes, @bot!"
_ENDINGS = tuple(".!?\u2026\u3002\uff01\uff1f\u061f\u0964")
#: What people write between the bot's name and their words: "@bot: yes", "yes, @bot".
_SEPARATORS = " \t\r\n\u00a0,:\uff0c\uff1a\u3001\u060c"


def without_mentions(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return the text without the mentions at `spans`.

    What separates them from the words is left out, too.

    Each span is the beginning and the end of a mention, in characters. They are in order and do not
    overlap. Between words one space remains, with a comma or colon that was written there.
    """
    parts: list[str] = []
    position = 0
    for start, end in spans:
        parts.append(text[position:start])
        position = end
    if not parts:
        return text

    rest = ""
    for part in [*parts, text[position:]]:
        rest = _joined(rest, part)
    return rest


def _joined(before: str, after: str) -> str:
    """Return the texts on both sides of a mention as one."""
    words_before = before.rstrip(_SEPARATORS)
    words_after = after.lstrip(_SEPARATORS)
    if not words_before:
        return words_after
    if not words_after:
        return words_before

    if after.startswith(_ENDINGS):
        return f"{words_before}{words_after}"
    between = before[len(words_before) :] + after[: len(after) - len(words_after)]
    marks = between.strip()
    if "\n" in between:
        return f"{words_before}{marks[:1]}\n{words_after}"
    if marks:
        return f"{words_before}{marks[0]} {words_after}"
    if between:
        return f"{words_before} {words_after}"
    return f"{words_before}{words_after}"
