"""Received files: tools read the files that their user sent in this conversation, and no others."""

from __future__ import annotations

import asyncio

import pytest

from sayso.agent import (
    Agent,
    ChannelAgent,
    ScriptedProvider,
    ToolCall,
    received_file,
    received_files,
    tool,
)
from sayso.channels.types import Conversation, Media, Turn
from tests.memory_stores import MemoryMediaStore

CHAT = Conversation("chat", "1")
DELETED = "Deleted: a, b"


@tool(read_only=True)
def first_line(file: str = "") -> str:
    """Return the first line of a file.

    Args:
        file: Its name.
    """
    return received_file(file).read().decode().split("\n")[0]


@tool(read_only=True)
def list_files() -> list[str]:
    """Return the names of the received files."""
    return [each.filename for each in received_files()]


@tool(requires_approval=True, preview=lambda file: f"Delete all of {received_file(file).filename}")
def delete_all(file: str = "") -> str:
    """Delete everything that a file names.

    Args:
        file: Its name.
    """
    return "Deleted: " + ", ".join(received_file(file).read().decode().split())


class Room:
    """A bot whose model makes these calls, with a media store; users send texts and files."""

    def __init__(self, *calls: ToolCall | str) -> None:
        self.store, self.provider = MemoryMediaStore(), ScriptedProvider([*calls, "ok", "ok", "ok"])
        self.bot = ChannelAgent(
            Agent([first_line, list_files, delete_all], self.provider), media=self.store
        )
        self.count = 0

    def file(self, data: str, filename: str = "", mime_type: str = "text/csv") -> Media:
        """Put a file in the store."""
        return self.store.put(data.encode(), mime_type=mime_type, filename=filename)

    def say(self, text: str, *media: Media, user: str = "ana") -> str:
        """Send a message with files and return the answer."""
        self.count += 1
        turn = Turn(f"e{self.count}", CHAT, user, text, media=media)
        return "\n".join(reply.text for reply in asyncio.run(self.bot.take(turn)))

    @property
    def results(self) -> list[str]:
        """Return the tool results of the model's last request."""
        return [
            message.content
            for message in self.provider.requests[-1].messages
            if message.role.value == "tool"
        ]


def test_file_of_another_user_is_not_visible():
    """Members of a group have separate files."""
    room = Room("thanks", ToolCall("list_files", {}))
    room.say("mine", room.file("secret", "ana.csv"))
    room.say("what is there?", user="bob")
    assert "ana.csv" not in room.results[-1]


def test_confirmed_call_reads_the_file_of_its_question():
    """The file came with the turn that proposed, and the yes has none."""
    room = Room(ToolCall("delete_all", {"file": "old.csv"}))
    assert "Delete all of old.csv" in room.say("delete these", room.file("a b", "old.csv"))
    assert room.say("yes") == DELETED


def test_file_sent_before_the_yes_disarms_the_question():
    """The new file has the same name, and its caption is a yes."""
    room = Room(ToolCall("delete_all", {"file": "old.csv"}))
    room.say("delete these", room.file("a b", "old.csv"))
    room.say("yes", room.file("x y z", "old.csv"))
    assert "Deleted" not in room.say("yes")


def test_file_of_an_earlier_turn_is_found_by_name():
    """Case does not matter, and the newest file of that name is used."""
    room = Room("thanks", "thanks", "thanks", ToolCall("first_line", {"file": "STOCK.csv"}))
    for data, name in (("old", "stock.csv"), ("new\nmore", "Stock.csv"), ("other", "else.csv")):
        room.say("here", room.file(data, name))
    room.say("read it")
    assert "new" in room.results[-1]


def test_newest_file_needs_no_name():
    """A picture has no file name."""
    room = Room(ToolCall("first_line", {}))
    room.say("read it", room.file("first", "a.csv"), room.file("second"))
    assert "second" in room.results[-1]


def test_file_without_a_name_gets_one():
    """The name is derived from type and content, so the same file gets the same name."""
    room = Room(ToolCall("list_files", {}))
    photo = room.file("pixels", mime_type="image/png")
    room.say("look", photo, room.file("a", "a.csv"))
    assert f'["image-{photo.ref[:8]}.png","a.csv"]' in room.results[-1].replace(", ", ",")


@pytest.mark.parametrize(
    ("sent", "told"),
    [(("a.csv", "b.csv"), "there are ['a.csv', 'b.csv']"), ((), "no file was sent")],
)
def test_model_reads_that_a_file_was_not_sent(sent: tuple[str, ...], told: str):
    """The error lists the names of the files that were sent."""
    room = Room(ToolCall("first_line", {"file": "c.csv"}))
    room.say("read it", *(room.file(name, name) for name in sent))
    assert "file 'c.csv' was not sent" in room.results[-1]
    assert told in room.results[-1]


def test_deleted_file_must_be_sent_again():
    """The store deletes old files."""
    room = Room(ToolCall("first_line", {}))
    room.say("read it", Media("0" * 64, "text/csv", "a.csv", stored=True))
    assert "'a.csv' was deleted after a week" in room.results[-1]


def test_file_that_could_not_be_fetched_is_not_listed():
    """Its reference is a private address of the platform."""
    room = Room(ToolCall("list_files", {}))
    room.say("look", Media("https://files.example/secret", "text/csv", "a.csv"))
    assert "a.csv" not in room.results[-1]


def test_reset_clears_the_received_files():
    """They are cleared with the conversation."""
    room = Room("thanks", ToolCall("list_files", {}))
    room.say("mine", room.file("x", "a.csv"))
    room.say("/reset")
    room.say("what is there?")
    assert "a.csv" not in room.results[-1]


@pytest.mark.parametrize(
    ("name", "read_as"),
    [
        ("report [final].csv", "report (final).csv"),
        ("caf\u0065\u0301.csv", "Caf\u00e9.csv"),
        ("\U0001f468\u200d\U0001f469 a.csv", "\U0001f468\U0001f469 a.csv"),
    ],
)
def test_file_is_found_by_its_name_as_the_model_reads_it(name: str, read_as: str):
    """The model reads other brackets, no joiners, and writes an accented letter as one character."""
    room = Room("ok", ToolCall("first_line", {"file": read_as}))
    room.say("one", room.file("first", name), room.file("second", "b.csv"))
    room.say("look")
    assert room.results[-1:] == ["first"]


def test_there_are_no_files_outside_a_turn():
    """The error says that no file was sent."""
    assert received_files() == ()
    with pytest.raises(ValueError, match=r"^no file was sent in this conversation yet$"):
        received_file()


def test_file_sent_again_is_the_newest():
    """Sending the same file again makes it the default."""
    room = Room("ok", "ok", ToolCall("first_line", {}))
    room.say("one", room.file("first", "a.csv"))
    room.say("two", room.file("second", "b.csv"))
    room.say("again", room.file("first", "a.csv"))
    assert room.results[-1:] == ["first"]
