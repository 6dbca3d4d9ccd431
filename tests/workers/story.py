"""Story: a turn with two rounds of tools on a real processor, whose worker can be killed at every step it takes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from pathlib import Path
from typing import Any, BinaryIO

from sayso.agent import Agent, AgentConfig, Message, ToolCall, UsageStats, emit_artifact, tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.messages import Role
from sayso.agent.providers import testing
from sayso.channels.types import Media
from sayso.pending import idempotency_key
from sayso.workers.processor import ConversationProcessor
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender, turn
from tests.workers.fakes import FakeChannel


class Killed(BaseException):
    """`kill -9`: no code of Sayso may catch it."""


@dataclass(slots=True)
class Life:
    """Numbers the steps of all workers; at some of them the worker dies."""

    deaths: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    dead: bool = False

    def at(self, name: str) -> None:
        """Note a step, or die at it. A dead worker makes no further step."""
        if not self.dead:
            self.steps.append(name)
            self.dead = len(self.steps) in self.deaths or name in self.names
            self.names -= {name} if self.dead else set()
        if self.dead:
            raise Killed(name)


class Mortal:
    """A store whose caller may die right before and right after each call."""

    def __init__(self, store: Any, life: Life) -> None:
        self._store, self._life = store, life

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self._life.at(f"before {name}")
            answer = getattr(self._store, name)(*args, **options)
            return after(answer) if isawaitable(answer) else answer

        async def after(answer: Awaitable[Any]) -> Any:
            result = await answer
            self._life.at(f"after {name}")
            return result

        return call


class Script:
    """A model that answers with the line after the answers it has already given in this turn.

    Each call gets an id of its own. A history that a vendor would refuse fails the test.
    """

    def __init__(self, lines: list[Any], life: Life) -> None:
        self.lines, self.asked, self.seen, self.users = lines, Counter(), [], []
        #: The last answer that the last request shows.
        self.last_answer = ""
        self._life = life

    async def acomplete(self, **request: Any) -> tuple[Message, UsageStats]:
        """Return the next line; count how often each one was requested."""
        messages = request["messages"]
        testing.check_history(messages)
        said = max(at for at, message in enumerate(messages) if message.role is Role.USER)
        at = sum(message.role is Role.ASSISTANT for message in messages[said:])
        self.asked[at] += 1
        self.users.append(messages[said].content)
        self._life.at(f"before model {at}")
        self.last_answer = next(
            (each.content for each in messages[::-1] if each.role is Role.ASSISTANT), ""
        )
        self.seen.append([message.content for message in messages if message.role is Role.TOOL])
        self._life.at(f"after model {at}")
        line = self.lines[at]
        if isinstance(line, str):
            return Message(Role.ASSISTANT, line), UsageStats(10, 1, 11)
        if line is None:  # a test answers in its place
            return Message(Role.ASSISTANT, tool_calls=line), UsageStats(10, 1, 11)
        numbered = enumerate(line)
        calls = [
            replace(each, id=f"{each.id}-{len(self.seen)}-{number}") for number, each in numbered
        ]
        return Message(Role.ASSISTANT, tool_calls=tuple(calls)), UsageStats(10, 1, 11)


@dataclass(slots=True)
class Shelf:
    """A media store that outlives the workers."""

    files: dict[str, bytes] = field(default_factory=dict)
    spool_folder: Path | None = None

    def put(self, content: BinaryIO, *, mime_type: str, filename: str, owner: str = "") -> Media:
        """Store the file."""
        data = content.read()
        self.files[f"f{len(self.files)}"] = data
        return Media(f"f{len(self.files) - 1}", mime_type, filename, len(data), stored=True)


def call(name: str, **parameters: Any) -> ToolCall:
    """Return a call with an id of its own."""
    return ToolCall(name, parameters, f"{name}-{'-'.join(map(str, parameters.values()))}")


#: The story whose tools are called.
playing: ContextVar[Story] = ContextVar("playing")


@tool(read_only=True)
async def look(what: str) -> str:
    """Look."""
    return await playing.get().act("look", what)


@tool
async def post(what: str) -> str:
    """Post."""
    return await playing.get().act("post", what)


@tool(idempotent=True)
async def charge(what: str) -> str:
    """Charge."""
    return await playing.get().act("charge", what)


@tool
async def draw(what: str) -> str:
    """Draw a picture."""
    emit_artifact(what.encode(), filename=f"{what}.png", mime_type="image/png")
    return await playing.get().act("draw", what)


@tool(requires_approval=True, preview="Delete {what}")
async def delete(what: str) -> str:
    """Delete."""
    return await playing.get().act("delete", what)


@tool(terminal=True)
async def show(what: str) -> str:
    """Show, and end."""
    return await playing.get().act("show", what)


#: Two rounds of calls, then an answer.
LINES = [
    (call("look", what="a"), call("post", what="b")),
    (call("charge", what="c"), call("post", what="d")),
    "all done",
]


class Story:
    """Workers come and go; media, conversations and the tools' own ledgers stay."""

    def __init__(self, rig: Rig, lines: list[Any] | None = None, **config: Any) -> None:
        self.rig, self.life, self.shelf, self.channel = rig, Life(), Shelf(), FakeChannel()
        self.begun, self.ended, self.keys = Counter(), Counter(), {}
        self.model = Script(LINES if lines is None else lines, self.life)
        self.tools = [look, post, charge, draw, delete, show]
        #: Long texts are not stored.
        self.texts: TextFiles | None = None
        self._config = AgentConfig(max_retries=0, **config)

    async def act(self, name: str, what: str) -> str:
        """Run a tool's effect, with its key, in three steps."""
        self.life.at(f"before {name} {what}")
        self.begun[what] += 1
        self.keys.setdefault(what, []).append(idempotency_key())
        self.life.at(f"during {name} {what}")
        self.ended[what] += 1
        self.life.at(f"after {name} {what}")
        return f"{name} {what} ok"

    def hear(self, text: str = "go on with the list", **fields: Any) -> None:
        """Accept a turn of the person."""
        self.rig.accept(turn(text, **fields))

    def worker(self) -> ConversationProcessor:
        """Return the processor of a new process."""
        journals = Mortal(self.rig.journals, self.life)
        agent = ChannelAgent(
            Agent(self.tools, self.model, self._config),
            self.rig.store,
            journals=journals,
            media=self.shelf,
            texts=self.texts,
        )
        channels = {"chat": self.channel}
        sender = make_sender(Mortal(self.rig.outbox, self.life), channels)
        return make_processor(
            Mortal(self.rig.mailbox, self.life), sender, channels, {"chat": agent}, joins=True
        )

    def work(self) -> bool:
        """Let a worker process all turns. Return False if it was killed; its lease has expired then."""
        self.life.dead = False
        playing.set(self)
        try:
            asyncio.run(self.worker().run(CHAT.id))
        except Killed:
            self.rig.end_lease()
            return False
        return True

    def work_on(self) -> str:
        """Start workers until one of them survives; return the last text that arrived."""
        for _ in range(10):
            if self.work():
                return self.channel.texts[-1]
        raise AssertionError("no worker lived")

    def killed_at(self, *names: str) -> str:
        """Accept a turn and kill the worker at each of these steps; return the last text that arrived."""
        self.hear()
        for name in names:
            self.life.names = {name}
            assert not self.work(), f"nobody came to {name!r}: {self.life.steps}"
        return self.work_on()

    def journal(self) -> list[dict]:
        """Return the stored journal of the turn."""
        return [json.loads(entry) for entry in self.rig.journal()]
