"""The store in memory: its records are bounded."""

from __future__ import annotations

from sayso.pending import InMemoryPendingStore
from sayso.pending.action import ActionSigner, PendingAction
from sayso.pending.in_memory_actions import InMemoryActions
from sayso.pending.plans import plan_of
from sayso.pending.repository import Claim
from sayso.pending.store import scope_of
from sayso.pending.turn_changes import TurnChange
from tests.contracts.rigs import Blocking

SEAL = ActionSigner(["key"])
ANA = scope_of("ana", None, None)


def test_evicted_action_leaves_no_trace():
    """Ended actions go first, then the oldest, with its place in the scope."""
    store = InMemoryPendingStore(max_entries=3)
    for number in range(5):
        store.stash(f"user-{number}", kind="k", preview="p", executor=lambda: "done")
        if number == 1:
            store.pop_if_confirmed("user-1", "yes")
    records = store.repository
    assert [store.get(f"user-{number}") is not None for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert len(records._entries) == len(records._occupants) == 3


def test_running_action_counts_as_stale_from_its_last_step():
    """A process that has just started, or is at a later step, does not count as dead."""
    now = [1000.0]
    records = InMemoryActions(clock=lambda: now[0])
    proposal = plan_of([PendingAction("ana", "k", preview, ttl_seconds=3600) for preview in "AB"])
    Blocking(records).change(
        ANA.conversation.id, TurnChange(new_actions=proposal.new_actions(SEAL, ANA.id))
    )
    names = (proposal.head.pending_action_id, proposal.steps[0].pending_action_id)

    def begun() -> list[float]:
        return [stored.started_at for stored in Blocking(records).load(ANA.conversation.id, names)]

    for pid in names:
        claim = Claim(ANA, pid, "yes-1")
        now[0] += 100
        Blocking(records).claim(claim, Blocking(records).load(ANA.conversation.id, (pid,))[0])
        claimed = begun()
        now[0] += 100
        Blocking(records).start(
            claim, Blocking(records).load(ANA.conversation.id, (pid,))[0], "try-1"
        )
    assert claimed == [1300.0, 1300.0]
    assert begun() == [1300.0, 1400.0]
