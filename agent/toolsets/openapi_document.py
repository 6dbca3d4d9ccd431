"""An OpenAPI document: parsed from JSON or YAML, its references resolved, its schemas as JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

import yaml

from sayso.agent.tools.schema.json_schema import each_part, with_exclusive_limits
from sayso.agent.toolsets.base import SourceError

#: Most parts of one operation's schemas that are read; further parts accept any value.
MAX_PARTS = 4000
#: Deepest nesting of a schema that is read, in levels.
MAX_DEPTH = 60
#: Longest chain of references.
MAX_HOPS = 30

#: Keywords of OpenAPI that JSON Schema does not have, or that only inform people.
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
            return self._resolved(schema, inside)
        plain = {key: _without_read_only(key, value) for key, value in schema.items() if _is_kept(key)}
        inlined = each_part(plain, lambda part: self.inline(part, (*inside, "/")))
        return _nullable(with_exclusive_limits(inlined), is_nullable=schema.get("nullable") is True)

    def _resolved(self, schema: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
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


def _without_read_only(key: str, value: Any) -> Any:
    """Return a map of properties without read-only ones, which only the server sets."""
    if key not in ("properties", "patternProperties") or not isinstance(value, Mapping):
        return value
    return {str(name): each for name, each in value.items() if not _is_read_only(each)}


def _is_read_only(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("readOnly") is True


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
#: Deepest nesting of a YAML document, in levels.
MAX_YAML_DEPTH = 500
#: The error for a document with more levels, and libyaml's error for one with a thousand.
_TOO_DEEP, _LIBYAML_TOO_DEEP = "nested too deeply to be a document", "exceeded maximum nesting depth"


def parse(text: str, where: str) -> Document:
    """Return the document in a JSON or YAML text. Raises SourceError, which names it by `where`."""
    try:
        root = json.loads(text) if text.lstrip().startswith("{") else _read_yaml(text)
        root = _without_lone_surrogates(root) if "\\u" in text.lower() else root
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
    except ValueError as exc:  # an invalid number, or one with thousands of digits
        raise SourceError(f"{where}: holds a value that cannot be read: {exc}") from None
    version = root.get("openapi") if isinstance(root, Mapping) else None
    if not re.match(r"3\.[0-9]", str(version)):
        reason = f"it says openapi: {version!r}" if version else "it does not say `openapi: 3...`"
        raise SourceError(f"{where}: no document of OpenAPI 3: {reason}; convert it to 3.0 or 3.1")
    return Document(root)


def _without_lone_surrogates(value: Any) -> Any:
    """Return the value with question marks for lone surrogates, which an escape can write but UTF-8 cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_without_lone_surrogates(name): _without_lone_surrogates(each) for name, each in value.items()}
    return [_without_lone_surrogates(each) for each in value] if isinstance(value, list) else value


_SURROGATE_ESCAPE = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")
#: First characters of plain scalars that may not be text.
_MAYBE_NOT_TEXT = frozenset("-+.0123456789~nNtTfF<")
#: Most scalars whose values are cached while one document is read: schemas repeat their numbers.
_MAX_CACHED = 10_000
#: Stands for a plain `<<`, which merges a mapping into the one around it.
_MERGE: Any = object()


class _Scalars(yaml.SafeLoader):
    """Resolves plain scalars of one document as YAML 1.2, which OpenAPI uses: `no`, `on` and dates are text."""

    def __init__(self) -> None:
        super().__init__("")
        self._cache: dict[str, Any] = {}

    def value(self, event: Any) -> Any:
        """Return the value of a scalar that may not be text. Raises yaml.YAMLError and ValueError."""
        text = event.value
        if event.tag is None or event.tag == "!":
            if not event.implicit[0]:
                return text
            if text in self._cache:
                return self._cache[text]
        reader: Any = self
        tag = event.tag if event.tag not in (None, "!") else reader.resolve(yaml.ScalarNode, text, (True, False))
        if tag == "tag:yaml.org,2002:merge":
            return _MERGE
        value = reader.construct_object(yaml.ScalarNode(tag, text, event.start_mark, event.end_mark))
        if event.tag is None and len(self._cache) < _MAX_CACHED:
            self._cache[text] = value
        return value


_Scalars.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag.rpartition(":")[2] not in ("timestamp", "bool")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


_Scalars.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false|True|False)$"), list("tfTF"))


def _read_yaml(text: str) -> Any:
    """Return the values of a YAML text without aliases, which could grow without bounds. Raises yaml.YAMLError.

    The values are built from libyaml's events in one pass: its nodes cost ten times as much. libyaml refuses an escape
    of a lone surrogate, so a text with one is parsed by PyYAML itself.
    """
    fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = yaml.SafeLoader(text) if _SURROGATE_ESCAPE.search(text) else fast(text)
    try:
        return _values(iter(loader.get_event, None))
    finally:
        loader.dispose()


def _values(events: Iterator[Any]) -> Any:
    """Return the value of the one document in the events, None where there is none."""
    scalars, documents, open_parts = _Scalars(), 0, list[list[Any]]([[]])
    scalar, mapping, mapping_end = yaml.ScalarEvent, yaml.MappingStartEvent, yaml.MappingEndEvent  # locals are faster
    parts = open_parts[-1]
    for event in events:
        kind = type(event)
        if kind is scalar:
            text, tag = event.value, event.tag
            is_text = tag is None and text and (text[0] not in _MAYBE_NOT_TEXT or not event.implicit[0])
            parts.append(text if is_text else scalars.value(event))
        elif kind is mapping or kind is yaml.SequenceStartEvent:
            if event.tag is not None:
                _check_tag(event)
            parts = []
            open_parts.append(parts)
            if len(open_parts) > MAX_YAML_DEPTH:
                raise RecursionError
        elif kind is mapping_end or kind is yaml.SequenceEndEvent:
            finished = open_parts.pop()
            parts = open_parts[-1]
            parts.append(_mapping(finished, event) if kind is mapping_end else finished)
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
    """Return alternating keys and values as a mapping; its own keys override those that a `<<` merges."""
    keys, values = parts[::2], parts[1::2]
    try:
        mapping = dict(zip(keys, values, strict=True))
    except TypeError:
        raise _unreadable("a key that is no scalar", event) from None
    if _MERGE not in mapping:
        return mapping
    merged = mapping.pop(_MERGE)
    return {**merged, **mapping} if isinstance(merged, dict) else mapping


def _check_tag(event: Any) -> None:
    if event.tag not in (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        raise _unreadable(f"the tag {event.tag!r}, which no document of OpenAPI has", event)


def _unreadable(problem: str, event: Any) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, event.start_mark)


def server_url(document: Document, own_url: str) -> str:
    """Return the first server's absolute URL, "" if there is none. A relative one starts at the document's own URL."""
    servers = document.root.get("servers")
    server = as_mapping(servers[0]) if isinstance(servers, list) and servers else {}
    url = str(server.get("url", ""))
    for name, variable in as_mapping(server.get("variables")).items():
        url = url.replace("{" + str(name) + "}", str(as_mapping(variable).get("default", "")))
    url = urljoin(own_url, url or "/") if own_url else url
    return url if urlsplit(url).scheme in ("http", "https") else ""


def as_mapping(value: Any) -> Mapping[Any, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}
