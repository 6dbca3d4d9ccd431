"""Loader: finds tools in modules, and says where a broken one is broken."""

import sys

import pytest

from agent.tools import ToolLoadError, load_all, load_tools

GOOD = '''
from agent import tool
from pending.proposals import executor_factory

@tool
def ping() -> str:
    """Ping."""
    return "pong"

@executor_factory("wipe")
def rebuild(action):
    return lambda: "wiped"
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, also the current one; sys.path is put back afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_syntax_error_names_file_and_line(folder):
    """The author goes straight to the place."""
    (folder / "broken.py").write_text("x = 1\ndef (:\n")
    with pytest.raises(ToolLoadError, match=r"broken\.py, line 2: SyntaxError"):
        load_tools("broken.py", folder)


def test_failing_import_names_file_and_line(folder):
    """Also when Python could read the module but not run it."""
    (folder / "failing.py").write_text("x = 1\n\nraise RuntimeError('no config')\n")
    for source in ("failing.py", "failing"):
        with pytest.raises(ToolLoadError, match=r"failing\.py, line 3: RuntimeError: no config"):
            load_tools(source, folder)


def test_wrong_tool_definition_names_the_line(folder):
    """A tool without description is reported at its definition."""
    (folder / "vague.py").write_text("from agent import tool\n\n\n@tool\ndef f() -> str:\n    return ''\n")
    with pytest.raises(ToolLoadError, match=r"vague\.py, line 4: ToolValidationError"):
        load_tools("vague.py", folder)


@pytest.mark.parametrize("source", ["nowhere.tools", "nowhere.py"])
def test_missing_module_is_said_to_be_missing(folder, source):
    """Not found is not the same as broken."""
    with pytest.raises(ToolLoadError, match=r"there is no file|no module"):
        load_tools(source, folder)


def test_missing_dependency_is_not_the_modules_own_absence(folder):
    """A module that imports what is not installed is broken, at that line."""
    (folder / "needy.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ToolLoadError, match=r"needy\.py, line 1: ModuleNotFoundError"):
        load_tools("needy", folder)


def test_file_gives_tools_and_factories(folder):
    """Both are found by what they are, without registration."""
    (folder / "good.py").write_text(GOOD)
    loaded = load_tools("good.py", folder)
    assert [tool.name for tool in loaded.tools] == ["ping"]
    assert loaded.executor_factories["wipe"](None)() == "wiped"


def test_dotted_name_is_found_beside_the_user(folder):
    """The current directory counts, as with `python -m`."""
    (folder / "shop_for_test").mkdir()
    (folder / "shop_for_test" / "tools.py").write_text(GOOD)
    assert [tool.name for tool in load_tools("shop_for_test.tools").tools] == ["ping"]


def test_same_name_twice_is_refused(folder):
    """Two different tools of one name in two files."""
    (folder / "one.py").write_text(GOOD)
    (folder / "two.py").write_text(GOOD)
    with pytest.raises(ToolLoadError, match="'ping' is defined twice"):
        load_all(["one.py", "two.py"], folder)


def test_same_tool_seen_twice_counts_once(folder):
    """Importing a tool into another module, or having it in a registry too, is no conflict."""
    (folder / "base_for_test.py").write_text(GOOD)
    (folder / "again.py").write_text(
        "from base_for_test import ping\nfrom agent import ToolRegistry\nr = ToolRegistry()\nr.register(ping)\n"
    )
    assert len(load_all(["base_for_test", "again.py"], folder).tools) == 1
