"""Platform: one fake Telegram that repeats a webhook until it gets 200, and records what people read.

The fake of Telegram's Bot API is Sayso's own (`sayso.testing.platforms`): it refuses what Telegram
refuses. Each app gets the same updates and answers by the same calls.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import httpx

from sayso.testing.platforms import webhooks
from sayso.testing.platforms.fake_platforms import TELEGRAM_SECRET, TELEGRAM_TOKEN, FakePlatforms
from sayso.testing.platforms.server import FakeResponse, RecordedRequest, json_response
from sayso.testing.platforms.telegram import FakeTelegram

#: The pause before a webhook is sent again, and how long its answer may take, in seconds.
AGAIN_SECONDS, ANSWER_SECONDS = 0.4, 30.0
#: A webhook is given up after this time, in seconds.
GIVE_UP_SECONDS = 150.0
#: Calls that show no words to the person, or only words that are replaced at once.
_NOT_READ = ("sendMessageDraft", "sendChatAction", "deleteMessage", "editMessageReplyMarkup")


@dataclass(frozen=True, slots=True)
class Read:
    """Words that a person read: a message, an edited message, or the notice after a tap."""

    at: float
    chat: str
    text: str
    buttons: tuple[str, ...]
    #: The number of the message; 0 for a notice.
    message: int


#: Called before a message is delivered, and after it: chat, text, True if delivered. It may kill.
#: Before delivery, True as its answer means that the message never arrives.
Watcher = Callable[[str, str, bool], bool]


class Platform:
    """The chat platform, from `with` to its end."""

    def __init__(self, watch: Watcher) -> None:
        self.watch = watch
        self.read: list[Read] = []
        self._platforms = FakePlatforms()
        self._platforms.fakes["telegram"] = _WatchedTelegram(self, self._platforms)
        self._numbers = itertools.count(1000)
        #: The chat of each tap, by the id of its query.
        self.tapped_chats: dict[str, str] = {}
        self._client = httpx.Client(timeout=ANSWER_SECONDS)
        self._over = threading.Event()

    @property
    def api_url(self) -> str:
        """The address of the Bot API, without the token."""
        return self._platforms.telegram_url

    @property
    def bot_url(self) -> str:
        """The address of the Bot API, with the token."""
        return f"{self.api_url}/bot{TELEGRAM_TOKEN}"

    def __enter__(self) -> Self:
        self._platforms.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._platforms.__exit__(*exc)
        self._client.close()

    def texts(self, chat: str, since: float = 0.0) -> list[str]:
        """Return what was read in a chat since a moment."""
        return [each.text for each in list(self.read) if each.chat == chat and each.at >= since]

    def write(self, hook: str, chat: str, text: str) -> Webhook:
        """Deliver a text of the chat's person. Return at once."""
        number = next(self._numbers)
        return self.deliver(hook, webhooks.telegram_text(number, text, **_place(chat)))

    def tap(self, hook: str, chat: str, data: str, person: int = 0, message: int = 0) -> Webhook:
        """Deliver a tap on a button, of the chat's person or of another. Return at once."""
        number = next(self._numbers)
        place = _place(chat)
        if person:
            place = {"user": person, "chat": int(chat)}
        if message:
            place["message_id"] = message
        self.tapped_chats[f"cb{number}"] = chat
        return self.deliver(hook, webhooks.telegram_tap(number, data, **place))

    def deliver(self, hook: str, update: dict[str, Any]) -> Webhook:
        """Send a webhook until it is answered with 200. Return at once."""
        headers, body = webhooks.telegram_hook(TELEGRAM_SECRET, update)
        webhook = Webhook()
        arguments = (hook, dict(headers), body, webhook)
        threading.Thread(target=self._repeat, args=arguments, daemon=True).start()
        return webhook

    def _repeat(self, hook: str, headers: dict[str, str], body: bytes, webhook: Webhook) -> None:
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < deadline and not (self._over.is_set() or webhook.ended.is_set()):
            webhook.tries += 1
            try:
                answer = self._client.post(hook, headers=headers, content=body)
                webhook.status = answer.status_code
            except (httpx.HTTPError, RuntimeError):
                webhook.status = 0
            if webhook.status == 200:
                break
            self._over.wait(AGAIN_SECONDS)
        webhook.ended.set()


class Webhook:
    """One webhook on its way: how often it was sent, the last status, and whether it came to an end."""

    def __init__(self) -> None:
        self.tries = 0
        self.status = 0
        self.ended = threading.Event()

    def give_up(self) -> None:
        """Send it no more."""
        self.ended.set()

    @property
    def accepted(self) -> bool:
        """Whether the app answered with 200."""
        return self.status == 200 and self.ended.is_set()


def _place(chat: str) -> dict[str, Any]:
    """Return who writes where: each chat has one person of its own."""
    return {"user": abs(int(chat)), "chat": int(chat)}


class _WatchedTelegram(FakeTelegram):
    """The fake that shows each message to the watcher, and records what is read."""

    def __init__(self, platform: Platform, platforms: FakePlatforms) -> None:
        super().__init__(platforms.log, TELEGRAM_TOKEN)
        self._platform = platform

    def answer(self, call: RecordedRequest) -> FakeResponse:
        method = call.route.rpartition("/")[2]
        params = call.params
        text = str(params.get("text") or params.get("caption") or "")
        query = str(params.get("callback_query_id", ""))
        chat = str(params.get("chat_id") or self._platform.tapped_chats.get(query, ""))
        is_read = bool(text) and method not in _NOT_READ
        if is_read and self._platform.watch(chat, text, False):
            return json_response(
                {"ok": False, "error_code": 502, "description": "Bad Gateway"}, 502
            )
        response = super().answer(call)
        if is_read and response.status == 200:
            self._note(chat, method, text)
            self._platform.watch(chat, text, True)
        return response

    def _note(self, chat: str, method: str, text: str) -> None:
        """Record what the person sees now: without markup, with the data of the buttons."""
        seen = Read(time.monotonic(), chat, text, (), 0)
        if method != "answerCallbackQuery":
            for number, entry in reversed(list(enumerate(self._log.sent, 1))):
                if entry["chat"] == chat and entry["raw"].get("text") == text:
                    keys = tuple(button["data"] for button in entry["buttons"])
                    seen = Read(seen.at, chat, entry["text"], keys, number)
                    break
        self._platform.read.append(seen)
