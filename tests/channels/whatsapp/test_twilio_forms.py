"""Inbound WhatsApp messages: the form fields decide, and only a typed yes is a yes."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from sayso.channels.base import BadHook
from sayso.channels.types import Turn
from sayso.channels.whatsapp.incoming import TwilioForm, status_of, turn_of
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import TWILIO_ACCOUNT_SID, TWILIO_AUTH_TOKEN

SID = f"SM{1:032x}"
FILE = f"https://api.twilio.com/2010-04-01/Accounts/{TWILIO_ACCOUNT_SID}/Messages/{SID}/Media/ME{1:032x}"
REPLIED = {
    "OriginalRepliedMessageSid": SID,
    "OriginalRepliedMessageSender": "whatsapp:+14155238886",
}


def read(text: str = "", **fields: str) -> Turn | None:
    """Return the turn of a form with these fields, or None."""
    form = signing.whatsapp_text(SID, text, account_sid=TWILIO_ACCOUNT_SID, **fields)
    return turn_of("wa", TwilioForm(signing.whatsapp_hook("https://x", TWILIO_AUTH_TOKEN, form)[1]))


def turn(text: str = "", **fields: str) -> Turn:
    """Return the turn of a form that has one."""
    found = read(text, **fields)
    assert found is not None
    return found


def file(mime: str, text: str = "", **fields: str) -> Turn:
    """Return the turn of a message with a file."""
    return turn(
        text,
        **{
            "NumMedia": "1",
            "MediaUrl0": FILE,
            "MediaContentType0": mime,
            "MessageType": "",
            **fields,
        },
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"MessageType": "interactive", "ButtonPayload": "d", "ButtonText": "Yes"},
        {"MessageType": "interactive", "ListId": "d", "ListTitle": "Yes"},
        {"MessageType": "button", "ButtonPayload": "d"},
        {"MessageType": "interactive", **REPLIED},
        {"MessageType": "text", "ListTitle": "Yes"},
        {"MessageType": "text", "ButtonText": "Yes"},
        {"MessageType": "document", "MediaUrl0": FILE, "MediaContentType0": "application/pdf"},
        {"MessageType": "", "MediaUrl0": FILE, "MediaContentType0": "text/plain"},
        {"MessageType": "contacts", "MediaUrl0": FILE, "MediaContentType0": "text/vcard"},
        {"MessageType": "sticker", "MediaUrl0": FILE, "MediaContentType0": "image/webp"},
    ],
)
def test_body_that_was_not_typed_is_no_text(fields: dict[str, str]):
    """platforms.md 1.1: the body of a tap repeats its label, that of a document is its name."""
    found = turn("Yes", **fields)
    assert found.text == ""
    assert found.tap or not found.decides


@pytest.mark.parametrize(
    "fields",
    [
        {"Forwarded": "true"},
        {"Forwarded": "True"},
        {"FrequentlyForwarded": "1"},
        {"NumMedia": "1"},
        {"NumMedia": "1", "MessageType": "text"},
        {"FrequentlyForwarded": "true", "Forwarded": "true"},
        {"ReferralHeadline": "Say yes"},
        {"MessageType": "order"},
        {"Latitude": "1", "Longitude": "2"},
        {"MediaUrl0": FILE, "MediaContentType0": "image/jpeg", "MessageType": "image"},
        {"MediaUrl0": FILE, "MediaContentType0": "audio/ogg", "MessageType": "audio"},
    ],
)
def test_yes_with_media_forwarded_or_from_an_advertisement_decides_nothing(fields: dict[str, str]):
    """platforms.md 1.1: a caption, a forwarded text or an advertisement's text is no answer to a question."""
    found = turn("yes", **fields)
    assert found.text == "yes"
    assert not found.decides


@pytest.mark.parametrize(
    "fields",
    [{}, {"MessageType": ""}, REPLIED, {"Forwarded": "false"}, {"OptOutType": "START"}],
)
def test_typed_text_decides(fields: dict[str, str]):
    """platforms.md 1.1: a reply to a message decides too; Twilio does not send the text of the quoted message.

    A Messaging Service may take a yes for a keyword of its own, and it is an answer all the same.
    """
    found = turn("yes", **fields)
    assert (found.text, found.decides, found.quoted) == ("yes", True, "")


@pytest.mark.parametrize("body", ["", "👍"])
def test_reaction_is_no_turn(body: str):
    """platforms.md 1.1: a thumb under an old message is no yes to the open question."""
    assert read(body, MessageType="reaction") is None


@pytest.mark.parametrize(
    "kind", ["", "text", "image", "unsupported", "order", "interactive", "made up"]
)
@pytest.mark.parametrize("fields", [{}, {"Forwarded": "true", "ReferralHeadline": "Ad"}])
def test_message_without_content_is_no_turn(kind: str, fields: dict[str, str]):
    """platforms.md 1.1: a type that Twilio does not document has nothing to answer."""
    assert read(MessageType=kind, **fields) is None


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({}, "location 52.5,13.4"),
        ({"Label": "Tor"}, "location 52.5,13.4 (Tor)"),
        ({"Address": "Platz,\n10117 Berlin"}, "location 52.5,13.4 (Platz, 10117 Berlin)"),
        ({"Label": "Tor", "Address": "Platz"}, "location 52.5,13.4 (Tor, Platz)"),
    ],
)
def test_location_is_a_note_in_one_line(fields: dict[str, str], note: str):
    """platforms.md 1.1: Latitude and Longitude, optionally Address and Label; the body is empty."""
    found = turn(Latitude="52.5", Longitude="13.4", MessageType="", **fields)
    assert (found.notes, found.text) == ((note,), "")


def test_chosen_title_without_an_id_is_a_note():
    """platforms.md 1.1: without a list id the turn names the title and is no tap."""
    assert turn("Berlin", MessageType="interactive", **REPLIED).notes == ("chose 'Berlin'",)


def test_list_id_wins_over_a_button_payload():
    """platforms.md 1.1: the data of a tap is ListId, else ButtonPayload."""
    found = turn("x", ListId="list", ButtonPayload="button")
    assert found.tap is not None
    assert (found.tap.data, found.notes, found.media) == ("list", (), ())


@pytest.mark.parametrize(
    ("mime", "text", "notes", "name", "words"),
    [
        ("image/jpeg", "see", (), "", "see"),
        ("image/webp", "", ("sticker",), "", ""),
        ("image/webp", "see", (), "", "see"),
        ("video/mp4", "see", (), "", "see"),
        ("audio/ogg; codecs=opus", "", (), "", ""),
        ("application/pdf", "bill.pdf", (), "bill.pdf", ""),
        ("text/vcard; charset=utf-8", "Bo", ("contact Bo",), "Bo", ""),
        ("", "", (), "", ""),
    ],
)
def test_file_without_a_message_type_is_read_by_its_mime_type(
    mime: str, text: str, notes: tuple[str, ...], name: str, words: str
):
    """platforms.md 1.1: MessageType is undocumented, and the MIME type of the file says as much."""
    found = file(mime, text)
    assert (found.notes, found.media[0].filename, found.text) == (notes, name, words)
    assert found.media[0].ref == FILE


def test_advertisement_is_a_note():
    """platforms.md 1.1: the note names the advertisement that the user saw before writing."""
    fields = {
        "ReferralHeadline": "Sale",
        "ReferralBody": "20 %\noff",
        "ReferralSourceUrl": "https://fb.me/1",
    }
    assert turn("hi", **fields).notes == (
        "came from an advertisement: Sale: 20 % off (https://fb.me/1)",
    )
    assert turn("hi", ReferralSourceUrl="https://fb.me/1").notes == (
        "came from an advertisement: https://fb.me/1",
    )


def test_user_id_is_the_external_user_id():
    """platforms.md 1.1: ExternalUserId is the key; number and WaId are other names of the same person."""
    found = turn("hi", ExternalUserId="whatsapp:DE.77", WaId="4915100000042")
    assert found.user_id == "whatsapp:DE.77"
    assert found.conversation.chat == "whatsapp:DE.77"
    assert found.aliases == ("whatsapp:+4915100000042", "4915100000042")


def test_person_without_a_number_has_no_aliases():
    """platforms.md 1.1: From and ExternalUserId both hold the id then."""
    found = turn("hi", From="whatsapp:DE.77", ExternalUserId="whatsapp:DE.77")
    assert (found.user_id, found.conversation.chat, found.aliases) == (
        "whatsapp:DE.77",
        "whatsapp:DE.77",
        (),
    )


def test_person_without_an_external_id_is_known_by_the_number():
    """Older webhooks have no ExternalUserId."""
    assert turn("hi", ExternalUserId="").user_id == "whatsapp:+4915100000042"


@pytest.mark.parametrize("field", ["MessageSid", "From"])
def test_form_without_a_sender_or_an_id_is_a_bad_hook(field: str):
    """platforms.md 1.1: without an id the form cannot be deduplicated, and without a sender it cannot be answered."""
    with pytest.raises(BadHook):
        read("hi", **{field: ""})


@pytest.mark.parametrize(
    "sid", ["", "SM1", "SM" + "0" * 31, "SM" + "0" * 33, "XX" + "0" * 32, "SM" + "g" * 32]
)
def test_invalid_message_id_is_a_bad_hook(sid: str):
    """A signature still fits when letters move from a name to its value, and a longer id would be a new turn."""
    body = urlencode({"MessageSid": sid, "From": "whatsapp:+4915100000042", "Body": "yes"}).encode()
    with pytest.raises(BadHook, match="is not the id of a message"):
        turn_of("wa", TwilioForm(body))
    status = urlencode({"MessageSid": sid, "MessageStatus": "failed"}).encode()
    with pytest.raises(BadHook, match="is not the id of a message"):
        status_of(TwilioForm(status), "", "")
