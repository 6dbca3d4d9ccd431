"""System: Sayso's Redis, web and workers as real processes, against fake platforms over HTTP."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import httpx
from redis import Redis
from redis.exceptions import RedisError

from sayso.infra.redis.client import PREFIX
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import ENVIRON, FakePlatforms
from tests.config.processes import ForkedCommand, free_port, sayso

#: Seconds to wait for something that should happen at once. A deadline for hangs, not a measure of speed: five
#: processes, which take seconds to start, share the machine with other tests.
PATIENCE = 90.0

T = TypeVar("T")
#: One of Sayso's commands.
Process = subprocess.Popen[bytes] | ForkedCommand

YAML = """
public_url: {public_url}
redis_url: ${{REDIS_URL}}
spool: {spool}
agent: {{model: offline}}
limits: {{per_minute: 60000, in_one_go: 60000}}  # a quiet machine is faster than people
media: {media}
tools: [sayso.examples.invoices, tests.flows.disks]
channels:
  shop-wa:
    platform: whatsapp
    account_sid: ${{TWILIO_ACCOUNT_SID}}
    auth_token: ${{TWILIO_AUTH_TOKEN}}
    from: "whatsapp:+14155238886"
    api_url: {url}/twilio
    tools: [find_invoice, delete_invoice, sales_chart, export_invoices, sales_report]
    policy: {{allow: [find_*, sales_*, export_*], review: [delete_*], deny: []}}
    confirm_ttl: 60
  ops-tg:
    {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", secret_token: "${{TELEGRAM_SECRET}}", api_url: {url}/telegram,
     messages_per_second: 0}}
  quick-tg:
    {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", secret_token: "${{TELEGRAM_SECRET}}", api_url: {url}/telegram,
     messages_per_second: 0, confirm_ttl: 0.2}}
  desk:
    {{platform: slack, bot_token: "${{SLACK_BOT_TOKEN}}", signing_secret: "${{SLACK_SIGNING_SECRET}}",
     api_url: {url}/slack, messages_per_second: 0}}
  web: {{platform: console}}
"""


def until(what: Callable[[], T], *, seconds: float = PATIENCE) -> T:
    """Call the function until its result is true, and return it. Fails with the last result."""
    deadline = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < deadline, (
            f"did not happen in {seconds:g} s; last answer: {answer!r}"
        )
        time.sleep(0.02)
    return answer


class System:
    """The processes of one bot. Lives for one test module; processes can be killed and restarted."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        spool: bool = False,
        environ: Mapping[str, str] | None = None,
        media: str = "{}",
        apart: bool = False,
    ) -> None:
        self.data = folder
        #: The data folder of the workers; `apart`, as on another machine, they have one of their own.
        self.worker_data = folder / "elsewhere" if apart else folder
        self.platforms = FakePlatforms()
        self.redis = EmbeddedRedis(folder)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.config = folder / "sayso.yaml"
        self.config.write_text(
            YAML.format(
                public_url=self.url, url=self.platforms.url, spool=str(spool).lower(), media=media
            )
        )
        self.log = folder / "processes.log"
        # One client for all: loading certificates costs 30 ms. No connection is kept, because servers are killed.
        self.http = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))
        self.web: Process | None = None
        self.workers: list[Process] = []
        self._wanted = workers
        self._environ = environ or {}

    def __enter__(self) -> System:
        self.platforms.__enter__()
        self.redis.start()
        self.web = self.process("web", "--port", self.url.rpartition(":")[2])
        for _ in range(self._wanted):
            self.start_worker()
        try:
            until(self._are_workers_ready)
        except AssertionError as exc:
            exc.add_note(f"The end of the log of web and workers:\n{self.log.read_text()[-4000:]}")
            self.__exit__()
            raise
        return self

    def _are_workers_ready(self) -> bool:
        """Return whether all workers are ready. Fails as soon as a process has ended."""
        for process in filter(None, [self.web, *self.workers]):
            assert process.poll() is None, (
                f"{process.args!r} ended at its start with {process.returncode}"
            )
        return self._workers_ready() >= self._wanted

    def __exit__(self, *_: object) -> None:
        for process in [*self.workers, *([self.web] if self.web else [])]:
            process.terminate()
        for process in [*self.workers, *([self.web] if self.web else [])]:
            process.wait(PATIENCE)
        self.redis.stop()
        self.platforms.__exit__()
        self.http.close()

    def process(self, command: str, *args: str) -> Process:
        """Start one of Sayso's commands as a process of its own.

        It is forked from one that has loaded Sayso, except where it reads PROMETHEUS_MULTIPROC_DIR while it loads.
        """
        environ = {**os.environ, **ENVIRON, **self._environ, "REDIS_URL": self.redis.url}
        data = self.worker_data if command == "worker" else self.data
        full = [*command.split(), "--config", str(self.config), "--data", str(data), *args]
        if "PROMETHEUS_MULTIPROC_DIR" not in environ:
            return ForkedCommand(full, environ, self.log)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "sayso", *full], env=environ, stdout=log, stderr=log
            )

    def command(self, *args: str, **environ: str) -> tuple[int, str, str]:
        """Return exit code, output and errors of an operator's command, run beside the system."""
        whole = {**ENVIRON, **self._environ, "REDIS_URL": self.redis.url, **environ}
        return sayso(*args, "--config", self.config, "--data", self.data, **whole)

    def printed(self, *args: str) -> str:
        """Return the output of an operator's command. Fails unless the command succeeds."""
        code, output, errors = self.command(*args)
        assert code == 0, errors
        return output

    def start_worker(self) -> Process:
        """Start one more worker."""
        self.workers.append(self.process("worker"))
        return self.workers[-1]

    def post(self, path: str, signed: signing.SignedWebhook) -> httpx.Response:
        """Deliver a webhook once."""
        headers, body = signed
        return self.http.post(
            f"{self.url}/hooks/{path}", headers=headers, content=body, timeout=PATIENCE
        )

    def ledger(self, chat: str) -> list[dict[str, Any]]:
        """Return the messages that arrived at one chat, in order."""
        return [entry for entry in self.platforms.sent if entry["chat"] == chat]

    def is_settled(self) -> bool:
        """Return whether Redis has recorded the delivery of every reply: no person answers faster than that."""
        try:
            with Redis.from_url(self.redis.url) as client:
                return next(client.scan_iter(f"{PREFIX}*:outbox:*", count=1000), None) is None
        except RedisError:
            return False

    def effects(self, what: str, invoice: str) -> int:
        """Return how often an effect took place, by the invoice desk's own ledger."""
        with closing(sqlite3.connect(self.data / "invoices.sqlite3")) as db:
            rows = db.execute(
                "SELECT count(*) FROM ledger WHERE what = ? AND id = ?", (what, invoice)
            )
            return int(rows.fetchone()[0])

    def _workers_ready(self) -> int:
        try:
            return int(
                self.http.get(f"{self.url}/healthz?full", timeout=5).json().get("workers", 0)
            )
        except httpx.HTTPError:
            return 0


class Person(ABC):
    """A user on one platform. Each message is delivered twice, and each reply is read from the fake platform."""

    #: The fake platform's name of the chat that receives the answers.
    chat: str

    def __init__(self, system: System, name: int) -> None:
        self.system = system
        self.name = name
        self._said = 0
        self._read = 0

    def say(self, text: str) -> None:
        """Type a message."""
        self._deliver(self.text(self._next(), text))

    def tap(self, data: str) -> None:
        """Tap a button."""
        self._deliver(self.tapped(self._next(), data))

    def hears(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the next messages. Fails unless there are exactly as many as expected."""
        until(lambda: len(self.system.ledger(self.chat)) >= self._read + count)
        heard = self.system.ledger(self.chat)[self._read :]
        assert len(heard) == count, heard
        until(self.system.is_settled)
        self._read += count
        return heard

    def hears_nothing_more(self) -> bool:
        """Return whether every message that arrived was read."""
        return len(self.system.ledger(self.chat)) == self._read

    @abstractmethod
    def text(self, number: int, text: str) -> tuple[str, signing.SignedWebhook]:
        """Return a typed message as a signed webhook: its path below /hooks/, headers and body."""

    @abstractmethod
    def tapped(self, number: int, data: str) -> tuple[str, signing.SignedWebhook]:
        """Return a tap as a signed webhook."""

    def _deliver(self, hook: tuple[str, signing.SignedWebhook]) -> None:
        for _ in range(2):
            answer = self.system.post(*hook)
            assert answer.status_code == 200, answer.text

    def _next(self) -> int:
        self._said += 1
        return self.name * 1000 + self._said


class WhatsAppPerson(Person):
    """A user on WhatsApp, through Twilio."""

    @property
    def chat(self) -> str:  # type: ignore[override]
        return f"whatsapp:+49151{self.name:08}"

    @property
    def user_id(self) -> str:
        """The id in each webhook, under which everything of the person is stored."""
        return self._form(signing.whatsapp_text, 0, "")["ExternalUserId"]

    def text(self, number: int, text: str) -> tuple[str, signing.SignedWebhook]:
        return self._signed(self._form(signing.whatsapp_text, number, text))

    def tapped(self, number: int, data: str) -> tuple[str, signing.SignedWebhook]:
        return self._signed(self._form(signing.whatsapp_tap, number, data))

    def _form(self, make: Callable[..., dict[str, str]], number: int, text: str) -> dict[str, str]:
        return make(f"SM{number:032x}", text, account_sid=fakes.TWILIO_ACCOUNT_SID, user=self.chat)

    def _signed(self, form: dict[str, str]) -> tuple[str, signing.SignedWebhook]:
        url = f"{self.system.url}/hooks/shop-wa"
        return "shop-wa", signing.whatsapp_hook(url, fakes.TWILIO_AUTH_TOKEN, form)


class TelegramPerson(Person):
    """A user on Telegram."""

    channel = "ops-tg"

    @property
    def chat(self) -> str:  # type: ignore[override]
        return str(5_000_000_000 + self.name)

    def text(self, number: int, text: str) -> tuple[str, signing.SignedWebhook]:
        return self._signed(signing.telegram_text(number, text, user=int(self.chat)))

    def tapped(self, number: int, data: str) -> tuple[str, signing.SignedWebhook]:
        return self._signed(signing.telegram_tap(number, data, user=int(self.chat)))

    def _signed(self, update: dict[str, Any]) -> tuple[str, signing.SignedWebhook]:
        return self.channel, signing.telegram_hook(fakes.TELEGRAM_SECRET, update)


class HurriedPerson(TelegramPerson):
    """A user on a Telegram channel whose confirmations expire at once."""

    channel = "quick-tg"


class SlackPerson(Person):
    """A user in a direct message on Slack, in the thread that the first message opened."""

    thread = ""

    @property
    def chat(self) -> str:  # type: ignore[override]
        return f"D{self.name:08}"

    def text(self, number: int, text: str) -> tuple[str, signing.SignedWebhook]:
        ts = f"1795204800.{number:06}"
        fields = {"thread_ts": self.thread} if self.thread else {}
        self.thread = self.thread or ts
        return self._signed(
            signing.slack_text(ts, text, user=f"U{self.name}", channel=self.chat, **fields)
        )

    def tapped(self, number: int, data: str) -> tuple[str, signing.SignedWebhook]:
        where = {"channel": self.chat, "thread_ts": self.thread}
        return self._signed(signing.slack_tap(f"t.{number}", data, user=f"U{self.name}", **where))

    def _signed(self, body: bytes) -> tuple[str, signing.SignedWebhook]:
        return "desk", signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, time.time())
