"""DecidersOfYaml: which people the YAML names for the rules of `policy.approval`.

It refuses rules that nobody could ever fulfill. It reads the YAML only. For a decision itself, the
roles of people at that moment count (`PeopleDirectory`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.settings.tools import YamlPath
from sayso.config.wiring.people import people_config
from sayso.infra.concurrency import run_sync
from sayso.infra.spelling import did_you_mean
from sayso.pending.approval_rule import ApprovalRule, Deciders
from sayso.pending.approvals.directory import ConfiguredDirectory
from sayso.pending.approvals.people import KnownPerson


@dataclass(frozen=True, slots=True)
class NamedDeciders:
    """The people who may decide, as far as the YAML names them."""

    people: tuple[KnownPerson, ...]
    #: Whether these are all. False for `anyone_else`, and for a role that people have because they
    #: are members of a group of a platform.
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class ConfiguredRule:
    """An approval rule with its place in the YAML."""

    #: The name of the channel whose tools it is about.
    channel: str
    #: The path of the rule in the YAML.
    path: YamlPath
    rule: ApprovalRule

    @property
    def deciders(self) -> list[tuple[YamlPath, Deciders]]:
        """The people who may decide, at once or later, with their paths below that of the rule."""
        all_deciders: list[tuple[YamlPath, Deciders]] = [(("by",), self.rule.by)]
        if self.rule.escalation:
            all_deciders.append((("escalate", "by"), self.rule.escalation.by))
        return all_deciders


class DecidersOfYaml:
    """Finds the people who may decide, by the YAML alone. Asks no platform and reads no Redis.

    Lives as long as one check or one command.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._config = people_config(settings)
        # Without groups: no platform is asked who is in them.
        self._directory = ConfiguredDirectory(replace(self._config, groups={}), channels={})

    def person(self, channel: str, user_id: str) -> KnownPerson:
        """Return the person with this id on a channel."""
        return run_sync(self._directory.person_of(channel, [user_id]))

    def named(self, deciders: Deciders, on: str = "") -> NamedDeciders:
        """Return the people whom the deciders describe, as far as the YAML names them.

        `on`: the channel on which they are asked. People without an account there are left out. "":
        only people without any account are left out.
        """
        found: list[KnownPerson] = []
        is_complete = True
        match deciders.kind:
            case "role":
                for role in deciders.names:
                    found += run_sync(self._directory.with_role(role))
                    if role.lower() in self._config.groups:
                        is_complete = False
            case "people":
                for name in deciders.names:
                    person = run_sync(self._directory.named(name))
                    if person:
                        found.append(person)
            case _:
                is_complete = False

        people = [person for person in dict.fromkeys(found) if _can_be_asked(person, on)]
        return NamedDeciders(tuple(people), is_complete)

    def problems(self) -> Iterator[str]:
        """Yield a text for each rule that nobody could fulfill, with its line and its cure."""
        for each in self.rules():
            problems = [*self._unknown_people(each), *self._roles_of_nobody(each)]
            if not problems:
                problems = list(self._too_few(each))
            yield from problems

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each rule that fails if a person who may decide asks for the action.

        The asker does not decide. So the rule needs one more person than its number says.
        """
        for each in self.rules():
            eligible = self._eligible(each)
            need = each.rule.need
            askers = [person.name for person in eligible.people if person.account_on(each.channel)]
            if not eligible.is_complete or not askers or len(eligible.people) > need:
                continue
            key = ".".join(map(str, each.path))
            where = self._settings.origin.at(*each.path, "need")
            yield (
                f"{where}warning: {key}: {_people_count(need)} must agree, and only "
                f"{len(eligible.people)} may decide, so a call that {' or '.join(askers)} asks for "
                "can never be approved: let one more person decide"
            )

    def rules(self) -> Iterator[ConfiguredRule]:
        """Yield the rules of all channels by which other people decide."""
        for name, channel in self._settings.channels.items():
            approvals = channel.policy.approval if channel.policy else {}
            for pattern, approval in approvals.items():
                rule = approval.rule
                if rule.asks_others:
                    yield ConfiguredRule(
                        name, ("channels", name, "policy", "approval", pattern), rule
                    )

    def _unknown_people(self, configured: ConfiguredRule) -> Iterator[str]:
        """Yield a problem for each named person who cannot be asked."""
        known = list(self._settings.people)
        for below, deciders in configured.deciders:
            if deciders.kind != "people":
                continue
            path = (*configured.path, *below, "people")
            for index, name in enumerate(deciders.names):
                problem = ""
                if name not in known:
                    hint = did_you_mean(name, known, ", {}")
                    names = ", ".join(known) or "none"
                    problem = f"{name!r} is not in people{hint}; known: {names}"
                elif not self.named(Deciders("people", (name,)), _asked_on(configured)).people:
                    on = _asked_on(configured) or "any channel"
                    problem = f"{name!r} has no account on {on}: add it to people.{name}.accounts"
                if problem:
                    yield self._settings.problem(path, problem, index)

    def _roles_of_nobody(self, configured: ConfiguredRule) -> Iterator[str]:
        """Yield a problem for each role that nobody has."""
        for below, deciders in configured.deciders:
            if deciders.kind != "role":
                continue
            path = (*configured.path, *below, "role")
            for index, role in enumerate(deciders.names):
                named = self.named(Deciders("role", (role,)))
                if named.people or not named.is_complete:
                    continue
                hint = did_you_mean(role, self._known_roles(), ", {}")
                problem = (
                    f"nobody has the role {role!r}{hint}: give it to somebody in people, to a "
                    "group in roles, or to a user in access.roles of a channel"
                )
                yield self._settings.problem(path, problem, index)

    def _too_few(self, configured: ConfiguredRule) -> Iterator[str]:
        """Yield a problem if fewer people may decide than the rule needs."""
        eligible = self._eligible(configured)
        need = configured.rule.need
        if not eligible.is_complete or len(eligible.people) >= need:
            return
        on = _asked_on(configured)
        with_account = f" with an account on {on}" if on else ""
        names = ", ".join(person.name for person in eligible.people)
        only = f"only {len(eligible.people)} may decide: {names}"
        if not eligible.people:
            only = "none of those who may decide can be asked"
        problem = f"{_people_count(need)}{with_account} must agree, and {only}"
        yield self._settings.problem(configured.path, problem, "need")

    def _eligible(self, configured: ConfiguredRule) -> NamedDeciders:
        """Return the people who may decide, at once or later."""
        people: dict[str, KnownPerson] = {}
        is_complete = True
        for _, deciders in configured.deciders:
            named = self.named(deciders, _asked_on(configured))
            people |= {person.name: person for person in named.people}
            is_complete = is_complete and named.is_complete
        return NamedDeciders(tuple(people.values()), is_complete)

    def _known_roles(self) -> list[str]:
        """Return the roles that somebody has."""
        roles = {*self._config.account_roles.values(), *self._config.groups}
        for person in self._config.people:
            roles |= person.roles
        return sorted(roles)


def check_deciders(settings: Settings) -> None:
    """Refuse rules that nobody could ever fulfill: their actions would only expire.

    Raises ConfigError.
    """
    problems = list(DecidersOfYaml(settings).problems())
    if problems:
        raise ConfigError(problems)


def _can_be_asked(person: KnownPerson, on: str) -> bool:
    """Return whether a person has an account on a channel. "": on any channel."""
    if on:
        return person.account_on(on) is not None
    return bool(person.accounts)


def _asked_on(configured: ConfiguredRule) -> str:
    """Return the channel on which people are asked, "" if each is asked on their first account."""
    return configured.rule.on.channel if configured.rule.on else ""


def _people_count(number: int) -> str:
    """Return a number of people, such as `2 people`."""
    return "1 person" if number == 1 else f"{number} people"
