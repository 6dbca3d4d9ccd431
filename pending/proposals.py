"""Proposals: what tools propose during a turn, and what their user is asked to confirm.

That is a single action, a *plan* of several actions under one yes, or the *undo* of actions that
took effect. `stash_pending` is how a tool proposes; `current_context` is what it knows of its user.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from secrets import randbelow
from typing import Any, Literal, NamedTuple, TypeVar

from sayso.channels.forms import fits_in_record
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.literal import as_markdown
from sayso.channels.types import Scope, one_line
from sayso.infra.ids import random_id
from sayso.pending.action import (
    MAX_NAME_CHARS,
    PLAN_KIND,
    ActionSigner,
    After,
    Executor,
    OtherMessage,
    PendingAction,
    check_proposal,
    compute_args_digest,
    exact_args,
)
from sayso.pending.call_context import (
    ChannelRun,
    Confirmation,
    ProposedAction,
    call_context,
    context_field,
)
from sayso.pending.effect import EffectStart
from sayso.pending.executors import UNDO_PREFIX, ExecutorFactory
from sayso.pending.repository import sign_action
from sayso.pending.stored_action import StoredAction
from sayso.pending.tool_context import Person, ToolContext
from sayso.pending.turns import NewAction

log = logging.getLogger(__name__)

F = TypeVar("F", bound=ExecutorFactory)

#: A user id that is a phone number, with or without a prefix of its platform, such as `whatsapp:`.
_PHONE = re.compile(r"(?:[a-z]+:)?(\+[0-9]{6,15})")


@dataclass(frozen=True, slots=True)
class ShownTool:
    """What is known of the tool when its question is shown.

    A PendingAction has fields of the same names and meaning.
    """

    tool_digest: str
    values_digest: str = ""
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

    Only the agent gives `shown`, when it proposes a call itself. Otherwise the definition of the
    tool that runs is stored: if it has changed at the yes, nothing runs.

    Raises PendingActionExistsError when this turn has already proposed the same, MAX_STEPS others,
    or as much text as a question may show; ActionDeniedError when the user has just said no to the
    same; RuntimeError in a tool that is marked read-only; TypeError when `args` is not exact JSON;
    and ValueError when a limit of `check_proposal` is exceeded.
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

    action = PendingAction(
        user_id=run.user_id,
        kind=kind,
        preview=as_markdown(preview),
        **exact_args(args),
        channel_id=run.channel_id,
        conversation_id=run.conversation_id,
        ttl_seconds=run.ttl_seconds if ttl_seconds is None else ttl_seconds,
        parser_version=run.parser_version,
        idempotent=idempotent,
        code=f"{randbelow(10_000):04}" if typed_code else "",
        reason=reason,
        version=version,
        asked_by=asked_by,
        user_name=one_line(run.user_name)[:MAX_NAME_CHARS],
        tool_digest=shown.tool_digest,
        values_digest=shown.values_digest,
        form=shown.form,
        language=run.language,
        after=run.after(asked_by or kind),
        other_message=run.other_message(asked_by or kind),
    )
    check_proposal(action)

    run.add(action)
    if executor is not None:
        run.executors[action.pending_action_id] = executor
    return action


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
        return ToolContext().begins_at(effect)

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
    return context.begins_at(effect)


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


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one yes confirms: a single action, or a plan."""

    #: The action whose preview the question shows, and which the yes is about. The head of a plan
    #: has no effect itself.
    head: PendingAction
    #: The actions of a plan, in the order in which they will run; () for a single action.
    steps: tuple[PendingAction, ...] = ()

    def new_actions(
        self, signer: ActionSigner, user: str, *, occupies_scope: bool = True
    ) -> tuple[NewAction, ...]:
        """Return the signed records to store, the head last.

        `user` is the id of the scope that is asked. With `occupies_scope=False` a written yes does
        not reach the head: only its button does.
        """
        steps = [sign_action(step, signer, user=user, occupies_scope=False) for step in self.steps]
        ids = tuple(step.pending_action_id for step in self.steps)
        head = sign_action(self.head, signer, user=user, occupies_scope=occupies_scope, steps=ids)
        return (*steps, head)

    def prompt_in(self, closing: str) -> str:
        """Return the text that a tool put below its preview, "" for none.

        `closing` is the text with which the run ended: a preview, and what stands below it.
        """
        previews = [action.preview for action in (self.head, *self.steps)]
        shown = [preview for preview in previews if closing.startswith(f"{preview}\n\n")]
        if not shown:
            return ""
        # One preview may begin with another: then the longer one was meant.
        longest = max(shown, key=len)
        return closing.removeprefix(longest).strip()


def plan_of(actions: Sequence[PendingAction], *, plan_id: str = "") -> Proposal:
    """Return one proposal of all actions of a turn, at least one: a plan if there are several.

    `plan_id` is the id of the plan, "" for a new one. The plan asks for the code of one of its
    steps, and has the shortest of their times to answer.
    """
    if len(actions) == 1:
        return Proposal(actions[0])

    plan_id = plan_id or random_id(11)
    # The plan has the code and the form: its steps are not answered one by one.
    steps = tuple(replace(action, plan=plan_id, code="", form=()) for action in actions)
    codes = [action.code for action in actions if action.code]
    # The plan is signed with the digests of its steps: a step that was changed or exchanged in the
    # store does not run (`is_step_of`).
    args = {"steps": [_step_entry(step) for step in steps]}
    head = replace(
        actions[0],
        pending_action_id=plan_id,
        kind=PLAN_KIND,
        preview=texts_for(actions[0].language).plan([step.preview for step in steps]),
        args=args,
        args_digest=compute_args_digest(args),
        ttl_seconds=min(step.ttl_seconds for step in steps),
        code=codes[0] if codes else "",
        idempotent=False,
        version="",
        asked_by="",
        tool_digest="",
        values_digest="",
        after=_after_all(steps),
        form=_plan_form(actions),
        changes_of="",
        other_message=_other_message_of_all(steps),
    )
    return Proposal(head, steps)


def _after_all(steps: Sequence[PendingAction]) -> After | Literal[""]:
    """Return what follows a plan: the model goes on unless each step says that it does not."""
    chosen = {step.after for step in steps}
    if "continue" in chosen:
        return "continue"
    if chosen == {"say"}:
        return "say"
    return ""  # the channel decides for those that do not say, and so for the plan


def _plan_form(actions: Sequence[PendingAction]) -> tuple[dict[str, Any], ...]:
    """Return the fields of all steps, with the number of the step before each name and label.

    () if they are too many for a form.
    """
    entries: list[dict[str, Any]] = []
    for number, action in enumerate(actions, start=1):
        for entry in action.form:
            name = f"{number}.{entry['name']}"
            label = f"{number}. {entry['label']}"
            entries.append({**entry, "name": name, "label": label})
    if fits_in_record(entries):
        return tuple(entries)
    return ()


def _other_message_of_all(steps: Sequence[PendingAction]) -> OtherMessage | Literal[""]:
    """Return what another message does to the question of a plan.

    It stays open only if each step lets it.
    """
    chosen = {step.other_message for step in steps}
    if "drop" in chosen:
        return "drop"
    if chosen == {"keep"}:
        return "keep"
    return ""  # the channel decides for those that do not say, and so for the plan


def step_ids(plan: PendingAction) -> tuple[str, ...]:
    """Return the ids of a plan's steps, in order."""
    return tuple(step["id"] for step in plan.args["steps"])


def is_step_of(plan: PendingAction, number: int, stored: StoredAction | None) -> bool:
    """Return whether a record is the step `number`, from 0, of this plan as it was shown.

    It is not if it belongs to another plan or has other arguments. None is no step.
    """
    if stored is None or stored.action.plan != plan.pending_action_id:
        return False
    shown: dict[str, str] = plan.args["steps"][number]
    return _step_entry(stored.action) == shown


def _step_entry(step: PendingAction) -> dict[str, str]:
    """Return what a plan says about a step in its arguments."""
    return {
        "id": step.pending_action_id,
        "kind": step.kind,
        "asked_by": step.asked_by,
        "digest": step.args_digest,
    }


@dataclass(frozen=True, slots=True)
class Effect:
    """An action that took effect, and what its tool returned."""

    action: PendingAction
    #: As the user read it, "" for nothing.
    result: str = ""


def is_undo(action: PendingAction) -> bool:
    """Return whether the action, or a step of it, undoes another action."""
    kinds = [action.kind]
    if action.kind == PLAN_KIND:
        kinds = [step["kind"] for step in action.args["steps"]]
    return any(kind.startswith(UNDO_PREFIX) for kind in kinds)


def undo_id(action_id: str) -> str:
    """Return the id of the action that undoes an action.

    It is computed from the id of the action, so that the undo of an action can be found.
    """
    return hashlib.sha256(f"undo {action_id}".encode()).hexdigest()[:22]


def undo_proposal(effects: Sequence[Effect], seconds: float, outcome_text: str = "") -> Proposal:
    """Return the proposal that undoes these effects, the last one first.

    The undo can be confirmed for `seconds`. `outcome_text` is the outcome above the button of the
    undo, as Markdown, which stays there once the undo is decided; "" if the button is in a message
    without an outcome.
    """
    undo_actions: list[PendingAction] = []
    for effect in reversed(effects):
        action = effect.action
        args: dict[str, Any] = {
            "of": action.pending_action_id,
            "args": action.args,
            "result": effect.result,
        }
        # The first action of the proposal has the text for all of them.
        if outcome_text and not undo_actions:
            args["outcome_text"] = outcome_text
        undo_action = PendingAction(
            user_id=action.user_id,
            kind=UNDO_PREFIX + action.kind,
            preview=texts_for(action.language).undo(action.preview),
            args=args,
            channel_id=action.channel_id,
            conversation_id=action.conversation_id,
            ttl_seconds=seconds,
            requested_at=action.requested_at,
            parser_version=action.parser_version,
            version=action.version,
            asked_by=action.asked_by,
            user_name=action.user_name,
            tool_digest=action.tool_digest,
            language=action.language,
            after="say",  # the person takes a step back: nothing of the request is left to do
            pending_action_id=undo_id(action.pending_action_id),
        )
        undo_actions.append(undo_action)
    ids = " ".join(effect.action.pending_action_id for effect in effects)
    return plan_of(undo_actions, plan_id=undo_id(ids))
