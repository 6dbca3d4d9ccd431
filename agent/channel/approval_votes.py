"""ApprovalVotes: what becomes of an action that other people decide.

The action waits in the conversation of the person who asked for it, the *asker*. The answers of the
other people reach this conversation as turns of the kind `vote`. Turns of one conversation are
answered one at a time. So of two people who answer at once, only one gives the vote that decides.

What happens without a vote, such as a reminder, is in `approval_timers.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sayso.agent.channel.approval_events import (
    RefusalReason,
    log_counted_vote,
    log_decision,
    log_refused_vote,
    log_tampered_vote,
    log_unavailable_directory,
)
from sayso.agent.channel.approval_questions import (
    ApprovalQuestions,
)
from sayso.agent.channel.approval_timers import NO_ANSWER, ApprovalTimers
from sayso.agent.channel.confirmed_actions import ConfirmedActions
from sayso.agent.channel.context import TurnAnswer, TurnContext, paragraphs
from sayso.agent.channel.endings import (
    cancel_with_text,
    cancelled_text,
    texts_of,
    with_tools_already_run,
)
from sayso.agent.channel.outcome_answers import OutcomeAnswers
from sayso.agent.tools.previews import literal
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Reply
from sayso.pending.action import ActionState
from sayso.pending.approval_rule import ApprovalRule, Deciders
from sayso.pending.approvals.approvers import ActionPlace, Approvers, Decider, group_of
from sayso.pending.approvals.people import DirectoryUnavailable
from sayso.pending.approvals.requests import (
    END_TIMER,
    requests_of,
)
from sayso.pending.approvals.votes import (
    Tally,
    Vote,
    genuine_votes,
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
from sayso.pending.turn_changes import RequestChange, TurnChange, TurnReply

log = logging.getLogger(__name__)

#: How many answers of one account about one action are stored. All of them are judged with each
#: further answer, so without a limit a member of a group could keep the bot busy.
MAX_ANSWERS_EACH = 20


@dataclass(frozen=True, slots=True)
class _Count:
    """An action with all its votes, and what the votes decide."""

    action: StoredAction
    tally: Tally


class ApprovalVotes:
    """Counts the votes about the actions of one channel, and carries out what they decide.

    Lives as long as its agent and store. At each vote it checks again whether each voter may
    decide, also those who voted before.
    """

    def __init__(
        self,
        store: PendingActionStore,
        approvers: Approvers,
        *,
        questions: ApprovalQuestions,
        timers: ApprovalTimers,
        confirmed: ConfirmedActions,
        answers: OutcomeAnswers,
        language: str,
    ) -> None:
        """`language` is the language of the requests, as a BCP 47 tag."""
        self._store = store
        self._approvers = approvers
        self._questions = questions
        self._timers = timers
        self._confirmed = confirmed
        self._answers = answers
        self._language = language

    async def answer(self, context: TurnContext) -> TurnAnswer:
        """Answer a vote or a timer. Raises LeaseLost, StaleTurn and redis.RedisError."""
        stored = context.named_action
        if stored is None:  # the record was deleted, days after the end of the action
            log.warning("request.without_action", extra={"event": context.turn.event_hash})
            return NO_ANSWER
        if stored.is_changed:
            return await self._answer_about_changed(context, stored)
        rule = _rule_of(stored)
        if rule is None:
            return NO_ANSWER
        if context.turn.kind == "vote":
            vote = self._read_vote(context, stored)
            if vote is None:
                return NO_ANSWER
            answer = await self._answer_vote(context, stored, rule, vote)
            answer = self._with_outcome_for_voter(answer, vote)
        else:
            answer = await self._timers.answer(context, stored, rule)
        return answer.marked_about(stored)

    async def _answer_about_changed(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Answer a turn about an action whose stored record was changed in the store.

        The action can never run. A voter is told that the vote does not count. The asker is told at
        the end of the time to decide.
        """
        line = texts_for(self._language).request_changed()
        vote = None
        if context.turn.kind == "vote":
            vote = self._read_vote(context, stored)
        if vote:
            return self._refuse(stored, vote, "changed", line)
        is_over = context.turn.request_event == END_TIMER and stored.state in WAITING_STATES
        if not is_over:
            return NO_ANSWER
        text = context.texts.tampered()
        return await self._timers.end_undecided(context, stored, "expired", text, line)

    def withdrawn(
        self, context: TurnContext, answer: TurnAnswer, stored: StoredAction
    ) -> TurnAnswer:
        """Return the answer to a withdrawal, with the end of all requests."""
        log_decision(stored, "withdrawn")
        turn = context.turn
        name = literal(stored.action.user_name or turn.user_name or turn.user_id)
        line = texts_for(self._language).withdrawn_by(name, context.received_at)
        return self._questions.with_endings(context, answer, stored, "cancelled", line)

    async def withdraw_all(
        self, context: TurnContext, answer: TurnAnswer, waiting: Sequence[StoredAction]
    ) -> TurnAnswer:
        """Cancel actions that wait for others, and return the answer with the end of their requests.

        Each action is cancelled before this method returns, because a turn can commit only one
        change of a state. If a worker died in an earlier attempt at this turn, `waiting` has the
        actions that it cancelled, too: their requests must still be ended.
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
        """Return the answer to a turn that failed. A voter is told to try again."""
        stored = context.named_action
        if context.turn.kind != "vote" or stored is None:
            return NO_ANSWER
        vote = self._read_vote(context, stored)
        if vote is None:
            return NO_ANSWER
        return _tell_voter(stored, vote, texts_for(self._language).broken(), self._language)

    async def with_requests_ended(
        self, context: TurnContext, answer: TurnAnswer, stored: StoredAction
    ) -> TurnAnswer:
        """Return the answer of a turn that decided the action and failed, with the requests ended."""
        ended = await self._load_ended(context, answer, stored)
        line = _decision_line(ended, self._language)
        if ended.state in EXECUTED_STATES:
            line = paragraphs([line, _end_for_deciders(ended, self._language)])
        answer = self._questions.with_endings(context, answer, stored, ended.state, line)
        vote = None
        if context.turn.kind == "vote":
            vote = self._read_vote(context, stored)
        if vote is None:
            return answer
        return self._with_outcome_for_voter(answer, vote)

    async def _answer_vote(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule, vote: Vote
    ) -> TurnAnswer:
        """Count a genuine vote, and carry out or cancel the action if that decides it.

        The first row that fits counts:

        | the vote                                      | the action                              |
        |-----------------------------------------------|-----------------------------------------|
        | is about another record                       | stays; the voter is told                |
        | was counted in an earlier attempt at this     | goes on where the worker of that        |
        | turn, and decided the action                  | attempt died                            |
        | came in after the end of the action           | stays; the voter is told                |
        | came in after the time to decide              | expires                                 |
        | is of a person who may not decide             | stays; the voter is told                |
        | is counted, and more votes are needed         | stays; the voter is told                |
        | is the last yes that was needed               | is carried out                          |
        | is the last no that was needed                | is cancelled                            |
        """
        texts = texts_for(self._language)
        if vote.record_mac != stored.mac:
            return self._refuse(stored, vote, "changed", texts.request_changed())

        has_event = stored.decided_by_event == context.turn.event_id
        is_decided_here = has_event and stored.state not in WAITING_STATES
        if is_decided_here:
            return await self._go_on(context, stored, rule, vote)
        if stored.state != "shown":
            line = _decision_line(stored, self._language)
            reason: RefusalReason = "early" if stored.state == "armed" else "over"
            return self._refuse(stored, vote, reason, texts.request_over(line))
        if stored.action.is_expired(context.received_at):
            log_refused_vote(
                vote.channel, "over", action_id=vote.action_id, request_id=vote.request_id
            )
            return await self._timers.expire(context, stored, rule)
        if _is_one_too_many(stored, vote):
            log_refused_vote(
                vote.channel, "too_many", action_id=vote.action_id, request_id=vote.request_id
            )
            return NO_ANSWER
        try:
            count = await self._count(context, stored, rule, vote)
        except DirectoryUnavailable as exc:
            log_unavailable_directory(stored.action_id, exc)
            return self._refuse(stored, vote, "directory_unavailable", texts.deciders_unknown())
        if count is None:
            return self._refuse(stored, vote, "not_a_decider", texts.not_a_decider())
        log_counted_vote(vote, count.tally, rule.need)
        if count.tally.state != "open":
            log_decision(stored, count.tally.state)
        return await self._act_on(context, rule, vote, count)

    def _with_outcome_for_voter(self, answer: TurnAnswer, vote: Vote) -> TurnAnswer:
        """Return the answer that also sends the end of the action to the conversation of the vote.

        A person may have answered in another conversation than that of the request, such as in a
        group. In the conversation of a request, its ending says the same, so nothing is added.
        """
        endings = [each for each in answer.change.forwards if isinstance(each, QuestionEnding)]
        if not endings or any(each.to == vote.place for each in endings):
            return answer
        reply = Reply(endings[0].outcome_text, language=self._language)
        forwards = (*answer.change.forwards, ForwardedReply(vote.place, reply))
        return answer.with_changes(forwards=forwards)

    def _read_vote(self, context: TurnContext, stored: StoredAction) -> Vote | None:
        """Return the vote of the turn, None (and a log line) for one that is not genuine."""
        try:
            vote = Vote.from_json(context.turn.request_event)
        except (ValueError, TypeError):
            vote = None
        if vote and vote.is_genuine(self._store.signer) and vote.action_id == stored.action_id:
            return vote
        log_tampered_vote(stored.action_id, context.turn.conversation.channel)
        return None

    def _refuse(
        self, stored: StoredAction, vote: Vote, reason: RefusalReason, text: str
    ) -> TurnAnswer:
        """Return the answer that tells a person why their vote does not count."""
        log_refused_vote(vote.channel, reason, action_id=vote.action_id, request_id=vote.request_id)
        return _tell_voter(stored, vote, text, self._language)

    async def _go_on(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule, vote: Vote
    ) -> TurnAnswer:
        """Go on where a worker died after it had counted this vote and claimed the action.

        While the action may still run, the votes are counted again, so that nothing runs because a
        state or a vote was changed in the store. Raises DirectoryUnavailable.
        """
        if stored.state in OPEN_STATES:
            place = await self._place_of(context, stored)
            counted = await self._count_stored(context, stored, rule, place)
            agreed = counted.yes
        else:
            answers = last_answers(genuine_votes(stored, self._store.signer))
            agreed = tuple(each for each in answers if each.answer == "yes")
        count = _Count(stored, Tally("approved", agreed, ()))
        return await self._act_on(context, rule, vote, count)

    async def _count(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule, vote: Vote
    ) -> _Count | None:
        """Store a vote and count all votes. Return None if the person of the vote may not decide.

        The vote is stored before the action is carried out, so that no vote is lost if the worker
        dies. Raises DirectoryUnavailable.
        """
        place = await self._place_of(context, stored)
        decider = await self._decider_of(context, stored, rule, vote, place)
        if decider is None:
            return None
        vote = self._counted_vote(vote, decider)
        stored = await self._with_vote(context, stored, vote)
        return _Count(stored, await self._count_stored(context, stored, rule, place))

    async def _count_stored(
        self, context: TurnContext, stored: StoredAction, rule: ApprovalRule, place: ActionPlace
    ) -> Tally:
        """Count the genuine votes that are stored with an action.

        A person who voted before may have lost the role, or may have another name now.
        """
        counted: list[Vote] = []
        for vote in genuine_votes(stored, self._store.signer):
            decider = await self._decider_of(context, stored, rule, vote, place)
            if decider:
                counted.append(self._counted_vote(vote, decider))
        return tally(rule, counted)

    def _counted_vote(self, vote: Vote, decider: Decider) -> Vote:
        """Return a vote with the present name of its person and all earlier names, sealed again."""
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

    async def _act_on(
        self, context: TurnContext, rule: ApprovalRule, vote: Vote, count: _Count
    ) -> TurnAnswer:
        """Carry out or cancel the action as the votes decide, and end the requests.

        If the votes decide nothing yet, the voter is told.
        """
        stored = count.action
        texts = texts_of(stored)
        state: ActionState
        match count.tally.state:
            case "open":
                return self._confirm_vote(stored, rule, vote, count.tally)
            case "approved":
                answer = await self._carry_out(context, stored, count.tally.yes)
                line = texts.agreed_by(_voter_names(count.tally.yes), vote.at)
                ended = await self._load_ended(context, answer, stored)
                state = ended.state
                end = _end_for_deciders(ended, self._language)
            case "denied":
                reason = "; ".join(each.reason for each in count.tally.no if each.reason)
                names = _voter_names(count.tally.no)
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
        return self._questions.with_endings(context, answer, stored, state, decision)

    def _confirm_vote(
        self, stored: StoredAction, rule: ApprovalRule, vote: Vote, counted: Tally
    ) -> TurnAnswer:
        """Return the answer to a vote after which more votes are needed.

        In a group all members read it. Only the voter reads it after the same answer a second time.
        """
        texts = texts_for(self._language)
        preview = stored.action.preview
        agreed = len(counted.yes)
        if not _is_in_group(stored, vote) or _is_repeated(stored, vote):
            return _tell_voter(
                stored, vote, texts.vote_counted(preview, agreed, rule.need), self._language
            )
        voter = _voter_names([_as_counted(counted, vote)])
        text = texts.vote_counted_in_group(preview, voter, agreed, rule.need)
        reply = Reply(text, language=self._language)
        return TurnAnswer(TurnChange(forwards=(ForwardedReply(vote.place, reply),)))

    async def _carry_out(
        self, context: TurnContext, stored: StoredAction, votes: Sequence[Vote]
    ) -> TurnAnswer:
        """Carry out an action that enough people agreed to.

        If an earlier attempt at this turn carried it out and the worker died then, only tell the
        outcome.
        """
        is_decided_here = stored.decided_by_event == context.turn.event_id
        if is_decided_here and stored.state not in OPEN_STATES:
            effects = await self._store.finished_actions.effects(context.turn.scope, stored)
            return await self._answers.answer_ended(context, stored, effects, is_deciding=True)
        return await self._confirmed.carry_out(context, stored, votes=votes)

    async def _load_ended(
        self, context: TurnContext, answer: TurnAnswer, stored: StoredAction
    ) -> StoredAction:
        """Load an action after it was carried out, or refused before that.

        The change of the turn (`answer`) may give it another state, which is not stored yet. An
        action that is no longer stored has the state `unknown`.
        """
        conversation = context.turn.conversation.id
        (now,) = await self._store.repository.load(conversation, (stored.action_id,))
        if now is None:
            return replace(stored, state="unknown")
        if answer.change.transition:
            return replace(now, state=answer.change.transition.to)
        return now


def _rule_of(stored: StoredAction) -> ApprovalRule | None:
    """Return the rule of an action, None if it has none, or one that cannot be read."""
    try:
        return stored.action.approval_rule
    except (KeyError, TypeError, ValueError):
        return None


def _deciders_now(rule: ApprovalRule, stored: StoredAction, now: float) -> tuple[Deciders, ...]:
    """Return who may decide at the time `now`, in Unix seconds.

    The people of an escalation may decide once they were asked. They are asked early if the others
    cannot be reached.
    """
    if rule.escalation and any(each.is_escalation for each in requests_of(stored)):
        return (rule.by, rule.escalation.by)
    return rule.deciders_at(now - stored.shown_at)


def _voter_names(votes: Sequence[Vote]) -> str:
    """Return the names of the people who voted, as Markdown."""
    return ", ".join(literal(vote.shown_name) for vote in votes)


def _is_in_group(stored: StoredAction, vote: Vote) -> bool:
    """Return whether a vote answers a request to a group, in which all members read the replies."""
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


def _as_counted(counted: Tally, vote: Vote) -> Vote:
    """Return the vote as it was counted, with the name of its person."""
    votes = (*counted.yes, *counted.no)
    return next((each for each in votes if each.event_id == vote.event_id), vote)


def _decision_line(stored: StoredAction, language: str, counted: Tally | None = None) -> str:
    """Return who decided about an action and when. Without votes that decided it: the outcome text.

    The text has no result of a tool, which is for the asker only. `counted`: the votes that decided
    it; None: read them from the action, which was decided before.
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
        return texts.refused_by(_voter_names(deciding), at)
    return texts.agreed_by(_voter_names(deciding), at)


def _end_for_deciders(ended: StoredAction, language: str) -> str:
    """Return the text for people who agreed to an action that did not succeed, "" if it is done."""
    texts = texts_for(language)
    match ended.state:
        case "done":
            return ""
        case "failed" if ended.attempt_id:
            return texts.agreed_failed()
        case "started" | "unknown":
            return texts.agreed_unknown()
    return texts.agreed_not_done()


def _tell_voter(stored: StoredAction, vote: Vote, text: str, language: str) -> TurnAnswer:
    """Return the answer that sends a text to the voter only, and changes nothing."""
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
