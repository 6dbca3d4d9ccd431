"""Recovery: an action that a process without a lease left behind ends with a true outcome and runs nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.channels.i18n.texts import texts_for
from sayso.infra.concurrency import run_without_loop
from sayso.pending import InMemoryPendingStore
from sayso.pending.action import PendingAction
from sayso.pending.plans import plan_of
from sayso.pending.repository import ActionResult, Claim
from sayso.pending.store import scope_of
from sayso.pending.stored_limits import STALE_MS
from sayso.pending.turn_changes import TurnChange
from tests.contracts.rigs import Blocking

WORDS = texts_for("pt")
HERE = scope_of("ana", None, None)


def proposed(name: str) -> PendingAction:
    """Return the proposal of a tool."""
    return PendingAction(
        "ana", "delete", f"Apagar {name}", {"name": name}, language="pt", requested_at=1.0
    )


class Dead:
    """A store in which a process decided on a proposal and died after some of the steps."""

    def __init__(self, *names: str, executor=lambda: "apagado") -> None:
        self.now = 1000.0
        self.store = InMemoryPendingStore(clock=lambda: self.now)
        self.store.register_executor_factory("delete", lambda _: executor)
        proposal = plan_of([proposed(name) for name in names])
        self.head = proposal.head.pending_action_id
        self.steps = [step.pending_action_id for step in proposal.steps]
        Blocking(self.store.repository).change(
            HERE.conversation.id,
            TurnChange(new_actions=proposal.new_actions(self.store.signer, HERE.id)),
        )

    def at(self, pid: str):
        """Return the record of this id."""
        return Blocking(self.store.repository).load(HERE.conversation.id, (pid,))[0]

    def begin(self, pid: str, *, started: bool = True, ended: str = "") -> None:
        """Bring an action to where the dead process left it."""
        claim = Claim(HERE, pid, "the dead")
        Blocking(self.store.repository).claim(claim, self.at(pid))
        if started:
            Blocking(self.store.repository).start(claim, self.at(pid), "try-1")
        if ended:
            told = {"done": "apagado", "failed": WORDS.failed("Apagar A")}[ended]
            Blocking(self.store.repository).finish(
                claim, "try-1", ActionResult(ended, told, "apagado")
            )

    def wait(self) -> None:
        """Let the time pass after which the process counts as dead."""
        self.now += STALE_MS / 1000 + 1

    def states(self) -> list[str]:
        """Return the states of the steps, in order."""
        return [self.at(pid).state for pid in self.steps]


def never():
    """Fail: nothing may run here."""
    raise AssertionError("it ran")


@pytest.mark.parametrize("intent", ["confirm", "cancel", "ignore"])
def test_claimed_action_was_certainly_not_done(intent):
    """Any tap ends it, in the name of the person who tapped, and the scope is free."""
    dead = Dead("A", executor=never)
    dead.begin(dead.head, started=False)
    dead.wait()
    outcome = dead.store.pop_if_intent("ana", intent)
    assert (outcome.status, outcome.record.state, outcome.outcome_text) == (
        "cancelled",
        "superseded",
        WORDS.unsafe("Apagar A"),
    )
    stored = dead.at(dead.head)
    assert (stored.state, stored.outcome_text) == ("superseded", WORDS.unsafe("Apagar A"))
    assert stored.decided_by_event not in ("", "the dead")
    assert (outcome.record.pending_action_id, dead.store.get("ana")) == (dead.head, None)
    dead.store.stash("ana", kind="k", preview="p")


@pytest.mark.parametrize(
    ("answer", "status", "state", "told"),
    [
        (None, "unknown", "unknown", WORDS.unknown("Apagar A")),
        (False, "failed", "failed", WORDS.not_done("Apagar A")),
        ("sumiu", "executed", "done", "sumiu"),
    ],
    ids=["unknown outcome", "no", "words"],
)
def test_started_action_is_reconciled(answer, status, state, told):
    """It is never run again. The record names the person, who gets the same outcome when it is repeated."""
    dead = Dead("A", executor=never)
    dead.store.register_reconciler("delete", lambda _: answer)
    dead.begin(dead.head)
    dead.wait()
    outcome = dead.store.pop_if_confirmed("ana", "sim")
    assert (outcome.status, outcome.outcome_text, dead.at(dead.head).state) == (status, told, state)
    assert dead.at(dead.head).decided_by_event not in ("", "the dead")


@pytest.mark.parametrize(
    ("result", "status", "told"),
    [
        (None, "unknown", WORDS.unknown("Apagar A")),
        (ActionResult("done", "apagado", "apagado"), "executed", "apagado"),
    ],
    ids=["started", "done"],
)
def test_action_that_goes_on_while_it_is_recovered_is_not_called_undone(result, status, told):
    """Its process was slow, and not dead: the effect began after the action was read as claimed."""
    dead = Dead("A", executor=never)
    dead.begin(dead.head, started=False)
    seen = dead.at(dead.head)
    claim = Claim(HERE, dead.head, "the dead")
    Blocking(dead.store.repository).start(claim, seen, "try-1")
    if result:
        Blocking(dead.store.repository).finish(claim, "try-1", result)
    outcome = run_without_loop(dead.store.settlement.recover(Claim(HERE, dead.head, "yes-1"), seen))
    assert (outcome.status, outcome.outcome_text) == (status, told)
    assert dead.at(dead.head).outcome_text == told


def test_action_is_left_alone_while_its_process_may_live():
    """That is two minutes; an earlier decision gets nothing."""
    dead = Dead("A", executor=never)
    dead.begin(dead.head)
    dead.now += STALE_MS / 1000
    assert dead.store.pop_if_confirmed("ana", "sim") is None
    assert dead.at(dead.head).state == "started"


@pytest.mark.parametrize("started", [True, False])
def test_changed_record_is_not_described_by_its_own_texts(started):
    """A started one is unknown; a claimed one is cancelled."""
    dead = Dead("A", executor=never)
    dead.begin(dead.head, started=started)
    dead.wait()
    entry = dead.store.repository._entries[dead.head]
    entry.update(record=entry.stored.record.replace("Apagar", "Pagar"))
    told = dead.store.pop_if_confirmed("ana", "sim").outcome_text
    assert told == (
        texts_for().unknown("an action that was changed") if started else texts_for().tampered()
    )
    assert dead.at(dead.head).state == ("unknown" if started else "cancelled")


def test_forged_kind_beside_a_signed_record_is_detected():
    """The compared fields stand beside the signed record, where another client may have written."""
    dead = Dead("A", executor=never)
    dead.begin(dead.head)
    dead.wait()
    entry = dead.store.repository._entries[dead.head]
    entry.new_action = replace(entry.new_action, kind="pay")
    outcome = dead.store.pop_if_intent("ana", "confirm", expected_kind="pay")
    assert outcome.outcome_text == texts_for().unknown("an action that was changed")
    assert dead.at(dead.head).state == "unknown"


@pytest.mark.parametrize(
    ("started", "status", "state", "told"),
    [
        (True, "unknown", "unknown", texts_for().unknown("an action that was changed")),
        (False, "digest_mismatch", "cancelled", texts_for().tampered()),
    ],
    ids=["started", "claimed"],
)
def test_recovery_does_not_trust_a_changed_record(started, status, state, told):
    """The reconciler is not asked about another action, and the record's texts are not repeated."""
    dead = Dead("A", executor=never)
    dead.store.register_reconciler("delete", lambda _: never())
    dead.begin(dead.head, started=started)
    stored = dead.at(dead.head)
    changed = replace(stored, record=stored.record.replace("Apagar", "Pagar"))
    outcome = run_without_loop(
        dead.store.settlement.recover(Claim(HERE, dead.head, "yes-1"), changed)
    )
    assert (outcome.status, outcome.outcome_text) == (status, told)
    assert (dead.at(dead.head).state, dead.at(dead.head).outcome_text) == (state, told)


@pytest.mark.parametrize(
    ("answer", "second", "line"),
    [(None, "unknown", ""), (False, "failed", ""), (True, "done", WORDS.done("Apagar B", ""))],
    ids=["unknown outcome", "no", "yes"],
)
def test_plan_is_reported_step_by_step(answer, second, line):
    """Done steps are done, started ones are reconciled, the others were not started."""
    dead = Dead("A", "B", "C", executor=never)
    asked = []
    dead.store.register_reconciler(
        "delete", lambda record: (asked.append(record.args["name"]), answer)[1]
    )
    dead.begin(dead.head)
    dead.begin(dead.steps[0], ended="done")
    dead.begin(dead.steps[1])
    dead.wait()
    outcome = dead.store.pop_if_confirmed("ana", "sim")
    report = WORDS.plan_report(
        [("done", "Apagar A", "apagado"), (second, "Apagar B", line), ("cancelled", "Apagar C", "")]
    )
    plan_state = "unknown" if second == "unknown" else "failed"
    assert (asked, outcome.outcome_text, outcome.record.state) == (["B"], report, plan_state)
    assert dead.states() == ["done", second, "cancelled"]
    assert (dead.at(dead.head).state, dead.at(dead.head).outcome_text) == (plan_state, report)
    assert run_without_loop(dead.store.finished_actions.report(HERE, dead.at(dead.head))) == report


def test_plan_whose_steps_are_all_done_is_done():
    """The process died just before it could record that."""
    dead = Dead("A", "B", executor=never)
    dead.begin(dead.head)
    for pid in dead.steps:
        dead.begin(pid, ended="done")
    dead.wait()
    outcome = dead.store.pop_if_confirmed("ana", "sim")
    assert outcome.outcome_text == WORDS.plan_report(
        [("done", "Apagar A", "apagado"), ("done", "Apagar B", "apagado")]
    )
    assert (outcome.status, dead.at(dead.head).state) == ("executed", "done")


def test_plan_without_a_lease_that_lost_a_step_runs_nothing():
    """The existing steps do not run either. The outcome is stored at once, since no turn commits it later."""
    dead = Dead("A", "B", executor=never)
    del dead.store.repository._entries[dead.steps[1]]
    outcome = dead.store.pop_if_confirmed("ana", "sim")
    assert (outcome.record.pending_action_id, outcome.record.state) == (dead.head, "failed")
    assert (outcome.status, outcome.outcome_text) == (
        "failed",
        WORDS.unsafe(outcome.record.preview),
    )
    assert (dead.at(dead.head).state, dead.at(dead.head).outcome_text) == (
        "failed",
        outcome.outcome_text,
    )


def test_plan_with_a_missing_step_is_unknown():
    """It has no report."""
    dead = Dead("A", "B", executor=never)
    dead.begin(dead.head)
    dead.begin(dead.steps[0], ended="done")
    del dead.store.repository._entries[dead.steps[1]]
    dead.wait()
    plan = dead.at(dead.head).action
    assert dead.store.pop_if_confirmed("ana", "sim").outcome_text == WORDS.unknown(plan.preview)
    assert dead.at(dead.head).state == "unknown"
    assert run_without_loop(dead.store.finished_actions.report(HERE, dead.at(dead.head))) == ""


def test_effects_of_a_plan_are_those_of_its_steps():
    """They are in order, with the tools' return values; a failed step has none."""
    dead = Dead("A", "B")
    dead.begin(dead.head)
    dead.begin(dead.steps[0], ended="done")
    dead.begin(dead.steps[1], ended="failed")
    found = run_without_loop(dead.store.finished_actions.effects(HERE, dead.at(dead.head)))
    assert [(effect.action.args, effect.result) for effect in found] == [({"name": "A"}, "apagado")]


def test_plan_without_a_lease_runs_its_steps_and_has_their_effects():
    """The seed's methods support plans too; the returned outcome is stored."""
    dead = Dead("A", "B", executor=lambda: "apagado")
    outcome = dead.store.pop_if_confirmed("ana", "sim")
    assert [(effect.action.args["name"], effect.result) for effect in outcome.effects] == [
        ("A", "apagado"),
        ("B", "apagado"),
    ]
    assert (outcome.executed, dead.states()) == (True, ["done", "done"])
    assert outcome.outcome_text == WORDS.plan_report(
        [("done", "Apagar A", "apagado"), ("done", "Apagar B", "apagado")]
    )
    assert outcome.outcome_text == outcome.result == dead.at(dead.head).outcome_text
