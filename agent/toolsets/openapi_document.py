"""Document, references, operations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

import yaml

from sayso.agent.tools.schema.json_schema import each_part, with_exclusive_limits
from sayso.agent.toolsets.base import SourceError

#: Parts of one operation's schemas that are read; what lies beyond is left open.
MAX_PARTS = 4000


#: Levels of a document that are read.
MAX_DEPTH = 60


#: References that may lead from one to the next.
MAX_HOPS = 30


#: Keywords of OpenAPI that JSON Schema does not have, or that only tell people something.
_DROPPED = {
    "example",
    "examples",
    "xml",
    "discriminator",
    "externalDocs",
    "deprecated",
    "nullable",
    "writeOnly",
    "$schema",
}


class Document:
    """A parsed document, and the way from `#/...` to what stands there."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root

    def resolved(self, value: Any) -> Mapping[str, Any]:
        """The object itself, or the one it refers to. Raises SourceError."""
        for _ in range(MAX_HOPS):
            if not isinstance(value, Mapping):
                raise SourceError(f"there is {type(value).__name__!r} where an object must be")
            if "$ref" not in value:
                return value
            value = self.at(value["$ref"])
        raise SourceError("its references lead to each other, and nowhere else")

    def at(self, reference: Any) -> Any:
        """What stands at a reference. Raises SourceError for one that leads nowhere, or out of this document."""
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
    """Puts references in place, for one operation. `cuts` names what was cut because it contains itself."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._parts = 0
        self.cuts: list[str] = []

    def inline(self, schema: Any, inside: tuple[str, ...] = ()) -> Any:
        """The schema without references, in JSON Schema's own words. Raises SourceError."""
        self._parts += 1
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise SourceError(f"there is {type(schema).__name__!r} where a schema must be")
        if self._parts > MAX_PARTS or len(inside) > MAX_DEPTH:
            return self._cut("...")
        if "$ref" in schema:
            return self._followed(schema, inside)
        plain = {key: _settable(key, value) for key, value in schema.items() if _is_kept(key)}
        inlined = each_part(plain, lambda part: self.inline(part, (*inside, "/")))
        return _nullable(with_exclusive_limits(inlined), is_nullable=schema.get("nullable") is True)

    def _followed(self, schema: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
        reference = schema["$ref"]
        if reference in inside:
            return self._cut(str(reference).rpartition("/")[2])
        target = self.inline(self._document.at(reference), (*inside, reference))
        beside = {key: schema[key] for key in ("description", "default") if key in schema}
        return {**target, **beside} if isinstance(target, dict) else target

    def _cut(self, name: str) -> dict[str, Any]:
        if name not in self.cuts:
            self.cuts.append(name)
        return {"description": f"Another {name}, not shown again." if name != "..." else "Not shown: too deep."}


def _is_kept(key: Any) -> bool:
    return isinstance(key, str) and key not in _DROPPED and not key.startswith("x-")


def _settable(key: str, value: Any) -> Any:
    """What only the server sets has no place among arguments."""
    if key not in ("properties", "patternProperties") or not isinstance(value, Mapping):
        return value
    return {str(name): each for name, each in value.items() if not _is_read_only(each)}


def _is_read_only(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("readOnly") is True


def _nullable(schema: dict[str, Any], *, is_nullable: bool) -> dict[str, Any]:
    """3.0 says `nullable: true` where JSON Schema has a type of its own for null."""
    required, shown = schema.get("required"), schema.get("properties")
    if isinstance(required, list) and isinstance(shown, dict):  # what was left out cannot be asked for
        schema["required"] = [name for name in required if str(name) in shown]
    if not is_nullable:
        return schema
    if isinstance(schema.get("type"), str):
        enum = {"enum": [*schema["enum"], None]} if isinstance(schema.get("enum"), list) else {}
        return {**schema, "type": [schema["type"], "null"], **enum}
    return {"anyOf": [schema, {"type": "null"}]}


#: Bytes of a document.
MAX_DOCUMENT_BYTES = 50_000_000


#: Levels of a YAML document.
MAX_YAML_DEPTH = 500


#: What is said of a document with more, and what libyaml says of one with a thousand.
_TOO_DEEP, _LIBYAML_TOO_DEEP = "nested too deeply to be a document", "exceeded maximum nesting depth"


def parse(text: str, where: str) -> Document:
    """The document in a JSON or YAML text. Raises SourceError, which names it by `where`."""
    try:
        root = json.loads(text) if text.lstrip().startswith("{") else _read_yaml(text)
        root = _encodable(root) if "\\u" in text.lower() else root
    except json.JSONDecodeError as exc:
        raise SourceError(f"{where}: not JSON: line {exc.lineno}, column {exc.colno}: {exc.msg}") from exc
    except yaml.YAMLError as exc:
        mark, problem = getattr(exc, "problem_mark", None), getattr(exc, "problem", exc)
        if problem == _LIBYAML_TOO_DEEP:
            raise SourceError(f"{where}: {_TOO_DEEP}") from None
        line = f"line {mark.line + 1}: " if mark else ""
        raise SourceError(f"{where}: not YAML: {line}{problem}") from exc
    except RecursionError:
        raise SourceError(f"{where}: {_TOO_DEEP}") from None
    except ValueError as exc:  # a number that is none, or that has thousands of digits
        raise SourceError(f"{where}: holds a value that cannot be read: {exc}") from None
    version = root.get("openapi") if isinstance(root, Mapping) else None
    if not re.match(r"3\.[0-9]", str(version)):
        said = f"it says openapi: {version!r}" if version else "it does not say `openapi: 3...`"
        raise SourceError(f"{where}: no document of OpenAPI 3: {said}; convert it to 3.0 or 3.1")
    return Document(root)


def _encodable(value: Any) -> Any:
    """The same, with question marks for halves of characters: an escape can write one, and nobody can send it on."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_encodable(name): _encodable(each) for name, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


_HALF_A_CHARACTER = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")


#: First characters of plain scalars that may be something else than text.
_MAY_BE_NO_TEXT = frozenset("-+.0123456789~nNtTfF<")


#: Scalars whose value is remembered while one document is read: schemas repeat their numbers.
_MAX_REMEMBERED = 10_000


#: Stands for a plain `<<`, which merges a mapping into the one that it is in.
_MERGE: Any = object()


class _Scalars(yaml.SafeLoader):
    """What a plain scalar means in YAML 1.2, which OpenAPI has: `no`, `on` and dates are text. Reads one document."""

    def __init__(self) -> None:
        super().__init__("")
        self._known: dict[str, Any] = {}

    def value(self, event: Any) -> Any:
        """Return the value of a scalar that may be no text. Raises yaml.YAMLError and ValueError."""
        text = event.value
        if event.tag is None or event.tag == "!":
            if not event.implicit[0]:
                return text
            if text in self._known:
                return self._known[text]
        reader: Any = self
        tag = event.tag if event.tag not in (None, "!") else reader.resolve(yaml.ScalarNode, text, (True, False))
        if tag == "tag:yaml.org,2002:merge":
            return _MERGE
        made = reader.construct_object(yaml.ScalarNode(tag, text, event.start_mark, event.end_mark))
        if event.tag is None and len(self._known) < _MAX_REMEMBERED:
            self._known[text] = made
        return made


_Scalars.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag.rpartition(":")[2] not in ("timestamp", "bool")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


_Scalars.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false|True|False)$"), list("tfTF"))


def _read_yaml(text: str) -> Any:
    """Return the values of a YAML text without aliases, which could grow without bounds. Raises yaml.YAMLError.

    The values are made of libyaml's events in one pass: its nodes cost ten times as much. libyaml refuses an escape
    that is half a character, so a text with one is parsed by PyYAML itself.
    """
    fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = yaml.SafeLoader(text) if _HALF_A_CHARACTER.search(text) else fast(text)
    try:
        return _values(iter(loader.get_event, None))
    finally:
        loader.dispose()


def _values(events: Iterator[Any]) -> Any:
    """Return the value of the one document in the events, None where there is none."""
    scalars, documents, open_parts = _Scalars(), 0, list[list[Any]]([[]])
    scalar, mapping, mapping_end = yaml.ScalarEvent, yaml.MappingStartEvent, yaml.MappingEndEvent  # a local is quicker
    parts = open_parts[-1]
    for event in events:
        kind = type(event)
        if kind is scalar:
            text, tag = event.value, event.tag
            is_text = tag is None and text and (text[0] not in _MAY_BE_NO_TEXT or not event.implicit[0])
            parts.append(text if is_text else scalars.value(event))
        elif kind is mapping or kind is yaml.SequenceStartEvent:
            if event.tag is not None:
                _check_tag(event)
            parts = []
            open_parts.append(parts)
            if len(open_parts) > MAX_YAML_DEPTH:
                raise RecursionError
        elif kind is mapping_end or kind is yaml.SequenceEndEvent:
            made = open_parts.pop()
            parts = open_parts[-1]
            parts.append(_mapping(made, event) if kind is mapping_end else made)
        else:
            documents += _is_document(event)
            if documents > 1:
                raise _unreadable("several documents: keep one", event)
    return open_parts[0][0] if open_parts[0] else None


def _is_document(event: Any) -> bool:
    if isinstance(event, yaml.AliasEvent):
        raise _unreadable("an alias: write it out, or give the document as JSON", event)
    return isinstance(event, yaml.DocumentStartEvent)


def _mapping(parts: list[Any], event: Any) -> dict[Any, Any]:
    """Return keys and values that follow each other as a mapping, with what a `<<` merges below its own."""
    keys, values = parts[::2], parts[1::2]
    try:
        made = dict(zip(keys, values, strict=True))
    except TypeError:
        raise _unreadable("a key that is no scalar", event) from None
    if _MERGE not in made:
        return made
    merged = made.pop(_MERGE)
    return {**merged, **made} if isinstance(merged, dict) else made


def _check_tag(event: Any) -> None:
    if event.tag not in (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        raise _unreadable(f"the tag {event.tag!r}, which no document of OpenAPI has", event)


def _unreadable(problem: str, event: Any) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, event.start_mark)


def server_url(document: Document, own_url: str) -> str:
    """The first server, absolute: "" when there is none. Relative ones start at the document's own URL."""
    servers = document.root.get("servers")
    server = as_mapping(servers[0]) if isinstance(servers, list) and servers else {}
    url = str(server.get("url", ""))
    for name, variable in as_mapping(server.get("variables")).items():
        url = url.replace("{" + str(name) + "}", str(as_mapping(variable).get("default", "")))
    url = urljoin(own_url, url or "/") if own_url else url
    return url if urlsplit(url).scheme in ("http", "https") else ""


def as_mapping(value: Any) -> Mapping[Any, Any]:
    """The value, if it is an object; else an empty one."""
    return value if isinstance(value, Mapping) else {}
