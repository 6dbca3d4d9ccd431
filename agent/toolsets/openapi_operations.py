"""The operations of an OpenAPI document: their arguments, and where each argument goes.

An operation is one method of one path. A *path item* is what the document says about one path: its
operations, and what these have in common. An argument is what a model gives; its place (`Place`)
says where a request carries it: in the path, the query, a header, a cookie or the body.

An operation is offered only if a request can be written as the document demands. Bodies are read in
`openapi_bodies.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sayso.agent.toolsets.base import SourceError, legal_names
from sayso.agent.toolsets.openapi_bodies import (
    Argument,
    Place,
    body_of,
    essence_of,
    is_json_type,
    is_text_schema,
)
from sayso.agent.toolsets.openapi_document import Document, Inliner, as_mapping, url_of_server

#: The HTTP methods that a document may have operations for.
METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
#: Methods of the specification that are not called: TRACE repeats the request with its secrets, and
#: QUERY is new in OpenAPI 3.2.
_UNSUPPORTED_METHODS = ("trace", "query")
#: Methods that only read (RFC 9110, section 9.2.1).
READ_ONLY_METHODS = ("get", "head")
#: Headers whose parameters the specification tells clients to ignore.
_IGNORED_HEADERS = frozenset(("accept", "content-type", "authorization"))
#: Headers of the connection, which only the client writes. A request without a value for them means
#: the same.
_CONNECTION_HEADERS = frozenset(
    """host cookie content-length transfer-encoding accept-encoding connection expect keep-alive
    proxy-authorization proxy-connection te trailer upgrade""".split()
)
#: The names that headers and cookies may have (RFC 9110, section 5.6.2).
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
#: The supported styles of parameters, by their place; the first is the default.
_STYLES = {
    "path": ("simple",),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
#: Kinds of HTTP authentication that answer a challenge or sign each request. A fixed key is not
#: enough for them.
_INTERACTIVE_SCHEMES = frozenset(
    (
        "digest",
        "dpop",
        "gnap",
        "hoba",
        "mutual",
        "negotiate",
        "privatetoken",
        "scram-sha-1",
        "scram-sha-256",
    )
)
#: Returns whether Sayso fills a parameter itself, such as one for a key. Its arguments are where
#: the parameter is (query, header, cookie, path), and its name.
IsFilled = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, as it can be called."""

    #: Its `operationId`, else made of method and path.
    name: str
    #: The HTTP method, in lower case.
    method: str
    path: str
    description: str
    #: The JSON Schema of its arguments, which is an object.
    schema: Mapping[str, Any]
    #: Where each argument goes, by its name in the schema.
    places: Mapping[str, Place]
    #: The media type of its body; "" if it sends none.
    body_type: str = ""
    is_body_required: bool = False
    #: Why optional parameters were left out that no request can express, a sentence each.
    missing: tuple[str, ...] = ()

    @property
    def reads_only(self) -> bool:
        """Whether its method only reads."""
        return self.method in READ_ONLY_METHODS

    @property
    def file_places(self) -> dict[str, Place]:
        """The places of its arguments that are files which the user sent, by argument."""
        return {name: place for name, place in self.places.items() if place.file_types}


class _Candidate(NamedTuple):
    """An operation that may be used, as it stands in the document."""

    path: str
    #: The HTTP method, in lower case.
    method: str
    #: The path item that the operation is in.
    item: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OperationReader:
    """Reads the operations of one document. Lives while they are read."""

    document: Document
    #: Returns whether an operation of this name is wanted.
    accepts: Callable[[str], bool]
    #: Parameters that it names are no arguments: a model does not see them.
    is_filled: IsFilled
    #: Returns whether all calls go to the server of this URL.
    is_own_server: Callable[[str], bool]
    #: How many keys sign a call.
    key_count: int = 1
    #: Why operations cannot be used, by name, or by path if they have none. The reader adds them.
    left_out: dict[str, str] = field(default_factory=dict)

    def operations(self) -> Iterator[Operation]:
        """Yield every usable operation whose name is accepted."""
        names_so_far: set[str] = set()
        for candidate in self._candidates():
            path = candidate.path
            method = candidate.method

            # Of two operations with one operationId, the second is named after method and path. If
            # that name is taken too, the operation is left out: `name` is "".
            wanted_name = _name(candidate.item[method], method, path)
            name = wanted_name
            if name in names_so_far:
                name = _name(None, method, path)
            if name in names_so_far:
                name = ""
            names_so_far.add(name)
            if name and not self.accepts(name):
                continue

            request = f"{method.upper()} {path}"
            try:
                if not name:
                    problem = f"another operation is called {wanted_name!r}"
                    raise SourceError(f"{problem}: give each its own operationId")
                yield self._operation(candidate, name)
            except SourceError as exc:
                self.left_out[name or request] = f"{request}: {exc}"
            except Exception as exc:
                # A document may hold anything, and one operation must not hide the others.
                reason = f"malformed ({type(exc).__name__}: {exc})"
                self.left_out[name or request] = f"{request}: {reason}"

    def _candidates(self) -> list[_Candidate]:
        """Return each operation that may be used.

        Operations with a method that is not supported are added to `left_out`.
        """
        candidates: list[_Candidate] = []
        for path, item in as_mapping(self.document.root.get("paths")).items():
            if str(path).startswith("x-"):  # an extension of the document
                continue
            try:
                resolved = self.document.resolved(item)
            except SourceError as exc:
                self.left_out[str(path)] = f"{path}: {exc}"
                continue

            methods = [method for method in METHODS if method in resolved]
            candidates += [_Candidate(str(path), method, resolved) for method in methods]

            unsupported = [method for method in _UNSUPPORTED_METHODS if method in resolved]
            others = {method: resolved[method] for method in unsupported}
            # OpenAPI 3.2 has the operations of all other methods here, by their methods.
            others |= as_mapping(resolved.get("additionalOperations"))
            for method, operation in others.items():
                name = _name(operation, str(method).lower(), str(path))
                request = f"{str(method).upper()} {path}"
                if self.accepts(name):
                    self.left_out[name] = f"{request}: this method is not supported"
        return candidates

    def _operation(self, candidate: _Candidate, name: str) -> Operation:
        """Return one operation under this name.

        Raises SourceError with the reason if it cannot be used.
        """
        path = candidate.path
        method = candidate.method
        item = candidate.item
        if not path.startswith("/"):
            raise SourceError("its path does not begin with a slash")
        operation = self.document.resolved(item[method])
        self._check_server(item, operation)
        self._check_security(operation)

        inliner = Inliner(self.document)
        arguments, missing = self._parameters(
            inliner, item, operation, reads_only=method in READ_ONLY_METHODS
        )
        body = body_of(self.document, inliner, method, operation)
        _check_path(path, arguments)
        schema, places = _schema([*arguments, *body.arguments])

        # Documents tell operations of one path apart by a fragment, which HTTP never sends.
        sent_path, _, _ = path.partition("#")
        return Operation(
            name=name,
            method=method,
            path=sent_path,
            description=_description(item, operation, inliner.cuts),
            schema=schema,
            places=places,
            body_type=body.content_type,
            is_body_required=body.is_required,
            missing=tuple(missing),
        )

    def _check_server(self, item: Mapping[str, Any], operation: Mapping[str, Any]) -> None:
        """Raise SourceError for an operation that the document sends to another server."""
        servers = operation.get("servers") or item.get("servers") or []
        urls = [url_of_server(server) for server in servers]
        if urls and not any(map(self.is_own_server, urls)):
            problem = f"it goes to another server, {urls[0]!r}"
            raise SourceError(f"{problem}: give it a source of its own with this base_url")

    def _check_security(self, operation: Mapping[str, Any]) -> None:
        """Raise SourceError if the keys fulfill none of the operation's security requirements.

        Requirements are alternatives: one that is fulfilled is enough.
        """
        requirements = operation.get("security", self.document.root.get("security")) or []
        problems = [self._security_problem(as_mapping(each)) for each in requirements]
        # Without a requirement, each call is allowed.
        if problems and all(problems):
            raise SourceError(problems[0])

    def _security_problem(self, requirement: Mapping[str, Any]) -> str:
        """Return why a requirement cannot be fulfilled; "" if it can."""
        if len(requirement) > self.key_count:
            names = " and ".join(map(repr, requirement))
            return f"it needs {names} at once: name the others than `auth` under `more_auth`"
        components = as_mapping(self.document.root.get("components"))
        schemes = as_mapping(components.get("securitySchemes"))
        for name in requirement:
            scheme = self.document.resolved(schemes.get(name, {}))
            kind = str(scheme.get("type"))
            http_scheme = str(scheme.get("scheme")).lower()
            if kind == "mutualTLS":
                return "it needs a certificate of the client (mutualTLS), which is not supported"
            if kind == "http" and http_scheme in _INTERACTIVE_SCHEMES:
                authentication = f"HTTP authentication of the kind {http_scheme!r}"
                return f"it needs {authentication}, which is not supported"
        return ""

    def _parameters(
        self,
        inliner: Inliner,
        item: Mapping[str, Any],
        operation: Mapping[str, Any],
        *,
        reads_only: bool,
    ) -> tuple[list[Argument], list[str]]:
        """Return the arguments for the parameters of the path item and of the operation.

        Return also why parameters are missing, since no request can express them. A parameter may
        be missing if it is optional and a call without it does no harm: the operation only reads,
        or the parameter is a header of the connection. Raises SourceError for any other parameter
        that no request can express.
        """
        # A parameter of the operation, which comes later, replaces one of the path item.
        both = [*(item.get("parameters") or ()), *(operation.get("parameters") or ())]
        resolved = [self.document.resolved(each) for each in both]
        parameters = {(each.get("in"), each.get("name")): each for each in resolved}

        arguments: list[Argument] = []
        missing: list[str] = []
        for (where, name), parameter in parameters.items():
            header = ""
            if where == "header":
                header = str(name).lower()
            if header in _IGNORED_HEADERS or self.is_filled(str(where), str(name)):
                continue
            try:
                arguments.append(_argument(inliner, parameter))
            except SourceError as exc:
                is_required = parameter.get("required") is True or where == "path"
                is_harmless = reads_only or header in _CONNECTION_HEADERS
                if is_required or not is_harmless:
                    raise
                missing.append(str(exc))
        return arguments, missing


def _name(operation: Any, method: str, path: str) -> str:
    """Return the `operationId`, else method and path: `get_pets_id`."""
    own_name = as_mapping(operation).get("operationId")
    if own_name:
        return str(own_name)
    return "_".join([method, *re.findall(r"[A-Za-z0-9]+", path)])


def _description(item: Mapping[str, Any], operation: Mapping[str, Any], cuts: Sequence[str]) -> str:
    """Return the description of an operation; "" if the document has none.

    `cuts` are the names of schemas that are not shown in full.
    """
    texts = [
        operation.get("summary") or item.get("summary"),
        operation.get("description") or item.get("description"),
    ]
    description = "\n\n".join(str(text).strip() for text in dict.fromkeys(texts) if text)
    if cuts:
        description = f"{description}\n\n(Nested {', '.join(cuts)} not shown in full.)".strip()
    return description


def _check_path(path: str, arguments: Sequence[Argument]) -> None:
    """Raise SourceError unless the parameters of the path and the names in it are the same."""
    in_path = set(re.findall(r"\{([^}]+)\}", path))
    parameters = {each.place.name for each in arguments if each.place.where == "path"}
    if in_path - parameters:
        raise SourceError(f"nothing fills {sorted(in_path - parameters)!r} in its path")
    if parameters - in_path:
        raise SourceError(f"its path has no place for {sorted(parameters - in_path)!r}")


def _schema(arguments: Sequence[Argument]) -> tuple[dict[str, Any], dict[str, Place]]:
    """Return the schema of the arguments, and their places, both by the names that a model sees.

    Every vendor accepts these names. If several arguments have one name in the document, where they
    go is appended: `id` in the path and `id_query`.
    """
    own_names = [each.place.name for each in arguments]
    unique_names = []
    for each in arguments:
        name = each.place.name
        is_shared = own_names.count(name) > 1
        if is_shared and each.place.where != "path":
            name = f"{name}_{each.place.where}"
        unique_names.append(name)
    legal = legal_names(unique_names)

    by_name = {legal[name]: each for name, each in zip(unique_names, arguments, strict=True)}
    schema = {
        "type": "object",
        "properties": {name: as_mapping(each.schema) for name, each in by_name.items()},
        "required": [name for name, each in by_name.items() if each.is_required],
        "additionalProperties": False,
    }
    return schema, {name: each.place for name, each in by_name.items()}


def _argument(inliner: Inliner, parameter: Mapping[str, Any]) -> Argument:
    """Return a parameter as an argument. Raises SourceError if no request can express it."""
    where = parameter.get("in")
    name = str(parameter.get("name"))
    if where not in _STYLES:
        problem = f"its parameter {name!r} is in {where!r}"
        raise SourceError(f"{problem}: path, query, header and cookie are supported")
    if where in ("header", "cookie") and not _TOKEN.fullmatch(name):
        raise SourceError(f"its parameter {name!r} is no valid name of a {where}")
    if where == "header" and name.lower() in _CONNECTION_HEADERS:
        problem = f"its header {name!r} belongs to the connection"
        raise SourceError(f"{problem}, and the client alone writes it")

    # A parameter states how it is written either by a style, or by a media type in `content`.
    style = str(parameter.get("style", _STYLES[where][0]))
    has_content = "content" in parameter
    if style not in _STYLES[where] and not has_content:
        raise SourceError(f"its parameter {name!r} has the style {style!r}, which is not supported")
    content_type = ""
    holder = parameter
    if has_content:
        content_type, holder = _content_of(parameter)
    schema = inliner.inline(holder.get("schema", {}))
    is_json = is_json_type(content_type)
    is_text = content_type == "text/plain" and is_text_schema(schema)
    if has_content and not is_json and not is_text:
        problem = f"its parameter {name!r} is written as {content_type or 'no type'}"
        raise SourceError(f"{problem}: JSON is supported")

    if parameter.get("description") and isinstance(schema, dict):
        schema = {**schema, "description": str(parameter["description"])}
    explode = bool(parameter.get("explode", style == "form"))
    place = Place(name, where, style=style, explode=explode, is_json=is_json)
    # Such a value would be written as several cookies of one name, and servers read one of them.
    is_written_in_parts = explode and not is_json and not is_text_schema(schema)
    if where == "cookie" and is_written_in_parts:
        raise SourceError(
            f"its cookie {name!r} is a list or an object: "
            "text, and lists with explode: false, are supported"
        )
    is_required = where == "path" or parameter.get("required") is True
    return Argument(place, schema, is_required=is_required)


def _content_of(parameter: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the media type that a parameter is written in, and what holds its schema.

    The specification allows one entry in `content`. "" and {} if there is none.
    """
    for kind, holder in as_mapping(parameter["content"]).items():
        return essence_of(str(kind)), as_mapping(holder)
    return "", {}
