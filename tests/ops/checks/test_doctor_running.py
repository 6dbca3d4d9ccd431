"""`sayso doctor` beside running processes: it finds the bot of its data folder and mistakes no other process for it."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sayso.channels.setup import BOT_HEADER
from sayso.ops.server.processes import UP_FILE, WEB_FILE, RunningBot, running_bots, save_running_bot
from tests.config.processes import ForkedCommand, free_port, sayso, until

CONFIG = "name: {name}\nagent: {{model: offline}}\nchannels: {{web: {{platform: console}}}}\n"


class Bot:
    """One bot with a folder, a file and a port of its own."""

    def __init__(self, folder: Path, name: str, redis_url: str) -> None:
        self.data, self.config, self.redis_url = folder / name, folder / f"{name}.yaml", redis_url
        self.config.write_text(CONFIG.format(name=name))

    @contextmanager
    def web(self, port: int) -> Iterator[ForkedCommand]:
        """Run its web."""
        command = ["web", "-c", str(self.config), "--data", str(self.data), "--port", str(port)]
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("SAYSO_")
        }
        environ |= {"REDIS_URL": self.redis_url}
        process = ForkedCommand(command, environ, self.config.with_suffix(".log"))
        try:
            until(
                lambda: bot_at(port) and (self.data / "bots" / self.config.stem / WEB_FILE).exists()
            )
            yield process
        finally:
            process.kill()
            process.wait()

    def findings(self, *, named: bool = False, **environ: str) -> dict[str, dict[str, str]]:
        """Return the doctor's findings about the web by check. Without `named` it gets the folder only."""
        given = ("-c", str(self.config)) if named else ()
        environ = {"SAYSO_CONFIG": "", "REDIS_URL": self.redis_url, **environ}
        _, output, errors = sayso("doctor", "--json", "--data", str(self.data), *given, **environ)
        assert output, errors
        return {
            each["check"]: each
            for each in json.loads(output)
            if each["check"] in ("healthz", "web")
        }


def bot_at(port: int) -> str:
    """Return the id of the bot that answers on a port, "" if none does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return str(answer.headers[BOT_HEADER])
    except (urllib.error.URLError, ConnectionError):
        return ""


@pytest.fixture
def bots(tmp_path: Path, redis_url: str) -> tuple[Bot, Bot]:
    """Return two bots on one Redis."""
    return Bot(tmp_path, "shop", redis_url), Bot(tmp_path, "desk", redis_url)


def test_bot_of_the_folder_is_found_and_no_other(
    bots: tuple[Bot, Bot], tmp_path: Path, redis_client: object
):
    """Its port and public URL are read from the note in the folder. A public URL that leads to another bot is a
    finding.
    """
    shop, desk = bots
    ports = free_port(), free_port()
    with shop.web(ports[0]) as ours, desk.web(ports[1]):
        assert bot_at(ports[0]) != bot_at(ports[1])
        found = shop.findings()
        assert (found["healthz"]["state"], f":{ports[0]} answers" in found["healthz"]["says"]) == (
            "ok",
            True,
        )
        wrong = shop.findings(SAYSO_PUBLIC_URL=f"http://127.0.0.1:{ports[1]}")
        assert (wrong["web"]["state"], wrong["healthz"]["id"]) == ("ok", "web-other-bot")
        ours.kill()
        ours.wait()
        gone = shop.findings(named=True)["healthz"]
        assert (gone["state"], gone["id"]) == ("fail", "web-unknown")
        with desk.web(ports[0]):  # another Sayso takes the port
            assert shop.findings(named=True)["healthz"]["id"] == "web-unknown"


def test_note_of_a_dead_process_is_ignored(bots: tuple[Bot, Bot]):
    """Even if another process got its process id since."""
    shop, _ = bots
    folder, running = (
        shop.data / "bots" / "shop",
        RunningBot(shop.config, "http://127.0.0.1:1", os.getpid()),
    )
    save_running_bot(folder, running, WEB_FILE)
    assert [bot.pid for bot in running_bots(shop.data)] == [os.getpid()]
    note = json.loads((folder / WEB_FILE).read_text())
    (folder / WEB_FILE).write_text(json.dumps({**note, "born": "1"}))
    assert running_bots(shop.data) == []
    assert shop.findings(named=True)["healthz"]["id"] == "web-unknown"


def test_web_that_ends_removes_its_note(bots: tuple[Bot, Bot], redis_client: object):
    """Even if its parent has not yet read its exit code, as happens in containers."""
    shop, _ = bots
    with shop.web(free_port()) as process:
        assert [bot.pid for bot in running_bots(shop.data)] == [process.pid]
        process.terminate()
        until(lambda: not running_bots(shop.data))
        process.wait()
    assert not (shop.data / "bots" / "shop" / WEB_FILE).exists()


def test_port_on_which_the_bot_does_not_answer_is_named(bots: tuple[Bot, Bot]):
    """The process of the note lives, and nothing listens on its port any more."""
    shop, _ = bots
    save_running_bot(
        shop.data / "bots" / "shop",
        RunningBot(shop.config, f"http://127.0.0.1:{free_port()}", os.getpid()),
        UP_FILE,
    )
    assert shop.findings()["healthz"]["id"] == "web-away"
