"""Mutants: deliberately broken rules about votes. The machine must catch every one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sayso.agent.channel import approval_votes
from sayso.agent.channel.approval_answers import ApprovalAnswers
from sayso.agent.channel.approval_questions import ApprovalQuestions
from sayso.agent.channel.approval_votes import ApprovalVotes
from sayso.channels.types import Conversation
from sayso.pending import settlement
from sayso.pending.approvals import votes
from sayso.pending.approvals.approvers import Approvers, Decider
from sayso.pending.approvals.people import Account, KnownPerson, account_name
from sayso.pending.approvals.votes import Tally, Vote
from tests.model.mutants import Mutant


def _after(owner: Any, name: str, wrap: Any) -> dict[tuple[Any, str], Any]:
    """Return the replacement of a function by `wrap`, which gets the original first."""
    whole = owner.__dict__[name]
    return {(owner, name): lambda *args, **options: wrap(whole, *args, **options)}


def _code(name: str, *changes: dict[tuple[Any, str], Any]) -> Mutant:
    """Return a mutant of Python code."""
    return Mutant(name, python={at: broken for each in changes for at, broken in each.items()})


def _genuine(*_: Any) -> bool:
    return True


async def _anybody(_: Any, approvers: Approvers, vote: Vote, *__: Any, **___: Any) -> Any:
    return Decider(await approvers.person_of(vote.channel, vote.user_ids))


async def _as_when_asked(
    whole: Any, approvers: Approvers, vote: Vote, *args: Any, **options: Any
) -> Any:
    """Let everybody decide who got a request to themselves, whatever role they have by now."""
    person = await whole(approvers, vote, *args, **options)
    is_direct = vote.conversation == Conversation("team", vote.user_id).id
    if person is None and is_direct and vote.user_id in ("bea", "cem"):
        return Decider(await approvers.person_of(vote.channel, vote.user_ids))
    return person


async def _accounts(_: Any, approvers: Approvers, vote: Vote, *args: Any, **options: Any) -> Any:
    """Take each account for a person."""
    if await _WHOLE_MAY_DECIDE(approvers, vote, *args, **options) is None:
        return None
    account = Account(vote.channel, vote.user_id)
    return Decider(KnownPerson(account_name(account), (account,)))


_WHOLE_MAY_DECIDE = Approvers.may_decide


def _by_message(rule: Any, all_votes: Any) -> Tally:
    """Count each answer, also several of one person."""
    each_alone = [replace(vote, person=vote.event_id, known_as=()) for vote in all_votes]
    return _WHOLE_TALLY(rule, each_alone)


_WHOLE_TALLY = votes.tally


def _one_is_enough(rule: Any, all_votes: Any) -> Tally:
    return _WHOLE_TALLY(replace(rule, need=1), all_votes)


def _deaf_to_no(rule: Any, all_votes: Any) -> Tally:
    yes = [vote for vote in all_votes if vote.answer == "yes"]
    return _WHOLE_TALLY(rule, yes)


def _by_arrival(rule: Any, all_votes: Any) -> Tally:
    """Let the vote count that came in last, and not the one that was given last."""
    in_order = [replace(vote, at=float(at)) for at, vote in enumerate(all_votes)]
    return _WHOLE_TALLY(rule, in_order)


async def _unstored(_: Any, _part: Any, _context: Any, stored: Any, vote: Vote) -> Any:
    lines = [*stored.votes_text.splitlines(), vote.to_json()]
    return replace(stored, votes_text="\n".join(lines))


def _agreed_always(*_: Any) -> bool:
    return True


def _never_expired(whole: Any, part: ApprovalVotes, context: Any, *args: Any) -> Any:
    return whole(part, replace(context, received_at=0.0), *args)


def _no_endings(*_: Any, **__: Any) -> tuple[()]:
    return ()


def _nothing_told(whole: Any, *_: Any) -> Any:
    return approval_votes.NO_ANSWER


async def _refuses_nobody(*_: Any) -> str:
    return ""


_SETTLEMENT_OPEN = {(settlement, "_have_others_agreed"): _agreed_always}

VOTE_MUTANTS = (
    _code("the seal of a vote is not checked", {(Vote, "is_genuine"): _genuine}),
    _code("anybody may decide", _after(Approvers, "may_decide", _anybody)),
    _code(
        "the asker is counted",
        _after(Approvers, "may_decide", _anybody),
        {(ApprovalAnswers, "_why_not"): _refuses_nobody},
        _SETTLEMENT_OPEN,
    ),
    _code("the role at the question counts", _after(Approvers, "may_decide", _as_when_asked)),
    _code("each account is a person", _after(Approvers, "may_decide", _accounts)),
    _code("one person counts twice", {(approval_votes, "tally"): _by_message}, _SETTLEMENT_OPEN),
    _code("one yes is enough", {(approval_votes, "tally"): _one_is_enough}, _SETTLEMENT_OPEN),
    _code("a no does not count", {(approval_votes, "tally"): _deaf_to_no}),
    _code("the last vote to arrive counts", {(approval_votes, "tally"): _by_arrival}),
    _code("a vote is not stored before the claim", _after(ApprovalVotes, "_with_vote", _unstored)),
    _code("requests are not ended", {(ApprovalQuestions, "endings"): _no_endings}),
    _code("a failed vote is silent", _after(ApprovalVotes, "failed", _nothing_told)),
    Mutant(
        "a vote that came too late counts",
        {"claim": [("if decided_at >= (tonumber(expires_at) or 0) then", "if false then")]},
        _after(ApprovalVotes, "_answer_vote", _never_expired),
    ),
    Mutant(
        "what is forwarded twice arrives twice",
        {
            name: [("if earlier then return earlier end", "")]
            for name in ("forward_turn", "forward_question", "end_question", "forward_reply")
        },
    ),
    Mutant(
        "a forwarded vote counts from its arrival",
        {"forward_turn": [("math.min(now(), args.received_at)", "now()")]},
    ),
    Mutant(
        "a vote takes the place of all before it",
        {"*": [("if votes then vote = votes .. '\\n' .. vote end", "")]},
    ),
    Mutant(
        "a late end does not close a request",
        {"end_question": [("redis.call('HSET', key, 'late_ending', ARGV[2])", "")]},
    ),
    Mutant(
        "nobody learns of a request that did not arrive",
        {"*": [("redis.call('HDEL', action_key(action_id), 'undelivered')", "do return end")]},
    ),
)
