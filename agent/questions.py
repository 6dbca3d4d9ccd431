"""Questions: how a person is asked for a yes, or offered an undo, and what is said when nobody answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sayso.agent.case import Answer, Case
from sayso.agent.decided import MAX_KEPT_CHARS, closing
from sayso.agent.escalation import Escalation
from sayso.channels.types import Button, Reply
from sayso.pending.action import PendingAction
from sayso.pending.plan import PLAN_KIND, Effect, Proposal, step_names, undo_of
from sayso.pending.store import BasePendingStore
from sayso.pending.texts import brief, speak
from sayso.workers.lane import Arm, outbox_entry

#: Characters of a preview that a button may show.
MAX_EFFECT_CHARS = 48

_DETAILS = re.compile(r"\s+\([^()]*\)\.?$")
_FIRST_STEP = re.compile(r"^1\. (.*)$", re.MULTILINE)


class Questions:
    """What one channel asks. Lives as long as its store."""

    def __init__(self, store: BasePendingStore, escalation: Escalation | None, *, expiry_notice: bool) -> None:
        self._store = store
        self._escalation = escalation
        self._expiry_notice = expiry_notice

    def asked(
        self, case: Case, proposal: Proposal, above: str, prompt: str = ""
    ) -> tuple[tuple[Reply, str], tuple[Arm, ...]]:
        """The question for a yes, and the records that it arms. What stands above it goes when its outcome is shown.

        `prompt` is what the tool itself says below the preview.
        """
        head = proposal.head
        words = speak(head.language)
        question = words.question("\n\n".join(filter(None, [head.preview, prompt])), head.ttl_seconds, head.code)
        text = "\n\n".join(filter(None, [above, question]))
        asked = Reply(text, self.buttons(head, case), answer_seconds=head.ttl_seconds)
        *steps, arm = proposal.arms(self._store.seal, case.turn.scope.id)
        return (asked, head.pending_action_id), (*steps, self._with_notices(case, arm, head))

    def with_undo(self, case: Case, answer: Answer, effects: Sequence[Effect]) -> Answer:
        """The answer with a button that undoes what can be undone. It waits beside what the scope may wait for."""
        if not case.shows_buttons:
            return answer
        limits = [(self._store.executors.undo_seconds(effect.action.kind), effect) for effect in effects]
        seconds = min((limit for limit, _ in limits if limit), default=0.0)
        undo = undo_of([effect for limit, effect in limits if limit], seconds)
        if undo is None:
            return answer
        scope, words, pid = case.turn.scope, speak(undo.head.language), undo.head.pending_action_id
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

    def _with_notices(self, case: Case, arm: Arm, head: PendingAction) -> Arm:
        """The action, and what is said when nobody answers: without a lane there is nobody to say it."""
        if case.lease is None:
            return arm
        preview, here = brief(head.preview), case.turn.conversation
        if self._escalation:
            arm = self._escalation.alarmed(arm, preview, here)
        words = speak(head.language)
        closed = closing("", preview, "expired", words.expired(head.preview))
        arm = replace(arm, ending=outbox_entry(here, replace(closed, language=head.language)))
        if not self._expiry_notice:
            return arm
        told = words.expired_unanswered(preview)
        return replace(arm, notice=outbox_entry(here, Reply(told, language=head.language)))

    def buttons(self, head: PendingAction, case: Case) -> tuple[Button, ...]:
        """Return the buttons that answer a question. One with a code has none that confirms: the code must be typed."""
        words = speak(head.language)
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
