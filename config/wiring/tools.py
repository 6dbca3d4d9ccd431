"""Tools, remote sources, selectors."""

from __future__ import annotations

import atexit
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from sayso.agent import AllOf, Always, AnyOf, EmbeddingSelector, FailOpen, KeywordSelector, RoleBasedSelector
from sayso.agent.toolbox import open_toolbox
from sayso.agent.tools import LoadedTools, Tool, ToolRegistry, load_tools
from sayso.agent.tools.errors import ToolError, ToolLoadError, did_you_mean
from sayso.agent.tools.loading import Watched, claim
from sayso.agent.toolsets import mcp, openapi
from sayso.agent.toolsets.base import Choice, SourceError, called, legal_names, provided, requires_confirmation
from sayso.agent.toolsets.embedding import HttpEmbedder
from sayso.agent.toolsets.mcp import McpToolProvider
from sayso.agent.toolsets.openapi import OpenApiToolProvider
from sayso.agent.toolsets.openapi_request import Auth
from sayso.agent.toolsets.plugins import SelectorLoadError, find_selector
from sayso.agent.toolsets.refresh import LiveSource, ToolsetRefresher
from sayso.agent.toolsets.selectors import Embedder, ToolSelector, UserRoles
from sayso.config.settings.base import Path_, Secret
from sayso.config.settings.channels import DenyWhenSettings, WhatsAppSettings
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.settings.tools import (
    AnySource,
    AuthSettings,
    EmbeddingSettings,
    McpSource,
    ModuleSource,
    OpenApiSource,
    RolesSettings,
    SelectorSettings,
    SourceSettings,
    ToolboxSource,
)
from sayso.pending.concurrency import run_sync
from sayso.pending.executors import ExecutorFactory
from sayso.workers.access.rules import role_names


def is_remote(source: AnySource) -> bool:
    """Whether somebody else has to be asked for its tools."""
    if isinstance(source, OpenApiSource):
        return source.openapi.startswith(("http://", "https://"))
    return isinstance(source, McpSource)


def provider_of(source: McpSource | OpenApiSource, folder: Path) -> McpToolProvider | OpenApiToolProvider:
    """Who lists and runs the tools of a section; relative paths start at the folder."""
    return mcp_provider(source, folder) if isinstance(source, McpSource) else _openapi(source, folder)


def mcp_provider(source: McpSource, folder: Path) -> McpToolProvider:
    """Who asks this MCP server; it is not asked yet."""
    server = source.mcp
    command, *args = server.command or [""]
    return McpToolProvider(
        command,
        args,
        env=_plain(server.env),
        cwd=folder / (server.cwd or "") if server.command else None,
        url=server.url or "",
        headers=_plain(server.headers),
        name=source.namespace or "",
        include=source.include,
        exclude=source.exclude,
        call_seconds=source.timeout or mcp.CALL_SECONDS,
    )


def _openapi(source: OpenApiSource, folder: Path) -> OpenApiToolProvider:
    document = source.openapi if is_remote(source) else folder / Path(source.openapi).expanduser()
    return OpenApiToolProvider(
        document,
        base_url=source.base_url or "",
        auth=_auth(source.auth),
        arguments=source.arguments,
        name=source.namespace or "",
        include=source.include,
        exclude=source.exclude,
        seconds=source.timeout or openapi.CALL_SECONDS,
    )


def _auth(settings: AuthSettings | None) -> Auth | None:
    if settings is None:
        return None
    if settings.bearer is not None:
        return Auth.bearer(settings.bearer.get_secret_value())
    if settings.basic is not None:
        return Auth.basic(settings.basic.user, settings.basic.password.get_secret_value())
    value = settings.value.get_secret_value() if settings.value else ""
    if settings.header is not None:
        return Auth("header", settings.header, value)
    return (
        Auth("query", settings.query, value)
        if settings.query is not None
        else Auth("cookie", settings.cookie or "", value)
    )


def _plain(secrets: Mapping[str, Secret]) -> dict[str, str]:
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


def build_selector(settings: Settings, channel: str) -> ToolSelector | None:
    """The selector of a channel, None where all its tools are shown. Raises ConfigError.

    What the roles of its `access` may use comes first: the selector chooses from that.
    """
    build = _Builder(settings).build
    made = [build(given, path) for given, path in _configured(settings, channel)]
    return AllOf(*made) if len(made) > 1 else made[0] if made else None


def _configured(settings: Settings, channel: str) -> Iterator[tuple[SelectorSettings, Path_]]:
    """The selectors of a channel with their places; roles spelled as its people are."""
    chosen = settings.channels[channel]
    if chosen.access and chosen.access.roles:
        phones = isinstance(chosen, WhatsAppSettings)
        users = role_names(chosen.access.roles.users.items(), phones=phones)
        roles = chosen.access.roles.model_copy(update={"users": users})
        yield SelectorSettings(roles=roles), ("channels", channel, "access")
    if chosen.selector:
        yield chosen.selector, ("channels", channel, "selector")


class _Builder:
    """Makes selectors out of settings, and says of one that cannot be made where it stands."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def build(self, given: SelectorSettings, path: Path_) -> ToolSelector:
        made = self._of_kind(given, path)
        return Always(made, given.always) if given.always else made

    def _of_kind(self, given: SelectorSettings, path: Path_) -> ToolSelector:
        if given.keyword is not None:
            return KeywordSelector(given.keyword, whole_words=given.whole_words)
        if given.roles is not None:
            return _roles(given.roles)
        if given.embedding is not None:
            return _embedding(given.embedding)
        if given.plugin is not None:
            return self._plugin(given, given.plugin, path)
        parts = [self.build(part, at) for part, at in _parts(self._settings, given, path)]
        return AnyOf(*parts) if given.any_of is not None else AllOf(*parts)

    def _plugin(self, given: SelectorSettings, name: str, path: Path_) -> ToolSelector:
        try:
            found = find_selector(name)
        except SelectorLoadError as exc:
            raise ConfigError([f"{self._settings.origin.at(*path, 'plugin')}{_dotted(path)}.plugin: {exc}"]) from exc
        try:
            made: ToolSelector = found(**given.options)
        except Exception as exc:
            where, said = self._settings.origin.at(*path, "options"), f"{type(exc).__name__}: {exc}"
            raise ConfigError([f"{where}{_dotted(path)}.options: {name!r} does not take them: {said}"]) from exc
        return FailOpen(made) if given.on_error == "all" else made


def _roles(given: RolesSettings) -> RoleBasedSelector:
    return RoleBasedSelector(UserRoles(given.users, given.default), allowed=given.allowed)


def _embedding(given: EmbeddingSettings) -> EmbeddingSelector:
    embedder: Embedder | None = None
    if given.base_url:
        embedder = HttpEmbedder(
            given.model, base_url=given.base_url, api_key=given.api_key.get_secret_value() if given.api_key else ""
        )
    return EmbeddingSelector(given.model, given.top_k, embedder)


def _parts(settings: Settings, given: SelectorSettings, path: Path_) -> Iterator[tuple[SelectorSettings, Path_]]:
    """The selectors inside one, each with its place: a list may stand there itself, or under `all`."""
    for key, parts in (("any", given.any_of), ("all", given.all_of)):
        below = (*path, key) if (*path, key) in settings.origin.places else path
        yield from ((part, (*below, index)) for index, part in enumerate(parts or ()))


def unknown_names(settings: Settings, channel: str, tools: Sequence[Tool]) -> list[str]:
    """What in a channel's selector names none of its tools, and in its `deny_when` none of their arguments."""
    chosen = settings.channels[channel]
    problems = []
    for given, path in _configured(settings, channel):
        problems += _lost(settings, given, path, [tool.name for tool in tools])
    for index, rule in enumerate(chosen.policy.deny_when if chosen.policy else ()):
        problems += _unknown_argument(settings, rule, ("channels", channel, "policy", "deny_when", index, "arg"), tools)
    return problems


def _lost(settings: Settings, given: SelectorSettings, path: Path_, names: Sequence[str]) -> list[str]:
    problems = [
        f"{settings.origin.at(*at)}{_dotted(path)}: {pattern!r} names no tool of this channel{_hint(pattern, names)}"
        for pattern, at in _names_in(given, path)
        if not _matches(pattern, names, exact=at[len(path)] == "keyword")
    ]
    for part, at in _parts(settings, given, path):
        problems += _lost(settings, part, at, names)
    return problems


def _names_in(given: SelectorSettings, path: Path_) -> Iterator[tuple[str, Path_]]:
    """Every name or pattern of tools in a selector, with its place."""
    yield from ((name, (*path, "keyword", name)) for name in given.keyword or ())
    yield from ((name, (*path, "always", index)) for index, name in enumerate(given.always))
    allowed: Mapping[str, list[str]] = given.roles.allowed if given.roles else {}
    for role, patterns in allowed.items():
        yield from ((name, (*path, "roles", "allowed", role, index)) for index, name in enumerate(patterns))


def _matches(pattern: str, names: Sequence[str], *, exact: bool) -> bool:
    if exact:  # a keyword's tool is a name, in any case
        return pattern.lower() in [name.lower() for name in names]
    return any(fnmatchcase(name, pattern) for name in names)


def _unknown_argument(settings: Settings, rule: DenyWhenSettings, path: Path_, tools: Sequence[Tool]) -> list[str]:
    """The problem of a rule over an argument that none of its tools has: it would silently deny nothing."""
    meant = [tool for tool in tools if fnmatchcase(tool.name.casefold(), rule.tool.casefold())]
    known = sorted({parameter.name for tool in meant for parameter in tool.parameters})
    if not meant or rule.arg in known or any(map(_takes_any, meant)):
        return []
    tool_names = ", ".join(tool.name for tool in meant)
    where, dotted = settings.origin.at(*path), _dotted(path[:-1])
    return [f"{where}{dotted}: {rule.arg!r} is no argument of {tool_names}{_hint(rule.arg, known)}"]


def _takes_any(tool: Tool) -> bool:
    """Whether a tool takes arguments that its schema does not name."""
    return tool.input_schema is not None and tool.input_schema.get("additionalProperties", True) is not False


def _hint(name: str, known: Sequence[str]) -> str:
    return f"{did_you_mean(name, known, ', {}')}; known: {', '.join(known) or 'none'}"


def _dotted(path: Path_) -> str:
    return ".".join(str(part) for part in path)


#: Seconds that a process waits at its start for remote sources; those that answer later are there from then on.
OPEN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class OpenTools:
    """All tools of a configuration. `problems` are files that could not be loaded and sources that did not answer;
    `watched` are the modules, files and folders, which may be loaded anew and handed to `replace`.

    Remote sources that are open put their tools into the `registry` as they list them.
    """

    registry: ToolRegistry = field(default_factory=ToolRegistry)
    executor_factories: dict[str, ExecutorFactory] = field(default_factory=dict)
    watched: dict[str, Watched] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    live: ToolsetRefresher | None = None
    #: What each source has in the registry: of tools that several of them import, the first has it.
    _brought: dict[str, list[Tool]] = field(default_factory=dict)

    @property
    def tools(self) -> list[Tool]:
        """Those there are now."""
        return self.registry.all()

    def select(self, patterns: Sequence[str] | None) -> Selected:
        """A channel's part of it; all without patterns."""
        return Selected(self.registry, patterns)

    def replace(self, source: str, loaded: LoadedTools) -> None:
        """From now on this source holds these tools. Raises ToolValidationError, and then has changed nothing."""
        own = self._brought.get(source, [])
        others = [tool for tool in self.registry.all() if not _is_among(tool, own)]
        brought = [tool for tool in dict.fromkeys(loaded.tools) if not _is_among(tool, others)]
        self.registry.replace_source(source, brought)
        self._brought[source] = brought

    def close(self) -> None:
        """Leave all remote sources. Idempotent."""
        if self.live is not None:
            atexit.unregister(self.live.close)
            self.live.close()


def _is_among(tool: Tool, tools: Sequence[Tool]) -> bool:
    return any(tool is each for each in tools)


@dataclass(frozen=True, slots=True)
class Selected:
    """The tools of a registry whose names match, whenever it is asked."""

    registry: ToolRegistry
    patterns: Sequence[str] | None

    def all(self) -> list[Tool]:
        """In the order loaded."""
        tools = self.registry.all()
        if self.patterns is None:
            return tools
        return [tool for tool in tools if any(fnmatch.fnmatchcase(tool.name, each) for each in self.patterns)]


def open_tools(
    settings: Settings, *, remote: bool = False, strict: bool = False, seconds: float = OPEN_SECONDS
) -> OpenTools:
    """Load what the configuration names; relative paths start beside it. With `remote` also what others serve.

    A source that cannot be loaded is one of the `problems`, and the rest is loaded; a remote one that does not answer,
    too, and it is tried again until it does. With `strict`, raises ConfigError for all but those that do not answer.
    """
    opened = OpenTools()
    here = [(index, source) for index, source in enumerate(settings.tools) if not is_remote(source)]
    wrong = [problem for index, source in here for problem in _open(opened, settings, index, source)]
    if wrong and strict:
        raise ConfigError(wrong)
    live = _live(settings, opened.registry) if remote else None
    if live:
        atexit.register(live.close)  # whoever is refused later leaves them too
    unreached = _unreached(settings, live, seconds) if live else []
    return replace(opened, problems=(*wrong, *unreached), live=live)


def own_names(source: McpSource | OpenApiSource | ToolboxSource | ModuleSource, folder: Path) -> list[str]:
    """What a source calls all its tools, also those that are left out. Raises ToolError, when it cannot be asked."""
    whole = source.model_copy(update={"include": None, "exclude": [], "namespace": None})
    if not isinstance(whole, McpSource):
        return [tool.name for tool in _loaded(whole, folder).tools]
    with closing(mcp_provider(whole, folder)) as provider:
        return [tool.name for tool in run_sync(provider.list_tools())]


def _open(opened: OpenTools, settings: Settings, index: int, source: AnySource) -> list[str]:
    """Load a source of this machine; what is wrong with it."""
    held, folder = LoadedTools(), settings.origin.folder
    try:
        held = _loaded(source, folder)
        opened.replace(_id(index), held)
        for kind, factory in held.executor_factories.items():
            claim(opened.executor_factories, kind, factory, _name(source))
        wrong = _empty(settings, index, source, held)
    except (ToolError, SystemExit) as exc:
        wrong = [_problem(settings, index, source, exc)]
    if isinstance(source, str | ModuleSource):
        opened.watched[_id(index)] = Watched(_name(source), held.files, partial(_loaded, source, folder, again=True))
    return [*wrong, *held.problems]


def _loaded(source: AnySource, folder: Path, *, again: bool = False) -> LoadedTools:
    match source:
        case str():
            return load_tools(source, folder, again=again)
        case ModuleSource():
            loaded = load_tools(source.module, folder, again=again)
            return replace(loaded, tools=_chosen(source, loaded.tools))
        case ToolboxSource():
            own = folder / source.folder if source.folder else None
            return LoadedTools(_chosen(source, open_toolbox(source.toolbox, folder=own, hosts=source.hosts)))
        case _:
            provider = provider_of(source, folder)
            tools = run_sync(provider.list_tools())
            return LoadedTools(tuple(provided(provider, tools, source.namespace or "", source.confirm)))


def _chosen(source: SourceSettings, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Those that are taken. Patterns are over their own names."""
    choice = Choice(source.include, source.exclude)
    return tuple(_as_its_section_says(source, tool) for tool in tools if choice.takes(tool.name))


def _as_its_section_says(source: SourceSettings, tool: Tool) -> Tool:
    """Called as it is here, told whether it asks, and for how long it may go on."""
    space = source.namespace
    here = called(tool, legal_names([tool.name], space)[tool.name], space) if space else tool
    made = requires_confirmation(here, tool.name, source.confirm)
    if source.timeout is None:
        return made
    return replace(made, metadata=replace(made.metadata, timeout=source.timeout))


def _empty(settings: Settings, index: int, source: AnySource, held: LoadedTools) -> list[str]:
    """Whoever names a source means to have something of it."""
    if held.tools or held.executor_factories or held.problems:
        return []
    cure = "decorate its functions with @tool(), or take its line out"
    if isinstance(source, ModuleSource | ToolboxSource) and (source.include or source.exclude):
        cure = "see whether `include` and `exclude` name what you want"
    return [f"{settings.origin.at('tools', index)}tools: nothing is taken from {_name(source)!r}: {cure}"]


def _problem(settings: Settings, index: int, source: AnySource, exc: BaseException) -> str:
    where = f"{settings.origin.at('tools', index)}tools: "
    if isinstance(exc, SystemExit):
        return f"{where}{_name(source)!r} ends the program when imported"
    if isinstance(exc, ToolLoadError | SourceError):
        return f"{where}{exc}"
    return f"{where}cannot load tools from {_name(source)!r}: {exc}"


def _name(source: AnySource) -> str:
    """How a source is spoken of: never by what may hold a secret."""
    match source:
        case str():
            return source
        case ModuleSource():
            return source.module
        case ToolboxSource():
            return ", ".join(source.toolbox)
        case _:
            return source.namespace or provider_of(source, Path()).name


def _live(settings: Settings, registry: ToolRegistry) -> ToolsetRefresher | None:
    sources = [
        LiveSource(
            _id(index),
            _name(source),
            provider_of(source, settings.origin.folder),
            source.namespace or "",
            source.confirm,
        )
        for index, source in enumerate(settings.tools)
        if isinstance(source, McpSource | OpenApiSource) and is_remote(source)
    ]
    return ToolsetRefresher(sources, registry.replace_source) if sources else None


def _unreached(settings: Settings, live: ToolsetRefresher, seconds: float) -> list[str]:
    why = live.open(seconds)
    return [
        f"{settings.origin.at('tools', index)}tools: {_name(source)!r} is not there yet: {why[_id(index)]}; "
        "the bot runs without its tools, and tries again until it answers"
        for index, source in enumerate(settings.tools)
        if _id(index) in why
    ]


def _id(index: int) -> str:
    """How the tools of a source are replaced together: two lines of the YAML may name the same module."""
    return f"tools.{index}"
