"""Selection: a channel's selector as it is configured, and what in it names something that is not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from sayso.agent import AllOf, Always, AnyOf, EmbeddingSelector, FailOpen, KeywordSelector, RoleBasedSelector, Tool
from sayso.agent.selectors import Embedder, HttpEmbedder, SelectorLoadError, ToolSelector, UserRoles, find_selector
from sayso.agent.tools.nearest import did_you_mean
from sayso.channels.admission import role_names
from sayso.config.loader import ConfigError
from sayso.config.schema import (
    DenyWhenSettings,
    EmbeddingSettings,
    Path_,
    RolesSettings,
    SelectorSettings,
    Settings,
    WhatsAppSettings,
)


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


def misnamed(settings: Settings, channel: str, tools: Sequence[Tool]) -> list[str]:
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
