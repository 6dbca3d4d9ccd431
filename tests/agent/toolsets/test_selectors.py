"""Selectors: who may not use a tool never sees it, and one that fails widens nothing."""

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
from sayso.pending.proposals import ChannelRun, channel_run


def make(name: str, description: str = "A tool") -> Tool:
    """A tool that says its name."""
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
    """Chooses tools by name, and writes down what it was given."""

    def __init__(self, *names: str) -> None:
        self.names, self.given = names, []

    async def select(self, messages, tools):
        """In reverse, as the order must not matter."""
        self.given.append([tool.name for tool in tools])
        return [tool for tool in reversed(list(tools)) if tool.name in self.names]


class Broken:
    """A selector with a bug."""

    async def select(self, messages, tools):
        """Raise."""
        raise RuntimeError("bug")


def user(text: str) -> list[Message]:
    """A conversation whose last words are the user's."""
    return [Message(Role.ASSISTANT, "hello"), Message(Role.USER, text)]


def names(selector: ToolSelector, text: str | list[Message] = "go", tools: list[Tool] = TOOLS) -> list[str]:
    """What is shown after these words."""
    messages = user(text) if isinstance(text, str) else text
    return [tool.name for tool in asyncio.run(narrow(selector, messages, tools))]


def spoken_by(user_id: str, selector: ToolSelector) -> list[str]:
    """What is shown to this person on a channel."""
    with channel_run(ChannelRun(user_id, "desk", "C1", 60.0, "test")):
        return names(selector)


def test_tool_left_out_cannot_be_called():
    """Neither is it shown, nor does naming it help."""
    ran = []
    hidden = Tool("hidden", "Must not run", (), lambda: ran.append(1))
    provider = ScriptedProvider([ToolCall("hidden"), "no"])
    agent = Agent([*TOOLS, hidden], provider, selector=RoleBasedSelector("viewer"))
    assert agent.run("go").content == "no"
    assert [schema["name"] for schema in provider.requests[0].tools] == ["read_file"]
    assert ran == []


def test_without_a_selector_all_tools_are_shown_in_each_step():
    """None is the default."""
    for options in ({}, {"selector": None}):
        provider = ScriptedProvider([ToolCall("search"), "done"])
        assert Agent(TOOLS, provider, **options).run("go").content == "done"
        shown = [[schema["name"] for schema in request.tools] for request in provider.requests]
        assert shown == [[each.name for each in TOOLS]] * 2


def test_a_selector_is_asked_before_each_step_with_what_was_said():
    """The conversation so far and all tools, each time."""
    said = []

    class Listening(Choose):
        """Notes the messages."""

        async def select(self, messages, tools):
            said.append([message.content for message in messages])
            return await super().select(messages, tools)

    selector = Listening("search")
    Agent(TOOLS, ScriptedProvider([ToolCall("search"), "done"]), selector=selector).run("find it")
    assert selector.given == [[each.name for each in TOOLS]] * 2
    assert ("find it" in said[0][-1], said[1][-1]) == (True, "search")


class Shelf(NoJournal):
    """A journal that the first worker dies at, once it has noted an answer, and the second one reads."""

    def __init__(self) -> None:
        self.noted, self.unread = [], []

    async def next_answer(self):
        """What the dead worker noted, once."""
        return JournaledAnswer(self.unread.pop()) if self.unread else None

    def record_answer(self, answered):
        """Take it down, and die."""
        self.noted.append(answered)
        self.unread.append(answered)
        raise KeyboardInterrupt


def test_after_a_kill_only_what_the_model_was_shown_can_be_called():
    """The successor asks no selector again: the names are in the journal, and a role won meanwhile adds nothing."""
    ran, shelf = [], Shelf()
    tools = [*TOOLS, Tool("hidden", "Must not run", (), lambda: ran.append(1))]
    first = Agent(tools, ScriptedProvider([ToolCall("hidden")]), selector=Choose("search"))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(first.arun("go", journal=shelf))
    assert shelf.noted[0].tools == ("search",)
    second = Agent(tools, ScriptedProvider(["no"]), selector=Choose("hidden"))
    result = asyncio.run(second.arun("go", journal=shelf))
    assert (ran, "Unknown tool" in result.messages[2].content) == ([], True)


def test_failing_selector_shows_nothing(caplog):
    """Who may see what is not for an error to widen; the turn is answered all the same, and the log says why."""
    agent = Agent(TOOLS, ScriptedProvider(["hello"]), selector=Broken())
    assert agent.run("go").content == "hello"
    assert agent.provider.requests[0].tools == []
    assert "FailOpen" in caplog.records[0].advice


class Answering:
    """A selector that answers whatever it is told to."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def select(self, messages, tools):
        """The answer; an exception is raised."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [None, "search", ["search"], [None], 5, SystemExit(1), TimeoutError()])
def test_answer_that_is_no_list_of_tools_is_a_failure(answer):
    """It shows nothing; and everything where the selector may fail."""
    said = [Message(Role.USER, "hi")]
    assert asyncio.run(narrow(Answering(answer), said, TOOLS)) == []
    assert asyncio.run(narrow(FailOpen(Answering(answer)), said, TOOLS)) == TOOLS


class Hanging:
    """A selector that never answers."""

    select_seconds = 0.01

    async def select(self, messages, tools):
        """Wait."""
        await asyncio.Event().wait()


def test_selector_that_hangs_is_a_failure():
    """It costs a turn its limit, wherever it stands, and never the answer."""
    said = [Message(Role.USER, "hi")]
    assert asyncio.run(narrow(AllOf(Hanging()), said, TOOLS)) == []
    assert asyncio.run(narrow(AllOf(FailOpen(Hanging())), said, TOOLS)) == TOOLS


@pytest.mark.parametrize("broken", [AllOf(Broken()), AnyOf(Broken()), AllOf(FailOpen(Choose("search")), Broken())])
def test_failing_part_shows_nothing_either(broken):
    """Wherever it is in a composition."""
    assert names(broken) == []


def test_failing_alternative_leaves_the_others():
    """Any of the two, and one works."""
    assert names(AnyOf(Broken(), Choose("search"))) == ["search"]


def test_selector_that_restricts_nobody_may_fail_open(caplog):
    """All tools are shown, behind roles still only the role's; one warning until it works again."""
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
def test_keywords_choose_as_in_the_seed(text, shown):
    """Case-insensitive, anywhere in the latest message; no match, no tool."""
    assert names(SEED, text) == shown


def test_keywords_know_only_the_users_words():
    """No messages, no tools; after a tool's result all of them."""
    assert names(SEED, []) == []
    assert len(names(SEED, [*user("hello"), Message(Role.TOOL, "42")])) == 4


def test_keyword_of_a_tool_is_found_by_its_name_in_any_case():
    """`Write_File` in the table is `write_file`."""
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
def test_whole_words_are_words_in_every_script(word, text, found):
    """Where a script has no spaces, any place may be a word's end; vowel signs belong to their word."""
    assert bool(names(KeywordSelector({"search": [word]}, whole_words=True), text)) is found


@pytest.mark.parametrize("keywords", [{"search": "find"}, {"search": [""]}, {"search": [5]}])
def test_keywords_that_are_no_list_of_words_are_refused(keywords):
    """A text would be read letter by letter, and an empty word is in every message."""
    with pytest.raises(ValueError, match="search"):
        KeywordSelector(keywords)


@pytest.mark.parametrize(("role", "shown"), [
    ("viewer", ["read_file"]),
    ("Editor", ["write_file", "read_file"]),
    ("ADMIN", ["write_file", "delete_file"]),
    ("stranger", []),
    ("", []),
])  # fmt: skip
def test_roles_choose_as_in_the_seed(role, shown):
    """By ALLOWED_TOOLS, whatever is said; a role that is not named has no tool."""
    assert names(RoleBasedSelector(role)) == shown


def test_roles_may_be_a_subclass_or_a_mapping():
    """Both ways of the seed, and patterns."""

    class Ours(RoleBasedSelector):
        ALLOWED_TOOLS = {"Desk": {"search"}}  # noqa: RUF012  # as in the seed

    assert names(Ours("desk")) == ["search"]
    assert names(RoleBasedSelector("Desk", allowed={"desk": ["*_file"]})) == ["write_file", "read_file", "delete_file"]


@pytest.mark.parametrize("allowed", [{"a": "find_*"}, {"a": [], "A": ["*"]}])
def test_ambiguous_roles_are_refused(allowed):
    """A text for a list, or one role twice: nobody could say what it may do."""
    with pytest.raises(ValueError, match="role"):
        RoleBasedSelector("a", allowed=allowed)


def test_role_is_that_of_whoever_speaks():
    """By the user's id in their channel's run; others have the default, and outside a run nobody is listed."""
    roles = UserRoles({"U1": "admin"}, "viewer")
    selector = RoleBasedSelector(roles, allowed={"admin": ["*"], "viewer": ["read_*"]})
    assert len(spoken_by("U1", selector)) == 4
    assert spoken_by("U2", selector) == ["read_file"]
    assert names(selector) == ["read_file"]
    assert spoken_by("U2", RoleBasedSelector(UserRoles({"U1": "admin"}))) == []


def test_role_may_be_asked_for():
    """A directory takes its time."""

    async def ask() -> str:
        return "Viewer"

    assert names(RoleBasedSelector(ask)) == ["read_file"]


def test_role_that_cannot_be_told_shows_nothing():
    """A directory that is down makes nobody an admin."""
    assert names(RoleBasedSelector(lambda: 1 / 0, allowed={"": ["*"]})) == []
    assert names(RoleBasedSelector(lambda: None)) == []


def test_all_of_asks_each_about_what_is_left():
    """An intersection, in sequence: the second never sees what the first refused."""
    second = Choose("search", "delete_file")
    assert names(AllOf(Choose("read_file", "search"), second)) == ["search"]
    assert second.given == [["read_file", "search"]]


def test_any_of_is_the_union_in_the_order_given():
    """Whoever chose it, and in whatever order."""
    assert names(AnyOf(Choose("delete_file"), Choose("search", "write_file"))) == [
        "write_file",
        "search",
        "delete_file",
    ]


def test_always_keeps_only_what_it_was_given():
    """Behind a role it brings back nothing that the role must not use."""
    always = Always(SEED, ["search", "delete_*"])
    assert names(always, "hello") == ["search", "delete_file"]
    assert names(AllOf(RoleBasedSelector("editor"), always), "hello") == []


def test_tool_that_was_not_given_stays_out():
    """A selector cannot bring in a tool, nor another function under the name of one."""
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
def test_what_is_certain_beforehand_is_foreseen(selector, foreseen):
    """Roles decide, words depend; what one part forbids no other part allows."""
    assert asyncio.run(would_show(selector, TOOLS[0])) == foreseen


@pytest.mark.parametrize("selector", [SEED, RoleBasedSelector("x"), EmbeddingSelector(), AllOf(), FailOpen(SEED)])
def test_all_are_of_the_seeds_protocol(selector):
    """`isinstance` says so, as the protocol is checked at run time."""
    assert isinstance(selector, ToolSelector)
