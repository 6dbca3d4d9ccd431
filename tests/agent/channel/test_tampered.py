"""Tampering: a record that differs from what was shown runs nothing, and the user reads what is known."""

from __future__ import annotations

import json
import logging

import pytest

from sayso.agent import ChannelAgent
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.channels.i18n.texts import texts_for
from sayso.pending.stored_action import StoredAction
from tests.contracts.rigs import CHAT
from tests.workers.fakes import Bot

WORDS = texts_for("en")
#: What stands in place of a preview that was changed.
CHANGED = "an action that was changed"


def steps(bot) -> list[str]:
    """Return the ids of the steps of the open plan."""
    return [
        step["id"] for step in bot.rig.repository.load_open(CHAT.id, bot.scope).action.args["steps"]
    ]


def found(bot, pid: str) -> StoredAction:
    """Return the stored action with this id."""
    return bot.rig.repository.load(CHAT.id, (pid,))[0]


def key(bot, pid: str) -> str:
    """Return the Redis key of the action."""
    return f"{bot.rig.shard}:pending:{pid}"


def lose(bot, pid: str) -> None:
    """Delete the record."""
    bot.rig.client.delete(key(bot, pid))


def rewrite(bot, pid: str, record: str) -> None:
    """Replace the signed text of the record."""
    bot.rig.client.hset(key(bot, pid), "record", record)


def change(bot, pid: str) -> None:
    """Change the signed text of the record."""
    rewrite(bot, pid, found(bot, pid).record.replace("Delete", "Forget"))


def take_over(bot, pid: str) -> None:
    """Set another attempt on the record, so that the result of the current attempt is refused."""
    bot.rig.client.hset(key(bot, pid), "attempt_id", "another")


@pytest.mark.parametrize("number", [0, 1])
def test_plan_with_a_missing_step_runs_nothing(make_bot, caplog, number):
    """The user agreed to the whole plan, so the other steps do not run either. A second tap gets the same answer."""
    bot = make_bot("A B")
    question = bot.say("delete them")
    lose(bot, steps(bot)[number])
    with caplog.at_level(logging.ERROR):
        told = bot.say(tap=bot.buttons[0].data)
    assert told == WORDS.unsafe(question.partition("\n\n")[0])
    assert (bot.deleted, found(bot, bot.buttons[0].data[1:23]).state) == ([], "failed")
    assert "pending.tampered" in caplog.text
    assert bot.say(tap=bot.buttons[0].data) == told


@pytest.mark.parametrize("number", [0, 1, 2])
def test_plan_with_a_changed_step_runs_nothing(make_bot, number):
    """The steps before it do not run either, and no changed text is shown."""
    bot = make_bot("A B C")
    bot.say("delete them")
    names = steps(bot)
    change(bot, names[number])
    assert "Forget" not in bot.say("yes")
    assert bot.deleted == []
    assert [found(bot, name).state for name in names] == ["cancelled"] * 3


@pytest.mark.parametrize(
    ("number", "damage", "deleted", "states"),
    [
        (1, change, ["A"], ("done", "cancelled")),
        (0, change, ["A", "B"], ("done", "done")),
        (0, lose, ["A", "B"], ("unknown", "done")),
        (0, take_over, ["A", "B"], ("unknown", "done")),
    ],
)
def test_record_damaged_during_the_first_step_does_not_change_the_report(
    make_bot, number, damage, deleted, states
):
    """The report shows each step that ran with its true outcome, in the text of the preview."""
    bot = make_bot("A B")
    bot.say("delete them")
    name = steps(bot)[number]
    bot.before("finish", lambda: damage(bot, name))
    told = bot.say("yes")
    assert bot.deleted == deleted
    shown = zip(states, ("Delete A", "Delete B"), ("deleted A", "deleted B"), strict=True)
    assert told == WORDS.plan_report(
        [(state, preview, said if state == "done" else "") for state, preview, said in shown]
    )


def test_started_plan_with_a_missing_step_is_unknown(make_bot):
    """An earlier worker's step may have taken effect, so the reply does not claim that nothing was done."""
    bot = make_bot("A B")
    question = bot.say("delete them")
    names = steps(bot)
    plan = bot.buttons[0].data[1:23]
    bot.hear("yes")
    bot.die_after("finish")
    lose(bot, names[1])
    told = bot.work()
    assert told == WORDS.unknown(question.partition("\n\n")[0])
    assert (bot.deleted, found(bot, plan).state) == (["A"], "unknown")


def test_claimed_plan_with_a_missing_step_did_nothing(make_bot):
    """A claimed step has certainly not started, so the user reads that nothing was done."""
    bot = make_bot("A B")
    question = bot.say("delete them")
    names = steps(bot)
    plan = bot.buttons[0].data[1:23]
    bot.hear("yes")
    bot.die_after("claim", 2)  # the plan's own claim is the first
    lose(bot, names[1])
    assert bot.work() == WORDS.unsafe(question.partition("\n\n")[0])
    assert (bot.deleted, found(bot, plan).state) == ([], "failed")


def test_started_action_with_a_changed_record_is_unknown(make_bot, caplog):
    """It can no longer be cancelled, and its changed text is not shown; the scope is free."""
    bot = make_bot("A", "B")
    bot.say("delete it")
    pid = bot.buttons[0].data[1:23]
    bot.hear("yes")
    bot.die_after("start")
    change(bot, pid)
    with caplog.at_level(logging.ERROR):
        told = bot.work()
    assert told == WORDS.unknown("an action that was changed")
    assert (bot.deleted, found(bot, pid).state) == ([], "unknown")
    assert "pending.tampered" in caplog.text
    bot.say("delete B")
    assert bot.say("yes") == "deleted B"


def test_action_changed_before_the_yes_is_disarmed(make_bot):
    """The user reads that the stored action differs from the question, without any changed text."""
    bot = make_bot("A", "B")
    bot.say("delete it")
    pid = bot.buttons[0].data[1:23]
    change(bot, pid)
    assert bot.say("yes") == WORDS.tampered()
    assert (bot.deleted, found(bot, pid).state, found(bot, pid).outcome_text) == (
        [],
        "cancelled",
        WORDS.tampered(),
    )
    bot.say("delete B")
    assert bot.say("yes") == "deleted B"


@pytest.mark.parametrize("names", ["A", "A B"])
def test_record_changed_after_the_effect_cannot_be_undone(make_bot, names):
    """The worker was killed before its answer; the next one offers no undo of an untrusted record."""
    undone = []
    bot = make_bot(names, undo=lambda name: f"restored {undone.append(name) or name}")
    bot.say("delete it")
    plan = len(names) > 1
    pid = steps(bot)[0] if plan else bot.buttons[0].data[1:23]
    bot.hear("yes")
    bot.die_after("finish", 3 if plan else 1)
    change(bot, pid)
    assert "undo" not in bot.work().lower()
    assert bot.deleted == names.split()


#: Changes of single fields to values that no action has, and a record that is no object or cannot be parsed.
MISSHAPEN = [
    *({"args": args} for args in ({}, None, [], {"steps": None}, {"steps": [5]}, {"steps": [{}]})),
    *(
        {name: value}
        for name in ("kind", "preview", "language", "ran_beside", "code", "plan")
        for value in (5, ["x"])
    ),
    {"requested_at": "now", "ttl_seconds": None},
    "[]",
    "[" * 100_000,
    "no JSON",
]


@pytest.mark.parametrize("shape", MISSHAPEN, ids=lambda shape: str(shape)[:40])
@pytest.mark.parametrize("names", ["A", "A B"])
def test_record_of_a_wrong_shape_fails_no_turn(make_bot, names, shape):
    """Its worker died before the answer. The next one reports the outcome, and a further tap is answered too."""
    bot = make_bot(names)
    bot.say("delete it")
    tap = bot.buttons[0].data
    pid = tap[1:23]
    bot.hear("yes")
    bot.die_after("finish", 3 if " " in names else 1)
    record = (
        shape if isinstance(shape, str) else json.dumps(json.loads(found(bot, pid).record) | shape)
    )
    rewrite(bot, pid, record)
    assert "deleted A" in bot.work()
    assert bot.say(tap=tap) == WORDS.already_done("an action that was changed")
    assert bot.deleted == names.split()


def test_further_tap_repeats_no_changed_text(make_bot):
    """The user never read the changed preview, so the answer does not say that it is done."""
    bot = make_bot("A")
    bot.say("delete it")
    tap = bot.buttons[0].data
    bot.say(tap=tap)
    change(bot, tap[1:23])
    assert bot.say(tap=tap) == WORDS.already_done("an action that was changed")


def ask_and_change(make_bot, request: str = "delete it") -> Bot:
    """Return a bot whose open question "Delete A" reads "Forget A" in the store, with another tool beside it."""
    bot = make_bot("A", lines=["Sunny.", "Still sunny."])
    bot.say(request)
    pid = bot.buttons[0].data[1:23]
    record = json.loads(found(bot, pid).record)
    rewrite(
        bot,
        pid,
        json.dumps({**record, "preview": "Forget A", "ran_beside": "`forget`", "code": "1234"}),
    )
    return bot


def assert_nothing_of_the_record_is_repeated(bot: Bot) -> None:
    """Look at all that was sent, at the stored outcome, and at what the model reads next."""
    bot.say("what is the weather?")
    read = [message.content for message in bot.provider.requests[-1].messages]
    outcome = found(bot, bot.buttons[0].data[1:23]).outcome_text
    assert "forget" not in f"{bot.channel.sent} {read} {outcome}".casefold()


@pytest.mark.parametrize("words", ["yes", "yes 1234", "sim"])
@pytest.mark.parametrize("seconds", [0, 61])
def test_yes_to_a_changed_record_is_refused(make_bot, caplog, words, seconds):
    """In time or late, with the code of the changed record or without, in a language of the parser; it is logged."""
    bot = ask_and_change(make_bot)
    bot.rig.pass_time(seconds)
    with caplog.at_level(logging.ERROR):
        assert bot.say(words) == WORDS.tampered()
    assert "pending.tampered" in caplog.text
    assert_nothing_of_the_record_is_repeated(bot)
    assert bot.deleted == []


def test_yes_in_the_language_of_the_turn_is_refused(make_bot, caplog):
    """The changed record does not say in which language it asked."""
    bot = ask_and_change(make_bot, "Bitte lösche die alte Rechnung von gestern")
    german = ChannelAgent(
        bot.agent.agent,
        bot.rig.store,
        journals=bot.rig.journals,
        behavior=ChannelBehavior(languages=["de"]),
    )
    bot.processor.turns.agents["chat"] = german
    assert bot.say("ja") == WORDS.tampered()
    assert "pending.tampered" in caplog.text


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("no", WORDS.cancelled(CHANGED)),
        ("what is the weather?", f"{WORDS.dropped(CHANGED)}\n\nSunny."),
        ("hmm", f"{WORDS.dropped(CHANGED)}\n\nSunny."),
        ("which one?", f"{WORDS.dropped(CHANGED)}\n\nSunny."),
        ("/reset", f"{WORDS.reset_done()}\n{WORDS.cancelled(CHANGED)}"),
    ],
)
def test_message_repeats_nothing_of_a_changed_record(make_bot, words, answer):
    """The question cannot be asked again, because its yes would be refused; so an unclear answer drops it."""
    bot = ask_and_change(make_bot)
    assert bot.say(words) == answer
    assert_nothing_of_the_record_is_repeated(bot)


def test_status_repeats_nothing_of_a_changed_record(make_bot):
    """It says that a question is open."""
    bot = ask_and_change(make_bot)
    assert bot.say("/status").endswith(f"left: {CHANGED}")
    assert_nothing_of_the_record_is_repeated(bot)


@pytest.mark.parametrize(
    ("intent", "seconds", "answer"),
    [
        ("confirm", 0, WORDS.tampered()),
        ("confirm", 61, WORDS.tampered()),
        ("cancel", 0, WORDS.cancelled(CHANGED)),
        ("ignore", 0, WORDS.ignored(CHANGED)),
        ("ignore", 61, WORDS.expired(CHANGED)),
    ],
)
def test_tap_repeats_nothing_of_a_changed_record(make_bot, intent, seconds, answer):
    """Nor does the edit of the question."""
    bot = ask_and_change(make_bot)
    token = bot.rig.store.signer.button_token(bot.buttons[0].data[1:23], intent, bot.turn().scope)
    bot.rig.pass_time(seconds)
    assert bot.say(tap=token) == answer
    assert_nothing_of_the_record_is_repeated(bot)


def test_late_answer_repeats_nothing_of_a_changed_record(make_bot):
    """A worker noted the end of its window before the yes."""
    bot = ask_and_change(make_bot)
    bot.rig.pass_time(61)
    bot.rig.overdue()
    bot.work()
    assert bot.say("yes") == WORDS.expired(CHANGED)
    assert_nothing_of_the_record_is_repeated(bot)


def test_failed_turn_repeats_nothing_of_a_changed_record(make_bot):
    """The turn drops the question."""
    bot = ask_and_change(make_bot)
    answer = bot.agent.agent.arun

    async def broken(*_: object, **__: object):
        bot.agent.agent.arun = answer
        raise RuntimeError("secret")

    bot.agent.agent.arun = broken
    assert bot.say("what else?") == f"{WORDS.dropped(CHANGED)}\n\n{WORDS.broken()}"
    assert_nothing_of_the_record_is_repeated(bot)


@pytest.mark.parametrize("digest", [None, "another"])
def test_message_without_a_worker_repeats_nothing_of_a_changed_record(make_bot, digest, caplog):
    """A yes is refused as tampered, whatever digest the caller expects; the store shows no changed text either."""
    bot = ask_and_change(make_bot)
    here = {"channel_id": "chat", "conversation_id": CHAT.address}
    assert bot.rig.store.get("ana", **here).preview == CHANGED
    assert (
        bot.agent.ask_channel("ana", "yes", args_digest=digest, **here).content == WORDS.tampered()
    )
    assert "pending.tampered" in caplog.text


@pytest.mark.parametrize("intent", ["confirm", "cancel", "ignore"])
def test_decision_of_the_host_repeats_nothing_of_a_changed_record(make_bot, intent):
    """The seed's caller acknowledges with the preview of the outcome's record."""
    bot = ask_and_change(make_bot)
    outcome = bot.rig.store.pop_if_intent(
        "ana", intent, channel_id="chat", conversation_id=CHAT.address
    )
    assert (outcome.status, outcome.record.preview) == ("digest_mismatch", CHANGED)
