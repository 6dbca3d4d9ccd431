"""Tools that cannot be loaded: each is reported with its place and cure, and the bot answers with the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sayso.agent.tools.loading import ToolReloader
from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.wiring.agents import terminal_agent
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.wiring.tools import OpenTools, open_tools
from sayso.ops.checks.describe import describe

GOOD = "from sayso import tool\n\n\n@tool\ndef greet(name: str) -> str:\n    '''Greet.'''\n    return f'{said} {name}'\n"
YAML = """\
tools:
  - ./good.py
  - ./broken.py
  - nowhere.tools
  - ./again.py
  - {openapi: ./gone.yaml}
channels:
  web: {platform: console, tools: [greet, mend], policy: {allow: ["*"]}}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Return a configuration in which one file in five is valid."""
    (tmp_path / "good.py").write_text(GOOD.replace("{said}", "hello"))
    (tmp_path / "broken.py").write_text("x = 1\nimport nothing_of_that_name\n")
    (tmp_path / "again.py").write_text(GOOD.replace("{said}", "never"))
    (tmp_path / "sayso.yaml").write_text(YAML)
    return tmp_path / "sayso.yaml"


def test_bot_answers_with_the_other_tools_and_every_problem_is_reported(desk: Path):
    """The report has the lines of the YAML and of the file, and the cure, for four kinds of problems."""
    told: list[str] = []
    with terminal_agent(
        load_settings(desk, {}), data=desk.parent, report_problem=told.append
    ) as agent:
        assert agent.ask_channel("ana", "/greet name=Ana").content == "hello Ana"
    broken, path, twice, document = told
    assert broken.startswith(f"{desk}:3:5: tools: cannot load tools from './broken.py'")
    assert "broken.py, line 2: ModuleNotFoundError" in broken
    assert f"{desk}:4:5: " in path
    assert "no module 'nowhere'" in path
    assert f"{desk}:5:5: " in twice
    assert "two tools are called 'greet': rename one" in twice
    assert f"{desk}:6:5: " in document
    assert "gone.yaml" in document


def test_check_fails_on_broken_tools(desk: Path):
    """It reports all of them at once."""
    with pytest.raises(ConfigError) as caught:
        describe(load_settings(desk, {}))
    assert len(caught.value.problems) == 4


def test_edits_reach_a_running_worker(desk: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch):
    """With `reload`, a new result and a repaired file reach the agents that use them."""
    begun: list[ToolReloader] = []
    monkeypatch.setattr(ToolReloader, "start", lambda self: begun.append(self))  # noqa: PLW0108  # a method of it
    services = bootstrap(
        load_settings(desk, {}), data=desk.parent, redis_url=redis_url, reload=True
    )
    agent = services.processor.turns.agents["web"].agent  # type: ignore[attr-defined]  # the port has no need of it
    (reload,) = begun
    assert agent.run("/greet name=Ana").content == "hello Ana"
    for name, text in {"good.py": "good day", "broken.py": "mended"}.items():
        file = desk.parent / name
        edit(
            file,
            GOOD.replace("{said}", text).replace("greet", "greet" if name == "good.py" else "mend"),
        )
    assert reload.check() == ["./good.py", "./broken.py"]
    assert agent.run("/greet name=Ana").content == "good day Ana"
    assert agent.run("/mend name=Ana").content == "mended Ana"


@pytest.fixture
def follow(tmp_path: Path):
    """Return a function that opens tools and follows their files, as `sayso up --reload` does."""

    def begin(tools: str) -> tuple[OpenTools, ToolReloader]:
        (tmp_path / "sayso.yaml").write_text(
            f"tools: {tools}\nchannels: {{web: {{platform: console}}}}\n"
        )
        opened = open_tools(load_settings(tmp_path / "sayso.yaml", {}))
        return opened, ToolReloader(opened.watched, tmp_path, opened.replace_source)

    return begin


def edit(file: Path, text: str) -> None:
    """Save the file with a later time."""
    file.write_text(text)
    os.utime(file, ns=(file.stat().st_mtime_ns + 10**9,) * 2)


def test_edited_tools_keep_the_options_of_their_section(desk: Path, follow):
    """Prefix, selection, confirmation and timeout stay."""
    opened, reload = follow(
        "[{module: ./good.py, namespace: a, include: [greet], confirm: always, timeout: 9}]"
    )
    edit(
        desk.parent / "good.py", GOOD.replace("{said}", "good day") + GOOD.replace("greet", "other")
    )
    assert reload.check() == ["./good.py"]
    (tool,) = opened.tools
    assert tool.run_raw({"name": "Ana"}) == "good day Ana"
    assert (tool.name, tool.requires_approval, tool.metadata.timeout) == ("a-greet", True, 9)


def test_edits_of_a_file_leave_the_tools_it_imports_with_their_own(
    desk: Path, follow, monkeypatch: pytest.MonkeyPatch
):
    """This holds for tools shared with another source, and for repeated edits."""
    monkeypatch.syspath_prepend(desk.parent)
    (desk.parent / "lent_to_reload.py").write_text(GOOD.replace("{said}", "hello"))
    (desk.parent / "more.py").write_text("from lent_to_reload import greet\n")
    opened, reload = follow("[lent_to_reload, ./more.py]")
    for said in ("hi", "ho"):
        lent = "from lent_to_reload import greet\n" + GOOD.replace("greet", "more").replace(
            "{said}", said
        )
        edit(desk.parent / "more.py", lent)
        assert reload.check() == ["./more.py"]
        assert [tool.run_raw({"name": "Ana"}) for tool in opened.tools] == [
            "hello Ana",
            f"{said} Ana",
        ]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("json", "nothing is taken from 'json': decorate its functions with @tool()"),
        ("./empty.py", "nothing is taken from './empty.py': decorate its functions"),
        ("./nothing", "nothing is taken from './nothing': decorate its functions"),
        (
            "{module: ./good.py, include: [meet]}",
            "nothing is taken from './good.py': see whether `include`",
        ),
        (
            "{toolbox: [calculator], exclude: ['*']}",
            "nothing is taken from 'calculator': see whether `include`",
        ),
    ],
)
def test_source_without_tools_is_reported(desk: Path, source: str, told: str):
    """It is a misspelled module, a missing file, or a pattern without a match."""
    (desk.parent / "empty.py").write_text("x = 1\n")
    (desk.parent / "nothing").mkdir()
    desk.write_text(f"tools:\n  - {source}\nchannels:\n  web: {{platform: console}}\n")
    with pytest.raises(ConfigError) as caught:
        describe(load_settings(desk, {}))
    assert [
        problem.startswith(f"{desk}:2:5: tools: {told}") for problem in caught.value.problems
    ] == [True]
