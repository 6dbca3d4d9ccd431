"""Tracer: find a message by any of its ids, and build its story from Redis and the audit ledger.

`find_stories` is what `sayso trace` calls. First an id becomes one or more *clues*: a turn, a reply
or an action that the id leads to. Then the story of each clue is put together from what Redis still
stores of the conversation and from the entries of the audit log about its actions.

| what | where |
|---|---|
| from an id to clues | `ClueSearch` in `clues.py` |
| what Redis stores of a conversation | `StoredConversation` in `stored_conversation.py` |
| what the audit log knows of an action | `AuditTrail` in `audit_trail.py` |
| a story, and its sentences | `story.py` |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sayso.pending.audit.entries import EntrySigner
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.lease import worker_of
from sayso.workers.queue_entries import InboxEntry
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
        for clue in clues:
            if clue.action_id in actions_in_stories:
                continue
            story = self._story(clue)
            stories.append(story)
            actions_in_stories |= {action.action_id for action in story.actions}

        distinct = dict.fromkeys(stories)
        return [story for story in distinct if story.turns or story.replies or story.actions]

    def _story(self, clue: Clue) -> MessageStory:
        """Return the story of a clue.

        It has the turn of the clue, the actions that this turn asked about, answered or decided,
        and all turns that asked about these actions, answered them or went on after them.
        """
        # From the clue to its turn, from there to the actions, and from these to their other turns.
        state = StoredConversation.load(self._scripts, clue.conversation)
        turn_of_clue = state.seq_of(seq=clue.seq, number=clue.number, action_id=clue.action_id)
        action_ids = self._actions_of_turn(clue, state.records.get(turn_of_clue, {}))
        seqs = {turn_of_clue, *self._turns_of_actions(state, action_ids)}

        # Read again, with the actions: the first reading could not know which ones to ask for.
        if action_ids:
            state = StoredConversation.load(self._scripts, clue.conversation, action_ids)

        turns = []
        for seq in sorted(seqs - {0}):
            turn = self._turn(state, seq)
            if turn:
                turns.append(turn)

        replies_of_turns: list[TracedReply] = []
        for turn in turns:
            replies_of_turns += turn.replies
        replies_alone = self._replies_alone(state, clue.number, replies_of_turns)

        actions = [self._traced_action(state, action_id) for action_id in action_ids]
        actions.sort(key=lambda action: action.events[0].at if action.events else 0.0)

        states = [turn.status for turn in turns]
        states += [reply.state for reply in (*replies_alone, *replies_of_turns)]
        return MessageStory(
            clue.conversation,
            tuple(turns),
            tuple(replies_alone),
            tuple(actions),
            self._why_waiting(state) if "waits" in states else "",
        )

    def _replies_alone(
        self, state: StoredConversation, number: int, replies_of_turns: Sequence[TracedReply]
    ) -> list[TracedReply]:
        """Return the reply of a number if its turn is not stored any more; [] otherwise."""
        if not number:
            return []
        reply = self._reply(state, number)
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

    def _turn(self, state: StoredConversation, seq: int) -> TracedTurn | None:
        """Return the turn of a number: finished, waiting or forgotten. None for no turn at all."""
        record = state.records.get(seq)
        if record:
            return self._finished_turn(state, seq, record)
        for ahead, entry in enumerate(state.inbox):
            if entry.seq == seq:
                return self._waiting_turn(state, entry, ahead)
        if seq <= state.last_turn:
            return TracedTurn(_turn_id(state, seq), "forgotten", webhooks=_webhooks(state, seq))
        return None

    def _finished_turn(
        self, state: StoredConversation, seq: int, record: Mapping[str, Any]
    ) -> TracedTurn:
        """Return a turn that was answered, from its record."""
        replies = [self._reply(state, int(number)) for number in record["replies"]]
        return TracedTurn(
            _turn_id(state, seq),
            "done",
            record["event"],
            received_at=record["at"] / 1000,
            finished_at=record["done"] / 1000,
            webhooks=_webhooks(state, seq),
            attempt=record["attempt"],
            worker=record["worker"],
            joined_to=record.get("upto", 0),
            tools=tuple(record.get("tools", ())),
            asked_actions=tuple(record.get("asked", ())),
            decided_action=record.get("decided", ""),
            undecided_action=record.get("about", ""),
            end_reason=record.get("ended", ""),
            continues=record.get("continues", ""),
            replies=tuple(filter(None, replies)),
        )

    def _waiting_turn(self, state: StoredConversation, entry: InboxEntry, ahead: int) -> TracedTurn:
        """Return a turn that waits in the inbox, behind `ahead` others."""
        turn = stored_fields(entry.turn)
        # Only the first turn can have been begun. This field has its number, an epoch and how many
        # attempts at it were begun.
        attempt = 0
        numbers = state.fields["turn_attempts"].split(" ")
        if numbers[0] == str(entry.seq):
            attempt = int(numbers[2])
        return TracedTurn(
            _turn_id(state, entry.seq),
            "waits",
            digest(str(turn.get("event_id", ""))),
            received_at=entry.received_ms / 1000,
            webhooks=_webhooks(state, entry.seq),
            attempt=attempt,
            continues=str(turn.get("continues", "")),
            turns_ahead=ahead,
            steps=tuple(_steps(state.journal)) if ahead == 0 else (),
            text=str(turn.get("text", "")) if self._show_texts else "",
        )

    def _reply(self, state: StoredConversation, number: int) -> TracedReply | None:
        """Return the reply of a number: delivered, waiting or forgotten. None for no reply."""
        reply_id = f"{state.conversation}#{number}"
        entry = state.deliveries.get(number)
        if entry:
            return TracedReply(
                reply_id,
                entry.state,
                entry.at_ms / 1000,
                entry.attempts,
                receipt=entry.receipt,
                reason=entry.reason,
            )

        if number in state.outbox:
            return self._waiting_reply(state, number, reply_id)
        if 0 < number <= state.newest_reply:
            return TracedReply(reply_id, "forgotten")
        return None

    def _waiting_reply(self, state: StoredConversation, number: int, reply_id: str) -> TracedReply:
        """Return a reply that waits in the outbox."""
        # Only the first reply of an outbox can have been tried, or be held for its user to write.
        hold: Mapping[str, Any] = {}
        attempts = 0
        if number == next(iter(state.outbox)):
            hold = stored_fields(state.fields["held_reply"])
            attempts = int(state.fields["reply_attempts"] or 0)

        text = ""
        if self._show_texts:
            delivery = stored_fields(state.outbox[number].record)
            text = str(stored_fields(delivery.get("reply")).get("text", ""))
        return TracedReply(
            reply_id,
            "held" if hold.get("number") == str(number) else "waits",
            attempts=attempts,
            reason=hold.get("reason", state.fields["closed_address"]),
            text=text,
        )

    def _traced_action(self, state: StoredConversation, action_id: str) -> TracedAction:
        """Return an action as the ledger and Redis know it."""
        body = self._trail.body(action_id)
        stored = defaultdict(str, state.actions.get(action_id, {}))
        record = self._trail.record(action_id) or stored_fields(stored["record"])

        events = []
        for entry in self._trail.entries(action_id):
            by = ""
            seq = 0
            if entry.decided_by_event:
                by = digest(entry.decided_by_event)
                seq = state.seq_of(event=by)
            turn = _turn_id(state, seq) if seq else ""
            events.append(TracedEvent(entry.event, entry.at / 1000, by, turn))

        decided_by = stored["decided_by_event"]
        traced = TracedAction(
            action_id,
            stored["state"],
            digest(decided_by) if decided_by else "",
            str(record.get("kind", "")),
            events=tuple(events),
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


def _turn_id(state: StoredConversation, seq: int) -> str:
    """Return the id of a turn, as `sayso trace` takes it."""
    return f"{state.conversation}@{seq}"


def _webhooks(state: StoredConversation, seq: int) -> int:
    """Return how many webhooks brought this turn: platforms repeat those that they take for lost."""
    return 1 + state.repetitions.get(seq, 0)


def _steps(journal: Sequence[str]) -> Iterator[str]:
    """Yield the steps of a turn in words: the tool calls that were requested, begun and returned.

    The first entry of the journal names the turn. `RedisJournals` writes the others: an `answer` of
    the model, the positions of the calls in it that have `begun`, and each `call` that returned.
    """
    names: list[str] = []
    for entry in map(stored_fields, journal[1:]):
        try:
            if "answer" in entry:
                calls = entry["answer"].get("tool_calls", ())
                names = [str(call["tool_name"]) for call in calls]
                yield f"the model asked for {', '.join(names)}"
            elif "started" in entry:
                yield f"{', '.join(names[at] for at in entry['started'])} began"
            elif "call" in entry:
                outcome = "returned"
                if entry.get("is_unknown"):
                    outcome = "has an unknown outcome"
                yield f"{names[entry['call']]} {outcome}"
        except (AttributeError, IndexError, KeyError, TypeError):
            yield "an entry of the journal that cannot be read"
