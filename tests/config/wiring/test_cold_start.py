"""Cold start: a process loads the vendors' libraries of its own platforms, and nothing that only the web needs."""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: All that a worker does before its first turn, and then one message sent to a closed port.
WORKER = """
import asyncio, contextlib, json, sys
from pathlib import Path
from sayso.channels.base import SendError
from sayso.channels.types import Conversation, Delivery, Reply
from sayso.ops.cli import main as cli
from sayso.config.wiring import rq_entry
from sayso.workers.rq import process

def send(_, __):
    services = next(iter(rq_entry._processes.values())).services
    ready = set(sys.modules)
    with contextlib.suppress(SendError):
        asyncio.run(services.channels["bot"].send(Delivery("d", Conversation("bot", "1"), Reply("hello"))))
    print(json.dumps([sorted(ready), sorted(set(sys.modules) - ready)]))

process.run_worker = send
cli.main(["worker", "--config", sys.argv[1], "--data", sys.argv[2]], standalone_mode=False)
"""
WEB = """
import json, sys
from sayso.config.wiring.wsgi import app
app()
print(json.dumps([sorted(sys.modules), []]))
"""
PLATFORMS = {
    "console": "{platform: console}",
    "whatsapp": "{platform: whatsapp, account_sid: AC0123, auth_token: '${SECRET}', from: 'whatsapp:+1', api_url: 'http://127.0.0.1:9'}",
    "telegram": "{platform: telegram, token: '${SECRET}', secret_token: '${SECRET}', api_url: 'http://127.0.0.1:9'}",
    "slack": "{platform: slack, bot_token: '${SECRET}', signing_secret: '${SECRET}', api_url: 'http://127.0.0.1:9'}",
}
SDKS = {"twilio", "telegram", "slack_sdk", "slack_bolt"}
#: Packages that only the web, an example, a download or an adapter's own SDK needs.
FOREIGN = {"flask", "werkzeug", "jinja2", "waitress", "matplotlib", "httpx", "requests"}

#: Libraries of models and of tools from elsewhere.
MODELS = {"pydantic_ai", "openai", "anthropic", "google", "genai_prices", "mcp"}


@pytest.fixture
def loaded(tmp_path: Path, redis_url: str):
    """Return the modules that a new process has loaded when it is ready, and those that its first send adds."""

    def run(code: str, *platforms: str) -> tuple[set[str], set[str]]:
        file = (
            tmp_path / f"bot-{secrets.token_hex(4)}.yaml"
        )  # a name of its own: workers before it look alive
        names = ["bot", *platforms[1:]]
        channels = [
            f"  {name}: {PLATFORMS[platform]}\n"
            for name, platform in zip(names, platforms, strict=True)
        ]
        file.write_text(f"tools: [sayso.examples.invoices]\nchannels:\n{''.join(channels)}")
        places = {
            "REDIS_URL": redis_url,
            "SAYSO_CONFIG": str(file),
            "SAYSO_DATA": str(tmp_path / "data"),
        }
        done = subprocess.run(
            [sys.executable, "-c", code, str(file), str(tmp_path / "data")],
            check=True, capture_output=True, text=True, timeout=100, cwd=ROOT,
            env={**os.environ, **places, "SECRET": "s3cret"},
        )  # fmt: skip
        ready, added = json.loads(done.stdout)
        return set(ready), set(added)

    return run


def test_a_worker_with_a_console_only_loads_no_vendor_and_nothing_of_the_web(loaded):
    """The demo loads no platform, and a worker serves no pages."""
    ready, added = loaded(WORKER, "console")
    assert not ready & (SDKS | FOREIGN)
    assert not added & (SDKS | FOREIGN)
    assert not ready & {
        "sayso.channels.whatsapp.adapter",
        "sayso.channels.telegram.adapter",
        "sayso.channels.slack.adapter",
        "sayso.channels.web.app",
    }


@pytest.mark.parametrize(
    ("platform", "sdk"), [("whatsapp", "twilio"), ("telegram", "telegram"), ("slack", "slack_sdk")]
)
def test_a_worker_loads_its_own_platforms_library_before_its_first_turn(
    loaded, platform: str, sdk: str
):
    """It loads only its own, completely, since a later import would block every turn on the loop."""
    ready, added = loaded(WORKER, platform)
    assert ready & SDKS == {sdk}
    assert not [name for name in added if name.partition(".")[0] in SDKS]
    assert not ready & {"flask", "waitress", "matplotlib"}


def test_vendors_libraries_print_warnings_only_and_setting_up_logs_loads_none_of_them():
    """INFO lines of Telegram's library hold URLs with the bot's token."""
    code = (
        "import json, logging, sys\nfrom sayso.config.wiring.observability import set_up_logs\nset_up_logs()\n"
        "levels = {name: logging.getLogger(name).getEffectiveLevel() for name in sys.argv[1:]}\n"
        "print(json.dumps([levels, sorted(sys.modules)]))"
    )
    vendors = ["httpx", "slack_sdk.web", "telegram.Bot", "twilio.http_client"]
    done = subprocess.run(
        [sys.executable, "-c", code, *vendors],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
    )
    levels, modules = json.loads(done.stdout)
    assert levels == dict.fromkeys(vendors, logging.WARNING)
    assert not (SDKS | FOREIGN) & set(modules)


@pytest.mark.parametrize(
    "args", [["--help"], ["channel", "connect", "--help"], ["simulate", "--help"]]
)
def test_help_loads_nothing_that_a_bot_needs(args: list[str]):
    """A command imports its modules when it runs."""
    code = (
        "import json, sys\nfrom sayso.ops.cli.main import main\n"
        "main(sys.argv[1:], standalone_mode=False)\nprint(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not loaded & {
        "sayso.agent",
        "sayso.workers",
        "sayso.pending",
        "pydantic",
        "redis",
        "yaml",
    }


def test_a_web_process_starts_without_any_vendors_library(loaded):
    """It loads the code that verifies webhooks with the first webhook."""
    ready, _ = loaded(WEB, *PLATFORMS)
    assert {f"sayso.channels.{platform}.adapter" for platform in PLATFORMS} <= ready
    assert not ready & (SDKS | {"matplotlib", "httpx", "requests"})


#: Commands that an operator types often. None of them runs an agent or asks a platform.
SMALL_COMMANDS = [
    ["redis", "status"],
    ["deliveries", "list"],
    ["people", "list", "bot"],
    ["migrate"],
    ["trace", "SM404"],
    ["channel", "manifest", "desk"],
]


def test_small_commands_load_no_agent_and_no_library_of_the_web_a_model_or_a_platform(
    tmp_path: Path, redis_url: str
):
    """The agent alone takes as long as a whole command.

    They run in one process, one after the other: to start it takes longer than they do.
    """
    file = tmp_path / "bot.yaml"
    telegram = PLATFORMS["telegram"]
    slack = PLATFORMS["slack"]
    file.write_text(
        "public_url: https://bot.example.com\nagent: {model: 'openai:gpt-5-mini', api_key: '${SECRET}'}\n"
        "tools: [sayso.examples.invoices]\n"
        f"channels:\n  bot: {telegram[:-1]}, access: {{}}}}\n  desk: {slack}\n"
    )
    code = (
        "import json, sys\nfrom sayso.ops.cli.main import main\n"
        "for args in json.loads(sys.argv[1]):\n"
        "    try:\n        main([*args, *sys.argv[2:]])\n"
        "    except SystemExit as ended:\n        code = ended.code\n"
        "    print('ended', json.dumps([code, sorted(sys.modules)]))"
    )
    command = [sys.executable, "-c", code, json.dumps(SMALL_COMMANDS)]
    command += ["-c", str(file), "--data", str(tmp_path / "data")]
    environment = {**os.environ, "REDIS_URL": redis_url, "SECRET": "s3cret"}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=100, env=environment
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ended [")]
    heavy = SDKS | FOREIGN | MODELS | {"sayso.agent", "sayso.channels.markdown.parser"}
    for args, line in zip(SMALL_COMMANDS, lines, strict=True):
        code, loaded = json.loads(line.removeprefix("ended "))
        assert code != 2, f"{args}: {done.stderr}"  # it was used correctly, so it did its work
        assert "sayso.config.settings.loader" in loaded
        assert not heavy.intersection(loaded), args
