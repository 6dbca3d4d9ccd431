"""Fixtures for all tests: one real Redis for the whole session, empty before each test."""

from __future__ import annotations

import gc
import io
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import certifi
import pytest
from hypothesis import HealthCheck, settings
from redis import Redis

from sayso.agent.messages import Message, Role
from sayso.agent.providers import testing
from sayso.agent.run.pause import WAITING, WAITING_FOR_OTHERS
from sayso.infra.redis.client import connect
from sayso.infra.tracing import stop_tracing
from sayso.pending.call_context import add_log_fields
from tests.s3 import S3Server
from tests.scratch_redis import scratch_url
from tests.workers.clusters import Cluster

# Neither a slow machine nor chance fails a test: each run draws the same examples. The profile inherits from the loaded
# one, such as that for mutants. `pytest --hypothesis-profile=new` draws new examples each time.
settings.register_profile(
    "sayso",
    settings(),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "new",
    max_examples=1000,
    derandomize=False,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("sayso")


def pytest_configure() -> None:
    """Treat SIGHUP and SIGINT as usual, also in processes that tests start.

    They inherit that a signal is ignored: SIGHUP under `nohup`, and SIGINT in the background of a shell, where
    `make test` runs most of its groups.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through all tests again and again: a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def few_authorities(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Trust one certificate authority: each HTTP client reads all of them, which takes longer than most tests."""
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    trusted = tmp_path_factory.mktemp("tls") / "authorities.pem"
    trusted.write_text(first + end)
    os.environ["SSL_CERT_FILE"] = str(trusted)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Restore the environment after each test: the variables, the signal handlers and the tracer of a wired process.

    A worker replaces the handlers. With those of one that has ended, CTRL-C would not end the tests.
    """
    # As bytes, and only where something has changed: to read and write all variables takes longer than many a test.
    before = _variables()
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    stop_tracing()
    after = _variables()
    if after != before:
        for name in after.keys() - before.keys():
            del os.environb[name]
        os.environb.update(before)


def _variables() -> dict[bytes, bytes]:
    """Return all variables but the one that pytest changes in each step of a test."""
    variables = os.environ._data.copy()
    variables.pop(b"PYTEST_CURRENT_TEST", None)
    return variables


@pytest.fixture(autouse=True)
def valid_histories(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fail a test whose model was shown a history that a vendor would refuse, whatever the bot answered then.

    So does a proposal of an earlier turn that says neither what became of it nor that it waits. A test of such
    histories has the mark `invalid_history`.
    """
    refused, check = list[str](), testing.check_history

    def check_and_note(messages: Sequence[Message]) -> None:
        try:
            check(messages)
        except testing.InvalidHistory as exc:
            refused.append(str(exc))
            raise
        turn = max(at for at, message in enumerate(messages) if message.role is Role.USER)
        settled = (
            message
            for message in messages[:turn]
            if message.content not in (WAITING, WAITING_FOR_OTHERS)
        )
        links = [link for message in settled for link in message.actions]
        refused.extend(
            f"the action {link.id!r} reads as if it waited" for link in links if not link.outcome
        )

    monkeypatch.setattr(testing, "check_history", check_and_note)
    yield
    if request.node.get_closest_marker("invalid_history") is None:
        assert refused == []


@pytest.fixture
def print_log() -> Iterator[Callable[[logging.Formatter], io.StringIO]]:
    """Return a function that prints the log of this test as a process of Sayso does, in a format."""
    printed, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(printed), root.level
    handler.addFilter(add_log_fields)

    def start(formatter: logging.Formatter) -> io.StringIO:
        handler.setFormatter(formatter)
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        return printed

    yield start
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(scope="session")
def redis_url() -> str:
    """Return the URL of a separate server. Fails on a machine that cannot run one."""
    return scratch_url()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return a separate S3 server, for all tests that do not stop it. Skips loudly without one, and fails in CI."""
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Return a cluster of three masters without replicas."""
    with tempfile.TemporaryDirectory(prefix="sayso-") as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def cluster_session(cluster: Cluster) -> Iterator[Redis]:
    """Return the client of all tests: to open one takes as long as a test."""
    with connect(cluster.url) as client:
        yield client


@pytest.fixture
def cluster_client(cluster_session: Redis) -> Redis:
    """Return a client of an empty Redis Cluster."""
    cluster_session.flushall()
    return cluster_session


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[Redis]:
    """Return a client of an empty Redis."""
    with connect(redis_url) as client:
        client.flushall()
        yield client
