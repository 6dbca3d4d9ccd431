"""`sayso up` as a real process: it keeps its parts alive and leaves none behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sayso.config.settings.loader import load_settings
from sayso.examples import invoices
from sayso.infra.stop_signals import STOPPING
from sayso.ops.server import up as supervisor
from sayso.ops.server.embedded_redis import EmbeddedRedisError
from sayso.ops.server.processes import AddressUnusable, running_bots
from sayso.ops.server.up import MAX_PAUSE_SECONDS, SupervisedPart
from sayso.testing.platforms.fake_platforms import TELEGRAM_TOKEN, FakePlatforms
from sayso.testing.platforms.telegram import WAITING_UPDATES
from sayso.testing.platforms.webhooks import telegram_text
from tests.config.processes import (
    DEMO,
    POLL,
    REDIS,
    WEB,
    WORKER,
    Up,
    free_port,
    is_running,
    sayso,
    short_folder,
    until,
)

POLLED = """
channels:
  tg: {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", polling: true, api_url: {url}, messages_per_second: 0}}
"""
#: A worker that is told to stop goes on with its turns for an hour.
UNHURRIED = """
workers: {grace_seconds: 3600}
tools: [./tools.py]
"""
#: A tool whose first call takes an hour.
LOOKING = """
import time
from pathlib import Path
from sayso import tool

BEGUN = Path(__file__).with_name("begun")


@tool(read_only=True)
def look_around() -> str:
    if not BEGUN.exists():
        BEGUN.touch()
        time.sleep(3600)
    return "Nothing to see"
"""


@pytest.fixture
def data() -> Iterator[Path]:
    """Return a data folder with a short path."""
    with short_folder() as path:
        yield path


def test_kill_of_up_leaves_no_process_and_data_is_kept(data: Path):
    """Kill -9 of the supervisor ends its children; the next start finds the data, on the same port.

    What lies in the folder, the append-only file included, is for its own user alone, also where it was for all before.
    """
    with Up(data) as up:
        children = up.ready().pids()
        assert len(children) >= 4, "Redis, the web, two workers"
        up.process.kill()
        up.process.wait()
        until(lambda: not any(is_running(pid) for pid in children))
    key = (data / "secret_keys").read_text()
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with Up(data, "--workers", "1", port=up.port) as again:
        assert again.ready().get("/readyz") == 200
        assert list((data / "redis").rglob("*.aof"))
        assert not [path for path in (data, *data.rglob("*")) if path.lstat().st_mode & 0o077]
        assert again.stop() == 0
    assert (data / "secret_keys").read_text() == key


def test_closed_terminal_stops_everything(data: Path):
    """SIGHUP ends all processes. The exit code is 0, and there is no traceback."""
    with Up(data) as up:
        assert_stops_everything(up.ready(), signal.SIGHUP)


def assert_stops_everything(up: Up, number: int) -> None:
    """Check that the signal ends all processes with the exit code 0, and that no traceback is printed."""
    children = up.pids()
    assert up.stop(number) == 0
    assert not any(is_running(pid) for pid in children)
    assert "Traceback" not in up.output()


def test_ctrl_c_says_so_and_the_next_start_continues_the_answer(data: Path):
    """It cuts off a tool that runs, whatever grace the workers have: a person waits.

    SIGTERM leaves that time.
    """
    (data / "tools.py").write_text(LOOKING)
    with FakePlatforms() as platforms:
        (data / "sayso.yaml").write_text(POLLED.format(url=platforms.telegram_url) + UNHURRIED)
        start = partial(
            Up,
            data,
            "--config",
            str(data / "sayso.yaml"),
            "--workers",
            "1",
            TELEGRAM_TOKEN=TELEGRAM_TOKEN,
        )
        with start() as up:
            children = up.ready().pids()
            platforms.update(telegram_text(1, "/look_around"))
            until((data / "begun").exists)
            assert up.stop(signal.SIGINT) == 0
            assert not any(is_running(pid) for pid in children)
            assert (
                up.output().count("Stopping. An answer in progress continues at the next start.")
                == 1
            )
            assert "Traceback" not in up.output()
        with start() as again:
            again.ready()
            until(lambda: [each["text"] for each in platforms.sent] == ["Nothing to see"])
            assert again.stop() == 0


def test_killed_parts_are_revived(data: Path):
    """Each killed part comes back, and the bot serves again."""
    with Up(data, "--workers", "1") as up:
        up.ready()
        for words in (WEB, WORKER, REDIS):
            before = up.pids(*words)
            os.kill(before[0], signal.SIGKILL)
            until(lambda words=words, before=before: set(up.pids(*words)) - set(before))
            until(lambda: up.get("/readyz") == 200)
        assert up.output().count("up.died") == 3
        assert up.stop() == 0


def test_bot_without_an_address_asks_and_survives_a_kill(data: Path):
    """platforms.md 2.5: without a public URL it polls. Messages from the time of the kill are answered once."""
    with FakePlatforms() as platforms:
        (data / "sayso.yaml").write_text(POLLED.format(url=platforms.telegram_url))
        with Up(
            data,
            "--config",
            str(data / "sayso.yaml"),
            "--workers",
            "1",
            TELEGRAM_TOKEN=TELEGRAM_TOKEN,
        ) as up:
            up.ready()
            platforms.update(telegram_text(1, "/whoami"))
            until(lambda: len(platforms.sent) == 1)
            poller = up.pids(*POLL)[0]
            os.kill(poller, signal.SIGKILL)
            for number in range(1, 9):  # the first one comes again
                platforms.update(telegram_text(number, "/whoami", user=5123456789 + number // 2))
            until(lambda: len(platforms.sent) >= 8 and not platforms.log.state[WAITING_UPDATES])
            assert (len(platforms.sent), poller in up.pids(*POLL)) == (8, False)
            assert up.stop() == 0


@pytest.mark.parametrize(
    ("number", "says"),
    [(signal.SIGTERM, ""), (signal.SIGINT, f"\n{STOPPING}\n")],
    ids=["SIGTERM", "SIGINT"],
)
def test_signal_while_starting_stops_everything(data: Path, number: int, says: str):
    """An interrupted start announces nothing and leaves no process.

    Its parts, which have just begun, print nothing.
    """
    with Up(data) as up:
        until(lambda: up.pids(*WEB) and up.pids(*WORKER), pause=0)
        children = up.pids()
        assert up.stop(number) == 0
        assert not any(is_running(pid) for pid in children)
        assert up.output() == says


def test_signal_handler_takes_no_lock(monkeypatch: pytest.MonkeyPatch):
    """It interrupts the main thread anywhere. One that set a threading.Event stopped for ever within Event.wait."""
    handlers: dict[int, Callable[..., None]] = {}
    called: list[tuple[str, str]] = []
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    settings = load_settings(DEMO, {})
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(AddressUnusable):
        supervisor.Up(settings, DEMO, Path("data"), *taken.getsockname()).run()
    sys.setprofile(
        lambda frame, event, arg: called.append(
            (event, getattr(arg, "__name__", frame.f_code.co_name))
        )
    )
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    sys.setprofile(None)
    assert [name for event, name in called if event.endswith("call")] == [
        "_stop_soon",
        "say_stopping",
        "setprofile",
    ]


@pytest.mark.parametrize(
    ("command", "number"),
    [("up", signal.SIGTERM), *((each, signal.SIGINT) for each in ("up", "web", "worker", "poll"))],
)
def test_signal_before_anything_runs_is_quiet(data: Path, command: str, number: int):
    """A start can be interrupted from its first line on, even while modules are loading."""
    with Up(data, command=command) as up:
        until(lambda: hears_sigterm(up.process.pid), pause=0)
        assert up.stop(number) == 0
        assert up.output() == ""
        assert not (data / "redis").exists()


def hears_sigterm(pid: int) -> bool:
    """Return whether a process has its own handler for SIGTERM."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> signal.SIGTERM - 1 & 1)


def test_signal_while_the_configuration_is_read_is_quiet(data: Path):
    """Even an endless file, such as a pipe, does not delay the exit."""
    os.mkfifo(data / "sayso.yaml")
    with Up(data, "--config", str(data / "sayso.yaml")) as up:
        writer = until(lambda: opened(data / "sayso.yaml"))
        assert up.stop() == 0
        assert up.output() == ""
        os.close(writer)


def opened(pipe: Path) -> int | None:
    """Return the writing end of a pipe once a process reads it."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_files_of_the_user_do_not_shadow_sayso(data: Path):
    """A user's agent.py, config folder and redis.py lie in the working folder; `up` starts and stops all the same."""
    for name in ("agent.py", "config/__init__.py", "redis.py"):
        mine = data / "mine" / name
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text("raise SystemExit('this is not Sayso')\n")
    with Up(data, "--workers", "1", cwd=data / "mine") as up:
        up.ready()
        assert up.get("/readyz") == 200
        assert up.stop() == 0
        assert "this is not Sayso" not in up.output()


def test_demo_starts_over_and_commands_find_it(data: Path, monkeypatch: pytest.MonkeyPatch):
    """Deleted invoices are back. Commands find a running demo without its file or port, and ignore dead ones."""
    monkeypatch.setenv("SAYSO_DATA", str(data))
    invoices.delete_invoice.callable("INV-42")
    with Up(data, "--workers", "1", command="demo", SAYSO_CONFIG="nothing.yaml") as up:
        up.ready()
        assert "INV-42" in invoices.list_invoices.callable()
        code, told, errors = sayso("doctor", "--data", data, SAYSO_CONFIG="", cwd=data)
        assert (code, errors) == (0, ""), told
        assert f"http://127.0.0.1:{up.port}" in told
        assert sayso("deliveries", "list", "--data", data, SAYSO_CONFIG="", cwd=data)[0] == 0
    until(lambda: not running_bots(data))
    told = sayso("doctor", "--data", data, SAYSO_CONFIG="", cwd=data)[1]
    assert "no configuration: there is no sayso.yaml" in told


def test_printed_url_can_be_opened_until_sigterm_stops_everything(data: Path):
    """0.0.0.0 is no address for a browser, so the printed URL has another host."""
    with Up(data, "--host", "0.0.0.0") as up:
        up.ready()
        assert f"{up.url}/console/web" in up.output()
        assert "0.0.0.0" not in up.output()
        assert up.get("/console/web") == 200
        refused = sayso("up", "--data", data, "--port", free_port())
        assert refused == (3, "", refused[2])
        assert f"Error: {data} is in use by another sayso: stop that one" in refused[2]
        assert_stops_everything(up, signal.SIGTERM)


def test_port_in_use_is_refused_before_anything_starts(data: Path):
    """Another server on the port is reported, and not taken for this bot."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, errors = sayso("up", "--data", data, "--port", port)
    assert code == 3
    assert errors.startswith(
        f"Error: cannot listen on 127.0.0.1:{port} (Address already in use): stop what uses it"
    )
    assert not (data / "redis").exists()


class Part:
    """A part that lives or fails as the test says."""

    def __init__(self) -> None:
        self.alive = False
        self.starts: list[float] = []
        self.now = 0.0

    def start(self) -> None:
        """Note the time of the start."""
        self.starts.append(self.now)

    def kept(self) -> SupervisedPart:
        """Return the supervised part."""
        return SupervisedPart("part", lambda: self.alive, self.start, started_at=0.0)


def tend(part: Part, kept: SupervisedPart, seconds: int) -> None:
    """Check a part every half second."""
    for tick in range(seconds * 2):
        part.now = tick / 2
        kept.check(part.now)


def test_part_that_keeps_failing_is_restarted_for_ever():
    """Pauses between quick failures grow up to a limit, and no number of failures ends it."""
    part = Part()
    tend(part, part.kept(), 3600)
    pauses = [later - earlier for earlier, later in zip(part.starts, part.starts[1:], strict=False)]
    assert pauses == sorted(pauses)
    assert MAX_PAUSE_SECONDS <= pauses[20] == pauses[-1] <= MAX_PAUSE_SECONDS + 1


def test_part_that_failed_after_a_long_time_is_restarted_at_once():
    """A crash a day needs no pause."""
    part = Part()
    kept = part.kept()
    for day in range(1, 20):
        part.now = day * 86_400.0
        kept.check(part.now)
    assert part.starts == [day * 86_400.0 for day in range(1, 20)]


def test_redis_that_does_not_start_is_retried():
    """A failed start counts as a quick failure, without a traceback."""
    part = Part()

    def fail() -> None:
        part.start()
        raise (
            EmbeddedRedisError("no") if len(part.starts) % 2 else OSError("No space left on device")
        )

    tend(part, SupervisedPart("redis", lambda: False, fail, started_at=0.0), 3600)
    assert len(part.starts) > 3600 / (MAX_PAUSE_SECONDS + 1)
