"""`sayso doctor`: those who may decide by a rule can be asked now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sayso.channels.setup import CheckResult
from sayso.channels.types import Conversation
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.people import open_people_parts
from sayso.ops.checks.reach import check_deciders_now
from sayso.pending.approvals.absences import Absence
from sayso.pending.sharded_scripts import shard_of
from tests.config.processes import free_port

BOT = """
agent: {model: offline}
people:
  bea: {accounts: {team: bea}, roles: [manager]}
  cem: {accounts: {team: cem}, roles: [manager]}
channels:
  shop:
    platform: console
    policy: {allow: ["*"], approval: {refund: {by: {role: manager}, need: NEED, on: team}}}
  team: {platform: console}
"""


@pytest.fixture
def check(tmp_path: Path, redis_url: str, redis_client, monkeypatch) -> Callable[..., list]:
    """Return a function that checks the bot with a rule that needs so many people."""
    monkeypatch.setenv("REDIS_URL", redis_url)

    def run(*, need: int = 1) -> list[CheckResult]:
        file = tmp_path / "bot.yaml"
        file.write_text(BOT.replace("NEED", str(need)))

        async def found() -> list[CheckResult]:
            results = check_deciders_now(load_settings(file), tmp_path, time.time())
            return [each async for each in results]

        return asyncio.run(found())

    return run


def close(redis_client, user: str) -> None:
    """Let a person of the team block the bot."""
    to = Conversation("team", user)
    key = f"sayso:bot:{{{shard_of(to.id)}}}:conversation:{to.id}"
    redis_client.hset(key, "closed_address", "AddressClosed: blocked")


def test_everybody_can_be_asked(check):
    """One line for each rule."""
    (result,) = check(need=2)
    assert (result.state, result.channel) == ("ok", "shop")
    assert result.says == "refund: those who decide can be asked"


def test_one_person_has_blocked_the_bot(check, redis_client):
    """A warning while enough others are left, and a failure once they are not."""
    close(redis_client, "bea")
    (warned,) = check()
    assert warned.state == "warn"
    assert "bea cannot be reached on team (AddressClosed: blocked)" in warned.says
    (failed,) = check(need=2)
    assert failed.state == "fail"
    assert "2 must agree, and only these can be asked now: cem" in failed.says


def test_people_are_away(check, tmp_path):
    """Without a colleague nobody is asked in their place."""
    check()
    people = open_people_parts(load_settings(tmp_path / "bot.yaml"), tmp_path)
    for name in ("bea", "cem"):
        asyncio.run(people.absences.save(Absence(name, time.time() + 3600)))
    (result,) = check()
    assert (result.state, result.id) == ("fail", "deciders")
    assert "only these can be asked now: nobody" in result.says
    assert "sayso people absences" in result.cure


def test_bot_without_rules_has_no_line(tmp_path, monkeypatch, redis_url):
    """Its users decide."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    file = tmp_path / "bot.yaml"
    file.write_text("agent: {model: offline}\nchannels: {web: {platform: console}}\n")

    async def found() -> list[CheckResult]:
        return [each async for each in check_deciders_now(load_settings(file), tmp_path, 1.0)]

    assert asyncio.run(found()) == []


def test_redis_that_is_away_is_reported_elsewhere(check, monkeypatch):
    """There is no second line about it."""
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}")
    assert check() == []
