"""Door: what a web process says of itself to whoever watches over it."""

from __future__ import annotations

import http.client
import json
from typing import Any


def workers_known(door: str) -> int:
    """How many workers the web at this host and port knows of; 0 while it does not answer."""
    return int(_readiness(door).get("workers", 0))


def spooled(door: str) -> int | None:
    """How many messages wait on the disk of this web's machine; None when it does not say."""
    found = _readiness(door).get("spooled")
    return None if found is None else int(found)


def _readiness(door: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(door, timeout=5)
    try:
        connection.request("GET", "/healthz?full")
        said = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    return said if isinstance(said, dict) else {}
