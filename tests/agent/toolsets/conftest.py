"""Servers for the tests of tool sources: MCP servers as processes, and a small HTTP API in a thread."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sayso.agent.toolsets.mcp import McpToolProvider
from tests.config.processes import free_port

TINY = Path(__file__).parent / "tiny_mcp.py"


class Notes:
    """The lines that a server process has written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __iter__(self) -> Iterator[str]:
        return iter(self.path.read_text().splitlines())

    def until(self, word: str, times: int = 1) -> None:
        """Wait until this many lines start with this word."""
        deadline = time.monotonic() + 30
        while self.times(word) < times:
            assert time.monotonic() < deadline, list(self)
            time.sleep(0.01)

    def times(self, word: str) -> int:
        return sum(line.startswith(word) for line in self)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """Return empty notes."""
    return Notes(tmp_path / "notes")


@pytest.fixture
def tiny(notes: Notes) -> Iterator[Callable[..., McpToolProvider]]:
    """Return a function that makes providers of the tiny server over stdio, closed at the end."""
    made: list[McpToolProvider] = []

    def make(**options: Any) -> McpToolProvider:
        env = {"NOTES": str(notes.path), **options.pop("env", {})}
        made.append(McpToolProvider(sys.executable, [str(TINY)], env=env, name="tiny", **options))
        return made[-1]

    yield make
    for provider in made:
        provider.close()


@pytest.fixture(scope="module")
def shared_tiny() -> Iterator[McpToolProvider]:
    """Return a provider for all tests of a module that do not change its server: each start takes a second."""
    provider = McpToolProvider(
        sys.executable, [str(TINY)], env={"TOKEN": "s3cr3t-value"}, name="tiny"
    )
    yield provider
    provider.close()


class TinyHttp:
    """The tiny MCP server over HTTP, as a process that can be killed and restarted on its port."""

    def __init__(self, notes: Notes) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._notes = notes
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(TINY), str(self.port)]
        self.process = subprocess.Popen(
            command, env={"NOTES": str(self._notes.path)}, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 30
        while not self._answers():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return self.process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def tiny_http(notes: Notes) -> Iterator[TinyHttp]:
    """Return a running server."""
    server = TinyHttp(notes)
    yield server
    server.kill()


class Api:
    """A small HTTP API that records its requests and gives scripted answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        api = self

        class Handler(BaseHTTPRequestHandler):
            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                api.asked.append((self.command, self.path, headers, body))
                status, extra, data = api.answers.get(
                    self.path.partition("?")[0], api.default(headers)
                )
                self.send_response(status)
                for name, value in extra.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = _handle  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def default(self, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Return an answer that describes the request."""
        method, path, _, body = self.asked[-1]
        said = {"method": method, "path": path, "body": body.decode(errors="replace")}
        return 200, {"Content-Type": "application/json"}, json.dumps(said).encode()

    def answer(self, path: str, data: Any, status: int = 200, **headers: str) -> None:
        """Set the answer for this path."""
        kinds = {bytes: "application/octet-stream", str: "text/plain"}
        raw = (
            data
            if isinstance(data, bytes)
            else data.encode()
            if isinstance(data, str)
            else json.dumps(data).encode()
        )
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[path] = (
            status,
            {"Content-Type": kinds.get(type(data), "application/json"), **named},
            raw,
        )


@pytest.fixture
def api() -> Iterator[Api]:
    """Return a running API."""
    server = Api()
    yield server
    server.server.shutdown()
    server.server.server_close()
