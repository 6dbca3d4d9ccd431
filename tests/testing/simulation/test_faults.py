"""What breaks things: platforms that fail as told, a proxy that loses replies, deliveries that come again."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random

import pytest

from sayso.channels.types import SignedWebhook
from sayso.testing.platforms.server import RecordedRequest
from sayso.testing.simulation.faults import CHANCES, MAX_IN_A_ROW, RETRY_AFTER, FlakyPlatforms
from sayso.testing.simulation.proxy import Proxy
from sayso.testing.simulation.webhooks import MAX_DELIVERIES, DeliveryResponse, WebhookDelivery


def message(chat: str) -> RecordedRequest:
    """A message to a chat of Telegram."""
    return RecordedRequest(
        "POST", "/bot1/sendMessage", {"content-type": "application/json"}, b'{"chat_id": "%s"}' % chat.encode()
    )


def test_a_flaky_platform_fails_as_often_as_it_says_and_never_too_often_in_a_row() -> None:
    """Each failure about as probable as its chance; after four in one chat the next message passes."""
    flaky = FlakyPlatforms(Random(1), clock=lambda: 0.0)
    failures = [flaky("telegram", message(str(number % 7))) for number in range(4000)]
    share = Counter(failure.error for failure in failures if failure)
    assert all(share[error] / 4000 == pytest.approx(chance, abs=0.03) for error, chance in CHANCES.items())
    rows = "".join("x" if failure else "." for failure in failures[0::7])
    assert "x" * (MAX_IN_A_ROW + 1) not in rows
    assert flaky.failures == share


def test_who_sends_before_the_time_that_was_asked_for_is_counted() -> None:
    """A message within the seconds of a 429 is impatient; after them it is not."""
    now = [0.0]
    flaky = FlakyPlatforms(Random(1), clock=lambda: now[0])
    while (
        failure := flaky("slack", RecordedRequest("POST", "/x", {}, b"").at("/x?channel=D1"))
    ) is None or failure.error != "429":
        now[0] += RETRY_AFTER
    flaky("slack", RecordedRequest("POST", "/x?channel=D1", {}, b""))
    assert flaky.impatient == 1


async def ask(socket: Path, words: bytes) -> bytes:
    """What a server answers; nothing when it hangs up."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(words)
    try:
        return await reader.read(100)
    finally:
        writer.close()


async def through(proxy: Callable[[Path], Proxy], folder: Path) -> tuple[bytes, list[bytes], Proxy]:
    """One command through a proxy: what came back, what the server got, and the proxy."""
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


def test_a_proxy_that_cuts_lets_the_command_arrive_and_loses_the_reply(tmp_path: Path) -> None:
    """The command took effect, and whoever sent it cannot know."""
    answer, got, proxy = asyncio.run(through(lambda to: Proxy(str(to), cut=1.0, slow_ms=0, chance=Random(1)), tmp_path))
    assert (answer, got, proxy.counts["lost replies"]) == (b"", [b"ping"], 1)


def test_a_proxy_that_is_only_slow_loses_nothing(tmp_path: Path) -> None:
    """The reply arrives whole."""
    answer, got, proxy = asyncio.run(through(lambda to: Proxy(str(to), cut=0.0, slow_ms=1, chance=Random(1)), tmp_path))
    assert (answer, got, proxy.counts["lost replies"]) == (b"PING", [b"ping"], 0)


class WebServer(BaseHTTPRequestHandler):
    """A web that answers 503 twice, the second time without a hint, and takes everything then.

    Its class keeps what came.
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
        """Say nothing."""


def test_a_webhook_is_delivered_until_it_is_taken_and_then_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """503 twice, then taken, and one to four more times beside it, all of the same words."""
    monkeypatch.setattr("sayso.testing.simulation.webhooks.RETRY_SECONDS", 0.0)
    WebServer.came = []
    server = HTTPServer(("127.0.0.1", 0), WebServer)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    delivery = WebhookDelivery(repeated=1.0, chance=Random(1))

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


def test_deliveries_are_spread_over_the_webs_and_each_is_signed_for_the_public_one() -> None:
    """An address is where a delivery goes; the URL that was signed stays what it is."""
    delivery = WebhookDelivery(chance=Random(1), addresses=("a:1", "b:2"))
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
