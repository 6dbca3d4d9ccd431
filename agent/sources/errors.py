"""What sources raise, below ToolError.

SourceError            a source cannot be used as it is; the message names the cure
├── SourceUnreachable  nobody answers there: nothing was asked
├── CallRefused        it was asked, and says that it did nothing
└── AnswerLost         it was asked, and no answer came: whether it took effect is not known
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sayso.agent.tools.errors import ToolError


class SourceError(ToolError):
    """Raised when a source cannot be used as it is."""


class SourceUnreachable(SourceError):
    """Raised when a source does not answer at all; nothing was asked of it."""


class CallRefused(SourceError):
    """Raised when a source was asked and refused."""


class AnswerLost(SourceError):
    """Raised when a source was asked and no answer came."""


#: Answers of a server that broke off, or of a gateway that had none from it: what was asked may have been done.
UNCLEAR_STATUSES = (500, 502, 504)

#: Characters of what is taken for a secret: anything shorter is in every text.
MIN_SECRET_CHARS = 4


def scrub(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets: what a server answers may repeat what it was sent."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "[hidden]") if len(secret) >= MIN_SECRET_CHARS else text
    return text


def scrub_value(value: Any, secrets: Iterable[str]) -> Any:
    """The same of a JSON value, in all its texts: there a secret may have been written in other characters."""
    hidden = [*secrets]
    if isinstance(value, str):
        return scrub(value, hidden)
    if isinstance(value, dict):
        return {scrub(str(name), hidden): scrub_value(each, hidden) for name, each in value.items()}
    return [scrub_value(each, hidden) for each in value] if isinstance(value, list) else value
