"""Tool, as toolregistry and xaibo document it: constructors, names, doors and what is kept apart."""

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
    """The seed's first example."""
    return Tool(
        name="calculate_area",
        description="Calculate the area of a rectangle",
        parameters=AREA,
        callable=lambda length, width: length * width,
        is_async=False,
    )


def test_code_and_secrets_are_never_serialised(area):
    """By no way there is: what a tool is can be told, how it works and what is injected cannot."""
    secret = Tool("t", "t", [], lambda key: key, injected_kwargs={"key": "s3cret"}, config_injector=dict)
    nested = {"tools": [secret, {"one": (secret,)}]}
    for told in (json.dumps(secret.model_dump()), repr(secret), as_json(nested), to_json(nested).decode()):
        assert "s3cret" not in told
        assert "lambda" not in told
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(area)
    assert area.model_dump()["parameters"]["required"] == ["length", "width"]
    assert copy.deepcopy(area) is area


def test_a_tool_never_changes(area):
    """Neither its fields nor its schema, which everybody shares."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        area.name = "other"
    with pytest.raises(TypeError, match="change a copy"):
        area.schema()["parameters"]["properties"]["length"]["type"] = "string"
    with pytest.raises(TypeError, match="change a copy"):
        area.schema()["parameters"]["required"].append("x")
    mine = copy.deepcopy(area.schema())
    mine["parameters"]["required"].append("x")
    assert area.schema()["parameters"]["required"] == ["length", "width"]


def test_a_copy_is_what_was_changed_last():
    """`dataclasses.replace` with either name of the function, either kind of parameters, and read_only."""
    made = Tool("t", "t", [ToolParameter("x", int)], lambda x: x + 1)
    for name in ("function", "callable"):
        other = dataclasses.replace(made, **{name: lambda x: x + 2})
        assert other.execute({"x": 1}) == "3"
        assert other.callable is other.function
    assert dataclasses.replace(made, function=None).function is None
    of_schema = Tool("t", "t", {"type": "object", "properties": {"x": {"type": "integer"}}}, lambda x: x)
    assert dataclasses.replace(of_schema, name="u").input_schema == of_schema.input_schema
    other = dataclasses.replace(of_schema, parameters=[ToolParameter("x", str)])
    assert other.validate({"x": "1"}) == {"x": "1"}
    other = dataclasses.replace(other, parameters={"type": "object", "properties": {"x": {"type": "boolean"}}})
    assert other.validate({"x": "yes"}) == {"x": True}
    assert not dataclasses.replace(dataclasses.replace(made, read_only=True), read_only=False).read_only


def test_a_copy_of_an_async_tool_may_be_sync():
    """What was found out about the old function is not said of the new one."""

    async def slow() -> str:
        return "slow"

    other = dataclasses.replace(Tool("t", "t", [], slow), function=lambda: "fast")
    assert not other.is_async
    assert not other.metadata.is_async


@pytest.mark.parametrize("old", ["describe", "get_json_schema"])
def test_the_old_names_of_get_schema_warn(area, old):
    """They answer all the same."""
    with pytest.warns(DeprecationWarning, match="get_schema"):
        assert getattr(area, old)("anthropic") == area.get_schema("anthropic")


def test_a_json_schema_is_enough_to_make_a_tool(area):
    """It is what models read, what is checked, and read back as parameters."""
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
def test_a_json_schema_refuses_in_the_same_words(area, params, words):
    """A model corrects itself from them, wherever the tool is from."""
    with pytest.raises(ToolParameterError) as caught:
        area.validate(params)
    assert words in str(caught.value)


def test_a_schema_nobody_can_use_is_an_error_of_the_call_with_its_reason():
    """A dangling reference of a server must not end a turn."""
    many = {f"y{number}": {"type": "string"} for number in range(100)}
    odd = Tool("odd", "o", {"type": "object", "properties": {"x": {"$ref": "#/$defs/nowhere"}, **many}}, lambda x: x)
    with pytest.raises(ToolParameterError, match="its schema cannot be used") as caught:
        odd.validate({"x": 1})
    assert "PointerToNowhere" in str(caught.value.issue)
    assert len(caught.value.issue) < 300
    with pytest.raises(ToolValidationError, match="give an object schema"):
        Tool("list", "l", {"type": "array"}, list)


def test_null_is_left_out_where_a_schema_has_no_null():
    """Some models fill in whatever they leave out."""
    note = Tool("n", "n", {"type": "object", "properties": {"a": {"type": "string"}}}, lambda **given: given)
    assert note.run_raw({"a": None}) == {}


def test_names_with_a_namespace():
    """All the seed's examples."""
    made = Tool.from_function(multiply, namespace="math_ops")
    assert (made.name, made.namespace, made.method_name) == ("math_ops-multiply", "math_ops", "multiply")
    assert made.qualified_name == "math_ops-multiply"
    assert Tool.from_function(multiply, namespace="math_ops", method_name="mul").name == "math_ops-mul"
    given = Tool(
        "math_ops-multiply", "m", callable=multiply, parameters=AREA, namespace="math_ops", method_name="multiply"
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
def test_a_namespace_is_put_before_a_name(name, force, sep, expected):
    """The seed's table. It renames in place; a tool that never changes hands back another one."""
    before = Tool(name, "t", [], lambda: "")
    after = before.update_namespace("new_namespace", force=force, sep=sep)
    assert (before.name, after.name) == (name, expected)
    assert after.method_name == "example_tool"
    assert before.update_namespace(None) is before


def test_from_function_reads_what_there_is():
    """Name, description and schema; async is found out, whatever the metadata says."""

    async def fetch_data(url: str) -> dict:
        """Fetch data from a URL asynchronously."""
        return {"url": url}

    made = Tool.from_function(fetch_data, metadata=ToolMetadata(is_async=False, timeout=5, tags={ToolTag.NETWORK}))
    assert made.is_async
    assert made.metadata.is_async
    assert made.metadata.timeout == 5
    assert made.description == "Fetch data from a URL asynchronously."
    assert made.run_raw({"url": "u"}) == {"url": "u"}
    assert set(made.parameters_model.model_fields) == {"url"}


def test_an_async_tool_made_by_hand_runs_by_both_doors():
    """The seed's example."""

    async def fetch_data(url: str) -> dict:
        return {"url": url, "data": "sample"}

    schema = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
    made = Tool(name="fetch_data", description="Fetch", parameters=schema, callable=fetch_data, is_async=True)
    assert made.is_async
    assert made.run_raw({"url": "u"}) == asyncio.run(made.arun_raw({"url": "u"})) == {"url": "u", "data": "sample"}


def test_a_lambda_needs_a_name():
    """ValueError, as the seed says."""
    with pytest.raises(ValueError, match="name="):
        Tool.from_function(lambda a: a)


def test_run_raw_raises_what_the_tool_raises():
    """Both doors, validation included."""
    made = Tool.from_function(divide)
    assert made.run_raw({"a": 9, "b": 2}) == 4.5
    for run in (made.run_raw, lambda params: asyncio.run(made.arun_raw(params))):
        with pytest.raises(ZeroDivisionError):
            run({"a": 10, "b": 0})
        with pytest.raises(ToolParameterError):
            run({"a": 10})


def test_run_swallows_and_warns():
    """The seed's old way: an error is a text, and a DeprecationWarning names the new one."""
    made = Tool.from_function(divide)
    with pytest.warns(DeprecationWarning, match="use run_raw"):
        assert made.run({"a": 10, "b": 0}) == "Error executing divide: float division by zero"
    with pytest.warns(DeprecationWarning, match="use run_raw"):
        assert asyncio.run(made.arun({"a": 10, "b": 0})).startswith("Error executing divide")
    assert made.run({"a": 1, "b": 2}) == asyncio.run(made.arun({"a": 1, "b": 2})) == 0.5


def test_run_tells_the_error_in_the_words_of_the_seed():
    """`Error executing NAME: ` and Python's own, which of whole numbers are the page's."""

    def divide(a: int, b: int) -> float:
        """Divide a by b."""
        return a / b

    with pytest.warns(DeprecationWarning, match="use run_raw"):
        assert Tool.from_function(divide).run({"a": 10, "b": 0}) == "Error executing divide: division by zero"


def test_a_tools_own_time_limit_ends_it():
    """In seconds; the text says that it may still be running. A TimeoutError of its own is its own."""

    async def forever() -> str:
        await asyncio.Event().wait()
        return ""

    def own() -> str:
        raise TimeoutError("the bank was slow")

    with pytest.raises(ToolExecutionError, match=r"no result within 0\.01 seconds; it may still be running"):
        Tool("f", "f", [], forever, metadata=ToolMetadata(timeout=0.01)).execute({})
    with pytest.raises(ToolExecutionError, match="TimeoutError: the bank was slow"):
        Tool("o", "o", [], own, metadata=ToolMetadata(timeout=60)).execute({})


@pytest.mark.parametrize("bad", [{"timeout": 0}, {"timeout": -1}, {"max_result_size": 0}, {"tags": {"nonsense"}}])
def test_metadata_that_makes_no_sense_is_refused(bad):
    """At definition, with the value."""
    with pytest.raises(ValueError, match=repr(next(iter(bad.values())) if "tags" not in bad else "nonsense")):
        ToolMetadata(**bad)


def test_read_only_and_its_tag_are_one():
    """Whichever is given."""
    assert ToolTag.READ_ONLY in Tool("t", "t", [], lambda: "", read_only=True).metadata.tags
    assert Tool("t", "t", [], lambda: "", metadata=ToolMetadata(tags={ToolTag.READ_ONLY})).repeatable


def test_parameters_by_name_and_json_type():
    """The other spelling (xaibo): optional unless required, JSON names of types, a default, an enum."""
    described = Tool(
        name="get_weather",
        description="Get current weather information for a city",
        parameters={
            "city": ToolParameter(type="string", description="Name of the city", required=True),
            "units": ToolParameter(type="string", default="celsius", enum=["celsius", "fahrenheit", "kelvin"]),
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
    assert described.validate({"city": "Paris"}) == {"city": "Paris", "units": "celsius", "limit": 30.0, "tags": None}
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
def test_each_of_jsons_types_takes_its_own_values(kind, values, strange):
    """xaibo's table of types, with its examples."""
    made = Tool(name="t", description="t", parameters={"x": ToolParameter(type=kind, description="X", required=True)})
    assert made.schema()["parameters"]["properties"]["x"]["type"] == kind
    for value in values:
        read = made.validate({"x": value})["x"]
        assert read == value
        assert isinstance(read, bool) == isinstance(value, bool)
    with pytest.raises(ToolParameterError):
        made.validate({"x": strange})


def test_a_description_alone_cannot_run():
    """Its provider does; the text says so."""
    with pytest.raises(ToolExecutionError, match="only a description"):
        Tool(name="test_tool", description="A test tool", parameters={}).execute({})


def test_errors_carry_what_they_are_about():
    """As the seeds construct them, and as programs read them."""
    made = ToolValidationError(tool_name="t", param_name="x", issue="Missing required parameter", suggestion="Give x")
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
    """Something that can be called."""

    async def __call__(self, name: str) -> str:
        """Greet."""
        return f"hello {name}"


def test_partials_and_instances_are_functions_too():
    """What is bound is not asked for; an async `__call__` is waited for."""
    made = Tool.from_function(functools.partial(multiply, b=3), name="triple", injected_kwargs={"b": 3})
    assert made.execute({"a": "2"}) == "6.0"
    greet = Tool.from_function(Greeter(), description="Greet")
    assert greet.name == "Greeter"
    assert greet.execute({"name": "ana"}) == "hello ana"


def test_a_sync_function_that_hands_back_a_coroutine_is_waited_for():
    """A lambda around an async function, through both doors."""

    async def answer() -> int:
        return 42

    made = Tool("t", "t", [], lambda: answer())  # noqa: PLW0108  # not async by its looks
    assert made.execute({}) == "42"
    assert asyncio.run(made.aexecute({})) == "42"


def test_a_tool_that_ends_the_program_ends_its_call_only():
    """Through both doors."""

    @tool
    def leave() -> str:
        """Leave."""
        raise SystemExit(1)

    with pytest.raises(ToolExecutionError):
        leave.execute({})
    with pytest.raises(ToolExecutionError):
        asyncio.run(leave.aexecute({}))


def test_positional_only_parameters_are_refused():
    """Arguments come by name."""

    def odd(x: int, /) -> str:
        """Odd."""
        return str(x)

    with pytest.raises(ToolValidationError, match="by name"):
        tool(odd)


def test_metadata_of_parameters_that_are_not_there_is_refused():
    """A typo there would leave the real one undescribed."""
    with pytest.raises(ToolValidationError, match=r"unknown \['aa'\]; it has \['a', 'b'\]"):
        tool(param_metadata={"aa": {"description": "x"}})(multiply)


def doubling(levels: int) -> dict:
    """A schema of a few lines that stands for two to the power of `levels` definitions."""
    definitions = {
        f"L{n}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/L{n + 1}"} for side in ("a", "b")}}
        for n in range(levels)
    }
    definitions[f"L{levels}"] = {"type": "string"}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/L0"}}, "$defs": definitions}


@pytest.mark.parametrize("api_format", ["openai-chat", "anthropic", "gemini"])
def test_a_schema_that_doubles_and_doubles_stays_small(api_format):
    """A server's few lines must not become a gigabyte here."""
    made = Tool("laughs", "l", doubling(40), lambda x: x)
    assert len(json.dumps(made.get_schema(api_format))) < 200_000
    made.validate({"x": {"a": {"b": {}}}})


@pytest.mark.parametrize("properties", [{"x": "text"}, {"x": 3}, ["x"], None])
def test_what_is_no_schema_is_refused_when_the_tool_is_made(properties):
    """Servers send anything."""
    with pytest.raises(ToolValidationError, match="no JSON Schema"):
        Tool("t", "t", {"type": "object", "properties": properties}, lambda x: x)


def test_boolean_schemas_are_schemas():
    """JSON Schema has them: anything, and nothing."""
    made = Tool("t", "t", {"type": "object", "properties": {"any": True, "none": False}}, lambda **given: given)
    assert made.run_raw({"any": [1]}) == {"any": [1]}
    with pytest.raises(ToolParameterError):
        made.validate({"none": 1})


def test_no_reference_is_fetched():
    """It would be a request of the schema's author's choice, from inside the company's network."""
    made = Tool("t", "t", {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/secret"}}}, lambda x: x)
    with pytest.raises(ToolParameterError, match="Unresolvable"):
        made.validate({"x": 1})
