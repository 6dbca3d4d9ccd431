"""Features of each platform, on real processes: edited prompts, albums, edits, windows, commands, lists, drafts."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from sayso.channels.types import Conversation
from sayso.infra.redis.client import PREFIX
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.slack import FakeSlack
from tests.agent.providers.api import KEY
from tests.agent.providers.conftest import Server, process
from tests.flows.system import Person, SlackPerson, System, TelegramPerson, WhatsAppPerson, until

__all__ = ["process"]

AGENT = """
agent: {{model: "openai:gpt-4o-mini", api_key: "${{OPENAI_API_KEY}}", base_url: {url}/v1, max_retries: 0}}
"""
#: A channel that people join with a code, with one blocked person.
CLUB = """
  club-tg:
    {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", secret_token: "${{TELEGRAM_SECRET}}", api_url: {url}/telegram,
     messages_per_second: 0, access: {{pairing: true, block: ["{blocked}"]}}}}
"""
BLOCKED = 5_000_000_666
GROUP = -1_001_234_567_890
#: Streams for as long as two drafts need on the slowest platform, four seconds each.
STORY = " ".join(f"word{number}" for number in range(24))
COMMANDS = {
    "help": "These commands always work",
    "whoami": "Channel: ",
    "status": "Nothing is waiting",
    "tools": "find_invoice",
    "reset": "I have forgotten",
}


@pytest.fixture(scope="module")
def bots(process: Server) -> Iterator[System]:
    """Run a system whose model is the fake server's; on Telegram and Slack it streams answers as drafts.

    An outcome ends its request (`after: say`): test_models.py tells what the model makes of it.
    """
    with tempfile.TemporaryDirectory(prefix="sayso-cha-") as folder:
        system = System(Path(folder), environ={"OPENAI_API_KEY": KEY})
        text = system.config.read_text().replace(
            "agent: {model: offline}", AGENT.format(url=process.url)
        )
        text = text.replace(
            "messages_per_second: 0}", "messages_per_second: 0, streaming: true, after: say}"
        )
        text = text.replace("confirm_ttl: 60", "confirm_ttl: 60\n    after: say")
        system.config.write_text(
            text.rstrip() + CLUB.format(url=system.platforms.url, blocked=BLOCKED)
        )
        with system as running:
            yield running


class ClubPerson(TelegramPerson):
    """A user on the Telegram channel with access codes."""

    channel = "club-tg"


class ConsolePerson(Person):
    """A user in a browser tab."""

    def __init__(self, system: System) -> None:
        super().__init__(system, 0)
        self._heard: set[str] = set()
        self.browser = httpx.Client(base_url=system.url)
        self.browser.get("/console").raise_for_status()

    def say(self, text: str) -> None:
        for _ in range(2):
            said = {"id": f"e{self._said}", "text": text}
            self.browser.post(
                "/hooks/web", json=said, headers={"x-sayso-console": "1"}
            ).raise_for_status()
        self._said += 1

    def hears(self, count: int = 1) -> list[dict[str, Any]]:
        until(lambda: len(self._bubbles()) >= count)
        heard = self._bubbles()
        assert len(heard) == count, heard
        self._heard.update(each["at"] for each in heard)
        return heard

    def _bubbles(self) -> list[dict[str, Any]]:
        """Return the messages that were not read before; a new chat removes all earlier ones."""
        entries = self.browser.get("/console/poll").json()["entries"]
        bubbles = [
            {"at": each["at"], "text": each["html"]} for each in entries if each["type"] == "bubble"
        ]
        return [each for each in bubbles if each["at"] not in self._heard]

    def text(self, number: int, text: str) -> tuple[str, signing.SignedWebhook]:
        raise NotImplementedError

    def tapped(self, number: int, data: str) -> tuple[str, signing.SignedWebhook]:
        raise NotImplementedError


def twice(system: System, hooks: Sequence[tuple[str, signing.SignedWebhook]]) -> None:
    """Deliver each webhook, and then all of them again."""
    for hook in (*hooks, *hooks):
        assert system.post(*hook).status_code == 200


def telegram(update: dict[str, Any]) -> tuple[str, signing.SignedWebhook]:
    """Return the signed webhook of an update for the public bot."""
    return "ops-tg", signing.telegram_hook(fakes.TELEGRAM_SECRET, update)


def slack(body: bytes) -> tuple[str, signing.SignedWebhook]:
    """Return the signed webhook of a Slack request."""
    return "desk", signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, time.time())


def wants_to_delete(process: Server, invoice: str, *then: dict[str, Any]) -> None:
    """Let the model call the tool that asks for a yes."""
    process.script(
        {"calls": [{"name": "delete_invoice", "arguments": {"invoice_id": invoice}, "id": "a"}]},
        *then,
    )


def telegram_edit(person: Person, number: int, text: str) -> tuple[str, signing.SignedWebhook]:
    """Return the webhook of an edit of the person's first message."""
    first = person.name * 1000 + 1
    return telegram(signing.telegram_edit(number, text, message_id=first, user=int(person.chat)))


def slack_edit(person: Person, number: int, text: str) -> tuple[str, signing.SignedWebhook]:
    """Return the webhook of an edit of the person's first message."""
    ts, user = f"1795204800.{person.name * 1000 + 1:06}", f"U{person.name}"
    return slack(
        signing.slack_edit(
            ts, text, "get rid of it", user=user, channel=person.chat, at=f"1795204999.{number}"
        )
    )


@pytest.mark.parametrize(
    ("kind", "name", "edit"), [(TelegramPerson, 11, telegram_edit), (SlackPerson, 12, slack_edit)]
)
def test_an_edit_that_says_yes_confirms_nothing(
    bots: System, process: Server, kind, name: int, edit
) -> None:
    """A person who edits an old message wrote it before the question; the agent gets the new text."""
    wants_to_delete(process, "INV-47", {"text": "You changed that to yes."})
    person = kind(bots, name)
    person.say("get rid of it")
    assert "INV-47" in person.hears()[0]["text"]
    twice(bots, [edit(person, name * 1000 + 2, "yes")])
    assert person.hears()[0]["text"].endswith("You changed that to yes.")
    assert (bots.effects("delete", "INV-47"), len(process.calls)) == (0, 2)


def slack_unfurl(person: Person, number: int, text: str) -> tuple[str, signing.SignedWebhook]:
    """Return the webhook of a change of the person's first message that does not say what it was before."""
    ts, user = f"1795204800.{person.name * 1000 + 1:06}", f"U{person.name}"
    return slack(
        signing.slack_edit(ts, text, "", user=user, channel=person.chat, at=f"1795204999.{number}")
    )


@pytest.mark.parametrize(
    ("kind", "name", "invoice", "edit"),
    [(TelegramPerson, 13, "INV-45", telegram_edit), (SlackPerson, 14, "INV-58", slack_unfurl)],
)
def test_an_edit_without_a_change_keeps_the_question_and_runs_nothing_again(
    bots: System, process: Server, kind, name: int, invoice: str, edit
) -> None:
    """Platforms report an edit for a reaction or a link preview too; the yes after it still counts."""
    wants_to_delete(process, invoice)
    person = kind(bots, name)
    person.say("get rid of it")
    assert invoice in person.hears()[0]["text"]
    twice(bots, [edit(person, name * 1000 + 500, "get rid of it")])
    person.say("yes")
    assert person.hears()[0]["text"].startswith(f"Invoice {invoice} is deleted.")
    assert (bots.effects("delete", invoice), len(process.calls)) == (1, 1)


def telegram_tap(
    person: Person, entry: dict[str, Any], number: int
) -> tuple[str, signing.SignedWebhook]:
    """Return the webhook of a tap on the first button of a message in the ledger."""
    data, message_id = entry["data"], entry["number"]
    return telegram(
        signing.telegram_tap(number, data, user=int(person.chat), message_id=message_id)
    )


def slack_tap(
    person: Person, entry: dict[str, Any], number: int
) -> tuple[str, signing.SignedWebhook]:
    """Return the webhook of a tap on the first button of a message in the ledger."""
    ts = f"1795204700.{entry['number']:06d}"
    where = {"channel": person.chat, "message_ts": ts, "thread_ts": person.thread}
    return slack(signing.slack_tap(f"t.{number}", entry["data"], user=f"U{person.name}", **where))


@pytest.mark.parametrize(
    ("kind", "name", "invoice", "tap"),
    [(TelegramPerson, 21, "INV-8", telegram_tap), (SlackPerson, 22, "INV-12", slack_tap)],
)
def test_a_tap_closes_the_question_and_a_second_one_runs_nothing(
    bots: System, process: Server, kind, name: int, invoice: str, tap
) -> None:
    """The question's message shows its outcome, and no button has an effect.

    A late tap gets the same outcome.
    """
    wants_to_delete(process, invoice)
    person = kind(bots, name)
    person.say("get rid of it")
    (question,) = person.hears()
    asked = {
        "data": question["buttons"][0]["data"],
        "number": bots.platforms.sent.index(question) + 1,
    }
    twice(bots, [tap(person, asked, 1)])
    assert person.hears()[0]["text"].startswith(f"Invoice {invoice} is deleted.")
    closed = bots.ledger(person.chat)[0]
    assert (closed["buttons"], closed["text"].endswith("✅ Yes")) == ([], True)
    twice(bots, [tap(person, asked, 2)])
    assert person.hears()[0]["text"].startswith(f"Already done: Delete invoice {invoice}")
    assert bots.ledger(person.chat)[0]["text"] == closed["text"]
    assert (bots.effects("delete", invoice), len(process.calls)) == (1, 1)


def test_address_behind_a_word_reaches_the_model(bots: System, process: Server) -> None:
    """Telegram and Slack show the word only, and its address on a tap."""
    process.script({"text": "Looked."}, {"text": "Looked."})
    link = {"type": "text_link", "offset": 10, "length": 7, "url": "https://shop.example/o/42"}
    person, colleague = TelegramPerson(bots, 35), SlackPerson(bots, 36)
    visit = signing.telegram_text(
        935, "Visit our website for details", user=int(person.chat), entities=[link]
    )
    twice(bots, [telegram(visit)])
    person.hears()
    words = "Visit our <https://shop.example/o/42|website> for details"
    twice(
        bots,
        [slack(signing.slack_text("1795204800.936", words, user="U36", channel=colleague.chat))],
    )
    colleague.hears()
    said = [body["messages"][-1]["content"] for body in process.bodies]
    assert said == ["Visit our website (https://shop.example/o/42) for details"] * 2


def test_album_gets_one_answer(bots: System, process: Server) -> None:
    """Telegram sends each of three pictures as an update of its own; the model is asked once, with all three."""
    process.script({"text": "Three cats."})
    person = TelegramPerson(bots, 31)
    photos = [
        bots.platforms.host("telegram", signing.JPEG + bytes([number])) for number in range(3)
    ]
    captions = ["My cats", "", ""]
    twice(bots, [
        telegram(signing.telegram_photo(900 + at, photo, caption, user=int(person.chat), media_group_id="g1"))
        for at, (photo, caption) in enumerate(zip(photos, captions, strict=True))
    ])  # fmt: skip
    assert [entry["text"] for entry in person.hears()] == ["Three cats."]
    (body,) = process.bodies
    said = body["messages"][-1]["content"]
    assert [part["type"] for part in said] == ["text", "image_url", "image_url", "image_url"]
    assert "My cats" in said[0]["text"]


def test_album_without_a_name_gets_one_answer(bots: System, process: Server) -> None:
    """WhatsApp sends each of three pictures as a message of its own and in any order: one model call, one message."""
    process.script({"text": "Three cats."})
    person = WhatsAppPerson(bots, 32)
    hooks = []
    for number, caption in ((2, ""), (1, "My cats"), (3, "")):
        photo = bots.platforms.host("twilio", signing.JPEG + bytes([number]))
        sid = f"MM{320 + number:032x}"
        account = {"account_sid": fakes.TWILIO_ACCOUNT_SID, "user": person.chat}
        form = signing.whatsapp_photo(sid, photo, caption, mime="image/jpeg", **account)
        url = f"{bots.url}/hooks/shop-wa"
        hooks.append(("shop-wa", signing.whatsapp_hook(url, fakes.TWILIO_AUTH_TOKEN, form)))
    twice(bots, hooks)
    assert [entry["text"] for entry in person.hears()] == ["Three cats."]
    assert person.hears_nothing_more()
    (body,) = process.bodies
    said = body["messages"][-1]["content"]
    assert [part["type"] for part in said] == ["text", "image_url", "image_url", "image_url"]
    assert "My cats" in said[0]["text"]


def test_outside_the_window_a_reply_is_held_until_the_person_writes(
    bots: System, process: Server
) -> None:
    """platforms.md 1.3: from 24 hours after the person's last message on, only a template arrives. The model answers
    after 25 hours, by Redis's clock. The reply waits for the person's message and comes before the next answer.
    """
    process.script({"text": "That took a day.", "delay": 2}, {"text": "Welcome back."})
    person = WhatsAppPerson(bots, 41)
    where = Conversation("shop-wa", person.user_id).id
    person.say("think about it")
    until(lambda: process.calls)
    with Redis.from_url(bots.redis.url, decode_responses=True) as client:
        (conversation_key,) = client.scan_iter(f"{PREFIX}*:conversation:{where}", count=1000)
        client.hincrby(conversation_key, "user_message_at", -25 * 3600 * 1000)
        bots.platforms.close("twilio", person.chat)
        until(lambda: client.hget(conversation_key, "held_reply"))
    (held,) = bots.printed("deliveries", "list", "--state", "held").splitlines()
    assert (where in held, person.chat in held, "24 hours" in held) == (True, False, True), held
    assert bots.ledger(person.chat) == []
    bots.platforms.close("twilio", person.chat, closed=False)
    person.say("hello again")
    assert [entry["text"] for entry in person.hears(2)] == ["That took a day.", "Welcome back."]
    assert "nothing" in bots.printed("deliveries", "list", "--state", "held")


def test_commands_are_answered_without_a_model(bots: System, process: Server) -> None:
    """Every platform answers commands; on Slack the app's slash command does, because Slack accepts no other."""
    process.script()
    people = [
        WhatsAppPerson(bots, 51),
        TelegramPerson(bots, 52),
        SlackPerson(bots, 53),
        ConsolePerson(bots),
    ]
    for number, (command, words) in enumerate(COMMANDS.items()):
        for person in people:
            if isinstance(person, SlackPerson):
                said = signing.slack_command(
                    f"c.{number}", command, user=f"U{person.name}", channel=person.chat
                )
                twice(bots, [slack(said)])
            else:
                person.say(f"/{command}")
        for person in people:
            assert words in person.hears()[0]["text"], (command, person)
    assert process.calls == []


def test_stranger_joins_with_a_code_and_blocked_person_gets_no_reply(
    bots: System, process: Server
) -> None:
    """A stranger gets one notice an hour, and the model sees none of their texts before an operator admits them."""
    process.script({"text": "Hello, Ada."})
    stranger, blocked = ClubPerson(bots, 61), ClubPerson(bots, 666)
    for _ in range(2):
        stranger.say("let me in")
        blocked.say("let me in")
    (told,) = stranger.hears()
    (code,) = re.findall(r"\b[B-DF-HJ-NP-TV-Z2-9]{8}\b", told["text"])
    assert "may talk on club-tg, and is told" in bots.printed("people", "approve", "club-tg", code)
    stranger.hears()
    stranger.say("hello")
    assert stranger.hears()[0]["text"] == "Hello, Ada."
    assert (len(process.calls), bots.ledger(blocked.chat)) == (1, [])


def test_answer_is_shown_while_it_streams_and_is_kept_once(bots: System, process: Server) -> None:
    """In a private chat, in a group and on Slack the message of the answer grows."""
    process.script(*[{"text": STORY, "pause": 0.4}] * 3)
    ada, bob = TelegramPerson(bots, 71), SlackPerson(bots, 72)
    ada.say("tell me a story")
    bob.say("tell me a story")
    asked = signing.telegram_text(9001, "@acme_bot tell us a story", user=int(ada.chat), chat=GROUP)
    twice(bots, [telegram(asked)])
    for chat in (ada.chat, bob.chat, str(GROUP)):
        until(lambda chat=chat: [entry["text"] for entry in bots.ledger(chat)] == [STORY])
    until(bots.is_settled)
    for chat in (ada.chat, bob.chat, str(GROUP)):
        steps = [edit["text"] for edit in bots.ledger(chat)[0]["edits"]]
        assert len(steps) >= 2
        assert steps == sorted(set(steps), key=len)
        assert all(STORY.startswith(text) for text in steps)
    assert [len(bots.ledger(chat)) for chat in (ada.chat, bob.chat, str(GROUP))] == [1, 1, 1]


def test_slack_shows_that_the_bot_thinks_until_the_answer(bots: System, process: Server) -> None:
    """It works, waits while its question does, works again for the yes, and is ready in the end."""
    slack_fake = bots.platforms.fakes["slack"]
    assert isinstance(slack_fake, FakeSlack)
    call = {"name": "delete_invoice", "arguments": {"invoice_id": "INV-42"}, "id": "a"}
    process.script({"delay": 1, "calls": [call]})
    person = SlackPerson(bots, 93)
    person.say("get rid of it")
    thread = person.chat, "1795204800.093001"
    until(lambda: slack_fake.sessions.get(thread) == "processing")
    assert bots.ledger(person.chat) == []
    assert "INV-42" in person.hears()[0]["text"]
    until(lambda: slack_fake.sessions[thread] == "suspended")
    person.say("yes")
    person.hears()
    until(lambda: slack_fake.sessions[thread] == "active")
    assert [place for place in slack_fake.sessions if place[0] == person.chat] == [thread]


@pytest.mark.parametrize(
    ("kind", "name", "said", "shown"),
    [
        (TelegramPerson, 81, "no", "❌ No"),
        (SlackPerson, 82, "no", "❌ No"),
        (SlackPerson, 83, "what is new?", "❌"),
    ],
)
def test_text_closes_the_question_like_a_tap(
    bots: System, process: Server, kind, name: int, said: str, shown: str
) -> None:
    """A text that answers or drops the question removes its buttons, in the message that was delivered."""
    wants_to_delete(process, "INV-47", {"text": "Nothing much."})
    person = kind(bots, name)
    person.say("get rid of it")
    assert person.hears()[0]["buttons"]
    person.say(said)
    person.hears()
    closed = bots.ledger(person.chat)[0]
    assert (closed["buttons"], "INV-47" in closed["text"], shown in closed["text"]) == (
        [],
        True,
        True,
    ), closed["text"]
    assert bots.effects("delete", "INV-47") == 0


def test_draft_before_the_question_becomes_the_question(bots: System, process: Server) -> None:
    """The message of the draft gets the buttons, and the tap closes that message."""
    call = {"name": "delete_invoice", "arguments": {"invoice_id": "INV-15"}, "id": "a"}
    process.script({"text": STORY, "pause": 0.2, "calls": [call]})
    person = SlackPerson(bots, 91)
    person.say("get rid of it")
    until(lambda: any(entry["buttons"] for entry in bots.ledger(person.chat)))
    (question,) = person.hears()
    asked = {
        "data": question["buttons"][0]["data"],
        "number": bots.platforms.sent.index(question) + 1,
    }
    assert "INV-15" in question["text"]
    assert STORY.startswith(question["edits"][0]["text"])
    twice(bots, [slack_tap(person, asked, 1)])
    assert person.hears()[0]["text"].startswith("Invoice INV-15 is deleted.")
    assert (question["buttons"], bots.effects("delete", "INV-15")) == ([], 1)


def test_stop_replaces_the_draft(bots: System, process: Server) -> None:
    """The half answer is deleted, and the notice of the stop stays."""
    process.script({"text": STORY, "pause": 0.4})
    person = SlackPerson(bots, 92)
    person.say("tell me a story")
    until(lambda: bots.ledger(person.chat))
    person.say("/stop")
    assert [entry["text"][:7] for entry in person.hears(2)] == ["", "Stopped"]


def test_tap_on_a_foreign_button_counts_as_its_label(bots: System, process: Server) -> None:
    """The bot did not send that template or list: the model reads the label, and a yes there confirms nothing."""
    wants_to_delete(process, "INV-60", {"text": "A yes to what?"}, {"text": "Berlin it is."})
    person = WhatsAppPerson(bots, 401)
    person.say("get rid of it")
    person.hears()
    form = {"account_sid": fakes.TWILIO_ACCOUNT_SID, "user": person.chat}
    for number, fields in enumerate(
        (
            {"ButtonPayload": "newsletter-42", "ButtonText": "Yes", "MessageType": "button"},
            {"ListId": "city-2", "ListTitle": "Berlin", "MessageType": "interactive"},
        )
    ):
        body = fields.get("ButtonText") or fields["ListTitle"]
        tapped = signing.whatsapp_text(f"SM{0x401000 + number:032x}", body, **form, **fields)
        url = f"{bots.url}/hooks/shop-wa"
        twice(bots, [("shop-wa", signing.whatsapp_hook(url, fakes.TWILIO_AUTH_TOKEN, tapped))])
        assert ("A yes to what?", "Berlin it is.")[number] in person.hears()[0]["text"]
    said = [body["messages"][-1]["content"] for body in process.bodies[1:]]
    assert said == ["[tapped a button]\nYes", "[tapped a button]\nBerlin"]
    assert bots.effects("delete", "INV-60") == 0


def test_quoted_message_reaches_the_model_with_its_text(bots: System, process: Server) -> None:
    """Twilio sends only the id of the quoted message; the adapter looks up its text in this person's chat."""
    process.script({"text": "We open at nine."}, {"text": "Every day but Sunday."}, {"text": "Hm?"})
    person, other = WhatsAppPerson(bots, 403), WhatsAppPerson(bots, 404)
    person.say("when do you open?")
    (answer,) = person.hears()
    sid = f"SM{bots.platforms.sent.index(answer) + 1:032x}"
    url = f"{bots.url}/hooks/shop-wa"
    for number, who in enumerate((person, other)):
        form = signing.whatsapp_text(
            f"SM{0x403000 + number:032x}", "on which days?", account_sid=fakes.TWILIO_ACCOUNT_SID, user=who.chat,
            OriginalRepliedMessageSid=sid,
        )  # fmt: skip
        twice(bots, [("shop-wa", signing.whatsapp_hook(url, fakes.TWILIO_AUTH_TOKEN, form))])
        who.hears()
    said = [body["messages"][-1]["content"] for body in process.bodies[1:]]
    assert said == ['[replying to: "We open at nine."]\non which days?', "on which days?"]


def test_only_the_sender_sees_the_answer_to_an_ephemeral_command(
    bots: System, process: Server
) -> None:
    """Telegram shows such a command to its sender only; an anonymous admin gets a refusal."""
    group = GROUP - 1
    alone = signing.telegram_text(
        405_001, "/whoami@acme_bot", user=5_000_000_405, chat=group, ephemeral_message_id=3
    )
    alone["message"]["message_id"] = 0
    chat = {"id": group, "type": "supergroup"}
    admin = signing.telegram_text(
        405_002, "@acme_bot yes", user=1_087_968_824, chat=group, sender_chat=chat
    )
    for number, update in enumerate((alone, admin)):
        twice(bots, [telegram(update)])
        until(lambda count=number + 1: len(bots.ledger(str(group))) == count)
    first, second = bots.ledger(str(group))
    shown_to = json.loads(first["raw"]["ephemeral_message_parameters"])
    assert (shown_to, "5000000405" in first["text"]) == ({"receiver_user_id": 5_000_000_405}, True)
    assert "ephemeral_message_parameters" not in second["raw"]
    assert second["text"].startswith("You are writing anonymously")


def test_question_of_a_group_that_became_a_supergroup_is_answered_there(
    bots: System, process: Server
) -> None:
    """Two public reports: the same person's tap in the supergroup runs the action, once."""
    wants_to_delete(process, "INV-22")
    old, new, owner = -4_000_551, GROUP - 1551, 5_000_000_551
    twice(
        bots,
        [telegram(signing.telegram_text(551_001, "@acme_bot get rid of it", user=owner, chat=old))],
    )
    until(lambda: len(bots.ledger(str(old))) == 1)
    until(bots.is_settled)
    data = bots.ledger(str(old))[0]["buttons"][0]["data"]
    moved = {
        "message_id": 9,
        "date": 1,
        "from": {"id": 1087968824, "is_bot": True, "first_name": "Group"},
    }
    moved |= {"chat": {"id": old, "type": "group"}, "migrate_to_chat_id": new}
    twice(bots, [telegram({"update_id": 551_002, "message": moved})])
    twice(bots, [telegram(signing.telegram_tap(551_003, data, user=owner, chat=new))])
    until(
        lambda: any(
            entry["text"].startswith("Invoice INV-22 is deleted.")
            for entry in bots.ledger(str(new))
        )
    )
    twice(bots, [telegram(signing.telegram_tap(551_004, data, user=owner, chat=new))])
    until(lambda: bots.ledger(str(new))[-1]["text"].startswith("Already done"))
    assert bots.effects("delete", "INV-22") == 1


@pytest.mark.parametrize("platform", ["telegram", "slack"])
def test_refusal_of_a_strangers_tap_in_a_group_is_private(
    bots: System, process: Server, platform: str
) -> None:
    """Only the stranger reads that the button belongs to another person, and the owner's own tap still works."""
    invoice, number = {"telegram": ("INV-18", 411), "slack": ("INV-19", 412)}[platform]
    wants_to_delete(process, invoice)
    group = {"telegram": str(GROUP - number), "slack": f"C{number:08}"}[platform]
    owner, stranger = {"telegram": (5_000_000_411, 5_000_000_999), "slack": ("U411", "U999")}[
        platform
    ]
    if platform == "telegram":
        text = signing.telegram_text(
            411_001, "@acme_bot get rid of it", user=owner, chat=int(group)
        )
        twice(bots, [telegram(text)])
    else:
        mention = f"1795204800.{number:06}"
        said = signing.slack_text(
            mention, "<@U0BOT> get rid of it", user=owner, channel=group, kind="app_mention"
        )
        twice(bots, [slack(said)])
    until(lambda: len(bots.ledger(group)) == 1)
    until(bots.is_settled)
    data = bots.ledger(group)[0]["buttons"][0]["data"]

    def alerts() -> list[dict[str, Any]]:
        """Return what the stranger read: on Telegram the answer to the tap itself."""
        if platform == "telegram":
            calls = (
                call["params"] for call in bots.platforms.calls if call["platform"] == "telegram"
            )
            return [params for params in calls if params.get("show_alert")]
        return [entry for entry in bots.ledger(group) if entry["raw"].get("user") == stranger]

    for count, user in ((2, stranger), (3, owner)):
        if platform == "telegram":
            tapped = telegram(
                signing.telegram_tap(411_000 + count, data, user=user, chat=int(group))
            )
        else:
            block = f"thread:{mention}"
            tapped = slack(
                signing.slack_tap(f"g.{count}", data, user=user, channel=group, block_id=block)
            )
        twice(bots, [tapped])
        until(
            alerts
            if user == stranger
            else lambda: len(bots.ledger(group)) == (2 if platform == "telegram" else 3)
        )
        until(bots.is_settled)
    (told,) = alerts()
    assert "for the person who asked" in told["text"]
    done = bots.ledger(group)[-1]
    assert (
        done["text"].startswith(f"Invoice {invoice} is deleted."),
        bots.effects("delete", invoice),
    ) == (True, 1)


def test_model_is_asked_once_where_the_bot_may_not_write_in_a_channel(
    bots: System, process: Server
) -> None:
    """Each message of a Slack channel opens a thread; the second thread knows what the first one learned."""
    process.script({"text": "Hello."}, {"text": "Hello again."})
    bots.platforms.script("slack", "restricted_action_read_only_channel")
    channel = "C00000037"

    def mention(number: int) -> tuple[str, signing.SignedWebhook]:
        said = signing.slack_text(
            f"1795204800.{number:06}",
            "<@U0BOT> hi",
            user="U37",
            channel=channel,
            kind="app_mention",
        )
        return slack(said)

    def knows_refusal() -> bool:
        """Return whether the refusal of the first reply is recorded."""
        conversation_keys = f"{PREFIX}*:conversation:{Conversation('desk', channel).id}"
        with Redis.from_url(bots.redis.url) as client:
            return any(
                client.hexists(conversation_key, "barred_until")
                for conversation_key in client.scan_iter(conversation_keys, count=1000)
            )

    twice(bots, [mention(3701)])
    until(knows_refusal)
    twice(bots, [mention(3702)])
    until(bots.is_settled)
    assert (len(process.bodies), bots.ledger(channel)) == (1, [])

    joined = {
        "type": "member_joined_channel",
        "user": "U0BOT",
        "channel": channel,
        "team": "T0ACME",
    }
    twice(bots, [slack(signing.slack_event("Ev37", joined)), mention(3703)])
    until(lambda: [entry["text"] for entry in bots.ledger(channel)] == ["Hello again."])
