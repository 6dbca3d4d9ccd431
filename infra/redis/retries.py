"""Retries: for how long an unanswered command is sent to Redis again, and the pauses in between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError
from redis.retry import Retry

from sayso.infra.backoff import backoff_seconds
from sayso.infra.redis.url import NotWritable

#: How long a command of a worker is sent again while no server answers, in seconds. A failover is
#: usually over by then. It is the time for which a turn keeps its lease without renewing it
#: (`sayso.workers.lease`): a turn that waits longer has lost its lease, and its worker leaves it to
#: the next one.
PATIENT_SECONDS = 9.0
#: How often a command is sent whose connection breaks each time. The command may be the cause, and
#: other commands wait behind it.
MAX_LOSSES = 8
#: The shortest and the longest pause before a command is sent again, in seconds.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0


def pause_seconds(failures: int) -> float:
    """Return the seconds to wait after this many failures in a row."""
    return backoff_seconds(
        failures,
        first=FIRST_PAUSE_SECONDS,
        longest=LONGEST_PAUSE_SECONDS,
        chance=random.random(),  # noqa: S311  # no secret
    )


class Retries:
    """The failures of one command, or of several that are sent together.

    Lives until they are answered or given up. `pause` returns the seconds to wait after a number of
    failures, `clock` seconds that never go back.
    """

    def __init__(
        self,
        *,
        pause: Callable[[int], float] = pause_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause = pause
        self._clock = clock
        #: When the first attempt failed, None before that.
        self._first_failure_at: float | None = None
        #: How often a connection broke after it had taken the commands.
        self._losses = 0
        self.failures = 0

    def pause_after(self, error: Exception, *, was_sent: bool = False) -> float | None:
        """Return the seconds to wait before the next attempt, None to give the commands up.

        `error` is why the last attempt failed. `was_sent`: whether a connection took the commands,
        and broke before it answered all of them.
        """
        now = self._clock()
        if self._first_failure_at is None:
            self._first_failure_at = now
        self.failures += 1

        # These errors are answers of a server that works: the commands did not break it.
        is_answer = isinstance(error, NotWritable | BusyLoadingError)
        if was_sent and not is_answer:
            self._losses += 1
        if self._losses >= MAX_LOSSES:
            return None
        if now - self._first_failure_at >= PATIENT_SECONDS:
            return None
        return self._pause(self.failures)


class PatientRetry(Retry):
    """The retries of a `Retries`, in the form that redis-py's clients for threads take.

    redis-py's own Retry ends after a number of attempts. A Redis that is away refuses each at once,
    and one that hangs takes seconds for each, so no number holds for PATIENT_SECONDS.
    """

    def __init__(self) -> None:
        super().__init__(NoBackoff(), -1)

    def call_with_retry(
        self,
        do: Callable[[], Any],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> Any:
        """Return what `do` returns. After each error `fail` is called. Raises the last error."""
        retries = Retries()
        while True:
            try:
                return do()
            except self._supported_errors as error:
                if is_retryable and not is_retryable(error):
                    raise
                pause = retries.pause_after(error)
                if with_failure_count:
                    fail(error, retries.failures)
                else:
                    fail(error)
                if pause is None:
                    raise
                time.sleep(pause)
