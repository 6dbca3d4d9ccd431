"""Reload: tools follow their files, and a broken edit takes nothing away."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest

from sayso.agent import ToolLoader, ToolLoadError, ToolRegistry
from sayso.agent.tools.loading import ToolReloader, WatchedSource, load_tools

TOOL = "from sayso.agent import tool\n\n\n@tool\ndef {name}() -> str:\n    '''Say.'''\n    return {said!r}\n"


def written(file: Path, said: str, name: str = "speak") -> Path:
    """Write a file with one tool. Its modification time moves on, although a test edits faster than a person."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(TOOL.format(name=name, said=said))
    os.utime(file, ns=(before + 10**9, before + 10**9))
    return file


@pytest.fixture
def registry() -> ToolRegistry:
    """Where the tools are."""
    return ToolRegistry()


def watched(source: str, base: Path, registry: ToolRegistry) -> ToolReloader:
    """What bootstrap does: load, register, watch."""
    loaded = load_tools(source, base)
    registry.replace_source(source, loaded.tools)
    watched = WatchedSource(source, loaded.files, partial(load_tools, source, base, again=True))
    return ToolReloader(
        {source: watched}, base, lambda name, now: registry.replace_source(name, now.tools)
    )


def test_a_broken_edit_leaves_the_old_tool_and_is_told_with_its_line(tmp_path, registry, caplog):
    """A bot in development goes on answering while its author types."""
    file = written(tmp_path / "shop.py", "one")
    reload = watched("shop.py", tmp_path, registry)
    file.write_text("def broken(:\n")
    assert reload.check() == []
    assert registry.get("speak").execute({}) == "one"
    assert "shop.py, line 1: SyntaxError" in caplog.records[0].problem
    assert reload.check() == []
    assert len(caplog.records) == 1


def test_a_mended_edit_is_taken_up(tmp_path, registry):
    """After a broken one, and within the same second: no cached bytecode is believed."""
    file = written(tmp_path / "shop.py", "one")
    reload = watched("shop.py", tmp_path, registry)
    file.write_text("import nothing_of_that_name\n")
    reload.check()
    written(file, "two")
    assert reload.check() == ["shop.py"]
    assert registry.get("speak").execute({}) == "two"
    assert reload.check() == []


def test_a_name_that_is_taken_elsewhere_is_refused_whole(tmp_path, registry, caplog):
    """Which of two tools would run must never be luck, nor half an edit be loaded."""
    registry.register(load_tools(str(written(tmp_path / "other.py", "mine", "taken"))).tools[0])
    file = written(tmp_path / "shop.py", "one")
    reload = watched("shop.py", tmp_path, registry)
    written(file, "two", "taken")
    assert reload.check() == []
    assert registry.get("taken").execute({}) == "mine"
    assert registry.get("speak").execute({}) == "one"
    assert "taken" in caplog.records[0].problem


def test_a_file_that_appears_in_or_leaves_a_folder_is_noticed(tmp_path, registry):
    """A folder is what is in it."""
    written(tmp_path / "one.py", "1", "one")
    reload = watched(".", tmp_path, registry)
    written(tmp_path / "two.py", "2", "two")
    assert reload.check() == ["."]
    assert [tool.name for tool in registry.all()] == ["one", "two"]
    (tmp_path / "one.py").unlink()
    assert reload.check() == ["."]
    assert [tool.name for tool in registry.all()] == ["two"]


def test_a_broken_edit_in_a_folder_keeps_the_tools_of_all_its_files(tmp_path, registry, caplog):
    """The tools of the broken file stay as those of a single file do, until it is mended."""
    file = written(tmp_path / "one.py", "1", "one")
    written(tmp_path / "two.py", "2", "two")
    reload = watched(".", tmp_path, registry)
    file.write_text("def broken(:\n")
    assert reload.check() == []
    assert registry.get("one").execute({}) == "1"
    assert "one.py, line 1: SyntaxError" in caplog.records[0].problem
    written(file, "mended", "one")
    assert reload.check() == ["."]
    assert registry.get("one").execute({}) == "mended"


def test_an_edit_while_the_file_is_loaded_is_loaded_by_the_next_check(tmp_path, registry):
    """An author who saves twice gets what was saved last."""
    file = written(tmp_path / "shop.py", "one")

    def load_and_edit():
        loaded = load_tools("shop.py", tmp_path, again=True)
        if loaded.tools[0].execute({}) == "two":
            written(file, "three")
        return loaded

    source = WatchedSource("shop.py", (file,), load_and_edit)
    reload = ToolReloader(
        {"shop": source}, tmp_path, lambda name, now: registry.replace_source(name, now.tools)
    )
    written(file, "two")
    assert reload.check() == ["shop.py"]
    assert reload.check() == ["shop.py"]
    assert registry.get("speak").execute({}) == "three"


def test_a_broken_file_of_a_folder_is_one_error_and_the_rest_loads(tmp_path, caplog):
    """The error names file and line. Files with a leading underscore are not loaded."""
    written(tmp_path / "good.py", "fine", "good")
    (tmp_path / "bad.py").write_text("x = 1\ny = 1 / 0\n")
    (tmp_path / "quits.py").write_text("raise SystemExit\n")
    (tmp_path / "_helper.py").write_text("raise RuntimeError\n")
    assert [tool.name for tool in ToolLoader.from_directory(tmp_path)] == ["good"]
    problems = [record.problem for record in caplog.records]
    assert "bad.py, line 2: ZeroDivisionError" in problems[0]
    assert "quits.py, line 1: ends the program" in problems[1]
    assert len(problems) == 2


def test_folders_can_be_deep_and_have_exceptions(tmp_path):
    """As the seed names them: recursive, exclude."""
    (tmp_path / "deep").mkdir()
    written(tmp_path / "deep" / "down.py", "", "down")
    written(tmp_path / "top.py", "", "top")
    assert [tool.name for tool in ToolLoader.from_directory(tmp_path)] == ["top"]
    both = ToolLoader.from_directory(tmp_path, recursive=True)
    assert {tool.name for tool in both} == {"down", "top"}
    assert [
        tool.name for tool in ToolLoader.from_directory(tmp_path, recursive=True, exclude=["top*"])
    ] == ["down"]
    with pytest.raises(ToolLoadError, match="no folder"):
        ToolLoader.from_directory(tmp_path / "nowhere")


def test_a_module_is_read_anew_and_kept_when_that_fails(tmp_path, monkeypatch):
    """By its dotted name, as `reload_module` promises."""
    monkeypatch.syspath_prepend(tmp_path)
    file = written(tmp_path / "module_for_reload.py", "one")
    (one,) = ToolLoader.from_module("module_for_reload")
    written(file, "two")
    (two,) = ToolLoader.reload_module("module_for_reload")
    assert (one.execute({}), two.execute({})) == ("one", "two")
    file.write_text("1 / 0\n")
    with pytest.raises(ToolLoadError, match=r"line 1: ZeroDivisionError"):
        ToolLoader.reload_module("module_for_reload")
    assert sys.modules["module_for_reload"].speak.execute({}) == "two"
    assert ToolLoader.reload_file(written(file, "three"))[0].execute({}) == "three"


def test_a_reloaded_module_replaces_the_old_one_in_its_package(tmp_path, monkeypatch):
    """`from package import module` and `import package.module` give the same module."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "package_for_reload").mkdir()
    (tmp_path / "package_for_reload" / "__init__.py").touch()
    file = written(tmp_path / "package_for_reload" / "shop.py", "one")
    ToolLoader.from_module("package_for_reload.shop")
    written(file, "two")
    ToolLoader.reload_module("package_for_reload.shop")
    assert sys.modules["package_for_reload"].shop is sys.modules["package_for_reload.shop"]


def test_tools_come_from_a_module_a_file_and_a_folder(tmp_path, monkeypatch):
    """The same ones, whichever way they are named."""
    monkeypatch.syspath_prepend(tmp_path)
    file = written(tmp_path / "module_to_load.py", "hi")
    for loaded in (
        ToolLoader.from_module("module_to_load"), ToolLoader.from_file(file), ToolLoader.from_file(str(file)),
        ToolLoader.from_directory(tmp_path), ToolLoader.from_directory(str(tmp_path)),
    ):  # fmt: skip
        assert [(made.name, made.execute({})) for made in loaded] == [("speak", "hi")]
