"""`sayso people links`, `accept-link`, `reject-link` and `absences`: what operators see and decide."""

from __future__ import annotations

import json
import time

import pytest
from redis import Redis

from sayso.channels.types import Conversation
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.people import PeopleParts, open_people_parts
from sayso.infra.concurrency import run_sync
from sayso.pending.approvals.absences import Absence
from sayso.pending.approvals.links import LinkSide, WaitingLink
from sayso.pending.approvals.people import Account
from tests.ops.cli.test_people_cli import run

FILE = """
channels:
  web: {platform: console}
  desk: {platform: telegram, token: "${TOKEN}", polling: true}
people:
  ada: {accounts: {web: a1}, roles: [manager]}
  dan: {accounts: {desk: '8'}}
"""
ADA = LinkSide("web", "a1", Conversation("web", "a1"), "Ada\x1b[31m", "en")
DESK = LinkSide("desk", "7", Conversation("desk", "7"), "", "de")


@pytest.fixture
def parts(redis_client: Redis, redis_url, tmp_path, monkeypatch) -> PeopleParts:
    """Return what knows the people of a bot in the Redis that the environment names."""
    (tmp_path / "sayso.yaml").write_text(FILE)
    given = {
        "REDIS_URL": redis_url,
        "SAYSO_DATA": tmp_path,
        "SAYSO_CONFIG": tmp_path / "sayso.yaml",
        "TOKEN": "1:t",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    return open_people_parts(load_settings(tmp_path / "sayso.yaml"), tmp_path)


@pytest.fixture
def waiting(parts: PeopleParts) -> WaitingLink:
    """Return a link that waits."""
    return run_sync(parts.links.add_waiting(ADA, DESK))


def test_a_waiting_link_is_listed_accepted_and_told(parts, waiting, redis_client):
    """No character of a name moves the terminal's cursor."""
    code, shown = run("links")
    assert code == 0
    assert "\x1b" not in shown
    assert f"waiting   {waiting.id}" in shown
    code, said = run("accept-link", waiting.id.lower())
    assert code == 0
    assert said.startswith("web:a1 (Ada")
    assert "are joined, and are told" in said
    assert run("links") == (0, "joined    web:a1 desk:7\n")
    person = run_sync(parts.directory.person_of("desk", ["7"]))
    assert (person.name, person.roles) == ("ada", {"manager"})
    told = [key for key in redis_client.scan_iter("*outbox:*") if redis_client.llen(key)]
    assert len(told) == 2


def test_a_rejected_link_joins_nothing(parts, waiting):
    """It is gone, so the second command finds nothing."""
    code, said = run("reject-link", waiting.id)
    assert (code, "are not joined, and are told" in said) == (0, True)
    assert run("links") == (0, "no accounts are joined, and no link waits\n")
    code, said = run("accept-link", waiting.id)
    assert code == 3
    assert f"no link '{waiting.id}' waits: see `sayso people links`" in said


def test_two_people_of_the_yaml_are_not_joined_by_an_operator_either(parts):
    """The YAML may have named the second one while the link waited."""
    dan = LinkSide("desk", "8", Conversation("desk", "8"))
    link = run_sync(parts.links.add_waiting(ADA, dan))
    code, said = run("accept-link", link.id)
    assert code == 3
    assert "the accounts are those of ada and dan in `people`" in said
    assert run_sync(parts.links.all_joined()) == []


def test_absences_are_listed(parts):
    """With who decides meanwhile."""
    assert run("absences") == (0, "nobody is away\n")
    run_sync(parts.absences.save(Absence("ada", time.time() + 3600, "dan")))
    code, shown = run("absences")
    assert code == 0
    assert shown.startswith("until 2")
    assert shown.endswith("UTC  ada: dan decides\n")
    (absence,) = json.loads(run("absences", "--json")[1])
    assert (absence["person"], absence["stand_in"]) == ("ada", "dan")


def test_an_erased_person_is_in_no_link_and_in_no_absence(parts, waiting, redis_client):
    """Neither by the account, nor by the name of the YAML."""
    run_sync(parts.links.join(Account("web", "a1"), Account("desk", "9")))
    run_sync(parts.absences.save(Absence("ada", time.time() + 3600)))
    run_sync(parts.absences.save(Absence("dan", time.time() + 3600, "web:a1")))
    code, _ = run("erase", "web", "a1")
    assert code == 0
    assert run("links") == (0, "no accounts are joined, and no link waits\n")
    (absence,) = run_sync(parts.absences.all())
    assert (absence.person, absence.stand_in) == ("dan", "")


def test_an_operator_separates_an_account(parts):
    """The other commands of people do not find it any more."""
    run_sync(parts.links.join(Account("web", "a1"), Account("desk", "7")))
    code, said = run("unlink", "desk", "7")
    assert (code, said) == (0, "desk:7 is separated from its other accounts\n")
    assert run_sync(parts.directory.person_of("desk", ["7"])).name == "desk:7"
    code, said = run("unlink", "desk", "7")
    assert code == 3
    assert "is joined with no other account" in said
