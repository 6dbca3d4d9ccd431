"""Errors of an MCP connection: what they say, and whether they say that nothing was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from sayso.agent.sources.errors import UNCLEAR_STATUSES, SourceError, scrub

if TYPE_CHECKING:
    from mcp.shared.exceptions import MCPError

#: Characters of what a library or a server says: the rest quotes what it read.
MAX_WORDS_CHARS = 200

#: How the SDK says that no answer will come. Its code for that, -32000, servers use for errors of their own.
_BROKE_OFF = ("Connection closed", "SSE stream ")


def broke_off(exc: MCPError) -> bool:
    """Whether no answer came, so that the connection is of no more use."""
    from mcp.types import CONNECTION_CLOSED

    return exc.code == CONNECTION_CLOSED and exc.message.startswith(_BROKE_OFF)


def is_forgotten(exc: MCPError, status: int) -> bool:
    """Whether the server knows nothing of this session any more: the next call needs another."""
    from mcp.types import INVALID_REQUEST

    return status == HTTPStatus.NOT_FOUND and exc.code == INVALID_REQUEST


def is_unclear(exc: MCPError, status: int) -> bool:
    """Whether what was asked may have been done; `status` is what HTTP answered, 0 where it is not spoken."""
    from mcp.types import PARSE_ERROR

    is_unreadable = exc.code == PARSE_ERROR and status != 0
    return broke_off(exc) or is_unreadable or status in (*UNCLEAR_STATUSES, HTTPStatus.ACCEPTED)


def told(exc: MCPError, status: int, secrets: Sequence[str]) -> str:
    """What it says, in a line."""
    return f"{_line(exc.message, secrets)}{status_words(status)}"


def status_words(status: int) -> str:
    """How HTTP refused, which the protocol's own errors leave out; "" where it did not."""
    key = ": check its headers" if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) else ""
    return f"; it answered {status}{key}" if status >= HTTPStatus.BAD_REQUEST else ""


def words(exc: BaseException, secrets: Sequence[str]) -> str:
    """Why, in words. Of what other libraries raise only the type: their words may hold a URL, and with it a secret."""
    cause = next(_leaves(exc))
    if isinstance(cause, SourceError):
        return str(cause)
    from mcp.shared.exceptions import MCPError

    if isinstance(cause, MCPError):
        return "it ended before it answered" if broke_off(cause) else _line(str(cause), secrets)
    if isinstance(cause, FileNotFoundError | PermissionError | NotADirectoryError):
        return f"{cause.filename!r}: {cause.strerror}"
    return type(cause).__name__


def _line(text: str, secrets: Sequence[str]) -> str:
    """Scrubbed before it is cut: of half a secret nobody knows that it is one."""
    return scrub(text, secrets).partition("\n")[0][:MAX_WORDS_CHARS].rstrip(":. ")


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        for inner in exc.exceptions:
            yield from _leaves(inner)
    else:
        yield exc
