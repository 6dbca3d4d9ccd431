"""Questions: the questions that wait for a yes, and the choices that a person may tap.

A *question* is the message that shows an action, with buttons for yes and no. A *choice* is one of
several answers that a tool offers: it confirms nothing, and reaches the model as a message. Both
are stored as actions, so that a button works once and only for its person.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from sayso.agent.channel.behavior import Escalation
from sayso.agent.channel.context import TurnAnswer, TurnContext, paragraphs, text_change
from sayso.agent.run.unknown_outcomes import time_in_reason
from sayso.agent.tools.call_texts import literal
from sayso.channels.i18n.texts import Texts, as_statement, brief, texts_for
from sayso.channels.markdown.outcome_signs import DENIED, DONE, EXPIRED, WARNING, without_signs
from sayso.channels.types import Button, Conversation, Reply, Turn
from sayso.pending.action import (
    PLAN_KIND,
    ActionState,
    ButtonIntent,
    PendingAction,
    compute_args_digest,
    split_button_token,
)
from sayso.pending.executors import UNDO_PREFIX
from sayso.pending.limits import KEEP_RECENT_MS
from sayso.pending.proposals import Effect, Proposal, is_undo, step_ids, undo_proposal
from sayso.pending.repository import ActionResult, Claim, sign_action
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import OPEN_STATES, StoredAction
from sayso.pending.turns import (
    CHOICE_KIND,
    LeaseLost,
    NewAction,
    StaleTurn,
    outbox_entry,
)

#: Characters of a message that keeps its text when its buttons are removed. A longer text is sent
#: without buttons, and the next message has them.
MAX_KEPT_CHARS = 1000
#: Characters of a preview that a button may show.
MAX_EFFECT_CHARS = 48

#: How long an offer can be taken, in seconds.
CHOICE_SECONDS = 86_400.0

#: The symbol before the outcome of an action, by its final state; a warning for all other states.
_SYMBOLS: dict[ActionState, str] = {"done": DONE, "cancelled": DENIED, "expired": EXPIRED}
#: Stands before an offered answer that was chosen.
_CHOICE_SIGN = "👉"
#: The sign of an action that its person changed before the yes.
_CHANGED = "✏️"
#: Stands before the button that was chosen, in a decided question.
_CHOSEN = "✓"
_DETAILS = re.compile(r"(?<!\s)\s+\([^()]*\)\.?$")
_FIRST_STEP = re.compile(r"^1\. (.*)$", re.MULTILINE)


class Questions:
    """The questions and offered choices of one channel. Lives as long as its store."""

    def __init__(
        self, store: PendingActionStore, escalation: Escalation | None, *, expiry_notice: bool
    ) -> None:
        self._store = store
        self._escalation = escalation
        self._expiry_notice = expiry_notice

    async def ask(
        self,
        context: TurnContext,
        proposal: Proposal,
        above: str,
        prompt: str = "",
        *,
        changed: str = "",
    ) -> tuple[tuple[Reply, str], tuple[NewAction, ...]]:
        """Return the question with the id of its action, and the actions to store.

        `above` is text that disappears with the question. `prompt` is the tool's own text below the
        preview. `changed` says what differs from the question that this one changes.
        """
        head = proposal.head
        texts = texts_for(head.language)
        earlier_runs = await self._earlier_runs(context, proposal)
        ran_beside = texts.ran_beside(head.ran_beside) if head.ran_beside else ""
        notes = "\n".join(filter(None, [changed, earlier_runs, ran_beside]))

        asked = paragraphs([head.preview, notes, prompt])
        question = texts.question(asked, head.ttl_seconds, head.code)
        reply = Reply(
            paragraphs([above, question]),
            self.buttons(head, context),
            answer_seconds=head.ttl_seconds,
            preview=head.preview,
        )
        *steps, action = proposal.new_actions(self._store.signer, context.user)
        return (reply, head.pending_action_id), (*steps, self._with_notices(context, action, head))

    async def _earlier_runs(self, context: TurnContext, proposal: Proposal) -> str:
        """Return the lines of a question about actions that ran within the last hour, "" for none.

        An action ran before if a stored one has the same tool and the same arguments. The model is
        not asked. What was undone since counts as not done.
        """
        scope = context.turn.scope
        stored = await self._store.repository.list_started(scope.conversation.id, scope.id)
        genuine = [each for each in stored if each.is_genuine(self._store.signer, scope)]
        undone = {
            each.action.args["of"]
            for each in genuine
            if each.state == "done" and each.action.kind.startswith(UNDO_PREFIX)
        }
        not_undone = [each for each in genuine if each.action_id not in undone]

        texts = texts_for(proposal.head.language)
        lines = []
        for number, action in enumerate(proposal.steps or (proposal.head,), start=1):
            line = _earlier_run(texts, action, not_undone, context.received_at)
            if line and len(proposal.steps) > 1:
                line = texts.step(number, line)
            if line:
                lines.append(line)
        return "\n".join(lines)

    def buttons(self, head: PendingAction, context: TurnContext) -> tuple[Button, ...]:
        """Return the buttons of a question.

        With a code there is no confirm button, because the code must be typed.
        """
        signer = self._store.signer
        scope = context.turn.scope
        action_id = head.pending_action_id
        buttons = _question_buttons(head)
        return tuple(
            replace(button, data=signer.button_token(action_id, intent, scope))
            for intent, button in buttons.items()
        )

    def _with_notices(
        self, context: TurnContext, action: NewAction, head: PendingAction
    ) -> NewAction:
        """Return the action with the messages to send if there is no answer.

        They are sent by a worker, so without one there are none.
        """
        if context.lease is None:
            return action
        preview = brief(head.preview)
        here = context.turn.conversation
        action = replace(action, to=json.dumps([here.channel, here.chat, here.thread]))
        if self._escalation:
            action = self._escalation.added_to(action, preview, here)
        texts = texts_for(head.language)
        # Without a notice nothing follows that says what happened.
        buttons = decided_buttons(tuple(_question_buttons(head).values()), "")
        closed = closed_question("", preview, "expired", "", buttons)
        if not self._expiry_notice:
            closed = replace(closed, text=f"{_SYMBOLS['expired']} {texts.expired(head.preview)}")
        action = replace(
            action, ending=outbox_entry(here, replace(closed, language=head.language), later=True)
        )
        if not self._expiry_notice:
            return action
        notice = Reply(
            outcome_line("expired", texts.expired_unanswered(preview)), language=head.language
        )
        return replace(action, notice=outbox_entry(here, notice, later=True))

    async def close(
        self, turn: Turn, stored: StoredAction, state: ActionState, outcome: str
    ) -> tuple[tuple[Reply, str], ...]:
        """Return the reply that replaces the message of a question that has ended.

        It is () if that message is not known. Send it before everything else, so that a second set
        of buttons never shows while the first can be tapped. Sending it twice is harmless.
        """
        message = question_message(turn, stored)
        if not message:
            return ()
        if stored.action.kind == CHOICE_KIND:
            text = str(stored.action.args["text"])
            labels = stored.action.args["labels"]
            chosen = next((label for label in labels if literal(label) == outcome), "")
            buttons = decided_buttons([Button(label, "") for label in labels], chosen)
            closed = closed_question(message, text, state, outcome, buttons)
            if chosen:  # a model wrote the label, so it must not pass for an outcome
                closed = replace(closed, text=f"{text}\n\n{_CHOICE_SIGN} {without_signs(outcome)}")
            return ((closed, ""),)
        kept_text = brief(stored.action.preview)
        undoes = is_undo(stored.action)
        if undoes:
            kept_text = (
                await self._store.settlement.outcome_above_undo(turn.scope, stored) or kept_text
            )
        texts = texts_for(stored.action.language)
        decision = _decision(texts, stored, state, outcome)
        asked = tuple(_question_buttons(stored.action).values())
        if undoes:
            asked = (Button(texts.undo_label, ""),)
        buttons = decided_buttons(asked, decision)
        return ((closed_question(message, kept_text, state, decision, buttons), ""),)

    def offer_undo(
        self, context: TurnContext, answer: TurnAnswer, effects: Sequence[Effect]
    ) -> TurnAnswer:
        """Return the answer with an undo button for the effects that can be undone.

        The undo waits beside the pending action that the user may have.
        """
        if context.returns_text or not answer.change.replies:
            return answer
        undoable: list[Effect] = []
        limits: list[float] = []
        for effect in effects:
            limit = self._store.executors.undo_seconds(effect.action.kind)
            if limit:
                undoable.append(effect)
                limits.append(limit)
        if not undoable:
            return answer

        seconds = min(limits)
        (outcome, _), *files = answer.change.replies
        is_long = len(outcome.text) > MAX_KEPT_CHARS
        kept_text = "" if is_long else outcome.text
        undo = undo_proposal(undoable, seconds, kept_text)
        scope = context.turn.scope
        texts = texts_for(undo.head.language)
        action_id = undo.head.pending_action_id
        button = Button(
            texts.undo_label, self._store.signer.button_token(action_id, "confirm", scope)
        )
        above = ((outcome, ""),) if is_long else ()
        text = f"{kept_text}\n\n{texts.undo_offer(seconds)}".strip()
        offer = Reply(text, (button,), answer_seconds=seconds)
        new_actions = undo.new_actions(self._store.signer, scope.id, occupies_scope=False)
        return answer.changed(replies=(*above, (offer, action_id), *files), new_actions=new_actions)

    def with_outcome(
        self, context: TurnContext, answer: TurnAnswer, outcome: str, effects: Sequence[Effect]
    ) -> TurnAnswer:
        """Return the answer of the model below the outcome that it follows, with an undo button.

        The button takes back the effects.

        They are one text, unless the answer has buttons, or begins with a file or an edit.
        """
        if not outcome:
            return answer
        change = answer.change
        above = self.offer_undo(context, TurnAnswer(text_change(outcome)), effects).change
        replies = (*above.replies, *change.replies)
        first = Reply()
        if change.replies:
            first, _ = change.replies[0]
        if first.text and not (first.media or first.edits or change.new_actions):
            *before, (last, action_id) = above.replies
            # What can be undone stands beside the outcome, not below the words of a model.
            kept = last if last.buttons else first
            joined = replace(kept, text=f"{last.text}\n\n{first.text}")
            replies = (*before, (joined, action_id), *change.replies[1:])
        return answer.changed(
            replies=replies, new_actions=(*above.new_actions, *change.new_actions)
        )

    async def note_question(self, turn: Turn, action_id: str) -> None:
        """Note a question that is asked in a thread, for the other threads of the chat."""
        here = turn.conversation
        if here.thread:
            note = json.dumps({"thread": here.thread, "action_id": action_id})
            await self._store.repository.save_question_place(
                replace(here, thread="").id, turn.scope.id, note
            )

    async def find_question_elsewhere(self, turn: Turn, now: float) -> StoredAction | None:
        """Return the question that is open for this person in another thread of the chat.

        `now`: when the turn came in, in Unix seconds. It is None if there is no such question.
        """
        repository = self._store.repository
        here = turn.conversation
        chat = replace(turn.conversation, thread="")
        stored = None
        if here.thread:
            stored = await repository.load_open(chat.id, turn.scope.id)
        if self._is_open(stored, turn, chat, now):
            return stored
        note = await repository.load_question_place(chat.id, turn.scope.id)
        asked = json.loads(note) if note else {}
        there = replace(chat, thread=asked.get("thread", here.thread))
        if there == here:
            return None
        (stored,) = await repository.load(there.id, (asked["action_id"],))
        return stored if self._is_open(stored, turn, there, now) else None

    def _is_open(
        self, stored: StoredAction | None, turn: Turn, there: Conversation, now: float
    ) -> bool:
        """Return whether the action still waits for this person and was not modified."""
        if stored is None or stored.state != "shown" or stored.action.is_expired(now):
            return False
        return stored.is_genuine(self._store.signer, replace(turn.scope, conversation=there))

    def offer_choices(
        self, context: TurnContext, answer: TurnAnswer, labels: Sequence[str]
    ) -> TurnAnswer:
        """Return the answer with the labels as buttons under its last text.

        If the last reply is a question or a file, or is too long, the buttons get a message for
        themselves. Without a worker the labels are a list, since no button could be tapped.
        """
        if not labels:
            return answer
        *before, (last, action_id) = answer.change.replies or ((Reply(), ""),)
        fits = not (action_id or last.media) and len(last.text) <= MAX_KEPT_CHARS
        above = before
        text = last.text
        if not fits:
            above = [*before, (last, action_id)]
            text = ""
        if context.lease is None:
            listed = "\n".join(
                [text or context.texts.choose(), "", *(f"- {literal(label)}" for label in labels)]
            )
            return answer.changed(replies=(*above, (Reply(listed), "")))
        turn = context.turn
        args = {"labels": list(labels), "text": Reply(text or context.texts.choose()).text}
        offer = PendingAction(
            user_id=turn.user_id,
            kind=CHOICE_KIND,
            preview=" / ".join(labels),
            args=args,
            args_digest=compute_args_digest(args),
            channel_id=turn.conversation.channel,
            conversation_id=turn.conversation.address,
            ttl_seconds=CHOICE_SECONDS,
            requested_at=context.received_at,
            language=context.texts.language,
        )
        # The offer waits beside the scope's pending action, and only its buttons reach it.
        action = sign_action(offer, self._store.signer, user=context.user, occupies_scope=False)
        signer = self._store.signer
        action_id = offer.pending_action_id
        buttons = (
            Button(label, signer.choice_token(action_id, place, turn.scope))
            for place, label in enumerate(labels)
        )
        reply = Reply(offer.args["text"], tuple(buttons))
        return answer.changed(
            replies=(*above, (reply, action_id)), new_actions=(*answer.change.new_actions, action)
        )

    async def take_choice(
        self, context: TurnContext, stored: StoredAction, choice: int
    ) -> StoredAction:
        """Take a choice unless one was taken before.

        Return the offer, which names the event that took a choice.

        Raises LeaseLost and StaleTurn if the worker must stop or read the action again.
        """
        if stored.state not in OPEN_STATES:
            return stored
        repository = self._store.repository
        event = context.turn.event_id
        claim = Claim(
            context.turn.scope, stored.action_id, event, "tap", context.lease, context.seq
        )
        verdict, _ = await repository.claim(claim, stored)
        match verdict:
            case "mine":
                label = stored.action.args["labels"][choice]
                if await repository.start(claim, stored, event) != "go":
                    raise StaleTurn(f"{claim.conversation}: the offer changed before it was taken")
                await repository.finish(claim, event, ActionResult("done", label))
                return replace(stored, state="done", decided_by_event=event, outcome_text=label)
            case "lost":
                raise LeaseLost(claim.conversation)
            case "moved":
                raise StaleTurn(claim.conversation)
        return replace(stored, state="expired")


def _decision(texts: Texts, stored: StoredAction, state: ActionState, outcome: str) -> str:
    """Return the label of the button by which a user decided an action.

    It is "" if the action ended without them.
    """
    preview = stored.action.preview
    match state:
        case "cancelled" if outcome.startswith(texts.cancelled(preview)):
            return texts.cancel_label
        case "superseded" if outcome.startswith(texts.changed_meanwhile(preview)):
            return texts.change_label
        case "cancelled" | "superseded" | "expired":
            return ""
    if is_undo(stored.action):
        return texts.undo_label
    return texts.confirm_label


def question_message(turn: Turn, stored: StoredAction) -> str:
    """Return the platform's id of the question's message, "" if it is not known.

    A tap names the message itself. Otherwise it is the one that the sender has noted.
    """
    parts = split_button_token(turn.tap.data) if turn.tap else None
    if parts and parts[0] == stored.action_id and turn.message_id:
        return turn.message_id
    return stored.question_message


def _question_buttons(head: PendingAction) -> dict[ButtonIntent, Button]:
    """Return the buttons of a question by what they do, without their data.

    The one to confirm has the style `danger`. With a code there is none. The one to change is there
    where the person may change something.
    """
    texts = texts_for(head.language)
    effect = short_effect(head)
    if effect.casefold() == texts.cancel_label.casefold():  # both buttons would say the same
        effect = ""
    buttons: dict[ButtonIntent, Button] = {}
    if not head.code:
        buttons["confirm"] = Button(texts.confirm_label, "", "danger", effect)
    buttons["cancel"] = Button(texts.cancel_label, "")
    if head.form:
        buttons["change"] = Button(texts.change_label, "")
    return buttons


def decided_buttons(asked: Sequence[Button], decision: str) -> tuple[Button, ...]:
    """Return the buttons of a decided question, which do nothing.

    The one with the label `decision` is marked. A decision without a button, such as a typed code,
    gets one. `decision` is "" if the user has not decided.
    """
    buttons = list(asked)
    if decision and decision not in {button.label for button in buttons}:
        buttons.insert(0, Button(decision, ""))
    return tuple(_decided(button, is_chosen=button.label == decision) for button in buttons)


def _decided(button: Button, *, is_chosen: bool) -> Button:
    mark = f"{_CHOSEN} " if is_chosen else ""
    effect = f"{mark}{button.effect}" if button.effect else ""
    return Button(f"{mark}{button.label}", "", effect=effect)


def outcome_line(state: ActionState, text: str) -> str:
    """Return an outcome with the sign of its state.

    The signs are taken out of what a model writes, so no text of a model passes for an outcome.
    """
    return f"{_SYMBOLS.get(state, WARNING)} {text}"


def closed_question(
    message: str,
    kept_text: str,
    state: ActionState,
    decision: str,
    buttons: tuple[Button, ...] = (),
) -> Reply:
    """Return the reply that replaces the question. It is dropped if the message cannot be edited.

    Below what was asked stands the decision. The outcome stands once, in the message that follows.
    The `buttons` do nothing any more.
    """
    symbol = _SYMBOLS.get(state, WARNING)
    if state == "superseded" and decision:
        symbol = _CHANGED
    mark = f"{symbol} {decision}".strip()
    text = f"{kept_text}\n\n{mark}".strip()
    return Reply(text, edits=message, optional=True, decided_buttons=buttons)


def _earlier_run(
    texts: Texts, action: PendingAction, recent: Sequence[StoredAction], now: float
) -> str:
    """Return the text that says when the same action was done, or may have been done.

    It is "" unless that was within the last hour.

    The clock of the store counts the hour: a worker's own clock may be wrong, and the turn may have
    waited. A call without a question that may have run is named after the hour, too, without its
    time: `now` is when the turn came in.
    """
    for stored in recent:
        age = stored.loaded_at - stored.started_at
        if not _is_same_effect(stored.action, action) or age > KEEP_RECENT_MS / 1000:
            continue
        if stored.state == "done":
            return texts.done_before(stored.started_at)
        if stored.state in ("unknown", "started"):
            return texts.maybe_done_before(stored.started_at)
    ran_at = time_in_reason(action.reason)
    if ran_at is None:
        return ""
    if now - ran_at > KEEP_RECENT_MS / 1000:
        return texts.maybe_done()
    return texts.maybe_done_before(ran_at)


def _is_same_effect(earlier: PendingAction, action: PendingAction) -> bool:
    """Return whether two actions have the same tool and arguments.

    Code that asks by itself need not record arguments.
    Then the words of the question tell its actions apart.
    """
    is_same_call = (earlier.kind, earlier.args_digest) == (action.kind, action.args_digest)
    return is_same_call and (bool(action.args) or earlier.preview == action.preview)


def short_effect(head: PendingAction) -> str:
    """Return a preview that fits on a button, "" if it is too long.

    Details in brackets at its end are left out.

    For a plan, return the first step and the number of further steps.
    """
    preview = head.preview.strip()
    more = ""
    if head.kind == PLAN_KIND:
        first = _FIRST_STEP.search(preview)
        preview = first[1] if first else ""
        more = f" (+{len(step_ids(head)) - 1})"
    effect = _DETAILS.sub("", as_statement(preview))
    if effect and "\n" not in effect and len(effect) <= MAX_EFFECT_CHARS:
        return f"{effect}{more}"
    return ""
