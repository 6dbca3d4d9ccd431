"""Decided: the message that asked loses its buttons and shows its outcome, whoever decided, and however often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.channels.i18n.texts import MAX_REPEATED_CHARS, texts_for
from sayso.channels.types import Tap
from sayso.pending.repository import Claim
from tests.contracts.rigs import CHAT, MemoryRig, turn


class Asking:
    """A bot that has asked, in the message `prompt`."""

    def __init__(self, bot, asked: str = "delete it") -> None:
        self.bot = bot
        bot.say(asked)
        self.confirm, self.cancel = (bot.buttons[0].data, bot.buttons[-1].data)
        self.prompt = self.remember()

    def remember(self) -> str:
        """The platform's id of the last message is kept with the action it asks for, as when it was settled."""
        message = f"m{len(self.bot.channel.sent)}"
        note_prompt(self.bot.rig, self.bot.buttons[-1].data[1:23], message)
        return message

    def tap(self, data: str, user: str = "ana") -> str:
        """A tap on a button under the prompt, and the words that follow."""
        self.bot.rig.accept(replace(turn("", user=user, tap=data), message_id=self.prompt))
        return self.bot.work()

    @property
    def edits(self) -> list[tuple[str, str]]:
        """What was edited, in order: which message, and what it says now. No edit has buttons, or must arrive."""
        replies = [delivery.reply for delivery in self.bot.channel.sent if delivery.reply.edits]
        assert all(reply.optional and not reply.buttons for reply in replies)
        return [(reply.edits, reply.text) for reply in replies]


def note_prompt(rig, pid: str, message: str) -> None:
    """The message that asked for this action has this id."""
    if isinstance(rig, MemoryRig):
        records = rig.store.repository
        records._put(pid, replace(records._get(pid), prompt=message))
    else:
        rig.client.hset(f"{rig.shard}:pending:{pid}", "prompt", message)


@pytest.fixture
def asking(make_bot):
    """A bot that asks whether to delete A, then B, then says something."""
    return Asking(make_bot("A", "B", lines=["Sunny."]))


def test_tap_of_another_user_edits_nothing(asking):
    """The question is still open, for whom it was asked."""
    assert "the person who asked" in asking.tap(asking.confirm, user="bob")
    assert asking.edits == []


def test_forged_tap_edits_nothing(asking):
    """platforms.md 2.1: nobody can wipe out a message by making up a payload."""
    asking.tap(asking.confirm[:-1] + ("y" if asking.confirm.endswith("x") else "x"))
    assert asking.edits == []


@pytest.mark.parametrize("say", [lambda asking: asking.bot.say("yes"), lambda asking: asking.tap(asking.confirm)])
def test_late_yes_shows_that_the_question_expired(asking, say):
    """In words or by a tap: its buttons do nothing any more."""
    asking.bot.rig.pass_time(61)
    assert "expired" in say(asking)
    (edit,) = asking.edits
    assert edit[0] == asking.prompt
    assert edit[1].startswith("⌛ That confirmation expired: Delete A")


def test_question_that_nobody_answers_shows_that_it_expired(asking):
    """As after a late tap, which finds it so; nobody is disturbed by a message."""
    asking.bot.rig.pass_time(61)
    asking.bot.rig.overdue()
    asking.bot.work()
    (edit,) = asking.edits
    assert "expired" in asking.tap(asking.confirm)
    assert asking.edits == [edit, edit]
    assert edit[0] == asking.prompt
    assert edit[1].startswith("⌛ That confirmation expired: Delete A")
    assert asking.bot.deleted == []


@pytest.mark.parametrize("say", ["yes", "no"])
def test_answer_that_crosses_with_the_end_hears_of_it(asking, say):
    """It is no word to the model."""
    asking.bot.rig.pass_time(61)
    asking.bot.rig.overdue()
    assert "That confirmation expired: Delete A" in asking.bot.say(say)
    assert asking.bot.deleted == []


@pytest.mark.parametrize("answer", ["yes", "no", "something else"])
def test_decided_question_never_expires_afterwards(asking, answer):
    """Whatever it waited for when its window would have closed."""
    asking.bot.say(answer)
    (edit,) = asking.edits
    asking.bot.rig.pass_time(100)
    asking.bot.rig.overdue()
    asking.bot.work()
    assert [each for each in asking.edits if each[0] == asking.prompt] == [edit]
    assert not edit[1].startswith("⌛")


def test_platform_that_edits_nothing_keeps_no_timer(make_bot):
    """Nobody is woken there for nothing."""
    bot = make_bot("A")
    bot.channel.split = lambda reply: [] if reply.edits and reply.optional else [reply]
    bot.say("delete A")
    bot.hear("next")
    _, work = bot.rig.mailbox.lease(CHAT.id, "w9")
    assert work.timers == ()


@pytest.mark.parametrize("say", [lambda asking: asking.bot.say("yes"), lambda asking: asking.tap(asking.confirm)])
def test_yes_shows_the_outcome_before_it_is_told(asking, say):
    """The buttons go first, then the answer comes below."""
    assert say(asking) == "deleted A"
    assert asking.edits == [(asking.prompt, "Delete A\n\n✅ deleted A")]
    assert asking.bot.channel.texts[-2:] == ["Delete A\n\n✅ deleted A", "deleted A"]


def test_second_tap_shows_the_same(asking):
    """However often: what was decided stays what it is."""
    asking.tap(asking.confirm)
    assert asking.tap(asking.confirm) == asking.tap(asking.cancel) == "deleted A"
    assert asking.edits == [(asking.prompt, "Delete A\n\n✅ deleted A")] * 3
    assert asking.bot.deleted == ["A"]


@pytest.mark.parametrize("say", [lambda asking: asking.bot.say("no"), lambda asking: asking.tap(asking.cancel)])
def test_no_shows_that_it_was_cancelled(asking, say):
    """With the sentence that is told."""
    say(asking)
    assert asking.edits == [(asking.prompt, "❌ Cancelled: Delete A")]


def test_moving_on_shows_that_it_was_dropped_before_the_next_question(asking):
    """There are never two sets of buttons that could be meant."""
    assert "Delete B" in asking.bot.say("delete B instead")
    (edit,) = asking.edits
    assert edit == (asking.prompt, "❌ Not confirmed, so I dropped this: Delete A.")
    assert asking.bot.channel.texts[-2] == edit[1]


def test_failure_is_a_warning(asking):
    """Its own words stay inside."""
    asking.bot.broken = {"A"}
    asking.bot.say("yes")
    (edit,) = asking.edits
    assert edit[1].startswith("⚠️ Confirmed, but this failed: Delete A")


def test_no_to_what_runs_already_is_told_so(asking):
    """Code of the author's own had it confirmed: nobody says that it waits, or that nothing was done."""
    claim = Claim(turn("").scope, asking.confirm[1:23], "elsewhere")
    asking.bot.rig.repository.claim(claim, asking.bot.rig.repository.find_open(CHAT.id, asking.bot.scope))
    assert asking.tap(asking.cancel) == texts_for("en").status_running("Delete A")
    asking.bot.rig.pass_time(61)
    assert asking.tap(asking.cancel) == texts_for("en").status_running("Delete A")
    assert asking.edits == []


@pytest.mark.parametrize(("step", "outcome"), [("claim", "✅ deleted A"), ("start", "⚠️"), ("finish", "✅ deleted A")])
def test_killed_worker_leaves_the_edit_to_its_successor(asking, step, outcome):
    """Wherever it died, the message shows what is true, once."""
    asking.bot.hear("yes")
    asking.bot.die_after(step)
    asking.bot.work()
    (edit,) = asking.edits
    assert edit[0] == asking.prompt
    assert outcome in edit[1]


def test_turn_that_is_given_up_closes_what_it_drops(asking):
    """Nothing stays armed behind it, and no buttons either."""

    async def broken(*_, **__):
        raise RuntimeError("secret")

    asking.bot.agent.agent.arun = broken
    assert "Something went wrong" in asking.bot.say("what else?")
    assert asking.edits == [(asking.prompt, "❌ Not confirmed, so I dropped this: Delete A.")]


def test_changed_record_repeats_none_of_its_words(asking):
    """What somebody wrote into Redis is not shown as ours."""
    store = asking.bot.rig.store
    store.signer._keys = [b"another"]
    asking.bot.say("yes")
    (edit,) = asking.edits
    assert edit[0] == asking.prompt
    assert "Delete A" not in edit[1]


def test_plan_shows_each_step(make_bot):
    """As it is told."""
    asking = Asking(make_bot("A B"))
    asking.bot.say("yes")
    (edit,) = asking.edits
    assert "1. Delete A\n2. Delete B" in edit[1]
    assert "✅ Steps done: 2 of 2.\n1. deleted A\n2. deleted B" in edit[1]


def test_undo_leaves_what_was_reported(make_bot):
    """The outcome had its button: it stays, and so does what became of the undo."""
    asking = Asking(make_bot("A", undo=lambda name: f"restored {name}"))
    asking.bot.say("yes")
    asking.prompt = asking.remember()
    assert asking.tap(asking.bot.buttons[0].data) == "restored A"
    assert asking.edits[-1] == (asking.prompt, "deleted A\n\n✅ restored A")


def test_late_undo_leaves_what_was_reported(make_bot):
    """Only the button goes."""
    asking = Asking(make_bot("A", undo=lambda name: f"restored {name}"))
    asking.bot.say("yes")
    asking.prompt = asking.remember()
    asking.bot.rig.pass_time(301)
    asking.tap(asking.bot.buttons[0].data)
    assert asking.edits[-1][1].startswith("deleted A\n\n⌛ That confirmation expired")


def test_long_report_is_never_replaced(make_bot):
    """Its undo is offered in a message of its own, which is what is edited later."""
    asking = Asking(make_bot("A" * 1500, undo=lambda name: "restored"))
    asking.bot.say("yes")
    report, offer = asking.bot.channel.texts[-2:]
    assert report == "deleted " + "A" * 1500
    assert offer == "You can undo this for 5 minutes."


def test_long_preview_is_cut_beside_its_outcome(make_bot):
    """The edit fits in one message of every platform."""
    asking = Asking(make_bot("A" * 3000))
    asking.bot.say("yes")
    (edit,) = asking.edits
    assert len(edit[1]) < 2 * MAX_REPEATED_CHARS + 100


def test_the_tapped_message_is_the_one_that_is_edited(asking):
    """A question that had to be sent twice is closed where its person looked."""
    asking.prompt = "second"
    asking.tap(asking.confirm)
    assert [edited for edited, _ in asking.edits] == ["second"]


def test_question_nobody_knows_the_message_of_is_not_edited(make_bot):
    """As where the platform gives no ids."""
    bot = make_bot("A")
    bot.say("delete A")
    note_prompt(bot.rig, bot.buttons[0].data[1:23], "")
    assert bot.say("yes") == "deleted A"
    assert not any(delivery.reply.edits for delivery in bot.channel.sent)


def test_an_early_or_ignored_question_keeps_its_buttons(asking):
    """It is still open."""
    ignore = asking.bot.rig.store.signer.button_token(asking.confirm[1:23], "ignore", asking.bot.turn().scope)
    asking.tap(ignore)
    assert asking.edits == []
    assert asking.tap(asking.confirm) == "deleted A"
    assert asking.bot.rig.repository.find_open(CHAT.id, asking.bot.scope) is None


def test_choice_tap_does_not_close_another_message(asking):
    """A tap names its own message, not the one that waits."""
    asking.bot.rig.accept(replace(turn(""), tap=Tap("nothing of ours"), message_id="other"))
    asking.bot.work()
    assert asking.edits == []
