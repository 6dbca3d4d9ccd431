"""Whole bodies: Sayso's WSGI app behind ASGI servers, which read a whole request before a thread works on it.

For `benchmarks.slow_clients` only: it has no limits, and does not stream answers.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from sayso.config.wiring.wsgi import app as sayso

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

THREADS = 32

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def app() -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return our app as an ASGI app."""
    behind, pool = sayso(), ThreadPoolExecutor(THREADS)

    async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status, headers, answer = await asyncio.get_running_loop().run_in_executor(
            pool, answer_of, behind, environ_of(scope, body)
        )
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return asgi


def answer_of(
    behind: WSGIApplication, environ: WSGIEnvironment
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return status, headers and body of the app's answer."""
    begun: list[Any] = []
    body = b"".join(behind(environ, lambda status, headers, *_: begun.append((status, headers))))  # type: ignore[arg-type, return-value]
    status, headers = begun[0]
    return (
        int(status[:3]),
        [(name.lower().encode(), value.encode()) for name, value in headers],
        body,
    )


def environ_of(scope: Scope, body: bytes) -> WSGIEnvironment:
    """Return the WSGI environment of a request."""
    environ: WSGIEnvironment = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"],
        "QUERY_STRING": scope["query_string"].decode(),
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": io.StringIO(),
        "wsgi.input": io.BytesIO(body),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "REQUEST_URI": scope["path"],
        "REMOTE_ADDR": "127.0.0.1",
    }
    for name, value in scope["headers"]:
        key = name.decode().upper().replace("-", "_")
        environ[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = (
            value.decode()
        )
    return environ
