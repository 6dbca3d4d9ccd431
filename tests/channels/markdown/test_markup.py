"""Markup: a rendering injects nothing, hides nothing and loses nothing."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it.tree import SyntaxTreeNode

from sayso.channels.console.outgoing import page_html
from sayso.channels.markdown import convert
from sayso.channels.markdown.convert import (
    plain,
    slack_mrkdwn,
    telegram_html,
    telegram_length,
    trust_hosts,
    utf16_len,
    whatsapp_text,
)
from sayso.channels.markdown.dialects import HTML, MRKDWN, PLAIN, WHATSAPP
from sayso.channels.markdown.list_numbers import with_shown_numbers
from sayso.channels.markdown.parser import parser
from sayso.channels.markdown.split import split
from sayso.testing.platforms.telegram_text import plain_text

WORDS = st.text(st.characters(codec="utf-8"), max_size=400)
#: Pieces of Markdown, and text that resembles it.
SYNTAX = (
    *(
        "**",
        "*",
        "_",
        "~~",
        "`",
        "```\n",
        "\n",
        "\n\n",
        "> ",
        "- ",
        "1. ",
        "# ",
        "|a|b|\n|-|-|\n",
        "|",
        "<b>",
        " ",
    ),
    *(
        "[a](https://x.y/_z_)",
        "&amp;",
        "word",
        "\\",
        "![i](x)",
        "https://q.r/(s)_t_",
        "~~~py\n",
        "    ",
        "👍🏽",
        "](",
    ),
    *(
        "[",
        ")",
        ' "',
        '"',
        "](https://x.y ",
        "[x]: http://h ",
        "<https://",
        "<!--",
        "-->",
        "--",
        "=\n",
        "\t",
        "\x00",
    ),
    "<!channel>",
)
MARKDOWN = st.lists(st.sampled_from(SYNTAX), max_size=60).map("".join)


@given(MARKDOWN | WORDS)
def test_slack_text_has_no_token_but_our_links(md: str):
    """platforms.md 3.3: no text of a model or a user can ping a channel: every angle bracket is ours."""
    for token in re.findall(r"<([^>]*)>", slack_mrkdwn(md)):
        assert re.match(r"(https?|mailto|tel):", token, re.IGNORECASE)


@given(st.from_regex(convert._PLAIN_TEXT, fullmatch=True))
def test_text_without_markup_renders_as_itself(md: str):
    """The fast path for plain text gives what the parser gives."""
    for dialect in (HTML, MRKDWN, WHATSAPP, PLAIN):
        assert convert._blocks_in(md, SyntaxTreeNode(parser().parse(md)), dialect) == md


@given(MARKDOWN | WORDS)
def test_telegram_html_always_parses(md: str):
    """platforms.md 2.3: Telegram never has a reason to refuse the formatting."""
    plain_text(telegram_html(md), "HTML")


@pytest.mark.parametrize("render", [telegram_html, slack_mrkdwn, whatsapp_text, plain])
@pytest.mark.parametrize(
    "md",
    [
        "[x]: https://hidden.example\nyes",
        "2*3*4 and a**b**c",
        "<script>alert(1)</script>",
        "a < b > c & d",
        "snake_case_name and 5 * 3",
        "[]()",
    ],
)
def test_text_that_is_no_markup_is_never_hidden(render, md: str):
    """pains.md 6: reference lines, arithmetic and tags stay readable: people agree to what they see."""
    seen = (
        html.unescape(re.sub(r"</?[abi]\b[^>]*>", "", render(md)))
        if render is not plain
        else plain(md)
    )
    assert re.sub(r"\W", "", seen.replace("https://hidden.example|", "")) == re.sub(r"\W", "", md)
    assert [char for char in md if char == "*"] == [char for char in seen if char == "*"]


@given(st.lists(st.sampled_from([*SYNTAX, "WORD", "WORD", "WORD"]), max_size=25))
def test_every_word_is_shown(parts: list[str]):
    """A preview cannot hide a word, in any Markdown around it."""
    words = [f"zq{number}$x" for number in range(parts.count("WORD"))]
    rest = iter(words)
    md = "".join(next(rest) if part == "WORD" else part for part in parts)
    for render in (telegram_html, slack_mrkdwn, whatsapp_text, plain):
        assert [word for word in words if word not in render(md)] == []


def test_cells_beyond_the_last_column_are_shown():
    """The parser drops them, so such a table is shown as written."""
    assert "send all" in plain("|a|b|\n|-|-|\n|1|2|send all|")


def test_cells_beyond_the_last_column_are_shown_below_a_carriage_return():
    """For the parser it ends a line, so the table is one line further down."""
    md = "Hi\rAna\r\n\n|a|b|\n|-|-|\n|1|2|\n|3|4|send all|"
    assert all("send all" in render(md) for render in (plain, telegram_html, page_html))


def test_list_below_carriage_returns_is_counted_up():
    """A long text is numbered before it is split, by the lines as the parser counts them."""
    md = "a\r" * 20 + "\n1. one\n1. two\r1. three"
    assert with_shown_numbers(md).splitlines()[-3:] == ["1. one", "2. two", "3. three"]


@pytest.mark.parametrize(
    "href",
    ["javascript:alert(1)", "tg://user?id=1", "data:text/html,x", "/relative", "file:///etc"],
)
def test_only_harmless_schemes_become_links(href: str):
    """Any other address is shown as text and not linked."""
    md = f"[click]({href})"
    assert "<a" not in telegram_html(md)
    assert "<" not in slack_mrkdwn(md)
    assert "click" in plain(md)


def test_code_cannot_break_out_of_its_block():
    """Backticks inside code do not end it, and pings inside code are escaped."""
    seen = slack_mrkdwn("~~~\n```\n<!channel> a & b\n~~~")
    assert seen.count("```") == 2
    assert "&lt;!channel&gt; a &amp; b" in seen


@pytest.mark.parametrize(
    ("md", "telegram", "slack", "whatsapp"),
    [
        ("**b** *i* ~~s~~", "<b>b</b> <i>i</i> <s>s</s>", "*b* _i_ ~s~", "*b* _i_ ~s~"),
        ("# Title **x**", "<b>Title x</b>", "*Title x*", "*Title x*"),
        ("`a<b`", "<code>a&lt;b</code>", "`a&lt;b`", "`a<b`"),
        ("- a\n- b\n  1. c", "• a\n• b\n  1. c", "• a\n• b\n  1. c", "• a\n• b\n  1. c"),
        ("> q", "<blockquote>q</blockquote>", "> q", "> q"),
        (
            "```py\nx = 1\n```",
            '<pre><code class="language-py">x = 1</code></pre>',
            "```\nx = 1\n```",
            "```\nx = 1\n```",
        ),
        (
            "[w](https://e.org/A_(b)_c)",
            '<a href="https://e.org/A_(b)_c">w</a> (https://e.org/A_(b)_c)',
            "<https://e.org/A_(b)_c|w> (<https://e.org/A_(b)_c>)",
            "w (https://e.org/A_(b)_c)",
        ),
        (
            "(https://e.org/_a_/b_c?x=1&y=2).",
            '(<a href="https://e.org/_a_/b_c?x=1&amp;y=2">https://e.org/_a_/b_c?x=1&amp;y=2</a>).',
            "(<https://e.org/_a_/b_c?x=1&amp;y=2>).",
            "(https://e.org/_a_/b_c?x=1&y=2).",
        ),
        (
            "| a | b |\n|-|-|\n| 11 | 2 |",
            *[
                f"{o}a  | b\n---+--\n11 | 2{c}"
                for o, c in (("<pre>", "</pre>"), *[("```\n", "\n```")] * 2)
            ],
        ),
    ],
)
def test_each_platform_gets_its_own_formatting(md: str, telegram: str, slack: str, whatsapp: str):
    """platforms.md 1.3: each platform has its own markers for bold, italic, code, lists, links and tables."""
    assert (telegram_html(md), slack_mrkdwn(md), whatsapp_text(md)) == (telegram, slack, whatsapp)


@pytest.mark.parametrize(
    ("md", "numbers"),
    [
        ("3. three\n5. five\n7. seven", ["3.", "5.", "7."]),
        ("1. one\n2. two\n4. four", ["1.", "2.", "4."]),
        ("1. one\n\nA break.\n\n2. two", ["1.", "2."]),
        ("5) five\n6) six", ["5)", "6)"]),
        ("007. Bond", ["007."]),
        ("2024. 05. 12. snow", ["2024.", "05.", "12."]),
        ("1. one\n1. two\n1. three", ["1.", "2.", "3."]),
    ],
)
def test_numbers_of_a_list_are_shown_as_written(md: str, numbers: list[str]):
    """A rewritten number names another step, clause or year. A list of equal numbers is counted up, as in Markdown."""
    for render in (telegram_html, slack_mrkdwn, whatsapp_text, plain):
        assert re.findall(r"\b\d+[.)]", render(md)) == numbers


def test_page_shows_the_numbers_of_a_list_as_written():
    """The browser would count on from the first number, and show 5) as 5. and 007. as 7."""
    assert re.findall(r'value="(\d+)"', page_html("3. a\n5. b\n7. c")) == ["3", "5", "7"]
    assert 'data-marker="5) "' in page_html("5) a")
    assert 'data-marker="007. "' in page_html("007. Bond")


@pytest.mark.parametrize(
    ("md", "telegram", "whatsapp"),
    [
        ("**重要\uff1a**请确认", "<b>重要\uff1a</b>请确认", "*重要\uff1a*\u200b请确认"),
        ("**「A」**です", "<b>「A」</b>です", "*「A」*\u200bです"),
        ("中文**粗体**中文", "中文<b>粗体</b>中文", "中文\u200b*粗体*\u200b中文"),
        ('다음 **"제목"**은', '다음 <b>"제목"</b>은', '다음 *"제목"*\u200b은'),
        ("~~\uff08旧\uff09~~新", "<s>\uff08旧\uff09</s>新", "~\uff08旧\uff09~\u200b新"),
        ("单价*数量*折扣", "单价*数量*折扣", "单价*数量*折扣"),
        ("*「斜体」*です", "<i>「斜体」</i>です", "_「斜体」_\u200bです"),
        ("***重要\uff1a***请", "<i><b>重要\uff1a</b></i>请", "_*重要\uff1a*_\u200b请"),
        ("这***很***好", "这<i><b>很</b></i>好", "这\u200b_*很*_\u200b好"),
        ("**ราคา:**ดี", "<b>ราคา:</b>ดี", "*ราคา:*\u200bดี"),
        ("ดี**มาก**ดี", "ดี<b>มาก</b>ดี", "ดี\u200b*มาก*\u200bดี"),
        ("و**السعر:**جيد", "و<b>السعر:</b>جيد", "و\u200b*السعر:*\u200bجيد"),
        ("ה**מחיר**", "ה<b>מחיר</b>", "ה\u200b*מחיר*"),
        ("⚠\ufe0f**注意**", "⚠\ufe0f<b>注意</b>", "⚠\ufe0f*注意*"),
    ],
)
def test_text_is_bold_beside_scripts_without_spaces(md: str, telegram: str, whatsapp: str):
    """CommonMark needs a space there, and Slack and WhatsApp a boundary, which an invisible character makes."""
    assert (telegram_html(md), slack_mrkdwn(md), whatsapp_text(md)) == (
        telegram,
        whatsapp,
        whatsapp,
    )
    assert re.findall("<(?:strong|s|em)>", page_html(md)) == [
        {"<b>": "<strong>", "<i>": "<em>", "<s>": "<s>"}[mark]
        for mark in re.findall("<[bis]>", telegram)
    ]


def test_marks_of_slack_and_whatsapp_end_with_each_line():
    """Neither reaches into the next line: people would see asterisks in place of bold text."""
    assert (slack_mrkdwn("**a\n*b*\nc** d"), whatsapp_text("~~a\nb~~")) == (
        "*a*\n*_b_*\n*c* d",
        "~a~\n~b~",
    )


def test_italic_text_is_the_same_with_either_mark():
    """An underscore of the source is the mark of these platforms, too, and follows the same rules."""
    for written, shown in (("{0}a\nb{0}", "_a_\n_b_"), ("{0}x y\\_ z{0}", "x y_ z")):
        for mark in "*_":
            md = written.format(mark)
            assert (slack_mrkdwn(md), whatsapp_text(md)) == (shown, shown)


@pytest.mark.parametrize(
    "md",
    [
        "Deleted __init__.py",
        "see pkg/__init__.py and src/_build_/x",
        "obj.__class__.__name__",
        "call __init__(self)",
        "src/*/test* and a/*.py",
        "/*comment*/",
    ],
)
def test_names_and_paths_of_a_model_stay_whole(md: str):
    """A model often writes them without marking them as code."""
    assert {telegram_html(md), plain(md)} == {md}
    assert {each(md).replace("\u200b", "") for each in (slack_mrkdwn, whatsapp_text)} == {md}
    assert page_html(md) == f"<p>{md}</p>\n"


@pytest.mark.parametrize(
    ("md", "shown"),
    [
        ("Delete **x\\* and y** now", "Delete x* and y now"),
        ("Delete **\\*.py** now", "Delete **\u200b.py* now"),
        ("~~a\\~ b~~", "a~ b"),
    ],
)
def test_mark_in_a_bold_text_does_not_end_it(md: str, shown: str):
    """Slack and WhatsApp would take the star of a pattern for the end, and show the last one instead."""
    assert slack_mrkdwn(md) == whatsapp_text(md) == shown


def test_underscores_still_mark_words():
    """Also before a full stop, in brackets, and behind a slash with two asterisks."""
    assert (
        telegram_html("__Now__. (_then_) yes/**no**") == "<b>Now</b>. (<i>then</i>) yes/<b>no</b>"
    )


@pytest.mark.parametrize("md", ["a***b***c", "2***3***4", "a**b**c"])
def test_marks_inside_a_word_stay_whole(md: str):
    """Neither lost nor formatted in part."""
    assert {telegram_html(md), slack_mrkdwn(md), whatsapp_text(md), plain(md)} == {md}


@pytest.mark.parametrize(
    "md", ["*a **b " * 3000, "[" * 10_000, "> " * 5000, "`" * 9999, "- " * 3000, "*_~" * 4000]
)
def test_deep_nesting_neither_crashes_nor_hangs(md: str):
    """A text made to exhaust a parser is rendered like any other."""
    assert telegram_html(md)
    assert len(split(md, 4096, telegram_length)) >= 1


@given(WORDS, st.integers(1, 50))
def test_joined_pieces_are_the_text(text: str, limit: int):
    """Without code fences the pieces joined are the text; a cut escapes only what would begin a block."""
    text = text.replace("```", "").replace("~~~", "")
    pieces = split(text, limit)
    rest = iter("".join(pieces))
    assert all(char in rest for char in text)
    assert sum(map(len, pieces)) < len(text) + max(1, len(pieces))
    assert all(0 < len(piece) <= limit for piece in pieces)


@given(MARKDOWN, st.integers(1, 80))
def test_split_code_fences_lose_no_character(md: str, limit: int):
    """A closed and reopened fence adds lines; every character of the text is still there, in order."""
    pieces = split(md, limit)
    rest = iter("".join(pieces))
    assert all(char in rest for char in md)
    assert all(len(piece) <= limit for piece in pieces)


@given(st.lists(MARKDOWN | WORDS, max_size=12).map("\n".join), st.integers(60, 300))
def test_rendered_pieces_fit_the_limit(md: str, limit: int):
    """The limit counts what the platform counts, and not the Markdown."""
    for measure in (
        telegram_length,
        lambda text: len(slack_mrkdwn(text)),
        lambda text: len(whatsapp_text(text)),
    ):
        assert all(measure(piece) <= limit for piece in split(md, limit, measure))


@given(
    st.lists(st.sampled_from(["e\u0301", "👍🏽", "👨‍👩‍👧", "🇩🇪", "a", "\r\n"]), max_size=60).map(
        "".join
    )
    | st.just("🇩🇪" * 30),
    st.integers(12, 30),
)
def test_no_grapheme_is_split(text: str, limit: int):
    """Accents, skin tones, families, flags and line ends stay in one piece."""
    for piece in split(text, limit, utf16_len)[1:]:
        assert not unicodedata.combining(piece[0])
        assert piece[0] not in "\u200d\U0001f3fd\n"


def test_text_is_cut_at_paragraphs_then_lines_then_words():
    """platforms.md 1.3: a cut falls between paragraphs if possible, else between lines, else between words."""
    assert split("one two\n\nthree four", 14) == ["one two\n\n", "three four"]
    assert split("one two\nthree four", 14) == ["one two\n", "three four"]
    assert split("one two three", 10) == ["one two ", "three"]
    assert split("onetwothree", 4) == ["onet", "woth", "ree"]


@pytest.mark.parametrize(
    "rest",
    [
        "- 500 EUR",
        "# 500 EUR",
        "007. agent",
        "> quoted",
        "--- x",
        "* a",
        "```py",
        "[a]: https://evil.example",
        "1) a",
        "===",
    ],
)
def test_rest_of_a_cut_line_starts_no_block(rest: str):
    """The next piece renders it as plain text, like the middle of a line."""
    pieces = split(f"{'x' * 30} {rest}", 31)
    assert len(pieces) == 2
    assert plain(pieces[1]) == rest


@pytest.mark.parametrize("mark", ["**", "*", "_", "__", "~~"])
def test_no_cut_is_between_two_marks(mark: str):
    """A cut would show both marks, and format neither part."""
    text = f"{'word ' * 20}{mark}some words that belong together{mark}{' word' * 20}"
    pieces = split(text, 120)
    assert len(pieces) > 1
    assert [piece.count(mark) % 2 for piece in pieces] == [0] * len(pieces)


@pytest.mark.parametrize(
    "md",
    [
        "- one\n" + "    - **two** words and more of them\n" * 9,
        "10. one\n" + "\n    A **paragraph** of the same item.\n" * 9,
        "1. one\n    - two\n" + "        - **three** words and more\n" * 9 + "2. last",
        "- one `two`:\n"
        + "      three\n" * 3
        + "    - "
        + "**four** five " * 20
        + "\n        - **six**",
    ],
)
def test_rest_of_an_item_is_formatted_in_the_next_piece(md: str):
    """Without its item, a line with four spaces before it would be code, and show the marks."""
    pieces = split(md, 120, telegram_length)
    assert len(pieces) > 1
    assert not any(re.search("<pre>|[*]{2}", telegram_html(piece)) for piece in pieces)


def test_code_in_an_item_keeps_its_lines_in_the_next_piece():
    """The fence is closed and opened again, and the text after it is no code."""
    code = "".join(f"    {'  ' * (number % 3)}line {number}\n" for number in range(20))
    pieces = split(
        f"10. Do this:\n\n    ```py\n{code}    ```\n\n    Then **that**.\n11. Done",
        120,
        telegram_length,
    )
    shown = [telegram_html(piece) for piece in pieces]
    lines = re.findall(
        r"^ *line \d+", "\n".join(re.sub(r"<[^>]*>", "", page) for page in shown), re.MULTILINE
    )
    assert lines == [f"{'  ' * (number % 3)}line {number}" for number in range(20)]
    assert [page.count("<pre>") for page in shown] == [1] * len(shown)
    assert shown[-1].endswith("Then <b>that</b>.\n11. Done")


@pytest.mark.parametrize("number", ["1.", "1)", "> 1.", "- 1."])
def test_list_that_repeats_a_number_counts_on_in_the_next_piece(number: str):
    """Otherwise each message would begin with one."""
    md = "\n".join(f"{number if number[0] != '-' or not at else '  1.'} item" for at in range(40))
    pieces = split(md, 120, telegram_length)
    numbers = [int(each) for piece in pieces for each in re.findall(r"(\d+)[.)]", plain(piece))]
    assert numbers == list(range(1, 41))


def test_item_with_a_longer_number_keeps_its_nested_list():
    """A list of ones that counts to ten needs one more space before the lines of an item."""
    pieces = split("\n".join(["1. item\n   - nested"] * 12), 150, telegram_length)
    assert pieces[-1].endswith("12. item\n    - nested")
    assert "".join(map(telegram_html, pieces)).count("   • nested") == 12


def test_escaped_character_stays_escaped():
    """A cut between the backslash and its character would turn escaped text into a link."""
    md = f"{'x' * 38}\\[click](https://evil.example)"
    assert [plain(piece) for piece in split(md, 39)][1:] == ["[click](https://evil.example)"]


def test_cut_code_is_closed_and_opened_again():
    """Both halves of a long code block are code, in its language."""
    code = "\n".join(f"line {number}" for number in range(30))
    pieces = split(f"Look:\n\n```py\n{code}\n```\nDone", 120)
    assert all(piece.count("```") == 2 for piece in pieces)
    assert all(piece.startswith("```py\n") for piece in pieces[1:])
    assert max(map(len, pieces)) <= 120


@pytest.mark.parametrize(
    "md",
    [
        "[![i](https://a.b/c)](https://d.e)",
        "[**x ![i](https://a.b/c)**](https://d.e)",
        "![i [l](https://a.b/c)](https://d.e)",
    ],
)
def test_no_link_is_inside_a_link(md: str):
    """platforms.md 2.3, 3.3: a platform would show only one of the two addresses, or brackets; both stay readable."""
    assert telegram_html(md).count("<a ") == slack_mrkdwn(md).count("|") == 1
    assert not re.search(r"<[^>]*<", slack_mrkdwn(md))
    for told in (telegram_html(md), slack_mrkdwn(md), whatsapp_text(md), plain(md)):
        assert "(https://a.b/c)" in told


@pytest.fixture
def own_hosts() -> Iterator[None]:
    """Trust example.com as a host of the bot."""
    trust_hosts(["example.com"])
    yield
    trust_hosts([])


@pytest.mark.parametrize(
    ("md", "is_shown"),
    [
        ("[your bank](https://evil.test/x)", True),
        ("[https://bank.example](https://evil.test/x)", True),
        ("[bank.example](https://bank.example@evil.test/x)", True),
        ("[example.com](https://example.com.evil.test/x)", True),
        ("[e\u200bvil.test](https://evil.test/x)", True),
        ("[**your** `bank`](http://evil.test/x)", True),
        ("[**](https://evil.test/x)", True),
        ("[docs](https://example.com/x)", False),
        ("[docs](https://docs.EXAMPLE.com/x)", False),
        ("[evil.test/x](https://evil.test/x)", False),
        ("[evil.test](https://evil.test/x)", False),
        ("[https://www.evil.test](https://evil.test/)", False),
        ("see https://evil.test/a_b", False),
        ("[mail us](mailto:a@evil.test)", False),
    ],
)
def test_label_hides_no_foreign_address(own_hosts, md: str, is_shown: bool):
    """A model may be tricked into any label, so the address is shown, unless its host is the bot's own."""
    for render in (telegram_html, slack_mrkdwn, page_html):
        told = html.unescape(
            re.sub(r"</?[^|>]*>|<[^>]*\|", "", render(md).replace("(<", "(").replace(">)", ")"))
        )
        assert bool(re.search(r"\(https?://[^)]*evil\.test", told)) == is_shown, render(md)


def test_marks_that_are_nested_too_deep_are_shown_as_their_source():
    """Each level would take a call, and a text may have thousands."""
    assert plain("*a **b " * 10 + "b** a*" * 10) == "a b " * 10 + "b a" * 10
    assert plain("*a **b " * 999 + "b** a*" * 999).count("*") > 5000


def test_text_that_was_rendered_before_follows_the_trusted_hosts():
    """Rendered texts are kept, but not beyond a change of the hosts."""
    md = "[docs](https://example.com/x)"
    before = telegram_html(md), slack_mrkdwn(md)
    trust_hosts(["example.com"])
    trusting = telegram_html(md), slack_mrkdwn(md)
    trust_hosts([])
    assert [text.count("https://example.com/x") for text in (*before, *trusting)] == [2, 2, 1, 1]
    assert (telegram_html(md), slack_mrkdwn(md)) == before


def test_address_of_a_picture_in_a_link_is_unchanged():
    """platforms.md 1.3: no invisible character stands in it, so it can be opened."""
    assert "(https://a.b/_c_)" in whatsapp_text("[![i](https://a.b/_c_)](https://d.e)")
