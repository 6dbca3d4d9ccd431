"""FakeTelegram refuses what the Bot API refuses, because a fake that accepts everything proves nothing."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sayso.testing.platforms.fake_platforms import TELEGRAM_TOKEN, FakePlatforms
from sayso.testing.platforms.telegram import WEBHOOK
from sayso.testing.platforms.telegram_rich import checked_rich_text
from sayso.testing.platforms.telegram_text import TelegramRefusal

HOOK = "https://bots.example.com/hooks/tg"


def api(platforms: FakePlatforms, method: str, token: str = TELEGRAM_TOKEN, **params: Any) -> Any:
    """Return the result of a method, or Telegram's description of the error."""
    url = f"{platforms.telegram_url}/bot{token}/{method}"
    request = urllib.request.Request(
        url, json.dumps(params).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())["result"]
    except urllib.error.HTTPError as exc:
        return json.loads(exc.read())["description"]


@pytest.mark.parametrize(
    ("params", "refusal"),
    [
        ({"url": "http://bots.example.com/x"}, "HTTPS URL must be provided"),
        ({"url": "https://bots.example.com:8080/x"}, "only on ports 80, 88, 443 or 8443"),
        ({"url": "https://10.0.0.7/x"}, "IP address 10.0.0.7 is reserved"),
        ({"url": HOOK, "secret_token": "no spaces"}, "secret token contains unallowed characters"),
        ({"url": HOOK, "max_connections": 0}, "max_connections must be between 1 and 100"),
        ({"url": HOOK, "max_connections": 101}, "max_connections must be between 1 and 100"),
        ({"url": HOOK, "allowed_updates": "message"}, "can't parse allowed updates JSON object"),
        ({"url": HOOK, "allowed_updates": ["messages"]}, "unknown allowed updates ['messages']"),
    ],
)
def test_a_webhook_that_would_never_be_called_is_refused(
    platforms: FakePlatforms, params: dict, refusal: str
):
    """platforms.md 2.1 and 2.5: https, four ports, no private address, a plain secret, an array of known kinds."""
    assert refusal in api(platforms, "setWebhook", **params)
    assert api(platforms, "getWebhookInfo")["url"] == ""


def test_webhook_is_set_read_and_deleted(platforms: FakePlatforms):
    """platforms.md 2.1: a call without kinds of update keeps the earlier ones."""
    asked = {
        "url": HOOK,
        "secret_token": "s",
        "max_connections": 5,
        "allowed_updates": ["message", "callback_query"],
    }
    assert api(platforms, "setWebhook", **asked) is True
    platforms.log.state[WEBHOOK] |= {
        "pending_update_count": 3,
        "last_error_message": "Wrong response: 503",
    }
    assert api(platforms, "setWebhook", url=HOOK) is True
    info = api(platforms, "getWebhookInfo")
    assert (info["url"], info["pending_update_count"], info["max_connections"]) == (HOOK, 3, 40)
    assert (info["allowed_updates"], "last_error_message" in info) == (
        ["message", "callback_query"],
        False,
    )
    assert api(platforms, "deleteWebhook", drop_pending_updates=True) is True
    assert api(platforms, "getWebhookInfo") == {
        "url": "",
        "has_custom_certificate": False,
        "pending_update_count": 0,
    }


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/hooks/tg", "https://bots.example.com:8443/hooks/tg"]
)
def test_webhook_on_this_machine_is_accepted(platforms: FakePlatforms, url: str):
    """Tests have no certificate."""
    assert api(platforms, "setWebhook", url=url) is True


def test_commands_are_listed_as_they_were_set(platforms: FakePlatforms):
    """A command has lowercase letters, digits and _, and a description."""
    menu = [{"command": "help", "description": "What I can do"}]
    assert (api(platforms, "setMyCommands", commands=menu), api(platforms, "getMyCommands")) == (
        True,
        menu,
    )
    assert api(platforms, "getMyCommands", language_code="de") == []
    assert api(
        platforms, "setMyCommands", commands=[{"command": "Help", "description": "x"}]
    ).endswith("INVALID")
    assert api(
        platforms, "setMyCommands", commands=[{"command": "help", "description": ""}]
    ).endswith("INVALID")


def test_unknown_token_or_method_is_refused(platforms: FakePlatforms):
    """platforms.md 2.4: Telegram answers a revoked or wrong token with 401 or 404."""
    assert api(platforms, "getMe", token="7000000001:wrong") == "Unauthorized"
    assert api(platforms, "sendMesage") == "Not Found"
    assert api(platforms, "getMe")["username"] == "acme_bot"


@pytest.mark.parametrize(
    ("method", "params", "refusal"),
    [
        (
            "sendMessageDraft",
            {"chat_id": 1, "draft_id": 0, "text": "x"},
            "invalid draft identifier",
        ),
        (
            "sendMessageDraft",
            {"chat_id": -100, "draft_id": 1, "text": "x"},
            "only to private chats",
        ),
        (
            "sendMessageDraft",
            {"chat_id": 1, "draft_id": 1, "text": "x" * 4097},
            "message is too long",
        ),
        (
            "editMessageText",
            {"chat_id": 1, "message_id": 9, "text": "x"},
            "message to edit not found",
        ),
        (
            "editMessageCaption",
            {"chat_id": 1, "message_id": 1, "caption": "x"},
            "there is no caption",
        ),
        (
            "editMessageText",
            {"chat_id": 2, "message_id": 1, "text": "x"},
            "message to edit not found",
        ),
        (
            "editMessageText",
            {"chat_id": 1, "message_id": 1, "text": "hello"},
            "message is not modified",
        ),
        ("sendPhoto", {"chat_id": 1, "caption": "x" * 1025}, "caption is too long"),
        ("sendMessage", {"chat_id": 1, "text": "x", "disable_web_page_preview": True}, "takes no"),
        ("sendMessage", {"chat_id": "@ada", "text": "x"}, "chat not found"),
        ("answerCallbackQuery", {"callback_query_id": "1", "text": "x" * 201}, "MESSAGE_TOO_LONG"),
    ],
)
def test_call_beyond_the_rules_is_refused(
    platforms: FakePlatforms, method: str, params: dict, refusal: str
):
    """platforms.md 2.3 and 2.4: limits, edits of the bot's own messages, drafts in private chats, known parameters."""
    assert api(platforms, "sendMessage", chat_id=1, text="hello")["message_id"] == 1
    assert refusal in api(platforms, method, **params)
    assert [entry["text"] for entry in platforms.sent] == ["hello"]


KEY = {"text": "Yes", "callback_data": "y"}


@pytest.mark.parametrize(
    ("keyboard", "refusal"),
    [
        ([KEY], "rows must be arrays"),
        (["Yes"], "rows must be arrays"),
        ([["Yes"]], "text must be non-empty"),
        ([[{**KEY, "text": ""}]], "text must be non-empty"),
        ([[{"text": "Yes"}]], "Text buttons are unallowed"),
        ([[{**KEY, "url": "https://e.org"}]], "one action, not ['callback_data', 'url']"),
        ([[{**KEY, "callback_data": ""}]], "BUTTON_DATA_INVALID"),
        ([[{**KEY, "callback_data": "x" * 65}]], "BUTTON_DATA_INVALID"),
        ([[{**KEY, "callback_data": "ü" * 33}]], "BUTTON_DATA_INVALID"),
        ([[{**KEY, "style": "blue"}]], "invalid button style"),
        ([[KEY] * 9], "reply markup is too long"),
        ([[KEY]] * 101, "reply markup is too long"),
        ("Yes", "can't parse inline keyboard"),
    ],
)
def test_invalid_keyboard_is_refused(platforms: FakePlatforms, keyboard: Any, refusal: str):
    """platforms.md 2.3: rows of buttons, one action each, 64 bytes of data; aiogram checks no limit."""
    said = api(
        platforms, "sendMessage", chat_id=1, text="?", reply_markup={"inline_keyboard": keyboard}
    )
    assert refusal in said
    assert platforms.sent == []


def test_keyboard_at_its_limits_is_accepted(platforms: FakePlatforms):
    """platforms.md 2.3: 100 buttons, eight in a row, 64 bytes, and actions that Sayso does not use."""
    keyboard = [[{**KEY, "callback_data": "ü" * 32}] * 8] * 12 + [
        [{"text": "Go", "url": "https://e.org"}]
    ]
    assert api(
        platforms, "sendMessage", chat_id=1, text="?", reply_markup={"inline_keyboard": keyboard}
    )["message_id"]
    assert len(platforms.sent[0]["buttons"]) == 97


@pytest.mark.parametrize(
    ("method", "params", "refusal"),
    [
        ("sendChatAction", {"chat_id": 1, "action": "thinking"}, "wrong parameter action"),
        ("sendChatAction", {"chat_id": "ada", "action": "typing"}, "chat not found"),
        ("sendMessage", {"chat_id": 1, "text": "\N{PARTY POPPER}" * 2049}, "message is too long"),
        ("sendMessage", {"chat_id": 1, "text": " \n"}, "message text is empty"),
        (
            "sendMessage",
            {"chat_id": 1, "text": f"<b>{'x' * 4097}</b>", "parse_mode": "HTML"},
            "message is too long",
        ),
        (
            "sendMediaGroup",
            {"chat_id": 1, "media": [{"type": "photo", "media": "x"}] * 2},
            "Not Found",
        ),
    ],
)
def test_fake_checks_what_aiogram_does_not(
    platforms: FakePlatforms, method: str, params: dict, refusal: str
):
    """platforms.md 2.3: lengths in UTF-16 units after parsing, and known actions; the bot sends no album."""
    assert refusal in api(platforms, method, **params)
    assert platforms.sent == []


def test_fake_counts_the_messages_of_each_chat(platforms: FakePlatforms):
    """platforms.md 2.4: messages and edits count together, each chat separately."""
    for text in ("a", "b"):
        api(platforms, "sendMessage", chat_id=-100, text=text)
    api(platforms, "editMessageText", chat_id=-100, message_id=1, text="c")
    api(platforms, "sendMessage", chat_id=1, text="a")
    fake = platforms.fakes["telegram"]
    assert [fake.busiest(chat, 60) for chat in ("-100", "1", "2")] == [3, 1, 0]


def test_deleted_message_can_be_edited_and_deleted_no_more(platforms: FakePlatforms):
    """A bot that still edits it would fail at Telegram."""
    number = api(platforms, "sendMessage", chat_id=1, text="a")["message_id"]
    message = {"chat_id": 1, "message_id": number}
    assert api(platforms, "deleteMessage", **message) is True
    assert "to edit not found" in api(platforms, "editMessageText", text="b", **message)
    assert "to delete not found" in api(platforms, "deleteMessage", **message)


def test_updates_wait_until_an_offset_confirms_them(platforms: FakePlatforms):
    """platforms.md 2.5: an offset deletes earlier updates; a call without one repeats the oldest."""
    for number in (7, 8, 9):
        platforms.update({"update_id": number, "message": {}})
    assert [each["update_id"] for each in api(platforms, "getUpdates", limit=2)] == [7, 8]
    assert [each["update_id"] for each in api(platforms, "getUpdates", offset=8)] == [8, 9]
    assert api(platforms, "getWebhookInfo")["pending_update_count"] == 2
    assert api(platforms, "getUpdates", offset=10) == []
    assert api(platforms, "getUpdates") == []


def test_unrequested_kinds_of_update_do_not_arrive(platforms: FakePlatforms):
    """platforms.md 2.1: a call without kinds keeps the kinds of the call before."""
    api(platforms, "getUpdates", allowed_updates=["callback_query"])
    platforms.update({"update_id": 1, "message": {}})
    platforms.update({"update_id": 2, "callback_query": {}})
    assert [each["update_id"] for each in api(platforms, "getUpdates")] == [2]


@pytest.mark.parametrize(
    "asked", [{"timeout": 51}, {"limit": 101}, {"limit": 0}, {"allowed_updates": ["messages"]}]
)
def test_invalid_call_for_updates_is_refused(platforms: FakePlatforms, asked: dict):
    """platforms.md 2.5: 50 seconds at most; Telegram itself clamps the number and ignores unknown kinds."""
    assert api(platforms, "getUpdates", **asked).startswith("Bad Request")


def test_updates_go_to_one_webhook_or_to_one_poller(platforms: FakePlatforms):
    """platforms.md 2.5: polling gets 409 while a webhook is set; a second poller ends the first one's call."""
    api(platforms, "setWebhook", url=HOOK)
    assert "while webhook is active" in api(platforms, "getUpdates")
    api(platforms, "deleteWebhook")
    with ThreadPoolExecutor() as pool:
        asked = platforms.telegram.updates._calls
        first = pool.submit(api, platforms, "getUpdates", timeout=50)
        while platforms.telegram.updates._calls == asked:
            pass
        later = pool.submit(api, platforms, "getUpdates", timeout=50)
        assert "terminated by other getUpdates request" in first.result()
        platforms.update({"update_id": 1, "message": {}})
        assert later.result() == [{"update_id": 1, "message": {}}]


@pytest.mark.parametrize(
    "block",
    [
        "x",
        {"type": ["paragraph"], "text": "a"},
        {"type": "paragraph", "text": None},
        {"type": "paragraph", "text": {"type": "email_address", "text": "a", "email_address": 5}},
        {"type": "blockquote", "blocks": [], "credit": {"type": "unknown"}},
        {"type": "table", "cells": None},
        {"type": "table", "cells": [["x"]]},
        {"type": "table", "cells": [], "caption": {"type": "unknown"}},
        {"type": "list", "items": [{"blocks": [], "value": 2, "type": "a"}]},
    ],
)
def test_malformed_part_of_a_rich_message_is_refused(block: Any):
    """The bot gets the answer of the platform, not an error of the fake."""
    with pytest.raises(TelegramRefusal):
        checked_rich_text(json.dumps({"blocks": [block]}))


def test_rich_message_has_a_limit_of_characters():
    """Formatting and the target of a link do not count."""
    link = {"type": "url", "text": "b", "url": "https://example.com/"}
    text = ["a" * 32_767, link]
    checked_rich_text(json.dumps({"blocks": [{"type": "paragraph", "text": text}]}))
    with pytest.raises(TelegramRefusal, match="RICH_MESSAGE_TEXT_TOO_LONG"):
        checked_rich_text(json.dumps({"blocks": [{"type": "paragraph", "text": [*text, "c"]}]}))
