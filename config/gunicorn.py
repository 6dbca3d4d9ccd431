"""Gunicorn: the WSGI server inside `sayso web`, with threads, because platforms and browsers keep connections."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication

from config.embedded import die_with_parent


def serve(app: Flask, begin: Callable[[], None], *, host: str, port: int, threads: int) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress are finished first. `begin` is called after the fork."""
    server = _Server(app, begin, {
        "bind": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "workers": 1,
        "worker_class": "gthread",
        "threads": threads,
        "keepalive": 30,
        "graceful_timeout": 5,
        "loglevel": "warning",
        "control_socket_disable": True,  # it would be shared by all of a user's servers
        "limit_request_line": 8190,
        "post_fork": _die_with_arbiter,
    })  # fmt: skip
    server.run()  # type: ignore[no-untyped-call]  # gunicorn ships no types


def _die_with_arbiter(_: Any, __: Any) -> None:
    """In a fresh worker: it must not keep the port of an arbiter that was killed."""
    die_with_parent(signal.SIGKILL)


class _Server(BaseApplication):
    """Gunicorn's own application class, configured by arguments instead of its command line."""

    def __init__(self, app: Flask, begin: Callable[[], None], options: dict[str, Any]) -> None:
        self._app = app
        self._begin = begin
        self._options = options
        super().__init__()  # type: ignore[no-untyped-call]

    def load_config(self) -> None:
        """Hand our options to gunicorn."""
        for key, value in self._options.items():
            self.cfg.set(key, value)  # type: ignore[union-attr]  # set by the time this is called

    def load(self) -> Flask:
        """The app to serve, asked for after the fork."""
        self._begin()
        return self._app
