"""The bodies of webhooks are what a test asks for."""

from __future__ import annotations

import json

from sayso.testing.platforms import webhooks


def test_fields_of_a_test_replace_those_of_a_body() -> None:
    """A builder may have set them to make its kind of event."""
    tap = webhooks.whatsapp_tap("SM1", "yes", account_sid="AC1", MessageType="button")
    edit = webhooks.telegram_edit(1, "hi", message_id=7, edit_date=5)
    photo = json.loads(webhooks.slack_photo("1.1", "https://e.org", subtype="file_comment"))
    assert tap["MessageType"] == "button"
    assert edit["edited_message"]["edit_date"] == 5
    assert photo["event"]["subtype"] == "file_comment"


def test_edits_of_two_messages_in_slack_are_two_events() -> None:
    """With one event id the second edit would be taken for a repeated webhook."""
    edits = [json.loads(webhooks.slack_edit(ts, "yes", "no")) for ts in ("1.1", "1.2")]
    assert edits[0]["event_id"] != edits[1]["event_id"]


def test_last_size_of_a_telegram_photo_is_the_largest() -> None:
    """Telegram lists them in this order."""
    *smaller, largest = webhooks.telegram_photo(1, "p1")["message"]["photo"]
    assert largest["file_id"] == "p1"
    assert all(size["width"] < largest["width"] for size in smaller)


def test_command_in_the_caption_of_a_telegram_photo_is_marked() -> None:
    """A photo without a caption has neither field."""
    message = webhooks.telegram_photo(1, "p1", "/help me")["message"]
    assert message["caption_entities"] == [{"type": "bot_command", "offset": 0, "length": 5}]
    assert "caption" not in webhooks.telegram_photo(1, "p1")["message"]
