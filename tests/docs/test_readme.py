"""README: what it shows is run."""

from __future__ import annotations

import re
from pathlib import Path

from sayso.config.settings.loader import load_settings
from tests.config.processes import sayso
from tests.docs.pages import part
from tests.workers.documented_keys import documented_keys

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PLATFORMS = part("connect-a-platform.md")
SECRETS = {
    "TWILIO_ACCOUNT_SID": "AC0",
    "TWILIO_AUTH_TOKEN": "t",
    "TELEGRAM_TOKEN": "1:a",
    "TELEGRAM_SECRET": "s",
    "SLACK_BOT_TOKEN": "xoxb-1",
    "SLACK_SIGNING_SECRET": "s",
    "CONSOLE_PASSWORD": "p",
}


def block(language: str, number: int = 0, *, page: str = README) -> str:
    """Return a fenced block of a page."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)[number]


def headings(page: str) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_the_tool_of_the_readme_asks_before_it_acts(tmp_path: Path) -> None:
    """The two files of the README, saved and talked to in the terminal: preview, yes, effect."""
    (tmp_path / "fruit.py").write_text(block("python"))
    (tmp_path / "sayso.yaml").write_text(block("yaml"))
    typed = "/discard_fruit fruit=fig\n/discard_fruit fruit=apple\nyes\ncount fruit\n"
    code, answers, errors = sayso(
        "chat", "--data", tmp_path / "data", stdin=typed, cwd=tmp_path, SAYSO_CONFIG=""
    )
    assert code == 0, errors
    assert 'I found no fruit for "fig".' in answers
    assert "Throw away 3 apples" in answers
    assert "3 thrown away." in answers
    assert "5 pears" in answers


def test_the_configuration_of_all_platforms_is_valid(tmp_path: Path) -> None:
    """As the page about platforms shows it."""
    file = tmp_path / "sayso.yaml"
    file.write_text(block("yaml", page=PLATFORMS))
    settings = load_settings(file, SECRETS)
    assert [channel.platform for channel in settings.channels.values()] == [
        "whatsapp",
        "telegram",
        "slack",
        "console",
    ]


def test_the_bot_of_the_laptop_needs_a_token_and_nothing_else(tmp_path: Path) -> None:
    """platforms.md 2.5: no public URL, no secret: it asks for its updates."""
    file = tmp_path / "laptop.yaml"
    file.write_text(block("yaml", 1, page=PLATFORMS))
    settings = load_settings(file, {"TELEGRAM_TOKEN": "1:a"})
    assert [channel.polls for channel in settings.channels.values()] == [True]


def test_links_between_pages_lead_somewhere() -> None:
    """To a page that there is, and to a heading of it where one is named."""
    pages = {
        path: path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    }
    for path, text in pages.items():
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            page = (path.parent / target).resolve() if target else path
            assert page.exists(), (path, target)
            assert not anchor or anchor in headings(page.read_text()), (path, target, anchor)


def test_every_redis_key_has_a_line_in_the_docs() -> None:
    """docs/reference/redis.md names each kind of key that the scripts build."""
    text = (ROOT / "docs" / "reference" / "redis.md").read_text()
    scripts = [
        path.read_text()
        for path in [*ROOT.glob("workers/lua/**/*.lua"), *ROOT.glob("pending/lua/**/*.lua")]
    ]
    kinds = {kind for script in scripts for kind in re.findall(r"shard \.\. ':([a-z_]+)", script)}
    assert "open_action" in kinds
    assert [kind for kind in sorted(kinds) if not re.search(rf"}}:{kind}[:`]", text)] == []


def test_privacy_page_names_the_keys_as_they_are() -> None:
    """Each key in its table of what is kept has a line in docs/reference/redis.md."""
    page = (ROOT / "docs" / "how-to" / "audit-and-privacy.md").read_text()
    places = re.findall(r"\| Redis, ([^|]+) \|", page)
    kinds = {kind for place in places for kind in re.findall(r"`(\w+)`", place)}
    assert "history" in kinds
    documented = {kind for key, _ in documented_keys() for kind in re.split(r"[^a-z_]+", key)}
    assert sorted(kinds - documented) == []


def test_words_that_people_search_for_are_there() -> None:
    """In the README, in the documentation and in the metadata of the package."""
    words = [
        "human in the loop",
        "approval",
        "tool calling",
        "WhatsApp bot",
        "Telegram bot",
        "Slack bot",
    ]
    words += ["webhook", "idempotency", "dead letter", "backoff"]
    docs = " ".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    for text in (README, docs, (ROOT / "pyproject.toml").read_text()):
        assert [word for word in words if word.lower() not in " ".join(text.lower().split())] == []
