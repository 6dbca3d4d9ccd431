"""ChannelAgent: answer(), ask_channel(), give_up()."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from secrets import token_urlsafe

from sayso.agent.agent import Agent
from sayso.agent.channel.choices import Choices
from sayso.agent.channel.commands import Commands
from sayso.agent.channel.context import (
    TAPPED,
    TurnAnswer,
    TurnContext,
    load_history,
    note_asked,
    open_elsewhere,
    remembered,
    said,
)
from sayso.agent.channel.files import ArtifactStore, TurnFiles
from sayso.agent.channel.long_texts import LongTexts, TextStore
from sayso.agent.channel.prompts import ClosedPrompts, ConfirmPrompts, Escalation
from sayso.agent.channel.tool_executors import ToolExecutors, is_hidden, learn_schemas
from sayso.agent.channel.user_message import HeardJournal, may_be_heard, spoken, user_message_text
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.memory.scope import in_scope
from sayso.agent.messages import Message, Role
from sayso.agent.result import AgentResult
from sayso.agent.run.journal import Journals, NoJournal, TurnJournal, unclear_calls
from sayso.agent.tools.context import (
    TurnTimers,
    collect_artifacts,
    collect_choices,
    provide_received_files,
    provide_timers,
)
from sayso.agent.tools.results import result_text
from sayso.agent.tools.screening import unfenced
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import role_of
from sayso.channels.i18n.language import choose
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.channels.types import Reply, Scope, Turn
from sayso.pending.action import ActionState, PendingAction
from sayso.pending.concurrency import reach, run_sync
from sayso.pending.consent.parser import (
    ConfirmParser,
    ParsedAnswer,
    is_ok,
    is_unclear,
    quotes_another,
    read_answer,
    written_before,
)
from sayso.pending.proposals import ChannelRun, Proposal, channel_run, propose
from sayso.pending.repository import CHANGED, OPEN_STATES, ActionDecision, Claim, StoredAction
from sayso.pending.signing import ButtonPress, split_button
from sayso.pending.store import BasePendingStore, InMemoryPendingStore, scope_of
from sayso.pending.turns.change import Lease, Transition, TurnChange
from sayso.pending.turns.queued import ABOUT, CHOICE_KIND, JournalUnreadable, QueuedTurn, StreamListener

#: Characters of one result of a read-only tool that a person reads above a question.
MAX_READ_CHARS = 2000


def replied(result: AgentResult, words: Texts, *, has_acted: bool) -> str:
    """What the person reads of a run: an ending that is ours in their own language. A model that answers with nothing
    does not answer, and what tools have done is never said not to be done.
    """
    match result.stop_reason:
        case "provider_error":
            return _failed(result, words, has_acted=has_acted)
        case "answer" if not (result.content.strip() or result.artifacts or result.choices):
            return words.model_lost() if has_acted else words.model_away()
        case "max_iterations":
            return words.too_many_steps()
        case "budget":
            return words.budget_spent()
        case "guardrail":
            return words.refused()
        case "loop":
            return words.in_circles()
        case "cancelled":
            return words.stopped()
        case "answer" if result.finish_reason == "length":
            return f"{result.content}\n\n{words.answer_cut()}"
    return result.content


def read_results(result: AgentResult, tools: Iterable[Tool], *, told: Collection[str] = ()) -> list[str]:
    """Return in words what read-only tools gave in the last answer of the model that called any.

    Where that answer proposed something too, the run has ended, and no model tells of them. Errors are left out: their
    words are for models. So is what is `told` already.
    """
    last = max((at for at, message in enumerate(result.messages) if message.tool_calls), default=len(result.messages))
    reading = {tool.name for tool in tools if tool.read_only}
    given = [
        message.content
        for message in result.messages[last:]
        if message.role is Role.TOOL and message.tool_name in reading and not message.content.startswith("Error")
    ]
    in_words = [result_text(unfenced(content)) for content in given if content not in told]
    return [words if len(words) <= MAX_READ_CHARS else f"{words[:MAX_READ_CHARS]} […]" for words in in_words]


def _failed(result: AgentResult, words: Texts, *, has_acted: bool) -> str:
    """Return why there is no answer. What a model itself says when it refuses comes first."""
    if not result.refusal:
        return words.model_lost(result.failure) if has_acted else words.model_failed(result.failure)
    return f"{result.refusal}\n\n{words.model_lost(result.failure)}" if has_acted else result.refusal


log = logging.getLogger(__name__)


#: Scopes whose history a ChannelAgent without a mailbox remembers.
MAX_MEMORIES = 5000


_WAITING = ("armed", "shown")


#: Why a run ended whose last words are its own, not ours.
_ITS_OWN = ("answer", "terminal")


_BEGUN_AND_OVER = ("done", "failed", "unknown")


class ChannelAgent:
    """One agent behind one channel, for all its people: each scope has its own history and its own pending action.

    In a worker, `answer` returns all that a turn changes, for one commit. Alone, as in the seed, `ask_channel` applies
    it at once, and what is proposed counts as shown. With `journals` a turn whose worker is killed goes on where it
    was; without, it starts over. With `texts` what is too long for Redis is kept there; without, the history has it
    cut. People are answered in the language they write, if it is one of `languages` (none: any that has a catalogue),
    else in `language`. With `expiry_notice` a worker tells them when a question of theirs ends unanswered; with
    `escalation` it tells the operators of one that nobody answers. With `commands` it answers /help and the like by
    itself; without, the model is asked. With `confirm_ok` a plain "ok" is a yes right behind the question.
    """

    def __init__(
        self,
        agent: Agent,
        store: BasePendingStore | None = None,
        parser: ConfirmParser | None = None,
        *,
        confirm_ttl: float | None = None,
        media: ArtifactStore | None = None,
        journals: Journals | None = None,
        texts: TextStore | None = None,
        language: str = "en",
        languages: Collection[str] = (),
        expiry_notice: bool = False,
        escalation: Escalation | None = None,
        commands: bool = True,
        confirm_ok: bool = False,
    ) -> None:
        self.agent = agent
        self.store = store or InMemoryPendingStore()
        self.parser = parser or self.store.parser
        self._confirm_ttl = confirm_ttl or self.store.default_ttl_seconds
        self._made = TurnFiles(media)
        self._journals = journals
        self._texts = texts
        self._language = language
        self._languages = frozenset(languages or getattr(self.parser, "languages", ()))
        self._memories: OrderedDict[str, ConversationMemory] = OrderedDict()
        self._memories_lock = threading.Lock()
        self._prompts = ClosedPrompts(self.store)
        self._choices = Choices(self.store)
        self._questions = ConfirmPrompts(self.store, escalation, expiry_notice=expiry_notice)
        self._confirm_ok = confirm_ok
        self._last_questions: OrderedDict[str, str] = OrderedDict()
        self._commands = Commands(agent, self._prompts) if commands else None
        ToolExecutors(lambda: agent.tools, self.store, lambda: agent.config)

    def ask_channel(
        self, user_id: str, message: str, *, channel_id: str | None = None, conversation_id: str | None = None,
        args_digest: str | None = None,
    ) -> AgentResult:  # fmt: skip
        """Handle one message without mailbox or outbox (seed). Thread-safe; see `aask_channel`."""
        return run_sync(
            self.aask_channel(
                user_id, message, channel_id=channel_id, conversation_id=conversation_id, args_digest=args_digest
            )
        )

    async def aask_channel(
        self, user_id: str, message: str, *, channel_id: str | None = None, conversation_id: str | None = None,
        args_digest: str | None = None,
    ) -> AgentResult:  # fmt: skip
        """Handle one message: settle what waits, else run the agent. `args_digest`, if given, must be the record's.

        The result's `content` is all that the person should read; `iterations` is 0 when no model was asked.
        """
        scope = scope_of(user_id, channel_id, conversation_id)
        turn = Turn(f"ask-{token_urlsafe(8)}", scope.conversation, user_id, message)
        case = replace(await self._alone(turn), shows_buttons=False)
        live = case.live
        if live and args_digest not in (None, live.action.args_digest) and self.parser.is_confirm(message):
            return _ack(await self._refuse_changed(scope.conversation.id, live))
        answer = await self._answered(case)
        content = "\n\n".join(reply.text for reply, _ in answer.change.replies if reply.text)
        return replace(answer.result, content=content) if answer.result else _ack(content)

    async def take(self, turn: Turn) -> tuple[Reply, ...]:
        """Handle one turn, words or a tap, without mailbox or outbox: what is to be said, with buttons and files."""
        answer = await self._answered(await self._alone(turn))
        return tuple(reply for reply, _ in answer.change.replies)

    async def _alone(self, turn: Turn) -> TurnContext:
        """A turn and all that is known about it in this process."""
        scope, conversation = turn.scope, turn.conversation.id
        live = await reach(self.store.records.look, conversation, scope.id)
        last_question = self._last_questions.pop(conversation, "")
        live = replace(live, newest=live.pid == last_question) if live else None
        parts = split_button(turn.tap.data) if turn.tap else None
        (tapped,) = await reach(self.store.records.read, conversation, (parts[0],)) if parts else (None,)
        memory = self._memory_of(f"{conversation}:{scope.id}")
        received_at = live.looked_at if live else time.time()
        return TurnContext(turn, live, tapped, memory, received_at, self._words(turn, memory))

    async def _answered(self, case: TurnContext) -> TurnAnswer:
        """The answer to a turn without a lane, with all that it changes applied."""
        conversation, live = case.turn.conversation.id, case.live
        try:
            answer = await self._heard_out(case)
        except BaseException:
            # Nothing destructive stays armed behind a message that could not be answered.
            await self._applied(conversation, TurnChange(move=_dropped(live, case.turn) if live else None))
            raise
        if not await self._applied(conversation, answer.change):
            return TurnAnswer(TurnChange(replies=((Reply(case.words.overtaken()), ""),)))
        if self._confirm_ok:
            await self._note_question(case)
        return answer

    async def _note_question(self, case: TurnContext) -> None:
        """Note that the answer to a turn without a lane asked a new question: a plain "ok" may be said to it next."""
        conversation = case.turn.conversation.id
        asked = await reach(self.store.records.look, conversation, case.turn.scope.id)
        if asked and asked.state == "shown" and asked.pid != (case.live.pid if case.live else ""):
            self._last_questions[conversation] = asked.pid
            while len(self._last_questions) > MAX_MEMORIES:
                self._last_questions.popitem(last=False)

    async def answer(self, queued: QueuedTurn, lease: Lease, hear: StreamListener | None = None) -> TurnChange:
        """All that a turn of a mailbox changes; `hear` hears the words while they come, unless something judges them.

        Raises LaneLost, TurnOvertaken and JournalUnreadable.
        """
        memory = remembered(queued.history, self.agent.memory)
        texts = LongTexts(self._texts, queued.turn.scope.id)
        keep_file = partial(self._made.stored, queued.turn)
        case = TurnContext(
            turn=queued.turn,
            live=StoredAction.from_hash(queued.live),
            tapped=StoredAction.from_hash(queued.tapped),
            memory=memory,
            received_at=queued.received_at,
            words=self._words(queued.turn, memory),
            lease=lease,
            seq=queued.seq,
            timers=queued.timers,
            journal=TurnJournal(self._journals, lease, queued, keep_file, texts) if self._journals else None,
            hear=hear,
            texts=texts,
        )
        answer = await self._heard_out(case)
        history = memory.to_dict()
        await texts.fold(history["messages"])
        replies = _in_language(answer.change.replies, case.words)
        return replace(answer.change, replies=replies, history=json.dumps(history))

    def is_answer(self, text: str) -> bool:
        """Whether these words would be a yes or a no, if something waited for one."""
        return read_answer(self.parser, text, "").says in ("confirm", "cancel")

    def may_settle(self, queued: QueuedTurn) -> bool:
        """Whether this turn may settle what was asked, or did so before its worker died: what was confirmed goes on."""
        if queued.turn.tap:
            return queued.tapped.get("kind") != CHOICE_KIND
        live = StoredAction.from_hash(queued.live)
        if live is None or live.state not in _WAITING or not queued.turn.decides:
            return live is not None and live.by == queued.turn.event_id
        return self._read_answer(queued.turn, live, queued.seq).says != ""

    def words(self, turn: Turn) -> Texts:
        """How to speak to whoever wrote this: as it is written, else as their app is set, else as the channel does."""
        return self._speak([turn.text], turn)

    async def give_up(self, queued: QueuedTurn, lease: Lease, words: str) -> TurnChange:
        """What a turn changes that could not be answered: what it decided or tapped again is told, and else `words`,
        behind the calls of which nobody knows whether they finished.

        Nothing destructive stays armed behind it. Raises LaneLost.
        """
        conversation, event = queued.turn.conversation.id, queued.turn.event_id
        looked = await reach(self.store.records.look, conversation, queued.user)
        live = _with_prompt(looked, queued) if looked else None
        pids = tuple(pid for pid in (queued.tapped.get("pid", ""), live.pid if live else "") if pid)
        press = self.store.seal.read(queued.turn.tap.data, queued.turn.scope) if queued.turn.tap else None
        is_choice = press is not None and press.choice is not None
        for stored in await reach(self.store.records.read, conversation, () if is_choice else pids):
            if stored and stored.by == event and stored.state in ("claimed", "started", *_BEGUN_AND_OVER):
                return await self._owned_up(queued, _with_prompt(stored, queued))
            if stored and press and stored.pid == press.pending_action_id and stored.state in _BEGUN_AND_OVER:
                return await self._owned_up(queued, _with_prompt(stored, queued))
        told = [*await self._left_unclear(queued, lease), words]
        if live and live.state in _WAITING and (is_choice or not queued.turn.tap):
            move = _dropped(live, queued.turn)
            closed = await self._prompts.closed(queued.turn, live, "cancelled", move.told)
            return TurnChange(replies=(*closed, (Reply(_joined([move.told, *told])), "")), move=move)
        return TurnChange(replies=((Reply(_joined(told)), ""),))

    async def _left_unclear(self, queued: QueuedTurn, lease: Lease) -> list[str]:
        """What is said of each call that this turn, or an earlier attempt at it, began and did not see end."""
        if self._journals is None:
            return []
        entries = tuple(await reach(self._journals.entries, lease))
        try:
            calls = unclear_calls(replace(queued, journal=entries))
        except JournalUnreadable:  # then nobody can tell that either
            return []
        return [self.words(queued.turn).unknown(call.tool_name) for call in calls]

    async def _owned_up(self, queued: QueuedTurn, stored: StoredAction) -> TurnChange:
        """The turn claimed this, and perhaps began it, before it broke: the commit ends what is still open."""
        genuine = stored.is_genuine(self.store.seal, queued.turn.scope)
        words = texts_for(stored.action.language if genuine else "")
        preview = stored.action.preview if genuine else CHANGED  # its words are not ours to repeat
        state, told, move = stored.state, "", None
        if state == "claimed":  # it has certainly not begun
            state, told = "superseded", words.unsafe(preview)
        elif state == "started":
            state, told = "unknown", words.unknown(preview)
            move = Transition(stored.pid, ("started", "unknown"), "unknown", told, queued.turn.event_id)
        else:
            told = await self._retold(queued.turn.scope, stored)
        closed = await self._prompts.closed(queued.turn, stored, state, told)
        return TurnChange(replies=(*closed, (Reply(told), "")), move=move)

    async def _heard_out(self, case: TurnContext) -> TurnAnswer:
        """The answer to a turn; whatever runs for it can read the files that were sent."""
        with provide_received_files(lambda: self._made.received(case)):
            return await self._answer(case)

    async def _answer(self, case: TurnContext) -> TurnAnswer:
        if case.settled and case.settled.action.kind != CHOICE_KIND:
            return await self._settled(case, case.settled)
        if case.turn.tap:
            return await self._tap(case)
        if case.turn.kind == "anonymous":
            return said(case, case.words.anonymous())
        command = self._commands.named(case.turn) if self._commands else ""
        if self._commands and command:
            run = self._channel_run(case)
            return await self._commands.answer(command, case, run)
        live = case.live
        if live is None or not (live.state in _WAITING or live.by == case.turn.event_id):
            if live and self._is_late(case, live):
                told = await self._retold(case.turn.scope, live)
                return await self._closed(case, said(case, told), live, live.state, told)
            return await self._unasked(case)
        if not case.turn.decides:  # a caption, a transcript or an edit is no yes
            return await self._move_on(case, live)
        return await self._decide(case, live, self._read_answer(case.turn, live, case.seq))

    def _read_answer(self, turn: Turn, live: StoredAction, seq: int) -> ParsedAnswer:
        """Return what the turn says about the open question. A plain "ok" counts only right behind it.

        A turn without a lane has the number 0, and `newest` alone tells.
        """
        words = read_answer(self.parser, turn.text, live.action.language)
        if words.says or not self._confirm_ok or live.action.code:
            return words
        is_next = live.state == "shown" and live.newest and not live.told and seq in (0, live.seen + 1)
        says_ok = (is_next or live.by == turn.event_id) and is_ok(self.parser, turn.text, live.action.language)
        return ParsedAnswer("confirm") if says_ok else words

    async def _unasked(self, case: TurnContext) -> TurnAnswer:
        """Answer a turn while nothing waits for its person here. A yes may be meant for another thread of the chat."""
        turn = case.turn
        if turn.decides and read_answer(self.parser, turn.text, case.words.language).says == "confirm":
            question = await open_elsewhere(self.store, turn, case.received_at)
            if question:
                told = texts_for(question.action.language).asked_elsewhere(question.action.preview)
                # In a thread that was talked in before, the yes may answer what was said there.
                return await self._run(case, told) if case.memory.get_history() else said(case, told)
        return await self._run(case, await self._recovered(case))

    def _is_late(self, case: TurnContext, live: StoredAction) -> bool:
        """Whether this answer crossed with the end of the window, or a yes with that of an action of which nobody can
        tell any more what became.
        """
        if live.state not in ("expired", "unknown") or not case.turn.decides:
            return False
        says = read_answer(self.parser, case.turn.text, live.action.language).says
        return says == "confirm" or (says == "cancel" and live.state == "expired")

    async def _recovered(self, case: TurnContext) -> str:
        """What must be said of an action that somebody began, without a lane, and died at."""
        live = case.live
        if live is None or not live.is_stale:
            return ""
        claim = Claim(case.turn.scope, live.pid, case.turn.event_id)
        with channel_run(self._channel_run(case)):
            return (await self.store.settlement.recover(claim, live)).told

    async def _decide(self, case: TurnContext, live: StoredAction, words: ParsedAnswer) -> TurnAnswer:
        if words.says == "cancel" and live.state in _WAITING:
            return await self._cancel(case, live)
        if words.says == "confirm" and live.state in _WAITING and not live.action.is_expired(case.received_at):
            spoken_to = texts_for(live.action.language)
            if quotes_another(case.turn, live):
                return _repeating(said(case, spoken_to.another_quoted(live.action.preview, live.action.code)), live)
            if written_before(case.turn, live):
                return _repeating(said(case, spoken_to.early(live.action.preview)), live)
        if words.says == "confirm" and words.code == live.action.code:
            return await self._confirm(case, live)
        if words.says == "confirm" and live.action.code and not live.action.is_expired(case.received_at):
            told = texts_for(live.action.language).code_needed(live.action.preview, live.action.code)
            return _repeating(said(case, told), live)
        if self._is_unclear(case, live, words):
            return self._ask_again(case, live)
        return await self._move_on(case, live)

    def _is_unclear(self, case: TurnContext, live: StoredAction, words: ParsedAnswer) -> bool:
        """Return whether this may be an answer that nobody can read, to a question that was not yet asked again."""
        is_open = live.state == "shown" and not live.told and not live.action.is_expired(case.received_at)
        if words.says or not is_open or quotes_another(case.turn, live):
            return False
        return is_unclear(self.parser, case.turn.text, live.action.language)

    def _ask_again(self, case: TurnContext, live: StoredAction) -> TurnAnswer:
        """Ask once more, within the same window. The record keeps that it was, with what its end will be told as."""
        action = live.action
        words = texts_for(action.language)
        answer = said(case, words.unclear(action.preview, action.code))
        ((reply, _),) = answer.change.replies
        left = max(0.0, action.expires_at - case.received_at)
        asked = replace(reply, buttons=self._questions.buttons(action, case), answer_seconds=left)
        move = Transition(live.pid, ("shown",), "shown", words.expired(action.preview), case.turn.event_id)
        return _repeating(replace(answer, change=TurnChange(replies=((asked, ""),), move=move)), live)

    async def _tap(self, case: TurnContext) -> TurnAnswer:
        """A button decides only what it was minted for, and only for its own person."""
        turn, target = case.turn, case.tapped or case.live
        press = self.store.seal.read(turn.tap.data, turn.scope) if turn.tap else None
        if press is None or target is None or target.pid != press.pending_action_id:
            answer = said(case, self._not_for_you(case))
            return _only_for(answer, turn.user_id) if turn.in_group else answer
        if press.choice is not None or target.action.kind == CHOICE_KIND:
            return await self._choose(case, target, press)
        if target.state not in OPEN_STATES:
            told = await self._retold(turn.scope, target)
            answer = _asserting(case, said(case, told), target.action)
            return await self._closed(case, answer, target, target.state, told)
        match press.intent:
            case "confirm" if not target.action.code:
                return await self._confirm(case, target)
            case "cancel" if target.state in _WAITING:
                return await self._cancel(case, target)
        words, preview = texts_for(target.action.language), target.action.preview
        if target.state not in _WAITING:  # it was confirmed without a turn
            return said(case, words.status_running(preview))
        expired = words.expired(preview)
        if target.action.is_expired(case.received_at):
            return await self._closed(case, said(case, expired), target, "expired", expired)
        decision = ActionDecision(
            turn.scope, "ignore", turn.event_id, expected_id=target.pid,
            ignore_seconds=self.store.ignore_ttl_seconds,
        )  # fmt: skip
        verdict, _ = await reach(self.store.records.decide, decision)
        if verdict == "expired":
            return await self._closed(case, said(case, expired), target, "expired", expired)
        return said(case, words.ignored(preview))

    async def _choose(self, case: TurnContext, offer: StoredAction, press: ButtonPress) -> TurnAnswer:
        """What a tool offered and this person chose is what they say now. It is no yes to anything, and said once."""
        place, turn = press.choice, case.turn
        if place is None or offer.action.kind != CHOICE_KIND or not offer.is_genuine(self.store.seal, turn.scope):
            return said(case, case.words.stale())
        offer = await self._choices.taken(case, offer, place)
        if offer.state != "done":
            return await self._closed(case, said(case, case.words.stale()), offer, "expired", "")
        label = offer.told
        if offer.by != turn.event_id:
            answer = said(case, texts_for(offer.action.language).already_chosen(label))
            return await self._closed(case, answer, offer, "done", label)
        case = replace(case, turn=replace(turn, text=label))
        answer = await (self._move_on(case, case.waiting) if case.waiting else self._run(case))
        return await self._closed(case, answer, offer, "done", label)

    async def _cancel(self, case: TurnContext, stored: StoredAction, told: str = "") -> TurnAnswer:
        told = told or texts_for(stored.action.language).cancelled(stored.action.preview)
        move = Transition(stored.action.pending_action_id, _WAITING, "cancelled", told, case.turn.event_id)
        answer = said(case, told)
        answer = replace(answer, change=replace(answer.change, move=move))
        return await self._closed(case, answer, stored, "cancelled", told)

    async def _closed(
        self, case: TurnContext, answer: TurnAnswer, stored: StoredAction, state: ActionState, told: str
    ) -> TurnAnswer:
        """The answer, behind what closes the message that asked. Without a lane nobody knows that message."""
        closed = await self._prompts.closed(case.turn, stored, state, told) if case.lease else ()
        return replace(answer, change=replace(answer.change, replies=(*closed, *answer.change.replies)))

    def _not_for_you(self, case: TurnContext) -> str:
        """A button of somebody else's, else of a prompt that is over, else of nobody's."""
        words, tapped = case.words, case.tapped
        foreign = tapped is not None and tapped.action.user_id not in ("", case.turn.user_id)
        return words.not_yours() if foreign else words.stale()

    async def _confirm(self, case: TurnContext, stored: StoredAction) -> TurnAnswer:
        if stored.state == "armed":
            return said(case, texts_for(stored.action.language).early(stored.action.preview))
        if stored.state == "shown" and await self._is_hidden(case, stored):
            return await self._cancel(case, stored, texts_for(stored.action.language).unsafe(stored.action.preview))
        claim = Claim(
            scope=case.turn.scope,
            pending_action_id=stored.pid,
            by=case.turn.event_id,
            kind="tap" if case.turn.tap else "text",
            lease=case.lease,
            seq=case.seq,
            received_at=case.received_at,
        )
        if stored.is_genuine(self.store.seal, case.turn.scope):
            await learn_schemas(self.agent.tools, stored.action)
        run = self._channel_run(case)
        with (
            collect_artifacts() as artifacts,
            collect_choices() as choices,
            in_scope(_memory_scope(case.turn)),
            channel_run(run),
        ):
            outcome = await self.store.settlement.confirm(claim, stored)
        if outcome is None:
            return said(case, case.words.stale())
        answer = said(case, outcome.told, await self._made.of_effect(artifacts, case.turn))
        if outcome.status == "early":
            return answer
        answer = self._questions.with_undo(case, _asserting(case, answer, outcome.record), outcome.effects)
        answer = self._choices.offered(case, answer, choices)
        return await self._closed(case, answer, stored, outcome.record.state, outcome.told)

    def _channel_run(self, case: TurnContext) -> ChannelRun:
        """Return what tools, roles and proposals of this turn know of who speaks."""
        return replace(case.run(self._confirm_ttl, self.parser.version), role=role_of(self.agent.selector))

    async def _is_hidden(self, case: TurnContext, stored: StoredAction) -> bool:
        """Whether they asked for what they may not use any more: their role may have changed since."""
        if self.agent.selector is None or stored.action.is_expired(case.received_at):
            return False
        with channel_run(self._channel_run(case)):
            genuine = stored.is_genuine(self.store.seal, case.turn.scope)
            return genuine and await is_hidden(self.agent.selector, self.agent.tools, stored.action)

    async def _settled(self, case: TurnContext, stored: StoredAction) -> TurnAnswer:
        """The outcome of this very turn: it was reached before a crash, and is told now."""
        effects = await self.store.settlement.effects(case.turn.scope, stored)
        told = await self._retold(case.turn.scope, stored)
        asserting = _asserting(case, said(case, told), stored.action)
        answer = self._questions.with_undo(case, asserting, effects)
        return await self._closed(case, answer, stored, stored.state, told)

    async def _retold(self, scope: Scope, stored: StoredAction) -> str:
        """What became of an action that is over, as far as it is known by now."""
        begun = stored.state in _BEGUN_AND_OVER
        return (begun and await self.store.settlement.report(scope, stored)) or _told(stored)

    def _words(self, turn: Turn, memory: ConversationMemory) -> Texts:
        """How to speak to this person: as they write, now or before, else as their app, else as the channel does."""
        before = (spoken(message.content) for message in reversed(memory.get_history()) if _typed(message))
        return self._speak(chain([turn.text], before), turn)

    def _speak(self, said: Iterable[str], turn: Turn) -> Texts:
        language = choose(said, turn.language, self._language)
        return texts_for(language if not self._languages or language in self._languages else self._language)

    async def _move_on(self, case: TurnContext, live: StoredAction) -> TurnAnswer:
        """Another subject: nothing destructive stays armed behind an unrelated message (seed), and we say so."""
        action = live.action
        over = action.is_expired(case.received_at)
        words = texts_for(action.language)
        told = words.expired(action.preview) if over else words.dropped(action.preview)
        move = replace(_dropped(live, case.turn), to="expired" if over else "cancelled", told=told)
        answer = await self._run(case, preface="" if over else told)
        answer = replace(answer, change=replace(answer.change, move=move))
        return await self._closed(case, answer, live, "expired" if over else "cancelled", told)

    async def _run(self, case: TurnContext, preface: str = "") -> TurnAnswer:
        turn, words = case.turn, case.words
        run = self._channel_run(case)
        book = TurnTimers(case.turn.scope.id, case.received_at, words.language, case.timers) if case.lease else None
        memory = await load_history(case)
        hear = case.hear if case.hear and may_be_heard(self.agent.config) else None
        with channel_run(run), provide_timers(book):
            result = await self.agent.arun(
                [Message(Role.USER, user_message_text(turn) or turn_label(turn), media=turn.media)],
                memory=memory,
                journal=HeardJournal(case.journal or NoJournal(), hear) if hear else case.journal,
                stream_handler=hear,
                scope=_memory_scope(turn),
            )
        if memory is not case.memory:
            case.memory.add_many(result.messages)
            case.memory.summary, case.memory.notes = memory.summary, memory.notes
        for pid, executor in run.executors.items():
            self.store.executors.keep(pid, executor)
        proposal = propose([replace(action, requested_at=case.received_at) for action in run.proposals])
        answer = await self._reply(case, result, proposal, preface)
        if book is None:
            return answer
        change = replace(answer.change, timers=tuple(book.added), silenced=tuple(book.cancelled))
        return replace(answer, change=change)

    async def _reply(
        self, case: TurnContext, result: AgentResult, proposal: Proposal | None, preface: str
    ) -> TurnAnswer:
        """What the person reads of a run, and is asked."""
        words = case.words
        files = tuple((Reply(media=media), "") for media in await self._made.kept(result.artifacts, case.turn))
        content = replied(result, words, has_acted=self._has_acted(result))
        # Whatever the model makes of it, the person hears of what may have been done.
        beside = [content] if proposal and result.stop_reason == "terminal" else result.beside
        found = read_results(result, self.agent.tools, told=beside) if proposal else []
        told = _joined([*(words.unknown(call.tool_name) for call in result.unclear), *found, *beside])
        if proposal:  # nothing else is asked beside it
            asked, arms = self._questions.asked(case, proposal, preface, proposal.prompt_in(content))
            await note_asked(self.store, case.turn, asked[1])
            return TurnAnswer(TurnChange(replies=(*_spoken(told), *files, asked), arms=arms), result)
        spoken_text = _spoken(_joined([preface, told, content]), result.failure_cause)
        answer = TurnAnswer(TurnChange(replies=(*spoken_text, *files)), result)
        return self._choices.offered(case, answer, result.choices if result.stop_reason in _ITS_OWN else ())

    def _has_acted(self, result: AgentResult) -> bool:
        """Whether tools were called that may have changed something."""
        acting = {tool.name for tool in self.agent.tools if not tool.read_only}
        return any(call.tool_name in acting for call in result.tool_calls)

    async def _applied(self, conversation: str, change: TurnChange) -> bool:
        """Make the change. False when another message of the same scope was quicker: this answer is void."""
        if not (change.move or change.arms):
            return True
        word, _ = await reach(self.store.records.change, conversation, change)
        return word == "ok"

    async def _refuse_changed(self, conversation: str, live: StoredAction) -> str:
        action = live.action
        move = Transition(action.pending_action_id, _WAITING, "cancelled")
        await reach(self.store.records.change, conversation, TurnChange(move=move))
        return texts_for(action.language).unsafe(action.preview)

    def _memory_of(self, scope: str) -> ConversationMemory:
        with self._memories_lock:
            memory = self._memories.pop(scope, None) or remembered("", self.agent.memory)
            self._memories[scope] = memory
            while len(self._memories) > MAX_MEMORIES:
                self._memories.popitem(last=False)
        return memory


def _memory_scope(turn: Turn) -> str:
    """Whose knowledge a turn reads and writes: this person's, in this conversation."""
    return f"{turn.conversation.id}:{turn.scope.id}"


def _spoken(text: str, cause: str = "") -> tuple[tuple[Reply, str], ...]:
    return ((Reply(text, cause=cause), ""),) if text else ()


def turn_label(turn: Turn) -> str:
    """What the history says of a turn without words."""
    return "" if turn.media else f"({'a tap' if turn.tap else 'nothing'})"


def _joined(paragraphs: Iterable[str]) -> str:
    return "\n\n".join(filter(None, paragraphs))


def _only_for(answer: TurnAnswer, user: str) -> TurnAnswer:
    """Return the answer, which others in the group do not see where the platform can hide it."""
    replies = tuple((replace(reply, only_for=user), pid) for reply, pid in answer.change.replies)
    return replace(answer, change=replace(answer.change, replies=replies))


def _repeating(answer: TurnAnswer, question: StoredAction) -> TurnAnswer:
    """Return the answer, whose words repeat an open question: whoever quotes them quotes the question."""
    replies = tuple((reply, f"{ABOUT}{question.pid}") for reply, _ in answer.change.replies)
    return replace(answer, change=replace(answer.change, replies=replies))


def _in_language(replies: Sequence[tuple[Reply, str]], words: Texts) -> tuple[tuple[Reply, str], ...]:
    """The replies, which say what they are written in."""
    return tuple((replace(reply, language=words.language), pid) for reply, pid in replies)


def _asserting(case: TurnContext, answer: TurnAnswer, record: PendingAction) -> TurnAnswer:
    """The answer, which is void if what it says is not true any more when it is committed."""
    if case.lease is None or record.state not in _BEGUN_AND_OVER:
        return answer
    told = record.outcome or ""
    move = Transition(record.pending_action_id, (record.state,), record.state, told, case.turn.event_id)
    return replace(answer, change=replace(answer.change, move=move))


def _dropped(live: StoredAction, turn: Turn) -> Transition:
    """What waits is let go by another message."""
    told = texts_for(live.action.language).dropped(live.action.preview)
    return Transition(live.pid, _WAITING, "cancelled", told, turn.event_id)


def _typed(message: Message) -> bool:
    return message.role is Role.USER and message.content != TAPPED


def _with_prompt(stored: StoredAction, queued: QueuedTurn) -> StoredAction:
    """The action as it is now, with the message that asked, which only the turn's own view of it names."""
    views = (StoredAction.from_hash(given) for given in (queued.live, queued.tapped))
    prompt = next((view.prompt for view in views if view and view.pid == stored.pid), "")
    return replace(stored, prompt=stored.prompt or prompt)


def _told(stored: StoredAction) -> str:
    """What was said of an action that is over; one that ended without words of its own is put into words."""
    if stored.told:
        return stored.told
    preview, words = stored.action.preview, texts_for(stored.action.language)
    match stored.state:
        case "expired":
            return words.expired(preview)
        case "cancelled" | "superseded":
            return words.cancelled(preview)
        case "unknown":
            return words.unknown(preview)
        case "failed":
            return words.failed(preview)
    return words.stale()


def _ack(content: str) -> AgentResult:
    return AgentResult(content=content)
