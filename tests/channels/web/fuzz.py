"""Fuzz: hundreds of thousands of mutated webhooks against the real adapters, and the figures of their answers.

    python -m tests.channels.web.fuzz --count 100000

Every request must be answered below 500, in bounded time, and leave no memory behind. Else the exit status is 1.
"""

from __future__ import annotations

import argparse
import http.client
import io
import logging
import random
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from urllib.parse import unquote_to_bytes

from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.types import Media, Turn
from sayso.config.wiring.data_folder import secret_keys
from sayso.infra.redis.client import PREFIX
from sayso.workers.mailbox import Accepted, InboxLimits
from tests.channels.parts import console_channel
from tests.channels.web import services
from tests.channels.web.mutations import Endpoint, Sent, endpoints, largest, requests
from tests.config.processes import family
from tests.flows.system import System, until
from tests.memory_stores import MemoryFeed, MemoryMediaStore

#: Seconds of processor time that one request may take.
MAX_SECONDS = 1.0
#: Megabytes by which a process may grow after the largest bodies.
MAX_GROWTH = 50.0
#: One in this many requests also goes to a real web process.
HTTP_SHARE = 100
#: The payloads expect these channel names. The limits leave room for turns that no worker takes.
YAML = """
public_url: {public_url}
redis_url: ${{REDIS_URL}}
agent: {{model: offline}}
limits: {{waiting: 1000, per_minute: 60000, in_one_go: 60000}}
channels:
  wa: {{platform: whatsapp, account_sid: "${{TWILIO_ACCOUNT_SID}}", auth_token: "${{TWILIO_AUTH_TOKEN}}",
       from: "whatsapp:+14155238886", api_url: {url}/twilio}}
  tg: {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", secret_token: "${{TELEGRAM_SECRET}}",
       api_url: {url}/telegram}}
  sl: {{platform: slack, bot_token: "${{SLACK_BOT_TOKEN}}", signing_secret: "${{SLACK_SIGNING_SECRET}}",
       api_url: {url}/slack}}
  web: {{platform: console}}
"""

#: Returns the status of one request, or raises the exception of the app.
Ask = Callable[[Sent], int]


@dataclass(slots=True)
class Figures:
    """The results of the requests to one endpoint."""

    endpoint: str
    way: str
    answers: dict[int, int] = field(default_factory=dict)
    slowest: float = 0.0
    cpu: float = 0.0
    before: float = 0.0
    after: float = 0.0
    failures: list[str] = field(default_factory=list)

    def note(self, sent: Sent, status: int, seconds: float, cpu: float) -> None:
        """Count one answer."""
        self.answers[status] = self.answers.get(status, 0) + 1
        self.slowest, self.cpu = max(self.slowest, seconds), max(self.cpu, cpu)
        if status >= 500:
            self.failures.append(f"{status}: {told(sent)}")
        if cpu > MAX_SECONDS:
            self.failures.append(f"{cpu:.1f} s: {told(sent)}")

    def share(self, hundreds: int) -> int:
        """Return the number of answers with a 2xx status, a 4xx status and so on."""
        return sum(count for status, count in self.answers.items() if status // 100 == hundreds)

    @property
    def problems(self) -> list[str]:
        """Return every failure, and memory growth above the limit."""
        grown = self.after - self.before
        return [*self.failures, *([f"grew by {grown:.0f} MB"] if grown > MAX_GROWTH else [])]

    def __str__(self) -> str:
        total = sum(self.answers.values())
        rest = total - self.share(2) - self.share(4)  # 5xx, and 0 for an exception
        return (
            f"{self.endpoint:16} {self.way:5} {total:9,} {self.share(2):9,} {self.share(4):9,} {rest:6,} "
            f"{self.slowest * 1000:10.1f} {self.before:9.1f} {self.after:7.1f}"
        )


HEADER = (
    f"{'endpoint':16} {'via':5} {'requests':>9} {'2xx':>9} {'4xx':>9} {'other':>6} {'slowest ms':>10} "
    f"{'MB before':>9} {'after':>7}"
)


def told(sent: Sent) -> str:
    """Return a request, short enough to read."""
    return f"{sent.method} {sent.path[:200]} {str(sent.headers)[:400]} {sent.body[:400]!r} ({len(sent.body)} bytes)"


class Sink(services.FakeMailbox):
    """A mailbox that reads each turn as the real one does, and keeps none."""

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Read the turn and drop it."""
        accepted = super().accept(turn, tapped=tapped, waited_seconds=waited_seconds)
        self.turns.clear()
        return accepted


def wsgi() -> tuple[Ask, str]:
    """Return a function that asks the WSGI app of this process, and a console session that the app knows."""
    channels = services.real_channels(media=Sieve())
    console = channels["web"]
    assert isinstance(console, ConsoleChannel)
    settings = SimpleNamespace(limits=InboxLimits(per_minute=10**9), key_prefix=PREFIX)
    parts = {
        "channels": channels,
        "mailbox": Sink(),
        "deliveries": Forgetful(),
        "settings": settings,
    }
    app = services.browser(**parts).application
    app.config["PROPAGATE_EXCEPTIONS"] = True  # an unhandled exception is raised here
    return (
        lambda sent: asked(app.wsgi_app, sent)
    ), f"{console.sessions.cookie}={console.sessions.new_identity()}"


class Sieve(MemoryMediaStore):
    """A media store that detects the type of each file, and keeps none."""

    def put(
        self, content: bytes | BinaryIO, *, mime_type: str, filename: str = "", owner: str = ""
    ) -> Media:
        """Read the file and drop it."""
        kept = super().put(content, mime_type=mime_type, filename=filename)
        self._files.clear()
        return kept


class Forgetful(services.FakeDeliveries):
    """Deliveries that keep nothing."""

    def report(self, *said: str) -> str:
        """Drop the report."""
        return said[2]


def asked(app: Any, sent: Sent) -> int:
    """Return the status of one request to a WSGI app."""
    heard: list[int] = []

    def start(status: str, _: Any, __: Any = None) -> Callable[[bytes], None]:
        heard.append(int(status.split()[0]))
        return lambda _: None

    answer = app(environ(sent), start)
    for _ in answer:
        pass
    if hasattr(answer, "close"):
        answer.close()
    return heard[-1]


def environ(sent: Sent) -> dict[str, Any]:
    """Return the WSGI environment of a request."""
    path, _, query = sent.path.encode().decode("latin-1").partition("?")
    made = {
        "REQUEST_METHOD": sent.method, "SCRIPT_NAME": "", "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query, "RAW_URI": sent.path.encode().decode("latin-1"), "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8000", "SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_LENGTH": str(len(sent.body)) if sent.length is None else sent.length,
        "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(sent.body),
        "wsgi.errors": sys.stderr, "wsgi.multithread": True, "wsgi.multiprocess": True, "wsgi.run_once": False,
    }  # fmt: skip
    for name, value in sent.headers.items():
        key = name.upper().replace("-", "_")
        made[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
    return made


class RealWeb:
    """A separate web process behind real HTTP, with Redis and without workers."""

    def __init__(self, folder: Path) -> None:
        self._system = System(folder, workers=0)
        self._system.config.write_text(
            YAML.format(public_url=services.PUBLIC_URL, url=self._system.platforms.url)
        )
        console = console_channel("web", feed=MemoryFeed(), media=None, keys=secret_keys(folder))  # type: ignore[arg-type]
        self.cookie = f"{console.sessions.cookie}={console.sessions.new_identity()}"

    def __enter__(self) -> RealWeb:
        self._system.__enter__()
        until(lambda: self._answers(Sent("/healthz", {}, b"", "GET")))
        return self

    def __exit__(self, *exc: object) -> None:
        self._system.__exit__(*exc)

    def ask(self, sent: Sent) -> int:
        """Return the status of one request over its own connection. Corrects a Content-Length that is too large."""
        if sent.length not in (None, "0", "1", "abc", "-1", ""):
            sent = Sent(sent.path, sent.headers, sent.body, sent.method)
        with socket.create_connection(
            ("127.0.0.1", int(self._system.url.rpartition(":")[2])), timeout=30
        ) as wire:
            with suppress(
                BrokenPipeError, ConnectionResetError
            ):  # a long body may be refused before it is sent
                wire.sendall(spelled(sent))
            answer = http.client.HTTPResponse(wire, method=sent.method)
            answer.begin()
            answer.read()
            return answer.status

    def megabytes(self) -> float:
        """Return the memory of all its processes, from /proc."""
        web = self._system.web
        assert web is not None
        return sum(_resident(pid) for pid in (web.pid, *family(web.pid)))

    def _answers(self, sent: Sent) -> bool:
        try:
            return self.ask(sent) == 200
        except OSError:
            return False


def spelled(sent: Sent) -> bytes:
    """Return a request as bytes on the wire."""
    length = str(len(sent.body)) if sent.length is None else sent.length
    headers = {"Host": "127.0.0.1", **sent.headers, "Content-Length": length, "Connection": "close"}
    lines = [
        f"{sent.method} {sent.path.encode().decode('latin-1')} HTTP/1.1",
        *(f"{name}: {headers[name]}" for name in headers),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + sent.body


def _resident(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / 1e6


def peak() -> float:
    """Return the peak memory of this process in megabytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most / 1e3


def fuzz(
    endpoint: Endpoint,
    count: int,
    seed: int,
    ask: Ask,
    *,
    way: str = "wsgi",
    megabytes: Callable[[], float] = peak,
) -> Figures:
    """Send this many requests and return the figures. The largest come first, so their memory is not growth."""
    figures = Figures(endpoint.name, way)
    for sent in largest(endpoint):
        _noted(figures, ask, sent)
    figures.before = megabytes()
    for sent in islice(requests(endpoint, random.Random(f"{endpoint.name}{seed}")), count):
        _noted(figures, ask, sent)
    figures.after = megabytes()
    return figures


def _noted(figures: Figures, ask: Ask, sent: Sent) -> None:
    began, cpu = time.perf_counter(), time.thread_time()
    try:
        status = ask(sent)
    except Exception as exc:  # noqa: BLE001  # a failure to report
        figures.failures.append(f"{type(exc).__name__}: {exc}: {told(sent)}")
        status = 0
    figures.note(sent, status, time.perf_counter() - began, time.thread_time() - cpu)


@contextmanager
def quiet() -> Iterator[None]:
    """Switch off the log, which would have half a million refusals."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz every endpoint and print the figures. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Mutated webhooks against the real adapters.")
    parser.add_argument("--count", type=int, default=100_000, help="requests per endpoint")
    parser.add_argument("--seed", type=int, default=7, help="another one makes other requests")
    parser.add_argument(
        "--http",
        type=int,
        help=f"of them over real HTTP; by default one in {HTTP_SHARE}, up to 1,000",
    )
    given = parser.parse_args(arguments)
    over_http = min(1000, given.count // HTTP_SHARE) if given.http is None else given.http
    print(HEADER, flush=True)
    problems = []
    with quiet():
        for figures in _all(given.count, given.seed, over_http):
            print(figures, flush=True)
            problems += [
                f"{figures.endpoint}, {figures.way}: {problem}" for problem in figures.problems
            ]
    for problem in problems[:20]:
        print(problem)
    print(
        f"{len(problems)} problems" if problems else "no 5xx, no exception, nothing slow, no growth"
    )
    return 1 if problems else 0


def _all(count: int, seed: int, over_http: int) -> Iterator[Figures]:
    ask, cookie = wsgi()
    for endpoint in endpoints(cookie):
        yield fuzz(endpoint, count, seed, ask)
    if over_http:
        with (
            tempfile.TemporaryDirectory(prefix="sayso-fuzz-") as folder,
            RealWeb(Path(folder)) as web,
        ):
            for endpoint in endpoints(web.cookie):
                yield fuzz(
                    endpoint, over_http, seed + 1, web.ask, way="http", megabytes=web.megabytes
                )


if __name__ == "__main__":
    sys.exit(main())
