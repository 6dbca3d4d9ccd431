"""Checks what an MCP server sends: its tools one by one, and a result block by block.

The official SDK refuses a whole list, or a whole result, for one part that does not follow the
protocol. Here such a part is mended, left out or read as text, and the others stay.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

#: The parts of a definition that a tool needs. The others inform only, or say that it is harmless.
_NEEDED = ("name", "description", "inputSchema")
#: Why a tool that only runs as a task is left out (protocol of 2025-11-25,
#: `execution.taskSupport`).
AS_TASK = "it must be called as a task, whose answer is fetched later: that is not supported"
#: The parts of a schema whose null means that there are none.
_NULLABLE = ("properties", "required", "$defs", "definitions")


@asynccontextmanager
async def with_usable_listings(
    transport: AbstractAsyncContextManager[Any], left_out: dict[str, str]
) -> AsyncIterator[Any]:
    """Yield the streams of a transport.

    Lists of tools that arrive hold only definitions that can be used.

    Those that cannot be used are added to `left_out` by their names, with the reasons.
    """
    async with transport as (messages, write):
        yield ListingStream(messages, left_out), write


class ListingStream:
    """The messages from a server, of which only usable parts are left.

    These are definitions in its lists, and blocks of the results of calls.

    Lives as long as its connection. It adds each definition that cannot be used to `left_out`,
    by name with the reason.
    """

    def __init__(self, messages: Any, left_out: dict[str, str]) -> None:
        self._messages = messages
        self._left_out = left_out

    async def receive(self) -> Any:
        """Return the next message."""
        return self._checked(await self._messages.receive())

    def __aiter__(self) -> ListingStream:
        return self

    async def __anext__(self) -> Any:
        return self._checked(await self._messages.__anext__())

    async def __aenter__(self) -> ListingStream:
        await self._messages.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        suppresses: bool | None = await self._messages.__aexit__(*exc_info)
        return suppresses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messages, name)  # `aclose`, and what some transports add

    def _checked(self, message: SessionMessage | Exception) -> Any:
        result = getattr(getattr(message, "message", None), "result", None)
        if isinstance(result, dict) and isinstance(result.get("tools"), list):
            result["tools"] = list(self._usable(result["tools"]))
        elif isinstance(result, dict) and not result.keys().isdisjoint(
            ("content", "structuredContent")
        ):
            _mend_result(result)
        return message

    def _usable(self, definitions: list[Any]) -> Iterator[dict[str, Any]]:
        for number, definition in enumerate(definitions, 1):
            try:
                yield usable_definition(definition)
            except ValueError as exc:
                self._left_out[_name_of(definition) or f"tool {number}"] = str(exc)


def _name_of(definition: Any) -> str | None:
    """Return the name in a definition, None if it has none that is text."""
    if not isinstance(definition, dict):
        return None
    name = definition.get("name")
    return name if isinstance(name, str) else None


def usable_definition(definition: Any) -> dict[str, Any]:
    """Return the definition in a form that the protocol allows. Raises ValueError with the reason.

    A schema of arguments is mended as far as it is clear. If a part that is not needed breaks
    the protocol, only the needed parts stay. Without annotations, a tool counts as destructive.
    """
    if not isinstance(definition, dict):
        raise ValueError("its definition is no object")
    # Before anything is dropped: a plain call of such a tool is refused by its server.
    execution = definition.get("execution")
    if isinstance(execution, dict) and execution.get("taskSupport") == "required":
        raise ValueError(AS_TASK)
    schema = definition.get("inputSchema")
    if isinstance(schema, dict):
        definition = {**definition, "inputSchema": _mended(schema)}
    if not _violation(definition):
        return dict(definition)

    needed: dict[str, Any] = {key: definition[key] for key in _NEEDED if key in definition}
    if not isinstance(needed.get("description", ""), str):
        del needed["description"]
    violation = _violation(needed)
    if violation:
        raise ValueError(violation)
    return needed


def _mended(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of arguments, which are always an object.

    Servers in Go write an empty map or list as null.
    """
    mended = {
        key: value for key, value in schema.items() if key not in _NULLABLE or value is not None
    }
    kind = mended.get("type")
    if kind is None or (isinstance(kind, list) and "object" in kind):
        mended["type"] = "object"
    return mended


def _mend_result(result: dict[str, Any]) -> None:
    """Make the result of a call readable where its meaning is clear.

    The call was answered, so an unreadable part must not make its effect unknown. Servers in Go
    write an empty list as null, and newer ones send blocks that are not known here.
    """
    for key in ("structuredContent", "isError", "_meta"):
        if key in result and result[key] is None:
            del result[key]
    content = result.get("content")
    if isinstance(content, dict):
        blocks: list[Any] = [content]
    elif isinstance(content, list):
        blocks = content
    else:
        blocks = [] if content is None else [str(content)]
    result["content"] = [_readable_block(block) for block in blocks]
    structured = result.get("structuredContent")
    if structured is not None and not isinstance(structured, dict):
        # Older versions of the protocol allow only an object there; servers wrap other values so.
        result["structuredContent"] = {"result": structured}


def _readable_block(block: Any) -> Any:
    """Return a block of a result; one that is not known or malformed as text."""
    try:
        _block_adapter().validate_python(block, by_name=False)
    except ValidationError:
        text = block
        if not isinstance(block, str):
            text = json.dumps(block, ensure_ascii=False)
        return {"type": "text", "text": text}
    return block


def _violation(definition: Mapping[str, Any]) -> str:
    """Return what the protocol forbids in a definition, "" for nothing."""
    for model in _definition_models():
        try:
            model.model_validate(definition, by_name=False)
        except ValidationError as exc:
            return validation_reason(exc)
    return ""


def validation_reason(exc: ValidationError) -> str:
    """Return where the first error is and what it is, without the value, which may be a secret."""
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "its top"
    return f"{place}: {first['msg']}"


@functools.cache
def _block_adapter() -> TypeAdapter[Any]:
    """Return what checks one block of a result."""
    from mcp.types import ContentBlock

    return TypeAdapter(ContentBlock)


@functools.cache
def _definition_models() -> tuple[type[BaseModel], ...]:
    """Return the models of a definition in each version of the protocol."""
    from mcp.types import Tool
    from mcp.types.methods import SERVER_RESULTS

    listings = {model for (method, _), model in SERVER_RESULTS.items() if method == "tools/list"}
    fields = [model.model_fields["tools"] for model in listings if isinstance(model, type)]
    return (*(get_args(field.annotation)[0] for field in fields), Tool)
