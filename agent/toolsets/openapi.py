"""OpenApiToolProvider: the operations of an OpenAPI document as tools.

An operation is one method of one path, such as `GET /pets/{id}`. Each becomes one tool.

| what | where |
|---|---|
| where the document lies, and the server of its calls | `openapi_source.py` |
| the document and its schemas | `openapi_document.py` |
| which operations there are, and their arguments | `openapi_operations.py`, `openapi_bodies.py` |
| files that are uploaded or downloaded | `openapi_files.py` |
| the request of one call, its key, and sending it | `openapi_request.py` |
| what a model reads of an answer | `openapi_answers.py` |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sayso.agent.tools.definition import OPENAPI, ToolMetadata, ToolTag
from sayso.agent.tools.digests import definition_digest
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.previews import Preview
from sayso.agent.tools.result_texts import ToolOutcome
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
)
from sayso.agent.toolsets.openapi_answers import AnswerReader
from sayso.agent.toolsets.openapi_document import Document, as_mapping, parse
from sayso.agent.toolsets.openapi_files import read_uploads, upload_preview
from sayso.agent.toolsets.openapi_operations import Operation, OperationReader
from sayso.agent.toolsets.openapi_request import Auth, OriginClient, request_for
from sayso.agent.toolsets.openapi_source import DocumentSource
from sayso.infra.concurrency import call_in_thread
from sayso.infra.http import Resolve, addresses_of

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)
#: Time limit of one request, also of the one for the document, in seconds.
CALL_SECONDS = 30.0
#: Largest answer, in bytes.
MAX_ANSWER_BYTES = 5_000_000
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
        self._source = DocumentSource(str(document), base_url, seconds=seconds, resolve=resolve)
        self.name = name or self._source.name or "api"
        self._auth = (auth,) if isinstance(auth, Auth) else tuple(auth or ())
        self._answers = AnswerReader(self.name, self._auth)
        self._filter = ToolFilter(include, exclude)
        self._fixed_arguments = dict(arguments or {})
        self._max_bytes = max_bytes
        #: None until the document is read.
        self._api: _Api | None = None
        #: The names of all operations in the document, also of those that the filter leaves out.
        self.listed_names: tuple[str, ...] = ()
        #: Why selected operations cannot be used, by their names in the document.
        self.left_out: dict[str, str] = {}
        #: Why offered operations lack optional parameters of the document, by their names there.
        self.missing: dict[str, str] = {}

    @property
    def is_remote(self) -> bool:
        """Whether the document has a URL."""
        return self._source.is_remote

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
            return ToolOutcome(success=True, result=self._answers.value(operation, request, answer))

        error = self._answers.error_text(operation, answer)
        # A redirect that was not followed does not say whether the call took effect.
        is_redirect = answer.status_code < 400
        if is_redirect or answer.status_code in UNCLEAR_STATUSES:
            return _unclear(error, operation)
        return failed_outcome(error)

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
            return Tool(
                name,
                bounded_description(operation.description, request),
                schema,
                screen_output=True,
                version=self._version(api, operation, schema),
                read_only=operation.reads_only,
                metadata=ToolMetadata(tags=frozenset(tags), source=OPENAPI),
            )
        except (UnusableSchema, ToolValidationError) as exc:
            why = str(exc)
        except Exception as exc:
            # A document may hold anything, and one operation must not hide the others.
            why = f"{type(exc).__name__}: {exc}"

        self.left_out[operation.name] = f"{request}: {why}"
        log.warning("openapi.tool_left_out", extra={"source": self.name, "tool": name, "why": why})
        return None

    def _version(self, api: _Api, operation: Operation, schema: Mapping[str, Any]) -> str:
        """Return the version of a tool, a digest of everything that a call depends on.

        A change of any part is a new version. A yes that was given to the old one runs nothing.
        """
        return definition_digest(
            {
                "method": operation.method,
                "path": operation.path,
                "description": operation.description,
                "schema": schema,
                "server": str(api.client.base),
                "body": operation.body_type,
                "places": {name: asdict(place) for name, place in operation.places.items()},
                "fixed": self._fixed_arguments_of(operation),
            }
        )

    async def _load_api(self) -> _Api:
        """Return what calls need of the document, which is read once. Raises SourceError."""
        if self._api is None:
            text = await self._source.read_text()
            # In a thread: a document may take long to process.
            self._api = await call_in_thread(lambda: self._read(parse(text, self._source.label)))
        return self._api

    def _read(self, document: Document) -> _Api:
        """Return the operations to offer and the client of their origin. Raises SourceError."""
        url = self._source.server(document)
        operations = self._select(document, url)
        selected = [self._without_fixed_arguments(each) for each in operations]
        # A file has one order, but a server may write its document in another one each time.
        if self.is_remote:
            selected.sort(key=lambda each: each.name)
        names = legal_names([each.name for each in selected])

        # `server` refuses a query and a fragment, but lets an empty one pass, as in "/v1?".
        client = self._source.client(url.copy_with(query=None, fragment=None), self._max_bytes)
        operations_by_name = {names[each.name]: each for each in selected}
        return _Api(operations=operations_by_name, client=client)

    def _without_fixed_arguments(self, operation: Operation) -> Operation:
        """Return the operation without the fixed arguments in its schema: no model sees them."""
        schema = operation.schema
        properties = dict(schema["properties"])
        for name in self._fixed_arguments:
            properties.pop(name, None)
        required = [name for name in schema["required"] if name not in self._fixed_arguments]
        shown_schema = {**schema, "properties": properties, "required": required}
        return replace(operation, schema=shown_schema)

    def _select(self, document: Document, url: httpx.URL) -> list[Operation]:
        """Return the operations that the filter accepts; log the unusable ones.

        `url` is where all calls go. Raises SourceError if there are too many operations, or if a
        name in the settings matches none.
        """
        self.left_out.clear()
        self.missing.clear()

        # Of two operations with the same operationId, the first gets it. It must be the same one
        # each time, however a server orders its paths.
        if self.is_remote:
            document = _with_sorted_paths(document)

        # A dict as a set that keeps its order. The reader asks about the name of each operation.
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
            is_own_server=self._source.own_servers(document, url),
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
        self._check_selection(selected)
        return selected

    def _check_selection(self, selected: Sequence[Operation]) -> None:
        """Raise SourceError for too many operations, and for a setting that matches none of them.

        Some operations, or a misspelled operation or argument, would be lost silently.
        """
        if len(selected) > MAX_TOOLS:
            raise SourceError(
                f"{self._source.label} has more than {MAX_TOOLS} selected operations, "
                "so some would be left out: choose those you need with include and exclude, "
                "as in include: [get*, createOrder]"
            )

        exact_names = [name for name in self._filter.include or () if not set(name) & set("*?[")]
        offered = {operation.name for operation in selected}
        missing = sorted(set(exact_names) - offered - self.left_out.keys())
        if missing:
            reasons = "; ".join(islice(self.left_out.values(), MAX_LOGGED))
            also = f"; left out: {reasons}" if reasons else ""
            raise SourceError(
                f"{self._source.label}: include names operations that do not exist: "
                f"{missing!r}{also}"
            )

        known = set(chain.from_iterable(operation.places for operation in selected))
        unknown = sorted(self._fixed_arguments.keys() - known)
        if unknown:
            raise SourceError(
                f"{self._source.label}: no operation takes the fixed arguments {unknown!r}: "
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


def _with_sorted_paths(document: Document) -> Document:
    """Return the document with its paths in the order of their names."""
    paths = as_mapping(document.root.get("paths"))
    sorted_paths = {path: paths[path] for path in sorted(paths, key=str)}
    return Document({**document.root, "paths": sorted_paths})


def _unclear(error: str, operation: Operation) -> ToolOutcome:
    """Return the outcome of a call that may have taken effect.

    It is a plain failure for an operation that only reads.
    """
    if operation.reads_only:
        return failed_outcome(error)
    return UnclearOutcome(
        success=False, error=f"{error}; whether {operation.name!r} took effect is not known"
    )
