"""The command `sayso init`, which writes a new bot, ready to run."""

from __future__ import annotations

from pathlib import Path

import click

from sayso.ops.cli.command import Options, SaysoCommand, fail, pass_options
from sayso.ops.cli.schema import SCHEMA, schema_text

_YAML = """\
# yaml-language-server: $schema=sayso.schema.json
# The configuration of this bot. `sayso check` reads it and prints what each channel may do.
# The page "Configuration" of the documentation has every key.

agent:
  # `offline` matches messages to tools by their words. It needs no account and no key, and is good for trying tools.
  model: offline
  # A real model (pip install 'sayso[llm]'):
  # model: openai:gpt-5-mini
  # api_key: ${OPENAI_API_KEY}      # secrets come from the environment, never from this file
  system_prompt: >-
    You keep a list of tasks. Use the tools; never invent a task.

tools:
  - ./tools.py                      # all functions with @tool in this file

channels:
  # A chat page in the browser: `sayso up` prints its address.
  web:
    platform: console
    title: Tasks
    suggestions: [list tasks, delete task milk]
    policy:
      allow: [list_*]               # runs at once
      review: [delete_*]            # the user must say yes first
      deny: []                      # never runs
    confirm_ttl: 60                 # seconds to answer the question

  # Telegram: get a token from @BotFather, export TELEGRAM_TOKEN, remove the #, and run `sayso up`.
  # telegram:
  #   platform: telegram
  #   token: ${TELEGRAM_TOKEN}
  #   polling: true
  #   policy: {allow: [list_*], review: [delete_*]}
"""

_TOOLS = '''\
"""The tools of the bot: functions that the model may call. Docstrings and type hints tell the model how."""

import json
from pathlib import Path

from sayso import NotFound, tool

FILE = Path(__file__).with_name("tasks.json")


@tool(read_only=True)
def list_tasks() -> str:
    """List all tasks."""
    return "\\n".join(f"- {task}" for task in load_tasks()) or "There are no tasks."


def preview_deletion(name: str) -> str | NotFound:
    """Return the question for the user. Without such a task nothing is asked."""
    if name not in load_tasks():
        return NotFound("task", name)
    return f"Delete the task {name}"


@tool(requires_approval=True, preview=preview_deletion)
def delete_task(name: str) -> str:
    """Delete a task."""
    FILE.write_text(json.dumps([task for task in load_tasks() if task != name]))
    return f"The task {name} is deleted."


def load_tasks() -> list[str]:
    """Return the stored tasks; two examples while nothing is stored."""
    if not FILE.exists():
        return ["milk", "taxes"]
    tasks: list[str] = json.loads(FILE.read_text())
    return tasks
'''

_TEST = '''\
"""Tests of the bot. Run them with `pytest`; they need no key: the answers of the model are scripted."""

from pathlib import Path

import pytest
import tools

from sayso import Agent, ChannelAgent, ScriptedProvider
from sayso.agent import ToolCall


@pytest.fixture(autouse=True)
def task_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tasks of each test in a separate folder."""
    monkeypatch.setattr(tools, "FILE", tmp_path / "tasks.json")


def bot(*answers: str | ToolCall) -> ChannelAgent:
    """Return a bot whose model gives these answers, one after the other."""
    return ChannelAgent(Agent([tools.list_tasks, tools.delete_task], ScriptedProvider(answers)))


def test_a_safe_tool_runs_at_once() -> None:
    """The model calls `list_tasks`, sees its result, and answers."""
    reply = bot(ToolCall("list_tasks"), "Milk and taxes.").ask_channel("ana", "what is left to do?")
    assert reply.content == "Milk and taxes."


def test_a_destructive_tool_waits_for_a_yes() -> None:
    """Nothing is deleted before the user says so."""
    chat = bot(ToolCall("delete_task", {"name": "milk"}))
    question = chat.ask_channel("ana", "delete the milk task")
    assert "Delete the task milk" in question.content
    assert tools.load_tasks() == ["milk", "taxes"]
    chat.ask_channel("ana", "yes")
    assert tools.load_tasks() == ["taxes"]


def test_a_missing_task_asks_nothing() -> None:
    """The preview refuses, and the model reads why."""
    chat = bot(ToolCall("delete_task", {"name": "bread"}), "There is no such task.")
    reply = chat.ask_channel("ana", "delete the bread task")
    assert reply.content == "There is no such task."


def test_a_no_keeps_the_task() -> None:
    """A no cancels the question."""
    chat = bot(ToolCall("delete_task", {"name": "milk"}))
    chat.ask_channel("ana", "delete the milk task")
    chat.ask_channel("ana", "no")
    assert tools.load_tasks() == ["milk", "taxes"]
'''

#: The files of a new bot and their content, besides the schema of the YAML.
FILES = {"sayso.yaml": _YAML, "tools.py": _TOOLS, "test_tools.py": _TEST}


@click.command(
    cls=SaysoCommand, examples=["sayso init", "sayso init mybot && cd mybot && sayso chat"]
)
@click.argument("folder", default=".", type=click.Path(path_type=Path, file_okay=False))
@pass_options
def init(options: Options, folder: Path) -> None:
    """Write a new bot to FOLDER: a configuration, a safe and a destructive tool, and their tests.

    The schema of the configuration comes with them, so that editors complete its keys. The bot runs
    without an account and without a key. Existing files are never changed.
    """
    contents = {**FILES, SCHEMA: schema_text()}
    existing = [name for name in contents if (folder / name).exists()]
    if existing:
        fail(f"{', '.join(str(folder / name) for name in existing)} exists: name an empty folder")

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as exc:
        fail(f"{folder} cannot be written: {exc.strerror}: name another folder")

    paths = [str(folder / name) for name in contents]
    lines = [f"Written: {', '.join(paths)}", "Next:"]
    if folder.resolve() != Path.cwd():
        lines.append(f"  cd {folder}")
    lines += [
        "  sayso check       what each channel may do",
        "  sayso chat        talk to the bot in this terminal: list tasks, delete task milk",
        "  sayso up          run it with a chat page in your browser",
        "  python -m pip install pytest && pytest     run its tests",
    ]
    options.print({"files": paths}, lines)
