"""LoopDetector: notices when a model makes the same tool calls again and gets the same results.

A round is one answer of the model with its tool calls, and their results. A loop is one round that
repeats, or two rounds that alternate. LoopDetector is the setting, LoopWatch compares the rounds of
one run.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sayso.agent.messages import ToolCall

#: What to do after a round of tool calls: "" nothing, "nudge" warn the model (`NUDGE`), "stop" end
#: the run.
LoopVerdict = Literal["", "nudge", "stop"]
#: The kind of loop: one round again and again, or two rounds in turn; "" for no loop.
LoopKind = Literal["", "repeated_round", "alternating_rounds"]

#: The warning for the model. Sent once per loop, before the run is ended.
NUDGE = (
    "[Note of the platform, not of the user: you have made the same tool calls several times, and "
    "they gave the same results each time. Making them again changes nothing. Answer with what you "
    "know, try something else, or ask the user for what is missing.]"
)

#: Writes arguments so that they can be compared. They come from models as JSON; other values are
#: compared by their `repr`.
_to_json = json.JSONEncoder(sort_keys=True, default=repr).encode
#: Numbers of rounds in the loops that are detected: one repeated round, and two alternating ones.
_PERIODS = (1, 2)
#: The kinds of loop, by the number of different rounds in it.
_KINDS: dict[int, LoopKind] = {0: "", 1: "repeated_round", 2: "alternating_rounds"}


@dataclass(frozen=True, slots=True)
class LoopDetector:
    """The setting of an agent for loops. One detector serves all its runs.

    Raises ValueError for a `max_repeats` below 2.
    """

    #: How often a round, or a pair of rounds, must come in a row to count as a loop.
    max_repeats: int = 3

    def __post_init__(self) -> None:
        if self.max_repeats < 2:
            raise ValueError(
                f"max_repeats={self.max_repeats!r} sees a loop in every first round: use 2 or more"
            )

    def watch(self) -> LoopWatch:
        """Return what compares the rounds of one run."""
        return LoopWatch(self.max_repeats)


class LoopWatch:
    """Compares the last rounds of one run. Lives as long as that run."""

    def __init__(self, max_repeats: int) -> None:
        self._max_repeats = max_repeats
        #: The last rounds, each as its calls with their results.
        self._rounds: deque[list[tuple[ToolCall, str]]] = deque(maxlen=max_repeats * max(_PERIODS))
        #: The loops that the model was warned of, each as the digests of its rounds.
        self._nudged: set[frozenset[str]] = set()

    def add_round(self, calls: Sequence[ToolCall], results: Sequence[str]) -> LoopVerdict:
        """Add a round, and return what to do. `results` has the result of each call, in order.

        The ids and the order of the calls make no difference. The same calls with other results are
        no loop, because a run may wait for something in this way. A loop that is seen for the first
        time gets "nudge". If the model continues it or returns to it later, it gets "stop". Raises
        ValueError unless each call has a result.
        """
        self._rounds.append(list(zip(calls, results, strict=True)))
        loop = self._loop()
        if not loop:
            return ""
        if loop in self._nudged:
            return "stop"
        self._nudged.add(loop)
        return "nudge"

    @property
    def kind(self) -> LoopKind:
        """The kind of loop that the last round was part of, for observers."""
        return _KINDS[len(self._loop())]

    def _loop(self) -> frozenset[str]:
        """Return the digests of the rounds that repeat, or an empty set."""
        # Most runs have too few rounds for a loop: then nothing is hashed.
        if len(self._rounds) < self._max_repeats:
            return frozenset()

        rounds = [_digest(each) for each in self._rounds]
        for period in _PERIODS:
            size = period * self._max_repeats
            if len(rounds) >= size and rounds[-size:] == rounds[-period:] * self._max_repeats:
                return frozenset(rounds[-period:])
        return frozenset()


def _digest(round_: Sequence[tuple[ToolCall, str]]) -> str:
    """Return a digest of the calls and results of a round. Order and ids make no difference."""
    texts = sorted((call.tool_name, _to_json(call.parameters), result) for call, result in round_)
    return hashlib.sha256(repr(texts).encode()).hexdigest()
