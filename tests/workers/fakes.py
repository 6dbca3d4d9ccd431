"""Fakes: a channel, an agent, and a whole bot on each kind of store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace

from redis.exceptions import RedisError

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.base import RateLimit
from sayso.channels.types import Button, Conversation, Delivery, Receipt, Reply, Turn
from sayso.pending import idempotency_key
from sayso.pending.turn_changes import TurnChange, TurnReply
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender, turn


class FakeChannel:
    """Notes what was sent. The next sends raise `errors`; None lets one through."""

    name = "chat"

    def __init__(self) -> None:
        self.sent: list[Delivery] = []
        self.errors: list[Exception | None] = []

    def split(self, reply: Reply) -> list[Reply]:
        """Return a message for each paragraph; the first one makes the reply's edit."""
        first, *others = [Reply(text) for text in reply.text.split("|")[:-1]] + [
            Reply(reply.text.split("|")[-1], reply.buttons, reply.media)
        ]
        edit = replace(
            first, edits=reply.edits, optional=reply.optional, decided_buttons=reply.decided_buttons
        )
        return [edit, *others]

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return no limit."""
        return RateLimit()

    async def show_typing(self, turn: Turn) -> float:
        """Do nothing."""
        return 0.0

    async def draft(self, turn: Turn, text: str, shown_id: str = "") -> str:
        """Show nothing."""
        return ""

    async def send(self, delivery: Delivery) -> Receipt:
        """Send, or raise the planned error."""
        error = self.errors.pop(0) if self.errors else None
        if error:
            raise error
        self.sent.append(delivery)
        return Receipt(f"m{len(self.sent)}")

    @property
    def texts(self) -> list[str]:
        """Return the texts that arrived."""
        return [delivery.reply.text for delivery in self.sent]

    @property
    def new_texts(self) -> list[str]:
        """Return the texts of new messages, without edits."""
        return [delivery.reply.text for delivery in self.sent if not delivery.reply.edits]


class FakeAgent:
    """Answers with a function of the turn's text; an exception of the function is the agent's crash."""

    def __init__(self, answer: Callable[[str], str] = str.upper) -> None:
        self._answer = answer

    async def answer(self, queued, lease, stream=None, on_step=None) -> TurnChange:
        """Answer with one reply."""
        return TurnChange(replies=(TurnReply(Reply(self._answer(queued.turn.text))),))

    async def give_up(self, queued, lease, words) -> TurnChange:
        """Answer with the given text."""
        return TurnChange(replies=(TurnReply(Reply(words)),))

    def is_answer(self, text: str) -> bool:
        """Return False: no action waits."""
        return False

    def needs_answer(self, queued) -> bool:
        """Return True."""
        return True

    def may_settle(self, queued) -> bool:
        """Return False: no question was asked."""
        return False


class Dying:
    """The action store of a worker that is killed right after it made a step this many times."""

    def __init__(self, records, step: str, times: int = 1) -> None:
        self._records, self._step, self._left = records, step, times

    def __getattr__(self, name: str):
        method = getattr(self._records, name)
        if name != self._step:
            return method

        async def die(*args):
            answer = await method(*args)
            self._left -= 1
            if self._left:
                return answer
            raise RedisError("killed")

        return die


class Overtaken:
    """An action store that calls `happens` right before the first of these steps."""

    def __init__(self, records, step: str, happens: Callable[[], None]) -> None:
        self._records, self._step, self._happens = records, step, happens

    def __getattr__(self, name: str):
        if name == self._step:
            self._step = ""
            self._happens()
        return getattr(self._records, name)


class Bot:
    """A whole bot that can delete things, on a scripted model."""

    def __init__(self, rig: Rig, *names: str, lines=(), **options) -> None:
        """Prepare a bot that deletes `names`, one per turn; "A B" stands for two calls in one answer."""
        self.rig, self.channel, self.deleted, self.keys = rig, FakeChannel(), [], []
        self.broken: set[str] = set()

        @tool(requires_approval=True, **{"preview": "Delete {name}", **options})
        def delete(name: str) -> str:
            """Delete a thing."""
            self.keys.append(idempotency_key())
            if name in self.broken:
                raise RuntimeError("secret")
            self.deleted.append(name)
            return f"deleted {name}"

        self.provider = ScriptedProvider([*(self._calls(each) for each in names), *lines])
        config = AgentConfig(max_retries=0)
        self.agent = ChannelAgent(
            Agent([delete], self.provider, config), rig.store, journals=rig.journals
        )
        channels = {"chat": self.channel}
        self.processor = make_processor(
            rig.mailbox, make_sender(rig.outbox, channels), channels, {"chat": self.agent}
        )

    def behave(self, parser=None, **behavior) -> None:
        """Let the channel behave so from now on. `parser`: what counts as a yes, None for the usual one."""
        self.agent = ChannelAgent(
            self.agent.agent,
            self.rig.store,
            parser,
            behavior=ChannelBehavior(**behavior),
            journals=self.rig.journals,
        )
        self.processor.turns.agents["chat"] = self.agent

    @staticmethod
    def _calls(names: str) -> list[ToolCall]:
        return [ToolCall("delete", {"name": name}, f"c{name}") for name in names.split()]

    def hear(self, text: str = "", **fields) -> None:
        """Accept a turn."""
        self.rig.accept(turn(text, **fields))

    def work(self) -> str:
        """Process the conversation; return the last text that arrived."""
        asyncio.run(self.processor.run(CHAT.id))
        return self.channel.texts[-1] if self.channel.texts else ""

    def say(self, text: str = "", **fields) -> str:
        """Accept and process a turn; return the last text."""
        self.hear(text, **fields)
        return self.work()

    def die_after(self, step: str, times: int = 1) -> None:
        """Work until this step of a pending action was done this many times, die there, and let the lease end."""
        settlement = self.rig.store.settlement
        settlement._repository = Dying(self.rig.store.repository, step, times)
        try:
            self.work()
        except RedisError:
            pass
        else:
            raise AssertionError(f"nobody came to {step!r}")
        settlement._repository = self.rig.store.repository
        self.rig.end_lease()

    def die_at_commit(self) -> None:
        """Work until a turn would be committed, die there, and let the lease end."""
        commit = self.rig.mailbox.commit

        def killed(*_: object, **__: object) -> None:
            self.rig.mailbox.commit = commit
            raise RedisError("killed")

        self.rig.mailbox.commit = killed
        try:
            self.work()
        except RedisError:
            pass
        else:
            raise AssertionError("nothing was committed")
        self.rig.end_lease()

    def before(self, step: str, happens: Callable[[], None]) -> None:
        """Call `happens` right before the next such step of a pending action."""
        self.rig.store.settlement._repository = Overtaken(self.rig.store.repository, step, happens)

    @property
    def buttons(self) -> tuple[Button, ...]:
        """Return the buttons last shown: confirm and cancel."""
        return next(
            delivery.reply.buttons
            for delivery in reversed(self.channel.sent)
            if delivery.reply.buttons
        )

    @property
    def scope(self) -> str:
        """Return ana's scope in this conversation."""
        return self.turn().scope.id

    def turn(self) -> Turn:
        """Return any turn of ana's."""
        return turn()

    def code_in(self, question: str) -> str:
        """Return the code that this question asks for."""
        return re.search(r"\b[0-9]{4}\b", question)[0]
