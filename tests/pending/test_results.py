"""Results: what the next model call sees of a typed result."""

from __future__ import annotations

import datetime
import json

from sayso.pending.executors import Ambiguous, NotFound


def test_result_says_its_kind_first_and_its_letters_as_they_are():
    """A model reads what it is before what it holds, and no escapes."""
    assert NotFound(entity="Rechnung", query="Größe").to_json() == (
        '{"kind": "not_found", "entity": "Rechnung", "query": "Größe"}'
    )


def test_match_of_any_type_is_spelt():
    """A tool hands over what its database gave it."""
    found = Ambiguous(entity="invoice", query="ada", matches=[datetime.date(2026, 1, 2), {"id": 7}])
    assert json.loads(found.to_json())["matches"] == ["2026-01-02", {"id": 7}]
