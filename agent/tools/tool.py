"""Tool: a function that a model may call, with the schema it is called by."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from agent.tools.errors import ToolError, ToolExecutionError, ToolNotFoundError, ToolValidationError
from agent.tools.parameter import ToolParameter
from agent.tools.preview import Preview, check_preview, preview_words
from agent.tools.schema import arguments, build_model, explain, json_schema
from agent.tools.undo import UNDO_SECONDS, Undo, call_undo, check_undo
from pending.action import MAX_TTL_SECONDS, PendingActionExistsError
from pending.executors import Reconciler
from pending.proposals import stash_pending
from pending.results import PendingConfirmation, ToolResult
from workers.offload import contained, in_thread, run_sync

__all__ = [
    "AlreadyPending",
    "Tool",
    "ToolError",
    "ToolExecutionError",
    "ToolNotFoundError",
    "ToolParameter",
    "ToolValidationError",
    "serialise",
]

#: Hears each chunk of a streaming tool as it comes. For a sync tool it is called from the tool's thread.
ChunkCallback = Callable[[str], None]

#: What every vendor accepts as a function's name.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class AlreadyPending(ToolResult):
    """This turn has proposed something already; nothing was added to it."""

    kind: ClassVar[str] = "already_pending"

    message: str = ""


@dataclass(frozen=True, eq=False)
class Tool:
    """A function a model may call. Lives as long as the program and never changes.

    `injected_kwargs` and what `config_injector()` returns reach the function without the model ever seeing them.
    `requires_approval` tools are proposed to the user in the words of `preview` and run after the yes;
    `idempotent` promises that running twice with the same arguments does no harm; `pending.idempotency_key()` names the
    effect, the same at each repetition. `read_only` promises that it changes nothing: interrupted, it is run again.
    `typed_code` asks for a code to be typed with the yes. `reconcile(record)` is asked how a run ended that was
    interrupted: True or words for the user when it took effect, False when it certainly did not, None when nobody can
    tell. `undo` takes the effect back, for `undo_seconds` after the reply; it is called with the tool's arguments, and
    with `result` if it has such a parameter. Change `version` when a call that was previewed before must not run any
    more.
    """

    name: str
    description: str
    parameters: Sequence[ToolParameter]
    function: Callable[..., Any] = field(repr=False)
    streaming: bool = False
    screen_output: bool = False
    terminal: bool = False
    requires_approval: bool = False
    config_injector: Callable[[], Mapping[str, Any] | None] | None = field(default=None, repr=False)
    injected_kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    idempotent: bool = False
    preview: Preview | None = None
    undo: Undo | None = field(default=None, repr=False)
    undo_seconds: float = UNDO_SECONDS
    reconcile: Reconciler | None = field(default=None, repr=False)
    typed_code: bool = False
    version: str = ""
    read_only: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(self.parameters))
        object.__setattr__(self, "injected_kwargs", dict(self.injected_kwargs))
        _check_definition(self)
        if self.config_injector is None:
            self.schema()  # a hint no model can fill shows up here, at import, and not in front of a user

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it had never been decorated."""
        return self.function(*args, **kwargs)

    @property
    def repeatable(self) -> bool:
        """Whether a call that was interrupted may be made again."""
        return self.idempotent or self.read_only

    @property
    def is_async(self) -> bool:
        """Whether the function runs in the event loop rather than in a thread."""
        return inspect.iscoroutinefunction(self.function) or inspect.isasyncgenfunction(self.function)

    def schema(self) -> dict[str, Any]:
        """Name, description and JSON schema of the parameters, as a model reads them."""
        schema: dict[str, Any] = json.loads(self._schema_text)  # the caller's own, in a tenth of a deep copy's time
        return schema

    def validate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, checked, coerced and with defaults filled in. Raises ToolValidationError."""
        return arguments(self._validated(params))

    def validate_json(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """As `validate`, but as exact JSON values: what a policy reads and a pending action stores."""
        return self._validated(params).model_dump(mode="json", by_alias=True)

    async def ainvoke(self, params: Mapping[str, Any], chunk_callback: ChunkCallback | None = None) -> Any:
        """Run the tool and return its own value. Raises ToolValidationError or ToolExecutionError."""
        args = self.validate(params)
        try:
            return await self._call({**args, **self._injected()}, chunk_callback)
        except Exception as exc:
            raise ToolExecutionError(f"tool {self.name!r} failed: {type(exc).__name__}: {exc}") from exc

    async def aexecute(self, params: Mapping[str, Any], chunk_callback: ChunkCallback | None = None) -> str:
        """Run the tool and return its result as the model sees it."""
        return serialise(await self.ainvoke(params, chunk_callback))

    def execute(self, params: Mapping[str, Any], chunk_callback: ChunkCallback | None = None) -> str:
        """`aexecute` for sync code."""
        return run_sync(self.aexecute(params, chunk_callback))

    async def aundo(self, params: Mapping[str, Any], result: str = "") -> str:
        """Take back the effect of a run with these arguments, which returned `result`. Raises like `ainvoke`."""
        if self.undo is None:
            raise ToolExecutionError(f"tool {self.name!r} cannot be undone")
        given = {**self.validate(params), **self._injected(), "result": result}
        try:
            return serialise(await call_undo(self.undo, given))
        except Exception as exc:
            raise ToolExecutionError(f"undo of {self.name!r} failed: {type(exc).__name__}: {exc}") from exc

    def propose(self, params: Mapping[str, Any], *, reason: str = "") -> ToolResult:
        """Ask the user of the current channel run for a yes instead of acting; `reason` is why it has to be asked.

        Returns the PendingConfirmation, or another result when there is nothing to propose. Raises
        ToolExecutionError when no user could answer, or when the preview fails.
        """
        validated = self._validated(params)
        words = self._preview(arguments(validated))
        if isinstance(words, ToolResult):
            return words
        args = validated.model_dump(mode="json", by_alias=True)
        try:
            proposal = stash_pending(
                kind=self.name, preview=words, args=args, idempotent=self.idempotent, typed_code=self.typed_code,
                reason=reason, version=self.version,
            )  # fmt: skip
        except PendingActionExistsError as exc:
            return AlreadyPending(message=str(exc))
        except (TypeError, ValueError) as exc:
            raise ToolExecutionError(f"cannot propose {self.name!r}: {exc}") from exc
        if proposal is None:
            raise ToolExecutionError(f"{self.name!r} needs a yes, but no user is here to give it: run it on a channel")
        return PendingConfirmation(action=self.name, preview=words)

    @cached_property
    def _model(self) -> type[BaseModel]:
        injected = self._injected()
        return build_model(self.name, [parameter for parameter in self.parameters if parameter.name not in injected])

    @cached_property
    def _schema_text(self) -> str:
        schema = {"name": self.name, "description": self.description, "parameters": json_schema(self._model)}
        return json.dumps(schema)

    def _validated(self, params: Mapping[str, Any]) -> BaseModel:
        try:
            return self._model.model_validate(params)
        except ValidationError as exc:
            raise ToolValidationError(explain(self.name, self._model, exc)) from exc

    def _injected(self) -> dict[str, Any]:
        try:
            current = self.config_injector() if self.config_injector else None
        except Exception as exc:
            raise ToolExecutionError(f"the config_injector of {self.name!r} failed: {exc}") from exc
        return {**self.injected_kwargs, **(current or {})}

    def _preview(self, args: Mapping[str, Any]) -> str | ToolResult:
        try:
            return preview_words(self.name, self.preview, args)
        except (Exception, SystemExit) as exc:
            raise ToolExecutionError(f"cannot preview {self.name!r}: {type(exc).__name__}: {exc}") from exc

    async def _call(self, kwargs: Mapping[str, Any], chunk_callback: ChunkCallback | None) -> Any:
        if not self.is_async:
            return await in_thread(lambda: _finish(self.function(**kwargs), chunk_callback))
        result = self.function(**kwargs)
        if inspect.isasyncgen(result):
            return await contained(_join(result, chunk_callback))
        return await contained(result)


def serialise(value: Any) -> str:
    """A tool's value as the text the model reads."""
    if isinstance(value, str):
        return value
    if value is None:
        return "done"
    if isinstance(value, ToolResult):
        return value.to_json()
    return json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)


def _finish(value: Any, chunk_callback: ChunkCallback | None) -> Any:
    return "".join(_heard(value, chunk_callback)) if inspect.isgenerator(value) else value


def _heard(chunks: Iterator[Any], chunk_callback: ChunkCallback | None) -> Iterator[str]:
    for chunk in chunks:
        if chunk_callback:
            chunk_callback(str(chunk))
        yield str(chunk)


async def _join(chunks: AsyncIterator[Any], chunk_callback: ChunkCallback | None) -> str:
    heard: list[str] = []
    async for chunk in chunks:
        heard.extend(_heard(iter([chunk]), chunk_callback))
    return "".join(heard)


def _check_definition(tool: Tool) -> None:
    names = [parameter.name for parameter in tool.parameters]
    for wrong, cure in (
        (not _NAME.fullmatch(tool.name), "a name is 1 to 64 letters, digits, '_' or '-'"),
        (not tool.description.strip(), "give it a docstring or description=: a model chooses tools by it"),
        (len(set(names)) < len(names), f"a parameter is declared twice in {names!r}"),
        (tool.streaming and not _is_generator(tool.function), "streaming=True needs a function that yields"),
        (
            not 0 < tool.undo_seconds <= MAX_TTL_SECONDS,
            f"undo_seconds is {tool.undo_seconds!r}: at most {MAX_TTL_SECONDS:g}",
        ),
    ):
        if wrong:
            raise ToolValidationError(f"tool {tool.name!r} cannot be defined: {cure}")
    _check_signature(tool, names)
    check_preview(tool.name, tool.preview, names)
    check_undo(tool.name, tool.undo, [*names, *tool.injected_kwargs, "result"])


def _check_signature(tool: Tool, names: list[str]) -> None:
    try:
        signature = inspect.signature(tool.function).parameters
    except (ValueError, TypeError):  # some built-ins have none: their author's parameters are all we know
        return
    takes_any = any(param.kind is inspect.Parameter.VAR_KEYWORD for param in signature.values())
    unknown = [name for name in names if name not in signature]
    if unknown and not takes_any:
        raise ToolValidationError(f"tool {tool.name!r} cannot be defined: its function takes no {unknown!r}")
    given = {*names, *tool.injected_kwargs}
    unfilled = [param.name for param in signature.values() if param.name not in given and _must_be_given(param)]
    if unfilled and tool.config_injector is None:
        raise ToolValidationError(f"tool {tool.name!r} cannot be defined: nobody fills {unfilled!r}; inject them")


def _is_generator(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _must_be_given(param: inspect.Parameter) -> bool:
    variadic = param.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return param.default is inspect.Parameter.empty and not variadic
