"""Tool: a function that a model may call, with its schema, its checked arguments and its result.

A tool is defined by `@tool` or `Tool.from_function`; what can be set of it is in `definition.py`.
Arguments come from three sides: from the model (checked against the schema), injected by the
program (`injected_kwargs`, `config_injector`), and the ToolContext of the current call. The model
never sees the last two. `arguments.py` checks, `signature.py` reads the function.

Which of the many methods to use:

| to | call |
|---|---|
| describe the tool to a model | `schema`, `get_schema` for a vendor's format |
| check arguments | `validate`; `validate_json` and `validate_record` as a policy and a record need them |
| run it and have its own value | `run_raw`, `arun_raw`; `ainvoke` with one kind of error |
| run it and have a text for a model | `execute`, `aexecute` |
| ask the user first | `propose`; `draft` to see what would be asked |
| take a run back | `aundo_raw` |
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from types import GenericAlias, MethodType
from typing import Any, ClassVar, Concatenate, Generic, Self, Unpack, cast, overload

from pydantic import BaseModel
from pydantic_core import CoreSchema, SchemaSerializer, core_schema
from typing_extensions import ParamSpec, TypeVar

from sayso.agent.tools import edits
from sayso.agent.tools.arguments import (
    HiddenArguments,
    SchemaArguments,
    TypedArguments,
    ValidatedArguments,
)
from sayso.agent.tools.call_texts import (
    REASON,
    ChunkCallback,
    await_value,
    check_preview,
    definition_digest,
    is_async_value,
    join_chunks,
    preview_text,
    serialize,
    shorten,
    with_reason,
)
from sayso.agent.tools.definition import (
    PreviewRefused,
    ProposalDraft,
    ToolDefinition,
    ToolMetadata,
    ToolOptions,
    call_undo,
    name_in_words,
    returns_awaitable,
)
from sayso.agent.tools.environment import ArtifactsOfCall
from sayso.agent.tools.errors import (
    EffectUnknownError,
    PreviewError,
    ToolError,
    ToolExecutionError,
    ToolValidationError,
    readable_error,
)
from sayso.agent.tools.json_schema import FrozenDict, frozen, thawed
from sayso.agent.tools.signature import (
    check_function,
    describe,
    infer_parameters,
    is_method,
    name_of,
)
from sayso.agent.tools.vendor_schemas import ApiFormat, vendor_schema
from sayso.infra.concurrency import (
    call_in_caller_thread,
    call_in_tool_thread,
    execution_timeout,
    run_sync,
)
from sayso.pending.action import encode_canonical
from sayso.pending.error_texts import FATAL_ERRORS, error_text, own_words
from sayso.pending.executors import ToolResult
from sayso.pending.proposals import RunningTool, current_context, running_tool
from sayso.pending.tool_context import context_parameters

#: Most characters of the words with which a preview refuses. They are stored, and people read them
#: in a chat.
MAX_REFUSAL_CHARS = 2_000
#: How many decorators and partials around a function are looked through.
MAX_WRAPPERS = 100
#: Runs a sync function in a thread.
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


#: The parameters and the result of a tool's function, for type checkers. A bare `Tool` is any tool.
P = ParamSpec("P", default=...)
R_co = TypeVar("R_co", covariant=True, default=Any)
#: The parameters of a method without its instance.
MethodP = ParamSpec("MethodP")
#: The parameters and the result of the function that the decorator is given.
FunctionP = ParamSpec("FunctionP")
FunctionR = TypeVar("FunctionR")


@dataclass(frozen=True, eq=False)
class Tool(ToolDefinition, Generic[P, R_co]):
    """A function that a model may call. Immutable; lives as long as the process.

    ToolDefinition explains its fields. For type checkers `Tool[P, R]` is the function itself: they
    refuse a wrong call, and know its result. Creating one raises ToolValidationError for what could
    not be called, so that a mistake shows at import and not in front of a user.
    """

    __pydantic_serializer__: ClassVar[SchemaSerializer]

    def __post_init__(self, _original: ToolDefinition | None) -> None:
        super().__post_init__(_original)
        self._check_preview()
        # Both fail for parameters that cannot be filled. With an injector the schema is known only
        # once it was called, since it decides what the model is not shown.
        if self.config_injector is not None:
            _ = self._hidden_arguments
        else:
            _ = self._compiled
        self._check_editable()

    def __class_getitem__(cls, item: Any) -> GenericAlias:
        """Allow `Tool[Any]` in type hints, also at run time."""
        return GenericAlias(cls, item)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself, as if it had never been decorated."""
        value: R_co = self._own_function()(*args, **kwargs)
        return value

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Tool[P, R_co]: ...

    @overload
    def __get__(
        self: Tool[Concatenate[Any, MethodP], R_co], instance: object, owner: type | None = None
    ) -> Tool[MethodP, R_co]: ...

    def __get__(self, instance: object, owner: type | None = None) -> Tool[Any, Any]:
        """Return a decorated method, taken from an instance, as a tool of that instance."""
        if instance is None or not is_method(self.function):
            return self
        bound = MethodType(self._own_function(), instance)
        return replace(self, function=bound, callable=bound)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            f"tool {self.name!r} cannot be pickled: it is code; keep its name, and look it up"
        )

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: Any) -> CoreSchema:
        """Make pydantic serialize a tool as `model_dump` does."""
        return core_schema.is_instance_schema(cls, serialization=_AS_DUMPED)

    @classmethod
    def from_function(
        cls,
        func: Callable[FunctionP, FunctionR],
        name: str | None = None,
        description: str | None = None,
        namespace: str | None = None,
        method_name: str | None = None,
        metadata: ToolMetadata | None = None,
        *,
        param_metadata: Mapping[str, Mapping[str, Any]] | None = None,
        injected_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Tool[FunctionP, FunctionR]:
        """Return the Tool of a function. What is not given comes from its signature and docstring.

        Args:
            func: A function or a method, sync or async. Whether it is async is detected, whatever
                `metadata.is_async` says. One that is a tool already is returned unchanged.
            name: The name that models call it by; with a `namespace` it is
                `{namespace}-{method_name}`.
            description: What models read about it.
            namespace: A group of tools, such as a service.
            method_name: The name without the namespace.
            metadata: Tags, limits and other facts that do not change what the tool does.
            param_metadata: More of single parameters, by name, such as a description or an enum.
            injected_kwargs: Arguments that the program fills, and no model sees.
            options: Other fields of ToolDefinition.

        Raises ValueError for a lambda without a name, ToolValidationError for what cannot be a
        tool, and for a tool that is given options.
        """
        given = (
            name,
            description,
            namespace,
            method_name,
            metadata,
            param_metadata,
            injected_kwargs,
        )
        has_options = bool(options) or any(each is not None for each in given)
        existing = _existing_tool(func, has_options=has_options)
        if existing is not None:
            return cast("Tool[FunctionP, FunctionR]", existing)

        check_function(func)
        if name_of(func) == "<lambda>" and not (name or method_name):
            raise ValueError("a lambda has no name: give the tool one with name=")
        documented, descriptions = describe(func)
        base = method_name or name or name_of(func)
        injected = injected_kwargs or {}
        tool = cls(
            name=name or base,
            description=description or documented or name_in_words(base),
            parameters=infer_parameters(func, param_metadata or {}, descriptions, injected),
            function=func,
            injected_kwargs=injected,
            metadata=replace(metadata or ToolMetadata(), is_async=False),
            method_name=method_name,
            **options,
        )
        return cast("Tool[FunctionP, FunctionR]", tool.update_namespace(namespace, force=True))

    @property
    def takes_hidden_arguments(self) -> bool:
        """Whether the function gets anything that no model sends: injected values, a ToolContext."""
        return bool(
            self.injected_kwargs or self.config_injector is not None or self._context_parameters
        )

    @property
    def hidden_names(self) -> frozenset[str]:
        """The names of the injected arguments that are known without calling the injector."""
        return frozenset({*self._hidden_arguments.known_names, *self._context_parameters})

    @property
    def parameters_model(self) -> type[BaseModel] | None:
        """The pydantic model that checks the arguments; None for a tool defined by a JSON Schema."""
        compiled = self._compiled
        if isinstance(compiled, TypedArguments):
            return compiled.model
        return None

    def schema(self) -> dict[str, Any]:
        """Return name, description and JSON schema of the parameters, as a model reads them.

        The returned value is immutable. A tool with a `config_injector` calls it for the first
        schema, which may block: see `aschema`.
        """
        return self._schema

    async def aschema(self) -> dict[str, Any]:
        """Return `schema()`. A `config_injector`, which may block, is called in a thread."""
        if self.config_injector is None or "_compiled" in self.__dict__:
            return self._schema
        return await call_in_tool_thread(self.schema)

    def get_schema(
        self, api_format: ApiFormat = "openai-chat", *, _think_augment: bool | None = None
    ) -> dict[str, Any]:
        """Return the definition for a vendor's API. Raises like `vendor_schema`.

        `_think_augment`: whether the model is asked for the reason of each call; None: as the
        metadata says.
        """
        asks_for_reason = _think_augment
        if asks_for_reason is None:
            asks_for_reason = self.metadata.think_augment
        parameters = self._compiled.schema
        if asks_for_reason:
            parameters = with_reason(parameters)
        return vendor_schema(self.name, self.description, parameters, api_format)

    def describe(self, api_format: ApiFormat = "openai-chat") -> dict[str, Any]:
        """Return `get_schema`, with a DeprecationWarning. The old name is a documented one."""
        return self._deprecated("describe", api_format)

    def get_json_schema(self, api_format: ApiFormat = "openai-chat") -> dict[str, Any]:
        """Return `get_schema`, with a DeprecationWarning. The old name is a documented one."""
        return self._deprecated("get_json_schema", api_format)

    def _deprecated(self, old: str, api_format: ApiFormat) -> dict[str, Any]:
        warnings.warn(f"{old}() is called get_schema() now", DeprecationWarning, stacklevel=3)
        return self.get_schema(api_format)

    def model_dump(self) -> dict[str, Any]:
        """Return the tool as JSON-ready data, without its code and injected values."""
        metadata = {**asdict(self.metadata), "tags": sorted(self.metadata.tags)}
        return {
            "name": self.name,
            "description": self.description,
            "parameters": thawed(self._compiled.schema),
            "namespace": self.namespace,
            "method_name": self.method_name,
            "metadata": {**metadata, "custom_tags": sorted(self.metadata.custom_tags)},
        }

    def validate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments checked, coerced and with defaults filled in.

        Raises ToolParameterError.
        """
        return self._compiled.values(self._without_reason(params))

    def validate_json(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments like `validate`, as exact JSON values. Raises ToolParameterError.

        A policy reads them in this form.
        """
        return self.check(params).json

    def validate_record(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments like `validate_json`, as a pending action stores them.

        They are read again at the yes, and have the same values then. Raises ToolParameterError.
        """
        return self._compiled.read_record(self._without_reason(params))

    def check(self, params: Mapping[str, Any]) -> ValidatedArguments:
        """Return the checked arguments for one `ainvoke`, which then does not check them again.

        Raises ToolParameterError.
        """
        return self._compiled.check(self._without_reason(params))

    def run_raw(
        self, parameters: Mapping[str, Any], chunk_callback: ChunkCallback | None = None
    ) -> Any:
        """Run the tool from sync code, in this thread, and return its own value.

        `chunk_callback` receives the pieces of a result that comes in pieces. Raises
        ToolParameterError, and what the tool raises.
        """
        if self.is_async or self.metadata.timeout is not None:
            return run_sync(self.arun_raw(parameters, chunk_callback))
        with ArtifactsOfCall(), self._declared(), self._hidden_arguments.opened() as injected:
            value = self._own_function()(**self._arguments(parameters, injected))
            if type(value) is str:  # as most are: no chunks and nothing to await
                return value
            value = join_chunks(value, chunk_callback)
            if is_async_value(value):
                return run_sync(await_value(value, chunk_callback))
            return value

    async def arun_raw(
        self,
        parameters: Mapping[str, Any],
        chunk_callback: ChunkCallback | None = None,
        *,
        checked: ValidatedArguments | None = None,
    ) -> Any:
        """Run the tool and return its own value.

        A sync function runs in a thread, with a copy of the context variables. `chunk_callback`
        receives the pieces of a result that comes in pieces. `checked` is the result of `check`
        with these parameters, for this call alone. Raises ToolParameterError, EffectUnknownError
        after the tool's own `timeout`, and what the tool raises.
        """
        seconds = self.metadata.timeout
        if seconds is None:
            with self._declared():
                return await self._value(parameters, checked, chunk_callback, call_in_caller_thread)
        try:
            async with execution_timeout(seconds) as limit:
                with self._declared():
                    return await self._value(
                        parameters, checked, chunk_callback, call_in_tool_thread
                    )
        except TimeoutError as exc:
            if not limit.expired():
                raise  # the tool's own
            raise EffectUnknownError(
                f"tool {self.name!r} timed out: it gave no result within {seconds:g} seconds; it may still be running",
                tool_name=self.name,
                error=exc,
                params=parameters,
            ) from exc

    def _declared(self) -> AbstractContextManager[Any]:
        """Tell `stash_pending` which tool calls it, and what the tool declares."""
        return running_tool(
            RunningTool(
                self.name,
                read_only=self.read_only,
                proposes=self.proposes,
                marks_effect=self.marks_effect,
                digest=lambda: self.definition_digest,
            )
        )

    async def _value(
        self,
        parameters: Mapping[str, Any],
        checked: ValidatedArguments | None,
        chunk_callback: ChunkCallback | None,
        thread: InThread,
    ) -> Any:
        """Call the function and await its value.

        It is called by `thread`, or in the event loop where neither it nor an injector can block.
        """

        def call(injected: Mapping[str, Any] = self.injected_kwargs) -> Any:
            arguments = self._arguments(parameters, injected, checked)
            return join_chunks(self._own_function()(**arguments), chunk_callback)

        with ArtifactsOfCall():
            if self.config_injector is not None:
                return await self._with_injector(call, thread, chunk_callback)
            value = call() if self._returns_awaitable else await thread(call)
            return await await_value(value, chunk_callback)

    async def _with_injector(
        self,
        call: Callable[[Mapping[str, Any]], Any],
        thread: InThread = call_in_tool_thread,
        chunk_callback: ChunkCallback | None = None,
    ) -> Any:
        """Return the awaited value of a call that gets the values of the `config_injector`.

        An injector may be a context manager, such as a database connection. It is opened and closed
        by `thread`, since both may block, and stays open until the value is there.
        """
        still_open = ExitStack()

        def begin() -> Any:
            with ExitStack() as stack:
                injected = stack.enter_context(self._hidden_arguments.opened())
                value = call(injected)
                if is_async_value(value):  # the function goes on: what is open stays open
                    still_open.push(stack.pop_all())
                return value

        value = await thread(begin)
        if not is_async_value(value):
            return value
        try:
            return await await_value(value, chunk_callback)
        finally:
            error = sys.exc_info()
            await thread(lambda: still_open.__exit__(*error))

    def run(self, parameters: Mapping[str, Any]) -> Any:
        """Run the tool like `run_raw`, but return an error as text, with a DeprecationWarning."""
        try:
            return self.run_raw(parameters)
        except (Exception, *FATAL_ERRORS) as exc:  # any error: that is documented
            return self._error_text(exc)

    async def arun(self, parameters: Mapping[str, Any]) -> Any:
        """Run the tool like `arun_raw`, but return an error as text, with a DeprecationWarning."""
        try:
            return await self.arun_raw(parameters)
        except Exception as exc:  # any error: that is documented
            return self._error_text(exc)

    def _error_text(self, error: BaseException) -> str:
        advice = (
            f"run() of {self.name!r} returned an error as text; use run_raw() to have it raised"
        )
        warnings.warn(advice, DeprecationWarning, stacklevel=3)
        return f"Error executing {self.name}: {error_text(error)}"

    async def ainvoke(
        self,
        params: Mapping[str, Any],
        chunk_callback: ChunkCallback | None = None,
        *,
        checked: ValidatedArguments | None = None,
    ) -> Any:
        """Run the tool like `arun_raw`, and return its own value.

        Raises ToolParameterError for its arguments, ToolExecutionError for any error of its code,
        and other ToolErrors as the tool raises them: their texts are for the model.
        """
        try:
            return await self.arun_raw(params, chunk_callback, checked=checked)
        except Exception as exc:
            readable = readable_error(exc, self.name, params)
            if readable is exc:
                raise
            raise readable from exc

    async def aexecute(
        self, params: Mapping[str, Any], chunk_callback: ChunkCallback | None = None
    ) -> str:
        """Run the tool and return its result as the model sees it. Raises like `ainvoke`."""
        return serialize(await self.ainvoke(params, chunk_callback))

    def execute(
        self, params: Mapping[str, Any], chunk_callback: ChunkCallback | None = None
    ) -> str:
        """Run `aexecute` from sync code. A sync tool runs in the calling thread."""
        try:
            return serialize(self.run_raw(params, chunk_callback))
        except Exception as exc:
            readable = readable_error(exc, self.name, params)
            if readable is exc:
                raise
            raise readable from exc
        except FATAL_ERRORS as exc:
            raise ToolExecutionError(tool_name=self.name, error=exc, params=params) from exc

    async def aundo_raw(self, params: Mapping[str, Any], result: str = "") -> Any:
        """Undo the effect of a run with these arguments that returned `result`.

        Return the undo's own value. Raises like `ainvoke`.
        """
        if self.undo is None:
            raise ToolExecutionError(f"tool {self.name!r} cannot be undone", tool_name=self.name)
        undo = self.undo

        def call(injected: Mapping[str, Any] = self.injected_kwargs) -> Awaitable[Any]:
            return call_undo(undo, {**self._arguments(params, injected), "result": result})

        try:
            if self.config_injector is None:
                return await call()
            return await self._with_injector(call)
        except Exception as exc:
            readable = readable_error(exc, self.name, params)
            if readable is exc:
                raise
            if isinstance(readable, EffectUnknownError):
                raise readable from exc
            raise ToolExecutionError(
                f"undo of {self.name!r} failed: {type(exc).__name__}: {error_text(exc)}",
                tool_name=self.name,
                error=exc,
                params=params,
            ) from exc

    def propose(self, params: Mapping[str, Any], *, reason: str = "") -> ToolResult:
        """Ask the user of the current channel run to confirm the call. Run nothing.

        `reason` is why they are asked, for them to read; "" for none. Returns the
        PendingConfirmation, or another result when there is nothing to propose. Raises
        ToolExecutionError when no user could answer, and PreviewError when the preview fails.
        """
        draft = self.draft(params)
        return draft.propose(reason, self.edit_fields(self.editable, draft.args))

    def edit_fields(
        self, names: Sequence[str], args: Mapping[str, Any]
    ) -> tuple[dict[str, Any], ...]:
        """Return the fields of the form for these arguments of a call, ready for a record.

        `names` are the arguments that the person may change; without any the form is empty. See
        `sayso.agent.tools.edits`. The schema must be loaded if the tool has an injector.
        """
        if not names:
            return ()
        return edits.edit_fields(self.schema()["parameters"], names, args)

    def draft(self, params: Mapping[str, Any]) -> ProposalDraft:
        """Return what `propose` would ask, without asking: the arguments and their preview.

        A preview refuses by returning a ToolResult such as NotFound, or by raising a ToolError,
        whose words become a PreviewRefused. Raises ToolParameterError and PreviewError.
        """
        args = self._in_stored_order(self.validate_record(params))
        values = self.validate(args)
        optional = {
            each.name for each in self.parameters if not each.required and each.default is None
        }
        try:
            shown = preview_text(self.name, self.preview, values, optional)
            draft = ProposalDraft(self, args, shown, self.definition_digest)
            _ = draft.values_digest  # values that JSON cannot express fail here
            if isinstance(shown, ToolResult):
                shown.to_json()
        except (Exception, *FATAL_ERRORS) as exc:
            words = ""
            if isinstance(exc, ToolError):
                words = own_words(exc)
            if not words.strip():
                raise PreviewError(tool_name=self.name, error=exc) from exc
            refused = PreviewRefused(message=shorten(words, MAX_REFUSAL_CHARS))
            draft = ProposalDraft(self, args, refused, self.definition_digest)
        return draft

    def _in_stored_order(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in the order of the parameters, and the keys in them by alphabet.

        A record is stored with its keys by alphabet. If a preview showed the order in which a model
        wrote them, the preview that is made from the record at the yes would be another one.
        """
        stored: dict[str, Any] = json.loads(encode_canonical(args))
        names = [each.name for each in self.parameters if each.name in stored]
        return {name: stored[name] for name in dict.fromkeys([*names, *stored])}

    @functools.cached_property
    def definition_digest(self) -> str:
        """The digest of what a yes relies on, besides the arguments and the text of the preview.

        A changed description, schema, preview template or version makes it another tool; another
        order or other white space in them does not. The code is not in it: each deployment would
        end all open questions, and `version` is for a change that neither the schema nor the
        preview shows.
        """
        template = None
        if isinstance(self.preview, str):
            template = self.preview
        parts = {
            "version": self.version,
            "description": self.description,
            "parameters": thawed(self._compiled.schema),
            "preview": template,
        }
        return definition_digest(parts)

    @functools.cached_property
    def _compiled(self) -> TypedArguments | SchemaArguments:
        if self.input_schema is not None:
            return SchemaArguments(self.name, self.input_schema)
        hidden = self._hidden_arguments.names()
        if self.config_injector is not None:
            self._check_preview()
        return TypedArguments(
            self.name, [each for each in self.parameters if each.name not in hidden]
        )

    def _check_preview(self) -> None:
        """Raise ToolValidationError for a preview that cannot be made of what a model fills.

        Called again once the injector has told what it fills.
        """
        visible = [each.name for each in self.parameters if each.name not in self.hidden_names]
        is_complete = self._hidden_arguments.is_complete
        check_preview(self.name, self.preview, visible, self.hidden_names, takes_all=is_complete)

    def _check_editable(self) -> None:
        """Raise ToolValidationError for editable arguments that no person could fill in.

        With an injector the schema is known later. Then the form leaves out what does not fit.
        """
        names = [each.name for each in self.parameters if each.name not in self.hidden_names]
        unknown = sorted(set(self.editable) - set(names))
        if unknown:
            raise self._undefinable(
                f"editable names {unknown!r}; a model fills {sorted(names)!r}", unknown
            )
        if self.config_injector is not None or not self.editable:
            return
        fillable = {entry["name"] for entry in self.edit_fields(self.editable, {})}
        unfillable = [name for name in self.editable if name not in fillable]
        if unfillable:
            cure = "a form takes text, numbers, yes or no, choices, dates, times and lists of text"
            raise self._undefinable(f"editable {unfillable!r} fit in no form: {cure}", unfillable)

    @functools.cached_property
    def _returns_awaitable(self) -> bool:
        """Whether calling the function never blocks, whatever `is_async` claims."""
        return returns_awaitable(self.function)

    @functools.cached_property
    def _context_parameters(self) -> tuple[str, ...]:
        """The function's parameters that are filled with the ToolContext."""
        return context_parameters(self.function)

    @functools.cached_property
    def _hidden_arguments(self) -> HiddenArguments:
        # With an injector, a parameter that no model could fill is one that it must fill.
        unfillable: list[str] = []
        if self.config_injector:
            for each in self.parameters:
                if each.name in self.injected_kwargs:
                    continue
                try:
                    TypedArguments("parameter", [each])
                except ToolValidationError:
                    unfillable.append(each.name)
        return HiddenArguments(self.name, self.injected_kwargs, self.config_injector, unfillable)

    @functools.cached_property
    def _schema(self) -> FrozenDict:
        parameters = self._compiled.schema
        if self.metadata.think_augment:
            parameters = with_reason(parameters)
        schema: FrozenDict = frozen(
            {"name": self.name, "description": self.description, "parameters": parameters}
        )
        return schema

    def _without_reason(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments without the reason for the call, which some models send unasked.

        A parameter of the tool that has the name of the reason stays.
        """
        if not isinstance(params, Mapping) or REASON not in params:
            return params
        own_names = {
            *self._compiled.schema.get("properties", {}),
            *(each.name for each in self.parameters),
        }
        if REASON in own_names:
            return params
        return {name: value for name, value in params.items() if name != REASON}

    def _arguments(
        self,
        params: Mapping[str, Any],
        injected: Mapping[str, Any],
        checked: ValidatedArguments | None = None,
    ) -> dict[str, Any]:
        """Return the function's keyword arguments: from the model, injected, and the ToolContext.

        An injector may inject a name that models have filled until now; such a call is refused.
        """
        given = self._without_reason(params)
        context = {}
        if self._context_parameters:
            context = dict.fromkeys(self._context_parameters, current_context())

        if self.config_injector is None and not self.injected_kwargs:
            if checked:
                values = checked.values
            else:
                values = self._compiled.values(given)
            return {**values, **context} if context else values

        names = given if isinstance(given, Mapping) else {}
        shadowed = [name for name in self._newly_hidden(injected) if name in names]
        if shadowed:
            raise ToolExecutionError(
                f"{shadowed!r} of {self.name!r} is injected by now, and the model fills it: inject it always, or never",
                tool_name=self.name,
            )

        # Only now: what is newly hidden is no part of the schema any more.
        values = {**self._compiled.values(given), **injected}
        missing = [
            each.name for each in self.parameters if each.required and each.name not in values
        ]
        if missing:
            raise ToolExecutionError(
                f"the config_injector of {self.name!r} did not return {missing!r}, which no model fills: "
                "return all of them at each call",
                tool_name=self.name,
            )
        return {**values, **context}

    def _newly_hidden(self, injected: Mapping[str, Any]) -> list[str]:
        """Return the injected names that models have seen so far, and hide them from now on.

        A tool that is defined by a JSON Schema keeps it: all injected names are returned.
        """
        if self.input_schema is not None:
            return list(injected)
        newly_hidden = sorted(injected.keys() & self._compiled.schema["properties"].keys())
        if newly_hidden:
            for name in ("_compiled", "_schema", "definition_digest"):
                self.__dict__.pop(name, None)
        return newly_hidden

    def _own_function(self) -> Callable[..., Any]:
        """Return the function. Raises ToolExecutionError for a mere description."""
        if self.function is None:
            raise ToolExecutionError(
                f"{self.name!r} is only a description: have its provider run it, or give it a function",
                tool_name=self.name,
            )
        return self.function


def _existing_tool(function: Any, *, has_options: bool) -> Tool | None:
    """Return the tool that a function is already; None for a function without a tool behind it.

    Raises ToolValidationError for a tool with other options, and for a decorator or a partial above
    a tool. A tool made of that would have lost the options of the first, such as
    `requires_approval`.
    """
    existing = _tool_behind(function)
    if existing is None:
        return None
    # Since Python 3.13 a method under @classmethod and @tool is a bound method of the tool.
    if isinstance(function, MethodType) and function.__func__ is existing:
        existing = existing.__get__(function.__self__)
        function = existing

    issue = ""
    if function is not existing:
        issue = "is wrapped by a decorator or a partial: put @tool above that, around the function"
    elif has_options:
        issue = (
            "is a tool already: give all options to its @tool, "
            "or make another tool of it with dataclasses.replace(tool, name=...)"
        )
    if issue:
        problem = f"{existing.name!r} {issue}"
        raise ToolValidationError(problem, tool_name=existing.name, issue=issue)
    return existing


def _tool_behind(function: Any) -> Tool | None:
    """Return the tool behind decorators, partials and bound methods; None where there is none."""
    for _ in range(MAX_WRAPPERS):
        if isinstance(function, Tool):
            return function
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType):
            function = function.__func__
        else:
            function = getattr(function, "__dict__", {}).get("__wrapped__")
    return None


_AS_DUMPED = core_schema.plain_serializer_function_ser_schema(Tool.model_dump)
#: Without this, pydantic would serialize a tool in an untyped field as a dataclass,
#: with its injected values.
Tool.__pydantic_serializer__ = SchemaSerializer(core_schema.any_schema(serialization=_AS_DUMPED))


@overload
def tool(function: Callable[FunctionP, FunctionR], /) -> Tool[FunctionP, FunctionR]: ...


@overload
def tool(
    **options: Unpack[ToolOptions],
) -> Callable[[Callable[FunctionP, FunctionR]], Tool[FunctionP, FunctionR]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a Tool of a function. Works bare and with options; ToolDefinition explains them.

    The tool keeps the types of the function: `find(3)` is checked and has its result, as before.
    """
    if function is not None:
        return Tool.from_function(function)
    return lambda decorated: Tool.from_function(decorated, **options)
