"""The console page in a real browser: skipped where there is no chromium."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FilePayload, Page, Route, expect, sync_playwright
from werkzeug.serving import make_server

from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.storage.media import LocalMediaStore
from sayso.channels.types import Button, Delivery, Reply, Turn
from sayso.pending.concurrency import run_sync

from .echo import EchoApp

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
#: Seconds that a page may take to show something; Playwright's own five are few beside other tests.
PATIENCE = 30.0
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run")
expect.set_options(timeout=PATIENCE * 1000)
#: One red pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100"
    "18dd8db00000000049454e44ae426082"
)


@pytest.fixture
def address(echo: EchoApp, media: LocalMediaStore):
    """The echo app on a real port, with a bot that asks, and that shows a picture after a yes."""

    def reply(turn: Turn) -> Reply:
        if turn.tap:
            return Reply("Here it is", media=media.put(PNG, mime_type="image/png", filename="dot.png"))
        buttons = (Button("Confirm", "c:1", "danger", "Draw *a dot*"), Button("Cancel", "x:1"))
        return Reply(f"Draw **{turn.text}**?", buttons, answer_seconds=60)

    echo.reply = reply
    server = make_server("127.0.0.1", 0, echo.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    thread.join()


@pytest.fixture(scope="module")
def chromium():
    """One browser for all tests here: starting it takes longer than any of them."""
    if not Path(CHROMIUM).exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            f"no chromium at {CHROMIUM!r}: install it or set CHROMIUM"
        )
    with sync_playwright() as session:
        browser = session.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser, address: str):
    """The console, open on a phone nobody has used before. It may complain of nothing but answers a test withheld."""
    complaints: list[str] = []
    with chromium.new_context(viewport={"width": 390, "height": 844}) as phone:
        page = phone.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{address}/console")
        page.wait_for_selector("#state[data-state=live]")
        yield page
    assert [complaint for complaint in complaints if "Failed to load resource" not in complaint] == []


def upload(name: str, data: bytes) -> FilePayload:
    """A file as somebody picks it."""
    return {"name": name, "mimeType": "image/png" if data is PNG else "text/html", "buffer": data}


def ask(page: Page) -> None:
    """Say something; wait for the question."""
    page.fill("#text", "<i>a dot</i>")
    page.keyboard.press("Enter")
    page.wait_for_selector(".bot .buttons")


def test_a_question_is_answered_once(page: Page):
    """Words go out as they are, a tap closes both buttons, the picture shows."""
    ask(page)
    assert page.inner_text(".user .bubble") == "<i>a dot</i>"
    page.click("text=Draw a dot")
    expect(page.locator("figure img")).to_have_js_property("naturalWidth", 1)
    expect(page.locator(".buttons button:disabled")).to_have_count(2)
    expect(page.locator(".buttons .chosen")).to_contain_text("Draw a dot")


def test_a_reload_shows_the_same_conversation(page: Page):
    """Nothing is lost, nothing doubles, and the chosen button stays chosen."""
    ask(page)
    page.click("text=Cancel")
    for _ in range(2):
        page.wait_for_selector("figure")
        expect(page.locator("#log article")).to_have_count(3)
        expect(page.locator(".buttons .chosen")).to_contain_text("Cancel")
        page.reload()


def test_a_send_whose_answer_was_lost_is_not_doubled(page: Page, echo: EchoApp):
    """The page tries again by itself, with the same id."""
    lost: list[str] = []

    def lose_first(route: Route) -> None:
        if lost:
            return route.continue_()
        lost.append(route.request.post_data)
        route.fetch()
        return route.abort()

    page.route("**/hooks/web", lose_first)
    ask(page)
    expect(page.locator(".sending")).to_have_count(0)
    assert {turn.event_id for turn in echo.turns} == {echo.turns[0].event_id}
    assert page.locator(".user").count() == 1


def test_a_turn_attended_to_twice_leaves_its_question_open(page: Page, echo: EchoApp, channel: ConsoleChannel):
    """A worker that starts over says everything again; the page shows it once and can still be answered."""
    ask(page)
    (turn,) = echo.turns
    said = [entry for _, entry in channel.feed.read(turn.conversation.id, "", 0)]
    for entry in [*said, {**said[-1], "delivery": "last", "html": "That was all", "buttons": []}]:
        channel.feed.append(turn.conversation.id, entry)
    page.wait_for_selector("text=That was all")
    assert page.locator("#log article").count() == 3
    assert page.locator(".buttons button:enabled").count() == 2


def test_an_edit_changes_the_bubble_and_takes_its_buttons(page: Page, echo: EchoApp, channel: ConsoleChannel):
    """Live and after a reload, from the stream as from polls."""
    ask(page)
    page.click("text=Cancel")
    page.wait_for_selector("figure")
    assert echo.turns[-1].message_id == page.locator(".buttons button").first.get_attribute("data-message")
    answer = Reply("Draw a dot? **Cancelled.**", edits=echo.turns[-1].message_id, optional=True)
    run_sync(channel.send(Delivery("later", echo.turns[-1].conversation, answer)))
    expect(page.locator(".bot .text").first).to_have_text("Draw a dot? Cancelled.")
    expect(page.locator(".buttons")).to_have_count(0)
    page.route("**/console/web/events*", lambda route: route.fulfill(status=503, body=""))
    page.reload()
    expect(page.locator(".bot .text").first).to_have_text("Draw a dot? Cancelled.")
    expect(page.locator("#log article")).to_have_count(3)
    expect(page.locator(".buttons")).to_have_count(0)


def test_a_draft_grows_and_makes_room_for_the_answer(page: Page, echo: EchoApp, channel: ConsoleChannel):
    """One bubble that says more and more, and nothing of it once the answer is there."""
    ask(page)
    (turn,) = echo.turns
    shown = run_sync(channel.draft(turn, "The *ans"))
    expect(page.locator(".draft")).to_have_text("The *ans")
    shown = run_sync(channel.draft(turn, "The *answer* gro", shown))
    expect(page.locator(".draft")).to_have_text("The answer gro")
    run_sync(channel.send(Delivery("last", turn.conversation, Reply("The *answer*.", edits=shown))))
    expect(page.locator(".bot .text").last).to_have_text("The answer.")
    expect(page.locator(".draft")).to_have_count(0)
    expect(page.locator("#log article")).to_have_count(3)


def test_a_picture_is_sent_with_its_caption_and_stays(page: Page, echo: EchoApp, media: LocalMediaStore):
    """Picked, one of two taken out again, sent by Enter; what the bot does not take comes back and nothing was said."""
    page.set_input_files("#picker", [upload("dot.png", PNG), upload("bad.html", b"<script>")])
    page.fill("#text", "look")
    page.keyboard.press("Enter")
    expect(page.locator("#notice")).to_contain_text("bad.html: the bot does not accept this file")
    assert (echo.turns, page.input_value("#text"), page.locator(".chip").count()) == ([], "look", 1)
    page.set_input_files("#picker", [upload("other.png", PNG)])
    page.get_by_role("button", name="Remove other.png").click()
    page.keyboard.press("Enter")
    page.wait_for_selector(".bot .buttons")
    (turn,) = echo.turns
    assert (turn.text, [media.read(file.ref) for file in turn.media]) == ("look", [PNG])
    for _ in range(2):
        expect(page.locator(".user figure img")).to_have_js_property("naturalWidth", 1)
        expect(page.locator(".user .words")).to_have_text("look")
        page.reload()


def test_who_reads_above_stays_there(page: Page, channel: ConsoleChannel, echo: EchoApp):
    """Whatever comes in below; one button leads to it, and from there on the page follows again."""
    ask(page)
    here, end = echo.turns[0].conversation, "main => main.scrollHeight - main.scrollTop - main.clientHeight"
    run_sync(channel.send(Delivery("d1", here, Reply("line\n\n" * 60))))
    main, newest = page.locator("main"), page.get_by_role("button", name="Go to the newest message")
    page.wait_for_function("() => document.querySelector('main').scrollTop > 0")
    main.evaluate("main => { main.scrollTop = 0; }")
    expect(newest).to_be_visible()
    run_sync(channel.send(Delivery("d2", here, Reply("the last one"))))
    expect(page.locator("article.bot")).to_have_count(3)
    assert main.evaluate("main => main.scrollTop") == 0
    newest.click()
    expect(newest).to_be_hidden()
    assert main.evaluate(end) < 2


def test_a_refused_stream_falls_back_to_polling(page: Page):
    """Where streams are taken or cut, the conversation still comes."""
    page.route("**/console/web/events*", lambda route: route.fulfill(status=503, body=""))
    page.reload()
    expect(page.locator("#state")).to_have_text("polling")
    ask(page)


def test_a_busy_bot_is_told_and_tried_again_when_tapped(page: Page, echo: EchoApp):
    """Nothing is lost: the same message goes out once more, at the latest when the user asks for it."""
    page.route("**/hooks/web", lambda route: route.fulfill(status=503, body=""))
    page.fill("#text", "hello")
    page.keyboard.press("Enter")
    retry = page.locator(".retry")
    expect(retry).to_have_text("The bot is busy. The message will be sent again shortly; tap to send it now.")
    page.unroute_all()
    retry.click()
    page.wait_for_selector(".bot .buttons")
    assert (retry.count(), len(echo.turns)) == (0, 1)


def test_what_was_not_sent_is_sent_by_itself_in_order(page: Page, echo: EchoApp):
    """Once the connection is back, without a tap, each message once and in the order in which it was written."""
    page.context.set_offline(True)
    for words in ("one", "two"):
        page.fill("#text", words)
        page.keyboard.press("Enter")
    expect(page.locator(".retry")).to_have_count(2)
    assert echo.turns == []
    page.context.set_offline(False)
    expect(page.locator("article.bot")).to_have_count(2)
    assert [turn.text for turn in echo.turns] == ["one", "two"]
    expect(page.locator(".retry")).to_have_count(0)


def test_a_message_waits_visibly_until_a_worker_answers(page: Page, echo: EchoApp, channel: ConsoleChannel):
    """Sent at once, dots and Stop until the answer, the cause after a while, and all of it again after a reload."""
    echo.holds = True
    page.fill("#text", "hello")
    page.keyboard.press("Enter")
    sign, dots, stop = page.locator(".user .sign"), page.locator("#typing"), page.get_by_role("button", name="Stop")
    for _ in range(2):
        expect(sign).to_have_text("Sent ✓")
        expect(dots).to_be_visible()
        expect(stop).to_be_visible()
        expect(page.locator("#why")).to_have_text("Still waiting. No worker is running.")
        page.reload()
    expect(page.locator(".user .words")).to_have_text("hello")
    stop.click()
    expect(page.locator(".user")).to_have_count(2)
    expect(sign.last).to_have_text("Sent ✓")
    assert [turn.text for turn in echo.turns] == ["hello", "/stop"]
    echo.release(channel)
    expect(dots).to_be_hidden()
    expect(page.locator("#why")).to_be_empty()
    expect(sign.last).to_have_attribute("aria-label", "Read")
    assert page.locator(".user").count() == 2


def test_an_open_question_counts_down_and_ends(page: Page, echo: EchoApp, channel: ConsoleChannel):
    """The buttons say what they do, in red what changes something, for as long as an answer counts."""
    ask(page)
    confirm, cancel = page.get_by_role("button", name="Draw a dot"), page.get_by_role("button", name="Cancel")
    red, *_ = confirm.evaluate("button => getComputedStyle(button).backgroundColor.match(/\\d+/g).map(Number)")
    assert red > 150
    assert cancel.evaluate("button => getComputedStyle(button).color") == page.evaluate(
        "getComputedStyle(document.body).color"
    )
    expect(page.locator(".left")).to_have_text(re.compile("0:[0-5]\\d left"))
    question = Reply("Now?", (Button("Confirm", "c:2", "danger"), Button("Cancel", "x:2")), answer_seconds=1)
    run_sync(channel.send(Delivery("short", echo.turns[0].conversation, question)))
    expect(page.locator(".left").last).to_have_text("Time is up")
    expect(page.locator(".buttons").last.locator("button:enabled")).to_have_count(0)


def test_after_a_decision_by_keyboard_one_goes_on_typing(page: Page):
    """The focus is not lost with the button, and Tab and Enter decide."""
    ask(page)
    page.get_by_role("button", name="Cancel").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("figure")
    expect(page.locator("#text")).to_be_focused()


def test_an_answer_is_copied_and_words_come_back_with_arrow_up(page: Page, address: str):
    """Copy gives the Markdown that the bot wrote; arrows walk through what was said."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    for words in ("first", "second"):
        page.fill("#text", words)
        page.keyboard.press("Enter")
    expect(page.locator("article.bot")).to_have_count(2)
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "Draw **first**?"
    page.focus("#text")
    recalled = []
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
        recalled.append(page.input_value("#text"))
    assert recalled == ["second", "first", "first", "second", ""]
    page.fill("#text", "being written")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#text") == "being written"


def test_a_new_chat_empties_the_page_for_good(page: Page, echo: EchoApp):
    """The bot forgets, the page too, also after a reload; a single tap does nothing yet."""
    ask(page)
    fresh = page.get_by_role("button", name="New chat")
    fresh.click()
    assert len(echo.turns) == 1
    page.get_by_role("button", name="Forget this chat?").click()
    for _ in range(2):
        expect(page.locator(".user")).to_have_count(0)
        expect(page.locator("article.bot")).to_have_count(1)
        page.reload()
    assert echo.turns[-1].text == "/reset"


def test_suggestions_make_room_once_somebody_speaks(page: Page, echo: EchoApp):
    """They are open on an empty page, then behind one button."""
    idea, more = page.get_by_role("button", name="list invoices"), page.get_by_role("button", name="Suggestions")
    expect(idea).to_be_visible()
    idea.click()
    page.wait_for_selector(".bot .buttons")
    expect(idea).to_be_hidden()
    more.click()
    expect(idea).to_be_visible()
    assert (more.get_attribute("aria-expanded"), echo.turns[0].text) == ("true", "list invoices")


def test_the_root_leads_to_the_console(page: Page, address: str):
    """On a laptop one types the address and is there."""
    page.goto(address)
    assert page.url == f"{address}/console"


def test_a_late_yes_says_what_had_been_seen_when_it_was_written(page: Page, echo: EchoApp, channel: ConsoleChannel):
    """A question that came meanwhile was not meant: the turn is dated before it."""
    ask(page)
    page.context.set_offline(True)
    page.fill("#text", "yes")
    page.keyboard.press("Enter")
    expect(page.locator(".retry")).to_be_visible()
    receipt = run_sync(channel.send(Delivery("meanwhile", echo.turns[0].conversation, Reply("Another question?"))))
    page.context.set_offline(False)
    expect(page.locator("article.bot").last).to_contain_text("Draw yes?")
    assert (echo.turns[-1].text, 0 < echo.turns[-1].written_at < receipt.written_at) == ("yes", True)
