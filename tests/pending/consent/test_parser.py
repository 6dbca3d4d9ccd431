"""Parser: which whole messages decide, and that nothing else ever does."""

# ruff: noqa: RUF001 - people do type look-alike characters

from __future__ import annotations

import tomllib
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso import pending
from sayso.agent import Agent
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.providers.testing import ScriptedProvider
from sayso.channels.i18n.texts import texts_for
from sayso.pending import RegexConfirmParser
from sayso.pending.action import PendingAction
from sayso.pending.consent import phrases as phrases_module
from sayso.pending.consent import words as words_module
from sayso.pending.consent.asking import is_misspelled_asking, read_asking
from sayso.pending.consent.parser import MAX_DECISION_CHARS, read_answer
from sayso.pending.consent.phrases import SHIPPED_LANGUAGES, expand, phrasebook
from sayso.pending.consent.refusing import MAX_REASON_CHARS, is_no_with_more, is_yes_with_change
from sayso.pending.consent.words import plain_words, unstretch

PARSER = RegexConfirmParser()
EVERYTHING = RegexConfirmParser(SHIPPED_LANGUAGES)
WITH_EMOJI = RegexConfirmParser(SHIPPED_LANGUAGES, emoji=True)
BOOKS = {language: phrasebook((language,)) for language in SHIPPED_LANGUAGES}
CONFIRMS = sorted(phrasebook(SHIPPED_LANGUAGES).confirm)

ACTION = PendingAction(user_id="ana", kind="refund_order", preview="Refund order 5", language="en")

#: No message here may ever decide.
NOTHING = [
    "", " ", "ok", "OK!", "claro", "pode", "sure", "go", "vale", "bueno", "beleza", "maybe", "later", "1", "👍",
    "quando pode apagar?", "yes?", "sim?", "¿sí?", "no?", "cancel?", "yes, cancel", "no, yes", "sim não",
    "yes delete the other one instead", "yes but not the last one", "yes if it is free", "confirm tomorrow",
    "say yes", "the answer is no", "não sei", "yes yes yes maybe", "y/n", "yes\nno", "please", "thanks",
    "yes,", "Yes ,", "sim, ", "yes, 👍", "yy", "ja ja", "はい はい",
    "ye\u017f", "s\u0131m", "y\u200bes", "yes\u200b", "\u202eyes", "\u0443es", "y\u0435s", "yes\x00",
    "y'es", "si'm", "'yes'", "ß", "si puedes borrar", "não cancela", "no canceles", "don't cancel",
    "yes " * 10_000, "y" * 40_000, "yes" + " " * 40_000 + "no",
]  # fmt: skip

#: What only acknowledges, in all languages.
ACKNOWLEDGEMENTS = [
    "ok", "okay", "sure", "fine", "right", "go", "claro", "pode", "isso", "beleza", "certo", "vale", "venga", "bueno",
    "de acuerdo", "klar", "gut", "gerne", "genau", "doch", "jaja", "d'accord", "bien sûr", "ça marche", "allez",
    "va bene", "d'accordo", "esatto", "ठीक है", "अच्छा", "जी", "theek hai", "accha", "oke", "baik", "siap", "boleh",
    "حسنا", "تمام", "ماشي", "خلاص", "了解", "了解です", "わかりました", "承知しました",
    "はいはい", "結構です", "大丈夫です",
]  # fmt: skip

#: Everyday words that are a yes elsewhere, or would be one if it were spelt in Latin letters.
FALSE_FRIENDS = [
    "y", "ya", "ja", "já", "hai", "ha", "haa", "na", "naam", "la", "fallo", "sip", "on", "sur", "e",
    "vai", "da", "da da", "dá", "net", "wis",
]  # fmt: skip

#: Letters that look like others, hide, or turn the direction.
TRICKS = (
    "\u017f\u0131\u0130\u0435\u0443\u03bf\u200b\u200c\u200d\u200e\u202e\u2066"
    "\ufeff\u00ad\u0336\x00\U0001d432\u24e8\u212a\ufe0f"
)

#: Question marks: Latin, Spanish, Arabic, Greek, Armenian, Ethiopic, Limbu, Vai, wide, small, turned, doubled, emoji.
QUESTION_MARKS = "?\u00bf\u061f\u037e\u055e\u1367\u1945\ua60f\uff1f\ufe56\u2e2e\u203d\u2047\u2753"


def decides(parser: RegexConfirmParser, words: str) -> bool:
    """Whether a message is a yes or a no."""
    return parser.is_confirm(words) or parser.is_cancel(words)


@pytest.mark.parametrize("words", NOTHING)
@pytest.mark.parametrize("parser", [PARSER, EVERYTHING])
def test_anything_else_decides_nothing(parser, words):
    """Acknowledgements, questions, conditions, second thoughts and look-alike letters are no decision."""
    assert not decides(parser, words)


@pytest.mark.parametrize("words", ACKNOWLEDGEMENTS)
@pytest.mark.parametrize(
    "parser", [WITH_EMOJI, *(RegexConfirmParser([language]) for language in SHIPPED_LANGUAGES)]
)
def test_acknowledgement_confirms_in_no_language(parser, words):
    """Each language alone, and all at once."""
    assert not parser.is_confirm(words)


@pytest.mark.parametrize("words", FALSE_FRIENDS)
def test_everyday_word_of_one_language_is_not_the_yes_of_another(words):
    """With all languages read at once: "ya" is enough in Spanish, "hai" hello in Indonesian."""
    assert not EVERYTHING.is_confirm(words)


@pytest.mark.parametrize("one", SHIPPED_LANGUAGES)
def test_yes_of_one_language_is_not_the_no_of_another(one):
    """Nor with any word of politeness of either language behind it."""
    book = BOOKS[one]
    others = [BOOKS[language] for language in SHIPPED_LANGUAGES if language != one]
    for other in others:
        assert not book.confirm & other.cancel
    for yes in book.confirm:
        spaces = [at for at, char in enumerate(yes) if char == " "]
        for words, please in ((yes[:at], yes[at + 1 :]) for at in spaces):
            noes = [other for other in others if words in other.cancel]
            assert not any(please in book.polite | other.polite for other in noes), yes


@pytest.mark.parametrize("language", SHIPPED_LANGUAGES)
def test_table_never_says_both(language):
    """A language's yes is not its no, and its politeness is neither."""
    book = BOOKS[language]
    assert not book.confirm & book.cancel
    assert not book.polite & (book.confirm | book.cancel)


#: Stalling and asking back, as people type it, beyond the phrases themselves.
ASKED = [
    "Later", "let me think...", "Was passiert dann?", "Lass mich nachsehen", "What will happen?",
    "Qu'est-ce que c'est ?", "Laisse-moi réfléchir", "Explícame", "¿Cuánto?", "Depois",
    "Spiegami", "straks", "Sonra", "Потом", "Объясни", "لاحقا", "बाद में", "nanti", "後で", "让我想想",
]  # fmt: skip


@pytest.mark.parametrize("language", SHIPPED_LANGUAGES)
def test_phrase_that_asks_back_is_known_as_people_type_it(language):
    """With capitals and a question mark, also where it ends in a double letter or has a hyphen."""
    table = tomllib.loads((phrases_module._FOLDER / f"{language}.toml").read_text(encoding="utf-8"))
    for part in ("asks", "waits"):
        phrases = [phrase for pattern in table[part] for phrase in expand(pattern)]
        typed = [f"{phrase[:1].upper()}{phrase[1:]}?" for phrase in phrases]
        assert [each for each in typed if not read_asking(PARSER, each, ACTION)] == []


@pytest.mark.parametrize("words", ASKED)
def test_stalling_asks_back_and_decides_nothing(words):
    """ "Later" is no answer: the person is told what is open, and the time to answer goes on."""
    assert read_asking(EVERYTHING, words, ACTION)
    assert not decides(EVERYTHING, words)


@pytest.mark.parametrize(
    "words",
    ["wait", "hmm...", "Hold on!", "🤔", "⏳ ⏳", "ok, one sec", "warte mal bitte", "хм", "等等"],
)
def test_plea_for_time_asks_nothing_else(words):
    """It is told apart from a question, because only the first one is answered."""
    assert read_asking(EVERYTHING, words, ACTION) == "waits"


@pytest.mark.parametrize(
    "words",
    [
        "wait, what is it?",
        "?",
        "¿?",
        "？！",
        "⁈",
        "¡¿?!",
        "hmm, how much?",
        "which order",
        "What order?",
        "ok why",
    ],
)
def test_question_beside_a_plea_for_time_asks(words):
    """It is answered with what a yes would do."""
    assert read_asking(EVERYTHING, words, ACTION) == "asks"


def test_question_word_that_is_also_in_the_preview_asks():
    """Then "what" belongs to the phrase before the effect, not to the effect."""
    action = replace(ACTION, preview="Send an email: what is the order about")
    assert read_asking(EVERYTHING, "what order?", action) == "asks"


#: New requests, and decisions, that resemble questions about the question.
NOT_ASKED = [
    "what is the weather?", "water", "chat", "menu", "order details", "what is order 6", "which invoices are open?",
    "INV-8", "repeat order", "explain order", "remind me later",
    "show order 5", "order 5", "yes", "no, wait", "yes, what is it?", "!", "1", "👍", "",
    "wait for me at the station",
]  # fmt: skip


@pytest.mark.parametrize("words", NOT_ASKED)
def test_other_message_asks_nothing_about_the_question(words):
    """A new request is answered as one, and a word that decides is never read as a question."""
    assert read_asking(EVERYTHING, words, ACTION) == ""
    assert not is_misspelled_asking(EVERYTHING, words, "en")


@pytest.mark.parametrize("words", ["waht is it?", "wiat", "holdon", "wich one", "how mcuh"])
def test_misspelled_question_is_recognized_in_its_language(words):
    """One wrong letter, or two that are swapped, make no other message."""
    assert is_misspelled_asking(EVERYTHING, words, "en")


@pytest.mark.parametrize("language", SHIPPED_LANGUAGES)
def test_plain_words_decide_and_command_nothing(language):
    """A plain word is a yes or a no of its language, and no word that begins a new request."""
    book, texts = BOOKS[language], texts_for(language)
    assert book.plain <= book.confirm | book.cancel
    assert not book.plain & book.commands
    assert all(RegexConfirmParser([language]).is_plain(word) for word in (texts.yes, texts.no))


@pytest.mark.parametrize(
    "words",
    ["delete it", "yes, delete it", "go ahead", "stop", "cancel", "ok", "", "yes and no", "5"],
)
def test_command_is_no_plain_answer(words):
    """It may be a new request where no question is open."""
    assert not EVERYTHING.is_plain(words)


@pytest.mark.parametrize(
    "words", ["sim muito obrigado", "yes please thanks", "sí por favor gracias", "no, thank you"]
)
def test_plain_answer_may_end_in_any_politeness(words):
    """Also in a phrase that ends in another one, and in two phrases."""
    assert EVERYTHING.is_plain(words)


@given(st.text(min_size=1))
def test_question_never_decides(words):
    """Whatever holds a question mark asks."""
    for asked in (f"{words}?", f"?{words}", f"yes {words}?"):
        assert not decides(WITH_EMOJI, asked)


@given(st.sampled_from(CONFIRMS), st.sampled_from(QUESTION_MARKS), st.booleans())
def test_question_mark_of_any_script_asks(phrase, mark, first):
    """At either end."""
    assert not decides(WITH_EMOJI, mark + phrase if first else phrase + mark)


@given(st.sampled_from(CONFIRMS), st.characters(categories=["L", "N", "M", "C", "S"]), st.data())
def test_phrase_with_a_character_more_is_in_the_table_or_confirms_nothing(phrase, extra, data):
    """A letter, digit, mark, sign or control character anywhere makes it another message."""
    place = data.draw(st.integers(0, len(phrase)))
    changed = phrase[:place] + extra + phrase[place:]
    words = plain_words(changed)
    forms = {
        words,
        unstretch(words),
        unstretch(words, keep=2),
        plain_words(changed.removesuffix(extra)),
    }
    forms |= {
        words.removesuffix(f" {polite}") for polite in WITH_EMOJI._book.polite
    }  # "siim" is a yes, with "por favor"
    assert forms & set(CONFIRMS) or not WITH_EMOJI.is_confirm(changed)


@given(st.sampled_from(CONFIRMS), st.sampled_from(TRICKS), st.data())
def test_trick_in_a_phrase_decides_nothing(phrase, trick, data):
    """In place of a letter, or between two. In a language that has this letter it makes another phrase, which may be in
    the table.
    """
    place = data.draw(st.integers(0, len(phrase)))
    for changed in (
        phrase[:place] + trick + phrase[place:],
        phrase[:place] + trick + phrase[place + 1 :],
    ):
        assert is_in_own_letters(trick, changed) or not decides(WITH_EMOJI, changed)


def is_in_own_letters(trick: str, changed: str) -> bool:
    """Return whether the message is a decision, perhaps a stretched one, of a language that has the trick's letter.

    Only Turkish has both an i with a dot and one without.
    """
    words = plain_words(changed)
    forms = {words, unstretch(words), unstretch(words, keep=2)}
    language = {"\u0130": "tr", "\u0131": "tr", "\u0435": "ru", "\u0443": "ru"}.get(trick)
    return language is not None and bool(forms & (BOOKS[language].confirm | BOOKS[language].cancel))


@pytest.mark.parametrize(
    ("trick", "changed"),
    [("ı", "onaylandıı"), ("ı", "hıı hı evet"), ("İ", "evet tabiiİ"), ("е", "не удаляй")],
)
def test_letter_of_the_own_language_is_no_trick(trick: str, changed: str):
    """It stretches a yes, or makes a no of it: "ну удаляй" means yes, and "не удаляй" no."""
    assert decides(WITH_EMOJI, changed)
    assert is_in_own_letters(trick, changed)


@given(
    st.sampled_from(CONFIRMS),
    st.sampled_from(["no", "não", "nein", "non", "नहीं", "tidak", "لا", "いいえ", "cancel"]),
)
def test_yes_with_a_no_is_no_yes(phrase, no):
    """Whichever comes first."""
    assert not EVERYTHING.is_confirm(f"{phrase}, {no}")
    assert not EVERYTHING.is_confirm(f"{no}, {phrase}")


@given(
    st.sampled_from(CONFIRMS), st.sampled_from(["...", "…", " ...", "..", ",,", "、、", "。。。"])
)
def test_hesitation_confirms_nothing(phrase, dots):
    """It is on its way to a but."""
    assert not EVERYTHING.is_confirm(phrase + dots)


@given(st.text(alphabet="yes no.,!simcancelar ", min_size=MAX_DECISION_CHARS - 1))
def test_long_message_never_decides(words):
    """Nothing longer than the cap is read at all."""
    long = f"y{words}s"
    assert len(long) > MAX_DECISION_CHARS
    assert not decides(PARSER, long)


class Untouchable(str):
    """A message of which only the length may be asked."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"a long message was read: {name}")


def untouched(text: str) -> str:
    """In the place of whatever would read a message."""
    raise AssertionError("a message was read")


def test_long_message_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch):
    """A megabyte costs as much as a word: nothing but its length is looked at."""
    monkeypatch.setattr("sayso.pending.consent.parser.plain_words", untouched)
    monkeypatch.setattr("sayso.pending.consent.parser.only_emoji", untouched)
    for hostile in (
        "yes" + " " * 1_000_000,
        "no" * 500_000,
        "👍" * 250_000,
        "y" * (MAX_DECISION_CHARS + 1),
    ):
        assert not decides(WITH_EMOJI, Untouchable(hostile))
    with pytest.raises(AssertionError):
        PARSER.is_confirm("y" * MAX_DECISION_CHARS)


def test_plain_letters_are_left_as_they_are():
    """What `_PLAIN` lets pass at once, the whole way of `plain_words` would leave unchanged as well."""
    letters = [
        letter for letter in map(chr, range(0x10000)) if words_module._PLAIN.fullmatch(letter)
    ]
    assert len(letters) > 20_000
    for letter in letters:
        assert words_module._READABLE.fullmatch(letter), letter
        assert (
            unicodedata.normalize("NFC", letter).casefold().translate(words_module.TYPED) == letter
        )
        assert unicodedata.combining(letter) in (0, 9), (
            "an accent mark, which would join the letter before it"
        )


def test_accented_letter_of_a_message_never_reads_as_its_plain_letter():
    """The long s, which would be an "s", is unreadable. Only phrases are also known without their accents."""
    for letter in map(chr, range(0x100, 0x180)):
        assert plain_words(letter) in ("", unicodedata.normalize("NFC", letter.casefold()))
        assert plain_words(letter) == "" or not plain_words(letter).isascii()
    for mark in map(chr, range(0x300, 0x370)):
        assert plain_words(f"ye{mark}s") in ("", unicodedata.normalize("NFC", f"ye{mark}s"))


@given(st.text())
def test_no_message_is_both(words):
    """A yes is not a no."""
    assert not (WITH_EMOJI.is_confirm(words) and WITH_EMOJI.is_cancel(words))


@given(st.sampled_from(CONFIRMS), st.sampled_from(sorted(phrasebook(SHIPPED_LANGUAGES).polite)))
def test_no_phrase_is_both(phrase, polite):
    """Nor with politeness."""
    for words in (phrase, f"{phrase} {polite}", f"{polite} {phrase}"):
        assert not (EVERYTHING.is_confirm(words) and EVERYTHING.is_cancel(words))


@pytest.mark.parametrize("emoji", ["👍", "👍🏽", "👍\ufe0f", "👍🏿\ufe0f", " ✅\n", "✅\ufe0f"])
def test_emoji_confirms_only_where_turned_on(emoji):
    """Whatever its skin."""
    assert WITH_EMOJI.is_confirm(emoji)
    assert not decides(EVERYTHING, emoji)


@pytest.mark.parametrize("emoji", ["👎", "👎🏿", "❌", "❌\ufe0f"])
def test_emoji_cancels_only_where_turned_on(emoji):
    """The same for a no."""
    assert WITH_EMOJI.is_cancel(emoji)
    assert not decides(EVERYTHING, emoji)


@pytest.mark.parametrize(
    "emoji",
    [
        "👍👎",
        "👍 👍",
        "👍?",
        "yes 👎",
        "yes 👍👍",
        "yes 🙏 👍",
        "yes? 👍",
        "yes, 👍",
        "no 👍",
        "ok 👍",
        "👍 please",
        "✅🏽",
        "🆗",
        "👌",
        "👍\u200d👎",
        "\ufe0f",
        "👍\ufe0f\ufe0f",
    ],
)
def test_other_emoji_decide_nothing(emoji):
    """One of the four, and nothing else."""
    assert not decides(WITH_EMOJI, emoji)


@pytest.mark.parametrize(
    "words",
    [
        "yes", "Yes", "YES!", " yes. ", "yep", "confirm", "yes, please", "Yes, go ahead", "yes, delete it",
        "sim", "SIM!", "Sim, confirmo.", "confirmo", "sim, pode apagar", "pode apagar", "sim por favor",
        "sim, obrigada", "si", "sí", "¡Sí!", "sí, confirmo", "puedes borrar", "sí, por favor",
        "si\u0301", "\uff59\uff45\uff53",
    ],
)  # fmt: skip
def test_plain_yes_confirms(words):
    """In Portuguese, English and Spanish, with capitals, accents, punctuation and manners."""
    assert PARSER.is_confirm(words)
    assert EVERYTHING.is_confirm(words)


@pytest.mark.parametrize(
    "words",
    [
        "no", "No.", "nope", "cancel", "cancel it", "never mind", "don't", "don\u2019t", "no, thanks", "no thank you",
        "não", "nao", "NÃO!", "não, obrigado", "cancela", "cancelar", "deixa pra lá", "ainda não", "melhor não",
        "no, gracias", "olvídalo", "déjalo", "mejor no", "todavía no", "cancelar por favor", "por favor, não", "no...",
        "na\u0303o", "\uff4e\uff4f", "\uff2e\uff2f\uff01", "dont",
    ],
)  # fmt: skip
def test_plain_no_cancels(words):
    """The same for a no."""
    assert PARSER.is_cancel(words)
    assert EVERYTHING.is_cancel(words)


@pytest.mark.parametrize(
    "emoji", ["👍", "👍🏽", " 👌", " ✅", "✔\ufe0f", " 🙂", "! 😀", " ❤\ufe0f", " 💯"]
)
def test_emoji_of_assent_behind_a_yes_changes_nothing(emoji):
    """One, behind a word that is a yes already; alone, behind an "ok" or beside a second one it decides nothing."""
    assert EVERYTHING.is_confirm(f"yes{emoji}")
    assert EVERYTHING.is_confirm(f"sim, pode apagar{emoji}")
    for other in (
        emoji.strip(" !"),
        f"ok{emoji}",
        f"yes{emoji}{emoji}",
        f"yes?{emoji}",
        f"yes,{emoji}",
        f"yes but{emoji}",
    ):
        assert not EVERYTHING.is_confirm(other), other


@pytest.mark.parametrize("emoji", [" 👎", "❌", " 🚫", " 🙂"])
def test_emoji_of_refusal_behind_a_no_changes_nothing(emoji):
    """And makes no yes of anything."""
    assert EVERYTHING.is_cancel(f"no{emoji}")
    assert not decides(EVERYTHING, f"ok{emoji}")


@pytest.mark.parametrize(
    "words",
    [
        "yess",
        "yesss!",
        "YEEES",
        "siii",
        "sííí",
        "simmm",
        "ouiii",
        "jaaa, bitte",
        "yes yes",
        "si si",
        "oui oui",
        "はーい",
        "نعمممم",
    ],
)
def test_stretched_and_doubled_yes_confirms(words):
    """People stretch a word or say it twice, and mean it."""
    assert any(RegexConfirmParser([language]).is_confirm(words) for language in SHIPPED_LANGUAGES)


@pytest.mark.parametrize(
    "words",
    ["nooo", "NOOO!", "nãooo", "nein nein", "neeein", "non non", "noooo, please", "please nooo"],
)
def test_stretched_and_doubled_no_cancels(words):
    """The same for a no."""
    assert any(RegexConfirmParser([language]).is_cancel(words) for language in SHIPPED_LANGUAGES)


@pytest.mark.parametrize("words", ["ok", "OK!", "okay", "ok 👍", "okk"])
def test_plain_ok_is_told_apart(words):
    """It is no yes by itself; a channel may take it for one."""
    assert EVERYTHING.is_ok(words)
    assert not decides(EVERYTHING, words)


@pytest.mark.parametrize(
    "words", ["ok?", "ok, but", "ok...", "ok,", "ok ok ok", "ok cancel", "ok then", "okra"]
)
def test_other_ok_is_none(words):
    """A question, a hesitation, a second thought."""
    assert not EVERYTHING.is_ok(words)


@pytest.mark.parametrize(
    "words",
    [
        "ok",
        "sure",
        "maybe",
        "yes?",
        "yes,",
        "yes...",
        "yes no",
        "👍",
        "🤔",
        "?",
        "yrs",
        "yse",
        "ok then",
        "1",
        "I guess so",
        "yes but",
    ],
)
def test_short_reply_that_may_be_an_answer_is_unclear(words):
    """Its person is asked again rather than dropped."""
    assert EVERYTHING.only("en").is_unclear(words)
    assert not decides(EVERYTHING, words)


@pytest.mark.parametrize(
    "words",
    [
        "",
        " ",
        "what is on invoice 7",
        "show me the invoice",
        "hello",
        "menu",
        "delete invoice 8 instead",
        "delete B",
        "rather delete B",
        "remove the draft",
        "yes delete the other one instead",
        "help",
        "weather in Rome",
    ],
)
def test_new_request_is_not_unclear(words):
    """It is another subject: what waited is let go."""
    assert not EVERYTHING.only("en").is_unclear(words)


@pytest.mark.parametrize(
    ("language", "yes", "no"),
    [
        ("pt", "Sim!", "não"), ("en", "y", "nah"), ("es", "¡Sí!", "no, gracias"), ("de", "Ja.", "Nein, danke!"),
        ("fr", "Oui !", "non merci"), ("it", "Sì, grazie.", "annulla"), ("hi", "जी हाँ।", "नहीं, धन्यवाद"),
        ("id", "Ya.", "Tidak, terima kasih"), ("ar", "نَعَم، مـن فضلك", "لا، شكراً"),
        ("ja", "はい、お願いします。", "いいえ\uff01"), ("tr", "Evet, lütfen.", "Hayır, teşekkürler!"),
        ("ru", "Да, пожалуйста.", "Нет, спасибо!"), ("zh", "是的\uff0c谢谢。", "不用了\uff0c谢谢\uff01"),
        ("nl", "Ja, graag!", "Nee, dank je."),
    ],
)  # fmt: skip
def test_each_language_decides_alone(language, yes, no):
    """With its own punctuation and politeness."""
    parser = RegexConfirmParser([language])
    assert parser.is_confirm(yes)
    assert parser.is_cancel(no)


@pytest.mark.parametrize(
    "no", ["hayır", "HAYIR", "hayir", "İPTAL", "İptal et", "iptal", "IPTAL", "i\u0307ptal", "SİLME"]
)
def test_turkish_is_read_with_and_without_its_letters(no):
    """In capitals as well, whose i has a dot or has none."""
    assert RegexConfirmParser(["tr"]).is_cancel(no)
    assert EVERYTHING.is_cancel(no)


@pytest.mark.parametrize(
    ("language", "yes"),
    [
        ("tr", "EVET, SİL"), ("tr", "onayliyorum"), ("tr", "evettt"), ("ru", "да-да"), ("ru", "даааа"),
        ("ru", "да, все верно"), ("zh", "是的～"), ("zh", "确认~"), ("zh", "是的\uff0c确认\uff01"), ("zh", "是的确认"),
        ("nl", "jaaaa"), ("nl", "ja doe maarr"), ("ja", "はい〜"), ("pt", "sim sim sim"),
    ],
)  # fmt: skip
def test_yes_is_read_as_it_is_typed_in_its_language(language, yes):
    """Stretched, doubled, without spaces, with the marks of its keyboards."""
    assert RegexConfirmParser([language]).is_confirm(yes)


@pytest.mark.parametrize(
    "words",
    [
        "evet ama", "evet mi", "evet de", "tabi tabi", "olabilir", "iptal etme", "yok artık", "да нет", "да, но",
        "да ну", "да ладно", "ага, конечно", "нет проблем", "не отменяй", "好像是", "是吗", "可以吗", "不取消",
        "不要取消", "不用确认", "请确认", "不错", "是的\uff0c但是", "~是的~", "ja maar", "ja ja", "ja toch", "nou ja",
        "ja annuleer", "geen probleem", "niet annuleren",
    ],
)  # fmt: skip
def test_half_a_yes_of_the_newer_languages_decides_nothing(words):
    """What holds a yes or a no and is neither."""
    for parser in (EVERYTHING, *(RegexConfirmParser([each]) for each in ("tr", "ru", "zh", "nl"))):
        assert not decides(parser, words)


@pytest.mark.parametrize(
    ("language", "no"),
    [("nl", "neeeee"), ("nl", "neee"), ("ru", "неееет"), ("tr", "hayırrr"), ("en", "nooo")],
)
def test_stretched_no_is_read_also_where_it_has_two_letters(language, no):
    """ "nee" has two: "neeeee" is it, not "ne"."""
    assert RegexConfirmParser([language]).is_cancel(no)


@pytest.mark.parametrize(
    ("language", "yes"),
    [
        ("en", "sure, go ahead"), ("de", "klar, lösch es"), ("es", "dale nomás"), ("fr", "allez-y"), ("it", "vai pure"),
        ("pt", "claro, pode apagar"), ("id", "hapus aja"), ("nl", "weg ermee"), ("tr", "tabi sil"), ("ru", "ну давай"),
        ("hi", "theek hai, kar do"), ("ar", "na3am"), ("ja", "やっちゃって"), ("zh", "没错，删掉它"),
    ],
)  # fmt: skip
def test_command_to_do_it_is_a_yes(language, yes):
    """The verb of the effect or "go ahead", alone or behind an "ok"; asked, unfinished or with a "but" it is none."""
    parser = RegexConfirmParser([language])
    assert parser.is_confirm(yes)
    assert EVERYTHING.is_confirm(yes)
    for other in (f"{yes}?", f"{yes}...", f"{yes},", f"no, {yes}", f"{yes} 7"):
        assert not decides(parser, other), other
        assert not decides(EVERYTHING, other), other


@pytest.mark.parametrize(
    "words",
    [
        "yes2",
        "yes 2",
        "2 yes",
        "na3am 2",
        "3na3am",
        "na 3am",
        "na33am",
        "s1m",
        "no. 7",
        "la 2",
        "yes 3am",
    ],
)
def test_digit_decides_only_inside_a_romanised_arabic_word(words):
    """ "na3am" is a yes; a digit anywhere else makes it another message."""
    assert RegexConfirmParser(["ar"]).is_confirm("na3am")
    assert RegexConfirmParser(["ar"]).is_cancel("la2")
    assert not decides(EVERYTHING, words)
    assert not decides(RegexConfirmParser(["ar"]), words)


def test_word_of_another_syllable_is_not_misspelt():
    """In Chinese and Japanese one letter more or less is another word: a new request is let through."""
    assert not RegexConfirmParser(["zh"]).is_unclear("查发票吧")
    assert not RegexConfirmParser(["ja"]).is_unclear("返信して")
    assert RegexConfirmParser(["zh"]).is_unclear("好像是")


def test_version_says_what_was_read():
    """It is kept in every record."""
    assert PARSER.version == "regex-v4:pt-en-es"
    assert RegexConfirmParser(["de"], emoji=True).version == "regex-v4:de+emoji"


@pytest.mark.parametrize("languages", [["xx"], ["en", "../en"], "en", []])
def test_unknown_language_is_refused(languages):
    """The error names it and those there are."""
    with pytest.raises(ValueError, match=f"language.*{', '.join(SHIPPED_LANGUAGES)}"):
        RegexConfirmParser(languages)


def test_every_file_of_phrases_is_shipped():
    """No file without its name in the list, nor the other way round."""
    folder = Path(pending.__file__).parent / "consent" / "languages"
    assert sorted(file.stem for file in folder.glob("*.toml")) == sorted(SHIPPED_LANGUAGES)


def test_language_with_letters_of_central_europe_needs_only_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its words are read in capitals, with separately typed accents, stretched, and without accents and strokes."""
    (tmp_path / "zz.toml").write_text(
        'confirm = ["tak", "potwierdź", "załatw to"]\ncancel = ["nie", "żadną miarą"]'
    )
    monkeypatch.setattr(phrases_module, "_FOLDER", tmp_path)
    monkeypatch.setattr(phrases_module, "SHIPPED_LANGUAGES", ("zz",))
    polish = RegexConfirmParser(("zz",))
    yeses = (
        "Tak!",
        "POTWIERDŹ",
        "potwierdz\u0301",
        "potwierdźźź",
        "potwierdz",
        "Załatw to.",
        "zalatw to",
    )
    for yes in yeses:
        assert polish.is_confirm(yes), yes
    for no in ("żadną miarą", "ŻADNĄ MIARĄ!", "z\u0307adna\u0328 miara\u0328", "zadna miara"):
        assert polish.is_cancel(no), no
    for words in ("potwierdź?", "potwierdż", "potwierdź jutro", "żadną", "tāk", "ţak"):
        assert not decides(polish, words), words
    assert polish.is_unclear("potwierdż")


def test_pattern_stands_for_finitely_many_phrases():
    """Brackets hold alternatives, one of which may be empty."""
    assert expand("yes (delete|remove) it(| now)") == [
        "yes delete it",
        "yes delete it now",
        "yes remove it",
        "yes remove it now",
    ]
    assert sum(len(book.confirm) + len(book.cancel) for book in BOOKS.values()) < 55_000


def test_words_are_read_beside_emoji():
    """Turning emoji on turns nothing off."""
    assert WITH_EMOJI.is_confirm("yes")
    assert WITH_EMOJI.is_cancel("no")


class OneWord(RegexConfirmParser):
    """A bot's parser that refuses what the shipped one takes for a yes."""

    def is_confirm(self, msg: str) -> bool:
        return msg == "CONFIRM"


def test_stricter_subclass_decides_alone():
    """The shipped phrases are not asked beside it, in no language of a question."""
    own = OneWord(["en"])
    assert read_answer(own, "CONFIRM", "en").intent == "confirm"
    assert read_answer(own, "yes", "en").intent == ""
    assert ChannelAgent(Agent([], ScriptedProvider([])), parser=own).parser is own


def test_parser_of_one_language_reads_no_other():
    """And as the whole one reads emoji; of a language that is not read there is none."""
    assert EVERYTHING.only("de").is_confirm("ja")
    assert not EVERYTHING.only("de").is_confirm("yes")
    assert EVERYTHING.only("de").languages == ("de",)
    assert PARSER.only("de") is PARSER
    assert WITH_EMOJI.only("de").is_confirm("👍")
    assert not EVERYTHING.only("de").is_confirm("👍")


@pytest.mark.parametrize(
    "message",
    [
        *(
            "No. 17",
            "no.17 please",
            "no: 17",
            "No. 17, please",
            "no-brainer",
            "no",
            "no!",
            "no, 👍",
            "no, ?",
            "no,",
            "",
        ),
        *("n\u043e, wrong order", "yes, no, wrong order"),
        *(
            "no?, wrong order",
            "wrong order, no",
            "say no, and then?",
            "x" * 70 + " no, wrong order",
        ),
    ],
)
def test_what_only_looks_like_a_no_with_more_words_is_none(message):
    """A number, a plain no, a hidden or look-alike letter, a question, and a no that does not come first."""
    assert not is_no_with_more(EVERYTHING, message, "en")


@given(st.text(max_size=MAX_REASON_CHARS))
def test_no_with_any_words_behind_it_is_never_a_yes(rest):
    """Whatever follows the no."""
    assert not EVERYTHING.is_confirm(f"no, wrong order {rest}")


def test_other_parser_reads_no_reasons():
    """A parser of one's own decides over whole messages."""

    class OwnParser:
        version = "own"

        def is_confirm(self, msg: str) -> bool:
            return msg == "aye"

        def is_cancel(self, msg: str) -> bool:
            return msg == "no"

    assert not is_no_with_more(OwnParser(), "no, wrong order", "en")


#: For each language a yes that asks for a change, and a half answer that does not say which.
CHANGES = {
    "en": ("yes, but blue", "yes, but"), "de": ("ja, aber blau", "ja, aber"), "es": ("sí, pero azul", "sí, pero"),
    "fr": ("oui, mais bleu", "oui, mais"), "it": ("sì, ma blu", "sì, ma"), "pt": ("sim, mas azul", "sim, mas"),
    "nl": ("ja, maar blauw", "ja, maar"), "id": ("ya, tapi biru", "ya, tapi"), "tr": ("evet, ama mavi", "evet, ama"),
    "ru": ("да, но синий", "да, но"), "ar": ("نعم، لكن أزرق", "نعم، لكن"), "hi": ("हाँ, लेकिन नीला", "हाँ, लेकिन"),
    "ja": ("はい、でも青で", "はい、でも"), "zh": ("是，但是蓝色", "是，但是"),
}  # fmt: skip


@pytest.mark.parametrize("language", SHIPPED_LANGUAGES)
def test_yes_with_a_change_is_known_as_one_and_confirms_nothing(language):
    """In each language. Without the change it is only unclear."""
    with_change, without = CHANGES[language]
    for parser in (EVERYTHING, RegexConfirmParser([language])):
        assert is_yes_with_change(parser, with_change, language)
        assert not is_yes_with_change(parser, without, language)
        assert not any(
            parser.is_confirm(each) or parser.is_cancel(each) for each in (with_change, without)
        )
