"""TurnContexts: gathers everything that is known about a turn before it is answered."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Literal

from sayso.agent.agent import Agent
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.context import TAPPED, TurnContext
from sayso.agent.guards.policy import ToolPolicy, effective_after
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.messages import Role, without_notes
from sayso.agent.run.inner_agent import inner_tools
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import role_of_user
from sayso.channels.i18n.language import choose
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.channels.types import Turn
from sayso.pending.action import After, OtherMessage
from sayso.pending.call_context import ChannelRun
from sayso.pending.consent import ConfirmParser
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import StoredAction
from sayso.pending.turns import Lease, QueuedTurn


class TurnContexts:
    """Builds the contexts of one channel's turns. Lives as long as its agent and store."""

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
        #: The languages in which people are answered.
        self.languages = frozenset(behavior.languages or getattr(parser, "languages", ()))

    def queued(self, queued: QueuedTurn, lease: Lease, memory: ConversationMemory) -> TurnContext:
        """Return a turn of a mailbox with everything that its worker was given."""
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
            is_last_turn=queued.waiting <= max(1, len(queued.parts)),
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
        """Return a turn with what every turn needs. `received_at` in Unix seconds.

        The actions are verified here: nothing of a record that was tampered with gets any further.
        """
        signer = self._store.signer
        if open_action is not None:
            open_action = open_action.verified(signer, turn.scope)
        if named_action is not None:
            # In a group it may be another person's, who is named in it.
            owner = replace(turn.scope, user_id=named_action.action.user_id)
            named_action = named_action.verified(signer, owner)
        texts = self.texts(turn, memory)
        return TurnContext(
            turn=turn,
            user=turn.scope.id,
            open_action=open_action,
            named_action=named_action,
            memory=memory,
            received_at=received_at,
            texts=texts,
            run=self._channel_run(turn, texts),
            summarizes=self._agent.config.summarize_on_trim,
        )

    def texts(self, turn: Turn, memory: ConversationMemory | None = None) -> Texts:
        """Return the texts in the language of the sender.

        It is that of this message, of an earlier one in `memory`, of their app, or of the channel.
        """
        history = memory.get_history() if memory else []
        before = (
            without_notes(message.content)
            for message in reversed(history)
            if message.role is Role.USER and message.content != TAPPED
        )
        default = self._behavior.language
        language = choose(chain([turn.text], before), turn.language, default)
        is_spoken = not self.languages or language in self.languages
        return texts_for(language if is_spoken else default)

    def _channel_run(self, turn: Turn, texts: Texts) -> ChannelRun:
        """Return what tools, roles and proposals of this turn know about the person."""
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
            tool_of_yes=lambda name: self._tool_and_policy(name)[0],
        )

    def _other_message_of_tool(self, name: str) -> OtherMessage | Literal[""]:
        """Return what another message does to a question of a tool, "" where it does not say."""
        tool, _ = self._tool_and_policy(name)
        return tool.other_message if tool else ""

    def _after_tool(self, name: str) -> After | Literal[""]:
        """Return what follows the outcome of a tool's actions, "" where neither policy nor tool
        say.
        """
        tool, policy = self._tool_and_policy(name)
        return effective_after(name, tool, policy)

    def _tool_and_policy(self, name: str) -> tuple[Tool | None, ToolPolicy | None]:
        """Return the tool of this name, and the policy of its agent.

        The agent is this one, or one that is a tool of this one. For a kind of action that is no
        tool's name there is only the policy of this agent.
        """
        policy = self._agent.config.tool_policy
        own = [(tool, policy) for tool in self._agent.tools]
        for tool, policy_of_tool in chain(own, inner_tools(self._agent.tools)):
            if tool.name == name:
                return tool, policy_of_tool
        return None, policy
