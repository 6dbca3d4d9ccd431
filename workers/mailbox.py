"""RedisMailbox: the ordered turns of conversations.

A turn is one thing that a person did: a message, a tap on a button, an edit. The mailbox of a
conversation (its `inbox` in Redis) holds the turns that wait for an answer.

* The web *accepts* a turn once: it puts the turn at the end of the mailbox and wakes a worker.
* The worker takes the *lease* of the conversation, and is then the only one to work on it.
* It answers the first turn, and *commits* all that the turn changes in one step.
* It *releases* the lease when nothing is left.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from sayso.channels.types import (
    Reply,
    Sender,
    Turn,
    digest,
    for_readers_of,
)
from sayso.infra.records import OtherVersion, check_readable, check_version
from sayso.infra.redis.scripts import NO_ARGUMENTS, Arguments
from sayso.pending.sharded_scripts import SHARDS, ShardedScripts
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import SettledAnswer, Timer, TurnChange, outbox_entry, sort_timers
from sayso.pending.turns import (
    CHOICE_KIND,
    FollowingTurn,
    Lease,
    LeaseLost,
    NextItem,
    QueuedReply,
    QueuedTurn,
    StaleTurn,
    is_tap_or_status,
)
from sayso.workers.identities import RedisIdentities, parse_identity, people_tag
from sayso.workers.lease import LEASE_MS, worker_of
from sayso.workers.queue_entries import InboxEntry, OutboxEntry
from sayso.workers.wake_ups import NO_JOB, WakeUp, no_wake_up

if TYPE_CHECKING:
    from sayso.channels.i18n.texts import Texts, TextsForTurn

#: How long an event is remembered, so that a repetition is recognized, in milliseconds. Telegram
#: repeats an event for 24 hours, and Slack does if it is asked to.
SEEN_MS = 72 * 3600 * 1000
#: How often `accept_from` runs its script at most, each time for the person that the run before
#: named. The second run is right, unless the ids change between the two.
MAX_ACCEPT_ATTEMPTS = 3
#: The first word of the answer of `accept_from` if the ids belong to another person than the
#: supposed one.
_OTHER_PERSON = "other"
#: Words that the scripts answer in place of the time since a person last wrote -> the seconds in
#: `QueuedReply.silence`.
_SILENCES = {"unknown": -1.0, "never": math.inf}
#: How many names of tools the record of a turn has at most.
MAX_TOOL_NAMES = 20
#: The collapse key of refusal notices: of several in a conversation, only the newest is sent.
REFUSAL = "refusal"

#: What became of a turn that came in.
#:   new             it waits in its mailbox
#:   spooled         it waits on this machine's disk, because Redis is away
#:   duplicate       it was stored before: the platform has sent its event again
#:   unchanged       an edit without a visible change, or a message that came after its own edit
#:   ignored         the bot takes no part in this chat, or may not write there
#:   unknown_sender  the access rules do not admit its sender
#:   rate_limited    its sender has sent too many turns on this channel
#:   full            too many turns wait in this conversation
#:   too_fast        its sender has sent too many turns in this conversation
#:   overloaded      too many conversations have work
#: `full`, `too_fast` and `overloaded` refuse the turn: the platform sends it again. All others are
#: final.
Outcome = Literal[
    "new",
    "spooled",
    "duplicate",
    "unchanged",
    "ignored",
    "unknown_sender",
    "rate_limited",
    "full",
    "too_fast",
    "overloaded",
]

#: The status of a turn: never received or forgotten, waiting or under work, or done.
TurnStatus = Literal["unknown", "waits", "done"]


@dataclass(frozen=True, slots=True)
class InboxLimits:
    """The limits above which the mailbox refuses a turn.

    Urgent turns have room above the limits: a person must be able to answer a question and to stop
    their own turn even when a mailbox is full. In each mailbox the room is URGENT_PLACES; one person
    may use URGENT_PLACES_EACH of them (`pending/stored_limits.py`).

    Above its limit of conversations each shard has two reserves. Each is a tenth of the limit and
    RESERVED_CONVERSATIONS more. Urgent turns may use both, and notices of refusal may use one
    (`is_overloaded` in `workers/lua/shared/overload.lua`).
    """

    #: How many turns of one conversation may wait.
    waiting: int = 50
    #: How many turns one person may send in one conversation in a minute. Answers to a question and
    #: stops do not count. Taps on the person's own buttons and /status are counted apart, with the
    #: same limits.
    per_minute: int = 60
    #: How many of these turns may come at once.
    in_one_go: int = 40
    #: How many conversations may have work at once; others cannot begin. Each shard has an equal
    #: share of the limit, so it holds approximately.
    conversations: int = 100_000

    @property
    def per_shard(self) -> int:
        """Return how many conversations of one shard may have work.

        Shards fill unevenly by chance, so this is a little more than a shard's share of the limit.
        With a low limit the share is a few conversations, and chance would fill a shard while the
        others are nearly empty. The eight more prevent that; with a high limit they hardly count.
        """
        return math.ceil(self.conversations / SHARDS) + 8


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a turn that came in."""

    outcome: Outcome
    #: The number of the turn in its conversation, from 1. 0 for a turn that is not in a mailbox: it
    #: was not stored, or is on this machine's disk.
    seq: int

    @property
    def refused(self) -> bool:
        """Return whether the turn was not stored and the platform should send it again."""
        return self.outcome in ("full", "too_fast", "overloaded")


class RedisMailbox:
    """The turns of each conversation, first in, first out. One per process.

    Each call is one script in Redis, and safe to repeat. All methods raise redis.RedisError.

    `lease`, `commit` and `release` return what is next in the conversation. They raise OtherVersion
    if that is a record of a newer release. They have done their work then, such as finishing the
    turn, and have released the lease.
    """

    def __init__(
        self,
        scripts: ShardedScripts,
        texts_for: TextsForTurn,
        wake_up: WakeUp = no_wake_up,
        *,
        limits: InboxLimits | None = None,
        note_turn: Callable[[Turn], object] = lambda _: None,
    ) -> None:
        """`texts_for`: the texts in the language of a turn. `wake_up`: makes the job that wakes a
        worker. `note_turn`: called with each new turn once Redis has it.
        """
        self._scripts = scripts
        self._identities = RedisIdentities(scripts)
        self._texts_for = texts_for
        self._wake_up = wake_up
        self._limits = limits or InboxLimits()
        self._note_turn = note_turn

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Store a turn once and wake a worker, in one step.

        `tapped`: the id of the pending action whose button was tapped, "" for none.
        `waited_seconds`: how long the turn waited elsewhere before it came here. It counts as
        received so much earlier. If it is refused, its sender gets no notice, because the turn goes
        on waiting there.
        """
        answer = self._run_accept(
            "accept", turn, NO_ARGUMENTS, tapped=tapped, waited_seconds=waited_seconds
        )
        return self._accepted(turn, answer, waited_seconds=waited_seconds)

    def accept_from(
        self, sender: Sender, *, tapped: str = "", waited_seconds: float = 0.0
    ) -> Accepted:
        """Find out which person sent a turn, store their ids, and accept the turn as `accept` does.

        For platforms where one person has several ids. It takes one script. On a cluster it takes
        two, because the ids of people are on another node than the conversation.
        """
        if not self._scripts.in_cluster:
            accepted = self._accept_in_one_step(
                sender, tapped=tapped, waited_seconds=waited_seconds
            )
            if accepted:
                return accepted
        person = self._identities.recognize(sender.channel, sender.ids, store=True)
        return self.accept(sender.turn_of(person), tapped=tapped, waited_seconds=waited_seconds)

    def _accept_in_one_step(
        self,
        sender: Sender,
        *,
        tapped: str,
        waited_seconds: float,
    ) -> Accepted | None:
        """Accept a turn and store its sender's ids. Return None if the ids change all the time.

        The script runs in the shard of a conversation, and the ids of the sender decide which
        conversation that is. So the script runs for the person that the ids suggest. If they belong
        to another person, it stores nothing and names that person, for the next run.
        """
        ids = sender.ids
        ids_of_message = {"user_id": ids.user_id, "number": ids.number, "parent": ids.parent}
        people = self._scripts.key_prefix(people_tag(sender.channel))
        supposed = ids.as_identity()
        for _ in range(MAX_ACCEPT_ATTEMPTS):
            turn = sender.turn_of(supposed)
            args = {**ids_of_message, "people": people, "supposed": supposed}
            answer = self._run_accept(
                "accept_from", turn, args, tapped=tapped, waited_seconds=waited_seconds
            )
            word, _, record = answer.partition(" ")
            if word != _OTHER_PERSON:
                return self._accepted(turn, answer, waited_seconds=waited_seconds)
            supposed = parse_identity(record)
        return None

    def _run_accept(
        self,
        script: str,
        turn: Turn,
        args: Arguments,
        *,
        tapped: str,
        waited_seconds: float,
    ) -> str:
        """Run a script that accepts a turn, and return its answer, as `accept_turn.lua` says.

        `args` are the arguments that only this script takes.
        """
        conversation = turn.conversation.id
        limits = self._limits
        job = self._wake_up(conversation)

        # Whether the bot may write in a chat is stored with the chat. A conversation without a
        # thread is the chat itself. On a cluster, the script does not see the shard of the chat.
        chat_barred = False
        chat_key = ""
        if turn.conversation.thread and self._scripts.in_cluster:
            chat_barred = bool(self._scripts.run("is_chat_barred", turn.conversation.chat_id))
        elif turn.conversation.thread:
            chat_key = self._scripts.conversation_key(turn.conversation.chat_id)

        # An edit is recognized by the message that it changes, and by its new content.
        message = ""
        content = ""
        if turn.message_id:
            message = digest(turn.message_key)
            content = turn.content
        answer: str = self._scripts.run(
            script,
            conversation,
            {
                **args,
                "event": turn.event_hash,
                "message": message,
                "content": content,
                "edit": turn.kind == "edit",
                "user": turn.scope.id,
                "tapped_action_id": tapped,
                "addressed": turn.addressed,
                "chat_barred": chat_barred,
                "chat_key": chat_key,
                "stop": turn.is_stop,
                "tap": turn.tap is not None,
                "tap_or_status": is_tap_or_status(turn),
                "waited_ms": waited_ms(waited_seconds),
                "seen_ms": SEEN_MS,
                "max_waiting": limits.waiting,
                "max_conversations": limits.per_shard,
                "per_minute": limits.per_minute,
                "in_one_go": limits.in_one_go,
                **job.names,
            },
            turn.to_json(),
            *job.fields,
        )
        return answer

    def _accepted(self, turn: Turn, answer: str, *, waited_seconds: float) -> Accepted:
        """Return what the answer of a script says. Report a new turn, and answer a refused one."""
        word, _, seq = answer.partition(" ")
        outcome = cast("Outcome", word)
        accepted = Accepted(outcome, int(seq or "0"))
        if outcome == "new":
            self._note_turn(turn)

        # The platform learns of each refusal, and the sender gets a notice once a minute.
        if accepted.refused and not waited_seconds and is_refusal_answered(turn):
            self.notify(turn, refusal(self._texts_for(turn), outcome))
        return accepted

    def notify(self, turn: Turn, reply: Reply) -> bool:
        """Send a notice to a sender whose turn is refused, once a minute, while there is room.

        Return whether the notice was stored to be sent.
        """
        entry = outbox_entry(turn.conversation, for_readers_of(turn, reply))
        name = turn.conversation.id
        job = self._wake_up(name)
        args = {"max_conversations": self._limits.per_shard, **job.names}
        return bool(self._scripts.run("send_busy_notice", name, args, entry, *job.fields))

    def is_question_open(self, turn: Turn) -> bool:
        """Return whether a question waits for the answer of the turn's sender.

        Return True for a turn that was received before, too: it must not be refused as a new one.
        """
        args = {"user": turn.scope.id, "event": turn.event_hash}
        return bool(self._scripts.run("is_question_open", turn.conversation.id, args))

    async def waits_for_answer(self, conversation: str) -> bool:
        """Return whether a question of any person of the conversation waits for a yes or no.

        An offer of choices is stored as an action, too, but asks for neither. So the script gets
        the kind of these actions, to leave them out.
        """
        return bool(
            await self._scripts.arun("waits_for_answer", conversation, {"choice": CHOICE_KIND})
        )

    def turn_status(self, turn: Turn) -> TurnStatus:
        """Return the status of a turn.

        A finished turn is forgotten SEEN_MS after it was received.
        """
        args = {
            "event": turn.event_hash,
            "event_json": json.dumps(turn.event_id, ensure_ascii=False),
        }
        status: TurnStatus = self._scripts.run("turn_status", turn.conversation.id, args)
        return status

    async def lease(self, conversation: str, token: str) -> tuple[Lease, NextItem] | None:
        """Take the lease of a conversation, and return it with the first thing to do.

        `token`: a name of the lease that no other lease has. Return None while another worker has
        the lease.
        """
        answer = await self._scripts.arun(
            "lease", conversation, {"token": token, "lease_ms": LEASE_MS}
        )
        if not answer:
            return None
        taken = json.loads(answer)
        lease = Lease(conversation, taken["epoch"], token)
        return lease, await parse_or_release(self._scripts, lease, taken["next_item"])

    async def leave_to_other_worker(self, conversation: str) -> float | None:
        """Leave a conversation to a worker that knows its channel.

        The conversation is due again in a second to a minute. Return for how many seconds no worker
        has taken it, None while a worker works on it.
        """
        unserved_ms: int | None = await self._scripts.arun("leave_to_other_worker", conversation)
        if unserved_ms is None:
            return None
        return unserved_ms / 1000

    async def renew(self, lease: Lease) -> int:
        """Renew the lease for another LEASE_MS. Raises LeaseLost.

        Return the number of the last turn with which the user of the first turn said stop, or 0.
        """
        answer = await self._scripts.arun(
            "renew", lease.conversation, {**lease.args, "lease_ms": LEASE_MS}
        )
        if answer == "lost":
            raise LeaseLost(lease.conversation)
        return int(answer)

    async def follow_question(self, lease: Lease) -> None:
        """Store that the bot has shown something below its last question, such as a draft.

        A yes in words may then answer that instead of the question. Raises LeaseLost.
        """
        if await self._scripts.arun("follow_question", lease.conversation, lease.args) == "lost":
            raise LeaseLost(lease.conversation)

    async def commit(
        self, lease: Lease, queued: QueuedTurn, change: TurnChange, *, let_go: bool = False
    ) -> NextItem:
        """Finish a turn and make its whole change, all or nothing. Return what is next.

        `queued`: the turn, with those that were answered together with it. Return None if nothing
        is left to do. The lease is kept then, unless `let_go` is true.

        Raises LeaseLost, and StaleTurn if what the turn read has changed meanwhile. The change is
        not made then. An action that the turn claimed and did not settle may have ended.
        """
        args = {
            **lease.args,
            "seq": queued.seq,
            # Of a turn that was answered alone, this is its own number.
            "last": queued.last_seq,
            "user": queued.user,
            "event_id": queued.turn.event_id,
            "let_go": let_go,
            "change": change.to_dict(queued.turn.conversation),
            "record": turn_record(lease, queued, change),
        }
        answer = json.loads(await self._scripts.arun("commit", lease.conversation, args))
        if answer["status"] == "lost":
            raise LeaseLost(lease.conversation)
        if answer["status"] != "ok":
            raise StaleTurn(f"{lease.conversation}: {answer['status']}")
        return await parse_or_release(self._scripts, lease, answer["next_item"])

    async def release(
        self, lease: Lease, *, hand_over: bool = False, begun: bool = False
    ) -> NextItem:
        """Release the lease, unless work has come in meanwhile. Then keep it, and return that work.

        `hand_over`: release the lease in any case, and wake another worker for the work. `begun`:
        this worker has begun the first turn, so count an attempt at it. If the lease is lost,
        nothing changes.
        """
        job = NO_JOB
        if hand_over:
            job = self._wake_up(lease.conversation)
        args = {**lease.args, "hand_over": hand_over, "begun": begun, **job.names}
        answer = json.loads(
            await self._scripts.arun("release", lease.conversation, args, *job.fields)
        )
        if answer["status"] == "has_work":
            return await parse_or_release(self._scripts, lease, answer["next_item"])
        return None


def turn_record(lease: Lease, queued: QueuedTurn, change: TurnChange) -> str:
    """Return how a turn was answered, as JSON, for `sayso trace`.

    The record holds nothing that a person said. Its first brace is left out, because the script
    adds further fields at the beginning. The fields:

        v          the version of the record
        seq        the number of the turn
        event      the digest of its event's id
        at         when it was received, in Unix milliseconds
        attempt    the number of the attempt that answered it, from 1
        worker     the worker
        upto       the number of the last turn that was answered together with it
        tools      the names of the tools that were called
        asked      the ids of the actions that it proposed
        decided    the id of the action that it decided about
        continues  the id of the action after whose decision the agent went on
        about      the id of another action that it answered
        ended      why it has no answer of the agent

    Fields after `worker` are left out where there is nothing to say.
    """
    fields: dict[str, Any] = {
        "v": 1,
        "seq": queued.seq,
        "event": queued.turn.event_hash,
        "at": round(queued.received_at * 1000),
        "attempt": queued.attempt,
        "worker": worker_of(lease.token),
    }

    decided = ""
    if change.transition:
        decided = change.transition.action_id
    about = ""
    if change.about != decided:
        about = change.about
    optional_fields = {
        # 0 for a turn that was answered alone: then the field is left out. `last_seq` never is 0.
        "upto": queued.last_merged_seq,
        "tools": change.tools[:MAX_TOOL_NAMES],
        "asked": [action.action_id for action in change.new_actions],
        "decided": decided,
        "continues": queued.turn.continues,
        "about": about,
        "ended": change.ended,
    }
    fields |= {name: value for name, value in optional_fields.items() if value}
    return json.dumps(fields, separators=(",", ":"))[1:]


def is_refusal_answered(turn: Turn) -> bool:
    """Return whether a refused turn is answered with a message.

    A tap in a group is not answered: everyone there would read the answer.
    """
    return not (turn.tap and turn.in_group)


def refusal(texts: Texts, outcome: Outcome) -> Reply:
    """Return the notice to a sender whose turn was refused."""
    match outcome:
        case "too_fast":
            text = texts.too_fast()
        case "overloaded":
            text = texts.crowded()
        case _:
            text = texts.busy()
    return Reply(text, language=texts.language, collapse=REFUSAL)


def waited_ms(seconds: float) -> int:
    """Return how many milliseconds a turn waited before it came here, from 0 to SEEN_MS.

    One machine measured the time, so no two clocks are compared. Its clock may have been set
    meanwhile, so the result is limited: a turn was not received in the future, and a turn older
    than SEEN_MS answers no question, because none is open for that long.
    """
    return max(0, min(round(seconds * 1000), SEEN_MS))


async def parse_or_release(
    scripts: ShardedScripts, lease: Lease, item: Mapping[str, Any]
) -> NextItem:
    """Read what is next for the holder of a lease, as a script says it.

    Raises OtherVersion for a record of a newer release, after it has released the lease: the
    conversation is due again in a second, and another process may be able to read the record.
    Raises redis.RedisError.
    """
    try:
        return parse_next_item(item)
    except OtherVersion:
        # `hand_over`: work is left, the item itself, and a plain release would keep the lease then.
        # The release makes the conversation due at once. The second script puts that off, so that
        # this process does not meet the same record again and again. It comes second because it
        # does nothing while the lease is held.
        await scripts.arun(
            "release", lease.conversation, {**lease.args, "hand_over": True, "begun": False}
        )
        await scripts.arun("leave_to_other_worker", lease.conversation)
        raise


def parse_next_item(item: Mapping[str, Any]) -> NextItem:
    """Read what is to be done next in a conversation, as `next_item.lua` says it.

    Raises OtherVersion for a record of a newer release.
    """
    match item["kind"]:
        case "reply":
            return _parse_reply(item)
        case "turn":
            return _parse_turn(item)
        case _:
            return None


def _parse_reply(item: Mapping[str, Any]) -> QueuedReply:
    """Read the first reply of an outbox. Raises OtherVersion.

    QueuedReply explains the values. `reply_item` in `next_item.lua` writes the item.
    """
    entry = OutboxEntry.parse(item["entry"])
    check_version(entry.record)

    # Lua leaves out what is nil: `wait_ms` where no rate limit is known, and `held_ms` for a reply
    # that does not wait for a person to write.
    wait_seconds = None
    if "wait_ms" in item:
        wait_seconds = item["wait_ms"] / 1000
    held_seconds = None
    if "held_ms" in item:
        held_seconds = item["held_ms"] / 1000

    silence_ms = item["silence_ms"]
    if silence_ms in _SILENCES:
        silence = _SILENCES[silence_ms]
    else:
        silence = silence_ms / 1000

    return QueuedReply(
        number=entry.number,
        text=entry.record,
        action_id=entry.action_id,
        attempt=item["attempt"],
        is_doubtful=item["is_doubtful"],
        wait_seconds=wait_seconds,
        rate_is_elsewhere=item["rate_is_elsewhere"],
        ahead_seconds=item["ahead_ms"] / 1000,
        receipt=item["receipt"],
        silence=silence,
        held_seconds=held_seconds,
        closed_reason=item["closed_reason"],
    )


def _parse_turn(item: Mapping[str, Any]) -> QueuedTurn:
    """Read the first turn of an inbox. Raises OtherVersion.

    QueuedTurn explains the values. `turn_item` in `next_item.lua` writes the item.
    """
    entry = InboxEntry.parse(item["entry"])
    journal = list(item["journal"])
    return QueuedTurn(
        seq=entry.seq,
        received_at=entry.received_ms / 1000,
        user=entry.user,
        turn=Turn.from_json(entry.turn),
        open_action=_readable_action(item.get("open_action")),
        tapped_action=_readable_action(item.get("tapped_action")),
        history=check_version(item["history"]),
        following=tuple(map(_following_turn, item["following"])),
        waiting=item["waiting"],
        stop=item["stop_seq"],
        timers=sort_timers(map(Timer.from_json, item["timers"])),
        # The first entry names the turn and has the version of all.
        journal=(*map(check_version, journal[:1]), *journal[1:]),
        attempt=item["attempt"],
        age=item["age_ms"] / 1000,
        lost_at=item["lost_at"] / 1000,
        is_loss_told=item["is_loss_told"],
        last_answer=SettledAnswer.from_json(item["last_answer"]),
    )


def _following_turn(text: str) -> FollowingTurn:
    """Read a turn behind the first one. Raises OtherVersion."""
    entry = InboxEntry.parse(text)
    return FollowingTurn(entry.seq, Turn.from_json(entry.turn), entry.received_ms / 1000)


def _readable_action(fields: Mapping[str, Any] | None) -> StoredAction | None:
    """Return an action of a turn, None if the turn has none. Raises OtherVersion."""
    if fields is None:
        return None
    stored = StoredAction.from_fields(fields)
    # A record of version 1 names no version. Most are, so their JSON is not parsed here.
    if '"v":' in stored.record:
        check_readable(stored.record_version)
    return stored
