"""The built packages, as a fixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.build_packages import build

ROOT = Path(__file__).parents[2]
#: The time of all files in the packages, in Unix seconds.
EPOCH = 1_790_000_000


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the wheel and the sdist of this checkout as `make dist` does."""
    wheel, sdist = build(ROOT, tmp_path_factory.mktemp("dist"), epoch=EPOCH)
    return {"wheel": wheel, "sdist": sdist}
