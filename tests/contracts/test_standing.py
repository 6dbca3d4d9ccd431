"""Standing yeses: what every store of actions keeps of them, and books in one step with a claim."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sayso.pending import InMemoryPendingStore
from sayso.pending.action import ActionSigner, PendingAction
from sayso.pending.repository import Claim, sign_action
from sayso.pending.standing_rule import StandingRule
from sayso.pending.standing_yes import (
    StandingRevocation,
    StandingUse,
    StandingYes,
    load_standing_yeses,
)
from sayso.pending.stored_action import StoredAction
from sayso.pending.stored_limits import MAX_STANDING
from sayso.pending.turn_changes import TurnChange
from tests.contracts.rigs import CHAT, Blocking, Rig, turn
from tests.scratch_redis import empty_redis

SEAL = ActionSigner(["key"])
ANA = turn(user="ana").scope
BEN = turn(user="ben").scope
RULE = StandingRule(60.0, 2).to_dict()


class Place:
    """A store of actions, and the clock that it goes by."""

    def __init__(self, *, in_memory: bool) -> None:
        self.rig = Rig(empty_redis())
        self.repository = self.rig.repository
        self.raw = self.rig.store.repository
        if in_memory:
            self.raw = InMemoryPendingStore(clock=lambda: self.rig.now).repository
            self.repository = Blocking(self.raw)

    def shown(self, id_: str, scope=ANA, **fields) -> StoredAction:
        """Store an action as shown."""
        action = PendingAction(
            scope.user_id,
            "ring",
            "Ring",
            channel_id="chat",
            conversation_id="room",
            pending_action_id=id_ * 22,
            tool_digest="t",
            standing=RULE,
            **fields,
        )
        new_action = sign_action(action, SEAL, user=scope.id, occupies_scope=False)
        self.repository.change(CHAT.id, TurnChange(new_actions=(new_action,)))
        (stored,) = self.repository.load(CHAT.id, (action.pending_action_id,))
        return stored

    def grant(self, id_: str = "A", scope=ANA) -> StandingYes:
        """Confirm an action, and let the yes stand."""
        stored = self.shown(id_, scope)
        yes = StandingYes.of(stored, scope, f"tap-{id_}", self.rig.now).sealed(SEAL)
        claim = Claim(scope, stored.action_id, f"tap-{id_}", "tap", grants=yes)
        assert self.repository.claim(claim, stored) == ("mine", "claimed")
        return yes

    def use(self, yes: StandingYes, id_: str, scope=ANA) -> str:
        """Claim an action under a standing yes. Return the status."""
        stored = self.shown(id_, scope, standing_yes=yes.id)
        use = StandingUse.of(yes, stored.action_id, SEAL)
        claim = Claim(scope, stored.action_id, f"standing-{id_}", "tap", use=use)
        status, _ = self.repository.claim(claim, stored)
        again, _ = self.repository.claim(claim, stored)
        assert again == status
        return status

    def standing(self, scope=ANA) -> list[StandingYes]:
        """Return what stands."""
        texts = self.repository.load_standing(CHAT.id, scope.id)
        return sorted(map(StandingYes.from_json, texts), key=lambda each: each.granted_at)

    def revoke(self, *ids: str, scope=ANA) -> None:
        """End some, or all."""
        change = TurnChange(revokes=StandingRevocation(scope.id, ids))
        status, _ = self.repository.change(CHAT.id, change)
        assert status == "ok"


@pytest.fixture(params=["redis", "memory"])
def place(request) -> Place:
    """Return each kind of store."""
    return Place(in_memory=request.param == "memory")


def test_stored_with_the_claim(place):
    """Once, also if the claim is made again."""
    yes = place.grant()
    assert place.standing() == [yes]
    (stored,) = place.repository.load(CHAT.id, (yes.id,))
    claim = Claim(ANA, yes.id, "tap-A", "tap", grants=replace(yes, used=("x",)))
    assert place.repository.claim(claim, stored) == ("mine", "claimed")
    assert place.standing() == [yes]


def test_lost_claim_stores_nothing(place):
    """Neither for another decision, nor after the time to answer, nor for a changed record."""
    yes = place.grant()
    (stored,) = place.repository.load(CHAT.id, (yes.id,))
    other = Claim(ANA, yes.id, "another", "tap", grants=replace(yes, event_id="another"))
    assert place.repository.claim(other, stored)[0] == "other"
    assert place.standing() == [yes]

    late = place.shown("B")
    changed = replace(late, record=late.record + " ")
    grants = StandingYes.of(late, ANA, "late", place.rig.now).sealed(SEAL)
    claim = Claim(ANA, late.action_id, "late", "tap", grants=grants)
    assert place.repository.claim(claim, changed)[0] == "tampered"
    place.rig.pass_time(61)
    assert place.repository.claim(claim, late)[0] == "expired"
    assert grants.id not in {each.id for each in place.standing()}


def test_use_is_booked_with_the_claim(place):
    """Each use makes another record, and the next one needs it."""
    yes = place.grant()
    assert place.use(yes, "B") == "mine"
    (used,) = place.standing()
    assert used.used == ("B" * 22,)
    assert used.is_genuine(SEAL, ANA)
    assert place.use(used, "C") == "mine"
    assert place.standing()[0].used == ("B" * 22, "C" * 22)


def test_use_of_what_was_used_since(place):
    """Two that have read the same record: the second one books nothing."""
    yes = place.grant()
    assert place.use(yes, "B") == "mine"
    assert place.use(yes, "C") == "not_covered"
    (stored,) = place.repository.load(CHAT.id, ("C" * 22,))
    assert stored.state == "shown"
    assert place.standing()[0].used == ("B" * 22,)


def test_use_after_the_end(place):
    """The clock of the store counts."""
    yes = place.grant()
    place.rig.pass_time(59)
    assert place.use(yes, "B") == "mine"
    (used,) = place.standing()
    place.rig.pass_time(1.01)
    assert place.use(used, "C") == "not_covered"


def test_revocation(place):
    """Of one, of all, and of none."""
    first = place.grant("A")
    place.rig.pass_time(1)
    second = place.grant("B")
    place.revoke("unknown")
    assert place.standing() == [first, second]
    place.revoke(first.id)
    assert place.standing() == [second]
    assert place.use(first, "C") == "not_covered"
    place.revoke()
    assert place.standing() == []
    place.revoke()


def test_of_one_person(place):
    """Another person's revocation and uses change nothing."""
    yes = place.grant()
    place.revoke(scope=BEN)
    assert place.standing() == [yes]
    assert place.standing(BEN) == []
    assert place.use(yes, "B", scope=BEN) == "not_covered"
    assert place.standing() == [yes]


def test_at_most_so_many(place):
    """The first to end makes room, and ended ones are gone."""
    names = "ABCDEFGHIJKLMNOPQRSTUVWX"
    for name in names[: MAX_STANDING + 2]:
        place.grant(name)
        place.rig.pass_time(0.5)
    ids = [each.id[0] for each in place.standing()]
    assert ids == list(names[2 : MAX_STANDING + 2])
    place.rig.pass_time(60)
    last = place.grant("Z")
    assert place.standing() == [last]


async def _load(place: Place) -> list[StandingYes]:
    return await load_standing_yeses(place.raw, SEAL, ANA, place.rig.now)


def test_only_what_can_be_used_is_loaded(place):
    """Neither ended ones nor those without a use left."""
    yes = place.grant()
    assert asyncio.run(_load(place)) == [yes]
    place.use(yes, "B")
    place.use(place.standing()[0], "C")
    assert asyncio.run(_load(place)) == []
    place.rig.pass_time(60)
    assert asyncio.run(_load(place)) == []
