"""The toolbox as a whole: opened by family, for one folder, for some hosts, or refused with the cure."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

from sayso.agent import Agent, ToolLoadError, extras
from sayso.agent import toolbox as libraries
from sayso.agent.toolbox import FAMILIES, open_toolbox
from sayso.agent.tools.loading import load_tools
from sayso.channels.markdown.convert import plain

READING = {
    "files": ["list_files", "read_file", "search_files"],
    "tables": ["query_csv_file", "query_json_file"],
}


@pytest.mark.parametrize(
    ("names", "settings", "words"),
    [
        (["calculater"], {}, "did you mean 'calculator'"),
        ("calculator", {}, "write a list"),
        (["shell"], {}, "unknown toolbox 'shell'"),
        (["files"], {}, "needs folder"),
        (["files"], {"folder": Path("/no/such/folder")}, "does not exist"),
        (["dates"], {"folder": Path("/tmp")}, "read by 'files' and 'tables' only"),
        (["dates"], {"hosts": ["example.com"]}, "read by 'web' only"),
        (["web"], {"hosts": "example.com"}, "write a list"),
        (["web"], {"hosts": ["https://example.com"]}, "is not a host name"),
        (["web"], {"hosts": ["*"]}, "is not a host name"),
        (["web"], {"hosts": [""]}, "is not a host name"),
    ],
)
def test_what_cannot_be_opened_is_said_with_its_cure(
    names: list[str] | str, settings: dict, words: str
):
    """A mistake in a setting is found when the program starts."""
    with pytest.raises(ToolLoadError, match=words):
        open_toolbox(names, **settings)


@pytest.mark.parametrize(
    ("family", "library"),
    [
        ("charts", "matplotlib"),
        ("dates", "dateutil"),
        ("documents", "reportlab"),
        ("tables", "jmespath"),
        ("units", "pint"),
        ("web", "lxml"),
    ],
)
def test_a_missing_library_is_named_with_its_cure(
    family: str, library: str, monkeypatch: pytest.MonkeyPatch
):
    """When the family is opened, not in front of a user."""
    found = importlib.util.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == library else found(name))
    monkeypatch.delitem(sys.modules, f"sayso.agent.toolbox.{family}", raising=False)
    with pytest.raises(
        ToolLoadError,
        match=rf"needs {library}, which the extra 'toolbox' brings: pip install .*'(python-)?{library}>=",
    ):
        open_toolbox([family])


def test_a_library_that_somebody_blocked_counts_as_missing(monkeypatch: pytest.MonkeyPatch):
    """A None in sys.modules makes its import fail."""
    monkeypatch.setitem(sys.modules, "pint", None)
    with pytest.raises(ToolLoadError, match="needs pint"):
        libraries.need("units")


def test_opening_everything_gives_each_tool_once(tmp_path: Path):
    """No two families claim a name, and a family named twice is opened once."""
    tools = open_toolbox([*FAMILIES, "text", "dates"], folder=tmp_path, hosts=["example.com"])
    names = [tool.name for tool in tools]
    assert len(names) == len(set(names)) == 22


def test_every_tool_only_reads_and_describes_itself(tmp_path: Path):
    """Interrupted, any of them may run again; every parameter has its description."""
    for tool in open_toolbox(FAMILIES, folder=tmp_path):
        assert tool.read_only
        assert tool.description
        properties = tool.schema()["parameters"]["properties"]
        assert [name for name, schema in properties.items() if "description" not in schema] == []


@pytest.mark.parametrize("vendor", ["openai-chat", "openai-response", "anthropic", "gemini"])
def test_every_vendor_takes_the_schemas(vendor: str, tmp_path: Path):
    """No schema has what a vendor refuses."""
    assert all(tool.get_schema(vendor) for tool in open_toolbox(FAMILIES, folder=tmp_path))


def test_what_others_wrote_is_screened(tmp_path: Path):
    """A page and a file may carry instructions to the model."""
    screened = {tool.name for tool in open_toolbox(FAMILIES, folder=tmp_path) if tool.screen_output}
    assert screened == {"fetch_page", *READING["files"], *READING["tables"]}


def test_files_are_read_only_where_a_folder_is_named(tmp_path: Path):
    """Without one there is no tool that could."""
    bare = {tool.name for tool in open_toolbox(set(FAMILIES) - {"files"})}
    assert not bare & {*READING["files"], *READING["tables"]}
    assert {tool.name for tool in open_toolbox(["tables"], folder=tmp_path)} >= set(
        READING["tables"]
    )


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"files"}))
def test_a_family_can_be_named_as_a_module(family: str):
    """`tools: [agent.toolbox.calculator]`, for those that need no settings."""
    loaded = {tool.name for tool in load_tools(f"sayso.agent.toolbox.{family}").tools}
    assert loaded == {tool.name for tool in open_toolbox([family])}


def test_opening_imports_no_library():
    """They are slow to load, and most turns need none of them."""
    code = (
        "import sys; from sayso.agent.toolbox import FAMILIES, open_toolbox; "
        "open_toolbox([f for f in FAMILIES if f != 'files']); "
        "print({'matplotlib', 'pint', 'reportlab', 'jmespath', 'dateutil', 'httpx', 'lxml'} & set(sys.modules))"
    )
    root = str(Path(__file__).parents[3])

    async def printed() -> bytes:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=pipe, cwd=root
        )
        return (await process.communicate())[0]

    assert asyncio.run(printed()).decode().strip() == "set()"


def test_the_offline_model_finds_some_by_their_words():
    """A command, and words that are the tool's name."""
    agent = Agent(open_toolbox(["calculator", "units", "text"]))
    assert plain(agent.run("/calculate 2+3*4").content) == "2+3*4 = 14"
    assert agent.run('calculate "15% of 80"').content == "15% of 80 = 12"
    assert (
        agent.run("/convert_units amount=5 from_unit=miles to_unit=km").content
        == "5 miles = 8.04672 km"
    )
    assert "2 words" in agent.run('text stats "hello world"').content


def test_a_wrong_call_is_told_to_the_model_and_not_raised():
    """It reads what to change."""
    told = Agent(open_toolbox(["calculator"])).run("/calculate 9**9**9").content
    assert "too large: results end at 1E+9999" in told
