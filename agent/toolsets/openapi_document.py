"""An OpenAPI document: parsed from JSON or YAML, its schemas as JSON Schema without references, its operations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from sayso.agent.tools.json_schema import each_part, with_exclusive_limits
from sayso.agent.toolsets.base import SourceError, legal_names

#: Most parts of one operation's schemas that are read; further parts accept any value.
MAX_PARTS = 4000
#: Deepest nesting of a schema that is read, in levels.
MAX_DEPTH = 60
#: Longest chain of references.
MAX_HOPS = 30

#: Keywords of OpenAPI that JSON Schema does not have, or that only inform people.
_DROPPED = frozenset(
    ("example", "examples", "xml", "discriminator", "externalDocs", "deprecated", "nullable", "writeOnly", "$schema")
)


class Document:
    """A parsed document, which resolves references of the form `#/...`."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root

    def resolved(self, value: Any) -> Mapping[str, Any]:
        """Return the object itself, or the one it refers to. Raises SourceError."""
        for _ in range(MAX_HOPS):
            if not isinstance(value, Mapping):
                raise SourceError(f"there is {type(value).__name__!r} where an object must be")
            if "$ref" not in value:
                return value
            value = self.at(value["$ref"])
        raise SourceError("its references lead to each other, and nowhere else")

    def at(self, reference: Any) -> Any:
        """Return the value at a reference. Raises SourceError for one that leads nowhere, or out of this document."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SourceError(f"it refers to {reference!r}: bundle the document into one file")
        value: Any = self.root
        for part in filter(None, reference.removeprefix("#").split("/")):
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]
            except (KeyError, IndexError, TypeError, ValueError):
                raise SourceError(f"it refers to {reference!r}, and there is nothing") from None
        return value


class Inliner:
    """Inlines references, for one operation. `cuts` names the schemas that were cut because they contain themselves."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._parts = 0
        self.cuts: list[str] = []

    def inline(self, schema: Any, inside: tuple[str, ...] = ()) -> Any:
        """Return the schema as JSON Schema without references. Raises SourceError."""
        self._parts += 1
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise SourceError(f"there is {type(schema).__name__!r} where a schema must be")
        if self._parts > MAX_PARTS or len(inside) > MAX_DEPTH:
            return self._cut("...")
        if "$ref" in schema:
            reference = schema["$ref"]
            if reference in inside:
                return self._cut(str(reference).rpartition("/")[2])
            target = self.inline(self._document.at(reference), (*inside, reference))
            beside = {key: schema[key] for key in ("description", "default") if key in schema}
            return {**target, **beside} if isinstance(target, dict) else target
        plain = {
            key: value
            for key, value in schema.items()
            if isinstance(key, str) and key not in _DROPPED and not key.startswith("x-")
        }
        for key in ("properties", "patternProperties"):
            if isinstance(plain.get(key), Mapping):  # without read-only ones, which only the server sets
                named = plain[key].items()
                plain[key] = {str(name): each for name, each in named if as_mapping(each).get("readOnly") is not True}
        inlined = each_part(plain, lambda part: self.inline(part, (*inside, "/")))
        return _nullable(with_exclusive_limits(inlined), is_nullable=schema.get("nullable") is True)

    def _cut(self, name: str) -> dict[str, Any]:
        if name not in self.cuts:
            self.cuts.append(name)
        return {"description": f"Another {name}, not shown again." if name != "..." else "Not shown: too deep."}


def _nullable(schema: dict[str, Any], *, is_nullable: bool) -> dict[str, Any]:
    """Return the schema with type null instead of OpenAPI 3.0's `nullable: true`, and `required` names that exist."""
    required, properties = schema.get("required"), schema.get("properties")
    if isinstance(required, list) and isinstance(properties, dict):  # read-only ones were removed
        schema["required"] = [name for name in required if str(name) in properties]
    if not is_nullable:
        return schema
    if isinstance(schema.get("type"), str):
        enum = {"enum": [*schema["enum"], None]} if isinstance(schema.get("enum"), list) else {}
        return {**schema, "type": [schema["type"], "null"], **enum}
    return {"anyOf": [schema, {"type": "null"}]}


#: Largest document, in bytes.
MAX_DOCUMENT_BYTES = 50_000_000


def parse(text: str, where: str) -> Document:
    """Return the document in a JSON or YAML text. Raises SourceError, which names it by `where`."""
    try:
        root = json.loads(text) if text.lstrip().startswith("{") else _read_yaml(text)
        if _SURROGATE_ESCAPE.search(text):  # an escape can write half a character, and UTF-8 cannot hold it
            root = json.loads(json.dumps(root, ensure_ascii=False).encode("utf-8", "replace"))
    except json.JSONDecodeError as exc:
        raise SourceError(f"{where}: not JSON: line {exc.lineno}, column {exc.colno}: {exc.msg}") from exc
    except yaml.YAMLError as exc:
        mark, problem = getattr(exc, "problem_mark", None), getattr(exc, "problem", exc)
        line = f"line {mark.line + 1}: " if mark else ""
        raise SourceError(f"{where}: not YAML: {line}{problem}") from exc
    except RecursionError:
        raise SourceError(f"{where}: nested too deeply to be a document") from None
    except ValueError as exc:  # a number with thousands of digits
        raise SourceError(f"{where}: holds a value that cannot be read: {exc}") from None
    version = root.get("openapi") if isinstance(root, Mapping) else None
    if not re.match(r"3\.[0-9]", str(version)):
        reason = f"it says openapi: {version!r}" if version else "it does not say `openapi: 3...`"
        raise SourceError(f"{where}: no document of OpenAPI 3: {reason}; convert it to 3.0 or 3.1")
    return Document(root)


#: An escape of half a character.
_SURROGATE_ESCAPE = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")
#: The tags that a value may have.
_YAML_TAGS = (None, "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str")))
#: Plain scalars that are no text in YAML 1.2, which OpenAPI uses: `no`, `on`, dates and 12:30 are text.
_YAML_CONSTANTS = {
    "": None, "~": None, "null": None, "Null": None, "true": True, "True": True, "false": False, "False": False,
}  # fmt: skip
_YAML_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def _read_yaml(text: str) -> Any:
    """Return the value of a YAML text, None for an empty one. Raises yaml.YAMLError, ValueError and RecursionError.

    The values are built from libyaml's events, since PyYAML takes six times as long to build them. Aliases are refused:
    they could grow without bounds. libyaml refuses the escape of a lone surrogate; a text with one is parsed by PyYAML.
    """
    fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = yaml.SafeLoader(text) if _SURROGATE_ESCAPE.search(text) else fast(text)
    events = iter(loader.get_event, None)
    try:
        value = next(_yaml_values(events), None)
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                raise _unreadable("several documents: keep one", event)
        return value
    finally:
        loader.dispose()


def _yaml_values(events: Iterator[Any]) -> Iterator[Any]:
    """Yield the values of the events, to the end of the mapping or list that they are in."""
    for event in events:
        if getattr(event, "tag", None) not in _YAML_TAGS:
            raise _unreadable(f"the tag {event.tag!r}, which no document of OpenAPI has", event)
        match event:
            case yaml.ScalarEvent():
                yield _plain_value(event.value) if event.implicit[0] else event.value
            case yaml.MappingStartEvent():
                parts = list(_yaml_values(events))
                try:
                    yield dict(zip(parts[::2], parts[1::2], strict=True))
                except TypeError:
                    raise _unreadable("a key that is no scalar", event) from None
            case yaml.SequenceStartEvent():
                yield list(_yaml_values(events))
            case yaml.AliasEvent():
                raise _unreadable("an alias: write it out, or give the document as JSON", event)
            case yaml.CollectionEndEvent():
                return


def _plain_value(text: str) -> Any:
    if text in _YAML_CONSTANTS:
        return _YAML_CONSTANTS[text]
    if not _YAML_NUMBER.fullmatch(text):
        return text
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _unreadable(problem: str, event: Any) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, event.start_mark)


def server_url(document: Document) -> str:
    """Return the first server's URL, which may be relative to the document's own; "/" if there is none."""
    servers = document.root.get("servers")
    server = as_mapping(servers[0]) if isinstance(servers, list) and servers else {}
    url = str(server.get("url", ""))
    for name, variable in as_mapping(server.get("variables")).items():
        url = url.replace("{" + str(name) + "}", str(as_mapping(variable).get("default", "")))
    return url or "/"


def as_mapping(value: Any) -> Mapping[Any, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


#: The HTTP methods that a document may have operations for.
METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
#: Methods that only read (RFC 9110, section 9.2.1).
READ_ONLY_METHODS = ("get", "head")
#: Headers that the client sets itself. The specification says that parameters of these names are ignored.
_CLIENT_HEADERS = frozenset(
    """accept content-type authorization host cookie content-length transfer-encoding accept-encoding connection expect
    keep-alive proxy-authorization proxy-connection te trailer upgrade""".split()
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
#: Returns whether a parameter, by its place (query, header, cookie, path) and name, is filled without the model.
IsFilled = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one argument goes. `name` is the document's name; `where` is path, query, header, cookie or body."""

    name: str
    where: str
    style: str = ""
    explode: bool = False
    is_json: bool = False
    is_whole_body: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `places` says where each argument goes, by its name in the schema."""

    name: str
    method: str
    path: str
    description: str
    schema: Mapping[str, Any]
    places: Mapping[str, Place]
    body_type: str = ""

    @property
    def reads_only(self) -> bool:
        """Whether its method only reads."""
        return self.method in READ_ONLY_METHODS


def operations(
    document: Document, left_out: dict[str, str], accepts: Callable[[str], bool], is_filled: IsFilled
) -> Iterator[Operation]:
    """Yield every usable operation whose name is accepted.

    Unusable ones are added to `left_out`: by name, or by path where there is none, with method, path and reason.
    Parameters that `is_filled` are left out of the arguments.
    """
    items: dict[str, Mapping[str, Any]] = {}
    for path, item in as_mapping(document.root.get("paths")).items():
        try:
            items[str(path)] = document.resolved(item)
        except SourceError as exc:
            left_out[str(path)] = f"{path}: {exc}"
    candidates = [(path, method, item) for path, item in items.items() for method in METHODS if method in item]
    taken: set[str] = set()
    for path, method, item in candidates:
        names = (_name(item[method], method, path), _name(None, method, path))
        name = next((name for name in names if name not in taken), "")
        taken.add(name)
        if name and not accepts(name):
            continue
        request = f"{method.upper()} {path}"
        try:
            if not name:
                raise SourceError(f"another operation is called {names[0]!r}: give each its own operationId")
            yield _operation(document, item, method, path, name, is_filled)
        except SourceError as exc:
            left_out[name or request] = f"{request}: {exc}"
        except Exception as exc:  # a document may hold anything, and one operation must not hide the others
            left_out[name or request] = f"{request}: malformed ({type(exc).__name__}: {exc})"


def _name(operation: Any, method: str, path: str) -> str:
    """Return the `operationId`, else method and path: `get_pets_id`."""
    return str(as_mapping(operation).get("operationId") or "_".join([method, *re.findall(r"[A-Za-z0-9]+", path)]))


def _operation(
    document: Document, item: Mapping[str, Any], method: str, path: str, name: str, is_filled: IsFilled
) -> Operation:
    if not path.startswith("/"):
        raise SourceError("its path does not begin with a slash")
    operation, inliner = document.resolved(item[method]), Inliner(document)
    arguments = dict(
        _argument(inliner, each)
        for each in _parameters(document, item, operation)
        if not is_filled(str(each.get("in")), str(each.get("name")))
    )
    body_type, parts = _body(document, inliner, operation)
    arguments |= parts
    unfilled = set(re.findall(r"\{([^}]+)\}", path)) - {place.name for place in arguments if place.where == "path"}
    if unfilled:
        raise SourceError(f"nothing fills {sorted(unfilled)!r} in its path")
    places = _places(list(arguments))
    schema = {
        "type": "object",
        "properties": {name: as_mapping(arguments[place][0]) for name, place in places.items()},
        "required": [name for name, place in places.items() if arguments[place][1]],
        "additionalProperties": False,
    }
    texts = [operation.get("summary") or item.get("summary"), operation.get("description") or item.get("description")]
    description = "\n\n".join(str(text).strip() for text in dict.fromkeys(texts) if text)
    if inliner.cuts:
        description = f"{description}\n\n(Nested {', '.join(inliner.cuts)} not shown in full.)".strip()
    return Operation(name, method, path, description, schema, places, body_type)


def _places(places: Sequence[Place]) -> dict[str, Place]:
    """Return the places by unique argument names that every vendor accepts."""
    own_names = [place.name for place in places]
    unique = [
        f"{place.name}_{place.where}" if own_names.count(place.name) > 1 and place.where != "path" else place.name
        for place in places
    ]
    legal = legal_names(unique)
    return {legal[name]: place for name, place in zip(unique, places, strict=True)}


def _parameters(document: Document, item: Mapping[str, Any], operation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parameters of the path, overridden by those of the operation."""
    both = [*(item.get("parameters") or ()), *(operation.get("parameters") or ())]
    parameters = {(each.get("in"), each.get("name")): each for each in map(document.resolved, both)}
    return [
        each
        for (where, name), each in parameters.items()
        if not (where == "header" and str(name).lower() in _CLIENT_HEADERS)
        and (_is_valid_name(where, name) or each.get("required") is True)  # which is an error
    ]


def _is_valid_name(where: Any, name: Any) -> bool:
    return where not in ("header", "cookie") or bool(_TOKEN.fullmatch(str(name)))


def _argument(inliner: Inliner, parameter: Mapping[str, Any]) -> tuple[Place, tuple[Any, bool]]:
    """Return the place of a parameter, with its schema and whether it is required. Raises SourceError."""
    where, name = parameter.get("in"), str(parameter.get("name"))
    if not _is_valid_name(where, name):
        raise SourceError(f"its parameter {name!r} is no valid name of a {where}")
    if where not in _STYLES:
        raise SourceError(f"its parameter {name!r} is in {where!r}: OpenAPI 3 knows path, query, header and cookie")
    style = str(parameter.get("style", _STYLES[where][0]))
    is_json = "content" in parameter
    if style not in _STYLES[where] and not is_json:
        raise SourceError(f"its parameter {name!r} has the style {style!r}, which is not supported")
    holder = as_mapping(next(iter(as_mapping(parameter["content"]).values()), {})) if is_json else parameter
    shown = inliner.inline(holder.get("schema", {}))
    if parameter.get("description") and isinstance(shown, dict):
        shown = {**shown, "description": str(parameter["description"])}
    place = Place(name, where, style, bool(parameter.get("explode", style == "form")), is_json)
    return place, (shown, where == "path" or parameter.get("required") is True)


def _body(
    document: Document, inliner: Inliner, operation: Mapping[str, Any]
) -> tuple[str, dict[Place, tuple[Any, bool]]]:
    """Return the media type of the body, and its arguments: its properties if it has nothing else, or the whole."""
    if "requestBody" not in operation:
        return "", {}
    body = document.resolved(operation["requestBody"])
    content, required = as_mapping(body.get("content")), body.get("required") is True
    types = {kind: str(kind).partition(";")[0].strip().lower() for kind in content}
    others = ("application/x-www-form-urlencoded", "text/plain")
    kind = next((kind for kind, essence in types.items() if is_json_type(essence) or essence in others), None)
    if kind is None:
        if required:
            given = ", ".join(map(str, content)) or "of no type"
            raise SourceError(f"its body is {given}: JSON, forms and text are supported")
        return "", {}
    schema = inliner.inline(as_mapping(content[kind]).get("schema", {}))
    is_object = isinstance(schema, dict) and bool(schema.get("properties")) and schema.get("type", "object") == "object"
    more = {"allOf", "anyOf", "oneOf", "not", "patternProperties", "minProperties"}
    if not is_object or more & schema.keys() or isinstance(schema.get("additionalProperties"), dict):
        return kind, {Place("body", "body", is_whole_body=True): (schema, required)}
    needed = schema.get("required", []) if required else []
    return kind, {Place(name, "body"): (each, name in needed) for name, each in schema["properties"].items()}


def is_json_type(content_type: str) -> bool:
    """Return whether a media type is JSON: `application/json`, `application/problem+json`."""
    essence = content_type.partition(";")[0].strip().lower()
    return essence == "application/json" or (essence.startswith("application/") and essence.endswith("+json"))
