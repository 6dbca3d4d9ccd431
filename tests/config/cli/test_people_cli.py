"""The `sayso people` commands: operators see who asks to be let in, and decide it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation
from sayso.config.cli.main import main
from sayso.workers.people import RedisPeople, Waiting
from tests.config.processes import free_port
from tests.contracts.rigs import CHAT, RedisRig

FILE = """
channels:
  chat: {platform: console, access: {pairing: true, block: [eve]}}
  wa:
    platform: whatsapp
    account_sid: AC1
    auth_token: ${TOKEN}
    from: whatsapp:+14155238886
    access: {allow: []}
  open: {platform: console}
  group: {platform: console, access: {}}
"""
ANA = Waiting(("ana", "DE.1"), "Ana\x1b[31m", CHAT, "de")


@pytest.fixture
def people(redis_client, redis_url, tmp_path, monkeypatch) -> RedisPeople:
    """The people of a Redis that the environment names, as the configuration does the channels."""
    (tmp_path / "sayso.yaml").write_text(FILE)
    given = {"REDIS_URL": redis_url, "SAYSO_DATA": tmp_path, "SAYSO_CONFIG": tmp_path / "sayso.yaml", "TOKEN": "t"}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    return RedisPeople(redis_client, prefix="sayso:sayso:")


def run(*args: object) -> tuple[int, str]:
    """Exit code and all output of a `sayso people` command. What it raises besides is a bug."""
    result = CliRunner().invoke(main, ["people", *map(str, args)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_block_ends_an_approval(people):
    """By any of their ids."""
    run("approve", "chat", people.code("chat", ANA))
    assert run("block", "chat", "DE.1") == (0, "DE.1 is blocked on chat\n")
    assert people.decision("chat", ["ana"]) == "blocked"


def test_wrong_or_ended_code_lets_nobody_in(people):
    """It is not taken for an id either."""
    code, words = run("approve", "chat", "BCDFGHJK")
    assert (code, "nobody waits on chat with the code" in words) == (3, True)
    assert people.people("chat") == []


def test_approved_person_is_let_in_and_told_in_their_language(people, redis_client):
    """Through the outbox of the conversation in which they asked; a worker is woken."""
    code = people.code("chat", ANA)
    assert run("approve", "chat", code.lower()) == (0, "Ana [31m (ana) may talk on chat, and is told\n")
    assert people.decision("chat", ["DE.1"]) == "approved"
    rig = RedisRig(redis_client, prefix="sayso:sayso:")
    _, reply = rig.mailbox.lease(CHAT.id, "w")
    assert reply.delivery(rig.mailbox.lease(CHAT.id, "w")[0]).reply.text == texts_for("de").approved()
    assert redis_client.llen("rq:queue:sayso-sayso") == 1


def test_phone_numbers_are_taken_with_and_without_their_platform(people):
    """As in the YAML."""
    assert run("approve", "wa", "whatsapp:+4915100000042") == (0, "whatsapp:+4915100000042 may talk on wa\n")
    assert people.decision("wa", ["+4915100000042"]) == "approved"
    assert run("forget", "wa", "+4915100000042")[0] == 0
    assert people.people("wa") == []


def test_one_whom_the_file_blocks_stays_out(people):
    """The operator is told."""
    assert "`block` in the configuration" in run("approve", "chat", "eve")[1]


def test_list_shows_who_waits_and_who_was_decided_about(people):
    """With the name as the platform told it, and nothing that commands a terminal."""
    code = people.code("chat", ANA)
    run("block", "chat", "spam")
    status, words = run("list", "chat")
    waiting, blocked = words.splitlines()
    assert (status, "\x1b" in words) == (0, False)
    assert waiting.startswith(f"waiting   {code}  ")
    assert waiting.endswith("s  Ana [31m ana DE.1")
    assert blocked.startswith("blocked")
    assert blocked.endswith("spam")
    assert run("list", "wa") == (0, "nobody was approved or blocked, and nobody waits\n")


def test_forgotten_person_is_a_stranger_again(people):
    """Also one who only waits; once."""
    run("approve", "chat", "ana")
    assert run("forget", "chat", "ana") == (0, "nothing is stored about ana on chat\n")
    assert people.decision("chat", ["ana"]) == ""
    assert run("forget", "chat", people.code("chat", ANA))[0] == 0
    assert people.waiting("chat") == []
    assert run("forget", "chat", "ana")[0] == 3


def test_channel_that_asks_nobody_is_said(people):
    """A block would change nothing there."""
    code, words = run("block", "open", "spam")
    assert (code, "add `access: {}` below channels.open" in words) == (3, True)
    assert "no channel 'nope'; known: chat, wa, open" in run("list", "nope")[1]
    assert "everybody may" in run("approve", "group", "ana")[1]


def test_nothing_is_no_id(people):
    """On WhatsApp `whatsapp:` alone is nobody."""
    assert run("block", "wa", "whatsapp:")[0] == 2
    assert people.people("wa") == []


def test_conversation_that_is_gone_does_not_matter(people):
    """Whoever waits elsewhere is told there."""
    code = people.code("chat", Waiting(("bob",), "", Conversation("chat", "far"), ""))
    assert run("approve", "chat", code) == (0, "bob may talk on chat, and is told\n")


def test_redis_that_is_away_is_said(people, monkeypatch):
    """One line, no traceback."""
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}")
    code, words = run("list", "chat")
    assert (code, "Redis does not answer" in words, len(words.splitlines())) == (3, True, 1)
