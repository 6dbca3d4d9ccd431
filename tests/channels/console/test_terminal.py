"""The terminal: numbers that tap, words without markup, files below one folder."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.console.terminal import TerminalChannel
from sayso.channels.storage.media import MemoryMediaStore
from sayso.channels.types import Button, Delivery, Reply, WebhookRequest
from sayso.pending import InMemoryPendingStore

QUESTION = Reply("Delete **INV-42**?", (Button("Yes", "a:1:yes"), Button("No", "a:1:no")))


class Screen:
    """What a terminal shows, and a channel that prints to it."""

    def __init__(self, folder: Path, **options: bool) -> None:
        self.lines: list[str] = []
        self.files = MemoryMediaStore()
        self.channel = TerminalChannel(
            "terminal", folder=folder, read_file=self.files.read, print_text=self.lines.append, **options
        )

    def show(self, reply: Reply) -> str:
        """What is printed for a reply."""
        before = len(self.lines)
        for piece in self.channel.split(reply):
            asyncio.run(self.channel.send(Delivery("d1", self.channel.conversation, piece)))
        return "".join(self.lines[before:])

    def typed(self, line: str) -> str:
        """What a line becomes: words, or the data of a button behind "tap "."""
        hook = WebhookRequest("", {"x-sayso-terminal": self.channel.secret, "x-sayso-line": "1"}, line.encode())
        (turn,) = self.channel.receive(hook).turns
        return f"tap {turn.tap.data}" if turn.tap else turn.text


@pytest.fixture
def screen(tmp_path: Path) -> Screen:
    """A terminal that is a pipe."""
    return Screen(tmp_path / "chat")


def chat(folder: Path, said: str) -> tuple[str, list[str]]:
    """A conversation with a bot that asks before it deletes A: what was printed, and what was deleted."""
    deleted: list[str] = []

    @tool(requires_approval=True, preview="Delete {name}")
    def delete(name: str) -> str:
        """Delete a thing."""
        deleted.append(name)
        return f"deleted {name}"

    screen = Screen(folder)
    model = ScriptedProvider([ToolCall("delete", {"name": "A"}, "c1"), "a", "b", "c"])
    agent = ChannelAgent(Agent([delete], model, AgentConfig(max_retries=0)), InMemoryPendingStore())
    screen.channel.talk(io.StringIO(said), agent.take)
    return "".join(screen.lines), deleted


@pytest.mark.parametrize("number", ["2", "0", "3", "-1", "01x", "²", "99999", "1."])
def test_only_the_number_of_the_confirming_button_confirms(tmp_path: Path, number: str):
    """Any other number is no yes."""
    assert chat(tmp_path, f"delete A\n{number}\n")[1] == []


def test_a_number_behind_another_message_is_a_word(screen: Screen):
    """What was shown before the last message is over: no number means it any more."""
    screen.show(QUESTION)
    assert screen.typed("1") == "tap a:1:yes"
    screen.show(Reply("Something else"))
    assert screen.typed("1") == "1"


def test_typing_the_number_confirms(tmp_path: Path):
    """As a tap does: the action is settled, once."""
    printed, deleted = chat(tmp_path, "delete A\n1\n1\n")
    assert "[1] Confirm  [2] Cancel" in printed
    assert deleted == ["A"]


def test_a_typed_yes_confirms_too(tmp_path: Path):
    """Numbers are there beside words, not instead."""
    assert chat(tmp_path, "delete A\nyes\n")[1] == ["A"]


def test_markdown_is_words(screen: Screen):
    """No stars, no pipes, no brackets; addresses stay."""
    md = "# Sum\n**5** of [all](https://e.org/a_b_c)\n- x\n  - y\n\n|a|b|\n|-|-|\n|1|22|"
    printed = screen.show(Reply(md))
    assert printed == "Sum\n\n5 of all (https://e.org/a_b_c)\n\n• x\n  ◦ y\n\na | b\n--+---\n1 | 22\n"


def test_styles_are_shown_where_they_can_be(tmp_path: Path):
    """Bold is bold on a real terminal."""
    assert Screen(tmp_path, styled=True).show(Reply("**b** _i_")) == "\x1b[1mb\x1b[22m \x1b[3mi\x1b[23m\n"


@pytest.mark.parametrize("styled", [False, True])
@pytest.mark.parametrize(
    "hostile",
    ["\x1b[2Jx", "a\rb", "`\x1b]0;x\x07`", "~~~\n\x9b31m\n~~~", "https://e.org/\x1b[1m", "&#13;x", "x\x7f\x08"],
)
def test_words_cannot_move_the_cursor(tmp_path: Path, hostile: str, *, styled: bool):
    """Control characters of a model or a tool are shown, not obeyed."""
    screen = Screen(tmp_path, styled=styled)
    printed = screen.show(Reply(hostile, (Button(hostile, "x"),)))
    assert not set(printed) & {chr(code) for code in (*range(10), *range(11, 32), *range(127, 160))}


def test_a_file_cannot_leave_its_folder(screen: Screen, tmp_path: Path):
    """Whatever path its name holds."""
    media = screen.files.put(b"x", mime_type="text/plain", filename="../../etc/passwd")
    assert screen.show(Reply(media=media)) == f"[saved {tmp_path}/chat/passwd]\n"
    assert (tmp_path / "chat" / "passwd").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("name", "saved"), [("a\ud800.txt", "a.txt"), ("a\nb", "ab"), ("\u202egnp.exe", "gnp.exe"), ("\ud800", "file")]
)
def test_a_file_is_saved_under_a_name_that_can_be_read(screen: Screen, tmp_path: Path, name: str, saved: str):
    """Without what no file system takes, and what would show it as another."""
    media = screen.files.put(b"x", mime_type="text/plain", filename=name)
    assert screen.show(Reply(media=media)) == f"[saved {tmp_path}/chat/{saved}]\n"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path):
    """The conversation goes on."""
    (tmp_path / "chat").write_text("")
    screen = Screen(tmp_path / "chat")
    media = screen.files.put(b"x", mime_type="text/plain", filename="a.txt")
    assert "cannot save 'a.txt': " in screen.show(Reply(media=media))
