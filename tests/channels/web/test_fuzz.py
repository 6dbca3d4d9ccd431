"""Fuzz: the real adapters answer every mutated request below 500; `make fuzz` sends many more."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tests.channels.web.fuzz import MAX_GROWTH, Figures, asked, fuzz, wsgi
from tests.channels.web.mutations import endpoints, largest, requests

NAMES = ("whatsapp", "whatsapp/status", "telegram", "slack", "console", "console/files")


@pytest.mark.parametrize("name", NAMES)
def test_mutated_requests_break_nothing(name: str):
    """No 5xx, no exception, no slow answer, no growth; most requests pass the signature and reach the parsers."""
    ask, cookie = wsgi()
    endpoint = next(each for each in endpoints(cookie) if each.name == name)
    figures = fuzz(endpoint, 600, 7, ask)
    assert figures.problems == []
    assert figures.share(2) > (50 if name.startswith("console") else 300)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_makes_the_same_requests(name: str):
    """A failure can be repeated with its seed."""
    endpoint = next(each for each in endpoints("a=b") if each.name == name)
    first, again = (
        [
            (sent.path, sent.method, sent.body)
            for sent in islice(requests(endpoint, random.Random(1)), 200)
        ]
        for _ in "12"
    )
    assert first == again


def test_broken_app_is_noticed():
    """A 500, an exception, a slow answer and growth are each a problem."""
    endpoint = next(
        each for each in endpoints("a=b") if each.name == "telegram"
    )  # signed the fastest

    def raises(_: object) -> int:
        raise RuntimeError("no such thing")

    def breaks(environ: object, start: object) -> list[bytes]:
        start("500 INTERNAL SERVER ERROR", [])  # type: ignore[operator]
        return []

    assert "RuntimeError: no such thing" in fuzz(endpoint, 3, 7, raises).problems[0]
    assert (
        fuzz(endpoint, 3, 7, lambda sent: asked(breaks, sent))
        .problems[0]
        .startswith("500: POST /hooks/tg")
    )
    figures = Figures("x", "wsgi", before=1.0, after=MAX_GROWTH + 2)
    figures.note(next(largest(endpoint)), 200, 9.0, 9.0)
    assert [problem.split(":")[0].split("by")[0] for problem in figures.problems] == [
        "9.0 s",
        "grew ",
    ]
