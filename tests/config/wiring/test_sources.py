"""Sections below `tools`: mistakes have a place and a fix, errors show no secret, and a dead server stops no start."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sayso.agent import ToolExecutionError, ToolTag
from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.settings.schema import Settings
from sayso.config.wiring.agents import load_bot_tools, terminal_agent
from sayso.config.wiring.tools import open_tools, tool_provider
from sayso.ops.checks.describe import describe
from tests.config.processes import sayso

SECRET = "s3cr3t-value"
WEB = "channels: {a: {platform: console}}\n"
TINY = Path(__file__).parents[2] / "agent" / "toolsets" / "tiny_mcp.py"
ODD = TINY.parent / "odd_mcp.py"
SERVER = f"{{command: ['{sys.executable}', '{TINY}']}}"

#: The sections, and the error text after the name of the file.
MISTAKES = {
    "number": (
        "tools: [5]",
        ":1:9: tools.0: write a module, a file, or a section with one of mcp, openapi, toolbox, mod",
    ),
    "no kind": (
        "tools:\n  - namespace: a",
        ":2:5: tools.0: write a module, a file, or a section with one of mcp, openap",
    ),
    "two kinds": (
        "tools:\n  - mcp: {url: 'http://a'}\n    openapi: a.yaml",
        ":2:5: tools.0: write a module, a file, or a se",
    ),
    "unknown key": (
        "tools:\n  - openapi: a.yaml\n    namspace: a",
        ":3:5: tools.0.namspace: unknown key: did you mean 'names",
    ),
    "unknown key below": (
        "tools:\n  - mcp: {comand: [a]}",
        ":2:11: tools.0.mcp.comand: unknown key: did you mean 'command'",
    ),
    "neither": (
        "tools:\n  - mcp: {}",
        ":2:5: tools.0.mcp: a server is either a command, such as [npx, some-server], or a",
    ),
    "both": (
        "tools:\n  - mcp: {command: [a], url: 'http://a'}",
        ":2:5: tools.0.mcp: a server is either a command",
    ),
    "text": (
        "tools:\n  - mcp: npx server",
        ":2:5: tools.0.mcp: must be a section: indented `key: value` lines",
    ),
    "command as text": (
        "tools:\n  - mcp: {command: npx server}",
        ":2:11: tools.0.mcp.command: must be a list",
    ),
    "no command": (
        "tools:\n  - mcp: {command: []}",
        ":2:11: tools.0.mcp.command: is empty: add one",
    ),
    "no url": (
        "tools:\n  - mcp: {url: localhost}",
        ":2:11: tools.0.mcp.url: is not a URL: write it as https://",
    ),
    "malformed document": (
        "tools:\n  - openapi: 'http://[::1/pets.json'",
        ":2:5: tools.0.openapi: is not a URL: write it as https://api.example.com/openapi.json",
    ),
    "user in url": (
        "tools:\n  - mcp: {url: 'http://u:p@a'}",
        ":2:11: tools.0.mcp.url: holds a user: leave it out, and sign",
    ),
    "headers of a command": (
        "tools:\n  - mcp: {command: [a], headers: {B: '${SECRET}'}}",
        "headers are for a url: a command tak",
    ),
    "environment of a url": (
        "tools:\n  - mcp: {url: 'http://a', env: {B: '${SECRET}'}}",
        "env and cwd are for a command: a url",
    ),
    "namespace": (
        "tools:\n  - openapi: a.yaml\n    namespace: a b",
        ":3:5: tools.0.namespace: a namespace has 1 to 32 letters",
    ),
    "confirm": (
        "tools:\n  - openapi: a.yaml\n    confirm: maybe",
        ":3:5: tools.0.confirm: unknown: write hints, always, never,",
    ),
    "timeout": (
        "tools:\n  - openapi: a.yaml\n    timeout: true",
        ":3:5: tools.0.timeout: must be a number",
    ),
    "no time": (
        "tools:\n  - openapi: a.yaml\n    timeout: 0",
        ":3:5: tools.0.timeout: must be greater than 0",
    ),
    "two ways in": (
        "tools:\n  - openapi: a.yaml\n    auth: {bearer: '${SECRET}', header: X, value: '${SECRET}'}",
        ":3:5: tools.0.auth: calls are signed in one way: give one of bearer, header, query, cookie, basic",
    ),
    "no way in": (
        "tools:\n  - openapi: a.yaml\n    auth: {}",
        ":3:5: tools.0.auth: calls are signed in one way: give one of",
    ),
    "no value": (
        "tools:\n  - openapi: a.yaml\n    auth: {query: key}",
        ":3:5: tools.0.auth: header, query and cookie name wh",
    ),
    "value of no key": (
        "tools:\n  - openapi: a.yaml\n    auth: {bearer: '${SECRET}', value: '${SECRET}'}",
        ":3:5: tools.0.auth: value is for header, query or cookie, not for bearer: remove it",
    ),
    "no password": (
        "tools:\n  - openapi: a.yaml\n    auth: {basic: {user: a}}",
        "auth.basic.password: missing: add it",
    ),
    "base": (
        "tools:\n  - openapi: a.yaml\n    base_url: ftp://a",
        ":3:5: tools.0.base_url: is not a URL: write it as https://",
    ),
    "no document": ("tools:\n  - good.py\n  - openapi: none.yaml", ":3:5: tools: "),
    "no document's cure": (
        "tools: [{openapi: none.yaml}]",
        "none.yaml: cannot be read (No such file or directory): check the pa",
    ),
    "bad document": (
        "tools: [{openapi: bad.yaml}]",
        "bad.yaml: no document of OpenAPI 3: it does not say `openapi: 3...`",
    ),
    "no module": (
        "tools:\n  - module: no.such\n    namespace: a",
        ":2:5: tools: cannot load tools from 'no.such'",
    ),
    "same name": (
        "tools:\n  - good.py\n  - module: twin.py",
        ":3:5: tools: cannot load tools from 'twin.py': two tools are cal",
    ),
    "unknown toolbox": (
        "tools:\n  - toolbox: [calculatr]",
        ":2:5: tools: unknown toolbox 'calculatr'; did you mean",
    ),
    "no toolbox": ("tools:\n  - toolbox: []", ":2:5: tools.0.toolbox: is empty: add one"),
    "no folder": ("tools:\n  - {toolbox: [files], folder: none}", ":2:5: tools: toolbox folder "),
    "secret header": (
        "tools:\n  - mcp:\n      url: http://a\n      headers:\n        X-Key: s3cr3t-value",
        ":5:9: X-Key: a secret in clear: put it in the environment and write ${X_KEY}",
    ),
    "secret in part": (
        "tools:\n  - mcp: {url: 'http://a', headers: {A: 'Bearer x${SECRET}'}}",
        "A: a secret in clear: put it i",
    ),
    "secret environment": (
        "tools:\n  - mcp: {command: [a], env: {TOKEN: s3cr3t-value}}",
        "TOKEN: a secret in clear: put it in",
    ),
    "secret bearer": (
        "tools:\n  - openapi: a\n    auth: {bearer: s3cr3t-value}",
        ":3:12: bearer: a secret in clear: put it in",
    ),
    "secret value": (
        "tools:\n  - openapi: a\n    auth: {query: k, value: s3cr3t-value}",
        "value: a secret in clear: put it",
    ),
    "secret password": (
        "tools:\n  - openapi: a\n    auth: {basic: {user: u, password: s3cr3t-value}}",
        "password: a secret in c",
    ),
    "unset secret": (
        "tools:\n  - openapi: a\n    auth: {bearer: '${NOPE}'}",
        ":3:12: bearer: NOPE is not set: export NOPE=...\n",
    ),
    "empty secret": (
        "tools:\n  - mcp: {url: 'http://a', headers: {A: '${EMPTY}'}}",
        "headers.A: is empty: give it a value",
    ),
    "secret out of place": (
        "tools:\n  - openapi: a\n    confirm: ${SECRET}",
        "(it is what ${SECRET} says)",
    ),
}
TOOL = (
    'from sayso.agent import tool\n@tool()\ndef good() -> str:\n    """Do good."""\n    return ""\n'
)
SLOW = """
import threading
from sayso.agent import tool
@tool()
def slow() -> str:
    '''Take long.'''
    threading.Event().wait(30)
    return ""
"""
FACTORY = (
    "from sayso import executor_factory\n@executor_factory('wipe')\ndef rebuild(action): ...\n"
)
DOCUMENT = {
    "openapi": "3.1.0",
    "servers": [{"url": "https://a.example.com"}],
    "paths": {"/a": {"get": {}, "post": {}}},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a configuration's path, with modules and documents beside it."""
    for name, text in {
        "good.py": TOOL,
        "twin.py": TOOL,
        "bad.yaml": "a: 1",
        "api.json": json.dumps(DOCUMENT),
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "sayso.yaml"


def settings(file: Path, text: str, **environ: str) -> Settings:
    """Return the settings of a file with these tools."""
    file.write_text(text + "\n" + WEB)
    return load_settings(file, environ)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_reported_with_its_place_and_fix(file: Path, name: str):
    """The error names the line and the valid value, and repeats no secret."""
    text, expected = MISTAKES[name]
    with pytest.raises(ConfigError) as caught:
        describe(settings(file, text, SECRET=SECRET, EMPTY=""))
    said = f"{caught.value}\n"
    assert said.startswith(str(file))
    assert expected in said, said
    assert SECRET not in said


def test_secrets_are_not_in_the_repr(file: Path):
    """Printed settings hide secrets in commands, headers and URLs."""
    text = (
        "tools:\n  - mcp: {command: [run, '--key=${S}'], env: {TOKEN: '${S}'}}\n"
        "  - mcp: {url: 'http://a/${S}', headers: {Authorization: 'Bearer ${S}'}}\n"
        "  - {openapi: api.json, auth: {basic: {user: u, password: '${S}'}}}"
    )
    read = settings(file, text, S=SECRET)
    assert SECRET not in repr(read) + str(read)
    assert read.tools[1].mcp.headers["Authorization"].get_secret_value() == f"Bearer {SECRET}"


def test_module_section_has_namespace_and_confirmation(file: Path):
    """A `module` section accepts the common keys that a plain string cannot have."""
    loaded = open_tools(
        settings(file, "tools: [{module: good.py, namespace: desk, confirm: always}]")
    ).tools
    assert [(tool.name, tool.requires_approval) for tool in loaded] == [("desk-good", True)]


def test_namespace_is_prefixed_unchanged_to_the_whole_name(file: Path):
    """The rule holds for every source, and before a namespace of the tool's own."""
    code = "from sayso.agent import tool\n\n@tool(name='files-read')\ndef read() -> str:\n    'Read.'\n    return ''\n"
    (file.parent / "own.py").write_text(code)
    document = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "servers": [{"url": "https://a.org"}],
                "paths": {"/x": {"get": {"operationId": "look"}}}}  # fmt: skip
    (file.parent / "api.json").write_text(json.dumps(document))
    sections = "[{module: own.py, namespace: MyDesk}, {openapi: api.json, namespace: MyDesk}]"
    tools = open_tools(settings(file, f"tools: {sections}")).tools
    named = [(each.name, each.namespace, each.method_name, each.qualified_name) for each in tools]
    assert named == [
        ("MyDesk-files-read", "MyDesk", "files-read", "MyDesk-files-read"),
        ("MyDesk-look", "MyDesk", "look", "MyDesk-look"),
    ]


@pytest.mark.parametrize(
    "source", ["{module: slow.py, timeout: 0.01}", "{module: slow.py, namespace: a, timeout: 0.01}"]
)
def test_timeout_of_a_section_applies_to_its_tools(file: Path, source: str):
    """The timeout also ends a sync tool, whose thread may never return."""
    (file.parent / "slow.py").write_text(SLOW)
    (slow,) = open_tools(settings(file, f"tools: [{source}]")).tools
    with pytest.raises(ToolExecutionError, match=r"gave no result within 0\.01 seconds"):
        slow.run_raw({})


def test_timeout_of_a_toolbox_applies_to_its_tools_only(file: Path):
    """Tools of other sources keep their own timeout."""
    loaded = open_tools(
        settings(file, "tools: [good.py, {toolbox: [calculator], timeout: 7}]")
    ).tools
    assert {tool.name: tool.metadata.timeout for tool in loaded} == {"good": None, "calculate": 7}


def test_tool_from_two_sources_counts_once(file: Path, monkeypatch: pytest.MonkeyPatch):
    """A module may import another's tool, or be listed twice."""
    monkeypatch.syspath_prepend(file.parent)
    (file.parent / "base_of_sources.py").write_text(TOOL + FACTORY)
    (file.parent / "again.py").write_text("from base_of_sources import good, rebuild")
    text = "tools: [base_of_sources, again.py, base_of_sources, {module: base_of_sources}]"
    opened = open_tools(settings(file, text))
    assert ([tool.name for tool in opened.tools], list(opened.executor_factories)) == (
        ["good"],
        ["wipe"],
    )
    assert opened.problems == ()


def test_two_executor_factories_of_one_kind_are_refused(file: Path):
    """A yes must never run one of two executors by chance."""
    for name in ("one.py", "two.py"):
        (file.parent / name).write_text(FACTORY)
    with pytest.raises(
        ConfigError, match=r":1:17: tools: cannot load tools from 'two.py': 'wipe' is defined twice"
    ):
        describe(settings(file, "tools: [one.py, two.py]"))


def test_openapi_file_loads_without_its_server(file: Path):
    """Its tools exist in every process, also in one that opens no remote source."""
    loaded = open_tools(
        settings(file, "tools: [good.py, {openapi: api.json, namespace: api, exclude: [get*]}]")
    ).tools
    assert [tool.name for tool in loaded] == ["good", "api-post_a"]
    assert ToolTag.DESTRUCTIVE in loaded[1].metadata.tags


def test_toolbox_uses_its_folder_and_selection(file: Path):
    """The folder is relative to the configuration, and the section selects tools with the common keys."""
    (file.parent / "own").mkdir()
    (file.parent / "own" / "note.txt").write_text("found")
    section = "{toolbox: [calculator, files], folder: ./own, namespace: box, include: [calc*, read*], confirm: [read*]}"
    loaded = {tool.name: tool for tool in open_tools(settings(file, f"tools: [{section}]")).tools}
    assert [(name, tool.requires_approval) for name, tool in loaded.items()] == [
        ("box-calculate", False),
        ("box-read_file", True),
    ]
    assert "found" in str(loaded["box-read_file"].run_raw({"file": "note.txt"}))


def test_home_folder_may_be_written_as_a_tilde(file: Path, monkeypatch: pytest.MonkeyPatch):
    """Every path of a source is read in the same way."""
    home = file.parent / "home"
    (home / "own").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    text = "tools:\n  - {toolbox: [files], folder: ~/own}\n  - mcp: {command: [run], cwd: ~/own}\n"
    read = settings(file, text)
    assert open_tools(read).problems == ()
    provider = tool_provider(read.tools[1], file.parent)
    assert provider._server.cwd == home / "own"


def test_path_with_the_tilde_of_nobody_is_a_problem_of_its_line(file: Path):
    """It is not an error that ends the process."""
    opened = open_tools(settings(file, "tools:\n  - openapi: ~nobody-at-all/api.json"))
    assert "~nobody-at-all/api.json: cannot be read" in opened.problems[0]


def test_unreachable_server_does_not_stop_the_bot(file: Path):
    """The other tools load, and one line names the missing server and the next step."""
    text = "tools:\n  - good.py\n  - mcp: {command: [no-such-command]}\n    namespace: box\n"
    told: list[str] = []
    with terminal_agent(
        settings(file, text), data=file.parent / "data", report_problem=told.append
    ) as agent:
        assert [tool.name for tool in agent.agent.tools] == ["good"]
    assert len(told) == 1
    assert told[0].startswith(
        f"{file}:3:5: tools: 'box' does not answer yet: the MCP server 'box' cannot be reached: "
    )
    assert "tries again until it answers" in told[0]


def test_check_lists_the_tools_of_a_server_and_closes_it(file: Path):
    """`sayso check` starts the server, lists its tools, and stops it."""
    text = f"tools:\n  - mcp: {SERVER}\n    namespace: box\n    include: [echo, wipe]"
    assert "box-echo: " in str(describe(settings(file, text), seconds=120))


RULES = """\
tools:
  - {module: good.py, include: [g*, goood], exclude: [bd_*], confirm: [a-good, goo]}
  - {module: other.py, namespace: a}
channels:
  desk:
    platform: console
    tools: [good]
    policy:
      allow: [good, Good]
      review: [GOOD, "*-other", other]
      deny: [drop_*, a-othr]
      deny_when: [{tool: gxod*, arg: x, pattern: y}]
"""
STRAY = [
    "2:37: warning: tools.0.include.1: 'goood' names no tool, did you mean 'good'?",
    "2:55: warning: tools.0.exclude.0: 'bd_*' names no tool",
    "2:72: warning: tools.0.confirm.0: 'a-good' names no tool, did you mean 'good'?",
    "2:80: warning: tools.0.confirm.1: 'goo' names no tool, did you mean 'good'?",
    "12:20: warning: channels.desk.policy.deny_when.0.tool: 'gxod*' names no tool, did you mean 'good*'?",
    "9:21: warning: channels.desk.policy.allow.1: 'Good' names no tool, did you mean 'good'?",
    "10:33: warning: channels.desk.policy.review.2: 'other' names no tool, did you mean '*-other'?",
    "11:14: warning: channels.desk.policy.deny.0: 'drop_*' names no tool",
    "11:22: warning: channels.desk.policy.deny.1: 'a-othr' names no tool, did you mean 'a-other'?",
]


def test_check_warns_of_each_pattern_that_names_no_tool(file: Path):
    """A misspelled pattern restricts nothing; a pattern for a future tool is no mistake."""
    (file.parent / "other.py").write_text(TOOL.replace("good", "other"))
    file.write_text(RULES)
    told = [line for line in str(describe(load_settings(file))).splitlines() if "warning" in line]
    assert told == [f"{file}:{line}" for line in STRAY]


def test_check_warns_of_a_pattern_that_no_tool_of_a_server_matches(file: Path):
    """The warning covers `exclude` and `confirm`. The server is started once."""
    starts = file.parent / "starts"
    code = f"open({str(starts)!r}, 'a').write('x'); import runpy; runpy.run_path({str(TINY)!r}, run_name='__main__')"
    server = json.dumps({"command": [sys.executable, "-c", code]})
    text = f"tools:\n  - mcp: {server}\n    namespace: box\n    exclude: [wip, echo]\n    confirm: [box-wipe, 'di?']"
    told = [
        line
        for line in str(describe(settings(file, text), seconds=120)).splitlines()
        if "warning" in line
    ]
    assert told == [
        f"{file}:4:15: warning: tools.0.exclude.0: 'wip' names no tool, did you mean 'wipe'?"
    ]
    assert starts.read_text() == "x"


def test_check_names_the_tools_that_cannot_be_used(file: Path):
    """Each has its source and the reason; the other tools of the source are there."""
    odd = json.dumps([{"name": "odd", "inputSchema": {"type": "array"}}])
    server = f"{{command: ['{sys.executable}', '{ODD}', '{odd}']}}"
    parameters = [{"name": "b", "in": "query", "style": "matrix"}]
    paths = {"/a": {"get": {"parameters": parameters}, "put": 5}}
    document = {"openapi": "3.1.0", "servers": [{"url": "https://a.test"}], "paths": paths}
    (file.parent / "odd.json").write_text(json.dumps(document))
    told = str(
        describe(settings(file, f"tools:\n  - mcp: {server}\n  - openapi: odd.json"), seconds=120)
    ).splitlines()
    assert {"  good: asks first", "  get_a: runs at once"} <= {*told}
    assert [line for line in told if "warning" in line] == [
        f"{file}:3:5: warning: tools: 'put_a' of 'odd' is left out: PUT /a: there is 'int' where an object must be",
        f"{file}:3:5: warning: tools: 'get_a' of 'odd' is not offered as a whole: "
        "its parameter 'b' has the style 'matrix', which is not supported",
        f"{file}:2:5: warning: tools: 'odd' of '{Path(sys.executable).name}' is left out: "
        "inputSchema.type: Input should be 'object'",
    ]


def test_patterns_of_an_unreachable_server_are_not_checked(file: Path):
    """Its list of tools is unknown."""
    text = "tools:\n  - mcp: {command: [no-such-command]}\n    exclude: [wip]\n"
    file.write_text(f"{text}channels: {{a: {{platform: console, policy: {{deny: [a]}}}}}}\n")
    assert "warning" not in str(describe(load_settings(file)))


def test_chat_closes_its_servers(file: Path):
    """The command ends without a warning about unfinished tasks."""
    file.write_text(f"tools: [{{mcp: {SERVER}, namespace: box}}]\n{WEB}")
    code, _, errors = sayso(
        "chat", "--config", file, "--data", file.parent / "data", stdin="/help\nexit\n"
    )
    assert (code, "Task was destroyed" in errors) == (0, False)


def test_web_opens_no_server(file: Path):
    """The web answers no turn, so it needs no tool."""
    opened = load_bot_tools(settings(file, "tools: [{mcp: {command: [no-such-command]}}]"))
    assert (opened.tools, opened.problems, opened.live) == ([], (), None)


def test_pattern_may_name_a_tool_that_a_server_will_list(file: Path):
    """The list of tools is known only once the server answers."""
    text = "tools:\n  - mcp: {command: [no-such-command]}\nchannels: {a: {platform: console, tools: [box-*]}}"
    file.write_text(text)
    assert load_bot_tools(load_settings(file)).tools == []
