"""Documents: files that hold what was said, open everywhere and run nothing."""

from __future__ import annotations

import csv
import io
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sayso.agent import Artifact, ToolExecutionError, ToolParameterError
from sayso.agent.toolbox import documents as pdf
from sayso.agent.toolbox.documents import (
    MAX_PDF_CHARS,
    _parse,
    _story,
    filename,
    make_csv,
    make_pdf,
)
from sayso.agent.tools.environment import collect_artifacts
from tests.agent.toolbox.words import said

REPORT = """# Bericht

Größe **fett** und *kursiv*: Привет, Ελληνικά, Zażółć. 5 < 6 & 7 [hier](https://example.com/?a=1&b="2")

| Monat | Umsatz |
|---|---:|
| Mai | 12,50 € |

- eins
  - zwei

1. drei

> Zitat

```
x < y
```
"""


def made(title: str, text: str, **more: str) -> tuple[Artifact, str]:
    """The one file of a call, and what the model reads."""
    with collect_artifacts() as files:
        told = make_pdf.execute({"title": title, "text": text, **more})
    (file,) = files
    assert (file.data or b"").startswith(b"%PDF-")
    return file, told


def rows_of(columns: list[str], rows: list[list]) -> list[list[str]]:
    """The cells of the CSV, as a reader finds them."""
    with collect_artifacts() as files:
        make_csv.execute({"columns": columns, "rows": rows})
    return list(csv.reader(io.StringIO((files[0].data or b"").decode("utf-8-sig"))))


HOSTILE = {
    "brackets": "[" * 59_000, "stars": "*a **b " * 8_000, "items": "- x\n" * 14_000,
    "loose items": "- x\n\n" * 11_000, "headings": "# x\n" * 14_000, "rules": "---\n" * 14_000,
    "quotes": ">" * 5_000 + " x", "deep list": "\n".join("  " * depth + "- x" for depth in range(200)),
    "one word": "x" * 60_000, "one paragraph": "Lorem ipsum. " * 4_500,
    "code": "```\n" + "x\n" * 29_000, "long code": "```\n" + "x" * 59_000,
    "many cells": "|a|b|c|\n|-|-|-|\n" + "|1|2|3|\n" * 7_000, "wide table": "|" + "a|" * 500 + "\n|" + "-|" * 500,
    "tall cell": "|a|b|\n|-|-|\n|" + "word " * 9_000 + "|x|", "links": "[a](b" * 11_000, "ticks": "`a" * 29_000,
    "references": "".join(f"[a{n}]: /u\n" for n in range(5_000)),
    "entities": "&amp;" * 11_000, "blank": " " * 60_000, "lines": "\n" * 59_999 + "x", "zero": "a\0b\x07c",
    "empty items": "-\n" * 20_000, "hard breaks": "a  \n" * 14_000, "start": "999999999. x",
    "ragged table": "|a|b|\n|-|-|\n|1|\n|1|2|3|", "table in list": "- |a|\n  |-|\n  |1|\n\n> |a|\n> |-|\n> |1|",
    "markup": "<para><b></i></font>&nosuch; <br/> <img src='x'/>",
}  # fmt: skip


WIDE = "|" + "head|" * 12 + "\n|" + "-|" * 12 + "\n"
TABLES = {
    "one tall cell": "|" + "h|" * 8 + "\n|" + "-|" * 8 + "\n|" + "forty characters of a cell are these her|" * 7
    + "word " * 119 + "|",
    "all cells tall": WIDE + ("|" + ("W" * 599 + "|") * 12 + "\n") * 4,
    "a tall head": "|" + ("word " * 119 + "|") * 12 + "\n|" + "-|" * 12 + "\n" + ("|" + "a|" * 12 + "\n") * 9,
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_made_to_take_long_is_set_or_refused_in_words(text: str):
    """This test has no clock, but its run has a limit."""
    told = said(lambda: made("t", HOSTILE[text])[0].size < 2_000_000)
    assert told == "True" or "make several files" in told or "use make_csv" in told


@pytest.mark.parametrize("text", TABLES)
def test_a_table_of_any_cells_within_bounds_is_set(text: str):
    """A row that is too tall for a page goes on on the next."""
    assert "is made" in made("t", TABLES[text])[1]


def test_what_fits_on_no_page_is_told_in_words(monkeypatch: pytest.MonkeyPatch):
    """And not in the words of a library, with addresses of memory."""
    monkeypatch.setattr(pdf, "_MARGIN", 420.0)
    with pytest.raises(ToolExecutionError, match="too large for a page: make it shorter") as caught:
        made("t", "# x")
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("Run:\n\n- ```\n  make deploy\n  ```\n", ["Run:", "•", "make deploy"]),
        ("- - inner a\n  - inner b", ["•", "• inner a", "• inner b"]),
        (
            "1. first\n2. > one\n   >\n   > two\n3. third",
            ["1. first", "2.", "one", "two", "3. third"],
        ),
        ("- a\n-\n- c", ["• a", "•", "• c"]),
        ("- a\n\n  b\n- c", ["• a", "b", "• c"]),
        ("7. # Head", ["7.", "Head"]),
    ],
)
def test_an_item_is_set_with_its_mark_and_all_that_is_in_it(text: str, lines: list[str]):
    """Also where it begins with another block; and each part once."""
    set_lines = [
        " ".join(filter(None, (getattr(part, "bulletText", None), part.getPlainText().strip())))
        for part in _story("t", _parse(text))
        if hasattr(part, "getPlainText")
    ]
    assert set_lines[1:] == lines


def test_a_long_paragraph_is_set_with_its_markup_and_its_words():
    """Bold stays bold, and no blank stands in a long word."""
    text = "word " * 600 + "x" * 90
    (paragraph,) = _story("t", _parse(f"**bold** {text}"))[1:]
    assert paragraph.getPlainText() == f"bold {text}"
    assert [part.fontName for part in paragraph.frags] == ["SaysoSans-Bold", "SaysoSans"]


def test_a_megabyte_of_text_is_refused_by_the_schema():
    """Before it is read."""
    with pytest.raises(ToolParameterError, match=f"at most {MAX_PDF_CHARS} characters"):
        made("t", "x" * 1_000_000)


def test_no_file_and_no_address_is_opened(monkeypatch: pytest.MonkeyPatch):
    """Pictures and HTML stay words; links lead to the web only."""
    import urllib.request

    monkeypatch.setattr(urllib.request, "urlopen", None)
    text = "![x](file:///etc/passwd) <img src='http://127.0.0.1/'/> [a](file:///etc/passwd) [b](javascript:x) [c](/x) [d](https://e.com)"
    file, _ = made("t", text)
    assert re.findall(rb"/URI \((.*?)\)", file.data or b"") == [b"https://e.com"]
    assert b"/Image" not in (file.data or b"").replace(b"/ImageB", b"").replace(
        b"/ImageC", b""
    ).replace(b"/ImageI", b"")


@pytest.mark.parametrize("text", ["漢字", "مرحبا", "שלום", "हिन्दी", "Mixed 日本 text"])
def test_letters_that_cannot_be_set_are_told_and_nothing_is_made(text: str):
    """Else the page would show boxes, or letters in the wrong order."""
    with (
        collect_artifacts() as files,
        pytest.raises(ToolExecutionError, match="no PDF was made: it cannot set"),
    ):
        make_pdf.execute({"title": "t", "text": text})
    assert files == []


def test_emoji_are_left_out_and_told():
    """Models like them; a document does without."""
    _, told = made("Plan 🚀", "Done ✅ and 👩\u200d👧")
    assert told.endswith(
        "its font cannot draw it: '🚀' (rocket), '✅' (white heavy check mark), '👩' (woman), '👧' (girl)."
    )
    assert "Left out" not in made("Plan", "Größe Привет €")[1]


def test_emoji_of_a_digit_is_left_out_and_told():
    """Its frame is a combining mark, but no letter: the digit stays, and the PDF is made."""
    file, told = made("Plan", "1\ufe0f\u20e3 first")
    assert "Left out, because its font cannot draw it: '\u20e3'" in told
    assert file.data


def test_invisible_mark_of_direction_is_not_told():
    """People who write from right to left type it; nothing that they see is left out."""
    assert "Left out" not in made("Plan", "a\u200fb")[1]


@pytest.mark.parametrize("depth", range(13))
def test_line_of_code_fits_on_the_page_at_any_depth(depth: int):
    """Each list and quote indents the code, so there its lines are broken earlier."""
    from reportlab.pdfbase.pdfmetrics import stringWidth

    block = pdf._code("x" * 200, depth)
    lines = block.frags[0].text.split("\n")
    width = max(stringWidth(line, pdf._MONO, 8.5) for line in lines)
    assert block.style.leftIndent + width <= pdf._PAGE[0] - 2 * pdf._MARGIN


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="#*_`>-|[]()!<&\n 1.ab~\\:/", min_size=1, max_size=300))
def test_any_markdown_is_set(text: str):
    """Nothing is raised, however it is nested."""
    assert made("t", text)


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=100), st.text(min_size=1, max_size=100))
def test_any_text_is_set_or_refused_in_words(title: str, text: str):
    """Nothing but ValueError leaves it."""
    told = said(lambda: make_pdf(title, text))
    assert "is made" in told or "cannot set" in told


def test_a_report_is_set_with_its_font_in_it():
    """The reader's machine needs none; the same text makes the same bytes."""
    file, told = made("Bericht", REPORT)
    assert told == "Bericht.pdf is made (1 page) and goes to the user with your reply."
    assert b"DejaVuSans-Bold" in (file.data or b"")
    assert (file.mime_type, file.data) == ("application/pdf", made("Bericht", REPORT)[0].data)


def test_long_texts_take_several_pages():
    """And it is told how many."""
    assert (
        "(6 pages)" in made("t", "Lorem ipsum dolor sit amet, consetetur sadipscing.\n\n" * 180)[1]
    )


def test_documents_made_at_once_do_not_mix():
    """Each thread's text stays in its own file."""
    alone = {number: made("t", f"**{number}** *{number}*\n\n" * 50)[0].data for number in range(4)}
    with ThreadPoolExecutor(4) as pool:
        together = pool.map(
            lambda number: (number, made("t", f"**{number}** *{number}*\n\n" * 50)[0].data),
            [*range(4)] * 2,
        )
    assert all(alone[number] == data for number, data in together)


FORMULAS = [
    "=1+1",
    "=cmd|' /C calc'!A0",
    "+SUM(1)",
    "-1+1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    '=HYPERLINK("http://x","y")',
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_no_cell_runs_as_a_formula(formula: str):
    """A spreadsheet takes what begins with an apostrophe as text; in the head, too."""
    assert rows_of([formula], [[formula]]) == [[f"'{formula}"], [f"'{formula}"]]


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        ("-5", "-5"),
        ("+4.5", "+4.5"),
        (-5, "-5"),
        (1.5, "1.5"),
        (None, ""),
        (True, "true"),
        ('Köln, "x"\ny', 'Köln, "x"\ny'),
        ("-7%", "-7%"),
    ],
)
def test_other_cells_stay_what_they_are(cell: object, read: str):
    """Numbers below zero are no formulas."""
    assert rows_of(["a"], [[cell]])[1] == [read]


@given(
    st.lists(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
            min_size=2,
            max_size=2,
        ),
        max_size=5,
    )
)
def test_what_goes_in_comes_out(rows: list[list[str]]):
    """But for the apostrophes."""
    read = rows_of(["a", "b"], rows)[1:]
    assert [
        [
            cell.removeprefix("'") if raw[:1] in ("=", "+", "-", "@") else cell
            for cell, raw in zip(row, given, strict=True)
        ]
        for row, given in zip(read, rows, strict=True)
    ] == rows


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([["a"]], "row 1 has 1 cells for 2 columns"),
        ([["x" * 3000, "y"]], "at most 2000"),
        ([["x" * 1999, "y" * 1999]] * 200, "more than 500000 characters"),
    ],
)
def test_a_table_that_cannot_be_is_refused_with_the_cure(rows: list, words: str):
    """The model corrects itself from it."""
    with pytest.raises(ToolExecutionError, match=words):
        rows_of(["a", "b"], rows)


def test_a_table_of_very_many_rows_is_refused_by_the_schema():
    """Before it is written."""
    with pytest.raises(ToolParameterError):
        rows_of(["a"], [["x"]] * 2001)


def test_excel_reads_umlauts():
    """It takes a file without the mark for its own old code page."""
    with collect_artifacts() as files:
        make_csv(["Größe"], [["ä"]], "../x/Maße.csv")
    assert files[0].data == "\ufeffGröße\r\nä\r\n".encode()
    assert (files[0].filename, files[0].mime_type) == ("x-Maße.csv", "text/csv")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("हिन्दी रिपोर्ट", "हिन्दी-रिपोर्ट.pdf"),
        ("รายงานที่ 1", "รายงานที่-1.pdf"),
        ("Re\u0301sume\u0301", "R\u00e9sum\u00e9.pdf"),
    ],
)
def test_a_file_name_keeps_vowel_signs_and_accents(words: str, name: str):
    """They are combining marks, which belong to the letter before."""
    assert filename(words, "pdf") == name


@given(st.text(max_size=200))
def test_any_words_make_a_file_name(words: str):
    """Short, without a path, with its own ending and no other."""
    name = filename(words, "pdf")
    assert re.fullmatch(r"[\w-]{1,60}\.pdf", name)
