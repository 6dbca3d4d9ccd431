"""Changed tools: no new code runs by a yes to an old question."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    CheckedPreview,
    NotFound,
    PendingConfirmation,
    RoleBasedSelector,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolPolicy,
    tool,
)
from sayso.agent.channel import tool_executors
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.pending import InMemoryPendingStore, stash_pending

CHANGED = "This has changed since I asked you: Pay 5 EUR\nNothing was done. Please ask again."


def paying(ran: list[Any], preview: Any = "Pay {euros} EUR", **options: Any) -> Tool:
    """Return a tool that pays; `ran` gets what it paid."""

    @tool(
        name="pay",
        description=options.pop("description", "Pay"),
        requires_approval=True,
        preview=preview,
        **options,
    )
    def pay(euros: int) -> str:
        ran.append(euros)
        return f"paid {euros}"

    return pay


def chat(store: InMemoryPendingStore, *tools: Tool, calls: int = 1) -> ChannelAgent:
    """Return a bot on this store whose model calls the first tool, `calls` times in one answer."""
    asked = [
        ToolCall(tools[0].name, {"euros": 5 + number}, f"c{number}") for number in range(calls)
    ]
    return ChannelAgent(Agent(list(tools), ScriptedProvider([asked])), store)


def answer(first: Tool, second: Tool, *, calls: int = 1) -> str:
    """Return the answer to a yes, where the second tool has replaced the first one since the question."""
    store = InMemoryPendingStore()
    chat(store, first, calls=calls).ask_channel("ana", "pay")
    return chat(store, second).ask_channel("ana", "yes").content


def changed_tools(ran: list[Any]) -> dict[str, tuple[Any, Tool]]:
    """Return pairs of a preview and a later tool, by what has changed."""

    @tool(name="pay", description="Pay", requires_approval=True, preview="Pay {euros} EUR")
    def with_default(euros: int, to: str = "bob") -> str:
        return paying(ran).run_raw({"euros": euros})

    return {
        "template": ("Pay {euros} EUR", paying(ran, "Pay {euros} USD")),
        "function": (
            lambda euros: f"Pay {euros} EUR",
            paying(ran, lambda euros: f"Pay {euros} USD"),
        ),
        "template to function": ("Pay {euros} EUR", paying(ran, lambda euros: f"Pay {euros} EUR")),
        "description": ("Pay {euros} EUR", paying(ran, description="Pay in USD")),
        "version": ("Pay {euros} EUR", paying(ran, version="2")),
        "new parameter": ("Pay {euros} EUR", with_default),
        "meaning of a parameter": (
            "Pay {euros} EUR",
            paying(ran, param_metadata={"euros": {"description": "in cents"}}),
        ),
        "nothing to propose": (
            lambda euros: f"Pay {euros} EUR",
            paying(ran, lambda euros: NotFound(entity="account", query="bob")),
        ),
    }


@pytest.mark.parametrize("change", changed_tools([]))
def test_changed_tool_does_not_run_by_an_old_yes(change: str):
    """The person is told that it has changed, and to ask again; no author has to think of `version`."""
    ran: list[Any] = []
    preview, second = changed_tools(ran)[change]
    why = ""
    if change == "nothing to propose":
        why = '\nI found no account for "bob".'
    assert (answer(paying(ran, preview), second), ran) == (f"{CHANGED}{why}", [])


@pytest.mark.parametrize("preview", ["Pay {euros} EUR", lambda euros: f"Pay {euros} EUR", None])
def test_unchanged_tool_of_another_process_runs(preview: Any):
    """A worker that loaded the same tool anew runs what was shown."""
    ran: list[Any] = []
    assert (answer(paying(ran, preview), paying(ran, preview)), ran) == ("paid 5", [5])


def test_decision_of_an_app_does_not_run_a_changed_tool():
    """`pop_if_intent` decides without a text and without a worker."""
    ran: list[Any] = []
    store = InMemoryPendingStore()
    chat(store, paying(ran)).ask_channel("ana", "pay")
    chat(store, paying(ran, "Pay {euros} USD"))
    outcome = store.pop_if_intent("ana", "confirm")
    assert (outcome.status, outcome.outcome_text, ran) == ("digest_mismatch", CHANGED, [])


def test_plan_with_one_changed_step_runs_no_step():
    """Half of what a person agreed to is something else."""
    ran: list[Any] = []
    second = paying(ran, lambda euros: f"Pay {euros} {'EUR' if euros == 5 else 'USD'}")
    said = answer(paying(ran, lambda euros: f"Pay {euros} EUR"), second, calls=2)
    assert (said, ran) == (CHANGED.replace("5", "6"), [])


def test_step_may_change_what_the_preview_of_the_next_one_shows():
    """All previews of a plan are compared before its first step, as the person saw them."""
    ran: list[Any] = []
    store = InMemoryPendingStore()
    bot = chat(
        store, paying(ran, lambda euros: f"Pay {euros} EUR, after {len(ran)} others"), calls=2
    )
    bot.ask_channel("ana", "pay")
    assert (bot.ask_channel("ana", "yes").content.partition("\n")[0], ran) == (
        "Steps done: 2 of 2.",
        [5, 6],
    )


@pytest.mark.parametrize(("owed", "runs"), [(5, True), (7, False)])
def test_preview_of_changing_data_says_which_values_count(owed: int, runs: bool):
    """The balance may change between question and yes; the debt that the question shows may not."""
    ran: list[Any] = []
    now = {"owed": 5, "balance": 100}

    def preview(euros: int) -> CheckedPreview:
        return CheckedPreview(f"Pay {euros} EUR (balance {now['balance']})", values=[now["owed"]])

    store = InMemoryPendingStore()
    bot = chat(store, paying(ran, preview))
    bot.ask_channel("ana", "pay")
    now.update(owed=owed, balance=90)
    assert ("This has changed" not in bot.ask_channel("ana", "yes").content, ran) == (
        runs,
        [5] if runs else [],
    )


def test_preview_that_fails_at_the_yes_refuses_privately(caplog: pytest.LogCaptureFixture):
    """The author's error is in the log, not in the chat."""
    ran: list[Any] = []

    def failing(euros: int) -> str:
        raise RuntimeError("secret")

    said = answer(paying(ran, lambda euros: f"Pay {euros} EUR"), paying(ran, failing))
    assert (said.partition(":")[0], "secret" in said, ran) == (
        "I could not safely confirm this",
        False,
        [],
    )
    (record,) = [each for each in caplog.records if each.msg == "pending.not_compared"]
    assert "secret" in str(record.exc_info[1])


def test_preview_that_hangs_at_the_yes_refuses(monkeypatch: pytest.MonkeyPatch):
    """A person who said yes does not wait for a preview for ever."""
    ran: list[Any] = []
    monkeypatch.setattr(tool_executors, "PREVIEW_SECONDS", 0.05)
    ended = threading.Event()

    def hanging(euros: int) -> str:
        ended.wait(60)
        return f"Pay {euros} EUR"

    said = answer(paying(ran, lambda euros: f"Pay {euros} EUR"), paying(ran, hanging))
    ended.set()
    assert (said.partition(":")[0], ran) == ("I could not safely confirm this", [])


ARGUMENTS = {"to": "bob", "amount": 5, "meta": {"z": 1, "a": [{"y": 2, "b": 3}]}}


@pytest.mark.parametrize("preview", [None, "Pay {meta}", lambda **args: f"Pay {args}"])
@pytest.mark.parametrize("is_typed", [True, False], ids=["typed", "of a server"])
def test_order_in_which_a_model_writes_arguments_changes_nothing(preview: Any, is_typed: bool):
    """A record has its keys by alphabet: so does the preview, in the question as at the yes."""
    ran: list[Any] = []

    def pay(to: str, amount: int, meta: dict[str, Any]) -> str:
        ran.append({"to": to, "amount": amount, "meta": meta})
        return "paid"

    schema = {"type": "object", "properties": {name: {} for name in ARGUMENTS}}
    definition = {"preview": preview, "requires_approval": True}
    if is_typed:
        made = tool(name="pay", description="Pay", **definition)(pay)
    else:
        made = Tool("pay", "Pay", [], pay, input_schema=schema, **definition)
    store = InMemoryPendingStore()
    model = ScriptedProvider([[ToolCall("pay", ARGUMENTS, "c1")]])
    bot = ChannelAgent(Agent([made], model), store)
    bot.ask_channel("ana", "pay")
    assert (bot.ask_channel("ana", "yes").content, ran) == ("paid", [ARGUMENTS])


def test_set_is_the_same_in_any_order():
    """Each process has its own order of the same set."""
    ran: list[Any] = []

    def labelling(order: str) -> Tool:
        @tool(
            name="label",
            description="Label",
            requires_approval=True,
            preview=lambda names: f"Label {order}",
        )
        def label(names: set[str]) -> str:
            ran.append(names)
            return "done"

        return label

    def said(first: str, second: str) -> str:
        store = InMemoryPendingStore()
        model = ScriptedProvider([ToolCall("label", {"names": ["a", "b"]}, "c1")])
        ChannelAgent(Agent([labelling(first)], model), store).ask_channel("ana", "label")
        return (
            ChannelAgent(Agent([labelling(second)], model), store).ask_channel("ana", "yes").content
        )

    assert said("a, b", "b, a") == "done"
    assert said("a, b", "b, c").startswith("This has changed")
    assert said("a: -5", "a: 5").startswith("This has changed")


@pytest.mark.parametrize(("description", "runs"), [("Pay", True), ("Pay in USD", False)])
def test_tool_that_asks_itself_must_be_the_same_at_the_yes(description: str, runs: bool):
    """Its preview is made by its own code, which must not run twice: its definition is compared."""
    ran: list[Any] = []

    def asking(description: str) -> Tool:
        @tool(name="ask", description=description, proposes=True)
        def ask(euros: int) -> PendingConfirmation:
            stash_pending(kind="pay", preview=f"Pay {euros} EUR", args={"euros": euros})
            return PendingConfirmation(action="pay", preview=f"Pay {euros} EUR")

        return ask

    store = InMemoryPendingStore()
    store.register_executor_factory(
        "pay", lambda action: lambda: ran.append(action.args["euros"]) or "paid 5"
    )
    chat(store, asking("Pay")).ask_channel("ana", "pay")
    said = chat(store, asking(description)).ask_channel("ana", "yes").content
    assert (said, ran) == (("paid 5", [5]) if runs else (CHANGED, []))


def test_undo_of_a_changed_tool_does_not_run(make_bot):
    """The undo that was offered is that of the tool that ran."""
    undone: list[str] = []

    def restore(name: str) -> None:
        undone.append(name)

    bot = make_bot("A", undo=restore)
    bot.say("delete A")
    bot.say("yes")
    bot.rig.store.executors.kinds = make_bot(
        "A", undo=restore, version="3"
    ).rig.store.executors.kinds
    assert bot.say(tap=bot.buttons[0].data).startswith(
        "This has changed since I asked you: Undo: Delete A"
    )
    assert undone == []


def test_claimed_action_is_compared_by_the_worker_that_takes_over(make_bot):
    """The first worker dies between claim and start; the next one runs newer code."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes", event="e-yes")
    bot.die_after("claim")
    bot.rig.store.executors.kinds = make_bot("A", version="3").rig.store.executors.kinds
    assert bot.work().startswith("This has changed since I asked you: Delete A")
    assert bot.deleted == []


def test_started_action_is_not_shown_again(make_bot):
    """Its own effect may have changed what the preview says: an idempotent one is repeated after a crash."""
    gone: list[str] = []
    bot = make_bot(
        "A", idempotent=True, preview=lambda name: f"Delete {name}, {len(gone)} are gone"
    )
    bot.say("delete A")
    bot.hear("yes", event="e-yes")
    bot.die_after("start")
    gone.append("A")
    assert (bot.work(), bot.deleted) == ("deleted A", ["A"])


def test_button_of_the_host_runs_what_was_shown():
    """The store's own calls are made without an event loop; the preview is compared there, too."""
    done = []

    @tool(requires_approval=True, preview="Delete {name}")
    def delete(name: str) -> str:
        """Delete a thing."""
        done.append(name)
        return f"deleted {name}"

    bot = ChannelAgent(Agent([delete], ScriptedProvider([ToolCall("delete", {"name": "A"})])))
    bot.ask_channel("ana", "delete A")
    assert bot.store.pop_if_intent("ana", "confirm").executed
    assert done == ["A"]


@pytest.mark.parametrize("preview", [None, "Send {data}"])
def test_order_of_arguments_is_no_change(preview):
    """Tools of a server have no order of their own, and the record sorts what the model wrote."""
    done = []
    schema = {
        "type": "object",
        "properties": {"to": {"type": "string"}, "data": {"type": "object"}},
    }
    send = Tool(
        "send", "Send", [], lambda **args: done.append(args), input_schema=schema, preview=preview
    )
    asking = replace(send, requires_approval=True)
    call = ToolCall("send", {"to": "ana", "data": {"year": 2026, "amount": 5}})
    bot = ChannelAgent(Agent([asking], ScriptedProvider([call])))
    bot.ask_channel("ana", "send it")
    bot.ask_channel("ana", "yes")
    assert done == [{"to": "ana", "data": {"year": 2026, "amount": 5}}]


def asking(description: str = "Pay", **options: Any) -> Tool:
    """Return a tool whose own code asks for an action of the kind "pay"."""

    @tool(name="ask", description=description, proposes=True, **options)
    def ask(euros: int) -> PendingConfirmation:
        stash_pending(kind="pay", preview=f"Pay {euros} EUR", args={"euros": euros})
        return PendingConfirmation(action="pay", preview=f"Pay {euros} EUR")

    return ask


WITHDRAWALS: dict[str, tuple[list[Tool], AgentConfig]] = {
    "denied": ([asking()], AgentConfig(tool_policy=ToolPolicy(allow=["*"], deny=["ask"]))),
    "removed": ([], AgentConfig()),
}


@pytest.mark.parametrize("withdrawal", WITHDRAWALS)
def test_question_of_a_withdrawn_tool_runs_nothing(withdrawal: str):
    """An operator who denies or removes the tool that asked withdraws what it asked, whatever executor is left."""
    ran: list[Any] = []
    tools, config = WITHDRAWALS[withdrawal]
    store = InMemoryPendingStore()
    store.register_executor_factory("pay", lambda action: lambda: ran.append(action.args["euros"]))
    chat(store, asking()).ask_channel("ana", "pay")
    said = (
        ChannelAgent(Agent(tools, ScriptedProvider([]), config=config), store)
        .ask_channel("ana", "yes")
        .content
    )
    assert (said, ran) == (
        "I could not safely confirm this: Pay 5 EUR\nNothing was done. Please ask again.",
        [],
    )


def test_question_of_a_tool_that_the_role_hides_by_now_runs_nothing():
    """A person who lost a role cannot use its tools by an older question, nor the tools that only ask."""
    ran: list[Any] = []
    roles = {"ana": "admin"}
    store = InMemoryPendingStore()
    store.register_executor_factory("pay", lambda action: lambda: ran.append(action.args["euros"]))
    by_role = RoleBasedSelector(lambda: roles["ana"], allowed={"admin": ["ask"], "guest": []})
    model = ScriptedProvider(
        [[ToolCall("ask", {"euros": 5}, "c1"), ToolCall("ask", {"euros": 6}, "c2")]]
    )
    bot = ChannelAgent(Agent([asking()], model, selector=by_role), store)
    bot.ask_channel("ana", "pay")
    roles["ana"] = "guest"
    assert bot.ask_channel("ana", "yes").content.startswith("I could not safely confirm this: ")
    assert ran == []


def test_plan_with_one_withdrawn_step_runs_no_step():
    """A plan is refused as a whole, not done by half, where the tool of its last step is denied or gone."""
    ran: list[Any] = []
    note = Tool(
        "note",
        "Note",
        [],
        lambda: ran.append("note"),
        requires_approval=True,
        preview="Write a note",
    )
    store = InMemoryPendingStore()
    model = ScriptedProvider([[ToolCall("note", {}, "c1"), ToolCall("pay", {"euros": 5}, "c2")]])
    ChannelAgent(Agent([note, paying(ran)], model), store).ask_channel("ana", "pay")
    said = (
        ChannelAgent(Agent([note], ScriptedProvider([])), store).ask_channel("ana", "yes").content
    )
    assert (said, ran) == (
        "I could not safely confirm this: Pay 5 EUR\nNothing was done. Please ask again.",
        [],
    )


def test_layout_of_a_definition_is_no_change():
    """Another indentation of a docstring, or another order of a set, makes no other tool."""

    def made(description: str, required: list[str], preview: str) -> Tool:
        schema = {"type": "object", "properties": {"euros": {}, "to": {}}, "required": required}
        return Tool(
            "pay",
            description,
            [],
            lambda **args: "paid",
            input_schema=schema,
            preview=preview,
            requires_approval=True,
        )

    first = made("Pay\n    in EUR.", ["euros", "to"], "Pay {euros}  EUR ")
    second = made("Pay in EUR.", ["to", "euros"], "Pay {euros} EUR")
    store = InMemoryPendingStore()
    model = ScriptedProvider([ToolCall("pay", {"euros": 5, "to": "bob"}, "c1")])
    ChannelAgent(Agent([first], model), store).ask_channel("ana", "pay")
    assert (
        ChannelAgent(Agent([second], ScriptedProvider([])), store).ask_channel("ana", "yes").content
        == "paid"
    )
