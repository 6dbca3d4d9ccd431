"""Effect: what comes before it is preparation; it begins once, or not at all."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from dataclasses import asdict, replace

import pytest

from sayso.agent import tool
from sayso.agent.tools.errors import ToolValidationError
from sayso.infra.concurrency import run_sync, run_without_loop
from sayso.pending import (
    EffectRefused,
    InMemoryPendingStore,
    Person,
    ToolContext,
    current_context,
    executor_factory,
)
from sayso.pending.action import PendingAction
from sayso.pending.call_context import context_field
from sayso.pending.effect import EffectStart
from sayso.pending.repository import Claim
from sayso.pending.store import scope_of
from sayso.pending.turns import LeaseLost

#: The conversation that another worker has.
PLACE = "chat:1"


class Notes(list):
    """Notes each time that an effect begins, or raises `error`."""

    error: Exception | None = None

    async def __call__(self) -> None:
        """Note that the effect begins."""
        if self.error:
            raise self.error
        self.append("begun")


@pytest.fixture
def notes():
    """Return the notes so far."""
    return Notes()


@tool(marks_effect=True)
def pay(euros: int, context: ToolContext) -> str:
    """Pay."""
    with context.effect():
        return f"{euros} are paid"


@tool(marks_effect=True)
async def pay_async(euros: int, context: ToolContext) -> str:
    """Pay."""
    async with context.effect():
        return f"{euros} are paid"


@tool(marks_effect=True)
async def pay_blocking(euros: int, context: ToolContext) -> str:
    """Pay."""
    with context.effect():
        return f"{euros} are paid"


@tool(marks_effect=True)
async def say_async(euros: int, context: ToolContext) -> str:
    """Pay."""
    await context.effect_begins()
    return f"{euros} are paid"


@tool(marks_effect=True)
def say(euros: int, context: ToolContext) -> str:
    """Pay."""
    context.effect_begins()
    return f"{euros} are paid"


FORMS = pytest.mark.parametrize(
    "paying", [pay, pay_async, pay_blocking, say_async, say], ids=lambda each: each.name
)


@FORMS
def test_refused_effect_is_not_entered(paying, notes):
    """Another worker has the call by now: nothing is done here."""
    notes.error = LeaseLost(PLACE)
    with (
        context_field("effect", EffectStart(notes)),
        pytest.raises(EffectRefused, match="another worker"),
    ):
        run_sync(paying.arun_raw({"euros": 5}))


@FORMS
def test_effect_is_noted_before_it_begins(paying, notes):
    """Each form of saying it stores the note."""
    with context_field("effect", EffectStart(notes)):
        assert run_sync(paying.arun_raw({"euros": 5})) == "5 are paid"
    assert notes == ["begun"]


@FORMS
def test_outside_of_a_conversation_it_does_nothing(paying):
    """A library may call the tool, and a test may."""
    assert run_sync(paying.arun_raw({"euros": 5})) == "5 are paid"


def test_effect_begins_once(notes):
    """A tool may enter it twice: the second time nothing is stored."""
    start = EffectStart(notes)
    start.begin_now()
    start.begin_now()
    assert (notes, start.has_begun) == (["begun"], True)


def test_closed_effect_never_begins(notes):
    """The call was given up, and its thread goes on."""
    start = EffectStart(notes)
    assert start.close() is False
    with pytest.raises(EffectRefused, match="given up"):
        start.begin_now()
    assert (notes, start.close()) == ([], False)


def test_effect_that_is_given_up_while_its_note_is_stored_does_not_begin():
    """The store has the note, and the tool does not go on."""
    starts = []

    async def closing() -> None:
        assert starts[0].close() is False

    start = EffectStart(closing)
    starts.append(start)
    with pytest.raises(EffectRefused):
        start.begin_now()
    assert start.close() is False


def test_effect_whose_note_may_be_lost_can_be_begun_again(notes):
    """The store did not answer: the tool may try again, and the note is safe to repeat."""
    start = EffectStart(notes)
    notes.error = ConnectionError("away")
    with pytest.raises(ConnectionError):
        asyncio.run(start.begin())
    notes.error = None
    asyncio.run(start.begin())
    assert start.close() is True


@pytest.mark.parametrize(("is_begun", "state"), [(False, "claimed"), (True, "unknown")])
def test_worker_that_is_stopped_leaves_a_preparation_to_the_next_one(is_begun, state):
    """A stopped worker cancels its turns. Only an effect that has begun leaves doubt."""
    store = InMemoryPendingStore()
    action = store.create(PendingAction("ana", "pay", "Pay 5", {"euros": 5}))
    scope = scope_of("ana", None, None)
    here, pids = scope.conversation.id, (action.pending_action_id,)

    async def stopped_in_the_middle() -> None:
        goes_on = asyncio.Event()

        @executor_factory("pay", marks_effect=True)
        def rebuild(_):
            async def execute() -> None:
                if is_begun:
                    await current_context().effect_begins()
                goes_on.set()
                await asyncio.Event().wait()

            return execute

        store.register_executor_factory("pay", rebuild)
        (stored,) = await store.repository.load(here, pids)
        confirming = asyncio.create_task(
            store.settlement.confirm(Claim(scope, stored.action_id, "yes-1"), stored)
        )
        await goes_on.wait()
        confirming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await confirming

    asyncio.run(stopped_in_the_middle())
    (stored,) = run_without_loop(store.repository.load(here, pids))
    assert stored.state == state


def test_tool_that_did_not_declare_it_is_told_so():
    """Its effect counts as begun with its start, so what it says would be in vain."""

    @tool
    def forgetful(context: ToolContext) -> str:
        """Pay."""
        with context.effect():
            return "paid"

    with pytest.raises(RuntimeError, match="give it marks_effect=True"):
        forgetful.run_raw({})


@pytest.mark.parametrize("option", ["idempotent", "read_only"])
def test_tool_that_runs_again_anyway_is_refused(option):
    """It would say twice, and differently, what happens after a crash."""
    with pytest.raises(ToolValidationError, match="runs again anyway"):

        @tool(marks_effect=True, **{option: True})
        def both(context: ToolContext) -> str:
            """Pay."""
            return ""


def test_context_is_data_as_before(notes):
    """It can be written as JSON, and a changed one still says where the effect begins."""
    with context_field("effect", EffectStart(notes)):
        context = current_context()
        assert json.loads(json.dumps(asdict(context))) == asdict(ToolContext())
        assert (context == ToolContext(), "effect" in repr(context)) == (True, False)
        replace(context, language="de").effect_begins()
    assert notes == ["begun"]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))]
)
def test_copy_of_a_context_cannot_begin_the_effect(copied):
    """In another process nothing could be noted, and the effect would be repeated."""
    twin = copied(ToolContext(Person("ana"), language="de"))
    assert twin == ToolContext(Person("ana"), language="de")
    with pytest.raises(RuntimeError, match="use the one that the tool was given"):
        twin.effect_begins()


def test_tool_without_a_context_is_refused():
    """It could never say that its effect begins, and would be repeated."""
    with pytest.raises(ToolValidationError, match="needs a parameter of the type ToolContext"):

        @tool(marks_effect=True)
        def mute() -> str:
            """Pay."""
            return ""
