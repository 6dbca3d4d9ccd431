"""What the peers' apps share: an update of the chat platform, messages and questions to it, a web server.

The platform is Telegram's Bot API. A webhook is answered with 200 when `handle` has returned, and
with 500 when it raised: then the platform sends it again.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool

#: Environment variables of each app: platform, model, port, data folder, seconds for an answer.
PLATFORM, MODEL, PORT, DATA, EXPIRY = (
    "FAULTS_PLATFORM",
    "FAULTS_MODEL",
    "FAULTS_PORT",
    "FAULTS_DATA",
    "FAULTS_EXPIRY",
)
NO_LONGER_OPEN = "This is no longer open."

_TYPED_NO = re.compile(r"no\b[,. ]*(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Update:
    """What one person did: a text, or a tap on a button.

    `answer` is "yes" or "no" for a tap, and "no" for a typed one; then `reason` has the words after
    it. `call` is what the tapped button was made for, "" for a text.
    """

    event: str
    chat: str
    text: str
    answer: Literal["yes", "no", ""]
    call: str
    reason: str


def parse(update: dict[str, Any]) -> Update:
    """Return the update of a webhook's body."""
    event = str(update["update_id"])
    tap = update.get("callback_query")
    if tap:
        answer, _, call = tap["data"].partition(":")
        return Update(event, str(tap["message"]["chat"]["id"]), "", answer, call, "")
    message = update["message"]
    text = message["text"]
    no = _TYPED_NO.fullmatch(text)
    answer = "no" if no else ""
    return Update(event, str(message["chat"]["id"]), text, answer, "", no.group(1) if no else "")


def say(chat: str, text: str) -> None:
    """Send a message. Raises OSError when the platform does not accept it."""
    _post({"chat_id": chat, "text": text})


def ask(chat: str, text: str, call: str) -> None:
    """Send a question with the buttons Yes and No for a call. Raises OSError like `say`."""
    labels = {"yes": "Yes", "no": "No"}
    row = [{"text": label, "callback_data": f"{key}:{call}"} for key, label in labels.items()]
    _post({"chat_id": chat, "text": text, "reply_markup": {"inline_keyboard": [row]}})


def _post(message: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    url = f"{os.environ[PLATFORM]}/sendMessage"
    request = urllib.request.Request(url, json.dumps(message).encode(), headers)
    with urllib.request.urlopen(request, timeout=30):
        pass


def data(name: str) -> str:
    """Return the path of a file in the app's data folder."""
    return str(Path(os.environ[DATA], name))


def web(
    handle: Callable[[Update], Awaitable[None] | None],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """Return an app whose webhook calls `handle`, in a thread unless it is async."""
    app = FastAPI(lifespan=lifespan)

    @app.post("/webhook")
    async def webhook(request: Request) -> str:
        done = await run_in_threadpool(handle, parse(await request.json()))
        if isawaitable(done):
            await done
        return ""

    return app


def serve(app: FastAPI) -> None:
    """Serve until the process is killed."""
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ[PORT]), log_level="warning")
