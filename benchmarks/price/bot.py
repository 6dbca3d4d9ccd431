"""Bot: Sayso as a user runs it, with web, worker, Redis and a fake Telegram in one process, on a recorded model."""

from __future__ import annotations

import itertools
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from sayso.channels.types import Conversation
from sayso.config.server.embedded_redis import EmbeddedRedis
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.wiring.wsgi import build_app
from sayso.pending.threads import LoopThread
from sayso.testing.platforms import webhooks
from sayso.testing.platforms.fake_platforms import TELEGRAM_SECRET, TELEGRAM_TOKEN, FakePlatforms
from tests.agent.providers.api import KEY
from tests.agent.providers.recorder import ModelRecorder

#: The configuration; nothing in it changes what a turn costs.
BOT = """
agent:
  model: {model}
  base_url: {url}
  api_key: ${{KEY}}
  system_prompt: {prompt!r}
{agent}
tools: {tools}
limits: {{per_minute: 60000, in_one_go: 60000}}
channels:
  shop:
    platform: telegram
    token: ${{TOKEN}}
    secret_token: ${{SECRET}}
    api_url: {telegram}
    messages_per_second: 0
{channel}
"""
MODELS = {
    "openai": "openai:gpt-4.1-mini",
    "openai-responses": "openai-responses:gpt-4.1-mini",
    "anthropic": "anthropic:claude-sonnet-4-5",
    "gemini": "gemini:gemini-2.5-flash",
}
#: The person who writes, whose private chat has the same id.
USER = 5123456789


class Bot:
    """One bot and one person who writes to it, from `with` to its end. `recorder` has what the model was asked.

    `agent` and `channel` are YAML below these sections, indented by two and four spaces.
    """

    def __init__(self, vendor: str, prompt: str, tools: str, *, agent: str = "", channel: str = "") -> None:
        self.recorder = ModelRecorder()
        self.platforms = FakePlatforms()
        self._fields = {"prompt": prompt, "tools": tools, "agent": agent, "channel": channel}
        self._vendor = vendor
        self._stack = ExitStack()
        self._updates = itertools.count(1)

    def __enter__(self) -> Self:
        enter = self._stack.enter_context
        enter(self.recorder)
        enter(self.platforms)
        folder = Path(enter(tempfile.TemporaryDirectory(prefix="sayso-price-")))
        redis = EmbeddedRedis(folder / "redis")
        redis.start()
        self._stack.callback(redis.stop)
        config = folder / "sayso.yaml"
        urls = {"url": self.recorder.url(self._vendor), "telegram": self.platforms.telegram_url}
        config.write_text(BOT.format(model=MODELS[self._vendor], **urls, **self._fields))
        settings = load_settings(config, {"TOKEN": TELEGRAM_TOKEN, "SECRET": TELEGRAM_SECRET, "KEY": KEY})
        web = bootstrap(settings, data=folder / "data", redis_url=redis.url)
        self._worker = bootstrap(settings, data=folder / "data", redis_url=redis.url, is_worker=True)
        self._client = build_app(web).test_client()
        self._loop = LoopThread()
        self._stack.callback(self._loop.close)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def say(self, text: str) -> str:
        """Send a message of the person as Telegram does, and return the text of the last reply."""
        update = webhooks.telegram_text(next(self._updates), text, user=USER)
        headers, body = webhooks.telegram_hook(TELEGRAM_SECRET, update)
        assert self._client.post("/hooks/shop", data=body, headers=headers).status_code == 200
        self._loop.run(self._worker.processor.run(Conversation("shop", str(USER)).id))
        return str(self.platforms.sent[-1]["text"]) if self.platforms.sent else ""
