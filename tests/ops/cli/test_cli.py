"""The `sayso` command: exit code 3 and one clear message for an operator's mistake, never a traceback."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest
from redis import Redis

from sayso.config.settings.loader import DEMO
from sayso.config.wiring import rq_entry, wsgi
from sayso.ops.server.embedded_redis import EmbeddedRedis
from tests.config.processes import PATIENCE, forked, free_port, sayso, short_folder


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    """Return a running Redis."""
    with short_folder() as folder:
        embedded = EmbeddedRedis(folder)
        embedded.start()
        yield embedded
        embedded.stop()


def refusal(*args: str | Path, **environ: str) -> str:
    """Return the message of a command that fails as it should."""
    code, _, errors = sayso(*args, **environ)
    assert code == 3
    assert "Traceback" not in errors
    assert "Error: " in errors
    return errors


def test_missing_configuration_is_named(tmp_path: Path):
    """The error for a wrong path names the cure."""
    file = tmp_path / "nope.yaml"
    assert refusal("check", "-c", file) == (
        f"Error: {file}: no such file: give a YAML file with --config or SAYSO_CONFIG, or write one with `sayso init`\n"
    )


ENTRIES = [wsgi.app, rq_entry._from_environment]


def start(entry: Callable[[], object], folder: Path, **environ: str) -> str:
    """Return the message of another entry point that fails."""
    code, _, errors = forked(entry, cwd=folder, SAYSO_DATA=str(folder), **environ)
    assert code != 0
    return errors


@pytest.mark.parametrize("entry", ENTRIES)
def test_other_entry_points_read_the_file_of_the_environment(
    tmp_path: Path, entry: Callable[[], object]
):
    """A WSGI server and `rq worker` take their file from SAYSO_CONFIG, and a missing one is named."""
    errors = start(entry, tmp_path, SAYSO_CONFIG="nope.yaml")
    assert "nope.yaml: no such file: give a YAML file with --config or SAYSO_CONFIG" in errors


@pytest.mark.parametrize("entry", ENTRIES)
def test_other_entry_points_read_the_file_of_their_folder(
    tmp_path: Path, entry: Callable[[], object]
):
    """Without SAYSO_CONFIG they read ./sayso.yaml, which only lacks a Redis here."""
    assert f"no configuration: there is no sayso.yaml in {tmp_path}: run this where" in start(
        entry, tmp_path
    )
    (tmp_path / "sayso.yaml").write_text("channels: {web: {platform: console}}")
    assert "no Redis: set REDIS_URL" in start(entry, tmp_path)


def test_folder_as_configuration_is_named(tmp_path: Path):
    """The error says that it is no file."""
    assert "cannot be read (Is a directory)" in refusal("up", "--config", tmp_path)


def on_free_port(command: str) -> list[str]:
    """Return the command with a port of its own if it listens: another program may use the default port meanwhile."""
    return [command, "--port", str(free_port())] if command in ("up", "web") else [command]


@pytest.mark.parametrize("command", ["web", "worker"])
def test_web_and_worker_need_a_redis(tmp_path: Path, command: str):
    """Without a Redis both name the cure."""
    assert "no Redis: set REDIS_URL, or run `sayso up`" in refusal(
        *on_free_port(command), "--data", tmp_path
    )


@pytest.mark.parametrize("command", ["up", "web", "worker"])
def test_no_process_starts_with_an_open_console_behind_an_address_of_the_environment(
    tmp_path: Path, command: str
):
    """The file alone is allowed; SAYSO_PUBLIC_URL means that a proxy serves it."""
    places = {"REDIS_URL": "redis://127.0.0.1:1", "SAYSO_PUBLIC_URL": "https://bots.example.com"}
    errors = refusal(*on_free_port(command), "--data", tmp_path, **places)
    assert "channels.web: this console has no password" in errors


def test_malformed_address_of_the_environment_is_one_line(tmp_path: Path):
    """The line names the variable, its value and the cure."""
    errors = refusal(*on_free_port("up"), "--data", tmp_path, SAYSO_PUBLIC_URL="http://[::1")
    assert (
        "SAYSO_PUBLIC_URL: 'http://[::1' is not a URL: write it as https://bots.example.com"
        in errors
    )
    assert "Traceback" not in errors


@pytest.mark.parametrize("url", ["foo://s3cr3t", "redis://:s3cr3t@host:port/x"])
def test_malformed_redis_url_is_refused_without_repeating_it(tmp_path: Path, url: str):
    """The URL may hold a password."""
    errors = refusal("web", "--data", tmp_path, "--port", free_port(), REDIS_URL=url)
    assert "no URL of a Redis: " in errors
    assert "s3cr3t" not in errors


def test_redis_that_refuses_connections_is_named(tmp_path: Path):
    """An unreachable Redis at start is an operator's mistake."""
    errors = refusal(
        "worker", "--data", tmp_path, REDIS_URL=f"redis://:s3cr3t@127.0.0.1:{free_port()}"
    )
    assert "nothing listens there" in errors
    assert "correct REDIS_URL, or run `sayso up`" in errors
    assert "s3cr3t" not in errors


def test_redis_that_evicts_is_refused(tmp_path: Path, server: EmbeddedRedis):
    """A Redis that may drop a waiting turn cannot be used."""
    with Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        errors = refusal("worker", "--data", tmp_path, REDIS_URL=server.url)
        client.config_set("maxmemory-policy", "noeviction")
    assert "maxmemory-policy is 'allkeys-lru'" in errors
    assert "Set it to noeviction" in errors


class OldRedis(StreamRequestHandler):
    """A server that answers INFO like an old Redis."""

    def handle(self) -> None:
        """Speak RESP until the client leaves."""
        keys = 0
        for line in self.rfile:
            if line.strip().upper() == b"INFO":
                words = b"redis_version:5.0.14\r\nprocess_id:1\r\n"
                self.wfile.write(b"$%d\r\n%s\r\n" % (len(words), words))
            elif line.strip().upper() == b"MGET":
                self.wfile.write(b"*%d\r\n" % keys + b"$-1\r\n" * keys)
            elif line.startswith(b"*"):
                keys = int(line[1:]) - 1
            elif line.strip().upper() in (b"HELLO", b"CLIENT"):
                self.wfile.write(b"-ERR unknown command\r\n")


def test_old_redis_is_refused(tmp_path: Path):
    """The version shows that needed commands are missing."""
    with ThreadingTCPServer(("127.0.0.1", 0), OldRedis) as old:
        old.daemon_threads = True
        threading.Thread(target=old.serve_forever, args=(0.02,), daemon=True).start()
        errors = refusal(
            "web",
            "--data",
            tmp_path,
            "--port",
            free_port(),
            REDIS_URL=f"redis://127.0.0.1:{old.server_address[1]}?protocol=2",
        )
        old.shutdown()
    assert "this Redis is 5.0.14: use 6.2 or newer" in errors


def test_taken_port_of_the_web_is_named(tmp_path: Path, server: EmbeddedRedis):
    """The web reports at once that its port is in use."""
    with ThreadingTCPServer(("127.0.0.1", 0), OldRedis) as other:
        port = other.server_address[1]
        errors = refusal("web", "--data", tmp_path, "--port", port, REDIS_URL=server.url)
    assert (
        f"cannot listen on 127.0.0.1:{port} (Address already in use): stop what uses it, or give another"
        in errors
    )


@pytest.mark.parametrize("command", ["up", "web", "worker", "chat"])
def test_unusable_data_folder_is_named(tmp_path: Path, command: str):
    """The error for an unwritable data folder has its path and the cure."""
    (tmp_path / "file").write_text("")
    errors = refusal(*on_free_port(command), "--data", tmp_path / "file" / "below", REDIS_URL="")
    assert (
        f"data folder '{tmp_path}/file/below': Not a directory: give one you may write to with --data"
        in errors
    )


def test_terminal_chat_deletes_after_a_yes_and_saves_charts(tmp_path: Path):
    """The whole bot works in a pipe: it asks, acts, and writes files into the data folder."""
    said = "delete invoice INV-42\nyes\nfind invoice INV-42\nsales chart\n../exit\nexit\nnot read\n"
    code, output, errors = sayso("chat", "--data", tmp_path, stdin=said)
    assert (code, errors) == (0, "")
    assert "INV-42" in output
    assert "not read" not in output
    saved = [Path(line[7:-1]) for line in output.splitlines() if line.startswith("[saved ")]
    assert len(saved) == 1
    assert saved[0].parent == tmp_path / "chat"
    assert saved[0].read_bytes().startswith(b"\x89PNG")


def test_terminal_chat_offers_to_undo(tmp_path: Path):
    """The number of the button undoes the action."""
    code, output, errors = sayso(
        "chat", "--data", tmp_path, stdin="delete invoice INV-42\nyes\n1\n"
    )
    assert (code, errors) == (0, "")
    assert output.index("[1] Undo") < output.index("Invoice INV-42 is back.")


def test_terminal_chat_survives_bytes_that_are_no_text(tmp_path: Path):
    """A pipe may hold any bytes."""
    command = [
        sys.executable,
        "-m",
        "sayso",
        "chat",
        "--config",
        str(DEMO),
        "--data",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, check=False, input=b"\xff\xfe\0hi\n", capture_output=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_check_lists_what_each_channel_may_do():
    """The demo's configuration passes the check."""
    code, output, _ = sayso("check", "-c", "config/demo.yaml")
    assert code == 0
    assert "delete_invoice: asks first" in output
    assert "find_invoice: runs at once" in output


def test_check_marks_tools_that_ask_by_themselves(tmp_path: Path):
    """A tool that the policy allows may propose an action by itself; its line says so."""
    assert "refund_invoice: asks by itself\n" in sayso("check", "-c", "config/demo.yaml")[1]
    file = tmp_path / "sayso.yaml"
    file.write_text(
        "tools: [sayso.examples.invoices]\nchannels:\n"
        "  a: {platform: console, tools: [refund_*], policy: {review: ['*']}}\n"
    )
    assert (
        "refund_invoice: asks by itself, and should be under allow" in sayso("check", "-c", file)[1]
    )


@pytest.mark.parametrize("module", ["sayso.channels.web.app", "sayso", "sayso.workers.rq.worker"])
def test_start_does_not_load_vendors_libraries(module: str):
    """They are loaded at their first use."""
    heavy = ("twilio", "telegram", "slack_sdk", "slack_bolt", "matplotlib", "httpx")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", ["pyproject.toml/below", "/proc/nowhere"])
def test_simulation_that_cannot_write_is_refused(folder: str):
    """A file in the way or a missing permission is one line, before anything starts."""
    assert f"data folder '{folder}': " in refusal("simulate", "quick", "--data", folder)
