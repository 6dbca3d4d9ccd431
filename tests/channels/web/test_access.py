"""Access at the door: who may not talk is answered as if nothing were wrong, and nothing of theirs is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.channels.storage.media import LocalMediaStore
from sayso.channels.telegram.incoming import telegram_hook
from sayso.channels.types import Received, Tap
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.wiring.wsgi import build_app
from sayso.pending.redis.client import PREFIX
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms.webhooks import telegram_text
from sayso.testing.stores import MemoryFeed, MemoryPeople
from sayso.workers.access import AccessConfig, AccessControl, memory_quota, rules
from sayso.workers.mailbox import InboxLimits
from sayso.workers.people import RedisPeople, Register
from sayso.workers.spool import Spool, SpoolFile
from tests.channels.parts import console_channel
from tests.channels.web.services import TURN, FakeChannel, browser
from tests.contracts.rigs import MemoryRig, voice

SHOP = TURN.conversation


class Door:
    """A web process with these rules for its channel."""

    def __init__(self, *, spool: Path | None = None, **access) -> None:
        self.lanes, self.people = MemoryRig().mailbox, MemoryPeople()
        gate = AccessControl(self.lanes, voice, AccessConfig({"shop": rules(**access)}, self.people, memory_quota()))
        self.channel, self.spool = FakeChannel(), Spool(SpoolFile(spool), gate, gate.ignores) if spool else None
        if self.spool:
            self.spool.watch = lambda: None  # type: ignore[method-assign]
        self.client = browser(self.channel, self.lanes, access_control=gate, spool=self.spool)

    def post(self, text: str = "hello", **fields) -> int:
        """The status that a platform hears for a turn."""
        fields = {"event_id": f"e{len(self.channel.hooks)}", "text": text, **fields}
        self.channel.answer = Received(turns=(replace(TURN, **fields),))
        return self.client.post("/hooks/shop").status_code

    def kept(self) -> object:
        """What the conversation holds: a turn, a reply, nothing."""
        held = self.lanes.lease(SHOP.id, "w")
        return held[1] if held else None


@pytest.mark.parametrize("more", [{}, {"tap": Tap("c:1")}, {"text": "/whoami"}, {"kind": "edit"}])
def test_blocked_person_is_answered_and_nothing_is_kept(tmp_path: Path, more: dict):
    """200, so that the platform does not repeat it; neither in Redis nor on the spool's disk."""
    for door in (Door(block=[TURN.user_id]), Door(block=[TURN.user_id], spool=tmp_path)):
        assert door.post(**more) == 200
        assert door.kept() is None
        assert not door.spool or door.spool.count() == 0


def test_person_blocked_by_an_operator_is_answered_and_nothing_is_kept():
    """At once, without a start of anything."""
    door = Door()
    assert door.post() == 200
    Register(door.people).block("shop", TURN.user_id)
    assert (door.post(event_id="later"), len(door.kept().following)) == (200, 0)


def test_stranger_is_told_and_nothing_else_is_kept():
    """The reply waits; no turn does."""
    door = Door(pairing=True)
    assert door.post("my secret") == 200
    assert "my secret" not in door.kept().text
    assert door.people.waiting("shop")[0].code in door.kept().text


def test_person_who_is_too_fast_is_not_retried():
    """200: Telegram repeats for a day what hears anything else, and the person was told to write again."""
    door = Door(per_minute=1)
    assert [door.post(text) for text in "abc"] == [200, 200, 200]
    work = door.kept()
    assert "more messages per minute" in work.text


def test_redis_that_cannot_say_who_somebody_is_keeps_them_out():
    """503: the platform repeats it; whoever the file blocks is not even asked about."""
    door = Door(block=["eve"])

    def away(*_):
        raise RedisConnectionError("away")

    door.people.decision = away
    assert door.post() == 503
    assert door.post(user_id="eve") == 200


def test_spool_keeps_them_until_redis_can_say(tmp_path: Path):
    """Then whoever is on no list is turned away."""
    door = Door(spool=tmp_path, allow=["ana"])
    standing = door.people.decision

    def away(*_):
        raise RedisConnectionError("away")

    door.people.decision = away
    assert [door.post(), door.post(user_id="ana")] == [200, 200]
    door.people.decision = standing
    assert (door.spool.forward(), door.spool.count()) == (2, 0)
    assert [each.user_id for each in _turns(door)] == ["ana"]


def _turns(door: Door) -> list:
    return [letter.turn for letter in door.lanes._conversations[SHOP.id].inbox]


def test_stranger_is_let_in_with_their_code(tmp_path: Path, redis_url: str, redis_client: Redis):
    """A wired web process, real webhooks: nothing of the first message is kept, the one after the approval is."""
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
    assert not any(":in:" in key for key in redis_client.scan_iter())
    assert post(2, "again") == 200
    (waits,) = people.waiting("tg")
    Register(people).approve("tg", waits.code)
    assert post(3, "let me in") == 200
    (inbox,) = (key for key in redis_client.scan_iter() if ":in:" in key)
    assert [("let me in" in entry) for entry in redis_client.lrange(inbox, 0, -1)] == [True]
    Register(people).block("tg", waits.ids[0])
    assert post(4, "hello?") == 200
    assert redis_client.llen(inbox) == 1


class Page:
    """A console's page, open, with these rules for its channel."""

    def __init__(self, folder: Path, **access) -> None:
        self.store = LocalMediaStore(folder, keys=["k"], public_url="https://bots")
        self.channel = console_channel("web", feed=MemoryFeed(), media=self.store, keys=["k"])
        self.people = MemoryPeople()
        gate = AccessControl(MemoryRig().mailbox, voice, AccessConfig({"web": rules(**access)}, self.people))
        settings = SimpleNamespace(limits=InboxLimits(per_minute=3), key_prefix=PREFIX)
        self.client = browser(channels={"web": self.channel}, access_control=gate, media=self.store, settings=settings)
        self.client.get("/console")

    def upload(self) -> int:
        """The status of a text file that is sent."""
        headers = {"X-Sayso-Console": "1", "Content-Type": "text/plain", "Origin": "https://bots.example.com"}
        return self.client.post("/console/web/files", data=b"hi", headers=headers).status_code

    @property
    def user_id(self) -> str:
        """Whose page it is."""
        return self.channel.user_of(self.client.get_cookie(self.channel.cookie).value)


def test_a_stranger_uploads_nothing(tmp_path: Path):
    """A file comes before its message, and is asked about as one."""
    page = Page(tmp_path, allow=["somebody"])
    assert (page.upload(), list(tmp_path.rglob("*"))) == (403, [])
    Register(page.people).approve("web", page.user_id)
    assert page.upload() == 201
    Register(page.people).block("web", page.user_id)
    assert page.upload() == 403


def test_a_person_sends_no_more_files_in_a_minute_than_messages(tmp_path: Path):
    """What nobody sweeps for a week cannot pile up faster than people talk."""
    page = Page(tmp_path)
    assert [page.upload() for _ in range(4)] == [201, 201, 201, 503]
