"""The `sayso deliveries` commands: what operators see of replies that did not arrive, and what they can do."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sayso.channels.types import Reply
from sayso.config.cli.main import main
from sayso.workers.alerts import RedisAlerts
from sayso.workers.sender import GivenUp, Sent
from tests.config.processes import free_port
from tests.contracts.rigs import CHAT, RedisRig, turn
from tests.contracts.test_deliveries import bury, on_hold, said, saying

DEAD = f"{CHAT.id}#1"


@pytest.fixture
def rig(redis_client, redis_url, tmp_path, monkeypatch):
    """A room in Redis, which the environment names."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("SAYSO_DATA", str(tmp_path))
    (tmp_path / "shop.yaml").write_text("agent: {model: offline}\nchannels: {web: {platform: console}}\n")
    monkeypatch.setenv("SAYSO_CONFIG", str(tmp_path / "shop.yaml"))
    return RedisRig(redis_client, prefix="sayso:shop:")


def run(*args: object) -> tuple[int, str]:
    """Exit code and all output of a `sayso deliveries` command. What it raises besides is a bug."""
    result = CliRunner().invoke(main, ["deliveries", *map(str, args)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_dead_reply_is_retried_once(rig):
    """However often it is typed; a worker is woken by a job of RQ's."""
    bury(rig)
    assert run("retry", DEAD) == run("retry", DEAD) == (0, f"{DEAD} waits again, as {CHAT.id}#2\n")
    assert rig.client.llen("rq:queue:sayso-shop") == 1
    assert "retried" in run("show", DEAD)[1]


def test_what_cannot_be_retried_is_said(rig):
    """With the reason, and exit code 3."""
    code, words = run("retry", DEAD)
    assert (code, "is not among the dead" in words) == (3, True)
    assert "write it as listed" in run("retry", "nonsense")[1]


def test_list_shows_what_was_put_aside(rig):
    """Newest first: the dead with words and reason, the failed with the platform's code; by state and channel."""
    bury(rig)
    rig.accept(turn())
    held, work = rig.mailbox.lease(CHAT.id, "w2")
    reply = rig.mailbox.commit(held, work, saying(Reply("there")))
    rig.outbox.mark_delivered(held, reply, Sent("m2"))
    rig.deliveries.report(f"{CHAT.id}#2", "m2", "undelivered", "error 63016")
    code, words = run("list")
    assert (code, len(words.splitlines())) == (0, 2)
    assert "Refused: blocked  “hi”" in words
    assert "error 63016" in run("list", "--state", "failed")[1]
    assert "63016" not in run("list", "chat", "--state", "dead")[1]
    assert run("list", "other") == (0, "nothing was put aside\n")


def test_list_begins_with_what_is_wrong_with_a_channel(rig):
    """Replies that wait for a token are no news of their own."""
    RedisAlerts(rig.client, prefix="sayso:shop:").note("web", "the token was revoked\x1b[2J")
    assert "channel web: the token was revoked [2J\n" in run("list")[1]


def test_list_shows_what_waits_for_its_person(rig):
    """By state; with its conversation it is shown as well."""
    on_hold(rig)
    rows = run("list", "--state", "held")[1], run("show", CHAT.id)[1]
    assert all(f"{CHAT.id}#1" in row and "held" in row and "WindowClosed: 24 hours" in row for row in rows)
    assert run("list") == (0, "nothing was put aside\n")


def test_show_tells_that_an_address_is_closed(rig):
    """Until its person writes again."""
    bury(rig, end="closed")
    assert "accepts nothing until its user writes again: Refused: blocked" in run("show", CHAT.id)[1]


def test_words_command_no_terminal(rig):
    """What people wrote is shown without control characters, and short."""
    held, reply = said(rig, Reply("\x1b[31mred" + "x" * 500))
    rig.outbox.mark_delivered(held, reply, GivenUp("Refused: no"))
    words = run("list")[1]
    assert "\x1b" not in words
    assert len(words) < 250


def test_unknown_delivery_is_said(rig):
    """Exit code 3."""
    code, words = run("show", DEAD)
    assert (code, "nothing is stored about" in words) == (3, True)


def test_redis_that_is_away_is_said(rig, monkeypatch):
    """One line, no traceback."""
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}")
    code, words = run("list")
    assert (code, "Redis does not answer" in words, len(words.splitlines())) == (3, True, 1)


def test_show_tells_why_a_reply_was_no_answer(rig):
    """Status, code and model of the vendor's error, whole, beside the reply that was sent."""
    cause = "kind=busy status=429 code=rate_limit_exceeded model=gpt-5-mini-2026-08-07-preview"
    held, reply = said(rig, Reply("The language model is too busy.", cause=cause))
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    code, words = run("show", CHAT.id)
    assert (code, cause in words) == (0, True)
