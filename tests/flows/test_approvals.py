"""Payments that other people decide, on real processes: asked on one platform, decided on another."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import expect

from sayso.channels.types import Conversation
from tests.browser.demo import chromium, running_browser
from tests.flows import deaths
from tests.flows.approvers import (
    COOKIE,
    FINANCE,
    SECOND_RELEASE,
    ApprovalSystem,
    ClassicUser,
    ConsoleUser,
    SlackUser,
    TelegramUser,
    TemplateUser,
    WhatsAppUser,
    code_in,
    cookie_of,
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
        # WhatsApp takes any message for a day after a person has written.
        for name in (7003, 7005, 7010):
            person = WhatsAppUser(running, name)
            person.say("hello")
            person.hears()
        yield running


def test_asked_on_whatsapp_and_decided_by_a_tap_in_slack(system: ApprovalSystem) -> None:
    """The tap comes three times. The request then says who decided and when, and has no buttons."""
    asker = WhatsAppUser(system, 1)
    bea = SlackUser(system, 7001)
    asker.say("/pay a1")
    (notice,) = asker.hears()
    assert "I have asked bea: Pay a1" in notice["text"]

    request = request_in(system, bea.chat, "a1")
    assert re.match(r"Ada Test \(.+\) asks for this:", request["text"])
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
    reads(system, FINANCE, "Your answer counts: 1 of 2")
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
    assert seen_by["Your answer counts: 1 of 2 agree so far"] == "U7002"
    assert seen_by["This is decided already"] == "U7003"
    assert system.paid("b1") == 1


def test_asked_in_slack_and_decided_in_words_on_whatsapp(system: ApprovalSystem) -> None:
    """Each approver is told the end by a new message, because WhatsApp edits none."""
    fay, dan = WhatsAppUser(system, 7005), WhatsAppUser(system, 7003)
    asker = SlackUser(system, 3)
    asker.say("/pay c1")
    assert "I have asked fay, dan: Pay c1" in asker.hears()[0]["text"]
    code = code_in(request_in(system, dan.chat, "c1"))

    dan.say("yes")
    reads(system, dan.chat, "You have a request to decide", f"yes {code}")
    assert system.paid("c1") == 0
    dan.say(f"Yes {code.lower()}!")
    assert asker.hears()[0]["text"].startswith("Agreed by dan")
    for person in (fay, dan):
        reads(system, person.chat, "Pay c1", "Agreed by dan")
    assert system.paid("c1") == 1

    fay.say(f"no {code}")
    reads(system, fay.chat, "This is decided already. Agreed by dan")


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


@pytest.mark.skipif(
    chromium() is None and not os.environ.get("CI"),
    reason="no Chromium here: install it, or set CHROMIUM to its path",
)
def test_request_appears_in_the_open_page(system: ApprovalSystem) -> None:
    """After the tap it says who decided, and has no buttons."""
    asker = TelegramUser(system, 12)
    with running_browser() as browser, browser.new_context() as context:
        cookie = {"url": system.url, "name": COOKIE, "value": cookie_of("gil0000001")}
        context.add_cookies([cookie])
        page = context.new_page()
        page.goto(f"{system.url}/console")
        page.wait_for_selector("#state[data-state=live]")
        asker.say("/book e2")
        request = page.locator("#log .bot").last
        expect(request).to_contain_text("Book e2")
        until(system.is_settled)
        request.locator(".buttons .danger").click()
        reads(system, asker.chat, "Agreed by gil", "Booked e2.")
        expect(request).to_contain_text("Agreed by gil")
        expect(request.locator(".buttons")).to_have_count(0)
    assert system.paid("e2", "book") == 1


def test_closed_window_is_opened_by_the_template(system: ApprovalSystem) -> None:
    """The manager has never written. The buttons of the template decide."""
    ida = TemplateUser(system, 7008)
    system.platforms.close("twilio", ida.chat)
    asker = SlackUser(system, 7)
    asker.say("/note f1")
    request = request_in(system, ida.chat, "f1")
    assert request["text"].startswith("A question: ")
    system.platforms.close("twilio", ida.chat, closed=False)
    ida.tap(request["buttons"][0]["data"])
    assert asker.hears(2)[1]["text"].startswith("Agreed by ida")
    assert "Agreed by ida" in reads(system, ida.chat, "f1", "Agreed")
    assert system.paid("f1", "note") == 1


def test_closed_window_without_a_template_passes_to_the_next(system: ApprovalSystem) -> None:
    """One has never written, and the window of the other closes. Then the asker hears it."""
    kay = WhatsAppUser(system, 7010)
    asker = ClassicUser(system, 8)
    asker.say("/pay g1")
    reads(system, asker.chat, "g1", "I have also asked kay")
    request = request_in(system, kay.chat, "g1")
    kay.tap(request["buttons"][0]["data"])
    reads(system, asker.chat, "Agreed by kay", "Paid g1.")

    system.platforms.close("twilio", kay.chat)
    asker.say("/pay g2")
    reads(system, asker.chat, "I cannot reach enough people", "g2")
    asker.say("/note g3")
    reads(system, asker.chat, "I cannot reach enough people", "g3")
    assert [system.paid("g1"), system.paid("g2"), system.paid("g3", "note")] == [1, 0, 0]


def test_decisions_do_not_wait_for_an_asker_whose_window_is_closed(
    system: ApprovalSystem,
) -> None:
    """Both outcomes come once they write again. Meanwhile the second action is decided, too."""
    asker = WhatsAppUser(system, 13)
    bea = SlackUser(system, 7001)
    asker.say("/pay l1")
    asker.say("/pay l2")
    asker.hears(2)
    requests = [request_in(system, bea.chat, bill) for bill in ("l1", "l2")]
    system.let_silence_pass(Conversation("shop-wa", asker.user_id), 25 * 3600)
    for request, bill in zip(requests, ("l1", "l2"), strict=True):
        bea.press(request)
        reads(system, bea.chat, bill, "Agreed by bea", is_settled=False)
        assert system.paid(bill) == 1
    assert asker.hears_nothing_more()
    asker.say("hello")
    for bill in ("l1", "l2"):
        reads(system, asker.chat, "Agreed by bea", f"Paid {bill}.")


def test_both_managers_at_once_pay_once(system: ApprovalSystem) -> None:
    """Two workers get the two taps. The second person is told who decided."""
    fay, dan = WhatsAppUser(system, 7005), WhatsAppUser(system, 7003)
    asker = SlackUser(system, 9)
    asker.say("/pay i1")
    requests = [(each, request_in(system, each.chat, "i1")) for each in (fay, dan)]
    with ThreadPoolExecutor() as pool:
        taps = [
            pool.submit(each.tap, request["buttons"][0]["data"])
            for each, request in requests
            for _ in range(2)
        ]
        for tap in taps:
            tap.result()
    reads(system, asker.chat, "Agreed by", "Paid i1.")
    until(
        lambda: [
            each
            for person in (fay, dan)
            for each in system.ledger(person.chat)
            if each["text"].startswith("This is decided already. Agreed by")
        ]
    )
    assert system.paid("i1") == 1
    assert len([e for e in system.ledger(asker.chat) if "Paid i1." in e["text"]]) == 1


def test_no_url_of_a_request_decides(system: ApprovalSystem) -> None:
    """A link preview fetches every URL that it finds, and its platform the bot's own addresses."""
    asker = TelegramUser(system, 10)
    asker.say("/send https://shop.example/decide?yes=1")
    eva = TelegramUser(system, 7004)
    request = request_in(system, eva.chat, "shop.example")
    urls = re.findall(r"https?://[^\s\"'\\<>]+", json.dumps(request["raw"]))
    datas = [each["data"] for each in request["buttons"]]
    paths = [f"{path}/{data}" for path in ("", "hooks/ops-tg", "hooks/web") for data in datas]
    paths += [url.split("/", 3)[3] for url in urls]
    for path in paths:
        for method in ("GET", "HEAD"):
            answer = system.http.request(method, f"{system.url}/{path}")
            assert answer.status_code in (404, 405), (method, path)
    assert urls
    assert system.paid("https://shop.example/decide?yes=1", "send") == 0
    eva.tap(datas[0])
    reads(system, asker.chat, "Agreed by eva")
    assert system.paid("https://shop.example/decide?yes=1", "send") == 1


def test_workers_die_between_the_tap_and_the_outcome(system: ApprovalSystem) -> None:
    """Each effect takes place at most once, everybody is told the truth, and no request stays open."""
    eva, cem = TelegramUser(system, 7004), TelegramUser(system, 7002)
    stories = []
    for number, (point, tool, place) in enumerate(deaths_of_a_decision(), start=1):
        asker = TelegramUser(system, 100 + number)
        bill = f"k{number}"
        asker.say(f"/{tool} {bill}")
        stories.append((point, tool, bill, asker, eva if tool == "send" else cem, place))
    requests = [request_in(system, each.chat, bill) for _, _, bill, _, each, _ in stories]
    for point, _, _, asker, decider, place in stories:
        person = decider if place == "decider" else asker
        deaths.plan(system.worker_data, Conversation("ops-tg", person.chat).id, point)
    for (_, _, _, _, decider, _), request in zip(stories, requests, strict=True):
        decider.tap(request["buttons"][0]["data"])

    def is_told(asker: TelegramUser, decider: TelegramUser, bill: str) -> bool:
        """Return whether asker and decider know the end of a bill."""
        to_asker = [e for e in system.ledger(asker.chat) if "Agreed by" in e["text"]]
        closed = [e for e in system.ledger(decider.chat) if is_about(e, bill) and not e["buttons"]]
        return len(to_asker) > 1 and bool(closed)

    until(lambda: all(is_told(asker, each, bill) for _, _, bill, asker, each, _ in stories))
    until(system.is_settled)
    # A worker that dies for one story takes the others along that it works on. What such a story
    # has done is not done again, so the point of its own death may never come.
    missed = deaths.planned(system.worker_data)
    assert len(missed) <= len(stories) // 4, missed
    faults = []
    for point, tool, bill, asker, decider, _ in stories:
        times = system.paid(bill, tool)
        told = [e["text"] for e in system.ledger(asker.chat) if "Agreed by" in e["text"]][-1]
        closed = [e["text"] for e in system.ledger(decider.chat) if is_about(e, bill)][-1]
        says_done = re.search(rf"(Sent|Mailed) {bill}\.", told) is not None
        says_unknown = "I cannot tell whether it finished" in told
        knows_unknown = "I cannot tell whether it finished" in closed
        if times > 1 or (says_done and not times) or not (says_done or says_unknown):
            faults.append((point, times, told))
        if says_unknown != knows_unknown or "Agreed by" not in closed:
            faults.append((point, told, closed))
    assert faults == []


def test_redis_stops_after_the_tap(system: ApprovalSystem) -> None:
    """A tap that comes while it is away is sent again by its platform. Each payment is made once."""
    eva = TelegramUser(system, 7004)
    for number, pause in enumerate((0.0, 0.01, 0.03), start=1):
        asker = TelegramUser(system, 150 + number)
        asker.say(f"/send o{number}")
        yes = request_in(system, eva.chat, f"o{number}")["buttons"][0]["data"]
        hook = eva.tapped(eva._next(), yes)
        system.post(*hook)
        time.sleep(pause)  # Redis goes away at another step of the turn
        system.redis.stop()
        assert system.post(*hook).status_code == 503
        system.redis.start()
        until(lambda hook=hook: system.post(*hook).status_code == 200)
        told = reads(system, asker.chat, "Agreed by eva", f"o{number}")
        assert "Agreed by eva" in reads(system, eva.chat, f"o{number}", "Agreed by eva")
        paid = system.paid(f"o{number}", "send")
        assert paid == 1 or "cannot tell whether it finished" in told


def deaths_of_a_decision() -> Iterator[tuple[str, str, str]]:
    """Yield points of death: the point, the tool that is decided, and whose conversation it is in."""
    for script in ("forward_turn", "change", "claim", "start", "finish", "commit"):
        yield f"before {script}", "send", "asker"
        yield f"after {script}", "send", "asker"
    yield "send begun", "send", "asker"
    yield "send done", "send", "asker"
    yield "after delivered", "send", "asker"
    yield "after commit", "mail", "decider"
    yield "before end_question", "mail", "decider"
    yield "after end_question", "mail", "decider"


def test_days_later_a_decision_judges_anew(system: ApprovalSystem) -> None:
    """Meanwhile all processes were stopped, one tool changed, one went, and gil lost his role."""
    asker = TelegramUser(system, 11)
    eva = TelegramUser(system, 7004)
    gil = ConsoleUser(system, "gil0000001")
    for number, tool in enumerate(("ship", "pack", "send", "note"), start=1):
        asker.say(f"/{tool} h{number}")
    assert "They have 72 hours." in reads(system, asker.chat, "h4", "I have asked")
    buttons = [request_in(system, eva.chat, f"h{number}")["buttons"] for number in (1, 2, 3)]
    until(lambda: "h4" in gil.page())
    (gils,) = [each for each in gil.bubbles() if "h4" in each["html"]]

    system.stop_all()
    roles = {
        "roles: [auditor]": "roles: [clerk]",
        "roles: [manager]": "roles: [manager, auditor]",
    }
    system.release(SECOND_RELEASE, roles)
    system.start_all()
    for yes, _ in buttons:
        eva.tap(yes["data"])
    gil.tap(gils["buttons"][0]["data"], "gil2")
    until(lambda: "You may not decide this." in gil.page())
    reads(system, asker.chat, "Sent h3.")
    for bill, why in (("h1", "This has changed"), ("h2", "I could not safely confirm this")):
        reads(system, asker.chat, f"{why}", bill)
        reads(system, eva.chat, bill, "Agreed by eva", "something has changed since the request")
    assert [system.paid("h1", "ship"), system.paid("h2", "pack"), system.paid("h3", "send")] == [
        0,
        0,
        1,
    ]
    assert system.paid("h4", "note") == 0
