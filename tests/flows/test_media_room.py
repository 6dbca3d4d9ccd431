"""Many people's files on real processes: the memory they cost a worker, and recovery from a full disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from tests.config.processes import REDIS, WEB, Up, until
from tests.flows.system import System, TelegramPerson

#: Nearly the largest file that a Telegram bot may download.
FILE_BYTES = 19_500_000
PEOPLE = 40
#: Bytes of memory that a worker may use for inbound files, above its idle memory.
ALLOWED_BYTES = 64 * 1024 * 1024


def memory_of(pid: int, line: str) -> int:
    """Return a process's memory now (VmRSS), or its peak (VmHWM), in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * next(
        int(each.split()[1]) for each in status.splitlines() if each.startswith(line)
    )


def test_forty_large_files_at_once_cost_a_worker_little_memory(tmp_path: Path) -> None:
    """40 people send 19.5 MB each to one worker process: it answers all, and stays within 64 MB above idle."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-room-") as folder,
        System(Path(folder), workers=1) as system,
    ):
        people = [TelegramPerson(system, 700 + number) for number in range(PEOPLE)]
        film = system.platforms.host("telegram", b"\x1aE\xdf\xa3" + bytes(FILE_BYTES - 4))
        people[0].say("hello")
        people[0].hears()
        worker = system.workers[0].pid
        idle = memory_of(worker, "VmRSS")
        Path(f"/proc/{worker}/clear_refs").write_text("5")  # the peak counts from here on
        for person in people:
            update = signing.telegram_photo(person.name, film, "film", user=int(person.chat))
            assert (
                system.post(
                    "ops-tg", signing.telegram_hook(fakes.TELEGRAM_SECRET, update)
                ).status_code
                == 200
            )
        answers = [person.hears()[0]["text"] for person in people]
        peak = memory_of(worker, "VmHWM")
    assert all(f"{FILE_BYTES} bytes" in answer for answer in answers), answers
    assert peak - idle < ALLOWED_BYTES, f"{(peak - idle) / 2**20:.0f} MB over idle"


@contextlib.contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """Mount a separate disk. Without the right to mount, the test is skipped, and fails in CI."""
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        options = f"size={megabytes}m,uid={os.geteuid()},mode=700"
        mount = [*sudo, "mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
        if (
            shutil.which(mount[0]) is None
            or subprocess.run(mount, check=False, capture_output=True).returncode
        ):
            assert not os.environ.get("CI"), "CI must be able to mount a small disk"
            pytest.skip("SKIPPED: no right to mount a small disk")
        try:
            yield Path(folder)
        finally:
            subprocess.run([*sudo, "umount", "-l", folder], check=True)


def fill_up(disk: Path) -> Path:
    """Write a file until nothing more fits on the disk."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        for size in (2**20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
    return filler


def test_bot_recovers_from_a_full_disk_without_help() -> None:
    """Redis cannot write and dies; `sayso up` and the web live on, answer 503, and recover once there is room."""
    with small_disk(48) as disk, Up(disk, "--workers", "1") as up:
        up.ready()
        filler, web = fill_up(disk), up.pids(*WEB)
        before = up.pids(*REDIS)
        until(lambda: not set(before) & set(up.pids(*REDIS)))
        until(lambda: up.get("/readyz") == 503)
        assert (up.process.poll(), up.get("/healthz"), up.pids(*WEB)) == (None, 200, web)
        filler.unlink()
        until(lambda: up.get("/readyz") == 200)
        assert up.stop() == 0
