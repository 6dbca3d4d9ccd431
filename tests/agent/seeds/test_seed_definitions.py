"""Tool definitions as selectools documents them: the checks at definition, and how type hints are read."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator
from typing import Literal, Optional, Union

import pytest

from sayso.agent import (
    Tool,
    ToolExecutionError,
    ToolParameter,
    ToolParameterError,
    ToolValidationError,
    tool,
)


@pytest.mark.parametrize("name", ["", " ", "\n", "has space", "x" * 65])
def test_invalid_name_is_refused(name):
    """The error gives the rule for names; an empty name is invalid too."""
    with pytest.raises(ToolValidationError, match="a name is 1 to 64 letters") as caught:
        Tool(name, "Does", [], lambda: "")
    assert caught.value.tool_name == name


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (str, "string"),
        (int, "integer"),
        (float, "number"),
        (bool, "boolean"),
        (list, "array"),
        (dict, "object"),
    ],
)
def test_parameter_has_one_of_the_six_types(hint, kind):
    """The type is given as a Python type or as a JSON type name."""
    for parameter in (
        ToolParameter("x", hint, "What"),
        ToolParameter("x", type=kind, description="What"),
    ):
        assert parameter.to_schema() == {"type": kind, "description": "What"}
        assert (
            Tool("t", "t", [parameter], lambda x: x).schema()["parameters"]["properties"]["x"][
                "type"
            ]
            == kind
        )


def test_function_without_a_signature_is_described_by_its_parameters():
    """Some built-ins have no signature to compare with."""
    assert Tool("most", "The most", [ToolParameter("x", list)], max).schema()["parameters"][
        "required"
    ] == ["x"]


def test_enum_of_an_unknown_parameter_is_refused():
    """Best practice 3 has a wrong parameter name, which Sayso reports. A correct one limits the values."""

    def convert_temperature(value: float, from_unit: str, to_unit: str) -> str:
        return f"{value} {from_unit} {to_unit}"

    enum = {"enum": ["celsius", "fahrenheit", "kelvin"]}
    with pytest.raises(ToolValidationError, match=re.escape("unknown ['units']")):
        tool(description="Convert temperature units", param_metadata={"units": enum})(
            convert_temperature
        )
    made = tool(description="Convert temperature units", param_metadata={"to_unit": enum})(
        convert_temperature
    )
    assert made.schema()["parameters"]["properties"]["to_unit"] == {"type": "string", **enum}
    with pytest.raises(ToolParameterError, match="'to_unit'"):
        made.validate({"value": 1, "from_unit": "kelvin", "to_unit": "réaumur"})


def test_parameter_without_a_hint_is_a_string():
    """Best practice 1 shows it as the bad example."""

    @tool(description="Add numbers")
    def add(a, b):
        return str(a + b)

    assert add.schema()["parameters"]["properties"] == {
        "a": {"type": "string"},
        "b": {"type": "string"},
    }
    assert add.execute({"a": "1", "b": "2"}) == "12"


def test_decorator_is_a_call_with_the_same_result():
    """It accepts the name, the description, metadata of parameters, and the options for running."""
    options = {
        "name": "web_search",
        "description": "Search the web",
        "param_metadata": {
            "query": {"description": "Search terms"},
            "limit": {"description": "Max results"},
        },
        "terminal": True,
        "screen_output": True,
        "requires_approval": True,
    }

    def search(query: str, limit: int = 10) -> str:
        """Search something else."""
        return f"{query} {limit}"

    made = tool(**options)(search)

    @tool(**options)
    def decorated(query: str, limit: int = 10) -> str:
        """Search something else."""
        return f"{query} {limit}"

    assert (made.name, made.description) == ("web_search", "Search the web")
    assert made.schema() == decorated.schema()
    properties = made.schema()["parameters"]["properties"]
    assert [properties[each]["description"] for each in ("query", "limit")] == [
        "Search terms",
        "Max results",
    ]
    assert made.schema()["parameters"]["required"] == ["query"]
    for each in (made, decorated):
        assert (each.terminal, each.screen_output, each.requires_approval, each.streaming) == (
            True,
            True,
            True,
            False,
        )
    assert not any(
        (tool(search).terminal, tool(search).screen_output, tool(search).requires_approval)
    )


async def soon() -> str:
    """Return a value as a coroutine."""
    return "soon"


async def chunks() -> AsyncGenerator[str, None]:
    """Yield asynchronously."""
    yield "a"


def lines() -> Generator[str, None, None]:
    """Yield synchronously."""
    yield "a"


def at_once() -> str:
    """Return a value at once."""
    return "now"


@pytest.mark.parametrize(
    ("function", "is_async", "said"),
    [(soon, True, "soon"), (chunks, True, "a"), (lines, False, "a"), (at_once, False, "now")],
)
def test_async_functions_and_async_generators_are_async(function, is_async, said):
    """Both ways to make a tool detect it from the function."""
    for made in (tool(function), Tool("t", "t", [], function)):
        assert (made.is_async, made.metadata.is_async) == (is_async, is_async)
        assert made.execute({}) == said


WORDS = [(word, True) for word in ("true", "1", "yes", "on")] + [
    (word, False) for word in ("false", "0", "no", "off")
]


@pytest.mark.parametrize(
    ("hint", "sent", "got"), [(int, "42", 42), (float, "1.5", 1.5), *((bool, *w) for w in WORDS)]
)
def test_text_is_converted_to_the_parameters_type(hint, sent, got):
    """Every conversion of the page works in any letter case, with hints and with a JSON Schema."""
    typed = Tool("t", "t", [ToolParameter("x", hint)], lambda x: x)
    for made in (typed, Tool("t", "t", typed.schema()["parameters"], lambda x: x)):
        for spelled in {sent, sent.upper(), sent.title()}:
            (read,) = made.validate({"x": spelled}).values()
            assert (read, type(read)) == (got, hint)


@pytest.mark.parametrize(
    ("hint", "sent"), [(int, "forty"), (int, "4.2"), (float, "1.x"), (bool, "maybe"), (bool, "")]
)
def test_text_that_cannot_be_converted_is_refused(hint, sent):
    """The error shows the value that was sent."""
    typed = Tool("t", "t", [ToolParameter("x", hint)], lambda x: x)
    for made in (typed, Tool("t", "t", typed.schema()["parameters"], lambda x: x)):
        with pytest.raises(ToolParameterError, match=re.escape(repr(sent))):
            made.validate({"x": sent})


@pytest.mark.parametrize(
    ("hint", "schema", "sent", "got", "strange"),
    [
        (
            Literal["fast", "slow", "auto"],
            {"type": "string", "enum": ["fast", "slow", "auto"]},
            "slow",
            "slow",
            "slo",
        ),
        (Literal[1, 2], {"type": "integer", "enum": [1, 2]}, "2", 2, 3),
        (Literal[0.5, 1.5], {"type": "number", "enum": [0.5, 1.5]}, "1.5", 1.5, 2.5),
        (Literal[True], {"type": "boolean", "enum": [True]}, "yes", True, False),
    ],
    ids=["str", "int", "float", "bool"],
)
def test_literals_of_every_type_are_enums(hint, schema, sent, got, strange):
    """The model sees the values, quoted values are converted, and other values are refused."""
    made = Tool("t", "t", [ToolParameter("x", hint)], lambda x: x)
    assert made.schema()["parameters"]["properties"]["x"] == schema
    assert made.validate({"x": sent}) == {"x": got}
    with pytest.raises(ToolParameterError):
        made.validate({"x": strange})


def test_optional_literal_may_be_missing_or_none():
    """The parameter is not required, and None is a valid value."""

    @tool()
    def set_mode(mode: Optional[Literal["fast", "slow"]]) -> str:  # noqa: UP045  # as on the page
        return f"mode={mode}"

    assert set_mode.schema()["parameters"]["required"] == []
    assert set_mode.schema()["parameters"]["properties"]["mode"]["enum"] == ["fast", "slow"]
    assert [set_mode.execute(args) for args in ({}, {"mode": None}, {"mode": "fast"})] == [
        "mode=None", "mode=None", "mode=fast",
    ]  # fmt: skip
    with pytest.raises(ToolParameterError):
        set_mode.validate({"mode": "auto"})


@pytest.mark.parametrize("sent", ["abc", 5, "5"])
def test_union_is_a_string_to_the_model_and_keeps_the_sent_value(sent):
    """The page's own example runs."""

    @tool()
    def lookup(key: Union[str, int]) -> str:  # noqa: UP007  # as on the page
        return f"key={key!r}"

    assert lookup.schema()["parameters"]["properties"]["key"] == {"type": "string"}
    assert lookup.execute({"key": sent}) == f"key={sent!r}"


def test_typed_collections_of_the_page():
    """Items and values have types in the schema and are converted to them."""

    @tool()
    def process(tags: list[str], scores: list[int], config: dict[str, str]) -> str:
        return f"{tags}, {scores}, {config}"

    assert process.schema()["parameters"]["properties"] == {
        "tags": {"type": "array", "items": {"type": "string"}},
        "scores": {"type": "array", "items": {"type": "integer"}},
        "config": {"type": "object", "additionalProperties": {"type": "string"}},
    }
    said = process.execute({"tags": ["a"], "scores": ["1", 2], "config": {"k": "v"}})
    assert said == "['a'], [1, 2], {'k': 'v'}"


def test_model_reads_the_tools_own_error():
    """Best practice 4: the tool validates its arguments itself."""

    @tool(description="Divide two numbers")
    def divide(a: float, b: float) -> str:
        if b == 0:
            raise ValueError("Cannot divide by zero")
        return str(a / b)

    with pytest.raises(ToolExecutionError, match="Cannot divide by zero"):
        divide.execute({"a": 1, "b": 0})
    assert divide.execute({"a": "9", "b": 2}) == "4.5"
