"""Names of tools: which may be logged."""

from __future__ import annotations

import pytest

from sayso.agent.tools.names import NO_NAME, loggable_name


@pytest.mark.parametrize("name", ["find_invoice", "2fa.send", "math-add", "x" * 64])
def test_name_that_a_tool_can_have_is_logged(name):
    """A name may begin with a digit."""
    assert loggable_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "my pin is 4711", "030-1234567", "4711", "x" * 65, "\u00fcber"]
)
def test_other_name_is_not_logged(name):
    """A model may use a text or a number of its user as a name."""
    assert loggable_name(name) == NO_NAME
