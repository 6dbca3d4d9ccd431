"""Try the libraries of the configured features that an extra brings."""

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
    """Import the library of every configured feature that needs one: models, tools, tracing,
    the bucket.

    Returns a problem, with its line and its cure, for each library that is missing or broken. Takes
    a second or two where a model is configured, since its library is large.
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
    """Import the library that a channel needs beside that of its platform. Raises ConfigError."""
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
