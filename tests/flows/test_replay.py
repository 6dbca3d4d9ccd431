"""Every recorded webhook goes to the running web with a valid signature, and its turn is in the mailbox."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import httpx
import pytest
from redis import Redis

from sayso.channels.slack.incoming import slack_hook
from sayso.channels.types import Conversation, SignedWebhook, Turn
from sayso.channels.whatsapp.incoming import whatsapp_hook
from sayso.infra.redis.client import PREFIX
from sayso.pending.action import split_button_token
from sayso.pending.sharded_scripts import shard_of
from sayso.testing.platforms import fake_platforms as fakes
from tests.channels.test_payloads import PAYLOADS, TURNS
from tests.channels.web.fuzz import YAML
from tests.flows.system import System, until

CHANNELS = {"whatsapp": "wa", "telegram": "tg", "slack": "sl"}
NAMES = sorted(
    (f"{path.parent.name}/{path.stem}" for path in PAYLOADS.glob("*/*.json")),
    # Edits are last: a message that arrives after its own edit is left out.
    key=lambda name: (name in TURNS and TURNS[name].kind == "edit", name),
)
#: Headers that a replay replaces, because they depend on the web's address and the time.
SIGNED = (
    "x-twilio-signature",
    "x-twilio-webhooks-signature-settings",
    "x-slack-signature",
    "host",
    "content-length",
)
SECRET = "x-telegram-bot-api-secret-token"
#: The prefix of this bot's keys: the bot is named after its file, sayso.yaml.
KEYS = f"{PREFIX}sayso:"


class Stage:
    """A web process and its Redis without a worker, so that accepted turns stay in the mailbox."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.redis = Redis.from_url(system.redis.url, decode_responses=True)

    def post(self, name: str, signed: SignedWebhook) -> int:
        """Return the status of the answer to a recorded webhook."""
        return self.system.post(place(name), signed).status_code

    def kept(self, conversation: Conversation) -> list[Turn]:
        """Return the turns of a conversation that wait in its mailbox, in order."""
        entries = self.redis.lrange(
            f"{KEYS}{{{shard_of(conversation.id)}}}:inbox:{conversation.id}", 0, -1
        )
        return [Turn.from_json(entry.split(" ", 4)[4]) for entry in entries]

    def all_kept(self) -> int:
        """Return the number of turns that wait in all mailboxes."""
        return sum(
            self.redis.llen(key) for key in self.redis.scan_iter(f"{KEYS}*:inbox:*", count=1000)
        )

    def is_up(self) -> bool:
        """Return whether the web answers."""
        with suppress(httpx.HTTPError):
            return self.system.http.get(f"{self.system.url}/healthz", timeout=5).status_code == 200
        return False


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Run one stage for all payloads."""
    with tempfile.TemporaryDirectory(prefix="sayso-replay-") as folder:
        system = System(Path(folder), workers=0)
        system.config.write_text(YAML.format(public_url=system.url, url=system.platforms.url))
        with system:
            running = Stage(system)
            until(running.is_up)
            yield running
            running.redis.close()


def place(name: str) -> str:
    """Return the path below /hooks/ for a recorded webhook."""
    recorded = json.loads((PAYLOADS / f"{name}.json").read_text())
    return CHANNELS[name.partition("/")[0]] + ("/status" if "/status" in recorded["url"] else "")


def signed(name: str, url: str) -> SignedWebhook:
    """Return a recorded webhook, with a signature for this address and time beside its other headers."""
    recorded = json.loads((PAYLOADS / f"{name}.json").read_text())
    body = (
        recorded["raw_body"] if "raw_body" in recorded else json.dumps(recorded["json"])
    ).encode()
    told = {
        header.lower(): value
        for header, value in recorded["headers"].items()
        if header.lower() not in SIGNED
    }
    if name.startswith("whatsapp/"):
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        return {
            **told,
            **whatsapp_hook(f"{url}/hooks/{place(name)}", fakes.TWILIO_AUTH_TOKEN, form)[0],
        }, body
    if name.startswith("slack/"):
        return {**told, **slack_hook(fakes.SLACK_SIGNING_SECRET, body, time.time())[0]}, body
    return told, body


def with_one_byte_changed(name: str, hook: SignedWebhook) -> list[SignedWebhook]:
    """Return copies of the webhook with one signed byte changed: at both ends, in the middle, and between."""
    headers, body = hook
    if name.startswith(
        "telegram/"
    ):  # Telegram signs nothing: the secret must be right, byte for byte
        secret = headers[SECRET].encode()
        return [
            ({**headers, SECRET: flipped(secret, at).decode()}, body)
            for at in (0, len(secret) // 2, -1)
        ]
    step = max(1, len(body) // 7)
    return [(headers, flipped(body, at)) for at in (*range(0, len(body), step), -1)]


def flipped(data: bytes, at: int) -> bytes:
    """Return the data with one bit of one byte flipped."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("name", NAMES)
def test_one_changed_byte_is_forbidden(stage: Stage, name: str):
    """Each copy gets 403, and no turn is stored. platforms.md 1.2, 2.2 and 3.2."""
    before = stage.all_kept()
    for forged in with_one_byte_changed(name, signed(name, stage.system.url)):
        assert stage.post(name, forged) == 403
    assert stage.all_kept() == before


@pytest.mark.parametrize("name", NAMES)
def test_replayed_webhook_stores_its_turn(stage: Stage, name: str):
    """The web answers 200; the turn is the conversation's last or a known one, and other webhooks store nothing."""
    expected, before = TURNS.get(name), stage.all_kept()
    kept = stage.kept(expected.conversation) if expected else []
    assert stage.post(name, signed(name, stage.system.url)) == 200
    if expected is None or expected.event_id in {turn.event_id for turn in kept}:
        assert stage.all_kept() == before
    elif (
        kept or expected.addressed
    ):  # a group message without a mention counts in an open conversation
        *earlier, stored = stage.kept(expected.conversation)
        assert earlier == kept
        # A turn of WhatsApp also names the numbers and ids that earlier webhooks gave for this person.
        assert set(stored.aliases) >= set(expected.aliases)
        assert replace(stored, aliases=expected.aliases) == as_said(expected)


def as_said(turn: Turn) -> Turn:
    """Return the turn with the button's label as its text, unless the button is one of the bot's."""
    if turn.tap and split_button_token(turn.tap.data) is None and turn.tap.label:
        return replace(turn, text=turn.tap.label, tap=None, kind="choice")
    return turn
