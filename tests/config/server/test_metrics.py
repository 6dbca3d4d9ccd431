"""The /metrics endpoint: it needs the token, and no count is lost when a process dies."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sayso.config.server.metrics import (
    TOKEN,
    TOKEN_FILE,
    MetricsEndpoint,
    MetricsUnusable,
    listen_for_readers,
    read_token,
    serve_metrics,
)
from sayso.config.server.processes import AddressUnusable
from tests.config.processes import free_port, sayso

WORD = "a-long-metrics-token"
#: Counts 1, forks a child that counts 10 and is killed, then one that counts 100; prints what a reader gets.
FORKS = """
import os, signal
from sayso.config.server.metrics import FOLDER, MetricsEndpoint, share_counts
share_counts(("127.0.0.1", 1), forks=True)
from sayso.channels import metrics
metrics.LEASES_LOST.inc(1)
for amount in (10, 100):
    if not (child := os.fork()):
        metrics.LEASES_LOST.inc(amount)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
_, _, body = MetricsEndpoint().answer("")
print([line for line in body.decode().splitlines() if line.startswith("sayso_leases_lost_total")])
print(sorted(name for name in os.listdir(os.environ[FOLDER]) if name.startswith("counter")))
print(os.environ[FOLDER])
"""


@pytest.fixture
def port() -> Iterator[int]:
    """Return the port of an endpoint with a token, in this process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serve_metrics(MetricsEndpoint(token=WORD), listening)
        yield int(listening.getsockname()[1])


def ask(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    """Return status and body of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.parametrize("given", ["", "Bearer ", f"Bearer {WORD[:-1]}", WORD, f"Basic {WORD}", "Bearer \udcff"])
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
    with pytest.raises(MetricsUnusable, match=r"--metrics 0\.0\.0\.0:9464 can be reached by others.*set SAYSO_METRICS"):
        listen_for_readers(("0.0.0.0", 9464))
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
        with pytest.raises(AddressUnusable, match=f"cannot listen on 127.0.0.1:{port} .*or give another --metrics$"):
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


def test_no_count_is_lost_when_a_process_is_killed() -> None:
    """The process that replaces it continues its file: sums never fall, and there are as many files as processes."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    counts, files, folder = done.stdout.splitlines()
    assert counts == "['sayso_leases_lost_total 111.0']", done.stderr
    assert files == "['counter_0.db', 'counter_1.db']"
    assert not Path(folder).exists(), "the parent removes it at its end"


@pytest.mark.parametrize("given", ["nine", "0", "65536", "host:", "1.2.3.4"])
def test_malformed_address_is_refused(given: str) -> None:
    """The line shows the value and the cure."""
    code, _, errors = sayso("worker", "--metrics", given)
    assert code == 2
    assert f"{given!r} is no address: write a port, such as 9464" in " ".join(errors.split())
