"""What selectools' page says of definitions: what is checked when a tool is made, and how hints are read."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator
from typing import Literal, Optional, Union

import pytest

from sayso.agent import Tool, ToolExecutionError, ToolParameter, ToolParameterError, ToolValidationError, tool


@pytest.mark.parametrize("name", ["", " ", "\n", "has space", "x" * 65])
def test_a_name_that_is_none_is_refused(name):
    """Empty ones first; the error names the rule."""
    with pytest.raises(ToolValidationError, match="a name is 1 to 64 letters") as caught:
        Tool(name, "Does", [], lambda: "")
    assert caught.value.tool_name == name


@pytest.mark.parametrize(
    ("hint", "kind"),
    [(str, "string"), (int, "integer"), (float, "number"), (bool, "boolean"), (list, "array"), (dict, "object")],
)
def test_a_parameter_is_of_one_of_the_six_types(hint, kind):
    """By its Python type as by JSON's name."""
    for parameter in (ToolParameter("x", hint, "What"), ToolParameter("x", type=kind, description="What")):
        assert parameter.to_schema() == {"type": kind, "description": "What"}
        assert Tool("t", "t", [parameter], lambda x: x).schema()["parameters"]["properties"]["x"]["type"] == kind


def test_what_has_no_signature_is_taken_by_its_parameters():
    """Some built-ins have none: nobody can compare."""
    assert Tool("most", "The most", [ToolParameter("x", list)], max).schema()["parameters"]["required"] == ["x"]


def test_the_enum_of_the_page_names_no_parameter_of_its_function():
    """Best practice 3, word for word: here the author hears of it. Named rightly, it limits what is taken."""

    def convert_temperature(value: float, from_unit: str, to_unit: str) -> str:
        return f"{value} {from_unit} {to_unit}"

    enum = {"enum": ["celsius", "fahrenheit", "kelvin"]}
    with pytest.raises(ToolValidationError, match=re.escape("unknown ['units']")):
        tool(description="Convert temperature units", param_metadata={"units": enum})(convert_temperature)
    made = tool(description="Convert temperature units", param_metadata={"to_unit": enum})(convert_temperature)
    assert made.schema()["parameters"]["properties"]["to_unit"] == {"type": "string", **enum}
    with pytest.raises(ToolParameterError, match="'to_unit'"):
        made.validate({"value": 1, "from_unit": "kelvin", "to_unit": "réaumur"})


def test_a_parameter_without_a_hint_is_text():
    """Best practice 1, what is bad of it."""

    @tool(description="Add numbers")
    def add(a, b):
        return str(a + b)

    assert add.schema()["parameters"]["properties"] == {"a": {"type": "string"}, "b": {"type": "string"}}
    assert add.execute({"a": "1", "b": "2"}) == "12"


def test_the_decorator_is_a_call_of_what_it_makes():
    """With its options: name, description, metadata of parameters, and those that change how it runs."""
    options = {
        "name": "web_search",
        "description": "Search the web",
        "param_metadata": {"query": {"description": "Search terms"}, "limit": {"description": "Max results"}},
        "terminal": True,
        "screen_output": True,
        "requires_approval": True,
    }

    def search(query: str, limit: int = 10) -> str:
        """Something else."""
        return f"{query} {limit}"

    made = tool(**options)(search)

    @tool(**options)
    def decorated(query: str, limit: int = 10) -> str:
        """Something else."""
        return f"{query} {limit}"

    assert (made.name, made.description) == ("web_search", "Search the web")
    assert made.schema() == decorated.schema()
    properties = made.schema()["parameters"]["properties"]
    assert [properties[each]["description"] for each in ("query", "limit")] == ["Search terms", "Max results"]
    assert made.schema()["parameters"]["required"] == ["query"]
    for each in (made, decorated):
        assert (each.terminal, each.screen_output, each.requires_approval, each.streaming) == (True, True, True, False)
    assert not any((tool(search).terminal, tool(search).screen_output, tool(search).requires_approval))


async def soon() -> str:
    """Later."""
    return "soon"


async def chunks() -> AsyncGenerator[str, None]:
    """In parts."""
    yield "a"


def lines() -> Generator[str, None, None]:
    """In parts."""
    yield "a"


def at_once() -> str:
    """Now."""
    return "now"


@pytest.mark.parametrize(
    ("function", "is_async", "said"),
    [(soon, True, "soon"), (chunks, True, "a"), (lines, False, "a"), (at_once, False, "now")],
)
def test_async_functions_and_async_generators_are_async(function, is_async, said):
    """Found out from the function, by both ways to make a tool; nobody has to say it."""
    for made in (tool(function), Tool("t", "t", [], function)):
        assert (made.is_async, made.metadata.is_async) == (is_async, is_async)
        assert made.execute({}) == said


WORDS = [(word, True) for word in ("true", "1", "yes", "on")] + [(word, False) for word in ("false", "0", "no", "off")]


@pytest.mark.parametrize(("hint", "sent", "got"), [(int, "42", 42), (float, "1.5", 1.5), *((bool, *w) for w in WORDS)])
def test_text_is_read_as_the_type_it_is_meant_for(hint, sent, got):
    """Every coercion the page lists, in any case of letters, by hints as by a JSON Schema."""
    typed = Tool("t", "t", [ToolParameter("x", hint)], lambda x: x)
    for made in (typed, Tool("t", "t", typed.schema()["parameters"], lambda x: x)):
        for spelled in {sent, sent.upper(), sent.title()}:
            (read,) = made.validate({"x": spelled}).values()
            assert (read, type(read)) == (got, hint)


@pytest.mark.parametrize(("hint", "sent"), [(int, "forty"), (int, "4.2"), (float, "1.x"), (bool, "maybe"), (bool, "")])
def test_text_that_is_not_of_the_type_is_refused(hint, sent):
    """With what was sent."""
    typed = Tool("t", "t", [ToolParameter("x", hint)], lambda x: x)
    for made in (typed, Tool("t", "t", typed.schema()["parameters"], lambda x: x)):
        with pytest.raises(ToolParameterError, match=re.escape(repr(sent))):
            made.validate({"x": sent})


@pytest.mark.parametrize(
    ("hint", "schema", "sent", "got", "strange"),
    [
        (Literal["fast", "slow", "auto"], {"type": "string", "enum": ["fast", "slow", "auto"]}, "slow", "slow", "slo"),
        (Literal[1, 2], {"type": "integer", "enum": [1, 2]}, "2", 2, 3),
        (Literal[0.5, 1.5], {"type": "number", "enum": [0.5, 1.5]}, "1.5", 1.5, 2.5),
        (Literal[True], {"type": "boolean", "enum": [True]}, "yes", True, False),
    ],
    ids=["str", "int", "float", "bool"],
)
def test_literals_of_every_kind_are_choices(hint, schema, sent, got, strange):
    """The model sees them, quoted ones count, and nothing else is taken."""
    made = Tool("t", "t", [ToolParameter("x", hint)], lambda x: x)
    assert made.schema()["parameters"]["properties"]["x"] == schema
    assert made.validate({"x": sent}) == {"x": got}
    with pytest.raises(ToolParameterError):
        made.validate({"x": strange})


def test_an_optional_literal_may_be_left_out_or_none():
    """It is not required, and None is a value of it."""

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
def test_a_union_of_types_is_text_to_the_model_and_keeps_what_it_sent(sent):
    """The page's example."""

    @tool()
    def lookup(key: Union[str, int]) -> str:  # noqa: UP007  # as on the page
        return f"key={key!r}"

    assert lookup.schema()["parameters"]["properties"]["key"] == {"type": "string"}
    assert lookup.execute({"key": sent}) == f"key={sent!r}"


def test_typed_collections_of_the_page():
    """Items and values have their types, and are read as them."""

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


def test_what_a_tool_checks_itself_is_told_to_the_model():
    """Best practice 4."""

    @tool(description="Divide two numbers")
    def divide(a: float, b: float) -> str:
        if b == 0:
            raise ValueError("Cannot divide by zero")
        return str(a / b)

    with pytest.raises(ToolExecutionError, match="Cannot divide by zero"):
        divide.execute({"a": 1, "b": 0})
    assert divide.execute({"a": "9", "b": 2}) == "4.5"
