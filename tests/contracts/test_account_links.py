"""Links and absences in Redis: what people join, who counts as one person, and who decides meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sayso.channels.types import Conversation
from sayso.infra.concurrency import run_sync
from sayso.pending.approvals import links as rules
from sayso.pending.approvals.absences import Absence, RedisAbsences
from sayso.pending.approvals.directory import ConfiguredDirectory, NamedPerson, PeopleConfig
from sayso.pending.approvals.linking import AccountLinking, UnknownLink
from sayso.pending.approvals.links import LinkSide, RedisLinks, TooManyLinks
from sayso.pending.approvals.people import Account
from sayso.pending.approvals.self_service import SelfService
from tests.contracts.test_people_directory import ChangingIds

ADA = NamedPerson("ada", (Account("team", "U0ADA"),), frozenset({"manager"}))
BOB = NamedPerson("bob", (Account("team", "U0BOB"),))
CONFIG = PeopleConfig(
    id_prefixes={"team": "", "desk": "", "wa": "whatsapp:"},
    people=(ADA, BOB),
    account_roles={Account("desk", "7"): "legal"},
)


class Clock:
    """Unix seconds that a test moves."""

    now = 1_800_000_000.0

    def __call__(self):
        return self.now


class Rig:
    """Links, absences and the directory over one Redis."""

    def __init__(self, client, *, is_reviewed=False, config=CONFIG, channels=None) -> None:
        self.client = client
        self.clock = Clock()
        self.links = RedisLinks(client, clock=self.clock)
        self.absences = RedisAbsences(client, clock=self.clock)
        self.directory = ConfiguredDirectory(
            config, channels or {}, links=self.links, absences=self.absences
        )
        self.told: dict[str, list] = {}
        self.linking = AccountLinking(
            self.links, self.directory, send=self._send, is_reviewed=is_reviewed
        )
        self.service = SelfService(
            self.directory,
            self.absences,
            self.linking,
            id_problem=lambda channel, user_id: "" if user_id.isdecimal() else "is no id",
            clock=self.clock,
        )

    async def _send(self, delivery) -> None:
        self.told.setdefault(delivery.id, []).append(delivery)

    def person(self, channel, user_id):
        """Return the person who has an account."""
        return run_sync(self.directory.person_of(channel, [user_id]))

    def code(self, maker) -> str:
        """Return a code."""
        return run_sync(self.linking.begin(maker))

    def typed(self, taker, code, event="e1"):
        """Return what becomes of a code."""
        return run_sync(self.linking.finish(taker, code, event)).state

    def join(self, maker, taker) -> str:
        """Join two accounts, and return the state."""
        return self.typed(taker, self.code(maker))


def side(channel, user_id, name="") -> LinkSide:
    """Return one side of a link."""
    return LinkSide(channel, user_id, Conversation(channel, user_id), name, "en")


SLACK, DESK, EVE = side("team", "U0ADA"), side("desk", "7"), side("desk", "66")
CAROL, PHONE = side("team", "U0CAROL"), side("wa", "whatsapp:+49")


@pytest.fixture(params=["redis", "cluster"])
def client(request):
    """Return a client of a server of each kind."""
    return request.getfixturevalue(f"{request.param}_client")


@pytest.fixture
def rig(client):
    """Return a bot where links count at once."""
    return Rig(client)


@pytest.fixture
def reviewed(client):
    """Return a bot where an operator accepts links."""
    return Rig(client, is_reviewed=True)


def test_a_code_joins_two_accounts_into_one_person(rig):
    """The person has the name, the accounts and the roles of both, from each side."""
    assert rig.join(SLACK, DESK) == "linked"
    for account in (SLACK, DESK):
        person = rig.person(account.channel, account.user_id)
        assert (person.name, person.roles) == ("ada", {"manager", "legal"})
        assert person.accounts == (Account("team", "U0ADA"), Account("desk", "7"))


def test_a_code_works_once(rig):
    """Whoever reads it later gets nothing."""
    code = rig.code(SLACK)
    assert rig.typed(DESK, code, "e1") == "linked"
    assert rig.typed(EVE, code, "e2") == "unknown_code"
    assert rig.person("desk", "66").name == "desk:66"


def test_the_turn_of_a_worker_that_died_uses_its_code_again(rig):
    """The same event is the same act of the person."""
    code = rig.code(SLACK)
    assert run_sync(rig.links.use_code(code, "e1"))
    assert rig.typed(DESK, code, "e1") == "linked"
    assert rig.typed(DESK, code, "e1") == "same_person"


def test_two_people_who_type_one_code_at_once_do_not_both_get_it(rig):
    """Exactly one of them is joined."""
    code = rig.code(CAROL)

    async def race():
        return await asyncio.gather(
            rig.linking.finish(DESK, code, "e1"), rig.linking.finish(EVE, code, "e2")
        )

    states = sorted(result.state for result in asyncio.run(race()))
    assert states == ["linked", "unknown_code"]
    joined = run_sync(rig.links.joined_with([CAROL.account]))
    assert len(joined[0]) == 2


def test_an_expired_code_is_unknown(rig, client):
    """The key has a TTL, which this test lets run out."""
    code = rig.code(SLACK)
    (key,) = client.scan_iter("sayso:{links}:code:*")
    assert 0 < client.ttl(key) <= rules.CODE_SECONDS
    client.delete(key)
    assert rig.typed(DESK, code) == "unknown_code"


def test_codes_cannot_be_guessed(rig):
    """After five wrong ones within an hour even the right one is refused, and nothing is joined."""
    code = rig.code(SLACK)
    states = [rig.typed(EVE, "BCDFGHJK", f"e{number}") for number in range(rules.MAX_TRIES)]
    assert set(states) == {"unknown_code"}
    assert rig.typed(EVE, code, "e9") == "too_many_tries"
    assert rig.person("desk", "66").roles == frozenset()
    # Another account still may.
    assert rig.typed(DESK, code, "e10") == "linked"


def test_guesses_at_the_same_moment_count_too(rig, client):
    """Each counts before it is looked up."""

    async def guess():
        tries = [rig.linking.finish(EVE, "BCDFGHJK", f"e{number}") for number in range(20)]
        return await asyncio.gather(*tries)

    states = [result.state for result in asyncio.run(guess())]
    assert states.count("unknown_code") == rules.MAX_TRIES
    (key,) = client.scan_iter("sayso:{links}:tries:*")
    assert 0 < client.ttl(key) <= 3600


def test_an_account_makes_few_codes_in_an_hour(rig):
    """Otherwise the codes of one person could fill Redis."""
    codes = [rig.code(SLACK) for _ in range(rules.MAX_CODES + 1)]
    assert all(codes[: rules.MAX_CODES])
    assert codes[-1] == ""


def test_a_code_in_small_letters_counts(rig):
    """People type on phones."""
    assert rig.typed(DESK, rig.code(SLACK).lower()) == "linked"


def test_a_code_is_for_another_channel(rig):
    """It stays valid for the right one."""
    code = rig.code(SLACK)
    assert rig.typed(CAROL, code) == "same_channel"
    assert rig.typed(DESK, code) == "linked"


def test_two_people_of_the_yaml_are_never_joined(client):
    """Their names say why, and the code is not used up."""
    config = replace(CONFIG, people=(ADA, replace(BOB, accounts=(Account("desk", "8"),))))
    rig = Rig(client, config=config)
    result = run_sync(rig.linking.finish(side("desk", "8"), rig.code(SLACK), "e1"))
    assert (result.state, result.names) == ("two_people", ("ada", "bob"))
    assert rig.person("team", "U0ADA").accounts == ADA.accounts


def test_a_link_does_not_count_once_the_yaml_names_both(rig, client):
    """The YAML may have changed since: each keeps their own accounts and roles."""
    rig.join(SLACK, DESK)
    dan = NamedPerson("dan", (Account("desk", "7"),))
    later = Rig(client, config=replace(CONFIG, people=(ADA, BOB, dan)))
    assert later.person("team", "U0ADA").roles == {"manager"}
    assert (later.person("desk", "7").name, later.person("desk", "7").roles) == ("dan", {"legal"})


def test_the_same_account_is_not_linked_twice(rig):
    """A second link of the same accounts changes nothing."""
    rig.join(SLACK, DESK)
    assert rig.join(SLACK, DESK) == "same_person"
    assert rig.join(DESK, SLACK) == "same_person"
    assert len(rig.person("desk", "7").accounts) == 2


def test_links_join_all_accounts_of_both_people(rig):
    """Carol joins her phone, then her desk: three accounts, one person with one name."""
    rig.join(CAROL, PHONE)
    assert rig.join(PHONE, DESK) == "linked"
    names = {rig.person(each.channel, each.user_id).name for each in (CAROL, PHONE, DESK)}
    assert names == {"team:U0CAROL"}
    assert len(rig.person("desk", "7").accounts) == 3


def test_two_links_of_one_account_at_once_lose_nothing(rig):
    """Each process reads, and one of them writes first."""

    async def race():
        await asyncio.gather(
            rig.links.join(CAROL.account, DESK.account),
            rig.links.join(CAROL.account, PHONE.account),
        )

    asyncio.run(race())
    (joined,) = run_sync(rig.links.joined_with([CAROL.account, DESK.account, PHONE.account]))
    assert set(joined) == {CAROL.account, DESK.account, PHONE.account}


def test_an_unlinked_account_is_a_person_again(rig):
    """With its own roles alone."""
    rig.join(SLACK, DESK)
    assert run_sync(rig.linking.unlink(DESK.account))
    assert not run_sync(rig.linking.unlink(DESK.account))
    assert (rig.person("desk", "7").name, rig.person("desk", "7").roles) == ("desk:7", {"legal"})
    assert rig.person("team", "U0ADA").roles == {"manager"}
    assert run_sync(rig.links.all_joined()) == []


def test_the_others_stay_joined_when_one_account_is_unlinked(rig):
    """Two of three accounts are still one person."""
    rig.join(CAROL, PHONE)
    rig.join(PHONE, DESK)
    run_sync(rig.linking.unlink(PHONE.account))
    assert rig.person("desk", "7").name == rig.person("team", "U0CAROL").name == "team:U0CAROL"
    assert rig.person("wa", "whatsapp:+49").name == "wa:whatsapp:+49"


def test_a_person_has_at_most_eight_accounts(rig, monkeypatch):
    """Beyond that nothing is joined."""
    monkeypatch.setattr(rules, "MAX_ACCOUNTS", 2)
    rig.join(CAROL, DESK)
    assert rig.join(PHONE, DESK) == "too_many_accounts"
    assert rig.person("wa", "whatsapp:+49").name == "wa:whatsapp:+49"


def test_a_bot_has_a_maximum_of_joined_accounts(rig, monkeypatch):
    """Nothing of a refused link is stored."""
    monkeypatch.setattr(rules, "MAX_LINKED", 2)
    run_sync(rig.links.join(CAROL.account, DESK.account))
    with pytest.raises(TooManyLinks):
        run_sync(rig.links.join(SLACK.account, PHONE.account))
    assert len(run_sync(rig.links.all_joined())) == 1


def test_a_reviewed_link_waits_for_an_operator_and_tells_both_sides(reviewed):
    """Until then the accounts are two people."""
    assert reviewed.join(SLACK, DESK) == "waits"
    assert reviewed.person("desk", "7").name == "desk:7"
    (link,) = run_sync(reviewed.links.waiting())
    run_sync(reviewed.linking.accept(link.id.lower()))
    assert reviewed.person("desk", "7").name == "ada"
    told = {delivery[0].conversation: delivery[0].reply.text for delivery in reviewed.told.values()}
    assert set(told) == {SLACK.conversation, DESK.conversation}
    assert all("joined: `team:U0ADA`, `desk:7`" in text for text in told.values())
    with pytest.raises(UnknownLink):
        run_sync(reviewed.linking.accept(link.id))


def test_a_rejected_link_joins_nothing_and_tells_both_sides(reviewed):
    """It is gone then."""
    reviewed.join(SLACK, DESK)
    (link,) = run_sync(reviewed.links.waiting())
    run_sync(reviewed.linking.reject(link.id))
    assert reviewed.person("desk", "7").name == "desk:7"
    assert len(reviewed.told) == 2
    assert run_sync(reviewed.links.waiting()) == []


def test_the_same_two_accounts_wait_once(reviewed):
    """However often they ask."""
    reviewed.join(SLACK, DESK)
    reviewed.join(DESK, SLACK)
    assert len(run_sync(reviewed.links.waiting())) == 1


def test_a_link_that_waits_too_long_is_dropped(reviewed):
    """Nobody accepts it after a week."""
    reviewed.join(SLACK, DESK)
    reviewed.clock.now += rules.WAITING_SECONDS
    assert run_sync(reviewed.links.waiting()) == []


def test_unlinking_drops_what_waits(reviewed):
    """A person who changed their mind is not joined later."""
    reviewed.join(SLACK, DESK)
    run_sync(reviewed.linking.unlink(DESK.account))
    assert run_sync(reviewed.links.waiting()) == []


def test_the_side_that_made_the_code_is_told_of_an_open_link(rig):
    """The other one reads it in the answer."""
    rig.join(SLACK, DESK)
    (deliveries,) = rig.told.values()
    assert [each.conversation for each in deliveries] == [SLACK.conversation]


def test_an_erased_account_leaves_no_trace_in_links(reviewed, rig, client):
    """Neither joined, nor waiting."""
    rig.join(CAROL, PHONE)
    rig.join(PHONE, DESK)
    reviewed.join(SLACK, DESK)
    assert run_sync(rig.links.erase(DESK.account)) == 2
    assert '"7"' not in str(client.hgetall("sayso:{links}:accounts"))
    assert client.hgetall("sayso:{links}:waiting") == {}


def test_a_link_follows_a_person_whose_number_passed_on(client):
    """The new owner of the number is not joined with the accounts of the first one."""
    before = ChangingIds(**{"+49": "+49", "DE.EVE": "+49"})
    rig = Rig(client, channels={"wa": before})
    rig.join(PHONE, EVE)
    after = ChangingIds(**{"+49": "DE.NEW", "DE.NEW": "DE.NEW", "DE.EVE": "+49"})
    rig = Rig(client, channels={"wa": after})
    eve = run_sync(rig.directory.person_of("wa", ["whatsapp:+49", "whatsapp:DE.EVE"]))
    new = run_sync(rig.directory.person_of("wa", ["whatsapp:DE.NEW", "whatsapp:+49"]))
    assert eve.accounts == (Account("wa", "whatsapp:DE.EVE"), Account("desk", "66"))
    assert new.accounts == (Account("wa", "whatsapp:DE.NEW"),)
    assert rig.person("desk", "66").name == eve.name


def test_an_absent_person_has_a_stand_in_until_the_end(rig):
    """From each account."""
    until = rig.clock() + 60
    bob = run_sync(rig.directory.named("bob"))
    assert run_sync(rig.service.start_absence(bob, until, "ada", "team")) == "away"
    bob = rig.person("team", "U0BOB")
    assert (bob.stand_in, bob.away_until) == ("ada", until)
    rig.clock.now += 60
    assert rig.person("team", "U0BOB").away_until == 0.0


def test_a_stand_in_is_another_person_also_after_a_link(rig):
    """Nobody decides for themselves by their second account."""
    eve = rig.person("desk", "66")
    until = rig.clock() + 60
    assert run_sync(rig.service.start_absence(eve, until, "66", "desk")) == "yourself"
    carol = rig.person("team", "U0CAROL")
    run_sync(rig.absences.save(Absence(carol.name, until, "desk:66")))
    assert rig.person("team", "U0CAROL").stand_in == "desk:66"
    rig.join(CAROL, EVE)
    assert rig.person("team", "U0CAROL").stand_in == ""
    assert rig.person("team", "U0CAROL").away_until == until


def test_an_absence_ends_with_back_under_each_name(rig):
    """Carol went away before she joined her accounts."""
    until = rig.clock() + 60
    run_sync(rig.service.start_absence(rig.person("desk", "66"), until, "", "desk"))
    rig.join(CAROL, EVE)
    assert rig.person("team", "U0CAROL").away_until == until
    run_sync(rig.service.end_absence(rig.person("team", "U0CAROL")))
    assert rig.person("desk", "66").away_until == 0.0


@pytest.mark.parametrize("seconds", [0, -5, 367 * 86_400])
def test_an_absence_lies_ahead_and_within_a_year(rig, seconds):
    """Anything else is a mistake."""
    bob = run_sync(rig.directory.named("bob"))
    state = run_sync(rig.service.start_absence(bob, rig.clock() + seconds, "", "team"))
    assert state == "bad_time"


@pytest.mark.parametrize("name", ["nobody", "desk:12", "@", "team:U0ADA"])
def test_a_colleague_must_be_known_or_have_an_id_of_the_channel(rig, name):
    """A misspelled name would decide nothing, and nobody would notice."""
    bob = run_sync(rig.directory.named("bob"))
    state = run_sync(rig.service.start_absence(bob, rig.clock() + 60, name, "desk"))
    assert state == "unknown_person"


def test_a_colleague_may_be_named_by_an_id_of_the_channel(rig):
    """With the name of the person who has it."""
    eve = rig.person("desk", "66")
    run_sync(rig.service.start_absence(eve, rig.clock() + 60, "7", "desk"))
    assert rig.person("desk", "66").stand_in == "desk:7"


def test_absences_are_listed_and_expire_with_the_last_one(rig, client):
    """The key has a TTL by the clock of Redis, so this one uses real times."""
    seconds, _ = client.time()
    rig.clock.now = float(seconds)
    for name, hours in (("bob", 5), ("ada", 2), ("carol", 3)):
        run_sync(rig.absences.save(Absence(name, seconds + hours * 3600.0)))
    assert [each.person for each in run_sync(rig.absences.all())] == ["ada", "carol", "bob"]
    assert 4 * 3600 < client.ttl("sayso:absences") <= 5 * 3600


def test_an_erased_stand_in_leaves_the_absence_of_others(rig):
    """Nobody decides then."""
    run_sync(rig.absences.save(Absence("bob", rig.clock() + 60, "desk:66")))
    assert run_sync(rig.absences.forget_stand_in(["desk:66"])) == 1
    assert (rig.person("team", "U0BOB").stand_in, rig.person("team", "U0BOB").away_until) == (
        "",
        rig.clock() + 60,
    )


def test_a_stand_in_keeps_the_power_after_they_joined_their_accounts(rig):
    """Their name is another one since, and the absence has the name of before."""
    bob = run_sync(rig.directory.named("bob"))
    run_sync(rig.service.start_absence(bob, rig.clock() + 60, "66", "desk"))
    rig.join(CAROL, EVE)
    assert rig.person("team", "U0BOB").stand_in == rig.person("desk", "66").name == "team:U0CAROL"


def test_those_for_whom_a_person_decides(rig):
    """Also under an earlier name of the person, and until the end of the absence."""
    bob = run_sync(rig.directory.named("bob"))
    run_sync(rig.service.start_absence(bob, rig.clock() + 60, "66", "desk"))
    rig.join(CAROL, EVE)

    def represented(channel, user_id):
        person = rig.person(channel, user_id)
        return [each.name for each in run_sync(rig.directory.represented_by(person))]

    assert represented("team", "U0CAROL") == represented("desk", "66") == ["bob"]
    assert represented("team", "U0ADA") == []
    rig.clock.now += 60
    assert represented("desk", "66") == []


def test_a_person_is_recognized_after_they_separated_their_accounts(rig):
    """Each of the two people has a name that the one had before."""
    rig.join(CAROL, EVE)
    before = rig.person("desk", "66").known_as
    run_sync(rig.linking.unlink(EVE.account))
    for place in (("desk", "66"), ("team", "U0CAROL")):
        assert not rig.person(*place).known_as.isdisjoint(before)
    assert rig.person("team", "U0ADA").known_as.isdisjoint(before)


def test_two_people_may_stand_in_for_each_other(rig):
    """Nobody is looked up for ever."""
    until = rig.clock() + 60
    run_sync(rig.service.start_absence(rig.person("desk", "66"), until, "7", "desk"))
    run_sync(rig.service.start_absence(rig.person("desk", "7"), until, "66", "desk"))
    assert rig.person("desk", "66").stand_in == "desk:7"
    assert rig.person("desk", "7").stand_in == "desk:66"
