"""Keys: the secrets that seal records and sign links, from the environment or generated once for a laptop."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from sayso.channels.disk import make_private
from sayso.channels.redaction import remember

#: Comma-separated; the first signs, all are accepted, so that keys can rotate.
VARIABLE = "SAYSO_SECRET_KEYS"


def secret_keys(data: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """The keys of the environment, else those of the data folder, made on first use and readable by us alone."""
    found = _found(data, os.environ if environ is None else environ)
    remember(found)
    return found


def _found(data: Path, environ: Mapping[str, str]) -> list[str]:
    given = [key.strip() for key in environ.get(VARIABLE, "").split(",") if key.strip()]
    return given or _stored(data / "secret_keys")


def _stored(file: Path) -> list[str]:
    make_private(file.parent)
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.touch(mode=0o600)
    fresh.write_text(secrets.token_hex(32))
    try:
        os.link(fresh, file)  # of several processes at first start, one wins and all read the same keys
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return file.read_text().split()
