"""LoopDetector: who goes in circles is told once, then stopped; who gets somewhere is left alone."""

from __future__ import annotations

import pytest

from sayso.agent.guards.loop_detection import LoopDetector, LoopWatch
from sayso.agent.messages import ToolCall


def rounds(watch: LoopWatch, letters: str, result: str = "same") -> list[str]:
    """What is said after each round; a letter is a round with one call of its own."""
    return [
        watch.add_round([ToolCall("find", {"what": letter}, id=str(at))], [result]) for at, letter in enumerate(letters)
    ]


def test_same_round_again_and_again() -> None:
    """A nudge at the third, the end at the fourth; ids of calls do not make them new."""
    assert rounds(LoopDetector().watch(), "aaaa") == ["", "", "nudge", "stop"]


def test_two_rounds_in_turn() -> None:
    """A nudge when the pair came for the third time, the end with the next."""
    assert rounds(LoopDetector().watch(), "xababab" + "a") == [""] * 6 + ["nudge", "stop"]


def test_return_to_a_loop_after_the_nudge() -> None:
    """Something else in between is no progress, if the same circle begins anew."""
    assert rounds(LoopDetector().watch(), "aaabaaa") == ["", "", "nudge", "", "", "", "stop"]


def test_second_loop_has_its_own_nudge() -> None:
    """Whoever left one circle for good may be told of another."""
    assert rounds(LoopDetector().watch(), "aaabbb")[-1] == "nudge"


def test_waiting_for_something_is_no_loop() -> None:
    """The same call with a new result each time got somewhere, alone or in turn with another."""
    watch = LoopDetector().watch()
    said = [watch.add_round([ToolCall("status")], [f"{percent} %"]) for percent in range(20)]
    for percent in range(20):
        said += [*rounds(watch, "a"), watch.add_round([ToolCall("status")], [f"{percent} %"])]
    assert set(said) == {""}


def test_three_rounds_in_turn_are_left_to_the_limit_of_steps() -> None:
    """Only circles of one and of two are looked for."""
    assert set(rounds(LoopDetector().watch(), "abc" * 7)) == {""}


def test_order_of_calls_and_of_arguments_does_not_count() -> None:
    """Parallel calls come in any order."""
    watch = LoopDetector(max_repeats=2).watch()
    one, other = ToolCall("add", {"x": 1, "y": 2}), ToolCall("now")
    assert watch.add_round([one, other], ["3", "noon"]) == ""
    assert watch.add_round([other, ToolCall("add", {"y": 2, "x": 1})], ["noon", "3"]) == "nudge"


def test_results_belong_to_their_calls() -> None:
    """Two calls that swapped results are another round."""
    watch = LoopDetector(max_repeats=2).watch()
    calls = [ToolCall("a"), ToolCall("b")]
    assert [watch.add_round(calls, ["1", "2"]), watch.add_round(calls, ["2", "1"])] == ["", ""]


def test_arguments_that_are_no_json_can_be_compared() -> None:
    """A provider may put anything there."""
    watch = LoopDetector(max_repeats=2).watch()
    call = ToolCall("a", {"x": {1, 2}, "y": float("nan"), "z": "\ud800"})
    assert [watch.add_round([call], ["\ud800"]), watch.add_round([call], ["\ud800"])] == ["", "nudge"]


def test_runs_know_nothing_of_each_other() -> None:
    """One detector serves many."""
    detector = LoopDetector()
    assert [rounds(detector.watch(), "aa"), rounds(detector.watch(), "aa")] == [["", ""], ["", ""]]


def test_one_repeat_is_none() -> None:
    """A limit that stops every run is a mistake."""
    with pytest.raises(ValueError, match="use 2 or more"):
        LoopDetector(max_repeats=1)


def test_observers_hear_which_circle_it_is() -> None:
    """While it goes on."""
    watch = LoopDetector().watch()
    kinds = []
    for letters in ("aaa", "b", "ababab"):
        rounds(watch, letters)
        kinds.append(watch.kind)
    assert kinds == ["repeated_round", "", "alternating_rounds"]
