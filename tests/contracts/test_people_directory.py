"""PeopleDirectory: what each directory promises, and what the one of a bot with a YAML adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.channels.base import RateLimited
from sayso.channels.types import Conversation
from sayso.infra.concurrency import run_sync
from sayso.pending.approvals.directory import ConfiguredDirectory, NamedPerson, PeopleConfig
from sayso.pending.approvals.people import Account, DirectoryUnavailable, EmptyDirectory
from sayso.pending.approvals.role_groups import MEMBERS_CACHE_SECONDS, RoleGroup

ADA = NamedPerson(
    "ada", (Account("team", "U0ADA"), Account("wa", "whatsapp:+4915")), frozenset({"manager"})
)
BOB = NamedPerson("bob", (Account("desk", "7"),), frozenset({"manager", "legal"}))
CONFIG = PeopleConfig(
    id_prefixes={"team": "", "desk": "", "wa": "whatsapp:"},
    people=(ADA, BOB),
    account_roles={Account("desk", "9"): "legal", Account("desk", "7"): "staff"},
)


class ChangingIds:
    """A channel on which a number may pass to another person.

    `holders` has the id under which the person is stored who has an id, by that id.
    """

    def __init__(self, **holders: str) -> None:
        self.holders = {f"whatsapp:{name}": f"whatsapp:{key}" for name, key in holders.items()}

    def recognize(self, turn, *, store, briefly=False):
        """Return the turn in the conversation of the person who has its address now."""
        return replace(turn, conversation=self.conversation_of(turn.conversation))

    def sender(self, turn):
        """Return None: no turn names ids here."""
        return

    def conversation_of(self, conversation):
        """Return the conversation of the person who has this id now."""
        key = self.holders.get(conversation.chat, conversation.chat)
        return Conversation(conversation.channel, key)

    def ids_of(self, user_id):
        """Return the ids that the person with this key has now."""
        ids = [name for name, key in self.holders.items() if key == user_id]
        return tuple(sorted(ids, key=lambda name: name != user_id))


class Groups:
    """A channel with groups of people, of which a test changes the members."""

    def __init__(self, **members: list[str]) -> None:
        self.members = members
        self.error: Exception | None = None

    async def group_members(self, group):
        """Return the members now."""
        if self.error:
            raise self.error
        return self.members[group]


class Clock:
    """Seconds that a test moves."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    """Return the clock of `grouped`."""
    return Clock()


@pytest.fixture
def team():
    """Return a channel whose group S1 gives the role `manager`."""
    return Groups(S1=["U0EVE", "U0ADA"])


@pytest.fixture
def grouped(team, clock):
    """Return a directory in which Slack's group S1 gives the role `manager`."""
    groups = {"manager": (RoleGroup("team", "S1"),)}
    return ConfiguredDirectory(replace(CONFIG, groups=groups), {"team": team}, clock=clock)


@pytest.fixture(params=["visitors", "configured"])
def any_directory(request):
    """Return a directory of each kind."""
    if request.param == "visitors":
        return EmptyDirectory()
    return ConfiguredDirectory(CONFIG, {})


@pytest.fixture
def directory():
    """Return a directory of a bot that names people."""
    return ConfiguredDirectory(CONFIG, {})


def test_an_account_without_a_name_is_a_person_with_the_name_of_the_account(any_directory):
    """A stranger has one account, no role, and the same name at each look."""
    person = run_sync(any_directory.person_of("desk", ["12"]))
    assert (person.name, person.accounts) == ("desk:12", (Account("desk", "12"),))
    assert person.roles == frozenset()


def test_the_main_id_names_a_person_whom_nobody_named(any_directory):
    """Other ids of the account change nothing."""
    assert run_sync(any_directory.person_of("desk", ["12", "13"])).name == "desk:12"


def test_nobody_has_an_unknown_name_or_role(any_directory):
    """A misspelled rule finds nobody."""
    assert run_sync(any_directory.named("carol")) is None
    assert run_sync(any_directory.with_role("pilot")) == ()


def test_a_person_is_asked_in_the_chat_that_the_platform_names_after_them(any_directory):
    """Elsewhere others would read the question."""
    conversation = run_sync(any_directory.direct_conversation(Account("desk", "12")))
    assert conversation == Conversation("desk", "12")


def test_all_accounts_of_a_named_person_lead_to_the_same_person(directory):
    """Ada counts once, on Slack and on WhatsApp, in each spelling of her number."""
    people = [
        run_sync(directory.person_of("team", ["U0ADA"])),
        run_sync(directory.person_of("wa", ["whatsapp:+4915"])),
        run_sync(directory.person_of("wa", ["whatsapp:DE.1", "+4915"])),
        run_sync(directory.named("ada")),
    ]
    assert {each.name for each in people} == {"ada"}
    assert {each.accounts for each in people} == {ADA.accounts}


def test_the_same_id_on_another_channel_is_another_person(directory):
    """Ids are unique on their channel only."""
    assert run_sync(directory.person_of("wa", ["7"])).name == "wa:7"


def test_roles_of_the_access_rules_count_too(directory):
    """Bob has the roles of `people` and of his account; 9 is known by the account alone."""
    assert run_sync(directory.named("bob")).roles == {"manager", "legal", "staff"}
    assert run_sync(directory.person_of("desk", ["9"])).roles == {"legal"}


def test_people_with_a_role_come_in_the_order_of_the_yaml(directory):
    """Whoever has a name comes first; case is ignored; each person comes once."""
    managers = run_sync(directory.with_role("Manager"))
    legal = run_sync(directory.with_role("LEGAL"))
    assert [each.name for each in managers] == ["ada", "bob"]
    assert [each.name for each in legal] == ["bob", "desk:9"]


def test_the_name_of_an_account_finds_its_person(directory):
    """A record may hold the name of somebody who has got a real one since."""
    assert run_sync(directory.named("desk:7")).name == "bob"
    assert run_sync(directory.named("desk:12")).name == "desk:12"
    assert run_sync(directory.named("gone:12")) is None


def test_a_number_that_passed_on_gives_its_first_owner_nothing():
    """Ada's number was Eve's once. Eve is stored under it still, and is not Ada."""
    channel = ChangingIds(**{"+4915": "DE.ADA", "DE.ADA": "DE.ADA", "DE.EVE": "+4915"})
    directory = ConfiguredDirectory(CONFIG, {"wa": channel})
    eve = run_sync(directory.person_of("wa", ["whatsapp:+4915", "whatsapp:DE.EVE"]))
    ada = run_sync(directory.person_of("wa", ["whatsapp:DE.ADA", "whatsapp:+4915"]))
    assert (eve.name, eve.roles) == ("wa:whatsapp:DE.EVE", frozenset())
    assert ada.name == "ada"


def test_a_person_whose_ids_change_is_asked_where_they_are_stored():
    """The YAML has Ada's number, and her conversation stands under her id."""
    directory = ConfiguredDirectory(CONFIG, {"wa": ChangingIds(**{"+4915": "DE.ADA"})})
    conversation = run_sync(directory.direct_conversation(Account("wa", "whatsapp:+4915")))
    assert conversation == Conversation("wa", "whatsapp:DE.ADA")


def test_a_role_that_was_lost_between_two_reads_does_not_count(grouped, team, clock):
    """What counts is the group at the decision."""
    assert run_sync(grouped.person_of("team", ["U0EVE"])).roles == {"manager"}
    team.members["S1"] = ["U0ADA"]
    clock.now += MEMBERS_CACHE_SECONDS
    assert run_sync(grouped.person_of("team", ["U0EVE"])).roles == frozenset()
    assert [each.name for each in run_sync(grouped.with_role("manager"))] == ["ada", "bob"]


def test_a_group_that_cannot_be_read_is_an_error_and_not_empty(grouped, team, clock):
    """An unreadable group must not look as if nobody were in it, nor keep those who were."""
    run_sync(grouped.with_role("manager"))
    clock.now += MEMBERS_CACHE_SECONDS
    team.error = RateLimited(30)
    with pytest.raises(DirectoryUnavailable, match="team does not say who is in the group S1"):
        run_sync(grouped.with_role("manager"))
    with pytest.raises(DirectoryUnavailable):
        run_sync(grouped.person_of("team", ["U0ADA"]))
    team.error = None
    assert run_sync(grouped.person_of("team", ["U0EVE"])).roles == {"manager"}


def test_a_person_without_an_account_there_needs_no_group(grouped, team):
    """A platform that does not answer stops nobody on the other channels."""
    team.error = RateLimited(30)
    assert run_sync(grouped.named("bob")).roles == {"manager", "legal", "staff"}


def test_people_of_a_group_come_after_those_with_a_name_each_once(grouped):
    """Ada is in the group, too."""
    managers = run_sync(grouped.with_role("manager"))
    assert [each.name for each in managers] == ["ada", "bob", "team:U0EVE"]


def test_a_group_of_a_platform_without_groups_is_an_error():
    """A channel of another distribution may have lost the ability."""
    groups = {"manager": (RoleGroup("wa", "S1"),)}
    directory = ConfiguredDirectory(replace(CONFIG, groups=groups), {})
    with pytest.raises(DirectoryUnavailable, match="wa has no groups"):
        run_sync(directory.with_role("manager"))
