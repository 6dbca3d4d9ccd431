"""WhatsApp's own rules: Twilio's signatures, Contents for buttons, and the meaning of a form."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from dataclasses import replace

import pytest

from sayso.channels.base import DeliveryUncertain, Forbidden, RateLimited, Unreachable, WindowClosed
from sayso.channels.types import Button, Conversation, Delivery, Reply, Turn
from sayso.channels.whatsapp.client import SANDBOX
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import (
    TWILIO_ACCOUNT_SID,
    TWILIO_AUTH_TOKEN,
    FakePlatforms,
)
from sayso.testing.platforms.twilio import TEMPLATE
from tests.channels.harness import (
    IMAGE,
    PDF,
    WHATSAPP_URL,
    MemoryMedia,
    hook,
    whatsapp,
    whatsapp_hook,
)
from tests.flows.system import until
from tests.memory_stores import MemorySharedCache

CHAT = Conversation("wa", "whatsapp:+4915100000042")
YES_NO = (Button("Yes", "a:1:yes"), Button("No", "a:1:no"))
SID = f"SM{1:032x}"


def form(text: str = "hello", **extra: str) -> dict[str, str]:
    """Return the form of a typed message."""
    return signing.whatsapp_text(SID, text, account_sid=TWILIO_ACCOUNT_SID, **extra)


def send(channel, reply: Reply):
    """Send one piece to Ada."""
    return asyncio.run(channel.send(Delivery("d", CHAT, reply)))


def test_other_account_is_forbidden(media: MemoryMedia):
    """Twilio may sign a form of another account with our token; the adapter still refuses it."""
    with pytest.raises(Forbidden):
        whatsapp(media, None).receive(whatsapp_hook({**form(), "AccountSid": "AC" + "1" * 32}))


def test_url_is_part_of_the_signature(media: MemoryMedia):
    """platforms.md 1.1: the same form for another URL, or with another query, is forbidden; Twilio does not sign a
    fragment.
    """
    signed = whatsapp_hook(form())
    for url in (
        WHATSAPP_URL + "&x=1",
        WHATSAPP_URL.replace("a%20b", "a+b"),
        "https://evil.example/hooks/whatsapp",
    ):
        with pytest.raises(Forbidden):
            whatsapp(media, None).receive(replace(signed, url=url))
    assert whatsapp(media, None).receive(replace(signed, url=WHATSAPP_URL + "#rc=3")).turns


def test_unknown_and_repeated_fields_are_signed(media: MemoryMedia):
    """platforms.md 1.1, 1.2: the signature covers unknown, empty and repeated fields."""
    signed = whatsapp_hook(form(NewField="", Zed="1"))
    assert whatsapp(media, None).receive(signed).turns
    assert whatsapp(media, None).receive(replace(signed, body=signed.body + b"&Zed=1")).turns
    with pytest.raises(Forbidden):
        whatsapp(media, None).receive(replace(signed, body=signed.body + b"&Zed=2"))


def test_form_larger_than_twilios_is_refused_before_it_is_decoded(media: MemoryMedia):
    """Its signature can only be checked afterwards, and 900 KB of `%` would take 0.3 s."""
    with pytest.raises(Forbidden, match="900,000 bytes: Twilio's have at most 64,000"):
        whatsapp(media, None).receive(replace(whatsapp_hook(form()), body=b"%" * 900_000))
    longest = whatsapp_hook(form("\U0001f600" * 1600))
    assert len(whatsapp(media, None).receive(longest).turns[0].text) == 1600


def test_shared_key_signs_with_sha256(media: MemoryMedia):
    """platforms.md 1.2: accounts on shared keys name the hash in a header; the key is not the auth token."""
    fields = form()
    words = WHATSAPP_URL + "".join(name + fields[name] for name in sorted(fields))
    signature = base64.b64encode(
        hmac.new(b"shared", words.encode(), hashlib.sha256).digest()
    ).decode()
    headers, body = signing.whatsapp_hook(WHATSAPP_URL, TWILIO_AUTH_TOKEN, fields)
    settings = {"x-twilio-webhooks-signature-settings": "key=k1,algorithm=HMAC_SHA256"}
    signed = hook(({**headers, "x-twilio-signature": signature, **settings}, body), WHATSAPP_URL)
    assert whatsapp(media, None, shared_key="shared").receive(signed).turns
    with pytest.raises(Forbidden):
        whatsapp(media, None).receive(signed)


def test_document_name_is_not_typed_text(media: MemoryMedia):
    """platforms.md 1.1: Twilio puts a document's file name into the body, and "yes.pdf" confirms nothing."""
    fields = {"MediaUrl0": "https://api.twilio.com/x", "MediaContentType0": "application/pdf"}
    turn = (
        whatsapp(media, None)
        .receive(whatsapp_hook(form("yes", MessageType="document", **fields)))
        .turns[0]
    )
    assert (turn.text, turn.media[0].filename) == ("", "yes")


def test_username_without_phone_is_answered_as_is(media: MemoryMedia):
    """platforms.md 1.1: the bot reaches a user who hides the number by the id alone."""
    fields = form(From="whatsapp:DE.77", ExternalUserId="whatsapp:DE.77")
    turn = whatsapp(media, None).receive(whatsapp_hook(fields)).turns[0]
    assert (turn.user_id, turn.conversation.chat) == ("whatsapp:DE.77", "whatsapp:DE.77")


def test_unusual_settings_of_shared_keys_are_forbidden(media: MemoryMedia):
    """platforms.md 1.2: no value of the settings header makes a wrong signature valid or raises another error."""
    signed = whatsapp_hook(form())
    channel = whatsapp(media, None, shared_key="shared")
    for settings in (
        "key=k1",
        "algorithm=",
        "algorithm=none",
        "algorithm=HMAC_MD5",
        ",,=,",
        "é",
        "algorithm=HMAC_SHA256",
    ):
        headers = {**signed.headers, "x-twilio-webhooks-signature-settings": settings}
        with pytest.raises(Forbidden):
            channel.receive(replace(signed, headers=headers))
    assert channel.receive(signed).turns


def test_port_and_proxy_do_not_change_the_signature(media: MemoryMedia):
    """platforms.md 1.2: Twilio signs the configured URL with or without its port; a proxy does not change that."""
    with_port = WHATSAPP_URL.replace(".com", ".com:443")
    for signed_for, configured in ((with_port, WHATSAPP_URL), (WHATSAPP_URL, with_port)):
        signed = replace(whatsapp_hook(form(), signed_for), url=configured)
        assert whatsapp(media, None).receive(signed).turns
    insecure = WHATSAPP_URL.replace("https", "http")
    with pytest.raises(Forbidden):
        whatsapp(media, None).receive(replace(whatsapp_hook(form()), url=insecure))


def test_own_message_is_ignored(media: MemoryMedia):
    """platforms.md 1.1, pains.md 11: the adapter ignores a message that the channel itself sent."""
    for sender in ("whatsapp:+14155238886", "whatsapp:+19990000000"):
        received = whatsapp(media, None).receive(whatsapp_hook({**form(From=sender), "To": sender}))
        assert (received.turns, received.ignored) == ((), "sent by this channel itself")


def test_reply_to_a_hidden_number_goes_to_its_id(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.1: the id is the address, unchanged and without a plus."""
    hidden = Conversation("wa", "whatsapp:DE.77")
    asyncio.run(whatsapp(media, platforms.twilio_url).send(Delivery("d", hidden, Reply("x"))))
    assert platforms.sent[0]["raw"]["To"] == "whatsapp:DE.77"


def test_messaging_service_sends_without_a_number(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.3: a message has either From or MessagingServiceSid."""
    service = "MG" + "0" * 32
    send(
        whatsapp(media, platforms.twilio_url, from_=None, messaging_service_sid=service), Reply("x")
    )
    assert platforms.sent[0]["raw"]["MessagingServiceSid"] == service
    assert "From" not in platforms.sent[0]["raw"]


def test_answer_is_empty_twiml(media: MemoryMedia):
    """platforms.md 1.1: Twilio logs any other answer as an error."""
    answer = whatsapp(media, None).receive(whatsapp_hook(form())).answer
    assert (answer.status, answer.body, answer.content_type) == (200, "<Response/>", "text/xml")


def test_one_content_serves_every_question(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.3: Contents are permanent; the second question reuses the first one's, also in another process."""
    notebook = MemorySharedCache()
    for text in ("Delete a?", "Delete *b*\nand c?"):
        send(whatsapp(media, platforms.twilio_url, cache=notebook), Reply(text, YES_NO))
    assert [call["method"] for call in platforms.calls] == ["content"]
    assert [entry["text"] for entry in platforms.sent] == ["Delete a?", "Delete _b_\nand c?"]
    assert TWILIO_AUTH_TOKEN not in str(vars(notebook))


def test_deleted_content_costs_one_message_its_buttons(
    media: MemoryMedia, platforms: FakePlatforms
):
    """platforms.md 1.4: after a Content was deleted at Twilio, one question is text only and the next has buttons."""
    channel = whatsapp(media, platforms.twilio_url)
    send(channel, Reply("Sure?", YES_NO))
    platforms.fakes["twilio"]._contents.clear()
    for _ in range(2):
        send(channel, Reply("Sure?", YES_NO))
    assert [bool(entry["buttons"]) for entry in platforms.sent] == [True, False, True]


def test_long_labels_are_cut(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.3: a button's title has at most 20 characters."""
    send(
        whatsapp(media, platforms.twilio_url),
        Reply("Sure?", (Button("A label that is too long", "d"),)),
    )
    assert len(platforms.sent[0]["buttons"][0]["label"]) == 20


def test_text_comes_before_a_document_and_as_caption_of_a_picture(media: MemoryMedia):
    """platforms.md 1.3: WhatsApp shows captions on pictures only, and none beside buttons."""
    channel = whatsapp(media, None)
    assert channel.split(Reply("See", media=IMAGE)) == (Reply("See", media=IMAGE),)
    assert channel.split(Reply("See", media=PDF)) == (Reply("See"), Reply(media=PDF))
    assert channel.split(Reply("See", YES_NO, IMAGE)) == (Reply(media=IMAGE), Reply("See", YES_NO))


@pytest.mark.parametrize("sid", [SID, f"MM{1:032x}"])
def test_repetition_has_the_event_id_of_its_message(media: MemoryMedia, sid: str):
    """platforms.md 1.1: a retry has another token, at the fallback URL too, but the same MessageSid."""
    signed = whatsapp_hook({**form(), "MessageSid": sid})
    again = replace(signed, headers={**signed.headers, "i-twilio-idempotency-token": "another"})
    assert whatsapp(media, None).receive(again).turns[0].event_id == sid
    assert whatsapp(media, None).receive(again) == whatsapp(media, None).receive(signed)


def test_sender_is_limited_to_eighty_a_second(media: MemoryMedia):
    """platforms.md 1.4: Twilio limits the sender and not the chat."""
    pace = whatsapp(media, None, from_="whatsapp:+4930111111").rate_limit(CHAT)
    assert (pace.per_second, pace.chat_gap) == (80, 0.0)


def test_sandbox_is_limited_to_one_in_three_seconds(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.4: trial accounts share a slow sender; a server that stands in for Twilio has the usual limit."""
    assert whatsapp(media, None, from_=SANDBOX).rate_limit(CHAT).per_second == pytest.approx(1 / 3)
    assert whatsapp(media, platforms.twilio_url, from_=SANDBOX).rate_limit(CHAT).per_second == 80
    assert (
        whatsapp(media, None, from_=SANDBOX, messaging_service_sid=f"MG{'0' * 32}")
        .rate_limit(CHAT)
        .per_second
        == 80
    )


def test_message_at_the_fallback_url_is_a_message(media: MemoryMedia):
    """platforms.md 1.1: the fallback has the same URL, and the error fields that Twilio adds make no status of it."""
    added = {"ErrorCode": "11200", "ErrorUrl": WHATSAPP_URL}
    (turn,) = whatsapp(media, None).receive(whatsapp_hook(form(**added))).turns
    assert (turn.event_id, turn.text) == (SID, "hello")


@pytest.mark.parametrize(
    "sender", ["+4915100000042", "rcs:brand", "messenger:1", "WhatsApp:+4915100000042"]
)
def test_message_from_outside_whatsapp_is_ignored(media: MemoryMedia, sender: str):
    """platforms.md 1.5: a messaging service delivers its SMS here too, and a sender can put any number into an SMS:
    it must not pass for a message of the person who has that number on WhatsApp.
    """
    received = whatsapp(media, None).receive(
        whatsapp_hook(form("yes", From=sender, WaId="", ExternalUserId=""))
    )
    assert (received.turns, received.ignored) == ((), "not sent by WhatsApp")


CALLBACK = "https://b.example/hooks/wa/status"
STATUS = {
    "MessageSid": SID,
    "MessageStatus": "undelivered",
    "ErrorCode": "63016",
    "AccountSid": TWILIO_ACCOUNT_SID,
}


@pytest.mark.parametrize("public_url", ["https://b.example", "https://b.example/bots"])
def test_status_callback_names_its_delivery(
    media: MemoryMedia, platforms: FakePlatforms, public_url: str
):
    """platforms.md 1.3: errors of the channel come only by callback, and its URL names the reply."""
    delivery = f"{CHAT.id}#12"
    channel = whatsapp(media, platforms.twilio_url, public_url=public_url)
    asyncio.run(channel.send(Delivery(delivery, CHAT, Reply("x"))))
    url = platforms.sent[0]["raw"]["StatusCallback"]
    (update,) = channel.receive(replace(whatsapp_hook(STATUS, url), path="status")).statuses
    assert (update.delivery, update.status, update.error_code) == (delivery, "undelivered", "63016")
    assert url.startswith(f"{public_url}/hooks/wa/status?")


def test_delivery_id_of_a_status_callback_is_signed(media: MemoryMedia):
    """platforms.md 1.2: a status for another delivery than the signed one is forbidden."""
    signed = whatsapp_hook(STATUS, f"{CALLBACK}?delivery={'a' * 20}.1")
    with pytest.raises(Forbidden):
        whatsapp(media, None).receive(replace(signed, url=signed.url[:-1] + "2"))


@pytest.mark.parametrize(
    "named", ["", "?delivery=", "?delivery=x.1", f"?delivery={'a' * 20}.0", "?delivery=%00"]
)
def test_status_callback_without_a_delivery_id_is_a_status(media: MemoryMedia, named: str):
    """The operator may have set another URL in Twilio's console."""
    (update,) = whatsapp(media, None).receive(whatsapp_hook(STATUS, CALLBACK + named)).statuses
    assert update.delivery == ""


def test_status_of_any_name_is_reported(media: MemoryMedia):
    """platforms.md 1.1: the adapter passes each status on, in any order, also from a form with a charset."""
    for status in (
        "queued",
        "read",
        "delivered",
        "sent",
        "canceled",
        "partially_delivered",
        "something new",
    ):
        signed = whatsapp_hook({**STATUS, "MessageStatus": status, "ErrorCode": ""}, CALLBACK)
        headers = {
            **signed.headers,
            "content-type": "application/x-www-form-urlencoded; charset=utf-8",
        }
        (update,) = whatsapp(media, None).receive(replace(signed, headers=headers)).statuses
        assert (update.status, update.error_code) == (status, "")


@pytest.mark.parametrize(
    ("code", "closed", "alerts"),
    [
        ("63024", 1, 0),
        ("21610", 1, 0),
        ("63007", 0, 1),
        ("63016", 0, 0),
        ("63018", 0, 0),
        ("", 0, 0),
        ("x", 0, 0),
        ("٦٣٠٢٤", 0, 0),
        ("9" * 5000, 0, 0),
    ],
)
def test_error_code_of_a_status_closes_an_address_or_raises_an_alert(
    media: MemoryMedia, code: str, closed: int, alerts: int
):
    """platforms.md 1.3: errors of the channel come by status callback only; 1.4 explains the codes."""
    fields = {**STATUS, "ErrorCode": code, "To": CHAT.chat}
    received = whatsapp(media, None).receive(whatsapp_hook(fields, CALLBACK))
    assert [news.conversation for news in received.addresses] == [CHAT] * closed
    assert all(news.closed and news.late for news in received.addresses)
    assert (len(received.alerts), len(received.statuses)) == (alerts, 1)
    assert "+49" not in str(received.alerts)


@pytest.mark.parametrize("code", ["21211", "21614", "63003"])
def test_status_about_a_number_closes_no_address_that_is_an_id(media: MemoryMedia, code: str):
    """It says that the recipient is no phone number, which is true of each person who hides it."""
    fields = {**STATUS, "ErrorCode": code, "To": "whatsapp:DE.77"}
    assert whatsapp(media, None).receive(whatsapp_hook(fields, CALLBACK)).addresses == ()


@pytest.mark.parametrize("code", ["21610", "63014", "63033", "63050"])
def test_status_of_an_opt_out_names_its_reply(media: MemoryMedia, code: str):
    """The reply's conversation is closed, whatever address Twilio names."""
    fields = {**STATUS, "ErrorCode": code, "To": "whatsapp:DE.77"}
    callback = f"{CALLBACK}?delivery={'a' * 20}.7"
    (change,) = whatsapp(media, None).receive(whatsapp_hook(fields, callback)).addresses
    assert (change.opted_out, change.late, change.delivery) == (True, True, f"wa:{'a' * 20}#7")


@pytest.mark.parametrize("code", ["63027", "63028", "63040", "63041", "63042"])
def test_status_of_a_template_names_it(media: MemoryMedia, platforms: FakePlatforms, code: str):
    """Twilio's report names no template, so the URL of the callback does. No address is closed."""
    channel = whatsapp(media, platforms.twilio_url, template=TEMPLATE)
    asyncio.run(channel.send(Delivery(f"{CHAT.id}#12", CHAT, Reply("x"), silence=25 * 3600.0)))
    url = platforms.sent[0]["raw"]["StatusCallback"]
    signed = replace(whatsapp_hook({**STATUS, "ErrorCode": code}, url), path="status")
    received = channel.receive(signed)
    (refusal,) = received.refused_templates
    assert refusal.template == TEMPLATE
    assert f"Twilio error {code}" in refusal.reason
    assert received.statuses[0].delivery == f"{CHAT.id}#12"
    assert received.addresses == received.alerts == ()


def test_message_at_the_status_url_is_a_message(media: MemoryMedia):
    """platforms.md 1.1: a status has a MessageStatus, so swapped URLs in the console lose no message."""
    (turn,) = (
        whatsapp(media, None)
        .receive(replace(whatsapp_hook(form(SmsStatus="received")), path="status"))
        .turns
    )
    assert (turn.event_id, turn.text) == (SID, "hello")


def test_status_of_success_closes_nothing(media: MemoryMedia):
    """A delivered message arrived, even if the callback has the error of an earlier attempt."""
    fields = {**STATUS, "MessageStatus": "delivered", "ErrorCode": "63024", "To": CHAT.chat}
    assert whatsapp(media, None).receive(whatsapp_hook(fields, CALLBACK)).addresses == ()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("503", Unreachable),
        ("502", Unreachable),
        ("500", DeliveryUncertain),
        ("63018", RateLimited),
        ("63016", WindowClosed),
    ],
)
def test_error_code_decides_whether_to_send_again(
    media: MemoryMedia, platforms: FakePlatforms, error: str, kind: type[Exception]
):
    """Each code raises the error type that the sender expects for it, without the phone number."""
    platforms.script("twilio", error)
    with pytest.raises(kind) as caught:
        send(whatsapp(media, platforms.twilio_url), Reply("x"))
    assert "+49" not in str(caught.value)


def test_typing_is_shown(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.3: the typing indicator names the message that it answers."""
    turn = Turn(SID, CHAT, "u", text="x", message_id=SID)
    asyncio.run(whatsapp(media, platforms.twilio_url).show_typing(turn))
    assert platforms.calls == [
        {
            "platform": "twilio",
            "method": "typing",
            "params": {"channel": "whatsapp", "messageId": SID},
        }
    ]


def test_call_without_an_answer_times_out(
    media: MemoryMedia, platforms: FakePlatforms, monkeypatch: pytest.MonkeyPatch
):
    """platforms.md 1.3: Twilio's client has no timeout; a message without an answer may have arrived."""
    monkeypatch.setattr("sayso.infra.http.ANSWER_SECONDS", 0.05)
    platforms.script("twilio", "slow", seconds=0.2)
    with pytest.raises(DeliveryUncertain):
        send(whatsapp(media, platforms.twilio_url), Reply("x"))
    assert (
        until(lambda: platforms.sent)[0]["text"] == "x"
    )  # the message may arrive late, after the timeout


@pytest.mark.parametrize("field", ["account_sid", "auth_token", "from"])
def test_empty_settings_are_refused(media: MemoryMedia, field: str):
    """The channel refuses an empty secret, which would verify a signature made with no key."""
    with pytest.raises(ValueError, match=field):
        whatsapp(media, None, **{"from_" if field == "from" else field: ""})
