"""Sources: the tools that the configuration names, loaded, and those of remote sources as they come."""

from __future__ import annotations

import atexit
import fnmatch
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sayso.agent.sources import provided
from sayso.agent.sources.confirming import asking
from sayso.agent.sources.errors import SourceError
from sayso.agent.sources.live import LiveSource, LiveSources
from sayso.agent.sources.names import Choice, legal_names
from sayso.agent.sources.protocol import called
from sayso.agent.toolbox import open_toolbox
from sayso.agent.tools import LoadedTools, Tool, ToolRegistry, load_tools
from sayso.agent.tools.errors import ToolError, ToolLoadError
from sayso.agent.tools.loader import claim
from sayso.agent.tools.reload import Watched
from sayso.config.loader import ConfigError
from sayso.config.providers import is_remote, mcp_provider, provider_of
from sayso.config.schema import (
    AnySource,
    McpSource,
    ModuleSource,
    OpenApiSource,
    Settings,
    SourceSettings,
    ToolboxSource,
)
from sayso.pending.proposals import ExecutorFactory
from sayso.workers.offload import run_sync

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
    live: LiveSources | None = None
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
    made = asking(here, tool.name, source.confirm)
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


def _live(settings: Settings, registry: ToolRegistry) -> LiveSources | None:
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
    return LiveSources(sources, registry.replace_source) if sources else None


def _unreached(settings: Settings, live: LiveSources, seconds: float) -> list[str]:
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
