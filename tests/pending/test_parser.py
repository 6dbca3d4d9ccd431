"""Parser: which whole messages decide, and that nothing else ever does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pending import RegexConfirmParser
from pending.parser import MAX_DECISION_CHARS

PARSER = RegexConfirmParser()

#: No message here may ever decide.
NOTHING = [
    "", " ", "ok", "OK!", "claro", "pode", "sure", "go", "vale", "bueno", "beleza", "maybe", "later", "1", "👍",
    "quando pode apagar?", "yes?", "sim?", "¿sí?", "no?", "cancel?", "yes, cancel", "no, yes", "sim não",
    "yes delete the other one instead", "yes but not the last one", "yes if it is free", "confirm tomorrow",
    "say yes", "the answer is no", "não sei", "yes yes yes maybe", "y/n", "yes\nno", "please", "thanks",
    "ye\u017f", "s\u0131m", "\uff59\uff45\uff53", "y\u200bes", "yes\u200b", "\u202eyes", "\u0443es", "y\u0435s",
    "yes\x00",
    "yes " * 10_000, "y" * 40_000, "yes" + " " * 40_000 + "no",
]  # fmt: skip


@pytest.mark.parametrize("words", NOTHING)
def test_anything_else_decides_nothing(words):
    """Acknowledgements, questions, conditions, second thoughts and look-alike letters are no decision."""
    assert not PARSER.is_confirm(words)
    assert not PARSER.is_cancel(words)


@given(st.text(min_size=1))
def test_question_never_decides(words):
    """Whatever holds a question mark asks."""
    for asked in (f"{words}?", f"?{words}", f"yes {words}?"):
        assert not PARSER.is_confirm(asked)
        assert not PARSER.is_cancel(asked)


@given(st.text(alphabet="yes no.,!simcancelar ", min_size=MAX_DECISION_CHARS - 1))
def test_long_message_never_decides(words):
    """Nothing longer than the cap is read at all."""
    long = f"y{words}s"
    assert len(long) > MAX_DECISION_CHARS
    assert not PARSER.is_confirm(long)
    assert not PARSER.is_cancel(long)


@given(st.text())
def test_no_message_is_both(words):
    """A yes is not a no."""
    assert not (PARSER.is_confirm(words) and PARSER.is_cancel(words))


@pytest.mark.parametrize(
    "words",
    [
        "yes", "Yes", "YES!", " yes. ", "yep", "y", "confirm", "yes, please", "Yes, go ahead", "yes, delete it",
        "sim", "SIM!", "Sim, confirmo.", "confirmo", "sim, pode apagar", "pode apagar", "sim por favor",
        "sim, obrigada", "si", "sí", "¡Sí!", "sí, confirmo", "puedes borrar", "sí, por favor",
    ],
)  # fmt: skip
def test_plain_yes_confirms(words):
    """In Portuguese, English and Spanish, with capitals, accents, punctuation and manners."""
    assert PARSER.is_confirm(words)


@pytest.mark.parametrize(
    "words",
    [
        "no", "No.", "nope", "cancel", "cancel it", "never mind", "don't", "don\u2019t", "no, thanks", "no thank you",
        "não", "nao", "NÃO!", "não, obrigado", "cancela", "cancelar", "deixa pra lá", "ainda não", "melhor não",
        "no, gracias", "olvídalo", "déjalo", "mejor no", "todavía no", "cancelar por favor",
    ],
)  # fmt: skip
def test_plain_no_cancels(words):
    """The same for a no."""
    assert PARSER.is_cancel(words)


def test_decomposed_accents_are_read_as_nothing():
    """Combining marks can hide in any word: phones send composed letters."""
    assert not PARSER.is_cancel("na\u0303o")
    assert not PARSER.is_confirm("si\u0301")
