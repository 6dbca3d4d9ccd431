"""Texts: every language has the same messages and inserts values unchanged."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest

from sayso.channels.i18n.catalogue import LANGUAGES, catalogue
from sayso.channels.i18n.texts import as_statement, brief, plural_form, texts_for
from sayso.channels.markdown.convert import plain
from sayso.channels.markdown.literal import Markdown, as_markdown
from sayso.pending import RegexConfirmParser
from sayso.pending.consent.parser import ParsedAnswer, read_answer

ALL = list(LANGUAGES)
EVERYTHING = RegexConfirmParser(ALL)
HOSTILE = "Delete {preview} {yes} {nope} 100% %s **A** \\1 \\g<0> `x` \u202e"
#: Keys that only one language needs, or that each language fills differently.
OWN = {"marks", "sure", "endings", "letters", "not_for", "script", "plural", "duration", "weekdays"}
SAYS_PREVIEW = (
    "failed", "unknown", "not_done", "cancelled", "expired", "dropped", "early", "ignored", "unclear", "unsafe", "undo",
    "maybe_missing", "reminder", "expired_unanswered", "already_chosen", "asks_first",
    "status_running",
)  # fmt: skip
SAYS_ALONE = (
    "overtaken", "tampered", "stale", "not_yours", "model_failed", "busy", "too_fast", "crowded", "too_long", "broken",
    "channel_gone", "interrupted_before", "stopped", "nothing_to_stop", "budget_spent", "refused", "in_circles",
    "model_lost", "too_many_steps", "stranger", "approved", "choose", "help_intro", "needs_yes", "no_tools",
    "status_idle", "reset_done", "nothing_of_yours", "answer_cut",
)  # fmt: skip
MINUTES = {
    "ar": "5 دقائق", "de": "5 Minuten", "en": "5 minutes", "es": "5 minutos", "fr": "5 minutes", "hi": "5 मिनट",
    "id": "5 menit", "it": "5 minuti", "ja": "5分", "nl": "5 minuten", "pt": "5 minutos",
    "ru": "5 минут", "tr": "5 dakika", "zh": "5分钟",
}  # fmt: skip


def placeholders(template: str) -> set[str]:
    """Return the placeholder names of a template."""
    return set(re.findall(r"\{(\w+)\}", template))


def previews(language: str) -> Iterator[str]:
    """Yield each message of a language that contains a preview or another inserted text."""
    words = texts_for(language)
    for name in SAYS_PREVIEW:
        yield getattr(words, name)(HOSTILE)
    yield words.question(HOSTILE, 60)
    yield words.question(HOSTILE, 60, "4821")
    yield words.code_needed(HOSTILE, "4821")
    yield words.done(HOSTILE, "")
    yield words.done("A", HOSTILE)
    yield words.correction("A", HOSTILE)
    yield words.correction(HOSTILE, "")
    yield words.forgot_question(HOSTILE)
    yield words.forgot_outcome(HOSTILE)
    yield words.repeated(HOSTILE)
    yield words.reminder_set(HOSTILE, "9:00")
    yield words.reminder_set("A", HOSTILE)
    yield words.escalation(HOSTILE, "wa", 600)
    yield words.pairing_code(HOSTILE, 3600)
    yield words.your_id(HOSTILE)
    yield words.status_waiting(HOSTILE, 60)
    yield words.status_reminder(HOSTILE, 60)
    for what in ("id", "name", "channel", "role", "aliases"):
        yield words.who(what, HOSTILE)
    yield words.plan([HOSTILE, "B"])
    for state in ("done", "failed", "unknown", "cancelled"):
        yield words.plan_report([(state, HOSTILE, "")])


def without_accents(word: str) -> str:
    """Return the word without accents, as people type it in a hurry. Marks of other scripts belong to their letters."""
    return re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", word))


def told(language: str) -> dict[str, str]:
    """Return each sentence of a language as its catalogue has it."""
    return {
        key: said
        for key, said in catalogue(language).items()
        if isinstance(said, str) and key not in OWN
    }


@pytest.mark.parametrize("language", ALL)
def test_requested_yes_and_no_are_understood(language):
    """The parser reads the yes and the no that our messages ask the user to reply."""
    words, parser = texts_for(language), RegexConfirmParser(languages=(language,))
    assert (parser.is_confirm(words.yes), parser.is_cancel(words.yes)) == (True, False)
    assert (parser.is_confirm(words.no), parser.is_cancel(words.no)) == (False, True)


@pytest.mark.parametrize("language", ALL)
def test_yes_and_no_are_understood_as_people_type_them(language):
    """A parser of all languages reads them in capitals, without accents, with a stop or an emoji, and with the code."""
    words = texts_for(language)
    for word, says in ((words.yes, "confirm"), (words.no, "cancel")):
        for typed in (
            word,
            word.upper(),
            word.capitalize() + ".",
            f" {word}!! ",
            f"{word} 🙏",
            without_accents(word),
        ):
            assert read_answer(EVERYTHING, typed, language) == ParsedAnswer(says), typed
    for typed in (
        f"{words.yes} 4821",
        f"{words.yes.upper()}, 4821.",
        f"{without_accents(words.yes)}4821",
    ):
        assert read_answer(EVERYTHING, typed, language) == ParsedAnswer("confirm", "4821"), typed


@pytest.mark.parametrize(
    ("language", "typed"),
    [
        ("zh", "确认\uff1a4821\uff01"),
        ("zh", "是的\uff0c4821。"),
        ("ja", "はい、\uff14\uff18\uff12\uff11。"),
        ("hi", "हाँ 4821।"),
    ],
)
def test_code_is_read_between_the_punctuation_of_other_keyboards(language, typed):
    """The parser accepts full-width stops, colons and digits."""
    assert read_answer(EVERYTHING, typed, language) == ParsedAnswer("confirm", "4821")
    assert read_answer(EVERYTHING, typed + "\uff1f", language).intent == ""


@pytest.mark.parametrize("language", ALL)
def test_typed_button_label_is_read_as_its_button(language):
    """Where buttons do not arrive, people type the label; the undo label is no answer to a question."""
    words = texts_for(language)
    assert read_answer(EVERYTHING, words.confirm_label, language).intent == "confirm"
    assert read_answer(EVERYTHING, words.cancel_label, language).intent == "cancel"
    assert read_answer(EVERYTHING, words.undo_label, language).intent == ""


def test_only_a_german_or_dutch_yes_needs_its_own_parser():
    """Beside Spanish, Portuguese or Hindi, "ja" decides nothing: it means "already", a laugh or "go" there."""
    parser = RegexConfirmParser(languages=tuple(ALL))
    assert [language for language in ALL if not parser.is_confirm(texts_for(language).yes)] == [
        "de",
        "nl",
    ]
    assert all(parser.is_cancel(texts_for(language).no) for language in ALL)


@pytest.mark.parametrize("language", ALL)
def test_values_are_inserted_unchanged(language):
    """Braces, percent signs, backslashes and Markdown of a preview stay as they are."""
    for said in previews(language):
        assert HOSTILE in said or as_markdown(HOSTILE) in said


@pytest.mark.parametrize("language", ALL)
def test_results_and_reminders_are_shown_as_they_are(language):
    """They are text of tools and people, in which an underscore belongs to the name, unless they are Markdown."""
    words, path = texts_for(language), "__init__.py, C:\\_new\\*.txt, <tag>"
    said = [
        words.done("A", path),
        words.correction("A", path),
        words.reminder(path),
        words.scheduled(path),
        words.reminder_set(path, "9:00"),
        words.status_reminder(path, 60),
        words.maybe_missing(path),
        words.already_chosen(path),
    ]
    assert [text for text in said if path not in plain(text)] == []
    assert words.done("A", Markdown("**3** bills")) == "**3** bills"


@pytest.mark.parametrize("language", ALL)
def test_every_language_has_every_message(language):
    """Each catalogue has the same keys as English, and each message the same placeholders."""
    english, other = catalogue("en"), catalogue(language)
    assert other.keys() == english.keys()
    for key in english.keys() - OWN:
        assert placeholders(other[key]) == placeholders(english[key]), key
        assert other[key].strip() == other[key] != "", key


@pytest.mark.parametrize("language", [language for language in ALL if language != "en"])
def test_no_message_is_left_in_english(language):
    """No sentence of another language is a copy of the English one."""
    english, other = catalogue("en"), catalogue(language)
    copied = {key for key in english.keys() - OWN if other[key] == english[key]}
    assert copied <= {"no", "cancel_label", "quote", "step"}


@pytest.mark.parametrize("language", ALL)
def test_every_duration_has_its_plural_forms(language):
    """The catalogue has a form of each unit for any number."""
    duration: dict[str, dict[str, Any]] = catalogue(language)["duration"]
    assert duration.keys() == {"seconds", "minutes", "hours"}
    for forms in duration.values():
        assert {"other"} <= forms.keys() <= {"one", "two", "few", "many", "other"}
        assert all(placeholders(form) <= {"count"} for form in forms.values())
        assert placeholders(forms["other"]) == {"count"}


@pytest.mark.parametrize("language", ALL)
def test_any_number_is_written_out(language):
    """A duration contains its number, also in languages that have one form for all numbers."""
    for seconds, count in (
        (1, 1),
        (2, 2),
        (11, 11),
        (119, 119),
        (7199, 119),
        (7200, 2),
        (86_400, 24),
    ):
        said = texts_for(language).undo_offer(seconds)
        assert str(count) in said or language == "ar"  # Arabic has words for one and two of a thing
        assert "{" not in said


@pytest.mark.parametrize("language", ALL)
def test_labels_fit_a_whatsapp_button(language):
    """A label has at most 20 characters, and no two buttons have the same label."""
    words = texts_for(language)
    labels = [words.confirm_label, words.cancel_label, words.undo_label]
    labels += [words.standing_label(seconds) for seconds in (60, 3540, 3600, 86_400)]
    assert all(0 < len(label) <= 20 for label in labels)
    assert len(set(labels)) == 7


@pytest.mark.parametrize("language", ALL)
def test_acknowledgements_are_short(language):
    """A phone shows each without scrolling, and no two messages are the same."""
    words = texts_for(language)
    said = [getattr(words, name)("A") for name in SAYS_PREVIEW] + [
        getattr(words, name)() for name in SAYS_ALONE
    ]
    said += [words.escalation("A", "wa", 600), words.pairing_code("A", 3600), words.your_id("A")]
    assert all(1 < len(line) <= 200 for line in said)
    assert len(set(said)) == len(said)


@pytest.mark.parametrize("language", ALL)
def test_question_with_a_code_never_offers_a_bare_yes(language):
    """Only the yes with its code confirms, so the question names no other yes."""
    words = texts_for(language)
    for said in (words.question("A", 60, "4821"), words.code_needed("A", "4821")):
        asked = said.replace(f"{words.yes} 4821", "")
        assert asked != said
        assert not re.search(rf"(?<!\w){words.yes}(?!\w)", asked)
        assert words.no in asked


@pytest.mark.parametrize("language", ALL)
def test_durations_are_in_the_language(language):
    """The question, the undo offer and the escalation contain their duration in the language of the text."""
    words = texts_for(language)
    assert "60" in words.question("A", 60)
    assert MINUTES[language] in words.question("A", 300)
    assert MINUTES[language] in words.undo_offer(300)
    assert MINUTES[language] in words.escalation("A", "wa", 300)


@pytest.mark.parametrize(
    ("seconds", "spoken"),
    [
        (0, "1 second"), (1, "1 second"), (59.9, "59 seconds"), (60, "60 seconds"), (119.9, "119 seconds"),
        (120, "2 minutes"), (179, "2 minutes"), (3600, "60 minutes"), (7200, "2 hours"), (86_400, "24 hours"),
    ],
)  # fmt: skip
def test_durations_are_rounded_down(seconds, spoken):
    """The text never promises more time than is left."""
    assert texts_for().undo_offer(seconds) == f"You can undo this for {spoken}."


@pytest.mark.parametrize(
    ("seconds", "spoken"),
    [
        (1, "ثانية واحدة"), (2, "ثانيتين"), (3, "3 ثوانٍ"), (10, "10 ثوانٍ"), (11, "11 ثانية"), (99, "99 ثانية"),
        (100, "100 ثانية"), (103, "103 ثوانٍ"), (120, "دقيقتين"), (720, "12 دقيقة"), (7200, "ساعتين"),
    ],
)  # fmt: skip
def test_arabic_durations_use_all_plural_forms(seconds, spoken):
    """The forms for one, two, a few, many and hundreds differ."""
    assert texts_for("ar").undo_offer(seconds) == f"يمكن التراجع عن هذا خلال {spoken}."


@pytest.mark.parametrize(
    ("tag", "language"),
    [
        ("pt-BR", "pt"), ("PT", "pt"), ("es-419", "es"), ("zh-Hant", "en"), ("zh-TW", "en"), ("zh_HK", "en"),
        ("zh-Hans-CN", "zh"), ("zh", "zh"), ("zh-hant-hk", "en"), ("", "en"), ("../en", "en"),
        ("english", "en"), ("x" * 10_000, "en"), ("pt_BR", "pt"),
    ],
)  # fmt: skip
def test_language_tag_selects_its_language_or_english(tag, language):
    """Any string is a safe tag, and the catalogue of a language is loaded once."""
    assert texts_for(tag) is texts_for(language)
    assert texts_for(tag).language == language


def test_german_uses_neither_the_familiar_nor_the_formal_address():
    """No German sentence contains du, Sie or an imperative of either."""
    familiar = re.compile(r"\b(du|dich|dir|dein\w*|Sie|Ihnen|Ihr\w*|gib|schreib|frag|Bitte wer)\b")
    assert [key for key, said in told("de").items() if familiar.search(said)] == []


def test_french_punctuation_stays_with_its_word():
    """The space before a double punctuation mark does not break, so no line begins with a colon."""
    assert [
        key for key, said in told("fr").items() if re.search(r"[^\u00a0][:;!?](\s|$)", said)
    ] == []


def test_arabic_durations_follow_a_preposition():
    """The catalogue spells the dual for that case only; in any other place it would be spelled differently."""
    said = [said for said in told("ar").values() if "{duration}" in said]
    assert all(re.search(r"(خلال|لمدة|بعد) \{duration\}", sentence) for sentence in said)
    assert len(said) >= 5


def test_english_question_has_its_documented_text():
    """The question names the preview, the yes, the no and the time left."""
    assert (
        texts_for().question("Delete A", 60)
        == "Delete A\n\nReply **yes** or **no**, within 60 seconds."
    )
    assert "Reply **yes 4821** or **no**, within" in texts_for().question("Delete A", 60, "4821")


@pytest.mark.parametrize("language", ALL)
def test_file_without_a_name_is_called_a_file(language):
    """The message has a general word where the file name would be."""
    words = texts_for(language)
    assert words.maybe_missing("") == words.maybe_missing(words.say("a_file"))
    assert words.say("a_file") in words.maybe_missing("")


@pytest.mark.parametrize("language", ALL)
def test_repeated_text_stands_below_its_mark(language):
    """The mark is a paragraph of its own, so the text stays as it was the first time."""
    mark, blank, text = texts_for(language).repeated("A\n\nB").partition("\n\n")
    assert mark
    assert (blank, text) == ("\n\n", "A\n\nB")


def test_interrupted_work_is_never_reported_as_not_done():
    """A run that died or was stopped may have finished, and both messages say so."""
    assert "Part of it may be done" in texts_for().interrupted_before()
    assert "may have finished" in texts_for().stopped()


def test_reminder_names_its_time_and_its_text():
    """The confirmation names both; the reminder itself repeats the text."""
    assert (
        texts_for().reminder_set("Call Ana", "tomorrow at 9:00")
        == "Reminder set for tomorrow at 9:00: Call Ana"
    )
    assert texts_for().reminder("Call Ana") == "Reminder: Call Ana"


def test_escalation_names_the_channel_the_preview_and_the_time():
    """The time counts from the question, so the message stays true whenever the operator reads it."""
    assert texts_for().escalation("Delete A", "wa", 600) == (
        "No answer yet on wa: Delete A\nAn answer counts only within 10 minutes of the question."
    )


def test_only_the_question_shows_a_long_preview_whole():
    """Every later message shortens the preview and marks the cut with three dots."""
    english, preview = texts_for("en"), "Send " + "x" * 5_000
    assert preview in english.question(preview, 60)
    retold = [
        english.code_needed(preview, "4821"), english.early(preview), english.ignored(preview),
        english.done(preview, ""), english.failed(preview), english.unknown(preview), english.not_done(preview),
        english.cancelled(preview), english.expired(preview), english.dropped(preview), english.unsafe(preview),
        english.plan_report([("failed", preview, "")]),
    ]  # fmt: skip
    assert all(f"{preview[:300]}..." in words and len(words) < 700 for words in retold)


@pytest.mark.parametrize(
    ("preview", "quoted"),
    [
        ("Delete INV-7?", "Delete INV-7"),
        ("**Delete INV-7?**", "**Delete INV-7**"),
        ("¿Borrar INV-7?", "Borrar INV-7"),
        ("削除しますか\uff1f", "削除しますか"),
        ("Pay 5 EUR?\nTo Bob?", "Pay 5 EUR?\nTo Bob"),
        ("Ask Bob: why? And wait", "Ask Bob: why? And wait"),
        ("?", "?"),
    ],
)
def test_preview_that_is_a_question_is_quoted_as_a_statement(preview: str, quoted: str):
    """Saying "Nothing was done: Delete INV-7?" would ask again; the question itself keeps its mark."""
    texts = texts_for("en")
    assert texts.question(preview, 60).startswith(preview)
    for said in (texts.cancelled(preview), texts.dropped(preview)):
        assert said.removesuffix("”").endswith((f": “{quoted}", f":\n{quoted}"))
    assert texts.undo(preview) == f"Undo: {quoted}"


def test_result_of_the_tool_replaces_our_text():
    """The message is the tool's result if it has one, else the preview with "Done"."""
    assert (texts_for().done("Delete A", "3 deleted"), texts_for().done("Delete A", "")) == (
        "3 deleted",
        "Done: Delete A",
    )


def test_result_of_spaces_is_no_result():
    """The message says that it was done, without an empty line below."""
    assert texts_for().done("Delete A", " \n") == "Done: Delete A"


def test_plan_lists_its_steps_in_order():
    """Each step is one line under its number."""
    assert texts_for().plan(["Delete A", "Mail B"]) == (
        "2 steps, in this order, stopping at the first that fails:\n1. Delete A\n2. Mail B"
    )


def test_plan_lists_steps_whose_previews_are_questions_as_statements():
    """All in one form, in the question and where an outcome quotes it."""
    plan = texts_for().plan(["Refund order 3?", "Refund order 4?"])
    assert plan.endswith(":\n1. Refund order 3\n2. Refund order 4")
    assert texts_for().cancelled(plan).endswith(":\n1. Refund order 3\n2. Refund order 4")


def test_report_of_a_finished_plan_asks_for_nothing():
    """The report contains results only."""
    steps = [("done", "Delete A", "A is gone"), ("done", "Mail B", "")]
    assert texts_for().plan_report(steps) == "Steps done: 2 of 2.\n1. A is gone\n2. Done: Mail B"


def test_report_of_a_failed_plan_names_the_state_of_each_step():
    """The report marks each step as done, failed or not started, and ends with what to do next."""
    steps = [("done", "Delete A", ""), ("failed", "Mail B", ""), ("cancelled", "Pay C", "")]
    assert texts_for().plan_report(steps).splitlines() == [
        "Steps done: 1 of 3.",
        "1. Done: Delete A",
        "2. Failed: Mail B",
        "3. Not started: Pay C",
        "",
        "I did not try again. Check what failed, then ask again for what you still need.",
    ]


def test_report_of_a_plan_without_a_started_step_says_what_to_do():
    """No step failed, so the report asks for no check."""
    report = texts_for().plan_report([("cancelled", "Delete A", "")])
    assert (
        report
        == f"Steps done: 0 of 1.\n1. Not started: Delete A\n\n{catalogue('en')['after_cancelled']}"
    )


def test_result_of_several_lines_stays_under_its_step():
    """Further lines of a result are indented, so they do not look like another step."""
    report = texts_for().plan_report([("done", "Delete A", "A is gone\n2. B is gone")])
    assert report == "Steps done: 1 of 1.\n1. A is gone\n   2. B is gone"


@pytest.mark.parametrize(
    ("count", "form"),
    [
        (1, "one"), (2, "two"), (3, "few"), (10, "few"), (11, "many"), (99, "many"), (100, "other"), (102, "other"),
        (103, "few"), (110, "few"), (111, "many"), (202, "other"),
    ],
)  # fmt: skip
def test_arabic_has_the_plural_forms_of_cldr(count, form):
    """The rule also tells forms apart that the present catalogue spells alike."""
    assert plural_form(catalogue("ar")["plural"], count) == form


@pytest.mark.parametrize(
    ("count", "spoken"),
    [
        (1, "1 секунду"), (2, "2 секунды"), (4, "4 секунды"), (5, "5 секунд"), (11, "11 секунд"), (12, "12 секунд"),
        (21, "21 секунду"), (22, "22 секунды"), (100, "100 секунд"), (101, "101 секунду"), (111, "111 секунд"),
        (112, "112 секунд"),
    ],
)  # fmt: skip
def test_russian_durations_use_all_plural_forms(count, spoken):
    """The last digits select the form for one, a few or many."""
    assert texts_for("ru").undo_offer(count) == f"Это можно вернуть ещё {spoken}."


def test_unknown_plural_rule_is_refused_with_its_cure():
    """The error says how to write the rule; no text with a wrong form goes out."""
    with pytest.raises(ValueError, match="write it as in CLDR"):
        plural_form({"one": "n is 1"}, 1)


def test_russian_texts_give_the_bot_no_gender():
    """No sentence has "I" with a past verb, which would be masculine or feminine."""
    assert [
        key
        for key, said in told("ru").items()
        if re.search(r"(?i)\bя (не )?\w+(л|ла|лся|лась)\b", said)
    ] == []


def test_unclear_step_is_never_reported_as_done_or_failed():
    """The report calls the step interrupted and leaves out its earlier result."""
    said = texts_for().plan_report([("unknown", "Mail B", "all fine"), ("cancelled", "Pay C", "")])
    assert "1. Interrupted, and I cannot tell whether it finished: Mail B" in said
    assert "all fine" not in said
    assert said.endswith(
        "I will not repeat the unclear step. Check it, then ask again for what you still need."
    )


def test_arabic_isolates_inserted_text():
    """A Latin preview inside an Arabic sentence must not reorder it."""
    isolated = "\u2068Delete A\u2069"
    assert all(isolated in getattr(texts_for("ar"), name)("Delete A") for name in SAYS_PREVIEW)
    assert texts_for("ar").reminder_set("Delete A", "9:00").count("\u2068") == 2
    assert texts_for("ar").escalation("Delete A", "wa", 60).count("\u2068") == 2
    assert texts_for("ar").plan(["Delete A", "B"]).splitlines()[1] == f"1. {isolated}"


def test_shortened_preview_closes_its_code_block_and_escapes():
    """The cut leaves no code block open, which would swallow the text after it, and no backslash alone."""
    assert brief("```\n" + "x" * 400).endswith("x...\n```")
    assert brief("x" * 299 + r"\[click](https://evil.example)") == "x" * 299 + "..."
    assert brief("x" * 298 + r"\\" + "y" * 9) == "x" * 298 + r"\\..."
    assert brief("x" * 300) == "x" * 300


@pytest.mark.parametrize("kept", range(1, 5))
def test_shortened_preview_leaves_no_part_of_a_written_space(kept):
    """A leading space is written as `&#32;`, which the cut may split after any character."""
    assert brief("x" * (300 - kept) + "&#32;y") == "x" * (300 - kept) + "..."


@pytest.mark.parametrize(
    ("question", "statement"),
    [
        ("**Delete A?**", "**Delete A**"),
        ("**¿Borrar A?**", "**Borrar A**"),
        ("¿Borrar **A**?", "Borrar **A**"),
        ("¿*Borrar A*? ", "*Borrar A*"),
        ("Borrar A. ¿Seguro?", "Borrar A. Seguro"),
        ("¿Borrar A", "¿Borrar A"),
        ("* Delete A\n* Delete B", "* Delete A\n* Delete B"),
        ("*?*", "*?*"),
    ],
)
def test_question_becomes_a_statement_within_its_emphasis(question, statement):
    """The marks of the question go, those of the emphasis stay."""
    assert as_statement(question) == statement


@pytest.mark.parametrize("language", ALL)
def test_how_to_answer_stands_below_the_list_of_a_plan(language):
    """Markdown would make the line a part of the last step, and indent it."""
    texts = texts_for(language)
    plan = texts.plan([Markdown("Delete A"), Markdown("Delete B")])
    *_, gap, how_to_answer = plain(texts.explained(plan, 60)).split("\n")
    assert gap == ""
    assert how_to_answer == how_to_answer.lstrip()


def test_notice_of_lost_messages_says_on_which_day(monkeypatch):
    """What was lost may be from the day before: a time alone would mean today."""
    at = 1_798_727_400.0
    monkeypatch.delenv("SAYSO_TIMEZONE", raising=False)
    assert "from 2026-12-31 14:30 UTC on" in texts_for().forgot_turns(at)
    monkeypatch.setenv("SAYSO_TIMEZONE", "Asia/Kolkata")
    assert "before 2026-12-31 20:00 made" in texts_for().forgot_answer(at)
