"""README: what it shows is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from config.loader import load_settings
from config.schema import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SECRETS = {
    "TWILIO_ACCOUNT_SID": "AC0",
    "TWILIO_AUTH_TOKEN": "t",
    "TELEGRAM_TOKEN": "1:a",
    "TELEGRAM_SECRET": "s",
    "SLACK_BOT_TOKEN": "xoxb-1",
    "SLACK_SIGNING_SECRET": "s",
}


def block(language: str, number: int = 0) -> str:
    """A fenced block of the README."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)[number]


def test_the_tool_of_the_readme_asks_before_it_acts(tmp_path: Path) -> None:
    """The two files of the README, saved and talked to in the terminal: preview, yes, effect, file."""
    (tmp_path / "fruit.py").write_text(block("python"))
    (tmp_path / "fruit.yaml").write_text(block("yaml"))
    options = ["--config", str(tmp_path / "fruit.yaml"), "--data", str(tmp_path)]
    command = [sys.executable, "-m", "config.cli", "chat", *options]
    said = "/discard_fruit fruit=apple\nyes\nstock list\n"
    answers = subprocess.run(command, input=said, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert "Throw away every apple" in answers
    assert "3 thrown away." in answers
    assert (tmp_path / "chat" / "stock.csv").read_text() == "pear,5\n"


def test_the_configuration_of_the_readme_is_valid(tmp_path: Path) -> None:
    """All four platforms, as shown."""
    file = tmp_path / "sayso.yaml"
    file.write_text(block("yaml", 1))
    settings = load_settings(file, SECRETS)
    assert [channel.platform for channel in settings.channels.values()] == ["whatsapp", "telegram", "slack", "console"]


def test_every_setting_has_a_line_in_the_docs() -> None:
    """docs/configuration.md names each key of the schema."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    schema = Settings.model_json_schema(by_alias=True)
    keys = {key for part in (schema, *schema["$defs"].values()) for key in part.get("properties", {})}
    assert [key for key in sorted(keys) if key not in text] == []


def test_every_redis_key_has_a_line_in_the_docs() -> None:
    """docs/redis.md names each kind of key that the scripts build."""
    text = (ROOT / "docs" / "redis.md").read_text()
    scripts = [path.read_text() for path in [*ROOT.glob("workers/lua/*.lua"), *ROOT.glob("pending/lua/*.lua")]]
    kinds = {kind for script in scripts for kind in re.findall(r"shard \.\. ':([a-z]+)", script)}
    assert kinds, "the scripts build no key?"
    assert [kind for kind in sorted(kinds) if f"{{N}}:{kind}" not in text] == []
