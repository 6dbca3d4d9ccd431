"""Parity: for every state and every step without a lease, the store in memory does what the Redis scripts do."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from sayso.pending import InMemoryPendingStore
from sayso.pending.action import ActionSigner, PendingAction
from sayso.pending.decision_record import DecisionRecord
from sayso.pending.repository import ActionDecision, ActionResult, Claim, sign_action
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import Transition, TurnChange
from tests.contracts.rigs import CHAT, Blocking, Rig, turn

SEAL = ActionSigner(["key"])
ANA = turn(user="ana").scope
A, B, PLAN = "A" * 22, "B" * 22, "P" * 22


def arm(pid: str = A, *, live: bool = True, steps: tuple[str, ...] = (), **fields):
    """Return a signed action of ana's."""
    given = {"kind": "delete", "preview": f"Delete {pid[0]}", "args": {"name": pid[0]}, **fields}
    action = PendingAction(
        "ana", channel_id="chat", conversation_id="room", pending_action_id=pid, **given
    )
    return sign_action(action, SEAL, user=ANA.id, occupies_scope=live, steps=steps)


def plan() -> tuple:
    """Return a plan of two steps."""
    return (
        arm(A, live=False, plan=PLAN),
        arm(B, live=False, plan=PLAN),
        arm(PLAN, kind="plan", steps=(A, B)),
    )


def decided(answer: str = "yes", pid: str = A) -> DecisionRecord:
    """Return the record of a decision in words."""
    return DecisionRecord(pid, "mac", answer, "words", "chat", "ana", CHAT.id, "yes-1", 1.5)


def claim(pid: str = A, by: str = "yes-1") -> Claim:
    """Return a claim without a lease, with the record of its decision."""
    return Claim(ANA, pid, by, decision=replace(decided(pid=pid), event_id=by))


def move(pid: str, before: str, after: str, told: str = "", by: str = "") -> TurnChange:
    """Return a change of state."""
    return TurnChange(transition=Transition(pid, (before,), after, told, by))


def timeless(answer):
    """Return the answer with each time replaced by whether it is set."""
    if isinstance(answer, StoredAction):
        times = {"expires_at": bool(answer.expires_at), "started_at": bool(answer.started_at)}
        return replace(answer, **times)
    if isinstance(answer, (tuple, list)):
        return [timeless(one) for one in answer]
    return bool(answer) if isinstance(answer, float) else answer


class InMemory:
    """The store in memory, on the clock of a rig."""

    def __init__(self, rig: Rig) -> None:
        store = InMemoryPendingStore(clock=lambda: rig.now)
        self.repository = Blocking(store.repository)


class Twins:
    """Runs each operation on both stores and compares answers, records and open actions."""

    def __init__(self, client) -> None:
        rig = Rig(client)
        self.rigs = (InMemory(rig), rig)

    def do(self, step: str, *args):
        """Call both stores; return the answer of the one in memory."""
        return self._compare([getattr(rig.repository, step)(*args) for rig in self.rigs])

    def claim(self, pid: str = A, by: str = "yes-1"):
        """Claim the stored action."""
        return self.do("claim", claim(pid, by), self.at(pid))

    def start(self, pid: str = A, attempt: str = "try-1"):
        """Start the stored action."""
        return self.do("start", claim(pid), self.at(pid), attempt)

    def finish(self, state: str, pid: str = A, attempt: str = "try-1", **words):
        """Finish the action."""
        return self.do(
            "finish",
            claim(pid),
            attempt,
            ActionResult(state, **{"outcome_text": f"it is {state}", **words}),
        )

    def decide(self, intent: str, **expected):
        """Decide without a lease."""
        return self.do("decide", ActionDecision(ANA, intent, "yes-1", **expected))[0]

    def at(self, pid: str = A) -> StoredAction | None:
        """Return the record in memory."""
        return self.rigs[0].repository.load(CHAT.id, (pid,))[0]

    def state(self, pid: str = A) -> str:
        """Return the state of the action."""
        return self.at(pid).state

    def pass_time(self, seconds: float) -> None:
        """Move both clocks."""
        self.rigs[1].pass_time(seconds)

    def _compare(self, answers):
        memory, redis = (timeless(answer) for answer in answers)
        assert memory == redis
        views = [
            timeless(
                [
                    rig.repository.load_open(CHAT.id, ANA.id),
                    *rig.repository.load(CHAT.id, (A, B, PLAN)),
                ]
            )
            for rig in self.rigs
        ]
        for one, other in zip(*views, strict=True):
            assert one == other
        return answers[0]


@pytest.fixture
def twins(redis_client):
    """Return both stores, empty."""
    return Twins(redis_client)


def lead_to(twins: Twins, state: str, **fields) -> None:
    """Bring an action into this state."""
    twins.do("save", CHAT.id, arm(**fields))
    if state in ("cancelled", "expired", "superseded"):
        twins.do("change", CHAT.id, move(A, "shown", state, "over", "somebody"))
    if state in ("claimed", "started", "done", "failed", "unknown"):
        assert twins.claim() == ("mine", "claimed")
    if state in ("started", "done", "failed", "unknown"):
        assert twins.start() == "go"
    if state in ("done", "failed", "unknown"):
        twins.finish(state)
    assert twins.state() == state


STATES = (
    "shown",
    "claimed",
    "started",
    "done",
    "failed",
    "unknown",
    "cancelled",
    "expired",
    "superseded",
)


@pytest.mark.parametrize("state", STATES)
def test_only_a_shown_action_can_be_claimed(twins, state):
    """It is claimed once. The claimant gets the same answer again until the action is over."""
    lead_to(twins, state)
    verdict, _ = twins.claim(by="yes-2")
    assert verdict == ("mine" if state == "shown" else "other")
    twins.claim(by="yes-1")
    assert twins.do("claim", claim("C" * 22), twins.at()) == ("gone", "")


@pytest.mark.parametrize("state", STATES)
def test_only_a_claimed_action_can_be_started(twins, state):
    """One attempt starts it; the same attempt gets the same answer again."""
    lead_to(twins, state)
    again = twins.start(attempt="try-1")
    assert again == ("go" if state in ("claimed", "started") else "no")
    assert twins.start(attempt="try-2") == "no"
    assert twins.do("start", claim("C" * 22), twins.at(), "try-1") == "tampered"


def test_repeatable_action_is_started_three_times_at_most(twins):
    """After a crash another attempt may start it."""
    lead_to(twins, "claimed", idempotent=True)
    assert [twins.start(attempt=f"try-{number}") for number in (1, 2, 3, 4)] == [
        "go",
        "go",
        "go",
        "worn",
    ]
    twins.finish("done", attempt="try-2")
    assert twins.state() == "started"
    twins.finish("done", attempt="try-3")
    assert twins.state() == "done"


@pytest.mark.parametrize(
    ("first", "second"), list(product(("done", "failed", "unknown"), repeat=2))
)
def test_late_outcome_is_recorded_where_allowed(twins, first, second):
    """It replaces "unknown" and "failed", never "done", and only the attempt itself may report it."""
    lead_to(twins, "started")
    twins.finish(first)
    twins.finish(second, attempt="try-2", result="stranger's", output="{}")
    assert (twins.state(), twins.at().result) == (first, "")
    twins.finish(second, result="second's", output='{"by": "the second"}')
    corrected = (first, second) in (("unknown", "failed"), ("unknown", "done"), ("failed", "done"))
    assert (twins.state(), twins.at().result) == (
        (second, "second's") if corrected else (first, "")
    )
    assert twins.at().outcome_text == f"it is {twins.state()}"


@pytest.mark.parametrize("state", STATES)
def test_action_that_was_not_started_cannot_finish(twins, state):
    """This holds for every attempt."""
    lead_to(twins, state)
    for end in ("failed", "done"):
        twins.finish(end, attempt="")
        twins.do("finish", claim("C" * 22), "try-1", ActionResult(end, "told"))
    assert twins.state() == state


@pytest.mark.parametrize("changes", [{"record": "{}"}, {"mac": "0" * 64}])
def test_record_that_differs_from_the_verified_one_is_tampered(twins, changes):
    """Both the claim and the start compare it."""
    lead_to(twins, "shown")
    other = replace(twins.at(), **changes)
    assert twins.do("claim", claim(), other) == ("tampered", "shown")
    twins.claim()
    assert twins.do("start", claim(), other, "try-1") == "tampered"
    assert twins.state() == "claimed"


def test_claim_after_the_window_expires_the_action(twins):
    """The same claim gets the same answer again; another one gets "over"."""
    lead_to(twins, "shown")
    twins.pass_time(61)
    assert twins.claim() == ("expired", "expired")
    assert twins.claim() == ("expired", "expired")
    assert twins.claim(by="yes-2") == ("other", "expired")


@pytest.mark.parametrize(
    ("intent", "verdict"), [("confirm", "mine"), ("cancel", "cancelled"), ("ignore", "ignored")]
)
def test_decision_without_a_lease(twins, intent, verdict):
    """It confirms and starts at once, cancels, or shortens the window."""
    lead_to(twins, "shown")
    assert twins.decide(intent, ignore_seconds=5) == verdict
    assert twins.state() == {"confirm": "started", "cancel": "cancelled", "ignore": "shown"}[intent]
    assert twins.at().decided_by_event == ("" if intent == "ignore" else "yes-1")
    if intent == "confirm":
        twins.finish("done", attempt="yes-1")
        assert twins.state() == "done"


@pytest.mark.parametrize(
    ("expected", "confirmed", "cancelled"),
    [
        ({"expected_kind": "pay"}, "mismatch", "mismatch"),
        ({"expected_id": B}, "mismatch", "mismatch"),
        ({"expected_digest": "0" * 64}, "changed", "changed"),
        ({"code": "1234"}, "mismatch", "cancelled"),
        (
            {"expected_kind": "delete", "expected_id": A, "expected_digest": arm().digest},
            "mine",
            "cancelled",
        ),
    ],
)
@pytest.mark.parametrize("intent", ["confirm", "cancel", "ignore"])
def test_decision_on_another_action(twins, intent, expected, confirmed, cancelled):
    """Kind, id, arguments or code differ from the stored action."""
    lead_to(twins, "shown")
    verdict = twins.decide(intent, **expected)
    assert verdict == {"confirm": confirmed, "cancel": cancelled, "ignore": cancelled}[
        intent
    ].replace("cancelled", "ignored" if intent == "ignore" else "cancelled")


@pytest.mark.parametrize("intent", ["confirm", "cancel", "ignore"])
def test_decision_after_the_window(twins, intent):
    """This holds for every decision."""
    lead_to(twins, "shown")
    twins.pass_time(61)
    assert twins.decide(intent) == "expired"
    assert (twins.state(), twins.at().decided_by_event) == ("expired", "yes-1")


@pytest.mark.parametrize(
    ("state", "intent"), list(product(STATES[1:], ["confirm", "cancel", "ignore"]))
)
def test_decision_on_a_decided_action(twins, state, intent):
    """Nothing is left to decide."""
    lead_to(twins, state)
    assert twins.decide(intent) == "gone"
    assert twins.state() == state


@pytest.mark.parametrize("state", ["claimed", "started"])
@pytest.mark.parametrize(
    ("expected", "verdict"),
    [
        ({}, "stale"),
        ({"expected_kind": "pay"}, "mismatch"),
        ({"expected_id": B}, "mismatch"),
        ({"expected_digest": "0" * 64}, "mismatch"),
        ({"code": "1234"}, "mismatch"),
    ],
)
def test_decision_on_an_action_of_a_dead_process(twins, state, expected, verdict):
    """A decision that names another action changes nothing either."""
    lead_to(twins, state)
    twins.pass_time(130)
    assert twins.decide("confirm", **expected) == verdict
    assert (twins.state(), twins.at().decided_by_event) == (state, "yes-1")


@pytest.mark.parametrize("intent", ["confirm", "cancel", "ignore"])
@pytest.mark.parametrize("expected", [{}, {"expected_id": B}, {"expected_digest": "0" * 64}])
def test_record_of_a_decision_is_stored_with_it(twins, intent, expected):
    """It is stored if the decision confirms or cancels the action that was expected."""
    lead_to(twins, "shown")
    twins.decide(intent, record=decided(), **expected)
    is_decided = intent != "ignore" and not expected
    assert twins.at().decision == (decided().to_json() if is_decided else "")


def test_record_of_a_claim_is_stored_once(twins):
    """A repeated claim and a claim after the window store none."""
    lead_to(twins, "claimed")
    first = twins.at().decision
    assert DecisionRecord.from_json(first).event_id == "yes-1"
    twins.claim(by="yes-2")
    assert twins.at().decision == first
    twins.do("save", CHAT.id, arm(B, live=False))
    twins.pass_time(61)
    assert twins.claim(B) == ("expired", "expired")
    assert twins.at(B).decision == ""


@pytest.mark.parametrize("state", STATES)
def test_record_of_a_transition_is_stored_with_it(twins, state):
    """An action that has ended, also by its window, keeps what it has."""
    lead_to(twins, state)
    before = twins.at().decision
    denied = Transition(A, ("shown",), "cancelled", "no", "no-1", decision=decided("no"))
    twins.do("change", CHAT.id, TurnChange(transition=denied))
    assert twins.at().decision == (decided("no").to_json() if state == "shown" else before)


@pytest.mark.parametrize("intent", ["confirm", "cancel", "ignore"])
def test_decision_without_any_action(twins, intent):
    """Nothing is written."""
    assert twins.decide(intent) == "gone"


@pytest.mark.parametrize("code", ["", "4821", "4822"])
def test_decision_with_a_code(twins, code):
    """Only the right one confirms."""
    lead_to(twins, "shown", code="4821")
    assert twins.decide("confirm", code=code) == ("mine" if code == "4821" else "mismatch")


@pytest.mark.parametrize("before", STATES)
def test_second_action_waits_until_the_first_is_over(twins, before):
    """An open action occupies its scope; storing the same one again is not a second."""
    lead_to(twins, before)
    occupied = before in ("shown", "claimed", "started")
    assert twins.do("change", CHAT.id, TurnChange(new_actions=(arm(B),)))[0] == (
        "exists" if occupied else "ok"
    )
    assert (twins.at(B) is None) == occupied
    assert (
        twins.do("change", CHAT.id, TurnChange(new_actions=(arm(A),)))[0] == "ok"
        or before != "shown"
    )


def test_expired_action_makes_room(twins):
    """Its expiry is recorded."""
    lead_to(twins, "shown")
    twins.pass_time(61)
    assert twins.do("change", CHAT.id, TurnChange(new_actions=(arm(B),)))[0] == "ok"
    assert (twins.state(A), twins.state(B)) == ("expired", "shown")


def test_action_of_a_dead_process_makes_room(twins):
    """A claimed one was not done; a started one is unknown."""
    for pid, other, end in ((A, B, "superseded"), (B, PLAN, "unknown")):
        twins.do("change", CHAT.id, TurnChange(new_actions=(arm(pid),)))
        twins.claim(pid)
        if end == "unknown":
            twins.start(pid)
        twins.pass_time(130)
        assert twins.do("change", CHAT.id, TurnChange(new_actions=(arm(other),)))[0] == "ok"
        assert twins.state(pid) == end


def test_action_of_another_person_or_with_its_own_button_takes_no_room(twins):
    """Each waits for a yes of its own."""
    lead_to(twins, "shown")
    assert twins.do("change", CHAT.id, TurnChange(new_actions=(arm(B, live=False),)))[0] == "ok"
    assert (
        twins.do("change", CHAT.id, TurnChange(new_actions=(replace(arm(PLAN), user="bob"),)))[0]
        == "ok"
    )
    assert twins.rigs[0].repository.load_open(CHAT.id, ANA.id).action_id == A


@pytest.mark.parametrize("to", ["cancelled", "expired"])
def test_expired_action_may_be_dropped(twins, to):
    """It stays expired, with the text that its person gets."""
    lead_to(twins, "expired")
    assert twins.do("change", CHAT.id, move(A, "shown", to, "let go", "later"))[0] == "ok"
    assert (twins.state(), twins.at().outcome_text, twins.at().decided_by_event) == (
        "expired",
        "let go",
        "somebody",
    )


@pytest.mark.parametrize("after", ["done", "failed", "unknown", "cancelled", "started"])
def test_transition_starts_from_its_states_only(twins, after):
    """A transition without a text or a decider keeps the stored ones."""
    lead_to(twins, "started")
    assert twins.do("change", CHAT.id, move(A, "shown", after))[0] == "state"
    assert twins.do("change", CHAT.id, move("C" * 22, "started", after))[0] == "state"
    assert twins.do("change", CHAT.id, move(A, "started", after, "told"))[0] == "ok"
    assert twins.do("change", CHAT.id, move(A, after, after))[0] == "ok"
    assert (twins.at().outcome_text, twins.at().decided_by_event) == ("told", "yes-1")
    assert twins.do("change", CHAT.id, move(A, after, after, "told again", "yes-2"))[0] == "ok"
    assert twins.at().outcome_text == "told again"


def test_steps_run_only_while_their_plan_runs_and_under_its_attempt(twins):
    """The person agreed to the plan."""
    twins.do("change", CHAT.id, TurnChange(new_actions=plan()))
    assert twins.claim(A) == ("other", "shown")
    assert twins.claim(PLAN) == ("mine", "claimed")
    assert twins.claim(A) == ("other", "shown")
    twins.start(PLAN, "try-p")
    assert twins.claim(A, by="yes-2") == ("other", "shown")
    assert twins.claim(A) == ("mine", "claimed")
    twins.start(A)
    twins.finish("done", A)
    twins.do("change", CHAT.id, move(PLAN, "started", "done", "it is done", "yes-1"))
    assert twins.claim(B) == ("moved", "cancelled")
    assert [twins.state(pid) for pid in (A, B, PLAN)] == ["done", "cancelled", "done"]


def test_plan_may_be_started_any_number_of_times(twins):
    """A plan has no effect of its own."""
    twins.do("change", CHAT.id, TurnChange(new_actions=plan()))
    twins.claim(PLAN)
    assert {twins.start(PLAN, f"try-{number}") for number in range(6)} == {"go"}


@pytest.mark.parametrize("end", ["cancelled", "expired", "superseded", "failed", "unknown"])
@pytest.mark.parametrize("begun", ["nothing", "claim", "start", "finish"])
def test_open_steps_end_with_their_plan(twins, end, begun):
    """A started step is unknown; the others end in the plan's own state."""
    twins.do("change", CHAT.id, TurnChange(new_actions=plan()))
    twins.claim(PLAN)
    twins.start(PLAN, "try-p")
    for step in ("claim", "start", "finish")[
        : ("nothing", "claim", "start", "finish").index(begun)
    ]:
        getattr(twins, step)(*(["done"] if step == "finish" else []))
    twins.do("change", CHAT.id, move(PLAN, "started", end, "over", "somebody"))
    open_end = end if end in ("expired", "superseded") else "cancelled"
    assert twins.state(B) == open_end
    assert twins.state(A) == {"start": "unknown", "finish": "done"}.get(begun, open_end)


def test_decision_ends_a_whole_plan(twins):
    """Its steps end with it."""
    twins.do("change", CHAT.id, TurnChange(new_actions=plan()))
    assert twins.decide("cancel") == "cancelled"
    assert [twins.state(pid) for pid in (A, B)] == ["cancelled", "cancelled"]


def test_action_is_not_read_under_another_conversation(twins):
    """A missing action is not found either."""
    lead_to(twins, "shown")
    assert twins.do("load", "elsewhere", (A,)) == [None]
    assert twins.do("load", CHAT.id, (B,)) == [None]
    assert twins.do("load_open", CHAT.id, "somebody") is None


def test_started_actions_are_listed_last_first(redis_client):
    """Only what was started counts, steps of a plan too, and each person has a list of their own."""
    twins = Twins(redis_client)
    twins.do("change", CHAT.id, TurnChange(new_actions=(arm(A), arm(B, live=False))))
    assert twins.do("list_started", CHAT.id, ANA.id) == []
    for pid in (A, B):
        twins.claim(pid)
        twins.start(pid, f"try-{pid[0]}")
    assert [stored.action_id for stored in twins.do("list_started", CHAT.id, ANA.id)] == [B, A]
    assert twins.do("list_started", CHAT.id, turn(user="bob").scope.id) == []
