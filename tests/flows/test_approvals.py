"""Payments that other people decide, on real processes: asked on one platform, decided on another."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.approvers import (
    FINANCE,
    ApprovalSystem,
    ClassicUser,
    ConsoleUser,
    SlackUser,
    TelegramUser,
    WhatsAppUser,
    code_in,
    is_about,
    reads,
    request_in,
)
from tests.flows.system import until


@pytest.fixture(scope="module")
def system() -> Iterator[ApprovalSystem]:
    """Run one system for all stories. Each has a bill of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-app-") as folder,
        ApprovalSystem(Path(folder)) as running,
    ):
        yield running


def test_asked_on_whatsapp_and_decided_by_a_tap_in_slack(system: ApprovalSystem) -> None:
    """The tap comes three times. The request then says who decided and when, and has no buttons."""
    asker = WhatsAppUser(system, 1)
    bea = SlackUser(system, 7001)
    asker.say("/pay a1")
    (notice,) = asker.hears()
    assert "I have asked bea: Pay a1" in notice["text"]

    request = request_in(system, bea.chat, "a1")
    assert request["text"].startswith("Ada Test asks for this:")
    assert [each["label"] for each in request["buttons"]] == ["Yes", "No"]
    bea.press(request, times=3)
    (outcome,) = asker.hears()
    assert re.fullmatch(
        r"Agreed by bea, \d{4}-\d\d-\d\d \d\d:\d\d UTC\n\nPaid a1\.", outcome["text"]
    )
    (closed,) = [each for each in system.ledger(bea.chat) if is_about(each, "a1")]
    assert re.search(r"Agreed by bea, [-\d]+ [:\d]+ UTC", closed["text"])
    assert closed["buttons"] == []
    assert system.paid("a1") == 1
    assert asker.hears_nothing_more()


def test_two_of_three_in_a_slack_channel(system: ApprovalSystem) -> None:
    """A stranger's click and a second account of the same person count nothing."""
    asker = TelegramUser(system, 2)
    asker.say("/pay b1")
    assert "2 of them must agree" in asker.hears()[0]["text"]
    request = request_in(system, FINANCE, "b1")

    SlackUser(system, 7001).press(request)
    reads(system, FINANCE, "You may not decide this.")
    SlackUser(system, 7002).press(request)
    assert reads(system, FINANCE, "b1", "1 of 2").startswith("cem has answered")
    SlackUser(system, 7002).press(request)
    until(lambda: len([e for e in system.ledger(FINANCE) if "1 of 2" in e["text"]]) == 2)
    until(system.is_settled)
    assert system.paid("b1") == 0

    SlackUser(system, 7004).press(request)
    assert asker.hears()[0]["text"].startswith("Agreed by cem, eva")
    SlackUser(system, 7003).press(request)
    reads(system, FINANCE, "decided already", "cem, eva")
    seen_by = {
        each["text"].split(".")[0]: each["raw"].get("user", "all")
        for each in system.ledger(FINANCE)
    }
    assert seen_by["You may not decide this"] == "U7001"
    assert seen_by["This is decided already"] == "U7003"
    assert system.paid("b1") == 1


def test_asked_in_slack_and_decided_in_words_on_whatsapp(system: ApprovalSystem) -> None:
    """Each approver is told the end by a new message, because WhatsApp edits none."""
    fay, dan = WhatsAppUser(system, 7005), WhatsAppUser(system, 7003)
    for person in (fay, dan):
        person.say("hello")
        person.hears()
    asker = SlackUser(system, 3)
    asker.say("/pay c1")
    assert "I have asked fay, dan: Pay c1" in asker.hears()[0]["text"]
    (to_dan,) = dan.hears()
    fay.hears()

    dan.say("yes")
    assert f"yes {code_in(to_dan)}" in dan.hears()[0]["text"]
    assert system.paid("c1") == 0
    dan.say(f"Yes {code_in(to_dan).lower()}!")
    assert asker.hears()[0]["text"].startswith("Agreed by dan")
    for person in (fay, dan):
        assert "Agreed by dan" in person.hears()[0]["text"]
    assert system.paid("c1") == 1

    fay.say(f"no {code_in(to_dan)}")
    assert fay.hears()[0]["text"].startswith("This is decided already. Agreed by dan")


def test_decided_by_a_reply_to_the_request(system: ApprovalSystem) -> None:
    """A reply on Telegram and WhatsApp, and a message in the thread of the request in Slack."""
    cem = TelegramUser(system, 7002)
    asker = SlackUser(system, 4)
    asker.say("/book d1")
    cem.quote(request_in(system, cem.chat, "d1"), "no")
    assert asker.hears(2)[1]["text"].startswith("cem said no")
    reads(system, cem.chat, "d1", "Refused by cem")

    dan = WhatsAppUser(system, 7003)
    asker.say("/pay d2")
    dan.quote(request_in(system, dan.chat, "d2"), "yes")
    assert asker.hears(2)[1]["text"].startswith("Agreed by dan")

    shopper = WhatsAppUser(system, 5)
    for user, tool, bill in (
        (SlackUser(system, 7001), "pay", "d3"),
        (ClassicUser(system, 7006), "book", "d4"),
    ):
        shopper.say(f"/{tool} {bill}")
        request = request_in(system, user.chat, bill)
        user.message("yes", thread=f"1795204700.{request['number']:06}")
        until(lambda tool=tool, bill=bill: system.paid(bill, tool) == 1)
        reads(system, user.chat, bill, "Agreed by")
        assert "Agreed by" in shopper.hears(2)[1]["text"]


def test_decided_in_the_console(system: ApprovalSystem) -> None:
    """The request is in the chat of the person who may decide, and its buttons work."""
    gil = ConsoleUser(system, "gil0000001")
    asker = TelegramUser(system, 6)
    asker.say("/book e1")
    asker.hears()
    (request,) = until(gil.bubbles)
    assert "e1" in request["html"]
    until(system.is_settled)
    gil.tap(request["buttons"][0]["data"], "gil1")
    assert asker.hears()[0]["text"].startswith("Agreed by gil")
    until(lambda: "Agreed by gil" in gil.page())
    assert system.paid("e1", "book") == 1
