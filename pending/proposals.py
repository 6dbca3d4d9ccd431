"""Proposals: how a tool proposes an action, and what it knows of its user.

`stash_pending` is how a tool proposes, `current_context` what it knows. When the turn ends, the
proposals of a run become one question (`plans.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from secrets import randbelow
from typing import Any, NamedTuple, TypeVar

from sayso.channels.markdown.literal import as_markdown
from sayso.channels.types import Scope, without_invisible
from sayso.pending.action import (
    MAX_NAME_CHARS,
    Executor,
    PendingAction,
    check_proposal,
    exact_args,
)
from sayso.pending.approval_rule import ApprovalRule
from sayso.pending.call_context import (
    ChannelRun,
    Confirmation,
    ProposedAction,
    call_context,
    context_field,
)
from sayso.pending.effect import EffectStart
from sayso.pending.executors import ExecutorFactory
from sayso.pending.standing_rule import offered_rule
from sayso.pending.tool_context import Person, ToolContext

log = logging.getLogger(__name__)

F = TypeVar("F", bound=ExecutorFactory)

#: A user id that is a phone number, with or without a prefix of its platform, such as `whatsapp:`.
_PHONE = re.compile(r"(?:[a-z]+:)?(\+[0-9]{6,15})")


@dataclass(frozen=True, slots=True)
class ShownTool:
    """What is known of the tool when its question is shown.

    A PendingAction has fields of the same names and meaning.
    """

    #: The digest of the tool's definition, "" if no tool asked.
    tool_digest: str
    #: The digest of the values that count in the preview; "" if its whole text counts.
    values_digest: str = ""
    #: The fields that the person may change before the yes.
    form: Sequence[Mapping[str, Any]] = ()


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
    shown: ShownTool | None = None,
) -> PendingAction | None:
    """Propose a side effect to the user of the current turn.

    Return the action, or None outside a channel run, where no user can be asked and this does
    nothing. All proposals of one turn form one plan, in order, under one yes.

    `kind` names what will run. `preview` is shown literally, unless it is `Markdown`. `executor`
    runs the action in this process. After a restart, or on another machine, the executor factory
    registered for `kind` rebuilds it from `args`. `ttl_seconds` is how long the user may answer;
    None: as long as the channel says. `idempotent`: running the action twice has the effect of
    running it once. With `typed_code` the yes must name the code that the question shows. `reason`
    says why the user is asked, `version` which version of the tool was shown.

    If the policy says that other people decide (`ToolPolicy.approval`), they have the time of that
    rule, whatever `ttl_seconds` is. The action then has no code to type and no form: the user
    neither confirms nor changes it.

    Only the agent gives `shown`, when it proposes a call itself. Otherwise the definition of the
    tool that runs is stored: if it has changed at the yes, nothing runs.

    Raises PendingActionExistsError when this turn has already proposed the same, MAX_STEPS others,
    as much text as a question may show, or an action that other people decide about;
    ActionDeniedError when the user has just said no to the same; RuntimeError in a tool that is marked read-only; TypeError when `args` is not exact JSON or
    a text is of another type; and ValueError when a limit of `check_proposal` is exceeded.
    """
    run = call_context().run
    if run is None or run.confirmed is not None:
        return None

    asking_tool = _running_tool.get()
    if asking_tool is not None:
        _check_declared(asking_tool)
    asked_by = ""
    if shown is None:
        shown = ShownTool(tool_digest="")
        if asking_tool is not None:
            asked_by = asking_tool.name
            shown = ShownTool(asking_tool.digest())

    if ttl_seconds is None:
        ttl_seconds = run.ttl_seconds
    approval: dict[str, Any] | None = None
    form = shown.form
    rule = _rule_of_others(run, kind, asked_by)
    if rule is not None:
        approval = rule.to_dict()
        ttl_seconds = rule.within_seconds
        typed_code = False
        form = ()

    # Only a call that the agent proposes: the arguments of any other action are not those of a tool.
    standing = None
    if rule is None and not typed_code and not asked_by and shown.tool_digest:
        standing = offered_rule(run.standing(kind), args or {})

    code = ""
    if typed_code:
        code = f"{randbelow(10_000):04}"
    action = PendingAction(
        user_id=run.user_id,
        kind=kind,
        preview=as_markdown(preview),
        **exact_args(args),
        channel_id=run.channel_id,
        conversation_id=run.conversation_id,
        ttl_seconds=ttl_seconds,
        parser_version=run.parser_version,
        idempotent=idempotent,
        code=code,
        reason=reason,
        version=version,
        asked_by=asked_by,
        user_name=without_invisible(run.user_name)[:MAX_NAME_CHARS],
        tool_digest=shown.tool_digest,
        values_digest=shown.values_digest,
        form=form,
        language=run.language,
        after=run.after(asked_by or kind),
        other_message=run.other_message(asked_by or kind),
        approval=approval,
        standing=standing,
    )
    check_proposal(action)

    run.add(action)
    if executor is not None:
        run.executors[action.pending_action_id] = executor
    return action


def _rule_of_others(run: ChannelRun, kind: str, asked_by: str) -> ApprovalRule | None:
    """Return the rule by which other people decide about a proposal, None if the user decides.

    What will run (`kind`) comes first. The tool whose code asked (`asked_by`, "" for none) counts
    too: neither name can be used to escape the rule of the other.
    """
    for name in filter(None, (kind, asked_by)):
        rule = run.approval(name)
        if rule is not None and rule.asks_others:
            return rule
    return None


def executor_factory(kind: str, *, marks_effect: bool = False) -> Callable[[F], F]:
    """Mark a function as the executor factory of `kind`, as a decorator.

    The tool loader finds it in the module whose tools it loads. With `marks_effect` the executors
    say where their effect begins: `with current_context().effect():`.
    """

    def mark(factory: F) -> F:
        # Only marked, so that importing does nothing.
        factory.__sayso_kind__ = kind  # type: ignore[attr-defined]
        factory.__sayso_marks_effect__ = marks_effect  # type: ignore[attr-defined]
        return factory

    return mark


#: What is known of the user of a confirmed action outside a channel run: nothing.
_OUTSIDE = ChannelRun(
    user_id="", channel_id=None, conversation_id=None, ttl_seconds=0.0, parser_version=""
)


def in_channel_run() -> bool:
    """Return whether a proposal made now would be shown to a user."""
    run = call_context().run
    return run is not None and run.confirmed is None


def confirmed_run(
    confirmed: Confirmation, scope: Scope, language: str, effect: EffectStart | None = None
) -> AbstractContextManager[ChannelRun]:
    """Run an action by this yes inside the block.

    In the block `current_context` and `current_user` name the person who confirmed it, and the id
    of the action is the `idempotency_key`. `scope` is where the action waited, `language` that of
    its question, and `effect` where its effect begins; None if it has begun.
    """
    run = call_context().run
    if run is None or run.user_id != scope.user_id:
        run = _OUTSIDE
    by_yes = ChannelRun(
        user_id=scope.user_id,
        channel_id=scope.conversation.channel,
        conversation_id=scope.conversation.address,
        ttl_seconds=run.ttl_seconds,
        parser_version=run.parser_version,
        language=language,
        aliases=run.aliases,
        user_name=run.user_name,
        role=run.role,
        confirmed=confirmed,
    )
    log_fields = {**call_context().log_fields, "action": confirmed.action_id}
    return context_field(
        "run", by_yes, effect=effect, idempotency_key=confirmed.action_id, log_fields=log_fields
    )


def current_context() -> ToolContext:
    """Return the context of the current run as a tool receives it.

    Outside a channel run it names no person and no conversation.
    """
    run = call_context().run
    effect = _effect_start()
    if run is None:
        return ToolContext().set_effect_start(effect)

    person = None
    if run.user_id:
        phone = _phone_of((run.user_id, *run.aliases))
        person = Person(run.user_id, run.user_name, run.role(), phone)
    context = ToolContext(
        person=person,
        channel=run.channel_id or "",
        conversation=run.conversation_id or "",
        language=run.language,
        confirmed=run.confirmed,
    )
    return context.set_effect_start(effect)


def _phone_of(user_ids: Iterable[str]) -> str:
    """Return the phone number among the ids of a person, "" if there is none."""
    for user_id in user_ids:
        match = _PHONE.fullmatch(user_id)
        if match:
            return match[1]
    return ""


def _effect_start() -> EffectStart | None:
    """Return where the effect of the current call begins.

    A tool that did not declare that it says so gets an error.
    """
    tool = _running_tool.get()
    if tool is None or tool.marks_effect:
        return call_context().effect

    async def refuse() -> None:
        raise RuntimeError(
            f"tool {tool.name!r} says where its effect begins: give it marks_effect=True"
        )

    return EffectStart(refuse)


def current_user() -> str | None:
    """Return the platform's id of the user whose turn is answered or whose yes runs an action.

    None outside a run.
    """
    run = call_context().run
    if run:
        return run.user_id or None
    return None


def current_user_ids() -> tuple[str, ...]:
    """Return all ids of the user whose turn is answered; () outside a channel run.

    That of `current_user` is the first.
    """
    run = call_context().run
    if run:
        return (run.user_id, *run.aliases)
    return ()


def begin_round() -> None:
    """Begin the calls of the model's next answer. Their proposals come after all earlier ones."""
    run = call_context().run
    if run is not None:
        run.rounds += 1


def last_proposed_preview() -> str:
    """Return the preview of the last proposal of the running call, "" if it proposed nothing."""
    collected = call_context().proposals
    if collected:
        return collected[-1].action.preview
    return ""


def restore_proposals(proposals: Iterable[ProposedAction]) -> None:
    """Restore what an earlier attempt at this turn proposed.

    Outside a channel run this does nothing.
    """
    run = call_context().run
    if run is not None:
        for proposed in proposals:
            run.restore(proposed)


class RunningTool(NamedTuple):
    """A tool whose code runs now, and what its author declared."""

    name: str
    #: Whether the tool changes nothing.
    read_only: bool
    #: Whether its code may ask for a yes; None: undeclared.
    proposes: bool | None
    #: Whether the tool says itself where its effect begins.
    marks_effect: bool
    #: Returns the `Tool.definition_digest`, which is costly and seldom needed.
    digest: Callable[[], str]


#: The tool that runs, None outside of tools. Not a field of the CallContext: each call of a tool
#: sets it, and would take a quarter longer.
_running_tool: ContextVar[RunningTool | None] = ContextVar("sayso_running_tool", default=None)


class running_tool:  # noqa: N801  # used like a function
    """Tell `stash_pending` which tool runs inside the block."""

    __slots__ = ("_token", "_tool")
    _token: Token[RunningTool | None]

    def __init__(self, tool: RunningTool) -> None:
        self._tool = tool

    def __enter__(self) -> None:
        self._token = _running_tool.set(self._tool)

    def __exit__(self, *_: object) -> None:
        _running_tool.reset(self._token)


def _check_declared(tool: RunningTool) -> None:
    """Refuse a proposal of a read-only tool.

    Log that of a tool which did not declare that it proposes.
    """
    if tool.proposes:
        return
    if tool.read_only:
        raise RuntimeError(
            f"tool {tool.name!r} is marked read_only and asks for a yes: declare it with proposes=True instead"
        )
    log.warning(
        "proposal.undeclared", extra={"tool": tool.name, "cure": "declare it with proposes=True"}
    )
