"""Identities: which ids belong to one person of a channel, on one server and on a cluster."""

from __future__ import annotations

import pytest
from redis import Redis

from sayso.channels.types import Identity, SenderIds
from sayso.infra.records import OtherVersion
from sayso.pending.stored_limits import (
    KEEP_CONVERSATION_MS,
    KEEP_IDENTITY_MS,
    KEEP_STRANGER_MS,
    MAX_IDS,
)
from sayso.workers.identities import RedisIdentities
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from tests.infra.redis.lua_source import CheckedScripts

NUMBER = "whatsapp:+4915100000042"
OTHER_NUMBER = "whatsapp:+4915100000043"
ANA = "whatsapp:DE.1"
BEN = "whatsapp:DE.2"
PARENT = "whatsapp:DE.ENT.9"


@pytest.fixture(params=["redis", "cluster"])
def identities(request):
    """Return each kind of identities."""
    return RedisIdentities(
        CheckedScripts(request.getfixturevalue(f"{request.param}_client"), CONVERSATION_SCRIPTS)
    )


def writes(identities, user_id: str = "", number: str = "", parent: str = "") -> str:
    """Receive a message with these ids. Return the key of its sender."""
    return identities.recognize("wa", SenderIds(user_id, number, parent), store=True).key


@pytest.mark.parametrize("client", ["redis_client", "cluster_client"])
def test_person_of_a_newer_release_is_neither_read_nor_changed(
    client: str,
    request: pytest.FixtureRequest,
):
    """After a rollback the record may mean something else. Who wrote it will read it again."""
    redis: Redis = request.getfixturevalue(client)
    identities = RedisIdentities(CheckedScripts(redis, CONVERSATION_SCRIPTS))
    writes(identities, ANA, NUMBER)
    (key,) = redis.scan_iter("*:person:*")
    newer = redis.get(key).replace('"v":1', '"v":2')
    redis.set(key, newer)
    uses = (
        lambda: writes(identities, ANA, OTHER_NUMBER),
        lambda: identities.find_by_id("wa", NUMBER),
        lambda: identities.find_by_key("wa", ANA),
        lambda: identities.forget("wa", ANA),
    )
    for use in uses:
        with pytest.raises(OtherVersion, match="has version 2"):
            use()
    assert redis.get(key) == newer
    assert len(list(redis.scan_iter("*:holder:*"))) == 2


def test_number_of_another_person_brings_nothing_of_theirs(identities):
    """A number that was given to another person names that one from their first message on."""
    assert writes(identities, ANA, NUMBER) == ANA
    assert writes(identities, BEN, NUMBER) == BEN
    assert identities.find_by_id("wa", NUMBER).key == BEN
    first = identities.find_by_key("wa", ANA)
    assert (first.number, first.user_id) == ("", ANA)


def test_number_of_a_conversation_with_an_id_brings_nothing_either(identities):
    """The conversation began under the number.

    Its first person has an id by now, so another id is another person.
    """
    assert writes(identities, number=NUMBER) == NUMBER
    assert writes(identities, ANA, NUMBER) == NUMBER
    assert writes(identities, BEN, NUMBER) == BEN
    assert identities.find_by_key("wa", NUMBER).user_id == ANA
    assert identities.find_by_key("wa", NUMBER).number == ""
    assert writes(identities, ANA) == NUMBER


def test_person_who_hides_the_number_stays_the_same(identities):
    """The number stays theirs while no one else writes from it."""
    writes(identities, ANA, NUMBER)
    assert writes(identities, ANA) == ANA
    assert identities.find_by_key("wa", ANA) == Identity(ANA, NUMBER, ANA, (NUMBER, ANA))


def test_person_who_wrote_before_there_were_ids_stays_the_same(identities):
    """The first message had no id. Later ones have one, with the number and without."""
    keys = [
        writes(identities, number=NUMBER),
        writes(identities, ANA, NUMBER),
        writes(identities, ANA),
    ]
    assert keys == [NUMBER] * 3
    assert writes(identities, number=NUMBER) == NUMBER


def test_message_without_an_id_is_of_the_person_with_the_number(identities):
    """Twilio's list of messages has no ids."""
    writes(identities, ANA, NUMBER)
    assert writes(identities, number=NUMBER) == ANA


def test_parent_id_leads_to_the_same_person(identities):
    """Another id, and even another number: linked businesses know the person by one more id."""
    writes(identities, ANA, NUMBER, PARENT)
    assert writes(identities, BEN, OTHER_NUMBER, PARENT) == ANA
    person = identities.find_by_key("wa", ANA)
    assert (person.number, person.user_id) == (OTHER_NUMBER, BEN)


def test_another_id_without_a_number_takes_the_old_number_away(identities):
    """The person changed the number, and hides the new one. The old one may be a stranger's."""
    writes(identities, ANA, NUMBER, PARENT)
    assert writes(identities, BEN, "", PARENT) == ANA
    person = identities.find_by_key("wa", ANA)
    assert (person.number, person.user_id) == ("", BEN)


def test_own_id_counts_more_than_the_parent(identities):
    """Two people with an id each stay two, whatever else a webhook says."""
    writes(identities, ANA, NUMBER)
    writes(identities, BEN, OTHER_NUMBER, PARENT)
    assert writes(identities, ANA, NUMBER, PARENT) == ANA
    assert writes(identities, BEN, OTHER_NUMBER, PARENT) == BEN


def test_new_id_with_a_new_number_is_a_new_person(identities):
    """No message says that it is the same person, and a wrong guess would show one person's history to another."""
    writes(identities, ANA, NUMBER)
    assert writes(identities, BEN, OTHER_NUMBER) == BEN


def test_looking_stores_nothing(identities):
    """A person who may not talk leaves nothing behind."""
    assert identities.recognize("wa", SenderIds(ANA, NUMBER), store=False).key == ANA
    assert (identities.find_by_id("wa", NUMBER), identities.find_by_key("wa", ANA)) == (None, None)


def test_looking_says_what_storing_would(identities):
    """The mailbox accepts a turn for the person that a look named."""
    writes(identities, ANA, NUMBER)
    for ids in (
        SenderIds(ANA, OTHER_NUMBER),
        SenderIds(ANA),
        SenderIds(BEN, NUMBER, PARENT),
        SenderIds("", NUMBER),
    ):
        looked = identities.recognize("wa", ids, store=False)
        assert identities.recognize("wa", ids, store=True) == looked


def test_person_whose_ids_never_changed_is_the_supposed_one(identities):
    """Then the first try of the mailbox is right, at the first message and later."""
    for ids in (SenderIds(ANA, NUMBER, PARENT), SenderIds(BEN), SenderIds("", OTHER_NUMBER)):
        for _ in range(2):
            assert identities.recognize("wa", ids, store=True) == ids.as_identity()


def test_channels_know_nothing_of_each_other(identities):
    """Another account of the bot's owner may be of another business."""
    writes(identities, ANA, NUMBER)
    assert identities.find_by_id("other", NUMBER) is None


def test_forgotten_person_leaves_no_id(identities):
    """The number of another person stays theirs."""
    writes(identities, ANA, NUMBER, PARENT)
    writes(identities, BEN, NUMBER)
    identities.forget("wa", ANA)
    assert [identities.find_by_id("wa", name) for name in (ANA, PARENT)] == [None, None]
    assert identities.find_by_key("wa", ANA) is None
    assert identities.find_by_id("wa", NUMBER).key == BEN


def test_person_has_a_bounded_number_of_ids(identities):
    """The oldest are forgotten; the newest still lead to the person."""
    for n in range(MAX_IDS + 3):
        writes(identities, f"whatsapp:DE.{n}", parent=PARENT)
    person = identities.find_by_id("wa", PARENT)
    assert (len(person.ids), person.key) == (MAX_IDS, "whatsapp:DE.0")
    assert identities.find_by_id("wa", "whatsapp:DE.1") is None
    assert identities.find_by_id("wa", f"whatsapp:DE.{MAX_IDS + 2}").key == "whatsapp:DE.0"


def test_repeated_message_changes_nothing(identities):
    """A process was killed after it stored the ids and before it stored the turn: the platform sends it again."""
    for _ in range(2):
        assert writes(identities, ANA, NUMBER, PARENT) == ANA
        assert identities.find_by_key("wa", ANA) == Identity(
            ANA, NUMBER, ANA, (PARENT, NUMBER, ANA)
        )


def test_number_alone_is_kept_no_longer_than_its_conversation(redis_client):
    """Who gets the number later would be taken for its person.

    An id never passes to another person.
    """
    identities = RedisIdentities(CheckedScripts(redis_client, CONVERSATION_SCRIPTS))
    writes(identities, number=NUMBER)
    assert all(
        redis_client.pttl(key) <= KEEP_CONVERSATION_MS
        for key in redis_client.scan_iter("sayso:{ids:wa}*")
    )
    writes(identities, ANA, NUMBER)
    assert all(
        KEEP_CONVERSATION_MS < redis_client.pttl(key) <= KEEP_IDENTITY_MS
        for key in redis_client.scan_iter("sayso:{ids:wa}*")
    )


def test_ids_of_a_stranger_are_kept_for_an_hour(redis_client):
    """Those of a person who is known already are kept as long as before."""
    identities = RedisIdentities(CheckedScripts(redis_client, CONVERSATION_SCRIPTS))
    ids = SenderIds(ANA, NUMBER)
    identities.recognize("wa", ids, store=False, briefly=True)
    keys = set(redis_client.scan_iter("sayso:{ids:wa}*"))
    assert len(keys) == 3
    assert all(0 < redis_client.pttl(key) <= KEEP_STRANGER_MS for key in keys)
    writes(identities, ANA, NUMBER)
    identities.recognize("wa", ids, store=False, briefly=True)
    assert all(redis_client.pttl(key) > KEEP_CONVERSATION_MS for key in keys)


def test_names_of_keys_hold_no_phone_number(redis_client):
    """Names of keys are in logs and statistics of Redis."""
    writes(RedisIdentities(CheckedScripts(redis_client, CONVERSATION_SCRIPTS)), ANA, NUMBER)
    assert "4915100000042" not in str(list(redis_client.scan_iter()))
