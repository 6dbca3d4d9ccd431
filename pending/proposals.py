"""Proposing inside a tool; plans and undo."""

from __future__ import annotations

import logging
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from secrets import randbelow
from typing import Any, Generic, NamedTuple, TypeVar

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Scope, random_id
from sayso.pending.action import (
    MAX_PREVIEW_CHARS,
    Executor,
    PendingAction,
    PendingActionExistsError,
    check_proposal,
    compute_args_digest,
    exact,
)
from sayso.pending.context import Confirmation, Person, ToolContext
from sayso.pending.executors import UNDO_PREFIX, ExecutorFactory, undo_kind
from sayso.pending.repository import StoredAction, seal_action
from sayso.pending.signing import ActionSigner
from sayso.pending.turns.change import NewAction

#: The kind of a plan's own record, which no tool can have. It has no effect itself: its steps do.
PLAN_KIND = "sayso:plan"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one yes is asked for: an action, or a plan with its steps in order."""

    head: PendingAction
    steps: tuple[PendingAction, ...] = ()

    def arms(self, seal: ActionSigner, user: str, *, live: bool = True) -> tuple[NewAction, ...]:
        """All its records as they are stored, the head last. One that is not `live` is reached by its button only."""
        steps = tuple(seal_action(step, seal, user=user, live=False) for step in self.steps)
        names = tuple(step.pending_action_id for step in self.steps)
        return (*steps, seal_action(self.head, seal, user=user, live=live, steps=names))

    def prompt_in(self, closing: str) -> str:
        """Return what a tool says below its preview in the closing words of a run; "" where it says nothing."""
        previews = (self.head.preview, *(step.preview for step in self.steps))
        ended = [closing.removeprefix(preview) for preview in previews if closing.startswith(f"{preview}\n\n")]
        return min(ended, key=len).strip() if ended else ""


def propose(actions: Sequence[PendingAction]) -> Proposal | None:
    """One proposal of all that a turn proposed; None when that was nothing."""
    if len(actions) < 2:
        return Proposal(actions[0]) if actions else None
    plan_id = random_id(11)
    steps = tuple(replace(action, plan=plan_id, code="") for action in actions)
    args = {"steps": [_listed(step) for step in steps]}
    head = replace(
        actions[0],
        pending_action_id=plan_id,
        kind=PLAN_KIND,
        preview=texts_for(actions[0].language).plan([step.preview for step in steps]),
        args=args,
        args_digest=compute_args_digest(args),
        ttl_seconds=min(step.ttl_seconds for step in steps),
        code=next((action.code for action in actions if action.code), ""),
        idempotent=False,
        version="",
    )
    return Proposal(head, steps)


def step_names(plan: PendingAction) -> tuple[str, ...]:
    """The ids of a plan's steps, in order."""
    return tuple(step["id"] for step in plan.args["steps"])


def is_step(plan: PendingAction, number: int, stored: StoredAction | None) -> bool:
    """Whether this record is the step the user agreed to: sealed for this plan, at this place, with these arguments."""
    return (
        stored is not None
        and stored.action.plan == plan.pending_action_id
        and _listed(stored.action) == plan.args["steps"][number]
    )


def is_undo(action: PendingAction) -> bool:
    """Whether the action takes back others."""
    kinds = [step["kind"] for step in action.args["steps"]] if action.kind == PLAN_KIND else [action.kind]
    return any(kind.startswith(UNDO_PREFIX) for kind in kinds)


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that took effect, and what its tool returned."""

    action: PendingAction
    result: str = ""


def undo_of(effects: Sequence[Effect], seconds: float) -> Proposal | None:
    """The proposal that undoes these effects, the last one first."""
    return propose([_undo(effect, seconds) for effect in reversed(effects)])


def _undo(effect: Effect, seconds: float) -> PendingAction:
    action = effect.action
    args = {"of": action.pending_action_id, "args": action.args, "result": effect.result}
    return PendingAction(
        user_id=action.user_id,
        kind=undo_kind(action.kind),
        preview=texts_for(action.language).undo(action.preview),
        args=args,
        channel_id=action.channel_id,
        conversation_id=action.conversation_id,
        ttl_seconds=seconds,
        requested_at=action.requested_at,
        parser_version=action.parser_version,
        version=action.version,
        language=action.language,
    )


def _listed(step: PendingAction) -> dict[str, str]:
    return {"id": step.pending_action_id, "kind": step.kind, "digest": step.args_digest}


log = logging.getLogger(__name__)


F = TypeVar("F", bound=ExecutorFactory)
T = TypeVar("T")


#: An id that is a phone number, as Twilio and Telegram write it.
_PHONE = re.compile(r"(?:whatsapp:)?(\+[0-9]{6,15})")


#: Proposals of one turn that may share a yes: more than a person reads is not consent.
MAX_STEPS = 10


@dataclass(frozen=True, slots=True)
class Proposed:
    """A proposal, and where in its turn it was made: in which answer of the model, and by which of its calls."""

    action: PendingAction
    at: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        """The proposal as JSON-ready data; its closure, if it has one, stays behind."""
        return {"action": self.action.to_dict(), "at": list(self.at)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Proposed:
        """The proposal that `to_dict` wrote. Raises ValueError, TypeError or KeyError on anything else."""
        action, (round_, call) = PendingAction.from_dict(data["action"]), data["at"]
        check_proposal(action)
        if compute_args_digest(action.args) != action.args_digest:
            raise ValueError("the arguments of this proposal are not those it was made with")
        return cls(action, (int(round_), int(call)))


@dataclass(slots=True)
class ChannelRun:
    """One turn's run on a channel: the scope that proposals belong to, and what was proposed so far, in order.

    `aliases` are other ids of the same person.
    """

    user_id: str
    channel_id: str | None
    conversation_id: str | None
    ttl_seconds: float
    parser_version: str
    language: str = ""
    aliases: tuple[str, ...] = ()
    user_name: str = ""
    #: Says the role of whoever speaks.
    role: Callable[[], str] = field(default=lambda: "", repr=False)
    #: The yes that runs an action now: nothing is proposed meanwhile.
    confirmed: Confirmation | None = None
    proposals: list[PendingAction] = field(default_factory=list)
    executors: dict[str, Executor] = field(default_factory=dict)
    #: Answers of the model that were worked on, and of each proposal in which it was made and where.
    rounds: int = 0
    places: list[tuple[int, int]] = field(default_factory=list, repr=False)
    #: Tools of one model response run in threads of their own.
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, action: PendingAction) -> None:
        """Another proposal of this turn. Raises PendingActionExistsError when it is one too many, or one twice."""
        with self.lock:
            same = [other for other in self.proposals if _effect(other) == _effect(action)]
            if same:
                raise PendingActionExistsError(f"{same[0].preview!r} already waits for a yes: finish that one first")
            if len(self.proposals) >= MAX_STEPS:
                raise PendingActionExistsError(f"{MAX_STEPS} steps already wait for a yes: finish those first")
            if sum(len(other.preview) for other in [*self.proposals, action]) > MAX_PREVIEW_CHARS:
                raise PendingActionExistsError("what waits for a yes already is long to read: finish that first")
            proposed = Proposed(action, (self.rounds, _context.get().position))
            self._insert(proposed)
            made = _context.get().proposals
            if made is not None:
                made.append(proposed)

    def restore(self, proposed: Proposed) -> None:
        """What an earlier attempt at this turn proposed: the same action, and it is this run's person who is asked."""
        action = replace(
            proposed.action, user_id=self.user_id, channel_id=self.channel_id, conversation_id=self.conversation_id
        )
        with self.lock:
            self.rounds = max(self.rounds, proposed.at[0])
            self._insert(replace(proposed, action=action))

    def _insert(self, proposed: Proposed) -> None:
        index = bisect_right(self.places, proposed.at)
        self.places.insert(index, proposed.at)
        self.proposals.insert(index, proposed.action)


class ProposalContext(NamedTuple):
    """What `stash_pending` knows of the code that calls it. Tasks and threads inherit it."""

    run: ChannelRun | None = None
    #: The proposals collected in this block.
    proposals: list[Proposed] | None = None
    #: The position of the running call in its model answer: calls may run at once, but a plan has their order.
    position: int = 0
    #: Name of the running tool, and whether it is read-only; None for one that declares its proposals, and outside.
    undeclared: tuple[str, bool] | None = None


_OUTSIDE = ProposalContext()

_context: ContextVar[ProposalContext] = ContextVar("sayso_proposals", default=_OUTSIDE)


def set_position(position: int) -> None:
    """Set the position of the call that runs now in its model answer, in this task."""
    _context.set(_context.get()._replace(position=position))


class _provided(Generic[T]):  # noqa: N801  # used like a function
    """`with _provided("run", run):` sets one field of the ProposalContext for the block."""

    __slots__ = ("_field", "_token", "_value")
    _token: Token[ProposalContext]

    def __init__(self, field: str, value: T) -> None:
        self._field = field
        self._value = value

    def __enter__(self) -> T:
        change: dict[str, Any] = {self._field: self._value}
        self._token = _context.set(_context.get()._replace(**change))
        return self._value

    def __exit__(self, *_: object) -> None:
        _context.reset(self._token)


def channel_run(run: ChannelRun) -> AbstractContextManager[ChannelRun]:
    """Install the scope in which `stash_pending` works, for the length of one turn."""
    return _provided("run", run)


def in_channel_run() -> bool:
    """Whether a proposal made now would reach a user."""
    run = _context.get().run
    return run is not None and run.confirmed is None


def acting(confirmed: Confirmation, scope: Scope, language: str) -> AbstractContextManager[ChannelRun]:
    """Run an action by this yes: inside, `current_context` and `current_user` name the person who confirmed."""
    run = _context.get().run
    known = run if run is not None and run.user_id == scope.user_id else None
    return _provided(
        "run",
        ChannelRun(
            user_id=scope.user_id,
            channel_id=scope.conversation.channel,
            conversation_id=scope.conversation.address,
            ttl_seconds=known.ttl_seconds if known else 0.0,
            parser_version=known.parser_version if known else "",
            language=language,
            aliases=known.aliases if known else (),
            user_name=known.user_name if known else "",
            role=known.role if known else (lambda: ""),
            confirmed=confirmed,
        ),
    )


def current_context() -> ToolContext:
    """Return who speaks, where, and by whose yes, as a tool is handed it."""
    run = _context.get().run
    if run is None:
        return ToolContext()
    person = Person(run.user_id, run.user_name, run.role(), _phone(run.user_id, *run.aliases))
    return ToolContext(person, run.channel_id or "", run.conversation_id or "", run.language, run.confirmed)


def _phone(*names: str) -> str:
    """Return the phone number among the ids of a person, "" where the platform gives none."""
    return next((found[1] for name in names if (found := _PHONE.fullmatch(name))), "")


def current_user() -> str | None:
    """Return the id that their platform gives to whoever's turn is answered, or whose yes runs an action; else None."""
    run = _context.get().run
    return run.user_id if run else None


def current_names() -> tuple[str, ...]:
    """All ids of whoever's turn is being answered, that of `current_user` first; none outside a channel run."""
    run = _context.get().run
    return (run.user_id, *run.aliases) if run else ()


def asked_preview() -> str:
    """Return the preview that the call which runs now asked a yes for; "" where it asked for none."""
    made = _context.get().proposals
    return made[-1].action.preview if made else ""


def begin_round() -> None:
    """The calls of another answer of the model begin: what they propose comes after what was proposed before."""
    run = _context.get().run
    if run is not None:
        run.rounds += 1


def running_tool(name: str, *, read_only: bool, proposes: bool) -> AbstractContextManager[Any]:
    """Tell `stash_pending` which tool runs inside, and whether its author declared that it asks."""
    return _provided("undeclared", None if proposes else (name, read_only))


def _check_declared() -> None:
    """Refuse a proposal of a tool that is marked read-only; log that of one which did not say that it asks."""
    undeclared = _context.get().undeclared
    if undeclared is None:
        return
    name, read_only = undeclared
    if read_only:
        raise RuntimeError(
            f"tool {name!r} is marked read_only and asks for a yes: declare it with proposes=True instead"
        )
    log.warning("proposal.undeclared", extra={"tool": name, "cure": "declare it with proposes=True"})


def collect_proposals() -> AbstractContextManager[list[Proposed]]:
    """Collect what is proposed in this context, in the tasks and in the threads started from it."""
    return _provided("proposals", [])


def restore(proposals: Iterable[Proposed]) -> None:
    """Propose again what an earlier attempt at this turn proposed. Outside a channel run this is a no-op."""
    run = _context.get().run
    for proposed in proposals if run else ():
        run.restore(proposed)  # type: ignore[union-attr]  # there is a run, or nothing to go through


def stash_pending(
    *,
    kind: str,
    preview: str,
    executor: Executor | None = None,
    args: Mapping[str, Any] | None = None,
    ttl_seconds: float | None = None,
    idempotent: bool = False,
    typed_code: bool = False,
    reason: str = "",
    version: str = "",
) -> PendingAction | None:
    """Propose a side effect to the user of the current turn (seed: `stash_pending`).

    `executor` serves only this process; after a restart, or on another machine, the executor factory registered
    for `kind` rebuilds it from `args`. What one turn proposes is one plan, in order, under one yes. With `typed_code`
    the yes must name the code that the question shows. `reason` says why the user is asked, `version` which version
    of the tool was shown. Outside a channel run this is a no-op that returns None.

    Raises PendingActionExistsError when this turn has proposed the same already, MAX_STEPS others, or all that is read
    at once; RuntimeError in a tool that is marked read-only; TypeError when `args` is not exact JSON, ValueError when
    there is too much to agree to.
    """
    run = _context.get().run
    if run is None or run.confirmed is not None:
        return None
    _check_declared()
    action = PendingAction(
        user_id=run.user_id,
        kind=kind,
        preview=preview,
        **exact(args),
        channel_id=run.channel_id,
        conversation_id=run.conversation_id,
        ttl_seconds=run.ttl_seconds if ttl_seconds is None else ttl_seconds,
        parser_version=run.parser_version,
        idempotent=idempotent,
        code=f"{randbelow(10_000):04}" if typed_code else "",
        reason=reason,
        version=version,
        language=run.language,
    )
    check_proposal(action)
    run.add(action)
    if executor is not None:
        run.executors[action.pending_action_id] = executor
    return action


def _effect(action: PendingAction) -> tuple[str, str, str]:
    """What would be done: two previews that differ are two things, although their recorded arguments may be none."""
    return action.kind, action.args_digest, action.preview


def executor_factory(kind: str) -> Callable[[F], F]:
    """Mark a function as the executor factory of `kind`. The tool loader finds it beside the tools of its module."""

    def mark(factory: F) -> F:
        factory.__sayso_kind__ = kind  # type: ignore[attr-defined]  # a mark, not a registry: importing does nothing
        return factory

    return mark
