"""CallContext: what the running code belongs to, such as a turn, and what it may use.

A tool, a preview and an executor do not get these values as arguments, because the author of a tool
decides its parameters. So one context variable has them. `ChannelRun` is the part that says for
whom a turn runs and what it has proposed.
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
from typing import Any, Generic, Literal, NamedTuple, TypeVar

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
from sayso.pending.approval_rule import ApprovalRule
from sayso.pending.effect import EffectStart

T = TypeVar("T")

#: Most proposals of one turn, which share a yes. People do not read more, and so do not agree to
#: more.
MAX_STEPS = 10


@dataclass
class CallContext:
    """What the running code belongs to and may use.

    Tasks and threads that the code starts share the same object. So its fields are only set at the
    beginning of an `own_context` block, before anything else shares the copy.
    """

    #: For whom the code runs; None outside a turn of a channel.
    run: ChannelRun | None = None
    #: Collects the proposals of the running call, which are in `run` too; None: nothing collects.
    proposals: list[ProposedAction] | None = None
    #: The position of the running call in its model answer, from 0: calls may run at once,
    #: but a plan has their order.
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
    """Add the conversation and the number of the turn to a log record: a filter of log handlers."""
    for name, value in _context.get().log_fields.items():
        vars(record).setdefault(name, value)
    return True


class own_context(Generic[C]):  # noqa: N801  # used like a function
    """Give a block a separate CallContext, a copy of the present one, and let it set fields.

    `with own_context(CallContext) as own: own.run = run`. `kind` is the class of the copy, at least:
    a subclass has more fields, which begin with their defaults. Each call of a tool opens such a
    block, so this is not a `contextmanager`, which takes four times as long.
    """

    __slots__ = ("_kind", "_token")
    _token: Token[CallContext]

    def __init__(self, kind: type[C]) -> None:
        self._kind = kind

    def __enter__(self) -> C:
        outer = _context.get()
        kind = self._kind
        if isinstance(outer, kind):
            kind = type(outer)
        own = kind(**vars(outer))
        self._token = _context.set(own)
        return own

    def __exit__(self, *_: object) -> None:
        _context.reset(self._token)


@contextmanager
def context_field(name: str, value: T, **others: Any) -> Iterator[T]:
    """Set one field of the CallContext for a block, and yield its value.

    `others` are further fields with their values.
    """
    with own_context(CallContext) as own:
        setattr(own, name, value)
        for other_name, other_value in others.items():
            setattr(own, other_name, other_value)
        yield value


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The yes that an action runs by."""

    action_id: str
    #: The text that the person agreed to. Under a standing yes: the preview of this call.
    preview: str
    #: The id of the person who said yes.
    by: str
    #: When they did, in Unix seconds. Under a standing yes: when the turn came in that runs the call.
    at: float
    #: The names of the people who agreed, if others than the user decided.
    agreed: tuple[str, ...] = ()
    #: The id of the action whose standing yes the call runs under, "" if the person was asked.
    standing_yes: str = ""


class Position(NamedTuple):
    """The place of a proposal in its turn. Positions sort in the order of the calls."""

    #: The number of the model answer, 0 before the first.
    answer: int
    #: The number of the call in that answer, from 0.
    call: int


@dataclass(frozen=True, slots=True)
class ProposedAction:
    """A proposal and its position in the turn."""

    action: PendingAction
    position: Position

    def to_dict(self) -> dict[str, Any]:
        """Return the proposal ready for JSON. Its closure, if it has one, is left out."""
        return {"action": self.action.to_dict(), "position": list(self.position)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProposedAction:
        """Read the result of `to_dict`.

        Raises ValueError, TypeError or KeyError on anything else.
        """
        action = PendingAction.from_dict(data["action"])
        answer, call = data["position"]
        check_proposal(action)
        if compute_args_digest(action.args) != action.args_digest:
            raise ValueError("the arguments of this proposal are not those it was made with")
        return cls(action, Position(int(answer), int(call)))


@dataclass(slots=True)
class ChannelRun:
    """One turn's run on a channel: for whom it runs, and what it has proposed so far.

    Lives for one attempt at the turn. The tools of one model answer may use it from several threads.
    """

    user_id: str
    #: The channel and the conversation; None outside of one.
    channel_id: str | None
    conversation_id: str | None
    #: How long the person may answer a proposal, in seconds.
    ttl_seconds: float
    #: The version of the parser that will read the answer.
    parser_version: str
    #: The language in which the person is asked, as a BCP 47 tag.
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
    #: Returns the rule of the policy that says who decides about a tool's actions, by the tool's
    #: name; None where no rule says it, so that the person does.
    approval: Callable[[str], ApprovalRule | None] = field(default=lambda _: None, repr=False)
    #: Returns for which later calls of a tool a yes may stand (`StandingRule.to_dict`), by the tool's
    #: name; None where it may not.
    standing: Callable[[str], dict[str, Any] | None] = field(default=lambda _: None, repr=False)
    #: Returns the tool that a yes to a call of this name runs, None if there is none.
    tool_of_yes: Callable[[str], Any] = field(default=lambda _: None, repr=False)
    #: The yes by which an action runs now; None if none does. Nothing can be proposed meanwhile.
    confirmed: Confirmation | None = None
    #: The proposals in the order of their positions.
    proposed_actions: list[ProposedAction] = field(default_factory=list)
    #: By action id, closures that run a proposal in this process.
    executors: dict[str, Executor] = field(default_factory=dict)
    #: What the person said no to in this turn. It is not proposed again before their next message.
    denied_actions: list[PendingAction] = field(default_factory=list)
    #: What waits for the person's answer while their other message is answered.
    waiting_actions: list[PendingAction] = field(default_factory=list)
    #: Whether something was proposed again that waits: then its question is shown again.
    asks_for_waiting: bool = False
    #: How many answers of the model have been worked on.
    rounds: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def proposals(self) -> list[PendingAction]:
        """Return the proposed actions in order."""
        return [proposed.action for proposed in self.proposed_actions]

    def add(self, action: PendingAction) -> None:
        """Add a proposal.

        Raises PendingActionExistsError when it is a duplicate, exceeds a limit, or needs the
        approval of other people than the proposals before it; ActionDeniedError when the person has
        just said no to it.
        """
        with self.lock:
            self._check_decided_before(action)
            self._check_same_approval(action)
            self._check_room(action)
            position = Position(self.rounds, call_context().position)
            proposed = ProposedAction(action, position)
            insort(self.proposed_actions, proposed, key=_position_of)
            collected = call_context().proposals
            if collected is not None:
                collected.append(proposed)

    def _check_decided_before(self, action: PendingAction) -> None:
        """Refuse what the person has just denied, and what they are asked already."""
        if any(is_same_effect(denied, action) for denied in self.denied_actions):
            raise ActionDeniedError(
                "the user has just said no to exactly this: do not ask again unless they ask for it anew"
            )
        if any(is_same_effect(waiting, action) for waiting in self.waiting_actions):
            self.asks_for_waiting = True
            raise PendingActionExistsError(
                f"{action.preview!r} waits for the user's answer already: do not call it again"
            )

    def _check_same_approval(self, action: PendingAction) -> None:
        """Refuse a proposal that other people decide about than about those before it.

        All proposals of a turn share one question, and one question has one rule.
        """
        for other in self.proposals:
            if other.approval != action.approval:
                raise PendingActionExistsError(
                    f"{other.preview!r} waits already, and different people decide about this "
                    "call: finish that one first, and call this again once it is decided"
                )

    def _check_room(self, action: PendingAction) -> None:
        """Refuse a second proposal of the same effect in this turn, and one too many."""
        others = self.proposals
        for other in others:
            if _effect_key(other) == _effect_key(action):
                raise PendingActionExistsError(
                    f"{other.preview!r} already waits for a yes: finish that one first"
                )
        if len(others) >= MAX_STEPS:
            raise PendingActionExistsError(
                f"{MAX_STEPS} steps already wait for a yes: finish those first"
            )
        if sum(len(other.preview) for other in [*others, action]) > MAX_PREVIEW_CHARS:
            raise PendingActionExistsError(
                "the open question is already as long as it may be: finish it first"
            )

    def restore(self, proposed: ProposedAction) -> None:
        """Add a proposal of an earlier attempt at this turn, addressed to the user of this run."""
        action = replace(
            proposed.action,
            user_id=self.user_id,
            channel_id=self.channel_id,
            conversation_id=self.conversation_id,
        )
        restored = replace(proposed, action=action)
        with self.lock:
            self.rounds = max(self.rounds, proposed.position.answer)
            insort(self.proposed_actions, restored, key=_position_of)


_position_of = attrgetter("position")


def _effect_key(action: PendingAction) -> tuple[str, str, str]:
    """Return what tells the effects of one turn apart.

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
