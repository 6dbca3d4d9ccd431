"""The people of a group, from which a role comes: over HTTP, with the SDKs of the platforms."""

from __future__ import annotations

import asyncio

import pytest

from sayso.channels.base import ListsGroupMembers, Refused, SendError, Unreachable
from sayso.channels.slack.setup import manifest, scopes
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.slack import FakeSlack
from sayso.testing.platforms.telegram import ADMINISTRATORS, MOVED_GROUPS
from tests.channels.harness import MemoryMedia, slack, telegram, whatsapp

ADA = {"id": 1, "is_bot": False, "first_name": "Ada"}
BOB = {"id": 2, "is_bot": False, "first_name": "Bob"}
EVE = {"id": 3, "is_bot": False, "first_name": "Eve", "is_anonymous": True}
BOT = {"id": 4, "is_bot": True, "first_name": "Helper"}


@pytest.fixture
def fake_slack(platforms: FakePlatforms) -> FakeSlack:
    """Return the fake of Slack, with one user group."""
    fake = platforms.fakes["slack"]
    assert isinstance(fake, FakeSlack)
    fake.scopes |= {"usergroups:read"}
    fake.user_groups["S0MANAGERS"] = ["U0ADA", "U0BOB"]
    return fake


def members(channel: ListsGroupMembers, group: str) -> list[str]:
    """Return the people in a group."""
    return list(asyncio.run(channel.group_members(group)))


def test_a_user_group_of_slack_has_its_people(media: MemoryMedia, platforms, fake_slack):
    """In the order of Slack, with the ids that their messages have."""
    channel = slack(media, platforms.slack_url)
    assert members(channel, "S0MANAGERS") == ["U0ADA", "U0BOB"]


def test_an_unknown_user_group_is_an_error(media: MemoryMedia, platforms, fake_slack):
    """A deleted group must not look like one without people."""
    with pytest.raises(Refused, match="no_such_subteam"):
        members(slack(media, platforms.slack_url), "S0GONE")


def test_a_token_without_the_scope_says_which_one_is_missing(
    media: MemoryMedia, platforms, fake_slack
):
    """The operator adds it and installs the app again."""
    fake_slack.scopes -= {"usergroups:read"}
    with pytest.raises(SendError, match="add the scope usergroups:read"):
        members(slack(media, platforms.slack_url), "S0MANAGERS")


def test_a_scope_for_groups_is_asked_for_only_where_a_role_needs_it():
    """An app asks for no more than it uses."""
    assert "usergroups:read" not in scopes("agent")
    assert "usergroups:read" in scopes("agent", reads_groups=True)
    app = manifest("sl", "https://bots.example.com", name="Acme", reads_groups=True)
    assert "usergroups:read" in app["oauth_config"]["scopes"]["bot"]


def test_the_administrators_of_a_telegram_group_have_the_role(media: MemoryMedia, platforms):
    """Not bots, and not people who stay anonymous."""
    platforms.log.state[ADMINISTRATORS] = {"-1001": [ADA, EVE, BOT, BOB]}
    assert members(telegram(media, platforms.telegram_url), "-1001") == ["1", "2"]


def test_a_group_that_became_a_supergroup_is_found_under_its_new_id(media: MemoryMedia, platforms):
    """The YAML still has the first id."""
    platforms.log.state[MOVED_GROUPS] = {"-5": "-1005000000000"}
    platforms.log.state[ADMINISTRATORS] = {"-1005000000000": [ADA]}
    channel = telegram(media, platforms.telegram_url)
    assert members(channel, "-5") == ["1"]
    # The second time it is known.
    platforms.log.state[MOVED_GROUPS] = {}
    assert members(channel, "-5") == ["1"]


def test_a_telegram_group_without_the_bot_is_an_error(media: MemoryMedia, platforms):
    """Telegram says nothing about groups in which the bot is not a member."""
    with pytest.raises(SendError):
        members(telegram(media, platforms.telegram_url), "-1009")


def test_an_unreachable_platform_is_an_error(media: MemoryMedia):
    """Nothing listens on this port."""
    with pytest.raises(Unreachable):
        members(slack(media, "http://127.0.0.1:9"), "S0MANAGERS")


def test_a_platform_without_groups_lacks_the_ability(media: MemoryMedia):
    """The YAML refuses such a role."""
    channel = whatsapp(media, None)
    assert not isinstance(channel, ListsGroupMembers)
