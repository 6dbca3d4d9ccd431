"""OpenApiToolProvider: the operations of an OpenAPI document as tools.

An operation is one method of one path, such as `GET /pets/{id}`. Each becomes one tool.

| what | where |
|---|---|
| the document and its schemas | `openapi_document.py` |
| which operations there are, and their arguments | `openapi_operations.py`, `openapi_bodies.py` |
| files that are uploaded or downloaded | `openapi_files.py` |
| the request of one call, its key, and sending it | `openapi_request.py` |
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sayso.agent.tools.call_texts import Preview, ToolOutcome, definition_digest, file_note
from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.environment import emit_artifact
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.base import (
    MAX_TOOLS,
    UNCLEAR_STATUSES,
    AnswerLost,
    SourceError,
    SourceUnreachable,
    ToolFilter,
    UnclearOutcome,
    UnusableSchema,
    bounded_description,
    failed_outcome,
    in_fixed_order,
    legal_names,
    safe_schema,
    scrub,
    scrub_value,
)
from sayso.agent.toolsets.openapi_bodies import is_json_type
from sayso.agent.toolsets.openapi_document import (
    MAX_DOCUMENT_BYTES,
    Document,
    as_mapping,
    parse,
    server_url,
)
from sayso.agent.toolsets.openapi_files import download_name, read_uploads, upload_preview
from sayso.agent.toolsets.openapi_operations import Operation, OperationReader
from sayso.agent.toolsets.openapi_request import Auth, OriginClient, Request, request_for
from sayso.channels.base import is_http_url, server_address, without_secrets
from sayso.infra.concurrency import call_in_thread
from sayso.infra.http import Resolve, addresses_of, content_type_of, decoded, origin_of

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)
#: Time limit of one request, also of the one for the document, in seconds.
CALL_SECONDS = 30.0
#: Largest answer, in bytes.
MAX_ANSWER_BYTES = 5_000_000
#: Longest quote of an error's body, in characters.
MAX_ERROR_CHARS = 500
#: Most skipped operations of one document that are logged.
MAX_LOGGED = 20


@dataclass(frozen=True, slots=True)
class _Api:
    """What calls need of a parsed document: its operations by the names of their tools, and the
    client that sends requests to their origin.
    """

    operations: Mapping[str, Operation]
    client: OriginClient


class OpenApiToolProvider:
    """Lists and calls the operations of an OpenAPI 3.0 or 3.1 document.

    Lives as long as the process. The document is read at the first use.

    Every request goes to one origin: that of `base_url`, else of the document's first server. If
    the document comes from a URL, that server must have the origin of the document. Private
    addresses and plain http are allowed only for the host that `base_url` names.

    GET and HEAD only read (RFC 9110); every other operation counts as destructive.

    * `document`: the path of a file, or a URL.
    * `base_url`: the address that calls go to; "" for the one in the document.
    * `name`: what logs and errors call this source; "" for the host or the name of the file.
    * `include`, `exclude`: patterns over the names of operations. A name is the `operationId`, else
      method and path, as in `get_pets_id`. None for all.
    * `arguments`: fixed values of parameters, such as an account's id. They are sent with every
      operation that has a parameter of that name, and no model sees that parameter.
    * `auth`: what signs every call, but not the request for the document. Several are for an API
      that takes several keys at once.
    * `seconds`: the time limit of a call.
    * `max_bytes`: the largest answer, in bytes.
    * `resolve`: returns the addresses of a host, for tests.

    Raises ValueError for an address that is no URL.
    """

    def __init__(
        self,
        document: str | Path,
        *,
        base_url: str = "",
        auth: Auth | Sequence[Auth] | None = None,
        name: str = "",
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        arguments: Mapping[str, Any] | None = None,
        seconds: float = CALL_SECONDS,
        max_bytes: int = MAX_ANSWER_BYTES,
        resolve: Resolve = addresses_of,
    ) -> None:
        self._source = str(document)
        self._base_url = _checked_base(base_url)
        self._auth = (auth,) if isinstance(auth, Auth) else tuple(auth or ())
        self._filter = ToolFilter(include, exclude)
        self._fixed = dict(arguments or {})
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._resolve = resolve
        self._api: _Api | None = None
        if self.is_remote and not is_http_url(self._source):
            raise ValueError(
                f"{without_secrets(self._source)!r} is not a URL: "
                "write the document's as https://api.example.com/openapi.json"
            )
        #: The names of all operations in the document, also of those that the filter leaves out.
        self.listed_names: tuple[str, ...] = ()
        #: Why selected operations cannot be used, by their names in the document.
        self.left_out: dict[str, str] = {}
        #: Why offered operations lack optional parameters of the document, by their names there.
        self.missing: dict[str, str] = {}
        if not name and self.is_remote:
            name = urlsplit(self._source).hostname or ""
        elif not name:
            name = Path(self._source).stem
        self.name = name or "api"

    @property
    def is_remote(self) -> bool:
        """Whether the document has a URL."""
        return self._source.startswith(("http://", "https://"))

    async def list_tools(self) -> list[Tool]:
        """Return the operations as tools: in the order of a file, or sorted by name if from a URL.

        The document is read once. An operation that cannot be used is in `left_out`. Raises
        SourceError.
        """
        api = await self._opened()
        # In a thread: many schemas may take long to process.
        return await call_in_thread(self._all_tools, api)

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Send one operation's request, and return what the server answered.

        JSON is returned as values, text as text. Other files become artifacts, which are files for
        the user.
        """
        try:
            api = await self._opened()
            if tool_name not in api.operations:
                known = list(api.operations)
                return failed_outcome(f"Tool '{tool_name}' not found. Available tools: {known}")
            return await self._call(api, api.operations[tool_name], parameters)
        except SourceError as exc:
            return failed_outcome(f"{self.name}: {exc}")

    def own_name(self, tool_name: str) -> str:
        """Return the document's name of an operation that was listed under this name."""
        if self._api:
            return self._api.operations[tool_name].name
        return tool_name

    def own_preview(self, tool_name: str, shown_name: str) -> Preview | None:
        """Return the preview of an operation that sends files, None for one that sends none.

        `shown_name` is the tool's name that people read.
        """
        if self._api is None:
            return None
        files = self._api.operations[tool_name].file_places
        if not files:
            return None
        return upload_preview(shown_name, files)

    async def _call(
        self, api: _Api, operation: Operation, parameters: dict[str, Any]
    ) -> ToolOutcome:
        """Send one operation's request. Raises SourceError for arguments that cannot be sent."""
        arguments = {**parameters, **dict(self._fixed_of(operation))}
        if operation.file_places:
            arguments = await call_in_thread(read_uploads, operation.file_places, arguments)
        request = request_for(operation, arguments)
        for auth in self._auth:
            request = auth.sign(request)

        try:
            answer = await api.client.send(request, reads_only=operation.reads_only)
        except SourceUnreachable as exc:
            return failed_outcome(f"{self.name}: {exc} {operation.name!r} was not sent")
        except AnswerLost as exc:
            return _unclear(f"{self.name}: {exc}", operation)
        if answer.status_code < 300:
            return ToolOutcome(success=True, result=self._value(operation, request, answer))

        error = self._error_text(operation, answer)
        # A redirect without a location, or one that is no redirect, says nothing of the effect.
        is_unclear = answer.status_code < 400 or answer.status_code in UNCLEAR_STATUSES
        if is_unclear:
            return _unclear(error, operation)
        return failed_outcome(error)

    def _error_text(self, operation: Operation, answer: httpx.Response) -> str:
        """Return what a model reads of an answer that is no success: its status and its body."""
        body = ""
        if _is_text(content_type_of(answer)):
            body = self._text(answer).strip()
        if len(body) > MAX_ERROR_CHARS:
            body = f"{body[:MAX_ERROR_CHARS]}..."
        status = f"{answer.status_code} ({answer.reason_phrase or 'an unknown status'})"
        line = f"{operation.method.upper()} {operation.path}"
        return f"{self.name} answered {status} to {line}: {body or 'no reason given'}"

    def _value(self, operation: Operation, request: Request, answer: httpx.Response) -> Any:
        """Return what a successful answer contains, for the model. A file becomes an artifact."""
        kind = content_type_of(answer)
        if not answer.content:
            if operation.method == "head":
                return {"status": answer.status_code}
            return None

        if is_json_type(kind):
            try:
                return scrub_value(json.loads(answer.content), self._secrets)
            except (ValueError, RecursionError):
                return self._text(answer)

        disposition = answer.headers.get("content-disposition") or ""
        is_download = disposition.strip().lower().startswith("attachment")
        if _is_text(kind) and not is_download:
            return self._text(answer)

        filename = scrub(download_name(disposition, request.path, kind), self._secrets)
        file = emit_artifact(answer.content, mime_type=kind or None, filename=filename)
        note = file_note(f"{file.filename}, {file.mime_type}, {file.size} bytes")
        if not _is_text(kind):
            return note
        # An export is the user's file, and the model answers questions about it.
        return f"{note}\n{self._text(answer)}"

    def _text(self, answer: httpx.Response) -> str:
        """Return the body of an answer as text, without secrets."""
        return scrub(decoded(answer.content, answer.charset_encoding or ""), self._secrets)

    @property
    def _secrets(self) -> Sequence[str]:
        return list(chain.from_iterable(auth.secrets for auth in self._auth))

    def _all_tools(self, api: _Api) -> list[Tool]:
        tools = [self._tool(api, name, operation) for name, operation in api.operations.items()]
        return [tool for tool in tools if tool is not None]

    def _tool(self, api: _Api, name: str, operation: Operation) -> Tool | None:
        """Return the operation as a tool; None if it is unusable, which is logged."""
        effect = ToolTag.READ_ONLY if operation.reads_only else ToolTag.DESTRUCTIVE
        tags = frozenset({ToolTag.NETWORK, effect})
        request = f"{operation.method.upper()} {operation.path}"
        try:
            schema = safe_schema(operation.schema)
            if self.is_remote:
                schema = in_fixed_order(schema)
            # A change of any of these makes another tool of it: a yes to the old one is void.
            facts = {
                "method": operation.method,
                "path": operation.path,
                "description": operation.description,
                "schema": schema,
                "server": str(api.client.base),
                "body": operation.body_type,
                "places": {name: asdict(place) for name, place in operation.places.items()},
                "fixed": dict(self._fixed_of(operation)),
            }
            return Tool(
                name,
                bounded_description(operation.description, request),
                schema,
                screen_output=True,
                version=definition_digest(facts),
                read_only=operation.reads_only,
                metadata=ToolMetadata(tags=tags),
            )
        except (UnusableSchema, ToolValidationError) as exc:
            why = str(exc)
        except Exception as exc:
            # A document may hold anything, and one operation must not hide the others.
            why = f"{type(exc).__name__}: {exc}"
        self.left_out[operation.name] = f"{request}: {why}"
        log.warning("openapi.tool_left_out", extra={"source": self.name, "tool": name, "why": why})
        return None

    async def _opened(self) -> _Api:
        """Return the parsed document, which is read at the first call. Raises SourceError."""
        if self._api is None:
            text = await self._document()
            # In a thread: a document may take long to process.
            self._api = await call_in_thread(lambda: self._read(parse(text, self._source_name)))
        return self._api

    @property
    def _source_name(self) -> str:
        """The document's name in errors, without its URL, which may hold a secret."""
        if self.is_remote:
            return f"the document of {urlsplit(self._source).hostname}"
        return self._source

    async def _document(self) -> str:
        """Return the text of the document. Raises SourceError."""
        if not self.is_remote:
            return await call_in_thread(_read_file, Path(self._source))
        url = _parsed_url(self._source)
        if url is None:
            raise SourceError(f"{self._source_name} has no address that can be used: correct it")
        headers = {"Accept": "application/json, application/yaml, */*"}
        request = Request("GET", url.raw_path.decode(), headers)
        client = self._client(url.join("/"), MAX_DOCUMENT_BYTES)
        answer = await client.send(request, reads_only=True)
        if answer.status_code != 200:
            raise SourceUnreachable(
                f"{self._source_name}: its server answered {answer.status_code}: check the address"
            )
        return answer.content.decode(errors="replace")

    def _read(self, document: Document) -> _Api:
        """Return the operations to offer and the client of their origin. Raises SourceError."""
        source = None
        if self.is_remote:
            source = _parsed_url(self._source)
        url = self._server(document, source)

        selected = [
            self._without_fixed(operation) for operation in self._selected(document, url, source)
        ]
        if self.is_remote:
            # A file has one order, but a server may write its document in another one each time.
            selected.sort(key=lambda each: each.name)
        names = legal_names([each.name for each in selected])

        # A lone "?" or "#" says nothing.
        client = self._client(url.copy_with(query=None, fragment=None), self._max_bytes)
        return _Api({names[each.name]: each for each in selected}, client)

    def _server(self, document: Document, source: httpx.URL | None) -> httpx.URL:
        """Return the address that all calls go to. Raises SourceError if it cannot be used.

        `source` is the document's own URL, None for a file.
        """
        if self._base_url:
            url = _parsed_url(self._base_url)
        else:
            url = _parsed_url(server_url(document), source)
        if url is None or url.userinfo:
            raise SourceError(
                f"{self._source_name} names no server that can be used: write its address as base_url"
            )
        if source and not self._base_url and origin_of(url) != origin_of(source):
            host = url.netloc.decode()
            raise SourceError(
                f"{self._source_name} sends its calls to {host!r}: if you mean it, write it as base_url"
            )
        # Each call would be refused, after a person's yes.
        if url.scheme != "https" and not self._base_url:
            raise SourceError(
                f"{self._source_name} has its server at {url.netloc.decode()!r}, without https: "
                f"if you mean it, write it as base_url"
            )
        if url.query or url.fragment:
            raise SourceError(
                f"{self._source_name} names a server with a query or a fragment, which no call would carry: "
                "write its address without that as base_url"
            )
        return url

    def _without_fixed(self, operation: Operation) -> Operation:
        """Return the operation without the fixed arguments in its schema: no model sees them."""
        schema = operation.schema
        properties = {
            name: part for name, part in schema["properties"].items() if name not in self._fixed
        }
        required = [name for name in schema["required"] if name not in self._fixed]
        shown_schema = {**schema, "properties": properties, "required": required}
        return replace(operation, schema=shown_schema)

    def _selected(
        self,
        document: Document,
        url: httpx.URL,
        source: httpx.URL | None,
    ) -> list[Operation]:
        """Return the operations that the filter accepts; log the unusable ones.

        `url` is where all calls go. `source` is the document's own URL, None for a file. Raises
        SourceError if there are too many operations, or if a name in the settings matches none.
        """
        self.left_out.clear()
        self.missing.clear()

        if self.is_remote:
            # Of two operations with one operationId the first has it,
            # however a server orders its paths.
            paths = as_mapping(document.root.get("paths"))
            sorted_paths = {path: paths[path] for path in sorted(paths, key=str)}
            document = Document({**document.root, "paths": sorted_paths})

        listed: dict[str, None] = {}

        def accepts(name: str) -> bool:
            listed[name] = None
            return self._filter.accepts(name)

        reader = OperationReader(
            document,
            accepts,
            lambda where, name: any(auth.fills(where, name) for auth in self._auth),
            _own_servers(document, url, source),
            keys=max(1, len(self._auth)),
            left_out=self.left_out,
        )
        # No more than needed: a document may have any number of operations, each of any size.
        selected = list(islice(reader.operations(), MAX_TOOLS + 1))
        self.listed_names = tuple(listed)
        for each in selected:
            if each.missing:
                self.missing[each.name] = "; ".join(each.missing)
        self._log_unusable()
        if len(selected) > MAX_TOOLS:
            raise SourceError(
                f"{self._source_name} has more than {MAX_TOOLS} selected operations, so some would be left out: "
                "choose those you need with include and exclude, as in include: [get*, createOrder]"
            )
        self._check_names(selected)
        return selected

    def _check_names(self, selected: Sequence[Operation]) -> None:
        """Raise SourceError for a name in the settings that matches nothing in the document.

        A misspelled operation or argument would be lost silently.
        """
        exact = [name for name in self._filter.include or () if not set(name) & set("*?[")]
        offered = {operation.name for operation in selected}
        missing = sorted(set(exact) - offered - self.left_out.keys())
        if missing:
            reasons = "; ".join(islice(self.left_out.values(), MAX_LOGGED))
            also = f"; left out: {reasons}" if reasons else ""
            raise SourceError(
                f"{self._source_name}: include names operations that do not exist: {missing!r}{also}"
            )

        known = set(chain.from_iterable(operation.places for operation in selected))
        unknown = sorted(self._fixed.keys() - known)
        if unknown:
            raise SourceError(
                f"{self._source_name}: no operation takes the fixed arguments {unknown!r}: correct them"
            )

    def _log_unusable(self) -> None:
        """Log the first operations that cannot be used, or that lack optional parameters."""
        for why in islice(self.left_out.values(), MAX_LOGGED):
            log.error("openapi.operation_left_out", extra={"source": self.name, "why": why})
        if len(self.left_out) > MAX_LOGGED:
            more = len(self.left_out) - MAX_LOGGED
            log.error("openapi.operations_left_out", extra={"source": self.name, "more": more})
        for name, why in islice(self.missing.items(), MAX_LOGGED):
            facts = {"source": self.name, "tool": name, "why": why}
            log.warning("openapi.operation_incomplete", extra=facts)

    def _fixed_of(self, operation: Operation) -> list[tuple[str, Any]]:
        """Return the fixed arguments of an operation, sorted by name."""
        return sorted(
            (name, value) for name, value in self._fixed.items() if name in operation.places
        )

    def _client(self, url: httpx.URL, max_bytes: int) -> OriginClient:
        base = _parsed_url(self._base_url)
        trusted = base is not None and origin_of(url) == origin_of(base)
        return OriginClient(url, trusted, self._seconds, max_bytes, self._resolve)


def _checked_base(url: str) -> str:
    """Return a `base_url`; "" stays "". Raises ValueError for one that is no address."""
    if not url:
        return ""
    try:
        return server_address(url)
    except ValueError as exc:
        raise ValueError(f"base_url {without_secrets(url)!r} {exc}") from None


def _own_servers(
    document: Document,
    url: httpx.URL,
    source: httpx.URL | None,
) -> Callable[[str], bool]:
    """Return a function that returns whether all calls go to a server, given its URL in the document.

    It returns True also for the document's first server, because a `base_url` replaces that one.
    """

    def address(each: httpx.URL | None) -> str:
        if each is None:
            return ""
        return str(each.copy_with(query=None, fragment=None)).rstrip("/")

    try:
        first_server = server_url(document)
    except SourceError:  # it has a variable that only `base_url` fills
        first_server = ""
    first_address = address(_parsed_url(first_server, source))
    own = {address(url), first_address, first_server.rstrip("/")} - {""}

    def is_own(text: str) -> bool:
        return text.rstrip("/") in own or address(_parsed_url(text, source)) in own

    return is_own


def _read_file(path: Path) -> str:
    """Return the text of a document in a file. Raises SourceError."""
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise SourceError(
                f"{path}: larger than {MAX_DOCUMENT_BYTES} bytes: cut it down to what is used"
            )
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SourceError(f"{path}: cannot be read ({exc.strerror}): check the path") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path}: not text in UTF-8") from None


def _parsed_url(text: str, base: httpx.URL | None = None) -> httpx.URL | None:
    """Return the URL in a text, which may be relative to a base.

    Return None if no request can be sent to it.
    """
    import httpx

    try:
        url = base.join(text) if base else httpx.URL(text)
        has_port = url.port is None or 0 < url.port < 65_536
        if url.scheme in ("http", "https") and url.host and has_port:
            return url
        return None
    except (ValueError, httpx.InvalidURL):
        return None


def _is_text(content_type: str) -> bool:
    """Return whether an answer of this media type is text; "" counts as text."""
    if not content_type or content_type.startswith("text/"):
        return True
    return is_json_type(content_type) or content_type in ("application/xml", "application/yaml")


def _unclear(error: str, operation: Operation) -> ToolOutcome:
    """Return the outcome of a call that may have taken effect.

    It is a plain failure for an operation that only reads.
    """
    if operation.reads_only:
        return failed_outcome(error)
    return UnclearOutcome(
        success=False, error=f"{error}; whether {operation.name!r} took effect is not known"
    )
