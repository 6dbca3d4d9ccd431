"""Choices: answers that tools offer as buttons. An offer is signed like an action and can be taken once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sayso.agent.channel.context import TurnAnswer, TurnContext
from sayso.agent.channel.prompts import MAX_KEPT_CHARS
from sayso.channels.types import Button, Reply
from sayso.pending.action import PendingAction, compute_args_digest
from sayso.pending.repository import OPEN_STATES, ActionResult, Claim, StoredAction, sign_action
from sayso.pending.store import PendingActionStore
from sayso.pending.turns.change import NewAction
from sayso.pending.turns.queued import CHOICE_KIND, LeaseLost, StaleTurn

#: How long an offer can be taken, in seconds.
CHOICE_SECONDS = 86_400.0


class Choices:
    """The offers of one channel. Lives as long as its store."""

    def __init__(self, store: PendingActionStore) -> None:
        self._store = store

    def add_to(self, context: TurnContext, answer: TurnAnswer, labels: Sequence[str]) -> TurnAnswer:
        """Return the answer with the labels as buttons under its last text, or as a list without a worker.

        If the last reply is a question or a file, or is too long, the buttons get a message of their own.
        """
        if not labels:
            return answer
        *before, (last, pid) = answer.change.replies or ((Reply(), ""),)
        fits = not (pid or last.media) and len(last.text) <= MAX_KEPT_CHARS
        above, text = (before, last.text) if fits else ([*before, (last, pid)], "")
        if context.lease is None:
            listed = "\n".join([text or context.texts.choose(), "", *(f"- {label}" for label in labels)])
            return replace(answer, change=replace(answer.change, replies=(*above, (Reply(listed), ""))))
        offer = self._offer(context, Reply(text or context.texts.choose()).text, labels)
        change = replace(
            answer.change,
            replies=(*above, (self._reply(context, offer), offer.pending_action_id)),
            new_actions=(*answer.change.new_actions, self._arm(context, offer)),
        )
        return replace(answer, change=change)

    async def take(self, context: TurnContext, stored: StoredAction, choice: int) -> StoredAction:
        """Take a choice unless one was taken before. Return the offer, which names the event that took a choice.

        Raises LeaseLost and StaleTurn if the worker must stop or read the action again.
        """
        if stored.state not in OPEN_STATES:
            return stored
        repository, event = self._store.repository, context.turn.event_id
        claim = Claim(context.turn.scope, stored.pid, event, "tap", context.lease, context.seq)
        verdict, _ = await repository.claim(claim, stored)
        match verdict:
            case "mine":
                label = stored.action.args["labels"][choice]
                if await repository.start(claim, stored, event) != "go":
                    raise StaleTurn(f"{claim.conversation}: the offer changed before it was taken")
                await repository.finish(claim, event, ActionResult("done", label))
                return replace(stored, state="done", by=event, outcome_text=label)
            case "lost":
                raise LeaseLost(claim.conversation)
            case "moved":
                raise StaleTurn(claim.conversation)
        return replace(stored, state="expired")

    def _offer(self, context: TurnContext, text: str, labels: Sequence[str]) -> PendingAction:
        where, args = context.turn.conversation, {"labels": list(labels), "text": text}
        return PendingAction(
            user_id=context.turn.user_id,
            kind=CHOICE_KIND,
            preview=" / ".join(labels),
            args=args,
            args_digest=compute_args_digest(args),
            channel_id=where.channel,
            conversation_id=where.address,
            ttl_seconds=CHOICE_SECONDS,
            requested_at=context.received_at,
            language=context.texts.language,
        )

    def _reply(self, context: TurnContext, offer: PendingAction) -> Reply:
        signer, pid = self._store.signer, offer.pending_action_id
        labels = enumerate(offer.args["labels"])
        return Reply(
            offer.args["text"],
            tuple(Button(label, signer.choice_token(pid, place, context.turn.scope)) for place, label in labels),
        )

    def _arm(self, context: TurnContext, offer: PendingAction) -> NewAction:
        """Return the action to store. It waits beside the scope's pending action, and only its buttons reach it."""
        return sign_action(offer, self._store.signer, user=context.turn.scope.id, live=False)
