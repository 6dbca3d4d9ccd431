"""README: what it shows is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from sayso.config.cli.main import main
from sayso.config.settings.loader import load_settings
from sayso.config.settings.schema import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SECRETS = {
    "TWILIO_ACCOUNT_SID": "AC0",
    "TWILIO_AUTH_TOKEN": "t",
    "TELEGRAM_TOKEN": "1:a",
    "TELEGRAM_SECRET": "s",
    "SLACK_BOT_TOKEN": "xoxb-1",
    "SLACK_SIGNING_SECRET": "s",
    "CONSOLE_PASSWORD": "p",
}


def block(language: str, number: int = 0) -> str:
    """A fenced block of the README."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)[number]


def headings(page: str) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_the_tool_of_the_readme_asks_before_it_acts(tmp_path: Path) -> None:
    """The two files of the README, saved and talked to in the terminal: preview, yes, effect, file."""
    (tmp_path / "fruit.py").write_text(block("python"))
    (tmp_path / "fruit.yaml").write_text(block("yaml"))
    options = ["--config", str(tmp_path / "fruit.yaml"), "--data", str(tmp_path)]
    command = [sys.executable, "-m", "sayso", "chat", *options]
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


def test_the_bot_of_the_laptop_needs_a_token_and_nothing_else(tmp_path: Path) -> None:
    """platforms.md 2.5: no public URL, no secret: it asks for its updates."""
    file = tmp_path / "laptop.yaml"
    file.write_text(block("yaml", 2))
    settings = load_settings(file, {"TELEGRAM_TOKEN": "1:a"})
    assert [channel.polls for channel in settings.channels.values()] == [True]


def test_every_command_has_a_line_in_the_readme() -> None:
    """And each of its parts, where it has several."""
    rows = [row.split("|")[1] for row in README.splitlines() if row.startswith("| `sayso ")]
    for name, command in main.commands.items():
        [row] = [row for row in rows if re.search(rf"`sayso {name}\b", row)]
        assert [part for part in getattr(command, "commands", {}) if part not in row] == []


def test_every_page_is_named_in_the_readme() -> None:
    """Nobody finds a page that no other leads to."""
    pages = sorted(page.name for page in (ROOT / "docs").glob("*.md"))
    assert [page for page in pages if f"(docs/{page})" not in README] == []


def test_links_between_pages_lead_somewhere() -> None:
    """To a page that there is, and to a heading of it where one is named."""
    pages = {path: path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
    for path, text in pages.items():
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            page = (path.parent / target).resolve() if target else path
            assert page.exists(), (path.name, target)
            assert not anchor or anchor in headings(page.read_text()), (path.name, target, anchor)


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
