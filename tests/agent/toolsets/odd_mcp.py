"""A handwritten MCP server with one plain tool and the definitions in its argument, a JSON list."""

from __future__ import annotations

import json
import sys

GOOD = {"name": "good", "description": "Good.", "inputSchema": {"type": "object"}}
tools = [GOOD, *json.loads(sys.argv[1])]
results = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "odd", "version": "1"},
    },
    "tools/list": {"tools": tools},
    "tools/call": {"content": [{"type": "text", "text": "called"}]},
}
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    outcome = {"error": {"code": -32601, "message": "Method not found"}}
    if request["method"] in results:
        outcome = {"result": results[request["method"]]}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}), flush=True)  # noqa: T201
