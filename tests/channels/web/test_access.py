"""Access control of the web process: a refused sender gets a normal answer, and no message of theirs is stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.channels.media_store import LocalMediaStore
from sayso.channels.telegram.incoming import telegram_hook
from sayso.channels.types import Received, Tap
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.wiring.wsgi import build_app
from sayso.infra.redis.client import PREFIX
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms.webhooks import telegram_text
from sayso.workers.access import AccessConfig, AccessControl, AccessRules, memory_quota
from sayso.workers.mailbox import InboxLimits
from sayso.workers.people import PeopleDecisions, RedisPeople
from sayso.workers.spool import Spool, SpoolFile
from tests.channels.parts import console_channel
from tests.channels.web.services import TURN, FakeChannel, browser
from tests.contracts.rigs import Rig, voice
from tests.memory_stores import MemoryFeed

SHOP = TURN.conversation


class Door:
    """A web process with these access rules for its channel."""

    def __init__(self, *, spool: Path | None = None, **access) -> None:
        self.rig = Rig()
        self.people, self.lanes = RedisPeople(self.rig.client), self.rig.mailbox
        gate = AccessControl(
            self.lanes,
            voice,
            AccessConfig({"shop": AccessRules(**access)}, self.people, memory_quota()),
        )
        self.channel, self.spool = FakeChannel(), Spool(SpoolFile(spool), gate) if spool else None
        if self.spool:
            self.spool.watch = lambda: None  # type: ignore[method-assign]
        self.client = browser(self.channel, self.lanes, access_control=gate, spool=self.spool)

    def post(self, text: str = "hello", **fields) -> int:
        """Return the status that the platform gets for a turn."""
        fields = {"event_id": f"e{len(self.channel.hooks)}", "text": text, **fields}
        self.channel.answer = Received(turns=(replace(TURN, **fields),))
        return self.client.post("/hooks/shop").status_code

    def kept(self) -> object:
        """Return what the conversation holds: a turn, a reply or None."""
        held = self.lanes.lease(SHOP.id, "w")
        return held[1] if held else None


@pytest.mark.parametrize("more", [{}, {"tap": Tap("c:1")}, {"text": "/whoami"}, {"kind": "edit"}])
def test_message_of_a_blocked_user_is_not_stored(tmp_path: Path, more: dict):
    """The answer is 200, so the platform does not repeat it; neither Redis nor the spool stores the message."""
    for door in (Door(block=[TURN.user_id]), Door(block=[TURN.user_id], spool=tmp_path)):
        assert door.post(**more) == 200
        assert door.kept() is None
        assert not door.spool or door.spool.count() == 0


def test_block_by_an_operator_works_at_once():
    """The process needs no restart."""
    door = Door()
    assert door.post() == 200
    PeopleDecisions(door.people).block("shop", TURN.user_id)
    assert (door.post(event_id="later"), len(door.kept().following)) == (200, 0)


def test_unknown_user_gets_a_pairing_code_and_no_message_is_stored():
    """The mailbox holds the reply and no turn."""
    door = Door(pairing=True)
    assert door.post("my secret") == 200
    assert "my secret" not in door.kept().text
    assert door.people.waiting("shop")[0].code in door.kept().text


def test_message_above_the_rate_limit_is_not_retried():
    """The answer is 200: Telegram would repeat any other status for a day, and the user was asked to write again."""
    door = Door(per_minute=1)
    assert [door.post(text) for text in "abc"] == [200, 200, 200]
    work = door.kept()
    assert "more messages per minute" in work.text


def test_unavailable_redis_is_a_503_unless_the_file_blocks_the_user():
    """The platform repeats the request; for a user that the file blocks, the process does not ask Redis."""
    door = Door(block=["eve"])

    def away(*_):
        raise RedisConnectionError("away")

    door.people.decision = away
    assert door.post() == 503
    assert door.post(user_id="eve") == 200


def test_spool_keeps_turns_until_redis_is_back(tmp_path: Path):
    """Then the access rules refuse the users that are on no list."""
    door = Door(spool=tmp_path, allow=["ana"])
    standing = door.people.decision

    def away(*_):
        raise RedisConnectionError("away")

    door.people.decision = away
    assert [door.post(), door.post(user_id="ana")] == [200, 200]
    door.people.decision = standing
    assert (door.spool.forward(), door.spool.count()) == (2, 0)
    (waiting,) = door.rig.inbox(SHOP.id)
    assert '"user_id":"ana"' in waiting


def test_unknown_user_is_accepted_after_approval_of_the_code(
    tmp_path: Path, redis_url: str, redis_client: Redis
):
    """A wired web process with real webhooks stores no first message, and stores the one after the approval."""
    file = tmp_path / "sayso.yaml"
    file.write_text(
        "channels: {tg: {platform: telegram, token: '${T}', secret_token: '${S}', access: {pairing: true}}}\n"
    )
    settings = load_settings(file, {"T": fakes.TELEGRAM_TOKEN, "S": fakes.TELEGRAM_SECRET})
    services = bootstrap(settings, data=tmp_path, redis_url=redis_url)
    client = build_app(services).test_client()

    def post(number: int, text: str) -> int:
        headers, body = telegram_hook(fakes.TELEGRAM_SECRET, telegram_text(number, text))
        return client.post("/hooks/tg", headers=headers, data=body).status_code

    people = RedisPeople(redis_client, prefix=settings.key_prefix)
    assert post(1, "my secret") == 200
    assert not any("my secret" in str(redis_client.dump(key)) for key in redis_client.scan_iter())
    assert not any(":inbox:" in key for key in redis_client.scan_iter())
    assert post(2, "again") == 200
    (waits,) = people.waiting("tg")
    PeopleDecisions(people).approve("tg", waits.code)
    assert post(3, "let me in") == 200
    (inbox,) = (key for key in redis_client.scan_iter() if ":inbox:" in key)
    assert [("let me in" in entry) for entry in redis_client.lrange(inbox, 0, -1)] == [True]
    PeopleDecisions(people).block("tg", waits.ids[0])
    assert post(4, "hello?") == 200
    assert redis_client.llen(inbox) == 1


class Page:
    """An open console page with these access rules for its channel."""

    def __init__(self, folder: Path, **access) -> None:
        self.store = LocalMediaStore(folder, keys=["k"], public_url="https://bots")
        self.channel = console_channel("web", feed=MemoryFeed(), media=self.store, keys=["k"])
        rig = Rig()
        self.people = RedisPeople(rig.client)
        gate = AccessControl(
            rig.mailbox, voice, AccessConfig({"web": AccessRules(**access)}, self.people)
        )
        settings = SimpleNamespace(limits=InboxLimits(per_minute=3), key_prefix=PREFIX)
        self.client = browser(
            channels={"web": self.channel}, access_control=gate, media=self.store, settings=settings
        )
        self.client.get("/console")

    def upload(self) -> int:
        """Return the status of an uploaded text file."""
        headers = {
            "X-Sayso-Console": "1",
            "Content-Type": "text/plain",
            "Origin": "https://bots.example.com",
        }
        return self.client.post("/console/web/files", data=b"hi", headers=headers).status_code

    @property
    def user_id(self) -> str:
        """Return the user id of the page."""
        return self.channel.sessions.user_of(
            self.client.get_cookie(self.channel.sessions.cookie).value
        )


def test_upload_of_an_unknown_user_is_forbidden(tmp_path: Path):
    """A file arrives before its message and needs the same access."""
    page = Page(tmp_path, allow=["somebody"])
    assert (page.upload(), list(tmp_path.rglob("*"))) == (403, [])
    PeopleDecisions(page.people).approve("web", page.user_id)
    assert page.upload() == 201
    PeopleDecisions(page.people).block("web", page.user_id)
    assert page.upload() == 403


def test_uploads_have_the_rate_limit_of_messages(tmp_path: Path):
    """Files stay for a week, so a user may not fill the disk faster than by messages."""
    page = Page(tmp_path)
    assert [page.upload() for _ in range(4)] == [201, 201, 201, 503]
