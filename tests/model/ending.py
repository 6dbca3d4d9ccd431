"""Ending: what must be true once faults have stopped and all work is done."""

from __future__ import annotations

from tests.model.world import Proposal, World

_OUTCOMES = frozenset({"done", "failed", "not done", "unknown"})


def conclude(world: World) -> None:
    """Every accepted turn was processed, and everybody knows what became of what they confirmed."""
    for event in world.events.values():
        if not event.committed:
            world.broke("an accepted turn is processed", event.turn.event_id)
    for proposal in world.proposals.values():
        _truth(world, proposal)
        if proposal.fate == "claimed" and not proposal.plan:
            _told(world, proposal)


def _told(world: World, proposal: Proposal) -> None:
    """A confirmed action's person heard how it ended."""
    heard = {*proposal.said, *(word for pid in proposal.steps for word in world.proposals[pid].said)}
    nothing_to_run = proposal.kind == "gone" and "nothing" in heard
    if not (heard & _OUTCOMES or nothing_to_run or _nameless(world, proposal)):
        world.broke("whoever confirms hears how it ended", proposal.preview, heard)


def _truth(world: World, proposal: Proposal) -> None:
    """The last word is true: what took effect and was recorded is told, even if it took a correction."""
    if not world.effects[proposal.pid]:
        return
    if "nothing" in proposal.said:
        world.broke("nobody is told that nothing was done after an effect", proposal.preview, proposal.said)
    if _nameless(world, proposal):
        return
    if not _OUTCOMES & {*proposal.said}:
        world.broke("an effect is told in the end", proposal.preview, proposal.said)
    if proposal.ended == "done" and "done" not in proposal.said:
        world.broke("what took effect is told in the end", proposal.preview, proposal.said)


def _nameless(world: World, proposal: Proposal) -> bool:
    """Whether what was said about it may not name it: an apology, or words about a record that was changed."""
    head = world.head(proposal)
    return head.vague or head.tampered or any(world.proposals[pid].tampered for pid in (proposal.pid, *head.steps))
