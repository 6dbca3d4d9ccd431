"""ApprovalTimers: what happens to an action that others decide while it waits, without a vote.

A reminder, an escalation, the end of the time to decide, and a request that did not arrive reach the
conversation of the action as turns of the kind `request_timer`. The field `request_event` of such a
turn says what has happened: the name of a timer, or UNDELIVERED with an id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sayso.agent.channel.approval_events import (
    log_decision,
    log_escalation,
    log_reminders,
    log_sent_requests,
    log_unavailable_directory,
    log_undelivered_request,
)
from sayso.agent.channel.approval_questions import (
    ApprovalQuestions,
    NewRequest,
    names_of_asked,
)
from sayso.agent.channel.context import TurnAnswer, TurnContext, fixed_answer
from sayso.agent.channel.endings import texts_of, with_tools_already_run
from sayso.agent.channel.outcome_answers import OutcomeAnswers
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.questions import outcome_line
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Reply
from sayso.pending.action import ActionSigner, ActionState
from sayso.pending.approval_rule import ApprovalRule
from sayso.pending.approvals.approvers import AskedPlace, can_be_decided
from sayso.pending.approvals.people import DirectoryUnavailable
from sayso.pending.approvals.requests import (
    END_TIMER,
    ESCALATION_TIMER,
    REMINDER_TIMER,
    UNDELIVERED,
    SentRequest,
    requests_of,
    requests_to_json,
)
from sayso.pending.approvals.votes import genuine_votes, votes_for
from sayso.pending.forwarding import ForwardedReply
from sayso.pending.stored_action import WAITING_STATES, StoredAction
from sayso.pending.turn_changes import Forward, RequestChange, Transition, TurnChange

#: The answer to a turn that changes nothing and says nothing.
NO_ANSWER = TurnAnswer(TurnChange(ended="answered_before"))


class ApprovalTimers:
    """Reminds people, asks further people, and ends actions that were not decided in time.

    Works for the actions of one channel. Lives as long as its agent and store.

    * `signer`: verifies votes.
    * `language`: the language of the requests, as a BCP 47 tag.
    """

    def __init__(
        self,
        signer: ActionSigner,
        *,
        questions: ApprovalQuestions,
        outcomes: OutcomeHistory,
        answers: OutcomeAnswers,
        language: str,
    ) -> None:
        self._signer = signer
        self._questions = questions
        self._outcomes = outcomes
        self._answers = answers
        self._language = language

    async def answer(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule
    ) -> TurnAnswer:
        """Answer a turn of the kind `request_timer` about an action with a rule.

        Raises redis.RedisError.
        """
        event = context.turn.request_event
        is_notice_lost = event == f"{UNDELIVERED}{stored.action_id}"
        if is_notice_lost and stored.state == "expired":
            # The asker got no notice, so the asker could not withdraw the action. It has expired.
            line = texts_for(self._language).unreachable_request()
            silence = TurnAnswer(TurnChange())
            return self._questions.with_endings(context, silence, stored, "expired", line)
        if stored.state not in WAITING_STATES:
            return NO_ANSWER
        try:
            if event == END_TIMER:
                return await self.expire(context, stored, rule)
            if event == REMINDER_TIMER:
                return self._remind(context, stored)
            if event == ESCALATION_TIMER:
                return await self._escalate(
                    context, stored, rule, texts_of(stored).others_asked_too
                )
            if event.startswith(UNDELIVERED):
                request_id = event.removeprefix(UNDELIVERED)
                return await self._note_undelivered(context, stored, rule, request_id)
        except DirectoryUnavailable as exc:
            log_unavailable_directory(stored.action_id, exc)
        return NO_ANSWER

    async def expire(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule
    ) -> TurnAnswer:
        """End an action for which too few people have decided in time, and all requests about it."""
        log_decision(stored, "expired")
        agreed = len([vote for vote in votes_for(stored, "yes") if vote.person])
        text = texts_of(stored).undecided(stored.action.preview, agreed, rule.need)
        line = texts_for(self._language).undecided_request()
        return await self.end_undecided(context, stored, "expired", text, line)

    async def end_undecided(
        self,
        context: TurnContext,
        stored: StoredAction,
        state: ActionState,
        text: str,
        line: str,
    ) -> TurnAnswer:
        """End an action that people have not decided, and all requests about it.

        * `state`: the state that the action enters: `expired`, or `cancelled`.
        * `text`: the text for the asker.
        * `line`: the text for the people who were asked.
        """
        outcome = with_tools_already_run(stored, text)
        ended = replace(stored, state=state)
        self._outcomes.write_outcome(context, stored, "expired" if state == "expired" else "denied")
        if self._answers.goes_on(context, stored):
            answer = self._answers.answer_and_continue(context, ended, outcome)
        else:
            answer = fixed_answer(context, outcome_line(state, outcome), for_history=outcome)
        transition = Transition(
            stored.action_id, WAITING_STATES, state, outcome, context.turn.event_id
        )
        answer = answer.with_changes(transition=transition)
        answer = await self._answers.with_closed_question(context, answer, stored, state, outcome)
        ends_as: ActionState = "expired" if state == "expired" else "superseded"
        return self._questions.with_endings(context, answer, stored, state, line, ends_as=ends_as)

    def _remind(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Remind the people who were asked and have not answered."""
        answered = {vote.person for vote in genuine_votes(stored, self._signer)}
        forwards: list[Forward] = []
        for request in requests_of(stored):
            if request.is_undelivered or request.person in answered:
                continue
            seconds = max(1.0, stored.action.expires_at - context.received_at)
            text = texts_for(request.language).request_reminder(
                stored.action.preview, request.code, seconds, in_group=not request.person
            )
            forwards.append(ForwardedReply(request.to, Reply(text, language=request.language)))
        log_reminders(stored.action_id, len(forwards))
        return TurnAnswer(TurnChange(forwards=tuple(forwards)))

    async def _escalate(
        self,
        context: TurnContext,
        stored: StoredAction,
        rule: ApprovalRule,
        why: Callable[[str, str], str],
    ) -> TurnAnswer:
        """Ask the further people of the rule's escalation, once.

        `why(preview, names)` returns the text for the asker. `names` are those people, as Markdown.
        Raises DirectoryUnavailable.
        """
        escalation = rule.escalation
        if escalation is None or any(each.is_escalation for each in requests_of(stored)):
            return NO_ANSWER
        added = await self._questions.ask_too(context, stored, escalation.by, rule)
        if not added:
            return NO_ANSWER
        log_escalation(stored.action_id, len(added))
        log_sent_requests(stored.action_id, (each.sent for each in added))
        places = [AskedPlace(each.sent.to, "", each.sent.person) for each in added]
        text = why(stored.action.preview, names_of_asked(escalation.by, places))
        answer = fixed_answer(context, text)
        return self._with_more_requests(answer, stored, requests_of(stored), added)

    async def _note_undelivered(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule, request_id: str
    ) -> TurnAnswer:
        """Store that a request did not arrive.

        If too few people are left, ask the further people of the escalation. If there are none, end
        the action. Raises DirectoryUnavailable.
        """
        log_undelivered_request(stored.action_id, request_id)
        requests: list[SentRequest] = []
        for each in requests_of(stored):
            if each.request_id == request_id:
                requests.append(replace(each, is_undelivered=True))
            else:
                requests.append(each)
        stored = replace(stored, requests_text=requests_to_json(requests))
        change = RequestChange(stored.action_id, requests=stored.requests_text)
        arrived = [each for each in requests if not each.is_undelivered]
        if can_be_decided(arrived, rule.need):
            return TurnAnswer(TurnChange(request_change=change))

        texts = texts_of(stored)
        answer = await self._escalate(context, stored, rule, texts.others_asked_instead)
        if answer.change.forwards:
            return answer
        text = texts.nobody_to_ask(stored.action.preview)
        line = texts_for(self._language).unreachable_request()
        log_decision(stored, "unreachable")
        answer = await self.end_undecided(context, stored, "cancelled", text, line)
        return answer.with_changes(request_change=change)

    def _with_more_requests(
        self,
        answer: TurnAnswer,
        stored: StoredAction,
        requests: Sequence[SentRequest],
        added: Sequence[NewRequest],
    ) -> TurnAnswer:
        """Return the answer that also sends the added requests, and stores them with the action.

        `requests`: those that the action has already.
        """
        new = [replace(each.sent, is_escalation=True) for each in added]
        text = requests_to_json([*requests, *new])
        return answer.with_changes(
            request_change=RequestChange(stored.action_id, requests=text),
            forwards=tuple(each.forward for each in added),
        )
