"""Providers: MCP servers and OpenAPI documents, as the configuration describes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sayso.agent.sources import McpToolProvider, OpenApiToolProvider, mcp, openapi
from sayso.agent.sources.openapi_auth import Auth
from sayso.config.schema import AnySource, AuthSettings, McpSource, OpenApiSource
from sayso.config.section import Secret


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
