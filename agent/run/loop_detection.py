"""LoopDetector: tells a run that goes in circles from one that gets somewhere."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sayso.agent.messages import ToolCall

#: What to do after a round: nothing, tell the model (`NUDGE`), or end the run.
LoopVerdict = Literal["", "nudge", "stop"]

LoopKind = Literal["", "repeated_round", "alternating_rounds"]

#: Told to the model once per loop, before the run is ended for it.
NUDGE = (
    "[Note of the platform, not of the user: you have made the same tool calls several times, and they gave the same "
    "results each time. Making them again changes nothing. Answer with what you know, try something else, or ask the "
    "user for what is missing.]"
)

#: Arguments come from models as JSON; what a program put there instead is told apart by its words for itself.
_spell = json.JSONEncoder(sort_keys=True, default=repr).encode
#: Rounds of the circles that are looked for: one round again and again, and two in turn.
_PERIODS = (1, 2)
#: What they are called, by the number of different rounds in them.
_KINDS: tuple[LoopKind, ...] = ("", "repeated_round", "alternating_rounds")


@dataclass(frozen=True, slots=True)
class LoopDetector:
    """How often a round, or a pair of rounds, may come before it counts as a loop. Holds nothing of any run."""

    max_repeats: int = 3

    def __post_init__(self) -> None:
        if self.max_repeats < 2:
            raise ValueError(f"max_repeats={self.max_repeats!r} sees a loop in every first round: use 2 or more")

    def watch(self) -> LoopWatch:
        """What watches one run."""
        return LoopWatch(self.max_repeats)


class LoopWatch:
    """Lives as long as one run, and remembers its last rounds."""

    def __init__(self, max_repeats: int) -> None:
        self._max_repeats = max_repeats
        self._rounds: deque[_Round] = deque(maxlen=max_repeats * max(_PERIODS))
        self._nudged: set[frozenset[str]] = set()

    def see(self, calls: Sequence[ToolCall], results: Sequence[str]) -> LoopVerdict:
        """One round more: its calls, and what the model was shown of each. Ids and the order of the calls do not count.

        The same calls with other results are no repetition: that is how one waits for something. The first time round
        is a nudge; whoever goes on, or comes back to the same loop, is stopped. Raises ValueError unless there is a
        result for each call.
        """
        self._rounds.append(_Round(zip(calls, results, strict=True)))
        loop = self._loop()
        if not loop:
            return ""
        if loop in self._nudged:
            return "stop"
        self._nudged.add(loop)
        return "nudge"

    @property
    def kind(self) -> LoopKind:
        """Which circle the last round was part of, for observers."""
        return _KINDS[len(self._loop())]

    def _loop(self) -> frozenset[str]:
        """The rounds that have repeated themselves up to now; none where there is no loop."""
        if len(self._rounds) < self._max_repeats:
            return frozenset()
        rounds = [each.digest for each in self._rounds]
        for period in _PERIODS:
            size = period * self._max_repeats
            if len(rounds) >= size and rounds[-size:] == rounds[-period:] * self._max_repeats:
                return frozenset(rounds[-period:])
        return frozenset()


class _Round:
    """Calls and their results, told from others by a digest; most runs end before any is needed."""

    def __init__(self, pairs: Iterable[tuple[ToolCall, str]]) -> None:
        self._pairs = list(pairs)

    @cached_property
    def digest(self) -> str:
        """The same for the same calls and results, in whatever order."""
        spelt = sorted((call.tool_name, _spell(call.parameters), result) for call, result in self._pairs)
        return hashlib.sha256(repr(spelt).encode()).hexdigest()
