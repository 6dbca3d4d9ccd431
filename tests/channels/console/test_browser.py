"""The console page in a real browser. Skipped where there is no chromium."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FilePayload, Page, Route, expect, sync_playwright
from werkzeug.serving import make_server

from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.edit_form import EditForm, FormField
from sayso.channels.media_store import LocalMediaStore
from sayso.channels.types import Button, Conversation, Delivery, Reply, Tap, ToolStep, Turn
from sayso.infra.concurrency import run_sync
from sayso.pending.web_forms import WebForms
from sayso.workers.replies import replace_draft
from tests.channels.parts import console_channel

from .echo import KEYS, EchoApp, HangingFeed

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
#: Seconds that the page may take to show something; Playwright's default of five is too short on a busy machine.
PATIENCE = 30.0
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-sync",
    "--no-first-run",
)
expect.set_options(timeout=PATIENCE * 1000)
#: Where the article `first` is in the window, in pixels.
FIRST_TOP = "window.first.offsetTop - document.querySelector('main').scrollTop"
#: One red pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100"
    "18dd8db00000000049454e44ae426082"
)


@pytest.fixture
def address(echo: EchoApp, media: LocalMediaStore):
    """Yield the address of the echo app. Its bot asks a question, and shows a picture after a tap."""

    def reply(turn: Turn) -> Reply:
        if turn.tap:
            return Reply(
                "Here it is", media=media.put(PNG, mime_type="image/png", filename="dot.png")
            )
        buttons = (Button("Yes", "c:1", "danger", "Draw *a dot*"), Button("No", "x:1"))
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
    """Yield one browser for all tests here: starting it takes longer than any of them."""
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
    """Yield the console, open on a new phone. The page may log no error except for an answer that the test blocks."""
    complaints: list[str] = []
    with chromium.new_context(viewport={"width": 390, "height": 844}) as phone:
        page = phone.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{address}/console")
        page.wait_for_selector("#state[data-state=live]")
        yield page
    assert [
        complaint for complaint in complaints if "Failed to load resource" not in complaint
    ] == []


def test_log_in_page_logs_no_error_in_a_dark_browser(chromium: Browser, media: LocalMediaStore):
    """It asks for nothing that is not there, such as an icon, and fits a phone."""
    locked = console_channel("web", feed=HangingFeed(), media=media, keys=KEYS, password="sesame ü")
    server = make_server("127.0.0.1", 0, EchoApp(locked, media=media).app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    complaints: list[str] = []
    with chromium.new_context(viewport={"width": 320, "height": 640}, color_scheme="dark") as phone:
        page = phone.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(f"http://127.0.0.1:{server.port}/console")
        expect(page.locator("#password")).to_be_focused()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", background)[:3])) < 64
    server.shutdown()
    assert complaints == []


def upload(name: str, data: bytes) -> FilePayload:
    """Return a file as a file picker gives it."""
    return {"name": name, "mimeType": "image/png" if data is PNG else "text/html", "buffer": data}


def _id_of(channel: ConsoleChannel, here: Conversation, delivery: str) -> str:
    """Return the id of the message that a delivery became."""
    entries = channel.feed.read(here.id, "", 0)
    return next(entry_id for entry_id, entry in entries if entry.get("delivery") == delivery)


def ask(page: Page) -> None:
    """Send a message and wait for the question."""
    page.fill("#text", "<i>a dot</i>")
    page.keyboard.press("Enter")
    page.wait_for_selector(".bot .buttons")


def test_question_is_answered_once(page: Page):
    """Text goes out unchanged, a tap disables both buttons, and the picture is shown."""
    ask(page)
    assert page.inner_text(".user .bubble") == "<i>a dot</i>"
    page.click("text=Draw a dot")
    expect(page.locator("figure img")).to_have_js_property("naturalWidth", 1)
    expect(page.locator(".buttons button:disabled")).to_have_count(2)
    expect(page.locator(".buttons .chosen")).to_contain_text("Draw a dot")


class OpenQuestion:
    """The form of one question, while it is open."""

    form: EditForm | None = EditForm(
        "a1",
        "Order 5 kg?",
        "en",
        (
            FormField("quantity", "Quantity", "integer", 5, "In kg", minimum=1, maximum=10),
            FormField("size", "Size", "choice", "M", choices=("S", "M")),
            FormField("gift", "Gift", "boolean", value=False),
        ),
        seconds_left=600,
    )

    def asks_for_form(self, turn: Turn) -> bool:
        """Return whether it is a tap on Change."""
        return turn.tap is not None and turn.tap.data == "e:1"

    async def find(self, turn: Turn) -> EditForm | None:
        """Return the form."""
        return self.form

    open = find


def ask_to_change(page: Page, echo: EchoApp) -> OpenQuestion:
    """Let the bot ask a question that can be changed, and return what is known of it."""
    question = OpenQuestion()
    echo.forms = WebForms(question)
    buttons = (Button("Yes", "c:1", "danger"), Button("No", "x:1"), Button("Change", "e:1"))
    echo.reply = lambda turn: Reply(f"Said {turn.kind}", buttons, answer_seconds=60)
    ask(page)
    return question


def test_question_is_changed_with_the_keyboard_alone(page: Page, echo: EchoApp):
    """Labels name the fields, an error stands beside its field, and what was not touched is not sent."""
    ask_to_change(page, echo)
    page.get_by_role("button", name="Change").press("Enter")
    form = page.get_by_role("form", name="Change")
    quantity = form.get_by_label("Quantity")
    expect(quantity).to_be_focused()
    expect(page.get_by_role("button", name="Yes")).to_be_hidden()
    expect(form.locator(".left")).to_have_text(re.compile(r"^(10:00|9:\d\d) left$"))
    quantity.fill("11")
    quantity.press("Enter")
    expect(quantity).to_have_accessible_description("Please enter at most 10. In kg")
    expect(quantity).to_have_attribute("aria-invalid", "true")
    quantity.fill("2")
    form.get_by_label("Gift").press("Space")
    quantity.press("Enter")
    expect(page.locator(".bot .text").last).to_have_text("Said form")
    assert [turn.form for turn in echo.turns] == [{}, {"quantity": "2", "gift": "true"}]
    expect(page.locator(".buttons .chosen")).to_have_text("Change")
    expect(form).to_have_count(0)


def test_form_that_is_left_changes_nothing(page: Page, echo: EchoApp):
    """Escape brings the buttons and the focus back. A message that drops the question closes it, too."""
    ask_to_change(page, echo)
    change = page.get_by_role("button", name="Change")
    change.click()
    page.get_by_label("Quantity").press("Escape")
    expect(change).to_be_focused()
    change.click()
    expect(page.get_by_role("form")).to_have_count(1)
    page.fill("#text", "never mind")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("form")).to_have_count(0)
    assert [turn.kind for turn in echo.turns] == ["message", "message"]


def test_question_whose_form_was_opened_stays_open_after_a_reload(
    page: Page, echo: EchoApp, channel: ConsoleChannel
):
    """Its first time to answer was over long ago."""
    ask_to_change(page, echo)
    (turn,) = echo.turns
    question = Delivery(
        "d2", turn.conversation, Reply("Sure?", (Button("Change", "e:1"),), answer_seconds=0.001)
    )
    run_sync(channel.send(question))
    expect(page.locator(".buttons .left").last).to_have_text("Time is up")
    entries = channel.feed.read(turn.conversation.id, "", 0)
    tapped = replace(turn, tap=Tap("e:1"), message_id=entries[-1][0])
    run_sync(channel.open_form(tapped, OpenQuestion().find))
    for _ in range(2):
        expect(page.get_by_role("button", name="Change").last).to_be_enabled()
        expect(page.locator(".buttons .left").last).to_have_text(
            re.compile(r"^(10:00|9:\d\d) left$")
        )
        page.reload()


def test_change_of_a_closed_question_is_a_tap(page: Page, echo: EchoApp):
    """The bot says what became of it."""
    ask_to_change(page, echo).form = None
    page.get_by_role("button", name="Change").click()
    expect(page.locator(".bot .text")).to_have_count(2)
    assert [turn.tap and turn.tap.data for turn in echo.turns] == [None, "e:1"]


def test_reload_shows_the_same_conversation(page: Page):
    """No message is lost or doubled, and the chosen button stays chosen."""
    ask(page)
    page.click("button:text-is('No')")
    for _ in range(2):
        page.wait_for_selector("figure")
        expect(page.locator("#log article")).to_have_count(3)
        expect(page.locator(".buttons .chosen")).to_contain_text("No")
        page.reload()


def test_repeated_send_after_a_lost_answer_is_one_turn(page: Page, echo: EchoApp):
    """The page tries again by itself, with the same id."""
    lost: list[str] = []

    def lose_first(route: Route) -> None:
        if lost:
            return route.continue_()
        lost.append(route.request.post_data)
        route.fetch()
        return route.abort()

    page.route("**/hooks/web", lose_first)
    with page.expect_response("**/hooks/web"):
        ask(page)
    expect(page.locator(".sending")).to_have_count(0)
    assert {turn.event_id for turn in echo.turns} == {echo.turns[0].event_id}
    assert page.locator(".user").count() == 1


def test_repeated_entries_are_shown_once(page: Page, echo: EchoApp, channel: ConsoleChannel):
    """A restarted worker appends its entries again; the page shows each once, and the question stays open."""
    ask(page)
    (turn,) = echo.turns
    said = [entry for _, entry in channel.feed.read(turn.conversation.id, "", 0)]
    for entry in [*said, {**said[-1], "delivery": "last", "html": "That was all", "buttons": []}]:
        channel.feed.append(turn.conversation.id, entry)
    page.wait_for_selector("text=That was all")
    assert page.locator("#log article").count() == 3
    assert page.locator(".buttons button:enabled").count() == 2


def test_edit_changes_the_bubble_and_removes_its_buttons(
    page: Page, echo: EchoApp, channel: ConsoleChannel
):
    """The page applies an edit from the stream, after a reload and from polls."""
    ask(page)
    page.click("button:text-is('No')")
    page.wait_for_selector("figure")
    assert echo.turns[-1].message_id == page.locator(".buttons button").first.get_attribute(
        "data-message"
    )
    answer = Reply("Draw a dot? **Cancelled.**", edits=echo.turns[-1].message_id, optional=True)
    run_sync(channel.send(Delivery("later", echo.turns[-1].conversation, answer)))
    expect(page.locator(".bot .text").first).to_have_text("Draw a dot? Cancelled.")
    expect(page.locator(".buttons")).to_have_count(0)
    page.route("**/console/web/events*", lambda route: route.fulfill(status=503, body=""))
    page.reload()
    expect(page.locator(".bot .text").first).to_have_text("Draw a dot? Cancelled.")
    expect(page.locator("#log article")).to_have_count(3)
    expect(page.locator(".buttons")).to_have_count(0)


def test_draft_grows_until_the_answer_replaces_it(
    page: Page, echo: EchoApp, channel: ConsoleChannel
):
    """The page shows one growing bubble and removes it when the answer is there."""
    turn = turn_under_work(page, echo, channel, "tell me a story")
    shown = run_sync(channel.draft(turn, "The *ans"))
    expect(page.locator(".draft")).to_have_text("The *ans")
    shown = run_sync(channel.draft(turn, "The *answer* gro", shown))
    expect(page.locator(".draft")).to_have_text("The answer gro")
    run_sync(channel.send(Delivery("last", turn.conversation, Reply("The *answer*.", edits=shown))))
    expect(page.locator(".bot .text").last).to_have_text("The answer.")
    expect(page.locator(".draft")).to_have_count(0)
    expect(page.locator("#log article")).to_have_count(2)


def turn_under_work(page: Page, echo: EchoApp, channel: ConsoleChannel, text: str) -> Turn:
    """Send a text that stays without an answer, show that the bot works, and return its turn."""
    echo.holds = True
    page.fill("#text", text)
    page.keyboard.press("Enter")
    expect(page.locator(".user .sign")).to_have_text("Sent ✓")
    (turn,) = echo.turns
    run_sync(channel.show_typing(turn))
    return turn


def test_stopped_answer_leaves_no_bubble(page: Page, echo: EchoApp, channel: ConsoleChannel):
    """The draft disappears, also for a page that opened in the middle.

    The notice of the stop stays.
    """
    turn = turn_under_work(page, echo, channel, "tell me a story")
    shown = run_sync(channel.draft(turn, "Once upon"))
    for _ in range(2):
        expect(page.locator(".draft")).to_have_text("Once upon")
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        page.reload()
    (removal,) = replace_draft(shown, ())
    run_sync(channel.send(Delivery("d1", turn.conversation, removal.reply)))
    expect(page.locator(".draft")).to_have_count(0)
    run_sync(channel.send(Delivery("d2", turn.conversation, Reply("Stopped."))))
    for _ in range(2):
        expect(page.locator("article.bot .text")).to_have_text("Stopped.")
        page.reload()


def test_draft_that_went_while_the_page_was_offline_does_not_stay(
    page: Page, echo: EchoApp, channel: ConsoleChannel, feed: HangingFeed
):
    """The connection broke in the middle of the answer.

    Afterwards the page shows the outcome, and once.
    """
    page.clock.install()
    page.reload()
    turn = turn_under_work(page, echo, channel, "tell me a story")
    shown = run_sync(channel.draft(turn, "Once upon"))
    expect(page.locator(".draft")).to_have_text("Once upon")
    feed.works.clear()
    (removal,) = replace_draft(shown, ())
    run_sync(channel.send(Delivery("d1", turn.conversation, removal.reply)))
    run_sync(channel.send(Delivery("d2", turn.conversation, Reply("Stopped."))))
    page.clock.fast_forward(13_000)
    expect(page.locator("#state")).to_have_text("no answer")
    feed.works.set()
    expect(page.locator("article.bot .text").last).to_have_text("Stopped.")
    expect(page.locator(".draft")).to_have_count(0)
    expect(page.locator("article.bot")).to_have_count(1)


def test_draft_of_a_turn_that_is_over_does_not_stay(
    page: Page,
    echo: EchoApp,
    channel: ConsoleChannel,
):
    """Its worker died, and the turn was given up without an answer."""
    turn = turn_under_work(page, echo, channel, "tell me a story")
    run_sync(channel.draft(turn, "Once upon"))
    expect(page.locator(".draft")).to_have_text("Once upon")
    echo.held.clear()
    expect(page.locator(".draft")).to_have_count(0)
    page.reload()
    expect(page.locator(".user")).to_have_count(1)
    expect(page.locator(".draft")).to_have_count(0)


def test_tool_calls_are_shown_while_they_run(page: Page, echo: EchoApp, channel: ConsoleChannel):
    """Name, time and state, also after a reload.

    Markup in a name is text, and a call of a turn that is over ended.
    """
    turn = turn_under_work(page, echo, channel, "look")
    shown = run_sync(channel.show_steps(turn, [ToolStep("<b>look</b>", "running", 2.0)]))
    steps = page.locator(".steps")
    for _ in range(2):
        expect(steps.locator("summary")).to_have_text("Running <b>look</b>")
        expect(steps.locator("li .time")).to_have_text(re.compile(r"[2-9]\.\d s"))
        page.reload()
    ended = [
        ToolStep("<b>look</b>", "done", 2.5),
        ToolStep("delete", "waits"),
        ToolStep("pay", "not_run", 0.2),
        ToolStep("mend", "running"),
    ]
    run_sync(channel.show_steps(turn, ended, shown))
    rows = steps.locator("li")
    done = ["<b>look</b>done2.5 s", "deleteasked for your yes", "paynot run"]
    expect(rows).to_have_text([*done, re.compile("mendrunning")])
    echo.held.clear()
    for _ in range(2):
        expect(steps.locator("summary")).to_have_text("4 tool calls, 2 not done")
        expect(rows.last).to_be_hidden()  # folded
        expect(rows.last).to_have_text("mendstopped")  # after how long is not known
        page.reload()


def test_long_history_is_loaded_in_pages_without_a_jump(
    page: Page,
    echo: EchoApp,
    channel: ConsoleChannel,
):
    """The newest messages come first and older ones on the way up.

    An open question among them can be answered.
    """
    ask(page)
    here = echo.turns[0].conversation
    for number in range(200):
        run_sync(channel.send(Delivery(f"n{number}", here, Reply(f"notice {number}"))))
    run_sync(
        channel.send(
            Delivery("edited", here, Reply("notice 3, edited", edits=_id_of(channel, here, "n3")))
        )
    )
    page.reload()
    expect(page.locator("article.bot .text").last).to_have_text("notice 199")
    assert page.locator("#log article").count() < 80
    earlier = page.get_by_role("button", name="Earlier messages")
    for count in (119, 179, 202):  # one entry of the first page is the edit
        top = page.evaluate(f"(window.first = document.querySelector('article')) && {FIRST_TOP}")
        earlier.evaluate("button => button.click()")
        expect(page.locator("#log article")).to_have_count(count)
        page.evaluate("new Promise(requestAnimationFrame)")
        assert abs(page.evaluate(FIRST_TOP) - top) < 2
    expect(earlier).to_be_hidden()
    expect(page.locator("#log article")).to_have_count(202)
    expect(page.get_by_text("notice 3, edited")).to_have_count(1)
    assert page.locator("article.bot .text").nth(5).inner_text() == "notice 4"
    page.get_by_role("button", name="No").click()
    page.wait_for_selector("figure")
    assert echo.turns[-1].tap


def test_page_knows_a_server_that_hangs_and_recovers(page: Page, echo: EchoApp, feed: HangingFeed):
    """An open connection on which nothing arrives is not live.

    When the server goes on, no message is doubled.
    """
    page.clock.install()
    page.reload()
    state = page.locator("#state")
    expect(state).to_have_text("live")
    ask(page)
    feed.works.clear()
    page.clock.fast_forward(13_000)
    expect(state).to_have_text("no answer")
    page.clock.fast_forward(13_000)
    expect(state).to_have_text("no answer")
    feed.works.set()
    expect(state).to_have_text("live")
    page.click("button:text-is('No')")
    page.wait_for_selector("figure")
    expect(page.locator("#log article")).to_have_count(3)


def test_picture_is_sent_with_its_caption_and_stays(
    page: Page, echo: EchoApp, media: LocalMediaStore
):
    """One of two picked files is removed and one sent; a refused file gives its text back and sends nothing."""
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


#: Makes a drop or paste of these files, as [name, type, size], on an element.
TRANSFER = """(target, [kind, files]) => {
  const data = new DataTransfer();
  for (const [name, type, size] of files) data.items.add(new File([new Uint8Array(size)], name, { type }));
  const options = { bubbles: true, cancelable: true };
  if (kind === "paste") return target.dispatchEvent(new ClipboardEvent(kind, { ...options, clipboardData: data }));
  for (const each of kind === "drop" ? ["dragover", "drop"] : [kind])
    target.dispatchEvent(new DragEvent(each, { ...options, dataTransfer: data }));
}"""


def test_files_are_dropped_and_pasted(page: Page, echo: EchoApp):
    """Several at once, anywhere on the page.

    Pasted pictures get own names; a large file is refused plainly.
    """
    main = page.locator("main")
    chips = page.locator(".chip .label")
    main.evaluate(TRANSFER, ["dragover", [["a.txt", "text/plain", 9]]])
    expect(page.locator("#drop")).to_be_visible()
    expect(page.locator("#drop")).to_contain_text("at most 10 of 25 MB each")
    main.evaluate(
        TRANSFER,
        ["drop", [["a.txt", "text/plain", 9], ["large.pdf", "application/pdf", 26 * 2**20]]],
    )
    expect(page.locator("#drop")).to_be_hidden()
    expect(page.locator("#notice")).to_have_text("large.pdf: 26 MB is too large, at most 25 MB")
    for _ in range(2):
        main.evaluate(TRANSFER, ["paste", [["image.png", "image/png", 9]]])
    expect(chips).to_have_text(
        [re.compile("a.txt"), re.compile("image.png"), re.compile("image-2.png")]
    )
    expect(page.locator("#attached")).to_have_text("Attached: image-2.png.")
    main.evaluate(TRANSFER, ["paste", [[f"{number}.txt", "text/plain", 9] for number in range(9)]])
    expect(chips).to_have_count(10)
    expect(page.locator("#notice")).to_have_text(
        "7.txt: at most 10 files at once\n8.txt: at most 10 files at once"
    )
    assert echo.turns == []


def test_progress_of_an_upload_is_shown(page: Page, echo: EchoApp):
    """Until the file is there; only then is the message sent."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/console/web/files", hold)
    page.set_input_files("#picker", [upload("dot.png", PNG)])
    page.keyboard.press("Enter")
    expect(page.get_by_role("progressbar", name="Sending files")).to_be_visible()
    assert echo.turns == []
    held[0].continue_()
    page.wait_for_selector(".bot .buttons")
    expect(page.get_by_role("progressbar")).to_have_count(0)


def test_scroll_position_above_stays_when_messages_arrive(
    page: Page, channel: ConsoleChannel, echo: EchoApp
):
    """A button leads to the newest message, and from there the page follows again."""
    ask(page)
    here, end = (
        echo.turns[0].conversation,
        "main => main.scrollHeight - main.scrollTop - main.clientHeight",
    )
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


def test_refused_stream_falls_back_to_polling(page: Page):
    """Where a proxy cuts streams, the conversation still arrives."""
    page.route("**/console/web/events*", lambda route: route.fulfill(status=503, body=""))
    page.reload()
    expect(page.locator("#state")).to_have_text("polling")
    ask(page)


def test_busy_bot_is_reported_and_tried_again_on_a_tap(page: Page, echo: EchoApp):
    """The same message is sent again, at the latest when the user taps the notice."""
    page.route("**/hooks/web", lambda route: route.fulfill(status=503, body=""))
    page.fill("#text", "hello")
    page.keyboard.press("Enter")
    retry = page.locator(".retry")
    expect(retry).to_have_text(
        "The bot is busy. The message will be sent again shortly; tap to send it now."
    )
    page.unroute_all()
    page.evaluate(
        "document.querySelector('.retry')?.click()"
    )  # it is gone when the page was faster
    page.wait_for_selector(".bot .buttons")
    assert (retry.count(), len(echo.turns)) == (0, 1)


def test_unsent_messages_are_sent_later_in_order(page: Page, echo: EchoApp):
    """Once the connection is back, the page sends each message once, in the order in which it was written."""
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


def test_message_is_shown_as_waiting_until_a_worker_answers(
    page: Page, echo: EchoApp, channel: ConsoleChannel
):
    """The page shows Sent, typing dots, Stop and later the cause, and shows all of them again after a reload."""
    page.clock.install()
    page.reload()
    echo.holds = True
    page.fill("#text", "hello")
    page.keyboard.press("Enter")
    sign, dots, stop = (
        page.locator(".user .sign"),
        page.locator("#typing"),
        page.get_by_role("button", name="Stop"),
    )
    for _ in range(2):
        expect(sign).to_have_text("Sent ✓")
        expect(dots).to_be_visible()
        expect(stop).to_be_visible()
        page.clock.fast_forward(9_000)
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


def test_open_question_counts_down_and_ends(page: Page, echo: EchoApp, channel: ConsoleChannel):
    """The buttons name their effect, a changing one is red, and both are disabled when the time is over."""
    ask(page)
    confirm, cancel = (
        page.get_by_role("button", name="Draw a dot"),
        page.get_by_role("button", name="No"),
    )
    red, *_ = confirm.evaluate(
        "button => getComputedStyle(button).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert red > 150
    assert cancel.evaluate("button => getComputedStyle(button).color") == page.evaluate(
        "getComputedStyle(document.body).color"
    )
    expect(page.locator(".left")).to_have_text(re.compile("0:[0-5]\\d left"))
    question = Reply(
        "Now?", (Button("Yes", "c:2", "danger"), Button("No", "x:2")), answer_seconds=1
    )
    run_sync(channel.send(Delivery("short", echo.turns[0].conversation, question)))
    expect(page.locator(".left").last).to_have_text("Time is up")
    expect(page.locator(".buttons").last.locator("button:enabled")).to_have_count(0)


def test_focus_returns_to_the_input_after_a_decision_by_keyboard(page: Page):
    """Tab and Enter decide, and the focus is not lost with the button."""
    ask(page)
    page.get_by_role("button", name="No").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("figure")
    expect(page.locator("#text")).to_be_focused()


def test_answer_is_copied_and_arrow_up_recalls_messages(page: Page, address: str):
    """Copy gives the words of the bot without formatting; the arrows go through the user's messages."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    for words in ("first", "second"):
        page.fill("#text", words)
        page.keyboard.press("Enter")
    expect(page.locator("article.bot")).to_have_count(2)
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "Draw first?"
    page.focus("#text")
    recalled = []
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
        recalled.append(page.input_value("#text"))
    assert recalled == ["second", "first", "first", "second", ""]
    page.fill("#text", "being written")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#text") == "being written"


def test_conversations_are_begun_opened_renamed_and_deleted(
    page: Page,
    echo: EchoApp,
    channel: ConsoleChannel,
):
    """Each has its own messages.

    The list shows first words as text, and works with the keyboard.
    """
    ask(page)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#welcome")).to_be_visible()
    # The new page shows its welcome before its scripts run. Until then, Enter only adds a line to the text.
    page.wait_for_selector("#state[data-state=live]")
    page.fill("#text", "second")
    page.keyboard.press("Enter")
    expect(page.locator("article.bot")).to_have_count(1)
    assert echo.turns[-1].conversation.thread
    menu = page.get_by_role("button", name="Conversations")
    rows = page.locator("#chat-list li")
    menu.press("Enter")
    expect(rows).to_have_count(2)
    expect(rows.locator(".title")).to_have_text(["second", "<i>a dot</i>"])
    expect(rows.first.locator("a")).to_have_attribute("aria-current", "page")
    rows.last.locator("a").press("Enter")
    expect(page.locator(".user .words")).to_have_text("<i>a dot</i>")
    run_sync(channel.send(Delivery("later", echo.turns[-1].conversation, Reply("A reminder"))))
    menu.click()
    expect(rows.first.locator("a")).to_contain_text("new messages")
    page.get_by_role("button", name="Rename second").click()
    page.get_by_role("textbox", name="Title").fill("Mine")
    page.keyboard.press("Enter")
    expect(rows.locator(".title")).to_have_text(["Mine", "<i>a dot</i>"])
    page.get_by_role("button", name="Delete Mine").click()
    page.get_by_role("button", name="Really delete Mine").click()
    expect(rows).to_have_count(1)
    assert (echo.turns[-1].text, bool(echo.turns[-1].conversation.thread)) == ("/reset", True)
    page.get_by_role("textbox", name="Your name").fill("<b>Ada</b>")
    page.keyboard.press("Enter")
    expect(page.locator("#person-hint")).to_have_text("Saved.")
    page.keyboard.press("Escape")
    expect(page.locator("#text")).to_be_focused()
    expect(menu).to_have_accessible_name("Conversations")
    expect(page.locator(".user .words")).to_have_text("<i>a dot</i>")
    ask(page)
    for _ in range(2):
        expect(page.locator(".user .who")).to_have_text("<b>Ada</b>")
        page.reload()
    assert echo.turns[-1].user_name == "<b>Ada</b>"


CODE = """Like this:

```python
def due(x):
    return "<img src=x onerror=alert(1)>"  # </code><script>alert(2)</script>
```

```evil"><img/src=x>
</pre><script>alert(3)</script>
```
"""


def test_code_is_colored_and_copied(
    page: Page,
    echo: EchoApp,
    channel: ConsoleChannel,
    address: str,
):
    """Markup in code, and in the name of its language, is text.

    An unknown language has one color.
    """
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    ask(page)
    run_sync(channel.send(Delivery("code", echo.turns[0].conversation, Reply(CODE))))
    python = page.locator(".code").first
    other = page.locator(".code").last
    expect(python.locator(".hljs-keyword")).to_have_text(["def", "return"])
    expect(python.locator(".bar span")).to_have_text("python")
    expect(other.locator("code")).to_have_text(re.compile(r"</pre><script>alert\(3\)</script>"))
    assert page.locator("#log script, #log img").count() == 0
    python.get_by_role("button", name="Copy python code").click()
    expect(python.locator(".copy-code")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == CODE.split("```")[1].removeprefix(
        "python\n"
    ).rstrip("\n")


def test_reset_empties_the_page_for_good(page: Page, echo: EchoApp):
    """The bot and the page forget, also after a reload."""
    ask(page)
    page.fill("#text", "/reset")
    page.keyboard.press("Enter")
    for _ in range(2):
        expect(page.locator(".user")).to_have_count(0)
        expect(page.locator("article.bot")).to_have_count(1)
        page.reload()


def test_suggestions_collapse_after_the_first_message(page: Page, echo: EchoApp):
    """They are open on an empty page, then behind one button."""
    idea, more = (
        page.get_by_role("button", name="list invoices"),
        page.get_by_role("button", name="Suggestions"),
    )
    expect(idea).to_be_visible()
    idea.click()
    page.wait_for_selector(".bot .buttons")
    expect(idea).to_be_hidden()
    more.click()
    expect(idea).to_be_visible()
    assert (more.get_attribute("aria-expanded"), echo.turns[0].text) == ("true", "list invoices")


def test_root_redirects_to_the_console(page: Page, address: str):
    """A user on a laptop types the bare address."""
    page.goto(address)
    assert page.url == f"{address}/console"


def test_late_yes_is_dated_to_the_last_message_seen_by_its_writer(
    page: Page, echo: EchoApp, channel: ConsoleChannel
):
    """The yes is older than a question that arrived meanwhile, and so does not answer it."""
    ask(page)
    page.context.set_offline(True)
    page.fill("#text", "yes")
    page.keyboard.press("Enter")
    expect(page.locator(".retry")).to_be_visible()
    receipt = run_sync(
        channel.send(Delivery("meanwhile", echo.turns[0].conversation, Reply("Another question?")))
    )
    page.context.set_offline(False)
    expect(page.locator("article.bot").last).to_contain_text("Draw yes?")
    assert (echo.turns[-1].text, 0 < echo.turns[-1].written_at < receipt.written_at) == (
        "yes",
        True,
    )
