"""Guardrails: what may not pass does not, also where the guard itself fails."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from sayso.agent.guards.guardrails import (
    Guardrail,
    GuardrailAction,
    GuardrailBlocked,
    GuardrailResult,
    GuardrailsPipeline,
    LengthGuardrail,
    PatternGuardrail,
    TopicGuardrail,
    apply_guardrails,
)
from tests.agent.guards.fakes import Diary

SECRET = "my card is 4111"


class Fails(Guardrail):
    """One whose own code is broken."""

    name = "broken"
    action = GuardrailAction.WARN

    def __init__(self, error: BaseException, *, blocking: bool = False) -> None:
        self.error = error
        self.blocking = blocking

    def check(self, content: str) -> GuardrailResult:
        """Never comes to an end."""
        raise self.error


class Sees(Guardrail):
    """One that keeps what it was shown."""

    name = "sees"
    blocking = False

    def __init__(self) -> None:
        self.seen: list[str] = []

    def check(self, content: str) -> GuardrailResult:
        """Passes all."""
        self.seen.append(content)
        return self.passed(content)


def run(pipeline: GuardrailsPipeline, text: str, diary: Diary, stage: str = "input") -> str:
    """One text through the pipeline."""
    return asyncio.run(apply_guardrails(pipeline, stage, text, diary))


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    "error", [ValueError(SECRET), SystemExit(SECRET), asyncio.CancelledError(SECRET)]
)
def test_guardrail_that_fails_blocks(error: BaseException, blocking: bool, caplog) -> None:
    """It blocks although its action is WARN. The text of its error may quote the content, so it is not reported."""
    caplog.set_level(logging.WARNING)
    diary = Diary()
    with pytest.raises(GuardrailBlocked, match="'broken' failed: ") as caught:
        run(GuardrailsPipeline([Fails(error, blocking=blocking)]), SECRET, diary)
    assert [record.message for record in caplog.records] == ["guardrail.failed"]
    assert SECRET not in f"{caplog.text} {caught.value} {diary.noted} {diary.told}"


@pytest.mark.parametrize("found", [True, None, GuardrailResult(True, None)])  # type: ignore[arg-type]
def test_guardrail_that_returns_anything_else_blocks(found: object) -> None:
    """A predicate that returns True does not say whether the text passed or failed."""

    class Odd(Guardrail):
        def check(self, content: str) -> GuardrailResult:
            return found  # type: ignore[return-value]

    assert not GuardrailsPipeline([Odd()]).check_input("hello").passed


def test_guardrail_that_checks_nothing_blocks() -> None:
    """A guardrail without a check lets no text through."""
    assert not GuardrailsPipeline(output=[Guardrail()]).check_output("hello").passed


def test_one_that_blocks_ends_the_stage() -> None:
    """Guardrails behind it do not see the text. The error says which guardrail blocked, and why."""
    behind, diary = Sees(), Diary()
    with pytest.raises(GuardrailBlocked) as caught:
        run(GuardrailsPipeline([LengthGuardrail(3), behind]), "hello", diary)
    assert behind.seen == []
    assert (
        str(caught.value) == "input guardrail 'length' blocked: 5 characters, at most 3 are allowed"
    )


def test_rewritten_text_goes_on() -> None:
    """The next guardrail and the model see the new one only."""
    behind, diary = Sees(), Diary()
    pipeline = GuardrailsPipeline([PatternGuardrail([r"\d{4}"], GuardrailAction.REWRITE), behind])
    assert run(pipeline, SECRET, diary) == "my card is [redacted]" == behind.seen[0]


def test_warning_changes_nothing_but_is_told() -> None:
    """Observers hear each trip, with stage and action, and the trace has it; the text is in none of it."""
    warn, diary = GuardrailAction.WARN, Diary()
    pipeline = GuardrailsPipeline(
        output=[PatternGuardrail(["4111"], warn), TopicGuardrail(["card"], action=warn)]
    )
    assert run(pipeline, SECRET, diary, "output") == SECRET
    assert diary.told == [
        ("guardrail_triggered", "output", "pattern", "warn", "found: pattern 1"),
        ("guardrail_triggered", "output", "topic", "warn", "denied: word 1"),
    ]
    assert [kind for kind, _ in diary.noted] == ["guardrail", "guardrail"]
    assert "card" not in str(diary.noted)


def test_text_that_passes_leaves_no_trace() -> None:
    """Each stage has guardrails of its own."""
    diary = Diary()
    pipeline = GuardrailsPipeline(output=[LengthGuardrail(1)])
    assert run(pipeline, "hello", diary) == "hello"
    assert (diary.noted, diary.told) == ([], [])


def test_slow_check_runs_in_a_thread() -> None:
    """A custom guardrail may block, unless it declares that it does not."""
    threads = []

    class Waits(Guardrail):
        def check(self, content: str) -> GuardrailResult:
            threads.append(threading.current_thread())
            return self.passed(content)

    assert GuardrailsPipeline([Waits()]).check_input("hello").passed
    assert threads[0] is not threading.current_thread()


def test_cancelled_run_is_not_blocked() -> None:
    """Being stopped is not a failure of the guardrail."""

    class Endless(Guardrail):
        async def acheck(self, content: str) -> GuardrailResult:
            await asyncio.Event().wait()
            return self.passed(content)

    async def main() -> bool:
        task = asyncio.create_task(GuardrailsPipeline([Endless()]).acheck_input("hello"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    assert asyncio.run(main())


def test_long_reason_is_cut() -> None:
    """Logs contain the beginning of a custom guardrail's reason."""

    class Chatty(Guardrail):
        blocking = False

        def check(self, content: str) -> GuardrailResult:
            return self.tripped(content, "x" * 10_000)

    assert len(GuardrailsPipeline([Chatty()]).check_input("hello").trips[0].detail) == 200
