"""Scale: the numbers of a chart in words, in as few digits as tell them apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.ticker import Formatter

#: What a large number is written in.
_SIZES = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
#: The smallest number that is written out; smaller ones are like 1.5e-07.
_SMALLEST = 1e-4
#: Places after the point of a number with its size, of a plain one, and of one like 1.5e-07.
_SIZED_PLACES, _PLACES, _SMALL_PLACES = 4, 9, 16
#: Numbers that count from here on have separators where years may stand beside them.
_AFTER_YEARS = 10_000


def short(value: float) -> str:
    """One number: 1,234 and 1.2M. With up to six digits it is the number itself, with more it is rounded to five."""
    if not value:
        return "0"
    if abs(value) < _SMALLEST:
        return f"{value:.2e}"
    size, sign = _size(abs(value))
    number = Decimal(repr(value)) / Decimal(size)
    digits = 6 if Decimal(f"{number:.6g}") == number else 5
    return f"{Decimal(f'{number:.{digits}g}').normalize():,f}{sign}"


def ticks(values: Sequence[float], *, years: bool = False) -> list[str]:
    """The numbers at the lines of an axis, with as many places as tell each to a hundredth of their distance."""
    distances = [high - low for low, high in pairwise(sorted(set(values)))]
    nearness = min(distances, default=max(map(abs, values), default=1.0)) / 100
    written: list[str] = []
    for written in _written(values, years=years):
        if all(abs(_read(text) - value) <= nearness for text, value in zip(written, values, strict=True)):
            break
    return written


def ticked(*, years: bool = False) -> Formatter:
    """What has matplotlib write an axis so."""
    from matplotlib.ticker import Formatter

    class Ticks(Formatter):
        def __call__(self, value: float, _position: int | None = None) -> str:
            return short(value)

        def format_ticks(self, values: Sequence[float]) -> list[str]:
            return ticks([float(value) for value in values], years=years)

    return Ticks()


def _written(values: Sequence[float], *, years: bool) -> Iterator[list[str]]:
    """All of them in the same manner, from the shortest on."""
    largest = max(map(abs, values), default=0.0)
    size, sign = _size(largest)
    mark = "" if years and largest < _AFTER_YEARS else ","
    if largest >= _SMALLEST:
        if sign:
            for places in range(_SIZED_PLACES + 1):
                yield [f"{value / size:,.{places}f}{sign}" if value else "0" for value in values]
        for places in range(_PLACES + 1):
            yield [f"{value:{mark}.{places}f}" if value else "0" for value in values]
    for places in range(_SMALL_PLACES + 1):
        yield [f"{value:.{places}e}" if value else "0" for value in values]


def _read(text: str) -> float:
    sizes = {sign: size for size, sign in _SIZES}
    size = sizes.get(text[-1], 1.0)
    return float(text.rstrip("TBM").replace(",", "")) * size


def _size(value: float) -> tuple[float, str]:
    return next(((size, sign) for size, sign in _SIZES if value >= size), (1.0, ""))
