"""Fake bots: a bot with one channel of each platform, connected to the fake platforms."""

from __future__ import annotations

from pathlib import Path

from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.twilio import SENDER

PUBLIC_URL = "https://bots.example.com"
ENVIRON = {**fakes.ENVIRON, "CONSOLE_PASSWORD": "open sesame"}

_YAML = """
public_url: {public_url}
channels:
  wa: {{platform: whatsapp, account_sid: {sid}, auth_token: "${{TWILIO_AUTH_TOKEN}}", from: "{sender}"{wa}}}
  tg: {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", secret_token: "${{TELEGRAM_SECRET}}", username: acme_bot{tg}}}
  sl: {{platform: slack, bot_token: "${{SLACK_BOT_TOKEN}}", signing_secret: "${{SLACK_SIGNING_SECRET}}"{sl}}}
  web: {{platform: console, password: "${{CONSOLE_PASSWORD}}"}}
"""


def written(
    folder: Path,
    platforms: FakePlatforms | None,
    public_url: str = PUBLIC_URL,
    sender: str = SENDER,
    whatsapp: str = "",
    telegram: str = "",
) -> Path:
    """Write the configuration of four channels and return its path; without fakes it names the real platforms."""
    urls = {
        name: f", api_url: {url}" if url else ""
        for name, url in (
            ("wa", platforms and platforms.twilio_url),
            ("tg", platforms and platforms.telegram_url),
            ("sl", platforms and platforms.slack_url),
        )
    }
    urls["wa"] += whatsapp
    urls["tg"] += telegram
    file = folder / "sayso.yaml"
    file.write_text(
        _YAML.format(public_url=public_url, sid=fakes.TWILIO_ACCOUNT_SID, sender=sender, **urls)
    )
    return file
