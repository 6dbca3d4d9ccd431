"""The operations of an OpenAPI document, and where each argument of an operation goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sayso.agent.toolsets.base import SourceError, legal_names
from sayso.agent.toolsets.openapi_document import Document, Inliner, as_mapping

#: Headers that the client sets itself. The specification says that parameters of these names are ignored.
_CLIENT_HEADERS = {
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

#: The names that headers and cookies may have (RFC 9110, section 5.6.2).
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_STYLES = {
    "path": ("simple",),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}

_DEFAULT_STYLE = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
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


def arguments_of(
    document: Document, inliner: Inliner, item: Mapping[str, Any], operation: Mapping[str, Any], is_filled: IsFilled
) -> Arguments:
    """Return the arguments of one operation, without those that are filled already. Raises SourceError."""
    arguments = Arguments()
    for parameter in _parameters(document, item, operation):
        if not is_filled(str(parameter.get("in")), str(parameter.get("name"))):
            arguments.add(*_argument(inliner, parameter))
    _add_body(document, inliner, operation, arguments)
    return arguments


class Arguments:
    """Collects the arguments of one operation. Duplicate names, and names no vendor accepts, are replaced.

    `body_type` is the media type of the body, `whole_body` the place of the one argument that is the entire body, if
    there is one.
    """

    def __init__(self) -> None:
        self.placed: dict[Place, tuple[Any, bool]] = {}
        self.body_type = ""
        self.whole_body: Place | None = None

    @property
    def in_path(self) -> set[str]:
        """The names of the arguments in the path."""
        return {place.name for place in self.placed if place.where == "path"}

    def add(self, place: Place, schema: Any, required: bool) -> None:
        """Add one argument."""
        self.placed[place] = (schema if isinstance(schema, dict) else {}, required)

    def merged(self) -> tuple[dict[str, Any], dict[str, Place]]:
        """Return one object schema, and the place of each of its properties."""
        all_names = [place.name for place in self.placed]
        unique = {
            place: f"{place.name}_{place.where}"
            if all_names.count(place.name) > 1 and place.where != "path"
            else place.name
            for place in self.placed
        }
        legal = legal_names(list(unique.values()))
        names = {legal[text]: place for place, text in unique.items()}
        required = [name for name, place in names.items() if self.placed[place][1]]
        properties = {name: self.placed[place][0] for name, place in names.items()}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}, names


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


def _argument(inliner: Inliner, parameter: Mapping[str, Any]) -> tuple[Place, Any, bool]:
    where, name = parameter.get("in"), str(parameter.get("name"))
    if not _is_valid_name(where, name):
        raise SourceError(f"its parameter {name!r} is no valid name of a {where}")
    if where not in _STYLES:
        raise SourceError(f"its parameter {name!r} is in {where!r}: OpenAPI 3 knows path, query, header and cookie")
    style = str(parameter.get("style", _DEFAULT_STYLE[where]))
    is_json = "content" in parameter
    if style not in _STYLES[where] and not is_json:
        raise SourceError(f"its parameter {name!r} has the style {style!r}, which is not supported")
    schema = _first_content(parameter["content"]).get("schema", {}) if is_json else parameter.get("schema", {})
    shown = inliner.inline(schema)
    if parameter.get("description") and isinstance(shown, dict):
        shown = {**shown, "description": str(parameter["description"])}
    place = Place(name, where, style, bool(parameter.get("explode", style == "form")), is_json)
    return place, shown, where == "path" or parameter.get("required") is True


def _add_body(document: Document, inliner: Inliner, operation: Mapping[str, Any], arguments: Arguments) -> None:
    if "requestBody" not in operation:
        return
    body = document.resolved(operation["requestBody"])
    content, required = as_mapping(body.get("content")), body.get("required") is True
    kind = next((kind for kind in content if _is_supported(kind)), None)
    if kind is None:
        if required:
            raise SourceError(
                f"its body is {', '.join(map(str, content)) or 'of no type'}: JSON, forms and text are supported"
            )
        return
    arguments.body_type = kind
    schema = inliner.inline(as_mapping(content[kind]).get("schema", {}))
    if _has_plain_properties(schema):
        needed = schema.get("required", []) if required else []
        for name, each in schema["properties"].items():
            arguments.add(Place(name, "body"), each, name in needed)
    else:
        arguments.whole_body = Place("body", "body")
        arguments.add(arguments.whole_body, schema, required)


def _is_supported(kind: Any) -> bool:
    essence = str(kind).partition(";")[0].strip().lower()
    return is_json_type(essence) or essence in ("application/x-www-form-urlencoded", "text/plain")


def is_json_type(content_type: str) -> bool:
    """Return whether a media type is JSON: `application/json`, `application/problem+json`."""
    essence = content_type.partition(";")[0].strip().lower()
    return essence == "application/json" or (essence.startswith("application/") and essence.endswith("+json"))


def _has_plain_properties(schema: Any) -> bool:
    """Return whether a body is an object with nothing but properties, which can be arguments of their own."""
    if not isinstance(schema, dict) or not schema.get("properties"):
        return False
    others = {"allOf", "anyOf", "oneOf", "not", "patternProperties", "minProperties"} & schema.keys()
    return (
        not others
        and schema.get("type", "object") == "object"
        and not isinstance(schema.get("additionalProperties"), dict)
    )


def _first_content(content: Any) -> Mapping[str, Any]:
    return as_mapping(next(iter(as_mapping(content).values()), {}))


#: The HTTP methods that a document may have operations for.
METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
#: Methods that only read (RFC 9110, section 9.2.1).
READ_ONLY_METHODS = ("get", "head")


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `places` says where each argument goes; `whole_body` names the one that is the body."""

    name: str
    method: str
    path: str
    description: str
    schema: Mapping[str, Any]
    places: Mapping[str, Place]
    body_type: str = ""
    whole_body: str = ""

    @property
    def reads_only(self) -> bool:
        """Whether its method only reads."""
        return self.method in READ_ONLY_METHODS


def operations(
    document: Document, skipped: list[str], accepts: Callable[[str], bool], is_filled: IsFilled
) -> Iterator[Operation]:
    """Yield every usable operation whose name is accepted. Reasons for unusable ones are added to `skipped`.

    Parameters that `is_filled` are left out of the arguments.
    """
    items = {
        str(path): _path_item(document, item, skipped, str(path))
        for path, item in as_mapping(document.root.get("paths")).items()
    }
    candidates = [(path, method, item) for path, item in items.items() for method in METHODS if method in item]
    taken: set[str] = set()
    for path, method, item in candidates:
        names = (_name(item[method], method, path), _name(None, method, path))
        name = next((name for name in names if name not in taken), "")
        taken.add(name)
        if name and not accepts(name):
            continue
        try:
            if not name:
                raise SourceError(f"another operation is called {names[0]!r}: give each its own operationId")
            yield _operation(document, item, method, path, name, is_filled)
        except SourceError as exc:
            skipped.append(f"{method.upper()} {path}: {exc}")
        except (
            TypeError,
            ValueError,
            AttributeError,
            KeyError,
        ) as exc:  # malformed
            skipped.append(f"{method.upper()} {path}: malformed ({type(exc).__name__}: {exc})")


def _path_item(document: Document, item: Any, skipped: list[str], path: str) -> Mapping[str, Any]:
    try:
        return document.resolved(item)
    except SourceError as exc:
        skipped.append(f"{path}: {exc}")
        return {}


def _name(operation: Any, method: str, path: str) -> str:
    """Return the `operationId`, else method and path: `get_pets_id`."""
    given = operation.get("operationId") if isinstance(operation, Mapping) else None
    return str(given) if given else "_".join([method, *re.findall(r"[A-Za-z0-9]+", path)])


def _operation(
    document: Document, item: Mapping[str, Any], method: str, path: str, name: str, is_filled: IsFilled
) -> Operation:
    if not path.startswith("/"):
        raise SourceError("its path does not begin with a slash")
    operation = document.resolved(item[method])
    inliner = Inliner(document)
    arguments = arguments_of(document, inliner, item, operation, is_filled)
    unfilled = set(re.findall(r"\{([^}]+)\}", path)) - arguments.in_path
    if unfilled:
        raise SourceError(f"nothing fills {sorted(unfilled)!r} in its path")
    schema, places = arguments.merged()
    by_place = {place: argument for argument, place in places.items()}
    return Operation(
        name, method, path, _description(operation, item, inliner.cuts), schema, places, arguments.body_type,
        by_place[arguments.whole_body] if arguments.whole_body else "",
    )  # fmt: skip


def _description(operation: Mapping[str, Any], item: Mapping[str, Any], cuts: Sequence[str]) -> str:
    texts = [operation.get("summary") or item.get("summary"), operation.get("description") or item.get("description")]
    description = "\n\n".join(str(text).strip() for text in dict.fromkeys(texts) if text)
    return f"{description}\n\n(Nested {', '.join(cuts)} not shown in full.)".strip() if cuts else description
