"""Proposals: how a tool, in the middle of a channel run, asks for a yes instead of acting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pending.action import Executor, PendingAction, PendingActionExistsError

#: Rebuilds what a confirmed action runs, from its record alone.
ExecutorFactory = Callable[[PendingAction], Executor]

F = TypeVar("F", bound=ExecutorFactory)


@dataclass(slots=True)
class ChannelRun:
    """One turn's run on a channel: the scope that a proposal belongs to, and the proposal once there is one."""

    user_id: str
    channel_id: str | None
    conversation_id: str | None
    ttl_seconds: float
    parser_version: str
    proposal: PendingAction | None = None
    executors: dict[str, Executor] = field(default_factory=dict)
    #: Tools of one model response run in threads of their own.
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


_run: ContextVar[ChannelRun | None] = ContextVar("sayso_channel_run", default=None)


@contextmanager
def channel_run(run: ChannelRun) -> Iterator[ChannelRun]:
    """Install the scope in which `stash_pending` works, for the length of one turn."""
    token = _run.set(run)
    try:
        yield run
    finally:
        _run.reset(token)


def in_channel_run() -> bool:
    """Whether a proposal made now would reach a user."""
    return _run.get() is not None


def stash_pending(
    *,
    kind: str,
    preview: str,
    executor: Executor | None = None,
    args: Mapping[str, Any] | None = None,
    ttl_seconds: float | None = None,
    idempotent: bool = False,
) -> PendingAction | None:
    """Propose a side effect to the user of the current turn (seed: `stash_pending`).

    `executor` serves only this process; after a restart, or on another machine, the executor factory registered
    for `kind` rebuilds it from `args`. Outside a channel run this is a no-op that returns None.

    Raises PendingActionExistsError when this turn has proposed something already, TypeError when `args` is not
    exact JSON.
    """
    run = _run.get()
    if run is None:
        return None
    action = PendingAction(
        user_id=run.user_id,
        kind=kind,
        preview=preview,
        args=dict(args or {}),
        channel_id=run.channel_id,
        conversation_id=run.conversation_id,
        ttl_seconds=run.ttl_seconds if ttl_seconds is None else ttl_seconds,
        parser_version=run.parser_version,
        idempotent=idempotent,
    )
    with run.lock:
        if run.proposal is not None:
            raise PendingActionExistsError(f"{run.proposal.preview!r} already waits for a yes: finish that one first")
        run.proposal = action
    if executor is not None:
        run.executors[action.pending_action_id] = executor
    return action


def executor_factory(kind: str) -> Callable[[F], F]:
    """Mark a function as the executor factory of `kind`. The tool loader finds it beside the tools of its module."""

    def mark(factory: F) -> F:
        factory.__sayso_kind__ = kind  # type: ignore[attr-defined]  # a mark, not a registry: importing does nothing
        return factory

    return mark
