"""Secrets of the environment and of files: what nobody reads, wherever they turn up."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from channels.redaction import REDACTED, Redactor, remember, secrets_of
from config.logs import EventFormatter
from tests.config.processes import sayso

KEY, FILED = "sk-live-5Ya/pq+2==", "hunter2-of-a-file"
CONFIG = """
agent: {model: offline}
tools: [./orders.py]
channels:
  web: {platform: console, password: "${file:password.txt}"}
"""
TOOLS = f"""
import os
from agent import tool

@tool(description="List orders")
def list_orders() -> str:
    raise RuntimeError("401 for " + os.environ["SHOP_API_KEY"] + " and {FILED}")
"""


def test_a_tool_that_fails_with_a_secret_in_its_words_tells_nobody(tmp_path: Path):
    """Neither the person, nor the model, nor the log reads a key of the environment or the text of a secret file."""
    (tmp_path / "sayso.yaml").write_text(CONFIG)
    (tmp_path / "orders.py").write_text(TOOLS)
    (tmp_path / "password.txt").write_text(FILED + "\n")
    config, data = tmp_path / "sayso.yaml", tmp_path / "data"
    code, out, err = sayso(
        "chat", "--config", config, "--data", data, stdin="list orders\n", SHOP_API_KEY=KEY, SAYSO_SECRET_KEYS="x" * 32
    )
    assert (code, KEY in out + err, FILED in out + err, REDACTED in out) == (0, False, False, True), out + err


def test_logs_and_traces_hold_no_secret():
    """A line with its traceback, the steps of a trace, and its spans."""
    remember([KEY])

    @tool(description="Fails")
    def fails() -> str:
        raise RuntimeError(f"refused: {KEY}")

    result = Agent([fails], ScriptedProvider([ToolCall("fails", {}, "c1"), "sorry"]), AgentConfig()).run("go")
    assert result.trace
    shown = json.dumps([result.trace.to_dict(), result.trace.to_otel_spans(include_content=True)], default=str)
    try:
        raise ValueError(KEY)
    except ValueError as exc:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "it.failed", None, (type(exc), exc, exc.__traceback__))
    record.url = f"https://shop.example/{KEY}"
    line = EventFormatter().format(record)
    assert (KEY in shown, KEY in line, line.count(REDACTED)) == (False, False, 2)
    assert "refused" in shown


@pytest.mark.parametrize("spelled", [KEY, json.dumps({"key": KEY}), "sk-live-5Ya%2Fpq%2B2%3D%3D", repr([KEY])])
def test_a_secret_is_found_however_it_is_spelled(spelled: str):
    """In a URL, in JSON and in a repr."""
    redactor = Redactor()
    redactor.remember([KEY])
    assert (REDACTED in redactor.redact(spelled), "5Ya" in redactor.redact(spelled)) == (True, False)


def test_only_names_of_secrets_make_a_value_one():
    """Paths, switches and short words stay readable; a password inside of a URL does not."""
    environ = {
        "HOME": "/home/ana",
        "PWD": "/srv/bot",
        "SSL_KEY_FILE": "/etc/ssl/key.pem",
        "KEYBOARD": "querty",
        "GREETING": "hello there",
        "STRIPE_API_KEY": KEY,
        "REDIS_URL": "redis://:open-sesame@db:6379/0",
        "SAYSO_SECRET_KEYS": "first-key,second-key",
    }
    found = set(secrets_of(environ))
    assert found == {KEY, "open-sesame", "first-key,second-key", "first-key", "second-key"}
