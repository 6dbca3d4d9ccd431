"""The embedded Redis: it keeps its data, is private, and ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from sayso.config.settings.loader import ConfigError
from sayso.config.wiring.data_folder import MAX_SOCKET_PATH, running_url, socket_path
from sayso.infra.redis.client import connect
from sayso.ops.server.embedded_redis import EmbeddedRedis, EmbeddedRedisError, server_binary
from tests.config.processes import PATIENCE, is_running, short_folder, until

#: A process that starts a server on a folder, prints its pid and sleeps.
PARENT = """
import sys, time
from pathlib import Path
from sayso.ops.server.embedded_redis import EmbeddedRedis
server = EmbeddedRedis(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a data folder with a short path."""
    with short_folder() as path:
        yield path


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedRedis]:
    """Return a running server."""
    embedded = EmbeddedRedis(folder)
    embedded.start()
    yield embedded
    embedded.stop()


def client(server: EmbeddedRedis) -> Redis:
    """Return a client of a server."""
    return Redis.from_url(server.url, decode_responses=True, retry=None)


def test_data_survives_a_kill_of_the_server_and_a_restart(server: EmbeddedRedis):
    """An acknowledged write is on disk, whatever happens to the server."""
    client(server).set("kept", "yes")
    os.kill(server.pid or 0, signal.SIGKILL)
    until(lambda: not server.is_alive())
    server.restart()
    assert client(server).get("kept") == "yes"


def test_data_survives_stop_and_start(folder: Path):
    """All of its state is in the folder."""
    for expected in (None, "yes"):
        server = EmbeddedRedis(folder)
        server.start()
        assert client(server).get("kept") == expected
        client(server).set("kept", "yes")
        server.stop()
        assert not server.is_alive()


def test_server_dies_with_its_killed_parent(folder: Path):
    """Kill -9 of the parent leaves no server behind, and the folder is free again."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    until(lambda: not is_running(pid))
    heir = EmbeddedRedis(folder)
    heir.start()
    heir.stop()


def test_orphan_that_still_listens_is_taken_over(folder: Path):
    """A server without a parent is stopped at the next start, and its data is kept."""
    (folder / "redis").mkdir()
    command = [
        server_binary(),
        "--port",
        "0",
        "--unixsocket",
        str(socket_path(folder)),
        "--dir",
        folder / "redis",
    ]
    orphan = subprocess.Popen([*command, "--appendonly", "yes"], stdout=subprocess.DEVNULL)
    until(lambda: running_url(folder))
    Redis.from_url(f"unix://{socket_path(folder)}").set("kept", "yes")
    server = EmbeddedRedis(folder)
    server.start()
    assert orphan.wait(PATIENCE) == 0
    assert client(server).get("kept") == "yes"
    server.stop()


def test_folder_with_special_characters_in_its_name_has_a_server(folder: Path):
    """In a URL, `#` and `?` end a path, and `%41` is a letter."""
    server = EmbeddedRedis(folder / "c#?%41 b")
    server.start()
    try:
        assert connect(server.url).set("kept", "yes")
        assert running_url(server.data) == server.url
    finally:
        server.stop()


def test_second_start_on_one_folder_is_refused(server: EmbeddedRedis):
    """Two servers on one folder would destroy it."""
    with pytest.raises(
        EmbeddedRedisError, match="in use by another sayso: stop that one, or give another folder"
    ):
        EmbeddedRedis(server.data).start()
    assert client(server).ping()


def test_every_write_is_on_disk_and_nothing_is_evicted(server: EmbeddedRedis):
    """The active settings lose no data."""
    settings = client(server).config_get("append*", "maxmemory-policy")
    assert (settings["appendonly"], settings["appendfsync"]) == ("yes", "always")
    assert settings["maxmemory-policy"] == "noeviction"


def test_files_of_a_server_are_private_from_the_start(server: EmbeddedRedis):
    """The folder of a restore or a first start may be readable for others, and its log names what is stored."""
    files = [path for path in server.data.rglob("*") if path.is_file()]
    assert {"lock", "server.log"} <= {path.name for path in files}
    assert not [path for path in files if path.stat().st_mode & 0o077]


def test_server_listens_on_a_private_socket_only(server: EmbeddedRedis):
    """No port is open, and only the own user can use the socket."""
    assert client(server).config_get("port")["port"] == "0"
    sockets = {
        str(fd.readlink()) for fd in Path(f"/proc/{server.pid}/fd").iterdir() if fd.is_symlink()
    }
    tcp = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    assert not any(name.startswith("socket:[") and f" {name[8:-1]} " in tcp for name in sockets)
    assert socket_path(server.data).stat().st_mode & 0o077 == 0


def test_long_data_path_works(folder: Path):
    """The path of a socket is limited, that of a data folder is not. Its folder in /tmp goes with it."""
    deep = folder / ("d" * 100) / ("e" * 100)
    server = EmbeddedRedis(deep)
    server.start()
    private = socket_path(deep).parent
    assert len(str(socket_path(deep))) <= MAX_SOCKET_PATH
    assert running_url(deep) == server.url
    server.stop()
    assert running_url(deep) is None
    assert not private.exists()


def test_socket_folder_of_another_user_is_refused(folder: Path):
    """Another user may create the folder in /tmp first."""
    deep = folder / ("d" * 100)
    private = socket_path(deep).parent
    private.chmod(0o777)
    with pytest.raises(ConfigError, match="belongs to another user"):
        EmbeddedRedis(deep).start()
    private.rmdir()


def test_foreign_files_in_the_folder_are_left_alone(folder: Path):
    """A data folder may hold other files."""
    (folder / "redis").mkdir()
    for name in ("notes.txt", "redis.sock", "server.log"):
        (folder / "redis" / name).write_text("mine")
    server = EmbeddedRedis(folder)
    server.start()
    assert client(server).ping()
    server.stop()
    assert (folder / "redis" / "notes.txt").read_text() == "mine"


def test_data_folder_that_is_a_file_is_named(folder: Path):
    """The error for a wrong --data names the folder and the cure."""
    (folder / "file").write_text("")
    with pytest.raises(
        EmbeddedRedisError, match=r"file': Not a directory: give one you may write to with --data"
    ):
        EmbeddedRedis(folder / "file").start()


def test_unreadable_data_names_the_log(folder: Path):
    """A server that refuses its file leaves no process and frees the folder."""
    (folder / "redis" / "appendonlydir").mkdir(parents=True)
    (folder / "redis" / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    server = EmbeddedRedis(folder)
    with pytest.raises(EmbeddedRedisError, match=r"did not start .*server\.log"):
        server.start()
    assert not server.is_alive()
