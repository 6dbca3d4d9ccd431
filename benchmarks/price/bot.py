"""Bot: Sayso as a user runs it, with web, worker, Redis and a platform, on a recorded model."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from benchmarks.price.people import CHANNEL, WEB, Person, TelegramPerson
from sayso.channels.types import SignedWebhook
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.wiring.wsgi import build_app
from sayso.infra.threads import LoopThread
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.testing.platforms.fake_platforms import ENVIRON, FakePlatforms
from tests.agent.providers.api import KEY
from tests.agent.providers.recorder import ModelRecorder

#: The configuration. The limits only let people write as fast as a benchmark does.
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
  {name}:
    messages_per_second: 0
{channel}
"""
MODELS = {
    "openai": "openai:gpt-4.1-mini",
    "openai-responses": "openai-responses:gpt-4.1-mini",
    "anthropic": "anthropic:claude-sonnet-5",
    "gemini": "gemini:gemini-2.5-flash",
}
#: The seconds between two looks of the worker at a conversation that waits for something.
LOOK_SECONDS = 0.05


class Bot:
    """One bot and one person who writes to it, from `with` to its end.

    `recorder` has what the model was asked, `platforms` what the person was sent. `agent` and
    `channel` are lines of YAML below these sections, indented by two and four spaces.
    """

    def __init__(
        self,
        vendor: str,
        prompt: str,
        tools: str,
        *,
        agent: str = "",
        channel: str = "",
        person: Person | None = None,
    ) -> None:
        self.recorder = ModelRecorder()
        self.platforms = FakePlatforms()
        self.person = person or TelegramPerson()
        self._vendor = vendor
        self._fields = {"prompt": prompt, "tools": tools, "agent": agent}
        self._channel = channel
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        enter = self._stack.enter_context
        enter(self.recorder)
        enter(self.platforms)
        folder = Path(enter(tempfile.TemporaryDirectory(prefix="sayso-price-")))
        redis = EmbeddedRedis(folder / "redis")
        redis.start()
        self._stack.callback(redis.stop)

        config = folder / "sayso.yaml"
        config.write_text(self._yaml())
        settings = load_settings(config, {**ENVIRON, "KEY": KEY})
        start = partial(
            bootstrap,
            settings,
            data=folder / "data",
            redis_url=redis.url,
            public_url=WEB,
        )
        web = start()
        self._worker = start(is_worker=True)
        self._client = build_app(web).test_client()
        self._loop = LoopThread()
        self._stack.callback(self._loop.close)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _yaml(self) -> str:
        keys = {"platform": self.person.platform, **self.person.keys(self.platforms)}
        lines = [f'    {key}: "{value}"' for key, value in keys.items()]
        channel = "\n".join([*lines, self._channel])
        return BOT.format(
            model=MODELS[self._vendor],
            url=self.recorder.url(self._vendor),
            name=CHANNEL,
            channel=channel,
            **self._fields,
        )

    def receive(self, hook: SignedWebhook) -> None:
        """Let the web process accept a webhook. No worker takes it up yet."""
        headers, body = hook
        response = self._client.post(f"/hooks/{CHANNEL}", data=body, headers=headers, base_url=WEB)
        assert response.status_code == 200, response.status

    def work(self, seconds: float = 0.0) -> None:
        """Let a worker take up what waits, once or again and again for some seconds."""
        until = time.monotonic() + seconds
        while True:
            self._loop.run(self._worker.processor.run(self.person.conversation.id))
            if time.monotonic() >= until:
                return
            time.sleep(LOOK_SECONDS)

    def reload(self, source: str) -> None:
        """Load a source of tools again in the worker, as an edit of its file does."""
        tools = self._worker.tools
        tools.replace_source(source, tools.watched[source].load())

    def say(self, text: str) -> str:
        """Send a message of the person and answer it. Return the text of the last reply."""
        self.receive(self.person.text(text))
        self.work()
        return str(self.platforms.sent[-1]["text"]) if self.platforms.sent else ""
