"""Questions: asks people before an action runs, and offers them choices and undos.

A *question* is the message that shows an action, with buttons for yes and no. A *choice* is one of
several answers that a tool offers: it confirms nothing, and reaches the model as a message. Both
are stored as actions, so that a button works once and only for its person.

In this module `head` is the action that a question shows: the only one, or the head of a plan
(`Proposal.head`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sayso.agent.channel.behavior import Escalation
from sayso.agent.channel.context import TurnAnswer, TurnContext, paragraphs, text_change
from sayso.agent.run.unknown_outcomes import time_in_reason
from sayso.agent.tools.previews import literal
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
from sayso.pending.approvals.votes import VoteAnswer, votes_for
from sayso.pending.executors import UNDO_PREFIX
from sayso.pending.plans import Effect, Proposal, is_undo, step_ids, undo_proposal
from sayso.pending.repository import ActionResult, Claim, sign_action
from sayso.pending.standing_rule import BoundComparison, StandingRule
from sayso.pending.standing_yes import granted_standing_yes
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import OPEN_STATES, StoredAction
from sayso.pending.stored_limits import KEEP_RECENT_MS
from sayso.pending.turn_changes import NewAction, TurnChange, TurnReply, outbox_entry
from sayso.pending.turns import CHOICE_KIND, LeaseLost, StaleTurn

#: The most characters of a message with an undo button or choices. Its text is stored with the
#: action: after the decision the message is edited to this text, without the buttons. A longer text
#: is sent first, and the buttons follow in a second message.
MAX_KEPT_CHARS = 1000
#: The most characters of an action's effect that a button shows.
MAX_EFFECT_CHARS = 48

#: How long one of the offered choices can be taken, in seconds.
CHOICE_SECONDS = 86_400.0

#: The symbol before the outcome of an action, by its final state; a warning for all other states.
_SYMBOLS: dict[ActionState, str] = {"done": DONE, "cancelled": DENIED, "expired": EXPIRED}
#: Stands before an offered answer that was chosen.
_CHOICE_SIGN = "👉"
#: The sign of an action that its person changed before the yes.
_CHANGED = "✏️"
#: Stands before the button that was chosen, in a decided question.
_CHOSEN = "✓"
#: Details in brackets at the end of a preview, such as " (12 items)".
_DETAILS = re.compile(r"(?<!\s)\s+\([^()]*\)\.?$")
#: How people read the comparison of a bound.
_SIGNS: Mapping[BoundComparison, str] = {"<=": "≤", ">=": "≥", "<": "<", ">": ">", "==": "="}
#: The first step in the preview of a plan.
_FIRST_STEP = re.compile(r"^1\. (.*)$", re.MULTILINE)


class Questions:
    """The questions and offered choices of one channel. Lives as long as its store.

    `escalation` tells operators about unanswered questions; None: they are not told.
    `expiry_notice`: whether people are told when their question expires. `max_buttons`: how many
    buttons a question has at most; the one for a standing yes is left out beyond.
    """

    def __init__(
        self,
        store: PendingActionStore,
        escalation: Escalation | None,
        *,
        expiry_notice: bool,
        max_buttons: int,
    ) -> None:
        self._store = store
        self._escalation = escalation
        self._expiry_notice = expiry_notice
        self._max_buttons = max_buttons

    async def ask(
        self,
        context: TurnContext,
        proposal: Proposal,
        above: str,
        prompt: str = "",
        *,
        changes_text: str = "",
    ) -> tuple[TurnReply, tuple[NewAction, ...]]:
        """Return the question, and the actions to store.

        * `above`: what is said above the question in the same message; "" for nothing.
        * `prompt`: the tool's own text below the preview; "" for none.
        * `changes_text`: what differs from the question that this one replaces because the person
          has changed its values; "" for any other question.
        """
        head = proposal.head
        texts = texts_for(head.language)
        earlier_runs = await self._earlier_runs(context, proposal)
        tools_already_run = ""
        if head.ran_beside:
            tools_already_run = texts.ran_beside(head.ran_beside)
        terms = ""
        if "standing" in self._question_buttons(head) and not context.returns_text:
            terms = _standing_terms(head)
        notes = "\n".join(filter(None, [changes_text, earlier_runs, tools_already_run, terms]))

        question_body = paragraphs([head.preview, notes, prompt])
        question_text = texts.question(question_body, head.ttl_seconds, head.code)
        reply = Reply(
            paragraphs([above, question_text]),
            self.buttons(head, context),
            answer_seconds=head.ttl_seconds,
            preview=head.preview,
        )
        # The head comes last. Only the head is asked about, so only it needs messages for a late
        # answer.
        *steps, action = proposal.new_actions(self._store.signer, context.scope_id)
        question = TurnReply.question(reply, head.pending_action_id)
        return question, (*steps, self._with_notices(context, action, head))

    async def may_have_run(self, context: TurnContext, action: PendingAction) -> bool:
        """Return whether the same action may have run lately, and it is not known how that ended."""
        if time_in_reason(action.reason) is not None:
            return True
        scope = context.turn.scope
        recent_actions = await self._store.repository.list_started(scope.conversation.id, scope.id)
        return any(
            each.state in ("unknown", "started") and _is_same_effect(each.action, action)
            for each in recent_actions
            if each.is_genuine(self._store.signer, scope)
        )

    async def _earlier_runs(self, context: TurnContext, proposal: Proposal) -> str:
        """Return the lines of a question about actions that ran within the last hour, "" for none.

        An action ran before if a stored one has the same tool and the same arguments. The model is
        not asked. An action that was undone since does not count.
        """
        scope = context.turn.scope
        recent_actions = await self._store.repository.list_started(scope.conversation.id, scope.id)
        genuine = [each for each in recent_actions if each.is_genuine(self._store.signer, scope)]
        # The argument "of" of an undo is the id of the action that it takes back.
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
        """Return the buttons of a question, with the tokens that make them work.

        If the question asks for a code there is no button for a yes: the code must be typed.
        """
        signer = self._store.signer
        scope = context.turn.scope
        action_id = head.pending_action_id
        buttons = self._question_buttons(head)
        return tuple(
            replace(button, data=signer.button_token(action_id, intent, scope))
            for intent, button in buttons.items()
        )

    def _question_buttons(self, head: PendingAction) -> dict[ButtonIntent, Button]:
        """Return the buttons of a question by what they do, without their tokens.

        There is no button to confirm if a code must be typed, and one to change only if the person
        may change something. The one for a standing yes comes last.
        """
        buttons = _buttons_without_standing(head)
        may_stand = head.standing is not None and "confirm" in buttons
        if may_stand and len(buttons) < self._max_buttons:
            rule = StandingRule.from_dict(head.standing or {})
            texts = texts_for(head.language)
            effect = texts.standing_effect(rule.for_seconds)
            buttons["standing"] = Button(
                texts.standing_label(rule.for_seconds), "", "danger", effect
            )
        return buttons

    def _with_notices(
        self, context: TurnContext, action: NewAction, head: PendingAction
    ) -> NewAction:
        """Return the action with the messages that are sent if no answer comes in time.

        These are the alarm for operators, the edit that closes the message of the question
        (`ending`), and the notice for the person. A worker sends them, so without one there are
        none.
        """
        if context.lease is None:
            return action

        preview = brief(head.preview)
        here = context.turn.conversation
        action = replace(action, to=json.dumps([here.channel, here.chat, here.thread]))
        if self._escalation:
            action = self._escalation.added_to(action, preview, here)

        texts = texts_for(head.language)
        buttons = decided_buttons(tuple(self._question_buttons(head).values()), "")
        closing_reply = closed_question("", preview, "expired", "", buttons)
        closing_reply = replace(closing_reply, language=head.language)
        if not self._expiry_notice:
            # No notice follows, so the edited message itself says what happened.
            text = outcome_line("expired", texts.expired(head.preview))
            closing_reply = replace(closing_reply, text=text)
            return replace(action, ending=outbox_entry(here, closing_reply, later=True))

        text = outcome_line("expired", texts.expired_unanswered(preview))
        notice = Reply(text, language=head.language)
        return replace(
            action,
            ending=outbox_entry(here, closing_reply, later=True),
            notice=outbox_entry(here, notice, later=True),
        )

    async def close(
        self, turn: Turn, stored: StoredAction, state: ActionState, outcome: str
    ) -> tuple[TurnReply, ...]:
        """Return the reply that replaces the message of a question or an offer that has ended.

        It edits that message: the buttons go, and the decision is added. `state` and `outcome` say
        how the action ended. Return () if the message is not known. Send it before everything else,
        so that a second set of buttons never shows while the first can be tapped. Sending it twice
        is harmless.
        """
        message = question_message(turn, stored)
        if not message:
            return ()
        if stored.action.kind == CHOICE_KIND:
            return (TurnReply(_closed_offer(message, stored, state, outcome)),)

        texts = texts_for(stored.action.language)
        text = brief(stored.action.preview)
        buttons = tuple(self._question_buttons(stored.action).values())
        if is_undo(stored.action):
            # The button of an undo is below the outcome that it takes back, not below a question.
            above = await self._store.finished_actions.outcome_above_undo(turn.scope, stored)
            text = above or text
            buttons = (Button(texts.undo_label, ""),)
        decision = self._decision(texts, stored, state, outcome)
        dead_buttons = decided_buttons(buttons, decision)
        return (TurnReply(closed_question(message, text, state, decision, dead_buttons)),)

    def _decision(
        self, texts: Texts, stored: StoredAction, state: ActionState, outcome: str
    ) -> str:
        """Return the label of the button by which the person decided an action.

        Return "" if the action ended by something else. An action is also cancelled when a turn fails,
        and superseded by another message. The person tapped "no" or "change" only if the outcome begins
        with the text for that.
        """
        preview = stored.action.preview
        if stored.action.approval is not None:
            return _decision_of_others(texts, stored, state, outcome)
        match state:
            case "cancelled" if outcome.startswith(texts.cancelled(preview)):
                return texts.cancel_label
            case "superseded" if outcome.startswith(texts.changed_meanwhile(preview)):
                return texts.change_label
            case "cancelled" | "superseded" | "expired":
                return ""
        if is_undo(stored.action):
            return texts.undo_label
        if granted_standing_yes(stored, self._store.signer) is not None:
            rule = StandingRule.from_dict(stored.action.standing or {})
            return texts.standing_label(rule.for_seconds)
        return texts.confirm_label

    def offer_undo(
        self, context: TurnContext, answer: TurnAnswer, effects: Sequence[Effect]
    ) -> TurnAnswer:
        """Return the answer with an undo button for the effects that can be undone.

        The first reply of the answer is the outcome; the button is added to it, or follows it if it
        is long. The undo is an action itself. It does not take the place of a question that its
        person may have.
        """
        undoable = self._undoable(context, effects)
        if not undoable or not answer.change.replies:
            return answer
        return self._with_undo(context, answer, undoable)

    def _undoable(self, context: TurnContext, effects: Sequence[Effect]) -> list[Effect]:
        """Return the effects for which an undo button can be shown."""
        if context.returns_text:
            return []
        seconds_of = self._store.executors.undo_seconds
        return [effect for effect in effects if seconds_of(effect.action.kind)]

    def _with_undo(
        self,
        context: TurnContext,
        answer: TurnAnswer,
        undoable: Sequence[Effect],
        below: Reply | None = None,
    ) -> TurnAnswer:
        """Return the answer with a button that undoes all of these effects.

        * `answer`: its first reply is the outcome.
        * `below`: what the message says below the offer; None for nothing.
        """
        outcome, *other_replies = answer.change.replies
        above: tuple[TurnReply, ...] = ()
        text_above_button = outcome.reply.text
        if len(text_above_button) > MAX_KEPT_CHARS:
            above = (TurnReply(outcome.reply),)
            text_above_button = ""
        below = below or Reply()

        seconds = min(self._store.executors.undo_seconds(each.action.kind) for each in undoable)
        kept_text = paragraphs([text_above_button, below.text])
        undo = undo_proposal(undoable, seconds, kept_text)
        texts = texts_for(undo.head.language)
        action_id = undo.head.pending_action_id
        token = self._store.signer.button_token(action_id, "confirm", context.turn.scope)
        reply = Reply(
            paragraphs([text_above_button, texts.undo_offer(seconds), below.text]),
            (Button(texts.undo_label, token),),
            cause=below.cause,
            answer_seconds=seconds,
        )
        new_actions = undo.new_actions(
            self._store.signer, context.turn.scope.id, occupies_scope=False
        )
        return answer.with_changes(
            replies=(*above, TurnReply.question(reply, action_id), *other_replies),
            new_actions=(*answer.change.new_actions, *new_actions),
        )

    def with_outcome(
        self, context: TurnContext, answer: TurnAnswer, outcome: str, effects: Sequence[Effect]
    ) -> TurnAnswer:
        """Return the answer of the model below the outcome that it follows, with an undo button.

        `outcome`: "" returns the answer unchanged. `effects`: what the button takes back. Outcome
        and answer are one message if they can be (`_joinable_reply`).
        """
        if not outcome:
            return answer
        change = answer.change
        undoable = self._undoable(context, effects)
        joinable = _joinable_reply(change, outcome, has_undo=bool(undoable))

        above = TurnAnswer(text_change(outcome))
        if undoable:
            below = joinable.reply if joinable else None
            above = self._with_undo(context, above, undoable, below)
        elif joinable:
            joined = replace(joinable.reply, text=f"{outcome}\n\n{joinable.reply.text}")
            above = above.with_changes(replies=(replace(joinable, reply=joined),))

        rest = change.replies[1:] if joinable else change.replies
        return answer.with_changes(
            replies=(*above.change.replies, *rest),
            new_actions=(*above.change.new_actions, *change.new_actions),
        )

    async def note_question(self, turn: Turn, action_id: str) -> None:
        """Store in which thread a question is asked, so that the other threads of the chat find it.

        A question outside of threads needs no note: it is found under the chat itself.
        """
        here = turn.conversation
        if here.thread:
            note = json.dumps({"thread": here.thread, "action_id": action_id})
            await self._store.repository.save_question_place(
                replace(here, thread="").id, turn.scope.id, note
            )

    async def find_question_elsewhere(self, turn: Turn, now: float) -> StoredAction | None:
        """Return the question that is open for this person in another thread of the chat, or None.

        The places searched are the chat itself, outside of threads, and the thread of the last
        question (`note_question`). `now`: when the turn came in, in Unix seconds.
        """
        repository = self._store.repository
        here = turn.conversation
        chat = replace(here, thread="")
        if here.thread:
            stored = await repository.load_open(chat.id, turn.scope.id)
            if self._is_open(stored, turn, chat, now):
                return stored

        note = await repository.load_question_place(chat.id, turn.scope.id)
        if not note:
            return None
        place = json.loads(note)
        there = replace(chat, thread=place["thread"])
        if there == here:
            return None
        (stored,) = await repository.load(there.id, (place["action_id"],))
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
        *above, last = answer.change.replies or (TurnReply(Reply()),)
        text = last.reply.text
        fits = not (last.action_id or last.reply.media) and len(text) <= MAX_KEPT_CHARS
        if not fits:
            above.append(last)
            text = ""
        text = text or context.texts.choose()

        if context.lease is None:
            lines = [text, "", *(f"- {literal(label)}" for label in labels)]
            return answer.with_changes(replies=(*above, TurnReply(Reply("\n".join(lines)))))

        turn = context.turn
        # `Reply` removes characters that cannot be stored, which the record must not have either.
        args = {"labels": list(labels), "text": Reply(text).text}
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
        # The offer does not take the place of a question, and only its buttons reach it.
        action = sign_action(offer, self._store.signer, user=context.scope_id, occupies_scope=False)
        signer = self._store.signer
        action_id = offer.pending_action_id
        buttons = (
            Button(label, signer.choice_token(action_id, place, turn.scope))
            for place, label in enumerate(labels)
        )
        reply = Reply(offer.args["text"], tuple(buttons))
        return answer.with_changes(
            replies=(*above, TurnReply.question(reply, action_id)),
            new_actions=(*answer.change.new_actions, action),
        )

    async def take_choice(
        self, context: TurnContext, stored: StoredAction, choice: int
    ) -> StoredAction:
        """Take the choice at this place of an offer, unless one was taken before.

        Return the offer afterwards. Its state is "done" if a choice was taken, by the event
        `decided_by_event`, with the label as `outcome_text`. Raises LeaseLost and StaleTurn if the
        worker must stop or read the action again.
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
        # All other statuses: the offer expired, is gone, or was taken or changed meanwhile.
        return replace(stored, state="expired")


def _joinable_reply(change: TurnChange, outcome: str, *, has_undo: bool) -> TurnReply | None:
    """Return the first reply of an answer if it can be one message with the outcome above it.

    It cannot if the answer has a question, or begins with a file or an edit. `has_undo`: the
    message gets an undo button. Then it must be short enough to be kept after the undo, and can
    belong to no other action.
    """
    if change.new_actions or not change.replies:
        return None
    first = change.replies[0]
    text = first.reply.text
    if not text or first.reply.media or first.reply.edits:
        return None
    if has_undo:
        above_button = outcome if len(outcome) <= MAX_KEPT_CHARS else ""
        if first.action_id or len(paragraphs([above_button, text])) > MAX_KEPT_CHARS:
            return None
    return first


def _closed_offer(message: str, stored: StoredAction, state: ActionState, outcome: str) -> Reply:
    """Return the reply that replaces the message of an offer that has ended.

    `outcome` is the chosen label as Markdown, or any other text if no label was chosen in time.
    """
    text = str(stored.action.args["text"])
    labels = stored.action.args["labels"]
    chosen = next((label for label in labels if literal(label) == outcome), "")
    buttons = decided_buttons([Button(label, "") for label in labels], chosen)
    closing_reply = closed_question(message, text, state, outcome, buttons)
    if not chosen:
        return closing_reply
    # A model wrote the label, so it must not look like the outcome of an action.
    return replace(closing_reply, text=f"{text}\n\n{_CHOICE_SIGN} {without_signs(outcome)}")


def _decision_of_others(
    texts: Texts, stored: StoredAction, state: ActionState, outcome: str
) -> str:
    """Return the names of the other people who decided about an action, "" while it is undecided.

    The person themselves can only withdraw it.
    """
    preview = stored.action.preview
    if state == "cancelled" and outcome.startswith(texts.cancelled(preview)):
        return texts.withdraw_label
    if state == "expired":
        return ""
    answer: VoteAnswer = "no" if state == "cancelled" else "yes"
    votes = votes_for(stored, answer)
    if not votes:
        return ""
    names = ", ".join(literal(vote.shown_name) for vote in votes)
    at = max(vote.at for vote in votes)
    if answer == "no":
        return texts.refused_by(names, at)
    return texts.agreed_by(names, at)


def seconds_to_answer(action: PendingAction, now: float) -> float:
    """Return how long a question can still be answered. `now` is in Unix seconds.

    It is at least 1: as the `answer_seconds` of a reply, 0 would stand for no limit.
    """
    return max(1.0, action.expires_at - now)


def question_message(turn: Turn, stored: StoredAction) -> str:
    """Return the platform's id of the message that shows the question, "" if it is not known.

    A tap names its message. For any other turn it is the message that the sender noted when it sent
    the question.
    """
    parts = split_button_token(turn.tap.data) if turn.tap else None
    if parts and parts[0] == stored.action_id and turn.message_id:
        return turn.message_id
    return stored.question_message


def _standing_terms(head: PendingAction) -> str:
    """Return for which later calls a standing yes to this question would count."""
    rule = StandingRule.from_dict(head.standing or {})
    bounds = [
        f"{literal(each.argument)} {_SIGNS[each.comparison]} {literal(str(each.value))}"
        for each in rule.where
    ]
    bounds += [
        f"{literal(name)} = {literal(str(head.args[name]))}"
        for name in rule.same
        if name in head.args
    ]
    # A tool without arguments has no bounds: each call is this one.
    shown = ", ".join(bounds) or brief(head.preview)
    return texts_for(head.language).standing_terms(shown, rule.for_seconds, rule.times)


def _buttons_without_standing(head: PendingAction) -> dict[ButtonIntent, Button]:
    """Return the buttons of a question that every question of its kind has."""
    texts = texts_for(head.language)
    if head.approval is not None:
        # Others decide: the person can only take it back.
        return {"cancel": Button(texts.withdraw_label, "")}
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
    """Return the buttons of a decided question, which do nothing any more.

    `asked` are the buttons that it had. The one with the label `decision` is marked; if there is
    none, as for a typed code, it is added. `decision` is "" if the person has not decided.
    """
    buttons = list(asked)
    if decision and decision not in {button.label for button in buttons}:
        buttons.insert(0, Button(decision, ""))
    return tuple(_decided(button, is_chosen=button.label == decision) for button in buttons)


def _decided(button: Button, *, is_chosen: bool) -> Button:
    """Return a button without its token, with a mark if it was chosen."""
    mark = f"{_CHOSEN} " if is_chosen else ""
    effect = f"{mark}{button.effect}" if button.effect else ""
    return Button(f"{mark}{button.label}", "", effect=effect)


def outcome_line(state: ActionState, text: str) -> str:
    """Return an outcome with the sign of its state in front.

    The signs are removed from what a model writes, so no text of a model can look like an outcome.
    """
    return f"{_SYMBOLS.get(state, WARNING)} {text}"


def closed_question(
    message: str,
    asked_text: str,
    state: ActionState,
    decision: str,
    buttons: tuple[Button, ...] = (),
) -> Reply:
    """Return the reply that replaces the message of a question by what was asked and the decision.

    * `message`: the platform's id of the message; "" if it is filled in when the reply is sent.
    * `asked_text`: what was asked, in short. `decision`: what the person decided; "" for nothing.
    * `buttons`: what the question's buttons look like now. They do nothing any more.

    The outcome is not in it: it is in the message that follows. The reply is dropped if the message
    cannot be edited.
    """
    symbol = _SYMBOLS.get(state, WARNING)
    if state == "superseded" and decision:
        symbol = _CHANGED
    mark = f"{symbol} {decision}".strip()
    text = f"{asked_text}\n\n{mark}".strip()
    return Reply(text, edits=message, optional=True, decided_buttons=buttons)


def _earlier_run(
    texts: Texts, action: PendingAction, recent: Sequence[StoredAction], now: float
) -> str:
    """Return the text that says when the same action was done, or may have been done; "" for never.

    `recent` are the stored actions of the person. They count for an hour, by the clock of the
    store: a worker's own clock may be wrong, and the turn may have waited.

    A call that needed no question and may have run is not among them: the reason of the new action
    names it, at any time. After an hour the text does not say when. `now`: when the turn came in,
    in Unix seconds.
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

    Code that asks by itself may record no arguments. Then the previews must be the same, too.
    """
    is_same_call = (earlier.kind, earlier.args_digest) == (action.kind, action.args_digest)
    return is_same_call and (bool(action.args) or earlier.preview == action.preview)


def short_effect(head: PendingAction) -> str:
    """Return the preview of an action in the length of a button, "" if it is too long.

    Details in brackets at its end are left out. Of a plan, return the first step and the number of
    further steps.
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
