"""Errors and results of tools whose own code fails when their text is read.

They are private, and end no turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import BaseModel, model_serializer

from sayso.agent import (
    Agent,
    AgentConfig,
    AgentObserver,
    Ambiguous,
    NotFound,
    OfflineProvider,
    ScriptedProvider,
    Tool,
    ToolCall,
    tool,
)
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.tools.errors import EffectUnknownError, ToolError
from sayso.pending.executors import EffectFailed

SECRET = "4111 1111"


class Unreadable:
    """An object without a text."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


class Exits:
    """An object whose text ends the program."""

    def __str__(self) -> str:
        raise SystemExit(SECRET)


class BrokenToolError(Unreadable, ToolError):
    """A ToolError without a text."""


class BrokenError(Unreadable, Exception):
    """An exception without a text."""


class ExitingError(ToolError):
    """A ToolError whose text ends the program."""

    def __str__(self) -> str:
        raise SystemExit(SECRET)


class NumberError(ToolError):
    """A ToolError whose text is none."""

    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307  # the mistake


class BrokenWords(ToolError):
    """A ToolError whose words for people fail."""

    @property
    def words_for_person(self) -> str:
        """Fail."""
        raise RuntimeError(SECRET)


class MockedWords(ToolError):
    """A ToolError whose words for people only look like text, as mocks in tests do."""

    words_for_person: str = Mock(spec=str)


class BrokenUnknown(Unreadable, EffectUnknownError):
    """An unknown effect without a text."""


class BrokenModel(BaseModel):
    """A model that cannot be written down."""

    @model_serializer
    def fail(self) -> dict[str, Any]:
        """Fail."""
        raise RuntimeError(SECRET)


ERRORS = [
    BrokenToolError("x"),
    BrokenError("x"),
    ExitingError("x"),
    NumberError("x"),
    ToolError(Unreadable()),
]
VALUES = [Unreadable(), BrokenModel(), {"a": Unreadable()}]


def bot_of(run: Callable[[], Any], preview: Any = None, **config: Any) -> ChannelAgent:
    """Return a bot with one tool that asks first."""

    @tool(requires_approval=True, preview=preview)
    def pay() -> Any:
        """Pay."""
        return run()

    return ChannelAgent(Agent([pay], OfflineProvider(), AgentConfig(**config)))


def failing(error: Exception) -> Callable[[], Any]:
    """Return a function that raises the error."""

    def fail() -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [*ERRORS, BrokenWords("x"), MockedWords("x")], ids=lambda error: type(error).__name__
)
def test_error_without_a_text_is_private_after_a_yes(
    error: Exception,
    caplog: pytest.LogCaptureFixture,
):
    """The person reads its type and a reference; the log has the traceback under that reference."""
    bot = bot_of(failing(error))
    bot.ask_channel("ana", "/pay")
    content = bot.ask_channel("ana", "yes").content
    assert f"({type(error).__name__})" in content
    assert SECRET not in content
    (failed,) = [each for each in caplog.records if each.message == "pending.failed"]
    assert vars(failed)["reference"] in content
    assert failed.exc_info


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_model_is_told_of_an_error_without_a_text(
    error: Exception,
    caplog: pytest.LogCaptureFixture,
):
    """The run goes on, as after any other exception, and an operator finds the traceback."""

    @tool
    def look() -> str:
        """Look."""
        raise error

    provider = ScriptedProvider([ToolCall("look"), "It did not work."])
    assert Agent([look], provider).run("look").content == "It did not work."
    told = provider.requests[1].messages[-1].content
    assert told == f"Error executing tool 'look': {type(error).__name__}: (its text cannot be read)"
    assert [each.levelname for each in caplog.records if each.message == "tool.failed"] == ["ERROR"]


def test_unknown_effect_without_a_text_stays_unknown():
    """It must not be told as a failure, after which the person would try again."""
    bot = bot_of(failing(BrokenUnknown("x")))
    bot.ask_channel("ana", "/pay")
    outcome = bot.ask_channel("ana", "yes").content
    assert "check" in outcome.lower()
    assert "reference" not in outcome.lower()


def test_unknown_undo_without_a_text_stays_unknown():
    """The undo may have taken effect, so it is no failure."""
    delete = Tool("delete", "Delete.", {"type": "object"}, str, undo=failing(BrokenUnknown("x")))
    with pytest.raises(EffectUnknownError, match="does not know whether it took effect"):
        asyncio.run(delete.aundo_raw({}))


def test_executor_error_without_a_text_is_private():
    """EffectFailed is for people; where it has no text they read its type."""

    class BrokenFailure(Unreadable, EffectFailed):
        """An EffectFailed without a text."""

    bot = bot_of(lambda: "")
    bot.store.register_executor_factory("pay", lambda _: failing(BrokenFailure("x")))
    bot.ask_channel("ana", "/pay")
    assert "(BrokenFailure)" in bot.ask_channel("ana", "yes").content


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_result_without_a_text_is_no_failure(value: Any, caplog: pytest.LogCaptureFixture):
    """The tool has acted: its person reads that it is done, and its author finds why the result has no text."""
    bot = bot_of(lambda: value)
    bot.ask_channel("ana", "/pay")
    content = bot.ask_channel("ana", "yes").content
    assert content.startswith("Done")
    assert SECRET not in content
    (unreadable,) = {each.message for each in caplog.records if each.exc_info}
    assert unreadable == "tool.result_unreadable"


def test_result_of_an_executor_without_a_text_is_no_failure():
    """It took effect, as the executor returned."""
    bot = bot_of(lambda: "")
    bot.store.register_executor_factory("pay", lambda _: Unreadable)
    bot.ask_channel("ana", "/pay")
    assert bot.ask_channel("ana", "yes").content.startswith("Done")


@pytest.mark.parametrize("value", [NotFound("guest", Exits()), Ambiguous("guest", "Bo", [Exits()])])
def test_missing_target_without_a_text_ends_no_process_and_did_nothing(value: Any):
    """Its type says that nothing was done, whatever its text is."""
    bot = bot_of(lambda: value)
    bot.ask_channel("ana", "/pay")
    content = bot.ask_channel("ana", "yes").content
    assert not content.startswith("Done")
    assert SECRET not in content


@pytest.mark.parametrize(
    "preview",
    [
        failing(BrokenToolError("x")),
        failing(BrokenWords("x")),
        Unreadable,
        lambda: NotFound("a", Unreadable()),
    ],
)
def test_preview_without_a_text_asks_nothing_and_is_private(
    preview: Any,
    caplog: pytest.LogCaptureFixture,
):
    """A raised error, a returned object and a typed result alike."""
    content = bot_of(lambda: "", preview=preview).ask_channel("ana", "/pay").content
    assert "nothing was asked" in content
    assert "reference" in content
    assert SECRET not in content
    assert [each.levelname for each in caplog.records if each.message == "tool.failed"] == ["ERROR"]


def test_refusal_without_a_text_says_its_kind():
    """NotFound means that nothing was done: "done" would be a lie."""

    @tool
    def find() -> NotFound:
        """Find."""
        return NotFound("guest", Unreadable())  # type: ignore[arg-type]

    provider = ScriptedProvider([ToolCall("find"), "None."])
    Agent([find], provider).run("find")
    assert provider.requests[1].messages[-1].content == '{"kind": "not_found"}'


def test_observers_get_an_error_without_a_text():
    """The trace has a note in place of its text."""
    seen: list[str] = []

    class Watch(AgentObserver):
        def on_tool_error(
            self,
            run_id: str,
            call_id: str,
            tool_name: str,
            error: BaseException,
            *_: Any,
        ) -> None:
            """Record the type."""
            seen.append(type(error).__name__)

    bot = bot_of(failing(BrokenToolError("x")), observers=[Watch()])
    bot.ask_channel("ana", "/pay")
    bot.ask_channel("ana", "yes")
    assert seen == ["BrokenToolError"]
