"""McpToolProvider: the tools of one MCP server.

The module has three parts: the provider, ReconnectingConnection, which opens a broken connection
again, and `value_of`, which reads a result: text for the model and files for the user.
One session with the server is in `mcp_connection.py`.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from sayso.agent.tools.definition import MCP, ToolMetadata, ToolTag
from sayso.agent.tools.digests import definition_digest
from sayso.agent.tools.environment import MAX_ARTIFACT_BYTES, emit_artifact
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.result_texts import ToolOutcome, file_note
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.base import (
    MAX_TOOLS,
    AnswerLost,
    CallRefused,
    SourceUnreachable,
    ToolFilter,
    UnclearOutcome,
    UnusableSchema,
    bounded_description,
    failed_outcome,
    in_fixed_order,
    legal_names,
    map_texts,
    safe_schema,
    scrub,
    scrub_value,
)
from sayso.agent.toolsets.mcp_connection import McpConnection, McpServer
from sayso.channels.media_store import UNKNOWN_TYPE, settle_type
from sayso.channels.types import extension_of
from sayso.infra.backoff import backoff_seconds
from sayso.infra.concurrency import call_in_thread
from sayso.infra.threads import LoopThread
from sayso.infra.urls import is_http_url, redacted_url

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as Definition

T = TypeVar("T")
log = logging.getLogger(__name__)
#: Time limit to start a server and list its tools, in seconds. Some servers are downloaded at their
#: first start.
CONNECT_SECONDS = 20.0
#: Time limit of one call, in seconds.
CALL_SECONDS = 60.0
#: How old the list of tools may be for a call that may change something, in seconds. Many servers
#: do not announce changes, so an older list is read anew. A person takes longer than this to say
#: yes, so the tools are always listed again before a call that was confirmed.
MAX_AGE_SECONDS = 1.0
#: Why the second tool of a name is left out.
REPEATED = "the server lists an earlier tool of this name, which is offered"
#: Why tools beyond the limit are left out; `{}` is the number of tools.
TOO_MANY = (
    "the server lists {} tools, "
    f"and at most {MAX_TOOLS} are offered: choose them with include and exclude"
)


class McpToolProvider:
    """Lists and calls the tools of one MCP server.

    Lives as long as the process. The connection is made at the first call, by each process for
    itself, and again after it broke. May be called from any thread and any event loop.

    The annotations of a server become hints (MCP specification, ToolAnnotations). If you do not
    trust a server, the policy must name the tools that need a confirmation, because a server may
    call any tool harmless.

    * `command`, `args`, `env`, `cwd`: a program that is started. Of the environment it inherits
      only HOME, LOGNAME, PATH, SHELL, TERM and USER; `env` is added.
    * `url`, `headers`: a server that is called over HTTP. Give either a command or a url.
    * `name`: what logs and errors call the server; "" for the program or the host.
    * `include`, `exclude`: patterns over the server's names of tools; None for all.
    * `connect_seconds`: the time limit to start the server and list its tools.
    * `call_seconds`: the time limit of one call.

    Raises ValueError for a command and a url, for neither, and for a url that is not valid.
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
        if url and not is_http_url(url):
            raise ValueError(
                f"url {redacted_url(url)!r} is not a URL: write it as https://mcp.example.com/mcp"
            )

        command_line: tuple[str, ...] = ()
        if command:
            command_line = (command, *args)
            default_name = Path(command).name
        else:
            default_name = urlsplit(url).hostname or "server"
        self.name = name or default_name
        self._server = McpServer(
            name=self.name,
            command=command_line,
            env=env or {},
            cwd=cwd,
            url=url,
            headers=headers or {},
        )

        self._connect_seconds = connect_seconds
        self._call_seconds = call_seconds
        self._filter = ToolFilter(include, exclude)
        #: The server's names of the tools, by the names that they are listed under.
        self._own_names: dict[str, str] = {}
        #: The server's names of all tools in its last list, also of those that the filter leaves
        #: out.
        self.listed_names: tuple[str, ...] = ()
        #: Why tools of the last list cannot be used, by the server's names.
        self.left_out: dict[str, str] = {}
        #: What `watch` was given last.
        self._changed: Callable[[], None] = lambda: None
        #: The connection of each process, by the process id. A forked process makes another one.
        self._connections: dict[int, ReconnectingConnection] = {}

    async def list_tools(self) -> list[Tool]:
        """Return the server's tools under names that every vendor accepts, at most MAX_TOOLS.

        They are sorted by the server's names. Of several tools of one name the first counts; the
        others, and tools that cannot be used, are in `left_out`. Raises SourceUnreachable.
        """
        definitions, unusable = await self._connection().definitions()
        names_of_definitions = [each.name for each in definitions]
        self.listed_names = tuple(dict.fromkeys([*names_of_definitions, *unusable]))

        selected: dict[str, Definition] = {}
        left_out: dict[str, str] = {}
        for definition in definitions:
            if not self._filter.accepts(definition.name):
                continue
            if definition.name in selected:
                left_out[definition.name] = REPEATED
            else:
                selected[definition.name] = definition
        left_out |= {name: why for name, why in unusable.items() if self._filter.accepts(name)}

        sorted_names = sorted(selected)
        if len(selected) > MAX_TOOLS:
            log.warning(
                "mcp.too_many_tools",
                extra={"server": self.name, "tools": len(selected), "taken": MAX_TOOLS},
            )
        names = legal_names(sorted_names[:MAX_TOOLS])
        self._own_names = {name: own_name for own_name, name in names.items()}

        # In a thread: a server's schemas may take long to process.
        tools_or_reasons = await call_in_thread(
            lambda: [self._tool(selected[own_name], name) for own_name, name in names.items()]
        )
        tools: list[Tool] = []
        for own_name, tool_or_reason in zip(names, tools_or_reasons, strict=True):
            if isinstance(tool_or_reason, Tool):
                tools.append(tool_or_reason)
            else:
                left_out[own_name] = tool_or_reason

        for name, why in left_out.items():
            log.warning("mcp.tool_left_out", extra={"server": self.name, "tool": name, "why": why})
        # Added after the loop: `mcp.too_many_tools` is one line in the log for all of these.
        too_many = dict.fromkeys(sorted_names[MAX_TOOLS:], TOO_MANY.format(len(selected)))
        self.left_out = left_out | too_many
        return tools

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Call a tool. The files in its result are sent to the user as artifacts.

        The error of a failed call says whether the call may have taken effect.
        """
        return await self._call(self.own_name(tool_name), parameters)

    async def _call(self, own_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Call a tool by the server's own name of it."""
        try:
            result = await self._connection().call(own_name, parameters, self._call_seconds)
        except SourceUnreachable as exc:
            return failed_outcome(f"{exc}; {own_name!r} was not called")
        except AnswerLost as exc:
            unknown = f"whether {own_name!r} took effect is not known"
            error = f"{exc}: {unknown}, so look before it is called again"
            return UnclearOutcome(success=False, error=error)
        except CallRefused as exc:
            return failed_outcome(f"{self._server} refused {own_name!r}: {exc}")

        secrets = self._server.secrets
        if result.is_error:
            error = error_text(result, secrets)
            return failed_outcome(f"{own_name!r} of {self._server} failed: {error}")
        return ToolOutcome(success=True, result=scrub_value(value_of(result), secrets))

    async def execute_listed(self, tool: Tool, parameters: dict[str, Any]) -> ToolOutcome:
        """Call a tool, but only if its server still defines it as it did when it was listed.

        The policy and the person who said yes relied on that definition.
        """
        own_name = self.own_name(tool.name)
        # For a tool that changes nothing, a list of any age will do.
        max_age_seconds = inf if tool.read_only else MAX_AGE_SECONDS
        try:
            definition = await self._connection().definition(own_name, max_age_seconds)
        except SourceUnreachable as exc:
            return failed_outcome(f"{exc}; {own_name!r} was not called")
        if definition is None or self._version(definition) != tool.version:
            self._notify()
            problem = f"{self._server} has changed or removed {own_name!r} since it was offered"
            return failed_outcome(f"{problem}, so it was not called")
        # By the name that was checked: if the tools were listed again meanwhile, `tool.name` may
        # stand for another tool of the server.
        return await self._call(own_name, parameters)

    def own_name(self, tool_name: str) -> str:
        """Return the server's own name of a tool that was listed under this name."""
        return self._own_names.get(tool_name, tool_name)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the tools should be listed again.

        It is called on the connection's thread, or on that of a caller of `execute_listed`.
        """
        self._changed = changed

    def close(self) -> None:
        """Close the connection; a program is ended. The next call connects again."""
        connection = self._connections.pop(os.getpid(), None)
        if connection is not None:
            connection.close()

    def _connection(self) -> ReconnectingConnection:
        """Return the connection of this process. A forked process does not share its parent's."""
        # Made first and perhaps dropped, because `setdefault` lets only one of several threads win.
        # It starts nothing before its first call.
        new = ReconnectingConnection(self._server, self._connect_seconds, self._notify)
        return self._connections.setdefault(os.getpid(), new)

    def _notify(self) -> None:
        """Call the function that `watch` got last, which may be later than the connection began."""
        self._changed()

    def _tool(self, definition: Definition, name: str) -> Tool | str:
        """Return the definition as a tool called `name`, or why it cannot be used."""
        hints = definition.annotations
        is_read_only = bool(hints and hints.read_only_hint)
        # By the specification, a tool that is not declared harmless is destructive, and uses the
        # network.
        tags: set[ToolTag] = set()
        if is_read_only:
            tags.add(ToolTag.READ_ONLY)
        elif hints is None or hints.destructive_hint is not False:
            tags.add(ToolTag.DESTRUCTIVE)
        if hints is None or hints.open_world_hint is not False:
            tags.add(ToolTag.NETWORK)

        description = scrub(definition.description or "", self._server.secrets)
        try:
            return Tool(
                name,
                bounded_description(description, definition.name),
                in_fixed_order(safe_schema(definition.input_schema)),
                screen_output=True,
                version=self._version(definition),
                metadata=ToolMetadata(tags=tags, source=MCP),
                read_only=is_read_only,
                idempotent=bool(hints and hints.idempotent_hint),
            )
        except (UnusableSchema, ToolValidationError) as exc:
            return str(exc)
        except Exception as exc:
            # A server may send anything, and one tool must not hide the others.
            return f"{type(exc).__name__}: {exc}"

    def _version(self, definition: Definition) -> str:
        """Return the version of a tool: a digest of its definition and of the server that runs it.

        `meta` and `icons` do not count: they only inform programs and screens, and some servers
        write them anew at each start.
        """
        fields = definition.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude={"meta", "icons"}
        )
        return definition_digest({"definition": fields, "place": self._server.place})


#: Pause after a first failure before a server is tried again, in seconds. It doubles with each
#: further failure.
FIRST_PAUSE_SECONDS = 0.5
#: Longest pause between two attempts, in seconds.
LONGEST_PAUSE_SECONDS = 30.0
#: Longest pause that a call waits for, in seconds. A longer one refuses the call at once.
MAX_WAIT_SECONDS = 2.0
#: Time limit of closing, in seconds. Within it, a server that ignores the end of its input is
#: killed.
CLOSE_SECONDS = 5.0


class ReconnectingConnection:
    """The connection of one provider in one process. It is opened again after it broke.

    It runs on a separate event loop in a daemon thread, so callers may be on any thread and any
    event loop.

    * `connect_seconds`: the time limit to open it.
    * `changed`: called on that thread when the server announces other tools, and when the
      connection is lost.
    * `clock`: returns seconds.
    """

    def __init__(
        self,
        server: McpServer,
        connect_seconds: float,
        changed: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server = server
        self.pid = os.getpid()
        #: How many attempts to connect failed in a row. A connection that broke during a call
        #: counts as one.
        self.failures = 0
        #: The time of `clock` before which no attempt to connect is made.
        self.next_attempt_at = 0.0
        self._connect_seconds = connect_seconds
        self._changed = changed
        self._clock = clock
        #: The connection that calls use; None before the first, and after one broke during a call.
        self._connection: McpConnection | None = None
        #: All connections that may not be closed yet: a broken one closes after its last call.
        self._connections: list[McpConnection] = []
        #: Why the last attempt to connect failed; "" before the first failure.
        self._last_error = ""
        #: Held while a connection is opened, so that waiting calls share it.
        self._opening = asyncio.Lock()
        #: None until the first call, and after `close`.
        self._thread: LoopThread | None = None
        self._thread_lock = threading.Lock()

    async def definitions(self) -> tuple[list[Definition], dict[str, str]]:
        """Return the tools of the server's last list, and why others in it cannot be used, by name.

        Raises SourceUnreachable.
        """
        connection = await self._on_loop(self._connected())
        return connection.definitions, dict(connection.left_out)

    async def definition(self, name: str, max_age_seconds: float) -> Definition | None:
        """Return the present definition of a tool, None if the server has none of this name.

        A list of tools older than `max_age_seconds` is read anew. Raises SourceUnreachable.
        """
        return await self._on_loop(self._definition(name, max_age_seconds))

    async def _definition(self, name: str, max_age_seconds: float) -> Definition | None:
        connection = await self._connected()
        return await connection.definition(name, max_age_seconds)

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> CallToolResult:
        """Call a tool by the server's name for it. `seconds` is the time limit.

        Raises SourceUnreachable, CallRefused and AnswerLost.
        """
        return await self._on_loop(self._call(name, dict(arguments), seconds))

    def close(self) -> None:
        """Close all connections and the thread."""
        # A forked process must not close the connection of its parent when it exits.
        if self.pid != os.getpid():
            return
        atexit.unregister(self.close)
        with self._thread_lock:
            thread = self._thread
            self._thread = None
        if thread is not None:
            with suppress(TimeoutError):
                thread.submit(self._close_all()).result(CLOSE_SECONDS)
            thread.close()

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine that runs on the event loop of the connection."""
        with self._thread_lock:
            if self._thread is None:
                self._thread = LoopThread(asyncio.new_event_loop(), f"sayso-mcp-{self.server.name}")
                atexit.register(self.close)
            thread = self._thread
        return await asyncio.wrap_future(thread.submit(work))

    async def _call(self, name: str, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """Call a tool. If the connection breaks meanwhile, count that as a failure."""
        connection = await self._connected()
        try:
            return await connection.call(name, arguments, seconds)
        except (AnswerLost, SourceUnreachable):
            # All calls under way on a connection fail together, and that counts once. Otherwise
            # ten of them would cause the longest pause.
            if connection is self._connection and not connection.is_open:
                self._connection = None
                self._count_failure()
            raise

    async def _connected(self) -> McpConnection:
        """Return the open connection, or open one after the pause that failures demand.

        Raises SourceUnreachable.
        """
        async with self._opening:
            if self._connection is not None and self._connection.is_open:
                return self._connection

            pause = self.next_attempt_at - self._clock()
            if pause > MAX_WAIT_SECONDS:
                error = self._last_error or f"{self.server} broke off"
                raise SourceUnreachable(f"{error}; the next attempt is in {pause:.0f} s")
            await asyncio.sleep(max(pause, 0))

            connection = McpConnection(self.server, self._changed)
            still_open = [each for each in self._connections if not each.is_closed]
            self._connections = [*still_open, connection]
            try:
                await connection.open(self._connect_seconds)
            except SourceUnreachable as exc:
                self._last_error = str(exc)
                self._count_failure()
                raise
            self.failures = 0
            self._connection = connection
            return connection

    def _count_failure(self) -> None:
        """Count a failure, and set the pause before the next attempt to connect."""
        self.failures += 1
        pause = backoff_seconds(
            self.failures, first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS
        )
        self.next_attempt_at = self._clock() + pause

    async def _close_all(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections))


#: Most files of one result that reach the user.
MAX_FILES = 10
#: Longest error that reaches the model, in characters.
MAX_ERROR_CHARS = 1000
#: Shortest base64 that counts as binary content, in characters. Shorter ones may be ids,
#: keys and signatures.
MIN_BASE64_CHARS = 256
#: Longest line of base64 that stays as text if the type of its bytes is unknown, in characters. It
#: may be the cursor of a next page or a part of a signed URL, which the model has to repeat.
MAX_CURSOR_CHARS = 4096
_BASE64 = r"[A-Za-z0-9+/_-]"
_LINE_BREAK = r"(?:\\n|\r?\n)"
#: One long line of base64, or three and more lines of 60 to 100 characters as in mail, the last of
#: them shorter; perhaps as a data URL.
_BINARY = re.compile(
    rf"(?:data:(?P<type>[\w.+-]+/[\w.+-]+)[^,\s]{{0,100}};base64,)?"
    rf"(?P<data>(?:"
    rf"{_BASE64}{{{MIN_BASE64_CHARS},}}"
    rf"|{_BASE64}{{60,100}}(?:{_LINE_BREAK}{_BASE64}{{60,100}}){{2,}}"
    rf"(?:{_LINE_BREAK}{_BASE64}{{1,100}})?"
    rf")={{0,2}})"
)
#: White space and escaped line breaks, which are no part of base64.
_SPACE_IN_BASE64 = re.compile(r"\\n|\s")


def value_of(result: CallToolResult) -> Any:
    """Return what a model reads of a result: its structured content, or its text if it has none.

    The files of the result, at most MAX_FILES, become artifacts, which are sent to the user. The
    model sees the images.

    Servers repeat structured content as text for clients that read nothing else, so that text is
    left out. A file that is written in base64 inside the content or the text becomes an artifact
    too, and a note takes its place.
    """
    sender = FileSender()
    file_blocks = [block for block in result.content if _is_file(block)]
    notes = [_send_block(block, sender) for block in file_blocks[:MAX_FILES]]
    if len(file_blocks) > MAX_FILES:
        notes.append(file_note(f"nothing: {len(file_blocks) - MAX_FILES} more files are left out"))

    value: Any = result.structured_content
    links: list[str] = []
    if value is None:
        value = _text(result)
    else:
        links = _further_links(result)
    # Older versions of the protocol allow only an object there, so servers wrap a plain value.
    if isinstance(value, dict) and list(value) == ["result"]:
        value = value["result"]
    value = sender.without_binaries(value)

    if not notes and not links:
        return value
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
    return "\n".join(filter(None, [text, *links, *notes]))


def _is_file(block: Any) -> bool:
    """Return whether a block of a result is a file with its bytes."""
    if block.type in ("image", "audio"):
        return True
    return block.type == "resource" and hasattr(block.resource, "blob")


def _further_links(result: CallToolResult) -> list[str]:
    """Return the links of a result whose addresses its structured content does not contain."""
    structured = json.dumps(result.structured_content, ensure_ascii=False)
    links = [block for block in result.content if block.type == "resource_link"]
    return [_link(block) for block in links if str(block.uri) not in structured]


def _link(block: Any) -> str:
    return f"{block.title or block.name}: {block.uri}"


def error_text(result: CallToolResult, secrets: Sequence[str]) -> str:
    """Return the text of a result that is an error, without secrets and binary data.

    It has at most MAX_ERROR_CHARS.
    """
    sender = FileSender(is_error=True)
    text = sender.without_binaries(scrub(_text(result), secrets))
    if not text:
        structured = sender.without_binaries(scrub_value(result.structured_content, secrets))
        text = "no reason given"
        if structured:
            text = json.dumps(structured, ensure_ascii=False)
    # Cut after secrets are removed: half a secret would not be recognized.
    return str(text)[:MAX_ERROR_CHARS]


def _text(result: CallToolResult) -> str:
    """Return the texts and links of a result, one below the other."""
    texts: list[str] = []
    for block in result.content:
        match block.type:
            case "text":
                texts.append(block.text)
            case "resource_link":
                texts.append(_link(block))
            case "resource":
                texts.append(getattr(block.resource, "text", ""))
    return "\n".join(filter(None, texts))


def _send_block(block: Any, sender: FileSender) -> str:
    """Send one file to the user, and return a note of it for the model."""
    if block.type == "resource":
        content = block.resource
        encoded = content.blob
        filename = PurePosixPath(unquote(urlsplit(str(content.uri)).path)).name
    else:
        content = block
        encoded = content.data
        filename = ""

    mime_type = content.mime_type or "application/octet-stream"
    data = _base64_bytes(encoded)
    if data is None:
        return file_note(f"nothing: what was called {mime_type} is no base64")
    return sender.send(data, mime_type, filename)


class FileSender:
    """Sends the files of one result to the user. Lives as long as that result is read.

    A file is sent once, however often the result repeats it. With `is_error` the result is an
    error, and binary data in its text is never sent.
    """

    def __init__(self, *, is_error: bool = False) -> None:
        self._is_error = is_error
        self._sent: set[bytes] = set()

    def send(self, data: bytes, mime_type: str, filename: str = "") -> str:
        """Send a file to the user, and return a note of it for the model.

        The model sees an image itself, too. A `filename` without an ending gets one. For a file that
        cannot be sent, the note says why.
        """
        # Platforms and tools recognize the type of a file by the ending.
        if not PurePosixPath(filename).suffix:
            filename = f"{filename or 'file'}{extension_of(mime_type)}"
        if data not in self._sent:
            is_image = mime_type.startswith("image/")
            # The call has taken effect, so a file that is too large must not make it an error: the
            # model would call again.
            try:
                emit_artifact(data, mime_type=mime_type, filename=filename, shown=is_image)
            except ValueError as exc:
                return file_note(f"nothing: {exc}")
            self._sent.add(data)
        return file_note(f"{filename}, {mime_type}, {len(data)} bytes")

    def without_binaries(self, value: Any) -> Any:
        """Return a JSON value with a note in the place of each piece of base64."""
        return map_texts(value, lambda text: _BINARY.sub(self._send_base64, text))

    def _send_base64(self, match: re.Match[str]) -> str:
        """Send the file in a piece of base64, and return a note of it; other text unchanged."""
        data = None
        if len(match[0]) >= MIN_BASE64_CHARS:
            data = _bytes_in_text(match["data"])
        if data is None:
            return match[0]

        mime_type = settle_type(data, match["type"] or "")
        is_one_line = not _SPACE_IN_BASE64.search(match["data"])
        may_be_cursor = is_one_line and len(match[0]) <= MAX_CURSOR_CHARS and not match["type"]
        if mime_type == UNKNOWN_TYPE and may_be_cursor:
            return match[0]

        is_usable = mime_type != UNKNOWN_TYPE and len(data) <= MAX_ARTIFACT_BYTES
        is_full = len(self._sent) >= MAX_FILES
        if self._is_error or is_full or not is_usable:
            return f"(binary data, {len(data)} bytes, is left out)"
        return self.send(data, mime_type)


def _bytes_in_text(text: str) -> bytes | None:
    """Return the bytes of a piece of text that is base64.

    Return None for text that only looks like base64, such as a hexadecimal number.
    """
    base64_text = _SPACE_IN_BASE64.sub("", text)
    if all(re.search(kind, base64_text) for kind in ("[A-Z]", "[a-z]", "[0-9]")):
        return _base64_bytes(base64_text)
    return None


def _base64_bytes(text: str) -> bytes | None:
    """Return the bytes that base64 stands for, None for other text.

    Servers write it with line breaks, in the URL-safe alphabet or without padding, too.
    """
    base64_text = _SPACE_IN_BASE64.sub("", text).rstrip("=")
    # The URL-safe alphabet has two other characters.
    base64_text = base64_text.replace("-", "+").replace("_", "/")
    padding = "=" * (-len(base64_text) % 4)
    try:
        return base64.b64decode(base64_text + padding, validate=True)
    except ValueError:
        return None
