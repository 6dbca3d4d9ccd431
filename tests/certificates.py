"""make_certificates: certificates of an authority that no machine trusts, made with openssl."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    not shutil.which("openssl") and not os.environ.get("CI"),
    reason="SKIPPED: no openssl to make certificates with",
)


def make_certificates(folder: Path) -> Path:
    """Write `ca`, and `server` and `client`, which it signed for 127.0.0.1, as .pem and .key. Return the folder."""
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    for name, signed in (
        ("ca", []),
        *((each, ["-CA", "ca.pem", "-CAkey", "ca.key"]) for each in ("server", "client")),
    ):
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}"]
        names = (
            []
            if name == "ca"
            else ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
        )
        subprocess.run([*new, *signed, *files, *names], cwd=folder, check=True, capture_output=True)
    return folder
