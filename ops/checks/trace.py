"""Tracer: find a message by any of its ids, and build its story from Redis and the audit ledger.

`find_stories` is what `sayso trace` calls. First an id becomes one or more *clues*: a turn, a reply
or an action that the id leads to. Then the story of each clue is put together from what Redis still
stores of the conversation and from the entries of the audit log about its actions.

| what | where |
|---|---|
| from an id to clues | `ClueSearch` in `clues.py` |
| what Redis stores of a conversation | `StoredConversation` in `stored_conversation.py` |
| what the audit log knows of an action | `AuditTrail` in `audit_trail.py` |
| what other people were asked about an action | `AskedOthers` in `asked_others.py` |
| turns and replies | `TurnReader` in `traced_turns.py` |
| a story, and its sentences | `story.py` |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from sayso.channels.types import digest
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.wiring.redis_parts import RedisParts
from sayso.ops.checks.asked_others import AskedOthers, OthersStory
from sayso.ops.checks.audit_trail import AuditTrail
from sayso.ops.checks.clues import Clue, ClueSearch
from sayso.ops.checks.stored_conversation import StoredConversation
from sayso.ops.checks.stored_json import stored_fields
from sayso.ops.checks.story import (
    MessageStory,
    TracedAction,
    TracedEvent,
    TracedReply,
    TracedTurn,
)
from sayso.ops.checks.traced_turns import TurnReader, turn_id
from sayso.pending.approval_rule import ApprovalRule
from sayso.pending.audit.entries import EntrySigner
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.pending.standing_yes import standing_event_id
from sayso.workers.lease import worker_of
from sayso.workers.recovery import ALIVE, INTERVAL, Heartbeat, WorkerLock
from sayso.workers.rq.jobs import is_suspended
from sayso.workers.scripts import CONVERSATION_SCRIPTS

#: The most stories of one id. Several messages may have the same: Telegram counts the updates of
#: each bot, so a message of another channel may have the same number.
MAX_STORIES = 5


def find_stories(
    settings: Settings, data: Path, wanted: str, *, show_texts: bool = False
) -> tuple[list[MessageStory], list[str]]:
    """Return the stories of an id, and in words where it was searched.

    `wanted` is any id that `sayso trace` takes. Without `show_texts` a story holds no text of a
    message or reply, and no name of a person. A Redis that is away is left out of the search, and
    the second value says so. Raises LedgerUnusable.
    """
    file = settings.state_folder(data) / FILE
    ledger = None
    searched = [f"no audit ledger, since {file} does not exist"]
    if file.exists():
        # The key is not the real one, since nothing is signed or verified here.
        ledger = AuditLedger(file, EntrySigner(["-"]))
        searched = [f"the audit ledger {file}"]

    tracer = partial(Tracer, ledger=ledger, prefix=settings.key_prefix, show_texts=show_texts)
    try:
        redis = RedisParts.find(settings, data)
        worker_lock = WorkerLock(settings.state_folder(data) / ALIVE)
        stories = tracer(
            redis.client,
            redis.scripts(CONVERSATION_SCRIPTS),
            why_idle=partial(_why_idle, redis),
            has_died=partial(_has_died, redis.client, settings.key_prefix, worker_lock),
        ).stories(wanted)
    except ConfigError as exc:
        return tracer(None, None).stories(wanted), [*searched, f"not Redis ({exc})"]
    except RedisError as exc:
        # Only its class: its words may hold the address of a server.
        reason = type(exc).__name__
        return tracer(None, None).stories(wanted), [*searched, f"not Redis ({reason})"]
    return stories, [*searched, "Redis"]


def _why_idle(redis: RedisParts) -> str:
    """Return why no worker takes new work, with the cure; "" while one does.

    Raises redis.RedisError if the bot's Redis does not answer.
    """
    if not Heartbeat(redis.client, prefix=redis.key_prefix).count():
        return "No worker is alive: start one with `sayso worker`."
    try:
        if is_suspended(redis.queue):
            return "The queue is suspended: run `rq resume`."
    except RedisError as exc:
        if redis.queue is redis.client:
            raise
        return f"The Redis of QUEUE_URL cannot be used ({type(exc).__name__}): run `sayso doctor`."
    return ""


def _has_died(client: Redis, prefix: str, lock: WorkerLock, worker: str) -> bool:
    """Return whether a worker ended without releasing its leases.

    `lock` knows it at once for a worker of this machine. One of another machine is known by its
    missing heartbeats.
    """
    return lock.is_dead(worker) or Heartbeat(client, prefix=prefix).is_gone(worker)


class Tracer:
    """Builds the stories of what an id leads to. Lives as long as a command.

    `client` and `scripts` read Redis, and `ledger` the audit log of this machine. Redis or the
    ledger may be missing (None). `prefix` is how the bot's keys in Redis begin.

    `why_idle` returns the reason why no worker takes new work, "" while one does. `has_died`
    returns whether the worker of an id ended without releasing its leases. Without `show_texts` a
    story holds no text of a message or reply, and no name of a person.
    """

    def __init__(
        self,
        client: Redis | None,
        scripts: ShardedScripts | None,
        ledger: AuditLedger | None,
        *,
        prefix: str,
        why_idle: Callable[[], str] = lambda: "",
        has_died: Callable[[str], bool] = lambda _: False,
        show_texts: bool = False,
    ) -> None:
        self._scripts = scripts
        self._trail = AuditTrail(ledger, client, prefix=prefix)
        self._search = ClueSearch(client, scripts, trail=self._trail, prefix=prefix)
        self._turns = TurnReader(show_texts=show_texts)
        self._others = AskedOthers(scripts, self._trail, self._turns, show_texts=show_texts)
        self._why_idle = why_idle
        self._show_texts = show_texts
        self._has_died = has_died

    def stories(self, wanted: str) -> list[MessageStory]:
        """Return the stories of what an id leads to, at most MAX_STORIES; [] for an unknown id.

        Raises redis.RedisError and LedgerUnusable.
        """
        # The event id of a turn in which the agent goes on names the action that was decided.
        wanted = wanted.strip().removeprefix("after:")
        clues = list(dict.fromkeys(self._search.find(wanted)))[:MAX_STORIES]

        # The id of a yes leads to its turn and to its action. Both have the same story.
        stories: list[MessageStory] = []
        actions_in_stories: set[str] = set()
        for clue in dict.fromkeys(map(self._at_home, clues)):
            if clue.action_id in actions_in_stories:
                continue
            story = self._story(clue)
            stories.append(story)
            actions_in_stories |= {action.action_id for action in story.actions}

        distinct = dict.fromkeys(stories)
        return [story for story in distinct if story.turns or story.replies or story.actions]

    def _at_home(self, clue: Clue) -> Clue:
        """Return the clue of the action that a request asks about, if a clue leads to a request.

        That is an answer of a person who was asked, the message that asked them, or its id.
        """
        action_ids = [clue.action_id]
        if clue.conversation and not clue.action_id:
            state = StoredConversation.load(self._scripts, clue.conversation)
            record = state.records.get(state.seq_of(seq=clue.seq, number=clue.number), {})
            tapped = [each.tapped_action_id for each in state.inbox if each.seq == clue.seq]
            action_ids = [record.get("about", ""), state.asks.get(clue.number, ""), *tapped]
        for action_id in filter(None, action_ids):
            requested = self._search.requested_by(action_id)
            if requested:
                return Clue(requested.home.id, action_id=requested.action_id)
        return clue

    def _story(self, clue: Clue) -> MessageStory:
        """Return the story of a clue.

        It has the turn of the clue, the actions that this turn asked about, answered or decided,
        and all turns that asked about these actions, answered them or went on after them. Of an
        action that other people decide it has their answers, too, from other conversations.
        """
        # From the clue to its turn, from there to the actions, and from these to their other turns.
        state = StoredConversation.load(self._scripts, clue.conversation)
        turn_of_clue = state.seq_of(seq=clue.seq, number=clue.number, action_id=clue.action_id)
        action_ids = self._actions_of_turn(clue, state.records.get(turn_of_clue, {}))
        seqs = {turn_of_clue, *self._turns_of_actions(state, action_ids)}

        # Read again, with the actions: the first reading could not know which ones to ask for.
        if action_ids:
            state = StoredConversation.load(self._scripts, clue.conversation, action_ids)

        others = {
            action_id: self._others.story(action_id, state.actions.get(action_id, {}))
            for action_id in action_ids
        }
        turns = self._turns_of_story(state, seqs, others.values())
        replies_of_turns: list[TracedReply] = []
        for turn in turns:
            replies_of_turns += turn.replies
        replies_alone = self._replies_alone(state, clue.number, replies_of_turns)

        actions = [
            self._traced_action(state, action_id, others[action_id]) for action_id in action_ids
        ]
        actions.sort(key=lambda action: action.events[0].at if action.events else 0.0)

        story = MessageStory(clue.conversation, tuple(turns), tuple(replies_alone), tuple(actions))
        return replace(story, busy=self._why_busy(story))

    def _turns_of_story(
        self,
        state: StoredConversation,
        seqs: Collection[int],
        others: Iterable[OthersStory],
    ) -> list[TracedTurn]:
        """Return the turns of these numbers, and those of other people, in the order of time."""
        turns: list[TracedTurn] = []
        causes: dict[str, str] = {}
        for each in others:
            turns += each.turns
            causes |= each.causes
        # An answer is received once for both conversations, and finished in its person's own first.
        for seq in sorted(set(seqs) - {0}):
            turn = self._turns.turn(state, seq)
            if turn:
                turns.append(replace(turn, cause=causes.get(turn.event, "")))
        distinct = list(dict.fromkeys(turns))
        if any(each.turns for each in others):
            distinct.sort(key=lambda turn: (turn.received_at, turn.finished_at))
        return distinct

    def _why_busy(self, story: MessageStory) -> str:
        """Return who works on what waits in a story, or why no worker does; "" if nothing waits."""
        waiting = [turn.id.partition("@")[0] for turn in story.turns if turn.status == "waits"]
        waiting += [
            reply.id.partition("#")[0] for reply in story.all_replies if reply.state == "waits"
        ]
        if not waiting:
            return ""
        return self._why_waiting(StoredConversation.load(self._scripts, waiting[0]))

    def _replies_alone(
        self, state: StoredConversation, number: int, replies_of_turns: Sequence[TracedReply]
    ) -> list[TracedReply]:
        """Return the reply of a number if its turn is not stored any more; [] otherwise."""
        if not number:
            return []
        reply = self._turns.reply(state, number)
        if reply is None or reply.id in [each.id for each in replies_of_turns]:
            return []
        return [reply]

    def _actions_of_turn(self, clue: Clue, record: Mapping[str, Any]) -> list[str]:
        """Return the ids of the actions of a clue and of its turn, whose record may be empty."""
        action_ids = [
            clue.action_id,
            *record.get("asked", ()),
            record.get("decided"),
            record.get("about"),
            record.get("continues"),
        ]
        event = record.get("event") or clue.event
        if event:
            action_ids += self._trail.find_decided(lambda by: digest(by) == event)
        return list(dict.fromkeys(filter(None, action_ids)))

    def _turns_of_actions(self, state: StoredConversation, action_ids: Sequence[str]) -> set[int]:
        """Return the numbers of the turns that asked about actions, changed them or went on."""
        seqs = state.answers_to(action_ids) | state.continuations(action_ids)
        for action_id in action_ids:
            seqs.add(state.seq_of(action_id=action_id))
            for entry in self._trail.entries(action_id):
                if entry.decided_by_event:
                    seqs.add(state.seq_of(event=digest(entry.decided_by_event)))
        return seqs

    def _why_waiting(self, state: StoredConversation) -> str:
        """Return who works on the conversation, or why no worker does."""
        seconds_left = float(state.fields["lease_until"] or 0) / 1000 - state.now
        token = state.fields["token"]
        if seconds_left <= 0 or token in ("", "parked"):
            return self._why_idle()

        worker = worker_of(token)
        if not self._has_died(worker):
            return f"Worker {worker} works on this conversation now."
        ending = f"Worker {worker} ended in the middle of this conversation."
        next_one = f"Another worker takes it up within {seconds_left + INTERVAL:.0f} s."
        return f"{ending} {self._why_idle() or next_one}"

    def _traced_action(
        self, state: StoredConversation, action_id: str, others: OthersStory
    ) -> TracedAction:
        """Return an action as the ledger and Redis know it.

        `others`: what other people were asked about it.
        """
        body = self._trail.body(action_id)
        stored = defaultdict(str, state.actions.get(action_id, {}))
        record = self._trail.record(action_id) or stored_fields(stored["record"])

        turns_of_votes = {vote.by: vote.turn for vote in others.votes}
        events = []
        for entry in self._trail.entries(action_id):
            by = ""
            seq = 0
            if entry.decided_by_event:
                by = digest(entry.decided_by_event)
                seq = state.seq_of(event=by)
            turn = turn_id(state, seq) if seq else turns_of_votes.get(by, "")
            events.append(TracedEvent(entry.event, entry.at / 1000, by, turn))

        decided_by = stored["decided_by_event"]
        standing_yes = ""
        own_turn = digest(standing_event_id(action_id))
        if any(event.event == "claimed" and event.by == own_turn for event in events):
            standing_yes = str(record.get("standing_yes", ""))
        traced = TracedAction(
            action_id,
            stored["state"],
            digest(decided_by) if decided_by else "",
            str(record.get("kind", "")),
            events=tuple(events),
            standing_yes=standing_yes,
            need=_need_of(record),
            outcome=others.outcome,
            requests=others.requests,
            votes=others.votes,
        )
        if not self._show_texts:
            return traced

        erased = "(erased)" if body and body.erased_at else ""
        outcome_text = body.outcome_text if body else ""
        return replace(
            traced,
            preview=str(record.get("preview") or erased),
            outcome_text=str(outcome_text or stored["outcome_text"]),
            user=str(record.get("user_id", "")),
        )


def _need_of(record: Mapping[str, Any]) -> int:
    """Return how many other people must agree to an action, 0 if its user decides."""
    try:
        rule = ApprovalRule.from_dict(record["approval"])
    except (KeyError, TypeError, ValueError):
        return 0
    return rule.need if rule.asks_others else 0
