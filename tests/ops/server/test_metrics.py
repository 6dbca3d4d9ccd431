"""The /metrics endpoint: it needs the token, and no count is lost when a process dies."""

from __future__ import annotations

import fcntl
import http.client
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sayso.config.settings.loader import DEMO
from sayso.infra.metrics_endpoint import (
    FOLDER,
    TOKEN,
    TOKEN_FILE,
    MetricsEndpoint,
    MetricsUnusable,
    read_token,
)
from sayso.ops.server.metrics_port import _remove_abandoned, listen_for_readers, serve_metrics
from sayso.ops.server.processes import AddressUnusable
from tests.config.processes import free_port, sayso

WORD = "a-long-metrics-token"
#: Counts 1, forks a child that counts 10 and is killed, then one that counts 100; prints what a reader gets. In common
#: files of its own, or in those of a folder that the environment names, as under gunicorn.
FORKS = """
import os, signal
from sayso.ops.server.metrics_port import share_counts
from sayso.infra.metrics_endpoint import MetricsEndpoint
from sayso.infra.metrics_folder import FOLDER
if not os.environ.get(FOLDER): share_counts(("127.0.0.1", 1), forks=True)
from sayso.infra import metrics
metrics.LEASES_LOST.inc(1)
for amount in (10, 100):
    if not (child := os.fork()):
        metrics.LEASES_LOST.inc(amount)
        metrics.MODEL_TOKENS.labels("m", "input").inc(amount)
        metrics.MODEL_TOKENS.labels("m", "cache_read").inc(3 * amount)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
from sayso.config.wiring.gauges import metrics_endpoint
from pathlib import Path
_, _, body = metrics_endpoint(Path("/")).answer("")
print([line for line in body.decode().splitlines() if line.startswith("sayso_leases_lost_total")])
print([line for line in body.decode().splitlines() if line.startswith("sayso_model_cache_hit_ratio{")])
print(sorted(name for name in os.listdir(os.environ[FOLDER]) if name.startswith("counter")))
print(os.environ[FOLDER])
print(min(os.stat(f"{os.environ[FOLDER]}/{name}").st_blocks * 512 for name in ("counter_1.db", "histogram_1.db")))
"""


@pytest.fixture
def port() -> Iterator[int]:
    """Return the port of an endpoint with a token, in this process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stop = serve_metrics(MetricsEndpoint(token=WORD), listening)
        yield int(listening.getsockname()[1])
        stop()


def ask(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    """Return status and body of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.parametrize(
    "given", ["", "Bearer ", f"Bearer {WORD[:-1]}", WORD, f"Basic {WORD}", "Bearer \udcff"]
)
def test_request_without_the_token_gets_401(given: str) -> None:
    """Also with a wrong one, or one in another form."""
    status, headers, body = MetricsEndpoint(token=WORD).answer(given)
    assert (status, headers["WWW-Authenticate"]) == ("401 Unauthorized", "Bearer")
    assert b"sayso_" not in body
    assert WORD.encode() not in body


def test_request_with_the_token_gets_the_metrics(port: int) -> None:
    """Over HTTP, on a port of its own, which serves no other path."""
    assert ask(port)[0] == 401
    status, body = ask(port, Authorization=f"Bearer {WORD}")
    assert status == 200
    assert "# TYPE sayso_redis_seconds histogram" in body
    assert ask(port, "/", Authorization=f"Bearer {WORD}") == (404, "only /metrics is here\n")


def test_address_that_other_machines_reach_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one only a local address is accepted. The error names the cure."""
    monkeypatch.delenv(TOKEN, raising=False)
    for host, shown in (("0.0.0.0", "0.0.0.0"), ("::", "[::]")):
        where = re.escape(f"--metrics {shown}:9464")
        with pytest.raises(
            MetricsUnusable, match=f"^{where} can be reached by others.*set SAYSO_METRICS"
        ):
            listen_for_readers((host, 9464))
    for host in ("127.0.0.1", "localhost"):
        listening = listen_for_readers((host, free_port()))
        assert listening is not None
        listening.close()
    monkeypatch.setenv(TOKEN, WORD)
    listening = listen_for_readers(("0.0.0.0", free_port()))
    assert listening is not None
    listening.close()
    assert listen_for_readers(None) is None


def test_a_port_that_is_taken_is_named_with_its_option() -> None:
    """One clear line, before any process is forked."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            AddressUnusable, match=f"cannot listen on 127.0.0.1:{port} .*or give another --metrics$"
        ):
            listen_for_readers(("127.0.0.1", port))


def test_the_token_may_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Container platforms mount secrets as files. An empty or missing file is refused: it would protect nothing."""
    file = tmp_path / "token"
    monkeypatch.setenv(TOKEN_FILE, str(file))
    with pytest.raises(MetricsUnusable, match=r"cannot read .*token.*No such file"):
        read_token()
    file.write_text("\n")
    with pytest.raises(MetricsUnusable, match="is empty"):
        read_token()
    file.write_text(f"{WORD}\n")
    assert read_token() == WORD


@pytest.mark.parametrize("token", ["höhö", "two\nlines", "\x1b[2J"])
def test_token_that_no_reader_can_send_is_refused(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start is refused, and the token is not shown. Space around a token is ignored."""
    monkeypatch.setenv(TOKEN, token)
    with pytest.raises(
        MetricsUnusable, match=f"^{TOKEN}: the token has characters that no header can hold"
    ) as caught:
        read_token()
    assert token not in str(caught.value)
    monkeypatch.setenv(TOKEN, f" {WORD}\n")
    assert read_token() == WORD


@pytest.mark.parametrize("is_given", [False, True])
def test_no_count_is_lost_when_a_process_is_killed(tmp_path: Path, *, is_given: bool) -> None:
    """The process that replaces it continues its file: sums never fall, and there are as many files as processes.

    Files have their room on the disk from the start: to write where a full disk has none kills a process.
    """
    environ = {**os.environ, FOLDER: str(tmp_path) if is_given else ""}
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, env=environ
    )
    counts, ratio, files, folder, allocated = done.stdout.splitlines()
    assert counts == "['sayso_leases_lost_total 111.0']", done.stderr
    assert ratio == """['sayso_model_cache_hit_ratio{model="m"} 0.75']""", (
        "of all processes together"
    )
    assert files == "['counter_0.db', 'counter_1.db']"
    assert Path(folder).exists() == is_given, "the parent removes its own at its end"
    assert int(allocated) >= 256 * 1024


def test_folders_of_killed_commands_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of running commands and of other programs stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(TOKEN, WORD)
    killed, running, starting = (
        tmp_path / f"sayso-metrics-{name}" for name in ("killed", "running", "starting")
    )
    for folder in (killed, running, starting):
        folder.mkdir()
        (folder / "0.lock").touch()
        os.utime(folder, (0, 0) if folder != starting else None)
    (tmp_path / "sayso-metrics-link").symlink_to(running)
    with (running / "0.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"sayso-metrics-{n}" for n in ("link", "running", "starting")
    ]


@pytest.mark.parametrize("folder", ["/nowhere", "/etc/passwd"])
def test_folder_that_cannot_be_written_is_named_with_its_cure(folder: str) -> None:
    """In one line, without a traceback."""
    command, environ = [sys.executable, "-m", "sayso", "worker"], {**os.environ, FOLDER: folder}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert done.stderr.startswith(f"Error: {FOLDER}: cannot count in {folder!r}")
    assert done.stderr.endswith("name a folder that this user may write to\n")


def test_command_of_an_operator_counts_in_no_common_file(tmp_path: Path) -> None:
    """It works with a folder that its user may not write to, and leaves nothing in it."""
    for folder in ("/nowhere", str(tmp_path)):
        command, environ = (
            [sys.executable, "-m", "sayso", "check", "-c", str(DEMO)],
            {**os.environ, FOLDER: folder},
        )
        subprocess.run(command, env=environ, capture_output=True, check=True)
    assert list(tmp_path.iterdir()) == []


def test_slow_readers_hold_no_thread(port: int) -> None:
    """A hundred readers with an unfinished request, and one with endless headers, do not delay another reader."""
    before, slow = (
        threading.active_count(),
        [socket.create_connection(("127.0.0.1", port)) for _ in range(100)],
    )
    for each in slow:
        each.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
    slow[0].sendall(b"X: " + b"x" * 40_000 + b"\r\n")
    assert slow[0].recv(12) == b"HTTP/1.0 431"
    assert ask(port, Authorization=f"Bearer {WORD}")[0] == 200
    assert threading.active_count() <= before
    for each in slow:
        each.close()


@pytest.mark.parametrize("given", ["nine", "0", "65536", "host:", "1.2.3.4", "::1", "[]:80"])
def test_malformed_address_is_refused(given: str) -> None:
    """The line shows the value and the cure."""
    code, _, errors = sayso("worker", "--metrics", given)
    assert code == 2
    assert f"{given!r} is not an address: write a port, such as 9464" in " ".join(errors.split())
