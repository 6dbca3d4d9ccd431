"""Settings below `people` and `roles`: who a person is on each channel, and who has which role.

The docstring below a field is its text in the reference of the YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from sayso.channels.base import Section
from sayso.channels.types import compared_id
from sayso.config.settings.channels import AnyChannel
from sayso.config.settings.tools import RefusedValue

#: The pattern of the names of people. Names are shown in chats and logs, and written in rules and
#: commands. A name has no colon: a person whom the YAML does not name is called after the account,
#: such as `team:U0ADA`. Names of channels have the same pattern.
PERSON_NAME = r"^[A-Za-z0-9_.-]{1,64}$"
#: The name of a role. Case is ignored.
RoleName = Annotated[str, Field(min_length=1, max_length=64)]


class PersonSettings(Section):
    """A person who may decide about actions of others, with their account on each channel."""

    accounts: dict[str, Annotated[str, Field(min_length=1)]]
    """The person's id on each channel, by the name of the channel. The first channel is the one on
    which the person is asked. Users read their id with `/whoami`. Example: `{team: U0ADA, desk:
    '5123456789'}`.
    """
    roles: list[RoleName] = []
    """The roles of the person, in any case. Example: `[manager]`."""


class GroupSettings(Section):
    """A group of a platform whose members have a role."""

    channel: str
    """The name of the channel whose platform has the group. Example: `team`."""
    group: str = Field(min_length=1)
    """The id of the group: a user group of Slack, or a Telegram group, whose administrators count.
    Example: `S0MANAGERS`.
    """


class RoleSettings(Section):
    """A role that people have because they are members of a group of a platform."""

    groups: list[GroupSettings] = Field(min_length=1)
    """The groups. Their members have the role, besides the people to whom `people` gives it.
    Example: `[{channel: team, group: S0MANAGERS}]`.
    """


def refused_people(
    people: Mapping[str, PersonSettings], channels: Mapping[str, AnyChannel]
) -> Iterator[RefusedValue]:
    """Yield the accounts that `sayso check` refuses, with paths below `people`.

    An account must be on a channel of the bot, have an id that is possible on its platform, and
    belong to one person only.
    """
    # The name of the person who has an account, by channel and compared id.
    owners: dict[tuple[str, str], str] = {}
    for name, person in people.items():
        for channel, user_id in person.accounts.items():
            path = (name, "accounts", channel)
            if channel not in channels:
                problem = f"names no channel; known: {', '.join(channels)}"
                yield RefusedValue(path, problem, channel)
                continue

            problem = channels[channel].problem_with_id(user_id)
            if problem:
                yield RefusedValue(path, problem, user_id)
                continue

            prefix = channels[channel].user_id_prefix
            account = (channel, compared_id(user_id, prefix=prefix))
            owner = owners.setdefault(account, name)
            if owner != name:
                problem = f"is the account of {owner}, too: give each account to one person"
                yield RefusedValue(path, problem, user_id)


def refused_roles(
    roles: Mapping[str, RoleSettings], channels: Mapping[str, AnyChannel]
) -> Iterator[RefusedValue]:
    """Yield the roles and groups that `sayso check` refuses, with paths below `roles`."""
    spellings: dict[str, str] = {}
    for role, settings in roles.items():
        spelling = spellings.setdefault(role.lower(), role)
        if spelling != role:
            problem = f"is the role {spelling}, too, as case is ignored: keep one of them"
            yield RefusedValue((role,), problem, role)

        for index, each in enumerate(settings.groups):
            path = (role, "groups", index)
            if each.channel not in channels:
                problem = f"names no channel; known: {', '.join(channels)}"
                yield RefusedValue((*path, "channel"), problem, each.channel)
                continue
            problem = channels[each.channel].problem_with_group(each.group)
            if problem:
                yield RefusedValue((*path, "group"), problem, each.group)
