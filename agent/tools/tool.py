"""Tool, decorator."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import InitVar, asdict, dataclass, field, replace
from types import GenericAlias, MethodType
from typing import Any, ClassVar, Literal, Self, overload

from pydantic import BaseModel
from pydantic_core import CoreSchema, SchemaSerializer, core_schema

from sayso.agent.tools.arguments import Checked, TypedArguments
from sayso.agent.tools.context import ArtifactsOfCall, HiddenArguments, InjectedArguments, Injector
from sayso.agent.tools.definition import (
    UNDO_SECONDS,
    ToolMetadata,
    ToolTag,
    Undo,
    base_name,
    call_undo,
    check_definition,
    check_kinds,
    in_words,
    names_stash_pending,
    namespaced,
    normalise_namespace,
)
from sayso.agent.tools.errors import FATAL_ERRORS, ToolError, ToolExecutionError, ToolValidationError
from sayso.agent.tools.parameter import ToolParameter, as_parameters
from sayso.agent.tools.preview import REASON, Preview, ProposalDraft, preview_words, with_reason, without_reason
from sayso.agent.tools.results import ChunkCallback, awaited, finished, is_async_value, serialise, truncate
from sayso.agent.tools.schema.json_schema import FrozenDict, frozen, thawed
from sayso.agent.tools.schema.vendors import ApiFormat, vendor_schema
from sayso.agent.tools.schema_arguments import SchemaArguments, is_json_schema
from sayso.agent.tools.screening import marked, suspicions
from sayso.agent.tools.signature import describe, infer_parameters, is_method, name_of, with_own_defaults
from sayso.pending.concurrency import in_lent_thread, in_thread, offload, run_sync, within
from sayso.pending.context import context_parameters
from sayso.pending.executors import Reconciler, ToolResult
from sayso.pending.proposals import current_context, running_tool


@dataclass(frozen=True, eq=False)
class Tool:
    """A function a model may call. Lives as long as the program and never changes.

    `parameters` are ToolParameters, in a list or by name, or one JSON Schema of an object; read back they are always a
    tuple of ToolParameters. `callable` is another name of `function`; without any the tool is a description, which its
    provider runs.

    `injected_kwargs` and what `config_injector()` returns reach the function without the model ever seeing them.
    `requires_approval` tools are proposed to the user in the words of `preview` and run after the yes;
    `idempotent` promises that running twice with the same arguments does no harm; `pending.idempotency_key()` names the
    effect, the same at each repetition. `read_only` promises that it changes nothing: interrupted, it is run again.
    `proposes` declares that its code may ask for a yes with `stash_pending`: `sayso check` says so. Left out, it is
    whether the function itself names `stash_pending`.
    `typed_code` asks for a code to be typed with the yes. `reconcile(record)` is asked how a run ended that was
    interrupted: True or words for the user when it took effect, False when it certainly did not, None when nobody can
    tell. `undo` takes the effect back, for `undo_seconds` after the reply; it is called with the tool's arguments, and
    with `result` if it has such a parameter. Change `version` when a call that was previewed before must not run any
    more. The result of a `cacheable` tool may be given again for `cache_ttl` seconds.
    """

    name: str
    description: str = ""
    parameters: Any = ()
    function: Callable[..., Any] | None = field(default=None, repr=False)
    streaming: bool = False
    screen_output: bool = False
    terminal: bool = False
    requires_approval: bool = False
    config_injector: Injector | None = field(default=None, repr=False)
    injected_kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    idempotent: bool = False
    preview: Preview | None = field(default=None, repr=False)
    undo: Undo | None = field(default=None, repr=False)
    undo_seconds: float = UNDO_SECONDS
    reconcile: Reconciler | None = field(default=None, repr=False)
    typed_code: bool = False
    version: str = ""
    read_only: bool = False
    cacheable: bool = False
    cache_ttl: float = 300
    namespace: str | None = None
    method_name: str | None = None
    metadata: ToolMetadata = field(default_factory=ToolMetadata)
    is_async: bool | None = None
    callable: Callable[..., Any] | None = field(default=None, repr=False)
    input_schema: Mapping[str, Any] | None = field(default=None, repr=False)
    proposes: bool | None = None

    _copied: InitVar[Tool | None] = None

    __pydantic_serializer__: ClassVar[SchemaSerializer]

    def __post_init__(self, _copied: Tool | None) -> None:
        """`_copied` is the tool that `dataclasses.replace` makes this one from."""
        check_kinds(self)
        self._settle_twins(_copied)
        function = self.function
        self._set(
            _copied=self, injected_kwargs=InjectedArguments(self.injected_kwargs), is_async=self._is_async(function)
        )
        tags = self.metadata.tags | ({ToolTag.READ_ONLY} if self.read_only else frozenset())
        self._set(metadata=replace(self.metadata, is_async=bool(self.is_async), tags=tags))
        self._set(read_only=ToolTag.READ_ONLY in tags)
        self._set(proposes=names_stash_pending(function) if self.proposes is None else self.proposes)
        if is_json_schema(self.parameters):
            self._set(input_schema=_kept(self.name, self.parameters), parameters=())
        self._set(parameters=with_own_defaults(as_parameters(self.name, self.parameters), function))
        if self.input_schema is not None:
            self._set(parameters=as_parameters(self.name, SchemaArguments(self.name, self.input_schema).parameters))
        check_definition(self)
        if self.config_injector is None:
            self._compiled  # noqa: B018  # a hint no model can fill shows up here, at import, and not before a user
        self._injection  # noqa: B018  # and here what only the injector can fill

    def _settle_twins(self, copied: Tool | None) -> None:
        """What can be said in two ways: in a copy, the way that differs from its original counts."""
        if copied is None:
            return self._set(function=self.function or self.callable, callable=self.function or self.callable)
        function = self.function if self.callable is copied.callable else self.callable
        metadata = self.metadata
        if function is not copied.function and self.is_async is copied.is_async:
            self._set(is_async=None)  # which was its original's
            metadata = replace(metadata, is_async=False)
        if copied.read_only and not self.read_only:
            metadata = replace(metadata, tags=metadata.tags - {ToolTag.READ_ONLY})
        if self.parameters is not copied.parameters and self.input_schema is copied.input_schema:
            self._set(input_schema=None)
        return self._set(function=function, callable=function, metadata=metadata)

    def __class_getitem__(cls, item: Any) -> GenericAlias:
        """`Tool[Any]`, as type hints have it (seed: ToolSelector protocol)."""
        return GenericAlias(cls, item)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it had never been decorated."""
        return self._own_function()(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        """A decorated method, taken from an instance, is a tool that belongs to it."""
        if instance is None or not is_method(self.function):
            return self
        bound = MethodType(self._own_function(), instance)
        return replace(self, function=bound, callable=bound)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"tool {self.name!r} cannot be pickled: it is code; keep its name, and look it up")

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: Any) -> CoreSchema:
        """In a model, and in whatever else pydantic writes down, a tool is what `model_dump` says."""
        return core_schema.is_instance_schema(cls, serialization=_AS_DUMPED)

    @classmethod
    def from_function(
        cls,
        func: Callable[..., Any],
        name: str | None = None,
        description: str | None = None,
        namespace: str | None = None,
        method_name: str | None = None,
        metadata: ToolMetadata | None = None,
        *,
        param_metadata: Mapping[str, Mapping[str, Any]] | None = None,
        injected_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Tool:
        """The Tool of a function; what is not given comes from its signature and docstring (seed: Tool).

        With a `namespace` it is called `{namespace}-{method_name}`. `options` are the other arguments of Tool. Raises
        ValueError for a lambda without a name, ToolValidationError for what cannot be a tool.
        """
        if name_of(func) == "<lambda>" and not (name or method_name):
            raise ValueError("a lambda has no name: give the tool one with name=")
        documented, described = describe(func)
        base = method_name or name or name_of(func)
        injected = injected_kwargs or {}
        made = cls(
            name=name or base,
            description=description or documented or in_words(base),
            parameters=infer_parameters(func, param_metadata or {}, described, injected),
            function=func,
            injected_kwargs=injected,
            metadata=metadata or ToolMetadata(),
            method_name=method_name,
            **options,
        )
        return made.update_namespace(namespace, force=True)

    @property
    def qualified_name(self) -> str:
        """`{namespace}-{method_name}` where it has both, else its name."""
        return f"{self.namespace}-{self.method_name}" if self.namespace and self.method_name else self.name

    @property
    def repeatable(self) -> bool:
        """Whether a call that was interrupted may be made again."""
        return self.idempotent or self.read_only

    @property
    def takes_hidden_arguments(self) -> bool:
        """Whether the function is given anything that no model sends: injected values or a ToolContext."""
        return bool(self.injected_kwargs or self.config_injector is not None or self._context)

    @property
    def knows_its_schema(self) -> bool:
        """Whether the schema can be read without asking the `config_injector`, which may block."""
        return self.config_injector is None or "_compiled" in self.__dict__

    @property
    def parameters_model(self) -> type[BaseModel] | None:
        """The pydantic model that arguments are checked by; None for a tool that was given a JSON Schema."""
        compiled = self._compiled
        return compiled.model if isinstance(compiled, TypedArguments) else None

    def update_namespace(self, namespace: str | None, force: bool = False, sep: Literal["-", "."] = "-") -> Tool:
        """The same tool in a namespace: `{namespace}{sep}{method_name}`.

        A name that has a namespace already keeps it, unless `force`. The seed renames in place; a Tool never changes,
        so this returns another one.
        """
        if not namespace:
            return self
        existing, base = base_name(self.name, self.namespace, self.method_name)
        kept = normalise_namespace(namespace if force or not existing else existing)
        return replace(self, name=namespaced(kept, base, sep), namespace=kept, method_name=base)

    def schema(self) -> dict[str, Any]:
        """Name, description and JSON schema of the parameters, as a model reads them. Nobody can change it."""
        return self._schema

    def get_schema(
        self, api_format: ApiFormat = "openai-chat", *, strict: bool = False, _think_augment: bool | None = None
    ) -> dict[str, Any]:
        """The definition as that vendor's API takes it (seed: Tool). See `vendor_schema` for `strict` and errors."""
        augment = self._augments if _think_augment is None else _think_augment
        parameters = with_reason(self._compiled.schema) if augment else self._compiled.schema
        return vendor_schema(self.name, self.description, parameters, api_format, strict=strict)

    def describe(self, api_format: ApiFormat = "openai-chat") -> dict[str, Any]:
        """`get_schema`, with a DeprecationWarning (seed: Tool)."""
        return self._renamed("describe", api_format)

    def get_json_schema(self, api_format: ApiFormat = "openai-chat") -> dict[str, Any]:
        """`get_schema`, with a DeprecationWarning (seed: Tool)."""
        return self._renamed("get_json_schema", api_format)

    def model_dump(self) -> dict[str, Any]:
        """The tool as JSON-ready data: what it is, never its code nor what is injected into it (seed: `callable`)."""
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
        """The arguments, checked, coerced and with defaults filled in. Raises ToolParameterError."""
        return self._compiled.read(self._without_reason(params))

    def validate_json(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """As `validate`, but as exact JSON values: what a policy reads and a pending action stores."""
        return self._compiled.read_json(self._without_reason(params))

    def check(self, params: Mapping[str, Any]) -> Checked:
        """As `validate`, for one call with `ainvoke`: it is not checked again. Raises ToolParameterError."""
        return self._compiled.check(self._without_reason(params))

    def validate_record(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """As `validate_json`, for a later run: what reads as the very same again. Raises ToolParameterError."""
        return self._compiled.read_record(self._without_reason(params))

    def run_raw(self, parameters: Mapping[str, Any], chunk_callback: ChunkCallback | None = None) -> Any:
        """Run the tool from sync code and return its own value (seed: Tool). Raises what the tool raises."""
        if self.is_async or self.metadata.timeout is not None:
            return run_sync(self.arun_raw(parameters, chunk_callback))
        with ArtifactsOfCall(), self._declared(), self._injection.opened() as injected:
            value = self._own_function()(**self._arguments(parameters, injected))
            if type(value) is str:
                return value
            value = finished(value, chunk_callback)
            return run_sync(awaited(value, chunk_callback)) if is_async_value(value) else value

    async def arun_raw(
        self,
        parameters: Mapping[str, Any],
        chunk_callback: ChunkCallback | None = None,
        *,
        checked: Checked | None = None,
    ) -> Any:
        """Run the tool and return its own value; a sync one in a thread, with a copy of this context. `checked` is what
        `check` made of the parameters, for this call alone.

        Raises ToolParameterError, ToolExecutionError after the tool's own `timeout`, and what the tool raises.
        """
        seconds = self.metadata.timeout
        if seconds is None:
            with self._declared():
                return await self._value(parameters, checked, chunk_callback, in_lent_thread)
        limit = within(seconds)
        try:
            async with limit:
                with self._declared():
                    return await self._value(parameters, checked, chunk_callback, in_thread)
        except TimeoutError as exc:
            if not limit.expired:
                raise  # the tool's own
            raise ToolExecutionError(
                f"tool {self.name!r} timed out: it gave no result within {seconds:g} seconds; it may still be running",
                tool_name=self.name, error=exc, params=parameters,
            ) from exc  # fmt: skip

    async def _value(
        self,
        parameters: Mapping[str, Any],
        checked: Checked | None,
        chunk_callback: ChunkCallback | None,
        thread: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> Any:
        function = self._own_function()
        if self.config_injector is not None:
            return await self._value_with_injector(function, parameters, chunk_callback, thread)
        kwargs = self._arguments(parameters, self.injected_kwargs, checked)
        with ArtifactsOfCall():
            if returns_awaitable(function):
                value = function(**kwargs)
            else:  # also where `is_async` is claimed: a plain function might block the event loop
                value = await thread(lambda: finished(function(**kwargs), chunk_callback))
            return await awaited(value, chunk_callback) if is_async_value(value) else value

    async def _value_with_injector(
        self,
        function: Callable[..., Any],
        parameters: Mapping[str, Any],
        chunk_callback: ChunkCallback | None,
        thread: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> Any:
        """Ask the injector in the thread that runs the tool, an async tool's in a thread too, and close it after."""
        left_open, is_async = ExitStack(), returns_awaitable(function)

        def begin() -> Any:
            with ExitStack() as stack:
                injected = stack.enter_context(self._injection.opened())
                kwargs = self._arguments(parameters, injected)
                value = kwargs if is_async else finished(function(**kwargs), chunk_callback)
                if is_async or is_async_value(value):
                    left_open.push(stack.pop_all())
                return value

        with ArtifactsOfCall():
            value = await thread(begin)
            try:
                if is_async:
                    value = function(**value)
                return await awaited(value, chunk_callback) if is_async_value(value) else value
            finally:
                if is_async or is_async_value(value):
                    error = sys.exc_info()
                    await thread(lambda: left_open.__exit__(*error))

    def _declared(self) -> AbstractContextManager[Any]:
        """What `stash_pending` must know of the tool that calls it."""
        return running_tool(self.name, read_only=self.read_only, proposes=bool(self.proposes))

    def run(self, parameters: Mapping[str, Any]) -> Any:
        """As `run_raw`, but an error is returned as text, with a DeprecationWarning (seed: Tool)."""
        try:
            return self.run_raw(parameters)
        except (Exception, *FATAL_ERRORS) as exc:  # noqa: BLE001  # this is what the seed promises
            return self._told(exc)

    async def arun(self, parameters: Mapping[str, Any]) -> Any:
        """As `arun_raw`, but an error is returned as text, with a DeprecationWarning (seed: Tool)."""
        try:
            return await self.arun_raw(parameters)
        except Exception as exc:  # noqa: BLE001  # this is what the seed promises
            return self._told(exc)

    async def ainvoke(
        self,
        params: Mapping[str, Any],
        chunk_callback: ChunkCallback | None = None,
        *,
        checked: Checked | None = None,
    ) -> Any:
        """As `arun_raw`. Raises ToolParameterError or ToolExecutionError."""
        try:
            return await self.arun_raw(params, chunk_callback, checked=checked)
        except ToolError:
            raise
        except Exception as exc:
            raise ToolExecutionError(tool_name=self.name, error=exc, params=params) from exc

    async def aexecute(self, params: Mapping[str, Any], chunk_callback: ChunkCallback | None = None) -> str:
        """Run the tool and return its result as the model sees it."""
        return serialise(await self.ainvoke(params, chunk_callback))

    def execute(self, params: Mapping[str, Any], chunk_callback: ChunkCallback | None = None) -> str:
        """`aexecute` for sync code. A sync tool runs right here."""
        try:
            return serialise(self.run_raw(params, chunk_callback))
        except ToolError:
            raise
        except (Exception, *FATAL_ERRORS) as exc:
            raise ToolExecutionError(tool_name=self.name, error=exc, params=params) from exc

    async def aundo(self, params: Mapping[str, Any], result: str = "") -> str:
        """As `aundo_raw`; returns the text that a model would see."""
        return serialise(await self.aundo_raw(params, result))

    async def aundo_raw(self, params: Mapping[str, Any], result: str = "") -> Any:
        """Take back the effect of a run with these arguments, which returned `result`, and return the undo's own value.

        Raises like `ainvoke`.
        """
        if self.undo is None:
            raise ToolExecutionError(f"tool {self.name!r} cannot be undone", tool_name=self.name)
        try:
            return await self._undone(params, result)
        except ToolError:
            raise
        except Exception as exc:
            raise ToolExecutionError(
                f"undo of {self.name!r} failed: {type(exc).__name__}: {exc}",
                tool_name=self.name,
                error=exc,
                params=params,
            ) from exc

    async def _undone(self, params: Mapping[str, Any], result: str) -> Any:
        """Call the undo while what the injector opened is open; an injector is asked in a thread."""
        if self.undo is None or self.config_injector is None:
            given = {**self._arguments(params, self.injected_kwargs), "result": result}
            return await call_undo(self.undo, given)  # type: ignore[arg-type]  # `aundo` has looked
        opened = self._injection.opened()
        injected = await in_thread(opened.__enter__)
        try:
            return await call_undo(self.undo, {**self._arguments(params, injected), "result": result})
        finally:
            error = sys.exc_info()
            await in_thread(lambda: opened.__exit__(*error))

    def propose(self, params: Mapping[str, Any], *, reason: str = "") -> ToolResult:
        """Ask the user of the current channel run for a yes instead of acting; `reason` is why it has to be asked.

        Returns the PendingConfirmation, or another result when there is nothing to propose. Raises
        ToolExecutionError when no user could answer, or when the preview fails.
        """
        return self.draft(params).propose(reason)

    def draft(self, params: Mapping[str, Any]) -> ProposalDraft:
        """What `propose` would ask for, without asking. Raises ToolParameterError, ToolExecutionError."""
        args = self.validate_record(params)
        return ProposalDraft(self, args, self._preview(self.validate(args)))

    @functools.cached_property
    def _compiled(self) -> TypedArguments | SchemaArguments:
        if self.input_schema is not None:
            return SchemaArguments(self.name, self.input_schema)
        hidden = self._injection.names()
        return TypedArguments(self.name, [each for each in self.parameters if each.name not in hidden])

    @functools.cached_property
    def _context(self) -> tuple[str, ...]:
        """The function's parameters that are handed the ToolContext."""
        return context_parameters(self.function)

    @functools.cached_property
    def _injection(self) -> HiddenArguments:
        left = [each for each in self.parameters if each.name not in self.injected_kwargs]
        unfillable = [each.name for each in left if self.config_injector and not _is_fillable(each)]
        return HiddenArguments(self.name, self.injected_kwargs, self.config_injector, unfillable)

    @functools.cached_property
    def _schema(self) -> FrozenDict:
        parameters = with_reason(self._compiled.schema) if self._augments else self._compiled.schema
        whole: FrozenDict = frozen({"name": self.name, "description": self.description, "parameters": parameters})
        return whole

    @functools.cached_property
    def _augments(self) -> bool:
        return bool(self.metadata.think_augment) and REASON not in self._compiled.schema["properties"]

    def _without_reason(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments without the reason for the call, which a model may also send unasked."""
        is_own = REASON in self._compiled.schema.get("properties", {})
        return params if is_own else without_reason(params, self.parameters)

    def _arguments(
        self, params: Mapping[str, Any], injected: Mapping[str, Any], checked: Checked | None = None
    ) -> dict[str, Any]:
        """What the function is called with. What is injected may change the parameters after they were checked."""
        given = self._without_reason(params)
        context = dict.fromkeys(self._context, current_context()) if self._context else {}
        if self.config_injector is None and not self.injected_kwargs:
            values = self._compiled.read(given) if checked is None else checked.values
            return {**values, **context} if context else values
        if shadowed := [name for name in self._late(injected) if isinstance(given, Mapping) and name in given]:
            raise ToolExecutionError(
                f"{shadowed!r} of {self.name!r} is injected by now, and the model fills it: inject it always, or never",
                tool_name=self.name,
            )
        args = self._compiled.read(given)
        whole = {**args, **injected}
        lacking = [each.name for each in self.parameters if each.required and each.name not in whole]
        if lacking:
            raise ToolExecutionError(
                f"the config_injector of {self.name!r} did not return {lacking!r}, which no model fills: "
                "return all of them at each call",
                tool_name=self.name,
            )
        return {**whole, **context}

    def _late(self, injected: Mapping[str, Any]) -> list[str]:
        """What is injected although models were shown it, and shall not be any more. A JSON Schema stays what it is."""
        if self.input_schema is not None:
            return list(injected)
        late = sorted(injected.keys() & self._compiled.schema["properties"].keys())
        if late:
            for name in ("_compiled", "_schema"):
                self.__dict__.pop(name, None)
        return late

    def _preview(self, args: Mapping[str, Any]) -> str | ToolResult:
        try:
            optional = {each.name for each in self.parameters if not each.required and each.default is None}
            return preview_words(self.name, self.preview, args, optional)
        except (Exception, SystemExit) as exc:
            raise ToolExecutionError(
                f"cannot preview {self.name!r}: {type(exc).__name__}: {exc}", tool_name=self.name, error=exc
            ) from exc

    def _own_function(self) -> Callable[..., Any]:
        if self.function is None:
            raise ToolExecutionError(
                f"{self.name!r} is only a description: have its provider run it, or give it a function",
                tool_name=self.name,
            )
        return self.function

    def _is_async(self, function: Callable[..., Any] | None) -> bool:
        return bool(self.is_async) or self.metadata.is_async or returns_awaitable(function)

    def _renamed(self, old: str, api_format: ApiFormat) -> dict[str, Any]:
        warnings.warn(f"{old}() is called get_schema() now", DeprecationWarning, stacklevel=3)
        return self.get_schema(api_format)

    def _told(self, error: BaseException) -> str:
        warnings.warn(
            f"run() of {self.name!r} returned an error as text; use run_raw() to have it raised",
            DeprecationWarning,
            stacklevel=3,
        )
        return f"Error executing {self.name}: {error}"

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def returns_awaitable(function: Any) -> bool:
    """Return whether a call only makes a coroutine or an async generator, and so never blocks."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004  # not whether it can be called, but how
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(kind(each) for kind in kinds for each in (function, call))


def _kept(tool_name: str, schema: Mapping[str, Any]) -> FrozenDict:
    """The schema, out of reach of whoever gave it."""
    try:
        own: FrozenDict = frozen(thawed(dict(schema)))
    except RecursionError as exc:
        raise ToolValidationError(f"the parameters of {tool_name!r} are nested too deep", tool_name=tool_name) from exc
    return own


def _is_fillable(parameter: ToolParameter) -> bool:
    try:
        TypedArguments("parameter", [parameter])
    except ToolValidationError:
        return False
    return True


_AS_DUMPED = core_schema.plain_serializer_function_ser_schema(Tool.model_dump)


#: Where pydantic meets a tool unannounced, it would write a dataclass down field by field, with what is injected.
Tool.__pydantic_serializer__ = SchemaSerializer(core_schema.any_schema(serialization=_AS_DUMPED))


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    param_metadata: Mapping[str, Mapping[str, Any]] | None = None,
    streaming: bool = False,
    screen_output: bool = False,
    terminal: bool = False,
    requires_approval: bool = False,
    config_injector: Injector | None = None,
    injected_kwargs: Mapping[str, Any] | None = None,
    idempotent: bool = False,
    preview: Preview | None = None,
    undo: Undo | None = None,
    undo_seconds: float = UNDO_SECONDS,
    reconcile: Reconciler | None = None,
    typed_code: bool = False,
    version: str = "",
    read_only: bool = False,
    cacheable: bool = False,
    cache_ttl: float = 300,
    namespace: str | None = None,
    method_name: str | None = None,
    metadata: ToolMetadata | None = None,
    proposes: bool | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a Tool of a function; works bare and with options, see `Tool` for what they mean."""
    if function is not None:
        return Tool.from_function(function)
    return lambda decorated: Tool.from_function(decorated, **options)


#: Characters that are screened in the event loop, in about 5 ms; longer texts in a thread.
MAX_INLINE_CHARS = 20_000


async def shown(tool: Tool, raw: str, *, summary: str | None = None, mark: str = "", whole: bool = False) -> str:
    """A result, or the `summary` that stands for it behind its `mark`, as the model sees it: fenced if either tries to
    instruct it, and cut to the tool's `max_result_size` unless the `whole` is asked for.
    """
    text = raw if summary is None else summary
    found = await _found(raw, text) if tool.screen_output else ()
    text = truncate(text, None if whole else tool.metadata.max_result_size)
    return mark + (marked(tool.name, text, found) if found else text)


async def _found(*texts: str) -> list[str]:
    kinds: set[str] = set()
    for text in dict.fromkeys(texts):
        kinds.update(suspicions(text) if len(text) <= MAX_INLINE_CHARS else await offload(suspicions, text))
    return sorted(kinds)
