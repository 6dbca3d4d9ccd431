"""ApprovalVotes: what becomes of an action that other people decide.

The action waits in the conversation of the person who asked for it, the *asker*. The answers of the
others reach this conversation as turns of the kind `vote`, and its times (a reminder, an escalation,
the end) as turns of the kind `request_timer`. All of them are answered one at a time, so two people
who decide at once cannot both be the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sayso.agent.channel.approval_events import (
    RefusalReason,
    log_counted_vote,
    log_decision,
    log_escalation,
    log_refused_vote,
    log_reminders,
    log_sent_requests,
    log_tampered_vote,
    log_unavailable_directory,
    log_undelivered_request,
)
from sayso.agent.channel.approval_questions import (
    ApprovalQuestions,
    NewRequest,
    names_of_asked,
)
from sayso.agent.channel.confirmed_actions import ConfirmedActions
from sayso.agent.channel.context import TurnAnswer, TurnContext, fixed_answer, paragraphs
from sayso.agent.channel.endings import (
    cancel_with_text,
    cancelled_text,
    texts_of,
    with_tools_already_run,
)
from sayso.agent.channel.outcome_answers import OutcomeAnswers
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.questions import outcome_line
from sayso.agent.channel.stored_history import OUTCOME_UNREAD
from sayso.agent.tools.previews import literal
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Reply
from sayso.pending.action import ActionState
from sayso.pending.approval_rule import ApprovalRule, Deciders
from sayso.pending.approvals.approvers import ActionPlace, Approvers, AskedPlace, Decider, group_of
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
from sayso.pending.approvals.votes import (
    Tally,
    Vote,
    last_answers,
    names_of_votes,
    tally,
    votes_for,
    votes_from_lines,
)
from sayso.pending.forwarding import ForwardedReply, QuestionEnding
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import (
    EXECUTED_STATES,
    OPEN_STATES,
    WAITING_STATES,
    StoredAction,
)
from sayso.pending.turn_changes import Forward, RequestChange, Transition, TurnChange, TurnReply

log = logging.getLogger(__name__)

#: How many answers of one account about one action are stored. All of them are judged with each
#: further answer, so without a limit a member of a group could keep the bot busy.
MAX_ANSWERS_EACH = 20

#: The answer to a turn that changes nothing and says nothing.
_NOTHING = TurnAnswer(TurnChange(ended="answered_before"))


@dataclass(frozen=True, slots=True)
class _Count:
    """The votes of an action, and what they decide."""

    action: StoredAction
    tally: Tally


class ApprovalVotes:
    """Counts the votes about the actions of one channel, and acts on the result.

    Lives as long as its agent and store. Who may decide is asked of the directory at each vote,
    also about those who have voted before.
    """

    def __init__(
        self,
        store: PendingActionStore,
        approvers: Approvers,
        *,
        questions: ApprovalQuestions,
        confirmed: ConfirmedActions,
        outcomes: OutcomeHistory,
        answers: OutcomeAnswers,
        language: str,
    ) -> None:
        """`language` is that of the requests."""
        self._store = store
        self._approvers = approvers
        self._questions = questions
        self._confirmed = confirmed
        self._outcomes = outcomes
        self._answers = answers
        self._language = language

    async def answer(self, context: TurnContext) -> TurnAnswer:
        """Answer a vote or a timer. Raises LeaseLost, StaleTurn and redis.RedisError."""
        stored = context.named_action
        if stored is None:  # its record is gone, which takes days after its end
            log.warning("request.without_action", extra={"event": context.turn.event_hash})
            return _NOTHING
        if stored.is_changed:
            return await self._answer_about_changed(context, stored)
        rule = _rule_of(stored)
        if rule is None:
            return _NOTHING
        if context.turn.kind == "vote":
            answer = await self._answer_vote(context, stored, rule)
            answer = self._with_word_to_voter(context, stored, answer)
        else:
            answer = await self._answer_timer(context, stored, rule)
        return answer.marked_about(stored)

    async def _answer_about_changed(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Answer a turn about an action whose stored record is not the one that was signed.

        It can never run. A voter is told that the answer does not count, and the asker when the
        time to decide is over.
        """
        line = texts_for(self._language).request_changed()
        vote = self._read_vote(context, stored) if context.turn.kind == "vote" else None
        if vote:
            return self._refused(stored, vote, "changed", line)
        is_over = context.turn.request_event == END_TIMER and stored.state in WAITING_STATES
        if not is_over:
            return _NOTHING
        text = context.texts.tampered()
        return await self._end_undecided(context, stored, "expired", text, line)

    def withdrawn(
        self, context: TurnContext, answer: TurnAnswer, stored: StoredAction
    ) -> TurnAnswer:
        """Return the answer to a withdrawal, with the end of all requests."""
        log_decision(stored, "withdrawn")
        turn = context.turn
        name = literal(stored.action.user_name or turn.user_name or turn.user_id)
        line = texts_for(self._language).withdrawn_by(name, context.received_at)
        return self._with_endings(context, answer, stored, "cancelled", line)

    async def withdraw_all(
        self, context: TurnContext, answer: TurnAnswer, waiting: Sequence[StoredAction]
    ) -> TurnAnswer:
        """Cancel actions that wait for others, and return the answer with the end of their requests.

        Each is cancelled at once: a turn can commit only one change of a state. `waiting` may have
        actions that an earlier attempt at this turn has cancelled, before its worker died: their
        requests are still to be ended.
        """
        conversation = context.turn.conversation.id
        outcomes: list[str] = []
        for stored in waiting:
            outcome = cancelled_text(stored)
            if stored.state in WAITING_STATES:
                transition = cancel_with_text(stored, context.turn, outcome)
                change = TurnChange(transition=transition)
                status, _ = await self._store.repository.change(conversation, change)
                if status != "ok":
                    continue
            answer = self.withdrawn(context, answer, stored)
            answer = await self._answers.with_closed_question(
                context, answer, stored, "cancelled", outcome
            )
            outcomes.append(outcome)
        return _with_lines_below(answer, outcomes)

    def failed(self, context: TurnContext) -> TurnAnswer:
        """Return the answer to a vote that could not be counted: its person may try again."""
        stored = context.named_action
        if context.turn.kind != "vote" or stored is None:
            return _NOTHING
        vote = self._read_vote(context, stored)
        if vote is None:
            return _NOTHING
        return _told(stored, vote, texts_for(self._language).broken(), self._language)

    async def with_requests_ended(
        self, context: TurnContext, answer: TurnAnswer, stored: StoredAction
    ) -> TurnAnswer:
        """Return the answer of a turn that decided the action and failed, with the requests ended."""
        ended = await self._after(context, answer, stored)
        line = _decision_line(ended, self._language)
        if ended.state in EXECUTED_STATES:
            line = paragraphs([line, _end_for_deciders(ended, self._language)])
        answer = self._with_endings(context, answer, stored, ended.state, line)
        return self._with_word_to_voter(context, stored, answer)

    async def _answer_vote(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule
    ) -> TurnAnswer:
        """Count a vote, and carry out or cancel the action if that decides it.

        The first row that fits counts:

        | the vote                                      | the action                              |
        |-----------------------------------------------|-----------------------------------------|
        | is not genuine, or is about another record    | stays; the voter is told                |
        | came by this turn, which has decided already  | its outcome is told                     |
        | finds the action decided or ended             | stays; the voter is told                |
        | came after the time to decide                 | expires                                 |
        | is of a person who may not decide             | stays; the voter is told                |
        | is one more yes or no, and more are needed    | stays; the voter is told                |
        | is the last yes that was needed               | is carried out                          |
        | is the last no that was needed                | is cancelled                            |
        """
        vote = self._read_vote(context, stored)
        if vote is None:
            return _NOTHING
        texts = texts_for(self._language)
        if vote.record_mac != stored.mac:
            return self._refused(stored, vote, "changed", texts.request_changed())

        has_event = stored.decided_by_event == context.turn.event_id
        is_decided_here = has_event and stored.state not in WAITING_STATES
        if not is_decided_here and stored.state != "shown":
            line = _decision_line(stored, self._language)
            reason: RefusalReason = "early" if stored.state == "armed" else "over"
            return self._refused(stored, vote, reason, texts.request_over(line))
        if not is_decided_here and stored.action.is_expired(context.received_at):
            log_refused_vote(
                vote.channel, "over", action_id=vote.action_id, request_id=vote.request_id
            )
            return await self._expire(context, stored, rule)
        if is_decided_here:
            return await self._act_again(context, stored, rule, vote)
        if _is_one_too_many(stored, vote):
            log_refused_vote(
                vote.channel, "too_many", action_id=vote.action_id, request_id=vote.request_id
            )
            return _NOTHING
        try:
            count = await self._count(context, stored, rule, vote)
        except DirectoryUnavailable as exc:
            log_unavailable_directory(stored.action_id, exc)
            return self._refused(stored, vote, "directory_unavailable", texts.deciders_unknown())
        if count is None:
            return self._refused(stored, vote, "not_a_decider", texts.not_a_decider())
        log_counted_vote(vote, count.tally, rule.need)
        if count.tally.state != "open":
            log_decision(stored, count.tally.state)
        return await self._act(context, rule, vote, count)

    def _with_word_to_voter(
        self, context: TurnContext, stored: StoredAction, answer: TurnAnswer
    ) -> TurnAnswer:
        """Return the answer with how the action ended, in the conversation of the vote.

        A person may have named the code of the request elsewhere, such as in a group. Where the
        request stands, its end says the same.
        """
        endings = [each for each in answer.change.forwards if isinstance(each, QuestionEnding)]
        if not endings:
            return answer
        vote = self._read_vote(context, stored)
        if vote is None or any(each.to == vote.place for each in endings):
            return answer
        reply = Reply(endings[0].outcome_text, language=self._language)
        forwards = (*answer.change.forwards, ForwardedReply(vote.place, reply))
        return answer.with_changes(forwards=forwards)

    def _read_vote(self, context: TurnContext, stored: StoredAction) -> Vote | None:
        """Return the vote of the turn, None if it is not genuine."""
        try:
            vote = Vote.from_json(context.turn.request_event)
        except (ValueError, TypeError):
            vote = None
        if vote and vote.is_genuine(self._store.signer) and vote.action_id == stored.action_id:
            return vote
        log_tampered_vote(stored.action_id, context.turn.conversation.channel)
        return None

    def _refused(
        self, stored: StoredAction, vote: Vote, reason: RefusalReason, text: str
    ) -> TurnAnswer:
        """Return the answer that tells a person why their vote does not count."""
        log_refused_vote(vote.channel, reason, action_id=vote.action_id, request_id=vote.request_id)
        return _told(stored, vote, text, self._language)

    async def _act_again(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule, vote: Vote
    ) -> TurnAnswer:
        """Go on where another worker died that had counted this vote and claimed the action.

        While the action may still run, the votes are judged again: nothing runs because a state or a
        vote was changed in the store. Raises DirectoryUnavailable.
        """
        if stored.state in OPEN_STATES:
            place = await self._place_of(context, stored)
            agreed = (await self._judge(context, stored, rule, place)).yes
        else:
            answers = last_answers(self._genuine_votes(stored))
            agreed = tuple(each for each in answers if each.answer == "yes")
        return await self._act(context, rule, vote, _Count(stored, Tally("approved", agreed, ())))

    async def _count(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule, vote: Vote
    ) -> _Count | None:
        """Store a vote and count all votes. Return None if the person of the vote may not decide.

        The vote is stored before the action is carried out, so that it is not lost with a worker.
        """
        place = await self._place_of(context, stored)
        decider = await self._decider_of(context, stored, rule, vote, place)
        if decider is None:
            return None
        vote = self._of_decider(vote, decider)
        stored = await self._with_vote(context, stored, vote)
        return _Count(stored, await self._judge(context, stored, rule, place))

    async def _judge(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule, place: ActionPlace
    ) -> Tally:
        """Count the genuine votes that are stored with an action.

        A person who voted before may have lost the role, or may be known as another one by now.
        """
        present: list[Vote] = []
        for vote in self._genuine_votes(stored):
            decider = await self._decider_of(context, stored, rule, vote, place)
            if decider:
                present.append(self._of_decider(vote, decider))
        return tally(rule, present)

    def _of_decider(self, vote: Vote, decider: Decider) -> Vote:
        """Return a vote with what is known of its person now, and all names of before, sealed."""
        known_as = decider.person.known_as.union(vote.known_as)
        named = replace(
            vote,
            person=decider.person.name,
            known_as=tuple(sorted(known_as)),
            stands_for=decider.stands_for,
        )
        return named.sealed(self._store.signer)

    async def _decider_of(
        self,
        context: TurnContext,
        stored: StoredAction,
        rule: ApprovalRule,
        vote: Vote,
        place: ActionPlace,
    ) -> Decider | None:
        """Return the person of a vote if they may decide now, None if not."""
        return await self._approvers.may_decide(
            vote,
            _deciders_now(rule, stored, context.received_at),
            place,
            group_of(rule, place.home),
            context.received_at,
        )

    async def _place_of(self, context: TurnContext, stored: StoredAction) -> ActionPlace:
        """Return where an action waits, and who asked for it."""
        home = context.turn.conversation
        action = stored.action
        ids = (action.user_id, *context.turn.aliases)
        asker = await self._approvers.person_of(home.channel, ids)
        return ActionPlace(home, asker, frozenset(action.user_known_as))

    def _genuine_votes(self, stored: StoredAction) -> Sequence[Vote]:
        """Return the stored votes that the bot has sealed and counted, about exactly this record."""
        signer = self._store.signer
        # A vote that names no person was not counted: it is on its way to be.
        return [
            vote
            for vote in votes_from_lines(stored.votes_text)
            if vote.person and vote.is_about(stored) and vote.is_genuine(signer)
        ]

    async def _with_vote(
        self, context: TurnContext, stored: StoredAction, vote: Vote
    ) -> StoredAction:
        """Store a vote with its action, and return the action with it."""
        line = vote.to_json()
        change = TurnChange(request_change=RequestChange(stored.action_id, vote=vote))
        conversation = context.turn.conversation.id
        await self._store.repository.change(conversation, change)
        lines = stored.votes_text.splitlines()
        if line not in lines:
            lines.append(line)
        return replace(stored, votes_text="\n".join(lines))

    async def _act(
        self, context: TurnContext, rule: ApprovalRule, vote: Vote, count: _Count
    ) -> TurnAnswer:
        """Do what the votes decide, and end the requests if they decide anything."""
        stored = count.action
        texts = texts_of(stored)
        state: ActionState
        match count.tally.state:
            case "open":
                return self._counted(stored, rule, vote, count.tally)
            case "approved":
                answer = await self._carry_out(context, stored, count.tally.yes)
                line = texts.agreed_by(_names(count.tally.yes), vote.at)
                ended = await self._after(context, answer, stored)
                state = ended.state
                end = _end_for_deciders(ended, self._language)
            case "denied":
                reason = "; ".join(each.reason for each in count.tally.no if each.reason)
                names = _names(count.tally.no)
                answer = await self._confirmed.cancel(
                    context,
                    stored,
                    outcome=with_tools_already_run(
                        stored, texts.refusal(stored.action.preview, names, reason)
                    ),
                    decided_by=names_of_votes(stored, "no"),
                    words=reason,
                )
                line = ""
                state = "cancelled"
                end = ""
        if line:
            answer = _with_line_above(answer, line)
        decision = paragraphs([_decision_line(stored, self._language, count.tally), end])
        return self._with_endings(context, answer, stored, state, decision)

    def _counted(
        self, stored: StoredAction, rule: ApprovalRule, vote: Vote, counted: Tally
    ) -> TurnAnswer:
        """Return what is said of a vote after which more are needed. A group reads whose it was."""
        texts = texts_for(self._language)
        preview = stored.action.preview
        agreed = len(counted.yes)
        if not _is_in_group(stored, vote) or _is_repeated(stored, vote):
            return _told(
                stored, vote, texts.vote_counted(preview, agreed, rule.need), self._language
            )
        voter = _names([_newest(counted, vote)])
        text = texts.vote_counted_in_group(preview, voter, agreed, rule.need)
        reply = Reply(text, language=self._language)
        return TurnAnswer(TurnChange(forwards=(ForwardedReply(vote.place, reply),)))

    async def _carry_out(
        self, context: TurnContext, stored: StoredAction, votes: Sequence[Vote]
    ) -> TurnAnswer:
        """Carry out an action that enough people agreed to.

        If an earlier attempt at this turn has carried it out, and its worker died before it was
        told, only the outcome is left to tell.
        """
        is_decided_here = stored.decided_by_event == context.turn.event_id
        if is_decided_here and stored.state not in OPEN_STATES:
            effects = await self._store.finished_actions.effects(context.turn.scope, stored)
            return await self._answers.answer_ended(context, stored, effects, is_deciding=True)
        return await self._confirmed.carry_out(context, stored, votes=votes)

    async def _after(
        self, context: TurnContext, answer: TurnAnswer, stored: StoredAction
    ) -> StoredAction:
        """Return an action after it was carried out, or refused at the last moment.

        The turn may change its state once more (`answer`).
        """
        conversation = context.turn.conversation.id
        (now,) = await self._store.repository.load(conversation, (stored.action_id,))
        if now is None:
            return replace(stored, state="unknown")
        if answer.change.transition:
            return replace(now, state=answer.change.transition.to)
        return now

    async def _answer_timer(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule
    ) -> TurnAnswer:
        """Answer a time that has come while the action waits, or a message that did not arrive."""
        event = context.turn.request_event
        is_notice_lost = event == f"{UNDELIVERED}{stored.action_id}"
        if is_notice_lost and stored.state == "expired":
            # The asker was not told and cannot take the action back, so it has ended.
            line = texts_for(self._language).unreachable_request()
            nothing_said = TurnAnswer(TurnChange())
            return self._with_endings(context, nothing_said, stored, "expired", line)
        if stored.state not in WAITING_STATES:
            return _NOTHING
        try:
            if event == END_TIMER:
                return await self._expire(context, stored, rule)
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
        return _NOTHING

    async def _expire(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule
    ) -> TurnAnswer:
        """End an action about which too few people have decided in time."""
        log_decision(stored, "expired")
        agreed = len([name for name in names_of_votes(stored, "yes").split(", ") if name])
        text = texts_of(stored).undecided(stored.action.preview, agreed, rule.need)
        line = texts_for(self._language).undecided_request()
        return await self._end_undecided(context, stored, "expired", text, line)

    async def _end_undecided(
        self,
        context: TurnContext,
        stored: StoredAction,
        state: ActionState,
        text: str,
        line: str,
    ) -> TurnAnswer:
        """End an action that nobody has decided, and all requests about it.

        `text` is for the asker, and `line` for those who were asked.
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
        return self._with_endings(context, answer, stored, state, line, ends_as=ends_as)

    def _remind(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Remind those who were asked and have not answered."""
        answered = {vote.person for vote in self._genuine_votes(stored)}
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
        """Ask those who may decide, too.

        `why` returns what the asker is told, for the preview and the names of those people.
        """
        escalation = rule.escalation
        if escalation is None or any(each.is_escalation for each in requests_of(stored)):
            return _NOTHING
        added = await self._questions.ask_too(context, stored, escalation.by, rule)
        if not added:
            return _NOTHING
        log_escalation(stored.action_id, len(added))
        log_sent_requests(stored.action_id, (each.sent for each in added))
        places = [AskedPlace(each.sent.to, "", each.sent.person) for each in added]
        text = why(stored.action.preview, names_of_asked(escalation.by, places))
        answer = fixed_answer(context, text)
        return self._with_more_requests(answer, stored, requests_of(stored), added)

    async def _note_undelivered(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule, request_id: str
    ) -> TurnAnswer:
        """Note that a request did not arrive. Ask others, or end the action if nobody is left."""
        log_undelivered_request(stored.action_id, request_id)
        requests = [
            replace(each, is_undelivered=True) if each.request_id == request_id else each
            for each in requests_of(stored)
        ]
        stored = replace(stored, requests_text=requests_to_json(requests))
        change = RequestChange(stored.action_id, requests=stored.requests_text)
        if can_still_decide(requests, rule.need):
            return TurnAnswer(TurnChange(request_change=change))

        texts = texts_of(stored)
        answer = await self._escalate(context, stored, rule, texts.others_asked_instead)
        if answer.change.forwards:
            return answer
        text = texts.nobody_to_ask(stored.action.preview)
        line = texts_for(self._language).unreachable_request()
        log_decision(stored, "unreachable")
        answer = await self._end_undecided(context, stored, "cancelled", text, line)
        return answer.with_changes(request_change=change)

    def _with_more_requests(
        self,
        answer: TurnAnswer,
        stored: StoredAction,
        requests: Sequence[SentRequest],
        added: Sequence[NewRequest],
    ) -> TurnAnswer:
        """Return the answer with further requests, which are stored with the action."""
        new = [replace(each.sent, is_escalation=True) for each in added]
        text = requests_to_json([*requests, *new])
        return answer.with_changes(
            request_change=RequestChange(stored.action_id, requests=text),
            forwards=tuple(each.forward for each in added),
        )

    def _with_endings(
        self,
        context: TurnContext,
        answer: TurnAnswer,
        stored: StoredAction,
        state: ActionState,
        decision: str,
        *,
        ends_as: ActionState = "superseded",
    ) -> TurnAnswer:
        """Return the answer with the end of all requests about the action."""
        if answer.change.continuation:
            context.memory.notes[OUTCOME_UNREAD] = stored.action_id
        endings = self._questions.endings(stored, state, decision, ends_as=ends_as)
        return answer.with_changes(forwards=(*answer.change.forwards, *endings))


def can_still_decide(requests: Sequence[SentRequest], need: int) -> bool:
    """Return whether enough people got a request. Nobody knows how many people read a group."""
    arrived = [each for each in requests if not each.is_undelivered]
    if any(not each.person for each in arrived):
        return True
    return len(arrived) >= need


def _rule_of(stored: StoredAction) -> ApprovalRule | None:
    """Return the rule of an action, None if it has none or cannot be read."""
    try:
        return stored.action.approval_rule
    except (KeyError, TypeError, ValueError):
        return None


def _deciders_now(rule: ApprovalRule, stored: StoredAction, now: float) -> tuple[Deciders, ...]:
    """Return who may decide at this time, in Unix seconds.

    If those who come later were asked early, because the others could not be reached, they may.
    """
    if rule.escalation and any(each.is_escalation for each in requests_of(stored)):
        return (rule.by, rule.escalation.by)
    return rule.deciders_at(now - stored.shown_at)


def _names(votes: Sequence[Vote]) -> str:
    """Return the names of the people who voted, as Markdown."""
    return ", ".join(literal(vote.shown_name) for vote in votes)


def _is_in_group(stored: StoredAction, vote: Vote) -> bool:
    """Return whether a vote answers a request that stands in a group, where all read what follows."""
    return any(
        request.request_id == vote.request_id and not request.person
        for request in requests_of(stored)
    )


def _is_one_too_many(stored: StoredAction, vote: Vote) -> bool:
    """Return whether an account answers once more after MAX_ANSWERS_EACH answers.

    A no counts all the same if the last answer was a yes: nothing runs against the last word of a
    person.
    """
    earlier = [
        each
        for each in votes_from_lines(stored.votes_text)
        if (each.channel, each.user_id) == (vote.channel, vote.user_id)
        and each.event_id != vote.event_id
    ]
    if len(earlier) < MAX_ANSWERS_EACH:
        return False
    last = max(earlier, key=lambda each: each.at)
    return vote.answer == "yes" or last.answer == "no"


def _is_repeated(stored: StoredAction, vote: Vote) -> bool:
    """Return whether the same account has given the same answer before."""
    return any(
        each.event_id != vote.event_id
        and (each.channel, each.user_id, each.answer) == (vote.channel, vote.user_id, vote.answer)
        for each in votes_from_lines(stored.votes_text)
    )


def _newest(counted: Tally, vote: Vote) -> Vote:
    """Return a vote with the name of its person, as it was counted."""
    votes = (*counted.yes, *counted.no)
    return next((each for each in votes if each.event_id == vote.event_id), vote)


def _decision_line(stored: StoredAction, language: str, counted: Tally | None = None) -> str:
    """Return who decided about an action and when; the outcome if nobody else decided it.

    What the action's tool returned is for the asker, and not in it. `counted`: None for an action
    that was decided before.
    """
    texts = texts_for(language)
    is_denied = stored.state == "cancelled"
    deciding: Sequence[Vote] = ()
    if counted:
        is_denied = counted.state == "denied"
        deciding = counted.deciding
    elif stored.state != "expired":
        deciding = votes_for(stored, "no" if is_denied else "yes")
    if not deciding:
        return stored.outcome_text or texts.stale()

    at = max(vote.at for vote in deciding)
    if is_denied:
        return texts.refused_by(_names(deciding), at)
    return texts.agreed_by(_names(deciding), at)


def _end_for_deciders(ended: StoredAction, language: str) -> str:
    """Return what those who agreed read of the end of an action, "" if it is done."""
    texts = texts_for(language)
    match ended.state:
        case "done":
            return ""
        case "failed" if ended.attempt_id:
            return texts.agreed_failed()
        case "started" | "unknown":
            return texts.agreed_unknown()
    return texts.agreed_not_done()


def _told(stored: StoredAction, vote: Vote, text: str, language: str) -> TurnAnswer:
    """Return the answer that tells only the voter something, and changes nothing."""
    only_for = vote.user_id if _is_in_group(stored, vote) else ""
    forward = ForwardedReply(vote.place, Reply(text, language=language, only_for=only_for))
    return TurnAnswer(TurnChange(forwards=(forward,)))


def _with_lines_below(answer: TurnAnswer, lines: Sequence[str]) -> TurnAnswer:
    """Return the answer with lines below its last new message."""
    if not lines or not answer.change.replies:
        return answer
    *others, last = answer.change.replies
    reply = replace(last.reply, text="\n".join([last.reply.text, *lines]))
    return answer.with_changes(replies=(*others, TurnReply(reply, last.action_id, last.role)))


def _with_line_above(answer: TurnAnswer, line: str) -> TurnAnswer:
    """Return the answer with a line above its first new message."""
    replies = list(answer.change.replies)
    for at, turn_reply in enumerate(replies):
        reply = turn_reply.reply
        if reply.text and not reply.edits:
            above = replace(reply, text=f"{line}\n\n{reply.text}")
            replies[at] = TurnReply(above, turn_reply.action_id, turn_reply.role)
            break
    return answer.with_changes(replies=tuple(replies))
