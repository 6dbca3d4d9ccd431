"""Decided questions: the message that asked loses its buttons and shows its outcome, however it was decided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.channels.i18n.texts import MAX_REPEATED_CHARS, texts_for
from sayso.channels.types import Tap
from sayso.pending.repository import Claim
from tests.contracts.rigs import CHAT, turn


class Asking:
    """A bot that has asked a question in the message `prompt`."""

    def __init__(self, bot, asked: str = "delete it") -> None:
        self.bot = bot
        bot.say(asked)
        self.confirm, self.cancel = (bot.buttons[0].data, bot.buttons[-1].data)
        self.prompt = self.remember()

    def remember(self) -> str:
        """Store the id of the last message with the action it asks for, and return the id."""
        message = f"m{len(self.bot.channel.sent)}"
        note_prompt(self.bot.rig, self.bot.buttons[-1].data[1:23], message)
        return message

    def tap(self, data: str, user: str = "ana") -> str:
        """Tap a button under the prompt, and return the reply."""
        self.bot.rig.accept(replace(turn("", user=user, tap=data), message_id=self.prompt))
        return self.bot.work()

    @property
    def edits(self) -> list[tuple[str, str]]:
        """Return the edits in order as (message, new text). No edit has buttons, and every edit is optional."""
        replies = [delivery.reply for delivery in self.bot.channel.sent if delivery.reply.edits]
        assert all(reply.optional and not reply.buttons for reply in replies)
        return [(reply.edits, reply.text) for reply in replies]

    @property
    def decided(self) -> list[list[tuple[str, str, str]]]:
        """Return label, data and effect of each button that the edits show without an effect."""
        replies = [delivery.reply for delivery in self.bot.channel.sent if delivery.reply.edits]
        return [
            [(each.label, each.data, each.effect) for each in reply.decided_buttons]
            for reply in replies
        ]


def note_prompt(rig, pid: str, message: str) -> None:
    """Store `message` as the id of the message that asked for this action."""
    rig.client.hset(f"{rig.shard}:pending:{pid}", "question_message", message)


@pytest.fixture
def asking(make_bot):
    """Return a bot that asks whether to delete A, then B, then answers with text."""
    return Asking(make_bot("A", "B", lines=["Sunny."]))


YES = ("Yes", "", "Delete A")
CHOSEN = ("✓ Yes", "", "✓ Delete A")
NO = ("No", "", "")
REFUSED = ("✓ No", "", "")


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (lambda asking: asking.tap(asking.confirm), [CHOSEN, NO]),
        (lambda asking: asking.bot.say("yes"), [CHOSEN, NO]),
        (lambda asking: asking.tap(asking.cancel), [YES, REFUSED]),
        (lambda asking: asking.bot.say("no"), [YES, REFUSED]),
        (lambda asking: asking.bot.say("delete B instead"), [YES, NO]),
        (lambda asking: (asking.bot.rig.pass_time(61), asking.tap(asking.confirm)), [YES, NO]),
        (
            lambda asking: (
                asking.bot.rig.pass_time(61),
                asking.bot.rig.overdue(),
                asking.bot.work(),
            ),
            [YES, NO],
        ),
    ],
    ids=["tap yes", "yes", "tap no", "no", "superseded", "late tap", "expired"],
)
def test_decided_question_keeps_its_buttons_without_data(asking, answer, shown):
    """What was chosen has a mark, in every way that a question ends.

    No button of it decides anything any more.
    """
    answer(asking)
    assert asking.decided[0] == shown


def test_typed_code_is_shown_as_the_choice(make_bot):
    """The question had no button for it."""
    bot = make_bot("A", typed_code=True)
    bot.say("delete it")
    pid = bot.buttons[0].data[1:23]
    note_prompt(bot.rig, pid, "m1")
    bot.say(f"yes {bot.rig.repository.load_open(CHAT.id, bot.scope).action.code}")
    (edit,) = [delivery.reply for delivery in bot.channel.sent if delivery.reply.edits]
    assert [button.label for button in edit.decided_buttons] == ["✓ Yes", "No"]


def test_tap_without_data_confirms_nothing(asking):
    """An app may send a tap on a disabled button.

    It gets a plain answer, and the question stays open.
    """
    asking.bot.rig.accept(replace(turn(""), tap=Tap(""), message_id=asking.prompt))
    assert "no longer" in asking.bot.work()
    assert (asking.edits, asking.bot.deleted) == ([], [])
    assert asking.tap(asking.confirm) == "deleted A"


def test_tap_of_another_user_edits_nothing(asking):
    """The question stays open for the user it was addressed to."""
    assert "the person who asked" in asking.tap(asking.confirm, user="bob")
    assert asking.edits == []


def test_forged_tap_edits_nothing(asking):
    """platforms.md 2.1: a made-up payload cannot clear a message."""
    asking.tap(asking.confirm[:-1] + ("y" if asking.confirm.endswith("x") else "x"))
    assert asking.edits == []


@pytest.mark.parametrize(
    "say", [lambda asking: asking.bot.say("yes"), lambda asking: asking.tap(asking.confirm)]
)
def test_late_yes_shows_that_the_question_expired(asking, say):
    """An expired question loses its buttons after a late text or a late tap."""
    asking.bot.rig.pass_time(61)
    assert "expired" in say(asking)
    assert asking.edits == [(asking.prompt, "Delete A\n\n⌛")]


def test_unanswered_question_shows_that_it_expired(asking):
    """No message follows, so the edit says what happened. A late tap is answered below, so its edit need not."""
    asking.bot.rig.pass_time(61)
    asking.bot.rig.overdue()
    asking.bot.work()
    (edit,) = asking.edits
    assert "expired" in asking.tap(asking.confirm)
    assert asking.edits == [edit, (asking.prompt, "Delete A\n\n⌛")]
    assert edit[0] == asking.prompt
    assert edit[1].startswith("⌛ That confirmation expired: Delete A")
    assert asking.bot.deleted == []


@pytest.mark.parametrize("say", ["yes", "no"])
def test_answer_that_crosses_with_the_expiry_is_told_of_it(asking, say):
    """The answer is not passed to the model."""
    asking.bot.rig.pass_time(61)
    asking.bot.rig.overdue()
    assert "That confirmation expired: Delete A" in asking.bot.say(say)
    assert asking.bot.deleted == []


@pytest.mark.parametrize("answer", ["yes", "no", "something else"])
def test_decided_question_never_expires_afterwards(asking, answer):
    """The time at which its window would have closed passes without an edit."""
    asking.bot.say(answer)
    (edit,) = asking.edits
    asking.bot.rig.pass_time(100)
    asking.bot.rig.overdue()
    asking.bot.work()
    assert [each for each in asking.edits if each[0] == asking.prompt] == [edit]
    assert not edit[1].startswith("⌛")


def test_platform_without_edits_keeps_no_expiry_timer(make_bot):
    """No job starts where the platform could not show the expiry."""
    bot = make_bot("A")
    bot.channel.split = lambda reply: [] if reply.edits and reply.optional else [reply]
    bot.say("delete A")
    bot.hear("next")
    _, work = bot.rig.mailbox.lease(CHAT.id, "w9")
    assert work.timers == ()


@pytest.mark.parametrize(
    "say", [lambda asking: asking.bot.say("yes"), lambda asking: asking.tap(asking.confirm)]
)
def test_outcome_of_a_yes_stands_once_below_the_question(asking, say):
    """The buttons are removed first, and the question shows the yes; then the outcome is sent below."""
    assert say(asking) == "deleted A"
    assert asking.edits == [(asking.prompt, "Delete A\n\n✅ Yes")]
    assert asking.bot.channel.texts[-2:] == ["Delete A\n\n✅ Yes", "deleted A"]


def test_second_tap_shows_the_same_outcome(asking):
    """Repeated taps do not change what was decided."""
    asking.tap(asking.confirm)
    assert asking.tap(asking.confirm) == asking.tap(asking.cancel) == "Already done: Delete A"
    assert asking.edits == [(asking.prompt, "Delete A\n\n✅ Yes")] * 3
    assert asking.bot.deleted == ["A"]


@pytest.mark.parametrize(
    "say", [lambda asking: asking.bot.say("no"), lambda asking: asking.tap(asking.cancel)]
)
def test_no_shows_that_it_was_cancelled(asking, say):
    """The question shows the no, and the reply says that nothing was done."""
    say(asking)
    assert asking.edits == [(asking.prompt, "Delete A\n\n❌ No")]
    assert asking.bot.channel.texts[-1] == "Nothing was done: “Delete A”"


def test_unrelated_message_closes_the_question_before_the_next_one(asking):
    """Two sets of live buttons are never visible at once."""
    assert "Delete B" in asking.bot.say("delete B instead")
    (edit,) = asking.edits
    assert edit == (asking.prompt, "Delete A\n\n❌")
    assert asking.bot.channel.texts[-2] == edit[1]


def test_failure_is_shown_as_a_warning(asking):
    """The words of the exception stay private."""
    asking.bot.broken = {"A"}
    asking.bot.say("yes")
    (edit,) = asking.edits
    assert edit[1] == "Delete A\n\n⚠️ Yes"
    assert asking.bot.channel.texts[-1].startswith("Confirmed, but this failed: Delete A")


def test_no_to_a_running_action_is_told_that_it_runs(asking):
    """Host code confirmed the action elsewhere: the reply claims neither that it waits nor that it was cancelled."""
    claim = Claim(turn("").scope, asking.confirm[1:23], "elsewhere")
    asking.bot.rig.repository.claim(
        claim, asking.bot.rig.repository.load_open(CHAT.id, asking.bot.scope)
    )
    assert asking.tap(asking.cancel) == texts_for("en").status_running("Delete A")
    asking.bot.rig.pass_time(61)
    assert asking.tap(asking.cancel) == texts_for("en").status_running("Delete A")
    assert asking.edits == []


@pytest.mark.parametrize(
    ("step", "outcome"), [("claim", "✅ Yes"), ("start", "⚠️ Yes"), ("finish", "✅ Yes")]
)
def test_killed_worker_leaves_the_edit_to_its_successor(asking, step, outcome):
    """The message shows the true outcome once, at each step where a worker can be killed."""
    asking.bot.hear("yes")
    asking.bot.die_after(step)
    asking.bot.work()
    (edit,) = asking.edits
    assert edit[0] == asking.prompt
    assert outcome in edit[1]


def test_turn_that_is_given_up_closes_the_question_it_drops(asking):
    """Neither an armed action nor its buttons remain after the turn."""

    async def broken(*_, **__):
        raise RuntimeError("secret")

    asking.bot.agent.agent.arun = broken
    assert "Something went wrong" in asking.bot.say("what else?")
    assert asking.edits == [(asking.prompt, "Delete A\n\n❌")]


def test_changed_record_shows_none_of_its_text(asking):
    """Text that was changed in Redis is not shown as the bot's own."""
    store = asking.bot.rig.store
    store.signer._keys = [b"another"]
    asking.bot.say("yes")
    (edit,) = asking.edits
    assert edit[0] == asking.prompt
    assert "Delete A" not in edit[1]


def test_plan_keeps_its_steps_and_reports_them_once(make_bot):
    """The edit shows what was asked, and the reply how each step ended."""
    asking = Asking(make_bot("A B"))
    asking.bot.say("yes")
    (edit,) = asking.edits
    assert edit[1].endswith("1. Delete A\n2. Delete B\n\n✅ Yes")
    assert asking.bot.channel.texts[-1] == "Steps done: 2 of 2.\n1. deleted A\n2. deleted B"


def test_undo_keeps_the_reported_outcome(make_bot):
    """The message with the undo button keeps the outcome and adds the result of the undo."""
    asking = Asking(make_bot("A", undo=lambda name: f"restored {name}"))
    asking.bot.say("yes")
    asking.prompt = asking.remember()
    assert asking.tap(asking.bot.buttons[0].data) == "restored A"
    assert asking.edits[-1] == (asking.prompt, "deleted A\n\n✅ Undo")
    assert asking.decided[-1] == [("✓ Undo", "", "")]


def test_undo_keeps_the_line_of_an_outcome_that_a_model_follows(make_bot):
    """What was done and then undone stands together, with the sign of the outcome."""
    asking = Asking(make_bot("A", lines=["All done."], undo=lambda name: f"restored {name}"))
    asking.bot.behave(after="continue")
    asking.bot.say("yes")
    (offer,) = [each.reply for each in asking.bot.channel.sent if "undo this" in each.reply.text]
    note_prompt(asking.bot.rig, offer.buttons[0].data[1:23], "offer")
    asking.prompt = "offer"
    asking.tap(offer.buttons[0].data)
    assert asking.edits[-1] == ("offer", "✅ Done: Delete A\ndeleted A\n\n✅ Undo")


def test_undo_of_a_plan_keeps_the_report_of_all_steps(make_bot):
    """Steps that have no undo stay in the message: they were done, too."""
    asking = Asking(make_bot("A B", undo=lambda name: f"restored {name}"))
    asking.bot.say("yes")
    asking.prompt = asking.remember()
    asking.tap(asking.bot.buttons[0].data)
    assert asking.edits[-1][1] == "Steps done: 2 of 2.\n1. deleted A\n2. deleted B\n\n✅ Undo"


def test_late_undo_keeps_the_reported_outcome(make_bot):
    """Only the button is removed."""
    asking = Asking(make_bot("A", undo=lambda name: f"restored {name}"))
    asking.bot.say("yes")
    asking.prompt = asking.remember()
    asking.bot.rig.pass_time(301)
    asking.tap(asking.bot.buttons[0].data)
    assert asking.edits[-1][1] == "deleted A\n\n⌛"


def test_long_report_is_never_replaced(make_bot):
    """The undo is offered in a message of its own, and only that message is edited."""
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


def test_tapped_message_is_the_one_that_is_edited(asking):
    """A question that was sent twice is closed in the copy that the user tapped."""
    asking.prompt = "second"
    asking.tap(asking.confirm)
    assert [edited for edited, _ in asking.edits] == ["second"]


def test_question_without_a_message_id_is_not_edited(make_bot):
    """Some platforms return no message ids."""
    bot = make_bot("A")
    bot.say("delete A")
    note_prompt(bot.rig, bot.buttons[0].data[1:23], "")
    assert bot.say("yes") == "deleted A"
    assert not any(delivery.reply.edits for delivery in bot.channel.sent)


def test_ignored_question_keeps_its_buttons(asking):
    """The question is still open after a tap on ignore."""
    ignore = asking.bot.rig.store.signer.button_token(
        asking.confirm[1:23], "ignore", asking.bot.turn().scope
    )
    asking.tap(ignore)
    assert asking.edits == []
    assert asking.tap(asking.confirm) == "deleted A"
    assert asking.bot.rig.repository.load_open(CHAT.id, asking.bot.scope) is None


def test_unknown_tap_does_not_edit_another_message(asking):
    """A tap names its own message, not the one with the open question."""
    asking.bot.rig.accept(replace(turn(""), tap=Tap("nothing of ours"), message_id="other"))
    asking.bot.work()
    assert asking.edits == []
