"""ToolDefinition: the fields of a tool, with their checks.

`sayso.agent.tools.tool.Tool` extends ToolDefinition by what can be done with a tool: checking
arguments, running it, proposing a call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field, replace
from enum import StrEnum
from types import CodeType, NoneType
from typing import Any, Literal, Self, TypedDict, get_args

from sayso.agent.tools.arguments import InjectedArguments, Injector, SchemaArguments, is_json_schema
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.json_schema import frozen, thawed
from sayso.agent.tools.names import TOOL_NAME, normalize_namespace, split_namespace
from sayso.agent.tools.parameter import as_parameters
from sayso.agent.tools.previews import Preview
from sayso.agent.tools.signature import call_method, is_method, with_function_defaults
from sayso.infra.concurrency import call_foreign
from sayso.pending.action import MAX_TTL_SECONDS, After, OtherMessage
from sayso.pending.executors import Reconciler
from sayso.pending.proposals import current_context, stash_pending
from sayso.pending.standing_rule import StandingRule
from sayso.pending.tool_context import context_arguments, context_parameters, innermost_function

#: The `source` of tools that write into an agent's memory.
MEMORY = "memory"
#: The `source` of the tool that reads the rest of a shortened result.
RESULTS = "results"
#: The `source` of the tool that finds other tools.
SEARCH = "tool_search"
#: The `source` of tools that an MCP server or an OpenAPI document describes. The authors of the bot
#: did not write them.
MCP = "mcp"
OPENAPI = "openapi"
FOREIGN_SOURCES = (MCP, OPENAPI)
#: How long an effect can be undone, in seconds, unless the tool says otherwise.
UNDO_SECONDS = 300.0
#: A function that undoes a call. It takes any of the tool's arguments by name, and `result`, the
#: text that the tool returned. Sync or async.
Undo = Callable[..., Any]


class ToolTag(StrEnum):
    """Common classes of tools, by which policies and agents choose among them.

    `DESTRUCTIVE` is a hint that a confirmation is wanted. A policy's `allow` overrules the tag. It
    does not overrule `requires_approval`.
    """

    READ_ONLY = "read_only"
    DESTRUCTIVE = "destructive"
    NETWORK = "network"
    FILE_SYSTEM = "file_system"
    SLOW = "slow"
    PRIVILEGED = "privileged"


@dataclass(frozen=True, slots=True)
class ToolMetadata:
    """Hints for the code that runs a tool, and the tool's classification."""

    #: Whether the function is async. The Tool sets it itself.
    is_async: bool = False
    #: False: a call never runs at the same time as another call of the same model answer.
    is_concurrency_safe: bool = True
    #: The time limit of a call, in seconds; None for no limit.
    timeout: float | None = None
    tags: AbstractSet[ToolTag] = frozenset()
    #: Tags that the program chose.
    custom_tags: AbstractSet[str] = frozenset()
    #: Whether to ask the model for a `toolcall_reason` with each call; None for what the registry
    #: says.
    think_augment: bool | None = None
    #: How many characters of one result the model reads at most; None for no limit of the tool.
    max_result_size: int | None = None
    #: Where the tool comes from. MEMORY for the tools of an agent's memory, RESULTS for the one
    #: that reads the rest of a result, SEARCH for the one that finds other tools, and one of
    #: FOREIGN_SOURCES for tools from elsewhere.
    source: str = "native"

    def __post_init__(self) -> None:
        tags = _as_names(self.tags)
        object.__setattr__(self, "tags", frozenset(ToolTag(tag) for tag in tags))
        object.__setattr__(self, "custom_tags", frozenset(_as_names(self.custom_tags)))
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(
                f"timeout={self.timeout!r} leaves a tool no time: give seconds above 0, or None"
            )
        if self.max_result_size is not None and self.max_result_size < 1:
            raise ValueError(
                f"max_result_size={self.max_result_size!r} leaves nothing to read: "
                "give 1 or more, or None"
            )

    @property
    def all_tags(self) -> frozenset[str]:
        """The tags of both kinds, as text."""
        return frozenset(map(str, self.tags)) | frozenset(self.custom_tags)


class ToolOptions(TypedDict, total=False):
    """The options of the `tool` decorator.

    They are fields of ToolDefinition, which explains them, and `param_metadata`.
    """

    name: str | None
    description: str | None
    param_metadata: Mapping[str, Mapping[str, Any]] | None
    streaming: bool
    screen_output: bool
    terminal: bool
    requires_approval: bool
    config_injector: Injector | None
    injected_kwargs: Mapping[str, Any] | None
    idempotent: bool
    preview: Preview | None
    undo: Undo | None
    undo_seconds: float
    reconcile: Reconciler | None
    marks_effect: bool
    typed_code: bool
    version: str
    read_only: bool
    cacheable: bool
    cache_ttl: float
    namespace: str | None
    method_name: str | None
    metadata: ToolMetadata | None
    proposes: bool | None
    after: After | Literal[""]
    editable: Sequence[str]
    other_message: OtherMessage | Literal[""]
    standing: StandingRule | Mapping[str, Any] | None


#: Fields whose type is checked when a tool is defined: name, type, and the type in words.
_FIELD_TYPES: Sequence[tuple[str, Any, str]] = (
    ("name", str, "text"),
    ("description", str, "text"),
    ("version", str, "text"),
    ("editable", Iterable, "the names of arguments"),
    ("undo_seconds", (int, float), "a number of seconds"),
    ("cache_ttl", (int, float), "a number of seconds"),
    ("metadata", ToolMetadata, "a ToolMetadata"),
    ("injected_kwargs", Mapping, "a dict of names and values"),
    ("preview", (str, Callable, NoneType), "a template or a function"),
    ("function", (Callable, NoneType), "a function"),
    ("callable", (Callable, NoneType), "a function"),
    ("config_injector", (Callable, NoneType), "a function"),
    ("undo", (Callable, NoneType), "a function"),
    ("reconcile", (Callable, NoneType), "a function"),
)


@dataclass(frozen=True, eq=False)
class ToolDefinition:
    """The fields of a Tool. The constructor checks them, and fills what is left out.

    Arguments and results:

    - `parameters` may be given as ToolParameters, in a list or by name, or as one JSON Schema of an
      object. Afterwards it is always a tuple of ToolParameters, and `input_schema` is the JSON
      Schema, or None.
    - `injected_kwargs` and the values that `config_injector()` returns reach the function;
      the model never sees them.
    - A `streaming` tool yields its result in pieces. With `screen_output` its result is searched
      for prompt injection before the model reads it. The result of a `terminal` tool is the final
      answer of the run.
    - The result of a `cacheable` tool may be reused for `cache_ttl` seconds.

    Confirmation, which the user gives in a chat:

    - `requires_approval`: a call is proposed to the user in the words of `preview`, and runs after
      their confirmation. With `typed_code` the user must type a code to confirm.
    - `proposes` declares that the code itself may ask for a confirmation, with `stash_pending`;
      `sayso check` shows it. None for whether the function names `stash_pending`.
    - `editable`: the arguments that the person may change before the yes, by name. A change is
      asked about anew. A tool whose own code asks has none.
    - Change `version` when a call that was previewed before the change must not run any more. A
      changed description, schema or preview counts as another version by itself.
    - `after` says what follows the outcome of a confirmed call: "continue" lets the model go on
      with the request, "say" ends it with the bot's own text. "" leaves it to the channel. A
      policy's `after` comes first.
    - `standing` offers a third button, with which a yes also counts for later calls:
      `{"for": "1h", "times": 10, "where": {"amount": "<= 50"}, "same": ["customer"]}`. `for` is at
      most a day, `times` at most 100. `where` has a comparison (`<=`, `>=`, `<`, `>`, `==`) or an
      exact value for arguments, and `same` names arguments that must be as in the confirmed call.
      All other arguments may be anything: name each one that matters. A policy may narrow or forbid
      it. A tool with `typed_code` offers none, nor one whose own code asks. Afterwards it is a
      StandingRule, or None.
    - `other_message` says what a message about something else does to an open question of the tool:
      "drop" ends it, "keep" leaves it open while the message is answered. "" leaves it to the
      channel.

    Interrupted runs, and undoing:

    - `idempotent` promises that running twice with the same arguments does no harm;
      `pending.idempotency_key()` names the effect, the same at each repetition. `read_only`
      promises that the tool changes nothing. An interrupted call of both kinds runs again.
    - `marks_effect` promises that the code says where its effect begins, with `effect` or
      `effect_begins` of its ToolContext. What comes before is preparation: it runs again if its
      worker dies there. From there on the call never runs again.
    - `reconcile(record)` says how an interrupted run ended: True, or words for the user, when it
      took effect; False when it certainly did not; None when that is unknown.
    - `undo` takes the effect back, for `undo_seconds` after the reply. It is called with the tool's
      arguments, and with `result`, the text that the tool returned, if it has such a parameter.
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
    marks_effect: bool = False
    typed_code: bool = False
    version: str = ""
    read_only: bool = False
    cacheable: bool = False
    cache_ttl: float = 300
    namespace: str | None = None
    method_name: str | None = None
    metadata: ToolMetadata = field(default_factory=ToolMetadata)
    is_async: bool | None = None
    #: Another name of `function`. A tool without a function only describes what its provider runs.
    callable: Callable[..., Any] | None = field(default=None, repr=False)
    input_schema: Mapping[str, Any] | None = field(default=None, repr=False)
    proposes: bool | None = None
    after: After | Literal[""] = ""
    editable: Sequence[str] = ()
    other_message: OtherMessage | Literal[""] = ""
    standing: StandingRule | Mapping[str, Any] | None = None

    #: The tool that `dataclasses.replace` copies; None for a new tool. The constructor sets the
    #: attribute to the tool itself, so that `replace` passes it on to the constructor of the copy.
    _original: InitVar[ToolDefinition | None] = None

    def __post_init__(self, _original: ToolDefinition | None) -> None:
        # Each step reads what the steps before it have set.
        self._check_types()
        self._take_functions_of_tools()
        self._reconcile_aliases(_original)
        self._fill_fields()
        self._set_parameters()
        self._check()

    @property
    def qualified_name(self) -> str:
        """`{namespace}-{method_name}` if it has both, else its name."""
        if self.namespace and self.method_name:
            return f"{self.namespace}-{self.method_name}"
        return self.name

    @property
    def repeatable(self) -> bool:
        """Whether a call that was interrupted may run again without harm."""
        return self.idempotent or self.read_only

    def update_namespace(
        self, namespace: str | None, force: bool = False, sep: Literal["-", "."] = "-"
    ) -> Self:
        """Return the same tool in a namespace, named `{namespace}{sep}{method_name}`.

        A tool that has a namespace already keeps it, unless `force`. "" and None change nothing. A
        Tool is immutable, so this returns another one: see docs/reference/deviations.md. Raises
        ToolValidationError for a namespace without a letter or digit.
        """
        if not namespace:
            return self

        namespace_in_name, name_after_it = split_namespace(self.name)
        base_name = self.method_name or name_after_it
        existing = self.namespace or namespace_in_name
        if existing and not force:
            namespace = existing
        normalized = normalize_namespace(namespace)
        return replace(
            self,
            name=f"{normalized}{sep}{base_name}",
            namespace=normalized,
            method_name=base_name,
        )

    def _check_types(self) -> None:
        """Raise ToolValidationError, with the cure, for a field of the wrong type."""
        for name, kind, in_words in _FIELD_TYPES:
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise self._undefinable(
                    f"its {name} is of type {type(value).__name__}: give {in_words}"
                )
        if returns_awaitable(self.config_injector):
            raise self._undefinable(
                "its config_injector is async: give a plain function, and await in the tool"
            )
        for name in ("undo", "reconcile"):
            # A call of a generator function runs none of its code.
            if _is_generator(getattr(self, name)):
                raise self._undefinable(f"its {name} yields: return the text")

    def _take_functions_of_tools(self) -> None:
        """Replace tools that are given as preview, undo or reconciler by their functions."""
        for name in ("preview", "undo", "reconcile"):
            value = getattr(self, name)
            if isinstance(value, ToolDefinition) and value.function is not None:
                self._set(**{name: value.function})

    def _reconcile_aliases(self, original: ToolDefinition | None) -> None:
        """Make fields agree that say the same in two ways, such as `function` and `callable`.

        In a copy, the field that differs from the original counts.
        """
        if original is None:
            function = self.function or self.callable
            self._set(function=function, callable=function)
            return

        function = self.function
        if self.callable is not original.callable:
            function = self.callable
        metadata = self.metadata

        # `is_async` describes the original's function. None: detect it for the new one.
        if function is not original.function and self.is_async is original.is_async:
            self._set(is_async=None)
            metadata = replace(metadata, is_async=False)

        if original.read_only and not self.read_only:
            metadata = replace(metadata, tags=metadata.tags - {ToolTag.READ_ONLY})

        # The schema describes the original's parameters.
        has_new_parameters = self.parameters is not original.parameters
        if has_new_parameters and self.input_schema is original.input_schema:
            self._set(input_schema=None)
        self._set(function=function, callable=function, metadata=metadata)

    def _fill_fields(self) -> None:
        """Set what is left out, or follows from the function or from another field."""
        function = self.function
        is_async = bool(self.is_async) or self.metadata.is_async or returns_awaitable(function)
        tags = self.metadata.tags
        if self.read_only:
            tags = tags | {ToolTag.READ_ONLY}
        proposes = self.proposes
        if proposes is None:
            proposes = names_stash_pending(function)
        self._set(
            _original=self,
            injected_kwargs=InjectedArguments(self.injected_kwargs),
            is_async=is_async,
            metadata=replace(self.metadata, is_async=is_async, tags=tags),
            read_only=ToolTag.READ_ONLY in tags,
            proposes=proposes,
            editable=tuple(_as_names(self.editable)),
            standing=self._standing_rule(),
        )

    def _standing_rule(self) -> StandingRule | None:
        """Return the rule of `standing`, however it is given. Raises ToolValidationError."""
        if self.standing is None:
            return None
        try:
            return StandingRule.parse(self.standing)
        except (ValueError, TypeError) as exc:
            raise self._undefinable(f"its standing cannot be read: {exc}") from exc

    def _set_parameters(self) -> None:
        """Make `parameters` a tuple of ToolParameters, and `input_schema` a JSON Schema or None."""
        # One JSON Schema, given as `parameters`, becomes `input_schema`. Its properties become the
        # parameters.
        if is_json_schema(self.parameters):
            try:
                schema = frozen(thawed(dict(self.parameters)))
            except RecursionError as exc:
                raise self._undefinable("its parameters are nested too deep") from exc
            self._set(input_schema=schema, parameters=())
        declared = as_parameters(self.name, self.parameters)
        self._set(parameters=with_function_defaults(declared, self.function))
        if self.input_schema is not None:
            arguments = SchemaArguments(self.name, self.input_schema)
            # `_compiled` is a cached property of Tool: the schema need not be compiled twice.
            self._set(
                parameters=as_parameters(self.name, arguments.parameters), _compiled=arguments
            )

    def _check(self) -> None:
        """Raise ToolValidationError, with the cure, for a tool that could not be called."""
        problem = next(self._problems(), "")
        if problem:
            raise self._undefinable(problem)

        names = [parameter.name for parameter in self.parameters]
        if self.input_schema is not None:
            names = [str(name) for name in self.input_schema.get("properties", {})]
        elif self.function is not None:
            self._check_signature(self.function, names)
        _check_undo(self.name, self.undo, [*names, *self.injected_kwargs])

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong with single fields, and with fields that contradict each other.

        Each text names the cure. `_check` reports the first.
        """
        if not TOOL_NAME.fullmatch(self.name):
            yield "a name is 1 to 64 letters, digits, '_', '-' or '.'"
        if not self.description.strip():
            yield "give it a docstring or description=: a model chooses tools by it"

        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) < len(names):
            yield f"a parameter is declared twice in {names!r}"
        if self.streaming and not _is_generator(self.function):
            yield "streaming=True needs a function that yields"
        if not 0 < self.undo_seconds <= MAX_TTL_SECONDS:
            yield (
                f"undo_seconds is {self.undo_seconds!r}: "
                f"give more than 0 and at most {MAX_TTL_SECONDS:g}"
            )

        if self.read_only and self.proposes:
            yield (
                "it asks for a confirmation (stash_pending), and what it asks for changes "
                "something: leave read_only out, and say idempotent=True where a second run does "
                "no harm"
            )
        if self.editable and self.proposes:
            yield (
                "its own code asks for a confirmation (stash_pending), so no argument of it is "
                "editable: leave editable out, or let the agent ask, with requires_approval=True"
            )
        if self.standing and self.proposes:
            yield (
                "its own code asks for a confirmation (stash_pending), so no yes to it can stand: "
                "leave standing out, or let the agent ask, with requires_approval=True"
            )
        if self.standing and self.typed_code:
            yield "a code is typed anew for each call: leave standing out, or typed_code"
        if self.marks_effect and self.repeatable:
            yield (
                "an interrupted call of it runs again anyway: leave marks_effect out, or "
                "idempotent and read_only"
            )
        is_called = self.function is not None
        if self.marks_effect and is_called and not context_parameters(self.function):
            yield (
                "marks_effect=True needs a parameter of the type ToolContext, to say where the "
                "effect begins: `with context.effect():`"
            )

        if not self.cache_ttl > 0:
            yield f"cache_ttl is {self.cache_ttl!r}: give seconds above 0"
        if self.after not in ("", *get_args(After)):
            yield f"after is {self.after!r}: give 'continue', 'say', or '' for what the channel has"
        if self.other_message not in ("", *get_args(OtherMessage)):
            yield (
                f"other_message is {self.other_message!r}: "
                "give 'drop', 'keep', or '' for what the channel has"
            )

    def _check_signature(self, function: Callable[..., Any], names: list[str]) -> None:
        """Raise ToolValidationError if the function does not take the parameters called `names`.

        Also if it needs one that neither the model nor the program fills.
        """
        try:
            signature = inspect.signature(function).parameters
        except (ValueError, TypeError):
            # Some built-ins have none: only the declared parameters are known.
            return

        takes_any = any(param.kind is inspect.Parameter.VAR_KEYWORD for param in signature.values())
        positional = [
            param.name
            for param in signature.values()
            if param.kind is inspect.Parameter.POSITIONAL_ONLY
        ]
        unnamed = [name for name in names if name in positional]
        if unnamed and not takes_any:
            raise self._undefinable(
                f"its function takes {unnamed!r} by position only, and a model gives arguments by "
                "name: write a function around it, or remove the `/` from its parameters",
                unnamed,
            )
        unknown = [name for name in names if name not in signature]
        if unknown and not takes_any:
            raise self._undefinable(f"its function takes no {unknown!r} by name", unknown)

        filled = {*names, *self.injected_kwargs, *context_parameters(function)}
        if is_method(function):
            # Python fills the first parameter, `self`.
            filled.add(next(iter(signature)))
        required = [param.name for param in signature.values() if _is_required(param)]
        unfilled = [name for name in required if name not in filled]
        if unfilled and self.config_injector is None:
            raise self._undefinable(f"no model fills {unfilled!r}; inject them", unfilled)

    def _undefinable(self, issue: str, parameters: Sequence[str] = ()) -> ToolValidationError:
        message = f"tool {self.name!r} cannot be defined: {issue}"
        return ToolValidationError(
            message, tool_name=self.name, param_name=", ".join(map(str, parameters)), issue=issue
        )

    def _set(self, **values: Any) -> None:
        """Set fields of this frozen dataclass, while it is constructed."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _as_names(names: Iterable[str]) -> Iterable[str]:
    """Return the names. A text is one name, and not its characters."""
    if isinstance(names, str):
        return (names,)
    return names


def returns_awaitable(function: Any) -> bool:
    """Return whether a call only creates a coroutine or an async generator, and so never blocks."""
    while isinstance(function, functools.partial):
        function = function.func
    return _is_async(function) or _is_async(call_method(function))


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _is_generator(function: Callable[..., Any] | None) -> bool:
    """Return whether a function yields, also behind decorators or as a `__call__` method."""
    if function is None:
        return False
    return _yields(inspect.unwrap(function)) or _yields(call_method(function))


def _yields(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _is_required(param: inspect.Parameter) -> bool:
    is_variadic = param.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return param.default is inspect.Parameter.empty and not is_variadic


def names_stash_pending(function: Callable[..., Any] | None) -> bool:
    """Return whether the code of a function names `stash_pending`, under any imported name.

    A call through another function is not seen: the tool's author declares it with `proposes=True`.
    """
    target = innermost_function(function)
    plain = getattr(target, "__func__", target)  # of a bound method
    if not inspect.isfunction(plain):
        plain = call_method(plain)
    if not inspect.isfunction(plain):
        return False

    names = set(_names_in(plain.__code__))
    if "stash_pending" in names:
        return True
    return any(plain.__globals__.get(name) is stash_pending for name in names)


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the global, attribute and closure names in code, and in the functions inside it."""
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _check_undo(tool_name: str, undo: Undo | None, names: Collection[str]) -> None:
    """Raise ToolValidationError for an undo that needs other arguments than it can get.

    It can get the tool's arguments, `names`, and the `result` of the call.
    """
    if undo is None:
        return
    try:
        parameters = inspect.signature(undo).parameters
    except (ValueError, TypeError) as exc:
        raise ToolValidationError(
            f"undo of {tool_name!r} is a built-in whose parameters Python does not know: "
            "write a function around it"
        ) from exc
    takes_any = any(param.kind is inspect.Parameter.VAR_KEYWORD for param in parameters.values())
    if "result" in names and ("result" in parameters or takes_any):
        raise ToolValidationError(
            f"undo of {tool_name!r} takes 'result', which is an argument of the tool and also what "
            "the tool returned: rename the argument"
        )
    given = [*names, "result"]
    known = {*given, *context_parameters(undo)}
    required = {name: param for name, param in parameters.items() if _is_required(param)}
    unknown = sorted(name for name in required if name not in known)
    if unknown:
        raise ToolValidationError(
            f"undo of {tool_name!r} needs unknown {unknown!r}; it may take {sorted(given)!r}"
        )
    unnamed = [
        name for name, param in required.items() if param.kind is inspect.Parameter.POSITIONAL_ONLY
    ]
    if unnamed:
        raise ToolValidationError(
            f"undo of {tool_name!r} takes {unnamed!r} by position only, and gets them by name: "
            "remove the `/`"
        )


async def call_undo(undo: Undo, arguments: Mapping[str, Any]) -> Any:
    """Call the undo with those of the arguments that it takes, and return its value.

    An undo with `**kwargs` takes all. A sync undo runs in a thread.
    """
    parameters = inspect.signature(undo).parameters
    takes_any = any(param.kind is inspect.Parameter.VAR_KEYWORD for param in parameters.values())
    kwargs = dict(arguments)
    if not takes_any:
        kwargs = {name: value for name, value in arguments.items() if name in parameters}
    kwargs |= context_arguments(undo, current_context)
    return await call_foreign(undo, **kwargs)
