"""Errors of MCP servers: a refused call had no effect, a broken one is unknown, and no part of a secret is shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sayso.agent import ToolOutcome
from sayso.agent.toolsets.base import SourceError, UnclearOutcome
from sayso.agent.toolsets.mcp import McpToolProvider
from tests.agent.toolsets.conftest import Api

TOKEN = "tok-0123456789-abcdefghijklmnopqrs"

Answered = tuple[int, dict[str, str], bytes]


class McpApi(Api):
    """An MCP server over HTTP with the protocol of 2025, whose calls have scripted answers."""

    description = ""
    session = ""
    version = "2025-06-18"
    begun = 0

    def default(self, headers: dict[str, str]) -> Answered:
        method, _, _, body = self.asked[-1]
        if method != "POST" or "id" not in (request := json.loads(body)):
            return 202 if method == "POST" else 405, {}, b""
        match request["method"]:
            case "initialize":
                self.begun += 1
                held = {
                    "protocolVersion": self.version,
                    "capabilities": {},
                    "serverInfo": {"name": "a", "version": "1"},
                }
                return self.says(result=held)
            case "tools/list":
                tool = {
                    "name": "pay",
                    "inputSchema": {"type": "object"},
                    "description": self.description,
                }
                return self.says(result={"tools": [tool]})
            case "tools/call":
                return self.called()
        return self.says(error={"code": -32601, "message": "Method not found"})

    def says(self, status: int = 200, **held: Any) -> Answered:
        """Return an answer to the last request."""
        number = json.loads(self.asked[-1][3])["id"]
        kind = {
            "Content-Type": "application/json",
            **({"Mcp-Session-Id": self.session} if self.session else {}),
        }
        return status, kind, json.dumps({"jsonrpc": "2.0", "id": number, **held}).encode()

    def called(self) -> Answered:
        """Return the answer to a call."""
        return self.says(result={"content": [{"type": "text", "text": "paid"}]})


@pytest.fixture
def far() -> Iterator[McpApi]:
    """Return a running server."""
    server = McpApi()
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.fixture
def provider(far: McpApi) -> Iterator[McpToolProvider]:
    """Return a provider of that server."""
    made = McpToolProvider(
        url=f"{far.url}/mcp", name="far", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    yield made
    made.close()


def pay(provider: McpToolProvider) -> ToolOutcome:
    """Return the outcome of a call."""
    return asyncio.run(provider.execute_tool("pay", {}))


@pytest.mark.parametrize("status", [202, 500, 502, 504])
@pytest.mark.parametrize("kind", ["text/html", "application/json"])
def test_broken_answer_leaves_the_effect_unknown(far, provider, status: int, kind: str):
    """Behind a gateway that timed out the payment may have been made."""
    far.called = lambda: (status, {"Content-Type": kind}, b"oops")
    outcome = pay(provider)
    assert isinstance(outcome, UnclearOutcome)
    assert "whether 'pay' took effect is not known" in str(outcome.error)
    assert status == 202 or f"it answered {status}" in str(outcome.error)


def test_error_message_with_a_server_error_status_is_unknown_too(far, provider):
    """Servers report an exception inside a tool this way."""
    far.called = lambda: far.says(500, error={"code": -32603, "message": "Internal server error"})
    outcome = pay(provider)
    assert isinstance(outcome, UnclearOutcome)
    assert "Internal server error; it answered 500" in str(outcome.error)


@pytest.mark.parametrize(
    ("status", "said"), [(401, "401: check its headers"), (429, "429"), (503, "503")]
)
def test_refused_call_is_reported_with_its_status(far, provider, status: int, said: str):
    """The call had no effect, and the error gives the reason."""
    far.called = lambda: (status, {}, b"")
    outcome = pay(provider)
    assert not isinstance(outcome, UnclearOutcome)
    assert f"refused 'pay': Server returned an error response; it answered {said}" in str(
        outcome.error
    )


def test_status_belongs_to_its_own_call(far, provider):
    """Other calls are under way on the same connection."""
    statuses = iter([200, 502, 429, 200])

    def called() -> Answered:
        status = next(statuses)
        return McpApi.called(far) if status == 200 else (status, {}, b"")

    far.called = called

    async def all_of_them() -> list[ToolOutcome]:
        return await asyncio.gather(*[provider.execute_tool("pay", {}) for _ in range(4)])

    outcomes = asyncio.run(all_of_them())
    assert sum(outcome.success for outcome in outcomes) == 2
    unclear = [str(outcome.error) for outcome in outcomes if isinstance(outcome, UnclearOutcome)]
    assert ["502" in error for error in unclear] == [True]


def test_sdk_error_code_from_a_server_is_a_refusal(far, provider):
    """A server may use -32000 itself: the call had no effect, and the connection stays open."""
    far.called = lambda: far.says(error={"code": -32000, "message": "quota exceeded"})
    outcome = pay(provider)
    assert not isinstance(outcome, UnclearOutcome)
    assert "refused 'pay': quota exceeded" in str(outcome.error)
    pay(provider)
    assert far.begun == 1


@pytest.mark.parametrize("data", [b"", b": still there\n\n", b"event: message\ndata: {\n\n"])
def test_broken_event_stream_leaves_the_effect_unknown(far, provider, data: bytes):
    """The stream ends before the answer or inside it."""
    far.called = lambda: (200, {"Content-Type": "text/event-stream"}, data)
    assert isinstance(pay(provider), UnclearOutcome)
    del far.called
    assert pay(provider).result == "paid"


@pytest.mark.parametrize(
    ("result", "read"),
    [
        ({"content": None, "isError": None}, ""),
        ({"content": "paid"}, "paid"),
        ({"content": {"type": "text", "text": "paid"}}, "paid"),
        ({"structuredContent": {"id": 7}}, {"id": 7}),
        ({"content": [], "structuredContent": [7]}, [7]),
        (
            {
                "content": [{"type": "text", "text": "paid"}],
                "structuredContent": None,
                "_meta": None,
            },
            "paid",
        ),
        (
            {"content": [{"type": "hologram"}, {"type": "text", "text": "paid"}]},
            '{"type": "hologram"}\npaid',
        ),
    ],
)
def test_odd_part_of_a_result_does_not_make_its_effect_unknown(
    far,
    provider,
    result: dict[str, Any],
    read: Any,
):
    """The call was answered.

    Servers in Go write null for an empty list, newer ones send other blocks.
    """
    far.called = lambda: far.says(result=result)
    outcome = pay(provider)
    assert (outcome.success, outcome.result) == (True, read)


def test_lost_session_is_started_again(far, provider):
    """The server was restarted: that call had no effect, and the next one works."""
    far.session = "one"
    far.called = lambda: (404, {}, b"")
    assert "refused 'pay': Session terminated; it answered 404" in str(pay(provider).error)
    del far.called
    assert pay(provider).result == "paid"
    assert far.begun == 2


def test_error_without_text_has_a_placeholder(far, provider):
    """The error does not contain `null`."""
    far.called = lambda: far.says(result={"isError": True, "content": []})
    assert str(pay(provider).error).endswith("failed: no reason given")


@pytest.mark.parametrize("before", [160, 190, 970, 980, 1990])
def test_cut_text_contains_no_part_of_a_secret(far, provider, before: int):
    """It holds for errors of a tool, errors of the protocol, and descriptions."""
    text = "x" * before + TOKEN
    for answer in (
        {"result": {"isError": True, "content": [{"type": "text", "text": text}]}},
        {"result": {"isError": True, "content": [], "structuredContent": {"a": text}}},
        {"error": {"code": -32603, "message": text}},
    ):
        far.called = lambda answer=answer: far.says(**answer)
        assert "tok-" not in str(pay(provider).error)
    far.description = text
    provider.close()
    (tool,) = asyncio.run(provider.list_tools())
    assert "tok-" not in tool.description


def test_server_with_another_version_of_the_protocol_is_named_with_it(far, provider):
    """The operator cannot see from a RuntimeError what to update.

    A secret in its answer is not shown.
    """
    far.version = f"2099-{TOKEN}"
    with pytest.raises(
        SourceError, match=r"it has the version '2099-[^']*' of the protocol"
    ) as caught:
        asyncio.run(provider.list_tools())
    assert TOKEN not in str(caught.value)
