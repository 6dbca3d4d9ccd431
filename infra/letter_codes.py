"""Codes of eight letters that people read, say and type, and that cannot be guessed."""

from __future__ import annotations

import secrets

#: The letters of codes: none is easily mistaken for another, and without vowels they form no words.
#: Ids of platforms contain digits, so no id is a code.
LETTERS = "BCDFGHJKMNPQRSTVWXZ"
CODE_LENGTH = 8


def new_code() -> str:
    """Return a code that cannot be guessed."""
    return "".join(secrets.choice(LETTERS) for _ in range(CODE_LENGTH))


def looks_like_a_code(word: str) -> bool:
    """Return whether a word, in any case, can only be a code."""
    return len(word) == CODE_LENGTH and set(word.upper()) <= set(LETTERS)
