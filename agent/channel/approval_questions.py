"""ApprovalQuestions: asks other people about an action, and ends these questions.

The person who asked for the action, the *asker*, gets a *notice* with a button to withdraw the
action. Each person who may decide gets a *request* in their own conversation, or a group gets one
request. Notice and requests are stored with the turn that proposed the action, and sent after it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sayso.agent.channel.approval_events import (
    log_sent_requests,
    log_unasked_action,
    log_unavailable_directory,
)
from sayso.agent.channel.context import TurnAnswer, TurnContext, paragraphs
from sayso.agent.channel.questions import closed_question
from sayso.agent.channel.stored_history import OUTCOME_UNREAD
from sayso.agent.tools.previews import literal
from sayso.channels.i18n.texts import Texts, brief, texts_for
from sayso.channels.types import Button, Reply, Scope, Turn
from sayso.pending.action import ActionState, PendingAction
from sayso.pending.approval_rule import ApprovalRule, Deciders
from sayso.pending.approvals.approvers import (
    ActionPlace,
    Approvers,
    AskedPlace,
    can_be_decided,
)
from sayso.pending.approvals.people import DirectoryUnavailable, KnownPerson
from sayso.pending.approvals.requests import (
    ANYONE,
    END_TIMER,
    ESCALATION_TIMER,
    REMINDER_TIMER,
    REQUEST_KIND,
    UNDELIVERED,
    RequestedAction,
    SentRequest,
    new_answer_code,
    requests_of,
    requests_to_json,
)
from sayso.pending.forwarding import ForwardedQuestion, ForwardedTurn, QuestionEnding
from sayso.pending.plans import Proposal
from sayso.pending.repository import sign_action
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import Forward, TimerTurn, TurnChange, TurnReply

#: The most actions of one conversation that may wait for others. Each of these actions sends
#: messages to other people, and has timers.
MAX_WAITING_FOR_OTHERS = 10


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that the answer to this turn sends."""

    #: What is stored about it with the action.
    sent: SentRequest
    #: The question for the other conversation.
    forward: ForwardedQuestion


class ApprovalQuestions:
    """Asks other people about the actions of one channel. Lives as long as its agent and store.

    `language`: the language of the requests, as a BCP 47 tag. The language of the people who get
    them may be unknown, as they may never have written.
    """

    def __init__(self, store: PendingActionStore, approvers: Approvers, *, language: str) -> None:
        self._store = store
        self._approvers = approvers
        self._language = language

    async def ask(
        self, context: TurnContext, proposal: Proposal, rule: ApprovalRule, above: str
    ) -> tuple[TurnReply, TurnChange] | str:
        """Return the notice for the asker, and the change that stores the action and its requests.

        Return a text for the asker if too few people can be asked. Then nothing is stored.

        * `rule`: the rule of the proposed action.
        * `above`: the text above the notice, "" for none.
        """
        texts = texts_for(proposal.head.language)
        if context.lease is None:  # without a worker, nothing sends the requests
            return texts.cannot_ask_others(proposal.head.preview)
        turn = context.turn
        try:
            asker = await self._approvers.person_of(turn.conversation.channel, turn.user_ids)
            proposal = _with_asker(proposal, asker)
            head = proposal.head
            place = ActionPlace(turn.conversation, asker)
            places = await self._approvers.places_to_ask(
                rule.by, rule.on, place, context.received_at
            )
        except DirectoryUnavailable as exc:
            log_unavailable_directory(proposal.head.pending_action_id, exc)
            return texts.deciders_unknown()
        if not can_be_decided(places, rule.need):
            log_unasked_action(head.kind, turn.conversation.channel)
            return texts.nobody_to_ask(head.preview)
        waiting = sum(timer.id.startswith(f"{END_TIMER}:") for timer in context.timers)
        if waiting >= MAX_WAITING_FOR_OTHERS:
            return texts.too_many_requests(head.preview)

        new_actions = proposal.new_actions(
            self._store.signer, context.scope_id, occupies_scope=False
        )
        *steps, action = new_actions
        code = new_answer_code()
        requests = [
            self._request_to(each, turn, head, action.mac, rule, asker, code) for each in places
        ]
        action = replace(
            action,
            requests=requests_to_json(each.sent for each in requests),
            timer_turns=_timer_turns(turn, head, rule),
            undelivered=_undelivered_entry(turn, head, head.pending_action_id),
            to=json.dumps(
                [turn.conversation.channel, turn.conversation.chat, turn.conversation.thread]
            ),
        )
        log_sent_requests(head.pending_action_id, (each.sent for each in requests))
        notice = self._notice(context, head, rule, places, above)
        change = TurnChange(
            new_actions=(*steps, action), forwards=tuple(each.forward for each in requests)
        )
        return TurnReply.question(notice, head.pending_action_id), change

    async def ask_too(
        self, context: TurnContext, stored: StoredAction, deciders: Deciders, rule: ApprovalRule
    ) -> Sequence[NewRequest]:
        """Return requests to the people among further deciders who were not asked before.

        `rule` is the rule of the action. Raises DirectoryUnavailable and redis.RedisError.
        """
        turn = context.turn
        asker = await self._approvers.person_of(turn.conversation.channel, turn.user_ids)
        known_as = frozenset(stored.action.user_known_as)
        place = ActionPlace(turn.conversation, asker, known_as)
        places = await self._approvers.places_to_ask(deciders, rule.on, place, context.received_at)
        sent = requests_of(stored)
        known = {(each.to, each.person) for each in sent}
        code = next((each.code for each in sent), "") or new_answer_code()
        return [
            self._request_to(each, turn, stored.action, stored.mac, rule, asker, code)
            for each in places
            if (each.to, each.person) not in known
        ]

    def _request_to(
        self,
        place: AskedPlace,
        turn: Turn,
        action: PendingAction,
        record_mac: str,
        rule: ApprovalRule,
        asker: KnownPerson,
        code: str,
    ) -> NewRequest:
        """Return the request to one person or group about an action.

        * `place`: the person or the group.
        * `turn`: a turn of the conversation in which the action waits.
        * `record_mac`: the MAC of the action's record. A vote counts for exactly that record.
        * `rule`: the rule of the action.
        * `asker`: the person who asked for the action.
        * `code`: the word that a written answer names.
        """
        texts = texts_for(self._language)
        requested = RequestedAction(
            action_id=action.pending_action_id,
            record_mac=record_mac,
            home=turn.conversation,
            asker=action.user_id,
            code=code,
            rule=rule.to_dict(),
            asker_name=action.user_name,
            asker_aliases=turn.aliases,
            asker_known_as=tuple(action.user_known_as),
        )
        request = PendingAction(
            user_id=place.user_id,
            kind=REQUEST_KIND,
            preview=action.preview,
            args=requested.to_args(),
            channel_id=place.to.channel,
            conversation_id=place.to.address,
            ttl_seconds=action.ttl_seconds,
            requested_at=action.requested_at,
            reason=action.reason,
            language=texts.language,
        )
        scope = Scope(place.user_id, place.to)
        new_action = replace(
            sign_action(request, self._store.signer, user=scope.id, occupies_scope=False),
            undelivered=_undelivered_entry(turn, action, request.pending_action_id),
        )
        text = texts.request(
            action.preview,
            _asker_as_markdown(asker, action),
            rule.need,
            code,
            action.ttl_seconds,
            in_group=place.user_id == ANYONE,
        )
        reply = Reply(
            text,
            self._request_buttons(texts, request.pending_action_id, scope),
            language=texts.language,
            answer_seconds=action.ttl_seconds,
            preview=action.preview,
        )
        sent = SentRequest(
            request_id=request.pending_action_id,
            to=place.to,
            person=place.person,
            code=code,
            language=texts.language,
        )
        return NewRequest(sent, ForwardedQuestion(place.to, (reply,), new_action))

    def _request_buttons(self, texts: Texts, request_id: str, scope: Scope) -> tuple[Button, ...]:
        """Return the buttons for yes and no. `scope` is that of the request."""
        signer = self._store.signer
        return (
            Button(
                texts.confirm_label,
                signer.button_token(request_id, "confirm", scope),
                "danger",
            ),
            Button(texts.cancel_label, signer.button_token(request_id, "cancel", scope)),
        )

    def _notice(
        self,
        context: TurnContext,
        head: PendingAction,
        rule: ApprovalRule,
        places: Sequence[AskedPlace],
        above: str,
    ) -> Reply:
        """Return the message for the asker: who was asked, and the button to withdraw."""
        texts = texts_for(head.language)
        names = "" if _asks_here(rule) else names_of_asked(rule.by, places)
        text = texts.others_asked(head.preview, names, rule.need, rule.within_seconds)
        token = self._store.signer.button_token(
            head.pending_action_id, "cancel", context.turn.scope
        )
        return Reply(
            paragraphs([above, text]),
            (Button(texts.withdraw_label, token),),
            answer_seconds=rule.within_seconds,
            preview=head.preview,
        )

    def with_endings(
        self,
        context: TurnContext,
        answer: TurnAnswer,
        stored: StoredAction,
        state: ActionState,
        decision: str,
        *,
        ends_as: ActionState = "superseded",
    ) -> TurnAnswer:
        """Return the answer with the endings of all requests about the action. See `endings`."""
        if answer.change.continuation:
            context.memory.notes[OUTCOME_UNREAD] = stored.action_id
        endings = self.endings(stored, state, decision, ends_as=ends_as)
        return answer.with_changes(forwards=(*answer.change.forwards, *endings))

    def endings(
        self,
        stored: StoredAction,
        state: ActionState,
        decision: str,
        *,
        ends_as: ActionState = "superseded",
    ) -> tuple[Forward, ...]:
        """Return the endings of all requests about an action.

        * `state`: the state in which the action ended. It gives the sign before the text.
        * `decision`: how the action ended, in the language of the requests. The text is shown in
          place of the buttons.
        * `ends_as`: the state that the requests enter.
        """
        return tuple(
            self._ending(stored, request, state, decision, ends_as)
            for request in requests_of(stored)
        )

    def _ending(
        self,
        stored: StoredAction,
        request: SentRequest,
        state: ActionState,
        decision: str,
        ends_as: ActionState,
    ) -> QuestionEnding:
        """Return the ending of one request. See `endings`."""
        asked_text = brief(stored.action.preview)
        reply = closed_question("", asked_text, state, decision)
        reply = replace(reply, optional=False, language=request.language)
        return QuestionEnding(request.to, request.request_id, ends_as, decision, reply)


def _turn_of_bot(turn: Turn, *, event_id: str, request_event: str) -> Turn:
    """Return a turn that the bot makes itself, in the conversation and for the person of `turn`.

    `request_event` says what has happened: the name of a timer, or UNDELIVERED with an id.
    """
    return Turn(
        event_id=event_id,
        conversation=turn.conversation,
        user_id=turn.user_id,
        user_name=turn.user_name,
        kind="request_timer",
        language=turn.language,
        in_group=turn.in_group,
        aliases=turn.aliases,
        chat_now=turn.chat_now,
        thread_author=turn.thread_author,
        request_event=request_event,
    )


def _undelivered_entry(turn: Turn, action: PendingAction, asked_id: str) -> str:
    """Return the outbox entry that says to the conversation of an action that a message is lost.

    * `turn`: a turn of that conversation.
    * `asked_id`: the id of the request that did not arrive; for the notice, the id of the action.
    """
    event = f"{UNDELIVERED}{asked_id}"
    failure = _turn_of_bot(turn, event_id=event, request_event=event)
    return ForwardedTurn(failure, action.pending_action_id, action.requested_at).entry()


def _timer_turns(turn: Turn, head: PendingAction, rule: ApprovalRule) -> tuple[TimerTurn, ...]:
    """Return the turns that come in when the timers of an action are due."""
    seconds = {END_TIMER: rule.within_seconds}
    if rule.reminder_seconds:
        seconds[REMINDER_TIMER] = rule.reminder_seconds
    if rule.escalation:
        seconds[ESCALATION_TIMER] = rule.escalation.after_seconds
    return tuple(
        TimerTurn(
            name,
            round(after * 1000),
            _turn_of_bot(
                turn,
                event_id=f"{name}:{head.pending_action_id}",
                request_event=name,
            ),
        )
        for name, after in seconds.items()
    )


def names_of_asked(deciders: Deciders, places: Sequence[AskedPlace]) -> str:
    """Return who was asked, as Markdown: the people, or their roles if some have no name.

    Without names and roles, return the channels on which people were asked.
    """
    named = [literal(each.person) for each in places if each.person and ":" not in each.person]
    if named and len(named) == len(places):
        return ", ".join(named)
    if deciders.names:
        return ", ".join(literal(name) for name in deciders.names)
    return ", ".join(literal(each.to.channel) for each in places)


def _asks_here(rule: ApprovalRule) -> bool:
    """Return whether all others in the conversation of the asker are asked."""
    has_chat = rule.on is not None and bool(rule.on.chat)
    return rule.by.kind == "anyone_else" and not has_chat


def names_of_asked_about(stored: StoredAction) -> str:
    """Return who was asked about a stored action that others decide, as Markdown.

    Return "" for all others in the conversation of the asker.
    """
    rule = stored.action.approval_rule or ApprovalRule(Deciders("asker"))
    if _asks_here(rule):
        return ""
    places = [AskedPlace(each.to, "", each.person) for each in requests_of(stored)]
    return names_of_asked(rule.by, places)


def _with_asker(proposal: Proposal, asker: KnownPerson) -> Proposal:
    """Return the proposal with what the directory knows of the asker.

    Others know the asker by their configured name on all channels. Platforms may give another name,
    or none. A person without a configured name keeps that of the platform.
    """
    head = proposal.head
    user_name = asker.name if asker.has_name else head.user_name
    head = replace(head, user_name=user_name, user_known_as=sorted(asker.known_as))
    return replace(proposal, head=head)


def _asker_as_markdown(asker: KnownPerson, action: PendingAction) -> str:
    """Return how the asker of an action is named to those who decide, as Markdown.

    People choose their name on a platform themselves, and may choose that of another person. So
    without a configured name, the platform's id follows.
    """
    if asker.has_name:
        return literal(asker.name)
    account = f"`{action.user_id}`"
    if not action.user_name.strip():
        return account
    return f"{literal(action.user_name)} ({account})"
