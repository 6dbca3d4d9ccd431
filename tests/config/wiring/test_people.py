"""People of a bot with real adapters over HTTP and a real Redis, from the YAML to the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from sayso.channels.types import Conversation, SenderIds, Turn
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import Services, bootstrap
from sayso.config.wiring.people import PeopleParts
from sayso.config.wiring.redis_parts import RedisParts
from sayso.pending.approvals.people import Account, DirectoryUnavailable
from sayso.testing.platforms.fake_platforms import ENVIRON, FakePlatforms
from sayso.testing.platforms.slack import FakeSlack
from sayso.testing.platforms.telegram import ADMINISTRATORS
from tests.config.fake_bots import written

PEOPLE = """
people:
  ada: {accounts: {wa: "+4915100000042", sl: U0ADA}, roles: [boss]}
roles:
  manager: {groups: [{channel: sl, group: S0MANAGERS}, {channel: tg, group: "-1001"}]}
links: open
"""
NUMBER = "whatsapp:+4915100000042"


class PeopleBot:
    """A bot on four channels that knows people."""

    def __init__(self, folder: Path, redis_url: str, platforms: FakePlatforms, yaml: str) -> None:
        file = written(folder, platforms)
        file.write_text(file.read_text() + yaml)
        settings = load_settings(file, {**ENVIRON, "CONSOLE_PASSWORD": "p"})
        self.services: Services = bootstrap(settings, data=folder, redis_url=redis_url)
        redis = RedisParts.connect(settings, redis_url)
        self.identities = redis.identities
        self.people = PeopleParts.open(settings, redis, self.services.channels)
        slack = platforms.fakes["slack"]
        assert isinstance(slack, FakeSlack)
        self.slack = slack
        slack.scopes |= {"usergroups:read"}
        slack.user_groups["S0MANAGERS"] = ["U0ADA", "U0EVE"]
        bob = {"id": 7, "is_bot": False, "first_name": "Bob"}
        platforms.log.state[ADMINISTRATORS] = {"-1001": [bob]}

    def says(self, channel: str, user_id: str, text: str) -> str:
        """Return the answer to a message."""
        turn = Turn(f"e{text}", Conversation(channel, user_id), user_id, text)
        replies = asyncio.run(self.services.processor.turns.agents[channel].take(turn))
        return "\n".join(reply.text for reply in replies)


@pytest.fixture
def make_bot(
    tmp_path: Path, redis_url: str, redis_client: Redis
) -> Iterator[Callable[..., PeopleBot]]:
    """Yield a function that makes a bot with these lines of YAML."""
    with FakePlatforms() as platforms:
        yield lambda yaml=PEOPLE: PeopleBot(tmp_path, redis_url, platforms, yaml)


def test_roles_come_from_the_yaml_and_from_both_platforms(make_bot):
    """Each over the platform's own API."""
    bot = make_bot()
    managers = asyncio.run(bot.people.directory.with_role("manager"))
    assert [each.name for each in managers] == ["ada", "sl:U0EVE", "tg:7"]
    assert managers[0].roles == {"boss", "manager"}
    assert bot.says("tg", "7", "/whoami").endswith("Your role: manager")


def test_a_revoked_scope_leaves_no_one_without_a_role_silently(make_bot):
    """The error says what to do, and /whoami answers without the role."""
    bot = make_bot()
    bot.slack.scopes -= {"usergroups:read"}
    with pytest.raises(DirectoryUnavailable, match="add the scope usergroups:read"):
        asyncio.run(bot.people.directory.person_of("sl", ["U0ADA"]))
    assert "Your id here: `U0ADA`" in bot.says("sl", "U0ADA", "/whoami")


def test_a_person_of_whatsapp_is_found_under_each_id(make_bot):
    """The YAML has the number; the conversation stands under the id that came first."""
    bot = make_bot()
    bot.identities.recognize("wa", SenderIds("whatsapp:DE.ADA", NUMBER), store=True)
    directory = bot.people.directory
    for ids in (["whatsapp:DE.ADA"], ["whatsapp:DE.ADA", NUMBER]):
        assert asyncio.run(directory.person_of("wa", ids)).name == "ada"
    ada = asyncio.run(directory.named("ada"))
    conversation = asyncio.run(directory.direct_conversation(ada.accounts[0]))
    assert conversation == Conversation("wa", "whatsapp:DE.ADA")


def test_accounts_are_joined_from_command_to_command(make_bot):
    """A code of Telegram, typed on Slack: the answer names both, and roles are those of both."""
    bot = make_bot()
    code = bot.says("tg", "9", "/link").partition("`")[2].partition("`")[0]
    assert bot.says("sl", "U0ADA", f"/link {code}") == (
        "These accounts are joined: `tg:9`, `sl:U0ADA`"
    )
    person = asyncio.run(bot.people.directory.person_of("tg", ["9"]))
    assert (person.name, person.roles) == ("ada", {"boss", "manager"})
    assert person.accounts == (
        Account("wa", NUMBER),
        Account("sl", "U0ADA"),
        Account("tg", "9"),
    )


def test_links_of_before_do_not_count_once_they_are_off(make_bot):
    """An operator turns them off because something went wrong."""
    asyncio.run(make_bot().people.links.join(Account("tg", "9"), Account("sl", "U0ADA")))
    bot = make_bot(PEOPLE.replace("links: open", "links: off"))
    assert asyncio.run(bot.people.directory.person_of("tg", ["9"])).name == "tg:9"
    assert "/link" not in bot.says("tg", "9", "/help")
    assert "/away" in bot.says("tg", "9", "/help")


def test_a_bot_without_people_has_no_commands_about_them(make_bot):
    """It would not matter what they say."""
    bot = make_bot("")
    assert bot.people.self_service is None
    assert "/away" not in bot.says("tg", "9", "/help")
