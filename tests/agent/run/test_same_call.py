"""Same call: a yes runs exactly what was shown, or nothing."""

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
from sayso.pending.call_context import ChannelRun, context_field

RAN: list[object] = []
NUMBERS = itertools.count(7)


@pytest.fixture(autouse=True)
def nothing_ran():
    """Clear the record of calls before each test."""
    RAN.clear()


def desk(
    tools,
    call: ToolCall,
    policy: ToolPolicy | None = None,
    store: InMemoryPendingStore | None = None,
):
    """Return a channel agent whose model makes this call."""
    config = AgentConfig(tool_policy=policy)
    return ChannelAgent(Agent(tools, ScriptedProvider([call, "understood"]), config), store)


def proposed(given: Tool, **args):
    """Return what a call under review proposes."""
    run = ChannelRun("ana", "chat", "", 60, "v")
    with context_field("run", run):
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


def test_call_changed_by_its_own_validator_is_not_proposed():
    """The policy would check 500 while the user reads 50000."""
    with pytest.raises(ToolParameterError, match="cannot be recorded"):
        proposed(count, hundreds=5)


def test_call_with_an_unrecordable_type_is_not_proposed():
    """A stored Decimal is a string, and this tool accepts strings too."""
    with pytest.raises(ToolParameterError, match="cannot be recorded"):
        proposed(measure, size=5)


def test_generated_default_is_the_one_that_was_shown():
    """The default is generated once, when the question is made."""
    bot = desk([draw], ToolCall("draw", {}))
    shown = bot.ask_channel("ana", "go").content
    bot.ask_channel("ana", "yes")
    assert f"number = {RAN[0]}" in shown


def test_generated_default_is_the_one_that_was_approved():
    """The same holds for confirm_action, outside a channel."""
    seen = []

    def approve(name, args, reason):
        seen.append(args["number"])
        args["number"] = 1  # the callback gets a copy
        return True

    config = AgentConfig(confirm_action=approve)
    Agent([draw], ScriptedProvider([ToolCall("draw", {}), "done"]), config).run("go")
    assert seen == RAN


def test_injected_value_never_replaces_a_shown_one():
    """The injector returned nothing when the question was asked."""
    injected: dict[str, int] = {}
    hijacked = replace(pay, config_injector=lambda: injected)
    asked = proposed(hijacked, cents=5)
    injected["cents"] = 999
    with pytest.raises(ToolExecutionError, match=r"\['cents'\] of 'pay' is injected at this call"):
        hijacked.execute(asked.args)
    assert RAN == []


def test_tool_with_a_parameter_added_since_the_question_does_not_run():
    """The default of the new parameter was not shown."""
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


def test_set_in_another_order_is_the_same_call():
    """A set of strings has another order in each process."""

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


def test_action_denied_since_the_question_does_not_run():
    """The policy that counts is the one at the time of the yes."""
    store = InMemoryPendingStore()
    desk([pay], ToolCall("pay", {"cents": 5}), store=store).ask_channel("ana", "go")
    later = desk([pay], ToolCall("pay", {"cents": 5}), ToolPolicy(deny=["pay"]), store)
    assert "Nothing was done" in later.ask_channel("ana", "yes").content
    assert RAN == []


@tool
def drop(number: int) -> PendingConfirmation:
    """Drop an invoice: the tool proposes itself, as in the seed, under its own name."""
    preview = f"Drop invoice {number}"
    stash_pending(
        kind="drop", preview=preview, executor=lambda: RAN.append(number), args={"number": number}
    )
    return PendingConfirmation(action="drop", preview=preview)


@pytest.mark.parametrize("policy", [None, ToolPolicy(review=["*"])])
def test_yes_without_an_executor_is_not_reported_as_done(policy):
    """The tool's closure is lost, and running the tool would only ask again, so the user reads that it failed."""
    bot = desk([drop], ToolCall("drop", {"number": 8}), policy)
    bot.ask_channel("ana", "go")
    bot.store.executors._closures.clear()  # a restart
    told = bot.ask_channel("ana", "yes").content
    assert (told.startswith("Confirmed, but this failed"), RAN) == (True, [])


def test_registered_factory_precedes_a_tool_of_the_same_name():
    """The seed registers it before the channel is made, and it rebuilds the executor of the yes."""
    store = InMemoryPendingStore()
    store.register_executor_factory(
        "drop", lambda action: lambda: RAN.append(action.args["number"])
    )
    bot = desk([drop], ToolCall("drop", {"number": 8}), store=store)
    bot.ask_channel("ana", "go")
    store.executors._closures.clear()  # a restart
    bot.ask_channel("ana", "yes")
    assert RAN == [8]


def test_removed_tool_does_not_run_even_its_closure():
    """The yes comes after the tool was switched off."""
    tools = ToolRegistry([drop])
    bot = desk(tools, ToolCall("drop", {"number": 8}))
    bot.ask_channel("ana", "go")
    tools.remove("drop")
    assert "Nothing was done" in bot.ask_channel("ana", "yes").content
    assert RAN == []


def test_async_preview_is_refused_at_definition():
    """The error must not wait for a user's turn."""

    async def words(cents):
        return "Pay"

    with pytest.raises(ToolValidationError, match="is async"):
        replace(pay, preview=words)


@pytest.mark.parametrize("words", [None, 5, b"Pay", PendingConfirmation("pay", "Pay")])
def test_preview_that_returns_no_text_is_an_error_for_the_model(words, caplog):
    """It does not break the turn, and the log has the cure."""
    bot = desk([replace(pay, preview=lambda cents: words)], ToolCall("pay", {"cents": 5}))
    assert bot.ask_channel("ana", "go").content == "understood"
    assert "(TypeError): nothing was asked" in bot.agent.provider.requests[-1].messages[-1].content
    assert "return text" in caplog.text


def test_preview_has_the_time_limit_of_its_tool():
    """A preview that hangs delays the turn no longer than the tool could."""
    import threading

    done = threading.Event()
    hanging = replace(
        pay, preview=lambda cents: str(done.wait(10)), metadata=replace(pay.metadata, timeout=0.01)
    )
    bot = desk([hanging], ToolCall("pay", {"cents": 5}))
    answer = bot.ask_channel("ana", "go").content
    told = bot.agent.provider.requests[-1].messages[-1].content
    done.set()
    assert (answer, "took too long" in told) == ("understood", True)


@tool
def look_up(city: Annotated[str, AfterValidator({"Rome": "IT"}.__getitem__)]) -> str:
    """Look up a city."""
    return city


def test_validator_that_raises_is_an_error_for_the_model():
    """A bug in a validator does not break the turn."""
    bot = desk([look_up], ToolCall("look_up", {"city": "Atlantis"}))
    assert bot.ask_channel("ana", "go").content == "understood"
    assert "KeyError: 'Atlantis'" in bot.agent.provider.requests[-1].messages[-1].content


class Mail(BaseModel):
    """A nested argument with a field that is excluded from serialization."""

    to: str
    bcc: str = Field("", exclude=True)


@pytest.mark.parametrize("hint", [Mail, list[Mail], dict[str, Mail | None]])
def test_excluded_field_is_refused_at_definition(hint):
    """Neither the policy nor the user would see the field."""
    with pytest.raises(ToolValidationError, match="a field inside it has exclude="):
        Tool("send", "Send.", [ToolParameter("mail", hint)], str)
