"""A handwritten MCP server with one plain tool and the definitions in its argument, a JSON list."""

from __future__ import annotations

import json
import sys
from typing import Any

GOOD = {"name": "good", "description": "Good.", "inputSchema": {"type": "object"}}


def answer_of(request: dict[str, Any], odd: list[Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    results: dict[str, dict[str, Any]] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "1"},
        },
        "tools/list": {"tools": [GOOD, *odd]},
        "tools/call": {"content": [{"type": "text", "text": "called"}]},
    }
    method, head = request["method"], {"jsonrpc": "2.0", "id": request["id"]}
    if method not in results:
        return {**head, "error": {"code": -32601, "message": "Method not found"}}
    return {**head, "result": results[method]}


if __name__ == "__main__":
    for line in sys.stdin:
        received = json.loads(line)
        if "id" in received:
            print(json.dumps(answer_of(received, json.loads(sys.argv[1]))), flush=True)  # noqa: T201
