"""Messages that a tool schedules: the functions that it imports and calls.

Such a message is a *timer*. The functions find the timers of the turn in the ToolEnvironment.
"""

from __future__ import annotations

from collections.abc import Iterable

from sayso.agent.tools.environment import tool_environment
from sayso.agent.tools.timers import SchedulingError, TimerChange, TurnTimers
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.pending.turn_changes import Timer

#: The error text outside of a channel's run, and for tools that run after a confirmation.
CANNOT_SCHEDULE = (
    "Nothing can be scheduled here: that needs a channel, and a tool that its policy allows "
    "without a confirmation."
)


def schedule_reply(text: str, at: float, *, note: str = "") -> Timer:
    """Say `text` in this conversation at `at` (Unix seconds), once, and return the timer.

    The text is shown literally, unless it is `Markdown`. It is marked as scheduled, in the user's
    language, so that it cannot pass for a question of the bot. `note` describes the timer in the
    list of `scheduled`; "" for the text itself.

    The timer is set when the turn is committed; a turn that fails sets none. Raises SchedulingError
    if the time is in the past or too far ahead, if the text is too long, if the conversation has
    too many timers, and outside of a turn.
    """
    marked_text = texts_of_turn().scheduled(text)
    return _add(marked_text, at, note or text)


def remind(text: str, at: float) -> Timer:
    """Remind the user of `text` at `at` (Unix seconds), in their language, and return the timer.

    Raises SchedulingError, like `schedule_reply`.
    """
    reminder = texts_of_turn().reminder(text)
    return _add(reminder, at, text)


def _add(text: str, at: float, note: str) -> Timer:
    """Add a timer to those of the turn, and return it. Raises SchedulingError."""
    timer = _timers_of_turn().add(text, at, note)
    _collect_change(TimerChange(timer))
    return timer


def scheduled() -> list[Timer]:
    """Return this user's timers in this conversation, the next one first.

    Raises SchedulingError outside of a turn.
    """
    return _timers_of_turn().timers_of_user()


def cancel_scheduled(timer_id: str) -> Timer | None:
    """Cancel one of this user's timers and return it; None if there is none of that id.

    Raises SchedulingError outside of a turn.
    """
    timer = _timers_of_turn().cancel(timer_id)
    if timer is not None:
        _collect_change(TimerChange(cancelled_id=timer_id))
    return timer


def time_of_turn() -> float:
    """Return when the user's message was received, in Unix seconds by the server's clock.

    Raises SchedulingError outside of a turn.
    """
    return _timers_of_turn().now


def texts_of_turn() -> Texts:
    """Return Sayso's texts in the language of this user.

    Raises SchedulingError outside of a turn.
    """
    return texts_for(_timers_of_turn().language)


def restore_timers(changes: Iterable[TimerChange]) -> None:
    """Make the changes again that an earlier attempt at this turn made.

    The journal of the turn has them already, so they are not collected for it again. Does nothing
    where nothing can be scheduled.
    """
    timers = tool_environment().timers
    if timers is not None:
        for change in changes:
            timers.restore(change)


def _collect_change(change: TimerChange) -> None:
    """Hand a change to the run, which writes it into the journal of the turn."""
    changes = tool_environment().timer_changes
    if changes is not None:
        changes.append(change)


def _timers_of_turn() -> TurnTimers:
    """Return the timers of this turn. Raises SchedulingError where nothing can be scheduled."""
    timers = tool_environment().timers
    if timers is None:
        raise SchedulingError(CANNOT_SCHEDULE)
    return timers
