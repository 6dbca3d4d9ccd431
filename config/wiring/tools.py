"""Open what `tools:` names, and build the selectors that choose what a model is shown.

An entry of `tools:` is a *source*: a module, file or folder with functions, a toolbox of Sayso, an
OpenAPI document, or an MCP server. A source is *remote* if a server has to be asked for its tools.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from sayso.agent import (
    AllOf,
    Always,
    AnyOf,
    EmbeddingSelector,
    FailOpen,
    KeywordSelector,
    RoleBasedSelector,
)
from sayso.agent.extras import LibraryError
from sayso.agent.toolbox import need, open_toolbox
from sayso.agent.tools import Tool, ToolRegistry
from sayso.agent.tools.errors import ToolError, ToolLoadError
from sayso.agent.tools.loading import LoadedTools, WatchedSource, claim, load_tools
from sayso.agent.tools.registry import Toolset
from sayso.agent.toolsets import mcp, openapi
from sayso.agent.toolsets.base import (
    SourceError,
    ToolFilter,
    legal_names,
    renamed,
    runnable_tools,
    with_confirmation,
)
from sayso.agent.toolsets.embedding import HttpEmbedder
from sayso.agent.toolsets.mcp import McpToolProvider
from sayso.agent.toolsets.mcp_connection import import_sdk
from sayso.agent.toolsets.openapi import OpenApiToolProvider
from sayso.agent.toolsets.openapi_request import Auth
from sayso.agent.toolsets.refresh import LiveSource, ToolsetRefresher
from sayso.agent.toolsets.selectors import SelectorLoadError, ToolSelector, UserRoles, find_selector
from sayso.channels.base import Secret
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.settings.tools import (
    AnySource,
    AuthSettings,
    McpSource,
    ModuleSource,
    OpenApiSource,
    SelectorSettings,
    SourceSettings,
    ToolboxSource,
    YamlPath,
)
from sayso.infra.concurrency import run_sync
from sayso.infra.spelling import did_you_mean
from sayso.infra.urls import has_http_scheme
from sayso.pending.error_texts import error_text
from sayso.pending.executors import ExecutorFactory
from sayso.workers.access import role_names

#: How long a process waits at its start for remote sources, in seconds. An answer that comes later
#: is used when it arrives.
OPEN_SECONDS = 10.0
#: The most tools of one source that are listed as left out.
MAX_LEFT_OUT_LINES = 20
#: The end of the message about a remote source that does not answer.
_GOES_ON = "the bot runs without its tools, and tries again until it answers"


@dataclass(frozen=True, slots=True)
class OpenTools:
    """All tools of a configuration. Lives as long as the process."""

    #: The tools that exist now, by their names.
    registry: ToolRegistry = field(default_factory=ToolRegistry)
    #: By the kind of a stored action, what rebuilds the function that runs it.
    executor_factories: dict[str, ExecutorFactory] = field(default_factory=dict)
    #: The modules, files and folders that are loaded again when they change, by the id of the
    #: source. Then `replace_source` takes the new contents.
    watched: dict[str, WatchedSource] = field(default_factory=dict)
    #: Files that could not be loaded and sources that did not answer.
    problems: tuple[str, ...] = ()
    #: The positions in the YAML of the remote sources that did not answer.
    unreachable: frozenset[int] = frozenset()
    #: A warning for each tool of an open source that is left out, or that is offered without some
    #: of its parameters.
    left_out: tuple[str, ...] = ()
    #: The names of all tools of each source, before `include`, `exclude` and `namespace` are
    #: applied, by its position in the YAML. A source that could not be listed has no entry.
    own_names: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    #: Puts the tools of remote sources into the `registry` whenever a source lists them; None
    #: without such a source.
    live: ToolsetRefresher | None = None
    #: What each source of this machine has loaded, by its id and in the order of the YAML.
    _contents: dict[str, Sequence[Tool]] = field(default_factory=dict)
    #: The tools that each of them put into the registry (see `_owned_tools`).
    _owned: dict[str, list[Tool]] = field(default_factory=dict)

    @property
    def tools(self) -> list[Tool]:
        """The tools that exist now."""
        return self.registry.all()

    def select(self, patterns: Sequence[str] | None) -> Toolset:
        """Return the tools of a channel: those that a pattern matches, for None all."""
        if patterns is None:
            return self.registry
        return SelectedTools(self.registry, patterns)

    def replace_source(self, source: str, loaded: LoadedTools) -> None:
        """Replace the tools of a source of this machine, by the source's id.

        Which source owns a tool is decided anew for all sources, so that the result is the same as
        after a restart. Raises ToolValidationError, and has changed nothing then.
        """
        contents = {**self._contents, source: loaded.tools}
        owned = _owned_tools(contents)
        changed = {
            each: tools
            for each, tools in owned.items()
            if each == source or tools != self._owned.get(each, [])
        }
        self.registry.replace_sources(changed)
        self._contents.update(contents)
        self._owned.update(owned)

    def close(self) -> None:
        """Disconnect from all remote sources. It may be called again."""
        if self.live is not None:
            atexit.unregister(self.live.close)
            self.live.close()


def _owned_tools(contents: Mapping[str, Sequence[Tool]]) -> dict[str, list[Tool]]:
    """Return the tools that each source owns, by the id of the source.

    `contents` are the tools that each source has loaded, in the order of the YAML. Several modules
    may import the same tool. It belongs to the first of them.
    """
    owned: dict[str, list[Tool]] = {}
    claimed_tools: list[Tool] = []
    for source, tools in contents.items():
        owned[source] = [
            tool for tool in dict.fromkeys(tools) if not _is_among(tool, claimed_tools)
        ]
        claimed_tools += owned[source]
    return owned


def _is_among(tool: Tool, tools: Sequence[Tool]) -> bool:
    """Return whether this very tool is among others: equal tools of two modules are two tools."""
    return any(tool is each for each in tools)


@dataclass(frozen=True, slots=True)
class SelectedTools:
    """The tools of a registry whose names match, looked up again at each call of `all`."""

    registry: ToolRegistry
    patterns: Sequence[str]

    def all(self) -> list[Tool]:
        """Return the matching tools, in the order in which they were loaded."""
        return [
            tool
            for tool in self.registry.all()
            if any(fnmatchcase(tool.name, each) for each in self.patterns)
        ]


def open_tools(
    settings: Settings, *, remote: bool = False, strict: bool = False, seconds: float = OPEN_SECONDS
) -> OpenTools:
    """Load the tools that the configuration names.

    * `remote`: whether the remote sources are asked, too. Every process that runs tools sets it.
    * `strict`: whether a source of this machine that cannot be loaded is an error. Otherwise it is
      one of the `problems` of the result.
    * `seconds`: how long to wait for the remote sources. One that does not answer in time is one of
      the `problems`, and is asked again until it answers.

    Relative paths start in the folder of the YAML. Raises ConfigError: with `strict`, and with
    `remote` for a missing library, which no later attempt would find.
    """
    if remote:
        require_tool_libraries(settings)

    ids = [_id(index) for index in range(len(settings.tools))]
    opened = OpenTools(_contents=dict.fromkeys(ids, ()))
    # The order of tools is that of the YAML, no matter which source answers first.
    opened.registry.reserve_places(ids)

    problems: list[str] = []
    left_out: list[str] = []
    own_names: dict[int, tuple[str, ...]] = {}
    for index, source in enumerate(settings.tools):
        if not is_remote(source):
            loaded, its_problems = _open_local(opened, settings, index, source)
            problems += its_problems
            left_out += _left_out_lines(settings, index, source, loaded.left_out, loaded.missing)
            if not its_problems:
                own_names[index] = loaded.own_names
    if problems and strict:
        raise ConfigError(problems)

    live = None
    unreachable: dict[int, str] = {}
    if remote:
        live, unreachable = _open_remote(settings, opened.registry, seconds)
    if live:
        left_out += _left_out_of_remote(settings, live)
        own_names |= _own_names_of_remote(settings, live, unreachable)
    return replace(
        opened,
        problems=(*problems, *unreachable.values()),
        unreachable=frozenset(unreachable),
        left_out=tuple(left_out),
        own_names=own_names,
        live=live,
    )


def _left_out_of_remote(settings: Settings, live: ToolsetRefresher) -> Iterator[str]:
    """Yield the warnings about the tools of all remote sources."""
    left_out = live.left_out()
    missing = live.missing()
    for index, source in enumerate(settings.tools):
        if is_remote(source):
            id_ = _id(index)
            yield from _left_out_lines(
                settings, index, source, left_out.get(id_, {}), missing.get(id_, {})
            )


def _own_names_of_remote(
    settings: Settings, live: ToolsetRefresher, unreachable: Collection[int]
) -> dict[int, tuple[str, ...]]:
    """Return the names of all tools of each remote source that answered, by its position."""
    names = live.listed_names()
    return {
        index: names[_id(index)]
        for index, source in enumerate(settings.tools)
        if is_remote(source) and index not in unreachable
    }


def _left_out_lines(
    settings: Settings,
    index: int,
    source: AnySource,
    left_out: Mapping[str, str],
    missing: Mapping[str, str],
) -> Iterator[str]:
    """Yield a warning for each tool that is left out, or that is offered without a parameter.

    `left_out` and `missing` have the reason by the name of the tool. Of each kind there are at most
    MAX_LEFT_OUT_LINES, and then a line that counts the others.
    """
    start = f"{settings.origin.at('tools', index)}warning: tools: "
    source_name = repr(_name(source))

    for name, why in islice(left_out.items(), MAX_LEFT_OUT_LINES):
        yield f"{start}{name!r} of {source_name} is left out: {why}"
    more = len(left_out) - MAX_LEFT_OUT_LINES
    if more > 0:
        yield f"{start}{more} more of {source_name} are left out"

    for name, why in islice(missing.items(), MAX_LEFT_OUT_LINES):
        yield f"{start}{name!r} of {source_name} is not offered as a whole: {why}"
    more = len(missing) - MAX_LEFT_OUT_LINES
    if more > 0:
        yield f"{start}{more} more of {source_name} are not offered as a whole"


def mcp_library_problems(settings: Settings) -> list[str]:
    """Return a problem for each MCP server if the SDK of MCP is missing or broken.

    The SDK is imported, but only if the configuration names an MCP server.
    """
    servers = [
        index for index, source in enumerate(settings.tools) if isinstance(source, McpSource)
    ]
    if not servers:
        return []
    try:
        import_sdk()
    except LibraryError as exc:
        return [settings.problem(("tools",), str(exc), index) for index in servers]
    return []


def require_tool_libraries(settings: Settings) -> None:
    """Raise ConfigError if a library of a configured source is not installed.

    The error has all lines of the YAML that need one, each with its cure.
    """
    problems = mcp_library_problems(settings)
    for index, source in enumerate(settings.tools):
        if not isinstance(source, ToolboxSource):
            continue
        for family in source.toolbox:
            try:
                need(family)
            except ToolLoadError as exc:
                problems.append(settings.problem(("tools",), str(exc), index))
    if problems:
        raise ConfigError(problems)


def is_remote(source: AnySource) -> bool:
    """Return whether a server has to be asked for the tools of a source."""
    if isinstance(source, OpenApiSource):
        return has_http_scheme(source.openapi)
    return isinstance(source, McpSource)


def _open_local(
    opened: OpenTools, settings: Settings, index: int, source: AnySource
) -> tuple[LoadedTools, list[str]]:
    """Load a source of this machine into `opened`. Return its contents and its problems."""
    loaded = LoadedTools()
    folder = settings.origin.folder
    problem = ""
    try:
        loaded = _load(source, folder)
        opened.replace_source(_id(index), loaded)
        for kind, factory in loaded.executor_factories.items():
            claim(opened.executor_factories, kind, factory, _name(source))
    except SystemExit:
        problem = f"{_name(source)!r} ends the program when imported"
    except (ToolLoadError, SourceError) as exc:
        problem = str(exc)
    except ToolError as exc:
        problem = f"cannot load tools from {_name(source)!r}: {exc}"
    else:
        is_empty = not (loaded.tools or loaded.executor_factories or loaded.problems)
        if is_empty:
            problem = f"nothing is taken from {_name(source)!r}: {_cure_of_empty_source(source)}"

    # Also a source that could not be loaded is watched: its next save may mend it.
    if isinstance(source, str | ModuleSource):
        load_again = partial(_load, source, folder, again=True)
        opened.watched[_id(index)] = WatchedSource(_name(source), loaded.files, load_again)

    problems = list(loaded.problems)
    if problem:
        problems.insert(0, settings.problem(("tools",), problem, index))
    return loaded, problems


def _cure_of_empty_source(source: AnySource) -> str:
    """Return what to do about a source that was loaded and has no tools."""
    patterns: list[str] = []
    if isinstance(source, ModuleSource | ToolboxSource):
        patterns = [*(source.include or ()), *source.exclude]
    if patterns:
        return "see whether `include` and `exclude` name what you want"
    return "decorate its functions with @tool(), or take its line out"


def _load(source: AnySource, folder: Path, *, again: bool = False) -> LoadedTools:
    """Return the tools of a source of this machine.

    With `again` its modules are imported anew. Raises ToolLoadError, SourceError and ToolError.
    """
    match source:
        case str():
            return load_tools(source, folder, again=again)
        case ModuleSource():
            loaded = load_tools(source.module, folder, again=again)
            return _apply_section(source, loaded)
        case ToolboxSource():
            file_folder = _path_below(folder, source.folder) if source.folder else None
            tools = open_toolbox(source.toolbox, folder=file_folder, hosts=source.hosts)
            return _apply_section(source, LoadedTools(tuple(tools)))
        case _:
            provider = tool_provider(source, folder)
            listed = run_sync(provider.list_tools())
            named = runnable_tools(provider, listed, source.namespace or "", source.confirm)
            missing = dict(getattr(provider, "missing", {}))
            return LoadedTools(
                tuple(named),
                left_out=dict(provider.left_out),
                missing=missing,
                own_names=provider.listed_names,
            )


def _apply_section(source: SourceSettings, loaded: LoadedTools) -> LoadedTools:
    """Return what was loaded with the settings of its source applied.

    `include` and `exclude` choose tools; `namespace`, `confirm` and `timeout` change them. The
    patterns are for the names without the namespace.
    """
    choice = ToolFilter(source.include, source.exclude)
    namespace = source.namespace
    adapted_tools = []
    for tool in loaded.tools:
        if not choice.accepts(tool.name):
            continue
        adapted = tool
        if namespace:
            full_name = legal_names([tool.name], namespace)[tool.name]
            adapted = renamed(tool, full_name, namespace)
        adapted = with_confirmation(adapted, tool.name, source.confirm)
        if source.timeout is not None:
            metadata = replace(adapted.metadata, timeout=source.timeout)
            adapted = replace(adapted, metadata=metadata)
        adapted_tools.append(adapted)
    own_names = tuple(tool.name for tool in loaded.tools)
    return replace(loaded, tools=tuple(adapted_tools), own_names=own_names)


def _name(source: AnySource) -> str:
    """Return what messages call a source. It never holds a secret."""
    match source:
        case str():
            return source
        case ModuleSource():
            return source.module
        case ToolboxSource():
            return ", ".join(source.toolbox)
        case _:
            return source.namespace or tool_provider(source, Path()).name


def _open_remote(
    settings: Settings, registry: ToolRegistry, seconds: float
) -> tuple[ToolsetRefresher | None, dict[int, str]]:
    """Connect to the remote sources, and wait for their tools for `seconds` at most.

    Return what keeps their tools up to date, None without such a source, and a problem for each
    source that did not answer, by its position in the YAML.
    """
    names = {}
    sources = []
    for index, source in enumerate(settings.tools):
        if isinstance(source, McpSource | OpenApiSource) and is_remote(source):
            name = _name(source)
            provider = tool_provider(source, settings.origin.folder)
            namespace = source.namespace or ""
            names[index] = name
            sources.append(LiveSource(_id(index), name, provider, namespace, source.confirm))
    if not sources:
        return None, {}
    ids = [source.id for source in sources]

    def replace_tools(source: str, tools: list[Tool]) -> Mapping[str, str]:
        """Replace the tools of a remote source.

        Of two remote sources with tools of the same name, the first in the YAML keeps its tools. A
        name of a local tool raises ToolValidationError.
        """
        return registry.replace_source(source, tools, gives_way=ids[ids.index(source) + 1 :])

    live = ToolsetRefresher(sources, replace_tools)
    atexit.register(live.close)  # also for a process whose start fails later
    reasons = live.open(seconds)

    problems = {}
    for index, name in names.items():
        reason = reasons.get(_id(index))
        if reason is not None:
            says = f"{name!r} does not answer yet: {reason}; {_GOES_ON}"
            problems[index] = settings.problem(("tools",), says, index)
    return live, problems


def _id(index: int) -> str:
    """Return the id of the source at this position in the YAML, as the registry knows it.

    The name of a source is no id, because two lines may name the same module.
    """
    return f"tools.{index}"


def names_of_remote(settings: Settings) -> list[str]:
    """Return the names of the sources that are asked for their tools, in the order of the YAML."""
    return [_name(source) for source in settings.tools if is_remote(source)]


def tool_provider(
    source: McpSource | OpenApiSource, folder: Path
) -> McpToolProvider | OpenApiToolProvider:
    """Return what lists and runs the tools of a section, not connected yet.

    Relative paths start at the folder.
    """
    if isinstance(source, McpSource):
        return _mcp_provider(source, folder)
    document: str | Path = source.openapi
    if not is_remote(source):
        document = _path_below(folder, source.openapi)
    return OpenApiToolProvider(
        document,
        base_url=source.base_url or "",
        auth=[_auth(each) for each in (source.auth, *source.more_auth) if each is not None],
        arguments=source.arguments,
        name=source.namespace or "",
        include=source.include,
        exclude=source.exclude,
        seconds=source.timeout or openapi.CALL_SECONDS,
    )


def _path_below(folder: Path, path: str) -> Path:
    """Return a path of the YAML. A relative one starts at the folder, ~ is the home folder."""
    # `Path.expanduser` would raise an error for the ~ of a person who does not exist.
    return folder / os.path.expanduser(path)  # noqa: PTH111


def _mcp_provider(source: McpSource, folder: Path) -> McpToolProvider:
    """Return what lists and runs the tools of an MCP server, not connected yet."""
    server = source.mcp
    command, *args = server.command or [""]
    working_folder = None
    if server.command:
        working_folder = _path_below(folder, server.cwd or "")
    return McpToolProvider(
        command,
        args,
        env=_secret_values(server.env),
        cwd=working_folder,
        url=server.url or "",
        headers=_secret_values(server.headers),
        name=source.namespace or "",
        include=source.include,
        exclude=source.exclude,
        call_seconds=source.timeout or mcp.CALL_SECONDS,
    )


def _secret_values(secrets: Mapping[str, Secret]) -> dict[str, str]:
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


def _auth(settings: AuthSettings) -> Auth:
    if settings.bearer is not None:
        return Auth.bearer(settings.bearer.get_secret_value())
    if settings.basic is not None:
        return Auth.basic(settings.basic.user, settings.basic.password.get_secret_value())
    key = settings.value.get_secret_value() if settings.value else ""
    if settings.header is not None:
        return Auth("header", settings.header, key)
    if settings.query is not None:
        return Auth("query", settings.query, key)
    return Auth("cookie", settings.cookie or "", key)


def build_selector(settings: Settings, channel: str) -> ToolSelector | None:
    """Return the selector of a channel, None where all its tools are shown. Raises ConfigError.

    The roles of `access` come first: `selector` chooses from what they leave.
    """
    selectors = [
        _build(settings, selector, path)
        for selector, path in _configured_selectors(settings, channel)
    ]
    if len(selectors) > 1:
        return AllOf(*selectors)
    if selectors:
        return selectors[0]
    return None


def _configured_selectors(
    settings: Settings, channel: str
) -> Iterator[tuple[SelectorSettings, YamlPath]]:
    """Yield the selectors of a channel, each with its path in the YAML.

    The YAML may spell a user id with or without the platform's prefix (`user_id_prefix`). The
    selector of the roles gets the spelling that turns have.
    """
    chosen = settings.channels[channel]
    if chosen.access and chosen.access.roles:
        users = role_names(chosen.access.roles.users.items(), prefix=chosen.user_id_prefix)
        roles = chosen.access.roles.model_copy(update={"users": users})
        yield SelectorSettings(roles=roles), ("channels", channel, "access")
    if chosen.selector:
        yield chosen.selector, ("channels", channel, "selector")


def _build(settings: Settings, selector: SelectorSettings, path: YamlPath) -> ToolSelector:
    """Return a selector, with the tools that it always shows.

    `path` is that of its section in the YAML. Raises ConfigError with the line of what cannot be
    built.
    """
    built: ToolSelector
    if selector.keyword is not None:
        built = KeywordSelector(selector.keyword, whole_words=selector.whole_words)
    elif selector.roles is not None:
        roles = selector.roles
        built = RoleBasedSelector(UserRoles(roles.users, roles.default), allowed=roles.allowed)
    elif selector.embedding is not None:
        embedding = selector.embedding
        embedder = None
        if embedding.base_url:
            key = ""
            if embedding.api_key:
                key = embedding.api_key.get_secret_value()
            embedder = HttpEmbedder(embedding.model, base_url=embedding.base_url, api_key=key)
        built = EmbeddingSelector(
            embedding.model,
            embedding.top_k,
            embedder,
            show_all_tokens=embedding.show_all_tokens,
        )
    elif selector.plugin is not None:
        built = _plugin(settings, selector, selector.plugin, path)
    else:
        parts = [
            _build(settings, part, part_path)
            for part, part_path in _parts(settings, selector, path)
        ]
        combination = AllOf if selector.any_of is None else AnyOf
        built = combination(*parts)
    if selector.always:
        return Always(built, selector.always)
    return built


def _plugin(
    settings: Settings, selector: SelectorSettings, name: str, path: YamlPath
) -> ToolSelector:
    """Return the selector of another distribution, by the name of its entry point.

    Raises ConfigError where there is none, and where it refuses the options.
    """
    try:
        plugin = find_selector(name)
    except SelectorLoadError as exc:
        raise ConfigError([settings.problem((*path, "plugin"), str(exc))]) from exc
    try:
        built: ToolSelector = plugin(**selector.options)
    except Exception as exc:
        says = f"{name!r} does not take them: {type(exc).__name__}: {error_text(exc)}"
        raise ConfigError([settings.problem((*path, "options"), says)]) from exc
    if selector.on_error == "all":
        return FailOpen(built)
    return built


def _parts(
    settings: Settings, selector: SelectorSettings, path: YamlPath
) -> Iterator[tuple[SelectorSettings, YamlPath]]:
    """Yield the selectors inside a selector, each with its path in the YAML."""
    for key, parts in (("any", selector.any_of), ("all", selector.all_of)):
        # A list in place of a section means `all`. Then its parts stand right below the path.
        list_path = path
        if (*path, key) in settings.origin.places:
            list_path = (*path, key)
        for index, part in enumerate(parts or ()):
            yield part, (*list_path, index)


def unknown_names(settings: Settings, channel: str, tools: Sequence[Tool]) -> list[str]:
    """Return a problem for each name of a tool or an argument that a channel gets wrong.

    `tools` are those of the channel. The tools in its selector are checked, and the arguments in
    `deny_when` and `editable` of its policy. A pattern of the policy that names no tool is not
    reported here: it may be older than its tool, so `sayso check` warns about it.
    """
    return [
        *_unknown_in_selectors(settings, channel, [tool.name for tool in tools]),
        *_unknown_in_deny_when(settings, channel, tools),
        *_unknown_editable(settings, channel, tools),
    ]


def _unknown_in_selectors(settings: Settings, channel: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a problem for each name or pattern in a channel's selectors that names no tool."""
    lower_names = [name.lower() for name in names]
    for selector, path in _configured_selectors(settings, channel):
        for named in _patterns_in(settings, selector, path):
            pattern = named.pattern
            if named.is_keyword:
                is_known = pattern.lower() in lower_names
            else:
                is_known = any(fnmatchcase(name, pattern) for name in names)
            if not is_known:
                says = f"{pattern!r} names no tool of this channel{_hint(pattern, names)}"
                yield settings.problem(named.section, says, *named.below)


def _unknown_in_deny_when(settings: Settings, channel: str, tools: Sequence[Tool]) -> Iterator[str]:
    """Yield a problem for each argument in a channel's `deny_when` that none of the tools has.

    Such a rule would deny nothing, and no one would notice. A tool whose schema allows any argument
    may have it.
    """
    policy = settings.channels[channel].policy
    if policy is None:
        return
    for index, rule in enumerate(policy.deny_when):
        # As in ToolPolicy: a rule that restricts names a tool in any case, `editable` does not.
        pattern = rule.tool.casefold()
        matching = [tool for tool in tools if fnmatchcase(tool.name.casefold(), pattern)]
        if not matching:
            continue
        known = _arguments_of(matching)
        schemas = [tool.input_schema for tool in matching if tool.input_schema is not None]
        takes_any = any(schema.get("additionalProperties", True) is not False for schema in schemas)
        if rule.arg not in known and not takes_any:
            tool_names = ", ".join(tool.name for tool in matching)
            says = f"{rule.arg!r} is not an argument of {tool_names}{_hint(rule.arg, known)}"
            path = ("channels", channel, "policy", "deny_when", index)
            yield settings.problem(path, says, "arg")


def _unknown_editable(settings: Settings, channel: str, tools: Sequence[Tool]) -> Iterator[str]:
    """Yield a problem for each argument in a channel's `editable` that no person could change.

    None of the tools that the pattern names has the argument, or it fits in no form.
    """
    policy = settings.channels[channel].policy
    if policy is None:
        return
    for pattern, arguments in policy.editable.items():
        matching = [tool for tool in tools if fnmatchcase(tool.name, pattern)]
        if not matching:
            continue
        names = ", ".join(tool.name for tool in matching)
        known = _arguments_of(matching)
        for index, argument in enumerate(arguments):
            says = ""
            if argument not in known:
                says = f"{argument!r} is not an argument of {names}{_hint(argument, known)}"
            elif not any(tool.edit_fields([argument], {}) for tool in matching):
                says = f"{argument!r} of {names} fits in no form, so no person can change it"
            if says:
                path = ("channels", channel, "policy", "editable", pattern)
                yield settings.problem(path, says, index)


def _arguments_of(tools: Iterable[Tool]) -> list[str]:
    """Return the names of the arguments of these tools that a model fills."""
    arguments: set[str] = set()
    for tool in tools:
        arguments |= {each.name for each in tool.parameters} - tool.hidden_names
    return sorted(arguments)


class _NamedTools(NamedTuple):
    """A name or pattern of tools in a selector."""

    pattern: str
    #: The path of the selector in the YAML.
    section: YamlPath
    #: The path of the name below the selector.
    below: YamlPath
    #: Whether it is a key of `keyword`: a name of one tool, in upper or lower case.
    is_keyword: bool = False


def _patterns_in(
    settings: Settings, selector: SelectorSettings, path: YamlPath
) -> Iterator[_NamedTools]:
    """Yield every name or pattern of tools in a selector and its parts."""
    for name in selector.keyword or ():
        yield _NamedTools(name, path, ("keyword", name), is_keyword=True)
    for index, pattern in enumerate(selector.always):
        yield _NamedTools(pattern, path, ("always", index))
    if selector.roles:
        for role, patterns in selector.roles.allowed.items():
            for index, pattern in enumerate(patterns):
                yield _NamedTools(pattern, path, ("roles", "allowed", role, index))
    for part, part_path in _parts(settings, selector, path):
        yield from _patterns_in(settings, part, part_path)


def _hint(name: str, known: Sequence[str]) -> str:
    """Return the end of an error: the nearest known name, and all of them."""
    return f"{did_you_mean(name, known, ', {}')}; known: {', '.join(known) or 'none'}"
