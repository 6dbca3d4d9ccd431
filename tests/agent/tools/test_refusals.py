"""Refusals: what the error of a call says to a program that reads its parts, and how it is mended."""

from __future__ import annotations

from typing import Any

import pytest

from sayso.agent import Tool, ToolParameter, ToolParameterError, tool
from sayso.agent.tools.errors import ToolExecutionError


@tool
def weather(location: str, units: str = "celsius") -> str:
    """Weather."""
    return f"{location} {units}"


#: The same, as a server describes it.
FOREIGN = Tool("weather", "Weather.", weather.schema()["parameters"], weather.function)


@pytest.fixture(params=[weather, FOREIGN], ids=["hints", "schema"])
def refused(request):
    """Refuses arguments, by hints or by a JSON Schema; gives the error."""

    def refuse(args: Any) -> ToolParameterError:
        with pytest.raises(ToolParameterError) as caught:
            request.param.validate(args)
        return caught.value

    return refuse


EXPECTED = "Expected parameters: 'location', 'units'"
REQUIRED = "Required parameters: 'location'"
#: What the page about tools prints (Error Messages).
BOX = f"""\
{"=" * 60}
❌ Tool Validation Error: 'weather'
{"=" * 60}

Parameter: unit
Issue: Unexpected parameter(s): 'unit'

💡 Suggestion: 'unit' -> Did you mean 'units'?
{EXPECTED}

{"=" * 60}"""


def test_an_extra_argument_is_named_with_what_was_meant(refused):
    """As the seed suggests it."""
    error = refused({"location": "Paris", "unit": "kelvin"})
    assert (error.tool_name, error.param_name) == ("weather", "unit")
    assert error.issue == "Unexpected parameter(s): 'unit'"
    assert error.suggestion == f"'unit' -> Did you mean 'units'?\n{EXPECTED}"
    assert str(error) == BOX


def test_an_extra_argument_that_resembles_nothing_has_what_is_expected(refused):
    """There is no parameter to suggest."""
    error = refused({"location": "Paris", "zzz": 1})
    assert error.suggestion == f"'zzz' is not a valid parameter\n{EXPECTED}"


def test_a_missing_argument_is_named_with_those_that_are_required(refused):
    """And the typo beside it with its cure."""
    assert (refused({}).param_name, refused({}).issue) == (
        "location",
        "Missing required parameter: 'location'",
    )
    assert refused({}).suggestion == f"{REQUIRED}\n{EXPECTED}"
    error = refused({"loction": "Paris"})
    assert sorted(error.param_name.split(", ")) == ["location", "loction"]
    assert error.suggestion == f"'loction' -> Did you mean 'location'?\n{REQUIRED}\n{EXPECTED}"


@pytest.mark.parametrize("value", [42, 1.5, True])
def test_what_text_is_easily_made_of_has_its_conversion_for_a_cure(refused, value):
    """As the seed writes it."""
    error = refused({"location": value})
    assert error.param_name == "location"
    assert error.issue.startswith(f"'location' is {value!r}: ")
    assert error.suggestion == f"Try: location=str({value!r})\n{EXPECTED}"


def test_a_wrong_type_without_an_obvious_conversion_has_what_is_expected(refused):
    """Turning a list into text would give no city."""
    assert refused({"location": ["Paris"]}).suggestion == f"Expected type: str\n{EXPECTED}"


@pytest.mark.parametrize(
    ("hint", "value"),
    [(int, "x"), (int, 1.5), (float, "x"), (bool, "maybe"), (list, 5), (dict, 5), (int, [1])],
)
@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_wrong_type_is_told_the_right_one(hint, value, is_foreign):
    """As the seed does, by its name in Python."""
    by_hand = Tool("x", "X.", [ToolParameter("a", hint, "A.")], lambda a: "")
    asked = (
        Tool("x", "X.", by_hand.schema()["parameters"], by_hand.function) if is_foreign else by_hand
    )
    with pytest.raises(ToolParameterError) as caught:
        asked.validate({"a": value})
    assert caught.value.suggestion == f"Expected type: {hint.__name__}\nExpected parameters: 'a'"


def test_several_mistakes_have_their_cures_side_by_side(refused):
    """One answer, and the model need not guess twice."""
    cures, expected = refused({"location": 42, "unit": "kelvin"}).suggestion.split("\n")
    assert (sorted(cures.split("; ")), expected) == (
        ["'unit' -> Did you mean 'units'?", "Try: location=str(42)"],
        EXPECTED,
    )


def test_a_part_of_a_union_is_no_place_to_try_anything():
    """No call can give it."""

    @tool
    def pick(x: str | list[int]) -> str:
        """Pick."""
        return str(x)

    with pytest.raises(ToolParameterError) as caught:
        pick.validate({"x": 5})
    assert caught.value.suggestion == "Expected parameters: 'x'"


def refusal_of(schema: dict[str, Any], args: dict[str, Any]) -> ToolParameterError:
    """The error of a tool with that JSON Schema."""
    by_schema = Tool("t", "T.", {"type": "object", **schema}, lambda **given: given)
    with pytest.raises(ToolParameterError) as caught:
        by_schema.validate(args)
    return caught.value


def test_each_missing_parameter_of_a_json_schema_is_named_once():
    """jsonschema gives an error for each of them, and none of these says which one it is about."""
    error = refusal_of({"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}, {})
    assert error.param_name == "a, b"
    assert error.issue == "Missing required parameter: 'a'; Missing required parameter: 'b'"


def test_unknown_parameter_is_named_beside_those_of_a_part_of_the_schema():
    """A known one that breaks a rule of its part is not called unexpected."""
    schema = {"allOf": [{"properties": {"city": {"type": "string"}, "n": {"type": "integer"}}}]}
    error = refusal_of(schema, {"citi": "Paris", "n": "many"})
    assert error.param_name == "citi, n"
    assert error.issue.startswith("Unexpected parameter(s): 'citi'; 'n' is 'many'")
    assert "'citi' -> Did you mean 'city'?" in error.suggestion


def test_parameter_that_a_pattern_allows_is_not_called_unexpected():
    """Else the model would leave out a valid argument."""
    schema = {"properties": {"a": {}}, "patternProperties": {"^x-": {}}}
    assert refusal_of(schema, {"x-1": 1, "c": 2}).param_name == "c"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ToolParameterError(issue="no such\nroom", suggestion="Give another"), "no such room"),
        (ToolParameterError(tool_name="book", suggestion="Give a room"), "Give a room"),
        (ToolParameterError(tool_name="book"), ""),
        (ToolParameterError("The hotel is full"), "The hotel is full"),
    ],
)
def test_people_never_read_the_box_for_models(error: ToolParameterError, words: str):
    """A tool's author may raise the error with any of its parts."""
    assert error.words_for_person == words


def test_failure_without_message_and_cause_names_the_tool():
    """People read the text of such an error, so it has no name of a Python type."""
    error = ToolExecutionError(tool_name="book")
    assert error.words_for_person == "Error executing tool 'book'"
