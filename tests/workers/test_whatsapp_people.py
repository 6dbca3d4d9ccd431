"""People on WhatsApp: one conversation a person, whatever number or id a webhook names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from sayso.channels.base import Forbidden, note_moves
from sayso.channels.types import Conversation, Delivery, Reply, SenderIds, Turn, WebhookRequest
from sayso.channels.whatsapp.people import WhatsAppPeople
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import (
    TWILIO_ACCOUNT_SID,
    TWILIO_AUTH_TOKEN,
    FakePlatforms,
)
from sayso.workers import mailbox
from sayso.workers.access import AccessConfig, AccessControl, AccessRules
from sayso.workers.identities import RedisIdentities
from sayso.workers.ingress import Ingress
from sayso.workers.people import WAIT_SECONDS, ListedPerson, RedisPeople
from tests.channels.harness import whatsapp
from tests.contracts.rigs import Rig, make_processor, make_sender, voice
from tests.memory_stores import MemoryAlerts, MemorySharedCache
from tests.workers.fakes import Bot
from tests.workers.test_escalations import Room

NUMBER = "whatsapp:+4915100000042"
OTHER_NUMBER = "whatsapp:+4915100000043"
ANA = "whatsapp:DE.1"
BEN = "whatsapp:DE.2"
PARENT = "whatsapp:DE.ENT.9"
URL = "https://bots.example.com/hooks/wa"


class Clinic:
    """A bot on WhatsApp, from the webhook to the message at the fake Twilio."""

    def __init__(
        self,
        platforms: FakePlatforms,
        rules: AccessRules | None = None,
    ) -> None:
        self.platforms = platforms
        self._sids = count(1)
        self.rig = Rig()
        self.identities = RedisIdentities(self.rig.scripts)
        self.bot = Bot(self.rig, "A", lines=["deleted A", *(f"answer {n}" for n in range(9))])
        self.people = RedisPeople(self.rig.client)
        self.restart(rules)

    def restart(self, rules: AccessRules | None = None) -> None:
        """Start other processes on the same stores."""
        parts = {"identities": self.identities, "cache": MemorySharedCache()}
        self.channel = whatsapp(None, self.platforms.twilio_url, **parts)
        channels = {"wa": self.channel}
        config = AccessConfig({"wa": rules}, self.people) if rules else None
        self.access = AccessControl(self.rig.mailbox, voice, config, channels=channels)
        self.ingress = Ingress(
            self.access.accept, deliveries=self.rig.deliveries, alerts=MemoryAlerts()
        )
        sender = make_sender(self.rig.outbox, channels)
        self.processor = make_processor(self.rig.mailbox, sender, channels, {"wa": self.bot.agent})

    def hook(self, form: dict[str, str]) -> WebhookRequest:
        """Return a form as a webhook of Twilio's."""
        headers, body = signing.whatsapp_hook(URL, TWILIO_AUTH_TOKEN, form)
        return WebhookRequest(URL, headers, body)

    def form(
        self, text: str, user_id: str = "", number: str = "", *, tap: str = "", parent: str = ""
    ) -> dict[str, str]:
        """Return the form of a message. Without a number the id is the sender, as Twilio has it."""
        sid = f"SM{next(self._sids):032x}"
        ids = {"ExternalUserId": user_id, "WaId": number.removeprefix("whatsapp:+")}
        more = {**ids, "ParentExternalUserId": parent} if parent else ids
        if tap:
            return signing.whatsapp_tap(
                sid, tap, account_sid=TWILIO_ACCOUNT_SID, user=number or user_id, **more
            )
        return signing.whatsapp_text(
            sid, text, account_sid=TWILIO_ACCOUNT_SID, user=number or user_id, **more
        )

    def receive(self, form: dict[str, str]) -> str:
        """Take the webhook in and work. Return the last text that was sent."""
        hook = self.hook(form)
        self.ingress.store("wa", self.channel.receive(hook))
        self.rig.pass_time(0.01)  # an answer is sent after its turn came
        for chat in (NUMBER, OTHER_NUMBER, ANA, BEN):
            asyncio.run(self.processor.run(Conversation("wa", chat).id))
        sent = self.platforms.sent
        return sent[-1]["text"] if sent else ""

    def say(self, text: str, user_id: str = "", number: str = "", **options: str) -> str:
        """Write to the bot. Return its last text."""
        return self.receive(self.form(text, user_id, number, **options))

    @property
    def yes(self) -> str:
        """The data of the button that confirms the last question."""
        return next(
            each["buttons"][0]["data"] for each in reversed(self.platforms.sent) if each["buttons"]
        )

    @property
    def recipients(self) -> list[str]:
        """The addresses that messages were sent to."""
        return [each["chat"] for each in self.platforms.sent]


@pytest.fixture(scope="module")
def running() -> Iterator[FakePlatforms]:
    """Start the fake platforms once."""
    with FakePlatforms() as platforms:
        yield platforms


@pytest.fixture
def platforms(running: FakePlatforms) -> FakePlatforms:
    """Return the fake platforms with an empty log."""
    running.reset()
    return running


@pytest.fixture
def clinic(platforms: FakePlatforms) -> Clinic:
    """Return a bot on WhatsApp."""
    return Clinic(platforms)


def test_question_is_not_answered_from_a_number_that_was_given_to_another_person(clinic: Clinic):
    """Neither by a yes nor by a tap.

    The other person gets no word of it, and an answer of their own.
    """
    clinic.say("delete A", ANA, NUMBER)
    clinic.say("yes", BEN, NUMBER)
    clinic.say("", BEN, NUMBER, tap=clinic.yes)
    assert clinic.bot.deleted == []
    clinic.say("", ANA, tap=clinic.yes)
    assert clinic.bot.deleted == ["A"]
    assert clinic.recipients[-1] == ANA, "what is the first person's does not go to the number"


@pytest.mark.parametrize("tapped", [False, True], ids=["typed", "tapped"])
def test_message_without_an_id_confirms_nothing_of_a_person_who_has_one(
    clinic: Clinic,
    tapped: bool,
):
    """The number alone may be another person's by now, who reads nothing of the question.

    It is a message that is no yes, which ends the question.
    """
    clinic.say("delete A", ANA, NUMBER)
    told = clinic.say("Yes", "", NUMBER, tap=clinic.yes if tapped else "")
    assert (clinic.bot.deleted, "Delete A" in told) == ([], False)
    clinic.say("yes", ANA, NUMBER)
    assert (clinic.bot.deleted, len(clinic.platforms.sent)) == ([], 3)


def test_history_does_not_pass_on_with_the_number(clinic: Clinic):
    """The model reads nothing of the first person's messages."""
    clinic.say("my secret is blue", ANA, NUMBER)
    clinic.say("what is my secret?", BEN, NUMBER)
    assert "blue" not in str(clinic.bot.provider.requests[-1].messages)


@pytest.mark.parametrize("tapped", [False, True], ids=["typed", "tapped"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((ANA, NUMBER), (ANA, "")),
        (("", NUMBER), (ANA, NUMBER)),
        (("", NUMBER), ("", NUMBER)),
    ],
    ids=["hides the number", "gets an id", "has no id"],
)
def test_yes_confirms_exactly_the_question_of_the_same_person(
    clinic: Clinic,
    before,
    after,
    tapped: bool,
):
    """The person is asked under one address and answers under another one, after a restart."""
    assert "Delete A" in clinic.say("delete A", *before)
    clinic.restart()
    clinic.say("" if tapped else "yes", *after, tap=clinic.yes if tapped else "")
    assert clinic.bot.deleted == ["A"]
    clinic.say("yes", *after)
    assert clinic.bot.deleted == ["A"]


def test_person_who_gets_an_id_and_then_hides_the_number_keeps_history(clinic: Clinic):
    """Three webhooks, three spellings, one conversation.

    The reply goes to what the person wrote from.
    """
    for ids in (("", NUMBER), (ANA, NUMBER), (ANA, "")):
        clinic.say(f"from {ids}", *ids)
    said = str(clinic.bot.provider.requests[-1].messages)
    assert all(str(ids) in said for ids in (("", NUMBER), (ANA, NUMBER), (ANA, "")))
    assert clinic.recipients == [NUMBER] * 3


def test_turn_of_a_person_who_hides_the_number_still_names_it(clinic: Clinic):
    """Roles and tools find the person by the number, until another person has it."""
    clinic.say("hello", ANA, NUMBER)
    (hidden,) = clinic.channel.receive(clinic.hook(clinic.form("hello", ANA))).turns
    assert clinic.channel.recognize(hidden, store=False).aliases == (NUMBER,)
    clinic.say("hello", BEN, NUMBER)
    assert clinic.channel.recognize(hidden, store=False).aliases == ()


def test_changed_number_keeps_the_conversation_where_a_parent_id_says_so(clinic: Clinic):
    """A linked business knows the person by one more id. The reply goes to the new number."""
    clinic.say("delete A", ANA, NUMBER, parent=PARENT)
    clinic.say("yes", BEN, OTHER_NUMBER, parent=PARENT)
    assert clinic.bot.deleted == ["A"]
    assert clinic.recipients[-1] == OTHER_NUMBER


def test_reply_does_not_go_to_a_number_that_its_person_gave_up(clinic: Clinic):
    """The person changed the number and hides the new one.

    The old one may be given to a stranger, who has not written yet.
    """
    clinic.say("delete A", ANA, NUMBER, parent=PARENT)
    clinic.say("yes", BEN, parent=PARENT)
    assert clinic.bot.deleted == ["A"]
    assert clinic.recipients[-1] == BEN


def test_changed_number_without_a_parent_id_is_another_person(clinic: Clinic):
    """Twilio passes on no message that links the two.

    A guess could give a question to a stranger.
    """
    clinic.say("delete A", ANA, NUMBER)
    clinic.say("yes", BEN, OTHER_NUMBER)
    assert clinic.bot.deleted == []


def test_reply_that_waits_for_its_person_follows_them_to_the_new_number(platforms: FakePlatforms):
    """The 24 hours are over, so it waits. The message from the new number begins them again."""
    clinic = Clinic(platforms)
    clinic.say("hello", ANA, NUMBER, parent=PARENT)
    clinic.rig.pass_time(25 * 3600)
    clinic.rig.outbox.forward(Delivery("x:1#1", Conversation("wa", ANA), Reply("news")))
    asyncio.run(clinic.processor.run(Conversation("wa", ANA).id))
    assert len(platforms.sent) == 1
    clinic.say("hi", BEN, OTHER_NUMBER, parent=PARENT)
    assert [(each["chat"], each["text"]) for each in platforms.sent[1:2]] == [
        (OTHER_NUMBER, "news")
    ]


def test_repetition_of_a_webhook_across_the_change_runs_once(clinic: Clinic):
    """The first delivery came before the person hid the number, and its repetition afterwards."""
    form = clinic.form("hello", "", NUMBER)
    clinic.receive(form)
    clinic.say("hi", ANA, NUMBER)
    answers = len(clinic.platforms.sent)
    clinic.receive(form)
    assert len(clinic.platforms.sent) == answers


def test_forged_form_moves_no_number(clinic: Clinic):
    """Its signature is wrong, so nothing is learned from it."""
    clinic.say("hello", ANA, NUMBER)
    hook = clinic.hook(clinic.form("hello", BEN, NUMBER))
    with pytest.raises(Forbidden):
        clinic.channel.receive(replace(hook, headers={**hook.headers, "x-twilio-signature": "x"}))
    assert clinic.identities.find_by_id("wa", NUMBER).key == ANA


@pytest.mark.parametrize(
    "user_id", ["whatsapp:", "DE.1", "whatsapp:DE.", "whatsapp:DE.ENT.9", "undefined"]
)
def test_malformed_id_makes_no_two_people_one(clinic: Clinic, user_id: str):
    """A value that is the same for all people would show each of them the history of the others."""
    clinic.say("my secret is blue", user_id, NUMBER)
    clinic.say("what is it?", user_id, OTHER_NUMBER)
    assert "blue" not in str(clinic.bot.provider.requests[-1].messages)


def test_process_that_dies_after_the_ids_loses_and_doubles_nothing(clinic: Clinic):
    """Twilio sends the webhook again, to another process."""
    form = clinic.form("delete A", ANA, NUMBER)
    clinic.identities.recognize("wa", SenderIds(ANA, NUMBER), store=True)
    clinic.restart()
    clinic.receive(form)
    assert len(clinic.platforms.sent) == 1
    clinic.say("yes", ANA)
    assert clinic.bot.deleted == ["A"]


def test_opt_out_is_of_the_person_whatever_address_the_report_names(clinic: Clinic):
    """The report comes for the id.

    Nothing more is sent until the person writes, from whichever address.
    """
    clinic.say("hello", ANA, NUMBER)
    callback = clinic.platforms.sent[-1]["raw"]["StatusCallback"]
    form = {
        "MessageSid": "SM" + "1" * 32,
        "MessageStatus": "failed",
        "ErrorCode": "63050",
        "To": ANA,
    }
    headers, body = signing.whatsapp_hook(
        callback, TWILIO_AUTH_TOKEN, {**form, "AccountSid": TWILIO_ACCOUNT_SID}
    )
    clinic.ingress.store(
        "wa", clinic.channel.receive(WebhookRequest(callback, headers, body, path="status"))
    )
    sent = len(clinic.platforms.sent)
    to = Delivery(
        "x:1#1", clinic.channel.conversation_of(Conversation("wa", NUMBER)), Reply("news")
    )
    clinic.rig.outbox.forward(to)
    asyncio.run(clinic.processor.run(to.conversation.id))
    assert len(clinic.platforms.sent) == sent
    clinic.say("I am back", ANA)
    assert len(clinic.platforms.sent) == sent + 1


@pytest.mark.parametrize("to", [ANA, NUMBER])
def test_opt_out_from_a_message_of_another_program_is_of_the_person(
    platforms: FakePlatforms, to: str
):
    """The report has no delivery of ours. Its address may be another one than the person's first."""
    clinic = Clinic(platforms)
    clinic.say("hello", "", NUMBER)
    clinic.say("hello", ANA, NUMBER)
    clinic.rig.pass_time(2 * 3600)
    form = {
        "MessageSid": "SM" + "1" * 32,
        "MessageStatus": "failed",
        "ErrorCode": "63050",
        "To": to,
    }
    url = f"{URL}/status"
    headers, body = signing.whatsapp_hook(
        url, TWILIO_AUTH_TOKEN, {**form, "AccountSid": TWILIO_ACCOUNT_SID}
    )
    received = clinic.channel.receive(WebhookRequest(url, headers, body, path="status"))
    clinic.ingress.store("wa", note_moves(clinic.channel, received))
    news = Delivery("x:1#1", Conversation("wa", NUMBER), Reply("news"))
    clinic.rig.outbox.forward(news)
    asyncio.run(clinic.processor.run(news.conversation.id))
    assert len(platforms.sent) == 2


def test_message_of_the_bot_to_a_number_belongs_to_the_conversation_of_its_person(clinic: Clinic):
    """An escalation names a number.

    It falls into the 24 hours after the last message of its person.
    """
    clinic.say("hello", ANA, NUMBER)
    room = Room(clinic.rig, to=Conversation("wa", NUMBER))
    room.channels["wa"] = clinic.channel
    room.say("delete INV-7")
    room.later(40)
    asyncio.run(clinic.processor.run(Conversation("wa", ANA).id))
    assert clinic.platforms.sent[-1]["text"].startswith("No answer yet on chat")
    assert clinic.recipients == [NUMBER, NUMBER]


def test_blocked_number_stays_blocked_when_it_is_hidden(platforms: FakePlatforms):
    """The list names the number, and the webhook only the id."""
    clinic = Clinic(platforms)
    clinic.say("hello", ANA, NUMBER)
    clinic.restart(AccessRules(block=[NUMBER], id_prefix="whatsapp:"))
    clinic.say("let me in", ANA)
    assert len(platforms.sent) == 1


@pytest.mark.parametrize(
    "rules", [{"allow": [NUMBER]}, {"chats": [NUMBER]}], ids=["allow", "chats"]
)
def test_allowed_number_stays_allowed_when_it_is_hidden(
    platforms: FakePlatforms,
    rules: dict[str, list[str]],
):
    """Lists by number go on working; the number of another person does not get in."""
    clinic = Clinic(platforms, rules=AccessRules(**rules, id_prefix="whatsapp:"))
    for ids in ((ANA, NUMBER), (ANA, "")):
        clinic.say("hello", *ids)
    assert len(platforms.sent) == 2
    asked = len(clinic.bot.provider.requests)
    clinic.say("hello", BEN)
    assert len(clinic.bot.provider.requests) == asked


def test_stranger_is_told_at_the_number_and_forgotten_after_an_hour(platforms: FakePlatforms):
    """The notice goes to what they wrote from.

    Nothing of theirs is kept for longer than the code of a pairing.
    """
    clinic = Clinic(platforms, rules=AccessRules(allow=[OTHER_NUMBER], id_prefix="whatsapp:"))
    clinic.say("hello", ANA, NUMBER)
    assert clinic.recipients == [NUMBER]
    client = clinic.rig.client
    stored = [*client.scan_iter("*:holder:*"), *client.scan_iter("*:person:*")]
    assert stored
    assert all(0 < client.ttl(key) <= WAIT_SECONDS for key in stored)


def test_nothing_is_stored_of_the_ids_of_a_blocked_person(platforms: FakePlatforms):
    """They are looked up, to find out whether the person may talk."""
    clinic = Clinic(platforms, rules=AccessRules(block=[NUMBER], id_prefix="whatsapp:"))
    clinic.say("hello", ANA, NUMBER)
    assert (platforms.sent, clinic.identities.find_by_id("wa", NUMBER)) == ([], None)


def test_person_approved_with_a_number_stays_approved_with_the_id(platforms: FakePlatforms):
    """An operator decided about one of the ids."""
    clinic = Clinic(platforms, rules=AccessRules(pairing=True, id_prefix="whatsapp:"))
    clinic.people.save("wa", ListedPerson(("+4915100000042",), "approved"))
    clinic.say("hello", ANA, NUMBER)
    clinic.say("hello", ANA)
    assert len(platforms.sent) == 2


@pytest.mark.parametrize("attempts", [0, 3], ids=["in two steps", "in one step"])
def test_turn_is_stored_for_the_person_who_has_the_ids_now(
    redis_client,
    monkeypatch,
    attempts: int,
):
    """The ids suggest another person at first.

    Ids that change all the time, and a cluster, need two steps.
    """
    monkeypatch.setattr(mailbox, "MAX_ACCEPT_ATTEMPTS", attempts)
    rig = Rig(redis_client)
    people = WhatsAppPeople("wa", RedisIdentities(rig.scripts))
    for event, user, aliases in (
        ("e1", NUMBER, ()),
        ("e2", NUMBER, (ANA,)),
        ("e3", ANA, ()),
        ("e3", ANA, ()),
    ):
        sender = people.sender(
            Turn(event, Conversation("wa", user), user, "hello", aliases=aliases)
        )
        accepted = rig.mailbox.accept_from(sender)
    assert (accepted.outcome, accepted.seq) == ("duplicate", 3)
    (inbox,) = redis_client.keys("*:inbox:*")
    assert inbox.endswith(f":inbox:{Conversation('wa', NUMBER).id}")


def test_ids_of_a_person_are_those_that_the_person_has_now():
    """The key comes first, and is missing once the number has passed to another person."""
    rig = Rig()
    identities = RedisIdentities(rig.scripts)
    people = WhatsAppPeople("wa", identities)
    assert people.ids_of(NUMBER) == ()
    identities.recognize("wa", SenderIds("", NUMBER), store=True)
    assert people.ids_of(NUMBER) == (NUMBER,)
    identities.recognize("wa", SenderIds(ANA, NUMBER), store=True)
    assert people.ids_of(NUMBER) == (NUMBER, ANA)
    identities.recognize("wa", SenderIds(BEN, NUMBER), store=True)
    assert people.ids_of(NUMBER) == (ANA,)
    assert people.ids_of(BEN) == (BEN, NUMBER)
