"""Judge: checks each call, effect and delivery at the moment it happens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sayso.agent.messages import Message, Role
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Delivery, Reply, Turn
from sayso.pending.action import DEFAULT_IGNORE_TTL_SECONDS, PendingAction
from sayso.pending.repository import ActionDecision, ActionResult, Claim
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import TurnChange
from sayso.pending.turns import Lease, QueuedReply, QueuedTurn
from sayso.workers.lease import LEASE_MS
from sayso.workers.sender import GivenUp, Sent
from tests.model.verdicts import Verdicts
from tests.model.wire import Peek
from tests.model.world import Event, Proposal, World, result_of, shown

#: How often a repeatable effect may be started.
MOST_STARTS = 3
#: The calls that only the lease holder may make. (A worker may release a lost lease without an error.)
_FENCED = ("renew", "commit", "mark_delivered", "postpone", "claim", "start")


class Judge:
    """Watches one example, and adds broken promises to the world's list."""

    def __init__(self, world: World, peek: Peek) -> None:
        self._world = world
        self._peek = peek
        self._verdicts = Verdicts(world, peek)
        #: The lease holder of each conversation, and when its lease ends.
        self._holders: dict[str, tuple[str, int]] = {}
        #: Holders that are known to be dead.
        self.buried: set[str] = set()
        #: Workers that released their lease because no work was left.
        self._over: set[str] = set()

    def accepted(self, turn: Turn, outcome: str, seq: int) -> None:
        """Check the mailbox's answer to an event: new once, then always the same number."""
        world, key = self._world, (turn.conversation.id, turn.event_id)
        known = world.events.get(key)
        if outcome == "new" and known is None:
            if seq != world.received(turn.conversation.id) + 1:
                world.broke("turns are numbered without a gap", turn.event_id, seq)
            world.events[key] = world.by_seq[turn.conversation.id, seq] = Event(
                turn, seq, world.now, world.tick()
            )
        elif outcome == "new" or (outcome == "duplicate" and (known is None or known.seq != seq)):
            world.broke("an event is accepted once", turn.event_id, outcome, seq)

    def called(
        self, name: str, args: Sequence[Any], options: Mapping[str, Any], answer: Any
    ) -> None:
        """Check a store call that a worker made. Not called when the store refused because the lease was lost."""
        over = (
            bool(options.get("let_go")) and answer is None
        )  # a repeated call has the same answer, and changes nothing
        again = over and args[0].token in self._over
        if over:
            self._over.add(args[0].token)
        if (
            name in _FENCED
            and not again
            and "lost" not in (answer, answer[0] if isinstance(answer, tuple) else "")
        ):
            self._held(name, args[0].lease if name in ("claim", "start") else args[0])
        follow = getattr(self, f"_{name}", None)
        if follow:
            follow(*args, **options, answer=answer)

    def sending(self, delivery: Delivery) -> None:
        """Check that an attempted delivery is in order, and marked when it may be a repetition."""
        world, (conversation, _, number) = self._world, delivery.id.rpartition("#")
        at, reply = int(number), delivery.reply
        last = world.last_sent[conversation]
        if not self._is_next(at, last) and (conversation, at) not in world.sent:
            world.broke("replies arrive in order", delivery.id, last)
        world.last_sent[conversation] = max(at, last)
        if (conversation, at) in world.sent:
            world.counts["repeated replies"] += 1
            if not (
                reply.edits or reply.text.startswith(texts_for("en").repeated(""))
            ):  # a repeated edit changes nothing
                world.broke("a repeated reply is marked", delivery.id)

    def _is_next(self, number: int, last: int) -> bool:
        """Return whether a reply may be sent after the last one."""
        return number in (last, last + 1)

    def said(self, delivery: Delivery, *, arrived: bool) -> None:
        """Note a delivery that the platform accepted, or refused for good: the bot made its statement either way."""
        world, (conversation, _, number) = self._world, delivery.id.rpartition("#")
        world.tick()
        world.heard.setdefault(conversation, []).append((world.ticks, delivery.reply))
        if arrived:
            first = (conversation, int(number)) not in world.sent
            world.sent[conversation, int(number)] = delivery.reply
            world.show(conversation, delivery.reply)
            if not first:
                return
        for proposal, meaning in world.statements(conversation, delivery.reply.text):
            proposal.said.append(meaning)
            took_effect = world.effects[proposal.pid] > 0
            if meaning == "done" and not world.is_done(proposal):
                world.broke("nobody is told done without an effect", proposal.preview)
            if meaning == "nothing" and took_effect:
                world.broke(
                    "nobody is told that nothing was done after an effect", proposal.preview
                )
            undo = world.undo_of(proposal.pid)
            if meaning == "undone" and not (undo and world.effects[undo.pid]):
                world.broke("nobody is told undone without an undo", proposal.preview)
            if meaning in ("failed", "not done") and took_effect and not proposal.absent:
                world.broke("nobody is told of a failure after an effect", proposal.preview)

    def effect(self, action: PendingAction) -> str:
        """Check and count an effect of a tool."""
        world = self._world
        proposal = world.proposals.get(action.pending_action_id)
        if proposal is None:
            world.broke("an effect is one that was proposed", action.pending_action_id)
            return ""
        world.tick()
        world.counts["effects"] += 1
        world.effects[proposal.pid] += 1
        if world.effects[proposal.pid] > (MOST_STARTS if proposal.idempotent else 1):
            world.broke("an effect takes place once", proposal.preview, world.effects[proposal.pid])
        if shown(action) != (proposal.kind, proposal.args, proposal.preview):
            world.broke("what runs is what was shown", shown(action), proposal.preview)
        if world.head(proposal).fate != "claimed" or "nothing" in proposal.said:
            world.broke(
                "only what was confirmed runs", proposal.preview, proposal.fate, proposal.said
            )
        self._undone(proposal)
        self._in_order(proposal)
        return result_of(proposal.kind, proposal.args)

    def asked(self, action: PendingAction) -> bool:
        """Return whether an action took effect. The answer may change while its worker is paused."""
        pid = action.pending_action_id
        self._world.proposals[pid].absent = not self._world.effects[pid]
        return bool(self._world.effects[pid])

    def asked_model(
        self, turn: tuple[str, int], history: Sequence[Message], *, goes_on: bool
    ) -> None:
        """Check what a model reads in a turn: each call has one result, which tells its true outcome."""
        world = self._world
        world.by_seq[turn].asked_model = True
        calls = [call.id for each in history for call in each.tool_calls]
        results = [each for each in history if each.role is Role.TOOL]
        if sorted(calls) != sorted(each.tool_call_id for each in results):
            world.broke("each call has one result", calls, [each.tool_call_id for each in results])
        if goes_on and history[-1].role is Role.ASSISTANT:
            world.broke("a run goes on after a decision", history[-1])
        world.counts["continuations"] += goes_on
        for result in results:
            (link,) = result.actions
            proposal = world.proposals.get(link.id)
            if proposal is None or proposal.tampered or world.head(proposal).tampered:
                continue
            if not link.outcome:
                world.broke("no model is asked while a question waits", proposal.preview)
            if link.outcome == "done" and not world.effects[link.id]:
                world.broke("no model reads done without an effect", proposal.preview)
            if link.outcome in ("denied", "expired", "replaced") and world.effects[link.id]:
                world.broke(
                    "no model reads that nothing was done after an effect", proposal.preview
                )

    def failure(self, action: PendingAction) -> None:
        """Note that a tool raised before it did anything."""
        self._world.failures[action.pending_action_id] += 1
        self._in_order(self._world.proposals[action.pending_action_id])

    def _undone(self, proposal: Proposal) -> None:
        world, of = self._world, proposal.undoes
        if of and not world.effects[of]:
            world.broke("only what took effect is undone", proposal.preview)
        if (
            of
            and sum(n for pid, n in world.effects.items() if world.proposals[pid].undoes == of) > 1
        ):
            world.broke("an undo happens once", proposal.preview)

    def _in_order(self, step: Proposal) -> None:
        world = self._world
        if not step.plan:
            return
        steps = [world.proposals[pid] for pid in world.proposals[step.plan].steps]
        at = steps.index(step)
        bad = [
            each
            for each in steps[:at]
            if not world.effects[each.pid] or each.ended in ("failed", "unknown")
        ]
        early = [
            each for each in steps[at + 1 :] if world.effects[each.pid] or world.failures[each.pid]
        ]
        if bad or early:
            world.broke(
                "steps run in order and stop at the first that does not end well", step.preview
            )

    def _held(self, name: str, lease: Lease) -> None:
        if self._holders.get(lease.conversation, ("", 0))[0] != lease.token:
            self._world.broke("a worker that lost its lease changes nothing", name, lease.token)

    def _lease(self, conversation: str, token: str, *, answer: Any) -> None:
        holder, until = self._holders.get(conversation, ("", 0))
        if answer is None:
            return
        if holder not in ("", token) and until > self._world.now and holder not in self.buried:
            self._world.broke("a live lease is not given away", conversation, holder)
        self._holders[conversation] = (token, self._world.now + LEASE_MS)

    def _renew(self, lease: Lease, *, answer: Any) -> None:
        self._holders[lease.conversation] = (lease.token, self._world.now + LEASE_MS)

    def _release(
        self, lease: Lease, *, answer: Any, hand_over: bool = False, begun: bool = False
    ) -> None:
        """Note a released lease. The release by a worker without the lease changes nothing."""
        if answer is None and self._holders.get(lease.conversation, ("", 0))[0] == lease.token:
            self._holders[lease.conversation] = ("", 0)

    def _postpone(self, lease: Lease, *_: Any, answer: Any) -> None:
        self._release(lease, answer=answer)

    def _commit(
        self,
        lease: Lease,
        queued: QueuedTurn,
        change: TurnChange,
        *,
        answer: Any,
        let_go: bool = False,
    ) -> None:
        if let_go:
            self._release(lease, answer=answer)
        world, seq = self._world, queued.seq
        event = world.by_seq.get((lease.conversation, seq))
        if event is None:
            world.broke("only accepted turns are processed", lease.conversation, seq)
        elif not event.committed:
            before = world.by_seq.get((lease.conversation, seq - 1))
            if before and not before.committed:
                world.broke("turns are processed in order", lease.conversation, seq)
            event.committed = True
            # The edit of the question shows what is known by now; only the other replies are judged.
            replies = [turn_reply.reply for turn_reply in change.replies]
            texts = [reply.text for reply in replies if not reply.edits]
            event.is_answered = any(texts)
            self._verdicts.turn(event, texts)
            for arm in change.new_actions:
                proposal = world.proposals[arm.action_id] = Proposal.of(arm, lease.conversation)
                if (
                    proposal.undoes
                    and proposal.args["args"] != world.proposals[proposal.undoes].args
                ):
                    world.broke(
                        "what is offered to be undone is what was shown",
                        proposal.preview,
                        proposal.args,
                    )
                if proposal.live:
                    world.live[lease.conversation, event.turn.user_id] = proposal.pid

            if change.continuation:
                self._continued(event, change.continuation)

    def _continued(self, event: Event, turn: Turn) -> None:
        """Note the turn that a commit has appended. The books check that there is one."""
        world, conversation = self._world, turn.conversation.id
        proposal = world.proposals[turn.continues]
        if proposal.fate != "closed" and proposal.by != event.turn.event_id:
            world.broke(
                "the agent goes on after the turn that decided",
                proposal.preview,
                event.turn.event_id,
            )
        if proposal.continuation is None:
            seq = world.received(conversation) + 1
            key = (conversation, turn.event_id)
            proposal.continuation = world.events[key] = world.by_seq[conversation, seq] = Event(
                turn, seq, world.now, world.tick()
            )
            proposal.told_later = turn.tells_outcome

    def _claim(self, claim: Claim, stored: StoredAction, *, answer: Any) -> None:
        if answer[0] == "mine":
            self._verdicts.claimed(claim.action_id, claim.conversation, claim.decided_by_event)

    def _mark_delivered(
        self,
        lease: Lease,
        reply: QueuedReply,
        result: Sent | GivenUp,
        *,
        answer: Any,
        let_go: bool = False,
    ) -> None:
        """Open the window with the first delivery. A preview that cannot be delivered is over."""
        if let_go:
            self._release(lease, answer=answer)
        sent = self._world.sent.get((lease.conversation, reply.number))
        if isinstance(result, GivenUp):
            given_up = json.loads(json.loads(reply.text)["reply"])
            words = f"{given_up.get('text', '')}\n{given_up.get('preview', '')}"
            self._verdicts.undelivered(lease.conversation, words)
            return
        for button in sent.buttons if sent else ():
            proposal = self._world.proposals[self._world.buttons[button.data].pid]
            proposal.closes = proposal.closes or self._world.now + proposal.ttl_ms
            proposal.seen = proposal.seen or self._world.received(lease.conversation)

    def _decide(self, decision: ActionDecision, *, answer: Any) -> None:
        proposal = self._world.proposals.get(decision.expected_id)
        if answer[0] == "ignored" and proposal and proposal.closes:
            proposal.closes = min(
                proposal.closes, self._world.now + round(DEFAULT_IGNORE_TTL_SECONDS * 1000)
            )

    def _change(self, conversation: str, change: TurnChange, *, answer: Any) -> None:
        if (
            answer[0] == "ok"
            and change.transition
            and change.transition.action_id in self._world.proposals
        ):
            self._world.proposals[change.transition.action_id].ended = change.transition.to

    def _finish(self, claim: Claim, attempt: str, ending: ActionResult, *, answer: Any) -> None:
        """Check that the true outcome is recorded, even if late; the user then gets a correction."""
        world, proposal = self._world, self._world.proposals[claim.action_id]
        (state,) = self._peek.states(claim.conversation, [proposal.pid])
        if state != ending.state and not proposal.steps and not proposal.idempotent:
            world.broke(
                "the truth about an effect may always be recorded",
                proposal.preview,
                ending.state,
                state,
            )
        if state == ending.state and proposal.ended in ("unknown", "failed"):
            world.counts["corrections"] += bool(ending.correction)
            correction = (
                ending.correction and Reply.from_json(json.loads(ending.correction)["reply"]).text
            )
            proposal.told += [ending.outcome_text, *([correction] if correction else [])]
        if state == ending.state:
            proposal.ended = state
