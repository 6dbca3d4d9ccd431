"""Secrets from the environment and from files stay out of every output."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from dataclasses import asdict
from pathlib import Path

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.channels.setup import CheckResult
from sayso.config.wiring.observability import EventFormatter
from sayso.infra.redaction import REDACTED, Redactor, remember, secrets_of
from sayso.infra.terminal import one_line
from tests.config.processes import sayso

KEY, FILED = "sk-live-5Ya/pq+2==", "hunter2-of-a-file"
CONFIG = """
agent: {model: offline}
tools: [./orders.py]
channels:
  web: {platform: console, password: "${file:password.txt}"}
"""
TOOLS = f"""
import base64, os, warnings
from sayso.agent import NotFound, tool
from sayso.agent.tools.errors import ToolError

KEY = os.environ["SHOP_API_KEY"]

class Connection:
    def __del__(self):
        raise RuntimeError("not closed: " + KEY)

@tool(description="List orders")
def list_orders() -> str:
    warnings.warn("old key " + KEY)
    Connection()
    raise RuntimeError("401 for " + KEY + " and {FILED}")

@tool(description="List parcels")
def list_parcels() -> str:
    raise ToolError({{"refused": KEY}})

@tool(description="List invoices")
def list_invoices() -> str:
    raise RuntimeError("refused Basic " + base64.b64encode(b"shop:" + KEY.encode()).decode())

@tool(description="Wipe accounts", requires_approval=True, preview="Wipe the accounts")
def wipe_accounts() -> NotFound:
    return NotFound(entity="account", query=KEY)
"""
#: The person's messages.
SAID = ["list orders", "list parcels", "list invoices", "wipe accounts", "yes"]


def test_secret_in_a_tool_error_reaches_no_output(tmp_path: Path):
    """The person, the model and the log see no environment key and no secret file's text, in any error or warning."""
    (tmp_path / "sayso.yaml").write_text(CONFIG)
    (tmp_path / "orders.py").write_text(TOOLS)
    (tmp_path / "password.txt").write_text(FILED + "\n")
    config, data = tmp_path / "sayso.yaml", tmp_path / "data"
    code, out, err = sayso(
        "chat",
        "--config",
        config,
        "--data",
        data,
        stdin="\n".join(SAID),
        SHOP_API_KEY=KEY,
        SAYSO_SECRET_KEYS="x" * 32,
    )
    told = out + err
    begins = [KEY[:12], b64encode(b"shop:" + KEY.encode()).decode()[10:20]]
    assert (code, [each for each in begins if each in told], FILED in told) == (0, [], False), told
    assert (out.count(REDACTED), err.count(REDACTED) >= 3) == (5, True), told


def test_logs_and_traces_hold_no_secret():
    """The redactor covers a log line with its traceback, the steps of a trace, and its spans."""
    remember([KEY])

    @tool(description="Fails")
    def fails() -> str:
        raise RuntimeError(f"refused: {KEY}")

    result = Agent(
        [fails], ScriptedProvider([ToolCall("fails", {}, "c1"), "sorry"]), AgentConfig()
    ).run("go")
    assert result.trace
    shown = json.dumps(
        [result.trace.to_dict(), result.trace.to_otel_spans(include_content=True)], default=str
    )
    try:
        raise ValueError(KEY)
    except ValueError as exc:
        record = logging.LogRecord(
            "x", logging.ERROR, "", 0, "it.failed", None, (type(exc), exc, exc.__traceback__)
        )
    record.url = f"https://shop.example/{KEY}"
    line = EventFormatter().format(record)
    assert (KEY in shown, KEY in line, line.count(REDACTED)) == (False, False, 2)
    assert "refused" in shown


@pytest.mark.parametrize(
    "spelled",
    [
        KEY,
        json.dumps({"key": KEY}),
        "sk-live-5Ya%2Fpq%2B2%3D%3D",
        repr([KEY]),
        *(
            b64encode(before + KEY.encode() + b":x").decode()
            for before in (b"", b"a", b"ab", b"abc")
        ),
    ],
)
def test_secret_is_redacted_in_every_encoding(spelled: str):
    """The redactor finds it in a URL, in JSON, in a repr and in the header of a Basic login."""
    redactor = Redactor()
    redactor.remember([KEY])
    assert REDACTED in (redacted := redactor.redact(spelled))
    assert len(redacted) <= len(REDACTED) + 16


def test_findings_and_rows_of_commands_hold_no_secret():
    """`sayso doctor` and `sayso deliveries` print a platform's error text, which may repeat the request."""
    remember([KEY])
    finding = CheckResult("token", "fail", f"Slack says: refused Bearer {KEY}", "copy it again")
    assert KEY not in f"{finding} {asdict(finding)} {one_line(f'refused {KEY}', 500)}"


def test_only_a_secret_name_makes_a_value_secret():
    """Paths, switches and short words stay readable; a password inside a URL does not."""
    environ = {
        "HOME": "/home/ana",
        "PWD": "/srv/bot",
        "SSL_KEY_FILE": "/etc/ssl/key.pem",
        "KEYBOARD": "querty",
        "GREETING": "hello there",
        "STRIPE_API_KEY": KEY,
        "PGPASSWORD": "postgres-secret",
        "SMTP_PASS": "smtp-secret",
        "OLDPWD": "/srv/other",
        "REDIS_URL": "redis://:open-sesame@db:6379/0",
        "SAYSO_SECRET_KEYS": "first-key,second-key",
    }
    found = set(secrets_of(environ))
    assert found == {
        KEY,
        "postgres-secret",
        "smtp-secret",
        "open-sesame",
        "first-key,second-key",
        "first-key",
        "second-key",
    }


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://bot:open-sesame@s1,[::1]:5000,s3/shop/2",
        "redis+cluster://:open-sesame@[::1]:5000,[::2]:5000",
        "redis://:open-sesame@[::1:6379/0",
        "redis://:open-sesame@host:port/0",
    ],
)
def test_password_of_a_url_is_secret_however_its_hosts_are_written(url: str):
    """Newer versions of Python refuse to parse the first two, and all refuse the third."""
    assert secrets_of({"SAYSO_REDIS": url}) == ["open-sesame"]


def test_tokens_of_workspaces_are_redacted_by_their_form():
    """They come and go while the process runs, so that it cannot remember each."""
    text = "a xoxb-1-2-abcDEF99, b xoxe.xoxb-1-Mi0yLTk5, c xoxe-1-My0xLTk5 in foxox-box"
    assert Redactor().redact(text) == f"a {REDACTED}, b {REDACTED}, c {REDACTED} in foxox-box"
