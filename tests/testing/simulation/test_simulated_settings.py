"""The configuration that `sayso simulate` makes of a bot's own."""

from __future__ import annotations

from pathlib import Path

from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.simulation.processes import simulated_settings
from sayso.testing.simulation.profile import Profile

TUTORIAL_BOT = """
channels:
  web: {platform: console}
  telegram:
    platform: telegram
    token: ${TELEGRAM_TOKEN}
    polling: true
    policy: {allow: [list_*], review: [delete_*]}
    access: {pairing: true}
"""


def test_bot_that_polls_and_knows_its_people_answers_the_simulated_ones(tmp_path: Path):
    """They are strangers who send webhooks. The policy stays, and the console is left out."""
    config = tmp_path / "sayso.yaml"
    config.write_text(TUTORIAL_BOT)
    with FakePlatforms() as platforms:
        settings = simulated_settings(Profile(config=config), platforms, "http://127.0.0.1:1")
    assert list(settings["channels"]) == ["telegram"]
    telegram = settings["channels"]["telegram"]
    assert telegram["polling"] is False
    assert "access" not in telegram
    assert telegram["policy"] == {"allow": ["list_*"], "review": ["delete_*"]}
