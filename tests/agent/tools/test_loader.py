"""Loader: finds tools in modules, and says where a broken one is broken."""

import sys

import pytest

from sayso.agent import ToolLoadError
from sayso.agent.tools.loading import load_tools

GOOD = '''
from sayso.agent import tool
from sayso.pending.proposals import executor_factory

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


@pytest.mark.parametrize("file", ["tl.py", "tl/__init__.py"])
def test_a_failed_import_names_the_line_of_the_module_that_imports(folder, file):
    """A module whose file name ends like that of the source is not taken for the source."""
    (folder / "mytl.py").write_text("x = 1\n\nraise RuntimeError('no config')\n")
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text("import mytl\n")
    with pytest.raises(ToolLoadError, match=rf"/{file}, line 1: RuntimeError: no config"):
        load_tools("tl")


def test_wrong_tool_definition_names_the_line(folder):
    """A tool that cannot work is reported at its definition."""
    (folder / "vague.py").write_text(
        "from sayso.agent import tool\n\n\n@tool(name='no spaces')\ndef f() -> str:\n    return ''\n"
    )
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


def test_same_name_twice_in_a_folder_is_told(folder):
    """Two different tools of one name in two files: the first stays."""
    (folder / "shop").mkdir()
    (folder / "shop" / "one.py").write_text(GOOD)
    (folder / "shop" / "two.py").write_text(GOOD)
    loaded = load_tools("shop/", folder)
    assert [tool.name for tool in loaded.tools] == ["ping"]
    (problem,) = loaded.problems
    assert "two.py': 'ping' is defined twice" in problem


def test_a_folder_without_its_path_is_refused_with_the_cure(folder):
    """Python imports any folder as a package, and would find no tool in it."""
    (folder / "toolz_for_test").mkdir()
    (folder / "toolz_for_test" / "one.py").write_text(GOOD)
    with pytest.raises(ToolLoadError, match=r"give its path, as in './toolz_for_test'"):
        load_tools("toolz_for_test", folder)
    assert [tool.name for tool in load_tools("./toolz_for_test", folder).tools] == ["ping"]


def test_same_tool_seen_twice_in_a_folder_counts_once(folder):
    """Importing a tool into another module, or having it in a registry too, is no conflict."""
    sys.path.append(str(folder))
    (folder / "base_for_test.py").write_text(GOOD)
    (folder / "shop").mkdir()
    both = "from base_for_test import ping, rebuild\n"
    (folder / "shop" / "one.py").write_text(both)
    (folder / "shop" / "two.py").write_text(
        f"{both}from sayso.agent import ToolRegistry\nr = ToolRegistry()\nr.register(ping)\n"
    )
    loaded = load_tools("shop/", folder)
    assert (len(loaded.tools), len(loaded.executor_factories), loaded.problems) == (1, 1, ())


STRAY = """
from pathlib import Path

Path(__file__).with_name("was_run").touch()
"""


@pytest.mark.parametrize("source", ["..", "../", "", "  ", "../.."])
def test_a_folder_that_the_configuration_is_in_is_never_run(folder, source):
    """Two dots too many, or a name left empty, would run every script that lies about there."""
    (folder / "stray.py").write_text(STRAY)
    home = folder / "bot" / "config"
    home.mkdir(parents=True)
    with pytest.raises(ToolLoadError, match="a file or a folder of their own"):
        load_tools(source, home if source == "../.." else home.parent)
    assert not (folder / "was_run").exists()


@pytest.mark.parametrize(
    "source", ["a b", "a/b", "a..b", ".a", "/no/where", "x\0.py", "x" * 5000, "~nobody_here/x.py"]
)
def test_what_cannot_be_a_source_is_one_clear_error(folder, source):
    """The YAML may contain any text."""
    with pytest.raises(ToolLoadError, match="cannot load tools from"):
        load_tools(source, folder)


@pytest.mark.parametrize("source", ["quits.py", "quits_for_test"])
def test_a_module_that_ends_the_program_ends_itself(folder, source):
    """The rest still loads."""
    (folder / source.removesuffix(".py")).with_suffix(".py").write_text("\nraise SystemExit(3)\n")
    with pytest.raises(ToolLoadError, match=r"quits.*\.py, line 2: ends the program"):
        load_tools(source, folder)


def test_what_a_module_imports_is_asked_nothing(folder):
    """Flask's `request` raises at any question outside a request."""
    (folder / "proxied.py").write_text(f"from flask import request, session\n{GOOD}")
    assert [tool.name for tool in load_tools("proxied.py", folder).tools] == ["ping"]


def test_one_tool_of_two_names_counts_once_and_two_of_one_are_refused(folder):
    """Within a module as between modules."""
    (folder / "alias.py").write_text(f"{GOOD}\nagain = ping\n")
    assert len(load_tools("alias.py", folder).tools) == 1
    (folder / "twins.py").write_text(
        f"{GOOD}\n@tool(name='ping')\ndef other() -> str:\n    return ''\n"
    )
    with pytest.raises(ToolLoadError, match="'ping' is defined twice"):
        load_tools("twins.py", folder)
