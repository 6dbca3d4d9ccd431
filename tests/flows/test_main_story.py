"""The main job on real processes: every webhook is delivered twice, and every reply arrives once."""

# ruff: noqa: RUF001 - people do type look-alike characters

from __future__ import annotations

import hashlib
import re
import time

import pytest

from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from tests.flows.system import (
    HurriedPerson,
    Person,
    SlackPerson,
    System,
    TelegramPerson,
    WhatsAppPerson,
    until,
)


def people(*names: int) -> list[tuple[type[Person], int]]:
    """Return one person on each platform."""
    return list(zip((WhatsAppPerson, TelegramPerson, SlackPerson), names, strict=True))


@pytest.mark.parametrize("kind", [HurriedPerson])
def test_late_yes_runs_nothing_and_reports_the_expiry(system: System, kind: type[Person]) -> None:
    """The window closes a moment after the preview arrived; the reply to a later yes says that the action expired."""
    person = kind(system, 90)
    person.say("delete invoice INV-47")
    person.hears()
    time.sleep(0.3)  # the test needs the window itself to pass, on Redis's clock
    person.say("yes")
    assert "expired" in person.hears()[0]["text"]
    assert system.effects("delete", "INV-47") == 0


@pytest.mark.parametrize(("kind", "name"), people(11, 12, 13))
def test_unrelated_message_drops_the_action_and_reports_it(
    system: System, kind: type[Person], name: int
) -> None:
    """After an unrelated message nothing destructive is pending: the next yes runs nothing."""
    person = kind(system, name)
    person.say("delete invoice INV-55")
    person.hears()
    person.say("what is the weather in Paris tomorrow?")
    assert "You did not say yes" in person.hears()[0]["text"]
    person.say("yes")
    assert "You said: yes" in person.hears()[0]["text"]
    assert system.effects("delete", "INV-55") == 0


@pytest.mark.parametrize(("kind", "name"), people(21, 22, 23))
def test_a_stranger_cannot_confirm(system: System, kind: type[Person], name: int) -> None:
    """The text and the button of one person do nothing when a stranger uses them, and the person can still decide."""
    person, stranger = kind(system, name), kind(system, name + 100)
    person.say("delete invoice INV-58")
    button = person.hears()[0]["buttons"][0]["data"]
    stranger.tap(button)
    assert "no longer applies" in stranger.hears()[0]["text"]
    stranger.say("yes")
    stranger.hears()
    assert system.effects("delete", "INV-58") == 0
    person.say("no")
    assert person.hears()[0]["text"].startswith("Nothing was done")


@pytest.mark.parametrize(
    ("kind", "name", "invoice", "yes"),
    [
        (WhatsAppPerson, 31, "INV-42", "sim"),
        (TelegramPerson, 32, "INV-1", "yes"),
        (SlackPerson, 33, "INV-3", "sí"),
    ],
)
def test_typed_yes_runs_the_action_once(
    system: System, kind: type[Person], name: int, invoice: str, yes: str
) -> None:
    """Each webhook comes twice; the action takes effect once, and each reply arrives once."""
    person = kind(system, name)
    person.say(f"delete invoice {invoice}")
    preview = person.hears()[0]
    assert invoice in preview["text"]
    confirm, refuse = (button["label"] for button in preview["buttons"])
    assert (confirm, refuse) == (
        "Yes" if kind is WhatsAppPerson else f"Delete invoice {invoice}",
        "No",
    )
    assert system.effects("delete", invoice) == 0
    person.say(yes)
    assert person.hears()[0]["text"].startswith(f"Invoice {invoice} is deleted.")
    assert system.effects("delete", invoice) == 1
    assert person.hears_nothing_more()


@pytest.mark.parametrize(
    ("kind", "name", "invoice"),
    [(WhatsAppPerson, 41, "INV-4"), (TelegramPerson, 42, "INV-8"), (SlackPerson, 43, "INV-12")],
)
def test_tap_runs_the_action_once_and_a_second_tap_is_told_so(
    system: System, kind: type[Person], name: int, invoice: str
) -> None:
    """It is another webhook, and told that the action is done. On WhatsApp, the same tap again costs no message."""
    person = kind(system, name)
    person.say(f"delete invoice {invoice}")
    confirm, cancel = (button["data"] for button in person.hears()[0]["buttons"])
    person.tap(confirm)
    assert person.hears()[0]["text"].startswith(f"Invoice {invoice} is deleted.\n\n")
    person.tap(confirm)
    person.tap(cancel)
    for entry in person.hears(1 if kind is WhatsAppPerson else 2):
        assert entry["text"].startswith(f"Already done: Delete invoice {invoice}")
    assert person.hears_nothing_more()
    assert system.effects("delete", invoice) == 1


@pytest.mark.parametrize(
    ("kind", "name", "invoice"),
    [(WhatsAppPerson, 44, "INV-15"), (TelegramPerson, 45, "INV-18"), (SlackPerson, 46, "INV-19")],
)
def test_a_deletion_is_undone_once_by_its_button(
    system: System, kind: type[Person], name: int, invoice: str
) -> None:
    """The outcome carries an Undo button; a second tap restores nothing more. Channels without a price say so."""
    person = kind(system, name)
    person.say(f"delete invoice {invoice}")
    person.hears()
    person.say("yes")
    (undo,) = person.hears()[0]["buttons"]
    assert undo["label"] == "Undo"
    person.tap(undo["data"])
    person.tap(undo["data"])
    first, *others = person.hears(1 if kind is WhatsAppPerson else 2)
    assert first["text"] == f"Invoice {invoice} is back."
    for second in others:
        assert second["text"].startswith(f"Already done: Undo: Delete invoice {invoice}")
    assert person.hears_nothing_more()
    assert (system.effects("delete", invoice), system.effects("restore", invoice)) == (1, 1)


@pytest.mark.parametrize(("kind", "name"), people(51, 52, 53))
def test_the_chart_arrives_as_a_picture(system: System, kind: type[Person], name: int) -> None:
    """The tool's PNG arrives as media, byte for byte, after the text. On WhatsApp, where each message costs money, the
    text is its caption.
    """
    person = kind(system, name)
    person.say("sales chart")
    messages = person.hears(1 if kind is WhatsAppPerson else 2)
    words = messages[0]
    picture = messages[-1]
    assert "Sales in 2026" in words["text"]
    assert picture["media"]["filename"].endswith(".png") or picture["media"]["mime"] == "image/png"
    blob = system.http.get(f"{system.platforms.url}/blobs/{picture['media']['sha256']}").content
    assert blob.startswith(b"\x89PNG")
    assert hashlib.sha256(blob).hexdigest() == picture["media"]["sha256"]


def test_the_export_arrives_as_a_link_on_whatsapp(system: System) -> None:
    """WhatsApp shows no CSV: one message has the answer, the file's name, its size and a link that works."""
    person = WhatsAppPerson(system, 61)
    person.say("export invoices")
    (message,) = person.hears()
    *answer, name, url = message["text"].split("\n")
    assert "".join(answer)
    assert re.fullmatch(r"\S+\.csv \([\d.]+ KB\)", name)
    assert len(system.http.get(url).raise_for_status().content) > 500


@pytest.mark.parametrize(("kind", "name"), [(TelegramPerson, 62), (SlackPerson, 63)])
def test_the_export_arrives_as_a_file(system: System, kind: type[Person], name: int) -> None:
    """A CSV arrives as a file with its name."""
    person = kind(system, name)
    person.say("export invoices")
    _, file = person.hears(2)
    assert file["media"]["filename"].endswith(".csv")
    assert file["media"]["size"] > 500


def test_messages_of_one_person_are_answered_in_order(system: System) -> None:
    """Two workers answer ten messages in a row in the same order. One answer may cover several messages."""
    person = TelegramPerson(system, 71)
    for number in range(10):
        person.say(f"message {number}")
    until(lambda: any("message 9" in entry["text"] for entry in system.ledger(person.chat)))
    until(system.is_settled)
    answered = re.findall(
        r"message (\d)", " ".join(entry["text"] for entry in system.ledger(person.chat))
    )
    assert answered == [str(number) for number in range(10)]


def test_action_proposed_by_a_tool_runs_after_the_yes(system: System) -> None:
    """refund_invoice calls stash_pending; a factory builds its executor in any worker."""
    person = TelegramPerson(system, 72)
    person.say("refund 20 EUR of INV-45")
    assert "Refund 20.00 EUR" in person.hears()[0]["text"]
    person.say("yes")
    assert "Refunded 20.00 EUR" in person.hears()[0]["text"]
    assert system.effects("refund", "INV-45") == 1


@pytest.mark.parametrize(("kind", "name"), people(81, 82, 83))
def test_a_forged_webhook_gets_403(system: System, kind: type[Person], name: int) -> None:
    """The web refuses a webhook with a changed signature or secret, and the bot answers nothing."""
    person = kind(system, name)
    path, (headers, body) = person.text(9, "hello")
    forged = {
        key: value[:-3] + "AAA" if key.startswith("x-") else value for key, value in headers.items()
    }
    assert system.post(path, (forged, body)).status_code == 403
    assert system.ledger(person.chat) == []


def test_an_unknown_channel_gets_404(system: System) -> None:
    """The web has no default channel for an unknown name."""
    assert (
        system.post("nobody", signing.telegram_hook(fakes.TELEGRAM_SECRET, {})).status_code == 404
    )


def test_reply_is_sent_again_after_a_rate_limit(system: System) -> None:
    """A 429 pauses the conversation for as long as the platform says; then the reply arrives once."""
    system.platforms.script("telegram", "429")
    person = TelegramPerson(system, 73)
    person.say("hello")
    assert person.hears()[0]["text"].startswith("You said: hello\n")
    assert until(person.hears_nothing_more)


def whatsapp_says(
    person: Person, number: int, text: str, quoted: str
) -> tuple[str, signing.SignedWebhook]:
    """Return the webhook of a typed message that quotes another message."""
    form = signing.whatsapp_text(
        f"SM{number:032x}",
        text,
        account_sid=fakes.TWILIO_ACCOUNT_SID,
        user=person.chat,
        OriginalRepliedMessageSid=quoted,
    )
    url = f"{person.system.url}/hooks/shop-wa"
    return "shop-wa", signing.whatsapp_hook(url, fakes.TWILIO_AUTH_TOKEN, form)


def telegram_says(
    person: Person, number: int, text: str, quoted: str
) -> tuple[str, signing.SignedWebhook]:
    """Return the webhook of a reply to a message."""
    original = {"message_id": int(quoted), "from": {"id": 7000000001, "is_bot": True}, "text": "?"}
    update = signing.telegram_text(number, text, user=int(person.chat), reply_to_message=original)
    return "ops-tg", signing.telegram_hook(fakes.TELEGRAM_SECRET, update)


def slack_says(
    person: Person, number: int, text: str, quoted: str
) -> tuple[str, signing.SignedWebhook]:
    """Return the webhook of a message in another thread, because the quoted message is in none."""
    thread = "1795204600.000100" if quoted else person.thread
    body = signing.slack_text(
        f"1795204800.{number:06}",
        text,
        user=f"U{person.name}",
        channel=person.chat,
        thread_ts=thread,
    )
    return "desk", signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, time.time())


@pytest.mark.parametrize(
    ("kind", "name", "invoice", "says", "another"),
    [
        (WhatsAppPerson, 271, "INV-7", whatsapp_says, f"SM{0x9999:032x}"),
        (TelegramPerson, 272, "INV-11", telegram_says, "999999"),
        (SlackPerson, 273, "INV-51", slack_says, "another thread"),
    ],
)
def test_a_yes_to_another_message_decides_nothing(
    system: System, kind, name: int, invoice: str, says, another
) -> None:
    """The reply names the open question; a yes that quotes the question itself runs the action once."""
    person = kind(system, name)
    person.say(f"delete invoice {invoice}")
    (question,) = person.hears()
    person._deliver(says(person, name * 1000 + 2, "yes", another))
    told = person.hears()[0]["text"]
    assert (invoice in told, "yes" in told, system.effects("delete", invoice)) == (True, True, 0)
    number = system.platforms.sent.index(question) + 1
    shown = {WhatsAppPerson: f"SM{number:032x}", TelegramPerson: str(number), SlackPerson: ""}[kind]
    person._deliver(says(person, name * 1000 + 3, "yes", shown))
    assert person.hears()[0]["text"].startswith(f"Invoice {invoice} is deleted.")
    assert system.effects("delete", invoice) == 1


@pytest.mark.parametrize(
    ("kind", "name", "invoice"), [(TelegramPerson, 275, "INV-47"), (SlackPerson, 276, "INV-55")]
)
def test_a_yes_written_before_the_question_decides_nothing(
    system: System, kind, name: int, invoice: str
) -> None:
    """The platform delivers the yes late; its date and message number show that it is older than the question."""
    person = kind(system, name)
    person.say(f"delete invoice {invoice}")
    person.hears()
    if kind is TelegramPerson:
        update = signing.telegram_text(
            name * 1000 + 2, "yes", user=int(person.chat), date=1795204600
        )
        late = "ops-tg", signing.telegram_hook(fakes.TELEGRAM_SECRET, update)
    else:
        fields = {"user": f"U{name}", "channel": person.chat, "thread_ts": person.thread}
        body = signing.slack_text("1795204600.000100", "yes", **fields)
        late = "desk", signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, time.time())
    person._deliver(late)
    assert person.hears()[0]["text"].startswith("I had not asked yet when you said that.")
    assert system.effects("delete", invoice) == 0
    person._said += 2
    person.say("no")
    assert person.hears()[0]["text"].startswith("Nothing was done")


@pytest.mark.parametrize(
    ("kind", "name", "invoice"),
    [
        (WhatsAppPerson, 281, "INV-22"),
        (TelegramPerson, 282, "INV-23"),
        (SlackPerson, 283, "INV-26"),
    ],
)
def test_an_unclear_reply_asks_again_with_buttons_that_decide(
    system: System, kind: type[Person], name: int, invoice: str
) -> None:
    """A "yes" with a comma is unfinished: it runs nothing, and the bot repeats the question."""
    person = kind(system, name)
    person.say(f"delete invoice {invoice}")
    person.hears()
    person.say("yes,")
    (asked,) = person.hears()
    assert asked["text"].startswith("I could not tell whether you meant yes or no")
    assert asked["buttons"][1]["label"] == "No"
    assert (invoice in asked["text"], system.effects("delete", invoice)) == (True, 0)
    person.tap(asked["buttons"][0]["data"])
    assert person.hears()[0]["text"].startswith(f"Invoice {invoice} is deleted.")
    assert system.effects("delete", invoice) == 1


@pytest.mark.parametrize(
    ("name", "app", "invoice", "asked", "unclear", "answer", "effects"),
    [
        (291, "tr", "INV-31", "ya da hayır", "evet ama", "EVET, SİL", 1),
        (292, "ru", "INV-58", "Ответьте", "да нет", "не надо, спасибо", 0),
        (293, "zh-hans", "INV-34", "或“否”", "好像是", "是的，删吧", 1),
        (294, "nl", "INV-58", "ja of nee", "ja maar", "neeee, laat maar", 0),
    ],
)
def test_a_person_is_asked_and_understood_in_their_language(
    system: System,
    name: int,
    app: str,
    invoice: str,
    asked: str,
    unclear: str,
    answer: str,
    effects: int,
) -> None:
    """The bot asks in the app's language. An unclear text asks again, an everyday yes runs it, a no does not."""
    person = TelegramPerson(system, name)

    def say(number: int, text: str) -> str:
        sender = {
            "id": int(person.chat),
            "is_bot": False,
            "first_name": "Ada",
            "language_code": app,
        }
        update = signing.telegram_text(
            name * 1000 + number, text, user=int(person.chat), **{"from": sender}
        )
        person._deliver(("ops-tg", signing.telegram_hook(fakes.TELEGRAM_SECRET, update)))
        return str(person.hears()[0]["text"])

    assert asked in say(1, f"delete invoice {invoice}")
    assert (asked in say(2, unclear), system.effects("delete", invoice)) == (True, 0)
    assert invoice in say(3, answer)
    assert system.effects("delete", invoice) == effects
