"""/link, /unlink, /away and /back, and what /whoami, /status and /help say of people."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from sayso.agent import Agent, AgentConfig, OfflineProvider, tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation
from sayso.infra.concurrency import run_sync
from sayso.pending.approvals.absences import RedisAbsences
from sayso.pending.approvals.directory import ConfiguredDirectory, NamedPerson, PeopleConfig
from sayso.pending.approvals.linking import AccountLinking
from sayso.pending.approvals.links import LinkSide, RedisLinks
from sayso.pending.approvals.people import Account, DirectoryUnavailable
from sayso.pending.approvals.self_service import SelfService
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender, turn
from tests.workers.fakes import FakeChannel

#: Another channel, on which people have a second account.
DESK = LinkSide("desk", "7", Conversation("desk", "7"), "Ana", "en")
CONFIG = PeopleConfig(
    id_prefixes={"chat": "", "desk": ""},
    people=(NamedPerson("bob", (Account("desk", "8"),)),),
    account_roles={Account("desk", "7"): "legal"},
)
TEXTS = texts_for("en")


@tool(read_only=True)
def back(name: str) -> str:
    """Bring a thing back."""
    return name


@tool(read_only=True)
def find(name: str) -> str:
    """Find a thing."""
    return name


class Room:
    """A conversation with the bot, which knows people."""

    def __init__(self, *, links: bool = True, knows_people: bool = True, tools=(find,)) -> None:
        self.rig, self.channel = Rig(), FakeChannel()
        self.links = RedisLinks(self.rig.client)
        absences = RedisAbsences(self.rig.client)
        self.directory = ConfiguredDirectory(CONFIG, {}, links=self.links, absences=absences)
        self.told: list[str] = []
        self.linking = AccountLinking(
            self.links, self.directory, send=self._send, is_reviewed=False
        )
        service = SelfService(
            self.directory,
            absences,
            self.linking if links else None,
            id_problem=lambda channel, user_id: "" if user_id.isalnum() else "is no id",
        )
        agent = Agent(list(tools), OfflineProvider(), AgentConfig(max_retries=0))
        self.agent = ChannelAgent(
            agent,
            self.rig.store,
            journals=self.rig.journals,
            people=self.directory,
            self_service=service if knows_people else None,
        )
        channels = {"chat": self.channel}
        sender = make_sender(self.rig.outbox, channels)
        self.processor = make_processor(self.rig.mailbox, sender, channels, {"chat": self.agent})

    async def _send(self, delivery) -> None:
        self.told.append(f"{delivery.conversation.channel}: {delivery.reply.text}")

    def say(self, text: str, **fields) -> str:
        """Accept a turn and return its answer."""
        self.rig.accept(replace(turn(text), **fields))
        asyncio.run(self.processor.run(CHAT.id))
        return self.channel.texts[-1]


def test_a_code_of_another_channel_joins_the_accounts():
    """Both sides are told, and /whoami shows accounts and roles."""
    room = Room()
    code = run_sync(room.linking.begin(DESK))
    assert room.say(f"/link {code}") == "These accounts are joined: `desk:7`, `chat:ana`"
    assert room.told == ["desk: These accounts are joined: `desk:7`, `chat:ana`"]
    who = room.say("/whoami")
    assert "Your accounts: `desk:7`, `chat:ana`" in who
    assert "Your role: legal" in who


def test_a_code_that_is_made_here_joins_on_the_other_channel():
    """The answer names the command to send there."""
    room = Room()
    answer = room.say("/link")
    code = re.search(r"`/link (\w{8})`", answer)[1]
    result = run_sync(room.linking.finish(DESK, code, "e1"))
    assert result.state == "linked"
    assert room.told == ["chat: These accounts are joined: `chat:ana`, `desk:7`"]
    assert room.say("/unlink") == TEXTS.unlinked()
    assert room.say("/unlink") == TEXTS.not_linked()


@pytest.mark.parametrize("text", ["/link", "/link BCDFGHJK", "/unlink"])
def test_in_a_group_no_accounts_are_joined(text):
    """Others would read the code."""
    assert Room().say(text, in_group=True) == TEXTS.link_direct()


def test_accounts_are_not_shown_in_a_group():
    """An id may be a phone number."""
    room = Room()
    run_sync(room.links.join(DESK.account, Account("chat", "ana")))
    assert "desk:7" not in room.say("/whoami", in_group=True)
    assert "desk:7" in room.say("/whoami")


def test_wrong_codes_are_refused_and_then_not_looked_up():
    """Until the hour is over."""
    room = Room()
    answers = [room.say("/link BCDFGHJK") for _ in range(6)]
    assert answers == [TEXTS.link_unknown_code(600)] * 5 + [TEXTS.link_too_many()]


def test_an_absence_is_stored_shown_and_ended():
    """/away alone and /status say until when, and who decides."""
    room = Room()
    said = room.say("/away 3d, @bob decides")
    assert re.fullmatch(
        r"You are away until \d{4}-\d\d-\d\d \d\d:\d\d UTC\.\nbob decides for you meanwhile\.", said
    )
    assert room.say("/away") == said
    assert room.say("/status").endswith(said)
    assert run_sync(room.directory.person_of("chat", ["ana"])).stand_in == "bob"
    assert room.say("/back") == TEXTS.back()
    assert room.say("/away").startswith(TEXTS.not_away())
    assert "away" not in room.say("/status")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("/away soon", TEXTS.away_how()),
        ("/away 2020-01-01", TEXTS.away_bad_time()),
        ("/away 3d, @b.c", TEXTS.away_unknown_person("b.c")),
        ("/away 3d, ana", TEXTS.away_yourself()),
        ("/away off", TEXTS.not_away()),
        ("/back", TEXTS.not_away()),
    ],
)
def test_an_absence_that_cannot_be_is_explained(text, answer):
    """And nothing is stored."""
    room = Room()
    assert room.say(text) == answer
    assert run_sync(room.directory.person_of("chat", ["ana"])).away_until == 0.0


def test_help_lists_the_commands_that_there_are():
    """Without links, without people, and all."""
    assert all(f"- /{name}: " in Room().say("/help") for name in ("link", "unlink", "away", "back"))
    without_links = Room(links=False).say("/help")
    assert "/link" not in without_links
    assert "/away" in without_links
    assert "/away" not in Room(knows_people=False).say("/help")


@pytest.mark.parametrize("text", ["/link to the invoice", "/back in a minute", "/unlink INV-7"])
def test_other_words_behind_a_command_are_for_the_model(text):
    """People write them for something else."""
    assert "joined" not in Room().say(text)


def test_a_tool_of_the_same_name_counts():
    """As for all commands."""
    room = Room(tools=[back])
    assert room.say("/back") != TEXTS.not_away()


def test_whoami_answers_while_a_group_cannot_be_read(monkeypatch):
    """Without the roles that are not known."""
    room = Room()

    async def fails(channel, user_ids):
        raise DirectoryUnavailable("team does not answer")

    monkeypatch.setattr(room.directory, "person_of", fails)
    assert "Your id here: `ana`" in room.say("/whoami")
    assert room.say("/away 3d") == TEXTS.broken()
