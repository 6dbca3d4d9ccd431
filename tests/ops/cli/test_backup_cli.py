"""The file of `sayso backup`: never half there under its name, never overwritten, readable by its owner alone."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from sayso.ops.cli.backup import _locked_file, _new_file
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


def test_file_that_another_backup_has_removed_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Two backups that begin at once may both take the file of the other for one of a killed backup."""
    file = tmp_path / "bot.tar.gz.unfinished"
    lock = fcntl.flock

    def remove_before_the_lock(opened: object, kind: int) -> None:
        file.unlink()
        file.write_bytes(b"of the other backup")
        lock(opened, kind)

    monkeypatch.setattr(fcntl, "flock", remove_before_the_lock)
    with pytest.raises(SystemExit), _locked_file(file, "bot.tar.gz"):
        pass
    assert "another backup is writing 'bot.tar.gz'" in capsys.readouterr().err
    assert file.read_bytes() == b"of the other backup"


def test_file_that_another_program_wrote_meanwhile_is_not_replaced(tmp_path: Path):
    """A backup may take hours. It leaves no part of a file then."""
    file = tmp_path / "bot.tar.gz"
    with pytest.raises(SystemExit), _new_file(str(file)):
        file.write_bytes(b"precious")
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (b"precious", [file])


def test_full_disk_behind_standard_output_is_named(folder: Path):
    """Also if it is full at the last bytes. Nothing says that the backup is there."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    common = ("--config", folder / "bot.yaml", "--data", folder / "data")
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "sayso", "backup", "--without-redis", "-", *common],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environ,
            check=False,
        )
    said = f"Error: standard output or {folder / 'data'}: No space left on device: nothing was finished\n"
    assert (result.returncode, result.stderr.decode()) == (3, said)


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
