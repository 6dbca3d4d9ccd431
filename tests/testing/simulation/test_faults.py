"""The faults of simulations: failing platforms, a proxy that loses replies, and repeated deliveries."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from sayso.channels.types import SignedWebhook
from sayso.testing.simulation.faults import (
    CHANCES,
    MAX_IN_A_ROW,
    RETRY_AFTER,
    Faults,
    FlakyPlatforms,
)
from sayso.testing.simulation.profile import Profile
from sayso.testing.simulation.proxy import Proxy, run
from sayso.testing.simulation.webhooks import MAX_DELIVERIES, DeliveryResponse, WebhookDelivery


def test_flaky_platform_fails_at_its_rates_and_never_too_often_in_a_row() -> None:
    """Each failure comes about as often as its chance; after four in one chat the next message passes."""
    flaky = FlakyPlatforms(Random(1), clock=lambda: 0.0)
    failures = [flaky("telegram", str(number % 7)) for number in range(4000)]
    share = Counter(failure.error for failure in failures if failure)
    assert all(
        share[error] / 4000 == pytest.approx(chance, abs=0.03) for error, chance in CHANCES.items()
    )
    rows = "".join("x" if failure else "." for failure in failures[0::7])
    assert "x" * (MAX_IN_A_ROW + 1) not in rows
    assert flaky.failures == share


def test_message_before_the_end_of_a_rate_limit_is_counted() -> None:
    """A message within the seconds of a 429 is impatient; a later one is not."""
    now = [0.0]
    flaky = FlakyPlatforms(Random(1), clock=lambda: now[0])
    while (failure := flaky("slack", "D1")) is None or failure.error != "429":
        now[0] += RETRY_AFTER
    flaky("slack", "D1")
    assert flaky.impatient == 1


async def ask(socket: Path, words: bytes) -> bytes:
    """Return a server's answer; nothing when it closes the connection."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(words)
    try:
        return await reader.read(100)
    finally:
        writer.close()


async def through(proxy: Callable[[Path], Proxy], folder: Path) -> tuple[bytes, list[bytes], Proxy]:
    """Send one command through a proxy. Return the answer, the commands that the server got, and the proxy."""
    got: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            got.append(data)
            writer.write(data.upper())
        writer.close()

    server = await asyncio.start_unix_server(echo, str(folder / "redis"))
    between = proxy(folder / "redis")
    serving = asyncio.create_task(between.serve(between.listen(str(folder / "front"))))
    answer = await asyncio.wait_for(ask(folder / "front", b"ping"), 10)
    serving.cancel()
    server.close()
    return answer, got, between


def test_cutting_proxy_delivers_the_command_and_loses_the_reply(tmp_path: Path) -> None:
    """The command took effect, and its sender cannot know."""
    answer, got, proxy = asyncio.run(
        through(lambda to: Proxy(str(to), loss=1.0, slow_ms=0, rng=Random(1)), tmp_path)
    )
    assert (answer, got, proxy.counts["lost replies"]) == (b"", [b"ping"], 1)


def test_slow_proxy_loses_nothing(tmp_path: Path) -> None:
    """The whole reply arrives."""
    answer, got, proxy = asyncio.run(
        through(lambda to: Proxy(str(to), loss=0.0, slow_ms=1, rng=Random(1)), tmp_path)
    )
    assert (answer, got, proxy.counts["lost replies"]) == (b"PING", [b"ping"], 0)


def test_proxy_that_can_accept_no_client_ends_with_the_error(tmp_path: Path) -> None:
    """Its process must not look alive while every client waits."""

    class Exhausted(Proxy):
        async def serve(self, listener: object) -> None:
            raise OSError("too many open files")

    proxy = Exhausted("redis", loss=0.0, slow_ms=0, rng=Random(1))
    with pytest.raises(OSError, match="too many open files"):
        asyncio.run(run(str(tmp_path / "front"), proxy, tmp_path / "counts"))


class WebServer(BaseHTTPRequestHandler):
    """A web that answers 503 twice, the second time without Retry-After, and then accepts everything.

    Its class keeps the received bodies.
    """

    came: list[bytes]

    def do_POST(self) -> None:
        self.came.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(503 if len(self.came) <= 2 else 200)
        self.send_header("Content-Length", "0")
        if len(self.came) == 1:
            self.send_header("Retry-After", "5")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Log nothing."""


def test_webhook_is_delivered_until_it_is_accepted_and_then_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The web answers 503 twice and then accepts; one to four repetitions with the same body follow."""
    monkeypatch.setattr("sayso.testing.simulation.webhooks.RETRY_SECONDS", 0.0)
    WebServer.came = []
    server = HTTPServer(("127.0.0.1", 0), WebServer)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    delivery = WebhookDelivery(repeated=1.0, rng=Random(1))

    async def deliver() -> None:
        hook: Callable[[], SignedWebhook] = lambda: ({}, b"hello")  # noqa: E731
        await delivery.deliver(f"http://127.0.0.1:{server.server_address[1]}/hooks/x", hook)
        await delivery.wait_for_repeats()

    asyncio.run(deliver())
    delivery.close()
    server.shutdown()
    server.server_close()
    assert set(WebServer.came) == {b"hello"}
    assert (delivery.answers[503], delivery.without_retry_after) == (2, 1)
    assert delivery.answers[200] >= 1
    assert 1 <= delivery.repeated < MAX_DELIVERIES


def test_deliveries_are_spread_over_the_webs_and_signed_for_the_public_url() -> None:
    """The address of a delivery varies; its signed URL stays the same."""
    delivery = WebhookDelivery(rng=Random(1), addresses=("a:1", "b:2"))
    went: list[tuple[str, str]] = []

    def posted(address: str, path: str, _: object) -> DeliveryResponse:
        went.append((address, path))
        return DeliveryResponse(200, "", 1.0, 1.5)

    vars(delivery)["_post_in_thread"] = posted

    async def deliver() -> None:
        for _ in range(20):
            await delivery.deliver("http://public/hooks/x", lambda: ({}, b""))

    asyncio.run(deliver())
    delivery.close()
    assert set(went) == {("a:1", "/hooks/x"), ("b:2", "/hooks/x")}
    assert delivery.seconds == [0.5] * 20


class SlowWorkers:
    """The workers of a busy machine: they are killed faster than they start. They are processes that sleep."""

    def __init__(self) -> None:
        self.sleeping: list[subprocess.Popen[bytes]] = []

    def start_one(self) -> None:
        """Start a worker, unless there are four."""
        if len(self.sleeping) < 4:
            self.sleeping.append(subprocess.Popen(["sleep", "60"]))

    def note_workers(self) -> set[int]:
        return self.at_work()

    def at_work(self) -> set[int]:
        return {process.pid for process in self.sleeping}

    def kill_parent(self, _: Random) -> None:
        """Kill none."""

    def kill(self, pid: int) -> None:
        (process,) = [each for each in self.sleeping if each.pid == pid]
        self.sleeping.remove(process)
        process.kill()
        process.wait()


def test_pause_happens_on_a_machine_where_workers_are_killed_faster_than_they_start() -> None:
    """It needs three that work, so kills make way for it."""
    workers = SlowWorkers()
    bot = SimpleNamespace(workers=workers, redis=None, addresses=[], restart_ended=lambda: 0)
    faults = Faults(
        bot, Profile(workers=4, kill_every={"worker": 1.0}, pause_every=10.0), Random(1), 0.0
    )
    try:
        for second in range(1, 60):
            if second % 2:
                workers.start_one()
            faults.inject_due(float(second))
        assert faults.counts["pauses"] > 0
        assert faults.counts["workers killed"] > 3
    finally:
        faults.wind_down(60.0)
        while workers.sleeping:
            workers.kill(workers.sleeping[0].pid)
