"""Peers: the same work in plain Flask and RQ, as a short example in their manuals would do it.

python -m benchmarks.peers web <port> | fork | simple | floor-web <port> | floor        (with REDIS_URL)

The webhook verifies with the standard library, de-duplicates by SET NX and calls `Queue.enqueue`; the job waits as long
as the text says and answers with one HTTP POST over a connection that its process keeps. It keeps none of the product's
promises: no order, no history, no lease, no outbox.

The floor is the least that a message costs without RQ: one script stores it, BLMOVE takes it, a thread posts the
answer, and LREM forgets it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import parse_qsl, urlsplit

from flask import Flask, abort, request
from redis import Redis
from rq import Queue, SimpleWorker, Worker
from rq.serializers import JSONSerializer

from sayso.testing.platforms.fake_platforms import (
    SLACK_BOT_TOKEN,
    SLACK_SIGNING_SECRET,
    TELEGRAM_SECRET,
    TWILIO_AUTH_TOKEN,
)

QUEUE = "bench-peer"
#: Where the floor keeps messages that wait, and those that are answered now.
KEPT, TAKEN = "bench:kept", "bench:taken"
FLOOR_THREADS = 64

#: The floor's one script: remember the event, and store the message.
FLOOR = "if redis.call('SET', KEYS[1], 1, 'NX', 'EX', 86400) then redis.call('RPUSH', KEYS[2], ARGV[1]) end return 1"

#: Stores one message: event id, chat, text, raw body.
Keep = Callable[[str, str, str, bytes], object]


def peer_app(keep: Keep, public_url: str = "") -> Flask:
    """Return a Flask app that takes the signed webhooks of three platforms."""
    app = Flask("peer")

    @app.post("/hooks/desk")
    def slack() -> str:
        body, stamp = request.get_data(), request.headers["X-Slack-Request-Timestamp"]
        digest = hmac.new(
            SLACK_SIGNING_SECRET.encode(), b"v0:%b:%b" % (stamp.encode(), body), hashlib.sha256
        )
        fresh = abs(time.time() - int(stamp)) < 300
        if not fresh or not hmac.compare_digest(
            "v0=" + digest.hexdigest(), request.headers["X-Slack-Signature"]
        ):
            abort(403)
        said = json.loads(body)
        keep(said["event_id"], said["event"]["channel"], said["event"]["text"], body)
        return ""

    @app.post("/hooks/ops-tg")
    def telegram() -> str:
        if not hmac.compare_digest(
            request.headers["X-Telegram-Bot-Api-Secret-Token"], TELEGRAM_SECRET
        ):
            abort(403)
        body = request.get_data()
        said = json.loads(body)
        keep(
            str(said["update_id"]),
            str(said["message"]["chat"]["id"]),
            said["message"]["text"],
            body,
        )
        return ""

    @app.post("/hooks/shop-wa")
    def whatsapp() -> str:
        body = request.get_data()
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        words = public_url + request.path + "".join(name + form[name] for name in sorted(form))
        digest = hmac.new(TWILIO_AUTH_TOKEN.encode(), words.encode(), hashlib.sha1).digest()
        if not hmac.compare_digest(
            base64.b64encode(digest).decode(), request.headers["X-Twilio-Signature"]
        ):
            abort(403)
        keep(form["MessageSid"], form["From"], form["Body"], body)
        return ""

    return app


def with_script(client: Redis) -> Keep:
    """Return the floor: one EVALSHA."""
    push = client.register_script(FLOOR)
    return lambda event, _, __, body: push(keys=[f"bench:seen:{event}", KEPT], args=[body])


def with_enqueue(client: Redis) -> Keep:
    """Return the example of RQ's manual, with a SET NX because platforms repeat webhooks."""
    queue = Queue(QUEUE, connection=client, serializer=JSONSerializer)

    def keep(event: str, chat: str, text: str, _: bytes) -> None:
        if client.set(f"bench:once:{event}", 1, nx=True, ex=86400):
            queue.enqueue("benchmarks.peers.answer", chat, text, result_ttl=0)

    return keep


#: The connections to the platform, by process and thread.
_connections: dict[tuple[int, int], HTTPConnection] = {}


def answer(chat: str, text: str) -> None:
    """Run the job: wait as long as the text says, then post a message."""
    command, _, seconds = text.partition(" ")
    if command == "/think":
        time.sleep(float(seconds))
    body = json.dumps(
        {"channel": chat, "text": text, "blocks": [_section(text)], "unfurl_links": False}
    )
    connection = _connections.setdefault(
        (os.getpid(), threading.get_ident()),
        HTTPConnection(urlsplit(os.environ["BENCH_PLATFORM"]).netloc),
    )
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {SLACK_BOT_TOKEN}"}
    connection.request("POST", "/api/chat.postMessage", body.encode(), headers)
    assert json.loads(connection.getresponse().read())["ok"]


def work_without_rq(client: Redis) -> None:
    """Answer what the floor's script has stored: the least that a worker can do. Never returns."""
    pool = ThreadPoolExecutor(FLOOR_THREADS)

    def work(body: bytes) -> None:
        message = json.loads(body)["event"]
        answer(message["channel"], message["text"])
        client.lrem(TAKEN, 1, body)  # type: ignore[arg-type]  # Redis takes bytes

    while True:
        taken = client.blmove(KEPT, TAKEN, 1)
        if taken:
            pool.submit(work, taken)


def _section(text: str) -> dict[str, object]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def main(command: str, *args: str) -> None:
    """Serve or work until SIGTERM."""
    client = Redis.from_url(os.environ["REDIS_URL"])
    if command in ("web", "floor-web"):
        from sayso.ops.server.http import serve
        from sayso.ops.server.processes import listen

        keep = with_enqueue(client) if command == "web" else with_script(client)
        serve(peer_app(keep), listen("127.0.0.1", int(args[0])), threads=32)
    elif command == "floor":
        work_without_rq(client)
    else:
        worker = {"fork": Worker, "simple": SimpleWorker}[command]
        queues = [Queue(QUEUE, connection=client, serializer=JSONSerializer)]
        worker(queues, connection=client, serializer=JSONSerializer).work(logging_level="WARNING")


if __name__ == "__main__":
    main(*sys.argv[1:])
