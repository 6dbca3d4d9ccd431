"""Refusals: what a person reads and answers when the effect itself is a cancellation."""

# ruff: noqa: RUF001 - people do type the letters of their language

from __future__ import annotations

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.i18n.catalogue import LANGUAGES
from sayso.channels.i18n.texts import texts_for
from sayso.pending.action import PendingAction
from sayso.pending.consent.parser import RegexConfirmParser, names_effect, read_answer
from sayso.pending.consent.phrases import SHIPPED_LANGUAGES
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender
from tests.workers.fakes import Bot, FakeChannel

ASKED = "Cancel appointment 9\n\nReply **yes** or **no**, within 60 seconds."
UNDONE = "Nothing was done: “Cancel appointment 9”"


class Clinic(Bot):
    """A bot whose one tool cancels an appointment."""

    def __init__(self) -> None:
        self.rig, self.channel, self.cancelled = Rig(), FakeChannel(), []

        @tool(requires_approval=True, preview="Cancel appointment {number}")
        def cancel_appointment(number: int) -> str:
            """Cancel an appointment."""
            self.cancelled.append(number)
            return f"Appointment {number} is cancelled."

        model = ScriptedProvider([ToolCall("cancel_appointment", {"number": 9}, "c1"), "Sunny."])
        agent = Agent([cancel_appointment], model, AgentConfig(max_retries=0))
        self.agent = ChannelAgent(agent, self.rig.store, journals=self.rig.journals)
        channels = {"chat": self.channel}
        sender = make_sender(self.rig.outbox, channels)
        self.processor = make_processor(self.rig.mailbox, sender, channels, {"chat": self.agent})


def test_question_about_a_cancellation_is_answered_with_yes_or_no():
    """No button and no sentence says "cancel" but the preview."""
    bot = Clinic()
    assert bot.say("please cancel appointment 9 for me") == ASKED
    assert [(button.label, button.effect) for button in bot.buttons] == [
        ("Yes", "Cancel appointment 9"),
        ("No", ""),
    ]


@pytest.mark.parametrize("words", ["no", "no, cancel", "don't do it", "never mind"])
def test_no_to_a_cancellation_says_that_nothing_was_done(words):
    """The appointment stands, and the text cannot be read otherwise."""
    bot = Clinic()
    bot.say("please cancel appointment 9 for me")
    assert bot.say(words) == UNDONE
    assert bot.cancelled == []


@pytest.mark.parametrize("words", ["cancel", "Cancel it!", "cancelar"])
def test_cancel_to_a_cancellation_asks_again(words):
    """It may mean the appointment or the question, so it decides nothing. The same word again is a no."""
    bot = Clinic()
    bot.say("please cancel appointment 9 for me")
    assert bot.say(words).startswith(
        "I could not tell whether you meant yes or no: Cancel appointment 9"
    )
    assert bot.rig.repository.load_open(CHAT.id, bot.scope).state == "shown"
    assert bot.say(words) == UNDONE
    assert bot.cancelled == []


def test_other_request_after_a_cancellation_says_that_nothing_was_done():
    """The dropped question is named in quotation marks."""
    bot = Clinic()
    bot.say("please cancel appointment 9 for me")
    told = bot.say("what is the weather like in Rome today?")
    assert told == "You did not say yes, so nothing was done: “Cancel appointment 9”\n\nSunny."


@pytest.mark.parametrize("language", LANGUAGES)
def test_refusing_button_says_no(language):
    """What the buttons say are answers in their language, and what people are told to reply stands on them."""
    texts, parser = texts_for(language), RegexConfirmParser(SHIPPED_LANGUAGES)
    assert read_answer(parser, texts.confirm_label, language).intent == "confirm"
    assert (texts.confirm_label.casefold(), texts.cancel_label.casefold()) == (texts.yes, texts.no)


@pytest.mark.parametrize(
    ("language", "preview", "cancel", "no"),
    [
        ("ar", "إلغاء الموعد 9", "إلغاء", "لا"),
        ("de", "Termin 9 abbrechen", "abbrechen", "nein"),
        ("es", "Cancelar la cita 9", "cancela", "no"),
        ("fr", "Annuler le rendez-vous 9", "annule", "non"),
        ("hi", "अपॉइंटमेंट 9 रद्द करें", "रद्द करो", "नहीं"),
        ("id", "Batalkan janji 9", "batal", "tidak"),
        ("it", "Annulla l'appuntamento 9", "annulla", "no"),
        ("ja", "予約9をキャンセルする", "キャンセルして", "いいえ"),
        ("nl", "Afspraak 9 annuleren", "annuleer", "nee"),
        ("pt", "Cancelar a consulta 9", "cancela", "não"),
        ("ru", "Отменить запись 9", "отмена", "нет"),
        ("tr", "Randevu 9'u iptal et", "iptal", "hayır"),
        ("zh", "取消预约9", "取消吧", "不要"),
    ],
)
def test_word_for_cancelling_is_unclear_where_it_is_the_effect(language, preview, cancel, no):
    """The plain no stays a no, and to another effect the word is one too."""
    parser = RegexConfirmParser(SHIPPED_LANGUAGES)
    asked = PendingAction("ana", "appointments", preview, language=language)
    other = PendingAction("ana", "delete", "Delete A", language=language)
    assert (
        read_answer(parser, cancel, language).intent
        == read_answer(parser, no, language).intent
        == "cancel"
    )
    assert [names_effect(parser, words, asked) for words in (cancel, no)] == [True, False]
    assert not names_effect(parser, cancel, other)


def test_long_no_of_a_bots_own_parser_is_a_plain_no():
    """Searching it for the effect would take quadratic time where words have no spaces."""

    class SaysNo(RegexConfirmParser):
        def is_cancel(self, msg: str) -> bool:
            return True

    asked = PendingAction("ana", "appointments", "取消预约9", language="zh")
    assert names_effect(SaysNo(), "取消吧", asked)
    assert not names_effect(SaysNo(), "取消吧" * 100, asked)
