"""Preview words, draft of a proposal, reason."""

from __future__ import annotations

import inspect
import json
import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, Protocol

from pydantic_core import to_jsonable_python

from sayso.agent.tools.errors import ToolExecutionError, ToolValidationError
from sayso.agent.tools.parameter import ToolParameter
from sayso.channels.i18n.invisible import readable
from sayso.pending.action import PendingActionExistsError
from sayso.pending.context import with_context
from sayso.pending.executors import PendingConfirmation, ToolResult
from sayso.pending.proposals import current_context, stash_pending


@dataclass(frozen=True)
class AlreadyPending(ToolResult):
    """This turn has proposed something already; nothing was added to it."""

    kind: ClassVar[str] = "already_pending"

    message: str = ""


class Proposable(Protocol):
    """What a tool says of its calls."""

    @property
    def name(self) -> str:
        """The kind of action that a call is."""

    @property
    def idempotent(self) -> bool:
        """Whether running twice does no harm."""

    @property
    def typed_code(self) -> bool:
        """Whether the yes must name a code."""

    @property
    def version(self) -> str:
        """Which version of the tool is shown."""


@dataclass(frozen=True, slots=True)
class ProposalDraft:
    """A call as it is recorded, and its preview; a ToolResult in place of words means that there is nothing to ask."""

    tool: Proposable
    args: dict[str, Any]
    words: str | ToolResult

    def propose(self, reason: str = "") -> ToolResult:
        """Ask the user of the current channel run; `reason` is why. Raises ToolExecutionError, as `Tool.propose`."""
        name, words = self.tool.name, self.words
        if isinstance(words, ToolResult):
            return words
        try:
            proposal = stash_pending(
                kind=name, preview=words, args=self.args, idempotent=self.tool.idempotent, reason=reason,
                typed_code=self.tool.typed_code, version=self.tool.version,
            )  # fmt: skip
        except PendingActionExistsError as exc:
            return AlreadyPending(message=str(exc))
        except (TypeError, ValueError) as exc:
            raise ToolExecutionError(f"cannot propose {name!r}: {exc}", tool_name=name, error=exc) from exc
        if proposal is None:
            raise ToolExecutionError(
                f"{name!r} needs a yes, but no user is here to give it: run it on a channel", tool_name=name
            )
        return PendingConfirmation(action=name, preview=words)


#: A format template over the arguments, or a function of them. A ToolResult means: there is nothing to propose.
Preview = str | Callable[..., str | ToolResult]


#: Values that no Markdown hides in, and that templates may format: {euros:.2f}, {day:%d.%m.%Y}.
_NUMBERS = (int, float, Decimal, date, time)


#: What Markdown would read as anything but itself: links, code, emphasis, entities, escapes. An underscore inside a
#: word and a star between spaces are themselves anyway.
_MARKUP = re.compile(
    r"""()(
        \\(?=[!-/:-@\[-`{-~]|$) | [`\[\]] | <(?=\S) | &(?=\#?\w+;) | ~(?=~) | (?<=~)~
        | (?<!\s)\* | \*(?!\s|$) | (?<![^\W_])_ | _(?![^\W_])
    )""",
    re.VERBOSE,
)


#: What it would read so at the beginning of a line: headings, quotes, bullets, rules; and numbers of a list.
_AT_START = re.compile(r"^()(\#(?=\#{0,5}(?:\s|$)) | > | [+-](?=\s|$) | [-=](?=[-=\s]*$))", re.VERBOSE)


_NUMBER_AT_START = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")


#: What could pass for the end of an argument in a list of them, and space that nobody would see there.
_ENDS_EARLY = re.compile(r'[,="\n]|^\s|\s$|\s\s')


#: Code blocks, code and links, where no spelling keeps an argument what it is.
_CODE_OR_LINK = re.compile(
    r"^\ {0,3}(```+|~~~+)[^\n]*\n.*?(?:^\ {0,3}\1|\Z) | (?<!`)(`+)(?!`).*?(?<!`)\2(?!`) | \[[^\]]*\]\([^)]*\)?",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


#: Where a line ends, which is shown as ⏎, and space that a page would show as one.
_BREAK = re.compile(r"\s*\n\s*")


_WIDE = re.compile(r"\s{2,}")


def check_preview(tool_name: str, preview: Preview | None, names: Collection[str]) -> None:
    """Refuse a template that is malformed, or names an argument the tool does not have, and an async function."""
    if inspect.iscoroutinefunction(preview):
        raise ToolValidationError(f"preview of {tool_name!r} is async: give a plain function, which runs in a thread")
    if not isinstance(preview, str):
        return
    try:
        used = {_root(field) for _, field, _, _ in _parsed(preview) if field is not None}
    except ValueError as exc:
        raise ToolValidationError(f"preview of {tool_name!r} is no format template: {exc}") from exc
    unknown = sorted(used - set(names))
    if unknown:
        raise ToolValidationError(f"preview of {tool_name!r} uses unknown {unknown!r}; it has {sorted(names)!r}")
    filled = "".join(f"{text}\0" if field is not None else text for text, field, _, _ in _parsed(preview))
    if any("\0" in found[0] for found in _CODE_OR_LINK.finditer(filled)):
        raise ToolValidationError(
            f"preview of {tool_name!r} has an argument inside code or a link, where it could hide or pass for another: "
            "put it in running text, where it stands as it is"
        )


def _parsed(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    return list(string.Formatter().parse(template))


def _root(field: str) -> str:
    return field.split(".")[0].split("[")[0]


def preview_text(
    tool_name: str, preview: Preview | None, args: Mapping[str, Any], optional: Collection[str] = ()
) -> str | ToolResult:
    """The preview of one call. Raises TypeError when it is no text, ValueError when it comes out empty: nobody can
    agree to nothing.

    Without a template or function it is the tool's name and every argument, whole; of those that are None, the
    `optional` ones, which are None where nobody gives them, are left out. Arguments stand in it and in templates as
    they are: nothing in one can hide a part of it, pass for another argument, or begin a line of its own. What a
    function returns is its author's Markdown.
    """
    words = _words(tool_name, preview, args, optional)
    if not isinstance(words, str | ToolResult):
        raise TypeError(f"the preview of {tool_name!r} is {words!r}: return text, or a ToolResult to propose nothing")
    if isinstance(words, str) and not words.strip():
        raise ValueError(f"the preview of {tool_name!r} is empty: say what will happen")
    return words


def _words(
    tool_name: str, preview: Preview | None, args: Mapping[str, Any], optional: Collection[str]
) -> str | ToolResult:
    if isinstance(preview, str):
        return _LiteralFormatter().vformat(preview, (), args)
    if preview is not None:
        return preview(**args, **with_context(preview, current_context))
    said = {name: value for name, value in args.items() if value is not None or name not in optional}
    listed = ", ".join(f"{_listed(name)} = {_listed(value)}" for name, value in said.items())
    return f"{literal(tool_name)}: {listed}" if listed else literal(tool_name)


class _LiteralFormatter(string.Formatter):
    """Fills a template with values that stand in it as they are, attributes and items of arguments too."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """One value in words."""
        if isinstance(value, str):
            return str(format(literal(value), format_spec))
        if isinstance(value, _NUMBERS):
            return str(format(value, format_spec))
        return literal(str(format(value, format_spec)) if format_spec else _in_words(value))


def _listed(value: Any) -> str:
    """A value in a list of arguments: in quotes where its end would not be seen."""
    words = _in_words(value)
    if isinstance(value, str) and (not words.strip() or _ENDS_EARLY.search(words)):
        words = json.dumps(words, ensure_ascii=False)
    return literal(words)


def _in_words(value: Any) -> str:
    """A value as text: what holds others as the JSON that is stored, so that none of its parts is left out."""
    plain = to_jsonable_python(value, fallback=str)
    if isinstance(plain, list | dict):
        return json.dumps(plain, ensure_ascii=False)
    return str(value.value if isinstance(value, Enum) else value)


def literal(text: str) -> str:
    """The text on one line, spelled so that Markdown shows its very characters, and what nobody sees by its code."""
    line = _WIDE.sub(lambda gap: " " + "\u00a0" * (len(gap[0]) - 1), _BREAK.sub(" ⏎ ", readable(text).strip()))
    for pattern in (_MARKUP, _AT_START, _NUMBER_AT_START):
        line = pattern.sub(_escaped, line)
    return line


def _escaped(found: re.Match[str]) -> str:
    return f"{found[1]}\\{found[2]}"


#: The argument that a tool with `think_augment` has besides its own.
REASON = "toolcall_reason"


_SCHEMA = {"type": "string", "description": "Why you call this tool, and what you expect of it."}


def with_reason(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the reason first: a model that has to say why decides better after it."""
    if REASON in schema["properties"]:
        return dict(schema)
    return {**schema, "properties": {REASON: _SCHEMA, **schema["properties"]}}


def without_reason(params: Mapping[str, Any], parameters: Iterable[ToolParameter]) -> Mapping[str, Any]:
    """The arguments without the reason for the call, unless the tool has a parameter of that name itself."""
    if not isinstance(params, Mapping) or REASON not in params or any(each.name == REASON for each in parameters):
        return params
    return {name: value for name, value in params.items() if name != REASON}
