"""Checks what an MCP server sends, part by part: the tools of a list, the blocks of a result.

The official SDK refuses a whole list, or a whole result, for one part that does not follow the
protocol. Here such a part is mended, left out or read as text, and the other parts stay. Therefore
ListingStream stands between the transport and the SDK.
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

#: The parts of a definition that a tool needs. The other parts only inform, or state that the tool
#: is harmless.
_NEEDED = ("name", "description", "inputSchema")
#: Why a tool that only runs as a task is left out: `execution.taskSupport` in the protocol of
#: 2025-11-25.
AS_TASK = "it must be called as a task, whose answer is fetched later: that is not supported"
#: The parts of a schema in which null means the same as a missing part.
_NULLABLE = ("properties", "required", "$defs", "definitions")


@asynccontextmanager
async def with_usable_listings(
    transport: AbstractAsyncContextManager[Any], left_out: dict[str, str]
) -> AsyncIterator[Any]:
    """Yield the streams of a transport, with a ListingStream for the messages from the server.

    Why a definition cannot be used is added to `left_out`, by the name of its tool.
    """
    async with transport as (messages, write):
        yield ListingStream(messages, left_out), write


class ListingStream:
    """The messages from a server, checked: lists of tools and results hold only usable parts.

    It stands in the place of the stream `messages` of a transport, and lives as long as its
    connection. Why a definition cannot be used is added to `left_out`, by the name of its tool.
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
        """Return the message, with the list of tools or the result in it changed in place."""
        result = getattr(getattr(message, "message", None), "result", None)
        if not isinstance(result, dict):
            return message
        if isinstance(result.get("tools"), list):
            result["tools"] = list(self._usable(result["tools"]))
        elif "content" in result or "structuredContent" in result:
            _mend_result(result)
        return message

    def _usable(self, definitions: list[Any]) -> Iterator[dict[str, Any]]:
        """Yield the definitions that can be used, mended where they must be."""
        for number, definition in enumerate(definitions, 1):
            try:
                yield usable_definition(definition)
            except ValueError as exc:
                name = _name_of(definition) or f"tool {number}"
                self._left_out[name] = str(exc)


def _name_of(definition: Any) -> str | None:
    """Return the name in a definition, None if it has no name or one that is no text."""
    if not isinstance(definition, dict):
        return None
    name = definition.get("name")
    return name if isinstance(name, str) else None


def usable_definition(definition: Any) -> dict[str, Any]:
    """Return the definition in a form that the protocol allows.

    The schema of the arguments is mended if it is clear what it means. If a part that is not needed
    breaks the protocol, only the needed parts stay; then the tool counts as destructive, because
    its annotations are gone too. Raises ValueError with the reason if a needed part is broken.
    """
    if not isinstance(definition, dict):
        raise ValueError("its definition is no object")
    # A server refuses a plain call of a tool that must run as a task. This is read before parts of
    # the definition are dropped, which could drop it.
    execution = definition.get("execution")
    if isinstance(execution, dict) and execution.get("taskSupport") == "required":
        raise ValueError(AS_TASK)
    schema = definition.get("inputSchema")
    if isinstance(schema, dict):
        definition = {**definition, "inputSchema": _mended_schema(schema)}
    if not _violation(definition):
        return dict(definition)

    # A part that breaks the protocol may be one that the tool does not need.
    needed: dict[str, Any] = {key: definition[key] for key in _NEEDED if key in definition}
    if not isinstance(needed.get("description", ""), str):
        del needed["description"]
    violation = _violation(needed)
    if violation:
        raise ValueError(violation)
    return needed


def _mended_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of arguments with the type object, and without parts that are null.

    Servers in Go write an empty map or list as null.
    """
    mended = {
        key: value for key, value in schema.items() if key not in _NULLABLE or value is not None
    }
    type_name = mended.get("type")
    is_one_of_several = isinstance(type_name, list) and "object" in type_name
    if type_name is None or is_one_of_several:
        mended["type"] = "object"
    return mended


def _mend_result(result: dict[str, Any]) -> None:
    """Change the result of a call, so that the SDK can read it, if it is clear what it means.

    The call was answered, so an unreadable part must not make its effect unknown. Servers in Go
    write an empty list as null, and newer servers send blocks that the SDK does not know.
    """
    for key in ("structuredContent", "isError", "_meta"):
        if key in result and result[key] is None:
            del result[key]

    content = result.get("content")
    if isinstance(content, dict):
        blocks: list[Any] = [content]
    elif isinstance(content, list):
        blocks = content
    elif content is None:
        blocks = []
    else:
        blocks = [str(content)]
    result["content"] = [_readable_block(block) for block in blocks]

    structured = result.get("structuredContent")
    if structured is not None and not isinstance(structured, dict):
        # Older versions of the protocol allow only an object there; servers wrap other values so.
        result["structuredContent"] = {"result": structured}


def _readable_block(block: Any) -> Any:
    """Return a block of a result. A block that is unknown or malformed is returned as text."""
    try:
        _block_adapter().validate_python(block, by_name=False)
    except ValidationError:
        text = block
        if not isinstance(block, str):
            text = json.dumps(block, ensure_ascii=False)
        return {"type": "text", "text": text}
    return block


def _violation(definition: Mapping[str, Any]) -> str:
    """Return why a definition breaks some version of the protocol; "" if it breaks none."""
    for model in _definition_models():
        try:
            model.model_validate(definition, by_name=False)
        except ValidationError as exc:
            return validation_reason(exc)
    return ""


def validation_reason(exc: ValidationError) -> str:
    """Return where the first error is and what it is, without the value, which may be a secret."""
    first_error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first_error["loc"]) or "its top"
    return f"{place}: {first_error['msg']}"


@functools.cache
def _block_adapter() -> TypeAdapter[Any]:
    """Return the validator of one block of a result."""
    from mcp.types import ContentBlock

    return TypeAdapter(ContentBlock)


@functools.cache
def _definition_models() -> tuple[type[BaseModel], ...]:
    """Return the models of a definition in each version of the protocol."""
    from mcp.types import Tool
    from mcp.types.methods import SERVER_RESULTS

    # The SDK has the model of each result by its method and the version of the protocol.
    listings = {model for (method, _), model in SERVER_RESULTS.items() if method == "tools/list"}
    fields = [model.model_fields["tools"] for model in listings if isinstance(model, type)]
    # The field `tools` is a list of the model of a definition.
    definitions = [get_args(field.annotation)[0] for field in fields]
    return (*definitions, Tool)
