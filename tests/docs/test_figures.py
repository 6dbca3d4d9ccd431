"""`make figures`: the figures of the code that must not get worse."""

from __future__ import annotations

import ast

import pytest

from benchmarks.figures import Density, Source, ambiguous_names, density_of, share_of_words, sources


@pytest.fixture(scope="module")
def modules() -> list[Source]:
    """Return all modules of the packages."""
    return sources()


def test_code_stays_as_airy_as_that_of_its_neighbors(modules: list[Source]):
    """One assignment a line, few conditional expressions, and lines that fit."""
    density = density_of(modules)
    assert density.tuple_assignments <= 1
    assert density.conditional_expressions <= 6
    assert density.long_lines <= 0.005


def test_public_name_has_one_meaning(modules: list[Source]):
    """No two modules define a public class or type of one name."""
    assert ambiguous_names(modules) == []


def test_density_counts_what_a_reader_takes_in_at_once():
    """A pair that a function returns is one value; a docstring and a comment are words."""
    text = '"""Words."""\na, b = 1, 2\nc, d = pair()  # why\ne = 1 if a else 2\n'
    module = Source("x.py", text, ast.parse(text))
    assert density_of([module]) == Density(250, 250, 0)
    assert share_of_words([module]) == 0.5
