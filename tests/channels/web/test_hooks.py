"""Webhooks: nothing that was not kept is acknowledged, and nothing that is not signed gets in."""

from __future__ import annotations

import contextlib
import io
import logging
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis
from redis.connection import UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.channels.base import BadHook, Forbidden
from sayso.channels.types import AddressChange, Conversation, Media, Received, StatusUpdate, Tap, WebhookResponse
from sayso.channels.web.ingress import MAX_BODY
from sayso.pending.redis.client import Connections, connect, set_web_timeouts
from sayso.pending.redis.scripts import LuaScripts
from sayso.workers.alerts import MemoryAlerts
from sayso.workers.deliveries import RedisDeliveries
from sayso.workers.mailbox import LUA, RedisMailbox
from sayso.workers.spool import Spool, SpoolFile, SpoolLimits
from tests.channels.web.services import PUBLIC_URL, TURN, FakeChannel, FakeDeliveries, FakeMailbox, browser
from tests.contracts.rigs import voice


def away() -> str:
    """What the mailbox does when Redis is away."""
    raise RedisConnectionError("Error 111 connecting to redis:6379")


def test_storage_that_is_away_is_never_acknowledged():
    """platforms.md 2.1: a platform repeats what got 503, and is told when."""
    answer = browser(FakeChannel(Received(turns=(TURN,))), FakeMailbox(away)).post("/hooks/shop")
    assert (answer.status_code, answer.headers["Retry-After"], answer.mimetype) == (503, "5", "text/plain")
    assert "redis" not in answer.text.lower()


def test_storage_that_is_away_is_tried_twice_and_never_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 1.1, 3.1: the platform listens for seconds only: one more try, at once, then 503."""
    tries = []
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"slept {seconds} s"))
    monkeypatch.setattr(UnixDomainSocketConnection, "_connect", lambda _: tries.append("") or away())
    mailbox = RedisMailbox(LuaScripts(connect(f"unix://{tmp_path}/redis.sock"), LUA), voice)
    answer = browser(FakeChannel(Received(turns=(TURN,))), mailbox).post("/hooks/shop")
    assert (answer.status_code, len(tries)) == (503, 2)


def test_storage_that_hangs_holds_up_one_webhook(silent: socket.socket):
    """platforms.md 1.1: it takes connections and says nothing: who waited in vain does not wait again, and the next
    ones do not wait.
    """
    mailbox = RedisMailbox(LuaScripts(hurried(silent), LUA), voice)
    client = browser(FakeChannel(Received(turns=(TURN,))), mailbox)
    answers = [client.post("/hooks/shop") for _ in range(5)]
    assert {(answer.status_code, answer.headers["Retry-After"]) for answer in answers} == {(503, "5")}
    assert connections_to(silent) == 1


def test_status_is_not_waited_for_either_where_storage_hangs(silent: socket.socket):
    """Whatever a webhook brings, it asks the same server."""
    hook, redis = Received(statuses=(StatusUpdate("SM1", "failed", "63016", "wa:aa#3"),)), hurried(silent)
    mailbox, kept = RedisMailbox(LuaScripts(redis, LUA), voice), RedisDeliveries(LuaScripts(redis, LUA))
    turns, statuses = FakeChannel(Received(turns=(TURN,))), FakeChannel(hook)
    assert browser(turns, mailbox).post("/hooks/shop").status_code == 503
    assert browser(statuses, mailbox, deliveries=kept).post("/hooks/shop").status_code == 503
    assert connections_to(silent) == 1


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        server.setblocking(False)
        yield server


def hurried(server: socket.socket) -> Redis:
    """A web process's client of this server, while somebody else finds out whether it answers again."""
    client = connect(f"redis://127.0.0.1:{server.getsockname()[1]}")
    set_web_timeouts(client, answer_seconds=0.05)
    Connections.of(client).circuit_breaker._pause_seconds = 1000.0
    return client


def connections_to(server: socket.socket) -> int:
    """How many came, and wait to be taken."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


def test_turn_on_the_spool_is_acknowledged(tmp_path: Path):
    """It is on disk: the platform may forget it."""
    file, mailbox = SpoolFile(tmp_path), FakeMailbox(away)
    client = browser(FakeChannel(Received(turns=(TURN,))), mailbox, spool=unwatched(file, mailbox))
    assert [client.post("/hooks/shop").status_code for _ in range(2)] == [200, 200]
    assert [kept.turn for kept in SpoolFile(tmp_path).next(0, 10)] == [TURN]


def test_turn_that_the_spool_refuses_is_never_acknowledged(tmp_path: Path):
    """Redis is away and the disk is full: the platform must keep it."""
    file, mailbox = SpoolFile(tmp_path, SpoolLimits(turns=0)), FakeMailbox(away)
    answer = browser(FakeChannel(Received(turns=(TURN,))), mailbox, spool=unwatched(file, mailbox)).post("/hooks/shop")
    assert (answer.status_code, answer.headers["Retry-After"], answer.mimetype) == (503, "5", "text/plain")
    assert str(tmp_path) not in answer.text


def unwatched(file: SpoolFile, mailbox: FakeMailbox) -> Spool:
    """A spool that nobody empties."""
    spool = Spool(file, mailbox)  # type: ignore[arg-type]
    spool.watch = lambda: None  # type: ignore[method-assign]
    return spool


def test_full_mailbox_is_never_acknowledged():
    """A turn that was refused is to be sent again."""
    mailbox = FakeMailbox(lambda: "full")
    answer = browser(FakeChannel(Received(turns=(TURN,))), mailbox).post("/hooks/shop")
    assert (answer.status_code, answer.headers["Retry-After"], answer.mimetype) == (503, "5", "text/plain")


def test_one_full_turn_of_several_refuses_all():
    """The webhook comes again; turns kept already are duplicates then."""
    outcomes = iter(["new", "full"])
    mailbox = FakeMailbox(lambda: next(outcomes))
    hook = Received(turns=(TURN, replace(TURN, event_id="event-2"), replace(TURN, event_id="event-3")))
    assert browser(FakeChannel(hook), mailbox).post("/hooks/shop").status_code == 503
    assert len(mailbox.turns) == 2


def test_unsigned_webhook_is_forbidden():
    """403, and no turn is kept."""
    mailbox = FakeMailbox()
    answer = browser(FakeChannel(Forbidden("the signature is wrong")), mailbox).post("/hooks/shop")
    assert (answer.status_code, mailbox.turns) == (403, [])


def test_senseless_webhook_is_a_bad_request():
    """400, and no turn is kept."""
    assert browser(FakeChannel(BadHook("no JSON"))).post("/hooks/shop").status_code == 400


def test_unknown_channel_is_not_found():
    """404, whatever the body says."""
    assert browser(FakeChannel()).post("/hooks/other", data=b"x").status_code == 404


def test_turn_with_a_field_of_a_wrong_type_is_dropped(caplog: pytest.LogCaptureFixture):
    """platforms.md 2.1: it could never be read back, and a repetition would bring the same: 200, and the log says so
    without it.
    """
    mailbox = FakeMailbox()
    bent = replace(TURN, user_id={"id": 4915100000042})  # type: ignore[arg-type]
    assert browser(FakeChannel(Received(turns=(bent, TURN))), mailbox).post("/hooks/shop").status_code == 200
    assert [turn for turn, _ in mailbox.turns] == [TURN]
    assert "turn.malformed" in caplog.messages
    assert "4915100000042" not in caplog.text


def test_turn_that_no_worker_could_read_is_dropped():
    """Nothing in the place of a file's id is written without a word, and would stop its conversation for good."""
    mailbox = FakeMailbox()
    bent = replace(TURN, media=(Media(None, "image/png"),))  # type: ignore[arg-type]
    assert browser(FakeChannel(Received(turns=(bent, TURN))), mailbox).post("/hooks/shop").status_code == 200
    assert [turn for turn, _ in mailbox.turns] == [TURN]


def test_address_that_nobody_could_write_down_is_dropped(caplog: pytest.LogCaptureFixture):
    """Half a character in the place of a chat's id: the turn beside it is kept."""
    mailbox = FakeMailbox()
    news = AddressChange(Conversation("shop", "\ud800"), "blocked")
    received = Received(turns=(TURN,), addresses=(news,))
    assert browser(FakeChannel(received), mailbox).post("/hooks/shop").status_code == 200
    assert ([turn for turn, _ in mailbox.turns], "address.malformed" in caplog.messages) == ([TURN], True)


@pytest.mark.parametrize("path", ["/hooks/shop//", "/hooks//shop", "/hooks/", "/hook/shop", "/media/hooks/shop"])
def test_path_that_only_resembles_a_hook_is_not_found(path: str):
    """platforms.md 1.1: no redirect to what was meant: Twilio would ask again with GET, and without the form."""
    channel = FakeChannel()
    assert browser(channel).post(path).status_code == 404
    assert channel.hooks == []


@pytest.mark.parametrize(
    ("path", "signed"),
    [("/hooks/shop/", "/hooks/shop/"), ("/hooks/shop/status/?delivery=1", "/hooks/shop/status/?delivery=1")],
)
def test_slash_at_the_end_is_no_other_hook(path: str, signed: str):
    """Whoever typed it into the platform's console is served, and what is verified is what the platform signed."""
    channel = FakeChannel()
    assert browser(channel).post(path).status_code == 200
    (hook,) = channel.hooks
    assert hook.url == PUBLIC_URL + signed
    assert hook.path in ("", "status")


@pytest.mark.parametrize("path", ["/bots/hooks/shop", "/hooks/shop"])
def test_path_of_public_url_works_with_and_without_a_proxy_that_takes_it_off(path: str):
    """The URL that is verified is the public one in both."""
    channel = FakeChannel()
    assert browser(channel, public_url="https://x.example/bots").post(path).status_code == 200
    assert channel.hooks[0].url == "https://x.example/bots/hooks/shop"


def test_path_that_only_begins_like_that_of_public_url_is_another(caplog: pytest.LogCaptureFixture):
    """/botsy is not below /bots."""
    channel = FakeChannel()
    assert browser(channel, public_url="https://x.example/bots").post("/botsy/hooks/shop").status_code == 404
    assert channel.hooks == []


def test_refused_hook_logs_the_url_that_was_compared(caplog: pytest.LogCaptureFixture):
    """Without its query, which may hold anything; the reason says what was wrong."""
    channel = FakeChannel(Forbidden("there is no X-Twilio-Signature header"))
    assert browser(channel).post("/hooks/shop?token=s3cret").status_code == 403
    (record,) = [each for each in caplog.records if each.message == "hook.forbidden"]
    assert (record.url, record.reason) == (f"{PUBLIC_URL}/hooks/shop", "there is no X-Twilio-Signature header")


@pytest.mark.parametrize("refusal", [Forbidden("no signature"), BadHook("no JSON")])
def test_flood_of_bad_hooks_is_one_line_a_minute_for_each_address(caplog: pytest.LogCaptureFixture, refusal: Exception):
    """Strangers cannot fill the disk with lines, nor hide what others are refused."""
    client = browser(FakeChannel(refusal))
    for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
        assert client.post("/hooks/shop", environ_base={"REMOTE_ADDR": address}).status_code in (400, 403)
    lines = [each for each in caplog.records if each.message in ("hook.forbidden", "hook.bad")]
    assert [line.address for line in lines] == ["192.0.2.1", "192.0.2.2"]


def test_mistake_of_ours_is_an_error_with_its_traceback(caplog: pytest.LogCaptureFixture):
    """500, so that the platform repeats it, and nothing of it in the answer."""
    answer = browser(FakeChannel(RuntimeError("no such thing"))).post("/hooks/shop")
    assert (answer.status_code, "such thing" in answer.text) == (500, False)
    assert "RuntimeError: no such thing" in caplog.text


def test_webhooks_are_posted():
    """platforms.md 1.1: a GET is 405: no crawler starts anything."""
    assert browser(FakeChannel()).get("/hooks/shop").status_code == 405


def test_large_body_is_refused_unread():
    """413 over the limit; the limit itself passes."""
    channel = FakeChannel()
    client = browser(channel)
    assert client.post("/hooks/shop", data=b"x" * (MAX_BODY + 1)).status_code == 413
    assert channel.hooks == []
    assert client.post("/hooks/shop", data=b"x" * MAX_BODY).status_code == 200


def test_large_body_without_a_length_is_refused():
    """A chunked body is counted while it is read."""
    body = io.BytesIO(b"x" * (MAX_BODY + 1))
    answer = browser(FakeChannel()).post("/hooks/shop", input_stream=body, environ_base={"wsgi.input_terminated": True})
    assert answer.status_code == 413


def test_url_is_the_one_the_platform_was_given():
    """platforms.md 1.2: signatures are over the public URL with the raw path and query, whatever a proxy writes."""
    channel = FakeChannel()
    browser(channel).post(
        "/hooks/shop/status?tenant=a%20b&x=%2F", headers={"Host": "10.0.0.7", "X-Forwarded-Host": "evil"}
    )
    hook = channel.hooks[0]
    assert hook.url == f"{PUBLIC_URL}/hooks/shop/status?tenant=a%20b&x=%2F"
    assert hook.path == "status"


def test_body_reaches_the_channel_byte_for_byte():
    """platforms.md 3.2: a form is not decoded before its signature is checked."""
    channel = FakeChannel()
    body = b"Body=a%20b+c&Body=\xff&x="
    browser(channel).post("/hooks/shop", data=body, content_type="application/x-www-form-urlencoded")
    assert channel.hooks[0].body == body
    assert channel.hooks[0].header("Content-Type") == "application/x-www-form-urlencoded"


def test_answer_is_the_channels_own():
    """Status, body and content type go back as the adapter wants them."""
    answer = WebhookResponse(201, "<Response/>", "text/xml")
    heard = browser(FakeChannel(Received(answer=answer))).post("/hooks/shop")
    assert (heard.status_code, heard.text, heard.mimetype) == (201, "<Response/>", "text/xml")
    assert heard.content_length == len(answer.body)


def test_tap_is_accepted_for_the_action_its_button_was_minted_for():
    """platforms.md 2.1: a foreign button is for no action."""
    mailbox = FakeMailbox()
    browser(FakeChannel(Received(turns=(replace(TURN, tap=Tap("foreign")),))), mailbox).post("/hooks/shop")
    assert mailbox.turns[0][1] == ""


def test_status_is_kept_with_its_delivery():
    """What a platform reports later is stored; one that names no delivery is only logged."""
    kept = FakeDeliveries()
    statuses = (StatusUpdate("SM1", "failed", "63016", "wa:aa#3"), StatusUpdate("SM2", "read"))
    assert browser(FakeChannel(Received(statuses=statuses)), deliveries=kept).post("/hooks/shop").status_code == 200
    assert kept.reports == [("wa:aa#3", "SM1", "failed", "error 63016")]


def test_status_that_cannot_be_kept_is_not_acknowledged():
    """Redis is away: the platform may try again."""
    kept = FakeDeliveries()
    kept.report = lambda *_: away()
    hook = Received(statuses=(StatusUpdate("SM1", "failed", "63016", "wa:aa#3"),))
    assert browser(FakeChannel(hook), deliveries=kept).post("/hooks/shop").status_code == 503


def test_logs_hold_no_numbers_and_no_words(caplog: pytest.LogCaptureFixture):
    """A status is logged by its name, a turn by its conversation's id."""
    caplog.set_level(logging.INFO)
    statuses = (StatusUpdate("SM4915100000042", "failed", "63016"), StatusUpdate("SM2", "delivered"))
    browser(FakeChannel(Received(turns=(TURN,), statuses=statuses))).post("/hooks/shop")
    lines = " ".join(str(vars(record)) for record in caplog.records)
    assert [record.levelname for record in caplog.records if record.message == "reply.status"] == ["WARNING", "INFO"]
    assert "63016" in lines
    assert TURN.conversation.id in lines
    assert not any(word in lines for word in ("4915100000042", "hello", "SM2"))


@pytest.mark.parametrize(
    ("received", "kind"),
    [(Received(turns=(TURN,)), "receiving"), (Received(statuses=(StatusUpdate("SM1", "delivered"),)), "delivering")],
)
def test_alert_ends_once_the_channel_works_again(received: Received, kind: str):
    """A message ends an alert about receiving, a reply that arrived one about delivering; neither ends the other."""
    alerts = MemoryAlerts()
    for each in ("receiving", "delivering", "sending"):
        alerts.note("shop", each, each)
    browser(FakeChannel(received), alerts=alerts, deliveries=FakeDeliveries()).post("/hooks/shop")
    assert alerts.is_clearing_due("shop", kind) is False
    assert sum(alerts.is_clearing_due("shop", each) for each in ("receiving", "delivering", "sending")) == 2


def test_what_a_platform_says_of_addresses_and_of_the_channel_is_kept(caplog):
    """A bot that was blocked, one that was let in again, and a token that was revoked, which the operator must hear."""
    room, kept, alerts = Conversation("shop", "c"), FakeDeliveries(), MemoryAlerts()
    news = (AddressChange(room, "blocked"), AddressChange(room), AddressChange(room, "gone", late=True))
    channel = FakeChannel(Received(addresses=news, alerts=("the token was revoked",)))
    assert browser(channel, deliveries=kept, alerts=alerts).post("/hooks/shop").status_code == 200
    assert kept.closed == [(room.id, "blocked"), (room.id, ""), (room.id, "late: gone")]
    assert [(alert.channel, alert.text) for alert in alerts.of(["shop"])] == [("shop", "the token was revoked")]
    assert "channel.alert" in caplog.messages
