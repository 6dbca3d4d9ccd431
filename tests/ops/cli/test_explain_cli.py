"""The `sayso explain` command: it shows what would happen and which line decides it, and runs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sayso.ops.cli.main import main

ROOT = Path(__file__).parents[3]
TOOLS = '''
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import AfterValidator

from sayso.agent import NotFound, Tool, tool
from sayso.agent.tools.definition import ToolMetadata, ToolTag

RAN = Path(__file__).parent / "ran"


@tool
def find_letter(number: int = 1) -> str:
    """Find a letter."""
    RAN.write_text("find")
    return "found"


@tool
def send_letter(to: str, pages: list[int], urgent: bool = False) -> str:
    """Send a letter."""
    RAN.write_text("send")
    return "sent"


@tool(requires_approval=True, typed_code=True, undo=lambda name: None, undo_seconds=120, editable=["name"],
      preview=lambda name: NotFound("account", name) if name == "nobody" else f"Close {name}\\nfor good")
def close_account(name: str) -> str:
    """Close an account."""
    RAN.write_text("close")
    return "closed"


@tool
def archive(name: str) -> str:
    """Archive it."""
    RAN.write_text("archive")
    return "archived"


@tool(requires_approval=True, terminal=True)
def fetch(path: Annotated[str, AfterValidator(unquote)]) -> str:
    """Fetch it."""
    return ""


@tool
def mixed(either: int | list[str], anything: Any = None, note: str = "") -> str:
    """Take several types."""
    RAN.write_text("mixed")
    return ""


IDS = {"id": {"type": ["string", "null"]}, "any": {}, "n": {"type": "integer"}}
outside = Tool("outside", "By a schema", {"type": "object", "properties": IDS, "required": ["id", "n"]},
               lambda **given: RAN.write_text("outside"))
burn = Tool("burn", "Burn it all", (), lambda: RAN.write_text("burn"),
            metadata=ToolMetadata(tags=frozenset({ToolTag.DESTRUCTIVE})))
'''
YAML = """\
tools: [./tools.py]
channels:
  desk:
    platform: console
    confirm_ttl: 90
    tools:
      - find_*
      - "*_letter"
      - close_account
      - burn
    policy:
      allow: [find_*, close_account]
      deny: [burn]
      deny_when:
        - {tool: send_*, arg: to, pattern: "*@external.com"}
    selector:
      - roles:
          allowed: {boss: ["*"], clerk: [find_*, send_*]}
          users: {U1: boss}
          default: clerk
  open: {platform: console}
  strict: {platform: console, policy: {}}
  chosen:
    platform: console
    selector: {embedding: {top_k: 2}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a configuration and its tools."""
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "sayso.yaml").write_text(YAML)
    return tmp_path


@pytest.fixture
def ask(folder: Path):
    """Return a function that runs the command and checks that no tool ran."""

    def asked(*args: str, channel: str = "desk", user: str = "U1") -> Result:
        options = ["--config", str(folder / "sayso.yaml"), "--user", user]
        result = CliRunner().invoke(main, ["explain", *options, channel, *args])
        assert not (folder / "ran").exists()
        return result

    return asked


def lines(result: Result, folder: Path) -> list[str]:
    """Return the output lines without the folder's name."""
    return [line.strip() for line in result.output.replace(f"{folder}/", "").splitlines()]


def test_question_is_shown_as_its_user_would_read_it(ask, folder):
    """The output has the rule, the exact text, who may confirm, the window, the code, and the undo."""
    result = ask("close_account", "name=Ana")
    assert lines(result, folder) == [
        'U1 on desk: close_account with {"name": "Ana"}',
        "channel: has it: tools: close_account (sayso.yaml:9:9)",
        "shown: to U1, role 'boss' (sayso.yaml:16:5)",
        "arguments: valid",
        "decision: asks first: the tool's author: requires_approval, which no allow rule overrules",
        "preview: Close Ana",
        "for good",
        "confirm: only U1, where it was asked, within 90 s of its delivery, and only with the code that the question "
        "shows",
        "change: U1 may change name before the yes, and is asked anew",
        "undo: for 120 s after the outcome",
        "after the outcome: the bot's own text is all: the default of its model",
        "It asks first.",
    ]
    assert result.exit_code == 0


def test_terminal_tool_is_named_as_why_its_result_is_the_reply(ask, folder):
    """The person reads its result, also after a yes, whatever the channel has."""
    why = "after the outcome: the bot's own text is all: the tool's author: terminal"
    assert why in lines(ask("fetch", "path=a", channel="open"), folder)


def test_tool_that_asks_by_itself_is_reported_as_asking():
    """The policy allows it, and its own code asks, so the answer is not that it runs at once."""
    asked = ["explain", "--config", str(ROOT / "config" / "demo.yaml"), "web", "refund_invoice"]
    result = CliRunner().invoke(main, [*asked, "invoice_id=INV-42", "amount=2"])
    *_, question, _, verdict = result.output.splitlines()
    assert (result.exit_code, verdict) == (0, "It asks first.")
    assert (
        question == "  question: asked by the tool's own code; its text is known when the tool runs"
    )
    told = json.loads(CliRunner().invoke(main, [*asked, "--json"]).output)
    assert (told["verdict"], told["asks_by_itself"]) == ("asks", True)


@pytest.mark.parametrize(
    ("args", "channel", "user", "status", "words"),
    [
        (["find_letter"], "desk", "U1", 0, "runs at once: allow: find_* (sayso.yaml:12:15)"),
        (["find_letter", "number=5"], "desk", "U2", 0, "shown: to U2, role 'clerk' (sayso.yaml:16:5)"),
        (["close_account", "name=x"], "desk", "U2", 1, "shown: not to U2, role 'clerk' (sayso.yaml:16:5)"),
        (["burn"], "desk", "U1", 1, "never runs: deny: burn (sayso.yaml:13:14)"),
        (["burn"], "desk", "U1", 1, "shown: not to U1, deny: burn (sayso.yaml:13:14)"),
        (["archive", "name=x"], "desk", "U1", 1, "not have it: none of its tools patterns names it (sayso.yaml:6:5)"),
        (["burn"], "open", "", 0, "asks first: hint: destructive, and no rule names it; an allow rule would"),
        (["archive", "name=x"], "open", "", 0, "runs at once: the channel has no policy (sayso.yaml:21:3)"),
        (["archive", "name=x"], "strict", "", 0, "asks first: no rule names it, so it is asked for (sayso.yaml:22:31)"),
        (["archive", "name=x"], "strict", "", 0, "preview: archive: name = x"),
        (["archive", "name=x"], "strict", "", 0, "confirm: only the user who asks, where it was asked, within"),
        (["archive", "name=x"], "chosen", "", 0, "shown: depends on the message (sayso.yaml:25:5)"),
        (["archive", "name=x"], "chosen", "", 0, "It runs at once, where its selector shows it"),
        (
            ["send_letter", '{"to": "eve@EXTERNAL.com", "pages": []}'], "desk", "U1", 1,
            "never runs: deny_when: {tool: send_*, arg: to, pattern: *@external.com} (sayso.yaml:15:11)",
        ),
        (["send_letter", "to=a@b", "pages=[1, 2]", "urgent=yes"], "desk", "U1", 0, "pages = \\[1, 2\\], urgent = True"),
        (["send_letter"], "desk", "U1", 0, "arguments: none given; decided by its name alone"),
        (["send_letter"], "desk", "U1", 0, "may be denied by its arguments: deny_when: {tool: send_*"),
        (["send_letter", "too=x", "pages=[]"], "desk", "U1", 1, "'too' -> Did you mean 'to'?"),
        (["find_letter", "number=many"], "desk", "U1", 1, "Issue: 'number' is"),
        (["close_account", "name=nobody"], "desk", "U1", 1, 'there is nothing to ask: I found no account for "nobody"'),
    ],
)  # fmt: skip
def test_deciding_rule_is_shown_with_its_line(ask, folder, args, channel, user, status, words):
    """Each possible decision is shown, with its exit code."""
    result = ask(*args, channel=channel, user=user)
    assert words in "\n".join(lines(result, folder))
    assert result.exit_code == status


@pytest.mark.parametrize(
    ("args", "given"),
    [
        (["mixed", 'either=["a", "b"]'], {"either": ["a", "b"]}),
        (["mixed", "either=5", 'anything={"a": 1}'], {"either": 5, "anything": {"a": 1}}),
        (
            ["mixed", "either=5", "anything=some words", "note=5"],
            {"either": 5, "anything": "some words", "note": "5"},
        ),
        (["outside", "id=12345", "n=7", 'any={"a": 1}'], {"id": "12345", "n": 7, "any": {"a": 1}}),
        (["outside", "n=7", "id=null", "any=[]"], {"id": None, "n": 7, "any": []}),
        (["outside", 'id="x"', "n=7"], {"id": '"x"', "n": 7}),
    ],
)
def test_arguments_may_be_json(ask, args, given):
    """A value counts as JSON if the tool accepts it there; any other value is text."""
    arguments = json.loads(ask("--json", *args, channel="open").output)["arguments"]
    assert {name: arguments[name] for name in given} == given


def test_call_that_would_be_refused_is_not_reported_as_asking(ask):
    """Its argument changes each time it is read, so no exact effect could be stored."""
    result = ask("fetch", "path=%252e", channel="open")
    assert "cannot be recorded" in result.output
    assert "It asks first" not in result.output


def test_lone_surrogate_is_shown_escaped(ask):
    """A model may send one, and a terminal cannot print it."""
    result = ask("mixed", '{"either": 5, "anything": "\\ud800"}', channel="open", user="\udcff")
    assert result.output.startswith(
        '\\udcff on open: mixed with {"either": 5, "anything": "\\ud800"'
    )
    assert (result.exit_code, result.exception) == (0, None)


@pytest.mark.parametrize(
    ("args", "options", "words"),
    [
        (["find_leter"], {}, "Unknown tool 'find_leter'. Available: "),
        (
            ["find_letter"],
            {"channel": "dusk"},
            "no channel 'dusk'; did you mean 'desk'? known: desk, open, strict",
        ),
        (
            ["find_letter", "5"],
            {},
            "'5' is not an argument: write name=value, or one JSON object in quotes",
        ),
        (["find_letter", "number=1", "number=2"], {}, "number is given twice: keep one of them"),
        (["find_letter", "{number"], {}, "'{number' is not a JSON object"),
        (
            ["find_letter", '{"number": ' + "[" * 5000 + "]" * 5000 + "}"],
            {},
            "are nested too deeply to be read",
        ),
        ([], {}, "Missing argument 'TOOL'"),
    ],
)
def test_wrong_usage_has_its_own_exit_code(ask, args, options, words):
    """It is 2, with the cure, so that a script does not take a misspelling for a denial."""
    result = ask(*args, **options)
    assert words in result.output
    assert result.exit_code == 2


def test_id_that_no_person_can_have_is_refused(ask, folder, monkeypatch):
    """The answer would hold for a person who does not exist."""
    monkeypatch.setenv("TOKEN", "1:abc")
    channel = "  tg: {platform: telegram, token: '${TOKEN}', polling: true}\n"
    (folder / "sayso.yaml").write_text(YAML + channel)
    result = ask("find_letter", channel="tg", user="@ana")
    assert "'@ana' is not an id of Telegram: write the number that /whoami prints" in result.output
    assert result.exit_code == 2


def test_invalid_configuration_is_reported(ask, folder):
    """The report is that of `sayso check`."""
    (folder / "sayso.yaml").write_text("channels: {}\n")
    result = ask("find_letter")
    assert (result.exit_code, "channels: is empty: add one" in result.output) == (3, True)


def test_answer_is_available_as_json(ask, folder):
    """It has decision, rule and place."""
    answer = json.loads(ask("--json", "send_letter", "to=a@external.com", "pages=[]").output)
    assert answer["verdict"] == "never"
    assert answer["decision"]["rule"] == {
        "kind": "deny_when",
        "index": 0,
        "pattern": "*@external.com",
    }
    assert answer["decided_by"]["where"] == f"{folder}/sayso.yaml:15:11"
    assert answer["arguments"] == {"to": "a@external.com", "pages": [], "urgent": False}
    assert answer["question"] is None


def test_failing_preview_is_reported(ask, folder):
    """Then no question would be asked, and nothing would run."""
    (folder / "tools.py").write_text(TOOLS.replace('name == "nobody"', "1 / 0"))
    result = ask("close_account", "name=x")
    assert (
        "cannot preview 'close_account' (ZeroDivisionError): nothing was asked: division by zero"
        in result.output
    )
    assert result.exit_code == 1
