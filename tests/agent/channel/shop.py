"""Shop: a bot whose customers ask on one channel, and whose colleagues decide on another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from redis.exceptions import RedisError

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, ToolPolicy, tool
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.types import Button, Conversation, Tap, Turn
from sayso.infra.redis.client import PREFIX
from sayso.pending import RedisPendingStore
from sayso.pending.action import split_button_token
from sayso.pending.approval_rule import ApprovalRule, Deciders
from sayso.pending.approvals.people import (
    Account,
    DirectoryUnavailable,
    KnownPerson,
    account_name,
)
from sayso.pending.approvals.votes import Vote
from sayso.pending.sharded_scripts import shard_of
from sayso.pending.stored_action import StoredAction
from sayso.workers.queue_entries import InboxEntry
from tests.contracts.rigs import Rig, make_processor, make_sender
from tests.scratch_redis import empty_redis
from tests.workers.fakes import Dying, FakeChannel

#: Where ana asks.
ANA = Conversation("shop", "ana")
#: A group of colleagues.
GROUP = Conversation("team", "C1")
MANAGERS = ApprovalRule(Deciders("role", ("manager",)))


class FakeDirectory:
    """People whom a test gives accounts and roles, and takes them away."""

    def __init__(self, *people: KnownPerson) -> None:
        self.people = {each.name: each for each in people}
        #: The ids under which messages come in, by the ids that the directory knows.
        self.known_as: dict[str, str] = {}
        self.is_down = False

    def set(self, name: str, **fields: object) -> None:
        """Change a person."""
        self.people[name] = replace(self.people[name], **fields)

    async def person_of(self, channel: str, user_ids: Sequence[str]) -> KnownPerson:
        """Return who has one of these accounts."""
        if self.is_down:
            raise DirectoryUnavailable("down")
        accounts = {Account(channel, each) for each in user_ids}
        for person in self.people.values():
            if accounts.intersection(person.accounts):
                return person
        account = Account(channel, user_ids[0])
        return KnownPerson(account_name(account), (account,))

    async def named(self, name: str) -> KnownPerson | None:
        """Return the person of this name."""
        return self.people.get(name)

    async def with_role(self, role: str) -> Sequence[KnownPerson]:
        """Return who has a role."""
        if self.is_down:
            raise DirectoryUnavailable("down")
        return [each for each in self.people.values() if role in each.roles]

    async def represented_by(self, person: KnownPerson) -> Sequence[KnownPerson]:
        """Return who is away and has named this person."""
        return [each for each in self.people.values() if each.stand_in == person.name]

    async def direct_conversation(self, account: Account) -> Conversation:
        """Return the chat with the name of the person."""
        user_id = self.known_as.get(account.user_id, account.user_id)
        return Conversation(account.channel, user_id)


class replace_repository:  # noqa: N801
    """A store with another repository."""

    def __init__(self, store, repository) -> None:
        self._store = store
        self.repository = repository

    def __getattr__(self, name: str):
        return getattr(self._store, name)


def colleague(name: str, *roles: str) -> KnownPerson:
    """Return a person with an account of their name on the channel of the team."""
    return KnownPerson(name, (Account("team", name),), frozenset(roles))


class Shop:
    """A bot with a tool `refund`, whose calls other people decide by a rule."""

    def __init__(
        self,
        *amounts: int,
        rule: ApprovalRule = MANAGERS,
        lines: Sequence[str] = (),
        agent: Agent | None = None,
        **behavior,
    ) -> None:
        """The model refunds `amounts`, one a turn, and then says `lines`.

        `agent` answers in its place.
        """
        self.rig = Rig(empty_redis())
        self.refunds: list[int] = []
        self.directory = FakeDirectory(
            KnownPerson("ana", (Account("shop", "ana"), Account("team", "ana"))),
            colleague("bea", "manager"),
            colleague("cem", "manager"),
            colleague("dan"),
        )

        @tool(preview="Refund {amount} EUR")
        def refund(amount: int) -> str:
            """Refund an amount."""
            self.refunds.append(amount)
            return f"refunded {amount}"

        calls = [[ToolCall("refund", {"amount": each}, f"c{each}")] for each in amounts]
        self.provider = ScriptedProvider([*calls, *lines])
        config = AgentConfig(
            max_retries=0, tool_policy=ToolPolicy(allow=["*"], approval={"refund": rule})
        )
        self.shop = FakeChannel()
        self.shop.name = "shop"
        self.team = FakeChannel()
        self.team.name = "team"
        channels = {"shop": self.shop, "team": self.team}
        options = {"journals": self.rig.journals, "people": self.directory}
        agents = {
            "shop": ChannelAgent(
                agent or Agent([refund], self.provider, config),
                self.rig.store,
                behavior=ChannelBehavior(**behavior),
                **options,
            ),
            "team": ChannelAgent(
                Agent([], ScriptedProvider(["hello"] * 9), AgentConfig(max_retries=0)),
                self._team_store(),
                behavior=ChannelBehavior(),
                **options,
            ),
        }
        self.agents = agents
        self.processor = make_processor(
            self.rig.mailbox, make_sender(self.rig.outbox, channels), channels, agents
        )
        self.places = {
            ANA,
            GROUP,
            *(Conversation("team", name) for name in ("bea", "cem", "dan", "ana")),
        }

    def _team_store(self) -> RedisPendingStore:
        """Return the store of the team's agent: as each channel, it has its own."""
        return RedisPendingStore(
            client=self.rig.client, secret_keys=["key"], scripts=self.rig.action_scripts
        )

    def work(self, *places: Conversation) -> None:
        """Work in all conversations until nothing is left."""
        for _ in range(4):
            for place in places or sorted(self.places, key=lambda each: each.id):
                asyncio.run(self.processor.run(place.id))

    def hear(self, place: Conversation, user: str, text: str = "", **fields) -> Turn:
        """Accept a message."""
        tap = fields.pop("tap", "")
        turn = Turn(
            fields.pop("event", "") or f"e{time.monotonic_ns()}",
            place,
            user,
            text,
            user_name=fields.pop("user_name", user.title()),
            tap=Tap(tap) if tap else None,
            **fields,
        )
        self.rig.accept(turn)
        return turn

    def ask(self, text: str = "refund please") -> None:
        """Let ana ask for what the model does next."""
        self.hear(ANA, "ana", text)
        self.work()

    def say(self, user: str, text: str, **fields) -> None:
        """Let a colleague write in their own chat."""
        self.hear(Conversation("team", user), user, text, **fields)
        self.work()

    def tap(self, user: str, button: Button, place: Conversation | None = None, **fields) -> None:
        """Let a colleague tap a button."""
        self.hear(place or Conversation("team", user), user, tap=button.data, **fields)
        self.work()

    def request(self, user: str, number: int = -1) -> tuple[Button, Button]:
        """Return the buttons yes and no of a question to a colleague or group, the last unless given."""
        asked = [
            each.reply.buttons
            for each in self.team.sent
            if each.conversation.chat == user and each.reply.buttons
        ]
        assert asked, f"{user} was asked nothing"
        yes, no = asked[number]
        return yes, no

    def later(self, seconds: float) -> None:
        """Let time pass, and work on what is due then."""
        self.rig.pass_time(seconds)
        self.rig.overdue()
        self.work()

    def message_of(self, user: str) -> str:
        """Return the platform's id of the last message with buttons to a colleague."""
        numbers = [
            number
            for number, each in enumerate(self.team.sent, start=1)
            if each.conversation.chat == user and each.reply.buttons
        ]
        return f"m{numbers[-1]}"

    def notice_button(self) -> Button:
        """Return the button with which ana withdraws."""
        return next(
            each.reply.buttons[0] for each in reversed(self.shop.sent) if each.reply.buttons
        )

    def home_action(self) -> StoredAction:
        """Return the action that ana last asked for."""
        parts = split_button_token(self.notice_button().data)
        (stored,) = self.rig.repository.load(ANA.id, (parts[0],))
        return stored

    def own_question(self, user: str, amount: int, place: Conversation | None = None) -> None:
        """Let the team's agent ask a colleague for a yes to a refund of their own."""
        config = AgentConfig(max_retries=0, tool_policy=ToolPolicy(review=["refund"]))
        script = ScriptedProvider([[ToolCall("refund", {"amount": amount}, "own")]])
        self.agents["team"] = ChannelAgent(
            Agent(self.agents["shop"].agent.tools, script, config),
            self._team_store(),
            people=self.directory,
            journals=self.rig.journals,
        )
        self.processor.turns.agents["team"] = self.agents["team"]
        place = place or Conversation("team", user)
        self.hear(place, user, "refund it")
        self.work(place)

    def die_after(self, step: str) -> None:
        """Work in ana's chat until this step of a pending action was made, and die there."""
        settlement = self.rig.store.settlement
        votes = self.agents["shop"]._votes
        real = settlement._repository
        dying = Dying(real, step)
        settlement._repository = dying
        if step == "change":
            votes._store = replace_repository(self.rig.store, dying)
        try:
            self.work(ANA)
        except RedisError:
            pass
        else:
            raise AssertionError(f"nobody came to {step!r}")
        settlement._repository = real
        votes._store = self.rig.store
        self.rig.end_lease()

    def forge_inbox(self, before: str, after: str) -> None:
        """Change the text of the turn that waits for ana's agent."""
        key = f"{PREFIX}{{{shard_of(ANA.id)}}}:inbox:{ANA.id}"
        (entry,) = self.rig.client.lrange(key, 0, -1)
        assert before in entry
        self.rig.client.lset(key, 0, entry.replace(before, after))

    def waiting_vote(self) -> Vote:
        """Return the vote that waits for ana's agent."""
        key = f"{PREFIX}{{{shard_of(ANA.id)}}}:inbox:{ANA.id}"
        (entry,) = self.rig.client.lrange(key, 0, -1)
        turn = Turn.from_json(InboxEntry.parse(entry).turn)
        return Vote.from_json(turn.request_event)

    def forge_action(self, **fields: str) -> None:
        """Change fields of ana's action in Redis, without a key of the bot."""
        action_id = self.home_action().action_id
        key = f"{PREFIX}{{{shard_of(ANA.id)}}}:pending:{action_id}"
        self.rig.client.hset(key, mapping=fields)

    def texts_to(self, user: str) -> list[str]:
        """Return what a colleague or group read."""
        return [each.reply.text for each in self.team.sent if each.conversation.chat == user]

    @property
    def texts(self) -> list[str]:
        """Return what ana read."""
        return self.shop.texts
