"""Try whether the optional libraries that the configured features need are installed.

An *extra* is an optional part of the package, such as `sayso[llm]`, which installs the libraries of
one feature.
"""

from __future__ import annotations

from collections.abc import Iterator

from sayso.agent.extras import LibraryError, import_libraries
from sayso.agent.toolbox import try_libraries
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.settings.tools import ToolboxSource
from sayso.config.wiring.models import model_library_problems
from sayso.config.wiring.observability import TracingError, find_exporters, import_tracing
from sayso.config.wiring.stores import open_bucket
from sayso.config.wiring.tools import mcp_library_problems


def library_problems(settings: Settings) -> list[str]:
    """Return a problem for each library that is missing or broken, with its line and its cure.

    The library of every configured feature is imported: models, tools, tracing, the bucket and
    channels. This takes a second or two where a model is configured, since its library is large.
    """
    return [
        *model_library_problems(settings),
        *mcp_library_problems(settings),
        *_toolbox_problems(settings),
        *_tracing_problems(settings),
        *_bucket_problems(settings),
        *_channel_problems(settings),
    ]


def require_channel_library(settings: Settings, channel: str) -> None:
    """Import the library that a channel needs besides that of its platform, if it needs one.

    Raises ConfigError where it is missing or broken.
    """
    extra, module = settings.channels[channel].needed_library
    if not extra:
        return
    try:
        import_libraries(extra, module)
    except LibraryError as exc:
        raise ConfigError([settings.problem(("channels", channel), str(exc))]) from exc


def _toolbox_problems(settings: Settings) -> Iterator[str]:
    for index, source in enumerate(settings.tools):
        if not isinstance(source, ToolboxSource):
            continue
        try:
            try_libraries(source.toolbox)
        except LibraryError as exc:
            yield settings.problem(("tools",), str(exc), index)


def _tracing_problems(settings: Settings) -> Iterator[str]:
    if not settings.agent.observe.otel:
        return
    try:
        import_tracing()
        find_exporters()
    except TracingError as exc:
        yield settings.problem(("agent", "observe", "otel"), str(exc))


def _bucket_problems(settings: Settings) -> Iterator[str]:
    try:
        open_bucket(settings)
    except ConfigError as exc:
        yield from exc.problems


def _channel_problems(settings: Settings) -> Iterator[str]:
    for name in settings.channels:
        try:
            require_channel_library(settings, name)
        except ConfigError as exc:
            yield from exc.problems
