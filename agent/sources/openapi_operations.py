"""Operations: what an OpenAPI document offers, each with all that is needed to call it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sayso.agent.sources.errors import SourceError
from sayso.agent.sources.openapi_arguments import Fills, Place, arguments_of
from sayso.agent.sources.openapi_document import as_mapping
from sayso.agent.sources.openapi_schema import Document, Inliner

#: The methods of HTTP that a document may have operations for.
METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
#: Methods that are known to change nothing (RFC 9110, section 9.2.1).
READING = ("get", "head")


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

    @property
    def reads_only(self) -> bool:
        """Whether its method promises to change nothing."""
        return self.method in READING


def operations(
    document: Document, refused: list[str], takes: Callable[[str], bool], fills: Fills
) -> Iterator[Operation]:
    """Every operation whose name is taken and that can be called; why others cannot is added to `refused`.

    What somebody else `fills` is none of their arguments.
    """
    items = {
        str(path): _path_item(document, item, refused, str(path))
        for path, item in as_mapping(document.root.get("paths")).items()
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
            yield _operation(document, item, method, path, name, fills)
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


def _operation(
    document: Document, item: Mapping[str, Any], method: str, path: str, name: str, fills: Fills
) -> Operation:
    if not path.startswith("/"):
        raise SourceError("its path does not begin with a slash")
    operation = document.resolved(item[method])
    inliner = Inliner(document)
    arguments = arguments_of(document, inliner, item, operation, fills)
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
    told = "\n\n".join(str(text).strip() for text in dict.fromkeys(texts) if text)
    return f"{told}\n\n(Nested {', '.join(cuts)} not shown in full.)".strip() if cuts else told
