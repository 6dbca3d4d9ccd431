"""Schedules that break a rule about votes which random ones seldom meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.model.votes.facts import CHATS, GROUP, HOME, WITHIN
from tests.model.votes.stage import VoteStage


def forge_a_vote(stage: VoteStage) -> None:
    """Copy bea's stored yes for cem, and let bea say yes again."""
    stage.ask("payout")
    stage.answer("bea", "yes", "tap")
    stage.work_all()
    stage.tamper("votes")
    stage.answer("bea", "yes", "tap")
    stage.work_all()


def vote_with_two_accounts(stage: VoteStage) -> None:
    """Let bea say yes with both of her accounts, where two people must."""
    stage.ask("wire")
    for account in ("bea", "bea2"):
        stage.answer(account, "yes", "tap")
        stage.work_all()


def change_a_vote_that_is_held_up(stage: VoteStage) -> None:
    """Let bea say yes in the group, then no in her own chat. The yes arrives last."""
    stage.ask("payout")
    stage.answer("bea", "yes", "in group")
    stage.bot.pass_time(1.0)
    stage.answer("bea", "no", "tap")
    stage.work(CHATS["bea"])
    stage.work(HOME)
    stage.work(GROUP)
    stage.work(HOME)
    stage.answer("cem", "yes", "tap")
    stage.work_all()


def vote_in_time_and_arrive_late(stage: VoteStage) -> None:
    """Let bea say yes a second before the end. It reaches the action a second after the end."""
    stage.ask("refund")
    stage.bot.pass_time(WITHIN - 1)
    stage.answer("bea", "yes", "tap")
    stage.bot.pass_time(2.0)
    stage.work(CHATS["bea"])
    stage.work(HOME)


def die_after_forwarding(stage: VoteStage) -> None:
    """Let the worker of bea's chat die before it knows that her vote was forwarded."""
    stage.ask("refund")
    stage.answer("bea", "yes", "tap")
    worker = stage.worker(CHATS["bea"])
    assert stage.go_to(worker, ("forward_entry", "after"))
    stage.end(worker, "burial")
    stage.work(CHATS["bea"])
    stage.work_all()


def lose_the_role_between_request_and_answer(stage: VoteStage) -> None:
    """Let bea say yes after she has lost the role."""
    stage.ask("refund")
    stage.bot.team.set_manager("bea", is_manager=False)
    stage.answer("bea", "yes", "tap")
    stage.work_all()


def fail_while_a_vote_is_counted(stage: VoteStage) -> None:
    """Let the time of the turn be over before bea's vote is stored."""
    stage.ask("payout")
    stage.answer("bea", "yes", "tap")
    stage.work(CHATS["bea"])
    worker = stage.worker(HOME)
    assert stage.go_to(worker, ("change", "before"))
    stage.end(worker, "time out")


def answer_one_after_the_other(stage: VoteStage) -> None:
    """Let three people answer. The first and the last no decide together."""
    stage.bot.team.set_manager("dan", is_manager=True)
    stage.ask("payout")
    for person, answer in (("bea", "no"), ("cem", "yes"), ("dan", "no")):
        stage.answer(person, answer, "tap")
        stage.work_all()


#: The schedule that catches a broken rule, by its name in `mutants.py`.
SCHEDULES: Mapping[str, Callable[[VoteStage], None]] = {
    "the seal of a vote is not checked": forge_a_vote,
    "each account is a person": vote_with_two_accounts,
    "the last vote to arrive counts": change_a_vote_that_is_held_up,
    "a forwarded vote counts from its arrival": vote_in_time_and_arrive_late,
    "what is forwarded twice arrives twice": die_after_forwarding,
    "the role at the question counts": lose_the_role_between_request_and_answer,
    "a vote takes the place of all before it": answer_one_after_the_other,
    "a failed vote is silent": fail_while_a_vote_is_counted,
}
