"""The file of `sayso backup`: never half there under its name, never overwritten, readable by its owner alone."""

from __future__ import annotations

import fcntl
import tarfile
from pathlib import Path

import pytest

from tests.config.processes import sayso


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the configuration of a bot and the file of its keys."""
    (tmp_path / "bot.yaml").write_text(
        "agent: {model: offline}\nchannels: {web: {platform: console}}\n"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "secret_keys").write_text("key")
    return tmp_path


def backup(folder: Path, file: str) -> tuple[int, str]:
    """Back up all but Redis. Return exit code and errors."""
    common = ("--config", folder / "bot.yaml", "--data", folder / "data")
    code, _, errors = sayso("backup", "--without-redis", file, *common, cwd=folder)
    return code, errors


def test_backup_replaces_what_a_killed_one_left(folder: Path):
    """A finished file is not replaced."""
    left = folder / "bot.tar.gz.unfinished"
    left.write_bytes(b"half")
    assert backup(folder, "bot.tar.gz")[0] == 0
    assert ((folder / "bot.tar.gz").stat().st_mode & 0o777, left.exists()) == (0o600, False)
    with tarfile.open(folder / "bot.tar.gz") as archive:
        assert archive.getnames() == ["manifest.json", "manifest.macs"]
    code, errors = backup(folder, "bot.tar.gz")
    assert (code, errors) == (
        3,
        "Error: 'bot.tar.gz' exists: give another name, such as one with the date\n",
    )


def test_two_backups_do_not_write_one_file(folder: Path):
    """The second backup is refused, and leaves the file of the first alone."""
    left = folder / "bot.tar.gz.unfinished"
    with left.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert (
            "another backup is writing 'bot.tar.gz': wait for it" in backup(folder, "bot.tar.gz")[1]
        )
    assert left.exists()


def test_file_that_cannot_be_written_is_named(folder: Path):
    """In one line, without a traceback. No part of a file is left."""
    code, errors = backup(folder, "missing/bot.tar.gz")
    assert (code, errors.count("\n"), "No such file or directory" in errors) == (3, 1, True)
    code, errors = backup(folder, "/dev/full/bot.tar.gz")
    assert (code, errors.count("\n")) == (3, 1)


def test_unknown_log_level_is_named(folder: Path):
    """In one line, without a traceback."""
    common = ("--config", folder / "bot.yaml", "--data", folder / "data")
    code, _, errors = sayso("backup", "bot.tar.gz", *common, cwd=folder, SAYSO_LOG_LEVEL="loud")
    assert errors == "Error: SAYSO_LOG_LEVEL is 'loud': write debug, info, warning or error\n"
    assert code == 3
