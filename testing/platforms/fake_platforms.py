"""Fakes of Twilio, Telegram and Slack on one port.

They refuse what the platforms refuse, and log what they accept.

In Python: `with FakePlatforms() as platforms: ...`. As a process:
`python -m sayso.testing.platforms.fake_platforms --port 0`.

The platforms answer below /twilio/..., /telegram/... and /slack/... A test reads:

GET /sent            the accepted messages, in order, in one form for all platforms
GET /calls           all other calls
GET /busiest         the most messages that each platform accepted within a second
GET /blobs/<sha256>  a file that arrived

A test sends commands, each with a JSON object:

POST /script  {"platform", "error", "times", "seconds"}: how the next messages fail
POST /rate    {"platform", "per_second"}: faster messages get the platform's 429
POST /close   {"platform": "twilio", "address"}: close the 24-hour window of an address
POST /open    {"platform": "twilio", "address"}: open it again
POST /fail    {"platform": "twilio", "address", "code"}: accept messages to an address, and report
              them as failed with this code; without a code this ends
POST /arrive  {"platform": "twilio", "address", "body", "ago", "sid"}: a message without a webhook
POST /update  {"update"}: an update for a Telegram bot that calls getUpdates
POST /reset   remove all messages and files, and take back all commands above
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from sayso.testing.platforms.server import (
    ACCEPTED,
    Fake,
    FakeResponse,
    RecordedRequest,
    RequestLog,
    ScriptedFailure,
    json_response,
)
from sayso.testing.platforms.slack import FakeSlack
from sayso.testing.platforms.telegram import FakeTelegram
from sayso.testing.platforms.twilio import FakeTwilio

#: Credentials that the fakes accept, and secrets that sign their webhooks. Real platforms refuse
#: all of them.
TWILIO_ACCOUNT_SID = "AC0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
TWILIO_AUTH_TOKEN = "test-auth-token-0123456789abcdef"
TELEGRAM_TOKEN = "7000000001:AAtest-telegram-token-0123456789"
TELEGRAM_SECRET = "tg-secret_ABC-123"
SLACK_BOT_TOKEN = "xoxb-test-slack-token-0123456789"
SLACK_SIGNING_SECRET = "slack-test-signing-secret"
SLACK_CONFIG_TOKEN = "xoxe.xoxp-1-test-slack-config-token"
#: The variables with these credentials, under the names that our examples and tests use.
ENVIRON = {
    "TWILIO_ACCOUNT_SID": TWILIO_ACCOUNT_SID,
    "TWILIO_AUTH_TOKEN": TWILIO_AUTH_TOKEN,
    "TELEGRAM_TOKEN": TELEGRAM_TOKEN,
    "TELEGRAM_SECRET": TELEGRAM_SECRET,
    "SLACK_BOT_TOKEN": SLACK_BOT_TOKEN,
    "SLACK_SIGNING_SECRET": SLACK_SIGNING_SECRET,
}

#: Returns the failure of one message, given the names of the platform and of the chat.
FailureSource = Callable[[str, str], ScriptedFailure | None]


class FakePlatforms:
    """All three platforms on one local port, from `with` to its end.

    `port` is 0 for any free port. `failures` is called for every message without a scripted
    failure, and may return one. `fakes` holds the fake of each platform, by the name that its path
    begins with; a test may add a fake of its own platform. `log` holds what arrived at all of them.
    """

    def __init__(self, port: int = 0, *, failures: FailureSource | None = None) -> None:
        self.log = RequestLog()
        self._failures = failures
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.platforms = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.twilio_url = f"{self.url}/twilio"
        self.telegram_url = f"{self.url}/telegram"
        self.slack_url = f"{self.url}/slack"

        self.telegram = FakeTelegram(self.log, TELEGRAM_TOKEN)
        self.fakes: dict[str, Fake] = {
            "twilio": FakeTwilio(self.log, TWILIO_ACCOUNT_SID, TWILIO_AUTH_TOKEN, self.twilio_url),
            "telegram": self.telegram,
            "slack": FakeSlack(
                self.log, SLACK_BOT_TOKEN, self.slack_url, config_token=SLACK_CONFIG_TOKEN
            ),
        }

    def __enter__(self) -> Self:
        # The default interval of half a second would make the end of each test as slow.
        serve = partial(self._server.serve_forever, poll_interval=0.02)
        threading.Thread(target=serve, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve_forever(self) -> None:
        """Serve until interrupted."""
        self._server.serve_forever()

    @property
    def sent(self) -> list[dict[str, Any]]:
        """The accepted messages, in order, as `RequestLog.append_message` describes them."""
        return self.log.sent

    @property
    def calls(self) -> list[dict[str, Any]]:
        """All other calls: typing signs, acknowledged taps, Contents (Twilio's message shapes)."""
        return self.log.calls

    def script(self, platform: str, error: str, times: int = 1, seconds: float = 0.0) -> None:
        """Fail the next `times` messages of a platform.

        `error` is one of:

        * "429", "500", "502", "503": this HTTP status.
        * "drop": hang up, and do not accept the message.
        * "lost": accept the message, then hang up. The bot cannot tell this from "drop".
        * "slow": accept the message, and answer after `seconds`.
        * Anything else: the platform's own error, which is a code at Slack, a number at Twilio and
          a description at Telegram.

        Raises ValueError for an unknown platform.
        """
        self._fake(platform)
        self.log.script(platform, error, times, seconds)

    def rate(self, platform: str, per_second: float) -> None:
        """Refuse faster messages as the platform does; 0.1 is one message in ten seconds.

        Raises ValueError for an unknown platform, and for a rate of 0 or less.
        """
        self._fake(platform)
        self.log.limit(platform, per_second)

    def close(self, platform: str, address: str, *, closed: bool = True) -> None:
        """Close or open the 24-hour window of an address.

        Raises ValueError for a platform without windows.
        """
        fake = self.fakes.get(platform)
        if not isinstance(fake, FakeTwilio):
            raise ValueError(f"{platform!r} has no windows: only twilio has")
        if closed:
            fake.closed.add(address)
        else:
            fake.closed.discard(address)

    def fail(self, platform: str, address: str, code: str = "") -> None:
        """Report messages to an address as failed after they were accepted; code "" ends this.

        Raises ValueError for a platform without such reports.
        """
        fake = self.fakes.get(platform)
        if not isinstance(fake, FakeTwilio):
            raise ValueError(f"{platform!r} reports no failures later: only twilio does")
        fake.failing[address] = code

    def arrive(
        self, platform: str, address: str, body: str = "", ago: float = 0.0, sid: str = ""
    ) -> None:
        """Add a message that a person wrote `ago` seconds ago, and send no webhook.

        The bot finds it only in the list of messages, as after an outage. `sid` is "" for a new id.
        Raises ValueError for a platform that lists no messages.
        """
        fake = self.fakes.get(platform)
        if not isinstance(fake, FakeTwilio):
            raise ValueError(f"{platform!r} has no list of messages: only twilio has")
        fake.inbound.arrive(address, body, ago=ago, sid=sid)

    def host(self, platform: str, data: bytes) -> str:
        """Store a file that a person sends.

        Return its name in webhooks: a URL (Twilio, Slack) or a file_id.
        """
        return self._fake(platform).host(data)

    def update(self, update: dict[str, Any]) -> None:
        """Add an update for the Telegram bot that calls getUpdates."""
        self.telegram.updates.add(update)

    def reset(self) -> None:
        """Remove all that the log holds, see `RequestLog`.

        That includes what a platform remembers, such as closed windows, addresses that fail,
        messages that arrived and waiting updates. The Contents and the setup of the Twilio account
        stay.
        """
        self.log.reset()

    def answer(self, call: RecordedRequest) -> FakeResponse | None:
        """Return the response to one HTTP request, None to hang up."""
        prefix, _, rest = call.path.lstrip("/").partition("/")
        if prefix in self.fakes:
            return self._answer_as_platform(prefix, call.at("/" + rest))
        if prefix == "sent":
            return json_response(self.sent)
        if prefix == "calls":
            return json_response(self.calls)
        if prefix == "busiest":
            return json_response(self.log.busiest())
        if prefix == "blobs" and rest in self.log.blobs:
            return FakeResponse(
                200, self.log.blobs[rest], {"Content-Type": "application/octet-stream"}
            )
        return self._run_command(prefix, call)

    def _fake(self, name: str) -> Fake:
        if name not in self.fakes:
            *names, last = self.fakes
            raise ValueError(f"unknown platform {name!r}; use {', '.join(names)} or {last}")
        return self.fakes[name]

    def _answer_as_platform(self, name: str, call: RecordedRequest) -> FakeResponse | None:
        """Return the response of one fake, or the failure that is ordered for this message.

        Return None to hang up.
        """
        fake = self.fakes[name]
        if not fake.sends(call):
            return fake.answer(call)

        failure = self.log.next_failure(name)
        if failure is None and self._failures:
            failure = self._failures(name, _chat_of(call, fake))

        # A message that fails otherwise is not accepted, so it uses up nothing of the rate limit.
        is_accepted = failure is None or failure.error in ("slow", "lost")
        if is_accepted and not self.log.admits(name):
            return fake.failure("429")

        if failure is None:
            return fake.answer(call)
        if failure.error == "slow":
            time.sleep(failure.seconds)
            return fake.answer(call)
        if failure.error == "lost":
            fake.answer(call)
            return None
        if failure.error == "drop":
            return None
        return fake.failure(failure.error)

    def _run_command(self, name: str, call: RecordedRequest) -> FakeResponse:
        """Run a command of a test, and answer whether it worked.

        An unknown command is an error, so that a typo does not pass unnoticed.
        """
        commands: dict[str, Callable[..., None]] = {
            "script": self.script,
            "rate": self.rate,
            "close": self.close,
            "open": partial(self.close, closed=False),
            "fail": self.fail,
            "arrive": self.arrive,
            "update": self.update,
            "reset": self.reset,
        }
        if call.method != "POST" or name not in commands:
            return json_response({"error": f"unknown path {call.path!r}"}, 404)
        try:
            commands[name](**json.loads(call.body or b"{}"))
        except (ValueError, TypeError) as exc:
            return json_response({"error": str(exc)}, 400)
        return json_response(ACCEPTED)


def _chat_of(call: RecordedRequest, fake: Fake) -> str:
    """Return the chat that a message names, "" if it names none."""
    params = call.params
    for field in fake.chat_fields:
        if params.get(field):
            return str(params[field])
    return ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    platforms: FakePlatforms

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error of a request, unless its client hung up.

        A client hangs up before a slow answer, and the test ordered that answer. Any other error is
        a bug of a fake, which the client sees only as a connection that ends.
        """
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Answers leave in one packet: otherwise each costs a delayed ACK of 40 ms.
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = RecordedRequest(self.command, self.path, headers, body)
        answer = self.server.platforms.answer(request)

        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def do_GET(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_POST()

    def log_message(self, *args: object) -> None:
        """Log nothing: paths contain tokens."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a process: print the URL, then serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--port", type=int, default=0)
    platforms = FakePlatforms(parser.parse_args(arguments).port)
    print(platforms.url, flush=True)  # noqa: T201  # the caller reads the port from here
    platforms.serve_forever()


if __name__ == "__main__":
    main()
