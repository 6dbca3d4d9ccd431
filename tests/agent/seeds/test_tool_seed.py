"""Tool, as toolregistry and xaibo document it: constructors, names, ways to run it, and what is never serialized."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import json
import pickle

import pytest
from pydantic_core import to_json

from sayso.agent import (
    Tool,
    ToolExecutionError,
    ToolMetadata,
    ToolParameter,
    ToolParameterError,
    ToolTag,
    ToolValidationError,
    tool,
)
from sayso.pending.executors import as_json

AREA = {
    "type": "object",
    "properties": {
        "length": {"type": "number", "description": "Length of rectangle"},
        "width": {"type": "number", "description": "Width of rectangle"},
    },
    "required": ["length", "width"],
}


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


def divide(a: float, b: float) -> float:
    """Divide a by b."""
    return a / b


@pytest.fixture
def area() -> Tool:
    """Return the tool of the seed's first example."""
    return Tool(
        name="calculate_area",
        description="Calculate the area of a rectangle",
        parameters=AREA,
        callable=lambda length, width: length * width,
        is_async=False,
    )


def test_code_and_secrets_are_never_serialized(area):
    """No way of serializing a tool shows its code or its injected arguments."""
    secret = Tool(
        "t", "t", [], lambda key: key, injected_kwargs={"key": "s3cret"}, config_injector=dict
    )
    nested = {"tools": [secret, {"one": (secret,)}]}
    for told in (
        json.dumps(secret.model_dump()),
        repr(secret),
        as_json(nested),
        to_json(nested).decode(),
    ):
        assert "s3cret" not in told
        assert "lambda" not in told
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(area)
    assert area.model_dump()["parameters"]["required"] == ["length", "width"]
    assert copy.deepcopy(area) is area


def test_tool_is_immutable(area):
    """Neither its fields nor its schema, which all callers share, can be changed."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        area.name = "other"
    with pytest.raises(TypeError, match="change a copy"):
        area.schema()["parameters"]["properties"]["length"]["type"] = "string"
    with pytest.raises(TypeError, match="change a copy"):
        area.schema()["parameters"]["required"].append("x")
    mine = copy.deepcopy(area.schema())
    mine["parameters"]["required"].append("x")
    assert area.schema()["parameters"]["required"] == ["length", "width"]


def test_replace_uses_the_changed_field():
    """`dataclasses.replace` accepts either name of the function, either form of parameters, and read_only."""
    made = Tool("t", "t", [ToolParameter("x", int)], lambda x: x + 1)
    for name in ("function", "callable"):
        other = dataclasses.replace(made, **{name: lambda x: x + 2})
        assert other.execute({"x": 1}) == "3"
        assert other.callable is other.function
    assert dataclasses.replace(made, function=None).function is None
    of_schema = Tool(
        "t", "t", {"type": "object", "properties": {"x": {"type": "integer"}}}, lambda x: x
    )
    assert dataclasses.replace(of_schema, name="u").input_schema == of_schema.input_schema
    other = dataclasses.replace(of_schema, parameters=[ToolParameter("x", str)])
    assert other.validate({"x": "1"}) == {"x": "1"}
    other = dataclasses.replace(
        other, parameters={"type": "object", "properties": {"x": {"type": "boolean"}}}
    )
    assert other.validate({"x": "yes"}) == {"x": True}
    assert not dataclasses.replace(
        dataclasses.replace(made, read_only=True), read_only=False
    ).read_only


def test_copy_of_an_async_tool_may_be_sync():
    """What was detected about the old function does not apply to the new one."""

    async def slow() -> str:
        return "slow"

    other = dataclasses.replace(Tool("t", "t", [], slow), function=lambda: "fast")
    assert not other.is_async
    assert not other.metadata.is_async


@pytest.mark.parametrize("old", ["describe", "get_json_schema"])
def test_old_names_of_get_schema_warn(area, old):
    """They still return the schema."""
    with pytest.warns(DeprecationWarning, match="get_schema"):
        assert getattr(area, old)("anthropic") == area.get_schema("anthropic")


def test_json_schema_is_enough_to_make_a_tool(area):
    """The schema is shown to models, validates arguments, and yields parameters."""
    assert area.schema()["parameters"] == AREA
    assert [(each.name, each.param_type, each.required) for each in area.parameters] == [
        ("length", float, True),
        ("width", float, True),
    ]
    assert area.run_raw({"length": 2, "width": "1.5"}) == 3.0
    assert area.callable is area.function
    assert area.parameters_model is None


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"length": 1}, "Missing required parameter: 'width'"),
        ({"length": 1, "width": "wide"}, "'width' is 'wide': must be of type 'number'"),
        ({"length": 1, "width": 2, "widht": 3}, "'widht' -> Did you mean 'width'?"),
        ({"length": 1, "width": float("nan")}, "neither NaN nor infinities"),
        ([1, 2], "'parameters' is [1, 2]"),
    ],
)
def test_json_schema_errors_have_the_same_texts(area, params, words):
    """A model corrects its call from these texts, regardless of the tool's origin."""
    with pytest.raises(ToolParameterError) as caught:
        area.validate(params)
    assert words in str(caught.value)


def test_unusable_schema_is_an_error_of_the_call():
    """A dangling reference in a server's schema must not end a turn."""
    many = {f"y{number}": {"type": "string"} for number in range(100)}
    odd = Tool(
        "odd",
        "o",
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/nowhere"}, **many}},
        lambda x: x,
    )
    with pytest.raises(ToolParameterError, match="its schema cannot be used") as caught:
        odd.validate({"x": 1})
    assert "PointerToNowhere" in str(caught.value.issue)
    assert len(caught.value.issue) < 300
    with pytest.raises(ToolValidationError, match="give an object schema"):
        Tool("list", "l", {"type": "array"}, list)


def test_null_is_dropped_where_a_schema_forbids_it():
    """Some models send null for an argument they leave out."""
    note = Tool(
        "n", "n", {"type": "object", "properties": {"a": {"type": "string"}}}, lambda **given: given
    )
    assert note.run_raw({"a": None}) == {}


def test_names_with_a_namespace_follow_the_seed():
    """All examples of the seed are covered."""
    made = Tool.from_function(multiply, namespace="math_ops")
    assert (made.name, made.namespace, made.method_name) == (
        "math_ops-multiply",
        "math_ops",
        "multiply",
    )
    assert made.qualified_name == "math_ops-multiply"
    assert (
        Tool.from_function(multiply, namespace="math_ops", method_name="mul").name == "math_ops-mul"
    )
    given = Tool(
        "math_ops-multiply",
        "m",
        callable=multiply,
        parameters=AREA,
        namespace="math_ops",
        method_name="multiply",
    )
    assert given.qualified_name == "math_ops-multiply"
    picked = Tool.from_function(lambda a, b: a, name="multiply")
    assert picked.qualified_name == "multiply"
    later = picked.update_namespace("math_operations")
    assert later.name == later.qualified_name == "math_operations-multiply"
    assert later.method_name == "multiply"


@pytest.mark.parametrize(
    ("name", "force", "sep", "expected"),
    [
        ("example_tool", False, "-", "new_namespace-example_tool"),
        ("old_namespace.example_tool", False, "-", "old_namespace-example_tool"),
        ("old_namespace.example_tool", True, ".", "new_namespace.example_tool"),
        ("old_namespace-example_tool", True, "-", "new_namespace-example_tool"),
    ],
)
def test_update_namespace_prefixes_the_name(name, force, sep, expected):
    """The seed's table applies. The seed renames in place; an immutable tool returns a copy."""
    before = Tool(name, "t", [], lambda: "")
    after = before.update_namespace("new_namespace", force=force, sep=sep)
    assert (before.name, after.name) == (name, expected)
    assert after.method_name == "example_tool"
    assert before.update_namespace(None) is before


def test_from_function_reads_name_description_and_schema():
    """Async is detected, whatever the metadata claims."""

    async def fetch_data(url: str) -> dict:
        """Fetch data from a URL asynchronously."""
        return {"url": url}

    made = Tool.from_function(
        fetch_data, metadata=ToolMetadata(is_async=False, timeout=5, tags={ToolTag.NETWORK})
    )
    assert made.is_async
    assert made.metadata.is_async
    assert made.metadata.timeout == 5
    assert made.description == "Fetch data from a URL asynchronously."
    assert made.run_raw({"url": "u"}) == {"url": "u"}
    assert set(made.parameters_model.model_fields) == {"url"}


def test_from_function_detects_that_a_function_is_sync():
    """The page: is_async "is always auto-detected and will override the value in metadata"."""
    made = Tool.from_function(
        lambda: "now", name="now", metadata=ToolMetadata(is_async=True, timeout=5)
    )
    assert not made.is_async
    assert not made.metadata.is_async
    assert made.metadata.timeout == 5


def test_async_tool_from_a_schema_runs_sync_and_async():
    """The seed's example runs both ways."""

    async def fetch_data(url: str) -> dict:
        return {"url": url, "data": "sample"}

    schema = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
    made = Tool(
        name="fetch_data",
        description="Fetch",
        parameters=schema,
        callable=fetch_data,
        is_async=True,
    )
    assert made.is_async
    assert (
        made.run_raw({"url": "u"})
        == asyncio.run(made.arun_raw({"url": "u"}))
        == {"url": "u", "data": "sample"}
    )


def test_lambda_needs_a_name():
    """The seed documents a ValueError."""
    with pytest.raises(ValueError, match="name="):
        Tool.from_function(lambda a: a)


def test_run_raw_raises_the_tools_error():
    """Both the sync and the async method raise it, and validation errors too."""
    made = Tool.from_function(divide)
    assert made.run_raw({"a": 9, "b": 2}) == 4.5
    for run in (made.run_raw, lambda params: asyncio.run(made.arun_raw(params))):
        with pytest.raises(ZeroDivisionError):
            run({"a": 10, "b": 0})
        with pytest.raises(ToolParameterError):
            run({"a": 10})


def test_run_returns_errors_as_text_and_warns():
    """The seed's deprecated method returns an error as text, and a DeprecationWarning names its replacement."""
    made = Tool.from_function(divide)
    with pytest.warns(DeprecationWarning, match="use run_raw"):
        assert made.run({"a": 10, "b": 0}) == "Error executing divide: float division by zero"
    with pytest.warns(DeprecationWarning, match="use run_raw"):
        assert asyncio.run(made.arun({"a": 10, "b": 0})).startswith("Error executing divide")
    assert made.run({"a": 1, "b": 2}) == asyncio.run(made.arun({"a": 1, "b": 2})) == 0.5


def test_run_formats_errors_as_in_the_seed():
    """The text is `Error executing NAME: ` and Python's message, which for integers equals the page's."""

    def divide(a: int, b: int) -> float:
        """Divide a by b."""
        return a / b

    with pytest.warns(DeprecationWarning, match="use run_raw"):
        assert (
            Tool.from_function(divide).run({"a": 10, "b": 0})
            == "Error executing divide: division by zero"
        )


def test_timeout_of_a_tool_ends_its_call():
    """The text gives the seconds and says that the tool may still run. A TimeoutError of the tool itself is kept."""

    async def forever() -> str:
        await asyncio.Event().wait()
        return ""

    def own() -> str:
        raise TimeoutError("the bank was slow")

    with pytest.raises(
        ToolExecutionError, match=r"no result within 0\.01 seconds; it may still be running"
    ):
        Tool("f", "f", [], forever, metadata=ToolMetadata(timeout=0.01)).execute({})
    with pytest.raises(ToolExecutionError, match="TimeoutError: the bank was slow"):
        Tool("o", "o", [], own, metadata=ToolMetadata(timeout=60)).execute({})


@pytest.mark.parametrize(
    "bad", [{"timeout": 0}, {"timeout": -1}, {"max_result_size": 0}, {"tags": {"nonsense"}}]
)
def test_invalid_metadata_is_refused(bad):
    """The error is raised at definition and shows the value."""
    with pytest.raises(
        ValueError, match=repr(next(iter(bad.values())) if "tags" not in bad else "nonsense")
    ):
        ToolMetadata(**bad)


def test_read_only_and_its_tag_are_equivalent():
    """Each sets the other."""
    assert ToolTag.READ_ONLY in Tool("t", "t", [], lambda: "", read_only=True).metadata.tags
    assert Tool(
        "t", "t", [], lambda: "", metadata=ToolMetadata(tags={ToolTag.READ_ONLY})
    ).repeatable


def test_parameters_by_name_and_json_type():
    """The xaibo notation: parameters are optional unless required, with JSON type names, a default and an enum."""
    described = Tool(
        name="get_weather",
        description="Get current weather information for a city",
        parameters={
            "city": ToolParameter(type="string", description="Name of the city", required=True),
            "units": ToolParameter(
                type="string", default="celsius", enum=["celsius", "fahrenheit", "kelvin"]
            ),
            "limit": ToolParameter(type="number", default=30.0),
            "tags": ToolParameter(type="array"),
        },
    )
    assert [(each.name, each.type, each.required) for each in described.parameters] == [
        ("city", "string", True),
        ("units", "string", False),
        ("limit", "number", False),
        ("tags", "array", False),
    ]
    assert described.validate({"city": "Paris"}) == {
        "city": "Paris",
        "units": "celsius",
        "limit": 30.0,
        "tags": None,
    }
    assert described.schema()["parameters"]["required"] == ["city"]
    assert described.schema()["parameters"]["properties"]["city"] == {
        "type": "string",
        "description": "Name of the city",
    }
    assert described.schema()["parameters"]["properties"]["units"] == {
        "type": "string",
        "default": "celsius",
        "enum": ["celsius", "fahrenheit", "kelvin"],
    }
    with pytest.raises(ToolParameterError, match="'units' is 'rankine'"):
        described.validate({"city": "Paris", "units": "rankine"})
    with pytest.raises(ToolValidationError, match="'strnig'; known: string"):
        ToolParameter("x", type="strnig")


@pytest.mark.parametrize(
    ("kind", "values", "strange"),
    [
        ("string", ["hello", "world"], ["hello"]),
        ("number", [42, 3.14, -10], "many"),
        ("integer", [42, -10, 0], 1.5),
        ("boolean", [True, False], "maybe"),
        ("object", [{"key": "value"}], ["key"]),
        ("array", [[1, 2, 3], ["a", "b"]], {"a": 1}),
    ],
)
def test_each_json_type_accepts_its_own_values(kind, values, strange):
    """xaibo's table of types is used with its examples."""
    made = Tool(
        name="t",
        description="t",
        parameters={"x": ToolParameter(type=kind, description="X", required=True)},
    )
    assert made.schema()["parameters"]["properties"]["x"]["type"] == kind
    for value in values:
        read = made.validate({"x": value})["x"]
        assert read == value
        assert isinstance(read, bool) == isinstance(value, bool)
    with pytest.raises(ToolParameterError):
        made.validate({"x": strange})


def test_tool_without_a_function_cannot_run():
    """The error says that the tool is only a description."""
    with pytest.raises(ToolExecutionError, match="only a description"):
        Tool(name="test_tool", description="A test tool", parameters={}).execute({})


def test_errors_have_structured_fields():
    """The seeds construct them this way, and programs read the fields."""
    made = ToolValidationError(
        tool_name="t", param_name="x", issue="Missing required parameter", suggestion="Give x"
    )
    for line in (
        "Tool Validation Error: 't'",
        "Parameter: x",
        "Issue: Missing required parameter",
        "Suggestion: Give x",
    ):
        assert line in str(made)
    with pytest.raises(ToolParameterError) as caught:
        Tool.from_function(divide).validate({"a": 1, "c": 2})
    assert (caught.value.tool_name, caught.value.param_name) == ("divide", "b, c")
    with pytest.raises(ToolExecutionError) as failed:
        Tool.from_function(divide).execute({"a": 1, "b": 0})
    assert (failed.value.tool_name, failed.value.params) == ("divide", {"a": 1, "b": 0})
    assert isinstance(failed.value.error, ZeroDivisionError)
    assert failed.value.error is failed.value.__cause__


class Greeter:
    """An object that can be called."""

    async def __call__(self, name: str) -> str:
        """Greet."""
        return f"hello {name}"


def test_partials_and_instances_are_valid_functions():
    """Bound arguments are not in the schema; an async `__call__` is awaited."""
    made = Tool.from_function(
        functools.partial(multiply, b=3), name="triple", injected_kwargs={"b": 3}
    )
    assert made.execute({"a": "2"}) == "6.0"
    greet = Tool.from_function(Greeter(), description="Greet")
    assert greet.name == "Greeter"
    assert greet.execute({"name": "ana"}) == "hello ana"


def test_sync_function_that_returns_a_coroutine_is_awaited():
    """A lambda around an async function works in the sync and the async method."""

    async def answer() -> int:
        return 42

    made = Tool("t", "t", [], lambda: answer())  # noqa: PLW0108  # the lambda hides that the function is async
    assert made.execute({}) == "42"
    assert asyncio.run(made.aexecute({})) == "42"


def test_tool_that_raises_system_exit_ends_only_its_call():
    """It holds for the sync and the async method."""

    @tool
    def leave() -> str:
        """Leave."""
        raise SystemExit(1)

    with pytest.raises(ToolExecutionError):
        leave.execute({})
    with pytest.raises(ToolExecutionError):
        asyncio.run(leave.aexecute({}))


def test_positional_only_parameters_are_refused():
    """Arguments are passed by name."""

    def odd(x: int, /) -> str:
        """Odd."""
        return str(x)

    with pytest.raises(ToolValidationError, match="by name"):
        tool(odd)


def test_metadata_of_unknown_parameters_is_refused():
    """A typo would otherwise leave the real parameter undescribed."""
    with pytest.raises(ToolValidationError, match=r"unknown \['aa'\]; it has \['a', 'b'\]"):
        tool(param_metadata={"aa": {"description": "x"}})(multiply)


def doubling(levels: int) -> dict:
    """Return a short schema that expands to two to the power of `levels` definitions."""
    definitions = {
        f"L{n}": {
            "type": "object",
            "properties": {side: {"$ref": f"#/$defs/L{n + 1}"} for side in ("a", "b")},
        }
        for n in range(levels)
    }
    definitions[f"L{levels}"] = {"type": "string"}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/L0"}}, "$defs": definitions}


@pytest.mark.parametrize("api_format", ["openai-chat", "anthropic", "gemini"])
def test_exponential_schema_stays_small(api_format):
    """A server's few lines must not expand to a gigabyte."""
    made = Tool("laughs", "l", doubling(40), lambda x: x)
    assert len(json.dumps(made.get_schema(api_format))) < 200_000
    made.validate({"x": {"a": {"b": {}}}})


@pytest.mark.parametrize("properties", [{"x": "text"}, {"x": 3}, ["x"], None])
def test_invalid_schema_is_refused_at_definition(properties):
    """Servers may send any value as a schema."""
    with pytest.raises(ToolValidationError, match="no JSON Schema"):
        Tool("t", "t", {"type": "object", "properties": properties}, lambda x: x)


def test_boolean_schemas_are_valid():
    """JSON Schema allows true for any value and false for none."""
    made = Tool(
        "t",
        "t",
        {"type": "object", "properties": {"any": True, "none": False}},
        lambda **given: given,
    )
    assert made.run_raw({"any": [1]}) == {"any": [1]}
    with pytest.raises(ToolParameterError):
        made.validate({"none": 1})


def test_references_are_never_fetched():
    """Fetching would send a request chosen by the schema's author from inside the network."""
    made = Tool(
        "t",
        "t",
        {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/secret"}}},
        lambda x: x,
    )
    with pytest.raises(ToolParameterError, match="Unresolvable"):
        made.validate({"x": 1})
