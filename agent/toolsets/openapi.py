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
from sayso.infra.http import Resolve, addresses_of, content_type_of, decode_text, origin_of

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
    """What calls need of a parsed document. Made once, when the document is read."""

    #: By the names of their tools.
    operations: Mapping[str, Operation]
    #: Sends requests to the origin of the operations.
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
        self._base_url = _legal_base_url(base_url)
        self._auth = (auth,) if isinstance(auth, Auth) else tuple(auth or ())
        self._filter = ToolFilter(include, exclude)
        self._fixed_arguments = dict(arguments or {})
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._resolve = resolve
        #: None until the document is read.
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
        default_name = Path(self._source).stem
        if self.is_remote:
            default_name = urlsplit(self._source).hostname or ""
        self.name = name or default_name or "api"

    @property
    def is_remote(self) -> bool:
        """Whether the document has a URL."""
        return self._source.startswith(("http://", "https://"))

    async def list_tools(self) -> list[Tool]:
        """Return the operations as tools: in the order of a file, or sorted by name if from a URL.

        The document is read once. An operation that cannot be used is in `left_out`. Raises
        SourceError.
        """
        api = await self._load_api()
        # In a thread: many schemas may take long to process.
        return await call_in_thread(self._all_tools, api)

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Send one operation's request, and return what the server answered.

        JSON is returned as values, text as text. Other files become artifacts, which are files for
        the user.
        """
        try:
            api = await self._load_api()
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
        """Send one operation's request, and return its outcome.

        Raises SourceError for arguments that cannot be sent.
        """
        arguments = parameters | self._fixed_arguments_of(operation)
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
        # A redirect that was not followed does not say whether the call took effect.
        is_redirect = answer.status_code < 400
        if is_redirect or answer.status_code in UNCLEAR_STATUSES:
            return _unclear(error, operation)
        return failed_outcome(error)

    def _error_text(self, operation: Operation, answer: httpx.Response) -> str:
        """Return what a model reads of an answer without success: its status and its body."""
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
        content_type = content_type_of(answer)
        if not answer.content:
            # HEAD is called for its status: an answer to it never has a body.
            if operation.method == "head":
                return {"status": answer.status_code}
            return None

        if is_json_type(content_type):
            try:
                return scrub_value(json.loads(answer.content), self._secrets)
            except (ValueError, RecursionError):
                return self._text(answer)

        disposition = answer.headers.get("content-disposition") or ""
        is_download = disposition.strip().lower().startswith("attachment")
        if _is_text(content_type) and not is_download:
            return self._text(answer)

        filename = scrub(download_name(disposition, request.path, content_type), self._secrets)
        file = emit_artifact(answer.content, mime_type=content_type or None, filename=filename)
        note = file_note(f"{file.filename}, {file.mime_type}, {file.size} bytes")
        if not _is_text(content_type):
            return note
        # The user gets a download of text as a file, and the model reads it to answer questions.
        return f"{note}\n{self._text(answer)}"

    def _text(self, answer: httpx.Response) -> str:
        """Return the body of an answer as text, without secrets."""
        return scrub(decode_text(answer.content, answer.charset_encoding or ""), self._secrets)

    @property
    def _secrets(self) -> Sequence[str]:
        """What an answer must not repeat to the model."""
        return list(chain.from_iterable(auth.secrets for auth in self._auth))

    def _all_tools(self, api: _Api) -> list[Tool]:
        """Return the operations that can be used as tools."""
        tools = [self._tool(api, name, operation) for name, operation in api.operations.items()]
        return [tool for tool in tools if tool is not None]

    def _tool(self, api: _Api, name: str, operation: Operation) -> Tool | None:
        """Return the operation as a tool; None if it is unusable, which is logged."""
        tags = {ToolTag.NETWORK}
        if operation.reads_only:
            tags.add(ToolTag.READ_ONLY)
        else:
            tags.add(ToolTag.DESTRUCTIVE)
        request = f"{operation.method.upper()} {operation.path}"

        try:
            schema = safe_schema(operation.schema)
            # A server may write the lists of its document in another order each time.
            if self.is_remote:
                schema = in_fixed_order(schema)
            # A change of any of these is a new version of the tool. A yes that was given to the old
            # one runs nothing.
            version_parts = {
                "method": operation.method,
                "path": operation.path,
                "description": operation.description,
                "schema": schema,
                "server": str(api.client.base),
                "body": operation.body_type,
                "places": {name: asdict(place) for name, place in operation.places.items()},
                "fixed": self._fixed_arguments_of(operation),
            }

            return Tool(
                name,
                bounded_description(operation.description, request),
                schema,
                screen_output=True,
                version=definition_digest(version_parts),
                read_only=operation.reads_only,
                metadata=ToolMetadata(tags=frozenset(tags)),
            )
        except (UnusableSchema, ToolValidationError) as exc:
            why = str(exc)
        except Exception as exc:
            # A document may hold anything, and one operation must not hide the others.
            why = f"{type(exc).__name__}: {exc}"

        self.left_out[operation.name] = f"{request}: {why}"
        log.warning("openapi.tool_left_out", extra={"source": self.name, "tool": name, "why": why})
        return None

    async def _load_api(self) -> _Api:
        """Return what calls need of the document, which is read once. Raises SourceError."""
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

        operations = self._select(document, url, source)
        selected = [self._without_fixed_arguments(each) for each in operations]
        # A file has one order, but a server may write its document in another one each time.
        if self.is_remote:
            selected.sort(key=lambda each: each.name)
        names = legal_names([each.name for each in selected])

        # `_server` refuses a query and a fragment, but lets an empty one pass, as in "/v1?".
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
                f"{self._source_name} names no server that can be used: "
                "write its address as base_url"
            )

        # A document from a URL may send calls, and the keys that sign them, to its own origin only.
        host = url.netloc.decode()
        if source and not self._base_url and origin_of(url) != origin_of(source):
            raise SourceError(
                f"{self._source_name} sends its calls to {host!r}: "
                "if you mean it, write it as base_url"
            )
        # The client would refuse each call without https, and only after a person's yes.
        if url.scheme != "https" and not self._base_url:
            raise SourceError(
                f"{self._source_name} has its server at {host!r}, without https: "
                "if you mean it, write it as base_url"
            )
        if url.query or url.fragment:
            raise SourceError(
                f"{self._source_name} names a server with a query or a fragment, "
                "which no call would carry: write its address without that as base_url"
            )
        return url

    def _without_fixed_arguments(self, operation: Operation) -> Operation:
        """Return the operation without the fixed arguments in its schema: no model sees them."""
        schema = operation.schema
        properties = dict(schema["properties"])
        for name in self._fixed_arguments:
            properties.pop(name, None)
        required = [name for name in schema["required"] if name not in self._fixed_arguments]
        shown_schema = {**schema, "properties": properties, "required": required}
        return replace(operation, schema=shown_schema)

    def _select(
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

        # Of two operations with the same operationId, the first gets it. It must be the same one
        # each time, however a server orders its paths.
        if self.is_remote:
            paths = as_mapping(document.root.get("paths"))
            sorted_paths = {path: paths[path] for path in sorted(paths, key=str)}
            document = Document({**document.root, "paths": sorted_paths})

        listed_names: dict[str, None] = {}

        def accepts(name: str) -> bool:
            listed_names[name] = None
            return self._filter.accepts(name)

        def is_filled(where: str, name: str) -> bool:
            return any(auth.fills(where, name) for auth in self._auth)

        reader = OperationReader(
            document=document,
            accepts=accepts,
            is_filled=is_filled,
            is_own_server=_own_servers(document, url, source),
            key_count=max(1, len(self._auth)),
            left_out=self.left_out,
        )
        # No more than needed: a document may have any number of operations, each of any size.
        selected = list(islice(reader.operations(), MAX_TOOLS + 1))
        self.listed_names = tuple(listed_names)
        for each in selected:
            if each.missing:
                self.missing[each.name] = "; ".join(each.missing)
        self._log_unusable()
        if len(selected) > MAX_TOOLS:
            raise SourceError(
                f"{self._source_name} has more than {MAX_TOOLS} selected operations, "
                "so some would be left out: choose those you need with include and exclude, "
                "as in include: [get*, createOrder]"
            )
        self._check_names(selected)
        return selected

    def _check_names(self, selected: Sequence[Operation]) -> None:
        """Raise SourceError for a name in the settings that matches nothing in the document.

        A misspelled operation or argument would be lost silently.
        """
        exact_names = [name for name in self._filter.include or () if not set(name) & set("*?[")]
        offered = {operation.name for operation in selected}
        missing = sorted(set(exact_names) - offered - self.left_out.keys())
        if missing:
            reasons = "; ".join(islice(self.left_out.values(), MAX_LOGGED))
            also = f"; left out: {reasons}" if reasons else ""
            raise SourceError(
                f"{self._source_name}: include names operations that do not exist: "
                f"{missing!r}{also}"
            )

        known = set(chain.from_iterable(operation.places for operation in selected))
        unknown = sorted(self._fixed_arguments.keys() - known)
        if unknown:
            raise SourceError(
                f"{self._source_name}: no operation takes the fixed arguments {unknown!r}: "
                "correct them"
            )

    def _log_unusable(self) -> None:
        """Log the first operations that cannot be used, or that lack optional parameters."""
        for why in islice(self.left_out.values(), MAX_LOGGED):
            log.error("openapi.operation_left_out", extra={"source": self.name, "why": why})
        if len(self.left_out) > MAX_LOGGED:
            more = len(self.left_out) - MAX_LOGGED
            log.error("openapi.operations_left_out", extra={"source": self.name, "more": more})
        for name, why in islice(self.missing.items(), MAX_LOGGED):
            extra = {"source": self.name, "tool": name, "why": why}
            log.warning("openapi.operation_incomplete", extra=extra)

    def _fixed_arguments_of(self, operation: Operation) -> dict[str, Any]:
        """Return the fixed arguments that an operation takes, sorted by name."""
        names = sorted(self._fixed_arguments.keys() & operation.places.keys())
        return {name: self._fixed_arguments[name] for name in names}

    def _client(self, url: httpx.URL, max_bytes: int) -> OriginClient:
        """Return a client for this URL. An address that the operator configured is trusted."""
        base = _parsed_url(self._base_url)
        return OriginClient(
            base=url,
            trusted=base is not None and origin_of(url) == origin_of(base),
            seconds=self._seconds,
            max_bytes=max_bytes,
            resolve=self._resolve,
        )


def _legal_base_url(url: str) -> str:
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
    """Return a function that gets the URL of a server and returns whether all calls go there.

    `url` is where all calls go. The function returns True also for the document's first server,
    because a `base_url` replaces that one.
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
    own_addresses = {address(url), first_address, first_server.rstrip("/")} - {""}

    def is_own(server: str) -> bool:
        if server.rstrip("/") in own_addresses:
            return True
        return address(_parsed_url(server, source)) in own_addresses

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
        is_web_address = url.scheme in ("http", "https") and bool(url.host)
        has_legal_port = url.port is None or 0 < url.port < 65_536
    except (ValueError, httpx.InvalidURL):
        return None
    return url if is_web_address and has_legal_port else None


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
