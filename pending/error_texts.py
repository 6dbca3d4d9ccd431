"""The texts of exceptions that the code of tools, previews and executors raised.

Reading the text of an exception runs code of its author, which may fail once more.
"""

from __future__ import annotations

import asyncio

#: Exceptions with which an author's code could end the program or the task.
#: A KeyboardInterrupt comes from the user.
FATAL_ERRORS = (SystemExit, GeneratorExit, asyncio.CancelledError)
#: In place of a text that could not be read.
UNREADABLE = "(its text cannot be read)"


def readable_text(error: BaseException) -> str | None:
    """Return the text of an exception; None if its own code fails or gives no text."""
    try:
        # `str.__str__` ignores what a subclass of `str` defines.
        return str.__str__(str(error))
    except (Exception, *FATAL_ERRORS):  # noqa: BLE001  # an author's code may raise anything
        return None


def error_text(error: BaseException) -> str:
    """Return the text of an exception, or UNREADABLE."""
    text = readable_text(error)
    if text is None:
        return UNREADABLE
    return text


def own_words(error: BaseException) -> str:
    """Return what an exception says to the user in its attribute `words_for_person`.

    "" without that attribute, and if its code fails. The user then reads the type of the exception
    and a reference to the log.
    """
    try:
        words = getattr(error, "words_for_person", "")
        if isinstance(words, str):
            return str.__str__(words)
        return ""
    except (Exception, *FATAL_ERRORS):  # noqa: BLE001  # an author's code may raise anything
        return ""
