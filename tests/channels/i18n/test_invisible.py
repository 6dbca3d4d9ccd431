"""Invisible characters: previews that look the same are the same text, and no script or emoji is changed."""

# ruff: noqa: RUF001 - scripts that ruff takes for look-alikes

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.channels.i18n.invisible import INVISIBLE, readable, shows_nothing

HIDDEN = st.sampled_from(
    "\u200b\u200c\u200d\u202e\u2066\u00ad\u034f\u3164\u2800\ufe0f\U000e0041\U000e0100\ud83d\x00\x1b\u180b"
)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a\x08\x1bc\x7f", "a⟨U+0008⟩⟨U+001B⟩c⟨U+007F⟩"),
        ("report\u200b.pdf", "report⟨U+200B⟩.pdf"),
        ("\u202eevil\u202c", "⟨U+202E⟩evil⟨U+202C⟩"),
        ("INV-1\ufe0f", "INV-1⟨U+FE0F⟩"),
        ("é\u200dü", "é⟨U+200D⟩ü"),
        ("pay\U000e0061\U000e007f", "pay⟨U+E0061⟩⟨U+E007F⟩"),
        ("日\u200d本", "日⟨U+200D⟩本"),
        ("caf\udce9", "caf⟨U+DCE9⟩"),
        ("a\u3164b\u2800", "a⟨U+3164⟩b⟨U+2800⟩"),
        ("👩\u200d", "👩⟨U+200D⟩"),
        ("a\U00013430b\U00013441", "a⟨U+13430⟩b⟨U+13441⟩"),
        ("pay\U0001d159pal", "pay⟨U+1D159⟩pal"),
        ("a\ufffeb", "a⟨U+FFFE⟩b"),
        ("a" + "\u200b" * 3000, "a⟨3000 U+200B⟩"),
    ],
)
def test_invisible_character_is_shown_by_its_code(written, read):
    """A name with such a character is another name, and the user must see the difference before agreeing."""
    assert readable(written) == read


@pytest.mark.parametrize("hidden", ["delete everything", "gb", "gbsct2", "ustx"])
def test_text_in_tags_behind_a_black_flag_is_shown(hidden):
    """Screens show a black flag alone. Only three regions have a flag of their own."""
    tags = "".join(chr(0xE0000 + ord(letter)) for letter in hidden)
    shown = readable(f"pay \U0001f3f4{tags}\U000e007f")
    assert shown.startswith("pay \U0001f3f4⟨U+E00")
    assert not re.search(f"[{INVISIBLE}]", shown)


def test_emoji_in_two_halves_shows_something():
    """A model's stream may part it. Two halves side by side are shown as the emoji."""
    assert not shows_nothing("\ud83d\ude00")
    assert shows_nothing("\ud83d \ude00")


@pytest.mark.parametrize(
    "text",
    [
        "Größe 日本語 кот",
        "می\u200cخواهم",
        "क्\u200dष न\u200d",
        "👩\u200d🚀 🏳\ufe0f\u200d🌈 ❤\ufe0f\u200d🔥 👩🏽\u200d❤\ufe0f\u200d👨🏻 👩\u200d⚕\ufe0f",
        "1\ufe0f\u20e3 #\ufe0f\u20e3 \u2139\ufe0f ☀\ufe0e ↔\ufe0f ‼\ufe0f 〰\ufe0f",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        "\U0001f3f4\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f",
        "葛\U000e0100城",
        "مرحبا שלום",
    ],
)
def test_scripts_and_emoji_are_unchanged(text):
    """Their joiners and selectors shape visible characters."""
    assert readable(text) == text


@pytest.mark.parametrize(
    ("written", "read"),
    [("a\r\nb\rc\u2028d\x0be", "a\nb\nc\nd\ne"), ("a\tb", "a b"), ("\ud83d\ude00", "😀")],
)
def test_line_ends_tabs_and_surrogate_pairs_are_normalized(written, read):
    """Every line end becomes one kind, a tab becomes a space, and two adjacent surrogates become one character."""
    assert readable(written) == read


def test_every_format_character_of_unicode_is_shown_by_its_code():
    """Only signs that stand before a number, of Arabic and Kaithi, are visible themselves."""
    formats = [char for char in map(chr, range(0x110000)) if unicodedata.category(char) == "Cf"]
    shown = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u0890\u0891\u08e2\U000110bd\U000110cd"
    assert "".join(char for char in formats if readable(f"a{char}b") == f"a{char}b") == shown


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a" + "\u00a0" * 3000 + "b", "a⟨3000 ␣⟩b"),
        ("a" + " " * 21 + "b", "a⟨21 ␣⟩b"),
        ("a" + " \u2003\u3000" * 100 + "b", "a⟨300 ␣⟩b"),
        ("a" + "\n \u00a0" * 3000 + "b", "a\n⟨3000 ⏎⟩\nb"),
        ("a" + " " * 20 + "b\n\n\n\nc", "a" + " " * 20 + "b\n\n\n\nc"),
    ],
)
def test_long_gaps_are_counted(written, read):
    """What follows three thousand blanks would be out of sight."""
    assert readable(written) == read


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("p\u0430ypal", "p⟨U+0430⟩ypal"),
        ("g\u03bf\u03bfgle.com", "g⟨U+03BF⟩⟨U+03BF⟩gle.com"),
        ("п\u0061роль", "п⟨U+0061⟩роль"),
        ("ada@ex\u0430mple.com", "ada@ex⟨U+0430⟩mple.com"),
        ("b\u0585b", "b⟨U+0585⟩b"),
        ("\U0001d429aypal", "⟨U+1D429⟩aypal"),
        ("\uff50aypal", "⟨U+FF50⟩aypal"),
        ("\u212aelly", "⟨U+212A⟩elly"),
        ("1\u09ea00", "1⟨U+09EA⟩00"),
    ],
)
def test_lookalike_inside_a_word_or_number_is_shown_by_its_code(written, read):
    """It is another name, address or amount than it seems."""
    assert readable(written) == read


@pytest.mark.parametrize(
    "text",
    [
        "Сара и Ада удалят счёт в PayPal",
        "USB-порт, SMSка, VIPы, e-mailом, фото_x2, A4формат, getОтчет",
        "kΩ μm Δt 5 µg Αθήνα",
        "iPhone手机 ＡＢＣ社 Tシャツ",
        "naïve Øystein Größe İstanbul",
        "٣٤ १२३ ৪৭",
        "a²+b² ½ № Mª 1º",
        "שלום abc مرحبا",
    ],
)
def test_real_multilingual_text_is_unchanged(text):
    """Words of one script, and words whose parts nobody could confuse."""
    assert readable(text) == text


@given(st.text("paуpalпароль1৪αο\u0301ｐ _-"))
def test_marking_lookalikes_is_idempotent(text):
    """A stored preview is read again, and its signature must still fit."""
    assert readable(readable(text)) == readable(text)


@given(
    st.lists(st.sampled_from([" " * 7, "\u00a0" * 21, "\n", "\u200b" * 4, "a", "⟨U+200B⟩"])).map(
        "".join
    )
)
def test_counting_gaps_is_idempotent(text):
    """A number of blanks is no gap."""
    assert readable(readable(text)) == readable(text)


@given(st.lists(st.characters() | HIDDEN | st.sampled_from("aé日न👩🏴1#")).map("".join))
def test_readable_is_idempotent(text):
    """A stored preview is made readable again when it is loaded, and its signature must still fit."""
    once = readable(text)
    assert readable(once) == once
    assert once.encode().decode() == once


@pytest.mark.parametrize(
    "text", ["\u115f\ufe00", "\u17b4\u200c", "a\ufe0f\u200d❤", "❤\u200d\ufe0f"]
)
def test_readable_is_idempotent_after_a_code(text):
    """A character that is shown by its code shapes no character after it."""
    assert readable(readable(text)) == readable(text)


@given(st.text("abc123"), HIDDEN, st.text("abc123"))
def test_no_invisible_character_stays_between_latin_letters_and_digits(before, hidden, after):
    """Every invisible character there is shown by its code."""
    assert not re.search(f"[{INVISIBLE}]", readable(before + hidden + after))
