"""The `sayso people` commands: operators see who asks for access, and decide."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation
from sayso.ops.cli.main import main
from sayso.workers.people import RedisPeople, WaitingSender
from tests.config.processes import free_port
from tests.contracts.rigs import CHAT, Rig

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
ANA = WaitingSender(("ana", "DE.1"), "Ana\x1b[31m", CHAT, "de")


@pytest.fixture
def people(redis_client, redis_url, tmp_path, monkeypatch) -> RedisPeople:
    """Return the people in the Redis that the environment names."""
    (tmp_path / "sayso.yaml").write_text(FILE)
    given = {
        "REDIS_URL": redis_url,
        "SAYSO_DATA": tmp_path,
        "SAYSO_CONFIG": tmp_path / "sayso.yaml",
        "TOKEN": "t",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    return RedisPeople(redis_client, prefix="sayso:sayso:")


def run(*args: object) -> tuple[int, str]:
    """Return exit code and output of a `sayso people` command. Any other exception is a bug."""
    result = CliRunner().invoke(main, ["people", *map(str, args)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_block_ends_an_approval(people):
    """Any id of the person may be given."""
    run("approve", "chat", people.code("chat", ANA))
    assert run("block", "chat", "DE.1") == (0, "DE.1 is blocked on chat\n")
    assert people.decision("chat", ["ana"]) == "blocked"


def test_wrong_or_expired_code_lets_no_person_in(people):
    """It does not count as an id either."""
    code, words = run("approve", "chat", "BCDFGHJK")
    assert (code, "nobody waits on chat with the code" in words) == (3, True)
    assert people.listed("chat") == []


def test_approved_person_is_let_in_and_told_in_their_language(people, redis_client):
    """The message goes through the outbox of their conversation, and a worker is woken."""
    code = people.code("chat", ANA)
    assert run("approve", "chat", code.lower()) == (
        0,
        "Ana [31m (ana) may talk on chat, and is told\n",
    )
    assert people.decision("chat", ["DE.1"]) == "approved"
    rig = Rig(redis_client, prefix="sayso:sayso:")
    _, reply = rig.mailbox.lease(CHAT.id, "w")
    assert (
        reply.delivery(rig.mailbox.lease(CHAT.id, "w")[0]).reply.text == texts_for("de").approved()
    )
    assert redis_client.llen("rq:queue:sayso-sayso") == 1


def test_phone_numbers_are_accepted_with_and_without_their_platform(people):
    """The YAML accepts both too."""
    assert run("approve", "wa", "whatsapp:+4915100000042") == (
        0,
        "whatsapp:+4915100000042 may talk on wa\n",
    )
    assert people.decision("wa", ["+4915100000042"]) == "approved"
    assert run("forget", "wa", "+4915100000042")[0] == 0
    assert people.listed("wa") == []


def test_person_blocked_by_the_file_stays_out(people):
    """The operator is told."""
    assert "`block` in the configuration" in run("approve", "chat", "eve")[1]


def test_list_shows_waiting_and_decided_people(people):
    """It has the platform's name without control characters."""
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


def test_removed_person_is_unknown_again(people):
    """A waiting person can be removed too. A second removal finds none."""
    run("approve", "chat", "ana")
    assert run("forget", "chat", "ana") == (0, "ana is forgotten on chat\n")
    assert people.decision("chat", ["ana"]) == ""
    assert run("forget", "chat", people.code("chat", ANA))[0] == 0
    assert people.waiting("chat") == []
    assert run("forget", "chat", "ana")[0] == 3


def test_channel_without_access_rules_is_reported(people):
    """A block would have no effect there."""
    code, words = run("block", "open", "spam")
    assert (code, "add `access: {}` below channels.open" in words) == (3, True)
    assert "no channel 'nope'; did you mean 'open'? known: chat, wa, open" in run("list", "nope")[1]
    assert "everybody may" in run("approve", "group", "ana")[1]


def test_empty_id_is_refused(people):
    """On WhatsApp `whatsapp:` alone is no id."""
    assert run("block", "wa", "whatsapp:")[0] == 2
    assert people.listed("wa") == []


def test_removed_channel_of_a_waiting_person_does_not_matter(people):
    """People in other conversations are told there."""
    code = people.code("chat", WaitingSender(("bob",), "", Conversation("chat", "far"), ""))
    assert run("approve", "chat", code) == (0, "bob may talk on chat, and is told\n")


def test_unreachable_redis_is_reported(people, monkeypatch):
    """The error is one line without a traceback."""
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}")
    code, words = run("list", "chat")
    assert (code, "nothing listens there" in words, len(words.splitlines())) == (3, True, 1)


@pytest.mark.parametrize("command", ["approve", "block", "forget", "erase"])
def test_id_that_is_not_utf_8_is_refused_in_one_line(people, command):
    """A shell passes any bytes on, and Redis stores no half of a character."""
    status, words = run(command, "chat", "ana\udcff")
    assert status == 2
    assert words.splitlines()[-1].startswith("Error: 'ana\\udcff' is not UTF-8")
