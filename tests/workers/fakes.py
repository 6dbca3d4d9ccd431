"""Fakes: a channel, an agent, and a whole bot on either kind of lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redis.exceptions import RedisError

from agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from agent.channel_agent import ChannelAgent
from channels.types import Button, Delivery, Receipt, Reply, Turn
from tests.contracts.rigs import CHAT, Rig, turn
from workers.drain import Drain
from workers.lane import Change
from workers.outbox import Postman


class FakeChannel:
    """Remembers what was sent; `errors` are raised by the next sends, None lets one through."""

    name = "chat"

    def __init__(self) -> None:
        self.sent: list[Delivery] = []
        self.errors: list[Exception | None] = []

    def pieces(self, reply: Reply) -> list[Reply]:
        """A message for each paragraph."""
        return [Reply(text) for text in reply.text.split("|")[:-1]] + [
            Reply(reply.text.split("|")[-1], reply.buttons, reply.media)
        ]

    async def attend(self, turn: Turn) -> None:
        """Do nothing."""

    async def send(self, delivery: Delivery) -> Receipt:
        """Send, or raise what was planned."""
        error = self.errors.pop(0) if self.errors else None
        if error:
            raise error
        self.sent.append(delivery)
        return Receipt(f"m{len(self.sent)}")

    @property
    def texts(self) -> list[str]:
        """The words that arrived."""
        return [delivery.reply.text for delivery in self.sent]


class FakeAgent:
    """Answers with a function of the turn's words; what that raises is its crash."""

    def __init__(self, answer: Callable[[str], str] = str.upper) -> None:
        self._answer = answer

    async def answer(self, queued, lease) -> Change:
        """One reply."""
        return Change(replies=((Reply(self._answer(queued.turn.text)), ""),))


class Dying:
    """Records of a worker that is killed right after one of its steps."""

    def __init__(self, records, step: str) -> None:
        self._records, self._step = records, step

    def __getattr__(self, name: str):
        method = getattr(self._records, name)
        if name != self._step:
            return method

        def die(*args):
            method(*args)
            raise RedisError("killed")

        return die


class Bot:
    """A whole bot that can delete things, on a scripted model."""

    def __init__(self, rig: Rig, *names: str, lines=()) -> None:
        self.rig, self.channel, self.deleted = rig, FakeChannel(), []

        @tool(requires_approval=True, preview="Delete {name}")
        def delete(name: str) -> str:
            """Delete a thing."""
            self.deleted.append(name)
            return f"deleted {name}"

        calls = [ToolCall("delete", {"name": name}, f"c{index}") for index, name in enumerate(names)]
        self.provider = ScriptedProvider([*calls, *lines])
        self.agent = ChannelAgent(Agent([delete], self.provider, AgentConfig(max_retries=0)), rig.store)
        channels = {"chat": self.channel}
        self.drain = Drain(rig.mailbox, Postman(rig.outbox, channels), channels, {"chat": self.agent})

    def hear(self, text: str = "", **fields) -> None:
        """Accept a turn."""
        self.rig.accept(turn(text, **fields))

    def work(self) -> str:
        """Drain the room; the last words that arrived."""
        asyncio.run(self.drain.run(CHAT.id))
        return self.channel.texts[-1] if self.channel.texts else ""

    def say(self, text: str = "", **fields) -> str:
        """A turn and its answer."""
        self.hear(text, **fields)
        return self.work()

    def die_after(self, step: str) -> None:
        """Work until this step of the pending action, be killed there, and let the lease end."""
        settlement = self.rig.store.settlement
        settlement._records = Dying(self.rig.store.records, step)
        try:
            self.work()
        except RedisError:
            pass
        else:
            raise AssertionError(f"nobody came to {step!r}")
        settlement._records = self.rig.store.records
        self.rig.end_lease()

    @property
    def buttons(self) -> tuple[Button, ...]:
        """The buttons last shown: confirm and cancel."""
        return next(delivery.reply.buttons for delivery in reversed(self.channel.sent) if delivery.reply.buttons)
