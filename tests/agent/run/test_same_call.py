"""Same call: what runs after a yes is what was shown, or nothing runs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from decimal import Decimal
from typing import Annotated

import pytest
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from sayso.agent import (
    Agent,
    AgentConfig,
    ChannelAgent,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolParameter,
    ToolPolicy,
    ToolRegistry,
    tool,
)
from sayso.agent.tools.errors import ToolExecutionError, ToolParameterError, ToolValidationError
from sayso.pending import InMemoryPendingStore, PendingConfirmation, stash_pending
from sayso.pending.proposals import ChannelRun, channel_run

RAN: list[object] = []
NUMBERS = itertools.count(7)


@pytest.fixture(autouse=True)
def nothing_ran():
    """Before each test."""
    RAN.clear()


def desk(tools, call: ToolCall, policy: ToolPolicy | None = None, store: InMemoryPendingStore | None = None):
    """A channel whose model makes this call."""
    config = AgentConfig(tool_policy=policy)
    return ChannelAgent(Agent(tools, ScriptedProvider([call, "understood"]), config), store)


def proposed(given: Tool, **args):
    """What a call under review proposes."""
    run = ChannelRun("ana", "chat", "", 60, "v")
    with channel_run(run):
        given.propose(args)
    return run.proposals[0]


@tool(requires_approval=True)
def pay(cents: int) -> str:
    """Pay."""
    RAN.append(cents)
    return "paid"


@tool(requires_approval=True)
def draw(number: Annotated[int, Field(default_factory=lambda: next(NUMBERS))]) -> str:
    """Draw a number."""
    RAN.append(number)
    return "drawn"


@tool(requires_approval=True)
def count(hundreds: Annotated[int, BeforeValidator(lambda value: int(value) * 100)]) -> str:
    """Count in hundreds."""
    return str(hundreds)


@tool(requires_approval=True)
def measure(size: Decimal | str) -> str:
    """Measure."""
    return repr(size)


def test_validator_that_changes_what_it_has_read_is_not_asked_for():
    """The policy would judge 500 and the person be shown 50000."""
    with pytest.raises(ToolParameterError, match="cannot be recorded"):
        proposed(count, hundreds=5)


def test_type_that_is_another_after_the_record_is_not_asked_for():
    """A Decimal written down is text, and this tool takes text as well."""
    with pytest.raises(ToolParameterError, match="cannot be recorded"):
        proposed(measure, size=5)


def test_default_made_up_at_each_call_is_the_one_that_was_shown():
    """It is drawn once, when the question is made."""
    bot = desk([draw], ToolCall("draw", {}))
    shown = bot.ask_channel("ana", "go").content
    bot.ask_channel("ana", "yes")
    assert f"number = {RAN[0]}" in shown


def test_default_made_up_at_each_call_is_the_one_a_person_approved():
    """Also where no channel is there to ask on."""
    seen = []

    def approve(name, args, reason):
        seen.append(args["number"])
        args["number"] = 1  # what was shown is a copy
        return True

    config = AgentConfig(confirm_action=approve)
    Agent([draw], ScriptedProvider([ToolCall("draw", {}), "done"]), config).run("go")
    assert seen == RAN


def test_injected_value_never_takes_the_place_of_a_shown_one():
    """The injector had nothing when the question was asked."""
    injected: dict[str, int] = {}
    hijacked = replace(pay, config_injector=lambda: injected)
    asked = proposed(hijacked, cents=5)
    injected["cents"] = 999
    with pytest.raises(ToolExecutionError, match=r"\['cents'\] of 'pay' is injected by now"):
        hijacked.execute(asked.args)
    assert RAN == []


def test_parameter_that_was_added_since_the_question_runs_nothing():
    """Its default was shown to nobody."""
    tools = ToolRegistry([pay])
    bot = desk(tools, ToolCall("pay", {"cents": 5}))
    bot.ask_channel("ana", "go")

    @tool(name="pay", requires_approval=True)
    def pay_later(cents: int, everybody: bool = True) -> str:
        """Pay."""
        RAN.append((cents, everybody))
        return "paid"

    tools.remove("pay")
    tools.register(pay_later)
    assert "Nothing was done" in bot.ask_channel("ana", "yes").content
    assert RAN == []


def test_set_in_another_order_is_the_same():
    """Sets of texts have another order in each process."""

    @tool(requires_approval=True)
    def tag(names: set[str]) -> str:
        """Tag."""
        RAN.append(names)
        return "tagged"

    names = [f"name {number}" for number in range(50)]
    bot = desk([tag], ToolCall("tag", {"names": names}))
    bot.ask_channel("ana", "go")
    assert bot.ask_channel("ana", "yes").content == "tagged"
    assert [set(names)] == RAN


def test_policy_that_denies_by_now_runs_nothing():
    """The yes was to a call that must not happen any more."""
    store = InMemoryPendingStore()
    desk([pay], ToolCall("pay", {"cents": 5}), store=store).ask_channel("ana", "go")
    later = desk([pay], ToolCall("pay", {"cents": 5}), ToolPolicy(deny=["pay"]), store)
    assert "Nothing was done" in later.ask_channel("ana", "yes").content
    assert RAN == []


@tool
def drop(number: int) -> PendingConfirmation:
    """Drop an invoice: asks by itself, as in the seed, under its own name."""
    preview = f"Drop invoice {number}"
    stash_pending(kind="drop", preview=preview, executor=lambda: RAN.append(number), args={"number": number})
    return PendingConfirmation(action="drop", preview=preview)


@pytest.mark.parametrize("policy", [None, ToolPolicy(review=["*"])])
def test_yes_to_a_tool_that_would_only_ask_again_is_not_told_as_done(policy):
    """Its closure is gone, and running it does nothing: the person must hear that."""
    bot = desk([drop], ToolCall("drop", {"number": 8}), policy)
    bot.ask_channel("ana", "go")
    bot.store.executors._closures.clear()  # a restart
    told = bot.ask_channel("ana", "yes").content
    assert (told.startswith("Confirmed, but this failed"), RAN) == (True, [])


def test_factory_of_ones_own_goes_before_a_tool_of_the_same_name():
    """As the seed registers it, before the channel is made: it rebuilds what the yes runs."""
    store = InMemoryPendingStore()
    store.register_executor_factory("drop", lambda action: lambda: RAN.append(action.args["number"]))
    bot = desk([drop], ToolCall("drop", {"number": 8}), store=store)
    bot.ask_channel("ana", "go")
    store.executors._closures.clear()  # a restart
    bot.ask_channel("ana", "yes")
    assert RAN == [8]


def test_tool_that_is_gone_runs_not_even_its_closure():
    """A yes after it was switched off comes too late."""
    tools = ToolRegistry([drop])
    bot = desk(tools, ToolCall("drop", {"number": 8}))
    bot.ask_channel("ana", "go")
    tools.remove("drop")
    assert "Nothing was done" in bot.ask_channel("ana", "yes").content
    assert RAN == []


def test_async_preview_is_refused_when_the_tool_is_made():
    """Not in front of a user."""

    async def words(cents):
        return "Pay"

    with pytest.raises(ToolValidationError, match="is async"):
        replace(pay, preview=words)


@pytest.mark.parametrize("words", [None, 5, b"Pay"])
def test_preview_that_is_no_text_is_told_to_the_model(words):
    """It does not break the turn."""
    bot = desk([replace(pay, preview=lambda cents: words)], ToolCall("pay", {"cents": 5}))
    assert bot.ask_channel("ana", "go").content == "understood"
    assert "return text" in bot.agent.provider.requests[-1].messages[-1].content


def test_preview_has_the_time_that_its_tool_has():
    """One that hangs costs a turn no more than the tool could."""
    import threading

    done = threading.Event()
    hanging = replace(pay, preview=lambda cents: str(done.wait(10)), metadata=replace(pay.metadata, timeout=0.01))
    bot = desk([hanging], ToolCall("pay", {"cents": 5}))
    answer = bot.ask_channel("ana", "go").content
    told = bot.agent.provider.requests[-1].messages[-1].content
    done.set()
    assert (answer, "took too long" in told) == ("understood", True)


@tool
def look_up(city: Annotated[str, AfterValidator({"Rome": "IT"}.__getitem__)]) -> str:
    """Look a city up."""
    return city


def test_validator_that_breaks_is_told_to_the_model():
    """Its author did not think of that value; the turn goes on."""
    bot = desk([look_up], ToolCall("look_up", {"city": "Atlantis"}))
    assert bot.ask_channel("ana", "go").content == "understood"
    assert "KeyError: 'Atlantis'" in bot.agent.provider.requests[-1].messages[-1].content


class Mail(BaseModel):
    """A part of an argument, with a field that its author writes down nowhere."""

    to: str
    bcc: str = Field("", exclude=True)


@pytest.mark.parametrize("hint", [Mail, list[Mail], dict[str, Mail | None]])
def test_field_that_is_never_written_down_is_refused_at_definition(hint):
    """A policy would not see it, and no person either."""
    with pytest.raises(ToolValidationError, match="a field inside it has exclude="):
        Tool("send", "Send.", [ToolParameter("mail", hint)], str)
