"""CallContext: what the code that runs now belongs to, and ChannelRun, one turn's run on a channel.

A tool, a preview and an executor are called without these as arguments: their signature is their
author's. So they lie in one context variable.
"""

from __future__ import annotations

import logging
import threading
from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

from sayso.pending.action import (
    MAX_PREVIEW_CHARS,
    ActionDeniedError,
    After,
    Executor,
    OtherMessage,
    PendingAction,
    PendingActionExistsError,
    check_proposal,
    compute_args_digest,
)
from sayso.pending.effect import EffectStart

T = TypeVar("T")

#: Most proposals of one turn that share a yes. People do not read more,
#: and so do not agree to more.
MAX_STEPS = 10


@dataclass
class CallContext:
    """What the code that runs now belongs to and may use, in one context variable.

    Tasks and threads inherit it.

    Its fields are set only where the block of an `own_context` begins: afterwards, others share it.
    """

    run: ChannelRun | None = None
    #: Where proposals are collected, besides in their run.
    proposals: list[ProposedAction] | None = None
    #: The position of the running call in its model answer: calls may run at once,
    #: but a plan keeps their order.
    position: int = 0
    #: Where the effect of the call that runs now begins; None if it began with the call.
    effect: EffectStart | None = None
    #: The key of the effect that runs now, for services that support idempotency; "" without one.
    idempotency_key: str = ""
    #: What names the turn in log lines: conversation and number of the turn. Empty outside a turn.
    log_fields: Mapping[str, Any] = field(default_factory=dict)


C = TypeVar("C", bound=CallContext)
_context: ContextVar[CallContext] = ContextVar("sayso_call_context", default=CallContext())  # noqa: B039  # see there


def call_context() -> CallContext:
    """Return the context of the code that runs now."""
    return _context.get()


def add_log_fields(record: logging.LogRecord) -> bool:
    """Add the conversation and the number of the turn to a log record of a turn:
    a filter for log handlers.
    """
    for name, value in _context.get().log_fields.items():
        vars(record).setdefault(name, value)
    return True


class own_context(Generic[C]):  # noqa: N801  # used like a function
    """Give a block a copy of the CallContext to set fields of:
    `with own_context(CallContext) as own: own.run = run`.

    A subclass as `kind` has more fields. Not a `contextmanager`, which takes four times as long.
    """

    __slots__ = ("_kind", "_token")
    _token: Token[CallContext]

    def __init__(self, kind: type[C]) -> None:
        self._kind = kind

    def __enter__(self) -> C:
        outer = _context.get()
        if isinstance(outer, self._kind):
            kind = type(outer)
        else:
            kind = self._kind
        own = kind(**vars(outer))
        self._token = _context.set(own)
        return own

    def __exit__(self, *_: object) -> None:
        _context.reset(self._token)


@contextmanager
def context_field(name: str, value: T, **others: Any) -> Iterator[T]:
    """Set one field of the CallContext, or several, for a block,
    which yields the value of the first.
    """
    with own_context(CallContext) as own:
        for each, given in {name: value, **others}.items():
            setattr(own, each, given)
        yield value


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The yes that an action runs by: id and preview of the action, who confirmed it, and when,
    in Unix seconds.
    """

    action_id: str
    preview: str
    by: str
    at: float


@dataclass(frozen=True, slots=True)
class ProposedAction:
    """A proposal and its position in the turn: the number of the model's answer,
    and of the call in that answer.
    """

    action: PendingAction
    at: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the proposal ready for JSON. Its closure, if it has one, is left out."""
        return {"action": self.action.to_dict(), "at": list(self.at)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProposedAction:
        """Read the result of `to_dict`.

        Raises ValueError, TypeError or KeyError on anything else.
        """
        action = PendingAction.from_dict(data["action"])
        (round_, call) = data["at"]
        check_proposal(action)
        if compute_args_digest(action.args) != action.args_digest:
            raise ValueError("the arguments of this proposal are not those it was made with")
        return cls(action, (int(round_), int(call)))


@dataclass(slots=True)
class ChannelRun:
    """One turn's run on a channel: the scope of its proposals, and the proposals so far."""

    user_id: str
    channel_id: str | None
    conversation_id: str | None
    ttl_seconds: float
    parser_version: str
    language: str = ""
    #: Other ids of the same person.
    aliases: tuple[str, ...] = ()
    user_name: str = ""
    #: Returns the role of the person.
    role: Callable[[], str] = field(default=lambda: "", repr=False)
    #: Returns what follows the outcome of a tool's actions, by the tool's name;
    #: "" where only the channel says.
    after: Callable[[str], After | Literal[""]] = field(default=lambda _: "", repr=False)
    #: Returns what another message does to a question of a tool, by the tool's name;
    #: "" where only the channel says.
    other_message: Callable[[str], OtherMessage | Literal[""]] = field(
        default=lambda _: "", repr=False
    )
    #: Returns the tool that a yes to a call of this name runs, None if there is none.
    tool_of_yes: Callable[[str], Any] = field(default=lambda _: None, repr=False)
    #: The yes by which an action runs now. Nothing can be proposed meanwhile.
    confirmed: Confirmation | None = None
    #: The proposals in the order of their positions.
    proposed: list[ProposedAction] = field(default_factory=list)
    executors: dict[str, Executor] = field(default_factory=dict)
    #: What the person said no to in this turn. It is not proposed again before their next message.
    denied: list[PendingAction] = field(default_factory=list)
    #: What waits for the person's answer while their other message is answered.
    waiting: list[PendingAction] = field(default_factory=list)
    #: Whether something was proposed again that waits.
    asks_for_waiting: bool = False
    #: How many answers of the model have been worked on.
    rounds: int = 0
    #: The tools of one model answer run in threads of their own.
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def proposals(self) -> list[PendingAction]:
        """Return the proposed actions in order."""
        return [proposed.action for proposed in self.proposed]

    def add(self, action: PendingAction) -> None:
        """Add a proposal.

        Raises PendingActionExistsError when it is a duplicate or exceeds a limit, and
        ActionDeniedError when the person has just said no to it.
        """
        with self.lock:
            if any(is_same_effect(denied, action) for denied in self.denied):
                raise ActionDeniedError(
                    "the user has just said no to exactly this: do not ask again unless they ask for it anew"
                )
            if any(is_same_effect(waiting, action) for waiting in self.waiting):
                self.asks_for_waiting = True
                raise PendingActionExistsError(
                    f"{action.preview!r} waits for the user's answer already: do not call it again"
                )
            others = self.proposals
            same = [other for other in others if _effect_key(other) == _effect_key(action)]
            if same:
                raise PendingActionExistsError(
                    f"{same[0].preview!r} already waits for a yes: finish that one first"
                )
            if len(others) >= MAX_STEPS:
                raise PendingActionExistsError(
                    f"{MAX_STEPS} steps already wait for a yes: finish those first"
                )
            if sum(len(other.preview) for other in [*others, action]) > MAX_PREVIEW_CHARS:
                raise PendingActionExistsError(
                    "the open question is already as long as it may be: finish it first"
                )
            proposed = ProposedAction(action, (self.rounds, call_context().position))
            insort(self.proposed, proposed, key=_position)
            collected = call_context().proposals
            if collected is not None:
                collected.append(proposed)

    def restore(self, proposed: ProposedAction) -> None:
        """Add a proposal of an earlier attempt at this turn, addressed to the user of this run."""
        action = replace(
            proposed.action,
            user_id=self.user_id,
            channel_id=self.channel_id,
            conversation_id=self.conversation_id,
        )
        with self.lock:
            self.rounds = max(self.rounds, proposed.at[0])
            insort(self.proposed, replace(proposed, action=action), key=_position)


_position = attrgetter("at")


def _effect_key(action: PendingAction) -> tuple[str, str, str]:
    """Return what tells effects apart.

    The preview counts too: tools need not record their arguments.
    """
    return action.kind, action.args_digest, action.preview


def is_same_effect(one: PendingAction, other: PendingAction) -> bool:
    """Return whether two actions would do the same.

    Without recorded arguments their previews must be the same, too:
    tools need not record arguments.
    """
    if (one.kind, one.args_digest) != (other.kind, other.args_digest):
        return False
    return bool(one.args) or one.preview == other.preview
