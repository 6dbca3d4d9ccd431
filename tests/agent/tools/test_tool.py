"""Tool: what a model may pass, and what it gets back."""

import asyncio
import dataclasses
import functools
import json
import re
import threading
from collections.abc import AsyncGenerator, Generator
from contextvars import ContextVar
from datetime import date
from typing import Annotated, Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest
from pydantic import BeforeValidator

from sayso.agent import (
    Ambiguous,
    NotFound,
    Tool,
    ToolExecutionError,
    ToolMetadata,
    ToolNotFoundError,
    ToolParameter,
    ToolParameterError,
    ToolRegistry,
    ToolValidationError,
    tool,
)
from sayso.channels.markdown.convert import plain
from sayso.channels.markdown.literal import Markdown

WHO: ContextVar[str] = ContextVar("who", default="nobody")


@tool
def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return str(a + b)


def refusal(checked, params):
    """Why the tool refuses these arguments."""
    with pytest.raises(ToolValidationError) as caught:
        checked.validate(params)
    return str(caught.value)


def test_unknown_parameter_is_refused_with_a_suggestion():
    """A typo never reaches the function, and the model learns the right name."""

    @tool
    def weather(location: str) -> str:
        """Weather."""
        return location

    assert "'loction' -> Did you mean 'location'?" in refusal(weather, {"loction": "Paris"})


def test_missing_parameter_is_named():
    """The message lists what the tool expects."""
    message = refusal(add, {})
    assert "Missing required parameter: 'a'" in message
    assert "Required parameters: 'a'\nExpected parameters: 'a', 'b'" in message


@pytest.mark.parametrize("value", ["forty", None, [1], {}])
def test_wrong_type_is_refused_with_the_value(value):
    """The model sees what it sent."""
    assert repr(value) in refusal(add, {"a": value})


def test_injected_arguments_cannot_be_overridden():
    """What the program injects is neither visible to the model nor accepted from it."""

    @tool(injected_kwargs={"user_id": 7})
    def mine(user_id: int) -> str:
        """Whose it is."""
        return str(user_id)

    assert mine.schema()["parameters"]["properties"] == {}
    assert mine.execute({}) == "7"
    refusal(mine, {"user_id": 8})


def test_failing_injector_is_a_tool_error():
    """The loop can tell the model, as with any failing tool."""

    @tool(config_injector=lambda: 1 / 0)
    def check(resource: str) -> str:
        """Check permissions."""
        return resource

    with pytest.raises(ToolExecutionError, match="config_injector of 'check'"):
        check.execute({"resource": "file"})


def test_config_injector_is_asked_at_each_call():
    """Its names are hidden from the model, its values are current."""
    current = {"user_id": 1}

    @tool(config_injector=lambda: current)
    def check(resource: str, user_id: int) -> str:
        """Check permissions."""
        return f"{resource} {user_id}"

    assert list(check.schema()["parameters"]["properties"]) == ["resource"]
    current["user_id"] = 2
    assert check.execute({"resource": "file"}) == "file 2"


def test_private_parameters_are_hidden():
    """A leading underscore keeps a parameter from the model."""

    @tool
    def peek(x: int, _debug: bool = False) -> str:
        """Peek."""
        return f"{x} {_debug}"

    assert list(peek.schema()["parameters"]["properties"]) == ["x"]
    refusal(peek, {"x": 1, "_debug": True})


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, "42", 42),
        (float, "1.5", 1.5),
        (bool, "yes", True),
        (bool, "Off", False),
        (list[int], ["1", 2], [1, 2]),
        (date, "2026-02-03", date(2026, 2, 3)),
        (int | None, None, None),
        (str | int, 5, 5),
        (int, 1e20, 10**20),
        (list[int], [1, 2.0**63], [1, 2**63]),
    ],
)
def test_safe_coercions(hint, value, expected):
    """Small models quote everything; what is unmistakable is accepted."""
    checked = Tool("t", "t", [ToolParameter("x", hint)], lambda x: x)
    assert checked.validate({"x": value}) == {"x": expected}


def test_enum_numbers_are_read_from_text():
    """A quoted member of a numeric Literal counts, a stranger does not."""
    checked = Tool("t", "t", [ToolParameter("x", int, enum=[1, 2])], lambda x: x)
    assert checked.validate({"x": "2"}) == {"x": 2}
    refusal(checked, {"x": "3"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan"])
def test_numbers_that_json_cannot_hold_are_refused(value):
    """They could not be stored in a proposal exactly."""
    refusal(Tool("t", "t", [ToolParameter("x", float)], lambda x: x), {"x": value})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as is", "as is"),
        (None, "done"),
        (42, "42"),
        ({"day": date(2026, 1, 2)}, '{"day": "2026-01-02"}'),
        (["é"], '["é"]'),
    ],
)
def test_results_are_serialised(value, text):
    """Text stays text, the rest becomes JSON."""
    assert Tool("t", "t", [], lambda: value).execute({}) == text


class Awkward:
    """Something that cannot even be shown."""

    def __str__(self):
        raise RuntimeError


def test_result_that_cannot_be_serialized_is_no_error():
    """The model is told that the tool has acted, and the turn goes on."""
    circle: list = []
    circle.append(circle)
    for value in (circle, Awkward(), {"x": Awkward()}):
        assert "that cannot be written down" in Tool(
            "t", "t", [], lambda value=value: value
        ).execute({})


def test_typed_result_leads_with_its_kind():
    """The model can branch on `kind`."""
    text = Tool("t", "t", [], lambda: NotFound("customer", "acme")).execute({})
    assert list(json.loads(text)) == ["kind", "entity", "query"]


def test_failure_is_wrapped_with_its_cause():
    """The tool's own exception stays reachable."""

    @tool
    def broken() -> str:
        """Break."""
        raise KeyError("x")

    with pytest.raises(
        ToolExecutionError, match="Error executing tool 'broken': KeyError"
    ) as caught:
        broken.execute({})
    assert isinstance(caught.value.__cause__, KeyError)


def test_stop_iteration_does_not_hang():
    """Futures refuse StopIteration; a tool that leaks one still fails cleanly."""

    @tool
    def leaky() -> str:
        """Leak."""
        return next(iter([]))

    with pytest.raises(ToolExecutionError):
        leaky.execute({})


def test_async_tool_runs_in_the_loop():
    """Async functions work through both doors."""

    @tool
    async def hello(name: str) -> str:
        """Greet."""
        await asyncio.sleep(0)
        return f"hello {name}"

    assert hello.execute({"name": "Ada"}) == "hello Ada"
    assert asyncio.run(hello.aexecute({"name": "Ada"})) == "hello Ada"


def test_execute_works_inside_a_running_loop():
    """The sync door does not need the caller to be sync all the way up."""

    async def outer():
        return add.execute({"a": 1})

    assert asyncio.run(outer()) == "2"


def test_generators_stream_their_chunks():
    """Sync and async generators are joined, and each chunk is heard."""

    @tool(streaming=True)
    def count() -> Generator[int, None, None]:
        """Count."""
        yield from (1, 2)

    @tool(streaming=True)
    async def acount() -> AsyncGenerator[int, None]:
        """Count."""
        yield 1
        yield 2

    for each in (count, acount):
        heard = []
        assert each.execute({}, heard.append) == "12"
        assert asyncio.run(each.aexecute({}, heard.append)) == "12"
        assert heard == ["1", "2"] * 2


def test_plain_chunks_stay_literal_beside_markdown():
    """A tool formats its own words, and yields a text of somebody else as it is."""

    @tool(streaming=True)
    def names() -> Generator[str, None, None]:
        """List names."""
        yield Markdown("**Names**\n")
        yield "[a](https://evil.example"
        yield ")"

    result = names.execute({})
    assert isinstance(result, Markdown)
    assert plain(result) == "Names\n[a](https://evil.example)"
    assert result.startswith("**Names**\n\\[a\\](")


def test_what_hands_back_a_generator_streams_too():
    """A decorated generator, and an instance that yields when it is called."""

    def spell(word: str) -> Generator[str, None, None]:
        """Spell it."""
        yield from word

    @functools.wraps(spell)
    def logged(*args, **kwargs):
        return spell(*args, **kwargs)

    class Speller:
        def __call__(self, word: str) -> Generator[str, None, None]:
            yield from word

    for made in (
        tool(streaming=True)(logged),
        tool(streaming=True, description="Spell")(Speller()),
    ):
        heard: list[str] = []
        assert made.execute({"word": "abc"}, heard.append) == "abc"
        assert heard == ["a", "b", "c"]


def test_sync_tool_sees_the_callers_context():
    """The thread gets a copy of the context; a loop's own thread runs none of it."""
    WHO.set("ada")
    made = Tool("t", "t", [], lambda: (WHO.get(), threading.get_ident()))
    assert made.run_raw({})[0] == "ada"
    who, thread = asyncio.run(made.arun_raw({}))
    assert (who, thread == threading.get_ident()) == ("ada", False)
    assert asyncio.run(made.aexecute({})).startswith('["ada"')


def test_tool_is_callable_like_its_function():
    """Decorating a function does not take it away."""
    assert add(2, b=3) == "5"


def test_tool_never_changes():
    """Tools are shared by all runs."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        add.description = "other"


def test_options_and_bare_decorator_agree():
    """`@tool` and `@tool()` are the same."""

    def plain(x: int) -> str:
        """Do."""
        return str(x)

    assert tool(plain).schema() == tool()(plain).schema()


@pytest.mark.parametrize(
    "options",
    [
        {"name": "has space"},
        {"name": "x" * 65},
        {"streaming": True},
        {"preview": "Delete {invoice}"},
        {"preview": "Delete {}"},
        {"preview": "Delete {"},
    ],
)
def test_wrong_definitions_fail_at_once(options):
    """A tool that cannot work is found at import."""

    def plain(x: int) -> str:
        """Do."""
        return str(x)

    with pytest.raises(ToolValidationError):
        tool(**options)(plain)


@pytest.mark.parametrize(
    ("define", "cure"),
    [
        (lambda: Tool("h", None), "description is of type NoneType: give text"),
        (lambda: Tool(None, "h"), "name is of type NoneType: give text"),
        (lambda: Tool("h", "h", [], 5), "its function is of type int: give a function"),
        (lambda: Tool("h", "h", callable=5), "its callable is of type int: give a function"),
        (lambda: Tool("h", "h", 5), "hold 5: give ToolParameters"),
        (lambda: Tool("h", "h", ["x"]), "hold 'x': give ToolParameters"),
        (lambda: Tool("h", "h", {"x": 5}), "give ToolParameters, or one JSON Schema"),
        (
            lambda: Tool("h", "h", injected_kwargs="x"),
            "injected_kwargs is of type str: give a dict",
        ),
        (lambda: Tool("h", "h", config_injector={"x": 1}), "give a function"),
        (lambda: Tool("h", "h", metadata={"timeout": 1}), "give a ToolMetadata"),
        (lambda: tool(name="h", metadata={"timeout": 1})(lambda a: a), "give a ToolMetadata"),
        # A number would be stored with an action, which then could not be confirmed.
        (lambda: Tool("h", "h", version=2), "its version is of type int: give text"),
        (lambda: Tool("h", "h", editable=True), "editable is of type bool: give the names"),
        (lambda: Tool("h", "h", undo_seconds="5"), "give a number of seconds"),
        (lambda: Tool("h", "h", undo_seconds=-1), "give more than 0 and at most 86400"),
        (lambda: Tool("h", "h", cache_ttl=None), "give a number of seconds"),
        (
            lambda: tool(name="h", param_metadata={"a": "Number."})(lambda a: a),
            "{'description': 'Number.'}",
        ),
    ],
)
def test_what_is_of_the_wrong_kind_is_refused_with_the_cure(define, cure):
    """At once, and not at the first call."""
    with pytest.raises(ToolValidationError, match=re.escape(cure)):
        define()


@pytest.mark.parametrize("description", ["", "  "])
def test_tool_without_description_is_refused(description):
    """Models choose by the description."""
    with pytest.raises(ToolValidationError, match="docstring"):
        Tool("silent", description, [], lambda: None)


def test_function_without_docstring_is_described_by_its_name():
    """The seed's examples have none; a name in words is better than nothing."""

    @tool()
    def set_mode(mode: str) -> str:
        return mode

    assert set_mode.description == "Set mode"


def test_parameter_the_function_lacks_is_refused():
    """Declared parameters must reach the function."""
    with pytest.raises(ToolValidationError, match="takes no"):
        Tool("t", "t", [ToolParameter("x"), ToolParameter("y")], lambda x: x)


def test_argument_that_is_neither_declared_nor_injected_is_refused():
    """The function would fail at every call."""
    with pytest.raises(ToolValidationError, match="no model fills"):
        Tool("t", "t", [], lambda connection: connection)


def test_unsupported_hint_is_refused():
    """A type no model can send is found at import."""
    with pytest.raises(ToolValidationError, match="no model can fill"):
        Tool("t", "t", [ToolParameter("x", asyncio.Event)], lambda x: x)


def test_registry_finds_by_name_and_suggests():
    """An unknown name comes back with the nearest known one."""
    registry = ToolRegistry()

    @registry.tool(description="Add numbers")
    def add_numbers(a: int) -> str:
        return str(a)

    assert registry.get("add_numbers") is add_numbers
    assert registry.all() == [add_numbers]
    with pytest.raises(ToolNotFoundError, match="Did you mean 'add_numbers'"):
        registry.get("add_number")


def test_registry_refuses_a_second_tool_of_one_name():
    """Which one would run must never be luck."""
    registry = ToolRegistry()
    registry.register(add)
    registry.register(add)
    with pytest.raises(ToolValidationError, match="two tools"):
        registry.register(Tool("add", "other", [], lambda: None))


def nested(levels, wrap):
    """Something wrapped so many times."""
    value = "x"
    for _ in range(levels):
        value = wrap(value)
    return value


DEEP = [nested(10_000, lambda value: [value]), nested(10_000, lambda value: {"a": value})]


@pytest.mark.parametrize("value", DEEP)
@pytest.mark.parametrize("hint", [str, list, dict[str, Any], list[int], int | list, Any])
def test_what_is_nested_deeper_than_python_goes_is_refused(hint, value):
    """Before a policy reads it, and as an error of the call: the turn goes on."""
    checked = Tool("t", "t", [ToolParameter("x", hint)], lambda x: x)
    with pytest.raises(ToolParameterError):
        checked.validate_json({"x": value})
    schema = {
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"type": "integer"}}},
    }
    with pytest.raises(ToolParameterError):
        Tool("t", "t", schema, lambda x: x).validate_json({"x": value})


def test_a_validator_that_fails_in_its_own_way_is_an_error_of_the_call():
    """An author's own code must not end a turn."""

    def broken(value):
        raise KeyError(value)

    checked = Tool(
        "t", "t", [ToolParameter("x", Annotated[int, BeforeValidator(broken)])], lambda x: x
    )
    for read in (checked.validate, checked.validate_json, checked.execute):
        with pytest.raises(ToolParameterError, match="cannot be checked: KeyError: 'q'"):
            read({"x": "q"})


def test_a_thousand_mistakes_are_told_in_a_few_words():
    """The model reads the error, and pays for it."""
    numbers = Tool("t", "t", [ToolParameter("x", list[int])], lambda x: x)
    foreign = Tool("t", "t", numbers.schema()["parameters"], lambda x: x)
    for checked in (numbers, foreign):
        message = refusal(checked, {"x": ["word"] * 1000})
        assert "'x.0' is 'word'" in message
        assert re.search(r"; and \d+ more\n", message)
        assert len(message) < 2000
        assert len(refusal(checked, {"x" * 100_000: 1})) < 1000


def test_a_number_of_too_many_digits_can_be_refused():
    """Python does not write such a one down."""
    assert "a int that cannot be shown" in refusal(
        Tool("t", "t", [ToolParameter("x")], lambda x: x), {"x": 10**5000}
    )


def test_a_null_that_says_something_stays():
    """Only what was refused is taken as left out: "no limit" must not become the limit by default."""

    @tool
    def limit(most: int | None = 100, note: str = "") -> str:
        """Set a limit."""
        return f"{most} {note!r}"

    assert limit.execute({"most": None, "note": None}) == "None ''"
    schema = {
        "type": "object",
        "properties": {
            "most": {"type": ["integer", "null"]},
            "note": {"type": "string"},
            "sum": {"type": "integer"},
        },
    }
    foreign = Tool("t", "t", schema, lambda **given: given)
    assert foreign.run_raw({"most": None, "note": None, "sum": "3"}) == {"most": None, "sum": 3}


def test_a_schemas_text_is_read_at_any_depth():
    """Numbers and choices in lists and objects, and nulls for what is left out there."""
    line = {
        "type": "object",
        "properties": {
            "sku": {"type": "string"},
            "count": {"type": "integer"},
            "size": {"enum": [1, 2]},
        },
        "required": ["sku"],
    }
    order = Tool(
        "t",
        "t",
        {"type": "object", "properties": {"lines": {"type": "array", "items": line}}},
        lambda lines: lines,
    )
    given = [{"sku": "1", "count": "3", "size": "2"}, {"sku": "2", "count": None}]
    assert order.run_raw({"lines": given}) == [{"sku": "1", "count": 3, "size": 2}, {"sku": "2"}]


def test_results_inside_results_keep_their_kind():
    """And models and numbers that JSON lacks are written as JSON."""
    found = Tool(
        "t", "t", [], lambda: {"ana": NotFound("customer", "ana"), "share": float("nan"), "n": 1}
    )
    assert json.loads(found.execute({}))["n"] == 1
    both = Tool(
        "t",
        "t",
        [],
        lambda: [NotFound("customer", "ana"), Ambiguous("x", "y", [NotFound("a", "b")])],
    )
    kinds = json.loads(both.execute({}))
    assert [each["kind"] for each in (*kinds, *kinds[1]["matches"])] == [
        "not_found",
        "ambiguous",
        "not_found",
    ]
    share = Tool("t", "t", [], lambda: {"share": float("nan")}).execute({})
    assert share == '{"share": "NaN"}'


def test_an_async_function_may_hand_back_a_generator_or_a_coroutine():
    """Both doors wait for all of it, and each chunk is heard."""

    async def chunks():
        yield 1
        yield 2

    async def async_chunks():
        return chunks()

    async def lazy():
        return (number for number in (1, 2))

    async def coroutine():
        return lazy()

    for function in (async_chunks, lazy, coroutine):
        made = Tool("t", "t", [], function)
        heard: list[str] = []
        assert made.execute({}, heard.append) == "12"
        assert asyncio.run(made.aexecute({}, heard.append)) == "12"
        assert heard == ["1", "2"] * 2


def test_async_generator_is_closed_when_its_caller_stops_early():
    """Its connection, for example, is closed at once and not when garbage is collected."""
    closed = []

    @tool
    async def numbers() -> AsyncGenerator[int, None]:
        """Numbers."""
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    def full(chunk):
        raise BufferError(chunk)

    async def run():
        with pytest.raises(ToolExecutionError, match="BufferError: 1"):
            await numbers.aexecute({}, full)
        return list(closed)

    assert asyncio.run(run()) == [True]


@pytest.mark.parametrize("leaving", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_no_tool_ends_more_than_its_call(leaving):
    """Through every door of sync and async code."""

    def leave():
        raise leaving

    made = Tool("leave", "Leave", [], leave)
    for run in (made.execute, lambda params: asyncio.run(made.aexecute(params))):
        with pytest.raises(ToolExecutionError):
            run({})
    with pytest.warns(DeprecationWarning, match="run_raw"):
        assert made.run({}).startswith("Error executing leave")


@pytest.mark.parametrize("kind", [Mock, MagicMock, AsyncMock])
def test_object_with_any_attribute_can_be_a_tool(kind):
    """A Mock has an attribute `func` without end; only that of a partial leads to the function."""
    made = Tool("t", "d", [], kind(return_value="called"))
    assert (made.execute({}), made.is_async) == ("called", kind is AsyncMock)


@pytest.mark.parametrize(
    "kind", [Mock, MagicMock]
)  # an AsyncMock has no signature in Python 3.11.2
def test_tool_can_be_made_from_a_mock(kind):
    """Its signature names no parameter."""
    assert Tool.from_function(kind(return_value="called"), "t", "d").execute({}) == "called"


def test_what_a_partial_binds_is_not_the_models():
    """Python would let a call overrule it."""

    def read(path: str, root: str = "/") -> str:
        """Read."""
        return root + path

    bound = Tool.from_function(functools.partial(read, root="/safe/"))
    assert list(bound.schema()["parameters"]["properties"]) == ["path"]
    assert bound.execute({"path": "a"}) == "/safe/a"
    refusal(bound, {"path": "a", "root": "/etc/"})


def test_tools_that_call_tools_never_wait_for_each_other():
    """More of them at once than there are threads, each through a sync and an async door."""
    slow = Tool("slow", "Slow", [], lambda: "s", metadata=ToolMetadata(timeout=60))

    def outer() -> str:
        return add.execute({"a": 1}) + slow.execute({})

    async def all_at_once():
        return await asyncio.gather(
            *(Tool("outer", "Outer", [], outer).aexecute({}) for _ in range(40))
        )

    assert set(asyncio.run(all_at_once())) == {"2s"}
