"""A platform from another distribution: once installed, it is a known `platform:`, and a bot runs on it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sayso.examples import invoices
from sayso.examples.json_webhook.sayso_json_webhook import SIGNATURE, sign
from tests.config.processes import Up, sayso, short_folder, until

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples/json_webhook"
SECRET = "the-secret-of-both-ends"
CONFIG = """
tools: [sayso.examples.invoices]
channels:
  desk: {{platform: json_webhook, secret: "${{DESK_SECRET}}", reply_url: "{url}"}}
"""


class Chat:
    """A fake server of the platform: it keeps the bot's messages and posts people's events."""

    def __init__(self) -> None:
        self.messages: list[dict] = []
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers[SIGNATURE] == sign(SECRET, body)
                chat.messages.append(json.loads(body))
                answer = json.dumps({"message_id": f"m{len(chat.messages)}"}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: object) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/replies"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def post(self, address: str, secret: str = SECRET, **event: str) -> int:
        """Send a signed event to the bot. Return the status of its answer."""
        body = json.dumps({"chat": "c1", "user": "ana", **event}).encode()
        request = urllib.request.Request(
            f"{address}/hooks/desk", body, {SIGNATURE: sign(secret, body)}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as exc:
            return exc.code

    def await_message(self, text: str) -> dict:
        """Wait for a message with this text and return it."""
        return until(lambda: next((each for each in self.messages if text in each["text"]), None))


@pytest.fixture
def chat() -> Iterator[Chat]:
    """Run the fake server of the platform."""
    chat = Chat()
    yield chat
    chat.server.shutdown()
    chat.server.server_close()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the platform's distribution and return its folder."""
    source, site = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, source)
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*install, "--target", str(site), str(source)], check=True, timeout=200)
    return site


def config_of(folder: Path, url: str) -> Path:
    """Write a configuration with one channel on the platform and return its path."""
    file = folder / "sayso.yaml"
    file.write_text(CONFIG.format(url=url))
    return file


def test_a_bot_runs_on_an_installed_platform(installed: Path, chat: Chat):
    """The bot handles a message, a tool call, a question with buttons, a tap and the effect over real HTTP."""
    with short_folder() as folder:
        config = config_of(folder, chat.url)
        environ = {
            "DESK_SECRET": SECRET,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)]),
        }
        with Up(folder / "data", "--config", str(config), **environ) as up:
            up.ready()
            assert chat.post(up.url, "another secret", id="e0", text="hello") == 403
            assert chat.post(up.url, id="e1", text="delete invoice INV-42") == 200
            question = chat.await_message("INV-42")
            yes = question["buttons"][0]
            assert chat.post(up.url, id="e2", tap=yes["data"]) == 200
            chat.await_message("Invoice INV-42 is deleted.")
            with closing(sqlite3.connect(folder / "data" / invoices.FILE)) as desk:
                assert desk.execute(
                    "SELECT count(*) FROM invoices WHERE id = 'INV-42'"
                ).fetchone() == (0,)


def test_check_names_the_installed_platforms(installed: Path, tmp_path: Path):
    """The error for an unknown platform lists the known ones, and the error for an unknown key names its place."""
    environ = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)]), "DESK_SECRET": SECRET}
    config = config_of(tmp_path, "https://chat.example.com/replies")
    code, output, _ = sayso("check", "-c", config, **environ)
    assert (code, "desk (json_webhook)" in output) == (0, True)
    config.write_text(config.read_text().replace("json_webhook", "jsn_webhook"))
    assert (
        "one of whatsapp, telegram, slack, console, json_webhook"
        in sayso("check", "-c", config, **environ)[2]
    )
    assert (
        "one of whatsapp, telegram, slack, console (it is 'jsn_webhook')"
        in sayso("check", "-c", config)[2]
    )


def test_secrets_of_an_installed_platform_stay_out_of_the_file(installed: Path, tmp_path: Path):
    """Its settings say which keys are secret, as those of the built-in platforms do."""
    environ = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])}
    config = config_of(tmp_path, "https://chat.example.com/replies")
    config.write_text(config.read_text().replace('"${DESK_SECRET}"', "in-clear"))
    code, _, errors = sayso("check", "-c", config, **environ)
    assert code != 0
    assert "secret: a secret in clear" in errors
