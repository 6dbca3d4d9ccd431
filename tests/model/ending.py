"""Ending: what must be true after the faults have stopped and all work is done."""

from __future__ import annotations

from tests.model.world import Proposal, World

_OUTCOMES = frozenset({"done", "failed", "not done", "unknown"})


def conclude(world: World) -> None:
    """Check that every accepted turn was processed, and that each person got the outcome of a confirmed action."""
    for event in world.events.values():
        if not event.committed:
            world.broke("an accepted turn is processed", event.turn.event_id)
    for proposal in world.proposals.values():
        _truth(world, proposal)
        if proposal.fate == "claimed" and not proposal.plan:
            _told(world, proposal)
            if world.goes_on and not proposal.undoes:
                _continued(world, proposal)


def _continued(world: World, proposal: Proposal) -> None:
    """Check that the agent went on after a confirmed action, and that the rest of the request is not silent.

    The person has the rest from the continuation, or from a model's answer to a message between the
    yes and it.
    """
    if _nameless(world, proposal):
        return
    if proposal.continuation is None:
        world.broke("the agent goes on after each confirmed action", proposal.preview)
        return
    place = proposal.conversation
    first = world.events[place, proposal.by].seq + 1
    turns = [world.by_seq[place, seq] for seq in range(first, proposal.continuation.seq + 1)]
    by_model = [
        event for event in turns if event.turn.user_id == proposal.user and event.asked_model
    ]
    if not any(event.is_answered for event in (*by_model, proposal.continuation)):
        world.broke("the rest of a request is answered", proposal.preview)


def _told(world: World, proposal: Proposal) -> None:
    """Check that the person of a confirmed action got its outcome."""
    heard = {
        *proposal.said,
        *(word for pid in proposal.steps for word in world.proposals[pid].said),
    }
    nothing_to_run = proposal.kind == "gone" and "nothing" in heard
    if not (heard & _OUTCOMES or nothing_to_run or _nameless(world, proposal)):
        world.broke("whoever confirms hears how it ended", proposal.preview, heard)


def _truth(world: World, proposal: Proposal) -> None:
    """Check that the last report is true: a recorded effect is reported, even if by a correction."""
    if not world.effects[proposal.pid]:
        return
    if "nothing" in proposal.said:
        world.broke(
            "nobody is told that nothing was done after an effect", proposal.preview, proposal.said
        )
    if _nameless(world, proposal):
        return
    if not _OUTCOMES & {*proposal.said}:
        world.broke("an effect is told in the end", proposal.preview, proposal.said)
    if proposal.ended == "done" and "done" not in proposal.said:
        world.broke("what took effect is told in the end", proposal.preview, proposal.said)


def _nameless(world: World, proposal: Proposal) -> bool:
    """Return whether the reply need not name the action: an apology, or a notice about a changed record."""
    head = world.head(proposal)
    return (
        head.vague
        or head.tampered
        or any(world.proposals[pid].tampered for pid in (proposal.pid, *head.steps))
    )
