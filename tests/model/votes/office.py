"""VoteBot: the real parts of a bot whose actions other people decide, each chat in its own shard."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from redis import Redis

from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.config import AgentConfig
from sayso.agent.guards.policy import ToolPolicy
from sayso.agent.messages import ActionLink, Message, Role, ToolCall
from sayso.agent.result import AgentResult
from sayso.channels.base import Channel
from sayso.channels.types import Turn
from sayso.infra.redis.client import PREFIX
from sayso.pending import RedisPendingStore, stash_pending
from sayso.pending.action import PendingAction, split_button_token
from sayso.pending.approvals.people import (
    Account,
    DirectoryUnavailable,
    KnownPerson,
)
from sayso.pending.scripts import ACTION_SCRIPTS
from sayso.pending.sharded_scripts import shard_of
from sayso.pending.turns import QueuedTurn
from sayso.workers.lease import token_prefix
from sayso.workers.mailbox import InboxLimits, RedisMailbox
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.sender import RedisOutbox
from tests.agent.channel.shop import FakeDirectory
from tests.contracts.rigs import make_sender, voice
from tests.memory_stores import MemorySharedCache
from tests.model.bot import Messenger, ModelProcessor, ModelTurns, Stepped
from tests.model.votes.facts import COLLEAGUES, PLACES, RULES, Office
from tests.model.votes.judge import VoteJudge
from tests.model.wire import Patches, Peek, Wire

#: Turns that may wait in one conversation.
CAP = 20
_ASKED = re.compile(r"please (\w+)")


class Team(FakeDirectory):
    """The directory: people, whose roles come and go."""

    def __init__(self, world: Office) -> None:
        super().__init__()
        self._world = world
        #: Since which tick each person is a manager or not, in order.
        self._roles: dict[str, list[tuple[int, bool]]] = {}
        self._add("ana", Account("shop", "ana"), Account("team", "ana"))
        for name in COLLEAGUES:
            self._add(name, Account("team", name))
        bea = self.people["bea"]
        self.people["bea"] = replace(bea, accounts=(*bea.accounts, Account("team", "bea2")))
        for name in ("bea", "cem"):
            self.set_manager(name, is_manager=True)

    def _add(self, name: str, *accounts: Account) -> None:
        self.people[name] = KnownPerson(name, accounts)
        self._roles[name] = [(0, False)]

    def set_manager(self, name: str, *, is_manager: bool) -> None:
        """Give a person the role of a manager, or take it away."""
        roles = frozenset({"manager"}) if is_manager else frozenset()
        self.people[name] = replace(self.people[name], roles=roles)
        self._roles[name].append((self._world.tick(), is_manager))

    def is_manager(self, name: str) -> bool:
        """Return whether a person is a manager now."""
        return self._roles[name][-1][1]

    def was_manager(self, name: str, since: int) -> set[bool]:
        """Return whether a person was a manager at some moment since a tick, and whether not."""
        changes = self._roles[name]
        before = [is_manager for tick, is_manager in changes if tick <= since][-1]
        return {before, *(is_manager for tick, is_manager in changes if tick > since)}


class Clerk:
    """An agent that proposes the action that its user names."""

    tools = ()
    memory = None
    selector = None
    config = AgentConfig(tool_policy=ToolPolicy(allow=["*"], approval=dict(RULES)))

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    async def arun(self, messages: Sequence[Message], *, memory: Any, **_: Any) -> AgentResult:
        """Propose the action of the newest message, or chat."""
        memory.add_many(messages)
        asked = _ASKED.fullmatch(messages[-1].content) if messages else None
        if asked:
            number = next(self._numbers)
            preview = f"{asked[1]} <{number}>"
            action = stash_pending(kind=asked[1], preview=preview, args={"n": number})
            assert action is not None
            call = ToolCall(action.kind, action.args, action.pending_action_id)
            link = ActionLink(call.id)
            result = Message(
                Role.TOOL, tool_call_id=call.id, tool_name=call.tool_name, actions=(link,)
            )
            memory.add_many([Message(Role.ASSISTANT, tool_calls=(call,)), result])
        else:
            memory.add(Message(Role.ASSISTANT, "I see."))
        return AgentResult("I see.")


class VoteTurns(ModelTurns):
    """The worker's own way to answer a turn."""

    def _may_fail(self, error: Exception) -> bool:
        """Return whether a platform did not say who is in a group, once an action was claimed."""
        return isinstance(error, DirectoryUnavailable)

    def _gives_up(self, queued: QueuedTurn) -> bool:
        """Return True: the agent ends each turn whose time is over, as in a real worker."""
        return True


class VoteBot:
    """The parts of one bot, shared by all examples of a run; each example has a world of its own."""

    def __init__(self, client: Redis, patches: Patches) -> None:
        self.client = client
        self.peek = Peek(client)
        self.scripts = Wire(client, CONVERSATION_SCRIPTS, patches, self._clock)
        self.action_scripts = Wire(client, ACTION_SCRIPTS, patches, self._clock)
        found = self.scripts.applied | self.action_scripts.applied
        missed = {old for each in patches.values() for old, _ in each} - found
        assert not missed, f"no script has {missed}: this mutant is none"
        limits = InboxLimits(waiting=CAP, in_one_go=1000)
        self.mailbox = RedisMailbox(self.scripts, voice, limits=limits)
        self.outbox = RedisOutbox(self.scripts)
        self.begin()

    def begin(self) -> None:
        """Start a new world."""
        self.client.flushdb()
        self.world = Office()
        self.team = Team(self.world)
        self.judge = VoteJudge(self.world, self.peek, self.team)
        self._agents = {name: self._agent() for name in ("shop", "team")}
        channels = {name: self._channel(name) for name in self._agents}
        mailbox = Stepped(self.mailbox)
        sender = make_sender(Stepped(self.outbox), channels, chance=lambda: 0.5)
        turns = VoteTurns(mailbox, {}, self._agents, voice, MemorySharedCache(), clock=self._clock)
        self.processor = ModelProcessor(mailbox, sender, turns, clock=self._clock)

    def _agent(self) -> ChannelAgent:
        """Return the agent of a channel, with a store of its own."""
        store = RedisPendingStore(
            client=self.client, secret_keys=["key"], scripts=self.action_scripts
        )
        stepped = Stepped(store.repository)
        store.repository = stepped
        store.settlement._repository = stepped
        store.finished_actions._repository = stepped
        for kind in RULES:
            store.register_executor_factory(kind, self._factory)
        return ChannelAgent(Clerk(), store, behavior=ChannelBehavior(), people=self.team)

    def _channel(self, name: str) -> Messenger:
        messenger = Messenger(self)
        messenger.name = name
        return messenger

    def _factory(self, action: PendingAction) -> Callable[[], str]:
        return lambda: self._perform(action)

    def _perform(self, action: PendingAction) -> str:
        if action.kind == "broken":
            self.judge.failure(action)
            raise RuntimeError("secret")
        return self.judge.effect(action)

    def _clock(self) -> float:
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

    def overdue(self) -> list[str]:
        """Run one round of the reaper and return the conversations that it wakes."""
        found: list[str] = []
        for place in PLACES:
            found += self.scripts.on_shard("list_overdue", shard_of(place), {"most": 100})
        return [name for name in found if self.scripts.run("rewake", name) == "ok"]

    def with_work(self) -> list[str]:
        """Return the conversations where a turn or a reply waits."""
        pipe = self.client.pipeline(transaction=False)
        for place in PLACES:
            shard = f"{PREFIX}{{{shard_of(place)}}}"
            pipe.exists(f"{shard}:inbox:{place}", f"{shard}:outbox:{place}")
        return [place for place, exists in zip(PLACES, pipe.execute(), strict=True) if exists]

    def release_dead(self, worker: str) -> None:
        """Release the leases of a dead worker, as another worker on its machine does."""
        self.judge.buried.add(f"{token_prefix(worker)}pass")
        for place in PLACES:
            args = {"token_prefix": token_prefix(worker)}
            self.scripts.on_shard("release_dead_worker", shard_of(place), args)

    def busy(self) -> bool:
        """Return whether any index of work has an entry."""
        keys = [f"{PREFIX}{{{shard_of(place)}}}:due" for place in PLACES]
        return bool(self.client.exists(*keys))

    def agent_of(self, conversation: str) -> ChannelAgent:
        """Return the agent of a conversation."""
        return self._agents[conversation.partition(":")[0]]

    def channel_of(self, conversation: str) -> Channel:
        """Return the channel of a conversation."""
        return self.processor.sender._channels[conversation.partition(":")[0]]
