"""A handwritten MCP server with the protocol of 2025, which most servers still use. It needs no SDK."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

tools = ["grow"]
listings = []


def say(message: dict[str, Any]) -> None:
    """Print one message to the client."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)  # noqa: T201


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request. Raises KeyError for an unknown method."""
    match method:
        case "initialize":
            version, server = params["protocolVersion"], {"name": "old", "version": "1"}
            version = min(version, "2025-06-18")
            return {
                "protocolVersion": version,
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": server,
            }
        case "tools/list":
            at = int(params.get("cursor", 0))  # a page has one tool
            if not at:
                listings.append(len(tools))
                if "restless" in tools:
                    say({"method": "notifications/tools/list_changed"})
            more = {"nextCursor": str(at + 1)} if at + 1 < len(tools) else {}
            return {"tools": [{"name": tools[at], "inputSchema": {"type": "object"}}], **more}
        case "tools/call":
            if params["arguments"].get("count_listings"):
                return {"content": [{"type": "text", "text": str(len(listings))}]}
            tools.append(params["arguments"].get("name", f"tool{len(tools)}"))
            for _ in range(params["arguments"].get("announcements", 1)):
                say({"method": "notifications/tools/list_changed"})
            time.sleep(params["arguments"].get("seconds", 0))
            return {"content": [{"type": "text", "text": f"{len(tools)} tools"}]}
    raise KeyError(method)


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    try:
        say({"id": request["id"], "result": answer(request["method"], request.get("params") or {})})
    except KeyError:
        say({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
