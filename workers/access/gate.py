"""AccessControl: applies a channel's access rules and rate limit in front of the inbox."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sayso.channels.i18n.texts import TextsForTurn
from sayso.channels.types import Reply, Turn
from sayso.workers.access.people import WAIT_SECONDS, People, Waiting
from sayso.workers.access.rules import (
    AccessDecision,
    AccessRules,
    Admitted,
    Ignored,
    UnknownSender,
    asks_for_id,
)
from sayso.workers.mailbox import REFUSAL, Accepted, GuardedInbox, TurnStatus, refusal

if TYPE_CHECKING:
    from sayso.workers.access.quota import Quota

log = logging.getLogger(__name__)

#: Characters of an unknown sender's name that an operator sees.
MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """The access rules of each channel that has some, what operators decided about people, and the rate limit."""

    rules: Mapping[str, AccessRules]
    people: People
    quota: Quota | None = None


class AccessControl:
    """Accepts turns by the access rules of their channel; one per process.

    A channel without rules costs nothing here. With rules, the sender is looked up first; while Redis cannot answer, no
    turn is accepted.
    """

    def __init__(self, inbox: GuardedInbox, texts_for: TextsForTurn, config: AccessConfig | None = None) -> None:
        self._inbox = inbox
        self._texts_for = texts_for
        self._config = config

    def ignores(self, turn: Turn) -> str:
        """Return why the configuration alone makes the bot ignore a turn, "" if it does not."""
        rules = self._rules(turn)
        return rules.ignores(turn) if rules else ""

    def judge(self, turn: Turn) -> AccessDecision:
        """Return what the access rules decide about a turn. Nothing is stored or sent. Raises redis.RedisError."""
        rules, config = self._rules(turn), self._config
        if not (rules and config):
            return Admitted(turn)
        return rules.judge(turn, partial(config.people.decision, turn.conversation.channel))

    def turn_status(self, turn: Turn) -> TurnStatus:
        """Return the status of a turn in the mailbox. Raises redis.RedisError."""
        return self._inbox.turn_status(turn)

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Accept a turn, or tell its sender why not if they may know. Raises redis.RedisError when nothing was
        promised.
        """
        rules, config = self._rules(turn), self._config
        if not (rules and config):
            return self._inbox.accept(turn, tapped=tapped, waited_seconds=waited_seconds)
        match self.judge(turn):
            case Ignored(reason):
                log.info("turn.ignored", extra={"conversation": turn.conversation.id, "reason": reason})
                return Accepted("ignored", 0)
            case UnknownSender():
                self._refuse_unknown_sender(turn, rules, config.people)
                return Accepted("unknown_sender", 0)
            case Admitted(admitted) if config.quota and not waited_seconds and _is_rate_limited(admitted, rules):
                return self._accept_within_limit(admitted, rules, config.quota)
            case Admitted(admitted):  # turns that waited elsewhere were not sent all at once
                return self._inbox.accept(admitted, tapped=tapped, waited_seconds=waited_seconds)

    def admits(self, turn: Turn) -> bool:
        """Return whether the rules admit the sender of a turn, without telling them. Raises redis.RedisError."""
        return isinstance(self.judge(turn), Admitted)

    def _rules(self, turn: Turn) -> AccessRules | None:
        return self._config.rules.get(turn.conversation.channel) if self._config else None

    def _accept_within_limit(self, turn: Turn, rules: AccessRules, quota: Quota) -> Accepted:
        """Accept a turn unless its sender has sent too many. An answer to a question is always accepted, as are taps
        and stops.

        A turn that was received before does not count again, and its sender is not told of the limit.
        """
        counter = (turn.conversation.channel, next(iter(rules.ids(turn)), ""), rules.per_minute or 0)
        if quota.is_used_up(*counter) and not self._inbox.is_question_open(turn):
            if turn.addressed:
                self._inbox.notify(turn, refusal(self._texts_for(turn), "too_fast"))
            return Accepted("rate_limited", 0)
        accepted = self._inbox.accept(turn)
        if accepted.outcome == "new":
            quota.book(*counter)
        return accepted

    def _refuse_unknown_sender(self, turn: Turn, rules: AccessRules, people: People) -> None:
        """Tell an unknown sender that they are on no list: once an hour, and whenever they ask for their id."""
        channel, ids, asks = turn.conversation.channel, rules.ids(turn), asks_for_id(turn)
        if not asks and people.was_notified(channel, ids[0]):
            return
        texts = self._texts_for(turn)
        lines = [texts.stranger()]
        if rules.pairing:
            code = people.code(channel, Waiting(ids, turn.user_name[:MAX_NAME], turn.conversation, texts.language))
            lines += [texts.pairing_code(code, WAIT_SECONDS)] if code else []
        if asks:
            lines.append(texts.your_id(turn.user_id))
        if self._inbox.notify(turn, Reply("\n".join(lines), language=texts.language, collapse=REFUSAL)):
            people.record_notified(channel, ids[0])


def _is_rate_limited(turn: Turn, rules: AccessRules) -> bool:
    """Return whether the turn counts against the sender's limit. Taps and stops do not."""
    return rules.per_minute is not None and not turn.tap and not turn.is_stop
