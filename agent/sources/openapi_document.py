"""Operations: what an OpenAPI document offers, each with all that is needed to call it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import yaml

from agent.sources.errors import SourceError
from agent.sources.names import legal_names
from agent.sources.openapi_schema import Document, Inliner

#: Bytes of a document.
MAX_DOCUMENT_BYTES = 10_000_000
#: The methods of HTTP that a document may have operations for.
METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
#: Methods that are known to change nothing (RFC 9110, section 9.2.1).
READING = ("get", "head")

#: Headers that belong to HTTP, or to who signs in: the specification has a document's own say about them ignored.
_OWN_HEADERS = {
    "accept",
    "content-type",
    "authorization",
    "host",
    "cookie",
    "content-length",
    "transfer-encoding",
    "accept-encoding",
    "connection",
    "expect",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
}
#: What a header or a cookie may be called (RFC 9110, section 5.6.2).
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_STYLES = {
    "path": ("simple",),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
_DEFAULT_STYLE = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where one argument goes. `name` is the document's; `where` is path, query, header, cookie or body."""

    name: str
    where: str
    style: str = ""
    explode: bool = False
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `places` says where each argument goes; `whole_body`, that one argument is all of it."""

    name: str
    method: str
    path: str
    description: str
    schema: Mapping[str, Any]
    places: Mapping[str, Place]
    body_type: str = ""
    whole_body: str = ""
    cuts: Sequence[str] = ()

    @property
    def reads_only(self) -> bool:
        """Whether its method promises to change nothing."""
        return self.method in READING


def parse(text: str, where: str) -> Document:
    """The document in a JSON or YAML text. Raises SourceError, which names it by `where`."""
    try:
        root = json.loads(text) if text.lstrip().startswith("{") else yaml.load(text, _Yaml12)  # noqa: S506  # a SafeLoader
    except json.JSONDecodeError as exc:
        raise SourceError(f"{where}: not JSON: line {exc.lineno}, column {exc.colno}: {exc.msg}") from exc
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise SourceError(f"{where}: not YAML: {line}{getattr(exc, 'problem', exc)}") from exc
    except RecursionError:
        raise SourceError(f"{where}: nested too deeply to be a document") from None
    except ValueError as exc:  # a number that is none, or that has thousands of digits
        raise SourceError(f"{where}: holds a value that cannot be read: {exc}") from None
    version = root.get("openapi") if isinstance(root, Mapping) else None
    if not re.match(r"3\.[0-9]", str(version)):
        said = f"it says openapi: {version!r}" if version else "it does not say `openapi: 3...`"
        raise SourceError(f"{where}: no document of OpenAPI 3: {said}; convert it to 3.0 or 3.1")
    return Document(root)


class _Yaml12(yaml.SafeLoader):
    """YAML 1.2, as OpenAPI has it: `no`, `on` and dates are text. Without aliases, which could grow without bounds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it out
        if self.check_event(yaml.events.AliasEvent):
            problem = "an alias: write it out, or give the document as JSON"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)


_Yaml12.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag.rpartition(":")[2] not in ("timestamp", "bool")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml12.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false|True|False)$"), list("tfTF"))


def server_url(document: Document, own_url: str) -> str:
    """The first server, absolute: "" when there is none. Relative ones start at the document's own URL."""
    servers = document.root.get("servers")
    server = _mapping(servers[0]) if isinstance(servers, list) and servers else {}
    url = str(server.get("url", ""))
    for name, variable in _mapping(server.get("variables")).items():
        url = url.replace("{" + str(name) + "}", str(_mapping(variable).get("default", "")))
    url = urljoin(own_url, url or "/") if own_url else url
    return url if urlsplit(url).scheme in ("http", "https") else ""


def operations(
    document: Document, refused: list[str], takes: Callable[[str], bool] = lambda _: True
) -> Iterator[Operation]:
    """Every operation whose name is taken and that can be called; why others cannot is added to `refused`."""
    items = {
        str(path): _path_item(document, item, refused, str(path))
        for path, item in _mapping(document.root.get("paths")).items()
    }
    found = [(path, method, item) for path, item in items.items() for method in METHODS if method in item]
    taken: set[str] = set()
    for path, method, item in found:
        names = (_name(item[method], method, path), _name(None, method, path))
        name = next((name for name in names if name not in taken), "")
        taken.add(name)
        if name and not takes(name):
            continue
        try:
            if not name:
                raise SourceError(f"another operation is called {names[0]!r}: give each its own operationId")
            yield _operation(document, item, method, path, name)
        except SourceError as exc:
            refused.append(f"{method.upper()} {path}: {exc}")
        except (TypeError, ValueError, AttributeError, KeyError) as exc:  # not of the form the specification gives
            refused.append(f"{method.upper()} {path}: malformed ({type(exc).__name__}: {exc})")


def _path_item(document: Document, item: Any, refused: list[str], path: str) -> Mapping[str, Any]:
    try:
        return document.resolved(item)
    except SourceError as exc:
        refused.append(f"{path}: {exc}")
        return {}


def _name(operation: Any, method: str, path: str) -> str:
    """Its `operationId`, else method and path: `get_pets_id`."""
    given = operation.get("operationId") if isinstance(operation, Mapping) else None
    return str(given) if given else "_".join([method, *re.findall(r"[A-Za-z0-9]+", path)])


def _operation(document: Document, item: Mapping[str, Any], method: str, path: str, name: str) -> Operation:
    if not path.startswith("/"):
        raise SourceError("its path does not begin with a slash")
    operation = document.resolved(item[method])
    inliner = Inliner(document)
    arguments = _Arguments()
    for parameter in _parameters(document, item, operation):
        arguments.add(*_argument(inliner, parameter))
    unfilled = set(re.findall(r"\{([^}]+)\}", path)) - {
        place.name for place in arguments.placed if place.where == "path"
    }
    if unfilled:
        raise SourceError(f"nothing fills {sorted(unfilled)!r} in its path")
    body_type, whole = _add_body(document, inliner, operation, arguments)
    schema, places = arguments.merged()
    by_place = {place: argument for argument, place in places.items()}
    return Operation(
        name, method, path, _description(operation, item, inliner.cuts), schema, places, body_type,
        by_place[whole] if whole else "", tuple(inliner.cuts),
    )  # fmt: skip


def _parameters(document: Document, item: Mapping[str, Any], operation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The path's own, and those of the operation, which replace them."""
    both = [*(item.get("parameters") or ()), *(operation.get("parameters") or ())]
    found = {(each.get("in"), each.get("name")): each for each in map(document.resolved, both)}
    return [
        each
        for (where, name), each in found.items()
        if not (where == "header" and str(name).lower() in _OWN_HEADERS)
        and (_can_be_named(where, name) or each.get("required") is True)  # a required one has the operation refused
    ]


def _can_be_named(where: Any, name: Any) -> bool:
    return where not in ("header", "cookie") or bool(_TOKEN.fullmatch(str(name)))


def _argument(inliner: Inliner, parameter: Mapping[str, Any]) -> tuple[Place, Any, bool]:
    where, name = parameter.get("in"), str(parameter.get("name"))
    if not _can_be_named(where, name):
        raise SourceError(f"its parameter {name!r} can be the name of no {where}")
    if where not in _STYLES:
        raise SourceError(f"its parameter {name!r} is in {where!r}: OpenAPI 3 knows path, query, header and cookie")
    style = str(parameter.get("style", _DEFAULT_STYLE[where]))
    is_json = "content" in parameter
    if style not in _STYLES[where] and not is_json:
        raise SourceError(f"its parameter {name!r} has the style {style!r}, which is not supported")
    schema = _only(parameter["content"]).get("schema", {}) if is_json else parameter.get("schema", {})
    shown = inliner.inline(schema)
    if parameter.get("description") and isinstance(shown, dict):
        shown = {**shown, "description": str(parameter["description"])}
    place = Place(name, where, style, bool(parameter.get("explode", style == "form")), is_json)
    return place, shown, where == "path" or parameter.get("required") is True


def _add_body(
    document: Document, inliner: Inliner, operation: Mapping[str, Any], arguments: _Arguments
) -> tuple[str, Place | None]:
    """The body's arguments. Returns its type, and the place of the one argument that is all of it, if it is one."""
    if "requestBody" not in operation:
        return "", None
    body = document.resolved(operation["requestBody"])
    content, required = _mapping(body.get("content")), body.get("required") is True
    kind = next((kind for kind in content if _is_spoken(kind)), None)
    if kind is None:
        if required:
            raise SourceError(
                f"its body is {', '.join(map(str, content)) or 'of no type'}: JSON, forms and text are supported"
            )
        return "", None
    schema = inliner.inline(_mapping(content[kind]).get("schema", {}))
    if _is_flat(schema):
        needed = schema.get("required", []) if required else []
        for name, each in schema["properties"].items():
            arguments.add(Place(name, "body"), each, name in needed)
        return kind, None
    whole = Place("body", "body")
    arguments.add(whole, schema, required)
    return kind, whole


def _is_spoken(kind: Any) -> bool:
    essence = str(kind).partition(";")[0].strip().lower()
    return is_json_type(essence) or essence in ("application/x-www-form-urlencoded", "text/plain")


def is_json_type(content_type: str) -> bool:
    """Whether a media type is JSON: `application/json`, `application/problem+json`."""
    essence = content_type.partition(";")[0].strip().lower()
    return essence == "application/json" or (essence.startswith("application/") and essence.endswith("+json"))


def _is_flat(schema: Any) -> bool:
    """Whether a body is an object whose properties can stand among the arguments, and nothing else."""
    if not isinstance(schema, dict) or not schema.get("properties"):
        return False
    others = {"allOf", "anyOf", "oneOf", "not", "patternProperties", "minProperties"} & schema.keys()
    return (
        not others
        and schema.get("type", "object") == "object"
        and not isinstance(schema.get("additionalProperties"), dict)
    )


class _Arguments:
    """The arguments of one operation, gathered; those of one name, and those no vendor accepts, get another."""

    def __init__(self) -> None:
        self.placed: dict[Place, tuple[Any, bool]] = {}

    def add(self, place: Place, schema: Any, required: bool) -> None:
        self.placed[place] = (schema if isinstance(schema, dict) else {}, required)

    def merged(self) -> tuple[dict[str, Any], dict[str, Place]]:
        """One object schema, and where each of its properties goes."""
        twice = [place.name for place in self.placed]
        whole = {
            place: f"{place.name}_{place.where}"
            if twice.count(place.name) > 1 and place.where != "path"
            else place.name
            for place in self.placed
        }
        legal = legal_names(list(whole.values()))
        names = {legal[text]: place for place, text in whole.items()}
        required = [name for name, place in names.items() if self.placed[place][1]]
        properties = {name: self.placed[place][0] for name, place in names.items()}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}, names


def _description(operation: Mapping[str, Any], item: Mapping[str, Any], cuts: Sequence[str]) -> str:
    texts = [operation.get("summary") or item.get("summary"), operation.get("description") or item.get("description")]
    told = "\n\n".join(str(text).strip() for text in dict.fromkeys(texts) if text)
    return f"{told}\n\n(Nested {', '.join(cuts)} not shown in full.)".strip() if cuts else told


def _only(content: Any) -> Mapping[str, Any]:
    return _mapping(next(iter(_mapping(content).values()), {}))


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
