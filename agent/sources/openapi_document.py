"""Reading: the text of an OpenAPI document, read as one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

import yaml

from agent.sources.errors import SourceError
from agent.sources.openapi_schema import Document

#: Bytes of a document.
MAX_DOCUMENT_BYTES = 50_000_000
#: Levels of a YAML document. libyaml's own reader overflows the stack where there are hundreds of thousands.
MAX_YAML_DEPTH = 500


def parse(text: str, where: str) -> Document:
    """The document in a JSON or YAML text. Raises SourceError, which names it by `where`."""
    try:
        root = json.loads(text) if text.lstrip().startswith("{") else _read_yaml(text)
        root = _encodable(root) if "\\u" in text.lower() else root
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


def _encodable(value: Any) -> Any:
    """The same, with question marks for halves of characters: an escape can write one, and nobody can send it on."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_encodable(name): _encodable(each) for name, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


def _yaml12(base: Any) -> Any:
    """Return a safe loader of YAML 1.2, as OpenAPI has it: `no`, `on` and dates are text."""
    loader: Any = type("Yaml12", (base,), {})
    loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag.rpartition(":")[2] not in ("timestamp", "bool")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false|True|False)$"), list("tfTF"))
    return loader


_SLOW = _yaml12(yaml.SafeLoader)
#: libyaml's, several times faster, where PyYAML was built with it. It refuses an escape that is half a character.
_FAST = _yaml12(getattr(yaml, "CSafeLoader", yaml.SafeLoader))
_HALF_A_CHARACTER = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")


def _read_yaml(text: str) -> Any:
    """Return the values of a YAML text without aliases, which could grow without bounds. Raises yaml.YAMLError."""
    loader = _SLOW if _HALF_A_CHARACTER.search(text) else _FAST
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.events.AliasEvent):
            problem = "an alias: write it out, or give the document as JSON"
            mark: Any = event.start_mark
            raise yaml.composer.ComposerError(None, None, problem, mark)
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1
        if depth > MAX_YAML_DEPTH:
            raise RecursionError
    return yaml.load(text, loader)  # noqa: S506  # a SafeLoader


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
