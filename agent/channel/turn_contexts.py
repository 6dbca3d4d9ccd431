"""TurnContexts: gathers everything that is known about a turn before it is answered.

The result is a TurnContext (`context.py`): the turn, the actions that it may be about, the history,
the language of the person, and what tools may know about them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Literal

from sayso.agent.agent import Agent
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.context import TurnContext
from sayso.agent.channel.user_messages import TAPPED
from sayso.agent.guards.policy import ToolPolicy, effective_after, effective_standing
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.messages import Role, without_notes
from sayso.agent.run.inner_agent import inner_tools
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import role_of_user
from sayso.channels.i18n.language import choose
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.channels.types import Turn
from sayso.pending.action import After, OtherMessage
from sayso.pending.approval_rule import ApprovalRule
from sayso.pending.call_context import ChannelRun
from sayso.pending.consent.parser import ConfirmParser
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import StoredAction
from sayso.pending.turns import Lease, QueuedTurn


class TurnContexts:
    """Builds the contexts of one channel's turns. Lives as long as its agent and store.

    `parser` reads what is a yes or a no. `behavior` says in which languages the channel speaks, and
    how long a question can be answered.
    """

    def __init__(
        self,
        agent: Agent,
        store: PendingActionStore,
        parser: ConfirmParser,
        behavior: ChannelBehavior,
    ) -> None:
        self._agent = agent
        self._store = store
        self._parser = parser
        self._behavior = behavior
        #: The languages in which people are answered; empty for all.
        self.languages = frozenset(behavior.languages or getattr(parser, "languages", ()))

    def queued(self, queued: QueuedTurn, lease: Lease, memory: ConversationMemory) -> TurnContext:
        """Return a turn of a mailbox with everything that its worker knows.

        `queued` is the turn with what was stored about it, `lease` the worker's right to work on
        the conversation, `memory` the history of the person.
        """
        # Several messages that came in quickly may be answered as one turn, and all count in
        # `waiting`. A turn of one message has no parts.
        merged_count = max(1, len(queued.parts))
        context = self.build(
            queued.turn,
            open_action=queued.open_action,
            named_action=queued.tapped_action,
            memory=memory,
            received_at=queued.received_at,
        )
        return replace(
            context,
            lease=lease,
            seq=queued.seq,
            timers=queued.timers,
            lost_at=queued.lost_at,
            is_loss_told=queued.is_loss_told,
            last_answer=queued.last_answer,
            is_last_turn=queued.waiting <= merged_count,
        )

    def build(
        self,
        turn: Turn,
        *,
        open_action: StoredAction | None,
        named_action: StoredAction | None,
        memory: ConversationMemory,
        received_at: float,
    ) -> TurnContext:
        """Return a turn with what every turn needs, also without a worker.

        `open_action` is the person's action, `named_action` that of the tapped button or of the
        continuation, `received_at` when the turn came in, in Unix seconds. The two actions are
        verified here: nothing of a record that was tampered with is used further on.
        """
        signer = self._store.signer
        if open_action is not None:
            open_action = open_action.verified(signer, turn.scope)
        if named_action is not None:
            # In a group, a person may tap the button of another one. The record is genuine if it
            # was signed for the person whom it names; whether that is the sender is decided later.
            owner = replace(turn.scope, user_id=named_action.action.user_id)
            named_action = named_action.verified(signer, owner)
        texts = self.texts(turn, memory)
        return TurnContext(
            turn=turn,
            scope_id=turn.scope.id,
            open_action=open_action,
            named_action=named_action,
            memory=memory,
            received_at=received_at,
            texts=texts,
            channel_run=self._channel_run(turn, texts),
            summarizes=self._agent.config.summarize_on_trim,
        )

    def texts(self, turn: Turn, memory: ConversationMemory | None = None) -> Texts:
        """Return the texts in the language of the sender.

        It is that of this message, else of their last message in `memory` with a language, else of
        their app, else of the channel. `memory` None: there are no earlier messages.
        """
        history = memory.get_history() if memory else []
        messages_of_user = (each for each in reversed(history) if each.role is Role.USER)
        # The entry for a tap (TAPPED) is no text of the person.
        earlier = (
            without_notes(each.content) for each in messages_of_user if each.content != TAPPED
        )
        default = self._behavior.language
        language = choose(chain([turn.text], earlier), turn.language, default)

        is_spoken = not self.languages or language in self.languages
        if not is_spoken:
            language = default
        return texts_for(language)

    def _channel_run(self, turn: Turn, texts: Texts) -> ChannelRun:
        """Return what the tools, roles and proposals of this turn may know about it."""
        return ChannelRun(
            user_id=turn.user_id,
            channel_id=turn.conversation.channel,
            conversation_id=turn.conversation.address,
            ttl_seconds=self._behavior.confirm_ttl or self._store.default_ttl_seconds,
            parser_version=self._parser.version,
            language=texts.language,
            aliases=turn.aliases,
            user_name=turn.user_name or "",
            role=partial(role_of_user, self._agent.selector),
            after=self._after_tool,
            other_message=self._other_message_of_tool,
            approval=self._approval_of_tool,
            standing=self._standing_of_tool,
            tool_of_yes=self._tool_named,
        )

    def _tool_named(self, name: str) -> Tool | None:
        """Return the tool of this name, which a yes to its proposal runs; None if there is none."""
        tool, _ = self._tool_and_policy(name)
        return tool

    def _other_message_of_tool(self, name: str) -> OtherMessage | Literal[""]:
        """Return what a message about something else does to a question of this tool.

        "": the tool does not say, so the channel does.
        """
        tool = self._tool_named(name)
        return tool.other_message if tool else ""

    def _after_tool(self, name: str) -> After | Literal[""]:
        """Return what follows the outcome of a tool's actions.

        "": neither the policy nor the tool says it, so the channel does.
        """
        tool, policy = self._tool_and_policy(name)
        return effective_after(name, tool, policy)

    def _approval_of_tool(self, name: str) -> ApprovalRule | None:
        """Return the rule of the policy that says who decides about a tool's actions, or None."""
        _, policy = self._tool_and_policy(name)
        if policy is None:
            return None
        return policy.approval_rule(name)

    def _standing_of_tool(self, name: str) -> dict[str, Any] | None:
        """Return for which later calls of a tool a yes may stand, None if for none."""
        tool, policy = self._tool_and_policy(name)
        if tool is None:
            return None
        rule = effective_standing(tool, policy)
        return rule.to_dict() if rule else None

    def _tool_and_policy(self, name: str) -> tuple[Tool | None, ToolPolicy | None]:
        """Return the tool of this name, and the policy that decides about it.

        The tool is one of this agent, or of an agent that is a tool of this agent and has a policy
        itself. A program may also propose kinds of actions that are no tool, such as
        "delete_account". For these, return None and the policy of this agent.
        """
        policy = self._agent.config.tool_policy
        own = [(tool, policy) for tool in self._agent.tools]
        for tool, policy_of_tool in chain(own, inner_tools(self._agent.tools)):
            if tool.name == name:
                return tool, policy_of_tool
        return None, policy
