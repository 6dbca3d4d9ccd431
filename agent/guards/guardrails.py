"""Guardrails: checks of the texts of users (input) and of the answers of models (output).

A guardrail is one check. GuardrailsPipeline runs several, and `apply_guardrails` runs a pipeline in
a run of an agent. A text that fails a check is said to trip the guardrail. The built-in guardrails
are at the end: LengthGuardrail, PatternGuardrail, TopicGuardrail and InjectionGuardrail.
"""

from __future__ import annotations

import logging
import re
import time
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from sayso.agent.observability.run_events import RunEvents
from sayso.agent.tools.screening import plain_text_of, suspicions
from sayso.infra.concurrency import await_isolated, call_in_tool_thread, run_sync

log = logging.getLogger(__name__)

#: How many characters of a guardrail's reason observers receive.
MAX_DETAIL_CHARS = 200
#: What PatternGuardrail puts in place of a match.
REDACTED = "[redacted]"
#: Letters of scripts without spaces between words. In these, a denied word is also found inside a
#: longer run of letters.
_UNSPACED_SCRIPT = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
)
#: Whether a text is the user's input or the model's output.
GuardStage = Literal["input", "output"]


class GuardrailAction(StrEnum):
    """What to do with a text that fails a check."""

    #: End the run.
    BLOCK = "block"
    #: Go on with another text, which the guardrail returns.
    REWRITE = "rewrite"
    #: Go on with the text, and only report it.
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Trip:
    """One failed check of a text, as observers receive it."""

    guardrail_name: str
    action: GuardrailAction
    #: The reason. It contains nothing of the text.
    detail: str


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """The result of one guardrail, or of a pipeline."""

    #: Whether the text may be used. A pipeline passes a text that guardrails only warned of.
    passed: bool
    #: The text to go on with.
    content: str
    #: Why the text failed; None if it passed.
    reason: str | None = None
    #: At which guardrail it failed, or which one checked it; None for a pipeline that passed.
    guardrail_name: str | None = None
    #: All failed checks of a pipeline, also of guardrails that only warned or rewrote the text.
    trips: tuple[Trip, ...] = ()


class Guardrail:
    """Base of guardrails: override `check`, or `acheck` if it awaits something.

    One instance serves all runs of an agent at once.
    """

    #: The name in logs, events and reasons.
    name: str = "guardrail"
    #: What happens to a text that fails the check.
    action: GuardrailAction = GuardrailAction.BLOCK
    #: Whether `check` may block, so that it must run in a thread. False for a check that only reads
    #: the text.
    blocking: bool = True

    def check(self, content: str) -> GuardrailResult:
        """Check a text, and return `self.passed(...)` or `self.tripped(...)`.

        The reason goes to observers and logs, so it must not quote the text.
        """
        raise NotImplementedError(
            f"{type(self).__name__} checks nothing: write its check or its acheck"
        )

    async def acheck(self, content: str) -> GuardrailResult:
        """Do the same as `check`, without blocking the event loop."""
        if self.blocking:
            return await call_in_tool_thread(lambda: self.check(content))
        return self.check(content)

    def passed(self, content: str) -> GuardrailResult:
        """Return the result for a text that is fine."""
        return GuardrailResult(True, content, guardrail_name=self.name)

    def tripped(self, content: str, reason: str) -> GuardrailResult:
        """Return the result for a text that fails. With REWRITE, `content` replaces the text."""
        return GuardrailResult(False, content, reason=reason, guardrail_name=self.name)


class GuardrailsPipeline:
    """Runs the `input` guardrails on the user's text, the `output` guardrails on the answer.

    They run in order, and each gets the text that the one before it returned. The first that blocks
    ends the check. A guardrail that raises an error blocks too, whatever its action.
    """

    def __init__(self, input: Sequence[Guardrail] = (), output: Sequence[Guardrail] = ()) -> None:
        self.input = tuple(input)
        self.output = tuple(output)

    async def acheck_input(self, content: str) -> GuardrailResult:
        """Check the user's text. The result's `content` is for the model. Never raises."""
        return await _run(self.input, content)

    async def acheck_output(self, content: str) -> GuardrailResult:
        """Check an answer. The result's `content` is for the user. Never raises."""
        return await _run(self.output, content)

    def check_input(self, content: str) -> GuardrailResult:
        """Do the same as `acheck_input`, for sync code."""
        return run_sync(self.acheck_input(content))

    def check_output(self, content: str) -> GuardrailResult:
        """Do the same as `acheck_output`, for sync code."""
        return run_sync(self.acheck_output(content))


async def _run(guardrails: Sequence[Guardrail], content: str) -> GuardrailResult:
    """Run guardrails in order, and stop at the first that blocks the text."""
    trips: list[Trip] = []
    for guardrail in guardrails:
        result, action = await _check(guardrail, content)
        if result.passed:
            continue

        detail = (result.reason or "no reason given")[:MAX_DETAIL_CHARS]
        trip = Trip(guardrail.name, action, detail)
        trips.append(trip)
        if action is GuardrailAction.BLOCK:
            return GuardrailResult(
                passed=False,
                content=content,
                reason=trip.detail,
                guardrail_name=trip.guardrail_name,
                trips=tuple(trips),
            )
        if action is GuardrailAction.REWRITE:
            content = result.content
    return GuardrailResult(True, content, trips=tuple(trips))


async def _check(guardrail: Guardrail, content: str) -> tuple[GuardrailResult, GuardrailAction]:
    """Return the guardrail's result and its action.

    A guardrail that raises an error, or returns no GuardrailResult, blocks the text.
    """
    try:
        result: object = await await_isolated(guardrail.acheck(content))
        if not isinstance(result, GuardrailResult) or not isinstance(result.content, str):
            # A guardrail written as a predicate would otherwise let every text through.
            raise TypeError(
                f"a guardrail returned {type(result).__name__}: "
                "return a GuardrailResult with a text"
            )
        return result, GuardrailAction(guardrail.action)
    except Exception as exc:  # only its class is reported: its text may quote the content
        error = type(exc).__name__
        log.warning("guardrail.failed", extra={"guardrail": guardrail.name, "reason": error})
        problem = f"the guardrail {guardrail.name!r} failed: {error}"
        failure = GuardrailResult(False, content, reason=problem, guardrail_name=guardrail.name)
        return failure, GuardrailAction.BLOCK


class GuardrailBlocked(Exception):
    """Raised when a guardrail blocks a text. The error's own text is for logs and observers."""


async def apply_guardrails(
    pipeline: GuardrailsPipeline, stage: GuardStage, text: str, events: RunEvents
) -> str:
    """Return the text to go on with. Raises GuardrailBlocked if a guardrail blocks it.

    Every failed check is first written to the trace of the run (`events`) and reported to its
    observers.
    """
    began = time.perf_counter()
    if stage == "input":
        result = await pipeline.acheck_input(text)
    else:
        result = await pipeline.acheck_output(text)

    for trip in result.trips:
        name = trip.guardrail_name
        action = trip.action.value
        events.note(
            "guardrail", began=began, summary=f"{stage} guardrail {name}: {action} ({trip.detail})"
        )
        await events.tell("guardrail_triggered", stage, name, action, trip.detail)
    if not result.passed:
        raise GuardrailBlocked(
            f"{stage} guardrail {result.guardrail_name!r} blocked: {result.reason}"
        )
    return result.content


class LengthGuardrail(Guardrail):
    """Requires `min_chars` to `max_chars` characters, without surrounding whitespace.

    `max_chars` None is no limit. REWRITE shortens the text. Raises ValueError for limits that no
    text fulfills, and for REWRITE with a `min_chars`.
    """

    name = "length"
    blocking = False

    def __init__(
        self,
        max_chars: int | None = None,
        min_chars: int = 0,
        *,
        action: GuardrailAction = GuardrailAction.BLOCK,
    ) -> None:
        if max_chars is not None and max_chars < max(min_chars, 1):
            raise ValueError(
                f"max_chars={max_chars!r} lets no text through: use {max(min_chars, 1)} or more"
            )
        if min_chars and action == GuardrailAction.REWRITE:
            raise ValueError(
                f"min_chars={min_chars!r} cannot be had by rewriting: use BLOCK or WARN"
            )
        self.action = GuardrailAction(action)
        self._max_chars = max_chars
        self._min_chars = min_chars

    def check(self, content: str) -> GuardrailResult:
        """Check the length. The reason has the actual and the allowed number of characters."""
        chars = len(content.strip())
        if self._max_chars is not None and chars > self._max_chars:
            shortened = content.strip()[: self._max_chars]
            return self.tripped(
                shortened, f"{chars} characters, at most {self._max_chars} are allowed"
            )
        if chars < self._min_chars:
            return self.tripped(
                content, f"{chars} characters, at least {self._min_chars} are needed"
            )
        return self.passed(content)


class PatternGuardrail(Guardrail):
    """Forbids texts that match a regular expression. REWRITE replaces each match by "[redacted]".

    The patterns run on untrusted text: nested repetition, as in `(a+)+`, can take exponential time.
    Raises ValueError without patterns, and for one that matches an empty text.
    """

    name = "pattern"
    blocking = False

    def __init__(
        self,
        patterns: Iterable[str | re.Pattern[str]],
        action: GuardrailAction = GuardrailAction.BLOCK,
    ) -> None:
        pattern_list: list[str | re.Pattern[str]] = []
        if not isinstance(patterns, str):  # a text would be read as one pattern a character
            pattern_list = list(patterns)
        if not pattern_list:
            raise ValueError(
                f"patterns={patterns!r} is no list of patterns: give at least one, in a list"
            )
        self.action = GuardrailAction(action)
        self._patterns = [re.compile(pattern) for pattern in pattern_list]
        for pattern in self._patterns:
            if pattern.search(""):
                raise ValueError(
                    f"the pattern {pattern.pattern!r} is found in an empty text: "
                    "it would stop everything"
                )

    def check(self, content: str) -> GuardrailResult:
        """Search for the patterns. The reason names them by their position, from 1."""
        positions = []
        redacted = content
        for position, pattern in enumerate(self._patterns, 1):
            # In the text as written, so that an earlier redaction hides no match from the reason.
            if pattern.search(content):
                positions.append(str(position))
                redacted = pattern.sub(REDACTED, redacted)
        if not positions:
            return self.passed(content)
        return self.tripped(redacted, f"found: pattern {', '.join(positions)}")


class TopicGuardrail(Guardrail):
    """Forbids the words and phrases in `deny`, as whole words.

    Case, accents, invisible characters and look-alike letters make no difference. Raises ValueError
    for REWRITE, and unless `deny` is a list of at least one word, none of them empty.
    """

    name = "topic"
    blocking = False

    def __init__(
        self, deny: Iterable[str], *, action: GuardrailAction = GuardrailAction.BLOCK
    ) -> None:
        phrases: list[str] = []
        if not isinstance(deny, str):  # a text would be read as one word a character
            phrases = [_normalized(phrase) for phrase in deny]
        if not phrases or not all(phrases):
            raise ValueError(
                f"deny={deny!r} is no list of words: give at least one, none of them empty"
            )
        if action == GuardrailAction.REWRITE:
            raise ValueError(
                "a TopicGuardrail rewrites nothing: use BLOCK or WARN, or a PatternGuardrail"
            )
        self.action = GuardrailAction(action)
        self._phrases = phrases

    def check(self, content: str) -> GuardrailResult:
        """Search for the phrases. The reason gives their positions in `deny`, from 1."""
        text = _normalized(content)
        positions = [
            str(position)
            for position, phrase in enumerate(self._phrases, 1)
            if _contains(text, phrase)
        ]
        if positions:
            return self.tripped(content, f"denied: word {', '.join(positions)}")
        return self.passed(content)


def _normalized(text: str) -> str:
    """Return the text without differences that a reader overlooks, and with single spaces."""
    return " ".join(plain_text_of(text).split())


def _contains(text: str, phrase: str) -> bool:
    """Return whether the text contains the phrase as whole words."""
    start = text.find(phrase)
    while start >= 0:
        end = start + len(phrase)
        begins_inside_word = _are_one_word(text[start - 1 : start], phrase[0])
        ends_inside_word = _are_one_word(phrase[-1], text[end : end + 1])
        if not begins_inside_word and not ends_inside_word:
            return True
        start = text.find(phrase, start + 1)
    return False


def _are_one_word(left: str, right: str) -> bool:
    """Return whether two neighboring characters belong to one word. Either may be "".

    Combining marks of Indic scripts are parts of a word here; for `\\w` in regular expressions they
    are not.
    """
    for char in (left, right):
        if not char or unicodedata.category(char)[0] not in "LMN":
            return False
        if _UNSPACED_SCRIPT.match(char):
            return False
    return True


class InjectionGuardrail(Guardrail):
    """Searches for signs of prompt injection, with the patterns that screen the output of tools.

    It misses attacks, and at times blocks harmless text. The real protection is that side effects
    need a yes.
    """

    name = "injection"
    blocking = False

    def __init__(self, *, action: GuardrailAction = GuardrailAction.BLOCK) -> None:
        if action == GuardrailAction.REWRITE:
            raise ValueError("an InjectionGuardrail rewrites nothing: use BLOCK or WARN")
        self.action = GuardrailAction(action)

    def check(self, content: str) -> GuardrailResult:
        """Search for the patterns. The reason names the kinds of suspicion."""
        kinds = suspicions(content)
        if kinds:
            return self.tripped(content, f"suspicious: {', '.join(kinds)}")
        return self.passed(content)
