"""Webhooks: only stored turns are acknowledged, and only signed webhooks get in."""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis
from redis.connection import UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.channels.base import BadHook, Forbidden
from sayso.channels.inbound_limits import MAX_WEBHOOK_BYTES
from sayso.channels.types import (
    AddressChange,
    Conversation,
    Media,
    Received,
    RefusedTemplate,
    StatusUpdate,
    Tap,
    WebhookResponse,
)
from sayso.infra.records import OtherVersion
from sayso.infra.redis.client import connect, set_web_timeouts
from sayso.infra.redis.connections import Connections
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.deliveries import RedisDeliveries
from sayso.workers.mailbox import RedisMailbox
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.spool import Spool, SpoolFile
from tests.channels.web.services import (
    PUBLIC_URL,
    TURN,
    FakeChannel,
    FakeDeliveries,
    FakeMailbox,
    browser,
)
from tests.contracts.rigs import voice
from tests.memory_stores import MemoryAlerts


def away() -> str:
    """Raise the error of a mailbox without Redis."""
    raise RedisConnectionError("Error 111 connecting to redis:6379")


def test_webhook_in_an_outage_is_not_acknowledged():
    """platforms.md 2.1: a platform repeats a webhook that got 503, and Retry-After tells when."""
    answer = browser(FakeChannel(Received(turns=(TURN,))), FakeMailbox(away)).post("/hooks/shop")
    assert (answer.status_code, answer.headers["Retry-After"], answer.mimetype) == (
        503,
        "5",
        "text/plain",
    )
    assert "redis" not in answer.text.lower()


def test_webhook_that_meets_a_record_of_another_release_is_not_acknowledged():
    """As after a rollback. A process that can read the record may get it the next time."""

    def other_release() -> str:
        raise OtherVersion(2)

    answer = browser(FakeChannel(Received(turns=(TURN,))), FakeMailbox(other_release)).post(
        "/hooks/shop"
    )
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")


def test_webhook_in_an_outage_is_tried_twice_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """platforms.md 1.1, 3.1: the platform waits for seconds only, so one retry follows at once, then 503."""
    tries, here, sleep = [], threading.get_ident(), time.sleep

    def no_pause(seconds: float) -> None:
        """Fail if this thread pauses. Threads that other tests left behind may."""
        if threading.get_ident() == here:
            pytest.fail(f"slept {seconds} s")
        sleep(seconds)

    monkeypatch.setattr("time.sleep", no_pause)
    monkeypatch.setattr(
        UnixDomainSocketConnection, "_connect", lambda _: tries.append("") or away()
    )
    mailbox = RedisMailbox(
        ShardedScripts(connect(f"unix://{tmp_path}/redis.sock"), CONVERSATION_SCRIPTS), voice
    )
    answer = browser(FakeChannel(Received(turns=(TURN,))), mailbox).post("/hooks/shop")
    assert (answer.status_code, len(tries)) == (503, 2)


def test_hanging_storage_delays_one_webhook(silent: socket.socket):
    """platforms.md 1.1: the server accepts connections and never answers. One webhook waits, the next ones do not."""
    mailbox = RedisMailbox(ShardedScripts(hurried(silent), CONVERSATION_SCRIPTS), voice)
    client = browser(FakeChannel(Received(turns=(TURN,))), mailbox)
    answers = [client.post("/hooks/shop") for _ in range(5)]
    assert {(answer.status_code, answer.headers["Retry-After"]) for answer in answers} == {
        (503, "5")
    }
    assert connections_to(silent) == 1


def test_status_does_not_wait_for_a_hanging_storage(silent: socket.socket):
    """Every webhook calls the same server."""
    hook, redis = (
        Received(statuses=(StatusUpdate("SM1", "failed", "63016", "wa:aa#3"),)),
        hurried(silent),
    )
    mailbox, kept = (
        RedisMailbox(ShardedScripts(redis, CONVERSATION_SCRIPTS), voice),
        RedisDeliveries(ShardedScripts(redis, CONVERSATION_SCRIPTS)),
    )
    turns, statuses = FakeChannel(Received(turns=(TURN,))), FakeChannel(hook)
    assert browser(turns, mailbox).post("/hooks/shop").status_code == 503
    assert browser(statuses, mailbox, deliveries=kept).post("/hooks/shop").status_code == 503
    assert connections_to(silent) == 1


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Return a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        server.setblocking(False)
        yield server


def hurried(server: socket.socket) -> Redis:
    """Return a web process's client while another caller probes the server."""
    client = connect(f"redis://127.0.0.1:{server.getsockname()[1]}")
    set_web_timeouts(client, answer_seconds=0.05)
    Connections.of(client).circuit_breaker._pause_seconds = 1000.0
    return client


def connections_to(server: socket.socket) -> int:
    """Return the number of connections that wait to be accepted."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


def test_turn_on_the_spool_is_acknowledged(tmp_path: Path):
    """It is on disk, so the platform need not repeat it."""
    file, mailbox = SpoolFile(tmp_path), FakeMailbox(away)
    client = browser(FakeChannel(Received(turns=(TURN,))), mailbox, spool=unwatched(file, mailbox))
    assert [client.post("/hooks/shop").status_code for _ in range(2)] == [200, 200]
    assert [kept.turn for kept in SpoolFile(tmp_path).next(0, 10)] == [TURN]


def test_turn_that_the_spool_refuses_is_never_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Redis is unreachable and the disk is full, so the platform must repeat it."""
    monkeypatch.setattr("sayso.workers.spool.MAX_TURNS", 0)
    file, mailbox = SpoolFile(tmp_path), FakeMailbox(away)
    answer = browser(
        FakeChannel(Received(turns=(TURN,))), mailbox, spool=unwatched(file, mailbox)
    ).post("/hooks/shop")
    assert (answer.status_code, answer.headers["Retry-After"], answer.mimetype) == (
        503,
        "5",
        "text/plain",
    )
    assert str(tmp_path) not in answer.text


def unwatched(file: SpoolFile, mailbox: FakeMailbox) -> Spool:
    """Return a spool that no thread empties."""
    spool = Spool(file, mailbox)  # type: ignore[arg-type]
    spool.watch = lambda: None  # type: ignore[method-assign]
    return spool


def test_full_mailbox_is_never_acknowledged():
    """The platform must send a refused turn again."""
    mailbox = FakeMailbox(lambda: "full")
    answer = browser(FakeChannel(Received(turns=(TURN,))), mailbox).post("/hooks/shop")
    assert (answer.status_code, answer.headers["Retry-After"], answer.mimetype) == (
        503,
        "5",
        "text/plain",
    )


def test_one_refused_turn_of_several_refuses_the_webhook():
    """The webhook comes again, and stored turns are duplicates then."""
    outcomes = iter(["new", "full"])
    mailbox = FakeMailbox(lambda: next(outcomes))
    hook = Received(
        turns=(TURN, replace(TURN, event_id="event-2"), replace(TURN, event_id="event-3"))
    )
    assert browser(FakeChannel(hook), mailbox).post("/hooks/shop").status_code == 503
    assert len(mailbox.turns) == 2


def test_unsigned_webhook_is_forbidden():
    """The answer is 403, and no turn is stored."""
    mailbox = FakeMailbox()
    answer = browser(FakeChannel(Forbidden("the signature is wrong")), mailbox).post("/hooks/shop")
    assert (answer.status_code, mailbox.turns) == (403, [])


def test_senseless_webhook_is_a_bad_request():
    """The answer is 400, and no turn is stored."""
    assert browser(FakeChannel(BadHook("no JSON"))).post("/hooks/shop").status_code == 400


def test_unknown_channel_is_not_found():
    """The answer is 404 for every body."""
    assert browser(FakeChannel()).post("/hooks/other", data=b"x").status_code == 404


def test_turn_with_a_field_of_a_wrong_type_is_dropped(caplog: pytest.LogCaptureFixture):
    """platforms.md 2.1: it could never be read back, and a repetition would be the same: 200 and a line in the log."""
    mailbox = FakeMailbox()
    bent = replace(TURN, user_id={"id": 4915100000042})  # type: ignore[arg-type]
    assert (
        browser(FakeChannel(Received(turns=(bent, TURN))), mailbox).post("/hooks/shop").status_code
        == 200
    )
    assert [turn for turn, _ in mailbox.turns] == [TURN]
    assert "turn.malformed" in caplog.messages
    assert "4915100000042" not in caplog.text


def test_turn_that_no_worker_can_read_is_dropped():
    """A missing file id would be stored without an error and would stop its conversation for ever."""
    mailbox = FakeMailbox()
    bent = replace(TURN, media=(Media(None, "image/png"),))  # type: ignore[arg-type]
    assert (
        browser(FakeChannel(Received(turns=(bent, TURN))), mailbox).post("/hooks/shop").status_code
        == 200
    )
    assert [turn for turn, _ in mailbox.turns] == [TURN]


def test_turn_with_an_invalid_address_is_dropped(caplog: pytest.LogCaptureFixture):
    """The chat id is half a surrogate pair; the turn beside it is stored."""
    mailbox = FakeMailbox()
    news = AddressChange(Conversation("shop", "\ud800"), "blocked")
    received = Received(turns=(TURN,), addresses=(news,))
    assert browser(FakeChannel(received), mailbox).post("/hooks/shop").status_code == 200
    assert ([turn for turn, _ in mailbox.turns], "address.malformed" in caplog.messages) == (
        [TURN],
        True,
    )


@pytest.mark.parametrize(
    "path", ["/hooks/shop//", "/hooks//shop", "/hooks/", "/hook/shop", "/media/hooks/shop"]
)
def test_path_that_only_resembles_a_webhook_is_not_found(path: str):
    """platforms.md 1.1: there is no redirect, since Twilio would follow it with GET and without the form."""
    channel = FakeChannel()
    assert browser(channel).post(path).status_code == 404
    assert channel.hooks == []


@pytest.mark.parametrize(
    ("path", "signed"),
    [
        ("/hooks/shop/", "/hooks/shop/"),
        ("/hooks/shop/status/?delivery=1", "/hooks/shop/status/?delivery=1"),
    ],
)
def test_slash_at_the_end_makes_no_other_webhook(path: str, signed: str):
    """A URL typed with a slash works, and the signature is checked over the URL that the platform signed."""
    channel = FakeChannel()
    assert browser(channel).post(path).status_code == 200
    (hook,) = channel.hooks
    assert hook.url == PUBLIC_URL + signed
    assert hook.path in ("", "status")


@pytest.mark.parametrize("path", ["/bots/hooks/shop", "/hooks/shop"])
def test_path_of_public_url_works_with_and_without_a_proxy_that_strips_it(path: str):
    """The verified URL is the public one in both cases."""
    channel = FakeChannel()
    assert browser(channel, public_url="https://x.example/bots").post(path).status_code == 200
    assert channel.hooks[0].url == "https://x.example/bots/hooks/shop"


def test_path_that_only_starts_like_that_of_public_url_is_another(caplog: pytest.LogCaptureFixture):
    """/botsy is not below /bots."""
    channel = FakeChannel()
    assert (
        browser(channel, public_url="https://x.example/bots").post("/botsy/hooks/shop").status_code
        == 404
    )
    assert channel.hooks == []


def test_refused_webhook_logs_the_compared_url(caplog: pytest.LogCaptureFixture):
    """The log has no query, which may hold secrets, and names the reason."""
    channel = FakeChannel(Forbidden("there is no X-Twilio-Signature header"))
    assert browser(channel).post("/hooks/shop?token=s3cret").status_code == 403
    (record,) = [each for each in caplog.records if each.message == "hook.forbidden"]
    assert (record.url, record.reason) == (
        f"{PUBLIC_URL}/hooks/shop",
        "there is no X-Twilio-Signature header",
    )


@pytest.mark.parametrize("refusal", [Forbidden("no signature"), BadHook("no JSON")])
def test_flood_of_bad_webhooks_logs_one_line_a_minute_each(
    caplog: pytest.LogCaptureFixture, refusal: Exception
):
    """A client can neither fill the disk with log lines nor hide the refusals of others."""
    client = browser(FakeChannel(refusal))
    for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
        assert client.post("/hooks/shop", environ_base={"REMOTE_ADDR": address}).status_code in (
            400,
            403,
        )
    lines = [each for each in caplog.records if each.message in ("hook.forbidden", "hook.bad")]
    assert [line.address for line in lines] == ["192.0.2.1", "192.0.2.2"]


def test_internal_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture):
    """The answer is 500 without details, so that the platform repeats the webhook."""
    answer = browser(FakeChannel(RuntimeError("no such thing"))).post("/hooks/shop")
    assert (answer.status_code, "such thing" in answer.text) == (500, False)
    assert "RuntimeError: no such thing" in caplog.text


def test_webhooks_are_posted():
    """platforms.md 1.1: a GET gets 405, so a crawler starts nothing."""
    assert browser(FakeChannel()).get("/hooks/shop").status_code == 405


def test_large_body_is_refused_unread():
    """The answer is 413 over the limit; the limit itself passes."""
    channel = FakeChannel()
    client = browser(channel)
    assert client.post("/hooks/shop", data=b"x" * (MAX_WEBHOOK_BYTES + 1)).status_code == 413
    assert channel.hooks == []
    assert client.post("/hooks/shop", data=b"x" * MAX_WEBHOOK_BYTES).status_code == 200


def test_large_body_without_a_length_is_refused():
    """A chunked body is counted while it is read."""
    body = io.BytesIO(b"x" * (MAX_WEBHOOK_BYTES + 1))
    answer = browser(FakeChannel()).post(
        "/hooks/shop", input_stream=body, environ_base={"wsgi.input_terminated": True}
    )
    assert answer.status_code == 413


def test_signature_is_checked_over_the_public_url():
    """platforms.md 1.2: it is the public URL with the raw path and query, whatever a proxy changes."""
    channel = FakeChannel()
    browser(channel).post(
        "/hooks/shop/status?tenant=a%20b&x=%2F",
        headers={"Host": "10.0.0.7", "X-Forwarded-Host": "evil"},
    )
    hook = channel.hooks[0]
    assert hook.url == f"{PUBLIC_URL}/hooks/shop/status?tenant=a%20b&x=%2F"
    assert hook.path == "status"


def test_body_reaches_the_channel_byte_for_byte():
    """platforms.md 3.2: a form is not decoded before its signature is checked."""
    channel = FakeChannel()
    body = b"Body=a%20b+c&Body=\xff&x="
    browser(channel).post(
        "/hooks/shop", data=body, content_type="application/x-www-form-urlencoded"
    )
    assert channel.hooks[0].body == body
    assert channel.hooks[0].header("Content-Type") == "application/x-www-form-urlencoded"


def test_answer_is_that_of_the_channel():
    """Status, body and content type are those of the adapter."""
    answer = WebhookResponse(201, "<Response/>", "text/xml")
    heard = browser(FakeChannel(Received(answer=answer))).post("/hooks/shop")
    assert (heard.status_code, heard.text, heard.mimetype) == (201, "<Response/>", "text/xml")
    assert heard.content_length == len(answer.body)


def test_tap_is_accepted_for_the_action_of_its_button():
    """platforms.md 2.1: a foreign button belongs to no action."""
    mailbox = FakeMailbox()
    browser(FakeChannel(Received(turns=(replace(TURN, tap=Tap("foreign")),))), mailbox).post(
        "/hooks/shop"
    )
    assert mailbox.turns[0][1] == ""


def test_status_is_stored_with_its_delivery():
    """A later report is stored; one without a delivery is only logged."""
    kept = FakeDeliveries()
    statuses = (StatusUpdate("SM1", "failed", "63016", "wa:aa#3"), StatusUpdate("SM2", "read"))
    assert (
        browser(FakeChannel(Received(statuses=statuses)), deliveries=kept)
        .post("/hooks/shop")
        .status_code
        == 200
    )
    assert kept.reports == [("wa:aa#3", "SM1", "failed", "error 63016")]


def test_status_that_cannot_be_stored_is_not_acknowledged():
    """Redis is unreachable, and the platform may repeat it."""
    kept = FakeDeliveries()
    kept.report = lambda *_: away()
    hook = Received(statuses=(StatusUpdate("SM1", "failed", "63016", "wa:aa#3"),))
    assert browser(FakeChannel(hook), deliveries=kept).post("/hooks/shop").status_code == 503


def test_logs_hold_no_phone_numbers_and_no_text(caplog: pytest.LogCaptureFixture):
    """The log has the name of a status and the conversation id of a turn."""
    caplog.set_level(logging.INFO)
    statuses = (
        StatusUpdate("SM4915100000042", "failed", "63016"),
        StatusUpdate("SM2", "delivered"),
    )
    browser(FakeChannel(Received(turns=(TURN,), statuses=statuses))).post("/hooks/shop")
    lines = " ".join(str(vars(record)) for record in caplog.records)
    assert [record.levelname for record in caplog.records if record.message == "reply.status"] == [
        "WARNING",
        "INFO",
    ]
    assert "63016" in lines
    assert TURN.conversation.id in lines
    assert not any(word in lines for word in ("4915100000042", "hello", "SM2"))


@pytest.mark.parametrize(
    ("received", "kind"),
    [
        (Received(turns=(TURN,)), "receiving"),
        (Received(statuses=(StatusUpdate("SM1", "delivered"),)), "delivering"),
    ],
)
def test_alert_ends_once_the_channel_works_again(received: Received, kind: str):
    """A message ends an alert about receiving, a delivered reply one about sending; neither ends the other."""
    alerts = MemoryAlerts()
    for each in ("receiving", "delivering", "sending"):
        alerts.note("shop", each, each)
    browser(FakeChannel(received), alerts=alerts, deliveries=FakeDeliveries()).post("/hooks/shop")
    assert alerts.is_clearing_due("shop", kind) is False
    assert (
        sum(alerts.is_clearing_due("shop", each) for each in ("receiving", "delivering", "sending"))
        == 2
    )


def test_alert_of_a_webhook_with_a_delivered_reply_stays():
    """One of its replies arrived, and another did not: the operator must hear of that."""
    alerts = MemoryAlerts()
    statuses = (StatusUpdate("SM1", "failed", "63007"), StatusUpdate("SM2", "delivered"))
    received = Received(statuses=statuses, alerts=("the sender is unknown",))
    browser(FakeChannel(received), alerts=alerts).post("/hooks/shop")
    assert [alert.text for alert in alerts.of(["shop"])] == ["the sender is unknown"]


def test_report_without_an_error_gives_no_reason():
    """The reason of an answer that a model failed to give must not be lost."""
    deliveries = FakeDeliveries()
    update = StatusUpdate("SM1", "delivered", delivery="wa:aa#3")
    browser(FakeChannel(Received(statuses=(update,))), deliveries=deliveries).post("/hooks/shop")
    assert deliveries.reports == [("wa:aa#3", "SM1", "delivered", "")]


def test_operator_is_told_of_a_refused_template_until_one_arrives(caplog):
    """Other replies that arrive say nothing of templates.

    Nor does one that Twilio has only sent.
    """
    alerts = MemoryAlerts()
    refusal = RefusedTemplate("HX1", "Meta has paused it", "name another one")
    failed = StatusUpdate("SM1", "failed", "63041", template="HX1")
    browser(
        FakeChannel(Received(statuses=(failed,), refused_templates=(refusal,))), alerts=alerts
    ).post("/hooks/shop")
    for update in (StatusUpdate("SM2", "delivered"), StatusUpdate("SM3", "sent", template="HX1")):
        browser(FakeChannel(Received(statuses=(update,))), alerts=alerts).post("/hooks/shop")
    assert [alert.text for alert in alerts.of(["shop"])] == [
        "template HX1: Meta has paused it: name another one"
    ]
    assert "template.refused" in caplog.messages
    arrived = StatusUpdate("SM3", "delivered", template="HX1")
    browser(FakeChannel(Received(statuses=(arrived,))), alerts=alerts).post("/hooks/shop")
    assert alerts.of(["shop"]) == []


def test_report_of_an_opt_out_closes_the_conversation_of_its_reply():
    """The address that the platform names may be another one of the same person."""
    kept = FakeDeliveries()
    room = Conversation("shop", "other")
    change = AddressChange(room, "opted out", late=True, delivery="shop:abc#7", opted_out=True)
    browser(FakeChannel(Received(addresses=(change,))), deliveries=kept).post("/hooks/shop")
    assert kept.closed == [("shop:abc#7", "late: opted out: opted out")]


def test_reports_on_addresses_and_on_the_channel_are_stored(caplog):
    """The reports are a blocked bot, an unblocked one, and a revoked token, of which the operator is told."""
    room, kept, alerts = Conversation("shop", "c"), FakeDeliveries(), MemoryAlerts()
    news = (
        AddressChange(room, "blocked"),
        AddressChange(room),
        AddressChange(room, "gone", late=True),
    )
    channel = FakeChannel(Received(addresses=news, alerts=("the token was revoked",)))
    assert browser(channel, deliveries=kept, alerts=alerts).post("/hooks/shop").status_code == 200
    assert kept.closed == [(room.id, "blocked"), (room.id, ""), (room.id, "late: gone")]
    assert [(alert.channel, alert.text) for alert in alerts.of(["shop"])] == [
        ("shop", "the token was revoked")
    ]
    assert "channel.alert" in caplog.messages
