"""A standing yes: what it covers, how often, and what ends it."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace

import pytest

from sayso.agent import ScriptedProvider, ToolPolicy
from sayso.agent.tools.errors import ToolValidationError
from sayso.channels.types import Tap, Turn
from sayso.pending.decision_record import DecisionRecord
from sayso.pending.standing_rule import StandingLimit
from tests.agent.channel.till import ANA, ELSEWHERE, RULE, Till
from tests.workers.fakes import Overtaken

HOUR = 3600.0


def test_covered_call_runs_without_a_question():
    """The person is told each time, with the preview, the count and the end."""
    till = Till(30, 40)
    till.stand()
    assert till.refunds == [(30, "c1")]
    assert "need no answer until" in till.texts[-1]
    till.ask()
    assert till.refunds == [(30, "c1"), (40, "c1")]
    assert till.texts[-1].startswith("Done under your standing yes (1 of 3, until ")
    assert "Refund 40.0 to c1" in till.texts[-1]
    assert "refunded 40" in till.texts[-1]


def test_plain_yes_and_typed_words_give_no_standing_yes():
    """Only the third button does."""
    till = Till(30, 40, 45)
    till.ask()
    till.tap(0)
    till.ask()
    till.ask("yes")
    till.ask()
    assert till.refunds == [(30, "c1"), (40, "c1")]
    assert till.standing() == []
    assert "Reply **yes**" in till.texts[-1]


def test_used_up():
    """One call too many is asked about."""
    till = Till(30, 31, 32, 33, 34)
    till.stand()
    for _ in range(4):
        till.ask()
    assert [amount for amount, _ in till.refunds] == [30, 31, 32, 33]
    assert "Reply **yes**" in till.texts[-1]


def test_expired():
    """At its end it covers nothing more."""
    till = Till(30, 40, 41)
    till.stand()
    till.later(HOUR - 1)
    till.ask()
    assert len(till.refunds) == 2
    till.later(2)
    till.ask()
    assert len(till.refunds) == 2
    assert "Reply **yes**" in till.texts[-1]


def test_expired_between_the_proposal_and_the_run():
    """What counts is the moment of the claim."""
    till = Till(30, 40)
    till.stand()
    till.hear("refund please")
    till.run_one_turn()
    till.later(HOUR)
    till.work()
    assert till.refunds == [(30, "c1")]
    assert "Reply **yes**" in till.texts[-1]
    till.tap(0)
    assert till.refunds == [(30, "c1"), (40, "c1")]
    assert "standing" not in till.texts[-1]


@pytest.mark.parametrize(
    ("amount", "is_covered"),
    [(50, True), (50.0, True), ("50", True), (50.01, False), (51, False), (-1, True)],
)
def test_amount_at_and_over_the_bound(amount, is_covered):
    """The value that will run is compared, exactly. A text that the tool reads as 50 is 50."""
    till = Till(30, amount)
    till.stand()
    till.ask()
    assert len(till.refunds) == 1 + is_covered


def test_another_customer_is_asked_about():
    """`same` compares with the confirmed call, and not with the one before."""
    till = Till(30, (31, "c2"), (32, "c1"))
    till.stand()
    till.ask()
    assert till.refunds == [(30, "c1")]
    till.ask("no")
    till.ask()
    assert till.refunds == [(30, "c1"), (32, "c1")]


def test_a_call_over_the_bound_offers_nothing():
    """Later calls would not be the same as this one."""
    till = Till(51)
    till.ask()
    assert len(till.buttons()) == 2
    assert "last button" not in till.texts[-1]


def test_two_calls_at_once_are_asked_about():
    """A plan of several steps never runs under a standing yes."""
    till = Till(30, [31, 32])
    till.stand()
    till.ask()
    assert till.refunds == [(30, "c1")]
    assert len(till.buttons()) == 2


def test_two_turns_at_once_share_the_last_use():
    """Both are proposed while one use is left: the second one is asked about."""
    till = Till(30, 31, 32, rule={**RULE, "times": 1})
    till.stand()
    till.hear("first")
    till.run_one_turn()
    till.hear("second")
    till.work()
    till.work()
    assert till.refunds == [(30, "c1"), (31, "c1")]
    assert till.standing()[0].used == (till.actions()[-1].action_id,)


def test_no_use_is_booked_twice_at_the_same_moment():
    """Another use that is booked between the check and the claim makes the claim fail."""
    till = Till(30, 40, rule={**RULE, "times": 1})
    till.stand()
    till.hear("refund please")
    till.run_one_turn()
    real = till.rig.store.settlement._repository
    yes = till.standing()[0]
    used = yes.used_by("another").sealed(till.rig.store.signer)

    def book() -> None:
        till.rig.client.hset(till.standing_key, yes.id, used.to_json())

    till.rig.store.settlement._repository = Overtaken(real, "claim", book)
    till.work()
    assert till.refunds == [(30, "c1")]
    assert "Reply **yes**" in till.texts[-1]


def test_failed_run_counts_as_a_use():
    """The person is told that it failed, and under which yes."""
    till = Till(30, 13, 14, 15, rule={**RULE, "times": 2})
    till.stand()
    till.ask()
    assert "Under your standing yes (1 of 2" in till.texts[-1]
    assert "this failed" in till.texts[-1]
    till.ask()
    till.ask()
    assert [amount for amount, _ in till.refunds] == [30, 14]


def test_revoke_ends_all():
    """The next call is asked about."""
    till = Till(30, 40)
    till.stand()
    till.ask("/revoke")
    assert "over (1)" in till.texts[-1]
    assert till.standing() == []
    till.ask()
    assert till.refunds == [(30, "c1")]


def test_revoke_by_number():
    """The numbers are those of /status."""
    till = Till(30, (31, "c2"), 32, (33, "c2"))
    till.stand()
    till.later(1)
    till.ask()
    till.tap(2)
    till.ask("/status")
    first, second = till.texts[-1].splitlines()[-2:]
    assert first.startswith("1. ")
    assert "to c1" in first
    assert second.startswith("2. ")
    till.ask("/revoke 1")
    assert "to c1" in till.texts[-1]
    till.ask()
    assert till.refunds == [(30, "c1"), (31, "c2")]
    till.ask("no")
    till.ask()
    assert till.refunds == [(30, "c1"), (31, "c2"), (33, "c2")]


def test_help_names_revoke_only_where_a_yes_may_stand():
    """Elsewhere the command works, too, and there is nothing to end."""
    till = Till()
    till.ask("/help")
    assert "/revoke" in till.texts[-1]
    till.deploy(rule=None)
    till.ask("/help")
    assert "/revoke" not in till.texts[-1]


def test_revoke_without_any():
    """It says that there is none."""
    till = Till()
    till.ask("/revoke")
    assert till.texts[-1] == "You have given no such standing yes here."


def test_revoked_between_the_proposal_and_the_run():
    """The call is asked about."""
    till = Till(30, 40)
    till.stand()
    till.hear("refund please")
    till.run_one_turn()
    till.rig.client.delete(till.standing_key)
    till.work()
    assert till.refunds == [(30, "c1")]
    assert "Reply **yes**" in till.texts[-1]


def test_reset_ends_all():
    """Also while a covered call waits to run."""
    till = Till(30, 40, 41)
    till.stand()
    till.hear("/reset")
    till.work()
    assert till.standing() == []
    till.ask()
    assert till.refunds == [(30, "c1")]


def test_reset_before_a_covered_call_ran():
    """It is cancelled, and its turn does nothing."""
    till = Till(30, 40)
    till.stand()
    till.hear("refund please")
    till.hear("/reset")
    till.run_one_turn()
    till.work()
    assert till.refunds == [(30, "c1")]
    assert till.standing() == []
    assert "Nothing was done: “Refund 40.0" in till.texts[-1]


def test_no_before_a_covered_call_ran():
    """A no cancels it: it waits for nobody's yes, but it has not run."""
    till = Till(30, 40)
    till.stand()
    till.hear("refund please")
    till.hear("no")
    till.run_one_turn()
    till.work()
    assert till.refunds == [(30, "c1")]
    assert "Nothing was done: “Refund 40.0" in till.texts[-1]


def test_other_message_before_a_covered_call_ran():
    """It drops nothing: nobody was asked."""
    till = Till(30, 40, lines=("hello",))
    till.stand()
    till.hear("refund please")
    till.hear("what time is it?")
    till.run_one_turn()
    till.work()
    assert till.refunds == [(30, "c1"), (40, "c1")]
    assert "hello" in till.texts


def test_two_messages_at_once_run_both():
    """The second one is answered before the first call has run, and drops nothing."""
    till = Till(30, 40, 41)
    till.stand()
    till.hear("first")
    till.hear("second")
    till.work()
    till.work()
    assert till.refunds == [(30, "c1"), (40, "c1"), (41, "c1")]
    assert len(till.standing()[0].used) == 2
    assert not any("Nothing was done" in text for text in till.texts)


def test_question_while_a_covered_call_waits_to_run():
    """Both go on: the call runs, and the question can be answered in words."""
    till = Till(30, 40, 60)
    till.stand()
    till.hear("first")
    till.hear("second")
    till.work()
    till.work()
    assert till.refunds == [(30, "c1"), (40, "c1")]
    till.tap(0)
    assert till.refunds == [(30, "c1"), (40, "c1"), (60, "c1")]


def test_open_question_stays_while_a_covered_call_runs():
    """Where a question is kept, another call under a standing yes does not end it."""
    till = Till(30, 60, 40, behavior={"other_message": "keep"})
    till.stand()
    till.ask("sixty")
    question = till.buttons()
    till.ask("and forty")
    assert till.refunds == [(30, "c1"), (40, "c1")]
    till.hear(tap=question[0].data)
    till.work()
    assert till.refunds == [(30, "c1"), (40, "c1"), (60, "c1")]


def test_open_question_is_dropped_by_the_message_of_a_covered_call():
    """As by any other message, where questions are not kept."""
    till = Till(30, 60, 40)
    till.stand()
    till.ask("sixty")
    till.ask("no, forty please")
    assert till.refunds == [(30, "c1"), (40, "c1")]


def test_made_up_turn_runs_nothing():
    """A turn in Redis cannot make a standing yes cover the action of a question."""
    till = Till(30, 45, rule={**RULE, "times": 1})
    till.stand()
    till.hear("refund please")
    till.run_one_turn()
    key = till.key("inbox", ANA.id)
    (entry,) = till.rig.client.lrange(key, 0, -1)
    till.work()
    till.provider = ScriptedProvider([till._answer(46)])
    till.deploy()
    till.ask()
    asked = till.action_of_button()
    old_id = till.actions()[-1].action_id
    seq = int(till.rig.client.hget(till.key("conversation", ANA.id), "last_turn")) + 1
    till.rig.client.hset(till.key("conversation", ANA.id), "last_turn", seq)
    forged = entry.replace(old_id, asked.action_id)
    till.rig.client.rpush(key, f"{seq} {forged.partition(' ')[2]}")
    till.work()
    assert [amount for amount, _ in till.refunds] == [30, 45]


def test_stop_before_a_covered_call_ran():
    """It is cancelled."""
    till = Till(30, 40)
    till.stand()
    till.hear("refund please")
    till.run_one_turn()
    till.hear("/stop")
    till.work()
    assert till.refunds == [(30, "c1")]
    assert any("Nothing was done: “Refund 40.0" in text for text in till.texts)


def test_another_person_in_the_same_group():
    """The yes is that of one person."""
    till = Till(30, 40)
    till.ask(in_group=True)
    till.tap(2, in_group=True)
    till.ask(user="ben", in_group=True)
    assert till.refunds == [(30, "c1")]
    assert "Reply **yes**" in till.texts[-1]


def test_another_person_taps_the_button():
    """It does nothing for them."""
    till = Till(30)
    till.ask(in_group=True)
    till.tap(2, in_group=True, user="ben")
    assert till.refunds == []
    assert till.standing() == []


def test_another_conversation():
    """The yes counts where it was given."""
    till = Till(30, 40)
    till.stand()
    till.ask(place=ELSEWHERE)
    assert till.refunds == [(30, "c1")]


def test_copied_to_another_person():
    """A genuine record under another person's key covers nothing."""
    till = Till(30, 40)
    till.stand()
    ben = replace(till.scope, user_id="ben")
    ((id_, text),) = till.rig.client.hgetall(till.standing_key).items()
    till.rig.client.hset(till.key("standing", ANA.id, ben.id), id_, text)
    till.ask(user="ben", in_group=True)
    assert till.refunds == [(30, "c1")]


@pytest.mark.parametrize(
    "fields",
    [
        {"expires_at": 9e9},
        {"used": []},
        {"same": {"customer": "c2"}},
        {"rule": {"for_seconds": 3600.0, "times": 100, "where": [], "same": []}},
        {"user_id": "ben"},
        {"seal": "00"},
        {"rule": "none"},
        {"used": 5},
    ],
)
def test_changed_in_redis(fields, caplog):
    """It covers nothing, and is logged."""
    till = Till(30, 31, (40, "c2"))
    till.stand()
    till.ask()
    till.forge(**fields)
    with caplog.at_level(logging.ERROR):
        till.ask()
    assert till.refunds == [(30, "c1"), (31, "c1")]
    assert "standing.tampered" in caplog.text


def test_unreadable_in_redis():
    """It is no reason to fail: the call is asked about."""
    till = Till(30, 31)
    till.stand()
    till.rig.client.delete(till.standing_key)
    till.rig.client.hset(till.standing_key, mapping={"x": "{", "y": "[]"})
    till.ask()
    assert till.refunds == [(30, "c1")]


def test_replayed_tap():
    """A platform sends it again: nothing runs and nothing stands twice."""
    till = Till(30)
    till.ask()
    data = till.buttons()[2].data
    till.hear(tap=data, event="t1")
    till.work()
    till.hear(tap=data, event="t1")
    till.work()
    assert till.refunds == [(30, "c1")]
    assert len(till.standing()) == 1


def test_second_tap_after_a_revoke_gives_nothing():
    """The question is over."""
    till = Till(30)
    till.stand()
    data = till.buttons()[2].data
    till.ask("/revoke")
    till.hear(tap=data)
    till.work()
    assert till.refunds == [(30, "c1")]
    assert till.standing() == []


def test_standing_tap_after_a_yes_gives_nothing():
    """The first tap has decided."""
    till = Till(30)
    till.ask()
    buttons = till.buttons()
    till.hear(tap=buttons[0].data)
    till.hear(tap=buttons[2].data)
    till.work()
    assert till.refunds == [(30, "c1")]
    assert till.standing() == []


def test_late_tap_gives_nothing():
    """After the time to answer nothing runs, and nothing stands."""
    till = Till(30)
    till.ask()
    till.later(100)
    till.tap(2)
    assert till.refunds == []
    assert till.standing() == []


@pytest.mark.parametrize("step", ["claim", "start", "finish"])
def test_worker_dies_after_the_tap(step):
    """The yes is neither lost nor doubled."""
    till = Till(30, 40)
    till.ask()
    till.hear(tap=till.buttons()[2].data)
    till.die_after(step)
    assert len(till.standing()) == 1
    till.work()
    assert len(till.standing()) == 1
    assert till.standing()[0].used == ()
    assert len(till.refunds) == (0 if step == "start" else 1)


@pytest.mark.parametrize("step", ["claim", "start", "finish"])
def test_worker_dies_in_a_covered_call(step):
    """It runs at most once, and is one use."""
    till = Till(30, 40)
    till.stand()
    till.hear("refund please")
    till.run_one_turn()
    till.die_after(step)
    till.work()
    assert len(till.standing()[0].used) == 1
    assert len(till.refunds) == (1 if step == "start" else 2)
    assert "standing yes (1 of 3" in till.texts[-1]
    if step == "start":
        assert "I cannot tell whether it finished" in till.texts[-1]


def test_killed_before_the_commit_of_the_run():
    """The effect took place: the next worker only tells it, once."""
    till = Till(30, 40)
    till.stand()
    till.hear("refund please")
    till.run_one_turn()
    till.die_before_commit()
    assert till.refunds == [(30, "c1"), (40, "c1")]
    till.work()
    assert till.refunds == [(30, "c1"), (40, "c1")]
    assert till.texts[-1].startswith("Done under your standing yes (1 of 3")
    assert len([each for each in till.texts if "standing yes (1 of 3" in each]) == 1


def test_outcome_in_one_message_where_each_costs_money():
    """The turn in which the agent goes on tells it, with the line about the standing yes."""
    behavior = {"after": "continue", "is_one_message": True, "max_buttons": 3}
    till = Till(30, lines=("First.",), behavior=behavior)
    till.ask()
    till.tap(2)
    assert till.texts[-1].endswith("First.")
    assert "need no answer until" in till.texts[-1]
    till.provider = ScriptedProvider([till._answer(40), "Second."])
    till.deploy()
    before = len(till.texts)
    till.ask()
    assert till.refunds == [(30, "c1"), (40, "c1")]
    (told,) = till.texts[before:]
    assert "Done under your standing yes (1 of 3" in told
    assert told.endswith("Second.")


def test_unknown_outcome_is_not_repeated_under_a_standing_yes():
    """The person must find out first."""
    till = Till(30, 40, 40)
    till.stand()
    till.hear("refund please")
    till.run_one_turn()
    till.die_after("start")
    till.work()
    till.ask()
    assert till.refunds == [(30, "c1")]
    assert "may already have happened" in till.texts[-1]


def test_revoked_after_a_killed_worker_claimed():
    """A claimed call goes on, as after any yes."""
    till = Till(30, 40)
    till.stand()
    till.hear("refund please")
    till.run_one_turn()
    till.die_after("claim")
    till.rig.client.delete(till.standing_key)
    till.work()
    assert till.refunds == [(30, "c1"), (40, "c1")]


def test_killed_before_the_commit_of_the_proposal():
    """The turn is done again, and the call runs once."""
    till = Till(30, 40)
    till.stand()
    till.hear("refund please")
    till.die_before_commit()
    assert till.refunds == [(30, "c1")]
    till.work()
    assert till.refunds == [(30, "c1"), (40, "c1")]
    assert len(till.standing()[0].used) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"preview": "Pay back {amount} to {customer}"},
        {"version": "2"},
        {"rule": {**RULE, "times": 5}},
        {"rule": {**RULE, "where": {"amount": "<= 60"}}},
        {"rule": None},
        {"policy": ToolPolicy(review=["*"], standing={"refund": None})},
        {"policy": ToolPolicy(review=["*"], standing={"refund": StandingLimit(times=2)})},
        {"typed_code": True, "rule": None},
    ],
)
def test_changed_tool_or_policy(change):
    """A call of a tool that was deployed anew is asked about."""
    till = Till(30, 40)
    till.stand()
    till.deploy(**change)
    till.ask()
    assert till.refunds == [(30, "c1")]
    assert "Reply **yes" in till.texts[-1]


@pytest.mark.parametrize(
    "change",
    [
        {"version": "2"},
        {"preview": "Pay back {amount} to {customer}"},
        {"rule": {**RULE, "times": 5}},
        {"policy": ToolPolicy(deny=["refund"])},
    ],
)
def test_changed_between_the_proposal_and_the_run(change):
    """Nothing runs unseen: what was checked before is checked again."""
    till = Till(30, 40)
    till.stand()
    till.hear("refund please")
    till.run_one_turn()
    till.deploy(**change)
    till.work()
    assert till.refunds == [(30, "c1")]


def test_deny_when_beats_a_standing_yes():
    """A denied call is not proposed at all."""
    rule = {"tool": "refund", "arg": "amount", "pattern": "40", "matches": "number"}
    policy = ToolPolicy(review=["*"], deny_when=[rule])
    till = Till(30, 40, policy=policy, lines=("I may not.",))
    till.stand()
    till.ask()
    assert till.refunds == [(30, "c1")]


def test_changed_preview_function():
    """The words of a preview function are not in the digest: its tool runs only as it is shown."""
    words = ["Refund"]

    def preview(amount: float, customer: str, note: str = "") -> str:
        return f"{words[0]} {amount} to {customer}"

    till = Till(30, 40, preview=preview)
    till.stand()
    till.hear("refund please")
    till.run_one_turn()
    words[0] = "Pay"
    till.work()
    assert till.refunds == [(30, "c1")]
    assert "has changed since" in till.texts[-1]
    assert len(till.standing()[0].used) == 1


def test_typed_code_offers_none():
    """A tool cannot be defined with both."""
    with pytest.raises(ToolValidationError, match="typed anew"):
        Till(typed_code=True)


def test_offer_needs_room():
    """With a form, the fourth button is left out where only three are shown."""
    with_room = Till(30, editable=["note"])
    with_room.ask()
    assert [each.label for each in with_room.buttons()] == [
        "Yes",
        "No",
        "Change",
        "Yes, for 1 hour",
    ]
    without = Till(30, editable=["note"], behavior={"max_buttons": 3})
    without.ask()
    assert [each.label for each in without.buttons()] == ["Yes", "No", "Change"]
    assert "last button" not in without.texts[-1]


def test_changed_values_are_compared_anew():
    """A change beyond the bounds takes the button away, and one back brings it again."""
    till = Till(30, editable=["amount"])
    till.ask()
    till.tap(2)
    till.ask("60")
    assert [each.label for each in till.buttons()] == ["Yes", "No", "Change"]
    till.tap(2)
    till.ask("45")
    assert till.buttons()[-1].label == "Yes, for 1 hour"
    till.tap(3)
    assert till.refunds == [(45, "c1")]
    assert till.standing()[0].rule["where"] == [["amount", "<=", 50]]


def test_typed_label_of_the_button_gives_no_standing_yes():
    """Only the button does, whatever people write."""
    till = Till(30, lines=("What do you mean?",) * 3)
    till.ask()
    till.ask("Yes, for 1 hour")
    assert till.standing() == []


def test_record_and_decision_name_the_yes():
    """The signed record and the sealed decision tie the run to the yes that it stands on."""
    till = Till(30, 40)
    till.stand()
    till.ask()
    first, second = till.actions()
    granted = DecisionRecord.from_json(first.decision)
    used = DecisionRecord.from_json(second.decision)
    assert granted.form == "tap"
    assert granted.standing_yes == first.action_id
    assert second.action.standing_yes == first.action_id
    assert (used.form, used.standing_yes) == ("standing", first.action_id)
    assert (used.use, used.uses) == (1, 3)
    assert used.event_id == second.decided_by_event == f"standing:{second.action_id}"
    assert used.is_genuine(till.rig.store.signer)


def test_tool_learns_that_nobody_was_asked():
    """Its context names the yes; of a call that was asked about it names none."""
    till = Till(30, 40)
    till.stand()
    till.ask()
    first, second = till.actions()
    assert till.confirmed == ["", first.action_id]
    assert second.action.standing_yes == first.action_id


def test_audit_log_has_all_states():
    """The run is claimed and started like any other."""
    till = Till(30, 40)
    till.stand()
    till.ask()
    second = till.actions()[-1]
    entries = [json.loads(each) for each in till.rig.client.lrange(till.key("audit"), 0, -1)]
    own = [each for each in entries if each["pid"] == second.action_id]
    assert [each["event"] for each in own] == ["armed", "claimed", "started", "done"]
    assert {each["by"] for each in own[1:]} == {f"standing:{second.action_id}"}


def test_model_reads_that_it_was_not_asked():
    """The result of the call says under what it ran."""
    till = Till(30, 40, lines=("done", "done"), behavior={"after": "continue"})
    till.ask()
    till.tap(2)
    till.ask()
    seen = json.dumps([str(each) for each in till.provider.requests[-1].messages])
    assert "standing yes of the user" in seen


def test_undo_of_a_covered_call():
    """The outcome offers it, and a tap takes the effect back."""
    undone = []

    def undo(amount: float, customer: str) -> str:
        undone.append((amount, customer))
        return "taken back"

    till = Till(30, 40, undo=undo)
    till.ask()
    till.tap(2)
    till.ask()
    (button,) = till.buttons()
    assert button.label == "Undo"
    till.tap(0)
    assert undone == [(40, "c1")]


def test_at_most_twenty_stand():
    """The first to end makes room: its calls are asked about again."""
    till = Till(*((30, f"c{number}") for number in range(22)))
    for _ in range(22):
        till.ask()
        till.tap(2)
        till.later(1)
    standing = sorted(till.standing(), key=lambda each: each.granted_at)
    assert len(standing) == 20
    assert standing[0].same == {"customer": "c2"}


def test_key_ends_with_the_last_yes():
    """Redis deletes it by itself."""
    till = Till(30)
    till.stand()
    assert 3590_000 < till.rig.client.pttl(till.standing_key) <= 3600_000


def test_without_a_worker():
    """`take` runs the covered call in the same call."""
    till = Till(30, 40)
    agent = till.agent
    (question,) = asyncio.run(agent.take(Turn("e1", ANA, "ana", "refund")))
    asyncio.run(agent.take(Turn("e2", ANA, "ana", tap=Tap(question.buttons[2].data))))
    replies = asyncio.run(agent.take(Turn("e3", ANA, "ana", "refund")))
    assert till.refunds == [(30, "c1"), (40, "c1")]
    assert replies[-1].text.startswith("Done under your standing yes (1 of 3")
