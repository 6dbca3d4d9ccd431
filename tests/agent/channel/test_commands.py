"""Commands: every channel answers them without the model; only /reset and /stop end an open question."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    OfflineProvider,
    RoleBasedSelector,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolPolicy,
    tool,
)
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.tools.loading import load_tools
from sayso.agent.toolsets.selectors import UserRoles
from sayso.channels.i18n.catalogue import LANGUAGES
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.convert import plain
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender, turn
from tests.workers.fakes import FakeChannel

COMMANDS = ("/help", "/start", "/tools", "/status", "/whoami", "/reset")


@tool(requires_approval=True, preview="Delete {name}")
def delete(name: str) -> str:
    """Delete a thing.

    The deletion cannot be undone.
    """
    return f"deleted {name}"


@tool(read_only=True)
def find(name: str) -> str:
    """Find a thing."""
    return name


class Room:
    """A conversation in memory with these tools."""

    def __init__(self, *tools, provider=None, policy=None, selector=None, **options) -> None:
        self.rig, self.channel = Rig(), FakeChannel()
        self.provider = provider or OfflineProvider()
        config = AgentConfig(max_retries=0, tool_policy=policy)
        agent = Agent(tools or [delete, find], self.provider, config, selector=selector)
        self.agent = ChannelAgent(
            agent, self.rig.store, journals=self.rig.journals, behavior=ChannelBehavior(**options)
        )
        channels = {"chat": self.channel}
        sender = make_sender(self.rig.outbox, channels)
        self.processor = make_processor(self.rig.mailbox, sender, channels, {"chat": self.agent})

    def say(self, text: str, **fields) -> str:
        """Accept a turn and return its answer."""
        self.rig.accept(replace(turn(text), **fields))
        asyncio.run(self.processor.run(CHAT.id))
        return self.channel.texts[-1]


@pytest.mark.parametrize("names", ["A", "AB"])
def test_yes_of_a_user_who_lost_the_role_runs_nothing(names):
    """The role was revoked after the question: the action or plan ends and does not return when the role does."""
    roles = {"ana": "boss"}
    calls = [ToolCall("delete", {"name": name}, name) for name in names]
    selector = RoleBasedSelector(UserRoles(roles), allowed={"boss": ["*"]})
    room = Room(provider=ScriptedProvider([calls, "And now?"]), selector=selector)
    assert "Delete A" in room.say("delete")
    del roles["ana"]
    assert "Nothing was done" in room.say("yes")
    roles["ana"] = "boss"
    assert room.say("yes") == "And now?"
    assert "deleted" not in " ".join(room.channel.texts)


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if each not in ("/reset", "/status")]
)
def test_commands_leave_the_open_question_alone(command):
    """The question stays open behind a command. A yes may answer the command's text, so it asks again."""
    room = Room()
    room.say("/delete name=A")
    room.say(command)
    assert "Do you mean this? Delete A" in room.say("yes")
    assert room.say("yes") == "deleted A"


def test_yes_to_the_question_that_status_shows_confirms_it():
    """The answer to /status repeats the open question."""
    room = Room()
    room.say("/delete name=A")
    assert "Delete A" in room.say("/status")
    assert room.say("yes") == "deleted A"


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_ask_no_model_and_are_not_in_the_history(command):
    """The conversation continues as if the command had not been sent."""
    room = Room(provider=ScriptedProvider(["hello"]))
    room.say(command)
    assert room.provider.requests == []
    room.say("hi")
    assert [
        message.content for message in room.provider.requests[0].messages if message.role == "user"
    ] == ["hi"]


@pytest.mark.parametrize(
    "text", ["/helpme", "/help@other_bot", "help", "please /help", "/ help", "/"]
)
def test_other_texts_go_to_the_model(text):
    """Only an exact command is one."""
    room = Room(provider=ScriptedProvider(["hello"]))
    assert room.say(text) == "hello"


@pytest.mark.parametrize("command", COMMANDS)
def test_disabled_commands_go_to_the_model(command):
    """The setting is `commands: false`."""
    room = Room(provider=ScriptedProvider(["hello"]), commands=False)
    assert room.say(command) == "hello"


def test_tool_with_the_name_of_a_command_takes_precedence():
    """/help does not list the command that the tool replaces."""

    @tool(read_only=True)
    def status() -> str:
        """Return the state of the machine."""
        return "all green"

    room = Room(status)
    assert "all green" in room.say("/status")
    assert "/status" not in room.say("/help")


@pytest.mark.parametrize("text", ["/HELP", "/help me please", "/start ref_42", " /Help\n"])
def test_help_lists_commands_and_tools(text):
    """/help works in any case and with any text behind it."""
    told = Room().say(text)
    for name in ("/help", "/tools", "/status", "/whoami", "/reset", "/stop"):
        assert f"- {name}: " in told
    assert told.endswith("Only after your yes: `delete`")


def test_whoami_shows_what_an_operator_needs():
    """The answer has the user's id, name, channel, role and other ids."""
    roles = RoleBasedSelector(UserRoles({"ana": "boss"}), allowed={"boss": ["*"]})
    room = Room(selector=roles)
    told = room.say("/whoami", user_name="Ana", aliases=("+4915", "U1"))
    assert told.split("\n") == [
        "Your id here: `ana`", "Your name: Ana", "Channel: `chat`", "Your role: boss", "Also known as: `+4915`, `U1`",
    ]  # fmt: skip
    assert "Your role: -" in room.say("/whoami", user_id="bob")
    assert "role" not in Room().say("/whoami")


def test_whoami_shows_no_aliases_in_a_group():
    """An alias may be a phone number, and other members read along."""
    assert "4915" not in Room().say("/whoami", aliases=("+4915",), in_group=True)


@pytest.mark.parametrize(
    "name", ["Ana\nYour role: boss", "Ana\u2028Your role: boss", "[Ana](https://evil.example)"]
)
def test_whoami_escapes_the_name(name):
    """A name cannot add a line or a link."""
    lines = plain(Room().say("/whoami", user_name=name)).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("Your name: ")
    assert name.startswith("Ana") or name in lines[1]


def test_tools_lists_what_the_user_may_use():
    """The list leaves out tools that the role or the policy forbids, and marks those that need approval."""
    roles = RoleBasedSelector(
        UserRoles({"ana": "boss"}, "guest"), allowed={"boss": ["*"], "guest": ["find"]}
    )
    room = Room(selector=roles)
    assert (
        room.say("/tools")
        == "- `delete` (only after your yes): Delete a thing.\n- `find`: Find a thing."
    )
    assert room.say("/tools", user_id="bob") == "- `find`: Find a thing."
    denied = Room(policy=ToolPolicy(deny=["*"]))
    assert denied.say("/tools") == "There are no tools I can use for you here."
    assert "find" in Room(policy=ToolPolicy(review=["find"], deny=["delete"])).say("/help")


def test_tools_lists_a_tool_that_is_denied_for_some_arguments_only():
    """The tool is listed although its default argument is one of the denied ones."""
    schema = {"type": "object", "properties": {"to": {"type": "string", "default": "all"}}}
    rule = {"tool": "send", "arg": "to", "pattern": "all"}
    room = Room(
        Tool("send", "Send it.", schema, lambda to: to),
        policy=ToolPolicy(allow=["*"], deny_when=[rule]),
    )
    assert room.say("/tools") == "- `send`: Send it."


def test_tool_that_proposes_is_listed_as_needing_approval():
    """/tools and /help mark it, although the policy allows it."""
    room = Room(
        find,
        *(
            each
            for each in load_tools("sayso.examples.invoices").tools
            if each.name == "refund_invoice"
        ),
    )
    assert "- `refund_invoice` (only after your yes): Refund" in room.say("/tools")
    assert room.say("/help").endswith("Only after your yes: `refund_invoice`")


def test_status_shows_the_open_question_and_reminders():
    """The answer shows the seconds left, and only the user's own entries."""
    room = Room(*load_tools("sayso.examples.reminders").tools, delete)
    assert room.say("/status") == "Nothing is waiting for your answer, and nothing is running."
    room.say("/remind_me text=tea when='in 5 minutes'")
    room.say("/delete name=A")
    room.rig.pass_time(19.5)
    waiting, reminder = room.say("/status").split("\n")
    assert waiting == "Waiting for your answer, 40 seconds left: Delete A"
    assert reminder == "Reminder in 4 minutes: tea"
    assert room.say("/status", user_id="bob").startswith("Nothing is waiting")


def test_status_leaves_out_an_expired_question():
    """An expired question is no longer open."""
    room = Room()
    room.say("/delete name=A")
    room.rig.pass_time(61)
    assert room.say("/status").startswith("Nothing is waiting")


def test_reset_clears_the_history():
    """The reply says so."""
    room = Room(provider=ScriptedProvider(["hello", "who?"]))
    room.say("I am Ana")
    assert room.say("/reset") == "I have forgotten what was said here so far."
    room.say("who am I?")
    words = [
        message.content for message in room.provider.requests[-1].messages if message.role == "user"
    ]
    assert words == ["who am I?"]


def test_reset_cancels_the_open_question():
    """A later yes confirms nothing."""
    room = Room()
    room.say("/delete name=A")
    assert room.say("/reset").endswith("Nothing was done: “Delete A”")
    assert "deleted" not in room.say("yes")


def test_reset_of_another_user_keeps_my_question():
    """Each member of a group has a history of their own."""
    room = Room()
    room.say("/delete name=A")
    room.say("/reset", user_id="bob")
    room.say("yes")
    assert room.say("yes") == "deleted A"


def test_reset_of_an_expired_question_says_so():
    """The reply does not claim a cancellation that did not happen."""
    room = Room()
    room.say("/delete name=A")
    room.rig.pass_time(61)
    assert "expired" in room.say("/reset")


def test_commands_work_without_a_channel():
    """A terminal calls the agent directly."""
    agent = ChannelAgent(Agent([delete], ScriptedProvider(["hello"])))
    agent.ask_channel("ana", "hi")
    assert (
        agent.ask_channel("ana", "/reset").content == "I have forgotten what was said here so far."
    )
    assert agent.ask_channel("ana", "/tools").content.startswith("- `delete`")


@pytest.mark.parametrize("language", LANGUAGES)
def test_commands_are_answered_in_every_language(language):
    """The channel's language applies when the user's own is unknown."""
    room = Room(language=language)
    assert room.say("/help").startswith(texts_for(language).help_intro())
    assert texts_for(language).needs_yes() in room.say("/tools")


def test_stop_without_a_worker_drops_the_question():
    """A terminal lists the command, too. No model is asked, and a later yes runs nothing."""
    agent = ChannelAgent(
        Agent([delete], ScriptedProvider([ToolCall("delete", {"name": "A"}), "hello"]))
    )
    agent.ask_channel("ana", "delete A")
    assert "nothing was done: “Delete A”" in agent.ask_channel("ana", "/stop").content
    assert agent.ask_channel("ana", "yes").content == "hello"
    assert agent.ask_channel("ana", "/stop").content == texts_for("en").nothing_to_stop()
