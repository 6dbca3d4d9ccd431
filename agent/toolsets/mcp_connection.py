"""McpConnection: one session with an MCP server, made with the official SDK.

MCP is the Model Context Protocol, by which a server offers tools to programs. McpServer says where
the server is: a program that speaks over its standard input and output, or a URL. TransportMonitor
watches the messages of a session. ReconnectingConnection, in `mcp.py`, makes a new McpConnection
after one broke.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError

from sayso.agent.extras import LibraryError, import_libraries
from sayso.agent.toolsets.base import (
    MAX_TOOLS,
    UNCLEAR_STATUSES,
    AnswerLost,
    CallRefused,
    SourceError,
    SourceUnreachable,
    scrub,
)
from sayso.agent.toolsets.mcp_escapes import chunks_without_half_characters, without_half_characters
from sayso.agent.toolsets.mcp_listing import validation_reason, with_usable_listings
from sayso.infra.redaction import redact

if TYPE_CHECKING:
    import httpx2
    from mcp import Client
    from mcp.shared.exceptions import MCPError
    from mcp.shared.message import SessionMessage
    from mcp.types import CallToolResult
    from mcp.types import Tool as Definition

#: How long a cancelled call may take to tell the server so, in seconds.
CANCEL_SECONDS = 1.0
#: Shortest time between two listings that the server's announcements cause, in seconds: a server
#: may announce changes as often as it likes.
LISTING_PAUSE_SECONDS = 1.0
#: Time limit of a listing after the first one, in seconds.
LISTING_SECONDS = 20.0
#: Most pages that are read of a list of tools. No honest server has so many.
MAX_PAGES = 50
#: How many tools of a list are read before no further page is, since the limit of MAX_TOOLS counts
#: only those that the operator's filter selects.
MAX_LISTED_TOOLS = 10 * MAX_TOOLS
#: Largest answer in bytes; for a stream of events, the largest part before it is opened again.
MAX_ANSWER_BYTES = 50_000_000
#: Time limit to connect and to send, in seconds. Reading has none here, since a stream may be
#: silent for long.
SEND_SECONDS = 30.0
#: Longest line of a program's standard error, in characters; a longer one is passed on in parts.
MAX_STDERR_CHARS = 65_536
#: Shortest line of a value with several lines that is a secret by itself, in characters. A shorter
#: one may be a bracket or a word of JSON, which a result needs.
MIN_SECRET_LINE_CHARS = 16
#: Log levels of the SDK and its HTTP client, by their loggers. They would log what a server wrote,
#: and every URL, and both may hold secrets.
_SDK_LOG_LEVELS = {
    "mcp": logging.CRITICAL,
    "client": logging.CRITICAL,
    "httpx2": logging.WARNING,
    "httpcore2": logging.WARNING,
}
#: Longest text quoted from a library or a server, in characters. A longer one usually goes on with
#: the data that could not be read.
MAX_QUOTE_CHARS = 200


def import_sdk() -> None:
    """Import the parts of the SDK that a connection needs. Raises LibraryError."""
    transports = ("mcp.client.stdio", "mcp.client.streamable_http")
    import_libraries("mcp", "mcp", "mcp.client.subscriptions", *transports)


class ConnectionState(Enum):
    """What a connection does, and whether it takes calls. It only ever moves down this list."""

    #: It connects to the server, and lists the tools for the first time.
    OPENING = 1
    #: It takes calls, and lists the tools again whenever they change.
    OPEN = 2
    #: It is lost, or a call on it was given up. It takes no new calls; those under way may still be
    #: answered.
    RETIRED = 3
    #: Its session is being left: after the last call of a retired connection, or because its owner
    #: closes it. `McpConnection.is_closed` says when that is done.
    CLOSING = 4


class McpConnection:
    """One session with a server. Lives until it breaks or is closed, and is not opened again.

    It is made on a running event loop, and only used there. A separate task enters and leaves the
    session, as the cancel scopes of the SDK demand. Calls run in the tasks of their callers. These
    events change its ConnectionState:

    * to open: the tools are listed for the first time.
    * to retired: the program or the stream has ended, the tools cannot be listed again, the server
      has forgotten the session, or a call got no answer in time.
    * from retired to closing: no call is under way any more.
    * from any state to closing: `close` was called, or the session ended by itself.
    """

    def __init__(self, server: McpServer, changed: Callable[[], None]) -> None:
        """Begin to open a session. Await `open` before the first call.

        `changed` is called when the tools have changed, and when an open connection is lost.
        """
        self._server = server
        self._changed = changed
        self._monitor = TransportMonitor(self._retire)
        self._state = ConnectionState.OPENING
        #: Done when the tools were listed for the first time, so that calls are possible.
        self._first_listing = asyncio.get_running_loop().create_future()
        #: Set when the session must be left.
        self._closing = asyncio.Event()
        #: Set when the task of the session has work: to list the tools again, or to end.
        self._wake = asyncio.Event()
        #: Held while the tools are listed again.
        self._listing_lock = asyncio.Lock()
        #: How often the server announced other tools.
        self._announcements = 0
        #: How many of these announcements came before the last listing began.
        self._listed_announcements = 0
        #: When the last listing ended, by `time.monotonic`.
        self._listed_at = 0.0
        self._calls_under_way = 0
        #: Why the session ended with an error, for `open`; "" without one.
        self._error = ""
        #: What to install if the SDK is missing; "" if it is there.
        self._library_error = ""
        #: None until the session is entered.
        self._client: Client | None = None
        #: The tools of the server's last list.
        self.definitions: list[Definition] = []
        #: Why other tools of that list cannot be used, by their names.
        self.left_out: Mapping[str, str] = {}
        #: The same for a list that is being read. The transport fills it (`with_usable_listings`).
        self._left_out_while_listing: dict[str, str] = {}
        self._session = asyncio.create_task(self._run())

    @property
    def is_open(self) -> bool:
        """Whether this connection takes calls."""
        return self._state is ConnectionState.OPEN

    @property
    def is_closed(self) -> bool:
        """Whether the session has ended, or never began."""
        return self._session.done()

    async def open(self, seconds: float) -> None:
        """Wait until the tools are listed, at most `seconds`. Raises SourceUnreachable."""
        try:
            await asyncio.wait(
                {self._first_listing, self._session},
                timeout=seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            # Also if this caller is cancelled: a program that was started must not stay.
            self._cancel_opening()

        if self._library_error:
            raise SourceUnreachable(f"{self._server}: {self._library_error}")
        if not self._first_listing.done():
            error = f"it gave no answer within {seconds:g} s"
            if self.is_closed:
                error = self._error
            why = scrub(error, self._server.secrets)
            raise SourceUnreachable(
                f"{self._server} cannot be reached: {why}{self._monitor}; {self._server.cure}"
            )

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """Call a tool by the server's name for it.

        Raises SourceUnreachable if the connection is not open, CallRefused when the server refuses,
        and AnswerLost when no answer comes within `seconds`.
        """
        # Nothing may be sent on a connection that has ended: its outcome would count as unknown.
        if self._client is None or not self.is_open:
            raise SourceUnreachable(f"{self._server} is not connected")

        self._calls_under_way += 1
        # The HTTP requests of the call find `answer` in the context of its task.
        answer = HttpAnswer()
        context = copy_context()
        context.run(http_answer.set, answer)
        call = asyncio.create_task(self._client.call_tool(name, arguments), context=context)
        call.add_done_callback(_forget_outcome)
        try:
            await asyncio.wait(
                {call, self._session}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            return self._result(call, seconds, answer.status)
        finally:
            # The SDK tells the server that a call is cancelled.
            if not call.done():
                call.cancel()
                await asyncio.wait({call}, timeout=CANCEL_SECONDS)
            self._calls_under_way -= 1
            self._close_if_unused()

    async def definition(self, name: str, max_age_seconds: float) -> Definition | None:
        """Return the server's present definition of a tool, None if it has none of this name.

        The tools are listed again if the server announced other ones, or if their list is older
        than `max_age_seconds`. Raises SourceUnreachable if they cannot be listed.
        """
        client = self._client
        if client is None:
            raise SourceUnreachable(f"{self._server} is not connected")
        if self._is_outdated(max_age_seconds):
            try:
                await self._list_again(client, max_age_seconds)
            except Exception as exc:  # of the transport, the SDK or the protocol
                self._retire()
                why = _reason(exc, self._server.secrets)
                raise SourceUnreachable(f"{self._server} did not list its tools: {why}") from exc
        return next((each for each in self.definitions if each.name == name), None)

    async def close(self) -> None:
        """Close the session, and wait for its end. A program that does not end by itself is killed.

        Calls under way raise AnswerLost.
        """
        self._begin_closing()
        self._cancel_opening()
        await asyncio.wait({self._session})

    def _cancel_opening(self) -> None:
        """Cancel a session that is still being opened.

        It is cancelled once: another cancellation would interrupt its cleanup.
        """
        if not self._first_listing.done() and not self._session.cancelling():
            self._session.cancel()

    def _result(
        self, call: asyncio.Task[CallToolResult], seconds: float, status: int
    ) -> CallToolResult:
        """Return the result of a call that has ended, or that gets no more time.

        `seconds` was its time limit. `status` is the status of its HTTP request, 0 where HTTP is
        not used. Raises CallRefused, and AnswerLost if there is no answer or none that can be read.
        """
        from mcp import InputRequiredRoundsExceededError
        from mcp.shared.exceptions import MCPError

        if not call.done():
            self._retire()
            problem = f"gave no answer within {seconds:g} s"
            if self.is_closed:
                problem = "ended before it answered"
            raise AnswerLost(f"{self._server} {problem}")

        try:
            return call.result()
        except MCPError as exc:
            raise self._failure(exc, status) from None
        except InputRequiredRoundsExceededError:
            raise AnswerLost(
                f"{self._server} wanted to be called again each time, and never answered"
            ) from None
        except (Exception, asyncio.CancelledError) as exc:  # the answer could not be parsed
            raise AnswerLost(
                f"{self._server} answered with something unreadable ({type(exc).__name__})"
            ) from exc

    def _failure(self, exc: MCPError, status: int) -> SourceError:
        """Return what to raise for an error of the protocol.

        It is AnswerLost if the call may have taken effect, else CallRefused. `status` is the
        status of the call's HTTP request, 0 where HTTP is not used.
        """
        from mcp.types import INVALID_REQUEST, PARSE_ERROR

        if _is_broken_off(exc):
            self._retire()
            return AnswerLost(f"{self._server} ended before it answered")
        # The server has forgotten this session, and would refuse any further call.
        if status == HTTPStatus.NOT_FOUND and exc.code == INVALID_REQUEST:
            self._retire()
        if _QUESTION.search(exc.message):
            return CallRefused(_NO_QUESTIONS)
        message = f"{_first_line(exc.message, self._server.secrets)}{_http_refusal(status)}"
        # The SDK itself reports this code for an HTTP body that it cannot parse.
        is_unreadable = exc.code == PARSE_ERROR and status != 0
        # A server that only accepts a call sends no result, so it may have run the call.
        if is_unreadable or status in (*UNCLEAR_STATUSES, HTTPStatus.ACCEPTED):
            return AnswerLost(f"{self._server} failed: {message}")
        return CallRefused(message)

    async def _run(self) -> None:
        """Open the session, list the tools whenever they change, and leave it at the end."""
        for name, level in _SDK_LOG_LEVELS.items():
            logger = logging.getLogger(name)
            logger.setLevel(max(logger.level, level))
        try:
            async with AsyncExitStack() as stack:
                client = await self._enter(stack)
                # A connection that was lost meanwhile is retired, and stays so.
                if self._state is ConnectionState.OPENING:
                    self._state = ConnectionState.OPEN
                self._first_listing.set_result(None)
                await self._keep_listed(client)
        except LibraryError as exc:
            self._library_error = str(exc)
        except (Exception, BaseExceptionGroup, asyncio.CancelledError) as exc:  # `open` reports it
            self._error = _reason(exc, self._server.secrets)
        finally:
            was_open = self.is_open
            self._state = ConnectionState.CLOSING
            if was_open:
                self._changed()

    async def _enter(self, stack: AsyncExitStack) -> Client:
        """Connect and list the tools. Return the client, which lives as long as the stack.

        Raises LibraryError, and the errors of the transport, the SDK and the protocol.
        """
        import_sdk()
        from mcp import Client

        opened = self._server.transport(self._monitor)
        transport = with_usable_listings(opened, self._left_out_while_listing)
        client = await stack.enter_async_context(
            Client(transport, message_handler=self._on_message, cache=None)
        )
        # The SDK's check of results evaluates the server's patterns and references, which can keep
        # a process busy forever.
        setattr(client.session, "validate_tool_result", _accept_result)  # noqa: B010
        self._client = client
        await self._list_tools(client)
        listening = asyncio.create_task(self._listen(client))
        listening.add_done_callback(_forget_outcome)
        stack.callback(listening.cancel)
        return client

    async def _list_tools(self, client: Client) -> None:
        """Read all pages of the list, up to MAX_PAGES and MAX_LISTED_TOOLS."""
        self._left_out_while_listing.clear()
        definitions: list[Definition] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            definitions += page.tools
            cursor = page.next_cursor
            if not cursor or len(definitions) > MAX_LISTED_TOOLS:
                break
        self.definitions = definitions
        self.left_out = dict(self._left_out_while_listing)
        self._listed_at = time.monotonic()

    async def _keep_listed(self, client: Client) -> None:
        """List the tools again whenever they change, until the session must be left."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._closing.is_set():
                return
            try:
                await self._list_again(client)
            except Exception:  # of the transport, the SDK or the protocol
                # To leave the session here would end the calls under way. `_retire` reports a
                # change: the tools are listed over a new connection, and an error there is logged.
                self._retire()
                await self._closing.wait()
                return
            with suppress(TimeoutError):  # the usual end of the pause
                async with asyncio.timeout(LISTING_PAUSE_SECONDS):
                    await self._closing.wait()

    def _is_outdated(self, max_age_seconds: float) -> bool:
        """Return whether the server announced other tools, or their list is older than this."""
        is_old = time.monotonic() - self._listed_at > max_age_seconds
        return is_old or self._announcements != self._listed_announcements

    async def _list_again(self, client: Client, max_age_seconds: float = math.inf) -> None:
        """List the tools again if they are outdated.

        Raises TimeoutError for a server that does not answer in time, and the errors of the
        transport, the SDK and the protocol.
        """
        async with self._listing_lock:
            # Another caller may have listed them while this one waited for the lock.
            if not self._is_outdated(max_age_seconds):
                return
            before = (self.definitions, self.left_out)
            # Counted before the listing: a later announcement may be newer than its answer.
            announcements = self._announcements
            async with asyncio.timeout(LISTING_SECONDS):
                await self._list_tools(client)
            self._listed_announcements = announcements
        if (self.definitions, self.left_out) != before:
            self._changed()

    def _announce(self) -> None:
        """Note that the server has other tools."""
        self._announcements += 1
        self._wake.set()

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes of the tools, if the server's version of the protocol has that.

        Older servers send a notification instead, see `_on_message`.
        """
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.exceptions import MCPError

        try:
            async with client.listen(tools_list_changed=True) as subscription:
                async for _ in subscription:
                    self._announce()
        except SubscriptionLost:  # later changes would not be announced
            self._retire()
        except (ListenNotSupportedError, MCPError):
            return

    async def _on_message(self, message: Any) -> None:
        """Note the announcement of an older server that its tools have changed."""
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._announce()

    def _retire(self) -> None:
        """Take no new calls, and close after the last one that is under way."""
        if self._state not in (ConnectionState.OPENING, ConnectionState.OPEN):
            return
        was_open = self.is_open
        self._state = ConnectionState.RETIRED
        self._close_if_unused()
        if was_open:
            self._changed()

    def _close_if_unused(self) -> None:
        """Begin to close a retired connection without calls."""
        if self._state is ConnectionState.RETIRED and not self._calls_under_way:
            self._begin_closing()

    def _begin_closing(self) -> None:
        """Make the task of the session leave it, if it has not yet."""
        self._state = ConnectionState.CLOSING
        self._closing.set()
        self._wake.set()


def _forget_outcome(task: asyncio.Task[Any]) -> None:
    """Read the error of a finished task, which may be one that is of no interest any more.

    asyncio logs a traceback for an error that is never read. A call that was given up may still
    fail while it is cancelled, when its connection is broken.
    """
    if not task.cancelled():
        task.exception()


async def _accept_result(_: str, __: CallToolResult) -> None:
    """Accept any result: the model reads it either way."""


#: How the SDK, here or at the server, reports that a server asked for something during a call, such
#: as an answer of the user or of a model. Sayso offers none of that.
_QUESTION = re.compile(
    r"(Elicitation|Sampling|List roots) not supported\Z"
    r"|'(elicitation/create|sampling/createMessage|roots/list)'"
)
_NO_QUESTIONS = (
    "it asked for something during the call, and no server may: "
    "if the arguments can say what it needs, call it with that"
)
#: How the SDK reports that no answer will come. Its error code for that, -32000, is not enough:
#: servers use the same code for their own errors.
_BROKEN_OFF = ("Connection closed", "SSE stream ")


def _is_broken_off(exc: MCPError) -> bool:
    """Return whether no answer came, so that the connection cannot be used any more."""
    from mcp.types import CONNECTION_CLOSED

    return exc.code == CONNECTION_CLOSED and exc.message.startswith(_BROKEN_OFF)


def _http_refusal(status: int) -> str:
    """Return the end of an error message: the HTTP status with its cure; "" for one below 400.

    The errors of the SDK do not name the status.
    """
    cure = ""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        cure = ": check its headers"
    elif status == HTTPStatus.METHOD_NOT_ALLOWED:
        cure = ": it must speak streamable HTTP, not the older HTTP with SSE"
    if status >= HTTPStatus.BAD_REQUEST:
        return f"; it answered {status}{cure}"
    return ""


#: How the SDK begins its report of a version of the protocol that it does not know.
_OTHER_VERSION = "Unsupported protocol version from the server: "


def _reason(exc: BaseException, secrets: Sequence[str]) -> str:
    """Return why a session failed, for an error message.

    For an error of another library it is the type alone, since the text may hold a URL with a
    secret.
    """
    cause = exc
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, SourceError):
        return str(cause)

    from mcp.shared.exceptions import MCPError

    if isinstance(cause, MCPError):
        if _is_broken_off(cause):
            return "it ended before it answered"
        return _first_line(str(cause), secrets)
    if isinstance(cause, FileNotFoundError | PermissionError | NotADirectoryError):
        return f"{cause.filename!r}: {cause.strerror}"
    if isinstance(cause, ValidationError):
        return f"its answer does not follow the protocol: {validation_reason(cause)}"
    if isinstance(cause, RuntimeError) and str(cause).startswith(_OTHER_VERSION):
        version = _first_line(str(cause).removeprefix(_OTHER_VERSION), secrets)
        return f"it has the version {version!r} of the protocol, which is not supported"
    return type(cause).__name__


def _first_line(text: str, secrets: Sequence[str]) -> str:
    """Return the first line of a text without secrets, cut to MAX_QUOTE_CHARS."""
    # Secrets are removed before the text is cut: half a secret would not be recognized.
    first_line, _, _ = scrub(text, secrets).partition("\n")
    return first_line[:MAX_QUOTE_CHARS].rstrip(":. ")


@dataclass(slots=True)
class HttpAnswer:
    """The HTTP status of the last request of one call.

    It is 0 before an answer, and where HTTP is not used.
    """

    status: int = 0


#: Where the HTTP status of the current call's requests is noted. The task of each call has another
#: one, because several calls run on the same connection at once. None outside of a call.
http_answer: ContextVar[HttpAnswer | None] = ContextVar("http_answer", default=None)


def _read_again(error: ValidationError) -> SessionMessage | ValidationError:
    """Return the message in a line that the SDK refused because of half a character.

    `error` is that of the SDK. Return an error if the line is no message. `mcp_escapes.py` says
    what half a character is.
    """
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    line = str(error.errors(include_url=False)[0]["input"]).encode(errors="replace")
    readable = without_half_characters(line)
    if readable == line:
        return error
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(readable, by_name=False))
    except ValidationError as exc:
        return exc


@dataclass(slots=True)
class TransportMonitor:
    """Watches the transport of one session, so that errors can say what went wrong.

    As a text it is the end of an error message: what was noticed, or "".
    """

    #: Called when the output of a program ends.
    on_end: Callable[[], None]
    #: How many lines of a program's output were no messages.
    invalid_lines: int = 0
    #: The status of the last HTTP request that belongs to no call; 0 before the first.
    status: int = 0

    async def forward(self, source: Any, target: Any) -> None:
        """Forward messages until the source ends. Lines that are no messages are only counted."""
        async with target:
            async for message in source:
                readable = message
                if isinstance(message, ValidationError):
                    readable = _read_again(message)
                if isinstance(readable, Exception):
                    self.invalid_lines += 1
                else:
                    await target.send(readable)
        self.on_end()

    async def note_status(self, response: Any) -> None:
        """Note the HTTP status of a response, for the call it belongs to or for this session.

        Only messages are sent by POST. A server may refuse the other requests, which open a stream
        and end a session.
        """
        if response.request.method != "POST":
            return
        call_answer = http_answer.get()
        if call_answer is not None:
            call_answer.status = response.status_code
        else:
            self.status = response.status_code

    def __str__(self) -> str:
        count = self.invalid_lines
        lines = ""
        if count:
            lines = f"; {count} lines of its output were no messages: logs belong on stderr"
        return f"{lines}{_http_refusal(self.status)}"


#: Python code that becomes a program which the kernel kills when this process ends. Otherwise a
#: program that ignores the end of its input would outlive a killed worker. Its arguments are the id
#: of this process, and the command line. PR_SET_PDEATHSIG is 1, SIGKILL is 9. If this process has
#: ended before the kernel knew, the code ends too.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class McpServer:
    """Where an MCP server is: a program with a `command`, or a `url`.

    A program speaks over its standard input and output, a URL speaks streamable HTTP. As a text it
    is the server's name for errors.
    """

    name: str
    #: The program and its arguments; empty for a URL.
    command: Sequence[str] = field(default=(), repr=False)
    #: Environment variables for the program.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: The program's working directory; None for that of this process.
    cwd: str | Path | None = None
    #: "" for a program.
    url: str = field(default="", repr=False)
    #: HTTP headers for the URL.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"the MCP server {self.name!r}"

    @property
    def place(self) -> str:
        """The command line or the address of the server, which tells it from other servers.

        The address has no login and no query, since both may hold secrets.
        """
        if self.command:
            return shlex.join(self.command)
        address = urlsplit(self.url)
        return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"

    @property
    def secrets(self) -> list[str]:
        """The values that no error, result and log line may repeat, in the forms they occur in.

        They are those of `env` and `headers`, the login of the URL, and the values in its query
        that are named like a secret.
        """
        values = [*self.env.values(), *self.headers.values()]
        # Without a word such as "Bearer", and without a line break at the end.
        last_words = [value.strip().rpartition(" ")[2] for value in values]
        # Of a value with several lines, such as a private key: logs are read line by line.
        lines = "\n".join(values).splitlines()
        long_lines = [line.strip() for line in lines if len(line.strip()) >= MIN_SECRET_LINE_CHARS]
        return [*values, *last_words, *long_lines, *_secrets_in_url(self.url)]

    @property
    def cure(self) -> str:
        """What an operator should do when the server cannot be reached."""
        if self.command:
            return "run its command in a shell to see why"
        return "check that it runs, and its url"

    @asynccontextmanager
    async def transport(self, monitor: TransportMonitor) -> AsyncIterator[Any]:
        """Yield the streams to and from the server, for the Client of the SDK."""
        from mcp.client.streamable_http import streamable_http_client

        if self.command:
            async with self._program(monitor) as streams:
                yield streams
            return
        async with (
            capped_client(self.headers, monitor.note_status) as client,
            streamable_http_client(self.url, http_client=client) as streams,
        ):
            yield streams

    @asynccontextmanager
    async def _program(self, monitor: TransportMonitor) -> AsyncIterator[Any]:
        """Start the program, and yield the streams to and from it. It ends with the block."""
        import anyio
        from mcp.client.stdio import StdioServerParameters, stdio_client

        command, *args = self.command
        # A program that does not exist is started directly, so that the error names it and not
        # Python.
        if sys.platform == "linux" and sys.executable and self._program_exists():
            python_options = ["-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
            command = sys.executable
            args = [*python_options, *self.command]
        parameters = StdioServerParameters(
            command=command,
            args=args,
            env=dict(self.env),
            cwd=self.cwd,
            encoding_error_handler="replace",
        )
        with _scrubbed_stderr(self.secrets) as stderr:
            async with stdio_client(parameters, errlog=stderr) as (read, write):
                forwarded, messages = anyio.create_memory_object_stream[Any](0)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(monitor.forward, read, forwarded)
                    yield messages, write
                    tasks.cancel_scope.cancel()

    def _program_exists(self) -> bool:
        """Return whether the program is found, in its working directory or on its PATH."""
        program = self.command[0]
        if "/" in program:
            program = str(Path(self.cwd or "") / program)
        return shutil.which(program, path=self.env.get("PATH")) is not None


#: A part of the name of a URL's parameter that holds a secret. Others, such as `?tools=files`, hold
#: words that results need.
_SECRET_PARAMETER = re.compile(r"key|token|secret|passw|auth|credential|signature", re.IGNORECASE)


def _secrets_in_url(url: str) -> list[str]:
    """Return the login and the secret parameters of a URL, as they are written and decoded."""
    address = urlsplit(url)
    written = [address.username or "", address.password or ""]
    for parameter in address.query.split("&"):
        name, _, value = parameter.partition("=")
        if _SECRET_PARAMETER.search(name):
            written.append(value)
    return [*written, *map(unquote, written)]


@contextmanager
def _scrubbed_stderr(secrets: Sequence[str]) -> Iterator[TextIO]:
    """Yield a file for a program's standard error.

    What is written there is copied to the standard error of this process, without secrets.
    """
    reader, writer = os.pipe()
    lines = os.fdopen(reader, encoding="utf-8", errors="replace")
    threading.Thread(
        target=_copy_lines, args=(lines, secrets), name="mcp-stderr", daemon=True
    ).start()
    with os.fdopen(writer, "w") as file:
        yield file


def _copy_lines(lines: TextIO, secrets: Sequence[str]) -> None:
    """Copy to standard error until the program, and all that it started, have closed the pipe."""
    with lines:
        while line := lines.readline(MAX_STDERR_CHARS):
            safe_line = redact(scrub(line, secrets))
            print(safe_line, end="", file=sys.__stderr__ or sys.stderr, flush=True)


def capped_client(
    headers: Mapping[str, str],
    on_response: Callable[[Any], Awaitable[None]],
    max_bytes: int = MAX_ANSWER_BYTES,
) -> httpx2.AsyncClient:
    """Return an HTTP client with these headers, which breaks off an answer beyond `max_bytes`.

    `on_response` is called with each response before its body is read.
    """
    import httpx2

    class CappedStream(httpx2.AsyncByteStream):
        """A stream that breaks off when it grows too long, and mends escapes of half a character.

        `mcp_escapes.py` says what these are.
        """

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __aiter__(self) -> AsyncIterator[bytes]:
            return chunks_without_half_characters(self._counted())

        async def _counted(self) -> AsyncIterator[bytes]:
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
        response.stream = CappedStream(response.stream)

    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        timeout=httpx2.Timeout(SEND_SECONDS, read=None),
        event_hooks={"response": [on_response, cap]},
    )
