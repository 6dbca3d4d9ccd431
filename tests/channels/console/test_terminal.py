"""The terminal: numbers that tap, text without markup, files below one folder."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.console.terminal import Terminal
from sayso.channels.media_store import LocalMediaStore
from sayso.channels.types import Button, Media, Reply, Turn
from sayso.pending import InMemoryPendingStore

QUESTION = Reply("Delete **INV-42**?", (Button("Yes", "a:1:yes"), Button("No", "a:1:no")))


class Screen:
    """A recorded terminal."""

    def __init__(self, folder: Path, **options: bool) -> None:
        self.lines: list[str] = []
        self.files = LocalMediaStore(folder.with_name("media"), keys=["key"], public_url="")
        self.terminal = Terminal(
            folder=folder, read_file=self.files.read, print_text=self.lines.append, **options
        )

    def show(self, reply: Reply) -> str:
        """Return the output for a reply."""
        before = len(self.lines)
        self.terminal.show(reply)
        return "".join(self.lines[before:])

    def typed(self, line: str) -> str:
        """Return the text of a typed line, or "tap " and the data of a button."""
        turn = self.terminal.turn(line, 1)
        return f"tap {turn.tap.data}" if turn.tap else turn.text


@pytest.fixture
def screen(tmp_path: Path) -> Screen:
    """Return a terminal without styles."""
    return Screen(tmp_path / "chat")


def chat(folder: Path, said: str) -> tuple[str, list[str]]:
    """Talk to a bot that asks before it deletes A. Returns the output and the deleted names."""
    deleted: list[str] = []

    @tool(requires_approval=True, preview="Delete {name}")
    def delete(name: str) -> str:
        """Delete a thing."""
        deleted.append(name)
        return f"deleted {name}"

    screen = Screen(folder)
    model = ScriptedProvider([ToolCall("delete", {"name": "A"}, "c1"), "a", "b", "c"])
    agent = ChannelAgent(Agent([delete], model, AgentConfig(max_retries=0)), InMemoryPendingStore())
    screen.terminal.talk(io.StringIO(said), agent.take)
    return "".join(screen.lines), deleted


@pytest.mark.parametrize("number", ["2", "0", "3", "-1", "01x", "²", "99999", "1."])
def test_only_the_number_of_the_confirming_button_confirms(tmp_path: Path, number: str):
    """Any other number is no yes."""
    assert chat(tmp_path, f"delete A\n{number}\n")[1] == []


def test_number_after_another_message_is_text(screen: Screen):
    """The buttons before the last message are closed, so their numbers are plain text."""
    screen.show(QUESTION)
    assert screen.typed("1") == "tap a:1:yes"
    screen.show(Reply("Something else"))
    assert screen.typed("1") == "1"


def test_number_is_the_value_where_a_value_is_asked_for(screen: Screen):
    """The button would keep the value that is there."""
    shown = screen.show(Reply("Kg: 5", (Button("Keep", "a:1:0"),), asks_value=True))
    assert "[Keep]" in shown
    assert screen.typed("1") == "1"


def test_typed_number_confirms(tmp_path: Path):
    """The number settles the action once, as a tap does."""
    printed, deleted = chat(tmp_path, "delete A\n1\n1\n")
    assert "[1] Delete A  [2] No" in printed
    assert deleted == ["A"]


def test_typed_yes_confirms_too(tmp_path: Path):
    """A user may type the number or the text."""
    assert chat(tmp_path, "delete A\nyes\n")[1] == ["A"]


def test_markdown_is_printed_as_plain_text(screen: Screen):
    """The output has no stars, pipes or brackets, and keeps addresses."""
    md = "# Sum\n**5** of [all](https://e.org/a_b_c)\n- x\n  - y\n\n|a|b|\n|-|-|\n|1|22|"
    printed = screen.show(Reply(md))
    assert (
        printed == "Sum\n\n5 of all (https://e.org/a_b_c)\n\n• x\n  ◦ y\n\na | b\n--+---\n1 | 22\n"
    )


def test_styles_are_printed_on_a_real_terminal(tmp_path: Path):
    """Bold and italic text has its escape codes there."""
    assert (
        Screen(tmp_path, styled=True).show(Reply("**b** _i_"))
        == "\x1b[1mb\x1b[22m \x1b[3mi\x1b[23m\n"
    )


@pytest.mark.parametrize("styled", [False, True])
@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b[2Jx",
        "a\rb",
        "`\x1b]0;x\x07`",
        "~~~\n\x9b31m\n~~~",
        "https://e.org/\x1b[1m",
        "&#13;x",
        "x\x7f\x08",
    ],
)
def test_text_cannot_move_the_cursor(tmp_path: Path, hostile: str, *, styled: bool):
    """The terminal shows control characters of a model or a tool and does not obey them."""
    screen = Screen(tmp_path, styled=styled)
    printed = screen.show(Reply(hostile, (Button(hostile, "x"),)))
    assert not set(printed) & {chr(code) for code in (*range(10), *range(11, 32), *range(127, 160))}


def test_file_cannot_leave_its_folder(screen: Screen, tmp_path: Path):
    """The channel drops the path from the file name."""
    media = screen.files.put(b"x", mime_type="text/plain", filename="../../etc/passwd")
    assert screen.show(Reply(media=media)) == f"[saved {tmp_path}/chat/passwd]\n"
    assert (tmp_path / "chat" / "passwd").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["\u957f" * 110 + ".txt", "a." + "\u957f" * 110, "\u957f" * 110])
def test_two_files_of_one_long_name_are_saved(screen: Screen, tmp_path: Path, name: str):
    """The number finds room."""
    for data in (b"x", b"y"):
        screen.show(Reply(media=screen.files.put(data, mime_type="text/plain", filename=name)))
    assert sorted(path.read_bytes() for path in (tmp_path / "chat").iterdir()) == [b"x", b"y"]


@pytest.mark.parametrize(
    ("name", "saved"),
    [("a\ud800.txt", "a.txt"), ("a\nb", "ab"), ("\u202egnp.exe", "gnp.exe"), ("\ud800", "file")],
)
def test_file_is_saved_under_a_readable_name(screen: Screen, tmp_path: Path, name: str, saved: str):
    """The name loses characters that no file system accepts or that would disguise it."""
    media = screen.files.put(b"x", mime_type="text/plain", filename=name)
    assert screen.show(Reply(media=media)) == f"[saved {tmp_path}/chat/{saved}]\n"


def test_file_with_a_long_name_is_saved(screen: Screen, tmp_path: Path):
    """A file system takes 255 bytes, which are 85 Chinese characters. The ending stays."""
    media = screen.files.put(b"x", mime_type="text/plain", filename="长" * 110 + ".txt")
    assert screen.show(Reply(media=media)) == f"[saved {tmp_path}/chat/{'长' * 83}.txt]\n"


def test_second_file_of_a_name_does_not_replace_the_first(screen: Screen, tmp_path: Path):
    """The person may not have opened the first one yet. The same file again needs no second copy."""
    files = [
        screen.files.put(data, mime_type="text/plain", filename="a.txt")
        for data in (b"x", b"y", b"x")
    ]
    saved = [screen.show(Reply(media=media)) for media in files]
    assert saved == [
        f"[saved {tmp_path}/chat/{name}]\n" for name in ("a.txt", "a (2).txt", "a.txt")
    ]
    assert (
        (tmp_path / "chat" / "a.txt").read_bytes(),
        (tmp_path / "chat" / "a (2).txt").read_bytes(),
    ) == (b"x", b"y")


def test_file_that_is_gone_is_reported(tmp_path: Path):
    """The conversation goes on."""

    async def answer(_: Turn) -> list[Reply]:
        return [Reply(media=Media("gone", "text/plain", "a.txt", stored=True)), Reply("And more.")]

    screen = Screen(tmp_path)
    screen.terminal.talk(io.StringIO("hi\n"), answer)
    assert screen.lines[1:] == ["[the file to send is gone from the media store]\n", "And more.\n"]


def test_text_and_buttons_of_a_file_that_is_gone_are_printed(screen: Screen):
    """A number then taps a button of this reply, and not one of the question before."""
    screen.show(QUESTION)
    file = Media("gone", "text/plain", "a.txt", stored=True)
    printed = screen.show(Reply("Send it?", (Button("Send", "a:2:yes"),), media=file))
    assert printed == "Send it?\n[the file to send is gone from the media store]\n[1] Send\n"
    assert screen.typed("1") == "tap a:2:yes"


def test_optional_edit_and_empty_reply_print_nothing(screen: Screen):
    """Printed text cannot be edited, and the buttons of the last message stay."""
    screen.show(QUESTION)
    assert screen.show(Reply("Deleted.", edits="1", optional=True)) == screen.show(Reply(" ")) == ""
    assert screen.typed("1") == "tap a:1:yes"


def test_empty_lines_are_no_turns(tmp_path: Path):
    """They cost no answer of the model."""
    assert (
        chat(tmp_path, "\n  \n\u2003\n")[0]
        == "Type a message, or the number of a button; exit ends it. Try: /help"
    )


class InterruptedInput(io.StringIO):
    """What a person typed before Ctrl-C."""

    def readline(self, size: int | None = -1, /) -> str:
        """Return the next line. Raises KeyboardInterrupt after the last one."""
        line = super().readline()
        if not line:
            raise KeyboardInterrupt
        return line


def test_ctrl_c_at_the_prompt_ends_the_conversation(screen: Screen):
    """As `exit` does, and not as a command that failed."""

    async def answer(turn: Turn) -> list[Reply]:
        return [Reply(turn.text.upper())]

    screen.terminal.talk(InterruptedInput("hello\n"), answer)
    assert screen.lines[1:] == ["HELLO\n", ""]


def test_unwritable_folder_is_reported(tmp_path: Path):
    """The channel prints an error, and the conversation goes on."""
    (tmp_path / "chat").write_text("")
    screen = Screen(tmp_path / "chat")
    media = screen.files.put(b"x", mime_type="text/plain", filename="a.txt")
    assert "cannot save 'a.txt': " in screen.show(Reply(media=media))
