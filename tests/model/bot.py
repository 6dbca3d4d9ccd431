"""Bot: the real parts on a real Redis, with a scripted model and workers that can stop at any store call."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import Callable, Generator, Sequence
from contextvars import Context
from dataclasses import replace
from typing import Any, Literal

from redis import Redis

from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.channel.tool_executors import ToolExecutors
from sayso.agent.config import AgentConfig
from sayso.agent.messages import ActionLink, Message, Role, ToolCall
from sayso.agent.result import AgentResult
from sayso.agent.run.pause import RunCounts, forget_ended_pause, note_run_counts
from sayso.channels.base import Channel, DeliveryUncertain, RateLimit, RateLimited, Refused
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Delivery, Receipt, Reply, Tap, Turn
from sayso.infra.concurrency import has_no_loop, run_without_loop
from sayso.infra.redis.client import PREFIX
from sayso.pending import RedisPendingStore, stash_pending
from sayso.pending.action import After, PendingAction, split_button_token
from sayso.pending.executors import UNDO_PREFIX
from sayso.pending.scripts import ACTION_SCRIPTS
from sayso.pending.sharded_scripts import shard_of
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import ConversationError, LeaseLost, QueuedTurn
from sayso.workers.lease import HeldLease, token_prefix
from sayso.workers.mailbox import InboxLimits, RedisMailbox
from sayso.workers.processor import ConversationProcessor
from sayso.workers.replies import split_replies
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.sender import RedisOutbox
from sayso.workers.turn_processor import TurnProcessor
from tests.contracts.rigs import make_sender, voice
from tests.memory_stores import MemorySharedCache
from tests.model.judge import Judge
from tests.model.wire import Patches, Peek, Wire
from tests.model.world import HALL, ROOM, World

#: The kinds of action: "broken" raises, "gone" has lost its executor, "checked" has a reconciler, and the question
#: about a "letter" takes two messages.
KINDS = ("delete", "pay", "archive", "checked", "broken", "gone", "coded", "letter")
#: Seconds in which an "archive" action can be undone.
UNDO_SECONDS = 120.0
#: Turns that may wait in one conversation.
CAP = 8

_ASKED = re.compile(r"what about ([a-z+]+) now\?")


def ask(kinds: Sequence[str]) -> str:
    """Return a text that makes the model propose these kinds, in order."""
    return f"what about {'+'.join(kinds)} now?"


class Proposer:
    """An agent that proposes the actions named in the text, and chats otherwise.

    If its runs pause, they go on after a decision. A request that begins with "delete" is then proposed
    one action at a time; all others are one plan.
    """

    tools = ()
    memory = None
    selector = None
    config = AgentConfig()

    def __init__(self, judge: Judge, *, pauses: bool) -> None:
        self._judge = judge
        self._pauses = pauses
        self._numbers = itertools.count(1)

    async def arun(
        self,
        messages: Sequence[Message],
        *,
        memory: Any,
        journal: Any = None,
        scope: str = "",
        stream_handler: Any = None,
        paused: Any = None,
    ) -> AgentResult:
        """Run once, without a model."""
        memory.add_many(messages)
        history = memory.get_history()
        if self._pauses:
            worker = Worker.at_work
            self._judge.asked_model(
                (worker.conversation, worker.seq), history, goes_on=paused is not None
            )
        kinds = self._next_kinds(history)
        if not (kinds and self._pauses):
            memory.add(Message(Role.ASSISTANT, "I see."))
        proposed = [self._propose(kind) for kind in kinds]
        if proposed and self._pauses:
            calls = tuple(
                ToolCall(action.kind, action.args, action.pending_action_id) for action in proposed
            )
            results = [
                Message(
                    Role.TOOL,
                    tool_call_id=call.id,
                    tool_name=call.tool_name,
                    actions=(ActionLink(call.id),),
                )
                for call in calls
            ]
            memory.add_many([Message(Role.ASSISTANT, tool_calls=calls), *results])
            note_run_counts(memory, RunCounts("run", 1, actions=tuple(call.id for call in calls)))
        else:
            forget_ended_pause(memory)
        return AgentResult("I see.")

    def _next_kinds(self, history: Sequence[Message]) -> Sequence[str]:
        """Return the kinds to propose now, for the newest request in the history."""
        newest = max(
            (at for at, each in enumerate(history) if _ASKED.fullmatch(each.content)), default=-1
        )
        asked = _ASKED.fullmatch(history[newest].content) if newest >= 0 else None
        since = history[newest + 1 :]
        if asked is None or any(
            not each.tool_calls for each in since if each.role is Role.ASSISTANT
        ):
            return ()
        kinds = asked[1].split("+")
        is_step_by_step = self._pauses and kinds[0] == "delete"
        done = sum(len(each.tool_calls) for each in since)
        return kinds[done : done + 1] if is_step_by_step else kinds[done:]

    def _propose(self, kind: str) -> PendingAction:
        number = next(self._numbers)
        action = stash_pending(
            kind=kind, preview=f"{kind} <{number}>", args={"n": number}, idempotent=kind == "pay",
            typed_code=kind == "coded",
        )  # fmt: skip
        assert action is not None
        return action


class Messenger:
    """A channel with scripted failures of its platform."""

    name = "chat"

    def __init__(self, bot: Bot) -> None:
        self._bot = bot

    def split(self, reply: Reply) -> list[Reply]:
        """Return the reply whole, except the question about a letter: its second message carries the buttons."""
        first, found, rest = reply.text.partition("\n")
        if not (found and reply.buttons and "letter " in first):
            return [reply]
        return [Reply(first, language=reply.language), replace(reply, text=rest)]

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return no limit."""
        return RateLimit()

    async def send(self, delivery: Delivery) -> Receipt:
        """Deliver, unless the next scripted weather says otherwise."""
        world, judge = self._bot.world, self._bot.judge
        judge.sending(delivery)
        weather = world.weather.pop(0) if world.weather else "fine"
        if weather == "busy":
            raise RateLimited(30)
        judge.said(delivery, arrived=weather != "refused")
        if weather == "refused":
            raise Refused("no such chat")
        if weather == "unclear":
            raise DeliveryUncertain("no answer")
        return Receipt(delivery.id)


class Undoable(ToolExecutors):
    """Lets one kind of action be undone, although the agent has no tools."""

    def undo_seconds(self, kind: str) -> float:
        """Return for how long an action of this kind can be undone."""
        return UNDO_SECONDS if kind == "archive" else 0.0


class Bot:
    """The parts of one bot, shared by all examples of a run; each example has a world of its own.

    `after` is what follows a decision. With "continue", outcome and continuation are one message in
    the hall.
    """

    def __init__(self, client: Redis, patches: Patches, *, after: After = "say") -> None:
        self.client = client
        self._after = after
        self.peek = Peek(client)
        conversation_scripts = Wire(client, CONVERSATION_SCRIPTS, patches, self._clock)
        records = Wire(client, ACTION_SCRIPTS, patches, self._clock)
        missed = (
            {old for each in patches.values() for old, _ in each}
            - conversation_scripts.applied
            - records.applied
        )
        assert not missed, f"no script has {missed}: this mutant is none"
        self.conversation_scripts = conversation_scripts
        self.mailbox, self.outbox = (
            RedisMailbox(
                conversation_scripts, voice, limits=InboxLimits(waiting=CAP, in_one_go=1000)
            ),
            RedisOutbox(conversation_scripts),
        )
        self.store = RedisPendingStore(client=client, secret_keys=["key"])
        self.store.repository._scripts = records
        stepped = Stepped(self.store.repository)
        self.store.repository = stepped
        self.store.settlement._repository = stepped
        self.store.finished_actions._repository = stepped
        self._register()
        self.begin()

    def begin(self) -> None:
        """Start a new world."""
        self.client.flushdb()
        self.world = World(goes_on=self._after == "continue")
        self.judge = Judge(self.world, self.peek)
        proposer = Proposer(self.judge, pauses=self.world.goes_on)
        self.agent = ChannelAgent(proposer, self.store, behavior=ChannelBehavior(after=self._after))
        self.agent_of_hall = ChannelAgent(
            proposer, self.store, behavior=ChannelBehavior(after=self._after, is_one_message=True)
        )
        self.store.executors.kinds = Undoable(tuple, AgentConfig)
        postman = make_sender(Stepped(self.outbox), {"chat": Messenger(self)}, chance=lambda: 0.5)
        mailbox = Stepped(self.mailbox)
        turns = ModelTurns(
            mailbox, {}, {"chat": self.agent}, voice, MemorySharedCache(), clock=self._clock
        )
        self.processor = ModelProcessor(mailbox, postman, turns, clock=self._clock)

    def _clock(self) -> float:
        """Return the time of all scripts and workers, in Unix seconds."""
        return self.world.now / 1000

    def pass_time(self, seconds: float) -> None:
        """Advance all clocks."""
        self.world.now += round(seconds * 1000)

    def hear(self, turn: Turn) -> None:
        """Deliver a platform's event to the mailbox."""
        parts = split_button_token(turn.tap.data) if turn.tap else None
        accepted = self.mailbox.accept(turn, tapped=parts[0] if parts else "")
        self.world.counts["duplicates"] += accepted.outcome == "duplicate"
        self.judge.accepted(turn, accepted.outcome, accepted.seq)

    def agent_of(self, conversation: str) -> ChannelAgent:
        """Return the agent of a conversation."""
        return self.agent_of_hall if conversation == HALL.id else self.agent

    def channel_of(self, _conversation: str) -> Channel:
        """Return the channel, which is the same for all conversations."""
        return self.processor.sender._channels["chat"]

    def overdue(self) -> list[str]:
        """Run one round of the reaper and return the conversations that it wakes."""
        found = self.conversation_scripts.on_shard("list_overdue", shard_of(ROOM.id), {"most": 100})
        return [name for name in found if self.conversation_scripts.run("rewake", name) == "ok"]

    def release_dead(self, worker: str) -> None:
        """Release the leases of a dead worker, as another worker on its machine does."""
        self.judge.buried.add(f"{token_prefix(worker)}pass")
        self.conversation_scripts.on_shard(
            "release_dead_worker", shard_of(ROOM.id), {"token_prefix": token_prefix(worker)}
        )

    def busy(self) -> bool:
        """Return whether the index of work has any entry."""
        return bool(self.client.zcard(f"{PREFIX}{{{shard_of(ROOM.id)}}}:due"))

    def _register(self) -> None:
        for kind in KINDS:
            self.store.register_executor_factory(kind, self._factory)
        self.store.register_executor_factory(f"{UNDO_PREFIX}archive", self._factory)
        self.store.register_reconciler("checked", self._reconcile)

    def _factory(self, action: PendingAction) -> Callable[[], str] | None:
        if action.kind == "gone":
            return None
        return lambda: self._perform(action)

    def _perform(self, action: PendingAction) -> str:
        if action.kind == "broken":
            self.judge.failure(action)
            raise RuntimeError("secret")
        return self.judge.effect(action)

    def _reconcile(self, action: PendingAction) -> bool | None:
        return None if self.world.silent else self.judge.asked(action)


class Stepped:
    """A proxy of a store that pauses the current worker before and after each call."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return lambda *args, **options: Worker.at_work.stop_around(
            functools.partial(method, *args, **options)
        )


class ModelProcessor(ConversationProcessor):
    """The worker's own pass through a conversation, without an event loop's clock and tasks."""

    async def pass_through(self, worker: Worker) -> None:
        """Process the conversation as `run` does."""
        asked = self.clock()
        taken = await self.mailbox.lease(worker.conversation, f"{token_prefix(worker.name)}pass")
        if taken is None:
            return
        worker.held = HeldLease(taken[0], asked, self.mailbox.renew, self.clock)
        try:
            await self._work(worker.held, taken[1])
        except ConversationError:
            return


class ModelTurns(TurnProcessor):
    """The worker's own way to answer a turn, without a channel and a time limit."""

    async def _answer(self, held: HeldLease, queued: QueuedTurn, hear: Any = None) -> TurnChange:
        worker = Worker.at_work
        worker.answering = True
        worker.seq = queued.seq
        worker.began = worker.ticks
        agent = worker.agent
        try:
            change = await agent.answer(queued, held.lease)
            return split_replies(change, worker.channel)
        except asyncio.CancelledError:  # raised by the turn's time limit
            if self._gives_up(queued):
                change = await agent.give_up(queued, held.lease, texts_for("en").too_long())
                return split_replies(change, worker.channel)
            return TurnChange(replies=(TurnReply(Reply(texts_for("en").too_long())),))
        except (ConversationError, TypeError):  # a TypeError is a mistake in the tests
            raise
        except Exception as exc:  # noqa: BLE001  # no error may escape a turn
            if self._may_fail(exc):
                change = await agent.give_up(queued, held.lease, texts_for("en").broken())
                return split_replies(change, worker.channel)
            worker.broke("a turn is answered", repr(exc))
            return TurnChange(replies=(TurnReply(Reply(texts_for("en").broken())),))
        finally:
            worker.answering = False

    def _may_fail(self, _error: Exception) -> bool:
        """Return whether a turn may fail with this error. Then the agent ends it."""
        return False

    def _gives_up(self, queued: QueuedTurn) -> bool:
        """Return whether the agent ends a turn whose time is over, and not the worker alone."""
        return bool(queued.turn.continues)


class _Pause:
    """A place where a worker may stop for a while, or for ever."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Worker:
    """One pass of a worker, paused before and after each call of a store."""

    #: The worker that runs now.
    at_work: Worker

    def __init__(self, bot: Bot, conversation: str, name: str) -> None:
        self.conversation = conversation
        self.name = name
        self.held: HeldLease | None = None
        self.answering = False
        #: The number of the turn that is answered.
        self.seq = 0
        #: The tick of the world at which it was begun.
        self.began = 0
        #: The call where the worker is paused, and whether it is paused "before" or "after" the call.
        self.at = ("", "before")
        #: Whether the next call's answer is lost: the call is repeated at once, or after a pause.
        self.loses: Literal["", "at once", "later"] = ""
        self._bot = bot
        self._context = Context()
        self._context.run(has_no_loop.set, True)
        self._coroutine = bot.processor.pass_through(self)

    def step(self) -> bool:
        """Run to the next pause; False when the pass has ended."""
        return self._go(lambda: self._coroutine.send(None))

    def run_out_of_time(self) -> bool:
        """Let the turn's time limit expire here."""
        return self._go(lambda: self._coroutine.throw(asyncio.CancelledError()))

    def crash(self) -> None:
        """Stop the worker for good."""
        self._context.run(self._coroutine.close)

    def broke(self, promise: str, *facts: Any) -> None:
        """Record a promise that this worker broke."""
        self._bot.world.broke(promise, *facts)

    def renew(self) -> None:
        """Renew the lease, as the worker's background task does."""
        if self.held is None:
            return
        asked = self._bot.processor.clock()
        try:
            self._call(functools.partial(self._bot.mailbox.renew, self.held.lease))
        except LeaseLost:
            return
        self.held.renewed_at = asked

    @property
    def ticks(self) -> int:
        """Return how many things have happened in the world."""
        return self._bot.world.ticks

    @property
    def channel(self) -> Channel:
        """Return the channel of the conversation."""
        return self._bot.channel_of(self.conversation)

    @property
    def agent(self) -> ChannelAgent:
        """Return the agent of the conversation."""
        return self._bot.agent_of(self.conversation)

    def _go(self, on: Callable[[], Any]) -> bool:
        Worker.at_work = self
        self._bot.world.counts["steps"] += 1
        try:
            self._context.run(on)
        except StopIteration:
            return False
        return True

    def _call(self, function: functools.partial[Any]) -> Any:
        answer = run_without_loop(function())
        self._bot.judge.called(function.func.__name__, function.args, function.keywords, answer)
        return answer

    async def stop_around(self, function: functools.partial[Any]) -> Any:
        """Make a call of a store, and stop before and after it."""
        self.at = (function.func.__name__, "before")
        await _Pause()
        answer = self._call(function)
        if self.loses:
            answer = await self._again(function, answer)
        self.at = (function.func.__name__, "after")
        await _Pause()
        return answer

    async def _again(self, function: functools.partial[Any], first: Any) -> Any:
        """Lose the answer and repeat the call, as redis-py does."""
        bot, at_once, name = self._bot, self.loses == "at once", function.func.__name__
        self.loses = ""
        bot.world.counts["lost answers"] += 1
        if not at_once:
            await _Pause()
            return self._call(function)
        before = bot.peek.digest()
        try:
            answer = run_without_loop(function())
        except ConversationError:  # the first call released the lease, so the second is refused
            if name != "postpone":
                self.broke("asked twice, a store says the same", name)
            raise
        finally:
            if (
                bot.peek.digest() != before and first != "worn"
            ):  # "worn" only raises the count of attempts
                self.broke("asked twice, a store changes once", name)
        if answer != first:
            self.broke("asked twice, a store says the same", name, first, answer)
        return answer


def turn(conversation: Conversation, user: str, event: str, text: str = "", tap: str = "") -> Turn:
    """Return a turn for a person's message or tap."""
    return Turn(event, conversation, user, text, tap=Tap(tap) if tap else None, language="en")
