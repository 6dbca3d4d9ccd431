"""EchoApp: a small web app around console channels with a bot that echoes messages, and the feeds that tests use."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import flask

from sayso.channels.base import BadHook, Forbidden
from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.console.store import FeedEntries, FeedEntry, StoreDown
from sayso.channels.console.views import console_pages
from sayso.channels.media_store import LocalMediaStore
from sayso.channels.types import Delivery, Reply, Turn, WebhookRequest
from sayso.infra.concurrency import run_sync
from sayso.pending.web_forms import WebForms
from tests.memory_stores import MemoryFeed

KEYS = ["console-test-key"]


class EchoApp:
    """A Flask app around console channels. It shows typing and echoes each turn before it answers the request.

    While `holds` is true, turns wait as if no worker were running. `forms`: those of its questions.
    """

    def __init__(
        self, *channels: ConsoleChannel, media: LocalMediaStore, **page_options: Any
    ) -> None:
        self.turns: list[Turn] = []
        self.holds = False
        self.held: list[Turn] = []
        self.forms: WebForms | None = None
        self.app = flask.Flask("echo")
        waiting = {"turn_status": self._turn_status, "why_waiting": lambda: "No worker is running."}
        self.app.register_blueprint(console_pages(*channels, **waiting, **page_options))
        by_name = {channel.name: channel for channel in channels}

        @self.app.post("/hooks/<name>")
        def hook(name: str) -> flask.Response | tuple[str, int]:
            request = flask.request
            headers = {key.lower(): value for key, value in request.headers.items()}
            try:
                received = by_name[name].receive(
                    WebhookRequest(request.url, headers, request.get_data())
                )
            except Forbidden as exc:
                return str(exc), 403
            except BadHook as exc:
                return str(exc), 400
            if self.forms:
                received = self.forms.answer_form(by_name[name], received)
            for turn in received.turns:
                self.turns.append(turn)
                if self.holds:
                    self.held.append(turn)
                    continue
                asyncio.run(self._answer(by_name[name], turn))
            return flask.Response(
                received.answer.body, received.answer.status, mimetype=received.answer.content_type
            )

        @self.app.get("/media/<token>")
        def file(token: str) -> flask.Response:
            linked = media.open_token(token)
            return flask.send_file(
                media.open(linked.ref), linked.mime_type, download_name=linked.filename
            )

    def release(self, channel: ConsoleChannel) -> None:
        """Answer the waiting turns, as a worker that starts."""
        self.holds = False
        while self.held:
            run_sync(self._answer(channel, self.held[0]))
            del self.held[0]

    def _turn_status(self, turn: Turn) -> str:
        return "waits" if turn.event_id in {held.event_id for held in self.held} else "done"

    async def _answer(self, channel: ConsoleChannel, turn: Turn) -> None:
        await channel.show_typing(turn)
        await channel.send(Delivery(f"d-{turn.event_id}", turn.conversation, self.reply(turn)))

    def reply(self, turn: Turn) -> Reply:
        """Return the bot's reply; a test may replace this method."""
        return (
            Reply(f"You tapped `{turn.tap.data}`")
            if turn.tap
            else Reply(f"You said **{turn.text}**")
        )


class QuietFeed(MemoryFeed):
    """A feed that never blocks."""

    def read(self, conversation_id: str, after: str, block_ms: int) -> FeedEntries:
        """Return the entries that are there now."""
        return super().read(conversation_id, after, 0)


class HangingFeed(MemoryFeed):
    """A feed whose reads hang while `works` is not set, as in a process that does not go on."""

    def __init__(self) -> None:
        super().__init__()
        self.works = threading.Event()
        self.works.set()

    def read(self, conversation_id: str, after: str, block_ms: int) -> FeedEntries:
        """Return the entries after an id, once the feed works."""
        self.works.wait()
        return super().read(conversation_id, after, min(block_ms, 50))


class DownFeed:
    """A feed whose store is unavailable."""

    def append(self, conversation_id: str, entry: FeedEntry, replaces: str = "") -> str:
        """Raise StoreDown."""
        raise StoreDown("cannot append to the feed: ConnectionError")

    def find(self, conversation_id: str, entry_id: str) -> FeedEntry | None:
        """Raise StoreDown."""
        raise StoreDown("cannot read the feed: ConnectionError")

    def read_back(self, conversation_id: str, before: str, count: int) -> FeedEntries:
        """Raise StoreDown."""
        raise StoreDown("cannot read the feed: ConnectionError")

    def read(self, conversation_id: str, after: str, block_ms: int) -> FeedEntries:
        """Raise StoreDown."""
        raise StoreDown("cannot read the feed: ConnectionError")
