"""Platforms: Twilio, Telegram and Slack on one port, strict where they are strict, with a ledger of what arrived.

In Python: `with FakePlatforms() as platforms: ...`. As a process:
`python -m sayso.testing.platforms.fake_platforms --port 0`.

Paths: /twilio/..., /telegram/..., /slack/... are the platforms. For whoever started them:

GET /ledger          what arrived, in order, normalised
GET /calls           every other call
GET /busiest         the most messages that each platform took within a second
GET /blobs/<sha256>  a file that arrived
POST /script         {"platform", "error", "times", "seconds"}: what goes wrong with the next messages
POST /rate           {"platform", "per_second"}: whatever is faster meets the platform's 429
POST /close          {"platform": "twilio", "address"}: nobody wrote from there for 24 hours; POST /open: somebody did
POST /arrive         {"platform": "twilio", "address", "body", "ago"}: a message of which no webhook tells
POST /update         {"update"}: what a Telegram bot hears that asks for its updates
POST /reset          all that arrived, was scripted, limited or closed is forgotten
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from sayso.testing.platforms.server import (
    ACCEPTED,
    Failure,
    Fake,
    FakeResponse,
    RecordedRequest,
    RequestLog,
    json_answer,
)
from sayso.testing.platforms.slack import FakeSlack
from sayso.testing.platforms.telegram import FakeTelegram
from sayso.testing.platforms.twilio import FakeTwilio

#: Credentials the fakes accept, and the secrets their webhooks are signed with. No real platform knows them.
TWILIO_ACCOUNT_SID = "AC0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
TWILIO_AUTH_TOKEN = "test-auth-token-0123456789abcdef"
TELEGRAM_TOKEN = "7000000001:AAtest-telegram-token-0123456789"
TELEGRAM_SECRET = "tg-secret_ABC-123"
SLACK_BOT_TOKEN = "xoxb-test-slack-token-0123456789"
SLACK_SIGNING_SECRET = "slack-test-signing-secret"
SLACK_CONFIG_TOKEN = "xoxe.xoxp-1-test-slack-config-token"


#: Decides what goes wrong with one message: asked with the platform's name and the call.
Trouble = Callable[[str, RecordedRequest], Failure | None]


def no_trouble(_: str, __: RecordedRequest) -> None:
    """A platform that always works."""


class FakePlatforms:
    """All three platforms on one local port, from `with` to its end.

    `trouble` is asked about every message that no failure is scripted for.
    """

    def __init__(self, port: int = 0, *, trouble: Trouble = no_trouble) -> None:
        self.ledger = RequestLog()
        self._trouble = trouble
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.platforms = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.twilio_url, self.telegram_url, self.slack_url = (
            f"{self.url}/{name}" for name in ("twilio", "telegram", "slack")
        )
        self.telegram = FakeTelegram(self.ledger, TELEGRAM_TOKEN)
        self.fakes: dict[str, Fake] = {
            "twilio": FakeTwilio(self.ledger, TWILIO_ACCOUNT_SID, TWILIO_AUTH_TOKEN, self.twilio_url),
            "telegram": self.telegram,
            "slack": FakeSlack(self.ledger, SLACK_BOT_TOKEN, self.slack_url, config_token=SLACK_CONFIG_TOKEN),
        }

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve_forever(self) -> None:
        """Serve until interrupted."""
        self._server.serve_forever()

    @property
    def sent(self) -> list[dict[str, Any]]:
        """What arrived, in order, normalised."""
        return self.ledger.sent

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Every other call: typing signs, acknowledged taps, created Contents."""
        return self.ledger.calls

    def script(self, platform: str, error: str, times: int = 1, seconds: float = 0.0) -> None:
        """Fail the next `times` messages of a platform.

        `error`: "429", "500", "502", "503"; "drop" hangs up before accepting, "lost" after; "slow" answers after
        `seconds`; anything else is the platform's own error (Slack's code, Twilio's number, Telegram's description).
        """
        self.ledger.script(platform, error, times, seconds)

    def rate(self, platform: str, per_second: float) -> None:
        """Refuse what is faster, as the platform does; 0.1 takes one message in ten seconds."""
        self.ledger.limit(platform, per_second)

    def close(self, platform: str, address: str, *, closed: bool = True) -> None:
        """Close the window of an address, or open it. Raises ValueError for a platform that has none."""
        fake = self.fakes.get(platform)
        if not isinstance(fake, FakeTwilio):
            raise ValueError(f"{platform!r} has no windows: only twilio has")
        (fake.closed.add if closed else fake.closed.discard)(address)

    def arrive(self, platform: str, address: str, body: str = "", ago: float = 0.0, sid: str = "") -> None:
        """Somebody wrote so many seconds ago, and no webhook tells of it. Raises ValueError where no list would."""
        fake = self.fakes.get(platform)
        if not isinstance(fake, FakeTwilio):
            raise ValueError(f"{platform!r} has no list of messages: only twilio has")
        fake.kept.arrive(address, body, ago=ago, sid=sid)

    def host(self, platform: str, data: bytes) -> str:
        """Keep a file that a person sends. Returns what the webhook calls it: Twilio's or Slack's URL, a file_id."""
        return self.fakes[platform].host(data)

    def update(self, update: dict[str, Any]) -> None:
        """Have something happen that the Telegram bot hears when it asks."""
        self.telegram.updates.add(update)

    def reset(self) -> None:
        """Forget what arrived, and what was scripted, limited or closed."""
        self.ledger.reset()

    def answer(self, call: RecordedRequest) -> FakeResponse | None:
        """The answer to one HTTP request, None to hang up."""
        prefix, _, rest = call.path.lstrip("/").partition("/")
        if prefix in self.fakes:
            return self._platform(prefix, call.at("/" + rest))
        return self._control(prefix, rest, call)

    def _platform(self, name: str, call: RecordedRequest) -> FakeResponse | None:
        fake = self.fakes[name]
        if not fake.sends(call):
            return fake.answer(call)
        failure = self.ledger.next_failure(name) or self._trouble(name, call)
        if (failure is None or failure.error in ("slow", "lost")) and not self.ledger.admits(name):
            return fake.failure("429")
        if failure is None:
            return fake.answer(call)
        if failure.error == "slow":
            time.sleep(failure.seconds)
            return fake.answer(call)
        if failure.error == "lost":
            fake.answer(call)
            return None
        return None if failure.error == "drop" else fake.failure(failure.error)

    def _control(self, name: str, rest: str, call: RecordedRequest) -> FakeResponse:
        if name == "ledger":
            return json_answer(self.sent)
        if name == "calls":
            return json_answer(self.calls)
        if name == "busiest":
            return json_answer(self.ledger.busiest())
        if name == "blobs" and rest in self.ledger.blobs:
            return FakeResponse(200, self.ledger.blobs[rest], {"Content-Type": "application/octet-stream"})
        return self._order(name, call)

    def _order(self, name: str, call: RecordedRequest) -> FakeResponse:
        """Do what whoever started us asks. A typo must not pass as a quiet day."""
        orders: dict[str, Callable[..., None]] = {
            "script": self.script,
            "rate": self.rate,
            "close": self.close,
            "open": partial(self.close, closed=False),
            "arrive": self.arrive,
            "update": self.update,
            "reset": self.reset,
        }
        if call.method != "POST" or name not in orders:
            return json_answer({"error": f"unknown path {call.path!r}"}, 404)
        try:
            orders[name](**json.loads(call.body or b"{}"))
        except (ValueError, TypeError) as exc:
            return json_answer({"error": str(exc)}, 400)
        return json_answer(ACCEPTED)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    platforms: FakePlatforms

    def handle_error(self, *args: object) -> None:
        """A client that hung up while we were slow is what the test asked for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Answers leave in one packet: otherwise each costs a delayed ACK of 40 ms.
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.server.platforms.answer(RecordedRequest(self.command, self.path, headers, body))
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def do_GET(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_POST()

    def log_message(self, *args: object) -> None:
        """Say nothing: paths hold tokens."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve as a process: print the URL, then wait."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--port", type=int, default=0)
    platforms = FakePlatforms(parser.parse_args(arguments).port)
    print(platforms.url, flush=True)  # noqa: T201  # the caller reads the port from here
    platforms.serve_forever()


if __name__ == "__main__":
    main()
