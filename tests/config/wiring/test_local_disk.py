"""What must be on a disk of this machine: the audit ledger and the spool are SQLite files with a write-ahead log."""

from __future__ import annotations

from pathlib import Path

import pytest

from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.infra.storage import files as disk
from sayso.infra.storage.files import NotLocal, check_local

#: As Linux writes them: a local root, an NFS share whose name has a space, and a local disk mounted inside of it.
MOUNTS = """\
22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
90 22 0:50 / {share} rw,relatime shared:40 - nfs4 files:/exports/bots rw,vers=4.2
91 90 252:2 / {share}/bots rw shared:41 - xfs /dev/vdb1 rw
"""


@pytest.fixture
def share(tmp_path: Path) -> Path:
    """Return a folder that is an NFS share in the machine's mount table."""
    folder = tmp_path / "team share"
    (tmp_path / "mountinfo").write_text(MOUNTS.format(share=str(folder).replace(" ", "\\040")))
    return folder


def test_a_network_folder_differs_from_a_local_disk_mounted_in_it(share: Path, tmp_path: Path):
    """The nearest mount counts, even if the folder does not exist yet."""
    mounts = tmp_path / "mountinfo"
    with pytest.raises(NotLocal, match="'nfs4'"):
        check_local(share / "data" / "bots", mounts=mounts)
    for local in (tmp_path, share / "bots" / "shop", Path("/nowhere/yet")):
        check_local(local, mounts=mounts)


def test_nothing_is_refused_without_a_mount_table(tmp_path: Path):
    """Only Linux has such a table."""
    check_local(tmp_path, mounts=tmp_path / "no-such-table")


@pytest.mark.parametrize(("is_worker", "named"), [(True, "the audit ledger"), (False, "the spool")])
def test_no_process_starts_with_its_sqlite_file_on_a_network_share(
    share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_worker: bool, named: str
):
    """The worker needs it for the ledger, the web for the spool. The error names the cure."""
    monkeypatch.setattr(disk, "MOUNTS", tmp_path / "mountinfo")
    (tmp_path / "shop.yaml").write_text("spool: true\nchannels: {web: {platform: console}}\n")
    settings = load_settings(tmp_path / "shop.yaml")
    with pytest.raises(
        ConfigError, match=f"{named} is a SQLite file of one machine: give each machine a --data"
    ):
        bootstrap(
            settings, data=share / "data", redis_url="redis://127.0.0.1:1", is_worker=is_worker
        )
