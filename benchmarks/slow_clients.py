"""Slow clients: the cost of a webhook on several HTTP servers, alone and beside 400 sockets with unfinished requests.

    python -m benchmarks.slow_clients --seconds 120
    python -m benchmarks.slow_clients --seconds 120 --sayso ENV/bin/sayso

Every server runs Sayso's app in one process with 32 threads. With `--sayso` only one server is measured: the web line
of the Procfile, run by that installed command. Valid webhooks come from four clients. A fifth of the slow sockets sends
nothing, a fifth never ends its first line, a fifth its headers, a fifth its body, and a fifth announces a large file.
All but the silent fifth send a byte every ten seconds.
"""

from __future__ import annotations

import argparse
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from benchmarks.stack import Stack
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import ENVIRON

#: The command of each server; PORT, CONFIG and DATA are filled in. "ours" is the server of `sayso web`.
SERVERS: Mapping[str, Sequence[str]] = {
    "ours (waitress)": ("sayso", "web", "--config", "CONFIG", "--data", "DATA", "--port", "PORT"),
    "gunicorn gthread": (
        "gunicorn",
        "--worker-class",
        "gthread",
        "--threads",
        "32",
        "--keep-alive",
        "30",
        "--bind",
        "127.0.0.1:PORT",
        "sayso.config.wiring.wsgi:app()",
    ),
    "gunicorn gevent": (
        "gunicorn",
        "--worker-class",
        "gevent",
        "--worker-connections",
        "5000",
        "--keep-alive",
        "30",
        "--bind",
        "127.0.0.1:PORT",
        "sayso.config.wiring.wsgi:app()",
    ),
    "uvicorn, body read first": (
        "uvicorn",
        "--interface",
        "asgi3",
        "--log-level",
        "warning",
        "--port",
        "PORT",
        "--factory",
        "benchmarks.whole_bodies:app",
    ),
    "granian, body read first": (
        "granian",
        "--interface",
        "asgi",
        "--workers",
        "1",
        "--port",
        "PORT",
        "--host",
        "127.0.0.1",
        "--factory",
        "benchmarks.whole_bodies:app",
    ),
    "granian": (
        "granian",
        "--interface",
        "wsgi",
        "--workers",
        "1",
        "--blocking-threads",
        "32",
        "--port",
        "PORT",
        "--host",
        "127.0.0.1",
        "--factory",
        "sayso.config.wiring.wsgi:app",
    ),
}
CLIENTS = 4
HALVES = (
    b"",
    b"PO",
    b"POST /hooks/ops-tg HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    b"POST /hooks/ops-tg HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{",
    b"POST /console/web/files HTTP/1.1\r\nHost: x\r\nContent-Length: 25000000\r\n\r\n{",
)


@dataclass(slots=True)
class Figures:
    """The results of valid webhooks: the seconds of each answer, and every answer other than 200."""

    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        """Return the milliseconds within which this share of the answers came."""
        ordered = sorted(self.seconds) or [float("nan")]
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each server that is installed."""
    options = argparse.ArgumentParser()
    options.add_argument(
        "--seconds", type=float, default=120.0, help="how long the slow sockets last"
    )
    options.add_argument("--slow", type=int, default=400)
    options.add_argument("--only", default="", help="servers whose name begins so")
    options.add_argument(
        "--sayso", default="", help="an installed `sayso`: measure the Procfile's web line with it"
    )
    given = options.parse_args(argv)
    servers = {name: [sys.executable, "-P", "-m", *command] for name, command in SERVERS.items()}
    if given.sayso:
        servers = {"the Procfile's line": procfile(given.sayso)}
    print(
        f"| server | CPU per webhook | with {given.slow} slow sockets: answered | failed | p50 ms | p99 ms |"
    )
    print("|---|---|---|---|---|---|")
    for name, command in servers.items():
        module = "gevent" if "gevent" in name else command[3] if command[1] == "-P" else "config"
        if name.startswith(given.only) and find_spec(module.partition(".")[0]):
            print(row(name, command, given.slow, given.seconds), flush=True)


def procfile(sayso: str) -> list[str]:
    """Return the command of the Procfile's web line, with this `sayso`."""
    line = next(
        line for line in Path("Procfile").read_text().splitlines() if line.startswith("web: ")
    )
    return [
        sayso if word == "sayso" else word
        for word in line.replace("${PORT:-8000}", "PORT").split()[1:]
    ]


def row(name: str, command: Sequence[str], slow: int, seconds: float) -> str:
    """Run one server without slow sockets and with them, and return its row."""
    with serving(command) as (port, pid):
        numbers = count(1)
        before = cpu_seconds(pid)
        quiet = talk(port, numbers, 5.0, pause=0.0)
        each = (cpu_seconds(pid) - before) / max(1, len(quiet.seconds)) * 1e6
        with dripping(port, slow):
            loud = talk(port, numbers, seconds, pause=0.05)
    return (
        f"| {name} | {each:.0f} µs | {len(loud.seconds)} | {len(loud.failed)} | {loud.quantile(0.5):.1f} | "
        f"{loud.quantile(0.99):.1f} |"
    )


@contextmanager
def serving(command: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Run one server until the block ends; yield its port and process id."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(Path(folder), platform="http://127.0.0.1:9") as stack,
    ):
        places = {"PORT": str(stack.port), "CONFIG": str(stack.config), "DATA": folder}
        filled = []
        for word in command:
            for place, value in places.items():
                word = word.replace(place, value)  # noqa: PLW2901  # filled in place by place
            filled.append(word)
        environ = {
            **os.environ,
            **ENVIRON,
            "REDIS_URL": stack.redis.url,
            "SAYSO_CONFIG": str(stack.config),
        }
        # An installed command finds the bot's tools, in benchmarks, and nothing else of the checkout.
        (Path(folder) / "benchmarks").symlink_to(Path(__file__).parent)
        environ |= {
            "SAYSO_DATA": folder,
            "PYTHONPATH": str(Path.cwd()) if "-P" in filled else folder,
        }
        with (Path(folder) / "server.log").open("wb") as log:
            process = subprocess.Popen(filled, env=environ, stdout=log, stderr=log, cwd=folder)
        try:
            until_it_answers(stack.port)
            yield stack.port, process.pid
        finally:
            process.terminate()
            process.wait(60)


def until_it_answers(port: int) -> None:
    """Wait for the first answer."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            client.request("GET", "/healthz")
            client.getresponse().read()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("the server does not answer")


def talk(port: int, numbers: Iterator[int], seconds: float, *, pause: float) -> Figures:
    """Send valid webhooks from several clients for this many seconds."""
    figures, ends, lock = Figures(), time.monotonic() + seconds, threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        while time.monotonic() < ends:
            with lock:
                number = next(numbers)
            update = signing.telegram_text(number, "hello", user=10**6 + number)
            headers, body = signing.telegram_hook(ENVIRON["TELEGRAM_SECRET"], update)
            began = time.monotonic()
            try:
                connection.request("POST", "/hooks/ops-tg", body=body, headers=dict(headers))
                answer = connection.getresponse()
                answer.read()
                (
                    figures.seconds.append(time.monotonic() - began)
                    if answer.status == 200
                    else figures.failed.append(str(answer.status))
                )
            except (OSError, http.client.HTTPException) as exc:
                figures.failed.append(type(exc).__name__)
                connection.close()
            time.sleep(pause)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return figures


@contextmanager
def dripping(port: int, number: int) -> Iterator[None]:
    """Keep this many sockets open that send a byte every ten seconds; a closed one is opened again."""
    stop, sockets = threading.Event(), [opened(port, at) for at in range(number)]

    def drip() -> None:
        while not stop.wait(10):
            for at, each in enumerate(sockets):
                try:
                    if not HALVES[at % len(HALVES)]:
                        raise ConnectionError("those that never say anything come anew")
                    each.sendall(b"a")
                except OSError:
                    each.close()
                    sockets[at] = opened(port, at)

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for each in sockets:
            each.close()


def opened(port: int, at: int) -> socket.socket:
    """Return a socket that has sent half a request."""
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(HALVES[at % len(HALVES)])
    return client


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants."""
    below = subprocess.run(
        ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    used = 0
    for each in [str(pid), *below]:
        fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
