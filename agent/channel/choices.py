"""Choices: answers that tools offer as buttons, each offer sealed like an action and taken once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sayso.agent.channel.context import TurnAnswer, TurnContext
from sayso.agent.channel.prompts import MAX_KEPT_CHARS
from sayso.channels.types import Button, Reply
from sayso.pending.action import PendingAction, compute_args_digest
from sayso.pending.concurrency import reach
from sayso.pending.repository import OPEN_STATES, ActionResult, Claim, StoredAction, seal_action
from sayso.pending.store import BasePendingStore
from sayso.pending.turns.change import NewAction
from sayso.pending.turns.queued import CHOICE_KIND, LeaseLost, StaleTurn

#: Seconds for which an offer can be taken.
CHOICE_SECONDS = 86_400.0


class Choices:
    """The offers of one channel. Lives as long as its store."""

    def __init__(self, store: BasePendingStore) -> None:
        self._store = store

    def offered(self, case: TurnContext, answer: TurnAnswer, labels: Sequence[str]) -> TurnAnswer:
        """The answer with these labels as buttons under its last words; in words where nothing can be tapped.

        What asks for something itself, or is too long to be kept when its buttons go, has them below it.
        """
        if not labels:
            return answer
        *before, (last, pid) = answer.change.replies or ((Reply(), ""),)
        fits = not (pid or last.media) and len(last.text) <= MAX_KEPT_CHARS
        above, text = (before, last.text) if fits else ([*before, (last, pid)], "")
        if case.lease is None:
            listed = "\n".join([text or case.words.choose(), "", *(f"- {label}" for label in labels)])
            return replace(answer, change=replace(answer.change, replies=(*above, (Reply(listed), ""))))
        offer = self._offer(case, Reply(text or case.words.choose()).text, labels)
        change = replace(
            answer.change,
            replies=(*above, (self._reply(case, offer), offer.pending_action_id)),
            arms=(*answer.change.arms, self._arm(case, offer)),
        )
        return replace(answer, change=change)

    async def taken(self, case: TurnContext, stored: StoredAction, choice: int) -> StoredAction:
        """The offer, once this turn has taken the choice if nobody had before: then it is done, by this turn's event.

        Raises LaneLost and TurnOvertaken when the worker must stop or look again.
        """
        if stored.state not in OPEN_STATES:
            return stored
        records, event = self._store.records, case.turn.event_id
        claim = Claim(case.turn.scope, stored.pid, event, "tap", case.lease, case.seq)
        verdict, _ = await reach(records.claim, claim, stored)
        match verdict:
            case "mine":
                label = stored.action.args["labels"][choice]
                if await reach(records.start, claim, stored, event) != "go":
                    raise StaleTurn(f"{claim.conversation}: the offer moved before it was taken")
                await reach(records.finish, claim, event, ActionResult("done", label))
                return replace(stored, state="done", by=event, told=label)
            case "lost":
                raise LeaseLost(claim.conversation)
            case "moved":
                raise StaleTurn(claim.conversation)
        return replace(stored, state="expired")

    def _offer(self, case: TurnContext, text: str, labels: Sequence[str]) -> PendingAction:
        where, args = case.turn.conversation, {"labels": list(labels), "text": text}
        return PendingAction(
            user_id=case.turn.user_id,
            kind=CHOICE_KIND,
            preview=" / ".join(labels),
            args=args,
            args_digest=compute_args_digest(args),
            channel_id=where.channel,
            conversation_id=where.address,
            ttl_seconds=CHOICE_SECONDS,
            requested_at=case.received_at,
            language=case.words.language,
        )

    def _reply(self, case: TurnContext, offer: PendingAction) -> Reply:
        seal, pid = self._store.seal, offer.pending_action_id
        labels = enumerate(offer.args["labels"])
        return Reply(
            offer.args["text"],
            tuple(Button(label, seal.mint_choice(pid, place, case.turn.scope)) for place, label in labels),
        )

    def _arm(self, case: TurnContext, offer: PendingAction) -> NewAction:
        """It waits beside what the scope may wait for, and only its buttons reach it."""
        return seal_action(offer, self._store.seal, user=case.turn.scope.id, live=False)
