"""The effect that a button names, derived from the preview of an action."""

from __future__ import annotations

import pytest

from sayso.agent.channel.questions import short_effect
from sayso.pending.action import PendingAction
from sayso.pending.plans import plan_of


def _action(preview: str) -> PendingAction:
    return PendingAction("u1", "delete", preview)


@pytest.mark.parametrize(
    ("preview", "effect"),
    [
        ("Delete invoice INV-42 (Ada Lovelace Ltd, 120.00 EUR, open)", "Delete invoice INV-42"),
        ("delete_file: path = a.txt", "delete_file: path = a.txt"),
        ("Delete INV-1, INV-2 and INV-3", "Delete INV-1, INV-2 and INV-3"),
        ("Delete everything that anybody has ever written down here", ""),
        ("Delete a\n\nand b", ""),
        ("(nothing)", "(nothing)"),
    ],
)
def test_button_names_the_whole_effect_or_none(preview: str, effect: str):
    """A part of the effect could be mistaken for a smaller one."""
    assert short_effect(_action(preview)) == effect


def test_plan_button_names_the_first_step_and_counts_the_others():
    """The steps themselves are listed above the button."""
    plan = plan_of([_action("Delete INV-1 (open)"), _action("Delete INV-2 (open)")])
    assert plan is not None
    assert short_effect(plan.head) == "Delete INV-1 (+1)"
