"""Functions beside a tool.

Its undo, its preview and its reconciler, and what is refused when the tool is defined.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from sayso.agent import Tool, ToolExecutionError, ToolValidationError, tool


@tool
def restore(name: str) -> str:
    """Restore."""
    return f"restored {name}"


def made(**options: Any) -> Tool:
    """Return a tool with these options."""
    return Tool(
        "delete",
        "Delete.",
        {"type": "object", "properties": {"name": {"type": "string"}}},
        dict,
        **options,
    )


def undo(given: Any, **options: Any) -> Any:
    """Return what the undo of a call returns."""
    return asyncio.run(made(undo=given, **options).aundo_raw({"name": "A"}, "deleted A"))


def test_a_tool_can_be_the_undo_or_the_preview_of_another():
    """Its function is called."""
    assert undo(restore) == "restored A"
    assert made(preview=restore).draft({"name": "A"}).text == "restored A"
    assert made(reconcile=restore).reconcile is restore.function


def test_undo_with_keywords_gets_all_arguments():
    """The result of the call as well."""
    assert undo(lambda **given: sorted(given)) == ["name", "result"]


@pytest.mark.parametrize(
    "options",
    [{"injected_kwargs": {"base": "db"}}, {"config_injector": lambda: {"base": "db"}}],
    ids=["fixed", "now"],
)
def test_undo_gets_injected_arguments(options: dict[str, Any]):
    """Those of the call that it takes back."""
    assert undo(lambda name, base="": f"{name} in {base}", **options) == "A in db"


def test_undo_whose_injector_fails_keeps_the_cause():
    """So that its text stays private."""

    def connect() -> dict[str, Any]:
        raise ConnectionError("secret")

    with pytest.raises(ToolExecutionError) as failed:
        undo(lambda name: name, config_injector=connect)
    assert isinstance(failed.value.error, ConnectionError)
    assert failed.value.words_for_person == ""


def yielding(name: str) -> Iterator[str]:
    """Yield."""
    yield name


async def yielding_later(name: str) -> AsyncIterator[str]:
    """Yield."""
    yield name


def by_position(name: str, /) -> str:
    """Restore."""
    return name


@pytest.mark.parametrize(
    ("options", "issue"),
    [
        ({"undo": yielding}, "its undo yields: return the text"),
        ({"undo": yielding_later}, "its undo yields: return the text"),
        ({"reconcile": yielding}, "its reconcile yields: return the text"),
        ({"undo": by_position}, r"undo of 'delete' takes \['name'\] by position only"),
        ({"undo": max}, "undo of 'delete' is a built-in"),
        ({"undo": "restore"}, "its undo is of type str: give a function"),
        ({"reconcile": 3}, "its reconcile is of type int: give a function"),
        ({"preview": 3}, "its preview is of type int: give a template or a function"),
    ],
)
def test_what_could_not_be_called_is_refused_when_the_tool_is_defined(
    options: dict[str, Any],
    issue: str,
):
    """An undo that yields would run none of its code, and be told as done."""
    with pytest.raises(ToolValidationError, match=issue):
        made(**options)


@pytest.mark.parametrize("given", [lambda result: result, lambda **given: given])
def test_undo_that_could_mistake_the_result_for_an_argument_is_refused(given: Any):
    """A tool with an argument `result` would be undone with what it returned."""
    with pytest.raises(ToolValidationError, match="an argument of the tool and also what the tool"):
        Tool(
            "record",
            "Record.",
            {"type": "object", "properties": {"result": {"type": "string"}}},
            dict,
            undo=given,
        )
