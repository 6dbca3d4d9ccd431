"""Wording: what the offline provider says, in plain words instead of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sayso.agent.messages import Message
from sayso.agent.providers.words import name_words
from sayso.channels.types import Media
from sayso.pending.results import Ambiguous, NotFound, plain

#: Tools that are named to a user whose words match none.
MAX_NAMED = 12

_SAMPLES = {"integer": "3", "number": "19.90", "boolean": "yes", "array": "a,b", "object": "'{}'"}


def tell_result(content: str) -> str:
    """A tool's result for a person: JSON in words, text as it is."""
    try:
        value = json.loads(content)
    except ValueError:
        return content
    if isinstance(value, dict):
        return _tell_kind(value)
    return "\n".join(f"- {plain(item)}" for item in value) if isinstance(value, list) and value else plain(value)


def tell_unmatched(message: Message | None, schemas: Sequence[Mapping[str, Any]]) -> str:
    """Return the user's own words and files, proof that they arrived, then what this provider is and can do."""
    text = message.content.strip() if message else ""
    media = message.media if message else ()
    told = [f"You said: {text}".rstrip(), *map(_tell_media, media)]
    return "\n".join([*told, _abilities(schemas)] if schemas else told)


def _abilities(schemas: Sequence[Mapping[str, Any]]) -> str:
    names = [" ".join(name_words(schema["name"])) for schema in schemas[:MAX_NAMED]]
    more = [f"{len(schemas) - MAX_NAMED} more"] if len(schemas) > MAX_NAMED else []
    *first, last = [*names, *more]
    listed = f"{', '.join(first)} and {last}" if first else last
    return (
        "That matches none of my tools, and I am not a language model: I match words to tools, always in the same "
        f"way. I can {listed}. For example: {example(schemas[0])}"
    )


def tell_help(schemas: Sequence[Mapping[str, Any]]) -> str:
    """What this provider is, and every tool with a command to copy."""
    honest = (
        "I am not a language model: I match your words to the tools below, always in the same way. "
        "Say it in your own words or use the command."
    )
    if not schemas:
        return f"{honest}\nThere are no tools."
    return "\n".join([honest, *(f"{example(schema)} - {_summary(schema)}" for schema in schemas)])


def ask_missing(schema: Mapping[str, Any], missing: Sequence[str], given: Mapping[str, Any]) -> str:
    """The question for arguments that the text did not hold."""
    return f"{schema['name']} needs {' and '.join(missing)}. For example: {example(schema, given)}"


def ask_which(schemas: Sequence[Mapping[str, Any]]) -> str:
    """The question which of several tools was meant."""
    names = [f"/{schema['name']}" for schema in schemas]
    return f"Did you mean {', '.join(names[:-1])} or {names[-1]}?"


def example(schema: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> str:
    """A command that calls the tool, with the values already known and samples for the other required ones."""
    known = given or {}
    parameters = schema["parameters"]
    names = [name for name in parameters["properties"] if name in known or name in parameters.get("required", ())]
    values = {name: known.get(name) or _sample(name, parameters["properties"][name]) for name in names}
    return " ".join([f"/{schema['name']}", *(f"{name}={_quoted(value)}" for name, value in values.items())])


def _tell_kind(result: dict[str, Any]) -> str:
    kind, entity, query = (result.get(key) for key in ("kind", "entity", "query"))
    if kind == "ambiguous":
        return Ambiguous(str(entity or ""), str(query), list(result.get("matches") or [])).in_words
    if kind == "not_found":
        return NotFound(str(entity or ""), str(query)).in_words
    for key in ("preview", "message"):
        if kind and isinstance(result.get(key), str):
            return str(result[key])
    return "\n".join(f"{key}: {plain(value)}" for key, value in result.items() if key != "kind") or "nothing"


def _tell_media(media: Media) -> str:
    size = f"{media.size} bytes" if media.size else ""
    parts = (media.kind, media.mime_type, size, media.filename)
    return f"[{' '.join(part for part in parts if part)}]"


def _summary(schema: Mapping[str, Any]) -> str:
    return str(schema.get("description", "")).partition("\n")[0]


def _sample(name: str, prop: Mapping[str, Any]) -> str:
    if prop.get("enum"):
        return str(prop["enum"][0])
    if prop.get("format") == "date":
        return "2026-01-31"
    if name.endswith("_id"):
        return f"{name[:3].upper()}-42"
    return _SAMPLES.get(str(prop.get("type")), "...")


def _quoted(value: Any) -> str:
    text = str(value)
    return f"'{text}'" if re.search(r"\s", text) else text
