"""WhatsApp's 24-hour window: after it an approved template goes out, or the reply is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Thread
from typing import Any

import pytest

from sayso.channels.base import AddressClosed, WindowClosed
from sayso.channels.types import (
    Button,
    Conversation,
    Delivery,
    Receipt,
    Received,
    Reply,
    WebhookRequest,
)
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.twilio import CONFIRM_TEMPLATE, TEMPLATE
from tests.channels.harness import IMAGE, PDF, MemoryMedia, whatsapp

CHAT = Conversation("wa", "whatsapp:+4915100000042")
DAY = 24 * 3600.0
QUESTION = Reply(
    "Delete *3 files*?\n\n- a\n- b\n\nReply yes or no.",
    (Button("Yes", "a:1:yes", "danger"), Button("No", "a:1:no")),
)
BOTH = {"template": TEMPLATE, "confirm_template": CONFIRM_TEMPLATE}


@pytest.fixture(autouse=True)
def closed(platforms: FakePlatforms) -> Iterator[None]:
    """Close the window of the chat at the fake."""
    platforms.fakes["twilio"].closed.add(CHAT.chat)
    yield
    platforms.fakes["twilio"].closed.clear()


def send(
    media: MemoryMedia,
    platforms: FakePlatforms,
    reply: Reply,
    silence: float = DAY,
    **settings: Any,
) -> Receipt:
    """Send one piece after this many seconds without a message from the user."""
    channel = whatsapp(media, platforms.twilio_url, **settings)
    return asyncio.run(channel.send(Delivery(f"{CHAT.id}#1", CHAT, reply, silence=silence)))


@pytest.mark.parametrize("silence", [DAY, DAY - 30, DAY + 1, float("inf")])
@pytest.mark.parametrize(
    "reply", [Reply("x"), QUESTION, Reply(media=PDF), Reply("x", media=IMAGE)], ids=repr
)
def test_free_text_is_not_sent_after_the_window(
    media: MemoryMedia, platforms: FakePlatforms, reply: Reply, silence: float
):
    """platforms.md 1.3, pains.md 5: Twilio would accept it, and report 63016 later."""
    with pytest.raises(WindowClosed):
        send(media, platforms, reply, silence)
    assert platforms.sent == platforms.calls == []


@pytest.mark.parametrize("silence", [-1.0, 0.0, DAY - 61])
def test_open_window_or_unknown_silence_sends_free_text(
    media: MemoryMedia, platforms: FakePlatforms, silence: float
):
    """A template costs money and says less, so it is for a closed window only."""
    platforms.fakes["twilio"].closed.clear()
    send(media, platforms, QUESTION, silence, **BOTH)
    assert platforms.sent[0]["raw"]["ContentSid"] not in (TEMPLATE, CONFIRM_TEMPLATE)


def test_text_goes_out_as_the_template(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.3: ContentSid and ContentVariables without Body; no variable contains a line end."""
    send(media, platforms, Reply("**Done**\n\n- a\n- b\t c     d"), **BOTH)
    raw = platforms.sent[0]["raw"]
    assert (raw["ContentSid"], "Body" in raw) == (TEMPLATE, False)
    assert json.loads(raw["ContentVariables"]) == {"1": "*Done* • a • b c d"}


def test_message_within_the_window_is_a_service_message(
    media: MemoryMedia, platforms: FakePlatforms
):
    """Meta charges for it since October 2026, with buttons or without."""
    platforms.fakes["twilio"].closed.clear()
    for reply in (Reply("Done"), QUESTION, Reply("See", media=IMAGE)):
        assert send(media, platforms, reply, 0.0).price_class == "service"


@pytest.mark.parametrize(
    "templates", [{TEMPLATE: ("news", "approved")}, {}], ids=["approved", "unknown to Twilio"]
)
def test_template_is_charged_by_its_category(
    media: MemoryMedia, platforms: FakePlatforms, monkeypatch, templates
):
    """Twilio is asked once for many messages. The message goes out whatever the answer is."""
    setup = platforms.fakes["twilio"].setup
    asked = []
    answer = setup.answer
    monkeypatch.setattr(setup, "templates", templates)
    monkeypatch.setattr(setup, "answer", lambda call: asked.append(call.route) or answer(call))
    channel = whatsapp(media, platforms.twilio_url, **BOTH)

    async def send_two() -> list[str]:
        deliveries = [Delivery(name, CHAT, Reply("Done"), silence=DAY) for name in ("d1", "d2")]
        return [(await channel.send(each)).price_class for each in deliveries]

    category = "utility" if templates else "template"
    assert asyncio.run(send_two()) == [category, category]
    assert (asked, len(platforms.sent)) == ([f"/v1/Content/{TEMPLATE}/ApprovalRequests"], 2)


def test_question_that_can_be_changed_goes_out_with_the_two_buttons_of_the_template(
    media: MemoryMedia, platforms: FakePlatforms
):
    """An approved template has no third one. The word on it, typed, does the same."""
    change = Button("Change", "a:1:change")
    send(media, platforms, replace(QUESTION, buttons=(*QUESTION.buttons, change)), **BOTH)
    assert [button["data"] for button in platforms.sent[0]["buttons"]] == ["a:1:yes", "a:1:no"]


def test_question_goes_out_as_its_template(media: MemoryMedia, platforms: FakePlatforms):
    """A confirm request reaches a closed window, and a tap returns exactly our data."""
    send(media, platforms, QUESTION, **BOTH)
    assert platforms.sent[0]["raw"]["ContentSid"] == CONFIRM_TEMPLATE
    assert [button["data"] for button in platforms.sent[0]["buttons"]] == ["a:1:yes", "a:1:no"]
    assert "Delete _3 files_? • a • b Reply yes or no." in platforms.sent[0]["text"]


@pytest.mark.parametrize(
    "buttons",
    [
        (Button("No", "n"), Button("Yes", "y", "danger")),
        (Button("Berlin", "1"), Button("Munich", "2")),
        (Button("No", "n"),),
    ],
)
def test_other_buttons_are_never_labelled_confirm_and_cancel(
    media: MemoryMedia, platforms: FakePlatforms, buttons: tuple[Button, ...]
):
    """The labels of the template are fixed, so its Confirm must stand for our confirm button alone."""
    send(media, platforms, Reply("Which? Berlin or Munich", buttons), **BOTH)
    assert (platforms.sent[0]["raw"]["ContentSid"], platforms.sent[0]["buttons"]) == (TEMPLATE, [])


def test_question_without_its_template_goes_out_as_text(
    media: MemoryMedia, platforms: FakePlatforms
):
    """The text says what to type, and a typed answer opens the window."""
    send(media, platforms, QUESTION, template=TEMPLATE)
    assert platforms.sent[0]["raw"]["ContentSid"] == TEMPLATE


@pytest.mark.parametrize(
    "reply", [Reply("x" * 1025), Reply("x" * 1025, QUESTION.buttons), Reply(media=IMAGE)]
)
def test_reply_that_fits_no_template_waits(
    media: MemoryMedia, platforms: FakePlatforms, reply: Reply
):
    """The reply is not cut; it arrives whole once the user writes."""
    with pytest.raises(WindowClosed):
        send(media, platforms, reply, **BOTH)
    assert platforms.sent == []


def test_text_of_the_maximum_length_fits_the_template(media: MemoryMedia, platforms: FakePlatforms):
    """The limit is 1,024 characters after lines are joined."""
    send(media, platforms, Reply("x" * 1023 + "\n\n"), **BOTH)
    assert len(platforms.sent) == 1


def test_confirm_template_is_used_for_questions_only(media: MemoryMedia, platforms: FakePlatforms):
    """Another reply waits, since the template asks for a yes."""
    with pytest.raises(WindowClosed):
        send(media, platforms, Reply("x"), confirm_template=CONFIRM_TEMPLATE)
    send(media, platforms, QUESTION, confirm_template=CONFIRM_TEMPLATE)
    assert len(platforms.sent) == 1


@pytest.mark.parametrize("code", ["63021", "21655", "63028", "92005", "21617", "63049"])
def test_refused_template_keeps_the_reply(media: MemoryMedia, platforms: FakePlatforms, code: str):
    """platforms.md 1.4: free text would be refused as well, so the reply waits and the error names the code."""
    platforms.script("twilio", code)
    with pytest.raises(WindowClosed, match=code):
        send(media, platforms, Reply("x"), **BOTH)


def test_closed_address_is_closed_for_templates_too(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.4: a user who opted out gets no template either."""
    platforms.script("twilio", "21610")
    with pytest.raises(AddressClosed):
        send(media, platforms, Reply("x"), **BOTH)


def reported(media: MemoryMedia, platforms: FakePlatforms, **options: Any) -> Received:
    """Send a reply, and return what the adapter makes of the report that the fake calls back with."""
    heard: Queue[tuple[dict[str, str], bytes]] = Queue()

    class Web(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            heard.put(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Web) as web:
        Thread(target=web.serve_forever, args=(0.02,), daemon=True).start()
        public_url = f"http://127.0.0.1:{web.server_address[1]}"
        send(media, platforms, Reply("x"), public_url=public_url, **options)
        headers, body = heard.get(timeout=30)
        web.shutdown()
    url = platforms.calls[-1]["params"]["StatusCallback"]
    return whatsapp(media, None).receive(WebhookRequest(url, headers, body, path="status"))


def test_fake_accepts_free_text_and_reports_the_failure_later(
    media: MemoryMedia,
    platforms: FakePlatforms,
):
    """platforms.md 1.3: a 201 does not depend on the window.

    63016 comes by status callback, as a failed status.
    """
    received = reported(media, platforms, silence=-1.0)
    assert [(status.status, status.error_code) for status in received.statuses] == [
        ("failed", "63016")
    ]
    assert (platforms.sent, received.addresses, received.alerts) == ([], (), ())


def test_template_that_meta_pauses_is_named_by_the_report(
    media: MemoryMedia,
    platforms: FakePlatforms,
):
    """Twilio takes the message, and its report of the failure names no template.

    The URL of the callback does.
    """
    platforms.fail("twilio", CHAT.chat, "63041")
    received = reported(media, platforms, **BOTH)
    (refusal,) = received.refused_templates
    assert (refusal.template, "63041" in refusal.reason) == (TEMPLATE, True)
    assert received.statuses[0].template == TEMPLATE
    assert received.addresses == ()


def test_opt_out_is_reported_for_a_template(media: MemoryMedia, platforms: FakePlatforms):
    """The person is not to get another one."""
    platforms.fail("twilio", CHAT.chat, "63050")
    (change,) = reported(media, platforms, **BOTH).addresses
    assert (change.opted_out, change.conversation) == (True, CHAT)
