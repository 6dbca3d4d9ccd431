"""A bot whose people decide about each other's payments: its processes, and the people on each platform."""

from __future__ import annotations

import hashlib
import itertools
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from itsdangerous import URLSafeSerializer
from redis import Redis

from sayso.channels.types import Conversation
from sayso.infra.redis.client import PREFIX
from sayso.pending.sharded_scripts import shard_of
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.twilio import CONFIRM_TEMPLATE
from sayso.testing.simulation.tools import Effects
from tests.flows import deaths
from tests.flows.system import (
    Person,
    Process,
    SlackPerson,
    System,
    TelegramPerson,
    WhatsAppPerson,
    until,
)

#: The key that signs the cookies of the console page.
KEY = "secret-key-of-the-approval-flows-0123456789"
#: The chat of the finance team in Slack.
FINANCE = "C00007000"

YAML = """
public_url: {public_url}
redis_url: ${{REDIS_URL}}
agent: {{model: offline}}
limits: {{per_minute: 60000, in_one_go: 60000}}
workers: {{concurrency: 2}}
tools: [tests.flows.deaths, ./tools.py]
people:
  bea: {{accounts: {{desk: U7001, shop-wa: "+4915100007001"}}, roles: [manager]}}
  cem: {{accounts: {{desk: U7002, ops-tg: "5000007002"}}, roles: [finance]}}
  dan: {{accounts: {{desk: U7003, shop-wa: "+4915100007003"}}, roles: [finance]}}
  eva: {{accounts: {{ops-tg: "5000007004", desk: U7004}}, roles: [finance]}}
  fay: {{accounts: {{shop-wa: "+4915100007005"}}}}
  gil: {{accounts: {{web: gil0000001}}, roles: [auditor]}}
  hal: {{accounts: {{classic: U7006}}, roles: [clerk]}}
  ida: {{accounts: {{wide-wa: "+4915100007008"}}}}
  jon: {{accounts: {{shop-wa: "+4915100007009"}}}}
  kay: {{accounts: {{shop-wa: "+4915100007010"}}}}
channels:
  shop-wa:
    platform: whatsapp
    account_sid: ${{TWILIO_ACCOUNT_SID}}
    auth_token: ${{TWILIO_AUTH_TOKEN}}
    from: "whatsapp:+14155238886"
    api_url: {url}/twilio
    policy:
      approval:
        pay: {{by: role manager, on: desk}}
        book: {{by: role clerk, within: 3d}}
  ops-tg:
    platform: telegram
    token: "${{TELEGRAM_TOKEN}}"
    secret_token: "${{TELEGRAM_SECRET}}"
    api_url: {url}/telegram
    messages_per_second: 0
    policy:
      approval:
        pay: {{by: role finance, need: 2, on: {{channel: desk, chat: {finance}}}}}
        book: {{by: role auditor}}
        ship: {{by: {{people: [eva]}}, within: 3d}}
        pack: {{by: {{people: [eva]}}, within: 3d}}
        send: {{by: {{people: [eva]}}, within: 3d}}
        note: {{by: role auditor, within: 3d}}
        mail: {{by: {{people: [cem]}}, on: ops-tg}}
  desk:
    platform: slack
    bot_token: "${{SLACK_BOT_TOKEN}}"
    signing_secret: "${{SLACK_SIGNING_SECRET}}"
    api_url: {url}/slack
    messages_per_second: 0
    policy:
      approval:
        pay: {{by: {{people: [fay, dan]}}, on: shop-wa}}
        book: {{by: {{people: [cem]}}, on: ops-tg}}
        note: {{by: {{people: [ida]}}, on: wide-wa}}
  classic:
    platform: slack
    view: none
    bot_token: "${{SLACK_BOT_TOKEN}}"
    signing_secret: "${{SLACK_SIGNING_SECRET}}"
    api_url: {url}/slack
    messages_per_second: 0
    policy:
      approval:
        pay: {{by: {{people: [jon]}}, escalate: {{after: 1h, by: {{people: [kay]}}}}}}
        note: {{by: {{people: [jon]}}}}
  wide-wa:
    platform: whatsapp
    account_sid: ${{TWILIO_ACCOUNT_SID}}
    auth_token: ${{TWILIO_AUTH_TOKEN}}
    from: "whatsapp:+14155238886"
    api_url: {url}/twilio
    confirm_template: {template}
  web: {{platform: console}}
"""


#: Tools of which a later release changes one and removes one.
TOOLS = """
from sayso.agent import tool
from tests.flows.deaths import _take_effect

@tool(requires_approval=True, preview="Send {bill}")
def send(bill: str) -> str:
    \"\"\"Send a bill. See https://shop.example/bills/b1?decide=yes.\"\"\"
    return _take_effect("send", bill, "Sent")

@tool(requires_approval=True, preview="Mail {bill}")
def mail(bill: str) -> str:
    \"\"\"Mail a bill.\"\"\"
    return _take_effect("mail", bill, "Mailed")
"""
FIRST_RELEASE = """
@tool(requires_approval=True, preview="Ship {bill}")
def ship(bill: str) -> str:
    \"\"\"Ship a bill.\"\"\"
    return _take_effect("ship", bill, "Shipped")

@tool(requires_approval=True, preview="Pack {bill}")
def pack(bill: str) -> str:
    \"\"\"Pack a bill.\"\"\"
    return _take_effect("pack", bill, "Packed")
"""
SECOND_RELEASE = """
@tool(requires_approval=True, preview="Ship {bill} by {speed} mail")
def ship(bill: str, speed: str = "fast") -> str:
    \"\"\"Ship a bill.\"\"\"
    return _take_effect("ship", bill, "Shipped")
"""


class ApprovalSystem(System):
    """Redis, web and four workers that die where a test plans it, and are replaced then."""

    def __init__(self, folder: Path) -> None:
        environ = {deaths.CHANCE: "0", "SAYSO_SECRET_KEYS": KEY}
        super().__init__(folder, workers=1, environ=environ)
        self.config.write_text(
            YAML.format(
                public_url=self.url,
                url=self.platforms.url,
                finance=FINANCE,
                template=CONFIRM_TEMPLATE,
            )
        )
        self.release(FIRST_RELEASE)

    def start_worker(self) -> Process:
        """Start the parent of the workers."""
        self.workers.append(self.process("worker", "--processes", "4"))
        return self.workers[-1]

    def release(self, tools: str, replaced: Mapping[str, str] = MappingProxyType({})) -> None:
        """Write the tools of a release, and replace parts of the YAML."""
        (self.data / "tools.py").write_text(TOOLS + tools)
        text = self.config.read_text()
        for before, after in replaced.items():
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        self.config.write_text(text)

    def let_silence_pass(self, conversation: Conversation, seconds: float) -> None:
        """Let the person of a conversation have written last so long ago."""
        shard = shard_of(conversation.id)
        key = f"{PREFIX}{self.config.stem}:{{{shard}}}:conversation:{conversation.id}"
        at = round((time.time() - seconds) * 1000)
        with Redis.from_url(self.redis.url) as client:
            assert client.hset(key, "user_message_at", at) == 0

    def stop_all(self) -> None:
        """Stop web and workers."""
        for process in [*self.workers, self.web]:
            process.terminate()
        for process in [*self.workers, self.web]:
            process.wait()
        self.workers.clear()

    def start_all(self) -> None:
        """Start web and workers again, and wait until they work."""
        self.web = self.process("web", "--port", self.url.rpartition(":")[2])
        for _ in range(self._wanted):
            self.start_worker()
        until(self._are_workers_ready)

    def paid(self, bill: str, tool: str = "pay") -> int:
        """Return how often a bill was paid."""
        steps = Effects(self.worker_data).read()
        return sum(each.bill == f"{tool} {bill}" and each.step == "effect" for each in steps)


class Numbered(Person):
    """A person whose messages have numbers of their own, also where a test names the person anew."""

    _numbers = itertools.count(7_000_001)

    def _next(self) -> int:
        return next(self._numbers)


class SlackUser(Numbered, SlackPerson):
    """A member of the Slack workspace, who reads a direct chat with the bot and taps in it."""

    channel = "desk"

    @property
    def chat(self) -> str:  # type: ignore[override]
        return f"D{self.name}"

    def message(self, text: str, chat: str = "", thread: str = "") -> None:
        """Write a message, in a thread if one is given."""
        ts = f"1795204800.{self._next():06}"
        fields = {"thread_ts": thread, "parent_user_id": "U0BOT"} if thread else {}
        body = signing.slack_text(
            ts, text, user=f"U{self.name}", channel=chat or self.chat, **fields
        )
        self._deliver(self._signed(body))

    def press(self, entry: dict[str, Any], which: int = 0, times: int = 2) -> None:
        """Tap a button of a message of the bot. Slack delivers the tap several times."""
        (block,) = [each for each in entry["raw"]["blocks"] if each["type"] == "actions"]
        number = entry["number"]
        body = signing.slack_tap(
            f"tap.{self._next()}",
            entry["buttons"][which]["data"],
            user=f"U{self.name}",
            channel=entry["chat"],
            message_ts=f"1795204700.{number:06}",
            thread_ts=entry["thread"],
            block_id=block["block_id"],
        )
        for _ in range(times):
            assert self.system.post(*self._signed(body)).status_code == 200

    def _signed(self, body: bytes) -> tuple[str, signing.SignedWebhook]:
        hook = signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, time.time())
        return self.channel, hook


class ClassicUser(SlackUser):
    """A member whose direct chat with the bot has no threads."""

    channel = "classic"


class WhatsAppUser(Numbered, WhatsAppPerson):
    """A person on WhatsApp who can quote a message."""

    channel = "shop-wa"

    def _signed(self, form: dict[str, str]) -> tuple[str, signing.SignedWebhook]:
        url = f"{self.system.url}/hooks/{self.channel}"
        return self.channel, signing.whatsapp_hook(url, fakes.TWILIO_AUTH_TOKEN, form)

    def quote(self, entry: dict[str, Any], text: str) -> None:
        """Write a reply to a message of the bot."""
        form = signing.whatsapp_text(
            f"SM{self._next():032x}",
            text,
            account_sid=fakes.TWILIO_ACCOUNT_SID,
            user=self.chat,
            OriginalRepliedMessageSid=f"SM{entry['number']:032x}",
        )
        self._deliver(self._signed(form))


class TemplateUser(WhatsAppUser):
    """A person on WhatsApp whom the bot may write to first, by an approved template."""

    channel = "wide-wa"


class TelegramUser(Numbered, TelegramPerson):
    """A person on Telegram who can quote a message."""

    def quote(self, entry: dict[str, Any], text: str) -> None:
        """Write a reply to a message of the bot."""
        original = {
            "message_id": entry["number"],
            "from": {"id": 7000000001, "is_bot": True},
            "text": "?",
        }
        update = signing.telegram_text(
            self._next(), text, user=int(self.chat), reply_to_message=original
        )
        self._deliver(self._signed(update))


class ConsoleUser:
    """A person in a browser."""

    def __init__(self, system: System, user_id: str) -> None:
        cookies = {COOKIE: cookie_of(user_id)}
        self.browser = httpx.Client(base_url=system.url, cookies=cookies)

    def bubbles(self) -> list[dict[str, Any]]:
        """Return the messages of the bot that the page shows."""
        entries = self.browser.get("/console/poll").raise_for_status().json()["entries"]
        return [each for each in entries if each["type"] == "bubble"]

    def page(self) -> str:
        """Return everything that the page shows, edits too, as text."""
        return str(self.browser.get("/console/poll").raise_for_status().json())

    def tap(self, data: str, event: str) -> None:
        """Tap a button."""
        tap = {"id": event, "tap": data}
        headers = {"x-sayso-console": "1"}
        self.browser.post("/hooks/web", json=tap, headers=headers).raise_for_status()


#: The cookie by which the console `web` knows a person.
COOKIE = "sayso_console_web"


def cookie_of(user_id: str) -> str:
    """Return the cookie of a person, signed with KEY for a console without a password."""
    no_password = hashlib.sha256(b"").hexdigest()
    signer = URLSafeSerializer([KEY], salt=f"sayso.console.web.{no_password}")
    return str(signer.dumps(user_id))


def request_in(system: System, chat: str, bill: str) -> dict[str, Any]:
    """Wait for a request about a bill in a chat. Return its message, as it is now.

    Its `number` is that by which the platform knows it.
    """

    def found() -> Sequence[dict[str, Any]]:
        messages = system.ledger(chat)
        return [each for each in messages if is_about(each, bill) and len(each["buttons"]) == 2]

    entry = until(found)[-1]
    until(system.is_settled)
    return {**entry, "number": system.platforms.sent.index(entry) + 1}


def is_about(entry: dict[str, Any], bill: str) -> bool:
    """Return whether a message names a bill."""
    return re.search(rf"\b{bill}\b", entry["text"]) is not None


def code_in(entry: dict[str, Any]) -> str:
    """Return the code of a request."""
    found = re.search(r"yes ([A-Z]{4})", entry["text"])
    assert found, entry["text"]
    return found[1]


def reads(system: System, chat: str, *parts: str, is_settled: bool = True) -> str:
    """Wait for a message in a chat that has all parts, and return its text.

    `is_settled`: wait until no reply waits, too.
    """
    texts: list[str] = until(
        lambda: [
            each["text"]
            for each in system.ledger(chat)
            if all(part in each["text"] for part in parts)
        ]
    )
    if is_settled:
        until(system.is_settled)
    return texts[-1]
