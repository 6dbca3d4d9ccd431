"""Structured output: any text of a model becomes a typed value or a ValueError, in linear time."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

from sayso.agent.run import json_in_text
from sayso.agent.run.json_in_text import decode_value, extract_json, json_or_text, values_in
from sayso.agent.run.structured import (
    build_schema_instruction,
    parse_and_validate,
    schema_from_response_format,
    validation_retry_message,
)


class Ticket(BaseModel):
    """The topic of a request."""

    intent: Literal["billing", "support"]
    confidence: Annotated[float, Field(ge=0, le=1)]
    tags: list[str] = []
    note: str | None = None


class Node(BaseModel):
    """A model that contains itself."""

    name: str
    inside: list[Node] = []


TICKET = Ticket.model_json_schema()
GOOD = '{"intent": "billing", "confidence": 0.5}'

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
containers = st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4)
#: Prose without a character that could begin JSON, and pieces that could.
prose = st.text(st.characters(exclude_characters="[{`"), max_size=30)
pieces = st.lists(
    st.sampled_from(
        [
            "[",
            "]",
            "{",
            "}",
            '"',
            "\\",
            ":",
            ",",
            '"a":',
            "1",
            "-",
            "true",
            " ",
            "\n",
            "```",
            "json",
            "\\u",
        ]
    ),
    max_size=25,
).map("".join)

#: Each text is long, and would need superlinear time or a deep stack.
HOSTILE = [
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 100_000,
    '["[1,' * 50_000,
    '["[1,",' * 50_000,
    '["\\"' + '[1,\\"' * 50_000,
    '[" ' * 50_000,
    '{"' * 100_000,
    "```" * 50_000,
    "```" + " " * 100_000,
    "```[" * 50_000,
    '"' + "\\" * 100_000,
    "[" + "1" * 100_000,
    "[" + "1" * 100_000 + "]",
    "[1e999999]",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize(
    "fmt", [Ticket, Node, {}, {"items": {"$ref": "#"}}], ids=["model", "nested", "any", "itself"]
)
def test_hostile_answer_does_not_overflow_the_stack(text, fmt):
    """A refused answer has a short error message."""
    try:
        parse_and_validate(text, fmt)
    except ValueError as exc:
        assert len(str(exc)) < 3000  # noqa: PT017  # both outcomes are valid


class Counting:
    """A pattern that counts the characters it reads."""

    def __init__(self, pattern, read):
        self.pattern, self.read = pattern, read

    def match(self, text, at):
        """Match as the pattern does."""
        found = self.pattern.match(text, at)
        self.read.append(found.end() - at if found else 1)
        return found


def count_characters_read(text):
    """Return how many characters are read to find the JSON in a text."""
    read = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_in_text, "_VALUE", Counting(json_in_text._VALUE, read))
        for name in ("_AFTER_OPENING", "_AFTER_COMMA", "_AFTER_VALUE"):
            patterns = getattr(json_in_text, name)
            patch.setattr(
                json_in_text, name, {mark: Counting(each, read) for mark, each in patterns.items()}
            )
        list(values_in(text))
    return sum(read)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_parsing_hostile_text_is_linear(text):
    """A broken value is not read again from each of its brackets."""
    assert count_characters_read(text) <= 3 * len(text)


@given(pieces, st.integers(1, 50))
def test_parsing_any_text_is_linear(text, times):
    """Two readings may cover the same characters, one inside and one outside a string."""
    assert count_characters_read(text * times) <= 3 * len(text) * times + 3


@given(containers, prose, st.text(max_size=30), st.sampled_from([None, 2]))
def test_json_is_extracted_from_prose(value, before, after, indent):
    """It holds for any value and any surrounding prose."""
    assert json.loads(extract_json(before + json.dumps(value, indent=indent) + after)) == value


@given(containers, pieces, st.sampled_from(["json", "", "JSON"]))
def test_json_in_a_code_block_precedes_json_in_prose(value, before, language):
    """Models may quote a value before they give the answer."""
    # With a quote before it, the block may be a string of a value that begins there.
    before = before.replace("`", "").replace('"', "")
    text = f"{before}\n```{language}\n{json.dumps(value)}\n```\nas you asked [1]"
    assert json.loads(extract_json(text)) == value


@pytest.mark.parametrize(
    "answer", ['{"code": "```[1]```"}', '{"code": "see\n```json\n[1]\n```\n"}', '["```{}```"]']
)
def test_code_block_in_a_string_of_an_answer_is_not_the_answer(answer):
    """It is a part of the value around it, also if the line breaks of the string are not escaped."""
    assert list(values_in(f"Here it is: {answer}")) == [answer]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{'a': True,} x", ({"a": True}, 12)), ("'abc' x", (None, 0)), ("", (None, 0))],
)
def test_only_objects_and_arrays_are_repaired(text, expected):
    """A word in single quotes is prose."""
    assert decode_value(text, repair=True) == expected


@pytest.mark.parametrize("text", ['{"a": 1}\n', '\n {"a": 1}'])
def test_result_is_read_as_json_with_white_space_around_it(text):
    """Programs end their output with a line break, and some begin it with one."""
    assert json_or_text(text) == {"a": 1}


@pytest.mark.parametrize("text", ['"abc"', " 12", '{"a": 1} and more', "{'a': 1}", ""])
def test_result_that_is_no_object_or_list_stays_a_text(text):
    """Nothing is repaired or converted."""
    assert json_or_text(text) == text


@given(pieces.filter(lambda text: "```" not in text))
def test_first_value_equals_that_of_pythons_decoder(text):
    """Trying the decoder at each bracket would take quadratic time."""
    assert extract_json(text) == extract_slowly(text)


def extract_slowly(text):
    """Try the decoder at each bracket."""
    for start, mark in enumerate(text):
        if mark in "[{":
            try:
                return text[start : json.JSONDecoder(strict=False).raw_decode(text, start)[1]]
            except ValueError:
                pass
    return None


@given(
    st.text() | pieces,
    st.sampled_from([Ticket, Node, TICKET, {}, {"type": "array"}, {"type": "string"}]),
)
def test_invalid_text_raises_only_value_errors(text, fmt):
    """The run continues with a message to the model."""
    try:
        value = parse_and_validate(text, fmt)
    except ValueError:
        return
    assert (
        isinstance(value, fmt)
        if isinstance(fmt, type)
        else jsonschema.Draft202012Validator(fmt).is_valid(value)
    )


@given(values)
def test_value_that_fits_a_schema_is_returned_unchanged(value):
    """A schema converts nothing, also for values that are neither objects nor arrays."""
    assert parse_and_validate(json.dumps(value), {}) == value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("no JSON {here} [or there", None),
        ('Sure: {"a": "}\\"{"} done', '{"a": "}\\"{"}'),
        ('[see {"a": 1}', '{"a": 1}'),
        ('say "[" and {"a": [1, 2]}', '{"a": [1, 2]}'),
        ('{"a": NaN} {"b": 1}', '{"b": 1}'),
        ('{"a": 1,} [2]', "[2]"),
        ('{"a": "one\ntwo"}', '{"a": "one\ntwo"}'),
        ('{"a": 1} ```json\n{"b": 2}\n```', '{"b": 2}'),
        ('```json\n{"a": "```"}\n```', '{"a": "```"}'),
        ('```\nprose\n``` {"a": 1}', '{"a": 1}'),
    ],
)
def test_extracted_json(text, found):
    """The table has the seed's rows and other habits of models."""
    assert extract_json(text) == found


@pytest.mark.parametrize("fmt", [Ticket, TICKET], ids=["model", "schema"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I cannot.", r"no '\{' and no '\['"),
        ('{"intent": "billing", "confi', "Unterminated string"),
        ('{"intent": "sales", "confidence": 0.5}', "intent"),
        ('{"intent": "billing"}', "confidence"),
        ('{"intent": "billing", "confidence": 0.5, "tags": ["a", 2]}', r"tags\.1"),
        ('{"intent": "billing", "confidence": NaN}', "no NaN"),
        ('{"intent": "billing", "confidence": 0.5, "note": "\\ud800"}', "surrogate"),
    ],
)
def test_error_names_the_path(fmt, text, said):
    """The model corrects the field that the error names."""
    with pytest.raises(ValueError, match=said):
        parse_and_validate(text, fmt)


def test_model_returns_an_instance_and_schema_returns_data():
    """Pydantic converts values; a JSON Schema returns them as written."""
    assert parse_and_validate(f"Here: {GOOD}", Ticket) == Ticket(intent="billing", confidence=0.5)
    assert parse_and_validate(f"Here: {GOOD}", TICKET) == {"intent": "billing", "confidence": 0.5}


def test_first_valid_value_is_used():
    """A footnote is not an answer, and a quoted example need not fit."""
    assert parse_and_validate(f"As in [1], {GOOD}", Ticket).intent == "billing"
    with pytest.raises(ValueError, match="confidence"):
        parse_and_validate('As in [1], {"intent": "billing"}', Ticket)


def test_each_missing_property_is_named_once():
    """jsonschema gives an error for each of them, and none of these says which one it is about."""
    schema = {"type": "object", "required": ["a", "b"]}
    with pytest.raises(ValueError, match=r"the whole: 'a', 'b' is missing$"):
        parse_and_validate("{}", schema)


@pytest.mark.parametrize("fmt", [Ticket, TICKET], ids=["model", "schema"])
def test_null_for_an_optional_field_counts_as_missing(fmt):
    """Native formats express a missing value as null; a valid null stays, and a required field stays missing."""
    text = '{"intent": "billing", "confidence": 0.5, "tags": null, "note": null}'
    value = parse_and_validate(text, fmt)
    assert value == (
        Ticket(intent="billing", confidence=0.5)
        if fmt is Ticket
        else json.loads(GOOD) | {"note": None}
    )
    with pytest.raises(ValueError, match="confidence"):
        parse_and_validate('{"intent": "billing", "confidence": null}', fmt)


def test_strict_models_and_root_models_are_validated_as_json():
    """A strict model accepts a JSON array for a tuple."""

    class Strict(BaseModel):
        """A strict model that accepts no text for a number."""

        model_config = ConfigDict(strict=True)
        pair: tuple[int, int]

    assert parse_and_validate('{"pair": [1, 2]}', Strict).pair == (1, 2)
    assert parse_and_validate("42", RootModel[int]).root == 42
    with pytest.raises(ValueError, match="pair"):
        parse_and_validate('{"pair": ["1", 2]}', Strict)


def test_validator_that_raises_another_error_refuses_the_answer():
    """Any error of a custom validator becomes a ValueError."""

    class Picky(BaseModel):
        """A model whose validator looks the name up."""

        name: str

        @field_validator("name")
        @classmethod
        def known(cls, name: str) -> str:
            """Look the name up."""
            return {}[name]

    with pytest.raises(ValueError, match="Picky"):
        parse_and_validate('{"name": "x"}', Picky)


@pytest.mark.parametrize(
    "fmt", [None, 5, "Ticket", int, Ticket(intent="billing", confidence=1), [Ticket]]
)
def test_invalid_response_format_is_refused(fmt):
    """The error at the start of a run names the fix."""
    with pytest.raises(TypeError, match="BaseModel, or a JSON Schema"):
        schema_from_response_format(fmt)


@pytest.mark.parametrize(
    ("fmt", "cure"),
    [
        ({"type": "json_object"}, "the schema itself"),
        ({"$ref": "https://example.com/x.json"}, r"\$defs"),
        ({"properties": {"a": {"$ref": "other.json"}}}, r"\$defs"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "does not have"),
        ({"properties": {"default": {"$ref": "other.json"}}}, r"\$defs"),
        ({"enum": {1, 2}}, "JSON"),
        ({"const": float("nan")}, "JSON"),
    ],
)
def test_schema_that_checks_nothing_is_refused(fmt, cure):
    """No reference is fetched, and a vendor's wrapper is not a schema."""
    with pytest.raises(ValueError, match=cure):
        schema_from_response_format(fmt)


def test_schema_may_refer_to_itself():
    """References work by path or by name; a `$ref` in example data is ignored."""
    parts = {"b": {"$anchor": "b", "type": "integer"}}
    fmt = {
        "$id": "https://example.com/s",
        "items": {"anyOf": [{"$ref": "#b"}, {"$ref": "#/$defs/b"}]},
        "$defs": parts,
    }
    assert parse_and_validate("[1, 2]", fmt) == [1, 2]
    assert parse_and_validate("[]", {"examples": [{"$ref": "other.json"}]}) == []


def test_exponential_schema_is_refused():
    """Each level refers twice to the next."""
    levels = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(40)}
    with pytest.raises(ValueError, match="steps"):
        parse_and_validate("[]", {"$ref": "#/$defs/l0", "$defs": {**levels, "l40": {}}})


def test_returned_schema_is_a_copy():
    """Changing it affects no other run."""
    schema_from_response_format(Ticket)["properties"].clear()
    given_one = {"type": "object", "properties": {"a": {}}}
    schema_from_response_format(given_one)["properties"].clear()
    assert (schema_from_response_format(Ticket), given_one["properties"]) == (TICKET, {"a": {}})


def test_instruction_contains_the_schema():
    """The whole schema is included as JSON."""
    instruction = build_schema_instruction(TICKET)
    assert json.loads(extract_json(instruction)) == TICKET


def test_retry_message_contains_the_error():
    """A long error is cut."""
    assert "confidence: Field required" in validation_retry_message("confidence: Field required")
    assert len(validation_retry_message(ValueError("x" * 100_000))) < 3000


@pytest.mark.parametrize("text", ["[5e]", "[5e+, 1]", '["\\u00"]', '{"a": 1.}'])
def test_value_that_ends_half_way_is_no_value(text: str):
    """Before Python 3.11.5 a possessive group that failed half way stays matched."""
    assert list(values_in(text)) == []
