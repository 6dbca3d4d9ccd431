"""Clock: runs a module as if the clock of this machine were wrong, for its Python code.

    python -m sayso.testing.simulation.clock SECONDS MODULE [ARGUMENT ...]

`time` and `datetime` are replaced before anything else is imported. Clocks that only measure how long something takes
are left alone, as they are where a wall clock is wrong.
"""

from __future__ import annotations

import datetime
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


class _Like(type):
    """What is one of the real class is one of its replacement: C code makes only the real ones."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__mro__[1])


def shift(seconds: float) -> None:
    """From now on this process's wall clock is ahead by so many seconds, behind when negative."""
    wrong, delta = _time(seconds), datetime.timedelta(seconds=seconds)
    date, moment = datetime.date, datetime.datetime

    class WrongDate(datetime.date, metaclass=_Like):
        @classmethod
        def today(cls) -> Any:
            return date.fromtimestamp(wrong())

    class WrongDateTime(datetime.datetime, metaclass=_Like):
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


def _time(seconds: float) -> Callable[[], float]:
    """Replace what `time` says of now. Returns its new `time`."""
    real, real_ns, gmtime, localtime, strftime = time.time, time.time_ns, time.gmtime, time.localtime, time.strftime

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
    """Run a module under a wrong clock, as `python -m` would."""
    seconds, module, *rest = arguments
    shift(float(seconds))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
