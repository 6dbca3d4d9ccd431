"""Tool context: after a yes, the tool knows who confirmed, and its failure is reported as one."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Annotated

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    AgentObserver,
    Ambiguous,
    NotFound,
    RoleBasedSelector,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    tool,
)
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.run.result_summaries import cache_key
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Scope
from sayso.infra.concurrency import run_sync
from sayso.pending.action import PendingAction
from sayso.pending.executors import PendingConfirmation
from sayso.pending.proposals import current_user, stash_pending
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender, turn
from tests.workers.fakes import Bot, FakeChannel

ANA = {"user_name": "Ana", "aliases": ("whatsapp:+4915100000042",)}


class ToolBot(Bot):
    """A whole bot with these tools, whose model makes these calls; each list of names is one answer."""

    def __init__(self, rig, tools, *answers: list[str], role: str = "owner") -> None:
        self.rig, self.channel = rig, FakeChannel()
        script = [[ToolCall(name, {}, f"c{name}") for name in names] for names in answers]
        roles = RoleBasedSelector(role, allowed={role: ["*"]})
        agent = Agent(tools, ScriptedProvider(script), AgentConfig(max_retries=0), selector=roles)
        self.agent = ChannelAgent(agent, rig.store, journals=rig.journals)
        channels = {"chat": self.channel}
        self.processor = make_processor(
            rig.mailbox, make_sender(rig.outbox, channels), channels, {"chat": self.agent}
        )

    def hear(self, text: str = "", **fields) -> None:
        """Accept a turn from Ana with all that a platform reports about her."""
        self.rig.accept(replace(turn(text, **fields), **ANA))


@pytest.fixture
def make():
    """Return a function that makes a bot."""
    return lambda *args, **options: ToolBot(Rig(), *args, **options)


def is_ana(context: ToolContext) -> bool:
    """Return whether the context holds all that the channel knows about Ana."""
    person = context.person
    return (
        person is not None
        and (person.id, person.name, person.role, person.phone)
        == ("ana", "Ana", "owner", "+4915100000042")
        and (context.channel, context.conversation, context.language) == ("chat", "room", "en")
    )


def seeing(seen: dict):
    """Return a destructive tool that notes its context at every step; the model sees no such parameter."""

    def config(context: ToolContext) -> dict:
        seen["injector"] = context
        return {}

    def preview(context: ToolContext) -> str:
        seen["preview"] = context
        return "Ship it"

    def undo(who: ToolContext) -> str:
        seen["undo"], seen["undo user"] = who, current_user()
        return "unshipped"

    @tool(
        requires_approval=True, preview=preview, undo=undo, undo_seconds=60, config_injector=config
    )
    def ship(context: ToolContext) -> str:
        """Ship the parcel."""
        seen["tool"], seen["user"] = context, current_user()
        return "shipped"

    return ship


def test_tool_injector_and_undo_know_who_confirmed(make):
    """All receive the same user, channel, conversation, language and role; the schema shows no such parameter."""
    seen: dict = {}
    ship = seeing(seen)
    assert ship.schema()["parameters"]["properties"] == {}
    bot = make([ship], ["ship"])
    bot.say("ship it")
    assert is_ana(seen["preview"])
    assert seen["preview"].confirmed is None
    assert "shipped" in bot.say("yes")
    confirmed = seen["tool"].confirmed
    assert is_ana(seen["tool"])
    assert is_ana(seen["injector"])
    assert (confirmed.preview, confirmed.by, confirmed.at > 0, seen["user"]) == (
        "Ship it",
        "ana",
        True,
        "ana",
    )
    (button,) = bot.buttons
    assert bot.say(tap=button.data) == "unshipped"
    assert is_ana(seen["undo"])
    assert (seen["undo"].confirmed.by, seen["undo user"]) == ("ana", "ana")


def test_record_of_an_action_has_the_name_of_its_person(make):
    """People who read the audit log see it beside the id."""
    bot = make([seeing({})], ["ship"])
    bot.say("ship it")
    stored = run_sync(bot.rig.store.repository.load_open(CHAT.id, Scope("ana", CHAT).id))
    assert stored.action.user_name == "Ana"


def test_worker_that_takes_over_knows_who_confirmed(make):
    """The worker that claimed the yes was killed."""
    seen: dict = {}
    bot = make([seeing(seen)], ["ship"])
    bot.say("ship it")
    bot.hear("yes")
    bot.die_after("claim")
    assert "shipped" in bot.work()
    assert is_ana(seen["tool"])


def test_reconcile_knows_who_confirmed(make):
    """Another worker checks the outcome of an action that a killed worker had started."""
    seen: list[ToolContext] = []

    def reconcile(record: PendingAction, context: ToolContext) -> bool:
        seen.append(context)
        return True

    @tool(requires_approval=True, preview="Ship it", reconcile=reconcile)
    def ship() -> str:
        """Ship the parcel."""
        return "shipped"

    bot = make([ship], ["ship"])
    bot.say("ship it")
    bot.hear("yes")
    bot.die_after("start")
    assert bot.work().startswith("Done")
    assert is_ana(seen[0])
    assert (seen[0].confirmed.by, seen[0].confirmed.preview) == ("ana", "Ship it")


@pytest.mark.parametrize(
    "hint", [ToolContext | None, Annotated[ToolContext, "who"], "ToolContext", "ToolContext | None"]
)
def test_context_parameter_is_recognized_in_any_spelling(hint):
    """The schema hides the parameter in each form of the annotation."""

    def look(context=None) -> str:
        """Look."""
        return type(context).__name__

    look.__annotations__["context"] = hint
    made = tool()(look)
    assert made.schema()["parameters"]["properties"] == {}
    assert made.execute({}) == "ToolContext"


def test_result_that_depends_on_the_user_is_not_cached():
    """A tool that receives the context may answer each user differently."""

    @tool(read_only=True, cacheable=True)
    def balance(context: ToolContext) -> str:
        """Return the balance."""
        return "10"

    assert cache_key(balance, {}) == ""


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (NotFound("parcel", "P1"), "P1"),
        (ToolError("the parcel has shipped already"), "the parcel has shipped already"),
    ],
)
def test_failed_action_is_reported_as_a_failure(make, outcome, words):
    """It has no undo and stops its plan; the report shows what was done, what was not, and why."""
    ran: list[str] = []

    def step(name: str, value: object):
        def run() -> object:
            ran.append(name)
            if isinstance(value, Exception):
                raise value
            return value

        return tool(
            name=name,
            description=name,
            requires_approval=True,
            preview=name,
            undo=lambda: "",
            undo_seconds=60,
        )(run)

    steps = [step("first", "done"), step("second", outcome), step("third", "done")]
    bot = make(steps, ["second"])
    bot.say("second")
    told = bot.say("yes")
    assert words in told
    assert told.startswith(texts_for("en").failed("second").partition("\n")[0])
    assert not any(button.label == "Undo" for button in bot.channel.sent[-1].reply.buttons)
    bot = make(steps, ["first", "second", "third"])
    ran.clear()
    bot.say("all")
    report = bot.say("yes")
    assert ran == ["first", "second"]
    assert words in report
    assert [button.label for button in bot.channel.sent[-1].reply.buttons] == ["Undo"], (
        "of the first step"
    )


@pytest.mark.parametrize(
    ("outcome", "words"),
    [(NotFound("parcel", "P1"), "P1"), (ToolError("the courier has it"), "the courier has it")],
)
def test_failed_undo_is_reported_as_a_failure(make, outcome, words):
    """The user reads why the action was not undone."""

    def undo() -> object:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    ship = tool(name="ship", description="Ship", requires_approval=True, preview="Ship", undo=undo)(
        lambda: "shipped"
    )
    bot = make([ship], ["ship"])
    bot.say("ship")
    bot.say("yes")
    (button,) = bot.buttons
    told = bot.say(tap=button.data)
    assert words in told
    assert told.startswith(texts_for("en").failed("Undo: Ship").partition("\n")[0])


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Ambiguous("parcel", "P", ["P1", "P2"]), "P1; P2"),
        (ToolError("shipped already"), "shipped already"),
    ],
)
def test_failed_executor_of_a_proposal_gives_its_reason(make, outcome, words):
    """An action proposed with `stash_pending` reports its failure like a tool."""

    def execute() -> object:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @tool(proposes=True)
    def ship() -> str:
        """Ship the parcel."""
        stash_pending(kind="shipping", preview="Ship it", executor=execute)
        return "asked"

    bot = make([ship], ["ship"])
    bot.say("ship it")
    assert words in bot.say("yes")


def test_model_reads_why_a_confirmed_call_failed(make):
    """The history contains the reason."""

    @tool(requires_approval=True, preview="Ship it")
    def ship() -> str:
        """Ship the parcel."""
        raise ToolError("shipped already")

    bot = make([ship], ["ship"], [])
    bot.say("ship it")
    bot.say("yes")
    bot.say("why?")
    (request,) = bot.agent.agent.provider.requests[1:2]
    assert any("shipped already" in message.content for message in request.messages)


def test_unexpected_error_stays_private_and_the_log_has_its_reference(make, caplog):
    """The user sees the type and a reference but no text of the exception; the log has both."""

    @tool(requires_approval=True, preview="Ship it")
    def ship() -> str:
        """Ship the parcel."""
        raise KeyError("secret detail")

    bot = make([ship], ["ship"])
    bot.say("ship it")
    with caplog.at_level(logging.ERROR):
        told = bot.say("yes")
    reference = re.search(r"Reference: ([0-9a-f]{8}) \(KeyError\)", told)[1]
    assert "secret" not in told
    (record,) = [each for each in caplog.records if each.message == "pending.failed"]
    assert (record.reference, record.exc_info is not None) == (reference, True)


@pytest.mark.parametrize("is_async", [False, True])
def test_injector_runs_off_the_event_loop_and_is_closed_after_the_call(is_async):
    """A context manager is open while the tool runs, and it closes when the tool ends or fails."""
    events: list[object] = []

    @contextmanager
    def config():
        events.append(threading.current_thread() is threading.main_thread())
        try:
            yield {"connection": "open"}
        finally:
            events.append("closed")

    def work(connection: str, *, fails: bool = False) -> str:
        """Work."""
        events.append(connection)
        if fails:
            raise ToolError("no")
        return "worked"

    async def awork(connection: str, *, fails: bool = False) -> str:
        """Work."""
        return work(connection, fails=fails)

    made = tool(config_injector=config)(awork if is_async else work)
    made.schema()
    events.clear()
    assert asyncio.run(made.ainvoke({})) == "worked"
    assert events == [False, "open", "closed"]
    events.clear()
    with pytest.raises(ToolError, match="no"):
        asyncio.run(made.ainvoke({"fails": True}))
    assert events == [False, "open", "closed"]


@pytest.mark.parametrize("is_async", [False, True])
def test_injector_that_swallows_an_error_does_not_make_it_a_success(is_async):
    """A failed call is never reported as done."""

    @contextmanager
    def config():
        with suppress(ToolError):
            yield {"connection": "open"}

    def work(connection: str) -> str:
        """Work."""
        raise ToolError("no")

    async def awork(connection: str) -> str:
        """Work."""
        return work(connection)

    made = tool(config_injector=config)(awork if is_async else work)
    with pytest.raises(ToolError, match="no"):
        asyncio.run(made.ainvoke({}))


def test_event_loop_never_waits_for_an_injector(make):
    """The rule holds for the schema, for a failing injector, for the call, and after a yes in a new process."""
    in_loop: list[bool] = []
    fails = True

    def config() -> dict[str, str]:
        try:
            asyncio.get_running_loop()
            in_loop.append(True)
        except RuntimeError:
            in_loop.append(False)
        if fails:
            raise OSError("the vault is away")
        return {"connection": "open"}

    def fresh() -> Tool:
        @tool(config_injector=config, requires_approval=True, preview="Work")
        def work(connection: str) -> str:
            """Work."""
            return "worked"

        return work

    def restart(*answers: object) -> None:
        agent = Agent([fresh()], ScriptedProvider(answers), AgentConfig(max_retries=0))
        bot.processor.turns.agents["chat"] = ChannelAgent(agent, bot.rig.store)

    bot = make([], [])
    restart([ToolCall("work")], "The vault is shut.", [ToolCall("work")])
    assert bot.say("work") == "The vault is shut."
    fails = False
    assert bot.say("work").startswith("Work")
    restart()
    assert "worked" in bot.say("yes")
    assert not any(in_loop)


def test_system_prompt_may_depend_on_the_user(make):
    """A prompt function is called for each answer."""
    bot = make([], [])
    seen: list[ToolContext] = []

    def prompt(context: ToolContext) -> str:
        seen.append(context)
        return "Be kind."

    agent = Agent([], ScriptedProvider(["Hello."]), AgentConfig(system_prompt=prompt))
    bot.processor.turns.agents["chat"] = ChannelAgent(agent, bot.rig.store)
    assert bot.say("hi") == "Hello."
    assert all(context.person is not None and context.person.name == "Ana" for context in seen)
    assert agent.provider.requests[0].system_prompt == "Be kind."


class Notes(AgentObserver):
    """Notes the events of tools with their run."""

    def __init__(self) -> None:
        self.events: list[tuple] = []

    def on_tool_start(self, run_id, call_id, tool_name, tool_args):
        self.events.append(("start", run_id, tool_name))

    def on_tool_end(self, run_id, call_id, tool_name, result, duration_ms):
        self.events.append(("end", run_id, result))

    def on_tool_error(self, run_id, call_id, tool_name, error, tool_args, duration_ms):
        self.events.append(("error", run_id, type(error)))

    def on_run_end(self, run_id, result):
        self.events.append(
            ("run", run_id, [(step.type, step.tool_name) for step in result.trace.steps])
        )


@pytest.mark.parametrize("fails", [False, True])
def test_confirmed_call_reaches_observers_trace_and_log(make, caplog, fails):
    """A confirmed call reports its start and its end or failure, like any other call."""
    notes = Notes()

    @tool(requires_approval=True, preview="Ship it")
    def ship() -> str:
        """Ship the parcel."""
        if fails:
            raise KeyError("no")
        return "shipped"

    bot = make([ship], ["ship"])
    bot.agent.agent.config = replace(bot.agent.agent.config, observers=[notes])
    bot.say("ship it")
    assert not any(event[0] == "start" for event in notes.events)
    notes.events.clear()
    with caplog.at_level(logging.INFO):
        bot.say("yes")
    run = notes.events[0][1]
    ending = ("error", run, KeyError) if fails else ("end", run, "shipped")
    assert notes.events == [
        ("start", run, "ship"),
        ending,
        ("run", run, [("tool_execution", "ship")]),
    ]
    assert [each.message for each in caplog.records if each.message.startswith("pending.")] == [
        "pending.started",
        "pending.failed" if fails else "pending.done",
    ]


def test_undo_and_proposed_actions_reach_observers_too(make):
    """Every function that runs after a yes or a tap is reported: a tool, its undo, and the executor of a proposal."""
    notes = Notes()

    def take_back(result: str) -> str:
        raise ToolError("already gone")

    @tool(requires_approval=True, preview="Ship it", undo=take_back)
    def ship() -> str:
        """Ship the parcel."""
        return "shipped"

    @tool()
    def refund() -> PendingConfirmation:
        """Refund an order."""
        stash_pending(kind="refund", preview="Refund it", executor=lambda: "refunded")
        return PendingConfirmation(action="refund", preview="Refund it")

    bot = make([ship, refund], ["refund"], ["ship"])
    bot.agent.agent.config = replace(bot.agent.agent.config, observers=[notes])
    for said in ("refund it", "yes", "ship it"):
        bot.say(said)
    bot.say("yes")
    assert "already gone" in bot.say(tap=bot.buttons[0].data)
    confirmed = [event[::2] for event in notes.events if event[0] in ("start", "end", "error")]
    assert confirmed == [
        *[("start", "refund"), ("end", "refunded")],
        *[("start", "ship"), ("end", "shipped")],
        *[("start", "sayso:undo:ship"), ("error", ToolError)],
    ]


@pytest.mark.parametrize("raises", [KeyError("no"), ToolError("already shipped")])
def test_tool_that_raises_logs_one_line_with_the_ids_of_its_trace(make, caplog, raises):
    """The line is also logged without observers; for an unexpected error it includes the traceback."""

    @tool()
    def look() -> str:
        """Look at the parcel."""
        raise raises

    bot = make([look], ["look"])
    with caplog.at_level(logging.INFO):
        bot.say("look at it")
    (line,) = [each for each in caplog.records if each.message == "tool.failed"]
    assert re.fullmatch(r"[0-9a-f]{32}/clook", line.reference)
    assert (line.tool, line.error, bool(line.exc_info)) == (
        "look",
        type(raises).__name__,
        isinstance(raises, KeyError),
    )
