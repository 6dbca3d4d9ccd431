"""ConfirmPrompt: asking, undo offer, closing, escalation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sayso.agent.channel.context import TurnAnswer, TurnContext
from sayso.channels.i18n.texts import brief, texts_for
from sayso.channels.types import Button, Conversation, Reply, Scope, Turn
from sayso.pending.action import ActionState, PendingAction
from sayso.pending.proposals import PLAN_KIND, Effect, Proposal, is_undo, step_names, undo_of
from sayso.pending.repository import StoredAction
from sayso.pending.signing import split_button
from sayso.pending.store import BasePendingStore
from sayso.pending.turns.change import NewAction, outbox_entry
from sayso.pending.turns.queued import CHOICE_KIND

#: Characters of a message with buttons that must stay when they go, because nothing else repeats them: a longer one is
#: sent by itself, and its buttons below it.
MAX_KEPT_CHARS = 1000

#: Characters of an outcome that are shown where it was asked for: the whole of it is a message of its own.
MAX_TOLD_CHARS = 600

#: Before what is said of an action that ended so; anything else is a warning.
_SYMBOLS: dict[ActionState, str] = {"done": "✅", "cancelled": "❌", "expired": "⌛"}
_WARNING = "⚠️"


class ClosedPrompts:
    """The messages that asked on one channel. Lives as long as its store."""

    def __init__(self, store: BasePendingStore) -> None:
        self._store = store

    async def closed(
        self, turn: Turn, stored: StoredAction, state: ActionState, told: str
    ) -> tuple[tuple[Reply, str], ...]:
        """What is sent to close the message that asked for an action which ended so, before anything else is said: no
        second set of buttons is shown while the first can be tapped. Sent twice it is the same. Nothing where nobody
        knows which message that is.
        """
        prompt = prompt_of(turn, stored)
        if not prompt:
            return ()
        shown = await self._shown(turn.scope, stored)
        closed = closing(prompt, shown, state, told)
        if stored.action.kind == CHOICE_KIND or not shown:  # of a record that was changed nothing is read
            return ((closed, ""),)
        words = texts_for(stored.action.language)
        label = words.undo_label if is_undo(stored.action) else words.confirm_label
        decided = {"cancelled": words.cancel_label, "superseded": words.cancel_label, "expired": ""}.get(state, label)
        mark = f"{symbol_of(state)} {decided}".strip()
        return ((replace(closed, outcome_elsewhere=f"{shown}\n\n{mark}".strip()), ""),)

    async def _shown(self, scope: Scope, stored: StoredAction) -> str:
        """What stays of the message; nothing of a record that was changed: its words are not ours to repeat."""
        if not stored.is_genuine(self._store.seal, scope):
            return ""
        if stored.action.kind == CHOICE_KIND:
            return str(stored.action.args["text"])
        undone = await self._store.settlement.undone(scope, stored) if is_undo(stored.action) else ""
        return undone if 0 < len(undone) <= MAX_KEPT_CHARS else brief(stored.action.preview)


def prompt_of(turn: Turn, stored: StoredAction) -> str:
    """The platform's id of the message that asked: the one whose button was tapped, else the one that was delivered; ""
    where nobody knows.
    """
    parts = split_button(turn.tap.data) if turn.tap else None
    if parts and parts[0] == stored.pid and turn.message_id:
        return turn.message_id
    return stored.prompt


def symbol_of(state: ActionState) -> str:
    """Return the sign before what is said of an action that ended so."""
    return _SYMBOLS.get(state, _WARNING)


def closing(prompt: str, shown: str, state: ActionState, told: str) -> Reply:
    """Takes the place of the message that asked, without its buttons; it is left out where that cannot be edited."""
    outcome = f"{symbol_of(state)} {told if len(told) <= MAX_TOLD_CHARS else brief(told)}"
    text = outcome if shown and shown in told else f"{shown}\n\n{outcome}"
    return Reply(text.strip(), edits=prompt, optional=True)


@dataclass(frozen=True, slots=True)
class Escalation:
    """One channel's operators: the conversation that hears, in its language, of what waited `after_seconds`."""

    after_seconds: float
    to: Conversation
    language: str = "en"

    def alarmed(self, arm: NewAction, preview: str, asked_in: Conversation) -> NewAction:
        """The action, and what the operators hear when nobody answers: its channel, its preview, its window.

        They do not hear who was asked: the preview says what may be said.
        """
        told = texts_for(self.language).escalation(preview, asked_in.channel, arm.ttl_ms / 1000)
        reply, elsewhere = Reply(told, language=self.language), self.to.id != asked_in.id
        entry = outbox_entry(self.to, reply, forward=elsewhere)
        return replace(arm, alarm=entry, alarm_after_ms=round(self.after_seconds * 1000))


#: Characters of a preview that a button may show.
MAX_EFFECT_CHARS = 48
_DETAILS = re.compile(r"\s+\([^()]*\)\.?$")
_FIRST_STEP = re.compile(r"^1\. (.*)$", re.MULTILINE)


class ConfirmPrompts:
    """What one channel asks. Lives as long as its store."""

    def __init__(self, store: BasePendingStore, escalation: Escalation | None, *, expiry_notice: bool) -> None:
        self._store = store
        self._escalation = escalation
        self._expiry_notice = expiry_notice

    def asked(
        self, case: TurnContext, proposal: Proposal, above: str, prompt: str = ""
    ) -> tuple[tuple[Reply, str], tuple[NewAction, ...]]:
        """The question for a yes, and the records that it arms. What stands above it goes when its outcome is shown.

        `prompt` is what the tool itself says below the preview.
        """
        head = proposal.head
        words = texts_for(head.language)
        question = words.question("\n\n".join(filter(None, [head.preview, prompt])), head.ttl_seconds, head.code)
        text = "\n\n".join(filter(None, [above, question]))
        asked = Reply(text, self.buttons(head, case), answer_seconds=head.ttl_seconds)
        *steps, arm = proposal.arms(self._store.seal, case.turn.scope.id)
        return (asked, head.pending_action_id), (*steps, self._with_notices(case, arm, head))

    def with_undo(self, case: TurnContext, answer: TurnAnswer, effects: Sequence[Effect]) -> TurnAnswer:
        """The answer with a button that undoes what can be undone. It waits beside what the scope may wait for."""
        if not case.shows_buttons:
            return answer
        limits = [(self._store.executors.undo_seconds(effect.action.kind), effect) for effect in effects]
        seconds = min((limit for limit, _ in limits if limit), default=0.0)
        undo = undo_of([effect for limit, effect in limits if limit], seconds)
        if undo is None:
            return answer
        scope, words, pid = case.turn.scope, texts_for(undo.head.language), undo.head.pending_action_id
        (told, _), *files = answer.change.replies
        button = Button(words.undo_label, self._store.seal.mint(pid, "confirm", scope))
        is_long = len(told.text) > MAX_KEPT_CHARS
        above = ((told, ""),) if is_long else ()
        offer = Reply(
            "\n\n".join([*([] if is_long else [told.text]), words.undo_offer(seconds)]),
            (button,),
            answer_seconds=seconds,
        )
        arms = undo.arms(self._store.seal, scope.id, live=False)
        return replace(answer, change=replace(answer.change, replies=(*above, (offer, pid), *files), arms=arms))

    def _with_notices(self, case: TurnContext, arm: NewAction, head: PendingAction) -> NewAction:
        """The action, and what is said when nobody answers: without a lane there is nobody to say it."""
        if case.lease is None:
            return arm
        preview, here = brief(head.preview), case.turn.conversation
        if self._escalation:
            arm = self._escalation.alarmed(arm, preview, here)
        words = texts_for(head.language)
        closed = closing("", preview, "expired", words.expired(head.preview))
        arm = replace(arm, ending=outbox_entry(here, replace(closed, language=head.language)))
        if not self._expiry_notice:
            return arm
        told = words.expired_unanswered(preview)
        return replace(arm, notice=outbox_entry(here, Reply(told, language=head.language)))

    def buttons(self, head: PendingAction, case: TurnContext) -> tuple[Button, ...]:
        """Return the buttons that answer a question. One with a code has none that confirms: the code must be typed."""
        words = texts_for(head.language)
        seal, scope, pid = self._store.seal, case.turn.scope, head.pending_action_id
        confirm = Button(words.confirm_label, seal.mint(pid, "confirm", scope), "danger", effect_of(head))
        cancel = Button(words.cancel_label, seal.mint(pid, "cancel", scope))
        return (cancel,) if head.code else (confirm, cancel)


def effect_of(head: PendingAction) -> str:
    """Return a preview in the few words that a button has room for, without details in brackets behind them; "" where
    they are too many. Of a plan it is the first step, and how many follow.
    """
    preview, more = head.preview.strip(), ""
    if head.kind == PLAN_KIND:
        first = _FIRST_STEP.search(preview)
        preview, more = (first[1] if first else ""), f" (+{len(step_names(head)) - 1})"
    effect = _DETAILS.sub("", preview)
    return f"{effect}{more}" if effect and "\n" not in effect and len(effect) <= MAX_EFFECT_CHARS else ""
