"""Approvers: who is asked about an action, and who may decide about it.

The people who are asked are found once, when the question is sent. Whether a person may decide is
checked at each answer: the person may have lost the role, or may be away, meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sayso.channels.types import Conversation
from sayso.pending.approval_rule import ApprovalPlace, ApprovalRule, Deciders
from sayso.pending.approvals.people import Account, KnownPerson, PeopleDirectory
from sayso.pending.approvals.requests import ANYONE, SentRequest
from sayso.pending.approvals.votes import Vote

#: The most people who are asked about one action.
MAX_ASKED = 20


@dataclass(frozen=True, slots=True)
class AskedPlace:
    """Where a question about an action is sent: to one person, or to a group."""

    #: The direct chat with the person, or the chat of the group.
    to: Conversation
    #: The id under which the person answers there, ANYONE for a group.
    user_id: str
    #: The name of the person, "" for a group.
    person: str = ""


@dataclass(frozen=True, slots=True)
class ActionPlace:
    """Where an action waits, and who asked for it."""

    #: The conversation in which it waits.
    home: Conversation
    #: The person who asked for it.
    asker: KnownPerson
    #: Digests of the names that the asker had when they asked (`KnownPerson.known_as`).
    asker_known_as: frozenset[str] = frozenset()

    def is_asker(self, person: KnownPerson) -> bool:
        """Return whether a person is the asker, by any name that one of them has or had."""
        return not person.known_as.isdisjoint(self.asker.known_as | self.asker_known_as)


class Decider(NamedTuple):
    """A person who may decide about an action."""

    person: KnownPerson
    #: The name of the absent person in whose place the person decides, "" for nobody.
    stands_for: str = ""


class Approvers:
    """Finds the people whom a rule describes. Lives as long as the directory; has no state.

    All methods raise DirectoryUnavailable and redis.RedisError, as the directory does.
    """

    def __init__(self, people: PeopleDirectory) -> None:
        self._people = people

    async def person_of(self, channel: str, user_ids: Sequence[str]) -> KnownPerson:
        """Return the person with these ids on a channel."""
        return await self._people.person_of(channel, user_ids)

    async def places_to_ask(
        self, deciders: Deciders, on: ApprovalPlace | None, place: ActionPlace, now: float
    ) -> Sequence[AskedPlace]:
        """Return where to ask the people who may decide. The asker is not among them.

        In place of a person who is away, their colleague is asked. A person who is away and named
        no colleague is left out, and so is a person without an account on the channel.

        * `on`: where people are asked, as the rule says; None: on the first account of each person.
        * `now`: in Unix seconds.
        """
        if on and on.chat:
            return [AskedPlace(Conversation(on.channel, on.chat, on.thread), ANYONE)]
        if deciders.kind == "anyone_else":
            return [AskedPlace(place.home, ANYONE)]

        places: dict[str, AskedPlace] = {}
        for person in await self._members(deciders):
            # The asker may not decide, so no colleague may decide in their place.
            if place.is_asker(person):
                continue
            asked = await self._person_or_stand_in(person, now)
            if asked is None or place.is_asker(asked) or asked.name in places:
                continue
            account = _account_of(asked, on)
            if account is None:
                continue
            to = await self._people.direct_conversation(account)
            # The chat has the id under which the answer comes in. The account may have another id
            # of the person, such as a phone number.
            places[asked.name] = AskedPlace(to, to.chat, asked.name)
            if len(places) == MAX_ASKED:
                break
        return list(places.values())

    async def may_decide(
        self,
        vote: Vote,
        all_deciders: Iterable[Deciders],
        place: ActionPlace,
        group: Conversation,
        now: float,
    ) -> Decider | None:
        """Return the person of a vote if they may decide, None if not.

        A colleague of a person who is away may decide for that person. A vote that was counted so
        (`Vote.stands_for`) goes on counting when the person is back, as long as they may decide.

        * `all_deciders`: the person must be among any of these people.
        * `place`: where the action waits.
        * `group`: the conversation in which `anyone_else` may decide, in any thread of its chat.
        """
        person = await self._people.person_of(vote.channel, vote.user_ids)
        if place.is_asker(person):
            return None
        groups_of_deciders = tuple(all_deciders)
        for deciders in groups_of_deciders:
            if deciders.kind == "anyone_else":
                is_decider = (vote.channel, vote.chat) == (group.channel, group.chat)
            else:
                is_decider = _is_one_of(person, deciders)
            if is_decider:
                return Decider(person)

        for absent in await self._represented(vote, person, now):
            is_decider = any(_is_one_of(absent, each) for each in groups_of_deciders)
            if is_decider and not place.is_asker(absent):
                return Decider(person, absent.name)
        return None

    async def _represented(
        self, vote: Vote, person: KnownPerson, now: float
    ) -> Sequence[KnownPerson]:
        """Return the people in whose place a person may decide, or decided by this vote."""
        absent = [
            each for each in await self._people.represented_by(person) if each.away_until > now
        ]
        if vote.stands_for:
            represented = await self._people.named(vote.stands_for)
            if represented:
                return [represented, *absent]
        return absent

    async def _members(self, deciders: Deciders) -> Sequence[KnownPerson]:
        """Return the people with the roles or names of the deciders, each once."""
        members: dict[str, KnownPerson] = {}
        for name in deciders.names:
            if deciders.kind == "role":
                for person in await self._people.with_role(name):
                    members[person.name] = person
            else:
                named = await self._people.named(name)
                if named:
                    members[named.name] = named
        return list(members.values())

    async def _person_or_stand_in(self, person: KnownPerson, now: float) -> KnownPerson | None:
        """Return a person, or their colleague while they are away; None without a colleague."""
        if person.away_until <= now:
            return person
        if not person.stand_in:
            return None
        return await self._people.named(person.stand_in)


def _is_one_of(person: KnownPerson, deciders: Deciders) -> bool:
    """Return whether a person has one of the roles, or one of the names, of the deciders."""
    if deciders.kind == "role":
        return not person.roles.isdisjoint(_lower(deciders.names))
    return person.name in deciders.names


def can_be_decided(asked: Iterable[AskedPlace | SentRequest], need: int) -> bool:
    """Return whether enough people are asked.

    A group always counts as enough: the bot does not know how many people read it.
    """
    people = [each.person for each in asked]
    return "" in people or len(people) >= need


def group_of(rule: ApprovalRule, home: Conversation) -> Conversation:
    """Return the conversation in which `anyone_else` may decide.

    `home`: the conversation in which the action waits.
    """
    on = rule.on
    if on and on.chat:
        return Conversation(on.channel, on.chat, on.thread)
    return home


def _account_of(person: KnownPerson, on: ApprovalPlace | None) -> Account | None:
    """Return the account with which a person is asked, None if they have none there."""
    if on:
        return person.account_on(on.channel)
    return next(iter(person.accounts), None)


def _lower(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}
