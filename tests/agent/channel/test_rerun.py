"""Rerun: which actions may repeat after a crash, how an outcome is reconciled, and what needs a typed code."""

from __future__ import annotations

import pytest

from sayso.infra.concurrency import run_without_loop
from sayso.pending.repository import ActionResult, Claim
from tests.contracts.rigs import CHAT, Blocking


def killed_after_start(make_bot, **options):
    """Return a bot whose worker was killed right after it had started a deletion."""
    bot = make_bot("A", "B", **options)
    bot.say("delete it")
    bot.hear("yes")
    bot.die_after("start")
    return bot


def test_idempotent_tool_runs_again_with_the_same_key(make_bot):
    """The worker was killed after the start and before the outcome: the key is the action's id."""
    bot = make_bot("A", idempotent=True)
    bot.say("delete it")
    bot.hear("yes")
    bot.broken = {"A"}
    bot.die_after("start")
    bot.broken = set()
    assert bot.work() == "deleted A"
    assert set(bot.keys) == {bot.buttons[0].data[1:23]}


def test_idempotent_tool_is_started_three_times_at_most(make_bot):
    """A tool that kills its worker each time is given up."""
    bot = killed_after_start(make_bot, idempotent=True)
    bot.die_after("start")
    bot.die_after("start")
    assert "cannot tell" in bot.work()
    assert bot.deleted == []


def test_second_tap_overtaken_by_the_outcome_reports_the_outcome(make_bot):
    """The outcome arrives while the reply "unknown" is being committed; the reply must not follow the correction."""
    bot = killed_after_start(make_bot)
    assert "cannot tell" in bot.work()
    tap = bot.buttons[0].data
    records, commit = bot.rig.store.repository, bot.rig.mailbox.commit
    (stored,) = Blocking(records).load(CHAT.id, (tap[1:23],))

    def overtaken(*args, **options):
        bot.rig.mailbox.commit = commit
        claim = Claim(bot.turn().scope, stored.action_id, stored.decided_by_event)
        run_without_loop(
            records.finish(claim, stored.attempt_id, ActionResult("done", "deleted A", "deleted A"))
        )
        return commit(*args, **options)

    bot.rig.mailbox.commit = overtaken
    assert bot.say(tap=tap) == "deleted A"


def test_tool_that_is_not_idempotent_is_never_repeated(make_bot):
    """The user reads that the outcome is unknown."""
    bot = killed_after_start(make_bot)
    assert "cannot tell" in bot.work()
    assert bot.deleted == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("A is gone", "A is gone"),
        (True, "Done: Delete A"),
        (False, "this was not done: Delete A"),
        (None, "cannot tell"),
        ("raise", "cannot tell"),
        (42, "cannot tell"),
    ],
)
def test_reconcile_decides_how_an_interrupted_action_ended(make_bot, answer, words):
    """A text or True means it took effect, False that it did not; anything else leaves the outcome unknown."""
    seen = []

    def reconcile(record):
        seen.append((record.kind, record.args))
        if answer == "raise":
            raise RuntimeError("secret")
        return answer

    bot = killed_after_start(make_bot, reconcile=reconcile)
    told = bot.work()
    assert words in told
    assert "secret" not in told
    assert (seen, bot.deleted) == ([("delete", {"name": "A"})], [])
    bot.say("delete B")
    assert bot.say("yes") == "deleted B"


def test_async_reconcile_is_awaited(make_bot):
    """A reconcile function may call a remote service."""

    async def reconcile(_):
        return True

    assert killed_after_start(make_bot, reconcile=reconcile).work() == "Done: Delete A"


@pytest.mark.parametrize("words", ["yes", "sim", "yes 0000x", "yes, please"])
def test_plain_yes_is_not_enough_where_a_code_is_required(make_bot, words):
    """The reply repeats the code, and the action stays open."""
    bot = make_bot("A", typed_code=True, lines=["Sunny."])
    question = bot.say("delete it")
    code = bot.code_in(question)
    told = bot.say(words)
    assert bot.deleted == []
    if words != "yes 0000x":
        assert code in told
        assert bot.say(f"yes {code}") == "deleted A"


def test_wrong_code_confirms_nothing(make_bot):
    """Only the exact code confirms."""
    bot = make_bot("A", typed_code=True)
    code = bot.code_in(bot.say("delete it"))
    bot.say(f"yes {(int(code) + 1) % 10_000:04}")
    assert bot.deleted == []
    assert bot.say(f"Yes {code}.") == "deleted A"


def test_question_with_a_code_has_no_confirm_button(make_bot):
    """The code must be typed; a forged confirm button does nothing."""
    bot = make_bot("A", typed_code=True)
    bot.say("delete it")
    (cancel,) = bot.buttons
    assert cancel.label == "No"
    bot.say(tap=bot.rig.store.signer.button_token(cancel.data[1:23], "confirm", bot.turn().scope))
    assert bot.deleted == []
    bot.say(tap=cancel.data)
    assert "Nothing was done" in bot.channel.texts[-1]


def test_yes_with_an_unasked_code_confirms_nothing(make_bot):
    """The text answers something else."""
    bot = make_bot("A", lines=["What do you mean?"])
    bot.say("delete it")
    bot.say("yes 1234")
    assert bot.deleted == []


def test_tool_changed_since_the_preview_does_not_run(make_bot):
    """A new version was deployed between the question and the yes."""
    bot = make_bot("A", version="2")
    bot.say("delete it")
    bot.rig.store.executors.kinds = make_bot("A", version="3").rig.store.executors.kinds
    assert "Nothing was done" in bot.say("yes")
    assert bot.deleted == []


def test_question_is_asked_in_the_users_language(make_bot):
    """The outcome is in the same language."""
    bot = make_bot("A")
    assert "**sim**" in bot.say(
        "você pode apagar a fatura para mim, por favor? não preciso mais dela"
    )
    assert bot.say("não") == "Nada foi feito: “Delete A”"
