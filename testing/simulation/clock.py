"""Run a module as if the wall clock of this machine were wrong.

    python -m sayso.testing.simulation.clock SECONDS MODULE [ARGUMENT ...]

SECONDS is by how much the clock is ahead; negative if it is behind. The wrong clock is for Python
code only: `time` and `datetime` are replaced before anything else is imported. Monotonic clocks
stay as they are, because they do not depend on the wall clock.
"""

from __future__ import annotations

import datetime
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


class _RealInstances(type):
    """Metaclass of a replaced class: instances of the real class count as instances of it.

    The real class is the base of the replaced one, and so the second in its `__mro__`.

    C code, such as `pickle` and arithmetic with dates, creates only instances of the real class.
    Without this, `isinstance(value, datetime)` would be false for them.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__mro__[1])


def shift(seconds: float) -> None:
    """Put the wall clock of this process ahead by this many seconds, or back if negative.

    Lasts until the process ends.
    """
    wrong_time = _shift_time(seconds)
    delta = datetime.timedelta(seconds=seconds)
    real_date = datetime.date
    real_datetime = datetime.datetime

    class WrongDate(datetime.date, metaclass=_RealInstances):
        @classmethod
        def today(cls) -> Any:
            return real_date.fromtimestamp(wrong_time())

    class WrongDateTime(datetime.datetime, metaclass=_RealInstances):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real_datetime.now(tz) + delta

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    # As `datetime.date = WrongDate` would do, but mypy lets no one assign to the name of a class.
    vars(datetime).update(date=WrongDate, datetime=WrongDateTime)


def _shift_time(seconds: float) -> Callable[[], float]:
    """Replace the functions of `time` that read the wall clock. Return the new `time.time`.

    `time.ctime` and `time.asctime` keep the true time: Sayso calls neither.
    """
    real_time = time.time
    real_time_ns = time.time_ns
    real_gmtime = time.gmtime
    real_localtime = time.localtime
    real_strftime = time.strftime

    def wrong_time() -> float:
        return real_time() + seconds

    def wrong_time_ns() -> int:
        return real_time_ns() + int(seconds * 1e9)

    # The others read the clock only if they are called without a time.
    def wrong_gmtime(at: float | None = None) -> time.struct_time:
        return real_gmtime(wrong_time() if at is None else at)

    def wrong_localtime(at: float | None = None) -> time.struct_time:
        return real_localtime(wrong_time() if at is None else at)

    def wrong_strftime(format: str, at: Any = None) -> str:
        return real_strftime(format, wrong_localtime() if at is None else at)

    # Not by assignment: the types of the new functions are not exactly those of the real ones.
    vars(time).update(
        time=wrong_time,
        time_ns=wrong_time_ns,
        gmtime=wrong_gmtime,
        localtime=wrong_localtime,
        strftime=wrong_strftime,
    )
    return wrong_time


def main(arguments: Sequence[str]) -> None:
    """Run a module with a wrong clock, as `python -m` would."""
    seconds, module, *rest = arguments
    shift(float(seconds))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
