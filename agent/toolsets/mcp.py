"""McpToolProvider on the official SDK: server, connection, results."""

from __future__ import annotations

import asyncio
import atexit
import base64
import binascii
import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TextIO, TypeVar
from urllib.parse import unquote, urlsplit

from sayso.agent.extras import install_command
from sayso.agent.tools.context import MAX_ARTIFACT_BYTES, emit_artifact
from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.results import ToolOutcome
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.base import (
    MAX_TOOLS,
    UNCLEAR_STATUSES,
    AnswerLost,
    CallRefused,
    Choice,
    SourceError,
    SourceUnreachable,
    UnclearOutcome,
    UnusableSchema,
    described,
    digest,
    legal_names,
    pause_seconds,
    safe_schema,
    scrub,
    scrub_value,
)
from sayso.channels.media import UNKNOWN_TYPE, settle_type
from sayso.channels.redaction import redact
from sayso.channels.types import extension_of
from sayso.pending.concurrency import LoopThread, offload

if TYPE_CHECKING:
    import httpx2
    from mcp import Client
    from mcp.shared.exceptions import MCPError
    from mcp.types import CallToolResult
    from mcp.types import Tool as Definition


#: Characters of what a library or a server says: the rest quotes what it read.
MAX_WORDS_CHARS = 200


#: How the SDK says that no answer will come. Its code for that, -32000, servers use for errors of their own.
_BROKE_OFF = ("Connection closed", "SSE stream ")


def broke_off(exc: MCPError) -> bool:
    """Whether no answer came, so that the connection is of no more use."""
    from mcp.types import CONNECTION_CLOSED

    return exc.code == CONNECTION_CLOSED and exc.message.startswith(_BROKE_OFF)


def is_forgotten(exc: MCPError, status: int) -> bool:
    """Whether the server knows nothing of this session any more: the next call needs another."""
    from mcp.types import INVALID_REQUEST

    return status == HTTPStatus.NOT_FOUND and exc.code == INVALID_REQUEST


def is_unclear(exc: MCPError, status: int) -> bool:
    """Whether what was asked may have been done; `status` is what HTTP answered, 0 where it is not spoken."""
    from mcp.types import PARSE_ERROR

    is_unreadable = exc.code == PARSE_ERROR and status != 0
    return broke_off(exc) or is_unreadable or status in (*UNCLEAR_STATUSES, HTTPStatus.ACCEPTED)


def told(exc: MCPError, status: int, secrets: Sequence[str]) -> str:
    """What it says, in a line."""
    return f"{_line(exc.message, secrets)}{status_words(status)}"


def status_words(status: int) -> str:
    """How HTTP refused, which the protocol's own errors leave out; "" where it did not."""
    key = ": check its headers" if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) else ""
    return f"; it answered {status}{key}" if status >= HTTPStatus.BAD_REQUEST else ""


def words(exc: BaseException, secrets: Sequence[str]) -> str:
    """Why, in words. Of what other libraries raise only the type: their words may hold a URL, and with it a secret."""
    cause = next(_leaves(exc))
    if isinstance(cause, SourceError):
        return str(cause)
    from mcp.shared.exceptions import MCPError

    if isinstance(cause, MCPError):
        return "it ended before it answered" if broke_off(cause) else _line(str(cause), secrets)
    if isinstance(cause, FileNotFoundError | PermissionError | NotADirectoryError):
        return f"{cause.filename!r}: {cause.strerror}"
    return type(cause).__name__


def _line(text: str, secrets: Sequence[str]) -> str:
    """Scrubbed before it is cut: of half a secret nobody knows that it is one."""
    return scrub(text, secrets).partition("\n")[0][:MAX_WORDS_CHARS].rstrip(":. ")


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        for inner in exc.exceptions:
            yield from _leaves(inner)
    else:
        yield exc


#: Bytes of one answer, or of one stream of events before it is opened again.
MAX_ANSWER_BYTES = 50_000_000


#: Seconds to connect, and to send. How long an answer may take is not decided here: a stream may be silent for long.
SEND_SECONDS = 30.0


def capped_client(
    headers: Mapping[str, str], look: Callable[[Any], Awaitable[None]], max_bytes: int = MAX_ANSWER_BYTES
) -> httpx2.AsyncClient:
    """A client with these headers; `look` sees each response before its body is read."""
    import httpx2

    class Counted(httpx2.AsyncByteStream):
        """Another stream, which breaks when it grows too long."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                size += len(chunk)
                if size > max_bytes:
                    raise httpx2.ReadError(f"more than {max_bytes} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def cap(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("compressed, which was not asked for: it may be any size")
        response.stream = Counted(response.stream)

    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        timeout=httpx2.Timeout(SEND_SECONDS, read=None),
        event_hooks={"response": [look, cap]},
    )


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


T = TypeVar("T")


log = logging.getLogger(__name__)


#: Pages of a list of tools that are read.
MAX_PAGES = 50


#: Seconds that a call which is given up has to tell the server so.
CANCEL_SECONDS = 1.0


class McpConnection:
    """Entered and left by one task of its own, the actor, as the SDK's cancel scopes demand; calls are other tasks.

    A connection that broke, or on which a call was given up, takes no new calls, and closes after the last one.
    """

    def __init__(self, server: McpServer, changed: Callable[[], None]) -> None:
        self._server = server
        self._changed = changed
        self._noticed = Noticed(self._lose)
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._stop = asyncio.Event()
        self._stale = asyncio.Event()
        self._calls = 0
        self._lost = False
        self._reason = ""
        self._client: Client | None = None
        self._actor: asyncio.Task[None] | None = None
        self.definitions: list[Definition] = []

    @property
    def is_open(self) -> bool:
        """Whether it takes calls."""
        return self._ready.is_set() and not (self._lost or self._ended.is_set())

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self._ended.is_set()

    async def open(self, seconds: float) -> None:
        """Connect and list the tools. Raises SourceUnreachable."""
        self._actor = asyncio.create_task(self._run())
        try:
            await _first(self._ready, self._ended, seconds=seconds)
        except BaseException:
            self._abandon()
            raise
        if not self._ready.is_set():
            self._abandon()
            raise SourceUnreachable(self._unreachable(seconds))

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """Call a tool. Raises AnswerLost when no answer comes, and CallRefused for one that is a refusal."""
        assert self._client is not None  # noqa: S101  # `open` has returned
        self._calls += 1
        answer = HttpAnswer()
        asked = asyncio.create_task(_noting(answer, self._client.call_tool(name, arguments)))
        gone = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({asked, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return self._answer(asked, seconds, answer.status)
        finally:
            gone.cancel()
            await _given_up(asked)
            self._calls -= 1
            self._close_if_idle()

    async def close(self) -> None:
        """Leave the server. One that does not end by itself is killed."""
        self._lost = True
        self._stop.set()
        if not self._ready.is_set():
            self._abandon()
        await self._ended.wait()

    def _abandon(self) -> None:
        """Leave in the middle of the handshake. Once: another cancellation would end the leaving itself."""
        if self._actor is not None:
            self._actor.cancel()
            self._actor = None

    def _answer(self, asked: asyncio.Task[CallToolResult], seconds: float, status: int) -> CallToolResult:
        from mcp.shared.exceptions import MCPError

        if not asked.done():
            self._lose()
            late = f"gave no answer within {seconds:g} s"
            raise AnswerLost(f"{self._server} {'ended before it answered' if self._ended.is_set() else late}")
        try:
            return asked.result()
        except MCPError as exc:
            raise self._failure(exc, status) from None
        except (Exception, asyncio.CancelledError) as exc:  # what the answer held was no result
            raise AnswerLost(f"{self._server} answered with something unreadable ({type(exc).__name__})") from exc

    def _failure(self, exc: MCPError, status: int) -> SourceError:
        if broke_off(exc):
            self._lose()
            return AnswerLost(f"{self._server} ended before it answered")
        if is_forgotten(exc, status):
            self._lose()
        said = told(exc, status, self._server.secrets)
        return AnswerLost(f"{self._server} failed: {said}") if is_unclear(exc, status) else CallRefused(said)

    async def _run(self) -> None:
        _hush()
        try:
            async with AsyncExitStack() as stack:
                await self._enter(stack)
                self._ready.set()
                await self._stay()
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001  # told to whoever waits; groups of them too
            self._reason = words(exc, self._server.secrets)
        finally:
            was_ready, self._lost = self._ready.is_set() and not self._lost, True
            self._ended.set()
            if was_ready:
                self._changed()

    async def _enter(self, stack: AsyncExitStack) -> None:
        try:
            from mcp import Client
        except ImportError as exc:
            raise SourceError(f"the SDK is not installed: {install_command('mcp')}") from exc
        transport = self._server.transport(self._noticed)
        client = await stack.enter_async_context(Client(transport, message_handler=self._heard, cache=None))
        # The SDK's own check is by the server's patterns and references, which can keep a process busy for ever.
        setattr(client.session, "validate_tool_result", _unchecked)  # noqa: B010
        self.definitions = await _listed(client)
        listening = asyncio.create_task(self._listen(client))
        stack.callback(listening.cancel)
        self._client = client

    async def _stay(self) -> None:
        """Until it is to end. Told of other tools, list them again."""
        while not self._stop.is_set():
            await _first(self._stop, self._stale)
            if self._stale.is_set() and not self._stop.is_set():
                self._stale.clear()
                self.definitions = await _listed(self._client)
                self._changed()

    async def _listen(self, client: Client) -> None:
        """Hear of other tools where the protocol has a subscription for it; older servers just send a message."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.exceptions import MCPError

        try:
            async with client.listen(tools_list_changed=True) as subscription:
                async for _ in subscription:
                    self._stale.set()
        except SubscriptionLost:
            self._lose()
        except (ListenNotSupportedError, MCPError):
            return

    async def _heard(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._stale.set()

    def _lose(self) -> None:
        """Take no further calls; those under way may still be answered."""
        was_open, self._lost = self.is_open, True
        self._close_if_idle()
        if was_open:
            self._changed()

    def _close_if_idle(self) -> None:
        if self._lost and not self._calls:
            self._stop.set()

    def _unreachable(self, seconds: float) -> str:
        said = self._reason if self._ended.is_set() else f"it gave no answer within {seconds:g} s"
        why = scrub(said, self._server.secrets)
        return f"{self._server} cannot be reached: {why}{self._noticed}; {self._server.cure}"


async def _unchecked(_: str, __: CallToolResult) -> None:
    """A result is what the server says: the model reads it either way."""


async def _noting(answer: HttpAnswer, asked: Coroutine[Any, Any, T]) -> T:
    """What was asked; how HTTP answered it is noted meanwhile."""
    http_answer.set(answer)
    return await asked


async def _first(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of them is set, or the time is up."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _given_up(asked: asyncio.Task[Any]) -> None:
    if not asked.done():
        asked.cancel()
        await asyncio.wait({asked}, timeout=CANCEL_SECONDS)


async def _listed(client: Any) -> list[Definition]:
    """All pages of the list, within bounds that no honest server meets."""
    found: list[Definition] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor or len(found) > 10 * MAX_TOOLS:
            break
    return found


def _hush() -> None:
    """The SDK logs what a server wrote, and the HTTP client every URL; both may hold secrets."""
    for name, level in (
        ("mcp", logging.CRITICAL),
        ("client", logging.CRITICAL),
        ("httpx2", logging.WARNING),
        ("httpcore2", logging.WARNING),
    ):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, level))


#: Seconds after a first failure before a server is tried again; they double with each further one.
FIRST_PAUSE_SECONDS = 0.5


#: Seconds between two attempts at most.
LONGEST_PAUSE_SECONDS = 30.0


#: Seconds of a pause that a call waits for; for a longer one it is refused at once.
PATIENCE_SECONDS = 2.0


#: Seconds that closing may take: a server that ignores the end of its input is killed meanwhile.
CLOSE_SECONDS = 5.0


class ReconnectingConnection:
    """Lives as long as its provider. Callers may be on any thread and any event loop.

    The connection lives on an event loop of its own, in a daemon thread of the process that asks first: a fork has
    none of its parent's, and makes its own. `changed` is called on that thread when the server says that its tools
    have changed, and when it is lost.
    """

    def __init__(self, server: McpServer, *, connect_seconds: float, call_seconds: float) -> None:
        self._server = server
        self._connect_seconds = connect_seconds
        self._call_seconds = call_seconds
        self._homes: dict[int, _Home] = {}
        self.changed: Callable[[], None] = lambda: None

    async def definitions(self) -> list[Definition]:
        """The server's tools, as it last listed them. Raises SourceUnreachable."""
        return await self._at_home(_Home.definitions)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool by the server's own name for it. Raises SourceUnreachable, CallRefused and AnswerLost."""
        return await self._at_home(lambda home: home.call(name, dict(arguments), self._call_seconds))

    def close(self) -> None:
        """End the connection and its thread; the next call makes new ones."""
        home = self._homes.pop(os.getpid(), None)
        if home is not None:
            home.close()

    async def _at_home(self, work: Callable[[_Home], Coroutine[Any, Any, T]]) -> T:
        home = self._homes.setdefault(os.getpid(), _Home(self._server, self._connect_seconds, self._tell))
        return await asyncio.wrap_future(home.loop.submit(work(home)))

    def _tell(self) -> None:
        self.changed()


@dataclass(slots=True)
class _Home:
    """What one process has of a link. Everything but `loop` and `close` is called on its loop."""

    server: McpServer
    connect_seconds: float
    tell: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    pid: int = field(default_factory=os.getpid)
    connection: McpConnection | None = None
    connections: list[McpConnection] = field(default_factory=list)
    failures: int = 0
    not_before: float = 0.0
    _why: str = ""
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _thread: LoopThread | None = None
    _making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def loop(self) -> LoopThread:
        with self._making:
            if self._thread is None:
                self._thread = LoopThread(asyncio.new_event_loop(), f"sayso-mcp-{self.server.name}")
                atexit.register(self.close)
            return self._thread

    def close(self) -> None:
        if self.pid != os.getpid():  # the parent's, seen by a fork at its exit
            return
        atexit.unregister(self.close)
        with self._making:
            thread, self._thread = self._thread, None
        if thread is not None:
            with contextlib.suppress(TimeoutError):
                thread.submit(self._leave()).result(CLOSE_SECONDS)
            thread.close()

    async def definitions(self) -> list[Definition]:
        return (await self._connected()).definitions

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        connection = await self._connected()
        try:
            result = await connection.call(name, arguments, seconds)
        except AnswerLost:
            self._failed()
            raise
        self.failures = 0
        return result

    async def _connected(self) -> McpConnection:
        async with self._opening:
            if self.connection is None or not self.connection.is_open:
                await self._pause()
                self.connection = await self._opened()
            return self.connection

    async def _opened(self) -> McpConnection:
        connection = McpConnection(self.server, self.tell)
        self.connections = [*filter(lambda each: not each.is_over, self.connections), connection]
        try:
            await connection.open(self.connect_seconds)
        except SourceUnreachable as exc:
            self._why = str(exc)
            self._failed()
            raise
        self.failures = 0
        return connection

    async def _pause(self) -> None:
        left = self.not_before - self.clock()
        if left > PATIENCE_SECONDS:
            raise SourceUnreachable(f"{self._why or f'{self.server} broke off'}; the next attempt is in {left:.0f} s")
        await asyncio.sleep(max(left, 0))

    def _failed(self) -> None:
        self.not_before = self.clock() + pause_seconds(self.failures, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self.failures += 1

    async def _leave(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self.connections))


#: Characters of base64 that are taken for binary content at least. Shorter ones may be ids, keys and signatures.
MIN_CHARS = 256


#: Files of one answer's texts that reach the user.
MAX_TEXT_FILES = 10


_BASE64, _BREAK = r"[A-Za-z0-9+/_-]", r"(?:\\n|\r?\n)"


#: One long line of base64, or lines as mail has them; perhaps as a data URL.
_RUN = re.compile(
    rf"(?:data:(?P<type>[\w.+-]+/[\w.+-]+)[^,\s]{{0,100}};base64,)?"
    rf"(?P<data>(?:{_BASE64}{{{MIN_CHARS},}}"
    rf"|{_BASE64}{{60,100}}(?:{_BREAK}{_BASE64}{{60,100}}){{2,}}(?:{_BREAK}{_BASE64}{{1,100}})?)={{0,2}})"
)


_BREAKS = re.compile(r"\\n|\s")


class Binaries:
    """Lives for one answer. Hands each file over once, whatever parts of the answer repeat it; none of an error."""

    def __init__(self, *, is_error: bool = False) -> None:
        self._is_error = is_error
        self._seen: set[str] = set()
        self._found = 0

    def hand_over(self, data: bytes, mime_type: str, filename: str) -> None:
        """Give a file to the user; an image is shown to the model, too."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._seen:
            self._seen.add(digest)
            emit_artifact(data=data, mime_type=mime_type, filename=filename, shown=mime_type.startswith("image/"))

    def removed(self, value: Any) -> Any:
        """Return the value with a note in the place of each piece of base64."""
        if isinstance(value, str):
            return _RUN.sub(self._note, value) if len(value) >= MIN_CHARS else value
        if isinstance(value, Mapping):
            return {name: self.removed(each) for name, each in value.items()}
        return [self.removed(each) for each in value] if isinstance(value, list) else value

    def _note(self, found: re.Match[str]) -> str:
        data = _decoded(found["data"]) if len(found[0]) >= MIN_CHARS else None
        if data is None:
            return found[0]
        kind = settle_type(data, found["type"] or "")
        if self._is_error or kind == UNKNOWN_TYPE or self._found >= MAX_TEXT_FILES or len(data) > MAX_ARTIFACT_BYTES:
            return f"(binary data, {len(data)} bytes, is left out)"
        self._found += 1
        filename = with_extension("", kind)
        self.hand_over(data, kind, filename)
        return f"(handed to the user: {filename}, {kind}, {len(data)} bytes)"


def with_extension(filename: str, mime_type: str) -> str:
    """Return a file's name with an extension: platforms and tools go by it."""
    return filename if PurePosixPath(filename).suffix else f"{filename or 'file'}{extension_of(mime_type)}"


def _decoded(text: str) -> bytes | None:
    """Return the bytes of base64; None for a text that only looks like it, such as a hexadecimal number."""
    plain = _BREAKS.sub("", text).replace("-", "+").replace("_", "/")
    has_all = all(re.search(kind, plain) for kind in ("[A-Z]", "[a-z]", "[0-9]"))
    if not has_all or len(plain.rstrip("=")) % 4 == 1:
        return None
    try:
        return base64.b64decode(plain.rstrip("=") + "=" * (-len(plain.rstrip("=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


#: Files of one answer that reach the user.
MAX_FILES = 10


#: Characters of an error that reach the model.
MAX_ERROR_CHARS = 1000


def value_of(result: CallToolResult) -> Any:
    """The answer's structured content, else its text; images, sounds and other files become artifacts, and the model
    sees the images.

    A server gives structured content as text too, for those who read nothing else: the text is not repeated. Base64 in
    either is no text: a file in it is handed over once, and a note takes its place.
    """
    binaries = Binaries()
    blocks = [block for block in result.content if _is_file(block)][:MAX_FILES]
    files = [_hand_over(block, binaries) for block in blocks]
    value = binaries.removed(_unwrapped(result.structured_content, _text(result)))
    notes = "\n".join(f"(handed to the user: {file})" for file in files)
    if not notes:
        return value
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{words}\n{notes}" if words else notes


def complaint(result: CallToolResult, secrets: Sequence[str]) -> str:
    """The words of an answer that is an error, scrubbed before they are cut: half a secret would not be found."""
    binaries = Binaries(is_error=True)
    held = binaries.removed(scrub_value(result.structured_content, secrets))
    text = binaries.removed(scrub(_text(result), secrets)) or (
        json.dumps(held, ensure_ascii=False) if held else "no reason given"
    )
    return text[:MAX_ERROR_CHARS]


def _unwrapped(structured: Any, text: str) -> Any:
    """Servers wrap a plain value as `{"result": value}`, because structured content was an object once."""
    if structured is None:
        return text
    is_wrapped = isinstance(structured, dict) and list(structured) == ["result"]
    return structured["result"] if is_wrapped else structured


def _text(result: CallToolResult) -> str:
    return "\n".join(text for block in result.content if (text := _words(block)))


def _words(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "resource_link":
            return f"{block.title or block.name}: {block.uri}"
        case "resource":
            return str(getattr(block.resource, "text", ""))
    return ""


def _is_file(block: Any) -> bool:
    return block.type in ("image", "audio") or (block.type == "resource" and hasattr(block.resource, "blob"))


def _hand_over(block: Any, binaries: Binaries) -> str:
    """Give one file to the user; what it is, for the model."""
    holder = block.resource if block.type == "resource" else block
    mime_type = holder.mime_type or "application/octet-stream"
    try:
        data = base64.b64decode(holder.blob if block.type == "resource" else holder.data, validate=True)
    except (binascii.Error, ValueError):
        return f"nothing: what was called {mime_type} is no base64"
    own_name = PurePosixPath(unquote(urlsplit(str(holder.uri)).path)).name if block.type == "resource" else ""
    filename = with_extension(own_name, mime_type)
    binaries.hand_over(data, mime_type, filename)
    return f"{filename}, {mime_type}, {len(data)} bytes"


#: Seconds to start a server and list its tools. Some are downloaded at their first start.
CONNECT_SECONDS = 20.0


#: Seconds one call may take.
CALL_SECONDS = 60.0


class McpToolProvider:
    """Lists and calls the tools of one MCP server: a program (`command`, `args`, `env`, `cwd`) or a URL with `headers`.

    Lives as long as the program; the connection is made at the first call, by each process for itself, and again after
    it broke. May be called from any thread and any event loop. A program inherits no environment but HOME, LOGNAME,
    PATH, SHELL, TERM, USER and what `env` says. `include` and `exclude` are patterns over the server's names.

    Annotations of tools become hints (MCP specification, ToolAnnotations): who does not trust a server says in the
    policy what asks first, and does not rest on what the server says of itself.
    """

    def __init__(
        self,
        command: str = "",
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        url: str = "",
        headers: Mapping[str, str] | None = None,
        name: str = "",
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        connect_seconds: float = CONNECT_SECONDS,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        if bool(command) == bool(url):
            raise ValueError("an MCP server is a command or a url: give one of them")
        self.name = name or (Path(command).name if command else urlsplit(url).hostname or "server")
        whole = (command, *args) if command else ()
        self._server = McpServer(self.name, whole, env or {}, cwd, url, headers or {})
        self._link = ReconnectingConnection(self._server, connect_seconds=connect_seconds, call_seconds=call_seconds)
        self._choice = Choice(include, exclude)
        self._own_names: dict[str, str] = {}

    async def list_tools(self) -> list[Tool]:
        """The server's tools under names that every vendor accepts. Raises SourceUnreachable."""
        chosen = self._chosen(await self._link.definitions())
        legal = legal_names(list(chosen))
        self._own_names = {name: own for own, name in legal.items()}
        # Not on the loop: the schemas of others may take long to look at.
        return await offload(lambda: [tool for own, name in legal.items() for tool in self._tool(chosen[own], name)])

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Call a tool. Files it answers with are handed to the user as artifacts; errors say whether it took effect."""
        own = self.own_name(tool_name)
        try:
            result = await self._link.call(own, parameters)
        except SourceUnreachable as exc:
            return _failed(f"{exc}; {own!r} was not called")
        except AnswerLost as exc:
            error = f"{exc}: whether {own!r} took effect is not known, so look before it is called again"
            return UnclearOutcome(success=False, error=error)
        except CallRefused as exc:
            return _failed(f"{self._server} refused {own!r}: {exc}")
        if result.is_error:
            return _failed(f"{own!r} of {self._server} failed: {complaint(result, self._server.secrets)}")
        return ToolOutcome(success=True, result=scrub_value(value_of(result), self._server.secrets))

    def own_name(self, tool_name: str) -> str:
        """What the server calls a tool that was listed under this name."""
        return self._own_names.get(tool_name, tool_name)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call this, on a thread of our own, whenever the tools should be listed again."""
        self._link.changed = changed

    def close(self) -> None:
        """Leave the server; a program is ended. The next call connects again."""
        self._link.close()

    def _chosen(self, definitions: list[Definition]) -> dict[str, Definition]:
        """By name; of two with one name the first, of too many the first ones."""
        chosen: dict[str, Definition] = {}
        for definition in definitions:
            if self._choice.takes(definition.name):
                chosen.setdefault(definition.name, definition)
        if len(chosen) > MAX_TOOLS:
            log.warning("mcp.too_many_tools", extra={"server": self.name, "tools": len(chosen), "taken": MAX_TOOLS})
        return dict(list(chosen.items())[:MAX_TOOLS])

    def _tool(self, definition: Definition, name: str) -> Iterator[Tool]:
        """The definition as a tool; nothing for one that cannot be: the others go on."""
        try:
            yield Tool(
                name,
                described(scrub(definition.description or "", self._server.secrets), definition.name),
                safe_schema(definition.input_schema),
                screen_output=True,
                version=digest(definition.model_dump(mode="json", by_alias=True, exclude_none=True)),
                metadata=replace(_metadata(definition), source_detail=self.name),
                read_only=_is_read_only(definition),
                idempotent=bool(definition.annotations and definition.annotations.idempotent_hint),
            )
        except (UnusableSchema, ToolValidationError) as exc:
            log.warning("mcp.tool_left_out", extra={"server": self.name, "tool": name, "why": str(exc)})


def _metadata(definition: Definition) -> ToolMetadata:
    """Hints of the server, with the specification's defaults: what does not call itself harmless is destructive."""
    hints, tags = definition.annotations, set()
    if _is_read_only(definition):
        tags.add(ToolTag.READ_ONLY)
    elif hints is None or hints.destructive_hint is not False:
        tags.add(ToolTag.DESTRUCTIVE)
    if hints is None or hints.open_world_hint is not False:
        tags.add(ToolTag.NETWORK)
    return ToolMetadata(tags=frozenset(tags), source="mcp")


def _is_read_only(definition: Definition) -> bool:
    return bool(definition.annotations and definition.annotations.read_only_hint)


def _failed(error: str) -> ToolOutcome:
    return ToolOutcome(success=False, error=error)
