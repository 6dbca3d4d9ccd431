"""AccessControl: applies a channel's access rules and rate limit before the mailbox gets a turn.

The rules of a channel (AccessRules) come from the configuration: who may talk, in which chats, and
how often. Operators also approve and block people while the bot runs (`workers/people.py`). `judge`
says what becomes of a turn: it is admitted, ignored, or from an unknown sender.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

from redis import Redis

from sayso.channels.base import Channel, FollowsMoves, KeepsFirstAddress, RecognizesPeople
from sayso.channels.types import Reply, Turn, compared_id, digest
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.cluster import ClusterClient, with_redis_errors
from sayso.workers.mailbox import REFUSAL, SEEN_MS, Accepted, RedisMailbox, TurnStatus, refusal
from sayso.workers.people import WAIT_SECONDS, OperatorDecision, RedisPeople, WaitingSender

if TYPE_CHECKING:
    from limits.storage import MemoryStorage, RedisStorage
    from limits.strategies import MovingWindowRateLimiter

    from sayso.channels.i18n.texts import TextsForTurn

log = logging.getLogger(__name__)

#: How many characters of an unknown sender's name an operator sees.
MAX_NAME = 100
#: Which messages in groups are for the bot: `mention`, those that address it or belong to a
#: conversation with it; `always`, all; `never`, none.
Groups = Literal["mention", "always", "never"]
_COMMAND = re.compile(r"\s*/(?:whoami|start)(?:@\w+)?(?:\s|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The turn is for the bot, and its sender may talk."""

    #: The turn to accept. It may be marked as addressed to the bot.
    turn: Turn


@dataclass(frozen=True, slots=True)
class Ignored:
    """The turn is not for the bot, or its sender may not talk. Nothing is stored or sent."""

    #: Why, for the log.
    reason: str


@dataclass(frozen=True, slots=True)
class UnknownSender:
    """The sender is on no list of who may talk, and may get a notice. Nothing is stored."""


AccessDecision = Admitted | Ignored | UnknownSender


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Who may talk on one channel, in which chats, and how often. Ids may be in any spelling."""

    #: The ids of the people who may talk, None for everyone (with `pairing`: for no one yet).
    allow: Collection[str] | None = None
    #: The ids of people who may never talk.
    block: Collection[str] = ()
    #: Whether unknown senders get a code by which an operator can approve them.
    pairing: bool = False
    groups: Groups = "mention"
    #: The ids of the chats in which the bot answers, None for all chats.
    chats: Collection[str] | None = None
    #: Turns of one person a minute, None for no limit.
    per_minute: int | None = None
    #: What ids may begin with or lack, such as `whatsapp:` before a phone number; "" for nothing.
    id_prefix: str = ""

    def __post_init__(self) -> None:
        for name in ("allow", "block", "chats"):
            ids = getattr(self, name)
            if ids is not None:
                object.__setattr__(self, name, frozenset(map(self.spelled, ids)))

    def spelled(self, name: str) -> str:
        """Return an id in the form in which ids are compared."""
        return compared_id(name, prefix=self.id_prefix)

    def ids(self, turn: Turn) -> tuple[str, ...]:
        """Return the ids of the turn's sender, the user id first.

        Where ids may have a prefix, as on WhatsApp, the sending address is one of them.
        """
        names = [turn.user_id, *turn.aliases]
        if self.id_prefix:
            names.append(turn.conversation.chat)
        spelled = [self.spelled(name) for name in names]
        return tuple(dict.fromkeys(name for name in spelled if name))

    def ignores(self, turn: Turn) -> str:
        """Return why the configuration alone makes the bot ignore the turn, "" if it does not.

        "blocked": its sender; "chat": the bot does not answer in this chat; "group": it does not
        answer in groups.
        """
        if any(name in self.block for name in self.ids(turn)):
            return "blocked"

        chats = {self.spelled(chat) for chat in (turn.conversation.chat, turn.chat_now)}
        # A private chat has all addresses of its person.
        if self.id_prefix:
            chats |= set(self.ids(turn))
        if self.chats is not None and chats.isdisjoint(self.chats):
            return "chat"
        # A message that is not for the bot can only come from a group, even if the platform does not
        # say so.
        if self.groups == "never" and (turn.in_group or not turn.addressed):
            return "group"
        return ""

    def judge(
        self, turn: Turn, find_decision: Callable[[Sequence[str]], OperatorDecision] = lambda _: ""
    ) -> AccessDecision:
        """Return what becomes of a turn.

        `find_decision`: returns what an operator decided about a person with these ids, "" for
        nothing. It is called only if the configuration does not ignore the turn.
        """
        reason = self.ignores(turn)
        if reason:
            return Ignored(reason)

        ids = self.ids(turn)
        operator_decision = find_decision(ids)
        if operator_decision == "blocked":
            return Ignored("blocked")

        is_listed = any(name in (self.allow or ()) for name in ids)
        lets_all_in = self.allow is None and not self.pairing
        if not (lets_all_in or is_listed or operator_decision == "approved"):
            # Unknown senders get an answer only to a message for the bot: not to a message between
            # others, not to an edit, and not without an id by which an operator could admit them.
            speaks_to_bot = turn.addressed and turn.kind == "message" and ids
            if speaks_to_bot:
                return UnknownSender()
            return Ignored("unknown_sender")

        if self.groups == "always":
            turn = replace(turn, addressed=True)
        return Admitted(turn)


def asks_for_id(turn: Turn) -> bool:
    """Return whether the user asks for their id (/whoami), or starts a chat (/start)."""
    return _COMMAND.match(turn.text) is not None


def role_names(users: Iterable[tuple[str, str]], *, prefix: str) -> dict[str, str]:
    """Return the role of each user id. Where ids may have a prefix, both with and without it.

    `users`: ids with their roles, in any spelling. `prefix`: "" where ids have none.
    """
    roles = dict(users)
    if not prefix:
        return roles
    bare = {name.removeprefix(prefix): role for name, role in roles.items()}
    prefixed = {f"{prefix}{name}": role for name, role in bare.items()}
    return {**prefixed, **bare, **roles}


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """What access control applies."""

    #: The access rules, by channel. Channels without rules are left out.
    rules: Mapping[str, AccessRules]
    #: What operators decided about people.
    people: RedisPeople
    #: What counts the turns of each person, None where no channel limits them.
    quota: Quota | None = None


class AccessControl:
    """Accepts turns by the access rules of their channel. One per process.

    On a channel without rules, each turn goes to the mailbox at once. With rules, the sender is
    looked up in Redis first, so while Redis is away no turn of that channel is accepted.
    """

    #: How many seconds after its arrival an answered turn is still known.
    remembered_seconds = SEEN_MS / 1000

    def __init__(
        self,
        inbox: RedisMailbox,
        texts_for: TextsForTurn,
        config: AccessConfig | None = None,
        *,
        channels: Mapping[str, Channel] | None = None,
    ) -> None:
        """`config`: None where no channel has rules. `channels`: the adapters, by name. Some of
        them know the chat that a conversation began in, or the ids of a person.
        """
        self._inbox = inbox
        self._texts_for = texts_for
        self._config = config
        self._channels = channels or {}
        # Looked up once: the check of a protocol costs as much as half a signature, and each
        # webhook would pay it.
        self._people: dict[str, RecognizesPeople] = {
            name: channel
            for name, channel in self._channels.items()
            if isinstance(channel, RecognizesPeople)
        }
        self._address_keepers: dict[str, KeepsFirstAddress] = {
            name: channel
            for name, channel in self._channels.items()
            if isinstance(channel, KeepsFirstAddress)
        }

    def ignores(self, turn: Turn) -> str:
        """Return why the configuration alone makes the bot ignore a turn, "" if it does not."""
        rules = self._rules(turn)
        if rules is None:
            return ""
        reason = rules.ignores(turn)
        # The list of chats may name another address of the chat, which only Redis knows.
        if reason == "chat" and self._may_have_another_address(turn):
            return ""
        return reason

    def judge(self, turn: Turn) -> AccessDecision:
        """Return what the access rules decide about a turn.

        Nothing is stored or sent. Raises redis.RedisError.
        """
        rules = self._rules(turn)
        config = self._config
        if not (rules and config):
            return Admitted(turn)
        return rules.judge(turn, partial(config.people.decision, turn.conversation.channel))

    def turn_status(self, turn: Turn) -> TurnStatus:
        """Return the status of a turn in the mailbox. Raises redis.RedisError."""
        return self._inbox.turn_status(turn)

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Accept a turn, or tell its sender why not if they may know.

        The arguments are those of `RedisMailbox.accept`. Raises redis.RedisError: nothing was
        stored.

        The conversation of a group that has moved is looked up here, behind the spool: while Redis
        is away, a turn waits under the id that its chat has now.
        """
        turn = self._at_first_address(turn)
        rules = self._rules(turn)
        config = self._config
        if not (rules and config):
            return self._store(turn, tapped=tapped, waited_seconds=waited_seconds)

        # Nothing is stored of people who may not talk. So the sender is only looked up here, and
        # `_store`, which gets the turn as it came in, stores their ids.
        received = turn
        turn = self._recognized(received)
        match self.judge(turn):
            case Ignored(reason):
                ids = {"conversation": turn.conversation.id, "event": turn.event_hash}
                log.info("turn.ignored", extra={**ids, "reason": reason})
                return Accepted("ignored", 0)
            case UnknownSender():
                self._refuse_unknown_sender(received, turn, rules, config.people)
                return Accepted("unknown_sender", 0)
            case Admitted(admitted):
                received = replace(received, addressed=admitted.addressed)
                # A tap answers a question, and /stop must always be possible. Turns that waited
                # elsewhere, such as in the spool, were not sent all at once.
                is_limited = rules.per_minute is not None and not (
                    admitted.tap or admitted.is_stop or waited_seconds
                )
                if config.quota and is_limited:
                    return self._accept_within_limit(received, admitted, rules, config.quota)
                return self._store(received, tapped=tapped, waited_seconds=waited_seconds)

    def why_not(self, turn: Turn) -> str:
        """Return why the rules do not admit the sender of a turn, "" if they do.

        Raises redis.RedisError.
        """
        match self.judge(turn):
            case Ignored(reason):
                return reason
            case UnknownSender():
                return "on no list of who may talk"
        return ""

    def _at_first_address(self, turn: Turn) -> Turn:
        """Return the turn under the address that its conversation began with."""
        may_have_another = turn.in_group or turn.conversation.thread
        keeper = self._address_keepers.get(turn.conversation.channel)
        if keeper is None or not may_have_another:
            return turn
        return keeper.at_first_address(turn)

    def _recognized(self, turn: Turn, *, briefly: bool = False) -> Turn:
        """Return the turn under the id that everything of its sender is stored under.

        The sender's ids are noted for an hour with `briefly`, and otherwise not at all.
        """
        people = self._people.get(turn.conversation.channel)
        if people is None:
            return turn
        return people.recognize(turn, store=False, briefly=briefly)

    def _store(self, received: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Put a turn into the mailbox, and note its sender's ids where people have several."""
        people = self._people.get(received.conversation.channel)
        sender = people.sender(received) if people else None
        if sender is None:
            return self._inbox.accept(received, tapped=tapped, waited_seconds=waited_seconds)
        return self._inbox.accept_from(sender, tapped=tapped, waited_seconds=waited_seconds)

    def _may_have_another_address(self, turn: Turn) -> bool:
        """Return whether the chat of a turn may have an address that the turn does not name."""
        if turn.conversation.channel in self._people:
            return True
        return turn.in_group and isinstance(self._channel_of(turn), FollowsMoves)

    def _channel_of(self, turn: Turn) -> Channel | None:
        return self._channels.get(turn.conversation.channel)

    def _rules(self, turn: Turn) -> AccessRules | None:
        if self._config:
            return self._config.rules.get(turn.conversation.channel)
        return None

    def _accept_within_limit(
        self,
        received: Turn,
        turn: Turn,
        rules: AccessRules,
        quota: Quota,
    ) -> Accepted:
        """Accept a turn unless its sender has sent too many. Answers to a question always pass.

        `received`: the turn as it came in. `turn`: the same of the recognized sender. A turn that
        was received before does not count again, and its sender is not told of the limit.
        """
        channel = turn.conversation.channel
        person = next(iter(rules.ids(turn)), "")
        per_minute = rules.per_minute or 0
        is_used_up = quota.is_used_up(channel, person, per_minute)
        if is_used_up and not self._inbox.is_question_open(turn):
            # A message between other people gets no answer, so this one gets none either.
            if turn.addressed:
                self._inbox.notify(turn, refusal(self._texts_for(turn), "too_fast"))
            return Accepted("rate_limited", 0)
        accepted = self._store(received)
        if accepted.outcome == "new":
            quota.book(channel, person, per_minute)
        return accepted

    def _refuse_unknown_sender(
        self,
        received: Turn,
        turn: Turn,
        rules: AccessRules,
        people: RedisPeople,
    ) -> None:
        """Tell an unknown sender that they are on no list: once an hour, and if they ask for their
        id.

        Where the channel pairs people, they get a code by which an operator can approve them.
        `received`: the turn as it came in. `turn`: the same of the recognized sender.
        """
        channel = turn.conversation.channel
        ids = rules.ids(turn)
        asks = asks_for_id(turn)
        if not asks and people.was_notified(channel, ids[0]):
            return
        # The notice goes to the number that they wrote from, which must be known until it is sent.
        self._recognized(received, briefly=True)
        texts = self._texts_for(turn)
        lines = [texts.stranger()]
        if rules.pairing:
            waiting = WaitingSender(
                ids, turn.user_name[:MAX_NAME], turn.conversation, texts.language
            )
            code = people.code(channel, waiting)
            if code:
                lines.append(texts.pairing_code(code, WAIT_SECONDS))
        if asks:
            lines.append(texts.your_id(turn.user_id))

        notice = Reply("\n".join(lines), language=texts.language, collapse=REFUSAL)
        if self._inbox.notify(turn, notice):
            people.record_notified(channel, ids[0])


class Quota:
    """Counts the turns of each person in the last minute. One per process.

    The library `limits` is imported only where a channel has such a limit.
    """

    def __init__(self, open_storage: Callable[[], MemoryStorage | RedisStorage]) -> None:
        """`open_storage`: opens where the turns are counted. It is called with the first turn,
        since the storage of a cluster connects at once.
        """
        from limits import RateLimitItemPerMinute

        self._per_minute = RateLimitItemPerMinute
        self._open_storage = open_storage

    def is_used_up(self, channel: str, person: str, per_minute: int) -> bool:
        """Return whether a person has sent `per_minute` turns on a channel within the last minute.

        Raises redis.RedisError.
        """
        limit = self._per_minute(per_minute)
        return not with_redis_errors(lambda: self._limiter.test(limit, channel, digest(person)))

    def book(self, channel: str, person: str, per_minute: int) -> None:
        """Count one more turn of a person. Raises redis.RedisError."""
        limit = self._per_minute(per_minute)
        with_redis_errors(lambda: self._limiter.hit(limit, channel, digest(person)))

    @cached_property
    def _limiter(self) -> MovingWindowRateLimiter:
        from limits.strategies import MovingWindowRateLimiter

        return MovingWindowRateLimiter(self._open_storage())


def redis_quota(client: Redis, url: str, *, prefix: str = PREFIX) -> Quota:
    """Return the quota that all processes with this Redis share.

    It uses the connections of the client, on a cluster separate ones.
    """
    from limits.storage import RedisClusterStorage, RedisStorage

    key_prefix = f"{prefix}turns"
    if not isinstance(client, ClusterClient):
        pool = client.connection_pool
        return Quota(partial(RedisStorage, url, connection_pool=pool, key_prefix=key_prefix))

    # The library decodes what it reads.
    options = client.url.client_options()
    options.pop("decode_responses", None)
    cluster_url = f"redis+cluster://{client.url}"
    return Quota(partial(RedisClusterStorage, cluster_url, key_prefix=key_prefix, **options))


def memory_quota() -> Quota:
    """Return a quota that only this process counts, for programs without Redis."""
    from limits.storage import MemoryStorage

    return Quota(MemoryStorage)
