"""The benchmark of peers under faults: its judge and its model, which every verdict rests on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.peers_under_faults import judge
from benchmarks.peers_under_faults.model import SIGNATURE, BadHistory, answer

DONE = f"{SIGNATURE}: order 410011 is refunded."
UNCLEAR = (
    "I was interrupted while doing this: Refund order 410011\nI cannot tell whether it finished."
)
DENIED = "You did not say yes, so nothing was done: Refund order 410011"
CLOSED = "This is no longer open."
REFUND, OTHER, PENALTY = (410011, "refund"), (410012, "refund"), (410011, "penalty")


def run(texts: list[str], *effects: tuple[int, str], **other: Any) -> judge.Run:
    """Return a run about order 410011, which was approved."""
    values: dict[str, Any] = {"orders": (410011,), "approved": (410011,), **other}
    return judge.Run(effects=Counter(effects), texts=texts, **values)


@pytest.mark.parametrize(
    ("left", "verdict"),
    [
        (run([DONE], REFUND), "once and told"),
        (run(["Refunded order 410011."], REFUND), "once and told"),
        (run([UNCLEAR, DONE], REFUND), "once and told"),
        (run([UNCLEAR], REFUND), "cannot tell"),
        (run([UNCLEAR]), "cannot tell"),
        (run([], REFUND), "not told"),
        (run([]), "lost"),
        (run([], refusable=True), "not told"),
        (run([DENIED]), "lost"),
        (run([DENIED], refusable=True), "refused"),
        (run([CLOSED], refusable=True), "refused"),
        (run([CLOSED]), "wrong"),
        (run([CLOSED], REFUND), "wrong"),
        (run([DENIED], REFUND), "wrong"),
        (run([DONE]), "wrong"),
        (run([UNCLEAR, DONE]), "wrong"),
        (run([DONE], PENALTY), "wrong"),
        (run([DONE], REFUND, OTHER), "wrong"),
        (run([DONE], REFUND, REFUND), "doubled"),
        (run([DONE], REFUND, is_alive=False), "stuck"),
        (run([CLOSED], is_alive=False), "wrong"),
        (run([], is_alive=False), "stuck"),
        (run([DENIED], approved=()), "refused"),
        (run([], approved=()), "not told"),
        (run([DENIED], approved=(), reason_read=False), "not told"),
        (run([DONE], REFUND, approved=()), "wrong"),
    ],
)
def test_judge_gives_each_run_its_verdict(left: judge.Run, verdict: str) -> None:
    """The verdict follows from the effects and from what the person read, whichever bot it was."""
    assert judge.judge(left) == verdict


def called(content: str, *, order: int = 410011, call: str = "call_0") -> list[dict[str, Any]]:
    """Return the messages of one call and its result."""
    made = {"name": "refund_order", "arguments": f'{{"order": {order}}}'}
    calls = [{"id": call, "type": "function", "function": made}]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": call, "content": content},
    ]


ASKED = {"role": "user", "content": "Refund order 410011, then order 410012."}


def test_model_goes_step_by_step_and_tells_what_it_read() -> None:
    """The second call follows the first result, and the answer follows the second."""
    first = called("Refunded order 410011.")
    second = called('{"outcome": "denied", "words": "no"}', order=410012, call="call_1")
    assert answer([ASKED])["tool_calls"][0]["function"]["arguments"] == '{"order": 410011}'
    assert "410012" in answer([ASKED, *first])["tool_calls"][0]["function"]["arguments"]
    said = answer([ASKED, *first, *second])["content"]
    assert "order 410011 is refunded. order 410012 is not refunded" in said


def test_model_asks_again_for_what_it_does_not_see_done() -> None:
    """A result that says nothing of the order makes the model call again, under a new id."""
    again = answer([ASKED, *called("You have been asked.")])["tool_calls"][0]
    assert (again["id"], again["function"]["arguments"]) == ("call_1", '{"order": 410011}')


@pytest.mark.parametrize(
    "history",
    [
        [ASKED, called("")[0]],
        [ASKED, called("")[0], {"role": "user", "content": "Are you open?"}],
        [ASKED, *called("done"), called("done")[1]],
        [ASKED, called("done")[1]],
        [ASKED, *called("done"), *called("done")],
    ],
)
def test_model_refuses_an_open_call_and_a_second_result(history: list[dict[str, Any]]) -> None:
    """OpenAI answers 400 to each of these histories."""
    with pytest.raises(BadHistory):
        answer(history)
