"""ShownTools: a small catalog is shown whole, a conversation keeps what it needs of a large one, and roles hold."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    AllOf,
    Always,
    AnyOf,
    ChannelAgent,
    ConversationMemory,
    EmbeddingSelector,
    FailOpen,
    KeywordSelector,
    RoleBasedSelector,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolPolicy,
    ToolSelector,
)
from sayso.agent.run.shown_tools import MAX_NAMES, NOTE, within_limit
from sayso.agent.run.state import CallOutcome, JournaledAnswer, ModelAnswer, NoJournal
from sayso.agent.tools.parameter import ToolParameter
from sayso.agent.toolsets.selectors import restriction_of, shortening_of

ran: list[str] = []
#: What each tool is about, by its name. No two share a word.
CATALOG = {
    "refund_invoice": "Pay money back for an invoice",
    "book_room": "Reserve a meeting place",
    "track_parcel": "Say where a delivery is",
    "list_holidays": "Show public days off",
    "draw_chart": "Plot numbers as bars",
}


def made(name: str, **options: Any) -> Tool:
    """Return a tool of the catalog that notes that it ran."""
    parameter = ToolParameter(name="which", description="which one")
    return Tool(
        name,
        CATALOG.get(name, "Do it"),
        [parameter],
        lambda which: ran.append(name) or "ok",
        **options,
    )


SMALL = [made(name) for name in CATALOG]
#: A large catalog for NEAREST: no message of these tests needs the others.
TOOLS = [*SMALL, *(made(f"unused_{'x' * number}") for number in range(1, 50))]
NEAREST = EmbeddingSelector(top_k=1, show_all_tokens=1000)


@pytest.fixture(autouse=True)
def begin_with_few_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a conversation begin with no more tools than its first message needs."""
    ran.clear()
    monkeypatch.setattr("sayso.agent.run.shown_tools.FIRST_TOKENS", 0)


def talk(
    texts: list[str],
    answers: list[Any],
    *,
    selector: ToolSelector | None = NEAREST,
    tools: list[Tool] = TOOLS,
    memory: ConversationMemory | None = None,
    config: AgentConfig | None = None,
) -> list[list[str]]:
    """Return the names of the tools in each request of a conversation."""
    model = ScriptedProvider(answers)
    agent = Agent(tools, model, config, selector=selector)
    memory = memory if memory is not None else ConversationMemory()
    for text in texts:
        agent.run(text, memory=memory)
    return [[schema["name"] for schema in request.tools] for request in model.requests]


REFUND = "refund invoice 5"
ROOM = "book a room"
PARCEL = "track my parcel"


def test_small_catalog_is_shown_whole() -> None:
    """Choosing would save less than the vendor's cache does."""
    assert talk([REFUND, ROOM], ["a", "b"], tools=SMALL) == [list(CATALOG)] * 2


def test_roles_hold_where_all_is_shown() -> None:
    """Only what shortens the list is left out."""
    by_role = RoleBasedSelector("guest", allowed={"guest": ["book_*", "track_*"]})
    shown = talk(
        [REFUND],
        [ToolCall("refund_invoice", {"which": "5"}), "a"],
        selector=AllOf(by_role, EmbeddingSelector()),
    )
    assert (shown, ran) == ([["book_room", "track_parcel"]] * 2, [])


def test_conversation_keeps_its_tools_and_new_ones_come_last() -> None:
    """The request begins as the one before: that is what vendors cache."""
    shown = talk([ROOM, REFUND, "thanks!", PARCEL], list("abcd"))
    finder = "find_tools"
    assert shown == [
        [finder, "book_room"],
        [finder, "book_room", "refund_invoice"],
        [finder, "book_room", "refund_invoice"],
        [finder, "book_room", "refund_invoice", "track_parcel"],
    ]


def test_conversation_begins_with_as_many_tools_as_a_cache_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The nearest ones come first, in the order of the catalog after that; fewer would cost more in the end."""
    monkeypatch.setattr("sayso.agent.run.shown_tools.FIRST_TOKENS", 200)
    (shown,) = talk([ROOM], ["a"])
    assert (shown[:2], 4 <= len(shown) <= 8) == (["find_tools", "book_room"], True)


def test_message_whose_tool_is_shown_adds_no_other() -> None:
    """Another tool that is nearly as near would cost the cached prefix."""
    alike = [*TOOLS, made("refund_fee"), made("refund_tax")]
    selector = EmbeddingSelector(top_k=3, show_all_tokens=1000)
    shown = talk(
        [REFUND, "refund invoice 6 and the fee"], list("ab"), selector=selector, tools=alike
    )
    assert "refund_invoice" in shown[0]
    assert shown[1] == shown[0]


def test_every_worker_shows_the_same() -> None:
    """What a conversation needs is stored with it, as JSON, and goes with it."""
    memory = ConversationMemory()
    talk([ROOM, REFUND], list("ab"), memory=memory)
    assert memory.notes == {NOTE: ["book_room", "refund_invoice"]}
    stored = json.loads(json.dumps(memory.to_dict()))
    assert talk([PARCEL], ["c"], memory=ConversationMemory.from_dict(stored)) == [
        ["find_tools", "book_room", "refund_invoice", "track_parcel"]
    ]
    memory.clear()
    assert talk([PARCEL], ["c"], memory=memory) == [["find_tools", "track_parcel"]]


def test_a_note_that_cannot_be_read_shows_nothing_more() -> None:
    """It may be of another release, or written by a program."""
    for note in ("all", [1, None, "drop_database"], {"a": 1}):
        memory = ConversationMemory(notes={NOTE: note})
        assert talk([PARCEL], ["c"], memory=memory) == [["find_tools", "track_parcel"]]


def test_tool_that_a_role_has_lost_is_neither_shown_nor_called() -> None:
    """It comes back at its old place with the role."""
    role = ["boss"]
    by_role = RoleBasedSelector(
        lambda: role[0], allowed={"boss": ["*"], "guest": ["book_*", "track_*", "unused_*"]}
    )
    memory = ConversationMemory()
    selector = AllOf(by_role, NEAREST)
    talk([REFUND, ROOM], list("ab"), selector=selector, memory=memory)
    role[0] = "guest"
    answers = [
        ToolCall("refund_invoice", {"which": "5"}),
        ToolCall("find_tools", {"query": "refund invoice"}),
        "no",
    ]
    shown = talk([REFUND], answers, selector=selector, memory=memory)
    assert (shown, ran) == (
        [["find_tools", "book_room"], ["find_tools", "book_room"], shown[2]],
        [],
    )
    assert "refund_invoice" not in shown[2]
    role[0] = "boss"
    assert talk(["thanks!"], ["a"], selector=selector, memory=memory)[0][:3] == [
        "find_tools",
        "refund_invoice",
        "book_room",
    ]


def test_tool_that_the_policy_denies_by_now_is_not_shown() -> None:
    """An operator's rule counts at once, also in conversations that have used the tool."""
    memory = ConversationMemory()
    talk([REFUND, ROOM], list("ab"), memory=memory)
    denying = AgentConfig(tool_policy=ToolPolicy(allow=["*"], deny=["refund_*"]))
    answers = [
        ToolCall("find_tools", {"query": "refund invoice"}),
        ToolCall("refund_invoice", {"which": "5"}),
        "no",
    ]
    shown = talk([REFUND], answers, memory=memory, config=denying)
    assert (any("refund_invoice" in names for names in shown), ran) == (False, [])


def test_found_tool_can_be_called_and_stays() -> None:
    """The model searches, the tool joins those of the conversation, and the result stays short."""
    memory = ConversationMemory()
    answers = [
        ToolCall("find_tools", {"query": "refund an invoice"}),
        ToolCall("refund_invoice", {"which": "5"}),
        "done",
    ]
    shown = talk(["erstatte Rechnung 5"], answers, memory=memory)
    assert (shown[0], ran) == (["find_tools"], ["refund_invoice"])
    assert shown[1] == shown[2]
    assert talk(["danke"], ["gern"], memory=memory) == [shown[1]]
    result = next(each.content for each in memory.get_history() if each.tool_name == "find_tools")
    assert result.splitlines()[:2] == [
        "These tools can be called from now on:",
        "- refund_invoice(which)",
    ]
    assert len(result) < 200


class DyingJournal(NoJournal):
    """A journal of two workers: the first one dies before the model's second answer is recorded."""

    def __init__(self) -> None:
        self.recorded: list[JournaledAnswer] = []
        self.unread: list[JournaledAnswer] = []

    async def next_answer(self) -> JournaledAnswer | None:
        """Return the answer of the first worker once."""
        return self.unread.pop() if self.unread else None

    def record_answer(self, answer: ModelAnswer) -> bool:
        """Record an answer with the outcomes of its calls."""
        if self.recorded and not self.unread:
            raise KeyboardInterrupt
        self.recorded.append(JournaledAnswer(answer))
        return True

    async def record_outcome(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Record the outcome of a call."""
        self.recorded[-1] = replace(self.recorded[-1], outcomes={at: outcome})
        return outcome


def test_worker_that_takes_over_shows_what_was_found_before() -> None:
    """The names stand in the journaled result: nothing is searched again."""
    journal = DyingJournal()
    search = ToolCall("find_tools", {"query": "refund"}, "c1")
    refund = ToolCall("refund_invoice", {"which": "5"}, "c2")
    first = Agent(TOOLS, ScriptedProvider([search, refund]), selector=NEAREST)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(first.arun("Geld", journal=journal))
    journal.unread = [*journal.recorded]
    journal.recorded = []
    model = ScriptedProvider([refund, "done"])
    asyncio.run(Agent(TOOLS, model, selector=NEAREST).arun("Geld", journal=journal))
    assert [schema["name"] for schema in model.requests[0].tools or ()][:2] == [
        "find_tools",
        "refund_invoice",
    ]
    assert ran == ["refund_invoice"]


def test_catalog_that_is_never_shown_whole_is_kept_as_well() -> None:
    """`show_all_tokens: 0` says when to choose, not how much a conversation keeps."""
    shown = talk(
        [ROOM, REFUND],
        list("ab"),
        selector=EmbeddingSelector(top_k=1, show_all_tokens=0),
        tools=SMALL,
    )
    assert shown[1] == ["find_tools", "book_room", "refund_invoice"]


def test_nothing_found_says_so() -> None:
    """The model must not go on searching."""
    memory = ConversationMemory()
    talk(["?"], [ToolCall("find_tools", {"query": "!!!"}), "no"], memory=memory)
    assert memory.get_history()[2].content.startswith("No tool matches.")


def test_found_tool_asks_first_as_always() -> None:
    """The question shows the real tool and its arguments, and it runs after the yes."""
    asking = [*TOOLS[1:], made("refund_invoice", requires_approval=True, preview="Refund {which}")]
    policy = AgentConfig(tool_policy=ToolPolicy(review=["*"]))
    model = ScriptedProvider(
        [ToolCall("find_tools", {"query": "refund"}), ToolCall("refund_invoice", {"which": "5"})]
    )
    bot = ChannelAgent(Agent(asking, model, policy, selector=NEAREST))
    assert "Refund 5" in bot.ask_channel("ana", "Geld zurück").content
    assert ran == []
    bot.ask_channel("ana", "yes")
    assert ran == ["refund_invoice"]


def test_policy_can_deny_the_tool_that_finds_others() -> None:
    """Then the model is shown the nearest ones, and all where nothing is near."""
    denying = AgentConfig(tool_policy=ToolPolicy(allow=["*"], deny=["find_tools"]))
    assert talk([ROOM], ["a"], config=denying) == [["book_room"]]
    assert talk(["thanks!"], ["a"], config=denying) == [[tool.name for tool in TOOLS]]


def test_a_tool_of_the_user_keeps_its_name() -> None:
    """The tool that finds others takes the next free name."""
    assert talk([ROOM], ["a"], tools=[*TOOLS, made("find_tools")])[0] == [
        "search_tools",
        "book_room",
    ]
    both = [*TOOLS, made("find_tools"), made("search_tools")]
    assert talk([ROOM], ["a"], tools=both)[0] == ["find_tools_2", "book_room"]


def test_tools_are_removed_many_at_once() -> None:
    """Those that are needed now and those that were called last stay, in their order."""
    names = [f"t{number}" for number in range(10)]
    sizes = dict.fromkeys(names, 10)
    assert within_limit(names, sizes, [], [], max_tokens=100) == names
    kept = within_limit([*names, "t10"], sizes | {"t10": 10}, ["t10"], ["t3", "t1"], max_tokens=100)
    assert kept == ["t1", "t3", "t8", "t9", "t10"]
    many = [f"t{number}" for number in range(MAX_NAMES + 1)]
    assert len(within_limit(many, {}, [], [])) == MAX_NAMES // 2


class Picky(EmbeddingSelector):
    """A selector whose own `select` restricts."""

    async def select(self, messages, tools):  # type: ignore[no-untyped-def]
        """Return the first tool."""
        return list(tools)[:1]


ROLES = RoleBasedSelector("guest", allowed={"guest": ["book_*"]})
WORDS = KeywordSelector({"book_room": ["room"]})


@pytest.mark.parametrize(
    ("selector", "restricts", "shortens"),
    [
        (ROLES, True, False),
        (WORDS, True, False),
        (Picky(), True, False),
        (NEAREST, False, True),
        (FailOpen(Always(NEAREST, ["a"])), False, True),
        (AllOf(ROLES, NEAREST), True, True),
        (AllOf(ROLES, WORDS), True, False),
        (AnyOf(ROLES, NEAREST), False, True),
        (AnyOf(AllOf(ROLES, NEAREST), ROLES), True, True),
        (AnyOf(), True, False),
        (AllOf(), False, False),
    ],
)
def test_what_restricts_is_told_from_what_shortens(
    selector: ToolSelector, restricts: bool, shortens: bool
) -> None:
    """A selector that Sayso does not know restricts."""
    assert (restriction_of(selector) is not None, shortening_of(selector) is not None) == (
        restricts,
        shortens,
    )
