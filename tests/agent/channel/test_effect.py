"""Effect: a worker that dies before the effect of a tool runs it once more; after it, nothing repeats it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.exceptions import RedisError

from sayso.agent import AgentConfig, ToolContext, tool
from sayso.agent.run.unknown_outcomes import UNKNOWN_OUTCOME
from sayso.channels.types import Button
from sayso.infra.concurrency import run_without_loop
from sayso.pending import current_context, executor_factory
from sayso.workers.turn_processor import MAX_TURN_ATTEMPTS
from tests.contracts.rigs import CHAT, ENGLISH, Rig
from tests.workers.story import Mortal, Story, call, playing

#: What the person reads of an action whose worker died after its effect had begun.
UNKNOWN = ENGLISH.unknown("Wire {}")
OPTIONS = {"requires_approval": True, "preview": "Wire {what}", "marks_effect": True}


@tool(**OPTIONS)
async def wire(what: str, context: ToolContext) -> str:
    """Wire money."""
    await prepare(what)
    async with context.effect():
        return await playing.get().act("wire", what)


@tool(name="wire", **OPTIONS)
def wire_in_thread(what: str, context: ToolContext) -> str:
    """Wire money."""
    asyncio.run(prepare(what))
    with context.effect():
        return asyncio.run(playing.get().act("wire", what))


@tool(name="wire", **OPTIONS)
async def wire_never(what: str, context: ToolContext) -> str:
    """Wire nothing."""
    await prepare(what)
    return f"nothing to wire to {what}"


@tool(marks_effect=True)
async def send(what: str, context: ToolContext) -> str:
    """Send, without a question."""
    await prepare(what)
    await context.effect_begins()
    return await playing.get().act("send", what)


@tool(name="send", marks_effect=True)
def send_in_thread(what: str, context: ToolContext) -> str:
    """Send, without a question."""
    asyncio.run(prepare(what))
    with context.effect():
        return asyncio.run(playing.get().act("send", what))


async def prepare(what: str) -> None:
    """Do what may be repeated."""
    story = playing.get()
    story.life.at(f"before prepare {what}")
    story.prepared.append(what)
    story.life.at(f"after prepare {what}")


def elsewhere(function: Callable[[], object]) -> None:
    """Run a function while this worker stands still."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


class EffectStory(Story):
    """A story whose workers may also die at each step of a pending action."""

    def __init__(self, rig, tools, *lines) -> None:
        super().__init__(rig, list(lines), parallel_tool_execution=False)
        self.tools, self.prepared = tools, []
        self.actions = rig.store.repository

    def work(self) -> bool:
        """Let a worker process all turns. Return False if it was killed."""
        self.rig.store.settlement._repository = Mortal(self.actions, self.life)
        return super().work()

    def ask(self) -> None:
        """Let the bot ask its question."""
        self.hear("wire it")
        assert self.work()

    def confirm(self, *deaths: str) -> str:
        """Say yes. A worker dies at each of these steps. Return the last text that arrived."""
        self.hear("yes")
        for name in deaths:
            self.life.names = {name}
            assert not self.work(), f"nothing came to {name!r}: {self.life.steps}"
        return self.work_on()

    @property
    def buttons(self) -> tuple[Button, ...]:
        """Return the buttons of the question."""
        return next(each.reply.buttons for each in self.channel.sent if each.reply.buttons)


@pytest.fixture
def make_story():
    """Return a function that makes a story with tools and lines."""
    return lambda tools, *lines: EffectStory(Rig(), tools, *lines)


WIRE_A = (call("wire", what="a"),)
FORMS = pytest.mark.parametrize("form", [wire, wire_in_thread], ids=["async", "thread"])


@FORMS
@pytest.mark.parametrize("death", ["after start", "during wire a", "after wire a", "before finish"])
def test_worker_killed_after_the_effect_began_is_not_repeated(make_story, form, death):
    """From the note on nothing runs the tool again, whether the effect happened or not."""
    story = make_story([form], WIRE_A)
    story.ask()
    assert story.confirm(death) == UNKNOWN.format("a")
    assert (story.prepared, story.begun["a"] <= 1) == (["a"], True)


@FORMS
@pytest.mark.parametrize(
    "death", ["after claim", "before prepare a", "after prepare a", "before start"]
)
def test_worker_killed_before_the_effect_runs_it_once_more(make_story, form, death):
    """The preparation is repeated, and the effect happens once."""
    story = make_story([form], WIRE_A)
    story.ask()
    assert story.confirm(death, death) == "wire a ok"
    assert (story.begun["a"], story.ended["a"], len(set(story.keys["a"]))) == (1, 1, 1)


def test_worker_killed_after_the_result_reports_it(make_story):
    """The result is stored."""
    story = make_story([wire], WIRE_A)
    story.ask()
    assert story.confirm("after finish") == "wire a ok"
    assert (story.prepared, story.begun["a"]) == (["a"], 1)


@FORMS
def test_worker_that_was_overtaken_in_its_preparation_does_nothing(make_story, form):
    """It wakes up after another worker did it all, and is refused."""
    story = make_story([form], WIRE_A)
    story.ask()
    story.hear("yes")
    start, starts = story.actions.start, []

    async def overtaken(*args):
        starts.append(args)
        if len(starts) == 1:
            elsewhere(story.rig.end_lease)
            elsewhere(story.work)
        return await start(*args)

    story.actions.start = overtaken
    story.work()
    assert (story.prepared, story.begun["a"], story.channel.texts[-1]) == (
        ["a", "a"],
        1,
        "wire a ok",
    )
    assert sum("wire a ok" in text for text in story.channel.texts) == 1


def test_tool_that_kills_each_worker_in_its_preparation_is_given_up(make_story):
    """The person reads that nothing was done, which is true."""
    story = make_story([wire], WIRE_A)
    story.ask()
    assert story.confirm(*["after prepare a"] * MAX_TURN_ATTEMPTS).startswith(
        ENGLISH.unsafe("Wire a")
    )
    assert (len(story.prepared), story.begun["a"]) == (MAX_TURN_ATTEMPTS, 0)


def test_effect_that_redis_cannot_note_does_not_happen(make_story):
    """The tool fails before its effect, and the person hears of the failure when Redis answers again."""
    story = make_story([wire], WIRE_A)
    story.ask()
    story.hear("yes")
    start, refusals = story.actions.start, [RedisError("away")]

    async def away(*args):
        if refusals:
            raise refusals.pop()
        return await start(*args)

    story.actions.start = away
    assert story.work()
    assert story.channel.texts[-1].startswith(ENGLISH.failed("Wire a"))
    assert story.begun["a"] == 0


def test_effect_whose_note_was_stored_unheard_begins(make_story):
    """The answer of Redis was lost: asked again, it gives the same one."""
    story = make_story([wire], WIRE_A)
    story.ask()
    start = story.actions.start

    async def asked_twice(*args):
        await start(*args)
        return await start(*args)

    story.actions.start = asked_twice
    assert (story.confirm(), story.begun["a"]) == ("wire a ok", 1)


def test_tool_that_never_begins_its_effect_is_done(make_story):
    """Killed before its result is stored, it runs again: it was preparation alone."""
    story = make_story([wire_never], WIRE_A)
    story.ask()
    assert story.confirm("before start") == "nothing to wire to a"
    assert story.prepared == ["a", "a"]
    assert [entry["event"] for entry in story.rig.audit()][-3:] == ["claimed", "started", "done"]


def test_plan_goes_on_at_the_step_that_was_being_prepared(make_story):
    """The first step is not repeated, and the second one happens once."""
    story = make_story([wire], (call("wire", what="a"), call("wire", what="b")))
    story.ask()
    assert "wire b ok" in story.confirm("after prepare b")
    assert (story.prepared, story.begun["a"], story.begun["b"]) == (["a", "b", "b"], 1, 1)


def test_plan_reports_the_step_whose_effect_had_begun(make_story):
    """What follows that step is not started."""
    story = make_story([wire], (call("wire", what="a"), call("wire", what="b")))
    story.ask()
    told = story.confirm("during wire a")
    assert ENGLISH.unknown("Wire a").splitlines()[0] in told or "cannot tell" in told
    assert (story.begun["a"], story.prepared) == (1, ["a"])


def test_reconciler_is_asked_only_about_an_effect_that_began(make_story):
    """Before it the answer is known: nothing was done."""
    asked = []

    def was_wired(record) -> bool:
        asked.append(record.args["what"])
        return True

    @tool(name="wire", reconcile=was_wired, **OPTIONS)
    async def asking(what: str, context: ToolContext) -> str:
        """Wire money."""
        return await wire.function(what, context)

    story = make_story([asking], WIRE_A, WIRE_A)
    story.ask()
    assert (story.confirm("after prepare a"), asked) == ("wire a ok", [])
    story.ask()
    assert (story.confirm("during wire a"), asked) == (ENGLISH.done("Wire a", ""), ["a"])


def test_preparation_that_takes_too_long_has_failed_and_does_nothing_later(make_story):
    """Its thread goes on, and may not begin the effect any more."""
    goes_on, has_ended, done = threading.Event(), threading.Event(), []

    @tool(**OPTIONS)
    def slow(what: str, context: ToolContext) -> None:
        """Wire money."""
        goes_on.wait()
        try:
            with context.effect():
                done.append(what)
        finally:
            has_ended.set()

    story = make_story([slow], (call("slow", what="a"),))
    story.ask()
    story.rig.store.settlement._timeout_seconds = 0.01
    assert story.confirm() == ENGLISH.failed("Wire a")
    goes_on.set()
    assert has_ended.wait(60)
    assert done == []


def test_declared_factory_says_where_its_effect_begins(make_story):
    """What it rebuilds runs once more if its worker died before that."""

    @executor_factory("wire", marks_effect=True)
    def rebuild(action):
        async def execute() -> str:
            await prepare("a")
            async with current_context().effect():
                return await playing.get().act("wire", "a")

        return execute

    story = make_story([wire], WIRE_A)
    story.rig.store.register_executor_factory("wire", rebuild)
    story.ask()
    assert story.confirm("after prepare a") == "wire a ok"
    assert (story.prepared, story.begun["a"]) == (["a", "a"], 1)


def test_factory_that_declares_nothing_is_not_repeated(make_story):
    """It runs in place of the tool, whatever the tool declares."""
    story = make_story([wire], WIRE_A)
    story.rig.store.register_executor_factory("wire", lambda _: lambda: asyncio.run(prepare("a")))
    story.ask()
    assert story.confirm("after prepare a") == UNKNOWN.format("a")
    assert story.prepared == ["a"]


SEND_A = (call("send", what="a"),)
SENDERS = pytest.mark.parametrize("form", [send, send_in_thread], ids=["async", "thread"])


@SENDERS
def test_call_without_a_question_is_not_repeated_after_its_effect_began(make_story, form):
    """The model reads that the outcome is unknown."""
    story = make_story([form], SEND_A, "all done")
    story.killed_at("during send a")
    assert (story.prepared, story.begun["a"], story.model.seen[-1]) == (["a"], 1, [UNKNOWN_OUTCOME])


@SENDERS
def test_call_without_a_question_runs_again_before_its_effect(make_story, form):
    """The model reads its result, and is asked for the call once."""
    story = make_story([form], SEND_A, "all done")
    assert story.killed_at("after prepare a", "before prepare a") == "all done"
    assert (story.begun["a"], story.model.seen[-1], story.model.asked[0]) == (1, ["send a ok"], 1)


@SENDERS
def test_effect_without_a_question_is_refused_when_the_lease_is_lost(make_story, form):
    """Another worker has done it meanwhile."""
    story = make_story([form], SEND_A, "all done")
    story.hear("send it")
    overtakes = [story.rig.end_lease, story.work]
    journals = story.rig.journals
    journal = journals.store.append_entries

    async def overtaken(lease, seq, at, entries):
        if overtakes and any("started" in entry for entry in entries):
            for each in (overtakes.pop(0), overtakes.pop(0)):
                elsewhere(each)
        return await journal(lease, seq, at, entries)

    journals.append_entries = overtaken
    story.work()
    assert (story.prepared, story.begun["a"], story.channel.texts) == (["a", "a"], 1, ["all done"])


def test_calls_in_parallel_note_their_effects_in_one_journal(make_story):
    """Eight threads write to it at the same time, and each entry has one place."""
    together, places = threading.Barrier(8), {}

    @tool(name="send", marks_effect=True)
    def send_together(what: str, context: ToolContext) -> str:
        """Send."""
        together.wait(60)
        with context.effect():
            return f"{what} is sent"

    story = make_story(
        [send_together], tuple(call("send", what=str(number)) for number in range(8)), "all done"
    )
    story._config = AgentConfig(max_retries=0, parallel_tool_execution=True)
    journals = story.rig.journals
    journal = journals.store.append_entries

    async def noting(lease, seq, at, entries):
        for place, entry in enumerate(entries, start=at):
            assert places.setdefault(place, entry) == entry
        return await journal(lease, seq, at, entries)

    journals.append_entries = noting
    assert story.killed_at("before commit") == "all done"
    assert sum("started" in entry for entry in places.values()) == 8
    assert sorted(story.model.seen[-1]) == [f"{number} is sent" for number in range(8)]


def test_call_that_takes_too_long_before_its_effect_is_no_unclear_one(make_story):
    """The model reads an error, and may try again."""

    @tool(name="send", marks_effect=True)
    async def slow(what: str, context: ToolContext) -> str:
        """Send."""
        await asyncio.Event().wait()
        return ""

    story = make_story([slow], SEND_A, "all done")
    story._config = AgentConfig(max_retries=0, tool_timeout_seconds=0.01)
    story.hear("send it")
    assert story.work_on() == "all done"
    (result,) = story.model.seen[-1]
    assert result.startswith("Error: ")
    assert run_without_loop(story.rig.store.repository.list_started(CHAT.id, "ana")) == []
