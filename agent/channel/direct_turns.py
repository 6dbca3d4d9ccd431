"""DirectTurns: answers turns without a worker, as `ask_channel` does.

A worker takes turns from a mailbox, and stores all that a turn changes in one commit. A program or
a test without Redis calls the agent directly. Here such a turn is answered by the same parts, and
its changes are applied to the store of actions at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sayso.agent.agent import Agent
from sayso.agent.channel.context import TurnAnswer, TurnContext, add_exchange, text_change
from sayso.agent.channel.decide import KeepAndRun
from sayso.agent.channel.endings import dropped_transition, texts_of
from sayso.agent.channel.failed_turns import FailedTurns
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.stored_history import memory_from_json
from sayso.agent.channel.turn_contexts import TurnContexts
from sayso.agent.channel.turn_journal import InterruptedRun, RunRecord
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.result import AgentResult
from sayso.channels.markdown.literal import as_text
from sayso.channels.types import Reply, Turn, storable
from sayso.infra.ids import random_id
from sayso.pending.action import split_button_token
from sayso.pending.consent.parser import ConfirmParser
from sayso.pending.store import PendingActionStore, scope_of
from sayso.pending.stored_action import WAITING_STATES, StoredAction
from sayso.pending.turn_changes import Transition, TurnChange

log = logging.getLogger(__name__)

#: How many scopes have a history at most, and how many conversations a note of their last question.
#: Beyond that, the one with the oldest last turn loses it.
MAX_MEMORIES = 5000


class DirectTurns:
    """Answers turns of one channel without mailbox, outbox and lease. Thread-safe.

    A question counts as shown once it is returned. Histories stay in this object.

    `answer` is `ChannelAgent._answer`: it returns the answer to a turn, and changes nothing.
    """

    def __init__(
        self,
        agent: Agent,
        store: PendingActionStore,
        parser: ConfirmParser,
        *,
        contexts: TurnContexts,
        outcomes: OutcomeHistory,
        failed_turns: FailedTurns,
        answer: Callable[[TurnContext], Awaitable[TurnAnswer]],
    ) -> None:
        self._agent = agent
        self._store = store
        self._parser = parser
        self._contexts = contexts
        self._outcomes = outcomes
        self._failed_turns = failed_turns
        self._answer = answer
        #: The histories, by conversation and scope; the one with the oldest last turn comes first.
        self._memories: OrderedDict[str, ConversationMemory] = OrderedDict()
        self._memories_lock = threading.Lock()
        #: By conversation: the id of the action whose question is its last message, "" where the
        #: last message asks nothing. A conversation that is not here had no turn in this process.
        self._last_questions: OrderedDict[str, str] = OrderedDict()

    async def ask(
        self,
        user_id: str,
        message: str,
        *,
        channel_id: str | None,
        conversation_id: str | None,
        args_digest: str | None,
    ) -> AgentResult:
        """Answer a message with a text, as `ChannelAgent.aask_channel` says.

        `args_digest`: the digest of the arguments that the caller has shown; a yes to an action
        with other arguments cancels it. None: a yes counts for the action that waits.
        """
        scope = scope_of(user_id, channel_id, conversation_id)
        turn = Turn(f"ask-{random_id()}", scope.conversation, user_id, message)
        context = replace(await self._load_context(turn), returns_text=True)

        # A yes to a record that was tampered with is refused later, by the claim.
        stored = context.open_action
        if stored is not None and not stored.is_changed:
            is_other_action = args_digest not in (None, stored.action.args_digest)
            if is_other_action and self._parser.is_confirm(message):
                return await self._refuse_other_action(context, stored)

        answer = await self._answer_and_apply(context)
        result = answer.result or AgentResult("")
        replies = [turn_reply.reply for turn_reply in answer.change.replies]
        text = "\n\n".join(reply.text for reply in replies if reply.text)
        return replace(result, content=_text_to_print(text, _words_of_model(result)))

    async def _refuse_other_action(self, context: TurnContext, stored: StoredAction) -> AgentResult:
        """Refuse a yes to another action than the one that waits. The waiting one is cancelled."""
        self._outcomes.write_outcome(context, stored, "replaced")
        transition = Transition(stored.action_id, WAITING_STATES, "cancelled")
        await self._store.repository.change(
            context.turn.conversation.id, TurnChange(transition=transition)
        )
        return AgentResult(as_text(texts_of(stored).unsafe(stored.action.preview)))

    async def take(self, turn: Turn) -> tuple[Reply, ...]:
        """Answer a turn, a text or a tap. Return the replies, with buttons and files."""
        answer = await self._answer_and_apply(await self._load_context(turn))
        return tuple(turn_reply.reply for turn_reply in answer.change.replies)

    async def _load_context(self, turn: Turn) -> TurnContext:
        """Return a turn with everything that this process knows about it."""
        scope_id = turn.scope.id
        conversation = turn.conversation.id
        open_action = await self._store.repository.load_open(conversation, scope_id)
        last_question = self._last_questions.get(conversation)
        if open_action and last_question not in (None, open_action.action_id):
            # The bot has said something else after the question. Turns without a worker all have
            # the number 0, so any other number says that.
            open_action = replace(open_action, followed_after_seq=1)

        # What the turn names: the action that a continuation goes on with, or that of a button.
        named_id = turn.continues
        if not named_id and turn.tap:
            parts = split_button_token(turn.tap.data)
            named_id = parts[0] if parts else ""
        named_action = None
        if named_id:
            (named_action,) = await self._store.repository.load(conversation, (named_id,))

        # The time limit of an open question is judged by the clock of the store.
        received_at = time.time()
        if open_action is not None:
            received_at = open_action.loaded_at
        context = self._contexts.build(
            turn,
            open_action=open_action,
            named_action=named_action,
            memory=self._memory_of(f"{conversation}:{scope_id}"),
            received_at=received_at,
        )
        return replace(context, journal=RunRecord())

    def _memory_of(self, scope: str) -> ConversationMemory:
        """Return the history of a scope. If there are too many, it is now the last to be deleted."""
        with self._memories_lock:
            memory = self._memories.pop(scope, None) or memory_from_json("", self._agent.memory)
            self._memories[scope] = memory
            while len(self._memories) > MAX_MEMORIES:
                self._memories.popitem(last=False)
        return memory

    async def _answer_and_apply(self, context: TurnContext) -> TurnAnswer:
        """Answer a turn, and apply its changes. If it fails, say so in the history, and raise."""
        conversation = context.turn.conversation.id
        stored = context.open_action
        before = context.memory.get_history()
        try:
            answer = await self._answer(context)
        except BaseException as exc:
            has_answer_in_history = context.memory.get_history()[-1:] != before[-1:]
            if not has_answer_in_history:
                text = context.texts.broken()
                if not isinstance(exc, Exception):  # such as a cancelled task
                    text = context.texts.stopped()
                self._note_failure(context, text)
            if stored and not self._stays_open(context, stored):
                await self._drop_after_failure(context, stored)
            raise

        if not await self._apply(conversation, answer.change):
            return self._overtaken(context, answer)
        self._note_last_question(conversation, answer.change.last_question)
        if answer.change.continuation is None:
            return answer
        return await self._with_continuation(context, answer, answer.change.continuation)

    def _stays_open(self, context: TurnContext, stored: StoredAction) -> bool:
        """Return whether an action goes on waiting although its person's message has failed."""
        return isinstance(self._failed_turns.decide(context, stored), KeepAndRun)

    def _overtaken(self, context: TurnContext, answer: TurnAnswer) -> TurnAnswer:
        """Return the answer of a turn whose changes cannot be applied: another turn was faster.

        What the turn wrote into the history about its actions is taken back.
        """
        # If the turn has changed a question, its calls are linked to the old question again.
        self._outcomes.link_to_change(context, answer.predecessors)
        if context.open_action:
            self._outcomes.forget_outcome(context, context.open_action)
        new_ids = [action.action_id for action in answer.change.new_actions]
        self._outcomes.write_outcomes(context, new_ids, "replaced", context.received_at)
        return TurnAnswer(text_change(context.texts.overtaken()))

    def _note_last_question(self, conversation: str, action_id: str) -> None:
        """Note which question is the last message of a conversation, "" for none."""
        self._last_questions[conversation] = action_id
        self._last_questions.move_to_end(conversation)
        while len(self._last_questions) > MAX_MEMORIES:
            self._last_questions.popitem(last=False)

    async def _drop_after_failure(self, context: TurnContext, stored: StoredAction) -> None:
        """End an action because its person's message could not be answered."""
        dropped = dropped_transition(stored, context.turn)
        if await self._apply(context.turn.conversation.id, TurnChange(transition=dropped)):
            self._outcomes.write_outcome(context, stored, "replaced")
        else:
            self._outcomes.forget_outcome(context, stored)

    async def _with_continuation(
        self, context: TurnContext, answer: TurnAnswer, continuation: Turn
    ) -> TurnAnswer:
        """Return the answer of a deciding turn with that of its continuation.

        If the continuation fails, the answer says that the rest is missing: the effect has taken
        place, and its outcome must reach the caller.
        """
        following = await self._load_context(continuation)
        following = replace(following, returns_text=context.returns_text)
        try:
            further = await self._answer_and_apply(following)
        except Exception:
            log.exception("turn.failed")
            further = TurnAnswer(text_change(context.texts.rest_missing()))
        replies = (*answer.change.replies, *further.change.replies)
        return TurnAnswer(replace(further.change, replies=replies), further.result)

    def _note_failure(self, context: TurnContext, text: str) -> None:
        """Add a turn that was stopped or failed to the history, with its calls."""
        run = InterruptedRun()
        if isinstance(context.journal, RunRecord):
            run = context.journal.interrupted_run
        add_exchange(context, text, run.messages)
        self._outcomes.write_outcomes(context, run.proposed, "replaced", context.received_at)

    async def _apply(self, conversation: str, change: TurnChange) -> bool:
        """Apply a change to the store of actions.

        Return False, and change nothing, if another message of the same person was faster.
        """
        if not (change.transition or change.new_actions or change.revokes):
            return True
        status, _ = await self._store.repository.change(conversation, change)
        return status == "ok"


def _words_of_model(result: AgentResult) -> str:
    """Return what the model wrote for the user in its last answer; "" for any other reply."""
    match result.stop_reason:
        case "answer":
            return result.content
        case "provider_error":
            return result.refusal
    return ""


def _text_to_print(text: str, model_text: str) -> str:
    """Return a reply without the escapes of Markdown, to be printed.

    The part of it that the model wrote (`model_text`) is not changed: it has no escapes.
    """
    # Without the characters that cannot be stored, which no reply has.
    model_text = storable(model_text)
    start = text.rfind(model_text)
    if start < 0:
        return as_text(text)
    end = start + len(model_text)
    return as_text(text[:start]) + model_text + as_text(text[end:])
