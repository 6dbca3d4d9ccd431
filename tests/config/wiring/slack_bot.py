"""A whole bot whose Slack app many workspaces install.

Web and worker in this process, over fakes and a real Redis.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from flask.testing import FlaskClient
from redis import Redis
from werkzeug.test import TestResponse

from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import Services, bootstrap
from sayso.config.wiring.wsgi import build_app
from sayso.pending.web_forms import WebForms
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms.slack import FakeSlack
from sayso.testing.platforms.slack_manifests import CREDENTIALS
from sayso.testing.platforms.webhooks import slack_event, slack_hook

PUBLIC_URL = "https://bots.example.com"
TOOLS = '''
from pathlib import Path

from sayso import tool


@tool(requires_approval=True, preview="Delete invoice {number}")
def delete_invoice(number: str) -> str:
    """Delete an invoice."""
    with (Path(__file__).parent / "deleted.txt").open("a") as file:
        file.write(f"{number}\\n")
    return f"deleted {number}"
'''
BOT = """
tools: [tools.py]
public_url: {url}
channels:
  desk:
    platform: slack
    client_id: ${{SLACK_CLIENT_ID}}
    client_secret: ${{SLACK_CLIENT_SECRET}}
    signing_secret: ${{SLACK_SIGNING_SECRET}}
    api_url: {api_url}
    {more}
"""
SECRETS = {
    "SLACK_CLIENT_ID": CREDENTIALS["client_id"],
    "SLACK_CLIENT_SECRET": CREDENTIALS["client_secret"],
    "SLACK_SIGNING_SECRET": fakes.SLACK_SIGNING_SECRET,
}


class SlackBot:
    """One bot with the channel `desk`. Its model is the offline matcher of words."""

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        platforms: fakes.FakePlatforms,
        more: str = "",
        *,
        public_url: str = PUBLIC_URL,
    ) -> None:
        self.folder = folder
        self.platforms = platforms
        (folder / "tools.py").write_text(TOOLS)
        self.file = folder / "bot.yaml"
        self.file.write_text(BOT.format(url=public_url, api_url=platforms.slack_url, more=more))
        services = bootstrap(
            load_settings(self.file, SECRETS),
            data=folder / "data",
            redis_url=redis_url,
            is_worker=True,
        )
        # A busy machine is not to look like a Slack that gives up.
        patient = WebForms(services.forms.questions, open_seconds=60, check_seconds=60)
        self.services: Services = replace(services, forms=patient)
        self.channel: Any = self.services.channels["desk"]
        self.client = self.browser()

    @property
    def slack(self) -> FakeSlack:
        """The fake of Slack."""
        slack = self.platforms.fakes["slack"]
        assert isinstance(slack, FakeSlack)
        return slack

    def browser(self) -> FlaskClient:
        """Return a browser with no cookies."""
        return build_app(self.services).test_client()

    def begin(self, client: FlaskClient | None = None, path: str = "/slack/desk/install") -> str:
        """Begin an installation, and return the state that Slack gets."""
        answer = (client or self.client).get(path, base_url=PUBLIC_URL)
        assert answer.status_code == 302, answer.text
        return parse_qs(urlsplit(answer.headers["Location"]).query)["state"][0]

    def come_back(self, client: FlaskClient | None = None, **query: str) -> TestResponse:
        """Let Slack send the browser back."""
        return (client or self.client).get(
            "/slack/desk/oauth_redirect", query_string=query, base_url=PUBLIC_URL
        )

    def install(self, team: str, label: str = "", *, organization: str = "") -> TestResponse:
        """Install the app in a workspace or an organization, as a person in a browser does."""
        state = self.begin()
        return self.come_back(
            code=self.slack.oauth.allow(team, label, organization=organization), state=state
        )

    def post(self, body: bytes, retry: int = 0) -> int:
        """Send a signed webhook, for the `retry`th time again, and return the status of the answer."""
        headers, body = slack_hook(fakes.SLACK_SIGNING_SECRET, body, time.time())
        headers = dict(headers)
        if retry:
            headers |= {"X-Slack-Retry-Num": str(retry), "X-Slack-Retry-Reason": "http_timeout"}
        return self.client.post("/hooks/desk", headers=headers, data=body).status_code

    def work(self) -> None:
        """Answer all that waits, and send what an answer forwards to another conversation."""
        asyncio.run(self._run_all(self._busy()))

    async def _run_all(self, busy: set[str]) -> None:
        done: set[str] = set()
        while busy - done:
            await asyncio.gather(
                *(self.services.processor.run(each) for each in sorted(busy - done))
            )
            done |= busy
            busy = self._busy()

    def _busy(self) -> set[str]:
        redis: Redis = self.services.redis
        due: set[str] = set()
        for key in redis.scan_iter("*:due"):
            due.update(map(str, redis.zrange(key, 0, -1)))
        return due

    @property
    def sent(self) -> list[dict[str, Any]]:
        """The messages that Slack accepted."""
        return self.platforms.sent

    def texts(self, team: str) -> list[str]:
        """Return what the bot said with the token of a workspace or an organization."""
        return [message["text"] for message in self.sent if message.get("team") == team]

    @property
    def deleted(self) -> list[str]:
        """The invoices that were deleted."""
        file = self.folder / "deleted.txt"
        return file.read_text().split() if file.exists() else []


#: Opens a bot with more keys of its channel, as YAML.
OpenBot = Callable[..., SlackBot]
#: The first message of the thread in which people write.
THREAD_TS = "1795204700.000100"


@contextmanager
def full_memory(redis: Redis) -> Iterator[None]:
    """Let Redis refuse whatever needs more memory."""
    redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        redis.config_set("maxmemory", 0)


def message(
    team: str,
    ts: str,
    text: str,
    *,
    channel: str = "D0ADA",
    user: str = "U0ADA",
    **outer: Any,
) -> bytes:
    """Return the body of a message in a thread of a workspace's chat."""
    kind = "im" if channel.startswith("D") else "channel"
    place = {"channel": channel, "channel_type": kind, "thread_ts": THREAD_TS}
    event = {"type": "message", "user": user, "text": text, "ts": ts, **place}
    return slack_event(f"Ev{team}{ts}", event, **{**of_workspace(team), **outer})


def of_workspace(team: str) -> dict[str, Any]:
    """Return the envelope's fields of an event for the installation of a workspace."""
    return {
        "team_id": team,
        "authorizations": [{"team_id": team, "user_id": "U0BOT", "is_bot": True}],
    }


def of_organization(organization: str, team: str) -> dict[str, Any]:
    """Return the envelope's fields of an event in a workspace whose organization has installed the app."""
    authorization = {
        "enterprise_id": organization,
        "team_id": team,
        "user_id": "U0BOT",
        "is_bot": True,
        "is_enterprise_install": True,
    }
    return {"team_id": team, "enterprise_id": organization, "authorizations": [authorization]}


def lifecycle(kind: str, team: str, at: float, **outer: Any) -> bytes:
    """Return the body of app_uninstalled or tokens_revoked, at a time in Unix seconds."""
    event: dict[str, Any] = {"type": kind}
    if kind == "tokens_revoked":
        event["tokens"] = {"bot": ["U0BOT"]}
    envelope = {
        "type": "event_callback",
        "team_id": team,
        "event_id": f"Ev{kind}{at}",
        "event_time": int(at),
    }
    return json.dumps({**envelope, "event": event, **outer}).encode()
