"""Gunicorn: the WSGI server inside `sayso web`, with threads, because platforms and browsers keep connections."""

from __future__ import annotations

from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication


def serve(app: Flask, *, host: str, port: int, threads: int) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress are finished first."""
    _Server(app, {
        "bind": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "workers": 1,
        "worker_class": "gthread",
        "threads": threads,
        "keepalive": 30,
        "graceful_timeout": 5,
        "loglevel": "warning",
        "limit_request_line": 8190,
    }).run()  # fmt: skip


class _Server(BaseApplication):  # type: ignore[misc]  # gunicorn ships no types
    """Gunicorn's own application class, configured by arguments instead of its command line."""

    def __init__(self, app: Flask, options: dict[str, Any]) -> None:
        self._app = app
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        """Hand our options to gunicorn."""
        for key, value in self._options.items():
            self.cfg.set(key, value)

    def load(self) -> Flask:
        """The app to serve."""
        return self._app
