"""EditForm: what people type into a form, and which values it becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sayso.channels.edit_form import (
    MAX_VALUE_CHARS,
    EditForm,
    FieldProblem,
    FormField,
    UnreadableValue,
)
from sayso.channels.i18n.catalogue import LANGUAGES
from sayso.channels.i18n.texts import texts_for
from sayso.pending.consent.parser import RegexConfirmParser, read_answer


def field(kind: str, value: Any = None, **options: Any) -> FormField:
    """Return a field."""
    return FormField("x", "X", kind, value, **options)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", " 12 ", 12),
        ("integer", "-3", -3),
        ("integer", "\u0661\u0662", 12),
        ("number", "2,5", 2.5),
        ("number", "2.0", 2),
        ("number", ".5", 0.5),
        ("number", "0,125", 0.125),
        ("number", "1.3750", 1.375),
        ("boolean", "true", True),
        ("date", "2026-12-31", "2026-12-31"),
        ("time", "14:30", "14:30:00"),
        ("datetime", "2026-12-31T14:30", "2026-12-31T14:30:00"),
        ("lines", "a\n\n b ", ["a", "b"]),
        ("text", " a\nb ", "a\nb"),
        ("text", "**b**\u202e", "**b**\u202e"),
    ],
)
def test_value_is_read_as_its_kind(kind, text, value):
    """White space around it says nothing. What it looks like is for the preview."""
    assert field(kind).read(text) == value


@pytest.mark.parametrize(
    ("given", "text", "problem"),
    [
        (field("integer"), "2.5", FieldProblem("integer")),
        (field("integer"), "1_000", FieldProblem("integer")),
        (field("integer"), "9" * 31, FieldProblem("integer")),
        (field("number"), "1,000", FieldProblem("choice", "1000, 1.0000")),
        (field("number"), "\u0661.\u0660\u0660\u0660", FieldProblem("choice", "1000, 1.0000")),
        (field("number", as_text=True), "-1.375", FieldProblem("choice", "-1375, -1.3750")),
        (field("number"), "1e9", FieldProblem("number")),
        (field("number"), "nan", FieldProblem("number")),
        (field("integer", minimum=1), "0", FieldProblem("too_small", "1")),
        (field("number", maximum=9.5), "9.6", FieldProblem("too_large", "9.5")),
        (field("boolean"), "yes", FieldProblem("choice", "true, false")),
        (field("choice", choices=("a", "b")), "c", FieldProblem("choice", "a, b")),
        (field("date"), "31.12.2026", FieldProblem("date")),
        (field("time"), "soon", FieldProblem("time")),
        (field("datetime"), "2026-13-01", FieldProblem("datetime")),
        (field("text", max_chars=3), "abcd", FieldProblem("too_long", "3")),
        (field("lines", max_chars=3), "a\nabcd", FieldProblem("too_long", "3")),
        (
            field("text"),
            "x" * (MAX_VALUE_CHARS + 1),
            FieldProblem("too_long", str(MAX_VALUE_CHARS)),
        ),
        (field("text"), " \n", FieldProblem("empty")),
    ],
)
def test_value_of_another_kind_is_a_problem(given, text, problem):
    """What two people could read differently is refused, too: 1,000 and 1.000 may be one or a thousand."""
    with pytest.raises(UnreadableValue) as caught:
        given.read(text)
    assert caught.value.problem == problem


def test_choice_has_the_value_and_the_type_of_the_schema():
    """A form sends texts. Capital letters make no difference where only one choice can be meant."""
    given = field("choice", choices=(1, "Best", "best", "Good"))
    assert given.read("1") == 1
    assert given.read("good") == "Good"
    assert given.read("best") == "best"
    with pytest.raises(UnreadableValue):
        given.read("BEST")


@pytest.mark.parametrize("choice", ["", " ", " kg "])
def test_choice_of_spaces_can_be_chosen(choice: str):
    """An enum may hold it. A form sends it back unchanged, and people type it without the spaces."""
    given = field("choice", choices=("g", choice), required=False)
    assert given.read(choice) == choice
    assert given.read(choice.strip()) in (choice, None)


@pytest.mark.parametrize(
    ("kind", "present", "text", "value"),
    [
        ("datetime", "2026-12-31T12:00:00+01:00", "2027-01-01T09:30", "2027-01-01T09:30:00+01:00"),
        ("datetime", "2026-12-31T12:00:00Z", "2027-01-01", "2027-01-01T00:00:00+00:00"),
        ("datetime", "2026-12-31T12:00:00+01:00", "2027-01-01T09:30Z", "2027-01-01T09:30:00+00:00"),
        ("datetime", "tomorrow", "2027-01-01T09:30", "2027-01-01T09:30:00"),
        ("time", "12:00+01:00", "09:30", "09:30:00+01:00"),
    ],
)
def test_time_keeps_the_time_zone_of_the_present_value(kind, present, text, value):
    """People type the time alone. Without the zone, a tool would take another moment."""
    assert field(kind, present).read(text) == value


@pytest.mark.parametrize("text", ["1.0", "1,0", "01"])
def test_number_in_another_spelling_is_no_change(text: str):
    """A JSON number may be 1.0, which the form shows as 1."""
    form = EditForm("pid", "Order", "en", (FormField("kg", "Kg", "number", 1.0),))
    assert form.read({"kg": text}).changes == {}


@pytest.mark.parametrize(
    ("kind", "present", "text"),
    [
        ("datetime", "2026-12-31T12:00:00Z", "2026-12-31T12:00"),
        ("time", "10:00", "10:00:00"),
        ("text", "a\r\nb", "a\nb"),
    ],
)
def test_value_in_the_spelling_of_a_platform_is_no_change(kind: str, present: str, text: str):
    """A model wrote the present value. A picker or a text area sends the same one back."""
    form = EditForm("pid", "Order", "en", (FormField("x", "X", kind, present),))
    assert form.read({"x": text}).changes == {}


def test_choices_that_differ_in_spaces_can_replace_each_other():
    """An enum may hold both."""
    given = FormField("unit", "Unit", "choice", "kg", choices=("kg", "kg "))
    form = EditForm("pid", "Order", "en", (given,))
    assert form.read({"unit": "kg "}).changes == {"unit": "kg "}
    assert form.read({"unit": "kg"}).changes == {}


def test_form_names_only_what_differs():
    """A value that is sent back as it was is no change. An empty one is none, where that is allowed."""
    fields = (
        FormField("kg", "Kg", "integer", 5),
        FormField("note", "Note", "text", "ripe", required=False),
        FormField("express", "Express", "boolean", False),
    )
    form = EditForm("pid", "Order", "en", fields)
    answer = form.read({"kg": "5", "note": "", "express": "true"})
    assert (answer.changes, answer.problems) == ({"note": None, "express": True}, {})
    assert form.read({"kg": "five"}).problems == {"kg": FieldProblem("integer")}


def test_form_with_another_field_is_refused_as_a_whole():
    """Only a forged form has one."""
    form = EditForm("pid", "Order", "en", (FormField("kg", "Kg", "integer", 5),))
    with pytest.raises(KeyError):
        form.read({"kg": "2", "item": "gold"})


def test_field_outlives_its_record():
    """It is sealed as JSON, without what is as usual."""
    given = FormField("kg", "Kg", "choice", 5, choices=(5, 6), required=False)
    stored = json.loads(json.dumps(given.to_dict()))
    assert FormField.from_dict(stored) == given
    assert FormField("kg", "Kg", "integer", 5).to_dict() == {
        "name": "kg",
        "label": "Kg",
        "type": "integer",
        "value": 5,
    }
    with pytest.raises(TypeError):
        FormField.from_dict({"name": "kg", "label": "Kg", "type": "file"})


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_each_problem_has_a_text(language):
    """In each language, with the bound that it names."""
    texts = texts_for(language)
    for kind in ("empty", "number", "integer", "date", "time", "datetime", "refused"):
        assert texts.field_problem(FieldProblem(kind))
    for kind in ("too_small", "too_large", "too_long", "choice"):
        assert "7" in texts.field_problem(FieldProblem(kind, "7"))


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_no_word_of_a_form_is_a_yes(language):
    """Who types the label of a button confirms nothing, and "change" is no no either."""
    texts = texts_for(language)
    parser = RegexConfirmParser().reading([language])
    assert read_answer(parser, texts.change_label, language).intent == ""
    for word in (texts.keep_label, texts.leave_word):
        assert read_answer(parser, word, language).intent != "confirm"
    assert len({texts.confirm_label, texts.cancel_label, texts.change_label, texts.keep_label}) == 4
    assert max(len(texts.change_label), len(texts.keep_label)) <= 20
