"""Sources: the tools that the configuration names, loaded, and those of remote sources as they come."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.sources import McpToolProvider, OpenApiToolProvider, mcp, openapi, provided
from agent.sources.confirming import asking
from agent.sources.errors import SourceError
from agent.sources.live import LiveSource, LiveSources
from agent.sources.names import Choice
from agent.sources.openapi_auth import Auth
from agent.toolbox import open_toolbox
from agent.tools import LoadedTools, Tool, ToolRegistry, load_tools
from agent.tools.errors import ToolError, ToolLoadError
from config.loader import ConfigError
from config.schema import (
    AnySource,
    AuthSettings,
    McpSource,
    ModuleSource,
    OpenApiSource,
    Secret,
    Settings,
    SourceSettings,
    ToolboxSource,
)
from pending.proposals import ExecutorFactory
from workers.offload import run_sync

#: Seconds that a process waits at its start for remote sources; those that answer later are there from then on.
OPEN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class OpenTools:
    """All tools of a configuration. `problems` are files that could not be loaded and sources that did not answer;
    `loaded` is what each module, file and folder held, by what the configuration calls it.

    Remote sources that are open put their tools into the `registry` as they list them.
    """

    registry: ToolRegistry
    executor_factories: Mapping[str, ExecutorFactory] = field(default_factory=dict)
    loaded: Mapping[str, LoadedTools] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    live: LiveSources | None = None

    @property
    def tools(self) -> list[Tool]:
        """Those there are now."""
        return self.registry.all()

    def select(self, patterns: Sequence[str] | None) -> Selected:
        """A channel's part of it; all without patterns."""
        return Selected(self.registry, patterns)

    def replace(self, source: str, loaded: LoadedTools) -> None:
        """From now on this module, file or folder holds these tools. Raises ToolValidationError."""
        others = [tool for tool in self.registry.all() if not any(tool is each for each in self.loaded[source].tools)]
        self.registry.replace_source(
            source, [tool for tool in loaded.tools if not any(tool is each for each in others)]
        )

    def close(self) -> None:
        """Leave all remote sources."""
        if self.live is not None:
            self.live.close()


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
    registry, factories, loaded, wrong = ToolRegistry(), dict[str, ExecutorFactory](), dict[str, LoadedTools](), []
    for index, source in enumerate(settings.tools):
        if is_remote(source):
            continue
        loaded[_id(index, source)] = LoadedTools()
        try:
            held = loaded[_id(index, source)] = _loaded(source, settings.origin.folder)
            registry.replace_source(_id(index, source), _new(held.tools, registry))
            _add_factories(factories, held, source)
            wrong += _empty(settings, index, source, held)
        except (ToolError, SystemExit) as exc:
            wrong.append(_problem(settings, index, source, exc))
    wrong += [problem for each in loaded.values() for problem in each.problems]
    if wrong and strict:
        raise ConfigError(wrong)
    live = _live(settings, registry) if remote else None
    unreached = _opened(settings, live, seconds) if live else []
    named = {source: loaded[source] for source in settings.tools if isinstance(source, str)}
    return OpenTools(registry, factories, named, (*wrong, *unreached), live)


def is_remote(source: AnySource) -> bool:
    """Whether somebody else has to be asked for its tools."""
    if isinstance(source, OpenApiSource):
        return source.openapi.startswith(("http://", "https://"))
    return isinstance(source, McpSource)


def _loaded(source: AnySource, folder: Path) -> LoadedTools:
    match source:
        case str():
            return load_tools(source, folder)
        case ModuleSource():
            loaded = load_tools(source.module, folder)
            return replace(loaded, tools=_chosen(source, loaded.tools))
        case ToolboxSource():
            own = folder / source.folder if source.folder else None
            return LoadedTools(_chosen(source, open_toolbox(source.toolbox, folder=own, hosts=source.hosts)))
        case _:
            provider = _provider(source, folder)
            tools = run_sync(provider.list_tools())
            return LoadedTools(tuple(provided(provider, tools, source.namespace or "", source.confirm)))


def _chosen(source: SourceSettings, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Those that are taken, as they are called here, told whether they ask. Patterns are over their own names."""
    choice = Choice(source.include, source.exclude)
    return tuple(
        asking(tool.update_namespace(source.namespace), tool.name, source.confirm)
        for tool in tools
        if choice.takes(tool.name)
    )


def _new(tools: Sequence[Tool], registry: ToolRegistry) -> list[Tool]:
    """Without those that another source has brought: a module may import another's tools."""
    known = registry.all()
    return [tool for tool in dict.fromkeys(tools) if not any(tool is each for each in known)]


def _add_factories(factories: dict[str, ExecutorFactory], loaded: LoadedTools, source: AnySource) -> None:
    for kind, factory in loaded.executor_factories.items():
        if factories.setdefault(kind, factory) is not factory:
            raise ToolLoadError(f"cannot load tools from {_name(source)!r}: {kind!r} is defined twice, rename one")


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
            return source.namespace or _provider(source, Path()).name


def _live(settings: Settings, registry: ToolRegistry) -> LiveSources | None:
    sources = [
        LiveSource(
            _id(index, source),
            _name(source),
            _provider(source, settings.origin.folder),
            source.namespace or "",
            source.confirm,
        )
        for index, source in enumerate(settings.tools)
        if isinstance(source, McpSource | OpenApiSource) and is_remote(source)
    ]
    return LiveSources(sources, registry.replace_source) if sources else None


def _opened(settings: Settings, live: LiveSources, seconds: float) -> list[str]:
    why = live.open(seconds)
    return [
        f"{settings.origin.at('tools', index)}tools: {_name(source)!r} is not there yet: {why[_id(index, source)]}; "
        "the bot runs without its tools, and tries again until it answers"
        for index, source in enumerate(settings.tools)
        if _id(index, source) in why
    ]


def _provider(source: McpSource | OpenApiSource, folder: Path) -> McpToolProvider | OpenApiToolProvider:
    return _mcp(source, folder) if isinstance(source, McpSource) else _openapi(source, folder)


def _mcp(source: McpSource, folder: Path) -> McpToolProvider:
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


def _id(index: int, source: AnySource) -> str:
    """How the tools of a source are replaced together."""
    return source if isinstance(source, str) else f"tools.{index}"
