"""Selectors: a tool that a user may not use is never shown, and a failing selector shows nothing more."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from sayso.agent import (
    Agent,
    AllOf,
    Always,
    AnyOf,
    FailOpen,
    KeywordSelector,
    Message,
    RoleBasedSelector,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolSelector,
)
from sayso.agent.messages import Role
from sayso.agent.run.state import JournaledAnswer, NoJournal
from sayso.agent.toolsets.embedding import EmbeddingSelector
from sayso.agent.toolsets.selectors import UserRoles, narrow, would_show
from sayso.pending.call_context import ChannelRun, context_field


def make(name: str, description: str = "A tool") -> Tool:
    """Return a tool that returns its name."""
    return Tool(name, description, (), lambda: name)


TOOLS = [make(name) for name in ("write_file", "read_file", "search", "delete_file")]
SEED = KeywordSelector(
    {
        "write_file": ["file", "write", "save", "create"],
        "read_file": ["file", "read", "open", "load"],
        "search": ["search", "find", "query"],
    }
)


class Choose:
    """Selects tools by name, and records the tools it was given."""

    def __init__(self, *names: str) -> None:
        self.names, self.given = names, []

    async def select(self, messages, tools):
        """Return the chosen tools in reverse, because the order must not matter."""
        self.given.append([tool.name for tool in tools])
        return [tool for tool in reversed(list(tools)) if tool.name in self.names]


class Broken:
    """A selector with a bug."""

    async def select(self, messages, tools):
        """Raise an error."""
        raise RuntimeError("bug")


def user(text: str) -> list[Message]:
    """Return a conversation that ends with the user's message."""
    return [Message(Role.ASSISTANT, "hello"), Message(Role.USER, text)]


def names(
    selector: ToolSelector, text: str | list[Message] = "go", tools: list[Tool] = TOOLS
) -> list[str]:
    """Return the names of the tools shown after this text."""
    messages = user(text) if isinstance(text, str) else text
    return [tool.name for tool in asyncio.run(narrow(selector, messages, tools))]


def shown_to(user_id: str, selector: ToolSelector) -> list[str]:
    """Return the names of the tools shown to this user on a channel."""
    with context_field("run", ChannelRun(user_id, "desk", "C1", 60.0, "test")):
        return names(selector)


def test_unselected_tool_cannot_be_called():
    """It is not shown, and a call by its name is refused."""
    ran = []
    hidden = Tool("hidden", "Must not run", (), lambda: ran.append(1))
    provider = ScriptedProvider([ToolCall("hidden"), "no"])
    agent = Agent([*TOOLS, hidden], provider, selector=RoleBasedSelector("viewer"))
    assert agent.run("go").content == "no"
    assert [schema["name"] for schema in provider.requests[0].tools] == ["read_file"]
    assert ran == []


def test_all_tools_are_shown_without_a_selector():
    """None is the default."""
    for options in ({}, {"selector": None}):
        provider = ScriptedProvider([ToolCall("search"), "done"])
        assert Agent(TOOLS, provider, **options).run("go").content == "done"
        shown = [[schema["name"] for schema in request.tools] for request in provider.requests]
        assert shown == [[each.name for each in TOOLS]] * 2


def test_selector_is_called_before_each_step():
    """It receives the conversation so far and all tools."""
    said = []

    class Listening(Choose):
        """Records the messages."""

        async def select(self, messages, tools):
            said.append([message.content for message in messages])
            return await super().select(messages, tools)

    selector = Listening("search")
    Agent(TOOLS, ScriptedProvider([ToolCall("search"), "done"]), selector=selector).run("find it")
    assert selector.given == [[each.name for each in TOOLS]] * 2
    assert ("find it" in said[0][-1], said[1][-1]) == (True, "search")


class DyingJournal(NoJournal):
    """A journal that kills the first worker after an answer, and returns that answer to the second."""

    def __init__(self) -> None:
        self.noted, self.unread = [], []

    async def next_answer(self):
        """Return the recorded answer once."""
        return JournaledAnswer(self.unread.pop()) if self.unread else None

    def record_answer(self, answered):
        """Record the answer and die."""
        self.noted.append(answered)
        self.unread.append(answered)
        raise KeyboardInterrupt


def test_after_a_crash_only_tools_shown_to_the_model_can_be_called():
    """The successor calls no selector: the names are in the journal, and a role granted since adds no tool."""
    ran, shelf = [], DyingJournal()
    tools = [*TOOLS, Tool("hidden", "Must not run", (), lambda: ran.append(1))]
    first = Agent(tools, ScriptedProvider([ToolCall("hidden")]), selector=Choose("search"))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(first.arun("go", journal=shelf))
    assert shelf.noted[0].tools == ("search",)
    second = Agent(tools, ScriptedProvider(["no"]), selector=Choose("hidden"))
    result = asyncio.run(second.arun("go", journal=shelf))
    assert (ran, "Unknown tool" in result.messages[2].content) == ([], True)


def test_failing_selector_shows_no_tool(caplog):
    """An error must not widen permissions; the turn is answered, and the log has the reason."""
    agent = Agent(TOOLS, ScriptedProvider(["hello"]), selector=Broken())
    assert agent.run("go").content == "hello"
    assert agent.provider.requests[0].tools == []
    assert "FailOpen" in caplog.records[0].advice


class Answering:
    """A selector that returns or raises a given value."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def select(self, messages, tools):
        """Return the value, or raise it if it is an exception."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer", [None, "search", ["search"], [None], 5, SystemExit(1), TimeoutError()]
)
def test_invalid_selector_answer_is_a_failure(answer):
    """No tool is shown, or all tools behind FailOpen."""
    said = [Message(Role.USER, "hi")]
    assert asyncio.run(narrow(Answering(answer), said, TOOLS)) == []
    assert asyncio.run(narrow(FailOpen(Answering(answer)), said, TOOLS)) == TOOLS


class Hanging:
    """A selector that never answers."""

    select_seconds = 0.01

    async def select(self, messages, tools):
        """Wait forever."""
        await asyncio.Event().wait()


def test_hanging_selector_is_a_failure():
    """It ends at its time limit at any place of a composition, and the turn continues."""
    said = [Message(Role.USER, "hi")]
    assert asyncio.run(narrow(AllOf(Hanging()), said, TOOLS)) == []
    assert asyncio.run(narrow(AllOf(FailOpen(Hanging())), said, TOOLS)) == TOOLS


@pytest.mark.parametrize(
    "broken", [AllOf(Broken()), AnyOf(Broken()), AllOf(FailOpen(Choose("search")), Broken())]
)
def test_failing_part_of_a_composition_shows_no_tool(broken):
    """The position of the part makes no difference."""
    assert names(broken) == []


def test_failing_alternative_keeps_the_others():
    """One of the two selectors works."""
    assert names(AnyOf(Broken(), Choose("search"))) == ["search"]


def test_selector_without_permissions_may_fail_open(caplog):
    """All tools are shown, or behind roles all of the role's; one warning is logged until it works again."""
    fickle = FailOpen(Broken())
    assert names(AllOf(RoleBasedSelector("editor"), fickle)) == ["write_file", "read_file"]
    assert len(names(fickle)) == len(names(fickle)) == 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(("text", "shown"), [
    ("please SAVE it", ["write_file"]),
    ("open the file", ["write_file", "read_file"]),
    ("my profile", ["write_file", "read_file"]),
    ("hello", []),
])  # fmt: skip
def test_keywords_select_as_in_the_seed(text, shown):
    """Keywords match case-insensitively anywhere in the last message; without a match no tool is shown."""
    assert names(SEED, text) == shown


def test_keywords_match_only_user_messages():
    """Without messages no tool is shown, and after a tool's result all of them."""
    assert names(SEED, []) == []
    assert len(names(SEED, [*user("hello"), Message(Role.TOOL, "42")])) == 4


def test_tool_names_of_keywords_ignore_case():
    """The table's `Write_File` is the tool `write_file`."""
    assert names(KeywordSelector({"Write_FILE": ["Save"]}), "save") == ["write_file"]


@pytest.mark.parametrize(
    ("word", "text", "found"),
    [
        ("file", "the file, please", True),
        ("file", "my profile", False),
        ("file", "files", False),
        ("file", "profile and file", True),
        ("löschen", "bitte löschen!", True),
        ("ösch", "bitte löschen!", False),
        ("文件", "请打开文件夹", True),
        ("ไฟล์", "เปิดไฟล์นี้", True),
        ("कर", "फ़ाइल करो", False),
        ("करो", "फ़ाइल करो", True),
        ("ファイル", "そのファイルを開く", True),
        ("c++", "write c++ code", True),
        ("file", "read_file", False),
    ],
)
def test_whole_words_work_in_every_script(word, text, found):
    """In a script without spaces a word may end anywhere, and vowel signs belong to their word."""
    assert bool(names(KeywordSelector({"search": [word]}, whole_words=True), text)) is found


@pytest.mark.parametrize("keywords", [{"search": "find"}, {"search": [""]}, {"search": [5]}])
def test_invalid_keywords_are_refused(keywords):
    """A string would be read letter by letter, and an empty keyword matches every message."""
    with pytest.raises(ValueError, match="search"):
        KeywordSelector(keywords)


@pytest.mark.parametrize(("role", "shown"), [
    ("viewer", ["read_file"]),
    ("Editor", ["write_file", "read_file"]),
    ("ADMIN", ["write_file", "delete_file"]),
    ("stranger", []),
    ("", []),
])  # fmt: skip
def test_roles_select_as_in_the_seed(role, shown):
    """ALLOWED_TOOLS decides, independently of the text; an unknown role has no tools."""
    assert names(RoleBasedSelector(role)) == shown


def test_roles_may_be_a_subclass_or_a_mapping():
    """The seed documents both ways, and patterns."""

    class Ours(RoleBasedSelector):
        ALLOWED_TOOLS = {"Desk": {"search"}}  # noqa: RUF012  # as in the seed

    assert names(Ours("desk")) == ["search"]
    assert names(RoleBasedSelector("Desk", allowed={"desk": ["*_file"]})) == [
        "write_file",
        "read_file",
        "delete_file",
    ]


@pytest.mark.parametrize("allowed", [{"a": "find_*"}, {"a": [], "A": ["*"]}])
def test_ambiguous_roles_are_refused(allowed):
    """A string instead of a list, or a role given twice, is unclear."""
    with pytest.raises(ValueError, match="role"):
        RoleBasedSelector("a", allowed=allowed)


def test_role_depends_on_the_user():
    """The user's id on the channel decides; other users and runs outside a channel have the default role."""
    roles = UserRoles({"U1": "admin"}, "viewer")
    selector = RoleBasedSelector(roles, allowed={"admin": ["*"], "viewer": ["read_*"]})
    assert len(shown_to("U1", selector)) == 4
    assert shown_to("U2", selector) == ["read_file"]
    assert names(selector) == ["read_file"]
    assert shown_to("U2", RoleBasedSelector(UserRoles({"U1": "admin"}))) == []


def test_role_function_may_be_async():
    """A directory service takes time."""

    async def ask() -> str:
        return "Viewer"

    assert names(RoleBasedSelector(ask)) == ["read_file"]


def test_failing_role_function_shows_no_tool():
    """A failing directory service grants no role."""
    assert names(RoleBasedSelector(lambda: 1 / 0, allowed={"": ["*"]})) == []
    assert names(RoleBasedSelector(lambda: None)) == []


def test_all_of_passes_the_selected_tools_on():
    """It is an intersection in sequence: the second selector never sees a tool that the first left out."""
    second = Choose("search", "delete_file")
    assert names(AllOf(Choose("read_file", "search"), second)) == ["search"]
    assert second.given == [["read_file", "search"]]


def test_any_of_is_the_union_in_the_given_order():
    """The order of the selectors makes no difference."""
    assert names(AnyOf(Choose("delete_file"), Choose("search", "write_file"))) == [
        "write_file",
        "search",
        "delete_file",
    ]


def test_always_adds_only_available_tools():
    """Behind a role it adds no tool that the role forbids."""
    always = Always(SEED, ["search", "delete_*"])
    assert names(always, "hello") == ["search", "delete_file"]
    assert names(AllOf(RoleBasedSelector("editor"), always), "hello") == []


def test_selector_cannot_add_a_tool():
    """It can neither add a tool nor replace the function of one."""
    forged = replace(TOOLS[0], function=lambda: "forged")

    class Forging:
        async def select(self, messages, tools):
            return [make("shell"), forged]

    (chosen,) = asyncio.run(narrow(Forging(), user("go"), TOOLS))
    assert chosen is TOOLS[0]


@pytest.mark.parametrize(("selector", "foreseen"), [
    (None, "shown"),
    (RoleBasedSelector("editor"), "shown"),
    (RoleBasedSelector("viewer"), "hidden"),
    (RoleBasedSelector(lambda: 1 / 0), "hidden"),
    (SEED, "depends"),
    (EmbeddingSelector(), "depends"),
    (AllOf(RoleBasedSelector("editor"), SEED), "depends"),
    (AllOf(SEED, RoleBasedSelector("viewer")), "hidden"),
    (AnyOf(SEED, RoleBasedSelector("editor")), "shown"),
    (AnyOf(RoleBasedSelector("viewer"), RoleBasedSelector("x")), "hidden"),
    (AnyOf(RoleBasedSelector("viewer"), SEED), "depends"),
    (Always(SEED, ["write_*"]), "shown"),
    (Always(RoleBasedSelector("viewer"), ["search"]), "hidden"),
    (FailOpen(SEED), "depends"),
])  # fmt: skip
def test_visibility_is_predicted(selector, foreseen):
    """Roles are certain and texts depend; a tool that one part forbids stays hidden."""
    assert asyncio.run(would_show(selector, TOOLS[0])) == foreseen


@pytest.mark.parametrize(
    "selector", [SEED, RoleBasedSelector("x"), EmbeddingSelector(), AllOf(), FailOpen(SEED)]
)
def test_selectors_implement_the_seeds_protocol(selector):
    """The protocol can be checked at runtime with `isinstance`."""
    assert isinstance(selector, ToolSelector)
