"""Outcomes: each says what became of the action, in its user's language, and what is stored says the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pending import InMemoryPendingStore
from pending.action import PendingAction
from pending.executors import Executors
from pending.records import Claim, seal_action
from pending.results import NotFound
from pending.settle import Settlement
from pending.store import scope_of
from pending.texts import speak
from workers.lane import Change, LaneLost, Lease, Move, TurnOvertaken
from workers.offload import run_here

WORDS = speak("pt")
GONE = NotFound("nota", "A")
HERE = scope_of("ana", None, None)


class Desk:
    """A store on a clock that is set by hand, with one action in Portuguese."""

    def __init__(self, executor=lambda: "apagado", **fields) -> None:
        self.now = 1000.0
        self.store = InMemoryPendingStore(clock=lambda: self.now)
        given = {"language": "pt", "requested_at": 1.0, **fields}
        self.action = self.store.arm(PendingAction("ana", "delete", "Apagar A", {"id": 1}, **given), executor)

    @property
    def stored(self):
        """What is stored of it."""
        return self.store.records.read(HERE.conversation.id, (self.action.pending_action_id,))[0]

    def claim(self, by: str = "yes-1") -> Claim:
        """A claim to it, without a lane."""
        return Claim(HERE, self.action.pending_action_id, by)

    def confirm(self, by: str = "yes-1"):
        """The way of a lane, where claim and start are two steps."""
        return run_here(self.store.settlement.confirm(self.claim(by), self.stored))

    def begin(self) -> None:
        """Somebody started it, and was never heard of again."""
        self.store.records.claim(self.claim(), self.stored)
        self.store.records.start(self.claim(), self.stored, "try-1")

    def move(self, before: str, after: str, told: str) -> None:
        """Somebody else changes its state."""
        change = Change(move=Move(self.action.pending_action_id, (before,), after, told))
        self.store.records.change(HERE.conversation.id, change)

    def heard(self, outcome, status: str, state: str, told: str, result: str | None = None) -> None:
        """The outcome is exactly this one, of this action; where it is over, the same is stored."""
        assert (outcome.status, outcome.told, outcome.result) == (status, told, result)
        record = outcome.record
        assert (record.pending_action_id, record.state) == (self.action.pending_action_id, state)
        assert self.stored.state == state
        if record.outcome is not None:
            assert record.outcome == told == self.stored.told


def raises():
    """A tool that breaks."""
    raise RuntimeError("secret")


@pytest.mark.parametrize("door", ["lane", "store"])
@pytest.mark.parametrize(
    ("executor", "status", "state", "told", "result"),
    [
        (lambda: "apagado", "executed", "done", "apagado", "apagado"),
        (lambda: None, "executed", "done", WORDS.done("Apagar A", ""), ""),
        (lambda: 42, "executed", "done", "42", "42"),
        (lambda: GONE, "executed", "done", GONE.to_json(), GONE.to_json()),
        (raises, "failed", "failed", WORDS.failed("Apagar A"), None),
    ],
    ids=["words", "nothing", "number", "typed", "error"],
)  # fmt: skip
def test_confirmed_action_tells_its_outcome(door, executor, status, state, told, result):
    """What the tool returned says it best; without a word of its own, ours."""
    desk = Desk(executor)
    outcome = desk.confirm() if door == "lane" else desk.store.pop_if_confirmed("ana", "sim")
    desk.heard(outcome, status, state, told, result)
    assert outcome.record.outcome == told
    assert desk.stored.result == (result or "")
    effects = [(effect.action.pending_action_id, effect.result) for effect in outcome.effects]
    assert effects == ([(desk.action.pending_action_id, result)] if status == "executed" else [])


@pytest.mark.parametrize("door", ["lane", "store"])
def test_action_without_executor_failed_and_says_that_nothing_was_done(door):
    """On record too: whoever asks again hears the same."""
    desk = Desk(None)
    outcome = desk.confirm() if door == "lane" else desk.store.pop_if_intent("ana", "confirm")
    desk.heard(outcome, "no_executor", "failed", WORDS.unsafe("Apagar A"))
    assert outcome.record.outcome == outcome.told
    assert (outcome.executed, outcome.effects) == (False, ())


@pytest.mark.parametrize("door", ["lane", "store"])
def test_late_yes_hears_that_it_expired(door):
    """Nothing was done."""
    desk = Desk()
    desk.now += 61
    outcome = desk.confirm() if door == "lane" else desk.store.pop_if_confirmed("ana", "sim")
    desk.heard(outcome, "expired", "expired", WORDS.expired("Apagar A"))


def test_window_closes_on_the_second():
    """A yes at its last moment counts; at its end it is over, by words, by button and for the next proposal."""
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
def test_button_hears_what_it_did(intent, expected, status, state, told):
    """Cancelled, still waiting, or a button of another prompt."""
    desk = Desk()
    desk.heard(desk.store.pop_if_intent("ana", intent, **expected), status, state, told)


def test_changed_arguments_hear_that_nothing_was_done():
    """The caller saw others."""
    desk = Desk()
    outcome = desk.store.pop_if_confirmed("ana", "sim", args_digest="0" * 64)
    desk.heard(outcome, "digest_mismatch", "cancelled", WORDS.unsafe("Apagar A"))


@pytest.mark.parametrize("door", ["lane", "store", "claimed"])
def test_changed_record_is_disarmed_without_its_words(door):
    """They are not ours to repeat, nor is the language; it is cancelled on record, by whoever decided."""
    desk = Desk()
    pid = desk.action.pending_action_id
    if door == "claimed":
        desk.store.records.claim(desk.claim(), desk.stored)
    desk.store.records._put(pid, replace(desk.stored, record=desk.stored.record.replace("Apagar", "Pagar")))
    outcome = desk.store.pop_if_confirmed("ana", "sim") if door == "store" else desk.confirm()
    desk.heard(outcome, "digest_mismatch", "cancelled", speak().tampered())
    assert desk.stored.told == speak().tampered()
    assert desk.stored.by == ("yes-1" if door != "store" else desk.stored.by) != ""


@pytest.mark.parametrize(
    ("answer", "state", "told"),
    [
        (None, "unknown", WORDS.unknown("Apagar A")),
        (False, "failed", WORDS.not_done("Apagar A")),
        (True, "done", WORDS.done("Apagar A", "")),
        ("sumiu", "done", "sumiu"),
    ],
    ids=["nobody knows", "no", "yes", "words"],
)
def test_interrupted_action_ends_as_the_world_says(answer, state, told):
    """Nothing is repeated; without anybody to ask it is unknown."""
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


def test_outcome_that_comes_in_meanwhile_is_looked_at_again():
    """Two who settle the same interrupted action: the second one's words would be a guess."""
    desk = Desk()
    desk.begin()
    desk.store.register_reconciler("delete", lambda _: desk.move("started", "done", "apagado"))
    claim = replace(desk.claim(), lease=Lease(HERE.conversation.id, 1, "w1"))
    with pytest.raises(TurnOvertaken, match="the outcome came in just now"):
        run_here(desk.store.settlement.confirm(claim, desk.stored))
    assert (desk.stored.state, desk.stored.told) == ("done", "apagado")


def test_outcome_that_comes_in_meanwhile_is_told_where_there_is_no_lane():
    """Nobody would look again there."""
    desk = Desk()
    desk.begin()
    desk.store.register_reconciler("delete", lambda _: desk.move("started", "done", "apagado"))
    assert (desk.confirm().status, desk.stored.told) == ("executed", "apagado")


def test_action_that_moved_before_its_start_is_looked_at_again():
    """A factory that takes its time, and somebody who cancels: nothing runs."""
    ran = []
    desk = Desk(None)

    def factory(_):
        desk.move("claimed", "cancelled", "no")
        return lambda: ran.append(1)

    desk.store.register_executor_factory("delete", factory)
    with pytest.raises(TurnOvertaken, match="the action moved before it was started"):
        desk.confirm()
    assert (ran, desk.stored.state) == ([], "cancelled")


@pytest.mark.parametrize(("verdict", "error"), [("lost", LaneLost), ("moved", TurnOvertaken)])
def test_worker_that_may_not_go_on_stops(verdict, error):
    """It lost its lane, or its turn is not the one at the head; the error names the conversation."""
    desk = Desk()

    class Refusing:
        """Records that refuse each claim."""

        def claim(self, *_):
            """Refuse."""
            return verdict, ""

    settlement = Settlement(Refusing(), desk.store.seal, Executors())
    with pytest.raises(error, match=HERE.conversation.id):
        run_here(settlement.confirm(desk.claim(), desk.stored))


def test_yes_that_was_won_by_another_executes_nothing():
    """There is nothing to tell either."""
    desk = Desk()
    desk.store.records.claim(desk.claim("yes-0"), desk.stored)
    assert desk.confirm() is None
    assert desk.stored.state == "claimed"


@pytest.mark.parametrize(("state", "effects"), [("done", [("A", "apagado")]), ("failed", []), ("unknown", [])])
def test_effects_of_what_is_over_are_read_from_its_record(state, effects):
    """For whoever offers an undo later."""
    desk = Desk({"done": lambda: "apagado", "failed": raises, "unknown": None}[state])
    if state == "unknown":
        desk.begin()
    desk.confirm()
    found = run_here(desk.store.settlement.effects(HERE, desk.stored))
    assert [(effect.action.preview[-1], effect.result) for effect in found] == effects
    assert desk.stored.state == state


def test_tool_that_is_cut_off_is_unknown_and_leaves_no_word():
    """It did not fail, it was left alone; the record says so before anybody is told."""

    async def hang():
        await asyncio.sleep(60)

    desk = Desk(hang)
    settlement = Settlement(desk.store.records, desk.store.seal, desk.store.executors, timeout_seconds=0.01)
    outcome = asyncio.run(settlement.confirm(desk.claim(), desk.stored))
    desk.heard(outcome, "unknown", "unknown", WORDS.unknown("Apagar A"))


def test_worker_that_is_stopped_in_the_middle_leaves_unknown_on_record():
    """A thread may still be at it: nobody can know."""
    desk = Desk()

    async def stopped():
        begun = asyncio.Event()

        async def hang():
            begun.set()
            await asyncio.sleep(60)

        desk.store.executors.keep(desk.action.pending_action_id, hang)
        task = asyncio.create_task(desk.store.settlement.confirm(desk.claim(), desk.stored))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stopped())
    assert (desk.stored.state, desk.stored.told) == ("unknown", WORDS.unknown("Apagar A"))


def test_sealed_record_leaves_out_what_goes_without_saying():
    """Every field that differs from its default is sealed, and read back."""
    action = PendingAction(
        "ana", "delete", "Delete A", {"id": 1}, channel_id="chat", conversation_id="room", ttl_seconds=5,
        requested_at=1.0, parser_version="v1", idempotent=True, code="4821", reason="r", version="2", language="pt",
        plan="P",
    )  # fmt: skip
    arm = seal_action(action, InMemoryPendingStore().seal, user="-")
    assert (arm.ttl_ms, arm.kind, arm.digest, arm.idempotent) == (5000, "delete", action.args_digest, True)
    assert (arm.code, arm.plan, arm.user, arm.live, arm.steps) == ("4821", "P", "-", True, ())
    assert "outcome" not in arm.record
    assert seal_action(replace(action, ttl_seconds=0.0), InMemoryPendingStore().seal, user="-").ttl_ms == 1


def test_yes_before_the_question_hears_that_it_was_not_asked_yet():
    """The action stays as it is, and so does its record."""
    desk = Desk()
    stored = desk.stored
    pid = desk.action.pending_action_id
    desk.store.records._put(pid, replace(stored, state="armed", expires_at=0.0))
    outcome = desk.store.pop_if_intent("ana", "confirm")
    desk.heard(outcome, "early", "armed", WORDS.early("Apagar A"))
    assert desk.store.get("ana") is None
