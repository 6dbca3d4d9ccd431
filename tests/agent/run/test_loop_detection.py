"""LoopDetector: a run that repeats itself gets one note and is then stopped; a run with progress continues."""

from __future__ import annotations

import pytest

from sayso.agent.guards.loop_detection import LoopDetector, LoopWatch
from sayso.agent.messages import ToolCall


def rounds(watch: LoopWatch, letters: str, result: str = "same") -> list[str]:
    """Return the verdict after each round; each letter is a round with one call."""
    return [
        watch.add_round([ToolCall("find", {"what": letter}, id=str(at))], [result])
        for at, letter in enumerate(letters)
    ]


def test_repeated_round_is_noted_and_stopped() -> None:
    """The third round gives a nudge and the fourth a stop; new call ids make no difference."""
    assert rounds(LoopDetector().watch(), "aaaa") == ["", "", "nudge", "stop"]


def test_alternating_rounds_are_noted_and_stopped() -> None:
    """The third pair gives a nudge, and the next round a stop."""
    assert rounds(LoopDetector().watch(), "xababab" + "a") == [""] * 6 + ["nudge", "stop"]


def test_loop_that_resumes_after_the_nudge_is_stopped() -> None:
    """One other round in between is no progress if the same loop starts again."""
    assert rounds(LoopDetector().watch(), "aaabaaa") == ["", "", "nudge", "", "", "", "stop"]


def test_second_loop_gets_its_own_nudge() -> None:
    """The run has left the first loop for good."""
    assert rounds(LoopDetector().watch(), "aaabbb")[-1] == "nudge"


def test_polling_is_no_loop() -> None:
    """The same call with a new result each time is progress, alone or alternating with another."""
    watch = LoopDetector().watch()
    said = [watch.add_round([ToolCall("status")], [f"{percent} %"]) for percent in range(20)]
    for percent in range(20):
        said += [*rounds(watch, "a"), watch.add_round([ToolCall("status")], [f"{percent} %"])]
    assert set(said) == {""}


def test_longer_cycles_are_left_to_the_step_limit() -> None:
    """Only cycles of one and two rounds are detected."""
    assert set(rounds(LoopDetector().watch(), "abc" * 7)) == {""}


def test_order_of_calls_and_arguments_does_not_matter() -> None:
    """Parallel calls may arrive in any order."""
    watch = LoopDetector(max_repeats=2).watch()
    one, other = ToolCall("add", {"x": 1, "y": 2}), ToolCall("now")
    assert watch.add_round([one, other], ["3", "noon"]) == ""
    assert watch.add_round([other, ToolCall("add", {"y": 2, "x": 1})], ["noon", "3"]) == "nudge"


def test_swapped_results_are_another_round() -> None:
    """Results are compared with their calls."""
    watch = LoopDetector(max_repeats=2).watch()
    calls = [ToolCall("a"), ToolCall("b")]
    assert [watch.add_round(calls, ["1", "2"]), watch.add_round(calls, ["2", "1"])] == ["", ""]


def test_unserializable_arguments_can_be_compared() -> None:
    """A provider may return any value as an argument."""
    watch = LoopDetector(max_repeats=2).watch()
    call = ToolCall("a", {"x": {1, 2}, "y": float("nan"), "z": "\ud800"})
    assert [watch.add_round([call], ["\ud800"]), watch.add_round([call], ["\ud800"])] == [
        "",
        "nudge",
    ]


def test_runs_are_independent() -> None:
    """One detector serves many runs."""
    detector = LoopDetector()
    assert [rounds(detector.watch(), "aa"), rounds(detector.watch(), "aa")] == [["", ""], ["", ""]]


def test_limit_of_one_repeat_is_refused() -> None:
    """It would stop every run."""
    with pytest.raises(ValueError, match="use 2 or more"):
        LoopDetector(max_repeats=1)


def test_kind_of_the_loop_is_reported() -> None:
    """It is reported while the loop lasts."""
    watch = LoopDetector().watch()
    kinds = []
    for letters in ("aaa", "b", "ababab"):
        rounds(watch, letters)
        kinds.append(watch.kind)
    assert kinds == ["repeated_round", "", "alternating_rounds"]
