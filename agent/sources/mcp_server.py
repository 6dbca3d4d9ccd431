"""McpServer: where an MCP server is, and the way there."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from sayso.agent.sources.errors import scrub
from sayso.agent.sources.mcp_errors import status_words
from sayso.agent.sources.mcp_http import capped_client
from sayso.channels.redaction import redact

#: Characters of a line that a program writes to standard error; a longer one is passed on in parts.
MAX_STDERR_CHARS = 65_536

#: A server that does not end when its input does would outlive a killed worker. PR_SET_PDEATHSIG is 1, SIGKILL 9.
_LEASH = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class McpServer:
    """A program that speaks over its standard input and output, or a URL that speaks streamable HTTP."""

    name: str
    command: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | Path | None = None
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"the MCP server {self.name!r}"

    @property
    def secrets(self) -> list[str]:
        """What must not be repeated in an error."""
        values = [*self.env.values(), *self.headers.values()]
        return [part for value in values for part in (value, value.rpartition(" ")[2])]

    @property
    def cure(self) -> str:
        """What to look at when it cannot be reached."""
        return "run its command in a shell to see why" if self.command else "check that it runs, and its url"

    @asynccontextmanager
    async def transport(self, noticed: Noticed) -> AsyncIterator[Any]:
        """The streams to and from it, for mcp's Client."""
        async with self._program(noticed) if self.command else self._http(noticed) as streams:
            yield streams

    @asynccontextmanager
    async def _program(self, noticed: Noticed) -> AsyncIterator[Any]:
        import anyio
        from mcp.client.stdio import StdioServerParameters, stdio_client

        command, *args = self._leashed()
        start = StdioServerParameters(
            command=command, args=args, env=dict(self.env), cwd=self.cwd, encoding_error_handler="replace"
        )
        with _scrubbed_stderr(self.secrets) as stderr:
            async with stdio_client(start, errlog=stderr) as (read, write):
                heard, read_on = anyio.create_memory_object_stream[Any](0)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(noticed.pass_on, read, heard)
                    yield read_on, write
                    tasks.cancel_scope.cancel()

    def _leashed(self) -> Sequence[str]:
        """The command, ended by the kernel when this process dies, however it dies. Where that is not to be had, and
        for a program that is not there, the command itself.
        """
        if sys.platform != "linux" or not sys.executable or not self._is_there():
            return self.command
        return [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), *self.command]

    def _is_there(self) -> bool:
        program = self.command[0]
        if "/" in program:
            program = str(Path(self.cwd or "") / program)
        return shutil.which(program, path=self.env.get("PATH")) is not None

    @asynccontextmanager
    async def _http(self, noticed: Noticed) -> AsyncIterator[Any]:
        from mcp.client.streamable_http import streamable_http_client

        async with (
            capped_client(self.headers, noticed.look) as client,
            streamable_http_client(self.url, http_client=client) as streams,
        ):
            yield streams


@contextmanager
def _scrubbed_stderr(secrets: Sequence[str]) -> Iterator[TextIO]:
    """Yield a file for what a program writes to standard error: it goes to ours, without secrets."""
    reader, writer = os.pipe()
    lines = os.fdopen(reader, encoding="utf-8", errors="replace")
    threading.Thread(target=_pass_on, args=(lines, secrets), name="mcp-stderr", daemon=True).start()
    with os.fdopen(writer, "w") as file:
        yield file


def _pass_on(lines: TextIO, secrets: Sequence[str]) -> None:
    """Copy until the program, and all that it started, closed it."""
    with lines:
        while line := lines.readline(MAX_STDERR_CHARS):
            print(redact(scrub(line, secrets)), end="", file=sys.__stderr__ or sys.stderr, flush=True)


@dataclass(slots=True)
class HttpAnswer:
    """How HTTP answered the last request of one task; 0 before it did, and where it is not spoken."""

    status: int = 0


#: Where the answers to the present task's own requests are noted: others are under way on the same connection.
http_answer: ContextVar[HttpAnswer | None] = ContextVar("http_answer", default=None)


@dataclass(slots=True)
class Noticed:
    """What was noticed on the way: how many lines of a program were no message, that it ended, how HTTP answered."""

    ended: Callable[[], None]
    stray: int = 0
    status: int = 0

    async def pass_on(self, read: Any, onward: Any) -> None:
        """Hand each message on; what is none is only counted."""
        async with onward:
            async for message in read:
                if isinstance(message, Exception):
                    self.stray += 1
                else:
                    await onward.send(message)
        self.ended()

    async def look(self, response: Any) -> None:
        """Remember how HTTP answered, which the protocol's own errors leave out."""
        self.status = response.status_code
        if answer := http_answer.get():
            answer.status = response.status_code

    def __str__(self) -> str:
        stray = f"; {self.stray} lines of its output were no messages: logs belong on stderr" if self.stray else ""
        return f"{stray}{status_words(self.status)}"
