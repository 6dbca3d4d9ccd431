"""The `sayso people` commands: who may talk, whose accounts are joined, who is away, and erasing.

A channel whose YAML has `access` does not let everybody talk. With `pairing`, the bot gives an
unknown person a code, and the person waits until an operator approves the code.

People join their accounts on two channels by `/link`. With `links: reviewed` in the YAML, each link
waits until an operator accepts it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from sayso.infra.terminal import one_line
from sayso.ops.cli.command import (
    Options,
    SaysoGroup,
    check_channel,
    check_id,
    clear_errors,
    fail,
    pass_options,
)

if TYPE_CHECKING:
    from sayso.config.settings.schema import Settings
    from sayso.config.wiring.people import PeopleParts
    from sayso.pending.approvals.links import LinkSide, WaitingLink
    from sayso.workers.access import AccessRules
    from sayso.workers.people import ListedPerson, PeopleDecisions, RedisPeople, WaitingSender
    from sayso.workers.sender import RedisOutbox

#: The most characters of a name, and of a person's ids, in one line.
WIDTH = 60
#: What an erasure leaves, and for how long: lines for the operator. A line may name several facts.
DATA_LEFT = (
    "that actions took place, when and how they ended, without who and what: in the audit ledger, for ever",
    "ids of their messages: 72 hours; "
    "digests of their ids: counters of conversations for 30 days, "
    "of used tokens for 2 days; "
    "of threads that the bot opened: 90 days; "
    "that they want no messages: a year",
    "what others in a group were answered or said about them: 30 days after the last message there",
    "cached answers of models, where `agent.cache` is on: until their ttl",
    "whether they may talk (`access`): until `sayso people forget {channel} {user}`; "
    "that they wait for it: 1 hour; a code with which they wanted to join accounts: 10 minutes",
    "files they sent that another person sent too: 7 days after those were sent",
    "what the spool holds, where it is on: until Redis took it",
    "what your own tools and code, logs, replicas, RDB files, backups and the platform store: see there",
)

_channel = click.argument("channel")
_person = click.argument("person", metavar="CODE_OR_ID")


@click.group(
    cls=SaysoGroup, examples=["sayso people list desk", "sayso people approve desk BCDFGHJK"]
)
def people() -> None:
    """Decide who may talk to the bot, besides the people in the YAML, and whose accounts are joined.

    Who may talk is decided for a channel with `access`.
    """


@people.command("list", examples=["sayso people list desk"])
@_channel
@pass_options
def list_(options: Options, channel: str) -> None:
    """List the people approved or blocked on CHANNEL, and those who wait, with their codes."""
    with _open_commands(options, channel) as commands:
        waiting = commands.access_list.waiting(channel)
        decided = commands.access_list.listed(channel)
    lines = [_row("waiting", each, each.code) for each in waiting]
    lines += [_row(each.state, each) for each in decided]
    value = {
        "waiting": [asdict(each) for each in waiting],
        "people": [asdict(each) for each in decided],
    }
    options.print(value, lines or ["nobody was approved or blocked, and nobody waits"])


@people.command(
    examples=["sayso people approve desk BCDFGHJK", "sayso people approve shop-wa +4915112345678"]
)
@_channel
@_person
@pass_options
def approve(options: Options, channel: str, person: str) -> None:
    """Let a person talk on CHANNEL, by the CODE the bot gave them or by their ID.

    People who waited are told.
    """
    with _open_commands(options, channel) as commands:
        waiting = commands.decisions.approve(channel, commands.code_or_id(person))
        is_told = waiting is not None and commands.tell(waiting)
        reasons = list(commands.reasons_without_effect(person, waiting))

    name = person
    if waiting:
        name = waiting.ids[0]
        if waiting.name:
            name = f"{waiting.name} ({waiting.ids[0]})"
    name = one_line(name, WIDTH)
    notice = ", and is told" if is_told else ""
    lines = [f"{name} may talk on {channel}{notice}"]
    lines += [f"({each})" for each in reasons]
    options.print({"person": name, "channel": channel, "told": is_told, "remarks": reasons}, lines)


@people.command(examples=["sayso people block desk U0123ABCD"])
@_channel
@_person
@pass_options
def block(options: Options, channel: str, person: str) -> None:
    """Ignore a person on CHANNEL, by CODE or ID. They are not told."""
    with _open_commands(options, channel) as commands:
        commands.decisions.block(channel, commands.code_or_id(person))
    name = one_line(person, WIDTH)
    options.print({"person": name, "channel": channel}, [f"{name} is blocked on {channel}"])


@people.command(examples=["sayso people forget desk U0123ABCD"])
@_channel
@_person
@pass_options
def forget(options: Options, channel: str, person: str) -> None:
    """Delete what was decided about a person on CHANNEL, by CODE or ID: approval, block, code."""
    with _open_commands(options, channel) as commands:
        commands.decisions.forget(channel, commands.code_or_id(person))
    name = one_line(person, WIDTH)
    options.print({"person": name, "channel": channel}, [f"{name} is forgotten on {channel}"])


@people.command(examples=["sayso people erase desk U0123ABCD"])
@_channel
@click.argument("user")
@pass_options
def erase(options: Options, channel: str, user: str) -> None:
    """Erase everything stored about USER on CHANNEL: history, actions, files, memories and timers.

    USER is the id that /whoami prints.
    """
    from redis.exceptions import RedisError

    from sayso.config.wiring.data_folder import open_data
    from sayso.config.wiring.erasure import erase_person

    settings = options.load()
    check_channel(settings, channel)
    _check_stored_id(settings, channel, user)
    with clear_errors():
        try:
            erased = erase_person(settings, options.data, open_data(options.data), channel, user)
        except RedisError as exc:
            fail(
                f"Redis does not answer ({type(exc).__name__}): nothing is certain to be erased: run it again"
            )

    name = one_line(user, WIDTH)
    lines = [
        f"{name} is erased on {channel}:",
        f"  {erased.redis_entries:,} entries of Redis: history, turns, replies, actions, timers",
        f"  {erased.audit_bodies:,} bodies of the audit ledger; the chain still verifies",
        f"  {erased.texts:,} long texts, {erased.media:,} files, {erased.memories:,} notes and memories",
    ]
    data_left = [line.format(channel=channel, user=name) for line in DATA_LEFT]
    if erased.is_rewritten:
        lines.append("Redis has rewritten its append-only file. What remains, and until when:")
        lines += [f"  {line}" for line in data_left]
    options.print({"user": name, "channel": channel, **asdict(erased), "remains": data_left}, lines)

    # Redis still has the erased values in its append-only file until it has rewritten that file.
    if not erased.is_rewritten:
        cure = "run BGREWRITEAOF on it and on each replica"
        fail(
            f"Redis or a replica did not rewrite its append-only file, which still holds what was erased: {cure}"
        )


@people.command(examples=["sayso people links"])
@pass_options
def links(options: Options) -> None:
    """List the accounts that people joined, and the links that wait to be accepted, with their IDs."""
    from sayso.infra.concurrency import run_without_loop
    from sayso.pending.approvals.people import account_name

    with _open_people(options) as parts:
        waiting = run_without_loop(parts.links.waiting())
        joined = run_without_loop(parts.links.all_joined())
    lines = [_link_row(each) for each in waiting]
    names = [[account_name(account) for account in accounts] for accounts in joined]
    lines += [f"joined    {one_line(' '.join(each), 2 * WIDTH)}" for each in names]
    value = {"waiting": [asdict(each) for each in waiting], "joined": names}
    options.print(value, lines or ["no accounts are joined, and no link waits"])


@people.command("accept-link", examples=["sayso people accept-link BCDFGHJK"])
@click.argument("link", metavar="ID")
@pass_options
def accept_link(options: Options, link: str) -> None:
    """Join the accounts of a link that waits, by its ID. Both sides are told.

    The person then has the roles of both accounts. Make sure that both are the same person.
    """
    _decide_link(options, link, is_accepted=True)


@people.command("reject-link", examples=["sayso people reject-link BCDFGHJK"])
@click.argument("link", metavar="ID")
@pass_options
def reject_link(options: Options, link: str) -> None:
    """Drop a link that waits, by its ID. Both sides are told."""
    _decide_link(options, link, is_accepted=False)


@people.command(examples=["sayso people unlink desk 5123456789"])
@_channel
@click.argument("user")
@pass_options
def unlink(options: Options, channel: str, user: str) -> None:
    """Separate the account of USER on CHANNEL from those that it is joined with. They are not told.

    USER is the id that `sayso people links` prints.
    """
    from sayso.infra.concurrency import run_without_loop
    from sayso.pending.approvals.people import Account

    settings = options.load()
    check_channel(settings, channel)
    with _open_people(options) as parts:
        is_separated = run_without_loop(parts.linking.unlink(Account(channel, user)))
    name = one_line(f"{channel}:{user}", WIDTH)
    if not is_separated:
        fail(f"{name} is joined with no other account: see `sayso people links`")
    options.print({"account": name}, [f"{name} is separated from its other accounts"])


@people.command(examples=["sayso people absences"])
@pass_options
def absences(options: Options) -> None:
    """List who is away, until when, and who decides meanwhile."""
    from sayso.infra.concurrency import run_without_loop

    with _open_people(options) as parts:
        absent = run_without_loop(parts.absences.all())
    lines = []
    for each in absent:
        until = f"{datetime.fromtimestamp(each.until, UTC):%Y-%m-%d %H:%M} UTC"
        who = each.person
        if each.stand_in:
            who = f"{each.person}: {each.stand_in} decides"
        lines.append(f"until {until}  {one_line(who, 2 * WIDTH)}")
    options.print([asdict(each) for each in absent], lines or ["nobody is away"])


def _decide_link(options: Options, link_id: str, *, is_accepted: bool) -> None:
    """Accept or reject a link that waits, and say so."""
    from sayso.infra.concurrency import run_without_loop
    from sayso.pending.approvals.linking import UnknownLink
    from sayso.pending.approvals.links import TooManyLinks

    with _open_people(options) as parts:
        decide = parts.linking.reject
        if is_accepted:
            decide = parts.linking.accept
        try:
            link = run_without_loop(decide(link_id))
        except (UnknownLink, TooManyLinks, ValueError) as exc:
            fail(one_line(str(exc), 300))
    outcome = "joined" if is_accepted else "not joined"
    both = f"{_side_text(link.maker)} and {_side_text(link.taker)}"
    line = one_line(f"{both} are {outcome}, and are told", 4 * WIDTH)
    options.print({"link": link.id, "outcome": outcome}, [line])


@contextmanager
def _open_people(options: Options) -> Iterator[PeopleParts]:
    """Yield what knows the people of the bot."""
    from sayso.config.wiring.people import open_people_parts

    settings = options.load()
    with clear_errors():
        yield open_people_parts(settings, options.data)


def _link_row(link: WaitingLink) -> str:
    """Return a line of `links`: the id, the age and both sides of a link that waits."""
    age = _age(time.time() - link.at)
    both = f"{_side_text(link.maker)}  {_side_text(link.taker)}"
    return f"waiting   {link.id}  {age:>5}  {one_line(both, 3 * WIDTH)}"


def _side_text(side: LinkSide) -> str:
    """Return one side of a link: the account, and what the platform calls the person."""
    account = f"{side.channel}:{side.user_id}"
    if side.user_name:
        return f"{account} ({side.user_name})"
    return account


def _check_stored_id(settings: Settings, channel: str, user_id: str) -> None:
    """Raise click.UsageError for an id that no person of the channel has in Redis."""
    try:
        user_id.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{user_id!r} is not UTF-8: write the id as in a list") from None
    check_id(settings, channel, user_id)


@dataclass(frozen=True, slots=True)
class _PeopleCommands:
    """What the commands need on one channel. Lives as long as one command.

    A person is named by the code that the bot gave them, or by an id of the platform.
    """

    settings: Settings
    #: The name of the channel.
    channel: str
    #: What the YAML says of its `access`.
    rules: AccessRules
    #: Who was approved or blocked, and who waits, of all channels.
    access_list: RedisPeople
    #: Approves, blocks and forgets people of that list.
    decisions: PeopleDecisions
    #: Where the message to an approved person is put.
    outbox: RedisOutbox

    def reasons_without_effect(self, person: str, waiting: WaitingSender | None) -> Iterator[str]:
        """Yield why an approval has no effect, for the operator. Yield nothing if it has one.

        `waiting` is the entry of a person who waited for the approval, None for one who did not.
        """
        ids: Sequence[str] = (self.code_or_id(person),)
        if waiting:
            ids = waiting.ids
        if any(each in self.rules.block for each in ids):
            yield "but they stay out while `block` in the configuration names them"
        elif self.rules.allow is None and not self.rules.pairing:
            yield "everybody may talk there: its `access` has neither allow nor pairing"

    def code_or_id(self, person: str) -> str:
        """Return a code unchanged, and an id as the channel spells it.

        Raises click.UsageError for a text that is neither.
        """
        from sayso.infra.letter_codes import looks_like_a_code

        if looks_like_a_code(person):
            return person
        user_id = self.rules.spelled(person)
        if not user_id:
            raise click.UsageError("give a code or an id, as `sayso people list` prints them")
        _check_stored_id(self.settings, self.channel, user_id)
        return user_id

    def tell(self, waiting: WaitingSender) -> bool:
        """Send an approved person the message that they may talk, once for their code.

        Return whether it will be sent.
        """
        from sayso.channels.i18n.texts import texts_for
        from sayso.channels.types import Delivery, Reply
        from sayso.infra.concurrency import run_without_loop

        reply = Reply(texts_for(waiting.language).approved(), language=waiting.language)
        delivery = Delivery(f"people:{waiting.code}", waiting.conversation, reply)
        return bool(run_without_loop(self.outbox.forward(delivery)))


@contextmanager
def _open_commands(options: Options, channel: str) -> Iterator[_PeopleCommands]:
    """Yield what the commands need on a channel. Exits where the channel lets everybody talk."""
    from sayso.config.wiring.access import rules_of
    from sayso.config.wiring.redis_parts import open_people
    from sayso.workers.people import PeopleDecisions, TooManyPeople, UnknownPerson

    settings = options.load()
    check_channel(settings, channel)
    if settings.channels[channel].access is None:
        fail(
            f"everybody may talk on {channel}, and nobody is asked: add `access: {{}}` below channels.{channel}"
        )
    try:
        with clear_errors():
            access_list, outbox = open_people(settings, options.data)
            yield _PeopleCommands(
                settings,
                channel,
                rules_of(settings.channels[channel]),
                access_list,
                PeopleDecisions(access_list),
                outbox,
            )
    except (UnknownPerson, TooManyPeople) as exc:
        fail(one_line(str(exc), 300))


def _row(state: str, person: ListedPerson | WaitingSender, code: str = "") -> str:
    """Return a line of `list`: state, code, age of that state, name and ids."""
    ids = " ".join(person.ids)
    name = f"{person.name}  {ids}" if person.name else ids
    age = _age(time.time() - person.at)
    return f"{state:8}  {code:8}  {age:>5}  {one_line(name, 2 * WIDTH)}"


def _age(seconds: float) -> str:
    """Return an age in the largest unit that it has at least two of."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
