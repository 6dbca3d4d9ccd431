"""ChannelAgent: answers the turns of one channel with an agent, and settles pending actions.

A turn goes this way: `answer` gathers what is known about it (TurnContext), `_answer_by_kind` lets
the part answer that knows this kind of turn, and `_run_agent` runs the agent if a model has to
answer. The result is one TurnChange with the replies and everything else to store. For a turn that
could not be answered, the worker calls `give_up`, which returns another TurnChange.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sayso.agent.agent import Agent
from sayso.agent.channel.approval_answers import ApprovalAnswers
from sayso.agent.channel.approval_questions import ApprovalQuestions
from sayso.agent.channel.approval_timers import ApprovalTimers
from sayso.agent.channel.approval_votes import ApprovalVotes
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.commands import Commands
from sayso.agent.channel.confirmation import ConfirmationHandler
from sayso.agent.channel.confirmed_actions import ConfirmedActions
from sayso.agent.channel.context import (
    NO_ANSWER,
    TurnAnswer,
    TurnContext,
    fixed_answer,
    paragraphs,
    text_change,
)
from sayso.agent.channel.continuations import Continuations
from sayso.agent.channel.decide import asks_for_time_again
from sayso.agent.channel.direct_turns import DirectTurns
from sayso.agent.channel.failed_turns import FailedTurns
from sayso.agent.channel.long_replies import LongReplies
from sayso.agent.channel.long_texts import LongTexts, TextFiles
from sayso.agent.channel.message_reading import MessageReader
from sayso.agent.channel.other_messages import OtherMessages
from sayso.agent.channel.outcome_answers import OutcomeAnswers
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.people_commands import PeopleCommands
from sayso.agent.channel.question_repeats import QuestionRepeats
from sayso.agent.channel.questions import Questions
from sayso.agent.channel.run_replies import RunReplies
from sayso.agent.channel.standing_yeses import CoveredCalls, StandingYeses
from sayso.agent.channel.stored_history import (
    OUTCOME_TO_TELL,
    OUTCOME_UNREAD,
    copy_changes_of_run,
    history_to_store,
    load_history,
    memory_from_json,
)
from sayso.agent.channel.tool_executors import ToolExecutors
from sayso.agent.channel.turn_contexts import TurnContexts
from sayso.agent.channel.turn_files import TurnFiles
from sayso.agent.channel.turn_journal import (
    InterruptedRun,
    RedisJournals,
    StepsJournal,
    StreamingJournal,
    TurnJournal,
    read_interrupted_run,
)
from sayso.agent.channel.user_messages import user_message
from sayso.agent.channel.value_changes import ChangeHandler
from sayso.agent.config import AgentConfig
from sayso.agent.result import AgentResult
from sayso.agent.run.pause import RunCounts
from sayso.agent.run.state import Journal, NoJournal
from sayso.agent.tools.environment import ToolEnvironment
from sayso.agent.tools.previews import literal
from sayso.agent.tools.timers import TurnTimers
from sayso.channels.base import MediaStore
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.channels.types import Reply, Turn
from sayso.infra.concurrency import run_sync
from sayso.pending.action import is_choice_token
from sayso.pending.approvals.approvers import Approvers
from sayso.pending.approvals.people import EmptyDirectory, PeopleDirectory
from sayso.pending.approvals.requests import REQUEST_KIND, codes_in
from sayso.pending.approvals.self_service import SelfService
from sayso.pending.call_context import own_context
from sayso.pending.consent.parser import ConfirmParser, read_answer, reads_phrases
from sayso.pending.plans import Proposal, plan_of
from sayso.pending.repository import Claim
from sayso.pending.store import InMemoryPendingStore, PendingActionStore
from sayso.pending.stored_action import WAITING_STATES, StoredAction
from sayso.pending.turn_changes import TurnChange
from sayso.pending.turns import (
    CHOICE_KIND,
    JournalUnreadable,
    Lease,
    OnStep,
    QueuedTurn,
    StreamListener,
)


class ChannelAgent:
    """One agent on one channel, for all its users.

    Each scope (a person in a conversation) has its own history and its own pending action. The
    object keeps no state of a turn, so it answers many turns at once. Lives as long as its agent.

    A worker takes turns from a mailbox. For it, `answer` returns everything that a turn changes, to
    be stored in one commit. Without a worker, `ask_channel` and `take` apply the changes at once,
    and a question counts as shown.

    * `store`: where actions wait; None for a store in memory.
    * `parser`: what counts as a yes or a no; None for the parser of the store, in the languages of
      the channel.
    * `behavior`: how the channel asks and answers; None for the defaults.
    * `media`: where files are stored; None: files can be neither received nor sent.
    * `journals`: lets a turn whose worker was killed continue where it was; None: it starts again.
    * `texts`: where texts are stored that are too long for Redis; None: they are cut.
    * `people`: finds people by their accounts, names and roles; None: each account is a person.
    * `self_service`: lets people join accounts and say that they are away; None: they cannot.
    """

    def __init__(
        self,
        agent: Agent,
        store: PendingActionStore | None = None,
        parser: ConfirmParser | None = None,
        *,
        behavior: ChannelBehavior | None = None,
        media: MediaStore | None = None,
        journals: RedisJournals | None = None,
        texts: TextFiles | None = None,
        people: PeopleDirectory | None = None,
        self_service: SelfService | None = None,
    ) -> None:
        self.agent = agent
        self.store = store or InMemoryPendingStore()
        self.behavior = behavior or ChannelBehavior()
        parser = parser or self.store.parser
        # A question in German says "Reply ja", so the parser must know that "ja" is a yes.
        if reads_phrases(parser):
            parser = parser.reading((self.behavior.language, *self.behavior.languages))
        self.parser = parser
        self._journals = journals
        self._text_files = texts
        self._people: PeopleDirectory = people or EmptyDirectory()
        self._approvers = Approvers(self._people)
        self._assemble(TurnFiles(media), self_service)
        # After a yes, the store finds the tool that runs among those that the agent has then: tools
        # and settings may have changed since the question.
        self.store.executors.kinds = ToolExecutors(lambda: agent.tools, lambda: agent.config)

    def _assemble(self, files: TurnFiles, service: SelfService | None) -> None:
        """Create the parts that answer a turn. Each knows one kind of turn, or of answer."""
        agent = self.agent
        store = self.store
        behavior = self.behavior
        self._files = files
        self._long_replies = LongReplies(files)
        self._contexts = TurnContexts(agent, store, self.parser, behavior)
        self._questions = Questions(
            store,
            behavior.escalation,
            expiry_notice=behavior.expiry_notice,
            max_buttons=behavior.max_buttons,
        )
        covered = CoveredCalls(store, self._questions)
        self._outcomes = OutcomeHistory(agent, store)
        self._approval_answers = ApprovalAnswers(store, self._approvers, self.parser)
        self._commands = None
        if behavior.commands:
            people_commands = PeopleCommands(service) if service else None
            self._commands = Commands(
                agent,
                store,
                self._questions,
                outcomes=self._outcomes,
                requests=self._approval_answers,
                people=self._people,
                people_commands=people_commands,
            )
        language = behavior.language
        self._approval_questions = ApprovalQuestions(store, self._approvers, language=language)
        self._reader = MessageReader(
            self.parser,
            confirm_ok=behavior.confirm_ok,
            other_message=behavior.other_message,
        )
        changes = ChangeHandler(
            agent,
            store,
            self.parser,
            questions=self._questions,
            outcomes=self._outcomes,
        )
        self._replies = RunReplies(
            agent,
            questions=self._questions,
            changes=changes,
            files=files,
            approvals=self._approval_questions,
            outcomes=self._outcomes,
            covered=covered,
        )
        self._answers = OutcomeAnswers(
            store,
            behavior,
            questions=self._questions,
            outcomes=self._outcomes,
            run_agent=self._run_agent,
        )
        repeats = QuestionRepeats(self._questions)
        self._other_messages = OtherMessages(
            agent,
            store,
            repeats=repeats,
            outcomes=self._outcomes,
            answers=self._answers,
            run_agent=self._run_agent,
        )
        confirmed = ConfirmedActions(
            agent,
            store,
            questions=self._questions,
            files=files,
            outcomes=self._outcomes,
            answers=self._answers,
        )
        timers = ApprovalTimers(
            store.signer,
            questions=self._approval_questions,
            outcomes=self._outcomes,
            answers=self._answers,
            language=language,
        )
        self._votes = ApprovalVotes(
            store,
            self._approvers,
            questions=self._approval_questions,
            timers=timers,
            confirmed=confirmed,
            answers=self._answers,
            language=language,
        )
        self._confirmation = ConfirmationHandler(
            store,
            self._reader,
            questions=self._questions,
            repeats=repeats,
            changes=changes,
            confirmed=confirmed,
            other_messages=self._other_messages,
            answers=self._answers,
        )
        self._failed_turns = FailedTurns(
            store,
            self._reader,
            questions=self._questions,
            outcomes=self._outcomes,
            answers=self._answers,
        )
        self._standing = StandingYeses(
            store,
            covered,
            questions=self._questions,
            confirmed=confirmed,
            outcomes=self._outcomes,
            answers=self._answers,
            failed_turns=self._failed_turns,
        )
        self._continuations = Continuations(
            store,
            questions=self._questions,
            outcomes=self._outcomes,
            answers=self._answers,
            other_messages=self._other_messages,
            continue_run=self._continue_run,
        )
        self._direct_turns = DirectTurns(
            agent,
            store,
            self.parser,
            contexts=self._contexts,
            outcomes=self._outcomes,
            failed_turns=self._failed_turns,
            answer=self._answer,
        )

    async def answer(
        self,
        queued: QueuedTurn,
        lease: Lease,
        stream: StreamListener | None = None,
        on_step: OnStep | None = None,
    ) -> TurnChange:
        """Return everything that a turn of a mailbox changes.

        `queued` is the turn with what was stored about it, `lease` the worker's right to work on
        the conversation. `stream` receives the answer's text while it arrives, unless a check of
        the whole text follows. `on_step` receives which tools are called, and how each call ends.

        Raises LeaseLost if another worker has taken over, StaleTurn if the turn must be read again,
        and JournalUnreadable if it is not known what an earlier attempt has done.
        """
        summarizes = self.agent.config.summarize_on_trim
        memory = memory_from_json(queued.history, self.agent.memory, summarizes=summarizes)
        context = self._contexts.queued(queued, lease, memory)
        long_texts = LongTexts(self._text_files, context.scope_id)
        journal = None
        if self._journals is not None:
            store_file = partial(self._files.store, queued.turn)
            journal = TurnJournal(self._journals, lease, queued, store_file, long_texts)
        context = replace(
            context,
            journal=journal,
            stream_listener=stream,
            on_step=on_step,
            long_texts=long_texts,
        )
        answer = await self._answer(context)

        tools: tuple[str, ...] = ()
        if answer.result:
            tools = tuple(call.tool_name for call in answer.result.tool_calls)
        language = context.texts.language
        return replace(
            _with_replies_in(language, answer.change),
            history=await history_to_store(memory, long_texts),
            language=language,
            tools=tools,
        )

    async def _answer(self, context: TurnContext) -> TurnAnswer:
        """Answer a turn, and fit the answer: an untold outcome above it, a long reply as a file."""
        # An action has ended whose outcome its continuation must tell. If a message comes in first,
        # the answer to it tells the outcome. The note is taken before the answer, because this turn
        # may itself end an action and leave a new note.
        action_id = context.memory.notes.pop(OUTCOME_TO_TELL, "")
        answer = await self._answer_with_tools(context)
        if action_id and context.turn.kind != "continuation":
            answer = await self._continuations.with_outcome_to_tell(context, answer, action_id)
        if context.returns_text:  # a file would not reach the caller
            return answer
        # A reply that would be many messages becomes its beginning and a file.
        change = await self._long_replies.bounded(context.turn, context.texts, answer.change)
        return replace(answer, change=change)

    async def _answer_with_tools(self, context: TurnContext) -> TurnAnswer:
        """Answer a turn so that tools know who the user is, and can read the files of the user.

        Tools run in a turn of any kind: the model calls them, and a yes carries one out.
        """
        with own_context(ToolEnvironment) as own:
            own.run = context.channel_run
            own.received_files = lambda: self._files.received(context)
            own.spool_folder = self._files.spool_folder
            return await self._answer_by_kind(context)

    async def _answer_by_kind(self, context: TurnContext) -> TurnAnswer:
        """Let the part answer that knows this kind of turn. The first that fits counts."""
        turn = context.turn
        if turn.kind == "continuation":
            return await self._continuations.go_on(context)

        if turn.kind in ("vote", "request_timer"):
            return await self._votes.answer(context)
        if turn.kind == "standing":
            return await self._standing.answer(context)

        # An earlier attempt at this turn has carried out its yes, and then its worker died: only
        # the outcome is left to tell. A tap on an offered answer is answered as if for the first
        # time, because what follows it, the model's answer, was not stored.
        settled = context.settled_action
        if settled and not (turn.tap and is_choice_token(turn.tap.data)):
            effects = await self.store.finished_actions.effects(turn.scope, settled)
            answer = await self._answers.answer_ended(context, settled, effects, is_deciding=True)
            return answer.marked_about(settled)

        # A form comes with the tap on its button. One without it was made up: it is rejected there.
        if turn.tap or turn.kind == "form":
            answer = await self._answer_tap(context)
            return answer.marked_about(context.named_action)
        if turn.kind == "anonymous":
            return fixed_answer(context, context.texts.anonymous())

        if self._commands:
            if turn.is_stop:  # a worker answers it before it gets here
                return await self._stop(context)
            command = self._commands.find(turn)
            if command:
                return await self._answer_command(self._commands, command, context)

        # It names a request, or follows one, so it is no answer to a question of the person's own.
        vote = await self._approval_answers.answer_message(context)
        if vote:
            return vote

        if context.open_action:
            answer_about = await self._confirmation.answer_message(context, context.open_action)
            if answer_about:
                return answer_about.marked_about(context.open_action)
        return await self._answer_without_question(context)

    async def _answer_command(
        self, commands: Commands, name: str, context: TurnContext
    ) -> TurnAnswer:
        """Answer a command. /reset also withdraws what other people were asked about."""
        waiting: list[StoredAction] = []
        if name == "reset":
            waiting = await self._outcomes.withdrawn_by_turn(context)
            waiting += await self._outcomes.waiting_for_others(context)
        answer = await commands.answer(name, context)
        return await self._votes.withdraw_all(context, answer, waiting)

    async def _answer_tap(self, context: TurnContext) -> TurnAnswer:
        """Answer a tap on a button, or a filled-in form."""
        stored = context.named_action
        if stored is not None and stored.action.kind == REQUEST_KIND:
            return await self._approval_answers.answer_tap(context, stored)
        answer = await self._confirmation.answer_tap(context)
        return self._with_withdrawal(context, answer, stored)

    def _with_withdrawal(
        self, context: TurnContext, answer: TurnAnswer, stored: StoredAction | None
    ) -> TurnAnswer:
        """Return the answer with the end of the requests if the person withdrew the action."""
        transition = answer.change.transition
        # Of a record that was changed in the store, only the requests are known.
        is_for_others = stored is not None and bool(stored.requests_text)
        if stored is None or not is_for_others or transition is None:
            return answer
        if transition.to != "cancelled":
            return answer
        return self._votes.withdrawn(context, answer, stored)

    async def _stop(self, context: TurnContext) -> TurnAnswer:
        """Answer /stop without a worker: nothing can be running, so only an open question ends."""
        if context.waiting_action is None:
            return TurnAnswer(text_change(context.texts.nothing_to_stop()))
        # As for a turn that was stopped: the question is cancelled, and the reply says only that.
        change = await self._failed_turns.settle(context, "", InterruptedRun(), for_history="")
        return TurnAnswer(change)

    async def _answer_without_question(self, context: TurnContext) -> TurnAnswer:
        """Answer a message that is not about an action of this person in this conversation.

        There may be an action that has ended or is carried out by another process. The first row
        that fits counts:

        | the message                                       | the answer                          |
        |---------------------------------------------------|-------------------------------------|
        | repeats the yes or no that was answered last      | none                                |
        | a no that quotes the notice of an action which    | withdraws the action                |
        | other people decide                               |                                     |
        | yes, and a question is open in another thread     | names that question; with a history |
        |                                                   | here, the model's answer follows    |
        | yes or no, and a request to this person is open   | says how to answer it               |
        | yes or no, after Redis has lost data, no action   | says that the question is lost      |
        | anything, while the process of an action is dead  | the outcome of that action, and     |
        |                                                   | below it the model's answer         |
        | anything else                                     | the model's                         |
        """
        turn = context.turn
        stored = context.open_action
        last = context.last_answer
        if last and self._reader.repeats_answer(turn, last):
            return NO_ANSWER.with_changes(about=last.action_id)

        intent = ""
        if turn.decides:
            intent = read_answer(self.parser, turn.text, context.texts.language).intent
        if intent == "cancel" and turn.replied_to:
            withdrawal = await self._withdrawn_by_quote(context)
            if withdrawal:
                return withdrawal
        if intent == "confirm":
            question = await self._questions.find_question_elsewhere(turn, context.received_at)
            if question:
                action = question.action
                elsewhere_text = texts_for(action.language).asked_elsewhere(action.preview)
                # The yes may answer an earlier message of this thread.
                if context.memory.get_history():
                    return await self._run_agent(context, elsewhere_text)
                return fixed_answer(context, elsewhere_text)

        if intent in ("confirm", "cancel") and context.waiting_action is None:
            explanation = await self._approval_answers.say_how_to_answer(context)
            if explanation:
                return explanation

        # The person is told of the loss once: the next yes or no goes to the model again.
        may_answer_lost_question = stored is None and context.lost_at and not context.is_loss_told
        if intent in ("confirm", "cancel") and may_answer_lost_question:
            return self._confirmation.answer_lost_question(context)

        outcome = ""
        if stored and stored.is_stale:
            outcome = await self._recover(context, stored)
        return await self._run_agent(context, outcome)

    async def _withdrawn_by_quote(self, context: TurnContext) -> TurnAnswer | None:
        """Withdraw the action whose notice the message quotes. None if it quotes none."""
        for stored in await self._outcomes.waiting_for_others(context):
            if context.turn.replied_to in (stored.question_message, *stored.question_messages):
                answer = await self._confirmation.withdraw(context, stored)
                return self._with_withdrawal(context, answer, stored)
        return None

    async def _recover(self, context: TurnContext, stored: StoredAction) -> str:
        """End an action whose process has died. Return the outcome as the person is told it."""
        turn = context.turn
        claim = Claim(turn.scope, stored.action_id, turn.event_id)
        recovered = await self.store.settlement.recover(claim, stored)
        return self._answers.as_line(stored, recovered.record.state, recovered.outcome_text)

    async def _run_agent(
        self, context: TurnContext, preface: str = "", *, paused: RunCounts | None = None
    ) -> TurnAnswer:
        """Run the agent for a turn, or let a paused run go on.

        `preface`: a text about an action, which is put above the reply; "" for none. It is left out
        if the sender may be another person than that of the action: the text names what was asked.
        `paused`: the counts of the run that goes on, None for a new run.
        """
        turn = context.turn
        if turn.maybe_other_person:
            preface = ""

        # A timer is stored with the other changes of the turn, so without a worker there is none.
        timers = None
        if context.lease:
            timers = TurnTimers(
                user=context.scope_id,
                now=context.received_at,
                language=context.texts.language,
                waiting=context.timers,
            )

        # The results of earlier calls must say how their actions have ended since.
        await self._outcomes.refresh(context)
        context.memory.notes.pop(OUTCOME_UNREAD, "")
        waiting = await self._outcomes.waiting_for_others(context)
        context.channel_run.waiting_actions += [each.action for each in waiting]
        # The model reads a copy of the history if long texts, which are in files, are put into it.
        memory = await load_history(context)
        listener = None
        if may_stream(self.agent.config):
            listener = context.stream_listener

        # This adds to the environment of `_answer_with_tools`.
        with own_context(ToolEnvironment) as own:
            own.timers = timers
            own.load_text = context.long_texts.load if context.long_texts else None
            result = await self.agent.arun(
                () if paused else (user_message(turn),),
                memory=memory,
                journal=_journal_of(context, listener),
                stream_handler=listener,
                scope=context.memory_scope,
                paused=paused,
            )
        if memory is not context.memory:
            copy_changes_of_run(memory, context.memory, result)

        proposal = self._proposal_of_run(context)
        answer = await self._replies.reply(
            context, result, proposal, preface, goes_on=paused is not None
        )
        if timers is None:
            return answer
        return answer.with_changes(
            timers=tuple(timers.added), cancelled_timers=tuple(timers.cancelled)
        )

    def _proposal_of_run(self, context: TurnContext) -> Proposal | None:
        """Return what the tools of a run have proposed, as one question; None for nothing.

        The actions of several proposals become the steps of a plan.
        """
        channel_run = context.channel_run
        # A tool may propose with a function that carries the action out. It cannot be stored, so it
        # is kept in this process.
        for action_id, executor in channel_run.executors.items():
            self.store.executors.keep_closure(action_id, executor)
        actions = [
            replace(each.action, requested_at=context.received_at)
            for each in channel_run.proposed_actions
        ]
        if not actions:
            return None
        return plan_of(actions)

    async def _continue_run(self, context: TurnContext, counts: RunCounts) -> TurnAnswer:
        """Let a paused run go on. `Continuations` calls this."""
        return await self._run_agent(context, paused=counts)

    async def give_up(self, queued: QueuedTurn, lease: Lease, failure_text: str) -> TurnChange:
        """Return what a turn that could not be answered changes.

        The user gets the outcome of the action that the turn settled, or else the calls with an
        unknown outcome and `failure_text`, which is "" if the turn was stopped. A pending action is
        cancelled. The history gets what was asked, what tools did, and how the turn ended. Raises
        LeaseLost if another worker has taken over.
        """
        entries: tuple[str, ...] = ()
        if self._journals is not None:
            entries = tuple(await self._journals.load_entries(lease))
        try:
            run = read_interrupted_run(replace(queued, journal=entries))
        except JournalUnreadable:  # it is not known what was called
            run = InterruptedRun()

        summarizes = self.agent.config.summarize_on_trim
        is_readable = True
        try:
            memory = memory_from_json(queued.history, self.agent.memory, summarizes=summarizes)
        except (ValueError, KeyError, TypeError):  # this may be why the turn failed
            memory = memory_from_json("", self.agent.memory)
            is_readable = False
        before = memory.to_dict()
        context = self._contexts.queued(queued, lease, memory)
        language = context.texts.language
        if queued.turn.kind == "continuation":
            change = await self._continuations.give_up(context, run, is_stopped=not failure_text)
        elif queued.turn.kind in ("vote", "request_timer"):
            change = await self._give_up_request(context)
        elif queued.turn.kind == "standing":
            change = await self._standing.give_up(context, failure_text)
        else:
            # In the language of the message alone, as the worker's `failure_text` is.
            context = replace(context, texts=self.texts_for_turn(queued.turn))
            change = await self._give_up(context, queued, run, failure_text)
            change = await self._with_withdrawals(context, change)
        change = await self._long_replies.bounded(queued.turn, context.texts, change)
        change = replace(_with_replies_in(context.texts.language, change), language=language)
        # An unreadable history is not overwritten: an operator may want to look at it.
        if not is_readable or memory.to_dict() == before:
            return change
        long_texts = LongTexts(self._text_files, context.scope_id)
        return replace(change, history=await history_to_store(memory, long_texts))

    async def _give_up(
        self, context: TurnContext, queued: QueuedTurn, run: InterruptedRun, failure_text: str
    ) -> TurnChange:
        """Return what a turn of a person changes that could not be answered. See `give_up`."""
        texts = context.texts
        unknown = [texts.unknown(literal(call.tool_name)) for call in run.unknown_outcomes]
        text = paragraphs([*unknown, failure_text])
        for_history = paragraphs([*unknown, failure_text or texts.stopped()])
        if queued.turn.is_stop or (self._commands and self._commands.find(queued.turn)):
            for_history = ""  # a command is no part of the conversation
        return await self._failed_turns.settle(context, text, run, for_history=for_history)

    async def _with_withdrawals(self, context: TurnContext, change: TurnChange) -> TurnChange:
        """Return the change with the end of what the failed turn had taken back already."""
        if self._commands is None or self._commands.find(context.turn) != "reset":
            return change
        withdrawn = await self._outcomes.withdrawn_by_turn(context)
        answer = await self._votes.withdraw_all(context, TurnAnswer(change), withdrawn)
        return answer.change

    async def _give_up_request(self, context: TurnContext) -> TurnChange:
        """Return what a turn changes in which others decide, and which failed. See `give_up`.

        If it has decided the action, its person is told the outcome. Otherwise nothing is decided,
        and the person of the vote is told to try again.
        """
        change = await self._failed_turns.settle_vote(context)
        if change is None:
            return self._votes.failed(context).change
        stored = context.named_action
        answer = TurnAnswer(change)
        if stored is None:
            return change
        return (await self._votes.with_requests_ended(context, answer, stored)).change

    def is_answer(self, text: str) -> bool:
        """Return whether the text may be a yes or a no, to a question or to a request with a code."""
        if codes_in(text):
            return True
        return read_answer(self.parser, text, "").intent in ("confirm", "cancel")

    def needs_answer(self, queued: QueuedTurn) -> bool:
        """Return whether the turn may get an answer. A tap always does: its platform waits for one.

        A worker asks this to know whether to show that the bot is typing.
        """
        turn = queued.turn
        stored = queued.open_action
        if turn.kind == "request_timer":
            return False
        if turn.tap or not turn.decides:
            return True
        if stored is None:
            return not self._reader.repeats_answer(turn, queued.last_answer)
        # Of the messages to an action, the person expects no answer to one kind: they ask for time
        # again, and know already that the question stays. That needs an open question which was
        # repeated, so any other message need not be read here.
        facts = self._reader.facts_of(stored, turn.event_id, queued.received_at)
        if facts.phase != "open" or not facts.unclear_answers:
            return True
        message = self._reader.read(turn, stored, facts.phase, seq=queued.seq)
        return not asks_for_time_again(facts, message)

    def may_settle(self, queued: QueuedTurn) -> bool:
        """Return whether this turn may settle an action, or has done so in an earlier attempt.

        A worker never interrupts such a turn because of /stop: its effect may have begun.
        """
        turn = queued.turn
        if turn.kind in ("vote", "request_timer", "standing"):
            return True
        if turn.tap:
            # A tap on an offered answer settles nothing: the model answers it.
            return queued.tapped_action is None or queued.tapped_action.action.kind != CHOICE_KIND
        stored = queued.open_action
        if stored is None:
            return False
        if stored.state in WAITING_STATES and turn.decides:
            return self._reader.read_answer(turn, stored, queued.seq).intent != ""
        return stored.decided_by_event == turn.event_id

    def texts_for_turn(self, turn: Turn) -> Texts:
        """Return the texts in the sender's language.

        It is that of this message, else that of their app, else that of the channel.
        """
        return self._contexts.texts(turn)

    def ask_channel(
        self,
        user_id: str,
        message: str,
        *,
        channel_id: str | None = None,
        conversation_id: str | None = None,
        args_digest: str | None = None,
    ) -> AgentResult:
        """Handle one message without mailbox or outbox. Thread-safe; see `aask_channel`."""
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

        `channel_id` and `conversation_id` name where the person writes; None for no name. With
        `args_digest`, a yes counts only for the action whose arguments have this digest.

        The result's `content` is the whole text for the user, ready to print: what the model wrote
        is unchanged, and names in all other text have no escapes of Markdown. `take` returns
        replies that a channel can format. `iterations` is 0 if no model was called.
        """
        return await self._direct_turns.ask(
            user_id,
            message,
            channel_id=channel_id,
            conversation_id=conversation_id,
            args_digest=args_digest,
        )

    async def take(self, turn: Turn) -> tuple[Reply, ...]:
        """Handle one turn, a text or a tap, without mailbox or outbox.

        Return the replies, with buttons and files.
        """
        return await self._direct_turns.take(turn)


def _with_replies_in(language: str, change: TurnChange) -> TurnChange:
    """Return a change whose replies are marked as texts in this language.

    A text that is added to a reply later, such as "(sent again ...)", is then in this language.
    """
    replies = tuple(
        replace(turn_reply, reply=replace(turn_reply.reply, language=language))
        for turn_reply in change.replies
    )
    return replace(change, replies=replies)


def _journal_of(context: TurnContext, listener: StreamListener | None) -> Journal | None:
    """Return the journal of a turn's run; None without one.

    It also reports each call to `on_step` of the context, and to the `listener` that the text of a
    new answer begins.
    """
    journal: Journal | None = context.journal
    if context.on_step:
        journal = StepsJournal(journal or NoJournal(), context.on_step)
    if listener:
        journal = StreamingJournal(journal or NoJournal(), listener)
    return journal


def may_stream(config: AgentConfig) -> bool:
    """Return whether the text of an answer may be shown while it arrives.

    It may not if a check follows that may reject it: a guardrail checks the whole answer, and
    `coherence` checks whether its calls fit the request.
    """
    return not (config.coherence or (config.guardrails and config.guardrails.output))
