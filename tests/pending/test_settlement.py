"""Outcomes: each tells what became of the action, in its user's language, and the record agrees."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import pytest

from sayso.channels.i18n.texts import texts_for
from sayso.infra.concurrency import run_without_loop
from sayso.pending import InMemoryPendingStore, RedisPendingStore
from sayso.pending.action import PendingAction
from sayso.pending.action_outcomes import EffectEnd, plan_end_state, result_to_store
from sayso.pending.executors import Executors, NotFound
from sayso.pending.repository import ActionResult, Claim, sign_action
from sayso.pending.settlement import Settlement
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.pending.store import scope_of
from sayso.pending.turn_changes import Transition, TurnChange
from sayso.pending.turns import Lease, LeaseLost, StaleTurn
from tests.contracts.rigs import Blocking

WORDS = texts_for("pt")
GONE = NotFound("nota", "A")
HERE = scope_of("ana", None, None)


class Desk:
    """A store on a clock that is set by hand, with one action in Portuguese."""

    def __init__(self, executor=lambda: "apagado", **fields) -> None:
        self.now = 1000.0
        self.store = InMemoryPendingStore(clock=lambda: self.now)
        given = {"language": "pt", "requested_at": 1.0, **fields}
        self.action = self.store.create(
            PendingAction("ana", "delete", "Apagar A", {"id": 1}, **given), executor
        )

    @property
    def stored(self):
        """Return the stored record."""
        return Blocking(self.store.repository).load(
            HERE.conversation.id, (self.action.pending_action_id,)
        )[0]

    def claim(self, by: str = "yes-1") -> Claim:
        """Return a claim without a lease."""
        return Claim(HERE, self.action.pending_action_id, by)

    def confirm(self, by: str = "yes-1"):
        """Confirm as a worker does, with claim and start as two steps."""
        return run_without_loop(self.store.settlement.confirm(self.claim(by), self.stored))

    def begin(self) -> None:
        """Start the action in a process that dies then."""
        Blocking(self.store.repository).claim(self.claim(), self.stored)
        Blocking(self.store.repository).start(self.claim(), self.stored, "try-1")

    def move(self, before: str, after: str, told: str) -> None:
        """Change the state as another process."""
        change = TurnChange(
            transition=Transition(self.action.pending_action_id, (before,), after, told)
        )
        Blocking(self.store.repository).change(HERE.conversation.id, change)

    def heard(self, outcome, status: str, state: str, told: str, result: str | None = None) -> None:
        """Check that the outcome is exactly this one, and that an ended action's record agrees."""
        assert (outcome.status, outcome.outcome_text, outcome.result) == (status, told, result)
        record = outcome.record
        assert (record.pending_action_id, record.state) == (self.action.pending_action_id, state)
        assert self.stored.state == state
        if record.outcome is not None:
            assert record.outcome == told == self.stored.outcome_text


def raises():
    """Raise an error, as a broken tool."""
    raise RuntimeError("secret")


@pytest.mark.parametrize("door", ["conversation", "store"])
@pytest.mark.parametrize(
    ("executor", "status", "state", "told", "result"),
    [
        (lambda: "apagado", "executed", "done", "apagado", "apagado"),
        (lambda: None, "executed", "done", WORDS.done("Apagar A", ""), ""),
        (lambda: True, "executed", "done", WORDS.done("Apagar A", ""), ""),
        (lambda: 42, "executed", "done", f"{WORDS.done('Apagar A', '')}\n42", "42"),
        (lambda: GONE, "failed", "failed", f"{WORDS.failed('Apagar A')}\n{GONE.in_words}", None),
    ],
    ids=["words", "nothing", "true", "number", "typed"],
)  # fmt: skip
def test_confirmed_action_tells_its_outcome(door, executor, status, state, told, result):
    """The tool's return value is the text; without one there is a default text."""
    desk = Desk(executor)
    outcome = (
        desk.confirm() if door == "conversation" else desk.store.pop_if_confirmed("ana", "sim")
    )
    desk.heard(outcome, status, state, told, result)
    assert outcome.record.outcome == told
    assert desk.stored.result == (result or "")
    effects = [(effect.action.pending_action_id, effect.result) for effect in outcome.effects]
    assert effects == ([(desk.action.pending_action_id, result)] if status == "executed" else [])


@pytest.mark.parametrize("door", ["conversation", "store"])
def test_error_is_a_failure_that_tells_its_type_and_reference_only(door):
    """The error's text stays in the log."""
    desk = Desk(raises)
    outcome = (
        desk.confirm() if door == "conversation" else desk.store.pop_if_confirmed("ana", "sim")
    )
    failed, _, reference = outcome.outcome_text.rpartition("\n")
    assert failed == WORDS.failed("Apagar A")
    assert re.fullmatch(r"Referência: [0-9a-f]{8} \(RuntimeError\)", reference)
    assert (outcome.status, outcome.effects, desk.stored.outcome_text) == (
        "failed",
        (),
        outcome.outcome_text,
    )


@pytest.mark.parametrize("door", ["conversation", "store"])
def test_action_without_executor_fails_and_tells_that_nothing_was_done(door):
    """The record has the same text for a repeated question."""
    desk = Desk(None)
    outcome = (
        desk.confirm() if door == "conversation" else desk.store.pop_if_intent("ana", "confirm")
    )
    desk.heard(outcome, "no_executor", "failed", WORDS.unsafe("Apagar A"))
    assert outcome.record.outcome == outcome.outcome_text
    assert (outcome.executed, outcome.effects) == (False, ())


@pytest.mark.parametrize("door", ["conversation", "store"])
def test_late_yes_gets_expired(door):
    """The action was not done."""
    desk = Desk()
    desk.now += 61
    outcome = (
        desk.confirm() if door == "conversation" else desk.store.pop_if_confirmed("ana", "sim")
    )
    desk.heard(outcome, "expired", "expired", WORDS.expired("Apagar A"))


def test_window_closes_exactly_at_its_end():
    """A yes in the last moment counts. At the end the action is over for texts, taps and the next proposal."""
    desk = Desk()
    desk.now = 1059.999
    assert desk.store.get("ana") is not None
    desk.now = 1060.0
    assert desk.store.get("ana") is None
    assert desk.store.pop_if_intent("ana", "confirm").status == "expired"
    other = Desk()
    other.now = 1060.0
    assert other.confirm().status == "expired"
    third = Desk()
    third.now = 1060.0
    assert third.store.stash("ana", kind="k", preview="p").state == "shown"
    assert third.stored.state == "expired"


@pytest.mark.parametrize(
    ("intent", "expected", "status", "state", "told"),
    [
        ("cancel", {}, "cancelled", "cancelled", WORDS.cancelled("Apagar A")),
        ("ignore", {}, "ignored", "shown", WORDS.ignored("Apagar A")),
        ("confirm", {"expected_kind": "pay"}, "kind_mismatch", "shown", WORDS.stale()),
        ("cancel", {"expected_id": "B" * 22}, "kind_mismatch", "shown", WORDS.stale()),
    ],
    ids=["cancel", "ignore", "other kind", "other action"],
)
def test_tap_gets_its_outcome(intent, expected, status, state, told):
    """It cancelled, the action still waits, or the button belongs to another question."""
    desk = Desk()
    desk.heard(desk.store.pop_if_intent("ana", intent, **expected), status, state, told)


def test_ignore_leaves_the_given_time():
    """Parts of a second count. Afterwards the action is over."""
    desk = Desk()
    assert (
        desk.store.pop_if_intent("ana", "ignore", ignore_ttl_seconds=0.4).record.expires_at
        == 1000.4
    )
    desk.now = 1000.3
    assert desk.store.get("ana") is not None
    desk.now = 1000.4
    assert desk.store.get("ana") is None


def test_changed_arguments_get_that_nothing_was_done():
    """The caller saw other arguments."""
    desk = Desk()
    outcome = desk.store.pop_if_confirmed("ana", "sim", args_digest="0" * 64)
    desk.heard(outcome, "digest_mismatch", "cancelled", WORDS.unsafe("Apagar A"))


def change_text(desk: Desk) -> None:
    """Change the signed text of the stored action."""
    entry = desk.store.repository._entries[desk.action.pending_action_id]
    entry.update(record=entry.stored.record.replace("Apagar", "Pagar"))


@pytest.mark.parametrize("door", ["conversation", "store", "claimed"])
def test_changed_record_is_cancelled_without_its_texts(door):
    """Neither its texts nor its language are trusted. The record is cancelled in the name of the decider."""
    desk = Desk()
    if door == "claimed":
        Blocking(desk.store.repository).claim(desk.claim(), desk.stored)
    change_text(desk)
    outcome = desk.store.pop_if_confirmed("ana", "sim") if door == "store" else desk.confirm()
    desk.heard(outcome, "digest_mismatch", "cancelled", texts_for().tampered())
    assert desk.stored.outcome_text == texts_for().tampered()
    assert (
        desk.stored.decided_by_event
        == ("yes-1" if door != "store" else desk.stored.decided_by_event)
        != ""
    )


@pytest.mark.parametrize("intent", ["confirm", "cancel", "ignore"])
def test_changed_record_is_cancelled_by_every_decision(intent):
    """A repeated question gets "changed", not just "cancelled"."""
    desk = Desk()
    change_text(desk)
    desk.heard(
        desk.store.pop_if_intent("ana", intent),
        "digest_mismatch",
        "cancelled",
        texts_for().tampered(),
    )
    assert desk.stored.outcome_text == texts_for().tampered()


def test_record_changed_after_its_check_is_cancelled():
    """The claim compares the stored record with the checked one, byte by byte."""
    desk = Desk()
    seen = desk.stored
    change_text(desk)
    outcome = run_without_loop(desk.store.settlement.confirm(desk.claim(), seen))
    desk.heard(outcome, "digest_mismatch", "cancelled", texts_for().tampered())
    assert desk.stored.outcome_text == texts_for().tampered()


def test_action_started_meanwhile_is_not_reported_cancelled():
    """A process that saw a changed record runs nothing, and does not report the other process's action cancelled."""
    desk = Desk()
    seen = replace(desk.stored, record=desk.stored.record.replace("Apagar", "Pagar"))
    desk.begin()
    outcome = run_without_loop(desk.store.settlement.confirm(desk.claim("yes-2"), seen))
    assert (outcome.executed, outcome.outcome_text) == (False, texts_for().tampered())
    assert (desk.stored.state, desk.stored.outcome_text, desk.stored.decided_by_event) == (
        "started",
        "",
        "yes-1",
    )


@pytest.mark.parametrize(
    ("answer", "state", "told"),
    [
        (None, "unknown", WORDS.unknown("Apagar A")),
        (False, "failed", WORDS.not_done("Apagar A")),
        (True, "done", WORDS.done("Apagar A", "")),
        ("sumiu", "done", "sumiu"),
    ],
    ids=["unknown outcome", "no", "yes", "words"],
)
def test_interrupted_action_ends_as_the_reconciler_reports(answer, state, told):
    """Nothing is repeated. Without a reconciler the outcome is unknown."""
    desk = Desk()
    desk.begin()
    seen = []
    desk.store.register_reconciler("delete", lambda record: (seen.append(record), answer)[1])
    outcome = desk.confirm()
    status = {"done": "executed"}.get(state, state)
    desk.heard(outcome, status, state, told, told if state == "done" else None)
    assert [record.args for record in seen] == [{"id": 1}]
    other = Desk()
    other.begin()
    other.heard(other.confirm(), "unknown", "unknown", WORDS.unknown("Apagar A"))


@pytest.mark.parametrize(
    ("executor", "tries"), [(None, 1), (raises, 3)], ids=["no tool here", "begun too often"]
)
def test_repeatable_action_that_cannot_be_started_again_is_unknown(executor, tries):
    """An earlier worker may have done it, so the outcome is not "nothing was done"."""
    desk = Desk(executor, idempotent=True)
    Blocking(desk.store.repository).claim(desk.claim(), desk.stored)
    for number in range(tries):
        assert (
            Blocking(desk.store.repository).start(desk.claim(), desk.stored, f"try-{number}")
            == "go"
        )
    desk.heard(desk.confirm(), "unknown", "unknown", WORDS.unknown("Apagar A"))


def test_outcome_that_comes_in_meanwhile_is_read_again():
    """Two workers settle the same interrupted action; the second one reads the first one's outcome."""
    desk = Desk()
    desk.begin()
    desk.store.register_reconciler("delete", lambda _: desk.move("started", "done", "apagado"))
    claim = replace(desk.claim(), lease=Lease(HERE.conversation.id, 1, "w1"))
    with pytest.raises(StaleTurn, match="the outcome came in just now"):
        run_without_loop(desk.store.settlement.confirm(claim, desk.stored))
    assert (desk.stored.state, desk.stored.outcome_text) == ("done", "apagado")


@pytest.mark.parametrize(
    ("state", "status", "told", "result"),
    [
        ("done", "executed", "apagado", "1 linha"),
        ("failed", "failed", WORDS.failed("Apagar A"), None),
        ("unknown", "unknown", WORDS.unknown("Apagar A"), None),
    ],
    ids=["done", "failed", "unknown"],
)
def test_outcome_that_comes_in_meanwhile_is_returned_without_a_lease(state, status, told, result):
    """No later turn would read it again."""
    desk = Desk()
    desk.begin()
    ending = ActionResult(state, told, result or "")
    desk.store.register_reconciler(
        "delete",
        lambda _: (
            Blocking(desk.store.repository).finish(desk.claim(), "try-1", ending),
            state != "done",
        )[1],
    )
    desk.heard(desk.confirm(), status, state, told, result)


def test_record_that_vanished_meanwhile_does_not_lose_the_outcome():
    """The reconciler's outcome is returned, since no later turn reads it."""
    desk = Desk()
    desk.begin()
    stored = desk.stored
    desk.store.register_reconciler(
        "delete", lambda _: (desk.store.repository._entries.clear(), "apagado")[1]
    )
    outcome = run_without_loop(desk.store.settlement.confirm(desk.claim(), stored))
    assert (outcome.status, outcome.outcome_text) == ("executed", "apagado")


@pytest.mark.parametrize("answer", [True, False])
def test_unknown_that_was_stored_meanwhile_is_not_overwritten(answer):
    """Only the attempt itself may correct it; the next read finds "unknown"."""
    desk = Desk()
    desk.begin()
    desk.store.register_reconciler(
        "delete", lambda _: (desk.move("started", "unknown", "quem sabe"), answer)[1]
    )
    claim = replace(desk.claim(), lease=Lease(HERE.conversation.id, 1, "w1"))
    with pytest.raises(StaleTurn, match="the outcome came in just now"):
        run_without_loop(desk.store.settlement.confirm(claim, desk.stored))
    assert (desk.stored.state, desk.stored.outcome_text) == ("unknown", "quem sabe")


def test_two_unknown_outcomes_agree():
    """The second worker needs no further read."""
    desk = Desk()
    desk.begin()
    desk.store.register_reconciler("delete", lambda _: desk.move("started", "unknown", "quem sabe"))
    claim = replace(desk.claim(), lease=Lease(HERE.conversation.id, 1, "w1"))
    outcome = run_without_loop(desk.store.settlement.confirm(claim, desk.stored))
    desk.heard(outcome, "unknown", "unknown", WORDS.unknown("Apagar A"))


def test_reconciler_that_does_not_answer_is_not_waited_for(monkeypatch):
    """The turn has a time limit of its own, so the outcome is unknown."""
    monkeypatch.setattr("sayso.pending.settlement.RECONCILE_TIMEOUT", 0.01)
    desk = Desk()
    desk.begin()
    desk.store.register_reconciler("delete", lambda _: asyncio.Event().wait())
    asked = desk.store.settlement.confirm(desk.claim(), desk.stored)
    outcome = asyncio.run(asyncio.wait_for(asked, 5))
    desk.heard(outcome, "unknown", "unknown", WORDS.unknown("Apagar A"))


@pytest.mark.parametrize(
    ("way", "started", "state", "told"),
    [
        ("confirm", True, "unknown", WORDS.unknown("Apagar A")),
        ("confirm", False, "failed", WORDS.unsafe("Apagar A")),
        ("recover", False, "superseded", WORDS.unsafe("Apagar A")),
    ],
    ids=["started", "no tool", "claimed"],
)
def test_abandoned_action_ends_in_redis_although_each_answer_is_lost_once(
    redis_client, monkeypatch, way, started, state, told
):
    """The record is found in its conversation's shard, and repeated calls do no harm."""
    arun = ShardedScripts.arun

    async def twice(*call):
        await arun(*call)
        return await arun(*call)

    monkeypatch.setattr(ShardedScripts, "arun", twice)
    store = RedisPendingStore(client=redis_client, secret_keys=["key"])
    action = store.create(
        PendingAction("ana", "delete", "Apagar A", language="pt", requested_at=1.0), None
    )
    claim, pids = Claim(HERE, action.pending_action_id, "yes-1"), (action.pending_action_id,)
    Blocking(store.repository).claim(
        claim, Blocking(store.repository).load(HERE.conversation.id, pids)[0]
    )
    if started:
        Blocking(store.repository).start(
            claim, Blocking(store.repository).load(HERE.conversation.id, pids)[0], "try-1"
        )
    outcome = run_without_loop(
        getattr(store.settlement, way)(
            claim, Blocking(store.repository).load(HERE.conversation.id, pids)[0]
        )
    )
    (stored,) = Blocking(store.repository).load(HERE.conversation.id, pids)
    assert (stored.state, stored.outcome_text, outcome.outcome_text) == (state, told, told)


def test_action_that_another_worker_started_is_not_reported_failed():
    """The factory breaks here while another worker starts the action; that worker's outcome counts."""
    desk = Desk(None)
    desk.store.register_executor_factory("delete", lambda _: desk.move("claimed", "started", ""))
    with pytest.raises(StaleTurn, match="another worker has taken the action further"):
        desk.confirm()
    assert desk.stored.state == "started"


def test_worker_that_lost_its_lease_before_the_start_stops(monkeypatch):
    """Nothing runs, and the worker does not read the turn again."""
    desk = Desk(pytest.fail)

    async def lost(*_):
        return "lost"

    monkeypatch.setattr(desk.store.repository, "start", lost)
    with pytest.raises(LeaseLost):
        desk.confirm()
    assert desk.stored.state == "claimed"


def test_action_that_changed_before_its_start_is_read_again():
    """The person cancels while the factory takes its time, and nothing runs."""
    ran = []
    desk = Desk(None)

    def factory(_):
        desk.move("claimed", "cancelled", "no")
        return lambda: ran.append(1)

    desk.store.register_executor_factory("delete", factory)
    with pytest.raises(StaleTurn, match="the action changed before it was started"):
        desk.confirm()
    assert (ran, desk.stored.state) == ([], "cancelled")


@pytest.mark.parametrize(("verdict", "error"), [("lost", LeaseLost), ("moved", StaleTurn)])
def test_worker_without_a_valid_lease_stops(verdict, error):
    """It lost its lease, or its turn is not the head. The error names the conversation."""
    desk = Desk()

    class Refusing:
        """A store that refuses each claim."""

        async def claim(self, *_):
            """Refuse."""
            return verdict, ""

    settlement = Settlement(Refusing(), desk.store.signer, Executors())
    with pytest.raises(error, match=HERE.conversation.id):
        run_without_loop(settlement.confirm(desk.claim(), desk.stored))


def test_yes_that_was_won_by_another_executes_nothing():
    """It gets no outcome to report either."""
    desk = Desk()
    Blocking(desk.store.repository).claim(desk.claim("yes-0"), desk.stored)
    assert desk.confirm() is None
    assert desk.stored.state == "claimed"


@pytest.mark.parametrize(
    ("state", "effects"), [("done", [("A", "apagado")]), ("failed", []), ("unknown", [])]
)
def test_effects_of_an_ended_action_are_read_from_its_record(state, effects):
    """A later undo needs them."""
    desk = Desk({"done": lambda: "apagado", "failed": raises, "unknown": None}[state])
    if state == "unknown":
        desk.begin()
    desk.confirm()
    found = run_without_loop(desk.store.finished_actions.effects(HERE, desk.stored))
    assert [(effect.action.preview[-1], effect.result) for effect in found] == effects
    assert desk.stored.state == state


def test_tool_that_times_out_is_unknown_and_returns_no_text():
    """It did not fail, it was abandoned. The record says so before the person is told."""

    async def hang():
        await asyncio.sleep(60)

    desk = Desk(hang)
    settlement = Settlement(
        desk.store.repository, desk.store.signer, desk.store.executors, timeout_seconds=0.01
    )
    outcome = asyncio.run(settlement.confirm(desk.claim(), desk.stored))
    desk.heard(outcome, "unknown", "unknown", WORDS.unknown("Apagar A"))
    assert desk.stored.result == ""


def test_late_failure_is_recorded_without_its_text():
    """No turn waits for it any more; the next read finds how it ended."""
    desk = Desk()

    async def too_late():
        go = asyncio.Event()

        async def breaks():
            await go.wait()
            raise RuntimeError("secret")

        desk.store.executors.keep_closure(desk.action.pending_action_id, breaks)
        settlement = Settlement(
            desk.store.repository, desk.store.signer, desk.store.executors, timeout_seconds=0.01
        )
        outcome = await settlement.confirm(desk.claim(), desk.stored)
        go.set()
        await asyncio.gather(
            *asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True
        )
        return outcome

    assert asyncio.run(too_late()).status == "unknown"
    assert (desk.stored.state, desk.stored.result) == ("failed", "")
    assert desk.stored.outcome_text.startswith(WORDS.failed("Apagar A"))
    assert "secret" not in desk.stored.outcome_text


def test_worker_that_is_stopped_in_the_middle_leaves_unknown_on_record():
    """A thread may still run the tool, so the outcome is unknown."""
    desk = Desk()

    async def stopped():
        begun = asyncio.Event()

        async def hang():
            begun.set()
            await asyncio.sleep(60)

        desk.store.executors.keep_closure(desk.action.pending_action_id, hang)
        task = asyncio.create_task(desk.store.settlement.confirm(desk.claim(), desk.stored))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stopped())
    assert (desk.stored.state, desk.stored.outcome_text, desk.stored.result) == (
        "unknown",
        WORDS.unknown("Apagar A"),
        "",
    )


@pytest.mark.parametrize(
    ("states", "end"),
    [
        (["done", "started", "shown"], "unknown"),
        (["done", "unknown", "cancelled"], "unknown"),
        (["failed", "started"], "unknown"),
        (["done", "failed", "cancelled"], "failed"),
        (["done", "done"], "done"),
    ],
)
def test_plan_with_a_started_step_is_not_failed(states, end):
    """A step that is left as started may still run."""
    assert plan_end_state(states) == end


def test_signed_record_leaves_out_default_values():
    """Every field that differs from its default is signed and read back."""
    action = PendingAction(
        "ana", "delete", "Delete A", {"id": 1}, channel_id="chat", conversation_id="room", ttl_seconds=5,
        requested_at=1.0, parser_version="v1", idempotent=True, code="4821", reason="r", version="2", language="pt",
        plan="P",
    )  # fmt: skip
    arm = sign_action(action, InMemoryPendingStore().signer, user="-")
    assert (arm.ttl_ms, arm.kind, arm.digest, arm.idempotent) == (
        5000,
        "delete",
        action.args_digest,
        True,
    )
    assert (arm.code, arm.plan, arm.user, arm.occupies_scope, arm.steps) == (
        "4821",
        "P",
        "-",
        True,
        (),
    )
    assert "outcome" not in arm.record
    assert (
        sign_action(
            replace(action, ttl_seconds=0.0), InMemoryPendingStore().signer, user="-"
        ).ttl_ms
        == 1
    )


def test_correction_is_in_the_language_of_its_action():
    """What is added if it is sent a second time is in this language, too."""
    desk = Desk()
    result = result_to_store(desk.action, EffectEnd("done", "apagado"), HERE.conversation)
    reply = json.loads(json.loads(result.correction)["reply"])
    assert (reply["language"], WORDS.correction("Apagar A", "apagado") in reply["text"]) == (
        "pt",
        True,
    )
