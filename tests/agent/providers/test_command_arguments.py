"""Commands with JSON.

An object holds the arguments by name, and what cannot be read is told in one plain line.
"""

from __future__ import annotations

from typing import Any

import pytest

from sayso.agent import Agent, OfflineProvider, Tool, tool


@tool
def add(first: int, second: int = 1) -> str:
    """Add."""
    return f"sum {first + second}"


@tool
def note(text: str, limit: int = 0) -> str:
    """Note."""
    return f"{limit}: {text}"


@tool
def each(items: list[int]) -> str:
    """Count."""
    return f"{len(items)} items"


@tool
def store(data: dict[str, Any]) -> str:
    """Store."""
    return ", ".join(data)


@tool
def plain(size: int = 3) -> str:
    """Show."""
    return f"size {size}"


def reply(text: str) -> str:
    """Return the answer to a message."""
    return Agent([add, note, each, store, plain], OfflineProvider()).run(text).content


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('/add {"first": 1, "second": 2}', "sum 3"),
        ('/add\n{"first": 1}', "sum 2"),
        ('/add@the_bot {"first": 1}', "sum 2"),
        ('/note {"text": "a b", "limit": 2}', "2: a b"),
        ('/each {"items": [1, 2]}', "2 items"),
        ("/each [1, 2]", "2 items"),
        ("/each []", "0 items"),
        ('/store {"a": 1, "b": 2}', "a, b"),
        ('/store {"data": {"a": 1}}', "a"),
        ('/store data={"a": 1}', "a"),
        ("/plain {}", "size 3"),
        ('/plain {"size": 4}', "size 4"),
    ],
)
def test_json_is_read_as_the_arguments(text: str, answer: str):
    """An object by name; a list or an object without such a name is the first required argument."""
    assert reply(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("/note [draft] call Bob limit=2", "2: \\[draft] call Bob"),
        ("/note {draft} x", "0: {draft} x"),
        ('/note {"a": "b"}', "0: a b"),
        ('/note text=["a", "b"]', '0: \\["a", "b"]'),
        ("/note [1] limit=2", "2: \\[1]"),
    ],
)
def test_words_that_begin_like_json_are_text_where_text_is_wanted(text: str, answer: str):
    """With all of their quotes, if they are whole JSON. People read an object in words."""
    assert reply(text).replace("\\]", "]") == answer


@pytest.mark.parametrize(
    ("text", "issue"),
    [
        ("/add [1, 2]", "a list gives no names to its values; write first=... or second=..."),
        ('/add {"third": 1}', "it has no 'third'; write first=..."),
        ('/add {"first": 1} and more', "there is more behind its JSON: 'and more'; write"),
        ('/add {"first": 1', "its JSON cannot be read (Expecting ',' delimiter); write"),
        ("/add {first: 1}", "its JSON cannot be read (Expecting property name"),
        ("/add {“first”: 1}", "its JSON cannot be read (Expecting property name"),
        ('/add {"first": 1, "first": 2}', "its JSON cannot be read (a name is there twice)"),
        ('/add {"first": NaN}', "its JSON cannot be read (NaN is no JSON)"),
        ("/add " + "[" * 100_000, "its JSON cannot be read (it is nested too deep)"),
        ("/each " + "[" * 100_000, "its JSON cannot be read (it is nested too deep)"),
        ('/note {"text": "x"', "its JSON cannot be read (Expecting ',' delimiter)"),
        ('/note {"text": 3}', "'text' is 3: Input should be a valid string"),
        ("/add null", "'first' is None: Input should be a valid integer"),
        ("/plain [1]", "a list gives no names to its values; write size=..."),
        ("/plain 5", "'5' has no name; write size=..."),
    ],
)
def test_json_that_cannot_be_used_is_told_in_one_plain_line(text: str, issue: str):
    """The line names what is wrong and an example; nothing runs."""
    name = text[1:].split()[0]
    answer = reply(text)
    assert answer.startswith(f"{name} cannot run like this: {issue}")
    assert f" For example: /{name}" in answer
    assert "\n" not in answer
    assert len(answer) < 300


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('/raw {"x": 1}', "{'data': {'x': 1}}"),
        ("/raw null", "{'data': None}"),
        ("/raw [1]", "a list gives no names"),
    ],
)
def test_parameter_that_may_be_null_is_read_by_its_other_type(text: str, shown: str):
    """The schemas of MCP servers and of OpenAPI documents have such parameters."""
    schema = {
        "type": "object",
        "properties": {"data": {"type": ["object", "null"]}},
        "required": ["data"],
    }
    raw = Tool("raw", "Show.", schema, lambda **given: f"`{given}`")
    assert shown in Agent([raw], OfflineProvider()).run(text).content


@pytest.mark.parametrize("text", ["/raw a b", '/raw {"a": 1}', "/raw data={}"])
def test_required_name_without_a_schema_is_told_in_one_plain_line(text: str):
    """A schema may require a name that its properties leave out: no call can fulfill it."""
    raw = Tool("raw", "Show.", {"type": "object", "required": ["data"]}, dict)
    assert (
        Agent([raw], OfflineProvider()).run(text).content.startswith("raw cannot run like this: ")
    )


def test_empty_object_names_what_is_missing():
    """It has no arguments."""
    assert reply("/note {}") == "note needs text. For example: /note text=..."
