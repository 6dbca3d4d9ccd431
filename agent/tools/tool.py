"""Tool: a function that a model may call, with its schema, its checked arguments and its result.

A tool is defined by `@tool` or `Tool.from_function`; `definition.py` explains its fields.

The arguments of a call come from three sides: from the model (checked against the schema), from the
program (`injected_kwargs`, `config_injector`), and from Sayso, which fills a parameter of the type
ToolContext. The model sees none but its own. `arguments.py` checks arguments, `signature.py` reads
the parameters of a function.

A call may need the yes of a person. Then it is *proposed*: its arguments and its *preview*, the
words that the person agrees to, are stored as a *record*, and the yes runs exactly that record. A
*policy* decides for each call whether it runs at once, is proposed, or is refused.

Which of the many methods to use:

| to | call |
|---|---|
| describe the tool to a model | `schema`, `get_schema` for a vendor's format |
| check arguments | `validate`; for a policy `validate_json`, for a record `validate_record` |
| run it and get its own value | `run_raw`, `arun_raw`; `ainvoke` raises ToolErrors only |
| run it and get a text for a model | `execute`, `aexecute` |
| ask the user first | `propose`; `draft` to see what would be asked |
| undo a run | `aundo_raw` |
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
from sayso.agent.tools.definition import (
    ToolDefinition,
    ToolMetadata,
    ToolOptions,
    call_undo,
    returns_awaitable,
)
from sayso.agent.tools.digests import definition_digest
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
from sayso.agent.tools.names import name_in_words
from sayso.agent.tools.previews import check_preview, preview_text
from sayso.agent.tools.proposal_draft import PreviewRefused, ProposalDraft
from sayso.agent.tools.result_texts import (
    ChunkCallback,
    await_value,
    is_async_value,
    join_chunks,
    serialize,
)
from sayso.agent.tools.signature import (
    check_function,
    infer_parameters,
    is_method,
    name_of,
    read_docstring,
)
from sayso.agent.tools.standing_bounds import standing_problem
from sayso.agent.tools.text_cuts import shorten
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
from sayso.pending.standing_rule import StandingRule
from sayso.pending.tool_context import context_parameters

#: Most characters of the words with which a preview refuses. They are stored, and people read them
#: in a chat.
MAX_REFUSAL_CHARS = 2_000
#: How many decorators and partials around a function are looked through.
MAX_WRAPPERS = 100
#: The argument that `think_augment` adds to a tool: why the model calls it.
_REASON = "toolcall_reason"
_REASON_SCHEMA = {
    "type": "string",
    "description": "Why you call this tool, and what you expect of it.",
}
#: Runs a sync function in a thread, and returns its result.
ThreadRunner = Callable[[Callable[[], Any]], Awaitable[Any]]

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

    ToolDefinition explains its fields. All methods work on these fields, and the methods of a group
    stand together: the tool as a Python function, its descriptions, checking arguments, running,
    proposing. For type checkers `Tool[P, R]` is the function itself: they refuse a wrong call, and
    know its result.

    The constructor raises ToolValidationError for a tool that could not be called, so that a
    mistake shows when the program starts, and not in front of a user.
    """

    __pydantic_serializer__: ClassVar[SchemaSerializer]

    def __post_init__(self, _original: ToolDefinition | None) -> None:
        super().__post_init__(_original)
        self._check_preview()
        # Reading these cached properties raises for parameters that cannot be filled. An injector
        # decides which parameters the model is not shown. It is not called yet, since it may open a
        # database, so then only the names known without it are checked.
        if self.config_injector is not None:
            _ = self._hidden_arguments
        else:
            _ = self._compiled
        self._check_editable()
        self._check_standing()

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
        """Make `@tool` work on methods: `instance.method` is a tool bound to the instance."""
        if instance is None or not is_method(self.function):
            return self
        bound = MethodType(self._own_function(), instance)
        return replace(self, function=bound, callable=bound)

    # A tool is immutable, so it is its own copy. An injected value may refuse to be copied.
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
            name: The name that models call it by; None for the function's name. With a `namespace`
                it is `{namespace}-{method_name}`.
            description: What models read about it; None for the docstring.
            namespace: A group of tools, such as a service; None for no group.
            method_name: The name without the namespace; None for the name.
            metadata: Tags, limits and other facts that do not change what the tool does.
            param_metadata: Descriptions and enums of single parameters, by parameter name.
            injected_kwargs: Arguments that the program fills, and no model sees.
            options: Other fields of ToolDefinition.

        Raises ValueError for a lambda without a name; ToolValidationError for a function that
        cannot be a tool, and for a function that is a tool already if options are given with it.
        """
        named_options = (
            name,
            description,
            namespace,
            method_name,
            metadata,
            param_metadata,
            injected_kwargs,
        )
        has_options = bool(options) or any(each is not None for each in named_options)
        existing = _existing_tool(func, has_options=has_options)
        if existing is not None:
            return cast("Tool[FunctionP, FunctionR]", existing)

        check_function(func)
        if name_of(func) == "<lambda>" and not (name or method_name):
            raise ValueError("a lambda has no name: give the tool one with name=")

        if metadata is None:
            metadata = ToolMetadata()
        if isinstance(metadata, ToolMetadata):  # the constructor refuses anything else
            # ToolDefinition detects it, and would believe True.
            metadata = replace(metadata, is_async=False)
        documented, parameter_descriptions = read_docstring(func)
        base_name = method_name or name or name_of(func)
        injected = injected_kwargs or {}
        parameters = infer_parameters(func, param_metadata or {}, parameter_descriptions, injected)
        tool = cls(
            name=name or base_name,
            description=description or documented or name_in_words(base_name),
            parameters=parameters,
            function=func,
            injected_kwargs=injected,
            metadata=metadata,
            method_name=method_name,
            **options,
        )
        return cast("Tool[FunctionP, FunctionR]", tool.update_namespace(namespace, force=True))

    @property
    def takes_hidden_arguments(self) -> bool:
        """Whether the function gets values that no model sends: injected ones, a ToolContext."""
        has_injected = bool(self.injected_kwargs) or self.config_injector is not None
        return has_injected or bool(self._context_parameters)

    @property
    def hidden_names(self) -> frozenset[str]:
        """The names of arguments that no model fills, as far as known without the injector."""
        return frozenset({*self._hidden_arguments.known_names, *self._context_parameters})

    @property
    def parameters_model(self) -> type[BaseModel] | None:
        """The pydantic model that checks arguments; None for a tool defined by a JSON Schema."""
        compiled = self._compiled
        if isinstance(compiled, TypedArguments):
            return compiled.model
        return None

    def schema(self) -> dict[str, Any]:
        """Return name, description and JSON schema of the parameters, as a model reads them.

        The returned value is immutable. The first call for a tool with a `config_injector` calls
        the injector, which may block: async code uses `aschema`.
        """
        return self._schema

    async def aschema(self) -> dict[str, Any]:
        """Return `schema()`. A `config_injector`, which may block, is called in a thread."""
        # Once `_compiled` is cached, the injector is not called any more for a schema.
        if self.config_injector is None or "_compiled" in self.__dict__:
            return self._schema
        return await call_in_tool_thread(self.schema)

    def get_schema(
        self, api_format: ApiFormat = "openai-chat", *, _think_augment: bool | None = None
    ) -> dict[str, Any]:
        """Return the definition for a vendor's API. Raises like `vendor_schema`.

        `_think_augment`: whether the model is asked for the reason of each call; None for what
        `metadata.think_augment` says.
        """
        asks_for_reason = _think_augment
        if asks_for_reason is None:
            asks_for_reason = self.metadata.think_augment
        parameters = self._compiled.schema
        if asks_for_reason:
            parameters = _with_reason(parameters)
        return vendor_schema(self.name, self.description, parameters, api_format)

    # APIs that Sayso follows call `get_schema` by these two names.
    def describe(self, api_format: ApiFormat = "openai-chat") -> dict[str, Any]:
        """Return `get_schema`, with a DeprecationWarning."""
        return self._get_schema_by_old_name("describe", api_format)

    def get_json_schema(self, api_format: ApiFormat = "openai-chat") -> dict[str, Any]:
        """Return `get_schema`, with a DeprecationWarning."""
        return self._get_schema_by_old_name("get_json_schema", api_format)

    def _get_schema_by_old_name(self, old_name: str, api_format: ApiFormat) -> dict[str, Any]:
        warnings.warn(f"{old_name}() is called get_schema() now", DeprecationWarning, stacklevel=3)
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
        """Return the arguments as a pending action stores them: exact JSON values.

        When the user says yes, they are read again. Unlike `validate_json` this refuses values that
        would be read as other ones then. Raises ToolParameterError.
        """
        return self._compiled.read_record(self._without_reason(params))

    def check(self, params: Mapping[str, Any]) -> ValidatedArguments:
        """Return the checked arguments for one `ainvoke`, which then does not check them again.

        They serve one call, since the function may change the values. Raises ToolParameterError.
        """
        return self._compiled.check(self._without_reason(params))

    def run_raw(
        self, parameters: Mapping[str, Any], chunk_callback: ChunkCallback | None = None
    ) -> Any:
        """Run the tool from sync code, and return its own value.

        A sync function without a time limit runs in this thread. `chunk_callback` receives each piece of a streamed result; None if nothing reads them.
        Raises ToolParameterError, and what the tool raises.
        """
        if self.is_async or self.metadata.timeout is not None:
            return run_sync(self.arun_raw(parameters, chunk_callback))
        with (
            ArtifactsOfCall(),
            self._as_running_tool(),
            self._hidden_arguments.opened() as injected,
        ):
            arguments = self._arguments(parameters, injected)
            value = self._own_function()(**arguments)
            # Most values are text. They have no chunks, and nothing to await.
            if type(value) is str:
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

        A sync function runs in a thread, with a copy of the context variables.

        Args:
            parameters: The arguments, as a model gave them.
            chunk_callback: Receives each piece of a streamed result; None if nothing reads them.
            checked: The result of `check` with these parameters, for this call alone; None to check
                them now.

        Raises ToolParameterError, EffectUnknownError after the tool's own `timeout`, and what the
        tool raises.
        """
        seconds = self.metadata.timeout
        if seconds is None:
            with self._as_running_tool():
                return await self._call_function(
                    parameters, checked, chunk_callback, call_in_caller_thread
                )

        # In a tool thread, since a call in the caller's thread blocks the event loop, and the time
        # limit could not end it.
        try:
            async with execution_timeout(seconds) as limit:
                with self._as_running_tool():
                    return await self._call_function(
                        parameters, checked, chunk_callback, call_in_tool_thread
                    )
        except TimeoutError as exc:
            if not limit.expired():
                raise  # the tool's own error
            raise EffectUnknownError(
                f"tool {self.name!r} timed out: it gave no result within {seconds:g} seconds; "
                "it may still be running",
                tool_name=self.name,
                error=exc,
                params=parameters,
            ) from exc

    def _as_running_tool(self) -> AbstractContextManager[Any]:
        """Return a block in which `stash_pending` knows the tool that calls it.

        For example, `stash_pending` refuses a tool that declares to change nothing.
        """
        return running_tool(
            RunningTool(
                self.name,
                read_only=self.read_only,
                proposes=self.proposes,
                marks_effect=self.marks_effect,
                digest=lambda: self.definition_digest,
            )
        )

    async def _call_function(
        self,
        parameters: Mapping[str, Any],
        checked: ValidatedArguments | None,
        chunk_callback: ChunkCallback | None,
        in_thread: ThreadRunner,
    ) -> Any:
        """Call the function and await its value.

        It is called `in_thread`, or on the event loop if neither the function nor an injector can
        block.
        """

        def call(injected: Mapping[str, Any] = self.injected_kwargs) -> Any:
            arguments = self._arguments(parameters, injected, checked)
            return join_chunks(self._own_function()(**arguments), chunk_callback)

        with ArtifactsOfCall():
            if self.config_injector is not None:
                return await self._with_injector(call, in_thread, chunk_callback)
            value = call() if self._returns_awaitable else await in_thread(call)
            return await await_value(value, chunk_callback)

    async def _with_injector(
        self,
        call: Callable[[Mapping[str, Any]], Any],
        in_thread: ThreadRunner = call_in_tool_thread,
        chunk_callback: ChunkCallback | None = None,
    ) -> Any:
        """Return the awaited value of a call that gets the values of the `config_injector`.

        An injector may be a context manager, such as a database connection. It is opened and closed
        `in_thread`, since both may block, and stays open until the value is there.
        """
        # What must stay open for an async function after `begin` has returned.
        still_open = ExitStack()

        def begin() -> Any:
            with ExitStack() as stack:
                injected = stack.enter_context(self._hidden_arguments.opened())
                value = call(injected)
                if is_async_value(value):
                    still_open.push(stack.pop_all())
                return value

        value = await in_thread(begin)
        if not is_async_value(value):
            return value
        try:
            return await await_value(value, chunk_callback)
        finally:
            # An error of the tool is passed on, so that a connection rolls back.
            error = sys.exc_info()
            await in_thread(lambda: still_open.__exit__(*error))

    def run(self, parameters: Mapping[str, Any]) -> Any:
        """Run the tool like `run_raw`, but return an error as text, with a DeprecationWarning."""
        try:
            return self.run_raw(parameters)
        # FATAL_ERRORS too: the function may run in this thread, and `SystemExit` would end the
        # program. In `arun`, the code that runs the function turns them into Escaped.
        except (Exception, *FATAL_ERRORS) as exc:
            return self._error_text(exc)

    async def arun(self, parameters: Mapping[str, Any]) -> Any:
        """Run the tool like `arun_raw`, but return an error as text, with a DeprecationWarning."""
        try:
            return await self.arun_raw(parameters)
        except Exception as exc:
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
        """Run the tool like `run_raw`, and return its result as the model sees it.

        Raises like `ainvoke`.
        """
        try:
            return serialize(self.run_raw(params, chunk_callback))
        except Exception as exc:
            readable = readable_error(exc, self.name, params)
            if readable is exc:
                raise
            raise readable from exc
        except FATAL_ERRORS as exc:  # see `run`
            raise ToolExecutionError(tool_name=self.name, error=exc, params=params) from exc

    async def aundo_raw(self, params: Mapping[str, Any], result: str = "") -> Any:
        """Undo the effect of a run with these arguments that returned the text `result`.

        Return the undo's own value. The time limit of the tool does not count: the caller limits
        the undo. Raises like `ainvoke`, and ToolExecutionError for a tool without an undo.
        """
        if self.undo is None:
            raise ToolExecutionError(f"tool {self.name!r} cannot be undone", tool_name=self.name)
        undo = self.undo

        def call(injected: Mapping[str, Any] = self.injected_kwargs) -> Awaitable[Any]:
            arguments = {**self._arguments(params, injected), "result": result}
            return call_undo(undo, arguments)

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

        `reason` is why they are asked, for them to read; "" for none. Returns a
        PendingConfirmation, or another ToolResult when there is nothing to propose. Raises
        ToolParameterError, ToolExecutionError when no user could answer, and PreviewError when the
        preview fails.
        """
        draft = self.draft(params)
        return draft.propose(reason, self.edit_fields(self.editable, draft.args))

    def edit_fields(
        self, names: Sequence[str], args: Mapping[str, Any]
    ) -> tuple[dict[str, Any], ...]:
        """Return the fields of the form for these arguments of a call, ready for a record.

        `names` are the arguments that the person may change; without any the form is empty. See
        `sayso.agent.tools.edits`. It reads the schema, so the first call for a tool with a
        `config_injector` may block, like `schema`.
        """
        if not names:
            return ()
        return edits.edit_fields(self.schema()["parameters"], names, args)

    def draft(self, params: Mapping[str, Any]) -> ProposalDraft:
        """Return what `propose` would ask, without asking: the arguments and their preview.

        A preview refuses the call by returning a ToolResult such as NotFound, or by raising a
        ToolError, whose words become a PreviewRefused. Raises ToolParameterError and PreviewError.
        """
        args = self._in_stored_order(self.validate_record(params))
        values = self.validate(args)
        # A preview without a template leaves these out where they are None.
        optional = {
            each.name for each in self.parameters if not each.required and each.default is None
        }
        try:
            preview = preview_text(self.name, self.preview, values, optional)
            draft = ProposalDraft(self, args, preview, self.definition_digest)
            # A preview that cannot be stored fails here, where its tool is named, and not later.
            _ = draft.values_digest
            if isinstance(preview, ToolResult):
                preview.to_json()
            return draft
        except (Exception, *FATAL_ERRORS) as exc:
            words = ""
            if isinstance(exc, ToolError):
                words = own_words(exc)
            if not words.strip():
                raise PreviewError(tool_name=self.name, error=exc) from exc
            refused = PreviewRefused(message=shorten(words, MAX_REFUSAL_CHARS))
            return ProposalDraft(self, args, refused, self.definition_digest)

    def _in_stored_order(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in the order of the parameters, and the keys in them by alphabet.

        A record is stored with its keys by alphabet. If a preview showed the order in which a model
        wrote them, the preview that is made from the record at the yes would differ from it, and
        the call would be refused.
        """
        stored: dict[str, Any] = json.loads(encode_canonical(args))
        names = [each.name for each in self.parameters if each.name in stored]
        return {name: stored[name] for name in dict.fromkeys([*names, *stored])}

    @functools.cached_property
    def definition_digest(self) -> str:
        """The digest of what a yes relies on, besides the arguments and the text of the preview.

        A changed description, schema, preview template or version changes it; another order or
        other white space in them does not. A yes to a question with another digest is refused.
        The code is not part of it, since then each deployment would end all open questions: a tool
        changes its `version` for a change that neither the schema nor the preview shows.
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
        """What checks the arguments of a model. Calls the injector, if there is one."""
        if self.input_schema is not None:
            return SchemaArguments(self.name, self.input_schema)
        hidden = self._hidden_arguments.names()
        if self.config_injector is not None:
            self._check_preview()
        visible = [each for each in self.parameters if each.name not in hidden]
        return TypedArguments(self.name, visible)

    def _check_preview(self) -> None:
        """Raise ToolValidationError for a preview that uses arguments which no model fills.

        It is called when the tool is defined, and again when the names are known that the injector
        fills.
        """
        visible = [each.name for each in self.parameters if each.name not in self.hidden_names]
        is_complete = self._hidden_arguments.is_complete
        check_preview(self.name, self.preview, visible, self.hidden_names, takes_all=is_complete)

    def _check_editable(self) -> None:
        """Raise ToolValidationError for editable arguments that no person could fill in.

        With an injector the schema is not known yet. Then the form leaves out what does not fit.
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

    def _check_standing(self) -> None:
        """Raise ToolValidationError for bounds of `standing` that fit no call.

        With an injector the schema is not known yet. Then a rule that does not fit offers nothing.
        """
        if self.standing is None or self.config_injector is not None:
            return
        problem = self.standing_problem(self.standing_rule)
        if problem:
            raise self._undefinable(problem)

    @property
    def standing_rule(self) -> StandingRule | None:
        """What the author says about standing yeses, None for nothing."""
        if self.standing is None:
            return None
        return StandingRule.parse(self.standing)

    def standing_problem(self, rule: StandingRule | None) -> str:
        """Return what is wrong with a rule for this tool, "" if nothing is.

        It reads the schema, so the first call for a tool with a `config_injector` may block, like
        `schema`.
        """
        if rule is None:
            return ""
        return standing_problem(self.schema()["parameters"]["properties"], rule)

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
        """The arguments that no model fills."""
        # The injector must fill a parameter whose type no JSON can express, such as a connection.
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
        """What `schema` returns."""
        parameters = self._compiled.schema
        if self.metadata.think_augment:
            parameters = _with_reason(parameters)
        schema: FrozenDict = frozen(
            {"name": self.name, "description": self.description, "parameters": parameters}
        )
        return schema

    def _without_reason(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments without the reason for the call, which some models send unasked.

        A parameter of the tool that has the name of the reason stays.
        """
        if not isinstance(params, Mapping) or _REASON not in params:
            return params
        declared_names = {
            *self._compiled.schema.get("properties", {}),
            *(each.name for each in self.parameters),
        }
        if _REASON in declared_names:
            return params
        return {name: value for name, value in params.items() if name != _REASON}

    def _arguments(
        self,
        params: Mapping[str, Any],
        injected: Mapping[str, Any],
        checked: ValidatedArguments | None = None,
    ) -> dict[str, Any]:
        """Return the function's keyword arguments: the model's, the injected, the ToolContext.

        `params` are the model's arguments; `checked` are the same when they have been checked
        already. `injected` are the values of this call that no model fills.

        Raises ToolParameterError for the model's arguments. Raises ToolExecutionError if both the
        model and the injector fill an argument, and if none of them fills one that is required.
        """
        model_params = self._without_reason(params)
        context = {}
        if self._context_parameters:
            context = dict.fromkeys(self._context_parameters, current_context())

        if self.config_injector is None and not self.injected_kwargs:
            if checked:
                values = checked.values
            else:
                values = self._compiled.values(model_params)
            # Without a copy: the values are used for this call only.
            return {**values, **context} if context else values

        return {**self._values_with_injected(model_params, injected), **context}

    def _values_with_injected(
        self, model_params: Mapping[str, Any], injected: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the model's arguments, checked, with the injected ones. Raises like `_arguments`.

        The injector may give other names than at the call from which the model knows the schema.
        So an argument may be filled twice, or not at all.
        """
        model_names = model_params if isinstance(model_params, Mapping) else {}
        filled_twice = [name for name in self._hide_injected(injected) if name in model_names]
        if filled_twice:
            raise ToolExecutionError(
                f"{filled_twice!r} of {self.name!r} is injected at this call, and the model fills it: "
                "inject it always, or never",
                tool_name=self.name,
            )

        # `_hide_injected` may have changed the schema, so the arguments are checked after it, and
        # earlier checks do not count.
        values = {**self._compiled.values(model_params), **injected}
        missing = [
            each.name for each in self.parameters if each.required and each.name not in values
        ]
        if missing:
            raise ToolExecutionError(
                f"the config_injector of {self.name!r} did not return {missing!r}, "
                "which no model fills: return all of them at each call",
                tool_name=self.name,
            )
        return values

    def _hide_injected(self, injected: Mapping[str, Any]) -> list[str]:
        """Hide the injected names from models, and return those that were in the schema until now.

        An injector may return a name for the first time at any call. A tool that is defined by a
        JSON Schema keeps its schema: all injected names are returned.
        """
        if self.input_schema is not None:
            return list(injected)
        newly_hidden = sorted(injected.keys() & self._compiled.schema["properties"].keys())
        if newly_hidden:
            # These cached properties are computed again, without the hidden names.
            for name in ("_compiled", "_schema", "definition_digest"):
                self.__dict__.pop(name, None)
        return newly_hidden

    def _own_function(self) -> Callable[..., Any]:
        """Return the function. Raises ToolExecutionError for a tool without one.

        Such a tool only describes what its provider runs.
        """
        if self.function is None:
            raise ToolExecutionError(
                f"{self.name!r} is only a description: "
                "have its provider run it, or give it a function",
                tool_name=self.name,
            )
        return self.function


def _with_reason(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with the reason first: a model decides better after it has written why."""
    if _REASON in schema["properties"]:
        return dict(schema)
    return {**schema, "properties": {_REASON: _REASON_SCHEMA, **schema["properties"]}}


def _existing_tool(function: Any, *, has_options: bool) -> Tool | None:
    """Return the tool that a function is already; None for a function without a tool behind it.

    Raises ToolValidationError if a tool is given options, and for a decorator or a partial around a
    tool. A second tool made of these would silently lose the options of the first, such as
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
            # Not by `getattr`: an object with `__getattr__` may have any attribute.
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

    def decorate(decorated: Callable[..., Any]) -> Tool:
        return Tool.from_function(decorated, **options)

    return decorate
