"""The tools in a request depend on the YAML alone: a vendor's cache holds only what stays byte-identical."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sayso.config.settings.loader import load_settings
from sayso.config.wiring.tools import open_tools

#: An MCP server that lists its choices in the order of a set, and its tools each time the other way round. It lists them
#: only once the test allows it.
SERVER = """
import json, sys, urllib.request

SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "how": {"type": "string", "enum": [*{"mail", "phone", "fax", "letter"}]}},
    "required": [*{"to", "how"}],
}
CAPABILITIES = {"tools": {"listChanged": True}}
listings = 0
for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "tools/list":
        urllib.request.urlopen(sys.argv[1] + "/mcp").read()
        listings += 1
        names = sorted({"tell", "ask", "warn", "call"}, reverse=listings % 2 == 0)
        result = {"tools": [{"name": name, "description": name, "inputSchema": SCHEMA} for name in names]}
    elif request.get("method") == "tools/call":
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}), flush=True)
        result = {"content": [{"type": "text", "text": "called"}]}
    else:
        info = {"name": "shuffled", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": CAPABILITIES, "serverInfo": info}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
TOOLS = '''
from dataclasses import dataclass
from sayso.agent import tool

@dataclass
class Filter:
    """Which rows."""
    kinds: frozenset[str] = frozenset({"open", "late", "paid", "void"})

@tool(param_metadata={"color": {"enum": {"red", "green", "blue", "black"}}})
def paint(color: str, marks: set[str] = {"a", "b", "c"}, rows: Filter = Filter(), by: object = object()) -> str:
    """Paint rows."""
    return color
'''
#: A worker: it opens the sources, refreshes those that are named, and prints the tools that the model is sent.
WORKER = """
import json, sys, time
from pathlib import Path
from sayso.agent import Agent, ScriptedProvider
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.tools import open_tools

opened = open_tools(load_settings(Path(sys.argv[1]), {}), remote=True, seconds=120)
assert not opened.problems, opened.problems
if "mine.py" in sys.argv:
    opened.replace_source("tools.0", opened.watched["tools.0"].load())
if "server.py" in sys.argv:
    listed, until = opened.registry.get("ask"), time.monotonic() + 120
    opened.registry.execute_tool("tell", to="Ada", how="mail")  # the server announces other tools then
    while opened.registry.get("ask") is listed and time.monotonic() < until:
        time.sleep(0.05)
    assert opened.registry.get("ask") is not listed
model = ScriptedProvider(["hello"])
Agent(opened.select(None), model).run("hi")
print(json.dumps(model.requests[0].tools))
opened.close()
"""
PETS = {
    "openapi": "3.1.0",
    "paths": {
        f"/{name}": {"get": {"operationId": f"get_{name}"}}
        for name in ("cats", "dogs", "birds", "fish")
    },
}


class Site(ThreadingHTTPServer):
    """A web site with an OpenAPI document. One of the two sources waits until the other one was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.first = ""
        self.asked = {"/mcp": threading.Event(), "/pets.json": threading.Event()}
        self.url = f"http://127.0.0.1:{self.server_port}"

    def let_answer_first(self, path: str) -> None:
        """Start anew with another order."""
        self.first = path
        for event in self.asked.values():
            event.clear()


class Handler(BaseHTTPRequestHandler):
    """Answers with the document, its paths in the other order each time."""

    server: Site

    def do_GET(self) -> None:
        """Answer once it is this path's turn."""
        if self.path != self.server.first:
            assert self.server.asked[self.server.first].wait(120)
        self.server.asked[self.path].set()
        paths = sorted(PETS["paths"].items(), reverse=self.server.first == "/mcp")
        body = json.dumps(
            {**PETS, "servers": [{"url": self.server.url}], "paths": dict(paths)}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def site() -> Iterator[Site]:
    """Yield a running site."""
    server = Site()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def tools_of_worker(config: Path, seed: str, *refreshed: str) -> list[dict[str, object]]:
    """Return the tools that a worker process sends to its model."""
    environ = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", WORKER, str(config), *refreshed]
    worker = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert worker.returncode == 0, worker.stderr
    sent: list[dict[str, object]] = json.loads(worker.stdout.splitlines()[-1])
    return sent


@pytest.mark.slow
def test_two_workers_send_identical_tools(tmp_path: Path, site: Site) -> None:
    """Other sources answer first, the orders of sets differ, and one worker has read two of its sources again."""
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "mine.py").write_text(TOOLS)
    config = tmp_path / "sayso.yaml"
    config.write_text(
        f"tools:\n  - ./mine.py\n  - mcp: {{command: ['{sys.executable}', server.py, '{site.url}'], cwd: .}}\n"
        f"  - {{openapi: '{site.url}/pets.json', base_url: '{site.url}'}}\n  - toolbox: [text]\n"
        "channels: {a: {platform: console}}\n"
    )
    site.let_answer_first("/pets.json")
    one = tools_of_worker(config, "1")
    site.let_answer_first("/mcp")
    other = tools_of_worker(config, "2", "mine.py", "server.py")
    assert json.dumps(one) == json.dumps(other)
    names = [tool["name"] for tool in one]
    assert names[:9] == [
        "paint",
        "ask",
        "call",
        "tell",
        "warn",
        "get_birds",
        "get_cats",
        "get_dogs",
        "get_fish",
    ]


def test_shared_tool_moves_as_in_a_process_that_starts_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that two files import belongs to the first one that has it, also after an edit."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "base_of_order.py").write_text(
        "from sayso.agent import tool\n@tool\ndef shared() -> str:\n    'Share.'\n    return ''\n"
    )
    own = "from sayso.agent import tool\n@tool\ndef {0}() -> str:\n    'Do it.'\n    return ''\n"
    importing = "from base_of_order import shared\n"
    (tmp_path / "one.py").write_text(importing + own.format("a"))
    (tmp_path / "two.py").write_text(importing + own.format("b"))
    (tmp_path / "sayso.yaml").write_text(
        "tools: [./one.py, ./two.py]\nchannels: {a: {platform: console}}\n"
    )
    opened = open_tools(load_settings(tmp_path / "sayso.yaml", {}))
    assert [tool.name for tool in opened.tools] == ["shared", "a", "b"]
    for text, names in ((own, ["a", "shared", "b"]), (importing + own, ["shared", "a", "b"])):
        (tmp_path / "one.py").write_text(text.format("a"))
        opened.replace_source("tools.0", opened.watched["tools.0"].load())
        assert [tool.name for tool in opened.tools] == names
