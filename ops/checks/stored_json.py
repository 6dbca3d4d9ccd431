"""JSON in Redis and in the ledger, as a check reads it: nothing in it may be taken for granted."""

from __future__ import annotations

import json
from typing import Any


def stored_fields(text: object) -> dict[str, Any]:
    """Return a stored JSON object; an empty one for what Sayso has not written."""
    try:
        fields = json.loads(str(text or "{}"))
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
