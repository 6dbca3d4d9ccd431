"""Extras: each one alone, installed with the wheel into an environment of its own, does what it is for.

The tests' own environment has the libraries of all extras, which hides a module that needs another extra's library.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sayso.agent.toolbox import FAMILIES
from sayso.config.settings.loader import DEMO
from tests.agent.providers.api import KEY
from tests.agent.providers.conftest import Server, process, server
from tests.config.environments import ExtraEnvironment
from tests.config.processes import free_port
from tests.s3 import BUCKET, S3Server

__all__ = ["process", "server"]

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
Install = Callable[[str], ExtraEnvironment]
#: An agent for each vendor's API: the extra, the agent's model, and its path on the server of the fake APIs.
MODELS = [
    ("llm", "openai:gpt-4o-mini", "/v1"),
    ("llm", "openai-responses:gpt-4o-mini", "/v1"),
    ("llm", "ollama:llama3.2", "/local/v1"),
    ("anthropic", "anthropic:claude-haiku-4-5", ""),
    ("google", "gemini:gemini-2.5-flash", ""),
]
#: A bot with every feature that needs an extra.
EVERYTHING = f"""
agent:
  model: openai:gpt-4o-mini
  fallback: [{{model: anthropic:m}}, {{model: gemini:m}}]
  observe: {{otel: true}}
tools:
  - mcp: {{command: [python, server.py]}}
  - toolbox: {sorted({*FAMILIES} - {"files"})}
media: {{store: s3://files}}
channels:
  web: {{platform: console}}
  desk: {{platform: slack, client_id: '${{KEY}}', client_secret: '${{KEY}}', signing_secret: '${{KEY}}'}}
"""
#: The module that is missing without any extra, the extra that brings it, and the line of EVERYTHING that needs it.
MISSING = [
    ("pydantic_ai", "llm", "2:3: agent.model"),
    ("pydantic_ai", "anthropic", "3:14: agent.fallback.0"),
    ("pydantic_ai", "google", "3:36: agent.fallback.1"),
    ("opentelemetry", "otel", "4:13: agent.observe.otel"),
    ("mcp", "mcp", "6:5: tools"),
    ("matplotlib", "toolbox", "7:5: tools"),
    ("obstore", "s3", "8:9: media.store"),
    ("cryptography", "slack-install", "11:3: channels.desk"),
]
TOKENS = """
from sayso.channels.slack.installations import Installation, TokenCipher

cipher = TokenCipher("desk", ["key"])
print(cipher.decrypt("T01", cipher.encrypt(Installation("T01", "the token"))).token)
"""
RECEIPTS = """
from sayso.pending.audit.receipt_check import check_receipt
from sayso.pending.audit.receipt_keys import ReceiptSigner
from sayso.ops.cli.main import main

main(["audit", "public-key"])
"""
COMMANDS = """
from sayso.ops.cli.main import main

for name in main.list_commands(None):
    main.get_command(None, name)
"""
STORE = """
import sys
from pathlib import Path
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.stores import open_bucket

objects = open_bucket(load_settings(Path("bot.yaml"), {})).objects("texts")
objects.put("ab/note.txt", b"kept")
print(objects.open("ab/note.txt").read().decode())
"""
TOOLS = """
from pathlib import Path
from sayso.agent import Agent
from sayso.agent.toolbox import FAMILIES, open_toolbox

tools = {tool.name: tool for tool in open_toolbox(FAMILIES, folder=Path("."))}
series = [{"name": "n", "values": [1, 2]}]
print(tools["draw_chart"].execute({"kind": "bar", "labels": ["a", "b"], "series": series, "title": "T"}))
print(tools["make_pdf"].execute({"title": "Report", "text": "All is well."}))
print(tools["query_json"].execute({"json_text": '{"a": [7]}', "expression": "a[0]"}))
print(tools["convert_units"].execute({"amount": 1, "from_unit": "mile", "to_unit": "km"}))
print(tools["convert_time_zone"].execute({"time": "2026-01-02T03:04", "to_zone": "Asia/Tokyo", "from_zone": "UTC"}))
"""


@pytest.fixture(scope="module")
def install(built: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Return a function that installs the wheel with an extra, each once."""
    return cache(
        lambda extra: ExtraEnvironment(
            tmp_path_factory.mktemp(f"extra-{extra}"), built["wheel"], extra
        )
    )


def write_bot(installed: ExtraEnvironment, text: str) -> None:
    """Write the configuration of a bot with one console channel."""
    (installed.home / "bot.yaml").write_text(f"{text}\nchannels: {{web: {{platform: console}}}}\n")


@pytest.mark.parametrize(("extra", "model", "path"), MODELS)
def test_model_answers_with_its_extra_alone(
    install: Install, server: Server, extra: str, model: str, path: str
):
    """Its library needs none of another vendor."""
    installed = install(extra)
    write_bot(
        installed,
        f"agent: {{model: '{model}', base_url: '{server.url}{path}', api_key: '${{KEY}}'}}",
    )
    server.script({"text": "Hello from the model."})
    assert installed.run("sayso", "check", "-c", "bot.yaml", KEY=KEY)[0] == 0
    code, said = installed.run("sayso", "chat", "-c", "bot.yaml", said="hello\n", KEY=KEY)
    assert (code, "Hello from the model." in said) == (0, True), said


def test_missing_extras_are_named_with_their_lines(install: Install):
    """Both `check` and `doctor` name module, extra and command, before anybody writes to the bot."""
    installed = install("")
    (installed.home / "all.yaml").write_text(EVERYTHING.lstrip())
    code, checked = installed.run("sayso", "check", "-c", "all.yaml", KEY=KEY)
    assert code == 1
    _, examined = installed.run("sayso", "doctor", "-c", "all.yaml", "--data", "data", KEY=KEY)
    for module, extra, line in MISSING:
        says = f"all.yaml:{line}: the module '{module}' is missing, which the extra '{extra}' brings: pip install '"
        assert says in checked, checked
        assert says in examined, examined


def test_start_without_the_library_of_the_model_names_the_extra(install: Install):
    """The terminal and a worker refuse to start, so that no person reads that the model is away."""
    installed = install("llm")
    write_bot(installed, "agent: {model: 'gemini:gemini-2.5-flash'}")
    for command in ("chat", "worker"):
        environ = {"GEMINI_API_KEY": KEY, "REDIS_URL": "redis://127.0.0.1:9"}
        code, said = installed.run("sayso", command, "-c", "bot.yaml", said="hello\n", **environ)
        assert code != 0
        assert (
            "the module 'google.genai' is missing, which the extra 'google' brings: pip install '"
            in said
        )


def test_start_without_the_library_of_a_tool_names_the_extra(install: Install):
    """Terminal, worker and `up` refuse as `check` does, so that no other family vanishes without a word."""
    installed = install("")
    write_bot(installed, "tools: [{toolbox: [calculator, units]}]")
    for command in (["check"], ["chat"], ["worker"], ["up", "--port", str(free_port())]):
        code, said = installed.run(
            "sayso", *command, "-c", "bot.yaml", said="hello\n", REDIS_URL="redis://127.0.0.1:9"
        )
        assert code != 0
        assert "'pint'" in said or "'units' needs pint" in said
        assert "which the extra 'toolbox' brings: pip install '" in said


def test_damaged_library_is_reported_with_its_own_error(built: Mapping[str, Path], tmp_path: Path):
    """To install what is installed would change nothing."""
    installed = ExtraEnvironment(tmp_path / "damaged", built["wheel"], "llm")
    (library,) = installed.site.glob("openai/__init__.py")
    library.unlink()  # it is a link
    library.write_text("from httpx2 import gone\n")
    write_bot(installed, "agent: {model: 'openai:gpt-4o-mini'}")
    code, said = installed.run("sayso", "check", "-c", "bot.yaml", OPENAI_API_KEY=KEY)
    assert code == 1
    assert (
        "installed and cannot be imported (ImportError: cannot import name 'gone' from 'httpx2'"
        in said
    )
    assert "install it again: pip install --force-reinstall '" in said


def test_bare_wheel_runs_a_bot_and_every_command(install: Install):
    """Without any extra the offline model answers, and each command starts."""
    installed = install("")
    write_bot(installed, "tools: [sayso.examples.reminders, sayso.examples.invoices]")
    assert installed.run("sayso", "check", "-c", "bot.yaml")[0] == 0
    _, said = installed.run("sayso", "chat", "-c", "bot.yaml", said="/help\nsales chart\n")
    assert "/help" in said
    assert (
        "No chart can be drawn: the module 'matplotlib' is missing, which the extra 'toolbox' brings: "
        in said
    )
    assert "Traceback" not in said
    code, said = installed.run("sayso", "--help")
    commands = re.findall(r"^  ([a-z]+)  ", said.partition("Commands:")[2], re.MULTILINE)
    assert code == 0
    assert {"bench", "simulate", "worker"} <= {*commands}
    assert installed.run("python", "-c", COMMANDS) == (0, "")


def test_tokens_of_workspaces_are_encrypted_with_the_extra_slack_install(install: Install):
    """Nothing else is needed for an app that many workspaces install."""
    assert install("slack-install").run("python", "-c", TOKENS) == (0, "the token\n")


def test_public_key_of_receipts_is_printed_with_the_extra_receipts(install: Install):
    """Receipts need nothing else. Without the extra, the command names it."""
    code, said = install("receipts").run("python", "-c", RECEIPTS, SAYSO_SECRET_KEYS="key")
    assert (code, said.count("BEGIN PUBLIC KEY")) == (0, 1)
    code, said = install("").run("sayso", "audit", "public-key", SAYSO_SECRET_KEYS="key")
    assert code == 3
    assert "the extra 'receipts' brings: " in said


def test_tools_of_an_mcp_server_run_with_the_extra_mcp(install: Install):
    """The server is a program of the same environment."""
    installed = install("mcp")
    program = ROOT / "tests/agent/toolsets/tiny_mcp.py"
    write_bot(installed, f"tools: [{{mcp: {{command: ['{installed.python}', '{program}']}}}}]")
    code, said = installed.run("sayso", "check", "-c", "bot.yaml")
    assert (code, "echo: runs at once" in said) == (0, True)
    assert (
        "well heard"
        in installed.run("sayso", "chat", "-c", "bot.yaml", said="/echo well heard\n")[1]
    )


def test_spans_are_sent_with_the_extra_otel(install: Install):
    """They go to the collector of the environment."""
    installed = install("otel")
    write_bot(installed, "agent: {observe: {otel: true}}")
    with collector() as (url, received):
        said = installed.run(
            "sayso", "chat", "-c", "bot.yaml", said="hello\n", OTEL_EXPORTER_OTLP_ENDPOINT=url
        )
        assert said[0] == 0, said
    assert any(path == "/v1/traces" and b"invoke_agent" in body for path, body in received)


def test_bucket_keeps_files_with_the_extra_s3(install: Install, s3_server: S3Server):
    """Through the configuration of a bot."""
    installed = install("s3")
    write_bot(
        installed,
        f"media: {{store: 's3://{BUCKET}', endpoint: '{s3_server.endpoint}', region: us-east-1}}",
    )
    assert installed.run("python", "-c", STORE, **s3_server.environ()) == (0, "kept\n")
    assert installed.run("sayso", "check", "-c", "bot.yaml", **s3_server.environ())[0] == 0


def test_tools_of_the_toolbox_run_with_its_extra(install: Install):
    """Charts, documents, tables, units and dates."""
    installed = install("toolbox")
    write_bot(installed, f"tools: [{{toolbox: {[*FAMILIES]}, folder: .}}]")
    code, said = installed.run("sayso", "check", "-c", "bot.yaml")
    assert code == 0, said
    code, said = installed.run("python", "-c", TOOLS)
    assert code == 0, said
    assert [word for word in ("7", "1.609344", "12:04") if word not in said] == []


def test_demo_runs_with_the_extra_examples(install: Install):
    """Its chart is a file of a tool."""
    installed = install("examples")
    said = installed.run("sayso", "chat", "-c", str(DEMO), "--data", "data", said="sales chart\n")
    assert said[0] == 0, said
    assert ".png" in said[1]


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Yield the URL of an OTLP collector, and the paths and bodies that it has received."""
    received: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_port}", received
        web.shutdown()
