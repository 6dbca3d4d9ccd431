"""Confirm parsing: which whole messages mean yes, which mean no, in Portuguese, English and Spanish."""

from __future__ import annotations

import re
import unicodedata
from typing import Protocol

#: Longer messages are never a decision; the cap also bounds the work on hostile input.
MAX_DECISION_CHARS = 60

_YES = {
    "yes", "yep", "yeah", "y", "confirm", "confirmed", "yes confirm", "yes delete it", "yes do it", "yes go ahead",
    "sim", "sim confirmo", "confirmo", "confirmado", "confirmar", "confirma", "sim pode apagar", "pode apagar",
    "pode deletar", "pode excluir", "pode remover", "pode cancelar", "sim apaga", "sim apague",
    "si", "si confirmo", "confirmada", "puedes borrar", "puede borrar", "puedes eliminar", "puede eliminar",
    "si borralo", "si eliminalo", "si puedes borrar",
}  # fmt: skip
_NO = {
    "no", "nope", "n", "no thanks", "no thank you", "cancel", "cancel it", "cancel that", "stop", "never mind",
    "nevermind", "never", "dont", "do not", "no dont", "abort",
    "nao", "nao obrigado", "nao obrigada", "cancela", "cancelar", "cancele", "deixa", "deixa pra la", "ainda nao",
    "nunca", "nada", "para",
    "no gracias", "cancelalo", "olvidalo", "olvida", "dejalo", "todavia no", "mejor no", "melhor nao",
}  # fmt: skip
_POLITE = {"please", "por favor", "porfa", "thanks", "thank you", "obrigado", "obrigada", "gracias"}


class ConfirmParser(Protocol):
    """Reads a whole message as a decision (seed). Pluggable; `version` is kept in every record it judged."""

    version: str

    def is_confirm(self, msg: str) -> bool:
        """Whether the message is an unambiguous yes."""

    def is_cancel(self, msg: str) -> bool:
        """Whether the message is an unambiguous no."""


class RegexConfirmParser:
    """A finite table of whole phrases: no phrase inside a longer sentence ever decides.

    "ok", "claro", "pode", "sure" and "go" acknowledge many things and confirm nothing (seed). A question, a
    condition or a second object makes it another sentence, which is not in the table.
    """

    version = "regex-v3:pt-en-es"

    def is_confirm(self, msg: str) -> bool:
        """Whether the whole message, give or take politeness and punctuation, is a yes."""
        return _without_politeness(_words(msg)) in _YES

    def is_cancel(self, msg: str) -> bool:
        """Whether the whole message is a no."""
        words = _words(msg)
        return words in _NO or _without_politeness(words) in _NO


def _words(msg: str) -> str:
    """Lower-case words without accents, or "" for anything that is not plainly a short phrase.

    Only Latin-1 letters and a little punctuation are read: full-width, invisible, mixed-direction and look-alike
    characters make it no decision at all. A question mark makes it a question.
    """
    text = msg.strip()
    if len(text) > MAX_DECISION_CHARS or not re.fullmatch(r"[A-Za-z\u00c0-\u00ff' ,.!\u00a1\u2019]+", text):
        return ""
    bare = "".join(char for char in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(char))
    return " ".join(re.sub(r"['\u2019]", "", re.sub(r"[,.!\u00a1]", " ", bare)).split())


def _without_politeness(words: str) -> str:
    for polite in _POLITE:
        if words.endswith(f" {polite}"):
            return words.removesuffix(f" {polite}")
    return words
