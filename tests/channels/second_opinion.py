"""Second opinion: the objections of aiogram's models to calls of the Bot API and to updates.

Runs under a Python that has aiogram, and imports no module of ours. Reads lines of JSON, {"method": "sendMessage",
"params": {...}} or {"update": {...}}, and answers each with a line: {"wrong": [...]}, empty if all is right.
Parameters are as a form carries them: a value that is no text is JSON, and a file is "attach://<name>".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from aiogram import methods
from aiogram.methods.base import TelegramMethod
from aiogram.types import Update
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo


def opinion(line: Mapping[str, Any]) -> list[str]:
    """Return the objections to one call or one update."""
    try:
        return list(
            _unknown(Update.model_validate(line["update"]) if "update" in line else _built(**line))
        )
    except ValidationError as exc:
        return [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors()]
    except ValueError as exc:
        return [str(exc)]


def _built(method: str, params: dict[str, str]) -> BaseModel:
    """Build the call in strict mode: no number passes for a text, and no text for a number."""
    model = getattr(methods, method[:1].upper() + method[1:], None)
    if (
        not isinstance(model, type)
        or not issubclass(model, TelegramMethod)
        or model.__api_method__ != method
    ):
        raise ValueError(f"unknown method {method!r}")
    values = {
        name: _value(name, model.model_fields.get(name), words) for name, words in params.items()
    }
    return model.model_validate_json(json.dumps(values), strict=True)


def _value(name: str, field: FieldInfo | None, words: str) -> Any:
    if field is not None and field.json_schema_extra == {"deprecated": True}:
        raise ValueError(f"{name}: deprecated")
    if field is None or field.annotation is str or str in get_args(field.annotation):
        return words
    try:
        return json.loads(words)
    except ValueError:
        raise ValueError(f"{name}: no JSON") from None


def _unknown(value: Any, path: str = "") -> Iterator[str]:
    """Yield the fields that a model kept without knowing them, at every depth."""
    if isinstance(value, BaseModel):
        yield from (f"{path}{name}: unknown" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name), f"{path}{name}.")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _unknown(item, f"{path}{number}.")


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps({"wrong": opinion(json.loads(line))}) + "\n")
        sys.stdout.flush()
