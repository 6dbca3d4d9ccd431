"""ChannelAgent: answers the turns of one channel with an agent, and settles pending actions."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, takewhile
from typing import Any, Literal, get_args

from sayso.agent.agent import Agent
from sayso.agent.channel.changes import ChangeHandler
from sayso.agent.channel.commands import Commands
from sayso.agent.channel.confirmation import (
    ConfirmationHandler,
    dropped_transition,
    with_answer_followed,
)
from sayso.agent.channel.context import (
    NO_ANSWER,
    TAPPED,
    TOLD_OUTCOME,
    UNTOLD_OUTCOME,
    TurnAnswer,
    TurnContext,
    TurnFiles,
    add_exchange,
    fixed_answer,
    load_history,
    memory_from_json,
    user_message,
)
from sayso.agent.channel.long_replies import LongReplies
from sayso.agent.channel.long_texts import LongTexts, TextFiles
from sayso.agent.channel.outcomes import OutcomeHistory, action_ids
from sayso.agent.channel.prompts import ConfirmPrompts, Escalation
from sayso.agent.channel.tool_executors import ToolExecutors
from sayso.agent.channel.turn_journal import (
    InterruptedRun,
    Journals,
    RunRecord,
    StepsJournal,
    StreamingJournal,
    TurnJournal,
    interrupted_run,
)
from sayso.agent.config import AgentConfig
from sayso.agent.guards.policy import ToolPolicy, effective_after
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.messages import Role, without_notes
from sayso.agent.result import AgentResult
from sayso.agent.run.inner_agent import inner_tools
from sayso.agent.run.long_results import shorten_for_history
from sayso.agent.run.pause import RunCounts, forget_ended_pause, open_actions, run_counts_of
from sayso.agent.run.state import Journal, NoJournal
from sayso.agent.tools.call_texts import WITHOUT_VALUE, literal, result_text
from sayso.agent.tools.context import ToolEnvironment, TurnTimers
from sayso.agent.tools.definition import PreviewRefused
from sayso.agent.tools.screening import unfenced
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import role_of_user
from sayso.channels.base import MediaStore
from sayso.channels.i18n.invisible import shows_nothing
from sayso.channels.i18n.language import choose
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.channels.markdown.literal import as_markdown, as_text
from sayso.channels.markdown.outcome_signs import without_signs
from sayso.channels.types import Reply, Turn, storable
from sayso.infra.concurrency import has_no_loop, run_sync
from sayso.infra.ids import random_id
from sayso.infra.records import versioned
from sayso.pending.action import After, OtherMessage, is_choice_token, split_button_token
from sayso.pending.consent import ConfirmParser, RegexConfirmParser, read_answer
from sayso.pending.context import own_context
from sayso.pending.executors import Ambiguous, NotFound
from sayso.pending.proposals import ChannelRun, Effect, Proposal, plan_of
from sayso.pending.repository import WAITING_STATES, Claim, StoredAction
from sayso.pending.store import InMemoryPendingStore, PendingActionStore, scope_of
from sayso.pending.turns import (
    CHOICE_KIND,
    JournalUnreadable,
    Lease,
    QueuedTurn,
    StepListener,
    StreamListener,
    Transition,
    TurnChange,
)

log = logging.getLogger(__name__)

#: Characters of a text about an earlier action that stand in a question, above its preview.
MAX_PREFACE_CHARS = 1000
#: How long an outcome waits for what the model says of it where both are one message, in seconds.
#: Then the person gets the outcome, and that the rest is missing.
OUTCOME_SECONDS = 30.0
#: Number of scopes whose history is kept without a mailbox.
MAX_MEMORIES = 5000

#: The beginnings of typed results which say that there is nothing to ask for.
_NO_TARGET = tuple(f'{{"kind": "{each.kind}"' for each in (NotFound, Ambiguous, PreviewRefused))
#: Reasons to end a run whose reply is the agent's own text.
_OWN_REPLY_REASONS = ("answer", "terminal")


class ChannelAgent:
    """One agent on one channel, for all its users.

    Each scope has its own history and its own pending action.

    In a worker, `answer` returns everything that a turn changes, for one commit. Without a worker,
    as in the seed, `ask_channel` applies the changes at once, and a proposal counts as shown.

    `journals`: a turn whose worker is killed continues where it was; without them it starts again.
    `texts` stores texts that are too long for Redis; without it they are cut. Users are answered in
    the language they write if it is one of `languages` (empty: every language with a catalogue), or
    else in `language`. `expiry_notice`: tell users when a question expires. `escalation`: tell
    operators about unanswered questions. `commands`: answer /help and others without the model.
    `confirm_ok`: a plain "ok" right after the question is a yes. `after`: what follows the outcome
    of an action whose tool and policy say nothing: "say" ends the request with the bot's own text,
    "continue" lets the model go on with it. `is_one_message`: the outcome of an action and what the
    model says of it are one message, because each message costs money. `other_message`: what a
    message about something else does to an open question whose tool says nothing: "drop" ends it,
    "keep" answers the message and leaves it open. Raises ValueError for another `after` or
    `other_message`.
    """

    def __init__(
        self,
        agent: Agent,
        store: PendingActionStore | None = None,
        parser: ConfirmParser | None = None,
        *,
        confirm_ttl: float | None = None,
        media: MediaStore | None = None,
        journals: Journals | None = None,
        texts: TextFiles | None = None,
        language: str = "en",
        languages: Collection[str] = (),
        expiry_notice: bool = False,
        escalation: Escalation | None = None,
        commands: bool = True,
        confirm_ok: bool = False,
        after: After = "say",
        is_one_message: bool = False,
        other_message: OtherMessage = "drop",
    ) -> None:
        if after not in get_args(After):
            raise ValueError(f"after={after!r} is unknown: give 'continue' or 'say'")
        if other_message not in get_args(OtherMessage):
            raise ValueError(f"other_message={other_message!r} is unknown: give 'drop' or 'keep'")
        self.agent = agent
        self.after = after
        self.store = store or InMemoryPendingStore()
        self.parser = parser or self.store.parser
        # A question says "Reply ja", so a "ja" must be read.
        if isinstance(self.parser, RegexConfirmParser):
            self.parser = self.parser.reading((language, *languages))
        self._confirm_ttl = confirm_ttl or self.store.default_ttl_seconds
        self._files = TurnFiles(media)
        self._long_replies = LongReplies(self._files)
        self._journals = journals
        self._text_store = texts
        self._language = language
        self._languages = frozenset(languages or getattr(self.parser, "languages", ()))
        self._memories: OrderedDict[str, ConversationMemory] = OrderedDict()
        self._memories_lock = threading.Lock()
        self._prompts = ConfirmPrompts(self.store, escalation, expiry_notice=expiry_notice)
        self._confirm_ok = confirm_ok
        self._outcomes = OutcomeHistory(agent, self.store)
        self._changes = ChangeHandler(
            agent,
            self.store,
            self.parser,
            prompts=self._prompts,
            outcomes=self._outcomes,
        )
        self._confirmation = ConfirmationHandler(
            agent,
            self.store,
            self.parser,
            prompts=self._prompts,
            files=self._files,
            outcomes=self._outcomes,
            changes=self._changes,
            confirm_ok=confirm_ok,
            after=after,
            is_one_message=is_one_message,
            other_message=other_message,
            run_agent=self._run_agent,
        )
        #: By conversation without a worker: the id of the action whose question is its last
        #: message, "" where the last message asks nothing.
        self._last_questions: OrderedDict[str, str] = OrderedDict()
        self._commands = Commands(agent, self._prompts) if commands else None
        self.store.executors.tools = ToolExecutors(lambda: agent.tools, lambda: agent.config)

    async def answer(
        self,
        queued: QueuedTurn,
        lease: Lease,
        hear: StreamListener | None = None,
        steps: StepListener | None = None,
    ) -> TurnChange:
        """Return everything that a turn of a mailbox changes.

        `hear` receives the text while it arrives, unless a check follows. `steps` receives the tool
        calls. Raises LeaseLost, StaleTurn and JournalUnreadable.
        """
        summarizes = self.agent.config.summarize_on_trim
        memory = memory_from_json(queued.history, self.agent.memory, summarizes=summarizes)
        texts = self.texts_for_turn(queued.turn, memory)
        context = self._queued_context(queued, lease, memory, texts)
        long_texts = LongTexts(self._text_store, context.user)
        journal = None
        if self._journals is not None:
            store_file = partial(self._files.store, queued.turn)
            journal = TurnJournal(self._journals, lease, queued, store_file, long_texts)
        context = replace(
            context,
            journal=journal,
            stream_listener=hear,
            step_listener=steps,
            long_texts=long_texts,
        )
        answer = await self._answer(context)
        language = context.texts.language
        replies = tuple(
            (replace(reply, language=language), pid) for reply, pid in answer.change.replies
        )
        if answer.result:
            tools = tuple(call.tool_name for call in answer.result.tool_calls)
        else:
            tools = ()
        history = await _stored_history(memory, long_texts)
        return replace(
            answer.change,
            replies=replies,
            history=history,
            language=language,
            tools=tools,
        )

    async def _answer(self, context: TurnContext) -> TurnAnswer:
        """Answer a turn. A reply that would be many messages becomes its beginning and a file."""
        untold = context.memory.notes.pop(UNTOLD_OUTCOME, "")
        answer = await self._answer_in_full(context)
        if untold and context.turn.kind != "continuation":
            answer = await self._with_untold_outcome(context, answer, untold)
        if context.returns_text:  # a file would not reach the caller
            return answer
        change = await self._long_replies.bounded(context.turn, context.texts, answer.change)
        return replace(answer, change=change)

    async def _with_untold_outcome(
        self, context: TurnContext, answer: TurnAnswer, pending_action_id: str
    ) -> TurnAnswer:
        """Return the answer below an outcome that waits for its continuation,
        which tells it no more.

        The turn came in while the action was carried out,
        so it is answered before the continuation.
        """
        conversation = context.turn.conversation.id
        (stored,) = await self.store.repository.load(conversation, (pending_action_id,))
        decided = None
        if stored:
            decided = stored.verified(self.store.signer, context.turn.scope)
        outcome, effects = await self._confirmation.outcome_to_tell(context, decided)
        context.memory.notes[TOLD_OUTCOME] = pending_action_id
        return self._prompts.with_outcome(context, answer, outcome, effects)

    async def _waiting_outcome(self, context: TurnContext) -> tuple[str, tuple[Effect, ...]]:
        """Return the outcome that a continuation has to tell, "" if it was told,
        and what took effect.
        """
        turn = context.turn
        told = context.memory.notes.pop(TOLD_OUTCOME, "")
        if not turn.tells_outcome or told == turn.continues:
            return "", ()
        return await self._confirmation.outcome_to_tell(context, context.tapped)

    async def _answer_in_full(self, context: TurnContext) -> TurnAnswer:
        """Answer a turn. Tools know who the user is, and can read the files that the user sent."""
        with own_context(ToolEnvironment) as own:
            own.run, own.received_files = context.run, lambda: self._files.received(context)
            own.spool_folder = self._files.spool_folder
            if context.turn.kind == "continuation":
                return await self._go_on(context)
            tap = context.turn.tap
            settled = context.settled
            # An offered answer settles nothing.
            if settled and not (tap and is_choice_token(tap.data)):
                effects = await self.store.settlement.effects(context.turn.scope, settled)
                ended = await self._confirmation.answer_ended(
                    context, settled, effects, is_deciding=True
                )
                return ended.about(settled)
            # A form without the token of its button changes nothing.
            if tap or context.turn.kind == "form":
                return (await self._confirmation.handle_tap(context)).about(context.tapped)
            if context.turn.kind == "anonymous":
                return fixed_answer(context, context.texts.anonymous())
            if self._commands and context.turn.is_stop:  # a worker answers it before it gets here
                return await self._stop(context)
            starts_with_slash = context.turn.text.lstrip().startswith("/")
            if self._commands and starts_with_slash and (name := self._commands.find(context.turn)):
                return await self._commands.answer(name, context)
            live = context.live
            if live and (
                live.state in WAITING_STATES or live.decided_by_event == context.turn.event_id
            ):
                return (await self._confirmation.decide(context, live)).about(live)
            if live and self._confirmation.is_late_answer(context, live):
                answer = read_answer(self.parser, context.turn.text, live.action.language)
                intent = answer.intent or "confirm"
                ended = await self._confirmation.answer_ended(context, live, intent=intent)
                return ended.about(live)
            return await self._answer_without_question(context)

    async def _stop(self, context: TurnContext) -> TurnAnswer:
        """Drop the open question at /stop. Without a worker nothing else can be under way."""
        if context.waiting is None:
            return TurnAnswer(text_change(context.texts.nothing_to_stop()))
        return TurnAnswer(
            await self._confirmation.settle_failed_turn(
                context, "", InterruptedRun(), for_history=""
            )
        )

    async def _answer_without_question(self, context: TurnContext) -> TurnAnswer:
        """Answer a turn without a pending action here.

        A yes may be meant for another thread of the chat.
        """
        turn = context.turn
        live = context.live
        if self._confirmation.repeats_answer(turn, context.last_answer):
            if context.last_answer:
                about = context.last_answer.action_id
            else:
                about = ""
            return NO_ANSWER.changed(about=about)
        intent = ""
        if turn.decides:
            intent = read_answer(self.parser, turn.text, context.texts.language).intent
        if intent == "confirm":
            question = await self._prompts.find_question_elsewhere(turn, context.received_at)
            if question:
                told = texts_for(question.action.language).asked_elsewhere(question.action.preview)
                # The yes may answer an earlier message of this thread.
                if context.memory.get_history():
                    return await self._run_agent(context, told)
                return fixed_answer(context, told)
        if (
            intent in ("confirm", "cancel")
            and live is None
            and context.lost_at
            and not context.is_loss_told
        ):
            return self._confirmation.answer_lost_question(context)
        if live is None or not live.is_stale:
            return await self._run_agent(context)
        # The process died while it ran the action.
        recovered = await self.store.settlement.recover(
            Claim(turn.scope, live.action_id, turn.event_id), live
        )
        outcome = self._confirmation.as_line(live, recovered.record.state, recovered.outcome_text)
        return await self._run_agent(context, outcome)

    async def _go_on(self, context: TurnContext) -> TurnAnswer:
        """Let the agent go on after the decision about an action,
        whose outcome is the result of its call.

        If a model has answered another message since, it has read the outcome, and there is nothing
        to go on with. Answers without a model, such as that to a second tap, change nothing. After
        them the history gets a message which says that the request goes on. Where the deciding turn
        did not tell the outcome, it is told first; it waits for the model for OUTCOME_SECONDS.
        Raises TimeoutError after that.
        """
        turn = context.turn
        decided = context.tapped
        outcome, effects = await self._waiting_outcome(context)
        answer = TurnAnswer(TurnChange(ended="answered_before"))
        if decided:
            ids = action_ids(decided)
        else:
            ids = frozenset()
        counts = run_counts_of(context.memory, ids)
        is_answered = has_answer(context, ids, counts)
        if not (is_answered or turn.asks_model):
            add_exchange(context, context.texts.stopped())
            answer = answer.changed(ended="stopped")
        elif not (is_answered or decided):  # the turn has waited for longer than records are kept
            answer = fixed_answer(context, context.texts.rest_missing())
        elif decided and not is_answered:
            if decided.state == "cancelled":  # the model cannot propose again what was just refused
                context.run.denied.extend(
                    await self._confirmation.refused_by_no(turn.scope, decided)
                )
            if context.memory.get_history()[-1].role is Role.ASSISTANT:
                context.remember([user_message(turn)])
            limit: AbstractAsyncContextManager[Any] = nullcontext()
            # At its end the worker gives the turn up, and tells the outcome.
            if outcome and not has_no_loop.get():
                limit = asyncio.timeout(OUTCOME_SECONDS)
            async with limit:
                answer = await self._run_agent(context, paused=counts or RunCounts(random_id(), 0))
        answer = self._prompts.with_outcome(context, answer, outcome, effects).about(decided)
        return with_answer_followed(answer, decided)

    async def _run_agent(
        self, context: TurnContext, preface: str = "", *, paused: RunCounts | None = None
    ) -> TurnAnswer:
        """Run the agent for a turn, or let a paused run go on.

        The reply begins with the preface, which names an action. Another person than that of the
        action gets no preface.
        """
        if context.turn.maybe_other_person:
            preface = ""
        turn = context.turn
        run = context.run
        timers = None
        if context.lease:
            timers = TurnTimers(
                context.user, context.received_at, context.texts.language, context.timers
            )
        await self._outcomes.refresh(context)
        memory = await load_history(context)
        if context.stream_listener and may_stream(self.agent.config):
            hear = context.stream_listener
        else:
            hear = None
        journal: Journal | None = context.journal
        if context.step_listener:
            journal = StepsJournal(journal or NoJournal(), context.step_listener)
        if hear:
            journal = StreamingJournal(journal or NoJournal(), hear)
        with own_context(ToolEnvironment) as own:
            own.timers = timers
            own.load_text = context.long_texts.load if context.long_texts else None
            result = await self.agent.arun(
                () if paused else (user_message(turn),),
                memory=memory,
                journal=journal,
                stream_handler=hear,
                scope=context.memory_scope,
                paused=paused,
            )
        if memory is not context.memory:
            # The run has removed the oldest messages from its own copy, which has the long texts.
            context.memory.add_many(shorten_for_history(result.messages), trims=False)
            context.memory.keep_newest(len(memory.get_history()))
            context.memory.summary = memory.summary
            context.memory.notes = memory.notes
            forget_ended_pause(context.memory)
        for pid, executor in run.executors.items():
            self.store.executors.keep_closure(pid, executor)
        actions = [replace(each.action, requested_at=context.received_at) for each in run.proposed]
        proposal = plan_of(actions) if actions else None
        answer = await self._reply(context, result, proposal, preface, goes_on=paused is not None)
        if timers is None:
            return answer
        return answer.changed(timers=tuple(timers.added), silenced=tuple(timers.cancelled))

    def _channel_run(self, turn: Turn, texts: Texts) -> ChannelRun:
        """Return what tools, roles and proposals of this turn know about the user."""
        return ChannelRun(
            user_id=turn.user_id,
            channel_id=turn.conversation.channel,
            conversation_id=turn.conversation.address,
            ttl_seconds=self._confirm_ttl,
            parser_version=self.parser.version,
            language=texts.language,
            aliases=turn.aliases,
            user_name=turn.user_name or "",
            role=partial(role_of_user, self.agent.selector),
            after=self._after_tool,
            other_message=self._other_message_of_tool,
            tool_of_yes=lambda name: self._tool_and_policy(name)[0],
        )

    def _other_message_of_tool(self, name: str) -> OtherMessage | Literal[""]:
        """Return what another message does to a question of a tool, "" where the tool does not say."""
        tool, _ = self._tool_and_policy(name)
        return tool.other_message if tool else ""

    def _after_tool(self, name: str) -> After | Literal[""]:
        """Return what follows the outcome of a tool's actions,
        "" where neither policy nor tool say.
        """
        tool, policy = self._tool_and_policy(name)
        return effective_after(name, tool, policy)

    def _tool_and_policy(self, name: str) -> tuple[Tool | None, ToolPolicy | None]:
        """Return the tool of this name, and the policy of its agent: this one,
        or one that is a tool of this one.

        For a kind of action that is no tool's name there is only the policy of this agent.
        """
        policy = self.agent.config.tool_policy
        own = [(tool, policy) for tool in self.agent.tools]
        for tool, policy_of_tool in chain(own, inner_tools(self.agent.tools)):
            if tool.name == name:
                return tool, policy_of_tool
        return None, policy

    async def _reply(
        self,
        context: TurnContext,
        result: AgentResult,
        proposal: Proposal | None,
        preface: str,
        *,
        goes_on: bool,
    ) -> TurnAnswer:
        """Return the replies to a run, including its question.

        `goes_on`: the run followed an action's outcome.
        """
        texts = context.texts
        is_tool_result = result.stop_reason == "terminal"
        files = tuple(
            (Reply(media=media), "")
            for media in await self._files.store_all(result.artifacts, context.turn)
        )
        if result.tool_calls:
            tools = {tool.name: tool for tool in self.agent.tools}
        else:
            tools = {}
        # Tools that are not read-only may have changed something.
        has_acted = goes_on or any(
            call.tool_name in tools and not tools[call.tool_name].read_only
            for call in result.tool_calls
        )
        content = reply_text(result, texts, has_acted=has_acted)
        if is_tool_result:
            content = terminal_text(result, texts)

        # The user is told of unclear calls whatever the model writes about them.
        unclear = [texts.unknown(literal(call.tool_name)) for call in result.unclear]
        beside: Sequence[str] = result.beside
        results: list[str] = []
        if proposal:
            if is_tool_result:
                beside = [result.content]
            results = [
                *read_results(result, self.agent.tools, shown=beside),
                *not_done_beside(result, self.agent.tools, proposal, texts),
            ]
        # The question names a tool without a value, as each that ran.
        beside_texts = [
            as_markdown(result_text(unfenced(each))) for each in beside if each != WITHOUT_VALUE
        ]
        reports = _join([*unclear, *results, *beside_texts])
        prompt = ""
        # The signs in its preview stay, so the prompt is made before signs are replaced.
        if proposal:
            prompt = without_signs(as_markdown(proposal.prompt_in(content)))
        if not context.returns_text:  # a caller of `ask_channel` gets what the model wrote
            content = without_signs(content)
            reports = without_signs(reports)

        if proposal:  # the question stands alone: no choices beside it
            # A question is sent in full. A long text above it would bury what is asked.
            if len(preface) > MAX_PREFACE_CHARS:
                reports = _join([preface, reports])
                preface = ""
            names = ran_beside(result, self.agent.tools, proposal)
            proposal = replace(proposal, head=replace(proposal.head, ran_beside=names))
            proposal, changed = await self._changes.mark_changes(context, proposal)
            question, actions = await self._prompts.ask(
                context, proposal, preface, prompt, changed=changed
            )
            await self._prompts.note_question(context.turn, question[1])
            return TurnAnswer(
                TurnChange(
                    replies=(*text_change(reports).replies, *files, question), new_actions=actions
                ),
                result,
            )
        change = text_change(_join([preface, reports, content]), result.failure_cause)
        answer = TurnAnswer(replace(change, replies=(*change.replies, *files)), result)
        if result.choices and result.stop_reason in _OWN_REPLY_REASONS:
            return self._prompts.offer_choices(context, answer, result.choices)
        return answer

    async def give_up(self, queued: QueuedTurn, lease: Lease, failure_text: str) -> TurnChange:
        """Return what a turn changes that could not be answered.

        The user gets the outcome of the action that the turn settled, or else the calls with an
        unknown outcome and `failure_text`. A pending action is cancelled. The history tells what
        was asked, what tools did, and how the turn ended. Raises LeaseLost.
        """
        if self._journals is not None:
            entries = tuple(await self._journals.entries(lease))
        else:
            entries = ()
        try:
            run = interrupted_run(replace(queued, journal=entries))
        except JournalUnreadable:  # then the calls are unknown too
            run = InterruptedRun()

        texts = self.texts_for_turn(queued.turn)
        summarizes = self.agent.config.summarize_on_trim
        is_readable = True
        try:
            memory = memory_from_json(queued.history, self.agent.memory, summarizes=summarizes)
        except (ValueError, KeyError, TypeError):  # which may be why the turn failed
            memory = memory_from_json("", self.agent.memory)
            is_readable = False
        context = self._queued_context(queued, lease, memory, texts)
        before = memory.to_dict()
        if queued.turn.kind == "continuation":
            change = await self._give_up_going_on(context, run, is_stopped=not failure_text)
        else:
            change = await self._give_up(context, queued, run, failure_text)
        change = await self._long_replies.bounded(queued.turn, texts, change)
        if not is_readable or memory.to_dict() == before:
            return change
        long_texts = LongTexts(self._text_store, context.user)
        return replace(change, history=await _stored_history(memory, long_texts))

    async def _give_up(
        self, context: TurnContext, queued: QueuedTurn, run: InterruptedRun, failure_text: str
    ) -> TurnChange:
        """Return what a turn of a person changes that could not be answered."""
        texts = context.texts
        unclear = [texts.unknown(literal(call.tool_name)) for call in run.unclear]
        text = _join([*unclear, failure_text])
        for_history = _join([*unclear, failure_text or texts.stopped()])
        if queued.turn.is_stop or (self._commands and self._commands.find(queued.turn)):
            for_history = ""  # a command is no part of the conversation
        return await self._confirmation.settle_failed_turn(
            context, text, run, for_history=for_history
        )

    async def _give_up_going_on(
        self, context: TurnContext, run: InterruptedRun, *, is_stopped: bool
    ) -> TurnChange:
        """Return what a continuation changes in which the agent could not go on.

        The effect before it is certain and stays. The person is told that the rest is missing,
        unless they stopped it, and the outcome if the deciding turn did not tell it.
        """
        texts = context.texts
        outcome, effects = await self._waiting_outcome(context)
        unclear = [texts.unknown(literal(call.tool_name)) for call in run.unclear]
        missing = "" if is_stopped else texts.rest_missing()
        ids: Collection[str] = ()
        if context.tapped:
            ids = action_ids(context.tapped)
        if not has_answer(context, ids, run_counts_of(context.memory, ids)):
            text = _join([*unclear, missing or texts.stopped()])
            add_exchange(context, text, run.messages)
            self._outcomes.write_outcomes(context, run.proposed, "replaced", context.received_at)
        answer = TurnAnswer(text_change(_join([*unclear, missing])))
        return self._prompts.with_outcome(context, answer, outcome, effects).change

    def is_answer(self, text: str) -> bool:
        """Return whether the text would be a yes or a no to a question."""
        return read_answer(self.parser, text, "").intent in ("confirm", "cancel")

    def needs_answer(self, queued: QueuedTurn) -> bool:
        """Return False if the turn certainly gets no answer.

        A tap always needs one: platforms wait for it.
        """
        turn = queued.turn
        live = queued.open_action
        if turn.tap or not turn.decides:
            return True
        if live is None:
            return not self._confirmation.repeats_answer(turn, queued.last_answer)
        is_open = live.state == "shown" and not live.action.is_expired(queued.received_at)
        return not (is_open and self._confirmation.asks_for_time_again(turn, live, queued.seq))

    def may_settle(self, queued: QueuedTurn) -> bool:
        """Return whether this turn may settle the pending action, or did so before its worker died."""
        if queued.turn.tap:
            return queued.tapped_action is None or queued.tapped_action.action.kind != CHOICE_KIND
        live = queued.open_action
        if live is None or live.state not in WAITING_STATES or not queued.turn.decides:
            return live is not None and live.decided_by_event == queued.turn.event_id
        return self._confirmation.read_answer(queued.turn, live, queued.seq).intent != ""

    def texts_for_turn(self, turn: Turn, memory: ConversationMemory | None = None) -> Texts:
        """Return the texts in the sender's language: of this or earlier messages, the app,
        or the channel.
        """
        before = (
            without_notes(message.content)
            for message in reversed(memory.get_history() if memory else [])
            if message.role is Role.USER and message.content != TAPPED
        )
        language = choose(chain([turn.text], before), turn.language, self._language)
        return texts_for(
            language if not self._languages or language in self._languages else self._language
        )

    def ask_channel(
        self,
        user_id: str,
        message: str,
        *,
        channel_id: str | None = None,
        conversation_id: str | None = None,
        args_digest: str | None = None,
    ) -> AgentResult:
        """Handle one message without mailbox or outbox (seed). Thread-safe; see `aask_channel`."""
        return run_sync(
            self.aask_channel(
                user_id,
                message,
                channel_id=channel_id,
                conversation_id=conversation_id,
                args_digest=args_digest,
            )
        )

    async def aask_channel(
        self,
        user_id: str,
        message: str,
        *,
        channel_id: str | None = None,
        conversation_id: str | None = None,
        args_digest: str | None = None,
    ) -> AgentResult:
        """Handle one message: settle the pending action, or else run the agent.

        A yes is refused unless `args_digest`, if given, matches the pending action. The result's
        `content` is the whole text for the user, ready to print: what the model wrote stays as it
        is, and names in all other text have no escapes of Markdown. `take` returns replies that a
        channel can format. `iterations` is 0 if no model was called.
        """
        scope = scope_of(user_id, channel_id, conversation_id)
        turn = Turn(f"ask-{random_id()}", scope.conversation, user_id, message)
        context = replace(await self._load_context(turn), returns_text=True)
        live = context.live
        is_other = live is not None and args_digest not in (None, live.action.args_digest)
        # A yes to a changed record is refused as such, further down.
        if live and is_other and not live.is_changed and self.parser.is_confirm(message):
            transition = Transition(live.action_id, WAITING_STATES, "cancelled")
            self._outcomes.write_outcome(context, live, "replaced")
            await self.store.repository.change(
                scope.conversation.id, TurnChange(transition=transition)
            )
            refusal = texts_for(live.action.language).unsafe(live.action.preview)
            return AgentResult(as_text(refusal))
        answer = await self._answer_and_apply(context)
        result = answer.result or AgentResult("")
        text = "\n\n".join(reply.text for reply, _ in answer.change.replies if reply.text)
        return replace(result, content=_text_to_print(text, _words_of_model(result)))

    async def take(self, turn: Turn) -> tuple[Reply, ...]:
        """Handle one turn, a text or a tap, without mailbox or outbox.

        Return the replies, with buttons and files.
        """
        answer = await self._answer_and_apply(await self._load_context(turn))
        return tuple(reply for reply, _ in answer.change.replies)

    async def _load_context(self, turn: Turn) -> TurnContext:
        """Return a turn with everything that this process knows about it."""
        user = turn.scope.id
        conversation = turn.conversation.id
        live = await self.store.repository.load_open(conversation, user)
        last_question = self._last_questions.get(conversation)
        if live and last_question not in (None, live.action_id):
            live = replace(live, followed_after_seq=1)
        if turn.tap:
            parts = split_button_token(turn.tap.data)
        else:
            parts = None
        named_id = turn.continues or (parts[0] if parts else "")
        tapped = None
        if named_id:
            (tapped,) = await self.store.repository.load(conversation, (named_id,))
        key = f"{conversation}:{user}"
        with self._memories_lock:
            memory = self._memories.pop(key, None) or memory_from_json("", self.agent.memory)
            self._memories[key] = memory
            while len(self._memories) > MAX_MEMORIES:
                self._memories.popitem(last=False)
        received_at = live.loaded_at if live else time.time()
        context = self._context(
            turn,
            live=live,
            tapped=tapped,
            memory=memory,
            received_at=received_at,
            texts=self.texts_for_turn(turn, memory),
        )
        return replace(context, journal=RunRecord())

    def _queued_context(
        self, queued: QueuedTurn, lease: Lease, memory: ConversationMemory, texts: Texts
    ) -> TurnContext:
        """Return a turn of a mailbox with everything that its worker was given."""
        context = self._context(
            queued.turn,
            live=queued.open_action,
            tapped=queued.tapped_action,
            memory=memory,
            received_at=queued.received_at,
            texts=texts,
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

    def _context(
        self,
        turn: Turn,
        *,
        live: StoredAction | None,
        tapped: StoredAction | None,
        memory: ConversationMemory,
        received_at: float,
        texts: Texts,
    ) -> TurnContext:
        """Return a turn with what every turn needs.

        Nothing of a record that was changed gets any further.
        """
        signer = self.store.signer
        if live is not None:
            live = live.verified(signer, turn.scope)
        if tapped is not None:  # in a group it may be another person's, who is named in it
            owner = replace(turn.scope, user_id=tapped.action.user_id)
            tapped = tapped.verified(signer, owner)
        return TurnContext(
            turn=turn,
            user=turn.scope.id,
            live=live,
            tapped=tapped,
            memory=memory,
            received_at=received_at,
            texts=texts,
            run=self._channel_run(turn, texts),
            summarizes=self.agent.config.summarize_on_trim,
        )

    async def _answer_and_apply(self, context: TurnContext) -> TurnAnswer:
        """Answer a turn without a worker, and apply its changes."""
        conversation = context.turn.conversation.id
        live = context.live
        before = context.memory.get_history()
        try:
            answer = await self._answer(context)
        except BaseException as exc:
            if context.memory.get_history()[-1:] == before[-1:]:  # its answer is not in the history
                text = context.texts.broken()
                if not isinstance(exc, Exception):  # such as a cancelled task
                    text = context.texts.stopped()
                self._note_failure(context, text)
            if live and not self._confirmation.survives_failure(context, live):
                await self._drop_after_failure(context, live)
            raise

        if not await self._apply(conversation, answer.change):
            self._outcomes.link_to_change(context, answer.predecessors)
            if live:
                self._outcomes.forget_outcome(context, live)
            new_ids = [action.action_id for action in answer.change.new_actions]
            self._outcomes.write_outcomes(context, new_ids, "replaced", context.received_at)
            return TurnAnswer(TurnChange(replies=((Reply(context.texts.overtaken()), ""),)))

        self._last_questions[conversation] = answer.change.last_question
        self._last_questions.move_to_end(conversation)
        while len(self._last_questions) > MAX_MEMORIES:
            self._last_questions.popitem(last=False)
        if answer.change.continuation is None:
            return answer
        return await self._with_continuation(context, answer, answer.change.continuation)

    async def _drop_after_failure(self, context: TurnContext, live: StoredAction) -> None:
        """Drop a pending action because a message could not be answered, without a worker."""
        dropped = dropped_transition(live, context.turn)
        if await self._apply(context.turn.conversation.id, TurnChange(transition=dropped)):
            self._outcomes.write_outcome(context, live, "replaced")
        else:
            self._outcomes.forget_outcome(context, live)

    async def _with_continuation(
        self, context: TurnContext, answer: TurnAnswer, continuation: Turn
    ) -> TurnAnswer:
        """Return the answer of a deciding turn with that of its continuation, without a worker.

        The effect has taken place: a bug after it must not hide the outcome from the caller.
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
        """Add a turn without a worker that was stopped or failed to the history, with its calls."""
        run = InterruptedRun()
        if isinstance(context.journal, RunRecord):
            run = context.journal.done
        add_exchange(context, text, run.messages)
        self._outcomes.write_outcomes(context, run.proposed, "replaced", context.received_at)

    async def _apply(self, conversation: str, change: TurnChange) -> bool:
        """Apply the change.

        Return False if another message of the scope was faster, so this answer is void.
        """
        if not (change.transition or change.new_actions):
            return True
        word, _ = await self.store.repository.change(conversation, change)
        return word == "ok"


async def _stored_history(memory: ConversationMemory, long_texts: LongTexts) -> str:
    """Return a history as it is stored, after its long texts were stored in files."""
    history = memory.to_dict()
    await long_texts.move_to_files(history["messages"])
    return versioned(json.dumps(history))


def text_change(text: str, cause: str = "") -> TurnChange:
    """Return the change of a turn whose answer is a text; "" is no answer."""
    return TurnChange(replies=((Reply(text, cause=cause), ""),) if text else ())


def may_stream(config: AgentConfig) -> bool:
    """Return whether the text may be shown while it arrives:
    no check of the answer or its calls follows.
    """
    return not (config.coherence_check or (config.guardrails and config.guardrails.output))


def reply_text(result: AgentResult, texts: Texts, *, has_acted: bool) -> str:
    """Return the text for the user. Texts of our own are in the user's language.

    An empty answer counts as no answer. If tools have acted,
    the text never says that nothing was done.
    """
    match result.stop_reason:
        case "provider_error" if not result.refusal:
            if has_acted:
                return texts.model_lost(result.failure)
            return texts.model_failed(result.failure)
        case "provider_error":  # the text of a model that refuses comes first
            if has_acted:
                return f"{result.refusal}\n\n{texts.model_lost(result.failure)}"
            return result.refusal
        case "answer" if shows_nothing(result.content) and not (result.artifacts or result.choices):
            if has_acted:
                return texts.model_lost()
            return texts.model_failed()
        case "max_iterations":
            return texts.too_many_steps()
        case "budget":
            return texts.budget_spent()
        case "guardrail":
            return texts.refused()
        case "loop":
            return texts.in_circles()
        case "cancelled":
            return texts.stopped()
        case "answer" if result.finish_reason == "length":
            return f"{result.content}\n\n{texts.answer_cut()}"
    return result.content


def terminal_text(result: AgentResult, texts: Texts) -> str:
    """Return what the user is told of a tool's result that ended the run:
    it reads as it does for the model.

    Of a tool without a value, such as one that returned None, the user is told that it is done. A
    file or choices of the tool say so themselves.
    """
    text = result_text(unfenced(result.content))
    if text != WITHOUT_VALUE:
        return as_markdown(text)
    if result.artifacts or result.choices:
        return ""
    return texts.done(literal(result.tool_calls[-1].tool_name), "")


def read_results(
    result: AgentResult, tools: Iterable[Tool], *, shown: Collection[str]
) -> list[str]:
    """Return the results of read-only tools that the model's last answer with calls asked for,
    as text.

    If that answer also proposed an action, the run has ended before a model could report them.
    Errors are for models and are left out, and so are results that are `shown` already, and
    proposals of read-only tools that ask first.
    """
    last = max(
        (at for at, message in enumerate(result.messages) if message.tool_calls),
        default=len(result.messages),
    )
    reading = {tool.name for tool in tools if tool.read_only}
    results = [
        message.content
        for message in result.messages[last:]
        if message.role is Role.TOOL and message.tool_name in reading and message.has_result
    ]
    unseen = [content for content in results if content not in shown]
    texts = [as_markdown(result_text(unfenced(content))) for content in unseen]
    return [text for text in texts if text]


def not_done_beside(
    result: AgentResult, tools: Iterable[Tool], proposal: Proposal, texts: Texts
) -> list[str]:
    """Return what the user is told of calls that did nothing beside a question: they failed,
    or found no target.

    The run has ended before a model could report them. Calls of tools that only read are left out.
    So are the names of failed tools that the question is about: they would be read as if the
    question had failed.
    """
    last = max(
        (at for at, message in enumerate(result.messages) if message.tool_calls),
        default=len(result.messages),
    )
    asking: set[str] = set()
    for action in proposal.steps or (proposal.head,):
        asking |= {action.kind, action.asked_by}
    acting = {tool.name for tool in tools if not tool.read_only}
    uncertain = {call.id for call in result.unclear}
    failed: list[str] = []
    reports: list[str] = []
    for message in result.messages[last:]:
        is_done = message.has_result or message.actions or message.tool_call_id in uncertain
        if message.tool_name not in acting or is_done:
            continue
        content = unfenced(message.content)
        if content.startswith(_NO_TARGET):
            reports.append(as_markdown(result_text(content)))
        elif content.startswith("Error") and message.tool_name not in asking:
            failed.append(f"`{message.tool_name}`")
    if failed:
        reports.append(texts.failed_beside(", ".join(dict.fromkeys(failed))))
    return reports


def ran_beside(result: AgentResult, tools: Iterable[Tool], proposal: Proposal) -> str:
    """Return the names of the tools that ran in a run which ends with a question,
    and may have changed something.

    A tool whose code asks for itself runs only to ask.
    """
    actions = proposal.steps or (proposal.head,)
    asking = {action.asked_by for action in actions if action.kind != action.asked_by}
    acting = {tool.name for tool in tools if not (tool.read_only or tool.proposes)} - asking
    names = [
        message.tool_name or ""
        for message in result.messages
        if message.role is Role.TOOL and message.tool_name in acting and message.has_result
    ]
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def _words_of_model(result: AgentResult) -> str:
    """Return what the model wrote for the user in its last answer, "" if the reply is another text."""
    match result.stop_reason:
        case "answer":
            return result.content
        case "provider_error":
            return result.refusal
    return ""


def _text_to_print(text: str, written: str) -> str:
    """Return a reply without the escapes of Markdown.

    What the model has `written` stays as it is.
    """
    written = storable(written)  # as the text of every reply
    start = text.rfind(written)
    if start < 0:
        return as_text(text)
    end = start + len(written)
    return as_text(text[:start]) + written + as_text(text[end:])


def has_answer(context: TurnContext, decided: Collection[str], counts: RunCounts | None) -> bool:
    """Return whether a model has answered since the decision, so that no run waits to go on.

    `decided`: the ids of the actions that were decided. `counts`: of the run that waited for them,
    None once another run has ended. A question about another action is an answer, too.
    """
    history = context.memory.get_history()
    if not history:
        return True
    results = takewhile(lambda message: message.role is Role.TOOL, reversed(history))
    if not set(open_actions(results)).issubset(decided):
        return True
    return history[-1].role is Role.ASSISTANT and counts is None


def _join(paragraphs: Iterable[str]) -> str:
    return "\n\n".join(filter(None, paragraphs))
