"""ChannelAgent: settles what waits for a yes, else runs the agent, for one turn of one person on one channel."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from secrets import token_urlsafe
from typing import Protocol

from agent.agent import Agent
from agent.confirmed import ToolKinds
from agent.escalation import Escalation
from agent.hearing import HeardJournal, Hearing, may_be_heard
from agent.journal import NoJournal
from agent.long_texts import LongTexts, TextStore
from agent.memory import ConversationMemory
from agent.messages import Message, Role
from agent.result import AgentResult
from agent.scope import in_scope
from agent.tools.artifacts import Artifact, collect_artifacts
from agent.tools.timers import TimerBook, timer_book
from agent.turn_journal import TurnJournal, unclear_calls
from channels.types import Button, Media, Reply, Scope, Turn
from pending.action import PendingAction
from pending.intent import Words, read_answer
from pending.language import choose
from pending.parser import ConfirmParser
from pending.plan import Effect, Proposal, propose, undo_of
from pending.proposals import ChannelRun, channel_run
from pending.records import CHANGED, OPEN_STATES, Claim, Decision, StoredAction
from pending.store import BasePendingStore, InMemoryPendingStore, scope_of
from pending.texts import Texts, brief, speak
from workers.journals import Journals
from workers.lane import Arm, Change, JournalUnreadable, Lease, Move, QueuedTurn, Timer, outbox_entry
from workers.offload import offload, reach, run_sync

log = logging.getLogger(__name__)

#: Scopes whose history a ChannelAgent without a mailbox remembers.
MAX_MEMORIES = 5000

#: What the history holds of a tap.
TAPPED = "(tapped a button)"

_WAITING = ("armed", "shown")
_BEGUN_AND_OVER = ("done", "failed", "unknown")


class MediaSink(Protocol):
    """Where files made by tools are kept for delivery."""

    def put(self, data: bytes, *, mime_type: str, filename: str) -> Media:
        """Store the bytes."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A turn and all that is known about it."""

    turn: Turn
    live: StoredAction | None
    tapped: StoredAction | None
    memory: ConversationMemory
    received_at: float
    #: How to speak to this person.
    words: Texts
    lease: Lease | None = None
    seq: int = 0
    timers: tuple[Timer, ...] = ()
    journal: TurnJournal | None = None
    #: Hears the words while they come.
    hear: Hearing | None = None
    #: Where the history's long texts are. Without a lane it stays in this process, as it is.
    texts: LongTexts | None = None

    @property
    def settled(self) -> StoredAction | None:
        """What this very turn settled, found when it is worked on again after a crash."""
        for stored in (self.live, self.tapped):
            if stored and stored.by == self.turn.event_id and stored.state not in OPEN_STATES:
                return stored
        return None


class ChannelAgent:
    """One agent behind one channel, for all its people: each scope has its own history and its own pending action.

    In a worker, `answer` returns all that a turn changes, for one commit. Alone, as in the seed, `ask_channel` applies
    it at once, and what is proposed counts as shown. With `journals` a turn whose worker is killed goes on where it
    was; without, it starts over. With `texts` what is too long for Redis is kept there; without, the history has it
    cut. People are answered in the language they write, if it is one of `languages` (none: any that has a catalogue),
    else in `language`. With `expiry_notice` a worker tells them when a question of theirs ends unanswered; with
    `escalation` it tells the operators of one that nobody answers.
    """

    def __init__(
        self,
        agent: Agent,
        store: BasePendingStore | None = None,
        parser: ConfirmParser | None = None,
        *,
        confirm_ttl: float | None = None,
        media: MediaSink | None = None,
        journals: Journals | None = None,
        texts: TextStore | None = None,
        language: str = "en",
        languages: Collection[str] = (),
        expiry_notice: bool = False,
        escalation: Escalation | None = None,
    ) -> None:
        self.agent = agent
        self.store = store or InMemoryPendingStore()
        self.parser = parser or self.store.parser
        self._confirm_ttl = confirm_ttl or self.store.default_ttl_seconds
        self._media = media
        self._journals = journals
        self._texts = texts
        self._language = language
        self._expiry_notice = expiry_notice
        self._escalation = escalation
        self._languages = frozenset(languages or getattr(self.parser, "languages", ()))
        self._memories: OrderedDict[str, ConversationMemory] = OrderedDict()
        self._memories_lock = threading.Lock()
        ToolKinds(lambda: agent.tools, self.store, lambda: agent.config)

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
        live = await reach(self.store.records.look, scope.conversation.id, scope.id)
        if live and args_digest not in (None, live.action.args_digest) and self.parser.is_confirm(message):
            return _ack(await self._refuse_changed(scope.conversation.id, live))
        memory = self._memory_of(f"{scope.conversation.id}:{scope.id}")
        received_at = live.looked_at if live else time.time()
        case = _Case(turn, live, None, memory, received_at, self._words(turn, memory))
        try:
            answer = await self._answer(case)
        except BaseException:
            # Nothing destructive stays armed behind a message that could not be answered.
            await self._applied(scope.conversation.id, Change(move=_dropped(live, turn) if live else None))
            raise
        if not await self._applied(scope.conversation.id, answer.change):
            return _ack(case.words.overtaken())
        content = "\n\n".join(reply.text for reply, _ in answer.change.replies if reply.text)
        return replace(answer.result, content=content) if answer.result else _ack(content)

    async def answer(self, queued: QueuedTurn, lease: Lease, hear: Hearing | None = None) -> Change:
        """All that a turn of a mailbox changes; `hear` hears the words while they come, unless something judges them.

        Raises LaneLost, TurnOvertaken and JournalUnreadable.
        """
        memory = _load(queued.history, self.agent.memory)
        texts = LongTexts(self._texts, queued.turn.scope.id)
        case = _Case(
            turn=queued.turn,
            live=StoredAction.from_hash(queued.live),
            tapped=StoredAction.from_hash(queued.tapped),
            memory=memory,
            received_at=queued.received_at,
            words=self._words(queued.turn, memory),
            lease=lease,
            seq=queued.seq,
            timers=queued.timers,
            journal=TurnJournal(self._journals, lease, queued, self._stored, texts) if self._journals else None,
            hear=hear,
            texts=texts,
        )
        answer = await self._answer(case)
        history = memory.to_dict()
        await texts.fold(history["messages"])
        replies = _in_language(answer.change.replies, case.words)
        return replace(answer.change, replies=replies, history=json.dumps(history))

    def is_answer(self, text: str) -> bool:
        """Whether these words would be a yes or a no, if something waited for one."""
        return read_answer(self.parser, text, "").says in ("confirm", "cancel")

    def words(self, turn: Turn) -> Texts:
        """How to speak to whoever wrote this: as it is written, else as their app is set, else as the channel does."""
        return self._speak([turn.text], turn)

    async def give_up(self, queued: QueuedTurn, lease: Lease, words: str) -> Change:
        """What a turn changes that could not be answered: what it decided or tapped again is told, and else `words`,
        behind the calls of which nobody knows whether they finished.

        Nothing destructive stays armed behind it. Raises LaneLost.
        """
        conversation, event = queued.turn.conversation.id, queued.turn.event_id
        live = await reach(self.store.records.look, conversation, queued.user)
        pids = tuple(pid for pid in (queued.tapped.get("pid", ""), live.pid if live else "") if pid)
        press = self.store.seal.read(queued.turn.tap.data, queued.turn.scope) if queued.turn.tap else None
        for stored in await reach(self.store.records.read, conversation, pids):
            if stored and stored.by == event and stored.state in ("claimed", "started", *_BEGUN_AND_OVER):
                return await self._owned_up(queued, stored)
            if stored and press and stored.pid == press.pending_action_id and stored.state in _BEGUN_AND_OVER:
                return await self._owned_up(queued, stored)
        told = [*await self._left_unclear(queued, lease), words]
        if live and live.state in _WAITING and not queued.turn.tap:
            told = [speak(live.action.language).dropped(live.action.preview), *told]
            return Change(replies=((Reply(_joined(told)), ""),), move=_dropped(live, queued.turn))
        return Change(replies=((Reply(_joined(told)), ""),))

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

    async def _owned_up(self, queued: QueuedTurn, stored: StoredAction) -> Change:
        """The turn claimed this, and perhaps began it, before it broke: the commit ends what is still open."""
        genuine = stored.is_genuine(self.store.seal, queued.turn.scope)
        words = speak(stored.action.language if genuine else "")
        preview = stored.action.preview if genuine else CHANGED  # its words are not ours to repeat
        if stored.state == "claimed":  # it has certainly not begun
            return Change(replies=((Reply(words.unsafe(preview)), ""),))
        if stored.state == "started":
            told = words.unknown(preview)
            move = Move(stored.pid, ("started", "unknown"), "unknown", told, queued.turn.event_id)
            return Change(replies=((Reply(told), ""),), move=move)
        return Change(replies=((Reply(await self._retold(queued.turn.scope, stored)), ""),))

    async def _answer(self, case: _Case) -> _Answer:
        if case.settled:
            return await self._settled(case, case.settled)
        if case.turn.tap:
            return await self._tap(case)
        live = case.live
        if live is None or not (live.state in _WAITING or live.by == case.turn.event_id):
            if live and self._is_late_yes(case, live):
                return _said(case, await self._retold(case.turn.scope, live))
            return await self._run(case, await self._recovered(case))
        if case.turn.media:  # a caption decides nothing
            return await self._move_on(case, live)
        words = read_answer(self.parser, case.turn.text, live.action.language)
        return await self._decide(case, live, words)

    def _is_late_yes(self, case: _Case, live: StoredAction) -> bool:
        """Whether this yes crossed with the end of the window, of which a notice told, or of an action that nobody can
        tell any more what became of it.
        """
        if live.state not in ("expired", "unknown") or case.turn.media:
            return False
        return read_answer(self.parser, case.turn.text, live.action.language).says == "confirm"

    async def _recovered(self, case: _Case) -> str:
        """What must be said of an action that somebody began, without a lane, and died at."""
        live = case.live
        if live is None or not live.is_stale:
            return ""
        claim = Claim(case.turn.scope, live.pid, case.turn.event_id)
        return (await self.store.settlement.recover(claim, live)).told

    async def _decide(self, case: _Case, live: StoredAction, words: Words) -> _Answer:
        if words.says == "cancel" and live.state in _WAITING:
            return _cancel(case, live)
        if words.says == "confirm" and words.code == live.action.code:
            return await self._confirm(case, live)
        if words.says == "confirm" and live.action.code and not live.action.is_expired(case.received_at):
            return _said(case, speak(live.action.language).code_needed(live.action.preview, live.action.code))
        return await self._move_on(case, live)

    async def _tap(self, case: _Case) -> _Answer:
        """A button decides only what it was minted for, and only for its own person."""
        turn, target = case.turn, case.tapped or case.live
        press = self.store.seal.read(turn.tap.data, turn.scope) if turn.tap else None
        if press is None or target is None or target.pid != press.pending_action_id:
            return _said(case, self._not_for_you(case))
        if target.state not in OPEN_STATES:
            return _asserting(case, _said(case, await self._retold(case.turn.scope, target)), target.action)
        match press.intent:
            case "confirm" if not target.action.code:
                return await self._confirm(case, target)
            case "cancel" if target.state in _WAITING:
                return _cancel(case, target)
        if target.action.is_expired(case.received_at):
            return _said(case, speak(target.action.language).expired(target.action.preview))
        decision = Decision(
            turn.scope, "ignore", turn.event_id, expected_id=target.pid,
            ignore_seconds=self.store.ignore_ttl_seconds,
        )  # fmt: skip
        verdict, _ = await reach(self.store.records.decide, decision)
        words, preview = speak(target.action.language), target.action.preview
        return _said(case, words.expired(preview) if verdict == "expired" else words.ignored(preview))

    def _not_for_you(self, case: _Case) -> str:
        """A button of somebody else's, else of a prompt that is over, else of nobody's."""
        words, tapped = case.words, case.tapped
        foreign = tapped is not None and tapped.action.user_id not in ("", case.turn.user_id)
        return words.not_yours() if foreign else words.stale()

    async def _confirm(self, case: _Case, stored: StoredAction) -> _Answer:
        if stored.state == "armed":
            return _said(case, speak(stored.action.language).early(stored.action.preview))
        claim = Claim(
            scope=case.turn.scope,
            pending_action_id=stored.pid,
            by=case.turn.event_id,
            kind="tap" if case.turn.tap else "text",
            lease=case.lease,
            seq=case.seq,
        )
        with collect_artifacts() as artifacts, in_scope(_memory_scope(case.turn)):
            outcome = await self.store.settlement.confirm(claim, stored)
        if outcome is None:
            return _said(case, case.words.stale())
        answer = _said(case, outcome.told, tuple(await self._files_of_effect(artifacts)))
        return self._with_undo(case, _asserting(case, answer, outcome.record), outcome.effects)

    async def _settled(self, case: _Case, stored: StoredAction) -> _Answer:
        """The outcome of this very turn: it was reached before a crash, and is told now."""
        effects = await self.store.settlement.effects(case.turn.scope, stored)
        answer = _asserting(case, _said(case, await self._retold(case.turn.scope, stored)), stored.action)
        return self._with_undo(case, answer, effects)

    async def _retold(self, scope: Scope, stored: StoredAction) -> str:
        """What became of an action that is over, as far as it is known by now."""
        begun = stored.state in _BEGUN_AND_OVER
        return (begun and await self.store.settlement.report(scope, stored)) or _told(stored)

    def _with_undo(self, case: _Case, answer: _Answer, effects: Sequence[Effect]) -> _Answer:
        """The answer with a button that undoes what can be undone. It waits beside what the scope may wait for."""
        if case.lease is None:  # words alone carry no button
            return answer
        limits = [(self.store.executors.undo_seconds(effect.action.kind), effect) for effect in effects]
        seconds = min((limit for limit, _ in limits if limit), default=0.0)
        undo = undo_of([effect for limit, effect in limits if limit], seconds)
        if undo is None:
            return answer
        scope, words, pid = case.turn.scope, speak(undo.head.language), undo.head.pending_action_id
        (told, _), *files = answer.change.replies
        button = Button(words.undo_label, self.store.seal.mint(pid, "confirm", scope))
        offer = Reply(f"{told.text}\n\n{words.undo_offer(seconds)}", (button,))
        arms = undo.arms(self.store.seal, scope.id, live=False)
        return replace(answer, change=replace(answer.change, replies=((offer, pid), *files), arms=arms))

    def _words(self, turn: Turn, memory: ConversationMemory) -> Texts:
        """How to speak to this person: as they write, now or before, else as their app, else as the channel does."""
        before = (message.content for message in reversed(memory.get_history()) if _typed(message))
        return self._speak(chain([turn.text], before), turn)

    def _speak(self, said: Iterable[str], turn: Turn) -> Texts:
        language = choose(said, turn.language, self._language)
        return speak(language if not self._languages or language in self._languages else self._language)

    async def _move_on(self, case: _Case, live: StoredAction) -> _Answer:
        """Another subject: nothing destructive stays armed behind an unrelated message (seed), and we say so."""
        action = live.action
        over = action.is_expired(case.received_at)
        words = speak(action.language)
        told = words.expired(action.preview) if over else words.dropped(action.preview)
        move = replace(_dropped(live, case.turn), to="expired" if over else "cancelled", told=told)
        answer = await self._run(case, preface="" if over else told)
        return replace(answer, change=replace(answer.change, move=move))

    async def _run(self, case: _Case, preface: str = "") -> _Answer:
        turn, words = case.turn, case.words
        run = ChannelRun(
            user_id=turn.user_id,
            channel_id=turn.conversation.channel,
            conversation_id=turn.conversation.address,
            ttl_seconds=self._confirm_ttl,
            parser_version=self.parser.version,
            language=words.language,
        )
        book = TimerBook(case.turn.scope.id, case.received_at, words.language, case.timers) if case.lease else None
        memory = await _recollected(case)
        hear = case.hear if case.hear and may_be_heard(self.agent.config) else None
        with channel_run(run), timer_book(book):
            result = await self.agent.arun(
                [Message(Role.USER, turn.text or turn_label(turn), media=turn.media)],
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
        files = await self._files(result.artifacts)
        proposal = propose([replace(action, requested_at=case.received_at) for action in run.proposals])
        content = _content(result, words, has_acted=self._has_acted(result))
        # Whatever the model makes of it, the person hears of what may have been done.
        beside = [content] if proposal and result.stop_reason == "terminal" else result.beside
        told = _joined([preface, *(words.unknown(call.tool_name) for call in result.unclear), *beside])
        change = self._change(case, proposal, _Parts(told, content, files))
        if book:
            change = replace(change, timers=tuple(book.added), silenced=tuple(book.silenced))
        return _Answer(change, result)

    def _has_acted(self, result: AgentResult) -> bool:
        """Whether tools were called that may have changed something."""
        acting = {tool.name for tool in self.agent.tools if not tool.read_only}
        return any(call.tool_name in acting for call in result.tool_calls)

    def _change(self, case: _Case, proposal: Proposal | None, parts: _Parts) -> Change:
        files = tuple((Reply(media=media), "") for media in parts.files)
        if proposal is None:
            text = parts.text(parts.content)
            said = ((Reply(text), ""),) if text else ()
            return Change(replies=said + files)
        head = proposal.head
        words = speak(head.language)
        question = parts.text(words.question(head.preview, head.ttl_seconds, head.code))
        asked = Reply(question, self._buttons(head, case, words))
        *steps, arm = proposal.arms(self.store.seal, case.turn.scope.id)
        return Change(
            replies=(*files, (asked, head.pending_action_id)), arms=(*steps, self._with_notices(case, arm, head))
        )

    def _with_notices(self, case: _Case, arm: Arm, head: PendingAction) -> Arm:
        """The action, and what is said when nobody answers: without a lane there is nobody to say it."""
        if case.lease is None:
            return arm
        preview, here = brief(head.preview), case.turn.conversation
        if self._escalation:
            arm = self._escalation.alarmed(arm, preview, here)
        if not self._expiry_notice:
            return arm
        told = speak(head.language).expired_unanswered(preview)
        return replace(arm, notice=outbox_entry(here, Reply(told, language=head.language)))

    def _buttons(self, head: PendingAction, case: _Case, words: Texts) -> tuple[Button, ...]:
        """What is asked for with a code has no button that confirms: the code must be typed."""
        seal, scope, pid = self.store.seal, case.turn.scope, head.pending_action_id
        confirm = Button(words.confirm_label, seal.mint(pid, "confirm", scope), "primary")
        cancel = Button(words.cancel_label, seal.mint(pid, "cancel", scope), "danger")
        return (cancel,) if head.code else (confirm, cancel)

    async def _files(self, artifacts: Sequence[Artifact]) -> list[Media]:
        stored = [await self._stored(artifact) for artifact in artifacts]
        return [artifact.kept for artifact in stored if artifact.kept]

    async def _files_of_effect(self, artifacts: list[Artifact]) -> list[Media]:
        """What was done is done: a file that cannot be kept must not turn its outcome into an error."""
        try:
            return await self._files(artifacts)
        except Exception:
            log.exception("pending.files_lost")
            return []

    async def _stored(self, artifact: Artifact) -> Artifact:
        """The file in the media store, once; what has no bytes, or no store to go to, stays as it is."""
        if artifact.kept or artifact.data is None or self._media is None:
            return artifact
        name = artifact.filename or "file"
        kept = await offload(self._media.put, artifact.data, mime_type=artifact.mime_type, filename=name)
        return replace(artifact, data=None, kept=kept)

    async def _applied(self, conversation: str, change: Change) -> bool:
        """Make the change. False when another message of the same scope was quicker: this answer is void."""
        if not (change.move or change.arms):
            return True
        word, _ = await reach(self.store.records.change, conversation, change)
        return word == "ok"

    async def _refuse_changed(self, conversation: str, live: StoredAction) -> str:
        action = live.action
        move = Move(action.pending_action_id, _WAITING, "cancelled")
        await reach(self.store.records.change, conversation, Change(move=move))
        return speak(action.language).unsafe(action.preview)

    def _memory_of(self, scope: str) -> ConversationMemory:
        with self._memories_lock:
            memory = self._memories.pop(scope, None) or _load("", self.agent.memory)
            self._memories[scope] = memory
            while len(self._memories) > MAX_MEMORIES:
                self._memories.popitem(last=False)
        return memory


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a turn changes, and the agent's own result if it was asked."""

    change: Change
    result: AgentResult | None = None


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of an answer before they become replies."""

    preface: str
    content: str
    files: list[Media]

    def text(self, body: str) -> str:
        return "\n\n".join(part for part in (self.preface, body) if part)


def _memory_scope(turn: Turn) -> str:
    """Whose knowledge a turn reads and writes: this person's, in this conversation."""
    return f"{turn.conversation.id}:{turn.scope.id}"


def _content(result: AgentResult, words: Texts, *, has_acted: bool) -> str:
    """What the person reads of a run: an ending that is ours in their own language. A model that answers with nothing
    does not answer, and what tools have done is never said not to be done.
    """
    match result.stop_reason:
        case "provider_error":
            return words.model_lost() if has_acted else words.model_away()
        case "answer" if not (result.content.strip() or result.artifacts):
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
    return result.content


def turn_label(turn: Turn) -> str:
    """What the history says of a turn without words."""
    return "" if turn.media else f"({'a tap' if turn.tap else 'nothing'})"


def _joined(paragraphs: Iterable[str]) -> str:
    return "\n\n".join(filter(None, paragraphs))


def _in_language(replies: Sequence[tuple[Reply, str]], words: Texts) -> tuple[tuple[Reply, str], ...]:
    """The replies, which say what they are written in."""
    return tuple((replace(reply, language=words.language), pid) for reply, pid in replies)


def _asserting(case: _Case, answer: _Answer, record: PendingAction) -> _Answer:
    """The answer, which is void if what it says is not true any more when it is committed."""
    if case.lease is None or record.state not in _BEGUN_AND_OVER:
        return answer
    told = record.outcome or ""
    move = Move(record.pending_action_id, (record.state,), record.state, told, case.turn.event_id)
    return replace(answer, change=replace(answer.change, move=move))


def _dropped(live: StoredAction, turn: Turn) -> Move:
    """What waits is let go by another message."""
    told = speak(live.action.language).dropped(live.action.preview)
    return Move(live.pid, _WAITING, "cancelled", told, turn.event_id)


def _cancel(case: _Case, stored: StoredAction) -> _Answer:
    told = speak(stored.action.language).cancelled(stored.action.preview)
    move = Move(stored.action.pending_action_id, _WAITING, "cancelled", told, case.turn.event_id)
    answer = _said(case, told)
    return replace(answer, change=replace(answer.change, move=move))


def _said(case: _Case, text: str, files: tuple[Media, ...] = ()) -> _Answer:
    """An answer without a model, which the history remembers all the same."""
    words = case.turn.text or TAPPED
    case.memory.add_many([Message(Role.USER, words), Message(Role.ASSISTANT, text)])
    replies = ((Reply(text), ""), *((Reply(media=media), "") for media in files))
    return _Answer(Change(replies=replies))


def _typed(message: Message) -> bool:
    return message.role is Role.USER and message.content != TAPPED


def _told(stored: StoredAction) -> str:
    """What was said of an action that is over; one that ended without words of its own is put into words."""
    if stored.told:
        return stored.told
    preview, words = stored.action.preview, speak(stored.action.language)
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


def _load(history: str, limits: ConversationMemory | None) -> ConversationMemory:
    if history:
        memory = ConversationMemory.from_dict(json.loads(history))
        if limits is None or (memory.max_messages, memory.max_tokens) == (limits.max_messages, limits.max_tokens):
            return memory
        return memory.limited(limits.max_messages, limits.max_tokens)  # they were configured anew since
    return ConversationMemory(limits.max_messages, limits.max_tokens) if limits else ConversationMemory()


async def _recollected(case: _Case) -> ConversationMemory:
    """What the model is to know of earlier turns: the history with its long texts, as far as there is room."""
    history = case.memory.get_history()
    if case.texts is None or not any(message.kept for message in history):
        return case.memory
    kept = case.memory
    memory = ConversationMemory(kept.max_messages, kept.max_tokens, kept.summary, kept.notes)
    memory.add_many(await case.texts.unfolded(history))
    return memory


def _ack(content: str) -> AgentResult:
    return AgentResult(content=content)
