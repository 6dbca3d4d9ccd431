"""Mentions of the bot in a group.

A mention addresses a message to the bot, and is no part of the message's words.
"""

from __future__ import annotations

from collections.abc import Iterable

#: What ends a sentence, also behind a name: "yes, @bot!"
_ENDINGS = tuple(".!?\u2026\u3002\uff01\uff1f\u061f\u0964")
#: What people write between the bot's name and their words: "@bot: yes", "yes, @bot".
_SEPARATORS = " \t\r\n\u00a0,:\uff0c\uff1a\u3001\u060c"


def without_mentions(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return the text without the mentions at `spans`, and without what separates them from words.

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

    words = ""
    for part in [*parts, text[position:]]:
        words = _joined(words, part)
    return words


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

    # The separators on both sides of the mention.
    between = before[len(words_before) :] + after[: len(after) - len(words_after)]
    marks = between.strip()
    if "\n" in between:
        return f"{words_before}{marks[:1]}\n{words_after}"
    if marks:
        return f"{words_before}{marks[0]} {words_after}"
    if between:
        return f"{words_before} {words_after}"
    return f"{words_before}{words_after}"
