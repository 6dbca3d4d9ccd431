"""An OpenAPI document: parsed from JSON or YAML, its schemas as JSON Schema without references.

Document resolves a reference such as `#/components/schemas/Pet`. Inliner replaces all references in
the schemas of an operation by what they refer to, since a model reads one schema for each tool.
`parse` reads the text of a document, and `server_url` its server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import yaml

from sayso.agent.tools.json_schema import each_part, with_exclusive_limits
from sayso.agent.toolsets.base import SourceError

#: Most parts of one operation's schemas that are read. Each further part accepts any value.
MAX_PARTS = 4000
#: Deepest nesting of a schema that is read, in levels.
MAX_DEPTH = 60
#: Longest chain of references, each to the next.
MAX_HOPS = 30

#: Keywords that a schema loses: JSON Schema does not have them, or they only inform people.
_DROPPED = frozenset(
    (
        "example",
        "examples",
        "xml",
        "discriminator",
        "externalDocs",
        "deprecated",
        "nullable",
        "writeOnly",
        "$schema",
    )
)


class Document:
    """A parsed document, which resolves references of the form `#/...`. Nothing changes it."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        #: The whole document, as JSON values.
        self.root = root

    @property
    def has_siblings(self) -> bool:
        """Whether keywords next to a `$ref` count, as they do since OpenAPI 3.1."""
        return not str(self.root.get("openapi")).startswith("3.0")

    def resolved(self, value: Any) -> Mapping[str, Any]:
        """Return an object, or the object that it refers to. Raises SourceError."""
        for _ in range(MAX_HOPS):
            if not isinstance(value, Mapping):
                raise SourceError(f"there is {type(value).__name__!r} where an object must be")
            if "$ref" not in value:
                return value
            value = self.at(value["$ref"])
        raise SourceError("its references lead to each other, and nowhere else")

    def at(self, reference: Any) -> Any:
        """Return the value at a reference.

        Raises SourceError for one that leads nowhere, or out of this document.
        """
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SourceError(f"it refers to {reference!r}: bundle the document into one file")
        value: Any = self.root
        for part in filter(None, reference.removeprefix("#").split("/")):
            # A reference is a URI, which writes the braces of a path as %7B and %7D (RFC 6901, 6).
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                if isinstance(value, list):
                    value = value[int(key)]
                else:
                    value = value[key]
            except (KeyError, IndexError, TypeError, ValueError):
                raise SourceError(f"it refers to {reference!r}, and there is nothing") from None
        return value


class Inliner:
    """Inlines the references in the schemas of one operation. Lives while the operation is read."""

    def __init__(self, document: Document) -> None:
        self._document = document
        #: How many parts of schemas were read so far.
        self._parts = 0
        #: The names of schemas that are not shown in full, because they contain themselves; "..."
        #: for parts that are too many or too deep.
        self.cuts: list[str] = []

    def inline(self, schema: Any, inside: tuple[str, ...] = ()) -> Any:
        """Return the schema as JSON Schema without references. Raises SourceError.

        `inside` has an entry for each level that the schema is in: the reference that led to it, or
        "/" for a part of another schema.
        """
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
            return self._with_siblings(target, schema, inside)

        plain = {
            key: value
            for key, value in schema.items()
            if isinstance(key, str) and key not in _DROPPED and not key.startswith("x-")
        }
        # Only the server sets read-only properties, so a model must not see them.
        hidden = self._read_only_names(schema)
        for key in ("properties", "patternProperties"):
            if isinstance(plain.get(key), Mapping):
                named = {str(name): each for name, each in plain[key].items()}
                plain[key] = {name: each for name, each in named.items() if name not in hidden}

        # With a discriminator, one property tells which alternative counts. A value may fit the
        # schemas of several alternatives then, which `oneOf` alone would refuse.
        if "oneOf" in plain and "anyOf" not in plain and "discriminator" in schema:
            plain["anyOf"] = plain.pop("oneOf")

        inlined = each_part(plain, lambda part: self.inline(part, (*inside, "/")))
        inlined = _without_required(inlined, hidden)
        return _nullable(with_exclusive_limits(inlined), is_nullable=schema.get("nullable") is True)

    def _with_siblings(
        self, target: Any, schema: Mapping[str, Any], inside: tuple[str, ...]
    ) -> Any:
        """Return the target of a schema's `$ref`, with the keywords that stand next to the `$ref`.

        OpenAPI 3.0 ignores these keywords. But a description or a default there is meant for the
        reader, so these two always count.
        """
        if not isinstance(target, dict):
            return target
        informing = {key: schema[key] for key in ("description", "default") if key in schema}
        others = {key: schema[key] for key in schema if key not in (*informing, "$ref")}
        if not others or not self._document.has_siblings:
            return {**target, **informing}

        limits = self.inline(others, (*inside, "/"))
        if "required" in limits:
            limits = _without_required(limits, self._read_only_names(schema))
        # Where both have the same keyword, a value must fulfill both.
        if limits.keys() & target.keys():
            return {"allOf": [target, limits], **informing}
        return {**target, **limits, **informing}

    def _read_only_names(self, schema: Mapping[str, Any]) -> set[str]:
        """Return the properties of a schema and of its `allOf` that only the server sets."""
        names: set[str] = set()
        for part in self._all_of(schema):
            for key in ("properties", "patternProperties"):
                named = as_mapping(part.get(key))
                names |= {str(name) for name, each in named.items() if self._is_read_only(each)}
        return names

    def _is_read_only(self, schema: Any) -> bool:
        """Return whether only the server sets a property.

        The schema of the property, what it refers to, or a part of its `allOf` may state that.
        """
        return any(part.get("readOnly") is True for part in self._all_of(schema))

    def _all_of(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """Yield a schema, what it refers to, and the parts of its `allOf` in the same way.

        Each is yielded once. A reference that leads nowhere is skipped.
        """
        waiting = [schema]
        seen: set[int] = set()
        while waiting:
            part = waiting.pop()
            if not isinstance(part, Mapping) or id(part) in seen:
                continue
            seen.add(id(part))
            yield part
            if "$ref" in part:
                with suppress(SourceError):
                    waiting.append(self._document.at(part["$ref"]))
            parts = part.get("allOf")
            if isinstance(parts, list):
                waiting += parts

    def _cut(self, name: str) -> dict[str, Any]:
        """Return a schema that accepts any value, in place of one that is not shown."""
        if name not in self.cuts:
            self.cuts.append(name)
        if name == "...":
            return {"description": "Not shown: too deep."}
        return {"description": f"Another {name}, not shown again."}


def _without_required(schema: Any, names: set[str]) -> Any:
    """Return the schema, and the parts of its `allOf`, without these names in `required`."""
    if not names or not isinstance(schema, dict):
        return schema
    changed = dict(schema)
    if isinstance(changed.get("required"), list):
        changed["required"] = [name for name in changed["required"] if str(name) not in names]
    if isinstance(changed.get("allOf"), list):
        changed["allOf"] = [_without_required(part, names) for part in changed["allOf"]]
    return changed


def _nullable(schema: dict[str, Any], *, is_nullable: bool) -> dict[str, Any]:
    """Return the schema with type null instead of OpenAPI 3.0's `nullable: true`."""
    if not is_nullable:
        return schema
    if isinstance(schema.get("type"), str):
        nullable = {**schema, "type": [schema["type"], "null"]}
        values = schema.get("enum")
        if isinstance(values, list) and None not in values:
            nullable["enum"] = [*values, None]
        return nullable
    return {"anyOf": [schema, {"type": "null"}]}


#: Most values that all aliases of a YAML document together stand for. A few nested aliases can
#: stand for billions.
MAX_PARTS_OF_ALIASES = 1_000_000
#: Largest document, in bytes.
MAX_DOCUMENT_BYTES = 50_000_000


def parse(text: str, where: str) -> Document:
    """Return the document in a JSON or YAML text. `where` names the document in errors.

    Raises SourceError for a text that is not a document of OpenAPI 3.
    """
    try:
        if text.lstrip().startswith("{"):
            root = json.loads(text)
        else:
            root = _read_yaml(text)
        # An escape can write half a character, and UTF-8 cannot hold it.
        if _SURROGATE_ESCAPE.search(text):
            root = json.loads(json.dumps(root, ensure_ascii=False).encode("utf-8", "replace"))
    except json.JSONDecodeError as exc:
        raise SourceError(
            f"{where}: not JSON: line {exc.lineno}, column {exc.colno}: {exc.msg}"
        ) from exc
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        problem = getattr(exc, "problem", exc)
        line = f"line {mark.line + 1}: " if mark else ""
        raise SourceError(f"{where}: not YAML: {line}{problem}") from exc
    except RecursionError:
        raise SourceError(f"{where}: nested too deeply to be a document") from None
    except ValueError as exc:  # a number with thousands of digits
        raise SourceError(f"{where}: holds a value that cannot be read: {exc}") from None

    version = None
    if isinstance(root, Mapping):
        version = root.get("openapi")
    if not re.match(r"3\.[0-9]", str(version)):
        reason = "it does not say `openapi: 3...`"
        if version:
            reason = f"it says openapi: {version!r}"
        raise SourceError(f"{where}: no document of OpenAPI 3: {reason}; convert it to 3.0 or 3.1")
    return Document(root)


#: An escape of half a character.
_SURROGATE_ESCAPE = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")
#: The tags that a value of a YAML document may have.
_YAML_TAGS = (
    None,
    "!",
    "tag:yaml.org,2002:map",
    "tag:yaml.org,2002:seq",
    "tag:yaml.org,2002:str",
)
#: Plain scalars that are no text in YAML 1.2, which OpenAPI uses. In YAML 1.1 `no`, `on`, dates and
#: 12:30 would be no text either.
_YAML_CONSTANTS = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "true": True,
    "True": True,
    "false": False,
    "False": False,
}
_YAML_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def _read_yaml(text: str) -> Any:
    """Return the value of a YAML text; None for an empty one.

    The values are built here from libyaml's events, since PyYAML takes six times as long to build
    them. Raises yaml.YAMLError, ValueError and RecursionError.
    """
    loader_class: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    # libyaml refuses the escape of a lone surrogate, which PyYAML reads.
    if _SURROGATE_ESCAPE.search(text):
        loader_class = yaml.SafeLoader
    loader = loader_class(text)
    events = iter(loader.get_event, None)
    try:
        value = next(_YamlReader(events).values(), None)
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                raise _unreadable("several documents: keep one", event)
        return value
    finally:
        loader.dispose()


class _YamlReader:
    """Builds the values of YAML events. Lives while one document is read.

    In YAML an *anchor* names a value, and an *alias* repeats it. Here an alias is the same object
    as the value of its anchor, and not a copy.
    """

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        #: The value of each anchor, and how many parts it has. An alias in it counts with all parts
        #: that it stands for.
        self._anchored: dict[str, tuple[Any, int]] = {}
        #: How many values were read, those of aliases too.
        self._parts = 0
        #: How many values the aliases stand for.
        self._parts_of_aliases = 0

    def values(self) -> Iterator[Any]:
        """Yield the values up to the end of the mapping or list that the events are in."""
        for event in self._events:
            if isinstance(event, yaml.CollectionEndEvent):
                return
            if getattr(event, "tag", None) not in _YAML_TAGS:
                raise _unreadable(f"the tag {event.tag!r}, which no document of OpenAPI has", event)

            parts_before = self._parts
            match event:
                case yaml.ScalarEvent():
                    value: Any = event.value
                    if event.implicit[0]:  # without quotes
                        value = _plain_value(value)
                case yaml.MappingStartEvent():
                    value = self._mapping(event)
                case yaml.SequenceStartEvent():
                    value = list(self.values())
                case yaml.AliasEvent():
                    yield self._aliased(event)
                    continue
                case _:  # the beginning or the end of a document
                    continue

            self._parts += 1
            if event.anchor:
                self._anchored[event.anchor] = (value, self._parts - parts_before)
            yield value

    def _mapping(self, event: Any) -> dict[Any, Any]:
        """Read a mapping to its end. `event` is the one that began it."""
        keys_and_values = list(self.values())
        try:
            value = dict(zip(keys_and_values[::2], keys_and_values[1::2], strict=True))
        except TypeError:
            raise _unreadable("a key that is no scalar", event) from None
        if "<<" in value:
            return _with_merge_key(value)
        return value

    def _aliased(self, event: Any) -> Any:
        """Return the value of an alias. Raises YAMLError if it stands for too many values."""
        if event.anchor not in self._anchored:
            raise _unreadable("an alias of something that does not end before it", event)
        value, parts = self._anchored[event.anchor]
        self._parts += parts
        self._parts_of_aliases += parts
        if self._parts_of_aliases > MAX_PARTS_OF_ALIASES:
            raise _unreadable(
                f"aliases that stand for more than {MAX_PARTS_OF_ALIASES} values", event
            )
        return value


def _with_merge_key(mapping: dict[Any, Any]) -> dict[Any, Any]:
    """Return a mapping joined with the mappings under its key `<<`.

    YAML 1.1 has that key, and most tools for OpenAPI read it. Of several values of one key, that of
    the mapping itself wins, then that of the first mapping under `<<`.
    """
    value = mapping["<<"]
    sources = value if isinstance(value, list) else [value]
    if not all(isinstance(each, Mapping) for each in sources):
        return mapping
    joined: dict[Any, Any] = {}
    for each in reversed(sources):
        joined |= each
    rest = {key: value for key, value in mapping.items() if key != "<<"}
    return joined | rest


def _plain_value(text: str) -> Any:
    """Return what a scalar without quotes stands for: a number, a constant, or its text."""
    if text in _YAML_CONSTANTS:
        return _YAML_CONSTANTS[text]
    if not _YAML_NUMBER.fullmatch(text):
        return text
    if text.lstrip("+-").isdigit():
        return int(text)
    return float(text)


def _unreadable(problem: str, event: Any) -> yaml.YAMLError:
    """Return the error for a document that cannot be read, with the place of the event."""
    return yaml.composer.ComposerError(None, None, problem, event.start_mark)


def server_url(document: Document) -> str:
    """Return the URL of the document's first server; "/" if there is none.

    It may be relative to the URL of the document. If only paths have servers, those of the first
    such path count. Raises SourceError for a variable without a default.
    """
    paths = as_mapping(document.root.get("paths"))
    for holder in (document.root, *paths.values()):
        servers = as_mapping(holder).get("servers")
        if isinstance(servers, list) and servers:
            return url_of_server(servers[0])
    return "/"


def url_of_server(server: Any) -> str:
    """Return the URL of a server with the defaults of its variables.

    Raises SourceError for a variable without a default.
    """
    url = str(as_mapping(server).get("url", "")) or "/"
    for name, variable in as_mapping(as_mapping(server).get("variables")).items():
        default = as_mapping(variable).get("default")
        if default is not None:
            url = url.replace("{" + str(name) + "}", str(default))
    if "{" in url:
        problem = f"its server {url!r} has a variable without a default"
        raise SourceError(f"{problem}: write the whole address as base_url")
    return url


def as_mapping(value: Any) -> Mapping[Any, Any]:
    """Return the value if it is a mapping, else an empty one."""
    if isinstance(value, Mapping):
        return value
    return {}
