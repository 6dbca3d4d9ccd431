"""A photo with a caption on real processes: downloaded from its platform, stored, and shown to the model."""

from __future__ import annotations

import time

import pytest

from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.webhooks import JPEG
from tests.flows.system import Person, SlackPerson, System, TelegramPerson, WhatsAppPerson

CAPTION = "This is my dog"

Hook = tuple[str, signing.SignedWebhook]


def whatsapp_photo(system: System, person: Person, url: str, caption: str) -> Hook:
    """Return the webhook of a photo stored at Twilio and declared as PNG."""
    form = signing.whatsapp_photo(
        f"MM{person.name:032x}",
        url,
        caption,
        mime="image/png",
        account_sid=fakes.TWILIO_ACCOUNT_SID,
        user=person.chat,
    )
    signed = signing.whatsapp_hook(f"{system.url}/hooks/shop-wa", fakes.TWILIO_AUTH_TOKEN, form)
    return "shop-wa", signed


def telegram_photo(system: System, person: Person, file_id: str, caption: str) -> Hook:
    """Return the webhook of a photo stored at Telegram."""
    update = signing.telegram_photo(person.name, file_id, caption, user=int(person.chat))
    return "ops-tg", signing.telegram_hook(fakes.TELEGRAM_SECRET, update)


def slack_photo(system: System, person: Person, url: str, caption: str) -> Hook:
    """Return the webhook of a named photo stored at Slack."""
    fields = {"thread_ts": person.thread} if person.thread else {}
    body = signing.slack_photo(
        f"1795204800.{person.name:06}",
        url,
        caption,
        size=1,
        user=f"U{person.name}",
        channel=person.chat,
        **fields,
    )
    return "desk", signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, time.time())


def test_caption_of_a_missing_photo_is_answered(system: System) -> None:
    """The download fails: the bot answers the caption and states no size."""
    person = TelegramPerson(system, 901)
    for _ in range(2):
        assert (
            system.post(*telegram_photo(system, person, "no-such-file", CAPTION)).status_code == 200
        )
    assert person.hears()[0]["text"].startswith(f"You said: {CAPTION}\n[image image/jpeg]\n")


@pytest.mark.parametrize(
    ("kind", "name", "platform", "photo"),
    [
        (WhatsAppPerson, 911, "twilio", whatsapp_photo),
        (TelegramPerson, 912, "telegram", telegram_photo),
        (SlackPerson, 913, "slack", slack_photo),
    ],
)
def test_a_photo_reaches_the_model(
    system: System, kind: type[Person], name: int, platform: str, photo
) -> None:
    """The model gets the photo's true type and size once, although the webhook came twice."""
    person = kind(system, name)
    ref = system.platforms.host(platform, JPEG)
    for _ in range(2):
        assert system.post(*photo(system, person, ref, CAPTION)).status_code == 200
    heard = person.hears()[0]["text"]
    assert heard.startswith(f"You said: {CAPTION}\n[image image/jpeg {len(JPEG)} bytes")
    assert person.hears_nothing_more()


@pytest.mark.parametrize(
    ("kind", "name", "platform", "photo", "invoice"),
    [
        (WhatsAppPerson, 921, "twilio", whatsapp_photo, "INV-35"),
        (TelegramPerson, 922, "telegram", telegram_photo, "INV-29"),
        (SlackPerson, 923, "slack", slack_photo, "INV-60"),
    ],
)
def test_a_yes_below_a_photo_confirms_nothing(
    system: System, kind: type[Person], name: int, platform: str, photo, invoice: str
) -> None:
    """A caption decides nothing, and drops the pending action as any other message does."""
    person = kind(system, name)
    person.say(f"delete invoice {invoice}")
    person.hears()
    system.post(*photo(system, person, system.platforms.host(platform, JPEG), "yes"))
    assert "You did not say yes, so nothing was done" in person.hears()[0]["text"]
    assert system.effects("delete", invoice) == 0


def test_no_secret_and_no_address_of_a_file_in_the_logs(system: System) -> None:
    """The logs of all processes contain none after all tests above."""
    log = system.log.read_text()
    tokens = (fakes.TELEGRAM_TOKEN, fakes.SLACK_BOT_TOKEN, fakes.TWILIO_AUTH_TOKEN)
    assert not [secret for secret in (*tokens, "files-pri", "/Media/", "/cdn/") if secret in log]
