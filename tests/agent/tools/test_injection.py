"""Injection: what the program hands a tool stays the program's, and an injector that fails harms its own tool only."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import pickle

import pytest
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from sayso.agent import Agent, ScriptedProvider, Tool, ToolExecutionError, ToolParameterError, ToolValidationError, tool


@tool
def echo(words: str) -> str:
    """Say it again."""
    return words


def refuse(why: BaseException):
    """An injector that raises."""

    def injector():
        raise why

    return injector


def of_user(injector, **options):
    """A tool whose user is injected."""

    def mine(what: str, user: int = 0) -> str:
        """Whose it is."""
        return f"{what} of {user}"

    return tool(config_injector=injector, **options)(mine)


def test_a_failing_injector_takes_only_its_own_tool_away(caplog):
    """The turn is answered without it; that is told once, and it is back as soon as it works."""
    state: dict[str, object] = {"works": False}

    def injector():
        if not state["works"]:
            raise OSError("no database")
        return {"user": 7}

    bot = Agent([echo, of_user(injector)], ScriptedProvider(["one", "two", "three"]))
    with caplog.at_level(logging.WARNING):
        assert [bot.run("hello").content, bot.run("hello").content] == ["one", "two"]
    assert [(each.message, each.tool) for each in caplog.records] == [("tool.left_out", "mine")]
    state["works"] = True
    bot.run("hello")
    shown = [[schema["name"] for schema in request.tools] for request in bot.provider.requests]
    assert shown == [["echo"], ["echo"], ["echo", "mine"]]


@pytest.mark.parametrize(
    ("injector", "words"),
    [
        (lambda: ["user"], "returned a list"),
        (lambda: "user", "returned a str"),
        (lambda: asyncio.sleep(0), "returned a coroutine"),
        (lambda: {1: 2}, "returned a dict"),
        (refuse(SystemExit()), "SystemExit"),
        (refuse(asyncio.CancelledError()), "CancelledError"),
    ],
)
def test_whatever_an_injector_does_is_an_error_of_its_tool(injector, words):
    """Through each door: nothing of it ends more than the call."""
    made = of_user(injector)
    for door in (made.schema, lambda: made.execute({"what": "x"}), lambda: asyncio.run(made.aexecute({"what": "x"}))):
        with pytest.raises(ToolExecutionError, match=words):
            door()


def test_an_async_injector_is_refused_when_the_tool_is_made():
    """With the cure."""

    async def injector():
        return {}

    with pytest.raises(ToolValidationError, match="config_injector is async: give a plain function"):
        of_user(injector)


def test_a_name_that_is_injected_later_is_hidden_from_then_on():
    """Also when it is left out again: the model never takes its place."""
    current: dict[str, int] = {}
    made = of_user(lambda: current)
    assert made.execute({"what": "cat"}) == "cat of 0"
    current["user"] = 7
    assert made.execute({"what": "cat"}) == "cat of 7"
    current.clear()
    assert list(made.schema()["parameters"]["properties"]) == ["what"]
    with pytest.raises(ToolParameterError, match="'user' is not a valid parameter"):
        made.execute({"what": "cat", "user": 8})


def test_what_no_model_can_fill_is_left_to_the_injector():
    """It is hidden, so that the tool can be shown. A call fails with a clear error if the injector leaves it out."""
    made: dict[str, object] = {"user": 7}

    @tool(config_injector=lambda: made)
    def listen(words: str, bell: asyncio.Event, user: int) -> str:
        """Listen."""
        return f"{words} {user} {bell.is_set()}"

    assert list(listen.schema()["parameters"]["properties"]) == ["words"]
    with pytest.raises(ToolExecutionError, match=r"did not return \['bell'\], which no model fills"):
        listen.execute({"words": "x"})
    made["bell"] = asyncio.Event()
    assert listen.execute({"words": "x"}) == "x 7 False"


def test_what_is_injected_cannot_be_changed():
    """A tool is everybody's."""
    given = {"user": 7}
    made = of_user(None, injected_kwargs=given)
    with pytest.raises(TypeError):
        made.injected_kwargs["user"] = 8
    given["user"] = 9
    assert made.execute({"what": "cat"}) == "cat of 7"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(made.injected_kwargs)


class Listing(BaseModel):
    """A custom result."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    best: Tool
    others: list[object]


@dataclasses.dataclass
class Found:
    """Another one."""

    tools: object


@pytest.mark.parametrize(
    "hold", [list, Found, lambda found: {"a": found}, lambda found: Listing(best=found[0], others=found)]
)
def test_a_tool_inside_something_keeps_its_secrets(hold):
    """However it is written down: as what it is, without its function and what is injected."""
    held = hold([keyed()])
    texts = [Tool("t", "t", [], lambda: held).execute({}), to_json(held, fallback=str).decode()]
    for text in texts:
        assert '"name":"keyed"' in text.replace(": ", ":")
        assert not [word for word in ("s3cret", "<function", "injected", "callable") if word in text]


def test_asdict_shows_names_and_no_values():
    """It hands out Python objects, the function too; but what is injected does not show itself."""
    told = json.dumps(dataclasses.asdict(keyed()), default=str)
    assert "<injected: key>" in told
    assert "s3cret" not in told


def keyed() -> Tool:
    """A tool with a secret."""

    def keyed(what: str, key: str) -> str:
        """Open it."""
        return what + key

    return tool(injected_kwargs={"key": "s3cret"})(keyed)
