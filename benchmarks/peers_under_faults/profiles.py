"""Profiles: the faults, each as what a person does and what goes wrong meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.peers_under_faults import effects
from benchmarks.peers_under_faults.cell import Act, Moment, Profile
from benchmarks.peers_under_faults.judge import Run

#: How long a question is open where it may expire, and when the late yes comes, in seconds.
EXPIRY, LATE = 3.0, 6.0
#: A kill at random comes within this time after the yes, in seconds.
RANDOM_SECONDS = 0.5
#: How long the model fails, in seconds.
FAILING_SECONDS = 4.0
STRANGER = 5_999_999_999


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table. `expiry` is how long questions are open, in seconds; 0: as is usual."""

    name: str
    profile: Profile
    expiry: float = 0.0


def no_fault(act: Act) -> Run:
    """Ask, answer yes."""
    first = act.orders[0]
    act.write(f"Refund order {first}.")
    act.yes(act.question(first))
    return act.settle([first], orders=[first])


def killed_at(moment: Moment) -> Profile:
    """Return a profile with a kill at one moment after the yes."""

    def profile(act: Act) -> Run:
        first = act.orders[0]
        act.write(f"Refund order {first}.")
        question = act.question(first)
        act.kill_at(moment)
        act.yes(question)
        return act.settle([first], orders=[first])

    return profile


def killed_at_random(act: Act) -> Run:
    """Kill at a random moment after the yes."""
    first = act.orders[0]
    act.write(f"Refund order {first}.")
    question = act.question(first)
    act.kill_within(RANDOM_SECONDS)
    act.yes(question)
    return act.settle([first], orders=[first])


def same_yes_twice_at_once(act: Act) -> Run:
    """Tap Yes twice, quickly."""
    first = act.orders[0]
    act.write(f"Refund order {first}.")
    question = act.question(first)
    act.yes(question)
    act.yes(question)
    return act.settle([first], orders=[first])


def same_yes_during_the_effect(act: Act) -> Run:
    """Tap Yes again while the tool is at its effect."""
    first = act.orders[0]
    act.write(f"Refund order {first}.")
    question = act.question(first)
    act.at_stage("after_effect", lambda: (act.yes(question), time.sleep(0.5)))
    act.yes(question)
    return act.settle([first], orders=[first])


def approved_twice(act: Act) -> Run:
    """Tap Yes, wait for the outcome, tap Yes again."""
    first = act.orders[0]
    act.write(f"Refund order {first}.")
    question = act.question(first)
    act.yes(question)
    act.wait_for_effect()
    time.sleep(1)
    act.yes(question)
    return act.settle([first], orders=[first])


def model_fails(status: int, **headers: str) -> Profile:
    """Return a profile in which the model fails for some seconds after the effect."""

    def profile(act: Act) -> Run:
        first = act.orders[0]
        act.write(f"Refund order {first}.")
        question = act.question(first)
        act.fail_model(status, FAILING_SECONDS, **headers)
        act.yes(question)
        return act.settle([first], orders=[first])

    return profile


def plain_message_before_the_yes(act: Act) -> Run:
    """Ask something else while the question is open, then tap Yes."""
    first = act.orders[0]
    act.write(f"Refund order {first}.")
    question = act.question(first)
    act.answer_in_words("Are you open on Sunday?")
    time.sleep(2)
    act.yes(question)
    return act.settle([first], refusable=True, orders=[first])


def another_person_approves(act: Act) -> Run:
    """Let another member of a group tap Yes."""
    act.in_a_group()
    first = act.orders[0]
    act.write(f"@acme_bot Refund order {first}.")
    act.yes(act.question(first), person=STRANGER)
    return act.settle([], orders=[first])


def late_yes(act: Act) -> Run:
    """Tap Yes after the time to answer is over."""
    first = act.orders[0]
    act.write(f"Refund order {first}.")
    question = act.question(first)
    time.sleep(LATE)
    act.yes(question)
    return act.settle([], orders=[first])


def arguments_changed_in_the_store(act: Act) -> Run:
    """Replace the order's number in the store, restart, tap Yes. Only what was shown may run."""
    first, second, _ = act.orders
    act.write(f"Refund order {first}.")
    question = act.question(first)
    time.sleep(0.5)
    act.cell.system.tamper(str(first), str(second))
    act.cell.system.restart()
    act.yes(question)
    return act.settle([first], refusable=True, orders=[first])


def new_code_with_another_meaning(act: Act) -> Run:
    """Deploy code in which the same tool does something else, then tap Yes."""
    first = act.orders[0]
    act.write(f"Refund order {first}.")
    question = act.question(first)
    act.cell.system.restart(**{effects.MEANING: "penalty"})
    act.yes(question)
    run = act.settle([first], refusable=True, orders=[first])
    act.cell.system.restart(**{effects.MEANING: "refund"})
    return run


def two_calls_with_one_decided(act: Act) -> Run:
    """Get two calls at once, tap Yes at the first question, and No at what is still open then."""
    first, second, _ = act.orders
    act.write(f"Refund orders {first} and {second} at once.")
    question = act.question(first)
    approved = [order for order in (first, second) if str(order) in question.text]
    act.yes(question)
    if len(approved) == 1:
        time.sleep(1.5)
        act.no(act.question(second))
    return act.settle(approved, orders=[first, second])


def second_approval_in_one_run(act: Act) -> Run:
    """Ask for two refunds one after the other, and tap Yes at each."""
    first, second, _ = act.orders
    act.write(f"Refund order {first}, then order {second}.")
    act.yes(act.question(first))
    act.yes_if_asked(second)
    return act.settle([first, second], orders=[first, second])


def three_steps_killed_in_each(act: Act) -> Run:
    """Ask for three refunds one after the other, and kill at random after each Yes."""
    numbers = ", then order ".join(str(order) for order in act.orders)
    act.write(f"Refund order {numbers}.")
    question = act.question(act.orders[0])
    for order in act.orders:
        if order != act.orders[0]:
            asked = act.asked(order)
            if asked is None:
                break
            question = asked
        act.kill_within(RANDOM_SECONDS)
        act.yes(question)
    return act.settle(act.orders)


def no_with_a_reason(act: Act) -> Run:
    """Answer "no" with a reason, which the model has to read."""
    first = act.orders[0]
    reason = f"wrong order {act.orders[1]}"
    act.write(f"Refund order {first}.")
    act.question(first)
    act.answer_in_words(f"no, {reason}")
    return act.settle([], reason=reason, orders=[first])


#: All faults, in the order of the table.
FAULTS = (
    Fault("no fault", no_fault),
    Fault("the same yes twice at once", same_yes_twice_at_once),
    Fault("the same yes during the effect", same_yes_during_the_effect),
    Fault("the same yes again afterwards", approved_twice),
    Fault("killed before the effect", killed_at("before effect")),
    Fault("killed after the effect, result not stored", killed_at("after effect")),
    Fault("killed between the result and the model", killed_at("tool returned")),
    Fault("killed at the model call after the effect", killed_at("model call")),
    Fault("killed at the first reply", killed_at("first reply")),
    Fault("killed right after the first reply", killed_at("outcome told")),
    Fault("killed at the model's reply", killed_at("model's reply")),
    Fault("killed at random within 0.5 s", killed_at_random),
    Fault("the model is down after the effect", model_fails(0)),
    Fault("the model answers 400 after the effect", model_fails(400)),
    Fault("the model answers 429 after the effect", model_fails(429, Retry_After="1")),
    Fault("a plain message before the yes", plain_message_before_the_yes),
    Fault("another person approves", another_person_approves),
    Fault("a late yes", late_yes, expiry=EXPIRY),
    Fault("arguments changed in the store", arguments_changed_in_the_store),
    Fault("new code with another meaning", new_code_with_another_meaning),
    Fault("two calls at once, one approved", two_calls_with_one_decided),
    Fault("a second approval in one run", second_approval_in_one_run),
    Fault("three steps, killed at random in each", three_steps_killed_in_each),
    Fault("a no with a reason", no_with_a_reason),
)
