"""Run a module as if the clock of this machine were wrong, for its Python code.

    python -m sayso.testing.simulation.clock SECONDS MODULE [ARGUMENT ...]

`time` and `datetime` are replaced before anything else is imported. Monotonic clocks are not
changed, as a wrong wall clock does not change them.
"""

from __future__ import annotations

import datetime
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


class _RealInstances(type):
    """Makes instances of the real class instances of its replacement:
    C code creates only real ones.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__mro__[1])


def shift(seconds: float) -> None:
    """Put the wall clock of this process ahead by this many seconds, or back if negative."""
    wrong_time = _shift_time(seconds)
    delta = datetime.timedelta(seconds=seconds)
    date = datetime.date
    moment = datetime.datetime

    class WrongDate(datetime.date, metaclass=_RealInstances):
        @classmethod
        def today(cls) -> Any:
            return date.fromtimestamp(wrong_time())

    class WrongDateTime(datetime.datetime, metaclass=_RealInstances):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return moment.now(tz) + delta

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    vars(datetime).update(date=WrongDate, datetime=WrongDateTime)


def _shift_time(seconds: float) -> Callable[[], float]:
    """Replace the functions of `time` that read the wall clock. Return the new `time.time`."""
    real = time.time
    real_ns = time.time_ns
    gmtime = time.gmtime
    localtime = time.localtime
    strftime = time.strftime

    def wrong() -> float:
        return real() + seconds

    vars(time).update(
        time=wrong,
        time_ns=lambda: real_ns() + int(seconds * 1e9),
        gmtime=lambda at=None: gmtime(wrong() if at is None else at),
        localtime=lambda at=None: localtime(wrong() if at is None else at),
        strftime=lambda words, at=None: strftime(words, localtime(wrong()) if at is None else at),
    )
    return wrong


def main(arguments: Sequence[str]) -> None:
    """Run a module with a wrong clock, as `python -m` would."""
    seconds, module, *rest = arguments
    shift(float(seconds))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
