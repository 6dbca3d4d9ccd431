"""Tables: answers that are right, to questions that cannot cost more than they may."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import ToolExecutionError, ToolParameterError
from sayso.agent.toolbox.tables import (
    MAX_ANSWER_CHARS,
    MAX_QUERY_CHARS,
    MAX_ROWS,
    query_csv,
    query_json,
)
from tests.agent.toolbox.words import said

SALES = "name;amount;city\nAda;1.200,50 €;Köln\nBob;12,5;Rom\nCyd;n/a;Rom\n\nDan;;Oslo\n"
PEOPLE = json.dumps(
    {"people": [{"name": f"n{number}", "age": number % 90} for number in range(3000)]}
)


def asked(text: str = SALES, **question: object) -> str:
    """The rows of the answer, without the sentence before them."""
    return query_csv.execute({"csv_text": text, **question}).partition("\n\n")[2]


@pytest.mark.parametrize(
    "expression",
    [
        "[@,@]|" * 40 + "@", "[@,@][]|" * 36 + "@", "{a:@,b:@}|" * 25 + "@",
        "to_string(to_array(" * 12 + "@" + "))" * 12, "people|" + "[*].[@,@,@,@,@,@][]|" * 8 + "@",
        "people|" + "map(&[@,@,@,@],@)[]|" * 8 + "@",
    ],
)  # fmt: skip
def test_an_expression_that_multiplies_its_value_is_stopped(expression: str):
    """What it comes to is counted while it is made."""
    with pytest.raises(ValueError, match="takes more than 2000000 steps and values"):
        query_json(PEOPLE, expression)


@pytest.mark.parametrize(
    "expression",
    [
        "[" * 290,
        "!" * 290 + "@",
        "(" * 140 + "@" + ")" * 140,
        "`" + "[" * 140 + "]" * 140 + "`",
        "@" + "[]" * 140,
    ],
)
def test_a_nested_expression_is_answered_or_refused_in_words(expression: str):
    """However deep it is."""
    told = said(lambda: query_json(PEOPLE, expression))
    assert "refused" not in told or "does not work here" in told or "nested too deeply" in told


@pytest.mark.parametrize(
    "document",
    [
        "[" * 100_000,
        "[" * 900 + "]" * 900,
        '{"a":' * 50_000,
        "9" * 100_000,
        "",
        "{",
        "nul",
        '["\\ud800"]',
        "[NaN]",
        "\0",
    ],
)
def test_a_document_is_read_or_refused_in_words(document: str):
    """Nothing but ValueError leaves it."""
    told = said(lambda: query_json(document, "@"))
    assert "refused" not in told or "JSON" in told


@pytest.mark.filterwarnings("ignore:deprecated string literal")
@given(st.text(min_size=1, max_size=MAX_QUERY_CHARS))
def test_any_expression_is_answered_or_refused_in_words(expression: str):
    """The same for the other side."""
    assert said(lambda: query_json('{"a": [1, "b", null]}', expression))


@pytest.mark.filterwarnings("ignore:deprecated string literal")  # jmespath takes it all the same
@given(
    st.lists(
        st.sampled_from(
            [
                *"@[]{}()&|!`'\".,:*?<=>",
                "a",
                "people",
                "name",
                "0",
                "-1",
                "sum(",
                "sort_by(",
                "length(",
                "`1`",
            ]
        ),
        max_size=30,
    )
)
def test_anything_like_an_expression_is_answered_or_refused(parts: list[str]):
    """The same, where much of it can be parsed."""
    document = '{"people": [{"name": "a"}, {"name": "b"}], "a": 1}'
    assert said(lambda: query_json(document, "".join(parts) or "@"))


@pytest.mark.parametrize(
    "text",
    ["," * 100_000, "a\n" * 60_000, "a\n" + '"' + "x" * 150_000, "\n" * 99_999, "x" * 150_000],
)
def test_a_table_that_is_too_large_is_refused(text: str):
    """In rows, in columns, in one cell; or has no columns."""
    with pytest.raises(ValueError, match=r"the table has more than|columns|is not CSV"):
        query_csv(text)


def test_a_table_of_very_many_cells_is_refused():
    """Wide and long at once."""
    with pytest.raises(ValueError, match="500000 cells"):
        query_csv((("a," * 199) + "a\n") * 3000, limit=1)


def test_a_long_answer_is_cut_and_says_so():
    """The model asks for less, or sums up."""
    told = query_csv("a\n" + ("x" * 1500 + "\n") * 100, limit=100)
    assert len(told) < 3 * MAX_ANSWER_CHARS
    assert "are shown" in told.splitlines()[0]
    assert "cut off" in query_json(json.dumps(["x" * 5000] * 10), "@")


def test_a_cut_cell_and_a_cut_row_are_told():
    """A model would take them for all that there is."""
    assert "Cells are cut to 1000 characters." in query_csv("a\n" + "x" * 1001)
    wide = ",".join(f"c{number}" for number in range(100)) + "\n" + ",".join(["x" * 900] * 100)
    told = query_csv(wide)
    assert "The last line is cut off: ask for fewer columns." in told
    assert len(told) < 3 * MAX_ANSWER_CHARS
    assert "cut" not in query_csv(wide, columns=["c1"])


def test_blank_lines_do_not_count_as_rows():
    """The largest table may end with some."""
    assert query_csv("a\n" + "1\n" * MAX_ROWS + "\n\n", limit=1).startswith("50000 rows")
    with pytest.raises(ValueError, match="more than 50000 rows"):
        query_csv("a\n" + "1\n" * MAX_ROWS + "2\n")


def test_a_mistake_in_a_question_to_a_wide_table_is_told_briefly():
    """Its columns may have long names, and many."""
    with pytest.raises(ValueError, match=r"and 179 more$") as caught:
        query_csv(",".join(f"{number}{'x' * 900}" for number in range(199)), sort_by="a")
    assert len(str(caught.value)) < 2000


@given(st.text(min_size=1, max_size=300))
def test_any_text_is_a_table_or_refused_in_words(text: str):
    """Nothing but ValueError leaves it."""
    assert said(lambda: query_csv(text, sort_by=text.partition(",")[0][:50]))


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ({"column": "City", "value": "rom"}, ["Bob", "Cyd"]),
        ({"column": "city", "operator": "!=", "value": "Rom"}, ["Ada", "Dan"]),
        ({"column": "amount", "operator": ">", "value": 100}, ["Ada"]),
        ({"column": "amount", "operator": "<=", "value": "12.5"}, ["Bob"]),
        ({"column": "amount", "operator": "is empty"}, ["Dan"]),
        ({"column": "amount", "operator": "is not empty"}, ["Ada", "Bob", "Cyd"]),
        ({"column": "name", "operator": "contains", "value": "D"}, ["Ada", "Cyd", "Dan"]),
        ({"column": "name", "operator": "starts with", "value": "d"}, ["Dan"]),
        ({"column": "name", "operator": ">", "value": "bz"}, ["Cyd", "Dan"]),
        ({"column": "amount", "operator": "<", "value": "z"}, ["Cyd"]),
        ({"column": "name", "operator": ">", "value": "5"}, []),
    ],
)
def test_rows_are_kept_as_asked(condition: dict, names: list[str]):
    """Numbers are compared as numbers, whatever is around them; text without regard to capitals."""
    assert asked(where=[condition], columns=["name"]).splitlines()[1:] == names


def test_sums_are_exact_and_say_what_they_leave_out():
    """A cell that is no number is counted, not guessed at."""
    told = query_csv.execute(
        {"csv_text": SALES, "measures": [{"function": "sum", "column": "amount"}]}
    )
    assert told.endswith("sum(amount)\n1213")
    assert "1 cells of 'amount' are no numbers" in told
    assert asked("x\n" + "0.1\n" * 10, measures=[{"function": "sum", "column": "x"}]) == "sum(x)\n1"


def test_groups_are_counted_summed_and_sorted():
    """One row for each value, the largest first."""
    measures = [
        {"function": "count"},
        {"function": "sum", "column": "amount"},
        {"function": "max", "column": "amount"},
    ]
    rows = asked(
        group_by=["city"], measures=measures, sort_by="sum(amount)", descending=True
    ).splitlines()
    assert rows == [
        "city,count,sum(amount),max(amount)",
        "Köln,1,1200.5,1200.5",
        "Rom,2,12.5,12.5",
        "Oslo,1,0,",
    ]


def test_groups_differ_in_more_than_case_and_spaces():
    """Conditions do not tell these apart either. The first row says how a group is written."""
    rows = asked("city\nSTRASSE\nStraße \nRom\n rom\n", group_by=["city"]).splitlines()
    assert rows == ["city,count", "STRASSE,2", "Rom,2"]


def test_groups_by_a_column_named_like_a_measure_are_sorted_by_the_measure():
    """Both columns of the answer have a name."""
    rows = asked("count\n9\n5\n5\n", group_by=["count"], sort_by="count").splitlines()
    assert rows == ["count (2),count", "9,1", "5,2"]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-(10**9), 10**9)), min_size=1, max_size=40
    )
)
def test_group_sums_agree_with_python(rows: list[tuple[str, int]]):
    """For any table."""
    text = "key,value\n" + "".join(f"{key},{value}\n" for key, value in rows)
    told = asked(text, group_by=["key"], measures=[{"function": "sum", "column": "value"}])
    sums = {key: sum(value for other, value in rows if other == key) for key, _ in rows}
    assert dict(line.split(",") for line in told.splitlines()[1:]) == {
        key: str(total) for key, total in sums.items()
    }


def test_rows_are_sorted_by_size_and_then_by_letters():
    """Empty cells come first."""
    assert asked("a\n10\n9\nx\n1.5\nB\n", sort_by="a").split() == ["a", "1.5", "9", "10", "B", "x"]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"columns": ["amout"]}, r"unknown column 'amout'; known: \['name', 'amount', 'city'\]"),
        ({"sort_by": "sum(amount)"}, "unknown column"),
        ({"measures": [{"function": "sum"}]}, "sum needs a column"),
    ],
)
def test_a_mistake_in_a_question_is_told_with_its_cure(question: dict, words: str):
    """The model corrects itself from it."""
    with pytest.raises(ToolExecutionError, match=words):
        asked(**question)


@pytest.mark.parametrize(
    "question",
    [
        {"where": [{"column": "a", "operator": "~"}]},
        {"limit": 0},
        {"limit": 10**9},
        {"where": [{"column": "a"}] * 11},
    ],
)
def test_a_question_beyond_its_bounds_is_refused_by_its_schema(question: dict):
    """Before anything is read."""
    with pytest.raises(ToolParameterError):
        asked(**question)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("people[?age > `88`].name | [0]", '"n89"'),
        ("length(people)", "3000"),
        ("avg(people[].age)", "44.2"),
        ("sort_by(people, &age)[-1].name", '"n2969"'),
        ("people[0].{who: name, old: age}", '{"who": "n0", "old": 0}'),
    ],
)
def test_json_is_asked_in_jmespath(expression: str, found: str):
    """With its functions."""
    assert query_json(PEOPLE, expression) == found


def test_an_expression_that_finds_nothing_is_told_what_there_is():
    """So that the next one fits."""
    assert (
        query_json(PEOPLE, "nope")
        == "null: nothing is there. The JSON is an object with the keys ['people']."
    )
    with pytest.raises(ValueError, match=r"Unknown function.*keys \['people'\]"):
        query_json(PEOPLE, "group_by(people, &age)")


def test_columns_of_one_name_are_told_apart():
    """Each can be asked for."""
    assert query_csv("a,A,b\n1,2,3\n", columns=["a (2)", "a"]).endswith("A (2),a\n2,1")
    assert asked("a,a,a (2)\n1,2,3\n") == "a,a (3),a (2)\n1,2,3"
    assert asked("a,a (2),a\n1,2,3\n", columns=["a (3)"]) == "a (3)\n3"


def test_columns_without_a_name_can_be_asked_for():
    """They are called by their place."""
    assert asked("x,,\n1,2,3\n") == "x,column 2,column 3\n1,2,3"
    measures = [{"function": "sum", "column": "column 3"}]
    assert asked("x,,\n1,2,3\n", measures=measures) == "sum(column 3)\n3"


def test_cells_past_the_last_column_are_told():
    """A decimal comma that is not in quotes must not make a wrong sum look right."""
    measures = [{"function": "sum", "column": "price"}]
    told = query_csv.execute({"csv_text": "price\n1,5\n2,5\n", "measures": measures})
    assert "Careful: 2 rows with more cells than columns" in told


ORDERS = "id,amount\nINV100,5 USD\nORD100,8 EUR\n100,$5\n"


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ({"column": "id", "value": "INV100"}, ["INV100"]),
        ({"column": "id", "value": "100"}, ["100"]),
        ({"column": "id", "operator": "!=", "value": "100"}, ["INV100", "ORD100"]),
        ({"column": "amount", "value": "USD 5.00"}, ["INV100"]),
        ({"column": "amount", "operator": "!=", "value": "5 EUR"}, ["INV100", "ORD100", "100"]),
        ({"column": "amount", "operator": ">", "value": "5"}, ["ORD100"]),
    ],
)
def test_only_what_is_the_same_is_equal(condition: dict, ids: list[str]):
    """An id with letters is no number, and five dollars are not five euros."""
    assert asked(ORDERS, where=[condition], columns=["id"]).splitlines()[1:] == ids


def test_a_decimal_comma_after_a_zero_groups_nothing():
    """0,125 is an eighth."""
    assert (
        asked("rate;x\n0,125;1\n0,5;2\n", measures=[{"function": "sum", "column": "rate"}])
        == "sum(rate)\n0.625"
    )


def test_sums_of_mixed_currencies_say_so():
    """Of one row, of one group or of one currency they are right."""
    text, measures = (
        "who,paid\na,5 USD\na,8 EUR\nb,€3\nb,1\n",
        [{"function": "sum", "column": "paid"}],
    )
    assert "Careful: 'paid' mixes EUR, USD" in query_csv.execute(
        {"csv_text": text, "measures": measures}
    )
    only_b = [{"column": "who", "value": "b"}]
    assert "mixes" not in query_csv.execute(
        {"csv_text": text, "measures": measures, "where": only_b}
    )
    assert "mixes" not in query_csv.execute(
        {"csv_text": text, "measures": measures, "group_by": ["paid"]}
    )


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ('"Name, first, last";age\n"Bo, A, B";5\n', ["Name, first, last", "age"]),
        ('"a ""x, y, z""";b\n1;2\n', ['a "x, y, z"', "b"]),
        ('"line, one\nline, two";b\n1;2\n', ["line, one\nline, two", "b"]),
        ('size 5",price\n1,2\n', ['size 5"', "price"]),
    ],
)
def test_the_delimiter_is_counted_outside_of_quotes(text: str, columns: list[str]):
    """A comma in a name is a part of it."""
    assert next(csv.reader(io.StringIO(asked(text)))) == columns


def test_sums_are_shown_in_full():
    """To the cent, however large."""
    measures = [{"function": "sum", "column": "a"}]
    assert asked("a\n123456789012345.67\n0.01\n", measures=measures) == "sum(a)\n123456789012345.68"
