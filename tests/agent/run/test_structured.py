"""Structured: whatever a model writes comes to a typed value or to a ValueError, and soon."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

from sayso.agent.run import structured as json_in_text
from sayso.agent.run.structured import (
    build_schema_instruction,
    extract_json,
    native_schema,
    parse_and_validate,
    schema_from_response_format,
    validation_retry_message,
    values_in,
)


class Ticket(BaseModel):
    """What a request is about."""

    intent: Literal["billing", "support"]
    confidence: Annotated[float, Field(ge=0, le=1)]
    tags: list[str] = []
    note: str | None = None


class Node(BaseModel):
    """Contains itself."""

    name: str
    inside: list[Node] = []


TICKET = Ticket.model_json_schema()
GOOD = '{"intent": "billing", "confidence": 0.5}'

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
containers = st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4)
#: Prose in which no JSON could begin, and pieces of what could.
prose = st.text(st.characters(exclude_characters="[{`"), max_size=30)
pieces = st.lists(
    st.sampled_from(
        ["[", "]", "{", "}", '"', "\\", ":", ",", '"a":', "1", "-", "true", " ", "\n", "```", "json", "\\u"]
    ),
    max_size=25,
).map("".join)

#: Each is long, and asks for more than linear time or for a deep stack.
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
@pytest.mark.parametrize("fmt", [Ticket, Node, {}, {"items": {"$ref": "#"}}], ids=["model", "nested", "any", "itself"])
def test_no_answer_blows_the_stack(text, fmt):
    """It is refused in words, if it is refused."""
    try:
        parse_and_validate(text, fmt)
    except ValueError as exc:
        assert len(str(exc)) < 3000  # noqa: PT017  # either end is fine


class Counting:
    """A pattern that counts the characters it reads."""

    def __init__(self, pattern, read):
        self.pattern, self.read = pattern, read

    def match(self, text, at):
        """As the pattern does."""
        found = self.pattern.match(text, at)
        self.read.append(found.end() - at if found else 1)
        return found


def characters_read(text):
    """How many characters are read to find what a text holds."""
    read = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_in_text, "_VALUE", Counting(json_in_text._VALUE, read))
        for name in ("_FIRST", "_NEXT", "_REST"):
            patterns = getattr(json_in_text, name)
            patch.setattr(json_in_text, name, {mark: Counting(each, read) for mark, each in patterns.items()})
        list(values_in(text))
    return sum(read)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_work_grows_with_the_length_and_no_faster(text):
    """What breaks off is not read from each of its brackets again."""
    assert characters_read(text) <= 3 * len(text)


@given(pieces, st.integers(1, 50))
def test_work_grows_with_the_length_of_anything(text, times):
    """Of two readings that go over the same characters one has in a string what the other has outside."""
    assert characters_read(text * times) <= 3 * len(text) * times + 3


@given(containers, prose, st.text(max_size=30), st.sampled_from([None, 2]))
def test_json_comes_out_of_prose(value, before, after, indent):
    """Whatever it is, whatever is around it."""
    assert json.loads(extract_json(before + json.dumps(value, indent=indent) + after)) == value


@given(containers, pieces, st.sampled_from(["json", "", "JSON"]))
def test_json_in_a_code_block_comes_before_what_is_in_prose(value, before, language):
    """Models quote a little before they come to it."""
    text = f"{before.replace('`', '')}\n```{language}\n{json.dumps(value)}\n```\nas you asked [1]"
    assert json.loads(extract_json(text)) == value


@given(pieces.filter(lambda text: "```" not in text))
def test_the_first_is_found_as_pythons_own_reader_would(text):
    """Which would take the square of the length."""
    assert extract_json(text) == slowly_extracted(text)


def slowly_extracted(text):
    """By trying at each bracket."""
    for start, mark in enumerate(text):
        if mark in "[{":
            try:
                return text[start : json.JSONDecoder(strict=False).raw_decode(text, start)[1]]
            except ValueError:
                pass
    return None


@given(st.text() | pieces, st.sampled_from([Ticket, Node, TICKET, {}, {"type": "array"}, {"type": "string"}]))
def test_no_text_raises_anything_but_a_value_error(text, fmt):
    """A run goes on with a message to the model."""
    try:
        value = parse_and_validate(text, fmt)
    except ValueError:
        return
    assert isinstance(value, fmt) if isinstance(fmt, type) else jsonschema.Draft202012Validator(fmt).is_valid(value)


@given(values)
def test_value_that_fits_a_schema_comes_back_as_it_is(value):
    """A schema converts nothing; also what is neither an object nor an array."""
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
def test_what_is_found(text, found):
    """The seed's table, and what models do besides."""
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
def test_what_is_wrong_is_said_with_its_path(fmt, text, said):
    """The model mends what it is told of."""
    with pytest.raises(ValueError, match=said):
        parse_and_validate(text, fmt)


def test_model_and_schema_give_instance_and_data():
    """Pydantic coerces; a JSON Schema gives what was written."""
    assert parse_and_validate(f"Here: {GOOD}", Ticket) == Ticket(intent="billing", confidence=0.5)
    assert parse_and_validate(f"Here: {GOOD}", TICKET) == {"intent": "billing", "confidence": 0.5}


def test_first_value_that_fits_is_taken():
    """A footnote is no answer, and an example that is quoted need not fit."""
    assert parse_and_validate(f"As in [1], {GOOD}", Ticket).intent == "billing"
    with pytest.raises(ValueError, match="confidence"):
        parse_and_validate('As in [1], {"intent": "billing"}', Ticket)


@pytest.mark.parametrize("fmt", [Ticket, TICKET], ids=["model", "schema"])
def test_null_where_none_belongs_was_left_out(fmt):
    """Native formats have no other way to say so; a null that belongs stays, and a required value stays missing."""
    text = '{"intent": "billing", "confidence": 0.5, "tags": null, "note": null}'
    value = parse_and_validate(text, fmt)
    assert value == (Ticket(intent="billing", confidence=0.5) if fmt is Ticket else json.loads(GOOD) | {"note": None})
    with pytest.raises(ValueError, match="confidence"):
        parse_and_validate('{"intent": "billing", "confidence": null}', fmt)


def test_strict_models_and_root_models_are_read_as_json():
    """A date is text in JSON, also where text is no date in Python."""

    class Strict(BaseModel):
        """Takes no text for a number."""

        model_config = ConfigDict(strict=True)
        pair: tuple[int, int]

    assert parse_and_validate('{"pair": [1, 2]}', Strict).pair == (1, 2)
    assert parse_and_validate("42", RootModel[int]).root == 42
    with pytest.raises(ValueError, match="pair"):
        parse_and_validate('{"pair": ["1", 2]}', Strict)


def test_validator_that_fails_otherwise_refuses_the_answer():
    """Somebody's own code is no way out of the promise."""

    class Picky(BaseModel):
        """Looks it up."""

        name: str

        @field_validator("name")
        @classmethod
        def known(cls, name: str) -> str:
            """Find it."""
            return {}[name]

    with pytest.raises(ValueError, match="Picky"):
        parse_and_validate('{"name": "x"}', Picky)


@pytest.mark.parametrize("fmt", [None, 5, "Ticket", int, Ticket(intent="billing", confidence=1), [Ticket]])
def test_what_is_no_format_is_refused(fmt):
    """At the beginning of a run, with the cure."""
    with pytest.raises(TypeError, match="BaseModel, or a JSON Schema"):
        schema_from_response_format(fmt)


@pytest.mark.parametrize(
    ("fmt", "cure"),
    [
        ({"type": "json_object"}, "the schema itself"),
        ({"$ref": "https://example.com/x.json"}, r"\$defs"),
        ({"properties": {"a": {"$ref": "other.json"}}}, r"\$defs"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "does not have"),
        ({"enum": {1, 2}}, "JSON"),
        ({"const": float("nan")}, "JSON"),
    ],
)
def test_schema_that_checks_nothing_is_refused(fmt, cure):
    """Nothing is fetched, and a vendor's wrapping is no schema."""
    with pytest.raises(ValueError, match=cure):
        schema_from_response_format(fmt)


def test_schema_may_refer_to_any_place_of_itself():
    """By path or by name; what is data refers to nothing."""
    parts = {"b": {"$anchor": "b", "type": "integer"}}
    fmt = {"$id": "https://example.com/s", "items": {"anyOf": [{"$ref": "#b"}, {"$ref": "#/$defs/b"}]}, "$defs": parts}
    assert parse_and_validate("[1, 2]", fmt) == [1, 2]
    assert parse_and_validate("[]", {"examples": [{"$ref": "other.json"}]}) == []


def test_schema_that_never_ends_is_given_up():
    """Each level asks for two of the next."""
    levels = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(40)}
    with pytest.raises(ValueError, match="steps"):
        parse_and_validate("[]", {"$ref": "#/$defs/l0", "$defs": {**levels, "l40": {}}})


def test_schema_is_the_callers_own():
    """Changing it changes no other run."""
    schema_from_response_format(Ticket)["properties"].clear()
    given_one = {"type": "object", "properties": {"a": {}}}
    schema_from_response_format(given_one)["properties"].clear()
    assert (schema_from_response_format(Ticket), given_one["properties"]) == (TICKET, {"a": {}})


def test_instruction_holds_the_schema():
    """All of it, as JSON."""
    instruction = build_schema_instruction(TICKET)
    assert json.loads(extract_json(instruction)) == TICKET


def test_retry_message_says_what_was_wrong():
    """Cut where it is long."""
    assert "confidence: Field required" in validation_retry_message("confidence: Field required")
    assert len(validation_retry_message(ValueError("x" * 100_000))) < 3000


@pytest.mark.parametrize("api_format", ["openai-chat", "openai-response", "anthropic"])
def test_native_schema_is_closed_and_requires_all(api_format):
    """So vendors hold a model to it; what fits it is read."""
    schema = native_schema(Ticket, api_format)
    assert schema["required"] == ["intent", "confidence", "tags", "note"]
    assert schema["additionalProperties"] is False
    answer = {"intent": "billing", "confidence": 0.5, "tags": None, "note": None}
    jsonschema.validate(answer, schema)
    assert parse_and_validate(json.dumps(answer), Ticket) == Ticket(intent="billing", confidence=0.5)


def test_native_schema_of_a_model_that_contains_itself():
    """OpenAI knows references; Anthropic does not, and gets the instruction in words."""
    assert native_schema(Node)["properties"]["inside"]["type"] == ["array", "null"]
    assert native_schema(Node, "anthropic") is None
    assert native_schema(Node, "gemini")["properties"]["name"] == {"type": "string"}


@pytest.mark.parametrize(
    "fmt",
    [
        {},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"required": ["a"]}, {}]},
        {"type": "object", "properties": {"a": {}}},
        RootModel[list[int]],
    ],
)
def test_what_has_no_native_form_has_none(fmt):
    """A schema that asked for anything else would be worse than words."""
    assert native_schema(fmt) is None
