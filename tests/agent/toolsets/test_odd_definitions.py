"""Definitions of tools that do not follow the protocol: each is mended or left out alone, and hides no other tool."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sayso.agent import Tool, ToolTag
from sayso.agent.toolsets.mcp import McpToolProvider
from sayso.agent.toolsets.mcp_escapes import chunks_without_half_characters
from sayso.agent.toolsets.openapi import OpenApiToolProvider
from tests.agent.toolsets.odd_mcp import answer_of

SERVER = Path(__file__).parent / "odd_mcp.py"
OBJECT = {"type": "object"}
TREE = {
    "N": {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/N"}}},
    }
}


def listed(*definitions: Any) -> tuple[dict[str, Tool], dict[str, str]]:
    """Return the tools of a server with these definitions besides a plain one, and what is left out, with reasons."""
    server = McpToolProvider(sys.executable, [str(SERVER), json.dumps(definitions)], name="odd")
    with closing(server):
        tools = asyncio.run(server.list_tools())
        return {tool.name: tool for tool in tools}, server.left_out


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ({}, "inputSchema: Field required"),
        ({"inputSchema": None}, "inputSchema: Input should be"),
        ({"inputSchema": {"type": "array"}}, "inputSchema.type: Input should be 'object'"),
        (
            {"inputSchema": {**OBJECT, "required": "a"}},
            "inputSchema.required: Input should be a valid list",
        ),
        (
            {"inputSchema": {**OBJECT, "properties": {"a": {"type": "banana"}}}},
            "its schema is none: at properties/a",
        ),
        (
            {"inputSchema": OBJECT, "execution": {"taskSupport": "required"}},
            "it must be called as a task",
        ),
        (
            {"inputSchema": OBJECT, "execution": {"taskSupport": "required"}, "icons": 5},
            "it must be called as a task",
        ),
    ],
)
def test_tool_that_cannot_be_used_is_left_out_alone(definition: dict[str, Any], why: str, caplog):
    """The log names it with the reason, and the other tools of the server are offered."""
    tools, left_out = listed({"name": "odd", **definition})
    assert list(tools) == ["good"]
    assert left_out["odd"].startswith(why)
    (logged,) = [
        record.__dict__ for record in caplog.records if record.message == "mcp.tool_left_out"
    ]
    assert (logged["tool"], logged["why"]) == ("odd", left_out["odd"])


def test_tool_that_may_run_as_a_task_is_called_plainly():
    """Only tools that must run as tasks are left out."""
    tools, left_out = listed(
        {"name": "slow", "inputSchema": OBJECT, "execution": {"taskSupport": "optional"}}
    )
    assert (sorted(tools), left_out) == (["good", "slow"], {})


def test_second_tool_of_a_name_is_left_out_with_a_reason(caplog):
    """A call by that name could mean either, and the first one counts."""
    tools, left_out = listed(
        {"name": "twin", "description": "First.", "inputSchema": OBJECT},
        {"name": "twin", "description": "Second.", "inputSchema": OBJECT},
    )
    assert (sorted(tools), tools["twin"].description) == (["good", "twin"], "First.")
    assert left_out == {"twin": "the server lists an earlier tool of this name, which is offered"}
    assert [record.message for record in caplog.records] == ["mcp.tool_left_out"]


def test_tools_beyond_the_limit_are_named(caplog):
    """An operator who misses one learns to choose with `include`. One line of the log is enough."""
    many = [{"name": f"tool{number:03}", "inputSchema": OBJECT} for number in range(258)]
    tools, left_out = listed(*many)
    assert (len(tools), sorted(left_out)) == (256, ["tool255", "tool256", "tool257"])
    assert left_out["tool257"].startswith(
        "the server lists 259 tools, and at most 256 are offered: choose them"
    )
    assert [record.message for record in caplog.records] == ["mcp.too_many_tools"]


def test_odd_tool_is_left_out_over_http_as_well():
    """Half a character in an answer is read there, too."""
    odd = [{"name": "odd"}, {"name": "cut", "description": "Cut \ud83d", "inputSchema": OBJECT}]
    with served(odd) as url, closing(McpToolProvider(url=url, name="odd")) as server:
        tools = {tool.name: tool.description for tool in asyncio.run(server.list_tools())}
        assert tools == {"good": "Good.", "cut": "Cut \ufffd"}
        assert list(server.left_out) == ["odd"]


@contextmanager
def served(odd: list[Any]) -> Iterator[str]:
    """Yield the URL of a server with these tools besides a plain one."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = json.dumps(answer_of(request, odd)).encode() if "id" in request else b""
            self.send_response(200 if answer else 202)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_GET(self) -> None:
            self.send_error(405)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_port}/mcp"
        web.shutdown()


@pytest.mark.parametrize(
    "definition", [{"inputSchema": OBJECT}, {"name": None, "inputSchema": OBJECT}, "odd", None]
)
def test_definition_without_a_name_is_left_out_alone(definition: Any):
    """It is named by its number in the list."""
    tools, left_out = listed(definition)
    assert (list(tools), list(left_out)) == (["good"], ["tool 2"])


@pytest.mark.parametrize(
    "definition",
    [
        {"inputSchema": OBJECT, "outputSchema": {"$ref": "#/$defs/N", "$defs": TREE}},
        {"inputSchema": {"properties": {"a": {"type": "string"}}}},
        {"inputSchema": {**OBJECT, "properties": None, "required": None, "$defs": None}},
        {"inputSchema": {"type": ["object", "null"], "properties": {}}},
        {"inputSchema": OBJECT, "icons": 5},
        {"inputSchema": OBJECT, "description": 5},
    ],
)
def test_oddity_that_no_call_needs_costs_no_tool(definition: dict[str, Any]):
    """The schema of results is not used, and arguments are always an object."""
    tools, left_out = listed({"name": "odd", **definition})
    assert (list(tools), left_out) == (["good", "odd"], {})


@pytest.mark.parametrize("name", ["1st", "-x", "with space", "a/b.c", "größe", "x" * 200, ""])
def test_every_vendor_takes_the_name_under_which_a_tool_is_offered(name: str):
    """Gemini takes none that begins with a digit or a hyphen."""
    tools, left_out = listed({"name": name, "inputSchema": OBJECT})
    (odd,) = (tool for own, tool in tools.items() if own != "good")
    assert all(
        odd.get_schema(vendor)
        for vendor in ("openai-chat", "openai-response", "anthropic", "gemini")
    )
    assert left_out == {}


def test_half_a_character_in_a_description_costs_no_tool():
    """JavaScript servers write one where they cut a text in the middle of an emoji."""
    tools, _ = listed(
        {"name": "odd", "description": "Cut \ud83d here, \U0001f600 kept", "inputSchema": OBJECT}
    )
    assert tools["odd"].description == "Cut \ufffd here, \U0001f600 kept"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\uD83D\uDE00\ude00!", "\U0001f600\ufffd!"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\\ud83d", r"\ud83d"),
        (r"\\\ud83d\n", "\\\ufffd\n"),
        (r"\u00e9\\", "é\\"),
        ("\\\\" * 9 + r"\ud83d", "\\" * 9 + "\ufffd"),
    ],
)
def test_half_characters_are_replaced_wherever_an_answer_is_split(written: str, read: str):
    """An HTTP answer arrives in chunks, and an escape may be in two of them."""
    body = f'{{"a": "{written}"}}'.encode()

    async def joined(*chunks: bytes) -> bytes:
        async def arriving() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        return b"".join([chunk async for chunk in chunks_without_half_characters(arriving())])

    for at in range(len(body)):
        assert json.loads(asyncio.run(joined(body[:at], body[at:])))["a"] == read
    assert (
        json.loads(asyncio.run(joined(*(body[at : at + 1] for at in range(len(body))))))["a"]
        == read
    )


def test_tool_with_odd_annotations_counts_as_destructive():
    """What it says of itself cannot be read, so that it must not run at once."""
    tools, _ = listed(
        {"name": "odd", "inputSchema": OBJECT, "annotations": {"readOnlyHint": "maybe"}}
    )
    assert (tools["odd"].read_only, ToolTag.DESTRUCTIVE in tools["odd"].metadata.tags) == (
        False,
        True,
    )


def test_operation_that_cannot_be_used_is_left_out_alone(tmp_path: Path):
    """Also where it is included by its name."""
    operations = {
        "get": {"operationId": "good"},
        "put": {"operationId": "odd", "requestBody": {"$ref": "#/nowhere"}},
    }
    document = {
        "openapi": "3.1.0",
        "servers": [{"url": "https://a.test"}],
        "paths": {"/a": operations},
    }
    (tmp_path / "api.json").write_text(json.dumps(document))
    provider = OpenApiToolProvider(tmp_path / "api.json", include=["good", "odd"])
    assert [tool.name for tool in asyncio.run(provider.list_tools())] == ["good"]
    assert provider.left_out == {"odd": "PUT /a: it refers to '#/nowhere', and there is nothing"}
