"""Long replies: what would be many messages is its beginning and a file, and people read nothing meant for models."""

from __future__ import annotations

import asyncio
import json

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    ChannelAgent,
    ScriptedProvider,
    ToolCall,
    ToolExecutionError,
    emit_artifact,
    tool,
)
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.long_replies import BEGINNING_CHARS, MAX_REPLY_CHARS
from sayso.agent.tools.result_texts import file_note, result_text
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.convert import plain
from sayso.channels.types import Conversation, Tap, Turn
from sayso.pending import stash_pending
from sayso.pending.executors import EffectFailed
from sayso.pending.result_words import words_for_person
from tests.memory_stores import MemoryMediaStore

CHAT = Conversation("telegram", "7")
LONG = "".join(f"line {number} of a long text\n" for number in range(3000))
ISSUE = {
    "node_id": "MDU6SXNzdWUx",
    "number": 7,
    "title": "Found a bug",
    "assignee": None,
    "labels": [{"name": "bug"}, {"name": "ui"}],
    "user": {"login": "octocat", "gravatar_id": ""},
}
IN_WORDS = "Number: 7\nTitle: Found a bug\nLabels: bug, ui\nUser: octocat\n(Technical fields are left out: node ID.)"


@tool(requires_approval=True, preview="Export", undo=lambda result: LONG)
def export() -> str:
    """Export."""
    return LONG


@tool(requires_approval=True, preview="Break")
def breaks() -> str:
    """Fail with a long text."""
    raise ToolExecutionError(LONG)


@tool(read_only=True)
def look(page: int) -> str:
    """Look at a page."""
    return f"page {page}\n{LONG}"


@tool(terminal=True, read_only=True)
def report() -> str:
    """Report."""
    return LONG


class Chat:
    """A chat with a bot that has these model answers. `replies` are those to the last message."""

    def __init__(self, *lines, media=True, tools=(export, breaks, look, report), **config):
        self.media = MemoryMediaStore() if media else None
        agent = Agent(tools, ScriptedProvider(lines), AgentConfig(max_retries=0, **config))
        self.bot = ChannelAgent(agent, media=self.media)
        self.count, self.replies = 0, ()

    def say(self, text="", tap=""):
        """Send a message or a tap. Return the texts of the replies."""
        self.count += 1
        turn = Turn(f"e{self.count}", CHAT, "ana", text, tap=Tap(tap) if tap else None)
        self.replies = asyncio.run(self.bot.take(turn))
        return [reply.text for reply in self.replies if reply.text]

    @property
    def files(self):
        """Return the texts of the files among the replies."""
        return [self.media.read(reply.media.ref).decode() for reply in self.replies if reply.media]


def after_a_yes(chat):
    """Confirm what is proposed."""
    chat.say("go")
    chat.say("yes")


def after_an_undo(chat):
    """Confirm what is proposed, and tap Undo."""
    after_a_yes(chat)
    (button,) = (button for reply in chat.replies for button in reply.buttons)
    chat.say(tap=button.data)


#: The answers of the model, and how the person comes to a long text.
WAYS = {
    "yes": ([ToolCall("export")], after_a_yes),
    "undo": ([ToolCall("export")], after_an_undo),
    "failure": ([ToolCall("breaks")], after_a_yes),
    "plan": ([[ToolCall("export", {}, "1"), ToolCall("breaks", {}, "2")]], after_a_yes),
    "answer": ([LONG], lambda chat: chat.say("go")),
    "terminal tool": ([ToolCall("report")], lambda chat: chat.say("go")),
    "results beside a question": (
        [
            [
                *(ToolCall("look", {"page": page}, f"p{page}") for page in range(9)),
                ToolCall("export", {}, "e"),
            ]
        ],
        lambda chat: chat.say("go"),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_long_text_arrives_as_its_beginning_and_a_file(way):
    """However it comes about, it is one message and one file with all of it."""
    lines, act = WAYS[way]
    chat = Chat(*lines)
    act(chat)
    (file,) = chat.files
    long = next(reply.text for reply in chat.replies if texts_for("en").in_file() in reply.text)
    beginning = long.removesuffix(texts_for("en").in_file()).rstrip()
    assert file.startswith(plain(beginning))
    assert len(beginning) <= BEGINNING_CHARS
    assert len(file) > MAX_REPLY_CHARS
    assert sum(len(reply.text) for reply in chat.replies) < MAX_REPLY_CHARS
    assert way == "results beside a question" or "line 2999 of a long text" in file


@pytest.mark.parametrize("way", WAYS)
def test_without_a_media_store_the_reply_says_how_much_is_left_out(way):
    """The rest is gone, and nobody takes the beginning for the whole."""
    lines, act = WAYS[way]
    chat = Chat(*lines, media=False)
    act(chat)
    text = max((reply.text for reply in chat.replies), key=len)
    assert len(text) < MAX_REPLY_CHARS + 100
    assert "more characters are left out.)" in text


class FullStore(MemoryMediaStore):
    """A store without room."""

    def put(self, *args, **kwargs):
        """Raise an error."""
        raise OSError("disk full")


def test_full_disk_costs_the_file_only():
    """The outcome is told all the same."""
    chat = Chat(ToolCall("export"))
    chat.bot._files._store = FullStore()
    after_a_yes(chat)
    assert "more characters are left out.)" in chat.replies[0].text


def test_text_within_the_bound_stays_as_it_is():
    """Two messages of Telegram are no file."""
    text = "x" * MAX_REPLY_CHARS
    chat = Chat(text)
    assert (chat.say("go"), chat.files) == ([text], [])


def test_question_is_asked_in_full():
    """A yes must not agree to what only a file says."""

    @tool(requires_approval=True, preview="Send {text}")
    def send(text: str) -> str:
        """Send a text."""
        return "sent"

    chat = Chat(ToolCall("send", {"text": "x" * 15_000}), tools=[send])
    assert len(chat.say("go")[0]) > 15_000


def tool_that_returns(value, **options):
    """Return a tool with this result."""

    @tool(**options)
    def ask():
        """Ask an API."""
        return value

    return ask


@pytest.mark.parametrize("value", [ISSUE, json.dumps(ISSUE), json.dumps(ISSUE, indent=2)])
@pytest.mark.parametrize("screened", [True, False])
def test_object_of_an_api_reaches_people_in_words(value, screened):
    """After a yes, from a terminal tool, and beside a question; screened results without their frame."""
    confirmed = tool_that_returns(
        value, requires_approval=True, preview="Create", screen_output=screened
    )
    chat = Chat(ToolCall("ask"), tools=[confirmed])
    chat.say("go")
    assert chat.say("yes") == [IN_WORDS]
    terminal = tool_that_returns(value, terminal=True, screen_output=screened)
    assert Chat(ToolCall("ask"), tools=[terminal]).say("go") == [IN_WORDS]
    read = tool_that_returns(value, read_only=True, screen_output=screened)
    beside = Chat([ToolCall("ask", {}, "1"), ToolCall("export", {}, "2")], tools=[read, export])
    assert beside.say("go")[0] == IN_WORDS


def test_terminal_tool_without_a_value_says_what_is_done():
    """The model's English word for it is not what people read. A file says it itself."""
    silent = tool_that_returns(None, terminal=True)
    assert Chat(ToolCall("ask"), tools=[silent]).say("go") == ["Done: ask"]
    german = ChannelAgent(
        Agent([silent], ScriptedProvider([ToolCall("ask")])),
        behavior=ChannelBehavior(language="de"),
    )
    assert german.ask_channel("ana", "los", channel_id="web").content == "Erledigt: ask"

    @tool(terminal=True)
    def send() -> None:
        """Send a file."""
        emit_artifact(b"x", filename="x.txt", mime_type="text/plain")

    chat = Chat(ToolCall("send"), tools=[send])
    assert (chat.say("go"), chat.files) == ([], ["x"])


NOTE = file_note("cat (2).png, image/png, 3 bytes")


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (NOTE, ""),
        (file_note("a(.pdf, application/pdf, 3 bytes"), ""),
        (f"{file_note('a((1)).pdf')}\nHere it is.", "Here it is."),
        (f"Here it is.\n{NOTE}", "Here it is."),
        (f"{json.dumps(ISSUE)}\n{NOTE}\n{NOTE}", IN_WORDS),
        (json.dumps({"name": "cat", "image": NOTE}), "Name: cat"),
        (f"Created.\n{json.dumps(ISSUE)}", f"Created.\n{IN_WORDS}"),
        ('```\n{"an": "example"}\n```', '```\n{"an": "example"}\n```'),
        ('Use {"dark": true} as the setting', 'Use {"dark": true} as the setting'),
        ("[compressed from 280 chars] 40 rows", "40 rows"),
        ("[truncated from 280 chars; compression failed] row 1", "row 1 […]"),
        ("plain", "plain"),
    ],
)
def test_words_for_the_model_are_left_out(result, told):
    """Notes about files, and JSON objects on lines of their own."""
    assert result_text(result) == told


def test_file_of_a_confirmed_tool_needs_no_note():
    """The file itself arrives; "Done" says what was done."""

    @tool(requires_approval=True, preview="Draw")
    def draw() -> str:
        """Draw."""
        emit_artifact(b"png", mime_type="image/png", filename="cat.png")
        return file_note("cat.png, image/png, 3 bytes")

    chat = Chat(ToolCall("draw"), tools=[draw])
    chat.say("go")
    assert chat.say("yes") == ["Done: Draw"]
    assert chat.files == ["png"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            'pets answered 422 (Refused) to POST /pets: {"message": "Validation Failed", "errors": [{"code": 3}]}',
            "pets answered 422 (Refused) to POST /pets: message Validation Failed, errors (code 3)",
        ),
        (
            'pets answered 500 to GET /pets: {"node_id": "MDU6", "text": "aaa...',
            "pets answered 500 to GET /pets: […]",
        ),
        ("pets answered 500: no reason given", "pets answered 500: no reason given"),
    ],
)
def test_error_quotes_an_api_in_words(error, told):
    """What was cut off cannot be read, and is left out. The app's own words stay."""
    assert words_for_person(ToolExecutionError(error)) == told
    assert words_for_person(EffectFailed(error)) == error


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (ISSUE, IN_WORDS),
        (json.dumps(ISSUE), IN_WORDS),
        ([{"id": 7}], "- ID 7"),
        ("Sent.", "Sent."),
        (12.5, "Done: Create\n12.5"),
    ],
)
def test_result_of_an_executor_reaches_people_in_words(value, told):
    """An executor that a tool stashed may return anything, and no tool turns it into text."""

    @tool
    def ask() -> object:
        """Ask before an effect of its own."""
        return stash_pending(kind="own", preview="Create", args={}, executor=lambda: value)

    chat = Chat(ToolCall("ask"), tools=[ask])
    chat.say("go")
    assert [plain(each) for each in chat.say("yes")] == [told]


@pytest.mark.parametrize("number", ["12345678901234567890.12", "1e5", "007", "1.50"])
def test_number_stays_as_it_is_written(number):
    """No digit gets lost."""
    assert result_text(number) == number


def test_result_that_is_too_long_for_a_record_is_cut():
    """The file has its beginning, and how long it was."""

    @tool(requires_approval=True, preview="Dump")
    def dump() -> str:
        """Dump."""
        return "x" * 600_000

    chat = Chat(ToolCall("dump"), tools=[dump])
    after_a_yes(chat)
    assert chat.files == ["x" * 500_000 + " [… 600000]"]
