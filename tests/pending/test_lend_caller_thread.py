"""OwnLoop: a sync caller lends its thread to its tools, whatever they do in it."""

from __future__ import annotations

import asyncio
import contextvars
import multiprocessing
import sys
import threading
from collections.abc import Callable

import pytest

from sayso.agent import Agent, AgentConfig, AgentResult, ScriptedProvider, ToolCall, tool
from sayso.pending.concurrency import thread_loop


def agent_with(function: Callable[[], str]) -> Agent:
    """An agent that calls this function once."""
    named = tool(name="act", description="Act.")(function)
    return Agent([named], ScriptedProvider([ToolCall("act", {}, "c1"), "done"]), AgentConfig(max_retries=0))


def told(result: AgentResult) -> str:
    """What its model was told of the call."""
    return result.messages[2].content


def in_whose_thread() -> str:
    """The name of the thread that the tool is run in."""
    return threading.current_thread().name


def test_agent_inside_a_tool_leaves_the_run_around_it_alone():
    """Three deep, each in the one thread that all of them were lent."""
    inmost = agent_with(in_whose_thread)
    middle = agent_with(lambda: told(inmost.run("go")))
    result = agent_with(lambda: told(middle.run("go"))).run("go")
    assert (told(result), result.content) == ("MainThread", "done")


def test_tool_may_ask_another_agent_twice():
    """The second time on the loop that was kept from the first."""
    inner = [agent_with(in_whose_thread), agent_with(in_whose_thread)]
    result = agent_with(lambda: " ".join(told(each.run("go")) for each in inner)).run("go")
    assert told(result) == "MainThread MainThread"


@pytest.mark.parametrize("exit_", [SystemExit(3), GeneratorExit(), asyncio.CancelledError()])
def test_tool_that_wants_to_end_more_than_itself_ends_only_itself(exit_):
    """As in a thread of its own: the model is told, and the caller goes on."""

    def quits() -> str:
        raise exit_

    result = agent_with(quits).run("go")
    assert f"Escaped: it raised {type(exit_).__name__}" in told(result)
    assert result.content == "done"


def test_interrupt_at_the_terminal_reaches_the_caller():
    """Whoever presses Ctrl+C means the program; the next run is not harmed."""

    def interrupted() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        agent_with(interrupted).run("go")
    assert agent_with(in_whose_thread).run("go").content == "done"


def test_tool_that_runs_a_loop_of_its_own_is_lent_nothing_there():
    """The loop that waits for it is not the one that runs the agent inside."""
    inner = agent_with(in_whose_thread)
    result = agent_with(lambda: told(asyncio.run(inner.arun("go")))).run("go")
    assert told(result) == "sayso-tool"


def test_thread_that_has_the_callers_context_is_lent_nothing():
    """It is not the thread that waits."""
    inner, heard = agent_with(in_whose_thread), []

    def starts() -> str:
        run = contextvars.copy_context().run
        thread = threading.Thread(target=run, args=(lambda: heard.append(told(asyncio.run(inner.arun("go")))),))
        thread.start()
        thread.join()
        return heard[0]

    assert told(agent_with(starts).run("go")) == "sayso-tool"


def test_process_that_was_forked_inside_a_tool_has_a_loop_of_its_own():
    """It has its parent's thread, and may run agents in it."""
    inner = agent_with(in_whose_thread)

    def child() -> None:
        sys.exit(0 if inner.run("go").content == "done" else 1)

    def forks() -> str:
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        return str(process.exitcode)

    assert told(agent_with(forks).run("go")) == "0"


def test_loop_is_kept_from_call_to_call():
    """Also the one that was needed beside it."""
    kept = []
    agent_with(lambda: str(kept.append(thread_loop()))).run("go")
    agent_with(lambda: str(kept.append(thread_loop()))).run("go")
    assert kept[0] is kept[1] is not thread_loop()
