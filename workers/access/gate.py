"""AccessControl in front of the inbox, rate limit on `limits`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import MovingWindowRateLimiter
from redis import Redis

from sayso.channels.i18n.texts import TextsForTurn
from sayso.channels.types import Reply, Turn
from sayso.pending.redis.client import PREFIX
from sayso.pending.turns.queued import stops
from sayso.workers.access.people import WAIT_SECONDS, People, Waiting
from sayso.workers.access.rules import AccessDecision, AccessRules, Admitted, Ignored, Stranger, asks_who, digest
from sayso.workers.mailbox import REFUSAL, Accepted, GuardedInbox, TurnStatus, refusal

log = logging.getLogger(__name__)


#: Characters of a stranger's name that an operator sees.
MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """What stands at the gate where somebody is turned away: the rules of each such channel, and what it asks."""

    rules: Mapping[str, AccessRules]
    people: People
    quota: Quota | None = None


class AccessControl:
    """Lets turns into the mailbox, by their channel's rules; one per process.

    A channel without rules costs nothing here. With them it is asked first who somebody is; where Redis cannot say,
    nobody is let in.
    """

    def __init__(self, inbox: GuardedInbox, voice: TextsForTurn, guard: AccessConfig | None = None) -> None:
        self._inbox = inbox
        self._voice = voice
        self._guard = guard

    def ignores(self, turn: Turn) -> str:
        """Why a turn is nothing to the bot, as far as the configuration says so; else ""."""
        rules = self._rules(turn)
        return rules.ignores(turn) if rules else ""

    def judge(self, turn: Turn) -> AccessDecision:
        """What would become of a turn by its channel's rules. Nothing is kept or said. Raises redis.RedisError."""
        rules, guard = self._rules(turn), self._guard
        if not (rules and guard):
            return Admitted(turn)
        return rules.judge(turn, guard.people.standing(turn.conversation.channel, rules.ids(turn)))

    def turn_status(self, turn: Turn) -> TurnStatus:
        """How far a turn has come behind the gate. Raises redis.RedisError."""
        return self._inbox.turn_status(turn)

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Let a turn in, or say why not to whoever may hear it. Raises redis.RedisError when nothing was promised."""
        rules, guard = self._rules(turn), self._guard
        if not (rules and guard):
            return self._inbox.accept(turn, tapped=tapped, waited_seconds=waited_seconds)
        match self.judge(turn):
            case Ignored(reason):
                log.info("turn.ignored", extra={"conversation": turn.conversation.id, "reason": reason})
                return Accepted("ignored", 0)
            case Stranger():
                self._turn_away(turn, rules, guard.people)
                return Accepted("unknown_sender", 0)
            case Admitted(admitted) if guard.quota and not waited_seconds and _is_paced(admitted, rules):
                return self._paced(admitted, rules, guard.quota)
            case Admitted(admitted):  # what waited elsewhere was not written all at once
                return self._inbox.accept(admitted, tapped=tapped, waited_seconds=waited_seconds)

    def admits(self, turn: Turn) -> bool:
        """Whether the rules let its person in, who hears nothing of it. Raises redis.RedisError."""
        rules, guard = self._rules(turn), self._guard
        if not (rules and guard):
            return True
        standing = guard.people.standing(turn.conversation.channel, rules.ids(turn))
        return isinstance(rules.judge(turn, standing), Admitted)

    def _rules(self, turn: Turn) -> AccessRules | None:
        return self._guard.rules.get(turn.conversation.channel) if self._guard else None

    def _paced(self, turn: Turn, rules: AccessRules, quota: Quota) -> Accepted:
        """Let a turn in unless its person has sent too many; an answer to a question always, as a tap or a stop.

        What came in before is no further one, and nobody hears that it is too many.
        """
        whose = (turn.conversation.channel, next(iter(rules.ids(turn)), ""), rules.per_minute or 0)
        if quota.is_used_up(*whose) and not self._inbox.is_question_open(turn):
            if turn.addressed:
                self._inbox.notify(turn, refusal(self._voice(turn), "too_fast"))
            return Accepted("rate_limited", 0)
        accepted = self._inbox.accept(turn)
        if accepted.outcome == "new":
            quota.book(*whose)
        return accepted

    def _turn_away(self, turn: Turn, rules: AccessRules, people: People) -> None:
        """Say that they are on no list: once an hour, and again to who asks for their id."""
        channel, ids, asks = turn.conversation.channel, rules.ids(turn), asks_who(turn)
        if not asks and people.was_told(channel, ids[0]):
            return
        words = self._voice(turn)
        lines = [words.stranger()]
        if rules.pairing:
            code = people.code(channel, Waiting(ids, turn.user_name[:MAX_NAME], turn.conversation, words.language))
            lines += [words.pairing_code(code, WAIT_SECONDS)] if code else []
        if asks:
            lines.append(words.your_id(turn.user_id))
        if self._inbox.notify(turn, Reply("\n".join(lines), language=words.language, collapse=REFUSAL)):
            people.note_told(channel, ids[0])


def _is_paced(turn: Turn, rules: AccessRules) -> bool:
    """Whether it counts as one more of its person: taps and stops never do."""
    return rules.per_minute is not None and not turn.tap and not stops(turn)


class Quota:
    """What was taken of each person in the last minute; one per process."""

    def __init__(self, storage: MemoryStorage | RedisStorage) -> None:
        self._limiter = MovingWindowRateLimiter(storage)

    def is_used_up(self, channel: str, person: str, per_minute: int) -> bool:
        """Whether so many turns were booked within the last minute. Raises redis.RedisError."""
        return not self._limiter.test(RateLimitItemPerMinute(per_minute), channel, digest(person))

    def book(self, channel: str, person: str, per_minute: int) -> None:
        """One more was taken. Raises redis.RedisError."""
        self._limiter.hit(RateLimitItemPerMinute(per_minute), channel, digest(person))


def redis_quota(client: Redis, url: str, *, prefix: str = PREFIX) -> Quota:
    """The quota of all processes that share this Redis, over the connections of its client."""
    return Quota(RedisStorage(url, connection_pool=client.connection_pool, key_prefix=f"{prefix}turns"))


def memory_quota() -> Quota:
    """The quota of one process."""
    return Quota(MemoryStorage())
