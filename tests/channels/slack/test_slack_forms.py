"""The form of a question in Slack: the modal that a tap opens, and what its submission says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.channels.edit_form import EditForm, FormField
from sayso.channels.i18n.catalogue import LANGUAGES
from sayso.channels.i18n.texts import texts_for
from sayso.channels.slack.adapter import SlackChannel
from sayso.channels.slack.forms import SlackForms, form_view
from sayso.channels.slack.submissions import FormPlace
from sayso.channels.slack.threads import new_thread
from sayso.channels.types import Conversation, Received, Turn
from sayso.pending.web_forms import WebForms
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.slack import FakeSlack
from sayso.testing.platforms.slack_views import InvalidInput, new_trigger, view_error
from tests.channels.harness import NOW, MemoryMedia, slack, slack_hook

TOKEN = "token-of-the-change-button"
THREAD = "1795204800.000100"
MESSAGE = "1795204700.000300"
PLACE = FormPlace("", "C0OPS", THREAD, MESSAGE, TOKEN)
#: A field of each kind, and what a person enters there.
FIELDS = (
    (FormField("note", "Note", "text", "for Bob", max_chars=40), "for Eve"),
    (FormField("letter", "Letter", "text", "Dear Bob,\nhello"), "Dear Eve,\nhello"),
    (FormField("lines", "Lines", "lines", ["a", "b"]), "a\nc"),
    (FormField("quantity", "Quantity", "integer", 5, minimum=1, maximum=10), "2"),
    (FormField("weight", "Weight", "number", 2.5), "0.5"),
    (FormField("gift", "Gift", "boolean", value=True), "false"),
    (FormField("size", "Size", "choice", "M", choices=("S", "M", "L")), "L"),
    (FormField("day", "Day", "date", "2026-12-01"), "2026-12-02"),
    (FormField("clock", "Clock", "time", "14:30"), "15:45"),
    (FormField("local", "Local time", "datetime", "2026-12-01T14:30:00"), "2026-12-01T15:00"),
    (FormField("tip", "Tip", "number", None, required=False), "3"),
)
AT = FormField("at", "At", "datetime", "2026-12-01T14:30:00+02:00")


class Questions:
    """The forms of open questions; a test sets the one that is found, or an error."""

    def __init__(self, form: EditForm | None) -> None:
        self.form = form
        self.error: Exception | None = None
        self.is_read = asyncio.Event()
        self.is_read.set()

    def asks_for_form(self, turn: Turn) -> bool:
        """Return whether it is a tap on Change."""
        return turn.tap is not None and turn.tap.data == TOKEN

    async def find(self, turn: Turn) -> EditForm | None:
        """Return the form."""
        await self.is_read.wait()
        if self.error:
            raise self.error
        return self.form

    open = find


@pytest.fixture
def views(platforms: FakePlatforms):
    """Return the modals of the fake Slack."""
    fake = platforms.fakes["slack"]
    assert isinstance(fake, FakeSlack)
    fake.views.clock = lambda: NOW
    return fake.views


@pytest.fixture
def channel(media: MemoryMedia, platforms: FakePlatforms) -> SlackChannel:
    """Return a Slack channel."""
    return slack(media, platforms.slack_url)


def form_of(*fields: FormField, language: str = "en") -> EditForm:
    """Return the form of a question with these fields."""
    return EditForm("a1", "Order **5 kg**?", language, fields)


def all_fields() -> EditForm:
    """Return a form with a field of each kind."""
    return form_of(*(field for field, _ in FIELDS), AT)


def tap(trigger: str = "", **where: str) -> bytes:
    """Return a tap on Change in a thread."""
    place = {"channel": "C0OPS", "message_ts": MESSAGE, "block_id": f"thread:{THREAD}", **where}
    return signing.slack_tap(trigger or new_trigger(NOW), TOKEN, **place)


def receive(channel: SlackChannel, questions: Questions, body: bytes) -> Received:
    """Return what is left to store of a request, as in the web process."""
    return WebForms(questions, open_seconds=60, check_seconds=60).answer_form(
        channel, channel.receive(slack_hook(body))
    )


def opened(channel: SlackChannel, views, form: EditForm) -> dict[str, Any]:
    """Return the modal that a tap opens."""
    received = receive(channel, Questions(form), tap())
    assert (received.turns, received.answer.status, received.answer.body) == ((), 200, "")
    return views.opened[-1]


def submitted(channel: SlackChannel, body: bytes) -> Turn:
    """Return the turn of a submission."""
    (turn,) = channel.receive(slack_hook(body)).turns
    return turn


def test_tap_on_change_opens_the_form_and_is_no_turn(channel: SlackChannel, views):
    """Slack's own models take each field, and the modal shows what was asked."""
    view = opened(channel, views, all_fields())
    assert [block["block_id"] for block in view["blocks"][1:-1]] == [
        each.name for each in all_fields().fields
    ]
    assert view["blocks"][0]["text"]["text"] == "Order *5 kg*"


def test_untouched_form_says_nothing(channel: SlackChannel, views):
    """Each present value survives the way to Slack and back."""
    view = opened(channel, views, all_fields())
    assert submitted(channel, views.submission(view, {})).form == {}


def test_empty_date_with_a_time_is_picked(channel: SlackChannel, views):
    """Without a present value there is a picker too, and the picked time is in UTC."""
    empty = FormField("at", "At", "datetime", None, required=False)
    view = opened(channel, views, form_of(empty))
    (element,) = [block["element"] for block in view["blocks"][1:-1]]
    assert element == {"type": "datetimepicker", "action_id": "0"}
    assert submitted(channel, views.submission(view, {})).form == {}


@pytest.mark.parametrize(
    ("kind", "value"),
    [("date", "2026-12-01"), ("time", "14:30"), ("datetime", "2026-12-01T14:30:00+02:00")],
)
def test_emptied_picker_stays_empty(channel: SlackChannel, views, kind: str, value: str):
    """What stood there before does not come back."""
    view = opened(channel, views, form_of(FormField("at", "At", kind, value, required=False)))
    assert submitted(channel, views.submission(view, {"at": ""})).form == {"at": ""}


def test_entered_values_are_read_as_a_person_types_them(channel: SlackChannel, views):
    """All that was entered passes the check of the form."""
    view = opened(channel, views, all_fields())
    entered = {field.name: text for field, text in FIELDS}
    instant = {"at": "1796133600"}
    turn = submitted(channel, views.submission(view, {**entered, **instant}))
    assert turn.form == {**entered, "at": "2026-12-01T16:00:00+02:00"}
    assert all_fields().read(turn.form).problems == {}


def test_submission_belongs_to_the_question_that_it_changes(channel: SlackChannel, views):
    """It comes without a channel, a thread or a message: the modal holds them."""
    view = opened(channel, views, form_of(FIELDS[0][0]))
    turn = submitted(channel, views.submission(view, {"note": "for Eve"}, user="U0EVE"))
    assert (turn.kind, turn.conversation) == ("form", Conversation("sl", "C0OPS", THREAD))
    assert (turn.user_id, turn.message_id, turn.in_group) == ("U0EVE", MESSAGE, True)
    assert turn.tap
    assert turn.tap.data == TOKEN
    assert not turn.decides


def test_submission_that_is_sent_again_is_the_same_event(channel: SlackChannel, views):
    """After a lost answer Slack shows an error, and the person presses the button again."""
    view = opened(channel, views, form_of(FIELDS[0][0]))
    first, again, other = (
        submitted(channel, views.submission(view, {"note": text})).event_id
        for text in ("a", "a", "b")
    )
    assert first == again
    assert first != other


def test_submissions_of_two_devices_are_two_events(channel: SlackChannel, views):
    """The second one is answered, too: it changes a question that was changed before."""
    form = form_of(FIELDS[0][0])
    one, two = (
        submitted(channel, views.submission(opened(channel, views, form), {"note": "x"})).event_id
        for _ in "12"
    )
    assert one != two


def test_wrong_values_are_shown_beside_their_fields(channel: SlackChannel, views):
    """Nothing is stored, and the modal stays open."""
    view = opened(channel, views, form_of(FIELDS[9][0], FIELDS[0][0]))
    body = views.submission(view, {"local": "tomorrow", "note": "ok"})
    received = receive(channel, Questions(form_of(FIELDS[9][0], FIELDS[0][0])), body)
    errors = views.show_answer(view, received.answer.status, received.answer.body)
    assert received.turns == ()
    assert errors == {"local": "Please enter a date and a time, such as 2026-12-31T14:30."}


def test_form_without_a_change_says_so(channel: SlackChannel, views):
    """A new question with the same values would be noise."""
    form = form_of(FIELDS[0][0])
    view = opened(channel, views, form)
    received = receive(channel, Questions(form), views.submission(view, {}))
    assert views.show_answer(view, 200, received.answer.body) == {
        "note": texts_for("en").form_unchanged()
    }


@pytest.mark.parametrize("question", ["changed", "closed", "away"])
def test_form_that_cannot_be_checked_is_stored(channel: SlackChannel, views, question: str):
    """A worker then says what became of it. The empty answer closes the modal."""
    view = opened(channel, views, form_of(FIELDS[0][0]))
    questions = Questions(form_of(FIELDS[3][0]) if question == "changed" else None)
    questions.error = RedisConnectionError("away") if question == "away" else None
    received = receive(channel, questions, views.submission(view, {"note": "for Eve"}))
    assert [turn.kind for turn in received.turns] == ["form"]
    assert views.show_answer(view, received.answer.status, received.answer.body) == {}
    assert views.opened == []


@pytest.mark.parametrize("trigger", ["expired", "used", "malformed"])
def test_tap_whose_trigger_does_not_work_is_a_turn(
    channel: SlackChannel, views, trigger: str, caplog
):
    """A worker asks for the values instead."""
    triggers = {"expired": new_trigger(NOW - 4), "used": new_trigger(NOW), "malformed": "x"}
    questions = Questions(form_of(FIELDS[0][0]))
    if trigger == "used":
        receive(channel, questions, tap(triggers["used"]))
    received = receive(channel, questions, tap(triggers[trigger]))
    assert [turn.tap and turn.tap.data for turn in received.turns] == [TOKEN]
    assert "trigger_id" in next(
        each.reason for each in caplog.records if each.msg == "form.not_opened"
    )


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (FormField("long", "Long", "text", "x" * 3001),),
        (FormField("choice", "Choice", "choice", "x" * 151, choices=("x" * 151, "y")),),
        (FormField("n" * 256, "Name", "text", "x"),),
        tuple(FormField(f"f{number}", "Field", "text", "x") for number in range(99)),
    ],
)
def test_form_that_no_modal_holds_is_left_to_the_workers(channel: SlackChannel, views, fields):
    """No value is cut: the person would agree to something else."""
    received = receive(channel, Questions(form_of(*fields)), tap())
    assert (len(received.turns), views.opened) == (1, [])


@pytest.mark.parametrize("error", ["closed", "away"])
def test_tap_on_a_question_that_cannot_be_read_is_a_turn(channel: SlackChannel, views, error: str):
    """A worker says what became of the question."""
    questions = Questions(None)
    questions.error = RedisConnectionError("away") if error == "away" else None
    assert len(receive(channel, questions, tap()).turns) == 1
    assert views.opened == []


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ("form", "Order *5 kg*"),
        ("closed", texts_for("en").stale()),
        ("away", texts_for("en").form_failed()),
    ],
)
def test_form_opens_before_a_slow_question_is_read(
    channel: SlackChannel, views, found: str, shown: str
):
    """A trigger does not wait. The modal shows the form, or that there is none, as soon as that is known."""
    questions = Questions(form_of(FIELDS[0][0]) if found == "form" else None)
    questions.error = RedisConnectionError("away") if found == "away" else None
    forms = SlackForms("sl", channel.client_of, "en", read_seconds=0)
    (turn,) = channel.receive(slack_hook(tap())).turns

    def words() -> str:
        text: str = views.opened[0]["blocks"][0]["text"]["text"]
        return text

    async def open_slowly() -> None:
        questions.is_read.clear()
        assert await forms.open(turn, questions.find)
        assert words() == texts_for("en").form_loading()
        questions.is_read.set()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait({task for task in others if "_fill" in repr(task.get_coro())})

    asyncio.run(open_slowly())
    assert words() == shown


def test_question_that_only_one_person_sees_has_a_form(channel: SlackChannel, views):
    """Its message has no ts that an edit could use."""
    body = signing.slack_interaction(
        "block_actions",
        trigger_id=new_trigger(NOW),
        channel={"id": "C0OPS"},
        container={"type": "message", "message_ts": MESSAGE, "is_ephemeral": True},
        actions=[{"type": "button", "block_id": f"thread:{THREAD}", "value": TOKEN}],
    )
    receive(channel, Questions(form_of(FIELDS[0][0])), body)
    turn = submitted(channel, views.submission(views.opened[0], {"note": "x"}))
    assert (turn.message_id, turn.conversation.thread) == ("", THREAD)


@pytest.mark.parametrize(
    ("mark", "conversation"),
    [
        ("user:U0ADA", Conversation("sl", "U0ADA")),
        (f"thread:{new_thread('act')}", Conversation("sl", "D0ADA", new_thread("act"))),
        ("thread:", Conversation("sl", "D0ADA")),
    ],
)
def test_form_keeps_the_address_of_its_question(
    channel: SlackChannel, views, mark: str, conversation: Conversation
):
    """A direct message has several: the token in the modal is valid for one of them."""
    receive(channel, Questions(form_of(FIELDS[0][0])), tap(channel="D0ADA", block_id=mark))
    turn = submitted(channel, views.submission(views.opened[0], {"note": "x"}))
    assert (turn.conversation, turn.in_group) == (conversation, False)


@pytest.mark.parametrize("language", LANGUAGES)
def test_form_fits_a_modal_in_each_language(language: str):
    """Titles and buttons have at most 24 characters."""
    form = replace(all_fields(), language=language)
    assert view_error(form_view(form, texts_for(language), PLACE)) == ""


def test_long_texts_of_a_form_are_cut():
    """Only what explains a value, never a value."""
    choices = ("a" * 100, "b" * 100)
    field = FormField(
        "f", "L" * 2001, "choice", choices[0], description="D" * 2001, choices=choices
    )
    view = form_view(form_of(field), texts_for("en"), PLACE)
    assert view_error(view) == ""
    assert view
    assert view["blocks"][1]["element"]["initial_option"]["value"] == choices[0]


def test_metadata_of_another_form_is_not_ours(channel: SlackChannel):
    """Forms that other code of the app opens stay messages."""
    metadata = json.dumps({"chat": "C0OPS", "thread": THREAD})
    view = {"id": "V1", "callback_id": "ask", "private_metadata": metadata}
    assert (
        submitted(channel, signing.slack_interaction("view_submission", view=view)).kind
        == "message"
    )


def test_fake_slack_refuses_what_slack_refuses(channel: SlackChannel, views):
    """A bound, an empty field and an unknown name: so that no test enters what no person can."""
    view = opened(channel, views, all_fields())
    for entered in ({"quantity": "11"}, {"note": ""}, {"other": "x"}, {"size": "XL"}):
        with pytest.raises(InvalidInput):
            views.submission(view, entered)
