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
MAX_DOCUMENT_BYTES = 10_000_000


def parse(text: str, where: str) -> Document:
    """The document in a JSON or YAML text. Raises SourceError, which names it by `where`."""
    try:
        root = json.loads(text) if text.lstrip().startswith("{") else yaml.load(text, _Yaml12)  # noqa: S506  # a SafeLoader
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
    server = as_mapping(servers[0]) if isinstance(servers, list) and servers else {}
    url = str(server.get("url", ""))
    for name, variable in as_mapping(server.get("variables")).items():
        url = url.replace("{" + str(name) + "}", str(as_mapping(variable).get("default", "")))
    url = urljoin(own_url, url or "/") if own_url else url
    return url if urlsplit(url).scheme in ("http", "https") else ""


def as_mapping(value: Any) -> Mapping[Any, Any]:
    """The value, if it is an object; else an empty one."""
    return value if isinstance(value, Mapping) else {}
