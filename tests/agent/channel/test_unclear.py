"""Unclear replies: a reply that may be an answer repeats the question once; a plain "ok" counts only if configured."""

# ruff: noqa: RUF001 - users do type look-alike characters

from __future__ import annotations

import asyncio

import pytest

from sayso.channels.types import Delivery, Reply
from sayso.pending import RegexConfirmParser
from sayso.pending.consent.phrases import SHIPPED_LANGUAGES
from tests.contracts.rigs import CHAT, turn


@pytest.mark.parametrize("words", ["ok", "maybe", "yes?", "yes,", "👍", "yrs"])
def test_unclear_reply_asks_again_within_the_same_window(make_bot, words):
    """It neither confirms nor drops the action: the question comes again with its buttons, and the next yes runs it."""
    bot = make_bot("A")
    bot.say("delete A")
    before = bot.rig.repository.load_open(CHAT.id, bot.scope)
    assert bot.say(words).startswith("I could not tell whether you meant yes or no: Delete A")
    assert [button.label for button in bot.channel.sent[-1].reply.buttons] == ["Yes", "No"]
    after = bot.rig.repository.load_open(CHAT.id, bot.scope)
    assert (after.state, after.expires_at) == ("shown", before.expires_at)
    assert bot.deleted == []
    assert bot.say("yes").startswith("deleted A")


def test_question_and_its_repetition_name_their_preview(make_bot):
    """The preview reaches the adapter through the outbox, apart from the instructions."""
    bot = make_bot("A")
    bot.channel.split = lambda reply: [reply]
    for words in ("delete A", "maybe"):
        bot.say(words)
        reply = bot.channel.sent[-1].reply
        assert reply.preview == "Delete A"
        assert reply.with_preview(str.upper).text == reply.text.replace("Delete A", "DELETE A")


def test_button_of_the_repeated_question_decides(make_bot):
    """The repeated question has the buttons of the first."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.say("hmm")
    confirm, _ = bot.buttons
    assert bot.say(tap=confirm.data).startswith("deleted A")


def test_second_unclear_reply_drops_the_proposal(make_bot):
    """The question is repeated only once."""
    bot = make_bot("A", lines=["I see."])
    bot.say("delete A")
    bot.say("maybe")
    assert "nothing was done: “Delete A”" in bot.say("maybe")
    bot.say("yes")
    assert bot.deleted == []


@pytest.mark.parametrize(
    "words",
    [
        *(
            "wait",
            "Which one?",
            "what is it?",
            "hold on...",
            "why?",
            "welche?",
            "¿qué?",
            "待って",
            "что это?",
            "🤔",
            "⏳",
        ),
        *(
            "hmm",
            "?",
            "wait, what is it?",
            "ok wait",
            "wait wait",
            "waht is it?",
            "wiat",
            "holdon",
            "how much is it?",
        ),
        *("等一下，是什么？", "espera, ¿qué es?", "Was war die Frage?", "ruko, kya hai?"),
    ],
)
def test_question_about_the_question_is_answered_without_a_model(make_bot, words):
    """It says what a yes would do, in any language; the window stays open, and the next yes runs it."""
    bot = make_bot("A")
    bot.say("delete A")
    asked = len(bot.provider.requests)
    before = bot.rig.repository.load_open(CHAT.id, bot.scope)
    assert bot.say(words).startswith(
        "Nothing has been done yet. After a yes I do this: Delete A\nReply **yes**"
    )
    after = bot.rig.repository.load_open(CHAT.id, bot.scope)
    assert (after.state, after.expires_at, len(bot.provider.requests)) == (
        "shown",
        before.expires_at,
        asked,
    )
    assert bot.say("yes").startswith("deleted A")


@pytest.mark.parametrize("words", ["ja", "oui", "да", "evet", "はい", "nein"])
def test_answer_in_a_language_that_is_not_read_asks_again(make_bot, words):
    """The channel reads English, Portuguese and Spanish: another language's yes runs nothing and drops nothing."""
    bot = make_bot("A")
    bot.say("delete A")
    assert bot.say(words).startswith("I could not tell whether you meant yes or no: Delete A")
    assert bot.deleted == []
    assert bot.say("yes").startswith("deleted A")


def test_question_that_names_the_effect_is_answered_without_a_model(make_bot):
    """ "Which order?" asks about "Delete order A"; "which chart?" is a new request."""
    bot = make_bot("A", lines=["I see."], preview="Delete order {name}")
    bot.say("delete A")
    assert bot.say("which order?").startswith(
        "Nothing has been done yet. After a yes I do this: Delete order A"
    )
    assert "nothing was done: “Delete order A”" in bot.say("which chart?")


def test_different_unclear_replies_ask_again_and_the_same_words_drop_the_proposal(make_bot):
    """A person who is still thinking keeps the question; a repeated unclear reply ends it."""
    bot = make_bot("A", lines=["I see."])
    bot.say("delete A")
    for words in ("wait", "which one?", "maybe", "which one?", "ja"):
        bot.say(words)
        assert bot.rig.repository.load_open(CHAT.id, bot.scope).state == "shown"
    assert "nothing was done: “Delete A”" in bot.say("Maybe!")
    assert bot.deleted == []


@pytest.mark.parametrize("last", ["maybe", "which one?"])
def test_question_is_not_repeated_for_ever(make_bot, last):
    """After five repetitions the next unclear reply or question drops the proposal."""
    bot = make_bot("A", lines=["I see."])
    bot.say("delete A")
    for words in ("wait", "which one?", "ok", "which one?", "why"):
        bot.say(words)
    assert "nothing was done: “Delete A”" in bot.say(last)


def test_further_plea_for_time_is_not_answered(make_bot):
    """The person knows that the question stays. It is neither repeated nor dropped, and the next yes runs it."""
    bot = make_bot("A")
    bot.say("delete A")
    for _ in range(4):
        for words in ("wait", "hmm", "one moment please", "⏳", "hold on"):
            bot.say(words)
    assert len(bot.channel.sent) == 2
    assert len(bot.provider.requests) == 1
    assert bot.say("yes").startswith("deleted A")


def test_plea_for_time_leaves_the_history_as_it_was(make_bot):
    """What got no answer is not in the history: the model reads the question and its outcome."""
    bot = make_bot("A", lines=["Bye."])
    for words in ("delete A", "wait", "wait", "yes", "bye"):
        bot.say(words)
    said = [
        message.content
        for message in bot.provider.requests[-1].messages
        if message.role.value == "user"
    ]
    assert said == ["delete A", "wait", "yes", "bye"]


def test_question_about_a_long_preview_repeats_all_of_it(make_bot):
    """A person who asks what the question is reads exactly what a yes would do."""
    preview = "Delete {name}: " + "a line of the order, " * 25
    bot = make_bot("A", preview=preview)
    bot.say("delete A")
    assert preview.replace("{name}", "A").strip() in bot.say("what is it?")


@pytest.mark.parametrize("words", ["what is it?", "wait", "?", "hmm"])
def test_asking_without_an_open_question_goes_to_the_model(make_bot, words):
    """It is about something else."""
    bot = make_bot(lines=["Hello."])
    assert bot.say(words) == "Hello."


def test_question_of_another_member_is_a_message_of_its_own(make_bot):
    """In a group, only the person who was asked is told what a yes would do."""
    bot = make_bot("A", lines=["Hello Bob."])
    bot.say("delete A")
    assert bot.say("what is it?", user="bob") == "Hello Bob."
    assert bot.rig.repository.load_open(CHAT.id, bot.scope).state == "shown"


def test_redelivered_unclear_reply_asks_again_once(make_bot):
    """The second copy of an unclear reply does not count as a second unclear reply."""
    bot = make_bot("A")
    bot.say("delete A")
    unclear = turn("ok")
    bot.rig.accept(unclear)
    bot.work()
    bot.rig.accept(unclear)
    bot.work()
    assert bot.rig.repository.load_open(CHAT.id, bot.scope).state == "shown"
    assert [
        text.startswith("I could not tell whether you meant") for text in bot.channel.texts
    ].count(True) == 1
    assert bot.say("yes").startswith("deleted A")


def test_unrelated_request_still_drops_the_proposal(make_bot):
    """The reply says so."""
    bot = make_bot("A", lines=["Sunny."])
    bot.say("delete A")
    assert "nothing was done: “Delete A”" in bot.say("what is the weather in Rome?")


def test_repeated_question_expires_as_before(make_bot):
    """The repetition does not change the answer to a late yes."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.say("hmm")
    bot.rig.pass_time(61)
    assert "expired: Delete A" in bot.say("yes")
    assert bot.deleted == []


def test_unclear_reply_is_answered_in_the_language_of_the_question(make_bot):
    """The language is known even for an "ok", which exists in every language."""
    bot = make_bot("A")
    bot.say("apaga a fatura de ontem, por favor, já foi paga")
    assert bot.say("ok").startswith("Não entendi se é sim ou não: Delete A")


def test_ok_is_a_yes_only_where_the_channel_allows_it(make_bot):
    """By default, an "ok" repeats the question."""
    bot = make_bot("A")
    bot.behave(confirm_ok=True)
    bot.say("delete A")
    assert bot.say("Ok!").startswith("deleted A")


@pytest.mark.parametrize("words", ["ok?", "ok,", "ok then", "ok...", "sure"])
def test_other_acknowledgement_is_not_an_ok(make_bot, words):
    """Only the plain word "ok" counts."""
    bot = make_bot("A")
    bot.behave(confirm_ok=True)
    bot.say("delete A")
    bot.say(words)
    assert bot.deleted == []


def test_ok_after_another_message_of_the_bot_confirms_nothing(make_bot):
    """The "ok" may answer a reminder that was sent after the question."""
    bot = make_bot("A")
    bot.behave(confirm_ok=True)
    bot.say("delete A")
    bot.rig.outbox.forward(Delivery("other#1", CHAT, Reply("Reminder: call Ana")))
    bot.work()
    assert bot.say("ok").startswith("I could not tell whether you meant")
    assert bot.deleted == []


def test_ok_after_a_message_of_another_user_confirms_nothing(make_bot):
    """In a group, the "ok" may answer another member."""
    bot = make_bot("A", lines=["Hello Bob."])
    bot.behave(confirm_ok=True)
    bot.say("delete A")
    bot.rig.accept(turn("hello", user="bob"))
    bot.work()
    bot.say("ok")
    assert bot.deleted == []


def test_ok_after_the_repeated_question_confirms_nothing(make_bot):
    """The bot's last message is then no plain question."""
    bot = make_bot("A", lines=["I see."])
    bot.behave(confirm_ok=True)
    bot.say("delete A")
    bot.say("hmm")
    bot.say("ok")
    assert bot.deleted == []


def test_ok_written_before_the_question_confirms_nothing(make_bot):
    """The "ok" arrived before the question was shown."""
    bot = make_bot("A", lines=["I see."])
    bot.behave(confirm_ok=True)
    bot.hear("delete A")
    bot.hear("ok")
    bot.work()
    assert bot.deleted == []


def test_ok_with_a_killed_worker_runs_once(make_bot):
    """The next worker continues the action that the "ok" confirmed."""
    bot = make_bot("A")
    bot.behave(confirm_ok=True)
    bot.say("delete A")
    bot.hear("ok")
    bot.die_after("claim")
    assert bot.work().startswith("deleted A")
    assert bot.deleted == ["A"]
    asyncio.run(bot.processor.run(CHAT.id))


@pytest.mark.parametrize(
    "words", ["好的", "evet mi?", "ладно", "ja maar", "sí?", "d'accord", "ठीक है"]
)
def test_unclear_reply_in_another_language_asks_again(make_bot, words):
    """A reply in the user's own language to an English question is neither a yes nor a new request."""
    bot = make_bot("A")
    bot.behave(RegexConfirmParser(SHIPPED_LANGUAGES))
    bot.say("delete A")
    assert bot.say(words).startswith("I could not tell whether you meant yes or no: Delete A")
    assert bot.say("yes").startswith("deleted A")


@pytest.mark.parametrize(
    "words", ["帮我查一下天气", "hava nasıl", "погода в Риме", "hallo daar", "menu", "INV-8"]
)
def test_new_request_in_another_language_drops_the_proposal(make_bot, words):
    """A new request in any language does not count as an unclear reply."""
    bot = make_bot("A", lines=["Sunny."])
    bot.behave(RegexConfirmParser(SHIPPED_LANGUAGES))
    bot.say("delete A")
    assert "nothing was done: “Delete A”" in bot.say(words)
