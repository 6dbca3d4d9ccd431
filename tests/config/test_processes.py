"""The processes of the tests: commands are forked from one that has loaded what they need."""

from __future__ import annotations

from importlib.util import find_spec

from tests.config.processes import PRELOADED


def test_all_preloaded_modules_are_found():
    """The fork server ignores a missing module, and each command would load it again."""
    assert [name for name in PRELOADED if find_spec(name) is None] == []
