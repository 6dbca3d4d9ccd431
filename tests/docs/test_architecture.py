"""ARCHITECTURE.md and CONTRIBUTING.md: each file and folder that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The table of the packages names modules below the package of its row.
FOLDERS = [ROOT, *(link.resolve() for link in (ROOT / "sayso").iterdir() if link.is_symlink())]
#: A path such as `workers/lua/` or `agent/run/loop.py`. Paths with a <platform> in them are left out.
PLACE = re.compile(r"`([a-z_]+/[\w./-]*(?:/|\.(?:py|lua|js|md|toml|yaml)))`")


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_place_that_the_page_names_exists(page: str) -> None:
    """A reader who looks for the place of a change is not sent to a module that has moved."""
    places = set(PLACE.findall((ROOT / page).read_text(encoding="utf-8")))
    assert len(places) > 10
    missing = [
        place for place in places if not any((folder / place).exists() for folder in FOLDERS)
    ]
    assert missing == []
