"""Discovery: selectors of installed distributions, and one clear message about each that does not work."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest

from sayso.agent import EmbeddingSelector, KeywordSelector, RoleBasedSelector, discover_selectors
from sayso.agent.toolsets.selectors import SelectorLoadError, find_selector

OURS = {"keyword": KeywordSelector, "role_based": RoleBasedSelector, "embedding": EmbeddingSelector}


@pytest.fixture
def install(tmp_path: Path, monkeypatch):
    """Return a function that installs a distribution with one module, as pip does."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(name: str, entries: str, code: str) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[sayso.selector]\n{entries}\n")
        (tmp_path / f"{name}.py").write_text(code)
        importlib.invalidate_caches()

    yield installed
    for module in ("first", "second", "broken"):
        sys.modules.pop(module, None)


FIRST = (
    "class First:\n    async def select(self, messages, tools):\n        return list(tools)[:1]\n"
)


def test_built_in_selectors_need_no_plugin():
    """They have the seed's names, in an installation and in a source tree."""
    assert discover_selectors().items() >= OURS.items()


def test_built_in_selectors_are_entry_points():
    """Other programs can discover them too."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["sayso.selector"]
    found = {
        name: importlib.metadata.EntryPoint(name, value, "sayso.selector").load()
        for name, value in points.items()
    }
    assert found == OURS


def test_installed_selector_is_found(install):
    """The name is that of its entry point."""
    install("first", "only_first = first:First", FIRST)
    assert (
        discover_selectors()["only_first"].__name__
        == find_selector("only_first").__name__
        == "First"
    )


@pytest.mark.parametrize(
    ("entries", "code", "words"),
    [
        (
            "mine = broken:Mine",
            "import no_such_module",
            "ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("mine = broken:Mine", "", "AttributeError"),
        ("mine = broken:Mine", "raise SystemExit(3)", "SystemExit"),
        ("mine = broken:Mine", "Mine = 5", "is no class with a select method"),
        ("mine = broken:Mine", "class Mine: pass", "is no class with a select method"),
    ],
)
def test_broken_plugin_is_one_warning_and_the_others_work(install, caplog, entries, code, words):
    """The warning names the distribution and the fix."""
    install("broken", entries, code)
    install("first", "only_first = first:First", FIRST)
    assert {"only_first", "keyword"} <= discover_selectors().keys()
    (record,) = caplog.records
    assert words in record.advice
    assert "broken 1.0" in record.advice
    assert "remove" in record.advice
    with pytest.raises(SelectorLoadError, match=r"selector 'mine' of broken 1\.0"):
        find_selector("mine")


def test_name_claimed_by_two_distributions_is_not_used(install, caplog):
    """The choice must not depend on the order of folders."""
    install("first", "same = first:First", FIRST)
    install("second", "same = second:First", FIRST)
    assert "same" not in discover_selectors()
    assert "claimed by first 1.0, second 1.0: uninstall all but one" in caplog.records[0].advice


def test_plugin_cannot_replace_a_built_in_selector(install):
    """A plugin named role_based would decide permissions."""
    install("first", "role_based = first:First", FIRST)
    assert discover_selectors()["role_based"] is find_selector("role_based") is RoleBasedSelector


def test_unknown_selector_is_reported_with_the_known_ones(install):
    """The correct name stands beside a misspelled one."""
    install("first", "only_first = first:First", FIRST)
    with pytest.raises(
        SelectorLoadError,
        match=r"no selector 'frist'.*known: embedding, keyword, only_first, role_",
    ):
        find_selector("frist")
