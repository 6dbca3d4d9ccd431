"""Till: a bot whose person may give a standing yes to refunds."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from redis.exceptions import RedisError

from sayso.agent import (
    Agent,
    AgentConfig,
    ScriptedProvider,
    ToolCall,
    ToolContext,
    ToolPolicy,
    tool,
)
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.types import Button, Conversation, Tap, Turn
from sayso.infra.redis.client import PREFIX
from sayso.pending.action import split_button_token
from sayso.pending.sharded_scripts import shard_of
from sayso.pending.standing_yes import StandingYes
from sayso.pending.stored_action import StoredAction
from tests.contracts.rigs import Rig, make_processor, make_sender
from tests.scratch_redis import empty_redis
from tests.workers.fakes import Dying, FakeChannel

#: Where ana asks, and another conversation of hers.
ANA = Conversation("till", "ana")
ELSEWHERE = Conversation("till", "elsewhere")
#: What the author of the tool allows.
RULE = {"for": "1h", "times": 3, "where": {"amount": "<= 50"}, "same": ["customer"]}


class Till:
    """A bot with a tool `refund`, which a standing yes may cover."""

    def __init__(
        self,
        *amounts: Any,
        rule: Any = RULE,
        policy: ToolPolicy | None = None,
        lines: tuple[str, ...] = (),
        behavior: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """The model refunds `amounts`, one a turn; a list stands for several calls of one answer.

        An amount may be a pair with the customer; else the customer is "c1". `lines` follow.
        """
        self.rig = Rig(empty_redis())
        self.refunds: list[tuple[float, str]] = []
        #: The id of the standing yes that each call ran under, "" for none.
        self.confirmed: list[str] = []
        self.calls = 0
        self.behavior = behavior or {}
        answers = [self._answer(each) for each in amounts]
        self.provider = ScriptedProvider([*answers, *lines])
        self.channel = FakeChannel()
        self.channel.name = "till"
        self.deploy(rule=rule, policy=policy, **options)

    def _answer(self, amounts: Any) -> list[ToolCall]:
        """Return the calls of one answer of the model."""
        calls = []
        for each in amounts if isinstance(amounts, list) else [amounts]:
            amount, customer = each if isinstance(each, tuple) else (each, "c1")
            self.calls += 1
            args = {"amount": amount, "customer": customer}
            calls.append(ToolCall("refund", args, f"call{self.calls}"))
        return calls

    def deploy(self, *, rule: Any = RULE, policy: ToolPolicy | None = None, **options: Any) -> None:
        """Start the bot, or start it anew with another tool or policy."""

        @tool(
            requires_approval=True,
            standing=rule,
            **{"preview": "Refund {amount} to {customer}", **options},
        )
        def refund(amount: float, customer: str, context: ToolContext, note: str = "") -> str:
            """Refund an amount."""
            if context.confirmed:
                self.confirmed.append(context.confirmed.standing_yes)
            if amount == 13:
                raise ValueError("unlucky")
            self.refunds.append((amount, customer))
            return f"refunded {amount:g}"

        config = AgentConfig(max_retries=0, tool_policy=policy)
        self.agent = ChannelAgent(
            Agent([refund], self.provider, config),
            self.rig.store,
            behavior=ChannelBehavior(**self.behavior),
            journals=self.rig.journals,
        )
        channels = {"till": self.channel}
        self.processor = make_processor(
            self.rig.mailbox,
            make_sender(self.rig.outbox, channels),
            channels,
            {"till": self.agent},
        )

    def work(self, place: Conversation = ANA) -> None:
        """Work in a conversation until nothing is left."""
        for _ in range(4):
            asyncio.run(self.processor.run(place.id))

    def hear(
        self, text: str = "", place: Conversation = ANA, user: str = "ana", **fields: Any
    ) -> None:
        """Accept a message or a tap."""
        tap = fields.pop("tap", "")
        event = fields.pop("event", "") or f"e{time.monotonic_ns()}"
        turn = Turn(
            event, place, user, text, user_name="Ana", tap=Tap(tap) if tap else None, **fields
        )
        self.rig.accept(turn)

    def ask(self, text: str = "refund please", **fields: Any) -> None:
        """Let ana ask for what the model does next."""
        self.hear(text, **fields)
        self.work(fields.get("place", ANA))

    def buttons(self) -> tuple[Button, ...]:
        """Return the buttons of the last question."""
        return next(
            each.reply.buttons for each in reversed(self.channel.sent) if each.reply.buttons
        )

    def tap(self, number: int, **fields: Any) -> None:
        """Tap a button of the last question, by its place from 0, and work on it."""
        self.hear(tap=self.buttons()[number].data, **fields)
        self.work(fields.get("place", ANA))

    def stand(self) -> None:
        """Ask for the first refund, and give a standing yes with it."""
        self.ask()
        self.tap(2)

    @property
    def texts(self) -> list[str]:
        """Return the new messages that ana read."""
        return self.channel.new_texts

    def key(self, kind: str, *parts: str) -> str:
        """Return the name of a key of ana's conversation."""
        return ":".join([f"{PREFIX}{{{shard_of(ANA.id)}}}:{kind}", *parts])

    @property
    def standing_key(self) -> str:
        """Return the key with ana's standing yeses."""
        return self.key("standing", ANA.id, self.scope.id)

    @property
    def scope(self):
        """Return who ana is here."""
        return Turn("e", ANA, "ana").scope

    def standing(self) -> list[StandingYes]:
        """Return ana's standing yeses as they are stored."""
        texts = self.rig.client.hvals(self.standing_key)
        return [StandingYes.from_json(text) for text in texts]

    def forge(self, **fields: Any) -> None:
        """Change fields of the stored standing yes, without its seal."""
        ((id_, text),) = self.rig.client.hgetall(self.standing_key).items()
        self.rig.client.hset(self.standing_key, id_, json.dumps({**json.loads(text), **fields}))

    def action_of_button(self) -> StoredAction:
        """Return the action of the last question."""
        parts = split_button_token(self.buttons()[0].data)
        (stored,) = self.rig.repository.load(ANA.id, (parts[0],))
        return stored

    def actions(self) -> list[StoredAction]:
        """Return ana's started actions, the oldest first."""
        return list(reversed(self.rig.repository.list_started(ANA.id, self.scope.id)))

    def later(self, seconds: float) -> None:
        """Let time pass."""
        self.rig.pass_time(seconds)

    def die_after(self, step: str, times: int = 1) -> None:
        """Work until this step of a pending action was made so often, and die there."""
        settlement = self.rig.store.settlement
        real = settlement._repository
        settlement._repository = Dying(real, step, times)
        try:
            self.work()
        except RedisError:
            pass
        else:
            raise AssertionError(f"nobody came to {step!r}")
        finally:
            settlement._repository = real
        self.rig.end_lease()

    def die_before_commit(self) -> None:
        """Answer the next turn, and die before it is committed."""
        mailbox = self.processor.turns.mailbox
        real = mailbox.commit

        async def die(*args: Any, **kwargs: Any) -> None:
            raise RedisError("killed")

        mailbox.commit = die
        try:
            asyncio.run(self.processor.run(ANA.id))
        except RedisError:
            pass
        else:
            raise AssertionError("nothing was to be committed")
        finally:
            mailbox.commit = real
        self.rig.end_lease()

    def run_one_turn(self) -> None:
        """Answer exactly one turn, and leave the others waiting."""
        mailbox = self.processor.turns.mailbox
        real = mailbox.commit

        class Enough(Exception):
            """Raised after the commit."""

        async def commit(*args: Any, **kwargs: Any) -> Any:
            await real(*args, **kwargs)
            raise Enough

        mailbox.commit = commit
        try:
            asyncio.run(self.processor.run(ANA.id))
        except Enough:
            pass
        finally:
            mailbox.commit = real
        self.rig.end_lease()
