"""Models in processes: a terminal talks to a vendor's model, and a worker has it loaded before its first turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.providers.api import KEY
from tests.agent.providers.conftest import Server, process, server
from tests.config.processes import sayso

__all__ = ["process", "server"]

ROOT = Path(__file__).parents[3]
#: All that a worker does before its first turn, one call of its model, and the close at its exit.
WORKER = """
import asyncio, json, sys
from pathlib import Path
from sayso.ops.cli import main as cli
from sayso.config.wiring import rq_entry
from sayso.workers.rq import process
from sayso.infra.threads import LoopThread

def ask(parts, _):
    ready, loop = set(sys.modules), LoopThread()
    services = next(iter(rq_entry._processes.values())).services
    agent = services.processor.turns.agents["web"].agent
    said = loop.run(agent.arun("hello", scope="ana")).content
    added = sorted(set(sys.modules) - ready)
    open_before = len(agent.provider._clients)
    loop.run(parts.close_models())
    print(json.dumps([said, added, open_before, len(agent.provider._clients)]))

process.run_worker = ask
cli.main(["worker", "--config", sys.argv[1], "--data", sys.argv[2]], standalone_mode=False)
"""


@pytest.fixture
def file(tmp_path: Path, server: Server) -> Path:
    """Return a configuration whose model is the fake server's."""
    path = tmp_path / "sayso.yaml"
    agent = f"{{model: openai:gpt-4o-mini, api_key: '${{KEY}}', base_url: '{server.url}/v1', memory: {{knowledge: true}}}}"
    path.write_text(
        f"agent: {agent}\ntools: [sayso.examples.invoices]\nchannels: {{web: {{platform: console}}}}\n"
    )
    return path


def test_terminal_asks_before_it_runs_a_destructive_call(file: Path, server: Server) -> None:
    """No other process runs, and the remembered facts are there the next time."""
    server.script(
        {"calls": [{"name": "delete_invoice", "arguments": {"invoice_id": "INV-42"}, "id": "a"}]},
        {"text": "Anything else?"},
        {"calls": [{"name": "remember", "arguments": {"content": "The user is Ana"}, "id": "b"}]},
        {"text": "Hello Ana."}, {"text": "You are Ana."},
    )  # fmt: skip
    data = file.parent / "data"
    code, said, errors = sayso(
        "chat", "--config", file, "--data", data, stdin="delete 42\nyes\nI am Ana\n", KEY=KEY
    )
    assert (code, errors) == (0, "")
    assert said.index("Invoice INV-42 is deleted.") < said.index("Anything else?")
    assert "Hello Ana." in said
    again = sayso("chat", "--config", file, "--data", data, stdin="Who am I?\n", KEY=KEY)[1]
    assert "You are Ana." in again
    assert "The user is Ana" in server.bodies[4]["messages"][0]["content"]


def test_a_worker_loads_its_vendor_before_its_first_turn_and_leaves_no_connection(
    file: Path, server: Server, redis_url: str
) -> None:
    """The first person waits only for the model."""
    server.script({"text": "Hi."})
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(file), str(file.parent / "data")],
        check=True, capture_output=True, text=True, timeout=100, cwd=ROOT,
        env={**os.environ, "REDIS_URL": redis_url, "KEY": KEY},
    )  # fmt: skip
    said, added, before, after = json.loads(done.stdout)
    assert (said, before, after) == ("Hi.", 1, 0)
    assert not {name.partition(".")[0] for name in added} & {
        "openai",
        "pydantic_ai",
        "genai_prices",
    }, "\n".join(added)
