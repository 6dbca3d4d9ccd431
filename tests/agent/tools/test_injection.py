"""Injection: what the program hands a tool stays the program's, and an injector that fails harms its own tool only."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import pickle
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from sayso.agent import (
    Agent,
    AgentConfig,
    ScriptedProvider,
    Tool,
    ToolContext,
    ToolExecutionError,
    ToolParameterError,
    ToolPolicy,
    ToolValidationError,
    tool,
)
from sayso.agent.tools.errors import EffectUnknownError


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
    for door in (
        made.schema,
        lambda: made.execute({"what": "x"}),
        lambda: asyncio.run(made.aexecute({"what": "x"})),
    ):
        with pytest.raises(ToolExecutionError, match=words):
            door()


def test_injector_that_cannot_be_closed_takes_only_its_own_tool_away():
    """Its error is one of the tool, like that of an injector that cannot be opened."""

    @contextlib.contextmanager
    def injector():
        yield {"user": 7}
        raise OSError("connection lost")

    bot = Agent([echo, of_user(injector)], ScriptedProvider(["one"]))
    assert bot.run("hello").content == "one"
    assert [schema["name"] for schema in bot.provider.requests[0].tools] == ["echo"]


def test_injector_that_does_not_know_the_outcome_says_so_when_it_is_closed():
    """A commit without an answer is an unknown outcome, and not a failure."""

    @contextlib.contextmanager
    def injector():
        yield {"user": 7}
        raise EffectUnknownError("the commit gave no answer")

    with pytest.raises(EffectUnknownError, match="the commit gave no answer"):
        of_user(injector).execute({"what": "x"})


def test_injector_that_swallows_errors_and_yields_no_names_is_told_so():
    """Its context manager also gets the error that it yielded the wrong value."""

    @contextlib.contextmanager
    def injector():
        with contextlib.suppress(Exception):
            yield ["user"]

    with pytest.raises(ToolExecutionError, match="returned a list"):
        of_user(injector).execute({"what": "x"})


@contextlib.contextmanager
def failing_rollback():
    """Inject nothing, and lose the connection before the end."""
    try:
        yield
    finally:
        raise OSError("connection lost")


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (ValueError("no such thing"), ToolExecutionError, "config_injector of 'break_' failed: OSError"),
        (EffectUnknownError("no answer"), EffectUnknownError, "no answer"),
    ],
    ids=["failed", "unknown"],
)  # fmt: skip
def test_rollback_that_fails_is_an_error_of_the_injector(error, raised, words):
    """But it never turns an unknown effect into a mere failure."""

    @tool(config_injector=failing_rollback)
    def break_() -> str:
        """Fail."""
        raise error

    with pytest.raises(raised, match=words):
        break_.run_raw({})


def test_rollback_that_fails_does_not_hide_a_cancellation():
    """The caller who cancelled the call waits for its end."""

    @tool(config_injector=failing_rollback)
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(60)
        return "done"

    async def cancel() -> None:
        call = asyncio.create_task(wait.arun_raw({}))
        await asyncio.sleep(0.1)
        call.cancel()
        await call

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


def test_an_async_injector_is_refused_when_the_tool_is_made():
    """With the cure."""

    async def injector():
        return {}

    with pytest.raises(
        ToolValidationError, match="config_injector is async: give a plain function"
    ):
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
    with pytest.raises(
        ToolExecutionError, match=r"did not return \['bell'\], which no model fills"
    ):
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


def injected_lamp(preview: Any, injector: Any = None) -> Tool:
    """Return a tool with each kind of argument that no model fills."""

    def light(
        room: str,
        lamp: object,
        db: asyncio.Event,
        context: ToolContext,
        user: int = 0,
    ) -> str:
        """Light a lamp."""
        return f"{room} of {user}"

    more = {"config_injector": injector or (lambda: {"db": asyncio.Event(), "user": 7})}
    return tool(requires_approval=True, preview=preview, injected_kwargs={"lamp": 1}, **more)(light)


NAMING_INJECTED = {
    "in a template": lambda name: f"Light {{room}} {{{name}}}",
    "an item of it in a template": lambda name: f"Light {{room}} {{{name}[0]}}",
    "required by a function": lambda name: eval(f"lambda room, user, {name}: room"),
    "with a default": lambda name: eval(f"lambda room, user=0, {name}=None: room"),
}


@pytest.mark.parametrize("how", NAMING_INJECTED)
@pytest.mark.parametrize("name", ["lamp", "db", "context"])
def test_preview_that_names_an_injected_argument_is_refused_when_the_tool_is_made(
    name: str,
    how: str,
):
    """A yes is for what is stored; without the check each call would fail in front of a user."""
    with pytest.raises(
        ToolValidationError, match=rf"names the injected \['{name}'\].*look it up itself"
    ):
        injected_lamp(NAMING_INJECTED[how](name))


@pytest.mark.parametrize(
    "preview", ["Light {room} of {user}", lambda room, user: f"Light {room} of {user}"]
)
def test_preview_that_names_what_an_injector_fills_is_refused_once_that_is_known(preview: Any):
    """Until the injector is called, `user` may be the model's."""
    lamp = injected_lamp(preview)
    for use in (lamp.schema, lambda: lamp.draft({"room": "hall"})):
        with pytest.raises(ToolValidationError, match=r"names the injected \['user'\]"):
            use()


def test_tool_with_such_a_preview_is_left_out(caplog: pytest.LogCaptureFixture):
    """The other tools answer, and the log names the cure."""
    bot = Agent([echo, injected_lamp("Light {room} of {user}")], ScriptedProvider(["one"]))
    with caplog.at_level(logging.WARNING):
        assert bot.run("hello").content == "one"
    assert [(each.message, each.tool) for each in caplog.records] == [("tool.left_out", "light")]
    assert "names the injected ['user']" in caplog.records[0].why


def test_preview_with_a_context_of_its_own_is_fine():
    """Sayso fills it by its annotation, whatever its name."""

    def preview(room: str, ctx: ToolContext) -> str:
        return f"Light {room} for {ctx.person}"

    assert injected_lamp(preview).draft({"room": "hall"}).text == "Light hall for None"


@pytest.mark.parametrize(
    ("preview", "words"),
    [
        (lambda words, tone: words, r"needs unknown \['tone'\]; it has \['words'\]"),
        (
            lambda: "Say it",
            r"does not take \['words'\] by name: add them to its parameters, or \*\*_",
        ),
        (lambda words, /: words, r"does not take \['words'\] by name"),
        ("Say {tone}", r"uses unknown \['tone'\]; it has \['words'\]"),
    ],
)
def test_preview_that_could_never_be_made_is_refused_when_the_tool_is_made(
    preview: Any,
    words: str,
):
    """Each call would fail in front of a user."""
    with pytest.raises(ToolValidationError, match=words):
        dataclasses.replace(echo, preview=preview)


@pytest.mark.parametrize("preview", [lambda words, rates=(1, 2): words, lambda **all_: str(all_)])
def test_preview_may_have_defaults_of_its_own_or_take_anything(preview: Any):
    """A default is how a function in a loop keeps a value."""
    assert "hi" in dataclasses.replace(echo, preview=preview).draft({"words": "hi"}).text


@pytest.mark.parametrize("name", ["lamp", "db", "context"])
def test_rule_over_an_injected_argument_is_refused_when_the_agent_is_made(name: str):
    """A policy reads what the model sends, so such a rule would deny nothing."""
    policy = ToolPolicy(allow=["*"], deny_when=[{"tool": "li*", "arg": name, "pattern": "*"}])
    with pytest.raises(
        ValueError, match=f"{name!r} of 'light' is injected.*have the tool refuse it"
    ):
        Agent(
            [injected_lamp("Light {room}")], ScriptedProvider([]), AgentConfig(tool_policy=policy)
        )


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
    "hold",
    [list, Found, lambda found: {"a": found}, lambda found: Listing(best=found[0], others=found)],
)
def test_a_tool_inside_something_keeps_its_secrets(hold):
    """However it is written down: as what it is, without its function and what is injected."""
    held = hold([keyed()])
    texts = [Tool("t", "t", [], lambda: held).execute({}), to_json(held, fallback=str).decode()]
    for text in texts:
        assert '"name":"keyed"' in text.replace(": ", ":")
        assert not [
            word for word in ("s3cret", "<function", "injected", "callable") if word in text
        ]


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
