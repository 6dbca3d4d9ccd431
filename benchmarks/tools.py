"""The cost of one tool call: its schema, the check of its arguments and the call, beside two peers and a floor.

    make bench

The same functions and arguments through Sayso, selectools and toolregistry; the floor is a bare pydantic TypeAdapter of
the same hints, which checks the arguments and calls the function, with its schema made once before. Rounds are
interleaved in one process, and the best of each counts: only ratios mean anything. A call is what an agent does for
it: read the tool's schema, check the arguments a model sent, run the function, have the result as text. toolregistry
has its schema per vendor only: OpenAI's is read. selectools does not look into lists.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from benchmarks.table import HEAD, Row, show
from sayso.agent import Tool

ROUNDS = 25
CALLS = 2_000

#: One contender's function for one part of a call.
Part = Callable[[], object]


def get_weather(
    location: str,
    days: int = 3,
    units: Literal["celsius", "fahrenheit"] = "celsius",
    detailed: bool = False,
) -> str:
    """Get the weather of a place.

    Args:
        location: City name or coordinates.
        days: For how many days ahead.
        units: In which unit.
        detailed: Whether to say more.
    """
    return f"{location}: {days} days, {units}, {detailed}"


WEATHER = {"location": "Paris", "days": 4, "units": "celsius", "detailed": True}


class Line(TypedDict):
    """One line of an order."""

    sku: str
    count: Annotated[int, Field(ge=1)]


def place_order(
    customer: str, lines: list[Line], note: str = "", express: bool = False
) -> dict[str, Any]:
    """Place an order.

    Args:
        customer: Whose it is.
        lines: What is ordered.
        note: What else to say.
        express: Whether it is urgent.
    """
    return {"customer": customer, "lines": len(lines), "express": express}


ORDER = {
    "customer": "ana",
    "lines": [{"sku": f"A-{n}", "count": n + 1} for n in range(5)],
    "express": True,
}

CASES: tuple[tuple[str, Callable[..., Any], dict[str, Any]], ...] = (
    ("four scalars", get_weather, WEATHER),
    ("a list of five models", place_order, ORDER),
)


def ours(function: Callable[..., Any], args: dict[str, Any]) -> dict[str, Part]:
    """Return Sayso's parts of a call."""
    tool = Tool.from_function(function)
    return {
        "schema": tool.schema,
        "validate": lambda: tool.validate(args),
        "call": lambda: (tool.schema(), tool.execute(args)),
    }


def floor(function: Callable[..., Any], args: dict[str, Any]) -> dict[str, Part]:
    """Return the cheapest possible parts: pydantic's own."""
    hints = {
        name: hint
        for name, hint in get_type_hints(function, include_extras=True).items()
        if name != "return"
    }
    kind = TypedDict("kind", hints, total=False)  # type: ignore[operator]  # made of the function's own hints
    kind.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    return {
        "validate": lambda: adapter.validate_python(args),
        "call": lambda: _text(function(**adapter.validate_python(args))),
    }


def selectools(function: Callable[..., Any], args: dict[str, Any]) -> dict[str, Part]:
    """Return the parts of selectools: its Tool checks the types of a function's arguments itself."""
    import selectools as peer

    tool = peer.tool(description=function.__doc__)(function)
    return {
        "schema": tool.schema,
        "validate": lambda: tool.validate(args),
        "call": lambda: (tool.schema(), tool.execute(args)),
    }


def toolregistry(function: Callable[..., Any], args: dict[str, Any]) -> dict[str, Part]:
    """Return the parts of toolregistry: its Tool has a pydantic model for the arguments."""
    import toolregistry as peer

    tool = peer.Tool.from_function(function)
    run = getattr(tool, "run_raw", tool.run)
    return {
        "schema": tool.get_schema,
        "call": lambda: (tool.get_schema(), _text(run(args))),
    }


def measure(whose: dict[str, dict[str, Part]], part: str) -> dict[str, float]:
    """Return the microseconds of one part for each contender that has it: the best of interleaved rounds."""
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, parts in whose.items():
            if part in parts:
                best[name] = min(best.get(name, float("inf")), _timed(parts[part]))
    return best


def rows(title: str, function: Callable[..., Any], args: dict[str, Any]) -> list[Row]:
    """Return the table of one function."""
    whose = {"ours": ours(function, args), "floor": floor(function, args)} | _peers(
        title, function, args
    )
    call, check, schema = (measure(whose, part) for part in ("call", "validate", "schema"))
    return [
        Row(
            f"{title}: a whole call, floor",
            _us(call["ours"]),
            _us(call["floor"]),
            call["ours"] / call["floor"],
            3,
        ),
        *(
            _faster(f"{title}: a whole call, {name}", call, name)
            for name in whose
            if name not in ("ours", "floor")
        ),
        *(
            _beside(f"{title}: the check alone, {name}", check, name)
            for name in check
            if name != "ours"
        ),
        *(
            _beside(f"{title}: the schema alone, {name}", schema, name)
            for name in schema
            if name != "ours"
        ),
    ]


def _peers(
    title: str, function: Callable[..., Any], args: dict[str, Any]
) -> dict[str, dict[str, Part]]:
    """Return the peers that can call this function at all."""
    able = {}
    for name, make in {"selectools": selectools, "toolregistry": toolregistry}.items():
        try:
            parts = make(function, args)
            parts["call"]()
            able[name] = parts
        except Exception as exc:  # noqa: BLE001  # a failure of a peer is a result, too
            print(f"{title}: {name} cannot: {type(exc).__name__}: {str(exc).splitlines()[0][:80]}")
    return able


def _beside(what: str, times: dict[str, float], name: str) -> Row:
    return Row(what, _us(times["ours"]), _us(times[name]), times["ours"] / times[name])


def _faster(what: str, times: dict[str, float], name: str) -> Row:
    return Row(
        what, _us(times["ours"]), _us(times[name]), times[name] / times["ours"], 5, at_least=True
    )


def _timed(part: Part) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        part()
    return (time.perf_counter() - started) / CALLS * 1e6


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _us(microseconds: float) -> str:
    return f"{microseconds:.2f} µs"


def main() -> None:
    """Print the tables."""
    warnings.simplefilter("ignore", DeprecationWarning)
    print(HEAD)
    for title, function, args in CASES:
        show(rows(title, function, args))


if __name__ == "__main__":
    main()
