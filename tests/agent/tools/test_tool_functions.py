"""What a tool can be made of.

Functions of all kinds, tools themselves, and a plain line for everything else.
"""

from __future__ import annotations

import functools
from types import MethodType

import pytest

from sayso.agent import Agent, Tool, ToolRegistry, ToolValidationError, tool


@tool(requires_approval=True)
def delete(name: str, is_final: bool = False) -> str:
    """Delete something."""
    return f"{name} {is_final}"


class Till:
    """A till."""

    @tool
    def put(self, cents: int) -> str:
        """Put."""
        return f"{type(self).__name__} {cents}"

    @tool
    def whose(cls, guest: str) -> str:  # noqa: N805  # @classmethod stands above it where it is used
        """Whose it is."""
        return f"{cls.__name__} {guest}"


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


def test_a_tool_is_taken_unchanged():
    """By `from_function`, by a second decorator and by a registry: no option of it is lost."""
    assert Tool.from_function(delete) is delete
    assert tool(delete) is delete
    assert ToolRegistry().register(delete).requires_approval


def test_options_for_a_tool_are_refused_with_the_cure():
    """A second decorator would make another tool without the options of the first."""
    with pytest.raises(
        ToolValidationError, match=r"^'delete' is a tool already: .*dataclasses\.replace\("
    ) as refused:
        Tool.from_function(delete, name="remove")
    assert "ToolParameter" not in str(refused.value)
    with pytest.raises(ToolValidationError, match="'delete' is a tool already"):
        tool(read_only=True)(delete)


@pytest.mark.parametrize(
    "wrapped",
    [
        functools.partial(delete, is_final=True),
        functools.lru_cache(delete),
        functools.wraps(delete)(lambda **given: ""),
    ],
)
def test_no_tool_is_made_of_what_wraps_one(wrapped):
    """It would run without the approval of the tool inside."""
    with pytest.raises(
        ToolValidationError, match=r"^'delete' is wrapped by .*put @tool above that"
    ):
        Agent([wrapped])


def test_a_bound_method_of_a_tool_is_that_tool_for_its_class():
    """Python 3.13 makes one of @classmethod above @tool.

    Older versions bind the tool themselves.
    """
    bound = Tool.from_function(MethodType(vars(Till)["whose"], Till))
    assert bound.execute({"guest": "ana"}) == "Till ana"
    assert list(bound.schema()["parameters"]["properties"]) == ["guest"]


def test_a_method_without_its_instance_is_refused_where_it_is_used():
    """Each call of it would fail."""
    with pytest.raises(ToolValidationError, match="'put' is a method without its instance"):
        Agent([Till.put])
    assert Agent([Till().put]).tools[0].execute({"cents": 3}) == "Till 3"


class Bank:
    """A bank."""

    def transfer(self, cents: int, receiver: str) -> str:
        """Transfer money."""
        return f"{type(self).__name__} {cents} {receiver}"


def test_a_partial_of_a_method_without_its_instance_is_refused_too():
    """A model must not fill `self`. A partial that binds the instance is a tool."""
    with pytest.raises(ToolValidationError, match="'transfer' is a method without its instance"):
        Agent([functools.partial(Bank.transfer, cents=3)])
    for bound in (
        functools.partial(Bank.transfer, Bank(), cents=3),
        functools.partial(Bank.transfer, self=Bank(), cents=3),
        functools.partial(Bank().transfer, 3),
    ):
        made = Agent([bound]).tools[0]
        assert made.execute({"receiver": "ana"}) == "Bank 3 ana"
        assert list(made.schema()["parameters"]["properties"]) == ["receiver"]


def test_a_partial_has_the_name_of_its_function():
    """Two of them in one bot would both be called "partial"."""
    made = Tool.from_function(functools.partial(functools.partial(add, first=1)))
    assert (made.name, made.execute({"second": 2})) == ("add", "3")


async def later() -> str:
    """Wait."""
    return ""


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (Till, "the class 'Till': register its methods with ToolRegistry.register_from"),
        ("delete", r"type 'str': give options by name, as in @tool\(name='delete'\)"),
        (classmethod(add), "type 'classmethod': put @classmethod above @tool"),
        ([delete], "type 'list': give a function"),
        (None, "type 'NoneType': give a function"),
    ],
)
def test_what_is_no_function_is_refused_in_one_line(thing, words):
    """The line names the kind and the cure, and quotes no object."""
    with pytest.raises(
        ToolValidationError, match=f"^no tool can be made of (an object of )?{words}"
    ) as refused:
        Tool.from_function(thing)
    assert len(str(refused.value)) < 200


def test_a_call_in_place_of_a_function_is_refused():
    """An async function that was called has not run."""
    call = later()
    with pytest.raises(ToolValidationError, match="give the function without calling it"):
        tool(call)
    call.close()


def test_arguments_by_position_only_are_named():
    """Such as those of built-ins."""
    with pytest.raises(
        ToolValidationError, match=r"takes \['obj'\] by position only.*write a function around it"
    ):
        Tool.from_function(len)
