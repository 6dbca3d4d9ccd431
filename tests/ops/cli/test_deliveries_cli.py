"""The `sayso deliveries` commands: operators see replies that did not arrive, and can send them again."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sayso.channels.types import Reply
from sayso.ops.cli.main import main
from sayso.workers.alerts import RedisAlerts
from sayso.workers.sender import GivenUp, Sent
from tests.config.processes import free_port
from tests.contracts.rigs import CHAT, Rig, turn
from tests.contracts.test_deliveries import bury, on_hold, said, saying

DEAD = f"{CHAT.id}#1"


@pytest.fixture
def rig(redis_client, redis_url, tmp_path, monkeypatch):
    """Return a conversation in the Redis that the environment names."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("SAYSO_DATA", str(tmp_path))
    (tmp_path / "shop.yaml").write_text(
        "agent: {model: offline}\nchannels: {web: {platform: console}}\n"
    )
    monkeypatch.setenv("SAYSO_CONFIG", str(tmp_path / "shop.yaml"))
    return Rig(redis_client, prefix="sayso:shop:")


def run(*args: object) -> tuple[int, str]:
    """Return exit code and output of a `sayso deliveries` command. Any other exception is a bug."""
    result = CliRunner().invoke(main, ["deliveries", *map(str, args)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_dead_reply_is_retried_once(rig):
    """Repeated commands send it once. An RQ job wakes a worker."""
    bury(rig)
    assert run("retry", DEAD) == run("retry", DEAD) == (0, f"{DEAD} waits again, as {CHAT.id}#2\n")
    assert rig.client.llen("rq:queue:sayso-shop") == 1
    assert "retried" in run("show", DEAD)[1]


def test_delivery_that_cannot_be_retried_is_reported(rig):
    """The output has the reason, and the exit code is 3."""
    code, words = run("retry", DEAD)
    assert (code, "is not among the dead" in words) == (3, True)
    assert "write it as listed" in run("retry", "nonsense")[1]


def test_list_shows_undelivered_replies(rig):
    """Newest first: dead ones with text and reason, failed ones with the platform's code, by state and channel."""
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


def test_list_starts_with_troubles_of_channels(rig):
    """Replies that wait for a new token are not listed one by one."""
    RedisAlerts(rig.client, prefix="sayso:shop:").note("web", "the token was revoked\x1b[2J")
    assert "channel web: the token was revoked [2J\n" in run("list")[1]


def test_list_shows_held_replies(rig):
    """They are listed by state and with their conversation."""
    on_hold(rig)
    rows = run("list", "--state", "held")[1], run("show", CHAT.id)[1]
    assert all(
        f"{CHAT.id}#1" in row and "held" in row and "WindowClosed: 24 hours" in row for row in rows
    )
    assert run("list") == (0, "nothing was put aside\n")


def test_show_marks_a_closed_address(rig):
    """The mark stays until the person writes."""
    bury(rig, end="closed")
    assert (
        "accepts nothing until its user writes again: Refused: blocked" in run("show", CHAT.id)[1]
    )


def test_texts_cannot_control_the_terminal(rig):
    """People's texts are shown shortened and without control characters."""
    held, reply = said(rig, Reply("\x1b[31mred" + "x" * 500))
    rig.outbox.mark_delivered(held, reply, GivenUp("Refused: no"))
    words = run("list")[1]
    assert "\x1b" not in words
    assert len(words) < 250


def test_unknown_delivery_is_reported(rig):
    """The exit code is 3."""
    code, words = run("show", DEAD)
    assert (code, "nothing is stored about" in words) == (3, True)


def test_unreachable_redis_is_reported(rig, monkeypatch):
    """The error is one line without a traceback."""
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}")
    code, words = run("list")
    assert (code, "nothing listens there" in words, len(words.splitlines())) == (3, True, 1)


def test_show_has_the_cause_of_a_failed_answer(rig):
    """Status, code and model of the vendor's error stand beside the reply that was sent."""
    cause = "kind=busy status=429 code=rate_limit_exceeded model=gpt-5-mini-2026-08-07-preview"
    held, reply = said(rig, Reply("The language model is too busy.", cause=cause))
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    code, words = run("show", CHAT.id)
    assert (code, cause in words) == (0, True)
